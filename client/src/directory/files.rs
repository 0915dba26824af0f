//! The files of one channel: the lock, the segment and the reader pages, in the channel's directory.

use super::folder::{Folder, is_same_file, mode, unique};
use super::ours::{self, GATES, Inventory, LOCK, READERS, REMOVED, SEGMENT, UNFINISHED, not_a_channel};
use super::{Publishing, Removed, has_open};
use crate::error::{ChannelError, Holder};
use crate::error::{is_absent, is_shortage};
use crate::lock::{self, Held};
use rustix::fs::{OFlags, Stat, stat};
use shmcast_layout::fault;
use shmcast_layout::mem::check_size_limit;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A channel's open directory, and its open parent directory.
#[derive(Debug)]
pub(crate) struct ChannelFiles {
    parent: Folder,
    folder: Folder,
    name: String,
    /// `None` if the absolute path of the segment cannot be known.
    place: Option<Place>,
    /// Whether this process made the channel's directory just now.
    is_new: bool,
}

/// The writer lock, while this process holds it.
#[derive(Debug)]
pub(crate) struct Locked {
    pub(crate) held: Held,
    /// Whether this process made the lock file just now.
    pub(crate) is_new: bool,
}

/// The absolute path of a segment, and the root directory in which the path was found.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    path: CString,
    root: (u64, u64),
}

impl Place {
    /// Whether the path leads to the segment with this device and inode. If the path cannot be checked, the result is true. Allocates
    /// nothing.
    pub(crate) fn leads_to(&self, segment: (u64, u64)) -> bool {
        // After `chroot`, the stored path can lead to another file, so the path is not checked.
        root() != Some(self.root) || is(stat(self.path.as_c_str()).map_err(Into::into), segment)
    }
}

fn is(found: io::Result<Stat>, wanted: (u64, u64)) -> bool {
    match found {
        Ok(stat) => (stat.st_dev, stat.st_ino) == wanted,
        Err(e) => !is_absent(&e),
    }
}

/// Device and inode of the root directory of this process.
fn root() -> Option<(u64, u64)> {
    stat("/").ok().map(|root| (root.st_dev, root.st_ino))
}

impl ChannelFiles {
    pub(super) fn new(parent: Folder, folder: Folder, name: &str, is_new: bool) -> Self {
        let segment = std::path::absolute(folder.path_of(SEGMENT)).ok();
        let path = segment.and_then(|path| CString::new(path.into_os_string().into_vec()).ok());
        let place = path.zip(root()).map(|(path, root)| Place { path, root });
        Self { parent, folder, name: name.to_owned(), place, is_new }
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.folder
    }

    pub(crate) fn segment_path(&self) -> PathBuf {
        self.folder.path_of(SEGMENT)
    }

    pub(crate) fn unfinished_path(&self) -> PathBuf {
        self.folder.path_of(UNFINISHED)
    }

    /// Opens the segment. Returns `None` if there is no segment.
    pub(crate) fn segment(&self, access: OFlags) -> Result<Option<File>, ChannelError> {
        match self.folder.file(SEGMENT, access) {
            Ok(file) => Ok(Some(file)),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(ChannelError::os("open", self.segment_path())(e)),
        }
    }

    /// Whether the name of the channel leads to the segment with this device and inode. The result is false if the segment, the channel's
    /// folder or the directory of channels was removed or moved, or if another file system was mounted over one of them. If the name cannot
    /// be checked, the result is true. Allocates nothing.
    pub(crate) fn names_segment(&self, segment: (u64, u64)) -> bool {
        is(self.folder.stat(SEGMENT), segment)
            && (self.place.as_ref().is_none_or(|place| place.leads_to(segment))
                || fault!("moved_segments_are_waited_on"))
    }

    /// The absolute path of the segment, with the segment's device and inode; `None` if they cannot be known.
    pub(crate) fn place_of_segment(&self) -> Option<(Place, (u64, u64))> {
        let stat = self.folder.stat(SEGMENT).ok()?;
        Some((self.place.clone()?, (stat.st_dev, stat.st_ino)))
    }

    pub(super) fn inventory(&self) -> Result<Inventory, ChannelError> {
        Inventory::of(&self.folder).map_err(ChannelError::os("look into", self.folder.path()))
    }

    /// Whether this directory is a channel: it has a segment, or its publisher died before the segment was finished. A directory in which a
    /// living publisher makes the segment is no channel yet.
    ///
    /// # Errors
    /// If the system lacks resources for the check.
    pub(super) fn is_channel(&self) -> Result<bool, ChannelError> {
        let looked = |found: io::Result<bool>| match found {
            // This is another user's private channel. It is listed as private.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(true),
            Err(e) if is_shortage(&e) => Err(ChannelError::os("look into", self.folder.path())(e)),
            found => Ok(found.unwrap_or(false)),
        };
        if looked(ours::is_segment(&self.folder))? {
            return Ok(true);
        }
        let is_left = || {
            if ours::lock_of(&self.folder)? != Some(true) {
                return Ok(false);
            }
            if self.folder.stat(SEGMENT).is_ok() {
                return Ok(true); // the segment is damaged
            }
            let lock = match self.folder.file(LOCK, OFlags::RDONLY) {
                // Another user's lock file cannot be read. Without a segment, the directory does not count as a channel.
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => return Ok(false),
                lock => lock?,
            };
            let has_begun = lock.metadata()?.len() > 0
                || [UNFINISHED, READERS].iter().any(|name| self.folder.stat(name).is_ok());
            Ok(has_begun && !lock::is_locked(&lock)?)
        };
        // The publisher might have finished the segment and ended between the two checks.
        Ok(looked(is_left())? || looked(ours::is_segment(&self.folder))?)
    }

    /// Returns an error if a publisher must not use this directory, because it does not belong to a channel. Changes nothing.
    ///
    /// A directory with a segment is a channel, even if there are foreign files among the reader pages. Every user who can read the channel
    /// can put files there, and a foreign file must not keep the publisher out.
    pub(crate) fn check_usable(&self) -> Result<(), ChannelError> {
        if ours::is_segment(&self.folder).map_err(ChannelError::os("open", self.segment_path()))? {
            return match self.readers() {
                Err(e) if !e.is_absent() => Err(e),
                _ => Ok(()),
            };
        }
        self.inventory()?.all_ours(&self.folder)?;
        let owner = self.folder.own_stat().map_err(ChannelError::os("look at", self.folder.path()))?.st_uid;
        if owner == nix::unistd::geteuid().as_raw() {
            return Ok(());
        }
        Err(ChannelError::ForeignDirectory { dir: self.folder.path().to_owned(), owner })
    }

    /// Returns an error if the mode of the channel's directory or segment does not match `wanted`. Also returns an error if the parent
    /// directory keeps out users whom `wanted` lets in.
    pub(crate) fn check_mode(&self, wanted: u32) -> Result<(), ChannelError> {
        let of = |folder: &Folder| match folder.own_stat() {
            Ok(stat) => Ok((folder.path().to_owned(), mode(&stat) & 0o777)),
            Err(e) => Err(ChannelError::os("look at", folder.path())(e)),
        };
        let differs = |(path, found), wanted| Err(ChannelError::Mode { path, found, wanted });
        let (parent, own) = (of(&self.parent)?, of(&self.folder)?);
        if wanted & 0o011 & !parent.1 != 0 {
            return differs(parent, wanted);
        }
        if own.1 != wanted {
            return differs(own, wanted);
        }
        match self.folder.stat(SEGMENT).map(|stat| mode(&stat) & 0o777) {
            Ok(found) if found == segment_mode(wanted) => Ok(()),
            Ok(found) => differs((self.segment_path(), found), segment_mode(wanted)),
            Err(e) if is_absent(&e) => Ok(()),
            Err(e) => Err(ChannelError::os("look at", self.segment_path())(e)),
        }
    }

    /// Takes the writer lock and writes this process's id to the lock file. If there is no lock file and `may_make` is true, makes the
    /// file. Returns `None` if the channel does not exist, or was removed at this moment.
    ///
    /// # Errors
    /// [`ChannelError::NotAChannel`] if the file is not a lock file of shmcast's. Nothing is written to such a file.
    pub(crate) fn lock(&self, may_make: bool) -> Result<Option<Locked>, ChannelError> {
        let os = |what| ChannelError::os(what, self.folder.path_of(LOCK));
        let owner = self.folder.own_stat().map_err(os("look at"))?.st_uid;
        let foreign = || not_a_channel(&self.folder, LOCK, ours::NO_LOCK);
        // This check comes before the file is opened, because the name can lead to a link or a pipe.
        if self.folder.stat(LOCK).is_ok_and(|stat| !ours::is_lock(&stat, owner)) {
            return Err(foreign());
        }
        let (file, is_new) = match self.folder.file(LOCK, OFlags::RDWR) {
            Ok(file) => (file, false),
            Err(e) if is_absent(&e) && may_make => match self.folder.create(LOCK, 0o600) {
                Ok(file) => (file, true),
                // Another process was quicker, or the directory is gone.
                Err(e) if is_absent(&e) || e.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                Err(e) => return Err(os("create")(e)),
            },
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(os("open")(e)),
        };
        let stat = rustix::fs::fstat(&file).map_err(|e| os("look at")(e.into()))?;
        if !ours::is_lock(&stat, owner) || !ours::holds_a_pid(&file).map_err(os("read"))? {
            return Err(foreign());
        }
        if !lock::try_lock(&file).map_err(os("lock"))? {
            return Err(ChannelError::InUse { name: self.name.clone(), holder: holder(&file) });
        }
        let held = Held::new(file);
        // A process that removes the channel renames the channel's directory under this lock. If this happened after we opened the file and
        // before we locked it, our lock protects nothing.
        match self.parent.stat(PathBuf::from(&self.name).join(LOCK)) {
            Ok(there) if is_same_file(&there, &stat) => {}
            Ok(_) => return Ok(None),
            Err(e) if is_absent(&e) => return Ok(None),
            Err(e) => return Err(os("look at")(e)),
        }
        if is_new && let Some(holder) = holder_without_files(&held.file) {
            let _ = self.folder.unlink(LOCK);
            return Err(ChannelError::InUse { name: self.name.clone(), holder });
        }
        // The id is only for the error messages of other processes. Errors are ignored, because a full file system must not prevent the
        // removal of a channel.
        let pid = format!("{}\n", std::process::id());
        let _ = check_size_limit(pid.len() as u64)
            .and_then(|()| held.file.set_len(0))
            .and_then(|()| held.file.write_all_at(pid.as_bytes(), 0));
        Ok(Some(Locked { held, is_new }))
    }

    /// Opens the lock file, so that the caller can watch its lock.
    ///
    /// # Errors
    /// If this user does not own the file.
    pub(crate) fn lock_file(&self) -> Result<File, ChannelError> {
        let opened = self.folder.file(LOCK, OFlags::RDONLY);
        opened.map_err(ChannelError::os("watch the publisher by", self.folder.path_of(LOCK)))
    }

    /// Makes the directory for reader pages if there is none. In this directory, every user of the channel can make a page, and nobody can
    /// remove the page of another user. The caller holds the lock.
    pub(crate) fn make_readers(&self, mode: u32) -> Result<(), ChannelError> {
        match self.folder.make(READERS, 0o1000 | mode | (mode & 0o011) << 1) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                Err(ChannelError::os("create directory", self.folder.path_of(READERS))(e))
            }
            _ => Ok(()),
        }
    }

    /// Makes the file of a new segment under its unfinished name, and the directory for reader pages. The caller holds the lock and has
    /// checked that all files in the directory are shmcast's.
    pub(crate) fn make_unfinished(&self, mode: u32) -> Result<File, ChannelError> {
        // A publisher that died here might have left the file and the directory. The directory stays if it has pages of readers.
        let _ = (self.folder.unlink(UNFINISHED), self.folder.remove_empty(READERS));
        self.make_readers(mode)?;
        let made = self.folder.create(UNFINISHED, segment_mode(mode));
        made.map_err(ChannelError::os("create", self.unfinished_path()))
    }

    /// Renames the finished segment to its final name. Replaces an existing segment.
    pub(crate) fn finish(&self) -> Result<(), ChannelError> {
        let named = self.folder.rename(UNFINISHED, SEGMENT);
        named.map_err(ChannelError::os("name", self.segment_path()))
    }

    /// Removes the channel's directory if two things are true: this process made the directory, and it is empty.
    pub(crate) fn leave(&self) {
        if self.is_new {
            let _ = self.parent.remove_empty(&self.name);
        }
    }

    /// Removes the files that this process made in the directory. Called if [`make_unfinished`](Self::make_unfinished) or a later step
    /// failed.
    pub(crate) fn undo(&self, is_lock_new: bool) {
        let _ = self.folder.unlink(UNFINISHED);
        // If the channel existed before, this process made only the new segment.
        if self.folder.stat(SEGMENT).is_ok() {
            return;
        }
        self.remove_gates();
        let _ = self.folder.remove_empty(READERS);
        if is_lock_new {
            let _ = self.folder.unlink(LOCK);
        }
        if self.is_new || fault!("failed_publisher_takes_the_folder_away") {
            let _ = self.parent.remove_empty(&self.name);
        }
    }

    /// Renames the channel's directory, so that the channel disappears in one step, and then removes the files. Also removes the files of
    /// other channels that were renamed for removal and are still there. The caller holds the lock, and `inventory` has no foreign file.
    /// `retire` tells readers that the channel is gone. It is called after the renaming, because a channel that cannot be renamed stays as
    /// it is.
    pub(super) fn discard(
        &self,
        inventory: Inventory,
        retire: impl FnOnce(),
    ) -> Result<Removed, ChannelError> {
        let hidden = format!("{REMOVED}{}", unique());
        let renamed = self.parent.rename(&self.name, &hidden);
        renamed.map_err(|e| ChannelError::os("remove", self.folder.path())(unchanged(e)))?;
        retire();
        for left in self.parent.names().unwrap_or_default() {
            if ours::is_removed_name(&left)
                && left != *hidden
                && let Ok(folder) = self.parent.folder(&left)
                && Inventory::of(&folder).is_ok_and(|inventory| inventory.foreign.is_none())
            {
                let _ = empty(&folder).and_then(|()| self.parent.remove_empty(&left));
            }
        }
        let gone = empty(&self.folder).and_then(|()| self.parent.remove_empty(&hidden));
        match gone {
            Err(e) if !is_absent(&e) => Err(ChannelError::os("remove", self.parent.path_of(&hidden))(e)),
            _ => {
                let bytes = inventory.files.iter().map(|(_, bytes)| bytes).sum();
                let files = inventory.files.into_iter().map(|(name, _)| name).collect();
                Ok(Removed { dir: self.folder.path().to_owned(), files, bytes })
            }
        }
    }

    /// Whether a live publisher holds the channel.
    pub(super) fn publisher(&self) -> Publishing {
        match self.folder.file(LOCK, OFlags::RDONLY) {
            Ok(file) => match lock::is_locked(&file) {
                Ok(true) => Publishing::By(holder(&file)),
                Ok(false) => Publishing::Nobody,
                Err(_) => Publishing::Unknown,
            },
            Err(e) if is_absent(&e) => Publishing::Nobody,
            Err(_) => Publishing::Unknown,
        }
    }

    /// The directory of the reader pages.
    pub(crate) fn readers(&self) -> Result<Folder, ChannelError> {
        match self.folder.folder(READERS) {
            Ok(readers) => Ok(readers),
            Err(e) if e.kind() == io::ErrorKind::NotADirectory => {
                Err(not_a_channel(&self.folder, READERS, ours::NO_READERS))
            }
            Err(e) => Err(ChannelError::os("open", self.folder.path_of(READERS))(e)),
        }
    }
}

/// Explains why a channel could not be removed.
fn unchanged(e: io::Error) -> io::Error {
    let advice = match e.kind() {
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            "remove it as a user who may write to the directory above"
        }
        io::ErrorKind::ResourceBusy => "it is a mount point: unmount it first",
        _ => return e,
    };
    io::Error::new(e.kind(), format!("{e}: nothing was changed: {advice}"))
}

/// Removes all files in the directory of a removed channel. Tries several times, because a reader can add its page meanwhile.
fn empty(folder: &Folder) -> io::Result<()> {
    for _ in 0..8 {
        if let Ok(readers) = folder.folder(READERS) {
            for page in readers.names()?.iter().filter(|name| ours::is_page_name(name)) {
                let _ = readers.unlink(page);
            }
        }
        match folder.remove_empty(READERS) {
            Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty => continue,
            _ => break,
        }
    }
    if let Ok(gates) = folder.folder(GATES) {
        for page in gates.names()?.iter().filter(|name| ours::is_gate_file(&gates, name).unwrap_or(false)) {
            let _ = gates.unlink(page);
        }
        let _ = folder.remove_empty(GATES);
    }
    // The lock is removed last, since it proves that the other files are ours.
    for name in [UNFINISHED, SEGMENT, LOCK] {
        match folder.unlink(name) {
            Err(e) if !is_absent(&e) => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

/// The mode of a segment in a directory of mode `mode`: the users who can read the directory can read the segment.
fn segment_mode(mode: u32) -> u32 {
    0o600 | mode & 0o444
}

/// Searches the processes of this user for a publisher that still runs although the files of its channel were removed. If a second
/// publisher made the channel again, the readers of the first would miss the messages of the second. `lock` is the lock file that this
/// process has just made at the old path.
fn holder_without_files(lock: &File) -> Option<Holder> {
    let own = fs::read_link(format!("/proc/self/fd/{}", lock.as_raw_fd())).ok()?;
    let mut removed = own.into_os_string();
    removed.push(" (deleted)");
    let pids =
        fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.into_iter().find_map(|pid: u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
        let holds = open.flatten().any(|descriptor| {
            let info = || format!("/proc/{pid}/fdinfo/{}", descriptor.file_name().display());
            fs::read_link(descriptor.path()).is_ok_and(|link| link == *removed)
                && fs::read_to_string(info()).is_ok_and(|info| info.contains("OFDLCK"))
        });
        holds.then(|| Holder::Publisher { pid: Some(pid), command: super::command_of(pid) })
    })
}

/// The holder that the lock file names. Use this only in messages to the user: the lock itself decides whether there is a holder.
fn holder(lock: &File) -> Holder {
    let mut text = String::new();
    let _ = lock.take(32).read_to_string(&mut text);
    // The process id is valid in the publisher's PID namespace. In the namespace of this process, another process can have this id. It is
    // also possible that the publisher has ended, and that a child of it still has the lock.
    let pid = text.trim().parse().ok().filter(|pid| has_open(*pid, lock));
    Holder::Publisher { pid, command: pid.and_then(super::command_of) }
}
