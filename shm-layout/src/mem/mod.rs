//! Maps files into memory, and prepares the maps before the first message.
//!
//! This module knows nothing of rings. It gives access to a map as [`Cells`], never as a slice of bytes.

use crate::layout::geometry::HUGE_PAGE;
use crate::ring::cells::Cells;
use crate::sync::AtomicU64;
use memmap2::{Advice, MmapOptions, MmapRaw};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Arc;

#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod forked;
pub mod memfd;
mod prepare;
mod reserve;
pub(crate) use prepare::lock_on_fault;
pub use prepare::{Pieces, Preparation, Step, is_real_time, prepare};
pub use reserve::{check_size_limit, reserve};

/// A shared map of the first bytes of a file.
#[derive(Debug, Clone)]
pub struct Map {
    map: Arc<MmapRaw>,
    writable: bool,
    /// Whether the file has no memory yet for some pages of the map, so that touching them would allocate memory. Only
    /// [`read_only`](Self::read_only) checks this. For all other maps, the value is false.
    has_holes: bool,
}

impl Map {
    /// Maps `bytes` of `file` for reading only. A store through this map kills the process.
    ///
    /// # Errors
    /// The error of `mmap`, or `InvalidInput` for a length that is no multiple of eight.
    pub fn read_only(file: &File, bytes: u64) -> io::Result<Self> {
        let length = length(bytes)?;
        let map = aligned(length, || MmapOptions::new().len(length).map_raw_read_only(file))?;
        let has_holes = file.metadata()?.blocks().saturating_mul(512) < bytes;
        Ok(Self { map: Arc::new(map), writable: false, has_holes })
    }

    /// Maps `bytes` bytes of `file` for reading only. The map starts at byte `offset`, which is a multiple of the page size.
    ///
    /// # Errors
    /// As for [`read_only`](Self::read_only).
    pub(crate) fn read_only_at(file: &File, offset: u64, bytes: u64) -> io::Result<Self> {
        let map = MmapOptions::new().len(length(bytes)?).offset(offset).map_raw_read_only(file)?;
        let _ = map.advise(Advice::DontDump);
        Ok(Self { map: Arc::new(map), writable: false, has_holes: false })
    }

    /// Maps `bytes` of `file` for reading and writing.
    ///
    /// # Errors
    /// The error of `mmap`, or `InvalidInput` for a length that is no multiple of eight.
    pub fn read_write(file: &File, bytes: u64) -> io::Result<Self> {
        let length = length(bytes)?;
        let map = aligned(length, || MmapOptions::new().len(length).map_raw(file))?;
        Ok(Self { map: Arc::new(map), writable: true, has_holes: false })
    }

    /// Returns `words` words of the map, from byte `offset` on. A store through cells of a read-only map kills the process.
    ///
    /// # Panics
    /// When the range leaves the map or is not aligned. The caller must check sizes before it maps.
    pub fn cells(&self, offset: u64, words: u64) -> Cells {
        let end = words.checked_mul(8).and_then(|bytes| bytes.checked_add(offset));
        assert!(offset.is_multiple_of(8) && end.is_some_and(|end| end <= self.map.len() as u64));
        let first = NonNull::new(self.map.as_mut_ptr().wrapping_add(offset as usize).cast::<AtomicU64>())
            .expect("a successful mmap is not at address 0");
        // SAFETY: maps start on a page, so the first word is aligned; the assertion keeps all words inside the map;
        // the map lives as long as the Arc given as owner. `MmapRaw` never hands out references over its bytes.
        unsafe { Cells::from_raw(first, words as usize, self.map.clone()) }
    }

    /// The number of mapped bytes.
    pub fn bytes(&self) -> u64 {
        self.map.len() as u64
    }
}

/// Makes a map that starts on a huge-page boundary, if the kernel has room for it. Only in such a map can pages be collapsed into huge
/// pages. A kernel chooses such an address by itself only if huge pages are switched on for the file system.
fn aligned(length: usize, make: impl Fn() -> io::Result<MmapRaw>) -> io::Result<MmapRaw> {
    let make = || {
        let map = make()?;
        // This advice leaves the map out of core dumps, because the map can hold messages that a reader of the dump must not see. A kernel
        // without this advice includes the map.
        let _ = map.advise(Advice::DontDump);
        Ok(map)
    };
    let first: MmapRaw = make()?;
    let excess = first.as_ptr() as usize % HUGE_PAGE as usize;
    if length < HUGE_PAGE as usize || excess == 0 {
        return Ok(first);
    }
    // The kernel places each new map directly below the previous one. So a map of the excess size, made first, moves the next map to the
    // boundary.
    drop(first);
    let _spacer = MmapOptions::new().len(excess).map_anon()?;
    make()
}

fn length(bytes: u64) -> io::Result<usize> {
    usize::try_from(bytes)
        .ok()
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(8))
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "length of a map must be whole words"))
}
