//! Judges each reader's events, one after the other.

mod board;
mod causes;
mod past;

use super::Findings;
use super::history::{History, Publication, Subscription};
use super::hosts::old_messages;
use super::journals::Kept;
use super::limits::is_limit;
use super::lives::Lives;
use super::streams::Streams;
use crate::log::{Deed, Entry, Fact, Time};
use crate::payload::{Identity, Marks, fill, total_bytes};
use crate::run::{AT_REST, BEREAVED};
use crate::story::Start;
use board::Episode;

/// The place of a reader in its stream.
struct Cursor<'a> {
    history: &'a History,
    lives: &'a Lives,
    kept: &'a Kept<'a>,
    streams: &'a Streams<'a>,
    reader: &'a Subscription,
    /// The sequence that must be next.
    expected: u64,
    life: Option<usize>,
    /// The time at which the reader attached, or made its last seek.
    since: Time,
    /// Whether the reader has received no event since it attached or made its last seek.
    is_first: bool,
    /// Whether the reader has received neither a message nor a lap since it attached or made its last seek.
    is_new_here: bool,
    /// The publisher of the last message.
    last: Option<u32>,
    /// The epoch that was reported after the last message; `None` if there was no report.
    told: Option<u64>,
    /// Whether a lap might have hidden the event of another publisher.
    in_doubt: bool,
    /// Whether the channel has restarted since the reader attached.
    has_restarted: bool,
    seeking: u64,
    /// Whether the reader was lapped, or has sought. If so, the counts of left out messages also include messages that the reader skipped.
    is_inexact: bool,
}

pub(super) fn check(history: &History, lives: &Lives, streams: &Streams<'_>, findings: &mut Findings) {
    let kept = &Kept::of(history, lives);
    for reader in &history.subscriptions {
        let mut cursor = Cursor {
            history,
            lives,
            kept,
            streams,
            reader,
            expected: reader.next,
            life: None,
            // A publisher that opened the channel while this reader attached might have come before the reader.
            since: reader.at,
            is_first: true,
            is_new_here: true,
            last: None,
            told: None,
            in_doubt: false,
            has_restarted: false,
            seeking: 0,
            is_inexact: false,
        };
        cursor.see_all(findings);
        if reader.actor.starts_with(BEREAVED) {
            let is_told = |entry: &&Entry<Fact>| matches!(entry.what, Fact::PublisherGone { .. });
            let told = reader.seen.iter().filter(is_told).count();
            let killed =
                history.on(&reader.channel).filter(|p| cursor.was_killed(&p.actor, Time::MAX)).count();
            if told < killed {
                let what = format!("{killed} of its publishers were killed, and it was told of {told}");
                findings.add(5, "death_not_told", &reader.actor, what);
            }
        }
    }
}

impl<'a> Cursor<'a> {
    fn see_all(&mut self, findings: &mut Findings) {
        let mut rest = &self.reader.seen[..];
        while let Some(entry) = rest.first() {
            let is_start = self.begins_with_board();
            match Episode::at(rest, is_start, self.reader.conflates) {
                Some(episode) => {
                    self.episode(&episode, findings);
                    rest = &rest[episode.entries..];
                }
                None => {
                    self.see(entry, findings);
                    rest = &rest[1..];
                }
            }
        }
    }

    fn see(&mut self, entry: &Entry<Fact>, findings: &mut Findings) {
        let who = self.reader.actor.as_str();
        match &entry.what {
            Fact::Got { sequence, first, count, bytes, old } => {
                for at in 0..*count {
                    let message = Identity { counter: first.counter + at, ..*first };
                    self.message(*sequence + u64::from(at), message, findings);
                }
                self.check_bytes(*first, *count, *bytes, findings);
                self.check_times(*first, *count, *old, findings);
            }
            Fact::Odd { sequence, length, tag, key, head } => {
                self.odd(*sequence, *length, Marks { tag: *tag, key: *key }, head, findings);
            }
            Fact::Lapped { missed, resumed_at } => self.lapped(*missed, *resumed_at, findings),
            Fact::Gap { from, to } => self.gap(*from, *to, findings),
            Fact::Lost { from, to, cause } => self.lost(*from, *to, cause, findings),
            Fact::Live { sequence, since } => self.live(*sequence, *since, findings),
            Fact::Stalled { sequence } => self.stalled(*sequence, findings),
            Fact::ReadOut { next } if *next != self.expected && self.expected > 0 => {
                let what = format!("the journal ends at {next}, and {} was due", self.expected);
                findings.add(3, "silent_loss", who, what);
            }
            Fact::NewEpoch { epoch } => self.new_epoch(*epoch, findings),
            Fact::PublisherGone { epoch } => self.publisher_gone(*epoch, entry.at, findings),
            Fact::NewSession { identity } => self.new_session(identity, findings),
            Fact::End if !self.has_closed(entry.at) || !self.is_an_end() => {
                findings.add(1, "false_end", who, "the end was told, and no publisher had closed");
            }
            Fact::Restarted => self.restarted(),
            Fact::Newest { sequence, .. } | Fact::Forgotten { sequence, .. } => {
                findings.add(10, "unasked_board", who, format!("{sequence} came from the board"));
            }
            Fact::Seeking { to } => (self.seeking, self.is_inexact) = (*to, true),
            Fact::Sought { error: None } => {
                (self.expected, self.since, self.is_first) = (self.seeking, entry.at, true);
                self.is_new_here = true;
                (self.told, self.in_doubt) = (None, false);
            }
            Fact::Sought { error: Some(error) } if error.contains("Corrupt") || error.contains("Overrun") => {
                findings.add(5, "seek_failed", who, format!("seeking {} failed: {error}", self.seeking));
            }
            // While a publisher is active, a reader can be far behind. So only readers of channels at rest are judged.
            Fact::Nothing { next, lag } if who.starts_with(AT_REST) => {
                let what = format!("got nothing at {next}, though {lag} messages more were there");
                findings.add(5, "nothing_received", who, what);
            }
            Fact::Unknown { event } => findings.add(1, "unknown_event", who, event.clone()),
            Fact::RecvFailed { kind, why } => self.failed(kind, why, findings),
            // A reader that failed was already judged for the failure.
            Fact::Finished { found: false } if !self.reader.has_failed => {
                let what = format!(
                    "channel {}: the last message has not come; expected {}",
                    self.reader.channel, self.expected
                );
                findings.add(5, "last_message_missing", who, what);
            }
            _ => {}
        }
    }

    fn restarted(&mut self) {
        // A restarted bridge begins at the feed's present sequence. A stream with a journal continues after the journal.
        let is_elsewhere = self.reader.far && !self.is_whole() || self.is_recorded();
        let expected = if is_elsewhere { 0 } else { 1 };
        (self.expected, self.life, self.last, self.is_first) = (expected, None, None, true);
        self.is_new_here = true;
        (self.has_restarted, self.is_inexact) = (true, false);
    }

    /// Judges a message whose bytes alone do not identify it.
    fn odd(&mut self, sequence: u64, length: usize, marks: Marks, head: &str, findings: &mut Findings) {
        let candidates = self.identify(sequence, length, marks, head);
        let likely = candidates.iter().find(|message| self.is_likely(message));
        let Some(&message) = likely.or(candidates.first()) else {
            let what = format!("message {sequence} of {length} B is none that was published: {head}");
            findings.add(1, "damaged_message", &self.reader.actor, what);
            self.expected = sequence + 1;
            return;
        };
        let before = (self.life, self.told, self.last);
        self.message(sequence, message, findings);
        let life = |message: &Identity| self.lives.life(message.publisher);
        if candidates.iter().any(|other| life(other) != life(&message)) {
            // The bytes of this message do not show to which life (run of sequences) the message belongs.
            (self.life, self.told, self.last) = before;
        }
    }

    fn new_epoch(&mut self, epoch: u64, findings: &mut Findings) {
        // For a far reader, the publisher is the receiving bridge, which has epochs of its own.
        if !self.reader.far && !self.history.on(&self.reader.channel).any(|p| p.epoch == epoch) {
            let what = format!("epoch {epoch} was told, and no publisher had it");
            findings.add(1, "false_epoch", &self.reader.actor, what);
        }
        self.told = Some(epoch);
    }

    /// Judges a report that a publisher died. The publisher must have been killed, and the report must come after all messages that it
    /// certainly published.
    fn publisher_gone(&mut self, epoch: u64, at: Time, findings: &mut Findings) {
        let who = self.reader.actor.as_str();
        let dead = self.history.on(&self.reader.channel).find(|p| {
            p.epoch == epoch && p.closing.is_none() && self.was_killed(&p.actor, at) && p.opening < at
        });
        match dead.map(|publication| publication.surely_before(at)) {
            None => {
                let what = format!("the death of the publisher of epoch {epoch} was told, and none had died");
                findings.add(1, "false_death", who, what);
            }
            Some(next) if next > self.expected => {
                let what = format!(
                    "a death was told when {} was due, and {} had been published",
                    self.expected,
                    next - 1
                );
                findings.add(3, "early_death", who, what);
            }
            Some(_) => {}
        }
    }

    fn new_session(&mut self, identity: &String, findings: &mut Findings) {
        let is_known = |p: &Publication| p.sessions.contains(identity);
        if !self.reader.far && !self.history.publications.iter().any(is_known) {
            let what = format!("session {identity:?} was told by nobody");
            findings.add(1, "false_session", &self.reader.actor, what);
        }
        // Each session that a bridge receives can begin with other sequences. In a story with networks this does not happen: no ring is
        // lost, so the sequences continue, and no message between two sessions is lost.
        if self.reader.far && self.history.net.is_none() {
            let expected = u64::from(self.is_carried());
            (self.expected, self.life, self.last, self.is_first) = (expected, None, None, true);
        }
    }

    /// Whether a message comes from the expected publisher. This is the publisher whose epoch was just reported, or else the publisher of
    /// the last message.
    fn is_likely(&self, message: &Identity) -> bool {
        let epoch = || self.history.publication(message.publisher).map(|publication| publication.epoch);
        match self.told {
            Some(told) => epoch() == Some(told),
            None => self.last == Some(message.publisher),
        }
    }

    fn message(&mut self, sequence: u64, message: Identity, findings: &mut Findings) {
        let name = self.name_of(sequence, message);
        let Some(publication) = self.published(sequence, message, &name, findings) else { return };
        self.check_life(publication, &name, findings);
        self.check_order(sequence, &name, findings);
        self.check_epoch(publication, &name, findings);
        (self.expected, self.is_first, self.last) = (sequence + 1, false, Some(message.publisher));
        self.is_new_here = false;
    }

    fn name_of(&self, sequence: u64, message: Identity) -> String {
        format!("message {sequence} ({}.{})", message.publisher, message.counter)
    }

    /// Checks that a message was published with this sequence, and is valid. Returns its publication.
    fn published(
        &self,
        sequence: u64,
        message: Identity,
        name: &str,
        findings: &mut Findings,
    ) -> Option<&'a Publication> {
        let who = self.reader.actor.as_str();
        let publication =
            self.history.publication(message.publisher).filter(|p| p.channel == self.reader.channel);
        let Some(publication) = publication else {
            findings.add(
                1,
                "foreign_message",
                who,
                format!("{name} is of no publisher of channel {}", self.reader.channel),
            );
            return None;
        };
        match publication.sequence_of(message.counter) {
            None => findings.add(1, "unpublished_message", who, format!("{name} was not published")),
            Some(right) if right != sequence => {
                findings.add(1, "false_sequence", who, format!("{name} was published as {right}"));
            }
            Some(_) => {}
        }
        if let Some(cut) = self.lives.cut(message.publisher).filter(|cut| sequence >= cut.from) {
            let what = format!("{name} is void: publisher {} went on from {}", cut.by, cut.from);
            findings.add(1, "void_message", who, what);
        }
        Some(publication)
    }

    fn check_life(&mut self, publication: &Publication, name: &str, findings: &mut Findings) {
        let Some(life) = self.lives.life(publication.number) else { return };
        if let Some(before) = self.life.filter(|before| *before != life) {
            let what = format!(
                "{name} is of another beginning of the channel ({life} after {before}), and nothing said so"
            );
            findings.add(3, "silent_restart", &self.reader.actor, what);
            self.expected = 0;
        }
        self.life = Some(life);
    }

    fn check_order(&mut self, sequence: u64, name: &str, findings: &mut Findings) {
        let who = self.reader.actor.as_str();
        let expected = self.expected;
        // A reader can attach behind messages that become void later. Its first message is then the first message of the next publisher.
        let is_step_back = self.is_first
            && self
                .history
                .on(&self.reader.channel)
                .any(|p| p.next == sequence && p.opening > self.reader.subscribing);
        if sequence < expected && !is_step_back {
            findings.add(2, "backwards", who, format!("{name} came, and {expected} was due"));
        }
        if sequence > expected && expected > 0 {
            findings.add(
                3,
                "silent_loss",
                who,
                format!("{name} came, {expected} was due, and nothing said why"),
            );
        } else if expected == 0 && self.is_begun_anew() && !self.begins_at(sequence) {
            let what = format!("{name} came first after a restart, and no publisher began there");
            findings.add(3, "silent_loss", who, what);
        }
    }

    /// Checks that a new publisher was announced before its first message. An announcement is required only if the publisher came after
    /// this reader attached.
    fn check_epoch(&mut self, publication: &Publication, name: &str, findings: &mut Findings) {
        if self.last == Some(publication.number) || self.reader.far {
            return;
        }
        let is_known = self.told == Some(publication.epoch);
        // A reader that has seen no publisher gets no event when the next publisher comes.
        let was_held =
            self.reader.start == Start::Latest && !self.has_restarted && self.was_held(publication);
        let had_one = self.last.is_some() || was_held;
        let is_news = had_one && (publication.opening > self.since || !self.is_new_here);
        // The channel's very first publisher replaces no other publisher.
        let is_successor = self.history.on(&publication.channel).any(|p| {
            p.opening < publication.opening
                && self.lives.life(p.number) == self.lives.life(publication.number)
        });
        if is_news && is_successor && !is_known && !self.in_doubt {
            let what = format!("{name} is of epoch {}, and no event told of it", publication.epoch);
            findings.add(3, "silent_epoch", &self.reader.actor, what);
        }
        if is_known {
            self.in_doubt = false;
        }
        self.told = None;
    }

    fn lapped(&mut self, missed: u64, resumed_at: u64, findings: &mut Findings) {
        let who = self.reader.actor.as_str();
        let is_false = match self.is_begun_anew() {
            true => !self.begins_at(resumed_at.saturating_sub(missed)),
            false => resumed_at != self.expected.saturating_add(missed) && self.expected > 0,
        };
        if is_false {
            let what = format!(
                "{missed} messages missed and going on at {resumed_at}, but {} was due",
                self.expected
            );
            findings.add(3, "false_count", who, what);
        }
        let is_left_out = self.is_left_out(self.expected, resumed_at);
        if missed > 0 && !is_left_out && !self.was_overrun(resumed_at) {
            let what =
                format!("lapped from {} to {resumed_at}, though the ring held more than that", self.expected);
            findings.add(4, "lapped_without_cause", who, what);
        }
        self.check_lap(resumed_at, findings);
        self.is_inexact |= missed > 0;
        (self.expected, self.in_doubt, self.is_first) = (resumed_at, true, false);
        self.is_new_here = false;
    }

    fn gap(&mut self, from: u64, to: u64, findings: &mut Findings) {
        let who = self.reader.actor.as_str();
        let expected = self.expected;
        if to < from || from < expected && !self.is_first {
            findings.add(
                2,
                "backwards",
                who,
                format!("a gap from {from} to {to} was told, and {expected} was due"),
            );
        } else if from > expected.max(1) && !(self.is_begun_anew() && self.begins_at(from)) {
            let what =
                format!("a gap from {from} to {to} was told, {expected} was due, and nothing said why");
            findings.add(3, "silent_loss", who, what);
        }
        let mut at = from;
        // A bridge is also a reader, and the ring can overtake it like any reader.
        let is_overrun = self.reader.far && !self.is_carried() && self.was_overrun(to.saturating_add(1));
        let is_broken = is_overrun || self.reader.far && !self.is_whole() && self.is_line_broken();
        while at <= to && !is_broken {
            let gaps = self.history.on(&self.reader.channel).flat_map(|p| &p.sends);
            let known = gaps.filter(|send| {
                send.messages.is_none() && (send.next..send.next.saturating_add(send.most)).contains(&at)
            });
            match known.map(|send| send.next + send.most).max().or(self.promoted(at)) {
                Some(end) => at = end,
                None => {
                    let what = format!(
                        "a gap from {from} to {to} was told, and nobody said that {at} will not come"
                    );
                    findings.add(4, "false_gap", who, what);
                    break;
                }
            }
        }
        (self.expected, self.is_first) = (to.saturating_add(1), false);
    }

    fn failed(&mut self, kind: &str, why: &str, findings: &mut Findings) {
        let channel = &self.reader.channel;
        let may_restart =
            |e: &Entry<Deed>| matches!(&e.what, Deed::MayRestart { channel: name, .. } if name == channel);
        // Without a daemon, no program tells a reader about the next segment.
        let is_file = self.history.profile.is_none() || self.is_of_files();
        if kind == "Superseded" && is_file && self.history.deeds.iter().any(may_restart) {
            return;
        }
        let is_limit = |e: &Entry<Deed>| matches!(&e.what, Deed::Step { step, .. } if is_limit(step));
        if kind == "Unmapped" && self.history.deeds.iter().any(is_limit) {
            return;
        }
        let what = format!("channel {channel}: receiving failed at {}: {kind}: {why}", self.expected);
        findings.add(5, "receive_failed", &self.reader.actor, what);
    }

    fn check_bytes(&self, first: Identity, count: u32, bytes: u64, findings: &mut Findings) {
        let Some(publication) = self.history.publication(first.publisher) else { return };
        let mut right = 0;
        for at in 0..count {
            let counter = first.counter + at;
            let Some(sizes) = publication.sizes_of(counter) else { return };
            right += total_bytes(Identity { counter, ..first }, 1, sizes, publication.largest);
        }
        if right != bytes {
            let what = format!(
                "{count} messages from {first:?} on have {bytes} B, and were published with {right} B"
            );
            findings.add(1, "false_length", &self.reader.actor, what);
        }
    }

    /// Checks that messages have their original publish times on every host that native lines reach. Does not check the times in journals.
    fn check_times(&self, first: Identity, count: u32, old: u32, findings: &mut Findings) {
        let is_read = self.reader.journal.is_none();
        let right = old_messages(self.history, self.reader, first, count);
        if let Some(right) = right.filter(|right| is_read && *right != old) {
            let what = format!(
                "of {count} messages from {first:?} on, {old} are old by their times, and {right} are"
            );
            findings.add(9, "false_time", &self.reader.actor, what);
        }
    }

    /// Returns the published messages that have this sequence and this content. The content is too short to identify one message.
    ///
    /// The messages of the reader's *life* come first. A life is a run of publications whose sequences continue. Within a life, void
    /// messages (those that were cut off) come last.
    fn identify(&self, sequence: u64, length: usize, marks: Marks, head: &str) -> Vec<Identity> {
        let candidates = self.history.on(&self.reader.channel).filter_map(|publication| {
            let (message, sizes) = publication.message_at(sequence)?;
            (message.length(sizes, publication.largest) == length).then_some(message)
        });
        let is_right = |message: &Identity| {
            let mut bytes = vec![0; length];
            fill(&self.reader.channel, *message, marks, &mut bytes);
            let right: String = bytes.iter().take(24).map(|byte| format!("{byte:02x}")).collect();
            length < 16 && right == head
        };
        let rank = |message: &Identity| {
            let is_elsewhere = self.life.is_some_and(|life| self.lives.life(message.publisher) != Some(life));
            let is_void = self.lives.cut(message.publisher).is_some_and(|cut| sequence >= cut.from);
            (is_elsewhere, is_void)
        };
        let mut right: Vec<Identity> = candidates.filter(is_right).collect();
        right.sort_by_key(rank);
        right
    }
}
