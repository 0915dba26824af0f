//! The counters of the receiving thread.

use serde::{Serialize, Serializer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{MAX_LINES, MAX_SERVERS, Malformed};
use crate::proto::receiver::Receiver;

/// The counters of the receiving thread. `messages_received` is the sum of `messages_delivered`,
/// `messages_duplicate`, `messages_refused` and `messages_stored`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReceiveCounters {
    /// The sequence that the local channel's next message will have.
    pub next_sequence: u64,
    /// The sequence after the last message that is known to have been published.
    pub horizon: u64,
    /// Sound packets of our session, from anywhere.
    pub packets: u64,
    /// Messages in them.
    pub messages_received: u64,
    /// Messages handed on.
    pub messages_delivered: u64,
    /// Messages that were there already.
    pub messages_duplicate: u64,
    /// Messages dropped because the store for early ones was full; they are asked for again.
    pub messages_refused: u64,
    /// Early messages kept at the moment.
    pub messages_stored: u64,
    /// Messages published into the local channel.
    pub messages_published: u64,
    /// Messages that local readers were told of as a gap.
    pub messages_missing: u64,
    /// Of those, messages larger than the local channel takes.
    pub messages_too_large: u64,
    /// Messages that the local channel has already, from before a restart of the bridge.
    pub messages_behind: u64,
    /// Messages given up.
    pub messages_expired: u64,
    /// Holes found.
    pub gaps: u64,
    /// Messages in them.
    pub gap_messages: u64,
    /// Holes open at the moment.
    pub gaps_open: u64,
    /// Missing messages that a line brought after all.
    pub recovered_by_lines: u64,
    /// Missing messages that servers brought.
    pub recovered_by_servers: u64,
    /// Messages asked for that a line then brought.
    pub requested_needlessly: u64,
    /// Packets that came after a later packet, and were still of use.
    pub packets_reordered: u64,
    /// Heartbeats and end-of-session packets.
    pub heartbeats: u64,
    /// Requests sent, first and repeated.
    pub requests: u64,
    /// Requests sent again.
    pub requests_repeated: u64,
    /// Losses that were not asked for at once, because others in the group may have lost the same.
    pub requests_delayed: u64,
    /// Losses that a server mended before they were asked for here: others had asked.
    pub requests_saved: u64,
    /// Repairs for all receivers that brought nothing that was missing here.
    pub repairs_overheard: u64,
    /// Times that a server told all receivers to wait.
    pub pauses: u64,
    /// How many receivers the server has; 0 if it did not say.
    pub group: u64,
    /// The place among them, from 0. The first 16 ask at once for what they lost.
    pub place: u64,
    /// Datagrams of lines that the kernel handed over in one piece with others. The sender or the kernel had put them
    /// together.
    pub datagrams_merged: u64,
    /// Datagrams of ours that the kernel refused to send.
    pub sends_refused: u64,
    /// Sessions followed.
    pub sessions: u64,
    /// Packets of an earlier epoch.
    pub packets_stale: u64,
    /// Packets of somebody else's session.
    pub packets_foreign: u64,
    /// Packets that claimed to be implausibly far ahead.
    pub packets_implausible: u64,
    /// Packets of a session that was not followed yet when they came.
    pub packets_early: u64,
    /// Claims of messages that do not exist, forgotten when they were contradicted.
    pub claims_contradicted: u64,
    /// Packets of servers that nobody had asked for, or that repeated an answer.
    pub repairs_unasked: u64,
    /// Datagrams that came to the sockets for servers, but not from a server.
    pub datagrams_unexpected: u64,
    /// Datagrams that came on a line, but not from its source.
    pub datagrams_locked_out: u64,
    /// Errors of receiving, such as the reply of a server's host that nobody listens on the port.
    pub receive_errors: u64,
    /// Times that a line was opened anew, because its interface was made anew or got another address.
    pub lines_anew: u64,
    /// Times that a group was joined again, because its line was silent while the feed went on.
    pub lines_rejoined: u64,
    /// Unicast leases held.
    pub leases_held: u64,
    /// Times that a server had no place for a lease.
    pub leases_full: u64,
    /// Fragments of messages larger than a packet.
    pub fragments: u64,
    /// Fragments that were there already.
    pub fragments_duplicate: u64,
    /// Fragments of early messages dropped because there was no room; they are asked for again.
    pub fragments_refused: u64,
    /// Bytes of messages larger than a packet that are kept at the moment.
    pub reassembly_bytes: u64,
    /// Native packets that were not looked into: copies, or older than all that is missing.
    pub copies: u64,
    /// Native packets whose seal did not open: they are forged or damaged.
    pub forged: u64,
    /// Sealed packets that were taken already, or are too old to know; among them the copies of other lines.
    pub replayed: u64,
    /// Native packets without a seal or with an unknown key, where sealed ones are required.
    pub unopened: u64,
    /// 1 while messages keep the times of their publication, 0 while they get those of their arrival.
    pub origin_times: u64,
    /// The most that this host's clock is wrong, in nanoseconds; 4294967295 if nobody synchronises it.
    pub clock_error_ns: u64,
    /// The most that the sender's clock is wrong, as it says.
    pub sender_clock_error_ns: u64,
    /// Datagrams dropped unread.
    pub malformed: MalformedStatus,
    /// Each line; unicast leases come after the multicast lines.
    #[serde(serialize_with = "used_lines")]
    pub lines: [LineStatus; MAX_LINES],
    /// Each server.
    #[serde(serialize_with = "used_servers")]
    pub servers: [ServerStatus; MAX_SERVERS],
}

/// The counters of one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LineStatus {
    /// Datagrams, sound or not.
    pub datagrams: u64,
    /// Sound packets of our session.
    pub packets: u64,
    /// Messages that came on this line first.
    pub messages_first: u64,
    /// Messages that were there already.
    pub messages_duplicate: u64,
    /// Datagrams that the kernel dropped because the socket's buffer was full. The kernel is asked each 10 ms, or 20 ms by a
    /// thread that sleeps, and when a message is missing; nothing needs to come for that. Those that it had put together count as one.
    pub kernel_drops: u64,
    /// Datagrams that were cut off because they were longer than any that were expected.
    pub truncated: u64,
}

/// The counters of one retransmission server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServerStatus {
    /// Requests sent to it.
    pub requests: u64,
    /// Requests that it did not answer in time.
    pub timeouts: u64,
    /// Packets that it sent.
    pub packets: u64,
    /// Bytes that it sent.
    pub repair_bytes: u64,
    /// Missing messages that it brought.
    pub messages_recovered: u64,
    /// Times that it no longer held the messages that were asked for.
    pub gone: u64,
    /// Times that it held the messages that were asked for, but had used up its rate.
    pub later: u64,
    /// Times that none of the messages that were asked for was published yet.
    pub held: u64,
    /// 1 while it is down: it has left requests unanswered and said nothing else.
    pub down: u64,
    /// Smoothed round trip in nanoseconds, 0 before the first.
    pub rtt_ns: u64,
}

/// Datagrams dropped unread, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct MalformedStatus {
    /// Shorter than the header.
    pub too_short: u64,
    /// Sequence 0.
    pub sequence_zero: u64,
    /// Sequence and count pass 2^64.
    pub sequence_overflow: u64,
    /// A message reaches past the end.
    pub truncated: u64,
    /// Bytes are left after the last message.
    pub trailing_bytes: u64,
    /// Damaged control datagrams, and requests sent to a receiver.
    pub control: u64,
    /// Packets that are not sound native ones, on a native line.
    pub native: u64,
    /// Native packets of a version that this build does not speak.
    pub native_version: u64,
}

impl ReceiveCounters {
    /// Copies the counters of the state machine. The counters of the sockets and the ring stay as they are.
    pub(crate) fn set(&mut self, receiver: &Receiver, servers: usize) {
        let counters = receiver.counters();
        let (gaps, store) = receiver.backlog();
        self.horizon = receiver.horizon();
        self.packets = counters.packets;
        self.messages_received = counters.messages_received;
        self.messages_delivered = counters.messages_delivered;
        self.messages_duplicate = counters.messages_duplicate;
        self.messages_refused = counters.messages_refused;
        self.messages_stored = store.messages();
        self.messages_expired = counters.messages_expired;
        self.gaps = counters.gaps;
        self.gap_messages = counters.gap_messages;
        self.gaps_open = gaps.len() as u64;
        self.recovered_by_lines = counters.recovered_by_lines;
        self.requested_needlessly = counters.requested_needlessly;
        self.packets_reordered = counters.packets_reordered;
        self.heartbeats = counters.heartbeats;
        self.requests = counters.requests;
        self.requests_repeated = counters.requests_repeated;
        self.requests_delayed = counters.requests_delayed;
        self.requests_saved = counters.requests_saved;
        self.repairs_overheard = counters.repairs_overheard;
        self.pauses = counters.pauses;
        let (place, group) = gaps.place();
        (self.place, self.group) = (place.unwrap_or(0).into(), group.into());
        self.sessions = counters.sessions;
        self.packets_stale = counters.packets_stale;
        self.packets_foreign = counters.packets_foreign;
        self.packets_implausible = counters.packets_implausible;
        self.packets_early = counters.packets_early;
        self.claims_contradicted = counters.claims_contradicted;
        self.repairs_unasked = counters.repairs_unasked;
        self.fragments = counters.fragments;
        self.fragments_duplicate = counters.fragments_duplicate;
        self.fragments_refused = counters.fragments_refused;
        self.reassembly_bytes = receiver.assembler().held_bytes() as u64;
        self.copies = counters.copies;
        let malformed = |reason| counters.malformed.of(reason);
        self.malformed = MalformedStatus {
            too_short: malformed(Malformed::TooShort),
            sequence_zero: malformed(Malformed::SequenceZero),
            sequence_overflow: malformed(Malformed::SequenceOverflow),
            truncated: malformed(Malformed::Truncated),
            trailing_bytes: malformed(Malformed::TrailingBytes),
            control: self.malformed.control,
            native: malformed(Malformed::Native),
            native_version: malformed(Malformed::NativeVersion),
        };
        self.set_lines_and_servers(receiver, servers);
    }

    fn set_lines_and_servers(&mut self, receiver: &Receiver, servers: usize) {
        let (counters, (gaps, _)) = (receiver.counters(), receiver.backlog());
        for (own, line) in self.lines.iter_mut().zip(&counters.lines) {
            own.packets = line.packets;
            own.messages_first = line.messages_first;
            own.messages_duplicate = line.messages_duplicate;
        }
        self.recovered_by_servers = 0;
        for (index, (own, server)) in self.servers.iter_mut().zip(&counters.servers).take(servers).enumerate()
        {
            self.recovered_by_servers += server.messages_recovered;
            *own = ServerStatus {
                requests: server.requests,
                timeouts: server.timeouts,
                packets: server.packets,
                repair_bytes: server.repair_bytes,
                messages_recovered: server.messages_recovered,
                gone: server.gone,
                later: server.later,
                held: server.held,
                down: u64::from(gaps.is_down(index)),
                rtt_ns: server.rtt_ns,
            };
        }
    }
}

// The tables have room for the most lines and servers. The entries after the last one that did anything are
// left out.
fn used_lines<S: Serializer>(lines: &[LineStatus], serializer: S) -> Result<S::Ok, S::Error> {
    let used = lines.iter().rposition(|line| line.datagrams > 0).map_or(0, |last| last + 1);
    serializer.collect_seq(&lines[..used])
}

fn used_servers<S: Serializer>(servers: &[ServerStatus], serializer: S) -> Result<S::Ok, S::Error> {
    let used =
        servers.iter().rposition(|server| server.requests + server.packets > 0).map_or(0, |last| last + 1);
    serializer.collect_seq(&servers[..used])
}
