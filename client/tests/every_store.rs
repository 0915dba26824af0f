//! A publisher that dies at every single store of publishing, and of taking over.
//!
//! Another process is single-stepped through the code. Whenever an instruction has changed the segment, the segment is
//! copied: the copy is exactly what a kill at this instruction leaves. Each copy is read, taken over, published into
//! and read again; what was published before must be there, whole, in order and once, whatever the store.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod support;

use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use shmcast::{Event, Mark, Preparation, Publisher, Start, Subscriber};
use shmcast_layout::segment::{Access, Segment};
use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use support::{Process, SMALL, process, publisher, role, role_dir, scratch, skip, subscriber, wait_for};

/// What a reader saw, without times.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Message(u64, Mark, Vec<u8>),
    Gap(u64, u64),
    Session([u8; 10]),
    Epoch(u64),
    End,
}

/// Messages of 1 KiB published beforehand, so that the steps meet the end of the small ring.
const BEFORE: u64 = 60;
/// The first sequence that readers ask for.
const FIRST: u64 = BEFORE - 1;

fn payload(sequence: u64, length: usize) -> Vec<u8> {
    (0..length).map(|at| (sequence as usize * 7 + at * 31 + 1) as u8).collect()
}

/// One thing that a publisher does.
#[derive(Debug, Clone, Copy)]
enum Act {
    /// Publishes this many bytes, with this key flag.
    Publish(usize, bool),
    /// Claims this many bytes and commits that many.
    Claim(usize, usize),
    Gap(u64),
    Session,
    Close,
}

/// Every size class, a key, an aborted claim, the pad at the end of the ring, and all control records.
const ACTS: [Act; 15] = [
    Act::Publish(0, false),
    Act::Publish(40, false),
    Act::Publish(48, true),
    Act::Publish(49, false),
    Act::Publish(100, false),
    Act::Claim(1000, 200),
    Act::Session,
    Act::Publish(1000, false),
    Act::Publish(1000, true),
    Act::Gap(30),
    Act::Publish(700, false),
    Act::Publish(900, false), // does not fit before the end of the ring
    Act::Publish(1, false),
    Act::Publish(3, false),
    Act::Close,
];

/// Does it with the payload that [`expected`] says; `None` when the publisher is gone.
fn play_act(mut publisher: Publisher, (act, payload): (Act, &[u8])) -> Option<Publisher> {
    match act {
        Act::Publish(_, key) => {
            publisher.publish_with(payload, Mark { tag: 5, key }).unwrap();
        }
        Act::Claim(claimed, length) => {
            publisher.claim(claimed).unwrap().abort();
            let mut claim = publisher.claim(claimed).unwrap();
            claim[..length].copy_from_slice(payload);
            claim.commit(length);
        }
        Act::Gap(count) => publisher.gap(publisher.next_sequence() + count - 1),
        Act::Session => publisher.session(*b"0123456789"),
        Act::Close => {
            publisher.close();
            return None;
        }
    }
    Some(publisher)
}

/// What a reader that starts at [`FIRST`] sees of it all.
fn expected() -> Vec<Seen> {
    let mut next = FIRST;
    let mut seen = Vec::new();
    let message = |next: &mut u64, tag, key, length| {
        let message = Seen::Message(*next, Mark { tag, key }, payload(*next, length));
        *next += 1;
        message
    };
    while next <= BEFORE {
        seen.push(message(&mut next, 0, false, 1000));
    }
    for act in ACTS {
        seen.push(match act {
            Act::Publish(length, key) => message(&mut next, 5, key, length),
            Act::Claim(_, length) => message(&mut next, 0, false, length),
            Act::Gap(count) => {
                next += count;
                Seen::Gap(next - count, next - 1)
            }
            Act::Session => Seen::Session(*b"0123456789"),
            Act::Close => Seen::End,
        });
    }
    seen
}

fn prepared(dir: &Path) -> Publisher {
    let builder = publisher(dir).capacity(SMALL).prepare(Preparation::NONE);
    let mut publisher = builder.open().unwrap();
    while publisher.next_sequence() <= BEFORE {
        publisher.publish(&payload(publisher.next_sequence(), 1000)).unwrap();
    }
    publisher
}

/// The roles of other processes, which the tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = role() else { return skip("play", "started by other tests only") };
    let dir = role_dir();
    let stop_here = || {
        let (unfinished, finished) = (dir.join("thread.new"), dir.join("thread"));
        fs::write(&unfinished, nix::unistd::gettid().to_string()).unwrap();
        ptrace::traceme().unwrap();
        fs::rename(unfinished, finished).unwrap();
        raise(Signal::SIGSTOP).unwrap();
    };
    match role.as_str() {
        "publisher" => {
            let publisher = prepared(&dir);
            // Beforehand, because each instruction from here on is a step.
            let payloads: Vec<Vec<u8>> = expected()
                .into_iter()
                .skip((BEFORE - FIRST + 1) as usize)
                .map(|seen| if let Seen::Message(_, _, payload) = seen { payload } else { Vec::new() })
                .collect();
            stop_here();
            ACTS.into_iter().zip(payloads.iter().map(Vec::as_slice)).try_fold(publisher, play_act);
        }
        "successor" => {
            // What `PublisherBuilder::open` does to a segment, without the rest.
            let file = fs::File::options().read(true).write(true).open(dir.join("t/segment")).unwrap();
            let segment = Segment::open(&file, Access::Write).unwrap();
            stop_here();
            segment.writer(std::process::id(), 0).unwrap();
        }
        other => panic!("no such role: {other}"),
    }
    raise(Signal::SIGSTOP).unwrap();
}

/// Steps a process in `role` through what it does; hands each state of the segment to `each`.
fn step_through(role: &str, dir: &Path, mut each: impl FnMut(&[u8])) -> u64 {
    let child = Process::start(process(role, dir));
    let thread_file = dir.join("thread");
    wait_for("stepped thread", || thread_file.exists().then_some(()));
    let thread = Pid::from_raw(fs::read_to_string(&thread_file).unwrap().parse().unwrap());
    let stopped_by = |signal: Signal| {
        let status = waitpid(thread, Some(WaitPidFlag::__WALL)).unwrap();
        matches!(status, WaitStatus::Stopped(_, by) if by == signal)
    };
    assert!(stopped_by(Signal::SIGSTOP), "the process stops before its part");
    let segment = dir.join("t/segment");
    let mut state = fs::read(&segment).unwrap();
    each(&state);
    let mut steps = 0;
    loop {
        ptrace::step(thread, None).unwrap();
        if !stopped_by(Signal::SIGTRAP) {
            break;
        }
        steps += 1;
        let now = fs::read(&segment).unwrap();
        if now != state {
            state = now;
            each(&state);
        }
    }
    child.signal(Signal::SIGKILL);
    let _ = waitpid(thread, Some(WaitPidFlag::__WALL)); // the kernel keeps a traced thread until its tracer has asked
    drop(child);
    fs::remove_file(thread_file).unwrap();
    steps
}

fn see(subscriber: &mut Subscriber) -> Vec<Seen> {
    let mut seen = Vec::new();
    while let Some(event) = subscriber.try_recv().unwrap() {
        seen.push(match event {
            Event::Message(m) => {
                Seen::Message(m.sequence, Mark { tag: m.tag, key: m.key }, m.payload.to_vec())
            }
            Event::Gap { from, to } => Seen::Gap(from, to),
            Event::NewSession { session } => Seen::Session(session),
            Event::NewEpoch { epoch } => Seen::Epoch(epoch),
            Event::End => Seen::End,
            Event::Lapped(lapped) => panic!("{lapped:?}"),
        });
    }
    seen
}

fn next_after(seen: &[Seen]) -> u64 {
    let last = seen.iter().rev().find_map(|seen| match seen {
        Seen::Message(sequence, ..) => Some(*sequence),
        Seen::Gap(_, to) => Some(*to),
        _ => None,
    });
    last.expect("the messages from before") + 1
}

/// Reads, takes over, and reads a segment as a dead publisher left it; returns what was there before the takeover.
/// Goes on twice round the ring if `long`.
fn survive(state: &[u8], long: bool) -> Vec<Seen> {
    let dir = scratch();
    fs::create_dir(dir.path().join("t")).unwrap();
    fs::write(dir.path().join("t/segment"), state).unwrap();
    let reader = || subscriber(dir.path()).page(false).prepare(Preparation::NONE);
    let mut attached = reader().start(Start::Sequence(FIRST)).open().unwrap();
    let before = see(&mut attached);
    let next = next_after(&before);
    let mut successor = publisher(dir.path()).prepare(Preparation::NONE).open().unwrap();
    assert_eq!(successor.next_sequence(), next, "the successor goes on where readers are");
    let epoch = successor.epoch();
    let mut wanted = vec![Seen::Epoch(epoch)];
    for sequence in next..next + 3 {
        successor.publish(&payload(sequence, 300)).unwrap();
        wanted.push(Seen::Message(sequence, Mark::default(), payload(sequence, 300)));
    }
    assert_eq!(see(&mut attached), wanted, "after the takeover");
    // Who comes later sees the same stream.
    let mut late = reader().start(Start::Sequence(FIRST)).open().unwrap();
    assert_eq!(see(&mut late), [before.clone(), wanted].concat());
    for sequence in FIRST..successor.next_sequence() {
        late.seek(sequence).unwrap();
        assert!(late.next_sequence() <= sequence);
    }
    let lagging = reader().start(Start::Latest).open().unwrap();
    assert_eq!(lagging.next_sequence(), next + 3);
    // Nothing that the dead left behind ever comes to light.
    for sequence in next + 3..next + 3 + if long { 2 * SMALL / 1024 } else { 0 } {
        successor.publish(&payload(sequence, 1000)).unwrap();
        let wanted = Seen::Message(sequence, Mark::default(), payload(sequence, 1000));
        assert_eq!(see(&mut attached), [wanted]);
    }
    before
}

/// Whether this machine lets a process be stepped.
fn can_step(name: &str) -> bool {
    let traceable = std::process::Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    let allowed = match fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) => scope.trim() != "3",
        Err(_) => true,
    };
    let refused = traceable.is_ok_and(|output| !output.status.success());
    if refused || !allowed {
        skip(name, "this machine lets nobody trace a process");
    }
    allowed && !refused
}

/// The segment after each store of publishing: what a kill there leaves. Stepped through once for all tests.
fn dead_publishers() -> &'static [Vec<u8>] {
    static STATES: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
    STATES.get_or_init(|| {
        let dir = scratch();
        let mut states = Vec::new();
        let steps = step_through("publisher", dir.path(), |state| states.push(state.to_vec()));
        eprintln!("publishing: {steps} instructions, {} states of the segment", states.len());
        states
    })
}

#[test]
fn killed_at_every_store_of_publishing() {
    if !can_step("killed_at_every_store_of_publishing") {
        return;
    }
    let expected = expected();
    let mut told = (BEFORE - FIRST + 1) as usize;
    for (at, state) in dead_publishers().iter().enumerate() {
        let seen = survive(state, at % 16 == 0);
        assert_eq!(seen, expected[..seen.len()], "state {at}");
        assert!((told..=told + 1).contains(&seen.len()), "state {at}: one event a commit");
        told = seen.len();
    }
    assert_eq!(told, expected.len(), "everything was published in the end");
    assert!(dead_publishers().len() > 300);
}

#[test]
fn killed_at_every_store_of_taking_over() {
    if !can_step("killed_at_every_store_of_taking_over") {
        return;
    }
    let expected = expected();
    let (mut states, mut steps) = (0, 0);
    // Some of the states in which publishers died: taking over differs by what must be repaired.
    for left in dead_publishers().iter().step_by(dead_publishers().len() / 6) {
        let dir = scratch();
        fs::create_dir(dir.path().join("t")).unwrap();
        fs::write(dir.path().join("t/segment"), left).unwrap();
        let known = survive(left, true);
        let mut has_begun = false;
        steps += step_through("successor", dir.path(), |state| {
            let seen = survive(state, states % 16 == 0);
            let (old, new) = seen.split_at(known.len());
            assert_eq!(old, &expected[..known.len()]);
            match new {
                [] => assert!(!has_begun, "the epoch was taken back"),
                [Seen::Epoch(2)] => has_begun = true,
                other => panic!("{other:?}"),
            }
            states += 1;
        });
        assert!(has_begun);
    }
    eprintln!("taking over: {steps} instructions, {states} states of the segment");
    assert!(states > 300, "{states} states");
}
