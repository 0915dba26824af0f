//! The receiving actor. This actor uses every way to receive, and measures the duration of each call.

use super::foreign::{self, Foreign};
use super::recorder::Recorder;
use super::{Orders, Place, Subscribing, client, kind};
use crate::log::{Fact, Log, now};
use crate::payload::Identity;
use crate::story::{How, Start, Waiting};
use anyhow::Result;
use serde_json::{Value, json};
use shmcast::{ChannelError, Event, History, Preparation, RecvError, Resume, Subscriber, Wait};
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The time limit of one call.
const CALL: Duration = Duration::from_millis(20);
/// A call is logged as late if it returns this long after its time limit. The oracle decides whether the delay is a violation.
pub(super) const SLACK: Duration = Duration::from_millis(100);

/// A subscription.
pub(super) struct Reading {
    /// The subscriber of this process. If the reader is a testee in another language, this subscriber only determines the testee's first
    /// message.
    subscriber: Subscriber,
    foreign: Option<Foreign>,
    recorder: Recorder,
    runtime: Option<tokio::runtime::Runtime>,
    buffer: Vec<u8>,
    turns: u64,
    is_over: bool,
    /// Whether the log already has a note that receiving failed because no descriptor was free.
    is_unmapped: bool,
}

/// The result of a call.
type Called = Result<usize, RecvError>;

impl Reading {
    pub(super) fn open(log: &mut Log, wanted: &Subscribing) -> Result<Option<Self>> {
        let Subscribing { channel, host, start, page, skip, live_only, .. } = wanted.clone();
        let history = !live_only && wanted.conflate.is_none();
        log.write(Fact::Subscribing { channel: channel.clone(), host, start, page, history, skip })?;
        match open(wanted) {
            Ok(subscriber) => {
                let next = subscriber.next_sequence();
                let open = |command: &String| Foreign::open(command, &wanted.place, &channel, next);
                let foreign = match wanted.testee.as_ref().map(open).transpose()?.transpose() {
                    Ok(foreign) => foreign,
                    Err(why) => {
                        log.write(Fact::OpenFailed { kind: foreign::kind(&why), why })?;
                        return Ok(None);
                    }
                };
                let (refused, clock) = (subscriber.page_refused().is_some(), Some(subscriber.clock()));
                log.write(Fact::Subscribed { next, refused })?;
                if wanted.gate.is_some() || wanted.conflate.is_some() {
                    let (gate, conflates) = (wanted.gate.clone(), wanted.conflate.is_some());
                    log.write(Fact::Joined { gate, conflates })?;
                }
                Ok(Some(Self {
                    subscriber,
                    foreign,
                    recorder: Recorder::new(channel, clock),
                    runtime: None,
                    buffer: vec![0; 64],
                    turns: 0,
                    is_over: false,
                    is_unmapped: false,
                }))
            }
            Err(e) => {
                log.write(Fact::OpenFailed { kind: kind(&e), why: e.to_string() })?;
                Ok(None)
            }
        }
    }

    /// Drops the subscription in a forked child. The child must not destroy anything that it shares with its parent.
    pub(super) fn drop_subscriber(mut self) {
        std::mem::forget(self.runtime.take());
    }

    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    pub(super) fn is_registered(&self) -> Option<bool> {
        self.subscriber.is_registered()
    }

    /// Receives until the next order, or until the time `until`.
    pub(super) fn read(
        &mut self,
        log: &mut Log,
        orders: &mut Orders,
        how: How,
        until: Option<Instant>,
        rest: Duration,
    ) -> Result<bool> {
        let mut is_well = true;
        while !orders.is_one_waiting() && until.is_none_or(|until| Instant::now() < until) {
            if self.turn(log, how, Instant::now() + CALL)?.is_break() {
                is_well = false;
                break;
            }
            if !rest.is_zero() {
                std::thread::sleep(rest);
            }
        }
        self.recorder.flush(log, true)?;
        Ok(is_well)
    }

    /// Receives until `last` has arrived, or until the reader was lapped and continued after `last`. The reader gives up if nothing arrives
    /// for the time `patience`. As long as messages arrive, the call can last for any time, because some machines are slow.
    pub(super) fn finish(
        &mut self,
        log: &mut Log,
        last: Identity,
        sequence: u64,
        patience: Duration,
    ) -> Result<bool> {
        let has_come =
            |recorder: &Recorder| recorder.newest() == Some(last) || recorder.resumed_at() == sequence + 1;
        let mut found = has_come(&self.recorder);
        let (mut events, mut deadline) = (self.recorder.events, Instant::now() + patience);
        while !found && Instant::now() < deadline {
            // For this order of the runner, the actor uses all ways to receive in turn.
            if self.turn(log, How::Mixed, Instant::now() + CALL)?.is_break() {
                break;
            }
            if self.recorder.events > events {
                (events, deadline) = (self.recorder.events, Instant::now() + patience);
            }
            found = has_come(&self.recorder);
        }
        // Events after the last message are also recorded.
        let _ = self.turn(log, How::Deadline, Instant::now() + CALL)?;
        self.recorder.fact(Fact::Finished { found });
        self.recorder.flush(log, true)?;
        Ok(found)
    }

    /// Receives `events` events by `recv`, which has no deadline.
    pub(super) fn block(&mut self, log: &mut Log, events: u32) -> Result<bool> {
        if self.foreign.is_some() {
            let enough = self.recorder.events + u64::from(events);
            while self.recorder.events < enough
                && self.turn(log, How::Deadline, Instant::now())?.is_continue()
            {}
            return Ok(!self.is_over);
        }
        for _ in 0..events {
            self.recorder.call_began = now();
            match self.subscriber.recv() {
                Ok(event) => self.recorder.note(event),
                Err(e) => {
                    self.fail(&e);
                    if self.is_over {
                        break;
                    }
                }
            }
            self.recorder.flush(log, false)?;
        }
        self.recorder.flush(log, true)?;
        Ok(!self.is_over)
    }

    pub(super) fn seek(&mut self, log: &mut Log, by: i64) -> Result<bool> {
        if let Some(foreign) = &mut self.foreign {
            foreign.seek(by, &mut self.recorder)?;
            self.recorder.flush(log, true)?;
            return Ok(true);
        }
        let to = self.subscriber.next_sequence().saturating_add_signed(by).max(1);
        self.recorder.fact(Fact::Seeking { to });
        let error = self.subscriber.seek(to).err().map(|e| kind(&e));
        self.recorder.fact(Fact::Sought { error });
        self.recorder.flush(log, true)?;
        Ok(true)
    }

    /// Makes one call. Breaks the loop if the reader can receive nothing any more.
    fn turn(&mut self, log: &mut Log, how: How, deadline: Instant) -> Result<ControlFlow<()>> {
        self.turns += 1;
        let how = match how {
            How::Mixed => {
                let all = [How::Deadline, How::Try, How::Batch, How::Into, How::Async];
                all[(self.turns / 4 % all.len() as u64) as usize]
            }
            how => how,
        };
        if self.foreign.is_some() {
            return self.foreign_turn(log, matches!(how, How::Batch | How::Into));
        }
        let (began, before, noted) = (Instant::now(), on_cpu_and_waiting(), self.recorder.noting);
        self.recorder.call_began = now();
        let called = self.call(how, deadline);
        let took = began.elapsed().saturating_sub(self.recorder.noting - noted);
        let asked = deadline.saturating_duration_since(began);
        let asked = if matches!(how, How::Deadline | How::Async) { asked } else { Duration::ZERO };
        if took > asked + SLACK {
            let after = on_cpu_and_waiting();
            let [ran_us, waited_us] = [0, 1].map(|i: usize| after[i].saturating_sub(before[i]) / 1000);
            let (asked_us, took_us) = (asked.as_micros() as u64, took.as_micros() as u64);
            let call = format!("{how:?}");
            self.recorder.fact(Fact::Late { call, asked_us, took_us, ran_us, waited_us });
        }
        let events = match called {
            Ok(events) => events,
            Err(e) => {
                self.fail(&e);
                self.recorder.flush(log, true)?;
                if self.is_over {
                    return Ok(ControlFlow::Break(()));
                }
                0
            }
        };
        self.recorder.flush(log, false)?;
        if events == 0 && !matches!(how, How::Deadline | How::Async) {
            std::thread::sleep(Duration::from_micros(200));
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Makes one call of a reader in another language, like [`turn`](Self::turn). Does not check the duration of the reader's calls,
    /// because one order to the other program can cause several calls.
    fn foreign_turn(&mut self, log: &mut Log, in_batches: bool) -> Result<ControlFlow<()>> {
        let Some(foreign) = &mut self.foreign else { return Ok(ControlFlow::Continue(())) };
        self.recorder.call_began = now();
        let (events, failure) = foreign.call(&mut self.recorder, in_batches)?;
        if let Some(why) = failure {
            // `unmapped` means that no descriptor was free. The next call might find a free descriptor.
            self.is_over = why != "unmapped";
            self.recorder.fact(Fact::RecvFailed { kind: foreign::kind(&why), why });
        }
        self.recorder.flush(log, self.is_over)?;
        if events == 0 {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(if self.is_over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    fn call(&mut self, how: How, deadline: Instant) -> Called {
        let Self { subscriber, recorder, turns, .. } = self;
        let one = |event: Option<Event<'_>>, recorder: &mut Recorder| match event {
            Some(event) => {
                recorder.note(event);
                1
            }
            None => 0,
        };
        match how {
            How::Deadline | How::Mixed => Ok(one(subscriber.recv_deadline(deadline)?, recorder)),
            How::Try => {
                let (next, lag) = (subscriber.next_sequence(), subscriber.lag());
                let events = one(subscriber.try_recv()?, recorder);
                if events == 0 && lag > 0 {
                    recorder.fact(Fact::Nothing { next, lag });
                }
                Ok(events)
            }
            How::Batch => subscriber.recv_batch(1 + (*turns % 100) as usize, |event| recorder.note(event)),
            How::Into => self.call_into(),
            How::Async => self.call_async(deadline),
        }
    }

    fn call_into(&mut self) -> Called {
        if self.turns.is_multiple_of(7) {
            self.buffer.truncate((self.turns % 64) as usize);
        }
        for _ in 0..2 {
            match self.subscriber.try_recv_into(&mut self.buffer) {
                Ok(event) => return Ok(event.map(|event| self.recorder.note(event)).map_or(0, |()| 1)),
                Err(RecvError::TooSmall { needed, available }) if needed > available => {
                    self.buffer.resize(needed, 0);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(0)
    }

    fn call_async(&mut self, deadline: Instant) -> Called {
        let Self { subscriber, recorder, runtime, turns, .. } = self;
        let build = || tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Some(runtime) => runtime,
            // Without free descriptors, tokio cannot make an event loop and panics. The other ways to receive need no descriptor.
            None => match has_descriptors().then(build) {
                Some(Ok(made)) => runtime.insert(made),
                _ => return Ok(0),
            },
        };
        runtime.block_on(async {
            // Some futures are dropped before they are ready.
            let patience = Duration::from_micros(*turns % 5 * 300);
            if let Ok(event) = tokio::time::timeout(patience, subscriber.recv_async()).await {
                recorder.note(event?);
                return Ok(1);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match tokio::time::timeout(left, subscriber.recv_async()).await {
                Ok(event) => {
                    recorder.note(event?);
                    Ok(1)
                }
                Err(_) => Ok(0),
            }
        })
    }

    fn fail(&mut self, e: &RecvError) {
        let kind = kind(e);
        // A reader of the journal can continue to wait for the recorder.
        if let RecvError::Stalled { sequence } = e {
            self.recorder.stalled(*sequence);
            return std::thread::sleep(Duration::from_millis(10));
        }
        // `Unmapped` means that no descriptor was free, so a later call can succeed. After any other failure, receiving cannot continue.
        self.is_over = kind != "Unmapped";
        if !self.is_over {
            std::thread::sleep(Duration::from_millis(10));
            if std::mem::replace(&mut self.is_unmapped, true) {
                return;
            }
        }
        self.recorder.fact(Fact::RecvFailed { kind, why: e.to_string() });
    }
}

fn open(wanted: &Subscribing) -> Result<Subscriber, ChannelError> {
    let Subscribing {
        place, channel, start, wait, skip, page, full, watch, live_only, gate, conflate, ..
    } = wanted;
    let builder = Subscriber::builder(channel).watch_publisher(*watch);
    let builder = if *live_only { builder.history(History::Never) } else { builder };
    let builder = match (client(place)?, place) {
        (Some(client), _) => builder.client(&client),
        (None, Place::Dir(dir)) => builder.dir(dir),
        (None, Place::Socket(_)) => builder,
    };
    let start = match start {
        Start::Latest => shmcast::Start::Latest,
        Start::Oldest => shmcast::Start::Oldest,
        Start::Sequence(sequence) => shmcast::Start::Sequence(*sequence),
        Start::Board => shmcast::Start::Board,
    };
    let builder = match gate {
        Some(gate) => builder.gate(gate.clone()),
        None => builder,
    };
    let builder = match conflate {
        Some(0) => builder.conflate(),
        Some(bytes) => builder.conflate_behind((*bytes).into()),
        None => builder,
    };
    let wait = match wait {
        Waiting::Spin => Wait::Spin,
        Waiting::Burst => Wait::Burst,
        Waiting::SpinThenYield => Wait::SpinThenYield(100),
        Waiting::Yield => Wait::Yield,
        Waiting::Backoff => Wait::Backoff,
        Waiting::Sleep => Wait::Sleep(Duration::from_millis(1)),
        Waiting::Park => Wait::Park,
    };
    let builder = builder.prepare(if *full { Preparation::FULL } else { Preparation::NONE });
    let resume = if *skip { Resume::Latest } else { Resume::Oldest };
    builder.start(start).wait(wait).resume(resume).page(*page).record_latency(true).open()
}

/// Subscribes `times` times in turn while a publisher runs at full speed. A subscriber that is lapped must receive a message after the lap.
/// Returns how many subscribers were lapped.
pub(super) fn join(log: &mut Log, wanted: &Subscribing, times: u16) -> Result<Value> {
    let mut lapped = 0;
    for time in 0..times {
        let (start, skip) = ([Start::Latest, Start::Oldest][usize::from(time % 2)], time % 4 < 2);
        let wanted = Subscribing { start, skip, ..wanted.clone() };
        let Some(Reading { mut subscriber, .. }) = Reading::open(log, &wanted)? else { continue };
        let mut is_lapped = false;
        let until = Instant::now() + CALL;
        while Instant::now() < until {
            match subscriber.recv_deadline(until) {
                Ok(Some(Event::Message(_))) if is_lapped => break,
                Ok(event) => is_lapped |= matches!(event, Some(Event::Lapped(_))),
                Err(e) => {
                    log.write(Fact::RecvFailed { kind: kind(&e), why: e.to_string() })?;
                    break;
                }
            }
        }
        lapped += u64::from(is_lapped);
        log.write(Fact::Closed)?;
    }
    Ok(json!(lapped))
}

/// Whether enough descriptors for an event loop are free.
fn has_descriptors() -> bool {
    let files: Result<Vec<fs::File>, _> = (0..12).map(|_| fs::File::open("/dev/null")).collect();
    files.is_ok()
}

/// Returns two durations in nanoseconds: how long this actor has run on a CPU, and how long it has waited for a CPU. Keeps the file in
/// `/proc` open, because a later call might find no free descriptor.
pub(super) fn on_cpu_and_waiting() -> [u64; 2] {
    static FILE: OnceLock<Option<fs::File>> = OnceLock::new();
    let mut text = [0; 128];
    let file = FILE.get_or_init(|| fs::File::open("/proc/thread-self/schedstat").ok());
    let length = file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
    let text = String::from_utf8_lossy(&text[..length]);
    let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
    std::array::from_fn(|_| words.next().unwrap_or(0))
}
