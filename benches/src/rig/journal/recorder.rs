//! The recorder of a round, in a separate process. The recorder uses the same library as `shmcast record` and the daemon.

use super::publisher::gate_of;
use super::role::{Read, Record, Recorded, Seen, Standing, Sync, Way};
use crate::rig::child::{bind, say};
use crate::rig::gate::Gate;
use crate::rig::names::CHANNEL;
use crate::rig::spec::Usage;
use anyhow::{Context, Result};
use shmcast::journal::Streams;
use shmcast::{Event, History, Start, Subscriber};
use shmcast_journal::core::{Io, Settings, SyncPolicy};
use shmcast_journal::{Keep, Recorder, Trimmed};
use shmcast_layout::counter::ticks;
use std::io::BufRead;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The time between two readings of the recorder's progress.
const LOOK: Duration = Duration::from_millis(1);
/// The time between two searches for files that must be removed.
const TRIM: Duration = Duration::from_millis(100);
/// The pause of a reader that finds nothing. A recorder makes pauses of the same length.
const NAP: Duration = Duration::from_micros(200);
/// The greatest number of messages in one batch, as for a recorder.
const BATCH: usize = 4096;

impl Record {
    fn settings(&self) -> Settings {
        let sync = match self.sync {
            Sync::Each => SyncPolicy::Each,
            Sync::Ms(ms) => SyncPolicy::Interval(Duration::from_millis(ms)),
        };
        let io = match self.way {
            Way::Direct => Io::Direct,
            Way::Buffered => Io::Buffered,
        };
        Settings { sync, io, file_bytes: self.file_bytes, buffer: self.buffer, ..Settings::default() }
    }
}

fn subscriber(dir: &std::path::Path) -> Result<Subscriber> {
    let builder = Subscriber::builder(CHANNEL).dir(dir).start(Start::Oldest).history(History::Never);
    builder.open().context("subscribe")
}

/// Receives the rig's words in a separate thread.
fn words() -> Receiver<String> {
    let (sender, words) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    words
}

/// Plays the role in this process: answers `ready`, waits for `go`, and records. Answers the word `where` with a [`Standing`]. After `until
/// N`, waits until everything up to N is durable and the last file is finished. Then answers with a [`Recorded`], and ends.
///
/// # Errors
/// The error of the recorder or of a pipe.
pub fn play_recorder(role: &Record) -> Result<()> {
    bind(role.cpu)?;
    let recorder = Recorder::start(&role.to, subscriber(&role.dir)?, role.settings()).context("record")?;
    let gate = (role.gate_messages > 0).then(|| Gate::open(&gate_of(&role.dir), 1, role.gate_messages));
    let mut gate = gate.transpose().context("open the gate")?;
    let (mut trimmed, mut next_trim) = (Trimmed::default(), Instant::now());
    let words = words();
    say("ready")?;
    anyhow::ensure!(words.recv().context("the rig is gone")? == "go", "expected go");
    let usage = Usage::now();
    let mut moves = Vec::with_capacity(if role.keeps_moves { 1 << 20 } else { 0 });
    let mut last = 0;
    let until = loop {
        anyhow::ensure!(recorder.is_running(), "the recorder ended: {:?}", recorder.stop());
        let progress = recorder.progress();
        if let Some(gate) = &mut gate {
            gate.pass(0, progress.drained);
        }
        if role.keep_bytes > 0 && Instant::now() >= next_trim {
            trim(&recorder, role, &mut trimmed);
            next_trim = Instant::now() + TRIM;
        }
        if role.keeps_moves && progress.durable != last {
            last = progress.durable;
            moves.push((ticks(), last));
        }
        match words.recv_timeout(if role.keeps_moves { Duration::ZERO } else { LOOK }) {
            Ok(word) if word == "where" => say(&serde_json::to_string(&Standing {
                drained: progress.drained,
                durable: progress.durable,
                overrun: progress.overrun,
                buffered: progress.buffered,
            })?)?,
            Ok(word) => {
                let until = word.strip_prefix("until ").and_then(|n| n.parse::<u64>().ok());
                break until.with_context(|| format!("the rig said {word}"))?;
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => anyhow::bail!("the rig is gone"),
        }
    };
    while recorder.is_running() && recorder.progress().durable < until {
        std::thread::sleep(LOOK / 10);
    }
    let (durable_at, usage) = (ticks(), Usage::now().since(&usage));
    let errors = recorder.errors().into_iter().map(|error| error.to_string()).collect();
    let end = recorder.stop().context("end the recording")?;
    say(&serde_json::to_string(&Recorded {
        messages: end.messages,
        overrun: end.overrun,
        durable: end.durable,
        bytes: end.bytes,
        durable_at,
        sealed_at: ticks(),
        moves,
        usage,
        errors,
    })?)
}

/// Removes the oldest files, as a daemon does.
fn trim(recorder: &Recorder, role: &Record, trimmed: &mut Trimmed) {
    let keep = Keep { bytes: Some(role.keep_bytes), ..Keep::default() };
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
    // A journal that has no file yet is checked again later.
    let _ = Streams::open(&role.to).map(|streams| recorder.trim(&keep, &streams, None, wall, trimmed));
}

/// Plays the role in this process: answers `ready`, reads from `go` to `stop`, and reports.
///
/// # Errors
/// The error of the channel or of a pipe.
pub fn play_reader(role: &Read) -> Result<()> {
    bind(role.cpu)?;
    let mut subscriber = subscriber(&role.dir)?;
    let words = words();
    say("ready")?;
    anyhow::ensure!(words.recv().context("the rig is gone")? == "go", "expected go");
    let (mut seen, mut bytes) = (Seen::default(), 0);
    while words.try_recv().is_err() {
        let taken = subscriber.recv_batch(BATCH, |event| match event {
            Event::Message(message) => {
                seen.messages += 1;
                bytes += message.payload.len();
            }
            Event::Lapped(lapped) => seen.missed += lapped.missed,
            _ => {}
        })?;
        if taken == 0 {
            std::thread::sleep(NAP);
        }
    }
    std::hint::black_box(bytes);
    say(&serde_json::to_string(&seen)?)
}
