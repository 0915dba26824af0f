//! The directory of a journal on a real file system.

use crate::core::{Step, Volume};
use crate::error::RecordError;
use rustix::fs::{Advice, CWD, FallocateFlags, Mode, OFlags};
use rustix::io::ReadWriteFlags;
use shmcast::journal::format::SPARE;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

/// Only the recorder's user may read what was recorded.
const PRIVATE: u32 = 0o600;
/// Most parts of one vectored write.
const PARTS: usize = 1024;

/// A journal's directory, locked by this process.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    handle: File,
    _lock: File,
    open: Mutex<BTreeMap<u64, (String, Arc<File>)>>,
}

impl Directory {
    /// Makes the directory if it is not there, and takes its lock.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::WouldBlock`] if another recorder has the lock.
    pub fn lock(path: &Path) -> io::Result<Self> {
        match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
            Ok(()) => {
                sync_parent(path)?;
            }
            Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let handle = open_directory(path)?;
        let lock = at(&handle, "lock", OFlags::RDWR | OFlags::CREATE)?;
        if !shmcast::journal::take_lock(&lock)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Self { path: path.to_owned(), handle, _lock: lock, open: Mutex::default() })
    }

    /// As [`lock`](Self::lock), with the reasons why there is no recorder.
    ///
    /// # Errors
    /// [`RecordError::Busy`] and [`RecordError::Os`].
    pub(crate) fn of_recorder(path: &Path) -> Result<Self, RecordError> {
        Self::lock(path).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => RecordError::Busy { path: path.to_owned() },
            _ => RecordError::Os { path: path.to_owned(), source },
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file that was prepared for what did not come.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove_spare(&self) -> io::Result<()> {
        remove(&self.handle, SPARE)
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<u64, (String, Arc<File>)>> {
        self.open.lock().expect("nobody panics while holding it")
    }

    fn file(&self, number: u64) -> io::Result<Arc<File>> {
        let found = self.files().get(&number).map(|(_, file)| file.clone());
        found.ok_or_else(|| io::Error::other(format!("file {number} is closed")))
    }

    /// Does a step. It blocks for as long as the disk takes.
    ///
    /// # Errors
    /// The system's error.
    pub fn perform(&self, step: &Step) -> io::Result<()> {
        match step {
            Step::Create { number, size } => self.create(*number, *size),
            Step::Write { number, offset, pieces, durable } => {
                let parts: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes()).collect();
                write_all(&*self.file(*number)?, *offset, &parts, *durable)
            }
            Step::Sync { number } => self.file(*number)?.sync_data(),
            Step::Resize { number, size } => self.file(*number)?.set_len(*size),
            Step::Rename { number, name } => {
                let mut files = self.files();
                let (old, _) = files
                    .get_mut(number)
                    .ok_or_else(|| io::Error::other(format!("file {number} is closed")))?;
                rustix::fs::renameat(&self.handle, old.as_str(), &self.handle, name.as_str())?;
                name.clone_into(old);
                Ok(())
            }
            Step::SyncDirectory => self.handle.sync_all(),
            Step::Close { number } => {
                self.files().remove(number);
                Ok(())
            }
        }
    }

    fn create(&self, number: u64, size: u64) -> io::Result<()> {
        self.remove_spare()?;
        let file = at(&self.handle, SPARE, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
            // A file system without the call gives blocks as they are written.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => {}
            Err(error) => {
                self.remove_spare()?; // which gives back what was allocated
                return Err(error.into());
            }
        }
        self.files().insert(number, (SPARE.to_owned(), Arc::new(file)));
        Ok(())
    }
}

pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into())
}

/// Makes the name at `path` safe, which is new there.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    open_directory(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes a file, if it is there.
pub(crate) fn remove(directory: &File, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn at(directory: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(PRIVATE))?.into())
}

fn write_all(file: &File, mut offset: u64, parts: &[&[u8]], durable: bool) -> io::Result<()> {
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let some = rest.len().min(PARTS);
        let written = match rustix::io::pwritev2(file, &rest[..some], offset, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

/// The same directory as recovery sees it: by name.
#[derive(Debug)]
pub struct ByName<'a> {
    directory: &'a Directory,
    /// The file that was used last.
    open: Option<(String, File)>,
}

impl<'a> ByName<'a> {
    /// The files of a directory.
    pub const fn new(directory: &'a Directory) -> Self {
        Self { directory, open: None }
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
        let file = match self.open.take() {
            Some(open) if open.0 == name => open,
            _ => (name.to_owned(), at(&self.directory.handle, name, OFlags::RDWR)?),
        };
        Ok(&self.open.insert(file).1)
    }
}

impl Volume for ByName<'_> {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(&self.directory.path)?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn size(&mut self, name: &str) -> io::Result<u64> {
        Ok(self.file(name)?.metadata()?.len())
    }

    fn read(&mut self, name: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file(name)?.read_exact_at(bytes, offset)
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = at(&self.directory.handle, name, OFlags::RDWR | OFlags::CREATE)?;
        write_all(&file, offset, &[bytes], false)
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_all()
    }

    fn forget(&mut self, name: &str) {
        if let Ok(file) = self.file(name) {
            // A hint: on a file system that does not take it, the cache is read.
            let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
        }
    }

    fn truncate(&mut self, name: &str, size: u64) -> io::Result<()> {
        self.file(name)?.set_len(size)
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.open = None;
        Ok(rustix::fs::renameat(&self.directory.handle, from, &self.directory.handle, to)?)
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.open = None;
        Ok(rustix::fs::unlinkat(&self.directory.handle, name, rustix::fs::AtFlags::empty())?)
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        self.directory.handle.sync_all()
    }
}
