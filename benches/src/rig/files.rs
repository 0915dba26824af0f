//! The files of a round in its directory. A file of times has one 32-bit little-endian word for each message: a time in ns.

use crate::rig::spec::Spec;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Returns the path of the gate's memory.
pub fn gate(spec: &Spec) -> PathBuf {
    spec.dir.join("gate")
}

/// Returns the path of one receiver's latencies.
pub fn one_way(spec: &Spec, receiver: usize) -> PathBuf {
    spec.dir.join(format!("one-way-{receiver}"))
}

/// Returns the path of the delays of sends.
pub fn lateness(spec: &Spec) -> PathBuf {
    spec.dir.join("lateness")
}

/// Returns the path of the durations of sends.
pub fn cost(spec: &Spec) -> PathBuf {
    spec.dir.join("cost")
}

/// Converts a time to a 32-bit number of nanoseconds. Times above 4.29 s become the largest number.
pub(crate) fn saturate(ns: u64) -> u32 {
    ns.try_into().unwrap_or(u32::MAX)
}

/// Writes `words` to a new file at `path`.
///
/// # Errors
/// The file system's error.
pub fn write_words(path: &Path, words: &[u32]) -> Result<()> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(path, bytes).with_context(|| format!("write {}", path.display()))
}

/// Reads the words in the file at `path`.
///
/// # Errors
/// The file system's error.
pub fn read_words(path: &Path) -> Result<Vec<u32>> {
    let bytes = std::fs::read(path).with_context(|| format!("read {}", path.display()))?;
    let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    Ok(bytes.chunks_exact(4).map(word).collect())
}
