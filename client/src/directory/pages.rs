//! The pages of living readers, and the removal of pages that dead readers left.

use super::files::ChannelFiles;
use super::folder::Folder;
use super::{ReaderInfo, command_of, has_open, ours};
use crate::error::{ChannelError, is_shortage};
use crate::lock;
use rustix::fs::OFlags;
use shmcast_layout::fault;
use shmcast_layout::reader_page::ReaderStats;
use std::ffi::OsStr;
use std::fs::File;
use std::io;

impl ChannelFiles {
    /// Returns the live readers; `None` if this user cannot see them. A reader lives while the lock on its page is held. Removes pages of
    /// dead readers, if this user has the permission.
    ///
    /// # Errors
    /// If the system lacks the resources to read all pages.
    pub(super) fn live_readers(&self) -> Result<Option<Vec<ReaderInfo>>, ChannelError> {
        let pages = match self.readers() {
            Err(e) if e.is_shortage() => return Err(e),
            Err(e) if e.is_absent() => return Ok(Some(Vec::new())),
            Err(_) => return Ok(None),
            Ok(pages) => pages,
        };
        let names =
            known(pages.names()).map_err(ChannelError::os("look at the reader pages in", pages.path()))?;
        let Some(names) = names else { return Ok(None) };
        let looked: io::Result<Vec<ReaderInfo>> = {
            let readers = names.iter().map(|name| known(look_at(&pages, name)));
            readers.filter_map(|reader| reader.map(Option::flatten).transpose()).collect()
        };
        let mut readers = looked.map_err(ChannelError::os("look at the reader pages in", pages.path()))?;
        readers.sort_by_key(|reader| reader.stats.pid);
        Ok(Some(readers))
    }

    /// Removes pages of dead readers, if this user has the permission. Costs some system calls per page.
    pub(crate) fn sweep_dead_readers(&self) {
        let Ok(pages) = self.readers() else { return };
        for name in pages.names().unwrap_or_default() {
            let _ = alive(&pages, &name);
        }
    }
}

/// Returns the found entry. Returns `None` if it no longer exists, or if this user cannot read it. A lack of resources is an error.
fn known<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(e) if is_shortage(&e) => Err(e),
        found => Ok(found.ok()),
    }
}

/// Opens the page of a living reader. Removes the page if its reader is dead. Does not touch a file that is not a page.
fn alive(pages: &Folder, name: &OsStr) -> io::Result<Option<File>> {
    let sweeps_all = fault!("sweeps_what_is_no_page") || fault!("links_are_followed");
    if !ours::is_page_name(name) && !sweeps_all {
        return Ok(None);
    }
    let file = pages.file(name, OFlags::RDONLY)?;
    let is_empty = file.metadata()?.len() == 0;
    if is_empty {
        return Ok(None); // the page was just made: it is locked before it gets its size
    }
    let is_ours = ours::begins_as_page(&file, name)? || sweeps_all;
    if lock::is_locked(&file)? {
        return Ok(Some(file));
    }
    // If this user is not allowed to remove the page, the page stays until another user removes it or the channel. No name is used twice,
    // so the removed file is the file that was checked.
    if is_ours {
        let _ = pages.unlink(name);
    }
    Ok(None)
}

/// Returns the reader of one page, if the reader lives and its page is not hidden.
fn look_at(pages: &Folder, name: &OsStr) -> io::Result<Option<ReaderInfo>> {
    let Some(file) = alive(pages, name)?.filter(|_| !ours::is_hidden(name)) else {
        return Ok(None); // the reader is dead, or its page is being made
    };
    let Ok(Some(mut stats)) = ReaderStats::read(&file) else { return Ok(None) };
    let Ok(pid) = stats.pid.try_into() else { return Ok(None) };
    // The id is one of the reader's own PID namespace. Here another process can have the same id.
    let is_seen = has_open(pid, &file);
    stats.pid = if is_seen { stats.pid } else { 0 };
    let command = is_seen.then(|| command_of(pid)).flatten();
    Ok(Some(ReaderInfo { stats, command }))
}
