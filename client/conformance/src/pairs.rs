//! Lets each publishing language send a million messages to each receiving language, through a small ring. The payloads check themselves.
//! Publishers and daemons are killed meanwhile.

use crate::daemon::Daemon;
use crate::payload::LONGEST;
use crate::races::{Counts, consume, in_dir};
use crate::stage::scratch;
use crate::testee::{Answer, Testee};
use anyhow::{Result, bail, ensure};
use shmcast::Client;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit for a pair.
const PATIENCE: Duration = Duration::from_secs(1200);

/// The settings with which pairs are played.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Messages of each pair.
    pub messages: u64,
    /// Bytes of the ring.
    pub capacity: u64,
    /// The number of kills. With files, the publisher is killed each time. With a daemon's channel, the publisher and the daemon are killed
    /// in turn.
    pub kills: u32,
    /// Whether a daemon owns the channel.
    pub by_daemon: bool,
    /// The seed that decides when processes are killed.
    pub seed: u64,
}

/// The result of a pair.
#[derive(Debug, Clone, Copy)]
pub struct Outcome {
    /// The reader's counts.
    pub counts: Counts,
    /// Publishers that were killed.
    pub publishers_killed: u32,
    /// Daemons that were killed.
    pub daemons_killed: u32,
    /// The time that the pair took.
    pub took: Duration,
}

struct Pair {
    plan: Plan,
    place: String,
    writer: Testee,
    reader: Testee,
    daemon: Option<Daemon>,
    dice: fastrand::Rng,
}

/// Plays one pair.
///
/// # Errors
/// If a testee fails or hangs.
pub fn play(writer: &[OsString], reader: &[OsString], how: &str, plan: Plan) -> Result<Outcome> {
    let began = Instant::now();
    let dir = scratch()?;
    let daemon = if plan.by_daemon { Some(Daemon::start(dir.path(), plan.capacity, "")?) } else { None };
    let place = place(dir.path(), daemon.as_ref());
    let (writer, reader) = (Testee::start(writer)?, Testee::start(reader)?);
    let dice = fastrand::Rng::with_seed(plan.seed);
    let mut pair = Pair { plan, place, writer, reader, daemon, dice };
    pair.create()?;
    consume(&mut pair.reader, &pair.place, how, LONGEST)?;
    pair.wait_for_reader()?;
    let (publishers_killed, daemons_killed) = pair.publish()?;
    let answer = pair.writer.ask(r#"{"do":"end"}"#)?;
    ensure!(answer == Answer::done(), "the publisher does not end: {answer:?}");
    let counts = Counts::of(&pair.reader.hear(PATIENCE)?)?;
    Ok(Outcome { counts, publishers_killed, daemons_killed, took: began.elapsed() })
}

fn place(dir: &Path, daemon: Option<&Daemon>) -> String {
    match daemon {
        Some(daemon) => format!(r#""socket":"{}""#, daemon.socket.display()),
        None => in_dir(dir),
    }
}

impl Pair {
    /// Makes the testee open the channel as its publisher. If a daemon that has just started refuses this, tries again.
    fn create(&mut self) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (place, capacity) = (&self.place, self.plan.capacity);
            let ask = format!(r#"{{"do":"create",{place},"channel":"t","capacity":{capacity}}}"#);
            match self.writer.ask(&ask)? {
                Answer::Done { ok: true } => return Ok(()),
                other if self.daemon.is_none() || Instant::now() > until => {
                    bail!("no publisher: {other:?}")
                }
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Waits until the reader has attached. The daemon must not be killed before that, because no reader can attach to a dead daemon.
    fn wait_for_reader(&self) -> Result<()> {
        let Some(daemon) = &self.daemon else { return Ok(()) };
        let until = Instant::now() + Duration::from_secs(60);
        while Client::at(&daemon.socket)?.channel("t")?.readers.is_empty() {
            if Instant::now() > until {
                bail!("the reader does not come");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Publishes all messages, and kills processes meanwhile. Returns the number of killed publishers and of killed daemons.
    fn publish(&mut self) -> Result<(u32, u32)> {
        let (mut publishers, mut daemons) = (0, 0);
        let until = Instant::now() + PATIENCE;
        // The publisher is killed at fixed messages. So all kills happen, however fast the publisher is.
        for kill in 0..self.plan.kills {
            let share = self.plan.messages / u64::from(self.plan.kills + 1);
            let to = share * u64::from(kill + 1);
            self.produce(to)?;
            self.finish(until)?;
            // The publisher continues, and is killed in the middle.
            self.produce(to + share / 2)?;
            let is_done = self.writer.hear_within(Duration::from_micros(self.dice.u64(50..3000)))?.is_some();
            if let Some(daemon) = self.daemon.as_mut().filter(|_| kill % 2 == 1) {
                daemon.kill()?;
                daemons += 1;
                if !is_done {
                    self.finish(until)?;
                }
                self.daemon.as_mut().map_or(Ok(()), Daemon::restart)?;
            } else {
                self.writer.restart()?;
                publishers += 1;
                self.create()?;
            }
        }
        self.produce(self.plan.messages)?;
        self.finish(until)?;
        Ok((publishers, daemons))
    }

    fn produce(&mut self, to: u64) -> Result<()> {
        self.writer.tell(&format!(r#"{{"do":"produce","to":{to},"longest":{LONGEST}}}"#))
    }

    fn finish(&mut self, until: Instant) -> Result<()> {
        let answer = self.writer.hear(until.saturating_duration_since(Instant::now()))?;
        ensure!(answer == Answer::done(), "the publisher stopped: {answer:?}");
        Ok(())
    }
}
