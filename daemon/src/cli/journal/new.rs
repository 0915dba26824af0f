//! A journal that a verb writes. The directory gets its final name when the journal is complete.

use super::span::Lacking;
use super::{above, check_above, not_written};
use crate::cli::code_if;
use crate::cli::figures::{grouped, size};
use crate::cli::say::{note, print_json};
use crate::cli::stop::Stop;
use crate::cli::units::parse_size;
use anyhow::{Context, Result, bail};
use serde_json::json;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(super) struct New {
    /// Directory of the new journal, which must not be there
    out: PathBuf,
    /// Size at which a file is sealed and the next one begun: 1MiB to 64GiB
    #[arg(long, default_value = "1GiB", value_parser = parse_size)]
    pub(super) file: u64,
    /// Print the sums as JSON
    #[arg(long)]
    json: bool,
}

/// The sums of a journal that was written.
#[derive(Debug, Default)]
pub(super) struct Sums {
    pub(super) first: u64,
    pub(super) next: u64,
    pub(super) messages: u64,
    pub(super) lacking: Lacking,
    pub(super) too_old: u64,
    /// Whether files that cannot be read might have messages that are missing.
    pub(super) lacks_files: bool,
    pub(super) bytes: u64,
}

impl New {
    /// Lets `copy` write a journal into a temporary directory. Then gives the directory its final name, and prints a summary.
    pub(super) fn write(&self, copy: impl FnOnce(&Path) -> Result<Sums>) -> Result<ExitCode> {
        if !((1 << 20)..=shmcast::journal::format::MAX_FILE).contains(&self.file) {
            bail!("--file {}: give 1MiB to 64GiB", self.file);
        }
        let out = self.out.display();
        if self.out.symlink_metadata().is_ok() {
            bail!("{out} is there already: remove it, or give another directory");
        }
        check_above(&self.out)?;
        let parent = above(&self.out);
        // If the directory is dropped before it gets its name, it is removed.
        let unfinished = tempfile::Builder::new().prefix(".shmcast-cut-").tempdir_in(parent);
        let unfinished = unfinished.with_context(|| format!("make a directory in {}", parent.display()))?;
        let sums = copy(unfinished.path())?;
        File::open(unfinished.path())
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("sync {out}"))?;
        std::fs::rename(unfinished.path(), &self.out).with_context(|| format!("name {out}"))?;
        let _ = unfinished.keep();
        File::open(parent)
            .and_then(|dir| dir.sync_all())
            .with_context(|| format!("sync {}", parent.display()))?;
        self.say(&sums)
    }

    fn say(&self, sums: &Sums) -> Result<ExitCode> {
        let Lacking { missing, skipped } = sums.lacking;
        if self.json {
            print_json(&json!({
                "directory": self.out, "first_sequence": sums.first, "next_sequence": sums.next,
                "messages": sums.messages, "missing": missing, "skipped": skipped, "too_old": sums.too_old,
                "bytes": sums.bytes,
            }))?;
        } else {
            let (messages, bytes) = (grouped(sums.messages), size(sums.bytes));
            let missing = match missing {
                0 => String::new(),
                missing => format!("; {} are missing, and named", grouped(missing)),
            };
            let skipped = sums.lacking.say_skipped();
            let (out, first, last) = (self.out.display(), sums.first, sums.next - 1);
            note!("{out}: {messages} messages in {bytes}, sequences {first} to {last}{missing}{skipped}");
        }
        Ok(code_if(sums.lacking.is_any() || sums.too_old > 0 || sums.lacks_files))
    }

    /// The error of a verb that a signal stopped before the journal was complete.
    pub(super) fn not_written(&self, stop: &Stop) -> anyhow::Error {
        not_written(stop, &self.out)
    }
}
