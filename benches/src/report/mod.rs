//! Writes answers as JSON files. From a directory of such files, makes tables, a page, and files for other tools.
//!
//! | file | what |
//! |---|---|
//! | [`files`] | JSON files, and the part of an answer that they contain |
//! | [`provenance`] | the day, the rounds and the machine of an answer |
//! | [`contests`] | each figure beside the figure of the best other transport, and the verdict |
//! | [`conclusion`] | all verdicts in one paragraph and one picture |
//! | [`text`] | RESULTS.md |
//! | `journal` | JOURNAL.md |
//! | [`page`] | report.html: one page without other files |
//! | [`plots`], [`palette`], [`svg`] | which charts, in which colours, and how they are drawn |
//! | [`logs`] | `.hgrm` and `.hlog`, made before the answer itself is written |
//! | [`compare`] | the changes from one set of answers to another |

pub mod compare;
pub mod conclusion;
pub mod contests;
pub mod files;
#[cfg(feature = "journal")]
pub mod journal;
pub mod logs;
pub mod page;
pub mod palette;
pub mod plots;
pub mod provenance;
pub mod svg;
pub mod text;

use anyhow::{Context, Result};
use std::path::Path;

/// Reads the answers in `dir`, and writes `RESULTS.md` and `report.html` there. If one answer is about the journal, also writes
/// `JOURNAL.md`. Returns the names of the written files.
///
/// # Errors
/// When there are no answers, or a file cannot be read or written.
pub fn write(dir: &Path) -> Result<Vec<String>> {
    let mut written = Vec::new();
    let mut put = |name: &str, text: String| -> Result<()> {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        written.push(path.display().to_string());
        Ok(())
    };
    #[cfg(feature = "journal")]
    if let Some(answer) = files::load_journal(dir)? {
        put("JOURNAL.md", journal::results(&answer))?;
        if files::has_no_other(dir)? {
            return Ok(written);
        }
    }
    let answers = files::load(dir)?;
    put("RESULTS.md", text::results(&answers))?;
    put("report.html", page::page(&answers))?;
    Ok(written)
}
