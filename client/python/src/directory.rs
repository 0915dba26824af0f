//! Channels that are files, as a whole.

use crate::error::opening;
use pyo3::prelude::*;
use shmcast::Directory;
use std::path::PathBuf;

/// Removes a channel that is a file and that nobody uses: its ring, its board and its gates. Returns the names of the files that it had. Channels
/// of a daemon are removed by its configuration.
///
/// `NotFoundError` if there is none; `InUseError` while it has a publisher or readers; `ChannelError` with the code `"not a channel"` if the
/// directory holds any other file. Nothing is removed then.
#[pyfunction]
#[pyo3(signature = (channel, *, dir = None))]
pub(crate) fn remove(py: Python<'_>, channel: &str, dir: Option<PathBuf>) -> PyResult<Vec<String>> {
    let removed = py.detach(|| dir.map_or_else(Directory::default, Directory::at).remove(channel));
    removed.map(|removed| removed.files).map_err(|error| opening(&error))
}
