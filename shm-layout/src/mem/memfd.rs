//! Anonymous files in memory. Such a file lives as long as a process has it open or mapped. If the size of the file is sealed, no process
//! can shrink the file while others map it.

use rustix::fs::{FileType, MemfdFlags, Mode, OFlags, SealFlags};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Makes an empty anonymous file. Only its owner and root can open it again. In `/proc/PID/maps` it has the name `name`.
///
/// A new memfd has mode 0777, so a process with a read-only descriptor could open the file again for writing. With mode 0600, only the
/// owner's uid and root can do so.
///
/// # Errors
/// The error of `memfd_create` or `fchmod`.
pub fn create(name: &str) -> io::Result<File> {
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
    Ok(file.into())
}

/// The parts of a file that a seal protects from changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seal {
    /// The size. With this seal, no process can shrink the file, so a map of the file can never fault.
    Size,
    /// The content and the set of seals, except that a writable map from before the seal can still change the content.
    FutureWrites,
    /// The size, the content and the set of seals. A process that has the sealed file open for writing can still lock it.
    Content,
}

/// Seals the file for ever.
///
/// # Errors
/// The error of `fcntl`.
pub fn seal(file: &File, seal: Seal) -> io::Result<()> {
    let flags = match seal {
        Seal::Size => SealFlags::SHRINK | SealFlags::GROW,
        Seal::FutureWrites => SealFlags::FUTURE_WRITE | SealFlags::SEAL,
        Seal::Content => SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL,
    };
    Ok(rustix::fs::fcntl_add_seals(file, flags)?)
}

/// Whether the file has the seal [`Seal::Content`]. If so, the file's content is what its creator wrote.
///
/// # Errors
/// The error of `fcntl`.
pub fn is_content_sealed(file: &File) -> io::Result<bool> {
    Ok(rustix::fs::fcntl_get_seals(file)?.contains(SealFlags::WRITE | SealFlags::SEAL))
}

/// Returns true if two conditions hold: this process's own user made the file with [`create`], and the file's size is sealed. A daemon
/// checks this for a file that a program passes to it.
///
/// # Errors
/// The error of `fstat`.
pub fn is_ours(file: &File) -> io::Result<bool> {
    let sealed =
        rustix::fs::fcntl_get_seals(file).is_ok_and(|s| s.contains(SealFlags::SHRINK | SealFlags::GROW));
    Ok(is_own(file)? && sealed)
}

/// Returns true if two conditions hold: the file is a regular file of this process's own user, and only that user can open it again. If
/// they hold, opening the file again has no side effect. The call also works for a descriptor that [`Reopen::Path`] made.
///
/// # Errors
/// The error of `fstat`.
pub fn is_own(file: &File) -> io::Result<bool> {
    let stat = rustix::fs::fstat(file)?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    Ok(is_regular && stat.st_uid == rustix::process::geteuid().as_raw() && stat.st_mode & 0o7777 == 0o600)
}

/// The purpose for which a file is opened again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopen {
    /// The file is opened to read it.
    ReadOnly,
    /// The file is opened to read and write it.
    ReadWrite,
    /// The file is opened only to refer to it (`O_PATH`). The descriptor cannot read, write, map or lock the file. A process that has
    /// permission to open the file can open it through this descriptor.
    Path,
}

/// Opens the file again. The result shares no offset, lock or access mode with the original.
///
/// # Errors
/// The error of `open`: `EACCES` for all but the owner and root.
pub fn reopen(file: &File, purpose: Reopen) -> io::Result<File> {
    let access = match purpose {
        Reopen::ReadOnly => OFlags::RDONLY,
        Reopen::ReadWrite => OFlags::RDWR,
        Reopen::Path => OFlags::PATH,
    };
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
        seal(&file, Seal::Size).unwrap();
        assert!(is_ours(&file).unwrap());
        assert!(file.set_len(0).is_err() && file.set_len(8192).is_err());
        let reader = reopen(&file, Reopen::ReadOnly).unwrap();
        assert!(
            crate::mem::Map::read_write(&reader, 4096).is_err(),
            "a writable map of a read-only descriptor"
        );
        let before = crate::mem::Map::read_write(&file, 4096).unwrap();
        seal(&file, Seal::FutureWrites).unwrap();
        assert!(crate::mem::Map::read_write(&file, 4096).is_err(), "a writable map after the seal");
        drop(before);
        assert!(!is_ours(&tempfile::tempfile().unwrap()).unwrap());
    }

    #[test]
    fn a_path_to_a_file_can_do_nothing_but_be_opened() {
        let file = create("shmcast-test").unwrap();
        file.set_len(8).unwrap();
        assert!(!is_content_sealed(&file).unwrap());
        seal(&file, Seal::Content).unwrap();
        assert!(is_content_sealed(&file).unwrap() && is_ours(&file).unwrap());
        let path = reopen(&file, Reopen::Path).unwrap();
        assert!(is_own(&path).unwrap() && !is_ours(&path).unwrap());
        let lock = |file| {
            let whole = nix::libc::flock { l_type: nix::libc::F_WRLCK as _, ..unlocked() };
            nix::fcntl::fcntl(file, nix::fcntl::FcntlArg::F_OFD_SETLK(&whole))
        };
        assert_eq!(lock(&path), Err(nix::errno::Errno::EBADF));
        assert!(crate::mem::Map::read_only(&path, 8).is_err());
        assert_eq!(
            lock(&reopen(&path, Reopen::ReadWrite).unwrap()),
            Ok(0),
            "sealed, and lockable all the same"
        );
        assert!(!is_own(&File::open("/").unwrap()).unwrap());
    }

    fn unlocked() -> nix::libc::flock {
        let (l_type, l_whence) = (nix::libc::F_UNLCK as _, nix::libc::SEEK_SET as _);
        nix::libc::flock { l_type, l_whence, l_start: 0, l_len: 0, l_pid: 0 }
    }
}
