//! The daemon as a recorder of channels with a journal, and as the lender of the journal's files to readers.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shmcast::control::JournalStatus;
use shmcast::journal::{Entry, Journal, Loss, folder_of};
use shmcast::{Client, Event, Mark, Message, Publisher, RecvError, Start, Subscriber};
use shmcast_testkit::command::text;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, publishing};
use shmcast_testkit::journal::folder;
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::raw::Raw;
use shmcast_testkit::{number, wait_for, wait_until};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tempfile::TempDir;

/// The section of a channel with a journal in `dir`. `more` are fields of the journal.
fn recorded(name: &str, capacity: &str, dir: &Path, more: &str) -> String {
    format!(
        "[[channel]]\nname = \"{name}\"\ncapacity = \"{capacity}\"\nmlock = false\nhugepages = false\n{FOR_ALL}\n\
         journal = {{ dir = \"{}\", file = \"1MiB\"{more} }}\n",
        dir.display()
    )
}

fn room() -> (TempDir, PathBuf) {
    let room = TempDir::new().unwrap();
    let journal = room.path().join("ticks");
    (room, journal)
}

fn payload(sequence: u64) -> Vec<u8> {
    sequence.to_le_bytes().repeat(8)
}

/// Publishes up to sequence `last`.
fn publish(publisher: &mut Publisher, last: u64) {
    while publisher.next_sequence() <= last {
        let sequence = publisher.next_sequence();
        publisher.publish(&payload(sequence)).unwrap();
    }
}

/// Does the same as [`publish`], at a pace that the recorder follows. The ring of 1 MiB has room for some 10,000 of these messages.
fn publish_recorded(client: &Client, publisher: &mut Publisher, last: u64) {
    while publisher.next_sequence() <= last {
        let some = last.min(publisher.next_sequence() + 2_999);
        publish(publisher, some);
        wait_until_durable(client, some);
    }
}

fn status(client: &Client) -> Option<JournalStatus> {
    client.channel("ticks").unwrap().journal
}

fn wait_until_durable(client: &Client, last: u64) -> JournalStatus {
    wait_for(&format!("sequence {last} on disk"), || status(client).filter(|journal| journal.durable >= last))
}

/// Reads up to message `last`. Returns all other events. Each message must be the next one, or the first one after a reported loss.
fn read_to(reader: &mut Subscriber, last: u64) -> Vec<String> {
    let mut told = Vec::new();
    let mut due = reader.next_sequence();
    while due <= last {
        let event = match reader.recv() {
            Ok(event) => event,
            // No daemon answers yet, so the reader continues to wait.
            Err(RecvError::Stalled { .. }) => continue,
            Err(e) => panic!("{e}"),
        };
        match event {
            Event::Message(m) => {
                assert_eq!((m.sequence, m.payload), (due, &payload(due)[..]), "{told:?}");
                due += 1;
            }
            Event::Live { .. } => told.push("live".to_owned()),
            other => {
                told.push(format!("{other:?}"));
                due = match other {
                    Event::Lapped(lapped) => lapped.resumed_at,
                    Event::Lost { to, .. } | Event::Gap { to, .. } => to + 1,
                    _ => due,
                };
            }
        }
    }
    told
}

/// The contents of a journal: its messages in order, and its losses.
fn contents(dir: &Path) -> (Vec<u64>, Vec<Loss>) {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let (mut messages, mut losses) = (Vec::new(), Vec::new());
    while let Some(entry) = reader.next().unwrap() {
        match entry {
            Entry::Message(m) => {
                assert_eq!(m.payload, payload(m.sequence));
                messages.push(m.sequence);
            }
            Entry::Lost(loss) => losses.push(loss),
            _ => {}
        }
    }
    (messages, losses)
}

#[test]
fn a_reader_that_was_lapped_misses_nothing_and_is_live_again() {
    let (_room, journal) = room();
    let daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut stopped = Subscriber::builder("ticks").client(&client).open().unwrap();
    publish_recorded(&client, &mut publisher, 30_000);
    assert_eq!(read_to(&mut stopped, 30_000), ["live"], "the ring has some 10,000 of them");
    // Another reader begins at the first message that was ever published.
    let mut late = Subscriber::builder("ticks").client(&client).start(Start::Oldest).open().unwrap();
    assert_eq!(late.next_sequence(), 1);
    assert_eq!(read_to(&mut late, 30_000), ["live"]);
    let mut exact = Subscriber::builder("ticks").client(&client).start(Start::Sequence(77)).open().unwrap();
    assert_eq!(read_to(&mut exact, 30_000), ["live"]);
    publish_recorded(&client, &mut publisher, 31_000);
    for reader in [&mut stopped, &mut late, &mut exact] {
        assert!(read_to(reader, 31_000).is_empty());
    }
    let found = status(&client).unwrap();
    assert_eq!((found.state.as_str(), found.messages, found.overrun), ("recording", 31_000, 0), "{found:?}");
    let shown = String::from_utf8(daemon.shmcast("stat ticks").output().unwrap().stdout).unwrap();
    assert!(shown.contains("recording") && shown.contains(&*journal.display().to_string()), "{shown}");
}

/// A publisher in a thread of its own, so that the daemon's ends do not disturb it.
struct Feed {
    stop: Arc<AtomicBool>,
    published: Arc<AtomicU64>,
    thread: JoinHandle<Publisher>,
}

impl Feed {
    fn start(client: &Client) -> Self {
        let (stop, published) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut publisher = publishing(client, "ticks").open().unwrap();
        let (stopped, count) = (stop.clone(), published.clone());
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                let last = publisher.next_sequence() + 9;
                publish(&mut publisher, last);
                count.store(last, Ordering::Relaxed);
                sleep(Duration::from_millis(1));
            }
            publisher
        });
        Self { stop, published, thread }
    }

    fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Ends the publisher without closing the channel. The result has the last sequence.
    fn end(self) -> (Publisher, u64) {
        self.stop.store(true, Ordering::Relaxed);
        let publisher = self.thread.join().unwrap();
        let last = publisher.next_sequence() - 1;
        (publisher, last)
    }
}

#[test]
fn a_daemon_that_is_killed_goes_on_where_the_journal_ends() {
    let (_room, journal) = room();
    // The ring holds more than is published while no daemon runs, and less than is published in all.
    let mut daemon = Daemon::start(&recorded("ticks", "8MiB", &journal, ""));
    let feed = Feed::start(&daemon.client());
    let open = || Subscriber::builder("ticks").client(&daemon.client()).start(Start::Oldest).open().unwrap();
    let (mut reader, mut slow) = (open(), open());
    // One reader is overtaken again and again, and reads the journal while daemons die.
    let stop = feed.stop.clone();
    let slow = std::thread::spawn(move || {
        let mut told = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let due = slow.next_sequence();
            told.extend(read_to(&mut slow, due + 100));
            sleep(Duration::from_millis(40));
        }
        (slow, told)
    });
    for turn in 0..number("SHMCAST_KILLS", 3u32) {
        let before = feed.published();
        wait_until("messages on disk", || {
            daemon.client().channel("ticks").is_ok_and(|it| it.journal.is_some_and(|it| it.durable > before))
        });
        if turn % 3 == 2 {
            daemon.end(Signal::SIGTERM);
            daemon.restart();
        } else {
            daemon.crash();
        }
    }
    wait_until("more than the ring holds", || feed.published() > 80_000);
    let (_publisher, last) = feed.end();
    let client = daemon.client();
    wait_until("the last message on disk", || {
        client.channel("ticks").is_ok_and(|it| it.journal.is_some_and(|it| it.durable >= last))
    });
    let (mut slow, mut told) = slow.join().unwrap();
    told.extend(read_to(&mut slow, last));
    told.extend(read_to(&mut reader, last));
    assert!(told.contains(&"live".to_owned()) && told.iter().all(|event| event == "live"), "{told:?}");
    daemon.end(Signal::SIGTERM);
    let (messages, losses) = contents(&journal);
    assert_eq!(losses, []);
    assert!(messages.iter().copied().eq(1..=last), "{} messages of {last}", messages.len());
    let checked = daemon.shmcast(&format!("journal verify {}", journal.display())).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

/// The recorder asks for the channel before the programs with its memory are back. The recorder must not get other memory.
#[test]
fn a_daemon_that_ends_right_after_a_crash_leaves_the_channel_to_those_who_hold_it() {
    let (_room, journal) = room();
    let mut daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut reader = Subscriber::builder("ticks").client(&client).open().unwrap();
    publish(&mut publisher, 100);
    wait_until_durable(&client, 100);
    daemon.crash();
    daemon.end(Signal::SIGTERM);
    daemon.restart();
    wait_until("those who come back", || publisher.is_registered() == Some(true));
    publish(&mut publisher, 200);
    wait_until_durable(&daemon.client(), 200);
    assert_eq!(read_to(&mut reader, 200), Vec::<String>::new());
    daemon.end(Signal::SIGTERM);
    assert_eq!(contents(&journal), ((1..=200).collect(), vec![]));
}

/// A reader of the past needs its next file from a daemon that is dead. The reader learns that it waits, and misses nothing.
#[test]
fn a_reader_of_the_past_waits_for_the_next_daemon() {
    let (_room, journal) = room();
    let mut daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish_recorded(&client, &mut publisher, 60_000); // some 5 files
    let open = || Subscriber::builder("ticks").client(&client).start(Start::Oldest).open().unwrap();
    let (mut within, mut before) = (open(), open());
    assert!(read_to(&mut within, 10).is_empty());
    daemon.kill();
    let waits_at = |reader: &mut Subscriber| loop {
        match reader.recv() {
            Ok(Event::Message(_)) => {}
            Err(RecvError::Stalled { sequence }) => return sequence,
            other => panic!("{other:?}"),
        }
    };
    let asked = Instant::now();
    assert!(before.try_recv().unwrap().is_none());
    assert!(asked.elapsed() < Duration::from_millis(2_500), "a call that does not wait waits for no daemon");
    assert_eq!(waits_at(&mut before), 1, "it has not begun with the journal");
    let first_file = waits_at(&mut within);
    assert!((11..50_000).contains(&first_file), "{first_file}");
    // However long the daemon is away, no reader takes this for an answer.
    let away = Instant::now();
    while away.elapsed() < Duration::from_secs(11) {
        assert_eq!(waits_at(&mut within), first_file);
    }
    assert_eq!(waits_at(&mut before), 1);
    daemon.restart();
    for reader in [&mut within, &mut before] {
        assert_eq!(read_to(reader, 60_000), ["live"]);
    }
}

/// A daemon without a free descriptor cannot lend the next file. This is no answer, so the readers wait and miss nothing.
#[test]
fn a_reader_of_the_past_waits_for_a_daemon_that_is_short_of_descriptors() {
    let (_room, journal) = room();
    let daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish_recorded(&client, &mut publisher, 60_000); // some 5 files
    let open = || Subscriber::builder("ticks").client(&client).start(Start::Oldest).open().unwrap();
    let (mut within, mut before) = (open(), open());
    assert!(read_to(&mut within, 10).is_empty());
    let pid = rustix::process::Pid::from_raw(daemon.pid().as_raw());
    let limit = |current: u64| {
        let new = rustix::process::Rlimit { current: Some(current), maximum: Some(4096) };
        rustix::process::prlimit(pid, rustix::process::Resource::Nofile, new).unwrap()
    };
    // One number is left for a connection, and none for the file. The daemon can still be closing earlier connections, so the limit is set
    // again and again.
    let tighten = || {
        let is_free = |number: &u64| !Path::new(&format!("/proc/{}/fd/{number}", daemon.pid())).exists();
        limit((3..).find(is_free).unwrap() + 1)
    };
    let whole = tighten();
    let told_before = daemon.told("refused");
    for reader in [&mut within, &mut before] {
        tighten();
        for _ in 0..2 {
            let stalled = loop {
                match reader.recv() {
                    Ok(Event::Message(message)) if message.sequence % 500 == 0 => drop(tighten()),
                    Ok(Event::Message(_)) => {}
                    other => break other,
                }
            };
            assert!(matches!(stalled, Err(RecvError::Stalled { .. })), "{stalled:?}");
        }
    }
    let refusals = daemon.told("refused") - told_before;
    assert!(refusals < 20, "{refusals} refusals in 8 s");
    limit(whole.current.unwrap().min(4096));
    for reader in [&mut within, &mut before] {
        assert_eq!(read_to(reader, 60_000), ["live"]);
    }
}

#[test]
fn a_reload_begins_a_journal_changes_it_and_ends_it() {
    let (_room, journal) = room();
    let config = recorded("ticks", "1MiB", &journal, "");
    let without = config.lines().filter(|line| !line.starts_with("journal")).collect::<Vec<_>>().join("\n");
    let daemon = Daemon::start(&without);
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 1_000);
    assert_eq!(status(&client), None);
    let mut before = Subscriber::builder("ticks").client(&client).open().unwrap();
    let configure = |config: &str| {
        daemon.configure(config);
        daemon.signal(Signal::SIGHUP);
    };
    configure(&config);
    wait_until("a journal", || status(&client).is_some());
    wait_until_durable(&client, 1_000);
    // A reader that attached before the journal existed is lapped, and continues in the journal.
    publish_recorded(&client, &mut publisher, 30_000);
    assert_eq!(read_to(&mut before, 30_000), ["live"]);
    configure(&recorded(
        "ticks",
        "1MiB",
        &journal,
        ", sync = \"each\", io = \"buffered\", roll_after = \"1h\"",
    ));
    wait_until("the next recorder", || status(&client).is_some_and(|journal| journal.first == 30_001));
    publish(&mut publisher, 31_000);
    assert_eq!(wait_until_durable(&client, 31_000).io, "buffered");
    configure(&without);
    wait_until("the journal's end", || status(&client).is_none());
    wait_until("the free directory", || !Journal::open(&journal).unwrap().is_recording());
    publish(&mut publisher, 31_010);
    let (messages, losses) = contents(&journal);
    assert_eq!((messages.len(), losses.len()), (31_000, 0));
    assert!(Journal::open(&journal).unwrap().files().iter().all(|file| file.trailer.is_some()));
    // The recorder starts again. If the ring has lost messages meanwhile, the journal names them.
    configure(&config);
    wait_until("the journal's return", || status(&client).is_some_and(|journal| journal.durable >= 31_010));
    assert_eq!(contents(&journal).0.len(), 31_010);
}

/// Readers that begin in the past request files from the daemon. Meanwhile the daemon is killed, ended in order, or stopped.
#[test]
fn a_time_a_key_and_a_sequence_are_found_whatever_became_of_the_daemon() {
    let (_room, journal) = room();
    let mut daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 999);
    publisher.publish_with(&payload(1_000), Mark { key: true, ..Mark::default() }).unwrap();
    publish(&mut publisher, 2_000);
    wait_until_durable(&client, 2_000);
    sleep(Duration::from_millis(50));
    let time = SystemTime::now();
    sleep(Duration::from_millis(50));
    publish_recorded(&client, &mut publisher, 30_000);
    let begin = |client: &Client| {
        for (start, first) in
            [(Start::Time(time), 2_001), (Start::Key, 1_000), (Start::Sequence(3_000), 3_000)]
        {
            let mut reader = Subscriber::builder("ticks").client(client).start(start).open().unwrap();
            assert_eq!(reader.next_sequence(), first, "{start:?}");
            assert_eq!(read_to(&mut reader, 30_000), ["live"], "{start:?}");
        }
    };
    daemon.kill();
    daemon.restart();
    begin(&daemon.client());
    daemon.end(Signal::SIGTERM);
    daemon.restart();
    begin(&daemon.client());
    let client = daemon.client();
    daemon.signal(Signal::SIGSTOP);
    std::thread::scope(|scope| {
        let readers = scope.spawn(|| begin(&client));
        sleep(Duration::from_secs(1));
        daemon.signal(Signal::SIGCONT);
        readers.join().unwrap();
    });
}

/// The journal returns to the configuration while its previous recorder still seals files. An earlier mistake: the daemon reported that
/// somebody else records into the directory.
#[test]
fn reloads_in_a_row_take_a_journal_out_and_put_it_back_without_a_failure() {
    let (_room, journal) = room();
    let config = recorded("ticks", "1MiB", &journal, "");
    let without = config.lines().filter(|line| !line.starts_with("journal")).collect::<Vec<_>>().join("\n");
    let daemon = Daemon::start(&config);
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut reloads = 0;
    let mut reload = |config: &str| {
        daemon.configure(config);
        daemon.signal(Signal::SIGHUP);
        reloads += 1;
        wait_until("the reload", || daemon.log().matches("event=\"reloaded\"").count() == reloads);
    };
    for turn in 1..=10 {
        publish(&mut publisher, turn * 100);
        wait_until_durable(&client, turn * 100);
        reload(&without);
        reload(&config);
    }
    publish(&mut publisher, 1_100);
    wait_until_durable(&client, 1_100);
    let log = daemon.log();
    assert!(!log.contains("journal-failed"), "{log}");
    let (messages, losses) = contents(&journal);
    assert_eq!((messages.len(), losses.len()), (1_100, 0));
}

#[test]
fn a_channel_that_begins_anew_is_recorded_beside_what_it_was() {
    let (_room, journal) = room();
    let daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ""));
    let client = daemon.client();
    let mut old = publishing(&client, "ticks").open().unwrap();
    let before_both = SystemTime::now() - Duration::from_secs(1);
    publish(&mut old, 300);
    wait_until_durable(&client, 300);
    let stream = old.header().stream;
    old.close();
    let mut new = publishing(&client, "ticks").anew().open().unwrap();
    publish(&mut new, 200);
    wait_until("the new stream on disk", || {
        status(&client).is_some_and(|journal| journal.state == "recording" && journal.durable == 200)
    });
    let before = folder_of(&journal, stream);
    assert_eq!((contents(&before).0.len(), contents(&journal).0.len()), (300, 200));
    daemon.wait_for_log(&["event=\"journal-anew\"", &stream.to_string()]);
    // From any start, readers begin in the new stream.
    for (start, first) in [(Start::Oldest, 1), (Start::Time(before_both), 1), (Start::Sequence(50), 50)] {
        let mut reader = Subscriber::builder("ticks").client(&client).start(start).open().unwrap();
        assert_eq!(reader.next_sequence(), first, "{start:?}");
        assert!(read_to(&mut reader, 200).is_empty(), "{start:?}");
    }
    // Verbs use the newest stream, and report that there is another one.
    let run = |words: &str| daemon.shmcast(words).output().unwrap();
    let dir = journal.display();
    let newest = text(&run(&format!("journal verify {dir}")).stderr);
    assert!(newest.contains("200 messages") && newest.contains("shows 1 more"), "{newest}");
    let old = run(&format!("journal verify {dir}/{stream}"));
    assert!(text(&old.stderr).contains("300 messages"), "{old:?}");
    let listed = text(&run(&format!("journal ls {dir}")).stdout);
    assert!(listed.contains(&format!("stream {stream} of channel ticks")), "{listed}");
    assert_eq!(listed.matches("stream ").count(), 2, "{listed}");
    let unknown = run(&format!("journal verify {dir}/{}", "0".repeat(32)));
    assert!(!unknown.status.success() && text(&unknown.stderr).contains("No such"), "{unknown:?}");
}

#[test]
fn publishers_of_a_strict_channel_are_recorded_as_one_stream() {
    let (_room, journal) = room();
    let config = recorded("ticks", "1MiB", &journal, "").replace("journal =", "mode = \"strict\"\njournal =");
    let daemon = Daemon::start(&config);
    let client = daemon.client();
    let mut first = Subscriber::builder("ticks").client(&client).open().unwrap();
    let mut last = 0;
    for _ in 0..3 {
        let mut publisher = publishing(&client, "ticks").open().unwrap();
        last += 5_000;
        publish_recorded(&client, &mut publisher, last);
    }
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let mut stopped = Subscriber::builder("ticks").client(&client).open().unwrap();
    let mut late = Subscriber::builder("ticks").client(&client).start(Start::Oldest).open().unwrap();
    assert_eq!(late.next_sequence(), 1);
    publish_recorded(&client, &mut publisher, last + 20_000);
    for reader in [&mut first, &mut stopped, &mut late] {
        let told = read_to(reader, last + 20_000);
        let live = told.iter().filter(|event| *event == "live").count();
        assert_eq!(live, 1, "live is the message that is in the ring, not the end of a segment: {told:?}");
        let is_sound = |event: &String| event == "live" || event == "End" || event.starts_with("NewEpoch");
        assert!(told.iter().all(is_sound) && told.last().is_some_and(|event| event == "live"), "{told:?}");
    }
    assert_eq!(contents(&journal).1, []);
}

/// A reload makes a ring with another schema, clock and largest message. The header of a file must hold for everything in the file.
#[test]
fn another_ring_begins_another_file() {
    let (room, journal) = room();
    let config = |capacity: &str, ring: &str| {
        recorded("ticks", capacity, &journal, "").replace("journal =", &format!("{ring}\njournal ="))
    };
    let daemon =
        Daemon::start(&config("64KiB", "schema_id = 1\nschema = \"small/1\"\nclock = \"monotonic\""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 10);
    publisher.close();
    wait_until_durable(&client, 10);
    daemon.configure(&config("16MiB", "schema_id = 2\nschema = \"large/1\"\nclock = \"counter\""));
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["event=\"reloaded\""]);
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 20);
    publisher.publish(&vec![7; 2 << 20]).unwrap();
    wait_until_durable(&client, 21);
    publisher.close();

    let mut reader = Journal::open(&journal).unwrap().read_from(1).unwrap();
    let mut before_ns = 0;
    let begun = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 - 60_000_000_000;
    while let Some(entry) = reader.next().unwrap() {
        let Entry::Message(Message { sequence, payload, time, .. }) = entry else { continue };
        let length = payload.len();
        let header = reader.header().unwrap();
        let wanted = if sequence <= 10 { (1, "small/1") } else { (2, "large/1") };
        assert_eq!((header.schema_id, header.schema.as_str()), wanted, "message {sequence}");
        assert!(length <= header.largest_frame as usize, "{length} in {header:?}");
        let wall_ns = reader.wall_ns(time).unwrap();
        assert!(wall_ns >= before_ns.max(begun) && wall_ns < begun + 120_000_000_000, "message {sequence}");
        before_ns = wall_ns;
    }
    assert_eq!(reader.due(), 22);

    // The verbs that copy a journal keep both rings.
    let (journal, out) = (journal.display(), room.path().join("out"));
    let run = |words: &str| daemon.shmcast(words).output().unwrap();
    assert!(run(&format!("journal cut {journal} {} --from 5", out.display())).status.success());
    for dir in [journal.to_string(), out.display().to_string()] {
        let verified = run(&format!("journal verify {dir}"));
        assert!(verified.status.success(), "{}", text(&verified.stderr));
    }
    let headers: BTreeSet<u64> =
        Journal::open(&out).unwrap().files().iter().map(|file| file.header.schema_id).collect();
    assert_eq!(headers, BTreeSet::from([1, 2]));
    let channels = room.path().join("channels");
    let replay = |span: &str| {
        run(&format!("replay {journal} --into again --dir {} --speed max {span}", channels.display()))
    };
    let refused = replay("");
    let said = text(&refused.stderr);
    assert!(!refused.status.success() && said.contains("large/1") && said.contains("--from 11"), "{said}");
    let again = shmcast::Directory::at(&channels).channel("again").unwrap().detail.unwrap();
    assert_eq!(again.header.schema, "small/1");
}

#[test]
fn the_oldest_files_go_and_the_rest_is_read() {
    let (_room, journal) = room();
    let daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, ", keep_bytes = \"3MiB\""));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish_recorded(&client, &mut publisher, 120_000); // some 11 MiB on disk
    let kept = wait_for("the oldest files' end", || {
        // The daemon's figures are of its last look, which may have been amid the publishing.
        let files = Journal::open(&journal).ok()?.files().to_vec();
        let on_disk = files.iter().map(|file| file.bytes).sum::<u64>();
        let first = files.first()?.header.sequence;
        status(&client).filter(|it| it.oldest > 1 && on_disk <= 3 << 20 && first == it.oldest)
    });
    daemon.wait_for_log(&["event=\"journal-trimmed\"", "the oldest sequence is"]);
    let (messages, losses) = contents(&journal);
    assert_eq!((messages[0], *messages.last().unwrap(), losses.len()), (kept.oldest, 120_000, 0));
    let mut reader = Subscriber::builder("ticks").client(&client).start(Start::Oldest).open().unwrap();
    assert_eq!(reader.next_sequence(), kept.oldest);
    assert_eq!(read_to(&mut reader, 120_000), ["live"]);
    let checked = daemon.shmcast(&format!("journal verify {}", journal.display())).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
}

/// Many readers of one user are lapped at the same time, and send more requests than the daemon answers in a second. They take turns, and
/// no reader loses a message.
#[test]
fn readers_that_ask_too_often_lose_nothing() {
    let (_room, journal) = room();
    let limits = "[limits]\nrequests_per_second = 40\nrequest_burst = 10\n";
    let daemon = Daemon::start(&format!("{limits}{}", recorded("ticks", "1MiB", &journal, "")));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let open = || Subscriber::builder("ticks").client(&client).open().ok();
    let readers: Vec<Subscriber> = (0..12).map(|_| wait_for("a reader's turn", open)).collect();
    for last in (1..=40).map(|part| part * 1_000) {
        publish(&mut publisher, last);
        // The recorder takes the messages in the ring before the next part is published. The test does not ask the daemon.
        wait_until("the messages in a file", || contents(&journal).0.last() == Some(&last));
    }
    let reading =
        readers.into_iter().map(|mut reader| std::thread::spawn(move || read_to(&mut reader, 40_000)));
    for told in reading.collect::<Vec<_>>() {
        assert_eq!(told.join().unwrap(), ["live"]);
    }
}

/// A hold keeps files beyond the size limit. If the file system has too little room, these files are removed nevertheless, and the daemon
/// names the holds.
#[test]
fn files_that_are_held_stay_until_the_room_is_needed() {
    let (_room, journal) = room();
    let limits = ", keep_bytes = \"2MiB\"";
    let daemon = Daemon::start(&recorded("ticks", "1MiB", &journal, limits));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish_recorded(&client, &mut publisher, 1_000);
    let hold = |name: &str| {
        let command = format!("journal hold {} {name}", journal.display());
        assert!(daemon.shmcast(&command).output().unwrap().status.success());
    };
    hold("audit");
    hold("other");
    // If a hold's note cannot be read, all files are kept.
    fs::write(folder(&journal).join("broken.hold"), "what?").unwrap();
    publish_recorded(&client, &mut publisher, 100_000);
    // The daemon checks every 5 s whether files must be removed.
    std::thread::sleep(Duration::from_millis(5_500));
    assert_eq!(status(&client).unwrap().oldest, 1, "files that are held are gone");
    for name in ["audit", "broken"] {
        let command = format!("journal release {} {name}", journal.display());
        assert!(daemon.shmcast(&command).output().unwrap().status.success());
    }
    std::thread::sleep(Duration::from_millis(5_500));
    assert_eq!(status(&client).unwrap().oldest, 1, "the other hold still keeps them");
    let needs_room = recorded("ticks", "1MiB", &journal, &format!("{limits}, keep_free = \"4096GiB\""));
    daemon.configure(&needs_room);
    daemon.signal(Signal::SIGHUP);
    daemon.wait_for_log(&["event=\"journal-hold-broken\"", "hold other"]);
    wait_until("the oldest files' end", || status(&client).is_some_and(|journal| journal.oldest > 50_000));
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(_) = my_role() else { return };
    let raw = Raw::greeted(&my_socket());
    let (reply, _) = raw.ask_for_files(&json!({"request": "history", "channel": "closed"}), &[]);
    assert_eq!((&reply["reply"], &reply["code"]), (&json!("refused"), &json!("denied")), "{reply}");
    let (reply, files) = raw.ask_for_files(&json!({"request": "history", "channel": "ticks"}), &[]);
    assert_eq!((&reply["reply"], files.len()), (&json!("history"), 1), "{reply}");
    let path = format!("/proc/self/fd/{}", files[0].as_raw_fd());
    let again = File::options().read(true).write(true).open(path);
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied, "it can be written to");
}

#[test]
fn files_are_lent_to_readers_of_the_channel_alone() {
    const NAME: &str = "files_are_lent_to_readers_of_the_channel_alone";
    let (room, journal) = room();
    let closed = recorded("closed", "1MiB", &room.path().join("closed"), "").replace(FOR_ALL, "");
    let daemon = Daemon::start(&(recorded("ticks", "1MiB", &journal, "") + &closed));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 100);
    wait_until_durable(&client, 100);
    let raw = Raw::greeted(&daemon.socket());
    let ask = |more: Value| {
        let mut request = json!({"request": "history", "channel": "ticks"});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        raw.ask_for_files(&request, &[])
    };
    for wanted in [json!({}), json!({"sequence": 50}), json!({"sequence": 1_000_000}), json!({"time_ns": 1})]
    {
        let (reply, files) = ask(wanted);
        // The journal already existed when the ring was made, and the recorder begins a file of its own.
        let number = if reply["file"] == 1 { 1 } else { 2 };
        let expected =
            json!({"reply": "history", "file": number, "first": 1, "offset": 4096, "recording": true});
        assert_eq!((&reply, files.len()), (&expected, 1));
        let listed = Journal::open(&journal).unwrap().files()[number - 1].name.clone();
        assert_eq!(
            files[0].metadata().unwrap().ino(),
            fs::metadata(folder(&journal).join(listed)).unwrap().ino()
        );
    }
    let (reply, _) = raw.ask_for_files(&json!({"request": "history", "channel": "none"}), &[]);
    assert_eq!(reply["code"], "unknown-channel", "{reply}");
    let Some(mut other) = shmcast_testkit::role_as!(NAME, 1, "reader") else { return };
    let status = at_socket(&mut other, &daemon.socket()).status().unwrap();
    assert!(status.success(), "as another user: {status}");
}

/// A directory with another channel's journal is lent to nobody. After it is moved away, the new journal is lent.
#[test]
fn the_journal_of_another_channel_is_not_lent() {
    let (room, journal) = room();
    let mut daemon = Daemon::start(&recorded("secret", "1MiB", &journal, ""));
    let mut publisher = publishing(&daemon.client(), "secret").open().unwrap();
    publish(&mut publisher, 100);
    let durable = |channel: &str| {
        let client = daemon.client();
        client.channel(channel).ok().and_then(|it| it.journal).map_or(0, |journal| journal.durable)
    };
    wait_until("the other journal", || durable("secret") == 100);
    drop(publisher);
    daemon.end(Signal::SIGTERM);
    daemon.configure(&recorded("ticks", "1MiB", &journal, ""));
    daemon.restart();
    let client = daemon.client();
    let failed = wait_for("the refusal", || status(&client).filter(|journal| journal.state == "failed"));
    assert!(
        failed.why.as_ref().is_some_and(|why| why.contains("journal of channel \"secret\"")),
        "{failed:?}"
    );
    let raw = Raw::greeted(&daemon.socket());
    let ask = || raw.ask_for_files(&json!({"request": "history", "channel": "ticks"}), &[]);
    let (reply, files) = ask();
    assert_eq!((&reply["code"], files.len()), (&json!("no-journal"), 0), "{reply}");
    fs::rename(&journal, room.path().join("secret")).unwrap();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 50);
    wait_until_durable(&client, 50);
    let (reply, files) = ask();
    assert_eq!((&reply["reply"], &reply["first"]), (&json!("history"), &json!(1)), "{reply}");
    let own = files[0].metadata().unwrap();
    assert_eq!(own.ino(), fs::metadata(first_file(&journal)).unwrap().ino());
}

fn first_file(journal: &Path) -> PathBuf {
    let files = Journal::open(journal).unwrap();
    files.path().join(&files.files()[0].name)
}

#[test]
fn what_is_wrong_with_a_journal_is_told_and_tried_again() {
    let (room, _) = room();
    let parent = room.path().join("later");
    let config = recorded("ticks", "1MiB", &parent.join("ticks"), "");
    let daemon = Daemon::start(&config);
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    publish(&mut publisher, 10);
    let failed = wait_for("its failure", || status(&client).filter(|journal| journal.state == "failed"));
    assert!(failed.why.as_ref().is_some_and(|why| why.contains("later")), "{failed:?}");
    daemon.wait_for_log(&["event=\"journal-failed\"", "later"]);
    fs::create_dir(&parent).unwrap();
    wait_until_durable(&client, 10);
    assert_eq!(status(&client).unwrap().why, None);
}
