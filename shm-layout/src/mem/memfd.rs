//! Memory without a name: files that live as long as somebody holds them, and that nobody can shrink under a map.

use rustix::fs::{MemfdFlags, Mode, OFlags, SealFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Makes an empty anonymous file that only its owner may open anew. `name` shows up in `/proc/PID/maps`.
///
/// A new memfd has mode 0777, so that whoever is handed a read-only descriptor could open it again for writing; 0600
/// leaves that to the owner's uid and to root.
///
/// # Errors
/// What `memfd_create` or `fchmod` says.
pub fn create(name: &str) -> io::Result<File> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    Ok(file.into())
}

/// Fixes the size for ever, so that no map of the file can fault.
///
/// # Errors
/// What `fcntl` says.
pub fn seal_size(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::SHRINK | SealFlags::GROW)?)
}

/// Lets nobody map or write the file any more, but for maps that exist; and fixes the seals themselves.
///
/// # Errors
/// What `fcntl` says.
pub fn seal_future_writes(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(file, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

/// Whether the file is one of [`create`]'s with its size sealed, made by this process's own user: what somebody hands
/// back as ours.
///
/// # Errors
/// What `fstat` says.
pub fn is_ours(file: &File) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let mine = stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o7777 == 0o600;
    let sealed =
        rustix::fs::fcntl_get_seals(file).is_ok_and(|s| s.contains(SealFlags::SHRINK | SealFlags::GROW));
    Ok(mine && sealed)
}

/// Opens the file anew for reading only: the result shares no offset, lock or access mode with the original.
///
/// # Errors
/// What `open` says: `EACCES` for all but the owner and root.
pub fn reopen_read_only(file: &File) -> io::Result<File> {
    reopen(file, OFlags::RDONLY)
}

/// Opens the file anew for reading and writing.
///
/// # Errors
/// As [`reopen_read_only`].
pub fn reopen_read_write(file: &File) -> io::Result<File> {
    reopen(file, OFlags::RDWR)
}

fn reopen(file: &File, access: OFlags) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_neither_shrinks_nor_grows_and_a_read_only_one_cannot_be_written() {
        let file = create("shmcast-test").unwrap();
        file.set_len(4096).unwrap();
        assert!(!is_ours(&file).unwrap(), "not sealed yet");
        seal_size(&file).unwrap();
        assert!(is_ours(&file).unwrap());
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        let reader = reopen_read_only(&file).unwrap();
        assert!(
            crate::mem::Map::read_write(&reader, 4096).is_err(),
            "a writable map of a read-only descriptor"
        );
        let before = crate::mem::Map::read_write(&file, 4096).unwrap();
        seal_future_writes(&file).unwrap();
        assert!(crate::mem::Map::read_write(&file, 4096).is_err(), "a writable map after the seal");
        drop(before);
        assert!(!is_ours(&tempfile::tempfile().unwrap()).unwrap());
    }
}
