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

/// The largest receive buffer that the kernel can be asked for: half of the largest `int`.
const MAX_BUFFER_BYTES: usize = i32::MAX as usize / 2;
/// The largest code point: the header has six bits for it.
const MAX_DSCP: u8 = 63;
/// The largest priority that needs no privilege.
const MAX_PRIORITY: u8 = 6;

/// One bridge: one channel, in one direction. Has exactly one of `send` and `receive`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSpec {
    /// The bridge's name in status and metrics; the channel's name if empty.
    #[serde(default)]
    pub name: String,
    /// The local channel.
    pub channel: String,
    /// The lines that packets are sent to or received from: 1 to [`MAX_LINES`] copies of one feed. May be
    /// empty if unicast leases carry the feed.
    #[serde(default, rename = "line")]
    pub lines: Vec<LineSpec>,
    /// The carrier of the bridge: `lines` by default, or `nats`, a log that servers of NATS JetStream keep.
    #[serde(default)]
    pub engine: Engine,
    /// With `engine = "nats"`: the servers, and the stream there.
    #[serde(default)]
    pub nats: Option<NatsSpec>,
    /// The session's name. A sender takes 1 to 4 characters, which stand before the epoch; if `None`, the
    /// channel's first letters and digits in capitals. A receiver takes 1 to 4 characters to follow the
    /// newest epoch of that sender, or 5 to 10 to follow that one session; if `None`, it follows the sender
    /// that it hears first.
    #[serde(default)]
    pub session: Option<String>,
    /// The profile of the lines that name none, and of unicast leases; `plain` by default.
    #[serde(default)]
    pub profile: Profile,
    /// The file with the keys that native packets, or blocks of an engine, are sealed with, which nobody but its owner may read; none if
    /// `None`, and packets are not sealed.
    #[serde(default)]
    pub keys: Option<PathBuf>,
    /// With keys: whether native packets or blocks without a seal are taken; `required` by default, which is not.
    #[serde(default)]
    pub auth: Auth,
    /// Largest datagram that is sent, or that repairs come in, in bytes: 64 to 65507; 1400 by default.
    #[serde(default = "default_payload_bytes")]
    pub payload_bytes: usize,
    /// How the bridge's thread waits while there is nothing to do; `auto` by default.
    #[serde(default)]
    pub wait: WaitMode,
    /// The CPU that the bridge's thread is pinned to; the thread is not pinned if `None`.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// How long the kernel polls the network card when the bridge would wait, in microseconds; 0, the
    /// default, means not at all. If the kernel refuses, the bridge reports that once and runs without it.
    #[serde(default)]
    pub busy_poll_us: u32,
    /// The code point (DSCP) of all packets that the bridge sends, 0 to 63, by which switches and routers choose a
    /// queue; 0 if `None`.
    #[serde(default)]
    pub dscp: Option<u8>,
    /// The priority within this host of all packets that the bridge sends, 0 to 6, by which its queueing discipline
    /// chooses a band; if `None`, the one that the kernel derives from `dscp`.
    #[serde(default)]
    pub priority: Option<u8>,
    /// The speed of the outgoing link. Live packets use at most 95 % of it; repairs use the rest. `auto`, the default, takes the speed
    /// that the interface reports. If it reports none, nothing is held back.
    #[serde(default)]
    pub link: LinkSpeed,
    /// Sends the channel to other hosts.
    #[serde(default)]
    pub send: Option<SendSpec>,
    /// Receives the channel from another host; the bridge is then its only publisher.
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
    /// The multicast group and port. It may also be a unicast address: any host's for a sender, one of this
    /// host's own for a receiver.
    pub group: SocketAddr,
    /// The interface by name or by one of its addresses; the kernel's choice if `None`.
    #[serde(default)]
    pub interface: Option<String>,
    /// For a receiver: the only sender that the group is taken from (source-specific multicast); any sender
    /// if `None`.
    #[serde(default)]
    pub source: Option<IpAddr>,
    /// The profile of its packets; the bridge's if `None`.
    #[serde(default)]
    pub profile: Option<Profile>,
}

impl LineSpec {
    /// A line to or from `group`, with the kernel's choice of interface.
    pub fn to(group: SocketAddr) -> LineSpec {
        LineSpec { group, interface: None, source: None, profile: None }
    }
}

/// The speed of the link that packets leave by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkSpeed {
    /// The speed that the interface states. If the lines leave by several, the lowest counts.
    #[default]
    Auto,
    /// Unknown: nothing is held back.
    None,
    /// This one.
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

/// How a bridge's thread waits while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// Polls without pause: lowest latency, one core at 100 %.
    Spin,
    /// Polls, and yields the core after a poll that found something and after several polls that found
    /// nothing. Readers may share the core.
    Yield,
    /// Sleeps, but polls for the short time in which the next message of a steady feed is expected. It takes a few
    /// hundredths of a core. Of 1,000 messages a second half are 10 to 40 us later than with `Spin`, and messages that
    /// come at no steady pace, or after a silence, up to some hundred.
    Block,
    /// Chooses at the start, and says in the status what it chose: polls while messages flow and sleeps after 10 ms
    /// without any, for one thread of the process for each four CPUs that it may use; otherwise `Block`.
    #[default]
    Auto,
}

/// The receiving side.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveSpec {
    /// The retransmission servers, asked in turn; at most [`MAX_SERVERS`]. If empty, the bridge asks nobody,
    /// and lost messages are a gap.
    pub servers: Vec<SocketAddr>,
    /// Whether the servers send the feed itself by unicast, for networks without multicast; false by default.
    pub unicast: bool,
    /// Whether the bridge asks for the lease that proves its address to the servers; true by default. Servers
    /// of other makes know no leases.
    pub lease: bool,
    /// The multicast group of the servers' plain repairs for all receivers, as they have it in `repair.group`; none if
    /// `None`. It is received by the interface of the first multicast line. Only packets of `servers` are taken. Native
    /// repairs for all come on the lines and need no group.
    pub repair_group: Option<SocketAddr>,
    /// The policy for messages that no server has; `skip` by default.
    pub gap: GapMode,
    /// With `skip`: the time after which the bridge gives up a message that it asks for in vain, in
    /// milliseconds; 5 000 by default. In vain means that no server answers anything, or that those that do
    /// never answer this request. The bridge keeps waiting for servers that hold the message.
    pub give_up_ms: u64,
    /// How long a message that looks lost may be merely late, in microseconds; 50 by default.
    pub hold_us: u64,
    /// The sequence to begin with if there is no session to resume. The bridge asks for the messages from
    /// there on that were sent already. If `None`, it begins with the first message that it hears.
    pub from: Option<u64>,
    /// The sources whose packets are taken from the lines, such as `10.0.0.1` or `10.1.0.0/16`. If empty, a
    /// line keeps to the first source that sends on it until that source falls silent.
    pub sources: Vec<Network>,
    /// The time that messages of native lines get; `origin` by default.
    pub time: TimeMode,
    /// With `origin`: the most that either host's clock may be wrong, in microseconds; 1000 by default. 0 believes
    /// any clock.
    pub clock_limit_us: u32,
    /// The most memory for messages larger than a packet that come before the one that is due, in bytes; 32 MiB by
    /// default.
    pub reassembly_bytes: usize,
    /// Bytes of each socket's receive buffer; up to 1 GiB; 4 MiB by default. The kernel's own limit is `net.core.rmem_max`.
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
    /// Readers are told exactly which messages will never come, and delivery goes on after them.
    #[default]
    Skip,
    /// Nothing after them is delivered until they come.
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
    /// A bridge for `channel` with all other fields at their defaults. The caller must still set the
    /// direction: `send` or `receive`.
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

    /// The bridge's name in status and metrics.
    pub fn title(&self) -> &str {
        if self.name.is_empty() { &self.channel } else { &self.name }
    }

    /// The marks of the packets that the bridge sends.
    pub fn marks(&self) -> Marks {
        Marks { dscp: self.dscp, priority: self.priority }
    }

    /// The bridge's direction; `None` unless exactly one of `send` and `receive` is set.
    pub fn direction(&self) -> Option<Direction<'_>> {
        match (&self.send, &self.receive) {
            (Some(send), None) => Some(Direction::Send(send)),
            (None, Some(receive)) => Some(Direction::Receive(receive)),
            _ => None,
        }
    }

    /// Largest UDP payload that fits an Ethernet frame on every line.
    pub fn ethernet_payload_bytes(&self) -> usize {
        let payload = |line: &LineSpec| ETHERNET_MTU - header_bytes(&line.group);
        self.lines.iter().map(payload).min().unwrap_or(ETHERNET_PAYLOAD_BYTES)
    }

    /// The 1 to 4 characters that stand before the epoch in the sessions of this bridge when it sends.
    pub fn tag(&self) -> String {
        self.session.clone().unwrap_or_else(|| tag_of(&self.channel))
    }

    /// The problems of the spec, each as the field and what to do about it; empty if the bridge can be
    /// started.
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

/// Reports a group for repairs that is no group, or that a line has.
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

/// Reports a code point that has no place in the header's six bits.
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
