//! Channels that are files, as a whole.

use crate::error::opening;
use pyo3::prelude::*;
use shmcast::Directory;
use std::path::PathBuf;

/// Removes a channel that is a file and that nobody uses: its ring, its board and its gates. Returns the names of the files that it had. A
/// daemon's channels are removed in the daemon's configuration.
///
/// Raises `NotFoundError` if there is no such channel, `InUseError` while the channel has a publisher or readers, and `ChannelError` with
/// the code `"not a channel"` if the channel's directory contains any other file. In these three cases, nothing is removed.
#[pyfunction]
#[pyo3(signature = (channel, *, dir = None))]
pub(crate) fn remove(py: Python<'_>, channel: &str, dir: Option<PathBuf>) -> PyResult<Vec<String>> {
    let removed = py.detach(|| dir.map_or_else(Directory::default, Directory::at).remove(channel));
    removed.map(|removed| removed.files).map_err(|error| opening(&error))
}
