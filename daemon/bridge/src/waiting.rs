//! Chooses how a bridge's thread waits, and gives the reason.
//!
//! A thread that polls is fast, but uses a CPU. With `wait = "auto"`, a thread polls while messages flow if there are enough CPUs, and
//! sleeps otherwise. The threads of one process share its CPUs. Each thread that polls needs a seat, and there is one seat for every four
//! CPUs. The other three CPUs are for publishers and readers.

use serde::Serialize;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::proto::MILLISECOND_NS;
use super::spec::WaitMode;

/// The number of CPUs that the process must have for each thread that polls with `wait = "auto"`.
const CPUS_PER_SEAT: usize = 4;
/// A thread that is allowed to poll sleeps after a silence of this length. The unit is nanoseconds.
const POLLS_FOR_NS: u64 = 10 * MILLISECOND_NS;

/// The number of seats that threads of this process have taken. A seat permits a thread to poll.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// The way in which a bridge's thread waits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The way to wait as a word: `spin`, `yield` or `block`, or `poll` for a thread that polls while messages flow and then blocks.
    pub mode: &'static str,
    /// The reason why the thread waits in this way.
    pub why: String,
}

/// The choice for one thread. The choice owns the thread's seat, which permits the thread to poll.
#[derive(Debug)]
pub struct Choice {
    /// The choice in the form that tools show.
    pub shown: Waiting,
    /// The chosen mode. It is never [`WaitMode::Auto`].
    pub mode: WaitMode,
    seat: Option<Seat>,
}

#[derive(Debug)]
struct Seat;

impl Drop for Seat {
    fn drop(&mut self) {
        TAKEN.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Choice {
    /// Chooses how a thread waits. Reads how many CPUs the process is allowed to use.
    pub(crate) fn of(wait: WaitMode) -> Choice {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Choice::among(wait, cpus)
    }

    /// Chooses how a thread waits, for a kind of thread that never polls by default. With [`WaitMode::Auto`], the thread always blocks, and
    /// tools show `why` as the reason. Any other mode is used as configured.
    pub fn or_block(wait: WaitMode, why: &str) -> Choice {
        match wait {
            WaitMode::Auto => {
                let shown = Waiting { mode: "block", why: why.to_owned() };
                Choice { shown, mode: WaitMode::Block, seat: None }
            }
            configured => Choice::of(configured),
        }
    }

    fn among(wait: WaitMode, cpus: usize) -> Choice {
        let seats = cpus / CPUS_PER_SEAT;
        let name = match wait {
            WaitMode::Spin => "spin",
            WaitMode::Yield => "yield",
            WaitMode::Block => "block",
            WaitMode::Auto => {
                let sits = |taken| (taken < seats).then_some(taken + 1);
                let seat = TAKEN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sits);
                let (mode, why) = match seat {
                    Ok(before) => ("poll", format!("thread {} of the {seats} that may poll", before + 1)),
                    Err(_) if seats == 0 => {
                        ("block", format!("a thread polls only if there are {CPUS_PER_SEAT}"))
                    }
                    Err(_) => ("block", format!("{seats} other threads poll, and no more may")),
                };
                let shown = Waiting { mode, why: format!("{cpus} CPUs: {why}") };
                return Choice { shown, mode: WaitMode::Block, seat: seat.is_ok().then(|| Seat) };
            }
        };
        let shown = Waiting { mode: name, why: "as configured".to_owned() };
        Choice { shown, mode: wait, seat: None }
    }

    /// Returns how long the thread polls after each message before it sleeps, in nanoseconds.
    pub(super) fn polls_for_ns(&self) -> u64 {
        if self.seat.is_some() { POLLS_FOR_NS } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_for_each_four_cpus_polls_and_a_seat_is_given_back() {
        let chosen = |cpus| Choice::among(WaitMode::Auto, cpus);
        assert_eq!((chosen(3).shown.mode, chosen(3).polls_for_ns()), ("block", 0));
        let (first, second, third) = (chosen(8), chosen(8), chosen(8));
        assert_eq!([&first, &second, &third].map(|choice| choice.shown.mode), ["poll", "poll", "block"]);
        assert_eq!(
            (third.mode, third.shown.why.as_str()),
            (WaitMode::Block, "8 CPUs: 2 other threads poll, and no more may")
        );
        drop(first);
        assert_eq!(chosen(8).shown.mode, "poll");
        drop(second);
        assert_eq!(Choice::among(WaitMode::Spin, 1).shown.mode, "spin");
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
    }
}
