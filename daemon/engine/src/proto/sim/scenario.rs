//! The limits of every story.

use shmcast_bridge::proto::SECOND_NS;

/// The size of blocks.
pub(super) const BLOCK_BYTES: usize = 1 << 10;
/// Until this time, faults happen and messages are published.
pub(super) const TROUBLED_NS: u64 = 3 * SECOND_NS;
