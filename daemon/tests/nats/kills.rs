//! All messages are compared while the bridges, their rivals and the servers are killed.

use crate::feed::{Feed, Pace, Sizes};
use crate::{kills, messages};
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast_testkit::nats::{Cluster, Server, alone, program};
use shmcast_testkit::turn::turn;
use shmcast_testkit::{wait_for, wait_until};
use std::time::Duration;

/// The number of kills of each end.
const KILLS: u64 = 5;
/// The number of messages that go through the log between two kills.
const STEP: u64 = 10_000;
const FAST: Pace = Pace { messages: 60_000, ahead: 20_000, pause: Duration::ZERO, capacity: 16 << 20 };
const SLOW: Pace = Pace { pause: Duration::from_millis(2), ..FAST };

#[test]
fn messages_of_up_to_a_mebibyte_are_the_same_at_the_far_end() {
    let test = "messages_of_up_to_a_mebibyte_are_the_same_at_the_far_end";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let pace = Pace { messages: messages(FAST.messages), ..FAST };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = server.url();
    let mut send = feed.send(&format!("--nats {nats} --set nats.create=true"));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    let (sent, _) = send.end();
    assert_eq!(sent["send"]["stored"], pace.messages + 1, "{sent}");
    let (received, _) = receive.end();
    let count = |name: &str| received["receive"][name].as_u64().unwrap();
    assert_eq!((count("messages_published"), count("repeated"), count("holes")), (pace.messages, 0, 0));
    let found = feed.near.json(&format!("bridge stream verify ticks {nats} --json"));
    assert_eq!(found["messages"], pace.messages, "{found}");
    feed.finish();
}

#[test]
fn either_end_is_killed_and_every_message_comes_once() {
    let test = "either_end_is_killed_and_every_message_comes_once";
    let pace = Pace { messages: messages(STEP * kills(KILLS)), ..SLOW };
    ends_are_killed(test, pace, Sizes::Short);
}

#[test]
#[ignore = "a soak of some minutes"]
fn either_end_is_killed_in_a_million_messages_of_up_to_a_mebibyte() {
    let test = "either_end_is_killed_in_a_million_messages_of_up_to_a_mebibyte";
    let pace = Pace { messages: messages(1_000_000), ahead: 3_000, capacity: 64 << 20, ..FAST };
    ends_are_killed(test, pace, Sizes::Wide);
}

/// Kills each end in turn, and sometimes both, at places that are spread over the messages. Afterwards the log has each message once.
fn ends_are_killed(test: &str, pace: Pace, sizes: Sizes) {
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let mut feed = Feed::publish_sized(pace, sizes);
    feed.compare(|_| false);
    let nats = server.url();
    let mut send = feed.send(&format!("--nats {nats} --set nats.create=true"));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    let kills = kills(KILLS);
    for kill in 1..=kills {
        let place = |half| 1 + pace.messages * (2 * kill - half) / (2 * kills + 1);
        feed.wait_for(place(1), &mut [&mut send, &mut receive]);
        send.kill_and_restart();
        if kill % 4 > 0 {
            feed.wait_for(place(0), &mut [&mut send, &mut receive]);
        }
        receive.kill_and_restart();
    }
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    let found = feed.near.json(&format!("bridge stream verify ticks {nats} --json"));
    println!("{kills} kills of each end: {found}");
    assert_eq!((&found["messages"], &found["repeated"]), (&pace.messages.into(), &0.into()), "{found}");
    assert_eq!(found["chain_breaks"], 0, "{found}");
    drop((send, receive));
    feed.finish();
}

#[test]
fn two_writers_never_write_the_same_twice() {
    let Some((_turn, _dir, server)) = alone("two_writers_never_write_the_same_twice") else { return };
    let pace = SLOW;
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = server.url();
    let mut writers = [
        feed.send(&format!("--nats {nats} --set nats.create=true")),
        feed.send(&format!("--nats {nats} --set nats.create=true")),
    ];
    let mut receive = feed.receive(&format!("--nats {nats}"));
    let [first, second] = &mut writers;
    for turn in 0..6 {
        feed.go_on(2_000, &mut [first, second, &mut receive]);
        // The stopped sender believes that it still owns the log. Meanwhile the other sender owns it.
        let stopped = if turn % 2 == 0 { &*first } else { &*second };
        stopped.pause();
        feed.go_on(2_000, &mut [&mut receive]);
        stopped.resume();
    }
    feed.wait_for(pace.messages + 1, &mut [first, second, &mut receive]);
    let found = feed.near.json(&format!("bridge stream verify ticks {nats} --json"));
    assert_eq!((&found["messages"], &found["repeated"]), (&pace.messages.into(), &0.into()), "{found}");
    assert_eq!(found["chain_breaks"], 0, "{found}");
    feed.finish();
}

/// The parts of a test with three servers in a cluster.
struct Three {
    cluster: Cluster,
    feed: Feed,
    nats: String,
    _dir: tempfile::TempDir,
}

fn three(test: &str, pace: Pace) -> Option<Three> {
    let program = program(test)?;
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(program, dir.path());
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = cluster.urls();
    // The servers elect a leader before they make streams.
    wait_until("a stream of three copies", || {
        feed.near.run(&format!("bridge stream create ticks {nats}")).status.success()
    });
    Some(Three { cluster, feed, nats, _dir: dir })
}

/// Returns the leader, after both other servers have everything that it has. A server that still catches up cannot take its place.
fn leader(three: &Three) -> String {
    let mut leader = None;
    wait_until("a leader with two whole copies", || {
        let output = three.feed.near.run(&format!("bridge stream info ticks {} --json", three.nats));
        let info: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        if info["lagging"].as_array().is_none_or(|lagging| !lagging.is_empty()) {
            return false;
        }
        leader = info["leader"].as_str().filter(|name| !name.is_empty()).map(str::to_owned);
        leader.is_some()
    });
    leader.unwrap()
}

#[test]
#[ignore = "takes half a minute: `.ci/run cluster` plays it"]
fn leaders_of_three_servers_are_killed_stopped_and_emptied() {
    let test = "leaders_of_three_servers_are_killed_stopped_and_emptied";
    let _turn = turn();
    let rounds = kills(1);
    let pace = Pace { messages: 2 * STEP * (rounds + 3), ..SLOW };
    let Some(mut three) = three(test, pace) else { return };
    let mut send = three.feed.send(&format!("--nats {}", three.nats));
    let mut receive = three.feed.receive(&format!("--nats {}", three.nats));
    three.feed.go_on(STEP, &mut [&mut send, &mut receive]);
    for _ in 0..rounds {
        let name = leader(&three);
        three.cluster.named(&name).kill();
        three.feed.go_on(STEP, &mut [&mut send, &mut receive]);
        three.cluster.named(&name).start();
    }
    println!("killed {rounds} leaders");
    // A server stands still until another one leads.
    let name = leader(&three);
    three.cluster.named(&name).signal(Signal::SIGSTOP);
    three.feed.go_on(STEP, &mut [&mut send, &mut receive]);
    three.cluster.named(&name).signal(Signal::SIGCONT);
    three.feed.go_on(STEP, &mut [&mut send, &mut receive]);
    println!("stopped a leader");
    // A server comes back without the data that it had stored.
    let name = leader(&three);
    three.cluster.named(&name).kill();
    three.cluster.named(&name).empty();
    three.cluster.named(&name).start();
    three.feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    let (sent, _) = send.end();
    println!("sent: {}", sent["send"]);
    let (received, _) = receive.end();
    println!("received: {}", received["receive"]);
    // The servers might not have elected a leader yet.
    let verify = format!("bridge stream verify ticks {} --json", three.nats);
    let found: Value = wait_for("a stream that can be read", || {
        let output = three.feed.near.run(&verify);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    });
    assert_eq!(found["messages"], pace.messages, "{found}");
    three.feed.finish();
}

/// Each end is killed, stopped and restarted with three servers. Each server is restarted, and two servers are away for longer than an
/// election can take. Both ends report that the feed stands still, and continue when the servers are back.
#[test]
#[ignore = "takes a minute: `.ci/run cluster` plays it"]
fn bridges_of_three_servers_are_killed_stopped_and_restarted() {
    const PART: u64 = 2_000;
    let test = "bridges_of_three_servers_are_killed_stopped_and_restarted";
    let _turn = turn();
    let pace = Pace { messages: 16 * PART, ahead: 2 * PART, ..SLOW };
    let Some(mut three) = three(test, pace) else { return };
    let nats = format!("--nats {}", three.nats);
    let mut send = three.feed.send(&nats);
    let mut receive = three.feed.receive(&nats);
    three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    send.kill_and_restart();
    three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    receive.kill_and_restart();
    three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    for is_sender in [true, false] {
        let stopped = if is_sender { &send } else { &receive };
        stopped.pause();
        std::thread::sleep(Duration::from_millis(200));
        stopped.resume();
        three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    }
    send.end();
    send = three.feed.send(&nats);
    three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    receive.end();
    receive = three.feed.receive(&nats);
    three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    for at in 0..3 {
        leader(&three);
        three.cluster.servers[at].end();
        three.cluster.servers[at].start();
        three.feed.go_on(PART, &mut [&mut send, &mut receive]);
    }
    leader(&three);
    three.cluster.servers[..2].iter_mut().for_each(Server::kill);
    for end in [&mut send, &mut receive] {
        end.wait_for_words("THE FEED STANDS STILL");
        end.wait_for_words("What is published waits in the ring");
    }
    three.cluster.servers[..2].iter_mut().for_each(Server::start_soon);
    three.feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    let verify = format!("bridge stream verify ticks {} --json", three.nats);
    let found: Value = wait_for("a stream that can be read", || {
        let output = three.feed.near.run(&verify);
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    });
    assert_eq!((&found["messages"], &found["repeated"]), (&pace.messages.into(), &0.into()), "{found}");
    three.feed.finish();
}
