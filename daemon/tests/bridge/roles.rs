//! The processes that are no bridges: a publisher and readers. They know the content of every message.

use serde_json::{Value, json};
use shmcast::{Client, Event, Publisher, Start, Subscriber, Wait};
use shmcast_testkit::place::program;
use shmcast_testkit::process::my_role;
use shmcast_testkit::wait_until;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// Length of the longest message in bytes.
pub const LONGEST: usize = 1_378;

/// Writes the message with this number. Sizes are mixed, and no two messages are alike. Returns the size.
pub fn write_message(sequence: u64, buffer: &mut [u8; LONGEST]) -> usize {
    let mut rng = fastrand::Rng::with_seed(sequence);
    // Most are small, some as long as fits a packet, some empty.
    let size = match rng.u8(0..10) {
        0 => rng.usize(0..=LONGEST),
        1 => 0,
        _ => rng.usize(8..200),
    };
    rng.fill(&mut buffer[..size]);
    size
}

/// Microseconds since 1970.
pub fn wall_us() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
}

/// Waits until the next half second of the clock has begun. A session that begins then has a later epoch than all before it.
pub fn next_epoch() {
    let epoch = || wall_us() * 1_000 / shmcast::hosting::STREAM_STEP_NS;
    let now = epoch();
    wait_until("the next half second", || epoch() > now);
}

pub fn play() {
    let Some(role) = my_role() else { return };
    let words: Vec<&str> = role.split_whitespace().collect();
    let (role, words) = words.split_first().unwrap();
    match *role {
        "publish" => {
            publish(words[0].parse().unwrap(), words[1].parse().unwrap(), words.get(2).map(Path::new))
        }
        "publish-recorded" => publish_recorded(Path::new(words[0])),
        "read" => read(words[0].parse().unwrap()),
        "publish-native" => super::native::publish(),
        "read-native" => super::native::read(),
        "relay" => super::relay::run(words),
        "hear" => super::hear::run(words),
        "flood" => super::flood::run(words),
        "forge" => super::forger::run(words),
        other => panic!("no role {other:?}"),
    }
}

pub const CAPACITY: u64 = 16 << 20;

pub fn make_channel(dir: &Path) -> Publisher {
    make_channel_of(dir, CAPACITY)
}

pub fn make_channel_of(dir: &Path, capacity: u64) -> Publisher {
    let builder = Publisher::builder("t").dir(dir).capacity(capacity).max_message(LONGEST as u64);
    builder.open().unwrap()
}

/// A client of the host's daemon, if it has one.
pub fn client() -> Option<Client> {
    let socket = std::env::var_os("SHMCAST_SOCKET")?;
    Some(Client::at(socket).unwrap())
}

/// Publishes up to and including sequence `last`, or until the file `enough` exists, `rate` messages a second in bursts. Then closes the
/// channel, and prints the number of messages.
fn publish(last: u64, rate: u64, enough: Option<&Path>) {
    let builder = Publisher::builder("t");
    let builder = match client() {
        Some(client) => builder.client(&client),
        None => builder,
    };
    let mut publisher = builder.open().unwrap();
    let (started, first) = (Instant::now(), publisher.next_sequence());
    let mut buffer = [0; LONGEST];
    while publisher.next_sequence() <= last {
        let sequence = publisher.next_sequence();
        if sequence.is_multiple_of(1_024) && enough.is_some_and(Path::exists) {
            break;
        }
        let size = write_message(sequence, &mut buffer);
        publisher.publish(&buffer[..size]).unwrap();
        let due = started + Duration::from_nanos((sequence - first) * 1_000_000_000 / rate);
        let early = due.saturating_duration_since(Instant::now());
        if early > Duration::from_micros(200) {
            std::thread::sleep(early);
        }
    }
    println!("\n{}", json!({ "published": publisher.next_sequence() - 1 }));
    publisher.close();
}

/// The number of messages after which the publisher waits for the recorder and the bridge. The smallest ring here holds twice as many.
const STEP: u64 = 2_000;

/// Publishes until the file `enough` exists, and waits for the daemon's recorder and its first bridge after each [`STEP`].
fn publish_recorded(enough: &Path) {
    let client = client().expect("a daemon");
    let mut publisher = Publisher::builder("t").client(&client).open().unwrap();
    let mut buffer = [0; LONGEST];
    while !enough.exists() {
        for _ in 0..STEP {
            let size = write_message(publisher.next_sequence(), &mut buffer);
            publisher.publish(&buffer[..size]).unwrap();
        }
        let next = publisher.next_sequence();
        let written = || client.channel("t").ok()?.journal.map(|journal| journal.written + 1);
        wait_until("the recorder", || written() >= Some(next));
        wait_until("the bridge", || sent_by_the_daemon() >= Some(next));
    }
    println!("\n{}", json!({ "published": publisher.next_sequence() - 1 }));
    publisher.close();
}

/// The sequence after the last message that this host's daemon has sent over its first bridge.
fn sent_by_the_daemon() -> Option<u64> {
    let output = Command::new(program("shmcast")).args(["bridge", "status", "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    status.pointer("/bridges/0/figures/send/next_sequence")?.as_u64()
}

/// Reads to the end and checks every message. Prints its figures.
fn read(last: u64) {
    let wait = Wait::Sleep(Duration::from_micros(200));
    let patience = Duration::from_secs(60);
    let builder = Subscriber::builder("t").start(Start::Oldest).wait(wait).wait_for_channel(patience);
    let builder = match client() {
        Some(client) => builder.client(&client),
        None => builder,
    };
    let mut subscriber = builder.open().unwrap();
    eprintln!("reading");
    let (mut received, mut gap_messages, mut lapped, mut epochs) = (0u64, 0u64, 0u64, 0u64);
    let (mut sessions, mut gaps) = (Vec::new(), Vec::new());
    let mut next = 1;
    let mut buffer = [0; LONGEST];
    let mut idle_since = Instant::now();
    // Pauses between two messages that are longer than the reader's own wait, each with the time of its end.
    let mut pauses = Vec::new();
    while next <= last {
        let deadline = Instant::now() + Duration::from_secs(1);
        let Some(event) = subscriber.recv_deadline(deadline).unwrap() else {
            assert!(idle_since.elapsed() < Duration::from_secs(60), "nothing for a minute, next is {next}");
            continue;
        };
        if received > 0 && idle_since.elapsed() > Duration::from_millis(1) {
            pauses.push([idle_since.elapsed().as_micros() as u64, wall_us()]);
        }
        idle_since = Instant::now();
        match event {
            Event::Message(message) => {
                assert_eq!(message.sequence, next, "after {received} messages");
                let size = write_message(next, &mut buffer);
                assert!(message.payload == &buffer[..size], "message {next} is another");
                (received, next) = (received + 1, next + 1);
            }
            Event::Gap { from, to } => {
                assert_eq!(from, next);
                (gap_messages, next) = (gap_messages + to - from + 1, to + 1);
                gaps.push([from, to]);
            }
            Event::Lapped(loss) => {
                assert_eq!(loss.resumed_at, next + loss.missed);
                (lapped, next) = (lapped + loss.missed, loss.resumed_at);
            }
            Event::NewEpoch { .. } => epochs += 1,
            Event::NewSession { session } => sessions.push(String::from_utf8_lossy(&session).into_owned()),
            Event::End => break,
            other => panic!("{other:?} at {next}"),
        }
    }
    pauses.sort_unstable_by(|a, b| b.cmp(a));
    pauses.truncate(2_000);
    println!(
        "\n{}",
        json!({
            "pauses_us": pauses, "received": received, "gap_messages": gap_messages, "lapped": lapped, "epochs": epochs,
            "sessions": sessions, "gaps": gaps, "next": next,
        })
    );
}
