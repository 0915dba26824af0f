//! RESULTS.md: the machine, where shmcast is ahead or behind, and every table.

use super::contests::{HEADER, Standing, rows};
use super::provenance;
use crate::questions::sheet;
use crate::rig::plan::Answer;
use crate::transport::SHMCAST;
use std::fmt::Write;

/// How the figures came about, in short; the whole is in METHOD.md.
pub const HOW: &str = "Each receiver is a process; every payload is checked; rounds of all contestants interleave, and a \
round counts only if probes before and after it found the same quiet machine. Figures are medians over the rounds that \
count, ratios medians over laps; `!` marks figures from a machine that never was quiet. `ideal` is a bound, not a product.";

/// The whole file.
pub fn results(answers: &[(String, Answer)]) -> String {
    let mut out = String::from(
        "# Results\n\nMade by `shmcast-bench report`; plots are in report.html beside this file.\n\n",
    );
    let _ = writeln!(out, "{HOW}\n\n## Machine\n");
    let machines = machines(answers);
    for (questions, rows) in &machines {
        if machines.len() > 1 {
            let _ = writeln!(out, "For {questions}:\n");
        }
        out += &table(
            &["what", "is"],
            rows.iter().map(|(name, value)| (vec![(*name).to_owned(), value.clone()], false)),
        );
    }
    out += "\n## Ahead and behind\n\nshmcast is `ahead` or `behind` where it is so in every lap, else `level`.\n\n";
    let contests = answers.iter().flat_map(|(_, answer)| rows(answer));
    out += &table(&HEADER, contests.map(|(cells, standing)| (cells.into(), standing == Standing::Behind)));
    for (name, answer) in answers {
        let Some(sheet) = sheet(answer) else { continue };
        let _ = writeln!(out, "\n## {name}\n\n{}.\n\n{}\n", sheet.title, provenance(answer));
        let header: Vec<&str> = sheet.header.iter().map(String::as_str).collect();
        out += &table(&header, sheet.rows.into_iter().map(|row| (row.cells, row.transport == SHMCAST)));
    }
    out
}

/// Machine sheets that differ, with the questions that were asked there.
pub fn machines(answers: &[(String, Answer)]) -> Vec<(String, Vec<(&'static str, String)>)> {
    let mut found: Vec<(String, Vec<_>)> = Vec::new();
    for (name, answer) in answers {
        let rows = answer.machine.rows();
        match found.iter_mut().find(|(_, known)| *known == rows) {
            Some((names, _)) => *names += &format!(", {name}"),
            None => found.push((name.clone(), rows)),
        }
    }
    found
}

/// A table in Markdown; rows with a `true` are bold.
fn table(header: &[&str], rows: impl Iterator<Item = (Vec<String>, bool)>) -> String {
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
