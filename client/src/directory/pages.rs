//! The pages of living readers, and the removal of pages that dead readers left.

use super::files::ChannelFiles;
use super::folder::Folder;
use super::{ReaderInfo, command_of, has_open, ours};
use crate::lock;
use rustix::fs::OFlags;
use shmcast_layout::fault;
use shmcast_layout::reader_page::ReaderStats;
use std::ffi::OsStr;
use std::fs::File;

impl ChannelFiles {
    /// The live readers, which are known by the locks on their pages. Removes pages of dead readers, if this user may.
    pub(super) fn live_readers(&self) -> Vec<ReaderInfo> {
        let Ok(pages) = self.readers() else { return Vec::new() };
        let names = pages.names().unwrap_or_default();
        let mut readers: Vec<ReaderInfo> = names.iter().filter_map(|name| look_at(&pages, name)).collect();
        readers.sort_by_key(|reader| reader.stats.pid);
        readers
    }

    /// Removes pages of dead readers, if this user may. Costs some system calls a page.
    pub(crate) fn sweep_dead_readers(&self) {
        let Ok(pages) = self.readers() else { return };
        for name in pages.names().unwrap_or_default() {
            let _ = alive(&pages, &name);
        }
    }
}

/// The page of a living reader. Removes the page if its reader is dead. Does not touch a file that is not a page.
fn alive(pages: &Folder, name: &OsStr) -> Option<File> {
    let sweeps_all = fault!("sweeps_what_is_no_page") || fault!("links_are_followed");
    if !ours::is_page_name(name) && !sweeps_all {
        return None;
    }
    let file = pages.file(name, OFlags::RDONLY).ok()?;
    let is_empty = file.metadata().ok()?.len() == 0;
    if is_empty {
        return None; // just made; it is locked before it gets its size
    }
    let is_ours = ours::begins_as_page(&file, name).ok()? || sweeps_all;
    if lock::is_locked(&file).ok()? {
        return Some(file);
    }
    // If this user may not remove the page, it stays until another does or the channel is removed. Names are never
    // used twice, so this is the file that we looked at.
    if is_ours {
        let _ = pages.unlink(name);
    }
    None
}

/// The reader of one page, if it lives and its page is shown.
fn look_at(pages: &Folder, name: &OsStr) -> Option<ReaderInfo> {
    let file = alive(pages, name)?;
    if ours::is_hidden(name) {
        return None; // being made
    }
    let mut stats = ReaderStats::read(&file).ok()??;
    let pid = stats.pid.try_into().ok()?;
    // The id is one of the reader's own namespace. Here another process may have it.
    let is_seen = has_open(pid, &file);
    stats.pid = if is_seen { stats.pid } else { 0 };
    let command = is_seen.then(|| command_of(pid)).flatten();
    Some(ReaderInfo { stats, command })
}
