//! The state machine of the sending end. It decides which block is appended next, after which entry of the log, and what follows a failed
//! append.
//!
//! ```text
//! START    requests the log's last block.
//!          It is this writer's, or the other writer is silent -> RUN.  It is another writer's -> FENCED.  It does not open -> SHUT
//! RUN      appends blocks, each after the previous one. The first waits for its answer; then up to `in_flight` are in flight.
//!          An append was refused, or had no answer; the connection broke; the servers are busy -> RESYNC
//! RESYNC   requests the log's last block.
//!          It is this writer's: repeats the appends that were in flight -> RUN.  It is another writer's -> FENCED
//! FENCED   waits while another writer writes. No new block and no pulse of it for `silence_ns`, or an order -> START
//! SHUT     waits while the last block is sealed with unknown keys, because the end of the log is then unknown.
//!          Another last block, other keys, or an order -> START
//! ```
//! **Rivals.** Two writers of one channel are rivals. The writer that made the log's last block owns the log and writes. The other writer
//! waits until the owner is silent, even if the waiting writer has just started.
//!
//! A writer that replaces another one first appends a takeover block. The replaced writer notices the takeover block even if the channel is
//! idle. The log then refuses the blocks that the replaced writer has in flight. The next paragraph names one exception.
//!
//! **Late appends.** An append can reach the log after its writer gave the append up. The log stores such an append only after the expected
//! previous entry. The two kinds of logs recognize this entry differently:
//!
//! - The log of a single server compares the entry's number and name. The number alone is not enough, because a log that lost its end, or
//!   was removed, uses numbers again.
//! - A log that several servers keep compares only the number, and never uses a number again. If a rival's block takes the number of a
//!   writer's first block in flight, the log can store the writer's second block after the rival's block. Readers notice this.
//!
//! **Repeats.** A writer has only one block for each number. It repeats a block in flight byte for byte, so it does not matter which copy
//! of the block the log stores.

mod again;
mod io;
mod last;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use bytes::Bytes;
use shmcast_bridge::proto::counters::Histogram;
use shmcast_bridge::proto::native::keys::GroupKey;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::{MILLISECOND_NS, SECOND_NS};
use std::collections::VecDeque;

use super::block::{BlockId, Cut, Head, Stream};
use super::mutant::{Mutant, is};
use super::seal::Sealer;

pub use io::{Append, Last, Refusal, Resume, State, TROUBLES, Trouble, WriterCounters};

/// The interval at which a waiting writer reads the log's last block again. Also the pause after a request for the last block has failed.
pub const LOOK_NS: u64 = 250 * MILLISECOND_NS;
/// The interval at which an idle writer checks whether the log still has the writer's blocks.
const IDLE_LOOK_NS: u64 = SECOND_NS;
/// The time for which a writer that was ordered to take over tries to replace a living writer.
const ORDER_NS: u64 = 2 * SECOND_NS;
/// If the log has more messages than the channel for this time, the writer refuses to write. Within this time, it waits, because the
/// channel of a mirror can lag a little.
const AHEAD_NS: u64 = 10 * SECOND_NS;

/// The settings of a writer.
#[derive(Debug, Clone, Copy)]
pub struct WriterConfig {
    /// The stream that the writer writes.
    pub stream: Stream,
    /// The session of the stream. It is replaced by the log's session if the log already has the stream.
    pub session: Session,
    /// The number of the writer, which is random at each start.
    pub writer: u64,
    /// Greatest number of blocks without an answer.
    pub in_flight: usize,
    /// If an append has no answer for this time, it has failed.
    pub ack_ns: u64,
    /// If another writer is silent for this time, this writer writes.
    pub silence_ns: u64,
}

#[derive(Debug)]
struct Flight {
    sequence: u64,
    end: u64,
    /// The CRCs of the previous block and of this block.
    crcs: (u32, u32),
    /// The name of the previous block; `None` if only its number counts.
    behind: Option<BlockId>,
    id: BlockId,
    block: Bytes,
    at_ns: u64,
}

/// The writing end of a log.
#[derive(Debug)]
pub struct Writer {
    config: WriterConfig,
    state: State,
    /// The number of the current attempt. Answers with another number are ignored.
    round: u64,
    /// The time at which the last block is requested next.
    look_ns: u64,
    /// The time of the last call of [`poll`](Writer::poll).
    polled_ns: u64,
    /// The entry number and the CRC of the newest block, stored or in flight.
    newest: (u64, u32),
    /// The value of `newest` when the log's last block was last requested.
    looked: (u64, u32),
    /// The name of the newest block; `None` if it is unknown to this writer or to the log.
    newest_id: Option<BlockId>,
    /// The entry number that the next append must name, if the log requires another number than that of the last entry.
    stores_after: Option<u64>,
    /// The number and CRC of the block after which appends were refused, and how many appends were refused in a row.
    refused: ((u64, u32), u32),
    /// The highest entry number that the log is known to have stored.
    had: u64,
    window: VecDeque<Flight>,
    /// The blocks that were in flight at the last [`Trouble`]. They might be appended again.
    kept: VecDeque<Flight>,
    /// Whether the blocks of the window must be appended again.
    is_again: bool,
    /// Whether this writer is allowed to append after a block of another writer, because the other writer is silent.
    may_follow: bool,
    /// Until this time the writer is allowed to append after any block, because it was ordered to take over.
    ordered_until_ns: u64,
    /// Whether this writer has taken over from another one, and must still append the block that announces the takeover.
    takes_over: bool,
    /// Until this time, the pulse (announcement) of a rival does not cause another reading of the last block.
    heed_ns: u64,
    /// Whether the log has acknowledged a block since the writer last read the log's end.
    is_taken: bool,
    /// The sequence after the last sequence of the newest block.
    cut: u64,
    number: u64,
    /// The sequence after the last sequence that the log has acknowledged; `None` before the first answer.
    stored: Option<u64>,
    /// The sequence with which this writer began.
    began: u64,
    resume: Option<Resume>,
    /// The last block of another writer that this writer has seen: the writer's number and the block's number.
    seen: (u64, u64),
    /// The time at which this writer began to wait for another writer.
    met_ns: u64,
    /// Free buffers of stored blocks.
    spare: Vec<Vec<u8>>,
    sealer: Sealer,
    counters: WriterCounters,
    acks: Histogram,
}

impl Writer {
    /// Makes a writer that has not requested the last block yet.
    pub fn new(config: WriterConfig) -> Writer {
        Writer {
            config,
            state: State::Start,
            round: 0,
            look_ns: 0,
            polled_ns: 0,
            newest: (0, 0),
            looked: (0, 0),
            newest_id: None,
            stores_after: None,
            refused: ((0, 0), 0),
            had: 0,
            cut: 0,
            window: VecDeque::with_capacity(config.in_flight),
            kept: VecDeque::with_capacity(config.in_flight),
            is_again: false,
            may_follow: false,
            ordered_until_ns: 0,
            takes_over: false,
            heed_ns: 0,
            is_taken: false,
            number: 0,
            stored: None,
            began: 0,
            resume: None,
            seen: (0, 0),
            met_ns: 0,
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

    /// The session of the blocks.
    pub fn session(&self) -> Session {
        self.config.session
    }

    /// The stream of the blocks.
    pub fn stream(&self) -> Stream {
        self.config.stream
    }

    /// The sequence after the last sequence that the log has acknowledged; 0 before the first answer.
    pub fn stored(&self) -> u64 {
        self.stored.unwrap_or(0)
    }

    /// Sets the key that seals this writer's blocks. With `None`, the blocks are not sealed.
    pub fn set_key(&mut self, key: Option<&GroupKey>) {
        self.sealer.set_key(self.config.writer, key);
    }

    /// Returns the number of blocks that have no answer yet.
    pub fn in_flight(&self) -> usize {
        self.window.len()
    }

    /// Returns the time at which the oldest block without an answer was appended.
    pub fn oldest_in_flight(&self) -> Option<u64> {
        self.window.front().map(|flight| flight.at_ns)
    }

    /// The counts so far.
    pub fn counters(&self) -> &WriterCounters {
        &self.counters
    }

    /// The durations from an append to its answer.
    pub fn acks(&self) -> &Histogram {
        &self.acks
    }

    /// Begins another stream, for example after the ring was replaced.
    pub fn begin(&mut self, now_ns: u64, stream: Stream, session: Session) {
        (self.config.stream, self.config.session) = (stream, session);
        self.stored = None;
        self.start(now_ns);
    }

    /// Follows an order to take over from another writer, or to continue after a block that cannot be opened.
    pub fn take_over(&mut self, now_ns: u64) {
        if self.state != State::Run {
            self.ordered_until_ns = now_ns + ORDER_NS;
        }
        if matches!(self.state, State::Fenced(_) | State::Shut(_)) {
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
        // Servers that have no leader, or are busy, are not asked again immediately.
        let pause_ns = match trouble {
            Trouble::Refused | Trouble::Silent | Trouble::Rival => 0,
            Trouble::Busy | Trouble::Disconnected => LOOK_NS / 5,
        };
        if let Some(first) = self.window.front().filter(|_| trouble == Trouble::Refused) {
            let behind = (first.sequence - 1, first.crcs.0);
            self.refused = (behind, if behind == self.refused.0 { self.refused.1 + 1 } else { 1 });
        }
        let in_flight = std::mem::take(&mut self.window);
        self.leave(State::Resync, now_ns + pause_ns);
        self.kept = in_flight;
    }

    /// Advances the time. Returns the round in which to request the last block, if a request is due. Pass the answer to
    /// [`handle_last`](Self::handle_last) or [`handle_no_last`](Self::handle_no_last).
    pub fn poll(&mut self, now_ns: u64) -> Option<u64> {
        let slept_ns = now_ns.saturating_sub(std::mem::replace(&mut self.polled_ns, now_ns));
        match self.state {
            // A writer that was paused for so long might have been replaced, so it appends nothing before it has read the last block.
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
        // If the request has no answer by this time, it is repeated. The time is so long that the client has given the request up by then.
        self.look_ns = now_ns + 4 * self.config.ack_ns.max(LOOK_NS);
        self.round += 1;
        self.looked = self.newest;
        Some(self.round)
    }

    /// The time at which [`poll`](Self::poll) is due.
    pub fn next_deadline(&self) -> u64 {
        match self.state {
            State::Run => {
                self.window.front().map_or(self.look_ns, |flight| flight.at_ns + self.config.ack_ns)
            }
            State::Fenced(heard_ns) => self.look_ns.min(heard_ns + self.config.silence_ns),
            State::Start | State::Resync | State::Ahead(_) | State::Shut(_) => self.look_ns,
        }
    }

    /// Notes that a writer announced that it writes.
    pub fn handle_pulse(&mut self, now_ns: u64, writer: u64) {
        match self.state {
            _ if writer == self.config.writer => {}
            State::Fenced(_) => self.state = State::Fenced(now_ns),
            // If blocks are in flight, their answers show whether this writer still owns the log. Otherwise the writer reads the last
            // block. It does not do so for every pulse, because anybody can send pulses.
            State::Run if self.window.is_empty() && now_ns >= self.heed_ns => {
                self.heed_ns = now_ns + LOOK_NS;
                self.resync(now_ns, Trouble::Rival);
            }
            _ => {}
        }
    }

    /// Returns the sequence at which to continue to read the channel. Only the first call after each change returns a value.
    pub fn take_resume(&mut self) -> Option<Resume> {
        self.resume.take()
    }

    /// Sets the first sequence of a stream that the log does not have yet.
    pub fn note_beginning(&mut self, first: u64) {
        self.began = first;
        self.stored = Some(first);
    }

    /// Whether a block can be appended now.
    pub fn has_room(&self) -> bool {
        let most = if self.is_taken { self.config.in_flight } else { 1 };
        self.state == State::Run && self.resume.is_none() && self.window.len() < most
    }

    /// Returns the block that announces a takeover, if this writer has taken over from another one and has not announced it yet. Call this
    /// before [`append`](Self::append).
    pub fn take_takeover(&mut self, now_ns: u64, clock_error: u16) -> Option<Append> {
        let next = self.stored.filter(|_| self.takes_over && self.has_room())?;
        self.takes_over = false;
        Some(self.append(now_ns, Cut::takeover(next), clock_error))
    }

    /// Makes the block to append. Call this only if [`has_room`](Self::has_room) returns true.
    pub fn append(&mut self, now_ns: u64, cut: Cut, clock_error: u16) -> Append {
        debug_assert!(self.has_room());
        self.number += 1;
        let (after, before) = self.newest;
        let end = cut.first + u64::from(cut.count);
        self.cut = end;
        let head = self.head(clock_error, before);
        let (block, crc) = cut.finish(head, &self.sealer);
        let (behind, id) = (self.newest_id, head.id());
        (self.newest, self.newest_id) = ((after + 1, crc), Some(id).filter(|_| !is(Mutant::NumbersAlone)));
        let (sequence, block, crcs) = (after + 1, Bytes::from(block), (before, crc));
        self.window.push_back(Flight {
            sequence,
            end,
            crcs,
            behind,
            id,
            block: block.clone(),
            at_ns: now_ns,
        });
        let (after, behind) = if is(Mutant::NoExpectation) { (u64::MAX, None) } else { (after, behind) };
        let after = self.stores_after.take().unwrap_or(after);
        Append { round: self.round, at_ns: now_ns, after, behind, id, block }
    }

    fn head(&self, clock_error: u16, before: u32) -> Head {
        let WriterConfig { stream, session, writer, .. } = self.config;
        Head { clock_error, before, ..Head::new(stream, session, BlockId { writer, number: self.number }) }
    }

    /// Handles the answer to an append: the entry number of the block, or an error.
    pub fn handle_ack(&mut self, now_ns: u64, round: u64, answer: Result<u64, Trouble>) {
        if self.state != State::Run || round != self.round {
            return;
        }
        let sequence = match answer {
            Ok(sequence) if sequence <= self.newest.0 => sequence,
            // The log stored the block after an unexpected entry.
            Ok(_) => return self.resync(now_ns, Trouble::Refused),
            Err(trouble) => return self.resync(now_ns, trouble),
        };
        // Each block is stored after the previous one, so all earlier blocks are stored as well.
        while self.window.front().is_some_and(|flight| flight.sequence <= sequence)
            && let Some(flight) = self.window.pop_front()
        {
            (self.stored, self.had) = (Some(flight.end), self.had.max(flight.sequence));
            (self.is_taken, self.ordered_until_ns, self.refused.1) = (true, 0, 0);
            self.counters.blocks += 1;
            self.counters.bytes += flight.block.len() as u64;
            self.acks.record(now_ns.saturating_sub(flight.at_ns), 1);
            if flight.block.is_unique() && self.spare.len() < self.config.in_flight {
                self.spare.push(flight.block.into());
            }
        }
    }

    /// Takes the buffer of a stored block, to reuse it.
    pub fn take_spare(&mut self) -> Option<Vec<u8>> {
        self.spare.pop()
    }
}
