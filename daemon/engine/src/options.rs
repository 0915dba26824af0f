//! Options of both ends.

use shmcast_bridge::origins::Origins;

/// Options of a sender that its owner sets in addition to the spec.
#[derive(Debug, Default)]
pub struct SenderOptions {
    /// Whether the bridge stops once the channel is closed and all of it is stored. Otherwise it waits for the next publisher.
    pub ends_with_channel: bool,
    /// Whether everything in the channel is new, because the channel appeared while the bridge waited for it.
    pub is_channel_new: bool,
    /// The list in which sessions that begin here are noted.
    pub origins: Origins,
}

/// Options of a receiver that its owner sets in addition to the spec.
#[derive(Debug, Default)]
pub struct ReceiverOptions {
    /// The sessions that began on this host. They are not received here.
    pub origins: Origins,
}
