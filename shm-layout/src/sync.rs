//! Selects the machine's atomics, or loom's model-checked atomics.
//!
//! All code that touches shared words imports its atomics from here. So the model checker runs the same code that
//! ships.

#[cfg(loom)]
pub use loom::sync::atomic::{Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use stopping::AtomicU64;

/// In models for loom, lets a writer die right before any of its stores, as a killed process does.
#[cfg(loom)]
pub(crate) mod stopping {
    use super::Ordering;
    use std::cell::Cell;

    /// The payload of the panic that ends a killed writer.
    #[cfg(test)]
    pub(crate) struct Killed;

    thread_local! {
        /// The number of stores that the writer can still make before it dies; `None` if it does not die. Loom runs all threads of a model
        /// on one thread of the machine, and readers store nothing. So this counter counts only the writer's stores.
        static STORES_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
    }

    /// Runs `life`, and kills it before store number `stores`, counted from 0. Returns true if `life` made fewer stores and ended by
    /// itself.
    #[cfg(test)]
    pub(crate) fn kill_after(stores: u32, life: impl FnOnce()) -> bool {
        STORES_LEFT.set(Some(stores));
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(life));
        STORES_LEFT.set(None);
        match ended {
            Ok(()) => true,
            Err(reason) if reason.is::<Killed>() => false,
            Err(reason) => std::panic::resume_unwind(reason),
        }
    }

    /// A shared word that counts stores.
    #[derive(Debug)]
    pub struct AtomicU64(loom::sync::atomic::AtomicU64);

    impl AtomicU64 {
        /// A word of the model.
        pub fn new(value: u64) -> Self {
            Self(loom::sync::atomic::AtomicU64::new(value))
        }

        /// The same as in the standard library.
        pub fn load(&self, order: Ordering) -> u64 {
            self.0.load(order)
        }

        /// Stores a value, as the standard library does. If the writer has made all stores that the model allows, it dies before this
        /// store.
        pub fn store(&self, value: u64, order: Ordering) {
            #[cfg(test)]
            match STORES_LEFT.get() {
                Some(0) => std::panic::resume_unwind(Box::new(Killed)),
                Some(left) => STORES_LEFT.set(Some(left - 1)),
                None => {}
            }
            self.0.store(value, order);
        }
    }
}
