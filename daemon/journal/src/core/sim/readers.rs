//! Copies the simulated files into a directory. A reader and `verify` then read the directory.

use super::disk::Disk;
use super::oracle::Item;
use shmcast::journal::{Cause, Entry, Journal, JournalError, Loss, Verified, Verify};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Each sequence with its payload, or the cause for which it is missing.
pub(super) type Stream = BTreeMap<u64, Result<Vec<u8>, Cause>>;

/// The findings of the reader and of `verify`.
pub(super) struct Read {
    pub(super) stream: Stream,
    pub(super) verified: Verified,
}

/// Reads the journal. Returns `None` if there is no journal.
pub(super) fn read(disk: &Disk) -> Result<Option<Read>, String> {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    for (name, bytes) in disk.files() {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let journal = match Journal::open(dir.path()) {
        Err(JournalError::Empty { .. }) => return Ok(None),
        journal => journal.map_err(|error| error.to_string())?,
    };
    let verified = Verify::new(&journal).run(|_| ()).map_err(|error| error.to_string())?;
    let Some(first) = journal.first_sequence() else { return Ok(None) };
    let mut reader = journal.read_from(first).map_err(|error| error.to_string())?;
    let mut stream = Stream::new();
    let mut due = first;
    while let Some(entry) = reader.next().map_err(|error| error.to_string())? {
        match entry {
            Entry::Message(m) if m.sequence == due => {
                stream.insert(due, Ok(m.payload.to_vec()));
                due += 1;
            }
            Entry::Lost(loss) if loss.from == due => {
                stream.extend(lost(&loss));
                due = loss.to + 1;
            }
            Entry::Control { .. } => {}
            other => return Err(format!("{due} is due, a reader gives {other:?}")),
        }
    }
    Ok(Some(Read { stream, verified }))
}

fn lost(&Loss { from, to, cause }: &Loss) -> impl Iterator<Item = (u64, Result<Vec<u8>, Cause>)> + use<> {
    (from..=to).map(move |sequence| (sequence, Err(cause)))
}

impl Read {
    /// Returns the damage that `verify` reports; `None` if it reports none. An unusable file that was never synced does not count as
    /// damage.
    pub(super) fn damage(&self) -> Option<String> {
        let Verified { damages, damages_not_listed, .. } = &self.verified;
        (!damages.is_empty() || *damages_not_listed > 0).then(|| format!("{damages:?}"))
    }

    /// Returns the missing sequences that `verify` lists.
    pub(super) fn losses(&self) -> Stream {
        self.verified.losses.iter().flat_map(lost).collect()
    }
}

/// Converts the oracle's items to a stream.
pub(super) fn stream(items: &[Item]) -> Stream {
    let mut stream = Stream::new();
    for item in items {
        match item {
            Item::Message(sequence, payload) => {
                stream.insert(*sequence, Ok(payload.clone()));
            }
            Item::Lost(loss) => stream.extend(lost(loss)),
        }
    }
    stream
}
