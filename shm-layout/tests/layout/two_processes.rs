//! A writer in another process that dies at any instruction, and the readers and the successor that find its segment.
//!
//! The other process is this test program again. It is single-stepped through one task. After every instruction that changed the
//! segment, the segment is copied. The copy is the segment that a kill would leave at this instruction, or at any later one up
//! to the next change. It is read and taken over. At some of these instructions the process is then really killed, while a
//! reader is attached.

use crate::common::header;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use shmcast_layout::layout::header::{FRONTIER, State};
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::reader::{Copied, Poll, Reader};
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::{Access, Segment};
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{Process, role, scratch, skip};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{ChildStdout, Stdio};

/// Real kills for each task, spread over the instructions that change the segment and those right before.
const KILLS: usize = 24;
/// Long tasks get fewer kills: about this many instructions are stepped through for all kills of a task.
const KILL_STEPS: u64 = 300_000;

/// The task over which a process is killed, and the number of messages of 1000 bytes (one KiB each in the ring) before it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Task {
    name: &'static str,
    before: u64,
    act: Act,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    Publish(usize),
    Gap(u64),
    Session,
    Close,
    Take,
}

const NEW_CHUNK: &str = "publish_into_a_new_chunk";

const TASKS: &[Task] = &[
    Task { name: "publish_0", before: 1, act: Act::Publish(0) },
    Task { name: "publish_32", before: 1, act: Act::Publish(32) },
    Task { name: "publish_48", before: 1, act: Act::Publish(48) },
    Task { name: "publish_100", before: 1, act: Act::Publish(100) },
    Task { name: "publish_1000", before: 1, act: Act::Publish(1000) },
    // 63 KiB and four granules: 768 bytes are left before the end of the ring.
    Task { name: "publish_behind_a_pad", before: 63, act: Act::Publish(1000) },
    // 5 KiB, four granules and this record pass the first chunk of 8 KiB, which cleaning ahead has not.
    Task { name: NEW_CHUNK, before: 5, act: Act::Publish(3000) },
    Task { name: "publish_over_the_last_lap", before: 90, act: Act::Publish(1000) },
    Task { name: "gap", before: 3, act: Act::Gap(5) },
    Task { name: "gap_of_the_whole_index", before: 3, act: Act::Gap(1024) },
    Task { name: "session", before: 3, act: Act::Session },
    Task { name: "close", before: 3, act: Act::Close },
    Task { name: "take", before: 3, act: Act::Take },
    Task { name: "take_over_the_last_lap", before: 93, act: Act::Take },
];

pub(crate) fn payload(sequence: u64, length: usize) -> Vec<u8> {
    // Every eighth word is one that could be a commit, where the next records will be looked for.
    let forged = (sequence + 1) << 32 | 1 << 25;
    let word = |i: u64| if i % 8 == 6 { forged } else { sequence << 32 | i };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8) as u64).flat_map(|i| word(i).to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

fn publish(writer: &mut Writer, length: usize) {
    let sequence = writer.next_sequence();
    writer.publish(&payload(sequence, length), 9, false, sequence).unwrap();
}

/// The records that a reader saw.
#[derive(Debug, Clone, PartialEq)]
enum Seen {
    Message(u64, Vec<u8>),
    Control(ControlRecord),
}

impl Task {
    fn named(name: &str) -> Self {
        *TASKS.iter().find(|task| task.name == name).expect("a task of ours")
    }

    /// The records that a reader sees of the task, done at `sequence`.
    fn seen(self, sequence: u64) -> Seen {
        match self.act {
            Act::Publish(length) => Seen::Message(sequence, payload(sequence, length)),
            Act::Gap(count) => Seen::Control(ControlRecord::Gap { from: sequence, to: sequence + count - 1 }),
            Act::Session => {
                let word = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
                Seen::Control(ControlRecord::Session {
                    high: word(b"identity"),
                    low: word(b"10\0\0\0\0\0\0"),
                })
            }
            Act::Close => Seen::Control(ControlRecord::End),
            Act::Take => Seen::Control(ControlRecord::Epoch { epoch: 2 }),
        }
    }

    /// A segment as the process finds it.
    fn prepare(self, path: &Path) -> File {
        let file = File::options().read(true).write(true).create(true).truncate(true).open(path).unwrap();
        let segment = Segment::create(&file, header(64 << 10, None)).unwrap();
        let mut writer = segment.writer(1, 0).unwrap();
        for _ in 0..self.before {
            publish(&mut writer, 1000);
        }
        if self.act != Act::Take {
            drop(writer);
            segment.writer(2, 0).unwrap();
        }
        file
    }
}

/// The other process's part.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(task) = my_role() else { return skip("play", "started by other tests only") };
    let task = Task::named(&task);
    let file = File::options().read(true).write(true).open(my_dir().join(task.name)).unwrap();
    let segment = Segment::open(&file, Access::Write).unwrap();
    // This is a third writer. The second one prepared the ring and went without closing, as this one will.
    let writer = (task.act != Act::Take).then(|| {
        let mut writer = segment.writer(3, 0).unwrap();
        publish(&mut writer, 100);
        writer
    });
    let message = match (task.act, &writer) {
        (Act::Publish(length), Some(writer)) => payload(writer.next_sequence(), length),
        _ => Vec::new(),
    };
    if let Err(error) = ptrace::traceme() {
        println!("\nrefused {error}");
        return;
    }
    println!("\nthread {}", nix::unistd::gettid());
    raise(Signal::SIGSTOP).unwrap();
    let done = match (task.act, writer) {
        (Act::Take, _) => segment.writer(3, 0).unwrap(),
        (act, Some(mut writer)) => {
            let next = writer.next_sequence();
            match act {
                Act::Publish(_) => drop(writer.publish(&message, 9, false, next)),
                Act::Gap(count) => drop(writer.gap(next + count - 1, 0)),
                Act::Session => writer.session(*b"identity10", 0),
                Act::Close => writer.close(0),
                Act::Take => unreachable!("above"),
            }
            writer
        }
        (_, None) => unreachable!("only a successor starts without a writer"),
    };
    raise(Signal::SIGSTOP).unwrap();
    drop(done);
}

/// A process that is stopped before its task.
struct Stepped {
    child: Process,
    thread: Pid,
    /// The child writes here until it dies.
    _stdout: BufReader<ChildStdout>,
}

impl Stepped {
    /// The segment lies in `dir` under the task's name. `Err` gives the reason why this machine does not let it be stepped.
    fn start(task: Task, dir: &Path) -> Result<Self, String> {
        let mut command = role!(task.name);
        let mut child =
            Process::start(in_dir(&mut command, dir).stdout(Stdio::piped()).stderr(Stdio::null()));
        let mut stdout = BufReader::new(child.child().stdout.take().unwrap());
        let mut line = String::new();
        let thread = loop {
            line.clear();
            if stdout.read_line(&mut line).unwrap() == 0 {
                return Err(format!("the process ended: {}", child.wait()));
            }
            if let Some(why) = line.strip_prefix("refused ") {
                return Err(format!("no tracing here: {}", why.trim()));
            }
            if let Some(thread) = line.strip_prefix("thread ") {
                break Pid::from_raw(thread.trim().parse().unwrap());
            }
        };
        let stepped = Self { child, thread, _stdout: stdout };
        assert_eq!(stepped.stopped_by(), Some(Signal::SIGSTOP));
        Ok(stepped)
    }

    fn stopped_by(&self) -> Option<Signal> {
        match waitpid(self.thread, Some(WaitPidFlag::__WALL)).unwrap() {
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        }
    }

    /// Executes one instruction; false once the task is done.
    fn step(&self) -> bool {
        ptrace::step(self.thread, None).unwrap();
        self.stopped_by() == Some(Signal::SIGTRAP)
    }

    fn kill(mut self) {
        self.end();
        assert!(!self.child.wait().success());
    }

    fn end(&mut self) {
        self.child.signal(Signal::SIGKILL);
        // The kernel keeps a traced thread until its tracer has asked.
        let _ = waitpid(self.thread, Some(WaitPidFlag::__WALL));
    }
}

impl Drop for Stepped {
    fn drop(&mut self) {
        if self.child.is_alive() {
            self.end();
        }
    }
}

/// All records that a reader finds now, without the epochs of the preparation.
fn drain(reader: &mut Reader) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut out = [0; 8192];
    loop {
        match reader.poll(&mut out) {
            Poll::Message(Copied { length, sequence, tag, time, key }) => {
                assert_eq!((tag, time, key), (9, sequence, false));
                seen.push(Seen::Message(sequence, out[..length].to_vec()));
            }
            Poll::Control(control) => seen.push(Seen::Control(control)),
            Poll::Empty => return seen,
            other => panic!("{other:?} after {seen:?}"),
        }
    }
}

/// Reads and takes over what a dead process left. `reader` was attached before; returns whether the task had happened.
fn survive(file: &File, reader: &mut Reader, task: Task) -> bool {
    let start = reader.place();
    let wanted = task.seen(start.sequence);
    let seen = drain(reader);
    let happened = match &seen[..] {
        [] => false,
        [one] if *one == wanted => true,
        other => panic!("{}: {other:?} where {wanted:?} or nothing was due", task.name),
    };
    let next = reader.place().sequence;
    let segment = Segment::open(file, Access::Write).unwrap();
    let mut writer = segment.writer(4, 0).unwrap();
    assert_eq!(writer.next_sequence(), next, "{}: the successor goes on where readers are", task.name);
    let epoch = writer.epoch();
    assert_eq!(segment.state(), Some((epoch, State::Active)));
    let mut wanted = vec![Seen::Control(ControlRecord::Epoch { epoch })];
    for length in [0, 100, 2000] {
        wanted.push(Seen::Message(writer.next_sequence(), payload(writer.next_sequence(), length)));
        publish(&mut writer, length);
    }
    assert_eq!(drain(reader), wanted, "{}: after the takeover", task.name);
    // A reader that comes later finds the same.
    let locator = segment.locator();
    assert_eq!(locator.tail().unwrap(), reader.place());
    let late = drain(&mut segment.reader(locator.oldest().unwrap()));
    let both = [seen, wanted].concat();
    assert_eq!(late[late.len() - both.len()..], both);
    assert_whole(&late);
    // No record that the dead writer left half written appears in the next two laps.
    for _ in 0..130 {
        let sequence = writer.next_sequence();
        publish(&mut writer, 1000);
        assert_eq!(drain(reader), [Seen::Message(sequence, payload(sequence, 1000))]);
    }
    happened
}

/// Messages and gaps follow each other without a hole, and each payload is its own.
fn assert_whole(seen: &[Seen]) {
    let mut due = None;
    for one in seen {
        let (from, next) = match one {
            Seen::Message(sequence, bytes) => {
                assert_eq!(*bytes, payload(*sequence, bytes.len()), "torn");
                (*sequence, sequence + 1)
            }
            Seen::Control(ControlRecord::Gap { from, to }) => (*from, to + 1),
            Seen::Control(_) => continue,
        };
        assert!(due.is_none_or(|due| due == from), "{from} where {due:?} was due");
        due = Some(next);
    }
}

/// The place of a reader that has read every record before the task.
fn tail_before(file: &File, task: Task) -> Place {
    let Place { position, sequence } = Segment::open(file, Access::Read).unwrap().locator().tail().unwrap();
    // The process itself begins with an epoch record and a message of 100 bytes, unless taking over is its task.
    let (bytes, messages) = if task.act == Act::Take { (0, 0) } else { (64 + 128, 1) };
    Place { position: position + bytes, sequence: sequence + messages }
}

fn run(task: Task, dir: &Path) -> Result<(), String> {
    let path = dir.join(task.name);
    let file = task.prepare(&path);
    let start = tail_before(&file, task);
    // The first run finds the instructions that change the segment.
    let stepped = Stepped::start(task, dir)?;
    let mut now = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut now, 0).unwrap();
    let (mut states, mut changes, mut steps) = (vec![now.clone()], Vec::new(), 0u64);
    while stepped.step() {
        steps += 1;
        file.read_exact_at(&mut now, 0).unwrap();
        if states.last() != Some(&now) {
            states.push(now.clone());
            changes.push(steps);
        }
    }
    stepped.kill();
    let frontier = |state: &[u8]| state[FRONTIER * 8..FRONTIER * 8 + 8].to_vec();
    if task.name == NEW_CHUNK {
        assert_ne!(frontier(&states[0]), frontier(&now), "the task is to move the frontier");
    }
    let copy = dir.join("copy");
    let mut happened = false;
    for state in &states {
        std::fs::write(&copy, state).unwrap();
        let file = File::options().read(true).write(true).open(&copy).unwrap();
        let reading = Segment::open(&file, Access::Read).unwrap();
        let does = survive(&file, &mut reading.reader(start), task);
        assert!(does || !happened, "{}: happened, and then had not", task.name);
        happened = does;
    }
    assert!(happened, "{}: did not happen at all", task.name);
    // The next runs kill the process.
    let mut points: Vec<u64> = changes.iter().flat_map(|n| [n - 1, *n]).collect();
    points.dedup();
    let stride = points.len().div_ceil(KILLS.min((KILL_STEPS / steps) as usize).max(4));
    let mut kills = 0;
    for n in points.iter().skip(stride / 2).step_by(stride) {
        let file = task.prepare(&path);
        let reading = Segment::open(&file, Access::Read).unwrap();
        let stepped = Stepped::start(task, dir)?;
        let mut reader = reading.reader(start);
        let mut out = [0; 8192];
        for step in 0..*n {
            assert!(stepped.step(), "{}: fewer instructions than before", task.name);
            // The reader polls all the time, and sees nothing before a record is there.
            if step % 8 == 0 && reader.place() == start && reader.poll(&mut out) != Poll::Empty {
                reader.jump(start);
            }
        }
        reader.jump(start);
        stepped.kill();
        survive(&file, &mut reader, task);
        kills += 1;
    }
    println!(
        "{}: {steps} instructions, {} states, {kills} kills: 0 torn, lost or twice",
        task.name,
        states.len()
    );
    Ok(())
}

fn all(tasks: impl Iterator<Item = Task>, test: &str) {
    let dir = scratch();
    for task in tasks {
        if let Err(why) = run(task, dir.path()) {
            return skip(test, why);
        }
    }
}

#[test]
fn killed_while_publishing() {
    let tasks = TASKS.iter().copied().filter(|task| matches!(task.act, Act::Publish(_)));
    all(tasks, "killed_while_publishing");
}

#[test]
fn killed_while_saying_something_else() {
    let others = |task: &Task| !matches!(task.act, Act::Publish(_) | Act::Take);
    all(TASKS.iter().copied().filter(others), "killed_while_saying_something_else");
}

#[test]
fn killed_while_taking_over() {
    let tasks = TASKS.iter().copied().filter(|task| task.act == Act::Take);
    all(tasks, "killed_while_taking_over");
}
