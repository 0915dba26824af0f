//! Functions for whole channels in files.

use crate::error::opening;
use pyo3::prelude::*;
use shmcast::Directory;
use std::path::PathBuf;

/// Removes a channel in files: its ring, its board and its gates. Returns the names of the removed files. To remove a daemon's channel,
/// change the daemon's configuration.
///
/// Nothing is removed in these cases:
///
/// - Raises `NotFoundError` if the channel does not exist.
/// - Raises `InUseError` while the channel has a publisher or readers.
/// - Raises `ChannelError` with the code `"not a channel"` if the channel's directory contains a file that shmcast did not make.
#[pyfunction]
#[pyo3(signature = (channel, *, dir = None))]
pub(crate) fn remove(py: Python<'_>, channel: &str, dir: Option<PathBuf>) -> PyResult<Vec<String>> {
    let removed = py.detach(|| dir.map_or_else(Directory::default, Directory::at).remove(channel));
    removed.map(|removed| removed.files).map_err(|error| opening(&error))
}
