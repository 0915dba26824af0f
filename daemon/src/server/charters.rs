//! The charters: one file per channel, in a private directory beside the daemon's socket.
//!
//! From these files the next daemon learns which memory each channel uses, and which generations of the channel have ended. The files
//! outlive any end of the daemon, and no program can write to them.

use anyhow::{Context, Result, bail};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, linkat, mkdirat, openat, renameat,
    statat, unlinkat,
};
use rustix::io::Errno;
use shmcast::hosting::{HostedCharter, boot_id};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// The directory of the charters.
#[derive(Debug)]
pub struct Charters {
    dir: OwnedFd,
    path: PathBuf,
    boot: [u64; 2],
    /// Channels whose charters have lost their names.
    nameless: BTreeSet<String>,
}

impl Charters {
    /// Opens the directory at `path`, which is created if it does not exist. The directory belongs to this daemon until the result is
    /// dropped.
    ///
    /// # Errors
    /// If the directory cannot be created, if other users can write to it, or if it belongs to another daemon.
    pub fn at(path: &Path) -> Result<Self> {
        let boot = boot_id().context("read the identity of this boot")?;
        Ok(Self { dir: open_dir(path)?, path: path.to_owned(), boot, nameless: BTreeSet::new() })
    }

    /// Restores the names of the charters in use, `held`, if somebody has moved their directory. If somebody has removed or moved the file
    /// of a single charter, the charter's name is lost for good. Returns the channels whose charters have lost their names since the last
    /// call.
    ///
    /// If another file now has the name of a lost charter, removes this file, because the next daemon would take it for the channel's
    /// charter.
    ///
    /// # Errors
    /// If the directory cannot be made, or if the names cannot be checked. The call can be repeated after an error.
    pub fn renew<'a>(
        &mut self,
        held: impl Iterator<Item = (&'a str, &'a HostedCharter)>,
    ) -> Result<Vec<String>> {
        let before = match self.has_its_name()? {
            true => None,
            false => Some(std::mem::replace(&mut self.dir, open_dir(&self.path)?)),
        };
        let mut lost = Vec::new();
        for (name, charter) in held {
            let has_name = self.leads_to(name, charter)?
                || before.as_ref().is_some_and(|before| self.link(before, name, charter));
            if has_name {
                self.nameless.remove(name);
            } else if self.nameless.insert(name.to_owned()) {
                let _ = unlinkat(&self.dir, name, AtFlags::empty());
                lost.push(name.to_owned());
            }
        }
        Ok(lost)
    }

    fn has_its_name(&self) -> Result<bool> {
        match statat(rustix::fs::CWD, &self.path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(is_same(&found, &fstat(&self.dir)?)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(e) => Err(e).with_context(|| format!("look at {}", self.path.display())),
        }
    }

    /// Whether the name of a charter leads to the charter's file.
    fn leads_to(&self, name: &str, charter: &HostedCharter) -> Result<bool> {
        match statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(is_same(&found, &fstat(charter.file())?)),
            Err(Errno::NOENT) => Ok(false),
            Err(e) => Err(e).with_context(|| self.title(name)),
        }
    }

    /// Gives the charter's file in the directory of `self` the same name that it has in the old directory, `before`. Returns whether the
    /// new name leads to the file. Returns false if the name in `before` is missing or leads to another file.
    fn link(&self, before: &OwnedFd, name: &str, charter: &HostedCharter) -> bool {
        let _ = unlinkat(&self.dir, name, AtFlags::empty());
        let is_linked = linkat(before, name, &self.dir, name, AtFlags::empty()).is_ok();
        is_linked && self.leads_to(name, charter).unwrap_or(false)
    }

    /// Returns the charter of the channel `name`. An existing charter is from an earlier daemon. If no charter exists, creates a new one.
    ///
    /// # Errors
    /// The system's error.
    pub fn of(&self, name: &str) -> Result<HostedCharter> {
        match self.find(name)? {
            Some(charter) => Ok(charter),
            None => self.make(name).with_context(|| self.title(name)),
        }
    }

    /// Returns the charter of the channel `name`, if the charter exists. The charter is from an earlier daemon, or from a removed channel.
    ///
    /// # Errors
    /// The system's error.
    pub fn find(&self, name: &str) -> Result<Option<HostedCharter>> {
        self.open(name).with_context(|| self.title(name))
    }

    /// The directory's path with another extension.
    pub fn beside(&self, extension: &str) -> PathBuf {
        self.path.with_extension(extension)
    }

    fn title(&self, name: &str) -> String {
        format!("charter {}", self.path.join(name).display())
    }

    fn open(&self, name: &str) -> Result<Option<HostedCharter>> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match openat(&self.dir, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        if FileType::from_raw_mode(fstat(&file)?.st_mode) != FileType::RegularFile {
            bail!("not a regular file");
        }
        Ok(HostedCharter::open(file, name, self.boot)?)
    }

    /// Creates a charter. The file gets the name `name` only when it is complete.
    fn make(&self, name: &str) -> Result<HostedCharter> {
        let unfinished = format!(".{name}");
        match unlinkat(&self.dir, &unfinished, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(e) => return Err(e.into()),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.dir, &unfinished, flags, Mode::RUSR | Mode::WUSR)?;
        let charter = HostedCharter::create(file.into(), name, self.boot)?;
        renameat(&self.dir, &unfinished, &self.dir, name)?;
        Ok(charter)
    }
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Opens the directory at `path`, which is created if it does not exist. Takes the directory's lock, which the kernel releases when the
/// daemon ends for any reason. The lock is needed because two daemons can have the same directory: their sockets can differ only in the
/// extension.
fn open_dir(path: &Path) -> Result<OwnedFd> {
    let shown = path.display();
    match mkdirat(rustix::fs::CWD, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => return Err(e).with_context(|| format!("create {shown}")),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = openat(rustix::fs::CWD, path, flags, Mode::empty()).with_context(|| format!("open {shown}"))?;
    let stat = fstat(&dir).with_context(|| format!("look at {shown}"))?;
    if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
        bail!(
            "{shown} is not this user's alone: remove it, or listen in a directory that others cannot write to"
        );
    }
    if flock(&dir, FlockOperation::NonBlockingLockExclusive).is_err() {
        bail!(
            "{shown} belongs to a daemon whose --socket differs only in the extension: stop it, or give a --socket with another \
             name before the extension"
        );
    }
    Ok(dir)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn a_directory_that_others_may_write_to_holds_no_charters() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("charters");
        drop(Charters::at(&path).unwrap().of("ticks").unwrap());
        assert!(Charters::at(&path).unwrap().find("ticks").unwrap().is_some(), "found again");
        symlink("ticks", path.join("quotes")).unwrap();
        assert!(Charters::at(&path).unwrap().of("quotes").is_err(), "a link");
        let held = Charters::at(&path).unwrap();
        let error = Charters::at(&path).unwrap_err().to_string();
        assert!(error.contains("--socket"), "{error}");
        drop(held);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o722)).unwrap();
        let error = Charters::at(&path).unwrap_err().to_string();
        assert!(error.contains("not this user's alone"), "{error}");
        let link = home.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(Charters::at(&link).is_err(), "a link");
    }
}
