//! `shmcast journal join`, `hold` and `release`: parts become one journal again, and files that are held stay.

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use shmcast_testkit::command::{Host, dump, end, golden, lines, recorded, text};
use shmcast_testkit::journal::folder;
use std::fs;
use std::path::Path;

fn in_room(host: &Host, name: &str) -> String {
    host.dir.path().join(name).display().to_string()
}

/// Parts that overlap, joined in any order, give the whole again: messages, control records and losses.
#[test]
fn parts_of_a_journal_are_the_journal() {
    let host = Host::new();
    let [a, b, c, out] = ["a", "b", "c", "out"].map(|name| in_room(&host, name));
    for (part, span) in [(&a, "--to 6"), (&b, "--from 4 --to 11"), (&c, "--from 9")] {
        host.run(&format!("journal cut {} {part} {span} --file 1MiB", golden()));
        assert!(Path::new(part).is_dir(), "{span}");
    }
    for order in [[&a, &b, &c], [&c, &a, &b], [&b, &c, &a]] {
        let [one, two, three] = order;
        let joined = host.run(&format!("journal join {out} {one} {two} {three} --file 1MiB --json"));
        assert_eq!(joined.status.code(), Some(3), "the whole lacks some: {}", text(&joined.stderr));
        assert_eq!(dump(&host, &out, ""), dump(&host, &golden(), ""));
        let report = host.run(&format!("journal verify {out} --json"));
        let report: Value = serde_json::from_slice(&report.stdout).unwrap();
        assert_eq!(report["damages"], json!([]), "{report}");
        fs::remove_dir_all(&out).unwrap();
    }
}

/// A copy repairs the losses of another copy. Messages that no copy has are named as cut out. Another journal is refused.
#[test]
fn copies_mend_each_other_and_holes_have_a_name() {
    let host = Host::new();
    let input = host.file("input", &lines(60_000));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let [a, b, out] = ["a", "b", "out"].map(|name| in_room(&host, name));
    for (part, span) in [(&a, "--to 40000"), (&b, "--from 45001")] {
        assert!(host.run(&format!("journal cut {journal} {part} {span} --file 4MiB")).status.success());
    }
    // Two places of the copy are damaged. Each costs a frame.
    let mut files: Vec<_> =
        fs::read_dir(folder(Path::new(&a))).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "smj"));
    files.sort();
    let mut bytes = fs::read(&files[0]).unwrap();
    for part in [1, 8] {
        let at = bytes.len() * part / 9;
        bytes[at] ^= 0x10;
    }
    fs::write(&files[0], bytes).unwrap();
    assert_eq!(host.run(&format!("journal verify {a}")).status.code(), Some(4));
    let joined = host.run(&format!("journal join {out} {a} {b} --file 16MiB --json"));
    let sums: Value = serde_json::from_slice(&joined.stdout).unwrap();
    assert!(joined.status.code() == Some(3) && sums["missing"].as_u64().unwrap() > 5_000, "{sums}");
    let losses: Vec<Value> =
        dump(&host, &out, "").into_iter().filter(|line| line["event"] == "lost").collect();
    let cut = |line: &&Value| line["cause"] == "cut";
    let cut: Vec<&Value> = losses.iter().filter(cut).collect();
    assert!(cut.len() == 1 && cut[0]["from"] == 40_001 && cut[0]["to"] == 45_000, "{losses:?}");
    assert!(losses.len() >= 3, "{losses:?}");
    fs::remove_dir_all(&out).unwrap();
    // With the whole journal beside the damaged copies, nothing is missing.
    let sums = host.json(&format!("journal join {out} {a} {b} {journal} --file 16MiB --json"));
    assert_eq!([&sums["messages"], &sums["missing"]], [&json!(60_000), &json!(0)]);
    let messages = |dir: &str| host.run(&format!("journal dump {dir} --framing lines")).stdout;
    assert!(messages(&out) == messages(&journal));
    let there = host.run(&format!("journal join {out} {a}"));
    assert!(there.status.code() == Some(1) && text(&there.stderr).contains("is there already"));
    let other = host.run(&format!("journal join {} {a} {}", in_room(&host, "new"), golden()));
    assert!(other.status.code() == Some(1), "{other:?}");
    assert!(text(&other.stderr).contains("has another stream than"), "{other:?}");
    let nothing = host.run(&format!("journal join {} {}", in_room(&host, "new"), in_room(&host, "nowhere")));
    assert!(nothing.status.code() == Some(1) && text(&nothing.stderr).contains("nowhere"), "{nothing:?}");
    let child = host.start(&format!("journal join {} {journal}", in_room(&host, "new")));
    child.signal(Signal::SIGINT);
    let (code, said) = end(child);
    assert!([-1, 130, 0].contains(&code), "{code}: {said}");
    assert_eq!(code == 0, Path::new(&in_room(&host, "new")).exists());
}

/// A part begins within the loss of another part. The whole loss was once skipped, with the messages of the part.
#[test]
fn a_part_that_begins_within_a_loss_is_joined_from_its_first_message() {
    let host = Host::new();
    let input = host.file("input", &lines(30_000));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let [a, b, out] = ["a", "b", "out"].map(|name| in_room(&host, name));
    assert!(host.run(&format!("journal cut {journal} {a} --to 29000 --file 4MiB")).status.success());
    let files = fs::read_dir(folder(Path::new(&a))).unwrap().map(|entry| entry.unwrap().path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|it| it == "smj")).unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 0x10;
    fs::write(&file, bytes).unwrap();
    let losses = |dir: &str| -> Vec<(u64, u64)> {
        let lost = dump(&host, dir, "").into_iter().filter(|line| line["event"] == "lost");
        lost.map(|line| (line["from"].as_u64().unwrap(), line["to"].as_u64().unwrap())).collect()
    };
    let [(from, to)] = losses(&a)[..] else { panic!("{:?}", losses(&a)) };
    let middle = from.midpoint(to);
    assert!(from < middle && middle < to, "{from} to {to}");
    assert!(host.run(&format!("journal cut {journal} {b} --from {middle} --file 4MiB")).status.success());
    for order in [format!("{a} {b}"), format!("{b} {a}")] {
        let joined = host.run(&format!("journal join {out} {order} --file 4MiB --json"));
        assert_eq!(joined.status.code(), Some(3), "{joined:?}");
        assert_eq!(losses(&out), [(from, middle - 1)]);
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn holds_are_noted_shown_and_ended() {
    let host = Host::new();
    let input = host.file("input", &lines(1_000));
    let journal = recorded(&host, &format!("--input {}", input.display()));
    let holds = || host.json(&format!("journal stat {journal} --json"))["holds"].clone();
    assert_eq!(holds(), json!([]));
    assert!(host.run(&format!("journal hold {journal} audit --from 500")).status.success());
    assert!(host.run(&format!("journal hold {journal} slow.reader")).status.success());
    assert_eq!(holds(), json!([{"name": "audit", "from": 500}, {"name": "slow.reader", "from": 1}]));
    let shown = text(&host.run(&format!("journal stat {journal}")).stdout);
    assert!(shown.contains("held for           audit, from sequence 500"), "{shown}");
    let again = host.json(&format!("journal hold {journal} audit --from 600 --json"));
    assert_eq!((&again["from"], &again["gone"]), (&json!(600), &json!(0)));
    assert!(host.run(&format!("journal release {journal} audit")).status.success());
    let gone = host.run(&format!("journal release {journal} audit"));
    assert!(gone.status.code() == Some(1) && text(&gone.stderr).contains("no hold audit"), "{gone:?}");
    for name in ["../audit", ".audit", "a b", ""] {
        let mut command = host.shmcast(&format!("journal hold {journal}"));
        let refused = command.arg(name).output().unwrap();
        assert!(refused.status.code() == Some(1), "{name:?}: {refused:?}");
        assert!(text(&refused.stderr).contains("is no name of a hold"), "{refused:?}");
    }
    assert_eq!(holds(), json!([{"name": "slow.reader", "from": 1}]));
    // A journal with holds can be verified like any other journal.
    assert!(host.run(&format!("journal verify {journal}")).status.success());
    let missing = host.run(&format!("journal hold {} x", in_room(&host, "nowhere")));
    assert!(missing.status.code() == Some(1), "{missing:?}");
}
