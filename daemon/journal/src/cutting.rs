//! Copies a part of a journal to a separate journal.

use crate::core::{Begin, Io, Now, Packer, Packing, Pool, Settings, State, SyncPolicy, Writer};
use crate::directory::Directory;
use crate::error::RecordError;
use shmcast::Message;
use shmcast::journal::format::{FRAME_TARGET, FileHeader, Loss};
use shmcast::journal::{JournalControl, salt};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The number of closed frames at which the frames are written.
const CLOSED: usize = 4;

/// Copies a part of a journal into another directory, with the recorder's logic on the calling thread. The copy has the identity, the
/// sequences and the times of the journal.
#[derive(Debug)]
pub struct Cut {
    directory: Directory,
    packer: Packer,
    writer: Writer,
    /// The ring of the latest records.
    ring: [u64; 2],
    /// The latest wall-clock time of the records so far.
    latest_ns: u64,
    base_ns: u64,
}

impl Cut {
    /// Begins a part in the directory at `path`, and creates this directory if necessary. The directory must not have a journal of this
    /// stream yet.
    ///
    /// - `header` is the header of the file in which the part begins, with the part's first sequence and first epoch.
    /// - `clock` is the time of the first record according to the journal: the wall clock, and the ring's ticks at the same moment.
    ///
    /// # Errors
    /// [`RecordError::Busy`] and [`RecordError::Os`].
    pub fn begin(
        path: &Path,
        header: &FileHeader,
        file_bytes: u64,
        clock: (u64, u64),
    ) -> Result<Self, RecordError> {
        let directory = Directory::of_stream(path, header.stream, &header.channel, Io::Buffered)?;
        let salt = salt().map_err(|source| RecordError::Os { path: path.to_owned(), source })?;
        let (latest_ns, ticks) = clock;
        let settings = Settings { sync: SyncPolicy::None, file_bytes, ..Settings::default() };
        let header =
            FileHeader { file: 1, previous_salt: 0, previous_chain: 0, reserve: 0, ..header.clone() };
        let pool = Pool::default();
        let begin =
            Begin { header: Arc::new(header.clone()), loss: None, mended: &[], reserve: 0, latest_ns: 0 };
        let now = Now { mono: Duration::ZERO, wall_ns: latest_ns };
        // Clock records are copied from the journal. A new clock record is made only for the first frame.
        let packing = Packing {
            target: FRAME_TARGET,
            clock_every: Duration::MAX,
            clock_bytes: usize::MAX,
            ..Packing::default()
        };
        let packer = Packer::begin(packing, pool.clone(), &begin, now, ticks);
        let ring = header.ring.uuid;
        let writer = Writer::new(settings, header, pool, salt);
        Ok(Self { directory, packer, writer, ring, latest_ns, base_ns: latest_ns })
    }

    /// Sets the header of the files from which the next records come. If the header names another ring, the part continues in another file.
    /// The last argument is the time of these records according to the journal: the wall clock, and the ring's ticks at the same moment.
    pub fn go_on_in(&mut self, header: &FileHeader, (wall_ns, ticks): (u64, u64)) {
        if header.ring.uuid == self.ring {
            return;
        }
        self.ring = header.ring.uuid;
        // The index times of frames must not go back, so the ticks move with the wall clock.
        let late_ns = self.latest_ns.saturating_sub(wall_ns);
        let late = u128::from(late_ns) * u128::from(header.ring.clock_hz) / 1_000_000_000;
        self.at(wall_ns + late_ns, ticks.wrapping_add(late as u64));
        self.packer.go_on_in(Arc::new(header.clone()));
    }

    /// Adds the next message. The message must have the next sequence. `wall_ns` is the message's time by the wall clock.
    ///
    /// # Errors
    /// [`RecordError::Os`], also for a message out of order.
    pub fn message(&mut self, message: &Message<'_>, wall_ns: Option<u64>) -> Result<(), RecordError> {
        if let Some(wall_ns) = wall_ns.filter(|&wall_ns| wall_ns > self.latest_ns) {
            self.at(wall_ns, message.time);
        }
        let &Message { payload, sequence, tag, key, time, .. } = message;
        if !self.packer.message(sequence, payload, tag, key, time) {
            let due = self.packer.due();
            return Err(self.os(io::Error::other(format!("message {sequence} came where {due} was due"))));
        }
        self.write_some()
    }

    /// Adds a control record: one that the ring had, or the journal's own record about a ring or a clock.
    ///
    /// # Errors
    /// [`RecordError::Os`].
    pub fn control(&mut self, control: JournalControl) -> Result<(), RecordError> {
        if let JournalControl::Clock { wall_ns, ticks, .. } = control
            && wall_ns > self.latest_ns
        {
            self.at(wall_ns, ticks);
        }
        self.packer.control(control);
        self.write_some()
    }

    /// Records sequences as missing. They must begin with the next sequence.
    ///
    /// # Errors
    /// [`RecordError::Os`].
    pub fn loss(&mut self, loss: Loss) -> Result<(), RecordError> {
        self.packer.loss(loss.to, loss.cause);
        self.write_some()
    }

    /// Writes all remaining frames and seals the last file. Returns the number of bytes that were written to files.
    ///
    /// # Errors
    /// [`RecordError::Os`].
    pub fn finish(mut self) -> Result<u64, RecordError> {
        self.packer.close();
        self.write()?;
        self.writer.close();
        self.write()?;
        if self.writer.state() != State::Closed {
            return Err(self.os(io::Error::other("the journal was not sealed")));
        }
        self.directory.remove_spare().map_err(|source| self.os(source))?;
        Ok(self.writer.bytes_written())
    }

    /// Sets the wall clock and the ring's ticks. Later frames get their index time from these two. All earlier messages must have earlier
    /// times, or the same time.
    fn at(&mut self, wall_ns: u64, ticks: u64) {
        self.latest_ns = wall_ns;
        self.packer.at(self.now(), ticks);
    }

    fn now(&self) -> Now {
        Now { mono: Duration::from_nanos(self.latest_ns - self.base_ns), wall_ns: self.latest_ns }
    }

    fn write_some(&mut self) -> Result<(), RecordError> {
        if self.packer.closed() < CLOSED { Ok(()) } else { self.write() }
    }

    fn write(&mut self) -> Result<(), RecordError> {
        while let Some(frame) = self.packer.take() {
            self.writer.push(frame);
        }
        let now = self.now();
        while let Some(op) = self.writer.poll(now) {
            let result = op.steps.iter().try_for_each(|step| self.directory.perform(step));
            self.writer.done(op.id, result, now);
            if let Some((_, error)) = self.writer.take_error() {
                return Err(self.os(error));
            }
        }
        Ok(())
    }

    fn os(&self, source: io::Error) -> RecordError {
        RecordError::Os { path: self.directory.path().to_owned(), source }
    }
}
