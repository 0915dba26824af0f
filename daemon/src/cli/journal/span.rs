//! `--from` and `--to`: the part of a journal that a verb reads.

use super::Source;
use crate::cli::figures::grouped;
use crate::cli::say::note;
use crate::cli::units::{Place, parse_place, words};
use anyhow::{Context, Result, bail};
use shmcast::journal::format::{ControlRecord, FileHeader};
use shmcast::journal::{Cause, Entry, Journal, JournalControl, Loss, Reader};
use shmcast::{Message, SchemaId};
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Span {
    /// Begin with this sequence, or with the first message of this time or later: HH:MM[:SS[.FRACTION]] of today (UTC), a date
    /// and time such as 2026-01-31T09:30:00Z, or @SECONDS since 1970 [default: the oldest]
    #[arg(long, value_name = "SEQ|TIME", value_parser = words(&[], parse_place))]
    from: Option<Place>,
    /// End with this sequence, or with the last message of this time or earlier [default: the last]
    #[arg(long, value_name = "SEQ|TIME", value_parser = words(&[], parse_place))]
    to: Option<Place>,
}

/// An entry of a part.
pub(in crate::cli) struct Item<'a> {
    pub(in crate::cli) entry: Entry<'a>,
    /// The wall clock of a message in nanoseconds since 1970; `None` if the message has no time.
    pub(in crate::cli) wall_ns: Option<u64>,
    /// The approximate wall clock of a message in nanoseconds since 1970. If the message has no time, this is the time of the last clock
    /// record before it.
    pub(in crate::cli) about_ns: Option<u64>,
    /// The header of the file in which the entry is.
    pub(in crate::cli) header: &'a FileHeader,
}

/// The numbers of sequences without a message.
#[derive(Debug, Default)]
pub(super) struct Lacking {
    /// Messages that are missing.
    pub(super) missing: u64,
    /// Sequences in reserves. It is not known how many of these sequences had messages.
    pub(super) skipped: u64,
}

impl Lacking {
    /// Adds the sequences of a loss or gap.
    pub(super) fn add(&mut self, Loss { from, to, cause }: Loss) {
        let sum = if cause == Cause::Reserve { &mut self.skipped } else { &mut self.missing };
        *sum += to + 1 - from;
    }

    /// Returns the end of a sentence about skipped sequences. It is empty if there are none.
    pub(super) fn say_skipped(&self) -> String {
        match self.skipped {
            0 => String::new(),
            skipped => format!("; reserves of {} sequences are skipped", grouped(skipped)),
        }
    }

    /// Whether there might be a message that the journal lacks.
    pub(super) const fn is_any(&self) -> bool {
        self.missing + self.skipped > 0
    }
}

/// A reader of a part of a journal.
pub(in crate::cli) struct Part {
    reader: Reader,
    /// The sequence after the last message of the part. It is `u64::MAX` if the end is not known.
    end: u64,
    /// The time at which the part ends, in nanoseconds since 1970. It becomes `None` when a later message is found.
    until_ns: Option<u64>,
    /// Number of requested sequences that are older than all sequences in the journal.
    pub(in crate::cli) too_old: u64,
    /// The first sequence that the user wants, and the part's first sequence.
    begin: (u64, u64),
    /// The sequences of files that cannot be read.
    unread: Vec<Range<u64>>,
    /// The schema of the part's first entry.
    pub(in crate::cli) schema: SchemaId,
    payload: Vec<u8>,
}

impl Span {
    /// Whether the user gave `--from` or `--to`.
    pub(in crate::cli) fn is_given(&self) -> bool {
        self.from.is_some() || self.to.is_some()
    }

    /// Opens the part. An empty part is an error.
    pub(in crate::cli) fn open(&self, source: &Source) -> Result<Part> {
        let mut part = self.begin(source.open_and_say()?)?;
        let Some(schema) = self.first_schema(&mut part)? else {
            let dir = source.dir.display();
            bail!(
                "{dir}: nothing is between --from and --to: `shmcast journal stat {dir}` says what is there"
            );
        };
        let part = Part { schema, ..self.reopen(source)? };
        if part.too_old > 0 {
            let (oldest, missing) = (part.due(), grouped(part.too_old));
            note!("{} to {} ({missing}) are older than all that is kept", oldest - part.too_old, oldest - 1);
        }
        Ok(part)
    }

    /// Opens the part once more. Prints nothing.
    pub(in crate::cli) fn reopen(&self, source: &Source) -> Result<Part> {
        self.begin(source.open()?)
    }

    /// Returns the schema at the first entry of a part; `None` if the part is empty. If `--to` is a time, control records do not count as
    /// entries: the reader returns control records even if they are later than this time.
    fn first_schema(&self, part: &mut Part) -> Result<Option<SchemaId>> {
        let ends_by_time = matches!(self.to, Some(Place::Time(_)));
        while let Some(item) = part.next()? {
            let is_record = match item.entry {
                Entry::Control { control, .. } => control.skipped().is_none(),
                _ => false,
            };
            if !(ends_by_time && is_record) {
                return Ok(Some(schema_of(item.header)));
            }
        }
        Ok(None)
    }

    fn begin(&self, journal: Journal) -> Result<Part> {
        let unread = journal.unread();
        let mut wanted_first = 0;
        let (reader, too_old) = match self.from {
            Some(Place::Time(time)) => {
                let reader = journal.read_since(nanos(time))?;
                // A file that ends right before this sequence might have messages of this time, too.
                wanted_first = reader.due().saturating_sub(1);
                (reader, 0)
            }
            Some(Place::Sequence(wanted)) => {
                let reader = journal.read_from(wanted)?;
                let too_old = reader.due() - wanted;
                wanted_first = wanted;
                (reader, too_old)
            }
            None => {
                let oldest = journal.first_sequence().unwrap_or(1);
                (journal.read_from(oldest)?, 0)
            }
        };
        let (end, until_ns) = match self.to {
            Some(Place::Time(time)) => (u64::MAX, Some(nanos(time))),
            Some(Place::Sequence(last)) => (last.saturating_add(1), None),
            None => (u64::MAX, None),
        };
        let begin = (wanted_first, reader.due());
        Ok(Part { end, until_ns, too_old, begin, unread, ..Part::at(reader) })
    }
}

/// The schema of a file's messages.
pub(in crate::cli) fn schema_of(header: &FileHeader) -> SchemaId {
    SchemaId { id: header.schema_id, name: header.schema.clone() }
}

/// Returns the sequence that `place` names. If `place` is a time, the result is the first message at or after this time.
pub(super) fn sequence_at(journal: Journal, place: Place) -> Result<u64> {
    match place {
        Place::Sequence(sequence) => Ok(sequence),
        Place::Time(time) => Ok(journal.read_since(nanos(time))?.due()),
    }
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    u64::try_from(since).unwrap_or(u64::MAX)
}

impl Part {
    /// Returns the part of a journal from `first` to its end.
    pub(super) fn of(journal: Journal, first: u64) -> Result<Self> {
        let unread = journal.unread();
        Ok(Self { begin: (0, first), unread, ..Self::at(journal.read_from(first)?) })
    }

    fn at(reader: Reader) -> Self {
        let schema = reader.header().map_or(SchemaId { id: 0, name: String::new() }, schema_of);
        Self {
            reader,
            end: u64::MAX,
            until_ns: None,
            too_old: 0,
            begin: (0, 0),
            unread: Vec::new(),
            schema,
            payload: Vec::new(),
        }
    }

    /// Continues at another sequence.
    pub(super) fn seek(&mut self, sequence: u64) -> Result<()> {
        Ok(self.reader.seek(sequence)?)
    }

    /// The sequence of the next entry. After the last entry, the sequence at which the part ends.
    pub(in crate::cli) fn due(&self) -> u64 {
        self.reader.due().min(self.end)
    }

    /// Whether a file that cannot be read might have messages before the part's first sequence, or from the sequence `due` on, at which the
    /// part ended. The reader reports losses between these two.
    pub(in crate::cli) fn lacks_files(&self, due: u64) -> bool {
        self.lacks_beginning() || self.unread.iter().any(|file| file.contains(&due) && due < self.end)
    }

    /// Whether a file that cannot be read might have messages before the part's first sequence.
    pub(super) fn lacks_beginning(&self) -> bool {
        let (wanted, first) = self.begin;
        self.unread.iter().any(|file| file.start < first && file.end > wanted)
    }

    /// The sequences of files that cannot be read.
    pub(super) fn unread(&self) -> &[Range<u64>] {
        &self.unread
    }

    /// Finds the end of a part whose end was given as a time. `sequence` is the first message after this time, and the reader has just
    /// returned it. If the clock was set back, messages of an earlier time can follow. So this function reads the rest of the journal.
    fn find_end(&mut self, sequence: u64, until_ns: u64) -> Result<()> {
        let (mut end, mut is_within) = (sequence, false);
        while let Some(entry) = self.reader.next()? {
            let Entry::Message(Message { sequence, time, .. }) = entry else { continue };
            match self.reader.about_ns(time) {
                Some(ns) if ns <= until_ns => is_within = true,
                Some(_) if is_within => (end, is_within) = (sequence, false),
                _ => {}
            }
        }
        self.end = if is_within { self.reader.due() } else { end };
        self.until_ns = None;
        // The caller already has the control records that come before this message, so the reader passes over them.
        self.reader.seek(sequence)?;
        while self.reader.due() <= sequence && self.reader.next()?.is_some() {}
        Ok(())
    }

    /// Returns the next entry. Returns `None` after the last entry, and at the current end of a journal that is still recorded.
    pub(in crate::cli) fn next(&mut self) -> Result<Option<Item<'_>>> {
        if self.reader.due() >= self.end {
            return Ok(None);
        }
        let last = self.end - 1;
        let (entry, wall_ns, about_ns) = match self.reader.next()? {
            None => return Ok(None),
            Some(Entry::Message(Message { payload, sequence, tag, key, time, .. })) => {
                self.payload.clear();
                self.payload.extend_from_slice(payload);
                let about_ns = self.reader.about_ns(time);
                if let Some(until_ns) = self.until_ns
                    && about_ns.is_some_and(|ns| ns > until_ns)
                {
                    self.find_end(sequence, until_ns)?;
                    if sequence >= self.end {
                        return Ok(None);
                    }
                }
                let message = Message { payload: &self.payload, sequence, tag, key, time, conflated: None };
                (Entry::Message(message), self.reader.wall_ns(time), about_ns)
            }
            Some(Entry::Lost(loss)) => (Entry::Lost(Loss { to: loss.to.min(last), ..loss }), None, None),
            Some(Entry::Control { sequence, time, control }) => {
                let control = match control {
                    JournalControl::Ring(ControlRecord::Gap { from, to }) => {
                        JournalControl::Ring(ControlRecord::Gap { from, to: to.min(last) })
                    }
                    control => control,
                };
                (Entry::Control { sequence, time, control }, None, None)
            }
            Some(_) => bail!("the journal has an entry that this version does not know: use a newer shmcast"),
        };
        let header = self.reader.header().context("an entry comes from a file")?;
        Ok(Some(Item { entry, wall_ns, about_ns, header }))
    }
}
