//! The frames that are known in one file of a journal. With their offsets, a second seek into the file reads less.

use super::cursor::Cursor;
use shmcast_layout::journal::{FILE_HEADER_BYTES, FrameKind, IndexEntry};
use std::io;

/// The least distance between two remembered frames, in a file that the recorder has not finished.
const APART: u64 = 1 << 20;

/// The known frames of one file, for the next seek into it.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The number of the file.
    pub(super) file: u64,
    /// The sequence due at the file's first frame.
    pub(super) first: u64,
    /// Some of the file's frames, in order. If `is_whole`, these frames are the entries of the file's footer.
    frames: Vec<IndexEntry>,
    /// Whether `frames` has the entries of the footer.
    is_whole: bool,
    /// The highest first sequence of the data frames that were read. All lower sequences are in this file or in an earlier file.
    pub(super) seen: u64,
}

impl Known {
    /// Makes a value without known frames.
    pub(super) fn of(file: u64, first: u64) -> Self {
        Self { file, first, ..Self::default() }
    }

    /// The offset of the first frame, and the sequence due there.
    pub(super) fn start(&self) -> (u64, u64) {
        (FILE_HEADER_BYTES as u64, self.first)
    }

    /// Finds the last frame for which `is_before` is true. Returns `None` if there is no such frame, so that the caller begins
    /// at the file's start. The cursor moves.
    pub(super) fn place(
        &mut self,
        cursor: &mut Cursor,
        hint: Option<u64>,
        is_before: impl Fn(&IndexEntry) -> bool,
    ) -> io::Result<Option<IndexEntry>> {
        if let Some(trailer) = cursor.trailer().copied()
            && !self.is_whole
            && let Some(footer) = cursor.footer()?
        {
            self.frames = footer.entries;
            self.frames.retain(|entry| entry.offset < trailer.footer);
            self.is_whole = true;
        }
        let before = self.frames.partition_point(&is_before);
        let known = before.checked_sub(1).map(|at| self.frames[at]);
        if self.is_whole {
            return Ok(known);
        }
        cursor.jump(known.map_or(hint.unwrap_or(self.start().0), |entry| entry.offset));
        let mut found = known;
        while let Some(header) = cursor.skim()? {
            let entry =
                IndexEntry { sequence: header.sequence, offset: cursor.at(), time_ns: header.time_ns };
            if header.kind == FrameKind::Data {
                self.seen = self.seen.max(entry.sequence);
                if !is_before(&entry) {
                    break;
                }
                let is_far = |last: &IndexEntry| entry.offset >= last.offset + APART;
                if self.frames.last().is_none_or(is_far) {
                    self.frames.push(entry);
                }
                found = Some(entry);
            }
        }
        Ok(found)
    }
}
