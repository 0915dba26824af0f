//! A channel moves to other memory. Either all of its readers follow, whatever state they are in, or none does.
//!
//! `SHMCAST_INJECTIONS` sets at how many of the daemon's system calls a takeover is made to fail; 0 means all of them.

mod hostile;
mod injected;

use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use serde_json::json;
use shmcast::hosting::STREAM_STEP_NS;
use shmcast::{Client, Event, LocateError, PublishError, Publisher, Start, Subscriber, Wait};
use shmcast_layout::layout::header::LAZY_PUBLISHED;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, in_dir, my_dir, my_role, my_socket};
use shmcast_testkit::raw::{Raw, fds, publish};
use shmcast_testkit::{Process, role, scratch, wait_for, wait_until};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

fn config(mode: &str) -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    limits.to_owned() + &ticks(mode, "")
}

fn ticks(mode: &str, more: &str) -> String {
    channel("ticks", &format!("mode = \"{mode}\"\n{FOR_ALL}{more}")).replace("16MiB", "1MiB")
}

fn publisher(daemon: &Daemon) -> Publisher {
    publishing(&daemon.client(), "ticks").open().unwrap()
}

fn reader(daemon: &Daemon) -> Subscriber {
    let builder = Subscriber::builder("ticks").client(&daemon.client()).start(Start::Oldest);
    builder.wait(Wait::Sleep(Duration::from_millis(1))).open().unwrap()
}

/// An event as text: payloads as they are, other events by their names.
fn word(event: &Event<'_>) -> String {
    match event {
        Event::Message(m) => format!("{} {}", m.sequence, m.payload.escape_ascii()),
        Event::Lapped(lapped) => format!("lapped {}", lapped.missed),
        Event::NewEpoch { epoch } => format!("epoch {epoch}"),
        Event::Restarted => "restarted".to_owned(),
        Event::End => "end".to_owned(),
        other => format!("{other:?}"),
    }
}

/// The next events that a reader gets, as text, up to and including `last`.
fn words(subscriber: &mut Subscriber, last: &str) -> Vec<String> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut words = Vec::new();
    while words.last().is_none_or(|word| word != last) {
        match subscriber.recv_deadline(deadline).unwrap() {
            Some(event) => words.push(word(&event)),
            None => panic!("{last:?} has not come: {words:?}"),
        }
    }
    words
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    if my_role().is_none() {
        return;
    }
    let client = Client::at(my_socket()).unwrap();
    let mut log = OpenOptions::new().create(true).append(true).open(my_dir().join("words")).unwrap();
    let builder = Subscriber::builder("ticks").client(&client).start(Start::Oldest);
    let mut subscriber = builder.wait(Wait::Sleep(Duration::from_millis(1))).open().unwrap();
    writeln!(log, "ready").unwrap();
    loop {
        let line = word(&subscriber.recv().unwrap()) + "\n";
        log.write_all(line.as_bytes()).unwrap();
    }
}

/// A reader in a process of its own, which can be stopped.
struct Apart {
    process: Process,
    dir: tempfile::TempDir,
}

impl Apart {
    fn start(daemon: &Daemon) -> Self {
        let dir = scratch();
        let mut command = role!("reader");
        let process = Process::start(at_socket(in_dir(&mut command, dir.path()), &daemon.socket()));
        let apart = Self { process, dir };
        apart.wait_for("ready");
        apart
    }

    fn words(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.path().join("words")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    fn wait_for(&self, last: &str) -> Vec<String> {
        wait_for(last, || Some(self.words()).filter(|words| words.iter().any(|word| word == last)))
    }
}

#[test]
fn a_reader_hears_of_a_channel_that_begins_anew_and_goes_on() {
    for mode in ["takeover", "strict"] {
        let daemon = Daemon::start(&config(mode));
        let mut subscriber = reader(&daemon);
        let mut parked =
            Subscriber::builder("ticks").client(&daemon.client()).wait(Wait::Park).open().unwrap();
        let mut first = publisher(&daemon);
        first.publish(b"old").unwrap();
        drop(first);
        let builder = publishing(&daemon.client(), "ticks").anew();
        let mut second = builder.open().unwrap();
        assert_eq!((second.next_sequence(), second.epoch()), (1, 1), "{mode}");
        second.publish(b"new").unwrap();
        let expected = ["1 old", "end", "restarted", "1 new"];
        assert_eq!(words(&mut subscriber, "1 new"), expected, "{mode}");
        assert_eq!(words(&mut parked, "1 new"), expected, "{mode}, parked");
        daemon.wait_for_log(&["event=\"restarted\"", "generation 2"]);
    }
}

/// Bridges name a channel's stream by the time at which the stream began, rounded to steps.
#[test]
fn streams_that_follow_at_once_do_not_begin_in_one_step() {
    let mut daemon = Daemon::start(&config("takeover"));
    let began_ns = |daemon: &Daemon| daemon.client().channel("ticks").unwrap().created_ns;
    let mut before = 0;
    for round in 0..6 {
        // A reader stays attached, so that the daemon remembers the removed channel.
        let subscriber = reader(&daemon);
        let builder = publishing(&daemon.client(), "ticks");
        let builder = if round == 0 { builder.anew() } else { builder };
        builder.open().unwrap().publish(b"x").unwrap();
        let began = began_ns(&daemon);
        assert!(began >= before + STREAM_STEP_NS, "round {round}: {began} after {before}");
        before = began;
        match round % 3 {
            0 => {
                daemon.reload("");
                daemon.reload(&config("takeover"));
            }
            1 => {
                drop(subscriber);
                daemon.reload("");
                daemon.reload(&config("takeover"));
            }
            _ => {
                // Nobody brings the memory back.
                drop(subscriber);
                daemon.crash();
            }
        }
    }
}

#[test]
fn a_takeover_that_fails_half_way_leaves_everything_as_it_was() {
    let daemon = Daemon::start(&config("strict"));
    let mut readers = [reader(&daemon), reader(&daemon)];
    let mut publisher = publisher(&daemon);
    let mut epoch = publisher.epoch();
    let pid = Pid::from_raw(daemon.pid().as_raw()).unwrap();
    let descriptors = |most| Rlimit { current: Some(most), maximum: Some(1024) };
    let raw = Raw::greeted(&daemon.socket());
    let (mut refused, mut granted) = (0, 0);
    let mut said = 0;
    let mut expected = Vec::new();
    for spare in 0..12 {
        prlimit(Some(pid), Resource::Nofile, descriptors(limit_with_room(pid, spare))).unwrap();
        let answer = raw.ask(&json!({"request": "take-over", "channel": "ticks"}), &[]);
        prlimit(Some(pid), Resource::Nofile, descriptors(1024)).unwrap();
        if answer["reply"] == "done" {
            granted += 1;
            publisher = publishing(&daemon.client(), "ticks").open().unwrap();
            epoch += 1;
            expected.push(format!("epoch {epoch}"));
        } else {
            assert_eq!(
                (&answer["reply"], &answer["code"]),
                (&json!("refused"), &json!("failed")),
                "{answer}"
            );
            refused += 1;
        }
        said += 1;
        let sequence = publisher.publish(said.to_string().as_bytes()).unwrap();
        expected.push(format!("{sequence} {said}"));
    }
    assert!(refused > 1 && granted > 1, "{refused} refused, {granted} granted");
    for subscriber in &mut readers {
        // A publisher that is replaced while it lives does not close the channel, so readers see no end.
        assert_eq!(words(subscriber, expected.last().unwrap()), expected);
    }
}

/// The added channel `b` exists already for its readers, because they stayed when it was removed.
#[test]
fn a_reload_that_fails_half_way_adds_no_channel() {
    let [a, b, c] = ["a", "b", "c"].map(|name| channel(name, FOR_ALL).replace("16MiB", "64KiB"));
    let daemon = Daemon::start(&b);
    let readers = [(); 4].map(|()| Raw::greeted(&daemon.socket()));
    readers.iter().for_each(|raw| drop(raw.subscribe("b")));
    daemon.reload("");
    let pid = Pid::from_raw(daemon.pid().as_raw()).unwrap();
    let descriptors = |most| Rlimit { current: Some(most), maximum: Some(1024) };
    let raw = Raw::greeted(&daemon.socket());
    let (mut refused, mut granted) = (0, 0);
    for spare in 2..40 {
        let outcomes = [daemon.told("reload-refused"), daemon.told("reloaded")];
        daemon.configure(&[a.as_str(), &b, &c].concat());
        prlimit(Some(pid), Resource::Nofile, descriptors(limit_with_room(pid, spare))).unwrap();
        daemon.signal(Signal::SIGHUP);
        wait_until("the end of the reload", || {
            [daemon.told("reload-refused"), daemon.told("reloaded")] != outcomes
        });
        prlimit(Some(pid), Resource::Nofile, descriptors(1024)).unwrap();
        if daemon.told("reloaded") > outcomes[1] {
            granted += 1;
            for reader in &readers {
                assert_eq!(reader.receive().unwrap().0["reply"], "moved", "with {spare} to spare");
            }
            daemon.reload("");
            continue;
        }
        refused += 1;
        for name in ["a", "b", "c"] {
            raw.assert_refused(&json!({"request": "stat", "channel": name}), &[], "unknown-channel");
        }
    }
    assert!(refused > 1 && granted > 1, "{refused} refused, {granted} granted");
    // A reload that failed has told the readers nothing.
    for reader in readers {
        assert_eq!(reader.ask(&json!({"request": "mapped"}), &[])["reply"], "done");
    }
}

/// A daemon that cannot open a publisher's segment does not know its channel. The daemon must not cut the publisher off because of that.
#[test]
fn a_publisher_that_comes_back_to_a_daemon_without_descriptors_is_not_cut_off() {
    let daemon = Daemon::start(&config("strict"));
    let pid = Pid::from_raw(daemon.pid().as_raw()).unwrap();
    let descriptors = |most| Rlimit { current: Some(most), maximum: Some(1024) };
    let files = Raw::greeted(&daemon.socket()).ask_for_files(&publish("ticks", false), &[]).1;
    let (mut refused, mut granted) = (0, 0);
    for spare in 0..12 {
        let back = Raw::greeted(&daemon.socket());
        prlimit(Some(pid), Resource::Nofile, descriptors(limit_with_room(pid, spare))).unwrap();
        back.send(publish("ticks", true).to_string().as_bytes(), &fds(&files[..2])).unwrap();
        let answer = back.receive();
        prlimit(Some(pid), Resource::Nofile, descriptors(1024)).unwrap();
        match answer.map(|(answer, _)| answer) {
            Some(answer) if answer["reply"] == "publishing" => granted += 1,
            Some(answer) => {
                assert_ne!(answer["code"], "busy", "with {spare} to spare: {answer}");
                refused += 1;
            }
            None => refused += 1,
        }
    }
    assert!(refused > 1 && granted > 1, "{refused} refused, {granted} granted");
}

/// The limit under which the process can open `room` more descriptors. The kernel limits the numbers of descriptors,
/// not their count.
fn limit_with_room(pid: Pid, room: usize) -> u64 {
    let open = fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap();
    let open: Vec<u64> = open.map(|fd| fd.unwrap().file_name().to_str().unwrap().parse().unwrap()).collect();
    (0..1024).filter(|number| !open.contains(number)).nth(room).unwrap()
}

/// The reader is stopped, and the daemon crashes. Meanwhile the channel is taken over, and the old publisher still writes.
#[test]
fn a_reader_that_was_stopped_over_a_crash_and_a_takeover_hears_no_void_message() {
    let mut daemon = Daemon::start(&config("strict"));
    let mut old = publisher(&daemon);
    let apart = Apart::start(&daemon);
    old.publish(b"heard").unwrap();
    apart.wait_for("1 heard");
    apart.process.pause();
    old.publish(b"valid").unwrap();
    daemon.crash();
    wait_until("the publisher to come back", || old.is_registered() == Some(true));
    daemon.client().take_over("ticks").unwrap();
    let mut new = publisher(&daemon);
    assert_eq!(new.next_sequence(), 3);
    new.publish(b"from the next").unwrap();
    assert_eq!(old.publish(b"void"), Err(PublishError::CutOff), "the charter says so at once");
    apart.process.signal(Signal::SIGCONT);
    let words = apart.wait_for("3 from the next");
    assert_eq!(words, ["ready", "1 heard", "2 valid", "epoch 2", "3 from the next"]);
}

#[test]
fn a_larger_message_after_a_reload_reaches_readers_that_were_attached_before() {
    for mode in ["takeover", "strict"] {
        let small = ticks(mode, "").replace("1MiB", "1MiB\"\nmax_message = \"4KiB");
        let daemon = Daemon::start(&small);
        let mut subscriber = reader(&daemon);
        let mut first = publisher(&daemon);
        first.publish(b"small").unwrap();
        daemon.reload(&small.replace("4KiB", "64KiB"));
        daemon.wait_for_log(&["until the next publisher", "ticks"]);
        drop(first);
        let mut second = publisher(&daemon);
        assert_eq!(second.max_message(), 64 << 10, "{mode}");
        second.publish(&[b'x'; 60_000]).unwrap();
        words(&mut subscriber, "end");
        assert_eq!(words(&mut subscriber, "epoch 2"), ["epoch 2"], "{mode}");
        let event = subscriber.recv().unwrap();
        assert!(matches!(event, Event::Message(m) if m.payload.len() == 60_000 && m.sequence == 2), "{mode}");
    }
}

#[test]
fn a_reader_without_room_for_a_descriptor_follows_when_it_has_some() {
    let daemon = Daemon::start(&config("strict"));
    let mut first = publisher(&daemon);
    let apart = Apart::start(&daemon);
    first.publish(b"one").unwrap();
    apart.wait_for("1 one");
    let pid = Pid::from_raw(apart.process.id() as i32).unwrap();
    let descriptors = |most| Rlimit { current: Some(most), maximum: Some(1024) };
    prlimit(Some(pid), Resource::Nofile, descriptors(limit_with_room(pid, 0))).unwrap();
    daemon.client().take_over("ticks").unwrap();
    let mut second = publisher(&daemon);
    second.publish(b"two").unwrap();
    // The only visible sign is that the reader disappears from the daemon's table.
    wait_until("the reader to be without a place", || {
        daemon.client().channel("ticks").is_ok_and(|status| status.readers.is_empty())
    });
    prlimit(Some(pid), Resource::Nofile, descriptors(1024)).unwrap();
    assert_eq!(apart.wait_for("2 two"), ["ready", "1 one", "epoch 2", "2 two"]);
}

/// A reader of a lost channel attaches again with a new charter. If it has no room for one more descriptor at any point, it tries again.
#[test]
fn a_reader_with_little_room_that_comes_back_to_a_new_charter_restarts() {
    let mut daemon = Daemon::start(&config("takeover"));
    let mut old = publisher(&daemon);
    let readers = [(); 13].map(|()| Apart::start(&daemon));
    old.publish(b"old").unwrap();
    readers.iter().for_each(|apart| drop(apart.wait_for("1 old")));
    daemon.kill();
    drop(old);
    fs::remove_dir_all(daemon.socket().with_extension("charters")).unwrap();
    let descriptors = |most| Rlimit { current: Some(most), maximum: Some(1024) };
    let pid = |apart: &Apart| Pid::from_raw(apart.process.id() as i32).unwrap();
    for (spare, apart) in readers.iter().enumerate() {
        let pid = pid(apart);
        prlimit(Some(pid), Resource::Nofile, descriptors(limit_with_room(pid, spare))).unwrap();
    }
    daemon.restart();
    let mut new = publisher(&daemon);
    new.publish(b"new").unwrap();
    // The reader with the most room comes back, and the others have made an attempt by then.
    readers[12].wait_for("1 new");
    std::thread::sleep(Duration::from_millis(600));
    for (spare, apart) in readers.iter().enumerate() {
        prlimit(Some(pid(apart)), Resource::Nofile, descriptors(1024)).unwrap();
        let words = apart.wait_for("1 new");
        assert!(words.contains(&"restarted".to_owned()), "{spare} to spare: {words:?}");
    }
}

#[test]
fn whoever_only_polls_or_has_sought_hears_of_the_next_publisher() {
    let daemon = Daemon::start(&config("strict"));
    let mut first = publisher(&daemon);
    first.publish(b"one").unwrap();
    first.publish(b"two").unwrap();
    let [mut polls, mut batches, mut sought] = [reader(&daemon), reader(&daemon), reader(&daemon)];
    sought.seek(2).unwrap();
    let mut heard = [vec![], vec![], vec![]];
    let mut look = |until: usize| {
        wait_until("the readers", || {
            while let Some(event) = polls.try_recv().unwrap() {
                heard[0].push(word(&event));
            }
            while batches.recv_batch(8, |event| heard[1].push(word(&event))).unwrap() > 0 {}
            while let Some(event) = sought.try_recv().unwrap() {
                heard[2].push(word(&event));
            }
            heard.iter().all(|heard| heard.last().is_some_and(|last| last.starts_with(&until.to_string())))
        });
        heard.clone()
    };
    look(2);
    daemon.client().take_over("ticks").unwrap();
    let mut second = publisher(&daemon);
    second.publish(b"three").unwrap();
    for heard in look(3) {
        assert_eq!(heard[heard.len() - 3..], ["2 two", "epoch 2", "3 three"], "{heard:?}");
    }
}

/// After the channel has moved to other memory, a seek to an unpublished sequence fails. The earlier messages can still be received.
#[test]
fn a_seek_that_fails_costs_no_message() {
    let daemon = Daemon::start(&config("strict"));
    let [mut fails, mut jumps, mut late] = [reader(&daemon), reader(&daemon), reader(&daemon)];
    for (epoch, texts) in [(1, ["1 a", "2 b"]), (2, ["3 c", "4 d"]), (3, ["5 e", "6 f"])] {
        if epoch > 1 {
            daemon.client().take_over("ticks").unwrap();
        }
        let mut publisher = publisher(&daemon);
        for text in texts {
            publisher.publish(&text.as_bytes()[2..]).unwrap();
        }
    }
    wait_until("the last segment", || jumps.seek(6).is_ok());
    assert_eq!(words(&mut jumps, "6 f"), ["6 f"]);
    wait_until("the last segment", || matches!(fails.seek(8), Err(LocateError::NotYet { next: 7, .. })));
    for sequence in [8, 9, 1_000] {
        let refused = fails.seek(sequence).unwrap_err();
        assert!(matches!(refused, LocateError::NotYet { .. }), "{sequence}: {refused}");
        assert_eq!(fails.next_sequence(), 1);
    }
    for subscriber in [&mut fails, &mut late] {
        let heard = words(subscriber, "6 f");
        assert_eq!(heard, ["1 a", "2 b", "end", "epoch 2", "3 c", "4 d", "end", "epoch 3", "5 e", "6 f"]);
    }
}

#[test]
fn a_channel_whose_mode_changed_over_a_restart_is_still_to_be_had() {
    for (before, after) in [("strict", "takeover"), ("takeover", "strict")] {
        let mut daemon = Daemon::start(&config(before));
        let mut subscriber = reader(&daemon);
        let mut first = publisher(&daemon);
        first.publish(b"one").unwrap();
        daemon.configure(&config(after));
        daemon.crash();
        wait_until("the publisher to come back", || first.is_registered() == Some(true));
        first.publish(b"two").unwrap();
        drop(first);
        for (sequence, text) in [(3, "three"), (4, "four")] {
            let mut next = publisher(&daemon);
            assert_eq!(next.publish(text.as_bytes()).unwrap(), sequence, "{before} to {after}");
        }
        let heard = words(&mut subscriber, "4 four");
        let messages: Vec<&String> =
            heard.iter().filter(|word| word.as_bytes()[0].is_ascii_digit()).collect();
        assert_eq!(messages, ["1 one", "2 two", "3 three", "4 four"], "{before} to {after}: {heard:?}");
        assert_eq!(daemon.client().channel("ticks").unwrap().mode.as_deref(), Some(after));
    }
}

/// Sequences that begin again belong to a new stream, so that nobody takes the messages of one stream for those of another.
#[test]
fn a_channel_whose_ring_is_damaged_continues_as_another_stream() {
    let journal = tempfile::tempdir().unwrap();
    let more = format!("\njournal = {{ dir = \"{}\" }}\n", journal.path().join("ticks").display());
    for more in ["", &more] {
        let daemon = Daemon::start(&ticks("takeover", more));
        let client = daemon.client();
        let mut publisher = publisher(&daemon);
        publisher.publish(b"one").unwrap();
        drop(publisher);
        let stream = || client.channel("ticks").unwrap().stream;
        let before = stream();
        let raw = Raw::greeted(&daemon.socket());
        let (_, files) = raw.ask_for_files(&publish("ticks", false), &[]);
        files[0].write_all_at(&u64::MAX.to_le_bytes(), 8 * LAZY_PUBLISHED as u64).unwrap();
        drop(raw);
        daemon.reload(&ticks("takeover", more).replace("1MiB", "2MiB"));
        let mut second = wait_for("a publisher", || publishing(&client, "ticks").open().ok());
        assert_ne!(stream(), before);
        assert_eq!(second.publish(b"two").unwrap(), 1);
    }
}

#[test]
fn a_channel_that_is_removed_and_added_again_begins_again_for_those_who_stayed() {
    for mode in ["takeover", "strict"] {
        let daemon = Daemon::start(&config(mode));
        let mut subscriber = reader(&daemon);
        let mut old = publisher(&daemon);
        old.publish(b"old").unwrap();
        daemon.reload("");
        old.publish(b"among ourselves").unwrap();
        assert_eq!(words(&mut subscriber, "2 among ourselves").len(), 2);
        daemon.reload(&config(mode));
        assert_eq!(old.publish(b"void"), Err(PublishError::CutOff), "{mode}");
        let mut new = publisher(&daemon);
        new.publish(b"new").unwrap();
        assert_eq!(words(&mut subscriber, "1 new"), ["restarted", "1 new"], "{mode}");
    }
}

#[test]
fn a_reader_that_was_stopped_until_the_channel_went_on_without_it_begins_again() {
    for mode in ["takeover", "strict"] {
        let mut daemon = Daemon::start(&config(mode));
        let mut old = publisher(&daemon);
        let apart = Apart::start(&daemon);
        for _ in 0..1000 {
            old.publish(b"old").unwrap();
        }
        apart.wait_for("1000 old");
        apart.process.pause();
        // No program is left that could bring the memory back in time.
        daemon.kill();
        drop(old);
        daemon.restart();
        let mut new = publisher(&daemon);
        assert_eq!(new.publish(b"new").unwrap(), 1, "{mode}");
        apart.process.signal(Signal::SIGCONT);
        let words = apart.wait_for("1 new");
        let last = words.iter().position(|word| word == "1000 old").unwrap();
        let after: Vec<&str> =
            words[last + 1..].iter().map(String::as_str).filter(|word| *word != "end").collect();
        assert_eq!(after, ["restarted", "1 new"], "{mode}");
    }
}

/// A repair server of a bridge reads only the requested messages. If it were shown as a reader, its lag would grow for
/// ever.
#[test]
fn a_reader_that_is_to_be_hidden_is_shown_by_no_tool_and_follows_all_the_same() {
    let mut daemon = Daemon::start(&config("strict"));
    let mut first = publisher(&daemon);
    let builder = Subscriber::builder("ticks").client(&daemon.client()).start(Start::Oldest).page(false);
    let mut hidden = builder.wait(Wait::Sleep(Duration::from_millis(1))).open().unwrap();
    let readers = |daemon: &Daemon| daemon.client().channel("ticks").unwrap().readers.len();
    assert_eq!(readers(&daemon), 0);
    first.publish(b"one").unwrap();
    daemon.crash();
    wait_until("both to come back", || {
        first.is_registered() == Some(true) && hidden.is_registered() == Some(true)
    });
    assert_eq!(readers(&daemon), 0, "after a restart");
    daemon.client().take_over("ticks").unwrap();
    publisher(&daemon).publish(b"two").unwrap();
    assert_eq!(words(&mut hidden, "2 two"), ["1 one", "epoch 2", "2 two"]);
}
