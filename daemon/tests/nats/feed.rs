//! A channel from one host to another: a publisher, the two bridges as processes, and a reader that compares the messages.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast::{Event, Mark, Publisher, Start, Subscriber};
use shmcast_testkit::command::{Host, interrupt, text};
use shmcast_testkit::{PATIENCE, Process, REST};
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest message, in bytes.
pub(crate) const LONGEST: usize = 1 << 20;

/// The number of messages after which a publisher checks whether it must wait.
pub(crate) const LOOK: u64 = 10_000;

/// The sizes of the messages.
#[derive(Clone, Copy)]
pub(crate) enum Sizes {
    /// Most messages are short, one in 1000 has some KiB, and one in 50 000 up to a MiB. A million messages have 0.1 GB.
    Short,
    /// One message in 25 has any size up to a MiB, with equally many of each order of magnitude. One in 25 000 has a whole MiB. A million
    /// messages have 3 GB.
    Wide,
}

impl Sizes {
    fn of(self, sequence: u64, rng: &mut fastrand::Rng) -> usize {
        match self {
            Sizes::Short if sequence % 50_000 == 7 => rng.usize(LONGEST / 2..=LONGEST),
            Sizes::Short if sequence % 1_000 == 3 => rng.usize(..100_000),
            Sizes::Wide if sequence % 25_000 == 7 => LONGEST,
            Sizes::Wide if sequence % 25 == 3 => (LONGEST as f64).powf(rng.f64()) as usize,
            Sizes::Short | Sizes::Wide => rng.usize(..60),
        }
    }
}

/// The content of each message, which is the same on every host.
pub(crate) struct Content {
    noise: Vec<u8>,
    sizes: Sizes,
}

impl Content {
    pub(crate) fn new(sizes: Sizes) -> Content {
        let mut noise = vec![0; 2 * LONGEST];
        fastrand::Rng::with_seed(21).fill(&mut noise);
        Content { noise, sizes }
    }

    /// The bytes and marks of a message.
    pub(crate) fn of(&self, sequence: u64) -> (&[u8], Mark) {
        let mut rng = fastrand::Rng::with_seed(sequence);
        let size = self.sizes.of(sequence, &mut rng);
        let at = rng.usize(..LONGEST);
        (
            &self.noise[at..at + size],
            Mark { tag: (sequence % 1_000) as u16, key: sequence.is_multiple_of(64) },
        )
    }
}

/// A channel on its way from the host `near` to the host `far`.
pub(crate) struct Feed {
    pub(crate) near: Host,
    pub(crate) far: Host,
    sizes: Sizes,
    messages: u64,
    /// The sequence that is due at the far end. The reader has compared all earlier messages.
    pub(crate) seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// The pace of a publisher.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) messages: u64,
    /// The limit for messages that are published and not yet compared.
    pub(crate) ahead: u64,
    /// The pause after each 100 messages.
    pub(crate) pause: Duration,
    pub(crate) capacity: u64,
}

impl Feed {
    /// Publishes short messages, as fast as the far end follows and `pace` permits. The first message comes immediately.
    pub(crate) fn publish(pace: Pace) -> Feed {
        Feed::publish_sized(pace, Sizes::Short)
    }

    /// Does the same as [`publish`](Self::publish), with messages of these sizes.
    pub(crate) fn publish_sized(pace: Pace, sizes: Sizes) -> Feed {
        Feed::publish_while(pace, sizes, |_| true)
    }

    /// Does the same as [`publish_sized`](Self::publish_sized). After every [`LOOK`] messages, waits until `may_go_on` returns true.
    pub(crate) fn publish_while(
        pace: Pace,
        sizes: Sizes,
        may_go_on: impl Fn(u64) -> bool + Send + 'static,
    ) -> Feed {
        let mut feed = Feed {
            near: Host::new(),
            far: Host::new(),
            sizes,
            messages: pace.messages,
            seen: Arc::new(AtomicU64::new(1)),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let builder = Publisher::builder("ticks").dir(feed.near.dir.path().join("channels"));
        let mut publisher = builder.capacity(pace.capacity).max_message(LONGEST as u64).open().unwrap();
        let (seen, stop) = (feed.seen.clone(), feed.stop.clone());
        feed.threads.push(std::thread::spawn(move || {
            let content = Content::new(sizes);
            for sequence in 1..=pace.messages {
                let must_wait = || {
                    sequence > seen.load(Ordering::Relaxed) + pace.ahead
                        || sequence.is_multiple_of(LOOK) && !may_go_on(sequence)
                };
                while must_wait() {
                    std::thread::sleep(Duration::from_millis(1));
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
                let (bytes, mark) = content.of(sequence);
                assert_eq!(publisher.publish_with(bytes, mark).unwrap(), sequence);
                if sequence % 100 == 0 {
                    std::thread::sleep(pace.pause);
                }
            }
            // The channel stays open, so that the bridges continue.
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }));
        feed
    }

    /// Compares each message at the far end: its sequence, bytes, tag and key flag. `is_lost` says which messages are allowed to be
    /// missing.
    pub(crate) fn compare(&mut self, is_lost: impl Fn(u64) -> bool + Send + 'static) {
        let (seen, stop, sizes) = (self.seen.clone(), self.stop.clone(), self.sizes);
        let dir = self.far.dir.path().join("channels");
        self.threads.push(std::thread::spawn(move || {
            let content = Content::new(sizes);
            let builder = Subscriber::builder("ticks").dir(&dir).start(Start::Oldest).wait(REST);
            let mut reader = builder.wait_for_channel(PATIENCE).open().unwrap();
            let mut due = 1;
            while !stop.load(Ordering::Relaxed) {
                match reader.recv_deadline(Instant::now() + Duration::from_millis(50)).unwrap() {
                    Some(Event::Message(message)) => {
                        assert_eq!(message.sequence, due, "a message is missing or comes twice");
                        let (bytes, mark) = content.of(due);
                        assert!(message.payload == bytes, "message {due} has other bytes");
                        assert_eq!((message.tag, message.key), (mark.tag, mark.key), "message {due}");
                        due += 1;
                    }
                    Some(Event::Gap { from, to }) => {
                        assert!(
                            from == due && (from..=to).all(&is_lost),
                            "{from} to {to} are lost, {due} is due"
                        );
                        due = to + 1;
                    }
                    Some(Event::Lapped(lapped)) => panic!("the test's own reader was lapped: {lapped:?}"),
                    _ => {}
                }
                seen.store(due, Ordering::Relaxed);
            }
        }));
    }

    /// Waits until this many more messages were compared, or all messages.
    pub(crate) fn go_on(&self, more: u64, children: &mut [&mut Bridge]) {
        let next = self.seen.load(Ordering::Relaxed) + more;
        self.wait_for(next.min(self.messages + 1), children);
    }

    /// Waits until all messages below `next` were compared.
    pub(crate) fn wait_for(&self, next: u64, children: &mut [&mut Bridge]) {
        let started = Instant::now();
        while self.seen.load(Ordering::Relaxed) < next {
            if let Some(dead) = self.threads.iter().find(|thread| thread.is_finished()) {
                panic!("a thread of the test has failed: {:?}", dead.thread().id());
            }
            for child in children.iter_mut() {
                child.assert_alive();
            }
            let due = self.seen.load(Ordering::Relaxed);
            if started.elapsed() > PATIENCE {
                let said: Vec<String> = children.iter().map(|child| child.words.from(0)).collect();
                panic!(
                    "waited {PATIENCE:?} for {next}; {due} is due; the bridges said:\n{}",
                    said.join("\n")
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn send(&self, arguments: &str) -> Bridge {
        Bridge::start(self.near.shmcast(&format!("bridge send ticks {arguments}")))
    }

    pub(crate) fn receive(&self, arguments: &str) -> Bridge {
        self.receive_on(&self.far, arguments)
    }

    pub(crate) fn receive_on(&self, host: &Host, arguments: &str) -> Bridge {
        let mebibytes = match self.sizes {
            Sizes::Short => 16,
            Sizes::Wide => 64,
        };
        Bridge::start(host.shmcast(&format!("bridge recv ticks --capacity {mebibytes}MiB {arguments}")))
    }

    /// Ends the threads. Panics if any comparison has failed.
    pub(crate) fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

/// A bridge as a process, killed at the end of the test.
pub(crate) struct Bridge {
    command: Command,
    process: Process,
    words: Words,
    /// The length of the part of the output for which the test has already waited.
    heard: usize,
}

/// The output of a process to stderr.
struct Words {
    said: Arc<Mutex<Vec<u8>>>,
    listener: JoinHandle<()>,
}

impl Words {
    fn of(process: &mut Process) -> Words {
        let mut stderr = process.child().stderr.take().expect("a pipe");
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let written = said.clone();
        let listener = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(size @ 1..) = stderr.read(&mut bytes) {
                written.lock().unwrap().extend(&bytes[..size]);
            }
        });
        Words { said, listener }
    }

    fn from(&self, at: usize) -> String {
        text(&self.said.lock().unwrap()[at..])
    }
}

impl Bridge {
    pub(crate) fn start(mut command: Command) -> Bridge {
        command.arg("--json").env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Process::start(&mut command);
        let words = Words::of(&mut process);
        Bridge { command, process, words, heard: 0 }
    }

    pub(crate) fn kill_and_restart(&mut self) {
        self.process.end_by(Signal::SIGKILL);
        self.process = Process::start(&mut self.command);
        (self.words, self.heard) = (Words::of(&mut self.process), 0);
    }

    pub(crate) fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    pub(crate) fn pause(&self) {
        self.process.pause();
    }

    pub(crate) fn resume(&self) {
        self.process.resume();
    }

    pub(crate) fn assert_alive(&mut self) {
        if let Some(status) = self.process.try_wait() {
            panic!("a bridge has ended with {status}: {}", self.words.from(0));
        }
    }

    /// If the bridge has ended, returns its status and the end of its output.
    pub(crate) fn has_ended(&mut self) -> Option<String> {
        self.process.try_wait().map(|status| format!("{status}: {}", self.last_words()))
    }

    /// The last lines of the bridge's output.
    pub(crate) fn last_words(&self) -> String {
        let said = self.words.from(0);
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(6)..].join(" / ")
    }

    /// Waits until the bridge prints `words`. Returns its output since the last such wait, up to these words.
    pub(crate) fn wait_for_words(&mut self, words: &str) -> String {
        let started = Instant::now();
        let said = loop {
            self.assert_alive();
            let said = self.words.from(self.heard);
            if let Some(at) = said.find(words) {
                break said[..at + words.len()].to_owned();
            }
            assert!(
                started.elapsed() < PATIENCE,
                "waited {PATIENCE:?} for {words:?}; the bridge said:\n{said}"
            );
            std::thread::sleep(Duration::from_millis(10));
        };
        self.heard += said.len();
        said
    }

    /// The next wait for words begins with what the bridge prints from now on.
    pub(crate) fn forget_words(&mut self) {
        self.heard = self.words.from(0).len();
    }

    /// Ends the bridge with Ctrl-C while it starts.
    pub(crate) fn end_at_the_start(self) {
        interrupt(&self.process);
        self.process.output();
    }

    /// Ends the bridge with Ctrl-C. Returns its counters, and its output since the last wait for words.
    pub(crate) fn end(mut self) -> (Value, String) {
        self.assert_alive();
        interrupt(&self.process);
        let output = self.process.output();
        self.words.listener.join().unwrap();
        let said = text(&self.words.said.lock().unwrap()[self.heard..]);
        let counters = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        (counters, said)
    }
}
