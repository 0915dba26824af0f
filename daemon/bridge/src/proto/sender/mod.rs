//! The sending end of a feed. It packs the messages that are waiting into packets, and makes heartbeats when no messages are waiting.
//!
//! The caller reads its ring and pushes messages until there are no more or the batch is full. Then it sends the batch. A packet is closed
//! when it is full, or when no message is waiting, and never later. The packets of a batch are in consecutive slots of one slab, so that
//! one `sendmmsg` can send them.
//!
//! After data, heartbeats follow quickly at first and then become rarer, so that receivers soon notice if the last packet was lost. The
//! sender of a native line sends pulses in place of heartbeats. It also sends the marks of messages, and sends messages that are larger
//! than a packet in fragments.
//!
//! This module handles no repairs (`replay`), no destinations and no ring.
//!
//! ```text
//! loop { push.. ; close; if batch is not empty { send each datagram(); clear(now) } else { send poll_idle(now) } }
//! ```

mod open;
#[cfg(test)]
mod tests;

use super::counters::SenderCounters;
use super::native::container::{HEAD_BYTES, Kind, SEAL_BYTES};
use super::native::fragments::{FRAGMENT_HEAD_BYTES, Fragment, MAX_MESSAGE_BYTES};
use super::native::pulse::{PULSE_BYTES, Pulse};
use super::native::records;
use super::native::seal::Sealer;
use super::session::Session;
use super::wire::{self, HEADER_BYTES, LENGTH_BYTES, MAX_DATAGRAM_BYTES, Meta};
use super::{DEFAULT_PAYLOAD_BYTES, MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use open::Open;

/// The least number of end-of-session packets that are sent, even if `linger_ns` is short. One packet can be lost, and receivers do not
/// believe a single packet.
pub const LEAST_ENDS: u64 = 3;

/// The times of the first heartbeats, counted from the last data, in nanoseconds. After these heartbeats, there is a heartbeat every
/// [`HEARTBEAT_EVERY_NS`].
pub const HEARTBEAT_AFTER_NS: [u64; 6] = [
    250 * MICROSECOND_NS,
    MILLISECOND_NS,
    4 * MILLISECOND_NS,
    16 * MILLISECOND_NS,
    64 * MILLISECOND_NS,
    256 * MILLISECOND_NS,
];
/// The time between heartbeats on an idle line, in nanoseconds.
pub const HEARTBEAT_EVERY_NS: u64 = SECOND_NS;

/// The size of the largest pulse, in bytes.
pub const MAX_PULSE_BYTES: usize = HEAD_BYTES + PULSE_BYTES + SEAL_BYTES;
/// The least `payload_bytes` of a native line.
pub const LEAST_NATIVE_BYTES: usize = 320;

/// The time between pulses of a native line while messages flow, in nanoseconds.
const PULSE_EVERY_NS: u64 = 100 * MILLISECOND_NS;

/// The configuration of a sender.
#[derive(Debug, Clone, Copy)]
pub struct SenderConfig {
    /// The largest datagram, in bytes; 23 to 65 507.
    pub payload_bytes: usize,
    /// The greatest number of datagrams in one batch; at least 1.
    pub batch: usize,
    /// The time for which end-of-session packets are repeated, in nanoseconds.
    pub linger_ns: u64,
}

impl Default for SenderConfig {
    fn default() -> SenderConfig {
        SenderConfig { payload_bytes: DEFAULT_PAYLOAD_BYTES, batch: 32, linger_ns: 10 * SECOND_NS }
    }
}

/// The reason why a message was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The batch is full. Send it, clear it, and push the message again.
    #[error("the batch is full: send and clear it, then push again")]
    BatchFull,
    /// The message does not fit any packet.
    #[error(
        "a message of {size} bytes does not fit a packet, which carries at most {max}: raise the payload size or lower the channel's max_message"
    )]
    TooLong {
        /// The message's size, in bytes.
        size: usize,
        /// The size of the largest message that fits, in bytes.
        max: usize,
    },
    /// The message was sent before. A reader of a ring never goes back, so this cannot happen with a ring.
    #[error("sequence {sequence} comes after {next} was expected: the reader went back")]
    WentBack {
        /// The message's sequence.
        sequence: u64,
        /// The sequence that was expected.
        next: u64,
    },
}

/// The state of one sender. All of its memory is allocated at the start.
#[derive(Debug)]
pub struct Sender {
    config: SenderConfig,
    session: Session,
    /// The sequence after the last accepted message.
    next: u64,
    slab: Vec<u8>,
    /// The sizes of the closed packets, which are in the first slots. The next slot has the open packet.
    closed: Vec<usize>,
    open: Open,
    /// Numbers and seals the packets of a native line; `None` on a plain line.
    native: Option<Sealer>,
    /// The number of bytes of the next message that were already sent or packed as fragments.
    part: usize,
    /// The time from which heartbeats are scheduled: when the session began, when its last data were sent, or when it ended.
    quiet_since_ns: u64,
    beats: usize,
    beat_at_ns: u64,
    /// The time at which the next pulse of a native line is due while messages flow.
    pulse_at_ns: u64,
    ended_ns: Option<u64>,
    counters: SenderCounters,
}

impl Sender {
    /// Makes a sender whose next message has the sequence `next`. It announces itself with heartbeats from `now_ns` on.
    pub fn new(mut config: SenderConfig, session: Session, next: u64, now_ns: u64) -> Sender {
        config.payload_bytes =
            config.payload_bytes.clamp(HEADER_BYTES + LENGTH_BYTES + 1, MAX_DATAGRAM_BYTES);
        config.batch = config.batch.max(1);
        let next = next.max(1);
        Sender {
            native: None,
            part: 0,
            config,
            session,
            next,
            slab: vec![0; config.payload_bytes * config.batch],
            closed: Vec::with_capacity(config.batch),
            open: Open::plain(next),
            quiet_since_ns: now_ns,
            beats: 0,
            beat_at_ns: now_ns,
            pulse_at_ns: now_ns,
            ended_ns: None,
            counters: SenderCounters::default(),
        }
    }

    /// Makes the sender of a native line. `payload_bytes` is raised to [`LEAST_NATIVE_BYTES`] if it is less. `sealer` numbers and seals the
    /// packets.
    pub fn native(
        mut config: SenderConfig,
        session: Session,
        next: u64,
        now_ns: u64,
        sealer: Sealer,
    ) -> Sender {
        config.payload_bytes = config.payload_bytes.max(LEAST_NATIVE_BYTES);
        let sender = Sender::new(config, session, next, now_ns);
        Sender { open: Open::native(sender.next), native: Some(sealer), ..sender }
    }

    /// Begins a session, or continues one that had ended. The counters restart. The packet numbers of a native line continue.
    pub(crate) fn begin_again(&mut self, config: SenderConfig, session: Session, next: u64, now_ns: u64) {
        *self = match self.native.take() {
            Some(sealer) => Sender::native(config, session, next, now_ns, sealer),
            None => Sender::new(config, session, next, now_ns),
        };
    }

    /// Whether this is the sender of a native line.
    pub(crate) fn is_native(&self) -> bool {
        self.native.is_some()
    }

    /// The sealer of a native line.
    pub(crate) fn sealer(&mut self) -> Option<&mut Sealer> {
        self.native.as_mut()
    }

    /// The size of the largest message that is accepted, in bytes.
    pub(crate) fn max_message_bytes(&self) -> usize {
        if self.native.is_some() {
            return MAX_MESSAGE_BYTES;
        }
        wire::max_message_bytes(self.config.payload_bytes)
    }

    /// Copies the next message, which has no marks, into the batch. See [`Sender::push_with`].
    ///
    /// # Errors
    /// [`PushError`]. After an error the message was not accepted.
    #[cfg(test)]
    pub(crate) fn push(&mut self, sequence: u64, data: &[u8]) -> Result<(), PushError> {
        self.push_with(sequence, data, Meta::default())
    }

    /// Copies the next message into the batch. If a sequence was skipped, the ring overwrote its message before the sender read it. In that
    /// case a new packet begins, and receivers request the skipped messages. A plain line leaves out the marks.
    ///
    /// # Errors
    /// [`PushError`]. After an error the message was not accepted. If the batch is full, a part of a large message might be in the batch:
    /// push the same message again.
    #[inline]
    pub fn push_with(&mut self, sequence: u64, data: &[u8], meta: Meta) -> Result<(), PushError> {
        let max = self.max_message_bytes();
        if data.len() > max {
            return Err(PushError::TooLong { size: data.len(), max });
        }
        if sequence < self.next {
            return Err(PushError::WentBack { sequence, next: self.next });
        }
        if sequence != self.open.next() {
            self.close();
            self.open = self.open.begin(sequence);
        }
        if self.native.is_some() && data.len() > records::max_message_bytes(self.config.payload_bytes) {
            self.push_fragments(sequence, data, meta)?;
        } else if !self.push_open(data, meta) {
            self.close();
            if !self.push_open(data, meta) {
                return Err(PushError::BatchFull);
            }
        }
        self.counters.messages += 1;
        self.counters.messages_missed += sequence - self.next;
        self.next = sequence.saturating_add(1);
        Ok(())
    }

    fn push_open(&mut self, data: &[u8], meta: Meta) -> bool {
        let size = self.config.payload_bytes;
        // Leave room for a seal even if there is no key yet, because the first key can be set while the packet is open.
        let room = size - if self.native.is_some() { SEAL_BYTES } else { 0 };
        let slot = slot_of(&mut self.slab, size, self.closed.len());
        slot.is_some_and(|slot| self.open.push(&mut slot[..room], data, meta))
    }

    // Puts the fragments of a message into the slots of the batch. Begins with the bytes after those of the last batch.
    fn push_fragments(&mut self, sequence: u64, data: &[u8], meta: Meta) -> Result<(), PushError> {
        self.close();
        let size = self.config.payload_bytes;
        let most = size - HEAD_BYTES - FRAGMENT_HEAD_BYTES - SEAL_BYTES;
        while self.part < data.len() {
            let Some(slot) = slot_of(&mut self.slab, size, self.closed.len()) else {
                return Err(PushError::BatchFull);
            };
            let Some(sealer) = &mut self.native else { break };
            let part = &data[self.part..data.len().min(self.part + most)];
            let fragment = Fragment { meta, total: data.len() as u32, offset: self.part as u32, data: part };
            let about = (self.session, sequence, 1);
            let bytes = fragment
                .write(&mut slot[HEAD_BYTES..])
                .and_then(|body| sealer.finish(slot, (Kind::Fragment, false), about, body));
            let Some(bytes) = bytes else { break };
            self.part += part.len();
            self.note_closed(bytes);
        }
        self.part = 0;
        self.open = self.open.begin(sequence.saturating_add(1));
        Ok(())
    }

    fn note_closed(&mut self, bytes: usize) {
        self.closed.push(bytes);
        self.counters.packets += 1;
        self.counters.bytes += bytes as u64;
    }

    /// Closes the open packet, because no more messages are waiting.
    pub fn close(&mut self) {
        let size = self.config.payload_bytes;
        if let Some(slot) = slot_of(&mut self.slab, size, self.closed.len())
            && let Some(bytes) = self.open.finish(slot, self.session, self.native.as_mut())
        {
            self.note_closed(bytes);
            self.open = self.open.begin(self.open.next());
        }
    }

    /// Returns the closed packets of the batch. Send them in this order.
    pub fn datagrams(&self) -> impl Iterator<Item = &[u8]> {
        let (slab, size) = (&self.slab[..], self.config.payload_bytes);
        self.closed.iter().enumerate().map(move |(at, &bytes)| &slab[at * size..][..bytes])
    }

    /// Removes the closed packets, which were sent at `now_ns`. The open packet, if there is one, moves to the first slot.
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

    /// Notes that the sequences before `next` will never be pushed. Close the open packet first.
    pub(crate) fn skip_to(&mut self, next: u64) {
        if next > self.next {
            self.counters.messages_missed += next - self.next;
            self.next = next;
            self.open = self.open.begin(next);
        }
    }

    /// Ends the session. Close and send the batch first. From now on, end-of-session packets replace heartbeats, and the first one is due
    /// immediately. The caller should serve repairs until `Sender::is_finished`.
    pub fn end(&mut self, now_ns: u64) {
        if self.ended_ns.is_none() {
            self.ended_ns = Some(now_ns);
            self.restart_heartbeats(now_ns, 0);
        }
    }

    /// Whether the session has ended, and its end was repeated for long enough. At least [`LEAST_ENDS`] end packets must have been sent,
    /// because a receiver does not believe a single packet.
    pub(crate) fn is_finished(&self, now_ns: u64) -> bool {
        let has_lingered = |ended_ns| now_ns.saturating_sub(ended_ns) >= self.config.linger_ns;
        self.counters.ends >= LEAST_ENDS && self.ended_ns.is_some_and(has_lingered)
    }

    /// Returns the heartbeat or end-of-session packet of a plain line, if one is due.
    pub fn poll_idle(&mut self, now_ns: u64) -> Option<[u8; HEADER_BYTES]> {
        self.is_beat_due(now_ns).then(|| match self.ended_ns {
            Some(_) => wire::end_of_session(self.session, self.next),
            None => wire::heartbeat(self.session, self.next),
        })
    }

    /// If a pulse of a native line is due, writes it to `out` and returns its size. A pulse is a packet with the sender's state. `state` is
    /// called only if a pulse is due, and returns the fields that this sender does not set itself.
    pub fn poll_pulse(
        &mut self,
        now_ns: u64,
        state: impl FnOnce() -> Pulse,
        out: &mut [u8; MAX_PULSE_BYTES],
    ) -> Option<usize> {
        // While messages flow there are no heartbeats, but receivers need the state of the sender's clock.
        let is_overdue = now_ns >= self.pulse_at_ns && !self.is_waiting() && !self.is_finished(now_ns);
        if self.native.is_none() || !(self.is_beat_due(now_ns) || is_overdue) {
            return None;
        }
        self.pulse_at_ns = now_ns.saturating_add(PULSE_EVERY_NS);
        let (next, about) = (self.next, (self.session, self.next, 0));
        let pulse = Pulse { next, has_ended: self.ended_ns.is_some(), ..state() };
        out[HEAD_BYTES..HEAD_BYTES + PULSE_BYTES].copy_from_slice(&pulse.write());
        self.native.as_mut()?.finish(out, (Kind::Pulse, false), about, PULSE_BYTES)
    }

    // Whether messages or fragments are waiting in the batch. A heartbeat must not announce their sequences.
    fn is_waiting(&self) -> bool {
        self.open.count() > 0 || !self.closed.is_empty() || self.part > 0
    }

    // Whether a heartbeat or end-of-session packet is due. If so, it is counted, and the next one is scheduled.
    fn is_beat_due(&mut self, now_ns: u64) -> bool {
        if self.is_waiting() || now_ns < self.beat_at_ns || self.is_finished(now_ns) {
            return false;
        }
        // If the caller is late, one packet is sent in place of all that were missed.
        let elapsed_ns = now_ns.saturating_sub(self.quiet_since_ns);
        while HEARTBEAT_AFTER_NS.get(self.beats).is_some_and(|&after_ns| after_ns <= elapsed_ns) {
            self.beats += 1;
        }
        self.beat_at_ns = match HEARTBEAT_AFTER_NS.get(self.beats) {
            Some(after_ns) => self.quiet_since_ns.saturating_add(*after_ns),
            None => now_ns.saturating_add(HEARTBEAT_EVERY_NS),
        };
        match self.ended_ns {
            Some(_) => self.counters.ends += 1,
            None => self.counters.heartbeats += 1,
        }
        true
    }

    /// Returns the time at which [`Sender::poll_idle`] has something to send if no data arrives. Returns `None` once the session is over
    /// and its end was repeated.
    pub(crate) fn next_deadline(&self, now_ns: u64) -> Option<u64> {
        (!self.is_finished(now_ns)).then_some(self.beat_at_ns)
    }

    fn restart_heartbeats(&mut self, now_ns: u64, first_after_ns: u64) {
        (self.quiet_since_ns, self.beats) = (now_ns, 0);
        self.beat_at_ns = now_ns.saturating_add(first_after_ns);
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> &SenderCounters {
        &self.counters
    }

    /// The session that is being sent.
    pub(crate) fn session(&self) -> Session {
        self.session
    }

    /// Returns the sequence after the last accepted message.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
}

/// Returns the slot with this number, or `None` after the last one. The function does not use `chunks_exact_mut`, which would need a
/// division.
#[inline]
fn slot_of(slab: &mut [u8], size: usize, at: usize) -> Option<&mut [u8]> {
    slab.get_mut(at * size..(at + 1) * size)
}
