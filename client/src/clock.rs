//! The clock that stamps messages: the CPU's invariant counter if it has one, and CLOCK_MONOTONIC otherwise.
//!
//! The publisher that makes a channel chooses the clock, and writes the clock's kind and rate into the segment. So all programs on the host
//! use the same clock for this channel. Times of different hosts are not comparable.

use shmcast_layout::counter;
use shmcast_layout::layout::header::{ClockKind, Header};
use shmcast_layout::layout::record::ticks_since;
use std::sync::OnceLock;
use std::time::Duration;

/// A channel's clock. It is a plain value: copy it once from a publisher or subscriber, and use it anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    kind: ClockKind,
    hz: u64,
    /// Nanoseconds per tick, times 2^32.
    ns_per_tick: u64,
}

impl Clock {
    /// Returns the best clock of this machine. The first call in a process takes about 20 ms if the counter's rate has to be measured.
    ///
    /// ```
    /// let clock = shmcast::Clock::of_this_host();
    /// let start = clock.now();
    /// std::thread::sleep(std::time::Duration::from_millis(2));
    /// assert!(clock.ns_between(start, clock.now()) >= 2_000_000);
    /// ```
    pub fn of_this_host() -> Self {
        static MEASURED: OnceLock<Clock> = OnceLock::new();
        *MEASURED.get_or_init(|| {
            if counter::is_invariant() {
                Self::new(ClockKind::Counter, counter::declared_hz().unwrap_or_else(measure_hz))
            } else {
                Self::new(ClockKind::Monotonic, 1_000_000_000)
            }
        })
    }

    /// Returns the clock of this kind. If `kind` is `None`, or if the counter is not usable, returns the best clock of this machine.
    pub(crate) fn of_kind(kind: Option<ClockKind>) -> Self {
        match kind {
            Some(ClockKind::Monotonic) => Self::new(ClockKind::Monotonic, 1_000_000_000),
            _ => Self::of_this_host(),
        }
    }

    pub(crate) fn of_segment(header: &Header) -> Self {
        Self::new(header.clock, header.clock_hz)
    }

    pub(crate) fn new(kind: ClockKind, hz: u64) -> Self {
        let ns_per_tick = ((1_000_000_000u128 << 32) / u128::from(hz)) as u64;
        Self { kind, hz, ns_per_tick }
    }

    /// Returns the current time in ticks. Costs about 10 ns with the counter, 25 ns without.
    ///
    /// ```
    /// let clock = shmcast::Clock::of_this_host();
    /// assert!(clock.now() <= clock.now());
    /// ```
    #[inline]
    pub fn now(&self) -> u64 {
        match self.kind {
            ClockKind::Counter => counter::ticks(),
            ClockKind::Monotonic => counter::monotonic_ns(),
        }
    }

    /// Nanoseconds from `start` to `end`, which are results of [`now`](Self::now); 0 if `end` is earlier than `start`.
    ///
    /// ```
    /// let clock = shmcast::Clock::of_this_host();
    /// let start = clock.now();
    /// println!("{} ns", clock.ns_between(start, clock.now()));
    /// ```
    #[inline]
    pub fn ns_between(&self, start: u64, end: u64) -> u64 {
        self.ns(end.saturating_sub(start))
    }

    /// Nanoseconds since a message's [`time`](crate::Message::time), or 0 if the difference is negative. The clocks of the publisher and
    /// the reader agree to some tens of nanoseconds. The result is exact for messages up to half of 2^48 ticks old (13 hours at 3 GHz).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish(b"x")?;
    /// let clock = subscriber.clock();
    /// if let shmcast::Event::Message(m) = subscriber.recv()? {
    ///     println!("{} ns old", clock.ns_since(m.time));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn ns_since(&self, time: u64) -> u64 {
        self.latency_ns(time, self.now())
    }

    /// Nanoseconds from a message's [`time`](crate::Message::time) to `now`, which is a result of [`now`](Self::now); 0 if `now` is earlier
    /// than the message's time.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish(b"x")?;
    /// let (clock, arrived) = (publisher.clock(), publisher.clock().now());
    /// if let shmcast::Event::Message(m) = subscriber.recv()? {
    ///     assert!(clock.latency_ns(m.time, arrived) <= clock.ns_since(m.time));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn latency_ns(&self, time: u64, now: u64) -> u64 {
        self.ns(ticks_since(now, time))
    }

    /// Converts a count of ticks to nanoseconds.
    ///
    /// ```
    /// let clock = shmcast::Clock::of_this_host();
    /// assert!(clock.ns(clock.hz()).abs_diff(1_000_000_000) < 10, "a second");
    /// ```
    #[inline]
    pub fn ns(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.ns_per_tick)) >> 32) as u64
    }

    /// The kind of the clock: the CPU's counter or CLOCK_MONOTONIC.
    ///
    /// ```
    /// use shmcast::{Clock, ClockKind};
    /// if Clock::of_this_host().kind() == ClockKind::Monotonic {
    ///     eprintln!("reading the time costs 25 ns here");
    /// }
    /// ```
    pub fn kind(&self) -> ClockKind {
        self.kind
    }

    /// Ticks per second.
    ///
    /// ```
    /// println!("{} ticks a second", shmcast::Clock::of_this_host().hz());
    /// ```
    pub fn hz(&self) -> u64 {
        self.hz
    }
}

/// Shortest time over which the counter is measured, in nanoseconds.
const MEASURED_NS: u64 = 20_000_000;

/// CLOCK_MONOTONIC in nanoseconds and the counter, both read at the beginning of the measurement.
static BEGUN: OnceLock<(u64, u64)> = OnceLock::new();

/// Begins to measure the counter. A later [`Clock::of_this_host`] waits only for the remaining measuring time. Takes about 1 us.
pub(crate) fn begin_measuring() {
    BEGUN.get_or_init(simultaneous);
}

/// Counts ticks over at least 20 ms of CLOCK_MONOTONIC. The result is exact to a few parts in a million.
fn measure_hz() -> u64 {
    let (start_ns, start) = *BEGUN.get_or_init(simultaneous);
    let passed_ns = counter::monotonic_ns().saturating_sub(start_ns);
    std::thread::sleep(Duration::from_nanos(MEASURED_NS.saturating_sub(passed_ns)));
    let (end_ns, end) = simultaneous();
    (u128::from(end.wrapping_sub(start)) * 1_000_000_000 / u128::from(end_ns - start_ns)) as u64
}

/// Reads both clocks (the counter and CLOCK_MONOTONIC) at almost the same time. Makes 16 attempts, and returns the attempt that took the
/// shortest time.
fn simultaneous() -> (u64, u64) {
    let tries = (0..16).map(|_| {
        let before = counter::ticks();
        let ns = counter::monotonic_ns();
        let after = counter::ticks();
        (after.wrapping_sub(before), ns, before.wrapping_add(after.wrapping_sub(before) / 2))
    });
    tries.min().map(|(_, ns, ticks)| (ns, ticks)).expect("sixteen tries")
}
