//! What a bridge is told: the same structs whether a `[[bridge]]` table or the command line filled them in.
//!
//! Only words and the rules between them. That a group is routed, an interface exists or a channel can be attached to is
//! found out when the bridge starts.

use serde::de::{self, Deserialize, Deserializer};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use super::proto::control::CONTROL_MAX_BYTES;
use super::proto::lease::LeaseConfig;
use super::proto::limit::Network;
use super::proto::session::Session;
use super::proto::wire::MAX_DATAGRAM_BYTES;
use super::proto::{DEFAULT_PAYLOAD_BYTES, MAX_LINES, MAX_SERVERS};

/// The largest receive buffer that the kernel can be asked for: it takes half of what an `int` holds.
const MAX_BUFFER_BYTES: usize = i32::MAX as usize / 2;

/// One bridge: one channel, in one direction. Has exactly one of `send` and `receive`.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BridgeSpec {
    /// What the bridge is called in status and metrics; the channel's name if empty.
    #[serde(default)]
    pub name: String,
    /// The local channel.
    pub channel: String,
    /// Where packets go, or come from: 1 to [`MAX_LINES`] copies of one feed. May be empty where unicast leases carry it.
    #[serde(default, rename = "line")]
    pub lines: Vec<LineSpec>,
    /// The session's name. Sending: 1 to 4 characters that stand before the epoch; the channel's first letters and digits
    /// in capitals if `None`. Receiving: 1 to 4 characters follow the newest epoch of that sender, 5 to 10 that one session;
    /// whoever is heard first if `None`.
    #[serde(default)]
    pub session: Option<String>,
    /// Largest datagram that is sent, or that repairs come in, in bytes: 64 to 65507; 1400 by default.
    #[serde(default = "default_payload_bytes")]
    pub payload_bytes: usize,
    /// What the bridge's thread does while there is nothing to do; `block` by default.
    #[serde(default)]
    pub wait: WaitMode,
    /// CPU that the bridge's thread is pinned to; none if `None`.
    #[serde(default)]
    pub cpu: Option<usize>,
    /// How long the kernel polls the network card where the bridge would wait, in microseconds; 0, the default, not at
    /// all. What the kernel refuses is reported once and stops nothing.
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
    /// Multicast group and port; or, sending, any host's address, and receiving, an address of this host's own.
    pub group: SocketAddrV4,
    /// The interface by name or by its IPv4 address; the kernel's choice if `None`.
    #[serde(default)]
    pub interface: Option<String>,
    /// Receiving: take the group from this sender only (source-specific multicast); from anybody if `None`.
    #[serde(default)]
    pub source: Option<Ipv4Addr>,
}

/// What a bridge's thread does while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WaitMode {
    /// Polls without pause: lowest latency, one core at 100 %.
    Spin,
    /// Polls, and gives the core away when something was found, and after several polls that found nothing: readers may share
    /// the core.
    Yield,
    /// Sleeps: next to no CPU, and tens of microseconds later, or more where the host's CPUs sleep deeply or are busy.
    #[default]
    Block,
}

/// The sending side.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SendSpec {
    /// How many routers a multicast packet may pass, 0 to 255; 1 by default: the local network.
    pub ttl: u8,
    /// Whether receivers on this very host get the multicast packets too; false by default.
    pub loopback: bool,
    /// With which message to begin; `latest` by default. What was published while no bridge ran is then a gap that
    /// receivers ask for.
    pub from: StartAt,
    /// File in which the bridge notes which session it sends and how far it is. One that is started again goes on from there,
    /// if the ring is still the same, and a channel that was made anew gets a later epoch than any before, wherever the clock is.
    /// None if `None`.
    pub state: Option<PathBuf>,
    /// How long the end of the session is repeated and repairs are served after the channel is closed, in milliseconds;
    /// 10 000 by default.
    pub linger_ms: u64,
    /// The retransmission server, which also grants unicast leases; none if `None`.
    pub repair: Option<RepairSpec>,
}

impl Default for SendSpec {
    fn default() -> SendSpec {
        let from = StartAt::Latest;
        SendSpec { ttl: 1, loopback: false, from, state: None, linger_ms: 10_000, repair: None }
    }
}

/// With which message a sender begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartAt {
    /// The next one published.
    #[default]
    Latest,
    /// The oldest that the ring holds.
    Oldest,
}

/// A retransmission server.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairSpec {
    /// Where requests come in.
    pub bind: SocketAddrV4,
    /// Networks that may ask, such as `10.1.0.0/16`. Nobody if empty.
    #[serde(default)]
    pub allow: Vec<Network>,
    /// Answer allowed sources in full though they have not proved their address, as receivers of other makes need it.
    /// Only where nobody can forge a source; false by default.
    #[serde(default)]
    pub trust_allowed: bool,
    /// Repairs for all receivers together, in bytes a second. If `None`, 100 000 000, or twice what the feed itself takes if
    /// that is more: who has fallen behind can catch up.
    #[serde(default)]
    pub rate_bytes: Option<u64>,
    /// Repairs for each receiver, in bytes a second. If `None`, 25 000 000, or twice what the feed itself takes if that is
    /// more.
    #[serde(default)]
    pub source_rate_bytes: Option<u64>,
    /// The most leases at a time with which the feed itself is sent; 64 by default.
    #[serde(default = "default_max_leases")]
    pub max_leases: usize,
    /// The most leases of any sort at a time, those of receivers that only ask for repairs included; 4096 by default.
    #[serde(default = "default_max_proved")]
    pub max_proved: usize,
    /// The most leases of any sort that one address may hold, so that one host cannot take all places; 16 by default.
    #[serde(default = "default_leases_per_source")]
    pub leases_per_source: usize,
    /// How long a lease lasts that is not renewed, in seconds; 60 by default.
    #[serde(default = "default_lease_s")]
    pub lease_s: u64,
}

fn default_max_leases() -> usize {
    LeaseConfig::default().max_leases
}

fn default_max_proved() -> usize {
    LeaseConfig::default().max_proved
}

fn default_leases_per_source() -> usize {
    LeaseConfig::default().leases_per_source
}

fn default_lease_s() -> u64 {
    60
}

impl RepairSpec {
    /// A server at `bind` that answers nobody yet.
    pub fn new(bind: SocketAddrV4) -> RepairSpec {
        RepairSpec {
            bind,
            allow: Vec::new(),
            trust_allowed: false,
            rate_bytes: None,
            source_rate_bytes: None,
            max_leases: default_max_leases(),
            max_proved: default_max_proved(),
            leases_per_source: default_leases_per_source(),
            lease_s: default_lease_s(),
        }
    }
}

/// The receiving side.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReceiveSpec {
    /// Retransmission servers, asked in turn; nobody is asked if empty, and what is lost is a gap. At most
    /// [`MAX_SERVERS`].
    pub servers: Vec<SocketAddrV4>,
    /// Have the feed itself sent from the servers by unicast, for networks without multicast; false by default.
    pub unicast: bool,
    /// Ask for the lease that proves our address to the servers; true by default. Servers of other makes know no leases.
    pub lease: bool,
    /// What happens to messages that no server has; `skip` by default.
    pub gap: GapMode,
    /// With `skip`: after how long a message is given up that is asked for in vain, in milliseconds; 5 000 by default. In
    /// vain is: no server answers anything, or those that do never answer this. Servers that hold it are waited for.
    pub give_up_ms: u64,
    /// How long what looks lost may be merely late, in microseconds; 50 by default.
    pub hold_us: u64,
    /// Without a session to resume: begin with this sequence, asking for what went by already; with whatever is heard
    /// first if `None`.
    pub from: Option<u64>,
    /// Whose packets are taken from the lines, such as `10.0.0.1` or `10.1.0.0/16`. If empty, a line keeps to the first source
    /// that sends on it until that one falls silent.
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

/// What happens to messages that no server has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GapMode {
    /// Readers are told exactly which will never come, and the rest goes on.
    #[default]
    Skip,
    /// Nothing is delivered past them until they come.
    Block,
}

/// Which way a bridge goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction<'a> {
    /// From the local channel to other hosts.
    Send(&'a SendSpec),
    /// From another host into the local channel.
    Receive(&'a ReceiveSpec),
}

impl BridgeSpec {
    /// A bridge with everything at its default but the channel and the direction, which is to be set.
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

    /// What status and metrics call it.
    pub fn title(&self) -> &str {
        if self.name.is_empty() { &self.channel } else { &self.name }
    }

    /// Which way it goes; `None` unless exactly one of `send` and `receive` is there.
    pub fn direction(&self) -> Option<Direction<'_>> {
        match (&self.send, &self.receive) {
            (Some(send), None) => Some(Direction::Send(send)),
            (None, Some(receive)) => Some(Direction::Receive(receive)),
            _ => None,
        }
    }

    /// The four characters that stand before the epoch in the sessions of this bridge when it sends.
    pub fn tag(&self) -> String {
        let letters = || self.channel.chars().filter(char::is_ascii_alphanumeric).take(4);
        match &self.session {
            Some(session) => session.clone(),
            None if letters().next().is_none() => "SHM".to_owned(),
            None => letters().map(|c| c.to_ascii_uppercase()).collect(),
        }
    }

    /// What makes no sense, each as the field and what to do about it; nothing if the bridge can be started.
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
        match self.direction() {
            Some(Direction::Send(send)) => {
                if self.lines.is_empty() && send.repair.is_none() {
                    report(
                        "line",
                        "nobody to send to: give a line, or a repair server for leases".to_owned(),
                    );
                }
                if send.repair.as_ref().is_some_and(|repair| repair.allow.is_empty()) {
                    let what = "the repair server answers nobody: list the networks that may ask";
                    report("allow", what.to_owned());
                }
            }
            Some(Direction::Receive(receive)) => {
                if self.lines.is_empty() && !receive.unicast {
                    report("line", "nothing to listen to: give a line, or unicast = true".to_owned());
                }
                if receive.unicast && (receive.servers.is_empty() || !receive.lease) {
                    let what =
                        "a unicast feed comes from servers that grant leases: give servers, and lease = true";
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
            None => report("send", "give either a send table or a receive table".to_owned()),
        }
        problems
    }
}

impl SendSpec {
    /// How long the end is repeated.
    pub fn linger(&self) -> Duration {
        Duration::from_millis(self.linger_ms)
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
