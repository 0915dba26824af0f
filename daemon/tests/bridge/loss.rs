//! Packets, lines, the sender or the receiver are lost. All counters must agree about the loss.

use super::feed::{Feed, assert_all_have_all, count, messages, next_on, rate, readers, wait_until_past};
use super::roles::{make_channel, make_channel_of};
use serde_json::Value;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::place::program;
use shmcast_testkit::{number, wait_for};

/// The sender serves until the test has checked everything, and then stops it.
pub const SEND: &str = "bridge send t --to 239.77.0.1:30001 --interface va0 --repair 10.77.0.1:30002 \
                    --allow 10.77.0.0/16 --json --until-end --set send.linger_ms=60000";
pub const RECV: &str = "bridge recv t --from 239.77.0.1:30001 --interface vb0 --server 10.77.0.1:30002 --set receive.from=1 \
                    --capacity 16MiB --json --until-end";

/// Publishes for a while, cuts the second of two wires, and goes on publishing. Returns the last sequence.
pub fn cut_the_second_line(hosts: &Hosts) -> u64 {
    let feed = Feed::begin(hosts);
    wait_until_past(hosts, Host::B, messages() / 3);
    hosts.cut(1);
    // Host B might lag, so host A's sequence is used.
    let cut_at = next_on(hosts, Host::A).expect("a channel");
    wait_until_past(hosts, Host::A, cut_at + 2 * messages() / 3);
    feed.end()
}

pub fn assert_the_second_line_was_cut(received: &Value) {
    let lines = ["/receive/lines/0/packets", "/receive/lines/1/packets"].map(|path| count(received, path));
    assert!(lines[1] > 0 && lines[1] < lines[0], "one line must have been cut on the way: {received}");
}

fn everything_arrives_at_loss_of(test: &str, per_mille: u32) {
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let (last, seed) = (messages(), number("SHMCAST_BRIDGE_SEED", 7));
    eprintln!("{test}: {last} messages, seed {seed}");
    drop(make_channel(&hosts.channels(Host::A)));
    let send = hosts.shmcast(Host::A, SEND);
    send.wait_for_log("sending session");
    let words =
        format!("{seed} {per_mille} 239.77.0.1:30001 239.77.0.9:30009 vb0 10.77.0.2:30002 10.77.0.1:30002");
    let relay = hosts.role(Host::B, "relay", &words);
    relay.wait_for_log("ready");
    let recv =
        RECV.replace("239.77.0.1:30001", "239.77.0.9:30009").replace("10.77.0.1:30002", "10.77.0.2:30002");
    let recv = hosts.shmcast(Host::B, &recv);
    recv.wait_for_log("receiving session");
    let readers = readers(&hosts, 10, last);
    hosts.role(Host::A, "publish", &format!("{last} {}", rate())).end_well();
    assert_all_have_all(readers, last);
    let (code, received) = recv.end();
    let (_, sent) = send.stop();
    assert_eq!((code, count(&received, "/receive/messages_missing")), (0, 0), "{received}");
    assert_eq!(count(&received, "/receive/messages_published"), last);
    if per_mille > 0 {
        assert!(count(&received, "/receive/recovered_by_servers") > 0, "{received}");
    }
    let rtt_ns = received.pointer("/receive/servers/0/rtt_ns").cloned().unwrap_or_default();
    eprintln!(
        "{test}: {} packets, {} recovered, recovery {}, rtt {rtt_ns} ns, receive to ring {}",
        count(&sent, "/send/packets"),
        count(&received, "/receive/recovered_by_servers"),
        received["recovery"],
        received["receive_to_ring"],
    );
}

#[test]
fn everything_arrives_without_loss() {
    everything_arrives_at_loss_of("everything_arrives_without_loss", 0);
}

#[test]
fn everything_arrives_at_1_percent_loss_each_way() {
    everything_arrives_at_loss_of("everything_arrives_at_1_percent_loss_each_way", 10);
}

#[test]
fn everything_arrives_at_5_percent_loss_each_way() {
    everything_arrives_at_loss_of("everything_arrives_at_5_percent_loss_each_way", 50);
}

#[test]
fn everything_arrives_at_20_percent_loss_each_way() {
    everything_arrives_at_loss_of("everything_arrives_at_20_percent_loss_each_way", 200);
}

#[test]
fn a_source_specific_group_takes_its_source_and_nobody_else() {
    let Some(hosts) = Hosts::new("a_source_specific_group_takes_its_source_and_nobody_else", 1) else {
        return;
    };
    let last = messages() / 3;
    drop(make_channel(&hosts.channels(Host::A)));
    let ssm = |words: &str| words.replace("239.77.0.1", "232.77.0.1");
    let send = hosts.shmcast(Host::A, &ssm(SEND));
    send.wait_for_log("sending session");
    let recv = hosts.shmcast(Host::B, &ssm(RECV).replace("--from ", "--from 10.77.0.1@"));
    recv.wait_for_log("receiving session");
    let deaf = ssm(RECV).replace("recv t", "recv deaf").replace(" --until-end", "");
    let deaf = hosts.shmcast(Host::B, &deaf.replace("--from ", "--from 10.77.0.7@"));
    let readers = readers(&hosts, 2, last);
    hosts.role(Host::A, "publish", &format!("{last} {}", rate())).end_well();
    assert_all_have_all(readers, last);
    assert_eq!(count(&recv.end_well(), "/receive/messages_published"), last);
    let (_, deaf) = deaf.stop();
    assert_eq!(deaf["receive"]["lines"], serde_json::json!([]), "{deaf}");
}

#[test]
fn a_line_that_is_cut_costs_nothing_while_the_other_lives() {
    let Some(hosts) = Hosts::new("a_line_that_is_cut_costs_nothing_while_the_other_lives", 2) else { return };
    drop(make_channel(&hosts.channels(Host::A)));
    let send = "bridge send t --to 239.77.0.1:30001 --to 239.77.1.1:30001 --interface va0 --interface va1 --json \
                --until-end --set send.linger_ms=60000";
    let send = hosts.shmcast(Host::A, send);
    send.wait_for_log("sending session");
    let recv = "bridge recv t --from 239.77.0.1:30001 --from 239.77.1.1:30001 --interface vb0 --interface vb1 \
                --set receive.from=1 --capacity 16MiB --json --until-end";
    let recv = hosts.shmcast(Host::B, recv);
    recv.wait_for_log("receiving session");
    let readers = readers(&hosts, 10, u64::MAX);
    let last = cut_the_second_line(&hosts);
    assert_all_have_all(readers, last);
    let received = recv.end_well();
    let (_, sent) = send.stop();
    assert_the_second_line_was_cut(&received);
    assert!(count(&sent, "/send/datagrams_refused") > 0, "{sent}");
    // Nothing was requested, since there is no server.
    assert_eq!(count(&received, "/receive/requests"), 0);
}

#[test]
fn an_end_that_is_killed_comes_back_to_the_same_stream() {
    let Some(hosts) = Hosts::new("an_end_that_is_killed_comes_back_to_the_same_stream", 1) else { return };
    let kills = number("SHMCAST_KILLS", 6);
    drop(make_channel(&hosts.channels(Host::A)));
    let send = || {
        let send = hosts.shmcast(Host::A, SEND);
        send.wait_for_log("sending session");
        send
    };
    let recv = || {
        let recv = hosts.shmcast(Host::B, RECV);
        recv.wait_for_log("receiving session");
        recv
    };
    let (mut sender, mut receiver) = (send(), recv());
    let readers = readers(&hosts, 10, u64::MAX);
    let feed = Feed::begin(&hosts);
    wait_until_past(&hosts, Host::B, 1);
    for kill in 0..kills {
        let reached = next_on(&hosts, Host::B).expect("a channel");
        wait_until_past(&hosts, Host::B, reached + messages() / (kills + 2));
        if kill % 2 == 0 {
            sender.kill();
            sender = send();
        } else {
            receiver.kill();
            receiver = recv();
        }
    }
    let last = feed.end();
    // The ring on A has all messages of the last seconds, so there is no gap.
    for reader in readers {
        let seen = reader.end_well();
        let figures = ["received", "gap_messages", "lapped"].map(|name| count(&seen, &format!("/{name}")));
        assert_eq!(figures, [last, 0, 0], "{seen}");
        // The receiver that was killed last might come back after its readers have everything. Then they do not see its new epoch.
        let epochs = count(&seen, "/epochs");
        assert!((kills / 2).saturating_sub(1) <= epochs && epochs <= kills / 2, "{seen}");
        assert_eq!(&seen["sessions"][1], &Value::Null, "{seen}");
    }
    drop((sender, receiver));
}

#[test]
fn what_the_kernel_dropped_and_what_readers_miss_add_up() {
    let Some(hosts) = Hosts::new("what_the_kernel_dropped_and_what_readers_miss_add_up", 1) else { return };
    // The messages come as fast as possible, and no buffer holds so many.
    let last = 10 * messages();
    // The rings hold all messages, so no reader is lapped.
    drop(make_channel_of(&hosts.channels(Host::A), 64 << 20));
    let recv = "bridge recv t --from 239.77.0.1:30001 --interface vb0 --set receive.from=1 --capacity 64MiB --json --set receive.buffer_bytes=4096";
    let recv = hosts.shmcast(Host::B, recv);
    wait_for("the channel on B", || shmcast::Directory::at(hosts.channels(Host::B)).channel("t").ok());
    let send =
        "bridge send t --to 239.77.0.1:30001 --interface va0 --json --until-end --set send.linger_ms=60000";
    let send = hosts.shmcast(Host::A, send);
    recv.wait_for_log("receiving session");
    let readers = readers(&hosts, 2, last);
    hosts.role(Host::A, "publish", &format!("{last} 1000000000")).end_well();
    let seen: Vec<Value> = readers.into_iter().map(Running::end_well).collect();
    // From here on nothing is sent, and so nothing is dropped.
    let (_, sent) = send.stop();
    let sockets = hosts.output(Host::B, "cat", &["/proc/net/udp"]);
    let kernel_drops: u64 = sockets
        .lines()
        .filter(|line| line.contains("01004DEF:7531"))
        .map(|line| line.split_whitespace().last().unwrap().parse::<u64>().unwrap())
        .sum();
    let (code, received) = recv.stop();
    let line = |name: &str| count(&received, &format!("/receive/lines/0/{name}"));
    assert!(kernel_drops > 0, "the buffer must overflow for this test to mean anything: {sockets}");
    assert_eq!(line("kernel_drops"), kernel_drops, "{received}");
    // Datagrams that were sent in one call are dropped as one.
    assert!(line("datagrams") + kernel_drops <= count(&sent, "/send/datagrams_sent"), "{sent} {received}");
    let (published, missing) =
        (count(&received, "/receive/messages_published"), count(&received, "/receive/messages_missing"));
    assert_eq!((published + missing, code), (last, 3), "{received}");
    assert_eq!(count(&received, "/receive/messages_expired"), missing);
    let delivered = ["delivered", "duplicate", "refused", "stored"]
        .map(|name| count(&received, &format!("/receive/messages_{name}")));
    assert_eq!(delivered.iter().sum::<u64>(), count(&received, "/receive/messages_received"));
    for seen in seen {
        assert_eq!(
            (count(&seen, "/received"), count(&seen, "/gap_messages")),
            (published, missing),
            "{seen}"
        );
    }
}

#[test]
fn a_channel_whose_messages_fit_no_packet_is_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let builder = shmcast::Publisher::builder("big").dir(dir.path()).capacity(1 << 20).max_message(9_000);
    let _publisher = builder.open().unwrap();
    let mut command = std::process::Command::new(program("shmcast"));
    command.args(["bridge", "send", "big", "--to", "239.77.0.1:30001", "--dir"]).arg(dir.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("9000 B") && text.contains("1400 B") && text.contains("at most 1378 B"), "{text}");
}
