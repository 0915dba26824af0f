//! The keys of messages on channels with a board. The name of a channel says which bytes of its messages are the key, and how many keys its
//! publishers use: on `a.16-24.300`, the key is in the bytes 16 to 23, and there are 300 keys.
//!
//! The key of a message follows from the message's identity. A few keys have most of the messages. A message that ends with its key removes
//! the key from the board. A shorter message has no key.

use crate::identity::Identity;

/// The number of keys that fit the first two bytes of a key.
const MOST: u32 = 1 << 16;

/// The place of the key in each message of a channel, and the number of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// The offset of the key's first byte.
    pub start: usize,
    /// The offset of the byte after the key.
    pub end: usize,
    /// The number of keys that publishers use.
    pub used: u32,
}

impl Keys {
    /// Returns the name of a channel whose messages have these keys. The name begins with `name`.
    pub fn name(self, name: &str) -> String {
        let Self { start, end, used } = self;
        format!("{name}.{start}-{end}.{used}")
    }

    /// Returns the keys of a channel's messages; `None` if the channel's name does not say that there are keys.
    pub fn of(channel: &str) -> Option<Self> {
        let mut parts = channel.split('.').skip(1);
        let (start, end) = parts.next()?.split_once('-')?;
        let (start, end, used) = (start.parse().ok()?, end.parse().ok()?, parts.next()?.parse().ok()?);
        (start + 2 <= end && (1..MOST).contains(&used)).then_some(Self { start, end, used })
    }

    /// Returns the number of a message's key. Low numbers are much more frequent than high ones.
    pub fn number(self, who: Identity) -> u32 {
        let part = (who.hash(4) >> 40) as f64 / (1u64 << 24) as f64;
        ((f64::from(self.used) * part * part * part) as u32).min(self.used - 1)
    }

    /// Returns the key with this number.
    pub fn key(self, number: u32) -> Vec<u8> {
        let random = Identity { publisher: u32::MAX, counter: number }.hash(5);
        let mut key: Vec<u8> = random.to_le_bytes().into_iter().cycle().take(self.end - self.start).collect();
        key[..2].copy_from_slice(&(number as u16).to_le_bytes());
        key
    }

    /// Returns the number of this key; `None` if it is not a key of the channel.
    pub fn parse(self, key: &[u8]) -> Option<u32> {
        let number = u32::from(u16::from_le_bytes([*key.first()?, *key.get(1)?]));
        (number < self.used && self.key(number) == key).then_some(number)
    }

    /// Writes the key of a message into its payload, if the payload is long enough.
    pub fn write(self, who: Identity, payload: &mut [u8]) {
        if let Some(place) = payload.get_mut(self.start..self.end) {
            place.copy_from_slice(&self.key(self.number(who)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_which_keys_there_are() {
        for keys in [Keys { start: 16, end: 18, used: 1 }, Keys { start: 20, end: 40, used: 300 }] {
            assert_eq!(Keys::of(&keys.name("a")), Some(keys));
        }
        for name in ["a", "a.b", "a.16-17.3", "a.16-24.0", "a.16-24.65536", "bereaved"] {
            assert_eq!(Keys::of(name), None, "{name}");
        }
    }

    #[test]
    fn a_few_keys_have_most_messages_and_each_has_one() {
        let keys = Keys { start: 16, end: 36, used: 50 };
        let mut counts = [0; 50];
        for counter in 0..10_000 {
            let who = Identity { publisher: 7, counter };
            let mut payload = [0; 40];
            keys.write(who, &mut payload);
            let number = keys.parse(&payload[16..36]).expect("a key of the channel");
            assert_eq!(number, keys.number(who));
            counts[number as usize] += 1;
        }
        assert!(counts.iter().all(|count| *count > 0) && counts[0] > 1000, "{counts:?}");
        assert_eq!(keys.parse(&keys.key(49)), Some(49));
        assert_eq!(keys.parse(&keys.key(50)), None);
    }
}
