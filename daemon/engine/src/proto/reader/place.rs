//! Finds the entry of the log that a reader needs next, and checks later whether the log still has it.

use super::{ANSWER_NS, Ask, Look, Phase, Reader};
use crate::proto::block::Head;
use crate::proto::mutant::{Mutant, is};
use crate::proto::want::is_earlier;

impl Reader {
    /// Handles the numbers of the log's first and last entry. If the log is empty, the first is higher than the last. If the next entry is
    /// found, returns [`Ask::Follow`].
    pub fn handle_bounds(
        &mut self,
        now_ns: u64,
        round: u64,
        (first, last): (u64, u64),
    ) -> Option<(u64, Ask)> {
        if round != self.round {
            return None;
        }
        self.note_step(now_ns);
        if self.phase == Phase::Bounds && last < self.seen {
            self.counters.ends_moved += 1;
        }
        self.oldest = first;
        match self.phase {
            Phase::Bounds if self.next.is_none() => Some(self.follow(now_ns, first)),
            Phase::Bounds if first > last => Some(self.follow(now_ns, last + 1)),
            Phase::Bounds => self.halve(now_ns, first, (last + 1, last + 1)),
            Phase::Follow { .. } if last > self.seen => {
                self.search(now_ns);
                None
            }
            Phase::Follow { .. } => {
                self.phase = Phase::Follow { heard_ns: now_ns, look: Look::Nothing };
                None
            }
            Phase::Bisect { .. } | Phase::Hole { .. } => None,
        }
    }

    fn halve(&mut self, now_ns: u64, low: u64, (high, first): (u64, u64)) -> Option<(u64, Ask)> {
        if low >= high {
            return Some(self.follow(now_ns, first));
        }
        self.phase = Phase::Bisect { low, high, probe: low + (high - low) / 2, first, damaged: None };
        self.ask_ns = now_ns;
        None
    }

    fn follow(&mut self, now_ns: u64, from: u64) -> (u64, Ask) {
        self.phase = Phase::Follow { heard_ns: now_ns, look: Look::Nothing };
        self.seen = from.saturating_sub(1);
        (self.is_certain, self.is_torn) = (true, from <= self.oldest);
        self.round += 1;
        (self.round, Ask::Follow(from))
    }

    /// Handles the answer to [`Ask::Get`]. `entry` is `None` if the log has no entry with that number or a higher one. If the next entry is
    /// found, returns [`Ask::Follow`].
    pub fn handle_get(&mut self, now_ns: u64, round: u64, entry: Option<(u64, &[u8])>) -> Option<(u64, Ask)> {
        if round != self.round {
            return None;
        }
        self.note_step(now_ns);
        let (low, high, probe, first, damaged) = match self.phase {
            Phase::Bisect { low, high, probe, first, damaged } => (low, high, probe, first, damaged),
            Phase::Follow { .. } => return self.check_last(now_ns, entry),
            Phase::Bounds | Phase::Hole { .. } => return None,
        };
        self.note_stream(entry);
        let middle = low + (high - low) / 2;
        let behind = if probe == middle { entry.map(|(sequence, _)| sequence) } else { damaged };
        let lower_half = (middle, behind.unwrap_or(first));
        let (low, upper) = match entry.filter(|(sequence, _)| *sequence < high) {
            None => (low, lower_half),
            Some((sequence, block)) => match self.opener.head(block) {
                Ok(head) if self.is_before(&head) => (sequence + 1, (high, first)),
                Ok(_) => (low, lower_half),
                // The sequences of a damaged entry are unknown, so the next entry is read instead.
                Err(_) => {
                    let probe = sequence.max(probe) + 1;
                    if probe < high {
                        self.phase = Phase::Bisect { low, high, probe, first, damaged: behind };
                        self.ask_ns = now_ns;
                        return None;
                    }
                    (low, lower_half)
                }
            },
        };
        self.halve(now_ns, low, upper)
    }

    /// Checks whether the log still has the last entry that arrived. If so, returns a request for the log's bounds, which show whether the
    /// log has a later entry.
    fn check_last(&mut self, now_ns: u64, entry: Option<(u64, &[u8])>) -> Option<(u64, Ask)> {
        self.phase = Phase::Follow { heard_ns: now_ns, look: Look::Nothing };
        let is_same = match entry {
            Some((sequence, block)) => {
                // If the log now has another block under this number, this matters only if the block has messages that the reader still
                // needs.
                let head = self.opener.head(block);
                let is_known = |head: Head| self.crc == Some(head.crc) || self.is_before(&head);
                sequence == self.seen && head.is_ok_and(is_known)
            }
            None => self.seen == 0,
        };
        if !is_same && !is(Mutant::TrustsTheEnd) {
            self.search(now_ns);
            return None;
        }
        if is(Mutant::TrustsTheWay) {
            return None;
        }
        (self.phase, self.ask_ns) =
            (Phase::Follow { heard_ns: now_ns, look: Look::Behind }, now_ns + ANSWER_NS);
        Some((self.round, Ask::Bounds))
    }

    /// If the entry is a block of the session that the reader follows, notes the stream of this session.
    fn note_stream(&mut self, entry: Option<(u64, &[u8])>) {
        let head = entry.and_then(|(_, block)| self.opener.head(block).ok());
        if let Some(head) = head.filter(|head| self.session == Some(head.session)) {
            self.stream = Some(head.stream);
        }
    }

    /// Whether a block comes before the block that the reader needs next.
    pub(super) fn is_before(&self, head: &Head) -> bool {
        match self.session.filter(|session| *session != head.session) {
            Some(session) => is_earlier(head.session, session),
            None => self.next.is_some_and(|next| !head.reaches(next)),
        }
    }
}
