//! A recorder with its threads.
//!
//! One thread, in `drain`, reads the ring and packs frames. Three threads, `write`, `sync` and `help`, perform the operations of the three
//! lanes. The four threads share the [`Writer`], behind one lock. No thread holds this lock during a disk operation.

mod begin;
mod drain;

use crate::core::{Io, Now, Op, Settings, State, SyncPolicy, Writer};
use crate::directory::Directory;
use crate::error::{DiskError, RecordError};
use crate::keeping::{Keep, Trimmed};
use drain::{Drain, Naps};
use shmcast::journal::Streams;
use shmcast::{StreamId, Subscriber};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The pause between two checks whether a stopping recorder has written everything.
const NAP: Duration = Duration::from_micros(200);
/// If reading the wall clock and the monotonic clock takes this long, both are read again. Otherwise the delay would look like a step of
/// the wall clock. This time is a tenth of the smallest step of the wall clock that the journal records.
const CLOCKS_APART: Duration = Duration::from_micros(100);
/// The time for which a recorder that must stop waits for a disk that refuses writes.
const PATIENCE: Duration = Duration::from_secs(12);

/// The progress of a recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// First sequence of this recording.
    pub first: u64,
    /// Last sequence taken from the ring.
    pub drained: u64,
    /// Last sequence in a file.
    pub written: u64,
    /// Every sequence up to this one is in the journal on the disk, as a message or as lost.
    pub durable: u64,
    /// Messages recorded. While the recorder runs, this includes messages that are not written yet.
    pub messages: u64,
    /// The number of sequences that the ring overwrote before the recorder read them, since the start.
    pub overrun: u64,
    /// The number of sequences that were missing between the journal and the ring when the recording began.
    pub missing: u64,
    /// The number of sequences in gaps of the ring since the start. Their messages never reached this host. A gap before the first message, and
    /// the jump of a promotion, do not count.
    pub gaps: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Bytes of frames in memory.
    pub buffered: u64,
    /// The greatest durable reserve; 0 if there is none. Publishers are allowed to use sequences up to the reserve. For later sequences,
    /// the journal must first have a higher reserve.
    pub reserve: u64,
    /// The number of the newest file. If there is no file yet, this is the number that the first file will have.
    pub file: u64,
    /// The way in which the recorder writes: as set, or [`Io::Buffered`] after the file system refused direct writes.
    pub io: Io,
    /// Whether the disk refuses writes at the moment. Messages that do not fit into memory are lost, and the journal lists them as lost.
    pub is_failed: bool,
    /// Whether the publisher closed the channel, and the recorder has taken all earlier messages from the ring.
    pub has_ended: bool,
}

impl Progress {
    /// The number of sequences that the journal lists as missing for another cause than an overrun: those before the recording began, and
    /// those in gaps of the ring.
    pub const fn missing_with_gaps(&self) -> u64 {
        self.missing + self.gaps
    }
}

/// The greatest error of a subscriber's lag. The true lag can be higher by this many messages.
const LAG_ERROR: u64 = 64;

/// Reads the wall clock and the monotonic clock, which counts from `start`. A long pause between the two readings would look like a step of
/// the wall clock. After such a pause, reads both clocks again, up to ten times.
fn now(start: Instant) -> Now {
    let mut tries = 0..10;
    loop {
        let before = start.elapsed();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mono = start.elapsed();
        if mono - before < CLOCKS_APART || tries.next().is_none() {
            return Now { mono, wall_ns: wall.as_nanos() as u64 };
        }
    }
}

#[derive(Debug)]
struct RecorderState {
    writer: Mutex<Writer>,
    directory: Directory,
    lanes: [Sender<Op>; 3],
    start: Instant,
    /// The time until which a stopping recorder waits for a disk that refuses writes. It is set as soon as the recorder must stop.
    stop: OnceLock<Instant>,
    ended: AtomicBool,
    /// The next sequence of a channel on which nobody publishes any more; 0 if it is not known.
    over_at: AtomicU64,
    /// The sequence that the reserve must reach.
    wanted: AtomicU64,
    first: u64,
    missing: u64,
    drained: AtomicU64,
    messages: AtomicU64,
    overrun: AtomicU64,
    gaps: AtomicU64,
}

impl RecorderState {
    fn now(&self) -> Now {
        now(self.start)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("nobody panics while holding it")
    }

    /// Sends the writer's operations to the lanes.
    fn dispatch(&self, writer: &mut Writer, now: Now) {
        while let Some(op) = writer.poll(now) {
            // If a lane is gone, the recorder is ending.
            let _ = self.lanes[op.lane as usize].send(op);
        }
    }

    /// Whether the recorder must stop and the disk has refused writes for too long. A disk that is only slow does not count: the recorder
    /// waits for it.
    fn is_given_up(&self, writer: &Writer) -> bool {
        writer.state() == State::Failed && self.stop.get().is_some_and(|deadline| Instant::now() > *deadline)
    }

    fn progress(&self) -> Progress {
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let writer = self.writer();
        Progress {
            first: self.first,
            drained: load(&self.drained),
            written: writer.written(),
            durable: writer.durable(),
            reserve: writer.reserve(),
            messages: load(&self.messages),
            overrun: load(&self.overrun),
            missing: self.missing,
            gaps: load(&self.gaps),
            bytes: writer.bytes_written(),
            buffered: writer.buffered() as u64,
            file: writer.active(),
            io: self.directory.io(),
            is_failed: writer.state() == State::Failed,
            has_ended: self.ended.load(Ordering::Relaxed),
        }
    }
}

/// Performs the operations of a lane until the recorder is dropped.
fn lane(shared: &Weak<RecorderState>, ops: &Receiver<Op>) {
    for op in ops {
        let Some(shared) = shared.upgrade() else { return };
        let result = op.steps.iter().try_for_each(|step| shared.directory.perform(step));
        drop(op.steps);
        let now = shared.now();
        let mut writer = shared.writer();
        writer.done(op.id, result, now);
        shared.dispatch(&mut writer, now);
    }
}

fn spawn<T: Send + 'static>(
    name: &str,
    path: &Path,
    run: impl FnOnce() -> T + Send + 'static,
) -> Result<JoinHandle<T>, RecordError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    spawned.map_err(|e| {
        let what =
            format!("start the thread {name}: {e}: raise the limit on processes (ulimit -u, TasksMax)");
        RecordError::Os { path: path.to_owned(), source: std::io::Error::new(e.kind(), what) }
    })
}

/// Records one channel into a directory.
#[derive(Debug)]
pub struct Recorder {
    shared: Arc<RecorderState>,
    drain: JoinHandle<Result<u64, RecordError>>,
    lanes: Vec<JoinHandle<()>>,
}

impl Recorder {
    /// Records a channel into the folder of its stream, in the directory at `path`. Repairs an existing journal first.
    ///
    /// If the directory has a journal of this stream, the recording continues at the journal's end. Messages that the ring no longer has
    /// are recorded as lost. If there is no journal of this stream, the recording begins at the subscriber's position.
    ///
    /// Open the subscriber with [`History::Never`](shmcast::History::Never). Otherwise it might read the journal that this recorder writes,
    /// and messages would be recorded twice.
    ///
    /// # Errors
    /// [`RecordError`]. After an error nothing is recorded.
    pub fn start(path: &Path, subscriber: Subscriber, settings: Settings) -> Result<Self, RecordError> {
        let header = subscriber.header();
        let directory = Directory::of_stream(path, header.stream, &header.channel, settings.io)?;
        let (start, sync) = (Instant::now(), settings.sync);
        let begun = begin::begin(directory, subscriber, settings, start)?;
        let mut ops = Vec::new();
        let lanes = [(); 3].map(|()| {
            let (sender, receiver) = channel();
            ops.push(receiver);
            sender
        });
        let shared = Arc::new(RecorderState {
            writer: Mutex::new(begun.writer),
            directory: begun.directory,
            lanes,
            start,
            stop: OnceLock::new(),
            ended: AtomicBool::new(false),
            over_at: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            first: begun.first,
            missing: begun.missing,
            drained: AtomicU64::new(begun.packer.due() - 1),
            messages: AtomicU64::new(0),
            overrun: AtomicU64::new(0),
            gaps: AtomicU64::new(0),
        });
        let names = ["journal-write", "journal-sync", "journal-help"];
        let lanes = ops.into_iter().zip(names).map(|(ops, name)| {
            // The lane has only a weak reference to the state. So it ends with the recorder, which drops the senders of the lanes'
            // channels.
            let shared = Arc::downgrade(&shared);
            spawn(name, path, move || lane(&shared, &ops))
        });
        let lanes = lanes.collect::<Result<_, _>>()?;
        let (packer, subscriber) = (begun.packer, begun.subscriber);
        let own = shared.clone();
        let ring = subscriber.header().uuid;
        let naps = Naps::new(sync, subscriber.header().geometry.capacity);
        let is_each = sync == SyncPolicy::Each;
        let (next, known, epoch_by) = (subscriber.next_sequence(), begun.known, begun.epoch_by);
        let look_at = Duration::ZERO;
        let drain = Drain {
            shared: own,
            packer,
            subscriber,
            ring,
            has_moved: false,
            next,
            known,
            epoch_by,
            naps,
            came: 0,
            is_each,
            look_at,
        };
        let drain = spawn("journal-drain", path, move || drain.run())?;
        Ok(Self { shared, drain, lanes })
    }

    /// Returns the progress. Holds the writer's lock for a short time.
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Returns the disk errors since the last call, each with the name of the failed operation. The text of an error also says what the
    /// recorder does now. If files are synced, an error alone loses no message. With [`SyncPolicy::None`](crate::core::SyncPolicy::None),
    /// an error can lose messages of an abandoned file, and the journal lists them as lost.
    pub fn errors(&self) -> Vec<DiskError> {
        let mut writer = self.shared.writer();
        let error = |(what, error)| DiskError { what, error };
        std::iter::from_fn(|| writer.take_error()).map(error).collect()
    }

    /// Removes the oldest files of the journal, as [`Keep::trim`] does. While a recorder runs, remove files of its journal only by this
    /// call. If another program removes a file that the recorder has written, the recorder ends with [`RecordError::Moved`].
    ///
    /// # Errors
    /// The same errors as for [`Keep::trim`].
    pub fn trim(
        &self,
        keep: &Keep,
        streams: &Streams,
        own: Option<StreamId>,
        wall_ns: u64,
        trimmed: &mut Trimmed,
    ) -> io::Result<()> {
        let before = trimmed.gone.len();
        self.shared.directory.trim(|| {
            let done = keep.trim(streams, own, wall_ns, trimmed);
            (done, trimmed.gone[before..].to_vec())
        })
    }

    /// Requests a reserve of at least `sequence`, so that the channel can skip sequences up to `sequence`. The request is done when
    /// [`Progress::reserve`] is at least `sequence`.
    pub fn reserve(&self, sequence: u64) {
        self.shared.wanted.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Whether the recorder still reads the channel. If it does not, [`stop`](Self::stop) returns the reason.
    pub fn is_running(&self) -> bool {
        !self.drain.is_finished()
    }

    /// Stops the recorder of a channel on which nobody publishes any more, as [`stop`](Self::stop) does. `next` is the channel's next
    /// sequence. The caller must hold the channel's writer lock until this call returns.
    ///
    /// If the recorder has recorded every message before `next`, it ends the journal with a clean record. Because of this record, a later
    /// ring of the channel skips no sequence.
    ///
    /// # Errors
    /// The same errors as for [`stop`](Self::stop).
    pub fn close(self, next: u64) -> Result<Progress, RecordError> {
        self.shared.over_at.store(next, Ordering::Relaxed);
        self.stop()
    }

    /// Records everything that was published before this call, seals the file, and ends. Waits for the disk, but at most 12 s for a disk
    /// that refuses writes. After this call, another recorder can use the directory, unless the disk refused writes until the end.
    ///
    /// # Errors
    /// If the recorder ended before this call, if messages were not written, or if the journal's path no longer leads to the journal.
    pub fn stop(self) -> Result<Progress, RecordError> {
        let Self { shared, drain, lanes } = self;
        shared.stop.get_or_init(|| Instant::now() + PATIENCE);
        let ended = drain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        shared.writer().close();
        let is_gone = matches!(ended, Err(RecordError::Moved { .. }));
        loop {
            let now = shared.now();
            let mut writer = shared.writer();
            shared.dispatch(&mut writer, now);
            if writer.state() == State::Closed {
                break;
            }
            // If the folder was removed, further attempts to write cannot succeed.
            if shared.is_given_up(&writer) || is_gone && writer.state() == State::Failed {
                drop(writer);
                return Err(unwritten(&shared, ended));
            }
            drop(writer);
            std::thread::sleep(NAP);
        }
        let named = shared.directory.check_all_names();
        let _ = shared.directory.remove_spare();
        let progress = shared.progress();
        // Without syncs, if the last file could not be sealed, its messages can be lost, because they are no longer in memory.
        let ended = if is_short(&shared, &ended) { Err(unwritten(&shared, ended)) } else { ended };
        drop(shared);
        for lane in lanes {
            lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        ended?;
        named.map(|()| progress)
    }
}

/// Whether the journal lacks sequences that were read, or messages that are still in the ring.
fn is_short(shared: &RecorderState, ended: &Result<u64, RecordError>) -> bool {
    let is_left = matches!(ended, Ok(1..));
    is_left || shared.drained.load(Ordering::Relaxed) > shared.writer().written()
}

/// Returns the error of a recording that ends before its disk has accepted all messages. If the folder was removed, this is the error.
/// Otherwise, if messages were lost, their loss is the error, even if the reading of the channel also ended with an error.
fn unwritten(shared: &RecorderState, ended: Result<u64, RecordError>) -> RecordError {
    let unwritten = shared.writer().unwritten();
    match (is_short(shared, &ended), ended) {
        (_, Err(error @ RecordError::Moved { .. })) | (false, Err(error)) => error,
        (_, ended) => {
            let now = shared.progress();
            RecordError::Unwritten {
                path: shared.directory.path().to_owned(),
                lost: unwritten + *ended.as_ref().unwrap_or(&0),
                is_over: ended.is_err_and(|error| error.is_restart()),
                last: std::iter::from_fn(|| shared.writer().take_error()).last(),
                progress: Box::new(Progress { messages: now.messages.saturating_sub(unwritten), ..now }),
            }
        }
    }
}
