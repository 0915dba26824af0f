//! Servers that are away for longer than the ring lasts, or that are far away.

use crate::feed::{Feed, LOOK, Pace, Sizes};
use nix::sys::signal::Signal;
use shmcast::journal::Journal;
use shmcast_bridge::proto::session::Session;
use shmcast_engine::proto::want::{Want, Wanted};
use shmcast_testkit::PATIENCE;
use shmcast_testkit::nats::{Relay, alone};
use shmcast_testkit::wait_until;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The ring holds less than half of these messages. Most of them are published while the servers are away.
const SMALL: Pace =
    Pace { messages: 150_000, ahead: u64::MAX / 2, pause: Duration::from_micros(500), capacity: 8 << 20 };

/// The limit for messages that are published and not yet recorded. The ring holds far more.
const LAG: u64 = 20_000;

#[test]
fn what_the_ring_cannot_keep_through_an_outage_is_a_gap_with_both_ends() {
    let test = "what_the_ring_cannot_keep_through_an_outage_is_a_gap_with_both_ends";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let is_away = Arc::new(AtomicBool::new(false));
    let gate = is_away.clone();
    let mut feed = Feed::publish_while(SMALL, Sizes::Short, move |_| gate.load(Ordering::Relaxed));
    // Chance decides which messages are lost. The reader checks that nothing else is wrong.
    feed.compare(|_| true);
    let nats = server.url();
    let mut send = feed.send(&format!("--nats {nats} --set nats.create=true --set nats.history=false"));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    feed.wait_for(5_000, &mut [&mut send, &mut receive]);
    server.kill();
    is_away.store(true, Ordering::Relaxed);
    let near = feed.near.dir.path().join("channels");
    let published = || shmcast::Subscriber::builder("ticks").dir(&near).open().unwrap().next_sequence();
    wait_until("the end of the messages", || published() > SMALL.messages);
    server.start();
    feed.wait_for(SMALL.messages + 1, &mut [&mut send, &mut receive]);
    let (sent, _) = send.end();
    let (received, _) = receive.end();
    let missed = sent["send"]["messages_missed"].as_u64().unwrap();
    assert!(missed > 0 && received["receive"]["messages_missing"] == missed, "{sent} {received}");
    feed.finish();
}

#[test]
fn a_journal_mends_an_outage_longer_than_the_ring() {
    let test = "a_journal_mends_an_outage_longer_than_the_ring";
    let Some((_turn, dir, mut server)) = alone(test) else { return };
    let journal = dir.path().join("journal");
    let is_away = Arc::new(AtomicBool::new(false));
    // The recorder is never lapped, however busy the machine is.
    let (gate, recorded) = (is_away.clone(), journal.clone());
    let is_recorded = move |sequence: u64| {
        let has = |journal: Journal| journal.read_from(sequence).ok()?.next().ok()?.map(drop);
        Journal::open(&recorded).ok().and_then(has).is_some()
    };
    let is_close = move |next: u64| next <= LAG || is_recorded(next - LAG);
    let may_go_on = move |next: u64| gate.load(Ordering::Relaxed) && is_close(next);
    let mut feed = Feed::publish_while(SMALL, Sizes::Short, may_go_on);
    feed.compare(|_| false);
    let record = format!("record ticks --to {}", journal.display());
    let record = feed.near.start(&record);
    let nats = server.url();
    wait_until("a journal", || journal.exists());
    let mut send =
        feed.send(&format!("--nats {nats} --set nats.create=true --set nats.history={}", journal.display()));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    feed.wait_for(5_000, &mut [&mut send, &mut receive]);
    server.kill();
    is_away.store(true, Ordering::Relaxed);
    let near = feed.near.dir.path().join("channels");
    let published = || shmcast::Subscriber::builder("ticks").dir(&near).open().unwrap().next_sequence();
    wait_until("the end of the messages", || published() > SMALL.messages);
    server.start();
    feed.wait_for(SMALL.messages + 1, &mut [&mut send, &mut receive]);
    let (sent, _) = send.end();
    assert_eq!(sent["send"]["messages_missed"], 0, "{sent}");
    record.kill();
    feed.finish();
}

#[test]
fn a_long_way_that_breaks_again_and_again_loses_nothing() {
    let test = "a_long_way_that_breaks_again_and_again_loses_nothing";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let relay = Relay::new(server.port, Duration::from_millis(80));
    let pace = Pace { messages: 40_000, ahead: 20_000, pause: Duration::from_millis(2), capacity: 16 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = format!("nats://127.0.0.1:{}", relay.port);
    let mut send = feed.send(&format!("--nats {nats} --set nats.create=true"));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    feed.wait_for(2_000, &mut [&mut send, &mut receive]);
    for _ in 0..4 {
        feed.go_on(5_000, &mut [&mut send, &mut receive]);
        relay.cut();
    }
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    assert!(feed.seen.load(Ordering::Relaxed) == pace.messages + 1);
    let (sent, _) = send.end();
    assert!(sent["send"]["disconnects"].as_u64().unwrap() > 0, "{sent}");
    feed.finish();
}

/// An earlier mistake: a receiver reported that it waits, and then ended with an error.
#[test]
fn a_receiver_that_waits_for_its_stream_waits_for_its_servers_too() {
    let test = "a_receiver_that_waits_for_its_stream_waits_for_its_servers_too";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let pace = Pace { messages: 100, ahead: 1_000, pause: Duration::ZERO, capacity: 8 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = format!("--nats {}", server.url());
    let mut receive = feed.receive(&nats);
    receive.wait_for_words("there is no stream");
    server.kill();
    receive.wait_for_words("Connection refused");
    server.start();
    let mut send = feed.send(&format!("{nats} --set nats.create=true"));
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    feed.finish();
}

/// The time for which a server has stood still when a sender is told to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stands {
    /// The time is short: blocks are on their way, and the sender does not know that the server stands still.
    NotLong,
    /// The time is seconds: the sender has given up its connection, and looks for another one.
    ForSeconds,
}

/// An earlier mistake: a sender did not end, because the thread with its connection waited for answers that it did not accept.
#[test]
fn a_sender_ends_though_its_server_stands_still() {
    let test = "a_sender_ends_though_its_server_stands_still";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let pace = Pace { messages: 1 << 40, ahead: 20_000, pause: Duration::from_millis(2), capacity: 16 << 20 };
    let published = Arc::new(AtomicU64::new(0));
    let looked = published.clone();
    let mut feed = Feed::publish_while(pace, Sizes::Short, move |sequence| {
        looked.store(sequence, Ordering::Relaxed);
        true
    });
    feed.compare(|_| false);
    let nats = format!("--nats {}", server.url());
    let sends = format!("{nats} --set nats.create=true --set nats.history=false");
    for stands in [Stands::NotLong, Stands::ForSeconds] {
        let mut send = feed.send(&sends);
        let mut receive = feed.receive(&nats);
        // The previous sender cannot have stored so many messages.
        feed.go_on(30_000, &mut [&mut send, &mut receive]);
        receive.end();
        server.pause();
        let seen_at_most = published.load(Ordering::Relaxed) + LOOK;
        wait_until("messages that the server has not seen are published", || {
            // The publisher does not wait for a receiver that has ended.
            feed.seen.fetch_add(LOOK, Ordering::Relaxed);
            published.load(Ordering::Relaxed) > seen_at_most
        });
        if stands == Stands::ForSeconds {
            send.wait_for_words("broke");
        }
        let (sent, said) = send.end();
        assert!(sent["send"]["stored"].as_u64() > Some(0), "{stands:?}: {sent}");
        assert!(said.contains("NOT STORED"), "{stands:?}: {said}");
        server.signal(Signal::SIGCONT);
    }
    // A sender that is just starting has no counters to report.
    server.pause();
    feed.send(&sends).end_at_the_start();
    server.signal(Signal::SIGCONT);
    feed.finish();
}

/// An earlier mistake: each request for unpublished messages delayed the messages by 200 ms.
#[test]
fn requests_for_what_is_not_published_yet_hold_nothing_up() {
    let test = "requests_for_what_is_not_published_yet_hold_nothing_up";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let pace = Pace { messages: 20_000, ahead: 10_000, pause: Duration::from_millis(5), capacity: 16 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = server.url();
    let mut send = feed.send(&format!("--nats {nats} --set nats.create=true"));
    let mut receive = feed.receive(&format!("--nats {nats}"));
    feed.wait_for(2_000, &mut [&mut send, &mut receive]);
    let far = shmcast::Subscriber::builder("ticks").dir(feed.far.dir.path().join("channels"));
    let session = Session::from_bytes(far.open().unwrap().remote_session().unwrap());
    // The sender has message 1. An answer for it shows that the sender has handled all earlier requests.
    let known = Want { session, first: 1, wanted: Wanted::Exact(0) }.encode();
    let known = [&b"PUB shmcast.ticks.want _INBOX.asker 32\r\n"[..], &known, b"\r\n"].concat();
    let want = Want { session, first: 1 << 40, wanted: Wanted::Exact(0) }.encode();
    let mut asker = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    asker.write_all(b"CONNECT {\"verbose\":false}\r\nSUB _INBOX.asker 1\r\n").unwrap();
    asker.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let request = [&b"PUB shmcast.ticks.want _INBOX.nobody 32\r\n"[..], &want, b"\r\n"].concat();
    // If the sender answered to the stream's own subject, the stream would store the answer.
    let there = Want { session, first: 1, wanted: Wanted::Exact(0) }.encode();
    let forged = [&b"PUB shmcast.ticks.want shmcast.ticks 32\r\n"[..], &there, b"\r\n"].concat();
    let request = [request, forged].concat().repeat(10);
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The requests continue for longer than the test waits for messages, but not for ever, so that the test can fail.
            let (begun, mut answers, mut buffer) = (Instant::now(), 0, [0; 1 << 16]);
            while begun.elapsed() < 2 * PATIENCE && (answers < 3 || !enough.load(Ordering::Relaxed)) {
                asker.write_all(&[&request[..], &known].concat()).unwrap();
                let size = asker.read(&mut buffer).unwrap_or(0);
                answers += buffer[..size].windows(16).filter(|part| part == b"MSG _INBOX.asker").count();
            }
            assert!(answers >= 3, "the sender does not answer");
        });
        feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
        enough.store(true, Ordering::Relaxed);
    });
    let (sent, _) = send.end();
    assert!(sent["send"]["wanted"].as_u64().unwrap() > 10, "{sent}");
    let stored = feed.near.json(&format!("bridge stream verify ticks {nats} --json"));
    assert_eq!((&stored["repeated"], &stored["chain_breaks"]), (&0.into(), &0.into()), "{stored}");
    feed.finish();
}
