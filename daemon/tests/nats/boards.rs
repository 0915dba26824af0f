//! Boards at both ends of a stream. The far end makes a board of its own from the same messages, even when the far end is made anew.

use shmcast::{Publisher, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::nats::{Server, alone};
use shmcast_testkit::{wait_for, wait_until};

/// A key, with the sequence, the count and the payload of its newest message.
type Entry = (Vec<u8>, u64, u64, Vec<u8>);

fn config(server: &Server, bridge: &str) -> String {
    let board = "board = { key = \"0..2\", keys = 64, value = 40, remove_tag = 7 }";
    format!(
        "[limits]\nrequests_per_second = 10000\n{}\n[[bridge]]\nchannel = \"ticks\"\nengine = \"nats\"\n\
         nats = {{ servers = [\"{}\"]{} }}\n{bridge} = {{}}\n",
        channel("ticks", &format!("{FOR_ALL}\n{board}")),
        server.url(),
        if bridge == "send" { ", create = true" } else { "" },
    )
}

/// Waits until a daemon's board has the message before `next`. Returns all keys, and the counts of messages that the board left out.
fn board(daemon: &Daemon, next: u64) -> (Vec<Entry>, [u64; 3]) {
    let client = daemon.client();
    let all = wait_for("the board", || {
        let mut board = Subscriber::builder("ticks").client(&client).open_board().ok()?;
        let entries = board.entries().ok()?;
        let all = entries.map(|entry| {
            let payload = entry.message.map_or_else(Vec::new, |message| message.payload.to_vec());
            (entry.key.to_vec(), entry.sequence, entry.count, payload)
        });
        let all: Vec<Entry> = all.collect();
        (board.counters().through == next - 1).then_some(all)
    });
    let told = client.channel("ticks").unwrap().board.expect("it has a board");
    (all, [told.refused, told.too_large, told.no_key])
}

/// Publishes messages of many keys. Some keys are removed, some messages are too large for the board or have no key, and there are more
/// keys than the board has room for.
fn publish(publisher: &mut Publisher, count: u64) {
    for _ in 0..count {
        let i = publisher.next_sequence();
        let mut payload = (i * i % 211).to_le_bytes()[..2].to_vec();
        let length = match i % 40 {
            0 => 2,
            1 => 1,
            _ => 3 + i as usize % 50,
        };
        payload.resize(length, i as u8);
        let tag = if i.is_multiple_of(33) { 7 } else { 0 };
        publisher.publish_with(&payload, shmcast::Mark { tag, key: false }).unwrap();
    }
}

#[test]
fn a_board_beyond_the_servers_is_the_same_also_when_its_host_is_made_anew() {
    let test = "a_board_beyond_the_servers_is_the_same_also_when_its_host_is_made_anew";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let near = Daemon::start(&config(&server, "send"));
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut publisher, 3_000);
    let mut far = Daemon::start(&config(&server, "receive"));
    let expected = board(&near, publisher.next_sequence());
    let (entries, left_out) = &expected;
    assert!(entries.len() > 50 && entries.iter().any(|entry| entry.2 > 10), "{} keys", entries.len());
    assert!(left_out.iter().all(|count| *count > 0), "{left_out:?}");
    assert_eq!(board(&far, publisher.next_sequence()), expected);
    // The far end's daemon dies. A program keeps the channel's memory, and the next daemon continues the channel.
    let client = far.client();
    let reader = Subscriber::builder("ticks").client(&client).open().unwrap();
    far.kill();
    publish(&mut publisher, 1_000);
    far.restart();
    wait_until("the reader to come back", || reader.is_registered() == Some(true));
    let expected = board(&near, publisher.next_sequence());
    assert_eq!(board(&far, publisher.next_sequence()), expected, "after a restart");
    // The far end is made anew, and reads the whole stream.
    drop(reader);
    drop(far);
    let far = Daemon::start(&config(&server, "receive"));
    assert_eq!(board(&far, publisher.next_sequence()), expected, "made anew");
    publish(&mut publisher, 1_000);
    assert_eq!(board(&far, publisher.next_sequence()), board(&near, publisher.next_sequence()));
}
