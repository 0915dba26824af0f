//! State that the threads of one egress share: the sending thread, the repair thread, and the thread that writes the state file.

use super::origins::run_of;
use super::proto::session::Session;
use super::proto::term::Terms;
use super::renewal::Renewal;
use super::socket::RefusedSettings;
use super::state::{Progress, StateFile};
use super::status::{Board, Life, RepairCounters, SendCounters};
use super::thread::wall_ns;
use super::waiting::Waiting;
use shmcast::Subscriber;
use shmcast::hosting::{fault, session_identity, session_words};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

mod live;
pub(super) use live::{LiveCopy, LiveTable};

/// State that the threads of one egress share.
#[derive(Debug)]
pub(super) struct Sending {
    /// Whether this egress was told to leave.
    pub(super) leave: AtomicBool,
    pub(super) life: Arc<Life>,
    pub(super) counters: Board<SendCounters>,
    pub(super) repair: Board<RepairCounters>,
    pub(super) live: LiveTable,
    /// The new sending sockets of lines that were opened again.
    pub(super) renewal: Renewal,
    /// Receiving sockets of lines that were opened again. They are only used if there are other egresses of the stream.
    pub(super) ears: Renewal,
    /// The reopened socket for the group of plain repairs. The repair thread takes this socket.
    pub(super) groups: Renewal,
    /// The number of bytes that live packets have taken on the wire so far.
    pub(super) live_bytes: AtomicU64,
    /// The name of the session that is sent: eight bytes in the first word, and two in the second. During a change of the session, a reader
    /// can get one word of each session, and so a name that neither session has.
    pub(super) session: [AtomicU64; 2],
    /// The sequence after the last message that is being sent. Repairs never go beyond this sequence.
    pub(super) next: AtomicU64,
    /// The sequence after the last message that was sent on every line. The state file names this sequence.
    sent: AtomicU64,
    /// The identity of the sent ring's run, as [`run_of`] returns it.
    ring: Mutex<[u64; 2]>,
    /// The first sequence that was sent in the session, as far as this bridge knows.
    pub(super) begin: AtomicU64,
    /// Grows by one when a change to another ring begins, and again when the change ends. So the number is odd during a change.
    changes: AtomicU64,
    /// The state file, and the progress that was last written to it; `None` if there is no state file.
    pub(super) state: Mutex<Option<(StateFile, Progress)>>,
    pub(super) state_errors: AtomicU64,
    /// The last error of writing the state file.
    state_error: Mutex<Option<String>>,
    pub(super) state_renewed: AtomicU64,
    /// Whether this egress was told to take over.
    pub(super) takes_over: AtomicBool,
    /// Receivers report sessions that are later than the session that is sent. This is the highest term of the reported sessions; 0 before
    /// the first report. A term is the number in a session's name.
    pub(super) told: AtomicU64,
    /// The number of receivers that request repairs, and the longest of their round trips in microseconds.
    pub(super) group: AtomicU64,
    pub(super) longest_us: AtomicU64,
}

/// The last progress of an egress that has stopped.
#[derive(Debug, Clone, Copy)]
pub struct Stopped {
    pub(super) progress: Progress,
    /// The first sequence that this bridge sent in the session, as far as it knows.
    pub(super) begin: u64,
}

/// The time between two writes of the progress to the state file.
const NOTE_EVERY: Duration = Duration::from_millis(2);
/// The time between two checks of the state file. A check writes the file again if the file was removed or moved, or if the last write
/// failed.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The start of 2020, in nanoseconds since 1970. Terms that come from the clock count half seconds from this time. Their six digits last
/// until 2054.
const TERM_ZERO_NS: u64 = 1_577_836_800_000_000_000;
const TERM_STEP_NS: u64 = shmcast::hosting::STREAM_STEP_NS;

/// Converts a time to a term, the number in a session's name. The time is given in nanoseconds since 1970.
pub fn term_at(unix_ns: u64) -> u64 {
    unix_ns.saturating_sub(TERM_ZERO_NS) / TERM_STEP_NS
}

impl Sending {
    /// Makes the state. `refusals` come from the sockets. `next` is the first sequence that will be sent.
    pub(super) fn new(
        refusals: RefusedSettings,
        waiting: Waiting,
        leases: usize,
        next: u64,
        state: Option<(StateFile, Progress)>,
    ) -> Self {
        Self {
            leave: AtomicBool::new(false),
            life: Arc::new(Life::new(refusals.0, waiting)),
            counters: Board::default(),
            repair: Board::default(),
            live: LiveTable::new(leases),
            renewal: Renewal::default(),
            ears: Renewal::default(),
            groups: Renewal::default(),
            live_bytes: AtomicU64::new(0),
            session: Default::default(),
            next: AtomicU64::new(next),
            sent: AtomicU64::new(next),
            ring: Mutex::default(),
            begin: AtomicU64::new(next),
            changes: AtomicU64::new(0),
            state: Mutex::new(state),
            state_errors: AtomicU64::new(0),
            state_error: Mutex::default(),
            state_renewed: AtomicU64::new(0),
            takes_over: AtomicBool::new(false),
            told: AtomicU64::new(0),
            group: AtomicU64::new(0),
            longest_us: AtomicU64::new(0),
        }
    }

    pub(super) fn session(&self) -> Session {
        let words = [0, 1].map(|half: usize| self.session[half].load(Ordering::Relaxed));
        Session::from_bytes(session_identity(words))
    }

    /// Begins a change to another ring. Until [`end_change`](Self::end_change), session, ring and sequences do not belong together. Only
    /// the sending thread is allowed to call this.
    pub(super) fn begin_change(&self) {
        let number = self.changes.load(Ordering::Relaxed);
        self.changes.store(number + 1, Ordering::Relaxed);
        // SYNC POINT: feed-change. A thread that sees anything of the change also sees the odd number.
        fence(Ordering::Release);
    }

    /// Ends the change to another ring that [`begin_change`](Self::begin_change) has begun.
    pub(super) fn end_change(&self) {
        let number = self.changes.load(Ordering::Relaxed);
        // SYNC POINT: feed-changed. A thread that sees the even number also sees the whole change.
        self.changes.store(number + 1, Ordering::Release);
    }

    /// Returns the number of the last change to another ring; `None` during a change.
    pub(super) fn last_change(&self) -> Option<u64> {
        // SYNC POINT: feed-changed.
        Some(self.changes.load(Ordering::Acquire)).filter(|number| number.is_multiple_of(2))
    }

    /// Returns the session that is sent, and the sequence after the last sent message. `change` is the number of the sending thread's
    /// change to the caller's ring. Returns `None` if the sending thread has left the caller's ring, or is just changing to another ring.
    pub(super) fn feed(&self, change: u64) -> Option<(Session, u64)> {
        let feed = (self.session(), self.next.load(Ordering::Acquire));
        // SYNC POINT: feed-change.
        fence(Ordering::Acquire);
        let is_of_ring = self.changes.load(Ordering::Relaxed) == change;
        (is_of_ring || fault!("a_session_is_answered_from_another_ring")).then_some(feed)
    }

    /// The identity of the sent ring's run, as [`run_of`] returns it.
    pub(super) fn ring(&self) -> [u64; 2] {
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a receiver follows `session`. Returns whether `session` is a later session of our channel. A session that is too far
    /// ahead is ignored.
    pub(super) fn note_told(&self, session: Session) -> bool {
        let ours = self.session();
        let (Some(own), Some(told)) = (ours.epoch(), session.epoch()) else { return false };
        let terms = Terms { clock: term_at(wall_ns()), own: Some(own), ..Terms::default() };
        let is_later = session.tag() == ours.tag() && told > own && told <= terms.most();
        if is_later {
            self.told.fetch_max(told, Ordering::Relaxed);
        }
        is_later
    }

    /// Returns the highest term of the later sessions that receivers have reported, or `None` if no receiver reported one.
    pub(super) fn told_term(&self) -> Option<u64> {
        Some(self.told.load(Ordering::Relaxed)).filter(|term| *term > 0)
    }

    /// Notes which session this bridge sends, from which ring, and where the session began.
    ///
    /// - A resumed session began where the state file or the previous bridge says.
    /// - Any other session began when the channel last restarted. That might be several rings ago: without a state file, this bridge does
    ///   not know which messages an earlier bridge has sent in this session, and receivers might still request these messages.
    pub(super) fn note_start(
        &self,
        subscriber: &Subscriber,
        session: Session,
        is_resumed: bool,
        begun: Option<u64>,
    ) {
        self.set_ring(Some(run_of(subscriber.header())));
        let next = subscriber.next_sequence();
        let is_mirror = subscriber.remote_session() == Some(*session.as_bytes());
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = state.as_ref().filter(|_| is_resumed).and_then(|(file, _)| file.begin(session));
        let known = noted.or(begun.filter(|_| !is_mirror));
        let unknown =
            if fault!("a_session_begins_with_its_bridge") { next } else { subscriber.first_since_restart() };
        let begin = known.unwrap_or(unknown);
        self.begin.store(begin, Ordering::Release);
        drop(state);
        self.write(|file, progress| match is_resumed {
            true => file.write(progress, true),
            false => file.write_begin(progress, begin),
        });
    }

    /// Notes that a session begins with the sequence `begin`, and is sent from `next` on. Call this before the session's first packet. If a
    /// session continues after it had ended, its beginning stays the same.
    pub(super) fn note_begin(&self, ring: Option<[u64; 2]>, session: Session, begin: u64, next: u64) {
        self.set_ring(ring);
        if session == self.session() {
            return self.note_ring(ring, session, next);
        }
        self.begin.store(begin, Ordering::Release);
        self.write(|file, progress| {
            *progress = Progress { ring: ring.unwrap_or(progress.ring), session, next };
            file.write_begin(progress, begin)
        });
    }

    /// Notes which ring a session is sent from, and the next sequence to send.
    pub(super) fn note_ring(&self, ring: Option<[u64; 2]>, session: Session, next: u64) {
        self.write(|file, progress| {
            *progress = Progress { ring: ring.unwrap_or(progress.ring), session, next };
            file.write(progress, true)
        });
    }

    fn set_ring(&self, ring: Option<[u64; 2]>) {
        if let Some(ring) = ring {
            *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = ring;
        }
    }

    /// Returns the egress's progress. After the egress's threads have ended, this is the place where the egress stopped.
    pub(super) fn stopped(&self) -> Stopped {
        let ring = self.ring();
        let next = self.sent.load(Ordering::Acquire);
        let progress = Progress { ring, session: self.session(), next };
        Stopped { progress, begin: self.begin.load(Ordering::Acquire) }
    }

    /// Notes that all messages before `next` were sent on every line.
    pub(super) fn note_sent(&self, next: u64) {
        self.sent.store(next, Ordering::Release);
    }

    /// Writes the progress of the session to the state file.
    ///
    /// An earlier mistake: the file named messages that still waited for the link. A bridge that was killed then never sent them.
    pub(super) fn note_progress(&self) {
        let (session, next) = (self.session(), self.sent.load(Ordering::Acquire));
        self.write(|file, progress| {
            if progress.session != session || progress.next == next {
                return Ok(());
            }
            progress.next = next;
            file.write(progress, false)
        });
    }

    fn write(&self, change: impl FnOnce(&mut StateFile, &mut Progress) -> io::Result<()>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((file, progress)) = &mut *state {
            if let Err(e) = change(file, progress) {
                *self.state_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
                self.state_errors.fetch_add(1, Ordering::Relaxed);
            }
            self.state_renewed.store(file.renewed(), Ordering::Relaxed);
        }
    }

    /// Returns the last error of writing the state file.
    pub(super) fn state_error(&self) -> Option<String> {
        self.state_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn keep_noting(&self) {
        let mut looked = Instant::now();
        while !self.life.is_stopping() {
            std::thread::sleep(NOTE_EVERY);
            self.note_progress();
            // While nothing is sent, `note_progress` writes nothing. So check the file here.
            if looked.elapsed() >= LOOK_EVERY {
                looked = Instant::now();
                self.write(|file, progress| file.keep(progress));
            }
        }
        self.note_progress();
        self.write(|file, progress| file.keep(progress));
    }

    pub(super) fn set_session(&self, session: Session) {
        let words = session_words(*session.as_bytes());
        self.session.iter().zip(words).for_each(|(half, word)| half.store(word, Ordering::Relaxed));
        self.life.note_session(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::session::EPOCH_LIMIT;
    use crate::proto::term::MOST_AHEAD;
    use crate::spec::WaitMode;
    use crate::waiting::Choice;

    #[test]
    fn the_state_file_names_what_was_sent_and_not_what_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        let session = Session::of_channel("T", 1).unwrap();
        let state = (StateFile::open(&path).unwrap().0, Progress { ring: [1, 2], session, next: 1 });
        let waiting = Choice::of(WaitMode::Block).shown;
        let shared = Sending::new(RefusedSettings::default(), waiting, 0, 1, Some(state));
        shared.note_begin(Some([1, 2]), session, 1, 1);
        shared.set_session(session);
        shared.next.store(50, Ordering::Release);
        shared.note_sent(20);
        shared.note_progress();
        let noted = crate::state::noted(&path).map(|progress| progress.next);
        assert_eq!((noted, shared.stopped().progress.next), (Some(20), 20));
        assert_eq!(shared.feed(0).map(|(_, next)| next), Some(50), "repairs go up to what is on its way");
    }

    /// A term that is too high to be believed must not hide the true term.
    #[test]
    fn the_highest_term_told_is_one_that_is_believed() {
        let shared = Sending::new(RefusedSettings::default(), Choice::of(WaitMode::Block).shown, 0, 1, None);
        let of = |tag: &str, epoch| Session::of_channel(tag, epoch).unwrap();
        let now = term_at(wall_ns());
        shared.set_session(of("T", now));
        assert!(!shared.note_told(of("T", now)) && !shared.note_told(of("U", now + 1)));
        assert_eq!(shared.told_term(), None);
        assert!(shared.note_told(of("T", now + 1)));
        for far in [now + 2 * MOST_AHEAD, EPOCH_LIMIT - 1] {
            assert!(!shared.note_told(of("T", far)));
        }
        assert_eq!(shared.told_term(), Some(now + 1));
        shared.set_session(of("T", 7));
        assert!(shared.note_told(of("T", now + 2)), "our own channel may be old");
    }
}
