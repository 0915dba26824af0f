//! The plain packets of MoldUDP64: their headers, requests for messages, and the writer of packets.

use super::super::session::Session;
use super::message::{LENGTH_BYTES, Malformed};

/// The size of the header of every downstream packet, in bytes.
pub const HEADER_BYTES: usize = 20;
/// The size of a request, in bytes.
pub const REQUEST_BYTES: usize = 20;
/// The greatest number of messages in one packet. In the field for the count, the next higher value means the end of the session.
pub const MAX_MESSAGES: u16 = 0xFFFE;
/// The largest UDP payload over IPv4, in bytes.
pub const MAX_DATAGRAM_BYTES: usize = 65_507;

pub(super) const HEARTBEAT_COUNT: u16 = 0;
pub(super) const END_COUNT: u16 = 0xFFFF;

/// The first fields of a downstream packet, read without its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The sequence of the first message, or the next expected sequence if the packet has no message.
    pub sequence: u64,
    /// The number of messages in the packet.
    pub messages: u16,
}

impl Head {
    /// Reads the first fields. Returns `None` if the datagram is too short for them.
    pub(crate) fn of(datagram: &[u8]) -> Option<Head> {
        let header = datagram.first_chunk::<HEADER_BYTES>()?;
        let (sequence, count) = (header[10..18].try_into().ok()?, header[18..].try_into().ok()?);
        let messages = match u16::from_be_bytes(count) {
            END_COUNT => 0,
            messages => messages,
        };
        Some(Head { sequence: u64::from_be_bytes(sequence), messages })
    }

    /// Returns the sequence after the last message.
    pub(crate) fn end(&self) -> u64 {
        self.sequence.saturating_add(u64::from(self.messages))
    }
}

/// Returns the length of each packet in `bytes`, as [`segment_of`](super::packet::segment_of) does. `size_of` returns the size of the
/// packet at the beginning of the bytes that it gets. It returns `None` if the size cannot be determined.
pub(in super::super) fn equal_packets(bytes: &[u8], size_of: impl Fn(&[u8]) -> Option<usize>) -> usize {
    let is_packet = |bytes: &[u8]| size_of(bytes) == Some(bytes.len());
    match size_of(bytes) {
        Some(size) if (1..bytes.len()).contains(&size) && bytes.chunks(size).all(is_packet) => size,
        _ => bytes.len(),
    }
}

pub(super) fn split_header(header: &[u8; HEADER_BYTES]) -> (Session, u64, u16) {
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

/// Makes a heartbeat. `next` is the sequence of the next message.
pub fn heartbeat(session: Session, next: u64) -> [u8; HEADER_BYTES] {
    join_header(session, next, HEARTBEAT_COUNT)
}

/// Makes an end-of-session packet. `next` is the sequence after the last message.
pub fn end_of_session(session: Session, next: u64) -> [u8; HEADER_BYTES] {
    join_header(session, next, END_COUNT)
}

/// A request for `count` messages from `first` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The session of the messages.
    pub session: Session,
    /// The first sequence asked for, at least 1.
    pub first: u64,
    /// The number of messages asked for, 1 to 65 534.
    pub count: u16,
}

impl Request {
    /// Parses a request, and checks it.
    ///
    /// # Errors
    /// [`Malformed`] if the request is not exactly 20 bytes long, or asks for messages that cannot exist.
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

/// Returns the size of the largest message that fits a packet of `payload_bytes`, in bytes.
pub fn max_message_bytes(payload_bytes: usize) -> usize {
    payload_bytes.saturating_sub(HEADER_BYTES + LENGTH_BYTES).min(usize::from(u16::MAX))
}

/// A packet that is being written. The caller owns the buffer, and passes it to each call.
#[derive(Debug, Clone, Copy)]
pub struct PacketWriter {
    first: u64,
    count: u16,
    bytes: usize,
}

impl PacketWriter {
    /// Makes an empty packet. Its first message will have the sequence `first`.
    pub fn new(first: u64) -> PacketWriter {
        PacketWriter { first, count: 0, bytes: HEADER_BYTES }
    }

    /// Returns the sequence of the next message to push.
    pub fn next(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// Returns the number of messages in the packet.
    pub(crate) fn count(&self) -> u16 {
        self.count
    }

    /// Returns the part of the buffer for the next message's data, so that a reader can copy directly into it. The part can be empty.
    /// Returns `None` if there is not even room for the message's length. Call [`PacketWriter::commit`] next.
    pub(crate) fn room<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b mut [u8]> {
        let room = if self.count < MAX_MESSAGES {
            buffer.get_mut(self.bytes + LENGTH_BYTES..)?
        } else {
            return None;
        };
        let most = room.len().min(usize::from(u16::MAX));
        Some(&mut room[..most])
    }

    /// Makes the first `size` bytes of [`PacketWriter::room`] the packet's next message. Returns false if they do not fit.
    pub(crate) fn commit(&mut self, buffer: &mut [u8], size: usize) -> bool {
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

    /// Adds a message. Returns false, and changes nothing, if it does not fit.
    pub fn push(&mut self, buffer: &mut [u8], data: &[u8]) -> bool {
        match self.room(buffer) {
            Some(room) if data.len() <= room.len() => room[..data.len()].copy_from_slice(data),
            _ => return false,
        }
        self.commit(buffer, data.len())
    }

    /// Writes the header. Returns the size of the datagram in the buffer, or `None` if the packet has no message.
    pub fn finish(self, buffer: &mut [u8], session: Session) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        buffer.get_mut(..HEADER_BYTES)?.copy_from_slice(&join_header(session, self.first, self.count));
        Some(self.bytes)
    }
}
