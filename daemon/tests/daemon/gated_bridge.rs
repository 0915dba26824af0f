//! Sending bridges that take a gate: a bridge that is stopped, killed, changed by a reload, or refused its gate.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::control::GateReport;
use shmcast::{Client, GateState, PublishError, Publisher, Subscriber};
use shmcast_testkit::command::{interrupt, text};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::{Process, wait_for, wait_until};
use std::net::{SocketAddr, UdpSocket};

/// A placeholder for the users of the gate `wan`.
const USERS: &str = "# users";
const JOURNAL: &str = "journal = { dir = \"/var/tmp/ticks\", gate = \"wan\" }\n";

fn config(bridge: &str) -> String {
    let gates = "[[channel.gate]]\nname = \"wan\"\nwait = \"1ms\"\nthen = \"refuse\"\n\
                 [[channel.gate]]\nname = \"other\"\nwait = \"0\"";
    let more = format!("max_message = 1000\n{FOR_ALL}\n{gates}");
    format!(
        "[limits]\nrequests_per_second = 10000\n{}{bridge}",
        channel("ticks", &more).replace("16MiB", "64KiB")
    )
}

/// A bridge that sends to this address.
fn sends(to: SocketAddr, more: &str) -> String {
    format!(
        "[[bridge]]\nname = \"out\"\nchannel = \"ticks\"\nline = [{{ group = \"{to}\" }}]\n[bridge.send]\n{more}\n"
    )
}

/// Returns a socket that nobody reads, and its address.
fn drain() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    (socket, to)
}

fn gate(client: &Client) -> GateReport {
    client.channel("ticks").unwrap().gates.into_iter().find(|gate| gate.terms.gate == "wan").unwrap()
}

/// The process id of the gate's holder.
fn holder(client: &Client) -> Option<u32> {
    gate(client).reader.and_then(|reader| reader.pid)
}

fn open(client: &Client) -> Publisher {
    wait_for("the channel to be free", || publishing(client, "ticks").open().ok())
}

fn state(publisher: &Publisher) -> GateState {
    publisher.gates().iter().find(|gate| gate.name.as_str() == "wan").unwrap().state
}

/// Publishes until the gate is in force.
fn wait_for_force(publisher: &mut Publisher) {
    wait_until("a gate in force", || {
        let _ = publisher.try_publish(&[1; 100]);
        state(publisher) == GateState::InForce
    });
}

/// Publishes until nobody has the gate.
fn wait_for_absence(publisher: &mut Publisher) {
    wait_until("the publisher to be free", || {
        let is_free = publisher.publish(&[1; 100]).is_ok();
        is_free && state(publisher) == GateState::Absent
    });
}

/// Publishes until the gate refuses.
fn fill(publisher: &mut Publisher) {
    for _ in 0..1_000_000 {
        match publisher.try_publish(&[1; 100]) {
            Ok(_) => {}
            Err(PublishError::Full { gate, .. }) => return assert_eq!(gate.as_str(), "wan"),
            Err(other) => panic!("{other}"),
        }
    }
    panic!("nothing holds this publisher up");
}

fn bridge(daemon: &Daemon) -> Value {
    let output = daemon.shmcast("bridge status --json").output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    status["bridges"][0].clone()
}

fn send_command(daemon: &Daemon, more: &str) -> (Process, UdpSocket) {
    let (socket, to) = drain();
    (Process::start(&mut daemon.shmcast(&format!("bridge send ticks --to {to} {more}"))), socket)
}

#[test]
fn a_bridge_that_is_stopped_holds_its_publisher_up_and_one_that_is_killed_frees_it() {
    let daemon = Daemon::start(&config(""));
    let client = daemon.client();
    let mut publisher = open(&client);
    let (sends, _socket) = send_command(&daemon, "--set send.gate=wan --json");
    wait_for_force(&mut publisher);
    assert_eq!(holder(&client), Some(sends.id()));
    for _ in 0..3 {
        sends.pause();
        fill(&mut publisher);
        let next = publisher.next_sequence();
        assert!(matches!(publisher.publish(&[1; 100]), Err(PublishError::Full { .. })), "it waits in vain");
        assert_eq!(publisher.next_sequence(), next);
        sends.resume();
        wait_until("room", || publisher.publish(&[1; 100]).is_ok());
    }
    let last = publisher.next_sequence();
    wait_until("all to be read", || {
        client.channel("ticks").unwrap().readers.iter().all(|r| r.lag == Some(0))
    });
    interrupt(&sends);
    let output = sends.output();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["send"]["messages_missed"], 0, "{report}");
    assert_eq!(report["send"]["next_sequence"], last, "{report}");

    wait_for_absence(&mut publisher);
    let (sends, _socket) = send_command(&daemon, "--set send.gate=wan --set send.listen_ms=0");
    wait_for_force(&mut publisher);
    sends.pause();
    fill(&mut publisher);
    sends.signal(Signal::SIGKILL);
    wait_for_absence(&mut publisher);
}

#[test]
fn a_reload_gives_the_gate_to_the_next_bridge_or_to_nobody() {
    let ((_one, here), (_two, there)) = (drain(), drain());
    let daemon = Daemon::start(&config(&sends(here, "gate = \"wan\"")));
    let client = daemon.client();
    let mut publisher = open(&client);
    wait_for_force(&mut publisher);
    assert_eq!(holder(&client), Some(daemon.pid().as_raw() as u32));
    assert_eq!(bridge(&daemon)["state"], "running");
    let started = || daemon.log().matches("event=\"bridge-started\"").count();
    // The same bridge gets other fields, another line, another gate, and its own gate back. Each new bridge begins when the previous one
    // has left.
    let gates = ["gate = \"wan\"\nttl = 2", "gate = \"wan\"", "gate = \"other\"", "gate = \"wan\""];
    for (step, (to, more)) in [here, there, there, there].into_iter().zip(gates).enumerate() {
        daemon.reload(&config(&sends(to, more)));
        wait_until("the next bridge", || started() == step + 2);
        if more.contains("wan") {
            wait_for_force(&mut publisher);
        } else {
            wait_until("a gate without a reader", || {
                gate(&client).state == "absent" || holder(&client).is_none()
            });
        }
    }
    assert!(!daemon.log().contains("bridge-failed"), "{}", daemon.log());
    daemon.reload(&config(&sends(there, "")));
    wait_until("no reader of the gate", || holder(&client).is_none());
    wait_for_absence(&mut publisher);
    // A leaving bridge sends what was published. The publisher does not wait for it while it serves repairs.
    let repair = "gate = \"wan\"\nlinger_ms = 60000\n[bridge.send.repair]\nbind = \"127.0.0.1:0\"\nallow = [\"127.0.0.1\"]";
    daemon.reload(&config(&sends(there, repair)));
    wait_for_force(&mut publisher);
    daemon.reload(&config(""));
    wait_until("a bridge that leaves", || bridge(&daemon)["state"] == "leaving");
    wait_for_absence(&mut publisher);
}

#[test]
fn a_gate_that_is_in_use_or_unknown_is_told_and_tried_again() {
    let (_socket, to) = drain();
    let daemon = Daemon::start(&config(""));
    let client = daemon.client();
    let mut publisher = open(&client);
    let taken = Subscriber::builder("ticks").client(&client).gate("wan").open().unwrap();
    daemon.reload(&config(&sends(to, "gate = \"wan\"")));
    daemon.wait_for_log(&["bridge-failed", "out", "another reader has it"]);
    let shown = bridge(&daemon);
    let why = shown["why"].as_str().unwrap().to_owned();
    assert_eq!(shown["state"], "failed", "{shown}");
    assert!(why.contains("gate \"wan\"") && why.contains(&std::process::id().to_string()), "{why}");
    drop(taken);
    wait_until("the bridge", || bridge(&daemon)["state"] == "running");
    wait_for_force(&mut publisher);

    // A configuration can only name existing gates, each for one reader.
    let nobody_has = sends(to, "gate = \"nobody\"");
    for (bridges, said) in [
        (nobody_has.clone(), "no such gate"),
        (nobody_has.replace("nobody", "no body"), "the name may hold"),
        (sends(to, "gate = \"wan\"").repeat(2).replacen("out", "two", 1), "has it"),
        // Users of a gate could end the process that maps the gate's page. Here this process would be the daemon.
        (sends(to, "gate = \"wan\"") + USERS, "remove `users`"),
        (JOURNAL.to_owned() + USERS, "remove `users`"),
    ] {
        let file = daemon.dir().join("other.toml");
        let mut wrong = config(bridges.trim_end_matches(USERS).trim_end_matches(JOURNAL));
        if bridges.contains(USERS) {
            wrong = wrong.replace("name = \"wan\"", "name = \"wan\"\nusers = [\"*\"]");
        }
        if bridges.contains(JOURNAL) {
            wrong = wrong.replace("max_message", &format!("{JOURNAL}max_message"));
        }
        std::fs::write(&file, wrong).unwrap();
        let checked = daemon.shmcast(&format!("check {}", file.display())).output().unwrap();
        let told = text(&checked.stdout) + &text(&checked.stderr);
        assert!(!checked.status.success() && told.contains("gate") && told.contains(said), "{told}");
    }
    let (refused, _socket) = send_command(&daemon, "--set send.gate=nobody");
    let output = refused.output();
    let told = text(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains("has no gate \"nobody\""), "{told}");
}
