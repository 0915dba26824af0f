//! The commands about streams, and their output.

use nix::sys::signal::Signal;
use shmcast::hosting::STREAM_STEP_NS;
use shmcast_testkit::command::{Host, end, text};
use shmcast_testkit::nats::alone;
use shmcast_testkit::wait_until;
use std::io::Write;
use std::time::SystemTime;

#[test]
fn a_stream_is_made_shown_checked_and_removed() {
    let test = "a_stream_is_made_shown_checked_and_removed";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let host = Host::new();
    let nats = server.url();
    let fails = |verb: &str| {
        let output = host.run(&format!("bridge {verb} {nats}"));
        assert_eq!(output.status.code(), Some(1));
        text(&output.stderr)
    };
    assert!(host.run("pub a.b --count 0").status.code().is_some());
    assert!(fails("stream info a.b").contains("shmcast bridge stream create a.b"));
    let made = host.json(&format!(
        "bridge stream create a.b {nats} --set nats.keep_bytes=10485760 --set nats.keep_s=3600 --json"
    ));
    assert_eq!((&made["stream"], &made["replicas"]), (&"SHMCAST_a=b".into(), &1.into()), "{made}");
    let empty = host.json(&format!("bridge stream verify a.b {nats} --json"));
    assert_eq!((&empty["messages"], &empty["blocks"]), (&0.into(), &0.into()));
    let three = host.run(&format!("bridge stream create c {nats} --set nats.replicas=3"));
    assert!(!three.status.success(), "one server keeps no three copies");
    assert!(host.run(&format!("bridge stream rm a.b {nats}")).status.success());
    assert!(fails("stream rm a.b").contains("no stream"));
    let output = host.run("bridge stream info a.b ftp://x");
    assert!(!output.status.success() && text(&output.stderr).contains("nats"), "{}", text(&output.stderr));
}

/// Waits until a channel that is made now has a session with a later term than all before it. Terms count half seconds.
fn next_term() {
    let term = || SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64 / STREAM_STEP_NS;
    let now = term();
    wait_until("the next half second", || term() > now);
}

#[test]
fn two_publishers_of_one_channel_are_told_apart() {
    let test = "two_publishers_of_one_channel_are_told_apart";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let nats = format!("{} --set nats.create=true --until-end", server.url());
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
        let output = host.run(&format!("bridge send ticks --nats {nats}"));
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = send(&old);
    assert_eq!(code, Some(0), "{said}");
    // The later channel begins after the earlier one in the stream. From then on, the earlier one is refused.
    let (code, said) = send(&new);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = send(&old);
    assert!(code == Some(1) && said.contains("two publishers write one channel"), "{said}");
    let found = new.json(&format!("bridge stream verify ticks {} --json", server.url()));
    assert_eq!((&found["messages"], found["sessions"].as_array().unwrap().len()), (&6.into(), 2), "{found}");
}

/// The channel that was made first stands for one that was made anew while its host's clock was behind.
#[test]
fn a_channel_made_anew_while_the_clock_was_behind_follows_what_the_stream_has() {
    let test = "a_channel_made_anew_while_the_clock_was_behind_follows_what_the_stream_has";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let nats = server.url();
    let (behind, old, far) = (Host::new(), Host::new(), Host::new());
    let publish = |host: &Host, lines: &[u8]| {
        let file = host.file("lines", lines);
        assert!(host.run(&format!("pub ticks --capacity 64KiB --input {}", file.display())).status.success());
    };
    let send = |host: &Host| {
        let output = host.run(&format!("bridge send ticks --nats {nats} --set nats.create=true --until-end"));
        (output.status.code(), text(&output.stderr))
    };
    publish(&behind, b"new 1\nnew 2\n");
    next_term();
    publish(&old, b"old 1\n");
    let (code, said) = send(&old);
    assert_eq!(code, Some(0), "{said}");
    for _ in 0..2 {
        let (code, said) = send(&behind);
        assert_eq!(code, Some(0), "{said}");
    }
    let found = far.json(&format!("bridge stream verify ticks {nats} --json"));
    assert_eq!((&found["messages"], found["sessions"].as_array().unwrap().len()), (&3.into(), 2), "{found}");
    // Readers follow the later channel, and the earlier one does not come again.
    let output = far.run(&format!("bridge recv ticks --nats {nats} --capacity 64KiB --until-end"));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&far.run("sub ticks --from oldest").stdout), "new 1\nnew 2\n");
    let (code, said) = send(&old);
    assert!(code == Some(1) && said.contains("two publishers write one channel"), "{said}");
}

#[test]
fn each_end_ends_with_the_channel_and_not_with_an_earlier_publisher() {
    let test = "each_end_ends_with_the_channel_and_not_with_an_earlier_publisher";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let nats = server.url();
    let (near, far) = (Host::new(), Host::new());
    let publish = |lines: &[u8]| {
        let file = near.file("lines", lines);
        let output = near.run(&format!("pub ticks --capacity 64KiB --input {}", file.display()));
        assert!(output.status.success(), "{}", text(&output.stderr));
    };
    publish(b"a1\na2\n");
    // The log gets the first publisher's end, too, because nobody else publishes by then.
    let mut first =
        near.start(&format!("bridge send ticks --nats {nats} --set nats.create=true --until-end"));
    assert!(first.wait().success());
    let mut second = near.start_with_input("pub ticks");
    second.child().stdin.as_mut().unwrap().write_all(b"b1\n").unwrap();
    wait_until("the second publisher", || near.json("stat ticks --json")["next_sequence"] == 4);
    let mut send = near.start(&format!("bridge send ticks --nats {nats} --until-end"));
    let stored = || near.json(&format!("bridge stream info ticks {nats} --json"))["next_sequence"].clone();
    wait_until("what is there", || stored() == 4);
    let mut recv = far.start(&format!("bridge recv ticks --nats {nats} --capacity 64KiB --until-end"));
    wait_until("it at the far end", || {
        let output = far.run("stat ticks --json");
        let stat: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        stat["next_sequence"] == 4
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(send.is_alive() && recv.is_alive(), "somebody publishes");
    second.child().stdin.take().unwrap().write_all(b"b2\n").unwrap();
    for process in [second, send, recv] {
        let (code, said) = end(process);
        assert_eq!(code, 0, "{said}");
    }
    let output = far.run("sub ticks --from oldest");
    assert_eq!(text(&output.stdout), "a1\na2\nb1\nb2\n");
}

/// The servers do not answer about the end, and the sender does not read the end again.
#[test]
fn an_end_that_falls_into_a_silence_of_the_servers_is_said_all_the_same() {
    let test = "an_end_that_falls_into_a_silence_of_the_servers_is_said_all_the_same";
    let Some((_turn, _dir, server)) = alone(test) else { return };
    let nats = server.url();
    let host = Host::new();
    let mut publisher = host.start_with_input("pub ticks --capacity 64KiB");
    publisher.child().stdin.as_mut().unwrap().write_all(b"1\n").unwrap();
    let send = host
        .start(&format!("bridge send ticks --nats {nats} --set nats.create=true --wait-channel --until-end"));
    wait_until("what is there", || {
        let output = host.run(&format!("bridge stream info ticks {nats} --json"));
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        info["next_sequence"] == 2
    });
    server.signal(Signal::SIGSTOP);
    drop(publisher.child().stdin.take());
    assert_eq!(end(publisher).0, 0);
    // This is longer than the sender waits for an answer.
    std::thread::sleep(std::time::Duration::from_secs(3));
    server.signal(Signal::SIGCONT);
    let (code, said) = end(send);
    assert_eq!(code, 0, "{said}");
}
