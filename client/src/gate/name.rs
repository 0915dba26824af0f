//! Names of gates, and the reasons why a gate cannot be used.

use shmcast_layout::layout::gate::{MAX_GATES, NAME_BYTES};
use std::fmt;
use thiserror::Error;

/// The name of a gate. It has 1 to 31 letters, digits and `. _ - : @ +`, and does not begin with `.` or `-`.
///
/// The name is a plain value, so an error can contain it without an allocation.
///
/// ```
/// let name: shmcast::GateName = "risk".parse()?;
/// assert_eq!(name.as_str(), "risk");
/// assert!("no spaces".parse::<shmcast::GateName>().is_err());
/// # Ok::<(), shmcast::GateError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct GateName {
    bytes: [u8; NAME_BYTES],
    length: u8,
}

impl GateName {
    /// The name as text.
    ///
    /// ```
    /// # use shmcast::GateName;
    /// assert_eq!("risk".parse::<GateName>()?.as_str(), "risk");
    /// # Ok::<(), shmcast::GateError>(())
    /// ```
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).expect("made of ASCII alone")
    }
}

impl std::str::FromStr for GateName {
    type Err = GateError;

    fn from_str(name: &str) -> Result<Self, GateError> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || "._-:@+".contains(c);
        let why = match name {
            "" => "is empty",
            _ if name.len() > NAME_BYTES => "is longer than 31 bytes",
            _ if name.starts_with(['.', '-']) => "must not begin with '.' or '-'",
            _ if !name.chars().all(allowed) => "may hold letters, digits and . _ - : @ + only",
            _ => {
                let mut bytes = [0; NAME_BYTES];
                bytes[..name.len()].copy_from_slice(name.as_bytes());
                return Ok(Self { bytes, length: name.len() as u8 });
            }
        };
        Err(GateError::Name { why })
    }
}

impl fmt::Display for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for GateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The reason why a gate cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GateError {
    /// The name is not valid for a gate.
    #[error("the name {why}")]
    Name {
        /// The fault that was found.
        why: &'static str,
    },
    /// Two gates of the channel have this name.
    #[error("two gates have this name: a gate has one reader at a time")]
    Twice,
    /// The channel would have too many gates.
    #[error("a channel has at most {MAX_GATES} gates")]
    TooMany,
    /// The lag is out of range for this ring. With a smaller lag the publisher could not continue, and with a larger
    /// one the reader could be lapped.
    #[error("a lag of {lag} B does not fit this ring: give {least} to {most} B")]
    Lag {
        /// The requested lag, in bytes.
        lag: u64,
        /// The least lag is the sum of these sizes in bytes: two records of the largest size, a chunk, and the bytes that the publisher
        /// cleans ahead.
        least: u64,
        /// The largest lag, in bytes: the capacity less two chunks.
        most: u64,
    },
    /// A daemon owns the channel, and its configuration has the gates.
    #[error("a daemon owns the channel: name its gates in the daemon's configuration, in [[channel.gate]]")]
    Hosted,
    /// The channel has no such gate.
    #[error(
        "the channel has no such gate (it has {}): its publisher names its gates when it opens the channel",
        listed(gates)
    )]
    Unknown {
        /// The names of the channel's gates.
        gates: Vec<String>,
    },
    /// Another reader has the gate.
    #[error("another reader has it (pid {}): a gate has one reader at a time", shown(*pid))]
    Taken {
        /// The process id that the gate's present reader claims; 0 if the reader claims no process id.
        pid: u64,
    },
    /// The content of the gate's file is not a gate page.
    #[error("its file is not a gate's page: start the publisher again, which makes the file anew")]
    Damaged,
}

fn listed(gates: &[String]) -> String {
    if gates.is_empty() { "none".into() } else { gates.join(", ") }
}

fn shown(pid: u64) -> String {
    if pid == 0 { "unknown".into() } else { pid.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_a_directory_or_not_fit_a_page_are_refused() {
        for bad in ["", ".", "..", "a/b", "-x", ".x", "a b", "ä", "a\0", &"x".repeat(32)] {
            assert!(bad.parse::<GateName>().is_err(), "{bad:?}");
        }
        for good in ["risk", "a.b_c-d:e@f+g", &"x".repeat(31)] {
            let name: GateName = good.parse().unwrap();
            assert_eq!(
                (name.as_str(), format!("{name}"), format!("{name:?}")),
                (good, good.into(), format!("{good:?}"))
            );
        }
    }
}
