//! Handles a folder that a killed recorder has left: the last file might not have its final name. Also takes the lock that keeps other
//! recorders away.

use super::JournalError;
use super::list::{LOCK, Opened, lock_of};
use crate::directory::Folder;
use crate::error::is_absent;
use crate::lock::{self, Held};
use rustix::fs::OFlags;
use shmcast_layout::journal::{FILE_HEADER_BYTES, FileHeader, FormatError, SPARE, file_name};
use std::io;
use std::os::unix::fs::FileExt;

/// Takes the lock of a journal's folder. If this user can only read the folder, such as on a read-only file system, the inner error says
/// so, and no recorder has the lock.
pub(super) fn lock_or_read(folder: &Folder) -> Result<Result<Held, JournalError>, JournalError> {
    let refused = match lock_of(folder) {
        Err(e) if is_read_only(&e) => e,
        locked => return locked.map(Ok),
    };
    let is_locked = match folder.file(LOCK, OFlags::RDONLY) {
        Ok(file) => lock::is_locked(&file).map_err(JournalError::os("look at", folder.path_of(LOCK)))?,
        Err(e) if is_absent(&e) => false,
        // A recorder of another user might hold the lock.
        Err(_) => return Err(refused),
    };
    if is_locked {
        return Err(JournalError::Busy { path: folder.path().to_owned() });
    }
    Ok(Err(refused))
}

fn is_read_only(e: &JournalError) -> bool {
    let kinds = [io::ErrorKind::ReadOnlyFilesystem, io::ErrorKind::PermissionDenied];
    matches!(e, JournalError::Os { source, .. } if kinds.contains(&source.kind()))
}

/// Opens the file that a recorder began and did not give its final name. Returns `None` if there is no such file with a valid header.
pub(super) fn spare_of(folder: &Folder) -> Result<Option<Opened>, JournalError> {
    let path = || folder.path_of(SPARE);
    let opened = match folder.file(SPARE, OFlags::RDONLY) {
        Ok(file) => Opened::new(file).map_err(JournalError::os("read", path()))?,
        Err(e) if is_absent(&e) => return Ok(None),
        Err(e) => return Err(JournalError::os("open", path())(e)),
    };
    match opened {
        Ok(opened) => Ok(Some(opened)),
        Err(source @ FormatError::Version { .. }) => Err(JournalError::Format { path: path(), source }),
        Err(_) => Ok(None),
    }
}

/// Gives the last file its final name, if its recorder ended before it could do so. The next recorder would do the same.
pub(super) fn name_spare(folder: &Folder) -> Result<(), JournalError> {
    let os = || JournalError::os("name", folder.path_of(SPARE));
    let file = match folder.file(SPARE, OFlags::RDONLY) {
        Ok(file) => file,
        Err(e) if is_absent(&e) => return Ok(()),
        Err(e) => return Err(os()(e)),
    };
    let mut page = [0; FILE_HEADER_BYTES];
    let header = match file.read_exact_at(&mut page, 0) {
        Ok(()) => FileHeader::decode(&page),
        // Nothing was written to the file. The file is removed when the next file is made.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
        Err(e) => return Err(os()(e)),
    };
    match header {
        Ok(header) => {
            file.sync_all().map_err(os())?;
            folder.rename(SPARE, file_name(header.file, header.sequence)).map_err(os())?;
            folder.sync().map_err(os())
        }
        Err(source @ FormatError::Version { .. }) => {
            Err(JournalError::Format { path: folder.path_of(SPARE), source })
        }
        Err(_) => Ok(()),
    }
}
