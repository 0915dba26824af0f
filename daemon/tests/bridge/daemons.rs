//! Bridges of daemons on both hosts, with readers attached to B's daemon.
//!
//! `feed.rs` has the settings `SHMCAST_BRIDGE_MESSAGES` and `SHMCAST_BRIDGE_RATE`. `SHMCAST_DAEMON_KILLS` sets how often daemons are killed
//! in turn, and `SHMCAST_FLOOD` how many malformed packets go to each place.

use super::feed::{Feed, assert_all_have_all, count, messages, rate, readers};
use super::roles::{CAPACITY, LONGEST};
use serde_json::Value;
use shmcast::Client;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::place::program;
use shmcast_testkit::{number, wait_for};
use std::time::Instant;

pub const GROUP: &str = "239.77.0.1:30001";
/// The group to which the relay forwards, and the address at which it takes requests.
const RELAYED: (&str, &str) = ("239.77.0.9:30009", "10.77.0.2:30002");
pub const SERVER: &str = "10.77.0.1:30002";

pub fn channel() -> String {
    format!(
        "[[channel]]\nname = \"t\"\ncapacity = {CAPACITY}\nmax_message = {LONGEST}\nmlock = false\nhugepages = false\n"
    )
}

pub fn sends() -> String {
    format!(
        "{}[[bridge]]\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"va0\" }}]\n\
         [bridge.send]\nlinger_ms = 60000\n\
         [bridge.send.repair]\nbind = \"{SERVER}\"\nallow = [\"10.77.0.0/16\"]\n",
        channel()
    )
}

pub fn receives(group: &str, server: &str) -> String {
    format!(
        "{}[[bridge]]\nchannel = \"t\"\nline = [{{ group = \"{group}\", interface = \"vb0\" }}]\n\
         [bridge.receive]\nservers = [\"{server}\"]\nfrom = 1\n",
        channel()
    )
}

/// The status of the bridge of a host's daemon.
pub fn bridge(hosts: &Hosts, host: Host) -> Value {
    bridge_of(hosts, host, 0)
}

/// The status of bridge number `at` of a host's daemon, in the order of the bridges' names.
pub fn bridge_of(hosts: &Hosts, host: Host, at: usize) -> Value {
    // A daemon limits the rate of requests.
    std::thread::sleep(std::time::Duration::from_millis(50));
    let text = hosts.output(host, program("shmcast"), &["bridge", "status", "--json"]);
    let status: Value = serde_json::from_str(&text).unwrap();
    status["bridges"][at].clone()
}

/// Starts a host's daemon and waits until its bridge carries a session.
pub fn daemon(hosts: &Hosts, host: Host, config: &str) -> Running {
    let daemon = hosts.daemon(host, config);
    wait_for("the bridge's session", || bridge(hosts, host)["session"].is_string().then_some(()));
    daemon
}

fn everything_arrives_at_loss_of(test: &str, per_mille: u32) {
    if let Some(hosts) = Hosts::with_daemons(test, 1) {
        everything_arrives(test, &hosts, per_mille);
    }
}

/// Ten readers on B receive all that is published on A, through a relay that loses packets.
pub fn everything_arrives(test: &str, hosts: &Hosts, per_mille: u32) {
    everything_arrives_on(test, hosts, per_mille, "", str::to_owned);
}

/// Adds `fields` to the bridge of a configuration.
pub fn with_fields(config: &str, fields: &str) -> String {
    let bridge = "[[bridge]]\nchannel = \"t\"\n";
    assert!(config.contains(bridge), "{config}");
    config.replace(bridge, &format!("{bridge}{fields}"))
}

/// As [`everything_arrives`], with additional fields for both bridges. `of` replaces the IPv4 addresses.
pub fn everything_arrives_on(
    test: &str,
    hosts: &Hosts,
    per_mille: u32,
    fields: &str,
    of: impl Fn(&str) -> String,
) {
    let (last, seed) = (messages(), number("SHMCAST_BRIDGE_SEED", 7));
    eprintln!("{test}: {last} messages, seed {seed}");
    let _a = daemon(hosts, Host::A, &of(&with_fields(&sends(), fields)));
    let words = format!("{seed} {per_mille} {GROUP} {} vb0 {} {SERVER}", RELAYED.0, RELAYED.1);
    let relay = hosts.role(Host::B, "relay", &of(&words));
    relay.wait_for_log("ready");
    let _b = daemon(hosts, Host::B, &of(&with_fields(&receives(RELAYED.0, RELAYED.1), fields)));
    let readers = readers(hosts, 10, last);
    hosts.role(Host::A, "publish", &format!("{last} {}", rate())).end_well();
    assert_all_have_all(readers, last);
    let at_b = wait_for("the last figures", || {
        let at_b = bridge(hosts, Host::B);
        let published = at_b.pointer("/figures/receive/messages_published").and_then(Value::as_u64);
        (published == Some(last)).then_some(at_b)
    });
    let receive = &at_b["figures"]["receive"];
    let figure = |name: &str| count(receive, name);
    assert_eq!((figure("/messages_missing"), figure("/gaps_open")), (0, 0), "{receive}");
    let rtt_ns = receive.pointer("/servers/0/rtt_ns").and_then(Value::as_u64).unwrap_or(0);
    if per_mille > 0 {
        assert!(figure("/recovered_by_servers") > 0, "{receive}");
    }
    let recovery = &at_b["figures"]["recovery"];
    let in_rtt = |name: &str| recovery[name].as_f64().unwrap_or(0.0) / (rtt_ns.max(1) as f64);
    eprintln!(
        "{test}: 10 readers have {last} messages, 0 unrecovered; {} holes, {} requests of which {} repeated, {} recovered; \
         recovery {recovery}, last round trip {rtt_ns} ns: p50 {:.2}, p99 {:.2} round trips",
        figure("/gaps"),
        figure("/requests"),
        figure("/requests_repeated"),
        figure("/recovered_by_servers"),
        in_rtt("p50_ns"),
        in_rtt("p99_ns"),
    );
}

#[test]
fn daemons_lose_nothing_without_loss() {
    everything_arrives_at_loss_of("daemons_lose_nothing_without_loss", 0);
}

#[test]
fn daemons_lose_nothing_at_1_percent_loss_each_way() {
    everything_arrives_at_loss_of("daemons_lose_nothing_at_1_percent_loss_each_way", 10);
}

#[test]
fn daemons_lose_nothing_at_5_percent_loss_each_way() {
    everything_arrives_at_loss_of("daemons_lose_nothing_at_5_percent_loss_each_way", 50);
}

#[test]
fn daemons_lose_nothing_at_20_percent_loss_each_way() {
    everything_arrives_at_loss_of("daemons_lose_nothing_at_20_percent_loss_each_way", 200);
}

/// The second server does not exist. Requests to it are lost until the receiver knows that it is down.
#[test]
fn a_second_server_that_is_dead_costs_no_message() {
    let test = "a_second_server_that_is_dead_costs_no_message";
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    let (one, two) = (format!("\"{}\"]", RELAYED.1), format!("\"{}\", \"10.77.0.77:30002\"]", RELAYED.1));
    everything_arrives_on(test, &hosts, 10, "", |config| config.replace(&one, &two));
}

/// No service manager keeps segments here, so a restarted daemon gets the channel from the attached programs. The publisher continues until
/// all kills are over, so that a program always has A's ring.
#[test]
fn a_daemon_that_is_killed_is_followed_by_one_that_goes_on() {
    let Some(hosts) = Hosts::with_daemons("a_daemon_that_is_killed_is_followed_by_one_that_goes_on", 1)
    else {
        return;
    };
    let kills = number("SHMCAST_DAEMON_KILLS", 4);
    let start = |host| match host {
        Host::A => daemon(&hosts, Host::A, &sends()),
        _ => daemon(&hosts, Host::B, &receives(GROUP, SERVER)),
    };
    let (mut a, mut b) = (start(Host::A), start(Host::B));
    let readers = readers(&hosts, 10, u64::MAX);
    for reader in &readers {
        reader.wait_for_log("reading");
    }
    let feed = Feed::begin(&hosts);
    let published = || {
        let status = wait_for("A's daemon", || Client::at(hosts.socket(Host::A)).ok()?.channel("t").ok());
        status.next_sequence.expect("a channel that has messages")
    };
    let mut goal = messages();
    for kill in 0..kills {
        // Half of the kills hit a bridge that still catches up. The others hit a bridge that has caught up.
        let has_caught_up = kill % 4 >= 2;
        let reach = |goal: u64| {
            let goal_is_reached = || {
                let at_b = bridge(&hosts, Host::B);
                at_b.pointer("/figures/receive/next_sequence")?.as_u64().filter(|next| *next >= goal)
            };
            wait_for(&format!("message {goal} on B"), goal_is_reached)
        };
        let next = reach(goal);
        if has_caught_up {
            feed.pause();
            reach(published());
            feed.resume();
        }
        goal = next + messages();
        if kill % 2 == 0 {
            a.kill();
            a = start(Host::A);
        } else {
            b.kill();
            b = start(Host::B);
        }
    }
    let last = feed.end();
    let (mut gaps, mut sessions) = (0, 0);
    for reader in readers {
        let seen = reader.end_well();
        // The reader itself has checked that each message came once, in order, or was reported as a gap.
        assert_eq!(count(&seen, "/received") + count(&seen, "/gap_messages"), last, "{seen}");
        assert_eq!((count(&seen, "/lapped"), count(&seen, "/epochs")), (0, kills / 2), "{seen}");
        gaps = gaps.max(count(&seen, "/gap_messages"));
        sessions = sessions.max(seen["sessions"].as_array().unwrap().len());
    }
    eprintln!(
        "{kills} kills, {last} messages: at most {gaps} in gaps, {sessions} session(s) for each of 10 readers"
    );
    // The ring on A held all messages of the few seconds that each restart took.
    assert_eq!((gaps, sessions), (0, 1));
    drop((a, b));
}

/// While messages are published, packets with every kind of wrong header go to the feed's group and to the port for repairs.
#[test]
fn floods_into_the_group_and_of_the_repair_port_cost_no_message() {
    let Some(hosts) = Hosts::with_daemons("floods_into_the_group_and_of_the_repair_port_cost_no_message", 1)
    else {
        return;
    };
    let flood = number("SHMCAST_FLOOD", 20_000);
    let _a = daemon(&hosts, Host::A, &sends());
    let _b = daemon(&hosts, Host::B, &receives(GROUP, SERVER));
    let readers = readers(&hosts, 2, u64::MAX);
    let session = bridge(&hosts, Host::A)["session"].as_str().unwrap().replace(' ', "_");
    let feed = Feed::begin(&hosts);
    wait_for("the first messages", || {
        let at_b = bridge(&hosts, Host::B);
        at_b.pointer("/figures/receive/next_sequence").and_then(Value::as_u64).filter(|next| *next > 1_000)
    });
    let started = Instant::now();
    let flooding = [(Host::A, GROUP, "va0"), (Host::B, SERVER, "vb0")].map(|(host, to, interface)| {
        hosts.role(host, "flood", &format!("{flood} {to} {interface} {session}"))
    });
    for flooding in flooding {
        assert_eq!(count(&flooding.end_well(), "/sent"), flood);
    }
    let took = started.elapsed();
    let last = feed.end();
    assert_all_have_all(readers, last);
    let of = |host, name: &str| count(&bridge(&hosts, host), &format!("/figures/{name}"));
    let at_a = |name: &str| of(Host::A, &format!("repair/{name}"));
    let at_b = |name: &str| of(Host::B, &format!("receive/{name}"));
    wait_for("the floods' ends", || {
        let arrived = at_b("lines/0/datagrams") + at_b("lines/0/kernel_drops");
        (arrived >= flood && at_a("datagrams") + at_a("kernel_drops") >= flood).then_some(())
    });
    let reasons = ["too_short", "sequence_zero", "sequence_overflow", "truncated", "trailing_bytes"];
    let refused = reasons.map(|reason| at_b(&format!("malformed/{reason}")));
    eprintln!(
        "{flood} malformed packets into the group and {flood} to the repair port within {took:?}, {last} messages, none lost.\n\
         group: {reasons:?} {refused:?}, foreign {}, dropped by the kernel {}\n\
         repair port: malformed {}, foreign {}, dropped by the kernel {}; recovered from it {}",
        at_b("packets_foreign"),
        at_b("lines/0/kernel_drops"),
        at_a("refused/malformed"),
        at_a("refused/foreign_session"),
        at_a("kernel_drops"),
        at_b("recovered_by_servers"),
    );
    assert!(refused.iter().all(|count| *count > 0), "{reasons:?} {refused:?}");
    assert!(at_a("refused/malformed") > 0);
    assert_eq!((at_b("messages_missing"), at_b("sessions")), (0, 1));
}
