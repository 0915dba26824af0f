//! The files of gates: one page for each gate, and the publisher's figures about all gates.
//!
//! ```text
//! gates/               as the channel's directory, but only its owner makes files here
//!   risk               a gate page: whoever may read the channel may lock and write it
//!   .figures           written by the publisher, read by tools; each publisher makes its own
//!   .new-RANDOM        a page that is being made
//! ```
//! A channel of files has the directory `gates` in its own directory. A daemon has such a directory for each of its channels.

use super::files::ChannelFiles;
use super::folder::{Folder, mode, unique};
use super::ours::{FIGURES, GATES, UNFINISHED_GATE, is_gate_file};
use crate::error::{ChannelError, is_absent};
use crate::gate::{GateError, GateName, Settled};
use rustix::fs::OFlags;
use shmcast_layout::gate::{self, Figures, FiguresPage, GateClaim};
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// A bit in the mode of a daemon's gate page. The bit is set if another user has received descriptors of the page.
const LENT: u32 = 0o040;

/// The open files of a publisher's gates.
#[derive(Debug, Default)]
pub(crate) struct OpenGates {
    pub(crate) gates: Vec<(Settled, File)>,
    pub(crate) figures: Option<File>,
}

/// The data about a gate that a tool shows: the publisher's figures, and the words in the gate page.
#[derive(Debug, Clone)]
pub(crate) struct GateSight {
    pub(crate) figures: gate::GateFigures,
    /// The data that the gate's reader wrote to the gate page. `None` if no reader holds the gate.
    pub(crate) claim: Option<GateClaim>,
}

/// A directory of gates.
#[derive(Debug)]
pub(crate) struct GateFolder(Folder);

impl GateFolder {
    /// Opens the directory `gates` in `parent`. Returns `None` if there is no such directory.
    pub(crate) fn find(parent: &Folder, name: &str) -> io::Result<Option<Self>> {
        match parent.folder(name) {
            Ok(folder) => Ok(Some(Self(folder))),
            Err(e) if is_absent(&e) => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Opens the directory, or makes it with this mode.
    pub(crate) fn make(parent: &Folder, name: &str, mode: u32) -> io::Result<Self> {
        match parent.make(name, mode) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(Self(parent.folder(name)?)),
            made => Ok(Self(made?)),
        }
    }

    /// Opens or makes a page for each of `gates`, and makes a new page of figures. Removes the pages of other gates, except those that
    /// readers hold. `mode` is the mode of the channel's directory.
    ///
    /// An existing page stays unchanged, because a reader can hold it. A file that has the name of a page but is no page is replaced. The
    /// figures of the previous publisher are replaced last, so a publisher that fails leaves them as they are.
    pub(crate) fn open(&self, gates: &[Settled], mode: u32) -> io::Result<(Vec<(Settled, File)>, File)> {
        self.keep_only(gates);
        let page = |settled: &Settled| {
            self.make_page(settled.name, mode)?;
            Ok((*settled, self.0.file(settled.name.as_str(), OFlags::RDONLY)?))
        };
        let gates = gates.iter().map(page).collect::<io::Result<_>>()?;
        Ok((gates, self.make_figures(mode)?))
    }

    /// Makes the page of figures of a publisher. Each publisher gets a file of its own, and tools see only the figures of the newest
    /// publisher. If publishers shared a file, an earlier publisher that still has the file open could shorten it while a later publisher
    /// has it mapped.
    fn make_figures(&self, mode: u32) -> io::Result<File> {
        let unfinished = format!("{UNFINISHED_GATE}{}", unique());
        let file = self.0.create(&unfinished, 0o600 | mode & 0o444)?;
        let made = FiguresPage::reserve(&file).and_then(|()| self.0.rename(&unfinished, FIGURES));
        made.inspect_err(|_| drop(self.0.unlink(&unfinished)))?;
        Ok(file)
    }

    /// Removes the page of figures. Called when the next publisher has not made its own page yet, or has no gates.
    pub(crate) fn forget_figures(&self) {
        let _ = self.0.unlink(FIGURES);
    }

    /// Makes the page of a gate, unless there is one.
    pub(crate) fn make_page(&self, name: GateName, mode: u32) -> io::Result<()> {
        let name = name.as_str();
        if let Ok(file) = self.0.file(name, OFlags::RDONLY)
            && gate::is_page(&file)?
        {
            return Ok(());
        }
        let unfinished = format!("{UNFINISHED_GATE}{}", unique());
        let readable = mode & 0o444;
        let file = self.0.create(&unfinished, 0o600 | readable | readable >> 1)?;
        let made = gate::create(&file, name).and_then(|()| self.0.rename(&unfinished, name));
        made.inspect_err(|_| drop(self.0.unlink(&unfinished)))
    }

    /// Removes all pages, except the pages of `gates` and the pages that readers hold.
    ///
    /// A page that a reader holds must keep its name. If it lost its name, a later publisher with this gate would make another page, would
    /// not wait for the reader, and the reader would not notice.
    fn keep_only(&self, gates: &[Settled]) {
        for name in self.0.names().unwrap_or_default() {
            let is_wanted = name == FIGURES || gates.iter().any(|gate| *name == *gate.name.as_str());
            if is_wanted || !is_gate_file(&self.0, &name).unwrap_or(false) {
                continue;
            }
            // While this process holds the page's lock, no reader can take the gate. A reader that has already opened the page finds out
            // later that the page has no name any more.
            let lock = self.0.file(&name, OFlags::RDWR);
            let is_free = lock.as_ref().map_or(Ok(false), crate::lock::try_lock);
            if is_free.unwrap_or(false) {
                let _ = self.0.unlink(&name);
            }
        }
    }

    /// Removes the page of figures, and all pages that no reader holds.
    pub(crate) fn remove_free(&self) {
        self.forget_figures();
        self.keep_only(&[]);
    }

    /// Opens the page of a gate twice for the gate's reader: one descriptor is for the lock, the other for the mapping. A forked child
    /// shares the mappings of its parent. If the mapped descriptor also held the lock, the child would keep the page locked after the
    /// parent's end.
    pub(crate) fn page(&self, name: GateName) -> io::Result<[File; 2]> {
        let open = || self.0.file(name.as_str(), OFlags::RDWR);
        Ok([open()?, open()?])
    }

    /// Marks a page as lent to another user: the mark is the group's permission to read. This permission gives nobody access, because only
    /// the owner can enter the directory.
    pub(crate) fn note_lent(page: &File) -> io::Result<()> {
        page.set_permissions(Permissions::from_mode(0o600 | LENT))
    }

    /// Removes the page of a gate if another user ever had descriptors of the page, and no reader holds the gate.
    pub(crate) fn remove_lent(&self, name: GateName) {
        let is_lent = |file: &File| file.metadata().is_ok_and(|known| known.mode() & LENT > 0);
        if let Ok(file) = self.0.file(name.as_str(), OFlags::RDWR)
            && is_lent(&file)
            && crate::lock::try_lock(&file).unwrap_or(false)
        {
            let _ = self.0.unlink(name.as_str());
        }
    }

    /// Removes the page of this gate from the directory. A reader that holds the gate keeps its open page, which has no name any more.
    pub(crate) fn withdraw(&self, name: GateName) {
        let _ = self.0.unlink(name.as_str());
    }

    /// The gates that readers hold, each with the process id that its reader claims.
    pub(crate) fn claims(&self) -> Vec<(String, u64)> {
        let claim = |name: String| self.claimed_by(&name).map(|pid| (name, pid));
        self.names().into_iter().filter_map(claim).collect()
    }

    /// The process id that a gate's reader claims. `None` if no reader holds the gate.
    fn claimed_by(&self, name: &str) -> Option<u64> {
        let page = self.0.file(name, OFlags::RDONLY).ok()?;
        let is_held = crate::lock::is_locked(&page).unwrap_or(false);
        // Only the process id of the claim is used. It does not depend on the segment, so any segment can be given.
        is_held.then(|| GateClaim::read(&page, [0; 2]).map(|claim| claim.pid).ok()).flatten()
    }

    /// The names of all gates.
    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.0.names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
        let mut names: Vec<String> = names.filter(|name| name.parse::<GateName>().is_ok()).collect();
        names.sort();
        names
    }

    /// The data about all gates for tools.
    pub(crate) fn sights(&self) -> Vec<GateSight> {
        let figures = self.0.file(FIGURES, OFlags::RDONLY).and_then(|file| Figures::read(&file));
        let Ok(Some(Figures { segment, gates, .. })) = figures else { return Vec::new() };
        let sight = |figures: gate::GateFigures| {
            let page = self.0.file(OsString::from(&figures.name), OFlags::RDONLY).ok();
            let is_held = |page: &File| crate::lock::is_locked(page).unwrap_or(false);
            let claim = page.filter(is_held).and_then(|page| GateClaim::read(&page, segment).ok());
            GateSight { figures, claim }
        };
        gates.into_iter().map(sight).collect()
    }

    /// The device and inode of the directory.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        self.0.own_stat().map(|stat| (stat.st_dev, stat.st_ino))
    }

    /// Removes all files that shmcast made in the directory.
    pub(crate) fn empty(&self) {
        for name in self.0.names().unwrap_or_default() {
            if is_gate_file(&self.0, &name).unwrap_or(false) {
                let _ = self.0.unlink(&name);
            }
        }
    }
}

impl ChannelFiles {
    /// Opens or makes the files of the publisher's gates, and removes the files of other gates that no reader holds. The caller holds the
    /// channel's lock.
    pub(crate) fn open_gates(&self, gates: &[Settled]) -> Result<OpenGates, ChannelError> {
        let os = |what| ChannelError::os(what, self.folder().path_of(GATES));
        if gates.is_empty() {
            if let Ok(Some(gates)) = GateFolder::find(self.folder(), GATES) {
                gates.remove_free();
                let _ = self.folder().remove_empty(GATES);
            }
            return Ok(OpenGates::default());
        }
        let own = mode(&self.folder().own_stat().map_err(os("look at"))?);
        let folder = GateFolder::make(self.folder(), GATES, own & 0o755).map_err(os("create directory"))?;
        let (gates, figures) = folder.open(gates, own).map_err(os("make the pages of gates in"))?;
        Ok(OpenGates { gates, figures: Some(figures) })
    }

    /// Removes the files of all gates.
    pub(super) fn remove_gates(&self) {
        if let Ok(Some(gates)) = GateFolder::find(self.folder(), GATES) {
            gates.empty();
            let _ = self.folder().remove_empty(GATES);
        }
    }

    /// Opens the page of a gate for its reader.
    pub(crate) fn gate_page(&self, channel: &str, name: GateName) -> Result<[File; 2], ChannelError> {
        let os = |e| {
            ChannelError::os("open the page of the gate", self.folder().path_of(GATES).join(name.as_str()))(e)
        };
        let unknown = |gates| {
            let (name, gate) = (channel.to_owned(), name.as_str().to_owned());
            ChannelError::Gate { name, gate, why: GateError::Unknown { gates } }
        };
        let Some(gates) = GateFolder::find(self.folder(), GATES).map_err(os)? else {
            return Err(unknown(Vec::new()));
        };
        match gates.page(name) {
            Err(e) if is_absent(&e) => Err(unknown(gates.names())),
            opened => opened.map_err(os),
        }
    }

    /// Whether the name of a gate leads to the page with this device and inode. If the name cannot be checked, the result is true.
    pub(crate) fn names_gate(&self, name: GateName, page: (u64, u64)) -> bool {
        match self.folder().stat(Path::new(GATES).join(name.as_str())) {
            Ok(stat) => (stat.st_dev, stat.st_ino) == page,
            Err(e) => !is_absent(&e),
        }
    }

    /// The data about the channel's gates for tools.
    pub(super) fn gate_sights(&self) -> Vec<GateSight> {
        match GateFolder::find(self.folder(), GATES) {
            Ok(Some(gates)) => gates.sights(),
            _ => Vec::new(),
        }
    }
}
