//! Finds the whole frames of a file that was not sealed.

use super::Volume;
use super::mutant::{Mutant, is};
use shmcast::journal::format::{
    Cause, Codec, Composer, ControlRecord, FILE_HEADER_BYTES, FRAME_ALIGN, FRAME_HEADER_BYTES, FileHeader,
    Footer, FrameDraft, FrameHeader, FrameKind, JournalControl, Loss, RecordBody, Records,
};
use std::io;

const CHUNK: usize = 64 << 10;

/// The result of a scan of a file's frames.
#[derive(Debug)]
pub struct Scan {
    /// The state of the file after its last whole frame. With this state, the file can be sealed.
    pub composer: Composer,
    /// The number of whole frames.
    pub frames: u64,
    /// The greatest sequence that a frame reports as durable.
    pub durable: u64,
    /// The number of used bytes after the last whole frame.
    pub behind: u64,
    /// The header of the footer that follows the last whole frame; `None` if there is no footer. The next file refers to this header.
    pub footer: Option<FrameHeader>,
    /// The reserve, the epoch and the clean end that the records of this file state.
    pub heard: Heard,
}

/// The state that records report: the reserve, the clean end and the epoch. Recovery needs this state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heard {
    /// The greatest reserve; 0 for none.
    pub reserve: u64,
    /// If the last record is a clean record, which says that nothing follows: the next sequence.
    pub clean: Option<u64>,
    /// The greatest epoch; 0 for none.
    pub epoch: u64,
}

/// The result of looking for a frame at an offset.
pub(super) enum Found {
    Nothing,
    /// A header whose body is not whole.
    Header(FrameHeader),
    Whole(FrameHeader, Box<FrameContents>),
}

/// The contents of a frame's records.
pub(super) struct FrameContents {
    draft: FrameDraft,
    pub(super) heard: Heard,
}

/// Finds frames in a file.
pub(super) struct Scanner<'a, V> {
    volume: &'a mut V,
    name: &'a str,
    size: u64,
    salt: u64,
    last_used: u64,
}

impl Scan {
    /// Scans file `name` of `size` bytes, whose header is `header`.
    ///
    /// # Errors
    /// The error of a read.
    pub fn run(volume: &mut impl Volume, name: &str, header: &FileHeader, size: u64) -> io::Result<Self> {
        let mut page = [0; FILE_HEADER_BYTES];
        volume.read(name, 0, &mut page)?;
        let mut composer = Composer::resume(header, FileHeader::crc_of(&page));
        let mut scanner = Scanner::new(volume, name, size, header.salt);
        let mut heard = Heard::default();
        let mut frames = 0;
        let mut durable = 0;
        let mut footer = None;
        loop {
            let found = scanner.at(composer.offset())?;
            if let Found::Header(head) | Found::Whole(head, _) = &found
                && head.kind == FrameKind::Footer
                && follows(head, &composer)
            {
                durable = durable.max(head.durable);
                footer = Some(*head);
                break;
            }
            let (head, said) = match found {
                Found::Whole(head, said) if follows(&head, &composer) => (head, said),
                other => {
                    let Some((offset, head, said)) = scanner.beyond(&composer, &other)? else { break };
                    let loss = Loss { from: composer.due(), to: head.sequence - 1, cause: Cause::Torn };
                    let missing = (loss.to >= loss.from).then_some(loss);
                    // If frames are missing before the footer, recovery rebuilds the footer directly after the last whole frame.
                    let is_footer = head.kind == FrameKind::Footer;
                    composer.skip(if is_footer { composer.offset() } else { offset }, missing);
                    (head, said)
                }
            };
            durable = durable.max(head.durable);
            if head.kind == FrameKind::Footer {
                break;
            }
            composer.found(&head, &said.draft);
            frames += 1;
            if head.kind == FrameKind::Data {
                heard.add(&said.heard);
            }
        }
        composer.judge_holes(durable);
        let behind = scanner.last_used.saturating_sub(composer.offset());
        Ok(Self { composer, frames, durable, behind, footer, heard })
    }
}

fn follows(head: &FrameHeader, composer: &Composer) -> bool {
    head.number == composer.frames() && head.chain == composer.chain() && head.sequence == composer.due()
}

impl<'a, V: Volume> Scanner<'a, V> {
    /// Makes a scanner of file `name` with `size` bytes, for frames with `salt`.
    pub(super) const fn new(volume: &'a mut V, name: &'a str, size: u64, salt: u64) -> Self {
        Self { volume, name, size, salt, last_used: 0 }
    }

    fn header(&mut self, offset: u64) -> io::Result<Option<FrameHeader>> {
        if offset + FRAME_HEADER_BYTES as u64 > self.size {
            return Ok(None);
        }
        let mut bytes = [0; FRAME_HEADER_BYTES];
        self.volume.read(self.name, offset, &mut bytes)?;
        Ok(decode(&bytes, self.salt))
    }

    /// Reads the body of the frame at `offset` with the header `head`. Returns `None` if the body is damaged.
    fn body(&mut self, offset: u64, head: &FrameHeader) -> io::Result<Option<Vec<u8>>> {
        if offset + head.frame_bytes() as u64 > self.size {
            return Ok(None);
        }
        let mut body = vec![0; head.length as usize];
        self.volume.read(self.name, offset + FRAME_HEADER_BYTES as u64, &mut body)?;
        Ok(head.check_body(&body).is_ok().then_some(body))
    }

    /// Searches for a frame at `offset`.
    pub(super) fn at(&mut self, offset: u64) -> io::Result<Found> {
        let Some(head) = self.header(offset)? else { return Ok(Found::Nothing) };
        let body = self.body(offset, &head)?;
        let said = body.and_then(|body| say(&head, &body));
        Ok(said.map_or(Found::Header(head), |said| Found::Whole(head, Box::new(said))))
    }

    /// Reads the footer at `offset`, if it is whole.
    pub(super) fn footer(&mut self, offset: u64) -> io::Result<Option<Footer>> {
        let Some(head) = self.header(offset)?.filter(|head| head.kind == FrameKind::Footer) else {
            return Ok(None);
        };
        let body = self.body(offset, &head)?;
        Ok(body.and_then(|body| Footer::decode(&body).ok()))
    }

    /// Finds the next whole frame after an offset at which no whole frame begins. Also updates `last_used`, the end of the file's used
    /// part.
    fn beyond(
        &mut self,
        composer: &Composer,
        bad: &Found,
    ) -> io::Result<Option<(u64, FrameHeader, Box<FrameContents>)>> {
        let start = composer.offset();
        // If the header is whole, the search skips the payload, because a payload can look like a frame.
        let mut offset = match bad {
            Found::Header(head) | Found::Whole(head, _) => start + head.frame_bytes() as u64,
            Found::Nothing => start + FRAME_ALIGN as u64,
        };
        self.note_use(start, offset.min(self.size))?;
        let mut chunk = vec![0; CHUNK];
        while offset < self.size {
            let length = (self.size - offset).min(CHUNK as u64) as usize;
            self.volume.read(self.name, offset, &mut chunk[..length])?;
            for (at, block) in chunk[..length].chunks(FRAME_ALIGN).enumerate() {
                if block.iter().all(|&byte| byte == 0) {
                    continue;
                }
                let place = offset + (at * FRAME_ALIGN) as u64;
                self.last_used = self.last_used.max(place + block.len() as u64);
                if block.len() == FRAME_ALIGN
                    && let Some(head) = decode(block, self.salt)
                    && head.number > composer.frames()
                    && head.sequence >= composer.due()
                    && let Some(found) = self.accept(place)?
                {
                    return Ok(Some(found));
                }
            }
            offset += length as u64;
        }
        Ok(None)
    }

    fn note_use(&mut self, from: u64, to: u64) -> io::Result<()> {
        let mut bytes = vec![0; (to - from) as usize];
        self.volume.read(self.name, from, &mut bytes)?;
        if let Some(last) = bytes.iter().rposition(|&byte| byte != 0) {
            self.last_used = self.last_used.max(from + last as u64 + 1);
        }
        Ok(())
    }

    /// Returns the frame at `place`. Returns `None` if the frame is not whole, or if the next frame's header is whole but its chain value
    /// does not match this frame.
    fn accept(&mut self, place: u64) -> io::Result<Option<(u64, FrameHeader, Box<FrameContents>)>> {
        if is(Mutant::TruncateAtFirstBad) {
            return Ok(None);
        }
        let Found::Whole(head, said) = self.at(place)? else { return Ok(None) };
        let behind = self.header(place + head.frame_bytes() as u64)?;
        if behind.is_some_and(|behind| behind.chain != head.crc()) && !is(Mutant::NoChain) {
            return Ok(None);
        }
        Ok(Some((place, head, said)))
    }
}

/// Returns the offset after the last nonzero byte of a file; 0 if all bytes are zeros.
pub(super) fn used(volume: &mut impl Volume, name: &str, size: u64) -> io::Result<u64> {
    let mut chunk = vec![0; CHUNK];
    let mut end = size;
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let piece = &mut chunk[..(end - start) as usize];
        volume.read(name, start, piece)?;
        if let Some(last) = piece.iter().rposition(|&byte| byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

fn decode(bytes: &[u8], salt: u64) -> Option<FrameHeader> {
    let salt = if is(Mutant::NoSalt) { u64::from_le_bytes(bytes[8..16].try_into().ok()?) } else { salt };
    FrameHeader::decode(bytes, salt).ok()
}

/// Reads the records of a frame. Returns `None` if the records are invalid or contradict the frame's header.
fn say(head: &FrameHeader, body: &[u8]) -> Option<FrameContents> {
    let draft = FrameDraft {
        kind: head.kind,
        codec: head.codec,
        flags: head.flags,
        sequence: head.sequence,
        next: head.sequence,
        messages: head.messages,
        payload_bytes: 0,
        time_ns: head.time_ns,
        length: head.length,
        body_crc: head.body_crc,
        keys: Vec::new(),
        controls: Vec::new(),
    };
    let mut said = FrameContents { draft, heard: Heard::default() };
    if head.kind != FrameKind::Data || head.codec != Codec::Raw {
        return Some(said);
    }
    let mut records = Records::new(head, body);
    for record in records.by_ref() {
        let record = record.ok()?;
        match record.body {
            RecordBody::Message { payload, key, .. } => {
                said.draft.payload_bytes += payload.len() as u64;
                said.heard.clean = None;
                if key {
                    said.draft.keys.push(record.sequence);
                }
            }
            RecordBody::Control(JournalControl::Clock { .. }) => {}
            RecordBody::Control(control) => {
                said.draft.controls.push((record.sequence, control.kind()));
                said.heard.note(control);
            }
        }
    }
    said.draft.next = records.due();
    Some(said)
}

impl Heard {
    /// Adds the contents of a later frame.
    pub(super) fn add(&mut self, later: &Self) {
        self.reserve = self.reserve.max(later.reserve);
        self.clean = later.clean;
        self.epoch = self.epoch.max(later.epoch);
    }

    /// Adds the contents of a later record.
    fn note(&mut self, control: JournalControl) {
        self.clean = None;
        match control {
            JournalControl::Reserve { sequence } => self.reserve = self.reserve.max(sequence),
            JournalControl::Clean { next } => self.clean = Some(next),
            JournalControl::Source { epoch, .. } | JournalControl::Ring(ControlRecord::Epoch { epoch }) => {
                self.epoch = self.epoch.max(epoch);
            }
            _ => {}
        }
    }
}

const _: () = assert!(CHUNK.is_multiple_of(FRAME_ALIGN) && FILE_HEADER_BYTES.is_multiple_of(FRAME_ALIGN));
