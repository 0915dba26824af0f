//! A log as a source of repairs for a receiver of lines: finds a sequence in it, and gives the messages from there on.
//!
//! ```text
//!  sequence asked for ──> is it the same feed? (proof) ──> bisect ──> blocks ──> each compared with the ring ──> messages
//!                                 │ no, or not known               └── beyond the end: later; after five seconds: absent
//!                                 └── nothing is said
//! ```
//! A wrong message would be worse than one that is missing. So nothing of a log is given before the log has proved to be of the feed that
//! the receiver follows (`proof`), and no block that differs in one byte from what the receiver's ring has. The log may be behind the
//! feed: messages that it does not have yet are waited for, but not for long.

#[cfg(test)]
mod fake;
mod proof;
#[cfg(test)]
mod story;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use shmcast_bridge::log::LogState;
use shmcast_bridge::proto::native::fragments::Fragment;
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::replay::{Block, Fetched};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::{MILLISECOND_NS, SECOND_NS};
use std::ops::ControlFlow;

use super::block::{Body, Head, MAX_MESSAGE_BYTES};
use super::mutant::{Mutant, is};
use super::seal::Opener;
use proof::{Compared, Proof};

/// How long the log's end is taken for where it was.
const END_NS: u64 = 20 * MILLISECOND_NS;
/// After this time, messages that the log does not have yet are not waited for any more.
const LATE_NS: u64 = 5 * SECOND_NS;
/// After this time, a log that was late is waited for again.
const FORGIVEN_NS: u64 = 30 * SECOND_NS;
/// How many entries are asked for at a time.
const AT_A_TIME: usize = 8;
/// How many entries may bring nothing before a fetch ends.
const MOST_ENTRIES: usize = 512;
/// How many entries at the log's end may be damaged.
const MOST_DAMAGED: u64 = 16;

/// The log could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unread;

/// The entries of a log, by their numbers.
pub trait Entries {
    /// The numbers of the first and the last entry; the first is behind the last if the log is empty.
    ///
    /// # Errors
    /// [`Unread`].
    fn bounds(&mut self) -> Result<(u64, u64), Unread>;

    /// The first entry at or behind a number.
    ///
    /// # Errors
    /// [`Unread`].
    fn get(&mut self, from: u64) -> Result<Option<(u64, Bytes)>, Unread>;

    /// Up to so many entries from a number on, in their order.
    ///
    /// # Errors
    /// [`Unread`].
    fn get_some(&mut self, from: u64, most: usize) -> Result<Vec<(u64, Bytes)>, Unread>;
}

/// The ring that the receiver publishes into.
pub trait Ring {
    /// The oldest sequence that it has of the session, and the one after the newest; `None` if it cannot be read.
    fn span(&mut self) -> Option<(u64, u64)>;

    /// The sequences of other messages of the session that are known, because lines have brought them.
    fn samples(&self) -> Vec<u64>;

    /// Copies a message of the ring, or one of the others. Returns its time in nanoseconds since 1970, 0 if that is not known; `None` if it is not there.
    fn read(&mut self, sequence: u64, into: &mut Vec<u8>) -> Option<u64>;
}

/// The end of the log, when it was last looked at.
#[derive(Debug, Clone, Copy)]
struct End {
    head: Head,
    looked_ns: u64,
}

/// A source of repairs.
#[derive(Debug, Default)]
pub struct Repairs {
    opener: Opener,
    /// The session of the lines, and the first sequence of it that is asked for.
    line: Option<(Session, u64)>,
    /// When it was first asked about that.
    began_ns: u64,
    proof: Proof,
    /// When a proof was last looked for.
    tried_ns: u64,
    end: Option<End>,
    /// The entry that probably brings this sequence.
    cursor: Option<(u64, u64)>,
    late: Late,
}

impl Repairs {
    /// Opens sealed blocks with these keys from now on. `takes_open` says whether blocks without a seal are taken.
    pub fn set_keys(&mut self, keys: Option<Keyring>, takes_open: bool) {
        self.opener.set_keys(keys, takes_open);
    }

    /// The state, and its reason if it needs one.
    pub fn state(&self) -> (LogState, Option<String>) {
        self.proof.state()
    }

    /// The messages from `first` on, of the session of `line`; with 0, only the proof is looked for. `line` is the session of the lines
    /// and the first sequence of it that is asked for.
    ///
    /// # Errors
    /// [`Unread`] when the log could not be read.
    pub fn fetch(
        &mut self,
        now_ns: u64,
        line: (Session, u64),
        first: u64,
        (entries, ring): (&mut dyn Entries, &mut dyn Ring),
    ) -> Result<Fetched, Unread> {
        if self.line != Some(line) {
            (self.line, self.began_ns) = (Some(line), now_ns);
            (self.proof, self.end, self.cursor, self.late) = Default::default();
        }
        let mut opener = std::mem::take(&mut self.opener);
        let fetched = self.fetch_with(now_ns, first, (entries, ring), &mut opener);
        self.opener = opener;
        fetched
    }

    fn fetch_with(
        &mut self,
        now_ns: u64,
        first: u64,
        (entries, ring): (&mut dyn Entries, &mut dyn Ring),
        opener: &mut Opener,
    ) -> Result<Fetched, Unread> {
        let Some((session, _)) = self.line else { return Ok(Fetched::Failed) };
        let is_new = now_ns.saturating_sub(self.began_ns) < LATE_NS;
        // A proof that was not found soon is looked for now and then.
        if is_new || now_ns.saturating_sub(self.tried_ns) >= SECOND_NS {
            self.tried_ns = now_ns;
            self.prove(now_ns, session, (entries, ring), opener)?;
        }
        let Some(log) = self.proof.proved() else {
            // The messages that lines have just brought are on their way into the log.
            return Ok(match (first, self.proof.is_open() && is_new) {
                (1.., true) => Fetched::NotYet(first),
                _ => Fetched::Failed,
            });
        };
        if first == 0 {
            self.look_at_end(now_ns, entries, opener)?;
            return Ok(Fetched::Absent { from: 0, to: 0 });
        }
        let is_behind = |end: &End| log.is_of(&end.head) && first >= end.head.end();
        if self.end.as_ref().is_none_or(is_behind) {
            let Some(end) = self.look_at_end(now_ns, entries, opener)? else { return Ok(Fetched::Failed) };
            if is_behind(&end) {
                return Ok(self.late.judge(now_ns, first, end.head.end()));
            }
        }
        let number = match self.cursor {
            Some((sequence, number)) if sequence == first => number,
            _ => bisect(log.session, first, entries, opener)?,
        };
        let mut taking = Taking::new(first);
        self.read(number, (entries, ring), opener, &mut taking)?;
        if self.proof.proved().is_none() {
            return Ok(Fetched::Failed);
        }
        if taking.block.end() > first {
            return Ok(Fetched::Block(taking.block));
        }
        // A later session has begun behind all that there is of this one.
        Ok(match taking.is_over {
            true => Fetched::Absent { from: first, to: u64::MAX },
            false => self.late.judge(now_ns, first, first),
        })
    }

    /// The last sound block of the log; `None` if there is none.
    fn look_at_end(
        &mut self,
        now_ns: u64,
        entries: &mut dyn Entries,
        opener: &mut Opener,
    ) -> Result<Option<End>, Unread> {
        if self.end.is_none_or(|end| now_ns.saturating_sub(end.looked_ns) >= END_NS) {
            let (first, last) = entries.bounds()?;
            let found = last_block(first, last, entries, opener)?;
            self.end = found.ok().map(|head| End { head, looked_ns: now_ns });
        }
        Ok(self.end)
    }

    /// Takes messages from the entries from `number` on.
    fn read(
        &mut self,
        mut number: u64,
        (entries, ring): (&mut dyn Entries, &mut dyn Ring),
        opener: &mut Opener,
        taking: &mut Taking,
    ) -> Result<(), Unread> {
        let Some(log) = self.proof.proved() else { return Ok(()) };
        let mut looked = 0;
        while looked < MOST_ENTRIES {
            let some = entries.get_some(number, AT_A_TIME)?;
            let Some((last, _)) = some.last() else { return Ok(()) };
            number = last + 1;
            for (at, bytes) in &some {
                looked += 1;
                let Ok((head, body)) = opener.open(bytes) else { continue };
                if !log.is_of(&head) {
                    if is_later(head.session, log.session) {
                        taking.is_over = true;
                        return Ok(());
                    }
                    continue;
                }
                if !head.reaches(taking.due) {
                    continue;
                }
                // The messages beside those that are wanted prove the block again.
                let mut compared = Compared::default();
                compared.block(&head, &body, ring);
                if let Some(why) = compared.differs() {
                    self.proof = Proof::Refused { log, why };
                    return Ok(());
                }
                let before = taking.progress();
                let flow = taking.take(&head, &body);
                if taking.progress() != before {
                    looked = 0;
                }
                // A message in parts is read from its first one.
                if taking.parts.is_none() {
                    self.cursor = Some((taking.due, if taking.due < head.end() { *at } else { at + 1 }));
                }
                if flow.is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The messages that a fetch has found so far.
struct Taking {
    block: Block,
    due: u64,
    /// The message whose parts are coming: its size and the bytes so far.
    parts: Option<(u32, Vec<u8>)>,
    /// Whether the session is over in the log before the sequence due.
    is_over: bool,
}

impl Taking {
    fn new(first: u64) -> Taking {
        Taking { block: Block::new(first), due: first, parts: None, is_over: false }
    }

    /// How far it has come: the sequence due, and the bytes of its parts.
    fn progress(&self) -> (u64, usize) {
        (self.due, self.parts.as_ref().map_or(0, |(_, bytes)| bytes.len()))
    }

    /// Takes what a block brings. Breaks when there is enough.
    fn take(&mut self, head: &Head, body: &Body<'_>) -> ControlFlow<()> {
        debug_assert_eq!(self.block.next(), self.due, "nothing is taken behind what is lost");
        if head.first > self.due {
            return self.lose(head.first);
        }
        match body {
            Body::Messages(messages) => {
                for message in messages.range(self.due..head.end()).messages() {
                    let is_full = self.block.push(message.data, message.meta);
                    self.due = message.sequence + 1;
                    if is_full {
                        return ControlFlow::Break(());
                    }
                }
                ControlFlow::Continue(())
            }
            Body::Fragment(part) => self.take_part(head, part),
            Body::Gap => self.lose(head.end()),
            Body::End | Body::Sealed(_) => ControlFlow::Continue(()),
        }
    }

    /// The log has nothing from the sequence due up to, not including, `behind`.
    fn lose(&mut self, behind: u64) -> ControlFlow<()> {
        self.block.lose(behind);
        self.due = behind;
        ControlFlow::Break(())
    }

    fn take_part(&mut self, head: &Head, part: &Fragment<'_>) -> ControlFlow<()> {
        let (total, bytes) = match &mut self.parts {
            Some((total, bytes)) if *total == part.total => (*total as usize, bytes),
            parts => {
                let (_, bytes) = parts.insert((part.total, Vec::new()));
                (part.total as usize, bytes)
            }
        };
        if part.offset as usize != bytes.len() || total > MAX_MESSAGE_BYTES {
            // A writer that started again begins the message anew, with the same bytes.
            return match (part.offset as usize) < bytes.len() {
                true => ControlFlow::Continue(()),
                false => self.lose(head.first + 1),
            };
        }
        bytes.extend_from_slice(part.data);
        if bytes.len() < total {
            return ControlFlow::Continue(());
        }
        let is_full = self.block.push(bytes, part.meta);
        (self.parts, self.due) = (None, head.first + 1);
        if is_full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// The sequences that were asked for and are not in the log yet.
#[derive(Debug, Default)]
struct Late {
    /// The lowest such sequence, and since when it is asked for.
    wanted: Option<(u64, u64)>,
}

impl Late {
    /// The answer about a sequence that is at or behind the log's end.
    fn judge(&mut self, now_ns: u64, first: u64, end: u64) -> Fetched {
        // Unless it has come since, or the log has been late for long enough.
        let is_still = |&(wanted, since_ns): &(u64, u64)| {
            (end..=first).contains(&wanted) && now_ns.saturating_sub(since_ns) < LATE_NS + FORGIVEN_NS
        };
        let (wanted, since_ns) = self.wanted.filter(is_still).unwrap_or((first, now_ns));
        self.wanted = Some((wanted, since_ns));
        match now_ns.saturating_sub(since_ns) >= LATE_NS && !is(Mutant::WaitsForEver) {
            true => Fetched::Absent { from: first, to: u64::MAX },
            false => Fetched::NotYet(first),
        }
    }
}

/// The number of the first entry that brings `sequence` of a session, or stands behind where that would be.
fn bisect(
    session: Session,
    sequence: u64,
    entries: &mut dyn Entries,
    opener: &mut Opener,
) -> Result<u64, Unread> {
    let (first, last) = entries.bounds()?;
    let (mut low, mut high) = (first, last + 1);
    while low < high {
        let middle = low + (high - low) / 2;
        match entry_before((session, sequence), (middle, high), entries, opener)? {
            Some(number) => low = number + 1,
            None => high = middle,
        }
    }
    Ok(low)
}

/// The number of the first sound entry from `from` on, before `high`, if it stands before a sequence.
fn entry_before(
    (session, sequence): (Session, u64),
    (from, high): (u64, u64),
    entries: &mut dyn Entries,
    opener: &mut Opener,
) -> Result<Option<u64>, Unread> {
    let mut probe = from;
    while let Some((number, block)) = entries.get(probe)?.filter(|(number, _)| *number < high) {
        match opener.head(&block) {
            Ok(head) if head.session == session => return Ok((!head.reaches(sequence)).then_some(number)),
            Ok(head) => return Ok((!is_later(head.session, session)).then_some(number)),
            // Nobody knows which it was, so the next one is looked at in its place.
            Err(_) => probe = number + 1,
        }
    }
    Ok(None)
}

/// The last sound block; the reason why there is none.
fn last_block(
    first: u64,
    last: u64,
    entries: &mut dyn Entries,
    opener: &mut Opener,
) -> Result<Result<Head, String>, Unread> {
    let mut why = "the stream is empty".to_owned();
    for number in (first..=last).rev().take(MOST_DAMAGED as usize) {
        let Some((_, block)) = entries.get(number)?.filter(|(found, _)| *found == number) else { continue };
        match opener.open(&block) {
            Ok((head, _)) => return Ok(Ok(head)),
            Err(e) => why = format!("entry {number} of the stream: {e}"),
        }
    }
    Ok(Err(why))
}

/// Whether a session is a later one of the same sender.
fn is_later(session: Session, than: Session) -> bool {
    let both = session.epoch().zip(than.epoch());
    session.tag() == than.tag() && both.is_some_and(|(epoch, than)| epoch > than)
}
