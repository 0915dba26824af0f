//! The tables of an answer, for the terminal and for a file.

use super::answer::{JournalAnswer, Row};
use crate::rig::journal::limits::Limits;
use crate::rig::stats::median;
use comfy_table::Table;
use comfy_table::presets::UTF8_FULL_CONDENSED;

/// The columns of the table of rows.
pub const HEADER: [&str; 8] =
    ["row", "measure", "must", "figure", "bound here", "unit", "result", "limit of the same lap"];

/// Formats a figure with up to three decimals. Larger figures have fewer decimals.
pub fn figure(value: f64) -> String {
    match value.abs() {
        10_000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        10.0.. => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Returns the cells of a row.
pub fn cells(answer: &JournalAnswer, row: &Row) -> [String; 8] {
    let mark = if row.is_quiet() { "" } else { " !" };
    let result = if answer.quick { "delivery only" } else { row.verdict().name() };
    let last = row.laps.last().map_or("", |lap| &lap.limit);
    let bound = if row.verdict() == super::answer::Verdict::Shown { "-".into() } else { figure(row.bound()) };
    [
        row.number.to_string(),
        row.measure.clone(),
        row.must.clone(),
        format!("{}{mark}", figure(row.value())),
        bound,
        row.unit.clone(),
        result.into(),
        last.into(),
    ]
}

/// Returns the limits, each with its name, meaning, median and range over the laps.
pub fn limits(answer: &JournalAnswer) -> Vec<[String; 3]> {
    let row = |name: &str, unit: &str, of: &dyn Fn(&Limits) -> f64| {
        let values: Vec<f64> = answer.limits.iter().map(of).collect();
        let (least, most) = values.iter().fold((f64::MAX, 0.0_f64), |(l, m), v| (l.min(*v), m.max(*v)));
        let middle = median(values).unwrap_or_default();
        [
            name.to_owned(),
            format!("{} {unit}", figure(middle)),
            format!("{} to {}", figure(least), figure(most)),
        ]
    };
    let mb = 1e6;
    vec![
        row("D, one write of 1 MiB at a time", "MB/s", &|l| l.direct[0] / mb),
        row("D, two at a time", "MB/s", &|l| l.direct[1] / mb),
        row("S, 4 KiB with RWF_DSYNC, p50", "ms", &|l| l.sync.p50 as f64 / 1e6),
        row("S, p99", "ms", &|l| l.sync.p99 as f64 / 1e6),
        row("M, copy and CRC-32C of 256 KiB", "MB/s", &|l| l.copy / mb),
        row("R, from the page cache", "MB/s", &|l| l.cached / mb),
        row("R, behind the page cache", "MB/s", &|l| l.cold / mb),
    ]
}

/// Returns the whole answer as text.
pub fn text(answer: &JournalAnswer) -> String {
    let table = |header: &[&str], rows: Vec<Vec<String>>| {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header(header);
        table.add_rows(rows);
        table.to_string()
    };
    let store = |(name, store): (&str, &crate::rig::journal::store::Store)| {
        let rows = store.rows().into_iter().map(|(key, value)| format!("  {key}: {value}\n"));
        format!("{name}\n{}", rows.collect::<String>())
    };
    let stores: String = ["drive", "memory"].into_iter().zip(&answer.stores).map(store).collect();
    let limits = limits(answer).into_iter().map(Vec::from).collect();
    let rows = answer.rows.iter().map(|row| cells(answer, row).to_vec()).collect();
    let skipped: String = answer.skipped.iter().map(|what| format!("SKIPPED {what}\n")).collect();
    let failed: String = answer.failed.iter().map(|what| format!("FAILED {what}\n")).collect();
    format!(
        "{stores}{}\n{}\n{skipped}{failed}",
        table(&["limit", "median", "over the laps"], limits),
        table(&HEADER, rows)
    )
}
