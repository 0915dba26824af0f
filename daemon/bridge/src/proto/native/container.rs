//! The fields that every native packet has before its body.

use super::super::session::Session;
use super::super::wire::message::{LENGTH_BYTES, Malformed};
use super::super::wire::mold::{HEADER_BYTES, Head, equal_packets};
use super::{Reader, Writer};

/// The size of the fields before the body, in bytes.
pub const HEAD_BYTES: usize = 44;
/// The size of a seal, in bytes.
pub const SEAL_BYTES: usize = 16;
/// The version of native packets that this build sends and accepts.
pub const VERSION: u8 = 1;

const SEALED: u8 = 1;
const REPAIR: u8 = 2;
const FROM_RECEIVER: u8 = 8;
const KNOWN_FLAGS: u8 = SEALED | REPAIR | FROM_RECEIVER;
/// If a native packet contains a control datagram, the packet's kind is this number plus the number of the control datagram's kind.
const CONTROL: u8 = 32;

/// The kind of a native packet's body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Messages.
    Data,
    /// A part of one message.
    Fragment,
    /// The state of the sender, in place of heartbeats and ends.
    Pulse,
    /// A request of a receiver.
    Ask,
    /// The control datagram with this number.
    Control(u8),
}

impl Kind {
    fn byte(self) -> u8 {
        match self {
            Kind::Data => 1,
            Kind::Fragment => 2,
            Kind::Pulse => 4,
            Kind::Ask => 5,
            Kind::Control(number) => CONTROL + number,
        }
    }

    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Data,
            2 => Kind::Fragment,
            4 => Kind::Pulse,
            5 => Kind::Ask,
            CONTROL..=63 => Kind::Control(byte - CONTROL),
            _ => return None,
        })
    }
}

/// The fields of a native packet before its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Container {
    /// The session.
    pub session: Session,
    /// The sequence of the first message, or of the next expected message if the packet has no message; at least 1.
    pub sequence: u64,
    /// The kind of the body.
    pub kind: Kind,
    /// Whether the body is sealed.
    pub is_sealed: bool,
    /// Whether the packet answers a request.
    pub is_repair: bool,
    /// Whether a receiver sent the packet. If not, the sender of the feed or a server sent it.
    pub is_from_receiver: bool,
    /// The number of the key that sealed the packet; 0 if it is not sealed.
    pub key: u8,
    /// The number of messages in the packet; 1 for a fragment.
    pub messages: u16,
    /// A random number that identifies the sender.
    pub sender: u64,
    /// The number of the packet among those of its sender.
    pub number: u64,
}

impl Container {
    /// Checks everything except the body. Returns the fields and the body.
    ///
    /// # Errors
    /// [`Malformed`] if the packet is not valid.
    pub fn parse(datagram: &[u8]) -> Result<(Container, &[u8]), Malformed> {
        let mut head = Reader(datagram.get(..HEAD_BYTES).ok_or(Malformed::TooShort)?);
        let body = &datagram[HEAD_BYTES..];
        let read = (|| {
            let session = Session::from_bytes(head.take()?);
            let (sequence, count, length) = (head.u64()?, head.u16()?, head.u16()?);
            let (version, kind, flags, key) = (head.u8()?, head.u8()?, head.u8()?, head.u8()?);
            let (messages, sender, number) = (head.u16()?, head.u64()?, head.u64()?);
            let fields = Container {
                session,
                sequence,
                kind: Kind::of(kind).unwrap_or(Kind::Control(0)),
                is_sealed: flags & SEALED != 0,
                is_repair: flags & REPAIR != 0,
                is_from_receiver: flags & FROM_RECEIVER != 0,
                key,
                messages,
                sender,
                number,
            };
            Some((fields, count, usize::from(length), version, (kind, flags)))
        })();
        let (fields, count, length, version, (kind, flags)) = read.ok_or(Malformed::TooShort)?;
        let size = HEADER_BYTES + LENGTH_BYTES + length;
        let is_known = Kind::of(kind).is_some() && flags & !KNOWN_FLAGS == 0;
        let is_sound = count == 1 && fields.number != 0 && fields.is_sealed == (fields.key != 0);
        if fields.sequence == 0 {
            return Err(Malformed::SequenceZero);
        }
        if fields.sequence.checked_add(u64::from(fields.messages)).is_none() {
            return Err(Malformed::SequenceOverflow);
        }
        match size.cmp(&datagram.len()) {
            std::cmp::Ordering::Greater => Err(Malformed::Truncated),
            std::cmp::Ordering::Less => Err(Malformed::TrailingBytes),
            std::cmp::Ordering::Equal if version != VERSION => Err(Malformed::NativeVersion),
            std::cmp::Ordering::Equal if !is_known || !is_sound => Err(Malformed::Native),
            std::cmp::Ordering::Equal => Ok((fields, body)),
        }
    }

    /// Writes the fields that precede a body. The body is already in the buffer, and has `body_bytes` bytes. Returns the size of the
    /// packet. Returns `None` if the buffer is too short, or if the body is too long for a packet.
    pub fn write(&self, buffer: &mut [u8], body_bytes: usize) -> Option<usize> {
        let size = HEAD_BYTES + body_bytes;
        let length = u16::try_from(size - HEADER_BYTES - LENGTH_BYTES).ok()?;
        if buffer.len() < size {
            return None;
        }
        let flag = |is_set, bit| if is_set { bit } else { 0 };
        let flags = flag(self.is_sealed, SEALED)
            | flag(self.is_repair, REPAIR)
            | flag(self.is_from_receiver, FROM_RECEIVER);
        let mut head = Writer { out: buffer, at: 0 };
        head.put(self.session.as_bytes());
        head.put(&self.sequence.to_be_bytes());
        head.put(&1u16.to_be_bytes());
        head.put(&length.to_be_bytes());
        head.put(&[VERSION, self.kind.byte(), flags, self.key]);
        head.put(&self.messages.to_be_bytes());
        head.put(&self.sender.to_be_bytes());
        head.put(&self.number.to_be_bytes());
        Some(size)
    }

    /// Returns the sequences that the packet covers.
    pub(crate) fn head(&self) -> Head {
        Head { sequence: self.sequence, messages: self.messages }
    }
}

/// Returns the length of each packet in `bytes`. The kernel has merged packets of equal length into these bytes. See
/// [`wire::segment_of`](super::super::wire::segment_of).
pub(crate) fn segment_of(bytes: &[u8]) -> usize {
    equal_packets(bytes, |bytes| {
        let length = bytes.get(HEADER_BYTES..HEAD_BYTES)?.first_chunk()?;
        Some(HEADER_BYTES + LENGTH_BYTES + usize::from(u16::from_be_bytes(*length)))
    })
}

/// Numbers the packets of one sender.
#[derive(Debug)]
pub struct Numbers {
    sender: u64,
    live: u64,
    other: u64,
    is_receiver: bool,
}

/// The highest bit of a packet's number. It is set in the numbers of all packets except live data and live fragments.
pub const OTHER: u64 = 1 << 63;

impl Numbers {
    /// Makes the packet numbers of a sender. `sender` is the number of the sender itself. It must be random, because two senders must not
    /// have the same number.
    pub fn new(sender: u64, is_receiver: bool) -> Numbers {
        Numbers { sender, live: 0, other: OTHER, is_receiver }
    }

    /// Returns the fields of the next packet, with its number.
    pub fn next(
        &mut self,
        kind: Kind,
        is_repair: bool,
        (session, sequence, messages): (Session, u64, u16),
    ) -> Container {
        let is_live = matches!(kind, Kind::Data | Kind::Fragment) && !is_repair;
        let number = if is_live { &mut self.live } else { &mut self.other };
        *number += 1;
        Container {
            session,
            sequence,
            kind,
            is_sealed: false,
            is_repair,
            is_from_receiver: self.is_receiver,
            key: 0,
            messages,
            sender: self.sender,
            number: *number,
        }
    }

    /// Returns the number of packets in the longer of the sender's two series of packet numbers.
    pub(crate) fn sent(&self) -> u64 {
        self.live.max(self.other & !OTHER)
    }

    /// The sender.
    pub(crate) fn sender(&self) -> u64 {
        self.sender
    }
}
