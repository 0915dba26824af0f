//! The recorder's logic, without files, clocks or threads.
//!
//! - [`Packer`] packs events into frames.
//! - [`Writer`] takes frames, results of operations and the time, and returns operations.
//! - [`recover`] repairs a journal after a crash.
//!
//! `sim` runs these three items on a simulated disk that loses power.
//!
//! Operations belong to three [`Lane`]s. A lane performs one operation at a time, in order. The lanes run in parallel.

#[cfg(test)]
mod model;
mod mutant;
mod packer;
mod pages;
mod recover;
mod refusals;
#[cfg(test)]
mod retries;
mod scan;
mod settings;
#[cfg(test)]
mod sim;
mod watermarks;
mod writer;

pub use packer::{Begin, CLOCK_RECORD, Packer, Packing, Pool};
pub use pages::{Memory, Pages, Stretch};
pub use recover::{Mended, RecoverError, Recovered, Volume, recover};
pub use scan::Scan;
pub use settings::{Io, Settings, State};
pub(crate) use writer::NEXT_FILE;
pub use writer::Writer;

use shmcast::journal::format::{FileHeader, FrameDraft};
use std::sync::Arc;
use std::time::Duration;

/// The present time of two clocks, as the caller has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The time since a fixed moment. This time never goes back.
    pub mono: Duration,
    /// Wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
}

/// The policy for making written data safe from a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// A file is synced only when it is finished, or when it gets a reserve record (the sequences that publishers are allowed to use). A
    /// power cut loses all bytes that the kernel has not yet written to the disk.
    None,
    /// Files are synced at this interval, while writes continue. Reserve records are synced immediately, because publishers might be
    /// waiting for them.
    Interval(Duration),
    /// Each write returns only when its data is safe from a power cut.
    Each,
}

/// A closed frame: its description and its bytes. The first 64 bytes are left free for the header.
#[derive(Debug, Clone)]
pub struct Frame {
    /// The description of the frame.
    pub draft: FrameDraft,
    /// Space for the header, then the body, then zeros.
    pub bytes: Vec<u8>,
    /// The greatest reserve in the records of this frame and of earlier frames.
    pub reserve: u64,
    /// The publisher's epoch at the start of the frame.
    pub epoch: u64,
    /// A file header that describes the ring of this frame. All records of a file come from the same ring.
    pub header: Arc<FileHeader>,
}

/// One of the pieces of bytes that a write puts into a file one after another.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Bytes that the writer made itself: a header page, a frame header, an index or a footer.
    Own(Box<[u8]>),
    /// The bytes of a frame after its header.
    Body(Arc<Frame>),
}

impl Piece {
    /// Returns the bytes of the piece.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Body(frame) => &frame.bytes[shmcast::journal::format::FRAME_HEADER_BYTES..],
        }
    }
}

/// One call to the file system. Files are identified by their number.
#[derive(Debug, Clone)]
pub enum Step {
    /// Create `spare.tmp` for file `number`, and allocate `size` bytes.
    Create {
        /// File number.
        number: u64,
        /// The number of bytes to allocate.
        size: u64,
    },
    /// Write the pieces one after another.
    Write {
        /// File number.
        number: u64,
        /// Offset of the first piece, in bytes.
        offset: u64,
        /// The bytes to write.
        pieces: Vec<Piece>,
        /// The number of zero bytes that can be written after the pieces, where the file has no data yet.
        ahead: u64,
        /// Return only when the write is safe from a power cut.
        durable: bool,
    },
    /// Make the written data safe from a power cut.
    Sync {
        /// File number.
        number: u64,
    },
    /// Make the file `size` bytes long. New bytes are zeros.
    Resize {
        /// File number.
        number: u64,
        /// The file's new size in bytes.
        size: u64,
    },
    /// Rename the file.
    Rename {
        /// File number.
        number: u64,
        /// The file's new name.
        name: String,
    },
    /// Make the names in the directory safe from a power cut.
    SyncDirectory,
    /// Close the file. Nothing is written to the file after this.
    Close {
        /// File number.
        number: u64,
    },
}

/// A queue of operations that are performed one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Writes of frames.
    Write,
    /// Syncs of files while frames are written.
    Sync,
    /// Making, naming and finishing files.
    Help,
}

/// An operation: its steps are performed in order until one fails. The caller then reports the result to `Writer::done`.
#[derive(Debug, Clone)]
pub struct Op {
    /// Number of the operation.
    pub id: u64,
    /// The lane.
    pub lane: Lane,
    /// The steps.
    pub steps: Vec<Step>,
}
