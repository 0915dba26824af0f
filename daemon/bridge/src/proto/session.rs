//! The name of a session: ten bytes at the beginning of every packet. A session is one run of sequences.
//!
//! A session that shmcast makes has two parts. The first four characters stand for the channel, and the other six are the channel's epoch
//! in base 36. If a new session differs only in the epoch, a receiver knows that the channel is the same and that its publisher was
//! restarted. A session that another product makes is ten opaque bytes.
//!
//! The first four characters are the tag. If no tag is configured, the tag is a hash of the channel's whole name. The hash is SipHash-2-4
//! of the name's bytes with the key 0, modulo 62^4. It is written as four digits of `0-9A-Za-z` with the highest first.

use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;

const EPOCH_DIGITS: usize = 6;
/// The digits of tags and epochs. An epoch uses only the first 36.
const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// The least number that is too large for an epoch. An epoch has six base-36 digits.
pub const EPOCH_LIMIT: u64 = 36u64.pow(EPOCH_DIGITS as u32);

/// The error for a session name that cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The name has the wrong length or characters.
    #[error(
        "session name {name:?}: use 1 to {limit} letters, digits or punctuation of ASCII, without spaces"
    )]
    Name {
        /// The name that was given.
        name: String,
        /// The greatest number of characters that are allowed.
        limit: usize,
    },
    /// The epoch needs more than six base-36 digits.
    #[error("epoch {epoch} does not fit six base-36 digits: it must stay below {EPOCH_LIMIT}")]
    Epoch {
        /// The epoch that was given.
        epoch: u64,
    },
}

/// The ten bytes that name a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Session([u8; 10]);

impl Session {
    /// Makes a session from its bytes on the wire.
    pub const fn from_bytes(bytes: [u8; 10]) -> Session {
        Session(bytes)
    }

    /// Returns the bytes on the wire.
    pub const fn as_bytes(&self) -> &[u8; 10] {
        &self.0
    }

    /// Makes a session from its name: 1 to 10 printable characters, padded with spaces on the right.
    ///
    /// # Errors
    /// [`SessionError::Name`] if the name is empty, too long or not printable ASCII.
    pub fn named(name: &str) -> Result<Session, SessionError> {
        let mut bytes = [b' '; 10];
        pad_name(name, &mut bytes)?;
        Ok(Session(bytes))
    }

    /// Makes the session of a shmcast channel: its tag in four characters, then its epoch in six base-36 digits.
    ///
    /// # Errors
    /// [`SessionError`] if the tag is not 1 to 4 printable characters, or the epoch is too large.
    pub fn of_channel(tag: &str, epoch: u64) -> Result<Session, SessionError> {
        if epoch >= EPOCH_LIMIT {
            return Err(SessionError::Epoch { epoch });
        }
        let mut bytes = [b' '; 10];
        pad_name(tag, &mut bytes[..4])?;
        write_epoch(epoch, &mut bytes);
        Ok(Session(bytes))
    }

    /// Returns the first four bytes. In sessions that shmcast makes, these bytes stand for the channel.
    pub fn tag(&self) -> [u8; 4] {
        let [a, b, c, d, ..] = self.0;
        [a, b, c, d]
    }

    /// Returns the session with the same tag and this epoch. Returns `None` if the epoch is too large.
    pub fn with_epoch(&self, epoch: u64) -> Option<Session> {
        (epoch < EPOCH_LIMIT).then(|| {
            let mut bytes = self.0;
            write_epoch(epoch, &mut bytes);
            Session(bytes)
        })
    }

    /// Returns the epoch of a session that shmcast made. Returns `None` for any other session.
    pub fn epoch(&self) -> Option<u64> {
        self.0[4..].iter().try_fold(0u64, |epoch, &digit| match digit {
            b'0'..=b'9' => Some(epoch * 36 + u64::from(digit - b'0')),
            b'A'..=b'Z' => Some(epoch * 36 + u64::from(digit - b'A') + 10),
            _ => None,
        })
    }
}

fn write_epoch(epoch: u64, bytes: &mut [u8; 10]) {
    let mut rest = epoch;
    for digit in bytes[4..].iter_mut().rev() {
        *digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
    }
}

/// Returns the tag of a channel: a hash of its whole name in four characters.
pub fn tag_of(channel: &str) -> String {
    let mut hasher = SipHasher24::new();
    hasher.write(channel.as_bytes());
    let hash = hasher.finish();
    [62 * 62 * 62, 62 * 62, 62, 1]
        .map(|place| char::from(DIGITS[(hash / place % 62) as usize]))
        .iter()
        .collect()
}

fn pad_name(name: &str, into: &mut [u8]) -> Result<(), SessionError> {
    let sound = !name.is_empty() && name.len() <= into.len() && name.bytes().all(|b| b.is_ascii_graphic());
    if !sound {
        return Err(SessionError::Name { name: name.to_owned(), limit: into.len() });
    }
    into[..name.len()].copy_from_slice(name.as_bytes());
    Ok(())
}

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.trim_ascii_end().escape_ascii())
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tag of a channel must not change, because receivers, captures and state files contain it.
    #[test]
    fn channels_whose_names_begin_alike_have_other_tags() {
        assert_eq!(["ticks_eu", "ticks_us", "t", ""].map(tag_of), ["PPBN", "XfME", "qpIp", "wumd"]);
        let tags: std::collections::HashSet<String> =
            (0..1_000).map(|n| tag_of(&format!("ticks-{n}"))).collect();
        assert_eq!(tags.len(), 1_000);
        assert!(Session::of_channel(&tag_of("ticks_eu"), 7).is_ok());
    }

    #[test]
    fn session_keeps_channel_and_epoch_apart() {
        let session = Session::of_channel("FX", EPOCH_LIMIT - 1).unwrap();
        assert_eq!(Session::of_channel("FX", 7).unwrap().with_epoch(EPOCH_LIMIT - 1), Some(session));
        assert_eq!(session.with_epoch(EPOCH_LIMIT), None);
        assert_eq!(session.as_bytes(), b"FX  ZZZZZZ");
        assert_eq!((&session.tag(), session.epoch()), (b"FX  ", Some(EPOCH_LIMIT - 1)));
        assert!(matches!(Session::of_channel("FX", EPOCH_LIMIT), Err(SessionError::Epoch { .. })));
        assert!(matches!(Session::of_channel("FIVES", 1), Err(SessionError::Name { .. })));
        assert!(matches!(Session::named("a b"), Err(SessionError::Name { .. })));
        assert_eq!(Session::named("000123").unwrap().as_bytes(), b"000123    ");
        assert_eq!(Session::named("000123").unwrap().epoch(), None);
    }
}
