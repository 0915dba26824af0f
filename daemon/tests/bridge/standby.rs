//! Two senders of one channel on host A, and a receiver on host B that has no repair server.

use super::hosts::{Host, Hosts, Running, number, wait_for};
use super::roles::make_channel;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

const GROUP: &str = "239.77.3.1:30001";

/// Starts sender 0 or 1.
fn sender(hosts: &Hosts, at: usize, more: &str) -> Running {
    let (own, peer) = (31_000 + at, 31_001 - at);
    let words = format!(
        "bridge send t --to {GROUP} --interface va0 --from oldest --json --until-end --linger 2s --rank {at} {more} \
         --claim-bind 127.0.0.1:{own} --peer 127.0.0.1:{peer}"
    );
    hosts.shmcast(Host::A, &words)
}

/// The role that a running sender printed last.
fn role(sender: &Running) -> Option<String> {
    let log = sender.log();
    log.lines().rev().find_map(|line| line.split_once("now ").map(|(_, role)| role.trim().to_owned()))
}

fn wait_for_role(sender: &Running, wanted: &str) {
    wait_for(&format!("a sender that is {wanted}"), || {
        (role(sender).as_deref() == Some(wanted)).then_some(())
    });
}

/// Messages that B's reader has, and those that it has not.
fn figures(read: &Value) -> (u64, u64, u64) {
    let of = |name: &str| read[name].as_u64().unwrap();
    (of("received"), of("gap_messages"), of("lapped"))
}

#[test]
fn senders_that_are_killed_or_stopped_cost_no_message_and_bring_none_twice() {
    let test = "senders_that_are_killed_or_stopped_cost_no_message_and_bring_none_twice";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    fail_in_turn(&hosts, "");
}

#[test]
fn senders_of_sealed_lines_take_over_from_each_other() {
    let Some(hosts) = Hosts::new("senders_of_sealed_lines_take_over_from_each_other", 1) else { return };
    super::native::sealed(&hosts);
    fail_in_turn(&hosts, &format!("--profile native --keys {}", hosts.keys().display()));
}

/// Two senders are killed and stopped in turn. `form` says what the packets are like.
fn fail_in_turn(hosts: &Hosts, form: &str) {
    let (rate, turns) = (number("SHMCAST_RATE", 20_000), number("SHMCAST_TURNS", 4));
    drop(make_channel(&hosts.channels(Host::A)));
    let receive = format!(
        "bridge recv t --from {GROUP} --interface vb0 --first 1 --capacity 64MiB --buffer 67108864 --until-end --json {form}"
    );
    let ingress = hosts.shmcast(Host::B, &receive);
    let mut senders = vec![sender(hosts, 0, form)];
    wait_for_role(&senders[0], "sending");
    ingress.wait_for_log("receiving session");
    senders.push(sender(hosts, 1, form));
    wait_for_role(&senders[1], "standby");
    let reader = hosts.role(Host::B, "read", &u64::MAX.to_string());
    let enough = hosts.dir.path().join("enough");
    let publisher = hosts.role(Host::A, "publish", &format!("{} {rate} {}", u64::MAX, enough.display()));
    std::thread::sleep(Duration::from_millis(300));
    for turn in 0..turns {
        let (active, standby) = (turn as usize % 2, 1 - turn as usize % 2);
        let failed = Instant::now();
        match turn / 2 % 2 {
            0 => {
                let dead = std::mem::replace(&mut senders[active], sender(hosts, active, form));
                dead.kill();
                wait_for_role(&senders[standby], "sending");
                wait_for_role(&senders[active], "standby");
            }
            _ => {
                senders[active].signal(Signal::SIGSTOP);
                wait_for_role(&senders[standby], "sending");
                senders[active].signal(Signal::SIGCONT);
                wait_for_role(&senders[active], "standby");
            }
        }
        eprintln!("turn {turn} took {:?}", failed.elapsed());
        std::thread::sleep(Duration::from_millis(50));
    }
    std::fs::write(&enough, "").unwrap();
    let published = publisher.end_well()["published"].as_u64().unwrap();
    let read = reader.end_well();
    assert_eq!(figures(&read), (published, 0, 0), "{read}");
    let received = ingress.end_well();
    // The longest pauses are those of the failures, of the senders that were stopped in between, and of the
    // machine.
    let pauses: Vec<u64> = read["pauses_us"].as_array().unwrap().iter().filter_map(Value::as_u64).collect();
    let of_failures = &pauses[..pauses.len().min(turns as usize)];
    let (longest, half) = (of_failures.first(), of_failures.get(of_failures.len() / 2));
    eprintln!(
        "{turns} failures, {published} messages; the {turns} longest pauses: {longest:?} us at most, half {half:?} us"
    );
    assert_eq!(received["receive"]["messages_missing"], 0, "{received}");
}

/// The senders hear each other's packets, but they come from another address than the claims: the claims count.
#[test]
fn a_sender_yields_to_one_whose_packets_it_cannot_tell() {
    let Some(hosts) = Hosts::new("a_sender_yields_to_one_whose_packets_it_cannot_tell", 1) else { return };
    drop(make_channel(&hosts.channels(Host::A)));
    let first = sender(&hosts, 0, "--loopback");
    wait_for_role(&first, "sending");
    let second = sender(&hosts, 1, "--loopback");
    wait_for_role(&second, "standby");
    first.signal(Signal::SIGSTOP);
    wait_for_role(&second, "sending");
    first.signal(Signal::SIGCONT);
    wait_for_role(&first, "standby");
}
