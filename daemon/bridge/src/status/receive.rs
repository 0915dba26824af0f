//! The counters of the receiving thread.

use serde::{Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MAX_LINES, MAX_SERVERS};
use crate::counters;
use crate::proto::counters::{LineCounters, MalformedCounters, ReceiverTotals, ServerCounters};
use crate::proto::receiver::Receiver;

counters! {
    /// Counters of the receiving thread, in addition to those of its state machine: for sockets, leases, clocks and the local channel.
    pub struct HostCounters {
        /// The sequence that the local channel's next message will have.
        next_sequence,
        /// The sequence after the last message that is known to have been published.
        horizon,
        /// Early messages kept at the moment.
        messages_stored,
        /// Messages published into the local channel.
        messages_published: counter "delivered_messages_total",
        /// Messages that local readers were told of as a gap.
        messages_missing: counter "missing_messages_total",
        /// Of those, messages larger than the local channel takes.
        messages_too_large: counter "too_large_messages_total",
        /// Messages that the local channel has already, from before a restart of the bridge.
        messages_behind,
        /// Holes that are being mended.
        gaps_open: gauge "gaps_open",
        /// Missing messages that servers brought.
        recovered_by_servers: counter "recovered_messages_total" { source = "server" },
        /// Receivers that the server has, as it says; 0 if it says nothing.
        group: gauge "group_receivers",
        /// The place among them, from 0. The first 16 ask at once for what they lost.
        place: gauge "place",
        /// Datagrams of lines that the kernel handed over in one piece with others. The sender or the kernel had put them together.
        datagrams_merged: counter "merged_datagrams_total",
        /// Datagrams of ours that the kernel refused to send.
        sends_refused,
        /// Datagrams that came to the sockets for servers, but not from a server.
        datagrams_unexpected: counter "ignored_packets_total" { reason = "unexpected-source" },
        /// Datagrams that came on a line, but not from its source.
        datagrams_locked_out: counter "ignored_packets_total" { reason = "other-source" },
        /// Errors of receiving, such as the reply of a server's host that nobody listens on the port.
        receive_errors: counter "receive_errors_total",
        /// Times that a line was opened anew, because its interface was made anew or got another address.
        lines_anew: counter "receiving_lines_anew_total",
        /// Times that a group was joined again, because its line was silent while the feed went on.
        lines_rejoined: counter "lines_rejoined_total",
        /// Unicast leases held.
        leases_held,
        /// Times that a server had no place for a lease.
        leases_full: counter "leases_full_total",
        /// Bytes of messages larger than a packet that are not delivered yet.
        reassembly_bytes: gauge "reassembly_bytes",
        /// Native packets whose seal did not open: they are forged or damaged.
        forged: counter "forged_packets_total",
        /// Sealed packets that were taken already, or are too old to know; among them the copies of other lines.
        replayed: counter "replayed_packets_total",
        /// Native packets without a seal or with an unknown key, where sealed ones are required.
        unopened: counter "unopened_packets_total",
        /// 1 while messages keep the times of their publication, 0 while they get those of their arrival.
        origin_times: gauge "origin_times",
        /// The most that this host's clock is wrong, in nanoseconds; 4294967295 if nobody synchronises it.
        clock_error_ns,
        /// The most that the sender's clock is wrong, as it says.
        sender_clock_error_ns,
    }
}

counters! {
    /// The counters of a line's socket.
    pub struct SocketCounters {
        /// Datagrams received on the line, sound or not.
        datagrams: counter "line_datagrams_total",
        /// Datagrams that the kernel dropped because the socket's buffer was full. The kernel is asked each 10 ms, or 20 ms by a
        /// thread that sleeps, and when a message is missing; nothing needs to come for that. Those that it had put together count as one.
        kernel_drops: counter "line_kernel_drops_total",
        /// Datagrams that were cut off because they were longer than any that were expected.
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
    /// Datagrams dropped unread.
    pub malformed: MalformedCounters,
    /// Each line. Unicast leases follow after the multicast lines.
    #[serde(serialize_with = "used_lines")]
    pub lines: [LineStatus; MAX_LINES],
    /// Each server.
    #[serde(serialize_with = "used_servers")]
    pub servers: [ServerCounters; MAX_SERVERS],
}

/// The counters of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LineStatus {
    /// The counters of its socket.
    #[serde(flatten)]
    pub socket: SocketCounters,
    /// The counters of the state machine.
    #[serde(flatten)]
    pub feed: LineCounters,
}

impl ReceiveCounters {
    /// Copies the counters of the state machine. The counters of the sockets and the ring stay as they are.
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

// The tables have room for the greatest number of lines and servers. The entries after the last one that was used are left out.
fn used_lines<S: Serializer>(lines: &[LineStatus], serializer: S) -> Result<S::Ok, S::Error> {
    let used = lines.iter().rposition(|line| line.socket.datagrams > 0).map_or(0, |last| last + 1);
    serializer.collect_seq(&lines[..used])
}

fn used_servers<S: Serializer>(servers: &[ServerCounters], serializer: S) -> Result<S::Ok, S::Error> {
    let used =
        servers.iter().rposition(|server| server.requests + server.packets > 0).map_or(0, |last| last + 1);
    serializer.collect_seq(&servers[..used])
}
