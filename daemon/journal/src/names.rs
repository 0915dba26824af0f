//! Checks whether the names of open files still lead to these files.

use rustix::fs::{Stat, fstat};
use rustix::io::Errno;
use std::fs::File;
use std::io;

/// Returns the device and the inode number of a file.
pub(crate) const fn place(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

/// Returns the device and the inode number of the file to which a name leads; `None` if the name is gone. `named` is the result of `stat`
/// for the name.
///
/// # Errors
/// The system's error, if the name cannot be looked up. The name might still exist.
pub(crate) fn found(named: rustix::io::Result<Stat>) -> io::Result<Option<(u64, u64)>> {
    match named {
        Ok(named) => Ok(Some(place(&named))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Whether a name still leads to this file. `named` is the result of `stat` for the name.
///
/// # Errors
/// The system's error, if the name cannot be looked up. The name might still lead to the file.
pub(crate) fn is_named(file: &File, named: rustix::io::Result<Stat>) -> io::Result<bool> {
    let named = found(named)?;
    Ok(named.is_some_and(|named| fstat(file).is_ok_and(|own| place(&own) == named)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An earlier mistake: a directory that could not be looked up was reported as removed or moved.
    #[test]
    fn a_name_that_cannot_be_looked_up_is_not_gone() {
        let file = tempfile::tempfile().unwrap();
        assert!(is_named(&file, fstat(&file)).unwrap());
        assert!(!is_named(&file, Err(Errno::NOENT)).unwrap());
        let refused = is_named(&file, Err(Errno::ACCESS)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
