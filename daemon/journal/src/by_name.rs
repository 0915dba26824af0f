//! Gives recovery access, by name, to the files of a folder on a real file system.

use crate::core::Volume;
use crate::directory::{Directory, at, write_all};
use rustix::fs::{Advice, OFlags};
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;

/// Number of bytes in one request to the kernel to read ahead.
const AHEAD: u64 = 1 << 20;

/// A directory whose files recovery opens by name.
#[derive(Debug)]
pub struct ByName<'a> {
    directory: &'a Directory,
    /// The file that was used last.
    open: Option<(String, File)>,
    /// The offset up to which the kernel was asked to read ahead, or up to which recovery has read.
    told: u64,
}

impl<'a> ByName<'a> {
    /// Makes the volume of a directory's files.
    pub const fn new(directory: &'a Directory) -> Self {
        Self { directory, open: None, told: 0 }
    }

    fn file(&mut self, name: &str) -> io::Result<&File> {
        let file = match self.open.take() {
            Some(open) if open.0 == name => open,
            _ => {
                self.told = 0;
                (name.to_owned(), at(&self.directory.handle, name, OFlags::RDWR)?)
            }
        };
        Ok(&self.open.insert(file).1)
    }
}

impl Volume for ByName<'_> {
    fn list(&mut self) -> io::Result<Vec<String>> {
        let entries = std::fs::read_dir(self.directory.path())?;
        entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn size(&mut self, name: &str) -> io::Result<u64> {
        Ok(self.file(name)?.metadata()?.len())
    }

    fn read(&mut self, name: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let told = if self.open.as_ref().is_some_and(|open| open.0 == name) { self.told } else { 0 };
        let file = self.file(name)?;
        let end = offset + bytes.len() as u64;
        let is_on_its_way = told > 0 && end.abs_diff(told) <= AHEAD;
        if is_on_its_way && end + AHEAD / 2 > told {
            // With this request, the disk reads the next bytes while recovery processes the present bytes.
            let _ = rustix::fs::fadvise(file, told, NonZeroU64::new(AHEAD), Advice::WillNeed);
            self.told = told + AHEAD;
        } else if !is_on_its_way {
            self.told = end;
        }
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
            // This is only a hint. If the file system ignores the hint, later reads come from the cache.
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
