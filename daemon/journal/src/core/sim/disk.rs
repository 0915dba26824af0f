//! A simulated disk that loses power. Written bytes are safe only after a sync that covers them has ended.
//!
//! Writes are split into sectors. After a power cut, a sector that no completed sync covers is in one of three states:
//!
//! - The sector is missing, although later sectors can be there.
//! - The sector has one of the versions that were written since the last sync.
//! - A write of the sector had not ended, and the bytes that it changes are garbage.
//!
//! The same holds for sizes and names. With [`Io::Direct`], writes are whole pages. The first page of such a write can be the last page of
//! the previous write.

use crate::core::{Io, Pages, Step, Stretch, Volume};
use fastrand::Rng;
use shmcast::journal::format::SPARE;
use std::collections::{BTreeMap, BTreeSet};
use std::io;

const SECTOR: usize = 512;

#[derive(Debug, Clone, Default)]
struct Inode {
    /// The bytes that a read returns while the machine runs.
    cache: Vec<u8>,
    disk: Vec<u8>,
    /// The versions of sectors that no sync covers, each with the number of its write.
    versions: BTreeMap<usize, Vec<(u64, Vec<u8>)>>,
    /// The earlier contents of sectors whose write has not ended.
    in_flight: BTreeMap<usize, Vec<u8>>,
    /// The number of the write that has not ended.
    in_flight_number: u64,
}

#[derive(Debug, Clone)]
enum Change {
    Add(String, usize),
    Remove(String),
    Rename(String, String),
}

/// The rate of failures for each kind of call: one in this many calls; 0 for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Faults {
    pub(super) sync_fails: u32,
    pub(super) write_fails: u32,
    pub(super) create_fails: u32,
    pub(super) rename_fails: u32,
    /// From now on nothing can be written.
    pub(super) read_only: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Disk {
    rng: Rng,
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    disk_names: BTreeMap<String, usize>,
    changes: Vec<Change>,
    handles: BTreeMap<u64, usize>,
    writes: u64,
    /// Converts writes to whole pages. `None` if writes are not converted.
    pages: Option<Pages>,
    pub(super) faults: Faults,
    /// The power fails after this many further calls of [`Volume`] that change something.
    pub(super) calls_left: Option<u32>,
    /// After this many further calls of [`Volume`], one call fails.
    pub(super) error_after: Option<u32>,
    /// After this many further steps, one step fails.
    pub(super) fails_after: Option<u32>,
}

impl Disk {
    pub(super) fn new(seed: u64, io: Io) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            inodes: Vec::new(),
            names: BTreeMap::new(),
            disk_names: BTreeMap::new(),
            changes: Vec::new(),
            handles: BTreeMap::new(),
            writes: 0,
            pages: (io == Io::Direct).then(Pages::default),
            faults: Faults::default(),
            calls_left: None,
            error_after: None,
            fails_after: None,
        }
    }

    /// The files, with the bytes that a read returns now.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.names.iter().map(|(name, inode)| (name.as_str(), &self.inodes[*inode].cache[..]))
    }

    fn fails(&mut self, one_in: u32) -> bool {
        one_in > 0 && self.rng.u32(0..one_in) == 0
    }

    /// Counts down. Returns whether the countdown has just ended.
    fn is_now(left: &mut Option<u32>) -> bool {
        let is_now = *left == Some(0);
        *left = left.and_then(|left| left.checked_sub(1));
        is_now
    }

    /// Begins a step. Returns the number of the last write that has ended. A sync that begins now covers the writes up to this number.
    pub(super) fn begin(&mut self, step: &Step) -> u64 {
        if let Step::Write { number, offset, pieces, ahead, .. } = step
            && let Some(&inode) = self.handles.get(number)
        {
            let mut start = *offset;
            let mut bytes = Vec::new();
            if let Some(pages) = &mut self.pages {
                let run = |stretch: &Stretch<'_>| {
                    start = stretch.place();
                    bytes.resize(stretch.size(), 0);
                    stretch.copy(0, &mut bytes);
                    Ok(())
                };
                pages.write(*number, *offset, pieces, *ahead, run).expect("writes follow each other");
            } else {
                bytes.extend(pieces.iter().flat_map(|piece| piece.bytes()));
            }
            self.put(inode, start as usize, &bytes, true);
        }
        match step {
            Step::Sync { number } => match self.handles.get(number).map(|&inode| &self.inodes[inode]) {
                Some(file) if !file.in_flight.is_empty() => file.in_flight_number - 1,
                _ => self.writes,
            },
            _ => self.writes,
        }
    }

    /// Ends a step.
    pub(super) fn end(&mut self, step: &Step, begun_at: u64) -> io::Result<()> {
        let refuse = |text: &str| Err(io::Error::other(text.to_owned()));
        let faults = self.faults;
        if !matches!(step, Step::Close { .. }) && Self::is_now(&mut self.fails_after) {
            return self.fail(step);
        }
        if faults.read_only && !matches!(step, Step::Close { .. }) {
            if let Step::Write { number, .. } = step {
                self.land(*number);
            }
            return refuse("read-only file system");
        }
        match step {
            Step::Create { number, .. } => {
                if self.fails(faults.create_fails) {
                    return refuse("no space");
                }
                let Step::Create { size, .. } = step else { unreachable!() };
                if self.names.remove(SPARE).is_some() {
                    self.changes.push(Change::Remove(SPARE.into()));
                }
                let inode = self.add(SPARE);
                self.inodes[inode].cache = vec![0; *size as usize];
                self.handles.insert(*number, inode);
                Ok(())
            }
            Step::Write { number, durable, .. } => {
                self.land(*number);
                if self.fails(faults.write_fails) {
                    return refuse("write failed");
                }
                if *durable { self.sync_inode(self.handle(*number)?, self.writes) } else { Ok(()) }
            }
            Step::Sync { number } => self.sync_inode(self.handle(*number)?, begun_at),
            Step::Resize { number, size } => {
                let inode = self.handle(*number)?;
                self.inodes[inode].cache.resize(*size as usize, 0);
                Ok(())
            }
            Step::Rename { number, name } => {
                if self.fails(faults.rename_fails) {
                    return refuse("rename failed");
                }
                let inode = self.handle(*number)?;
                let old = self.names.iter().find(|(_, found)| **found == inode).map(|(name, _)| name.clone());
                let Some(old) = old else { return refuse("the file has no name") };
                self.rename(&old, name)
            }
            Step::SyncDirectory => {
                self.sync_names();
                Ok(())
            }
            Step::Close { number } => {
                self.handles.remove(number);
                Ok(())
            }
        }
    }

    /// Makes the step fail as the kernel does: the written data can be on the disk, and unsynced pages count as clean afterwards.
    fn fail(&mut self, step: &Step) -> io::Result<()> {
        match step {
            Step::Write { number, durable, .. } => {
                self.land(*number);
                if *durable && let Some(&inode) = self.handles.get(number) {
                    self.inodes[inode].versions.clear();
                }
            }
            Step::Sync { number } => {
                if let Some(&inode) = self.handles.get(number) {
                    self.inodes[inode].versions.clear();
                }
            }
            _ => {}
        }
        Err(io::Error::other("failed"))
    }

    /// Returns the file of a handle, or an error if the handle is closed. An abandoned file can be closed while another lane is about to
    /// use it.
    fn handle(&self, number: u64) -> io::Result<usize> {
        self.handles.get(&number).copied().ok_or_else(|| io::Error::other("closed"))
    }

    fn add(&mut self, name: &str) -> usize {
        self.inodes.push(Inode::default());
        let inode = self.inodes.len() - 1;
        self.names.insert(name.to_owned(), inode);
        self.changes.push(Change::Add(name.to_owned(), inode));
        inode
    }

    fn put(&mut self, inode: usize, offset: usize, bytes: &[u8], in_flight: bool) {
        self.writes += 1;
        let file = &mut self.inodes[inode];
        file.in_flight_number = self.writes;
        let end = offset + bytes.len();
        if file.cache.len() < end {
            file.cache.resize(end.next_multiple_of(SECTOR), 0);
        }
        for sector in offset / SECTOR..end.div_ceil(SECTOR) {
            let place = sector * SECTOR..((sector + 1) * SECTOR).min(file.cache.len());
            let before = file.cache[place.clone()].to_vec();
            let from = place.start.max(offset);
            let to = place.end.min(end);
            file.cache[from..to].copy_from_slice(&bytes[from - offset..to - offset]);
            file.versions.entry(sector).or_default().push((self.writes, file.cache[place].to_vec()));
            if in_flight {
                file.in_flight.insert(sector, before);
            }
        }
    }

    fn land(&mut self, number: u64) {
        if let Some(&inode) = self.handles.get(&number) {
            self.inodes[inode].in_flight.clear();
        }
    }

    fn sync_inode(&mut self, inode: usize, covers: u64) -> io::Result<()> {
        if self.fails(self.faults.sync_fails) {
            // The kernel reports the error once. After that it treats the pages as clean.
            self.inodes[inode].versions.clear();
            return Err(io::Error::other("sync failed"));
        }
        let file = &mut self.inodes[inode];
        file.disk.resize(file.cache.len(), 0);
        for (sector, versions) in &mut file.versions {
            if let Some(at) = versions.iter().rposition(|version| version.0 <= covers) {
                let start = sector * SECTOR;
                let bytes = &versions[at].1;
                let length = bytes.len().min(file.disk.len().saturating_sub(start));
                file.disk[start..start + length].copy_from_slice(&bytes[..length]);
                versions.drain(..=at);
            }
        }
        file.versions.retain(|_, versions| !versions.is_empty());
        Ok(())
    }

    fn sync_names(&mut self) {
        self.disk_names = self.names.clone();
        self.changes.clear();
    }

    fn apply(names: &mut BTreeMap<String, usize>, change: &Change) {
        match change {
            Change::Add(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Change::Remove(name) => {
                names.remove(name);
            }
            Change::Rename(from, to) => {
                if let Some(inode) = names.remove(from) {
                    names.insert(to.clone(), inode);
                }
            }
        }
    }

    /// The power fails, and then returns.
    pub(super) fn cut(&mut self) {
        let rng = &mut self.rng;
        for change in std::mem::take(&mut self.changes) {
            if rng.bool() {
                Self::apply(&mut self.disk_names, &change);
            }
        }
        self.names = self.disk_names.clone();
        for file in &mut self.inodes {
            if rng.bool() {
                file.disk.resize(file.cache.len(), 0);
            }
            for (sector, versions) in std::mem::take(&mut file.versions) {
                let start = sector * SECTOR;
                if start >= file.disk.len() {
                    continue;
                }
                let end = (start + SECTOR).min(file.disk.len());
                let mut bytes = file.disk[start..end].to_vec();
                let chosen = rng.usize(0..=versions.len());
                if chosen > 0 {
                    let version = &versions[chosen - 1].1;
                    let length = version.len().min(bytes.len());
                    bytes[..length].copy_from_slice(&version[..length]);
                }
                if let Some(before) = file.in_flight.get(&sector)
                    && rng.u8(0..4) == 0
                {
                    let (_, last) = &versions[versions.len() - 1];
                    for (at, byte) in bytes.iter_mut().enumerate() {
                        if before.get(at) != last.get(at) {
                            *byte = rng.u8(..);
                        }
                    }
                }
                file.disk[start..end].copy_from_slice(&bytes);
            }
            file.in_flight.clear();
            file.cache = file.disk.clone();
        }
        self.handles.clear();
        self.calls_left = None;
    }

    /// Kills the process. The kernel keeps the written data. If a write was in progress, only some of its pages were written.
    pub(super) fn kill(&mut self) {
        let rng = &mut self.rng;
        for file in &mut self.inodes {
            let keep = rng.usize(0..=file.in_flight.len());
            let undone: BTreeSet<usize> = file.in_flight.keys().copied().skip(keep).collect();
            for sector in undone {
                let before = file.in_flight[&sector].clone();
                let start = sector * SECTOR;
                let end = (start + before.len()).min(file.cache.len());
                file.cache[start..end].copy_from_slice(&before[..end - start]);
                if let Some(versions) = file.versions.get_mut(&sector) {
                    versions.pop();
                }
            }
            file.versions.retain(|_, versions| !versions.is_empty());
            file.in_flight.clear();
        }
        self.handles.clear();
        self.calls_left = None;
    }

    /// Damages bytes of a file that were safe.
    pub(super) fn rot(&mut self, name: &str) {
        let inode = self.names[name];
        let file = &mut self.inodes[inode];
        let sectors = file.disk.len() / SECTOR;
        if sectors <= 8 {
            return;
        }
        let sector = self.rng.usize(8..sectors);
        let place = sector * SECTOR..(sector + 1) * SECTOR;
        match self.rng.u8(0..3) {
            0 => file.disk[place].fill(0),
            1 => {
                let at = self.rng.usize(place);
                file.disk[at] ^= 1 << self.rng.u8(0..8);
            }
            _ => {
                let other = self.rng.usize(8..sectors) * SECTOR;
                file.disk.copy_within(other..other + SECTOR, place.start);
            }
        }
        file.cache = file.disk.clone();
    }

    /// Counts a call that changes nothing. Fails if `error_after` has run out at this call.
    fn ask(&mut self) -> io::Result<()> {
        if Self::is_now(&mut self.error_after) { Err(io::Error::other("failed")) } else { Ok(()) }
    }

    /// Counts a call that changes something. Fails if the power fails at this call, or has failed.
    fn call(&mut self) -> io::Result<()> {
        self.power()?;
        self.ask()
    }

    fn power(&mut self) -> io::Result<()> {
        if let Some(left) = &mut self.calls_left {
            if *left == 0 {
                return Err(io::Error::other("power cut"));
            }
            *left -= 1;
        }
        Ok(())
    }

    fn inode(&self, name: &str) -> io::Result<usize> {
        self.names.get(name).copied().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Volume for Disk {
    fn list(&mut self) -> io::Result<Vec<String>> {
        self.call()?;
        let mut names: Vec<String> = self.names.keys().cloned().collect();
        self.rng.shuffle(&mut names);
        Ok(names)
    }

    fn size(&mut self, name: &str) -> io::Result<u64> {
        self.ask()?;
        Ok(self.inodes[self.inode(name)?].cache.len() as u64)
    }

    fn read(&mut self, name: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.ask()?;
        let file = &self.inodes[self.inode(name)?];
        let offset = offset as usize;
        let found = file.cache.get(offset..offset + bytes.len());
        bytes.copy_from_slice(found.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?);
        Ok(())
    }

    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let inode = self.inode(name).unwrap_or_else(|_| self.add(name));
        self.put(inode, offset as usize, bytes, true);
        self.power()?;
        self.inodes[inode].in_flight.clear();
        self.ask()
    }

    fn sync(&mut self, name: &str) -> io::Result<()> {
        self.power()?;
        let inode = self.inode(name)?;
        if let Err(error) = self.ask() {
            self.inodes[inode].versions.clear();
            return Err(error);
        }
        self.sync_inode(inode, self.writes)
    }

    fn forget(&mut self, name: &str) {
        let Ok(inode) = self.inode(name) else { return };
        let file = &mut self.inodes[inode];
        let length = file.cache.len();
        let mut seen = file.disk.clone();
        seen.resize(length, 0);
        for (sector, versions) in &file.versions {
            let (start, last) = (sector * SECTOR, &versions[versions.len() - 1].1);
            let end = (start + last.len()).min(length);
            seen[start..end].copy_from_slice(&last[..end - start]);
        }
        file.cache = seen;
    }

    fn truncate(&mut self, name: &str, size: u64) -> io::Result<()> {
        self.call()?;
        let inode = self.inode(name)?;
        self.inodes[inode].cache.resize(size as usize, 0);
        Ok(())
    }

    fn rename(&mut self, from: &str, to: &str) -> io::Result<()> {
        self.call()?;
        let inode = self.names.remove(from).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        self.names.insert(to.to_owned(), inode);
        self.changes.push(Change::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&mut self, name: &str) -> io::Result<()> {
        self.call()?;
        self.names.remove(name);
        self.changes.push(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        self.call()?;
        self.sync_names();
        Ok(())
    }
}
