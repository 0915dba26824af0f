//! Checks the files before and after each recovery.

use super::super::{Recovered, SyncPolicy, recover};
use super::oracle::{self, Item};
use super::{Verdict, World, readers};
use shmcast::journal::format::Cause;

impl World {
    /// Lets readers read the files before a recovery. The readers must find no false message and every durable message, and must report
    /// damage only in damaged files.
    pub(super) fn look(&self) -> Verdict {
        let Some(read) = readers::read(&self.disk)? else { return Ok(()) };
        for (sequence, found) in &read.stream {
            match found {
                Ok(payload) => self.was_published(*sequence, payload)?,
                Err(cause) => self.may_be_lost(*sequence, *sequence, *cause)?,
            }
        }
        match read.damage() {
            Some(damage) if !self.rotted => Err(format!("before recovery: {damage}")),
            _ => Ok(()),
        }
    }

    fn was_published(&self, sequence: u64, payload: &Vec<u8>) -> Verdict {
        if self.published.get(&sequence) == Some(payload) {
            return Ok(());
        }
        Err(format!("{sequence} was never published like this"))
    }

    fn may_be_lost(&self, from: u64, to: u64, cause: Cause) -> Verdict {
        let is_rot = self.rotted && cause == Cause::Damaged;
        // Without syncs, the frames of an abandoned file cannot be written again, so the journal lists their messages as lost.
        let is_none = self.sync == SyncPolicy::None && cause == Cause::Unrecorded;
        match self.safe.range(from..=to).next() {
            Some(safe) if !is_rot && !is_none => {
                Err(format!("{from} to {to} are {cause:?}, but somebody was told that {safe} is durable"))
            }
            _ => Ok(()),
        }
    }

    /// Compares the journal after a recovery with the published messages.
    pub(super) fn judge(&mut self, recovered: &Recovered) -> Verdict {
        let items = oracle::read(&mut self.disk)?;
        let again = recover(&mut self.disk).map_err(|error| format!("second recovery: {error}"))?;
        if oracle::read(&mut self.disk)? != items {
            return Err("recovering again changed something".into());
        }
        if again != (Recovered { mended: Vec::new(), ..recovered.clone() }) {
            return Err(format!("recovering again: {again:?}, not {recovered:?}"));
        }
        if self.has_readers {
            self.readers_agree(&items)?;
        }
        let mut due = None;
        for item in &items {
            match item {
                Item::Message(sequence, payload) => {
                    self.was_published(*sequence, payload)?;
                    due = Some(sequence + 1);
                }
                Item::Lost(loss) => {
                    self.may_be_lost(loss.from, loss.to, loss.cause)?;
                    if loss.cause == Cause::Damaged && !self.rotted {
                        return Err(format!("{loss:?}, but nothing rotted"));
                    }
                    self.counts.losses += 1;
                    due = Some(loss.to + 1);
                }
            }
        }
        let due = due.unwrap_or(recovered.due);
        if due <= self.durable || recovered.due != due {
            return Err(format!(
                "{due} is due after recovery ({}), durable was {}",
                recovered.due, self.durable
            ));
        }
        Ok(())
    }

    /// Checks that a reader and `verify` find the same items as the oracle.
    fn readers_agree(&self, items: &[Item]) -> Verdict {
        let Some(read) = readers::read(&self.disk)? else { return Ok(()) };
        let stream = readers::stream(items);
        if read.stream != stream {
            return Err(format!("a reader has {:?}, not {stream:?}", read.stream));
        }
        let losses: readers::Stream = stream.into_iter().filter(|(_, found)| found.is_err()).collect();
        if read.losses() != losses {
            return Err(format!("the check has {:?}, not {losses:?}", read.losses()));
        }
        match read.damage() {
            Some(damage) if !self.rotted => Err(format!("after recovery: {damage}")),
            _ => Ok(()),
        }
    }

    /// Recovers copies of the disk. In each copy, a different call of the recovery fails. Then the copy is recovered again, with or without
    /// a power cut between the two recoveries.
    pub(super) fn recover_with_errors(&mut self) -> Verdict {
        let whole = self.disk.clone();
        for failing in 0.. {
            for is_cut in [false, true] {
                self.disk = whole.clone();
                self.disk.error_after = Some(failing);
                let first = recover(&mut self.disk);
                if self.disk.error_after.take().is_some() {
                    self.disk = whole;
                    return Ok(());
                }
                if is_cut {
                    self.disk.cut();
                }
                let again = match first {
                    Ok(recovered) if !is_cut => Ok(recovered),
                    _ => recover(&mut self.disk),
                };
                let recovered = again.map_err(|error| format!("call {failing} failed, then {error}"))?;
                self.counts.errors_in_recovery += 1;
                self.judge(&recovered).map_err(|what| format!("call {failing} failed: {what}"))?;
                self.is_given_once(&recovered)?;
            }
        }
        Ok(())
    }

    /// Checks that a new ring would not use a sequence that an earlier publisher has used.
    pub(super) fn is_given_once(&self, recovered: &Recovered) -> Verdict {
        let Some((next, _)) = recovered.after_power_cut() else { return Ok(()) };
        match self.published.last_key_value() {
            Some((last, _)) if next <= *last => Err(format!("{next} is given again, {last} was published")),
            _ => Ok(()),
        }
    }
}
