//! Finds out whether a process has a file open, by a lease: the kernel refuses a write lease on a file that is open elsewhere.

use nix::libc;
use rustix::fs::fstatfs;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The command that chooses the signal, from linux/fcntl.h. libc defines it only for some machines.
const F_SETSIG: libc::c_int = 10;
/// The signal that the kernel sends if another program breaks the lease. It is ignored by default. The usual signal would end this process.
const NOBODYS: libc::c_int = libc::SIGURG;
/// The types of file systems on other hosts: NFS, CIFS and SMB. For these, this kernel does not know which programs of other hosts have a
/// file open.
const REMOTE: [u32; 3] = [0x6969, 0xff53_4d42, 0xfe53_4d42];

/// Whether the file is open anywhere besides the descriptor `file`, which is open for reading. A map counts as an open file, and so does a
/// descriptor in a packet that has not been received. A descriptor that only names the file (`O_PATH`) does not count.
///
/// A program that opens the file at the same moment waits for some microseconds. With `O_NONBLOCK` its `open` can fail in that time, with
/// `EWOULDBLOCK`.
///
/// # Errors
/// The system's error, if the result is unknown: the file system has no leases or belongs to another host, or the file belongs to another
/// user.
///
/// ```
/// use shmcast_layout::sys::lease::is_open_elsewhere;
/// let named = tempfile::NamedTempFile::new()?;
/// let file = std::fs::File::open(named.path())?;
/// assert!(is_open_elsewhere(&file)?); // as `named`
/// let path = named.into_temp_path();
/// assert!(!is_open_elsewhere(&file)?);
/// # drop(path);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn is_open_elsewhere(file: &File) -> io::Result<bool> {
    if REMOTE.contains(&(fstatfs(file)?.f_type as u32)) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // fcntl(2), F_SETLEASE: "A write lease may be placed on a file only if there are no other open file descriptors for the file."
    set(file, F_SETSIG, NOBODYS)?;
    match set(file, libc::F_SETLEASE, libc::F_WRLCK as _) {
        Ok(()) => set(file, libc::F_SETLEASE, libc::F_UNLCK as _).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

fn set(file: &File, what: libc::c_int, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open, and these commands take an integer and no memory of ours.
    match unsafe { libc::fcntl(file.as_raw_fd(), what, value) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memmap2::Mmap;
    use std::os::fd::OwnedFd;
    use std::time::{Duration, Instant};

    #[test]
    fn a_file_is_open_as_long_as_somebody_can_read_it() {
        let named = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(named.path(), [1; 4096]).unwrap();
        let path = named.into_temp_path();
        let own = File::open(&path).unwrap();
        assert!(!is_open_elsewhere(&own).unwrap());
        let other = File::open(&path).unwrap();
        assert!(is_open_elsewhere(&own).unwrap());
        // SAFETY: nobody writes to the file.
        let map = unsafe { Mmap::map(&other) }.unwrap();
        drop(other);
        assert!(is_open_elsewhere(&own).unwrap(), "a map keeps it");
        drop(map);
        assert!(!is_open_elsewhere(&own).unwrap());
        // A descriptor in a packet keeps the file open until the packet is received.
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        let lent = File::open(&path).unwrap();
        crate::sys::handoff::send(OwnedFd::from(here), b"x", &[std::os::fd::AsFd::as_fd(&lent)]).unwrap();
        drop(lent);
        assert!(is_open_elsewhere(&own).unwrap(), "a packet keeps it");
        drop(there);
        let until = Instant::now() + Duration::from_secs(20);
        while is_open_elsewhere(&own).unwrap() {
            assert!(Instant::now() < until, "the packet is gone");
        }
        // The check also works after the file's name was removed.
        let other = File::open(&path).unwrap();
        path.close().unwrap();
        assert!(is_open_elsewhere(&own).unwrap());
        drop(other);
        assert!(!is_open_elsewhere(&own).unwrap());
    }

    /// Other threads open the file again and again during the checks. Each open must succeed, and no check may kill this process.
    #[test]
    fn a_look_at_a_file_harms_nobody_who_opens_it() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let own = File::open(&path).unwrap();
        std::thread::scope(|scope| {
            let opens: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..2_000 {
                            drop(File::open(&path).unwrap());
                        }
                    })
                })
                .collect();
            while !opens.iter().all(|thread| thread.is_finished()) {
                is_open_elsewhere(&own).unwrap();
            }
        });
    }
}
