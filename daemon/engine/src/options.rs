//! Options of both ends.

use shmcast_bridge::origins::Origins;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Options of a sender that its owner sets in addition to the spec.
#[derive(Debug, Default)]
pub struct SenderOptions {
    /// Whether the sender stops after the channel is closed and all its messages are stored. If false, the sender waits for the next
    /// publisher.
    pub ends_with_channel: bool,
    /// Whether all messages in the channel are new, because the channel appeared while the bridge waited for it.
    pub is_channel_new: bool,
    /// The list of sessions that began on this host. The sender adds its own sessions.
    pub origins: Origins,
    /// The stop flag. If it becomes nonzero before the servers have answered, the start fails with
    /// [`EngineError::Stopped`](crate::EngineError::Stopped).
    pub stop: Arc<AtomicUsize>,
}

/// Options of a receiver that its owner sets in addition to the spec.
#[derive(Debug, Default)]
pub struct ReceiverOptions {
    /// Sessions that began on this host. The receiver skips these sessions, so that no channel runs in a circle.
    pub origins: Origins,
    /// The stop flag. If it becomes nonzero before the servers have answered, the start fails with
    /// [`EngineError::Stopped`](crate::EngineError::Stopped).
    pub stop: Arc<AtomicUsize>,
}
