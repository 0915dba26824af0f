//! Gates whose readers lose them, and gates that a daemon without descriptors cannot open.

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};
use shmcast::{Client, PublishError, Publisher, RecvError, Subscriber};
use shmcast_layout::layout::gate::PID;
use shmcast_testkit::daemon::{Daemon, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::raw::{Raw, publish};
use shmcast_testkit::{Process, role_as, wait_for, wait_until};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

const NOBODY: u32 = 65534;

fn open(client: &Client) -> Publisher {
    // The kernel releases a dead publisher's lock some time after its death.
    wait_for("the channel to be free", || publishing(client, "ticks").open().ok())
}

fn risk(client: &Client) -> shmcast::SubscriberBuilder {
    Subscriber::builder("ticks").client(client).gate("risk")
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    let client = Client::at(my_socket()).unwrap();
    match role.as_str() {
        "ungated" => {
            let mut reader = Subscriber::builder("ticks").client(&client).open().unwrap();
            while reader.recv().is_ok() {}
        }
        "reader" => {
            let mut reader = risk(&client).open().unwrap();
            while reader.recv().is_ok() {}
        }
        other => panic!("no role {other}"),
    }
}

/// An earlier mistake: a reader that may no longer read kept its gate, and each later publisher waited for it for ever.
#[test]
fn a_reader_that_may_no_longer_read_holds_no_publisher_up() {
    let config = |users: &str, mode: &str, capacity: &str| {
        let gate = format!("[[channel.gate]]\nname = \"risk\"\nusers = [{users}]\nthen = \"refuse\"");
        let lists = format!("subscribers = [{users}]\nmode = \"{mode}\"\n{gate}");
        channel("ticks", &lists).replace("16MiB", capacity)
    };
    for mode in ["strict", "takeover"] {
        let daemon = Daemon::start(&config("\"uid:65534\"", mode, "64KiB"));
        let test = "a_reader_that_may_no_longer_read_holds_no_publisher_up";
        let Some(mut reader) = role_as!(test, NOBODY, "reader") else { return };
        let client = daemon.client();
        let first = open(&client);
        let mut reader = Process::start(at_socket(&mut reader, &daemon.socket()));
        wait_until("its gate to be held", || client.channel("ticks").unwrap().gates[0].reader.is_some());
        daemon.reload(&config("", mode, "128KiB"));
        drop(first);
        // The daemon cuts the reader off when it would send the new memory.
        let mut second = open(&client);
        for n in 0..4_000 {
            let sent = second.publish(&[1; 100]);
            assert!(sent.is_ok(), "{mode}: message {n}: {sent:?}");
        }
        daemon.wait_for_log(&["refused", "may no longer read"]);
        drop(second);
        let mut third = open(&client);
        assert!((0..4_000).all(|_| third.publish(&[1; 100]).is_ok()));
        // Its gate is gone, so it ends with an error.
        assert!(reader.wait().success());
    }
}

/// An earlier mistake: the number of a process in a gate's page is what the reader wrote there. In another PID namespace it means another
/// process, and the daemon took the gate from the reader when that other process was refused.
#[test]
fn a_gate_stays_with_its_reader_when_a_process_with_the_claimed_number_is_refused() {
    let config = |users: &str| {
        let gate = "[[channel.gate]]\nname = \"risk\"\nusers = [\"*\"]\nthen = \"refuse\"";
        channel("ticks", &format!("subscribers = [{users}]\n{gate}")).replace("16MiB", "64KiB")
    };
    let daemon = Daemon::start(&config("\"uid:65534\""));
    let test = "a_gate_stays_with_its_reader_when_a_process_with_the_claimed_number_is_refused";
    let Some(mut other) = role_as!(test, NOBODY, "ungated") else { return };
    let client = daemon.client();
    let first = open(&client);
    let mut holder = risk(&client).open().unwrap();
    let other = Process::start(at_socket(&mut other, &daemon.socket()));
    wait_until("the other reader", || client.channel("ticks").unwrap().readers.len() == 2);
    let page = daemon.socket().with_extension("gates").join("ticks/risk");
    let page = fs::File::options().write(true).open(page).unwrap();
    page.write_all_at(&u64::from(other.id()).to_le_bytes(), PID as u64 * 8).unwrap();
    daemon.reload(&config(""));
    drop(first);
    let mut second = open(&client);
    let full = (0..10_000).find_map(|_| {
        while holder.try_recv().unwrap().is_some() {}
        let refused = (0..1_000).find_map(|_| second.publish(&[1; 100]).err());
        refused.inspect(|e| assert!(matches!(e, PublishError::Full { .. }), "{e}"))
    });
    assert!(full.is_some(), "nobody holds the publisher up");
    assert!(page.metadata().unwrap().nlink() > 0);
    other.kill();
}

/// Receives until there is an error.
fn error_of(reader: &mut Subscriber) -> RecvError {
    wait_for("an error", || {
        loop {
            match reader.try_recv() {
                Ok(Some(_)) => {}
                Ok(None) => return None,
                Err(error) => return Some(error),
            }
        }
    })
}

/// An earlier mistake: the daemon did not notice a folder that was moved, so a reader with a gate kept a page that nobody could find.
#[test]
fn a_reader_is_told_that_the_folder_of_its_gate_was_moved() {
    let gate = "publishers = [\"*\"]\n[[channel.gate]]\nname = \"risk\"\nthen = \"refuse\"";
    let daemon = Daemon::start(&channel("ticks", gate).replace("16MiB", "64KiB"));
    let client = daemon.client();
    let mut publisher = open(&client);
    let folder = daemon.socket().with_extension("gates").join("ticks");
    let away = daemon.dir().join("away");
    for round in 1..=2 {
        let mut reader = risk(&client).open().unwrap();
        publisher.publish(b"x").unwrap();
        fs::rename(&folder, &away).unwrap();
        let lost = error_of(&mut reader);
        assert!(matches!(&lost, RecvError::GateLost { gate } if gate.as_str() == "risk"), "{lost}");
        wait_until("the event", || daemon.told("gates-lost") == round);
        // The folder comes back without its pages, so the next reader gets a page that the next publisher finds.
        fs::rename(&away, &folder).unwrap();
        drop((reader, publisher));
        let reader = risk(&client).open().unwrap();
        publisher = open(&client);
        let full = (0..10_000).find_map(|_| publisher.publish(&[1; 100]).err());
        assert!(matches!(full, Some(PublishError::Full { .. })), "{full:?}");
        drop(reader);
    }
}

/// An earlier mistake: a publisher was told to raise its own limit on descriptors, and the daemon wrote a line each second.
#[test]
fn a_daemon_without_descriptors_says_once_a_minute_that_it_lacks_them() {
    let gate = "publishers = [\"*\"]\n[[channel.gate]]\nname = \"risk\"";
    let daemon = Daemon::start(&channel("ticks", gate).replace("16MiB", "64KiB"));
    let pid = Pid::from_raw(daemon.pid().as_raw());
    let before = getrlimit(Resource::Nofile).maximum;
    let limit = |current| prlimit(pid, Resource::Nofile, Rlimit { current, maximum: before }).unwrap();
    // Without a free descriptor, the daemon accepts no connection. So these are older than the limit.
    let (publisher, tool) = (Raw::greeted(&daemon.socket()), Raw::greeted(&daemon.socket()));
    let (_, _files) = publisher.ask_for_files(&publish("ticks", false), &[]);
    let fds = format!("/proc/{}/fd", daemon.pid());
    let open = || std::fs::read_dir(&fds).unwrap().count() as u64;
    // The daemon might have some descriptors open for a moment only.
    let least = open() - 8;
    let mut refusals = 0;
    for more in 0..16 {
        limit(Some(least + more));
        let answer: Value = publisher.ask(&json!({"request": "gates"}), &[]);
        if answer["reply"] == "refused" {
            let why = answer["why"].as_str().unwrap();
            assert!(why.starts_with("the daemon lacks descriptors, raise its LimitNOFILE="), "{more}: {why}");
            refusals += 1;
        } else {
            assert_eq!(answer["reply"], "gate", "{answer}");
            publisher.receive().unwrap();
        }
    }
    assert!((1..16).contains(&refusals), "{refusals}");
    limit(Some(3));
    for _ in 0..20 {
        tool.ask(&json!({"request": "list"}), &[]);
    }
    let lines = || daemon.log().matches("look at the gates of channels").count();
    wait_until("the error", || lines() > 0);
    assert_eq!(lines(), 1, "{}", daemon.log());
    assert!(daemon.log().contains("raise its LimitNOFILE=: look at the gates"), "{}", daemon.log());
    limit(before);
}
