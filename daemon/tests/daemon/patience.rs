//! Programs that leave while the daemon works for them, that read nothing, that request much, or that lose their rights. Each of them harms
//! only itself.

use rustix::net::{Shutdown, shutdown};
use serde_json::json;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::raw::{Raw, fds, publish, subscribe};
use shmcast_testkit::{Process, role_as, wait_for, wait_until};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;

const NOBODY: u32 = 65534;
/// The number of takeovers that one user requests at the same time.
const TAKEOVERS: usize = 50;
/// The largest number of segments that a reader is sent before it reads them.
const MOST_UNREAD: usize = 8;

fn strict(name: &str, more: &str) -> String {
    channel(name, &format!("mode = \"strict\"\n{more}")).replace("16MiB", "64KiB")
}

fn config() -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    [limits.to_owned(), strict("ticks", FOR_ALL), strict("other", FOR_ALL)].concat()
}

fn take_over(channel: &str) -> serde_json::Value {
    json!({"request": "take-over", "channel": channel})
}

fn generation(daemon: &Daemon) -> u64 {
    daemon.client().channel("ticks").unwrap().generation.unwrap()
}

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    match role.as_str() {
        "taker" => take_over_and_over(&my_socket()),
        "reader" => read_packets(&my_socket()),
        other => panic!("no role {other}"),
    }
}

/// Requests many takeovers at the same time, and holds the connections.
fn take_over_and_over(socket: &Path) {
    let all: Vec<Raw> = (0..TAKEOVERS).map(|_| Raw::greeted(socket)).collect();
    for raw in &all {
        raw.send(take_over("ticks").to_string().as_bytes(), &[]).unwrap();
    }
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
}

/// Attaches as a reader, and prints the daemon's packets up to the end of the connection.
fn read_packets(socket: &Path) {
    let raw = Raw::greeted(socket);
    raw.subscribe("ticks");
    println!("attached");
    while let Some((packet, _)) = raw.receive() {
        println!("{packet}");
    }
    println!("ended");
    std::io::stdout().flush().unwrap();
}

/// On a machine where the memory takes longer than a client waits, each attempt to publish would move the channel once more, for nobody.
#[test]
fn whoever_leaves_before_the_memory_is_made_moves_no_channel() {
    let daemon = Daemon::start(&config());
    drop(publishing(&daemon.client(), "ticks").open().unwrap());
    let before = generation(&daemon);
    for request in [publish("ticks", false), take_over("ticks")] {
        let hasty = Raw::greeted(&daemon.socket());
        daemon.pause();
        hasty.send(request.to_string().as_bytes(), &[]).unwrap();
        drop(hasty);
        daemon.resume();
    }
    // The requests of a user for memory are served in their order.
    let last = Raw::greeted(&daemon.socket());
    assert_eq!(last.ask(&publish("ticks", false), &[])["reply"], "publishing");
    assert_eq!(generation(&daemon), before + 1, "only the last request had somebody to serve");
}

/// The publisher of a crashed daemon is stopped, and a reader leaves before the next daemon no longer waits for this publisher.
#[test]
fn a_reader_that_has_left_does_not_move_a_channel_whose_memory_can_still_come_back() {
    let mut daemon = Daemon::start(&config());
    let (_, files) = Raw::greeted(&daemon.socket()).ask_for_files(&publish("ticks", false), &[]);
    daemon.crash();
    let hasty = Raw::greeted(&daemon.socket());
    hasty.send(subscribe("ticks", false).to_string().as_bytes(), &[]).unwrap();
    drop(hasty);
    // A new publisher is let in after the wait for those who come back.
    drop(publishing(&daemon.client(), "other").open().unwrap());
    let back = Raw::greeted(&daemon.socket());
    let answer = back.ask(&publish("ticks", true), &fds(&files[..2]));
    assert_eq!((&answer["reply"], &answer["generation"]), (&json!("publishing"), &json!(1)), "{answer}");
    assert_eq!(daemon.told("restarted"), 1, "only the other channel restarts: {}", daemon.log());
}

#[test]
fn a_reader_that_reads_no_packet_is_sent_few_segments_and_counts_until_it_reads() {
    let limits = "connections_per_uid = 3\nrequests_per_second";
    let daemon = Daemon::start(&config().replace("requests_per_second", limits));
    let [idle, taker] = [Raw::greeted(&daemon.socket()), Raw::greeted(&daemon.socket())];
    idle.subscribe("ticks");
    for _ in 0..100 {
        assert_eq!(taker.ask(&take_over("ticks"), &[])["reply"], "done");
    }
    daemon.wait_for_log(&["does not read"]);
    taker.send(json!({"request": "stat", "channel": "ticks"}).to_string().as_bytes(), &[]).unwrap();
    let replies = std::iter::from_fn(|| taker.receive().map(|(part, _)| part["reply"].clone()));
    let replies: Vec<_> = replies.take_while(|reply| reply != "done").collect();
    assert_eq!(replies, ["channel"], "it is no reader any more");
    // The third connection is the last that the user may have, because the descriptors of the first are still open.
    let third = wait_for("the third connection", || greeted(&daemon));
    for _ in 0..20 {
        assert!(greeted(&daemon).is_none(), "the connection of the idle reader counts");
    }
    let mut moved = 0;
    while let Some((packet, files)) = idle.receive() {
        assert_eq!((&packet["reply"], files.len()), (&json!("moved"), 2));
        moved += 1;
    }
    assert_eq!(moved, MOST_UNREAD);
    wait_for("the place of the reader that has read", || greeted(&daemon));
    drop(third);
}

/// A greeted connection, if the user may have another one.
fn greeted(daemon: &Daemon) -> Option<Raw> {
    let raw = Raw::connect(&daemon.socket());
    let _ = raw.send(json!({"request": "hello", "version": 2}).to_string().as_bytes(), &[]);
    let (answer, _) = raw.receive()?;
    if answer["reply"] == "welcome" {
        return Some(raw);
    }
    assert_eq!(answer["code"], "limit", "{answer}");
    let _ = shutdown(&raw.socket, Shutdown::Both);
    None
}

#[test]
fn many_takeovers_of_one_user_delay_the_publisher_of_another_by_few() {
    let test = "many_takeovers_of_one_user_delay_the_publisher_of_another_by_few";
    let Some(mut command) = role_as!(test, NOBODY, "taker") else { return };
    let daemon = Daemon::start(&config());
    drop(publishing(&daemon.client(), "other").open().unwrap());
    let other = Raw::greeted(&daemon.socket());
    let _taker = Process::start(at_socket(&mut command, &daemon.socket()).stdin(Stdio::piped()));
    let taken =
        |log: &str| log.lines().filter(|line| line.contains("\"moved\"") && line.contains("ticks")).count();
    wait_until("the first takeover", || taken(&daemon.log()) > 0);
    daemon.pause();
    let before = taken(&daemon.log());
    other.send(publish("other", false).to_string().as_bytes(), &[]).unwrap();
    daemon.resume();
    assert_eq!(other.receive().unwrap().0["reply"], "publishing");
    daemon.wait_for_log(&["\"moved\"", "other"]);
    let log = daemon.log();
    let until = log.lines().position(|line| line.contains("\"moved\"") && line.contains("other")).unwrap();
    let between = log.lines().take(until).filter(|line| line.contains("\"moved\"")).count() - before;
    assert!(between < TAKEOVERS / 4, "{between} takeovers came first, after {before}");
}

#[test]
fn a_reader_that_the_lists_name_no_longer_gets_no_further_segment() {
    let test = "a_reader_that_the_lists_name_no_longer_gets_no_further_segment";
    let Some(mut command) = role_as!(test, NOBODY, "reader") else { return };
    let daemon = Daemon::start(&strict("ticks", "subscribers = [\"*\"]"));
    let out = daemon.dir().join("packets");
    let said = || fs::read_to_string(&out).unwrap();
    at_socket(&mut command, &daemon.socket()).stdout(File::create(&out).unwrap());
    let mut reader = Process::start(&mut command);
    wait_until("the reader", || said().contains("attached"));
    let permitted = Raw::greeted(&daemon.socket());
    permitted.subscribe("ticks");
    daemon.client().take_over("ticks").unwrap();
    wait_until("the next segment", || said().contains("moved"));
    assert_eq!(permitted.receive().unwrap().0["reply"], "moved");
    daemon.reload(&strict("ticks", "subscribers = []"));
    daemon.client().take_over("ticks").unwrap();
    assert_eq!(permitted.receive().unwrap().0["reply"], "moved", "root may always read");
    wait_until("the end of the connection", || said().contains("ended"));
    let said = said();
    assert_eq!(said.matches("moved").count(), 1, "{said}");
    assert!(said.contains("denied") && said.contains("no longer"), "{said}");
    assert!(reader.wait().success());
    daemon.wait_for_log(&["refused", "may no longer read"]);
}
