//! The bounds of every story.

use shmcast_bridge::proto::SECOND_NS;

/// The size of blocks.
pub(super) const BLOCK_BYTES: usize = 1 << 10;
/// Faults happen until then, and messages are published until then.
pub(super) const TROUBLED_NS: u64 = 3 * SECOND_NS;
