//! The runner: plays a story with real processes in a separate directory, and leaves the logs for the oracle.
//!
//! The runner carries out one step after the other. If a step gives an order to an actor, the runner waits for the actor's answer. If
//! the previous step was `race`, the runner does not wait for this answer. So the next step begins while the actor is still busy.

mod actors;
mod boards;
mod carry;
mod clock;
mod daemon;
mod errands;
mod healing;
mod journals;
mod limits;
mod manager;
mod net;
mod pipes;
mod plants;
mod programs;
mod readers;
mod seconds;
mod steps;
mod tools;
mod users;
mod verbs;
mod wire;

pub use carry::CARRIED;
pub use errands::{AT_REST, TAMPERED};
pub use journals::RECORDER;
pub use limits::has_small_file_systems;
pub use net::{DAEMONS, SENDER, is_possible};
pub use programs::Programs;
pub use readers::BEREAVED;

use crate::actor::{Order, Place};
use crate::log::{Deed, Log};
use crate::story::{Channel, Story, Whom};
use actors::Actor;
use anyhow::{Context, Result};
use daemon::Daemon;
use journals::Recorder;
use limits::Limited;
use net::Network;
use pipes::Piped;
use plants::Plants;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::{Duration, Instant};
use wire::Wire;

/// The time within which an actor must carry out an order that ends by itself.
const PATIENCE: Duration = Duration::from_secs(120);
/// The time for which a step waits for the answer of an actor that might have to wait itself.
const COURTESY: Duration = Duration::from_millis(1500);

/// Plays `story`. Returns the directory that has the logs, which is below `under`.
///
/// # Errors
/// The reason why the story could not be played. Faults of the product are in the logs.
pub fn play(story: &Story, programs: &Programs, under: &Path) -> Result<tempfile::TempDir> {
    let name = format!("shmcast-chaos-{}-", story.seed);
    let dir = tempfile::Builder::new().prefix(&name).tempdir_in(under).context("make a directory")?;
    let programs = limits::programs(&story.setup, programs)?;
    let mut world = World::new(story, &programs, dir.path())?;
    let played = world.play(story);
    drop(world);
    if let Some(pipes) = &programs.pipes {
        pipes.finish();
    }
    played?;
    Ok(dir)
}

/// The state of a story that is being played.
struct World<'a> {
    programs: &'a Programs,
    /// The story's seed.
    seed: u64,
    dir: PathBuf,
    logs: PathBuf,
    log: Log,
    /// The story's channels. Each daemon has a list of its own, which a reload can change.
    channels: Vec<Channel>,
    // Fields are dropped in this order, so actors end before their daemons.
    publishers: Vec<Option<Actor>>,
    readers: Vec<Option<Actor>>,
    /// The daemons of the story, one for each host. Empty in a story without a daemon.
    daemons: Vec<Daemon>,
    /// The recorders that the runner starts itself, by the number of their channel.
    recorders: BTreeMap<u8, Recorder>,
    wire: Option<Wire>,
    /// The network of a story with several hosts. It must be dropped after the daemons.
    network: Option<Network>,
    plants: Plants,
    /// The limited host. It must be dropped after all processes.
    limited: Option<Limited>,
    /// Number of actors so far.
    actors: usize,
    /// The number of openings for publishing so far. Each opening gets a new number.
    openings: u32,
    /// Whether the previous step was `race`.
    is_racing: bool,
    began: Instant,
}

impl<'a> World<'a> {
    fn new(story: &Story, programs: &'a Programs, dir: &Path) -> Result<Self> {
        let logs = dir.join("logs");
        for sub in ["logs", "channels", "precious", "journals"] {
            fs::create_dir(dir.join(sub))?;
        }
        story.save(&logs.join("story"))?;
        let log = Log::append(&logs.join("runner"))?;
        let setup = &story.setup;
        let limited = Limited::new(setup, dir)?;
        let through = limited.as_ref().map(Limited::through).unwrap_or_default();
        let (daemons, wire, network) = start_daemons(story, programs, dir, &logs, through)?;
        let plants = Plants::new(dir)?;
        Ok(Self {
            programs,
            seed: story.seed,
            dir: dir.to_owned(),
            logs,
            log,
            channels: setup.channels.clone(),
            publishers: Vec::new(),
            readers: Vec::new(),
            daemons,
            recorders: BTreeMap::new(),
            wire,
            network,
            plants,
            limited,
            actors: 0,
            openings: 0,
            is_racing: false,
            began: Instant::now(),
        })
    }

    fn play(&mut self, story: &Story) -> Result<()> {
        for at in 0..self.daemons.len() {
            let (who, pid) = (self.daemons[at].name.to_owned(), self.daemons[at].pid().unwrap_or(0));
            self.note(Deed::Started { who, pid })?;
        }
        if self.channels.iter().any(|channel| channel.journal.is_some()) {
            self.wait_for_recorders()?;
            // The count must include the recorders' descriptors.
            self.daemons.iter_mut().for_each(Daemon::note_descriptors);
        }
        self.start_peer()?;
        if self.network.is_some() {
            self.wait_for_sessions()?;
        }
        for (index, step) in story.steps.iter().enumerate() {
            self.reap()?;
            let place = self.log_step(index, step)?;
            let was_done = self.carry_out(step)?;
            if !was_done {
                self.note(Deed::Skipped { index: place })?;
            }
        }
        self.heal()?;
        self.note(Deed::Over)
    }

    fn log_step(&mut self, index: usize, step: &crate::story::Step) -> Result<usize> {
        self.note(Deed::Step { index, step: step.clone() })?;
        Ok(index)
    }

    fn note(&mut self, deed: Deed) -> Result<()> {
        self.log.write(deed).context("write the runner's log")
    }

    /// The place of a host's channels, for actors.
    fn place(&self, host: usize) -> Place {
        match self.daemons.get(host) {
            Some(daemon) => Place::Socket(daemon.socket()),
            None => Place::Dir(self.channels_dir()),
        }
    }

    fn channels_dir(&self) -> PathBuf {
        self.dir.join("channels")
    }

    /// Returns a channel by its number. The first numbers are the channels of the first daemon, the next numbers are those of the second
    /// daemon, and so on. Larger numbers begin again with the first channel.
    fn channel(&self, number: u8) -> Known {
        let count = self.channels.len();
        let (host, at) =
            (usize::from(number) / count % self.daemons.len().max(1), usize::from(number) % count);
        let channel = match self.daemons.get(host) {
            Some(daemon) => daemon.channels[at].channel.clone(),
            None => self.channels[at].clone(),
        };
        Known { host, at, channel }
    }

    /// Returns the daemon that `whom` names, if it exists.
    fn daemon(&mut self, whom: Whom) -> Option<&mut Daemon> {
        match whom {
            Whom::Daemon => self.daemons.first_mut(),
            Whom::Far => self.daemons.get_mut(1),
            Whom::Host(at) => self.daemons.get_mut(usize::from(at)),
            Whom::Publisher(_) | Whom::Reader(_) | Whom::Recorder(_) => None,
        }
    }

    fn slot(&mut self, whom: Whom) -> Option<&mut Option<Actor>> {
        let (slots, at) = match whom {
            Whom::Publisher(at) => (&mut self.publishers, at),
            Whom::Reader(at) => (&mut self.readers, at),
            Whom::Daemon | Whom::Far | Whom::Host(_) | Whom::Recorder(_) => return None,
        };
        let at = usize::from(at);
        if slots.len() <= at {
            slots.resize_with(at + 1, || None);
        }
        Some(&mut slots[at])
    }

    /// Returns the process of this actor, if it runs.
    fn there(&mut self, whom: Whom) -> Option<&mut Actor> {
        self.slot(whom)?.as_mut()
    }

    /// Returns the actor for this process. If the actor does not run yet, starts it.
    fn actor(&mut self, whom: Whom) -> Result<&mut Actor> {
        if self.there(whom).is_none() {
            let kind = if matches!(whom, Whom::Publisher(_)) { 'p' } else { 'r' };
            let started = self.start_actor(kind)?;
            *self.slot(whom).context("an actor has a slot")? = Some(started);
        }
        self.there(whom).context("an actor that was just started")
    }

    fn start_actor(&mut self, kind: char) -> Result<Actor> {
        let name = format!("{kind}{}", self.actors);
        self.actors += 1;
        let started = Actor::start(self.programs, &self.logs, name.clone())?;
        self.note(Deed::Started { who: name, pid: started.pid() })?;
        Ok(started)
    }

    /// Gives an order. Waits for the answer unless the previous step was `race`. Returns `None` if the actor is busy with an order that
    /// does not end by itself.
    fn order(&mut self, whom: Whom, order: Order) -> Result<Option<Value>> {
        let is_racing = std::mem::take(&mut self.is_racing);
        let is_daemon_away = self.daemons.iter().any(|d| d.is_stopped || d.pid().is_none());
        let actor = self.actor(whom)?;
        let until = Instant::now() + COURTESY;
        while !actor.is_stopped && !actor.is_free() && Instant::now() < until {
            actor.collect(Duration::from_millis(1));
        }
        if !actor.is_free() {
            return Ok(None);
        }
        let is_endless = matches!(order, Order::Read { ms: 0, .. } | Order::Block { .. });
        let id = actor.order(order.clone());
        if is_racing || is_endless || actor.is_stopped {
            return Ok(Some(Value::Null));
        }
        let patience = if is_daemon_away { COURTESY } else { PATIENCE };
        let answer = actor.answer(id, patience);
        if answer.is_none() && !is_daemon_away && actor.ended().is_none() && !actor.is_doomed {
            let (who, order) = (actor.name.clone(), format!("{order:?}"));
            self.note(Deed::NoAnswer { who, order })?;
        }
        Ok(Some(answer.unwrap_or(Value::Null)))
    }

    /// Logs the processes that have ended.
    fn reap(&mut self) -> Result<()> {
        self.reap_recorders()?;
        self.reap_sender()?;
        let mut deeds = Vec::new();
        for slot in self.publishers.iter_mut().chain(&mut self.readers) {
            if let Some(actor) = slot
                && let Some(status) = actor.ended()
            {
                deeds.push(ended(actor.name.clone(), Some(status), actor.is_doomed, actor.said()));
                *slot = None;
            }
        }
        for daemon in &mut self.daemons {
            if let Some(status) = daemon.ended() {
                deeds.push(ended(daemon.name.to_owned(), Some(status), false, daemon.said()));
            }
        }
        deeds.into_iter().try_for_each(|deed| self.note(deed))
    }
}

/// A channel of a host.
struct Known {
    host: usize,
    /// The channel's number on that host.
    at: usize,
    channel: Channel,
}

impl Known {
    /// Returns the channel's number among the channels of all hosts.
    fn number(&self, count: usize) -> usize {
        self.host * count + self.at
    }
}

/// Starts the daemons that the story needs, and the wire between them.
fn start_daemons(
    story: &Story,
    programs: &Programs,
    dir: &Path,
    logs: &Path,
    through: Vec<String>,
) -> Result<(Vec<Daemon>, Option<Wire>, Option<Network>)> {
    let setup = &story.setup;
    if !setup.has_daemon(story.profile) {
        return Ok((Vec::new(), None, None));
    }
    let start = |name, bridges, through| -> Result<Daemon> {
        let mut daemon = Daemon::new(name, dir, logs, &setup.channels, setup.keeps, bridges)?;
        daemon.through = through;
        daemon.configure(false)?;
        daemon.start(programs)?;
        anyhow::ensure!(daemon.answers(PATIENCE), "the daemon does not start: {}", daemon.said());
        // Bridges open their channels only later, so their descriptors cannot be counted here.
        if setup.lines.is_none() && setup.net.is_none() {
            daemon.note_descriptors();
        }
        Ok(daemon)
    };
    let name = &setup.channels[0].name;
    if let Some(net) = &setup.net {
        let network = Network::new(net, story, dir)?;
        let host = |host: usize| start(DAEMONS[host], network.tables(host, name), network.on(host));
        let daemons = (0..net.hosts()).map(host).collect::<Result<_>>()?;
        return Ok((daemons, None, Some(network)));
    }
    let start = |name, bridges| start(name, bridges, through.clone());
    let Some(lines) = setup.lines else {
        return Ok((vec![start("daemon", String::new())?], None, None));
    };
    let wire = Wire::new(lines.into(), story.seed)?;
    let daemons = vec![start("daemon", wire.sends(name))?, start("far", wire.receives(name))?];
    Ok((daemons, Some(wire), None))
}

/// Makes the log entry for the end of a process. Keeps only the last lines of its output and the lines of panics.
fn ended(who: String, status: Option<ExitStatus>, sent: bool, said: String) -> Deed {
    let lines: Vec<&str> = said.lines().collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(12));
    let panics = before.iter().filter(|line| line.contains("panicked at"));
    let said = panics.chain(last).copied().collect::<Vec<_>>().join("\n");
    Deed::Ended {
        who,
        code: status.and_then(|s| s.code()),
        signal: status.and_then(|s| s.signal()),
        sent,
        said,
    }
}
