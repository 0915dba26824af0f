//! How a reader pauses between two empty polls.

use crossbeam_utils::Backoff;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
// rustix makes the system call inline. Among many processes each time slice begins with an empty TLB, and libc's code
// would need another page.
use rustix::thread::sched_yield;
use std::io;
use std::time::Duration;

/// How [`Subscriber::recv`](crate::Subscriber::recv) waits. The publisher's cost is the same with each strategy: the publisher does not
/// know whether a reader waits, and wakes none.
///
/// # Readers that are faster than the publisher
/// A reader that has caught up polls the cache line that the publisher writes next, and takes it away each time. At full rate this costs
/// both ends half of their messages or more. So a reader that spins or yields, or that calls `try_recv` and its like, makes a trial when
/// messages arrive close to each other: it pauses until the publisher is 64 messages ahead, for at most 4 us, for 512 messages. If they came
/// faster by a quarter or more, the reader goes on so. If not, there is no pause before the next trial, which follows after 65,536 messages
/// at first and after 4 million later. Streams of less than two million messages a second, and bursts of less than 128 messages, meet no pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wait {
    /// Polls without a pause, but as described above. Gives the lowest latency, and keeps one core at 100 %. Use it for no more readers
    /// than there are free cores.
    Spin,
    /// As `Spin`, for the highest rate. A reader lets the publisher get ahead for [`BURST_PAUSE`] if it catches up with the publisher in
    /// the middle of a burst, or if it takes batches and gets within [`BURST_CLOSE`] messages of the publisher. Cache lines near the
    /// publisher move back and forth between both; a reader that stays behind gets several messages at once from lines that are ready. A
    /// message that follows [`BURST`] others within [`BURST_WITHIN`] may be delayed by that pause. At lower rates there is no difference
    /// from `Spin`.
    Burst,
    /// Polls this many times, then yields the core after each further poll.
    SpinThenYield(u32),
    /// Yields the core after each poll. Use it if there are more readers than cores. A yield costs 0.5 us if the reader
    /// is alone on the core, more among many.
    #[default]
    Yield,
    /// Waits as `crossbeam_utils::Backoff` does: spins with exponentially growing pauses at first, then yields.
    Backoff,
    /// Sleeps this long between polls. Adds this time and a wake-up to the latency, and uses next to no CPU.
    Sleep(Duration),
    /// Sleeps until the daemon's waker rings. Uses next to no CPU. The wake-up delays a message by a small share of the silence before it.
    /// Only for channels of a daemon. While no daemon runs, it waits as `Sleep` with a millisecond.
    Park,
}

/// Number of messages that [`Wait::Burst`] treats as a burst, if they arrive within [`BURST_WITHIN`].
pub const BURST: u64 = 32;
/// Time within which the messages of a burst arrive. This is a rate of 4 million messages a second or more.
pub const BURST_WITHIN: Duration = Duration::from_micros(8);
/// A reader with [`Wait::Burst`] that takes batches is close to the publisher if it is behind by fewer messages than
/// this.
pub const BURST_CLOSE: u64 = 512;
/// How long [`Wait::Burst`] lets the publisher get ahead. It never lets it get ahead by more than half of the ring.
pub const BURST_PAUSE: Duration = Duration::from_micros(8);

/// Polls between two looks at the clock and at the segment's state while spinning.
const SPINS_PER_LOOK: u32 = 256;
/// Polls between two such looks while yielding.
const YIELDS_PER_LOOK: u32 = 16;

/// The state of one wait.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    idle: u32,
    /// How often a record was found that could not be received.
    vain: u32,
    backoff: Backoff,
}

impl Waiter {
    /// Waits a little. Returns true when it is time for the checks that polls do not make: deadline, state, heartbeat.
    #[inline(always)]
    pub(crate) fn idle(&mut self, wait: Wait) -> bool {
        self.idle = self.idle.wrapping_add(1);
        // The two most frequent ways come first, without a jump table or a call.
        if wait == Wait::Spin {
            return self.idle.is_multiple_of(SPINS_PER_LOOK);
        }
        if wait == Wait::Yield {
            sched_yield();
            return self.idle.is_multiple_of(YIELDS_PER_LOOK);
        }
        idle_otherwise(wait, self.idle, &self.backoff)
    }

    /// Notes that a record is there. Returns true if a record has been there many times but could not be received: then, too, the checks
    /// that polls do not make are due.
    #[inline(always)]
    pub(crate) fn found(&mut self) -> bool {
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(YIELDS_PER_LOOK) && !shmcast_layout::fault!("yielding_ignores_deadlines")
    }
}

/// Takes the count by value, so that the count stays in a register where this function is not called.
#[inline(never)]
fn idle_otherwise(wait: Wait, idle: u32, backoff: &Backoff) -> bool {
    match wait {
        Wait::Spin | Wait::Burst => return idle.is_multiple_of(SPINS_PER_LOOK),
        Wait::SpinThenYield(spins) if idle <= spins => return idle.is_multiple_of(SPINS_PER_LOOK),
        Wait::SpinThenYield(_) | Wait::Yield => sched_yield(),
        Wait::Backoff if backoff.is_completed() => sched_yield(),
        Wait::Backoff => backoff.snooze(),
        // The subscriber itself makes these pauses, since it knows the deadline.
        Wait::Sleep(_) | Wait::Park => return true,
    }
    idle.is_multiple_of(YIELDS_PER_LOOK)
}

/// Runs the calling thread on this CPU only.
///
/// # Errors
/// The error of `sched_setaffinity`: `EINVAL` for a CPU that does not exist or that this process may not use.
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
