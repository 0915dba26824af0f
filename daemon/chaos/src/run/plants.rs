//! A stranger's files and links in the directories of channels. These files and links must stay unchanged.

use crate::story::Plant;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// Everything that a stranger planted, with its content.
#[derive(Debug, Default)]
pub(super) struct Plants {
    precious: PathBuf,
    /// Files and their content.
    files: BTreeMap<PathBuf, String>,
    links: Vec<PathBuf>,
    /// Folders that were closed, each with its earlier mode.
    closed: BTreeMap<PathBuf, u32>,
    count: usize,
}

impl Plants {
    pub(super) fn new(dir: &Path) -> Result<Self> {
        let mut plants = Self { precious: dir.join("precious"), ..Self::default() };
        // Some of these names are names of a channel's files. The others are names of files in a home directory.
        for name in ["id_ed25519", "lock", "segment", "12-00ff00ff00ff00ff"] {
            let path = plants.precious.join(name);
            plants.file(path)?;
        }
        Ok(plants)
    }

    fn file(&mut self, path: PathBuf) -> Result<()> {
        let text = format!("this is {}\n", path.display());
        fs::write(&path, &text).with_context(|| format!("plant {}", path.display()))?;
        self.files.insert(path, text);
        Ok(())
    }

    /// Plants a stranger's files or links, if possible.
    pub(super) fn plant(&mut self, plant: Plant, dir: &Path, channel: &str) -> Result<bool> {
        let channel = dir.join(channel);
        let readers = channel.join("readers");
        self.count += 1;
        match plant {
            Plant::ReadersLink => {
                // The folder of reader pages can be replaced only if it has no page.
                if channel.is_dir() && fs::remove_dir(&readers).is_ok_or_absent() {
                    symlink(&self.precious, &readers).context("plant a link")?;
                    self.links.push(readers);
                    return Ok(true);
                }
                Ok(false)
            }
            Plant::ReadersFile => {
                if fs::symlink_metadata(&readers).is_ok_and(|m| m.is_dir()) {
                    self.file(readers.join(format!("alice{}.txt", self.count)))?;
                    return Ok(true);
                }
                Ok(false)
            }
            Plant::ReadersClosed => {
                let Some(found) = fs::symlink_metadata(&readers).ok().filter(|m| m.is_dir()) else {
                    return Ok(false);
                };
                let mode = found.permissions().mode();
                fs::set_permissions(&readers, Permissions::from_mode(mode & !0o222))
                    .context("close a folder")?;
                self.closed.entry(readers).or_insert(mode);
                Ok(true)
            }
            Plant::Folder | Plant::FolderAlike => {
                if fs::create_dir(&channel).is_err() {
                    return Ok(false);
                }
                let names: &[&str] = match plant {
                    Plant::Folder => &["README", "HEAD"],
                    _ => &["lock", "notes"],
                };
                for name in names {
                    self.file(channel.join(name))?;
                }
                Ok(true)
            }
        }
    }

    /// Returns the planted things that have changed.
    pub(super) fn changed(&self) -> Vec<String> {
        let mut changed = Vec::new();
        for (path, text) in &self.files {
            match fs::read_to_string(path) {
                Ok(now) if now == *text => {}
                Ok(_) => changed.push(format!("{} was written to", path.display())),
                Err(e) => changed.push(format!("{} cannot be read: {e}", path.display())),
            }
        }
        changed
    }

    /// Removes everything that makes channels unusable.
    pub(super) fn take_away(&mut self) {
        for (folder, mode) in std::mem::take(&mut self.closed) {
            // The folder might have been removed with its channel.
            if fs::symlink_metadata(&folder).is_ok_and(|m| m.is_dir()) {
                let _ = fs::set_permissions(&folder, Permissions::from_mode(mode));
            }
        }
        for link in self.links.drain(..) {
            if fs::symlink_metadata(&link).is_ok_and(|m| m.is_symlink()) {
                let _ = fs::remove_file(link);
            }
        }
        let precious = self.precious.clone();
        for path in std::mem::take(&mut self.files).into_keys().filter(|path| !path.starts_with(&precious)) {
            let _ = fs::remove_file(&path);
            // The parent is removed only if it is empty.
            if let Some(parent) = path.parent() {
                let _ = fs::remove_dir(parent);
            }
        }
    }
}

trait OkOrAbsent {
    fn is_ok_or_absent(&self) -> bool;
}

impl OkOrAbsent for io::Result<()> {
    fn is_ok_or_absent(&self) -> bool {
        match self {
            Ok(()) => true,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }
}
