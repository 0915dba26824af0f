//! Several receivers lose the same packets. One answer to the first request repairs all of them.

use super::feed::{count, messages, rate};
use super::roles::make_channel;
use super::v6::v6;
use serde_json::Value;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{skip, wait_for};
use std::process::Command;

const RECEIVERS: u64 = 5;
const SEND: &str = "bridge send t --to 239.77.0.1:30001 --interface va0 --repair 10.77.0.1:30002 \
                    --allow 10.77.0.0/16 --json --until-end --set send.linger_ms=60000";
const RECV: &str = "--from 239.77.0.1:30001 --interface vb0 --server 10.77.0.1:30002 --set receive.from=1 \
                    --capacity 16MiB --json --until-end";
const SEND_GROUP: &str = "--set send.repair.group=239.77.0.2:30005";
const RECV_GROUP: &str = "--set receive.repair_group=239.77.0.2:30005";
/// The rules by which host B drops one in 40 of the feed's packets, before any receiver gets the packet.
const ONE_IN: &str = "add table ip t; add chain ip t p { type filter hook prerouting priority -300; }; \
                      add rule ip t p ip daddr 239.77.0.1 numgen inc mod 40 0 drop";
const ONE_IN_OF_V6: &str = "add table ip6 t; add chain ip6 t p { type filter hook prerouting priority -300; }; \
                            add rule ip6 t p ip6 daddr ff15::4d:1 numgen inc mod 40 0 drop";

fn without_nft(test: &str) -> bool {
    let is_missing = Command::new("nft").arg("--version").output().is_err();
    if is_missing {
        skip(test, "no nft command");
    }
    is_missing
}

/// Starts the sender and the receivers.
fn start(hosts: &Hosts, send: &str, recv: &str) -> (Running, Vec<Running>) {
    drop(make_channel(&hosts.channels(Host::A)));
    let send = hosts.shmcast(Host::A, send);
    send.wait_for_log("sending session");
    let receivers: Vec<Running> =
        (0..RECEIVERS).map(|n| hosts.shmcast(Host::B, &format!("bridge recv t{n} {recv}"))).collect();
    receivers.iter().for_each(|receiver| receiver.wait_for_log("receiving session"));
    (send, receivers)
}

/// Returns what the sender and the receivers counted; `None` if that cannot be tried here.
fn all_lose_the_same(test: &str, send: &str, recv: &str) -> Option<(Value, Vec<Value>)> {
    if without_nft(test) {
        return None;
    }
    let hosts = Hosts::new(test, 1)?;
    hosts.output(Host::B, "nft", &[ONE_IN]);
    let started = start(&hosts, &format!("{SEND} {send}"), &format!("{RECV} {recv}"));
    Some(one_repair_for_all(test, &hosts, started))
}

/// Publishes, and checks that an answer to one receiver also repairs others. Returns the counters of the sender and of the receivers.
fn one_repair_for_all(
    test: &str,
    hosts: &Hosts,
    (send, receivers): (Running, Vec<Running>),
) -> (Value, Vec<Value>) {
    // Even if each packet is full, each receiver loses more than ten of them.
    let last = 2 * messages();
    hosts.role(Host::A, "publish", &format!("{last} {}", rate())).end_well();
    let received: Vec<Value> = receivers.into_iter().map(Running::end_well).collect();
    let (_, sent) = send.stop();
    for received in &received {
        assert_eq!(count(received, "/receive/messages_published"), last, "{received}");
        assert_eq!(count(received, "/receive/messages_missing"), 0, "{received}");
        assert!(count(received, "/receive/group") >= 1, "{received}");
    }
    let sum = |name: &str| received.iter().map(|one| count(one, &format!("/receive/{name}"))).sum::<u64>();
    eprintln!(
        "{test}: {} packets; {} holes at {RECEIVERS} receivers; {} requests, {} saved; {} answers, {} of them to all; {} \
         requests ignored",
        count(&sent, "/send/packets"),
        sum("gaps"),
        sum("requests"),
        sum("requests_saved"),
        count(&sent, "/repair/replies"),
        count(&sent, "/repair/multicast_replies"),
        count(&sent, "/repair/refused/on_its_way"),
    );
    assert!(count(&sent, "/repair/multicast_replies") > 0 && sum("gaps") >= 10 * RECEIVERS, "{sent}");
    // The number of saved answers depends on when each receiver gets a CPU. `proto/sim/groups.rs` counts them in simulated time. Here a
    // request of one receiver must repair another one.
    assert!(sum("requests_saved") > 0, "{sent}");
    (sent, received)
}

#[test]
fn receivers_that_lose_the_same_packet_draw_one_repair_for_all() {
    all_lose_the_same("receivers_that_lose_the_same_packet_draw_one_repair_for_all", SEND_GROUP, RECV_GROUP);
}

/// The interfaces of both hosts are made anew. Only then do the receivers lose packets, and repairs for the whole group mend the losses.
fn repairs_for_all_go_on(test: &str, hosts: &Hosts, of: fn(&str) -> String, (loss, group): (&str, &str)) {
    let started = start(hosts, &of(&format!("{SEND} {SEND_GROUP}")), &of(&format!("{RECV} {RECV_GROUP}")));
    hosts.remake(0, || (), group.contains(':'));
    // The kernel counts the sockets that have joined a group: that of the server, and one of each receiver.
    for (host, interface, sockets) in [(Host::A, "va0", 1), (Host::B, "vb0", RECEIVERS)] {
        wait_for(&format!("{group} on {interface}"), || {
            let groups = hosts.output(host, "ip", &["maddr", "show", "dev", interface]);
            let line = groups.lines().find(|line| line.split_whitespace().any(|word| word == group))?;
            let users = line.split_once("users ").map_or("1", |(_, users)| users.trim());
            (users.parse() == Ok(sockets)).then_some(())
        });
    }
    hosts.output(Host::B, "nft", &[loss]);
    let (sent, received) = one_repair_for_all(test, hosts, started);
    let overheard: u64 = received.iter().map(|one| count(one, "/receive/repairs_overheard")).sum();
    assert!(overheard > 0 && count(&sent, "/repair/replies_refused") == 0, "{overheard} {sent}");
}

#[test]
fn repairs_for_all_go_on_when_the_interface_is_made_anew() {
    let test = "repairs_for_all_go_on_when_the_interface_is_made_anew";
    let Some(hosts) = Hosts::new(test, 1).filter(|_| !without_nft(test)) else { return };
    repairs_for_all_go_on(test, &hosts, str::to_owned, (ONE_IN, "239.77.0.2"));
}

#[test]
fn repairs_for_all_of_ipv6_go_on_when_the_interface_is_made_anew() {
    let test = "repairs_for_all_of_ipv6_go_on_when_the_interface_is_made_anew";
    let hosts = Hosts::new(test, 1).filter(|_| !without_nft(test));
    let Some(hosts) = hosts.and_then(|hosts| hosts.and_v6(test, 1)) else { return };
    repairs_for_all_go_on(test, &hosts, v6, (ONE_IN_OF_V6, "ff15::4d:2"));
}

/// Repairs for the whole group come on the line itself, where some repairs are lost, too.
#[test]
fn native_repairs_for_all_come_on_the_line() {
    let native = "--set profile=native";
    all_lose_the_same("native_repairs_for_all_come_on_the_line", native, native);
}
