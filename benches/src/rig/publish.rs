//! The publisher's role. The publisher sends each message at its intended time, even if the previous send was late.
//!
//! A latency counts from the intended time. So a late publisher hides no latency (no coordinated omission).

use crate::rig::child::{bind, say, wait_for};
use crate::rig::files::{self, saturate, write_words};
use crate::rig::gate::Gate;
use crate::rig::payload::Payloads;
use crate::rig::spec::{Published, Spec, Usage};
use crate::rig::stats::{HICCUP_NS, HiccupLog};
use crate::rig::windows::Windows;
use anyhow::{Context, Result};
use shmcast::Clock;
use shmcast_layout::counter::{ticks, ticks_after_loads};
use std::time::Duration;

/// The sending end of a transport.
pub trait Sender {
    /// Sends one message to all receivers. Returns how often the send had to be repeated because there was no room. `sent` is the time in
    /// the payload in clock ticks, or 0 if messages are sent back to back.
    ///
    /// Every implementation must be `#[inline(always)]`. Otherwise the compiler might inline the call for one ring and not for another.
    ///
    /// # Errors
    /// An error that ends the round.
    fn send(&mut self, payload: &[u8], sent: u64) -> Result<u64>;

    /// Prepares the sender. The rig calls this once, after all receivers have attached and before the first message.
    ///
    /// # Errors
    /// An error that ends the round.
    fn begin(&mut self) -> Result<()> {
        Ok(())
    }

    /// Whether the rig's gate must make the publisher wait in rounds without loss. A transport with its own flow control returns false here
    /// and in its receiver.
    fn needs_gate(&self) -> bool {
        true
    }

    /// Returns remarks for the reader of the results.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A sleeping publisher wakes this many ns before the intended time, because timers can be late. Then it spins.
const WAKE_EARLY_NS: u64 = 60_000;

/// Opens the sending end and plays the role in this process: answers `ready`, waits for `go`, sends, reports, and waits for `stop`. This
/// function must not be inlined, because the layout of the stack must not depend on other transports.
///
/// # Errors
/// The error of the transport or of a pipe.
#[inline(never)]
pub fn play<S: Sender>(spec: &Spec, open: impl FnOnce() -> Result<S>) -> Result<()> {
    let mut sender = open()?;
    bind(spec.publisher_cpu)?;
    // By default, the kernel can wake a sleeper 50 us late to save power.
    nix::sys::prctl::set_timerslack(1).context("set the timer slack")?;
    let clock = Clock::of_this_host();
    say("ready")?;
    wait_for("go")?;
    sender.begin()?;
    let published = if spec.interval_ns > 0 {
        run::<true>(spec, &mut sender, &clock)?
    } else {
        run::<false>(spec, &mut sender, &clock)?
    };
    say(&serde_json::to_string(&published)?)?;
    wait_for("stop")
}

/// Sends all messages. With `PACED`, sends each message at its intended time, and measures the call. Otherwise sends messages back to back.
/// The loop then only prepares the next message between two sends, because the loop must not be slower than the ring.
#[inline(never)]
fn run<const PACED: bool>(spec: &Spec, sender: &mut impl Sender, clock: &Clock) -> Result<Published> {
    let mut gate = (spec.gated && sender.needs_gate())
        .then(|| Gate::open(&files::gate(spec), spec.receivers, spec.ring_messages()))
        .transpose()
        .context("open the gate")?;
    let kept = if spec.is_kept_each() { spec.messages as usize } else { 0 };
    let mut windows = Windows::of(spec);
    let (mut lateness, mut cost) = (Vec::with_capacity(kept), Vec::with_capacity(kept));
    let mut payloads = Payloads::new(spec.size);
    let mut pace = Pace::new(spec, clock);
    let (mut retries, mut first, mut before) = (0, 0, Usage::now());
    let first_counted = spec.warmup + 1;
    // The sequence of the next message before which the loop pauses. In a pause, the loop begins to count, or waits for the gate.
    let mut pause = 1;
    for sequence in 1..spec.total() + 1 {
        if sequence >= pause {
            if sequence == first_counted {
                before = Usage::now();
                pace.begin_counting();
                first = ticks();
            }
            pause = if sequence < first_counted { first_counted } else { u64::MAX };
            if let Some(gate) = &mut gate {
                gate.wait(sequence);
                pause = pause.min(gate.due());
            }
        }
        let (intended, sent) = if PACED { (pace.wait(), ticks()) } else { (0, 0) };
        // Windows do not keep the delay of each message, so a message's stamp is its intended time.
        let stamp = if PACED && windows.is_some() { intended } else { sent };
        retries += sender.send(payloads.stamped(sequence, stamp), stamp)?;
        if PACED && sequence >= first_counted {
            let took_ns = clock.ns_between(sent, ticks_after_loads());
            if let Some(windows) = &mut windows {
                windows.record(sequence - first_counted, took_ns);
            } else {
                cost.push(saturate(took_ns));
                lateness.push(saturate(clock.ns_between(intended, sent)));
            }
        }
    }
    let last = ticks_after_loads();
    let usage = Usage::now().since(&before);
    windows.map_or(Ok(()), Windows::finish)?;
    write_words(&files::lateness(spec), &lateness)?;
    write_words(&files::cost(spec), &cost)?;
    Ok(Published {
        messages: spec.messages,
        span: (first, last),
        clock_ns: clock_ns(clock),
        retries: retries + gate.map_or(0, |gate| gate.retries()),
        hiccups: pace.hiccups,
        usage,
        notes: sender.notes(),
    })
}

/// The schedule of intended times. Also notes the times at which the thread did not run.
struct Pace<'a> {
    clock: &'a Clock,
    /// The time of the next send, in 1/2^16 ticks, so that rounding errors do not accumulate.
    next: u128,
    interval: u128,
    hiccup_ticks: u64,
    wake_early_ticks: u64,
    spin: bool,
    counted_from: Option<u64>,
    hiccups: HiccupLog,
}

impl<'a> Pace<'a> {
    fn new(spec: &Spec, clock: &'a Clock) -> Self {
        let in_ticks = |ns: u64| u128::from(ns) * u128::from(clock.hz()) / 1_000_000_000;
        let interval = ((u128::from(spec.interval_ns) * u128::from(clock.hz())) << 16) / 1_000_000_000;
        let start = u128::from(ticks()) + in_ticks(2_000_000);
        Self {
            clock,
            next: start << 16,
            interval,
            hiccup_ticks: in_ticks(HICCUP_NS) as u64,
            wake_early_ticks: in_ticks(WAKE_EARLY_NS) as u64,
            spin: spec.spin_between,
            counted_from: None,
            hiccups: HiccupLog::default(),
        }
    }

    fn begin_counting(&mut self) {
        self.counted_from = Some(ticks());
    }

    /// Waits until the next intended time, and returns it in ticks. Does not wait if this time has passed.
    #[inline]
    fn wait(&mut self) -> u64 {
        let intended = (self.next >> 16) as u64;
        self.next += self.interval;
        let mut last = ticks();
        if !self.spin {
            let ahead = intended.saturating_sub(last);
            if ahead > self.wake_early_ticks {
                std::thread::sleep(Duration::from_nanos(self.clock.ns(ahead - self.wake_early_ticks)));
                last = ticks();
            }
        }
        while last < intended {
            let now = ticks();
            if now - last > self.hiccup_ticks
                && let Some(start) = self.counted_from
            {
                let at = self.clock.ns_between(start, last);
                self.hiccups.note(at, self.clock.ns_between(last, now));
            }
            last = now;
        }
        intended
    }
}

/// Returns the median time between two consecutive readings of the clock, in ns.
fn clock_ns(clock: &Clock) -> u64 {
    let mut costs: Vec<u64> = (0..1001)
        .map(|_| {
            let before = ticks();
            clock.ns_between(before, ticks_after_loads())
        })
        .collect();
    costs.sort_unstable();
    costs[500]
}
