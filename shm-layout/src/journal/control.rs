//! The control records of a journal.

use super::error::{FormatError, field};
use super::u64_at;
use crate::layout::geometry::MAX_SEQUENCE;
use crate::layout::record::{ControlRecord, NO_TIME};

const PART: &str = "control record";

/// Converts a record's `time` to the wall clock, in nanoseconds since 1970; `None` without a time. The first argument is the wall clock,
/// and the ring's clock in ticks, both read at one moment near `time`. `clock_hz` is the number of ticks per second.
///
/// ```
/// use shmcast_layout::journal::wall_ns;
/// assert_eq!(wall_ns((5_000_000_000, 100), 10, 95), Some(4_500_000_000));
/// assert_eq!(wall_ns((5_000_000_000, 100), 10, 0), None);
/// ```
pub fn wall_ns((wall_ns, ticks): (u64, u64), clock_hz: u64, time: u64) -> Option<u64> {
    // The clock has 48 bits, so the shifts keep the sign of the difference.
    let since = i128::from((time.wrapping_sub(ticks) << 16).cast_signed() >> 16);
    let since_ns = since * 1_000_000_000 / i128::from(clock_hz.max(1));
    (time != NO_TIME).then(|| wall_ns.saturating_add_signed(since_ns as i64))
}

/// The reason why sequences are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The recorder was lapped.
    Overrun,
    /// Nothing was recorded: the recorder was switched off, its disk was full, or it had failed.
    Unrecorded,
    /// The messages were written, but were not durable when the power failed.
    Torn,
    /// The messages were durable, but the disk lost or changed them.
    Damaged,
    /// The channel skipped these sequences after a power cut, so that no sequence is used twice. The first of them can have belonged to
    /// messages that were not durable, but nobody knows to how many. The stream will have no message with these sequences.
    Reserve,
    /// A tool removed the messages.
    Cut,
    /// The messages never arrived at this host: the ring itself has a gap there. No loss record has this cause, because a journal has
    /// separate records for gaps of the ring.
    Gap,
    /// A cause that a later minor version added.
    Other(u64),
}

impl Cause {
    /// Returns the number as which the cause is stored.
    pub const fn number(self) -> u64 {
        match self {
            Self::Overrun => 1,
            Self::Unrecorded => 2,
            Self::Torn => 3,
            Self::Damaged => 4,
            Self::Reserve => 5,
            Self::Cut => 6,
            Self::Gap => 7,
            Self::Other(number) => number,
        }
    }

    /// Returns the cause that is stored as this number.
    pub const fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Overrun,
            2 => Self::Unrecorded,
            3 => Self::Torn,
            4 => Self::Damaged,
            5 => Self::Reserve,
            6 => Self::Cut,
            7 => Self::Gap,
            other => Self::Other(other),
        }
    }

    /// The name that tools and metrics show.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Overrun => "overrun",
            Self::Unrecorded => "unrecorded",
            Self::Torn => "torn",
            Self::Damaged => "damaged",
            Self::Reserve => "reserve",
            Self::Cut => "cut",
            Self::Gap => "gap",
            Self::Other(_) => "other",
        }
    }
}

/// Sequences that the journal reports as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loss {
    /// First missing sequence.
    pub from: u64,
    /// Last missing sequence, inclusive.
    pub to: u64,
    /// The reason why the sequences are missing.
    pub cause: Cause,
}

/// A control record in a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JournalControl {
    /// A control record of the ring: kinds 1 to 63.
    Ring(ControlRecord),
    /// From here on, the messages come from this ring. A reader that has read the journal continues in a ring only if the journal names
    /// this ring.
    Source {
        /// The ring's uuid.
        ring: [u64; 2],
        /// The channel's generation; 0 if no daemon counts the channel's generations.
        generation: u64,
        /// The publisher's epoch at that time.
        epoch: u64,
        /// The first sequence that was taken from the ring.
        first: u64,
    },
    /// Missing sequences. The record after this one has the sequence `to + 1`.
    Loss(Loss),
    /// The wall clock and the ring's clock at one moment.
    Clock {
        /// Wall clock, in nanoseconds since 1970.
        wall_ns: u64,
        /// The ring's clock, in its ticks.
        ticks: u64,
        /// The nanoseconds by which the wall clock was set forward since the previous clock record; negative if it was set back, 0 if it
        /// was not set.
        step_ns: i64,
    },
    /// The reserve. No publisher uses a higher sequence before a later reserve record is durable.
    Reserve {
        /// The highest sequence that publishers are allowed to use.
        sequence: u64,
    },
    /// When the recorder wrote this record, the channel was closed and nobody else had its writer lock. So nothing was published after the
    /// messages before this record.
    Clean {
        /// The sequence of the next message.
        next: u64,
    },
    /// The result of the repair of a file by recovery.
    Mended {
        /// The file's number.
        file: u64,
        /// Whole frames that were kept.
        frames: u64,
        /// Number of dropped bytes, which were after the last whole frame.
        bytes: u64,
    },
    /// A kind that a later minor version added; readers skip it.
    Unknown {
        /// The unknown kind.
        kind: u64,
    },
}

impl JournalControl {
    /// Largest payload of a control record that this version writes, in bytes.
    pub const MAX_BYTES: usize = 48;

    /// The kind of [`Source`](Self::Source) as stored.
    pub const SOURCE: u64 = 64;
    /// The kind of [`Reserve`](Self::Reserve) as stored.
    pub const RESERVE: u64 = 67;
    /// The kind of [`Clean`](Self::Clean) as stored.
    pub const CLEAN: u64 = 68;

    /// Returns the number as which the record's kind is stored.
    pub const fn kind(self) -> u64 {
        match self {
            Self::Ring(control) => control.words()[0],
            Self::Source { .. } => Self::SOURCE,
            Self::Loss(_) => 65,
            Self::Clock { .. } => 66,
            Self::Reserve { .. } => Self::RESERVE,
            Self::Clean { .. } => Self::CLEAN,
            Self::Mended { .. } => 69,
            Self::Unknown { kind } => kind,
        }
    }

    /// The payload words, and how many of them are stored.
    pub const fn words(self) -> ([u64; 6], usize) {
        let kind = self.kind();
        match self {
            Self::Ring(control) => {
                let [_, a, b] = control.words();
                ([kind, a, b, 0, 0, 0], 3)
            }
            Self::Source { ring: [a, b], generation, epoch, first } => {
                ([kind, a, b, generation, epoch, first], 6)
            }
            Self::Loss(Loss { from, to, cause }) => ([kind, from, to, cause.number(), 0, 0], 4),
            Self::Clock { wall_ns, ticks, step_ns } => ([kind, wall_ns, ticks, step_ns as u64, 0, 0], 4),
            Self::Reserve { sequence } => ([kind, sequence, 0, 0, 0, 0], 2),
            Self::Clean { next } => ([kind, next, 0, 0, 0, 0], 2),
            Self::Mended { file, frames, bytes } => ([kind, file, frames, bytes, 0, 0], 4),
            Self::Unknown { kind } => ([kind, 0, 0, 0, 0, 0], 1),
        }
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// [`FormatError`] if the payload is too short for its kind, or has its sequences in the wrong order.
    pub(crate) fn decode(payload: &[u8]) -> Result<Self, FormatError> {
        let count = payload.len() / 8;
        let word = |at: usize| if at < count { u64_at(payload, at * 8) } else { 0 };
        let needed = match word(0) {
            _ if count == 0 => 1,
            1..64 => 3,
            Self::SOURCE => 6,
            65 | 66 | 69 => 4,
            Self::RESERVE | Self::CLEAN => 2,
            _ => 1,
        };
        if count < needed {
            return Err(FormatError::Truncated { part: PART, found: payload.len(), needed: needed * 8 });
        }
        Ok(match word(0) {
            0 => return Err(field(PART, "kind 0")),
            1..64 => {
                let control = ControlRecord::from_words([word(0), word(1), word(2)]);
                Self::Ring(control.ok_or(field(PART, "a gap whose ends are in the wrong order"))?)
            }
            Self::SOURCE => {
                Self::Source { ring: [word(1), word(2)], generation: word(3), epoch: word(4), first: word(5) }
            }
            65 if word(1) == 0 || word(1) > word(2) || word(2) >= MAX_SEQUENCE => {
                return Err(field(PART, "a loss whose ends are in the wrong order"));
            }
            65 => Self::Loss(Loss { from: word(1), to: word(2), cause: Cause::from_number(word(3)) }),
            66 => Self::Clock { wall_ns: word(1), ticks: word(2), step_ns: word(3) as i64 },
            Self::RESERVE => Self::Reserve { sequence: word(1) },
            Self::CLEAN => Self::Clean { next: word(1) },
            69 => Self::Mended { file: word(1), frames: word(2), bytes: word(3) },
            kind => Self::Unknown { kind },
        })
    }

    /// Returns the first missing sequence of a gap or a loss, and the sequence after the last missing one; `None` for other records.
    pub const fn skipped(self) -> Option<(u64, u64)> {
        match self.missing() {
            Some(Loss { from, to, .. }) => Some((from, to + 1)),
            None => None,
        }
    }

    /// Returns the missing sequences of a loss, or of a gap of the ring (with [`Cause::Gap`]); `None` for other records.
    pub const fn missing(self) -> Option<Loss> {
        match self {
            Self::Ring(ControlRecord::Gap { from, to }) => Some(Loss { from, to, cause: Cause::Gap }),
            Self::Loss(loss) => Some(loss),
            _ => None,
        }
    }
}
