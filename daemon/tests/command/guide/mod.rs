//! The guide must be true: its commands print what it shows, and the programs have the texts that it quotes. `book.rs` reads chapters, and
//! `shell.rs` runs their commands as an ordinary user of a separate host.
mod book;
mod handbook;
mod shell;
mod shown;

use book::Chapter;
use std::fs;

/// Chapters with commands that can be run here; each is a test of its own below, so that a failure names its chapter.
const CHAPTERS: [&str; 11] = [
    "boards",
    "about",
    "tutorial",
    "operations",
    "configuration",
    "tuning",
    "bridges",
    "journal",
    "failures",
    "faq",
    "compatibility",
];

/// README.md is played as a chapter.
#[test]
fn readme() {
    shell::play("../../../../README");
}

#[test]
fn boards() {
    shell::play("boards");
}

#[test]
fn about() {
    shell::play("about");
}

#[test]
fn tutorial() {
    shell::play("tutorial");
}

#[test]
fn operations() {
    shell::play("operations");
}

#[test]
fn configuration() {
    shell::play("configuration");
}

#[test]
fn tuning() {
    shell::play("tuning");
}

#[test]
fn bridges() {
    shell::play("bridges");
}

#[test]
fn journal() {
    shell::play("journal");
}

#[test]
fn failures() {
    shell::play("failures");
}

#[test]
fn faq() {
    shell::play("faq");
}

#[test]
fn compatibility() {
    shell::play("compatibility");
}

#[test]
fn no_command_of_the_guide_is_left_out() {
    let mut with_commands: Vec<String> = Vec::new();
    for name in book::names() {
        let chapter = Chapter::read(&name);
        for block in &chapter.blocks {
            // One step of CI checks that a program in Python is the one of the tree, and another step runs the program.
            let known = ["console", "text", "toml", "rust", "python"];
            assert!(
                known.contains(&block.language()),
                "{name}.md:{}: a block of {:?}",
                block.line,
                block.info
            );
        }
        if !chapter.steps().is_empty() {
            with_commands.push(name);
        }
    }
    with_commands.sort();
    let mut played = CHAPTERS.map(str::to_owned);
    played.sort();
    assert_eq!(with_commands, played);
}

#[test]
fn each_chapter_is_in_the_contents_and_each_content_is_a_chapter() {
    let contents = book::text("SUMMARY");
    let mut listed: Vec<&str> = contents
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(".md)"))
        .map(|(name, _)| name)
        .collect();
    listed.sort_unstable();
    let mut names = book::names();
    names.sort();
    assert_eq!(listed, names);
}

/// mdbook takes a file without the anchor for an empty file.
#[test]
fn what_a_chapter_includes_is_there() {
    let mut seen = 0;
    for name in book::names() {
        for include in book::text(&name).split("{{#include ").skip(1) {
            let (target, _) = include.split_once("}}").unwrap();
            let (path, anchor) = target.split_once(':').unwrap_or((target, ""));
            let text = fs::read_to_string(book::dir().join(path))
                .unwrap_or_else(|e| panic!("{name}.md: {path}: {e}"));
            let begins = |line: &str| line.contains(&format!("ANCHOR: {anchor} "));
            assert!(
                anchor.is_empty() || text.lines().any(begins),
                "{name}.md: {path} has no anchor {anchor:?}"
            );
            seen += 1;
        }
    }
    assert!(seen >= 4, "{seen}");
}
