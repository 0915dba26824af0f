//! Stories of several hosts: who sends the channel to whom, and what happens to senders and lines.

use serde::{Deserialize, Serialize};

/// The hosts of a story. The first has the publishers; its channel goes to the second one, and from there further.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Net {
    /// The way that the channel takes.
    pub way: Way,
    /// Whether packets are native: tags, keys and times arrive, and messages may be larger than a packet.
    pub native: bool,
    /// Whether native packets are sealed.
    pub sealed: bool,
    /// Whether addresses are those of IPv6.
    pub v6: bool,
    /// Number of lines, each with an interface and a switch of its own.
    pub lines: u8,
    /// Whether the first host has two senders, of which one stands by.
    pub has_peer: bool,
    /// Whether senders answer requests for lost messages.
    pub has_server: bool,
    /// Whether senders begin with the oldest message of the ring each time, and not where they were.
    pub from_oldest: bool,
}

/// The way that a channel takes from host to host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// To a second host.
    Single,
    /// To a second host, which sends it to a third.
    Chain,
    /// To two mirrors, one of which sends it to the fourth host while the other stands by.
    Mirrors,
}

impl Net {
    /// Number of hosts.
    pub fn hosts(&self) -> usize {
        match self.way {
            Way::Single => 2,
            Way::Chain => 3,
            Way::Mirrors => 4,
        }
    }
}

/// Something that happens to the sender that is a process of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Does {
    /// It starts.
    Start,
    /// It ends in order.
    End,
    /// It is killed.
    Kill,
    /// It stops.
    Stop,
    /// It continues.
    Continue,
}

/// Packets of somebody who hears everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forgery {
    /// The last packets that were heard, whoever sent them, as they were, the newest first.
    Replay,
    /// One sound and false packet of the feed in its sender's name. The number says of which kind.
    Plain(u8),
    /// Sealed packets of all senders in which bits were changed, or bytes left out or added.
    Damaged,
    /// Packets like those of native senders, without a seal.
    Unsealed,
}

/// One step of a story of several hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum NetStep {
    /// A sender of this host that stands by is told to send.
    TakeOver { host: u8 },
    /// Something happens to the first host's second sender.
    Sender { does: Does },
    /// This many of a hundred packets on a line are lost, doubled, late.
    Quality { line: u8, loss: u8, copies: u8, late: u8 },
    /// A switch passes nothing to and from a host for a while.
    CutOff { host: u8, line: u8, ms: u32 },
    /// An interface of a host is deleted, and made anew after a while.
    Remake { host: u8, line: u8, ms: u32 },
    /// Somebody sends packets on a line.
    Play { line: u8, forgery: Forgery },
    /// All hosts get a new key, one after the other.
    Keys { backwards: bool },
    /// The first host is cut off for ever, and the second one's channel is its own from now on.
    Promote {},
}

impl NetStep {
    /// The name of the step in reports.
    pub(super) fn name(&self) -> String {
        let value = serde_json::to_value(self).expect("a step is plain data");
        let of_map = value.as_object().and_then(|o| o.keys().next().cloned());
        format!("net_{}", of_map.unwrap_or_default())
    }
}
