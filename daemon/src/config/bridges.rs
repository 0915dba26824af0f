//! Checks of the bridges against each other, against their channels and against this machine. A configuration that cannot work is an error.
//! A configuration that works but is unwise is a warning.
//!
//! `BridgeSpec::problems` has the rules for a single bridge.

use super::host::Host;
use super::rules::Broken;
use super::{ChannelConfig, Config, fields};
use shmcast_bridge::spec::{BridgeSpec, Direction, Engine, HistoryFrom, ReceiveSpec, SendSpec, WaitMode};
use std::net::SocketAddr;
use std::path::Path;

/// An allowed network with fewer prefix bits than this causes a warning. Nobody knows all hosts of so large a network.
const WIDE_PREFIX_BITS: u8 = 8;

/// Returns the problems of a single bridge, each with the path of its field.
pub(super) fn own(bridge: &BridgeSpec) -> Broken {
    let path = |field| match field {
        "allow" => "send.repair.allow",
        "unicast" => "receive.unicast",
        "servers" => "receive.servers",
        "listen_ms" => "send.listen_ms",
        "role" => "send.role",
        "gate" => "send.gate",
        "peers" => "send.peers",
        "rank" => "send.rank",
        "takeover_ms" => "send.takeover_ms",
        "repair.dscp" => "send.repair.dscp",
        "repair.history" => "send.repair.history",
        "buffer_bytes" => "receive.buffer_bytes",
        field => field,
    };
    let needs_nats = bridge.engine == Engine::Nats && !cfg!(feature = "nats");
    let absent = needs_nats.then(|| ("engine", crate::without("nats")));
    let problems = bridge.problems().into_iter().chain(absent);
    problems.map(|(field, what)| (path(field), format!("{field}: {what}"))).collect()
}

/// Returns a copy of the bridge. If the bridge is set to use its channel's journal, the copy names the directory of this journal. If the
/// channel has no journal, the copy names none.
pub(super) fn with_journal(bridge: &BridgeSpec, channels: &[ChannelConfig]) -> BridgeSpec {
    let mut bridge = bridge.clone();
    let channel = channels.iter().find(|channel| channel.name == bridge.channel);
    let journal = channel.and_then(|channel| channel.journal.as_ref());
    let repair = bridge.send.as_mut().and_then(|send| send.repair.as_mut());
    let histories = repair.map(|repair| &mut repair.history).into_iter();
    let histories = histories.chain(bridge.nats.as_mut().map(|nats| &mut nats.history));
    for history in histories.filter(|history| **history == HistoryFrom::Channel(true)) {
        *history = match journal {
            Some(journal) => HistoryFrom::Dir(journal.dir.clone()),
            None => HistoryFrom::Channel(false),
        };
    }
    bridge
}

/// Returns the contradictions between a bridge and the rest of the configuration.
///
/// - `names`: the names of all channels.
/// - `channels`: the channels whose tables in the configuration have no errors.
/// - `before`: the bridges before this one.
/// - `received`: the names of the channels that any bridge receives.
pub(super) fn together(
    bridge: &BridgeSpec,
    names: &[String],
    channels: &[ChannelConfig],
    before: &[BridgeSpec],
    received: &[String],
) -> Vec<(&'static str, String)> {
    let mut broken = Broken::new();
    if !names.contains(&bridge.channel) {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hint = match names.is_empty() {
            true => ": add a [[channel]] of this name".to_owned(),
            false => fields::hint(&bridge.channel, &names),
        };
        return vec![("channel", format!("channel: there is no [[channel]] {:?}{hint}", bridge.channel))];
    }
    // A channel that could not be read is skipped here, because its own problems are reported.
    let channel = channels.iter().find(|channel| channel.name == bridge.channel);
    if let (Some(Direction::Send(_)), Some(channel)) = (bridge.direction(), channel) {
        broken.extend(too_long(bridge, channel));
    }
    broken.extend(no_gate(bridge, channel, before));
    for other in before {
        let title = other.title();
        if title == bridge.title() {
            let what = format!("name: there is a bridge {title:?} already: give each a name of its own");
            broken.push(("name", what));
        }
        if let (Some(bind), Some(taken)) = (repair_address(bridge), repair_address(other))
            && bind == taken
        {
            let what = format!("bind: {bind} is bridge {title:?}'s already: choose another port");
            broken.push(("send.repair.bind", what));
        }
        if let (Some(file), Some(taken)) = (state_file(bridge), state_file(other))
            && file == taken
        {
            let what =
                format!("state: {} is bridge {title:?}'s already: choose another file", file.display());
            broken.push(("send.state", what));
        }
        match other.channel == bridge.channel {
            true => broken.extend(on_one_channel(bridge, other)),
            false => broken.extend(one_tag(bridge, other, received)),
        }
    }
    broken
}

fn state_file(bridge: &BridgeSpec) -> Option<&Path> {
    bridge.send.as_ref().and_then(|send| send.state.as_deref())
}

/// Refuses a gate that the channel does not have, that has `users`, or that the channel's journal or an earlier bridge takes.
fn no_gate(
    bridge: &BridgeSpec,
    channel: Option<&ChannelConfig>,
    before: &[BridgeSpec],
) -> Option<(&'static str, String)> {
    let (gate, channel) = (bridge.gate()?, channel?);
    let refused = |why: String| Some(("send.gate", format!("gate = {gate:?}: {why}")));
    if !channel.gates.iter().any(|config| config.name == gate) {
        return refused(format!("channel {:?} has no such gate: add a [[channel.gate]]", channel.name));
    }
    if let Some(why) = channel.shared_gate(gate) {
        return Some(("send.gate", format!("gate = {why}")));
    }
    if channel.journal.as_ref().is_some_and(|journal| journal.gate.as_deref() == Some(gate)) {
        return refused(format!("the journal of {:?} has it: add a [[channel.gate]] for each", channel.name));
    }
    let other = before.iter().find(|other| other.channel == bridge.channel && other.gate() == Some(gate))?;
    refused(format!("bridge {:?} has it: add a [[channel.gate]] for each", other.title()))
}

fn on_one_channel(bridge: &BridgeSpec, other: &BridgeSpec) -> Option<(&'static str, String)> {
    let (channel, title) = (&bridge.channel, other.title());
    let (sends, receives) = match (bridge.direction()?, other.direction()?) {
        (Direction::Receive(_), Direction::Receive(_)) => {
            let what =
                format!("channel: bridge {title:?} publishes into {channel:?} already, and only one can");
            return Some(("channel", what));
        }
        (Direction::Send(_), Direction::Receive(_)) => (bridge, other),
        (Direction::Receive(_), Direction::Send(_)) => (other, bridge),
        (Direction::Send(_), Direction::Send(_)) => return None,
    };
    // A received channel can be sent to another group. Sending it back to its source would make a loop.
    let back = sends.lines.iter().find(|to| receives.lines.iter().any(|from| from.group == to.group));
    let own = repair_address(sends);
    let servers = receives.receive.iter().flat_map(|receive| &receive.servers);
    let itself = own.filter(|own| servers.into_iter().any(|server| server == own));
    let to = back.map(|line| line.group).or(itself)?;
    let what = format!(
        "line: a loop: {channel:?} would go back to {to}, where it comes from (bridge {title:?}): send it elsewhere"
    );
    Some(("line", what))
}

/// Refuses two channels whose sessions have the same tag. A receiver that follows a sender by its tag could not distinguish the two
/// channels. If both tags are configured explicitly, they are refused only if the packets of both channels go to one group.
fn one_tag(bridge: &BridgeSpec, other: &BridgeSpec, received: &[String]) -> Option<(&'static str, String)> {
    // A bridge that sends a received channel keeps the session under which the channel was received.
    let relays = |bridge: &BridgeSpec| bridge.session.is_none() && received.contains(&bridge.channel);
    let names_it =
        |bridge: &BridgeSpec| matches!(bridge.direction(), Some(Direction::Send(_))) && !relays(bridge);
    let meet = bridge.lines.iter().any(|line| other.lines.iter().any(|to| line.group == to.group));
    let on_purpose = bridge.session.is_some() && other.session.is_some();
    if !names_it(bridge) || !names_it(other) || bridge.tag() != other.tag() || (on_purpose && !meet) {
        return None;
    }
    let what = format!(
        "session: bridges {:?} and {:?} would both send sessions that begin with {:?}, and receivers could not tell them \
         apart: give one of them another session of 1 to 4 characters",
        other.title(),
        bridge.title(),
        bridge.tag()
    );
    Some((if bridge.session.is_some() { "session" } else { "channel" }, what))
}

fn repair_address(bridge: &BridgeSpec) -> Option<SocketAddr> {
    Some(bridge.send.as_ref()?.repair.as_ref()?.bind)
}

/// The largest message that fits a packet of the bridge.
fn most_bytes(bridge: &BridgeSpec) -> u64 {
    bridge.max_message_bytes() as u64
}

fn too_long(bridge: &BridgeSpec, channel: &ChannelConfig) -> Option<(&'static str, String)> {
    let (takes, most) = (channel.spec().max_message_bytes().ok()?, most_bytes(bridge));
    let what = || {
        format!(
            "channel: {:?} takes messages of up to {takes} B, but a packet of payload_bytes = {} carries at most \
             {most} B: set max_message = {most} for the channel, or raise payload_bytes if the network's MTU allows",
            channel.name, bridge.payload_bytes
        )
    };
    (takes > most).then(|| ("channel", what()))
}

fn warn_of_sending(send: &SendSpec, warn: &mut impl FnMut(&'static str, String, &str)) {
    match &send.repair {
        None => {
            let what = "none: receivers cannot ask for what the network loses".to_owned();
            warn("bridge.send.repair", what, "a [bridge.send.repair] with bind and allow");
        }
        Some(repair) => {
            if repair.trust_allowed {
                let what = "true: whoever forges an allowed source has replies sent to it, up to 70 times \
                            what he sent";
                let instead = "false, where receivers are shmcast's own";
                warn("bridge.send.repair.trust_allowed", what.to_owned(), instead);
            }
            if let Some(wide) = repair.allow.iter().find(|network| network.prefix() < WIDE_PREFIX_BITS) {
                let what = format!("{wide}: nearly everybody may ask for retransmissions");
                warn("bridge.send.repair.allow", what, "the networks that receivers are in");
            }
        }
    }
}

fn warn_of_receiving(
    bridge: &BridgeSpec,
    receive: &ReceiveSpec,
    channel: Option<&ChannelConfig>,
    warn: &mut impl FnMut(&'static str, String, &str),
) {
    if receive.servers.is_empty() {
        let what = "none: what the network loses is lost to this host's readers".to_owned();
        warn("bridge.receive.servers", what, "the sender's bind address, if it has one");
    }
    if let Some(channel) = channel.filter(|channel| !channel.publishers.is_empty()) {
        let what = format!("{:?} has publishers, who are refused: the bridge is its only one", channel.name);
        warn("bridge.channel", what, "a channel with publishers = []");
    }
    let takes = channel.and_then(|channel| channel.spec().max_message_bytes().ok());
    let most = most_bytes(bridge);
    if let Some(takes) = takes.filter(|takes| *takes < most) {
        let what = format!(
            "the channel takes messages of {takes} B, packets may bring {most} B: a longer one is a \
             gap here"
        );
        warn("bridge.channel", what, "the sender's max_message for the channel");
    }
}

impl Config {
    /// Returns the warnings about the bridges. Each warning has the bridge's index, the field, the problem, and a better value.
    pub(super) fn regretted_bridges(&self, host: &Host) -> Vec<(usize, &'static str, String, String)> {
        let mut found = Vec::new();
        for (index, bridge) in self.bridges.iter().enumerate() {
            let mut warn =
                |field, what: String, instead: &str| found.push((index, field, what, instead.to_owned()));
            let channel = self.channels.iter().find(|channel| channel.name == bridge.channel);
            warn_of_thread(bridge, &self.bridges[..index], host, &mut warn);
            warn_of_interfaces(bridge, host, &mut warn);
            self.warn_of_account(bridge, &mut warn);
            let fits = bridge.ethernet_payload_bytes();
            if bridge.payload_bytes > fits {
                let what = format!(
                    "{} B exceed the {fits} of an Ethernet frame: where the network takes no jumbo \
                     frames, each packet is sent in fragments, and one lost loses all",
                    bridge.payload_bytes
                );
                warn("bridge.payload_bytes", what, "1400");
            }
            match bridge.direction() {
                _ if bridge.engine != Engine::Lines => {}
                Some(Direction::Send(send)) => warn_of_sending(send, &mut warn),
                Some(Direction::Receive(receive)) => {
                    warn_of_receiving(bridge, receive, channel, &mut warn);
                    self.warn_of_shared_lines(index, &mut warn);
                }
                None => {}
            }
        }
        found
    }

    fn warn_of_account(&self, bridge: &BridgeSpec, warn: &mut impl FnMut(&'static str, String, &str)) {
        if self.is_public && bridge.nats().is_some_and(|nats| nats.accounts().next().is_some()) {
            let what = "an account stands in an address, and every user may read this file".to_owned();
            let mend = "account = \"FILE\", where FILE has mode 600; or chmod o-r this file";
            warn("bridge.nats.servers", what, mend);
        }
    }

    fn warn_of_shared_lines(&self, index: usize, warn: &mut impl FnMut(&'static str, String, &str)) {
        let bridge = &self.bridges[index];
        for other in self.bridges[..index].iter().filter(|other| other.receive.is_some()) {
            let ports = |bridge: &BridgeSpec| bridge.lines.iter().map(|line| line.group).collect::<Vec<_>>();
            let theirs = ports(other);
            let Some(shared) = ports(bridge).into_iter().find(|group| theirs.contains(group)) else {
                continue;
            };
            let what = match bridge.session.is_none() || other.session.is_none() {
                true => format!(
                    "{shared} is bridge {:?}'s too, and not both say which session is theirs: both may follow one",
                    other.title()
                ),
                false => format!(
                    "{shared} is bridge {:?}'s too: each gets the other's packets and drops them",
                    other.title()
                ),
            };
            warn("bridge.line", what, "a port of its own for each channel");
        }
    }
}

/// Warns of interfaces that this host does not have. On this host, the bridge would not start. This is no error, because the configuration
/// might be for another host.
fn warn_of_interfaces(bridge: &BridgeSpec, host: &Host, warn: &mut impl FnMut(&'static str, String, &str)) {
    let Some(found) = &host.interfaces else { return };
    for line in &bridge.lines {
        let Some(interface) = &line.interface else { continue };
        let (family, is_v6) = if line.group.is_ipv6() { ("IPv6", true) } else { ("IPv4", false) };
        let found = || found.iter().filter(|(_, address)| address.is_ipv6() == is_v6);
        if !found().any(|(name, address)| name == interface || address.to_string() == *interface) {
            let what = format!(
                "no interface {interface:?} with an {family} address on this host: the bridge will not start here"
            );
            let there: Vec<String> = found().map(|(name, address)| format!("{name} ({address})")).collect();
            warn("bridge.line", what, &format!("one of {}", there.join(", ")));
        }
    }
}

fn warn_of_thread(
    bridge: &BridgeSpec,
    before: &[BridgeSpec],
    host: &Host,
    warn: &mut impl FnMut(&'static str, String, &str),
) {
    match (bridge.cpu, &host.cpus) {
        (None, _) if bridge.wait == WaitMode::Spin => {
            let what =
                "spin without cpu: the thread keeps a core busy, and the scheduler moves it about".to_owned();
            warn("bridge.wait", what, "a cpu of its own, isolated if possible, or wait = \"block\"");
        }
        (Some(cpu), Some(online)) if !online.contains(cpu) => {
            let what = format!("CPU {cpu} is not online here: the bridge will not start");
            warn("bridge.cpu", what, &format!("one of {online}"));
        }
        (Some(cpu), _) => {
            let spins = |other: &&BridgeSpec| {
                other.cpu == Some(cpu) && (other.wait == WaitMode::Spin || bridge.wait == WaitMode::Spin)
            };
            if let Some(other) = before.iter().find(spins) {
                let what = format!("CPU {cpu} is bridge {:?}'s too, and one of them spins", other.title());
                warn("bridge.cpu", what, "a cpu for each, or wait = \"block\"");
            }
        }
        _ => {}
    }
}
