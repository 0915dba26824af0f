//! Access by programs of other users, whom the kernel identifies. The tests try what these programs can do with the descriptors that they
//! get.
//!
//! The tests need root to become other users. Without root, each test prints its name as skipped.

use nix::unistd::gettid;
use rustix::fs::{FallocateFlags, FlockOperation, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use serde_json::json;
use shmcast::{Client, Event, Subscriber, Wait};
use shmcast_testkit::bystanders::Bystanders;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::process::{at_socket, my_role, my_socket};
use shmcast_testkit::raw::{Raw, publish};
use shmcast_testkit::{Process, role_as, wait_for};
use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const DAEMON_PID: &str = "SHMCAST_TEST_DAEMON";
const VICTIM: &str = "SHMCAST_TEST_VICTIM";
/// The numbers of `nobody` (and `nogroup`) and of `daemon`, on every Debian.
const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    match role.as_str() {
        "attacher" => attach_to_all(&my_socket()),
        "intruder" => intrude(&my_socket()),
        "stranger" => take_from_descriptors(&my_socket()),
        "disturber" => disturb(&my_socket()),
        other => panic!("no role {other}"),
    }
}

fn run(mut command: Command, daemon: &Daemon) -> (bool, String) {
    at_socket(&mut command, &daemon.socket()).env(DAEMON_PID, daemon.pid().to_string());
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// Prints, for each channel, whether this user may attach as `publisher` and as `reader`.
fn attach_to_all(socket: &Path) {
    let client = Client::at(socket).unwrap();
    for name in LISTS.iter().map(|(name, _, _)| name) {
        let published = publishing(&client, name).open().map(drop);
        let read = Subscriber::builder(*name).client(&client).open().map(drop);
        for (end, result) in [("publisher", published), ("reader", read)] {
            println!("{name} {end} {}", result.map_or_else(|e| e.to_string(), |()| "granted".to_owned()));
        }
        // A channel is reported if and only if this user may read it.
        println!("{name} listed {}", client.channels().unwrap().iter().any(|c| c.channel == *name));
    }
}

/// Each entry has the name of a channel, the entry of the channel's lists, and the users of [`NOBODY`] and [`DAEMON`] whom the list admits.
const LISTS: &[(&str, &str, &[u32])] = &[
    ("by-user", "\"user:nobody\"", &[NOBODY]),
    ("by-group", "\"group:daemon\"", &[DAEMON]),
    ("by-uid", "\"uid:65534\"", &[NOBODY]),
    ("by-either", "\"uid:1\", \"user:nobody\"", &[NOBODY, DAEMON]),
    ("for-all", "\"*\"", &[NOBODY, DAEMON]),
    ("for-another", "\"uid:12345\", \"user:nosuchuser\", \"group:nosuchgroup\"", &[]),
    ("for-nobody-named", "", &[]),
];

#[test]
fn the_lists_let_in_whom_they_name_and_nobody_else() {
    let test = "the_lists_let_in_whom_they_name_and_nobody_else";
    let config: String = LISTS
        .iter()
        .flat_map(|(name, who, _)| {
            // Each channel is used for one end only, so that a publisher's right to read does not hide a mistake.
            [channel(name, &format!("publishers = [{who}]\nsubscribers = [{who}]"))]
        })
        .collect();
    let daemon = Daemon::start(&config);
    for uid in [NOBODY, DAEMON] {
        let Some(command) = role_as!(test, uid, "attacher") else { return };
        let (success, said) = run(command, &daemon);
        assert!(success, "{said}");
        for (name, who, let_in) in LISTS {
            let is_in = let_in.contains(&uid);
            for end in ["publisher", "reader"] {
                let answer =
                    said.lines().find_map(|line| line.strip_prefix(&format!("{name} {end} "))).unwrap();
                assert_eq!(answer == "granted", is_in, "uid {uid}, {name} ({who}): {answer}");
                let tells_who = answer.contains(&format!("uid {uid})")) && answer.contains("add it to");
                assert!(is_in || tells_who, "who was refused and what to do: {answer}");
            }
            assert!(said.contains(&format!("{name} listed {is_in}")), "uid {uid}: {said}");
            if !is_in {
                daemon.wait_for_log(&["refused", name, &format!("uid={uid}"), "may not publish"]);
                daemon.wait_for_log(&["refused", name, &format!("uid={uid}"), "may not read"]);
            }
        }
    }
}

fn config() -> String {
    let strict = channel("strict", "mode = \"strict\"\npublishers = []\nsubscribers = [\"*\"]");
    let open = channel("open", "publishers = [\"user:root\"]\nsubscribers = [\"*\"]");
    let closed = channel("closed", "publishers = []\nsubscribers = []");
    [strict, open, closed, channel("shared", FOR_ALL)].concat()
}

/// Tries all that a reader of another user can do with the descriptors that the daemon gives it.
fn intrude(socket: &Path) {
    let raw = Raw::greeted(socket);
    let [segment, lock, page, charter] = raw.subscribe("open");
    cannot_be_changed(&segment);
    cannot_be_changed(&charter);
    is_a_mere_path(&lock);
    // The reader can write to its page, but cannot change the page's size.
    for result in [page.set_len(0), page.set_len(1 << 20)] {
        assert_eq!(result.unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    page.write_all_at(&[0xff; 4096], 0).unwrap();
    assert_eq!(page.write_at(&[0], 4096).unwrap_err().kind(), ErrorKind::PermissionDenied);
    // The reader takes locks on its descriptors. None of them is the publisher's lock.
    rustix::fs::flock(&segment, FlockOperation::LockShared).unwrap();
    rustix::fs::flock(&segment, FlockOperation::NonBlockingLockExclusive).unwrap();
    rustix::fs::fcntl_lock(&page, FlockOperation::NonBlockingLockExclusive).unwrap();
    // The reader requests the rights of a publisher, and channels of others.
    let other = Raw::greeted(socket);
    let why = other.assert_refused(&publish("open", false), &[], "denied");
    assert!(why.contains(&format!("uid {NOBODY})")) && why.contains("publishers"), "{why}");
    other.assert_refused(&json!({"request": "stat", "channel": "closed"}), &[], "denied");
    other.assert_refused(&json!({"request": "history", "channel": "closed"}), &[], "denied");
    other.assert_refused(&json!({"request": "history", "channel": "open", "sequence": 1}), &[], "no-journal");
    other.assert_refused(&json!({"request": "take-over", "channel": "strict"}), &[], "denied");
    let seen: Vec<String> =
        Client::at(socket).unwrap().channels().unwrap().into_iter().map(|channel| channel.channel).collect();
    assert_eq!(seen, ["open", "shared", "strict"]);
    // The reader attaches again as a publisher, which it never was.
    let shown = [&segment, &lock].map(std::os::fd::AsFd::as_fd);
    other.assert_refused(&publish("open", true), &shown, "denied");
    other.assert_refused(&publish("shared", true), &shown, "busy");
    // The reader opens the daemon's own descriptors and memory.
    let daemon = std::env::var(DAEMON_PID).unwrap();
    for path in
        [format!("/proc/{daemon}/fd"), format!("/proc/{daemon}/mem"), format!("/proc/{daemon}/map_files")]
    {
        assert_eq!(File::open(path).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    // The reader keeps its locks and descriptors until the test has checked the other programs.
    println!("done");
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
}

/// Checks that the lock can be shown to a daemon, but not be used as a file.
fn is_a_mere_path(lock: &File) {
    assert_eq!(
        rustix::fs::fcntl_lock(lock, FlockOperation::NonBlockingLockExclusive),
        Err(Errno::BADF),
        "the publisher's lock"
    );
    for how in [FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingLockShared] {
        assert_eq!(rustix::fs::flock(lock, how), Err(Errno::BADF));
    }
    let own = format!("/proc/self/fd/{}", lock.as_raw_fd());
    for options in [File::options().read(true), File::options().write(true)] {
        assert_eq!(options.open(&own).unwrap_err().kind(), ErrorKind::PermissionDenied);
    }
    assert!(lock.read_at(&mut [0], 0).is_err() && lock.write_at(&[0], 0).is_err());
}

/// Checks that a read-only descriptor of another user's sealed memory allows no change of it.
fn cannot_be_changed(segment: &File) {
    let own = format!("/proc/self/fd/{}", segment.as_raw_fd());
    for options in
        [File::options().write(true), File::options().read(true).write(true), File::options().append(true)]
    {
        assert_eq!(
            options.open(&own).unwrap_err().kind(),
            ErrorKind::PermissionDenied,
            "opened anew for writing"
        );
    }
    // Opening it again for reading is refused as well.
    assert_eq!(File::open(&own).unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(segment.write_at(&[1], 0).unwrap_err().raw_os_error(), Some(Errno::BADF.raw_os_error()));
    let size = segment.metadata().unwrap().len();
    for bytes in [0, size - 1, size + 1, size * 2] {
        assert!(segment.set_len(bytes).is_err(), "truncated to {bytes}");
    }
    // A writable map is refused, and so is a later change of a read-only map to a writable one.
    let map = memmap2::MmapOptions::new().len(4096).map_raw(segment).map(drop);
    assert_eq!(map.unwrap_err().kind(), ErrorKind::PermissionDenied, "a writable map");
    memmap2::MmapOptions::new().len(4096).map_raw_read_only(segment).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for flags in [punch, FallocateFlags::ZERO_RANGE, FallocateFlags::empty()] {
        assert!(rustix::fs::fallocate(segment, flags, 0, 4096).is_err(), "{flags:?}");
    }
    for seals in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::SEAL] {
        assert_eq!(rustix::fs::fcntl_add_seals(segment, seals), Err(Errno::PERM));
    }
    assert!(rustix::fs::fchmod(segment, rustix::fs::Mode::from_raw_mode(0o777)).is_err());
    assert_eq!(
        rustix::fs::fcntl_lock(segment, FlockOperation::NonBlockingLockExclusive),
        Err(Errno::BADF),
        "a write lock through a read-only descriptor"
    );
    assert_eq!(segment.metadata().unwrap().len(), size);
}

#[test]
fn a_reader_of_another_user_can_change_nothing_and_harms_nobody() {
    let test = "a_reader_of_another_user_can_change_nothing_and_harms_nobody";
    let mut daemon = Daemon::start(&config());
    let client = daemon.client();
    let bystanders = Bystanders::start(&client, "open");
    bystanders.assert_flowing();
    let Some(mut command) = role_as!(test, NOBODY, "intruder") else { return };
    at_socket(&mut command, &daemon.socket()).env(DAEMON_PID, daemon.pid().to_string());
    let out = daemon.dir().join("intruder");
    command.stdin(Stdio::piped()).stdout(File::create(&out).unwrap());
    let mut intruder = Process::start(&mut command);
    wait_for("the intruder", || {
        if intruder.try_wait().is_some() {
            panic!("the intruder ended: {}", fs::read_to_string(&out).unwrap());
        }
        fs::read_to_string(&out).unwrap().contains("done").then_some(())
    });
    // While the intruder still holds its locks, the channel works, and a publisher can take its lock.
    bystanders.assert_flowing();
    assert!(client.channel("open").unwrap().publisher.is_some());
    let received = bystanders.end();
    let mut publisher = publishing(&client, "open").open().unwrap();
    publisher.publish(b"goes on").unwrap();
    assert!(daemon.is_alive());
    drop(intruder.child().stdin.take());
    assert!(intruder.wait().success());
    daemon.wait_for_log(&["refused", "open", &format!("uid={NOBODY}"), "may not publish"]);
    println!("{received} messages beside the intruder, none missed");
}

/// A publisher of another user can write to its segment, but cannot change what the daemon has fixed.
fn take_from_descriptors(socket: &Path) {
    let raw = Raw::greeted(socket);
    let (answer, files) = raw.ask_for_files(&publish("shared", false), &[]);
    assert_eq!(answer["reply"], "publishing", "{answer}");
    for file in &files {
        let size = file.metadata().unwrap().len();
        for bytes in [size.saturating_sub(1), size + 1, size + 4096] {
            assert!(bytes == size || file.set_len(bytes).is_err(), "{bytes} instead of {size}");
        }
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        assert_eq!(File::options().write(true).open(own).unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(rustix::fs::fchmod(file, rustix::fs::Mode::from_raw_mode(0o777)).is_err());
    }
}

#[test]
fn a_publisher_of_another_user_cannot_resize_what_it_is_handed() {
    let test = "a_publisher_of_another_user_cannot_resize_what_it_is_handed";
    let daemon = Daemon::start(&config());
    let Some(command) = role_as!(test, NOBODY, "stranger") else { return };
    let (success, said) = run(command, &daemon);
    assert!(success, "{said}");
}

/// The offset of the word of a reader page that says that the reader sleeps.
const ASLEEP: u64 = 17 * 8;

/// A reader that parks without the library: its connection, its page, and both ends of its bell.
fn park(socket: &Path, channel: &str) -> (Raw, File, UnixStream, UnixStream) {
    let raw = Raw::greeted(socket);
    let (near, far) = UnixStream::pair().unwrap();
    let request = json!({"request": "subscribe", "channel": channel, "resume": false, "park": true});
    let (answer, mut files) = raw.ask_for_files(&request, &[far.as_fd()]);
    assert_eq!(answer["reply"], "subscribed", "{answer}");
    for end in [&near, &far] {
        end.set_nonblocking(true).unwrap();
    }
    (raw, files.swap_remove(2), near, far)
}

/// Tries all that a reader can do to wake or to starve others: to reach what is theirs, to ring its own bells without
/// end, to claim sleep and waking all the time, and to use up all connections.
fn disturb(socket: &Path) {
    let victim: i32 = std::env::var(VICTIM).unwrap().parse().unwrap();
    // The victim's bells and connections have no name to which another program could connect.
    let names = fs::read_to_string("/proc/net/unix").unwrap();
    assert!(names.contains("control.sock"), "this process sees sockets that have names");
    assert_eq!(
        fs::read_dir(format!("/proc/{victim}/fd")).unwrap_err().kind(),
        ErrorKind::PermissionDenied,
        "the victim's descriptors"
    );
    let process = pidfd_open(Pid::from_raw(victim).unwrap(), PidfdFlags::empty()).unwrap();
    for number in 0..64 {
        let taken = pidfd_getfd(&process, number, PidfdGetfdFlags::empty()).map(drop);
        assert_eq!(taken, Err(Errno::PERM), "the victim's descriptor {number}");
    }
    // The intruder's own descriptors lead to no other reader. Its page is not the victim's, and belongs to one reader.
    let parked: Vec<_> = (0..8).map(|_| park(socket, "open")).collect();
    let started = Instant::now();
    let mut word = 1_u64;
    while started.elapsed() < Duration::from_millis(700) {
        for (_, page, near, far) in &parked {
            word = word.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(1);
            page.write_all_at(&word.to_le_bytes(), ASLEEP).unwrap();
            let _ = (&mut &*near).write(&[0; 64]);
            let _ = (&mut &*far).write(&[0; 64]);
        }
    }
    // The intruder uses up all connections and all requests that this user is allowed.
    let mut held = Vec::new();
    let refused = loop {
        let raw = Raw::connect(socket);
        let asked = raw.send(json!({"request": "hello", "version": 2}).to_string().as_bytes(), &[]);
        let Some((answer, _)) = raw.receive().filter(|_| asked.is_ok()) else { continue };
        if answer["reply"] == "refused" {
            break answer;
        }
        held.push(raw);
    };
    assert_eq!(refused["code"], "limit", "{refused}");
    println!("done, holding {} connections", held.len());
    // The intruder holds them, and claims to sleep at the largest position, until the test has checked the other programs.
    for (_, page, _, _) in &parked {
        page.write_all_at(&(u64::MAX - 62).to_le_bytes(), ASLEEP).unwrap();
    }
    std::io::stdin().read_to_string(&mut String::new()).unwrap();
}

/// The number of times that a thread of this process has run on a CPU.
fn times_run(thread: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/self/task/{thread}/schedstat")).unwrap();
    text.split_whitespace().nth(2).unwrap().parse().unwrap()
}

#[test]
fn a_reader_of_another_user_can_neither_wake_nor_starve_others() {
    let test = "a_reader_of_another_user_can_neither_wake_nor_starve_others";
    let limits = "[limits]\nconnections_per_uid = 60\nrequests_per_second = 100\nrequest_burst = 200\n";
    let mut daemon = Daemon::start(&(limits.to_owned() + &config()));
    let client = daemon.client();
    let bystanders = Bystanders::start(&client, "shared");
    let Some(mut command) = role_as!(test, NOBODY, "disturber") else { return };
    let mut publisher = publishing(&client, "open").open().unwrap();
    // The victim sleeps until somebody wakes it.
    let victim = Subscriber::builder("open").client(&client).wait(Wait::Park);
    let mut victim = victim.longest_nap(Duration::from_secs(600)).open().unwrap();
    let (tell, told) = mpsc::channel();
    let (send, received) = mpsc::channel();
    let sleeper = std::thread::spawn(move || {
        tell.send(gettid().as_raw()).unwrap();
        while let Ok(Event::Message(message)) = victim.recv() {
            send.send(message.sequence).unwrap();
        }
    });
    let thread = told.recv().unwrap();
    // Wait until the victim really sleeps.
    let mut before = times_run(thread);
    wait_for("the victim to sleep", || {
        std::thread::sleep(Duration::from_millis(100));
        let now = times_run(thread);
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let sleeps = stat.rsplit_once(") ").unwrap().1.starts_with('S');
        (std::mem::replace(&mut before, now) == now && sleeps).then_some(())
    });

    at_socket(&mut command, &daemon.socket()).env(VICTIM, std::process::id().to_string());
    let out = daemon.dir().join("disturber");
    command.stdin(Stdio::piped()).stdout(File::create(&out).unwrap());
    let mut disturber = Process::start(&mut command);
    wait_for("the disturber", || {
        if disturber.try_wait().is_some() {
            panic!("the disturber ended: {}", fs::read_to_string(&out).unwrap());
        }
        fs::read_to_string(&out).unwrap().contains("done").then_some(())
    });
    assert_eq!(times_run(thread), before, "the victim was woken for nothing");
    // While the disturber still holds everything, the victim wakes for its message, others attach, and traffic flows.
    let sequence = publisher.publish(b"for the victim").unwrap();
    assert_eq!(received.recv_timeout(Duration::from_secs(30)), Ok(sequence), "the victim starves");
    let mut newcomer = Subscriber::builder("open").client(&client).wait(Wait::Park).open().unwrap();
    let sequence = publisher.publish(b"for both").unwrap();
    assert!(matches!(newcomer.recv(), Ok(Event::Message(message)) if message.sequence == sequence));
    assert_eq!(received.recv_timeout(Duration::from_secs(30)), Ok(sequence));
    bystanders.assert_flowing();
    assert!(daemon.is_alive());
    drop(disturber.child().stdin.take());
    assert!(disturber.wait().success());
    publisher.close();
    sleeper.join().unwrap();
    println!("{} messages beside one who takes all it can, none missed", bystanders.end());
}
