//! Parked readers and the daemon that wakes them, as processes. No reader sleeps through a message, no publisher works for the wake-ups,
//! and no reader's tricks affect others.

mod futures;
mod hostile;

use shmcast::{ChannelError, Client, Event, Publisher, Subscriber, SubscriberBuilder, Wait};
use shmcast_testkit::daemon::{Daemon, channel};
use shmcast_testkit::process::{as_role, at_socket, my_role, my_socket};
use shmcast_testkit::{PATIENCE, skip, wait_until};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// A nap longer than any of these tests, so that a reader that is not woken makes the test fail.
const FOR_EVER: Duration = Duration::from_secs(600);

/// A daemon with the channels `t` and `strict`.
fn daemon() -> Daemon {
    Daemon::start(&(channel("t", "mode = \"takeover\"") + &channel("strict", "mode = \"strict\"")))
}

/// Waits until `expected` readers of `t` are attached.
fn wait_for_readers(daemon: &Daemon, expected: usize) {
    wait_until(&format!("{expected} readers"), || {
        let channel = Client::at(daemon.socket()).and_then(|client| client.channel("t"));
        channel.is_ok_and(|channel| channel.readers.len() == expected)
    });
}

/// CPU time of the waker's thread so far.
fn waking_time(daemon: &Daemon) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
    let of_task = |task: PathBuf| {
        let comm = fs::read_to_string(task.join("comm")).unwrap_or_default();
        let stat = fs::read_to_string(task.join("schedstat")).unwrap_or_default();
        let ns = stat.split_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
        if comm.trim() == "shmcast-waker" { Duration::from_nanos(ns) } else { Duration::ZERO }
    };
    tasks.map(|task| of_task(task.unwrap().path())).sum()
}

fn publisher(client: &Client) -> Publisher {
    Publisher::builder("t").client(client).open().unwrap()
}

fn parked(client: &Client) -> SubscriberBuilder {
    Subscriber::builder("t").client(client).wait(Wait::Park).longest_nap(FOR_EVER)
}

/// Returns the sequence of the next message. Skips other events, except a loss.
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

/// Receives to the end of the stream in a thread. Each message must follow the previous one. Returns the number of messages.
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

/// Waits for the results of threads, within a time limit. A reader that sleeps through the end would never return.
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

/// The naps are practically endless, so a single lost wake-up shows as a reader that never returns.
#[test]
fn a_wake_up_lost_between_the_last_look_and_the_sleep() {
    let daemon = daemon();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let readers: Vec<_> = (0..8).map(|_| count(parked(&client).open().unwrap())).collect();
    let mut rng = fastrand::Rng::with_seed(0x5eed);
    for message in 0..10_000u64 {
        publisher.publish(&message.to_le_bytes()).unwrap();
        match rng.u64(..16) {
            // Some pauses are zero, some are about as long as falling asleep takes, and some are long enough for the waker to pause longer.
            0..8 => {}
            8..13 => spin(Duration::from_nanos(rng.u64(..50_000))),
            13..15 => thread::sleep(Duration::from_micros(rng.u64(..500))),
            _ => thread::sleep(Duration::from_micros(rng.u64(..5_000))),
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
    let daemon = daemon();
    let client = daemon.client();
    let mut publisher = publisher(&client);
    let readers: Vec<_> = (0..100).map(|_| count(parked(&client).open().unwrap())).collect();
    wait_for_readers(&daemon, 100);
    for message in 0..200u64 {
        publisher.publish(&message.to_le_bytes()).unwrap();
        // Sometimes all readers fall asleep, and the waker blocks.
        thread::sleep(Duration::from_millis(if message % 50 == 49 { 100 } else { 2 }));
    }
    publisher.close();
    assert_eq!(join(readers), [200; 100]);
}

const BEGIN: &str = "/publishing-begins";
const END: &str = "/publishing-ends";

/// The role of the traced publisher.
#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(_) = my_role() else { return };
    let mut publisher = publisher(&Client::at(my_socket()).unwrap());
    // These calls only mark a place in the trace.
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
        skip(name, "no strace here, or it may not trace");
        return;
    }
    if shmcast::Clock::of_this_host().kind() != shmcast::ClockKind::Counter {
        skip(name, "this machine's clock is the kernel's");
        return;
    }
    for sleepers in [0, 100] {
        let daemon = daemon();
        let client = daemon.client();
        let readers: Vec<_> = (0..sleepers).map(|_| count(parked(&client).open().unwrap())).collect();
        wait_for_readers(&daemon, sleepers);
        let traces = tempfile::tempdir().unwrap();
        let mut traced = Command::new("strace");
        // Each thread gets a file, so that their lines do not mix.
        traced.args(["-ff", "-e", "trace=all", "-o"]).arg(traces.path().join("trace"));
        as_role(traced.arg(std::env::current_exe().unwrap()), "park", "publisher");
        let traced = at_socket(&mut traced, &daemon.socket()).output().unwrap();
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
    let mut daemon = daemon();
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
        wait_for_readers(&daemon, 8);
        // This pause is long enough for all readers to fall asleep, and for the waker's pauses to become longest.
        thread::sleep(Duration::from_millis(100));
        publish_to_all("with its successor");
        // The next daemon's waker has really checked the ring for these readers.
        assert!(waking_time(&daemon) > Duration::ZERO, "round {round}");
    }
    publisher.close();
    assert_eq!(join(readers), [Some(true); 8]);
}

#[test]
fn sleepers_of_a_strict_channel_miss_the_move_to_the_next_segment() {
    let daemon = daemon();
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
    let daemon = daemon();
    let mut publisher = publisher(&daemon.client());
    let shmcast = |arguments: &str| daemon.shmcast(arguments).spawn().unwrap();
    let subscriber = shmcast("sub t --wait park --count 2");
    wait_for_readers(&daemon, 1);
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
