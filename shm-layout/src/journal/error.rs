//! The reasons why bytes are not part of a journal.

use thiserror::Error;

/// The reason why bytes are not a valid part of a journal: no correct recorder wrote them, or a disk changed them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum FormatError {
    /// There are fewer bytes than this part of a file needs.
    #[error("{part}: {found} B, but {needed} B are needed")]
    Truncated {
        /// The part of the file.
        part: &'static str,
        /// Bytes found.
        found: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A part of a file does not begin with its magic number.
    #[error("{part}: does not begin as one of this format")]
    Magic {
        /// The part of the file.
        part: &'static str,
    },
    /// The file was written in another major version of the format.
    #[error("format version {major}.{minor}, but this build reads {}.x", super::VERSION.0)]
    Version {
        /// Major version found.
        major: u16,
        /// Minor version found.
        minor: u16,
    },
    /// A checksum does not match the bytes.
    #[error("{part}: checksum {found:#010x}, computed {computed:#010x}")]
    Checksum {
        /// The part of the file.
        part: &'static str,
        /// Checksum stored.
        found: u32,
        /// Checksum of the bytes found.
        computed: u32,
    },
    /// A frame belongs to another file. An older file can have left it in a reused block of the disk.
    #[error("a frame of another file: salt {found:#018x}, this file's is {salt:#018x}")]
    Salt {
        /// Salt found.
        found: u64,
        /// The file's salt, a random number.
        salt: u64,
    },
    /// A field has a value that no recorder writes.
    #[error("{part}: {what}")]
    Field {
        /// The part of the file.
        part: &'static str,
        /// The field and what is wrong with it.
        what: &'static str,
    },
}

/// Makes the error of a field.
pub(super) const fn field(part: &'static str, what: &'static str) -> FormatError {
    FormatError::Field { part, what }
}
