//! The failure handbook and the page of texts quote the programs. Each quoted text must be in the sources, and these documents must have
//! every event, state and alert.

use super::book;
use std::fs;
use std::path::Path;

/// The shortest piece of a text that is searched in the sources. Shorter pieces are found in many places.
const TELLING_BYTES: usize = 8;

/// The first cells of the rows of the tables in a section of a page.
fn first_cells(page: &str, heading: &str) -> Vec<String> {
    let text = book::text(page);
    let start = text.find(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let section = &text[start + heading.len() + 2..];
    let end = section.find("\n## ").unwrap_or(section.len());
    let rows = section[..end].lines().filter(|line| line.starts_with("| ") && !line.starts_with("|---"));
    rows.filter_map(|row| row[2..].split_once(" | ")).map(|(cell, _)| cell.to_owned()).collect()
}

/// The texts between backticks.
fn quoted(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

fn is_event_of_a_bridge(text: &str) -> bool {
    text.strip_prefix("bridge-")
        .is_some_and(|rest| rest.bytes().all(|byte| byte == b'-' || byte.is_ascii_lowercase()))
}

/// All sources of the programs. Strings that are split over several lines are joined.
fn sources() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut text = String::new();
    for part in [
        "shm-layout/src",
        "client/src",
        "daemon/src",
        "daemon/bridge/src",
        "daemon/engine/src",
        "daemon/journal/src",
    ] {
        collect(&root.join(part), &mut text);
    }
    let mut whole = String::new();
    for line in text.lines().map(str::trim_start) {
        match line.strip_suffix('\\') {
            Some(begun) => whole += begun,
            None => whole.extend([line, "\n"]),
        }
    }
    whole
}

fn collect(dir: &Path, text: &mut String) {
    for entry in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
        match entry.extension() {
            Some(ext) if ext == "rs" => *text += &fs::read_to_string(&entry).unwrap(),
            _ if entry.is_dir() => collect(&entry, text),
            _ => {}
        }
    }
}

#[test]
fn a_text_that_no_program_prints() {
    let sources = sources();
    let headings = [
        "## A program cannot open a channel",
        "## A publisher fails",
        "## A reader is told of a loss",
        "## A reader fails",
        "## The daemon",
        "## A bridge",
        "## A journal",
    ];
    let mut seen = 0;
    for heading in headings {
        for cell in first_cells("messages", heading) {
            for text in quoted(&cell) {
                for piece in
                    text.split("[..]").map(|piece| piece.trim_matches([' ', ':', ',', ';', '(', ')']))
                {
                    if piece.len() < TELLING_BYTES {
                        continue;
                    }
                    assert!(sources.contains(piece), "{heading}: no program prints {piece:?}");
                    seen += 1;
                }
            }
        }
    }
    assert!(seen >= 60, "{seen}");
}

#[test]
fn an_event_that_the_handbook_leaves_out() {
    let cells = first_cells("messages", "## The daemon").join(" ");
    let known = quoted(&cells);
    let sources = sources();
    let told = sources.split(".tell(").skip(1).filter_map(|rest| rest.trim_start().strip_prefix('"'));
    let told: Vec<&str> = told.filter_map(|rest| rest.split_once('"')).map(|(event, _)| event).collect();
    assert!(told.len() > 10, "{told:?}");
    // Events about a bridge's counters stand in tables.
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/server/bridges/configured.rs");
    let tables = fs::read_to_string(tables).unwrap();
    let counted: Vec<&str> = tables.split('"').filter(|text| is_event_of_a_bridge(text)).collect();
    assert!(counted.len() > 10, "{counted:?}");
    for event in told.into_iter().chain(counted) {
        assert!(known.contains(&event), "the handbook lacks the event {event}");
    }
}

/// An earlier mistake: the page of versions had 1.0 for two formats that were at 2.0.
#[test]
fn a_version_that_the_guide_has_wrong() {
    let text = book::text("compatibility");
    for (what, source) in
        [("layout of a segment", "layout/header.rs"), ("files of a journal", "journal/mod.rs")]
    {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/src").join(source);
        let source = fs::read_to_string(source).unwrap();
        let (_, rest) = source.split_once("pub const VERSION: (u16, u16) = (").unwrap();
        let version = rest.split_once(");").unwrap().0.replace(", ", ".");
        assert!(text.contains(&format!("| {what} | {version}, in each ")), "{what} has {version}");
    }
}

#[test]
fn an_alert_that_the_handbook_leaves_out() {
    let alerts = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/alerts.yml")).unwrap();
    let rules = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    let mut rules: Vec<&str> = rules.collect();
    rules.sort_unstable();
    let cells = first_cells("messages", "## Alerts");
    let mut known: Vec<&str> = cells.iter().flat_map(|cell| quoted(cell)).collect();
    known.sort_unstable();
    assert_eq!(known, rules);
}

#[test]
fn a_state_that_the_handbook_leaves_out() {
    // The documentation of `ChannelStatus::state` lists all states.
    let control = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shm-layout/src/control/mod.rs");
    let control = fs::read_to_string(control).unwrap();
    let (before, _) = control.split_once("pub state: String").unwrap();
    let comment = &before[before.rfind("pub channel: String").unwrap()..];
    let states = quoted(comment);
    assert!(states.len() >= 8, "{states:?}");
    let cells = first_cells("failures", "## States of a channel").join(" ");
    for state in states {
        assert!(quoted(&cells).contains(&state), "the handbook lacks the state {state}");
    }
}
