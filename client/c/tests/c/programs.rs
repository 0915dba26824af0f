//! Programs in C that use the library as it was built: each call, and traffic in both directions.

use crate::support::{C, CPP, SANITIZERS, command, has, has_sanitizers, number, pattern, program, run};
use shmcast::{Event, Mark, Preparation, Publisher, Start, Subscriber};
use shmcast_testkit::{PATIENCE, Process, scratch};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::ChildStdout;
use std::time::Duration;

const MESSAGES: u64 = 4_000;

#[test]
fn each_call_does_what_the_header_says() {
    const NAME: &str = "each_call_does_what_the_header_says";
    if !has(NAME, C[0]) {
        return;
    }
    for source in ["tests/c/calls.c", "tests/c/choices.c", "tests/c/select.c"] {
        let channels = scratch();
        let plain = program(C, &[], source);
        run(&mut command(&plain, [channels.path()]));
        if has(NAME, "valgrind") {
            let channels = scratch();
            let words = ["-q", "--error-exitcode=9", "--leak-check=full", plain.to_str().unwrap()];
            run(command(Path::new("valgrind"), words).arg(channels.path()));
        }
        if has_sanitizers(NAME, C) {
            let channels = scratch();
            let checked = program(C, SANITIZERS, source);
            run(&mut command(&checked, [channels.path()]));
        }
    }
}

#[test]
fn cpp_does_what_its_header_says() {
    const NAME: &str = "cpp_does_what_its_header_says";
    if !has(NAME, CPP[0]) {
        return;
    }
    let channels = scratch();
    run(&mut command(&program(CPP, &[], "../cpp/tests/calls.cpp"), [channels.path()]));
    let newer: Vec<&str> =
        CPP.iter().map(|word| if *word == "-std=c++17" { "-std=c++20" } else { *word }).collect();
    let sanitizers = if has_sanitizers(NAME, CPP) { SANITIZERS } else { &[] };
    let channels = scratch();
    let checked = program(&newer, sanitizers, "../cpp/tests/calls.cpp");
    run(&mut command(&checked, [channels.path()]));
}

/// Programs without exceptions can use the whole header, and a message of a batch costs no call.
#[test]
fn cpp_needs_no_exceptions_and_a_batch_no_call_a_message() {
    const NAME: &str = "cpp_needs_no_exceptions_and_a_batch_no_call_a_message";
    if !has(NAME, CPP[0]) {
        return;
    }
    let channels = scratch();
    let plain = program(CPP, &["-fno-exceptions", "-fno-rtti"], "../cpp/tests/plain.cpp");
    run(&mut command(&plain, [channels.path()]));
    if has(NAME, "objdump") {
        let words = ["--disassemble=sum_of_batch", "--no-show-raw-insn"];
        let code = run(std::process::Command::new("objdump").args(words).arg(&plain));
        let calls: Vec<&str> = code.lines().filter(|line| line.contains("call ")).collect();
        let is_of_library = |call: &&str| call.contains("shmcast_recv_batch");
        let (batches, others): (Vec<&str>, Vec<&str>) = calls.iter().partition(|call| is_of_library(call));
        assert!(batches.len() == 1, "{code}");
        // All other calls clear an earlier failure, or store one.
        assert!(others.iter().all(|call| call.contains("category") || call.contains("returning")), "{code}");
    }
}

/// A receiver that has attached, or waits for its channel.
struct Receiver {
    process: Process,
    said: BufReader<ChildStdout>,
}

impl Receiver {
    fn start(roles: &Path, how: &str, dir: &Path) -> Self {
        let place = format!("dir:{}", dir.display());
        let mut process = Process::start(&mut command(roles, [how, &place, "t"]));
        let said = BufReader::new(process.child().stdout.take().unwrap());
        Self { process, said }
    }

    fn wait_until_attached(&mut self) {
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "attached\n");
    }

    /// Returns the program's sums, which must be those of this many messages.
    fn end(mut self, published: u64) -> String {
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert!(self.process.wait().success(), "{said}");
        assert_eq!(number(&said, "received") + number(&said, "missed"), published, "{said}");
        assert_eq!((number(&said, "wrong"), number(&said, "disorder")), (0, 0), "{said}");
        said
    }
}

const WAYS: [&str; 3] = ["recv", "batch", "into"];

fn publisher(dir: &Path) -> Publisher {
    let preparation = Preparation { prefault: true, ..Preparation::NONE };
    Publisher::builder("t").dir(dir).capacity(1 << 20).prepare(preparation).open().unwrap()
}

#[test]
fn what_rust_publishes_c_receives() {
    if !has("what_rust_publishes_c_receives", C[0]) {
        return;
    }
    let channels = scratch();
    let roles = program(C, &[], "tests/c/roles.c");
    let mut publisher = publisher(channels.path());
    let mut receivers = WAYS.map(|how| Receiver::start(&roles, how, channels.path()));
    receivers.iter_mut().for_each(Receiver::wait_until_attached);
    for sequence in 1..=MESSAGES {
        let mark = Mark { tag: sequence as u16, key: sequence.is_multiple_of(100) };
        assert_eq!(publisher.publish_with(&pattern(sequence), mark).unwrap(), sequence);
    }
    publisher.close();
    let received: u64 =
        receivers.into_iter().map(|receiver| number(&receiver.end(MESSAGES), "received")).sum();
    assert!(received > 0, "somebody got something");
}

#[test]
fn what_c_publishes_rust_and_c_receive() {
    if !has("what_c_publishes_rust_and_c_receive", C[0]) {
        return;
    }
    let channels = scratch();
    let roles = program(C, &[], "tests/c/roles.c");
    let receivers = WAYS.map(|how| Receiver::start(&roles, how, channels.path()));
    let place = format!("dir:{}", channels.path().display());
    let writer = Process::start(&mut command(&roles, ["publish", &place, "t", &MESSAGES.to_string()]));
    let builder = Subscriber::builder("t").dir(channels.path()).start(Start::Sequence(1));
    let mut subscriber = builder.wait_for_channel(PATIENCE).open().unwrap();
    let (mut received, mut missed) = (0, 0);
    loop {
        match subscriber.recv().unwrap() {
            Event::Message(m) => {
                assert!(m.payload == pattern(m.sequence), "message {}", m.sequence);
                assert_eq!((m.tag, m.key), (m.sequence as u16, m.sequence.is_multiple_of(100)));
                received += 1;
            }
            Event::Lapped(lapped) => missed += lapped.missed,
            Event::End => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received + missed, MESSAGES);
    writer.end();
    receivers.into_iter().for_each(|receiver| drop(receiver.end(MESSAGES)));
}

#[test]
fn a_publisher_in_c_that_is_killed_leaves_whole_messages() {
    if !has("a_publisher_in_c_that_is_killed_leaves_whole_messages", C[0]) {
        return;
    }
    let channels = scratch();
    let roles = program(C, &[], "tests/c/roles.c");
    let place = format!("dir:{}", channels.path().display());
    let mut receivers = WAYS.map(|how| Receiver::start(&roles, how, channels.path()));
    for death in 0..8 {
        let victim = Process::start(&mut command(&roles, ["publish", &place, "t", "0"]));
        if death == 0 {
            receivers.iter_mut().for_each(Receiver::wait_until_attached);
        }
        std::thread::sleep(Duration::from_millis(20 + 7 * death));
        victim.kill();
    }
    let last = publisher(channels.path());
    let (published, epoch) = (last.next_sequence() - 1, last.epoch());
    assert!(published > 0 && epoch > 1, "{published} messages, epoch {epoch}");
    last.close();
    receivers.into_iter().for_each(|receiver| {
        let said = receiver.end(published);
        assert!((1..epoch).contains(&number(&said, "epochs")), "{said}");
    });
}

#[test]
fn a_program_in_c_chooses_the_clock() {
    const NAME: &str = "a_program_in_c_chooses_the_clock";
    if !has(NAME, C[0]) {
        return;
    }
    let (build, channels) = (scratch(), scratch());
    let source = build.path().join("clock.c");
    std::fs::write(
        &source,
        "#include <shmcast.h>\n\
         int main(int argc, char **argv) {\n\
             shmcast_publish_options options = SHMCAST_PUBLISH_OPTIONS;\n\
             options.dir = argv[argc - 1], options.capacity = 1 << 16, options.flags = SHMCAST_MONOTONIC;\n\
             shmcast_publisher *publisher;\n\
             if (shmcast_publisher_open(\"t\", &options, &publisher) < 0) return 1;\n\
             return shmcast_publisher_close(publisher);\n\
         }\n",
    )
    .unwrap();
    let program = build.path().join("clock");
    crate::support::compile(C, &[], &source, &program);
    run(&mut command(&program, [channels.path()]));
    let subscriber = Subscriber::builder("t").dir(channels.path()).open().unwrap();
    assert_eq!(subscriber.clock().kind(), shmcast::ClockKind::Monotonic);
}
