//! The folder of the daemon's socket is removed, moved, full, read-only, or under another mount while the daemon runs.
//!
//! An earlier mistake: no program could attach any more, the daemon reported nothing, and a second daemon could start at the same path.

use nix::sys::signal::Signal;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use shmcast::{Client, Event, Publisher, RecvError, Start, Subscriber, Wait};
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::disk::Small;
use shmcast_testkit::place::program;
use shmcast_testkit::{PATIENCE, scratch, wait_for, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const MODES: [&str; 2] = ["takeover", "strict"];

fn config(mode: &str, more: &str) -> String {
    let limits = "[limits]\nrequests_per_second = 1000000\nrequest_burst = 1000000\n";
    let ticks = channel("ticks", &format!("mode = \"{mode}\"\n{FOR_ALL}")).replace("16MiB", "1MiB");
    format!("{limits}{ticks}{more}")
}

fn more() -> String {
    channel("more", FOR_ALL).replace("16MiB", "64KiB")
}

/// A reader that must get each message once and in order. It ignores events that do not matter here.
struct Reader {
    subscriber: Subscriber,
    due: u64,
}

impl Reader {
    /// A reader of a new connection.
    fn open(daemon: &Daemon) -> Self {
        let client = daemon.client();
        let builder = Subscriber::builder("ticks").client(&client).start(Start::Oldest);
        let subscriber = builder.wait(Wait::Sleep(Duration::from_micros(200))).open().unwrap();
        Self { due: subscriber.next_sequence(), subscriber }
    }

    fn read_to(&mut self, last: u64) {
        let deadline = Instant::now() + PATIENCE;
        while self.due <= last {
            match self.subscriber.recv_deadline(deadline).unwrap() {
                Some(Event::Message(message)) => {
                    assert_eq!((message.sequence, message.payload), (self.due, &self.due.to_le_bytes()[..]));
                    self.due += 1;
                }
                Some(Event::NewEpoch { .. } | Event::End) => {}
                other => panic!("{other:?} at {} of {last}", self.due),
            }
        }
    }
}

/// Publishes `count` messages. Returns the sequence of the last one.
fn publish(publisher: &mut Publisher, count: u64) -> u64 {
    for _ in 0..count {
        let sequence = publisher.next_sequence();
        publisher.publish(&sequence.to_le_bytes()).unwrap();
    }
    publisher.next_sequence() - 1
}

fn publisher(daemon: &Daemon) -> Publisher {
    publishing(&daemon.client(), "ticks").open().unwrap()
}

/// Starts a daemon whose folder is a disk, and lets a reader read the first messages of a publisher.
fn on_a_disk(disk: &Small, mode: &str) -> (Daemon, Mount, Publisher, Reader) {
    let dir = scratch();
    let run = dir.path().join("run");
    fs::create_dir(&run).unwrap();
    let mount = Mount::bind(disk.path(), &run);
    let daemon = Daemon::spawn(dir, &config(mode, ""));
    let mut first = publisher(&daemon);
    let last = publish(&mut first, 1_000);
    let mut reader = Reader::open(&daemon);
    reader.read_to(last);
    (daemon, mount, first, reader)
}

fn folder(daemon: &Daemon) -> PathBuf {
    daemon.dir().join("run")
}

/// The next publisher takes over, and all readers follow it without a loss.
fn takes_over(daemon: &Daemon, before: Publisher, readers: &mut [&mut Reader]) -> Publisher {
    drop(before);
    let mut next = publisher(daemon);
    let last = publish(&mut next, 100);
    readers.iter_mut().for_each(|reader| reader.read_to(last));
    next
}

/// Starts a second daemon at the same path, which must end by itself.
fn second(daemon: &Daemon) -> Output {
    let mut command = Command::new(program("shmcastd"));
    command.arg("--config").arg(daemon.dir().join("shmcast.toml")).arg("--socket").arg(daemon.socket());
    command.env_remove("NOTIFY_SOCKET").stdin(Stdio::null()).output().unwrap()
}

/// A second daemon at the same path does not start.
fn assert_taken(daemon: &Daemon) {
    let output = second(daemon);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("a daemon listens at"), "{said}");
}

/// Another file system that is mounted over this folder until the value is dropped.
struct Mount(PathBuf);

impl Mount {
    fn bind(volume: &Path, point: &Path) -> Self {
        run("mount", &["--bind", volume.to_str().unwrap(), point.to_str().unwrap()]);
        Self(point.to_owned())
    }

    /// Mounts the same files read-only. The file system itself cannot be made read-only while somebody writes to it.
    fn read_only(volume: &Path, point: &Path) -> Self {
        let mount = Self::bind(volume, point);
        run("mount", &["-o", "remount,bind,ro", point.to_str().unwrap()]);
        mount
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

fn run(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

/// The daemon makes the folder again. The charters are gone, and the daemon names their channels. These channels begin anew with the next
/// daemon.
#[test]
fn a_folder_that_is_removed_is_made_again_and_what_is_lost_is_told() {
    for mode in MODES {
        let mut daemon = Daemon::start(&config(mode, ""));
        let mut first = publisher(&daemon);
        let last = publish(&mut first, 1_000);
        let mut old = Reader::open(&daemon);
        old.read_to(last);
        // It makes names again each second, and not amid the removal.
        daemon.signal(Signal::SIGSTOP);
        fs::remove_dir_all(folder(&daemon)).unwrap();
        daemon.signal(Signal::SIGCONT);
        daemon.wait_for_log(&["event=\"folder-anew\"", "removed or moved", "ticks"]);
        assert!(daemon.marker().exists(), "{mode}");
        assert_taken(&daemon);
        // Attached programs continue, and others attach.
        let last = publish(&mut first, 1_000);
        let mut new = Reader::open(&daemon);
        old.read_to(last);
        new.read_to(last);
        let mut next = takes_over(&daemon, first, &mut [&mut old, &mut new]);
        daemon.reload(&config(mode, &more()));
        assert_eq!(daemon.told("folder-anew"), 1, "{mode}: it is told once");
        // The next daemon does not know the channel, and reports this to programs that do.
        daemon.crash();
        wait_until("the channel to begin anew", || match old.subscriber.try_recv() {
            Ok(Some(Event::Restarted)) | Err(RecvError::Superseded) => true,
            Ok(Some(Event::Message(message))) => panic!("{message:?}"),
            _ => false,
        });
        let last = next.next_sequence() - 1;
        wait_until("the publisher to be told", || next.publish(b"late").is_err() || mode == "takeover");
        let mut after = publisher(&daemon);
        assert_eq!(after.next_sequence(), 1, "{mode}: {last}");
        let last = publish(&mut after, 100);
        Reader::open(&daemon).read_to(last);
    }
}

/// Everything that was moved away gets its name again, so the next daemon continues where this one was.
#[test]
fn a_folder_that_is_moved_is_made_again_and_the_next_daemon_goes_on() {
    for mode in MODES {
        let mut daemon = Daemon::start(&config(mode, ""));
        let mut first = publisher(&daemon);
        let mut old = Reader::open(&daemon);
        let last = publish(&mut first, 1_000);
        old.read_to(last);
        fs::rename(folder(&daemon), daemon.dir().join("away")).unwrap();
        daemon.wait_for_log(&["event=\"folder-anew\"", "removed or moved"]);
        assert!(!daemon.log().contains("begin anew"), "{mode}: {}", daemon.log());
        assert_taken(&daemon);
        let mut new = Reader::open(&daemon);
        let mut next = takes_over(&daemon, first, &mut [&mut old, &mut new]);
        daemon.crash();
        let last = publish(&mut next, 1_000);
        let mut newest = Reader::open(&daemon);
        [&mut old, &mut new, &mut newest].into_iter().for_each(|reader| reader.read_to(last));
        takes_over(&daemon, next, &mut [&mut old, &mut new, &mut newest]);
    }
}

#[test]
fn each_single_file_of_the_folder_is_made_again() {
    let daemon = Daemon::start(&config("strict", ""));
    let mut first = publisher(&daemon);
    let mut old = Reader::open(&daemon);
    let last = publish(&mut first, 100);
    old.read_to(last);
    let socket = daemon.socket();
    let lock = socket.with_file_name("control.sock.lock");
    for file in [&socket, &lock, &daemon.marker()] {
        let before = daemon.told("folder-anew");
        fs::remove_file(file).unwrap();
        wait_until("the file", || file.exists());
        wait_until("the event", || daemon.told("folder-anew") == before + 1);
        assert_taken(&daemon);
        Reader::open(&daemon).read_to(last);
    }
    fs::remove_file(socket.with_extension("charters").join("ticks")).unwrap();
    daemon.wait_for_log(&["event=\"folder-anew\"", "does not know the memory of ticks"]);
    takes_over(&daemon, first, &mut [&mut old]);
    // Another file takes the folder's path. The daemon reports this, and leaves the file alone.
    let away = daemon.dir().join("away");
    let before = daemon.told("folder-failed");
    fs::write(&away, "no folder").unwrap();
    renameat_with(CWD, &away, CWD, folder(&daemon), RenameFlags::EXCHANGE).unwrap();
    wait_until("the trouble", || daemon.told("folder-failed") > before);
    daemon.wait_for_log(&["event=\"folder-failed\"", "no other program can attach"]);
    fs::remove_file(folder(&daemon)).unwrap();
    wait_until("the socket", || Client::at(&socket).is_ok());
    assert!(daemon.told("folder-failed") <= before + 2, "each trouble is told once");
}

/// Nothing can be made in the folder. Programs still attach and take over, even in strict channels, and the next daemon continues. An added
/// channel is refused, and is made when there is room.
#[test]
fn a_full_folder_costs_nobody_a_message() {
    for mode in MODES {
        let Some(small) = Small::make("a_full_folder_costs_nobody_a_message", 1) else { return };
        let (mut daemon, _mount, first, mut old) = on_a_disk(&small, mode);
        let run = folder(&daemon);
        fs::write(run.join("rest"), vec![0; small.free() as usize]).unwrap();
        assert_eq!(small.free(), 0);
        let mut new = Reader::open(&daemon);
        let next = takes_over(&daemon, first, &mut [&mut old, &mut new]);
        daemon.reload_until(&config(mode, &more()), "reload-refused");
        daemon.wait_for_log(&["event=\"reload-refused\"", "charter", "No space left"]);
        let next = takes_over(&daemon, next, &mut [&mut old, &mut new]);
        daemon.configure(&config(mode, ""));
        daemon.crash();
        let mut next = takes_over(&daemon, next, &mut [&mut old, &mut new]);
        fs::remove_file(run.join("rest")).unwrap();
        daemon.reload(&config(mode, &more()));
        daemon.client().channel("more").unwrap();
        let last = publish(&mut next, 1_000);
        [old, new].iter_mut().for_each(|reader| reader.read_to(last));
    }
}

#[test]
fn a_read_only_folder_costs_nobody_a_message() {
    for mode in MODES {
        let Some(small) = Small::make("a_read_only_folder_costs_nobody_a_message", 4) else { return };
        let (mut daemon, _mount, first, mut old) = on_a_disk(&small, mode);
        let run = folder(&daemon);
        let read_only = Mount::read_only(small.path(), &run);
        fs::write(run.join("probe"), "").unwrap_err();
        let mut new = Reader::open(&daemon);
        let mut next = takes_over(&daemon, first, &mut [&mut old, &mut new]);
        assert_eq!(daemon.told("folder-failed"), 0, "{mode}: nothing has lost its name");
        // The next daemon says why it does not start, and attached programs continue.
        daemon.kill();
        let output = second(&daemon);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("Read-only file system"), "{said}");
        let last = publish(&mut next, 100);
        old.read_to(last);
        drop(read_only);
        daemon.restart();
        daemon.reload(&config(mode, &more()));
        let mut next = takes_over(&daemon, next, &mut [&mut old, &mut new]);
        let last = publish(&mut next, 1_000);
        [old, new].iter_mut().for_each(|reader| reader.read_to(last));
    }
}

/// A file system is mounted over the folder, and later unmounted.
#[test]
fn a_mount_over_the_folder_comes_and_goes() {
    for mode in MODES {
        let Some(small) = Small::make("a_mount_over_the_folder_comes_and_goes", 4) else { return };
        let mut daemon = Daemon::start(&config(mode, ""));
        let mut first = publisher(&daemon);
        let mut old = Reader::open(&daemon);
        let last = publish(&mut first, 1_000);
        old.read_to(last);
        let mount = Mount::bind(small.path(), &folder(&daemon));
        // A charter cannot get a name in another file system.
        daemon.wait_for_log(&["event=\"folder-anew\"", "does not know the memory of ticks"]);
        let mut new = Reader::open(&daemon);
        let next = takes_over(&daemon, first, &mut [&mut old, &mut new]);
        let before = daemon.told("folder-anew");
        drop(mount);
        wait_until("the folder below", || daemon.told("folder-anew") > before);
        assert_taken(&daemon);
        let next = takes_over(&daemon, next, &mut [&mut old, &mut new]);
        // The charters have their names again, so the next daemon continues the channels.
        daemon.crash();
        let mut next = takes_over(&daemon, next, &mut [&mut old, &mut new]);
        let last = publish(&mut next, 1_000);
        let mut newest = wait_for("the daemon", || Some(Reader::open(&daemon)));
        [&mut old, &mut new, &mut newest].into_iter().for_each(|reader| reader.read_to(last));
    }
}
