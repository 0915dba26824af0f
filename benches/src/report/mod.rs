//! What is made of answers: files.

use crate::rig::plan::Answer;
use anyhow::{Context, Result};
use std::path::Path;

/// Writes an answer as JSON.
///
/// # Errors
/// What the file system says.
pub fn write_json(answer: &Answer, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(answer)?;
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}
