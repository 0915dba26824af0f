//! MoldUDP64 version 1.00, byte for byte: checked views over received datagrams and writers for our own.
//!
//! ```text
//! downstream: session[10] | sequence u64 | count u16 | count x ( length u16 | data[length] )   big-endian
//! request:    session[10] | sequence u64 | count u16
//! ```
//! Count 0 is a heartbeat and count 0xFFFF the end of the session; the sequence of both is the next one expected.
//! A view is made only when the whole datagram is sound, so users of a view need no further checks. Not here: what a
//! sequence means to a receiver, and our own control datagrams (`control`).

#[cfg(test)]
mod tests;

use super::control::is_control;
use super::native::fragments::Fragment;
use super::native::records::split_message;
use super::session::Session;
use std::ops::Range;

/// The fixed part of every downstream packet, in bytes.
pub const HEADER_BYTES: usize = 20;
/// The size of a request, in bytes.
pub const REQUEST_BYTES: usize = 20;
/// The bytes that a packet spends on each message beside its data.
pub const LENGTH_BYTES: usize = 2;
/// The most messages one packet can carry; the next count value means end of session.
pub const MAX_MESSAGES: u16 = 0xFFFE;
/// The largest UDP payload over IPv4, in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;

const HEARTBEAT_COUNT: u16 = 0;
const END_COUNT: u16 = 0xFFFF;

/// The reason that a datagram was dropped unread. The receiver does nothing else about it. Each reason has
/// its own counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Fewer bytes than the fixed header.
    #[error("shorter than its 20-byte header")]
    TooShort,
    /// Sequences start at 1.
    #[error("sequence 0, but sequences start at 1")]
    SequenceZero,
    /// Sequence plus count does not fit 64 bits.
    #[error("sequence plus count passes 2^64")]
    SequenceOverflow,
    /// A message reaches past the end of the datagram.
    #[error("a message reaches past the end of the datagram")]
    Truncated,
    /// Bytes are left after the last message.
    #[error("bytes are left after the last message")]
    TrailingBytes,
    /// A request is exactly 20 bytes.
    #[error("a request is exactly 20 bytes")]
    RequestLength,
    /// A request for no message, or for more than a count can mean.
    #[error("a request asks for 1 to 65534 messages")]
    RequestCount,
    /// Not one of our control datagrams, or damaged.
    #[error("not a sound control datagram")]
    Control,
    /// A control datagram of a version that this build does not speak.
    #[error("a control datagram of another version")]
    ControlVersion,
    /// A packet of a native line whose inside is not what it says.
    #[error("not a sound native packet")]
    Native,
    /// A native packet of a version that this build does not speak.
    #[error("a native packet of another version")]
    NativeVersion,
}

impl Malformed {
    /// How many reasons there are.
    pub const COUNT: usize = 11;
    /// Every reason, in counter order.
    pub const ALL: [Malformed; Malformed::COUNT] = [
        Malformed::TooShort,
        Malformed::SequenceZero,
        Malformed::SequenceOverflow,
        Malformed::Truncated,
        Malformed::TrailingBytes,
        Malformed::RequestLength,
        Malformed::RequestCount,
        Malformed::Control,
        Malformed::ControlVersion,
        Malformed::Native,
        Malformed::NativeVersion,
    ];
}

/// The beginning of a downstream packet, read without a look at the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The first message's sequence, or the next expected one when there is none.
    pub sequence: u64,
    /// How many messages follow.
    pub messages: u16,
}

impl Head {
    /// Reads it; `None` when there are not even that many bytes.
    pub fn of(datagram: &[u8]) -> Option<Head> {
        let header = datagram.first_chunk::<HEADER_BYTES>()?;
        let (sequence, count) = (header[10..18].try_into().ok()?, header[18..].try_into().ok()?);
        let messages = match u16::from_be_bytes(count) {
            END_COUNT => 0,
            messages => messages,
        };
        Some(Head { sequence: u64::from_be_bytes(sequence), messages })
    }

    /// The sequence after its last message.
    pub fn end(&self) -> u64 {
        self.sequence.saturating_add(u64::from(self.messages))
    }
}

/// How long each packet is of those that the kernel put together into these bytes: all are equally long, but the last may be
/// shorter. If the bytes are not several sound packets, all of them are one.
pub fn segment_of(bytes: &[u8]) -> usize {
    equal_packets(bytes, |bytes| {
        if is_control(bytes) {
            return Some(bytes.len());
        }
        let mut size = HEADER_BYTES;
        for _ in 0..Head::of(bytes)?.messages {
            let length = bytes.get(size..)?.first_chunk()?;
            size += LENGTH_BYTES + usize::from(u16::from_be_bytes(*length));
        }
        Some(size)
    })
}

/// As [`segment_of`], where `size_of` gives the size of the packet that bytes begin with, as far as it can tell.
pub(super) fn equal_packets(bytes: &[u8], size_of: impl Fn(&[u8]) -> Option<usize>) -> usize {
    let is_packet = |bytes: &[u8]| size_of(bytes) == Some(bytes.len());
    match size_of(bytes) {
        Some(size) if (1..bytes.len()).contains(&size) && bytes.chunks(size).all(is_packet) => size,
        _ => bytes.len(),
    }
}

/// One downstream packet, wholly checked.
#[derive(Debug, Clone, Copy)]
pub struct Downstream<'a> {
    /// The run of sequences that the packet belongs to.
    pub session: Session,
    /// The first message's sequence, or the next expected one when there is none; at least 1.
    pub sequence: u64,
    /// The content of the packet.
    pub body: Body<'a>,
}

/// The content of a downstream packet.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// One message or more.
    Messages(Messages<'a>),
    /// Nothing: the sender is alive and the sequence is the next expected.
    Heartbeat,
    /// The session is over; no sequence from this one on will follow.
    End,
    /// A part of the message with the packet's sequence. Plain packets have none.
    Fragment(Fragment<'a>),
}

impl<'a> Downstream<'a> {
    /// Checks a whole datagram: two reads a message, no copy.
    ///
    /// # Errors
    /// [`Malformed`], when anything in it disagrees with anything else; then nothing of it may be used.
    pub fn parse(datagram: &'a [u8]) -> Result<Downstream<'a>, Malformed> {
        let (header, blocks) = datagram.split_first_chunk::<HEADER_BYTES>().ok_or(Malformed::TooShort)?;
        let (session, sequence, count) = split_header(header);
        if sequence == 0 {
            return Err(Malformed::SequenceZero);
        }
        let body = match count {
            HEARTBEAT_COUNT if blocks.is_empty() => Body::Heartbeat,
            END_COUNT if blocks.is_empty() => Body::End,
            HEARTBEAT_COUNT | END_COUNT => return Err(Malformed::TrailingBytes),
            count => Body::Messages(Messages::check(sequence, count, blocks)?),
        };
        Ok(Downstream { session, sequence, body })
    }

    /// The sequence after the last message, or the next expected one when there is none.
    pub fn end(&self) -> u64 {
        match self.body {
            Body::Messages(messages) => messages.end(),
            // A fragment says nothing of what comes after its message, nor that its message is there.
            Body::Heartbeat | Body::End | Body::Fragment(_) => self.sequence,
        }
    }
}

/// The marks that a message carries beside its bytes. Plain packets carry none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The tag that the publisher gave the message.
    pub tag: u16,
    /// Whether a reader that lost its place may start again from the message.
    pub key: bool,
    /// When the message was published, in nanoseconds since 1970; 0 if that is unknown.
    pub time_ns: u64,
}

/// How the bytes of consecutive messages lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Each is `length u16 | data`, as in a plain packet.
    Blocks,
    /// Each is a record of a native packet. The time of the first counts from `base_ns`.
    Records { base_ns: u64 },
    /// One message and nothing else.
    Whole(Meta),
    /// One message, whose bytes are kept elsewhere.
    Apart,
}

/// Consecutive messages of a checked packet.
#[derive(Debug, Clone, Copy)]
pub struct Messages<'a> {
    first: u64,
    end: u64,
    blocks: &'a [u8],
    form: Form,
}

/// One message of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// Its number in the session.
    pub sequence: u64,
    /// Its bytes.
    pub data: &'a [u8],
    /// Its marks.
    pub meta: Meta,
}

impl<'a> Messages<'a> {
    fn check(first: u64, count: u16, blocks: &'a [u8]) -> Result<Messages<'a>, Malformed> {
        let end = first.checked_add(u64::from(count)).ok_or(Malformed::SequenceOverflow)?;
        let mut rest = blocks;
        for _ in 0..count {
            rest = split_block(rest).ok_or(Malformed::Truncated)?.1;
        }
        if !rest.is_empty() {
            return Err(Malformed::TrailingBytes);
        }
        Ok(Messages { first, end, blocks, form: Form::Blocks })
    }

    /// Messages whose bytes were checked before, such as those kept in a store.
    pub(super) fn checked_before(first: u64, end: u64, blocks: &'a [u8], form: Form) -> Messages<'a> {
        Messages { first, end, blocks, form }
    }

    /// The first message's sequence.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The sequence after the last message's.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// How many messages there are.
    pub fn count(&self) -> u64 {
        self.end - self.first
    }

    /// The messages as they lie on the wire, lengths included.
    pub fn blocks(&self) -> &'a [u8] {
        self.blocks
    }

    pub(super) fn form(&self) -> Form {
        self.form
    }

    /// Whether it is one message that is larger than a packet.
    pub(super) fn is_large(&self) -> bool {
        matches!(self.form, Form::Whole(_) | Form::Apart)
    }

    /// The part of these messages whose sequences lie in `wanted`; walks over what is left out.
    pub fn range(&self, wanted: Range<u64>) -> Messages<'a> {
        let from = wanted.start.clamp(self.first, self.end);
        let to = wanted.end.clamp(from, self.end);
        let mut start = self.messages();
        start.by_ref().take((from - self.first) as usize).for_each(drop);
        let mut end = start.clone();
        if to != self.end {
            end.by_ref().take((to - from) as usize).for_each(drop);
        }
        let size = if to == self.end { start.rest.len() } else { start.rest.len() - end.rest.len() };
        Messages { first: from, end: to, blocks: &start.rest[..size], form: start.form }
    }

    /// Each message with its sequence and its marks, in order.
    pub fn messages(&self) -> MessageIter<'a> {
        MessageIter { next: self.first, end: self.end, rest: self.blocks, form: self.form }
    }

    /// Each message's bytes with its sequence, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
        self.messages().map(|message| (message.sequence, message.data))
    }
}

/// An iterator over messages. See [`Messages::messages`].
#[derive(Debug, Clone)]
pub struct MessageIter<'a> {
    next: u64,
    end: u64,
    rest: &'a [u8],
    form: Form,
}

impl<'a> Iterator for MessageIter<'a> {
    type Item = Message<'a>;

    #[inline]
    fn next(&mut self) -> Option<Message<'a>> {
        if self.next >= self.end {
            return None;
        }
        let (data, meta) = match &mut self.form {
            Form::Blocks => {
                let (data, rest) = split_block(self.rest)?;
                self.rest = rest;
                (data, Meta::default())
            }
            Form::Records { base_ns } => {
                let (data, meta, rest) = split_message(self.rest, *base_ns)?;
                (self.rest, *base_ns) = (rest, meta.time_ns);
                (data, meta)
            }
            Form::Whole(meta) => (std::mem::take(&mut self.rest), *meta),
            Form::Apart => (&[][..], Meta::default()),
        };
        let sequence = self.next;
        self.next += 1;
        Some(Message { sequence, data, meta })
    }
}

fn split_block(blocks: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = blocks.split_first_chunk::<LENGTH_BYTES>()?;
    rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))
}

fn split_header(header: &[u8; HEADER_BYTES]) -> (Session, u64, u16) {
    let mut session = [0; 10];
    let mut sequence = [0; 8];
    session.copy_from_slice(&header[..10]);
    sequence.copy_from_slice(&header[10..18]);
    (Session::from_bytes(session), u64::from_be_bytes(sequence), u16::from_be_bytes([header[18], header[19]]))
}

fn join_header(session: Session, sequence: u64, count: u16) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..10].copy_from_slice(session.as_bytes());
    header[10..18].copy_from_slice(&sequence.to_be_bytes());
    header[18..].copy_from_slice(&count.to_be_bytes());
    header
}

/// The bytes of a heartbeat; `next` is the sequence that the next message will have.
pub fn heartbeat(session: Session, next: u64) -> [u8; HEADER_BYTES] {
    join_header(session, next, HEARTBEAT_COUNT)
}

/// The bytes of an end-of-session packet; `next` is the sequence after the last message's.
pub fn end_of_session(session: Session, next: u64) -> [u8; HEADER_BYTES] {
    join_header(session, next, END_COUNT)
}

/// A request for `count` messages from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The session whose messages are wanted.
    pub session: Session,
    /// The first sequence wanted, at least 1.
    pub first: u64,
    /// How many are wanted, 1 to 65 534.
    pub count: u16,
}

impl Request {
    /// Checks a request.
    ///
    /// # Errors
    /// [`Malformed`], when it is not exactly 20 bytes or asks for nothing that can exist.
    pub fn parse(datagram: &[u8]) -> Result<Request, Malformed> {
        let header: &[u8; REQUEST_BYTES] = datagram.try_into().map_err(|_| Malformed::RequestLength)?;
        let (session, first, count) = split_header(header);
        match (first, count) {
            (0, _) => Err(Malformed::SequenceZero),
            (_, 0 | END_COUNT) => Err(Malformed::RequestCount),
            _ if first.checked_add(u64::from(count)).is_none() => Err(Malformed::SequenceOverflow),
            _ => Ok(Request { session, first, count }),
        }
    }

    /// The request's bytes.
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        join_header(self.session, self.first, self.count)
    }
}

/// The largest message that a packet of `payload_bytes` carries, in bytes.
pub fn max_message_bytes(payload_bytes: usize) -> usize {
    payload_bytes.saturating_sub(HEADER_BYTES + LENGTH_BYTES).min(usize::from(u16::MAX))
}

/// A packet that is being written into a buffer which the caller keeps and lends at each step.
#[derive(Debug, Clone, Copy)]
pub struct PacketWriter {
    first: u64,
    count: u16,
    bytes: usize,
}

impl PacketWriter {
    /// An empty packet whose first message will have the sequence `first`.
    pub fn new(first: u64) -> PacketWriter {
        PacketWriter { first, count: 0, bytes: HEADER_BYTES }
    }

    /// The sequence that the next message pushed will have.
    pub fn next(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// How many messages are in it.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// The place of the next message's data, if there is room for its length; the place may be empty. A
    /// reader can copy straight into it. Call [`PacketWriter::commit`] next.
    pub fn room<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b mut [u8]> {
        let room = if self.count < MAX_MESSAGES {
            buffer.get_mut(self.bytes + LENGTH_BYTES..)?
        } else {
            return None;
        };
        let most = room.len().min(usize::from(u16::MAX));
        Some(&mut room[..most])
    }

    /// Takes the `size` bytes written into [`PacketWriter::room`] as the next message; false when they do not fit.
    pub fn commit(&mut self, buffer: &mut [u8], size: usize) -> bool {
        let Ok(length) = u16::try_from(size) else {
            return false;
        };
        let end = self.bytes + LENGTH_BYTES + size;
        if self.count >= MAX_MESSAGES || end > buffer.len() {
            return false;
        }
        buffer[self.bytes..self.bytes + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        self.bytes = end;
        self.count += 1;
        true
    }

    /// Adds a message; false, and no change, when it does not fit.
    pub fn push(&mut self, buffer: &mut [u8], data: &[u8]) -> bool {
        match self.room(buffer) {
            Some(room) if data.len() <= room.len() => room[..data.len()].copy_from_slice(data),
            _ => return false,
        }
        self.commit(buffer, data.len())
    }

    /// Writes the header. Returns the size of the datagram in the buffer; `None` if it has no message.
    pub fn finish(self, buffer: &mut [u8], session: Session) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        buffer.get_mut(..HEADER_BYTES)?.copy_from_slice(&join_header(session, self.first, self.count));
        Some(self.bytes)
    }
}
