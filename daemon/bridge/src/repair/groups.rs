//! The multicast groups for repairs that a server sends to all receivers. On the group for plain repairs, the server also receives the
//! plain repairs of other servers.

use shmcast::sys::datagrams::Inbox;
use std::net::{SocketAddr, UdpSocket};

use crate::BridgeError;
use crate::proto::MICROSECOND_NS;
use crate::proto::replay::{MergeConfig, Replay};
use crate::socket::{self, RefusedSettings, SocketError, Tuning};
use crate::spec::{BridgeSpec, LineSpec, Profile, RepairSpec, SendSpec};

/// Bytes of the receive buffer of the socket that receives other servers' repairs.
const BUFFER_BYTES: usize = 1 << 18;
/// The least size of the slots into which datagrams are received, in bytes.
const SLOT_BYTES: usize = 2_048;

/// Returns the multicast lines to which a server's socket can send.
fn lines_of<'a>(spec: &'a BridgeSpec, repair: &RepairSpec) -> impl Iterator<Item = &'a LineSpec> {
    let is_v4 = repair.bind.is_ipv4();
    spec.lines.iter().filter(move |line| line.group.ip().is_multicast() && line.group.is_ipv4() == is_v4)
}

/// Returns the first native line to which a server's socket can send.
fn native_line<'a>(spec: &'a BridgeSpec, repair: &RepairSpec) -> Option<&'a LineSpec> {
    lines_of(spec, repair).find(|line| spec.profile_of(line) == Profile::Native)
}

/// The destinations of repairs that go to all receivers. The socket that receives a server's requests also sends these repairs. So
/// receivers recognise the server by the source address of a repair.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// The group of plain repairs.
    pub(super) plain: Option<SocketAddr>,
    /// The address of the line for native repairs.
    pub(super) native: Option<SocketAddr>,
    /// The socket that receives plain repairs of other servers.
    others: Option<(UdpSocket, Inbox)>,
}

impl Groups {
    /// Prepares the socket `requests` to send to the groups, and joins the group of plain repairs.
    pub(crate) fn open(
        spec: &BridgeSpec,
        send: &SendSpec,
        repair: &RepairSpec,
        requests: &UdpSocket,
        refusals: &mut RefusedSettings,
    ) -> Result<Groups, BridgeError> {
        let line = Self::line(spec, repair);
        if let Some(line) = &line {
            socket::aim(requests, line, send.ttl, send.loopback)?;
        }
        let others = match line.filter(|_| repair.group.is_some()) {
            Some(group) => {
                let inbox = Inbox::new(spec.payload_bytes.max(SLOT_BYTES));
                Some((Self::join(&group, refusals)?, inbox))
            }
            None => None,
        };
        let plain = repair.group.filter(|_| spec.is_any_plain());
        let native = native_line(spec, repair).map(|line| line.group);
        Ok(Groups { plain, native, others })
    }

    /// Returns the line over which repairs are sent to all receivers: the group of plain repairs on the interface of a line, or the native
    /// line if there is no such group.
    pub(crate) fn line(spec: &BridgeSpec, repair: &RepairSpec) -> Option<LineSpec> {
        let native = native_line(spec, repair);
        let via = native.or_else(|| lines_of(spec, repair).next());
        let interface = via.and_then(|line| line.interface.clone());
        repair.group.map(|group| LineSpec { interface, ..LineSpec::to(group) }).or_else(|| native.cloned())
    }

    /// Opens a socket that receives the plain repairs of other servers.
    pub(crate) fn join(group: &LineSpec, refusals: &mut RefusedSettings) -> Result<UdpSocket, SocketError> {
        socket::open_line(group, Tuning { buffer_bytes: BUFFER_BYTES, busy_poll_us: 0 }, refusals)
    }

    /// Replaces the socket that receives other servers' repairs.
    pub(super) fn renew(&mut self, opened: Vec<(usize, UdpSocket)>) {
        if let (Some((socket, _)), Some((_, anew))) = (&mut self.others, opened.into_iter().last()) {
            *socket = anew;
        }
    }

    /// Returns two configurations, first for plain repairs, then for native repairs. A configuration decides when a repair goes to all
    /// receivers. The configuration is `None` if there is no multicast group for the repairs.
    pub(super) fn merge(&self, repair: &RepairSpec) -> (Option<MergeConfig>, Option<MergeConfig>) {
        let ns = |us: Option<u64>| us.map(|us| us.saturating_mul(MICROSECOND_NS));
        let config = MergeConfig { merge_ns: ns(repair.merge_us), linger_ns: ns(repair.linger_us) };
        (self.plain.map(|_| config), self.native.map(|_| config))
    }

    /// Returns the socket that receives other servers' repairs.
    pub(super) fn socket(&self) -> Option<&UdpSocket> {
        self.others.as_ref().map(|(socket, _)| socket)
    }

    /// Takes the repairs of other servers that have arrived.
    pub(super) fn hear(&mut self, now_ns: u64, own: SocketAddr, replay: &mut Replay) {
        let Some((socket, inbox)) = &mut self.others else { return };
        while inbox.receive(&*socket).is_ok_and(|received| received > 0) {
            for datagram in inbox.datagrams().filter(|datagram| datagram.from != own) {
                replay.note_other(now_ns, datagram.from, datagram.bytes);
            }
        }
    }
}
