//! A publisher on A, a mirror on B that sends the channel on, and a receiver on C. A is lost, and B is promoted.

use super::daemons::{GROUP, bridge_of, channel};
use super::roles::{LONGEST, make_channel};
use serde_json::Value;
use shmcast::{Client, Event, Publisher, Start, Subscriber};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{REST, wait_for};
use std::time::{Duration, Instant};

const ONWARD: (&str, &str) = ("239.77.0.4:30004", "10.77.0.2:30005");
const FURTHER: u64 = 1 << 32;
/// Pause between two attempts to promote.
const PAUSE: Duration = Duration::from_millis(200);

fn config() -> String {
    let receives = format!(
        "[[bridge]]\nname = \"in\"\nchannel = \"t\"\nline = [{{ group = \"{GROUP}\", interface = \"vb0\" }}]\n\
         [bridge.receive]\nfrom = 1\n"
    );
    let (group, server) = ONWARD;
    let sends = format!(
        "[[bridge]]\nname = \"out\"\nchannel = \"t\"\nline = [{{ group = \"{group}\", interface = \"vb0\" }}]\n\
         [bridge.send]\nlinger_ms = 1000\n[bridge.send.repair]\nbind = \"{server}\"\nallow = [\"10.77.0.0/16\"]\n"
    );
    format!("{}{receives}{sends}", channel())
}

/// Runs `bridge promote`. Returns its exit code, its result, and its text for people.
fn promote(hosts: &Hosts, words: &str) -> (i32, Value, String) {
    let running = hosts.shmcast(Host::B, &format!("bridge promote t --json {words}"));
    let log = running.log_path();
    let (code, json) = running.end();
    (code, json, std::fs::read_to_string(log).unwrap())
}

/// Receives up to and including the message with the sequence `last`. Returns all events except messages.
fn events_to(subscriber: &mut Subscriber, last: u64) -> Vec<String> {
    let mut events = Vec::new();
    loop {
        let event = subscriber.recv_deadline(Instant::now() + Duration::from_secs(60)).unwrap();
        match event.unwrap_or_else(|| panic!("no message {last} after {events:?}")) {
            Event::Message(message) if message.sequence == last => return events,
            Event::Message(_) => {}
            Event::NewSession { session } => {
                events.push(format!("session {}", String::from_utf8_lossy(&session)))
            }
            other => events.push(format!("{other:?}")),
        }
    }
}

fn state(hosts: &Hosts, at: usize) -> String {
    bridge_of(hosts, Host::B, at)["state"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn a_promoted_mirror_goes_on_under_a_later_session() {
    let test = "a_promoted_mirror_goes_on_under_a_later_session";
    let Some(mut hosts) = Hosts::at_a_switch(test) else { return };
    // A's channel is a file. The channels of B and C belong to daemons.
    let mut publisher = make_channel(&hosts.channels(Host::A));
    let first =
        hosts.shmcast(Host::A, &format!("bridge send t --to {GROUP} --interface va0 --set send.from=oldest"));
    first.wait_for_log("sending session");
    hosts.use_daemons(true);
    let b = hosts.daemon(Host::B, &config());
    let session = wait_for("the mirror's session", || {
        bridge_of(&hosts, Host::B, 0)["session"].as_str().map(str::to_owned)
    });
    let (group, server) = ONWARD;
    let receive = format!(
        "{}[[bridge]]\nchannel = \"t\"\nline = [{{ group = \"{group}\", interface = \"vc0\" }}]\n\
         [bridge.receive]\nservers = [\"{server}\"]\nfrom = 1\n",
        channel()
    );
    let c = super::daemons::daemon(&hosts, Host::C, &receive);
    (1..=100u64).for_each(|number| assert_eq!(publisher.publish(&number.to_le_bytes()).unwrap(), number));
    let client = Client::at(hosts.socket(Host::B)).unwrap();
    let mut at_b = Subscriber::builder("t").client(&client).start(Start::Oldest).wait(REST).open().unwrap();
    let client_c = Client::at(hosts.socket(Host::C)).unwrap();
    let mut at_c = Subscriber::builder("t").client(&client_c).start(Start::Oldest).wait(REST).open().unwrap();
    let before: Vec<String> = [events_to(&mut at_b, 100), events_to(&mut at_c, 100)].concat();
    assert!(before.iter().all(|event| event.starts_with("session")), "{before:?}");

    // A's packets still arrive, so the promotion is refused.
    let (code, _, said) = promote(&hosts, "");
    assert!(code == 1 && said.contains("was heard") && said.contains("--force"), "{code} {said}");
    assert_eq!((state(&hosts, 0).as_str(), state(&hosts, 1).as_str()), ("running", "running"));
    assert_eq!(publisher.publish(b"still").unwrap(), 101);
    assert_eq!(events_to(&mut at_b, 101), [""; 0], "a refused promotion changes nothing");

    hosts.cut_off(Host::A, true);
    let done = wait_for("a promotion", || {
        std::thread::sleep(PAUSE);
        Some(promote(&hosts, "")).filter(|(code, ..)| *code == 0)
    });
    let done = done.1;
    assert_eq!((done["from"].as_u64(), done["to"].as_u64()), (Some(102), Some(101 + FURTHER)), "{done}");
    let later = done["session"].as_str().unwrap();
    assert!(later > session.as_str(), "{later} {session}");
    assert_eq!(state(&hosts, 0), "promoted");
    let (code, _, said) = promote(&hosts, "--force");
    assert!(code == 1 && said.contains("already"), "{code} {said}");

    // A program of B publishes. Nobody sees the end of the stream.
    let mut local = Publisher::builder("t").client(&client).open().unwrap();
    let next = 102 + FURTHER;
    assert_eq!(local.publish(b"B's").unwrap(), next);
    let events = events_to(&mut at_b, next);
    let gap = format!("Gap {{ from: 102, to: {} }}", 101 + FURTHER);
    assert_eq!(events[..2], [gap, format!("session {later}")], "{events:?}");
    assert!(events[2].starts_with("NewEpoch") && events.len() == 3, "{events:?}");
    let events = events_to(&mut at_c, next);
    eprintln!("{test}: on C {events:?}");
    assert!(events.contains(&format!("session {later}")), "{events:?}");
    let is_gap = |event: &&String| event.starts_with("Gap") && event.contains(&format!("to: {}", next - 1));
    assert_eq!(events.iter().filter(is_gap).count(), 1, "{events:?}");

    // Messages that A sends after its return reach neither B nor C, and the next daemon on B knows of the promotion.
    assert_eq!(publisher.publish(b"A's").unwrap(), 102);
    hosts.cut_off(Host::A, false);
    b.kill();
    let b = hosts.daemon(Host::B, &config());
    wait_for("the bridge that sends on", || (state(&hosts, 1) == "running").then_some(()));
    assert_eq!(state(&hosts, 0), "promoted");
    wait_for("the publisher's attachment", || (local.is_registered() == Some(true)).then_some(()));
    assert_eq!(local.publish(b"more").unwrap(), next + 1);
    for at in [&mut at_b, &mut at_c] {
        let events = events_to(at, next + 1);
        assert!(!events.iter().any(|event| event.starts_with("session")), "{events:?}");
    }
    drop((b, c, first));
}

/// The publisher closes its channel before its host is lost, so the mirror's channel is not open. The daemon opens it while the operator
/// waits. The operator can be the daemon's own user.
#[test]
fn a_mirror_whose_feed_has_ended_is_promoted() {
    let test = "a_mirror_whose_feed_has_ended_is_promoted";
    let Some(mut hosts) = Hosts::at_a_switch(test) else { return };
    let mut publisher = make_channel(&hosts.channels(Host::A));
    let first =
        hosts.shmcast(Host::A, &format!("bridge send t --to {GROUP} --interface va0 --set send.from=oldest"));
    first.wait_for_log("sending session");
    hosts.use_daemons(true);
    let _b = hosts.daemon(Host::B, &config());
    wait_for("the mirror's session", || bridge_of(&hosts, Host::B, 0)["session"].as_str().map(str::to_owned));
    let client = Client::at(hosts.socket(Host::B)).unwrap();
    let mut at_b = Subscriber::builder("t").client(&client).start(Start::Oldest).wait(REST).open().unwrap();
    (1..=100u64).for_each(|number| assert_eq!(publisher.publish(&number.to_le_bytes()).unwrap(), number));
    publisher.close();
    events_to(&mut at_b, 100);
    wait_for("the end of the feed", || {
        let event = at_b.recv_deadline(Instant::now() + Duration::from_secs(1)).unwrap();
        matches!(event, Some(Event::End)).then_some(())
    });
    hosts.cut_off(Host::A, true);
    let (code, done, said) = wait_for("a promotion", || {
        std::thread::sleep(PAUSE);
        Some(promote(&hosts, "")).filter(|(_, _, said)| !said.contains("was heard"))
    });
    assert_eq!((code, done["to"].as_u64()), (0, Some(100 + FURTHER)), "{said}");
    assert_eq!(state(&hosts, 0), "promoted");
    let mut local = Publisher::builder("t").client(&client).open().unwrap();
    let next = 101 + FURTHER;
    assert_eq!(local.publish(b"B's").unwrap(), next);
    let events = events_to(&mut at_b, next);
    let gap = format!("Gap {{ from: 101, to: {} }}", 100 + FURTHER);
    assert_eq!(
        events.iter().filter(|event| event.starts_with("Gap")).collect::<Vec<_>>(),
        [&gap],
        "{events:?}"
    );
    drop(first);
}

/// Without a daemon, `bridge recv` ends first.
#[test]
fn a_channel_of_files_is_promoted_when_its_bridge_has_ended() {
    let test = "a_channel_of_files_is_promoted_when_its_bridge_has_ended";
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let mut publisher = make_channel(&hosts.channels(Host::A));
    let first =
        hosts.shmcast(Host::A, &format!("bridge send t --to {GROUP} --interface va0 --set send.from=oldest"));
    let mirror: Running =
        hosts.shmcast(Host::B, &format!("bridge recv t --from {GROUP} --interface vb0 --set receive.from=1"));
    // Nobody repeats what the bridge has not heard. The bridge listens before it makes the channel, so the test waits for the channel.
    let mut at_b = Subscriber::builder("t")
        .dir(hosts.channels(Host::B))
        .start(Start::Oldest)
        .wait_for_channel(Duration::from_secs(60))
        .open()
        .unwrap();
    publisher.publish(b"1").unwrap();
    events_to(&mut at_b, 1);
    let (code, _, said) = promote(&hosts, "");
    assert!(code == 1 && said.contains("in use by publisher shmcast"), "{code} {said}");
    mirror.kill();
    let (code, done, said) = promote(&hosts, "");
    assert_eq!((code, done["to"].as_u64()), (0, Some(1 + FURTHER)), "{said}");
    let (code, _, said) = promote(&hosts, "");
    assert!(code == 1 && said.contains("it was promoted before and is one of this host"), "{code} {said}");
    let open = || Publisher::builder("t").dir(hosts.channels(Host::B)).open().unwrap();
    assert_eq!(open().publish(&[0; LONGEST]).unwrap(), 2 + FURTHER);

    // This channel was never received from another host.
    drop((first, publisher));
    let running = hosts.shmcast(Host::A, "bridge promote t");
    let log = running.log_path();
    assert_eq!(running.end().0, 1);
    let said = std::fs::read_to_string(log).unwrap();
    assert!(said.contains("no mirror"), "{said}");
}
