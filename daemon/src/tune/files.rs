//! Writes values of the kernel's settings, and replaces files as a whole.

use crate::doctor::{Root, Unread};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The reason why nothing could be tuned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// A file could not be created, read or written.
    #[error("cannot {what} {path}: {source}")]
    Os {
        /// The step that failed.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The list of original values could not be read.
    #[error("{0}")]
    Unread(Unread),
    /// Another user owns the directory with the list of original values, or is allowed to write to this directory.
    #[error("{path} may be written by others, so that what it says cannot be trusted: remove it")]
    NotOurs {
        /// The directory of the list.
        path: PathBuf,
    },
    /// Another `tune` is at work.
    #[error("another `shmcast tune` holds {path}: try again when it has ended")]
    Busy {
        /// The directory of the list.
        path: PathBuf,
    },
    /// The file with the list of original values has another form.
    #[error("{path} is no list of values that `shmcast tune` wrote: look at it, and remove {dir}")]
    Damaged {
        /// The file of the list.
        path: PathBuf,
        /// The directory of the list.
        dir: PathBuf,
    },
    /// A file for the next boot has one of shmcast's names, but shmcast did not write it.
    #[error("{path} was not written by `shmcast tune`: move it away")]
    Foreign {
        /// The file for the next boot.
        path: PathBuf,
    },
}

impl TuneError {
    pub(super) fn os(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::Os { what, path, source }
    }
}

/// Whether the path is below `/proc/sys/` or `/sys/`, and has no `..` part.
pub(super) fn is_setting(path: &str) -> bool {
    ["/proc/sys/", "/sys/"].iter().any(|dir| path.starts_with(dir))
        && !path.split('/').any(|part| part == "..")
}

/// Returns the value of a setting's file. For a choice such as `always [madvise] never`, returns the chosen word.
pub(super) fn value(root: &Root, file: &str) -> Result<String, Unread> {
    let text = root.text(file)?;
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    Ok(chosen.map_or(text.as_str(), |(chosen, _)| chosen).to_owned())
}

/// Writes a value and reads it back. The error says why this failed.
pub(super) fn assign(root: &Root, file: &str, wanted: &str) -> Result<(), String> {
    let write = || {
        // A missing file is not created. The value goes out in one write, because the kernel takes each write
        // as a value.
        OpenOptions::new().write(true).truncate(true).open(root.below(file))?.write_all(wanted.as_bytes())
    };
    write().map_err(|e| format!("cannot write {wanted} to {file}: {e}"))?;
    match value(root, file) {
        Ok(now) if now == wanted => Ok(()),
        Ok(now) => Err(format!("{file} reads {now} after {wanted} was written")),
        Err(unread) => Err(unread.to_string()),
    }
}

/// Creates a directory that only its owner may use. Missing parents get the usual mode.
pub(super) fn make_private_dir(dir: &Path) -> io::Result<()> {
    if let Some(above) = dir.parent() {
        fs::create_dir_all(above)?;
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Replaces a file as a whole. The new file has this text and this mode. When this returns, the new file is on the disk.
pub(super) fn replace(path: &Path, text: &str, mode: u32) -> Result<(), TuneError> {
    let dir = path.parent().expect("the file is in a directory");
    let write = || {
        fs::create_dir_all(dir)?;
        let mut file = tempfile::Builder::new().prefix(".shmcast-tune-").tempfile_in(dir)?;
        file.write_all(text.as_bytes())?;
        file.as_file().set_permissions(Permissions::from_mode(mode))?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|e| e.error)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(TuneError::os("write", path))
}

/// Removes a file. Returns false if there was none.
pub(super) fn remove(path: &Path) -> Result<bool, TuneError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(TuneError::os("remove", path)(e)),
    }
}
