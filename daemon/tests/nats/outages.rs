//! Servers that are away for longer than the ring lasts, or far away.

use crate::feed::{Feed, Pace};
use crate::server::{Relay, alone};
use shmcast_bridge::proto::session::Session;
use shmcast_engine::proto::want::Want;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The ring holds less than half of these messages.
const SMALL: Pace =
    Pace { messages: 300_000, ahead: u64::MAX / 2, pause: Duration::from_micros(500), capacity: 16 << 20 };

#[test]
fn what_the_ring_cannot_keep_through_an_outage_is_a_gap_with_both_ends() {
    let test = "what_the_ring_cannot_keep_through_an_outage_is_a_gap_with_both_ends";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let mut feed = Feed::publish(SMALL);
    // Which are lost depends on the moment. The reader checks that nothing else is wrong.
    feed.compare(|_| true);
    let nats = format!("--nats {}", server.url());
    let mut send = feed.send(&format!("{nats} --create --no-history"));
    let mut receive = feed.receive(&nats);
    feed.wait_for(5_000, &mut [&mut send, &mut receive]);
    server.kill();
    let near = feed.near.dir.path().join("channels");
    let published = || shmcast::Subscriber::builder("ticks").dir(&near).open().unwrap().next_sequence();
    crate::cli_support::wait_until("the end of the messages", || published() > SMALL.messages);
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
    let mut feed = Feed::publish(SMALL);
    feed.compare(|_| false);
    let journal = dir.path().join("journal");
    let record = format!("record ticks --to {}", journal.display());
    let mut record = feed.near.shmcast(&record).spawn().unwrap();
    let nats = format!("--nats {}", server.url());
    crate::cli_support::wait_until("a journal", || journal.exists());
    let mut send = feed.send(&format!("{nats} --create --history {}", journal.display()));
    let mut receive = feed.receive(&nats);
    feed.wait_for(5_000, &mut [&mut send, &mut receive]);
    server.kill();
    std::thread::sleep(Duration::from_secs(4));
    server.start();
    feed.wait_for(SMALL.messages + 1, &mut [&mut send, &mut receive]);
    let (sent, _) = send.end();
    assert_eq!(sent["send"]["messages_missed"], 0, "{sent}");
    record.kill().unwrap();
    record.wait().unwrap();
    feed.finish();
}

#[test]
fn a_long_way_that_breaks_again_and_again_loses_nothing() {
    let test = "a_long_way_that_breaks_again_and_again_loses_nothing";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let relay = Relay::new(server.port, Duration::from_millis(80));
    let pace = Pace { messages: 100_000, ahead: 50_000, pause: Duration::from_millis(5), capacity: 64 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = format!("--nats nats://127.0.0.1:{}", relay.port);
    let mut send = feed.send(&format!("{nats} --create"));
    let mut receive = feed.receive(&nats);
    feed.wait_for(2_000, &mut [&mut send, &mut receive]);
    for _ in 0..4 {
        std::thread::sleep(Duration::from_millis(900));
        relay.cut();
    }
    feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
    assert!(feed.seen.load(Ordering::Relaxed) == pace.messages + 1);
    let (sent, _) = send.end();
    assert!(sent["send"]["disconnects"].as_u64().unwrap() > 0, "{sent}");
    feed.finish();
}

/// Each request for what is not published yet once held the messages up for 200 ms.
#[test]
fn requests_for_what_is_not_published_yet_hold_nothing_up() {
    let test = "requests_for_what_is_not_published_yet_hold_nothing_up";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let pace = Pace { messages: 60_000, ahead: 30_000, pause: Duration::from_millis(5), capacity: 64 << 20 };
    let mut feed = Feed::publish(pace);
    feed.compare(|_| false);
    let nats = format!("--nats {}", server.url());
    let mut send = feed.send(&format!("{nats} --create"));
    let mut receive = feed.receive(&nats);
    feed.wait_for(2_000, &mut [&mut send, &mut receive]);
    let far = shmcast::Subscriber::builder("ticks").dir(feed.far.dir.path().join("channels"));
    let session = Session::from_bytes(far.open().unwrap().remote_session().unwrap());
    let want = Want { session, first: 1 << 40, offset: 0 }.encode();
    let mut asker = TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    asker.write_all(b"CONNECT {\"verbose\":false}\r\n").unwrap();
    let request = [&b"PUB shmcast.ticks.want nobody 32\r\n"[..], &want, b"\r\n"].concat();
    let enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // A minute at most, so that the test can fail.
            for _ in 0..6_000 {
                if enough.load(Ordering::Relaxed) {
                    break;
                }
                asker.write_all(&request.repeat(10)).unwrap();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        feed.wait_for(pace.messages + 1, &mut [&mut send, &mut receive]);
        enough.store(true, Ordering::Relaxed);
    });
    let (sent, _) = send.end();
    assert!(sent["send"]["wanted"].as_u64().unwrap() > 10, "{sent}");
    feed.finish();
}
