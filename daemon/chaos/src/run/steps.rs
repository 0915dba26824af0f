//! Carries out the steps of a story. Each method returns true if its step could be applied.

use super::errands::wanted;
use super::limits::set_descriptor_limit;
use super::{Actor, COURTESY, Daemon, Known, PATIENCE, World, ended, tools};
use crate::actor::{Opening, Order, Subscribing};
use crate::log::Deed;
use crate::story::{Change, Channel, Start, Step, Tool, Waiting, Whom};
use anyhow::Result;
use nix::sys::signal::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

impl World<'_> {
    pub(super) fn carry_out(&mut self, step: &Step) -> Result<bool> {
        if let Some((whom, order)) = order_of(step) {
            return self.tell(whom, order);
        }
        if let Some(was_done) = self.carry_out_by_hand(step)? {
            return Ok(was_done);
        }
        match *step {
            Step::Open { who, channel, anew, full } => self.open(who, channel, anew, full, None),
            Step::OpenWithMode { who, channel, mode } => {
                self.open(who, channel, false, false, Some(mode.into()))
            }
            Step::Close { who } => self.close(Whom::Publisher(who)),
            Step::Leave { who } => self.close(Whom::Reader(who)),
            Step::Subscribe { who, channel, start, wait, skip, page, live_only } => {
                self.subscribe(who, channel, (start, wait), (skip, page, live_only))
            }
            Step::Kill { whom, after_us } => self.kill(whom, after_us),
            Step::Stop { whom } => self.signal(whom, Signal::SIGSTOP),
            Step::Continue { whom } => self.signal(whom, Signal::SIGCONT),
            Step::Limit { whom, spare } => self.limit(whom, spare),
            Step::Start { whom } => self.start_daemon(whom),
            Step::Restart { whom } => self.restart(whom, Signal::SIGTERM),
            Step::Crash { whom } => self.restart(whom, Signal::SIGKILL),
            Step::Reload { channel, change } => self.reload(channel, change),
            Step::TakeOver { channel } => self.take_over(channel),
            Step::Remove { channel } => self.remove(channel),
            Step::Look { tool, channel } => self.look(tool, channel),
            Step::Plant { plant, channel } => {
                let name = self.channel(channel).channel.name;
                let dir = self.channels_dir();
                self.plants.plant(plant, &dir, &name)
            }
            Step::Wire { loss, copies, late } => {
                Ok(self.wire.as_ref().map(|wire| wire.set(loss, copies, late)).is_some())
            }
            Step::Forge { ahead, other } => {
                self.wire.as_ref().map_or(Ok(false), |wire| wire.forge(ahead, other))
            }
            Step::Net(step) => self.carry_out_between_hosts(step),
            Step::Bound { .. } | Step::Host(_) | Step::Verb { .. } => self.limit_something(step),
            Step::Race {} | Step::Wait { .. } | Step::Settle {} => Ok(self.wait(step)),
            _ => self.run_errand(step),
        }
    }

    fn wait(&mut self, step: &Step) -> bool {
        match *step {
            Step::Race {} => self.is_racing = true,
            Step::Wait { ms } => std::thread::sleep(Duration::from_millis(ms.into())),
            _ => self.settle(COURTESY),
        }
        true
    }

    fn subscribe(
        &mut self,
        who: u8,
        channel: u8,
        (start, wait): (Start, Waiting),
        (skip, page, live_only): (bool, bool, bool),
    ) -> Result<bool> {
        // After a promotion, the previous host's channel gets no new readers.
        if usize::from(channel) < self.home() {
            return Ok(false);
        }
        let known = self.channel(channel);
        let (number, host) = (known.number(self.channels.len()), known.host as u8);
        let place = self.place(known.host);
        let wanted = wanted(place, &known.channel.name);
        let testee = self.testee(who, channel).filter(|_| !skip && known.channel.journal.is_none());
        let page = page && testee.is_none();
        let wanted = Subscribing { host, start, wait, skip, page, live_only, testee, ..wanted };
        self.order_to_attach(Whom::Reader(who), Order::Subscribe(wanted), number)
    }

    /// Returns the command of the testee that the seed chooses as this reader. Returns `None` for a reader in Rust.
    fn testee(&self, who: u8, channel: u8) -> Option<String> {
        let all = &self.programs.testees;
        let chosen = (self.seed + u64::from(who) + u64::from(channel)) as usize % (all.len() + 1);
        all.get(chosen).cloned()
    }

    /// Gives an order to an actor that exists.
    fn tell(&mut self, whom: Whom, order: Order) -> Result<bool> {
        if self.there(whom).is_none() {
            return Ok(false);
        }
        Ok(self.order(whom, order)?.is_some())
    }

    fn open(&mut self, who: u8, channel: u8, anew: bool, full: bool, mode: Option<u32>) -> Result<bool> {
        let known = self.channel(channel + (self.home() * self.channels.len()) as u8);
        let number = known.number(self.channels.len());
        let shape = self.shape(&known.channel);
        let Channel { name: channel, capacity, largest, .. } = known.channel.clone();
        let publisher = self.openings;
        self.openings += 1;
        let sizes = self.daemons.is_empty().then_some([capacity, largest]);
        let place = self.place(known.host);
        let anew = anew && self.daemons.is_empty();
        if anew {
            self.note(Deed::MayRestart { channel: channel.clone(), why: "opened anew".into() })?;
        }
        let order = Order::Open(Opening {
            place,
            channel,
            publisher,
            sizes,
            anew,
            full,
            mode,
            patience_ms: 0,
            shape,
        });
        let made = self.is_to_be_made(&known.channel.name);
        let was_told = self.order_to_attach(Whom::Publisher(who), order, number)?;
        self.note_half_made(made, Whom::Publisher(who))?;
        Ok(was_told)
    }

    /// Orders an actor to attach to the channel with this number. Before that, the actor leaves its present channel, even if it is the same
    /// channel.
    pub(super) fn order_to_attach(&mut self, whom: Whom, order: Order, number: usize) -> Result<bool> {
        let before = self.there(whom).and_then(|actor| actor.channel.take());
        self.note_lost_rings("its last holder left it for another, or to attach again")?;
        let was_told = self.order(whom, order)?.is_some();
        // A busy actor has not received the order, and keeps its channel.
        if let Some(actor) = self.there(whom) {
            actor.channel = if was_told { Some(number) } else { before };
        }
        Ok(was_told)
    }

    pub(super) fn close(&mut self, whom: Whom) -> Result<bool> {
        let was_told = self.tell(whom, Order::Close {})?;
        if let Some(actor) = self.there(whom).filter(|_| was_told) {
            actor.channel = None;
        }
        if was_told {
            self.note_lost_rings("its last holder left")?;
        }
        Ok(was_told)
    }

    fn kill(&mut self, whom: Whom, after_us: u32) -> Result<bool> {
        std::thread::sleep(Duration::from_micros(after_us.into()));
        let Some(actor) = self.slot(whom).and_then(Option::take) else { return Ok(false) };
        self.kill_actor(actor)?;
        self.note_lost_rings("its last holder was killed")?;
        Ok(true)
    }

    pub(super) fn kill_actor(&mut self, mut actor: Actor) -> Result<()> {
        self.signal_actor(&mut actor, Signal::SIGKILL)?;
        actor.kill();
        let (status, said) = (actor.ended(), actor.said());
        self.note(ended(std::mem::take(&mut actor.name), status, true, said))
    }

    pub(super) fn signal_actor(&mut self, actor: &mut Actor, signal: Signal) -> Result<()> {
        actor.signal(signal);
        self.note_signal(actor.name.clone(), signal)
    }

    fn note_signal(&mut self, who: String, signal: Signal) -> Result<()> {
        self.note(Deed::Signalled { who, signal: signal.as_str().trim_start_matches("SIG").to_owned() })
    }

    fn signal(&mut self, whom: Whom, signal: Signal) -> Result<bool> {
        let who = match whom {
            Whom::Daemon | Whom::Far | Whom::Host(_) => {
                let Some(daemon) = self.daemon(whom).filter(|d| d.pid().is_some()) else { return Ok(false) };
                daemon.signal(signal);
                daemon.name.to_owned()
            }
            _ => {
                let Some(actor) = self.there(whom) else { return Ok(false) };
                actor.signal(signal);
                actor.name.clone()
            }
        };
        self.note_signal(who, signal)?;
        if signal == Signal::SIGSTOP {
            self.note_lost_rings("its last holder was stopped")?;
        }
        Ok(true)
    }

    /// Returns the id of a process that runs.
    pub(super) fn pid_of(&mut self, whom: Whom) -> Option<u32> {
        match whom {
            Whom::Daemon | Whom::Far | Whom::Host(_) => self.daemon(whom)?.pid(),
            Whom::Recorder(at) => self.pid_of_recorder(at),
            _ => self.there(whom).map(|actor| actor.pid()),
        }
    }

    fn limit(&mut self, whom: Whom, spare: Option<u8>) -> Result<bool> {
        let Some(pid) = self.pid_of(whom) else { return Ok(false) };
        let is_limited = set_descriptor_limit(pid, spare);
        if is_limited && spare.is_some() && matches!(whom, Whom::Daemon | Whom::Far) {
            self.note_shut_out()?;
        }
        Ok(is_limited)
    }

    pub(super) fn start_daemon(&mut self, whom: Whom) -> Result<bool> {
        let programs = self.programs;
        let Some(daemon) = self.daemon(whom).filter(|d| d.pid().is_none()) else { return Ok(false) };
        let others: Vec<String> =
            daemon.channels.iter().filter(|c| c.is_other).map(|c| c.channel.name.clone()).collect();
        daemon.channels.iter_mut().for_each(|c| c.is_other = false);
        daemon.configure(false)?;
        daemon.start(programs)?;
        let (pid, answers) = (daemon.pid(), daemon.answers(PATIENCE));
        let (who, said) = (daemon.name.to_owned(), daemon.said());
        self.note(Deed::Started { who: who.clone(), pid: pid.unwrap_or(0) })?;
        for channel in others {
            self.note(Deed::MayRestart { channel, why: "made otherwise by the next daemon".into() })?;
        }
        if !answers {
            let order = format!("to start: {}", said.lines().last().unwrap_or_default());
            self.note(Deed::NoAnswer { who, order })?;
        }
        Ok(true)
    }

    fn restart(&mut self, whom: Whom, by: Signal) -> Result<bool> {
        let Some(daemon) = self.daemon(whom).filter(|d| d.pid().is_some()) else { return Ok(false) };
        daemon.signal(by);
        // A stopped daemon must continue before it can end.
        daemon.signal(Signal::SIGCONT);
        let status = daemon.wait(PATIENCE);
        let (who, said) = (daemon.name.to_owned(), daemon.said());
        if status.is_none() {
            daemon.kill();
            self.note(Deed::NoAnswer { who: who.clone(), order: "to end".into() })?;
        }
        self.note_signal(who.clone(), by)?;
        self.note(ended(who, status, by == Signal::SIGKILL, said))?;
        self.note_lost_rings("nobody held it when the daemon ended")?;
        self.start_daemon(whom)
    }

    /// Writes to the story's log which channels may restart at sequence 1 from now on, because their rings can be lost. A daemon's ring can
    /// be lost if only attached programs have the ring's memory, and none of these programs runs.
    fn note_lost_rings(&mut self, why: &str) -> Result<()> {
        let count = self.channels.len();
        for host in 0..self.daemons.len() {
            let daemon = &self.daemons[host];
            let is_away = daemon.pid().is_none() || daemon.is_young();
            if daemon.keeps() || !is_away {
                continue;
            }
            let names: Vec<String> = daemon.channels.iter().map(|c| c.channel.name.clone()).collect();
            for (at, channel) in names.into_iter().enumerate() {
                let mut held = 0;
                for actor in self.publishers.iter_mut().chain(&mut self.readers).flatten() {
                    actor.collect(Duration::ZERO);
                    let is_here = actor.channel == Some(host * count + at);
                    held += usize::from(actor.holds && !actor.is_stopped && is_here);
                }
                if held == 0 {
                    self.note(Deed::MayRestart { channel, why: why.to_owned() })?;
                }
            }
        }
        Ok(())
    }

    /// Writes to the story's log that the channels of all young daemons may restart at sequence 1. Called when a daemon's descriptors have
    /// been limited, because a young daemon might then have no free descriptors for programs that attach again. The rings of these programs
    /// can be lost.
    fn note_shut_out(&mut self) -> Result<()> {
        let is_young = |daemon: &Daemon| !daemon.keeps() && daemon.is_young();
        let young = self.daemons.iter().filter(|daemon| is_young(daemon)).flat_map(|daemon| &daemon.channels);
        let names: Vec<String> = young.map(|configured| configured.channel.name.clone()).collect();
        let why = "the daemon had no descriptors for those who came back";
        names.into_iter().try_for_each(|channel| self.note(Deed::MayRestart { channel, why: why.into() }))
    }

    pub(super) fn reload(&mut self, channel: u8, change: Change) -> Result<bool> {
        let Known { host, at, .. } = self.channel(channel);
        let Some(daemon) = self.daemons.get_mut(host) else { return Ok(false) };
        let configured = &mut daemon.channels[at];
        let name = configured.channel.name.clone();
        let mut restarts = false;
        match change {
            Change::Nothing | Change::Broken => {}
            Change::Board | Change::Gates => configured.channel.change_shape(change),
            Change::Journal => {
                configured.records = configured.channel.journal.is_some() && !configured.records
            }
            Change::Remove => {
                restarts = configured.is_there;
                configured.is_there = false;
            }
            Change::Add => {
                restarts = !configured.is_there;
                configured.is_there = true;
            }
            Change::Largest => {
                let most = (configured.channel.capacity / 8).min(16 << 20);
                configured.channel.largest = (configured.channel.largest * 2).min(most);
            }
            Change::Capacity => {
                configured.channel.capacity = (configured.channel.capacity * 2).min(16 << 20);
                configured.is_other = true;
            }
            Change::Mode => {
                configured.channel.strict = !configured.channel.strict;
                configured.is_other = true;
            }
        }
        let may_begin_anew = restarts || matches!(change, Change::Capacity | Change::Mode);
        daemon.configure(change == Change::Broken)?;
        daemon.signal(Signal::SIGHUP);
        if may_begin_anew {
            self.note(Deed::MayRestart { channel: name, why: format!("reload: {change:?}") })?;
        }
        if !std::mem::take(&mut self.is_racing) {
            self.wait_for_reload(host);
        }
        Ok(true)
    }

    /// Waits until the daemon has read its configuration, and has exactly the channels of the configuration. Gives up after a short time.
    fn wait_for_reload(&mut self, host: usize) {
        let Some(daemon) = self.daemons.get(host).filter(|d| !d.is_stopped && d.pid().is_some()) else {
            return;
        };
        let mut wanted: Vec<String> =
            daemon.channels.iter().filter(|c| c.is_there).map(|c| c.channel.name.clone()).collect();
        wanted.sort();
        let until = Instant::now() + COURTESY;
        while Instant::now() < until {
            let there = shmcast::Client::at(daemon.socket()).and_then(|client| client.channels());
            if there.is_ok_and(|there| there.iter().map(|c| &c.channel).eq(&wanted)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn take_over(&mut self, channel: u8) -> Result<bool> {
        let Known { host, at, channel, .. } = self.channel(channel);
        let channel = channel.name;
        let Some(daemon) = self.daemons.get(host).filter(|d| d.pid().is_some()) else { return Ok(false) };
        if daemon.is_stopped {
            return Ok(false);
        }
        // The takeover is logged before it begins. Messages that are published during the takeover can be void or valid.
        self.note(Deed::TakingOver { channel: channel.clone() })?;
        self.run_tool(host, &["takeover", &channel])?;
        // After the takeover, the old publisher no longer has the channel's ring.
        let place = Some(host * self.channels.len() + at);
        let cut_off = self.publishers.iter_mut().flatten().filter(|publisher| publisher.channel == place);
        for publisher in cut_off {
            publisher.collect(Duration::ZERO);
            publisher.holds = false;
        }
        Ok(true)
    }

    fn remove(&mut self, channel: u8) -> Result<bool> {
        if !self.daemons.is_empty() {
            return Ok(false);
        }
        let channel = self.channel(channel).channel.name;
        self.note(Deed::MayRestart { channel: channel.clone(), why: "removed".into() })?;
        self.run_tool(0, &["rm", &channel])?;
        Ok(true)
    }

    fn look(&mut self, tool: Tool, channel: u8) -> Result<bool> {
        let Known { host, channel, .. } = self.channel(channel);
        let channel = channel.name;
        match (tool, self.daemons.get(host)) {
            (Tool::Ls, _) => self.run_tool(host, &["ls", "--json"])?,
            (Tool::Stat, _) => self.run_tool(host, &["stat", &channel, "--json"])?,
            (Tool::Top, _) => self.run_tool(host, &["top", "--json", "--interval", "100ms"])?,
            (Tool::Doctor, _) => self.run_tool(host, &["doctor", "--json"])?,
            (Tool::Metrics, Some(daemon)) => {
                if daemon.is_stopped || daemon.pid().is_none() {
                    return Ok(false);
                }
                let deed = self.scrape(host, daemon.port())?;
                self.note(deed)?;
            }
            (Tool::Metrics, None) => return Ok(false),
            (Tool::Verify, _) => return self.verify(&channel),
        }
        Ok(true)
    }

    /// Passes tools a path instead of a channel's name. The path leads to a channel in another directory, which must stay unchanged.
    pub(super) fn stray(&mut self) -> Result<bool> {
        if !self.daemons.is_empty() {
            return Ok(false);
        }
        let elsewhere = self.dir.join("elsewhere");
        let dir = elsewhere.display().to_string();
        self.run_tool(0, &["pub", "x", "--dir", &dir, "--input", "/dev/null"])?;
        let (before, path) = (tree(&elsewhere), format!("{dir}/x"));
        for verb in ["stat", "rm"] {
            self.run_tool(0, &[verb, &path])?;
        }
        if tree(&elsewhere) != before {
            self.note(Deed::Changed { what: path })?;
        }
        Ok(true)
    }

    /// Runs `shmcast` with these arguments on a host, and logs its output.
    pub(super) fn run_tool(&mut self, host: usize, arguments: &[&str]) -> Result<()> {
        let mut command = self.programs.command(&self.programs.shmcast);
        command.args(arguments);
        match self.daemons.get(host) {
            Some(daemon) => command.env("SHMCAST_SOCKET", daemon.socket()),
            None => command.env("SHMCAST_DIR", self.channels_dir()),
        };
        let deed = tools::run(host, command, &self.logs)?;
        self.note(deed)
    }

    /// Waits until all actors that are not stopped have carried out their orders, except orders without a time limit.
    pub(super) fn settle(&mut self, patience: Duration) {
        let until = Instant::now() + patience;
        for actor in self.publishers.iter_mut().chain(&mut self.readers).flatten() {
            while !actor.is_stopped
                && !actor.is_patient()
                && Instant::now() < until
                && actor.ended().is_none()
            {
                actor.collect(Duration::from_millis(5));
            }
        }
    }
}

/// Returns the paths of everything below `dir`.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                open.push(entry.path());
            }
            found.push(entry.path());
        }
    }
    found.sort();
    found
}

/// If a step consists of a single order to an actor, returns the actor and the order.
fn order_of(step: &Step) -> Option<(Whom, Order)> {
    let (publisher, reader) = (Whom::Publisher, Whom::Reader);
    Some(match *step {
        Step::Fork { whom } => (whom, Order::Fork {}),
        Step::Publish { who, count, sizes, sending, pause_us } => {
            (publisher(who), Order::Publish { count, sizes, sending, pause_us })
        }
        Step::Gap { who, by } => (publisher(who), Order::Gap { by }),
        Step::Session { who, tag } => (publisher(who), Order::Session { identity: format!("CHAOS{tag:05}") }),
        Step::Read { who, how, ms, rest_us } => (reader(who), Order::Read { how, ms, rest_us }),
        Step::Block { who, events } => (reader(who), Order::Block { events }),
        Step::Seek { who, by } => (reader(who), Order::Seek { by }),
        _ => return None,
    })
}
