//! The daemon with only the rights that the shipped unit gives it: traffic, a reload, a restart, a crash, metrics over
//! HTTP, a strict takeover, parked readers, and every verb of the command.
//!
//! Other modules can also run with these rights: `SHMCAST_UNDER_UNIT=1 cargo test -p shmcast-daemon --test daemon park::`;
//! `.ci/run unit` does it. Bridges are in `tests/bridge/under_unit.rs`.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Event, PublishError, Subscriber, Wait};
use shmcast_testkit::bystanders::Bystanders;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::place::{free_port, program};
use shmcast_testkit::{PATIENCE, unit, wait_for, wait_until};
use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A nap longer than the test, so that a reader that is not woken makes the test fail.
const FOR_EVER: Duration = Duration::from_secs(600);

fn config() -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    format!(
        "{limits}{}{}{}",
        channel("a", FOR_ALL),
        channel("again", FOR_ALL),
        channel("strict", &format!("mode = \"strict\"\n{FOR_ALL}"))
    )
}

fn start(test: &str, config: &str) -> Option<Daemon> {
    let unit = unit::shipped_for(test)?;
    let daemon = Daemon::start_under(unit, config);
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    // Without the restrictions, the test would pass for the wrong reason.
    for word in ["Seccomp:\t2", "NoNewPrivs:\t1", "CapBnd:\t0000000000000000"] {
        assert!(status.contains(word), "the daemon is not restricted: {status}");
    }
    assert!(!status.contains("Uid:\t0"), "{status}");
    Some(daemon)
}

#[test]
fn traffic_goes_on_through_a_reload_a_restart_and_a_crash() {
    let Some(mut daemon) = start("traffic_goes_on_through_a_reload_a_restart_and_a_crash", &config()) else {
        return;
    };
    let bystanders = Bystanders::start(&daemon.client(), "a");
    bystanders.assert_flowing();
    daemon.configure(&(config() + &channel("b", FOR_ALL)));
    daemon.signal(Signal::SIGHUP);
    wait_until("the new channel", || daemon.client().channel("b").is_ok());
    bystanders.assert_flowing();
    daemon.end(Signal::SIGTERM);
    daemon.restart();
    bystanders.assert_flowing();
    daemon.crash();
    wait_until("the traffic's return", || {
        daemon.client().channel("a").is_ok_and(|channel| channel.readers.len() == 1)
    });
    bystanders.assert_flowing();
    assert!(bystanders.end() > 0);
    // The log shows that the daemon lacks no right.
    let log = daemon.log();
    for word in ["ERROR", "cannot", "not permitted", "os error"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
}

#[test]
fn metrics_are_served_over_http() {
    let http = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let config = format!("[daemon]\nhttp = \"{http}\"\n{}", channel("a", FOR_ALL));
    let Some(daemon) = start("metrics_are_served_over_http", &config) else { return };
    let bystanders = Bystanders::start(&daemon.client(), "a");
    bystanders.assert_flowing();
    let mut stream = TcpStream::connect(http).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("shmcast_readers{"), "{answer}");
    bystanders.end();
}

#[test]
fn a_strict_channel_is_taken_from_a_publisher_that_lives() {
    let Some(daemon) = start("a_strict_channel_is_taken_from_a_publisher_that_lives", &config()) else {
        return;
    };
    let client = daemon.client();
    let mut reader = Subscriber::builder("strict").client(&client).open().unwrap();
    let mut old = publishing(&client, "strict").open().unwrap();
    old.publish(b"old").unwrap();
    let output = daemon.shmcast("takeover strict").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    wait_until("the old publisher's end", || matches!(old.publish(b"void"), Err(PublishError::CutOff)));
    let mut new = publishing(&client, "strict").open().unwrap();
    new.publish(b"new").unwrap();
    let mut received = Vec::new();
    while received.last().is_none_or(|last: &Vec<u8>| last != b"new") {
        if let Event::Message(message) = reader.recv().unwrap() {
            received.push(message.payload.to_vec());
        }
    }
    assert!(!received.iter().skip(1).any(|payload| payload == b"old"), "{received:?}");
}

#[test]
fn a_parked_reader_is_woken_for_each_message() {
    let Some(daemon) = start("a_parked_reader_is_woken_for_each_message", &config()) else { return };
    let client = daemon.client();
    let mut publisher = publishing(&client, "a").open().unwrap();
    let builder = Subscriber::builder("a").client(&client).wait(Wait::Park).longest_nap(FOR_EVER);
    let mut reader = builder.open().unwrap();
    let (told, received) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        while let Event::Message(message) = reader.recv().unwrap() {
            told.send(message.sequence).unwrap();
        }
    });
    // The reader parks after each message. A single missed wake-up would leave it asleep.
    for _ in 0..100 {
        let sequence = publisher.publish(b"wake").unwrap();
        assert_eq!(received.recv_timeout(PATIENCE), Ok(sequence), "the reader sleeps through a message");
    }
    publisher.close();
    wait_until("the reader to see the end", || reading.is_finished());
    reading.join().unwrap();
}

#[test]
fn a_channel_is_recorded_and_its_readers_are_lent_the_files() {
    let test = "a_channel_is_recorded_and_its_readers_are_lent_the_files";
    let journal = "journal = { dir = \"/var/lib/shmcast/a\", file = \"1MiB\", keep_bytes = \"64MiB\" }";
    let Some(mut daemon) = start(test, &channel("a", &format!("{FOR_ALL}\n{journal}"))) else { return };
    let mut publisher = publishing(&daemon.client(), "a").open().unwrap();
    let mut published = 0;
    for _ in 0..3 {
        // These messages fill more than a file, and less than the ring.
        for _ in 0..8_000 {
            published = publisher.publish(&[7; 200]).unwrap();
        }
        let client = daemon.client();
        wait_until("all of it on disk", || {
            client.channel("a").is_ok_and(|it| it.journal.is_some_and(|it| it.durable == published))
        });
        daemon.crash();
    }
    for _ in 0..100_000 {
        published = publisher.publish(&[7; 200]).unwrap();
    }
    let client = daemon.client();
    let mut reader = Subscriber::builder("a").client(&client).start(shmcast::Start::Oldest).open().unwrap();
    assert_eq!(reader.next_sequence(), 1, "the ring has lost it, the journal has it");
    let mut due = 1;
    while due <= published {
        match reader.recv().unwrap() {
            Event::Message(message) => {
                assert_eq!(message.sequence, due);
                due += 1;
            }
            // The recorder is not as fast as a publisher that only publishes.
            Event::Lost { from, to, .. } => {
                assert!(from == due && to > 24_000);
                due = to + 1;
            }
            Event::Live { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    // The daemon sees this directory as /var/lib/shmcast.
    let files = shmcast::journal::Journal::open(daemon.dir().join("state/a")).unwrap();
    assert!(files.files().len() > 4 && files.is_recording());
    let log = daemon.log();
    for word in ["ERROR", "cannot", "not permitted", "os error"] {
        assert!(!log.contains(word), "{word}: {log}");
    }
}

/// The arguments with which each verb is tested. `DIR` stands for a directory of the test. `None` means that the verb sends no request to
/// the daemon.
const VERBS: [(&str, Option<&str>); 23] = [
    ("demo", None),
    ("pub", Some("pub a")),
    ("sub", Some("sub a --from oldest --count 3")),
    ("record", Some("record a --to DIR/a.journal --until-end --json")),
    ("journal", Some("journal dump DIR/a.journal --framing lines")),
    ("board", Some("board --journal DIR/a.journal --set key=0..1 --json")),
    ("replay", Some("replay DIR/a.journal --into again --speed max --from 2 --to 3 --json")),
    ("ls", Some("ls")),
    ("stat", Some("stat a --json")),
    ("top", Some("top --json")),
    ("events", Some("events")),
    ("takeover", Some("takeover strict")),
    ("rm", Some("rm a")),
    ("bridge", Some("bridge status --json")),
    ("check", None),
    ("doctor", None),
    ("tune", None),
    ("hiccups", None),
    ("seccomp", None),
    ("verify-release", None),
    ("man", None),
    ("completions", None),
    ("help", None),
];

#[test]
fn every_verb_of_the_command_works_with_it() {
    let Some(daemon) = start("every_verb_of_the_command_works_with_it", &config()) else { return };
    let help = Command::new(program("shmcast")).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let commands = help.split_once("Commands:\n").unwrap().1.split_once("\n\n").unwrap().0;
    let is_verb = |line: &&str| line.starts_with("  ") && !line.starts_with("   ");
    let verbs = commands.lines().filter(is_verb).filter_map(|line| line.split_whitespace().next());
    let (verbs, listed): (BTreeSet<_>, _) = (verbs.collect(), VERBS.iter().map(|(verb, _)| *verb).collect());
    assert_eq!(verbs, listed, "a verb is new or gone: say how it is played");
    for (verb, words) in VERBS {
        let Some(words) = words else { continue };
        let mut command = daemon.shmcast(&words.replace("DIR", &daemon.dir().to_string_lossy()));
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        if verb == "events" {
            // The verb shows only events from the moment at which it listens. So the test causes events until the verb has shown one.
            wait_for("an event to be shown", || {
                drop(publishing(&daemon.client(), "a").open());
                child.try_wait().unwrap()
            });
        }
        child.stdin.take().unwrap().write_all(b"1\n2\n3\n").ok();
        let output = child.wait_with_output().unwrap();
        let [out, said] =
            [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        match verb {
            // Only its administrator removes a daemon's channel, so `rm` must fail.
            "rm" => assert!(!output.status.success() && said.contains("daemon"), "{verb}: {out}{said}"),
            _ => assert!(output.status.success(), "{verb}: {out}{said}"),
        }
        match verb {
            "sub" | "journal" => assert_eq!(out, "1\n2\n3\n"),
            "record" => assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["messages"], 3),
            "replay" => assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["published"], 2),
            "stat" => assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["channel"], "a"),
            _ => {}
        }
    }
}
