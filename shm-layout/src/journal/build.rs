//! Packs records into the body of a data frame.

use super::control::JournalControl;
use super::frame::{Codec, FrameFlags, FrameKind};
use super::{FRAME_HEADER_BYTES, MAX_BODY, aligned};
use crate::layout::geometry::RECORD_HEADER;
use crate::layout::record::{Commit, Flags, Meta};

/// The description of a closed frame. It lacks the frame's offset and number, which only a file gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameDraft {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The codec of the frame's body.
    pub codec: Codec,
    /// Hints about the frame's records.
    pub flags: FrameFlags,
    /// The sequence of the first record. If the first record is a control record, this is the sequence of the next message.
    pub sequence: u64,
    /// The sequence due after the frame's last record.
    pub next: u64,
    /// Messages in the frame.
    pub messages: u32,
    /// Bytes of the messages' payloads.
    pub payload_bytes: u64,
    /// The frame's index time, in nanoseconds since 1970: the wall clock of the first record, or a later time of an earlier record.
    pub time_ns: u64,
    /// Bytes of the frame's body as stored.
    pub length: u32,
    /// CRC-32C of the body as stored.
    pub body_crc: u32,
    /// The sequences of the frame's key messages.
    pub keys: Vec<u64>,
    /// The control records except clock records. Each entry has the sequence due at the record, and the record's kind.
    pub controls: Vec<(u64, u64)>,
}

/// A data frame that is being filled. The first 64 bytes of its buffer are left for the header.
#[derive(Debug)]
pub struct FrameBuilder {
    bytes: Vec<u8>,
    draft: FrameDraft,
}

impl FrameBuilder {
    /// Makes an empty frame whose first message will have the sequence `sequence`. Reuses the memory of `buffer` and drops its contents.
    pub fn new(mut buffer: Vec<u8>, sequence: u64, time_ns: u64) -> Self {
        buffer.clear();
        buffer.resize(FRAME_HEADER_BYTES, 0);
        let draft = FrameDraft {
            kind: FrameKind::Data,
            codec: Codec::Raw,
            flags: FrameFlags::default(),
            sequence,
            next: sequence,
            messages: 0,
            payload_bytes: 0,
            time_ns,
            length: 0,
            body_crc: 0,
            keys: Vec::new(),
            controls: Vec::new(),
        };
        Self { bytes: buffer, draft }
    }

    /// The sequence due at the next record.
    pub const fn due(&self) -> u64 {
        self.draft.next
    }

    /// Whether there is no record yet.
    pub const fn is_empty(&self) -> bool {
        self.bytes.len() == FRAME_HEADER_BYTES
    }

    /// Whether the frame has at most `target` bytes with another record of `payload` bytes. The first record always fits.
    pub const fn has_room(&self, payload: usize, target: usize) -> bool {
        let size = self.bytes.len() + RECORD_HEADER as usize + payload.next_multiple_of(8);
        self.is_empty() || (size <= target && size - FRAME_HEADER_BYTES <= MAX_BODY)
    }

    /// Adds the next message: its sequence is [`due`](Self::due).
    #[inline]
    pub fn message(&mut self, payload: &[u8], tag: u16, key: bool, time: u64) {
        let sequence = self.draft.next;
        let flags = if key { Flags::KEY } else { Flags::VALID };
        if key {
            self.draft.keys.push(sequence);
            self.draft.flags = self.draft.flags.and(FrameFlags::KEY);
        }
        self.record(Commit::new(sequence, flags, payload.len() as u64), Meta::new(tag, time), payload);
        self.draft.messages += 1;
        self.draft.payload_bytes += payload.len() as u64;
        self.draft.next += 1;
    }

    /// Adds a control record. If it is a gap or a loss, the missing sequences begin with the next sequence, and the frame continues with
    /// the sequence after them.
    pub fn control(&mut self, control: JournalControl, time: u64) {
        let sequence = self.draft.next;
        debug_assert!(control.skipped().is_none_or(|(from, _)| from == sequence));
        let (words, count) = control.words();
        let mut payload = [0; JournalControl::MAX_BYTES];
        for (bytes, word) in payload.chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let payload = &payload[..count * 8];
        self.record(Commit::new(sequence, Flags::CONTROL, payload.len() as u64), Meta::new(0, time), payload);
        self.draft.flags = self.draft.flags.and(FrameFlags::CONTROL);
        if !matches!(control, JournalControl::Clock { .. }) {
            self.draft.controls.push((sequence, control.kind()));
        }
        if let Some((_, next)) = control.skipped() {
            self.draft.next = next;
        }
    }

    #[inline]
    fn record(&mut self, commit: Commit, meta: Meta, payload: &[u8]) {
        const ZEROS: [u8; 8] = [0; 8];
        self.bytes.extend_from_slice(&commit.word().to_le_bytes());
        self.bytes.extend_from_slice(&meta.word().to_le_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes.extend_from_slice(&ZEROS[..payload.len().wrapping_neg() % 8]);
    }

    /// Closes the frame and computes its checksum. Returns the draft of the header, and the frame's bytes: room for the header, then the
    /// body, then zeros up to the next frame.
    pub fn close(mut self) -> (FrameDraft, Vec<u8>) {
        let body = &self.bytes[FRAME_HEADER_BYTES..];
        self.draft.length = body.len() as u32;
        self.draft.body_crc = crc32c::crc32c(body);
        self.bytes.resize(aligned(self.bytes.len()), 0);
        (self.draft, self.bytes)
    }
}
