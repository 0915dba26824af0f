//! Clients that break the rules of the control socket. Each client harms only itself. Afterwards the daemon lives, answers, and has no more
//! descriptors than before, and a publisher and a reader have missed nothing.

use nix::sys::signal::Signal;
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown};
use serde_json::json;
use shmcast::sys::handoff::{MAX_DESCRIPTORS, MAX_PACKET};
use shmcast::{ChannelError, Client, control::RefusalCode};
use shmcast_testkit::bystanders::Bystanders;
use shmcast_testkit::daemon::{Daemon, FOR_ALL, channel, publishing};
use shmcast_testkit::place::program;
use shmcast_testkit::raw::{Raw, fds, publish, subscribe};
use shmcast_testkit::{Process, wait_for};
use std::fs::File;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CONNECTIONS: usize = 100;
const BURST: usize = 500;

/// The environment of a case: the socket, and the number of the daemon's descriptors before the case.
struct Case<'a> {
    socket: PathBuf,
    daemon: &'a Daemon,
    before: usize,
}

impl Case<'_> {
    fn connect(&self) -> Raw {
        Raw::connect(&self.socket)
    }

    /// Connects and greets. Waits first, because an earlier case might have used up this user's requests.
    fn greeted(&self) -> Raw {
        self.daemon.client();
        Raw::greeted(&self.socket)
    }

    /// Greets, and then sends a packet that must end the connection.
    fn greeted_and_cut_off(&self, said: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let raw = self.greeted();
        raw.send(said, descriptors).unwrap();
        raw.assert_cut_off("bad-request");
    }

    /// Shows a segment that no daemon made.
    fn foreign(&self, segment: &File) {
        let raw = self.greeted();
        let [_, lock, page, _] = self.greeted().subscribe("bystander");
        let shown = [segment.as_fd(), lock.as_fd(), page.as_fd()];
        raw.assert_refused(&subscribe("bystander", true), &shown, "bad-request");
        let shown = [segment.as_fd(), segment.as_fd()];
        raw.assert_refused(&publish("idle", true), &shown, "bad-request");
    }

    /// Shows memory of the daemon's user that is not the channel's. A reader gets the channel's current memory, and a publisher is refused.
    fn not_this_channels(&self, segment: &File) {
        let [real, lock, page, _] = self.greeted().subscribe("bystander");
        // Under the unit, the daemon's user is not this test's.
        std::os::unix::fs::fchown(segment, Some(real.metadata().unwrap().uid()), None).unwrap();
        let shown = [segment.as_fd(), lock.as_fd(), page.as_fd()];
        let (answer, given) = self.greeted().ask_for_files(&subscribe("bystander", true), &shown);
        assert_eq!(answer["reply"], "subscribed", "{answer}");
        assert_eq!(given[0].metadata().unwrap().ino(), real.metadata().unwrap().ino());
        let shown = [segment.as_fd(), segment.as_fd()];
        self.greeted().assert_refused(&publish("idle", true), &shown, "busy");
    }

    /// Waits until the daemon has closed all descriptors that this case made it open.
    fn wait_until_closed(&self) {
        wait_for("the daemon to close descriptors", || {
            (self.daemon.open_descriptors() <= self.before).then_some(())
        });
    }
}

fn memfd(bytes: u64, mode: u32, seals: SealFlags) -> File {
    let file = rustix::fs::memfd_create("hostile", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, bytes).unwrap();
    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode)).unwrap();
    rustix::fs::fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

fn size_sealed() -> SealFlags {
    SealFlags::GROW | SealFlags::SHRINK
}

/// Sends more descriptors than the library would.
fn send_with_many(raw: &Raw, said: &[u8], count: usize) {
    let null = File::open("/dev/null").unwrap();
    let descriptors = vec![null.as_fd(); count];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    rustix::net::sendmsg(&raw.socket, &[IoSlice::new(said)], &mut ancillary, SendFlags::NOSIGNAL).unwrap();
}

const LIST: &[u8] = br#"{"request":"list"}"#;

/// The name of a case, and the function that plays it.
type Deed = (&'static str, fn(&Case<'_>));

const CASES: &[Deed] = &[
    ("garbage", |case| {
        for garbage in [&b"\0\xff\x80garbage"[..], b"{", b"null", b"[]", b"\"hello\"", b"{\"request\":7}"] {
            let raw = case.connect();
            raw.send(garbage, &[]).unwrap();
            raw.assert_cut_off("bad-request");
        }
    }),
    ("an empty packet", |case| {
        let raw = case.connect();
        raw.send(b"", &[]).unwrap();
        assert!(raw.receive().is_none());
    }),
    ("an empty packet with a descriptor", |case| {
        let raw = case.connect();
        raw.send(b"", &fds(&[File::open("/dev/null").unwrap()])).unwrap();
        raw.assert_cut_off("bad-request");
    }),
    ("a packet larger than any request", |case| {
        let mut said = LIST.to_vec();
        said.resize(MAX_PACKET + 1, b' ');
        case.greeted_and_cut_off(&said, &[]);
    }),
    ("nesting as deep as a packet allows", |case| {
        case.greeted_and_cut_off(&vec![b'['; MAX_PACKET], &[]);
        let nested = format!(r#"{{"request":"stat","channel":{}"#, "{\"a\":".repeat(10_000));
        case.greeted_and_cut_off(nested.as_bytes(), &[]);
    }),
    ("another version", |case| {
        for version in [0, 1, 3, u32::MAX] {
            let raw = case.connect();
            raw.send(json!({"request": "hello", "version": version}).to_string().as_bytes(), &[]).unwrap();
            raw.assert_cut_off("version");
        }
    }),
    ("no greeting at all", |case| {
        let (raw, started) = (case.connect(), Instant::now());
        raw.assert_cut_off("bad-request");
        assert!(started.elapsed() >= Duration::from_secs(4), "cut off after {:?}", started.elapsed());
    }),
    ("greeting twice", |case| {
        // A second greeting is harmless, and is answered like the first.
        let raw = case.greeted();
        assert_eq!(raw.ask(&json!({"request": "hello", "version": 2}), &[])["reply"], "welcome");
        raw.subscribe("bystander");
    }),
    ("asking before greeting", |case| {
        for request in [LIST, br#"{"request":"mapped"}"#, br#"{"request":"events"}"#] {
            let raw = case.connect();
            raw.send(request, &[]).unwrap();
            raw.assert_cut_off("bad-request");
        }
    }),
    ("channels that there are not", |case| {
        let raw = case.greeted();
        let long = "x".repeat(50_000);
        for name in ["nosuch", "", "../../etc/passwd", "a\u{0}b", "\u{1b}[2J", &long, &"\u{1b}".repeat(9_000)]
        {
            raw.assert_refused(&subscribe(name, false), &[], "unknown-channel");
            raw.assert_refused(&publish(name, false), &[], "unknown-channel");
            raw.assert_refused(&json!({"request": "take-over", "channel": name}), &[], "unknown-channel");
            raw.assert_refused(&json!({"request": "history", "channel": name}), &[], "unknown-channel");
        }
    }),
    ("requests that there are not", |case| {
        for said in [
            &br#"{"request":"reboot"}"#[..],
            br#"{"request":"stat","channel":"idle","more":1}"#,
            br#"{"request":"stat"}"#,
            br#"{"request":"history","channel":"idle","sequence":1,"time_ns":1}"#,
            br#"{"request":"list","channel":"idle"}"#,
            br#"{"request":"mapped","channel":"idle"}"#,
            br#"{"request":"events","since":0}"#,
        ] {
            case.greeted_and_cut_off(said, &[]);
        }
        // The log's line about a request is short, however long the request is.
        let long = json!({"request": "\u{1b}".repeat(10_000)}).to_string();
        case.greeted_and_cut_off(long.as_bytes(), &[]);
        assert!(case.daemon.log().lines().all(|line| line.len() < 4000), "a client fills the log");
    }),
    ("one surplus descriptor", |case| {
        case.greeted_and_cut_off(LIST, &fds(&[File::open("/dev/null").unwrap()]));
    }),
    ("four surplus descriptors", |case| {
        let raw = case.greeted();
        send_with_many(&raw, LIST, MAX_DESCRIPTORS);
        raw.assert_cut_off("bad-request");
    }),
    ("250 surplus descriptors, again and again", |case| {
        for _ in 0..20 {
            let raw = case.greeted();
            send_with_many(&raw, LIST, 250);
            raw.assert_cut_off("bad-request");
        }
    }),
    ("descriptors with an attachment that takes none", |case| {
        let file = [File::open("/dev/null").unwrap(), File::open("/dev/null").unwrap()];
        case.greeted_and_cut_off(subscribe("bystander", false).to_string().as_bytes(), &fds(&file));
        case.greeted_and_cut_off(publish("idle", false).to_string().as_bytes(), &fds(&file));
    }),
    ("coming back with fewer descriptors than it takes", |case| {
        case.greeted_and_cut_off(subscribe("bystander", true).to_string().as_bytes(), &[]);
        let file = [File::open("/dev/null").unwrap()];
        case.greeted_and_cut_off(publish("idle", true).to_string().as_bytes(), &fds(&file));
    }),
    ("coming back with a regular file", |case| case.foreign(&tempfile::tempfile().unwrap())),
    ("coming back with memory of its own", |case| case.foreign(&memfd(1 << 20, 0o777, SealFlags::empty()))),
    ("coming back with memory that could shrink", |case| {
        case.foreign(&memfd(1 << 20, 0o600, SealFlags::GROW))
    }),
    ("coming back with sealed memory of no content", |case| {
        for bytes in [0, 1, 4096, 1 << 20] {
            case.not_this_channels(&memfd(bytes, 0o600, size_sealed()));
        }
    }),
    ("coming back with memory larger than any machine's", |case| {
        case.not_this_channels(&memfd(1 << 50, 0o600, size_sealed()));
    }),
    ("coming back with a forged header", |case| {
        // This is a copy of a real segment's first page in a file of another size.
        let [segment, ..] = case.greeted().subscribe("idle");
        let mut page = [0; 4096];
        segment.read_exact_at(&mut page, 0).unwrap();
        let forged = memfd(1 << 20, 0o600, SealFlags::empty());
        forged.write_all_at(&page, 0).unwrap();
        rustix::fs::fcntl_add_seals(&forged, size_sealed()).unwrap();
        case.not_this_channels(&forged);
    }),
    ("coming back with another channel's segment", |case| {
        let [segment, ..] = case.greeted().subscribe("other");
        case.not_this_channels(&segment);
    }),
    ("coming back with a directory", |case| case.foreign(&File::open("/").unwrap())),
    ("coming back with a socket", |case| {
        case.foreign(&File::from(case.connect().socket));
    }),
    ("coming back with a page of another size", |case| {
        let [segment, lock, ..] = case.greeted().subscribe("bystander");
        let raw = case.greeted();
        for page in [memfd(0, 0o600, size_sealed()), memfd(1 << 30, 0o600, size_sealed())] {
            let shown = [segment.as_fd(), lock.as_fd(), page.as_fd()];
            raw.assert_refused(&subscribe("bystander", true), &shown, "bad-request");
        }
        let shown = [segment.as_fd(), lock.as_fd(), segment.as_fd()];
        raw.assert_refused(&subscribe("bystander", true), &shown, "bad-request");
    }),
    ("coming back with the descriptors in the wrong order", |case| {
        let [segment, lock, page, _] = case.greeted().subscribe("bystander");
        let fds = [segment.as_fd(), lock.as_fd(), page.as_fd()];
        for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0], [0, 0, 0], [2, 2, 2]] {
            let shown = order.map(|i: usize| fds[i]);
            let answer = case.greeted().ask(&subscribe("bystander", true), &shown);
            // A reader that shows its page in place of the segment gets the channel's current memory. A path descriptor of the lock is no
            // memory, so it is refused.
            let expected = if order == [2, 2, 2] { "subscribed" } else { "refused" };
            assert_eq!(answer["reply"], expected, "{order:?}: {answer}");
        }
    }),
    ("coming back with a lock that is not the segment's", |case| {
        let [segment, _, page, _] = case.greeted().subscribe("idle");
        let [_, others, ..] = case.greeted().subscribe("other");
        let of_own_making = memfd(16, 0o600, size_sealed());
        let pipe = File::from(OwnedFd::from(std::io::pipe().unwrap().1));
        for lock in
            [&others, &of_own_making, &pipe, &File::open("/dev/null").unwrap(), &File::open("/").unwrap()]
        {
            let shown = [segment.as_fd(), lock.as_fd(), page.as_fd()];
            let answer = case.greeted().ask(&subscribe("idle", true), &shown);
            assert_eq!(answer["reply"], "subscribed", "{answer}");
        }
        // A publisher can still take the channel.
        drop(publishing(&case.daemon.client(), "idle").open().unwrap());
    }),
    ("a page full of nonsense", |case| {
        let raw = case.greeted();
        let [_, _, page, _] = raw.subscribe("bystander");
        for byte in [0xff, 0x00, 0x7f] {
            page.write_all_at(&[byte; 4096], 0).unwrap();
            // The page is shown unchanged, or not at all. A request for the status must not fail.
            case.daemon.client().channel("bystander").unwrap();
        }
    }),
    ("taking over a channel that is not strict", |case| {
        let request = json!({"request": "take-over", "channel": "bystander"});
        case.greeted().assert_refused(&request, &[], "bad-request");
    }),
    ("publishing where somebody publishes", |case| {
        let why = case.greeted().assert_refused(&publish("bystander", false), &[], "busy");
        assert!(why.contains("pid"), "who it is: {why}");
    }),
    ("publishing without ever locking or mapping", |case| {
        let raw = case.greeted();
        let (answer, files) = raw.ask_for_files(&publish("idle", false), &[]);
        assert_eq!((&answer["reply"], files.len()), (&json!("publishing"), 3));
        // Only the lock counts: a publisher can still take the channel.
        drop(publishing(&case.daemon.client(), "idle").open().unwrap());
    }),
    ("attaching twice", |case| {
        let raw = case.greeted();
        raw.subscribe("bystander");
        raw.send(subscribe("idle", false).to_string().as_bytes(), &[]).unwrap();
        raw.assert_cut_off("bad-request");
    }),
    ("a flood of requests", |case| {
        let raw = case.greeted();
        let mut answers = Vec::new();
        // The daemon cuts the client off long before the daemon has sent everything.
        while answers.last().is_none_or(|said| said == "done") && answers.len() < 100 * BURST {
            // A client that was cut off cannot send more.
            let sent = (0..64).take_while(|_| raw.send(br#"{"request":"mapped"}"#, &[]).is_ok()).count();
            answers.extend((0..sent).map_while(|_| raw.receive()).map(|(said, _)| match &said["code"] {
                code if code.is_string() => code.clone(),
                _ => said["reply"].clone(),
            }));
        }
        assert_eq!(answers.last(), Some(&json!("limit")), "after {} answers", answers.len());
        assert!(raw.receive().is_none());
    }),
    ("asking without ever reading an answer", |case| {
        let raw = case.greeted();
        let started = Instant::now();
        while raw.send(LIST, &[]).is_ok() && started.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(1));
        }
        case.wait_until_closed();
    }),
    ("following events without ever reading them", |case| {
        let follower = case.greeted();
        assert_eq!(follower.ask(&json!({"request": "events"}), &[])["reply"], "done");
        // Each attaching and leaving of a program causes two events.
        for _ in 0..300 {
            case.greeted().subscribe("bystander");
        }
        // The follower is cut off while it is still connected and does not read.
        case.wait_until_closed();
        drop(follower);
    }),
    ("half closed", |case| {
        for how in [Shutdown::Write, Shutdown::Read, Shutdown::Both] {
            let raw = case.greeted();
            rustix::net::shutdown(&raw.socket, how).unwrap();
            let _ = raw.send(subscribe("bystander", false).to_string().as_bytes(), &[]);
            case.wait_until_closed();
        }
    }),
    ("leaving in the middle of attaching", |case| {
        for _ in 0..50 {
            let raw = case.greeted();
            raw.send(subscribe("bystander", false).to_string().as_bytes(), &[]).unwrap();
            let raw = case.greeted();
            raw.send(publish("idle", false).to_string().as_bytes(), &[]).unwrap();
        }
    }),
    ("killed in the middle of attaching", |case| {
        for delay_ms in 0..12 {
            let mut reader = Command::new(program("shmcast"));
            reader.args(["sub", "bystander"]).env("SHMCAST_SOCKET", &case.socket).env_remove("SHMCAST_DIR");
            reader.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            let reader = Process::start(&mut reader);
            std::thread::sleep(Duration::from_millis(delay_ms));
            drop(reader);
        }
    }),
    ("thousands of connections, one after the other", |case| {
        for _ in 0..3000 {
            // The client might be refused for a moment, if it is faster than the daemon closes the last connections.
            drop(case.connect());
        }
        wait_for("the daemon to answer", || {
            Client::at(&case.socket).and_then(|client| client.channels()).ok()
        });
    }),
    ("as many connections as one user may have, and more", |case| {
        case.daemon.client();
        let mut held = Vec::new();
        // An earlier case might have used up this user's rate of connections, so the test retries until there are enough.
        wait_for("a refusal", || {
            held.extend((0..CONNECTIONS * 2).map(|_| case.connect()));
            match Client::at(&case.socket).and_then(|client| client.channels()) {
                Err(ChannelError::Refused { code: RefusalCode::Limit, why }) => {
                    why.contains("connections_per_uid").then_some(())
                }
                _ => None,
            }
        });
        let open = case.daemon.open_descriptors();
        assert!(open <= case.before + CONNECTIONS, "{open} descriptors, {} before", case.before);
        drop(held);
        // Now there is room again.
        wait_for("the daemon to answer", || {
            Client::at(&case.socket).and_then(|client| client.channels()).ok()
        });
    }),
];

fn config() -> String {
    let limits = format!(
        "[limits]\nconnections_per_uid = {CONNECTIONS}\nrequests_per_second = 1000\nrequest_burst = {BURST}\n"
    );
    let channels = ["bystander", "idle", "other"].map(|name| channel(name, FOR_ALL)).concat();
    format!("{limits}{channels}")
}

#[test]
fn a_hostile_client_harms_only_itself() {
    let mut daemon = Daemon::start(&config());
    let bystanders = Bystanders::start(&daemon.client(), "bystander");
    bystanders.assert_flowing();
    let wanted = std::env::var("SHMCAST_CASE").unwrap_or_default();
    let memory_before = daemon.anonymous_kib();
    assert!(CASES.len() >= 25);
    for (what, case) in CASES.iter().filter(|(what, _)| what.contains(&wanted)) {
        println!("{what}");
        let (before, started) = (settled_descriptors(&daemon), Instant::now());
        case(&Case { socket: daemon.socket(), daemon: &daemon, before });
        assert!(daemon.is_alive(), "{what}: the daemon is dead");
        wait_for(&format!("{what}: the daemon to close what it opened"), || {
            (daemon.open_descriptors() <= before).then_some(())
        });
        let status = wait_for(&format!("{what}: an answer"), || daemon.client().channel("bystander").ok());
        assert!(status.publisher.is_some() && status.error.is_none(), "{what}: {status:?}");
        bystanders.assert_flowing();
        println!("    {:?}", started.elapsed());
    }
    let memory = daemon.anonymous_kib();
    assert!(memory < memory_before + (32 << 10), "{memory_before} KiB before, {memory} KiB after");
    let received = bystanders.end();
    println!("{} cases; {received} messages, none missed; {memory_before} to {memory} KiB", CASES.len());
}

/// The number of the daemon's descriptors, once it has closed the connections of clients that have left.
fn settled_descriptors(daemon: &Daemon) -> usize {
    let mut last = daemon.open_descriptors();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = daemon.open_descriptors();
        if now == last {
            return now;
        }
        last = now;
    }
}

#[test]
fn a_path_that_is_not_a_daemons_socket_is_said_to_be_none() {
    let dir = tempfile::tempdir().unwrap();
    let plain: &Path = &dir.path().join("plain");
    std::fs::write(plain, "").unwrap();
    let (long, datagram) = ("/x".repeat(60), dir.path().join("datagram"));
    let _bound = std::os::unix::net::UnixDatagram::bind(&datagram).unwrap();
    for (path, advice) in [
        (plain, "no socket: give the path"),
        (&datagram, "socket of another program: give the path"),
        (Path::new(&long), "at most 107 bytes: give a shorter one"),
        (Path::new("/nonexistent/control.sock"), "start shmcastd"),
    ] {
        let error = Client::at(path).unwrap_err();
        assert!(matches!(error, ChannelError::NoDaemon { .. }), "{error}");
        assert!(error.to_string().contains(advice), "{error}");
        assert!(advice == "start shmcastd" || !error.to_string().contains("start shmcastd"), "{error}");
    }
    let error =
        ChannelError::NoDaemon { socket: plain.to_owned(), source: std::io::Error::from_raw_os_error(13) };
    assert!(error.to_string().contains("keeps this user out"), "{error}");
}

#[test]
fn a_daemon_that_hangs_is_said_to_and_not_waited_for_without_end() {
    let daemon = Daemon::start(&config());
    daemon.signal(Signal::SIGSTOP);
    let (socket, asked) = (daemon.socket(), Instant::now());
    let error = Client::at(&socket).unwrap_err();
    assert!(asked.elapsed() >= Duration::from_secs(4), "given up after {:?}", asked.elapsed());
    assert!(matches!(error, ChannelError::Silent { .. }), "{error:?}");
    let said = error.to_string();
    let wanted = format!("did not answer within 5 s at {}: check", socket.display());
    assert!(said.contains(&wanted), "{said}");
    daemon.signal(Signal::SIGCONT);
    daemon.client().channels().unwrap();
}
