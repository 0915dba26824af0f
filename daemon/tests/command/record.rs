//! `shmcast record` as a process: killed, and ended by signals.

use shmcast::journal::Journal;
use shmcast::{Directory, Event, Gate, History, Mark, Publisher, RecvError, Start, Subscriber};
use shmcast_testkit::command::interrupt;
use shmcast_testkit::journal::read;
use shmcast_testkit::place::program;
use shmcast_testkit::{Process, number, skip, wait_until};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;

fn command(channels: &Path, journal: &Path, more: &[&str]) -> Command {
    let mut command = Command::new(program("shmcast"));
    // Each check of the journal reads its files, and a file of the usual size is allocated whole. So the files are small.
    command.args(["record", "ticks", "--set", "file=1MiB", "--dir"]).arg(channels);
    command.arg("--to").arg(journal).args(more);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn record(channels: &Path, journal: &Path, more: &[&str]) -> Process {
    Process::start(&mut command(channels, journal, more))
}

fn end(recorder: Process) -> Output {
    interrupt(&recorder);
    recorder.output()
}

fn payload(sequence: u64) -> Vec<u8> {
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.resize(8 + (sequence % 200) as usize, sequence as u8);
    bytes
}

fn kills() -> u32 {
    number("SHMCAST_KILLS", 20)
}

/// A recorder is killed again and again while it records. The ring still has the messages that were not written, so no message is missing,
/// and none is there twice.
#[test]
fn a_killed_recorder_loses_nothing() {
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut publisher = Publisher::builder("ticks").dir(channels.path()).capacity(64 << 20).open().unwrap();
    let (stop, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let feed = {
        let (stop, published) = (stop.clone(), published.clone());
        std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..20 {
                    let sequence = published.load(Ordering::Relaxed) + 1;
                    publisher.publish(&payload(sequence)).unwrap();
                    published.store(sequence, Ordering::Relaxed);
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    };
    let mut random = 1u64;
    for turn in 0..kills() {
        let sync = ["10ms", "each", "none"][turn as usize % 3];
        let child = record(channels.path(), journal.path(), &["--sync", sync]);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_micros(2_000 + (random >> 33) % 120_000));
        child.kill();
    }
    stop.store(true, Ordering::Relaxed);
    feed.join().unwrap();
    let child = record(channels.path(), journal.path(), &["--json"]);
    // A recorder that is told to end takes the messages in the ring, and then seals its file.
    wait_until("everything on disk", || {
        read(journal.path()).messages().len() as u64 == published.load(Ordering::Relaxed)
    });
    let output = end(child);
    assert!(output.status.success(), "{output:?}");
    let said: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let last = published.load(Ordering::Relaxed);
    assert_eq!(said["durable"], last, "{said}");
    let found = read(journal.path());
    assert_eq!((found.losses(), found.sealed), (vec![], found.files));
    let messages = found.messages();
    assert_eq!(messages.len() as u64, last);
    assert!(
        messages.iter().zip(1..).all(|((sequence, bytes), due)| *sequence == due && *bytes == payload(due))
    );
}

/// A lapped reader reads what a running recorder has written. While the recorder stands still, the reader waits. Only from the recorder
/// does the reader learn which messages are lost.
#[test]
fn a_lapped_reader_waits_for_the_recorder_that_runs() {
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut publisher = Publisher::builder("ticks").dir(channels.path()).capacity(64 << 10).open().unwrap();
    let child = record(channels.path(), journal.path(), &[]);
    wait_until("the recorder's lock", || Journal::open(journal.path()).is_ok_and(|it| it.is_recording()));
    // A reader that looks before there is a journal remembers for a second that there is none.
    let builder = Subscriber::builder("ticks").dir(channels.path()).start(Start::Oldest);
    let mut reader = builder.history(History::Dir(journal.path().to_owned())).open().unwrap();
    let mut publish = |last: u64| {
        while publisher.next_sequence() <= last {
            publisher.publish(&payload(publisher.next_sequence())).unwrap();
        }
    };
    // The ring has room for these messages, so the recorder keeps pace.
    for last in (1..=10).map(|turn| turn * 200) {
        publish(last);
        wait_until("the last message on disk", || {
            read(journal.path()).messages().last().is_some_and(|(sequence, _)| *sequence == last)
        });
    }
    let mut told = Vec::new();
    for due in 1..=2_000 {
        assert_eq!(next(&mut reader, &mut told), (due, payload(due)));
    }
    assert_eq!(told, ["live"]);
    child.pause();
    publish(4_000);
    assert!(matches!(reader.recv(), Err(RecvError::Stalled { .. })), "the recorder lives, and says nothing");
    child.resume();
    told.clear();
    let (first, bytes) = next(&mut reader, &mut told);
    assert!(first > 2_001 && bytes == payload(first), "{first}");
    assert_eq!(told.first(), Some(&format!("lost 2001 to {}, overrun", first - 1)), "{told:?}");
    assert!(end(child).status.code() == Some(3), "it names what it missed");
    assert!(!Journal::open(journal.path()).unwrap().is_recording());
}

/// The recorder writes the journal that its channel's readers use. The recorder itself reads only the ring: a lap is a loss, and it starts
/// with the ring's oldest message.
#[test]
fn a_recorder_does_not_read_its_own_journal() {
    let (channels, journals) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let journal = journals.path().join("ticks");
    fs::create_dir(&journal).unwrap();
    let mut publisher = Publisher::builder("ticks").dir(channels.path()).capacity(64 << 10).open().unwrap();
    let mut publish = |last: u64| {
        while publisher.next_sequence() <= last {
            publisher.publish(&payload(publisher.next_sequence())).unwrap();
        }
    };
    let record = || {
        let mut command = command(channels.path(), &journal, &["--sync", "each"]);
        Process::start(command.env("SHMCAST_JOURNALS", journals.path()))
    };
    let recorded = |last: u64| {
        wait_until("the last message on disk", || {
            read(&journal).messages().last().is_some_and(|(sequence, _)| *sequence == last)
        });
    };
    publish(100);
    let child = record();
    recorded(100);
    child.pause();
    publish(2_100);
    child.resume();
    recorded(2_100);
    let output = end(child);
    assert_eq!(output.status.code(), Some(3), "it names what it missed: {output:?}");
    publish(4_100);
    let child = record();
    recorded(4_100);
    let output = end(child);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let found = read(&journal);
    let (messages, losses) = (found.messages(), found.losses());
    assert_eq!((messages[0].0, losses.len()), (1, 2), "{losses:?}");
    assert!(losses[0].from == 101 && losses[1].from == 2_101, "{losses:?}");
    let lost: u64 = losses.iter().map(|loss| loss.to - loss.from + 1).sum();
    assert_eq!(messages.len() as u64 + lost, 4_100);
}

/// The next message. Other events are noted.
fn next(reader: &mut Subscriber, told: &mut Vec<String>) -> (u64, Vec<u8>) {
    loop {
        let event = match reader.recv() {
            // The recorder had no CPU.
            Err(RecvError::Stalled { .. }) => continue,
            event => event.unwrap(),
        };
        match event {
            Event::Message(m) => return (m.sequence, m.payload.to_vec()),
            Event::Lost { from, to, cause } => told.push(format!("lost {from} to {to}, {}", cause.name())),
            Event::Live { .. } => told.push("live".to_owned()),
            other => told.push(format!("{other:?}")),
        }
    }
}

/// A late reader begins with the last key message. This message is in the ring, in the journal, or in a journal whose channel has had no
/// key message since its memory was lost.
#[test]
fn a_late_reader_begins_with_the_last_key_message() {
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let open = || {
        let builder = Publisher::builder("ticks").dir(channels.path()).capacity(64 << 10);
        builder.continue_from(journal.path()).open().unwrap()
    };
    let late = |history: History| {
        let builder = Subscriber::builder("ticks").dir(channels.path()).start(Start::Key);
        let mut reader = builder.history(history).open().unwrap();
        loop {
            match reader.recv().unwrap() {
                Event::Message(message) => return (message.sequence, message.key),
                Event::Lapped(lapped) => return (lapped.resumed_at - lapped.missed, false),
                _ => {}
            }
        }
    };
    let with = || late(History::Dir(journal.path().to_owned()));
    let mut publisher = open();
    let child = record(channels.path(), journal.path(), &[]);
    let publish = |publisher: &mut Publisher, last: u64, keys: &[u64]| {
        while publisher.next_sequence() <= last {
            let sequence = publisher.next_sequence();
            let mark = Mark { tag: 0, key: keys.contains(&sequence) };
            publisher.publish_with(&payload(sequence), mark).unwrap();
            if sequence.is_multiple_of(200) {
                wait_until("the recorder", || {
                    read(journal.path()).messages().last().is_some_and(|(last, _)| *last == sequence)
                });
            }
        }
    };
    publish(&mut publisher, 200, &[]);
    assert_eq!(with(), (1, false), "no key message yet: the oldest");
    publish(&mut publisher, 400, &[250, 390]);
    assert_eq!((with(), late(History::Never)), ((390, true), (390, true)), "it is in the ring");
    publish(&mut publisher, 3_000, &[]);
    assert_eq!(
        (with(), late(History::Never)),
        ((390, true), (390, false)),
        "it is in the journal, or its loss is told"
    );
    publish(&mut publisher, 12_000, &[3_400, 5_001]);
    assert_eq!(with(), (5_001, true));
    drop(publisher);
    assert!(end(child).status.success());
    fs::remove_dir_all(channels.path().join("ticks")).unwrap();
    let mut publisher = open();
    publisher.publish(b"in another ring").unwrap();
    assert_eq!(with(), (5_001, true), "it is in an older file, of the ring before");
    let first = publisher.next_sequence() - 1;
    assert_eq!(late(History::Never), (first, false));
    publisher.publish_with(b"a snapshot", Mark { tag: 0, key: true }).unwrap();
    assert_eq!(with(), (first + 1, true));
}

/// The end of the stream lies in one batch with the last messages.
#[test]
fn a_channel_that_is_closed_already_is_recorded_to_its_end() {
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mut publisher = Publisher::builder("ticks").dir(channels.path()).capacity(1 << 20).open().unwrap();
    (1..=100).for_each(|sequence| assert_eq!(publisher.publish(&payload(sequence)).unwrap(), sequence));
    publisher.close();
    let output = record(channels.path(), journal.path(), &["--until-end", "--json"]).output();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(read(journal.path()).messages().len(), 100);
}

/// The disk is full. Durable messages stay, the journal names the lost messages, and recording continues when there is space again.
#[test]
fn a_full_disk_is_survived() {
    let (channels, mount) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
        .arg(mount.path())
        .output()
        .is_ok_and(|output| output.status.success());
    if !mounted {
        return skip("a_full_disk_is_survived", "no tmpfs can be mounted here");
    }
    let _unmount = Unmount(mount.path());
    let mut publisher = Publisher::builder("ticks").dir(channels.path()).capacity(1 << 20).open().unwrap();
    let filler = mount.path().join("filler");
    fs::write(&filler, vec![1; 4 << 20]).unwrap();
    let journal = mount.path().join("ticks");
    let said = channels.path().join("said");
    let mut command = command(channels.path(), &journal, &["--set", "buffer=1MiB", "--sync", "each"]);
    let child = Process::start(command.stderr(File::create(&said).unwrap()));
    let says = |what: &str| fs::read_to_string(&said).unwrap().contains(what);
    let mut sequence = 0;
    let mut publish = |count: u64| {
        for _ in 0..count {
            sequence += 1;
            publisher.publish(&payload(sequence)).unwrap();
        }
        sequence
    };
    let is_locked = |entry: std::io::Result<fs::DirEntry>| entry.unwrap().path().join("lock").exists();
    wait_until("the recorder's lock", || fs::read_dir(&journal).is_ok_and(|mut all| all.any(is_locked)));
    wait_until("a full disk", || {
        publish(1_000);
        says("the disk takes nothing")
    });
    let before = publish(30_000); // more than there is room for in memory and ring
    fs::remove_file(&filler).unwrap();
    // The recorder tries again every 5 s.
    wait_until("another try", || says("recording again"));
    let last = publish(1_000);
    wait_until("the last message on disk", || {
        read(&journal).messages().last().is_some_and(|(sequence, _)| *sequence == last)
    });
    let output = end(child);
    let text = fs::read_to_string(&said).unwrap();
    assert_eq!(output.status.code(), Some(3), "{text}");
    let found = read(&journal);
    let messages = found.messages();
    let lost: u64 = found.losses().iter().map(|loss| loss.to - loss.from + 1).sum();
    assert!(lost > 0 && lost < before, "{lost} of {before}");
    assert_eq!(messages.len() as u64 + lost, last, "{text}");
    assert!(messages.iter().all(|(sequence, bytes)| *bytes == payload(*sequence)));
    assert_eq!(found.sealed, found.files);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// The publisher is far faster than the disk, and the ring holds some 500 messages. With a gate, nothing is missing.
#[test]
fn a_recorder_with_a_gate_loses_nothing() {
    const COUNT: u64 = 100_000;
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let gate = Gate::new("journal").lag_percent(75).wait(Duration::from_secs(100));
    let builder = Publisher::builder("ticks").dir(channels.path()).capacity(64 << 10).gate(gate);
    let mut publisher = builder.open().unwrap();
    let recorder = record(channels.path(), journal.path(), &["--set", "gate=journal", "--until-end"]);
    wait_until("the recorder to take the gate", || {
        let shown = Directory::at(channels.path()).channel("ticks").unwrap().status();
        shown.gates[0].reader.is_some()
    });
    // A reader that has just taken its gate is waited for once it has a place in the ring.
    publisher.publish(&payload(1)).unwrap();
    wait_until("the first message in the journal", || !read(journal.path()).messages().is_empty());
    for sequence in 2..=COUNT {
        publisher.publish(&payload(sequence)).unwrap();
    }
    assert_eq!(publisher.gates()[0].dropped, 0);
    publisher.close();
    let output = recorder.output();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let found = read(journal.path());
    assert_eq!((found.losses(), found.messages().len() as u64), (vec![], COUNT));
    assert!(
        found
            .messages()
            .iter()
            .zip(1..)
            .all(|((sequence, bytes), due)| *sequence == due && *bytes == payload(due))
    );
}

/// A recorder that stands still, or was killed, leaves a journal whose last file is not sealed. Readers that begin there at a time, a key
/// or a sequence reach the ring. The verbs read all of the journal.
#[test]
fn a_journal_without_an_orderly_end_is_read_from_each_start_and_by_each_verb() {
    let (channels, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let channel = Publisher::builder("ticks").dir(channels.path()).capacity(1 << 20);
    let mut publisher = channel.open().unwrap();
    let mut recorder = Some(record(channels.path(), journal.path(), &["--sync", "each"]));
    let mut time = SystemTime::now();
    for sequence in 1..=30_000u64 {
        if sequence == 2_001 {
            std::thread::sleep(Duration::from_millis(50));
            time = SystemTime::now();
            std::thread::sleep(Duration::from_millis(50));
        }
        publisher
            .publish_with(&payload(sequence), Mark { key: sequence == 1_000, ..Mark::default() })
            .unwrap();
        if sequence % 3_000 == 0 {
            wait_until("it on disk", || {
                read(journal.path()).messages().last().is_some_and(|(last, _)| *last == sequence)
            });
        }
    }
    for is_killed in [false, true] {
        match recorder.take_if(|_| is_killed) {
            Some(recorder) => recorder.kill(),
            None => recorder.iter().for_each(Process::pause),
        }
        for (start, first) in
            [(Start::Time(time), 2_001), (Start::Key, 1_000), (Start::Sequence(3_000), 3_000)]
        {
            let history = History::Dir(journal.path().to_owned());
            let mut reader = Subscriber::builder("ticks")
                .dir(channels.path())
                .start(start)
                .history(history)
                .open()
                .unwrap();
            for due in first..=30_000 {
                let mut told = Vec::new();
                assert_eq!(next(&mut reader, &mut told), (due, payload(due)), "{start:?}: {told:?}");
            }
        }
        let room = TempDir::new().unwrap();
        let place = |name: &str| room.path().join(name).display().to_string();
        let (of, part, whole, pcap) =
            (journal.path().display(), place("part"), place("whole"), place("pcap"));
        for verb in [
            format!("journal cut {of} {part} --json"),
            format!("journal join {whole} {of} --json"),
            format!("journal export {of} {pcap} --json"),
            format!("replay {of} --into again-{is_killed} --speed max --json"),
        ] {
            let mut command = Command::new(program("shmcast"));
            command.args(verb.split(' ')).env("SHMCAST_DIR", channels.path());
            let output = command.stdin(Stdio::null()).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{verb}: {said}");
            let sums: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            let count = sums.get("published").unwrap_or(&sums["messages"]);
            assert_eq!(count, 30_000, "{verb}: {sums} {said}");
        }
    }
}

/// Puts another page in the place of a gate's page.
fn replace_page(channels: &Path, aside: &Path) {
    let page = channels.join("ticks/gates/journal");
    fs::copy(&page, aside.join("page")).unwrap();
    fs::rename(aside.join("page"), page).unwrap();
}

/// An earlier mistake: the recorder ended with an error when somebody had replaced or removed the page of its gate.
#[test]
fn a_recorder_that_loses_its_gate_takes_it_again_and_ends_if_it_cannot() {
    let (room, journal) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let channels = room.path().join("channels");
    let gate = Gate::new("journal").refuse();
    let mut publisher =
        Publisher::builder("ticks").dir(&channels).capacity(64 << 10).gate(gate).open().unwrap();
    let mut recorder = record(&channels, journal.path(), &["--set", "gate=journal"]);
    let said = recorder.child().stderr.take().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let reads = std::thread::spawn(move || {
        BufReader::new(said).lines().map_while(Result::ok).for_each(|line| tell.send(line).unwrap());
    });
    let next_with = |text: &str| told.iter().find(|line| line.contains(text));
    assert!(next_with("from sequence 1").is_some());
    for (round, sequence) in (1..=2).zip(1..) {
        publisher.publish(&payload(sequence)).unwrap();
        wait_until("the message in the journal", || read(journal.path()).messages().len() as u64 == sequence);
        replace_page(&channels, room.path());
        assert!(next_with("the recorder takes the gate again").is_some(), "round {round}");
        assert!(next_with(&format!("from sequence {}", sequence + 1)).is_some(), "round {round}");
    }
    publisher.publish(&payload(3)).unwrap();
    wait_until("the message in the journal", || read(journal.path()).messages().len() == 3);
    let found = read(journal.path());
    assert_eq!((found.losses(), found.messages().len()), (vec![], 3));
    // Nobody makes the page again while this publisher lives.
    fs::remove_file(channels.join("ticks/gates/journal")).unwrap();
    assert_eq!(recorder.wait().code(), Some(1));
    reads.join().unwrap();
    let rest: Vec<_> = told.iter().collect();
    assert!(rest[0].contains("the recorder takes the gate again"), "{rest:?}");
    assert!(rest.iter().any(|line| line.contains("3 messages up to")), "{rest:?}");
    assert!(rest.last().unwrap().contains("gate \"journal\""), "{rest:?}");
}
