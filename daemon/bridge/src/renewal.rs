//! A thread that watches the multicast lines of a bridge, beside the thread that sends or receives messages. The watching thread handles
//! two events, which are counted and are not errors:
//!
//! - **An interface is deleted and created again under the same name.** A socket on this interface is then no longer a member of its group.
//!   Every 250 ms, the thread looks up the interfaces of all lines and of the group for repairs, by their names. If an interface was
//!   replaced, the thread opens a new socket and passes it to the bridge. The bridge continues its session.
//! - **The network forgets a group.** If a line is silent for 3 s while the feed arrives on other lines, the thread leaves the line's group
//!   and joins it again. If the line stays silent, the thread repeats this after twice the time, and the time grows up to 60 s.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::socket::{self, Interface, SocketError};
use super::spec::{BridgeSpec, LineSpec};
use super::status::ReceiveCounters;

/// The time between two lookups of the interfaces.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The interval at which the thread checks whether the bridge has stopped, and whether a missing interface has come back.
const STEP: Duration = Duration::from_millis(20);
/// The silence after which a line's group is joined again.
const SILENCE: Duration = Duration::from_secs(3);
const LONGEST_SILENCE: Duration = Duration::from_secs(60);
/// The number that stands for the line of repairs for all receivers. The spec does not list this line.
pub(super) const REPAIRS: usize = usize::MAX;

/// New sockets that the bridge has not taken yet, and the counters.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    is_there: AtomicBool,
    opened: Mutex<Vec<(usize, UdpSocket)>>,
    anew: AtomicU64,
    rejoined: AtomicU64,
}

impl Renewal {
    /// Returns the new sockets, each with the number of its line. If there are none, costs one atomic swap.
    pub(super) fn take(&self) -> Vec<(usize, UdpSocket)> {
        if !self.is_there.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut *self.opened.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Passes a new socket to the bridge. Counts it if the spec lists the line.
    pub(super) fn give(&self, line: usize, socket: UdpSocket) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).push((line, socket));
        self.anew.fetch_add(u64::from(line != REPAIRS), Ordering::Relaxed);
        self.is_there.store(true, Ordering::Release);
    }

    /// Returns how often a line was opened again, and how often a group was joined again.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.anew.load(Ordering::Relaxed), self.rejoined.load(Ordering::Relaxed))
    }
}

/// The multicast lines of a bridge, and the last known state of their interfaces.
#[derive(Debug)]
pub(super) struct Watch {
    lines: Vec<(usize, LineSpec, Option<Interface>)>,
}

impl Watch {
    /// Looks up the interfaces of the lines. Call this before the lines are opened. `repairs` is the line on which all receivers hear
    /// repairs, if there is one.
    pub(super) fn of(spec: &BridgeSpec, repairs: Option<LineSpec>) -> Watch {
        let lines = spec.lines.iter().cloned().enumerate().chain(repairs.map(|line| (REPAIRS, line)));
        let lines = lines.filter(|(_, line)| line.group.ip().is_multicast());
        Watch {
            lines: lines
                .map(|(at, line)| {
                    let known = socket::look_up(&line).ok();
                    (at, line, known)
                })
                .collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Watches the lines until `is_over`: looks up their interfaces again and again. `renew` must open the new sockets of a line and pass
    /// them to the bridge. After each lookup, `look_after` is called for each line of the spec whose interface exists.
    pub(super) fn run(
        mut self,
        mut renew: impl FnMut(usize, &LineSpec) -> Result<(), SocketError>,
        mut look_after: impl FnMut(usize, &LineSpec),
        is_over: impl Fn() -> bool,
    ) {
        let mut looked = Instant::now();
        while !is_over() {
            std::thread::sleep(STEP);
            let is_any_gone = self.lines.iter().any(|(_, _, known)| known.is_none());
            if looked.elapsed() < LOOK_EVERY && !is_any_gone {
                continue;
            }
            looked = Instant::now();
            for (at, line, known) in &mut self.lines {
                let now = socket::look_up(line).ok();
                if now.is_some() && now != *known {
                    // If the interface's addresses are not ready, the socket cannot be opened. The next lookup tries again.
                    *known = now.filter(|_| renew(*at, line).is_ok());
                } else {
                    *known = now;
                }
                if known.is_some() && *at != REPAIRS {
                    look_after(*at, line);
                }
            }
        }
    }
}

/// The state of one line that might be silent.
#[derive(Debug)]
struct Heard {
    datagrams: u64,
    since: Instant,
    /// The progress of the feed at the time when the line last received a datagram.
    feed: (u64, u64),
    /// The silence after which the group is joined again.
    limit: Duration,
}

/// The silences of a receiver's lines.
#[derive(Debug, Default)]
pub(super) struct Silences(Vec<(usize, Heard)>);

impl Silences {
    /// Whether the group of this line must be joined again now.
    pub(super) fn is_due(&mut self, line: usize, counters: &ReceiveCounters, now: Instant) -> bool {
        let (datagrams, feed) =
            (counters.lines[line].socket.datagrams, (counters.feed.packets, counters.host.horizon));
        let fresh = || Heard { datagrams, since: now, feed, limit: SILENCE };
        let at = match self.0.iter().position(|(of, _)| *of == line) {
            Some(at) => at,
            None => {
                self.0.push((line, fresh()));
                return false;
            }
        };
        let heard = &mut self.0[at].1;
        if heard.datagrams != datagrams {
            *heard = fresh();
            return false;
        }
        let is_due = feed != heard.feed && now.saturating_duration_since(heard.since) >= heard.limit;
        if is_due {
            *heard = Heard { limit: (heard.limit * 2).min(LONGEST_SILENCE), ..fresh() };
        }
        is_due
    }
}

/// Leaves the group of a line and joins it again, on the line's receiving socket.
pub(super) fn rejoin(renewal: &Renewal, line: &LineSpec, socket: &UdpSocket) {
    if socket::rejoin(line, socket).is_ok() {
        renewal.rejoined.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromZeros;

    #[test]
    fn a_line_that_is_silent_while_the_feed_goes_on_is_joined_again_less_and_less_often() {
        let (mut silences, mut counters) = (Silences::default(), ReceiveCounters::new_zeroed());
        let start = Instant::now();
        let mut joined = Vec::new();
        for second in 0..200 {
            // Both lines are silent for the first ten seconds. Then datagrams arrive on the other line.
            counters.lines[1].socket.datagrams += u64::from(second > 10);
            counters.feed.packets += u64::from(second > 10);
            // After 150 seconds, one datagram arrives on the first line.
            counters.lines[0].socket.datagrams += u64::from(second == 150);
            let now = start + Duration::from_secs(second);
            assert!(!silences.is_due(1, &counters, now));
            joined.extend(silences.is_due(0, &counters, now).then_some(second));
        }
        assert_eq!(joined, [11, 17, 29, 53, 101, 153, 159, 171, 195]);
    }
}
