//! Stories of several hosts: the route of the channel between hosts, and the faults of senders and lines.

use serde::{Deserialize, Serialize};

/// The hosts of a story. The first host has the publishers, and sends the channel to the second host. The second host can send the channel
/// on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// The route of the channel.
    pub way: Way,
    /// Whether packets are native. Native packets carry tags, key flags and times, and a message can be larger than a packet.
    pub native: bool,
    /// Whether native packets are sealed.
    pub sealed: bool,
    /// Whether addresses are IPv6 addresses.
    pub v6: bool,
    /// The number of lines. Each line has its own interface and switch.
    pub lines: u8,
    /// Whether the first host has two senders. One of them is on standby.
    pub has_peer: bool,
    /// Whether senders answer requests for lost messages.
    pub has_server: bool,
    /// Whether a restarted sender begins with the oldest message of the ring. Otherwise the sender continues where it stopped.
    pub from_oldest: bool,
}

/// The route of a channel from host to host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// The first host sends the channel to a second host.
    Single,
    /// The first host sends the channel to a second host, which sends it to a third host.
    Chain,
    /// The channel is sent to two mirrors. One mirror sends the channel to the fourth host, and the other is on standby.
    Mirrors,
}

impl Net {
    /// Returns the number of hosts.
    pub fn hosts(&self) -> usize {
        match self.way {
            Way::Single => 2,
            Way::Chain => 3,
            Way::Mirrors => 4,
        }
    }
}

/// Something that happens to the second sender, which is a separate process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Does {
    /// The sender starts.
    Start,
    /// The sender ends cleanly.
    End,
    /// The sender is killed.
    Kill,
    /// The sender is stopped.
    Stop,
    /// The sender continues.
    Continue,
}

/// Packets from an attacker who receives all packets of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forgery {
    /// The last packets of all senders are sent again without a change, the newest first.
    Replay,
    /// A well-formed packet with false content is sent in the name of the feed's sender. The number selects the kind.
    Plain(u8),
    /// Sealed packets of all senders are sent with some bits changed, or with some bytes removed or added.
    Damaged,
    /// Packets in the format of native senders, but without a seal.
    Unsealed,
}

/// One step of a story of several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NetStep {
    /// A sender on standby at this host is told to send.
    TakeOver { host: u8 },
    /// Something happens to the first host's second sender.
    Sender { does: Does },
    /// The percentages of packets on a line that are dropped, duplicated and delayed.
    Quality { line: u8, loss: u8, copies: u8, late: u8 },
    /// A switch passes nothing to and from a host for `ms` milliseconds.
    CutOff { host: u8, line: u8, ms: u32 },
    /// An interface of a host is deleted, and created again after `ms` milliseconds.
    Remake { host: u8, line: u8, ms: u32 },
    /// An attacker sends packets on a line.
    Play { line: u8, forgery: Forgery },
    /// All hosts get a new key, one host after the other.
    Keys { backwards: bool },
    /// The first host is cut off permanently, and the second host's channel is promoted.
    Promote {},
}

impl NetStep {
    /// Returns the name of the step for reports.
    pub(super) fn name(&self) -> String {
        let value = serde_json::to_value(self).expect("a step is plain data");
        let of_map = value.as_object().and_then(|o| o.keys().next().cloned());
        format!("net_{}", of_map.unwrap_or_default())
    }
}
