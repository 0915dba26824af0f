//! Parses the values of options. An error says what to write instead of an invalid value.

pub(super) use crate::config::parse_duration;
use bytesize::ByteSize;
use clap::builder::{PossibleValue, TypedValueParser};
use std::ffi::{CString, OsStr};
use std::net::SocketAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A parser for an option's value, which can be one of some fixed words. `read` parses every value. A shell completes the words.
#[derive(Clone)]
pub(super) struct Words<T, E> {
    words: &'static [&'static str],
    read: fn(&str) -> Result<T, E>,
}

pub(super) const fn words<T, E>(
    words: &'static [&'static str],
    read: fn(&str) -> Result<T, E>,
) -> Words<T, E> {
    Words { words, read }
}

impl<T, E> TypedValueParser for Words<T, E>
where
    T: Clone + Send + Sync + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>> + Clone + 'static,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        self.read.parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.words.iter().copied().map(PossibleValue::new)))
    }
}

/// Parses the name that tools show for this process. It has 1 to 15 bytes, because the kernel keeps no more.
pub(super) fn parse_name(text: &str) -> Result<CString, String> {
    let name = CString::new(text).ok().filter(|_| (1..=15).contains(&text.len()));
    name.filter(|_| !text.contains(char::is_control))
        .ok_or_else(|| format!("{text:?} is no name for a process: write 1 to 15 bytes, as in feed-a"))
}

/// Nanoseconds since 1970.
pub(super) fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64
}

const DAY: u64 = 24 * 3600;

/// Parses a time in UTC: `09:30` or `09:30:00.250` of today, `2026-01-31T09:30:00Z`, or `@1764000000.5`.
pub(super) fn parse_time(text: &str) -> Result<SystemTime, String> {
    let bad = || {
        format!(
            "{text:?} is no time: write HH:MM[:SS[.FRACTION]] of today, YYYY-MM-DDTHH:MM[:SS[.FRACTION]]Z, or @SECONDS, in UTC"
        )
    };
    let since = if let Some(seconds) = text.strip_prefix('@') {
        parse_seconds(seconds)
    } else if let Some((date, time)) = text.split_once(['T', ' ']) {
        let time = parse_clock(time.strip_suffix('Z').unwrap_or(time));
        parse_date(date).zip(time).map(|(days, time)| Duration::from_secs(days * DAY) + time)
    } else {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        parse_clock(text).map(|time| Duration::from_secs(now - now % DAY) + time)
    };
    since.and_then(|since| UNIX_EPOCH.checked_add(since)).ok_or_else(bad)
}

/// A place in a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Sequence(u64),
    Time(SystemTime),
}

/// Parses a position in a journal: a sequence from 1 on, or a time in the form that [`parse_time`] accepts.
pub(super) fn parse_place(text: &str) -> Result<Place, String> {
    if let Ok(sequence @ 1..) = text.parse() {
        return Ok(Place::Sequence(sequence));
    }
    parse_time(text).map(Place::Time).map_err(|_| {
        format!(
            "{text:?} is no place: write a sequence from 1 on, or a time in UTC: HH:MM[:SS[.FRACTION]] of today, \
             YYYY-MM-DDTHH:MM[:SS[.FRACTION]]Z or @SECONDS"
        )
    })
}

/// Seconds with up to nine digits of a fraction.
fn parse_seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(whole) || !all_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos = format!("{fraction:0<9}").parse().ok()?;
    let seconds: u64 = whole.parse().ok()?;
    (seconds < 1 << 40).then(|| Duration::new(seconds, nanos))
}

fn parse_clock(text: &str) -> Option<Duration> {
    let mut parts = text.splitn(3, ':');
    let (hours, minutes) = (parse_seconds(parts.next()?)?, parse_seconds(parts.next()?)?);
    let seconds = parse_seconds(parts.next().unwrap_or("0"))?;
    let is_time = hours.subsec_nanos() + minutes.subsec_nanos() == 0
        && hours.as_secs() < 24
        && minutes.as_secs() < 60
        && seconds.as_secs() < 60;
    is_time.then(|| Duration::from_secs(hours.as_secs() * 3600 + minutes.as_secs() * 60) + seconds)
}

/// Days from 1970-01-01 to a date in the Gregorian calendar.
fn parse_date(text: &str) -> Option<u64> {
    let mut parts = text.split('-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (parts.next()??, parts.next()??, parts.next()??);
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let lengths = [31, 28 + u64::from(is_leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    if !(1970..10_000).contains(&year) || !(1..=length).contains(&day) || parts.next().is_some() {
        return None;
    }
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    let years = (year - 1970) * 365 + leaps(year - 1) - leaps(1969);
    Some(years + lengths[..month as usize - 1].iter().sum::<u64>() + day - 1)
}

/// Parses a size in bytes, such as `1400`, `64KiB` or `1.5GB`. The smallest size is one byte.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    crate::config::refuse_half_unit(text)?;
    match text.parse::<ByteSize>().map(|size| size.as_u64()) {
        Ok(0) => Err("nothing fits into 0 B: give at least one byte, or leave it out".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("{text:?} is no size: write bytes, as in 1400, or a unit too, as in 64KiB")),
    }
}

/// Parses the mode of a directory: `700`, `0750` or `755`. The mode must let the owner use the directory.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0 && mode & 0o700 == 0o700);
    mode.ok_or_else(|| {
        format!("{text:?} is no mode of a directory of yours: write 700 (yours alone), 750 (your group reads) or 755 (all read)")
    })
}

/// Reads an IP address with its port.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    let address = text.parse().ok().filter(|address: &SocketAddr| address.port() != 0);
    address.ok_or_else(|| {
        format!("{text:?} is no address: write IP:PORT, as in 239.1.2.3:30001 or [ff15::1:2:3]:30001")
    })
}

/// Parses the number of a CPU. Checks that a thread of this process can be pinned to this CPU.
pub(super) fn parse_cpu(text: &str) -> Result<usize, String> {
    let cpu = text.parse().map_err(|_| format!("{text:?} is no CPU: write its number, as in 3"))?;
    let tried = std::thread::spawn(move || shmcast::pin_current_thread(cpu)).join();
    tried.expect("pinning does not panic").map_err(|e| {
        let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let online = if online.is_empty() { "unknown" } else { online.trim() };
        format!("cannot pin to CPU {cpu}: {e}: online are {online}, of which a cpuset may allow fewer")
    })?;
    Ok(cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_in_every_form_and_nothing_else() {
        let at = |seconds: u64, nanos| UNIX_EPOCH + Duration::new(seconds, nanos);
        assert_eq!(parse_time("1970-01-01T00:00Z"), Ok(at(0, 0)));
        assert_eq!(parse_time("2026-01-31T09:30:00.25Z"), Ok(at(1_769_851_800, 250_000_000)));
        assert_eq!(parse_time("2024-02-29 23:59:59"), Ok(at(1_709_251_199, 0)));
        assert_eq!(parse_time("2000-03-01T00:00:00Z"), Ok(at(951_868_800, 0)));
        assert_eq!(parse_time("@1764000000.5"), Ok(at(1_764_000_000, 500_000_000)));
        assert!(parse_time("09:30").is_ok() && parse_time("00:00:00.000000001").is_ok());
        for wrong in [
            "",
            "@",
            "9",
            "24:00",
            "09:60",
            "09:30:60",
            "2025-02-29T00:00Z",
            "2025-13-01T00:00Z",
            "@-1",
            "@1.0000000001",
            "1969-12-31T00:00Z",
            "09:30.5",
            "@99999999999999",
        ] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_place_is_a_sequence_or_a_time() {
        assert_eq!(parse_place("4711"), Ok(Place::Sequence(4711)));
        assert_eq!(parse_place("@4711"), Ok(Place::Time(UNIX_EPOCH + Duration::from_secs(4711))));
        for wrong in ["", "0", "-1", "yesterday", "99999999999999999999", "24:00"] {
            let said = parse_place(wrong).expect_err(wrong);
            assert!(said.contains("sequence") && said.contains("HH:MM"), "{said}");
        }
    }

    #[test]
    fn a_size_of_nothing_or_of_no_number() {
        assert_eq!(parse_size("1400"), Ok(1400));
        assert_eq!(parse_size("64KiB"), Ok(64 << 10));
        for wrong in ["0", "0KiB", "0.1", "lots", "", "-1", "1XB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        for (wrong, hint) in [
            ("64M", "write 64MiB (67108864 B) or 64MB (64000000 B)"),
            ("1.5 g", "write 1.5GiB (1610612736 B) or 1.5GB (1500000000 B)"),
            ("M", "no size"),
        ] {
            let said = parse_size(wrong).expect_err(wrong);
            assert!(said.contains(hint), "{said}");
        }
    }

    #[test]
    fn a_mode_that_locks_its_owner_out_or_is_no_mode() {
        assert_eq!(["700", "0750", "755"].map(parse_mode), [0o700, 0o750, 0o755].map(Ok));
        for wrong in ["", "0", "rwx", "800", "644", "1777", "-755", "0o755"] {
            assert!(parse_mode(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_address_without_a_port() {
        for right in ["239.1.2.3:30001", "[ff15::1]:30001", "[fe80::1%3]:30002"] {
            assert_eq!(parse_address(right), Ok(right.parse().expect("one")));
        }
        for wrong in
            ["239.1.2.3", "239.1.2.3:0", "239.1.2.300:1", "host:1", "::1", "[::1]", "[::1]:0", "[::g]:1", ""]
        {
            assert!(parse_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_cpu_that_is_not_there() {
        let known = parse_cpu("100000").expect_err("no machine has it");
        assert!(known.contains("online are 0"), "{known}");
        assert!(parse_cpu("two").is_err());
    }

    #[test]
    fn a_duration_without_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("1.5m"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_duration("8h"), Ok(Duration::from_secs(8 * 3600)));
        for wrong in ["10", "s", "", "1w", "-1s", "1.2.3s", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
