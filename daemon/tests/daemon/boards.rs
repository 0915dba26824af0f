//! Boards of a daemon's channels: through takeovers, generations, reloads and restarts of the daemon.

use shmcast::{Board, ChannelError, Client, Event, Publisher, RecvError, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::{PATIENCE, wait_for, wait_until};
use std::collections::BTreeMap;
use std::time::Instant;

const BOARD: &str = "board = { key = \"0..2\", keys = 8, value = 64, remove_tag = 9 }\n";

fn ticks(mode: &str, board: &str) -> String {
    channel("ticks", &format!("mode = \"{mode}\"\n{FOR_ALL}\n{board}")).replace("16MiB", "64KiB")
}

fn publisher(client: &Client) -> Publisher {
    wait_for("the channel", || match publishing(client, "ticks").open() {
        Ok(publisher) => Some(publisher),
        Err(ChannelError::InUse { .. }) => None,
        Err(e) => panic!("{e}"),
    })
}

fn with_board(client: &Client) -> Subscriber {
    Subscriber::builder("ticks").client(client).start(Start::Board).open().unwrap()
}

fn open_board(client: &Client) -> Board {
    Subscriber::builder("ticks").client(client).open_board().unwrap()
}

/// The board that a reader begins with, by keys, and the sequence that follows it.
fn joined(reader: &mut Subscriber) -> (BTreeMap<String, String>, u64) {
    let (keys, due, missed) = joined_in_part(reader);
    assert_eq!(missed, 0, "the board lacks the bytes of a message");
    (keys, due)
}

/// As [`joined`]. Also returns the number of keys for which the board lacks the message's bytes.
fn joined_in_part(reader: &mut Subscriber) -> (BTreeMap<String, String>, u64, u64) {
    let (mut keys, mut missed) = (BTreeMap::new(), 0);
    loop {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("the board ends") {
            Event::Message(m) => {
                let text = String::from_utf8_lossy(m.payload).into_owned();
                keys.insert(text[..2].to_owned(), text[2..].to_owned());
            }
            Event::Lapped(lapped) => missed += lapped.missed,
            Event::Live { sequence } => return (keys, sequence, missed),
            other => panic!("{other:?}"),
        }
    }
}

fn map<const N: usize>(keys: [(&str, &str); N]) -> BTreeMap<String, String> {
    keys.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn value(board: &mut Board, key: &str) -> Option<String> {
    let entry = board.get(key.as_bytes()).unwrap()?;
    entry.message.map(|m| String::from_utf8_lossy(&m.payload[2..]).into_owned())
}

#[test]
fn a_board_goes_on_with_the_next_publisher_in_both_modes() {
    for mode in ["takeover", "strict"] {
        let daemon = Daemon::start(&ticks(mode, BOARD));
        let client = daemon.client();
        let mut first = publisher(&client);
        for message in ["aa1", "bb1", "aa2", "cc1", "cc"] {
            first.publish(message.as_bytes()).unwrap();
        }
        let mut board = open_board(&client);
        assert_eq!(value(&mut board, "aa").as_deref(), Some("2"), "{mode}");
        let mut early = with_board(&client);
        assert_eq!(joined(&mut early), (map([("aa", "2"), ("bb", "1")]), 6), "{mode}");
        drop(first);
        let mut second = publisher(&client);
        second.publish(b"bb2").unwrap();
        second.publish(b"dd1").unwrap();
        let expected = map([("aa", "2"), ("bb", "2"), ("dd", "1")]);
        assert_eq!(joined(&mut with_board(&client)), (expected.clone(), 8), "{mode}");
        // A program that reads single keys follows the board to the next generation.
        wait_until("the board to follow", || value(&mut board, "dd").as_deref() == Some("1"));
        assert_eq!(value(&mut board, "aa").as_deref(), Some("2"), "{mode}");
        let counted = board.get(b"bb").unwrap().map(|entry| entry.count);
        assert_eq!(counted, Some(2), "{mode}: counts go on");
        // The reader that began with the board follows, too.
        let mut received = Vec::new();
        while received.len() < 2 {
            if let Event::Message(m) = early.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more")
            {
                received.push((m.sequence, m.conflated));
            }
        }
        assert_eq!(received, [(6, None), (7, None)], "{mode}");
        let status = client.channel("ticks").unwrap().board.expect("it has a board");
        assert_eq!((status.keys, status.room, status.through, status.since), (3, 8, 7, 1), "{mode}");
        // Sequences begin again: the keys are gone.
        drop(second);
        let mut third = publishing(&client, "ticks").anew().open().unwrap();
        third.publish(b"zz1").unwrap();
        assert_eq!(joined(&mut with_board(&client)), (map([("zz", "1")]), 2), "{mode}");
        wait_until("the board to follow", || value(&mut board, "zz").as_deref() == Some("1"));
        assert_eq!(value(&mut board, "aa"), None, "{mode}");
    }
}

/// The cut falls among messages of a publisher that still publishes.
#[test]
fn a_board_of_the_next_generation_has_what_was_valid_and_nothing_void() {
    let daemon = Daemon::start(&ticks("strict", BOARD));
    let client = daemon.client();
    for turn in 0..20u64 {
        let mut cut_off = publisher(&client);
        cut_off.publish(format!("ss{turn}").as_bytes()).unwrap();
        let working = std::thread::spawn(move || {
            let mut last = 0;
            for number in 0u64.. {
                match cut_off.publish(format!("ww{number} {turn}").as_bytes()) {
                    Ok(sequence) => last = sequence,
                    Err(_) => break,
                }
            }
            last
        });
        std::thread::sleep(std::time::Duration::from_millis(turn % 5));
        client.take_over("ticks").unwrap();
        let mut next = publisher(&client);
        let first = next.next_sequence();
        let (keys, due, missed) = joined_in_part(&mut with_board(&client));
        assert_eq!(due, first, "turn {turn}");
        assert_eq!(keys.get("ss"), Some(&turn.to_string()), "turn {turn}");
        let mut board = open_board(&client);
        let entry = board.get(b"ww").unwrap();
        assert!(entry.is_none_or(|entry| entry.sequence < first), "turn {turn}: a void message");
        let last = working.join().unwrap();
        // While the daemon had no CPU, the publisher that was cut off might have overwritten the ring. Then the board knows that there was
        // a message, and a reader learns that it misses this message.
        let has_bytes = entry.as_ref().is_some_and(|entry| entry.message.is_some());
        assert_eq!(missed, u64::from(entry.is_some() && !has_bytes), "turn {turn}");
        if let Some(entry) = entry.as_ref().filter(|_| !has_bytes) {
            assert_eq!(entry.sequence, first - 1, "turn {turn}: the last valid one");
        }
        if let Some(entry) = entry.filter(|_| has_bytes) {
            let (_, from) = keys["ww"].split_once(' ').unwrap();
            // All messages of this turn after the first one have this key. Possibly none of them is valid.
            match from.parse() == Ok(turn) {
                true => assert!(entry.sequence == first - 1 && entry.sequence <= last, "turn {turn}"),
                false => assert!(last == 0 || last >= first, "turn {turn}: a valid message is missing"),
            }
        }
        next.publish(b"nn").unwrap();
    }
}

#[test]
fn a_reload_gives_the_next_publisher_a_board_and_takes_it_away() {
    let plain = ticks("takeover", "");
    let daemon = Daemon::start(&plain);
    let client = daemon.client();
    let mut first = publisher(&client);
    first.publish(b"aa1").unwrap();
    let refused = Subscriber::builder("ticks").client(&client).start(Start::Board).open();
    assert!(matches!(refused, Err(ChannelError::NoBoard { .. })));
    daemon.reload(&ticks("takeover", BOARD));
    assert!(client.channel("ticks").unwrap().board.is_none(), "the memory of a live channel stays");
    drop(first);
    let mut second = publisher(&client);
    second.publish(b"bb1").unwrap();
    assert_eq!(joined(&mut with_board(&client)), (map([("bb", "1")]), 3));
    let mut board = open_board(&client);
    assert_eq!(board.counters().since, 2, "what was published before is not on it");
    // A larger board takes over the keys of the smaller one. A board with other keys begins empty.
    drop(second);
    daemon.reload(&ticks("takeover", &BOARD.replace("keys = 8", "keys = 9")));
    let mut third = publisher(&client);
    third.publish(b"cc1").unwrap();
    assert_eq!(joined(&mut with_board(&client)), (map([("bb", "1"), ("cc", "1")]), 4));
    drop(third);
    daemon.reload(&ticks("takeover", &BOARD.replace("0..2", "0..3")));
    let mut fourth = publisher(&client);
    fourth.publish(b"ddd1").unwrap();
    assert_eq!(joined(&mut with_board(&client)), (map([("dd", "d1")]), 5));
    drop(fourth);
    daemon.reload(&plain);
    let mut fifth = publisher(&client);
    fifth.publish(b"ee1").unwrap();
    let refused = Subscriber::builder("ticks").client(&client).conflate().open();
    assert!(matches!(refused, Err(ChannelError::NoBoard { .. })));
    let gone = wait_for("the board to be gone", || board.get(b"bb").err());
    assert_eq!(gone, RecvError::NoBoard);
}

#[test]
fn a_board_outlives_the_daemon_and_a_conflating_reader_follows_the_channel() {
    let mut daemon = Daemon::start(&ticks("takeover", BOARD));
    let client = daemon.client();
    let mut first = publisher(&client);
    first.publish(b"aa1").unwrap();
    let mut slow = Subscriber::builder("ticks").client(&client).conflate().open().unwrap();
    let mut board = open_board(&client);
    daemon.kill();
    first.publish(b"aa2").unwrap();
    assert_eq!(value(&mut board, "aa").as_deref(), Some("2"), "while the daemon is away");
    daemon.restart();
    wait_until("all to be back", || {
        first.is_registered() == Some(true) && slow.is_registered() == Some(true)
    });
    assert_eq!(joined(&mut with_board(&client)), (map([("aa", "2")]), 3));
    for number in 3..5_000 {
        first.publish(format!("aa{number}").as_bytes()).unwrap();
    }
    let mut next = || loop {
        match slow.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more") {
            Event::Message(m) => break (m.sequence, m.conflated),
            Event::End | Event::NewEpoch { .. } | Event::Live { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    // Message 2 was published after it began, and 4,998 in all.
    assert_eq!(next(), (4_999, Some(4_997)));
    drop(first);
    let mut second = publisher(&client);
    second.publish(b"bb1").unwrap();
    assert_eq!(next(), (5_000, None));
}

#[test]
fn a_board_that_is_full_is_told_and_shown() {
    let config = ticks("takeover", &BOARD.replace("keys = 8", "keys = 1"));
    let daemon = Daemon::start(&config);
    let client = daemon.client();
    let mut publisher = publisher(&client);
    for message in ["aa1", "bb1", "bb2", "a"] {
        publisher.publish(message.as_bytes()).unwrap();
    }
    publisher.publish(&[b'a'; 65]).unwrap();
    daemon.wait_for_log(&["event=\"board-full\"", "ticks"]);
    let shown = daemon.shmcast("stat ticks").output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    for fact in
        ["keys on the board", "1 of 1", "no room on the board", "too large for the board", "without a key"]
    {
        assert!(shown.contains(fact), "{fact} is missing:\n{shown}");
    }
}

/// Each publisher of a strict channel gets a new segment, with a board that continues the counts of the last one. So does each publisher
/// after a reload that changes the sizes of the board.
#[test]
fn a_conflating_reader_knows_the_counts_of_a_board_with_other_sizes() {
    for (mode, board) in [
        ("takeover", BOARD.replace("keys = 8", "keys = 9")),
        ("takeover", BOARD.replace("value = 64", "value = 80")),
        ("strict", BOARD.replace("remove_tag = 9", "remove_tag = 8")),
        ("takeover", BOARD.replace("keys = 8", "keys = 5000")),
        ("takeover", BOARD.replace("keys = 8", "keys = 1")),
    ] {
        let daemon = Daemon::start(&ticks(mode, BOARD));
        let client = daemon.client();
        let mut first = publisher(&client);
        let mut slow = Subscriber::builder("ticks").client(&client).conflate().open().unwrap();
        for number in 0..100 {
            first.publish(format!("aa{number}").as_bytes()).unwrap();
        }
        let mut next = || loop {
            match slow.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more") {
                Event::Message(m) => break (m.sequence, m.conflated),
                Event::End | Event::NewEpoch { .. } | Event::Live { .. } => {}
                other => panic!("{other:?}"),
            }
        };
        assert!((1..=100).all(|sequence| next() == (sequence, None)));
        daemon.reload(&ticks(mode, &board));
        drop(first);
        let mut second = publisher(&client);
        for number in 0..5000 {
            second.publish(format!("aa{number}").as_bytes()).unwrap();
        }
        assert_eq!(next(), (5100, Some(4999)), "{mode}: {board}");
    }
}

/// An earlier mistake: the reader's index had the size of the new board, and a search in it never ended.
#[test]
fn a_conflating_reader_of_many_keys_goes_on_with_a_much_smaller_board() {
    const KEYS: u64 = 12_000;
    let with = |keys: u64| {
        let board = BOARD.replace("keys = 8", &format!("keys = {keys}")).replace("0..2", "0..8");
        ticks("takeover", &board).replace("64KiB", "1MiB")
    };
    let daemon = Daemon::start(&with(KEYS));
    let client = daemon.client();
    let mut first = publisher(&client);
    let mut reader =
        Subscriber::builder("ticks").client(&client).start(Start::Board).conflate().open().unwrap();
    let mut next = || loop {
        match reader.recv_deadline(Instant::now() + PATIENCE).unwrap().expect("more") {
            Event::Message(m) => break m.sequence,
            Event::End | Event::NewEpoch { .. } | Event::Live { .. } | Event::Lapped(_) => {}
            other => panic!("{other:?}"),
        }
    };
    let mut publish = |publisher: &mut Publisher, key: u64| {
        let sequence = publisher.publish(format!("{key:08}, and its value").as_bytes()).unwrap();
        assert_eq!(next(), sequence);
    };
    (0..KEYS).for_each(|key| publish(&mut first, key));
    daemon.reload(&with(1_000));
    drop(first);
    let mut second = publisher(&client);
    (0..KEYS).for_each(|key| publish(&mut second, key));
}

/// A key that the old board had is on the new board, even if the ring has newer messages of a key that the old board refused. If the
/// publisher overwrote the old ring before the daemon had read it, the new board begins empty and says since when.
#[test]
fn a_full_board_goes_on_with_the_keys_that_it_had() {
    let one = BOARD.replace("keys = 8", "keys = 1");
    let daemon = Daemon::start(&ticks("strict", &one));
    let client = daemon.client();
    for turn in 0..20u64 {
        let mut cut_off = publisher(&client);
        cut_off.publish(b"aa0").unwrap();
        let working =
            std::thread::spawn(
                move || {
                    while cut_off.publish(b"bb1").is_ok() && cut_off.publish(b"aa1").is_ok() {}
                },
            );
        std::thread::sleep(std::time::Duration::from_millis(turn % 3));
        client.take_over("ticks").unwrap();
        drop(publisher(&client));
        working.join().unwrap();
        let mut board = open_board(&client);
        let keys: Vec<Vec<u8>> = board.entries().unwrap().map(|entry| entry.key.to_vec()).collect();
        let counters = board.counters();
        if keys.is_empty() {
            assert_eq!(counters.since, counters.through + 1, "turn {turn}");
        } else {
            assert_eq!(keys, [b"aa"], "turn {turn}");
        }
    }
}

/// A publisher writes a message after the daemon has given its channel to another. No reader gets this message, and no program that reads
/// single keys.
#[test]
fn a_board_shows_no_message_of_a_publisher_that_was_cut_off() {
    let daemon = Daemon::start(&ticks("strict", BOARD));
    let client = daemon.client();
    let mut board = open_board(&client);
    let mut all = open_board(&client);
    for turn in 0..60u64 {
        let mut cut_off = publisher(&client);
        cut_off.publish(b"ww0").unwrap();
        let (stop, is_over) =
            (std::sync::atomic::AtomicBool::new(false), std::sync::atomic::Ordering::Relaxed);
        std::thread::scope(|threads| {
            threads.spawn(|| while cut_off.publish(b"ww1").is_ok() {});
            let seen = threads.spawn(|| {
                let mut last = 0;
                while !stop.load(is_over) {
                    for _ in 0..20 {
                        last = last.max(board.get(b"ww").unwrap().map_or(0, |entry| entry.sequence));
                    }
                    let entries = all.entries().map(|all| all.map(|entry| entry.sequence).max());
                    last = last.max(entries.ok().flatten().unwrap_or_default());
                }
                last
            });
            std::thread::sleep(std::time::Duration::from_millis(turn % 3));
            client.take_over("ticks").unwrap();
            stop.store(true, is_over);
            let last = seen.join().unwrap();
            let first = publisher(&client).next_sequence();
            assert!(last < first, "turn {turn}: message {last} is void, because message {first} is to come");
        });
    }
}
