//! Bridges that take a gate. Servers and bridges that stand still or die delay the publisher no longer than the gate allows. A bridge that
//! waits for another bridge does not delay the publisher.

use crate::feed::Bridge;
use nix::sys::signal::Signal;
use shmcast::{Event, Gate, GateState, PublishError, Publisher, Subscriber};
use shmcast_testkit::command::Host;
use shmcast_testkit::nats::{Server, alone};
use shmcast_testkit::{wait_for, wait_until};
use std::time::Duration;

/// Opens the channel with a gate that refuses.
fn publisher(host: &Host) -> Publisher {
    let gate = Gate::new("wan").lag_percent(50).wait(Duration::from_millis(1)).refuse();
    let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels"));
    builder.capacity(1 << 20).max_message(1000).gate(gate).open().unwrap()
}

fn send(host: &Host, server: &Server, more: &str) -> Bridge {
    let to = format!("--nats {} --set nats.create=true --set send.from=oldest", server.url());
    Bridge::start(host.shmcast(&format!("bridge send ticks {to} {more}")))
}

fn state(publisher: &Publisher) -> GateState {
    publisher.gates()[0].state
}

/// Publishes the next message, whose payload is its sequence. Returns whether the gate let the message through.
fn publish(publisher: &mut Publisher) -> bool {
    let mut payload = [0; 500];
    payload[..8].copy_from_slice(&publisher.next_sequence().to_be_bytes());
    match publisher.try_publish(&payload) {
        Ok(_) => true,
        Err(PublishError::Full { gate, .. }) => {
            assert_eq!(gate.as_str(), "wan");
            false
        }
        Err(other) => panic!("{other}"),
    }
}

/// Publishes until the gate refuses a message, or as many messages as the ring holds. Returns their number.
fn publish_some(publisher: &mut Publisher) -> usize {
    (0..2_000).take_while(|_| publish(publisher)).count()
}

/// Waits until the gate has this state. A publisher checks its gates once per quarter of the permitted lag.
fn wait_for_state(publisher: &mut Publisher, wanted: GateState) {
    wait_until(&format!("a gate that is {wanted}"), || {
        (0..10).take_while(|_| publish(publisher)).count();
        state(publisher) == wanted
    });
}

/// Waits until a bridge has the gate, and then publishes until the gate is in force. Before that, the publisher does not wait for the
/// bridge.
fn wait_for_force(host: &Host, publisher: &mut Publisher) {
    wait_until("a reader of the gate", || {
        let shown = host.json("stat ticks --json");
        shown["gates"][0]["reader"]["pid"].is_number()
    });
    wait_for_state(publisher, GateState::InForce);
}

/// Publishes until the gate refuses several messages in a row.
fn fill(publisher: &mut Publisher) {
    let mut refused = 0;
    wait_until("a publisher that is held up", || {
        refused = if publish_some(publisher) > 0 { 0 } else { refused + 1 };
        refused > 20
    });
}

/// Waits until the servers have all published messages, and compares the counts.
fn check_all_stored(host: &Host, server: &Server, publisher: &Publisher) {
    let published = publisher.next_sequence() - 1;
    let verify = format!("bridge stream verify ticks {} --json", server.url());
    let mut found = serde_json::Value::Null;
    wait_until("all to be stored", || {
        let output = host.run(&verify);
        found = serde_json::from_slice(&output.stdout).unwrap_or_default();
        assert_ne!(found["gaps"].as_array().map(|gaps| !gaps.is_empty()), Some(true), "{found}");
        found["messages"] == published
    });
    assert_eq!((&found["repeated"], &found["gaps"]), (&0.into(), &serde_json::json!([])), "{found}");
}

#[test]
fn a_server_or_a_bridge_that_stands_still_holds_the_publisher_up_and_nothing_is_lost() {
    let test = "a_server_or_a_bridge_that_stands_still_holds_the_publisher_up_and_nothing_is_lost";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let host = Host::new();
    let mut publisher = publisher(&host);
    let window = "--set send.gate=wan --set nats.in_flight=4 --set nats.block_bytes=4096";
    let mut sends = send(&host, &server, window);
    sends.wait_for_words("sending session");
    wait_for_force(&host, &mut publisher);
    // The server acknowledges nothing, and then dies. When it comes back, it has the messages that it acknowledged.
    server.signal(Signal::SIGSTOP);
    fill(&mut publisher);
    assert_eq!(state(&publisher), GateState::InForce);
    server.signal(Signal::SIGCONT);
    wait_until("room", || publish(&mut publisher));
    check_all_stored(&host, &server, &publisher);
    server.kill();
    fill(&mut publisher);
    server.start();
    wait_until("room", || publish(&mut publisher));
    check_all_stored(&host, &server, &publisher);
    // A stopped bridge delays the publisher in the same way. A killed bridge frees the publisher, and the next bridge takes the gate.
    sends.pause();
    fill(&mut publisher);
    sends.resume();
    wait_until("room", || publish(&mut publisher));
    check_all_stored(&host, &server, &publisher);
    let missed = sends.end().0["send"]["messages_missed"].clone();
    assert_eq!(missed, 0);
    wait_for_state(&mut publisher, GateState::Absent);
    let mut sends = send(&host, &server, window);
    // Before that, the bridge looks in the stream for its place. Its gate can be in force until it goes back there.
    sends.wait_for_words("sending session");
    wait_for_force(&host, &mut publisher);
    sends.pause();
    fill(&mut publisher);
    let before = publisher.next_sequence();
    sends.kill_and_restart();
    wait_for_force(&host, &mut publisher);
    assert!(publisher.next_sequence() >= before);
    check_all_stored(&host, &server, &publisher);
    let missed = sends.end().0["send"]["messages_missed"].clone();
    assert_eq!(missed, 0);
}

#[test]
fn a_bridge_that_waits_for_another_writer_lets_its_gate_go() {
    let test = "a_bridge_that_waits_for_another_writer_lets_its_gate_go";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let mut publisher = publisher(&host);
    let mut first = send(&host, &server, "");
    first.wait_for_words("sending session");
    publish(&mut publisher);
    check_all_stored(&host, &server, &publisher);
    let mut second = send(&host, &server, "--set send.gate=wan");
    second.wait_for_words("another bridge writes the stream");
    wait_for_state(&mut publisher, GateState::Absent);
    // The second bridge waits, and the first one has no gate. So far more messages are published than the ring holds.
    for _ in 0..5_000 {
        assert!(publish(&mut publisher));
    }
    second.assert_alive();
    drop(first);
    wait_for_force(&host, &mut publisher);
    second.wait_for_words("writing again");
    second.pause();
    fill(&mut publisher);
    second.resume();
    wait_until("room", || publish(&mut publisher));
    second.end();
}

/// Reads what there is before message `until`, in order and without a gap. Returns the message that is expected next.
fn read(reader: &mut Subscriber, mut next: u64, until: u64) -> u64 {
    while next < until
        && let Some(event) = reader.try_recv().unwrap()
    {
        match event {
            Event::Message(message) => {
                assert_eq!((message.sequence, &message.payload[..8]), (next, &next.to_be_bytes()[..]));
                next += 1;
            }
            Event::NewSession { .. } | Event::NewEpoch { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    next
}

/// An earlier mistake: the first message that a gate refused ended the receiving bridge, and the stream of every reader. Another one: a
/// bridge that a signal stopped said nothing of the messages that it held.
#[test]
fn a_gate_that_refuses_keeps_the_messages_of_a_received_channel_at_the_servers() {
    let test = "a_gate_that_refuses_keeps_the_messages_of_a_received_channel_at_the_servers";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let (near, far) = (Host::new(), Host::new());
    let mut publisher = publisher(&near);
    let mut sends = send(&near, &server, "--set send.gate=wan");
    sends.wait_for_words("sending session");
    let channel = "--capacity 64KiB --set max_message=1000 --set gate.g.then=refuse --set gate.g.wait=10s";
    let receive =
        || Bridge::start(far.shmcast(&format!("bridge recv ticks --nats {} {channel}", server.url())));
    let mut receives = receive();
    let reader = || Subscriber::builder("ticks").dir(far.dir.path().join("channels"));
    let mut slow = wait_for("the channel", || reader().gate("g").open().ok());
    let mut other = reader().open().unwrap();
    // The readers attach before the first message is published, so both get all messages.
    wait_for_force(&near, &mut publisher);
    let (mut slows, mut others) = (1, 1);
    while publisher.next_sequence() <= 5_000 {
        publish(&mut publisher);
        others = read(&mut other, others, u64::MAX);
    }
    receives.wait_for_words("gate g of the channel holds the messages up");
    others = read(&mut other, others, u64::MAX);
    assert!(others < 1_000, "{others} messages passed a reader that reads nothing");
    let (report, said) = receives.end();
    let held = &report["receive"]["messages_held"];
    assert!(held.as_u64() > Some(0), "{report}");
    let words = format!("{held} received messages are not published: gate g holds them up");
    assert!(said.contains(&words), "{said}");
    let receives = receive();
    wait_until("all messages at both readers", || {
        others = read(&mut other, others, u64::MAX);
        // The bridge laps a reader without a gate if this one is ahead.
        slows = read(&mut slow, slows, others);
        (slows, others) == (5_001, 5_001)
    });
    let report = receives.end().0;
    assert_eq!(report["receive"]["messages_missing"], 0, "{report}");
    sends.end();
}
