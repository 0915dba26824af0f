//! Verbs that read or write a journal, under limits and faults of the host: few descriptors, a limit on file sizes, a full and a read-only
//! file system, removed files, links, and foreign bytes. Each verb does its work or reports the problem. No verb takes something that
//! cannot be read now for something that does not exist.
//!
//! An earlier mistake: with few descriptors, a journal's files seemed unusable. Verbs found nothing in the journal, and readers lost all
//! its messages.

use crate::limits::{limited, under};
use serde_json::Value;
use shmcast::{Mark, Preparation, Publisher, Subscriber};
use shmcast_testkit::command::{Host, dump, text};
use shmcast_testkit::disk::Small;
use shmcast_testkit::place::program;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Messages in the journal.
const MESSAGES: u64 = 18_000;

/// A journal of some files, and a channel that continues after it. The channel's ring has three messages.
struct Scene {
    host: Host,
    journal: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let host = Host::new();
        let journal = host.dir.path().join("journal");
        let builder = Publisher::builder("ticks").dir(host.dir.path().join("channels")).capacity(8 << 20);
        let mut publisher = builder.prepare(Preparation::NONE).open().unwrap();
        for n in 1..=MESSAGES {
            let mark = Mark { key: n == MESSAGES - 9, ..Mark::default() };
            publisher.publish_with(format!("{n:0100}").as_bytes(), mark).unwrap();
        }
        publisher.close();
        let recorded =
            host.run(&format!("record ticks --to {} --set file=1MiB --until-end", journal.display()));
        assert!(recorded.status.success(), "{}", text(&recorded.stderr));
        let scene = Self { host, journal };
        scene.host.run("rm ticks");
        let input = scene.host.file("input", b"a\nb\nc\n");
        let more = format!("--capacity 64KiB --set max_message=1000 --input {}", input.display());
        let on = scene.host.run(&format!("pub ticks {more} --set continue_from={}", scene.shown()));
        assert!(on.status.success(), "{}", text(&on.stderr));
        scene
    }

    fn shown(&self) -> String {
        self.journal.display().to_string()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.host.dir.path().join(name)
    }

    /// The files of the journal's stream in their order.
    fn files(&self) -> Vec<PathBuf> {
        let folders = fs::read_dir(&self.journal).unwrap().map(|entry| entry.unwrap().path());
        let folder = folders.into_iter().find(|path| path.is_dir()).unwrap();
        let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|it| it == "smj")).collect();
        files.sort();
        assert!(files.len() >= 3, "{files:?}");
        files
    }

    /// Verbs that only read the journal. Their output is the same each time.
    fn readings(&self) -> Vec<String> {
        let (journal, half) = (self.shown(), MESSAGES / 2);
        let time = dump(&self.host, &journal, &format!("--from {half} --count 1"));
        assert_eq!(time[0]["sequence"], half);
        vec![
            format!("journal dump {journal} --framing lines"),
            format!("journal stat {journal} --json"),
            format!("journal ls {journal} --json"),
            format!("sub ticks --history {journal} --from oldest"),
            format!("sub ticks --history {journal} --from key"),
            format!("sub ticks --history {journal} --from @0"),
        ]
    }

    /// Verbs that make something from the journal, each with the path of what it makes below `out`.
    fn makings(&self, out: &Path) -> Vec<(String, PathBuf)> {
        let (journal, out) = (self.shown(), |name: &str| out.join(name));
        vec![
            (format!("journal cut {journal} {}", out("cut").display()), out("cut")),
            (format!("journal join {} {journal}", out("join").display()), out("join")),
            (format!("journal export {journal} {}", out("x.pcap").display()), out("x.pcap")),
        ]
    }

    /// Removes what a verb has made.
    fn clear(made: &Path) {
        let _ = fs::remove_dir_all(made).or_else(|_| fs::remove_file(made));
    }

    fn copy(&self, name: &str) -> PathBuf {
        let to = self.path(name);
        let copied = Command::new("cp").arg("-r").arg(&self.journal).arg(&to).status();
        assert!(copied.unwrap().success());
        to
    }

    fn holds(&self) -> usize {
        let folder = self.files()[0].parent().unwrap().to_owned();
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().contains("hold")).count()
    }
}

/// Whether a verb did all of its work, as it does without a limit. If not, the verb must report `why`.
fn did(output: &Output, wanted: &Output, why: &str, at: &str) -> bool {
    if output.status.code() == wanted.status.code() {
        let is_same = output.stdout == wanted.stdout;
        assert!(is_same, "{at}: another output: {}", text(&output.stderr));
        return true;
    }
    let stderr = text(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains(why), "{at}: {}: {stderr}", output.status);
    false
}

#[test]
fn few_descriptors_never_make_a_journal_empty() {
    const WHY: &str = "Too many open files";
    let scene = Scene::new();
    let shmcast = program("shmcast").display().to_string();
    let wanted: Vec<_> = scene.readings().into_iter().map(|verb| (scene.host.run(&verb), verb)).collect();
    for (output, verb) in &wanted {
        assert!(matches!(output.status.code(), Some(0 | 3)), "{verb}: {}", text(&output.stderr));
    }
    let out = scene.path("out");
    fs::create_dir(&out).unwrap();
    let whole = scene.copy("whole");
    let (mut worked, mut refused) = (0, 0);
    let mut count = |is_done: bool| if is_done { worked += 1 } else { refused += 1 };
    for limit in [4, 5, 6, 7, 8, 9, 11, 14] {
        let limited =
            |verb: &str| under(&scene.host, &format!("ulimit -n {limit}"), &format!("{shmcast} {verb}"));
        for (wanted, verb) in &wanted {
            count(did(&limited(verb), wanted, WHY, &format!("{limit}: {verb}")));
        }
        for (verb, made) in scene.makings(&out) {
            let output = limited(&verb);
            let code = output.status.code();
            match code {
                Some(0 | 3) => {
                    count(true);
                    if made.is_dir() {
                        let of = |dir: &Path| dump(&scene.host, &dir.display().to_string(), "").len();
                        assert_eq!(of(&made), of(&scene.journal), "{limit}: {verb}");
                    }
                }
                _ => {
                    count(false);
                    let said = text(&output.stderr);
                    assert!(code == Some(1) && said.contains(WHY), "{limit}: {verb}: {said}");
                    assert!(!made.exists(), "{limit}: {verb} has left something");
                }
            }
            Scene::clear(&made);
        }
        let replay = limited(&format!("replay {} --into again-{limit} --speed max", scene.shown()));
        let is_replayed = matches!(replay.status.code(), Some(0 | 3));
        assert!(is_replayed || text(&replay.stderr).contains(WHY), "{limit}: {}", text(&replay.stderr));
        count(is_replayed);
        if is_replayed {
            let again = scene.host.run(&format!("sub again-{limit} --from oldest --count 3"));
            assert_eq!(text(&again.stdout).lines().count(), 3);
        }
        let hold = limited(&format!("journal hold {} audit --from 7", scene.shown()));
        count(did(&hold, &scene.host.run(&format!("journal hold {} other", scene.shown())), WHY, "hold"));
        scene.host.run(&format!("journal release {} audit", scene.shown()));
        // A publisher never begins at 1 beside a journal that it cannot read.
        scene.host.run("rm ticks");
        let input = scene.path("input").display().to_string();
        let more = format!("--capacity 64KiB --set max_message=1000 --input {input} --json");
        let on = limited(&format!("pub ticks {more} --set continue_from={}", scene.shown()));
        if on.status.success() {
            let sums: Value = serde_json::from_slice(&on.stdout).unwrap();
            let first = sums["first_sequence"].as_u64().unwrap();
            assert!(first > MESSAGES, "{limit}: {sums}");
            count(true);
        } else {
            assert!(text(&on.stderr).contains(WHY), "{limit}: {}", text(&on.stderr));
            count(false);
        }
        // The scene is made as it was.
        scene.host.run("rm ticks");
        Scene::clear(&scene.journal);
        assert!(Command::new("cp").arg("-r").arg(&whole).arg(&scene.journal).status().unwrap().success());
        let on = scene.host.run(&format!("pub ticks {more} --set continue_from={}", scene.shown()));
        assert!(on.status.success(), "{}", text(&on.stderr));
        Scene::clear(&scene.journal);
        assert!(Command::new("cp").arg("-r").arg(&whole).arg(&scene.journal).status().unwrap().success());
    }
    assert!(worked > 20 && refused > 20, "{worked} worked, {refused} were refused");
}

#[test]
fn what_exceeds_a_size_limit_or_a_disk_is_an_error_and_leaves_nothing() {
    let scene = Scene::new();
    let shmcast = program("shmcast").display().to_string();
    let out = scene.path("out");
    fs::create_dir(&out).unwrap();
    let refused = |output: &Output, why: &str, verb: &str, made: &Path| {
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains(why), "{verb}: {}: {said}", output.status);
        assert!(!made.exists(), "{verb} has left {}", made.display());
        let left: Vec<_> =
            fs::read_dir(made.parent().unwrap()).unwrap().map(|it| it.unwrap().path()).collect();
        assert!(left.is_empty(), "{verb} has left {left:?}");
    };
    for (verb, made) in scene.makings(&out) {
        refused(&limited(&scene.host, 100, &format!("{shmcast} {verb}")), "File too large", &verb, &made);
    }
    scene.host.run("rm ticks");
    let input = scene.path("input").display().to_string();
    let on =
        format!("pub ticks --capacity 64KiB --set max_message=1000 --input {input} --set continue_from=");
    // The ring has room, but the publisher's note in the journal has none.
    let before = fs::read_dir(scene.files()[0].parent().unwrap()).unwrap().count();
    let output = limited(&scene.host, 4, &format!("{shmcast} {on}{}", scene.shown()));
    assert!(text(&output.stderr).contains("File too large"), "{}", text(&output.stderr));
    assert!(!scene.path("channels/ticks").exists(), "a channel without its note");
    assert_eq!(fs::read_dir(scene.files()[0].parent().unwrap()).unwrap().count(), before);
    let Some(small) = Small::make("what_exceeds_a_size_limit_or_a_disk_is_an_error_and_leaves_nothing", 1)
    else {
        return;
    };
    let full = small.path().join("full");
    fs::create_dir(&full).unwrap();
    for (verb, made) in scene.makings(&full) {
        refused(&scene.host.run(&verb), "No space left", &verb, &made);
    }
    // The disk has no free byte, so no channel is made after the journal.
    let _ = fs::write(small.path().join("rest"), vec![0; 2 << 20]);
    let output = scene.host.run(&format!("{on}{}", full.join("j").display()));
    assert!(text(&output.stderr).contains("No space left"), "{}", text(&output.stderr));
    assert!(!scene.path("channels/ticks").exists(), "a channel without its journal");
}

#[test]
fn a_hold_beyond_the_size_limit_is_an_error_and_no_hold() {
    let scene = Scene::new();
    let shmcast = program("shmcast").display().to_string();
    let hold = limited(&scene.host, 0, &format!("{shmcast} journal hold {} audit", scene.shown()));
    assert!(text(&hold.stderr).contains("File too large"), "{}", text(&hold.stderr));
    let folder = scene.files()[0].parent().unwrap().to_owned();
    assert!(!folder.join("audit.hold").exists(), "a hold without its sequence");
}

#[test]
fn a_read_only_journal_is_read_and_nothing_else() {
    const NAME: &str = "a_read_only_journal_is_read_and_nothing_else";
    let mut scene = Scene::new();
    let Some(small) = Small::make(NAME, 32) else { return };
    let wanted: Vec<_> = scene.readings().iter().map(|verb| scene.host.run(verb)).collect();
    let there = small.path().join("journal");
    assert!(Command::new("cp").arg("-r").arg(&scene.journal).arg(&there).status().unwrap().success());
    let mut mount = Command::new("mount");
    assert!(mount.args(["-o", "remount,ro"]).arg(small.path()).status().unwrap().success());
    scene.journal = there;
    for (verb, wanted) in scene.readings().iter().zip(&wanted) {
        let output = scene.host.run(verb);
        assert_eq!(output.status.code(), wanted.status.code(), "{verb}: {}", text(&output.stderr));
        // `ls` and `stat` name the directory.
        assert!(output.stdout == wanted.stdout || verb.contains("--json"), "{verb}");
    }
    let out = scene.path("out");
    fs::create_dir(&out).unwrap();
    for (verb, made) in scene.makings(&out) {
        let output = scene.host.run(&verb);
        assert!(matches!(output.status.code(), Some(0 | 3)), "{verb}: {}", text(&output.stderr));
        assert!(made.exists());
    }
    for (verb, made) in scene.makings(&small.path().join("journal")) {
        let output = scene.host.run(&verb);
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(1) && said.contains("Read-only file system"), "{verb}: {said}");
        assert!(!made.exists());
    }
    let replay = scene.host.run(&format!("replay {} --into again --speed max", scene.shown()));
    assert!(matches!(replay.status.code(), Some(0 | 3)), "{}", text(&replay.stderr));
    let hold = scene.host.run(&format!("journal hold {} audit", scene.shown()));
    assert!(text(&hold.stderr).contains("Read-only file system"), "{}", text(&hold.stderr));
    // No publisher and no recorder continues where nothing can be noted.
    scene.host.run("rm ticks");
    let input = scene.path("input").display().to_string();
    let on = format!("pub ticks --capacity 64KiB --set max_message=1000 --input {input}");
    let output = scene.host.run(&format!("{on} --set continue_from={}", scene.shown()));
    assert!(text(&output.stderr).contains("Read-only file system"), "{}", text(&output.stderr));
    assert!(!scene.path("channels/ticks").exists(), "a channel without its note");
    assert!(scene.host.run(&on).status.success());
    let record = scene.host.run(&format!("record ticks --to {} --until-end", scene.shown()));
    assert!(text(&record.stderr).contains("Read-only file system"), "{}", text(&record.stderr));
    assert_eq!(record.status.code(), Some(1));
}

/// A file in the middle is removed, or has foreign bytes: each verb names what is missing, and gives the rest.
#[test]
fn what_is_missing_in_the_middle_is_named_by_every_verb() {
    let scene = Scene::new();
    let sound = scene.copy("sound");
    for is_removed in [true, false] {
        let file = scene.files()[1].clone();
        if is_removed {
            fs::remove_file(&file).unwrap();
        } else {
            let mut bytes = fs::read(&file).unwrap();
            for at in (5_000..bytes.len() - 100_000).step_by(200_000) {
                bytes[at..at + 5_000].fill(0xa5);
            }
            fs::write(&file, bytes).unwrap();
        }
        let dumped = dump(&scene.host, &scene.shown(), &format!("--to {MESSAGES}"));
        let messages = |lines: &[Value]| lines.iter().filter(|line| line["event"].is_null()).count() as u64;
        let lost = |lines: &[Value]| {
            let losses = lines.iter().filter(|line| line["event"] == "lost");
            losses.map(|line| line["to"].as_u64().unwrap() + 1 - line["from"].as_u64().unwrap()).sum::<u64>()
        };
        let (have, missing) = (messages(&dumped), lost(&dumped));
        assert!(missing > 0 && have > 0, "{is_removed}");
        assert_eq!(have + missing, MESSAGES, "{is_removed}");
        let out = scene.path(&format!("out-{is_removed}"));
        fs::create_dir(&out).unwrap();
        for (verb, made) in scene.makings(&out) {
            let to = if verb.contains("join") { String::new() } else { format!(" --to {MESSAGES}") };
            let output = scene.host.run(&format!("{verb}{to} --json"));
            assert_eq!(output.status.code(), Some(3), "{verb}: {}", text(&output.stderr));
            let sums: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(sums["messages"], have, "{verb}: {sums}");
            if made.is_dir() {
                let made = dump(&scene.host, &made.display().to_string(), &format!("--to {MESSAGES}"));
                assert_eq!((messages(&made), lost(&made)), (have, missing), "{verb}");
            }
        }
        let into = format!("again-{is_removed}");
        let replay = scene
            .host
            .run(&format!("replay {} --into {into} --speed max --to {MESSAGES} --json", scene.shown()));
        assert_eq!(replay.status.code(), Some(3), "{}", text(&replay.stderr));
        let sums: Value = serde_json::from_slice(&replay.stdout).unwrap();
        assert_eq!((&sums["published"], &sums["missing"]), (&have.into(), &missing.into()), "{sums}");
        // A reader learns of each loss, and gets the messages after it.
        let read =
            scene.host.run(&format!("sub ticks --history {} --from oldest --framing json", scene.shown()));
        let lines: Vec<Value> =
            text(&read.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let within = |line: &&Value| line["sequence"].as_u64().is_some_and(|sequence| sequence <= MESSAGES);
        let got = lines.iter().filter(|line| line["event"].is_null()).filter(within).count() as u64;
        assert_eq!((read.status.code(), got), (Some(3), have), "{}", text(&read.stderr));
        Scene::clear(&scene.journal);
        assert!(Command::new("cp").arg("-r").arg(&sound).arg(&scene.journal).status().unwrap().success());
    }
}

/// Links that somebody has planted where a hold, a stream's folder or its files belong are not followed.
#[test]
fn planted_links_are_not_followed() {
    let scene = Scene::new();
    let target = scene.host.file("target", b"mine");
    let folder = scene.files()[0].parent().unwrap().to_owned();
    for name in ["audit.hold", ".audit.hold.tmp"] {
        symlink(&target, folder.join(name)).unwrap();
    }
    let hold = scene.host.run(&format!("journal hold {} audit --from 7", scene.shown()));
    assert!(hold.status.success(), "{}", text(&hold.stderr));
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    assert_eq!(fs::read(folder.join("audit.hold")).unwrap(), b"7\n");
    assert_eq!(scene.holds(), 1, "the planted link was replaced, and no other file is left");
    // The folder of the stream is a link to a folder of another place.
    let away = scene.path("away");
    fs::rename(&folder, &away).unwrap();
    symlink(&away, &folder).unwrap();
    let before = fs::read_dir(&away).unwrap().count();
    scene.host.run("rm ticks");
    let input = scene.path("input").display().to_string();
    let on = format!("pub ticks --capacity 64KiB --set max_message=1000 --input {input}");
    let output = scene.host.run(&format!("{on} --set continue_from={} --json", scene.shown()));
    if output.status.success() {
        // This is another stream, in a folder of its own. The folder to which the link leads is not used.
        let streams = scene.host.run(&format!("journal ls {} --json", scene.shown()));
        assert!(!text(&streams.stdout).contains(folder.file_name().unwrap().to_str().unwrap()));
    }
    assert_eq!(fs::read_dir(&away).unwrap().count(), before, "written through a link");
    // The folder into which a recorder would write is a link, too.
    scene.host.run("rm ticks");
    assert!(scene.host.run(&on).status.success());
    let reader = Subscriber::builder("ticks").dir(scene.path("channels")).open().unwrap();
    let stream = reader.header().stream.to_string();
    drop(reader);
    let to = scene.path("to");
    fs::create_dir(&to).unwrap();
    symlink(&away, to.join(&stream)).unwrap();
    let record = scene.host.run(&format!("record ticks --to {} --until-end", to.display()));
    assert_eq!(record.status.code(), Some(1), "{}", text(&record.stderr));
    assert_eq!(fs::read_dir(&away).unwrap().count(), before, "recorded through a link");
}
