//! The configuration of a bridge. A `[[bridge]]` table and the command line fill in the same structs.
//!
//! This module checks the values and the rules between them. Only the start of the bridge shows whether a group is routed, an interface
//! exists and the channel can be opened.

use serde::de::{self, Deserialize, Deserializer};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use crate::proto::control::CONTROL_MAX_BYTES;
use crate::proto::limit::Network;
use crate::proto::link::{Link, LinkError};
use crate::proto::receiver::REASSEMBLY_BYTES;
use crate::proto::session::{Session, tag_of};
use crate::proto::wire::MAX_DATAGRAM_BYTES;
use crate::proto::{DEFAULT_PAYLOAD_BYTES, MAX_LINES, MAX_SERVERS};

mod native;
mod nats;
mod packet;
mod send;
pub mod server;
#[cfg(test)]
mod tests;

pub use native::{Auth, Profile, TimeMode};
pub use nats::{Engine, NatsSpec};
use packet::ETHERNET_MTU;
pub use packet::{ETHERNET_PAYLOAD_BYTES, Marks, header_bytes};
pub use send::{HistoryFrom, RepairSpec, SendRole, SendSpec, StartAt};

/// The largest receive buffer that can be requested from the kernel, in bytes: half of the largest `int`.
const MAX_BUFFER_BYTES: usize = i32::MAX as usize / 2;
/// The largest code point. The header has six bits for it.
const MAX_DSCP: u8 = 63;
/// The largest priority that needs no privilege.
const MAX_PRIORITY: u8 = 6;

/// One bridge: one channel, in one direction. A bridge has exactly one of `send` and `receive`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSpec {
    /// The bridge's name in status and metrics. If it is empty, the bridge has the name of its channel.
    #[serde(default)]
    pub name: String,
    /// The local channel.
    pub channel: String,
    /// The lines to which packets are sent, or from which they are received. Each line has a copy of the same feed. There are at most
    /// [`MAX_LINES`] lines. There can be none if packets are sent over unicast leases, and there must be none with `engine = "nats"`.
    #[serde(default, rename = "line")]
    pub lines: Vec<LineSpec>,
    /// The transport of the messages: `lines` by default, or `nats`, a log on servers of NATS JetStream.
    #[serde(default)]
    pub engine: Engine,
    /// With `engine = "nats"`: the servers, and the stream on them.
    #[serde(default)]
    pub nats: Option<NatsSpec>,
    /// The session's name.
    ///
    /// A session's name is a tag of 1 to 4 characters, and then the epoch. For a sender, this setting is the tag. With `None`, a sender
    /// keeps the session of a channel that came from another host. For any other channel, `None` means that the tag is a hash of the
    /// channel's whole name.
    ///
    /// For a receiver, 1 to 4 characters are the tag of a sender, and the receiver follows the newest epoch of that tag. With 5 to 10
    /// characters, the receiver follows only the session of this name. With `None`, the receiver follows the first sender whose packets
    /// arrive.
    #[serde(default)]
    pub session: Option<String>,
    /// The profile of unicast leases, and of lines without a profile of their own; `plain` by default.
    #[serde(default)]
    pub profile: Profile,
    /// The file with the keys of a group. With keys, a bridge over UDP seals its native packets, and an engine seals its blocks. The file
    /// must not be readable or writable by anybody except its owner. If this is `None`, nothing is sealed.
    #[serde(default)]
    pub keys: Option<PathBuf>,
    /// If there are keys: whether native packets and blocks without a seal are accepted. The default `required` rejects both.
    #[serde(default)]
    pub auth: Auth,
    /// The largest datagram that is sent, or in which repairs are received, in bytes: 64 to 65507; 1400 by default.
    #[serde(default = "default_payload_bytes")]
    pub payload_bytes: usize,
    /// The way in which the bridge's thread waits while there is nothing to do; `auto` by default.
    #[serde(default)]
    pub wait: WaitMode,
    /// The CPU that the bridge's thread is pinned to; the thread is not pinned if `None`.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// When the bridge waits for a packet, the kernel polls the network card for this time, in microseconds. The default 0 means not at
    /// all. If the kernel refuses, the bridge reports the refusal once and runs without such polls.
    #[serde(default)]
    pub busy_poll_us: u32,
    /// The code point (DSCP) of all packets that the bridge sends, 0 to 63. By this number, switches and routers choose a queue. `None`
    /// means 0.
    #[serde(default)]
    pub dscp: Option<u8>,
    /// All packets that the bridge sends have this priority, 0 to 6. The priority counts only within this host: the host's queueing
    /// discipline chooses a band by this number. If this is `None`, the kernel derives the priority from `dscp`.
    #[serde(default)]
    pub priority: Option<u8>,
    /// The speed of the outgoing link. Live packets use at most 95 % of this speed. Repairs use the part of the 95 % that live packets
    /// leave, but at least 2 % of the speed. The default `auto` takes the speed that the interface reports. If the interface reports no
    /// speed, packets are not limited.
    #[serde(default)]
    pub link: LinkSpeed,
    /// Sends the channel to other hosts.
    #[serde(default)]
    pub send: Option<SendSpec>,
    /// Receives the channel from another host. The bridge is then the channel's only publisher.
    #[serde(default)]
    pub receive: Option<ReceiveSpec>,
}

fn default_payload_bytes() -> usize {
    DEFAULT_PAYLOAD_BYTES
}

/// One line of a feed.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LineSpec {
    /// A multicast group or a unicast address, with a port. A sender can name a unicast address of any host, and a receiver only one of its
    /// own host.
    pub group: SocketAddr,
    /// The interface, by its name or by one of its addresses. If this is `None`, the kernel chooses.
    #[serde(default)]
    pub interface: Option<String>,
    /// For a receiver: the only sender from which packets to the group are accepted (source-specific multicast). `None` means any sender.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// The profile of the line's packets; the bridge's profile if this is `None`.
    #[serde(default)]
    pub profile: Option<Profile>,
}

impl LineSpec {
    /// Makes a line to or from `group`. The kernel chooses the interface.
    pub fn to(group: SocketAddr) -> LineSpec {
        LineSpec { group, interface: None, source: None, profile: None }
    }
}

/// The speed of the link over which packets are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkSpeed {
    /// The speed that the interface reports. If the lines use several interfaces, the lowest speed counts.
    #[default]
    Auto,
    /// The speed is not known, and packets are not limited.
    None,
    /// The link has this speed.
    Of(Link),
}

impl FromStr for LinkSpeed {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<LinkSpeed, LinkError> {
        match text {
            "auto" => Ok(LinkSpeed::Auto),
            "none" => Ok(LinkSpeed::None),
            speed => speed.parse().map(LinkSpeed::Of),
        }
    }
}

impl<'de> Deserialize<'de> for LinkSpeed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LinkSpeed, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// The way in which a bridge's thread waits while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// Polls without pause: lowest latency, one core at 100 %.
    Spin,
    /// Polls, and yields the core from time to time: after a poll that found something, and after several polls that found nothing. So
    /// readers can share the core.
    Yield,
    /// Sleeps, but polls for the short time in which the next message of a steady feed is expected. This uses a few hundredths of a core.
    /// At 1,000 messages a second, half of the messages arrive 10 to 40 us later than with `Spin`. Irregular messages, and messages after a
    /// silence, arrive up to some hundred us later.
    Block,
    /// The bridge chooses for each thread when the thread starts, and shows the choice in the status. At most one thread for every four
    /// CPUs of the process polls while messages flow, and sleeps after 10 ms without messages. The process's other threads use `Block`.
    #[default]
    Auto,
}

/// The configuration of the receiving end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveSpec {
    /// The retransmission servers, which are asked in turn; at most [`MAX_SERVERS`]. If the list is empty, the bridge requests no repairs,
    /// and lost messages become a gap.
    pub servers: Vec<SocketAddr>,
    /// Whether the servers send the live packets by unicast, for networks without multicast; false by default.
    pub unicast: bool,
    /// Whether the bridge requests a lease from the servers, and so proves its address to the servers; true by default. Servers of other
    /// makes have no leases.
    pub lease: bool,
    /// The multicast group on which the servers send plain repairs for all receivers, as in their `repair.group`; `None` means no group.
    /// The bridge joins the group on the interface of the first multicast line, and accepts only packets of `servers`. Native repairs for
    /// all receivers need no group: they arrive on the lines.
    pub repair_group: Option<SocketAddr>,
    /// The policy for messages that no server has; `skip` by default.
    pub gap: GapMode,
    /// With `skip`: the time after which the bridge gives up a missing message, in milliseconds; 5 000 by default. The bridge gives up in
    /// two cases: no server has answered anything for this time, or the servers have answered only other requests. The bridge does not give
    /// up while a server says that it has the message.
    pub give_up_ms: u64,
    /// The time for which the bridge waits before it requests a message that seems to be lost, in microseconds; 50 by default. The message
    /// might only be late.
    pub hold_us: u64,
    /// The sequence to begin with if there is no session to resume. If messages from this sequence on were sent before the bridge started,
    /// the bridge requests them. `None` means the first message that the bridge receives.
    pub from: Option<u64>,
    /// The sources from which packets are accepted on the lines, such as `10.0.0.1` or `10.1.0.0/16`. If the list is empty, a line accepts
    /// only the packets of the first source that sends on it, until that source falls silent.
    pub sources: Vec<Network>,
    /// The time that a message of a native line gets. With `origin`, this is the time of its publication. With `arrival`, this is the time
    /// of its arrival. The default is `origin`.
    pub time: TimeMode,
    /// With `origin`: the limit for the errors of both hosts' clocks, in microseconds; 1000 by default. If an error reaches the limit or is
    /// unknown, messages get the times of their arrival. 0 means that there is no limit: any clock is accepted.
    pub clock_limit_us: u32,
    /// The limit for the bytes of messages that are larger than a packet and cannot be delivered yet; 32 MiB by default.
    pub reassembly_bytes: usize,
    /// The size of each socket's receive buffer in bytes, up to 1 GiB; 4 MiB by default. The kernel's own limit is `net.core.rmem_max`.
    pub buffer_bytes: usize,
}

impl Default for ReceiveSpec {
    fn default() -> ReceiveSpec {
        ReceiveSpec {
            servers: Vec::new(),
            unicast: false,
            lease: true,
            repair_group: None,
            gap: GapMode::Skip,
            give_up_ms: 5_000,
            hold_us: 50,
            from: None,
            sources: Vec::new(),
            time: TimeMode::default(),
            clock_limit_us: 1_000,
            reassembly_bytes: REASSEMBLY_BYTES,
            buffer_bytes: 4 << 20,
        }
    }
}

/// The policy for messages that no server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapMode {
    /// Readers get a gap in place of exactly the messages that will never arrive. The delivery continues after the gap.
    #[default]
    Skip,
    /// Later messages are not delivered until the missing messages arrive.
    Block,
}

/// The direction of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction<'a> {
    /// From the local channel to other hosts.
    Send(&'a SendSpec),
    /// From another host into the local channel.
    Receive(&'a ReceiveSpec),
}

impl BridgeSpec {
    /// Makes a bridge for `channel`, with the defaults in all other fields. The caller must set its direction: `send` or `receive`.
    pub fn new(channel: impl Into<String>) -> BridgeSpec {
        BridgeSpec {
            name: String::new(),
            channel: channel.into(),
            lines: Vec::new(),
            engine: Engine::Lines,
            nats: None,
            session: None,
            profile: Profile::Plain,
            keys: None,
            auth: Auth::Required,
            payload_bytes: DEFAULT_PAYLOAD_BYTES,
            wait: WaitMode::default(),
            cpu: None,
            busy_poll_us: 0,
            dscp: None,
            priority: None,
            link: LinkSpeed::Auto,
            send: None,
            receive: None,
        }
    }

    /// Returns the bridge's name in status and metrics.
    pub fn title(&self) -> &str {
        if self.name.is_empty() { &self.channel } else { &self.name }
    }

    /// Returns the marks of the packets that the bridge sends.
    pub(crate) fn marks(&self) -> Marks {
        Marks { dscp: self.dscp, priority: self.priority }
    }

    /// Returns the bridge's direction. Returns `None` unless exactly one of `send` and `receive` is set.
    pub fn direction(&self) -> Option<Direction<'_>> {
        match (&self.send, &self.receive) {
            (Some(send), None) => Some(Direction::Send(send)),
            (None, Some(receive)) => Some(Direction::Receive(receive)),
            _ => None,
        }
    }

    /// Returns the largest UDP payload that fits an Ethernet frame on every line, in bytes.
    pub fn ethernet_payload_bytes(&self) -> usize {
        let payload = |line: &LineSpec| ETHERNET_MTU - header_bytes(&line.group);
        self.lines.iter().map(payload).min().unwrap_or(ETHERNET_PAYLOAD_BYTES)
    }

    /// Returns the 1 to 4 characters that precede the epoch in the sessions that this bridge sends.
    pub fn tag(&self) -> String {
        self.session.clone().unwrap_or_else(|| tag_of(&self.channel))
    }

    /// Returns the problems of the spec. Each problem has the field and a text about what to do. If the spec is valid, there are no
    /// problems.
    pub fn problems(&self) -> Vec<(&'static str, String)> {
        let mut problems = Vec::new();
        let mut report = |field, what: String| problems.push((field, what));
        if !(CONTROL_MAX_BYTES..=MAX_DATAGRAM_BYTES).contains(&self.payload_bytes) {
            let bytes = self.payload_bytes;
            report(
                "payload_bytes",
                format!("{bytes} is out of range: write {CONTROL_MAX_BYTES} to {MAX_DATAGRAM_BYTES}"),
            );
        }
        report_dscp("dscp", self.dscp, &mut report);
        if let Some(priority) = self.priority.filter(|priority| *priority > MAX_PRIORITY) {
            let what =
                format!("{priority} is out of range: write 0 to {MAX_PRIORITY}; more needs CAP_NET_ADMIN");
            report("priority", what);
        }
        if self.lines.len() > MAX_LINES {
            report("line", format!("{} lines: at most {MAX_LINES} carry one feed", self.lines.len()));
        }
        if let Some(session) = &self.session {
            let longest = if self.send.is_some() { 4 } else { 10 };
            if session.len() > longest || Session::named(session).is_err() {
                report(
                    "session",
                    format!("{session:?}: write 1 to {longest} letters, digits or punctuation of ASCII"),
                );
            }
        }
        match self.engine {
            Engine::Nats => self.problems_of_nats(&mut report),
            Engine::Lines => {
                self.problems_of_lines(&mut report);
                self.problems_of_native(&mut report);
            }
        }
        if self.engine == Engine::Lines && self.nats.is_some() {
            report("nats", "it is for engine = \"nats\": give that too, or leave this out".to_owned());
        }
        self.problems_of_gate(&mut report);
        match self.direction() {
            Some(_) if self.engine == Engine::Nats => {}
            Some(Direction::Send(send)) => self.problems_of_sending(send, &mut report),
            Some(Direction::Receive(receive)) => self.problems_of_receiving(receive, &mut report),
            None => report("send", "give either a send table or a receive table".to_owned()),
        }
        problems
    }

    fn problems_of_lines(&self, report: &mut impl FnMut(&'static str, String)) {
        for (index, line) in self.lines.iter().enumerate() {
            if self.lines[..index].contains(line) {
                report("line", format!("{} is there twice: a copy goes another way", line.group));
            }
            if self.send.is_some() && line.group.ip().is_unspecified() {
                report("line", format!("{}: nobody has this address: give a group or a host", line.group));
            }
            if line.group.port() == 0 {
                report("line", format!("{}: give the port too, as in 239.1.2.3:30001", line.group));
            }
            if line.interface.is_some() && !line.group.ip().is_multicast() {
                report("line", format!("{}: an interface is for multicast groups", line.group));
            }
            if line.source.is_some() && (self.send.is_some() || !line.group.ip().is_multicast()) {
                report("line", format!("{}: a source is for receiving a multicast group", line.group));
            }
            if line.source.is_some_and(|source| source.is_ipv6() != line.group.is_ipv6()) {
                report(
                    "line",
                    format!("{}: the source must be of the group's family, IPv4 or IPv6", line.group),
                );
            }
        }
    }

    fn problems_of_receiving(&self, receive: &ReceiveSpec, report: &mut impl FnMut(&'static str, String)) {
        if matches!(self.link, LinkSpeed::Of(_)) {
            report("link", "a receiver sends no feed: leave it out".to_owned());
        }
        if self.lines.is_empty() && !receive.unicast {
            report("line", "nothing to listen to: give a line, or unicast = true".to_owned());
        }
        if receive.unicast && (receive.servers.is_empty() || !receive.lease) {
            let what = "a unicast feed comes from servers that grant leases: give servers, and lease = true";
            report("unicast", what.to_owned());
        }
        if receive.unicast && self.lines.len() + receive.servers.len() > MAX_LINES {
            let what = format!("at most {MAX_LINES} lines and servers together carry a unicast feed");
            report("unicast", what);
        }
        if !(1..=MAX_BUFFER_BYTES).contains(&receive.buffer_bytes) {
            let bytes = receive.buffer_bytes;
            report("buffer_bytes", format!("{bytes} is out of range: write 1 to {MAX_BUFFER_BYTES}"));
        }
        if let Some(group) = receive.repair_group {
            report_repair_group("repair_group", group, &self.lines, report);
            if receive.servers.is_empty() {
                report("repair_group", "it is for repairs of servers: give servers".to_owned());
            }
        }
        if receive.servers.len() > MAX_SERVERS {
            report("servers", format!("{} servers: at most {MAX_SERVERS}", receive.servers.len()));
        }
        if !is_one_family(&receive.servers) {
            report("servers", "one socket asks all of them: give all as IPv4, or all as IPv6".to_owned());
        }
    }
}

/// Whether all addresses are IPv4, or all IPv6.
fn is_one_family(addresses: &[SocketAddr]) -> bool {
    addresses.windows(2).all(|pair| pair[0].is_ipv6() == pair[1].is_ipv6())
}

/// Reports a repair group that is no multicast group, or that is also the group of a line.
fn report_repair_group(
    field: &'static str,
    group: SocketAddr,
    lines: &[LineSpec],
    report: &mut impl FnMut(&'static str, String),
) {
    if !group.ip().is_multicast() || group.port() == 0 {
        let what = format!("{group}: give a multicast group and its port, as in 239.1.2.9:30009");
        report(field, what);
    }
    if lines.iter().any(|line| line.group == group) {
        report(field, format!("{group} is a line: repairs for all receivers need a group of their own"));
    }
}

/// Reports a code point that does not fit the header's six bits.
fn report_dscp(field: &'static str, dscp: Option<u8>, report: &mut impl FnMut(&'static str, String)) {
    if let Some(dscp) = dscp.filter(|dscp| *dscp > MAX_DSCP) {
        let what =
            format!("{dscp} is out of range: write 0 to {MAX_DSCP}, as in 46 for expedited forwarding");
        report(field, what);
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
