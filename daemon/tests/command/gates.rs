//! `--set gate.NAME...`: gates of channels that are files, in the verbs that publish.

use shmcast::{Event, Subscriber};
use shmcast_testkit::command::{Host, end, interrupt, lines, recorded, text};
use shmcast_testkit::{wait_for, wait_until};

const LINES: usize = 5_000;

/// A reader that has this gate of channel `name`, once its publisher has begun, and another one. The publisher waits for both, because a
/// reader is seen a little before it has its gate.
fn gated(host: &Host, name: &str, gate: &str) -> (Subscriber, Subscriber) {
    let dir = host.dir.path().join("channels");
    let reader = wait_for("the gate", || Subscriber::builder(name).dir(&dir).gate(gate).open().ok());
    (reader, Subscriber::builder(name).dir(&dir).open().unwrap())
}

/// Reads to the end of the stream. Returns the numbers of received and of missed messages.
fn read(mut reader: Subscriber) -> (u64, u64) {
    let (mut messages, mut missed) = (0, 0);
    loop {
        match reader.recv().unwrap() {
            Event::Message(_) => messages += 1,
            Event::Lapped(lapped) => missed += lapped.missed,
            Event::End => return (messages, missed),
            _ => {}
        }
    }
}

#[test]
fn a_file_is_published_or_replayed_no_faster_than_the_reader_of_a_gate_reads() {
    let host = Host::new();
    let input = host.file("lines", &lines(LINES));
    let input = input.display();
    let options =
        "--capacity 64KiB --wait-readers 2 --set gate.the-slow.wait=10s --set gate.the-slow.lag=32KiB";
    let publisher = host.start(&format!("pub fresh --input {input} {options}"));
    let (reader, _second) = gated(&host, "fresh", "the-slow");
    assert_eq!(read(reader), (LINES as u64, 0));
    assert_eq!(end(publisher).0, 0);

    let journal = recorded(&host, &format!("--input {input}"));
    let replay = host.start(&format!("replay {journal} --into again --speed max {options}"));
    let (reader, _second) = gated(&host, "again", "the-slow");
    assert_eq!(read(reader), (LINES as u64, 0));
    assert_eq!(end(replay).0, 0);
}

/// The number of messages that a verb names behind `words`.
fn count_behind(said: &str, words: &str) -> Option<u64> {
    let (count, _) = said.split_once(words)?.1.split_once(" messages")?;
    count.replace([',', ' '], "").parse().ok()
}

#[test]
fn a_gate_that_refuses_ends_the_verb_and_one_that_drops_does_not() {
    let host = Host::new();
    let input = host.file("lines", &lines(LINES));
    let publish = |then: &str| {
        let gate = format!("--set gate.g.wait=1ms --set gate.g.then={then}");
        host.start(&format!(
            "pub {then} --input {} --capacity 64KiB --wait-readers 2 {gate}",
            input.display()
        ))
    };
    let publisher = publish("refuse");
    let (reader, _second) = gated(&host, "refuse", "g");
    let (code, said) = end(publisher);
    assert!(code == 1 && said.contains("gate g holds the message up"), "{code}: {said}");
    let (messages, missed) = read(reader);
    assert!((1..LINES as u64).contains(&messages) && missed == 0, "{messages}, {missed}");
    assert_eq!(count_behind(&said, "published only "), Some(messages), "{said}");

    let journal = recorded(&host, &format!("--input {}", input.display()));
    let gate = "--set gate.g.wait=1ms --set gate.g.then=refuse";
    let replay = host.start(&format!(
        "replay {journal} --into again --speed max --capacity 64KiB --wait-readers 2 {gate}"
    ));
    let (reader, _second) = gated(&host, "again", "g");
    let (code, said) = end(replay);
    assert!(code == 1 && said.contains("gate g holds the message up"), "{code}: {said}");
    assert!(!said.contains("max_message"), "{said}");
    let (messages, missed) = read(reader);
    assert!((1..LINES as u64).contains(&messages) && missed == 0, "{messages}, {missed}");
    assert_eq!(count_behind(&said, "replayed only "), Some(messages), "{said}");
    assert!(said.contains(&format!("go on with --from {}", messages + 1)), "{said}");

    let publisher = publish("drop");
    let (reader, _second) = gated(&host, "drop", "g");
    assert_eq!(end(publisher).0, 0);
    let (messages, missed) = read(reader);
    assert!(messages + missed == LINES as u64 && missed > 0, "{messages}, {missed}");
}

/// An earlier mistake: a verb that waited for a gate noticed no signal, and called the end of the wait an error.
#[test]
fn a_verb_that_waits_for_a_gate_is_ended_by_a_signal() {
    let host = Host::new();
    let input = host.file("lines", &lines(LINES));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    for then in ["refuse", "drop"] {
        let gate =
            format!("--capacity 64KiB --wait-readers 2 --set gate.g.wait=10s --set gate.g.then={then}");
        for verb in [
            format!("pub pub-{then} --input {} {gate}", input.display()),
            format!("replay {journal} --into replay-{then} --speed max {gate}"),
        ] {
            let publisher = host.start(&verb);
            let channel = format!("{}-{then}", verb.split_once(' ').unwrap().0);
            let (mut reader, _second) = gated(&host, &channel, "g");
            let count = |field: &str| host.json(&format!("stat {channel} --json"))[field].as_u64();
            let mut before = None;
            // The publisher stands still, so a message waits for the gate.
            wait_until("a message that waits", || {
                let published = count("next_sequence").filter(|next| *next > 1);
                published.is_some() && std::mem::replace(&mut before, published) == published
            });
            interrupt(&publisher);
            let (ended, said) = end(publisher);
            assert_eq!(ended, 130, "{verb}: {said}");
            assert!(said.contains("INTERRUPTED") && !said.contains("holds the message up"), "{verb}: {said}");
            let mut messages = 0;
            while let Some(event) = reader.try_recv().unwrap() {
                assert!(!matches!(event, Event::Lapped(_)), "{verb}: the gate's reader lost messages");
                messages += u64::from(matches!(event, Event::Message(_)));
            }
            let words = if verb.starts_with("pub") { "published " } else { "replayed " };
            assert_eq!(count_behind(&said, words), Some(messages), "{verb}: {said}");
        }
    }
}

#[test]
fn a_gate_that_cannot_be_is_refused_with_what_to_write() {
    let host = Host::new();
    for (setting, why) in [
        ("gate=g", "write it like gate.NAME.wait=10ms"),
        ("gate.g=10ms", "g: write it like gate.NAME.wait=10ms"),
        ("gate.g.wait=soon", "g: wait: "),
        ("gate.g.wait=10", "g: wait: "),
        ("gate.g.wait=11s", "g: wait = 11s: must be from 0 to 10s"),
        ("gate.g.lag=half", "g: lag: "),
        ("gate.g.lag=1", "a lag of 1 B does not fit"),
        ("gate.g.then=stop", "g: then: unknown value `stop`"),
        ("gate.g.users=risk", "g: every user who may read"),
        ("gate.g.when=now", "unknown field `when`"),
        ("gate.-g.wait=0", "must not begin with"),
    ] {
        for verb in ["pub t", "replay /nowhere --into t", "bridge recv t --from 127.0.0.1:39009"] {
            let refused = host.run(&format!("{verb} --set {setting}"));
            let said = text(&refused.stderr);
            assert_ne!(refused.status.code(), Some(0), "{verb}: {setting}");
            if verb.starts_with("replay") {
                continue; // it looks for its recording first
            }
            assert!(said.contains(why), "{verb}: {setting}: {said}");
        }
    }
    assert!(
        host.run("pub t --set gate.g={} --set gate.h.wait=0").status.success(),
        "all fields have defaults"
    );
}
