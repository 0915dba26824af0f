//! Listens on the bridge's own lines before a new session begins.

use shmcast::sys::datagrams::Inbox;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::tag_bytes;
use crate::proto::wire::Downstream;
use crate::socket::{self, RefusedSettings, Tuning};
use crate::spec::{BridgeSpec, SendSpec};

/// Bytes of the receive buffer. Packets that find no room are lost; each session sends others like them.
const BUFFER_BYTES: usize = 1 << 18;

/// The highest term of this bridge's tag, up to `most`, that is heard on its multicast lines while it listens.
/// Returns early only if there is no such line. A line that cannot be listened to is noted as a refusal.
pub(super) fn heard_term(
    spec: &BridgeSpec,
    send: &SendSpec,
    most: u64,
    refusals: &mut RefusedSettings,
) -> Option<u64> {
    let tuning = Tuning { buffer_bytes: BUFFER_BYTES, busy_poll_us: 0 };
    let mut sockets = Vec::new();
    for line in spec.lines.iter().filter(|line| line.group.ip().is_multicast() && send.listen_ms > 0) {
        match socket::open_line(line, tuning, &mut RefusedSettings::default()) {
            Ok(socket) => sockets.push((socket, Inbox::new(spec.payload_bytes))),
            Err(e) => refusals.0.push(format!("listen for other sessions: {e}")),
        }
    }
    let until = Instant::now() + Duration::from_millis(send.listen_ms);
    let tag = tag_bytes(spec);
    let mut highest = None;
    while let Some(left) = until.checked_duration_since(Instant::now()).filter(|_| !sockets.is_empty()) {
        socket::wait_for_any(sockets.iter().map(|(socket, _)| socket.as_fd()), left);
        for (socket, inbox) in &mut sockets {
            if inbox.receive(&*socket).is_ok() {
                let packets = inbox.datagrams().filter_map(|datagram| Downstream::parse(datagram.bytes).ok());
                let ours = packets.filter(|packet| packet.session.tag() == tag);
                let terms = ours.filter_map(|packet| packet.session.epoch());
                highest = terms.filter(|term| *term <= most).max().max(highest);
            }
        }
    }
    highest
}
