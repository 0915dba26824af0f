//! Channels as files, for use without a daemon.
//!
//! ```text
//! DIR/                     default /dev/shm/shmcast, mode 0700
//!   CHANNEL/
//!     segment              the ring; replaced atomically, never in place
//!     lock                 0600; the publisher holds its lock, readers have no use for it
//!     readers/PID-RANDOM   one page a subscriber, locked while it lives
//! ```
//! A channel that is removed first moves out of sight, to `DIR/.removed-RANDOM`, so that no other process ever meets half
//! of one. Names that begin with a dot are never channels.
//!
//! Who may read is a matter of file modes. Whoever owns the files can of course destroy them; other users are held out
//! by the kernel.

use crate::error::{ChannelError, Holder};
use crate::lock::{self, Held};
use shmcast_layout::layout::header::{Header, LAZY_BYTES, State};
use shmcast_layout::reader_page::ReaderStats;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::segment::{Access, Segment};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Environment variable that names another default directory.
pub const DIR_VARIABLE: &str = "SHMCAST_DIR";
/// Where channels live unless told otherwise.
pub const DEFAULT_DIR: &str = "/dev/shm/shmcast";
/// Longest channel name in bytes.
pub const MAX_NAME: usize = 200;

/// A directory of channels.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{Directory, Publisher};
/// let directory = Directory::at(dir.path());
/// let mut publisher = Publisher::builder("ticks").directory(&directory).capacity(64 << 10).open()?;
/// publisher.publish(b"hello")?;
/// let ticks = &directory.channels()?[0];
/// assert_eq!(ticks.name, "ticks");
/// let detail = ticks.detail.as_ref().expect("a sound segment");
/// assert_eq!(detail.tail.as_ref().expect("a sound ring").sequence, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
    /// Given by name, so that its owner is the user's own choice.
    explicit: bool,
}

impl Default for Directory {
    /// `$SHMCAST_DIR`, or [`DEFAULT_DIR`].
    fn default() -> Self {
        match std::env::var_os(DIR_VARIABLE) {
            Some(path) if !path.is_empty() => Self::at(path),
            _ => Self { path: DEFAULT_DIR.into(), explicit: false },
        }
    }
}

impl Directory {
    /// The directory at `path`, which need not exist yet.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), explicit: true }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks at every channel, in order of their names. A directory that does not exist holds none.
    ///
    /// # Errors
    /// [`ChannelError`] when the directory cannot be read. A channel that is damaged is listed with what is wrong.
    pub fn channels(&self) -> Result<Vec<ChannelInfo>, ChannelError> {
        self.check_owner()?;
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(ChannelError::os("list", &self.path)(e)),
        };
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| check_name(name).is_ok())
            .collect();
        names.sort();
        // One that is removed meanwhile is no longer there to list.
        Ok(names.iter().filter_map(|name| self.channel(name).ok()).collect())
    }

    /// Looks at one channel.
    ///
    /// # Errors
    /// [`ChannelError::NotFound`], or what kept it from being looked at.
    pub fn channel(&self, name: &str) -> Result<ChannelInfo, ChannelError> {
        let files = self.files(name)?;
        let readers = files.readers();
        let publisher = files.publisher();
        let detail = match open_plain(&files.segment, OpenOptions::new().read(true)) {
            Ok(file) => Segment::open(&file, Access::Read)
                .map(|segment| ChannelDetail::of(&segment))
                .map_err(|e| e.to_string()),
            Err(e) if is_absent(&e) && files.dir.is_dir() => {
                Err("no segment: its publisher has not finished making it, or died doing so".into())
            }
            Err(e) if is_absent(&e) => return Err(self.not_found(name)),
            Err(e) => Err(e.to_string()),
        };
        Ok(ChannelInfo { name: name.into(), detail, publisher, readers })
    }

    /// Removes a channel that nobody uses, whatever state it is in.
    ///
    /// # Errors
    /// [`ChannelError::InUse`] while it has a live publisher or reader; nothing is removed then.
    pub fn remove(&self, name: &str) -> Result<(), ChannelError> {
        let files = self.files(name)?;
        // The lock keeps a publisher from beginning while we look for readers and remove.
        let Some(_lock) = files.lock(name)? else { return Err(self.not_found(name)) };
        let readers = files.readers();
        if let Some(first) = readers.first() {
            let holder = Holder::Readers { count: readers.len(), pid: first.stats.pid };
            return Err(ChannelError::InUse { name: name.into(), holder });
        }
        // A reader between opening the segment and showing its page must not wait for ever on what is gone.
        let segment = open_plain(&files.segment, OpenOptions::new().read(true).write(true)).ok();
        if let Some(segment) = segment.and_then(|file| Segment::open(&file, Access::Write).ok()) {
            segment.supersede();
        }
        files.discard()
    }

    pub(crate) fn not_found(&self, name: &str) -> ChannelError {
        ChannelError::NotFound { name: name.into(), dir: self.path.clone() }
    }

    pub(crate) fn files(&self, name: &str) -> Result<ChannelFiles, ChannelError> {
        check_name(name).map_err(|why| ChannelError::Name { name: name.into(), why })?;
        self.check_owner()?;
        let dir = self.path.join(name);
        Ok(ChannelFiles {
            segment: dir.join("segment"),
            lock: dir.join("lock"),
            readers: dir.join("readers"),
            dir,
        })
    }

    /// Anybody may make a directory in /dev/shm; channels of ours must not be laid into somebody else's by default.
    fn check_owner(&self) -> Result<(), ChannelError> {
        let Ok(metadata) = fs::symlink_metadata(&self.path) else { return Ok(()) };
        let me = nix::unistd::geteuid().as_raw();
        if self.explicit || metadata.uid() == me || metadata.uid() == 0 {
            return Ok(());
        }
        Err(ChannelError::ForeignDirectory { dir: self.path.clone(), owner: metadata.uid() })
    }

    /// Makes the directory and the channel's, with `mode`.
    pub(crate) fn create(&self, files: &ChannelFiles, mode: u32) -> Result<(), ChannelError> {
        for path in [&self.path, &files.dir] {
            make_dir(path, mode, mode)?;
        }
        // Somebody else may have made the directory since we looked whose it is.
        self.check_owner()
    }
}

/// Makes a directory, if there is none, with exactly `mode`, whatever the umask; `parents` is for those on the way.
fn make_dir(path: &Path, parents: u32, mode: u32) -> Result<(), ChannelError> {
    if path.is_dir() {
        return Ok(());
    }
    let made = DirBuilder::new().recursive(true).mode(parents).create(path);
    made.map_err(ChannelError::os("create directory", path))?;
    set_mode(path, mode)
}

fn set_mode(path: &Path, mode: u32) -> Result<(), ChannelError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(ChannelError::os("set the mode of", path))
}

/// A name becomes a directory entry and a label in metrics: no separators, nothing hidden, nothing to escape.
pub(crate) fn check_name(name: &str) -> Result<(), &'static str> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-:@+".contains(c);
    match name {
        "" => Err("is empty"),
        _ if name.len() > MAX_NAME => Err("is longer than 200 bytes"),
        _ if name.starts_with(['.', '-']) => Err("must not begin with '.' or '-'"),
        _ if !name.chars().all(allowed) => Err("may hold letters, digits and . _ - : @ + only"),
        _ => Ok(()),
    }
}

/// The paths of one channel.
#[derive(Debug, Clone)]
pub(crate) struct ChannelFiles {
    pub(crate) dir: PathBuf,
    pub(crate) segment: PathBuf,
    pub(crate) lock: PathBuf,
    pub(crate) readers: PathBuf,
}

impl ChannelFiles {
    /// Takes the writer lock and leaves this process's id in the file. `None` when the channel is not there, or was
    /// removed in this moment.
    pub(crate) fn lock(&self, name: &str) -> Result<Option<Held>, ChannelError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = match open_plain(&self.lock, &mut options) {
            Ok(file) => file,
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(ChannelError::os("open", &self.lock)(e)),
        };
        if !lock::try_lock(&file).map_err(ChannelError::os("lock", &self.lock))? {
            return Err(ChannelError::InUse { name: name.into(), holder: holder(&file) });
        }
        let lock = Held(file);
        // Whoever removes a channel moves it away under this lock. If that was between our opening and locking, this
        // lock guards nothing.
        let ours = lock.0.metadata().map_err(ChannelError::os("look at", &self.lock))?;
        match fs::symlink_metadata(&self.lock) {
            Ok(there) if (there.dev(), there.ino()) == (ours.dev(), ours.ino()) => {}
            Ok(_) => return Ok(None),
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(ChannelError::os("look at", &self.lock)(e)),
        }
        // A courtesy to whoever is refused; a full file system must not keep a channel from being removed.
        let pid = format!("{}\n", std::process::id());
        let _ = lock.0.set_len(0).and_then(|()| lock.0.write_all_at(pid.as_bytes(), 0));
        Ok(Some(lock))
    }

    /// Makes the directory for reader pages, in which whoever may enter the channel may leave a page, and nobody may
    /// remove another's. The caller holds the lock.
    pub(crate) fn make_readers(&self, mode: u32) -> Result<(), ChannelError> {
        make_dir(&self.readers, mode, 0o1000 | mode | (mode & 0o011) << 1)
    }

    /// Takes the channel out of sight at once, then deletes it. The caller holds the lock.
    pub(crate) fn discard(&self) -> Result<(), ChannelError> {
        const PREFIX: &str = ".removed-";
        let parent = self.dir.parent().expect("a channel lies in a directory");
        let hidden = parent.join(format!("{PREFIX}{}", unique()));
        fs::rename(&self.dir, &hidden).map_err(ChannelError::os("remove", &self.dir))?;
        // With what others left who died right here.
        for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        match fs::remove_dir_all(&hidden) {
            Err(e) if !is_absent(&e) => Err(ChannelError::os("remove", &hidden)(e)),
            _ => Ok(()),
        }
    }

    /// Whether a live publisher holds the channel.
    fn publisher(&self) -> Publishing {
        match open_plain(&self.lock, OpenOptions::new().read(true)) {
            Ok(file) => match lock::is_locked(&file) {
                Ok(true) => Publishing::By(holder(&file)),
                Ok(false) => Publishing::Nobody,
                Err(_) => Publishing::Unknown,
            },
            Err(e) if is_absent(&e) => Publishing::Nobody,
            Err(_) => Publishing::Unknown,
        }
    }

    /// The live readers, by the pages they hold locked. Pages of the dead are swept away where permitted.
    pub(crate) fn readers(&self) -> Vec<ReaderInfo> {
        let Ok(entries) = fs::read_dir(&self.readers) else { return Vec::new() };
        let mut readers: Vec<ReaderInfo> = entries
            .filter_map(|entry| {
                let path = entry.ok()?.path();
                let file = open_plain(&path, OpenOptions::new().read(true)).ok()?;
                let is_empty = file.metadata().ok()?.len() == 0;
                if is_empty {
                    return None; // just made; it is locked before it gets its size
                }
                if !lock::is_locked(&file).ok()? {
                    // Swept by whoever may; where that is forbidden the page stays until the channel goes. Names are
                    // never used twice, so this is the file that we looked at.
                    let _ = fs::remove_file(&path);
                    return None;
                }
                if path.file_name().map(OsStr::as_encoded_bytes)?.starts_with(b".") {
                    return None; // being made
                }
                let stats = ReaderStats::read(&file).ok()??;
                let command = command_of(stats.pid.try_into().ok()?);
                Some(ReaderInfo { stats, command })
            })
            .collect();
        readers.sort_by_key(|reader| reader.stats.pid);
        readers
    }
}

/// What the lock file says of its holder; the content is a courtesy, the lock is the truth.
fn holder(lock: &File) -> Holder {
    let mut text = String::new();
    let _ = lock.take(32).read_to_string(&mut text);
    let pid = text.trim().parse().ok();
    Holder::Publisher { pid, command: pid.and_then(command_of) }
}

/// Opens what should be a plain file. Whoever may write to the directory may have put a link there, or a pipe that an
/// open would wait for.
pub(crate) fn open_plain(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"))
}

/// Whether the file, or a directory on the way to it, is not there.
pub(crate) fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Part of a file name that no other process picks, in whatever namespace it counts its process ids.
pub(crate) fn unique() -> String {
    let mut random = [0; 8];
    getrandom::fill(&mut random).expect("Linux gives random bytes once it has booted");
    format!("{:016x}", u64::from_ne_bytes(random))
}

fn command_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|comm| comm.trim().to_owned())
}

/// Whether a channel has a live publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publishing {
    /// Somebody holds the writer lock.
    By(Holder),
    /// Nobody does.
    Nobody,
    /// The lock file cannot be read by this user.
    Unknown,
}

/// A channel as [`Directory::channel`] saw it.
#[derive(Debug, Clone)]
pub struct ChannelInfo {
    /// Its name.
    pub name: String,
    /// What its segment says, or what is wrong with it.
    pub detail: Result<ChannelDetail, String>,
    /// Its publisher.
    pub publisher: Publishing,
    /// Its live readers.
    pub readers: Vec<ReaderInfo>,
}

/// What a segment says of itself.
#[derive(Debug, Clone)]
pub struct ChannelDetail {
    /// The immutable header.
    pub header: Header,
    /// Incarnations of the publisher so far.
    pub epoch: u64,
    /// `None` before the first publisher took it.
    pub state: Option<State>,
    /// Where the next message will stand; an error when the ring is damaged.
    pub tail: Result<Place, String>,
    /// The oldest message a reader can start from.
    pub oldest: Result<Place, String>,
    /// Payload bytes published, up to 64 messages behind.
    pub published_bytes: u64,
}

impl ChannelDetail {
    pub(crate) fn of(segment: &Segment) -> Self {
        let locator = segment.locator();
        let (epoch, state) = segment.state().map_or((0, None), |(epoch, state)| (epoch, Some(state)));
        Self {
            header: segment.header().clone(),
            epoch,
            state,
            tail: locator.tail().map_err(|e| e.to_string()),
            oldest: locator.oldest().map_err(|e| e.to_string()),
            published_bytes: segment.header_word(LAZY_BYTES),
        }
    }
}

/// A live reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderInfo {
    /// What its page says.
    pub stats: ReaderStats,
    /// Its command name, if its process is visible from here.
    pub command: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for bad in ["", ".", "..", "../x", "a/b", ".hidden", "-v", "a b", "a\0b", "ä", &"x".repeat(201)] {
            assert!(check_name(bad).is_err(), "{bad:?}");
        }
        for good in ["t", "eurex.T7:emdi-1", "A_b+c@d", &"x".repeat(200)] {
            assert_eq!(check_name(good), Ok(()), "{good:?}");
        }
    }
}
