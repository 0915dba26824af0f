//! The content of every message. It is computed from the publisher's number, and from the *counter*: the number of the message among the
//! messages of this publisher.
//!
//! A message of [`HEAD`] bytes or more begins with a head, which contains these two numbers. A shorter message can only be recognised as
//! the successor of the previous message. All bytes also depend on the channel, the length, the tag and the key flag. So a change of any of
//! these is noticed.

use crate::identity::mix;
use crate::keys::Keys;
use serde::{Deserialize, Serialize};

pub use crate::identity::Identity;

/// The size of the head in bytes: publisher, counter, tag, key flag, check.
pub const HEAD: usize = 16;

/// The length of the shortest message that can be recognised as the successor of the previous message.
const SHORTEST: usize = 8;

/// The lengths of the messages in a burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sizes {
    /// 0 to 15 bytes: no message has a head.
    Tiny,
    /// 16 to 48 bytes: one cache line.
    Line,
    /// 0 to 1400 bytes, short ones more often.
    Mixed,
    /// Up to the channel's largest message, short ones more often.
    Large,
}

/// Tag and key flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// The tag.
    pub tag: u16,
    /// The key flag.
    pub key: bool,
}

impl Identity {
    /// Returns the length of this message in bytes. It depends on `sizes`, and is at most `largest`.
    pub fn length(self, sizes: Sizes, largest: usize) -> usize {
        let random = self.hash(1);
        let limit = match sizes {
            Sizes::Tiny => return (random % 16) as usize,
            Sizes::Line => return HEAD + (random % 33) as usize,
            Sizes::Mixed => 1400.min(largest),
            Sizes::Large => largest,
        };
        // The exponent is uniform, so each order of magnitude is equally likely.
        let bits = usize::BITS - limit.leading_zeros();
        let below = 1usize << (random % u64::from(bits + 1));
        match random >> 60 {
            0 => limit,
            _ => ((random >> 8) as usize % below).min(limit),
        }
    }

    /// Returns the message's tag and key flag. Some messages have neither.
    pub fn marks(self) -> Marks {
        let random = self.hash(2);
        Marks { tag: random as u16, key: random >> 32 & 7 == 0 }
    }
}

/// Returns the total bytes of `count` messages from `first` on.
pub fn total_bytes(first: Identity, count: u32, sizes: Sizes, largest: usize) -> u64 {
    (0..count).map(|at| Identity { counter: first.counter + at, ..first }.length(sizes, largest) as u64).sum()
}

/// Writes the content of the message to `out`.
pub fn fill(channel: &str, who: Identity, marks: Marks, out: &mut [u8]) {
    let seed = seed(channel, who, marks, out.len());
    let mut rest = &mut *out;
    if rest.len() >= HEAD {
        let (head, tail) = rest.split_at_mut(HEAD);
        head[..4].copy_from_slice(&who.publisher.to_le_bytes());
        head[4..8].copy_from_slice(&who.counter.to_le_bytes());
        head[8..10].copy_from_slice(&marks.tag.to_le_bytes());
        head[10..12].copy_from_slice(&u16::from(marks.key).to_le_bytes());
        head[12..].copy_from_slice(&(seed as u32).to_le_bytes());
        rest = tail;
    }
    for (at, piece) in rest.chunks_mut(8).enumerate() {
        piece.copy_from_slice(&word(seed, at).to_le_bytes()[..piece.len()]);
    }
    if let Some(keys) = Keys::of(channel) {
        keys.write(who, out);
    }
}

/// Returns the message that has these bytes. The message is recognised by its head, or as the successor of `before`. Returns `None` if a
/// byte is wrong, or if so few bytes could be right by chance.
pub fn recognise(channel: &str, before: Option<Identity>, marks: Marks, bytes: &[u8]) -> Option<Identity> {
    let who = if bytes.len() >= HEAD {
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let who = Identity { publisher: number(0), counter: number(4) };
        let told = [u16::from_le_bytes([bytes[8], bytes[9]]), u16::from_le_bytes([bytes[10], bytes[11]])];
        if told != [marks.tag, u16::from(marks.key)]
            || number(12) != seed(channel, who, marks, bytes.len()) as u32
        {
            return None;
        }
        who
    } else if bytes.len() >= SHORTEST {
        before?.next()
    } else {
        return None;
    };
    if Keys::of(channel).is_some_and(|keys| bytes.len() >= keys.end) {
        let mut right = vec![0; bytes.len()];
        fill(channel, who, marks, &mut right);
        return (right == bytes).then_some(who);
    }
    let seed = seed(channel, who, marks, bytes.len());
    let body = if bytes.len() >= HEAD { &bytes[HEAD..] } else { bytes };
    let is_right =
        body.chunks(8).enumerate().all(|(at, piece)| piece == &word(seed, at).to_le_bytes()[..piece.len()]);
    is_right.then_some(who)
}

fn seed(channel: &str, who: Identity, marks: Marks, length: usize) -> u64 {
    let name = channel.bytes().fold(7, |hash, byte| mix(hash, u64::from(byte)));
    let marks = u64::from(marks.tag) << 1 | u64::from(marks.key);
    mix(mix(who.hash(3), name), marks << 32 | length as u64)
}

fn word(seed: u64, at: usize) -> u64 {
    mix(seed, at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: Identity = Identity { publisher: 7, counter: 41 };

    fn message(length: usize, marks: Marks) -> Vec<u8> {
        let mut bytes = vec![0; length];
        fill("a", WHO, marks, &mut bytes);
        bytes
    }

    #[test]
    fn every_changed_byte_shows() {
        for length in [16, 17, 40, 300] {
            let marks = WHO.marks();
            let mut bytes = message(length, marks);
            assert_eq!(recognise("a", None, marks, &bytes), Some(WHO));
            assert_eq!(recognise("b", None, marks, &bytes), None, "of another channel");
            assert_eq!(recognise("a", None, Marks { tag: marks.tag ^ 1, ..marks }, &bytes), None);
            for at in 0..length {
                bytes[at] ^= 4;
                assert_ne!(recognise("a", None, marks, &bytes), Some(WHO), "byte {at} of {length}");
                bytes[at] ^= 4;
            }
            assert_eq!(recognise("a", None, marks, &bytes[..length - 1]), None, "cut short");
        }
    }

    #[test]
    fn short_messages_are_known_by_the_one_before() {
        let before = Identity { counter: WHO.counter - 1, ..WHO };
        let bytes = message(9, Marks::default());
        assert_eq!(recognise("a", Some(before), Marks::default(), &bytes), Some(WHO));
        assert_eq!(recognise("a", Some(WHO), Marks::default(), &bytes), None);
        assert_eq!(recognise("a", None, Marks::default(), &bytes), None);
        assert_eq!(recognise("a", Some(before), Marks::default(), &message(3, Marks::default())), None);
    }

    #[test]
    fn lengths_keep_within_their_class() {
        for counter in 0..5000 {
            let who = Identity { publisher: 3, counter };
            assert!(who.length(Sizes::Tiny, 8000) < 16);
            assert!((16..=48).contains(&who.length(Sizes::Line, 8000)));
            assert!(who.length(Sizes::Mixed, 8000) <= 1400);
            assert!(who.length(Sizes::Large, 8000) <= 8000);
        }
    }
}
