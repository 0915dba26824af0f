//! The receiver's role. As soon as a whole message is in private memory, the receiver reads the clock. Then it checks all bytes, and counts
//! the message. For each message it stores only one word, in memory that was touched before the round. Histograms are made after the round.

use crate::rig::child::{bind, say};
use crate::rig::files::{self, saturate, write_words};
use crate::rig::gate::Gate;
use crate::rig::payload::Payloads;
use crate::rig::spec::{Received, Spec, Usage, Wait};
use crate::rig::stats::HICCUP_NS;
use crate::rig::windows::Windows;
use anyhow::{Context, Result};
use crossbeam_utils::Backoff;
use rustix::thread::sched_yield;
use shmcast::Clock;
use shmcast_layout::counter::{ticks, ticks_after_loads};
use std::cmp::Ordering::{Equal, Greater, Less};
use std::io::BufRead;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The longest wait of a receiver before it checks whether the rig asks it to stop.
pub const LOOK: Duration = Duration::from_millis(50);

/// The receiving end of a transport.
pub trait Receiver {
    /// Passes the available messages to the sink. Returns whether there were any. A receiver that blocks must return `false` at least every
    /// 100 ms.
    ///
    /// # Errors
    /// An error that ends the round.
    fn poll(&mut self, sink: &mut Sink) -> Result<bool>;

    /// Whether the rig's gate must make the publisher wait in rounds without loss. The transport's sender must return the same value.
    fn needs_gate(&self) -> bool {
        true
    }

    /// Receives until the sink has everything, or the rig asks to stop. Transports with their own way to wait override this.
    ///
    /// # Errors
    /// An error that ends the round.
    fn run(&mut self, sink: &mut Sink, wait: Wait) -> Result<()> {
        poll_until_done(self, sink, wait)
    }
}

/// Polls until the sink has everything, or the rig asks to stop. A receiver that spins also notes the times at which its thread did not
/// run.
///
/// # Errors
/// An error that ends the round.
pub fn poll_until_done<R: Receiver + ?Sized>(receiver: &mut R, sink: &mut Sink, wait: Wait) -> Result<()> {
    let mut idle = Idle::new(wait);
    let mut watch = (wait == Wait::Spin && sink.times_each).then(|| Watch::new(&sink.clock));
    while !sink.is_done() {
        if receiver.poll(sink)? {
            idle = Idle::new(wait);
            continue;
        }
        if let Some(watch) = &mut watch {
            watch.polled(sink);
        }
        if idle.pause() && sink.is_stopped() {
            break;
        }
    }
    Ok(())
}

/// Detects in a spinning loop that the thread did not run for a time (a hiccup). Reads the clock only about three times in a microsecond,
/// which costs almost nothing.
#[derive(Debug)]
struct Watch {
    last: u64,
    polls: u32,
    /// The number of polls between two readings of the clock. The loop adjusts this number, because a poll can be as short as one load or
    /// as long as a system call.
    every: u32,
    hiccup_ticks: u64,
    short_ticks: u64,
}

impl Watch {
    const MOST_POLLS: u32 = 128;
    const SHORT_NS: u64 = 200;

    fn new(clock: &Clock) -> Self {
        let in_ticks = |ns: u64| (u128::from(ns) * u128::from(clock.hz()) / 1_000_000_000) as u64;
        let (hiccup_ticks, short_ticks) = (in_ticks(HICCUP_NS), in_ticks(Self::SHORT_NS));
        Self { last: ticks(), polls: 0, every: 1, hiccup_ticks, short_ticks }
    }

    #[inline]
    fn polled(&mut self, sink: &mut Sink) {
        self.polls += 1;
        if self.polls >= self.every {
            self.look(sink);
        }
    }

    fn look(&mut self, sink: &mut Sink) {
        let now = ticks();
        let passed = now.saturating_sub(self.last);
        if passed > self.hiccup_ticks {
            sink.hiccup(self.last, passed);
        } else if passed < self.short_ticks && self.every < Self::MOST_POLLS {
            self.every *= 2;
        }
        self.last = now;
        self.polls = 0;
    }
}

/// Opens the receiving end and plays the role in this process: answers `ready`, receives, and reports. This function must not be inlined,
/// because the layout of the stack must not depend on other transports.
///
/// # Errors
/// The error of the transport or of a pipe.
#[inline(never)]
pub fn play<R: Receiver>(spec: &Spec, me: usize, open: impl FnOnce() -> Result<R>) -> Result<()> {
    let mut receiver = open()?;
    let cpus = &spec.receiver_cpus;
    bind((!cpus.is_empty()).then(|| cpus[me % cpus.len()]))?;
    let mut sink = Sink::new(spec, me, receiver.needs_gate())?;
    watch_stdin(sink.stop.clone());
    say("ready")?;
    receiver.run(&mut sink, spec.contestant.wait)?;
    let received = sink.finish()?;
    say(&serde_json::to_string(&received)?)
}

/// Starts a thread that sets `stop` when the rig asks to stop, or when the rig ends. The thread sleeps in the kernel until then.
fn watch_stdin(stop: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let _ = std::io::stdin().lock().lines().next();
        stop.store(true, Ordering::Relaxed);
    });
}

/// Checks and counts the messages of a receiver.
#[derive(Debug)]
pub struct Sink {
    clock: Clock,
    spec: Spec,
    me: usize,
    gate: Option<Gate>,
    payloads: Payloads,
    times_each: bool,
    /// The sequence of the next message.
    next: u64,
    /// A range of sequences. If their messages arrive in order, the sink only checks each message's bytes, and counts all of them together
    /// later.
    plain: Range<u64>,
    /// The one-way latency of each message that counts, at the message's index; 0 for a message that has not arrived.
    one_way: Vec<u32>,
    windows: Option<Windows>,
    /// Whether this receiver is a visitor. For a visitor, only the messages between its first and its last must be complete.
    is_visitor: bool,
    received: Received,
    before: Option<Usage>,
    stop: Arc<AtomicBool>,
}

impl Sink {
    fn new(spec: &Spec, me: usize, needs_gate: bool) -> Result<Self> {
        let gate = (spec.gated && needs_gate && me < spec.receivers)
            .then(|| Gate::open(&files::gate(spec), spec.receivers, spec.ring_messages()));
        let is_visitor = me >= spec.receivers;
        let kept = if spec.is_kept_each() && !is_visitor { spec.messages as usize } else { 0 };
        let mut one_way = vec![1; kept];
        one_way.fill(0); // touches every page now
        Ok(Self {
            clock: Clock::of_this_host(),
            spec: spec.clone(),
            me,
            gate: gate.transpose().context("open the gate")?,
            payloads: Payloads::new(spec.size),
            times_each: spec.interval_ns > 0,
            next: 1,
            plain: 0..0,
            one_way,
            windows: Windows::of(spec),
            is_visitor,
            received: Received::default(),
            before: None,
            stop: Arc::default(),
        })
    }

    /// Takes one message. Reads the clock if the round times each message.
    #[inline(always)]
    pub fn message(&mut self, bytes: &[u8]) {
        // If messages are sent back to back, only the ends of the round are timed. A barrier for each message would prevent the processor
        // from fetching several messages at the same time.
        let now = if self.times_each { ticks_after_loads() } else { 0 };
        self.message_at(bytes, now);
    }

    /// Takes a message that arrived at `now`.
    #[inline(always)]
    pub fn message_at(&mut self, bytes: &[u8], now: u64) {
        let Some((sequence, sent)) = self.payloads.check(bytes) else {
            self.received.corrupt += 1;
            return;
        };
        if sequence == self.next && sequence < self.plain.end {
            self.next += 1;
            return;
        }
        self.count_plain();
        if self.is_visitor && self.received.delivered == 0 {
            self.next = sequence; // its stay begins
            self.received.reported_lost = 0;
        }
        if sequence < self.next {
            return self.late(sequence, sent, now);
        }
        let skipped = sequence - self.next;
        self.next = sequence + 1;
        if self.is_visitor {
            self.received.delivered += 1;
            self.received.lost += skipped;
        } else if sequence > self.spec.warmup {
            self.count(sequence, sent, now);
        } else if sequence == self.spec.warmup {
            self.before = Some(Usage::now());
        }
        if let Some(gate) = &mut self.gate {
            gate.pass(self.me, sequence);
        }
        if !self.times_each {
            self.plan_plain();
        }
    }

    /// Sets the range of messages for which the sink only checks the bytes. The range ends before the next message whose time is noted, or
    /// whose arrival is reported to the gate.
    #[inline(never)]
    fn plan_plain(&mut self) {
        if self.is_visitor || self.windows.is_some() || !self.one_way.is_empty() {
            return;
        }
        let (warmup, total) = (self.spec.warmup, self.spec.total());
        let noted = match self.next.cmp(&(warmup + 1)) {
            Less => warmup,
            Equal => 0, // the first that counts
            Greater => total,
        };
        let gate = self.gate.as_ref().map_or(u64::MAX, Gate::due);
        self.plain = self.next..noted.min(gate);
    }

    /// Counts the messages that were checked but not counted yet.
    #[inline(always)]
    fn count_plain(&mut self) {
        if self.plain.is_empty() {
            return;
        }
        if self.plain.start > self.spec.warmup {
            self.received.delivered += self.next - self.plain.start;
        }
        self.plain.start = self.next;
    }

    #[inline(always)]
    fn count(&mut self, sequence: u64, sent: u64, now: u64) {
        self.received.delivered += 1;
        if self.received.span.0 == 0 {
            self.received.span.0 = ticks_after_loads();
        }
        if sequence == self.spec.total() {
            self.received.span.1 = ticks_after_loads();
        }
        let place = sequence - self.spec.warmup - 1;
        if let Some(slot) = self.one_way.get_mut(place as usize) {
            *slot = saturate(self.clock.ns_between(sent, now)).max(1);
        } else if let Some(windows) = &mut self.windows {
            windows.record(place, self.clock.ns_between(sent, now));
        }
    }

    #[cold]
    fn late(&mut self, sequence: u64, sent: u64, now: u64) {
        // A round that does not keep every message cannot tell a late message from a repeated one. It counts both as repeated.
        let at = sequence.checked_sub(self.spec.warmup + 1);
        let came = at.and_then(|at| self.one_way.get(at as usize)).is_none_or(|slot| *slot != 0);
        if came {
            self.received.duplicated += 1;
        } else {
            self.received.out_of_order += 1;
            self.count(sequence, sent, now);
        }
    }

    /// Counts losses that the transport itself reports.
    pub fn lost(&mut self, messages: u64) {
        self.received.reported_lost += messages;
    }

    /// Notes that the thread did not run for `passed` ticks, beginning at the time `from`.
    #[cold]
    fn hiccup(&mut self, from: u64, passed: u64) {
        let start = self.received.span.0;
        if start != 0 && from >= start {
            let at_ns = self.clock.ns_between(start, from);
            self.received.hiccups.note(at_ns, self.clock.ns_between(from, from + passed));
        }
    }

    /// Whether the last message has arrived.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.next > self.spec.total()
    }

    /// Whether the rig asked to stop. It asks some time after the end of the publisher, when no more messages will arrive.
    #[inline]
    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Returns the flag that [`is_stopped`](Self::is_stopped) reads, for a receiver with its own way to wait.
    pub fn stop_flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    fn finish(mut self) -> Result<Received> {
        self.count_plain();
        if let Some(before) = self.before {
            self.received.usage = Usage::now().since(&before);
        }
        if self.received.span.1 == 0 {
            self.received.span.1 = ticks_after_loads(); // the last one was lost
        }
        if self.is_visitor {
            return Ok(self.received);
        }
        self.received.lost = self.spec.messages - self.received.delivered.min(self.spec.messages);
        self.windows.map_or(Ok(()), Windows::finish)?;
        write_words(&files::one_way(&self.spec, self.me), &self.one_way)?;
        Ok(self.received)
    }
}

/// The wait between two polls, for receivers without their own way to wait.
#[derive(Debug)]
pub struct Idle {
    wait: Wait,
    idle: u32,
    backoff: Backoff,
}

impl Idle {
    /// Begins a wait.
    pub fn new(wait: Wait) -> Self {
        Self { wait, idle: 0, backoff: Backoff::new() }
    }

    /// Waits for a short time. If the call returns true, the caller must check the stop flag. If the wait is short, most calls return
    /// false, because a check takes time.
    #[inline(always)]
    pub fn pause(&mut self) -> bool {
        self.idle = self.idle.wrapping_add(1);
        // The common ways to wait are found by two comparisons. A jump table would use one more cold page in each turn of each receiver.
        if self.wait == Wait::Yield {
            sched_yield();
            return self.idle.is_multiple_of(256);
        }
        if self.wait == Wait::Spin {
            return self.idle.is_multiple_of(256);
        }
        self.pause_otherwise()
    }

    #[inline(never)]
    fn pause_otherwise(&mut self) -> bool {
        match self.wait {
            Wait::Spin | Wait::Burst => {}
            Wait::SpinHint => (0..128).for_each(|_| std::hint::spin_loop()),
            Wait::SpinYield if self.idle < 1000 => {}
            Wait::Yield | Wait::SpinYield => sched_yield(),
            Wait::Backoff if self.backoff.is_completed() => sched_yield(),
            Wait::Backoff => self.backoff.snooze(),
            Wait::Sleep => {
                std::thread::sleep(Duration::from_micros(50));
                return true;
            }
            Wait::Block | Wait::Tokio | Wait::Park => return true,
        }
        self.idle.is_multiple_of(256)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::spec::Contestant;

    #[test]
    fn what_comes_out_of_order_is_counted_between_what_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let spec = Spec {
            warmup: 10,
            messages: 1000,
            interval_ns: 0,
            ring_bytes: 16 << 10,
            gated: true,
            dir: dir.path().to_owned(),
            ..Spec::one_to_one(Contestant::new("t", Wait::Spin), 32)
        };
        let mut sink = Sink::new(&spec, 0, true).unwrap();
        let mut payloads = Payloads::new(spec.size);
        let lost = [5, 11, 300, 301, 777];
        for sequence in (1..=spec.total()).filter(|sequence| !lost.contains(sequence)) {
            sink.message(payloads.stamped(sequence, 0));
            if sequence == 500 {
                sink.message(payloads.stamped(400, 0));
                sink.message(&[0; 32]);
            }
        }
        assert!(sink.is_done());
        let gate = Gate::open(&files::gate(&spec), 1, spec.ring_messages()).unwrap();
        assert!(gate.passed(0) > spec.total() - spec.ring_messages(), "the publisher may send the last one");
        let received = sink.finish().unwrap();
        assert_eq!((received.delivered, received.lost), (1000 - 4, 4), "one of the five was warm-up");
        assert_eq!((received.duplicated, received.out_of_order, received.corrupt), (1, 0, 1));
        assert!(received.span.0 > 0 && received.span.1 > received.span.0);
    }

    #[test]
    fn each_message_that_is_timed_counts_once() {
        let dir = tempfile::tempdir().unwrap();
        let contestant = Contestant::new("t", Wait::Spin);
        let paced = Spec { messages: 100, interval_ns: 1000, ..Spec::one_to_one(contestant, 32) };
        let spec = Spec { dir: dir.path().to_owned(), ..paced };
        let mut sink = Sink::new(&spec, 0, true).unwrap();
        let mut payloads = Payloads::new(spec.size);
        for sequence in (1..=100).filter(|sequence| sequence % 40 != 7) {
            sink.message(payloads.stamped(sequence, 0));
        }
        let received = sink.finish().unwrap();
        assert_eq!((received.delivered, received.lost), (97, 3));
    }
}
