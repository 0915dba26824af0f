//! The counts and sequences that a writer reports, and the code that advances the durable sequence.

use super::writer::Writer;
use super::{Lane, State, SyncPolicy};
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

    /// The number of messages that are in no file. Skipped sequences do not count.
    pub(crate) fn unwritten(&self) -> u64 {
        let waiting = self.waiting.iter().map(|frame| frame.draft.messages);
        let pending =
            self.pending.iter().filter(|frame| frame.next > self.written).map(|frame| frame.messages);
        waiting.chain(pending).map(u64::from).sum::<u64>() + self.forgotten
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
        } else if self.needs_a_file()
            && self.has_failed()
            && self.files.back().is_none_or(|file| file.is_sealed)
        {
            State::Failed
        } else {
            State::Recording
        }
    }

    /// Whether the writer needs an open file, because frames wait or more frames can come.
    pub(super) fn needs_a_file(&self) -> bool {
        !self.is_closing || !self.waiting.is_empty()
    }

    /// Whether the writer waits for the time of its next attempt to use the disk, after a failure.
    const fn has_failed(&self) -> bool {
        self.retry_at.is_some() || self.spare_retry_at.is_some()
    }

    /// Whether a reserve must be synced.
    pub(super) fn has_reserve(&self) -> bool {
        self.pending.back().is_some_and(|last| last.reserve > self.reserve)
    }

    /// Moves `durable` forward up to the first frame that is not safe yet: the frame is not synced, or its file does not have its final
    /// name.
    pub(super) fn advance(&mut self) {
        while let Some(first) = self.pending.front() {
            let file = self.files.iter().find(|open| open.number == first.file);
            if !file.is_some_and(|file| file.is_named && first.frames <= file.synced) {
                break;
            }
            let first = self.pending.pop_front().expect("looked at above");
            self.durable = first.next;
            // If files were abandoned, the first frame after them is the loss record. So this record is durable now.
            self.named = 0;
            // A durable frame proves that the disk works.
            (self.failures, self.retry_at) = (0, None);
            self.reserve = self.reserve.max(first.reserve);
            self.buffered -= first.size;
            self.freed = self.freed.saturating_sub(1);
            if let Some(frame) = first.frame {
                self.pool.give(frame);
            }
        }
        if self.settings.sync == SyncPolicy::None {
            while let Some(next) = self.pending.get_mut(self.freed).filter(|next| next.next <= self.written) {
                self.buffered -= std::mem::take(&mut next.size);
                self.freed += 1;
            }
        }
    }
}
