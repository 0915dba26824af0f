//! Seals and opens the bodies of blocks, with AES-128-GCM.
//!
//! Each writer has a key of its own, derived from the group's key and the writer's random number. The nonce is the block's number. A writer
//! never uses a number twice, not even for a block that it cuts again.
//!
//! Without the group's key, an operator of the servers can neither read the bodies of blocks nor forge blocks. The operator can repeat or
//! reorder blocks, but readers detect this by the sequences.

use shmcast_bridge::proto::native::container::SEAL_BYTES;
use shmcast_bridge::proto::native::keys::{GroupKey, Keyring};
use shmcast_bridge::proto::native::seal::SenderKey;

use super::block::{Body, Cut, Damaged, HEAD_BYTES, Head, body_of, parse, stamp};

const SALT: &[u8] = b"shmcast-engine-1";
/// The bytes of the block's own CRC, which no seal covers.
const CRC: std::ops::Range<usize> = 52..56;
/// The greatest number of writers whose derived keys the opener keeps.
const MOST_WRITERS: usize = 8;

/// Seals the blocks of one writer, if it has a key.
#[derive(Debug, Default)]
pub struct Sealer {
    group: Option<(GroupKey, SenderKey)>,
}

impl Sealer {
    /// Sets the key that seals the blocks of `writer`. With `None`, blocks are not sealed.
    pub fn set_key(&mut self, writer: u64, group: Option<&GroupKey>) {
        if self.group.as_ref().map(|(known, _)| known) != group {
            self.group = group.map(|group| (*group, SenderKey::new(group, SALT, writer, false)));
        }
    }

    /// The ID of the key that seals; 0 if there is no key.
    pub fn key(&self) -> u8 {
        self.group.as_ref().map_or(0, |(group, _)| group.id)
    }

    /// Encrypts a body in place. Returns the seal to append to it; `None` without a key.
    pub(super) fn seal(
        &self,
        number: u64,
        head: &[u8; HEAD_BYTES],
        body: &mut [u8],
    ) -> Option<[u8; SEAL_BYTES]> {
        let (_, key) = self.group.as_ref()?;
        Some(key.seal(number, head, body).expect("a block is far shorter than the longest text of a seal"))
    }
}

impl Cut {
    /// Returns the block and its CRC. `head` has all fields except the kind, the sequences and the key, which this function sets.
    pub fn finish(mut self, head: Head, sealer: &Sealer) -> (Vec<u8>, u32) {
        let head = Head { kind: self.kind, first: self.first, count: self.count, ..head };
        let crc = finish(head, sealer, &mut self.bytes);
        (self.bytes, crc)
    }
}

/// Writes the head into `block`, and seals the block. The body is already in `block`, after the room for the head. Returns the block's CRC.
fn finish(head: Head, sealer: &Sealer, block: &mut Vec<u8>) -> u32 {
    let head = Head { key: sealer.key(), ..head };
    let (place, body) = block.split_first_chunk_mut().expect("a block has room for its head");
    head.write(place);
    if let Some(seal) = sealer.seal(head.number, place, body) {
        block.extend(seal);
    }
    stamp(block)
}

/// A writer, and the key that was derived for this writer from a group's key.
#[derive(Debug)]
struct Known {
    writer: u64,
    group: GroupKey,
    key: SenderKey,
}

/// Checks blocks, and opens sealed ones.
#[derive(Debug, Default)]
pub struct Opener {
    keys: Option<Keyring>,
    is_strict: bool,
    known: Vec<Known>,
    text: Vec<u8>,
}

impl Opener {
    /// Makes an opener with these keys. `takes_open` says whether blocks without a seal are accepted.
    pub fn new(keys: Option<Keyring>, takes_open: bool) -> Opener {
        let mut opener = Opener::default();
        opener.set_keys(keys, takes_open);
        opener
    }

    /// Sets the keys that open sealed blocks. Without keys, blocks without a seal are accepted even if `takes_open` is false.
    pub fn set_keys(&mut self, keys: Option<Keyring>, takes_open: bool) {
        let is_there =
            |known: &Known| keys.as_ref().and_then(|keys| keys.of(known.group.id)) == Some(&known.group);
        self.known.retain(is_there);
        self.is_strict = keys.is_some() && !takes_open;
        self.keys = keys;
    }

    /// Checks a whole block, and opens it if it is sealed.
    ///
    /// # Errors
    /// [`Damaged`]. Use no part of such a block.
    pub fn open<'a>(&'a mut self, block: &'a [u8]) -> Result<(Head, Body<'a>), Damaged> {
        let (head, body) = parse(block)?;
        let Body::Sealed(sealed) = body else {
            return if self.is_strict { Err(Damaged::Open) } else { Ok((head, body)) };
        };
        let group = *self.keys.as_ref().and_then(|keys| keys.of(head.key)).ok_or(Damaged::Sealed)?;
        let is_it = |known: &Known| known.writer == head.writer && known.group == group;
        let at = self.known.iter().position(is_it).unwrap_or_else(|| self.add(head.writer, group));
        let mut about = [0; HEAD_BYTES];
        about.copy_from_slice(&block[..HEAD_BYTES]);
        about[CRC].fill(0);
        self.text.clear();
        self.text.extend_from_slice(sealed);
        let size = self.known[at].key.open(head.number, &about, &mut self.text).ok_or(Damaged::Forged)?;
        let body = body_of(&head, &self.text[..size]).ok_or(Damaged::Fields)?;
        Ok((head, body))
    }

    fn add(&mut self, writer: u64, group: GroupKey) -> usize {
        if self.known.len() == MOST_WRITERS {
            self.known.remove(0);
        }
        let key = SenderKey::new(&group, SALT, writer, false);
        self.known.push(Known { writer, group, key });
        self.known.len() - 1
    }

    /// Checks a block, and returns its head. Without keys, the seal is not checked.
    ///
    /// # Errors
    /// [`Damaged`].
    pub fn head(&mut self, block: &[u8]) -> Result<Head, Damaged> {
        match self.keys {
            Some(_) => self.open(block).map(|(head, _)| head),
            None => parse(block).map(|(head, _)| head),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::block::{BlockId, Kind, Stream};
    use shmcast_bridge::proto::session::Session;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f";

    fn ring(text: &str) -> Keyring {
        Keyring::parse(text).unwrap()
    }

    fn sealed(ring: &Keyring) -> Vec<u8> {
        let (stream, session) = (Stream([7; 16]), Session::of_channel("TICK", 35).unwrap());
        let (writer, number) = (0x0102_0304_0506_0708, 9);
        let head = Head { before: 3, ..Head::new(stream, session, BlockId { writer, number }) };
        let mut sealer = Sealer::default();
        sealer.set_key(writer, ring.sealing(0));
        Cut::gap(6, 9).finish(head, &sealer).0
    }

    #[test]
    fn bytes_of_a_sealed_block_are_fixed() {
        let block = sealed(&ring(&format!("7 {HEX}")));
        let (head, body) = parse(&block).unwrap();
        assert!(matches!(body, Body::Sealed(seal) if seal.len() == SEAL_BYTES));
        assert_eq!((&block[34..36], head.key, head.kind, head.end()), (&[1, 7][..], 7, Kind::Gap, 10));
        let seal: String = block[HEAD_BYTES..].iter().map(|byte| format!("{byte:02x}")).collect();
        // Another program computed this seal from the specifications of HKDF and GCM.
        assert_eq!(seal, "5e853059c5ce7bad9a7de26aa1e942d8");
    }

    #[test]
    fn no_changed_bit_opens_though_the_checksum_is_right() {
        let keys = ring(&format!("7 {HEX}"));
        let (block, mut opener) = (sealed(&keys), Opener::new(Some(keys), false));
        assert!(matches!(opener.open(&block), Ok((_, Body::Gap))));
        for bit in (0..8 * block.len()).filter(|bit| !CRC.contains(&(bit / 8))) {
            let mut changed = block.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            stamp(&mut changed);
            assert!(opener.open(&changed).is_err(), "bit {bit}");
        }
        assert!(opener.open(&block).is_ok());
    }

    #[test]
    fn other_keys_and_blocks_without_a_seal_are_refused_by_name() {
        let right = ring(&format!("7 {HEX}"));
        let block = sealed(&right);
        let why =
            |keys: &Keyring, block: &[u8]| Opener::new(Some(keys.clone()), false).open(block).map(|_| ());
        assert_eq!(why(&ring("8 ffffffffffffffffffffffffffffffff"), &block), Err(Damaged::Sealed));
        assert_eq!(why(&ring("7 ffffffffffffffffffffffffffffffff"), &block), Err(Damaged::Forged));
        let (head, _) = parse(&block).unwrap();
        let open = Cut::gap(6, 9).finish(head, &Sealer::default()).0;
        assert_eq!(why(&right, &open), Err(Damaged::Open));
        assert!(Opener::new(Some(right.clone()), true).open(&open).is_ok(), "keys are only offered");
        let mut none = Opener::default();
        assert_eq!(none.open(&block).map(|_| ()), Err(Damaged::Sealed));
        assert_eq!(none.head(&block), Ok(head), "the head is in the clear");
        // A removed key no longer opens blocks.
        let mut opener = Opener::new(Some(right), false);
        assert!(opener.open(&block).is_ok());
        opener.set_keys(Some(ring("9 ffffffffffffffffffffffffffffffff")), false);
        assert_eq!(opener.open(&block).map(|_| ()), Err(Damaged::Sealed));
    }
}
