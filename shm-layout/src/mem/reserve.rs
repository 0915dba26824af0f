//! Reserves a file's memory. If the file system is full, the reservation fails with an error. Without a reservation, the kernel would kill
//! the program later, when it touches memory that the file system cannot provide.

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use rustix::process::{Resource, getrlimit};
use std::fs::File;
use std::io;

/// The number of bytes that one system call reserves. The number is small, because on some kernels a signal makes the call fail. A program
/// with a timer could then never reserve gigabytes in one call.
const PIECE: u64 = 2 << 20;

/// Reserves the first `bytes` of `file`, which becomes at least that long.
///
/// # Errors
/// The error of `posix_fallocate`, but never `EINTR`; the error of [`check_size_limit`].
pub fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() < bytes {
        check_size_limit(bytes)?;
    }
    Ok(in_pieces(bytes, |at, length| posix_fallocate(file, at, length))?)
}

/// Checks the process's limit on file sizes, before a file grows to this many bytes. The kernel sends a process that exceeds the limit
/// the signal SIGXFSZ, which ends a program that does not handle it.
///
/// # Errors
/// `FileTooLarge` for a file beyond the limit.
pub fn check_size_limit(bytes: u64) -> io::Result<()> {
    match getrlimit(Resource::Fsize).current {
        Some(most) if bytes > most => Err(Errno::EFBIG.into()),
        _ => Ok(()),
    }
}

/// Calls `reserve` for one piece after another, with the piece's offset and length. If a signal interrupted a call, repeats it.
fn in_pieces(bytes: u64, mut reserve: impl FnMut(i64, i64) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut at = 0;
    while at < bytes {
        let length = PIECE.min(bytes - at);
        let [from, count] = [at, length].map(|value| i64::try_from(value).map_err(|_| Errno::EFBIG));
        match reserve(from?, count?) {
            Ok(()) => at += length,
            Err(Errno::EINTR) if !crate::fault!("interrupted_reservations_fail") => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_while_memory_is_reserved_fail_nothing() {
        let mut calls = Vec::new();
        let reserved = in_pieces(2 * PIECE + 4096, |at, length| {
            calls.push((at as u64, length as u64));
            if calls.len() % 3 == 0 { Ok(()) } else { Err(Errno::EINTR) }
        });
        assert_eq!(reserved, Ok(()));
        let pieces = [(0, PIECE), (PIECE, PIECE), (2 * PIECE, 4096)];
        assert_eq!(calls, pieces.map(|piece| [piece; 3]).concat());
    }

    #[test]
    fn a_full_file_system_ends_it_at_once() {
        let mut calls = 0;
        let reserved = in_pieces(8 * PIECE, |at, _| {
            calls += 1;
            if at == 0 { Ok(()) } else { Err(Errno::ENOSPC) }
        });
        assert_eq!((reserved, calls), (Err(Errno::ENOSPC), 2));
    }
}
