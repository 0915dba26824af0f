//! How a recorder writes, and what it is doing.

use super::SyncPolicy;
use std::time::Duration;

/// How files are written.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When what was written is made safe.
    pub sync: SyncPolicy,
    /// A file is sealed when the next frame would exceed this many bytes.
    pub file_bytes: u64,
    /// A file is sealed when it is this old.
    pub roll_after: Option<Duration>,
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
            file_bytes: 1 << 30,
            roll_after: None,
            group_bytes: 1 << 20,
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
