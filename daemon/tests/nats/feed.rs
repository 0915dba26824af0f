//! A channel that goes from one host to another: a publisher, the two bridges as processes, and a reader that compares.

use crate::cli_support::{Host, text};
use serde_json::Value;
use shmcast::{Event, Mark, Publisher, Start, Subscriber};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest message, in bytes.
pub(crate) const LONGEST: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(90);

/// The sizes of the messages.
#[derive(Clone, Copy)]
pub(crate) enum Sizes {
    /// Most are short, one in 1000 has some KiB, and one in 50 000 up to a MiB: 0.1 GB in a million.
    Short,
    /// One in 25 has any size up to a MiB, each order of magnitude as often as another, and one in 25 000 a whole MiB: 3 GB in a
    /// million.
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

/// The content of each message: the same for every host.
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
    /// How far the reader at the far end has compared: the sequence due there.
    pub(crate) seen: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

/// How a feed is to be published.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) messages: u64,
    /// How many messages may be published and not compared.
    pub(crate) ahead: u64,
    /// The pause after each 100 messages.
    pub(crate) pause: Duration,
    pub(crate) capacity: u64,
}

impl Feed {
    /// Publishes short messages, after the first one at once, as fast as the far end follows and as the pace says.
    pub(crate) fn publish(pace: Pace) -> Feed {
        Feed::publish_sized(pace, Sizes::Short)
    }

    /// The same with messages of these sizes.
    pub(crate) fn publish_sized(pace: Pace, sizes: Sizes) -> Feed {
        let mut feed = Feed {
            near: Host::new(),
            far: Host::new(),
            sizes,
            seen: Arc::new(AtomicU64::new(1)),
            stop: Arc::default(),
            threads: Vec::new(),
        };
        let builder = Publisher::builder("ticks").dir(feed.near.dir.path().join("channels"));
        let mut publisher = builder.capacity(pace.capacity).max_message(2 << 20).open().unwrap();
        let (seen, stop) = (feed.seen.clone(), feed.stop.clone());
        feed.threads.push(std::thread::spawn(move || {
            let content = Content::new(sizes);
            for sequence in 1..=pace.messages {
                while sequence > seen.load(Ordering::Relaxed) + pace.ahead {
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
            // The channel stays open, so that bridges go on.
            while !stop.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }));
        feed
    }

    /// Compares each message at the far end: its sequence, bytes, tag and key flag. `is_lost` says which may be missing.
    pub(crate) fn compare(&mut self, is_lost: impl Fn(u64) -> bool + Send + 'static) {
        let (seen, stop, sizes) = (self.seen.clone(), self.stop.clone(), self.sizes);
        let dir = self.far.dir.path().join("channels");
        self.threads.push(std::thread::spawn(move || {
            let content = Content::new(sizes);
            let builder = Subscriber::builder("ticks").dir(&dir).start(Start::Oldest);
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
                let said: Vec<String> = children.iter_mut().map(|child| child.said_when_killed()).collect();
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
        Bridge::start(host.shmcast(&format!("bridge recv ticks --capacity 64MiB {arguments}")))
    }

    /// Ends the threads, which have failed if anything was wrong.
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
    pub(crate) child: Child,
}

impl Bridge {
    fn start(mut command: Command) -> Bridge {
        command.arg("--json").env("RUST_BACKTRACE", "0").stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        Bridge { command, child }
    }

    pub(crate) fn kill_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = self.command.spawn().unwrap();
    }

    pub(crate) fn assert_alive(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            let mut said = String::new();
            if let Some(stderr) = &mut self.child.stderr {
                std::io::Read::read_to_string(stderr, &mut said).unwrap();
            }
            panic!("a bridge has ended with {status}: {said}");
        }
    }

    fn said_when_killed(&mut self) -> String {
        self.child.kill().unwrap();
        let mut said = String::new();
        if let Some(stderr) = &mut self.child.stderr {
            std::io::Read::read_to_string(stderr, &mut said).unwrap();
        }
        said
    }

    /// Waits until it says these words. All that it has said so far.
    pub(crate) fn wait_for_words(&mut self, words: &str) -> String {
        let (mut said, mut byte) = (Vec::new(), [0]);
        let stderr = self.child.stderr.as_mut().unwrap();
        while std::io::Read::read(stderr, &mut byte).unwrap() == 1 {
            said.push(byte[0]);
            if said.ends_with(words.as_bytes()) {
                break;
            }
        }
        text(&said)
    }

    /// Ends it as Ctrl-C does. Its counters, and what it said.
    pub(crate) fn end(mut self) -> (Value, String) {
        self.assert_alive();
        crate::cli_support::interrupt(&self.child);
        let child = std::mem::replace(&mut self.child, Command::new("true").spawn().unwrap());
        let output = child.wait_with_output().unwrap();
        let said = text(&output.stderr);
        let counters = serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {said}"));
        (counters, said)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
