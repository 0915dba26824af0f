//! `shmcast replay`: readers of the new channel get the same as readers of the recorded channel.

use serde_json::{Value, json};
use shmcast_testkit::command::{Host, end, golden, interrupt, lines, recorded, recorded_at, text};
use shmcast_testkit::wait_until;
use std::time::{Duration, Instant};

/// The events that a reader of a whole channel gets, without ages.
fn events(host: &Host, channel: &str) -> Vec<Value> {
    let output = host.run(&format!("sub {channel} --from oldest --history none --framing json"));
    let lines = text(&output.stdout);
    let mut events: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &mut events {
        event.as_object_mut().unwrap().remove("latency_ns");
    }
    events
}

#[test]
fn sequences_tags_keys_gaps_sessions_and_losses_are_those_of_the_journal() {
    let host = Host::new();
    let output = host.run(&format!("replay {} --into again --speed max --json", golden()));
    assert_eq!(output.status.code(), Some(3), "it has losses: {}", text(&output.stderr));
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let last = (1u64 << 32) + 2;
    assert_eq!(
        [&summary["published"], &summary["gaps"], &summary["missing"], &summary["first_sequence"]],
        [&json!(7), &json!(2), &json!(3 + 5), &json!(1)]
    );
    assert_eq!(summary["skipped"], (1u64 << 32) - 13, "the reserve");
    let message = |sequence: u64, tag: u16, key: bool, payload: &str| json!({"sequence": sequence, "tag": tag, "key": key, "payload": payload});
    let gap = |from: u64, to: u64| json!({"event": "gap", "from": from, "to": to});
    let expected = [
        message(1, 0, false, ""),
        message(2, 48_879, false, "hello"),
        message(3, 1, true, &"\u{7}".repeat(48)),
        gap(4, 6),
        json!({"event": "session", "session": "SESSION-42"}),
        message(7, 2, false, &"\u{8}".repeat(49)),
        gap(8, 12),
        message(13, 3, false, "after"),
        gap(14, 1 << 32),
        message(last - 1, 0, false, "one"),
        message(last, 0, true, "two"),
        json!({"event": "end"}),
    ];
    assert_eq!(events(&host, "again"), expected);
}

#[test]
fn a_part_begins_and_ends_where_it_is_told_to() {
    let host = Host::new();
    let sequences = |channel: &str| -> Vec<Value> {
        events(&host, channel)
            .into_iter()
            .filter_map(|mut event| match event["event"].as_str() {
                None => Some(event["sequence"].take()),
                Some("gap") => Some(json!([event["from"], event["to"]])),
                Some(_) => None,
            })
            .collect()
    };
    let replay = |channel: &str, span: &str| {
        host.run(&format!("replay {} --into {channel} --speed max {span}", golden())).status.code()
    };
    // Of a loss that reaches into the part, only the sequences in the part count.
    assert_eq!(replay("middle", "--from 5 --to 10"), Some(3));
    assert_eq!(sequences("middle"), [json!([1, 4]), json!([5, 6]), json!(7), json!([8, 10])]);
    assert_eq!(replay("start", "--to 3"), Some(0));
    assert_eq!(sequences("start"), [1, 2, 3]);
    assert_eq!(replay("from-time", "--from 2000-01-01T00:00Z --to 2"), Some(0));
    assert_eq!(sequences("from-time"), [1, 2]);
    // A span without messages leaves no channel behind.
    for span in ["--from 3 --to 2", "--to 2000-01-01T00:00Z", "--from @4000000000"] {
        let output = host.run(&format!("replay {} --into none {span}", golden()));
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains("nothing is between") && said.contains("journal stat"), "{said}");
        assert!(!host.run("stat none").status.success(), "{span}");
    }
}

#[test]
fn a_channel_with_other_sequences_is_refused_and_not_touched() {
    let host = Host::new();
    let input = host.file("input", b"a\nb\nc\n");
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let before = host.json("stat ticks --json");
    let output = host.run(&format!("replay {journal} --into ticks --speed max"));
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("is at sequence 4") && said.contains("shmcast rm ticks"), "{said}");
    assert_eq!(host.json("stat ticks --json"), before);
    let output = host.run(&format!("replay {journal} --into small --capacity 64KiB --set max_message=0"));
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let output = host.run("replay /nowhere --into t");
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere"), "{}", text(&output.stderr));
}

/// A replay at full speed gives the same bytes. If the ring is too small for a message, the error names the option for a larger one.
#[test]
fn the_output_is_the_input() {
    let host = Host::new();
    let bytes = lines(50_000);
    let input = host.file("input", &bytes);
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let summary = host.json(&format!("replay {journal} --into again --speed max --json"));
    assert_eq!(
        [&summary["published"], &summary["missing"], &summary["next_sequence"], &summary["interrupted"]],
        [&json!(50_000), &json!(0), &json!(50_001), &json!(false)]
    );
    assert!(host.run("sub again --from oldest").stdout == bytes);
    let output = host.run(&format!("replay {journal} --into small --set max_message=200 --speed max"));
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("--set max_message=SIZE"), "{said}");
    assert_eq!(host.run("stat small").status.code(), Some(1), "no channel was made");
    // A channel that is there and too small gets nothing either.
    let short = host.file("short", b"short\n");
    let made = format!("pub there --set max_message=200 --input {}", short.display());
    assert!(host.run(&made).status.success());
    let before = host.json("stat there --json");
    let output = host.run(&format!("replay {journal} --into there --from 2 --speed max"));
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("--set max_message=SIZE"), "{said}");
    assert_eq!(host.json("stat there --json"), before);
    // The part that fits is replayed.
    let output = host.run(&format!("replay {journal} --into part --to 1 --set max_message=200 --speed max"));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// The pace is that of the recording. An interrupted replay continues in its channel.
#[test]
fn an_interrupted_replay_goes_on() {
    let host = Host::new();
    let bytes = lines(100);
    // Fifty messages in a quarter of a second, a pause of half a minute, and fifty more.
    let journal = recorded_at(&host, &bytes, |n| n * 5 + if n < 50 { 0 } else { 30_000 });
    let started = Instant::now();
    let child = host.start(&format!("replay {journal} --into again"));
    wait_until("the messages before the pause", || {
        let output = host.run("stat again --json");
        serde_json::from_slice::<Value>(&output.stdout).is_ok_and(|stat| stat["next_sequence"] == 51)
    });
    assert!(started.elapsed() >= Duration::from_millis(49 * 5), "{:?}", started.elapsed());
    interrupt(&child);
    let (code, said) = end(child);
    assert_eq!(code, 130, "{said}");
    assert!(said.contains("INTERRUPTED"), "{said}");
    let next = said.trim_end().rsplit(' ').next().unwrap();
    assert_eq!(next, "51", "{said}");
    let rest = format!("replay {journal} --into again --from {next} --speed 100 --max-pause 1ms");
    let output = host.run(&rest);
    assert!(output.status.success(), "{}", text(&output.stderr));
    // A reader continues after the end of the interrupted replay, and ends with the next replay.
    let read = host.run("sub again --from oldest").stdout;
    assert!(read == bytes);
}

/// A stopped replay continues, and a killed one continues where its channel ends. The replay of a channel that is made anew begins again.
#[test]
fn a_replay_that_is_stopped_killed_or_made_anew_gives_each_message_once() {
    let host = Host::new();
    let bytes = lines(20_000);
    let journal = recorded_at(&host, &bytes, |n| n / 2);
    let replay = |more: &str| format!("replay {journal} --into again {more}");
    let next = || {
        let stat = host.run("stat again --json");
        let stat: Value = serde_json::from_slice(&stat.stdout).unwrap_or_default();
        stat["next_sequence"].as_u64().unwrap_or(0)
    };
    let running = host.start(&replay("--capacity 32MiB"));
    wait_until("the first messages", || next() > 1_000);
    running.signal(nix::sys::signal::Signal::SIGSTOP);
    let at = next();
    std::thread::sleep(Duration::from_millis(150));
    // The message that the replay was publishing when it was stopped is there now.
    assert!(next() <= at + 1);
    running.signal(nix::sys::signal::Signal::SIGCONT);
    wait_until("more messages", || next() > at + 1_000);
    running.kill();
    let killed_at = next();
    assert!(killed_at < 20_000, "it was killed too late");
    // Readers would take one stream for the other.
    let output = host.run(&replay("--speed max"));
    let said = text(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(&format!("--from {killed_at}")), "{said}");
    assert!(host.run(&replay(&format!("--speed max --from {killed_at}"))).status.success());
    assert!(host.run("sub again --from oldest").stdout == bytes, "each message once, in order");
    assert!(host.run("rm again").status.success());
    let anew = host.json(&replay("--speed max --capacity 32MiB --json"));
    assert_eq!((&anew["first_sequence"], &anew["published"]), (&json!(1), &json!(20_000)));
    assert!(host.run("sub again --from oldest").stdout == bytes);
}
