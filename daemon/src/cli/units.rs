//! Values of options as a person writes them, and errors that say what to write instead of an unusable one.

use bytesize::ByteSize;
use clap::builder::{PossibleValue, TypedValueParser};
use std::ffi::{CString, OsStr};
use std::net::SocketAddrV4;
use std::time::Duration;

/// Reads a value. Some of its forms are words that a shell can complete.
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

/// Reads the name that tools show for this process, of 1 to 15 bytes. The kernel keeps no more.
pub(super) fn parse_name(text: &str) -> Result<CString, String> {
    let name = CString::new(text).ok().filter(|_| (1..=15).contains(&text.len()));
    name.filter(|_| !text.contains(char::is_control))
        .ok_or_else(|| format!("{text:?} is no name for a process: write 1 to 15 bytes, as in feed-a"))
}

/// Reads `500ms`, `10s`, `1.5m` or `8h`.
pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    let unit_at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => {
            return Err(format!("{text:?} needs a unit: write it like 500ms, 10s, 5m or 8h"));
        }
    };
    let number: f64 =
        number.parse().map_err(|_| format!("{text:?} does not begin with a number: write it like 10s"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| format!("{text:?} is too long"))
}

/// Reads `1400`, `64KiB` or `1.5GB` as bytes, at least one.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    crate::config::refuse_half_unit(text)?;
    match text.parse::<ByteSize>().map(|size| size.as_u64()) {
        Ok(0) => Err("nothing fits into 0 B: give at least one byte, or leave it out".to_owned()),
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(format!("{text:?} is no size: write bytes, as in 1400, or a unit too, as in 64KiB")),
    }
}

/// Reads the mode of a directory that its owner can use: `700`, `0750` or `755`.
pub(super) fn parse_mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| mode & !0o777 == 0 && mode & 0o700 == 0o700);
    mode.ok_or_else(|| {
        format!("{text:?} is no mode of a directory of yours: write 700 (yours alone), 750 (your group reads) or 755 (all read)")
    })
}

/// Reads an IPv4 address with its port.
pub(super) fn parse_address(text: &str) -> Result<SocketAddrV4, String> {
    let address = text.parse().ok().filter(|address: &SocketAddrV4| address.port() != 0);
    address.ok_or_else(|| format!("{text:?} is no address: write IPv4:PORT, as in 239.1.2.3:30001"))
}

/// Reads the number of a CPU, and checks that a thread of this process can be pinned to it.
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
        assert_eq!(parse_address("239.1.2.3:30001"), Ok("239.1.2.3:30001".parse().expect("one")));
        for wrong in ["239.1.2.3", "239.1.2.3:0", "239.1.2.300:1", "host:1", "[::1]:1", ""] {
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
        for wrong in ["10", "s", "", "1d", "-1s", "1.2.3s", "99999999999999999999h"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }
}
