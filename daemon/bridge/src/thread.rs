//! Code that the bridge's threads share: how they start, their clock, and how they wait while there is nothing to do.

use rustix::thread::sched_yield;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::BridgeError;
use super::proto::pace::{Advice, Pace};
use super::spec::WaitMode;
use super::waiting::Choice;

/// The time between two updates of the shown counters, in nanoseconds.
pub const SHOW_EVERY_NS: u64 = 10_000_000;

/// The number of polls without a result after which a thread sleeps, if it is allowed to sleep.
const POLLS_BEFORE_SLEEP: u32 = 32;
/// The shortest sleep of a thread that no other thread wakes, in nanoseconds.
const SHORTEST_SLEEP_NS: u64 = 20_000;
/// The longest sleep of a thread that no other thread wakes, in nanoseconds. A message is late by at most this time and one wake-up.
const LONGEST_SLEEP_NS: u64 = 500_000;
/// A sleep is at most the silence so far divided by this number. So a sleep delays a message only by a small part of the silence before the
/// message.
const SILENCE_SHARE: u64 = 8;

/// The bridge's own clock. It counts nanoseconds since its start, and is never 0.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// Makes a clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Returns the time.
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64 + 1
    }

    /// Returns the [`Instant`] at which the clock shows `at_ns`.
    pub fn instant(&self, at_ns: u64) -> Instant {
        self.0 + Duration::from_nanos(at_ns)
    }
}

/// Returns nanoseconds since 1970, by the clock of the kernel's time stamps on packets.
pub fn wall_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// Checks whether a thread can be pinned to this CPU.
///
/// # Errors
/// [`BridgeError`] if no thread can be pinned to this CPU.
pub fn try_cpu(cpu: Option<usize>) -> Result<(), BridgeError> {
    if cpu.is_some() {
        let _ = spawn("try-cpu", cpu, || ())?.join();
    }
    Ok(())
}

/// Starts a thread, pins it to its CPU, and runs `body` in it. Does not return before it is known whether the thread could be pinned.
///
/// # Errors
/// [`BridgeError`]. After an error the thread does not run.
pub(crate) fn spawn(
    name: &str,
    cpu: Option<usize>,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, BridgeError> {
    let (tell, hear) = mpsc::sync_channel(1);
    // The kernel shows 15 bytes of a thread's name.
    let name: String = name.chars().take(15).collect();
    let thread = std::thread::Builder::new().name(name).spawn(move || {
        let pinned = cpu.map_or(Ok(()), shmcast::pin_current_thread);
        let is_pinned = pinned.is_ok();
        let _ = tell.send(pinned);
        if is_pinned {
            // Sleeps last microseconds here. With the default timer slack, the kernel would make each sleep 50 us longer.
            let _ = nix::sys::prctl::set_timerslack(1);
            body();
        }
    });
    let thread = thread.map_err(BridgeError::Start)?;
    match hear.recv() {
        Ok(Ok(())) => Ok(thread),
        Ok(Err(source)) => Err(BridgeError::Pin { cpu: cpu.unwrap_or_default(), source }),
        Err(_) => Err(BridgeError::Start(io::Error::other("the thread died at its start"))),
    }
}

/// The state of a thread that waits for its ring.
#[derive(Debug)]
pub struct Idle {
    choice: Choice,
    polls: u32,
    /// The time at which the last sleep began, in nanoseconds; 0 if the thread has polled since then.
    slept_ns: u64,
    pace: Pace,
}

impl Idle {
    /// Makes the state of a thread that waits as `choice` says.
    pub fn new(choice: Choice) -> Self {
        let pace = Pace::polling_for(choice.polls_for_ns());
        Self { choice, polls: 0, slept_ns: 0, pace }
    }

    /// Whether the thread polls and yields, and never sleeps.
    pub(crate) fn yields(&self) -> bool {
        self.choice.mode == WaitMode::Yield
    }

    /// Notes that there was something to do.
    pub fn reset(&mut self, now_ns: u64) {
        self.polls = 0;
        if self.choice.mode == WaitMode::Block {
            // It is not known when the message arrived during the sleep, so the middle of the sleep is used.
            let slept_ns = std::mem::take(&mut self.slept_ns);
            self.pace.note(if slept_ns > 0 { now_ns.midpoint(slept_ns) } else { now_ns });
        }
    }

    /// Returns how long there has been nothing to do, in nanoseconds.
    pub(super) fn silence_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.pace.last_ns())
    }

    /// Waits for a short time, and never longer than `limit`.
    pub fn wait(&mut self, now_ns: u64, limit: Duration) {
        self.slept_ns = 0;
        match self.choice.mode {
            WaitMode::Spin => std::hint::spin_loop(),
            WaitMode::Yield => sched_yield(),
            WaitMode::Block | WaitMode::Auto if self.polls < POLLS_BEFORE_SLEEP => {
                self.polls += 1;
                sched_yield();
            }
            WaitMode::Block | WaitMode::Auto => {
                // The nearer the expected time of a message, the shorter is the sleep.
                let sleep_ns = match self.pace.advice(now_ns) {
                    Advice::Poll => return sched_yield(),
                    Advice::Later(away_ns) | Advice::Overdue(away_ns) => away_ns / 2,
                    Advice::Unknown => self.silence_ns(now_ns) / SILENCE_SHARE,
                };
                let sleep_ns = sleep_ns.clamp(SHORTEST_SLEEP_NS, LONGEST_SLEEP_NS);
                self.slept_ns = now_ns;
                std::thread::sleep(Duration::from_nanos(sleep_ns).min(limit));
            }
        }
    }
}
