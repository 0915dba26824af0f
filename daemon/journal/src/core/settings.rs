//! How a recorder writes, and what it is doing.

use super::SyncPolicy;
use std::time::Duration;

/// The way of bytes to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// From memory of the recorder by `O_DIRECT`, in whole pages. Costs a fraction of the CPU time of `Buffered`, leaves nothing in the page
    /// cache, and an error comes with the write that it belongs to. Where a file system does not take it, and on one in memory, the
    /// recorder writes `Buffered`.
    #[default]
    Direct,
    /// Through the page cache.
    Buffered,
}

impl Io {
    /// Its name in configurations.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

/// How files are written.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When what was written is made safe.
    pub sync: SyncPolicy,
    /// How bytes go to the disk. The logic does not look at it.
    pub io: Io,
    /// A file is sealed when the next frame would exceed this many bytes.
    pub file_bytes: u64,
    /// A file is sealed when it is this old.
    pub roll_after: Option<Duration>,
    /// A sync does not wait for its interval once this many bytes of frames are in memory. Frames stay in memory until
    /// they are safe.
    pub sync_bytes: usize,
    /// Most bytes in one write.
    pub group_bytes: usize,
    /// Bytes of frames in memory from which on there is no room for more.
    pub buffer: usize,
    /// How long to wait before a failed disk is tried again.
    pub retry_every: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::Interval(Duration::from_millis(10)),
            io: Io::Direct,
            file_bytes: 1 << 30,
            roll_after: None,
            sync_bytes: 16 << 20,
            group_bytes: 4 << 20,
            buffer: 64 << 20,
            retry_every: Duration::from_secs(5),
        }
    }
}

/// What the writer is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Frames are written as they come.
    Recording,
    /// The disk refused. It is tried again; what does not fit into memory is lost, and named.
    Failed,
    /// Everything is written, safe and sealed.
    Closed,
}
