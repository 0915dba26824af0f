//! The sending end of a feed. It packs waiting messages into packets, and sends heartbeats when none are
//! waiting.
//!
//! The caller reads its ring and pushes messages until there are no more or the batch is full. Then it sends
//! the batch. A packet is closed when it is full or when nothing is waiting, never later. Packets lie one
//! after the other in slots of one slab, ready for a single `sendmmsg`. After data, heartbeats follow quickly
//! and then become rarer, so that a lost last packet is noticed at once. This module knows no repairs
//! (`replay`), destinations or ring.
//!
//! ```text
//! loop { push.. ; close; if batch is not empty { send each datagram(); clear(now) } else { send poll_idle(now) } }
//! ```

#[cfg(test)]
mod tests;

use super::counters::SenderCounters;
use super::session::Session;
use super::wire::{self, HEADER_BYTES, LENGTH_BYTES, MAX_DATAGRAM_BYTES, PacketWriter};
use super::{DEFAULT_PAYLOAD_BYTES, MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};

/// An end is sent at least so often, however short it lingers: one packet may be lost, and one alone is not believed.
const LEAST_ENDS: u64 = 3;

/// The times of the first heartbeats after the last data. Later heartbeats come every [`HEARTBEAT_EVERY_NS`].
pub const HEARTBEAT_AFTER_NS: [u64; 6] = [
    250 * MICROSECOND_NS,
    MILLISECOND_NS,
    4 * MILLISECOND_NS,
    16 * MILLISECOND_NS,
    64 * MILLISECOND_NS,
    256 * MILLISECOND_NS,
];
/// The time between heartbeats on an idle line.
pub const HEARTBEAT_EVERY_NS: u64 = SECOND_NS;

/// The configuration of a sender.
#[derive(Debug, Clone, Copy)]
pub struct SenderConfig {
    /// The largest datagram, in bytes; 23 to 65 507.
    pub payload_bytes: usize,
    /// The most datagrams in one batch; at least 1.
    pub batch: usize,
    /// How long end-of-session packets are repeated, in nanoseconds.
    pub linger_ns: u64,
}

impl Default for SenderConfig {
    fn default() -> SenderConfig {
        SenderConfig { payload_bytes: DEFAULT_PAYLOAD_BYTES, batch: 32, linger_ns: 10 * SECOND_NS }
    }
}

/// The reason that a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// Send the batch, clear it, push again.
    #[error("the batch is full: send and clear it, then push again")]
    BatchFull,
    /// No packet can carry it.
    #[error(
        "a message of {size} bytes does not fit a packet, which carries at most {max}: raise the payload size or lower the channel's max_message"
    )]
    TooLong {
        /// The message's size.
        size: usize,
        /// The largest that fits.
        max: usize,
    },
    /// It was sent before; a reader of a ring never goes back.
    #[error("sequence {sequence} comes after {next} was expected: the reader went back")]
    WentBack {
        /// The message's sequence.
        sequence: u64,
        /// The sequence expected.
        next: u64,
    },
}

/// The state of one sender. All its memory is allocated at the start.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    session: Session,
    /// The sequence after the last message taken.
    next: u64,
    slab: Vec<u8>,
    /// The sizes of the closed packets, which lie in the first slots; the open one has the slot after them.
    closed: Vec<usize>,
    open: PacketWriter,
    /// The time that heartbeats count from: the last data, the start, or the end of the session.
    quiet_since_ns: u64,
    beats: usize,
    beat_at_ns: u64,
    ended_ns: Option<u64>,
    counters: SenderCounters,
}

impl Sender {
    /// A sender whose next message has the sequence `next`. It announces itself with heartbeats from `now_ns` on.
    pub fn new(mut config: SenderConfig, session: Session, next: u64, now_ns: u64) -> Sender {
        config.payload_bytes =
            config.payload_bytes.clamp(HEADER_BYTES + LENGTH_BYTES + 1, MAX_DATAGRAM_BYTES);
        config.batch = config.batch.max(1);
        let next = next.max(1);
        Sender {
            config,
            session,
            next,
            slab: vec![0; config.payload_bytes * config.batch],
            closed: Vec::with_capacity(config.batch),
            open: PacketWriter::new(next),
            quiet_since_ns: now_ns,
            beats: 0,
            beat_at_ns: now_ns,
            ended_ns: None,
            counters: SenderCounters::default(),
        }
    }

    /// The largest message that a packet carries, in bytes.
    pub fn max_message_bytes(&self) -> usize {
        (self.config.payload_bytes - HEADER_BYTES - LENGTH_BYTES).min(usize::from(u16::MAX))
    }

    /// Takes the next message into the batch: one copy. Sequences that are skipped were lost to this reader of the
    /// ring; they start a new packet, and receivers ask for them.
    ///
    /// # Errors
    /// [`PushError`]; the message was not taken and nothing has changed.
    pub fn push(&mut self, sequence: u64, data: &[u8]) -> Result<(), PushError> {
        let max = self.max_message_bytes();
        if data.len() > max {
            return Err(PushError::TooLong { size: data.len(), max });
        }
        if sequence < self.next {
            return Err(PushError::WentBack { sequence, next: self.next });
        }
        if sequence != self.open.next() {
            self.close();
            self.open = PacketWriter::new(sequence);
        }
        if !self.push_open(data) {
            self.close();
            if !self.push_open(data) {
                return Err(PushError::BatchFull);
            }
        }
        self.counters.messages += 1;
        self.counters.messages_missed += sequence - self.next;
        self.next = sequence.saturating_add(1);
        Ok(())
    }

    fn push_open(&mut self, data: &[u8]) -> bool {
        let size = self.config.payload_bytes;
        let slot = self.slab.chunks_exact_mut(size).nth(self.closed.len());
        slot.is_some_and(|slot| self.open.push(slot, data))
    }

    /// Closes the packet being filled, because nothing more is waiting.
    pub fn close(&mut self) {
        let size = self.config.payload_bytes;
        if let Some(slot) = self.slab.chunks_exact_mut(size).nth(self.closed.len())
            && let Some(bytes) = self.open.finish(slot, self.session)
        {
            self.closed.push(bytes);
            self.counters.packets += 1;
            self.counters.bytes += bytes as u64;
            self.open = PacketWriter::new(self.open.next());
        }
    }

    /// The closed packets of the batch, to be sent in this order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        self.slab
            .chunks_exact(self.config.payload_bytes)
            .zip(&self.closed)
            .map(|(slot, &bytes)| &slot[..bytes])
    }

    /// Forgets the closed packets, which were sent at `now_ns`. The packet still open, if any, moves to the first slot.
    pub fn clear(&mut self, now_ns: u64) {
        if self.closed.is_empty() {
            return;
        }
        if self.open.count() > 0 {
            let from = self.closed.len() * self.config.payload_bytes;
            self.slab.copy_within(from..from + self.config.payload_bytes, 0);
        }
        self.closed.clear();
        self.restart_heartbeats(now_ns, HEARTBEAT_AFTER_NS[0]);
    }

    /// Ends the session. From now on end-of-session packets take the place of heartbeats, the first at once.
    /// Close and send the batch first. Repairs should go on until [`Sender::is_finished`].
    pub fn end(&mut self, now_ns: u64) {
        if self.ended_ns.is_none() {
            self.ended_ns = Some(now_ns);
            self.restart_heartbeats(now_ns, 0);
        }
    }

    /// Whether the session is over and its end was repeated for long enough. A caller that comes late repeats it all the same: a
    /// receiver does not believe an end that it hears once.
    pub fn is_finished(&self, now_ns: u64) -> bool {
        let has_lingered = |ended_ns| now_ns.saturating_sub(ended_ns) >= self.config.linger_ns;
        self.counters.ends >= LEAST_ENDS && self.ended_ns.is_some_and(has_lingered)
    }

    /// The heartbeat or end-of-session packet that is due, if one is.
    pub fn poll_idle(&mut self, now_ns: u64) -> Option<[u8; HEADER_BYTES]> {
        // A heartbeat must not name sequences that are still waiting in the batch.
        let is_waiting = self.open.count() > 0 || !self.closed.is_empty();
        if is_waiting || now_ns < self.beat_at_ns || self.is_finished(now_ns) {
            return None;
        }
        // A late caller sends one packet, not all those that it missed.
        let elapsed_ns = now_ns.saturating_sub(self.quiet_since_ns);
        while HEARTBEAT_AFTER_NS.get(self.beats).is_some_and(|&after_ns| after_ns <= elapsed_ns) {
            self.beats += 1;
        }
        self.beat_at_ns = match HEARTBEAT_AFTER_NS.get(self.beats) {
            Some(after_ns) => self.quiet_since_ns.saturating_add(*after_ns),
            None => now_ns.saturating_add(HEARTBEAT_EVERY_NS),
        };
        if self.ended_ns.is_some() {
            self.counters.ends += 1;
            return Some(wire::end_of_session(self.session, self.next));
        }
        self.counters.heartbeats += 1;
        Some(wire::heartbeat(self.session, self.next))
    }

    /// When [`Sender::poll_idle`] has something to send if no data comes; `None` when all is over.
    pub fn next_deadline(&self, now_ns: u64) -> Option<u64> {
        (!self.is_finished(now_ns)).then_some(self.beat_at_ns)
    }

    fn restart_heartbeats(&mut self, now_ns: u64, first_after_ns: u64) {
        (self.quiet_since_ns, self.beats) = (now_ns, 0);
        self.beat_at_ns = now_ns.saturating_add(first_after_ns);
    }

    /// The counters so far.
    pub fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// The session that is being sent.
    pub fn session(&self) -> Session {
        self.session
    }

    /// The sequence after the last message taken.
    pub fn next(&self) -> u64 {
        self.next
    }
}
