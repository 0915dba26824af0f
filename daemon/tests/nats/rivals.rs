//! Two senders of one channel: one writes the stream, and the other one reports that it waits.

use crate::feed::{Bridge, Feed, Pace};
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast_testkit::command::Host as Place;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::nats::{Cluster, Server, alone, program};
use shmcast_testkit::place::free_port;
use shmcast_testkit::turn::turn;
use shmcast_testkit::{wait_for, wait_until};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PACE: Pace =
    Pace { messages: 20_000, ahead: 20_000, pause: Duration::from_millis(2), capacity: 16 << 20 };

/// A little more than the silence after which a waiting sender begins to write.
const SILENCE: Duration = Duration::from_secs(3);

/// A sender with other keys cannot know where the stream ends. It must not write after blocks that it cannot read.
#[test]
fn a_sender_with_other_keys_says_so_and_writes_nothing() {
    let test = "a_sender_with_other_keys_says_so_and_writes_nothing";
    let Some((_turn, dir, server)) = alone(test) else { return };
    let mut feed = Feed::publish(PACE);
    feed.compare(|_| false);
    let keys = ["right.keys", "wrong.keys"].map(|name| dir.path().join(name).display().to_string());
    for file in &keys {
        assert!(feed.near.run(&format!("bridge key new {file}")).status.success());
    }
    let [right, wrong] =
        keys.map(|file| format!("--nats {} --set nats.create=true --set keys={file}", server.url()));
    let mut first = feed.send(&right);
    let mut receive = feed.receive(&right.replace("--set nats.create=true ", ""));
    feed.wait_for(PACE.messages / 4, &mut [&mut first, &mut receive]);
    let mut second = feed.send(&wrong);
    second.wait_for_words("the stream's last block does not open here");
    feed.go_on(PACE.messages / 4, &mut [&mut first, &mut second, &mut receive]);
    // The first sender is gone. The one with other keys does not write because of this silence, but another sender with the first one's
    // keys continues.
    drop(first);
    let entries =
        || feed.near.json(&format!("bridge stream info ticks {} --json", server.url()))["entries"].clone();
    let before = wait_for("a stream at rest", || {
        let seen = entries();
        std::thread::sleep(Duration::from_millis(100));
        (seen == entries()).then_some(seen)
    });
    let began = Instant::now();
    wait_until("a long silence", || {
        second.assert_alive();
        began.elapsed() > SILENCE
    });
    assert_eq!(entries(), before);
    let mut third = feed.send(&right);
    feed.wait_for(PACE.messages + 1, &mut [&mut second, &mut third, &mut receive]);
    let found = feed.near.json(&format!(
        "bridge stream verify ticks {} --json",
        right.replace("--set nats.create=true ", "").replace("--nats ", "")
    ));
    let of = |name: &str| found[name].clone();
    assert_eq!(
        (of("messages"), of("repeated"), of("chain_breaks")),
        (PACE.messages.into(), 0.into(), 0.into())
    );
    let (sent, said) = second.end();
    assert_eq!(
        (&sent["send"]["blocks"], &sent["send"]["is_shut_out"]),
        (&0.into(), &1.into()),
        "{sent} {said}"
    );
    third.end();
    receive.end();
    feed.finish();
}

fn config(http: u16, bridge: &str) -> String {
    format!(
        "[daemon]\nhttp = \"127.0.0.1:{http}\"\n[limits]\nrequests_per_second = 10000\n{}\n{bridge}",
        channel("ticks", FOR_ALL)
    )
}

#[test]
fn a_takeover_of_an_idle_channel_moves_the_writing() {
    let test = "a_takeover_of_an_idle_channel_moves_the_writing";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    moves_the_writing(&server.url());
}

#[test]
#[ignore = "needs three servers: `.ci/run cluster` plays it"]
fn a_takeover_of_three_servers_moves_the_writing() {
    let test = "a_takeover_of_three_servers_moves_the_writing";
    let (_turn, Some(program)) = (turn(), program(test)) else { return };
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::new(program, dir.path());
    let near = Place::new();
    // The servers elect a leader before they make streams.
    wait_until("a stream of three copies", || {
        near.run(&format!("bridge stream create ticks {}", cluster.urls())).status.success()
    });
    moves_the_writing(&cluster.urls());
}

/// Moves the writing to another sender while nothing is published. So the previous sender learns this only from the other sender's own
/// notice.
fn moves_the_writing(nats: &str) {
    let http = free_port();
    let near = Daemon::start(&config(http, ""));
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let mut publish = |count: u64| {
        for n in 0..count {
            publisher.publish(&n.to_be_bytes()).unwrap();
        }
    };
    publish(100);
    let mut first =
        Bridge::start(near.shmcast(&format!(
            "bridge send ticks --set send.from=oldest --set nats.create=true --nats {nats}"
        )));
    first.wait_for_words("sending session");
    let servers = format!("nats = {{ servers = [\"{}\"] }}", nats.replace(',', "\", \""));
    near.configure(&config(
        http,
        &format!(
            "[[bridge]]\nname = \"far\"\nchannel = \"ticks\"\nengine = \"nats\"\n{servers}\nsend = {{}}\n"
        ),
    ));
    near.signal(Signal::SIGHUP);
    let bridge = |what: &str, is_so: &dyn Fn(&Value) -> bool| {
        wait_for(what, || {
            let output = near.shmcast("bridge status --json").output().unwrap();
            let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
            Some(found["bridges"][0]["figures"]["send"].clone()).filter(is_so)
        })
    };
    bridge("a sender that waits", &|send| send["is_fenced"] == 1);
    assert!(near.shmcast("bridge takeover far").status().unwrap().success());
    first.wait_for_words("another bridge writes the stream");
    bridge("a sender that writes", &|send| send["is_fenced"] == 0 && send["stored"] == 101);
    publish(100);
    bridge("all messages", &|send| send["stored"] == 201);
    let verify = format!("bridge stream verify ticks {nats} --json");
    let found: Value = serde_json::from_slice(&near.shmcast(&verify).output().unwrap().stdout).unwrap();
    assert_eq!(
        (&found["messages"], &found["repeated"], &found["chain_breaks"]),
        (&200.into(), &0.into(), &0.into())
    );
    // The first sender has stayed where it is.
    let (sent, said) = first.end();
    assert!(sent["send"]["is_fenced"] == 1 && !said.contains("writing again"), "{sent} {said}");
}

/// Sends as many pulses and requests as the server accepts, all of writers and sessions that do not exist.
fn flood(server: &Server, count: u64) {
    let mut client = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    client.write_all(b"CONNECT {\"verbose\":false}\r\n").unwrap();
    for writer in 0..count {
        let mut words = Vec::new();
        words.extend(b"PUB shmcast.ticks.pulse 16\r\nSHMP\x01\0\0\0");
        words.extend(writer.to_be_bytes());
        words.extend(b"\r\n");
        let large = [0; 100_000];
        let subject = if writer.is_multiple_of(2) { "want" } else { "pulse" };
        if writer.is_multiple_of(64) {
            words.extend(format!("PUB shmcast.ticks.{subject} {}\r\n", large.len()).as_bytes());
            words.extend(large);
            words.extend(b"\r\n");
        }
        if client.write_all(&words).is_err() {
            return;
        }
    }
}

/// The resident memory of a process, in bytes.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

#[test]
fn a_flood_of_pulses_and_requests_costs_neither_memory_nor_the_feed() {
    let test = "a_flood_of_pulses_and_requests_costs_neither_memory_nor_the_feed";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let mut feed = Feed::publish(PACE);
    feed.compare(|_| false);
    let nats = format!("--nats {}", server.url());
    let mut send = feed.send(&format!("{nats} --set nats.create=true"));
    let mut receive = feed.receive(&nats);
    feed.wait_for(PACE.messages / 4, &mut [&mut send, &mut receive]);
    let (before, began) = (resident(send.pid()), Instant::now());
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| flood(&server, 100_000));
        wait_until("the end of the flood", || {
            send.assert_alive();
            assert!(
                resident(send.pid()) < before + (128 << 20),
                "{} bytes, {before} before",
                resident(send.pid())
            );
            flood.is_finished()
        });
    });
    feed.wait_for(PACE.messages + 1, &mut [&mut send, &mut receive]);
    let (sent, _) = send.end();
    let looks = sent["send"]["resyncs_rival"].as_u64().unwrap();
    let most = began.elapsed().as_millis() as u64 / 250 + 2;
    assert!(looks <= most, "{looks} looks, at most {most}: {sent}");
    receive.end();
    feed.finish();
}
