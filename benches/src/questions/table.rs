//! Answers as tables: on a terminal here, on pages by the report.

use crate::rig::plan::Answer;
use crate::rig::spec::Contestant;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use std::fmt;

/// A table before it is known where it will be shown. Its first two columns are words, the others figures.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// What it is of.
    pub title: String,
    /// Column titles.
    pub header: Vec<String>,
    /// Rows of as many cells.
    pub rows: Vec<Row>,
}

/// One line of a sheet.
#[derive(Debug, Clone)]
pub struct Row {
    /// Its cells.
    pub cells: Vec<String>,
    /// Whose figures they are.
    pub transport: String,
}

impl Sheet {
    /// Without rows.
    pub fn new(title: &str, header: &[&str]) -> Self {
        let header = header.iter().map(ToString::to_string).collect();
        Self { title: title.into(), header, rows: Vec::new() }
    }

    /// Adds a contestant's row.
    pub fn add<const N: usize>(&mut self, who: &Contestant, cells: [String; N]) {
        self.rows.push(Row { cells: cells.into(), transport: who.transport_name().into() });
    }
}

impl fmt::Display for Sheet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header(&self.header);
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for row in &self.rows {
            table.add_row(&row.cells);
        }
        write!(f, "{}\n{table}", self.title)
    }
}

/// Nanoseconds for people: plain up to 9999, so that neighbours compare at a glance, then with their unit.
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
