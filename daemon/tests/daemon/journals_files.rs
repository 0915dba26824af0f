//! The directory of a daemon's journal is removed, moved, full, read-only, behind a link, on a mount that goes and comes back, or beyond a
//! limit on file sizes. Each fault is reported and shown. Messages count as durable only if they can be read by the journal's name. After
//! the fault, the journal has all messages that the ring still had.

use nix::sys::signal::Signal;
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use shmcast::control::JournalStatus;
use shmcast::journal::{Entry, Journal};
use shmcast::{Client, Publisher};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, publishing};
use shmcast_testkit::disk::Small;
use shmcast_testkit::{scratch, wait_for, wait_until};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A channel, strict or not, whose ring has all messages of a test.
fn config(dir: &Path, more: &str) -> String {
    format!(
        "[[channel]]\nname = \"ticks\"\ncapacity = \"16MiB\"\nmlock = false\nhugepages = false\n{FOR_ALL}\n{more}\n\
         journal = {{ dir = \"{}\", file = \"1MiB\", buffer = \"1MiB\" }}\n",
        dir.display()
    )
}

struct Scene {
    daemon: Daemon,
    client: Client,
    publisher: Publisher,
}

impl Scene {
    fn new(dir: &Path, more: &str) -> Self {
        let daemon = Daemon::start(&config(dir, more));
        let client = daemon.client();
        let publisher = publishing(&client, "ticks").open().unwrap();
        let mut scene = Self { daemon, client, publisher };
        scene.publish(1_000);
        scene.wait_until_whole(dir);
        scene
    }

    fn status(&self) -> Option<JournalStatus> {
        self.client.channel("ticks").unwrap().journal
    }

    fn publish(&mut self, count: u64) {
        for _ in 0..count {
            let sequence = self.publisher.next_sequence();
            self.publisher.publish(&sequence.to_le_bytes().repeat(16)).unwrap();
        }
    }

    /// Publishes if the recorder has read everything from the ring, for a disk that is to be filled.
    fn publish_if_drained(&mut self, count: u64) {
        let next = self.publisher.next_sequence();
        assert!(next < 50_000, "the disk takes more than it has room for");
        if self.status().is_some_and(|journal| journal.drained + 1 == next) {
            self.publish(count);
        }
    }

    fn wait_for(&self, state: &str) -> JournalStatus {
        wait_for(&format!("the state {state}"), || self.status().filter(|journal| journal.state == state))
    }

    /// Waits until all published messages are durable, and are in the journal of this name without a loss.
    fn wait_until_whole(&self, dir: &Path) {
        let last = self.publisher.next_sequence() - 1;
        wait_until("the journal", || {
            self.status().is_some_and(|it| it.state == "recording" && it.durable >= last)
        });
        assert_eq!(whole(dir), Ok((1..=last).collect()));
    }

    fn is_told(&self, words: &[&str]) {
        self.daemon.wait_for_log(words);
    }
}

/// The sequences of a journal; an error names a loss.
fn whole(dir: &Path) -> Result<Vec<u64>, String> {
    let mut reader = Journal::open(dir).and_then(|it| it.read_from(1)).map_err(|e| e.to_string())?;
    let mut sequences = Vec::new();
    while let Some(entry) = reader.next().map_err(|e| e.to_string())? {
        match entry {
            Entry::Message(message) => {
                assert_eq!(message.payload, message.sequence.to_le_bytes().repeat(16));
                sequences.push(message.sequence);
            }
            Entry::Lost(loss) => return Err(format!("{loss:?}")),
            _ => {}
        }
    }
    Ok(sequences)
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

#[test]
fn a_directory_that_is_removed_or_moved_is_told_and_recorded_again_from_the_ring() {
    let room = scratch();
    let dir = room.path().join("journal");
    let mut scene = Scene::new(&dir, "");
    fs::remove_dir_all(&dir).unwrap();
    scene.publish(1_000);
    scene.is_told(&["journal-failed", "removed or moved"]);
    scene.wait_until_whole(&dir);
    // A single file is removed, too.
    let file = fs::read_dir(Journal::open(&dir).unwrap().path()).unwrap().map(|it| it.unwrap().path());
    let file = file.into_iter().find(|path| path.extension().is_some_and(|it| it == "smj")).unwrap();
    let count = |scene: &Scene| scene.daemon.log().matches("journal-failed").count();
    let before = count(&scene);
    fs::rename(&file, room.path().join("away")).unwrap();
    scene.publish(1_000);
    wait_until("the second failure", || count(&scene) > before);
    fs::rename(room.path().join("away"), &file).unwrap();
    scene.wait_until_whole(&dir);
}

#[test]
fn a_directory_behind_a_link_goes_on_where_the_link_leads() {
    let room = scratch();
    let [one, other, dir] = ["one", "other", "journal"].map(|name| room.path().join(name));
    fs::create_dir(&one).unwrap();
    fs::create_dir(&other).unwrap();
    symlink(&one, &dir).unwrap();
    let mut scene = Scene::new(&dir, "");
    assert_eq!(whole(&one), Ok((1..=1_000).collect()));
    // The link now leads to another directory, so recorded messages could not be read by the configured name.
    let next = room.path().join("next");
    symlink(&other, &next).unwrap();
    fs::rename(&next, &dir).unwrap();
    scene.publish(1_000);
    scene.is_told(&["journal-failed", "removed or moved"]);
    scene.wait_until_whole(&dir);
    assert_eq!(whole(&other), Ok((1..=2_000).collect()));
    // The link leads nowhere: no directory is made through it.
    fs::remove_dir_all(&other).unwrap();
    scene.publish(1_000);
    let why = scene.wait_for("failed").why.unwrap();
    assert!(!why.is_empty() && !other.exists(), "{why}");
    fs::create_dir(&other).unwrap();
    scene.wait_until_whole(&dir);
}

#[test]
fn a_mount_that_goes_and_comes_back_costs_nothing_that_the_ring_has() {
    let Some(small) = Small::make("a_mount_that_goes_and_comes_back_costs_nothing_that_the_ring_has", 64)
    else {
        return;
    };
    let room = scratch();
    let dir = room.path().join("journal");
    fs::create_dir(&dir).unwrap();
    let [volume, point] = [small.path(), &dir].map(|path| path.to_str().unwrap());
    run("mount", &["--bind", volume, point]);
    let mut scene = Scene::new(&dir, "");
    assert_eq!(whole(small.path()), Ok((1..=1_000).collect()));
    run("umount", &["--lazy", point]);
    scene.publish(1_000);
    scene.is_told(&["journal-failed", "removed or moved"]);
    // The directory below the mount point now has the name.
    scene.wait_until_whole(&dir);
    run("mount", &["--bind", volume, point]);
    scene.publish(1_000);
    // The volume's own journal continues where it ended, because the ring has the other messages.
    wait_until("the volume", || whole(small.path()) == Ok((1..=3_000).collect()));
    scene.wait_until_whole(&dir);
    scene.daemon.end(Signal::SIGTERM);
    run("umount", &[point]);
    // The recorder wrote below the mount point until it saw the mount.
    let below = whole(&dir).unwrap().len() as u64;
    assert!((2_000..=3_000).contains(&below), "{below}");
}

#[test]
fn a_full_disk_is_told_and_made_up_for() {
    let Some(small) = Small::make("a_full_disk_is_told_and_made_up_for", 8) else { return };
    let dir = small.path().join("journal");
    let mut scene = Scene::new(&dir, "mode = \"strict\"");
    fs::write(small.path().join("rest"), vec![0; small.free() as usize]).unwrap();
    wait_until("a full disk", || {
        scene.publish_if_drained(1_000);
        scene.status().is_some_and(|journal| journal.state == "refused")
    });
    scene.is_told(&["journal-refused", "the disk takes nothing"]);
    let refused = scene.status().unwrap();
    assert!(refused.durable < scene.publisher.next_sequence() - 1, "{refused:?}");
    assert!(whole(&dir).unwrap().len() as u64 >= refused.durable, "durable, and not there");
    fs::remove_file(small.path().join("rest")).unwrap();
    scene.is_told(&["journal-recovered"]);
    scene.wait_until_whole(&dir);
}

/// An operator takes the journal out of the configuration while messages wait for a full disk. Nobody was once told that they are lost.
#[test]
fn messages_that_wait_for_a_full_disk_are_told_when_their_journal_is_taken_out() {
    let test = "messages_that_wait_for_a_full_disk_are_told_when_their_journal_is_taken_out";
    let Some(small) = Small::make(test, 8) else { return };
    let dir = small.path().join("journal");
    let mut scene = Scene::new(&dir, "");
    fs::write(small.path().join("rest"), vec![0; small.free() as usize]).unwrap();
    wait_until("a full disk", || {
        scene.publish_if_drained(1_000);
        scene.status().is_some_and(|journal| journal.state == "refused" && journal.waiting_bytes > 0)
    });
    let config = config(&dir, "");
    let without = config.lines().filter(|line| !line.starts_with("journal =")).collect::<Vec<_>>().join("\n");
    scene.daemon.reload_until(&without, "journal-removed");
    scene.is_told(&["journal-failed", "messages of the ring are not recorded"]);
}

/// An operator removes the journal to free space while the recorder's memory is full. An earlier mistake: the recorder then checked no
/// names, and stayed "refused" for ever.
#[test]
fn a_directory_that_is_removed_from_a_full_disk_is_told_and_recorded_again_from_the_ring() {
    let test = "a_directory_that_is_removed_from_a_full_disk_is_told_and_recorded_again_from_the_ring";
    let Some(small) = Small::make(test, 16) else { return };
    let dir = small.path().join("journal");
    let mut scene = Scene::new(&dir, "");
    fs::write(small.path().join("rest"), vec![0; small.free() as usize]).unwrap();
    let is_full =
        |scene: &Scene| scene.status().is_some_and(|it| it.state == "refused" && it.waiting_bytes >= 1 << 20);
    wait_until("a full memory", || {
        scene.publish_if_drained(1_000);
        is_full(&scene)
    });
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_file(small.path().join("rest")).unwrap();
    scene.is_told(&["journal-failed", "removed or moved"]);
    scene.wait_until_whole(&dir);
}

/// An earlier mistake: a file that retention could not remove was reported every five seconds, for ever.
#[test]
fn a_removal_that_fails_is_told_once() {
    let room = scratch();
    let [dir, other] = ["journal", "other"].map(|name| room.path().join(name));
    let keeping = |dir: &Path| config(dir, "").replace("buffer = \"1MiB\"", "keep_bytes = \"2MiB\"");
    let both = keeping(&dir) + &keeping(&other).replace("\"ticks\"", "\"other\"");
    // Holds are read from this file.
    fs::create_dir_all(dir.join("holds.lock")).unwrap();
    let daemon = Daemon::start(&both);
    let client = daemon.client();
    daemon.wait_for_log(&["journal-error", "remove old files"]);
    // Each time that files of the other journal are removed, five seconds have passed.
    let mut publisher = publishing(&client, "other").open().unwrap();
    for removals in 1..=3 {
        for _ in 0..30_000 {
            publisher.publish(&[7; 128]).unwrap();
        }
        wait_until("a removal", || daemon.told("journal-trimmed") >= removals);
    }
    assert_eq!(daemon.log().matches("remove old files").count(), 1);
}

/// An earlier mistake: a recorder that ended for a reason reported only messages that were lost at least ten seconds before its end.
#[test]
fn messages_that_were_lost_are_told_before_a_recorder_ends() {
    let room = scratch();
    let dir = room.path().join("journal");
    let mut scene = Scene::new(&dir, "");
    let told = |daemon: &Daemon| -> u64 {
        let log = daemon.log();
        let lines = log.lines().filter_map(|line| line.split_once(" messages came too fast"));
        let counts = lines.filter_map(|(before, _)| before.rsplit(|c: char| !c.is_ascii_digit()).next());
        counts.map(|count| count.parse::<u64>().unwrap()).sum()
    };
    let mut lost = 0;
    // The first loss is reported immediately. On a slow machine, so is the second one.
    for turn in 1..10 {
        scene.daemon.signal(Signal::SIGSTOP);
        scene.publish(150_000);
        scene.daemon.signal(Signal::SIGCONT);
        let last = scene.publisher.next_sequence() - 1;
        let status = wait_for("a loss", || {
            scene.status().filter(|journal| journal.overrun > lost && journal.drained == last)
        });
        lost = status.overrun;
        if turn > 1 && told(&scene.daemon) < lost {
            break;
        }
    }
    let Scene { daemon, client, publisher } = scene;
    drop(publisher);
    let _new = publishing(&client, "ticks").anew().open().unwrap();
    daemon.wait_for_log(&["journal-anew"]);
    assert_eq!(told(&daemon), lost);
}

#[test]
fn a_read_only_disk_is_told_and_made_up_for() {
    let Some(small) = Small::make("a_read_only_disk_is_told_and_made_up_for", 64) else { return };
    // The mount can be made read-only only while nobody writes, and the directory is in it. So it is mounted a second time.
    let room = scratch();
    let dir = room.path().join("journal");
    fs::create_dir(&dir).unwrap();
    let [volume, point] = [small.path(), &dir].map(|path| path.to_str().unwrap());
    run("mount", &["--bind", volume, point]);
    let mut scene = Scene::new(&dir, "");
    scene.daemon.end(Signal::SIGTERM);
    run("mount", &["-o", "remount,bind,ro", point]);
    scene.daemon.restart();
    scene.client = scene.daemon.client();
    let why = scene.wait_for("failed").why.unwrap();
    assert!(why.contains("Read-only file system"), "{why}");
    scene.publish(1_000);
    run("mount", &["-o", "remount,bind,rw", point]);
    scene.wait_until_whole(&dir);
    scene.daemon.end(Signal::SIGTERM);
    run("umount", &[point]);
}

/// The memory of the channel is lost, and the journal can only be read. The sequences still continue: after the end if it was clean,
/// otherwise after the reserve.
#[test]
fn a_channel_goes_on_behind_a_journal_that_can_only_be_read() {
    let Some(small) = Small::make("a_channel_goes_on_behind_a_journal_that_can_only_be_read", 64) else {
        return;
    };
    for is_clean in [true, false] {
        let room = scratch();
        let dir = room.path().join("journal");
        fs::create_dir(&dir).unwrap();
        let volume = small.path().join(if is_clean { "clean" } else { "killed" });
        fs::create_dir(&volume).unwrap();
        let [volume, point] = [&volume, &dir].map(|path| path.to_str().unwrap());
        run("mount", &["--bind", volume, point]);
        let Scene { mut daemon, client, publisher } = Scene::new(&dir, "");
        if is_clean {
            publisher.close();
            daemon.end(Signal::SIGTERM);
        } else {
            daemon.kill();
            drop(publisher);
        }
        drop(client);
        fs::remove_file(daemon.marker()).ok();
        run("mount", &["-o", "remount,bind,ro", point]);
        daemon.restart();
        let first = if is_clean { 1_001 } else { (1 << 32) + 2 };
        let told = format!("sequences begin at {first}");
        daemon.wait_for_log(&["event=\"journal-failed\"", &told, "Read-only file system"]);
        let client = daemon.client();
        let next = client.channel("ticks").unwrap().next_sequence.unwrap();
        assert_eq!(next, first);
        run("mount", &["-o", "remount,bind,rw", point]);
        let mut publisher = publishing(&client, "ticks").open().unwrap();
        publisher.publish(b"more").unwrap();
        wait_until("the journal", || {
            let journal = client.channel("ticks").unwrap().journal;
            journal.is_some_and(|it| it.state == "recording" && it.durable >= next)
        });
        assert_eq!(shmcast::journal::Streams::open(&dir).unwrap().journals().len(), 1);
        drop((publisher, client));
        daemon.end(Signal::SIGTERM);
        run("umount", &[point]);
    }
}

#[test]
fn a_size_limit_is_told_and_made_up_for() {
    let room = scratch();
    let dir = room.path().join("journal");
    let mut scene = Scene::new(&dir, "");
    let limit = |most: Option<u64>| {
        let maximum = getrlimit(Resource::Fsize).maximum;
        let pid = Pid::from_raw(scene.daemon.pid().as_raw());
        prlimit(pid, Resource::Fsize, Rlimit { current: most.or(maximum), maximum }).unwrap();
    };
    limit(Some(100 << 10));
    while scene.status().is_none_or(|journal| journal.state == "recording") {
        for _ in 0..1_000 {
            let sequence = scene.publisher.next_sequence();
            scene.publisher.publish(&sequence.to_le_bytes().repeat(16)).unwrap();
        }
        assert!(scene.publisher.next_sequence() < 50_000, "files grow beyond their limit");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    scene.is_told(&["File too large"]);
    limit(None);
    scene.wait_until_whole(&dir);
}
