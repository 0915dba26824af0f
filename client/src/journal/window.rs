//! The part of a file that is in memory.

use rustix::fs::{Advice, fadvise};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Number of bytes that one call reads.
pub(super) const AHEAD: usize = 1 << 20;
const PAGE: usize = 4096;

/// The part of a file that is in memory. It moves along with the reader. Only `pread` fills it, because a mapping would turn errors of the
/// disk into signals.
#[derive(Debug)]
pub(super) struct Window {
    file: Arc<File>,
    start: u64,
    buffer: Vec<u8>,
    /// Number of bytes in the buffer that were read.
    filled: usize,
}

impl Window {
    pub(super) fn of(file: Arc<File>) -> Self {
        // The call is only advice: a file system that does not accept it reads ahead in its own way.
        let _ = fadvise(&file, 0, None, Advice::Sequential);
        Self { file, start: 0, buffer: Vec::new(), filled: 0 }
    }

    /// The current size of the file in bytes.
    pub(super) fn file_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Returns `length` bytes from `at` on; fewer at the file's end.
    pub(super) fn get(&mut self, at: u64, length: usize) -> io::Result<&[u8]> {
        if !self.holds(at, length) {
            self.fill(at, length)?;
        }
        Ok(self.peek(at, length))
    }

    /// Returns bytes as [`get`](Self::get) does, but only bytes that are in memory already. Reads nothing.
    pub(super) fn peek(&self, at: u64, length: usize) -> &[u8] {
        let from = at.saturating_sub(self.start).min(self.filled as u64) as usize;
        &self.buffer[from..from.saturating_add(length).min(self.filled)]
    }

    /// Returns bytes as [`get`](Self::get) does, but reads them from the file again, even if they are in memory. With `drop_cache`, the
    /// kernel also reads them from the disk again.
    pub(super) fn get_anew(&mut self, at: u64, length: usize, drop_cache: bool) -> io::Result<&[u8]> {
        if drop_cache {
            let _ = fadvise(&self.file, at, NonZeroU64::new(length as u64), Advice::DontNeed);
        }
        self.fill(at, length)?;
        Ok(self.peek(at, length))
    }

    /// Reads `N` bytes at `at` from the file, and not from memory. Returns `None` at the file's end.
    pub(super) fn probe<const N: usize>(&self, at: u64) -> io::Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        match self.file.read_exact_at(&mut bytes, at) {
            Ok(()) => Ok(Some(bytes)),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Returns a function that reads the bytes at `at` into the kernel's page cache. Returns `None` if these bytes are in memory already.
    #[cfg(feature = "tokio")]
    pub(super) fn read_ahead(&self, at: u64, is_end: bool) -> Option<impl FnOnce() + Send + 'static> {
        let file = Arc::clone(&self.file);
        let is_here = self.holds(at, AHEAD / 2) || (is_end && self.filled < AHEAD / 2);
        (!is_here).then_some(move || {
            let mut piece = vec![0; AHEAD / 8];
            for step in 0..8 {
                // An error is ignored here, because the reader itself meets it again.
                if file
                    .read_at(&mut piece, at + step * (AHEAD / 8) as u64)
                    .is_ok_and(|read| read < piece.len())
                {
                    break;
                }
            }
        })
    }

    fn holds(&self, at: u64, length: usize) -> bool {
        at >= self.start && at - self.start <= self.filled as u64 && {
            let from = (at - self.start) as usize;
            from.checked_add(length).is_some_and(|end| end <= self.filled)
        }
    }

    fn fill(&mut self, at: u64, length: usize) -> io::Result<()> {
        // The buffer is not larger than the rest of the file, since many readers have small files.
        let there = self.file_bytes()?.saturating_sub(at).min(AHEAD as u64) as usize;
        let wanted = length.max(there);
        if self.buffer.len() < wanted {
            self.buffer.resize(wanted, 0);
        }
        let goes_on = self.filled > 0 && (self.start..=self.start + self.filled as u64).contains(&at);
        self.start = at;
        self.filled = read(&self.file, &mut self.buffer[..wanted], at)?;
        if goes_on {
            // The disk reads the next bytes while the present ones are processed.
            let next = at + self.filled as u64;
            let _ = fadvise(&self.file, next, NonZeroU64::new(AHEAD as u64), Advice::WillNeed);
        }
        Ok(())
    }
}

/// Reads up to the file's end. If the disk cannot read a page, the page's bytes become zeros. No frame consists of zeros, so the reader
/// then finds no valid frame there.
fn read(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let offset = at + filled as u64;
        match file.read_at(&mut buffer[filled..], offset) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.raw_os_error() == Some(nix::libc::EIO) => {
                let page = (PAGE - offset as usize % PAGE).min(buffer.len() - filled);
                let piece = &mut buffer[filled..filled + page];
                match file.read_at(piece, offset) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(_) => {
                        piece.fill(0);
                        filled += page;
                    }
                }
            }
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}
