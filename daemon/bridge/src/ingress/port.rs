//! A socket of the receiving loop, with its inbox and leases.

use shmcast::sys::datagrams::{self, Datagram, Inbox};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

use super::merging::Merging;
use crate::BridgeError;
use crate::pcap::Tap;
use crate::proto::MAX_LINES;
use crate::proto::counters::Histogram;
use crate::proto::lease_client::LeaseClient;
use crate::proto::native::container;
use crate::proto::receiver::Receiver;
use crate::proto::wire::{self, Head};
use crate::socket::{Drops, RECEIVE_SLOT_BYTES};
use crate::spec::{BridgeSpec, Profile, ReceiveSpec};
use crate::status::ReceiveCounters;
use crate::thread::{Clock, wall_ns};

/// The purpose of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Receives this line of the feed.
    Line(usize),
    /// Carries requests to the servers, and their answers.
    Servers,
    /// Receives the live packets that the servers send to this receiver only.
    Unicast,
    /// Receives the servers' repairs for all receivers.
    Repairs,
}

impl Role {
    pub(super) fn line(self) -> Option<usize> {
        match self {
            Role::Line(line) => Some(line),
            Role::Servers | Role::Unicast | Role::Repairs => None,
        }
    }
}

/// A socket, its inbox, and the leases that are kept over it.
pub(super) struct Port {
    pub(super) socket: UdpSocket,
    pub(super) role: Role,
    pub(super) inbox: Inbox,
    pub(super) local: SocketAddr,
    pub(super) drops: Drops,
    /// Decides when the kernel merges the packets of this socket.
    pub(super) merging: Merging,
    /// One lease for each server, or none at all.
    pub(super) leases: Vec<LeaseClient>,
}

impl Port {
    pub(super) fn new(socket: UdpSocket, role: Role, spec: &BridgeSpec) -> Self {
        let nowhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
        let local = socket.local_addr().unwrap_or(nowhere);
        let inbox = match (role, spec.receive_profile()) {
            (Role::Servers | Role::Repairs, _) => Inbox::new(spec.payload_bytes.max(RECEIVE_SLOT_BYTES)),
            (Role::Line(_) | Role::Unicast, Profile::Plain) => Inbox::merging(wire::segment_of),
            (Role::Line(_) | Role::Unicast, Profile::Native) => Inbox::merging(container::segment_of),
        };
        Self {
            socket,
            role,
            inbox,
            local,
            drops: Drops::default(),
            merging: Merging::default(),
            leases: Vec::new(),
        }
    }

    /// Counts the packets that the last receive call returned together. If there were many, switches merging on. Call this function after
    /// the messages of these packets have been published.
    #[inline]
    pub(super) fn note_batch(&mut self) {
        let together = self.inbox.together();
        if together > 0 && self.merges() && self.merging.note(together) {
            self.merge(true);
        }
    }

    /// Ends a window of merging. Switches merging off if only few packets have arrived together for a second or longer.
    pub(super) fn end_window(&mut self) {
        if self.merging.end_window() {
            self.merge(false);
        }
    }

    fn merges(&self) -> bool {
        matches!(self.role, Role::Line(_) | Role::Unicast)
    }

    #[cold]
    fn merge(&self, is_wanted: bool) {
        // If the kernel cannot merge packets, the bridge has noted this as a refusal at its start.
        let _ = datagrams::merge(&self.socket, is_wanted);
    }

    /// Sends a datagram, and copies it to the capture. Returns how many datagrams the kernel refused.
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8], tap: Option<&Tap>) -> u64 {
        let sent = datagrams::send(&self.socket, to, [bytes]);
        if let Some(tap) = tap {
            tap.record(wall_ns(), self.local, to, bytes);
        }
        sent.refused
    }

    /// Returns the index of the line whose counters include this socket's drops. The socket of a line has the index of this line. The
    /// socket of a unicast feed has the index `lines`, which comes after the lines of the spec.
    pub(super) fn line_or(&self, lines: usize) -> Option<usize> {
        match self.role {
            Role::Line(line) => Some(line),
            Role::Unicast => Some(lines.min(MAX_LINES - 1)),
            Role::Servers | Role::Repairs => None,
        }
    }

    pub(super) fn ask_for_leases(
        &mut self,
        receive: &ReceiveSpec,
        live: bool,
        id: u64,
        clock: &Clock,
    ) -> Result<(), BridgeError> {
        for _ in &receive.servers {
            let mut seed = [0; 8];
            getrandom::fill(&mut seed).map_err(|e| BridgeError::Start(std::io::Error::other(e)))?;
            let lease = LeaseClient::new(clock.now_ns(), live, 0, u64::from_ne_bytes(seed));
            self.leases.push(lease.with_receiver(id));
        }
        Ok(())
    }
}

/// Counts a datagram of a line.
pub(super) fn note_datagram(counters: &mut ReceiveCounters, line: usize, datagram: &Datagram<'_>) {
    counters.host.datagrams_merged += u64::from(datagram.is_merged);
    let line = &mut counters.lines[line].socket;
    line.datagrams += 1;
    line.truncated += u64::from(datagram.is_truncated);
}

/// If messages are missing before a datagram of a line, counts the drops of our own socket, and checks whether these drops explain the
/// missing messages. Call this for each datagram of a line.
#[inline]
pub(super) fn explain_a_loss(
    head: &Head,
    socket: &UdpSocket,
    drops: &mut Drops,
    kernel_drops: &mut u64,
    receiver: &mut Receiver,
) {
    if head.sequence <= receiver.horizon() {
        drops.note_whole();
    } else if drops.explain_a_loss(socket, kernel_drops) {
        receiver.note_drop();
    }
}

/// Records how long the datagrams of a batch took from the kernel to the ring. Call this when the batch is in the ring. Datagrams that the
/// kernel received before `since_ns` are left out.
///
/// The clock is read once for the batch, so a measured duration is too long by at most the duration of the batch.
#[inline]
pub(super) fn record_to_ring(inbox: &Inbox, since_ns: u64, to_ring: &mut Histogram) {
    let mut in_ring_ns = None;
    let stamps = inbox.datagrams().filter_map(|datagram| datagram.time_ns);
    for time_ns in stamps.filter(|time_ns| *time_ns >= since_ns) {
        let in_ring_ns = *in_ring_ns.get_or_insert_with(wall_ns);
        to_ring.record(in_ring_ns.saturating_sub(time_ns), 1);
    }
}
