//! The rules that decide which user receives which event.

use super::NOBODY;
use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::place::program;
use shmcast_testkit::process::{as_user, at_socket};
use shmcast_testkit::raw::{Raw, publish};
use shmcast_testkit::{role_as, wait_for};
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;

fn config(closed: &str) -> String {
    let closed = channel("closed", closed);
    [channel("open", FOR_ALL), closed].concat().replace("16MiB", "64KiB")
}

/// Requests channels that this user is not allowed to use.
pub(crate) fn be_refused(socket: &Path) {
    let raw = Raw::greeted(socket);
    raw.assert_refused(&publish("closed", false), &[], "denied");
}

/// The events that a follower has received.
fn told(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_follower_is_told_nothing_of_what_he_may_not_read() {
    let test = "a_follower_is_told_nothing_of_what_he_may_not_read";
    let daemon = Daemon::start(&config("publishers = []"));
    let program = program("shmcast");
    let Some(mut nobody) = as_user(test, NOBODY, &program) else { return };
    let mut root = std::process::Command::new(&program);
    let followed = [daemon.dir().join("nobody"), daemon.dir().join("root")];
    let mut followers = Vec::new();
    for (command, path) in [&mut nobody, &mut root].into_iter().zip(&followed) {
        command.args(["events", "--follow", "--json"]).env("SHMCAST_SOCKET", daemon.socket());
        command.env_remove("SHMCAST_DIR").stdin(Stdio::null()).stdout(File::create(path).unwrap());
        followers.push(shmcast_testkit::Process::start(command));
    }
    let client = daemon.client();
    // Wait until both programs follow events.
    for path in &followed {
        wait_for("a follower", || {
            drop(publishing(&client, "open").open().unwrap());
            (!told(path).is_empty()).then_some(())
        });
    }
    drop(publishing(&client, "closed").open().unwrap());
    let raw = Raw::greeted(&daemon.socket());
    raw.assert_refused(&publish("nosuch", false), &[], "unknown-channel");
    let Some(mut refused) = role_as!(in "front", test, NOBODY, "refused") else { return };
    assert!(at_socket(&mut refused, &daemon.socket()).status().unwrap().success());
    // Some users are not allowed to know the names of channels that are added and removed.
    daemon.configure(&config("publishers = []").replace("closed", "hidden"));
    daemon.signal(Signal::SIGHUP);
    // The reload is the last event.
    let [nobody, root] = followed;
    for path in [&nobody, &root] {
        wait_for("the word of the reload", || {
            told(path).iter().any(|event| event["event"] == "reloaded").then_some(())
        });
    }
    let is = |event: &Value, what: &str, channel: &str| event["event"] == what && event["channel"] == channel;
    let all = told(&root);
    for (what, channel) in
        [("attached", "closed"), ("refused", "nosuch"), ("refused", "closed"), ("removed", "closed")]
    {
        assert!(
            all.iter().any(|event| is(event, what, channel)),
            "root is told all: {what} {channel}: {all:?}"
        );
    }
    let his = told(&nobody);
    assert!(his.iter().any(|event| is(event, "attached", "open")), "{his:?}");
    assert!(his.iter().any(|event| is(event, "refused", "closed")), "his own refusal: {his:?}");
    // A user who asks for past events gets no more events than a follower got.
    let Some(mut later) = as_user(test, NOBODY, &program) else { return };
    later.args(["events", "--last", "1000", "--json"]).env("SHMCAST_SOCKET", daemon.socket());
    let output = later.env_remove("SHMCAST_DIR").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let past: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(past.iter().any(|event| is(event, "refused", "closed")), "his own refusal: {output:?}");
    for event in his.iter().chain(&past) {
        let own = event["process"]["uid"] == NOBODY;
        let text = event.to_string();
        assert!(own || !["closed", "hidden", "nosuch"].iter().any(|name| text.contains(name)), "{event}");
    }
}
