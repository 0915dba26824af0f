//! The gates of a channel that a host owns. Their files lie in a directory of the host, and outlive the host.
//!
//! Programs get descriptors of the pages, and no access to the directory. While no host runs, the channel's publisher and the programs that
//! hold gates continue to work. The next host finds the same files.
//!
//! Functions of this module have no examples, because they are useful only with a control socket.

use crate::directory::{Folder, GateFolder};
use crate::gate::{Gate, GateError, GateName, Settled, settle};
use crate::status::gate_report;
use shmcast_layout::control::{GateReport, GateTerms, Process};
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use super::{HostedSegment, HostedSpec};
use crate::error::ChannelError;

/// Mode of the directories: only the host enters them.
const MODE: u32 = 0o700;

impl HostedSpec {
    /// Computes the values of these gates in this channel. Makes no file.
    ///
    /// # Errors
    /// [`ChannelError::Gate`] with the first gate that does not fit, and the reason; [`ChannelError::Geometry`].
    pub fn gate_terms(&self, gates: &[Gate]) -> Result<Vec<GateTerms>, ChannelError> {
        let settled = settle(&self.name, gates, &Geometry::new(self.capacity, self.max_message)?)?;
        Ok(settled.iter().map(Settled::terms).collect())
    }
}

impl HostedSegment {
    /// Whether the file is a segment of the channel `name` that this user made. It can be an earlier segment of the channel.
    pub fn is_of(name: &str, file: &File) -> bool {
        let is_named = |segment: Segment| segment.header().channel == name;
        Self::is_of_our_making(file) && Segment::open(file, Access::Read).is_ok_and(is_named)
    }
}

/// The directory of the gates of one channel.
#[derive(Debug)]
pub struct HostedGates(GateFolder);

/// The program that gets the page of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Borrower {
    /// The host itself.
    Host,
    /// A program of root or of the host's own user. The host trusts such a program as much as itself.
    Trusted,
    /// A program of another user.
    Stranger,
}

/// The descriptors that a publisher gets for the channel's gates.
#[derive(Debug)]
pub struct LentGates {
    /// Each gate with a read-only descriptor of its page.
    pub gates: Vec<(GateTerms, File)>,
    /// The page on which the publisher writes its figures.
    pub figures: File,
}

impl HostedGates {
    /// Opens the directory of the channel `name` in the directory `dir`. Makes the two directories if they do not exist.
    ///
    /// # Errors
    /// The system's error.
    pub fn make(dir: &Path, name: &str) -> io::Result<Self> {
        match std::fs::DirBuilder::new().mode(MODE).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        Ok(Self(GateFolder::make(&Folder::unnamed(dir)?, name, MODE)?))
    }

    /// Opens the directory of the channel `name`. Returns `None` if there is no such directory.
    ///
    /// # Errors
    /// The system's error.
    pub fn find(dir: &Path, name: &str) -> io::Result<Option<Self>> {
        match Folder::unnamed(dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => Ok(GateFolder::find(&opened?, name)?.map(Self)),
        }
    }

    /// Opens the pages of all gates for the channel's publisher, with a new page of figures. Removes the pages of other gates that no
    /// reader holds.
    ///
    /// # Errors
    /// [`ChannelError::Gate`] for a gate that does not fit the segment. Otherwise the system's error.
    pub fn for_publisher(&self, gates: &[Gate], segment: &HostedSegment) -> Result<LentGates, ChannelError> {
        let header = segment.header();
        let os = ChannelError::os("open the gates of", header.channel.clone());
        let settled = settle(&header.channel, gates, &header.geometry)?;
        let (gates, figures) = self.0.open(&settled, MODE).map_err(os)?;
        let gates = gates.into_iter().map(|(settled, page)| (settled.terms(), page)).collect();
        Ok(LentGates { gates, figures })
    }

    /// Opens the page of a gate for its reader twice: once to be locked, and once to be mapped. Makes the page if no publisher has made it
    /// yet.
    ///
    /// Another user's program could shorten a page long after it had the gate, and a process that maps the page would end by SIGBUS. So the
    /// host itself gets a new page if such a program has had descriptors of the old page. The present publisher does not know the new page.
    /// Only the next publisher waits for the new page's reader.
    ///
    /// # Errors
    /// The system's error; `InvalidInput` if the name is not a valid gate name.
    pub fn for_reader(&self, name: &str, borrower: Borrower) -> io::Result<[File; 2]> {
        let invalid = |e: GateError| io::Error::new(io::ErrorKind::InvalidInput, e.to_string());
        let name: GateName = name.parse().map_err(invalid)?;
        if borrower == Borrower::Host {
            self.0.remove_lent(name);
        }
        self.0.make_page(name, MODE)?;
        let page = self.0.page(name)?;
        if borrower == Borrower::Stranger {
            GateFolder::note_lent(&page[0])?;
        }
        Ok(page)
    }

    /// Whether this value and `other` are the same directory, even if the directory was renamed.
    ///
    /// # Errors
    /// The system's error.
    pub fn is(&self, other: &Self) -> io::Result<bool> {
        Ok(self.0.identity()? == other.0.identity()?)
    }

    /// Removes all pages in this directory, even if the directory was moved or removed. The readers that hold gates then get an error, and
    /// take their gates again. Call this function if the directory's path now leads to another directory, or to none.
    pub fn disown(&self) {
        self.0.empty();
    }

    /// The gates that readers hold, each with the process id that its reader claims. A reader can claim any id, and a reader in another PID
    /// namespace claims an id that means another process here.
    pub fn claims(&self) -> Vec<(String, u64)> {
        self.0.claims()
    }

    /// Takes a gate away from its reader. Call this function if the reader may no longer read the channel. The present publisher still
    /// waits for that reader. The next publisher makes a new page, and waits for the reader of the new page. A name that is not valid for a
    /// gate changes nothing.
    pub fn withdraw(&self, gate: &str) {
        if let Ok(name) = gate.parse() {
            self.0.withdraw(name);
        }
    }

    /// The present state of the gates. `process` finds the process for an id that a reader claims.
    pub fn report(&self, segment: &HostedSegment, process: impl Fn(u64) -> Process) -> Vec<GateReport> {
        let tail = segment.locator().tail().ok();
        let has_publisher = segment.has_publisher().unwrap_or(true);
        self.0.sights().iter().map(|sight| gate_report(sight, tail, has_publisher, &process)).collect()
    }

    /// Removes the figures of the previous publisher. Call this function when the host lets a new publisher in. The new publisher then
    /// makes its own figures, or has no gates.
    pub fn begin(&self) {
        self.0.forget_figures();
    }

    /// Removes the pages of all channels in `dir` for which `is_wanted` returns false. Pages that readers hold stay.
    pub fn sweep(dir: &Path, is_wanted: impl Fn(&str) -> bool) {
        let Ok(all) = Folder::unnamed(dir) else { return };
        let names = all.names().unwrap_or_default().into_iter().filter_map(|name| name.into_string().ok());
        for name in names.filter(|name| !is_wanted(name)) {
            if let Ok(Some(gates)) = GateFolder::find(&all, &name) {
                gates.remove_free();
                let _ = all.remove_empty(&name);
            }
        }
    }
}
