//! The messages of a checked packet, plain or native, and the reasons why a packet is dropped.

use super::super::bytes::Reader;
use std::ops::Range;

/// The bytes that a plain packet needs for each message in addition to its data.
pub const LENGTH_BYTES: usize = 2;

/// The reason why a datagram was dropped without being read. The receiver counts the datagram and does nothing else. Each reason has its
/// own counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The datagram has fewer bytes than the fixed header.
    #[error("shorter than its 20-byte header")]
    TooShort,
    /// The sequence is 0, but sequences start at 1.
    #[error("sequence 0, but sequences start at 1")]
    SequenceZero,
    /// Sequence plus count does not fit into 64 bits.
    #[error("sequence plus count passes 2^64")]
    SequenceOverflow,
    /// A message reaches past the end of the datagram.
    #[error("a message reaches past the end of the datagram")]
    Truncated,
    /// Bytes are left after the last message.
    #[error("bytes are left after the last message")]
    TrailingBytes,
    /// A request is not exactly 20 bytes long.
    #[error("a request is exactly 20 bytes")]
    RequestLength,
    /// A request for 0 messages, or for more than 65,534.
    #[error("a request asks for 1 to 65534 messages")]
    RequestCount,
    /// The datagram is not a shmcast control datagram, or is damaged.
    #[error("not a sound control datagram")]
    Control,
    /// A control datagram of a version that this build does not support.
    #[error("a control datagram of another version")]
    ControlVersion,
    /// The body of a native packet contradicts the fields before it.
    #[error("not a sound native packet")]
    Native,
    /// A native packet of a version that this build does not support.
    #[error("a native packet of another version")]
    NativeVersion,
}

impl Malformed {
    /// The number of reasons.
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

/// The marks that a message has in addition to its bytes. In plain packets, messages have none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Meta {
    /// The tag that the publisher gave the message.
    pub tag: u16,
    /// Whether a reader can start at this message without the messages before it.
    pub key: bool,
    /// The time at which the message was published, in nanoseconds since 1970; 0 if it is unknown.
    pub time_ns: u64,
}

/// The form in which the bytes of consecutive messages are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Form {
    /// Each message is `length u16 | data`, as in a plain packet.
    Blocks,
    /// Each message is a record of a native packet. The time of the first message counts from `base_ns`.
    Records { base_ns: u64 },
    /// The bytes are one message and nothing else.
    Whole(Meta),
    /// There is one message, whose bytes are stored elsewhere.
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
    /// The message's number in the session.
    pub sequence: u64,
    /// The message's bytes.
    pub data: &'a [u8],
    /// The message's marks.
    pub meta: Meta,
}

impl<'a> Messages<'a> {
    pub(super) fn check(first: u64, count: u16, blocks: &'a [u8]) -> Result<Messages<'a>, Malformed> {
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

    /// Makes messages from bytes that were checked before, such as those of a store.
    pub(in super::super) fn checked_before(
        first: u64,
        end: u64,
        blocks: &'a [u8],
        form: Form,
    ) -> Messages<'a> {
        Messages { first, end, blocks, form }
    }

    /// Returns the sequence of the first message.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// Returns the sequence after the last message.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// Returns the number of messages.
    pub fn count(&self) -> u64 {
        self.end - self.first
    }

    /// Returns the bytes of the messages in the form of the wire, which includes their lengths.
    pub fn blocks(&self) -> &'a [u8] {
        self.blocks
    }

    pub(in super::super) fn form(&self) -> Form {
        self.form
    }

    /// Whether the messages are a single message that is larger than a packet.
    pub(in super::super) fn is_large(&self) -> bool {
        matches!(self.form, Form::Whole(_) | Form::Apart)
    }

    /// Returns the messages whose sequences are in `wanted`. Skips the other messages one by one.
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

    /// Returns each message with its sequence and its marks, in order.
    pub fn messages(&self) -> MessageIter<'a> {
        MessageIter { next: self.first, end: self.end, rest: self.blocks, form: self.form }
    }

    /// Returns each message's sequence and bytes, in order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &'a [u8])> + use<'a> {
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

/// The bits of a record's meta byte. See [`records`](super::super::native::records).
pub(in super::super) const KEY: u8 = 1;
pub(in super::super) const TAG: u8 = 2;
pub(in super::super) const TIME: u8 = 4;
pub(in super::super) const PAD: u8 = 128;

/// One record, and the bytes after it.
pub(in super::super) struct Record<'a> {
    pub(in super::super) meta: u8,
    tag: u16,
    since_ns: u32,
    data: &'a [u8],
    pub(in super::super) rest: &'a [u8],
}

pub(in super::super) fn split_record(bytes: &[u8]) -> Option<Record<'_>> {
    let mut head = Reader(bytes);
    let (length, meta) = (usize::from(head.u16()?), head.u8()?);
    let tag = if meta & TAG != 0 { head.u16()? } else { 0 };
    let since_ns = if meta & TIME != 0 { head.u32()? } else { 0 };
    let (data, rest) = head.0.split_at_checked(length)?;
    Some(Record { meta, tag, since_ns, data, rest })
}

/// Splits off the next message. Returns its data, its marks, and the bytes after it. The time of the message is added to `base_ns`.
fn split_message(mut bytes: &[u8], base_ns: u64) -> Option<(&[u8], Meta, &[u8])> {
    loop {
        let record = split_record(bytes)?;
        if record.meta & PAD == 0 {
            let time_ns = if base_ns == 0 { 0 } else { base_ns.saturating_add(u64::from(record.since_ns)) };
            let meta = Meta { tag: record.tag, key: record.meta & KEY != 0, time_ns };
            return Some((record.data, meta, record.rest));
        }
        bytes = record.rest;
    }
}
