//! JOURNAL.md: the requirements for a channel's journal, the results, and the limits of the machine. The limits were measured in the same
//! laps as the results.

use super::provenance::day;
use super::text::table;
use crate::questions::journal::answer::{JournalAnswer, Verdict};
use crate::questions::journal::sheet::{HEADER, cells, limits};
use std::fmt::Write;

/// A short description of the measurement. METHOD.md has the whole description.
const HOW: &str = "Publisher, recorder and readers are processes of their own. Each lap measures the limits first, by bare calls on \
the same file system, and then plays each row once; figures are medians over the laps, and a figure is judged by the limits of \
its own lap. Every journal is checked byte for byte after its round, and a loss that is not named ends the run. `!` marks a figure \
from a machine that was not quiet.";

/// Returns the contents of JOURNAL.md.
pub fn results(answer: &JournalAnswer) -> String {
    let count = |verdict| answer.rows.iter().filter(|row| row.verdict() == verdict).count();
    let (passed, short) = (count(Verdict::Passes), count(Verdict::FellShort));
    let mut out = format!(
        "# The journal\n\n{}. Laps: {}. {passed} figures reach what they must, {short} fall short. `shmcast-bench report` made this file.\n\n{HOW}\n",
        day(answer.asked_at),
        answer.limits.len(),
    );
    if answer.quick {
        out += "\nThis was asked with --quick, which checks delivery only: its figures mean nothing.\n";
    }
    out += "\n## Limits\n\n";
    let plain = |cells: Vec<String>| (cells, false);
    let rows = limits(answer).into_iter().map(|row| plain(row.into()));
    out += &table(&["limit", "median", "over the laps"], rows);
    out += "\n## Rows\n\n";
    let rows = answer.rows.iter().map(|row| {
        let is_short = !answer.quick && row.verdict() == Verdict::FellShort;
        (cells(answer, row).to_vec(), is_short)
    });
    out += &table(&HEADER, rows);
    for what in &answer.skipped {
        let _ = writeln!(out, "\nSKIPPED {what}");
    }
    for what in &answer.failed {
        let _ = writeln!(out, "\nFAILED {what}");
    }
    out += "\n## Store and machine\n\n";
    let stores = ["drive", "memory"].into_iter().zip(&answer.stores);
    let stores = stores.flat_map(|(name, store)| {
        store.rows().into_iter().map(move |(key, value)| plain(vec![format!("{name}: {key}"), value]))
    });
    let machine = answer.machine.rows().into_iter().map(|(key, value)| plain(vec![key.to_owned(), value]));
    out + &table(&["what", "value"], stores.chain(machine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::questions::journal::answer::{Lap, Sense};
    use crate::rig::probe::Quiet;

    #[test]
    fn a_row_that_fell_short_is_told_and_bold() {
        let mut answer = JournalAnswer::begin(false);
        let lap = |value| Lap { value, bound: 25.0, limit: "M 200".into(), quiet: Quiet::default() };
        answer.add(4, "32 B into memory", (">= 25", "M msg/s"), Sense::AtLeast, lap(10.0));
        answer.add(6, "durable", (">= 5", "M msg/s"), Sense::AtLeast, lap(26.0));
        answer.skipped.push("row 8: no root".into());
        let text = results(&answer);
        assert!(text.contains("1 figures reach what they must, 1 fall short"), "{text}");
        assert!(text.contains("| **4** | **32 B into memory** |"), "{text}");
        assert!(text.contains("SKIPPED row 8: no root"), "{text}");
    }
}
