//! The module `_shmcast`: the library's calls for Python. Their docstrings say what each does;
//! `python/shmcast/_shmcast.pyi` has the signatures.
//!
//! Nothing here waits while it holds the interpreter. A call that finds something to receive never lets it go, which costs less than a
//! message; one that finds nothing does, for at most 50 ms between two looks at signals.

mod batch;
mod error;
mod event;
mod handle;
mod options;
mod publisher;
mod subscriber;

use pyo3::prelude::*;

// No interpreter without its lock has run the tests.
#[pymodule(gil_used = true)]
mod _shmcast {
    #[pymodule_export]
    use super::batch::Batch;
    #[pymodule_export]
    use super::event::{End, Gap, Lapped, Live, Message, NewEpoch, NewSession, PublisherGone, Restarted};
    #[pymodule_export]
    use super::publisher::Publisher;
    #[pymodule_export]
    use super::subscriber::{Batches, Subscriber};

    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
