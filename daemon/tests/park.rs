//! Parked readers and the daemon that wakes them, as processes: nobody sleeps through a message, no publisher pays for
//! it, and nobody's tricks reach anybody else.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use shmcast::control::{Reply, Request, VERSION, decode, encode};
use shmcast::hosting::handoff;
use shmcast::{ChannelError, Client, Event, Publisher, Start, Subscriber, SubscriberBuilder, Wait};
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than any of these tests takes: whoever is not woken sleeps through the test, and is found out.
const FOR_EVER: Duration = Duration::from_secs(600);
/// How long something may take that takes microseconds, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// A daemon of a test's own, with channels `t` and `strict`.
struct Daemon {
    dir: TempDir,
    process: Child,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::Builder::new().prefix("shmcast-park-").tempdir().unwrap();
        let channel = |name: &str, mode: &str| {
            format!(
                "[[channel]]\nname = \"{name}\"\ncapacity = \"4MiB\"\nmode = \"{mode}\"\nmlock = false\nhugepages = false\n"
            )
        };
        let config = channel("t", "takeover") + &channel("strict", "strict");
        fs::write(dir.path().join("config.toml"), config).unwrap();
        let process = spawn(dir.path());
        Self { dir, process }
    }

    fn client(&self) -> Client {
        client(self.dir.path())
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn restart(&mut self) {
        self.process = spawn(self.dir.path());
        self.client();
    }

    /// Waits until `expected` readers of `t` are attached.
    fn wait_for_readers(&self, expected: usize) {
        wait_for(&format!("{expected} readers"), || {
            Client::at(socket(self.dir.path()))
                .and_then(|client| client.channel("t"))
                .is_ok_and(|channel| channel.readers.len() == expected)
        });
    }

    /// Time on a CPU so far of the threads called `name`.
    fn cpu_time(&self, name: &str) -> Duration {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        let of_task = |task: PathBuf| {
            let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
            let stat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
            let ns = stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            if comm.trim() == name { Duration::from_nanos(ns) } else { Duration::ZERO }
        };
        tasks.map(|task| of_task(task.unwrap().path())).sum()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(dir: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_shmcastd"));
    command.arg("--config").arg(dir.join("config.toml")).arg("--socket").arg(socket(dir));
    command.env("RUST_LOG", "warn").env_remove("NOTIFY_SOCKET");
    command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap()
}

fn socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

fn client(dir: &Path) -> Client {
    let mut found = None;
    wait_for("a daemon", || {
        found = Client::at(socket(dir)).ok();
        found.is_some()
    });
    found.unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "still no {what} after {PATIENCE:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn publisher(client: &Client) -> Publisher {
    Publisher::builder("t").client(client).open().unwrap()
}

fn parked(client: &Client) -> SubscriberBuilder {
    Subscriber::builder("t").client(client).wait(Wait::Park).longest_nap(FOR_EVER)
}

/// The next message's sequence, with whatever else the stream says passed over, but for a loss.
fn receive(subscriber: &mut Subscriber) -> Option<u64> {
    loop {
        let waited = Instant::now();
        let event = subscriber.recv().unwrap();
        assert!(waited.elapsed() < FOR_EVER / 2, "slept through {event:?}");
        match event {
            Event::Message(m) => return Some(m.sequence),
            Event::End => return None,
            Event::NewEpoch { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Receives to the end of the stream in a thread, and returns how many there were; each must follow the one before.
fn count(mut subscriber: Subscriber) -> JoinHandle<u64> {
    thread::spawn(move || {
        let first = subscriber.next_sequence();
        let mut next = first;
        while let Some(sequence) = receive(&mut subscriber) {
            assert_eq!(sequence, next);
            next += 1;
        }
        next - first
    })
}

/// Results of threads, within a limit: one who sleeps through the end would never return.
fn join<T: Send + 'static>(threads: Vec<JoinHandle<T>>) -> Vec<T> {
    let start = Instant::now();
    let join = |thread: JoinHandle<T>| {
        while !thread.is_finished() {
            assert!(start.elapsed() < PATIENCE, "a reader sleeps through the end");
            thread::sleep(Duration::from_millis(2));
        }
        thread.join().unwrap()
    };
    threads.into_iter().map(join).collect()
}

/// A small generator of pauses (xorshift), so that a failure can be had again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// With naps as good as endless, a single ring that is lost shows up as a reader that never comes back.
#[test]
fn a_wake_up_lost_between_the_last_look_and_the_sleep() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let readers: Vec<_> = (0..8).map(|_| count(parked(&client).open().unwrap())).collect();
    let mut dice = Dice(0x5eed);
    for message in 0..10_000u64 {
        publisher.publish(&message.to_le_bytes()).unwrap();
        match dice.roll() % 16 {
            // From none at all, over the time that it takes to fall asleep, to long enough for the waker to back off.
            0..8 => {}
            8..13 => spin(Duration::from_nanos(dice.roll() % 50_000)),
            13..15 => thread::sleep(Duration::from_micros(dice.roll() % 500)),
            _ => thread::sleep(Duration::from_micros(dice.roll() % 5_000)),
        }
    }
    publisher.close();
    assert_eq!(join(readers), [10_000; 8]);
}

fn spin(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

#[test]
fn one_of_a_hundred_sleepers_is_forgotten() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let readers: Vec<_> = (0..100).map(|_| count(parked(&client).open().unwrap())).collect();
    daemon.wait_for_readers(100);
    for message in 0..200u64 {
        publisher.publish(&message.to_le_bytes()).unwrap();
        // Now and then everybody falls asleep, and the waker with them.
        thread::sleep(Duration::from_millis(if message % 50 == 49 { 100 } else { 2 }));
    }
    publisher.close();
    assert_eq!(join(readers), [200; 100]);
}

const ROLE: &str = "SHMCAST_PARK_ROLE";
const BEGIN: &str = "/publishing-begins";
const END: &str = "/publishing-ends";

/// What the publisher that is traced does.
#[test]
#[ignore = "plays a part in another test"]
fn play() {
    let Some(dir) = std::env::var_os(ROLE) else {
        eprintln!("SKIPPED play: started by other tests only");
        return;
    };
    let mut publisher = publisher(&Client::at(socket(Path::new(&dir))).unwrap());
    // Calls that a trace shows and that change nothing.
    assert!(!Path::new(BEGIN).exists());
    for message in 0..1000u64 {
        publisher.publish(&message.to_le_bytes()).unwrap();
        spin(Duration::from_micros(100));
    }
    assert!(!Path::new(END).exists());
}

#[test]
fn the_publisher_pays_for_sleepers() {
    let name = "the_publisher_pays_for_sleepers";
    let strace = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    if !strace.is_ok_and(|strace| strace.status.success()) {
        eprintln!("SKIPPED {name}: no strace here, or it may not trace");
        return;
    }
    if shmcast::Clock::of_this_host().kind() != shmcast::ClockKind::Counter {
        eprintln!("SKIPPED {name}: this machine's clock is the kernel's");
        return;
    }
    for sleepers in [0, 100] {
        let daemon = Daemon::start();
        let client = daemon.client();
        let readers: Vec<_> = (0..sleepers).map(|_| count(parked(&client).open().unwrap())).collect();
        daemon.wait_for_readers(sleepers);
        let traces = tempfile::tempdir().unwrap();
        let mut traced = Command::new("strace");
        // One file a thread, so that no line is torn by another thread's.
        traced.args(["-ff", "-e", "trace=all", "-o"]).arg(traces.path().join("trace"));
        traced.arg(std::env::current_exe().unwrap());
        traced.args(["play", "--exact", "--ignored", "--nocapture", "--test-threads=1", "-q"]);
        let traced = traced.env(ROLE, daemon.dir.path()).stdout(Stdio::null()).output().unwrap();
        assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stderr));
        let files = fs::read_dir(traces.path()).unwrap().map(|file| file.unwrap().path());
        let mut texts = files.map(|file| fs::read_to_string(file).unwrap());
        let trace = texts.find(|text| text.contains(BEGIN)).expect("the mark at the beginning");
        assert!(trace.contains(END), "the trace goes on to the end");
        let from_begin = trace.lines().skip_while(|line| !line.contains(BEGIN)).skip(1);
        let calls: Vec<_> = from_begin.take_while(|line| !line.contains(END)).collect();
        assert_eq!(calls, Vec::<&str>::new(), "calls while publishing to {sleepers} sleepers");
        assert_eq!(join(readers), vec![1000; sleepers]);
    }
}

#[test]
fn sleepers_of_a_daemon_that_was_killed_never_wake_again() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let (send, receive_from) = mpsc::channel();
    let readers: Vec<_> = (0..8)
        .map(|_| {
            let (mut subscriber, send) = (parked(&client).open().unwrap(), send.clone());
            thread::spawn(move || {
                while let Some(sequence) = receive(&mut subscriber) {
                    send.send(sequence).unwrap();
                }
                subscriber.is_registered()
            })
        })
        .collect();
    let mut publish_to_all = |why: &str| {
        publisher.publish(b"x").unwrap();
        let sequence = publisher.next_sequence() - 1;
        for _ in 0..8 {
            let got = receive_from.recv_timeout(PATIENCE);
            assert_eq!(got, Ok(sequence), "{why}");
        }
    };
    for round in 0..3 {
        publish_to_all("with its daemon");
        thread::sleep(Duration::from_millis(30));
        daemon.kill();
        publish_to_all("while it is away");
        daemon.restart();
        daemon.wait_for_readers(8);
        // Long enough for all to fall asleep, and for the waker to stop looking.
        thread::sleep(Duration::from_millis(100));
        publish_to_all("with its successor");
        // The successor has indeed been looking into the ring for them.
        assert!(daemon.cpu_time("shmcast-waker") > Duration::ZERO, "round {round}");
    }
    publisher.close();
    assert_eq!(join(readers), [Some(true); 8]);
}

#[test]
fn sleepers_of_a_strict_channel_miss_the_move_to_the_next_segment() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let open = || Publisher::builder("strict").client(&client).open().unwrap();
    let builder = Subscriber::builder("strict").client(&client).wait(Wait::Park).longest_nap(FOR_EVER);
    let readers: Vec<_> = (0..4)
        .map(|_| {
            let mut subscriber = builder.clone().open().unwrap();
            thread::spawn(move || {
                let (mut sequences, mut ends) = (Vec::new(), 0);
                while ends < 10 {
                    match receive(&mut subscriber) {
                        Some(sequence) => sequences.push(sequence),
                        None => ends += 1,
                    }
                }
                sequences
            })
        })
        .collect();
    for _ in 0..10 {
        let mut publisher = open();
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(20));
            publisher.publish(b"x").unwrap();
        }
        publisher.close();
    }
    assert_eq!(join(readers), vec![(1..=30).collect::<Vec<u64>>(); 4]);
}

#[test]
fn a_file_channel_with_nobody_to_wake_its_readers() {
    let dir = tempfile::tempdir().unwrap();
    let _publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
    let refused = Subscriber::builder("t").dir(dir.path()).wait(Wait::Park).open().unwrap_err();
    assert!(matches!(refused, ChannelError::NoWaker { .. }), "{refused:?}");
    assert!(refused.to_string().contains("shmcastd"), "{refused}");
}

#[test]
fn the_command_parks_where_it_cannot_and_not_where_it_can() {
    let daemon = Daemon::start();
    let mut publisher = publisher(&daemon.client());
    let shmcast = |arguments: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_shmcast"));
        command.args(arguments.split_whitespace()).env("SHMCAST_SOCKET", socket(daemon.dir.path()));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let subscriber = shmcast("sub t --wait park --count 2");
    daemon.wait_for_readers(1);
    for text in ["one", "two"] {
        thread::sleep(Duration::from_millis(20));
        publisher.publish(text.as_bytes()).unwrap();
    }
    let output = subscriber.wait_with_output().unwrap();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"one\ntwo\n"[..], Some(0)));

    let files = tempfile::tempdir().unwrap();
    let _publisher = Publisher::builder("t").dir(files.path()).capacity(64 << 10).open().unwrap();
    let refused = shmcast(&format!("sub t --wait park --dir {}", files.path().display()));
    let refused = refused.wait_with_output().unwrap();
    let says = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && says.contains("shmcastd"), "{says}");
}

/// A reader that speaks the protocol itself, to say what no library would.
struct Hostile {
    _control: OwnedFd,
    page: File,
    bell: UnixStream,
    far: UnixStream,
}

/// Byte of the page where a reader says that it sleeps.
const ASLEEP: u64 = 17 * 8;

impl Hostile {
    fn attach(dir: &Path) -> Self {
        let (bell, far) = UnixStream::pair().unwrap();
        let (control, reply, mut granted) = ask_to_park(dir, &[far.as_fd()]);
        assert_eq!(reply, Reply::Subscribed {});
        Self { _control: control, page: granted.pop().unwrap(), bell, far }
    }

    fn say(&self, word: u64) {
        self.page.write_all_at(&word.to_le_bytes(), ASLEEP).unwrap();
    }
}

fn ask_to_park(dir: &Path, descriptors: &[BorrowedFd<'_>]) -> (OwnedFd, Reply, Vec<File>) {
    let control = handoff::connect(&socket(dir)).unwrap();
    let mut buffer = vec![0; handoff::MAX_PACKET];
    let mut ask = |request: &Request, descriptors: &[BorrowedFd<'_>]| {
        handoff::send(&control, &encode(request), descriptors).unwrap();
        let packet = handoff::receive(&control, &mut buffer).unwrap();
        (decode::<Reply>(&buffer[..packet.length]).unwrap(), packet.descriptors)
    };
    ask(&Request::Hello { version: VERSION }, &[]);
    let (reply, granted) =
        ask(&Request::Subscribe { channel: "t".into(), resume: false, park: true }, descriptors);
    (control, reply, granted)
}

/// Each trick is played while an honest reader sleeps; after it, the honest one still gets what is published.
#[test]
fn hostile_sleepers_keep_the_waker_from_the_honest_ones() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let mut honest = parked(&client).open().unwrap();
    let (send, got) = mpsc::channel();
    let honest = thread::spawn(move || {
        while let Some(sequence) = receive(&mut honest) {
            send.send(sequence).unwrap();
        }
    });
    let mut still_fine = |trick: &str| {
        thread::sleep(Duration::from_millis(20));
        publisher.publish(b"x").unwrap();
        assert_eq!(got.recv_timeout(PATIENCE), Ok(publisher.next_sequence() - 1), "after: {trick}");
    };
    still_fine("nothing");

    let crowd: Vec<Hostile> = (0..20).map(|_| Hostile::attach(daemon.dir.path())).collect();
    for (word, trick) in [
        (u64::MAX, "asleep at the end of the world"),
        (1, "asleep where everything is overwritten"),
        ((1 << 63) | 1, "asleep at a position that no ring has"),
        (64 * 12_345 + 63, "asleep in the middle of nowhere"),
        (2, "asleep without saying so"),
    ] {
        crowd.iter().for_each(|hostile| hostile.say(word));
        still_fine(trick);
    }
    let mut dice = Dice(7);
    let toggling = Instant::now();
    while toggling.elapsed() < Duration::from_millis(500) {
        crowd.iter().for_each(|hostile| hostile.say(dice.roll()));
    }
    still_fine("toggling, which fills the bells");
    for hostile in &crowd {
        // The flags of the end that the daemon holds are ours as well: now writing to it would block.
        hostile.far.set_nonblocking(false).unwrap();
    }
    for nap in 0..2000 {
        crowd.iter().for_each(|hostile| hostile.say(u64::MAX - 63 + nap % 2 * 2));
        thread::sleep(Duration::from_micros(100));
    }
    still_fine("full bells that would block");
    let ringing = Instant::now();
    while ringing.elapsed() < Duration::from_millis(500) {
        for hostile in &crowd {
            let _ = std::io::Write::write(&mut &hostile.bell, &[0; 64]);
            hostile.bell.set_nonblocking(true).unwrap();
        }
    }
    still_fine("ringing without end");
    for hostile in &crowd[..10] {
        hostile.bell.shutdown(std::net::Shutdown::Both).unwrap();
    }
    for hostile in &crowd[10..] {
        hostile.far.shutdown(std::net::Shutdown::Both).unwrap();
    }
    still_fine("shut bells");
    crowd.iter().for_each(|hostile| hostile.say(0));
    still_fine("awake, with shut bells");
    drop(crowd);
    still_fine("all gone");

    let pipe = std::io::pipe().unwrap();
    let (one, other) = UnixStream::pair().unwrap();
    let nothing = File::open("/dev/null").unwrap();
    let wrong: [(&str, &[BorrowedFd<'_>]); 5] = [
        ("no bell", &[]),
        ("two bells", &[one.as_fd(), other.as_fd()]),
        ("a file for a bell", &[nothing.as_fd()]),
        ("a pipe for a bell", &[pipe.1.as_fd()]),
        ("four bells", &[one.as_fd(), one.as_fd(), one.as_fd(), one.as_fd()]),
    ];
    for (trick, descriptors) in wrong {
        let (_control, reply, granted) = ask_to_park(daemon.dir.path(), descriptors);
        assert!(matches!(reply, Reply::Refused { .. }) && granted.is_empty(), "{trick}: {reply:?}");
        still_fine(trick);
    }
    publisher.close();
    join(vec![honest]);
}

/// Blocking is what makes it free: with everybody awake, the waker's thread does not run at all.
#[test]
fn the_waker_polls_for_nobody() {
    let daemon = Daemon::start();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let mut subscriber = parked(&client).open().unwrap();
    publisher.publish(b"x").unwrap();
    assert_eq!(receive(&mut subscriber), Some(1));
    // Shut bells are readable for ever: minding them, it would never block again.
    let shut = Hostile::attach(daemon.dir.path());
    shut.bell.shutdown(std::net::Shutdown::Both).unwrap();
    // A nap that nobody ended: the reader must have said that it is awake all the same.
    assert_eq!(subscriber.recv_deadline(Instant::now() + Duration::from_millis(10)), Ok(None));
    // Nobody sleeps from here on: the reader does not come back.
    wait_for("rest", || {
        let before = daemon.cpu_time("shmcast-waker");
        thread::sleep(Duration::from_millis(300));
        daemon.cpu_time("shmcast-waker") == before
    });
    let sleeper = thread::spawn(move || receive(&mut subscriber));
    thread::sleep(Duration::from_millis(50));
    publisher.publish(b"y").unwrap();
    assert_eq!(join(vec![sleeper]), [Some(2)], "it is there again when somebody sleeps");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_future_dropped_half_way_takes_a_message_with_it() {
    let mut daemon = Daemon::start();
    let client = daemon.client();
    let mut subscriber = parked(&client).open().unwrap();
    let mut publisher = publisher(&client);
    let publishing = thread::spawn(move || {
        let mut dice = Dice(99);
        for message in 0..2000u64 {
            publisher.publish(&message.to_le_bytes()).unwrap();
            thread::sleep(Duration::from_micros(dice.roll() % 300));
        }
        publisher
    });
    let mut dice = Dice(3);
    let mut next = 1;
    let mut dropped = 0;
    runtime().block_on(async {
        while next <= 2000 {
            let patience = Duration::from_micros(dice.roll() % 1500);
            tokio::select! {
                biased;
                event = subscriber.recv_async() => match event.unwrap() {
                    Event::Message(m) => {
                        assert_eq!(m.sequence, next);
                        next += 1;
                    }
                    Event::NewEpoch { .. } => {}
                    other => panic!("{other:?}"),
                },
                () = tokio::time::sleep(patience) => dropped += 1,
            }
        }
    });
    assert!(dropped > 0, "no future was dropped half-way");
    let mut publisher = publishing.join().unwrap();

    // In another event loop, with the daemon gone, and with the next one.
    let mut receive_one = |publisher: &mut Publisher| {
        runtime().block_on(async {
            let sleeping = subscriber.recv_async();
            tokio::pin!(sleeping);
            let early = tokio::time::timeout(Duration::from_millis(30), &mut sleeping).await;
            assert!(early.is_err(), "nothing was published");
            publisher.publish(b"x").unwrap();
            let event = tokio::time::timeout(PATIENCE, sleeping).await.expect("it wakes").unwrap();
            assert!(matches!(event, Event::Message(m) if m.sequence == publisher.next_sequence() - 1));
        });
    };
    receive_one(&mut publisher);
    daemon.kill();
    receive_one(&mut publisher);
    daemon.restart();
    daemon.wait_for_readers(1);
    receive_one(&mut publisher);
    publisher.close();
    let last = runtime().block_on(async { subscriber.recv_async().await.map(|event| event == Event::End) });
    assert_eq!(last, Ok(true));
}

/// Works without a daemon as well: then it looks now and then.
#[test]
fn receiving_asynchronously_from_a_file_sleeps_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
    let mut subscriber = Subscriber::builder("t").dir(dir.path()).start(Start::Latest).open().unwrap();
    runtime().block_on(async {
        let (received, ()) = tokio::join!(
            async { subscriber.recv_async().await.map(|event| matches!(event, Event::Message(_))) },
            async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                publisher.publish(b"x").unwrap();
            },
        );
        assert_eq!(received, Ok(true));
    });
}
