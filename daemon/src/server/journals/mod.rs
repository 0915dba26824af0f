//! The daemon's recorders, and the files that they pass to readers.
//!
//! Each channel with a journal has a thread, which opens the channel as any program does. The thread starts a recorder, checks the recorder
//! ten times a second, and restarts it if it has ended. The recorder has threads of its own.

mod lending;
mod lost;
mod reserve;
mod retention;

use super::events::Events;
use super::pauses::Pauses;
use super::troubles::{Troubles, text_of};
use crate::config::{ChannelConfig, JournalConfig};
use anyhow::Result;
pub use lending::{Asked, Loan};
use lost::Told;
use retention::Room;
pub use retention::note_written;
use shmcast::control::JournalStatus;
use shmcast::hosting::Hold;
use shmcast::journal::{JournalError, Streams, folder_of};
use shmcast::{Client, History, Role, Start, StreamId, Subscriber};
use shmcast_journal::{Keep, Progress, RecordError, Recorder};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Interval between two checks of a recorder.
const LOOK: Duration = Duration::from_millis(100);
/// Interval at which the files are counted and the oldest are removed.
const TRIM_EVERY: Duration = Duration::from_secs(5);
/// The longest time for which a daemon that stops waits for its recorders. If a recorder takes longer, the messages that it has not written
/// are still in the ring.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The journals, by the names of their channels. Clones share the same journals.
#[derive(Debug, Clone, Default)]
pub struct Journals(Arc<Mutex<BTreeMap<String, Arc<Recording>>>>);

impl Journals {
    /// Makes the journals of one channel, whose recorder is still starting.
    #[cfg(test)]
    pub fn starting(channel: &str, config: &JournalConfig) -> Self {
        let journals = Self::default();
        journals.recordings().insert(channel.to_owned(), Arc::new(Recording::new(channel, config)));
        journals
    }

    fn recordings(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Recording>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, channel: &str) -> Option<Arc<Recording>> {
        self.recordings().get(channel).cloned()
    }

    /// Returns the semaphore of a channel's journal. Acquire it before [`lend`](Self::lend). Returns `None` if the channel has no journal.
    pub fn turn(&self, channel: &str) -> Option<Arc<Semaphore>> {
        self.find(channel).map(|recording| recording.turn.clone())
    }

    /// Opens the file with the messages that a reader requests. Returns `None` if the channel has no journal, or if nothing is recorded
    /// yet. The call reads from the disk.
    ///
    /// # Errors
    /// [`JournalError`] if the directory or the file cannot be read.
    pub fn lend(&self, channel: &str, asked: Asked) -> Result<Option<Loan>, JournalError> {
        self.find(channel).map_or(Ok(None), |recording| recording.lend(asked))
    }

    /// Whether the channel's journal is recorded, or is about to be.
    pub fn may_record(&self, channel: &str) -> bool {
        self.find(channel).is_some_and(|recording| recording.may_record())
    }

    /// Whether any recorder is still starting: it neither records nor has failed.
    pub fn is_any_starting(&self) -> bool {
        self.recordings().values().any(|recording| recording.state().is_starting())
    }

    /// Returns a channel's journal in the form that tools show.
    pub fn status(&self, channel: &str) -> Option<JournalStatus> {
        self.find(channel).map(|recording| recording.status())
    }

    /// Returns all journals in the form that tools show, in order of their channels' names.
    pub fn statuses(&self) -> Vec<(String, JournalStatus)> {
        self.recordings().iter().map(|(channel, recording)| (channel.clone(), recording.status())).collect()
    }
}

/// The owner of the recorders' threads.
#[derive(Debug)]
pub struct Recorders {
    journals: Journals,
    events: Events,
    socket: PathBuf,
    threads: BTreeMap<String, JoinHandle<()>>,
    /// Threads of journals that are no longer configured, by channel. If the channel gets another journal, that journal waits until the
    /// thread has ended.
    leaving: BTreeMap<String, JoinHandle<()>>,
    /// Journals whose thread the system refused to start, by channel.
    refused: BTreeMap<String, Refused>,
}

/// The next attempt to start a journal's thread.
#[derive(Debug)]
struct Refused {
    at: Instant,
    pauses: Pauses,
}

impl Recorders {
    /// Makes an empty set of recorders. Recorders that are added later report to `events`, and reach this daemon at `socket`.
    pub fn new(journals: Journals, events: Events, socket: PathBuf) -> Self {
        let (threads, leaving, refused) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { journals, events, socket, threads, leaving, refused }
    }

    /// Keeps journals of exactly these channels from now on. A journal continues without interruption if at most its limits for old
    /// files have changed. The call does not wait.
    pub fn apply(&mut self, channels: &[ChannelConfig]) {
        let wanted = channels.iter().filter_map(|channel| Some((&channel.name, channel.journal.as_ref()?)));
        let wanted: BTreeMap<&String, &JournalConfig> = wanted.collect();
        self.journals.recordings().retain(|channel, recording| {
            let stays = wanted.get(channel).is_some_and(|config| recording.goes_on_with(config));
            if !stays {
                recording.stop.store(true, Ordering::Relaxed);
                self.leaving.extend(self.threads.remove_entry(channel));
                self.refused.remove(channel);
                self.events.tell("journal-removed", Some(channel), None, None, &recording.shown());
            }
            stays
        });
        // Since the last attempt, the system might have become able to start threads.
        self.retry_refused_at(None);
        for (channel, config) in wanted {
            if !self.journals.has(channel) {
                let recording = Arc::new(Recording::new(channel, config));
                self.journals.recordings().insert(channel.clone(), recording.clone());
                self.start(recording, Pauses::default());
            }
        }
        self.leaving.retain(|_, thread| !thread.is_finished());
    }

    /// Tries again to start the threads that the system refused, each after a pause of its own. Call this about once a second. The call
    /// does not wait.
    pub fn retry_refused(&mut self) {
        self.retry_refused_at(Some(Instant::now()));
    }

    /// Tries again to start the refused threads whose pause is over at `now`. If `now` is `None`, tries all refused threads.
    fn retry_refused_at(&mut self, now: Option<Instant>) {
        let (due, later): (BTreeMap<_, _>, _) = std::mem::take(&mut self.refused)
            .into_iter()
            .partition(|(_, refused)| now.is_none_or(|now| refused.at <= now));
        self.refused = later;
        for (channel, Refused { pauses, .. }) in due {
            if let Some(recording) = self.journals.find(&channel) {
                self.start(recording, pauses);
            }
        }
    }

    /// Starts the thread of a journal. If the system refuses, the refusal is reported and shown, and [`retry_refused`](Self::retry_refused)
    /// tries again.
    fn start(&mut self, recording: Arc<Recording>, mut pauses: Pauses) {
        let channel = recording.channel.clone();
        // The new thread waits until the previous thread has written its last frames. If the new thread cannot be started, the previous
        // thread is kept for the next attempt.
        let before = self.leaving.remove(&channel);
        recording.state().is_waiting = before.is_some();
        let before = Arc::new(Mutex::new(before));
        let work = Work {
            recording: recording.clone(),
            events: self.events.clone(),
            socket: self.socket.clone(),
            before: before.clone(),
        };
        let started = std::thread::Builder::new().name("journal".to_owned()).spawn(move || work.run());
        match started {
            Ok(thread) => drop(self.threads.insert(channel, thread)),
            Err(e) => {
                let before = before.lock().unwrap_or_else(PoisonError::into_inner).take();
                self.leaving.extend(before.map(|thread| (channel.clone(), thread)));
                let at = Instant::now() + pauses.after(Duration::ZERO);
                self.refused.insert(channel, Refused { at, pauses });
                let what = "it is tried again: raise the limit on processes (ulimit -u, TasksMax)";
                recording.fail(&self.events, &format!("start its thread: {e}: {what}"));
            }
        }
    }

    /// Stops all recorders, and waits a limited time until they have finished their files. Until this process ends, `hold` keeps publishers
    /// away from a closed channel. So the channel's journal can record a clean end.
    pub fn stop(self, hold: impl Fn(&str) -> Option<Hold>) -> Vec<Hold> {
        let mut holds = Vec::new();
        // The recordings are copied, so that the lock of the journals is free during the wait. The event loop needs the lock meanwhile.
        let recordings: Vec<_> = self.journals.recordings().values().cloned().collect();
        for recording in recordings {
            if let Some(hold) = hold(&recording.channel) {
                recording.over_at.store(hold.next_sequence(), Ordering::Relaxed);
                holds.push(hold);
            }
            recording.stop.store(true, Ordering::Release);
        }
        let until = Instant::now() + LAST_WORDS;
        for thread in self.threads.into_values().chain(self.leaving.into_values()) {
            while !thread.is_finished() && Instant::now() < until {
                sleep(Duration::from_millis(5));
            }
            if !thread.is_finished() {
                tracing::error!("a journal is left unsealed: its disk does not answer");
            } else if thread.join().is_err() {
                tracing::error!("the thread of a journal panicked: please report this");
            }
        }
        holds
    }
}

/// One journal: its settings and its progress.
#[derive(Debug)]
struct Recording {
    channel: String,
    /// The settings with which the recording began. The present limits for old files are `keep`.
    config: JournalConfig,
    keep: Mutex<Keep>,
    stop: AtomicBool,
    /// The channel's next sequence, if nobody can publish any more when the recorder stops. Otherwise 0.
    over_at: AtomicU64,
    /// The sequence that was requested for the reserve in the journal. No publisher passes the reserve.
    wanted: AtomicU64,
    state: Mutex<State>,
    /// The lists of the files, from which readers are served.
    files: Mutex<Option<Streams>>,
    /// Lets only one reader at a time read the lists of files. If the disk hangs, only this reader's thread is blocked.
    turn: Arc<Semaphore>,
}

/// The progress of a recording.
#[derive(Debug, Default)]
struct State {
    /// The recorder's present figures, or its last ones.
    progress: Option<Progress>,
    /// The stream that is recorded, or was recorded last.
    stream: Option<StreamId>,
    is_running: bool,
    /// Whether the thread waits for the thread of the channel's previous journal.
    is_waiting: bool,
    /// The reason why there is no recorder.
    why: Option<String>,
    size_bytes: u64,
    oldest: u64,
}

impl State {
    /// The state's name, as tools show it.
    fn name(&self) -> &'static str {
        match (self.is_running, &self.why) {
            (true, _) if self.progress.is_some_and(|progress| progress.is_failed) => "refused",
            (true, _) => "recording",
            (false, Some(_)) => "failed",
            (false, None) => "starting",
        }
    }

    /// Whether the recorder is still starting: it neither records nor has failed.
    fn is_starting(&self) -> bool {
        !self.is_running && self.why.is_none()
    }
}

impl Recording {
    fn new(channel: &str, config: &JournalConfig) -> Self {
        Self {
            channel: channel.to_owned(),
            config: config.clone(),
            keep: Mutex::new(config.keep()),
            stop: AtomicBool::new(false),
            over_at: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            state: Mutex::default(),
            files: Mutex::default(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_to_stop(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn shown(&self) -> String {
        self.config.dir.display().to_string()
    }

    fn status(&self) -> JournalStatus {
        let state = self.state();
        let none = Progress::default();
        let progress = state.progress.as_ref().unwrap_or(&none);
        JournalStatus {
            directory: self.shown(),
            state: state.name().to_owned(),
            why: state.why.clone(),
            first: progress.first,
            drained: progress.drained,
            written: progress.written,
            durable: progress.durable,
            messages: progress.messages,
            overrun: progress.overrun,
            missing: progress.missing_with_gaps(),
            gaps: progress.gaps,
            written_bytes: progress.bytes,
            waiting_bytes: progress.buffered,
            file: progress.file,
            io: state.progress.map_or_else(String::new, |progress| progress.io.name().to_owned()),
            size_bytes: state.size_bytes,
            oldest: state.oldest,
        }
    }

    /// Notes that a journal has no recorder at present. Reports the reason, unless it is the same as in the last report.
    fn fail(&self, events: &Events, why: &str) {
        let mut state = self.state();
        state.is_running = false;
        if state.why.as_deref() != Some(why) {
            state.why = Some(why.to_owned());
            events.tell("journal-failed", Some(&self.channel), None, None, why);
        }
    }
}

/// The thread of one journal.
struct Work {
    recording: Arc<Recording>,
    events: Events,
    socket: PathBuf,
    /// The thread that kept the channel's previous journal. It might still be writing its last frames.
    before: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Work {
    fn run(self) {
        let before = self.before.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(before) = before {
            // The thread has reported its own errors.
            let _ = before.join();
            self.recording.state().is_waiting = false;
        }
        let mut pauses = Pauses::default();
        while !self.recording.is_to_stop() {
            let begun = Instant::now();
            match self.record() {
                Ok(()) => continue,
                // A daemon that stops also refuses its own recorders. So errors are expected now, and only lost messages are reported.
                Err(e) if self.recording.is_to_stop() => {
                    if e.downcast_ref().is_some_and(RecordError::is_loss) {
                        self.tell("journal-failed", &text_of(&e));
                    }
                    return;
                }
                Err(e) => self.recording.fail(&self.events, &text_of(&e)),
            }
            self.pause(pauses.after(begun.elapsed()));
        }
    }

    fn pause(&self, pause: Duration) {
        let until = Instant::now() + pause;
        while Instant::now() < until && !self.recording.is_to_stop() {
            sleep(LOOK);
        }
    }

    fn tell(&self, event: &'static str, detail: &str) {
        self.events.tell(event, Some(&self.recording.channel), None, None, detail);
    }

    /// Records until the journal must stop, or until the channel restarts.
    fn record(&self) -> Result<()> {
        let client = Client::at(&self.socket)?;
        let builder = Subscriber::builder(&self.recording.channel).client(&client).role(Role::Recorder);
        let config = &self.recording.config;
        let builder = builder.start(Start::Oldest).history(History::Never);
        let builder = match &config.gate {
            Some(gate) => builder.gate(gate),
            None => builder,
        };
        let subscriber = builder.open()?;
        let stream = subscriber.header().stream;
        let recorder = Recorder::start(&config.dir, subscriber, config.settings())?;
        self.recording.forget_files();
        let begun = recorder.progress();
        let before = {
            let mut state = self.recording.state();
            (state.is_running, state.why, state.progress) = (true, None, Some(begun));
            state.stream.replace(stream)
        };
        if let Some(before) = before.filter(|before| !before.is(stream)) {
            // The requested reserve belongs to the previous stream.
            self.recording.wanted.store(0, Ordering::Relaxed);
            let before = folder_of(&config.dir, before);
            let what = format!("the channel began anew: what was recorded before is in {}", before.display());
            self.tell("journal-anew", &what);
        }
        let from = begun.first;
        self.tell("journal-started", &format!("{} from sequence {from}", self.recording.shown()));
        if begun.missing > 0 {
            let what = format!("{} sequences before the ring's oldest are missing", begun.missing);
            self.tell("journal-lost", &what);
        }
        let mut told = self.watch(&recorder, begun);
        let before = recorder.progress();
        let ended = match self.recording.over_at.load(Ordering::Relaxed) {
            0 => recorder.stop(),
            next => recorder.close(next),
        };
        let last = match &ended {
            Ok(last) => *last,
            Err(RecordError::Unwritten { progress, .. }) => **progress,
            // A recorder that has failed reads nothing more, so the progress before `stop` is the last one.
            Err(_) => before,
        };
        {
            let mut state = self.recording.state();
            (state.is_running, state.progress) = (false, Some(last));
        }
        self.tell_lost(told.rest(&last));
        match ended {
            // The next recorder begins the folder of the new stream.
            Ok(_) | Err(RecordError::Restarted) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn tell_lost(&self, lost: Vec<String>) {
        lost.iter().for_each(|lost| self.tell("journal-lost", lost));
    }

    /// Watches a recorder until it ends or must stop. If the disk is too slow, messages are lost and reported. Returns the losses
    /// that were reported so far.
    fn watch(&self, recorder: &Recorder, begun: Progress) -> Told {
        let (mut is_refused, mut told) = (begun.is_failed, Told::default());
        let mut trimmed: Option<Instant> = None;
        let mut io = self.recording.config.io;
        let (mut troubles, mut trim_troubles) = (Troubles::default(), Troubles::default());
        let mut room = Room::default();
        while recorder.is_running() && !self.recording.is_to_stop() {
            for error in recorder.errors() {
                if let Some(trouble) = troubles.news(error.to_string()) {
                    self.tell("journal-error", &trouble);
                }
            }
            recorder.reserve(self.recording.wanted.load(Ordering::Relaxed));
            let now = recorder.progress();
            self.recording.state().progress = Some(now);
            if now.io != io {
                io = now.io;
                self.tell(
                    "journal-buffered",
                    "its file system takes no O_DIRECT: written through the page cache",
                );
            }
            if now.is_failed != is_refused {
                is_refused = now.is_failed;
                match is_refused {
                    true => self.tell("journal-refused", "the disk takes nothing: tried again each 5 s"),
                    false => self.tell("journal-recovered", "the disk takes what is recorded again"),
                }
            }
            self.tell_lost(told.news(&now));
            if trimmed.is_none_or(|at| at.elapsed() >= TRIM_EVERY) {
                trimmed = Some(Instant::now());
                if let Err(e) = self.trim(recorder, &mut room)
                    && let Some(trouble) = trim_troubles.news(format!("remove old files: {}", text_of(&e)))
                {
                    self.tell("journal-error", &trouble);
                }
            }
            sleep(LOOK);
        }
        told
    }
}
