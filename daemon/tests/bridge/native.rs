//! Native lines between two daemons carry marks and large messages, with keys, also under the shipped unit.

use super::daemons::{GROUP, SERVER, bridge, daemon, everything_arrives_on, receives, sends, with_fields};
use super::feed::count;
use super::roles::client;
use serde_json::json;
use shmcast::{Event, Mark, Publisher, Start, Subscriber, Wait};
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::unit;
use shmcast_testkit::{wait_for, wait_until};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

pub const MESSAGES: u64 = 2_000;
/// The length of the longest message, which takes many packets.
pub const LARGE: usize = 200_000;
/// The age of the messages when they are published.
const AGE_NS: u64 = 3_600_000_000_000;

/// The fields of a native bridge whose packets are sealed.
pub fn sealed(hosts: &Hosts) -> String {
    let path = hosts.keys();
    fs::write(&path, "7 000102030405060708090a0b0c0d0e0f\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    format!("profile = \"native\"\nkeys = \"{}\"\n", path.display())
}

/// The bytes and marks of a message. Some are larger than a packet.
fn message(sequence: u64) -> (Vec<u8>, Mark) {
    let size = if sequence.is_multiple_of(100) { LARGE } else { sequence as usize % 1_300 };
    let bytes = (0..size).map(|n| (n as u64 * 31 + sequence) as u8).collect();
    (bytes, Mark { tag: (sequence * 257) as u16, key: sequence.is_multiple_of(50) })
}

/// Publishes messages with marks that are an hour old.
pub fn publish() {
    let client = client().unwrap();
    let mut publisher = Publisher::builder("t").client(&client).open().unwrap();
    let clock = publisher.clock();
    let age = u128::from(AGE_NS) * u128::from(clock.hz()) / 1_000_000_000;
    for sequence in publisher.next_sequence()..=MESSAGES {
        let (bytes, mark) = message(sequence);
        publisher.publish_at(&bytes, mark, clock.now().wrapping_sub(age as u64)).unwrap();
        std::thread::sleep(Duration::from_micros(200));
        if sequence.is_multiple_of(100) {
            // The ring has two seconds of these messages.
            let journal = || client.channel("t").ok().and_then(|channel| channel.journal);
            wait_until("the recorder", || journal().is_none_or(|journal| journal.written >= sequence));
        }
    }
    publisher.close();
}

/// Checks the bytes and marks of every message. Counts the messages that have kept their age.
pub fn read() {
    let builder = Subscriber::builder("t").start(Start::Oldest).wait(Wait::Sleep(Duration::from_micros(200)));
    let builder = builder.wait_for_channel(Duration::from_secs(60)).client(&client().unwrap());
    let mut subscriber = builder.open().unwrap();
    eprintln!("reading");
    let clock = subscriber.clock();
    let (mut received, mut old) = (0, 0);
    while received < MESSAGES {
        let event = subscriber.recv_deadline(Instant::now() + Duration::from_secs(60)).unwrap();
        match event.expect("nothing for a minute") {
            Event::Message(found) => {
                received += 1;
                let (bytes, mark) = message(received);
                assert_eq!((found.sequence, found.tag, found.key), (received, mark.tag, mark.key));
                assert!(found.payload == &bytes[..], "message {received} has other bytes");
                old += u64::from(clock.ns_since(found.time) >= AGE_NS / 2);
            }
            Event::NewSession { .. } | Event::NewEpoch { .. } => {}
            other => panic!("{other:?} after {received}"),
        }
    }
    println!("\n{}", json!({ "received": received, "old": old }));
}

/// Sealed lines carry marks and large messages from one daemon to the other. `limit_us` is the receiver's limit for the clock's error.
/// Returns the number of messages that keep their times, and the refusals of both bridges.
fn marks_cross(test: &str, hosts: &Hosts, limit_us: u64) -> (u64, [String; 2]) {
    let fields = sealed(hosts);
    let large = |config: &str| {
        let max = format!("max_message = {}", super::roles::LONGEST);
        assert!(config.contains(&max), "{config}");
        with_fields(&config.replace(&max, &format!("max_message = {LARGE}")), &fields)
    };
    let _a = daemon(hosts, Host::A, &large(&sends()));
    let limit = format!("from = 1\nclock_limit_us = {limit_us}\n");
    let _b = daemon(hosts, Host::B, &large(&receives(GROUP, SERVER)).replace("from = 1\n", &limit));
    let reader = hosts.role(Host::B, "read-native", "");
    reader.wait_for_log("reading");
    hosts.role(Host::A, "publish-native", "").end_well();
    let seen = reader.end_well();
    assert_eq!(count(&seen, "/received"), MESSAGES, "{seen}");
    let status = wait_for("the last figures", || {
        let status = bridge(hosts, Host::B);
        (count(&status, "/figures/receive/fragments") > MESSAGES / 100).then_some(status)
    });
    let receive = &status["figures"]["receive"];
    assert_eq!(["/forged", "/unopened"].map(|name| count(receive, name)), [0, 0], "{receive}");
    let refusals = [bridge(hosts, Host::A), status.clone()].map(|status| status["refusals"].to_string());
    eprintln!(
        "{test}: {MESSAGES} messages with their marks, {} with their times; {refusals:?}",
        count(&seen, "/old")
    );
    (count(&seen, "/old"), refusals)
}

#[test]
fn daemons_carry_marks_times_and_large_messages_on_sealed_lines() {
    let test = "daemons_carry_marks_times_and_large_messages_on_sealed_lines";
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    let (old, refusals) = marks_cross(test, &hosts, 0);
    assert_eq!(old, MESSAGES);
    // Where every daemon runs under the unit, the clock's error is refused, as the test below says.
    let is_refused = unit::asked().is_some();
    assert!(
        refusals.iter().all(|refusal| refusal.contains("error of the clock") == is_refused),
        "{refusals:?}"
    );
}

#[test]
fn sealed_lines_between_daemons_lose_nothing_at_5_percent_loss_each_way() {
    let test = "sealed_lines_between_daemons_lose_nothing_at_5_percent_loss_each_way";
    let Some(hosts) = Hosts::with_daemons(test, 1) else { return };
    everything_arrives_on(test, &hosts, 50, &sealed(&hosts), str::to_owned);
}

/// The unit forbids the call that reads the clock's error. The daemon reports this once, and messages get the times of their arrival. A
/// receiver without a limit needs no such call.
#[test]
#[ignore = "a step of CI: unit"]
fn native_lines_work_under_the_shipped_unit_without_the_error_of_the_clock() {
    let test = "native_lines_work_under_the_shipped_unit_without_the_error_of_the_clock";
    for (limit_us, old) in [(1_000, 0), (0, MESSAGES)] {
        let Some(hosts) = unit::shipped_for(test).and_then(|unit| Hosts::under(test, 1, unit)) else {
            return;
        };
        let (kept, refusals) = marks_cross(test, &hosts, limit_us);
        assert_eq!(kept, old, "with clock_limit_us = {limit_us}");
        for refusal in refusals {
            assert_eq!(
                refusal.matches("error of the clock: Operation not permitted").count(),
                1,
                "{refusal}"
            );
        }
    }
}
