//! Seals and opens native packets with AES-128-GCM. Each sender has a key of its own.
//!
//! The sender's key is derived from the group's key with HKDF-SHA-256. The salt is fixed, and the info is the sender's number and
//! direction. The sender's number is random at each start. The nonce of a packet is the packet's number. No other packet of this sender has
//! the same number, so no nonce is used twice with one key.
//!
//! The seal also authenticates the bytes before the body. The cheap checks come before the cryptography. For example, if a packet was
//! accepted on one line, its copy on another line is dropped without any cryptography.

#[cfg(test)]
mod tests;

use ring::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use siphasher::sip::SipHasher24;
use std::fmt;
use std::hash::Hasher;

use crate::proto::limit::{Rate, TokenBucket};
use crate::proto::native::container::{Container, HEAD_BYTES, Kind, Numbers, OTHER, SEAL_BYTES};
use crate::proto::native::keys::{GroupKey, Keyring};
use crate::proto::native::window::Window;
use crate::proto::session::Session;
use crate::proto::wire::Malformed;

const SALT: &[u8] = b"shmcast-native-1";
/// The number of packets after which a sender chooses another sender number, and so gets another key.
pub(super) const RENEW_AFTER: u64 = 1 << 36;
/// The rate at which packets of unknown senders are tried with the group's key. Packets beyond this rate are dropped, so that a flood uses
/// only a limited CPU time. A new sender with the right key is still accepted within milliseconds.
const TRIES: Rate = Rate { per_second: 20_000, burst: 2_000 };

/// The key of one sender. It seals data that has a number: the packets of a feed, or the blocks that an engine sends to a server.
pub struct SenderKey(LessSafeKey);

impl fmt::Debug for SenderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SenderKey(..)")
    }
}

impl SenderKey {
    /// Derives the sender's key from the group's key. Each use has its own `salt`, so that no two uses share keys.
    pub fn new(group: &GroupKey, salt: &[u8], sender: u64, is_receiver: bool) -> SenderKey {
        let mut info = [0; 9];
        info[..8].copy_from_slice(&sender.to_be_bytes());
        info[8] = u8::from(is_receiver);
        let secret = Salt::new(HKDF_SHA256, salt).extract(&group.secret);
        let info = [&info[..]];
        let derived =
            secret.expand(&info, &AES_128_GCM).expect("the length of a key is no more than HKDF gives");
        SenderKey(LessSafeKey::new(UnboundKey::from(derived)))
    }

    /// Seals `text` in place. The seal also authenticates `about`. A sender must never seal two texts under one number.
    pub fn seal(&self, number: u64, about: &[u8], text: &mut [u8]) -> Option<[u8; SEAL_BYTES]> {
        let seal = self.0.seal_in_place_separate_tag(nonce_of(number), Aad::from(about), text).ok()?;
        seal.as_ref().try_into().ok()
    }

    /// Opens a sealed text in place. The seal must follow the text in the buffer. Returns the size of the text, or `None` if the seal does
    /// not match.
    pub fn open(&self, number: u64, about: &[u8], sealed: &mut [u8]) -> Option<usize> {
        let text = self.0.open_in_place(nonce_of(number), Aad::from(about), sealed).ok()?;
        Some(text.len())
    }
}

fn key_of(group: &GroupKey, sender: u64, is_receiver: bool) -> SenderKey {
    SenderKey::new(group, SALT, sender, is_receiver)
}

fn nonce_of(number: u64) -> Nonce {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}

/// Numbers the packets of one sender, and seals them if the sender has a key.
pub struct Sealer {
    numbers: Numbers,
    group: Option<(GroupKey, SenderKey)>,
    is_receiver: bool,
    renew_after: u64,
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sealer").field("numbers", &self.numbers).finish_non_exhaustive()
    }
}

impl Sealer {
    /// Makes a sealer without a key, which numbers packets but does not seal them. `sender` must be random.
    pub fn new(sender: u64, is_receiver: bool) -> Sealer {
        Sealer {
            numbers: Numbers::new(sender, is_receiver),
            group: None,
            is_receiver,
            renew_after: RENEW_AFTER,
        }
    }

    /// Seals the packets from now on with this key. Without a key, packets are not sealed.
    pub fn set_key(&mut self, group: Option<&GroupKey>) {
        if self.group.as_ref().map(|(known, _)| known) != group {
            let key = |group: &GroupKey| (*group, key_of(group, self.numbers.sender(), self.is_receiver));
            self.group = group.map(key);
        }
    }

    /// Makes a packet from a body. The body is in the buffer after [`HEAD_BYTES`] bytes, and has `body_bytes` bytes. Returns the packet's
    /// size, or `None` if the buffer has no room for it.
    pub fn finish(
        &mut self,
        buffer: &mut [u8],
        (kind, is_repair): (Kind, bool),
        about: (Session, u64, u16),
        body_bytes: usize,
    ) -> Option<usize> {
        if self.numbers.sent() >= self.renew_after {
            self.renew();
        }
        let mut container = self.numbers.next(kind, is_repair, about);
        let Some((group, key)) = &self.group else { return container.write(buffer, body_bytes) };
        (container.is_sealed, container.key) = (true, group.id);
        let size = container.write(buffer, body_bytes + SEAL_BYTES)?;
        let (head, body) = buffer.split_at_mut(HEAD_BYTES);
        let (text, room) = body[..body_bytes + SEAL_BYTES].split_at_mut(body_bytes);
        room.copy_from_slice(&key.seal(container.number, head, text)?);
        Some(size)
    }

    // Continues under another sender's number, and so with another key.
    fn renew(&mut self) {
        let mut hasher = SipHasher24::new_with_key(&[0; 16]);
        hasher.write_u64(self.numbers.sender());
        self.numbers = Numbers::new(hasher.finish(), self.is_receiver);
        let group = self.group.take();
        self.set_key(group.as_ref().map(|(group, _)| group));
    }
}

/// The reason why a packet was not opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unopened {
    /// The packet is damaged.
    Malformed(Malformed),
    /// A packet with this number was already accepted, or might have been: very old numbers are not remembered.
    Replayed,
    /// The seal does not match. The packet is forged or damaged.
    Forged,
    /// The packet has no seal, its key is not known here, or too many packets of unknown senders arrive.
    Unknown,
}

/// A known sender: at least one of its packets was opened.
struct Known {
    sender: u64,
    group: GroupKey,
    key: SenderKey,
    live: Window,
    other: Window,
    heard_ns: u64,
}

/// The numbers of packets that were not opened, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenerCounters {
    /// Packets that were already accepted, among them copies on other lines. Packets with very old numbers count as well, because only the
    /// latest numbers are remembered.
    pub replayed: u64,
    /// Packets whose seal does not match.
    pub forged: u64,
    /// Packets without a seal, packets with an unknown key, and packets that were dropped because too many packets of unknown senders
    /// arrived.
    pub unknown: u64,
}

/// Opens sealed packets.
pub struct Opener {
    keys: Option<Keyring>,
    /// Whether packets without a seal are accepted, too.
    takes_open: bool,
    /// Whether packets must come from receivers. If not, they must come from senders and servers.
    from_receivers: bool,
    known: Vec<Known>,
    most: usize,
    tries: TokenBucket,
    counters: OpenerCounters,
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opener").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl Opener {
    /// Makes an opener that knows up to `most` senders at a time. If `from_receivers` is set, it opens packets of receivers, and otherwise
    /// packets of senders and servers.
    pub fn new(from_receivers: bool, most: usize) -> Opener {
        let known = Vec::with_capacity(most);
        let (tries, counters) = (TokenBucket::default(), OpenerCounters::default());
        Opener { keys: None, takes_open: true, from_receivers, known, most, tries, counters }
    }

    /// Sets the keys that open packets from now on. Without keys, no sealed packet is opened. `takes_open` says whether packets without a
    /// seal are accepted.
    pub fn set_keys(&mut self, keys: Option<Keyring>, takes_open: bool) {
        self.known
            .retain(|known| keys.as_ref().and_then(|keys| keys.of(known.group.id)) == Some(&known.group));
        (self.keys, self.takes_open) = (keys, takes_open);
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> &OpenerCounters {
        &self.counters
    }

    /// Opens a packet into `out`. The result has the form of a packet that was never sealed. Returns its size.
    ///
    /// # Errors
    /// [`Unopened`]. The opener counts the packets that it does not open, except for malformed packets.
    pub fn open(&mut self, now_ns: u64, datagram: &[u8], out: &mut [u8]) -> Result<usize, Unopened> {
        let opened = self.try_open(now_ns, datagram, out);
        match opened {
            Err(Unopened::Replayed) => self.counters.replayed += 1,
            Err(Unopened::Forged) => self.counters.forged += 1,
            Err(Unopened::Unknown) => self.counters.unknown += 1,
            Ok(_) | Err(Unopened::Malformed(_)) => {}
        }
        opened
    }

    fn try_open(&mut self, now_ns: u64, datagram: &[u8], out: &mut [u8]) -> Result<usize, Unopened> {
        let (container, body) = Container::parse(datagram).map_err(Unopened::Malformed)?;
        let out = out.get_mut(..datagram.len()).ok_or(Unopened::Malformed(Malformed::Truncated))?;
        if container.is_from_receiver != self.from_receivers {
            return Err(Unopened::Unknown);
        }
        if !container.is_sealed {
            out.copy_from_slice(datagram);
            return if self.takes_open { Ok(datagram.len()) } else { Err(Unopened::Unknown) };
        }
        let text_bytes =
            body.len().checked_sub(SEAL_BYTES).ok_or(Unopened::Malformed(Malformed::Truncated))?;
        let group = self.keys.as_ref().and_then(|keys| keys.of(container.key)).ok_or(Unopened::Unknown)?;
        let (sender, key) = (container.sender, container.key);
        let at = self.known.iter().position(|known| known.sender == sender && known.group.id == key);
        let fresh;
        let key = match at {
            Some(at) if !self.known[at].window(container.number).is_fresh(container.number & !OTHER) => {
                return Err(Unopened::Replayed);
            }
            Some(at) => &self.known[at].key,
            None if !self.tries.is_open(now_ns, TRIES) => return Err(Unopened::Unknown),
            None => {
                self.tries.charge(now_ns, TRIES, 1);
                fresh = key_of(group, sender, self.from_receivers);
                &fresh
            }
        };
        let (head, out_body) = out.split_at_mut(HEAD_BYTES);
        out_body.copy_from_slice(body);
        key.open(container.number, &datagram[..HEAD_BYTES], out_body).ok_or(Unopened::Forged)?;
        head.copy_from_slice(&datagram[..HEAD_BYTES]);
        let group = *group;
        let at = at.unwrap_or_else(|| self.add(sender, group));
        let known = &mut self.known[at];
        known.heard_ns = now_ns;
        known.window(container.number).take(container.number & !OTHER);
        let open = Container { is_sealed: false, key: 0, ..container };
        open.write(out, text_bytes).ok_or(Unopened::Malformed(Malformed::Truncated))
    }

    // Adds a sender whose seal has matched. If there is no room, the new sender replaces the sender that was silent for longest.
    fn add(&mut self, sender: u64, group: GroupKey) -> usize {
        let key = key_of(&group, sender, self.from_receivers);
        if self.known.len() < self.most {
            let (live, other) = (Window::default(), Window::default());
            self.known.push(Known { sender, group, key, live, other, heard_ns: 0 });
            return self.known.len() - 1;
        }
        let at = (0..self.known.len()).min_by_key(|&at| self.known[at].heard_ns).unwrap_or(0);
        let known = &mut self.known[at];
        (known.sender, known.group, known.key) = (sender, group, key);
        known.live.clear();
        known.other.clear();
        at
    }
}

impl Known {
    fn window(&mut self, number: u64) -> &mut Window {
        if number & OTHER == 0 { &mut self.live } else { &mut self.other }
    }
}
