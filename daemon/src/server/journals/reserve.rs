//! Reserves that are requested before a channel skips far ahead.

use super::{Journals, LOOK};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a promotion waits for a recorder. The program that asked waits some seconds longer, so that it receives the reason.
const NOTED_WITHIN: Duration = Duration::from_secs(2);

impl Journals {
    /// Whether a channel has a journal.
    pub fn has(&self, channel: &str) -> bool {
        self.recordings().contains_key(channel)
    }

    /// Lets a channel skip far ahead: returns once its journal notes, safe from a power cut, that sequences up to `sequence` may have been
    /// used. For a channel without a journal, returns at once.
    ///
    /// # Errors
    /// A sentence, if the journal does not record, or does not write the note within two seconds.
    pub fn reserve(&self, channel: &str, sequence: u64) -> Result<(), String> {
        let Some(recording) = self.find(channel) else { return Ok(()) };
        recording.wanted.fetch_max(sequence, Ordering::Relaxed);
        let until = Instant::now() + NOTED_WITHIN;
        loop {
            let state = recording.state();
            let recorder = state.progress.filter(|progress| state.is_running && !progress.is_failed);
            if recorder.is_some_and(|progress| progress.reserve >= sequence) {
                return Ok(());
            }
            let may_come = recorder.is_some() || state.is_starting();
            if !may_come || Instant::now() >= until {
                let (name, why) = (state.name(), state.why.as_ref());
                let why = why.map_or_else(String::new, |why| format!(": {why}"));
                let what = "and does not note the next sequences";
                return Err(format!("its journal in {} is {name}, {what}{why}", recording.shown()));
            }
            drop(state);
            sleep(LOOK / 10);
        }
    }
}
