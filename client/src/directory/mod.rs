//! Channels as files, for use without a daemon.
//!
//! ```text
//! DIR/                     mode 0700 unless asked otherwise
//!   CHANNEL/
//!     segment              the ring; replaced atomically, never in place
//!     lock                 0600; the publisher holds its lock, readers have no use for it
//!     readers/PID-RANDOM   one page a subscriber, locked while it lives
//!     gates/GATE           one page a gate, locked while a reader holds it
//! ```
//! A process that removes a channel first renames the channel's directory to `DIR/.removed-RANDOM`, and then removes the files. Names that
//! begin with a dot are never channels. So no other process finds a channel that has lost some of its files.
//!
//! The modes of the files decide which users can read a channel. Only the owner of the files and root can change or destroy them.
//!
//! Names below DIR never lead to files elsewhere: they are resolved in directories that are held open ([`folder`]), and links are not
//! followed. A file is written to or removed only if it is proved to belong to a channel ([`ours`]).

mod files;
mod folder;
mod gates;
mod info;
mod ours;
mod pages;

use crate::error::{ChannelError, Holder};
use crate::error::{is_absent, is_shortage};
pub(crate) use files::{ChannelFiles, Locked, Place};
pub(crate) use folder::{Folder, is_same_file, unique};
pub(crate) use gates::{GateFolder, GateSight, OpenGates};
pub use info::{ChannelDetail, ChannelInfo, Publishing, ReaderInfo, Removed};
use rustix::fs::{Access, AtFlags, CWD, OFlags, accessat};
use shmcast_layout::fault;
use shmcast_layout::segment::{self, Segment};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Environment variable that names another default directory.
pub const DIR_VARIABLE: &str = "SHMCAST_DIR";
/// The directory that all users of this host share. It counts only if root has made it; see [`Directory::default`].
pub const SHARED_DIR: &str = "/dev/shm/shmcast";
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
    /// Whether the user gave the path. If so, it does not matter who owns the directory.
    explicit: bool,
}

impl Default for Directory {
    /// Returns the first of these directories that meets its condition:
    /// 1. `$SHMCAST_DIR`, if it is set and not empty;
    /// 2. [`SHARED_DIR`], if root owns it and this user can enter and list it. Only the administrator makes this directory, for example
    ///    with mode 1777 for all users, or with 0750 for the users of a group;
    /// 3. `/dev/shm/shmcast-UID`, which belongs to this user alone, and which the first publisher makes.
    fn default() -> Self {
        match std::env::var_os(DIR_VARIABLE) {
            Some(path) if !path.is_empty() => Self::at(path),
            _ if is_shared(Path::new(SHARED_DIR)) => Self { path: SHARED_DIR.into(), explicit: false },
            _ => Self { path: format!("{SHARED_DIR}-{}", me()).into(), explicit: false },
        }
    }
}

fn me() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Whether root has made a directory for all users, and this user can enter and list it. Any user can make such a directory in /dev/shm, so
/// it counts only if root owns it.
fn is_shared(path: &Path) -> bool {
    if fault!("first_user_owns_the_default") {
        return true;
    }
    let by_root = fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir() && metadata.uid() == 0);
    by_root && accessat(CWD, path, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS).is_ok()
}

impl Directory {
    /// Makes a value for the directory at `path`, which need not exist yet. Links in the path are followed.
    ///
    /// ```
    /// let directory = shmcast::Directory::at("/dev/shm/feeds");
    /// assert_eq!(directory.path().to_str(), Some("/dev/shm/feeds"));
    /// ```
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), explicit: true }
    }

    /// The path of the directory.
    ///
    /// ```
    /// println!("channels are in {}", shmcast::Directory::default().path().display());
    /// ```
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the state of every channel, in the order of the channels' names. A directory that does not exist holds no channels. A
    /// subdirectory is left out if it has neither a segment nor a lock file of shmcast's, or if a publisher is still making the channel.
    ///
    /// This call also removes pages that dead readers left. It changes nothing else.
    ///
    /// # Errors
    /// [`ChannelError`] if the directory or a subdirectory cannot be read, such as for a lack of descriptors. A damaged channel is no
    /// error: it is listed with its fault.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// for channel in shmcast::Directory::at(dir.path()).channels()? {
    ///     println!("{}: {} readers", channel.name, channel.readers.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn channels(&self) -> Result<Vec<ChannelInfo>, ChannelError> {
        let Some(folder) = self.open()? else { return Ok(Vec::new()) };
        let entries = folder.names().map_err(ChannelError::os("list", &self.path))?;
        let mut names: Vec<String> = entries
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .filter(|name| check_name(name).is_ok())
            .collect();
        names.sort();
        // A channel that is removed meanwhile is left out.
        let looked = names.iter().map(|name| match self.channel(name) {
            Err(ChannelError::NotFound { .. }) => None,
            looked => Some(looked),
        });
        looked.flatten().collect()
    }

    /// Returns the state of one channel. Removes pages of dead readers as [`channels`](Self::channels) does.
    ///
    /// # Errors
    /// [`ChannelError::NotFound`], or the reason why the channel could not be read.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Directory, Publishing};
    /// let channel = Directory::at(dir.path()).channel("t")?;
    /// assert!(matches!(channel.publisher, Publishing::By(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn channel(&self, name: &str) -> Result<ChannelInfo, ChannelError> {
        let Some(files) = self.files(name)? else { return Err(self.not_found(name)) };
        if !files.is_channel()? {
            return Err(self.not_found(name));
        }
        let mut is_private = false;
        let detail = match files.segment(OFlags::RDONLY) {
            Ok(Some(file)) => Segment::open(&file, segment::Access::Read)
                .map(|segment| ChannelDetail::of(&segment))
                .map_err(|e| e.to_string()),
            Ok(None) => Err("no segment: its publisher had not finished making it, and died doing so".into()),
            Err(e) if e.is_shortage() => return Err(e),
            Err(ChannelError::Os { source, .. }) => {
                is_private = source.kind() == io::ErrorKind::PermissionDenied;
                Err(source.to_string())
            }
            Err(e) => Err(e.to_string()),
        };
        let (publisher, readers) = (files.publisher(), files.live_readers()?);
        let gates = files.gate_sights();
        let are_readers_unknown = readers.is_none();
        let readers = readers.unwrap_or_default();
        let name = name.into();
        Ok(ChannelInfo { name, is_private, detail, publisher, readers, are_readers_unknown, gates })
    }

    /// Removes a channel that no process uses, even a damaged channel, and returns a list of the removed files.
    ///
    /// Checks all files first, and removes only files that are proved to belong to a channel. These include a damaged segment, and the
    /// files of a publisher that died while it made the channel.
    ///
    /// # Errors
    /// [`ChannelError::InUse`] while the channel has a live publisher or reader. [`ChannelError::NotAChannel`] if the directory holds a
    /// file that does not belong to a channel. Then nothing is removed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let directory = shmcast::Directory::at(dir.path());
    /// # shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(64 << 10).open()?.close();
    /// assert_eq!(directory.remove("ticks")?.files, ["lock", "readers", "segment"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remove(&self, name: &str) -> Result<Removed, ChannelError> {
        let Some(files) = self.files(name)? else { return Err(self.not_found(name)) };
        let inventory = files.inventory()?.all_ours(files.folder())?;
        if !inventory.is_channel() {
            return Err(self.not_found(name));
        }
        // The lock keeps a publisher from starting while we look for readers and remove the files.
        let Some(_lock) = files.lock(inventory.has_segment)? else { return Err(self.not_found(name)) };
        let readers = files.live_readers()?.unwrap_or_default();
        if let Some(first) = readers.first() {
            let holder = Holder::Readers { count: readers.len(), pid: first.stats.pid };
            return Err(ChannelError::InUse { name: name.into(), holder });
        }
        let inventory = files.inventory()?.all_ours(files.folder())?;
        // A reader might have opened the segment and not yet made its page. So that this reader does not wait for ever on a removed
        // segment, the segment is marked below.
        let segment = match files.segment(OFlags::RDWR) {
            Err(e) if e.is_shortage() => return Err(e),
            segment => segment.ok().flatten(),
        };
        let segment = segment.and_then(|file| Segment::open(&file, segment::Access::Write).ok());
        files.discard(inventory, || segment.iter().for_each(Segment::supersede))
    }

    /// Explains an error of permissions. If the channel belongs to another user, the explanation names that user.
    pub(crate) fn explained(&self, name: &str, error: ChannelError) -> ChannelError {
        let path = self.path.join(name);
        let owner = fs::symlink_metadata(&path).map(|found| found.uid()).ok();
        let other = owner.filter(|owner| *owner != nix::unistd::geteuid().as_raw());
        match (error, other) {
            (ChannelError::Os { what, source, .. }, Some(owner))
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                ChannelError::Private { path, owner, what, source }
            }
            (error, _) => error,
        }
    }

    /// Makes the error for a directory that can be opened, but in which no channel can be made. For example, the directory was removed
    /// while it was the working directory of this process or a mount point.
    pub(crate) fn unusable(&self, name: &str) -> ChannelError {
        let why = "the directory that this is in was removed, or can hold no directories; name another, or make it again";
        let error = io::Error::new(io::ErrorKind::NotFound, why);
        ChannelError::os("create directory", self.path.join(name))(error)
    }

    pub(crate) fn not_found(&self, name: &str) -> ChannelError {
        ChannelError::NotFound { name: name.into(), dir: self.path.clone() }
    }

    /// Opens the directory of a channel, whatever it contains. Returns `None` if it does not exist.
    pub(crate) fn files(&self, name: &str) -> Result<Option<ChannelFiles>, ChannelError> {
        check_name(name).map_err(|why| ChannelError::Name { name: name.into(), why })?;
        let Some(parent) = self.open()? else { return Ok(None) };
        match parent.folder(name) {
            Ok(folder) => Ok(Some(ChannelFiles::new(parent, folder, name, false))),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(ChannelError::os("open", self.path.join(name))(e)),
        }
    }

    /// Opens the directory. Returns `None` if it does not exist.
    ///
    /// Any user can make a directory in /dev/shm. So if this is the default directory, a directory that another user made is refused.
    fn open(&self) -> Result<Option<Folder>, ChannelError> {
        let opened = if self.explicit { Folder::named(&self.path) } else { Folder::unnamed(&self.path) };
        let foreign = |owner| Err(ChannelError::ForeignDirectory { dir: self.path.clone(), owner });
        let folder = match opened {
            Ok(folder) => folder,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                return match fs::symlink_metadata(&self.path) {
                    Ok(link) if !self.explicit && ![me(), 0].contains(&link.uid()) => foreign(link.uid()),
                    _ => Err(ChannelError::os("open the directory", &self.path)(e)),
                };
            }
        };
        let owner = folder.own_stat().map_err(ChannelError::os("look at", &self.path))?.st_uid;
        if self.explicit || [me(), 0].contains(&owner) { Ok(Some(folder)) } else { foreign(owner) }
    }

    /// Opens the directory of a channel for its publisher. If this directory or its parent does not exist, makes it with exactly `mode`.
    /// Returns `None` if another process removed the channel's directory at this moment.
    pub(crate) fn create(&self, name: &str, mode: u32) -> Result<Option<ChannelFiles>, ChannelError> {
        check_name(name).map_err(|why| ChannelError::Name { name: name.into(), why })?;
        let parent = self.open_or_make(mode)?;
        let (folder, is_new) = match parent.make(name, mode) {
            Ok(folder) => (folder, true),
            Err(e) if is_shortage(&e) => {
                // The directory might have been made, and then could not be opened.
                let _ = parent.remove_empty(name);
                return Err(ChannelError::os("create directory", self.path.join(name))(e));
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => match parent.folder(name) {
                Ok(folder) => (folder, false),
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(ChannelError::os("open the directory", self.path.join(name))(e)),
            },
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(ChannelError::os("create directory", self.path.join(name))(e)),
        };
        Ok(Some(ChannelFiles::new(parent, folder, name, is_new)))
    }

    fn open_or_make(&self, mode: u32) -> Result<Folder, ChannelError> {
        if let Some(folder) = self.open()? {
            return Ok(folder);
        }
        let os = |what| ChannelError::os(what, &self.path);
        DirBuilder::new().recursive(true).mode(mode).create(&self.path).map_err(os("create directory"))?;
        // Another user might have made the directory since we checked. `open` checks its owner.
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let folder = self.open()?.ok_or_else(|| os("create directory")(gone()))?;
        // This sets the mode exactly, since the umask might have removed bits.
        folder.set_mode(mode).map_err(os("set the mode of"))?;
        Ok(folder)
    }
}

/// Mode of the directories that a publisher makes, unless its builder sets another.
pub(crate) const DEFAULT_MODE: u32 = 0o700;

/// Checks a channel's name. The name becomes a directory entry and a label in metrics. So it must have no separators, must not be hidden,
/// and must need no escapes.
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

/// Whether the process with this id in our PID namespace has the file open. If the process belongs to another user, its open files cannot
/// be listed. In this case, the result is true if that other user owns the file.
fn has_open(pid: u32, file: &File) -> bool {
    let Ok(wanted) = file.metadata() else { return false };
    let is_it = |of: fs::Metadata| (of.dev(), of.ino()) == (wanted.dev(), wanted.ino());
    let open = match fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(open) => open,
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            return fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == wanted.uid());
        }
        Err(_) => return false,
    };
    open.flatten().any(|descriptor| fs::metadata(descriptor.path()).is_ok_and(is_it))
}

pub(crate) fn command_of(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|comm| comm.trim().to_owned())
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
