//! Collects the events of a reader for the log. Consecutive messages become one line.

use crate::keys::Keys;
use crate::log::{Entry, Fact, Log, Time, now};
use crate::payload::{Identity, Marks, recognise};
use anyhow::Result;
use shmcast::{Clock, Event, Message};
use std::time::{Duration, Instant};

/// The age of messages that are published with an old time.
pub(super) const AGE_NS: u128 = 3_600_000_000_000;

/// Longest time for which a received event stays in memory before it is written to the log.
const UNWRITTEN: Duration = Duration::from_millis(20);

/// Collects events.
#[derive(Debug)]
pub(super) struct Recorder {
    channel: String,
    /// The clock with which the messages' publish times were read.
    clock: Option<Clock>,
    run: Option<Run>,
    before: Option<Identity>,
    /// The last message since the reader's last seek.
    newest: Option<Identity>,
    /// The sequence at which the reader continued after a lap; 0 if a message has arrived since then.
    resumed_at: u64,
    ready: Vec<Entry<Fact>>,
    written: Instant,
    /// Events so far.
    pub(super) events: u64,
    /// The time when the present call began.
    pub(super) call_began: Time,
    /// The sequence at which the last stall was noted.
    stalled_at: u64,
    /// The time spent on noting events. This time must not count as the library's time.
    pub(super) noting: Duration,
}

#[derive(Debug)]
struct Run {
    sequence: u64,
    first: Identity,
    count: u32,
    bytes: u64,
    old: u32,
}

impl Recorder {
    pub(super) fn new(channel: String, clock: Option<Clock>) -> Self {
        Self {
            channel,
            clock,
            run: None,
            before: None,
            newest: None,
            resumed_at: 0,
            ready: Vec::new(),
            written: Instant::now(),
            events: 0,
            call_began: 0,
            stalled_at: 0,
            noting: Duration::ZERO,
        }
    }

    /// Returns the message that the reader received last. Returns `None` if the reader has received no message since the last `seek`.
    pub(super) fn newest(&self) -> Option<Identity> {
        self.newest
    }

    /// Returns the sequence at which the reader continued after the last lap; 0 if a message has arrived after that lap.
    pub(super) fn resumed_at(&self) -> u64 {
        self.resumed_at
    }

    pub(super) fn note(&mut self, event: Event<'_>) {
        let began = Instant::now();
        self.events += 1;
        self.seen(event);
        self.noting += began.elapsed();
    }

    fn seen(&mut self, event: Event<'_>) {
        let fact = match event {
            Event::Message(message) => return self.message(&message),
            Event::Lapped(lapped) => Fact::Lapped { missed: lapped.missed, resumed_at: lapped.resumed_at },
            Event::Gap { from, to } => Fact::Gap { from, to },
            Event::Lost { from, to, cause } => Fact::Lost { from, to, cause: cause.name().to_owned() },
            Event::Live { sequence } => Fact::Live { sequence, since: self.call_began },
            Event::NewEpoch { epoch } => Fact::NewEpoch { epoch },
            Event::PublisherGone { epoch } => Fact::PublisherGone { epoch },
            Event::NewSession { session } => {
                Fact::NewSession { identity: String::from_utf8_lossy(&session).trim_end().to_owned() }
            }
            Event::End => Fact::End,
            #[allow(unreachable_patterns, reason = "the library may come to know further events")]
            other => match format!("{other:?}") {
                text if text.starts_with("Restarted") => Fact::Restarted,
                event => Fact::Unknown { event },
            },
        };
        self.fact(fact);
    }

    /// Notes a fact that is not a message. Ends the present run of messages first, so that the log keeps the order.
    pub(super) fn fact(&mut self, fact: Fact) {
        self.end_run();
        let breaks = |fact: &Fact| {
            matches!(
                fact,
                Fact::Lapped { .. }
                    | Fact::Lost { .. }
                    | Fact::Sought { .. }
                    | Fact::Restarted
                    | Fact::NewEpoch { .. }
            )
        };
        if breaks(&fact) {
            self.before = None;
        }
        if matches!(fact, Fact::Sought { .. }) {
            self.newest = None;
        }
        match fact {
            Fact::Lapped { resumed_at, .. } => self.resumed_at = resumed_at,
            Fact::Lost { to, .. } => self.resumed_at = to + 1,
            _ => {}
        }
        self.ready.push(Entry { at: now(), what: fact });
    }

    /// Notes that the recorder of the channel's journal makes no progress. Notes this only once for each sequence.
    pub(super) fn stalled(&mut self, sequence: u64) {
        if std::mem::replace(&mut self.stalled_at, sequence) != sequence {
            self.fact(Fact::Stalled { sequence });
        }
    }

    pub(super) fn message(&mut self, message: &Message<'_>) {
        if message.conflated.is_some_and(|conflated| self.newest_of_key(message, conflated)) {
            return;
        }
        let marks = Marks { tag: message.tag, key: message.key };
        let Some(who) = recognise(&self.channel, self.before, marks, message.payload) else {
            self.before = None;
            let head: String = message.payload.iter().take(24).map(|byte| format!("{byte:02x}")).collect();
            let (sequence, length) = (message.sequence, message.payload.len());
            return self.fact(Fact::Odd { sequence, length, tag: marks.tag, key: marks.key, head });
        };
        (self.before, self.newest, self.resumed_at) = (Some(who), Some(who), 0);
        let bytes = message.payload.len() as u64;
        let age = self.clock.map_or(0, |clock| clock.ns_since(message.time));
        let old = u32::from(u128::from(age) > AGE_NS / 2);
        if let Some(run) = &mut self.run
            && run.sequence + u64::from(run.count) == message.sequence
            && run.first.publisher == who.publisher
            && run.first.counter + run.count == who.counter
        {
            run.count += 1;
            run.bytes += bytes;
            run.old += old;
            return;
        }
        self.end_run();
        self.run = Some(Run { sequence: message.sequence, first: who, count: 1, bytes, old });
    }

    /// Notes a message of the board. Returns false if its bytes are wrong.
    fn newest_of_key(&mut self, message: &Message<'_>, conflated: u64) -> bool {
        let marks = Marks { tag: message.tag, key: message.key };
        let (sequence, length) = (message.sequence, message.payload.len());
        if let Some(who) = recognise(&self.channel, None, marks, message.payload) {
            self.fact(Fact::Newest { sequence, message: who, length, conflated });
            (self.before, self.newest, self.resumed_at) = (None, Some(who), 0);
            return true;
        }
        let Some(keys) = Keys::of(&self.channel).filter(|keys| keys.end == length) else { return false };
        let (zeros, key) = message.payload.split_at(keys.start);
        match keys.parse(key).filter(|_| zeros.iter().all(|byte| *byte == 0)) {
            Some(key) => self.fact(Fact::Forgotten { sequence, key }),
            None => return false,
        }
        true
    }

    fn end_run(&mut self) {
        if let Some(Run { sequence, first, count, bytes, old }) = self.run.take() {
            self.ready.push(Entry { at: now(), what: Fact::Got { sequence, first, count, bytes, old } });
        }
    }

    /// Writes the events seen so far, if the last write is long enough ago, or if `at_once` is true.
    pub(super) fn flush(&mut self, log: &mut Log, at_once: bool) -> Result<()> {
        if !at_once && self.written.elapsed() < UNWRITTEN {
            return Ok(());
        }
        self.end_run();
        log.write_all(&self.ready)?;
        self.ready.clear();
        self.written = Instant::now();
        Ok(())
    }
}
