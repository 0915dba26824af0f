//! A round with a publisher and a recorder, or with a publisher and a reader instead.

use super::recorder;
use super::role::{Publish, Published, Read, Record, Recorded, Role, Seen, Standing};
use super::{publisher, reader, role};
use crate::rig::player::Player;
use crate::rig::probe::{Load, Quiet};
use crate::rig::program::Program;
use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use std::path::Path;
use std::time::{Duration, Instant};

/// The time limit for an answer of a process. It allows for a slow disk: a recorder can first have to write all waiting data and finish the
/// last file.
const PATIENCE: Duration = Duration::from_secs(120);

/// The hidden command that plays a role.
const COMMAND: &str = "play-journal";

/// Plays a role in this process.
///
/// # Errors
/// The role's error.
pub fn play(role: &Role) -> Result<()> {
    match role {
        Role::Publish(role) => publisher::play(role),
        Role::Record(role) => recorder::play_recorder(role),
        Role::Read(role) => recorder::play_reader(role),
        Role::CatchUp(role) => reader::catch_up(role),
        Role::Lookup(role) => reader::look_up(role),
        Role::Verify(journal) => reader::verify(journal),
        Role::Mend(journal) => reader::mend(journal),
    }
}

/// The process that reads the publisher's messages.
#[derive(Debug, Clone)]
pub enum Second {
    /// A recorder.
    Recorder(Record),
    /// A reader that stores nothing.
    Reader(Read),
    /// No process.
    None,
}

/// The result of a round.
#[derive(Debug, Clone, Default)]
pub struct Round {
    /// The publisher's report.
    pub published: Published,
    /// The recorder's report.
    pub recorded: Recorded,
    /// The reader's report.
    pub seen: Seen,
    /// The state of the machine during the round: quiet or not.
    pub quiet: Quiet,
}

/// A running round.
#[derive(Debug)]
pub struct Running<'a> {
    recorder: Option<&'a mut Player>,
}

impl Running<'_> {
    /// Asks the recorder for its present state.
    ///
    /// # Errors
    /// If there is no recorder, or if it does not answer.
    pub fn standing(&mut self) -> Result<Standing> {
        let recorder = self.recorder.as_mut().context("this round has no recorder")?;
        recorder.tell("where")?;
        report(recorder, Instant::now() + PATIENCE)
    }
}

fn report<T: DeserializeOwned>(player: &Player, deadline: Instant) -> Result<T> {
    let line = player.line(deadline, "report")?;
    serde_json::from_str(&line).with_context(|| format!("the report of {}: {line}", player.name))
}

fn start(program: &Path, role: &Role, name: &str) -> Result<Player> {
    let player = Player::with(program, &[COMMAND, &serde_json::to_string(role)?], name.into())?;
    player.expect_ready(Instant::now() + PATIENCE)?;
    Ok(player)
}

/// Counts the system calls of a publishing thread, from the start of its process to the end. A recorder records meanwhile.
///
/// # Errors
/// When there is no `strace`, when the system forbids it, or when a process fails.
pub fn publisher_calls(program: &Path, role: &Publish, recorder: &Record) -> Result<u64> {
    let counts = role.dir.join("calls");
    let words = ["-c", "-o", &counts.to_string_lossy()].map(str::to_owned);
    let own = [program.display().to_string(), COMMAND.to_owned()];
    let role = serde_json::to_string(&Role::Publish(role.clone()))?;
    let words: Vec<&str> = words.iter().chain(&own).chain([&role]).map(String::as_str).collect();
    let mut publisher = Player::with(Path::new("strace"), &words, "strace".into())?;
    let deadline = Instant::now() + PATIENCE;
    publisher.expect_ready(deadline)?;
    let mut second = start(program, &Role::Record(recorder.clone()), "the recorder")?;
    second.tell("go")?;
    publisher.tell("go")?;
    let published: Published = report(&publisher, deadline)?;
    second.tell(&format!("until {}", published.messages))?;
    report::<Recorded>(&second, deadline)?;
    second.wait()?;
    publisher.tell("stop")?;
    publisher.wait()?;
    let table = std::fs::read_to_string(&counts).context("read what strace counted")?;
    let total = table.lines().find(|line| line.ends_with(" total")).context("strace counted nothing")?;
    let calls = total.split_whitespace().nth(3).and_then(|calls| calls.parse().ok());
    calls.with_context(|| format!("strace says: {total}"))
}

/// Plays these roles at the same time, each in a separate process. Returns the reports.
///
/// # Errors
/// When a process fails. The other processes are then killed.
pub fn together<T: DeserializeOwned>(program: &Path, roles: &[Role]) -> Result<Vec<T>> {
    let program = Program::copied(program)?;
    let started = roles.iter().map(|role| start(&program.path(), role, "a reader"));
    let mut players = started.collect::<Result<Vec<_>>>()?;
    players.iter_mut().try_for_each(|player| player.tell("go"))?;
    let deadline = Instant::now() + PATIENCE;
    let reports = players.iter().map(|player| report(player, deadline)).collect::<Result<_>>()?;
    players.iter_mut().try_for_each(Player::wait)?;
    Ok(reports)
}

/// Runs several recorders, one after the other. Kills each recorder when it has made its number of messages durable. The publisher does not
/// wait for recorders, so the next recorder can find that messages are lost.
///
/// # Errors
/// When a process fails.
pub fn crash(program: &Path, role: &Publish, recorders: &[(Record, u64)]) -> Result<()> {
    let mut publisher = start(program, &Role::Publish(role.clone()), "the publisher")?;
    for (at, (record, until)) in recorders.iter().enumerate() {
        let mut player = start(program, &Role::Record(record.clone()), "the recorder")?;
        player.tell("go")?;
        if at == 0 {
            publisher.tell("go")?;
        }
        let deadline = Instant::now() + PATIENCE;
        while (Running { recorder: Some(&mut player) }).standing()?.durable < *until {
            anyhow::ensure!(Instant::now() < deadline, "{until} messages are not durable in time");
            std::thread::sleep(Duration::from_millis(5));
        }
        player.kill()?;
    }
    publisher.kill()
}

/// Plays a round with the child program `program`. Runs `meanwhile` while the publisher sends.
///
/// # Errors
/// When a process fails, or does not end in time. The other processes are then killed. The call also fails if `meanwhile` fails.
pub fn round(
    program: &Path,
    role: &Publish,
    second: &Second,
    meanwhile: impl FnOnce(&mut Running<'_>) -> Result<()>,
) -> Result<Round> {
    let program = Program::copied(program)?;
    let program = &program.path();
    let deadline = Instant::now() + PATIENCE + Duration::from_nanos(role.time_ns);
    let mut publisher = start(program, &Role::Publish(role.clone()), "the publisher")?;
    let mut second = match second {
        Second::Recorder(role) => Some((start(program, &Role::Record(role.clone()), "the recorder")?, true)),
        Second::Reader(role) => Some((start(program, &Role::Read(role.clone()), "the reader")?, false)),
        Second::None => None,
    };
    let pids = [publisher.child.id()].into_iter().chain(second.as_ref().map(|(player, _)| player.child.id()));
    let load = Load::begin(pids)?;
    let mut round = Round::default();
    if let Some((player, _)) = &mut second {
        player.tell("go")?;
    }
    publisher.tell("go")?;
    let recorder = second.as_mut().filter(|(_, is_recorder)| *is_recorder).map(|(player, _)| player);
    meanwhile(&mut Running { recorder })?;
    round.published = report(&publisher, deadline)?;
    if let Some((mut player, is_recorder)) = second {
        if is_recorder {
            player.tell(&format!("until {}", round.published.messages))?;
            round.recorded = report(&player, Instant::now() + PATIENCE)?;
        } else {
            player.tell("stop")?;
            round.seen = report(&player, Instant::now() + PATIENCE)?;
        }
        player.wait()?;
    }
    publisher.tell("stop")?;
    publisher.wait()?;
    round.quiet = load.end()?;
    Ok(round)
}

impl Round {
    /// Returns the seconds from the first send until everything was durable.
    pub fn seconds(&self) -> f64 {
        let clock = shmcast::Clock::of_this_host();
        clock.ns_between(self.published.span.0, self.recorded.durable_at) as f64 / 1e9
    }

    /// Checks that each sequence is in the journal or listed as lost.
    ///
    /// # Errors
    /// If a sequence is neither in the journal nor listed.
    pub fn is_exact(&self) -> Result<()> {
        let role::Recorded { messages, overrun, ref errors, .. } = self.recorded;
        let sent = self.published.messages;
        anyhow::ensure!(errors.is_empty(), "the disk refused: {errors:?}");
        anyhow::ensure!(
            messages + overrun == sent,
            "of {sent} messages {messages} are recorded, {overrun} named as lost"
        );
        Ok(())
    }
}
