//! Converts publish times between hosts. In a ring, times are ticks of the channel's clock. On the wire, times are nanoseconds since 1970.
//!
//! Every few milliseconds, the channel's clock and the wall clock are read at the same moment. Times near this moment are computed from the
//! two readings, without reading a clock.

use shmcast::Clock;
use shmcast::hosting::fault;
use shmcast::sys::clock;

use super::proto::MICROSECOND_NS;
use super::proto::native::pulse::{Pulse, UNSYNCHRONISED};
use super::socket::RefusedSettings;
use super::spec::{ReceiveSpec, TimeMode};
use super::thread::wall_ns;

/// If two readings of the channel's clock are less than this apart, the reading of the wall clock between them is exact enough. The unit is
/// nanoseconds.
const CLOSE_NS: u64 = 1_000;
/// The greatest distance, in ticks, of a message's time from the present. A message's time has 48 bits. The limit is lower than these bits
/// allow, because some time passes until the message is read.
const FARTHEST_TICKS: u64 = (1 << 47) - (1 << 44);
/// The limit for repeated readings. Both clocks are read again until the readings are close together, but at most this number of times.
const READINGS: usize = 8;

/// One moment, in the time of a ring's clock and in the time of the wall clock.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    clock: Clock,
    ticks: u64,
    wall_ns: u64,
}

impl Moment {
    /// Reads a ring's clock and the wall clock at the same moment.
    pub fn now(clock: Clock) -> Moment {
        let read = |_| {
            let (before, wall_ns, after) = (clock.now(), wall_ns(), clock.now());
            let took_ns = clock.ns_between(before, after);
            (took_ns, Moment { clock, ticks: before + (after - before) / 2, wall_ns })
        };
        let mut best = read(0);
        for again in (1..READINGS).map(read) {
            if again.0 < best.0 {
                best = again;
            }
            if best.0 < CLOSE_NS {
                break;
            }
        }
        best.1
    }

    /// Returns this moment if it is a moment of `clock`, and otherwise the present moment of `clock`.
    #[inline]
    pub fn on(self, clock: Clock) -> Moment {
        match self.clock == clock || fault!("times_of_the_ring_before") {
            true => self,
            false => Moment::now(clock),
        }
    }

    /// Converts a message's time from ticks to nanoseconds since 1970. Returns 0 if the message has no time.
    #[inline]
    pub fn wall_of(&self, time: u64) -> u64 {
        // Times have 48 bits. The shifts give their difference its sign.
        let ahead = (time.wrapping_sub(self.ticks) << 16).cast_signed() >> 16;
        match time {
            0 => 0,
            _ if ahead >= 0 => self.wall_ns.saturating_add(self.clock.ns(ahead.unsigned_abs())),
            _ => self.wall_ns.saturating_sub(self.clock.ns(ahead.unsigned_abs())),
        }
    }

    /// Converts nanoseconds since 1970 to ticks. Returns `None` if the time is so far from this moment that the 48 bits of a message's time
    /// would mean another time.
    #[inline]
    pub(crate) fn ticks_of(&self, wall_ns: u64) -> Option<u64> {
        let away_ns = wall_ns.abs_diff(self.wall_ns);
        let ticks = u128::from(away_ns) * u128::from(self.clock.hz()) / 1_000_000_000;
        let ticks =
            u64::try_from(ticks).ok().filter(|ticks| *ticks < FARTHEST_TICKS || fault!("times_wrap"))?;
        Some(match wall_ns >= self.wall_ns {
            true => self.ticks.wrapping_add(ticks),
            false => self.ticks.wrapping_sub(ticks),
        })
    }
}

/// Returns the greatest possible error of this host's clock in nanoseconds, as packets to receivers state it. The value is
/// [`UNSYNCHRONISED`] if the system does not know the error.
pub fn own_error_ns() -> u32 {
    let error_ns = clock::error_ns().ok().flatten();
    error_ns.and_then(|error_ns| u32::try_from(error_ns).ok()).unwrap_or(UNSYNCHRONISED)
}

/// Notes a refusal if the system does not report the error of its clock. Call this at the start. Later readings note nothing.
pub(super) fn note_unknown_error(refusals: &mut RefusedSettings) {
    if let Err(e) = clock::error_ns() {
        let what = "it is unknown, so messages get the time of their arrival unless the receiver has clock_limit_us = 0";
        refusals.0.push(format!("error of the clock: {e}: {what}"));
    }
}

/// Decides whether messages keep the times of their publication, and converts these times.
#[derive(Debug)]
pub struct OriginTimes {
    /// The error of each clock must be below this limit, in nanoseconds; with 0, any error is accepted. `None` if messages get the times of
    /// their arrival.
    limit_ns: Option<u64>,
    moment: Option<Moment>,
    pub(super) own_error_ns: u32,
    pub(super) sender_error_ns: u32,
}

impl OriginTimes {
    /// Makes the choice of message times from the spec of a receiver.
    pub fn of(receive: &ReceiveSpec) -> OriginTimes {
        OriginTimes::new(match receive.time {
            TimeMode::Origin => Some(u64::from(receive.clock_limit_us) * MICROSECOND_NS),
            TimeMode::Arrival => None,
        })
    }

    /// Makes the choice of message times. With `None`, messages get the times of their arrival. With 0, any error of the clocks is
    /// accepted.
    pub fn new(limit_ns: Option<u64>) -> OriginTimes {
        let unknown = UNSYNCHRONISED;
        OriginTimes { limit_ns, moment: None, own_error_ns: unknown, sender_error_ns: unknown }
    }

    /// Reads the present time, and the errors of the clocks at both ends. By these errors, decides again whether messages keep the times of
    /// their publication. Call this every few milliseconds.
    pub fn refresh(&mut self, clock: Option<Clock>, pulse: Option<&Pulse>) {
        let Some(limit_ns) = self.limit_ns else { return };
        self.own_error_ns = own_error_ns();
        self.sender_error_ns = pulse.map_or(UNSYNCHRONISED, |pulse| pulse.clock_error_ns);
        let is_good =
            |error_ns: u32| limit_ns == 0 || error_ns != UNSYNCHRONISED && u64::from(error_ns) < limit_ns;
        let both = is_good(self.own_error_ns) && is_good(self.sender_error_ns);
        self.moment = clock.filter(|_| both).map(Moment::now);
    }

    /// Notes the clock of the ring that messages are published into. If the limit is 0, clock errors do not matter, so the times of
    /// publication are kept from now on, even before the first pulse (a packet with the sender's clock error) has arrived.
    pub(crate) fn begin(&mut self, clock: Clock) {
        match self.moment {
            Some(moment) => self.moment = Some(moment.on(clock)),
            None if fault!("times_begin_late") => {}
            None => self.refresh(Some(clock), None),
        }
    }

    /// Converts a message's publish time to ticks. Returns `None` if the message gets the time of its arrival: publish times are not kept,
    /// `time_ns` is 0, or `time_ns` does not fit the 48 bits of a message's time.
    #[inline]
    pub(crate) fn ticks_of(&self, time_ns: u64) -> Option<u64> {
        let moment = self.moment.filter(|_| time_ns != 0)?;
        moment.ticks_of(time_ns)
    }

    /// Whether messages keep the times of their publication.
    pub(crate) fn are_kept(&self) -> bool {
        self.moment.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_goes_to_the_wire_and_comes_back() {
        let clock = Clock::of_this_host();
        let moment = Moment::now(clock);
        for ns in [0, 1_000, 5_000_000, 3_600_000_000_000] {
            for wall_ns in [moment.wall_ns - ns, moment.wall_ns + ns] {
                let ticks = moment.ticks_of(wall_ns).unwrap();
                let back = moment.wall_of(ticks & ((1 << 48) - 1));
                assert!(back.abs_diff(wall_ns) <= 1 + ns / 1_000_000_000, "{wall_ns} came back as {back}");
            }
        }
        assert_eq!(moment.wall_of(0), 0, "a message without a time");
        // A time is far away if a host's clock was set, or if a journal is old. An earlier mistake: such a time was converted to a wrong
        // time.
        let farthest_ns = clock.ns(FARTHEST_TICKS);
        for (ns, is_told) in
            [(farthest_ns - 1_000_000, true), (farthest_ns + 1_000_000, false), (u64::MAX / 4, false)]
        {
            for wall_ns in [moment.wall_ns.saturating_sub(ns), moment.wall_ns.saturating_add(ns)] {
                assert_eq!(moment.ticks_of(wall_ns).is_some(), is_told, "{ns}");
            }
        }
    }

    #[test]
    fn a_moment_of_another_clock_is_read_anew() {
        let moment = Moment::now(Clock::of_this_host());
        let dir = tempfile::tempdir().unwrap();
        let channel = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
        let other = channel.clock_kind(shmcast::ClockKind::Monotonic).open().unwrap().clock();
        let on = moment.on(other);
        assert!(on.clock == other && on.ticks.abs_diff(other.now()) < 60_000_000_000);
        assert_eq!(moment.on(moment.clock).ticks, moment.ticks);
    }

    #[test]
    fn times_are_kept_only_while_both_clocks_are_good() {
        let (clock, pulse) =
            (Some(Clock::of_this_host()), |clock_error_ns| Pulse { clock_error_ns, ..Pulse::default() });
        let kept = |limit_ns, pulse: Option<Pulse>| {
            let mut times = OriginTimes::new(limit_ns);
            times.refresh(clock, pulse.as_ref());
            times.are_kept()
        };
        assert!(kept(Some(0), Some(pulse(UNSYNCHRONISED))) && kept(Some(0), None));
        assert!(!kept(Some(4_000_000_000), None) && !kept(None, Some(pulse(0))));
        assert!(!kept(Some(1_000), Some(pulse(1_000))) && !kept(Some(1_000), Some(pulse(UNSYNCHRONISED))));
        for (limit_ns, is_kept) in [(Some(0), true), (Some(4_000_000_000), false), (None, false)] {
            let mut times = OriginTimes::new(limit_ns);
            times.begin(Clock::of_this_host());
            assert_eq!(times.are_kept(), is_kept, "{limit_ns:?}: from the first message on");
        }
        let is_own_good = own_error_ns() < 4_000_000_000;
        assert_eq!(kept(Some(4_000_000_000), Some(pulse(999))), is_own_good);
    }
}
