//! `shmcast.toml(5)`: the default configuration as a manual page.
//!
//! The page is generated from the file, whose comments explain the settings. The lines of the file form groups: comments, and then the
//! sections and fields that the comments explain.

use crate::config::DEFAULT_CONFIG;
use clap_mangen::roff::{Roff, bold, roman};
use std::collections::HashSet;

/// Returns the manual page of the configuration.
pub(super) fn page() -> String {
    let mut groups = groups(DEFAULT_CONFIG).into_iter();
    let mut page = Roff::new();
    page.control("TH", ["SHMCAST.TOML", "5", concat!("shmcast ", env!("CARGO_PKG_VERSION"))]);
    page.control("SH", ["NAME"]).text([roman("shmcast.toml - configuration of shmcastd")]);
    page.control("SH", ["DESCRIPTION"]);
    let preamble = groups.next().unwrap_or_default();
    paragraphs(&mut page, &preamble.comment);
    let mut sections = HashSet::new();
    for group in groups {
        show(&mut page, &group, &mut sections);
    }
    page.control("SH", ["FILES"]);
    page.control("TP", []).text([bold("/etc/shmcast/shmcast.toml")]);
    page.text([roman(
        "The file that the unit of systemd reads. Elsewhere shmcastd is given a file with --config.",
    )]);
    page.control("SH", ["SEE ALSO"]);
    page.text([
        bold("shmcastd"),
        roman("(8), "),
        bold("shmcast-check"),
        roman("(1), "),
        bold("shmcast"),
        roman("(1)"),
    ]);
    page.render()
}

/// Comments, and the sections and fields directly below them. Optional fields keep their `#`, because the comments mention the `#`.
#[derive(Debug, Default)]
struct Group<'a> {
    comment: Vec<&'a str>,
    items: Vec<&'a str>,
}

fn groups(text: &str) -> Vec<Group<'_>> {
    let mut groups = vec![Group::default()];
    let mut is_open = false;
    for line in text.lines() {
        // A "#" without a space begins an optional field. A comment has a space after it.
        let comment = line.strip_prefix("# ").or((line == "#").then_some(""));
        let is_new = comment.is_some() && groups.last().is_some_and(|group| !group.items.is_empty());
        if is_new || (!is_open && !line.is_empty() && groups.last().is_some_and(Group::is_begun)) {
            groups.push(Group::default());
        }
        is_open = !line.is_empty();
        let group = groups.last_mut().expect("there is one from the start");
        match comment {
            Some(comment) => group.comment.push(comment),
            None if is_open => {
                let section = line.strip_prefix('#').filter(|rest| rest.starts_with('['));
                group.items.push(section.unwrap_or(line));
            }
            None => {}
        }
    }
    groups
}

impl Group<'_> {
    fn is_begun(&self) -> bool {
        !(self.comment.is_empty() && self.items.is_empty())
    }
}

fn show<'a>(page: &mut Roff, group: &Group<'a>, sections: &mut HashSet<&'a str>) {
    let is_new = |item: &&str| item.starts_with('[') && !sections.contains(*item);
    match group.items.iter().position(is_new) {
        // The items before a new section belong to the previous section, and are shown as its example.
        Some(at) => {
            example(page, &group.items[..at]);
            sections.insert(group.items[at]);
            page.control("SH", [group.items[at]]);
            paragraphs(page, &group.comment);
            tags(page, &group.items[at + 1..]);
        }
        // The group begins with a section that was explained already, so the group is shown as one more example.
        None if group.items.first().is_some_and(|item| item.starts_with('[')) => {
            page.control("PP", []);
            paragraphs(page, &group.comment);
            example(page, &group.items);
        }
        None => {
            tags(page, &group.items);
            paragraphs(page, &group.comment);
        }
    }
}

/// Adds the fields of one explanation to the page.
fn tags(page: &mut Roff, fields: &[&str]) {
    for (index, field) in fields.iter().enumerate() {
        page.control(if index == 0 { "TP" } else { "TQ" }, []).text([bold(*field)]);
    }
}

fn example(page: &mut Roff, lines: &[&str]) {
    if !lines.is_empty() {
        page.control("PP", []);
        verbatim(page, lines);
    }
}

/// Adds comments to the page as text. Indented lines stay as they are.
fn paragraphs(page: &mut Roff, comment: &[&str]) {
    for lines in comment.chunk_by(|a, b| kind(a) == kind(b)) {
        match kind(lines[0]) {
            Kind::Text => drop(page.text([roman(lines.join(" "))])),
            Kind::Verbatim => verbatim(page, lines),
            Kind::Blank => {}
        }
    }
}

#[derive(PartialEq)]
enum Kind {
    Text,
    Verbatim,
    Blank,
}

fn kind(line: &str) -> Kind {
    match line {
        "" => Kind::Blank,
        line if line.starts_with("  ") => Kind::Verbatim,
        _ => Kind::Text,
    }
}

fn verbatim(page: &mut Roff, lines: &[&str]) {
    page.control("br", []).control("nf", []);
    for line in lines {
        page.text([roman(*line)]);
    }
    page.control("fi", []);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_of_the_file_is_in_the_page_once() {
        let page = page();
        // Roff has escapes for a dash and an apostrophe. They are replaced by the plain characters.
        let page = page.replace(r"\-", "-").replace(r"\*(Aq", "'");
        for group in groups(DEFAULT_CONFIG) {
            for item in group.items {
                assert!(page.contains(item), "{item} is not in the page");
            }
            for line in group.comment {
                assert!(page.contains(line.trim()), "{line} is not in the page");
            }
        }
    }

    #[test]
    fn a_comment_after_a_field_begins_the_next_explanation() {
        let found = groups("# one\n#a = 1\n# two\n#b = 2\n#c = 3\n\n# three\n#[d]\n");
        let shape: Vec<_> = found.iter().map(|group| (group.comment.len(), group.items.clone())).collect();
        assert_eq!(shape, [(1, vec!["#a = 1"]), (1, vec!["#b = 2", "#c = 3"]), (1, vec!["[d]"])]);
    }
}
