//! The files of a journal in a directory.

use super::JournalError;
use crate::directory::{Folder, is_same_file};
use crate::error::{is_absent, is_shortage};
use crate::lock::{self, Held};
use rustix::fs::OFlags;
use shmcast_layout::journal::{
    FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader, FormatError, FrameHeader, TRAILER_BYTES, Trailer,
    parse_file_name, sequence_in_name,
};
use shmcast_layout::layout::stream::StreamId;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Mode of a new file: only the recorder's user can read it.
pub(super) const PRIVATE: u32 = 0o600;
/// The name of a folder's lock.
pub(super) const LOCK: &str = "lock";
/// Two changes of a directory have different times if they are further apart than this.
const SAME_TIME: Duration = Duration::from_secs(1);

/// A file of a journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileInfo {
    /// The name in the directory.
    pub name: String,
    /// The header.
    pub header: FileHeader,
    /// The trailer, if the file is sealed.
    pub trailer: Option<Trailer>,
    /// Bytes of the file.
    pub bytes: u64,
}

impl FileInfo {
    /// Whether the recorder abandoned this file after an error of the disk. Messages that were not safe on disk by then are also in the
    /// next file.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let given_up = journal.files().iter().filter(|file| file.is_given_up()).count();
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn is_given_up(&self) -> bool {
        self.name.ends_with(".suspect")
    }
}

/// An entry of the directory that has the name of a journal file. It is not a valid file, or belongs to another journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The name in the directory.
    pub name: String,
    /// The reason why the entry is not used.
    pub why: String,
}

/// A journal in a directory, in its state when it was opened or last refreshed.
///
/// Cost: 1 KiB of memory per file.
#[derive(Debug)]
pub struct Journal {
    folder: Folder,
    /// The stream that the folder's name gives. Files of another stream are listed as problems.
    named: Option<StreamId>,
    /// The file that a recorder locks, if the last refresh could open it.
    lock: Option<File>,
    files: Vec<Arc<FileInfo>>,
    problems: Vec<Problem>,
    /// The highest number in the names of files without a valid header; 0 if there is no such file.
    pub(super) highest_unread: u64,
    /// The modification time of the directory at the last refresh. The next refresh lists the names again if this time has changed, or is
    /// `None`. It is `None` if a later change could still get the same time, or if a file was not valid.
    listed: Option<(i64, i64)>,
}

/// The lock on a journal's folder, which its recorder holds. Dropping this value releases the lock immediately, even if child processes
/// have copies of the descriptor. The kernel releases the lock when the recorder ends for any reason.
#[derive(Debug)]
pub struct JournalLock {
    _held: Held,
}

/// Takes the lock of a journal's folder for a recorder. `lock` is the file `lock` in the folder. Returns `None` if another recorder has the
/// lock.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let file = || std::fs::File::create(dir.path().join("lock"));
/// let held = shmcast::journal::take_lock(file()?)?;
/// assert!(held.is_some() && shmcast::journal::take_lock(file()?)?.is_none());
/// drop(held);
/// assert!(shmcast::journal::take_lock(file()?)?.is_some());
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The system's error.
pub fn take_lock(lock: File) -> io::Result<Option<JournalLock>> {
    let is_free = lock::try_lock(&lock)?;
    Ok(is_free.then(|| JournalLock { _held: Held::new(lock) }))
}

/// Takes the lock of a journal's folder. Creates the lock's file if it does not exist.
pub(super) fn lock_of(folder: &Folder) -> Result<Held, JournalError> {
    let path = folder.path_of(LOCK);
    loop {
        let opened = match folder.file(LOCK, OFlags::RDWR) {
            Err(e) if is_absent(&e) => folder.create(LOCK, PRIVATE),
            opened => opened,
        };
        let file = opened.map_err(JournalError::os("open", &path))?;
        if !lock::try_lock(&file).map_err(JournalError::os("lock", &path))? {
            return Err(JournalError::Busy { path: folder.path().to_owned() });
        }
        // The file might have been removed before it was locked. A recorder would then lock another file.
        let own = rustix::fs::fstat(&file).map_err(|e| JournalError::os("look at", &path)(e.into()))?;
        if folder.stat(LOCK).is_ok_and(|named| is_same_file(&own, &named)) {
            return Ok(Held::new(file));
        }
    }
}

/// The reason why a file is not in the list.
enum Unusable {
    /// The file was removed meanwhile.
    Gone,
    /// The file is no file of a journal, or is not readable.
    Wrong(String),
    /// Descriptors or memory are short.
    Unknown(io::Error),
}

impl Unusable {
    fn of(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::NotFound => Self::Gone,
            _ if is_shortage(&e) => Self::Unknown(e),
            _ => Self::Wrong(e.to_string()),
        }
    }
}

/// An open file, with the content of its header and trailer.
pub(super) struct Opened {
    pub(super) file: Arc<File>,
    pub(super) header: FileHeader,
    /// The chain value of the file's first frame: a checksum of the file's header.
    pub(super) chain: u32,
    pub(super) trailer: Option<Trailer>,
    pub(super) bytes: u64,
}

/// A file whose header is damaged. Its properties come from its name and its frames.
pub(super) struct Headless {
    /// The sequence due at the file's first frame, from the file's name.
    pub(super) first: u64,
    /// The greatest sequence that the file's frames report as durable.
    pub(super) durable: u64,
    /// The sequence at which the file ends, because a later file begins there.
    pub(super) limit: Option<u64>,
}

impl Opened {
    /// Reads and checks header and trailer.
    pub(super) fn new(file: File) -> io::Result<Result<Self, FormatError>> {
        let bytes = file.metadata()?.len();
        let mut page = [0; FILE_HEADER_BYTES];
        if let Err(e) = file.read_exact_at(&mut page, 0) {
            let found = bytes.min(FILE_HEADER_BYTES as u64) as usize;
            let part = "file header";
            return match e.kind() {
                io::ErrorKind::UnexpectedEof => {
                    Ok(Err(FormatError::Truncated { part, found, needed: FILE_HEADER_BYTES }))
                }
                _ => Err(e),
            };
        }
        let header = match FileHeader::decode(&page) {
            Ok(header) => header,
            Err(why) => return Ok(Err(why)),
        };
        let mut end = [0; TRAILER_BYTES];
        let is_read = file.read_exact_at(&mut end, bytes.saturating_sub(TRAILER_BYTES as u64)).is_ok();
        let trailer = Trailer::decode(&end, header.salt)
            .ok()
            .filter(|trailer| is_read && trailer.footer < bytes && trailer.first == header.sequence);
        let chain = FileHeader::crc_of(&page);
        Ok(Ok(Self { file: Arc::new(file), header, chain, trailer, bytes }))
    }
}

impl Journal {
    /// Opens the folder of a stream. Nothing in the folder is read yet.
    pub(super) fn in_folder(folder: &Folder, stream: StreamId) -> io::Result<Self> {
        Ok(Self::of(folder.folder(stream.to_string())?, Some(stream)))
    }

    /// Opens the directory at `path`. Nothing in the directory is read yet.
    pub(super) fn unlisted(path: &Path) -> Result<Self, JournalError> {
        let folder = Folder::named(path).map_err(JournalError::os("open the directory", path))?;
        Ok(Self::of(folder, None))
    }

    fn of(folder: Folder, named: Option<StreamId>) -> Self {
        Self {
            folder,
            named,
            lock: None,
            files: Vec::new(),
            problems: Vec::new(),
            highest_unread: 0,
            listed: None,
        }
    }

    /// Whether there is a file of a journal, usable or not.
    pub(super) fn has_any(&self) -> bool {
        !self.files.is_empty() || !self.problems.is_empty()
    }

    /// The stream that the journal keeps; `None` if no file names it.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// println!("{:?}", journal.stream());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn stream(&self) -> Option<StreamId> {
        self.named.or_else(|| self.files.first().map(|file| file.header.stream))
    }

    /// Reads the directory again. Files that were already sealed at the last refresh are not read again.
    ///
    /// # Errors
    /// [`JournalError::Os`] if the directory cannot be listed, or if descriptors or memory are short. The list then has the files that were
    /// known before.
    ///
    /// ```no_run
    /// # let mut journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// journal.refresh()?;
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn refresh(&mut self) -> Result<(), JournalError> {
        self.lock = match self.folder.file(LOCK, OFlags::RDONLY) {
            Err(e) if is_shortage(&e) => {
                return Err(JournalError::os("open", self.folder.path_of(LOCK))(e));
            }
            lock => lock.ok(),
        };
        let changed = self.changed();
        if changed.is_some() && changed == self.listed && self.look_at_open_files() {
            return Ok(());
        }
        let names = self.folder.names().map_err(JournalError::os("list", self.folder.path()))?;
        let mut known: HashMap<String, Arc<FileInfo>> =
            self.files.drain(..).map(|file| (file.name.clone(), file)).collect();
        self.problems.clear();
        let mut unwritten = Vec::new();
        for name in names.into_iter().filter_map(|name| name.into_string().ok()) {
            if parse_file_name(&name).is_none() {
                continue;
            }
            if let Some(file) = known.remove(&name).filter(|file| file.trailer.is_some()) {
                self.files.push(file);
                continue;
            }
            match self.look_at(&name) {
                Ok(file) => self.files.push(Arc::new(file)),
                Err(Unusable::Gone) => {}
                // This error says nothing about the file, so the file must not count as missing.
                Err(Unusable::Unknown(e)) => {
                    self.files.extend(known.into_values());
                    self.sort();
                    self.listed = None;
                    return Err(JournalError::os("open", self.folder.path_of(&name))(e));
                }
                Err(Unusable::Wrong(why)) if self.is_unwritten(&name) => {
                    unwritten.push(Problem { name, why })
                }
                Err(Unusable::Wrong(why)) => self.problems.push(Problem { name, why }),
            }
        }
        // At most the last file can have its name before its recorder has written the first bytes. So an earlier file without bytes is a
        // problem.
        let last = self.files.iter().filter_map(|file| parse_file_name(&file.name)).max();
        let is_all_written = unwritten.is_empty();
        self.problems.extend(unwritten.into_iter().filter(|file| parse_file_name(&file.name) <= last));
        self.sort();
        self.listed = changed.filter(|_| is_all_written && self.problems.is_empty());
        Ok(())
    }

    /// The modification time of the directory; `None` if the time is so recent that another change could have the same time.
    fn changed(&self) -> Option<(i64, i64)> {
        let stat = self.folder.own_stat().ok()?;
        let at = (stat.st_mtime, stat.st_mtime_nsec as i64);
        let since = |since: Duration| Duration::new(at.0.cast_unsigned(), at.1 as u32).abs_diff(since);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        (since(now) > SAME_TIME).then_some(at)
    }

    /// Reads again those files that were not finished before. Returns false if one of these files is gone or is not valid.
    fn look_at_open_files(&mut self) -> bool {
        for at in 0..self.files.len() {
            if self.files[at].trailer.is_none() {
                let Ok(file) = self.look_at(&self.files[at].name) else { return false };
                self.files[at] = Arc::new(file);
            }
        }
        true
    }

    /// Reads one file.
    fn look_at(&self, name: &str) -> Result<FileInfo, Unusable> {
        let opened = self.open_name(name).map_err(Unusable::of)?;
        let opened = opened.map_err(|why| Unusable::Wrong(why.to_string()))?;
        let Opened { header, trailer, bytes, .. } = opened;
        Ok(FileInfo { name: name.to_owned(), header, trailer, bytes })
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(super) fn open_name(&self, name: &str) -> io::Result<Result<Opened, FormatError>> {
        Opened::new(self.folder.file(name, OFlags::RDONLY)?)
    }

    /// Reads a file whose header is not whole. Returns `None` for any other file.
    pub(super) fn headless(&self, name: &str) -> Option<Headless> {
        let number = parse_file_name(name)?;
        let first = sequence_in_name(name)?;
        if !matches!(self.open_name(name).ok()?, Err(why) if !matches!(why, FormatError::Version { .. })) {
            return None;
        }
        let file = self.folder.file(name, OFlags::RDONLY).ok()?;
        let (mut durable, mut at, mut salt) = (0, FILE_HEADER_BYTES as u64, None);
        let mut bytes = [0; FRAME_HEADER_BYTES];
        while file.read_exact_at(&mut bytes, at).is_ok() {
            // The first frame is assumed to have the file's salt.
            let own = u64::from_le_bytes(bytes[8..16].try_into().expect("8 bytes"));
            let Ok(frame) = FrameHeader::decode(&bytes, *salt.get_or_insert(own)) else { break };
            durable = durable.max(frame.durable);
            at += frame.frame_bytes() as u64;
        }
        let later = self.files.iter().filter(|file| file.header.file > number);
        Some(Headless { first, durable, limit: later.map(|file| file.header.sequence).min() })
    }

    /// Whether a file has zeros where its header and its first frame belong.
    fn is_unwritten(&self, name: &str) -> bool {
        let mut start = Vec::new();
        let read = self.folder.file(name, OFlags::RDONLY).and_then(|file| {
            let most = (FILE_HEADER_BYTES + FRAME_HEADER_BYTES) as u64;
            file.take(most).read_to_end(&mut start)
        });
        read.is_ok() && start.iter().all(|byte| *byte == 0)
    }

    /// Sorts the list of files. Moves two kinds of files from this list to the list of problems: files of other journals, and further files
    /// with the same number.
    fn sort(&mut self) {
        // The problems so far are files without a valid header.
        let unread = self.problems.iter().filter_map(|problem| parse_file_name(&problem.name)).max();
        self.highest_unread = unread.unwrap_or(0);
        let mut counts: HashMap<StreamId, usize> = HashMap::new();
        for file in &self.files {
            *counts.entry(file.header.stream).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or(0);
        let journal = self.named.or_else(|| {
            let files = self.files.iter().filter(|file| counts[&file.header.stream] == most);
            let first = files.min_by_key(|file| (file.header.wall_ns, file.header.file));
            first.map(|file| file.header.stream)
        });
        self.files.sort_by(|a, b| (a.header.file, &a.name).cmp(&(b.header.file, &b.name)));
        let mut last = 0;
        let problems = &mut self.problems;
        self.files.retain(|file| {
            let why = if Some(file.header.stream) != journal {
                "a file of another journal"
            } else if file.header.file == last {
                "a file of this number is there already"
            } else {
                last = file.header.file;
                return true;
            };
            problems.push(Problem { name: file.name.clone(), why: why.to_owned() });
            false
        });
        problems.sort_by(|a, b| a.name.cmp(&b.name));
    }

    /// The files, in the order of their numbers.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// for file in journal.files() {
    ///     println!("{} from {}", file.name, file.header.sequence);
    /// }
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn files(&self) -> &[Arc<FileInfo>] {
        &self.files
    }

    /// Entries that cannot be used.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// assert!(journal.problems().is_empty());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The directory.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// println!("{}", journal.path().display());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The oldest sequence that the journal keeps or reports as lost; `None` if there is no usable file.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// println!("{:?}", journal.first_sequence());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn first_sequence(&self) -> Option<u64> {
        self.files.first().map(|file| file.header.sequence)
    }

    /// Whether a recorder runs. A recorder holds the directory's [lock](take_lock). False if this user cannot open the lock's file. Each
    /// refresh opens the lock's file, and this call checks the lock. Cost: one system call.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// println!("{}", journal.is_recording());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn is_recording(&self) -> bool {
        self.lock.as_ref().is_some_and(|file| lock::is_locked(file).unwrap_or(false))
    }

    /// The sequence at which the file at index `at` ends, whatever the file contains. This is the least first sequence of all later files.
    pub(super) fn limit_of(&self, at: usize) -> Option<u64> {
        self.files[at + 1..].iter().map(|later| later.header.sequence).min()
    }

    /// The user who owns the directory.
    pub(crate) fn owner(&self) -> io::Result<u32> {
        Ok(self.folder.own_stat()?.st_uid)
    }

    pub(super) fn path_of(&self, file: &FileInfo) -> PathBuf {
        self.folder.path_of(&file.name)
    }

    /// Opens a file of the list again.
    pub(super) fn open_file(&self, file: &FileInfo) -> Result<Opened, JournalError> {
        let path = || self.path_of(file);
        self.open_name(&file.name)
            .map_err(JournalError::os("read", path()))?
            .map_err(|source| JournalError::Format { path: path(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::Errno;

    /// A test for an earlier mistake: a file that could not be opened for lack of descriptors counted as a foreign file. Readers then lost
    /// all messages in it.
    #[test]
    fn a_shortage_says_nothing_about_a_file() {
        let of = |errno: Errno| Unusable::of(errno.into());
        for shortage in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(matches!(of(shortage), Unusable::Unknown(_)), "{shortage}");
        }
        assert!(matches!(of(Errno::NOENT), Unusable::Gone));
        assert!(
            matches!(of(Errno::LOOP), Unusable::Wrong(_)) && matches!(of(Errno::ACCESS), Unusable::Wrong(_))
        );
    }
}
