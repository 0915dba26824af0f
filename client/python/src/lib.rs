//! The module `_shmcast`: the library's calls for Python. Each docstring says what its call does. `python/shmcast/_shmcast.pyi` has the
//! signatures.
//!
//! A call that finds something to receive keeps the interpreter's lock, because releasing the lock would cost more than a message. A call
//! that must wait releases the lock, and checks for signals at least every 50 ms.

mod batch;
mod board;
mod directory;
mod error;
mod event;
mod gate;
mod handle;
mod options;
mod publisher;
mod select;
mod subscriber;

use pyo3::prelude::*;

// The tests were not run with an interpreter that has no global lock.
#[pymodule(gil_used = true)]
mod _shmcast {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::board::{Board, BoardEntry, BoardSpec};
    #[pymodule_export]
    use super::directory::remove;
    #[pymodule_export]
    use super::event::{End, Gap, Lapped, Live, Message, NewEpoch, NewSession, PublisherGone, Restarted};
    #[pymodule_export]
    use super::gate::{Gate, GateStatus};
    #[pymodule_export]
    use super::publisher::Publisher;
    #[pymodule_export]
    use super::select::Select;
    #[pymodule_export]
    use super::subscriber::{Batches, Subscriber};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
