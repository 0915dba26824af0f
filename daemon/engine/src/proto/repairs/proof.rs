//! Proves that a log has the feed that a receiver follows.
//!
//! The receiver knows the session of its lines, its ring has messages of it, and some more are known that lines have brought behind a
//! hole. A log whose blocks name the same session is of the same feed if one message is the same in both, byte for byte. A log whose
//! blocks name another session may be of the same feed all the same: after a reboot, lines and stream may go on under different names.
//! Then the newest messages that the log and the ring have must be the same, byte for byte, and published not long before they came.
//! They must be enough and differ from each other: many feeds begin alike, and some say one thing over and over.

use shmcast_bridge::log::LogState;
use shmcast_bridge::proto::SECOND_NS;
use shmcast_bridge::proto::session::Session;

use super::super::block::{Body, Head, Stream};
use super::super::mutant::{Mutant, is};
use super::super::seal::Opener;
use super::{Entries, Repairs, Ring, Unread, bisect, last_block};

/// How many messages of a block are compared at most, at its beginning and at its end.
const MOST_COMPARED: u64 = 64;
/// How many messages that differ from each other must be the same where the sessions differ.
const ENOUGH: u64 = 8;
/// How many blocks are looked at for that.
const MOST_BLOCKS: u64 = 16;
/// How much later or earlier than its publication a message may have come where the sessions differ.
const MOST_APART_NS: u64 = 60 * SECOND_NS;

/// One run of sequences in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) stream: Stream,
    pub(super) session: Session,
}

impl Run {
    /// Whether a block is of this run.
    pub(super) fn is_of(&self, head: &Head) -> bool {
        is(Mutant::TakesAnyRun) || head.stream == self.stream && head.session == self.session
    }
}

/// The knowledge about a log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) enum Proof {
    /// Nothing was looked at yet.
    #[default]
    Unknown,
    /// It is not known yet, for this reason.
    Open(String),
    /// This run has the feed's messages.
    Proved(Run),
    /// This run has other messages.
    Refused {
        /// The run.
        log: Run,
        /// The difference.
        why: String,
    },
}

impl Proof {
    pub(super) fn proved(&self) -> Option<Run> {
        match self {
            Proof::Proved(log) => Some(*log),
            Proof::Unknown | Proof::Open(_) | Proof::Refused { .. } => None,
        }
    }

    /// Whether it is not known yet whose messages the log has.
    pub(super) fn is_open(&self) -> bool {
        matches!(self, Proof::Unknown | Proof::Open(_))
    }

    pub(super) fn state(&self) -> (LogState, Option<String>) {
        match self {
            Proof::Unknown => (LogState::Waiting, None),
            Proof::Open(why) => (LogState::Waiting, Some(why.clone())),
            Proof::Proved(_) => (LogState::Serving, None),
            Proof::Refused { why, .. } => (LogState::Refused, Some(why.clone())),
        }
    }
}

impl Repairs {
    /// Looks for the proof, if there is none.
    pub(super) fn prove(
        &mut self,
        now_ns: u64,
        session: Session,
        (entries, ring): (&mut dyn Entries, &mut dyn Ring),
        opener: &mut Opener,
    ) -> Result<(), Unread> {
        if self.proof.proved().is_some() {
            return Ok(());
        }
        let (first, last) = entries.bounds()?;
        let newest = match last_block(first, last, entries, opener)? {
            Ok(head) => head,
            Err(why) => {
                self.proof = Proof::Open(why);
                return Ok(());
            }
        };
        self.end = Some(super::End { head: newest, looked_ns: now_ns });
        let found = match newest.session == session {
            true => Some(newest),
            // The stream may have gone on to a later session.
            false => last_of(session, entries, opener)?,
        };
        let candidate = found.unwrap_or(newest);
        let log = Run { stream: candidate.stream, session: candidate.session };
        if matches!(&self.proof, Proof::Refused { log: refused, .. } if *refused == log) {
            return Ok(());
        }
        // Where the sessions are the same, one look is enough.
        let enough = if log.session == session { 1 } else { ENOUGH };
        let compared = compare((log, enough, session), candidate.end(), (entries, ring), opener)?;
        self.proof = match (compared.differs(), log.session == session) {
            (Some(why), _) => Proof::Refused { log, why },
            (None, true) if compared.varied() > 0 || is(Mutant::ServesUnproved) => Proof::Proved(log),
            (None, true) => Proof::Open(
                "no message of the lines is in the stream yet, so that nothing can be compared".to_owned(),
            ),
            (None, false) => compared.judge(session, log),
        };
        Ok(())
    }
}

/// The last block of a session; `None` if there is none.
fn last_of(session: Session, entries: &mut dyn Entries, opener: &mut Opener) -> Result<Option<Head>, Unread> {
    let behind = bisect(session, u64::MAX, entries, opener)?;
    let (first, _) = entries.bounds()?;
    let found = match behind > first {
        true => last_block(first, behind - 1, entries, opener)?.ok(),
        false => None,
    };
    Ok(found.filter(|head| head.session == session))
}

/// Compares the newest messages that both the log and the receiver have.
fn compare(
    (log, enough, session): (Run, u64, Session),
    end: u64,
    (entries, ring): (&mut dyn Entries, &mut dyn Ring),
    opener: &mut Opener,
) -> Result<Compared, Unread> {
    let is_same = log.session == session;
    let mut compared = Compared { is_timed: !is_same, ..Compared::default() };
    let is_over = |compared: &Compared| compared.varied() >= enough || compared.other.is_some();
    let (oldest, next) = ring.span().unwrap_or_default();
    let newest = next.min(end).saturating_sub(1);
    if next > oldest && newest >= oldest {
        let number = bisect(log.session, newest, entries, opener)?;
        for at in (0..MOST_BLOCKS).map_while(|back| number.checked_sub(back)) {
            let first = compare_entry((log, at), (entries, ring), opener, &mut compared)?;
            if is_over(&compared) || first.is_some_and(|first| first <= oldest) {
                break;
            }
        }
    }
    // Their times are not known, so they prove nothing where the sessions differ.
    for sequence in ring.samples().into_iter().rev().filter(|sequence| is_same && *sequence < end) {
        if is_over(&compared) {
            break;
        }
        let number = bisect(log.session, sequence, entries, opener)?;
        compare_entry((log, number), (entries, ring), opener, &mut compared)?;
    }
    Ok(compared)
}

/// Compares one entry. Returns its first sequence, if it is a sound block.
fn compare_entry(
    (log, number): (Run, u64),
    (entries, ring): (&mut dyn Entries, &mut dyn Ring),
    opener: &mut Opener,
    compared: &mut Compared,
) -> Result<Option<u64>, Unread> {
    let Some((_, block)) = entries.get(number)?.filter(|(found, _)| *found == number) else {
        return Ok(None);
    };
    let Ok((head, body)) = opener.open(&block) else { return Ok(None) };
    if log.is_of(&head) {
        compared.block(&head, &body, ring);
    }
    Ok(Some(head.first))
}

/// Messages of a log beside those of the ring.
#[derive(Debug, Default)]
pub(super) struct Compared {
    /// Messages that are the same.
    same: u64,
    /// Those of them that differ from each other, at most as many as are enough.
    kinds: Vec<Vec<u8>>,
    /// Whether only messages count whose times are known.
    is_timed: bool,
    /// The first message that differs.
    other: Option<u64>,
    /// A message that came long before or after its publication, and by how much.
    apart: Option<(u64, u64)>,
    ours: Vec<u8>,
}

impl Compared {
    /// Compares a block with the ring, and with what lines have brought, as far as those have its messages.
    pub(super) fn block(&mut self, head: &Head, body: &Body<'_>, ring: &mut dyn Ring) {
        if is(Mutant::ComparesNothing) {
            self.kinds = (0..ENOUGH).map(|kind| vec![kind as u8]).collect();
            return;
        }
        let (oldest, next) = ring.span().unwrap_or_default();
        let (from, to) = (head.first.max(oldest), head.end().min(next));
        let is_at_an_end =
            |sequence| sequence < from + MOST_COMPARED || sequence >= to.saturating_sub(MOST_COMPARED);
        let samples = ring.samples();
        let is_known = |sequence: u64| {
            (from..to).contains(&sequence) && is_at_an_end(sequence) || samples.contains(&sequence)
        };
        match body {
            Body::Messages(messages) => {
                for message in messages.messages().filter(|message| is_known(message.sequence)) {
                    self.message(message.sequence, (message.data, 0, None), message.meta.time_ns, ring);
                }
            }
            Body::Fragment(part) if (oldest..next).contains(&head.first) || samples.contains(&head.first) => {
                let whole = (part.data, part.offset as usize, Some(part.total as usize));
                self.message(head.first, whole, part.meta.time_ns, ring);
            }
            Body::Fragment(_) | Body::Gap | Body::End | Body::Sealed(_) => {}
        }
    }

    /// Compares a message, or the part of one that begins at an offset, where `total` is the size of all of it.
    fn message(
        &mut self,
        sequence: u64,
        (data, offset, total): (&[u8], usize, Option<usize>),
        time_ns: u64,
        ring: &mut dyn Ring,
    ) {
        self.ours.clear();
        let Some(came_ns) = ring.read(sequence, &mut self.ours) else { return };
        let ours = self
            .ours
            .get(offset..)
            .map(|rest| if total.is_some() { &rest[..rest.len().min(data.len())] } else { rest });
        if ours != Some(data) || total.is_some_and(|total| total != self.ours.len()) {
            self.other.get_or_insert(sequence);
            return;
        }
        self.same += 1;
        let has_times = came_ns != 0 && time_ns != 0;
        let is_new =
            self.varied() < ENOUGH && !data.is_empty() && !self.kinds.iter().any(|kind| kind == data);
        if is_new && (has_times || !self.is_timed) {
            self.kinds.push(data.to_vec());
        }
        let apart_ns = came_ns.abs_diff(time_ns);
        if has_times && apart_ns > MOST_APART_NS {
            self.apart.get_or_insert((sequence, apart_ns));
        }
    }

    fn varied(&self) -> u64 {
        self.kinds.len() as u64
    }

    /// The difference, if there is one.
    pub(super) fn differs(&self) -> Option<String> {
        let sequence = self.other?;
        Some(format!(
            "message {sequence} of the stream is not that of the lines: it is the stream of another feed"
        ))
    }

    /// Whether what is the same is enough where the sessions differ.
    fn judge(&self, session: Session, log: Run) -> Proof {
        let other = format!("the stream has session {}, the lines have {session}", log.session);
        match self.apart {
            _ if is(Mutant::ProvesByLittle) && self.same >= ENOUGH => Proof::Proved(log),
            Some((sequence, apart_ns)) => Proof::Open(format!(
                "{other}, and message {sequence} came {} s from its publication there",
                apart_ns / SECOND_NS
            )),
            None if self.varied() >= ENOUGH || is(Mutant::ServesUnproved) => Proof::Proved(log),
            None => Proof::Open(format!(
                "{other}, and only {} messages were the same in both: {ENOUGH} that differ among themselves are needed",
                self.same
            )),
        }
    }
}
