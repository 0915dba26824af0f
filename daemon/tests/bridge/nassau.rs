//! Nassau, another implementation of MoldUDP64 in Java, receives our plain line and feeds ours, through a relay that loses packets,
//! requests and answers. Maven provides Nassau. Without Maven, a JDK or the registry, the tests print their names as skipped.

use super::feed::{assert_all_have_all, count, messages, readers};
use super::roles::{LONGEST, make_channel, write_message};
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::skip;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

const GROUP: (&str, &str) = ("239.77.0.1", "30001");
const SERVER: (&str, &str) = ("10.77.0.1", "30002");
/// The group to which the relay forwards, and the address at which it takes requests.
const RELAYED: (&str, &str) = ("239.77.0.9", "30009");
const RELAY: (&str, &str) = ("10.77.0.2", "30002");

/// The class path of the program. If it cannot be made here, prints the reason and returns `None`.
fn class_path(test: &str) -> Option<&'static str> {
    static MADE: OnceLock<Result<String, String>> = OnceLock::new();
    match MADE.get_or_init(make) {
        Ok(path) => Some(path),
        Err(reason) => {
            skip(test, reason);
            None
        }
    }
}

fn make() -> Result<String, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bridge/nassau");
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nassau");
    let (jars, path) = (made.join("lib"), format!("{0}:{0}/lib/*", made.display()));
    if !jars.join("nassau-core-0.13.0.jar").exists() {
        let pom = source.join("pom.xml").display().to_string();
        let to = format!("-DoutputDirectory={}", jars.display());
        run("mvn", &["-q", "-B", "-f", &pom, "dependency:copy-dependencies", &to])?;
    }
    let (classes, program) = (made.display().to_string(), source.join("Peer.java").display().to_string());
    run("javac", &["-Xlint:all", "-Werror", "-d", &classes, "-cp", &path, &program])?;
    Ok(path)
}

/// Runs a command, whose last line is the reason if it fails.
fn run(command: &str, words: &[&str]) -> Result<(), String> {
    let output = Command::new(command).args(words).output().map_err(|e| format!("{command}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    Err(format!("{command}: {}", said.lines().find(|line| line.contains("rror")).unwrap_or("it failed")))
}

fn address((ip, port): (&str, &str)) -> String {
    format!("{ip}:{port}")
}

/// The messages up to this sequence, each after its length, as the program reads and writes them.
fn file_of(last: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sequence in 1..=last {
        let mut buffer = [0; LONGEST];
        let size = write_message(sequence, &mut buffer);
        bytes.extend_from_slice(&(size as u32).to_be_bytes());
        bytes.extend_from_slice(&buffer[..size]);
    }
    bytes
}

/// The last sequence. There are few messages, because each lost request costs Nassau's client a second in which it drops all packets.
fn last() -> u64 {
    messages() / 10
}

/// Loses three in a hundred of the line's packets, of requests and of answers.
fn relay(hosts: &Hosts) -> Running {
    let (from, to) = (address(GROUP), address(RELAYED));
    let words = format!("7 30 {from} {to} vb0 {} {}", address(RELAY), address(SERVER));
    let relay = hosts.role(Host::B, "relay", &words);
    relay.wait_for_log("ready");
    relay
}

#[test]
fn a_client_of_another_make_receives_our_line() {
    let test = "a_client_of_another_make_receives_our_line";
    let Some(path) = class_path(test) else { return };
    let Some(hosts) = Hosts::new(test, 1) else { return };
    drop(make_channel(&hosts.channels(Host::A)));
    let send = format!(
        "bridge send t --to {} --interface va0 --repair {} --allow 10.77.0.0/16 --set send.repair.trust_allowed=true --json --until-end \
         --set send.linger_ms=90000",
        address(GROUP),
        address(SERVER)
    );
    let send = hosts.shmcast(Host::A, &send);
    send.wait_for_log("sending session");
    let relay = relay(&hosts);
    let (file, last) = (hosts.dir.path().join("received"), last());
    let client = format!(
        "-cp {path} Peer client {} {} vb0 {} {} {last} {}",
        RELAYED.0,
        RELAYED.1,
        RELAY.0,
        RELAY.1,
        file.display()
    );
    let client = hosts.program(Host::B, "java", &client);
    client.wait_for_log("ready");
    hosts.role(Host::A, "publish", &format!("{last} 2000")).end_well();
    let said = client.end_well();
    assert!(fs::read(&file).unwrap() == file_of(last), "the messages differ: {said}");
    assert!(count(&said, "/requests") > 0, "nothing was lost: {said}");
    let (_, sent) = send.stop();
    let answers = count(&sent, "/repair/replies");
    assert!(answers > 0, "{sent}");
    eprintln!("{test}: {last} messages, byte for byte; {said}, of which {answers} were answered");
    drop(relay);
}

#[test]
fn a_feed_of_another_make_is_received() {
    let test = "a_feed_of_another_make_is_received";
    let Some(path) = class_path(test) else { return };
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let (file, last) = (hosts.dir.path().join("messages"), messages());
    fs::write(&file, file_of(last)).unwrap();
    let relay = relay(&hosts);
    let words = format!(
        "bridge recv t --from {} --interface vb0 --server {} --set receive.lease=false --set receive.from=1 --capacity 16MiB --json",
        address(RELAYED),
        address(RELAY)
    );
    let ingress = hosts.shmcast(Host::B, &words);
    let readers = readers(&hosts, 2, last);
    let server = format!(
        "-cp {path} Peer server {} {} va0 {} {} {}",
        GROUP.0,
        GROUP.1,
        SERVER.0,
        SERVER.1,
        file.display()
    );
    let server = hosts.program(Host::A, "java", &server);
    ingress.wait_for_log("receiving session NASSAU0001");
    // Each reader compares every message with the one in the file.
    assert_all_have_all(readers, last);
    let (code, received) = ingress.stop();
    assert_eq!((code, count(&received, "/receive/messages_missing")), (0, 0), "{received}");
    let recovered = count(&received, "/receive/recovered_by_servers");
    assert!(recovered > 0, "{received}");
    eprintln!("{test}: {last} messages, byte for byte; {recovered} of them recovered from its server");
    drop((server, relay));
}
