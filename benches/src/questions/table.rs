//! Tables of answers, for a terminal and for the report's pages. All times of one table have the same unit.

use crate::rig::plan::Answer;
use crate::rig::round::Outcome;
use crate::rig::spec::{Contestant, Received};
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{CellAlignment, Table};
use std::fmt;

/// The unit of every time in a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, without decimals.
    Ns,
    /// Microseconds with two decimals.
    Us,
}

impl Unit {
    /// The unit's symbol, as headers and titles show it.
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Ns => "ns",
            Self::Us => "us",
        }
    }

    /// Formats a time without its unit, such as `16,600` or `1,643.50`.
    pub fn show(self, ns: f64) -> String {
        match self {
            Self::Ns => grouped(ns, 0),
            Self::Us => grouped(ns / 1e3, 2),
        }
    }
}

/// Formats a number that is not negative, with this many decimals, and with commas between groups of three digits.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::new();
    for (i, digit) in whole.chars().enumerate() {
        if i > 0 && (whole.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + rest
}

/// A table for a terminal or a page. The first column names the case, and the second column names the transport. The other columns have
/// figures.
#[derive(Debug, Clone)]
pub struct Sheet {
    /// One sentence that says what was measured, and the unit of the times.
    pub title: String,
    /// Column titles.
    pub header: Vec<String>,
    /// The rows. Each has as many cells as there are titles.
    pub rows: Vec<Row>,
}

/// One line of a sheet.
#[derive(Debug, Clone)]
pub struct Row {
    /// The cells, as many as the sheet has columns.
    pub cells: Vec<String>,
    /// The contestant's transport.
    pub transport: String,
}

impl Sheet {
    /// Makes a sheet without rows. `first` is the title of the column of cases.
    pub fn new(title: &str, first: &str, figures: &[&str]) -> Self {
        let header = [first, "transport"].iter().chain(figures).map(ToString::to_string).collect();
        Self { title: title.into(), header, rows: Vec::new() }
    }

    /// Makes a sheet of `answer`. Each case and contestant has a row, in the order of their first rounds.
    pub fn of<const N: usize>(
        answer: &Answer,
        title: &str,
        (first, figures): (&str, [&str; N]),
        unit: Unit,
        cells: impl Fn(&Figures<'_>) -> [String; N],
    ) -> Self {
        let mut sheet = Self::new(title, first, &figures);
        for case in &answer.cases() {
            for who in &answer.contestants(case) {
                sheet.add(case, who, cells(&Figures { answer, case, who, unit }));
            }
        }
        sheet
    }

    /// Adds a contestant's row.
    pub fn add<const N: usize>(&mut self, case: &str, who: &Contestant, figures: [String; N]) {
        let cells = [case.to_owned(), who.name()].into_iter().chain(figures).collect();
        self.rows.push(Row { cells, transport: who.transport_name().into() });
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

/// The figures of one contestant in one case, as text. If no round has a figure, the text is `-`.
#[derive(Debug, Clone, Copy)]
pub struct Figures<'a> {
    /// The answer with the rounds.
    pub answer: &'a Answer,
    /// The case.
    pub case: &'a str,
    /// The contestant.
    pub who: &'a Contestant,
    /// The unit of the times.
    pub unit: Unit,
}

impl Figures<'_> {
    /// Returns the median of a time in ns over the comparable rounds.
    pub fn time(&self, of: impl Fn(&Outcome) -> f64) -> String {
        self.answer.median(self.case, self.who, of).map_or("-".into(), |ns| self.unit.show(ns))
    }

    /// Returns the median of a number over the comparable rounds.
    pub fn number(&self, decimals: usize, of: impl Fn(&Outcome) -> f64) -> String {
        or_dash(self.answer.median(self.case, self.who, of), decimals)
    }

    /// Returns the contestant of this case for which `is` returns true.
    pub fn find(&self, is: impl Fn(&Contestant) -> bool) -> Option<Contestant> {
        self.answer.contestants(self.case).into_iter().find(is)
    }

    /// Divides this contestant's figure by the figure of `other`, in each lap. Returns the median of these ratios.
    pub fn ratio(&self, other: Option<&Contestant>, of: impl Fn(&Outcome) -> f64) -> String {
        or_dash(other.and_then(|other| self.answer.ratio(self.case, (self.who, other), of)), 2)
    }

    /// Describes losses and errors in the comparable rounds. The text is `0` if there were none.
    pub fn lost(&self) -> String {
        let rounds = self.answer.comparable(self.case, self.who);
        let sum =
            |count: fn(&Received) -> u64| -> u64 { rounds.iter().map(|(_, o)| count(&o.received)).sum() };
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

    /// Returns the number of rounds behind a figure, and their CPU placement. Adds `!` if the machine was never quiet.
    pub fn rounds(&self) -> String {
        let count = self.answer.comparable(self.case, self.who).len();
        if self.answer.quick {
            return format!("{count} (times mean nothing)");
        }
        if !self.answer.is_quiet(self.case, self.who) {
            return format!("{count} !");
        }
        let placement = self.answer.placement(self.case).map_or("", |placement| placement.name());
        format!("{count} {placement}")
    }
}

/// Formats a number with this many decimals. Returns `-` for `None`.
pub fn or_dash(value: Option<f64>, decimals: usize) -> String {
    value.map_or("-".into(), |value| format!("{value:.decimals$}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_one_table_line_up() {
        assert_eq!([94.0, 13_100.4, 1_643_500.0].map(|ns| Unit::Ns.show(ns)), ["94", "13,100", "1,643,500"]);
        assert_eq!([60.0, 13_100.0, 1_643_500.0].map(|ns| Unit::Us.show(ns)), ["0.06", "13.10", "1,643.50"]);
        assert_eq!([999.5, 999_999.0].map(|value| grouped(value, 0)), ["1,000", "999,999"]);
    }
}
