//! A local channel that has the messages of another host, under the same sequences as on that host.

use shmcast::hosting::fault;
use shmcast::{GateName, Mark, PublishError, Publisher};
use std::time::{Duration, Instant};

use super::proto::session::Session;
use super::proto::wire::Meta;
use super::times::OriginTimes;

/// For this long, a delivery that a gate holds up is tried again every [`SOON`]. After that, it is tried again every [`LATER`].
const IMPATIENT_FOR: Duration = Duration::from_millis(2);
/// The time between two tries of a delivery that a gate has held up for less than [`IMPATIENT_FOR`].
const SOON: Duration = Duration::from_micros(100);
/// The time between two tries of a delivery that a gate has held up for [`IMPATIENT_FOR`] or longer.
const LATER: Duration = Duration::from_millis(1);
/// The time between two checks of the channel's files.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The error of a channel whose files were removed.
const REMOVED: &str = "the channel's files were removed or moved, so new readers do not find the channel: start the bridge again, and it makes \
     the channel anew";

/// The local channel of a receiving end.
///
/// No call waits for a gate of the channel. If a gate holds up a delivery, the call returns false and changes nothing. The caller keeps the
/// delivery, and makes the same call again later. A gate that is configured to drop slow readers drops them here, too.
#[derive(Debug)]
pub struct Local {
    /// The channel's publisher; `None` between the end of a session and the beginning of the next one.
    pub publisher: Option<Publisher>,
    /// Decides which times messages get: the times of their publication on the other host, or the times of their arrival here.
    pub times: OriginTimes,
    /// The error after which the channel accepts no more messages.
    pub error: Option<String>,
    /// Counts of the messages so far.
    pub counts: LocalCounts,
    /// Whether the channel is new, and no session has begun in it.
    is_new: bool,
    /// Whether the channel names no session, and no session has begun in it. Such a channel can have sequences, for example if its memory
    /// was lost.
    has_no_session: bool,
    /// Whether the channel is as its publisher found it: no delivery has passed yet.
    is_as_found: bool,
    /// The time of the last check of the channel's files.
    looked: Instant,
    /// The gate that holds up the next delivery; `None` if no gate does.
    held: Option<Held>,
}

/// A gate that holds up a delivery.
#[derive(Debug, Clone, Copy)]
struct Held {
    gate: GateName,
    /// The time of the first try that failed. No delivery has passed since then.
    since: Instant,
    /// The time of the last try.
    tried: Instant,
}

/// Counts of the messages of a local channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LocalCounts {
    /// Messages published.
    pub published: u64,
    /// Messages that were reported to readers as lost.
    pub missing: u64,
    /// Messages that are longer than the channel allows. `missing` includes them.
    pub too_large: u64,
    /// Messages that the channel already had.
    pub behind: u64,
}

impl Local {
    /// Makes the local channel of a publisher that was just opened.
    pub fn new(publisher: Publisher, mut times: OriginTimes) -> Local {
        times.begin(publisher.clock());
        let has_no_session = publisher.remote_session().is_none();
        let is_new = has_no_session && publisher.next_sequence() == 1;
        Local {
            publisher: Some(publisher),
            times,
            error: None,
            counts: LocalCounts::default(),
            is_new,
            has_no_session,
            is_as_found: true,
            looked: Instant::now(),
            held: None,
        }
    }

    /// Publishes one message. If earlier messages have not arrived, first reports them to readers as lost. Leaves out a message that the
    /// channel already has. Does nothing while the channel is closed. Returns false if a gate holds the message up.
    #[inline]
    #[must_use]
    pub fn publish(&mut self, sequence: u64, data: &[u8], meta: Meta) -> bool {
        if !self.skip_to(sequence) {
            return false;
        }
        let Some(publisher) = &mut self.publisher else { return true };
        if publisher.next_sequence() > sequence {
            self.counts.behind += 1;
            return true;
        }
        let (mark, time_ns) = match fault!("marks_stay_behind") {
            true => (Mark::default(), 0),
            false => (Mark { tag: meta.tag, key: meta.key }, meta.time_ns),
        };
        let published = match self.times.ticks_of(time_ns) {
            Some(time) => publisher.try_publish_at(data, mark, time),
            None => publisher.try_publish_with(data, mark),
        };
        match published {
            Ok(_) => {
                self.counts.published += 1;
                self.is_as_found = false;
                self.held = None;
                true
            }
            // The message is larger than the local channel allows. It is reported to readers like any other loss.
            Err(PublishError::TooLarge(_)) => {
                let is_told = self.announce(|publisher| publisher.gap(sequence));
                self.counts.too_large += u64::from(is_told);
                self.counts.missing += u64::from(is_told);
                is_told
            }
            Err(error) => self.is_over(&error),
        }
    }

    /// Reports to readers as lost all messages before `next` that have not arrived. Returns false if a gate holds the report up.
    #[inline]
    #[must_use]
    pub fn skip_to(&mut self, next: u64) -> bool {
        let Some(publisher) = &self.publisher else { return true };
        let due = publisher.next_sequence();
        if due >= next {
            return true;
        }
        let is_told = self.announce(|publisher| publisher.gap(next - 1));
        self.counts.missing += if is_told { next - due } else { 0 };
        is_told
    }

    /// Whether the channel names no session, and no session has begun in it. Messages before the first session are not requested.
    pub fn has_no_session(&self) -> bool {
        self.has_no_session
    }

    /// Begins a session at the message `next`: does the same as [`skip_to`](Self::skip_to). In a new channel, the messages before `next` do
    /// not count as missing, because nobody asked for them.
    #[cold]
    #[must_use]
    pub fn begin_at(&mut self, next: u64) -> bool {
        let missing = self.counts.missing;
        let is_told = self.skip_to(next);
        if is_told && std::mem::take(&mut self.is_new) {
            self.counts.missing = missing;
        }
        self.has_no_session &= !is_told;
        is_told
    }

    /// Reports the session to readers, unless the channel already has this session. Returns false if a gate holds the report up.
    #[cold]
    #[must_use]
    pub fn session(&mut self, session: Session) -> bool {
        self.announce(|publisher| match publisher.remote_session() == Some(*session.as_bytes()) {
            true => Ok(()),
            false => publisher.session(*session.as_bytes()),
        })
    }

    /// Ends the stream for readers, and closes the channel. Returns false if a gate holds the end up.
    #[cold]
    #[must_use]
    pub fn close(&mut self) -> bool {
        let is_free = self.announce(|_| Ok(()));
        if is_free && let Some(publisher) = self.publisher.take() {
            publisher.close();
        }
        is_free
    }

    /// Leaves the channel without an end of the stream. Readers wait for the next publisher.
    #[cold]
    pub fn leave(&mut self) {
        if let Some(publisher) = self.publisher.take() {
            publisher.leave_open();
        }
    }

    /// Checks once a second whether the channel's files were removed. If so, the channel accepts no more messages, because new readers would
    /// not find them.
    pub fn look_for_files(&mut self) {
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        if self.publisher.as_ref().is_some_and(Publisher::is_removed) {
            self.error.get_or_insert_with(|| REMOVED.to_owned());
            self.leave();
        }
    }

    /// Returns the gate that holds up the next delivery, and for how long no delivery has passed; `None` if no gate does.
    pub fn held(&self) -> Option<(GateName, Duration)> {
        self.held.map(|held| (held.gate, held.since.elapsed()))
    }

    /// Whether the delivery that a gate holds up should be tried again now: [`try_again_after`](Self::try_again_after) has passed since the
    /// last try. True if no gate holds up a delivery.
    pub fn is_try_due(&self) -> bool {
        self.held.is_none_or(|held| held.tried.elapsed() >= self.try_again_after())
    }

    /// Whether the stream had ended before the bridge began, and no delivery has passed since.
    pub fn is_ended_as_found(&self) -> bool {
        self.is_as_found && self.publisher.as_ref().is_some_and(Publisher::follows_end)
    }

    /// Returns how long the caller should wait before it tries again a delivery that the channel has not accepted.
    pub fn try_again_after(&self) -> Duration {
        match self.held() {
            Some((_, held_for)) if held_for < IMPATIENT_FOR => SOON,
            Some(_) | None => LATER,
        }
    }

    /// Publishes a control record, unless a gate holds it up.
    #[cold]
    fn announce(&mut self, record: impl FnOnce(&mut Publisher) -> Result<(), PublishError>) -> bool {
        let Some(publisher) = &mut self.publisher else { return true };
        match publisher.try_make_way().and_then(|()| record(publisher)) {
            Ok(()) => {
                self.is_as_found = false;
                self.held = None;
                true
            }
            Err(error) => self.is_over(&error),
        }
    }

    /// Notes an error of the publisher. Returns false if a gate holds the delivery up. After any other error the channel accepts no more
    /// messages: another publisher took the channel, or the channel's sequences are used up.
    ///
    /// An earlier mistake: a gate that refused one message ended the bridge, and so the streams of all readers.
    #[cold]
    fn is_over(&mut self, error: &PublishError) -> bool {
        if let PublishError::Full { gate, .. } = *error {
            let tried = Instant::now();
            let since = self.held.map_or(tried, |held| held.since);
            self.held = Some(Held { gate, since, tried });
            return false;
        }
        self.error.get_or_insert_with(|| error.to_string());
        self.leave();
        true
    }
}

/// Leaves the stream open when the bridge ends, because the stream continues at its source, and the next bridge continues it here. If the
/// stream had ended before the bridge began, and no delivery has passed since, closes the channel again.
impl Drop for Local {
    fn drop(&mut self) {
        if self.is_ended_as_found() {
            let _ = self.close();
        }
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmcast::{Event, Gate, GateState, State, Subscriber};
    use shmcast_testkit::wait_until;

    const RING: u64 = 64 << 10;

    /// Makes a local channel with `gate`, a reader that takes the gate, and a reader that does not take it.
    fn local(dir: &tempfile::TempDir, gate: Gate) -> (Local, Subscriber, Subscriber) {
        let publisher = Publisher::builder("t").dir(dir.path()).capacity(RING).gate(gate).open().unwrap();
        let reader = || Subscriber::builder("t").dir(dir.path());
        let (slow, other) = (reader().gate("g").open().unwrap(), reader().open().unwrap());
        (Local::new(publisher, OriginTimes::new(None)), slow, other)
    }

    /// Publishes from `next` on, until a gate holds a message up. Returns the sequence of this message.
    fn fill(local: &mut Local, mut next: u64) -> u64 {
        while local.publish(next, &[0; 100], Meta::default()) {
            next += 1;
            assert!(next < 100_000, "nothing holds it up");
        }
        next
    }

    /// Reads all events that are waiting. Returns the sequence that is expected next.
    fn read(reader: &mut Subscriber, mut next: u64) -> u64 {
        while let Some(event) = reader.try_recv().unwrap() {
            match event {
                Event::Message(message) => {
                    assert_eq!(message.sequence, next);
                    next += 1;
                }
                Event::Gap { from, to } => {
                    assert_eq!(from, next);
                    next = to + 1;
                }
                Event::NewSession { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        next
    }

    /// An earlier mistake: the first message that a gate refused ended the stream of each reader.
    #[test]
    fn a_gate_that_refuses_holds_every_delivery_up_and_ends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (mut local, mut slow, mut other) =
            local(&dir, Gate::new("g").refuse().wait(Duration::from_secs(100)));
        let (mut slows, mut others, mut published) = (1, 1, 0);
        let mut next = 1;
        let session = |epoch| Session::of_channel("TEST", epoch).unwrap();
        for round in 1..20 {
            let first = next;
            next = fill(&mut local, next);
            published += next - first;
            let start = Instant::now();
            assert!(!local.publish(next, &[0; 100], Meta::default()));
            assert!(start.elapsed() < Duration::from_secs(90), "a call waits for the gate");
            assert_eq!(local.held().map(|(gate, _)| gate.to_string()).as_deref(), Some("g"));
            assert_eq!((local.counts.published, local.counts.missing), (published, (round - 1) * 8));
            others = read(&mut other, others);
            slows = read(&mut slow, slows);
            assert_eq!((others, slows), (next, next), "no reader misses a message, and none is told an end");
            assert!(local.publish(next, &[0; 20_000], Meta::default()), "told as lost: it is too large");
            assert!(
                local.skip_to(next + 8) && local.session(session(round)) && local.session(session(round))
            );
            next += 8;
        }
        assert_eq!((local.error.as_deref(), local.counts.behind), (None, 0));
    }

    #[test]
    fn the_end_waits_for_a_gate_too() {
        let dir = tempfile::tempdir().unwrap();
        let (mut local, mut slow, mut other) = local(&dir, Gate::new("g").refuse());
        let next = fill(&mut local, 1);
        // Fill the ring with small records, because the end needs less room than a message.
        let publisher = local.publisher.as_mut().unwrap();
        while publisher.try_make_way().is_ok() {
            publisher.session(*b"another on").unwrap();
        }
        assert!(!local.close() && local.publisher.is_some(), "the end is held up");
        assert_eq!((read(&mut other, 1), read(&mut slow, 1)), (next, next));
        assert!(local.close() && local.publisher.is_none());
        assert_eq!(
            (other.try_recv().unwrap(), slow.try_recv().unwrap()),
            (Some(Event::End), Some(Event::End))
        );
    }

    #[test]
    fn a_bridge_that_ends_or_fails_ends_no_stream() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Publisher::builder("t").dir(dir.path()).capacity(RING).open().unwrap();
        let mut first = Local::new(open(), OriginTimes::new(None));
        let mut reader = Subscriber::builder("t").dir(dir.path()).open().unwrap();
        assert!(first.publish(1, b"1", Meta::default()));
        drop(first);
        assert_eq!((read(&mut reader, 1), reader.try_recv().unwrap()), (2, None));
        let mut second = Local::new(open(), OriginTimes::new(None));
        assert!(second.publish(u64::MAX, b"no such sequence", Meta::default()));
        assert!(second.error.is_some() && second.publisher.is_none(), "{:?}", second.error);
        assert_eq!(reader.try_recv().unwrap(), Some(Event::NewEpoch { epoch: 2 }));
        assert_eq!(reader.try_recv().unwrap(), None);
    }

    /// An earlier mistake: a receiver that began in the middle of a feed counted all earlier messages as lost.
    #[test]
    fn messages_before_the_beginning_of_a_new_channel_are_not_missing() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Publisher::builder("t").dir(dir.path()).capacity(RING).open().unwrap();
        let session = |epoch| Session::of_channel("TEST", epoch).unwrap();
        let mut local = Local::new(open(), OriginTimes::new(None));
        assert!(local.has_no_session() && local.session(session(1)) && local.begin_at(10_000));
        assert_eq!((local.has_no_session(), local.counts.missing), (false, 0));
        assert!(local.publish(10_000, b"the first", Meta::default()) && local.skip_to(10_003));
        assert!(local.session(session(2)) && local.begin_at(10_010));
        assert_eq!(local.counts.missing, 9, "a later session");
        drop(local);
        let mut local = Local::new(open(), OriginTimes::new(None));
        assert!(!local.has_no_session() && local.begin_at(10_020));
        assert_eq!(local.counts.missing, 10, "a channel that was received before");
    }

    #[test]
    fn a_channel_that_had_ended_stays_closed_unless_something_came() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Publisher::builder("t").dir(dir.path()).capacity(RING).open().unwrap();
        let state = || Subscriber::builder("t").dir(dir.path()).open().unwrap().publisher_state().unwrap().1;
        let mut first = Local::new(open(), OriginTimes::new(None));
        assert!(first.publish(1, b"1", Meta::default()) && first.close());
        drop(first);
        for _ in 0..2 {
            let same = Local::new(open(), OriginTimes::new(None));
            assert_eq!(state(), State::Active);
            drop(same);
            assert_eq!(state(), State::Closed);
        }
        let next = |local: &mut Local, round| match round {
            0 => local.publish(2, b"2", Meta::default()),
            1 => local.skip_to(9),
            _ => local.session(Session::of_channel("TEST", 7).unwrap()),
        };
        for round in 0..3 {
            let mut local = Local::new(open(), OriginTimes::new(None));
            assert!(next(&mut local, round));
            drop(local);
            assert_eq!(state(), State::Active, "{round}: the feed goes on");
            open().close();
        }
    }

    #[test]
    fn a_channel_whose_files_were_removed_accepts_no_more_messages() {
        for is_moved in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let open = || Publisher::builder("t").dir(dir.path()).capacity(RING).open().unwrap();
            let mut local = Local::new(open(), OriginTimes::new(None));
            assert!(local.publish(1, b"1", Meta::default()));
            local.looked = Instant::now() - LOOK_EVERY;
            local.look_for_files();
            assert_eq!(local.error, None);
            match is_moved {
                true => std::fs::rename(dir.path().join("t"), dir.path().join("u")).unwrap(),
                false => std::fs::remove_dir_all(dir.path().join("t")).unwrap(),
            }
            // A new channel with the same name does not count as this publisher's channel.
            let _other = is_moved.then(open);
            wait_until("the removal to be noticed", || {
                local.look_for_files();
                local.error.is_some()
            });
            assert_eq!((local.error.as_deref(), local.publisher.is_none()), (Some(REMOVED), true));
        }
    }

    #[test]
    fn a_channel_that_is_left_waits_for_no_gate() {
        let dir = tempfile::tempdir().unwrap();
        let (mut local, _slow, mut other) =
            local(&dir, Gate::new("g").refuse().wait(Duration::from_secs(3_600)));
        let next = fill(&mut local, 1);
        let publisher = local.publisher.as_mut().unwrap();
        while publisher.try_make_way().is_ok() {
            publisher.session(*b"another on").unwrap();
        }
        drop(local);
        assert_eq!((read(&mut other, 1), other.try_recv().unwrap()), (next, None), "the stream stays open");
    }

    #[test]
    fn a_gate_that_drops_its_reader_does_so_after_its_wait() {
        let dir = tempfile::tempdir().unwrap();
        let wait = Duration::from_millis(50);
        let (mut local, _slow, mut other) = local(&dir, Gate::new("g").wait(wait));
        let next = fill(&mut local, 1);
        let start = Instant::now();
        wait_until("the gate to be dropped", || {
            std::thread::sleep(local.try_again_after());
            local.publish(next, &[0; 100], Meta::default())
        });
        assert!(start.elapsed() + Duration::from_millis(1) >= wait, "{:?}", start.elapsed());
        let gate = local.publisher.as_ref().unwrap().gates().remove(0);
        assert_eq!((gate.state, gate.dropped), (GateState::Dropped, 1));
        (next + 1..next + 200).for_each(|next| assert!(local.publish(next, &[0; 100], Meta::default())));
        assert_eq!((read(&mut other, 1), local.held()), (next + 200, None));
    }
}
