//! The bytes of a journal: files that keep what a channel published. This module touches no file and makes no system call.
//!
//! `JOURNAL.md`, which lies beside `SPEC.md`, defines the format for other languages. A file is a [`FileHeader`] and a sequence of frames.
//! Each frame is a [`FrameHeader`] and a body. A sealed (finished) file ends with a footer and a [`Trailer`].
//!
//! | part | written by | read by |
//! |---|---|---|
//! | records of a data frame | [`FrameBuilder`] | [`Records`] |
//! | the frames of one file in order, index, footer, trailer | [`Composer`] | [`FrameHeader`], [`Index`], [`Footer`], [`Trailer`] |
//!
//! Another process wrote the bytes that this module decodes, and a disk can have changed them. So this module checks each length and offset
//! before it uses it, and each error says what is wrong.

mod build;
mod compose;
mod control;
mod error;
mod file;
mod frame;
mod index;
mod record;
mod trailer;

/// A control record of the ring.
pub use crate::layout::record::ControlRecord;
/// The identity of a stream. The headers of all files of a journal have the same identity.
pub use crate::layout::stream::StreamId;
pub use build::{FrameBuilder, FrameDraft};
pub use compose::Composer;
pub use control::{Cause, JournalControl, Loss, wall_ns};
pub use error::FormatError;
pub use file::{FileHeader, RingIdentity, SPARE, file_name, parse_file_name, sequence_in_name};
pub use frame::{Codec, FrameFlags, FrameHeader, FrameKind};
pub use index::{ControlEntry, Footer, Index, IndexEntry, KeyEntry};
pub use record::{Record, RecordBody, Records};
pub use trailer::Trailer;

/// First bytes of each file.
pub const FILE_MAGIC: [u8; 8] = *b"SHMCJRN1";
/// First bytes of each frame.
pub const FRAME_MAGIC: [u8; 4] = *b"SMJF";
/// First bytes of the trailer.
pub const TRAILER_MAGIC: [u8; 8] = *b"SHMCJEND";
/// The version of the format: major and minor. A reader accepts every minor version of its own major version.
pub const VERSION: (u16, u16) = (2, 0);
/// Bytes of a file's header. The first frame follows it.
pub const FILE_HEADER_BYTES: usize = 4096;
/// Bytes of a frame's header.
pub const FRAME_HEADER_BYTES: usize = 64;
/// The number of bytes of the trailer. They are the last bytes of a sealed (finished) file.
pub const TRAILER_BYTES: usize = 64;
/// Each frame starts at a multiple of this number of bytes.
pub const FRAME_ALIGN: usize = 64;
/// The size of a sealed file is a multiple of this number.
pub const PAGE: usize = 4096;
/// Largest body of a frame, in bytes as stored.
pub const MAX_BODY: usize = 1 << 25;
/// Size in bytes of a full data frame with its header. A frame with a large message can be larger.
pub const FRAME_TARGET: usize = 512 << 10;
/// After this many bytes of data frames, an index frame follows.
pub const INDEX_EVERY: u64 = 4 << 20;
/// Entries of an index lie at least this many bytes apart.
pub const ENTRY_EVERY: u64 = 64 << 10;
/// Greatest number of entries of an index, and of each of the footer's four lists.
pub const MAX_ENTRIES: usize = 16_384;
/// The distance from the next sequence to a new reserve, which is a sequence that no publisher passes. When publishers have used half of
/// this distance, the recorder writes a later reserve.
pub const RESERVE: u64 = 1 << 32;
/// The largest size of a file that a recorder makes: 64 GiB. The field for the footer's offset would allow up to 256 GiB.
pub const MAX_FILE: u64 = 64 << 30;

/// Returns the first offset, from `length` on, at which a frame can start.
pub const fn aligned(length: usize) -> usize {
    length.next_multiple_of(FRAME_ALIGN)
}

/// Reads the eight bytes at offset `at`. The caller has checked that `bytes` has them.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Reads the four bytes at offset `at`. The caller has checked that `bytes` has them.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}
