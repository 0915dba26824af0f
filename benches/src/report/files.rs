//! Answers as JSON files.

use super::logs;
use super::plots::shown_in_time;
use crate::rig::plan::Answer;
use crate::rig::round::Outcome;
use crate::rig::stats::Distribution;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::ptr;

/// Writes an answer as JSON.
///
/// # Errors
/// The file system's error.
pub fn write_json(answer: &impl Serialize, path: &Path) -> Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
    }
    let text = serde_json::to_string(answer)?;
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Writes an answer with rounds. The JSON file contains percentiles. Beside this file, the folder `histograms` gets the whole histograms.
///
/// # Errors
/// The file system's error.
pub fn write_answer(answer: &Answer, path: &Path) -> Result<()> {
    write_json(&kept(answer.clone()), path)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    logs::write(answer, &stem, &path.with_file_name("histograms")).map(drop)
}

/// The number of hiccups that are kept in a round for a chart: the longest hiccups of the sender, and as many of the receiver.
const HICCUPS: usize = 100;

/// Returns only the part of an answer that tables, pages and comparisons need:
///
/// - Comparable rounds have percentiles in place of histograms. Other rounds have neither.
/// - Of the distributions `one_way` and `last`, the question about bridges keeps only `one_way`. Other questions keep only `last`.
/// - Values over time are kept only in rounds that are drawn over time.
/// - Directory names of rounds are left out.
fn kept(mut answer: Answer) -> Answer {
    let of_case = |case: &String| -> Vec<*const Outcome> {
        let contestants = answer.contestants(case);
        let rounds = contestants.iter().flat_map(|who| answer.comparable(case, who));
        rounds.map(|(_, outcome)| ptr::from_ref(outcome)).collect()
    };
    let compared: Vec<*const Outcome> = answer.cases().iter().flat_map(of_case).collect();
    let drawn: Vec<*const Outcome> = match answer.question.as_str() {
        "latency" => {
            answer.cases().iter().filter_map(|case| shown_in_time(&answer, case)).map(ptr::from_ref).collect()
        }
        "soak" => compared.clone(),
        _ => Vec::new(),
    };
    let is_between_hosts = answer.question == "bridge";
    let mut noted = Vec::new();
    for outcome in answer.rounds.iter_mut().filter_map(|round| round.outcome.as_mut().ok()) {
        let place = ptr::from_ref(outcome);
        *(if is_between_hosts { &mut outcome.last } else { &mut outcome.one_way }) = Distribution::default();
        shorten(outcome, compared.contains(&place), drawn.contains(&place));
        // The remarks of a transport are kept once for each contestant.
        if noted.contains(&outcome.spec.contestant) {
            outcome.published.notes.clear();
        }
        noted.push(outcome.spec.contestant.clone());
    }
    answer
}

fn shorten(outcome: &mut Outcome, is_compared: bool, is_drawn: bool) {
    let distributions = [&mut outcome.one_way, &mut outcome.response, &mut outcome.last, &mut outcome.cost];
    let windows = outcome.series.iter_mut().flat_map(|moment| [&mut moment.response, &mut moment.cost]);
    for distribution in distributions.into_iter().chain(windows) {
        distribution.histogram.clear();
        if !is_compared {
            *distribution = Distribution::default();
        }
    }
    if !is_drawn {
        outcome.worst.clear();
    }
    for log in [&mut outcome.published.hiccups, &mut outcome.received.hiccups] {
        log.shorten(if is_drawn { HICCUPS } else { 0 });
    }
    outcome.visits.iter_mut().for_each(|visits| visits.received.hiccups.shorten(0));
    (outcome.published.span, outcome.received.span) = Default::default();
    (outcome.spec.dir, outcome.spec.daemon, outcome.spec.wire) = Default::default();
}

/// The order of the questions in a report. Questions that are not in this list come last.
const ORDER: [&str; 7] = ["latency", "throughput", "fanout", "oversubscribed", "churn", "bridge", "soak"];

/// The file name of the answer about the journal. This answer has rows and no rounds.
pub const JOURNAL: &str = "journal.json";

/// Returns the `.json` files of a directory, or the one file at `path`.
fn paths(path: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = if path.is_dir() {
        let entries = std::fs::read_dir(path).with_context(|| format!("read {}", path.display()))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        paths.into_iter().filter(|path| path.extension().is_some_and(|e| e == "json")).collect()
    } else {
        vec![path.to_owned()]
    };
    files.retain(|file| file.file_name().is_none_or(|name| name != JOURNAL));
    files.sort();
    Ok(files)
}

fn read<T: DeserializeOwned>(file: &Path) -> Result<T> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| {
        format!("{} is no answer: `shmcast-bench QUESTION --json FILE` writes them", file.display())
    })
}

/// Reads the answer about the journal in a directory. Returns `None` if the directory has no such answer.
///
/// # Errors
/// When the file contains something else.
#[cfg(feature = "journal")]
pub fn load_journal(dir: &Path) -> Result<Option<crate::questions::journal::answer::JournalAnswer>> {
    let file = dir.join(JOURNAL);
    if file.exists() { read(&file).map(Some) } else { Ok(None) }
}

/// Whether the answer about the journal is the only answer in a directory.
///
/// # Errors
/// When the directory cannot be read.
#[cfg(feature = "journal")]
pub fn has_no_other(dir: &Path) -> Result<bool> {
    Ok(paths(dir)?.is_empty())
}

/// Reads the answers in the `.json` files of a directory, or in one file. Leaves out the answer about the journal. Returns each answer with
/// its file name.
///
/// # Errors
/// When a file contains no answer, or when there is no file.
pub fn load(path: &Path) -> Result<Vec<(String, Answer)>> {
    let named = |file: PathBuf| -> Result<(String, Answer)> {
        Ok((file.file_stem().unwrap_or_default().to_string_lossy().into_owned(), read(&file)?))
    };
    let mut answers = paths(path)?.into_iter().map(named).collect::<Result<Vec<_>>>()?;
    ensure!(
        !answers.is_empty(),
        "{} has no answers: run `shmcast-bench all {0}` first, or a question with --json {0}/FILE.json",
        path.display()
    );
    let place = |answer: &Answer| ORDER.iter().position(|q| *q == answer.question).unwrap_or(ORDER.len());
    answers.sort_by_key(|(_, answer)| (place(answer), answer.asked_at));
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the directory of the published answers.
    fn published() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("results/2026-11-22")
    }

    #[test]
    fn published_tables_are_made_of_the_answers_beside_them() {
        let answers = load(&published()).unwrap();
        let tables = std::fs::read_to_string(published().join("RESULTS.md")).unwrap();
        assert_eq!(crate::report::text::results(&answers), tables);
    }

    #[test]
    fn an_answer_that_was_written_is_written_the_same_again() {
        for (name, answer) in load(&published()).unwrap() {
            let text = std::fs::read_to_string(published().join(format!("{name}.json"))).unwrap();
            assert!(serde_json::to_string(&kept(answer)).unwrap() == text, "{name}");
        }
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
