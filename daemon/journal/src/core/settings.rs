//! The settings and the state of a recorder.

use super::SyncPolicy;
use std::time::Duration;

/// How bytes are written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// By `O_DIRECT`, in whole pages of the recorder's memory.
    ///
    /// It costs a fraction of the CPU time of `Buffered` and does not fill the page cache. An error is reported by the write that failed.
    /// If the file system does not support it, or is in memory, the recorder uses `Buffered`.
    #[default]
    Direct,
    /// Through the page cache.
    Buffered,
}

impl Io {
    /// The name in configurations.
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
    /// When written data is made safe.
    pub sync: SyncPolicy,
    /// How bytes are written to the disk. Only the threads use this setting.
    pub io: Io,
    /// A file is sealed when the next frame would exceed this many bytes.
    pub file_bytes: u64,
    /// A file is sealed when it is this old.
    pub roll_after: Option<Duration>,
    /// If this many bytes of frames are in memory, a sync begins before its interval is over. Frames stay in memory until they are durable.
    pub sync_bytes: usize,
    /// Greatest number of bytes in one write.
    pub group_bytes: usize,
    /// While at least this many bytes of frames are in memory, the recorder takes no more.
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

/// The state of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Frames are written as they arrive.
    Recording,
    /// The disk refused a write, and is tried again. If memory is full meanwhile, messages are lost and recorded as lost.
    Failed,
    /// Everything is written, safe and sealed.
    Closed,
}
