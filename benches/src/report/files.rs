//! Answers as JSON files.

use crate::rig::plan::Answer;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

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

/// Questions in the order in which a report shows them. An unknown question comes last.
const ORDER: [&str; 7] = ["latency", "throughput", "fanout", "oversubscribed", "churn", "bridge", "soak"];

/// The name of the answer about the journal, which has rows and no rounds.
pub const JOURNAL: &str = "journal.json";

/// The `.json` files of a directory, or one file.
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

/// The answer about the journal in a directory, if it is there.
///
/// # Errors
/// When the file holds no such answer.
#[cfg(feature = "journal")]
pub fn load_journal(dir: &Path) -> Result<Option<crate::questions::journal::answer::JournalAnswer>> {
    let file = dir.join(JOURNAL);
    if file.exists() { read(&file).map(Some) } else { Ok(None) }
}

/// Whether a directory has no answer but that about the journal.
///
/// # Errors
/// When the directory cannot be read.
#[cfg(feature = "journal")]
pub fn has_no_other(dir: &Path) -> Result<bool> {
    Ok(paths(dir)?.is_empty())
}

/// The answers in the `.json` files of a directory, or in one file, with the names of their files. The answer about the journal is none
/// of them.
///
/// # Errors
/// When a file holds no answer, or there is no file.
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
