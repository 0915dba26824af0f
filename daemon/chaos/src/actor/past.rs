//! Reads a whole journal with the library, and logs its contents as a reader of the channel would.

use super::recorder::Recorder;
use crate::log::{Fact, Log};
use anyhow::Result;
use shmcast::Event;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Entry, Journal, JournalControl, JournalError};
use std::path::Path;

/// Reads the journal in `dir`. Skips a journal that has no file. If the journal cannot be read, logs the reason.
pub(super) fn read(log: &mut Log, dir: &Path) -> Result<()> {
    let journal = match Journal::open(dir) {
        Err(JournalError::Empty { .. }) => return Ok(()),
        journal => journal,
    };
    let name =
        journal.as_ref().ok().and_then(|journal| Some(journal.files().first()?.header.channel.clone()));
    let (channel, shown) = (name.unwrap_or_default(), dir.display().to_string());
    let next = journal.as_ref().ok().and_then(Journal::first_sequence).unwrap_or(1);
    log.write(Fact::Reading { channel: channel.clone(), dir: shown, next })?;
    let mut recorder = Recorder::new(channel, None);
    let due = journal.and_then(|journal| read_all(journal, next, &mut recorder));
    match due {
        Ok(next) => recorder.fact(Fact::ReadOut { next }),
        Err(e) => recorder.fact(Fact::RecvFailed { kind: super::kind(&e), why: e.to_string() }),
    }
    recorder.flush(log, true)
}

/// Logs the whole journal. Returns the next sequence after it.
fn read_all(journal: Journal, first: u64, recorder: &mut Recorder) -> Result<u64, JournalError> {
    let mut reader = journal.read_from(first)?;
    while let Some(entry) = reader.next()? {
        match entry {
            Entry::Message(message) => recorder.message(&message),
            Entry::Lost(loss) => {
                let (from, to, cause) = (loss.from, loss.to, loss.cause);
                recorder.note(Event::Lost { from, to, cause });
            }
            Entry::Control { control: JournalControl::Ring(control), .. } => match control {
                ControlRecord::Gap { from, to } => recorder.note(Event::Gap { from, to }),
                ControlRecord::Epoch { epoch } => recorder.note(Event::NewEpoch { epoch }),
                ControlRecord::End => recorder.note(Event::End),
                _ => {}
            },
            _ => {}
        }
    }
    Ok(reader.due())
}
