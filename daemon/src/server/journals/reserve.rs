//! Reserves that are asked for before a channel goes on far ahead.

use super::{Journals, LOOK};
use shmcast::control::JournalStatus;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a promotion waits for a recorder. The program that asks waits for some seconds, and is to hear the reason.
const NOTED_WITHIN: Duration = Duration::from_secs(2);

impl Journals {
    /// Whether a channel has a journal.
    pub fn has(&self, channel: &str) -> bool {
        self.recordings().contains_key(channel)
    }

    /// Lets a channel go on far ahead: returns once its journal is sure to say that sequences up to `sequence` may have been
    /// given, also after a power cut. A channel without a journal may at once.
    ///
    /// # Errors
    /// A sentence, if the journal does not record, or does not note it within two seconds.
    pub fn reserve(&self, channel: &str, sequence: u64) -> Result<(), String> {
        let Some(recording) = self.find(channel) else { return Ok(()) };
        recording.wanted.fetch_max(sequence, Ordering::Relaxed);
        let until = Instant::now() + NOTED_WITHIN;
        loop {
            let status = recording.status();
            let reserve = recording.state().progress.map_or(0, |progress| progress.reserve);
            if status.state == "recording" && reserve >= sequence {
                return Ok(());
            }
            let may_come = ["recording", "starting"].contains(&&*status.state);
            if !may_come || Instant::now() >= until {
                let JournalStatus { directory, state, why, .. } = status;
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let what = "and does not note the next sequences";
                return Err(format!("its journal in {directory} is {state}, {what}{why}"));
            }
            sleep(LOOK / 10);
        }
    }
}
