//! The one switch between the machine's atomics and loom's model-checked ones.
//!
//! Everything that touches shared words imports from here, so that the model checker runs the very code that ships.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
