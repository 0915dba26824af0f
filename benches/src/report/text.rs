//! RESULTS.md: the conclusion, the verdicts, every table, and the machine.

use super::conclusion;
use super::contests::{HEADER, Standing, contests};
use super::provenance::{machine, provenance};
use crate::questions::sheet;
use crate::rig::names::SHMCAST;
use crate::rig::plan::Answer;
use std::fmt::Write;

/// A short description of the measurement. METHOD.md has the whole description.
pub const HOW: &str = "Each receiver is a process, and every byte of every payload is checked. Each lap plays every contestant \
once, and a round counts only if probes before and after it found the same quiet machine. Figures are medians over the rounds \
that count; ratios are taken within a lap, and the median over the laps is shown. `!` marks a figure from a machine that never \
was quiet. `ideal` is a bound and no product.";

/// A text that explains the verdicts.
pub const VERDICTS: &str = "`times better` compares shmcast with the best other transport in the same lap: 2.00 is twice as \
good, 0.50 half as good. The verdict is `ahead` or `behind` if that is so in every lap, `level` if the two are at most 5 % apart \
in every lap, and `open` if the laps disagree; `over the laps` shows the smallest and the largest. `too few laps` stands where \
fewer than two laps were undisturbed for both.";

/// Returns the contents of RESULTS.md.
pub fn results(answers: &[(String, Answer)]) -> String {
    let mut out = format!(
        "# Results\n\n{}\n\n`shmcast-bench report` made this file of the answers beside it, and draws them into report.html.\n\n\
         ## Verdicts\n\n{VERDICTS}\n",
        conclusion::paragraph(answers)
    );
    for (name, answer) in answers {
        let contests = contests(answer);
        let Some(first) = contests.first() else { continue };
        let _ = writeln!(out, "\n### {name}, figures in {}\n", first.figure.measure.unit());
        let rows =
            contests.iter().map(|contest| (contest.cells().into(), contest.standing == Standing::Behind));
        out += &table(&HEADER, rows);
    }
    for (name, answer) in answers {
        let Some(sheet) = sheet(answer) else { continue };
        let _ = writeln!(out, "\n## {name}\n\n{}.\n\n{}\n", sheet.title, provenance(answer));
        let header: Vec<&str> = sheet.header.iter().map(String::as_str).collect();
        out += &table(&header, sheet.rows.into_iter().map(|row| (row.cells, row.transport == SHMCAST)));
    }
    let _ = writeln!(out, "\n## Machine and method\n\n{HOW}\n");
    let rows = machine(answers).into_iter().map(|(name, value)| (vec![name.to_owned(), value], false));
    out + &table(&["what", "value"], rows)
}

/// Makes a table in Markdown. A row with `true` is bold.
pub(super) fn table(header: &[&str], rows: impl Iterator<Item = (Vec<String>, bool)>) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let clean = |cell: &str| cell.replace('|', "\\|");
    let mut out = line(header.iter().map(|cell| clean(cell)).collect());
    out += &line(
        header.iter().enumerate().map(|(i, _)| if i < 2 { "---".into() } else { "---:".into() }).collect(),
    );
    for (cells, bold) in rows {
        out +=
            &line(cells.iter().map(|c| if bold { format!("**{}**", clean(c)) } else { clean(c) }).collect());
    }
    out
}
