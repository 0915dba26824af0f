//! Publishers die, or only seem dead. The next publisher continues where the last one was cut off, and a message that a stopped publisher
//! writes later reaches no reader.
//!
//! `SHMCAST_TAKEOVERS` sets how many publishers are killed, `SHMCAST_STRICT_TAKEOVERS` how many are stopped.

mod roles;

use nix::sys::signal::Signal;
use roles::{publish, publish_deaf, receive};
use shmcast::{Client, Event, Mark, PublishError, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::place::program;
use shmcast_testkit::process::{at_socket, in_dir, my_dir, my_role, my_socket};
use shmcast_testkit::{Process, number, role, scratch, skip, wait_for, wait_until};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// The tag of the last message of a test.
const LAST: u16 = 9;

fn config(mode: &str) -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    limits.to_owned() + &channel("ticks", &format!("mode = \"{mode}\"\n{FOR_ALL}"))
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    let client = Client::at(my_socket()).unwrap();
    match role.split_once('.').unwrap() {
        ("publisher", name) => publish(&client, &my_dir(), name),
        ("deaf", name) => publish_deaf(&my_socket(), &my_dir(), name),
        (kind, name) => receive(&client, &my_dir(), kind, name),
    }
}

fn start(daemon: &Daemon, dir: &Path, name: &str) -> Process {
    let mut command: Command = role!(name);
    Process::start(at_socket(in_dir(&mut command, dir), &daemon.socket()))
}

/// Writes a file of numbers. It appears whole or not at all.
fn tell(dir: &Path, name: &str, words: &[u64]) {
    let part = dir.join(format!("{name}.part"));
    fs::write(&part, words.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")).unwrap();
    fs::rename(part, dir.join(name)).unwrap();
}

fn told(dir: &Path, name: &str) -> Option<Vec<u64>> {
    let text = fs::read_to_string(dir.join(name)).ok()?;
    Some(text.split_whitespace().map(|word| word.parse().unwrap()).collect())
}

/// Waits until the daemon knows of a publisher and of all readers.
fn wait_until_all_are_back(daemon: &Daemon, readers: usize) {
    wait_for("all to register again", || {
        let status = daemon.client().channel("ticks").ok()?;
        (status.publisher.is_some() && status.readers.len() == readers).then_some(())
    });
}

#[test]
fn a_killed_publisher_is_followed_at_once_and_nothing_is_lost_or_told_twice() {
    let daemon = Daemon::start(&config("takeover"));
    let dir = scratch();
    let client = daemon.client();
    let mut reader = Subscriber::builder("ticks").client(&client).open().unwrap();
    let mut expected = reader.next_sequence();
    let mut last_epoch = 0;
    let mut latencies = Vec::new();
    // Reads all messages up to those of `epoch`.
    let mut read_until = |epoch: u64, least: u64| {
        let mut of_epoch = 0;
        wait_for("messages", || {
            while let Some(event) = reader.try_recv().unwrap() {
                match event {
                    Event::Message(message) => {
                        let told = u64::from_le_bytes(message.payload[..8].try_into().unwrap());
                        assert_eq!(message.sequence, expected, "a message was lost or came twice");
                        assert_eq!(message.payload[8..], expected.to_le_bytes());
                        assert!(told >= last_epoch, "a message of epoch {told} after one of {last_epoch}");
                        (expected, last_epoch) = (expected + 1, told);
                        of_epoch += u64::from(told == epoch);
                        if of_epoch >= least {
                            return Some(());
                        }
                    }
                    Event::NewEpoch { .. } | Event::End => {}
                    other => panic!("{other:?}"),
                }
            }
            None
        });
    };
    for round in 0..number("SHMCAST_TAKEOVERS", 20) {
        let victim = start(&daemon, dir.path(), &format!("publisher.{round}"));
        let [epoch, _] = wait_for("the publisher", || told(dir.path(), &format!("first.{round}")))[..] else {
            panic!("what a publisher tells first")
        };
        read_until(epoch, 30);
        let killed = Instant::now();
        victim.signal(Signal::SIGKILL);
        let mut next = loop {
            match publishing(&client, "ticks").open() {
                Ok(publisher) => break publisher,
                Err(e) => assert!(killed.elapsed() < shmcast_testkit::PATIENCE, "{e}"),
            }
        };
        assert_eq!(next.epoch(), epoch + 1);
        let words = [next.epoch(), next.next_sequence()];
        next.publish(words.map(u64::to_le_bytes).as_flattened()).unwrap();
        read_until(epoch + 1, 1);
        latencies.push(killed.elapsed());
    }
    latencies.sort();
    let at = |part: f64| latencies[((latencies.len() - 1) as f64 * part).round() as usize];
    println!(
        "SIGKILL to the next publisher's first message, {} times: p50 {:?}, p90 {:?}, p99 {:?}, max {:?}",
        latencies.len(),
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
    );
}

const READERS: [&str; 4] = ["spinning", "sleeping", "stopped", "lagging"];

#[test]
fn nothing_that_a_stopped_publisher_writes_late_reaches_anybody() {
    let mut daemon = Daemon::start(&config("strict"));
    let dir = scratch();
    let dir = dir.path();
    let rounds = number("SHMCAST_STRICT_TAKEOVERS", 6);
    let readers = READERS.map(|kind| start(&daemon, dir, &format!("{kind}.{kind}")));
    for kind in READERS {
        wait_for("the readers", || told(dir, &format!("ready.{kind}")));
    }
    let mut firsts = Vec::new();
    let await_publisher = |name: usize| wait_for("a publisher", || told(dir, &format!("first.{name}")));
    let await_progress = |name: usize, least: u64| {
        let at = |_: ()| told(dir, &format!("at.{name}")).map_or(0, |words| words[0]);
        let before = at(());
        wait_for("a publisher's progress", || (at(()) >= before + least).then_some(()));
    };
    let mut publisher = start(&daemon, dir, "deaf.0");
    firsts.push(await_publisher(0));
    for round in 1..=rounds {
        await_progress(round - 1, 200);
        if round.is_multiple_of(2) {
            // The next daemon can only read the segment, since it is sealed.
            daemon.crash();
            wait_until_all_are_back(&daemon, READERS.len());
        }
        publisher.pause();
        readers[2].pause();
        let taken = take_over(&daemon, round);
        assert!(taken.contains("ticks"), "{taken}");
        let resumes_first = round % 3 == 1;
        if resumes_first {
            publisher.signal(Signal::SIGCONT);
        }
        let next = start(&daemon, dir, &format!("deaf.{round}"));
        firsts.push(await_publisher(round));
        if round % 3 == 2 {
            // The returning programs bring different segments. The publisher that was cut off might come first.
            publisher.signal(Signal::SIGCONT);
            daemon.crash();
            readers[2].signal(Signal::SIGCONT);
            wait_until_all_are_back(&daemon, READERS.len());
        }
        publisher.signal(Signal::SIGCONT);
        await_progress(round - 1, 200);
        readers[2].signal(Signal::SIGCONT);
        await_progress(round - 1, 40);
        if round % 2 == 1 {
            // The publisher's end of the channel is void, as are the messages that it wrote before.
            tell(dir, &format!("{}.close", round - 1), &[]);
            wait_for("the old publisher to close", || told(dir, &format!("closed.{}", round - 1)));
        }
        // A reader that is two segments behind continues in the third, and has missed the second.
        for kind in READERS {
            let came_to =
                || told(dir, &format!("came-to.{kind}")).filter(|epoch| epoch[0] == firsts[round][0]);
            wait_for("a reader to follow", came_to);
        }
        publisher = next;
    }
    drop(publisher);
    judge_readers(&daemon, dir, firsts);
    println!(
        "{rounds} publishers stopped, cut off and resumed; none of their late messages seen by {READERS:?}"
    );
}

/// Publishes the last message, and compares each reader's report with `firsts`, which has the epoch and the first sequence of each
/// publisher so far.
fn judge_readers(daemon: &Daemon, dir: &Path, mut firsts: Vec<Vec<u64>>) {
    let client = daemon.client();
    let mut last = wait_for("the channel", || publishing(&client, "ticks").open().ok());
    firsts.push(vec![last.epoch(), last.next_sequence()]);
    let words = [last.epoch(), last.next_sequence()];
    last.publish_with(words.map(u64::to_le_bytes).as_flattened(), Mark { tag: LAST, key: false }).unwrap();
    for kind in READERS {
        let report = wait_for("a reader's report", || told(dir, &format!("report.{kind}")));
        let (counts, spans) = report.split_at(2);
        assert_eq!(counts, [0, 0], "{kind}: missed, wrong; {report:?}");
        let spans: Vec<&[u64]> = spans.chunks(3).collect();
        // The messages that belong to each publisher: from its first to the last before the next publisher's first.
        let owned: Vec<[u64; 3]> = firsts
            .windows(2)
            .map(|pair| [pair[0][0], pair[0][1], pair[1][1] - 1])
            .chain([[words[0], words[1], words[1]]])
            .collect();
        assert_eq!(spans, owned, "{kind}");
    }
}

/// Takes over the channel with the command, as an operator would.
fn take_over(daemon: &Daemon, round: usize) -> String {
    let mut command = Command::new(program("shmcast"));
    command.args(["takeover", "ticks"]).env("SHMCAST_SOCKET", daemon.socket()).env_remove("SHMCAST_DIR");
    if round.is_multiple_of(2) {
        command.arg("--json");
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = if round.is_multiple_of(2) { output.stdout } else { output.stderr };
    String::from_utf8(said).unwrap()
}

#[test]
fn a_channel_that_is_not_strict_is_not_taken_from_a_live_publisher() {
    let daemon = Daemon::start(&config("takeover"));
    let client = daemon.client();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let error = client.take_over("ticks").unwrap_err().to_string();
    assert!(error.contains("not strict"), "{error}");
    let error = publishing(&client, "ticks").open().unwrap_err().to_string();
    assert!(error.contains("in use by publisher"), "{error}");
    publisher.publish(b"goes on").unwrap();
}

/// A publisher and a reader attach, the publisher is stopped, and the daemon crashes. Only the reader comes back, so it
/// brings the segment without its publisher.
fn crash_with_a_stopped_publisher(daemon: &mut Daemon, dir: &Path) -> (Process, Process) {
    let reader = start(daemon, dir, "sleeping.first");
    wait_for("the reader", || told(dir, "ready.first"));
    let publisher = start(daemon, dir, "publisher.0");
    wait_for("the publisher", || told(dir, "at.0"));
    publisher.pause();
    daemon.crash();
    wait_for_the_reader(daemon);
    (publisher, reader)
}

fn wait_for_the_reader(daemon: &Daemon) {
    wait_for("the reader to come back", || {
        daemon.client().channel("ticks").ok().filter(|status| status.readers.len() == 1)
    });
}

#[test]
fn a_new_daemon_knows_of_a_live_publisher_whoever_comes_back_first() {
    for _ in 0..3 {
        let mut daemon = Daemon::start(&config("takeover"));
        let dir = scratch();
        let (publisher, reader) = crash_with_a_stopped_publisher(&mut daemon, dir.path());
        // The lock came back with the reader. So no other publisher gets the ring while the stopped publisher lives.
        let refused = publishing(&daemon.client(), "ticks").open();
        let error = refused.expect_err("a second publisher on the ring of a stopped one").to_string();
        assert!(error.contains("in use by a publisher that has not registered yet"), "{error}");
        publisher.signal(Signal::SIGCONT);
        wait_until_all_are_back(&daemon, 1);
        let refused = publishing(&daemon.client(), "ticks").open();
        let error = refused.expect_err("a second publisher on the ring of a live one").to_string();
        assert!(error.contains("in use by publisher"), "{error}");
        drop(reader);
    }
}

#[test]
fn a_publisher_that_died_with_the_daemon_keeps_nobody_from_its_ring() {
    let mut daemon = Daemon::start(&config("takeover"));
    let dir = scratch();
    let (publisher, _reader) = crash_with_a_stopped_publisher(&mut daemon, dir.path());
    drop(publisher);
    let first = told(dir.path(), "first.0").unwrap();
    let next = publishing(&daemon.client(), "ticks").open().unwrap();
    assert_eq!(next.epoch(), first[0] + 1, "the same ring, taken over");
}

#[test]
fn a_publisher_whose_ring_nobody_brought_back_is_told_that_the_channel_went_on_without_it() {
    let mut daemon = Daemon::start(&config("takeover"));
    let dir = scratch();
    let publisher = start(&daemon, dir.path(), "publisher.0");
    wait_for("the publisher", || told(dir.path(), "at.0"));
    publisher.pause();
    daemon.crash();
    // The next publisher is let in after the attached programs have had their time to come back.
    let mut next = publishing(&daemon.client(), "ticks").open().unwrap();
    assert_eq!(next.epoch(), 1, "memory of its own");
    publisher.signal(Signal::SIGCONT);
    wait_for("the old publisher's word", || told(dir.path(), "cut-off.0"));
    next.publish(b"goes on").unwrap();
}

/// The publisher makes the claim before it is cut off, and commits the claim afterwards.
#[test]
fn a_claim_that_is_committed_after_the_cut_is_refused() {
    let daemon = Daemon::start(&config("strict"));
    let client = daemon.client();
    wait_for("a refused commit", || {
        let mut publisher = publishing(&client, "ticks").open().unwrap();
        let mut events = client.events().unwrap();
        let claim = publisher.claim(8).unwrap();
        client.take_over("ticks").unwrap();
        wait_for("cut-off", || events.next_event().unwrap().filter(|event| event.event == "cut-off"));
        // The notice might still be on its way to this process. Then the next round shows it.
        claim.commit(8).err().map(|error| assert_eq!(error, PublishError::CutOff))
    });
}

#[test]
fn a_publisher_that_is_cut_off_is_told_so_and_so_is_everybody_who_watches() {
    let daemon = Daemon::start(&config("strict"));
    let client = daemon.client();
    let mut events = client.events().unwrap();
    let mut publisher = publishing(&client, "ticks").open().unwrap();
    let published = publisher.publish(b"heard").unwrap();
    client.take_over("ticks").unwrap();
    let mut unheard = 0;
    let error = wait_for("an error", || match publisher.publish(b"unheard") {
        Ok(_) => {
            unheard += 1;
            None
        }
        Err(error) => Some(error),
    });
    assert_eq!(error, PublishError::CutOff, "after {unheard} messages");
    assert!(error.to_string().contains("taken from this publisher"), "{error}");
    assert_eq!(publisher.claim(8).map(drop), Err(PublishError::CutOff));
    assert_eq!(publisher.publish_batch(["x"]), Err(PublishError::CutOff));
    assert_eq!(publisher.gap(1_000_000), Err(PublishError::CutOff));
    assert_eq!(publisher.session(*b"SESSION-01"), Err(PublishError::CutOff));
    assert!(publisher.is_cut_off());
    wait_until("the publisher to be told", || publisher.is_registered() == Some(false));
    let me = Some(std::process::id());
    for (what, word) in [("taken-over", "taken from"), ("cut-off", "taken over by")] {
        let event = wait_for(what, || events.next_event().unwrap().filter(|event| event.event == what));
        assert_eq!(event.process.unwrap().pid, me);
        assert!(event.detail.as_ref().unwrap().contains(word), "{:?}", event.detail);
    }
    // The old publisher is allowed to take the channel again, like any publisher. Messages that no reader received have no sequence in the
    // channel.
    let next = publishing(&client, "ticks").open().unwrap();
    assert_eq!((next.next_sequence(), next.is_cut_off()), (published + 1, false));
    // The end of the old publisher disturbs nobody.
    drop(publisher);
    assert!(client.channel("ticks").unwrap().publisher.is_some());
}

/// Memory stays locked only while the process that locked it maps it.
#[test]
fn what_was_locked_into_memory_is_locked_again_by_the_next_daemon() {
    let test = "what_was_locked_into_memory_is_locked_again_by_the_next_daemon";
    let mut daemon = Daemon::start(&config("takeover").replace("mlock = false", "mlock = true"));
    let locked_kib = |daemon: &Daemon| -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmLck:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    };
    let dir = scratch();
    let before = locked_kib(&daemon);
    if before < 16 << 10 {
        return skip(test, format!("this user may not lock 16 MiB, but {before} KiB"));
    }
    let _reader = start(&daemon, dir.path(), "sleeping.first");
    wait_for("the reader", || told(dir.path(), "ready.first"));
    let uuid = daemon.client().channel("ticks").unwrap().uuid;
    daemon.crash();
    wait_for_the_reader(&daemon);
    assert_eq!(
        daemon.client().channel("ticks").unwrap().uuid,
        uuid,
        "the memory that the reader brought back"
    );
    wait_until("the memory to be locked", || locked_kib(&daemon) == before);
}
