//! Code that the bridge's threads share: their start, their clock, and their wait while there is nothing to
//! do.

use rustix::thread::sched_yield;
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::BridgeError;
use super::spec::WaitMode;

/// How often counters are shown to other threads.
pub const SHOW_EVERY_NS: u64 = 10_000_000;

/// Polls that find nothing before a thread that may sleep does so.
const POLLS_BEFORE_SLEEP: u32 = 32;
/// The shortest sleep, doubled each time up to [`LONGEST_SLEEP`].
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep. Because the thread slept, a message is late by at most this and one wake-up.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// The bridge's own clock: nanoseconds since it started, never 0.
#[derive(Debug, Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// The time.
    pub fn now_ns(&self) -> u64 {
        self.0.elapsed().as_nanos() as u64 + 1
    }

    /// The moment that the clock shows as `at_ns`.
    pub fn instant(&self, at_ns: u64) -> Instant {
        self.0 + Duration::from_nanos(at_ns)
    }
}

/// Nanoseconds since 1970, as the kernel stamps packets.
pub fn wall_ns() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// Starts a thread, pins it, and runs `body` in it. Returns once the thread is pinned, or could not be
/// pinned.
///
/// # Errors
/// [`BridgeError`]; the thread does not run.
pub fn spawn(
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
            // The thread sleeps for microseconds. Without this call the kernel makes each sleep 50 us longer.
            // If the kernel refuses, sleeps are that much longer.
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

/// The state of one wait for a ring.
#[derive(Debug)]
pub struct Idle {
    wait: WaitMode,
    polls: u32,
    sleep: Duration,
}

impl Idle {
    /// A wait that has not begun.
    pub fn new(wait: WaitMode) -> Self {
        Self { wait, polls: 0, sleep: SHORTEST_SLEEP }
    }

    /// There was something to do.
    pub fn reset(&mut self) {
        (self.polls, self.sleep) = (0, SHORTEST_SLEEP);
    }

    /// Waits a little, and never longer than `limit`.
    pub fn wait(&mut self, limit: Duration) {
        match self.wait {
            WaitMode::Spin => std::hint::spin_loop(),
            WaitMode::Yield => sched_yield(),
            WaitMode::Block if self.polls < POLLS_BEFORE_SLEEP => {
                self.polls += 1;
                sched_yield();
            }
            WaitMode::Block => {
                std::thread::sleep(self.sleep.min(limit));
                self.sleep = (2 * self.sleep).min(LONGEST_SLEEP);
            }
        }
    }
}
