//! Several receivers that lose the same packets: one answer to the first, one repair for all, and no more.

use super::hosts::{Host, Hosts, Running};
use super::loss::{count, messages, rate};
use super::roles::make_channel;
use serde_json::Value;
use std::process::Command;

const RECEIVERS: u64 = 5;
const SEND: &str = "bridge send t --to 239.77.0.1:30001 --interface va0 --repair 10.77.0.1:30002 \
                    --allow 10.77.0.0/16 --json --until-end --linger 2s";
const RECV: &str = "--from 239.77.0.1:30001 --interface vb0 --server 10.77.0.1:30002 --first 1 \
                    --capacity 64MiB --json --until-end";
/// Of the feed's packets, host B drops one in so many before any receiver has it.
const ONE_IN: &str = "add table ip t; add chain ip t p { type filter hook prerouting priority -300; }; \
                      add rule ip t p ip daddr 239.77.0.1 numgen inc mod 40 0 drop";

/// Returns what the sender and the receivers counted; `None` if that cannot be tried here.
fn all_lose_the_same(test: &str, send: &str, recv: &str) -> Option<(Value, Vec<Value>)> {
    if Command::new("nft").arg("--version").output().is_err() {
        eprintln!("SKIPPED {test}: no nft command");
        return None;
    }
    let hosts = Hosts::new(test, 1)?;
    drop(make_channel(&hosts.channels(Host::A)));
    let send = hosts.shmcast(Host::A, &format!("{SEND} {send}"));
    send.wait_for_log("sending session");
    hosts.output(Host::B, "nft", &[ONE_IN]);
    let receivers: Vec<Running> =
        (0..RECEIVERS).map(|n| hosts.shmcast(Host::B, &format!("bridge recv t{n} {RECV} {recv}"))).collect();
    receivers.iter().for_each(|receiver| receiver.wait_for_log("receiving session"));
    hosts.role(Host::A, "publish", &format!("{} {}", messages(), rate())).end_well();
    let (_, sent) = send.end();
    let received: Vec<Value> = receivers.into_iter().map(Running::end_well).collect();
    for received in &received {
        assert_eq!(count(received, "/receive/messages_published"), messages(), "{received}");
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
    let answers = count(&sent, "/repair/replies");
    assert!(count(&sent, "/repair/multicast_replies") > 0 && sum("gaps") >= 10 * RECEIVERS, "{sent}");
    // Alone, each hole of each receiver would draw an answer.
    assert!(answers * 2 < sum("gaps"), "{answers} answers for {} holes", sum("gaps"));
    Some((sent, received))
}

#[test]
fn receivers_that_lose_the_same_packet_draw_one_repair_for_all() {
    let group = "--repair-group 239.77.0.2:30005";
    all_lose_the_same("receivers_that_lose_the_same_packet_draw_one_repair_for_all", group, group);
}

/// Repairs for all come on the line itself, where some are lost too.
#[test]
fn native_repairs_for_all_come_on_the_line() {
    let native = "--profile native";
    all_lose_the_same("native_repairs_for_all_come_on_the_line", native, native);
}
