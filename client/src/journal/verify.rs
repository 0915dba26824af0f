//! Checks a whole journal: every byte that has a meaning, and whether all parts agree with each other.

use super::cursor::{Cursor, Fault, Step};
use super::list::{FileInfo, Headless, Journal, Opened, Problem};
use super::verified::{Damage, MOST_LISTED, Verified};
use super::{Cause, JournalControl, JournalError, Loss};
use shmcast_layout::fault;
use shmcast_layout::journal::{
    Codec, Footer, FrameHeader, FrameKind, Index, IndexEntry, PAGE, RecordBody, Records, TRAILER_BYTES,
    Trailer, parse_file_name, sequence_in_name,
};
use std::ops::Range;
use std::sync::Arc;

/// A check of a journal, file by file.
///
/// ```no_run
/// use shmcast::journal::{Journal, Verdict, Verify};
/// let journal = Journal::open("/var/lib/shmcast/ticks")?;
/// let verified = Verify::new(&journal).run(|so_far| println!("{} B", so_far.bytes))?;
/// assert_eq!(verified.verdict(), Verdict::Whole);
/// # Ok::<(), shmcast::journal::JournalError>(())
/// ```
#[derive(Debug)]
pub struct Verify<'a> {
    journal: &'a Journal,
    files: &'a [Arc<FileInfo>],
    found: Verified,
    /// The sequence that must come next; `None` before the first file.
    due: Option<u64>,
    /// Number, salt and chain of the previous file. `None` if the header of the next file need not match them.
    before: Option<(u64, u64, u32)>,
    /// Name of the previous file, and the offset at which its frames end, if that file has no trailer.
    unsealed: Option<(String, u64)>,
    /// The greatest sequence that some frame reports as durable.
    durable: u64,
    /// Faults that count as damage only if their bytes had been synced to the disk. Later files show whether the bytes had been synced.
    undecided: Vec<Undecided>,
}

/// A fault that has one of two causes: the disk damaged the bytes, or a power cut came before the bytes were synced.
#[derive(Debug)]
struct Undecided {
    /// Whether the whole file cannot be used.
    is_file: bool,
    /// The next sequence at the fault. The fault is damage if this sequence had been synced to the disk.
    due: u64,
    damage: Damage,
}

/// The state of the check of one file.
#[derive(Debug, Default)]
struct InFile {
    /// The next sequence in this file, even if a later file begins at an earlier sequence.
    due: u64,
    entries: Vec<IndexEntry>,
    messages: u64,
    payload_bytes: u64,
    frames: u64,
    last_index: u64,
    time_ns: u64,
    footer: Option<(u64, Footer, FrameHeader)>,
    is_damaged: bool,
}

impl Journal {
    /// The files that cannot be used, and whose messages are in no later file. Costs a step for each file that cannot be used.
    ///
    /// ```no_run
    /// let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// journal.unusable().for_each(|problem| println!("{}: {}", problem.name, problem.why));
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn unusable(&self) -> impl Iterator<Item = &Problem> {
        self.problems().iter().filter(|problem| match self.headless(&problem.name) {
            Some(Headless { first, limit, .. }) => limit.is_none_or(|limit| first < limit),
            None => true,
        })
    }
}

impl Journal {
    /// The sequences of files whose header cannot be read: for each such file, the sequences from the one in its name up to the next file. The
    /// last file has no known end.
    ///
    /// ```no_run
    /// let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// assert!(journal.unread().is_empty());
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn unread(&self) -> Vec<Range<u64>> {
        let range = |problem: &Problem| {
            let (number, first) = (parse_file_name(&problem.name)?, sequence_in_name(&problem.name)?);
            let is_read = matches!(self.open_name(&problem.name), Ok(Ok(_)));
            let later = self.files().iter().filter(|file| file.header.file > number);
            let end = later.map(|file| file.header.sequence).min().unwrap_or(u64::MAX);
            (!is_read && first < end).then_some(first..end)
        };
        self.problems().iter().filter_map(range).collect()
    }
}

impl<'a> Verify<'a> {
    /// Prepares a check of all files that the journal listed.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let verify = shmcast::journal::Verify::new(&journal);
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn new(journal: &'a Journal) -> Self {
        Self {
            journal,
            files: journal.files(),
            found: Verified::default(),
            due: None,
            before: None,
            unsealed: None,
            durable: 0,
            undecided: Vec::new(),
        }
    }

    /// Checks one file after the other. Calls `progress` with the findings so far after each frame.
    ///
    /// # Errors
    /// [`JournalError`] if a file cannot be read at all.
    ///
    /// ```no_run
    /// # let journal = shmcast::journal::Journal::open("/var/lib/shmcast/ticks")?;
    /// let verified = shmcast::journal::Verify::new(&journal).run(|_| ())?;
    /// println!("{} messages", verified.messages);
    /// # Ok::<(), shmcast::journal::JournalError>(())
    /// ```
    pub fn run(mut self, mut progress: impl FnMut(&Verified)) -> Result<Verified, JournalError> {
        for problem in self.journal.problems() {
            let (file, what) = (problem.name.clone(), problem.why.clone());
            let damage = Damage { file, offset: 0, bytes: 0, what };
            match self.journal.headless(&problem.name) {
                Some(Headless { first, durable, limit }) if limit.is_none_or(|limit| first < limit) => {
                    self.durable = self.durable.max(durable);
                    self.postpone(Undecided { is_file: true, due: first, damage });
                }
                Some(_) => {} // later files have its messages
                None => self.found.add(damage),
            }
        }
        let of_problems = (self.found.clone(), self.undecided.len());
        let (files, mut last) = (self.files, None);
        for (at, file) in files.iter().enumerate() {
            if self.file(file, self.journal.limit_of(at), &mut progress)? {
                last = Some(file);
            } else if last.is_some_and(|last| self.is_removed(last)) {
                // Retention removes the oldest files first, and has overtaken the check. So the check begins anew.
                (self.found, self.due, self.before, last) = (of_problems.0.clone(), None, None, None);
                self.unsealed = None;
                self.undecided.truncate(of_problems.1);
            }
        }
        self.decide();
        Ok(self.found)
    }

    /// Decides which faults are damage. A fault in bytes that were never synced to the disk is no damage.
    fn decide(&mut self) {
        for Undecided { is_file, due, damage } in std::mem::take(&mut self.undecided) {
            if self.durable >= due {
                self.found.add(damage);
                continue;
            }
            if is_file {
                self.found.unused.push(damage);
                continue;
            }
            let is_here = |loss: &&mut Loss| loss.from == due && loss.cause == Cause::Damaged;
            if let Some(loss) = self.found.losses.iter_mut().find(is_here) {
                loss.cause = Cause::Torn;
                let count = loss.to - loss.from + 1;
                *self.found.lost_mut(Cause::Damaged) -= count;
                *self.found.lost_mut(Cause::Torn) += count;
            }
        }
    }

    fn decide_later(&mut self, due: u64, damage: Damage) {
        self.postpone(Undecided { is_file: false, due, damage });
    }

    fn postpone(&mut self, undecided: Undecided) {
        if self.undecided.len() < MOST_LISTED {
            self.undecided.push(undecided);
        } else {
            self.found.damages_not_listed += 1;
        }
    }

    fn is_removed(&self, file: &FileInfo) -> bool {
        self.journal.open_file(file).is_err_and(|error| error.is_not_found())
    }

    /// Checks one file. Returns false if the file was removed.
    fn file(
        &mut self,
        file: &FileInfo,
        limit: Option<u64>,
        progress: &mut impl FnMut(&Verified),
    ) -> Result<bool, JournalError> {
        let opened = match self.journal.open_file(file) {
            Err(error) if error.is_not_found() => return Ok(false),
            opened => opened?,
        };
        let Opened { file: open, header, chain, trailer, bytes } = opened;
        let first = self.due.get_or_insert(header.sequence);
        self.found.sequences.get_or_insert((header.sequence, header.sequence));
        let begin = limit.map_or(header.sequence, |limit| limit.min(header.sequence));
        if begin > *first {
            let loss = Loss { from: *first, to: begin - 1, cause: Cause::Damaged };
            let damage = self.absent_before(file, loss);
            self.decide_later(loss.from, damage);
            self.found.lose(loss);
        }
        self.due = Some(header.sequence);
        if trailer.is_some() {
            // All earlier files were sealed before this file, so their sequences are safe on the disk.
            self.durable = self.durable.max(header.sequence - 1);
        }
        if let Some((number, salt, chain)) = self.before
            && header.file == number + 1
            && (header.previous_salt, header.previous_chain) != (salt, chain)
            && header.previous_salt != 0
        {
            self.found.damage(file, 128, 12, "it does not chain to the file before");
        }
        let mut cursor = Cursor::new(open, chain, &header, trailer);
        let mut in_file = InFile { due: header.sequence, ..InFile::default() };
        self.frames(file, &mut cursor, &mut in_file, limit, progress)?;
        self.end(file, bytes, trailer, &in_file, limit);
        let footer = in_file.footer.filter(|(_, footer, _)| !footer.is_mended);
        self.before = footer.map(|(_, _, head)| (header.file, header.salt, head.crc()));
        self.unsealed = trailer.is_none().then(|| (file.name.clone(), cursor.offset()));
        self.found.files += 1;
        self.found.bytes += bytes.saturating_sub(cursor.offset()).min(4096 * 2);
        Ok(true)
    }

    /// The damage that explains a loss between `file` and the file before it. A file without a trailer has lost its own end.
    fn absent_before(&self, file: &FileInfo, Loss { from, to, .. }: Loss) -> Damage {
        match &self.unsealed {
            Some((name, end)) => {
                let what = format!("it ends without a trailer, and {from} to {to} are in no file behind it");
                Damage { file: name.clone(), offset: *end, bytes: 0, what }
            }
            None => {
                let what = format!("{from} to {to} are in no file before it");
                Damage { file: file.name.clone(), offset: 0, bytes: 0, what }
            }
        }
    }

    fn frames(
        &mut self,
        file: &FileInfo,
        cursor: &mut Cursor,
        in_file: &mut InFile,
        limit: Option<u64>,
        progress: &mut impl FnMut(&Verified),
    ) -> Result<(), JournalError> {
        let os = || JournalError::os("read", self.journal.path_of(file));
        let holes = cursor.footer().map_err(os())?.map(|footer| footer.holes).unwrap_or_default();
        loop {
            let due = self.due.unwrap_or(1);
            let step = cursor.next(due).map_err(os())?;
            if let Some(Fault { offset, bytes, why }) = cursor.take_fault() {
                in_file.is_damaged = true;
                // Recovery found this fault before, and the footer reports it.
                let is_known = holes.iter().any(|hole| (hole.from..=hole.to).contains(&in_file.due));
                let damage = Damage { file: file.name.clone(), offset, bytes, what: why.to_string() };
                let is_void = limit.is_some_and(|limit| in_file.due >= limit);
                match cursor.trailer() {
                    Some(_) if !is_known => self.found.add(damage),
                    // The file is not sealed. Later files have everything that came after the sequence with
                    // which they begin.
                    None if !is_void => self.decide_later(in_file.due, damage),
                    _ => {}
                }
            }
            let Step::Frame(header) = step else { return Ok(()) };
            self.durable = self.durable.max(header.durable);
            self.missing(header.sequence, &holes, limit);
            self.found.frames += 1;
            self.found.bytes += header.frame_bytes() as u64;
            in_file.frames += 1;
            in_file.due = in_file.due.max(header.sequence);
            let offset = cursor.at();
            if cursor.padding(&header).map_err(os())?.iter().any(|byte| *byte != 0) {
                self.found.damage(file, offset, 0, "bytes that are not 0 behind its body");
            }
            if header.time_ns < in_file.time_ns {
                self.found.damage(file, offset, 0, "its index time is before that of the frame before");
            }
            in_file.time_ns = header.time_ns;
            match header.kind {
                FrameKind::Data if header.codec != Codec::Raw => {
                    return Err(JournalError::codec(self.journal.path_of(file), offset, header.codec));
                }
                FrameKind::Data => self.data(file, cursor, &header, in_file, limit),
                FrameKind::Index => self.index(file, cursor, &header, in_file),
                FrameKind::Footer => match Footer::decode(cursor.body(&header)) {
                    Ok(footer) => in_file.footer = Some((offset, footer, header)),
                    Err(why) => self.found.damage(file, offset, 0, why.to_string()),
                },
                FrameKind::Pad => {}
            }
            progress(&self.found);
        }
    }

    /// If messages are missing before `sequence`, adds this loss. `sequence` is the next sequence that was found.
    fn missing(&mut self, sequence: u64, holes: &[Loss], limit: Option<u64>) {
        let due = self.due.unwrap_or(1);
        let next = limit.map_or(sequence, |limit| limit.min(sequence));
        if next > due {
            let hole = holes.iter().find(|hole| (hole.from..=hole.to).contains(&due));
            let cause = hole.map_or(Cause::Damaged, |hole| hole.cause);
            self.found.lose(Loss { from: due, to: next - 1, cause });
            self.go_to(next);
        }
    }

    fn go_to(&mut self, due: u64) {
        self.due = Some(due);
        if let Some((_, end)) = &mut self.found.sequences {
            *end = due.max(*end);
        }
    }

    fn data(
        &mut self,
        file: &FileInfo,
        cursor: &Cursor,
        header: &FrameHeader,
        in_file: &mut InFile,
        limit: Option<u64>,
    ) {
        let offset = cursor.at();
        if header.frame_bytes() > file.header.largest_frame as usize {
            self.found.damage(file, offset, 0, "a frame that is larger than the header of its file says");
        }
        in_file.entries.push(IndexEntry { sequence: header.sequence, offset, time_ns: header.time_ns });
        let mut records = Records::new(header, cursor.body(header));
        while let Some(record) = records.next() {
            let record = match record {
                Ok(record) => record,
                Err(why) => {
                    self.found.damage(file, offset, 0, why.to_string());
                    return;
                }
            };
            let is_beyond = limit.is_some_and(|limit| record.sequence >= limit);
            match record.body {
                RecordBody::Message { payload, .. } => {
                    in_file.messages += 1;
                    in_file.payload_bytes += payload.len() as u64;
                    self.found.messages += u64::from(!is_beyond);
                }
                RecordBody::Control(JournalControl::Source { ring, .. }) if ring != file.header.ring.uuid => {
                    let what = "a source record of another ring than the header of its file names";
                    self.found.damage(file, offset, 0, what);
                }
                RecordBody::Control(control) => {
                    if let Some(loss) = control.missing().filter(|_| !is_beyond) {
                        self.found.lose(loss);
                    }
                }
            }
            in_file.due = records.due();
            if !is_beyond {
                self.go_to(records.due());
            }
        }
    }

    fn index(&mut self, file: &FileInfo, cursor: &Cursor, header: &FrameHeader, in_file: &mut InFile) {
        let offset = cursor.at();
        match Index::decode(cursor.body(header)) {
            Err(why) => self.found.damage(file, offset, 0, why.to_string()),
            Ok(index) => {
                if index.previous != in_file.last_index && !in_file.is_damaged {
                    self.found.damage(file, offset, 0, "it names another index frame before it");
                }
                self.check_entries(file, offset, &index.entries, in_file);
            }
        }
        in_file.last_index = offset;
    }

    fn check_entries(&mut self, file: &FileInfo, offset: u64, entries: &[IndexEntry], in_file: &InFile) {
        let is_known = |entry: &IndexEntry| in_file.entries.binary_search_by_key(&entry.offset, |e| e.offset);
        let is_wrong = |entry: &&IndexEntry| match is_known(entry) {
            Ok(at) => in_file.entries[at] != **entry,
            // An index can rightly name a frame that is damaged and so was not found.
            Err(_) => !in_file.is_damaged,
        };
        if let Some(entry) = entries.iter().find(is_wrong) {
            let what = format!(
                "its entry of sequence {} at byte {} names no such frame",
                entry.sequence, entry.offset
            );
            self.found.damage(file, offset, 0, what);
        }
    }

    /// Compares the footer and the trailer with the counts of this check.
    fn end(
        &mut self,
        file: &FileInfo,
        bytes: u64,
        trailer: Option<Trailer>,
        in_file: &InFile,
        limit: Option<u64>,
    ) {
        let Some(trailer) = trailer else {
            // A file that is being sealed gets its final size only after its trailer is safe.
            if let Some((offset, _, header)) = &in_file.footer {
                let end = offset + (header.frame_bytes() + TRAILER_BYTES) as u64;
                if bytes == end.next_multiple_of(PAGE as u64) || fault!("a_seal_under_way_is_damage") {
                    let what = "a footer, and no trailer that belongs to it";
                    self.found.damage(file, bytes.saturating_sub(TRAILER_BYTES as u64), 64, what);
                }
            }
            return;
        };
        let next = limit.map_or(trailer.next, |limit| limit.min(trailer.next));
        self.missing(next, &[], limit);
        let Some((offset, footer, header)) = &in_file.footer else {
            self.found.damage(file, trailer.footer, 0, "no footer where the trailer says");
            return;
        };
        let mut compare = |what: &str, said: u64, found: u64| {
            if said != found && !in_file.is_damaged {
                self.found.damage(
                    file,
                    *offset,
                    0,
                    format!("{what}: {said} by its footer or trailer, {found} found"),
                );
            }
        };
        compare("messages", footer.messages, in_file.messages);
        compare("messages", trailer.messages, in_file.messages);
        compare("bytes of payload", footer.payload_bytes, in_file.payload_bytes);
        compare("frames", u64::from(trailer.frames), in_file.frames);
        compare("place of the footer", trailer.footer, *offset);
        compare("place of the last index", footer.last_index, in_file.last_index);
        compare("chain", u64::from(trailer.chain), u64::from(header.crc()));
        let entries = footer.entries.clone();
        let offset = *offset;
        self.check_entries(file, offset, &entries, in_file);
    }
}
