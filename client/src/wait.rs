//! The pauses of a reader between two empty polls.

use crossbeam_utils::Backoff;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
// rustix makes the system call inline, without code of libc. With many processes, each time slice begins with an empty TLB, and code on one
// more page would cost one more TLB miss.
use rustix::thread::sched_yield;
use std::io;
use std::time::Duration;

/// The strategy by which [`Subscriber::recv`](crate::Subscriber::recv) waits. The publisher's cost is the same with each strategy, because
/// the publisher does not know whether a reader waits, and wakes no reader.
///
/// # Readers that are faster than the publisher
/// A reader that has caught up polls the cache line that the publisher writes next. Each poll takes this line away from the publisher. At
/// full rate, half as many messages or fewer then pass through the channel.
///
/// For this reason, a reader tries pauses when messages arrive close to each other. Only two kinds of readers try pauses: those that spin
/// or yield, and those that a program polls with `try_recv` and similar methods. A trial lasts 512 messages. Each of its pauses lasts until
/// the publisher is 64 messages ahead, but at most 4 us.
///
/// If the messages came faster by a quarter or more, the reader continues with the pauses. If not, the reader makes no pause before the
/// next trial. The next trial follows after 65,536 messages at first, and after 4 million later. There is no pause in streams of less than
/// two million messages a second, or in bursts of less than 128 messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wait {
    /// Polls without a pause, except for the pauses of a reader that is faster than the publisher. Gives the lowest latency, and keeps one
    /// core at 100 %. Use it for no more readers than there are free cores.
    Spin,
    /// Polls as `Spin` does, for the highest rate. In two cases the reader pauses for [`BURST_PAUSE`], so that the publisher gets ahead:
    ///
    /// - the reader has caught up with the publisher in the middle of a burst;
    /// - the reader takes batches, and is within [`BURST_CLOSE`] messages of the publisher.
    ///
    /// A reader close to the publisher makes cache lines move back and forth. A reader that stays behind gets several messages together,
    /// from lines that the publisher has finished, but a message can be late by [`BURST_PAUSE`]. If fewer than [`BURST`] messages arrive in
    /// [`BURST_WITHIN`], there is no difference from `Spin`.
    Burst,
    /// Polls this many times without a pause. After that, yields the core after each poll.
    SpinThenYield(u32),
    /// Yields the core after each poll. Use it if there are more readers than cores. A yield costs 0.5 us if the reader is alone on the
    /// core, and more if there are many.
    #[default]
    Yield,
    /// Waits as `crossbeam_utils::Backoff` does: first spins with exponentially growing pauses, then yields.
    Backoff,
    /// Sleeps this long between polls. Adds this time and a wake-up to the latency, and uses next to no CPU.
    Sleep(Duration),
    /// Sleeps until the daemon's waker wakes the reader. A sleeping reader uses next to no CPU. The wake-up delays a message. The delay is
    /// a small share of the time for which no message came before. `Park` is only for channels of a daemon. While no daemon runs, the
    /// reader waits as with `Sleep` and a pause of one millisecond.
    Park,
}

/// Number of messages that [`Wait::Burst`] treats as a burst, if they arrive within [`BURST_WITHIN`].
pub const BURST: u64 = 32;
/// [`BURST`] messages are a burst only if they arrive in less than this time, so at more than 4 million messages a second.
pub const BURST_WITHIN: Duration = Duration::from_micros(8);
/// A reader is close to the publisher while its lag is less than this number of messages. Applies to readers with [`Wait::Burst`] that take
/// messages in batches.
pub const BURST_CLOSE: u64 = 512;
/// The time for which [`Wait::Burst`] pauses so that the publisher gets ahead. The pause ends earlier if the publisher is ahead by half of
/// the ring.
pub const BURST_PAUSE: Duration = Duration::from_micros(8);

/// Number of polls between two checks of the clock and the segment's state while spinning.
const SPINS_PER_LOOK: u32 = 256;
/// Number of polls between two checks of the clock and the segment's state while yielding.
const YIELDS_PER_LOOK: u32 = 16;

/// The state of one wait.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    idle: u32,
    /// Number of times that a record was found but could not be received.
    vain: u32,
    backoff: Backoff,
}

impl Waiter {
    /// Waits a little. Returns true when it is time for the checks that polls do not make: deadline, state and heartbeat.
    #[inline(always)]
    pub(crate) fn idle(&mut self, wait: Wait) -> bool {
        self.idle = self.idle.wrapping_add(1);
        // The two most frequent strategies come first, without a jump table or a call.
        if wait == Wait::Spin {
            return self.idle.is_multiple_of(SPINS_PER_LOOK);
        }
        if wait == Wait::Yield {
            sched_yield();
            return self.idle.is_multiple_of(YIELDS_PER_LOOK);
        }
        idle_otherwise(wait, self.idle, &self.backoff)
    }

    /// Counts a poll that found a record which cannot be received yet. After several such polls, returns true: the caller must then make
    /// the checks that polls do not make.
    #[inline(always)]
    pub(crate) fn found(&mut self) -> bool {
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(YIELDS_PER_LOOK) && !shmcast_layout::fault!("yielding_ignores_deadlines")
    }
}

/// Waits by the strategies that `Waiter::idle` does not handle itself. The count is passed by value, so that it stays in a register of the
/// caller.
#[inline(never)]
fn idle_otherwise(wait: Wait, idle: u32, backoff: &Backoff) -> bool {
    match wait {
        Wait::Spin | Wait::Burst => return idle.is_multiple_of(SPINS_PER_LOOK),
        Wait::SpinThenYield(spins) if idle <= spins => return idle.is_multiple_of(SPINS_PER_LOOK),
        Wait::SpinThenYield(_) | Wait::Yield => sched_yield(),
        Wait::Backoff if backoff.is_completed() => sched_yield(),
        Wait::Backoff => backoff.snooze(),
        // The subscriber itself sleeps, because it knows the deadline.
        Wait::Sleep(_) | Wait::Park => return true,
    }
    idle.is_multiple_of(YIELDS_PER_LOOK)
}

/// Runs the calling thread on this CPU only.
///
/// # Errors
/// The error of `sched_setaffinity`: `EINVAL` for a CPU that does not exist or that this process is not allowed to use.
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
