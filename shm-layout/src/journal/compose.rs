//! Composes one file, frame by frame, with its frame numbers, checksum chain, index, footer and trailer.

use super::build::FrameDraft;
use super::control::{Cause, Loss};
use super::error::FormatError;
use super::file::FileHeader;
use super::frame::{Codec, FrameFlags, FrameHeader, FrameKind};
use super::index::{ControlEntry, Footer, Index, IndexEntry, KeyEntry};
use super::trailer::Trailer;
use super::{ENTRY_EVERY, FILE_HEADER_BYTES, INDEX_EVERY, MAX_ENTRIES, PAGE, TRAILER_BYTES};
use std::collections::VecDeque;

/// The state of a file that is being written. The composer itself does not write to the file. Each call returns bytes, and moves
/// [`offset`](Self::offset) past these bytes. The caller writes the bytes to the file, at the offset from before the call.
///
/// A tool that writes a file calls [`begin`](Self::begin). For each frame it calls [`place`](Self::place), and also [`index`](Self::index)
/// if [`index_is_due`](Self::index_is_due) returns true. At the end it calls [`seal`](Self::seal). Recovery calls [`resume`](Self::resume),
/// and [`found`](Self::found) for each frame that the file already has.
#[derive(Debug, Clone)]
pub struct Composer {
    salt: u64,
    offset: u64,
    number: u32,
    chain: u32,
    first: u64,
    due: u64,
    time_ns: u64,
    times: Option<(u64, u64)>,
    messages: u64,
    payload_bytes: u64,
    last_index: u64,
    since_index: u64,
    /// Entries since the last index frame.
    fresh: Vec<IndexEntry>,
    entries: Vec<IndexEntry>,
    /// `entries` has only every `stride`-th entry. The stride is doubled when there are too many entries.
    stride: u64,
    counted: u64,
    /// Offset of the last entry that was counted.
    counted_at: u64,
    keys: VecDeque<KeyEntry>,
    controls: VecDeque<ControlEntry>,
    keys_left_out: bool,
    controls_left_out: bool,
    holes: Vec<Loss>,
}

impl Composer {
    /// Begins a file with `header`, and returns its first page.
    ///
    /// # Errors
    /// The errors of [`FileHeader::encode`].
    pub fn begin(header: &FileHeader) -> Result<(Self, Box<[u8]>), FormatError> {
        let page = header.encode()?;
        Ok((Self::resume(header, FileHeader::crc_of(&page)), page))
    }

    /// Begins after the first page of an existing file. `chain` is the result of [`FileHeader::crc_of`] for that page.
    pub fn resume(header: &FileHeader, chain: u32) -> Self {
        Self {
            salt: header.salt,
            offset: FILE_HEADER_BYTES as u64,
            number: 0,
            chain,
            first: header.sequence,
            due: header.sequence,
            time_ns: 0,
            times: None,
            messages: 0,
            payload_bytes: 0,
            last_index: 0,
            since_index: 0,
            fresh: Vec::new(),
            entries: Vec::new(),
            stride: 1,
            counted: 0,
            counted_at: 0,
            keys: VecDeque::new(),
            controls: VecDeque::new(),
            keys_left_out: false,
            controls_left_out: false,
            holes: Vec::new(),
        }
    }

    /// Byte offset of the next frame.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The sequence due at the next frame.
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// The salt of the file, a random number.
    pub const fn salt(&self) -> u64 {
        self.salt
    }

    /// Chain value of the last frame.
    pub const fn chain(&self) -> u32 {
        self.chain
    }

    /// Number of frames so far.
    pub const fn frames(&self) -> u32 {
        self.number
    }

    /// Gives the data frame `draft` an offset and a header. The header states that all sequences up to `durable` are durable now.
    pub fn place(&mut self, draft: &FrameDraft, durable: u64) -> FrameHeader {
        debug_assert_eq!(draft.sequence, self.due, "frames of one file follow each other");
        let header = FrameHeader {
            salt: self.salt,
            length: draft.length,
            body_crc: draft.body_crc,
            sequence: draft.sequence,
            messages: draft.messages,
            chain: self.chain,
            time_ns: draft.time_ns.max(self.time_ns),
            durable: durable.min(draft.sequence - 1),
            number: self.number,
            kind: draft.kind,
            codec: draft.codec,
            flags: draft.flags,
        };
        self.found(&header, draft);
        header
    }

    /// Adds a frame that the file already has at [`offset`](Self::offset). `draft` has the information from the frame's records. If there
    /// was a hole before the frame, recovery must call [`skip`](Self::skip) first.
    pub fn found(&mut self, header: &FrameHeader, draft: &FrameDraft) {
        let offset = self.offset;
        if header.kind == FrameKind::Data {
            self.times = Some((self.times.map_or(header.time_ns, |times| times.0), header.time_ns));
            self.enter(IndexEntry { sequence: header.sequence, offset, time_ns: header.time_ns });
            for &sequence in &draft.keys {
                self.keys_left_out |= keep(&mut self.keys, KeyEntry { sequence, offset });
            }
            for &(sequence, kind) in &draft.controls {
                self.controls_left_out |= keep(&mut self.controls, ControlEntry { sequence, offset, kind });
            }
            self.messages += u64::from(header.messages);
            self.payload_bytes += draft.payload_bytes;
            self.due = draft.next;
        }
        self.pass(header);
    }

    /// Moves past the frame at [`offset`](Self::offset).
    fn pass(&mut self, header: &FrameHeader) {
        let size = header.frame_bytes() as u64;
        self.since_index += size;
        if header.kind == FrameKind::Index {
            self.last_index = self.offset;
            self.since_index = 0;
            self.fresh.clear();
        }
        self.time_ns = header.time_ns;
        self.offset += size;
        self.number = header.number + 1;
        self.chain = header.crc();
    }

    /// Continues at `offset`, after a hole in the file. `missing` has the sequences of the messages that were in the hole.
    pub fn skip(&mut self, offset: u64, missing: Option<Loss>) {
        self.offset = offset;
        if let Some(loss) = missing {
            self.due = loss.to + 1;
            if self.holes.len() < MAX_ENTRIES {
                self.holes.push(loss);
            }
        }
    }

    /// Sets the cause of each hole in the file: damaged, if the hole begins at or below the sequence `durable`, and otherwise torn by a
    /// crash. All sequences up to `durable` were durable.
    pub fn judge_holes(&mut self, durable: u64) {
        for hole in &mut self.holes {
            hole.cause = if durable >= hole.from { Cause::Damaged } else { Cause::Torn };
        }
    }

    fn enter(&mut self, entry: IndexEntry) {
        if self.fresh.last().is_none_or(|last| entry.offset >= last.offset + ENTRY_EVERY) {
            self.fresh.push(entry);
        }
        if self.counted > 0 && entry.offset < self.counted_at + ENTRY_EVERY {
            return;
        }
        self.counted_at = entry.offset;
        if self.counted.is_multiple_of(self.stride) {
            if self.entries.len() == MAX_ENTRIES {
                let mut at = 0;
                self.entries.retain(|_| {
                    at += 1;
                    at % 2 == 1
                });
                self.stride *= 2;
            }
            if self.counted.is_multiple_of(self.stride) {
                self.entries.push(entry);
            }
        }
        self.counted += 1;
    }

    /// Whether the caller must call [`index`](Self::index) before the next data frame.
    pub const fn index_is_due(&self) -> bool {
        self.since_index >= INDEX_EVERY
    }

    /// Makes an index frame with the offsets of the frames since the last index frame.
    pub fn index(&mut self, durable: u64) -> Vec<u8> {
        let index = Index { previous: self.last_index, entries: std::mem::take(&mut self.fresh) };
        self.bookkeeping(FrameKind::Index, &index.encode(), durable)
    }

    /// Makes the end of the file: footer, zeros and trailer.
    pub fn seal(&mut self, durable: u64) -> Vec<u8> {
        self.end(durable, false)
    }

    /// Makes the end of the file as [`seal`](Self::seal) does, and marks the footer as made by recovery. Recovery calls this if the
    /// recorder's footer is lost or was never written.
    pub fn seal_mended(&mut self, durable: u64) -> Vec<u8> {
        self.end(durable, true)
    }

    fn end(&mut self, durable: u64, is_mended: bool) -> Vec<u8> {
        let footer = Footer {
            messages: self.messages,
            payload_bytes: self.payload_bytes,
            last_index: self.last_index,
            keys_left_out: self.keys_left_out,
            controls_left_out: self.controls_left_out,
            is_mended,
            entries: self.entries.clone(),
            keys: self.keys.iter().copied().collect(),
            controls: self.controls.iter().copied().collect(),
            holes: self.holes.clone(),
        };
        let place = self.offset;
        let mut bytes = self.bookkeeping(FrameKind::Footer, &footer.encode(), durable);
        let end = (self.offset + TRAILER_BYTES as u64).next_multiple_of(PAGE as u64);
        bytes.resize((end - place) as usize - TRAILER_BYTES, 0);
        let (least_ns, greatest_ns) = self.times.unwrap_or_default();
        let trailer = Trailer {
            footer: place,
            first: self.first,
            next: self.due,
            messages: self.messages,
            least_ns,
            greatest_ns,
            frames: self.number,
            chain: self.chain,
        };
        bytes.extend_from_slice(&trailer.encode(self.salt));
        self.offset = end;
        bytes
    }

    /// Makes a complete frame without records: an index or a footer.
    fn bookkeeping(&mut self, kind: FrameKind, body: &[u8], durable: u64) -> Vec<u8> {
        let header = FrameHeader {
            salt: self.salt,
            length: body.len() as u32,
            body_crc: crc32c::crc32c(body),
            sequence: self.due,
            messages: 0,
            chain: self.chain,
            time_ns: self.time_ns,
            durable: durable.min(self.due - 1),
            number: self.number,
            kind,
            codec: Codec::Raw,
            flags: FrameFlags::default(),
        };
        let mut bytes = Vec::with_capacity(header.frame_bytes());
        bytes.extend_from_slice(&header.encode());
        bytes.extend_from_slice(body);
        bytes.resize(header.frame_bytes(), 0);
        self.pass(&header);
        bytes
    }
}

/// Appends to a list of at most [`MAX_ENTRIES`]. If the list was full, removes its first entry. Returns whether an entry was removed.
fn keep<T>(list: &mut VecDeque<T>, entry: T) -> bool {
    let is_full = list.len() == MAX_ENTRIES;
    if is_full {
        list.pop_front();
    }
    list.push_back(entry);
    is_full
}
