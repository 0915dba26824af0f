//! Computes the time to publish the next message: at a fixed rate, or as in the recording.

use crate::cli::stop::Stop;
use std::str::FromStr;
use std::time::{Duration, Instant};

/// A rate in messages a second, or no limit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Rate {
    Max,
    PerSecond(f64),
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let rate = positive(text.strip_suffix("/s").unwrap_or(text));
        rate.map(Self::PerSecond)
            .ok_or_else(|| "give a positive number a second, as 5000/s, or max".to_owned())
    }
}

/// The speed at which a recording is played.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Speed {
    Max,
    Times(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        let times = positive(text.strip_suffix('x').unwrap_or(text));
        times
            .map(Self::Times)
            .ok_or_else(|| "give 1 for the time it took, 10 for ten times as fast, or max".to_owned())
    }
}

fn positive(number: &str) -> Option<f64> {
    number.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
}

/// Waits by a schedule. If one message is late, the times of the next messages do not change.
pub(super) struct Pace<'a> {
    started: Instant,
    stop: &'a Stop,
}

impl<'a> Pace<'a> {
    /// The schedule begins now; `stop` ends every wait.
    pub(super) fn new(stop: &'a Stop) -> Self {
        Self { started: Instant::now(), stop }
    }

    /// Waits until the message with the number `sent`, counted from 0, is due at `rate`.
    pub(super) fn wait_turn(&self, rate: Rate, sent: u64) {
        if let Rate::PerSecond(rate) = rate {
            self.wait(sent as f64 / rate);
        }
    }

    /// Waits until a message is due. In the recording, the message came `after_ns` after the beginning.
    fn wait_recorded(&self, speed: Speed, after_ns: u64) {
        if let Speed::Times(times) = speed {
            self.wait(after_ns as f64 / 1e9 / times);
        }
    }

    fn wait(&self, after_s: f64) {
        // A pause of a recording can be longer than an `Instant` can express.
        let after = Duration::try_from_secs_f64(after_s).unwrap_or(Duration::MAX);
        loop {
            match after.saturating_sub(self.started.elapsed()) {
                Duration::ZERO => return,
                _ if self.stop.is_set() => return,
                // A sleep lasts some tens of microseconds too long. So the sleep ends early, and the loop spins until the message is due.
                left if left > Duration::from_micros(200) => {
                    let short = Duration::from_millis(100);
                    std::thread::sleep((left - Duration::from_micros(100)).min(short));
                }
                _ => std::hint::spin_loop(),
            }
        }
    }
}

/// The times at which the messages of a recording are due.
pub(super) struct Schedule<'a> {
    pace: Pace<'a>,
    speed: Speed,
    max_pause: Option<Duration>,
    /// The time at which the last message was due, counted from the first message, at speed 1.
    due_ns: u64,
    last_ns: Option<u64>,
    /// The number of pauses of the recording that were shortened.
    shortened: u64,
}

impl<'a> Schedule<'a> {
    /// Begins the schedule now. Pauses in the recording are shortened to `max_pause`. `stop` ends every wait.
    pub(super) fn new(stop: &'a Stop, speed: Speed, max_pause: Option<Duration>) -> Self {
        Self { pace: Pace::new(stop), speed, max_pause, due_ns: 0, last_ns: None, shortened: 0 }
    }

    /// Waits until a message with this recorded time is due.
    pub(super) fn wait(&mut self, wall_ns: u64) {
        if self.speed == Speed::Max {
            return;
        }
        // If the wall clock was set back between two messages, the pause is 0.
        let pause = wall_ns.saturating_sub(self.last_ns.unwrap_or(wall_ns));
        let longest =
            self.max_pause.map_or(u64::MAX, |longest| u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX));
        self.shortened += u64::from(pause > longest);
        self.due_ns = self.due_ns.saturating_add(pause.min(longest));
        self.last_ns = Some(wall_ns);
        self.pace.wait_recorded(self.speed, self.due_ns);
    }

    /// The number of pauses of the recording that were shortened.
    pub(super) fn shortened(&self) -> u64 {
        self.shortened
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_speeds_are_read_as_people_write_them() {
        assert_eq!("max".parse(), Ok(Rate::Max));
        assert_eq!("5000/s".parse(), Ok(Rate::PerSecond(5000.0)));
        assert_eq!("0.5".parse(), Ok(Rate::PerSecond(0.5)));
        assert_eq!("max".parse(), Ok(Speed::Max));
        assert_eq!("1".parse(), Ok(Speed::Times(1.0)));
        assert_eq!("2.5x".parse(), Ok(Speed::Times(2.5)));
        for bad in ["", "0", "-1/s", "fast", "inf", "nan", "5000/m", "-1x"] {
            assert!(bad.parse::<Rate>().is_err() && bad.parse::<Speed>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pause_of_a_century_ends_when_it_is_told_to() {
        let stop = Stop::set_by(signal_hook::consts::SIGINT);
        Pace::new(&stop).wait_recorded(Speed::Times(1e-300), u64::MAX);
        Pace::new(&stop).wait_recorded(Speed::Times(1.0), u64::MAX);
    }

    #[test]
    fn silence_is_shortened_and_a_clock_that_was_set_back_is_none() {
        // The stop is already set by a signal, so every wait ends at once.
        let stop = Stop::set_by(signal_hook::consts::SIGINT);
        let due = |times: &[u64], max_pause| {
            let mut schedule = Schedule::new(&stop, Speed::Times(1.0), max_pause);
            times.iter().for_each(|&time| schedule.wait(time));
            (schedule.due_ns, schedule.shortened())
        };
        let times = [5_000, 5_010, 4_000, 4_030, 1_004_030];
        assert_eq!(due(&times, None), (10 + 30 + 1_000_000, 0));
        assert_eq!(due(&times, Some(Duration::from_nanos(25))), (10 + 25 + 25, 2));
        assert_eq!(due(&[u64::MAX, 0, u64::MAX, 0, u64::MAX], None), (u64::MAX, 0));
    }
}
