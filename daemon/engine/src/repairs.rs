//! A stream of the servers as a source of repairs for a bridge that receives lines.
//!
//! The bridge's thread `seek-NAME` waits here for answers; `nats-NAME` drives the connection, also while nobody asks.

use bytes::Bytes;
use futures_util::future::join_all;
use shmcast::{Event, History, LocateError, MAX_SEQUENCE, Preparation, Subscriber, SubscriberBuilder, Wait};
use shmcast_bridge::log::{Log as RepairLog, LogLine, LogSource, LogState, LogWord};
use shmcast_bridge::proto::receiver::Sample;
use shmcast_bridge::proto::replay::Fetched;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::{BridgeSpec, NatsSpec};
use shmcast_bridge::thread::{Clock, spawn};
use shmcast_bridge::times::Moment;
use shmcast_bridge::{Keys, KeysSeen};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::EngineError;
use crate::client::{Log, shown};
use crate::proto::repairs::{Entries, Repairs, Ring, Unread};
use crate::send::runtime;

/// How long one fetch may take altogether. Readers may wait for it: a receiver asks a log for what nobody else has.
const FETCH: Duration = Duration::from_secs(3);
/// The same for a look, for which nobody waits. It may take some dozen answers of servers that are far.
const LOOK: Duration = Duration::from_secs(20);
/// How many of the ring's newest messages are looked at for the beginning of the session.
const MOST_LOOKED_AT: u64 = 4_096;
/// How long one answer of the servers may take.
const ANSWER: Duration = Duration::from_secs(1);
/// Pause between two attempts to connect for the first time.
const AGAIN: Duration = Duration::from_secs(1);

/// The log that a receiver's spec names; `None` if it names none. `ring` is the channel that the bridge publishes into, which the log is
/// compared with. It connects by itself, now or later.
///
/// # Errors
/// [`EngineError::Bridge`] if the thread of the connection cannot be started.
pub fn source(spec: &BridgeSpec, ring: SubscriberBuilder) -> Result<Option<LogSource>, EngineError> {
    let Some(nats) = spec.receive.as_ref().and_then(|receive| receive.log.clone()) else { return Ok(None) };
    let runtime = runtime()?;
    let handle = runtime.handle().clone();
    let (life, over) = oneshot::channel::<()>();
    let drive = move || {
        // It ends when the other side is dropped, and takes the connection along.
        let _ = runtime.block_on(over);
    };
    drop(spawn(&format!("nats-{}", spec.title()), None, drive)?);
    let word = Arc::new(LogWord::default());
    // It delivers to nobody, so it is not shown as a reader, and what the ring has no more is of no interest.
    let builder = ring.page(false).history(History::Never).wait(Wait::Yield).prepare(Preparation::NONE);
    let stream = Stream {
        spec: spec.clone(),
        nats,
        handle,
        log: None,
        try_at: Instant::now(),
        until: Instant::now(),
        why: None,
    };
    let log = StreamLog {
        stream,
        ring: LocalRing { builder, session: None, open: None, samples: Vec::new() },
        repairs: Repairs::default(),
        keys: None,
        seen: KeysSeen::default(),
        clock: Clock::start(),
        word: word.clone(),
        _life: life,
    };
    Ok(Some(LogSource { log: Box::new(log), word }))
}

/// A stream that repairs come from.
struct StreamLog {
    stream: Stream,
    ring: LocalRing,
    repairs: Repairs,
    keys: Option<(Arc<Keys>, bool)>,
    seen: KeysSeen,
    clock: Clock,
    word: Arc<LogWord>,
    _life: oneshot::Sender<()>,
}

impl RepairLog for StreamLog {
    fn set_keys(&mut self, keys: Arc<Keys>, takes_open: bool) {
        self.keys = Some((keys, takes_open));
    }

    fn fetch(&mut self, line: &LogLine<'_>, first: u64) -> Fetched {
        let LogLine { session, floor, samples } = *line;
        if let Some((keys, takes_open)) = &self.keys
            && let Some(ring) = self.seen.changed(keys)
        {
            self.repairs.set_keys(ring, *takes_open);
        }
        self.ring.follow(session, floor);
        self.ring.samples = samples.iter().filter(|sample| sample.session == session).cloned().collect();
        self.stream.begin(if first == 0 { LOOK } else { FETCH });
        let (now_ns, with) = (self.clock.now_ns(), (&mut self.stream as _, &mut self.ring as _));
        let fetched = self.repairs.fetch(now_ns, (session, floor), first, with);
        let (state, why) = match fetched {
            Ok(_) => self.repairs.state(),
            Err(Unread) => (LogState::Away, self.stream.trouble()),
        };
        if let Some(log) = &self.stream.log {
            self.word.set_disconnects(log.link.disconnects());
        }
        self.word.enter(state, why);
        fetched.unwrap_or(Fetched::Failed)
    }
}

/// The stream, as far as it is reached.
struct Stream {
    spec: BridgeSpec,
    nats: NatsSpec,
    handle: Handle,
    log: Option<Log>,
    /// When to connect again, while there has been no connection yet.
    try_at: Instant,
    /// The end of the fetch that is under way.
    until: Instant,
    /// Why there is no connection.
    why: Option<String>,
}

impl Stream {
    fn begin(&mut self, limit: Duration) {
        self.until = Instant::now() + limit;
    }

    /// The reason why the last fetch failed.
    fn trouble(&self) -> Option<String> {
        let of_link = self.log.as_ref().and_then(|log| log.link.why());
        let silent = || format!("NATS servers {}: no answer about the stream", shown(&self.nats.servers));
        Some(of_link.or_else(|| self.why.clone()).unwrap_or_else(silent))
    }

    /// The log; connects if there has been no connection yet.
    fn reached(&mut self) -> Result<&Log, Unread> {
        if self.log.is_none() {
            if Instant::now() < self.try_at {
                return Err(Unread);
            }
            self.try_at = Instant::now() + AGAIN;
            let opening = Log::open(&self.spec, &self.nats);
            let opened = self.handle.block_on(async { tokio::time::timeout(FETCH, opening).await });
            match opened {
                Ok(Ok(log)) => (self.log, self.why) = (Some(log), None),
                Ok(Err(e)) => self.why = Some(e.to_string()),
                Err(_) => self.why = None,
            }
        }
        // A connection that broke comes back by itself. Until then nobody waits for it.
        self.log.as_ref().filter(|log| log.link.is_connected()).ok_or(Unread)
    }

    /// Waits for an answer, at most until the fetch is over.
    fn wait<T>(&mut self, ask: impl AsyncFnOnce(&Log) -> Option<T>) -> Result<T, Unread> {
        let handle = self.handle.clone();
        let until = tokio::time::Instant::from_std(self.until.min(Instant::now() + ANSWER));
        let log = self.reached()?;
        let answer = handle.block_on(async { tokio::time::timeout_at(until, ask(log)).await });
        answer.ok().flatten().ok_or(Unread)
    }
}

impl Entries for Stream {
    fn bounds(&mut self) -> Result<(u64, u64), Unread> {
        self.wait(async |log| log.bounds().await)
    }

    fn get(&mut self, from: u64) -> Result<Option<(u64, Bytes)>, Unread> {
        self.wait(async |log| log.get(from).await)
    }

    fn get_some(&mut self, from: u64, most: usize) -> Result<Vec<(u64, Bytes)>, Unread> {
        self.wait(async |log| {
            let gets = (from..from.saturating_add(most as u64)).map(|number| log.get(number));
            let mut some: Vec<(u64, Bytes)> =
                join_all(gets).await.into_iter().collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
            // A number that is not there gives the entry behind it.
            some.sort_by_key(|(number, _)| *number);
            some.dedup_by_key(|(number, _)| *number);
            Some(some)
        })
    }
}

/// The ring that the bridge publishes into, as the log is compared with it.
struct LocalRing {
    builder: SubscriberBuilder,
    /// The session that it is to have, and the first sequence of that.
    session: Option<(Session, u64)>,
    open: Option<Opened>,
    /// Messages of it as the lines brought them.
    samples: Vec<Sample>,
}

/// A ring that has the session.
struct Opened {
    subscriber: Subscriber,
    moment: Moment,
    /// A sequence from which on all messages are of the session.
    begin: u64,
}

impl LocalRing {
    /// A session that begins may have a ring of its own.
    fn follow(&mut self, session: Session, floor: u64) {
        if self.session != Some((session, floor)) {
            (self.session, self.open) = (Some((session, floor)), None);
        }
    }

    /// The ring, if it has the session. One that has another may be an old one, so the next look opens it again.
    fn opened(&mut self) -> Option<&mut Opened> {
        let of = self.session.map(|(session, _)| *session.as_bytes());
        self.open.take_if(|open| open.subscriber.remote_session() != of);
        if self.open.is_none() {
            let mut subscriber = self.builder.clone().open().ok()?;
            let (oldest, next) = span_of(&mut subscriber)?;
            let begin = session_begin(&mut subscriber, oldest.max(next.saturating_sub(MOST_LOOKED_AT)), next);
            let moment = Moment::now(subscriber.clock());
            self.open = Some(Opened { subscriber, moment, begin });
        }
        self.open.as_mut().filter(|open| open.subscriber.remote_session() == of)
    }
}

/// The oldest sequence of a ring, and the one after its newest.
fn span_of(subscriber: &mut Subscriber) -> Option<(u64, u64)> {
    let oldest = match subscriber.seek(1) {
        Ok(()) => 1,
        Err(LocateError::TooOld { oldest, .. }) => oldest,
        Err(_) => return None,
    };
    match subscriber.seek(MAX_SEQUENCE) {
        Err(LocateError::NotYet { next, .. }) => Some((oldest, next)),
        _ => None,
    }
}

/// The sequence behind the last change of session in `from..to`; `from` if there is none. A bridge that was started again does not know
/// where its session began.
fn session_begin(subscriber: &mut Subscriber, from: u64, to: u64) -> u64 {
    if subscriber.seek(from).is_err() {
        return u64::MAX;
    }
    let mut begin = from;
    loop {
        let is_change = match subscriber.try_recv() {
            Ok(Some(Event::NewSession { .. } | Event::Lapped(_) | Event::Restarted)) => true,
            Ok(Some(_)) => false,
            Ok(None) => return begin,
            Err(_) => return u64::MAX,
        };
        if is_change {
            begin = subscriber.next_sequence();
        } else if subscriber.next_sequence() >= to {
            return begin;
        }
    }
}

impl Ring for LocalRing {
    fn span(&mut self) -> Option<(u64, u64)> {
        let open = self.opened()?;
        let (oldest, next) = span_of(&mut open.subscriber)?;
        Some((oldest.max(open.begin), next))
    }

    fn samples(&self) -> Vec<u64> {
        self.samples.iter().map(|sample| sample.sequence).collect()
    }

    fn read(&mut self, sequence: u64, into: &mut Vec<u8>) -> Option<u64> {
        if let Some(time_ns) = self.read_ring(sequence, into) {
            return Some(time_ns);
        }
        into.clear();
        let sample = self.samples.iter().find(|sample| sample.sequence == sequence)?;
        into.extend_from_slice(&sample.bytes);
        Some(0)
    }
}

impl LocalRing {
    fn read_ring(&mut self, sequence: u64, into: &mut Vec<u8>) -> Option<u64> {
        let Opened { subscriber, moment, .. } = self.opened()?;
        if subscriber.next_sequence() != sequence {
            subscriber.seek(sequence).ok()?;
        }
        loop {
            match subscriber.try_recv() {
                Ok(Some(Event::Message(message))) => {
                    into.extend_from_slice(message.payload);
                    return (message.sequence == sequence).then(|| moment.wall_of(message.time));
                }
                Ok(Some(Event::NewEpoch { .. } | Event::NewSession { .. })) => {}
                Ok(Some(Event::Gap { .. } | Event::Lapped(_) | Event::End) | None) => return None,
                // The ring is gone or was made anew. The next look opens it again.
                Ok(Some(_)) | Err(_) => {
                    self.open = None;
                    return None;
                }
            }
        }
    }
}
