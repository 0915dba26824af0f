//! Opens the file of a capture: a new file, a FIFO, or a descriptor of this process.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use shmcast::sys::descriptors::duplicate;
use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for the reader of a FIFO.
const FOR_A_READER: Duration = Duration::from_secs(2);
/// The time between two attempts to open a FIFO that nobody reads yet.
const PAUSE: Duration = Duration::from_millis(2);
/// The permissions of a new capture. A capture contains messages, so only its owner can read it.
const PRIVATE: u32 = 0o600;

/// Opens the file of a capture. Replaces an existing file by a new one, because other users might be able to read the existing file.
/// Refuses a link, because another user might have put it there.
/// Writes to a descriptor of this process, such as `/dev/stdout`, directly.
pub(super) fn open(path: &Path) -> io::Result<File> {
    if let Some(number) = descriptor_of(path) {
        return open_descriptor(path, number);
    }
    let mut options = File::options();
    let found = match path.symlink_metadata() {
        Ok(found) => found.file_type(),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return options.write(true).create_new(true).mode(PRIVATE).open(path);
        }
        Err(e) => return Err(e),
    };
    match () {
        () if found.is_symlink() => Err(io::Error::other("it is a link: give the name of a file")),
        () if found.is_file() => {
            fs::remove_file(path)?;
            options.write(true).create_new(true).mode(PRIVATE).open(path)
        }
        () if found.is_fifo() => open_fifo(path, OFlags::NOFOLLOW),
        () => options.write(true).open(path),
    }
}

/// If the path names a descriptor of this process, returns the descriptor's number. Such paths are `/dev/stdout` and the path of a shell's
/// `>(program)`. No other program can put a link there.
pub(super) fn descriptor_of(path: &Path) -> Option<RawFd> {
    let linked = ["/dev/stdout", "/dev/stderr"].iter().any(|name| path == Path::new(name));
    let path = if linked { fs::read_link(path).ok()? } else { path.to_owned() };
    let folder = fs::canonicalize(path.parent()?).ok()?;
    let is_ours = fs::canonicalize("/proc/self/fd").is_ok_and(|ours| ours == folder);
    path.file_name()?.to_str()?.parse().ok().filter(|_| is_ours)
}

/// Opens the target of a descriptor of this process, and keeps the target's content. A file keeps the descriptor's offset, so that the
/// capture and the program's other output do not overwrite each other. A FIFO is opened again, because its descriptor might be
/// non-blocking.
fn open_descriptor(path: &Path, number: RawFd) -> io::Result<File> {
    let own = File::from(duplicate(number)?);
    if fcntl_getfl(&own)? & OFlags::ACCMODE == OFlags::RDONLY {
        return Err(Errno::BADF.into());
    }
    match own.metadata()?.file_type().is_fifo() {
        true => match open_fifo(path, OFlags::empty()) {
            // The FIFO belongs to another user, so use the descriptor itself.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(own),
            opened => opened,
        },
        false => Ok(own),
    }
}

/// Opens a FIFO, for example a FIFO of Wireshark. Waits up to [`FOR_A_READER`] for a program that reads the FIFO.
fn open_fifo(path: &Path, more: OFlags) -> io::Result<File> {
    let start = Instant::now();
    loop {
        let flags = (OFlags::NONBLOCK | more).bits() as i32;
        match File::options().write(true).custom_flags(flags).open(path) {
            Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) => {}
            opened => {
                let file = opened?;
                fcntl_setfl(&file, OFlags::empty())?;
                return Ok(file);
            }
        }
        if start.elapsed() >= FOR_A_READER {
            return Err(io::Error::other("it is a FIFO that nobody reads: start its reader first"));
        }
        thread::sleep(PAUSE);
    }
}
