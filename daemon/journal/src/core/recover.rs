//! Repairs a journal after a crash or a power cut. Recovery can be interrupted at any point, and repeated.

use super::mutant::{Mutant, is};
use super::scan::{Found, Heard, Scan, Scanner, used};
use shmcast::journal::format::{
    Cause, ControlRecord, FILE_HEADER_BYTES, FileHeader, FormatError, FrameKind, JournalControl, Loss, PAGE,
    SPARE, TRAILER_BYTES, Trailer, file_name, parse_file_name,
};
use std::io;
use thiserror::Error;

/// If a repaired file has bytes after its last whole frame, recovery keeps at most this many of them for inspection.
const TORN_KEPT: u64 = 1 << 20;
/// The ending of the name of a file that is only for inspection: bytes after the last whole frame, or a file without a whole header.
const TORN: &str = ".torn";
/// The ending of the name of an abandoned file.
const SUSPECT: &str = ".suspect";

/// Access to the files of a journal by name. All errors are those of the system.
#[allow(clippy::missing_errors_doc, reason = "said above once")]
pub trait Volume {
    /// Returns the names of all files in the directory.
    fn list(&mut self) -> io::Result<Vec<String>>;
    /// Returns the number of bytes of a file.
    fn size(&mut self, name: &str) -> io::Result<u64>;
    /// Reads `bytes.len()` bytes at `offset`. All of them must be inside the file.
    fn read(&mut self, name: &str, offset: u64, bytes: &mut [u8]) -> io::Result<()>;
    /// Writes `bytes`. Makes the file if it does not exist.
    fn write(&mut self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the file's contents and size safe from a power cut.
    fn sync(&mut self, name: &str) -> io::Result<()>;
    /// Drops the file from the page cache, so that later reads come from the disk.
    fn forget(&mut self, name: &str);
    /// Cuts the file to `size` bytes.
    fn truncate(&mut self, name: &str, size: u64) -> io::Result<()>;
    /// Renames a file.
    fn rename(&mut self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file.
    fn remove(&mut self, name: &str) -> io::Result<()>;
    /// Makes the names in the directory safe from a power cut.
    fn sync_directory(&mut self) -> io::Result<()>;
}

/// The reason why a recovery failed. Recovery can be repeated.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RecoverError {
    /// The system refused a call.
    #[error("{name}: {source}")]
    Os {
        /// The file's name.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// Files of two journals are in one directory.
    #[error("{name} belongs to another journal than the files before it: move it elsewhere")]
    Foreign {
        /// The file's name.
        name: String,
    },
    /// A file has a later format.
    #[error("{name}: {source}")]
    Format {
        /// The file's name.
        name: String,
        /// The error of the parser.
        source: FormatError,
    },
}

/// The result of repairing a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mended {
    /// The number of the file.
    pub file: u64,
    /// Whole frames that were kept.
    pub frames: u64,
    /// Number of dropped bytes after the last whole frame.
    pub bytes: u64,
}

/// The state of a journal after recovery.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recovered {
    /// The header of the last file; `None` for an empty directory.
    pub last: Option<FileHeader>,
    /// The number of the next file.
    pub next_number: u64,
    /// Salt and last chain value of the last file.
    pub previous: (u64, u32),
    /// The sequence after the last sequence in the journal.
    pub due: u64,
    /// The greatest reserve in the journal.
    pub reserve: u64,
    /// Whether the journal ends with a clean record.
    pub is_clean: bool,
    /// The last epoch in the journal.
    pub epoch: u64,
    /// The ring that was recorded last.
    pub ring: Option<[u64; 2]>,
    /// Files that this recovery repaired.
    pub mended: Vec<Mended>,
}

impl Recovered {
    /// Returns two things for a channel whose ring is gone: its next sequence, and the lost sequences just before its next sequence.
    /// Returns `None` for an empty journal.
    #[cfg(test)]
    pub(crate) fn after_power_cut(&self) -> Option<(u64, Option<Loss>)> {
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
    /// The contents of the file's frames; `None` if the file is sealed (finished).
    scan: Option<Scan>,
}

impl Known {
    /// Whether the file has no frame, and no sequences are missing between this file and the later files. `limit` is the first sequence of
    /// the later files.
    fn is_empty(&self, limit: Option<u64>) -> bool {
        let (frames, due) = match (&self.sealed, &self.scan) {
            (Some(trailer), _) => (u64::from(trailer.frames) - 1, trailer.next),
            (None, Some(scan)) => (scan.frames, scan.composer.due()),
            (None, None) => return true,
        };
        frames == 0 && due == self.header.sequence && limit.is_none_or(|limit| limit <= due)
    }
}

/// Repairs the journal in `volume`. The caller must have the journal's lock.
///
/// # Errors
/// [`RecoverError`]. An error loses nothing, and the call can be repeated.
pub fn recover(volume: &mut impl Volume) -> Result<Recovered, RecoverError> {
    let mut recovered = Recovered { next_number: 1, due: 1, ..Recovered::default() };
    let mut files = gather(volume, &mut recovered.next_number)?;
    if stands_in(volume, &files)? {
        return recover(volume);
    }
    for file in files.iter_mut().filter(|file| file.sealed.is_none()) {
        let size = os(&file.name, volume.size(&file.name))?;
        file.scan = Some(os(&file.name, Scan::run(volume, &file.name, &file.header, size))?);
    }
    let begins: Vec<(u64, u64)> = files
        .iter()
        .map(|file| {
            let first = file.header.sequence;
            (first, file.scan.as_ref().map_or(first - 1, |scan| scan.durable))
        })
        .collect();
    // The end of a file's sequences: the lowest first sequence of the later files.
    let limit = |at: usize| begins[at + 1..].iter().map(|(first, _)| *first).min();
    // The last file that is not empty. Its header has the reserve and the epoch of the earlier files, if these were not abandoned.
    let telling = (0..files.len()).rposition(|at| !files[at].is_empty(limit(at)));
    let mut clean = None;
    for (at, mut file) in files.into_iter().enumerate() {
        let durable = begins[at + 1..].iter().map(|(_, durable)| *durable).max().unwrap_or(0);
        let scan = file.scan.take();
        if telling == Some(at) || (is(Mutant::HearsAll) && scan.is_some()) {
            let heard = match &file.sealed {
                Some(trailer) => os(&file.name, last_words(volume, &file, trailer))?,
                None => scan.as_ref().map(|scan| scan.heard).unwrap_or_default(),
            };
            recovered.hear(&file.header, &heard);
            clean = heard.clean;
        }
        match (&file.sealed, scan) {
            // A sealed (finished) file needs no repair.
            (Some(trailer), _) => {
                recovered.due = trailer.next;
                recovered.previous = (file.header.salt, trailer.chain);
            }
            (None, Some(scan)) => take_in(volume, &file, scan, limit(at), durable, &mut recovered)?,
            (None, None) => {}
        }
        recovered.epoch = recovered.epoch.max(file.header.epoch);
        recovered.last = Some(file.header);
    }
    recovered.is_clean = clean == Some(recovered.due);
    if is(Mutant::WritesOverMended) {
        recovered.next_number = recovered.last.as_ref().map_or(1, |last| last.file);
    }
    Ok(recovered)
}

fn os<T>(name: &str, result: io::Result<T>) -> Result<T, RecoverError> {
    result.map_err(|source| RecoverError::Os { name: name.to_owned(), source })
}

/// Returns the files with a whole header, in order. Raises `free` above all numbers in the files' headers and names.
///
/// If a file might not be durable, syncs it before reading it. So a later power cut cannot remove bytes that recovery has read. A sealed
/// (finished) file is known to be durable if two later files exist.
fn gather(volume: &mut impl Volume, free: &mut u64) -> Result<Vec<Known>, RecoverError> {
    let names = os("the directory", volume.list())?;
    let mut files: Vec<Known> = Vec::new();
    let last = names.iter().filter_map(|name| parse_file_name(name)).max().unwrap_or(0);
    for name in names {
        let number = parse_file_name(name.strip_suffix(TORN).unwrap_or(&name));
        if number.is_none() && name != SPARE {
            continue;
        }
        let mut taken = number;
        if !name.ends_with(TORN) {
            let is_old = number.is_some_and(|number| number + 2 <= last) && !name.ends_with(SUSPECT);
            let safe = if is_old { Some(os(&name, ends_of(volume, &name))?) } else { None };
            let ends = match safe.filter(|ends| ends.sealed.is_some()) {
                Some(ends) => ends,
                None => {
                    if !is(Mutant::NoSyncBeforeReading) {
                        // A sync can fail because an earlier write failed. Recovery ignores this error, because it reads the bytes that the
                        // disk has.
                        let _ = volume.sync(&name);
                        volume.forget(&name);
                    }
                    os(&name, ends_of(volume, &name))?
                }
            };
            match look(volume, name, ends)? {
                // After a power cut, a file's name can have another number than its header. Neither of the two numbers is used again.
                Look::File(file) => {
                    taken = taken.max(Some(file.header.file));
                    files.push(*file);
                }
                Look::Torn => {}
                Look::Nothing => taken = None,
            }
        }
        *free = taken.map_or(*free, |taken| (*free).max(taken + 1));
    }
    if !is(Mutant::NoSyncBeforeReading) {
        os("the directory", volume.sync_directory())?;
    }
    files.sort_by_key(|file| file.header.file);
    if let Some(first) = files.first() {
        let journal = first.header.stream;
        if let Some(other) = files.iter().find(|file| file.header.stream != journal) {
            return Err(RecoverError::Foreign { name: other.name.clone() });
        }
    }
    Ok(files)
}

/// Handles a missing file between two other files. If the file before it is sealed (finished), creates a replacement, which will record the
/// missing sequences. If not, the file before it will record them. Returns whether a file was created.
fn stands_in(volume: &mut impl Volume, files: &[Known]) -> Result<bool, RecoverError> {
    for (at, file) in files.iter().enumerate() {
        let Some(trailer) = &file.sealed else { continue };
        let Some(limit) = files[at + 1..].iter().map(|later| later.header.sequence).min() else { break };
        let next = &files[at + 1].header;
        if limit <= trailer.next || next.file == file.header.file + 1 {
            continue;
        }
        let header = FileHeader {
            file: file.header.file + 1,
            salt: next.salt.wrapping_add(1).max(1),
            sequence: trailer.next,
            epoch: file.header.epoch,
            previous_salt: file.header.salt,
            previous_chain: trailer.chain,
            ..next.clone()
        };
        let page = header.encode().map_err(|source| RecoverError::Format { name: SPARE.into(), source })?;
        // The repeated recovery renames this file, and seals it with a record of the missing sequences.
        os(SPARE, volume.write(SPARE, 0, &page))?;
        return Ok(true);
    }
    Ok(false)
}

/// The header and the trailer of a file.
struct Ends {
    size: u64,
    header: Result<FileHeader, FormatError>,
    /// The trailer, if it belongs to this file.
    sealed: Option<Trailer>,
}

fn ends_of(volume: &mut impl Volume, name: &str) -> io::Result<Ends> {
    let size = volume.size(name)?;
    let mut page = vec![0; FILE_HEADER_BYTES.min(size as usize)];
    volume.read(name, 0, &mut page)?;
    let header = FileHeader::decode(&page);
    let mut sealed = None;
    if let Ok(header) = &header
        && size >= (FILE_HEADER_BYTES + TRAILER_BYTES) as u64
    {
        let mut bytes = [0; TRAILER_BYTES];
        volume.read(name, size - TRAILER_BYTES as u64, &mut bytes)?;
        sealed = Trailer::decode(&bytes, header.salt).ok();
    }
    Ok(Ends { size, header, sealed })
}

/// The result of examining a file of the journal.
enum Look {
    File(Box<Known>),
    /// The file's header is not whole. The file was set aside.
    Torn,
    /// Nothing was ever written to the file. The file was removed.
    Nothing,
}

fn look(volume: &mut impl Volume, name: String, ends: Ends) -> Result<Look, RecoverError> {
    let Ends { size, header, sealed } = ends;
    let header = match header {
        Ok(header) => header,
        Err(source @ FormatError::Version { .. }) => return Err(RecoverError::Format { name, source }),
        Err(_) => return os(&name, set_aside(volume, &name, size)),
    };
    let mut name = name;
    if name == SPARE {
        // The file has the header of a journal's file, but was not renamed durably yet.
        name = file_name(header.file, header.sequence);
        os(&name, volume.rename(SPARE, &name))?;
    }
    Ok(Look::File(Box::new(Known { name, header, sealed, scan: None })))
}

/// Renames a file without a whole header, so that it no longer belongs to the journal. Such a file was never durable, or its header was
/// damaged. The renamed file stays for inspection. If the file is empty or the spare file, removes it instead.
fn set_aside(volume: &mut impl Volume, name: &str, size: u64) -> io::Result<Look> {
    let used = used(volume, name, size)?;
    if used == 0 || name == SPARE {
        volume.remove(name)?;
        return Ok(Look::Nothing);
    }
    // This call frees the space that was prepared for frames.
    volume.truncate(name, used)?;
    volume.rename(name, &format!("{name}{TORN}"))?;
    Ok(Look::Torn)
}

/// Seals an unfinished file, and adds its contents to the result.
///
/// - `limit` is the first sequence of a later file. If the unfinished file ends before `limit`, it gets a record of the missing sequences
///   in between.
/// - Messages up to `durable` were safe on the disk. So a missing sequence up to `durable` counts as damaged, and a higher missing sequence
///   counts as torn by a crash.
fn take_in(
    volume: &mut impl Volume,
    file: &Known,
    mut scan: Scan,
    limit: Option<u64>,
    durable: u64,
    known: &mut Recovered,
) -> Result<(), RecoverError> {
    let header = &file.header;
    known.mended.push(Mended { file: header.file, frames: scan.frames, bytes: scan.behind });
    let from = scan.composer.due();
    known.due = from;
    let durable = durable.max(scan.durable);
    scan.composer.judge_holes(durable);
    if let Some(limit) = limit
        && limit > from
    {
        let cause = if durable >= from { Cause::Damaged } else { Cause::Torn };
        let offset = scan.composer.offset();
        scan.composer.skip(offset, Some(Loss { from, to: limit - 1, cause }));
    }
    known.previous = os(&file.name, mend(volume, &file.name, scan, durable))?;
    Ok(())
}

impl Recovered {
    /// Takes over the state (reserve, epoch and ring) from the last file with frames.
    fn hear(&mut self, header: &FileHeader, heard: &Heard) {
        self.reserve = self.reserve.max(header.reserve).max(heard.reserve);
        self.epoch = self.epoch.max(heard.epoch);
        self.ring = Some(header.ring.uuid);
    }
}

/// Returns the reserve, the epoch and the clean record of a finished file. A clean record says that nothing follows. Reads the frames that
/// the footer lists. If the footer is damaged, reads all frames.
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

/// Seals a file after its last whole frame. If bytes follow this frame, copies them to a separate file.
///
/// If possible, writes the recorder's footer again with the same bytes, because the next file refers to the footer by its checksum. All
/// sequences up to `durable` were durable.
fn mend(volume: &mut impl Volume, name: &str, mut scan: Scan, durable: u64) -> io::Result<(u64, u32)> {
    let end = scan.composer.offset();
    let size = volume.size(name)?;
    if scan.behind > 0 {
        let mut torn = vec![0; scan.behind.min(TORN_KEPT).min(size - end) as usize];
        volume.read(name, end, &mut torn)?;
        // This file is only for inspection, so an error does not matter.
        let _ = volume.write(&format!("{name}{TORN}"), 0, &torn);
    }
    let bytes = scan.footer.and_then(|footer| {
        let mut composer = scan.composer.clone();
        let bytes = composer.seal(footer.durable);
        (composer.chain() == footer.crc()).then(|| {
            scan.composer = composer;
            bytes
        })
    });
    let bytes = bytes.unwrap_or_else(|| scan.composer.seal_mended(durable));
    let sealed = end + bytes.len() as u64;
    if size <= sealed {
        // A file gets its final size only after its trailer is durable.
        volume.truncate(name, sealed + PAGE as u64)?;
        volume.sync(name)?;
    }
    volume.write(name, end, &bytes)?;
    volume.sync(name)?;
    volume.truncate(name, sealed)?;
    volume.sync(name)?;
    Ok((scan.composer.salt(), scan.composer.chain()))
}
