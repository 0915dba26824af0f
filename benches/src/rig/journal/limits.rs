//! The physical limits with which a journal is compared: bare system calls on the same file system, in the same
//! minute.
//!
//! | limit | what |
//! |---|---|
//! | D | writes of 1 MiB with `O_DIRECT` into a file that was written before; measured with one thread and with two |
//! | S | writes of 4 KiB with `RWF_DSYNC` into the same file |
//! | M | copying 256 KiB and taking their CRC-32C, on one core |
//! | R | reading the same file from its start in pieces of 1 MiB, from memory and from the drive |

use crate::rig::stats::Distribution;
use anyhow::{Context, Result};
use rustix::fs::{Advice, Mode, OFlags, fadvise};
use rustix::io::{ReadWriteFlags, pwritev2};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The size of one write or read, in bytes.
const PIECE: usize = 1 << 20;
/// The size of one synced write, in bytes.
const SMALL: usize = 4096;
/// The size of a frame, in bytes.
const FRAME: usize = 256 << 10;

/// The measured limits of bare system calls. Rates are in bytes a second.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Limits {
    /// The rates of direct writes (limit D) with one write at a time, and with two.
    pub direct: [f64; 2],
    /// Whether the file system refused `O_DIRECT`. If so, the writes for the limits D (1 MiB) and S (4 KiB) went through the page cache.
    pub is_buffered: bool,
    /// The duration of one synced write (limit S), in ns.
    pub sync: Distribution,
    /// The rate of copying with a checksum (limit M).
    pub copy: f64,
    /// The rate of reading a file from memory (limit R).
    pub cached: f64,
    /// The rate of reading a file (limit R) from the drive. In a virtual machine, the data might come from the host's memory instead.
    pub cold: f64,
}

impl Limits {
    /// Returns the better of the two rates of direct writes (limit D).
    pub fn disk(&self) -> f64 {
        self.direct[0].max(self.direct[1])
    }
}

/// The size of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The size of the file, in bytes.
    pub bytes: u64,
    /// The duration of each measurement.
    pub time: Duration,
}

/// Memory that starts at a page boundary, as `O_DIRECT` requires.
struct Pages {
    bytes: Vec<u8>,
    first: usize,
}

impl Pages {
    fn new(bytes: usize) -> Self {
        let bytes = vec![0x5a; bytes + SMALL];
        let first = bytes.as_ptr().align_offset(SMALL);
        Self { bytes, first }
    }

    fn first(&self, bytes: usize) -> &[u8] {
        &self.bytes[self.first..][..bytes]
    }
}

/// Measures all limits in a new file of the directory. Removes the file at the end.
///
/// # Errors
/// The file system's error.
pub fn measure(dir: &Path, effort: Effort) -> Result<Limits> {
    let path = dir.join("limits.tmp");
    let made = Measured::make(&path, effort);
    let limits = made.and_then(|file| file.measure());
    std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    limits.with_context(|| format!("measure by {}", path.display()))
}

struct Measured {
    /// The file, opened for writes.
    direct: File,
    /// The file, opened for reads.
    plain: File,
    effort: Effort,
    is_buffered: bool,
}

impl Measured {
    /// Makes a file to which each byte was written once.
    fn make(path: &Path, effort: Effort) -> Result<Self> {
        let open = |flags| rustix::fs::open(path, OFlags::CREATE | OFlags::RDWR | flags, Mode::from(0o600));
        let plain = File::from(open(OFlags::CLOEXEC)?);
        let direct = open(OFlags::CLOEXEC | OFlags::DIRECT);
        let is_buffered = direct.is_err();
        let direct = direct.map_or_else(|_| plain.try_clone(), |fd| Ok(File::from(fd)))?;
        let pages = Pages::new(PIECE);
        for piece in 0..effort.bytes / PIECE as u64 {
            direct.write_all_at(pages.first(PIECE), piece * PIECE as u64)?;
        }
        plain.sync_all()?;
        Ok(Self { direct, plain, effort, is_buffered })
    }

    fn measure(&self) -> Result<Limits> {
        Ok(Limits {
            direct: [self.direct(1)?, self.direct(2)?],
            is_buffered: self.is_buffered,
            sync: self.sync()?,
            copy: self.copy(),
            cold: self.cold()?,
            cached: self.cached()?,
        })
    }

    fn direct(&self, depth: usize) -> Result<f64> {
        let (next, pieces, start) = (AtomicU64::new(0), self.effort.bytes / PIECE as u64, Instant::now());
        let write = || -> Result<()> {
            let pages = Pages::new(PIECE);
            while start.elapsed() < self.effort.time {
                let piece = next.fetch_add(1, Ordering::Relaxed) % pieces;
                self.direct.write_all_at(pages.first(PIECE), piece * PIECE as u64)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..depth).map(|_| scope.spawn(write)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("it does not panic"))
        })?;
        if self.is_buffered {
            self.direct.sync_data()?;
        }
        Ok(next.into_inner() as f64 * PIECE as f64 / start.elapsed().as_secs_f64())
    }

    fn sync(&self) -> Result<Distribution> {
        let (pages, places, start) = (Pages::new(SMALL), self.effort.bytes / SMALL as u64, Instant::now());
        let mut times = Vec::new();
        while start.elapsed() < self.effort.time {
            let part = [IoSlice::new(pages.first(SMALL))];
            let offset = times.len() as u64 % places * SMALL as u64;
            let before = Instant::now();
            let written = pwritev2(&self.direct, &part, offset, ReadWriteFlags::DSYNC)?;
            times.push(before.elapsed().as_nanos() as u64);
            anyhow::ensure!(written == SMALL, "a write of {SMALL} B took {written}");
        }
        Ok(Distribution::of_values(times))
    }

    fn copy(&self) -> f64 {
        let (from, mut to) = (vec![1_u8; 64 << 20], vec![0_u8; 32 * FRAME]);
        let (mut bytes, mut sum, start) = (0_u64, 0, Instant::now());
        'all: loop {
            for (from, at) in from.chunks_exact(FRAME).zip((0..32).cycle()) {
                let to = &mut to[at * FRAME..][..FRAME];
                to.copy_from_slice(from);
                sum ^= crc32c::crc32c(to);
                bytes += FRAME as u64;
                if start.elapsed() > self.effort.time {
                    break 'all;
                }
            }
        }
        std::hint::black_box(sum);
        bytes as f64 / start.elapsed().as_secs_f64()
    }

    fn read(&self) -> Result<f64> {
        let (mut piece, start) = (vec![0; PIECE], Instant::now());
        for at in 0..self.effort.bytes / PIECE as u64 {
            self.plain.read_exact_at(&mut piece, at * PIECE as u64)?;
        }
        Ok(self.effort.bytes as f64 / start.elapsed().as_secs_f64())
    }

    fn cold(&self) -> Result<f64> {
        forget(&self.plain)?;
        fadvise(&self.plain, 0, None, Advice::Sequential)?;
        self.read()
    }

    /// Returns the rate of reading from the page cache. The previous call of `read` has filled the cache with as much of the file as fits.
    fn cached(&self) -> Result<f64> {
        self.read()
    }
}

/// Removes a file from the page cache, if the file system allows it.
///
/// # Errors
/// The file system's error.
pub fn forget(file: &File) -> Result<()> {
    file.sync_all()?;
    fadvise(file, 0, None, Advice::DontNeed).context("take a file out of the cache")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_measured_and_leave_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let effort = Effort { bytes: 4 << 20, time: Duration::from_millis(20) };
        let limits = measure(dir.path(), effort).unwrap();
        for rate in [limits.disk(), limits.copy, limits.cached, limits.cold] {
            assert!(rate > 0.0, "{limits:?}");
        }
        assert!(limits.sync.count > 0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
