//! Nassau, a MoldUDP64 library of another make for Java, receives our plain line and feeds ours, through a relay that loses
//! packets. Maven brings it; without Maven, a JDK or the registry the tests print their names as skipped.

use super::hosts::{Host, Hosts, number};
use super::loss::{assert_all_have_all, count, readers};
use super::roles::{LONGEST, make_channel, write_message};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const GROUP: (&str, &str) = ("239.77.0.1", "30001");
const RELAYED: (&str, &str) = ("239.77.0.9", "30009");
const SERVER: (&str, &str) = ("10.77.0.1", "30002");
const RELAY: (&str, &str) = ("10.77.0.2", "30002");

/// The class path of the program. If it cannot be made here, prints the reason and returns `None`.
fn class_path(test: &str) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bridge/nassau");
    let made: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nassau");
    let path = format!("{}:{0}/lib/*", made.display());
    let jars = format!("-DoutputDirectory={}/lib", made.display());
    let pom = source.join("pom.xml").display().to_string();
    let program = source.join("Peer.java").display().to_string();
    let steps = [
        ("mvn", vec!["-q", "-B", "-f", &pom, "dependency:copy-dependencies", &jars]),
        ("javac", vec!["-d", made.to_str().unwrap(), "-cp", &path, &program]),
    ];
    for (command, words) in steps {
        let reason = match Command::new(command).args(words).output() {
            Ok(output) if output.status.success() => continue,
            Ok(output) => String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
            Err(e) => e.to_string(),
        };
        eprintln!("SKIPPED {test}: {command}: {}", reason.lines().next().unwrap_or_default());
        return None;
    }
    Some(path)
}

fn address((ip, port): (&str, &str)) -> String {
    format!("{ip}:{port}")
}

/// The messages up to this sequence, each behind its length, as the program reads and writes them.
fn messages(last: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sequence in 1..=last {
        let mut buffer = [0; LONGEST];
        let size = write_message(sequence, &mut buffer);
        bytes.extend_from_slice(&(size as u32).to_be_bytes());
        bytes.extend_from_slice(&buffer[..size]);
    }
    bytes
}

fn last() -> u64 {
    number("SHMCAST_BRIDGE_MESSAGES", 10_000)
}

fn relay(hosts: &Hosts) -> super::hosts::Running {
    let (from, to) = (address(GROUP), address(RELAYED));
    let words = format!("7 10 {from} {to} vb0 {} {}", address(RELAY), address(SERVER));
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
    let send = hosts.shmcast(
        Host::A,
        &format!(
            "bridge send t --to {} --interface va0 --repair {} --allow 10.77.0.0/16 --trust-allowed --until-end --linger 5s",
            address(GROUP),
            address(SERVER)
        ),
    );
    send.wait_for_log("sending session");
    let relay = relay(&hosts);
    let (file, last) = (hosts.dir.path().join("received"), last());
    let client = hosts.program(
        Host::B,
        "java",
        &format!(
            "-cp {path} Peer client {} {} vb0 {} {} {last} {}",
            RELAYED.0,
            RELAYED.1,
            RELAY.0,
            RELAY.1,
            file.display()
        ),
    );
    client.wait_for_log("ready");
    let publisher = hosts.role(Host::A, "publish", &format!("{last} 5000"));
    let said = client.end_well();
    assert!(fs::read(&file).unwrap() == messages(last), "the messages differ");
    assert!(count(&said, "/requests") > 0, "{said}");
    eprintln!("{test}: {said}");
    publisher.end_well();
    drop((send, relay));
}

#[test]
fn a_feed_of_another_make_is_received() {
    let test = "a_feed_of_another_make_is_received";
    let Some(path) = class_path(test) else { return };
    let Some(hosts) = Hosts::new(test, 1) else { return };
    let (file, last) = (hosts.dir.path().join("messages"), last());
    fs::write(&file, messages(last)).unwrap();
    let relay = relay(&hosts);
    let words = format!(
        "bridge recv t --from {} --interface vb0 --server {} --no-lease --first 1 --capacity 64MiB --json",
        address(RELAYED),
        address(RELAY)
    );
    let ingress = hosts.shmcast(Host::B, &words);
    let reader = readers(&hosts, 1, last);
    let server = hosts.program(
        Host::A,
        "java",
        &format!(
            "-cp {path} Peer server {} {} va0 {} {} {}",
            GROUP.0,
            GROUP.1,
            SERVER.0,
            SERVER.1,
            file.display()
        ),
    );
    ingress.wait_for_log("receiving session NASSAU0001");
    assert_all_have_all(reader, last);
    let (code, received) = ingress.stop();
    assert_eq!((code, count(&received, "/receive/messages_missing")), (0, 0), "{received}");
    let recovered = count(&received, "/receive/recovered_by_servers");
    assert!(recovered > 0, "{received}");
    eprintln!("{test}: {last} messages, {recovered} recovered from its server");
    drop((server, relay));
}
