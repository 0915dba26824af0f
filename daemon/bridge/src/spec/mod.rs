//! The configuration of a bridge. A `[[bridge]]` table and the command line fill in the same structs.
//!
//! This module checks the values and the rules between them. The start of the bridge finds out whether a
//! group is routed, an interface exists and a channel can be attached to.

use serde::de::{self, Deserialize, Deserializer};
use std::net::{Ipv4Addr, SocketAddrV4};

use super::proto::control::CONTROL_MAX_BYTES;
use super::proto::limit::Network;
use super::proto::session::Session;
use super::proto::wire::MAX_DATAGRAM_BYTES;
use super::proto::{DEFAULT_PAYLOAD_BYTES, MAX_LINES, MAX_SERVERS};

mod send;
pub use send::{RepairSpec, SendRole, SendSpec, StartAt};

/// Largest UDP payload that fits an Ethernet frame of 1500 bytes.
pub const ETHERNET_PAYLOAD_BYTES: usize = 1_472;
/// The largest receive buffer that the kernel can be asked for: half of the largest `int`.
const MAX_BUFFER_BYTES: usize = i32::MAX as usize / 2;

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
    /// The session's name. A sender takes 1 to 4 characters, which stand before the epoch; if `None`, the
    /// channel's first letters and digits in capitals. A receiver takes 1 to 4 characters to follow the
    /// newest epoch of that sender, or 5 to 10 to follow that one session; if `None`, it follows the sender
    /// that it hears first.
    #[serde(default)]
    pub session: Option<String>,
    /// Largest datagram that is sent, or that repairs come in, in bytes: 64 to 65507; 1400 by default.
    #[serde(default = "default_payload_bytes")]
    pub payload_bytes: usize,
    /// How the bridge's thread waits while there is nothing to do; `block` by default.
    #[serde(default)]
    pub wait: WaitMode,
    /// The CPU that the bridge's thread is pinned to; the thread is not pinned if `None`.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// How long the kernel polls the network card when the bridge would wait, in microseconds; 0, the
    /// default, means not at all. If the kernel refuses, the bridge reports that once and runs without it.
    #[serde(default)]
    pub busy_poll_us: u32,
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
    pub group: SocketAddrV4,
    /// The interface by name or by its IPv4 address; the kernel's choice if `None`.
    #[serde(default)]
    pub interface: Option<String>,
    /// For a receiver: the only sender that the group is taken from (source-specific multicast); any sender
    /// if `None`.
    #[serde(default)]
    pub source: Option<Ipv4Addr>,
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
    /// Sleeps. It takes next to no CPU. Half of the messages are 50 to 150 us later, and more where the host's
    /// CPUs sleep deeply or are busy.
    #[default]
    Block,
}

/// The receiving side.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveSpec {
    /// The retransmission servers, asked in turn; at most [`MAX_SERVERS`]. If empty, the bridge asks nobody,
    /// and lost messages are a gap.
    pub servers: Vec<SocketAddrV4>,
    /// Whether the servers send the feed itself by unicast, for networks without multicast; false by default.
    pub unicast: bool,
    /// Whether the bridge asks for the lease that proves its address to the servers; true by default. Servers
    /// of other makes know no leases.
    pub lease: bool,
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
    /// Bytes of each socket's receive buffer; up to 1 GiB; 4 MiB by default. The kernel's own limit is `net.core.rmem_max`.
    pub buffer_bytes: usize,
}

impl Default for ReceiveSpec {
    fn default() -> ReceiveSpec {
        ReceiveSpec {
            servers: Vec::new(),
            unicast: false,
            lease: true,
            gap: GapMode::Skip,
            give_up_ms: 5_000,
            hold_us: 50,
            from: None,
            sources: Vec::new(),
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
            session: None,
            payload_bytes: DEFAULT_PAYLOAD_BYTES,
            wait: WaitMode::default(),
            cpu: None,
            busy_poll_us: 0,
            send: None,
            receive: None,
        }
    }

    /// The bridge's name in status and metrics.
    pub fn title(&self) -> &str {
        if self.name.is_empty() { &self.channel } else { &self.name }
    }

    /// The bridge's direction; `None` unless exactly one of `send` and `receive` is set.
    pub fn direction(&self) -> Option<Direction<'_>> {
        match (&self.send, &self.receive) {
            (Some(send), None) => Some(Direction::Send(send)),
            (None, Some(receive)) => Some(Direction::Receive(receive)),
            _ => None,
        }
    }

    /// The 1 to 4 characters that stand before the epoch in the sessions of this bridge when it sends.
    pub fn tag(&self) -> String {
        let letters = || self.channel.chars().filter(char::is_ascii_alphanumeric).take(4);
        match &self.session {
            Some(session) => session.clone(),
            None if letters().next().is_none() => "SHM".to_owned(),
            None => letters().map(|c| c.to_ascii_uppercase()).collect(),
        }
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
        self.problems_of_lines(&mut report);
        match self.direction() {
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
        }
    }

    fn problems_of_receiving(&self, receive: &ReceiveSpec, report: &mut impl FnMut(&'static str, String)) {
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
        if receive.servers.len() > MAX_SERVERS {
            report("servers", format!("{} servers: at most {MAX_SERVERS}", receive.servers.len()));
        }
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Network, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> BridgeSpec {
        toml::from_str(text).expect(text)
    }

    #[test]
    fn a_table_with_everything_in_it() {
        let spec = parse(
            r#"
            name = "ticks to B"
            channel = "ticks"
            payload_bytes = 8972
            wait = "spin"
            cpu = 3
            line = [{ group = "239.1.2.3:30001", interface = "eth0" }, { group = "239.1.2.4:30001" }]
            [send]
            ttl = 4
            from = "oldest"
            [send.repair]
            bind = "10.0.0.1:30002"
            allow = ["10.0.0.0/24", "10.1.0.7"]
            "#,
        );
        assert_eq!(spec.problems(), []);
        let Some(Direction::Send(send)) = spec.direction() else { panic!("{spec:?}") };
        assert_eq!((send.ttl, send.from, send.linger_ms), (4, StartAt::Oldest, 10_000));
        let repair = send.repair.as_ref().expect("a repair table");
        assert!(repair.allow[1].contains([10, 1, 0, 7].into()) && repair.lease_s == 60);
        assert_eq!(spec.lines[0].interface.as_deref(), Some("eth0"));
        assert_eq!(spec.tag(), "TICK");
    }

    #[test]
    fn a_misspelt_field_is_an_error_at_every_depth() {
        for text in [
            "channel = 'c'\nchanel = 1",
            "channel = 'c'\nline = [{ group = '239.0.0.1:1', interfase = 'x' }]",
            "channel = 'c'\n[send]\nttll = 1",
            "channel = 'c'\n[send.repair]\nbind = '1.1.1.1:1'\nalow = []",
            "channel = 'c'\n[receive]\nserver = []",
        ] {
            assert!(toml::from_str::<BridgeSpec>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_named_by_its_field() {
        let fields = |text: &str| -> Vec<&str> { parse(text).problems().iter().map(|(f, _)| *f).collect() };
        assert_eq!(fields("channel = 'c'"), ["send"]);
        assert_eq!(fields("channel = 'c'\n[send]\n[receive]\n"), ["send"]);
        assert_eq!(fields("channel = 'c'\npayload_bytes = 10\n[send]"), ["payload_bytes", "line"]);
        assert_eq!(fields("channel = 'c'\n[receive]\nunicast = true"), ["unicast"]);
        assert_eq!(fields("channel = 'c'\n[send.repair]\nbind = '0.0.0.0:9'"), ["allow"]);
        let line = "line = [{ group = '239.0.0.1:0', source = '10.0.0.1' }]";
        assert_eq!(fields(&format!("channel = 'c'\n{line}\n[receive]")), ["line"]);
        assert_eq!(fields(&format!("channel = 'c'\n{line}\n[send]")), ["line", "line"]);
        assert_eq!(fields("channel = 'c'\nsession = 'EQTY1'\n[send]"), ["session", "line"]);
        let twice = "line = [{ group = '239.0.0.1:1' }, { group = '239.0.0.1:1' }]";
        assert_eq!(fields(&format!("channel = 'c'\n{twice}\n[receive]")), ["line"]);
        let nobody = "line = [{ group = '0.0.0.0:1' }]";
        assert_eq!(fields(&format!("channel = 'c'\n{nobody}\n[send]")), ["line"]);
        assert_eq!(fields(&format!("channel = 'c'\n{nobody}\n[receive]")), [""; 0]);
        let auto =
            |text: &str| format!("channel = 'c'\nline = [{{ group = '239.0.0.1:1' }}]\n[send]\n{text}");
        assert_eq!(fields(&auto("role = 'auto'")), ["role"]);
        assert_eq!(fields(&auto("peers = ['10.0.0.2:3']")), ["role"]);
        let whole = "role = 'auto'\nclaim_bind = '10.0.0.1:3'\npeers = ['10.0.0.2:3']\n";
        assert_eq!(fields(&auto(whole)), [""; 0]);
        assert_eq!(fields(&auto(&format!("{whole}rank = 16\ntakeover_ms = 2"))), ["rank", "takeover_ms"]);
        assert_eq!(fields(&auto("listen_ms = 10001")), ["listen_ms"]);
        let buffer = |bytes: u64| format!("channel = 'c'\n{nobody}\n[receive]\nbuffer_bytes = {bytes}");
        assert_eq!(fields(&buffer(1 << 40)), ["buffer_bytes"]);
        assert_eq!(fields(&buffer(1 << 29)), [""; 0]);
    }

    #[test]
    fn a_channel_without_letters_still_has_a_tag() {
        assert_eq!(BridgeSpec::new("-._").tag(), "SHM");
        assert_eq!(BridgeSpec::new("fx.eur-usd").tag(), "FXEU");
    }
}
