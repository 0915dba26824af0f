//! The keys of a group. The holder of a key can send, and can read everything that was sealed with the key.
//!
//! A keys file has one key per line: `ID HEX [from TIME]`.
//!
//! - ID is 1 to 255.
//! - HEX is a key of 128 bits, written as 32 digits.
//! - TIME is a time in UTC, such as `2026-11-24T07:00:00Z`. The key can seal packets from this time on. A key without TIME can always seal
//!   packets.
//!
//! Of the keys that can seal packets now, the key with the highest ID seals them. All keys open packets. Empty lines and lines that begin
//! with `#` are ignored.

use std::fmt;

/// The size of a key in bytes.
pub const KEY_BYTES: usize = 16;
/// The greatest number of keys in one file.
pub const MAX_KEYS: usize = 16;

/// A mistake in a keys file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct KeysError {
    /// The line, from 1.
    pub line: usize,
    /// The problem, and what to write instead.
    pub what: &'static str,
}

/// One key of a group.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GroupKey {
    /// The key's ID, 1 to 255.
    pub id: u8,
    /// The time at which the key begins to seal, in nanoseconds since 1970.
    pub from_ns: u64,
    pub(super) secret: [u8; KEY_BYTES],
}

impl fmt::Debug for GroupKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GroupKey {{ id: {}, from_ns: {}, .. }}", self.id, self.from_ns)
    }
}

/// The keys of a group, in the order of their IDs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keyring(Vec<GroupKey>);

impl Keyring {
    /// Parses a keys file.
    ///
    /// # Errors
    /// [`KeysError`] for the first line that is invalid, and for a file without a key.
    pub fn parse(text: &str) -> Result<Keyring, KeysError> {
        let mut keys: Vec<GroupKey> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let error = |what| KeysError { line: index + 1, what };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let key = parse_line(line).map_err(error)?;
            if keys.iter().any(|known| known.id == key.id) {
                return Err(error("this ID is there twice: give each key an ID of its own"));
            }
            if keys.len() == MAX_KEYS {
                return Err(error("too many keys: at most 16, so remove the old ones"));
            }
            keys.push(key);
        }
        if keys.is_empty() {
            return Err(KeysError { line: 1, what: "no key: add one with `shmcast bridge key new`" });
        }
        keys.sort_by_key(|key| key.id);
        Ok(Keyring(keys))
    }

    /// Returns the key that seals at this time. If no key's time has come yet, returns the key with the earliest time.
    pub fn sealing(&self, wall_ns: u64) -> Option<&GroupKey> {
        let due = self.0.iter().rev().find(|key| key.from_ns <= wall_ns);
        due.or_else(|| self.0.iter().min_by_key(|key| key.from_ns))
    }

    /// The key with this ID.
    pub fn of(&self, id: u8) -> Option<&GroupKey> {
        self.0.iter().find(|key| key.id == id)
    }

    /// All keys, in the order of their IDs.
    pub fn keys(&self) -> &[GroupKey] {
        &self.0
    }
}

fn parse_line(line: &str) -> Result<GroupKey, &'static str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (id, hex, from) = match words[..] {
        [id, hex] => (id, hex, None),
        [id, hex, "from", time] => (id, hex, Some(time)),
        _ => return Err("write `ID HEX` or `ID HEX from TIME`"),
    };
    let id = id.parse().ok().filter(|id| *id != 0).ok_or("the ID is a number from 1 to 255")?;
    let secret = parse_hex(hex).ok_or("the key is 32 hexadecimal digits")?;
    let from_ns = match from {
        Some(time) => parse_time(time).ok_or("the time is one in UTC, as in 2026-11-24T07:00:00Z")?,
        None => 0,
    };
    Ok(GroupKey { id, from_ns, secret })
}

fn parse_hex(text: &str) -> Option<[u8; KEY_BYTES]> {
    let digits: Vec<u32> = text.chars().map(|digit| digit.to_digit(16)).collect::<Option<_>>()?;
    let mut bytes = [0; KEY_BYTES];
    if digits.len() != 2 * KEY_BYTES {
        return None;
    }
    bytes
        .iter_mut()
        .zip(digits.chunks_exact(2))
        .for_each(|(byte, pair)| *byte = (pair[0] << 4 | pair[1]) as u8);
    Some(bytes)
}

// Returns the nanoseconds since 1970 of a time such as 2026-11-24T07:00:00Z.
fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let numbers =
        |text: &str, by| -> Option<Vec<u64>> { text.split(by).map(|number| number.parse().ok()).collect() };
    let (date, time) = (numbers(date, '-')?, numbers(time, ':')?);
    let ([year, month, day], [hour, minute, second]) = (date[..].try_into().ok()?, time[..].try_into().ok()?);
    let is_leap = |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let lengths = [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let length = *lengths.get(usize::try_from(month).ok()?.checked_sub(1)?)?;
    let is_real = (1970..2500).contains(&year)
        && (1..=length).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    if !is_real {
        return None;
    }
    let years: u64 = (1970..year).map(|year| if is_leap(year) { 366 } else { 365 }).sum();
    let days = years + lengths[..month as usize - 1].iter().sum::<u64>() + day - 1;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "000102030405060708090a0b0c0d0eFF";

    #[test]
    fn the_highest_key_whose_time_has_come_seals() {
        let ring = Keyring::parse(&format!(
            "# a group\n\n 9 {HEX} from 2026-11-24T07:00:00Z\n2 {HEX}\n7 {HEX} from 1970-01-01T00:00:01Z\n"
        ))
        .unwrap();
        let sealing = |wall_ns| ring.sealing(wall_ns).unwrap().id;
        let from_ns = 1_795_503_600 * 1_000_000_000;
        assert_eq!([0, 999_999_999, 1_000_000_000, from_ns - 1, from_ns].map(sealing), [2, 2, 7, 7, 9]);
        assert_eq!(ring.keys().iter().map(|key| key.id).collect::<Vec<_>>(), [2, 7, 9]);
        assert_eq!((ring.of(7).unwrap().secret[15], ring.of(8)), (0xFF, None));
        let later = Keyring::parse(&format!("5 {HEX} from 2030-01-01T00:00:00Z")).unwrap();
        assert_eq!(later.sealing(0).unwrap().id, 5, "a group without a key of now uses its next one");
        assert!(!format!("{ring:?}").contains("255"), "a key is shown: {ring:?}");
    }

    #[test]
    fn each_mistake_is_named_with_its_line() {
        let what = |text: &str| {
            Keyring::parse(text)
                .map(drop)
                .map_err(|error| (error.line, error.what.chars().take(12).collect()))
        };
        let is =
            |text: &str, line, begins: &str| assert_eq!(what(text), Err((line, begins.to_owned())), "{text}");
        is("# none", 1, "no key: add ");
        is("0 00", 1, "the ID is a ");
        is("\n256 00", 2, "the ID is a ");
        is(&format!("1 {HEX}0"), 1, "the key is 3");
        is("1 000102030405060708090a0b0c0d0eXX", 1, "the key is 3");
        is(&format!("1 {HEX}\n1 {HEX}"), 2, "this ID is t");
        is(&format!("1 {HEX} since 2026"), 1, "write `ID HE");
        for time in [
            "2026-02-29T00:00:00Z",
            "2026-11-24T24:00:00Z",
            "2026-11-24",
            "2026-13-01T00:00:00Z",
            "now",
            "2026-0-1T0:0:0Z",
        ] {
            is(&format!("1 {HEX} from {time}"), 1, "the time is ");
        }
        assert_eq!(parse_time("2024-02-29T12:00:00Z"), Some(1_709_208_000 * 1_000_000_000));
        let many: String = (1..=17).map(|id| format!("{id} {HEX}\n")).collect();
        is(&many, 17, "too many key");
    }
}
