//! Bodies of index frames and footer frames. They contain the offsets of other frames in the file.

use super::control::{Cause, Loss};
use super::error::{FormatError, field};
use super::{FILE_HEADER_BYTES, FRAME_ALIGN, MAX_ENTRIES, put_u32, u32_at, u64_at};

const INDEX_HEAD: usize = 16;
const FOOTER_HEAD: usize = 48;

/// The offset of a data frame. The entry also has the frame's first sequence and its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexEntry {
    /// The sequence due at the frame's start.
    pub sequence: u64,
    /// Byte offset of the frame's header.
    pub offset: u64,
    /// The frame's index time, in nanoseconds since 1970.
    pub time_ns: u64,
}

/// The sequence of a key message, and the offset of its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyEntry {
    /// The sequence of the key message.
    pub sequence: u64,
    /// Byte offset of the message's frame.
    pub offset: u64,
}

/// The kind of a control record, the sequence due at it, and the offset of its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ControlEntry {
    /// The sequence due at the record.
    pub sequence: u64,
    /// Byte offset of the record's frame.
    pub offset: u64,
    /// The kind of the control record.
    pub kind: u64,
}

/// The body of an index frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Index {
    /// Byte offset of the previous index frame; 0 if this is the first index frame.
    pub previous: u64,
    /// Data frames since the previous index frame, in order, at least [`ENTRY_EVERY`](super::ENTRY_EVERY) bytes apart.
    pub entries: Vec<IndexEntry>,
}

impl Index {
    /// Encodes the body.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; INDEX_HEAD];
        bytes[..8].copy_from_slice(&self.previous.to_le_bytes());
        put_u32(&mut bytes, 8, self.entries.len() as u32);
        push_entries(&mut bytes, &self.entries);
        bytes
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// [`FormatError`] if a count does not fit, or if offsets, sequences or times are out of order.
    pub fn decode(body: &[u8]) -> Result<Self, FormatError> {
        const PART: &str = "index frame";
        if body.len() < INDEX_HEAD {
            return Err(FormatError::Truncated { part: PART, found: body.len(), needed: INDEX_HEAD });
        }
        let mut lists = Lists { part: PART, rest: &body[INDEX_HEAD..] };
        let entries = lists.take(u32_at(body, 8), 3, entry)?;
        check_entries(PART, &entries)?;
        Ok(Self { previous: u64_at(body, 0), entries })
    }
}

/// The body of a footer frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Footer {
    /// Messages in the file.
    pub messages: u64,
    /// Bytes of the messages' payloads.
    pub payload_bytes: u64,
    /// Byte offset of the last index frame; 0 for none.
    pub last_index: u64,
    /// Whether `keys` lacks the file's earliest key messages, because there were too many.
    pub keys_left_out: bool,
    /// Whether `controls` lacks the file's earliest control records, because there were too many.
    pub controls_left_out: bool,
    /// Whether recovery wrote this footer, because the recorder's own footer is lost or was never written. If so, the next file can have
    /// the lost footer's checksum as its chain value, and not this footer's.
    pub is_mended: bool,
    /// Data frames of the whole file, at least [`ENTRY_EVERY`](super::ENTRY_EVERY) bytes apart. If there are more than [`MAX_ENTRIES`],
    /// only some of them are listed, at even distances.
    pub entries: Vec<IndexEntry>,
    /// The file's key messages.
    pub keys: Vec<KeyEntry>,
    /// Control records, except clock records.
    pub controls: Vec<ControlEntry>,
    /// Ranges of missing sequences that recovery found between frames of this file.
    pub holes: Vec<Loss>,
}

impl Footer {
    /// Encodes the body.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; FOOTER_HEAD];
        let counts = [self.entries.len(), self.keys.len(), self.controls.len(), self.holes.len()];
        for (at, count) in counts.into_iter().enumerate() {
            put_u32(&mut bytes, at * 4, count as u32);
        }
        let flags = [self.keys_left_out, self.controls_left_out, self.is_mended];
        put_u32(&mut bytes, 16, flags.iter().rev().fold(0, |bits, &flag| bits << 1 | u32::from(flag)));
        for (at, total) in [self.messages, self.payload_bytes, self.last_index].into_iter().enumerate() {
            bytes[24 + at * 8..32 + at * 8].copy_from_slice(&total.to_le_bytes());
        }
        push_entries(&mut bytes, &self.entries);
        for key in &self.keys {
            push(&mut bytes, [key.sequence, key.offset]);
        }
        for control in &self.controls {
            push(&mut bytes, [control.sequence, control.offset, control.kind]);
        }
        for hole in &self.holes {
            push(&mut bytes, [hole.from, hole.to, hole.cause.number()]);
        }
        bytes
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// [`FormatError`] if a count does not fit, or if offsets, sequences or times are out of order.
    pub fn decode(body: &[u8]) -> Result<Self, FormatError> {
        const PART: &str = "footer";
        if body.len() < FOOTER_HEAD {
            return Err(FormatError::Truncated { part: PART, found: body.len(), needed: FOOTER_HEAD });
        }
        let mut lists = Lists { part: PART, rest: &body[FOOTER_HEAD..] };
        let entries = lists.take(u32_at(body, 0), 3, entry)?;
        check_entries(PART, &entries)?;
        let keys = lists.take(u32_at(body, 4), 2, |w| KeyEntry { sequence: w[0], offset: w[1] })?;
        let controls =
            lists.take(u32_at(body, 8), 3, |w| ControlEntry { sequence: w[0], offset: w[1], kind: w[2] })?;
        let hole = |w: [u64; 3]| Loss { from: w[0], to: w[1], cause: Cause::from_number(w[2]) };
        let holes = lists.take(u32_at(body, 12), 3, hole)?;
        if holes.iter().any(|hole| hole.from == 0 || hole.from > hole.to) {
            return Err(field(PART, "a hole whose ends are in the wrong order"));
        }
        let flags = u32_at(body, 16);
        Ok(Self {
            messages: u64_at(body, 24),
            payload_bytes: u64_at(body, 32),
            last_index: u64_at(body, 40),
            keys_left_out: flags & 1 != 0,
            controls_left_out: flags & 2 != 0,
            is_mended: flags & 4 != 0,
            entries,
            keys,
            controls,
            holes,
        })
    }
}

fn push<const N: usize>(bytes: &mut Vec<u8>, words: [u64; N]) {
    for word in words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

fn push_entries(bytes: &mut Vec<u8>, entries: &[IndexEntry]) {
    for entry in entries {
        push(bytes, [entry.sequence, entry.offset, entry.time_ns]);
    }
}

fn entry(words: [u64; 3]) -> IndexEntry {
    IndexEntry { sequence: words[0], offset: words[1], time_ns: words[2] }
}

fn check_entries(part: &'static str, entries: &[IndexEntry]) -> Result<(), FormatError> {
    let is_place =
        |e: &IndexEntry| e.offset >= FILE_HEADER_BYTES as u64 && e.offset.is_multiple_of(FRAME_ALIGN as u64);
    let ascends = |pair: &[IndexEntry]| {
        pair[0].sequence <= pair[1].sequence
            && pair[0].offset < pair[1].offset
            && pair[0].time_ns <= pair[1].time_ns
    };
    if !entries.iter().all(is_place) {
        return Err(field(part, "an entry whose offset is no place of a frame"));
    }
    if entries.windows(2).all(ascends) { Ok(()) } else { Err(field(part, "entries out of order")) }
}

/// Several lists of entries, one after the other, in the bytes of a body.
struct Lists<'a> {
    part: &'static str,
    rest: &'a [u8],
}

impl Lists<'_> {
    /// Takes `count` entries of `words` words each.
    fn take<T>(
        &mut self,
        count: u32,
        words: usize,
        make: impl Fn([u64; 3]) -> T,
    ) -> Result<Vec<T>, FormatError> {
        let count = count as usize;
        if count > MAX_ENTRIES {
            return Err(field(self.part, "more entries than a list may have"));
        }
        let needed = count * words * 8;
        let Some((list, rest)) = self.rest.split_at_checked(needed) else {
            return Err(FormatError::Truncated { part: self.part, found: self.rest.len(), needed });
        };
        self.rest = rest;
        let word = |piece: &[u8], at: usize| if at < words { u64_at(piece, at * 8) } else { 0 };
        Ok(list.chunks_exact(words * 8).map(|piece| make([0, 1, 2].map(|at| word(piece, at)))).collect())
    }
}
