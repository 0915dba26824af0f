//! Receives the packets that the other egresses (sending ends) of the stream send: their claims (announcements of their roles), and packets
//! on the bridge's own multicast lines.

use shmcast::hosting::fault;
use shmcast::sys::datagrams::Inbox;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use crate::BridgeError;
use crate::native::{Codec, Keys, Part, control_in};
use crate::proto::claim::Claim;
use crate::proto::control::{CONTROL_MAX_BYTES, ControlDatagram, is_control};
use crate::proto::native;
use crate::proto::wire::Downstream;
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, LineSpec, Profile};

/// The greatest number of senders whose packets can be opened at a time. An egress counts as two senders: one for its feed, and one for its
/// claims.
const MOST_SENDERS: usize = 32;

/// A line that this egress receives.
struct Ear {
    /// The line's number in the spec.
    at: usize,
    socket: UdpSocket,
    inbox: Inbox,
    profile: Profile,
}

/// The lines that this egress receives, and the keys with which it opens their packets.
pub(super) struct Hearing {
    lines: Vec<Ear>,
    /// Opens native packets. If there are keys, it also opens claims. `None` if all lines are plain.
    codec: Option<Codec>,
    keys: Arc<Keys>,
    is_sealed: bool,
    takes_open: bool,
    /// The addresses that our own packets are sent from.
    own: Vec<SocketAddr>,
}

impl Hearing {
    /// Makes a `Hearing` without lines.
    pub(super) fn new(
        spec: &BridgeSpec,
        keys: &Arc<Keys>,
        own: Vec<SocketAddr>,
    ) -> Result<Hearing, BridgeError> {
        let codec = spec.is_any_native().then(|| Codec::new(spec, Part::Egress, MOST_SENDERS, keys));
        let (codec, keys) = (codec.transpose()?, keys.clone());
        let (is_sealed, takes_open) = (spec.keys.is_some(), spec.takes_open());
        Ok(Hearing { lines: Vec::new(), codec, keys, is_sealed, takes_open, own })
    }

    /// Returns the multicast lines of the spec with their numbers. This host cannot receive the packets of the unicast lines.
    pub(super) fn lines_of(spec: &BridgeSpec) -> impl Iterator<Item = (usize, &LineSpec)> {
        spec.lines.iter().enumerate().filter(|(_, line)| line.group.ip().is_multicast())
    }

    /// Opens a socket that receives one more line.
    pub(super) fn add(
        &mut self,
        spec: &BridgeSpec,
        (at, line): (usize, &LineSpec),
        tuning: Tuning,
        refusals: &mut RefusedSettings,
    ) -> Result<(), BridgeError> {
        let socket = socket::open_line(line, tuning, refusals)?;
        let (inbox, profile) = (Inbox::new(spec.payload_bytes), spec.profile_of(line));
        self.lines.push(Ear { at, socket, inbox, profile });
        Ok(())
    }

    /// Replaces the socket of line `at`.
    pub(super) fn renew(&mut self, at: usize, socket: UdpSocket) {
        if let Some(ear) = self.lines.iter_mut().find(|ear| ear.at == at && !fault!("ears_stay_deaf")) {
            ear.socket = socket;
        }
    }

    /// Notes that one of our lines changed its source address from `was` to `is`.
    pub(super) fn note_own(&mut self, was: Option<SocketAddr>, is: Option<SocketAddr>) {
        self.own.retain(|own| Some(*own) != was);
        self.own.extend(is);
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.lines.iter().map(|ear| ear.socket.as_fd())
    }

    /// Takes over the shared keys if they have changed.
    pub(super) fn look(&mut self) {
        if let Some(codec) = &mut self.codec {
            codec.look(&self.keys);
        }
    }

    /// Passes to `take` each valid packet that is waiting in the sockets, except our own packets. Takes one batch of each line, or all
    /// packets if `all` is set.
    pub(super) fn hear(&mut self, now_ns: u64, all: bool, mut take: impl FnMut(SocketAddr, &Downstream<'_>)) {
        let Hearing { lines, codec, own, .. } = self;
        for Ear { socket, inbox, profile, .. } in lines {
            while inbox.receive(&*socket).is_ok_and(|received| received > 0) {
                for datagram in inbox.datagrams().filter(|datagram| !own.contains(&datagram.from)) {
                    let codec = codec.as_mut().filter(|_| *profile == Profile::Native);
                    if let Some(packet) = packet_in(codec, now_ns, datagram.bytes) {
                        take(datagram.from, &packet);
                    }
                }
                if !inbox.expects_more() && !all {
                    break;
                }
            }
        }
    }

    /// Returns the claim in a datagram. Returns `None` if the datagram is no claim, or if the claim has no seal although claims must be
    /// sealed.
    pub(super) fn claim_in(&mut self, now_ns: u64, datagram: &[u8]) -> Option<Claim> {
        let mut out = [0; CONTROL_MAX_BYTES];
        let control = match is_control(datagram) {
            true => self.takes_open.then_some(datagram)?,
            false => {
                let size = control_in(self.codec.as_mut()?.open(now_ns, datagram).ok()?, &mut out)?;
                &out[..size]
            }
        };
        match ControlDatagram::parse(control) {
            Ok(ControlDatagram::Claim(claim)) => Some(claim),
            _ => None,
        }
    }

    /// Writes the packet of a claim to `out`. Seals the packet if there are keys.
    pub(super) fn packet_of<'a>(
        &'a mut self,
        claim: Claim,
        out: &'a mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<&'a [u8]> {
        let size = ControlDatagram::Claim(claim).encode(out);
        match self.codec.as_mut().filter(|_| self.is_sealed) {
            Some(codec) => codec.control(&out[..size]),
            None => Some(&out[..size]),
        }
    }
}

/// Returns the valid packet in a datagram of a line. `codec` opens the packets of native lines, and is `None` for plain lines.
fn packet_in<'a>(codec: Option<&'a mut Codec>, now_ns: u64, datagram: &'a [u8]) -> Option<Downstream<'a>> {
    match codec {
        None => Downstream::parse(datagram).ok(),
        Some(codec) => Some(native::parse(codec.open(now_ns, datagram).ok()?).ok()?.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::claim::Role;
    use crate::proto::session::Session;
    use std::os::unix::fs::PermissionsExt;

    fn hearing(profile: Profile, key: Option<&str>) -> Hearing {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("keys");
        std::fs::write(&file, format!("3 {}\n", key.unwrap_or_default())).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let spec = BridgeSpec { profile, keys: key.map(|_| file), ..BridgeSpec::new("t") };
        Hearing::new(&spec, &Arc::new(Keys::open(&spec).unwrap()), Vec::new()).unwrap()
    }

    fn claim() -> Claim {
        let session = Session::of_channel("T", 7).unwrap();
        let (claim, next, stream, sender) = (3, 77, 5, 6);
        Claim { session, claim, next, rank: 1, role: Role::Active, is_mirror: false, stream, sender }
    }

    #[test]
    fn a_line_is_heard_by_the_socket_that_was_opened_anew() {
        let spec = BridgeSpec::new("t");
        let mut hears = hearing(Profile::Plain, None);
        let socket = || {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let line = LineSpec::to(socket().local_addr().unwrap());
        let tuning = Tuning { buffer_bytes: 1 << 16, busy_poll_us: 0 };
        hears.add(&spec, (1, &line), tuning, &mut RefusedSettings::default()).unwrap();
        let (other, anew) = (socket(), socket());
        let to = [&other, &anew].map(|socket| socket.local_addr().unwrap());
        hears.renew(0, other);
        hears.renew(1, anew);
        let session = Session::of_channel("T", 7).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for (to, next) in to.into_iter().zip([1, 2]) {
            sender.send_to(&crate::proto::wire::heartbeat(session, next), to).unwrap();
        }
        let mut heard = Vec::new();
        hears.hear(1, true, |_, packet| heard.push(packet.sequence));
        assert_eq!(heard, [2], "there is no line 0");
    }

    #[test]
    fn where_there_are_keys_a_claim_counts_once_and_with_its_seal() {
        const KEY: &str = "00112233445566778899aabbccddeeff";
        let told = |from: &mut Hearing| {
            let mut out = [0; CONTROL_MAX_BYTES];
            from.packet_of(claim(), &mut out).unwrap().to_vec()
        };
        let open = told(&mut hearing(Profile::Native, None));
        assert_eq!(hearing(Profile::Native, None).claim_in(1, &open), Some(claim()));
        assert_eq!(hearing(Profile::Plain, None).claim_in(1, &open), Some(claim()));
        let (mut sends, mut hears) =
            (hearing(Profile::Native, Some(KEY)), hearing(Profile::Native, Some(KEY)));
        let sealed = told(&mut sends);
        assert_eq!(hears.claim_in(1, &open), None, "it has no seal");
        assert_eq!(hears.claim_in(2, &sealed), Some(claim()));
        assert_eq!(hears.claim_in(3, &sealed), None, "it is replayed");
        let mut others = hearing(Profile::Native, Some("ff112233445566778899aabbccddeeff"));
        assert_eq!(hears.claim_in(4, &told(&mut others)), None, "it has the seal of another group");
        let mut damaged = told(&mut sends);
        *damaged.last_mut().unwrap() ^= 1;
        assert_eq!(hears.claim_in(5, &damaged), None);
    }
}
