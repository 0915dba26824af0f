//! The configuration of the sending end.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use shmcast::{GateName, SubscriberBuilder};

use super::BridgeSpec;
use crate::proto::lease::LeaseConfig;
use crate::proto::limit::Network;

/// The upper limit of `listen_ms`, in milliseconds.
const MAX_LISTEN_MS: u64 = 10_000;
/// The greatest number of peers: other egresses of the stream.
const MAX_PEERS: usize = 8;
/// The upper limit of `merge_us` and `linger_us`, in microseconds.
const MAX_MERGE_US: u64 = 1_000_000;
/// The highest rank of an egress.
const MAX_RANK: u8 = 15;
/// The limits of `takeover_ms`, in milliseconds.
const TAKEOVER_MS: RangeInclusive<u64> = 3..=10_000;

/// The configuration of the sending end.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SendSpec {
    /// The time to live (TTL) of multicast packets, 0 to 255. The default 1 keeps them in the local network.
    pub ttl: u8,
    /// Whether receivers on this host get the multicast packets as well; false by default.
    pub loopback: bool,
    /// The first message that the bridge sends; `resume` by default.
    pub from: StartAt,
    /// The file for the session and the last sent sequence; `None` means no file. A restarted bridge continues the session in the file if
    /// the ring is still the same. If the channel was created again, the session gets an epoch above all earlier ones, even if the clock
    /// was set back.
    pub state: Option<PathBuf>,
    /// The time for which a bridge listens on its multicast lines before it begins a session that is not in the state file, in
    /// milliseconds, at most 10 000; 300 by default. The new session is later than every session of this channel that the bridge hears.
    /// With 0, the bridge does not listen.
    pub listen_ms: u64,
    /// The time for which the bridge serves repairs after the channel is closed, or after the bridge was told to leave, in milliseconds; 10
    /// 000 by default. After the channel is closed, the bridge also repeats the end of the session.
    pub linger_ms: u64,
    /// The role of this egress (sending end). With `only`, the default, the egress sends as long as it runs. With `auto`, it shares its
    /// stream with other egresses: if the egress that sends falls silent, another one takes over.
    pub role: SendRole,
    /// With `role = "auto"`: the position of this egress in the order in which the egresses take over, 0 to 15; 0 by default. Rank 0 takes
    /// over first. Each rank waits 4 ms longer than the previous rank.
    pub rank: u8,
    /// With `role = "auto"`: the address on which the claims of the other egresses arrive, and from which this egress sends its own claims.
    ///
    /// Use the IP address of a multicast line's interface, on every egress of the stream. Then an active egress stops only if claims and
    /// packets of the feed arrive from the same address. With any other IP address, three claims alone are enough to stop an active egress.
    pub claim_bind: Option<SocketAddr>,
    /// With `role = "auto"`: the `claim_bind` addresses of the other egresses; at most 8. Claims from other addresses are dropped.
    pub peers: Vec<SocketAddr>,
    /// With `role = "auto"`: the silence after which another egress takes over, in milliseconds, 3 to 10 000; 15 by default. All egresses
    /// of a stream should use the same value.
    pub takeover_ms: u64,
    /// The gate of the channel that the bridge uses. With a gate, the publisher waits for the bridge, within the gate's limit. Without a
    /// gate, the publisher can overwrite messages that the bridge has not read.
    ///
    /// A message has passed the gate when the bridge has copied it out of the ring. A bridge with lines copies at most 1025 messages at a
    /// time, and passes their packets to the sockets before it copies more. A bridge with an engine copies only while it can append a
    /// block. So at most `in_flight` blocks and 1025 messages wait for the servers.
    pub gate: Option<String>,
    /// The retransmission server, which also grants unicast leases. If this is `None`, there is no server.
    pub repair: Option<RepairSpec>,
}

impl Default for SendSpec {
    fn default() -> SendSpec {
        SendSpec {
            ttl: 1,
            loopback: false,
            from: StartAt::Resume,
            state: None,
            listen_ms: 300,
            linger_ms: 10_000,
            role: SendRole::Only,
            rank: 0,
            claim_bind: None,
            peers: Vec::new(),
            takeover_ms: 15,
            gate: None,
            repair: None,
        }
    }
}

/// The first message that a sender sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StartAt {
    /// Begin with the first message that the state file does not list as sent, if the ring is still the same. Otherwise begin with the next
    /// message that is published. Messages that the ring no longer holds are counted as missed.
    #[default]
    Resume,
    /// Begin with the next message that is published. Messages that were published while no bridge ran are then a gap, and receivers
    /// request them.
    Latest,
    /// The oldest message that the ring holds.
    Oldest,
}

/// Whether an egress shares its stream with other egresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SendRole {
    /// The egress sends as long as it runs.
    #[default]
    Only,
    /// The egress sends if no peer sends. If the peer that sends falls silent, the egress takes over. With keys, claims are sealed, and all
    /// peers need the same keys.
    Auto,
}

/// The configuration of a retransmission server.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairSpec {
    /// The address on which requests arrive.
    pub bind: SocketAddr,
    /// The networks whose addresses are allowed to send requests, such as `10.1.0.0/16`. If the list is empty, no address is allowed.
    #[serde(default)]
    pub allow: Vec<Network>,
    /// Whether allowed sources get full answers before they have proved their address; false by default. Receivers of other makes need
    /// this. Set it to true only where nobody can forge a source address.
    #[serde(default)]
    pub trust_allowed: bool,
    /// The rate of repairs for all receivers together, in bytes a second. `None` means 100 000 000, or twice the feed's own rate if that is
    /// more. With twice the feed's rate, a receiver that lags can catch up.
    #[serde(default)]
    pub rate_bytes: Option<u64>,
    /// The rate of repairs for each receiver, in bytes a second. `None` means 25 000 000, or twice the feed's own rate if that is more.
    #[serde(default)]
    pub source_rate_bytes: Option<u64>,
    /// The greatest number of leases with live packets at a time; 64 by default.
    #[serde(default = "default_max_leases")]
    pub max_leases: usize,
    /// The limit for the number of leases of all kinds at a time; 4096 by default. Leases of receivers that only request repairs count as
    /// well.
    #[serde(default = "default_max_proved")]
    pub max_proved: usize,
    /// The limit for the number of leases of one address; 16 by default. With this limit, one host cannot take all leases.
    #[serde(default = "default_leases_per_source")]
    pub leases_per_source: usize,
    /// A lease expires if it is not renewed for this time, in seconds; 60 by default.
    #[serde(default = "default_lease_s")]
    pub lease_s: u64,
    /// The code point (DSCP) of repairs, 0 to 63. `None` means the code point of the feed. If `bind` is the wildcard address (`0.0.0.0` or
    /// `::`), one socket sends the repairs and also the packets of leases. Then the packets of leases have this code point, too.
    #[serde(default)]
    pub dscp: Option<u8>,
    /// The multicast group for plain repairs that go to all receivers. If this is `None`, each plain repair is sent only to its asker. The
    /// repairs leave by the interface of the first native multicast line, or of the first multicast line if no line is native. A line must
    /// not have this group, because receivers of other makes expect no repairs on a line. Native repairs for all receivers are sent to the
    /// first native multicast line.
    #[serde(default)]
    pub group: Option<SocketAddr>,
    /// If a second receiver requests the same messages within this time, the repair goes to all receivers. The unit is microseconds. `None`
    /// means twice the longest round trip of any receiver, but at least 300 and at most 5 000.
    #[serde(default)]
    pub merge_us: Option<u64>,
    /// After a repair was sent to all receivers, further requests for the same messages are ignored for this time. The unit is
    /// microseconds. `None` means the longest round trip of any receiver plus 100.
    #[serde(default)]
    pub linger_us: Option<u64>,
    /// Whether the server reads from the channel's journal the messages that the ring no longer has; true by default. Instead of true or
    /// false, this can be the journal's directory. A journal of another stream is not used.
    #[serde(default)]
    pub history: HistoryFrom,
}

/// The journal from which a retransmission server answers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Deserialize)]
#[serde(untagged)]
pub enum HistoryFrom {
    /// With true, the channel's own journal, if there is one. With false, no journal.
    Channel(bool),
    /// The journal in this directory.
    Dir(PathBuf),
}

impl Default for HistoryFrom {
    fn default() -> HistoryFrom {
        HistoryFrom::Channel(true)
    }
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
    /// Makes a server at `bind` whose allow-list is empty.
    pub fn new(bind: SocketAddr) -> RepairSpec {
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
            dscp: None,
            group: None,
            merge_us: None,
            linger_us: None,
            history: HistoryFrom::default(),
        }
    }
}

impl SendSpec {
    /// Returns how long the bridge serves repairs after the channel is closed, or after the bridge was told to leave.
    pub(crate) fn linger(&self) -> Duration {
        Duration::from_millis(self.linger_ms)
    }
}

impl BridgeSpec {
    /// Returns the gate that the bridge uses. Returns `None` if the bridge does not send, or uses no gate.
    pub fn gate(&self) -> Option<&str> {
        self.send.as_ref().and_then(|send| send.gate.as_deref())
    }

    /// Returns a builder for the bridge's subscribers to the channel. If the bridge uses a gate, the subscribers read through this gate,
    /// and only one of them can be open at a time.
    pub fn through_gate(&self, channel: &SubscriberBuilder) -> SubscriberBuilder {
        match self.gate() {
            Some(gate) => channel.clone().gate(gate),
            None => channel.clone(),
        }
    }

    /// Reports a name that no gate can have.
    pub(super) fn problems_of_gate(&self, report: &mut impl FnMut(&'static str, String)) {
        if let Some(Err(why)) = self.gate().map(str::parse::<GateName>) {
            report("gate", format!("{:?}: {why}", self.gate().unwrap_or_default()));
        }
    }

    pub(super) fn problems_of_sending(&self, send: &SendSpec, report: &mut impl FnMut(&'static str, String)) {
        if self.lines.is_empty() && send.repair.is_none() {
            report("line", "nobody to send to: give a line, or a repair server for leases".to_owned());
        }
        if send.role == SendRole::Auto && (send.peers.is_empty() || send.claim_bind.is_none()) {
            report(
                "role",
                "auto: give claim_bind, and the claim_bind of each other egress as peers".to_owned(),
            );
        }
        if send.role == SendRole::Only && (!send.peers.is_empty() || send.claim_bind.is_some()) {
            report("role", "only: peers and claim_bind are for role = \"auto\"".to_owned());
        }
        let alone = SendSpec::default();
        for (field, is_given) in
            [("rank", send.rank != alone.rank), ("takeover_ms", send.takeover_ms != alone.takeover_ms)]
        {
            if send.role == SendRole::Only && is_given {
                report(field, "it is for role = \"auto\": give that too, or leave this out".to_owned());
            }
        }
        if send.peers.len() > MAX_PEERS {
            report("peers", format!("{} peers: at most {MAX_PEERS}", send.peers.len()));
        }
        let all: Vec<SocketAddr> = send.peers.iter().copied().chain(send.claim_bind).collect();
        if !super::is_one_family(&all) {
            report("peers", "they and claim_bind must be all IPv4, or all IPv6".to_owned());
        }
        if send.rank > MAX_RANK {
            report("rank", format!("{} is out of range: write 0 to {MAX_RANK}", send.rank));
        }
        if !TAKEOVER_MS.contains(&send.takeover_ms) {
            let (ms, from, to) = (send.takeover_ms, TAKEOVER_MS.start(), TAKEOVER_MS.end());
            report("takeover_ms", format!("{ms} is out of range: write {from} to {to}"));
        }
        if send.listen_ms > MAX_LISTEN_MS {
            let ms = send.listen_ms;
            report("listen_ms", format!("{ms} is out of range: write 0 to {MAX_LISTEN_MS}"));
        }
        if let Some(repair) = &send.repair {
            self.problems_of_repairs(repair, report);
        }
        super::report_dscp("repair.dscp", send.repair.as_ref().and_then(|repair| repair.dscp), report);
        if send.repair.as_ref().is_some_and(|repair| repair.allow.is_empty()) {
            let what = "the repair server answers nobody: list the networks that may ask";
            report("allow", what.to_owned());
        }
        if let Some(HistoryFrom::Dir(dir)) = send.repair.as_ref().map(|repair| &repair.history)
            && !dir.is_absolute()
        {
            report("repair.history", format!("{} is not absolute: begin it with /", dir.display()));
        }
    }
    fn problems_of_repairs(&self, repair: &RepairSpec, report: &mut impl FnMut(&'static str, String)) {
        if let Some(group) = repair.group {
            super::report_repair_group("repair.group", group, &self.lines, report);
            if group.is_ipv4() != repair.bind.is_ipv4() {
                let bind = repair.bind;
                let what = format!("{group} and bind {bind}: write both as IPv4 or both as IPv6");
                report("repair.group", what);
            }
        }
        for (field, us) in [("repair.merge_us", repair.merge_us), ("repair.linger_us", repair.linger_us)] {
            if let Some(us) = us.filter(|us| *us > MAX_MERGE_US) {
                report(field, format!("{us} is out of range: write 0 to {MAX_MERGE_US}"));
            }
        }
    }
}
