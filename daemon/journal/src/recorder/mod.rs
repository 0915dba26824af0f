//! A recorder with its threads.
//!
//! `drain` reads the ring and packs frames. Three threads perform the operations of the three lanes: `write`, `sync`, `help`. The logic
//! between them is [`Writer`], behind one lock that no thread holds during a disk operation.

mod begin;
mod drain;

use crate::core::{Io, Now, Op, Settings, State, SyncPolicy, Writer};
use crate::directory::Directory;
use crate::error::RecordError;
use drain::{Drain, Naps};
use shmcast::Subscriber;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Longest pause while waiting for the end.
const NAP: Duration = Duration::from_micros(200);
/// Longest time between the readings of two clocks, a tenth of the step that is recorded.
const CLOCKS_APART: Duration = Duration::from_micros(100);
/// How long a recording that ends waits for a disk that refuses.
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
    /// Everything up to this sequence is safe from a power cut, or safely recorded as lost.
    pub durable: u64,
    /// Messages recorded.
    pub messages: u64,
    /// Sequences that were lost to laps since the start.
    pub overrun: u64,
    /// Sequences that were missing at the start, between the journal and the ring.
    pub missing: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Bytes of frames in memory.
    pub buffered: u64,
    /// The greatest sequence that a publisher may reach before the journal must be updated; safe from a power cut. 0 if there is none.
    pub reserve: u64,
    /// Number of the newest file. If no file has been started yet, the number that the first one will get.
    pub file: u64,
    /// How the recorder writes: as its settings say, unless the file system has refused that.
    pub io: Io,
    /// Whether the disk refuses. Messages that do not fit into memory are lost, and recorded as lost.
    pub is_failed: bool,
    /// Whether the publisher closed the channel, and everything before that is taken from the ring.
    pub has_ended: bool,
}

/// The lag of a subscriber may be too low by so many messages.
const LAG_ERROR: u64 = 64;

/// The time, counted from `start`. Both clocks are read again, some times at most, where a pause between them would pass for a step of
/// the wall clock.
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
    /// How long a stopping recorder waits for a disk that refuses.
    stop: OnceLock<Instant>,
    ended: AtomicBool,
    /// The sequence due after the very last message, once the recorder must stop; 0 if it is not known.
    over_at: AtomicU64,
    /// The sequence that the reserve must reach.
    wanted: AtomicU64,
    first: u64,
    missing: u64,
    drained: AtomicU64,
    messages: AtomicU64,
    overrun: AtomicU64,
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

    /// Whether the recorder must stop, and the disk has refused for too long. It waits for a disk that works, however slow it is.
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
            bytes: writer.bytes_written(),
            buffered: writer.buffered() as u64,
            file: writer.active(),
            io: self.directory.io(),
            is_failed: writer.state() == State::Failed,
            has_ended: self.ended.load(Ordering::Relaxed),
        }
    }
}

/// Performs the operations of a lane, until the recorder is gone.
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
    /// Records what `subscriber` receives into the folder of its stream in the directory at `path`. First makes whole what is there. A
    /// journal of this stream is continued: from its end if the ring still has that place; otherwise the messages in between are recorded
    /// as lost. If there is no journal of this stream, the recording begins at the subscriber's place.
    ///
    /// Open the subscriber with [`History::Never`](shmcast::History::Never). A subscriber that reads from a journal may read the journal
    /// that this recorder writes: it would record messages again that are there already, or wait for itself after a lap.
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
        });
        let names = ["journal-write", "journal-sync", "journal-help"];
        let lanes = ops.into_iter().zip(names).map(|(ops, name)| {
            // A lane ends with the recorder, because the recorder's ends of the channels are dropped with it.
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

    /// Returns the progress. Takes the lock of the writer for a moment.
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Takes the errors of the disk since the last call: what failed, and why. If files are synced, none of them by itself lost anything.
    /// With [`SyncPolicy::None`](crate::core::SyncPolicy::None) the journal records the contents of an abandoned file as lost.
    pub fn errors(&self) -> Vec<(&'static str, std::io::Error)> {
        let mut writer = self.shared.writer();
        std::iter::from_fn(|| writer.take_error()).collect()
    }

    /// Raises the reserve at least up to `sequence`, so that the channel may skip that far ahead. This is done once [`Progress::reserve`]
    /// is that far.
    pub fn reserve(&self, sequence: u64) {
        self.shared.wanted.fetch_max(sequence, Ordering::Relaxed);
    }

    /// Whether the recorder still reads the channel. If not, [`stop`](Self::stop) returns the reason.
    pub fn is_running(&self) -> bool {
        !self.drain.is_finished()
    }

    /// As [`stop`](Self::stop), for a channel on which nobody publishes any more. `next` is the sequence of its next message, and the
    /// caller holds its writer lock until this call returns. If the recorder has everything before `next`, the journal ends with a clean
    /// record, so that a ring that continues it leaves no sequence out.
    ///
    /// # Errors
    /// As [`stop`](Self::stop).
    pub fn close(self, next: u64) -> Result<Progress, RecordError> {
        self.shared.over_at.store(next, Ordering::Relaxed);
        self.stop()
    }

    /// Records what was published before this call, seals the file, and ends. Waits for the disk, but for at most 12 s if the disk refuses.
    /// When the call returns, the directory is free for another recorder, unless the disk refused.
    ///
    /// # Errors
    /// The reason why the recorder ended before it was stopped, or why not everything was written, or cannot be read by its name.
    pub fn stop(self) -> Result<Progress, RecordError> {
        let Self { shared, drain, lanes } = self;
        shared.stop.get_or_init(|| Instant::now() + PATIENCE);
        let ended = drain.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        shared.writer().close();
        loop {
            let now = shared.now();
            let mut writer = shared.writer();
            shared.dispatch(&mut writer, now);
            if writer.state() == State::Closed {
                break;
            }
            if shared.is_given_up(&writer) {
                let lost = shared.drained.load(Ordering::Relaxed) - writer.written() + ended?;
                return Err(RecordError::Unwritten { path: shared.directory.path().to_owned(), lost });
            }
            drop(writer);
            std::thread::sleep(NAP);
        }
        let named = shared.directory.check_names();
        let _ = shared.directory.remove_spare();
        let progress = shared.progress();
        drop(shared);
        for lane in lanes {
            lane.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
        ended?;
        named.map(|()| progress)
    }
}
