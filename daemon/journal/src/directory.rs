//! The folder of a stream, within a journal's directory on a real file system.

use crate::complete::Complete;
use crate::core::{Io, Memory, Pages, Step, Stretch};
use crate::error::RecordError;
use crate::names::{found, is_named, place};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, fstat, lstat, statat};
use rustix::io::{Errno, ReadWriteFlags};
use shmcast::StreamId;
use shmcast::hosting::fault;
use shmcast::journal::format::{PAGE, SPARE};
use shmcast::journal::{Journal, JournalLock, Streams, folder_of, take_lock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// The name of a folder's lock.
const LOCK: &str = "lock";
/// The mode of new files. Only the recorder's user is allowed to read the recorded messages.
const PRIVATE: u32 = 0o600;
/// Greatest number of parts of one vectored write.
const PARTS: usize = 1024;
/// Greatest number of pages of one direct write.
const PAGES: usize = 256;
/// The greatest number of parts of a write that are in progress at the same time.
const DEPTH: usize = 2;
/// The type of the file system `tmpfs`, which keeps its files only in memory.
const TMPFS: u64 = 0x0102_1994;

/// The folder of a stream, locked by this process.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    pub(crate) handle: File,
    _lock: JournalLock,
    /// Device and number of the lock's file.
    locked: (u64, u64),
    /// The number that the stream's first file will have, if the stream has no file yet.
    first_number: u64,
    open: Mutex<BTreeMap<u64, (String, Arc<File>)>>,
    complete: Complete,
    /// Whether files are written by `O_DIRECT`.
    is_direct: AtomicBool,
    pages: Mutex<(Pages, [Memory; DEPTH])>,
}

impl Directory {
    /// Creates the directory if it does not exist, and takes its lock. `io` says how files are written. If the file system does not support
    /// direct writes, they are buffered.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::WouldBlock`] if another recorder has the lock.
    pub fn lock(path: &Path, io: Io) -> io::Result<Self> {
        make(path)?;
        let handle = open_directory(path)?;
        let (lock, locked) = lock_of(&handle)?;
        let is_direct = io == Io::Direct && takes_direct(&handle)?;
        Ok(Self {
            path: path.to_owned(),
            handle,
            _lock: lock,
            locked,
            first_number: 1,
            open: Mutex::default(),
            complete: Complete::default(),
            is_direct: AtomicBool::new(is_direct),
            pages: Mutex::new((Pages::default(), [(); DEPTH].map(|()| Memory::new(PAGES)))),
        })
    }

    /// Creates the journal's directory at `path` if it does not exist. Locks the folder of `stream` in this directory for a recorder of
    /// `channel`.
    ///
    /// # Errors
    /// [`RecordError::Journal`], [`RecordError::Busy`] and [`RecordError::Os`].
    pub(crate) fn of_stream(
        path: &Path,
        stream: StreamId,
        channel: &str,
        io: Io,
    ) -> Result<Self, RecordError> {
        make(path).map_err(|source| RecordError::Os { path: path.to_owned(), source })?;
        let streams = Streams::open(path)?;
        streams.check_channel(channel)?;
        let newest = streams.journals().last().and_then(Journal::stream);
        let stream = if fault!("a_journal_takes_any_stream") { newest.unwrap_or(stream) } else { stream };
        let path = folder_of(path, stream);
        let locked = Self::lock(&path, io).map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => RecordError::Busy { path },
            _ => RecordError::Os { path, source },
        })?;
        Ok(Self { first_number: streams.first_number(), ..locked })
    }

    /// Returns the number for the first file of a new stream. This number is higher than all numbers in earlier streams' files.
    pub(crate) fn first_number(&self) -> u64 {
        self.first_number
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns how files are written: as requested, or [`Io::Buffered`] after the file system refused direct writes.
    pub fn io(&self) -> Io {
        if self.is_direct.load(Ordering::Relaxed) { Io::Direct } else { Io::Buffered }
    }

    /// Removes the spare file, if no message was written to it.
    ///
    /// # Errors
    /// The system's error. Also an error if the lock's file has lost its name, because the spare file can be another recorder's.
    pub(crate) fn remove_spare(&self) -> io::Result<()> {
        if !self.is_locked()? {
            return Err(io::Error::other(format!("the file {LOCK} was removed or moved")));
        }
        remove(&self.handle, SPARE)
    }

    /// Whether the lock's file still has its name. If not, another recorder can lock a new file of this name.
    ///
    /// # Errors
    /// The system's error, if the name cannot be looked up.
    fn is_locked(&self) -> io::Result<bool> {
        Ok(found(statat(&self.handle, LOCK, AtFlags::SYMLINK_NOFOLLOW))? == Some(self.locked))
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<u64, (String, Arc<File>)>> {
        self.open.lock().expect("nobody panics while holding it")
    }

    fn file(&self, number: u64) -> io::Result<Arc<File>> {
        let found = self.files().get(&number).map(|(_, file)| file.clone());
        found.ok_or_else(|| io::Error::other(format!("file {number} is closed")))
    }

    /// Checks that the path still leads to this directory, and that the lock and each open file still have their names. If not, nobody can
    /// read the new records, or another recorder can write here. For complete files, reports the result of their last comparison with the
    /// folder.
    pub(crate) fn check_names(&self) -> Result<(), RecordError> {
        if !is_named(&self.handle, lstat(&self.path)).map_err(self.os())? {
            return Err(self.moved("the directory".to_owned()));
        }
        if !self.is_locked().map_err(self.os())? {
            return Err(self.moved(format!("its file {LOCK}")));
        }
        // While another thread has the turn, retention might have removed a file without noting it yet. So the files are not checked now.
        let Some(_turn) = self.complete.try_turn() else { return Ok(()) };
        let file = self.nameless().map_err(self.os())?.or_else(|| self.complete.missing());
        file.map_or(Ok(()), |name| Err(self.moved(format!("its file {name}"))))
    }

    /// Checks the path and all files: those that are open, and those that are complete.
    ///
    /// # Errors
    /// [`RecordError::Moved`] and [`RecordError::Os`].
    pub(crate) fn check_all_names(&self) -> Result<(), RecordError> {
        self.check_names()?;
        let looked = self.complete.look(&self.handle);
        looked.map_err(self.os())?;
        self.check_names()
    }

    /// Runs `trim`, which removes files and returns their names. These files do not count as moved.
    pub(crate) fn trim<T>(&self, trim: impl FnOnce() -> (T, Vec<String>)) -> T {
        let _turn = self.complete.turn();
        let (done, gone) = trim();
        for name in &gone {
            // A removed file can still be open for a short time. Its name is cleared, so that the file does not count as moved.
            self.files().values_mut().filter(|(open, _)| open == name).for_each(|(open, _)| open.clear());
            self.complete.remove(name);
        }
        done
    }

    fn os(&self) -> impl Fn(io::Error) -> RecordError {
        |source| RecordError::Os { path: self.path.clone(), source }
    }

    fn moved(&self, what: String) -> RecordError {
        RecordError::Moved { path: self.path.clone(), what }
    }

    /// Returns an open file that has lost its name.
    fn nameless(&self) -> io::Result<Option<String>> {
        let files = self.files();
        // The spare file is skipped, because it has no records yet.
        for (name, file) in files.values().filter(|(name, _)| name != SPARE && !name.is_empty()) {
            if !is_named(file, statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW))? {
                return Ok(Some(name.clone()));
            }
        }
        Ok(None)
    }

    /// Performs a step. Blocks until the disk has done it.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn perform(&self, step: &Step) -> io::Result<()> {
        match step {
            Step::Create { number, size } => self.create(*number, *size),
            Step::Write { number, offset, pieces, ahead, durable } => {
                let file = self.file(*number)?;
                if self.io() == Io::Direct {
                    let (pages, memory) = &mut *self.pages.lock().expect("nobody panics while holding it");
                    let run = |stretch: &Stretch<'_>| self.write_stretch(&file, stretch, memory, *durable);
                    return pages.write(*number, *offset, pieces, *ahead, run);
                }
                let parts: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes()).collect();
                write_all(&file, *offset, &parts, *durable)
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
                let closed = self.files().remove(number).map(|(name, _)| name);
                if let Some(name) = closed.filter(|name| name != SPARE && !name.is_empty()) {
                    self.complete.add(name, &self.handle);
                }
                Ok(())
            }
        }
    }

    /// Writes pages in parts. A small write is made by one thread, part after part. A large write is made by two threads: one copies its
    /// part while the other writes.
    fn write_stretch(
        &self,
        file: &File,
        stretch: &Stretch<'_>,
        memory: &mut [Memory; DEPTH],
        durable: bool,
    ) -> io::Result<()> {
        let most = PAGES * PAGE;
        let next = AtomicUsize::new(0);
        let run = |memory: &mut Memory| {
            loop {
                let from = next.fetch_add(most, Ordering::Relaxed);
                if from >= stretch.size() {
                    return Ok(());
                }
                let part = &mut memory.bytes()[..most.min(stretch.size() - from)];
                stretch.copy(from, part);
                self.write_pages(file, stretch.place() + from as u64, part, durable)?;
            }
        };
        let [own, other] = memory;
        if stretch.size() < DEPTH * most {
            return run(own);
        }
        std::thread::scope(|scope| {
            let helper = std::thread::Builder::new().name("journal-pages".to_owned());
            // If no second thread can be started, this thread writes all parts.
            let helper = helper.spawn_scoped(scope, || run(other));
            let done = run(own);
            let helped = helper.map_or(Ok(()), |helper| {
                helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            done.and(helped)
        })
    }

    /// Writes whole pages of memory.
    fn write_pages(&self, file: &File, offset: u64, bytes: &[u8], durable: bool) -> io::Result<()> {
        match write_all(file, offset, &[bytes], durable) {
            Err(error) if is_invalid(&error) => {
                // The file system refuses direct writes of this page size, so the write uses the page cache. The file's contents stay the
                // same.
                let flags = rustix::fs::fcntl_getfl(file)?;
                rustix::fs::fcntl_setfl(file, flags.difference(OFlags::DIRECT))?;
                self.is_direct.store(false, Ordering::Relaxed);
                write_all(file, offset, &[bytes], durable)
            }
            done => done,
        }
    }

    fn create(&self, number: u64, size: u64) -> io::Result<()> {
        self.remove_spare()?;
        let way = if self.io() == Io::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let file = at(&self.handle, SPARE, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | way)?;
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size) {
            Ok(()) => {}
            // A file system without this call allocates blocks as they are written.
            Err(Errno::OPNOTSUPP) => file.set_len(size)?,
            Err(error) => {
                self.remove_spare()?; // this frees what was allocated
                return Err(error.into());
            }
        }
        self.files().insert(number, (SPARE.to_owned(), Arc::new(file)));
        Ok(())
    }
}

/// Whether the file system of a directory supports direct writes.
fn takes_direct(directory: &File) -> io::Result<bool> {
    // `tmpfs` accepts `O_DIRECT`, but copies the bytes anyway, so direct writes have no advantage.
    if rustix::fs::fstatfs(directory)?.f_type as u64 == TMPFS {
        return Ok(false);
    }
    match at(directory, LOCK, OFlags::RDONLY | OFlags::DIRECT) {
        Err(error) if is_invalid(&error) => Ok(false),
        opened => opened.map(|_| true),
    }
}

fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

/// Takes the lock of a folder. Returns the lock with the device and the number of its file.
fn lock_of(folder: &File) -> io::Result<(JournalLock, (u64, u64))> {
    loop {
        let file = at(folder, LOCK, OFlags::RDWR | OFlags::CREATE)?;
        let own = place(&fstat(&file)?);
        let lock = take_lock(file)?.ok_or(io::ErrorKind::WouldBlock)?;
        // The lock counts only if the file still has its name. If the file was removed before it was locked, the next recorder would lock
        // another file.
        if found(statat(folder, LOCK, AtFlags::SYMLINK_NOFOLLOW))? == Some(own) {
            return Ok((lock, own));
        }
    }
}

pub(crate) fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?.into())
}

/// Creates a directory if it does not exist, and syncs its name to the disk.
fn make(path: &Path) -> io::Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o700)) {
        Ok(()) => sync_parent(path),
        Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Makes the new name at `path` safe from a power cut.
fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    open_directory(parent.unwrap_or(Path::new(".")))?.sync_all()
}

/// Removes a file, if it exists.
pub(crate) fn remove(directory: &File, name: &str) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn at(directory: &File, name: &str, flags: OFlags) -> io::Result<File> {
    let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    Ok(rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(PRIVATE))?.into())
}

pub(crate) fn write_all(file: &File, mut offset: u64, parts: &[&[u8]], durable: bool) -> io::Result<()> {
    let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        let some = rest.len().min(PARTS);
        let written = match rustix::io::pwritev2(file, &rest[..some], offset, flags) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        IoSlice::advance_slices(&mut rest, written);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

    use super::*;
    use crate::core::Piece;

    fn write(number: u64, offset: u64, bytes: &[u8]) -> Step {
        Step::Write { number, offset, pieces: vec![Piece::Own(bytes.into())], ahead: 0, durable: true }
    }

    /// If the kernel refuses a direct write, this write and all later writes use the page cache.
    #[test]
    fn what_a_file_system_refuses_goes_through_the_cache() {
        let place = tempfile::tempdir().unwrap();
        let directory = Directory::lock(place.path(), Io::Direct).unwrap();
        if directory.io() == Io::Buffered {
            println!(
                "SKIPPED what_a_file_system_refuses_goes_through_the_cache: the temporary directory takes no O_DIRECT"
            );
            return;
        }
        directory.perform(&Step::Create { number: 1, size: 16 << 10 }).unwrap();
        directory.perform(&write(1, 0, &[1; 5000])).unwrap();
        assert_eq!(directory.io(), Io::Direct);
        let file = directory.file(1).unwrap();
        directory.write_pages(&file, 5000, &[2; 3], false).unwrap();
        assert_eq!(directory.io(), Io::Buffered);
        directory.perform(&write(1, 5003, &[3; 9])).unwrap();
        directory.perform(&Step::Sync { number: 1 }).unwrap();
        let bytes = std::fs::read(place.path().join(SPARE)).unwrap();
        assert_eq!(bytes.len(), 16 << 10);
        assert_eq!(bytes[..5012], [&[1; 5000][..], &[2; 3], &[3; 9]].concat());
        assert!(bytes[5012..].iter().all(|&byte| byte == 0));
    }
}
