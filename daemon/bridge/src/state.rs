//! The state file of an egress. The file has the session of the ring, and the sequence up to which the ring was sent. From the file, a
//! restarted egress learns where to continue, and which session names are used already. If somebody removes or moves the file while the
//! egress runs, the egress creates the file again.
//!
//! The file has three slots of 64 bytes. The egress writes the first two slots alternately, and the complete slot with the higher number is
//! valid. The third slot has the sequence with which the session began. Numbers are little-endian:
//!
//! | at | size | field |
//! |---|---|---|
//! | 0 | 8 | `"SHMCBST1"` |
//! | 8 | 8 | number of this record, from 1 |
//! | 16 | 16 | identity of the stream that was sent: the time at which its sequences began, and the channel |
//! | 32 | 10 + 6 | session; zeros |
//! | 48 | 8 | the sequence after the last sent message; in the third slot the sequence of the session's first message |
//! | 56 | 4 + 4 | zeros; CRC-32C of all bytes before it |

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files;
use crate::proto::session::Session;

const SLOT_BYTES: usize = 64;
/// The number of the slot that has the session's beginning.
const BEGIN: u64 = 2;
const MAGIC: &[u8; 8] = b"SHMCBST1";

/// The progress of an egress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Progress {
    /// The identity of the ring's run.
    pub(super) ring: [u64; 2],
    pub(super) session: Session,
    /// The sequence after the last sent message.
    pub(super) next: u64,
}

/// An open state file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    file: File,
    number: u64,
    /// The content of the third slot: the session, and the sequence of its first message.
    begun: Option<Progress>,
    /// The number of times that the file was created again.
    renewed: u64,
    /// Whether the last write failed, for example because the disk was full.
    is_behind: bool,
}

impl StateFile {
    /// Opens the file, or creates it. If there is a complete record in the file, returns the newest one. Refuses a file that is no state
    /// file, or that another bridge has open.
    pub(super) fn open(path: &Path) -> io::Result<(StateFile, Option<Progress>)> {
        let file = open(path)?;
        let newest = newest(&file);
        let number = newest.map_or(0, |(number, _)| number);
        let begun = read_slot(&file, BEGIN).map(|(_, begun)| begun);
        let state = StateFile { path: path.to_owned(), file, number, begun, renewed: 0, is_behind: false };
        Ok((state, newest.map(|(_, progress)| progress)))
    }

    /// Whether the file has the slots of a state file, but no complete record.
    pub(super) fn is_damaged(&self) -> bool {
        self.number == 0 && self.file.metadata().is_ok_and(|file| file.len() > 0)
    }

    /// Returns how often the file was created again because it had been removed or moved.
    pub(super) fn renewed(&self) -> u64 {
        self.renewed
    }

    /// Creates the file again if its name is gone or belongs to another file. Writes the file again if the last write failed. Does not
    /// return before `progress` is safe on the disk.
    pub(super) fn keep(&mut self, progress: &Progress) -> io::Result<()> {
        let is_lost = !self.has_name()?;
        if !is_lost && !self.is_behind {
            return Ok(());
        }
        if is_lost {
            self.file = open(&self.path)?;
            self.renewed += 1;
        }
        self.is_behind = true;
        if let Some(begun) = self.begun {
            self.write_slot(BEGIN, &begun)?;
        }
        self.number += 1;
        self.write_slot(self.number % 2, progress)?;
        if is_lost {
            // Somebody might have put another state file at this path, so both slots are replaced.
            self.write_slot((self.number + 1) % 2, progress)?;
        }
        self.file.sync_all()?;
        self.is_behind = false;
        Ok(())
    }

    fn has_name(&self) -> io::Result<bool> {
        let id = |found: &Metadata| (found.dev(), found.ino());
        match self.path.metadata() {
            Ok(named) => Ok(id(&named) == id(&self.file.metadata()?)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Returns the sequence of the first message of `session`, if the file has this session.
    pub(super) fn begin(&self, session: Session) -> Option<u64> {
        self.begun.filter(|begun| begun.session == session).map(|begun| begun.next)
    }

    /// Writes a session, whose first message is `begin`. Call this before the session's first packet. Does not return before the record is
    /// safe on the disk.
    pub(super) fn write_begin(&mut self, progress: &Progress, begin: u64) -> io::Result<()> {
        (self.begun, self.is_behind) = (Some(Progress { next: begin, ..*progress }), true);
        self.keep(progress)
    }

    /// Overwrites the older slot. With `sync`, does not return before the record is safe on the disk.
    pub(super) fn write(&mut self, progress: &Progress, sync: bool) -> io::Result<()> {
        if let Err(e) = self.keep(progress) {
            self.is_behind = true;
            return Err(e);
        }
        self.is_behind = true;
        self.number += 1;
        self.write_slot(self.number % 2, progress)?;
        if sync {
            self.file.sync_data()?;
        }
        self.is_behind = false;
        Ok(())
    }

    fn write_slot(&self, at: u64, progress: &Progress) -> io::Result<()> {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(MAGIC);
        slot[8..16].copy_from_slice(&self.number.to_le_bytes());
        slot[16..24].copy_from_slice(&progress.ring[0].to_le_bytes());
        slot[24..32].copy_from_slice(&progress.ring[1].to_le_bytes());
        slot[32..42].copy_from_slice(progress.session.as_bytes());
        slot[48..56].copy_from_slice(&progress.next.to_le_bytes());
        let sum = crc32c::crc32c(&slot[..60]);
        slot[60..].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&slot, at * SLOT_BYTES as u64)
    }
}

/// The longest wait for the lock of a state file.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
/// The pause between two attempts to lock a state file.
const LOCK_PAUSE: Duration = Duration::from_millis(10);

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = files::open(path, options.read(true).write(true).create(true).truncate(false).mode(0o600))?;
    if file.metadata()?.len() > 0 && !(0..=BEGIN).any(|slot| has_magic(&file, slot)) {
        return Err(io::Error::other("it is no state file"));
    }
    // An earlier bridge can hold the lock for a moment longer. So can a child that this process has just forked.
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => return Err(io::Error::other("another bridge uses it")),
            Err(e) => return Err(e.into()),
        }
    }
}

fn has_magic(file: &File, slot: u64) -> bool {
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, slot * SLOT_BYTES as u64).is_ok() && magic == *MAGIC
}

/// Returns the progress in a state file that a bridge has open.
#[cfg(test)]
pub(super) fn noted(path: &Path) -> Option<Progress> {
    let file = File::open(path).unwrap();
    newest(&file).map(|(_, progress)| progress)
}

/// The newest whole record, with its number.
fn newest(file: &File) -> Option<(u64, Progress)> {
    [0, 1].into_iter().filter_map(|slot| read_slot(file, slot)).max_by_key(|(number, _)| *number)
}

fn read_slot(file: &File, slot: u64) -> Option<(u64, Progress)> {
    let mut bytes = [0; SLOT_BYTES];
    file.read_exact_at(&mut bytes, slot * SLOT_BYTES as u64).ok()?;
    let word = |at: usize| bytes[at..at + 8].first_chunk().map_or(0, |word| u64::from_le_bytes(*word));
    let sum = u32::from_le_bytes(*bytes[60..].first_chunk()?);
    let is_whole = bytes.starts_with(MAGIC) && sum == crc32c::crc32c(&bytes[..60]);
    let session = Session::from_bytes(*bytes[32..].first_chunk()?);
    let progress = Progress { ring: [word(16), word(24)], session, next: word(48) };
    is_whole.then_some((word(8), progress))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_record_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let session = Session::of_channel("TEST", 9).unwrap();
        let progress = |next| Progress { ring: [3, 4], session, next };
        let (mut state, said) = StateFile::open(&path).unwrap();
        assert_eq!(said, None);
        for next in 1..10 {
            state.write(&progress(next), next == 1).unwrap();
            assert_eq!(noted(&path), Some(progress(next)));
        }
        assert_eq!(state.begin(session), None);
        let shared = StateFile::open(&path).unwrap_err();
        assert_eq!(shared.to_string(), "another bridge uses it");
        drop(state);
        // A power failure cuts a write short.
        for byte in 0..SLOT_BYTES {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes[SLOT_BYTES + byte] ^= 1;
            let other = dir.path().join("damaged");
            std::fs::write(&other, bytes).unwrap();
            assert_eq!(StateFile::open(&other).unwrap().1, Some(progress(8)), "byte {byte}");
        }
        let (mut state, _) = StateFile::open(&path).unwrap();
        state.write_begin(&progress(75), 70).unwrap();
        state.write(&progress(77), false).unwrap();
        assert_eq!(state.begin(session), Some(70), "the progress leaves the beginning alone");
        assert_eq!(state.begin(Session::of_channel("TEST", 10).unwrap()), None, "another session");
        assert_eq!(noted(&path), Some(progress(77)), "counting goes on");
    }

    /// An earlier mistake: a bridge wrote into any file that `state` named, for example into its keys file.
    #[test]
    fn a_file_that_is_no_state_file_is_refused_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let keys = "3 000102030405060708090a0b0c0d0e0f\n".repeat(9);
        std::fs::write(&path, &keys).unwrap();
        assert_eq!(StateFile::open(&path).unwrap_err().to_string(), "it is no state file");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), keys);
        std::fs::write(&path, MAGIC).unwrap();
        let (state, said) = StateFile::open(&path).unwrap();
        assert!(said.is_none() && state.is_damaged());
        std::fs::remove_file(&path).unwrap();
        let (mut state, _) = StateFile::open(&path).unwrap();
        assert!(!state.is_damaged(), "a new file");
        // Somebody puts another file in place of the state file while the bridge runs.
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, &keys).unwrap();
        let progress = Progress { ring: [3, 4], session: Session::of_channel("TEST", 9).unwrap(), next: 5 };
        assert_eq!(state.write(&progress, false).unwrap_err().to_string(), "it is no state file");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), keys);
    }
}
