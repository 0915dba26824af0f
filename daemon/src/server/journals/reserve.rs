//! Requests reserves before a channel skips many sequences.

use super::{Journals, LOOK};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// The time for which a promotion waits for a recorder. The program that requested the promotion waits some seconds longer, so that it
/// receives the error.
const NOTED_WITHIN: Duration = Duration::from_secs(2);

impl Journals {
    /// Whether a channel has a journal.
    pub fn has(&self, channel: &str) -> bool {
        self.recordings().contains_key(channel)
    }

    /// Prepares a channel to skip sequences. Waits until the channel's journal has a reserve of at least `sequence` on the disk. The
    /// reserve is a sequence that no publisher passes. If the channel has no journal, returns without a wait.
    ///
    /// # Errors
    /// An explanation for the user, if the journal does not record, or does not write the reserve within two seconds.
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
