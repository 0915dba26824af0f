//! Code that all threads with native lines share. It reads the keys file, and makes and opens packets in its own buffers.

use shmcast::hosting::fault;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::BridgeError;
use super::private;
use super::proto::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::proto::native::NO_SESSION;
use super::proto::native::ask::{self, Entry};
use super::proto::native::container::{Container, HEAD_BYTES, Kind, SEAL_BYTES};
use super::proto::native::keys::Keyring;
use super::proto::native::seal::{Opener, OpenerCounters, Sealer, Unopened};
use super::proto::session::Session;
use super::proto::wire::MAX_DATAGRAM_BYTES;
use super::spec::BridgeSpec;
use super::thread::wall_ns;

/// Greatest size of a keys file.
const MAX_KEYS_BYTES: u64 = 64 << 10;

/// The keys of a bridge, which all of its threads share. A reload replaces the keys.
#[derive(Debug)]
pub struct Keys {
    ring: Mutex<Option<Keyring>>,
    /// A number that grows with each change of the keys.
    version: AtomicU64,
}

impl Keys {
    /// Reads the keys file of the spec, if it names one.
    ///
    /// # Errors
    /// [`BridgeError::Keys`].
    pub fn open(spec: &BridgeSpec) -> Result<Keys, BridgeError> {
        let ring = spec.keys.as_deref().map(read_keys).transpose()?;
        Ok(Keys { ring: Mutex::new(ring), version: AtomicU64::new(1) })
    }

    /// The keys; `None` if there are none.
    pub fn ring(&self) -> Option<Keyring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the keys file of the spec again, if the spec names one. The threads use the new keys soon after.
    ///
    /// # Errors
    /// [`BridgeError::Keys`]; the keys stay as they were.
    pub(crate) fn reload(&self, spec: &BridgeSpec) -> Result<(), BridgeError> {
        let Some(path) = spec.keys.as_deref() else { return Ok(()) };
        let ring = read_keys(path)?;
        *self.ring.lock().unwrap_or_else(PoisonError::into_inner) = Some(ring);
        self.version.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Reads a keys file. The file must belong to root or to this user, and must not be readable or writable by anybody else.
///
/// # Errors
/// [`BridgeError::Keys`].
pub fn read_keys(path: &Path) -> Result<Keyring, BridgeError> {
    let error = |why: String| BridgeError::Keys { path: path.to_owned(), why };
    let text = private::read(path, MAX_KEYS_BYTES).map_err(error)?;
    Keyring::parse(&text).map_err(|e| error(e.to_string()))
}

/// Returns a random number that identifies a sender.
pub(super) fn random_sender() -> Result<u64, BridgeError> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| BridgeError::Start(io::Error::other(e)))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Notices for one thread when the shared keys change.
#[derive(Debug, Default)]
pub struct KeysSeen {
    version: u64,
    /// The span of time in which the present key seals, in nanoseconds since 1970. If the clock is set back to a time before this span,
    /// another key seals.
    same_ns: Range<u64>,
}

impl KeysSeen {
    /// Returns the keys if they have changed since the last call, or if another key seals now. The inner `None` means that there are no
    /// keys.
    pub fn changed(&mut self, keys: &Keys) -> Option<Option<Keyring>> {
        self.changed_at(keys, wall_ns())
    }

    fn changed_at(&mut self, keys: &Keys, now_ns: u64) -> Option<Option<Keyring>> {
        let version = keys.version.load(Ordering::Acquire);
        let is_same = match fault!("keys_only_go_on") {
            true => now_ns < self.same_ns.end,
            false => self.same_ns.contains(&now_ns),
        };
        if version == self.version && is_same {
            return None;
        }
        let ring = keys.ring();
        let times = || ring.iter().flat_map(|ring| ring.keys()).map(|key| key.from_ns);
        let since_ns = times().filter(|from_ns| *from_ns <= now_ns).max().unwrap_or(0);
        let until_ns = times().filter(|from_ns| *from_ns > now_ns).min().unwrap_or(u64::MAX);
        (self.version, self.same_ns) = (version, since_ns..until_ns);
        Some(ring)
    }
}

/// The part of a bridge to which a thread belongs. This part decides whose packets the thread opens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// A receiver opens packets of egresses and servers.
    Receiver,
    /// A server opens packets of receivers.
    Server,
    /// A sending end (egress) opens the packets of the other sending ends of its stream.
    Egress,
}

/// Makes and opens the packets of one thread. It numbers and seals the packets that the thread sends, and opens the packets that the thread
/// receives.
#[derive(Debug)]
pub(super) struct Codec {
    sealer: Sealer,
    opener: Opener,
    seen: KeysSeen,
    takes_open: bool,
    out: Box<[u8]>,
    scratch: Box<[u8]>,
}

impl Codec {
    /// Makes the codec of a thread that receives from up to `most` senders at a time.
    pub(super) fn new(spec: &BridgeSpec, part: Part, most: usize, keys: &Keys) -> Result<Codec, BridgeError> {
        let mut codec = Codec {
            sealer: Sealer::new(random_sender()?, part == Part::Receiver),
            opener: Opener::new(part == Part::Server, most),
            seen: KeysSeen::default(),
            takes_open: spec.takes_open(),
            out: vec![0; MAX_DATAGRAM_BYTES].into(),
            scratch: vec![0; MAX_DATAGRAM_BYTES].into(),
        };
        codec.look(keys);
        Ok(codec)
    }

    /// Takes over the shared keys if they have changed. Call this every few milliseconds.
    pub(super) fn look(&mut self, keys: &Keys) {
        if let Some(ring) = self.seen.changed(keys) {
            self.sealer.set_key(ring.as_ref().and_then(|ring| ring.sealing(wall_ns())));
            self.opener.set_keys(ring, self.takes_open);
        }
    }

    /// Opens a packet. The result has the form of a packet that was never sealed.
    pub(super) fn open(&mut self, now_ns: u64, datagram: &[u8]) -> Result<&[u8], Unopened> {
        let size = self.opener.open(now_ns, datagram, &mut self.scratch)?;
        Ok(&self.scratch[..size])
    }

    /// Makes a packet that contains a control datagram.
    pub(super) fn control(&mut self, control: &[u8]) -> Option<&[u8]> {
        let (kind, body) = ControlDatagram::body_of(control)?;
        self.out.get_mut(HEAD_BYTES..HEAD_BYTES + body.len())?.copy_from_slice(body);
        let about = (NO_SESSION, 1, 0);
        let size = self.sealer.finish(&mut self.out, (Kind::Control(kind), false), about, body.len())?;
        Some(&self.out[..size])
    }

    /// Makes a packet that contains a request.
    pub(super) fn ask(&mut self, session: Session, entries: &[Entry]) -> Option<&[u8]> {
        let first = entries.first()?.first;
        let body = ask::write(entries.iter().copied(), &mut self.out[HEAD_BYTES..]);
        let size = self.sealer.finish(&mut self.out, (Kind::Ask, false), (session, first, 0), body)?;
        Some(&self.out[..size])
    }

    /// Completes a packet that answers a request.
    pub(super) fn answer(
        sealer: &mut Sealer,
        buffer: &mut [u8],
        kind: Kind,
        about: (Session, u64, u16),
        body: usize,
    ) -> Option<usize> {
        let is_repair = matches!(kind, Kind::Data | Kind::Fragment);
        sealer.finish(buffer, (kind, is_repair), about, body)
    }

    /// Returns the parts from which an answer is made: the opened packet, the sealer, and a buffer.
    pub(super) fn parts(&mut self, size: usize) -> (&[u8], &mut Sealer, &mut [u8]) {
        (&self.scratch[..size], &mut self.sealer, &mut self.out)
    }

    /// Counts of the packets that could not be opened.
    pub(super) fn counters(&self) -> &OpenerCounters {
        self.opener.counters()
    }
}

/// The size of the largest packet that contains a control datagram, in bytes.
pub(super) const MOST_OF_CONTROL: usize = HEAD_BYTES + CONTROL_MAX_BYTES + SEAL_BYTES;

/// Unpacks the control datagram of an opened packet into `out`, and returns its size. Returns `None` if the packet has no control datagram.
pub(super) fn control_in(opened: &[u8], out: &mut [u8; CONTROL_MAX_BYTES]) -> Option<usize> {
    let (container, body) = Container::parse(opened).ok()?;
    let Kind::Control(kind) = container.kind else { return None };
    ControlDatagram::from_body(kind, body, out)
}

/// The size of the largest datagram to a server, in bytes.
pub(super) const MOST_TO_SERVER: usize = HEAD_BYTES + ask::MAX_ASK_BYTES + SEAL_BYTES;

#[cfg(test)]
mod tests {
    use super::*;

    /// A test for an earlier mistake. A host's clock was ahead when its bridge began, so the bridge sealed with a key that was not due.
    /// After the clock was set back, the bridge must seal with the earlier key again, because other hosts might not have the later key yet.
    #[test]
    fn a_clock_that_was_set_back_gives_the_earlier_key_again() {
        let text = "1 00112233445566778899aabbccddeeff\n2 ff112233445566778899aabbccddeeff from 2026-11-24T07:00:00Z\n";
        let keys = Keys { ring: Mutex::new(Some(Keyring::parse(text).unwrap())), version: AtomicU64::new(1) };
        let due_ns = keys.ring().unwrap().keys()[1].from_ns;
        let mut seen = KeysSeen::default();
        for (now_ns, id) in [
            (due_ns + 9, Some(2)),
            (due_ns + 5, None),
            (due_ns - 5, Some(1)),
            (due_ns - 9, None),
            (due_ns, Some(2)),
            (0, Some(1)),
        ] {
            let changed = seen.changed_at(&keys, now_ns);
            assert_eq!(changed.map(|ring| ring.unwrap().sealing(now_ns).unwrap().id), id, "at {now_ns}");
        }
    }
}
