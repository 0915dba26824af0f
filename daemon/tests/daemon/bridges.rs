//! Bridges at a reload. A renamed bridge continues, and a bridge that is no longer configured leaves without an end of its session.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Event, Start, Subscriber};
use shmcast_testkit::command::Host;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::place::own_address;
use shmcast_testkit::{PATIENCE, wait_for, wait_until};
use std::fs;
use std::time::{Duration, Instant};

/// The bridges of a daemon, as `bridge status` shows them.
fn bridges(daemon: &Daemon) -> Vec<Value> {
    // A daemon limits the rate of requests.
    std::thread::sleep(Duration::from_millis(20));
    let output = daemon.shmcast("bridge status --json").output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    status["bridges"].as_array().unwrap().clone()
}

/// Takes the messages up to the one with the sequence `last`, each once and in order. The only other event between them can be a session.
fn read_to(reader: &mut Subscriber, last: u64) {
    let deadline = Instant::now() + PATIENCE;
    let mut due = reader.next_sequence();
    while due <= last {
        match reader.recv_deadline(deadline).unwrap().expect("more messages") {
            Event::Message(message) => {
                assert_eq!(message.sequence, due);
                due += 1;
            }
            Event::NewSession { .. } | Event::NewEpoch { .. } => {}
            other => panic!("{other:?} before {due}"),
        }
    }
}

/// Takes events up to the message with the sequence `last`. A gap can come before this message.
fn read_past_gap(reader: &mut Subscriber, last: u64) {
    let deadline = Instant::now() + PATIENCE;
    while reader.next_sequence() <= last {
        match reader.recv_deadline(deadline).unwrap().expect("more messages") {
            Event::Message(_) | Event::Gap { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// The threads of a daemon that belong to bridges which send.
fn sending_threads(daemon: &Daemon) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("send-") || name.starts_with("bridge-repair")).count()
}

#[test]
fn a_bridge_that_is_renamed_goes_on_and_one_that_is_removed_leaves() {
    let at = own_address();
    let base = channel("t", &format!("max_message = 1000\n{FOR_ALL}"));
    let with = |name: &str| {
        format!(
            "{base}[[bridge]]\nname = \"{name}\"\nchannel = \"t\"\n[bridge.send]\nlinger_ms = 10000\n\
             [bridge.send.repair]\nbind = \"{at}\"\nallow = [\"127.0.0.0/8\"]\n"
        )
    };
    let daemon = Daemon::start(&with("out"));
    // Without a state file, a bridge begins with the first message that is published after its start.
    daemon.wait_for_log(&["bridge-started"]);
    let mut publisher = publishing(&daemon.client(), "t").open().unwrap();
    let far = Host::new();
    let recv = far.start(&format!(
        "bridge recv t --server {at} --set receive.unicast=true --set receive.from=1 --capacity 1MiB"
    ));
    publisher.publish(b"1").unwrap();
    let dir = far.dir.path().join("channels");
    let mut reader =
        wait_for("the far channel", || Subscriber::builder("t").dir(&dir).start(Start::Oldest).open().ok());
    read_to(&mut reader, 1);

    daemon.reload(&with("renamed"));
    daemon.wait_for_log(&["bridge-renamed", "was", "out"]);
    publisher.publish_batch(["2", "3"]).unwrap();
    read_to(&mut reader, 3);
    let shown = bridges(&daemon);
    assert_eq!(
        (shown.len(), &shown[0]["bridge"], &shown[0]["state"]),
        (1, &"renamed".into(), &"running".into())
    );
    assert_eq!(daemon.log().matches("bridge-started").count(), 1, "{}", daemon.log());

    publisher.publish_batch(["4", "5"]).unwrap();
    daemon.reload(&base);
    daemon.wait_for_log(&["bridge-removed", "renamed"]);
    // Messages from before the removal are sent, and later ones are not. The publisher continues, so this is no end of the stream.
    read_to(&mut reader, 5);
    let shown = bridges(&daemon);
    assert_eq!(
        (&shown[0]["bridge"], &shown[0]["state"]),
        (&"renamed".into(), &"leaving".into()),
        "{shown:?}"
    );
    wait_until("no bridge", || bridges(&daemon).is_empty());
    assert_eq!(sending_threads(&daemon), 0);
    publisher.publish(b"6").unwrap();
    assert_eq!(reader.recv_deadline(Instant::now() + Duration::from_millis(300)), Ok(None));

    // A bridge that comes back while it leaves continues where it was.
    daemon.reload(&with("out"));
    wait_until("the next bridge", || daemon.log().matches("bridge-started").count() == 2);
    publisher.publish(b"7").unwrap();
    read_past_gap(&mut reader, 7);
    daemon.reload(&base);
    wait_until("it leaves", || bridges(&daemon).iter().any(|bridge| bridge["state"] == "leaving"));
    publisher.publish(b"8").unwrap();
    daemon.reload(&with("back"));
    publisher.publish(b"9").unwrap();
    read_to(&mut reader, 9);
    assert!(!daemon.log().contains("bridge-failed"), "{}", daemon.log());
    recv.kill();
}

#[test]
fn a_bridge_that_is_changed_goes_on_where_it_was() {
    let at = own_address();
    let base = channel("t", &format!("max_message = 1000\n{FOR_ALL}"));
    let with = |name: &str, linger_ms: u32| {
        format!(
            "{base}[[bridge]]\nname = \"{name}\"\nchannel = \"t\"\n[bridge.send]\nlinger_ms = {linger_ms}\n\
             [bridge.send.repair]\nbind = \"{at}\"\nallow = [\"127.0.0.0/8\"]\n"
        )
    };
    let daemon = Daemon::start(&with("out", 1_000));
    // Without a state file, a bridge begins with the first message that is published after its start.
    daemon.wait_for_log(&["bridge-started"]);
    let mut publisher = publishing(&daemon.client(), "t").open().unwrap();
    let far = Host::new();
    let recv = far.start(&format!(
        "bridge recv t --server {at} --set receive.unicast=true --set receive.from=1 --capacity 1MiB"
    ));
    publisher.publish(b"1").unwrap();
    let dir = far.dir.path().join("channels");
    let mut reader =
        wait_for("the far channel", || Subscriber::builder("t").dir(&dir).start(Start::Oldest).open().ok());
    read_to(&mut reader, 1);
    for (round, name) in ["out", "other", "other"].into_iter().enumerate() {
        let started = || daemon.log().matches("bridge-started").count();
        let before = started();
        daemon.configure(&with(name, 500 + round as u32));
        daemon.signal(Signal::SIGHUP);
        // Messages are published before, during and after the change of the bridge.
        wait_until("the next bridge", || {
            publisher.publish(b"on").unwrap();
            std::thread::sleep(Duration::from_millis(1));
            started() > before
        });
        publisher.publish(b"on").unwrap();
        read_to(&mut reader, publisher.next_sequence() - 1);
    }
    assert!(!daemon.log().contains("bridge-failed"), "{}", daemon.log());
    recv.kill();
}

/// A bridge is changed while an earlier form of it still leaves. An earlier mistake: both leaving bridges had one name, so the metrics had
/// two series with the same labels.
#[test]
fn bridges_that_leave_at_one_time_have_names_of_their_own() {
    let base = channel("t", &format!("max_message = 1000\n{FOR_ALL}"));
    let with = |group: u32| {
        format!(
            "{base}[[bridge]]\nname = \"out\"\nchannel = \"t\"\nline = [{{ group = \"239.1.1.{group}:4711\", interface = \"127.0.0.1\" }}]\n\
             [bridge.send]\nlinger_ms = 30000\n[bridge.send.repair]\nbind = \"{}\"\nallow = [\"127.0.0.0/8\"]\n",
            own_address()
        )
    };
    let daemon = Daemon::start(&with(1));
    daemon.wait_for_log(&["bridge-started"]);
    for group in [2, 3, 4] {
        let started = daemon.told("bridge-started");
        daemon.reload(&with(group));
        wait_until("the next bridge", || daemon.told("bridge-started") > started);
    }
    let mut names: Vec<String> =
        bridges(&daemon).iter().map(|bridge| bridge["bridge"].as_str().unwrap().to_owned()).collect();
    names.sort();
    assert_eq!(names, ["out", "out (leaving 2)", "out (leaving 3)", "out (leaving)"]);
    daemon.reload(&base);
    wait_until("all to leave", || bridges(&daemon).is_empty());
    assert_eq!(daemon.told("bridge-left"), 4, "{}", daemon.log());
}

/// An earlier mistake: a missing journal kept the bridge from starting, although live messages need no journal.
#[test]
fn a_bridge_sends_while_its_journal_is_away() {
    let (at, disk) = (own_address(), tempfile::tempdir().unwrap());
    // The mount is missing: its path leads nowhere.
    let mount = disk.path().join("mount");
    std::os::unix::fs::symlink("/nonexistent/disk", &mount).unwrap();
    let config = format!(
        "{}[[bridge]]\nname = \"out\"\nchannel = \"t\"\n[bridge.send]\n[bridge.send.repair]\nbind = \"{at}\"\n\
         allow = [\"127.0.0.0/8\"]\n",
        channel(
            "t",
            &format!(
                "max_message = 1000\n{FOR_ALL}\njournal = {{ dir = \"{}\" }}",
                mount.join("t").display()
            )
        )
    );
    let daemon = Daemon::start(&config);
    wait_until("the bridge", || bridges(&daemon).iter().any(|bridge| bridge["state"] == "running"));
    let far = Host::new();
    let recv = far.start(&format!(
        "bridge recv t --server {at} --set receive.unicast=true --set receive.from=1 --capacity 1MiB"
    ));
    let mut publisher = publishing(&daemon.client(), "t").open().unwrap();
    publisher.publish_batch(["1", "2"]).unwrap();
    let dir = far.dir.path().join("channels");
    let mut reader =
        wait_for("the far channel", || Subscriber::builder("t").dir(&dir).start(Start::Oldest).open().ok());
    read_to(&mut reader, 2);
    assert!(!daemon.log().contains("bridge-failed"), "{}", daemon.log());
    recv.kill();
}

/// Earlier mistakes: a refusal said what is wrong and not what to do next, and `rm` told users to take a channel out of a configuration that
/// did not have it.
#[test]
fn a_refusal_says_what_to_do_next() {
    let daemon = Daemon::start(&channel("ticks", ""));
    let cases = [
        ("takeover nobody", "no channel \"nobody\": add it to the configuration and reload"),
        ("takeover ticks", "is not strict: stop its publisher instead, or make it strict"),
        ("bridge takeover x", "the daemon has no bridge \"x\": `shmcast bridge status` shows its bridges"),
        ("bridge promote x", "no channel \"x\": add it to the configuration and reload"),
        ("bridge promote ticks", "no bridge of the daemon receives it: publish on it, as shmcast pub does"),
        ("rm ticks", "take \"ticks\" out of its configuration and reload it, or give --dir"),
        ("rm nobody", "has no channel \"nobody\": `shmcast ls` shows those there are"),
    ];
    for (verb, next) in cases {
        let output = daemon.shmcast(verb).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(next), "{verb}: {said}");
    }
}
