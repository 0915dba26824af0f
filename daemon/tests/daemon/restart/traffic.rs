//! Traffic during the end of a daemon: a publisher at a steady rate, and readers that check every byte, each in its own process. This
//! module also checks the processes while the daemon ends and afterwards.
//!
//! The sequence of a message determines its content, so a reader can check it alone.

use shmcast::{ChannelStatus, Client, Event, Publisher, Start, Subscriber, Wait};
use shmcast_testkit::process::{at_socket, in_dir, my_dir, my_role, my_socket};
use shmcast_testkit::{PATIENCE, Process, number, role, wait_for};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The channel of all tests with this traffic.
pub(crate) const CHANNEL: &str = "ticks";

/// A configuration with the channel [`CHANNEL`] in the mode `mode`.
pub(crate) fn config(mode: &str) -> String {
    format!(
        "[[channel]]\nname = \"{CHANNEL}\"\ncapacity = \"256MiB\"\nmode = \"{mode}\"\n\
         mlock = false\nhugepages = false\npublishers = [\"*\"]\nsubscribers = [\"*\"]\n"
    )
}

/// A publisher and its readers, attached to the daemon at a socket.
pub(crate) struct Traffic {
    socket: PathBuf,
    dir: tempfile::TempDir,
    publisher: Process,
    readers: Vec<Process>,
    /// The maps of the channel that each process had at first.
    maps: Vec<Vec<String>>,
}

impl Traffic {
    /// Starts `readers` readers and a publisher, and waits until messages flow.
    pub(crate) fn start(socket: &Path, readers: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let start = |role: &str| {
            // The processes play the test `play` beside this module.
            let mut command = role!(in "restart", role);
            Process::start(at_socket(in_dir(&mut command, dir.path()), socket))
        };
        let publisher = format!("publisher {readers}");
        let readers = (0..readers).map(|i| start(&format!("reader.{i}"))).collect();
        let publisher = start(&publisher);
        let mut traffic = Self { socket: socket.to_owned(), dir, publisher, readers, maps: Vec::new() };
        wait_for("messages", || traffic.status().filter(|s| s.next_sequence.is_some_and(|next| next > 1000)));
        traffic.wait_until_all_are_back();
        traffic.maps = traffic.mapped();
        assert!(traffic.maps.iter().all(|maps| !maps.is_empty()), "nothing mapped: {:?}", traffic.maps);
        traffic
    }

    /// The channel as `shmcast stat` shows it.
    pub(crate) fn status(&self) -> Option<ChannelStatus> {
        Client::at(&self.socket).ok()?.channel(CHANNEL).ok()
    }

    /// Checks that each process still runs, and waits until the daemon knows of all of them.
    pub(crate) fn wait_until_all_are_back(&mut self) {
        let wanted = self.readers.len();
        for child in self.readers.iter_mut().chain([&mut self.publisher]) {
            assert!(child.is_alive(), "a program ended with the daemon");
        }
        let mut last = None;
        let started = Instant::now();
        loop {
            let status = self.status();
            if status.as_ref().is_some_and(|s| s.publisher.is_some() && s.readers.len() == wanted) {
                return;
            }
            last = status.or(last);
            assert!(started.elapsed() < PATIENCE, "not all came back to the daemon: {last:?}");
            std::thread::sleep(Duration::from_millis(30));
        }
    }

    /// Waits until `count` more messages were published.
    pub(crate) fn wait_for_more(&self, count: u64) {
        let next = || self.status().and_then(|status| status.next_sequence);
        let before = wait_for("the channel", next);
        wait_for("messages", || next().filter(|next| *next >= before + count));
    }

    /// Asserts that no process has mapped the channel anew.
    pub(crate) fn assert_that_nobody_remapped(&self) {
        assert_eq!(self.mapped(), self.maps, "a program mapped the channel anew");
    }

    /// The lines of `/proc/PID/maps` that concern the channel: addresses, device and inode.
    fn mapped(&self) -> Vec<Vec<String>> {
        let of = |child: &Process| {
            let maps = fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
            maps.lines().filter(|line| line.contains("memfd:shmcast")).map(str::to_owned).collect()
        };
        self.readers.iter().chain([&self.publisher]).map(of).collect()
    }

    /// Ends the publisher, and lets the readers read to the end. Each reader must have received all messages undamaged.
    pub(crate) fn end(mut self, what: &str) {
        fs::write(self.dir.path().join("stop"), "").unwrap();
        let [published, took_ms, ..] = self.report("publisher")[..] else { panic!("no report") };
        let (mut missed, mut torn, mut strange) = (0, 0, 0);
        for i in 0..self.readers.len() {
            let report = self.report(&format!("reader.{i}"));
            let [received, its_missed, its_torn, its_strange] = report[..] else { panic!("{report:?}") };
            assert_eq!(received + its_missed, published, "{what}: reader {i} does not add up");
            (missed, torn, strange) = (missed + its_missed, torn + its_torn, strange + its_strange);
        }
        for child in self.readers.iter_mut().chain([&mut self.publisher]) {
            assert!(child.wait().success(), "{what}: see above");
        }
        println!(
            "{what}: {} readers of {published} messages each at {}/s: {missed} missed, {torn} torn, {strange} other events",
            self.readers.len(),
            published * 1000 / took_ms.max(1),
        );
        assert_eq!((missed, torn, strange), (0, 0, 0), "{what}");
    }

    fn report(&self, role: &str) -> Vec<u64> {
        let path = self.dir.path().join(role);
        let text = wait_for(role, || fs::read_to_string(&path).ok());
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }
}

/// Plays the role that this process was started for.
pub(crate) fn play() {
    let Some(role) = my_role() else { return };
    let (client, dir) = (Client::at(my_socket()).unwrap(), my_dir());
    let (name, report) = match role.split_once(' ') {
        Some((name, readers)) => (name, publish(&client, &dir.join("stop"), readers.parse().unwrap())),
        None => (role.as_str(), receive(&client)),
    };
    // The report appears whole or not at all.
    let part = dir.join(format!("{name}.part"));
    fs::write(&part, report.map(|n| n.to_string()).join(" ")).unwrap();
    fs::rename(part, dir.join(name)).unwrap();
}

fn publish(client: &Client, stop: &Path, readers: usize) -> [u64; 4] {
    let mut publisher = Publisher::builder(CHANNEL).client(client).open().unwrap();
    wait_for("readers", || client.channel(CHANNEL).ok().filter(|channel| channel.readers.len() == readers));
    let rate = number("SHMCAST_TEST_RATE", 20_000.0);
    let (started, mut published) = (Instant::now(), 0);
    let mut payload = Vec::new();
    while !stop.exists() {
        for _ in 0..100 {
            published += 1;
            fill(&mut payload, published);
            assert_eq!(publisher.publish(&payload).unwrap(), published);
        }
        let due = started + Duration::from_secs_f64(published as f64 / rate);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    publisher.close();
    [published, started.elapsed().as_millis() as u64, 0, 0]
}

fn receive(client: &Client) -> [u64; 4] {
    let builder = Subscriber::builder(CHANNEL).client(client).start(Start::Oldest);
    let mut subscriber = builder.wait(Wait::Sleep(Duration::from_millis(1))).open().unwrap();
    let [mut received, mut missed, mut torn, mut strange] = [0; 4];
    let mut expected = Vec::new();
    loop {
        match subscriber.recv().unwrap() {
            Event::Message(message) => {
                received += 1;
                fill(&mut expected, message.sequence);
                // Both kinds are counted: a payload that differs from the published one, and a message in the wrong
                // place.
                torn += u64::from(message.payload != expected);
                torn += u64::from(message.sequence != received + missed);
            }
            Event::Lapped(lapped) => missed += lapped.missed,
            Event::Gap { from, to } => missed += to - from + 1,
            Event::End => return [received, missed, torn, strange],
            _ => strange += 1,
        }
    }
}

/// Fills in the payload of message `sequence`: 24 to 87 bytes, all determined by the sequence.
fn fill(payload: &mut Vec<u8>, sequence: u64) {
    let length = 24 + (sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize;
    payload.clear();
    let mut word = sequence;
    while payload.len() < length {
        payload.extend_from_slice(&word.to_le_bytes());
        word = word.rotate_left(23).wrapping_mul(0xd6e8_feb8_6659_fd93) ^ sequence;
    }
    payload.truncate(length);
}
