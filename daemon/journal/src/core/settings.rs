//! The settings and the state of a recorder.

use super::SyncPolicy;
use std::time::Duration;

/// The way in which bytes are written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Io {
    /// With `O_DIRECT`, in whole pages of the recorder's memory.
    ///
    /// Direct writes need only a fraction of the CPU time of [`Buffered`](Self::Buffered), and do not fill the page cache. If a direct
    /// write fails, the write itself returns the error. If the file system does not support direct writes, or keeps its files only in
    /// memory, the recorder uses `Buffered`.
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

/// The settings for writing files.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The policy for making written data safe from a power cut.
    pub sync: SyncPolicy,
    /// The way in which bytes are written to the disk. The recorder's threads use this setting, and its logic does not.
    pub io: Io,
    /// The size limit of a file in bytes. If the next frame would exceed it, the recorder finishes (seals) the file.
    pub file_bytes: u64,
    /// A file is sealed when it is this old.
    pub roll_after: Option<Duration>,
    /// If the frames in memory have this many bytes, a sync begins before its interval is over. Frames stay in memory until they are
    /// durable.
    pub sync_bytes: usize,
    /// Greatest number of bytes in one write.
    pub group_bytes: usize,
    /// If the frames in memory have at least this many bytes, the recorder accepts no more messages.
    pub buffer: usize,
    /// The pause before the recorder tries a failed disk again.
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
    /// The disk refused a write, and the recorder tries again. If memory becomes full meanwhile, messages are lost, and the journal lists
    /// them as lost.
    Failed,
    /// The recording is closed: all frames are written and durable, and the last file is sealed.
    Closed,
}
