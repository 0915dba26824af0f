//! Makes a journal whole after a crash or a power cut. It may itself be cut at any point, and be done again.

use super::mutant::{Mutant, is};
use super::scan::{Found, Heard, Scan, Scanner};
use shmcast::journal::format::{
    Cause, ControlRecord, FILE_HEADER_BYTES, FileHeader, FormatError, FrameKind, JournalControl, Loss,
    TRAILER_BYTES, Trailer, file_name, parse_file_name,
};
use std::io;
use thiserror::Error;

/// Most bytes that are kept for people behind the last whole frame of a mended file.
const TORN_KEPT: u64 = 1 << 20;

/// The files of a journal, by name. All errors are those of the system.
#[allow(clippy::missing_errors_doc, reason = "said above once")]
pub trait Volume {
    /// The names in the directory.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// Bytes of a file.
    fn size(&mut self, name: &str) -> io::Result<u64>;
    /// Fills `bytes` from `offset` on, which lies inside of the file.
    fn read(&mut self, name: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes `bytes`. The file is made if it is not there.
    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the file's contents and size safe.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Forgets what is kept of the file in memory, so that the disk is read.
    fn forget(&mut self, name: &str);
    /// Cuts the file.
    fn truncate(&mut self, name: &str, size: u64) -> io::Result<()>;
    /// Renames a file.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes names safe.
    fn sync_directory(&mut self) -> io::Result<()>;
}

/// The reason why a journal was not recovered. It can be tried again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The system refused.
    #[error("{name}: {source}")]
    Os {
        /// The file.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// Files of two journals lie in one directory.
    #[error("{name} belongs to another journal than the files before it: move it elsewhere")]
    Foreign {
        /// The file.
        name: String,
    },
    /// A file of a later format.
    #[error("{name}: {source}")]
    Format {
        /// The file.
        name: String,
        /// What is wrong.
        source: FormatError,
    },
}

/// What was made of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mended {
    /// Its number.
    pub file: u64,
    /// Whole frames that were kept.
    pub frames: u64,
    /// Bytes behind them that were dropped.
    pub bytes: u64,
}

/// What a journal holds.
#[derive(Debug, Clone, Default)]
pub struct Recovered {
    /// The header of the last file; `None` for an empty directory.
    pub last: Option<FileHeader>,
    /// The number of the next file.
    pub next_number: u64,
    /// Salt and last chain value of the last file.
    pub previous: (u64, u32),
    /// The sequence due behind everything in the journal.
    pub due: u64,
    /// The greatest reserve.
    pub reserve: u64,
    /// The journal ends with a clean record.
    pub is_clean: bool,
    /// The last epoch that the journal names.
    pub epoch: u64,
    /// The ring that was recorded last.
    pub ring: Option<[u64; 2]>,
    /// Files that were mended just now.
    pub mended: Vec<Mended>,
}

impl Recovered {
    /// The sequence of the next message, and what is lost before it, where the ring is gone. `None` for an empty journal.
    pub fn after_power_cut(&self) -> Option<(u64, Option<Loss>)> {
        self.last.as_ref()?;
        if self.is_clean || self.reserve < self.due {
            return Some((self.due, None));
        }
        Some((self.reserve + 1, Some(Loss { from: self.due, to: self.reserve, cause: Cause::Reserve })))
    }
}

struct Known {
    name: String,
    header: FileHeader,
    sealed: Option<Trailer>,
}

/// Makes the journal in `volume` whole. Its lock is held by the caller.
///
/// # Errors
/// [`RecoverError`]; nothing was lost, and the call may be repeated.
pub fn recover(volume: &mut impl Volume) -> Result<Recovered, RecoverError> {
    let mut recovered = Recovered { next_number: 1, due: 1, ..Recovered::default() };
    let mut files = Vec::new();
    for file in gather(volume)? {
        // Where a power cut mixed names up, the name may have another number. Neither is given again.
        let named = parse_file_name(&file.name).unwrap_or(0);
        recovered.next_number = recovered.next_number.max(file.header.file.max(named) + 1);
        let scan = match file.sealed {
            Some(_) => None,
            None => {
                let size = os(&file.name, volume.size(&file.name))?;
                let scan = os(&file.name, Scan::run(volume, &file.name, &file.header, size))?;
                // A footer may be all that is left of a file. It says what is missing.
                if scan.frames == 0 && scan.composer.due() == file.header.sequence {
                    os(&file.name, volume.remove(&file.name))?;
                    continue;
                }
                Some(scan)
            }
        };
        files.push((file, scan));
    }
    let begins: Vec<(u64, u64)> = files
        .iter()
        .map(|(file, scan)| {
            (file.header.sequence, scan.as_ref().map_or(file.header.sequence - 1, |s| s.durable))
        })
        .collect();
    let last = files.len();
    for (at, (file, scan)) in files.into_iter().enumerate() {
        let later = &begins[at + 1..];
        let durable = later.iter().map(|(_, durable)| *durable).max().unwrap_or(0);
        let next = later.first().map(|(first, _)| *first);
        match (&file.sealed, scan) {
            // A sealed file is taken at its word.
            (Some(trailer), _) => {
                let is_last = at + 1 == last;
                let heard = if is_last { last_words(volume, &file, trailer) } else { Ok(Heard::default()) };
                recovered.note(&file.header, trailer.next, &os(&file.name, heard)?);
                recovered.previous = (file.header.salt, trailer.chain);
            }
            (None, Some(scan)) => take_in(volume, &file, scan, next, durable, &mut recovered)?,
            (None, None) => {}
        }
    }
    Ok(recovered)
}

fn os<T>(name: &str, result: io::Result<T>) -> Result<T, RecoverError> {
    result.map_err(|source| RecoverError::Os { name: name.to_owned(), source })
}

/// The files with a whole header, in order. Everything is synced before it is read, so that what is seen stays.
fn gather(volume: &mut impl Volume) -> Result<Vec<Known>, RecoverError> {
    let names = os("the directory", volume.list())?;
    let is_ours = |name: &String| parse_file_name(name).is_some() || name == "spare.tmp";
    let mut files: Vec<Known> = Vec::new();
    for name in names.into_iter().filter(is_ours) {
        if !is(Mutant::NoSyncBeforeReading) {
            // An error is that of an earlier write. What the disk has is read then.
            let _ = volume.sync(&name);
            volume.forget(&name);
        }
        if let Some(file) = look(volume, name)? {
            files.push(file);
        }
    }
    if !is(Mutant::NoSyncBeforeReading) {
        os("the directory", volume.sync_directory())?;
    }
    files.sort_by_key(|file| file.header.file);
    if let Some(first) = files.first() {
        let journal = first.header.journal;
        if let Some(other) = files.iter().find(|file| file.header.journal != journal) {
            return Err(RecoverError::Foreign { name: other.name.clone() });
        }
    }
    Ok(files)
}

fn look(volume: &mut impl Volume, name: String) -> Result<Option<Known>, RecoverError> {
    let size = os(&name, volume.size(&name))?;
    let mut page = vec![0; FILE_HEADER_BYTES.min(size as usize)];
    os(&name, volume.read(&name, 0, &mut page))?;
    let header = match FileHeader::decode(&page) {
        Ok(header) => header,
        Err(source @ FormatError::Version { .. }) => return Err(RecoverError::Format { name, source }),
        Err(_) if name == "spare.tmp" => {
            os(&name, volume.remove(&name))?;
            return Ok(None);
        }
        // It never was durable, or its header rotted. People may want it.
        Err(_) => {
            os(&name, volume.rename(&name, &format!("{name}.torn")))?;
            return Ok(None);
        }
    };
    let mut name = name;
    if name == "spare.tmp" {
        // Its name was not yet durable. It holds frames all the same.
        name = file_name(header.file, header.sequence);
        os(&name, volume.rename("spare.tmp", &name))?;
    }
    let mut sealed = None;
    if size >= (FILE_HEADER_BYTES + TRAILER_BYTES) as u64 {
        let mut bytes = [0; TRAILER_BYTES];
        os(&name, volume.read(&name, size - TRAILER_BYTES as u64, &mut bytes))?;
        sealed = Trailer::decode(&bytes, header.salt).ok();
    }
    Ok(Some(Known { name, header, sealed }))
}

/// Adds what an unsealed file holds to what is known, and seals it. `next` is the sequence with which the next file begins: what is
/// missing before it is named here. Later files say that everything up to `durable` was.
fn take_in(
    volume: &mut impl Volume,
    file: &Known,
    mut scan: Scan,
    next: Option<u64>,
    durable: u64,
    known: &mut Recovered,
) -> Result<(), RecoverError> {
    let header = &file.header;
    known.mended.push(Mended { file: header.file, frames: scan.frames, bytes: scan.behind });
    let from = scan.composer.due();
    known.note(header, from, &scan.heard);
    let durable = durable.max(scan.durable);
    scan.composer.judge_holes(durable);
    if let Some(first) = next
        && first > from
    {
        let cause = if durable >= from { Cause::Damaged } else { Cause::Torn };
        let offset = scan.composer.offset();
        scan.composer.skip(offset, Some(Loss { from, to: first - 1, cause }));
    }
    if is(Mutant::WritesOverMended) {
        known.next_number = header.file;
    }
    known.previous = os(&file.name, mend(volume, &file.name, scan))?;
    Ok(())
}

impl Recovered {
    /// Adds a file that ends where `due` is due, and what was heard in it.
    fn note(&mut self, header: &FileHeader, due: u64, heard: &Heard) {
        self.due = due;
        self.reserve = self.reserve.max(header.reserve).max(heard.reserve);
        self.is_clean = heard.clean == Some(due);
        self.epoch = self.epoch.max(header.epoch).max(heard.epoch);
        self.ring = heard.ring.or(Some(header.ring.uuid));
        self.last = Some(header.clone());
    }
}

/// What the last file says of reserve, epoch, ring and a clean end, where it is sealed: by the places in its footer. Where that is
/// damaged, the frames are looked through.
fn last_words(volume: &mut impl Volume, file: &Known, trailer: &Trailer) -> io::Result<Heard> {
    let size = volume.size(&file.name)?;
    let mut scanner = Scanner::new(volume, &file.name, size, file.header.salt);
    let footer = scanner.footer(trailer.footer)?.filter(|footer| !footer.controls_left_out);
    let Some(footer) = footer else {
        return Ok(Scan::run(volume, &file.name, &file.header, size)?.heard);
    };
    let epoch = JournalControl::Ring(ControlRecord::Epoch { epoch: 0 }).kind();
    let kinds = [epoch, JournalControl::SOURCE, JournalControl::RESERVE, JournalControl::CLEAN];
    let cared_for = footer.controls.iter().filter(|entry| kinds.contains(&entry.kind));
    let mut places: Vec<u64> = cared_for.map(|entry| entry.offset).collect();
    places.dedup();
    let mut heard = Heard::default();
    for place in places {
        if let Found::Whole(head, said) = scanner.at(place)?
            && head.kind == FrameKind::Data
        {
            heard.add(&said.heard);
        }
    }
    Ok(heard)
}

/// Seals a file behind its last whole frame. What stands behind it is kept in a file of its own.
fn mend(volume: &mut impl Volume, name: &str, mut scan: Scan) -> io::Result<(u64, u32)> {
    let end = scan.composer.offset();
    if scan.behind > 0 {
        let size = volume.size(name)?;
        let mut torn = vec![0; scan.behind.min(TORN_KEPT).min(size - end) as usize];
        volume.read(name, end, &mut torn)?;
        // It is for people only, and need not survive.
        let _ = volume.write(&format!("{name}.torn"), 0, &torn);
    }
    let durable = scan.footer_durable.unwrap_or(scan.composer.due() - 1);
    let bytes = scan.composer.seal(durable);
    volume.write(name, end, &bytes)?;
    volume.sync(name)?;
    volume.truncate(name, end + bytes.len() as u64)?;
    volume.sync(name)?;
    Ok((scan.composer.salt(), scan.composer.chain()))
}
