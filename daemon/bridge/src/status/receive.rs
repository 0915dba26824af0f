//! The counters of the receiving thread.

use serde::{Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MAX_LINES, MAX_SERVERS};
use crate::counters;
use crate::proto::counters::{LineCounters, MalformedCounters, ReceiverTotals, ServerCounters};
use crate::proto::receiver::Receiver;

counters! {
    /// The counters of the receiving thread itself: for sockets, leases, clocks and the local channel. The thread's state machine has
    /// further counters.
    pub struct HostCounters {
        /// The sequence of the next message in the local channel.
        next_sequence,
        /// The sequence after the last message that is known to have been published.
        horizon,
        /// Early messages that are stored now.
        messages_stored,
        /// Messages published into the local channel.
        messages_published: counter "delivered_messages_total",
        /// Messages that local readers saw as a gap.
        messages_missing: counter "missing_messages_total",
        /// Messages that are larger than the local channel allows. They are also counted as missing.
        messages_too_large: counter "too_large_messages_total",
        /// Messages that were received, and wait for a gate of the local channel. If the bridge ends while they wait, they are not
        /// published.
        messages_held,
        /// Messages that the local channel already had, because they arrived before a restart of the bridge.
        messages_behind,
        /// Holes that are being repaired.
        gaps_open: gauge "gaps_open",
        /// Missing messages that servers sent.
        recovered_by_servers: counter "recovered_messages_total" { source = "server" },
        /// The number of receivers that the server reports; 0 if it reports none.
        group: gauge "group_receivers",
        /// This receiver's position among the server's receivers, from 0. The first 16 receivers request lost messages immediately.
        place: gauge "place",
        /// Datagrams that arrived on lines, merged with other datagrams. The sender or the kernel had merged them.
        datagrams_merged: counter "merged_datagrams_total",
        /// Datagrams that the kernel refused to send.
        sends_refused,
        /// Datagrams that arrived on the sockets for servers, but were not sent by a server.
        datagrams_unexpected: counter "ignored_packets_total" { reason = "unexpected-source" },
        /// Datagrams that arrived on a line, but not from the line's source.
        datagrams_locked_out: counter "ignored_packets_total" { reason = "other-source" },
        /// Errors of receiving, for example when a server's host replies that no program listens on the port.
        receive_errors: counter "receive_errors_total",
        /// The number of times that a line was opened again, because its interface was replaced or got another address.
        lines_anew: counter "receiving_lines_anew_total",
        /// The number of times that a group was joined again, because its line was silent while the feed arrived on another line.
        lines_rejoined: counter "lines_rejoined_total",
        /// Unicast leases that this receiver has.
        leases_held,
        /// The number of times that a server had no room for a lease.
        leases_full: counter "leases_full_total",
        /// Bytes of messages that are larger than a packet and not delivered yet.
        reassembly_bytes: gauge "reassembly_bytes",
        /// Native packets whose seal does not match. They are forged or damaged.
        forged: counter "forged_packets_total",
        /// Sealed packets that were already accepted, among them copies on other lines. Packets with very old numbers count as well,
        /// because only the latest numbers are remembered.
        replayed: counter "replayed_packets_total",
        /// Native packets without a seal or with an unknown key, where a seal is required.
        unopened: counter "unopened_packets_total",
        /// 1 while messages keep the times of their publication, 0 while they get the times of their arrival.
        origin_times: gauge "origin_times",
        /// The largest possible error of this host's clock, in nanoseconds; 4294967295 if the clock is not synchronised.
        clock_error_ns,
        /// The largest possible error of the sender's clock, as the sender reports it, in nanoseconds.
        sender_clock_error_ns,
    }
}

counters! {
    /// The counters of a line's socket.
    pub struct SocketCounters {
        /// Datagrams received on the line, valid or not.
        datagrams: counter "line_datagrams_total",
        /// Datagrams that the kernel dropped because the socket's buffer was full. The bridge reads this number from the kernel every 10 ms
        /// (every 20 ms if the bridge's thread sleeps), and also when a message is missing. Datagrams that the kernel had merged count as
        /// one.
        kernel_drops: counter "line_kernel_drops_total",
        /// Datagrams that were cut off, because they were longer than the largest expected datagram.
        truncated: counter "line_truncated_total",
    }
}

/// The counters of the receiving thread. `messages_received` is the sum of `messages_delivered`,
/// `messages_duplicate`, `messages_refused` and `messages_stored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceiveCounters {
    /// The counters of the sockets, the leases, the clocks and the local channel.
    #[serde(flatten)]
    pub host: HostCounters,
    /// The counters of the state machine.
    #[serde(flatten)]
    pub feed: ReceiverTotals,
    /// Datagrams that were dropped because they are malformed.
    pub malformed: MalformedCounters,
    /// The counters of each line. The unicast leases come after the lines of the spec.
    #[serde(serialize_with = "used_lines")]
    pub lines: [LineStatus; MAX_LINES],
    /// The counters of each server.
    #[serde(serialize_with = "used_servers")]
    pub servers: [ServerCounters; MAX_SERVERS],
}

/// The counters of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LineStatus {
    /// The counters of the line's socket.
    #[serde(flatten)]
    pub socket: SocketCounters,
    /// The counters of the state machine.
    #[serde(flatten)]
    pub feed: LineCounters,
}

impl ReceiveCounters {
    /// Copies the counters of the state machine. The counters of the sockets and of the channel are not changed.
    pub(crate) fn set(&mut self, receiver: &Receiver, servers: usize) {
        let counters = receiver.counters();
        let (gaps, store) = receiver.backlog();
        (self.feed, self.malformed) = (counters.totals, counters.malformed);
        self.host.horizon = receiver.horizon();
        self.host.messages_stored = store.messages();
        self.host.gaps_open = gaps.len() as u64;
        let (place, group) = gaps.place();
        (self.host.place, self.host.group) = (place.unwrap_or(0).into(), group.into());
        self.host.reassembly_bytes = receiver.assembler().held_bytes() as u64;
        self.lines.iter_mut().zip(&counters.lines).for_each(|(own, line)| own.feed = *line);
        let servers = self.servers.iter_mut().zip(&counters.servers).take(servers).enumerate();
        for (index, (own, server)) in servers {
            *own = ServerCounters { down: u64::from(gaps.is_down(index)), ..*server };
        }
        self.host.recovered_by_servers =
            counters.servers.iter().map(|server| server.messages_recovered).sum();
    }
}

// The tables have room for the largest number of lines and servers. The entries after the last used one are left out.
fn used_lines<S: Serializer>(lines: &[LineStatus], serializer: S) -> Result<S::Ok, S::Error> {
    let used = lines.iter().rposition(|line| line.socket.datagrams > 0).map_or(0, |last| last + 1);
    serializer.collect_seq(&lines[..used])
}

fn used_servers<S: Serializer>(servers: &[ServerCounters], serializer: S) -> Result<S::Ok, S::Error> {
    let used =
        servers.iter().rposition(|server| server.requests + server.packets > 0).map_or(0, |last| last + 1);
    serializer.collect_seq(&servers[..used])
}
