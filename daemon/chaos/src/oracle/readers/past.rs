//! Judges the events of a reader of a journal. The contents of journals are judged in the same way.

use super::Cursor;
use crate::log::{Deed, Entry, Time};
use crate::oracle::Findings;
use crate::oracle::history::Publication;
use crate::oracle::limits::is_limit;
use crate::payload::Identity;
use crate::story::{Change, Step, Whom};

impl Cursor<'_> {
    /// Judges a loss of messages. The loss is allowed only if no journal has the messages, and if it has a cause: the ring overwrote the
    /// messages before they were recorded, or the channel skipped them after a journal's reserve.
    pub(super) fn lost(&mut self, from: u64, to: u64, cause: &str, findings: &mut Findings) {
        let (who, expected) = (self.reader.actor.as_str(), self.expected);
        let name = format!("the loss of {from} to {to} ({cause})");
        if !self.reader.history {
            findings.add(3, "unasked_past", who, format!("{name} was told to a reader of the ring alone"));
        }
        if to < from || from < expected && !self.is_first {
            findings.add(2, "backwards", who, format!("{name} was told, and {expected} was due"));
        } else if from > expected && expected > 0 {
            findings.add(
                3,
                "silent_loss",
                who,
                format!("{name} was told, {expected} was due, and nothing said why"),
            );
        }
        // Stories have no power cut and no failing disk. So a loss has one of three causes: the ring overwrote messages; a recorder that
        // was away found only the last segment; or a channel whose memory was lost continued after the journal's reserve.
        let is_gone = self.was_overrun(to.saturating_add(1)) || self.is_segmented();
        let is_named = match cause {
            "overrun" | "unrecorded" => is_gone,
            "reserve" => self.is_reserve(from, to.saturating_add(1)),
            _ => false,
        };
        if !is_named {
            findings.add(
                4,
                "lost_without_cause",
                who,
                format!("{name} was told, though the ring held more than that"),
            );
        }
        self.check_kept(from, to, &name, findings);
        (self.expected, self.in_doubt, self.is_first, self.is_new_here) =
            (to.saturating_add(1), true, false, false);
    }

    /// Whether a loss from `from` to `next - 1` can come from a journal's reserve, after which the channel continues. A reader can also
    /// begin within the skipped sequences.
    fn is_reserve(&self, from: u64, next: u64) -> bool {
        let begins_within = self.is_first && self.begins_at(next) && self.is_left_out(1, next);
        begins_within || self.is_left_out(from, next)
    }

    /// Whether a restarted channel could have skipped the sequences from `from` to `next - 1` because a journal had reserved them. If so,
    /// at least 2^31 sequences were skipped, and a step of the story could lose the channel's memory.
    pub(super) fn is_left_out(&self, from: u64, next: u64) -> bool {
        let may_lose = |entry: &Entry<Deed>| match &entry.what {
            Deed::Step { step, .. } => matches!(
                step,
                Step::Crash { .. } | Step::Restart { .. } | Step::Reload { change: Change::Remove, .. }
            ),
            _ => false,
        };
        let is_recorded = self.history.recorded.contains(&self.reader.channel);
        is_recorded && next.saturating_sub(from) >= 1 << 31 && self.history.deeds.iter().any(may_lose)
    }

    /// Judges a lap of a reader of a journal. The reader is allowed to skip only sequences that no journal has.
    pub(super) fn check_lap(&self, resumed_at: u64, findings: &mut Findings) {
        let may_read = self.reader.history && !self.reader.skip && !self.was_given_up();
        if may_read && resumed_at > self.expected && self.expected > 0 {
            let name = format!("a lap from {} to {resumed_at}", self.expected);
            self.check_kept(self.expected, resumed_at - 1, &name, findings);
        }
    }

    /// Whether the daemon was without a journal for a while. Readers that attached during this time got no files of the journal, and do not
    /// ask for files later.
    fn was_given_up(&self) -> bool {
        self.history.deeds.iter().any(|entry| match &entry.what {
            Deed::Step { step, .. } => {
                matches!(step, Step::Reload { change: Change::Journal | Change::Remove, .. })
            }
            _ => false,
        })
    }

    fn check_kept(&self, from: u64, to: u64, name: &str, findings: &mut Findings) {
        // The reading of a journal is not judged here, because a journal can lack messages that its recorder did not receive.
        let (Some(life), None) = (self.life, &self.reader.journal) else { return };
        if let Some(kept) = self.kept.first_in(&self.reader.channel, life, from, to) {
            let what = format!("{name} was told, and the journal has {kept}");
            findings.add(4, "lost_and_kept", &self.reader.actor, what);
        }
    }

    /// Judges the event of a reader's return from the journal to the ring. The event must come as soon as the ring has the next message.
    pub(super) fn live(&mut self, sequence: u64, since: Time, findings: &mut Findings) {
        let (who, expected) = (self.reader.actor.as_str(), self.expected);
        if !self.reader.history {
            findings.add(3, "unasked_past", who, format!("was live at {sequence}, and reads the ring alone"));
        }
        if sequence != expected && expected > 0 {
            let what = format!("was live at {sequence}, and {expected} was due");
            findings.add(if sequence < expected { 2 } else { 3 }, "false_live", who, what);
        }
        let is_here = |p: &&Publication| {
            self.life.is_some() && self.lives.life(p.number) == self.life && p.next <= sequence
        };
        // A later publisher can have a segment of its own.
        let publication = self.history.on(&self.reader.channel).filter(is_here).max_by_key(|p| p.next);
        // Whether the ring had surely overwritten the message `sequence` when the call began. Only messages that were certainly published
        // before the call count.
        let is_gone = |p: &&Publication| bytes_between(p, sequence, p.surely_before(since)) > p.capacity;
        if let Some(publication) = publication.filter(is_gone) {
            let what = format!(
                "was live at {sequence}, and publisher {} had filled the ring behind it",
                publication.number
            );
            findings.add(5, "false_live", who, what);
        }
        (self.expected, self.is_new_here) = (sequence, false);
    }

    /// Judges a report that a recorder makes no progress. Something in the story must prevent the recorder's work.
    pub(super) fn stalled(&self, sequence: u64, findings: &mut Findings) {
        let may_stall = |entry: &Entry<Deed>| match &entry.what {
            Deed::Step { step, .. } => {
                matches!(
                    step,
                    Step::Crash { .. }
                        | Step::Restart { .. }
                        | Step::Reload { .. }
                        | Step::TakeOver { .. }
                        | Step::Stop { whom: Whom::Daemon }
                ) || is_limit(step)
            }
            _ => false,
        };
        if !self.history.deeds.iter().any(may_stall) {
            let what = format!("was told at {sequence} that the recorder stands still, and nothing kept it");
            findings.add(5, "stalled_without_cause", &self.reader.actor, what);
        }
    }
}

/// Returns the smallest number of bytes that a publication's records from `from` to `to - 1` can take.
fn bytes_between(publication: &Publication, from: u64, to: u64) -> u64 {
    let mut bytes = 0;
    for send in &publication.sends {
        let Some((first, sizes)) = send.messages else { continue };
        for at in from.saturating_sub(send.next)..send.least.min(to.saturating_sub(send.next)) {
            let message = Identity { counter: first.counter + at as u32, ..first };
            bytes += (message.length(sizes, publication.largest) as u64 + 16).next_multiple_of(64);
        }
    }
    bytes
}
