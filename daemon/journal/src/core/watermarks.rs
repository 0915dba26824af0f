//! The figures that a writer reports.

use super::writer::Writer;
use super::{Lane, State};
use std::io;

impl Writer {
    /// Whether there is room for more frames in memory.
    pub const fn has_room(&self) -> bool {
        self.buffered < self.settings.buffer
    }

    /// Bytes of frames in memory.
    pub const fn buffered(&self) -> usize {
        self.buffered
    }

    /// Whether frames wait for a write that is under way.
    pub fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether no frame waits to be written, so that the next one may be small.
    pub fn is_idle(&self) -> bool {
        !self.is_behind() && self.busy[Lane::Write as usize].is_none()
    }

    /// The last sequence that is in a file.
    pub const fn written(&self) -> u64 {
        self.written - 1
    }

    /// Everything up to this sequence is safe from a power cut, or the journal safely records it as lost.
    pub const fn durable(&self) -> u64 {
        self.durable - 1
    }

    /// The greatest reserve that is safe from a power cut; 0 for none.
    pub const fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Bytes written to files.
    pub const fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// Number of the newest file. If no file has been started yet, the number that the first one will get.
    pub const fn active(&self) -> u64 {
        self.header.file
    }

    /// Takes the oldest error that has not been taken yet, and what failed.
    pub fn take_error(&mut self) -> Option<(&'static str, io::Error)> {
        self.errors.pop_front()
    }

    /// Returns the state of the writer.
    pub fn state(&self) -> State {
        let is_done =
            self.waiting.is_empty() && self.files.is_empty() && self.busy.iter().all(Option::is_none);
        if self.is_closing && is_done && self.help.is_empty() {
            State::Closed
        } else if self.retry_at.is_some() && self.files.back().is_none_or(|file| file.is_sealed) {
            State::Failed
        } else {
            State::Recording
        }
    }
}
