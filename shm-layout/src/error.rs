//! The errors of a segment. Each message says what is wrong and what to do next.

pub use crate::layout::geometry::GeometryError;
use crate::layout::geometry::MAX_SEQUENCE;
use std::io;
use thiserror::Error;

/// The reason why this build cannot use a segment.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file is shorter than a header page, or shorter than its header says.
    #[error("truncated: {found} B, but {needed} B are needed; remove the channel and publish again")]
    Truncated {
        /// Bytes found.
        found: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// The first word is not shmcast's magic.
    #[error("foreign: starts with {found:#018x}, which is no shmcast segment (or its creator died half way)")]
    Foreign {
        /// The first word found.
        found: u64,
    },
    /// A build with another version of the layout made the segment.
    #[error(
        "layout version {found_major}.{found_minor}, but this build reads {major}.x: use the same release on both sides"
    )]
    Version {
        /// Major version found.
        found_major: u16,
        /// Minor version found.
        found_minor: u16,
        /// Major version of this build.
        major: u16,
    },
    /// The header's checksum does not match its bytes.
    #[error(
        "damaged header: checksum {found:#010x}, computed {computed:#010x}; remove the channel and publish again"
    )]
    Checksum {
        /// Checksum stored.
        found: u32,
        /// Checksum of the bytes found.
        computed: u32,
    },
    /// The header has sizes that no correct creator writes.
    #[error("impossible sizes in the header: {0}")]
    Geometry(#[from] GeometryError),
    /// A field of the header has a value that no correct creator writes.
    #[error("damaged header: {what}")]
    Field {
        /// The field and what is wrong with it.
        what: &'static str,
    },
    /// The operating system refused a step.
    #[error("{what}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// A record that no correct writer can have written at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "corrupt record at position {position}: word {word:#018x} where sequence {sequence} was due; another program wrote to the segment: remove the channel, or begin it anew"
)]
pub struct Corrupt {
    /// The record's position, in bytes.
    pub position: u64,
    /// The sequence that was due.
    pub sequence: u64,
    /// The commit word found.
    pub word: u64,
}

/// A payload that is larger than the channel's maximum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "message of {length} B exceeds the channel's maximum of {max_message} B: make the channel with a larger maximum or capacity"
)]
pub struct TooLarge {
    /// Requested bytes.
    pub length: u64,
    /// The channel's maximum.
    pub max_message: u64,
}

/// A sequence that is too large for a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "sequence {sequence} is out of reach, since a channel counts to {MAX_SEQUENCE}: remove the channel or begin it anew"
)]
pub struct OutOfSequences {
    /// The sequence that the call would use or skip.
    pub sequence: u64,
}

/// The message needs more of the ring than the writer's bound allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "the record needs the ring up to position {frontier}, which lies beyond the writer's bound: raise the bound first"
)]
pub struct BeyondBound {
    /// The end of the space that the record needs, as a position in the ring.
    pub frontier: u64,
}

/// The reason why a message was not published. Nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum WriteError {
    /// The payload is too large.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The channel has used up its sequences.
    #[error(transparent)]
    OutOfSequences(#[from] OutOfSequences),
    /// The message has to wait until the writer's bound is raised.
    #[error(transparent)]
    BeyondBound(#[from] BeyondBound),
}
