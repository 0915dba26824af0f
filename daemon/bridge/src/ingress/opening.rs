//! Opens the sockets of an ingress at its start, and makes its configuration.

use shmcast::hosting::boot_id;
use shmcast::{Publisher, PublisherBuilder};
use siphasher::sip::SipHasher24;
use std::hash::{Hash, Hasher};

use super::port::{Port, Role};
use crate::BridgeError;
use crate::proto::gap::{GapConfig, GapPolicy};
use crate::proto::limit::AllowList;
use crate::proto::receiver::{DEFAULT_SILENCE_NS, Follow, Join, ReceiverConfig};
use crate::proto::session::Session;
use crate::proto::source::SourceLock;
use crate::proto::{MICROSECOND_NS, MILLISECOND_NS};
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, GapMode, LineSpec, Profile, ReceiveSpec};
use crate::thread::Clock;

/// Opens a socket for each line, a socket for requests, and a socket for a unicast feed if there is one.
pub(super) fn open_ports(
    spec: &BridgeSpec,
    receive: &ReceiveSpec,
    id: u64,
    clock: &Clock,
    refusals: &mut RefusedSettings,
) -> Result<Vec<Port>, BridgeError> {
    let tuning = Tuning { buffer_bytes: receive.buffer_bytes, busy_poll_us: spec.busy_poll_us };
    let open_own = |refusals: &mut RefusedSettings, what| {
        let socket = socket::open_unicast(socket::anywhere(&receive.servers[0]), tuning, refusals)?;
        socket::mark(&socket, spec.marks(), what, refusals);
        Ok::<_, BridgeError>(socket)
    };
    let mut ports = Vec::new();
    for (index, line) in spec.lines.iter().enumerate() {
        let socket = socket::open_merging_line(line, tuning, refusals)?;
        ports.push(Port::new(socket, Role::Line(index), spec));
    }
    if !receive.servers.is_empty() {
        let mut port = Port::new(open_own(refusals, "requests")?, Role::Servers, spec);
        if receive.lease {
            port.ask_for_leases(receive, false, id, clock)?;
        }
        ports.push(port);
    }
    if let Some(line) = repair_line(spec, receive) {
        ports.push(Port::new(socket::open_line(&line, tuning, refusals)?, Role::Repairs, spec));
    }
    if receive.unicast {
        let socket = open_own(refusals, "requests for leases")?;
        socket::try_merge(&socket, "live packets of leases", refusals);
        let mut port = Port::new(socket, Role::Unicast, spec);
        port.ask_for_leases(receive, true, id, clock)?;
        ports.push(port);
    }
    Ok(ports)
}

/// Returns the multicast group on which plain repairs for all receivers arrive. The bridge joins the group on the interface of the first
/// multicast line.
pub(super) fn repair_line(spec: &BridgeSpec, receive: &ReceiveSpec) -> Option<LineSpec> {
    let via = spec.lines.iter().find(|line| line.group.ip().is_multicast());
    let interface = via.and_then(|line| line.interface.clone());
    receive.repair_group.map(|group| LineSpec { interface, ..LineSpec::to(group) })
}

/// Makes a source lock for each line of the spec. A source lock accepts packets only from one sender. Makes no locks if every packet must
/// be sealed and the operator lists no sources, because a seal proves more than a source address.
pub(super) fn locks_of(spec: &BridgeSpec, receive: &ReceiveSpec, is_native: bool) -> Vec<SourceLock> {
    if is_native && !spec.takes_open() && receive.sources.is_empty() {
        return Vec::new();
    }
    let sources = AllowList::new(receive.sources.clone());
    spec.lines.iter().map(|_| SourceLock::new(sources.clone())).collect()
}

/// Returns 48 bits that identify this receiver, and that stay the same after a restart. They are a hash of the host, the channel's
/// directory and name, and the bridge's name.
pub(super) fn receiver_id(spec: &BridgeSpec, channel: &PublisherBuilder) -> Result<u64, BridgeError> {
    let host = match std::fs::read("/etc/machine-id") {
        Ok(id) if !id.is_empty() => id,
        // Without a machine ID, the boot ID identifies the host until the next boot.
        _ => boot_id().map_err(BridgeError::Start)?.iter().flat_map(|word| word.to_ne_bytes()).collect(),
    };
    // Containers that are copies of one image differ only in their host name.
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let mut hasher = SipHasher24::new();
    (host, name, channel.location(), &spec.channel, spec.title()).hash(&mut hasher);
    Ok(hasher.finish() & 0xFFFF_FFFF_FFFF)
}

/// Returns a warning if the channel already has sequences but names no session, and the spec does not say where to begin. The receiver then
/// begins with the first packet that arrives, and requests no earlier messages. An earlier mistake: there was no warning.
pub(super) fn not_resumed(publisher: &Publisher, from: Option<u64>) -> Option<String> {
    let is_unknown = publisher.remote_session().is_none() && publisher.next_sequence() > 1;
    (is_unknown && from.is_none()).then(|| {
        "MESSAGES ARE MISSING HERE: the channel has a past and names no session, as after the loss of its memory. This bridge begins with the \
         first message that arrives, and asks no server for earlier messages; with from = 1 it asks for all of them"
            .to_owned()
    })
}

pub(super) fn follow(spec: &BridgeSpec) -> Result<Follow, BridgeError> {
    match &spec.session {
        None => Ok(Follow::First { silence_ns: DEFAULT_SILENCE_NS }),
        Some(tag) if tag.len() <= 4 => Ok(Follow::Channel(Session::of_channel(tag, 0)?.tag())),
        Some(name) => Ok(Follow::Only(Session::named(name)?)),
    }
}

pub(super) fn receiver_config(
    spec: &BridgeSpec,
    receive: &ReceiveSpec,
    follow: Follow,
    (next, resumed): (u64, Option<Session>),
    id: u64,
) -> ReceiverConfig {
    let is_followed = |session: &Session| match follow {
        Follow::Channel(tag) => session.tag() == tag,
        Follow::Only(only) => *session == only,
        Follow::First { .. } => true,
    };
    let join = match (resumed.filter(is_followed), receive.from) {
        (Some(session), _) => Join::Resume { session, next },
        (None, Some(from)) => Join::From(from),
        (None, None) => Join::FirstSeen,
    };
    let unicast_lines = if receive.unicast { receive.servers.len() } else { 0 };
    ReceiverConfig {
        join,
        is_native: spec.receive_profile() == Profile::Native,
        reassembly_bytes: receive.reassembly_bytes,
        // Each receiver has a seed of its own, so that the random delays of the receivers differ.
        seed: id,
        lines: spec.lines.len() + unicast_lines,
        gaps: GapConfig {
            hold_ns: receive.hold_us * MICROSECOND_NS,
            hold_max_ns: 4 * receive.hold_us * MICROSECOND_NS,
            servers: receive.servers.len(),
            payload_bytes: spec.payload_bytes,
            may_be_plain: true,
            policy: match receive.gap {
                GapMode::Block => GapPolicy::Block,
                GapMode::Skip => {
                    GapPolicy::Skip { give_up_ns: receive.give_up_ms.saturating_mul(MILLISECOND_NS) }
                }
            },
            ..GapConfig::default()
        },
        ..ReceiverConfig::following(follow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_with_a_past_and_no_session_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
        assert_eq!(not_resumed(&open(), None), None, "a new channel has lost nothing");
        open().publish(b"m").unwrap();
        assert!(not_resumed(&open(), None).unwrap().starts_with("MESSAGES ARE MISSING HERE"));
        assert_eq!(not_resumed(&open(), Some(1)), None, "all messages are asked for");
        open().session(*b"TEST000001").unwrap();
        assert_eq!(not_resumed(&open(), None), None, "the session is continued");
    }
}
