//! The counts and sequences that a writer reports.

use super::writer::Writer;
use super::{Lane, State};
use std::io;

impl Writer {
    /// Whether there is room for more frames in memory.
    pub(crate) const fn has_room(&self) -> bool {
        self.buffered < self.settings.buffer
    }

    /// Bytes of frames in memory.
    pub(crate) const fn buffered(&self) -> usize {
        self.buffered
    }

    /// Whether frames wait while another write is in progress.
    pub(crate) fn is_behind(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether no frame waits and no write is in progress, so that even a small frame can be written now.
    pub(crate) fn is_idle(&self) -> bool {
        !self.is_behind() && self.busy[Lane::Write as usize].is_none()
    }

    /// The last sequence that is in a file.
    pub const fn written(&self) -> u64 {
        self.written - 1
    }

    /// The highest durable sequence. Every sequence up to this one is in the journal on the disk, as a message or as lost.
    pub(crate) const fn durable(&self) -> u64 {
        self.durable - 1
    }

    /// The greatest durable reserve; 0 if no reserve is durable.
    pub(crate) const fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Bytes written to files.
    pub(crate) const fn bytes_written(&self) -> u64 {
        self.bytes_written
    }

    /// The number of the newest file. If there is no file yet, this is the number that the first file will have.
    pub(crate) const fn active(&self) -> u64 {
        self.header.file
    }

    /// Takes the oldest error, with the name of the failed operation.
    pub(crate) fn take_error(&mut self) -> Option<(&'static str, io::Error)> {
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
