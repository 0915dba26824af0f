//! An open directory. Its methods resolve a name in the open directory, and do not follow a link that has this name.
//!
//! Paths would not be safe in place of an open directory. The system resolves a path again in each call. So a user who can write to a
//! directory on the path can put a link there between two calls. A descriptor, however, always means the directory that was opened.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, Stat};
use rustix::fs::{fchmod, fstat, mkdirat, openat, renameat_with, statat, unlinkat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use shmcast_layout::fault;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest time to wait for another process to give up its lease on a file.
const LEASED: Duration = Duration::from_millis(100);

/// An open directory. It is opened in a way that needs no permission to list its entries.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// The path at which the directory was found, for messages only.
    path: PathBuf,
}

/// Opens a file as `openat` does, but never as descriptor 0, 1 or 2. A program that has closed these descriptors, as daemons do, might
/// still print to them. This output must not go into files of channels.
fn open(
    dir: impl AsFd,
    name: impl rustix::path::Arg,
    flags: OFlags,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let opened = openat(dir, name, flags, mode)?;
    if opened.as_raw_fd() > 2 || fault!("files_take_the_numbers_of_stdio") {
        return Ok(opened);
    }
    fcntl_dupfd_cloexec(&opened, 3)
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Folder {
    /// Opens the directory at a path that the user gave. Links in the path are the user's choice, and are followed.
    pub(crate) fn named(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: open(CWD, path, FOLDER, Mode::empty())?, path: path.to_owned() })
    }

    /// Opens the directory at a path that the user did not give. Refuses a path whose last part is a link.
    pub(crate) fn unnamed(path: &Path) -> io::Result<Self> {
        Ok(Self { fd: open(CWD, path, FOLDER | OFlags::NOFOLLOW, Mode::empty())?, path: path.to_owned() })
    }

    /// Opens the directory `name`, which is an entry of this directory. Refuses a link with [`io::ErrorKind::NotADirectory`].
    pub(crate) fn folder(&self, name: impl AsRef<OsStr>) -> io::Result<Self> {
        let name = name.as_ref();
        let flags = if fault!("links_are_followed") { FOLDER } else { FOLDER | OFlags::NOFOLLOW };
        Ok(Self { fd: open(&self.fd, name, flags, Mode::empty())?, path: self.path.join(name) })
    }

    /// Opens the regular file `name`. Refuses a link or a pipe, and does not wait for the other end of a pipe.
    pub(crate) fn file(&self, name: impl AsRef<OsStr>, access: OFlags) -> io::Result<File> {
        let flags = access | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let until = Instant::now() + LEASED;
        let file = loop {
            match open(&self.fd, name.as_ref(), flags, Mode::empty()) {
                // Another process has a lease on the file, so the kernel refuses to open it now. The kernel has told the process to give up
                // the lease.
                Err(Errno::WOULDBLOCK) if Instant::now() < until => std::thread::yield_now(),
                opened => break File::from(opened?),
            }
        };
        if file.metadata()?.is_file() {
            return Ok(file);
        }
        Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
    }

    /// Makes the file `name`, which must not exist, with exactly `mode`.
    pub(crate) fn create(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = open(&self.fd, name.as_ref(), flags, Mode::from_raw_mode(0o600))?;
        fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(File::from(file))
    }

    /// Makes the directory `name`, which must not exist, with exactly `mode`.
    pub(crate) fn make(&self, name: impl AsRef<OsStr>, mode: u32) -> io::Result<Self> {
        mkdirat(&self.fd, name.as_ref(), Mode::RWXU)?;
        let made = self.folder(name)?;
        made.set_mode(mode)?;
        Ok(made)
    }

    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(fchmod(self.readable()?, Mode::from_raw_mode(mode))?)
    }

    /// Opens the same directory again, so that it can be listed.
    fn readable(&self) -> io::Result<OwnedFd> {
        Ok(openat(&self.fd, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// Returns the names in the directory, in no particular order.
    pub(crate) fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::new(self.readable()?)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Returns the metadata of `name`, which can be a path below this directory. For a link, the metadata is that of the link itself.
    pub(crate) fn stat(&self, name: impl AsRef<Path>) -> io::Result<Stat> {
        Ok(statat(&self.fd, name.as_ref(), AtFlags::SYMLINK_NOFOLLOW)?)
    }

    /// The owner, mode and kind of this directory.
    pub(crate) fn own_stat(&self) -> io::Result<Stat> {
        Ok(fstat(&self.fd)?)
    }

    /// Writes the directory's entries to the disk, so that they survive a power failure.
    pub(crate) fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.readable()?)?)
    }

    pub(crate) fn unlink(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name.as_ref(), AtFlags::empty())?)
    }

    /// Removes the empty directory `name`.
    pub(crate) fn remove_empty(&self, name: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(unlinkat(&self.fd, name.as_ref(), AtFlags::REMOVEDIR)?)
    }

    /// Renames an entry. If another entry already has the new name, replaces that entry.
    pub(crate) fn rename(&self, from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) -> io::Result<()> {
        Ok(renameat_with(&self.fd, from.as_ref(), &self.fd, to.as_ref(), RenameFlags::empty())?)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn path_of(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }
}

pub(crate) fn is_plain(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

pub(crate) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Returns the bits of a file's mode that `chmod` can set.
pub(crate) fn mode(stat: &Stat) -> u32 {
    stat.st_mode & 0o7777
}

pub(crate) fn is_same_file(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Returns 16 random hexadecimal digits, as a part of a file name. No other process uses the same digits, even in another PID namespace.
pub(crate) fn unique() -> String {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("Linux gives random bytes once it has booted");
    format!("{:016x}", u64::from_ne_bytes(random))
}
