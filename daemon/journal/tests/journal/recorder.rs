//! Recorders with their threads, on the file system of this machine.

use shmcast::journal::format::{Cause, Composer, ControlRecord, FileHeader, JournalControl, file_name};
use shmcast::journal::{
    Ending, Entry, Journal, JournalError, Streams, Verdict, Verify, create, folder_of, header_of,
};
use shmcast::{Gate, History, MAX_SEQUENCE, Publisher, RecvError, Start, StreamId, Subscriber};
use shmcast_journal::core::{Io, Settings, SyncPolicy};
use shmcast_journal::{Keep, Progress, RecordError, Recorder, Trimmed};
use shmcast_testkit::journal::{folder, read};
use shmcast_testkit::{PATIENCE, skip, wait_until};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

pub(super) struct Host {
    pub(super) channels: TempDir,
    journal: TempDir,
}

impl Host {
    pub(super) fn new() -> Self {
        Self { channels: TempDir::new().unwrap(), journal: TempDir::new().unwrap() }
    }

    pub(super) fn publisher(&self, name: &str, capacity: u64) -> Publisher {
        Publisher::builder(name).dir(self.channels.path()).capacity(capacity).open().unwrap()
    }

    pub(super) fn subscriber(&self, name: &str) -> Subscriber {
        let builder = Subscriber::builder(name).dir(self.channels.path()).start(Start::Oldest);
        builder.history(History::Never).open().unwrap()
    }

    /// Opens a reader at the next message. A lapped reader continues in the journal.
    pub(super) fn reader(&self, name: &str) -> Subscriber {
        let builder = Subscriber::builder(name).dir(self.channels.path());
        builder.history(History::Dir(self.dir().to_owned())).open().unwrap()
    }

    pub(super) fn record(&self, name: &str, sync: SyncPolicy) -> Recorder {
        self.record_by(self.subscriber(name), sync)
    }

    pub(super) fn record_by(&self, subscriber: Subscriber, sync: SyncPolicy) -> Recorder {
        let settings = Settings { sync, file_bytes: 1 << 20, ..Settings::default() };
        Recorder::start(self.journal.path(), subscriber, settings).unwrap()
    }

    /// The file of a channel's ring.
    pub(super) fn segment(&self, name: &str) -> PathBuf {
        self.channels.path().join(name).join("segment")
    }

    pub(super) fn dir(&self) -> &Path {
        self.journal.path()
    }
}

pub(super) fn payload(sequence: u64) -> Vec<u8> {
    let mut bytes = sequence.to_le_bytes().to_vec();
    bytes.resize(8 + (sequence % 400) as usize, sequence as u8);
    bytes
}

pub(super) fn until(recorder: &Recorder, what: impl Fn(&Progress) -> bool) -> Progress {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let progress = recorder.progress();
        if what(&progress) {
            return progress;
        }
        assert!(Instant::now() < deadline, "{progress:?} {:?}", recorder.errors());
        std::thread::sleep(Duration::from_millis(1));
    }
}

const POLICIES: [SyncPolicy; 3] =
    [SyncPolicy::None, SyncPolicy::Interval(Duration::from_millis(10)), SyncPolicy::Each];

#[test]
fn what_is_published_is_in_the_files_once_and_sealed() {
    for (sync, io) in POLICIES.into_iter().flat_map(|sync| [(sync, Io::Direct), (sync, Io::Buffered)]) {
        let host = Host::new();
        let mut publisher = host.publisher("t", 1 << 20);
        let settings = Settings { sync, io, file_bytes: 1 << 20, ..Settings::default() };
        let recorder = Recorder::start(host.dir(), host.subscriber("t"), settings).unwrap();
        for sequence in 1..=20_000 {
            publisher.publish(&payload(sequence)).unwrap();
            if sequence % 1_000 == 0 {
                until(&recorder, |progress| progress.drained == sequence);
            }
        }
        if sync != SyncPolicy::None {
            until(&recorder, |progress| progress.durable == 20_000);
        }
        let last = recorder.stop().unwrap();
        assert_eq!((last.messages, last.durable, last.overrun), (20_000, 20_000, 0));
        let journal = read(host.dir());
        assert_eq!((journal.files, journal.sealed), (journal.files, journal.files));
        assert!(journal.files > 3, "{} files", journal.files);
        let found = journal.messages();
        assert!(found.iter().all(|(sequence, bytes)| *bytes == payload(*sequence)));
        assert_eq!((found.len(), journal.losses().len()), (20_000, 0));
        assert!(!folder(host.dir()).join("spare.tmp").exists());
    }
}

/// A file system in memory has no disk to write to past its cache.
#[test]
fn in_memory_files_are_written_through_the_cache() {
    let Ok(journal) = TempDir::new_in("/dev/shm") else {
        return skip("in_memory_files_are_written_through_the_cache", "no /dev/shm");
    };
    let host = Host { channels: TempDir::new().unwrap(), journal };
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = host.record("t", SyncPolicy::Each);
    publisher.publish(b"one").unwrap();
    assert_eq!(until(&recorder, |progress| progress.durable == 1).io, Io::Buffered);
    recorder.stop().unwrap();
    assert_eq!(read(host.dir()).messages(), [(1, &b"one"[..])]);
}

/// A message larger than a file makes that file longer, and the next one is as large as ever.
#[test]
fn a_message_that_is_larger_than_a_file_is_recorded() {
    for io in [Io::Direct, Io::Buffered] {
        let host = Host::new();
        let mut publisher = host.publisher("t", 16 << 20);
        let settings = Settings { io, file_bytes: 1 << 20, ..Settings::default() };
        let recorder = Recorder::start(host.dir(), host.subscriber("t"), settings).unwrap();
        let large = vec![7; 2 << 20];
        for payload in [&b"small"[..], &large, b"small"] {
            publisher.publish(payload).unwrap();
        }
        until(&recorder, |progress| progress.durable == 3);
        recorder.stop().unwrap();
        let journal = read(host.dir());
        assert_eq!((journal.files, journal.sealed), (3, 3), "{io:?}");
        assert_eq!(journal.messages(), [(1, &b"small"[..]), (2, &large), (3, b"small")]);
    }
}

/// The threads of a recorder read the clock before they have their turn.
#[test]
fn files_of_a_millisecond_end_no_recorder() {
    let host = Host::new();
    let roll_after = Some(Duration::from_millis(1));
    let settings = Settings { sync: SyncPolicy::Each, roll_after, ..Settings::default() };
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = Recorder::start(host.dir(), host.subscriber("t"), settings).unwrap();
    let until = Instant::now() + Duration::from_secs(2);
    while Instant::now() < until || recorder.progress().file <= 10 {
        assert!(Instant::now() < until + PATIENCE, "files are not made");
        publisher.publish(b"a message").unwrap();
        std::thread::sleep(Duration::from_micros(20));
    }
    let last = publisher.next_sequence() - 1;
    assert!(recorder.is_running());
    assert_eq!(recorder.stop().unwrap().durable, last);
    assert!(Journal::open(host.dir()).unwrap().files().len() > 10);
}

/// Publishers come and go, and nothing is published for longer than a file lasts.
#[test]
fn a_file_is_not_sealed_by_age_before_it_has_a_message() {
    let host = Host::new();
    let age = Duration::from_millis(10);
    let settings = Settings { sync: SyncPolicy::None, roll_after: Some(age), ..Settings::default() };
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = Recorder::start(host.dir(), host.subscriber("t"), settings).unwrap();
    for epoch in 2..=4 {
        publisher.publish(b"a message").unwrap();
        until(&recorder, |progress| progress.written == epoch - 1);
        std::thread::sleep(5 * age);
        publisher.close();
        std::thread::sleep(5 * age);
        publisher = host.publisher("t", 1 << 20);
        assert_eq!(publisher.epoch(), epoch);
        std::thread::sleep(5 * age);
    }
    publisher.publish(b"a message").unwrap();
    recorder.stop().unwrap();
    let journal = Journal::open(host.dir()).unwrap();
    let mut firsts: Vec<u64> = journal.files().iter().map(|file| file.header.sequence).collect();
    assert!(firsts.len() >= 4, "{firsts:?}");
    firsts.dedup();
    assert_eq!(firsts.len(), journal.files().len(), "{firsts:?}");
    let mut reader = journal.read_from(1).unwrap();
    let mut epochs = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if let Entry::Control { control: JournalControl::Ring(ControlRecord::Epoch { epoch }), .. } = entry {
            epochs.push((reader.due(), epoch));
        }
    }
    assert!(epochs.ends_with(&[(2, 2), (3, 3), (4, 4)]), "{epochs:?}");
}

#[test]
fn a_recorder_goes_on_where_the_journal_ends() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    for round in 0..5 {
        let recorder = host.record("t", SyncPolicy::Each);
        for sequence in round * 100 + 1..=round * 100 + 50 {
            publisher.publish(&payload(sequence)).unwrap();
        }
        until(&recorder, |progress| progress.durable == round * 100 + 50);
        recorder.stop().unwrap();
        // The ring keeps these until the next recorder takes them.
        for sequence in round * 100 + 51..=round * 100 + 100 {
            publisher.publish(&payload(sequence)).unwrap();
        }
    }
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 500);
    recorder.stop().unwrap();
    let journal = read(host.dir());
    assert_eq!(journal.messages().len(), 500);
    assert_eq!(journal.losses(), []);
    let stepped =
        |control: &&JournalControl| matches!(control, JournalControl::Clock { step_ns, .. } if *step_ns != 0);
    assert_eq!(journal.controls.iter().find(stepped), None, "nobody set the clock");
    let sources = |control: &&JournalControl| matches!(control, JournalControl::Source { .. });
    assert_eq!(journal.controls.iter().filter(sources).count(), 6);
}

#[test]
fn what_the_ring_has_lost_is_named() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 64 << 10);
    publisher.publish(b"first").unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 1);
    recorder.stop().unwrap();
    for _ in 0..5_000 {
        publisher.publish(&[7; 100]).unwrap();
    }
    let recorder = host.record("t", SyncPolicy::Each);
    let first = until(&recorder, |progress| progress.durable == 5_001);
    let last = recorder.stop().unwrap();
    let journal = read(host.dir());
    let [loss] = journal.losses()[..] else { panic!("{:?}", journal.losses()) };
    assert_eq!((loss.from, loss.cause), (2, Cause::Unrecorded));
    assert_eq!(loss.to - loss.from + 1, first.missing);
    assert_eq!(journal.messages().len() as u64 + last.missing, 5_001);
}

/// The ring begins behind the reserve, and the journal could not be told so, because its disk was read-only. The skipped sequences were
/// never given to messages. They once counted as missing messages.
#[test]
fn skipped_sequences_of_a_reserve_are_not_missing() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    publisher.publish(&payload(1)).unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 1);
    recorder.stop().unwrap();
    let before = folder(host.dir());
    let stream = before.file_name().unwrap();
    drop(publisher);
    // The ring is told of a copy, so that the journal itself is not told of the ring.
    let copy = TempDir::new().unwrap();
    std::fs::create_dir(copy.path().join(stream)).unwrap();
    for entry in std::fs::read_dir(&before).unwrap().map(|entry| entry.unwrap()) {
        std::fs::copy(entry.path(), copy.path().join(stream).join(entry.file_name())).unwrap();
    }
    std::fs::remove_dir_all(host.channels.path()).unwrap();
    let builder = Publisher::builder("t").dir(host.channels.path()).capacity(64 << 10);
    let mut publisher = builder.continue_from(copy.path()).open().unwrap();
    let first = publisher.next_sequence();
    publisher.publish(b"behind the reserve").unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == first);
    assert_eq!(recorder.stop().unwrap().missing, 0);
    let journal = read(host.dir());
    let [loss] = journal.losses()[..] else { panic!("{:?}", journal.losses()) };
    assert_eq!((loss.from, loss.to, loss.cause), (2, first - 1, Cause::Reserve));
}

#[test]
fn directories_that_do_not_fit_are_refused() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 64 << 10);
    publisher.publish_batch(["a", "b", "c"]).unwrap();
    host.publisher("other", 64 << 10);
    let recorder = host.record("t", SyncPolicy::Each);
    let again = |name| Recorder::start(host.dir(), host.subscriber(name), Settings::default());
    assert!(matches!(again("t"), Err(RecordError::Busy { .. })));
    until(&recorder, |progress| progress.durable == 3);
    recorder.stop().unwrap();
    assert!(matches!(again("other"), Err(RecordError::Journal(JournalError::OtherChannel { .. }))));
    drop(publisher);
    std::fs::remove_dir_all(host.channels.path()).unwrap();
    std::fs::create_dir(host.channels.path()).unwrap();
    host.publisher("t", 64 << 10).publish(b"anew").unwrap();
    // Another stream has a folder of its own, also if it has come further than the other one.
    let before = folder(host.dir());
    host.publisher("t", 64 << 10).publish_batch(["b", "c", "d", "e"]).unwrap();
    again("t").unwrap().stop().unwrap();
    assert_eq!((read(&before).messages().len(), read(host.dir()).messages().len()), (3, 5));
    // A ring that lies before what its own journal has is refused.
    let stream = host.subscriber("t").header().stream;
    let header = Journal::open(host.dir()).unwrap().files()[0].header.clone();
    let header = FileHeader { file: 9, sequence: 100, ..header };
    std::fs::write(folder_of(host.dir(), stream).join(file_name(9, 100)), header.encode().unwrap()).unwrap();
    let Err(error) = again("t") else { panic!("sequences are given twice") };
    assert!(matches!(error, RecordError::Behind { journal: 100, channel: 6, .. }), "{error}");
}

/// Memory for one frame: what is published before the end of a recording waits in the ring, and is taken all the same.
#[test]
fn a_stop_takes_what_is_in_the_ring() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 16 << 20);
    for sequence in 1..=30_000 {
        publisher.publish(&payload(sequence)).unwrap();
    }
    let settings = Settings { sync: SyncPolicy::Each, buffer: 1, ..Settings::default() };
    let recorder = Recorder::start(host.dir(), host.subscriber("t"), settings).unwrap();
    let last = recorder.stop().unwrap();
    assert_eq!((last.drained, last.messages, last.durable, last.buffered), (30_000, 30_000, 30_000, 0));
    let bytes: u64 = std::fs::read_dir(folder(host.dir()))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!((last.bytes, last.file), (bytes, 1));
    // Nothing of it is left that has the lock.
    host.record("t", SyncPolicy::Each).stop().unwrap();
    assert_eq!(read(host.dir()).messages().len(), 30_000);
}

#[test]
fn a_stop_does_not_wait_for_a_publisher_without_end() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 16 << 20);
    let is_over = Arc::new(AtomicBool::new(false));
    let feed = std::thread::spawn({
        let (is_over, deadline) = (is_over.clone(), Instant::now() + PATIENCE);
        move || {
            while !is_over.load(Ordering::Relaxed) {
                assert!(Instant::now() < deadline, "the recorder does not stop");
                for _ in 0..100 {
                    publisher.publish(&[7; 32 << 10]).unwrap();
                }
            }
        }
    });
    // It is always behind: it has memory for one frame, and waits for the disk with each.
    let settings = Settings { sync: SyncPolicy::Each, buffer: 1, ..Settings::default() };
    let recorder = Recorder::start(host.dir(), host.subscriber("t"), settings).unwrap();
    until(&recorder, |progress| progress.messages > 0);
    recorder.stop().unwrap();
    is_over.store(true, Ordering::Relaxed);
    feed.join().unwrap();
}

/// A recorder with a small buffer, after its first file is full. Its disk refuses every further file.
pub(super) fn on_a_disk_that_refuses(buffer: usize) -> (Host, Publisher, Recorder) {
    let host = Host::new();
    let mut publisher = host.publisher("t", 16 << 20);
    let subscriber = host.subscriber("t");
    let recorder = record_on_a_disk_that_refuses(&host, (&mut publisher, subscriber), buffer);
    (host, publisher, recorder)
}

fn record_on_a_disk_that_refuses(
    host: &Host,
    (publisher, subscriber): (&mut Publisher, Subscriber),
    buffer: usize,
) -> Recorder {
    let settings = Settings { sync: SyncPolicy::Each, file_bytes: 1 << 20, buffer, ..Settings::default() };
    let recorder = Recorder::start(host.dir(), subscriber, settings).unwrap();
    // Then the first file has its name.
    until(&recorder, |progress| progress.reserve > 0);
    // No next file can be made.
    std::fs::create_dir_all(folder(host.dir()).join("spare.tmp/full")).unwrap();
    for sequence in 1..=30_000 {
        publisher.publish(&payload(sequence)).unwrap();
    }
    recorder
}

/// No further file can be made, and the recorder gives its messages up.
#[test]
fn a_stop_gives_a_disk_up_that_refuses() {
    let (_host, mut publisher, recorder) = on_a_disk_that_refuses(1);
    let written = until(&recorder, |progress| progress.is_failed).written;
    // Skipped sequences are no messages.
    publisher.gap(1 << 40).unwrap();
    publisher.publish(b"behind the gap").unwrap();
    let begun = Instant::now();
    let Err(RecordError::Unwritten { lost, progress, .. }) = recorder.stop() else {
        panic!("there is no file to write to")
    };
    assert!(begun.elapsed() < PATIENCE);
    assert_eq!((lost, progress.messages), (30_001 - written, written));
}

/// An earlier mistake: a recorder with a gate counted skipped sequences as messages that are not recorded.
#[test]
fn a_recorder_with_a_gate_counts_messages_and_no_skipped_sequences() {
    let host = Host::new();
    let gate = Gate::new("journal").wait(Duration::from_secs(100));
    let builder = Publisher::builder("t").dir(host.channels.path()).capacity(32 << 20).gate(gate);
    let mut publisher = builder.open().unwrap();
    let subscriber = Subscriber::builder("t").dir(host.channels.path()).start(Start::Oldest);
    let subscriber = subscriber.history(History::Never).gate("journal").open().unwrap();
    let recorder = record_on_a_disk_that_refuses(&host, (&mut publisher, subscriber), 1);
    let written = until(&recorder, |progress| progress.is_failed).written;
    publisher.gap(1 << 40).unwrap();
    publisher.publish(b"behind the gap").unwrap();
    let Err(RecordError::Unwritten { lost, progress, .. }) = recorder.stop() else {
        panic!("there is no file to write to")
    };
    assert_eq!((lost, progress.messages), (30_001 - written, written));
}

/// The channel begins anew while its last messages wait in memory for such a disk. The end of the recording once passed for that of a whole
/// stream.
#[test]
fn a_stream_that_was_not_written_to_its_end_is_an_error_behind_a_restart() {
    let (host, mut publisher, recorder) = on_a_disk_that_refuses(64 << 20);
    publisher.gap(1 << 40).unwrap();
    let last = publisher.publish(b"behind the gap").unwrap();
    until(&recorder, |progress| progress.is_failed && progress.drained == last);
    drop(publisher);
    let builder = Publisher::builder("t").dir(host.channels.path()).capacity(16 << 20);
    let _publisher = builder.anew().open().unwrap();
    wait_until("the recorder's end", || !recorder.is_running());
    let written = recorder.progress().written;
    let refused = recorder.stop().unwrap_err();
    let RecordError::Unwritten { lost, is_over, ref progress, .. } = refused else { panic!("{refused}") };
    assert_eq!((lost, progress.messages, is_over), (30_001 - written, written, true));
    assert!(lost > 0 && refused.is_restart() && refused.is_loss());
}

/// A batch ends with an error, and has messages before it.
#[test]
fn messages_before_damage_in_the_ring_are_counted() {
    const CAPACITY: u64 = 1 << 20;
    let host = Host::new();
    let mut publisher = host.publisher("t", CAPACITY);
    for _ in 0..100 {
        publisher.publish(b"a message").unwrap();
    }
    publisher.gap(109).unwrap();
    let segment = host.channels.path().join("t/segment");
    let segment = std::fs::File::options().write(true).open(segment).unwrap();
    // Each record has 64 bytes, behind the header and the index. The fifth word of the gap is its last sequence, which must not be the last
    // of all sequences.
    let gap = 4096 + CAPACITY / 64 * 8 + 100 * 64;
    segment.write_all_at(&MAX_SEQUENCE.to_le_bytes(), gap + 4 * 8).unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    wait_until("the recorder's end", || !recorder.is_running());
    let progress = until(&recorder, |progress| progress.written == 100);
    assert_eq!((progress.messages, progress.drained), (100, 100));
    let refused = recorder.stop().unwrap_err();
    assert!(matches!(refused, RecordError::Receive(RecvError::Corrupt(_))), "{refused}");
    assert_eq!(read(host.dir()).messages().len(), 100);
}

/// A recorder that is killed between the footer of a file and its end leaves it longer than it is. The next file chains to that footer,
/// so recovery must not write another one.
#[test]
fn a_footer_that_stands_is_kept_as_it_is() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = host.record("t", SyncPolicy::Interval(Duration::from_millis(10)));
    let mut sequence = 0;
    while until(&recorder, |progress| progress.drained == sequence).file < 3 {
        sequence += 1;
        publisher.publish(&payload(sequence)).unwrap();
    }
    recorder.stop().unwrap();
    let mut files: Vec<_> =
        std::fs::read_dir(folder(host.dir())).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "smj"));
    files.sort();
    assert!(files.len() >= 3, "{files:?}");
    let before: Vec<Vec<u8>> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    for (path, bytes) in files.iter().zip(&before) {
        let longer = [&bytes[..], &[0; 100_000]].concat();
        std::fs::write(path, longer).unwrap();
    }
    host.record("t", SyncPolicy::Each).stop().unwrap();
    for (path, bytes) in files.iter().zip(&before) {
        assert!(std::fs::read(path).unwrap() == *bytes, "{} was changed", path.display());
    }
}

/// Files that were given up have no trailer until the next recovery. The files behind them must still go when there are too many. One
/// failed sync can give up two files: the full one and the next one.
#[test]
fn a_file_that_was_given_up_does_not_end_retention() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = host.record("t", SyncPolicy::Interval(Duration::from_millis(10)));
    fill_until_file(&recorder, &mut publisher, 5);
    recorder.stop().unwrap();
    let mut journal = Journal::open(host.dir()).unwrap();
    let names: Vec<String> = journal.files().iter().map(|file| file.name.clone()).collect();
    let given_up = [0, 1].map(|at| format!("{}.suspect", names[at]));
    for (name, given_up) in names.iter().zip(&given_up) {
        let path = folder(host.dir()).join(name);
        std::fs::File::options().write(true).open(&path).unwrap().set_len(900_000).unwrap();
        std::fs::rename(&path, folder(host.dir()).join(given_up)).unwrap();
    }
    journal.refresh().unwrap();
    assert!(journal.files()[..2].iter().all(|file| file.is_given_up() && file.trailer.is_none()));
    let keep = Keep { bytes: Some(1), ..Keep::default() };
    let mut trimmed = Trimmed::default();
    let streams = Streams::open(host.dir()).unwrap();
    keep.trim(&streams, journal.stream(), 0, &mut trimmed).unwrap();
    assert_eq!(trimmed.gone, [&given_up[..], &names[2..names.len() - 1]].concat());
    journal.refresh().unwrap();
    assert_eq!(journal.files().len(), 1, "the last file stays");
}

pub(super) fn ending(host: &Host) -> Ending {
    Ending::of(host.dir(), "t", None).unwrap()
}

/// The journal ends clean only if its recorder was told that nobody publishes, and has everything. Whatever is noted behind it makes it
/// open again.
#[test]
fn a_closed_channel_goes_on_at_the_next_sequence_and_any_other_behind_the_reserve() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = host.record("t", SyncPolicy::Each);
    for sequence in 1..=100 {
        publisher.publish(&payload(sequence)).unwrap();
    }
    until(&recorder, |progress| progress.durable == 100);
    assert!(matches!(Ending::of(host.dir(), "t", None), Err(JournalError::Busy { .. })));
    recorder.stop().unwrap();
    let found = ending(&host);
    assert_eq!((found.due(), found.is_clean(), found.epoch()), (101, false, 1));
    let behind = found.next_sequence().unwrap();
    assert!(behind > 1 << 32, "{behind}");
    drop(found);
    host.record("t", SyncPolicy::Each).close(100).unwrap();
    assert!(!ending(&host).is_clean(), "it was told of another end");
    host.record("t", SyncPolicy::Each).close(101).unwrap();
    let found = ending(&host);
    assert_eq!((found.is_clean(), found.next_sequence().unwrap()), (true, 101));
    let due = found.due();
    found.reopen(due).unwrap();
    let found = ending(&host);
    assert_eq!((found.due(), found.is_clean()), (101, false));
    assert!(found.next_sequence().unwrap() >= 101 + (1 << 32));
    drop(found);
    host.record("t", SyncPolicy::Each).close(101).unwrap();
    assert!(ending(&host).is_clean(), "nobody published meanwhile");
    let journal = Journal::open(host.dir()).unwrap();
    assert_eq!(Verify::new(&journal).run(|_| ()).unwrap().verdict(), Verdict::Whole);
}

/// A journal that is begun with the ring is gone on with, and what it promised holds, even if nothing was recorded.
#[test]
fn a_journal_may_begin_before_its_recorder() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    create(host.dir(), publisher.header()).unwrap();
    let begun = ending(&host);
    assert_eq!((begun.due(), begun.is_clean(), begun.next_sequence().unwrap()), (1, false, 2 + (1 << 32)));
    drop(begun);
    publisher.publish(&payload(1)).unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 1);
    assert!(matches!(create(host.dir(), publisher.header()), Err(JournalError::Busy { .. })));
    recorder.close(2).unwrap();
    assert_eq!(ending(&host).next_sequence().unwrap(), 2);
    assert!(matches!(create(host.dir(), publisher.header()), Err(JournalError::Os { .. })), "there is one");
    let journal = Journal::open(host.dir()).unwrap();
    let verified = Verify::new(&journal).run(|_| ()).unwrap();
    assert_eq!((verified.verdict(), verified.messages, verified.files), (Verdict::Whole, 1, 2));
}

/// A ring that is noted behind a journal is the one that the next recorder goes on in, with what is left out named once.
#[test]
fn a_ring_behind_a_journal_is_recorded_into_it() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    let recorder = host.record("t", SyncPolicy::None);
    for sequence in 1..=100 {
        publisher.publish(&payload(sequence)).unwrap();
    }
    recorder.stop().unwrap();
    let mut due = 101;
    for turn in 0..3 {
        let found = ending(&host);
        let next = found.next_sequence().unwrap();
        assert_eq!(found.due(), due);
        found.begin(publisher.header(), next).unwrap();
        due = next;
        let losses = read(host.dir()).losses();
        assert_eq!(losses.len(), turn + 1, "each jump is named: {losses:?}");
        assert!(losses.iter().all(|loss| loss.cause == Cause::Reserve));
    }
    let found = read(host.dir());
    assert_eq!((found.messages().len(), found.sealed), (100, found.files));
}

#[test]
fn a_journal_that_is_not_the_channels_or_not_understood_is_refused() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    publisher.publish(b"one").unwrap();
    assert!(matches!(Ending::of(host.dir(), "t", None), Err(JournalError::Empty { .. })));
    assert_eq!(std::fs::read_dir(host.dir()).unwrap().count(), 0, "nothing is made where no journal is");
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 1);
    recorder.stop().unwrap();
    let refused = Ending::of(host.dir(), "u", None).unwrap_err();
    assert!(matches!(refused, JournalError::OtherChannel { .. }), "{refused}");
    let name = Journal::open(host.dir()).unwrap().files()[0].name.clone();
    let whole = std::fs::read(folder(host.dir()).join(&name)).unwrap();
    // A later file that was begun, and has not got its name: what it promises counts.
    let mut header = FileHeader::decode(&whole).unwrap();
    (header.file, header.sequence, header.reserve) = (header.file + 1, 2, 9 << 32);
    let (_, page) = Composer::begin(&header).unwrap();
    std::fs::write(folder(host.dir()).join("spare.tmp"), &page).unwrap();
    assert_eq!(ending(&host).next_sequence().unwrap(), (9 << 32) + 1);
    assert!(!folder(host.dir()).join("spare.tmp").exists());
    // One whose header never came to the disk is nothing.
    let torn = folder(host.dir()).join(file_name(7, 500));
    std::fs::write(&torn, [0; 8192]).unwrap();
    let found = ending(&host);
    assert_eq!((found.due(), found.next_sequence().unwrap()), (2, (9 << 32) + 1));
    found.begin(publisher.header(), 10 << 32).unwrap();
    assert!(folder(host.dir()).join(file_name(8, 2)).exists(), "no number is given again");
    // Nor is one whose number of the version is damaged.
    let mut later = page.clone();
    later[8] = 3;
    std::fs::write(&torn, &later).unwrap();
    assert_eq!(ending(&host).due(), 10 << 32);
    // That of another version may promise anything. Its fields are others.
    later[16] ^= 1;
    std::fs::write(&torn, &later).unwrap();
    let refused = Ending::of(host.dir(), "t", None).unwrap_err();
    assert!(matches!(refused, JournalError::Format { .. }), "{refused}");
    header.stream = StreamId::from_bytes([1; 16]);
    std::fs::write(&torn, header.encode().unwrap()).unwrap();
    let refused = Ending::of(host.dir(), "t", None).unwrap_err();
    assert!(matches!(refused, JournalError::Foreign { .. }), "{refused}");
}

/// A message that the ring had long before its recorder came is found by the time of its publication, anywhere in a file.
#[test]
fn a_message_is_found_by_its_time_however_late_it_was_recorded() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 8 << 20);
    let wall = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut times = Vec::new();
    for sequence in 1..=16_000u64 {
        if sequence % 1_000 == 0 {
            std::thread::sleep(Duration::from_millis(20));
            times.push((sequence, wall()));
        }
        publisher.publish(&payload(sequence)).unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    let between = wall();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 16_000);
    recorder.stop().unwrap();
    let found = |time: u64| {
        let mut reader = Journal::open(host.dir()).unwrap().read_since(time).unwrap();
        match reader.next().unwrap() {
            Some(Entry::Message(message)) => Some(message.sequence),
            _ => None,
        }
    };
    for (sequence, time) in times {
        // Ten milliseconds is more than two ways of reading the clocks differ by.
        assert_eq!(found(time - 10_000_000), Some(sequence));
    }
    assert_eq!(found(between), None, "nothing came after the last message");
}

/// Any user who can open a directory can lock it. Holds and retention do not wait for that lock.
#[test]
fn a_lock_on_the_directory_keeps_nobody_waiting() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 64 << 10);
    let recorder = host.record("t", SyncPolicy::Each);
    publisher.publish(b"a").unwrap();
    until(&recorder, |progress| progress.durable == 1);
    let stranger = std::fs::File::open(host.dir()).unwrap();
    stranger.lock().unwrap();
    let stream = publisher.header().stream;
    shmcast_journal::hold(host.dir(), stream, "audit", 1).unwrap();
    assert_eq!(shmcast_journal::holds(&folder_of(host.dir(), stream)).unwrap().len(), 1);
    assert!(shmcast_journal::release(host.dir(), stream, "audit").unwrap());
    recorder.stop().unwrap();
}

/// The journal names the messages that the ring lost before it was recorded.
#[test]
fn what_came_before_the_first_recorder_is_named() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 64 << 10);
    for _ in 0..5_000 {
        publisher.publish(b"early").unwrap();
    }
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 5_000);
    assert!(recorder.progress().missing > 0);
    recorder.stop().unwrap();
    let journal = read(host.dir());
    let [loss] = journal.losses()[..] else { panic!("{:?}", journal.losses()) };
    assert_eq!((loss.from, loss.cause), (1, Cause::Unrecorded));
    assert_eq!(journal.messages().len() as u64 + loss.to, 5_000);
}

/// Publishes until a recorder with files of a mebibyte writes to this file. Returns the last sequence.
pub(super) fn fill_until_file(recorder: &Recorder, publisher: &mut Publisher, file: u64) -> u64 {
    loop {
        let last = publisher.next_sequence() - 1;
        if until(recorder, |progress| progress.durable == last).file >= file {
            return last;
        }
        for sequence in last + 1..=last + 100 {
            publisher.publish(&payload(sequence)).unwrap();
        }
    }
}

/// A channel that begins anew again and again has a folder for each stream, and one bound for all of them.
#[test]
fn retention_counts_all_streams_of_a_directory() {
    let host = Host::new();
    let mut streams = Vec::new();
    for _ in 0..6 {
        let builder = Publisher::builder("t").dir(host.channels.path()).capacity(1 << 20);
        let mut publisher = builder.anew().open().unwrap();
        let recorder = host.record("t", SyncPolicy::Each);
        for sequence in 1..=3_000 {
            publisher.publish(&payload(sequence)).unwrap();
        }
        until(&recorder, |progress| progress.durable == 3_000);
        recorder.stop().unwrap();
        streams.push(publisher.header().stream);
    }
    let (first, last) = (streams[0], streams[5]);
    shmcast_journal::hold(host.dir(), first, "audit", 1).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut trimmed = Trimmed::default();
    let keep = Keep { bytes: Some(2 << 20), ..Keep::default() };
    keep.trim(&Streams::open(host.dir()).unwrap(), Some(last), now, &mut trimmed).unwrap();
    let left = Streams::open(host.dir()).unwrap();
    let left: Vec<_> = left.journals().iter().filter_map(|journal| journal.stream()).collect();
    assert!(left.contains(&first) && left.contains(&last), "one is held, one is recorded: {left:?}");
    assert!(!left.contains(&streams[1]) && trimmed.broken.is_empty(), "{left:?} {trimmed:?}");
    shmcast_journal::release(host.dir(), first, "audit").unwrap();
    let keep = Keep { bytes: Some(1), ..Keep::default() };
    keep.trim(&Streams::open(host.dir()).unwrap(), Some(last), now, &mut trimmed).unwrap();
    let left = Streams::open(host.dir()).unwrap();
    let [own] = left.journals() else { panic!("{left:?}") };
    assert_eq!((own.stream(), own.files().len()), (Some(last), 1), "the file that is recorded to stays");
}

/// The clock was ahead when a channel began, and was set back before that was made anew. The stream that began last is the newest all the
/// same: for verbs, for the next daemon after a reboot, and for retention, which removes the oldest first.
#[test]
fn the_stream_that_began_last_is_the_newest_whatever_the_clock_was() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    let ahead = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 + 86_400_000_000_000;
    let (older, own) = (StreamId::from_words([1, 2]), publisher.header().stream);
    let header = header_of(publisher.header()).unwrap();
    let header = FileHeader { stream: older, sequence: 100, wall_ns: ahead, ..header };
    std::fs::create_dir(folder_of(host.dir(), older)).unwrap();
    let page = header.encode().unwrap();
    std::fs::write(folder_of(host.dir(), older).join(file_name(1, 100)), page).unwrap();
    for turn in 1..=2 {
        publisher.publish(b"anew").unwrap();
        let recorder = host.record("t", SyncPolicy::Each);
        until(&recorder, |progress| progress.durable == turn);
        recorder.stop().unwrap();
        let streams = Streams::open(host.dir()).unwrap();
        let newest = streams.journals().last().unwrap();
        let numbers: Vec<u64> = newest.files().iter().map(|file| file.header.file).collect();
        assert_eq!((newest.stream(), numbers), (Some(own), (2..2 + turn).collect()));
        assert_eq!(ending(&host).due(), turn + 1);
    }
    // So it is for a journal that is begun with the ring.
    let mut third = publisher.header().clone();
    third.stream = StreamId::from_words([3, 4]);
    create(host.dir(), &third).unwrap();
    let streams = Streams::open(host.dir()).unwrap();
    let newest = streams.journals().last().unwrap();
    assert_eq!((newest.stream(), newest.files()[0].header.file), (Some(third.stream), 4));
}

/// A directory with files in it, as an earlier version wrote it, is refused with the words that mend it.
#[test]
fn files_in_the_directory_itself_are_refused_and_may_be_moved() {
    let host = Host::new();
    let mut publisher = host.publisher("t", 1 << 20);
    publisher.publish(b"one").unwrap();
    host.record("t", SyncPolicy::Each).stop().unwrap();
    let stream = publisher.header().stream;
    let (folder, name) = (folder_of(host.dir(), stream), file_name(1, 1));
    std::fs::rename(folder.join(&name), host.dir().join(&name)).unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
    let started = Recorder::start(host.dir(), host.subscriber("t"), Settings::default());
    let refused = started.map(drop).unwrap_err().to_string();
    let mend = format!("mkdir {} && mv ", folder.display());
    assert!(refused.contains(&mend), "{refused}");
    let refused = Ending::of(host.dir(), "t", Some(stream)).unwrap_err().to_string();
    assert!(refused.contains(&mend), "{refused}");
    assert_eq!(read(host.dir()).messages(), [(1, &b"one"[..])], "it can be read as the folder of one stream");
    std::fs::create_dir(&folder).unwrap();
    std::fs::rename(host.dir().join(&name), folder.join(&name)).unwrap();
    publisher.publish(b"two").unwrap();
    let recorder = host.record("t", SyncPolicy::Each);
    until(&recorder, |progress| progress.durable == 2);
    recorder.stop().unwrap();
    assert_eq!(read(host.dir()).messages(), [(1, &b"one"[..]), (2, b"two")]);
}
