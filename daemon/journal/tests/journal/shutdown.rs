//! Power cuts of a real file system: an ext4 that stops taking anything at once, its own journal included, and is mounted again.
//!
//! `SHMCAST_SHUTDOWNS` sets how often.

use shmcast::journal::{Entry, Journal};
use shmcast::{History, Publisher, Start, Subscriber};
use shmcast_journal::Recorder;
use shmcast_journal::core::{Settings, SyncPolicy};
use shmcast_testkit::disk::Disk;
use shmcast_testkit::journal::read;
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{Process, number, role, skip, wait_until};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

fn payload(sequence: u64) -> Vec<u8> {
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.resize(8 + (sequence % 400) as usize, sequence as u8);
    bytes
}

/// So many messages are in the ring at once, however long a machine takes to mount a disk.
const MOST: u64 = 150_000;

/// Publishes until it is stopped, or the ring is nearly full. The ring holds all of it.
struct Feed {
    stop: Arc<AtomicBool>,
    published: Arc<AtomicU64>,
    thread: JoinHandle<Publisher>,
}

impl Feed {
    fn start(mut publisher: Publisher) -> Self {
        let (stop, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (ended, count) = (stop.clone(), published.clone());
        let thread = std::thread::spawn(move || {
            while !ended.load(Ordering::Relaxed) && publisher.next_sequence() <= MOST {
                for _ in 0..50 {
                    let sequence = publisher.next_sequence();
                    publisher.publish(&payload(sequence)).unwrap();
                    count.store(sequence, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(1));
            }
            publisher
        });
        Self { stop, published, thread }
    }
}

fn subscriber(channels: &Path) -> Subscriber {
    let builder = Subscriber::builder("t").dir(channels).start(Start::Oldest);
    builder.history(History::Never).open().unwrap()
}

fn settings(each: bool) -> Settings {
    let sync = if each { SyncPolicy::Each } else { SyncPolicy::Interval(Duration::from_millis(5)) };
    Settings { sync, file_bytes: 1 << 20, ..Settings::default() }
}

/// A recorder in a process of its own, which says at each moment what is durable.
#[test]
#[ignore = "a role that the test here starts a process for"]
fn play() {
    let Some(sync) = my_role() else { return skip("play", "started by other tests only") };
    let (room, is_each) = (my_dir(), sync == "each");
    let recorder =
        Recorder::start(&room.join("disk/t"), subscriber(&room.join("channels")), settings(is_each)).unwrap();
    loop {
        println!("durable {}", recorder.progress().durable);
        sleep(Duration::from_micros(500));
    }
}

fn recorder(disk: &Disk, is_each: bool) -> Process {
    let mut command = role!(if is_each { "each" } else { "interval" });
    Process::start(in_dir(&mut command, disk.room()).stdout(Stdio::piped()).stderr(Stdio::null()))
}

/// What a recorder says to be durable.
struct Heard {
    durable: Arc<AtomicU64>,
    thread: JoinHandle<()>,
}

impl Heard {
    /// Takes in what the recorder says, until it ends.
    fn of(recorder: &mut Process) -> Self {
        let said = BufReader::new(recorder.child().stdout.take().unwrap());
        let durable = Arc::new(AtomicU64::new(0));
        let most = durable.clone();
        let thread = std::thread::spawn(move || {
            for line in said.lines() {
                // It may be killed within a line.
                let told = line.ok().and_then(|line| line.strip_prefix("durable ")?.parse().ok());
                most.fetch_max(told.unwrap_or(0), Ordering::Relaxed);
            }
        });
        Self { durable, thread }
    }

    /// The most that it said in its life, which is over.
    fn end(self) -> u64 {
        self.thread.join().unwrap();
        self.durable.load(Ordering::Relaxed)
    }
}

/// The last sequence up to which the journal has every message, as it stands on the disk.
fn whole_up_to(dir: &Path) -> u64 {
    let Ok(journal) = Journal::open(dir) else { return 0 };
    let mut reader = journal.read_from(1).unwrap();
    let mut last = 0;
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(message) => {
                assert_eq!((message.sequence, message.payload), (last + 1, &payload(last + 1)[..]));
                last += 1;
            }
            Entry::Lost(_) => break,
            _ => {}
        }
    }
    last
}

#[test]
fn what_was_durable_is_there_when_a_file_system_goes_down() {
    let test = "what_was_durable_is_there_when_a_file_system_goes_down";
    let Some(mut disk) = Disk::make() else {
        return skip(test, "no ext4 can be made in a file and mounted here");
    };
    let turns = number("SHMCAST_SHUTDOWNS", 4);
    let (mut trailed, mut most) = (0, 0);
    for turn in 0..turns {
        let builder = Publisher::builder("t").dir(disk.channels()).capacity(64 << 20);
        let feed = Feed::start(builder.open().unwrap());
        let mut child = recorder(&disk, turn % 2 == 0);
        let heard = Heard::of(&mut child);
        // Most go down after something was durable, and some at any moment.
        if turn % 4 != 3 {
            wait_until("something durable", || heard.durable.load(Ordering::Relaxed) > 0);
        }
        sleep(Duration::from_millis(fastrand::u64(0..200)));
        if !disk.cut() {
            return skip(test, "no python3, or the kernel refuses to shut an ext4 down");
        }
        // It goes on for a moment with a disk that is gone, and must not take anything for durable.
        sleep(Duration::from_millis(fastrand::u64(0..30)));
        drop(child);
        let durable = heard.end();
        assert!(disk.mount_again(), "turn {turn}: mounting the disk again");
        let found = whole_up_to(&disk.path().join("t"));
        assert!(found >= durable, "turn {turn}: {durable} was durable, and {found} is there");
        // The ring has what the disk lost, so the next recorder completes the journal.
        feed.stop.store(true, Ordering::Relaxed);
        drop(feed.thread.join().unwrap());
        let published = feed.published.load(Ordering::Relaxed);
        Recorder::start(&disk.path().join("t"), subscriber(&disk.channels()), settings(true))
            .unwrap()
            .stop()
            .unwrap();
        let journal = read(&disk.path().join("t"));
        assert_eq!(journal.losses(), [], "turn {turn}");
        let messages = journal.messages();
        assert!(messages.iter().all(|(sequence, bytes)| *bytes == payload(*sequence)), "turn {turn}");
        assert_eq!(messages.len() as u64, published, "turn {turn}");
        (trailed, most) = (trailed + u64::from(durable > 0), most.max(durable));
        std::fs::remove_dir_all(disk.path().join("t")).unwrap();
        std::fs::remove_dir_all(disk.channels()).unwrap();
    }
    println!(
        "{turns} file systems went down; {trailed} times something was durable, {most} messages at most"
    );
    assert!(trailed > 0, "nothing ever was durable");
}
