//! Loss of packets, of lines and of either end. All counters must agree about it.

use super::hosts::{Host, Hosts, Running, number, wait_for};
use super::roles::make_channel;
use serde_json::Value;

pub const SEND: &str = "bridge send t --to 239.77.0.1:30001 --interface va0 --repair 10.77.0.1:30002 \
                    --allow 10.77.0.0/16 --json --until-end --linger 2s";
pub const RECV: &str = "bridge recv t --from 239.77.0.1:30001 --interface vb0 --server 10.77.0.1:30002 --first 1 \
                    --capacity 64MiB --json --until-end";

pub fn messages() -> u64 {
    number("SHMCAST_BRIDGE_MESSAGES", 30_000)
}

/// Messages a second. A loaded machine with two cores, ten readers and a relay keeps up with the default.
pub fn rate() -> u64 {
    number("SHMCAST_BRIDGE_RATE", 20_000)
}

pub fn readers(hosts: &Hosts, count: usize, last: u64) -> Vec<Running> {
    (0..count).map(|_| hosts.role(Host::B, "read", &last.to_string())).collect()
}

pub fn count(json: &Value, path: &str) -> u64 {
    json.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {json}"))
}

/// Cuts the second of two wires once B has a third of the messages.
pub fn cut_the_second_line(hosts: &Hosts, last: u64) {
    let dir = hosts.channels(Host::B);
    wait_for("a third of the messages", || {
        let channel = shmcast::Directory::at(&dir).channel("t").ok()?.status();
        channel.next_sequence.filter(|next| *next > last / 3)
    });
    hosts.cut(1);
}

pub fn assert_the_second_line_was_cut(received: &Value) {
    let lines = ["/receive/lines/0/packets", "/receive/lines/1/packets"].map(|path| count(received, path));
    assert!(lines[1] > 0 && lines[1] < lines[0], "one line must have been cut on the way: {received}");
}

/// Checks that every reader has every message, and reports none missing.
pub fn assert_all_have_all(readers: Vec<Running>, last: u64) {
    for reader in readers {
        let seen = reader.end_well();
        let figures = ["received", "gap_messages", "lapped"].map(|name| count(&seen, &format!("/{name}")));
        assert_eq!(figures, [last, 0, 0], "{seen}");
    }
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
    let (_, sent) = send.end();
    let (code, received) = recv.end();
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
    let last = messages() / 10;
    drop(make_channel(&hosts.channels(Host::A)));
    let ssm = |words: &str| words.replace("239.77.0.1", "232.77.0.1");
    let send = hosts.shmcast(Host::A, &ssm(SEND));
    send.wait_for_log("sending session");
    let recv = hosts.shmcast(Host::B, &format!("{} --source 10.77.0.1", ssm(RECV)));
    recv.wait_for_log("receiving session");
    let deaf = ssm(RECV).replace("recv t", "recv deaf").replace(" --until-end", "");
    let deaf = hosts.shmcast(Host::B, &format!("{deaf} --source 10.77.0.7"));
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
    let last = messages();
    drop(make_channel(&hosts.channels(Host::A)));
    let send = "bridge send t --to 239.77.0.1:30001 --to 239.77.1.1:30001 --interface va0 --interface va1 --json \
                --until-end --linger 1s";
    let send = hosts.shmcast(Host::A, send);
    send.wait_for_log("sending session");
    let recv = "bridge recv t --from 239.77.0.1:30001 --from 239.77.1.1:30001 --interface vb0 --interface vb1 \
                --first 1 --capacity 64MiB --json --until-end";
    let recv = hosts.shmcast(Host::B, recv);
    recv.wait_for_log("receiving session");
    let readers = readers(&hosts, 10, last);
    let publish = hosts.role(Host::A, "publish", &format!("{last} {}", rate()));
    cut_the_second_line(&hosts, last);
    publish.end_well();
    assert_all_have_all(readers, last);
    let (_, sent) = send.end();
    let received = recv.end_well();
    assert_the_second_line_was_cut(&received);
    assert!(count(&sent, "/send/datagrams_refused") > 0, "{sent}");
    // Nothing was requested, since there is no server.
    assert_eq!(count(&received, "/receive/requests"), 0);
}

#[test]
fn an_end_that_is_killed_comes_back_to_the_same_stream() {
    let Some(hosts) = Hosts::new("an_end_that_is_killed_comes_back_to_the_same_stream", 1) else { return };
    let (kills, last) = (number("SHMCAST_KILLS", 6), messages());
    drop(make_channel(&hosts.channels(Host::A)));
    // It serves until the test ends: a receiver that was killed last has nearly a whole ring to ask for.
    let patient = SEND.replace("--linger 2s", "--linger 60s");
    let send = || {
        let send = hosts.shmcast(Host::A, &patient);
        send.wait_for_log("sending session");
        send
    };
    let recv = || {
        let recv = hosts.shmcast(Host::B, RECV);
        recv.wait_for_log("receiving session");
        recv
    };
    let (mut sender, mut receiver) = (send(), recv());
    let readers = readers(&hosts, 10, last);
    let publish = hosts.role(Host::A, "publish", &format!("{last} {}", rate()));
    let dir = hosts.channels(Host::B);
    let reached = || shmcast::Directory::at(&dir).channel("t").ok()?.status().next_sequence;
    for kill in 0..kills {
        let goal = last * (kill + 1) / (kills + 2);
        wait_for("progress", || reached().filter(|next| *next > goal));
        if kill % 2 == 0 {
            sender.kill();
            sender = send();
        } else {
            receiver.kill();
            receiver = recv();
        }
    }
    publish.end_well();
    // The ring on A holds all messages of the last seconds, so there is no gap either.
    for reader in readers {
        let seen = reader.end_well();
        let figures = ["received", "gap_messages", "lapped"].map(|name| count(&seen, &format!("/{name}")));
        assert_eq!(figures, [last, 0, 0], "{seen}");
        // A receiver that was killed last may come back when its readers have everything: they hear no more of it.
        let epochs = count(&seen, "/epochs");
        assert!((kills / 2).saturating_sub(1) <= epochs && epochs <= kills / 2, "{seen}");
        assert_eq!(&seen["sessions"][1], &Value::Null, "{seen}");
    }
    drop((sender, receiver));
}

#[test]
fn what_the_kernel_dropped_and_what_readers_miss_add_up() {
    let Some(hosts) = Hosts::new("what_the_kernel_dropped_and_what_readers_miss_add_up", 1) else { return };
    let last = messages();
    drop(make_channel(&hosts.channels(Host::A)));
    let recv = "bridge recv t --from 239.77.0.1:30001 --interface vb0 --first 1 --capacity 64MiB --json --buffer 4KiB";
    let recv = hosts.shmcast(Host::B, recv);
    wait_for("the channel on B", || shmcast::Directory::at(hosts.channels(Host::B)).channel("t").ok());
    let send = "bridge send t --to 239.77.0.1:30001 --interface va0 --json --until-end --linger 2s";
    let send = hosts.shmcast(Host::A, send);
    recv.wait_for_log("receiving session");
    let readers = readers(&hosts, 2, last);
    hosts.role(Host::A, "publish", &format!("{last} 1000000000")).end_well();
    let sent = send.end().1;
    // No packet waits in a queue any more: the sender ended two seconds after its last one.
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
    for reader in readers {
        let seen = reader.end_well();
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
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_shmcast"));
    command.args(["bridge", "send", "big", "--to", "239.77.0.1:30001", "--dir"]).arg(dir.path());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("9000 B") && text.contains("1400 B") && text.contains("at most 1378 B"), "{text}");
}
