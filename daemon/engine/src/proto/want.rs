//! A reader's request for messages that the log lacks. A writer answers with one block.
//!
//! ```text
//! magic "SHMW" | version u8 | kind u8: 0 exact, 1 any | 0 x 2 | session 10 | 0 x 2 | first u64 | offset or count u32
//! ```
//! The answer to an exact request begins with the message `first`. If that message is sent in fragments, the answer begins with the
//! message's byte `offset`. A gap in the answer means that the channel itself lacks the messages of the gap. A writer whose ring no longer
//! has the messages does not answer, because another writer might have them.
//!
//! If no writer answers, the reader sends a request of kind `any`, before it gives any message up. This request asks for any of the `count`
//! sequences from `first` on. The answer begins with the first of these sequences that the writer has. Earlier builds do not answer
//! requests of this kind.

use shmcast_bridge::proto::native::keys::GroupKey;
use shmcast_bridge::proto::session::Session;

use super::block::{BlockId, Carried, Cut, Head};
use super::seal::Sealer;

/// Bytes of a request.
pub const WANT_BYTES: usize = 32;
const MAGIC: &[u8; 4] = b"SHMW";
const VERSION: u8 = 1;

/// The messages that a reader wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// The message with the request's first sequence. If the message is sent in fragments, the answer begins at this byte of the message.
    Exact(u32),
    /// The first message that the writer has in a range. The range begins at the request's first sequence and has this number of sequences.
    Any(u32),
}

/// A request of a reader for missing messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// The session of the wanted messages.
    pub session: Session,
    /// The first sequence wanted.
    pub first: u64,
    /// The wanted messages: the message `first` alone, or a range that begins there.
    pub wanted: Wanted,
}

impl Want {
    /// Makes a request for the first message of `first..=last` that the writer has. If the range has more than `u32::MAX` sequences, the
    /// request covers only the first `u32::MAX` of them.
    pub fn any(session: Session, first: u64, last: u64) -> Want {
        let count = u32::try_from(last.saturating_sub(first) + 1).unwrap_or(u32::MAX);
        Want { session, first, wanted: Wanted::Any(count) }
    }

    /// The last sequence with which an answer can begin.
    pub fn last(&self) -> u64 {
        match self.wanted {
            Wanted::Exact(_) => self.first,
            Wanted::Any(count) => self.first.saturating_add(u64::from(count) - 1),
        }
    }

    /// The request's bytes.
    pub fn encode(&self) -> [u8; WANT_BYTES] {
        let (kind, number) = match self.wanted {
            Wanted::Exact(offset) => (0, offset),
            Wanted::Any(count) => (1, count),
        };
        let mut out = [0; WANT_BYTES];
        out[..4].copy_from_slice(MAGIC);
        (out[4], out[5]) = (VERSION, kind);
        out[8..18].copy_from_slice(self.session.as_bytes());
        out[20..28].copy_from_slice(&self.first.to_be_bytes());
        out[28..].copy_from_slice(&number.to_be_bytes());
        out
    }

    /// Parses a request. Returns `None` if the request is not valid.
    pub fn parse(bytes: &[u8]) -> Option<Want> {
        let bytes: &[u8; WANT_BYTES] = bytes.try_into().ok()?;
        let number = u32::from_be_bytes(bytes[28..].try_into().ok()?);
        let want = Want {
            session: Session::from_bytes(bytes[8..18].try_into().ok()?),
            first: u64::from_be_bytes(bytes[20..28].try_into().ok()?),
            wanted: match bytes[5] {
                0 => Wanted::Exact(number),
                _ => Wanted::Any(number),
            },
        };
        let is_sound = want.first > 0 && want.wanted != Wanted::Any(0);
        (is_sound && want.encode() == *bytes).then_some(want)
    }
}

/// Whether a session is an earlier one of the same sender.
pub(crate) fn is_earlier(session: Session, than: Session) -> bool {
    let both = session.epoch().zip(than.epoch());
    session.tag() == than.tag() && both.is_some_and(|(epoch, than)| epoch < than)
}

/// Makes the blocks that answer requests. These blocks are not stored in the log. An answerer has its own writer number and numbers its
/// blocks, so no nonce is used twice.
#[derive(Debug)]
pub struct Answerer {
    writer: u64,
    number: u64,
    sealer: Sealer,
}

impl Answerer {
    /// Makes an answerer whose first block has the number 1. The number `writer` must differ from the numbers of all other writers.
    pub fn new(writer: u64) -> Answerer {
        Answerer { writer, number: 0, sealer: Sealer::default() }
    }

    /// Sets the key that seals answers. With `None`, answers are not sealed.
    pub fn set_key(&mut self, key: Option<&GroupKey>) {
        self.sealer.set_key(self.writer, key);
    }

    /// Makes the block that answers a request for messages of the channel `carried`.
    pub fn answer(&mut self, carried: Carried, cut: Cut, clock_error: u16) -> Vec<u8> {
        self.number += 1;
        let id = BlockId { writer: self.writer, number: self.number };
        let head = Head { clock_error, ..Head::new(carried.stream, carried.session, id) };
        cut.finish(head, &self.sealer).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_request_are_fixed() {
        let session = Session::of_channel("TICK", 35).unwrap();
        let want = Want { session, first: 0x0102, wanted: Wanted::Exact(3) };
        let bytes = want.encode();
        assert_eq!(&bytes, b"SHMW\x01\0\0\0TICK00000Z\0\0\0\0\0\0\0\0\x01\x02\0\0\0\x03");
        assert_eq!((Want::parse(&bytes), want.last()), (Some(want), 0x0102));
        for at in (0..8).filter(|at| *at != 5).chain(18..20) {
            let mut wrong = bytes;
            wrong[at] ^= 1;
            assert_eq!(Want::parse(&wrong), None, "byte {at}");
        }
        assert_eq!(Want::parse(&bytes[1..]), None);
        assert_eq!(Want::parse(&Want { first: 0, ..want }.encode()), None);
        let any = Want::any(session, 0x0102, 0x0104);
        let bytes = any.encode();
        assert_eq!(&bytes, b"SHMW\x01\x01\0\0TICK00000Z\0\0\0\0\0\0\0\0\x01\x02\0\0\0\x03");
        assert_eq!((Want::parse(&bytes), any.last()), (Some(any), 0x0104));
        assert_eq!(Want::parse(&Want { wanted: Wanted::Any(0), ..any }.encode()), None);
        assert_eq!(Want::any(session, 1, u64::MAX - 1).last(), u64::from(u32::MAX), "as many as fit");
    }
}
