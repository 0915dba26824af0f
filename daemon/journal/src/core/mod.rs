//! The recorder's logic without files, clocks or threads.
//!
//! [`Packer`] makes frames of events. [`Writer`] takes frames, completions and the time, and gives operations. [`recover`]
//! makes a journal whole after a crash. `sim` runs all three on a disk that loses power.
//!
//! Operations go through three [`Lane`]s. Each lane does one operation at a time, in order; the lanes run at the same time.

mod mutant;
mod packer;
mod pages;
mod recover;
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
pub use writer::Writer;

use shmcast::journal::format::{FileHeader, FrameDraft};
use std::sync::Arc;
use std::time::Duration;

/// The time as the caller knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// The time since any fixed moment. It never goes back.
    pub mono: Duration,
    /// Wall clock, in nanoseconds since 1970.
    pub wall_ns: u64,
}

/// When what was written is made safe from a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Files are synced when they are sealed, and for reserve records. Bytes that the kernel has not written by then go with the power.
    None,
    /// Files are synced this often, beside the writing, and at once for reserve records: publishers may wait for those.
    Interval(Duration),
    /// Each write is safe when it returns.
    Each,
}

/// A closed frame: what is known of it, and its bytes. The first 64 bytes are room for the header.
#[derive(Debug)]
pub struct Frame {
    /// What is known of it.
    pub draft: FrameDraft,
    /// Room for the header, body, zeros.
    pub bytes: Vec<u8>,
    /// The greatest reserve that a record up to here holds.
    pub reserve: u64,
    /// The publisher's epoch at its start.
    pub epoch: u64,
    /// The ring that its records come from, as the header of its file describes it. A file has frames of one ring.
    pub header: Arc<FileHeader>,
}

/// A part of a write: bytes of the writer's own, or the body of a frame.
#[derive(Debug, Clone)]
pub enum Piece {
    /// Header page, frame header, index, footer.
    Own(Box<[u8]>),
    /// The bytes of a frame behind its header.
    Body(Arc<Frame>),
}

impl Piece {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Body(frame) => &frame.bytes[shmcast::journal::format::FRAME_HEADER_BYTES..],
        }
    }
}

/// One call of the file system. Files that are written are known by their number.
#[derive(Debug, Clone)]
pub enum Step {
    /// Make `spare.tmp` for file `number`, with room for `size` bytes.
    Create {
        /// File number.
        number: u64,
        /// Bytes.
        size: u64,
    },
    /// Write the pieces one behind another.
    Write {
        /// File number.
        number: u64,
        /// Offset of the first.
        offset: u64,
        /// What to write.
        pieces: Vec<Piece>,
        /// Bytes of zeros that may be written after the frames, where the file is still empty.
        ahead: u64,
        /// Return only when it is safe from a power cut.
        durable: bool,
    },
    /// Make what was written safe from a power cut.
    Sync {
        /// File number.
        number: u64,
    },
    /// Make the file `size` bytes long. What is new are zeros.
    Resize {
        /// File number.
        number: u64,
        /// Bytes.
        size: u64,
    },
    /// Give the file this name.
    Rename {
        /// File number.
        number: u64,
        /// The name.
        name: String,
    },
    /// Make names safe from a power cut.
    SyncDirectory,
    /// The file is written no more.
    Close {
        /// File number.
        number: u64,
    },
}

/// Operations that wait for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Writes of frames.
    Write,
    /// Syncs.
    Sync,
    /// Making, naming and finishing files.
    Help,
}

/// Steps to be done in order, up to the first error. The caller tells the result by [`Writer::done`].
#[derive(Debug, Clone)]
pub struct Op {
    /// Number of the operation.
    pub id: u64,
    /// Its lane.
    pub lane: Lane,
    /// Its steps.
    pub steps: Vec<Step>,
}
