//! Handles operations that the disk refused: the writer abandons the open files, and begins another file.

use super::mutant::{Mutant, is};
use super::writer::{NEXT_FILE, Purpose, Spare, Writer};
use super::{Now, Step};
use std::io;

impl Writer {
    pub(super) fn refused(&mut self, doing: Purpose, error: io::Error, now: Now) {
        let (what, file) = match doing {
            Purpose::Spare => (NEXT_FILE, None),
            Purpose::Frames { file, .. } => ("write", Some(file)),
            Purpose::Footer { file, .. } => ("write the footer", Some(file)),
            Purpose::Sync { file, .. } => ("sync", Some(file)),
            Purpose::Name { file } => ("name the file", Some(file)),
            Purpose::Finish { file } => ("seal the file", Some(file)),
            Purpose::GiveUp => ("rename a file that was given up", None),
        };
        self.errors.push_back((what, error));
        if matches!(doing, Purpose::Sync { .. }) && is(Mutant::RetryAfterFailedSync) {
            return;
        }
        let is_current = file.is_some_and(|file| self.files.iter().any(|open| open.number == file));
        if matches!(doing, Purpose::Spare) {
            self.spare = Spare::None;
            self.spare_retry_at = Some(now.mono + self.settings.retry_every);
        } else if is_current {
            self.give_up(now);
        }
    }

    /// Abandons all open files. Frames that are not durable go to a new file.
    fn give_up(&mut self, now: Now) {
        self.failures += 1;
        self.gave_up = true;
        if self.failures > 1 {
            self.retry_at = Some(now.mono + self.settings.retry_every);
        }
        for file in std::mem::take(&mut self.files) {
            let number = file.number;
            self.help.retain(|(doing, _)| !matches!(doing, Purpose::Name { file } | Purpose::Finish { file } if *file == number));
            let rename = Step::Rename { number, name: format!("{}.suspect", file.name) };
            self.help.push_back((Purpose::GiveUp, vec![rename, Step::SyncDirectory]));
            // The file is closed even if it cannot be renamed.
            self.help.push_back((Purpose::GiveUp, vec![Step::Close { number }]));
            (self.header.previous_salt, self.header.previous_chain) = (0, 0);
        }
        while let Some(last) = self.pending.pop_back() {
            match last.frame {
                Some(frame) => self.waiting.push_front(frame),
                None => {
                    self.buffered -= last.size;
                    self.forgotten += u64::from(last.messages);
                }
            }
        }
        // The loss record for these messages was in an abandoned file, so they count again as lost without a record.
        self.forgotten += std::mem::take(&mut self.named);
        self.freed = 0;
        self.written = self.durable;
    }
}
