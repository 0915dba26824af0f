//! The path of the control socket. One daemon at a time owns this path, and never takes it from another program.
//!
//! A daemon holds the lock `PATH.lock` while it runs. It replaces a file at `PATH` only if the file is a leftover: a socket of this user
//! that refuses connections. Before it removes the leftover, it renames the file and checks it once more, because another program might
//! have put its own socket at `PATH` meanwhile.

use crate::config::MAX_SOCKET_PATH;
use anyhow::{Context, Error, Result, bail};
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use shmcast::hosting::fault;
use shmcast::sys::handoff;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

const INSTEAD: &str = "give another --socket, or move it away";
const MORE_FILES: &str = "raise the limit on open files (ulimit -n, LimitNOFILE=)";
/// Advice for users who are not allowed to create files at the default path.
const ELSEWHERE: &str =
    "this user may make nothing there: set XDG_RUNTIME_DIR to a directory of this user's, or give --socket";

/// Returns the path `what` with advice, for an error text. If this user may not create the file, the advice is to use another place. If no
/// descriptor is free, the advice is a higher limit. In all other cases, the advice is the text `otherwise`.
fn advice(what: &Path, error: &io::Error, otherwise: &str) -> String {
    let may_make_none = error.kind() == ErrorKind::PermissionDenied && !what.exists();
    let instead = match error.raw_os_error() {
        _ if may_make_none => ELSEWHERE,
        Some(nix::libc::EMFILE | nix::libc::ENFILE) => MORE_FILES,
        _ => otherwise,
    };
    let colon = if instead.is_empty() { "" } else { ": " };
    format!("{}{colon}{instead}", what.display())
}

/// The right to listen at a path, until this value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    mode: u32,
    /// The open file holds the lock.
    lock: File,
    /// Device and inode of the socket's file.
    socket: Identity,
}

/// Device and inode of a file.
pub(super) type Identity = (u64, u64);

impl Place {
    /// Whether the names of the socket and of its lock lead to the files that this daemon made.
    pub(super) fn has_its_names(&self) -> bool {
        self.has_its_lock() && leads_to(&self.path) == Some(self.socket)
    }

    fn has_its_lock(&self) -> bool {
        let held = self.lock.metadata().ok().map(|held| (held.dev(), held.ino()));
        held.is_some() && leads_to(&lock_of(&self.path)) == held
    }

    /// Restores the names of the socket and of its lock, after somebody removed or moved the files. Returns the new listening socket;
    /// `None` if the old socket still has its name.
    ///
    /// # Errors
    /// If another daemon listens at the path now, or if the files cannot be made. The call can be repeated after an error.
    pub(super) fn renew(&mut self) -> Result<Option<OwnedFd>> {
        make_folder(&self.path)?;
        if !self.has_its_lock() {
            self.lock = lock(&self.path)?;
        }
        if leads_to(&self.path) == Some(self.socket) {
            return Ok(None);
        }
        let (listener, socket) = bind(&self.path, self.mode)?;
        self.socket = socket;
        Ok(Some(listener))
    }
}

/// Returns the identity of the file at `path`; `None` if there is no file, or if it cannot be examined.
pub(super) fn leads_to(path: &Path) -> Option<Identity> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

fn make_folder(path: &Path) -> Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    fs::create_dir_all(dir).map_err(|e| {
        let text = format!("create {}", advice(dir, &e, ""));
        Error::new(e).context(text)
    })
}

/// Listens at `path`, with permissions `mode`. The path belongs to this daemon until the returned place is dropped.
///
/// # Errors
/// If another daemon listens there, or if the file at `path` is not a leftover.
pub(super) fn listen(path: &Path, mode: u32) -> Result<(OwnedFd, Place)> {
    // The path's length is checked before the lock's file is made, because this file would stay even if the path is too long.
    let length = path.as_os_str().len();
    if length > MAX_SOCKET_PATH {
        bail!(
            "{}: a path of {length} B; the kernel allows {MAX_SOCKET_PATH}: give a shorter --socket",
            path.display()
        );
    }
    make_folder(path)?;
    // The lock's file is never removed. So it is not made beside a file that is not a socket of this user.
    if let Some(found) = look(path)? {
        check_kind(path, &found)?;
    }
    let lock = lock(path)?;
    let (listener, socket) = bind(path, mode)?;
    Ok((listener, Place { path: path.to_owned(), mode, lock, socket }))
}

/// Replaces a leftover at `path`, if there is one, by a listening socket. The caller holds the lock.
fn bind(path: &Path, mode: u32) -> Result<(OwnedFd, Identity)> {
    if let Some(found) = look(path)? {
        check(path, &found)?;
        move_aside(path, &found)?;
    }
    let listener = handoff::listen(path).map_err(|e| {
        let text = format!("listen at {}", advice(path, &e, ""));
        Error::new(e).context(text)
    })?;
    fs::set_permissions(path, Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", path.display()))?;
    let made = leads_to(path).with_context(|| format!("look at {}", path.display()))?;
    Ok((listener, made))
}

/// The path of the lock of a socket.
fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Takes the lock that a daemon must hold to listen at `path`. The kernel releases the lock when the daemon ends for any reason. The lock's
/// file stays.
fn lock(path: &Path) -> Result<File> {
    let name = lock_of(path);
    // The file must not be opened through a link, and other users must not be able to open it: a process that can open it can lock it.
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let no_links = (rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits();
    let opened = options.custom_flags(no_links.cast_signed()).open(&name);
    let mut lock = opened.map_err(|e| {
        let text = format!("open {}", advice(&name, &e, INSTEAD));
        Error::new(e).context(text)
    })?;
    let found = lock.metadata()?;
    if !found.is_file() || found.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{} is not a file of this user's own: {INSTEAD}", name.display());
    }
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let mut holder = String::new();
        let _ = lock.read_to_string(&mut holder);
        bail!(
            "a daemon listens at {} already (pid {}): stop it, or give --socket",
            path.display(),
            holder.trim()
        );
    }
    // The process id in the file is for people; only the lock counts.
    let _ =
        lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| writeln!(lock, "{}", std::process::id()));
    Ok(lock)
}

/// Returns the metadata of the file at `path`. For a symbolic link, the metadata describe the link itself.
fn look(path: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).with_context(|| format!("look at {}", path.display())),
    }
}

/// Refuses a file that is not a leftover.
fn check(path: &Path, found: &Metadata) -> Result<()> {
    let at = path.display();
    if fault!("whatever_refuses_is_a_leftover") && handoff::try_connect(path).is_err() {
        return Ok(());
    }
    check_kind(path, found)?;
    match handoff::try_connect(path) {
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => Ok(()),
        Ok(()) => bail!("a daemon listens at {at} already: stop it, or give --socket"),
        // The queue of the daemon's listening socket is full.
        Err(e) if e.kind() == ErrorKind::WouldBlock => {
            bail!("a daemon listens at {at} already, and is busy: stop it, or give --socket")
        }
        Err(e) => bail!("{at} is another service's socket ({e}): {INSTEAD}"),
    }
}

/// Refuses a file that is not a socket of this user.
fn check_kind(path: &Path, found: &Metadata) -> Result<()> {
    let at = path.display();
    if fault!("whatever_refuses_is_a_leftover") {
        return Ok(());
    }
    if !found.file_type().is_socket() {
        let what = if found.is_symlink() { "a symbolic link" } else { "not a socket" };
        bail!(
            "{at} is {what}, which no daemon leaves behind: {INSTEAD} (--socket PATH is where shmcastd listens)"
        );
    }
    if found.uid() != nix::unistd::geteuid().as_raw() {
        bail!("{at} is a socket of uid {}: {INSTEAD}", found.uid());
    }
    Ok(())
}

/// Renames the leftover at `path`, and then deletes it. If the renamed file is not the one that `found` describes, somebody has replaced
/// the leftover before the rename. In this case, the file gets its name back, and the function fails.
fn move_aside(path: &Path, found: &Metadata) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".leftover-{}", std::process::id()));
    let aside = PathBuf::from(aside);
    let rename = |from: &Path, to: &Path| renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE);
    rename(path, &aside).with_context(|| format!("move the leftover {} aside", path.display()))?;
    let moved = fs::symlink_metadata(&aside).with_context(|| format!("look at {}", aside.display()))?;
    if (moved.dev(), moved.ino()) != (found.dev(), found.ino()) {
        rename(&aside, path).with_context(|| format!("move {} back", aside.display()))?;
        bail!("{} has just been taken by somebody else: {INSTEAD}", path.display());
    }
    fs::remove_file(&aside).with_context(|| format!("remove the leftover {}", aside.display()))
}
