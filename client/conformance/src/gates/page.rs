//! The page of a gate by SPEC.md 4.3, and the lock that the reader of the gate holds.

use anyhow::Result;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The size of a page.
pub const BYTES: usize = 4096;
/// The word with the position.
pub const POSITION: u64 = 16;

/// The values that a reader stores on the page of its gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The position up to which the reader has copied everything.
    pub position: u64,
    /// Whether the check word matches this position and segment.
    pub is_right: bool,
    /// The sequence that the reader expects next.
    pub next: u64,
    /// The reader's process id.
    pub pid: u64,
}

/// The page of a gate, in a file that the suite has open.
#[derive(Debug)]
pub struct Page {
    /// The path of the file.
    pub path: PathBuf,
    /// The file.
    pub file: File,
}

/// Returns the word that confirms a position.
pub fn check(position: u64, uuid: [u64; 2]) -> u64 {
    (position ^ uuid[1]).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ uuid[0]
}

fn whole_file(kind: libc::c_int) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: 0, l_len: 0, l_pid: 0 }
}

impl Page {
    /// Makes a page.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn make(path: &Path, name: &str) -> Result<Self> {
        let mut bytes = b"SHMGATE1".to_vec();
        bytes.extend(1_u64.to_le_bytes());
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.resize(BYTES, 0);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&bytes)?;
        Self::open(path)
    }

    /// Opens a page.
    ///
    /// # Errors
    /// If the page does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Opens the file once more, for a reader.
    ///
    /// # Errors
    /// If the file is gone.
    pub fn again(&self) -> Result<File> {
        Ok(Self::open(&self.path)?.file)
    }

    /// Reads a word.
    ///
    /// # Errors
    /// If the file is too short.
    pub fn word(&self, at: u64) -> Result<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 8 * at)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads the values that the gate's reader has stored on the page.
    ///
    /// # Errors
    /// If the file is too short.
    pub fn claim(&self, uuid: [u64; 2]) -> Result<Claim> {
        let position = self.word(POSITION)?;
        let is_right = self.word(POSITION + 1)? == check(position, uuid);
        Ok(Claim { position, is_right, next: self.word(POSITION + 2)?, pid: self.word(POSITION + 3)? })
    }

    /// Writes the words of a reader.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn write(&self, words: [u64; 4]) -> Result<()> {
        Ok(self.file.write_all_at(words.map(u64::to_le_bytes).as_flattened(), 8 * POSITION)?)
    }

    /// Stores the position of a reader on the page: the reader has copied everything before this position.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn pass(&self, position: u64, uuid: [u64; 2], next: u64) -> Result<()> {
        self.write([position, check(position, uuid), next, u64::from(std::process::id())])
    }

    /// Stores on the page that the reader has no place in the ring. Keeps `position`.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn leave(&self, position: u64, uuid: [u64; 2]) -> Result<()> {
        self.write([position, !check(position, uuid), u64::MAX, u64::from(std::process::id())])
    }

    /// Takes the lock. Returns false if another open file holds it.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn lock(&self) -> Result<bool> {
        match fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_WRLCK))) {
            Ok(_) => Ok(true),
            Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Frees the lock.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn unlock(&self) -> Result<()> {
        fcntl(&self.file, FcntlArg::F_OFD_SETLK(&whole_file(libc::F_UNLCK)))?;
        Ok(())
    }

    /// Whether another open file holds the lock of the whole file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn is_locked(&self) -> Result<bool> {
        let mut lock = whole_file(libc::F_WRLCK);
        fcntl(&self.file, FcntlArg::F_OFD_GETLK(&mut lock))?;
        let is_whole = (lock.l_start, lock.l_len) == (0, 0);
        Ok(libc::c_int::from(lock.l_type) == libc::F_WRLCK && is_whole)
    }
}
