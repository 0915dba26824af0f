//! Channels of a daemon that are made anew while their messages are on the way to the servers. No message comes under another session, and
//! none is missing.

use crate::feed::Bridge;
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::nats::{Server, alone};
use shmcast_testkit::place::free_port;
use shmcast_testkit::{REST, wait_for, wait_until};

/// A daemon with the channel, and with a bridge if `bridge` has one.
fn daemon(server: &Server, bridge: &str) -> Daemon {
    let head = format!(
        "[[bridge]]\nname = \"far\"\nchannel = \"ticks\"\nengine = \"nats\"\nnats = {{ servers = [\"{}\"]",
        server.url()
    );
    let bridge = if bridge.is_empty() { String::new() } else { format!("{head}{bridge}") };
    Daemon::start(&format!(
        "[daemon]\nhttp = \"127.0.0.1:{}\"\n[limits]\nrequests_per_second = 10000\n{}\n{bridge}",
        free_port(),
        channel("ticks", FOR_ALL)
    ))
}

fn payload(life: u8, sequence: u64) -> Vec<u8> {
    let mut payload = vec![life; 100];
    payload[..8].copy_from_slice(&sequence.to_be_bytes());
    payload
}

fn publish(publisher: &mut Publisher, life: u8, count: u64) {
    for _ in 0..count {
        let next = publisher.next_sequence();
        publisher.publish(&payload(life, next)).unwrap();
    }
}

fn send(near: &Daemon, server: &Server) -> Bridge {
    let to = format!("--nats {} --set nats.create=true --set send.from=oldest", server.url());
    Bridge::start(near.shmcast(&format!("bridge send ticks {to}")))
}

/// Waits until the stream has this many messages. Each is there once.
fn wait_for_stored(near: &Daemon, server: &Server, count: u64, bridges: &mut [&mut Bridge]) {
    let verify = format!("bridge stream verify ticks {} --json", server.url());
    let mut found = Value::Null;
    wait_until("all to be stored", || {
        bridges.iter_mut().for_each(|bridge| bridge.assert_alive());
        found = serde_json::from_slice(&near.shmcast(&verify).output().unwrap().stdout).unwrap_or_default();
        found["messages"] == count
    });
    assert_eq!((&found["repeated"], &found["gaps"]), (&0.into(), &serde_json::json!([])), "{found}");
}

/// An earlier mistake: after the outage, messages of the new channel went into the stream under the session of the earlier one.
#[test]
fn a_channel_made_anew_during_an_outage_keeps_its_sessions_apart() {
    let test = "a_channel_made_anew_during_an_outage_keeps_its_sessions_apart";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let near =
        daemon(&server, ", create = true, in_flight = 1, block_bytes = 1024 }\nsend = { from = \"oldest\" }");
    let far = daemon(&server, " }\nreceive = {}");
    let sent = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        wait_until(what, || {
            let output = near.shmcast("bridge status --json").output().unwrap();
            let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            is_so(&found["bridges"][0]["figures"]["send"])
        });
    };
    let mut first = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut first, 1, 3);
    sent("the first messages", &|send| send["stored"] == 4);
    server.signal(Signal::SIGSTOP);
    publish(&mut first, 1, 50);
    sent("a silence", &|send| send["resyncs_silent"].as_u64() > Some(0));
    first.leave_open();
    let mut second = publishing(&near.client(), "ticks").anew().open().unwrap();
    publish(&mut second, 2, 1_000);
    server.signal(Signal::SIGCONT);
    let client = far.client();
    let mut reader = wait_for("the channel", || {
        Subscriber::builder("ticks").client(&client).start(Start::Oldest).wait(REST).open().ok()
    });
    let (mut life, mut due) = (1, 1);
    wait_until("both sessions", || {
        while let Some(event) = reader.try_recv().unwrap() {
            match event {
                Event::Message(message) => {
                    let expected = payload(life, due);
                    assert_eq!((message.sequence, message.payload), (due, &expected[..]));
                    due += 1;
                }
                Event::Restarted => {
                    assert_eq!((life, due), (1, 54), "the earlier session has come to its end");
                    (life, due) = (2, 1);
                }
                Event::Gap { .. } | Event::Lapped(_) => panic!("{event:?}"),
                _ => {}
            }
        }
        (life, due) == (2, 1_001)
    });
}

/// An earlier mistake: messages that were read and not in a block yet were dropped when the channel was made anew.
#[test]
fn the_last_messages_of_a_channel_are_stored_though_it_is_made_anew() {
    let test = "the_last_messages_of_a_channel_are_stored_though_it_is_made_anew";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let near = daemon(&server, "");
    let mut first = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut first, 1, 3);
    let mut sends = send(&near, &server);
    wait_for_stored(&near, &server, 3, &mut [&mut sends]);
    sends.pause();
    publish(&mut first, 1, 100);
    first.leave_open();
    let mut second = publishing(&near.client(), "ticks").anew().open().unwrap();
    publish(&mut second, 2, 10);
    sends.resume();
    wait_for_stored(&near, &server, 113, &mut [&mut sends]);
}

/// An earlier mistake: the sender that waited ended with the error of two publishers.
#[test]
fn a_sender_that_waits_stays_when_its_channel_is_made_anew() {
    let test = "a_sender_that_waits_stays_when_its_channel_is_made_anew";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let near = daemon(&server, "");
    let mut first = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut first, 1, 3);
    let mut writes = send(&near, &server);
    wait_for_stored(&near, &server, 3, &mut [&mut writes]);
    let mut waits = send(&near, &server);
    waits.wait_for_words("another bridge writes the stream");
    first.leave_open();
    let mut second = publishing(&near.client(), "ticks").anew().open().unwrap();
    publish(&mut second, 2, 10);
    wait_for_stored(&near, &server, 13, &mut [&mut writes, &mut waits]);
    drop(writes);
    publish(&mut second, 2, 10);
    wait_for_stored(&near, &server, 23, &mut [&mut waits]);
}
