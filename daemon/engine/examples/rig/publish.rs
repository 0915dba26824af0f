//! The cost of a publication: alone, beside a reader that naps, and beside an engine that runs, that has no server, and whose
//! server's disk is full. The publisher has CPU 0; reader, engine and server share CPU 1.

use shmcast::{Event, Preparation, Publisher, Start, Subscriber, Wait};
use shmcast_bridge::spec::{BridgeSpec, Engine, NatsSpec};
use shmcast_engine::stream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::servers::{Servers, addresses, on_cpu};
use crate::{Words, median};

const CHANNEL: &str = "publish";
const CASES: [&str; 5] = ["alone", "reader", "engine", "no server", "disk full"];
/// The size of the disk that gets full.
const DISK: &str = "size=24m";

pub(crate) fn run(words: &Words) {
    let shmcast: PathBuf = words.value("--shmcast").expect("--shmcast PROGRAM").into();
    let (laps, messages) = (words.number("--laps", 5), words.number("--messages", 300_000u64));
    println!(
        "{messages} messages of 64 B, 100,000 a second, {laps} laps; times are those of one publication"
    );
    let mut all = Vec::new();
    for lap in 0..laps {
        let mut found = vec![[0.0; 3]; CASES.len()];
        for turn in 0..CASES.len() {
            let case = (lap + turn) % CASES.len();
            found[case] = once(words, &shmcast, CASES[case], messages);
            let [p50, p99, max] = found[case];
            println!("{:9}  p50 {p50:6.1} ns, p99 {p99:6.1} ns, max {max:9} ns", CASES[case]);
        }
        all.push(found);
    }
    println!("medians of laps, and of the ratios within each");
    for (case, name) in CASES.iter().enumerate() {
        let [p50, p99] = [0, 1].map(|at| median(all.iter().map(|found| found[case][at]).collect()));
        let max = all.iter().map(|found| found[case][2]).fold(0.0, f64::max);
        let over = |base: usize, at: usize| {
            median(all.iter().map(|found| found[case][at] / found[base][at]).collect())
        };
        println!(
            "{name:9}  p50 {p50:5.1} ns, p99 {p99:5.1} ns, max {max:9} ns; over alone p50 {:.3}, p99 {:.3}; over the reader p50 {:.3}, p99 {:.3}",
            over(0, 0),
            over(0, 1),
            over(1, 0),
            over(1, 1)
        );
    }
}

/// The disk of a server, unmounted at the end.
struct Disk(tempfile::TempDir);

impl Disk {
    fn new() -> Disk {
        let disk = Disk(tempfile::tempdir().unwrap());
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", DISK, "none"]).arg(disk.0.path()).status();
        assert!(mounted.unwrap().success(), "mount a small disk: run this as root");
        disk
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

struct Beside(Option<Child>);

impl Drop for Beside {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn once(words: &Words, shmcast: &Path, case: &str, messages: u64) -> [f64; 3] {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let disk = Disk::new();
    let is_engine = !matches!(case, "alone" | "reader");
    let mut servers = is_engine.then(|| Servers::start(&words.server(), 1, disk.0.path(), Some(1)));
    let own = std::env::current_exe().unwrap();
    let mut publisher = on_cpu(Some(0), &own);
    publisher.args(["play", "--as", "publisher", "--dir"]).arg(dir.path());
    publisher.args(["--messages", &messages.to_string(), "--go"]).arg(dir.path().join("go"));
    let publisher = publisher.stdout(Stdio::piped()).spawn().unwrap();
    while Subscriber::builder(CHANNEL).dir(dir.path()).open().is_err() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _beside = Beside((case != "alone").then(|| {
        let mut beside = on_cpu(Some(1), if is_engine { shmcast } else { &own });
        match &servers {
            None => drop(beside.args(["play", "--as", "reader", "--dir"]).arg(dir.path())),
            Some(servers) => {
                beside.args([
                    "bridge",
                    "send",
                    CHANNEL,
                    "--set",
                    "nats.create=true",
                    "--nats",
                    &servers.urls()[0],
                    "--dir",
                ]);
                beside.arg(dir.path());
            }
        }
        beside.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }));
    std::thread::sleep(Duration::from_secs(1));
    if let Some(servers) = servers.as_mut().filter(|_| case == "no server") {
        servers.kill();
    }
    if case == "disk full" {
        let filled = std::fs::write(disk.0.path().join("filler"), vec![1; 64 << 20]);
        assert!(filled.is_err(), "the disk is full");
    }
    std::fs::write(dir.path().join("go"), "").unwrap();
    let output = publisher.wait_with_output().unwrap();
    if let Some(servers) = servers.filter(|_| case == "engine") {
        wait_until_stored(&servers, messages);
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    numbers.try_into().unwrap()
}

/// Waits until the log has all messages: otherwise there was no engine to pay for.
fn wait_until_stored(servers: &Servers, messages: u64) {
    let nats = NatsSpec { servers: addresses(&servers.urls()), ..NatsSpec::default() };
    let spec = BridgeSpec { engine: Engine::Nats, nats: Some(nats), ..BridgeSpec::new(CHANNEL) };
    let deadline = Instant::now() + Duration::from_secs(10);
    let stored = || stream::info(&spec).unwrap().next_sequence;
    while stored() != Some(messages + 1) {
        assert!(Instant::now() < deadline, "the log has {:?} of {messages}", stored());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The part of a process of a round.
pub(crate) fn play(words: &Words) {
    let dir = PathBuf::from(words.value("--dir").unwrap());
    match words.value("--as").as_deref() {
        Some("reader") => read(&dir),
        Some("publisher") => publish(words, &dir),
        other => panic!("{other:?}"),
    }
}

/// Takes what is there, and naps, as a sender of an engine does.
fn read(dir: &Path) {
    let reader = Subscriber::builder(CHANNEL).dir(dir).start(Start::Latest);
    let mut reader = reader.wait(Wait::Sleep(Duration::from_micros(100))).open().unwrap();
    let mut bytes = 0;
    let mut take = |event: Event<'_>| {
        if let Event::Message(message) = event {
            bytes += message.payload.len();
        }
    };
    while reader.recv().map(&mut take).is_ok() {
        let _ = reader.recv_batch(4_096, &mut take);
    }
}

fn publish(words: &Words, dir: &Path) {
    let messages: u64 = words.number("--messages", 300_000);
    let builder = Publisher::builder(CHANNEL).dir(dir).capacity(64 << 20).prepare(Preparation::FULL);
    let mut publisher = builder.open().unwrap();
    if let Some(go) = words.value("--go") {
        while !Path::new(&go).exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let (body, mut times) = ([7; 64], vec![0u64; messages as usize]);
    let (start, every) = (Instant::now(), Duration::from_micros(10));
    for (n, time) in times.iter_mut().enumerate() {
        let due = start + every * n as u32;
        let mut now = Instant::now();
        while now < due {
            std::hint::spin_loop();
            now = Instant::now();
        }
        publisher.publish(&body).unwrap();
        *time = now.elapsed().as_nanos() as u64;
    }
    times.sort_unstable();
    println!("{:.2} {:.2} {}", quantile(&times, 0.5), quantile(&times, 0.99), times[times.len() - 1]);
}

/// The value below which this share of the sorted samples lies. The clock gives whole nanoseconds: the place among equal samples
/// says where within its nanosecond the value is.
fn quantile(sorted: &[u64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    let value = sorted[place as usize];
    let (below, to) =
        (sorted.partition_point(|time| *time < value), sorted.partition_point(|time| *time <= value));
    value as f64 + (place - below as f64) / (to - below) as f64
}
