//! Bridges of daemons through servers of NATS: their start, their figures, a reload, an end, and a reboot.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::nats::{Server, alone};
use shmcast_testkit::place::free_port;
use shmcast_testkit::{Process, REST, wait_for, wait_until};
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::path::Path;

/// A daemon's configuration: its port for metrics, the channel, and the bridge.
fn config(http: u16, journal: Option<&Path>, bridge: &str) -> String {
    let journal = journal.map(|dir| format!("journal = {{ dir = \"{}\", file = \"1MiB\" }}", dir.display()));
    let more = format!("{FOR_ALL}\n{}", journal.unwrap_or_default());
    format!(
        "[daemon]\nhttp = \"127.0.0.1:{http}\"\n[limits]\nrequests_per_second = 10000\n{}\n[[bridge]]\nname = \"far\"\n\
         channel = \"ticks\"\nengine = \"nats\"\n{bridge}\n",
        channel("ticks", &more)
    )
}

fn sends(server: &Server, more: &str) -> String {
    format!("nats = {{ servers = [\"{}\"], create = true{more} }}\nsend = {{}}", server.url())
}

fn receives(server: &Server) -> String {
    format!("nats = {{ servers = [\"{}\"] }}\nreceive = {{}}", server.url())
}

fn bridge(daemon: &Daemon) -> Value {
    let output = daemon.shmcast("bridge status --json").output().unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    found["bridges"][0].clone()
}

fn wait_for_bridge(daemon: &Daemon, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    wait_for(what, || Some(bridge(daemon)).filter(|bridge| is_so(bridge)))
}

fn metric(http: u16, name: &str) -> Option<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", http)).ok()?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let line = text.lines().find(|line| line.starts_with(&format!("{name}{{bridge=\"far\"")))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn publish(publisher: &mut Publisher, count: u64) {
    for _ in 0..count {
        let next = publisher.next_sequence();
        publisher.publish(&next.to_be_bytes()).unwrap();
    }
}

/// Reads up to the message before `next`: each message once, in order, as it was published. Only sequences of `unused` can be a gap.
fn read_to(reader: &mut Subscriber, due: &mut u64, next: u64, unused: Range<u64>) {
    wait_until(&format!("message {}", next - 1), || {
        while let Some(event) = reader.try_recv().unwrap() {
            match event {
                Event::Message(message) => {
                    assert_eq!((message.sequence, message.payload), (*due, &due.to_be_bytes()[..]));
                    *due += 1;
                }
                Event::Gap { from, to } => {
                    let is_unused = unused.contains(&from) && unused.contains(&to);
                    assert!(from == *due && is_unused, "{from} to {to} are a gap, {due} is due");
                    *due = to + 1;
                }
                Event::Lapped(lapped) => panic!("{lapped:?}"),
                _ => {}
            }
        }
        *due >= next
    });
}

fn reader_of(daemon: &Daemon) -> Subscriber {
    let client = daemon.client();
    wait_for("the channel", || {
        Subscriber::builder("ticks").client(&client).start(Start::Oldest).wait(REST).open().ok()
    })
}

#[test]
fn daemons_carry_a_channel_and_follow_their_configuration() {
    let test = "daemons_carry_a_channel_and_follow_their_configuration";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let (at_near, at_far) = (free_port(), free_port());
    let mut near = Daemon::start(&config(at_near, None, &sends(&server, "")));
    let far = Daemon::start(&config(at_far, None, &receives(&server)));
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut publisher, 1_000);
    let mut due = 1;
    let mut reader = reader_of(&far);
    read_to(&mut reader, &mut due, 1_001, 0..0);
    let sent = wait_for_bridge(&near, "all to be stored", |it| it["figures"]["send"]["stored"] == 1_001);
    assert_eq!((&sent["state"], &sent["figures"]["engine"]), (&"running".into(), &"nats".into()), "{sent}");
    let received = wait_for_bridge(&far, "all to be there", |it| {
        it["figures"]["receive"]["messages_published"] == 1_000
    });
    assert_eq!(sent["session"], received["session"]);
    assert_eq!(received["figures"]["receive"]["messages_missing"], 0);
    for (http, name, value) in [
        (at_near, "shmcast_bridge_engine_stored_sequence", 1_001.0),
        (at_near, "shmcast_bridge_engine_send_connected", 1.0),
        (at_far, "shmcast_bridge_engine_published_messages_total", 1_000.0),
        (at_far, "shmcast_bridge_engine_missing_messages_total", 0.0),
        (at_far, "shmcast_bridge_engine_unopened_blocks_total", 0.0),
    ] {
        wait_until(name, || metric(http, name) == Some(value));
    }
    near.wait_for_log(&["bridge-started", "far"]);
    near.wait_for_log(&["bridge-session", "far"]);

    // The server is away. The bridge reports this and lives, and messages that are published meanwhile come when the server is back.
    server.kill();
    wait_for_bridge(&near, "the connection to break", |it| it["figures"]["send"]["is_connected"] == 0);
    near.wait_for_log(&["bridge-engine-disconnected"]);
    publish(&mut publisher, 1_000);
    server.start();
    read_to(&mut reader, &mut due, 2_001, 0..0);

    // A changed bridge is another one, which continues where the stream ends.
    near.configure(&config(at_near, None, &sends(&server, ", in_flight = 4, block_bytes = 2048")));
    near.signal(Signal::SIGHUP);
    near.wait_for_log(&["bridge-removed"]);
    publish(&mut publisher, 1_000);
    read_to(&mut reader, &mut due, 3_001, 0..0);

    // A bridge ends when it is no longer configured.
    let all = config(at_near, None, "");
    near.configure(&all[..all.find("[[bridge]]").unwrap()]);
    near.signal(Signal::SIGHUP);
    wait_until("no bridge", || bridge(&near).is_null());
    publish(&mut publisher, 1_000);
    near.configure(&config(at_near, None, &sends(&server, "")));
    near.signal(Signal::SIGHUP);
    read_to(&mut reader, &mut due, 4_001, 0..0);

    // The daemon stops, and the next daemon continues.
    near.end(Signal::SIGTERM);
    publish(&mut publisher, 1_000);
    near.restart();
    read_to(&mut reader, &mut due, 5_001, 0..0);
    let found = far.shmcast(&format!("bridge stream verify ticks {} --json", server.url())).output();
    let found: Value = serde_json::from_slice(&found.unwrap().stdout).unwrap();
    assert_eq!((&found["messages"], &found["repeated"]), (&5_000.into(), &0.into()), "{found}");
    publisher.close();
}

/// After a reboot, only the journal has the messages that were published while the servers were away. They are sent in the same session.
#[test]
fn a_reboot_while_the_servers_are_away_costs_no_message_of_the_journal() {
    let test = "a_reboot_while_the_servers_are_away_costs_no_message_of_the_journal";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let disk = tempfile::tempdir().unwrap();
    let journal = disk.path().join("journal");
    let mut near = Daemon::start(&config(free_port(), Some(&journal), &sends(&server, "")));
    let far = Daemon::start(&config(free_port(), None, &receives(&server)));
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut publisher, 500);
    let (mut reader, mut due) = (reader_of(&far), 1);
    read_to(&mut reader, &mut due, 501, 0..0);
    let session = bridge(&near)["session"].clone();
    server.kill();
    publish(&mut publisher, 500);
    // All messages are on the disk before the power goes.
    let client = near.client();
    let durable = || client.channel("ticks").unwrap().journal.map(|journal| journal.durable);
    wait_until("the journal", || durable() >= Some(1_000));
    near.kill();
    drop(publisher);
    fs::remove_dir_all(near.dir().join("run")).unwrap();
    near.restart();
    server.start();
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let first = publisher.next_sequence();
    assert!(first > 1_000, "no sequence comes twice");
    publish(&mut publisher, 100);
    // Between the last durable message and the first one of this boot are sequences that nobody used.
    read_to(&mut reader, &mut due, first + 100, 1_001..first);
    let sent = wait_for_bridge(&near, "the same session", |it| it["session"] == session);
    assert_eq!(sent["figures"]["send"]["messages_missed"], 0, "{sent}");
}

/// The daemon lends a command its journal. After a reboot, the command continues with the journal's stream, in the same session.
#[test]
fn a_lent_journal_is_the_stream_of_a_command() {
    let test = "a_lent_journal_is_the_stream_of_a_command";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let disk = tempfile::tempdir().unwrap();
    let journal = disk.path().join("journal");
    let all = config(free_port(), Some(&journal), "");
    let mut near = Daemon::start(&all[..all.find("[[bridge]]").unwrap()]);
    let far = Daemon::start(&config(free_port(), None, &receives(&server)));
    let send = format!("bridge send ticks --set nats.create=true --nats {}", server.url());
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let bridging = Process::start(&mut near.shmcast(&send));
    publish(&mut publisher, 500);
    let (mut reader, mut due) = (reader_of(&far), 1);
    read_to(&mut reader, &mut due, 501, 0..0);
    let session = bridge(&far)["session"].clone();
    let client = near.client();
    let durable = || client.channel("ticks").unwrap().journal.map(|journal| journal.durable);
    wait_until("the journal", || durable() >= Some(500));
    bridging.kill();
    near.kill();
    drop(publisher);
    fs::remove_dir_all(near.dir().join("run")).unwrap();
    near.restart();
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    let first = publisher.next_sequence();
    let bridging = Process::start(&mut near.shmcast(&send));
    publish(&mut publisher, 100);
    read_to(&mut reader, &mut due, first + 100, 501..first);
    assert_eq!(bridge(&far)["session"], session);
    bridging.kill();
}

/// A bridge leaves with messages that no server has stored. An earlier mistake: it vanished without a report.
#[test]
fn a_bridge_that_leaves_says_what_is_not_stored() {
    let test = "a_bridge_that_leaves_says_what_is_not_stored";
    let Some((_turn, _dir, mut server)) = alone(test) else { return };
    let all = config(free_port(), None, &sends(&server, ""));
    let near = Daemon::start(&all);
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut publisher, 10);
    wait_for_bridge(&near, "all to be stored", |it| it["figures"]["send"]["stored"] == 11);
    server.kill();
    publish(&mut publisher, 5);
    near.reload(&all[..all.find("[[bridge]]").unwrap()]);
    near.wait_for_log(&["bridge-failed", "far", "5 messages are NOT STORED"]);
    wait_until("no bridge", || bridge(&near).is_null());
    assert_eq!(near.told("bridge-left"), 0, "{}", near.log());
}

/// An earlier mistake: a missing journal kept the bridge from starting, although live messages need no journal.
#[test]
fn a_bridge_sends_while_its_journal_is_away() {
    let test = "a_bridge_sends_while_its_journal_is_away";
    let Some((_turn, dir, server)) = alone(test) else { return };
    // The mount is missing: its path leads nowhere.
    let mount = dir.path().join("mount");
    std::os::unix::fs::symlink("/nonexistent/disk", &mount).unwrap();
    let journal = mount.join("ticks");
    let mut near = Daemon::start(&config(free_port(), Some(&journal), &sends(&server, "")));
    let far = Daemon::start(&config(free_port(), None, &receives(&server)));
    let mut publisher = publishing(&near.client(), "ticks").open().unwrap();
    publish(&mut publisher, 100);
    let (mut reader, mut due) = (reader_of(&far), 1);
    read_to(&mut reader, &mut due, 101, 0..0);
    // The next daemon's bridge continues where the stream ends.
    near.crash();
    publish(&mut publisher, 100);
    read_to(&mut reader, &mut due, 201, 0..0);
    assert!(!near.log().contains("bridge-failed"), "{}", near.log());
}
