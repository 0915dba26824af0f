//! `shmcast record` beside a daemon whose channel changes: a takeover, reloads that change its mode, its sizes, its schema and its clock,
//! reloads that remove and add it, and a daemon without its memory. Each published message is in the journal, or a loss is named. Each time
//! is found in the right ring.

use nix::sys::signal::Signal;
use shmcast::journal::{Entry, Streams};
use shmcast::{Client, Event, History, Publisher, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, publishing};
use shmcast_testkit::{PATIENCE, Process, scratch, wait_for, wait_until};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

fn config(more: &str) -> String {
    format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = \"4MiB\"\nmlock = false\nhugepages = false\n{FOR_ALL}\n{more}\n"
    )
}

/// All payloads in all streams of a journal's directory, and the number of lost messages.
fn recorded(dir: &Path) -> (BTreeSet<u64>, u64) {
    let (mut all, mut lost) = (BTreeSet::new(), 0);
    let Ok(streams) = Streams::open(dir) else { return (all, 0) };
    for journal in streams.into_journals() {
        if journal.files().is_empty() {
            continue;
        }
        let mut reader = journal.read_from(1).unwrap();
        while let Some(entry) = reader.next().unwrap() {
            match entry {
                Entry::Message(message) => {
                    let number = u64::from_le_bytes(message.payload.try_into().unwrap());
                    assert!(all.insert(number), "{number} is recorded twice");
                }
                Entry::Lost(loss) => lost += loss.to + 1 - loss.from,
                _ => {}
            }
        }
    }
    (all, lost)
}

struct Scene {
    daemon: Daemon,
    number: u64,
}

impl Scene {
    fn publish(&mut self, publisher: &mut Publisher, count: u64) {
        for _ in 0..count {
            self.number += 1;
            publisher.publish(&self.number.to_le_bytes()).unwrap();
        }
    }

    fn open(&self) -> Publisher {
        let client: Client = self.daemon.client();
        wait_for("the channel", || publishing(&client, "ticks").open().ok())
    }
}

fn wait_until_recorded(dir: &Path, numbers: u64, at: &str) {
    let mut last = 0;
    let begun = Instant::now();
    while last < numbers {
        assert!(begun.elapsed() < PATIENCE, "{at}: {last} of {numbers} are recorded");
        std::thread::sleep(Duration::from_millis(20));
        last = recorded(dir).0.len() as u64;
    }
    assert_eq!(recorded(dir), ((1..=numbers).collect(), 0), "{at}");
}

#[test]
fn a_recording_follows_its_channel_through_every_change() {
    let room = scratch();
    let dir = room.path().join("journal");
    let strict = config("mode = \"strict\"");
    let mut scene = Scene { daemon: Daemon::start(&strict), number: 0 };
    let words = format!("record ticks --to {} --set file=1MiB --wait-channel", dir.display());
    let mut recorder = Process::start(&mut scene.daemon.shmcast(&words));
    let mut publisher = scene.open();
    scene.publish(&mut publisher, 100);
    wait_until_recorded(&dir, 100, "the beginning");
    let client = scene.daemon.client();
    // The channel is taken over: the first publisher's late messages are void.
    assert!(scene.daemon.shmcast("takeover ticks").output().unwrap().status.success());
    let mut second = scene.open();
    assert!(publisher.publish(b"too late").is_err());
    scene.publish(&mut second, 100);
    wait_until_recorded(&dir, 200, "a takeover");
    second.close();
    for (what, changed) in [
        ("schema", config("mode = \"strict\"\nschema_id = 7\nschema = \"other\"")),
        ("clock", config("mode = \"strict\"\nclock = \"monotonic\"\nschema_id = 7\nschema = \"other\"")),
        ("sizes", config("mode = \"strict\"\nmax_message = 100000\nclock = \"monotonic\"")),
        ("mode", config("clock = \"monotonic\"")),
        ("mode again", config("mode = \"strict\"\nclock = \"monotonic\"")),
    ] {
        scene.daemon.reload(&changed);
        let mut publisher = scene.open();
        scene.publish(&mut publisher, 100);
        wait_until_recorded(&dir, scene.number, what);
        publisher.close();
    }
    assert!(recorder.is_alive(), "the recorder has ended");
    // The channel is removed and added again. Its new stream is in a folder of its own.
    scene.daemon.reload("");
    wait_until("the removal", || client.channel("ticks").is_err());
    scene.daemon.reload(&strict);
    let mut publisher = scene.open();
    scene.publish(&mut publisher, 100);
    wait_until_recorded(&dir, scene.number, "removed and added");
    // The daemon loses its memory.
    drop(publisher);
    scene.daemon.kill();
    std::fs::remove_dir_all(scene.daemon.dir().join("run")).unwrap();
    scene.daemon.restart();
    let mut publisher = scene.open();
    scene.publish(&mut publisher, 100);
    wait_until_recorded(&dir, scene.number, "a daemon without its memory");
    assert!(recorder.is_alive(), "the recorder has ended");
    // A recorder in an empty directory records the ring's messages, and names the earlier ones as lost.
    let other = room.path().join("other");
    let words = format!("record ticks --to {} --set file=1MiB", other.display());
    let late = Process::start(&mut scene.daemon.shmcast(&words));
    scene.publish(&mut publisher, 50);
    wait_until("the late recorder", || recorded(&other).0.contains(&scene.number));
    let (numbers, lost) = recorded(&other);
    assert_eq!((numbers.len() as u64, lost), (150, 0), "all of the present ring");
    drop(late);
    recorder.end_by(Signal::SIGTERM);
}

/// A recorder in an empty directory records the ring's messages, and names those that the ring had already lost.
#[test]
fn a_recorder_made_anew_has_the_ring_and_names_the_rest() {
    for mode in ["takeover", "strict"] {
        let room = scratch();
        let dir = room.path().join("journal");
        let small = config(&format!("mode = \"{mode}\"")).replace("4MiB", "64KiB");
        let mut scene = Scene { daemon: Daemon::start(&small), number: 0 };
        let words = format!("record ticks --to {} --set file=1MiB", dir.display());
        let mut publisher = scene.open();
        let recorder = Process::start(&mut scene.daemon.shmcast(&words));
        scene.publish(&mut publisher, 100);
        wait_until_recorded(&dir, 100, mode);
        recorder.kill();
        std::fs::remove_dir_all(&dir).unwrap();
        // These messages fill several rings.
        scene.publish(&mut publisher, 10_000);
        let recorder = Process::start(&mut scene.daemon.shmcast(&words));
        let newest = scene.number;
        wait_until("the late recorder", || recorded(&dir).0.contains(&newest));
        let (numbers, lost) = recorded(&dir);
        let oldest = *numbers.first().unwrap();
        assert!(oldest > 1, "{mode}: the ring was overtaken");
        assert_eq!((numbers, lost), ((oldest..=newest).collect(), oldest - 1), "{mode}");
        scene.publish(&mut publisher, 50);
        let newest = scene.number;
        wait_until("the next messages", || recorded(&dir).0.contains(&newest));
        assert_eq!(recorded(&dir), ((oldest..=newest).collect(), oldest - 1), "{mode}");
        drop(recorder);
    }
}

/// Rings of different schemas and clocks follow one another. A time is found in the ring that was in use at that time.
#[test]
fn a_time_is_found_whatever_clock_its_ring_has() {
    let room = scratch();
    let dir = room.path().join("journal");
    let mut scene = Scene { daemon: Daemon::start(&config("mode = \"strict\"")), number: 0 };
    let words = format!("record ticks --to {} --set file=1MiB --wait-channel", dir.display());
    let _recorder = Process::start(&mut scene.daemon.shmcast(&words));
    let mut times = Vec::new();
    for more in
        ["", "\nclock = \"monotonic\"", "\nschema_id = 7\nschema = \"other\"", "\nclock = \"monotonic\""]
    {
        scene.daemon.reload(&config(&format!("mode = \"strict\"{more}")));
        std::thread::sleep(Duration::from_millis(20));
        times.push(SystemTime::now());
        let mut publisher = scene.open();
        scene.publish(&mut publisher, 100);
        wait_until_recorded(&dir, scene.number, more);
        publisher.close();
    }
    let client = scene.daemon.client();
    for (time, before) in times.iter().zip((0u64..).step_by(100)) {
        let builder = Subscriber::builder("ticks").client(&client).start(Start::Time(*time));
        let mut reader = builder.history(History::Dir(dir.clone())).open().unwrap();
        let number = wait_for("a message of that time", || {
            match reader.recv_deadline(Instant::now() + Duration::from_secs(1)).unwrap() {
                Some(Event::Message(message)) => {
                    Some(u64::from_le_bytes(message.payload.try_into().unwrap()))
                }
                _ => None,
            }
        });
        assert_eq!(number, before + 1, "{time:?}");
    }
}
