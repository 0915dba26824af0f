//! One packet of a feed, plain or native, in the form in which receivers use it.

use super::super::control::is_control;
use super::super::native::fragments::Fragment;
use super::super::session::Session;
use super::message::{LENGTH_BYTES, Malformed, Messages};
use super::mold::{END_COUNT, HEADER_BYTES, HEARTBEAT_COUNT, Head, equal_packets, split_header};

/// Returns the length of each packet in `bytes`. The kernel can merge several packets into `bytes`. The packets have equal lengths, but the
/// last packet can be shorter. If `bytes` has only one packet, or is not valid, returns the length of `bytes`.
pub(crate) fn segment_of(bytes: &[u8]) -> usize {
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

/// One downstream packet. All of its bytes were checked.
#[derive(Debug, Clone, Copy)]
pub struct Downstream<'a> {
    /// The session of the packet.
    pub session: Session,
    /// The sequence of the first message, or the next expected sequence if the packet has no message; at least 1.
    pub sequence: u64,
    /// The content of the packet.
    pub body: Body<'a>,
}

/// The content of a downstream packet.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// One message or more.
    Messages(Messages<'a>),
    /// No message: the sender is alive, and the packet's sequence is the next expected sequence.
    Heartbeat,
    /// The session is over. There are no messages from the packet's sequence on.
    End,
    /// A part of one message. The packet's sequence is the sequence of this message. Plain packets have no fragments.
    Fragment(Fragment<'a>),
}

impl<'a> Downstream<'a> {
    /// Parses a whole datagram, and checks it. Costs two reads per message, and no copy.
    ///
    /// # Errors
    /// [`Malformed`] if the parts of the packet contradict each other. Use no part of such a packet.
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

    /// Returns the sequence after the last message, or the next expected sequence if the packet has no message.
    pub(crate) fn end(&self) -> u64 {
        match self.body {
            Body::Messages(messages) => messages.end(),
            // A fragment does not show what follows its message, nor that its message is complete.
            Body::Heartbeat | Body::End | Body::Fragment(_) => self.sequence,
        }
    }
}
