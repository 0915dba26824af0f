//! The values of the settings before the first change, in a file from which `undo` restores them.
//!
//! A user who could write to this file would decide what root writes to the kernel's settings. So the file is in a directory to which only
//! root can write. The file is always replaced as a whole.

use super::files::{self, TuneError};
use crate::doctor::Root;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// The path of the file on the host that is tuned.
pub const STATE: &str = "/var/lib/shmcast-tune/before.json";

/// One value that was changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) check: String,
    pub(super) file: String,
    pub(super) before: String,
    pub(super) after: String,
}

/// The locked list of changed values. No other process can change it at the same time.
#[derive(Debug)]
pub(super) struct State {
    root: Root,
    entries: Vec<Entry>,
    /// The locked directory.
    _lock: File,
}

impl State {
    /// Reads and locks the list. Without a file, the list is empty.
    ///
    /// # Errors
    /// [`TuneError`], also for a list that another user could have written.
    pub(super) fn open(root: &Root) -> Result<Self, TuneError> {
        let path = root.below(STATE);
        let dir = path.parent().expect("the file is in a directory");
        let fail = |what| TuneError::os(what, dir);
        files::make_private_dir(dir).map_err(fail("make"))?;
        let lock = File::open(dir).map_err(fail("open"))?;
        let owner = lock.metadata().map_err(fail("look at"))?;
        if owner.uid() != nix::unistd::geteuid().as_raw() || owner.mode() & 0o022 != 0 {
            return Err(TuneError::NotOurs { path: dir.to_owned() });
        }
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| TuneError::Busy { path: dir.to_owned() })?;
        let entries = match root.text(STATE) {
            Ok(text) => Self::parse(&text)
                .ok_or_else(|| TuneError::Damaged { path: path.clone(), dir: dir.to_owned() })?,
            Err(crate::doctor::Unread::Missing { .. }) => Vec::new(),
            Err(unread) => return Err(TuneError::Unread(unread)),
        };
        Ok(Self { root: root.clone(), entries, _lock: lock })
    }

    /// Parses the list. Returns `None` if it names a file that is not one of the kernel's settings.
    fn parse(text: &str) -> Option<Vec<Entry>> {
        let entries: Vec<Entry> = serde_json::from_str(text).ok()?;
        entries.iter().all(|entry| files::is_setting(&entry.file)).then_some(entries)
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Adds an entry, which replaces an earlier entry for the same file.
    pub(super) fn note(&mut self, entry: Entry) {
        self.forget(&entry.file);
        self.entries.push(entry);
    }

    pub(super) fn forget(&mut self, file: &str) {
        self.entries.retain(|entry| entry.file != file);
    }

    /// Writes the list to the disk. If the list is empty, removes the file instead.
    pub(super) fn save(&self) -> Result<(), TuneError> {
        let path = self.root.below(STATE);
        if self.entries.is_empty() {
            return files::remove(&path).map(drop);
        }
        let text = serde_json::to_string_pretty(&self.entries).expect("strings can be written");
        files::replace(&path, &format!("{text}\n"), 0o600)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_leads_out_of_the_settings() {
        let list =
            |file: &str| format!(r#"[{{"check": "x", "file": "{file}", "before": "1", "after": "2"}}]"#);
        assert!(State::parse(&list("/proc/sys/net/core/rmem_max")).is_some());
        for file in ["/etc/shadow", "/proc/sys/../../etc/shadow", "/proc/sysrq-trigger", "proc/sys/x", ""] {
            assert!(State::parse(&list(file)).is_none(), "{file}");
        }
        assert!(State::parse("").is_none() && State::parse("{}").is_none());
    }
}
