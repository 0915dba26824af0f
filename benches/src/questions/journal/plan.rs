//! The options, the paths and the rounds that all rows share.

use crate::rig::journal::limits::{Effort, Limits};
use crate::rig::journal::role::{Pace, Publish, Read, Record, Sync, Way};
use crate::rig::journal::scene::{Round, Running, Second, round};
use crate::rig::plan::Stage;
use crate::rig::spec::ring_messages;
use anyhow::{Context, Result, ensure};
use shmcast::journal::{Journal, Verdict, Verified, Verify};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The numbers of the rows that are measured.
pub const NUMBERS: [u32; 13] = [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14, 15, 18];

/// Payload sizes of sustained recording, in bytes.
pub const SIZES: [usize; 2] = [256, 1024];

/// The size of a ring, and of a recorder's buffer, in bytes.
pub(super) const RING_BYTES: u64 = 64 << 20;
/// The size in bytes at which the recorder begins a new file. With this size, two to four files of a journal stay when old ones are
/// deleted.
pub(super) const FILE_BYTES: u64 = 512 << 20;

/// The options that the user gave.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The directory on the drive to measure.
    pub dir: PathBuf,
    /// The numbers of the rows.
    pub rows: Vec<u32>,
    /// Payload sizes of sustained recording, in bytes.
    pub sizes: Vec<usize>,
    /// The ways to write to the disk. Rows 3, 5, 6 and 7 are played with each way, and the other rows only with the first way.
    pub ways: Vec<Way>,
    /// The launcher of other projects' recorders, for row 3.
    pub peers: Option<PathBuf>,
    /// The length of sustained recording, in seconds.
    pub seconds: f64,
}

/// The paths and the sizes that the rows need.
pub(super) struct Plan<'a> {
    pub(super) stage: &'a Stage,
    pub(super) ask: &'a Ask,
    /// A directory on the drive.
    pub(super) disk: &'a Path,
    /// The limits of this lap.
    pub(super) limits: Limits,
}

impl<'a> Plan<'a> {
    pub(super) fn new(stage: &'a Stage, ask: &'a Ask, disk: &'a Path) -> Self {
        Self { stage, ask, disk, limits: Limits::default() }
    }

    /// Returns the length of a round. If only delivery is checked, the round is shorter.
    pub(super) fn time(&self, seconds: f64) -> u64 {
        let seconds = if self.stage.quick { seconds.min(0.3) } else { seconds };
        (seconds * 1e9) as u64
    }

    /// Returns the size of a round in bytes. If only delivery is checked, the round is smaller.
    pub(super) fn bytes(&self, bytes: u64) -> u64 {
        if self.stage.quick { bytes / 64 } else { bytes }
    }

    pub(super) fn effort(&self) -> Effort {
        let time = if self.stage.quick { 50 } else { 2_000 };
        Effort { bytes: self.bytes(1 << 30), time: Duration::from_millis(time) }
    }

    /// Returns the role of a publisher that sends messages of `size` bytes for some seconds.
    pub(super) fn publish(&self, size: usize, pace: Pace, seconds: f64) -> Publish {
        // If only delivery is checked, the ring is smaller. A publisher that never waits always needs the whole size, because other
        // programs can take the recorder's CPU for a while.
        let ring_bytes = if pace == Pace::Gated { self.bytes(RING_BYTES) } else { RING_BYTES };
        Publish {
            dir: PathBuf::new(),
            size,
            ring_bytes: self.stage.ring_bytes.unwrap_or(ring_bytes),
            pace,
            messages: u64::MAX,
            time_ns: self.time(seconds),
            keeps_sends: false,
            cpu: None,
        }
    }

    /// Returns the role of a recorder that writes the journal in `to`.
    pub(super) fn record(&self, to: &Path, sync: Sync) -> Record {
        let file_bytes = self.bytes(FILE_BYTES);
        Record {
            dir: PathBuf::new(),
            to: to.to_owned(),
            sync,
            way: self.ask.ways.first().copied().unwrap_or(Way::Direct),
            buffer: RING_BYTES as usize,
            file_bytes,
            keep_bytes: 2 * file_bytes,
            gate_messages: 0,
            keeps_moves: false,
            cpu: None,
        }
    }

    /// Plays a round. Then checks that the journal has no damage and ends with the last message.
    pub(super) fn play(&self, publish: Publish, record: Record) -> Result<Round> {
        self.play_while(publish, record, |_| Ok(()))
    }

    /// Plays a round like [`play`](Self::play), and calls `meanwhile` during the round.
    pub(super) fn play_while(
        &self,
        publish: Publish,
        record: Record,
        meanwhile: impl FnOnce(&mut Running<'_>) -> Result<()>,
    ) -> Result<Round> {
        self.play_beside(publish, record, |_, running| meanwhile(running))
    }

    /// Plays a round like [`play_while`](Self::play_while), with a closure that gets the channel's directory.
    pub(super) fn play_beside(
        &self,
        publish: Publish,
        record: Record,
        meanwhile: impl FnOnce(&Path, &mut Running<'_>) -> Result<()>,
    ) -> Result<Round> {
        let dir = tempfile::tempdir_in(&self.stage.dir).context("make a directory for the round")?;
        let publish = Publish { dir: dir.path().to_owned(), ..publish };
        let gate_messages = match publish.pace {
            Pace::Gated => ring_messages(publish.ring_bytes, publish.size),
            _ => record.gate_messages,
        };
        let record = Record { dir: dir.path().to_owned(), gate_messages, ..record };
        let to = record.to.clone();
        let played = round(&self.stage.program, &publish, &Second::Recorder(record), |running| {
            meanwhile(dir.path(), running)
        })?;
        played.is_exact()?;
        let verified = check(&to)?;
        let due = verified.sequences.map_or(0, |(_, due)| due);
        let sent = played.published.messages;
        ensure!(due == sent + 1, "the journal ends at {due}, and {sent} messages were sent");
        Ok(played)
    }

    /// Plays a round with a reader in place of the recorder. The reader stores nothing.
    pub(super) fn play_reader(&self, publish: Publish, cpu: Option<usize>) -> Result<Round> {
        let dir = tempfile::tempdir_in(&self.stage.dir).context("make a directory for the round")?;
        let publish = Publish { dir: dir.path().to_owned(), ..publish };
        let reader = Second::Reader(Read { dir: dir.path().to_owned(), cpu });
        round(&self.stage.program, &publish, &reader, |_| Ok(()))
    }

    /// Plays a round like [`play`](Self::play), but any loss is an error.
    pub(super) fn play_all(&self, publish: Publish, record: Record) -> Result<Round> {
        let played = self.play(publish, record)?;
        let lost = played.recorded.overrun;
        ensure!(lost == 0, "{lost} of {} messages are lost", played.published.messages);
        Ok(played)
    }
}

/// Checks every byte of a journal. Listed losses are allowed, but damage is an error.
pub(super) fn check(to: &Path) -> Result<Verified> {
    let journal = Journal::open(to)?;
    let verified = Verify::new(&journal).run(|_| ())?;
    ensure!(verified.verdict() != Verdict::Damaged, "{}: {:?}", to.display(), verified.damages);
    Ok(verified)
}

/// Makes a directory for a journal. Dropping the result removes the directory and its contents.
pub(super) fn journal_in(dir: &Path) -> Result<tempfile::TempDir> {
    tempfile::Builder::new().prefix("journal-").tempdir_in(dir).context("make a directory for the journal")
}
