//! Walks through the frames of one file.

use super::window::{AHEAD, Window};
use shmcast_layout::journal::{
    FILE_HEADER_BYTES, FRAME_ALIGN, FRAME_HEADER_BYTES, FRAME_MAGIC, FileHeader, Footer, FormatError,
    FrameHeader, FrameKind, MAX_BODY, PAGE, TRAILER_BYTES, Trailer,
};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time for which a bad frame in front of whole frames counts as a frame that a recorder is still writing.
const UNSURE: Duration = Duration::from_millis(100);
/// After a bad frame, a growing file is searched for the next frame over this distance, in bytes. A recorder leaves holes of at most a few
/// frames. A longer search would read the empty space that the recorder has prepared for later frames.
const HOLE: u64 = (2 * AHEAD + MAX_BODY) as u64 / 8;

/// The result of reading the next frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// A whole frame. [`Cursor::body`] returns its body.
    Frame(FrameHeader),
    /// Nothing more has been written.
    End,
    /// The cursor has passed the last frame of a finished file.
    Sealed,
}

/// Bytes that are no frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    /// Offset at which a frame was due.
    pub(super) offset: u64,
    /// Number of bytes up to the next whole frame. If there is no such frame, the number of bytes up to the footer.
    pub(super) bytes: u64,
    /// The reason why these bytes are no frame.
    pub(super) why: FormatError,
}

/// Walks through the frames of one file. Before it returns a frame, it checks the frame's magic number, checksums, salt, number and chain.
#[derive(Debug)]
pub(super) struct Cursor {
    window: Window,
    salt: u64,
    /// The offset of the next frame.
    offset: u64,
    /// The offset of the frame that was returned last.
    at: u64,
    /// The number and the chain (the checksum of the previous frame's header) of the next frame; `None` after a jump.
    expected: Option<(u32, u32)>,
    /// The number and the chain of the first frame.
    first: (u32, u32),
    trailer: Option<Trailer>,
    /// Whether a recorder might be writing to the file.
    is_growing: bool,
    /// The offset of a bad frame that a recorder might still be writing, and the time at which the frame was first found.
    unsure: Option<(u64, Instant)>,
    fault: Option<Fault>,
}

/// The result of reading at an offset.
enum Found {
    Frame(FrameHeader),
    /// No valid frame is at the offset. The second field is the offset of the frame's end if only its body is bad, and otherwise `None`.
    Bad(FormatError, Option<u64>),
}

impl Cursor {
    pub(super) fn new(file: Arc<File>, chain: u32, header: &FileHeader, trailer: Option<Trailer>) -> Self {
        Self {
            window: Window::of(file),
            salt: header.salt,
            offset: FILE_HEADER_BYTES as u64,
            at: 0,
            expected: Some((0, chain)),
            first: (0, chain),
            trailer,
            is_growing: false,
            unsure: None,
            fault: None,
        }
    }

    /// Sets whether the file can still grow, because a recorder might be writing to it. In a file that can grow, a missing frame at the end
    /// is not an error: the frame might still be written. When a file stops growing, a bad frame is read from the disk once more.
    pub(super) fn set_growing(&mut self, is_growing: bool) {
        if self.is_growing && !is_growing {
            self.unsure = None;
        }
        self.is_growing = is_growing;
    }

    #[cfg(test)]
    pub(super) fn is_unsure(&self) -> bool {
        self.unsure.is_some()
    }

    pub(super) fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// The offset of the next frame.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The offset of the last frame.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// Returns a function that reads the next bytes into the kernel's page cache. Returns `None` if they are in memory already.
    #[cfg(feature = "tokio")]
    pub(super) fn read_ahead(&self) -> Option<impl FnOnce() + Send + 'static> {
        self.window.read_ahead(self.offset, self.is_growing)
    }

    /// Continues at a frame whose offset is in an index.
    pub(super) fn jump(&mut self, offset: u64) {
        let start = FILE_HEADER_BYTES as u64;
        if offset == start {
            (self.offset, self.expected) = (offset, Some(self.first));
        } else if offset > start && offset.is_multiple_of(FRAME_ALIGN as u64) && offset != self.offset {
            (self.offset, self.expected) = (offset, None);
        }
    }

    /// Returns the damage that the cursor has skipped since the last call of this function.
    pub(super) fn take_fault(&mut self) -> Option<Fault> {
        self.fault.take()
    }

    /// The body of the frame that was returned last.
    pub(super) fn body(&self, header: &FrameHeader) -> &[u8] {
        self.window.peek(self.at + FRAME_HEADER_BYTES as u64, header.length as usize)
    }

    /// The bytes between the last frame's body and the next frame. After the footer, they end at the trailer.
    pub(super) fn padding(&mut self, header: &FrameHeader) -> io::Result<&[u8]> {
        let from = self.at + (FRAME_HEADER_BYTES + header.length as usize) as u64;
        let end = match (header.kind, self.trailer) {
            (FrameKind::Footer, Some(_)) => self.window.file_bytes()?.saturating_sub(TRAILER_BYTES as u64),
            _ => self.offset,
        };
        // The body stays in memory.
        let length = header.length as usize + end.saturating_sub(from).min(PAGE as u64) as usize;
        self.window.get(self.at + FRAME_HEADER_BYTES as u64, length)?;
        Ok(self.window.peek(from, length - header.length as usize))
    }

    /// Reads the whole frame at `offset`, if it is of this kind.
    pub(super) fn read_at(
        &mut self,
        offset: u64,
        kind: FrameKind,
    ) -> io::Result<Option<(FrameHeader, &[u8])>> {
        match self.look(offset, false)? {
            Found::Frame(header) if header.kind == kind => {
                let body = self.window.peek(offset + FRAME_HEADER_BYTES as u64, header.length as usize);
                Ok(Some((header, body)))
            }
            _ => Ok(None),
        }
    }

    /// Reads the footer of a finished file, if the footer is whole. The cursor does not move.
    pub(super) fn footer(&mut self) -> io::Result<Option<Footer>> {
        let Some(trailer) = self.trailer else { return Ok(None) };
        let frame = self.read_at(trailer.footer, FrameKind::Footer)?;
        Ok(frame.and_then(|(_, body)| Footer::decode(body).ok()))
    }

    /// Returns the header of the next frame, and moves past the frame without checking its body. This call is for searches. A caller that
    /// wants the records must jump back.
    pub(super) fn skim(&mut self) -> io::Result<Option<FrameHeader>> {
        let bytes = self.window.get(self.offset, FRAME_HEADER_BYTES)?;
        let Ok(header) = FrameHeader::decode(bytes, self.salt) else { return Ok(None) };
        self.at = self.offset;
        self.offset += header.frame_bytes() as u64;
        self.expected = Some((header.number.wrapping_add(1), header.crc()));
        Ok(Some(header))
    }

    /// Returns the next frame of any kind except pads. `due` is the sequence that must come next. A data frame with an earlier sequence
    /// counts as bad.
    pub(super) fn next(&mut self, due: u64) -> io::Result<Step> {
        loop {
            if self.trailer.is_some_and(|trailer| self.offset > trailer.footer) {
                return Ok(Step::Sealed);
            }
            let found = match self.look_due(due)? {
                Found::Bad(..) if self.is_nothing_yet()? => return Ok(Step::End),
                Found::Bad(..) => self.look_twice(due)?,
                found => found,
            };
            match found {
                Found::Frame(header) => {
                    self.pass(self.offset, &header);
                    if header.kind != FrameKind::Pad {
                        return Ok(Step::Frame(header));
                    }
                }
                Found::Bad(why, behind) => {
                    self.has_waited(self.offset);
                    if !self.search(due, why, behind)? {
                        // If the frame stays bad, the cursor searches again after another [`UNSURE`].
                        self.unsure = self.unsure.filter(|(_, since)| since.elapsed() <= UNSURE);
                        return Ok(if self.trailer.is_some() { Step::Sealed } else { Step::End });
                    }
                }
            }
        }
    }

    fn pass(&mut self, at: u64, header: &FrameHeader) {
        self.at = at;
        self.offset = at + header.frame_bytes() as u64;
        self.expected = Some((header.number.wrapping_add(1), header.crc()));
        self.unsure = None;
    }

    /// Whether a growing file ends here for now: no frame begins at this offset yet. Once the cursor has stood at the same offset for
    /// [`UNSURE`], returns false, so that the caller searches for frames after a hole. Costs one small read.
    fn is_nothing_yet(&mut self) -> io::Result<bool> {
        if self.trailer.is_some() || !self.is_growing {
            return Ok(false);
        }
        let is_written = self.window.probe::<4>(self.offset)? == Some(FRAME_MAGIC);
        Ok(!is_written && !self.has_waited(self.offset))
    }

    /// Reads the next frame again, because the bytes in memory can be older than the file. If the file is not finished, also reads once
    /// past the kernel's page cache.
    fn look_twice(&mut self, due: u64) -> io::Result<Found> {
        if self.trailer.is_some() {
            return self.look_due(due);
        }
        self.window.get_anew(self.offset, FRAME_HEADER_BYTES, false)?;
        match self.look_due(due)? {
            Found::Bad(_, Some(_)) if self.unsure.is_none() => {
                self.window.get_anew(self.offset, AHEAD, true)?;
                self.look_due(due)
            }
            found => Ok(found),
        }
    }

    /// Returns the frame at the current offset, if it has the expected number, chain and sequence.
    fn look_due(&mut self, due: u64) -> io::Result<Found> {
        let found = self.look(self.offset, false)?;
        let Found::Frame(header) = found else { return Ok(found) };
        let wrong = |what| FormatError::Field { part: "frame header", what };
        let why = match self.expected {
            _ if header.sequence < due && header.kind == FrameKind::Data => {
                wrong("a sequence below the one that is due")
            }
            Some((number, _)) if header.number < number => wrong("a number below the one that is due"),
            Some((number, chain)) if header.number == number && header.chain != chain => {
                wrong("it does not chain to the frame before")
            }
            _ => return Ok(found),
        };
        Ok(Found::Bad(why, None))
    }

    /// Returns the frame at `offset`, with any number.
    fn look(&mut self, offset: u64, is_guess: bool) -> io::Result<Found> {
        let salt = self.salt;
        let bytes = self.window.get(offset, FRAME_HEADER_BYTES)?;
        let header = match FrameHeader::decode(bytes, salt) {
            Ok(header) => header,
            Err(why) => return Ok(Found::Bad(why, None)),
        };
        let end = offset + header.frame_bytes() as u64;
        let length = header.length as usize;
        let body = self.window.get(offset + FRAME_HEADER_BYTES as u64, length)?;
        if let Err(why) = header.check_body(body) {
            return Ok(Found::Bad(why, Some(end)));
        }
        if is_guess {
            // A payload can contain the image of a frame. Only a real frame is followed by a frame that chains to it.
            let next = self.window.get(end, FRAME_HEADER_BYTES)?;
            if FrameHeader::decode(next, salt).is_ok_and(|next| next.chain != header.crc()) {
                let what = "the frame behind it does not chain to it";
                return Ok(Found::Bad(FormatError::Field { part: "frame header", what }, None));
            }
        }
        Ok(Found::Frame(header))
    }

    /// Searches for the next whole frame after a bad one, and moves to it. Returns false if there is no such frame. Also returns false as
    /// long as it is possible that a recorder is still writing the bad frame.
    fn search(&mut self, due: u64, why: FormatError, behind: Option<u64>) -> io::Result<bool> {
        let bad = self.offset;
        let mut at = behind.unwrap_or(bad + FRAME_ALIGN as u64);
        let end = match self.trailer {
            Some(trailer) => trailer.footer + FRAME_ALIGN as u64,
            None if self.is_growing => self.window.file_bytes()?.min(at + HOLE),
            None => self.window.file_bytes()?,
        };
        let least = self.expected.map_or(0, |(number, _)| number);
        while let Some(candidate) = self.candidate(at, end)? {
            at = candidate + FRAME_ALIGN as u64;
            let Found::Frame(header) = self.look(candidate, true)? else { continue };
            let is_later = header.number > least || self.expected.is_none();
            if !is_later || header.sequence < due {
                continue;
            }
            let was_bad =
                self.unsure.is_some_and(|(offset, since)| offset == bad && since.elapsed() > UNSURE);
            if self.is_growing && header.durable < due && !was_bad {
                return Ok(false);
            }
            self.fault = Some(Fault { offset: bad, bytes: candidate - bad, why });
            (self.offset, self.expected, self.unsure) = (candidate, None, None);
            return Ok(true);
        }
        if let Some(trailer) = self.trailer {
            self.fault = Some(Fault { offset: bad, bytes: (trailer.footer.max(bad)) - bad, why });
        }
        Ok(false)
    }

    /// Whether this offset has had no whole frame for longer than [`UNSURE`]. Then no recorder is writing a frame there any more.
    fn has_waited(&mut self, bad: u64) -> bool {
        match self.unsure {
            Some((offset, since)) if offset == bad => since.elapsed() > UNSURE,
            _ => {
                self.unsure = Some((bad, Instant::now()));
                false
            }
        }
    }

    /// The next offset below `end` at which a frame can begin.
    fn candidate(&mut self, from: u64, end: u64) -> io::Result<Option<u64>> {
        let mut at = from;
        while at < end {
            let piece = self.window.get(at, FRAME_ALIGN)?;
            if piece.len() < FRAME_HEADER_BYTES {
                return Ok(None);
            }
            // Searches in one step all later bytes that are in memory.
            let rest = self.window.peek(at, usize::MAX);
            let found = rest.chunks_exact(FRAME_ALIGN).position(|place| place[..4] == FRAME_MAGIC);
            if let Some(found) = found {
                let place = at + (found * FRAME_ALIGN) as u64;
                return Ok((place < end).then_some(place));
            }
            at += (rest.len() / FRAME_ALIGN * FRAME_ALIGN) as u64;
        }
        Ok(None)
    }
}
