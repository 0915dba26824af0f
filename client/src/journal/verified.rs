//! The findings of a check of a journal.

use super::list::FileInfo;
use super::{Cause, Loss};

/// Greatest number of losses, and of damages, that are listed. All others are only counted.
pub(super) const MOST_LISTED: usize = 10_000;

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing is missing or damaged.
    Whole,
    /// Sequences are missing, and the journal itself reports each of them as lost.
    Losses,
    /// A file is damaged or cannot be used, or no file could be checked.
    Damaged,
}

/// One fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage {
    /// The file's name.
    pub file: String,
    /// The offset of the fault in the file, in bytes.
    pub offset: u64,
    /// Number of bytes up to the next valid frame; 0 if it is unknown.
    pub bytes: u64,
    /// The fault.
    pub what: String,
}

/// The findings of a check so far.
#[derive(Debug, Clone, Default)]
pub struct Verified {
    /// Number of files that were checked.
    pub files: u64,
    /// Number of whole frames that were found.
    pub frames: u64,
    /// Number of messages in these frames.
    pub messages: u64,
    /// Number of bytes that were checked.
    pub bytes: u64,
    /// The journal's first sequence, and the sequence that would come next after its end.
    pub sequences: Option<(u64, u64)>,
    /// Sequences that are missing, in order.
    pub losses: Vec<Loss>,
    /// The damages that were found.
    pub damages: Vec<Damage>,
    /// Files that cannot be used. Nothing shows whether the recorder had synced them to the disk, so they might be damaged.
    pub unused: Vec<Damage>,
    /// The number of losses that are only counted, and not listed, because there are too many.
    pub losses_not_listed: u64,
    /// The number of damages that are only counted, and not listed, because there are too many.
    pub damages_not_listed: u64,
    /// The number of missing messages for each cause.
    lost: Vec<(Cause, u64)>,
}

impl Verified {
    /// The result for the whole journal.
    ///
    /// ```
    /// use shmcast::journal::{Verdict, Verified};
    /// let mut verified = Verified::default();
    /// assert_eq!(verified.verdict(), Verdict::Damaged, "nothing was read");
    /// verified.files = 1;
    /// assert_eq!(verified.verdict(), Verdict::Whole);
    /// ```
    pub fn verdict(&self) -> Verdict {
        let is_read = self.files > 0 && self.unused.is_empty();
        let is_sound = self.damages.is_empty() && self.damages_not_listed == 0;
        match (is_read && is_sound, self.losses.is_empty()) {
            (false, _) => Verdict::Damaged,
            (true, false) => Verdict::Losses,
            (true, true) => Verdict::Whole,
        }
    }

    /// Number of messages that are missing for this cause.
    ///
    /// ```
    /// use shmcast::journal::{Cause, Verified};
    /// assert_eq!(Verified::default().lost(Cause::Overrun), 0);
    /// ```
    pub fn lost(&self, cause: Cause) -> u64 {
        self.lost.iter().find(|(of, _)| *of == cause).map_or(0, |(_, lost)| *lost)
    }

    /// Returns the number of missing messages for a cause, to change it.
    pub(super) fn lost_mut(&mut self, cause: Cause) -> &mut u64 {
        let at = self.lost.iter().position(|(of, _)| *of == cause).unwrap_or_else(|| {
            self.lost.push((cause, 0));
            self.lost.len() - 1
        });
        &mut self.lost[at].1
    }

    pub(super) fn lose(&mut self, loss: Loss) {
        *self.lost_mut(loss.cause) += loss.to - loss.from + 1;
        if self.losses.len() < MOST_LISTED {
            self.losses.push(loss);
        } else {
            self.losses_not_listed += 1;
        }
    }

    pub(super) fn damage(&mut self, file: &FileInfo, offset: u64, bytes: u64, what: impl Into<String>) {
        self.add(Damage { file: file.name.clone(), offset, bytes, what: what.into() });
    }

    pub(super) fn add(&mut self, damage: Damage) {
        if self.damages.len() < MOST_LISTED {
            self.damages.push(damage);
        } else {
            self.damages_not_listed += 1;
        }
    }
}
