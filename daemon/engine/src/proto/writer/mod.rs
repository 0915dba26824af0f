//! The writing end: which block comes next, behind which one, and what to do when an append fails.
//!
//! ```text
//! START    the last block is asked for. It says where to go on.  It is another writer's -> FENCED
//! RUN      blocks from there on, each only behind the one before it: one, and after its answer up to `in_flight`
//!          refused, no answer, disconnected, busy -> RESYNC
//! RESYNC   what is in flight is dropped, and the last block is asked for.  It is ours -> RUN.  Another writer's -> FENCED
//! FENCED   another writer writes. Neither a new block nor a pulse of it for `silence_ns` -> START
//! ```
//! Exactly one of two rivals owns the last block, so one of them runs. The other waits for silence also when it has just begun.
//!
//! An append may be late: it comes to the log when its writer has given it up. The log looks at nothing but the number of the
//! entry before it. So for each number a writer has one block: what was in flight is appended again as it was, byte for byte,
//! and it does not matter which copy is stored.

mod again;
mod said;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use shmcast_bridge::proto::counters::Histogram;
use shmcast_bridge::proto::native::keys::GroupKey;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::{MILLISECOND_NS, SECOND_NS};
use std::collections::VecDeque;

use super::block::{Cut, Head, Stream};
use super::mutant::{Mutant, is};
use super::seal::Sealer;

pub use said::{Append, Last, Refusal, Resume, State, TROUBLES, Trouble, WriterCounters};

/// How often the last block is looked at while another writer writes, or after a look failed.
pub const LOOK_NS: u64 = 250 * MILLISECOND_NS;
/// How often a writer that has nothing to write looks whether the log still has what it wrote.
const IDLE_LOOK_NS: u64 = SECOND_NS;
/// How long the log may be ahead of the channel before that is an error. A mirror of the channel may be a little late.
const AHEAD_NS: u64 = 10 * SECOND_NS;

/// The settings of a writer.
#[derive(Debug, Clone, Copy)]
pub struct WriterConfig {
    /// The stream that it writes.
    pub stream: Stream,
    /// The session of the stream. If the log has the stream already, the session is the one that the log has.
    pub session: Session,
    /// Random at each start.
    pub writer: u64,
    /// How many blocks may be without an answer.
    pub in_flight: usize,
    /// After this time without an answer an append has failed.
    pub ack_ns: u64,
    /// The silence of another writer after which this one writes.
    pub silence_ns: u64,
}

#[derive(Debug)]
struct Flight {
    sequence: u64,
    end: u64,
    /// The CRCs of the block before it and of itself.
    crcs: (u32, u32),
    block: Bytes,
    at_ns: u64,
}

/// The writing end of a log.
#[derive(Debug)]
pub struct Writer {
    config: WriterConfig,
    state: State,
    /// Grows with each attempt, so that answers to earlier ones are known as such.
    round: u64,
    /// When the last block is asked for next.
    look_ns: u64,
    /// When the last call of [`poll`](Writer::poll) was.
    polled_ns: u64,
    /// The log's number and the CRC of the newest block, stored or in flight.
    newest: (u64, u32),
    /// The log's highest number that is known to have been stored.
    had: u64,
    window: VecDeque<Flight>,
    /// The blocks that were in flight when there was trouble.
    kept: VecDeque<Flight>,
    /// Whether the window is to be appended again.
    is_again: bool,
    /// Whether another writer's last block is no reason to wait, because that writer is silent, or by order.
    may_follow: bool,
    /// Whether the log has acknowledged a block of this attempt.
    is_taken: bool,
    /// The sequence after those that were ever put into a block.
    cut: u64,
    number: u64,
    /// The sequence after those that the log has acknowledged; `None` before the first answer.
    stored: Option<u64>,
    /// The sequence with which this writer began.
    began: u64,
    resume: Option<Resume>,
    /// The last block that another writer had written.
    seen: (u64, u64),
    /// The buffers of blocks that are stored, if nobody else has them.
    spare: Vec<Vec<u8>>,
    sealer: Sealer,
    counters: WriterCounters,
    acks: Histogram,
}

impl Writer {
    /// A writer that has not asked for the last block yet.
    pub fn new(config: WriterConfig) -> Writer {
        Writer {
            config,
            state: State::Start,
            round: 0,
            look_ns: 0,
            polled_ns: 0,
            newest: (0, 0),
            had: 0,
            cut: 0,
            window: VecDeque::with_capacity(config.in_flight),
            kept: VecDeque::with_capacity(config.in_flight),
            is_again: false,
            may_follow: false,
            is_taken: false,
            number: 0,
            stored: None,
            began: 0,
            resume: None,
            seen: (0, 0),
            spare: Vec::with_capacity(config.in_flight),
            sealer: Sealer::default(),
            counters: WriterCounters::default(),
            acks: Histogram::default(),
        }
    }

    /// The writer's present state.
    pub fn state(&self) -> State {
        self.state
    }

    /// The session that blocks go out in.
    pub fn session(&self) -> Session {
        self.config.session
    }

    /// The stream that blocks are of.
    pub fn stream(&self) -> Stream {
        self.config.stream
    }

    /// The sequence after those that the log has acknowledged; 0 before the first answer.
    pub fn stored(&self) -> u64 {
        self.stored.unwrap_or(0)
    }

    /// Seals blocks with this key from now on; with none, they stay open.
    pub fn set_key(&mut self, key: Option<&GroupKey>) {
        self.sealer.set_key(self.config.writer, key);
    }

    /// How many blocks have no answer yet.
    pub fn in_flight(&self) -> usize {
        self.window.len()
    }

    /// When the oldest block without an answer was appended.
    pub fn oldest_in_flight(&self) -> Option<u64> {
        self.window.front().map(|flight| flight.at_ns)
    }

    /// The counts so far.
    pub fn counters(&self) -> &WriterCounters {
        &self.counters
    }

    /// The times from an append to its answer.
    pub fn acks(&self) -> &Histogram {
        &self.acks
    }

    /// Begins another stream, such as that of a ring made anew.
    pub fn begin(&mut self, now_ns: u64, stream: Stream, session: Session) {
        (self.config.stream, self.config.session) = (stream, session);
        self.stored = None;
        self.start(now_ns);
    }

    /// Takes the writing from another writer.
    pub fn take_over(&mut self, now_ns: u64) {
        if matches!(self.state, State::Fenced(_)) {
            self.may_follow = true;
            self.start(now_ns);
        }
    }

    fn start(&mut self, now_ns: u64) {
        self.leave(State::Start, now_ns);
    }

    fn leave(&mut self, state: State, look_ns: u64) {
        self.state = state;
        self.window.clear();
        self.kept.clear();
        (self.resume, self.is_again) = (None, false);
        self.look_ns = look_ns;
        self.round += 1;
    }

    fn resync(&mut self, now_ns: u64, trouble: Trouble) {
        self.counters.resyncs[trouble as usize] += 1;
        // Servers that have no leader, or too much to do, are not asked at once.
        let pause_ns = match trouble {
            Trouble::Refused | Trouble::Silent | Trouble::Rival => 0,
            Trouble::Busy | Trouble::Disconnected => LOOK_NS / 5,
        };
        let in_flight = std::mem::take(&mut self.window);
        self.leave(State::Resync, now_ns + pause_ns);
        self.kept = in_flight;
    }

    /// Notes what time brings. Returns the round to ask for the last block in, if that is due; give the answer to
    /// [`handle_last`](Self::handle_last) or [`handle_no_last`](Self::handle_no_last).
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let slept_ns = now_ns.saturating_sub(std::mem::replace(&mut self.polled_ns, now_ns));
        match self.state {
            // Whoever stood still may have been replaced, and appends nothing before it knows.
            State::Run if slept_ns > self.config.silence_ns / 2 => {
                self.resync(now_ns, Trouble::Silent);
            }
            State::Run => {
                let is_late = |flight: &Flight| now_ns.saturating_sub(flight.at_ns) >= self.config.ack_ns;
                if self.window.front().is_some_and(is_late) {
                    self.resync(now_ns, Trouble::Silent);
                } else if !self.window.is_empty() || self.resume.is_some() {
                    self.look_ns = now_ns + IDLE_LOOK_NS;
                }
            }
            State::Fenced(heard_ns) if now_ns.saturating_sub(heard_ns) >= self.config.silence_ns => {
                self.may_follow = true;
                self.start(now_ns);
            }
            _ => {}
        }
        if now_ns < self.look_ns {
            return None;
        }
        // An answer that does not come is asked for again, later than any client gives up.
        self.look_ns = now_ns + 4 * self.config.ack_ns.max(LOOK_NS);
        self.round += 1;
        Some(self.round)
    }

    /// When [`poll`](Self::poll) is due.
    pub fn next_deadline(&self) -> u64 {
        match self.state {
            State::Run => {
                self.window.front().map_or(self.look_ns, |flight| flight.at_ns + self.config.ack_ns)
            }
            State::Fenced(heard_ns) => self.look_ns.min(heard_ns + self.config.silence_ns),
            State::Start | State::Resync | State::Ahead(_) => self.look_ns,
        }
    }

    /// The last block could not be had.
    pub fn handle_no_last(&mut self, now_ns: u64, round: u64) {
        if round == self.round && self.state != State::Run {
            self.look_ns = now_ns + LOOK_NS;
        }
    }

    /// Takes the last block. `ring_next` is the sequence that the channel gives next.
    ///
    /// # Errors
    /// [`Refusal`]; nothing may be written.
    pub fn handle_last(
        &mut self,
        now_ns: u64,
        round: u64,
        last: Last,
        ring_next: u64,
    ) -> Result<(), Refusal> {
        if round != self.round || (self.state == State::Run && !self.window.is_empty()) {
            return Ok(());
        }
        if self.state == State::Run {
            self.look_ns = now_ns + IDLE_LOOK_NS;
            if (last.sequence, last.head.map_or(0, |head| head.crc)) == self.newest {
                return Ok(());
            }
            // The log does not have what it acknowledged, or another writer has written.
            self.resync(now_ns, Trouble::Refused);
        }
        let Some(head) = last.head else {
            self.lose_all(last.sequence);
            let at = self.stored.map_or(Resume::Beginning, Resume::At);
            self.run(now_ns, (last.sequence, 0), at);
            return Ok(());
        };
        if head.key != 0 && self.sealer.key() == 0 {
            return Err(Refusal::Sealed);
        }
        if head.stream != self.config.stream {
            return self.meet_other(now_ns, last.sequence, &head);
        }
        self.config.session = head.session;
        let is_rival = head.writer != self.config.writer && !self.may_follow;
        if is_rival && !matches!(self.state, State::Ahead(_)) {
            self.yield_to(now_ns, &head);
            return Ok(());
        }
        if head.end() > ring_next {
            let since_ns = if let State::Ahead(since_ns) = self.state { since_ns } else { now_ns };
            if now_ns.saturating_sub(since_ns) >= AHEAD_NS {
                return Err(Refusal::Ahead { theirs: head.end() - 1, ours: ring_next - 1 });
            }
            (self.state, self.look_ns) = (State::Ahead(since_ns), now_ns + LOOK_NS);
            return Ok(());
        }
        if let Some(stored) = self.stored.filter(|stored| *stored > head.end() && !is(Mutant::LossUnseen)) {
            self.counters.lost_by_engine += stored - head.end();
            self.counters.losses += 1;
        }
        let at = match self.stored.filter(|stored| *stored > head.end()) {
            _ if is(Mutant::GoesOn) => self.cut.max(head.end()),
            Some(stored) if is(Mutant::LossUnseen) => stored,
            _ => head.end(),
        };
        if self.stored.is_none() {
            self.began = at;
        }
        self.stored = Some(at);
        self.run(now_ns, (last.sequence, head.crc), Resume::At(at));
        self.go_on(now_ns);
        Ok(())
    }

    /// Notes that the log has nothing. If there never was anything in it, it has lost all that it acknowledged.
    fn lose_all(&mut self, last: u64) {
        if last == 0 && self.had > 0 {
            self.counters.lost_by_engine += self.stored().saturating_sub(self.began);
            self.counters.losses += 1;
            (self.stored, self.had) = (None, 0);
        }
    }

    fn run(&mut self, now_ns: u64, (sequence, crc): (u64, u32), resume: Resume) {
        (self.state, self.is_taken, self.may_follow) = (State::Run, false, false);
        self.look_ns = now_ns + IDLE_LOOK_NS;
        (self.newest, self.had) = ((sequence, crc), self.had.max(sequence));
        self.resume = Some(resume);
    }

    /// The log has another stream. A stream of a later session begins behind it.
    fn meet_other(&mut self, now_ns: u64, sequence: u64, head: &Head) -> Result<(), Refusal> {
        let (ours, theirs) = (self.config.session, head.session);
        let is_later =
            ours.tag() == theirs.tag() && theirs.epoch().is_some_and(|epoch| ours.epoch() > Some(epoch));
        if !is_later {
            return Err(Refusal::OtherStream { theirs, ours });
        }
        self.stored = None;
        self.run(now_ns, (sequence, head.crc), Resume::Beginning);
        Ok(())
    }

    fn yield_to(&mut self, now_ns: u64, head: &Head) {
        let seen = (head.writer, head.number);
        let heard_ns = match self.state {
            State::Fenced(heard_ns) if self.seen == seen => heard_ns,
            State::Fenced(_) | State::Start => now_ns,
            _ => {
                self.counters.fenced += 1;
                now_ns
            }
        };
        (self.seen, self.may_follow) = (seen, false);
        (self.state, self.look_ns) = (State::Fenced(heard_ns), now_ns + LOOK_NS);
    }

    /// Notes that a writer says that it writes.
    pub fn handle_pulse(&mut self, now_ns: u64, writer: u64) {
        match self.state {
            _ if writer == self.config.writer => {}
            State::Fenced(_) => self.state = State::Fenced(now_ns),
            // With blocks in flight, their answers decide.
            State::Run if self.window.is_empty() => self.resync(now_ns, Trouble::Rival),
            _ => {}
        }
    }

    /// Where to go on reading the channel, once after each change.
    pub fn take_resume(&mut self) -> Option<Resume> {
        self.resume.take()
    }

    /// Notes where a stream of which the log has nothing begins.
    pub fn note_beginning(&mut self, first: u64) {
        self.began = first;
        self.stored = Some(first);
    }

    /// Whether a block may be appended now.
    pub fn has_room(&self) -> bool {
        let most = if self.is_taken { self.config.in_flight } else { 1 };
        self.state == State::Run && self.resume.is_none() && self.window.len() < most
    }

    /// The block to append. Call only if there [`has_room`](Self::has_room).
    pub fn append(&mut self, now_ns: u64, cut: Cut, clock_error: u16) -> Append {
        debug_assert!(self.has_room());
        self.number += 1;
        let (after, before) = self.newest;
        let end = cut.first + u64::from(cut.count);
        self.cut = end;
        let (block, crc) = cut.finish(self.head(clock_error, before), &self.sealer);
        self.newest = (after + 1, crc);
        let (block, crcs) = (Bytes::from(block), (before, crc));
        self.window.push_back(Flight { sequence: after + 1, end, crcs, block: block.clone(), at_ns: now_ns });
        let after = if is(Mutant::NoExpectation) { u64::MAX } else { after };
        Append { round: self.round, at_ns: now_ns, after, block }
    }

    fn head(&self, clock_error: u16, before: u32) -> Head {
        let WriterConfig { stream, session, writer, .. } = self.config;
        Head { clock_error, before, ..Head::new(stream, session, (writer, self.number)) }
    }

    /// Takes the answer to an append: the log's number of the block, or the trouble.
    pub fn handle_ack(&mut self, now_ns: u64, round: u64, answer: Result<u64, Trouble>) {
        if self.state != State::Run || round != self.round {
            return;
        }
        let sequence = match answer {
            Ok(sequence) if sequence <= self.newest.0 => sequence,
            // It is stored in another place than it was built for.
            Ok(_) => return self.resync(now_ns, Trouble::Refused),
            Err(trouble) => return self.resync(now_ns, trouble),
        };
        // Each block stands behind the one before it, so the ones before it are stored as well.
        while self.window.front().is_some_and(|flight| flight.sequence <= sequence)
            && let Some(flight) = self.window.pop_front()
        {
            (self.stored, self.had) = (Some(flight.end), self.had.max(flight.sequence));
            self.is_taken = true;
            self.counters.blocks += 1;
            self.counters.bytes += flight.block.len() as u64;
            self.acks.record(now_ns.saturating_sub(flight.at_ns), 1);
            if flight.block.is_unique() && self.spare.len() < self.config.in_flight {
                self.spare.push(flight.block.into());
            }
        }
    }

    /// The buffer of a block that is stored, for another one.
    pub fn take_spare(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }
}
