//! How answers look on a terminal.

use crate::rig::plan::Answer;
use crate::rig::spec::Contestant;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};

/// A table with these headings; all but the first two columns are figures.
pub fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header.iter().copied());
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

/// Nanoseconds for people: `94`, `9.21k` for microseconds would mislead, so `9_210` stays in ns until a million.
pub fn ns(value: f64) -> String {
    match value {
        ..10_000.0 => format!("{value:.0}"),
        ..10_000_000.0 => format!("{:.1} us", value / 1e3),
        _ => format!("{:.1} ms", value / 1e6),
    }
}

/// Everything that went wrong in the comparable rounds: `0`, or what it was.
pub fn lost(answer: &Answer, case: &str, who: &Contestant) -> String {
    let sum = |count: fn(&crate::rig::spec::Received) -> u64| -> u64 {
        answer.comparable(case, who).iter().map(|(_, outcome)| count(&outcome.received)).sum()
    };
    let faults = [
        ("", sum(|r| r.lost)),
        (" dup", sum(|r| r.duplicated)),
        (" late", sum(|r| r.out_of_order)),
        (" bad", sum(|r| r.corrupt)),
    ];
    let text: Vec<String> =
        faults.iter().filter(|(_, n)| *n > 0).map(|(what, n)| format!("{n}{what}")).collect();
    if text.is_empty() { "0".into() } else { text.join(", ") }
}

/// How many rounds stand behind a figure, where the CPUs were, and `!` if the machine was never quiet.
pub fn rounds(answer: &Answer, case: &str, who: &Contestant) -> String {
    let count = answer.comparable(case, who).len();
    if answer.quick {
        return format!("{count} (times mean nothing)");
    }
    if !answer.is_quiet(case, who) {
        return format!("{count} !");
    }
    let placement = answer.placement(case).map_or("", |placement| placement.name());
    format!("{count} {placement}")
}
