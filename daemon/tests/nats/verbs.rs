//! The commands about streams, and what they say.

use shmcast::hosting::STREAM_STEP_NS;
use shmcast_testkit::command::{Host, text};
use shmcast_testkit::nats::alone;
use shmcast_testkit::wait_until;
use std::time::SystemTime;

#[test]
fn a_stream_is_made_shown_checked_and_removed() {
    let test = "a_stream_is_made_shown_checked_and_removed";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let nats = format!("--nats {}", server.url());
    let fails = |verb: &str| {
        let output = host.run(&format!("bridge {verb} {nats}"));
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    assert!(host.run("pub a.b --count 0").status.code().is_some());
    assert!(fails("stream info a.b").contains("shmcast bridge stream create a.b"));
    let made = host.json(&format!("bridge stream create a.b {nats} --keep 10MiB --keep-for 1h --json"));
    assert_eq!((&made["stream"], &made["replicas"]), (&"SHMCAST_a=b".into(), &1.into()), "{made}");
    let empty = host.json(&format!("bridge stream verify a.b {nats} --json"));
    assert_eq!((&empty["messages"], &empty["blocks"]), (&0.into(), &0.into()));
    let three = host.run(&format!("bridge stream create c {nats} --replicas 3"));
    assert!(!three.status.success(), "one server keeps no three copies");
    assert!(host.run(&format!("bridge stream rm a.b {nats}")).status.success());
    assert!(fails("stream rm a.b").contains("no stream"));
    let output = host.run("bridge stream info a.b --nats ftp://x");
    assert!(!output.status.success() && text(&output.stderr).contains("nats"), "{}", text(&output.stderr));
}

/// Waits until the session of a channel that is made now has a later term, which counts half seconds, than any before.
fn next_term() {
    let term = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 / STREAM_STEP_NS;
    let now = term();
    wait_until("the next half second", || term() > now);
}

#[test]
fn two_publishers_of_one_channel_are_told_apart() {
    let test = "two_publishers_of_one_channel_are_told_apart";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let nats = format!("--nats {} --create --until-end", server.url());
    let (old, new) = (Host::new(), Host::new());
    let publish = |host: &Host| {
        let mut command = host.shmcast("pub ticks");
        command.stdin(std::fs::File::open(host.file("lines", b"a\nb\nc\n")).unwrap());
        assert!(command.status().unwrap().success());
    };
    publish(&old);
    next_term();
    publish(&new);
    let send = |host: &Host| {
        let output = host.run(&format!("bridge send ticks {nats}"));
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = send(&old);
    assert_eq!(code, Some(0), "{said}");
    // The later channel begins behind the earlier one, and the earlier one is refused from then on.
    let (code, said) = send(&new);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = send(&old);
    assert!(code == Some(1) && said.contains("two publishers write one channel"), "{said}");
    let found = new.json(&format!("bridge stream verify ticks --nats {} --json", server.url()));
    assert_eq!((&found["messages"], found["sessions"].as_array().unwrap().len()), (&6.into(), 2), "{found}");
}
