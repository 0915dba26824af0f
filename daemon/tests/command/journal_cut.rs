//! `shmcast journal cut`: the copied part is a journal that has everything in the part.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shmcast::journal::{Entry, Journal};
use shmcast_testkit::command::{Host, dump, end, golden, lines, recorded_at, text};

fn verified(host: &Host, dir: &str) -> (Option<i32>, Value) {
    let output = host.run(&format!("journal verify {dir} --json"));
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

#[test]
fn a_part_has_the_same_messages_losses_and_identity() {
    let host = Host::new();
    let out = host.dir.path().join("out").display().to_string();
    let of = |dir: &str| host.json(&format!("journal stat {dir} --json"));
    for (span, code) in
        [("", 3), ("--from 2 --to 3", 0), ("--from 5 --to 10", 3), ("--from 7 --to 7", 0), ("--from 13", 3)]
    {
        let output = host.run(&format!("journal cut {} {out} {span} --file 1MiB --json", golden()));
        assert_eq!(output.status.code(), Some(code), "{span}: {}", text(&output.stderr));
        let sums: Value = serde_json::from_slice(&output.stdout).unwrap();
        let (verdict, report) = verified(&host, &out);
        assert_eq!((verdict, &report["damages"]), (Some(code), &json!([])), "{span}: {report}");
        assert_eq!(report["first_sequence"], sums["first_sequence"], "{span}");
        assert_eq!(report["next_sequence"], sums["next_sequence"], "{span}");
        assert_eq!(dump(&host, &out, ""), dump(&host, &golden(), span), "{span}");
        assert_eq!((&of(&out)["uuid"], &of(&out)["channel"]), (&of(&golden())["uuid"], &json!("ticks")));
        std::fs::remove_dir_all(&out).unwrap();
    }
}

/// A message in each thousand, and a time in ns since 1970 that is clearly after the message before it.
fn times(dir: &str) -> Vec<(u64, u64)> {
    let mut reader = Journal::open(dir).unwrap().read_from(1).unwrap();
    let (mut times, mut before, mut due) = (Vec::new(), u64::MAX, 2_000);
    while let Some(entry) = reader.next().unwrap() {
        let Entry::Message(message) = entry else { continue };
        let (sequence, time) = (message.sequence, message.time);
        let wall_ns = reader.wall_ns(time).unwrap();
        // The part might have recorded another reading of the clocks.
        if sequence >= due && wall_ns.saturating_sub(before) > 500_000 {
            times.push((sequence, before.midpoint(wall_ns)));
            due = sequence + 1_000;
        }
        before = wall_ns;
    }
    times
}

/// The journal has many frames in several files. A reader finds the same message by the same time in the part.
#[test]
fn a_large_part_in_small_files_is_the_same_by_sequence_and_by_time() {
    let host = Host::new();
    let bytes = lines(40_000);
    let journal = recorded_at(&host, &bytes, |n| n);
    let out = host.dir.path().join("out").display().to_string();
    let sums = host.json(&format!("journal cut {journal} {out} --from 1001 --to 39000 --file 1MiB --json"));
    assert_eq!([&sums["messages"], &sums["missing"]], [&json!(38_000), &json!(0)]);
    let (code, report) = verified(&host, &out);
    assert_eq!((code, &report["messages"]), (Some(0), &json!(38_000)), "{report}");
    assert!(report["files"].as_u64().unwrap() > 3, "{report}");
    let lines =
        |dir: &str, span: &str| host.run(&format!("journal dump {dir} --framing lines {span}")).stdout;
    assert!(lines(&out, "") == lines(&journal, "--from 1001 --to 39000"));
    let times = times(&journal).into_iter().filter(|(sequence, _)| *sequence <= 39_000);
    let mut found = 0;
    for (sequence, time) in times {
        let from = format!("--from @{}.{:09} --count 1", time / 1_000_000_000, time % 1_000_000_000);
        let [whole, part] = [&journal, &out].map(|dir| dump(&host, dir, &from));
        assert_eq!((&whole[0]["sequence"], whole.len()), (&json!(sequence), 1), "{from}");
        assert_eq!(whole, part, "{from}");
        found += 1;
    }
    assert!(found > 30, "{found} times lay in the part");
    // A replay of the part gives readers everything in the part.
    assert!(host.run(&format!("replay {out} --into again --speed max")).status.success());
    assert!(host.run("sub again --from oldest").stdout == lines(&out, ""));
}

#[test]
fn what_is_there_is_not_touched_and_what_is_not_whole_is_not_there() {
    let host = Host::new();
    let there = host.file("there", b"mine");
    let output = host.run(&format!("journal cut {} {}", golden(), there.display()));
    assert_eq!((output.status.code(), std::fs::read(&there).unwrap()), (Some(1), b"mine".to_vec()));
    assert!(text(&output.stderr).contains("give another directory"), "{}", text(&output.stderr));
    let out = host.dir.path().join("parts/out");
    let output = host.run(&format!("journal cut {} {}", golden(), out.display()));
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("make it first (mkdir -p"));
    let parts = host.dir.path().join("parts");
    std::fs::create_dir(&parts).unwrap();
    let output = host.run(&format!("journal cut {} {} --from 3 --to 2", golden(), out.display()));
    assert!(output.status.code() == Some(1) && text(&output.stderr).contains("nothing is between"));
    let child = host.start(&format!("journal cut {} {}", golden(), out.display()));
    child.signal(Signal::SIGINT);
    let (code, said) = end(child);
    // The signal can come before the program handles it, or after all work is done.
    assert!([-1, 130, 3].contains(&code), "{code}: {said}");
    let left: Vec<_> = std::fs::read_dir(&parts).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(if code == 3 { left == ["out"] } else { left.is_empty() }, "{code}: {left:?}");
}
