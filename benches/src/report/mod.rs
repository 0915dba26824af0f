//! What is made of answers: JSON files, and from a directory of those the tables, the page, and the files that other
//! tools read.
//!
//! | file | what |
//! |---|---|
//! | [`contests`] | where shmcast is ahead, and where it is not |
//! | [`text`] | RESULTS.md |
//! | [`page`] | report.html: one file that needs no other |
//! | [`plots`], [`svg`] | which charts, and how they are drawn |
//! | [`logs`] | `.hgrm` and `.hlog` |
//! | [`compare`] | two sets of answers against each other |

pub mod compare;
pub mod contests;
pub mod logs;
pub mod page;
pub mod plots;
pub mod svg;
pub mod text;

use crate::rig::plan::Answer;
use anyhow::{Context, Result, ensure};
use std::path::{Path, PathBuf};

/// Writes an answer as JSON.
///
/// # Errors
/// What the file system says.
pub fn write_json(answer: &Answer, path: &Path) -> Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let text = serde_json::to_string(answer)?;
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Questions in the order in which a report shows them; those it does not know come last.
const ORDER: [&str; 7] = ["fanout", "latency", "throughput", "oversubscribed", "churn", "bridge", "soak"];

/// The answers in the `.json` files of a directory, or in one file, with the names of their files.
///
/// # Errors
/// When a file is no answer, or there is none.
pub fn load(path: &Path) -> Result<Vec<(String, Answer)>> {
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "json")).collect()
    } else {
        vec![path.to_owned()]
    };
    files.sort();
    let read = |file: PathBuf| -> Result<(String, Answer)> {
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let answer = serde_json::from_str(&text).with_context(|| {
            format!("{} is no answer: `shmcast-bench QUESTION --json FILE` writes them", file.display())
        })?;
        Ok((file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), answer))
    };
    let mut answers = files.into_iter().map(read).collect::<Result<Vec<_>>>()?;
    ensure!(
        !answers.is_empty(),
        "{} has no answers: run `shmcast-bench all {0}` first, or a question with --json {0}/FILE.json",
        path.display()
    );
    let place = |answer: &Answer| ORDER.iter().position(|q| *q == answer.question).unwrap_or(ORDER.len());
    answers.sort_by_key(|(_, answer)| (place(answer), answer.asked_at));
    Ok(answers)
}

/// Reads the answers in `dir` and writes `RESULTS.md`, `report.html` and `histograms/` there. Returns what was written.
///
/// # Errors
/// When there are no answers, or a file cannot be read or written.
pub fn write(dir: &Path) -> Result<Vec<String>> {
    let answers = load(dir)?;
    let mut written = Vec::new();
    let mut put = |name: &str, text: String| -> Result<()> {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        written.push(path.display().to_string());
        Ok(())
    };
    put("RESULTS.md", text::results(&answers))?;
    put("report.html", page::page(&answers)?)?;
    let histograms = dir.join("histograms");
    let mut files = 0;
    for (stem, answer) in &answers {
        files += logs::write(answer, stem, &histograms)?;
    }
    written.push(format!("{} ({files} files)", histograms.display()));
    Ok(written)
}

/// A day as people write it, in UTC, from seconds since 1970.
fn day(seconds: u64) -> String {
    // Howard Hinnant's `civil_from_days`: days since 1 March of year 0, in eras of 400 years.
    let days = seconds / 86_400 + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02}")
}

/// What the reader must know of how an answer came about: rounds played, counted, and how quiet it was.
fn provenance(answer: &Answer) -> String {
    let played = answer.rounds.len();
    let counted = answer.rounds.iter().filter(|round| round.counts).count();
    let failed = answer.rounds.iter().filter(|round| round.outcome.is_err()).count();
    let complete = answer.passed_and_failed().0;
    let outcomes = || answer.rounds.iter().filter_map(|round| round.outcome.as_ref().ok());
    let most = |share: fn(&crate::rig::probe::Quiet) -> f64| {
        outcomes().map(|o| share(&o.quiet)).fold(0.0f64, f64::max) * 100.0
    };
    let mut text = format!(
        "{}: {played} rounds played, {counted} count, {complete} delivered everything to everybody, {failed} failed. \
         At worst others used {:.1} % of the CPUs and the host took {:.1} %.",
        day(answer.asked_at),
        most(|q| q.others),
        most(|q| q.steal),
    );
    if answer.quick {
        text += " Asked with --quick, which checks delivery: no time or rate here means anything.";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_around_leaps() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(day(951_782_400), "2000-02-29");
        assert_eq!(day(4_107_542_400), "2100-03-01");
        assert_eq!(day(1_795_262_400), "2026-11-21");
    }

    #[test]
    fn a_directory_without_answers_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let e = load(dir.path()).unwrap_err().to_string();
        assert!(e.contains("shmcast-bench all"), "{e}");
        std::fs::write(dir.path().join("x.json"), "{}").unwrap();
        let e = format!("{:#}", load(dir.path()).unwrap_err());
        assert!(e.contains("x.json is no answer"), "{e}");
    }
}
