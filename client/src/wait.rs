//! What a reader does between two empty polls.

use crossbeam_utils::Backoff;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
// An inline system call: among many processes each turn begins with an empty TLB, and libc's code would be a page more.
use rustix::thread::sched_yield;
use std::io;
use std::time::Duration;

/// How [`Subscriber::recv`](crate::Subscriber::recv) waits. The publisher's cost is the same with each: it never
/// learns that somebody waits, and wakes nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wait {
    /// Polls without pause. Lowest latency, one core at 100 %; for at most as many readers as there are cores to give.
    Spin,
    /// As `Spin`, for the highest rate: who catches up with the publisher in the middle of a burst, or with batches comes
    /// within [`BURST_CLOSE`] messages of it, lets it get ahead for [`BURST_PAUSE`]. Lines near the publisher go back and
    /// forth between both; a reader that stays behind gets several messages at once from lines that are ready. A message
    /// that follows [`BURST`] others within [`BURST_WITHIN`] may come that much later; until then, and whenever messages come
    /// more slowly, nothing differs from `Spin`.
    Burst,
    /// Polls this many times, then gives the core away after each further poll.
    SpinThenYield(u32),
    /// Gives the core away after each poll: the choice when readers outnumber cores. Costs 0.5 us alone, more among
    /// many.
    #[default]
    Yield,
    /// Exponential: few polls apart at first, then yields. `crossbeam_utils::Backoff`.
    Backoff,
    /// Sleeps this long between polls: latency up to that and a wake-up, next to no CPU.
    Sleep(Duration),
    /// Sleeps until the daemon's waker rings; next to no CPU, and woken about as fast as messages have been coming. For
    /// channels of a daemon. While it is away, as `Sleep` with a millisecond.
    Park,
}

/// Messages that [`Wait::Burst`] takes for a burst, if they come within [`BURST_WITHIN`].
pub const BURST: u64 = 32;
/// Time within which they come: at 4 million messages a second and more.
pub const BURST_WITHIN: Duration = Duration::from_micros(8);
/// Messages behind the publisher that are close to it, for [`Wait::Burst`] and who takes batches.
pub const BURST_CLOSE: u64 = 512;
/// How long [`Wait::Burst`] lets the publisher get ahead; never by more than half of the ring.
pub const BURST_PAUSE: Duration = Duration::from_micros(8);

/// Polls between two looks at the clock and at the segment's state while spinning.
const SPINS_PER_LOOK: u32 = 256;
/// The same while yielding.
const YIELDS_PER_LOOK: u32 = 16;

/// The state of one wait.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    idle: u32,
    /// How often something was there that then could not be had.
    vain: u32,
    backoff: Backoff,
}

impl Waiter {
    /// Waits a little. True when it is time to look at what empty polls do not see: deadline, state, heartbeat.
    #[inline(always)]
    pub(crate) fn idle(&mut self, wait: Wait) -> bool {
        self.idle = self.idle.wrapping_add(1);
        // Who polls most often, or as one of many, needs neither a jump table nor a call.
        if wait == Wait::Spin {
            return self.idle.is_multiple_of(SPINS_PER_LOOK);
        }
        if wait == Wait::Yield {
            sched_yield();
            return self.idle.is_multiple_of(YIELDS_PER_LOOK);
        }
        idle_otherwise(wait, self.idle, &self.backoff)
    }

    /// Notes that something is there. True when it was found there many times and could not be had: then it is time to look as
    /// well.
    #[inline(always)]
    pub(crate) fn found(&mut self) -> bool {
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(YIELDS_PER_LOOK) && !shmcast_layout::fault!("yielding_ignores_deadlines")
    }
}

/// Given the count and not its place, which then is a register for those who get along without this.
#[inline(never)]
fn idle_otherwise(wait: Wait, idle: u32, backoff: &Backoff) -> bool {
    match wait {
        Wait::Spin | Wait::Burst => return idle.is_multiple_of(SPINS_PER_LOOK),
        Wait::SpinThenYield(spins) if idle <= spins => return idle.is_multiple_of(SPINS_PER_LOOK),
        Wait::SpinThenYield(_) | Wait::Yield => sched_yield(),
        Wait::Backoff if backoff.is_completed() => sched_yield(),
        Wait::Backoff => backoff.snooze(),
        // These pauses end by the deadline, which the subscriber knows.
        Wait::Sleep(_) | Wait::Park => return true,
    }
    idle.is_multiple_of(YIELDS_PER_LOOK)
}

/// Runs the calling thread on this CPU only.
///
/// # Errors
/// What `sched_setaffinity` says: `EINVAL` for a CPU that does not exist or is not allowed here.
///
/// ```
/// shmcast::pin_current_thread(0)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn pin_current_thread(cpu: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(0), &set)?;
    Ok(())
}
