//! Carries out the steps of a story with several hosts.

use super::super::{PATIENCE, World, ended, tools};
use super::{DAEMONS, KEY, Network, SENDER};
use crate::log::{Deed, now};
use crate::story::{Change, Does, NetStep, Whom};
use anyhow::{Context, Result};
use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The time within which a bridge must learn its session from the first host's bridge.
const JOINING: Duration = Duration::from_secs(60);
/// The time for which a channel must be silent before it can be promoted, and a little more.
const SILENCE: Duration = Duration::from_millis(3400);
const MS: u64 = 1_000_000;

impl Network {
    /// Returns the exit status of the second sender, if it has ended by itself.
    fn sender_ended(&mut self) -> Option<ExitStatus> {
        let status = self.sender.as_mut()?.try_wait().ok().flatten()?;
        self.sender = None;
        Some(status)
    }

    fn signal_sender(&mut self, signal: Signal) -> bool {
        let Some(sender) = &self.sender else { return false };
        self.is_sender_stopped = signal == Signal::SIGSTOP;
        kill(Pid::from_raw(sender.id() as i32), signal).is_ok()
    }
}

impl World<'_> {
    pub(in super::super) fn carry_out_between_hosts(&mut self, step: NetStep) -> Result<bool> {
        let Some(network) = &mut self.network else { return Ok(false) };
        let (hosts, lines) = (network.net.hosts(), usize::from(network.net.lines));
        match step {
            NetStep::Quality { line, loss, copies, late } => {
                network.hubs[usize::from(line) % lines].set(loss, copies, late);
                Ok(true)
            }
            NetStep::CutOff { host, line, ms } => {
                network.hubs[usize::from(line) % lines]
                    .cut(usize::from(host) % hosts, now() + u64::from(ms) * MS);
                Ok(true)
            }
            NetStep::Remake { host, line, ms } => {
                let (host, line) = (usize::from(host) % hosts, usize::from(line) % lines);
                network.unplug(host, line)?;
                std::thread::sleep(Duration::from_millis(ms.into()));
                let port = network.plug(host, line)?;
                network.hubs[line].replace(host, Some(port));
                Ok(true)
            }
            NetStep::Play { line, forgery } => {
                let mut random = Rng::with_seed(self.seed ^ now());
                network.play(usize::from(line) % lines, forgery, &mut random)
            }
            NetStep::Sender { does } => self.tell_sender(does),
            NetStep::TakeOver { host } => self.order_to_send(usize::from(host) % hosts),
            NetStep::Keys { backwards } => self.change_keys(backwards),
            NetStep::Promote {} => self.promote(),
        }
    }

    fn tell_sender(&mut self, does: Does) -> Result<bool> {
        let Some(network) = self.network.as_mut().filter(|network| network.net.has_peer) else {
            return Ok(false);
        };
        if network.is_promoted {
            return Ok(false);
        }
        match does {
            Does::Start => return self.start_peer(),
            Does::Stop => return Ok(network.signal_sender(Signal::SIGSTOP)),
            Does::Continue => return Ok(network.signal_sender(Signal::SIGCONT)),
            Does::End | Does::Kill => {}
        }
        let Some(mut sender) = network.sender.take() else { return Ok(false) };
        let is_kill = does == Does::Kill;
        let pid = Pid::from_raw(sender.id() as i32);
        let _ = kill(pid, if is_kill { Signal::SIGKILL } else { Signal::SIGTERM });
        let _ = kill(pid, Signal::SIGCONT);
        network.is_sender_stopped = false;
        let status = wait_for_end(&mut sender)?;
        if status.is_none() {
            self.note(Deed::NoAnswer { who: SENDER.into(), order: "to end".into() })?;
        }
        self.note_end_of_sender(status, is_kill)?;
        Ok(true)
    }

    /// Starts the first host's second sender, if the story has one.
    pub(in super::super) fn start_peer(&mut self) -> Result<bool> {
        let channel = self.channels[0].name.clone();
        let Some(network) = self.network.as_mut() else { return Ok(false) };
        if !network.net.has_peer || network.sender.is_some() || network.is_promoted {
            return Ok(false);
        }
        network.senders += 1;
        let (mut words, who) = (network.on(0), format!("{SENDER}{}", network.senders));
        words.extend([self.programs.shmcast.display().to_string()]);
        words.extend(network.second_sender(&channel));
        let log =
            File::options().create(true).append(true).open(self.logs.join(format!("{SENDER}.stderr")))?;
        let mut command = self.programs.command(Path::new(&words[0]));
        command.args(&words[1..]).env("SHMCAST_SOCKET", self.daemons[0].socket());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().context("start a sender")?;
        let pid = child.id();
        network.sender = Some(child);
        self.note(Deed::Started { who, pid })?;
        Ok(true)
    }

    fn note_end_of_sender(&mut self, status: Option<ExitStatus>, sent: bool) -> Result<()> {
        let said = fs::read_to_string(self.logs.join(format!("{SENDER}.stderr"))).unwrap_or_default();
        let who = self.network.as_ref().map_or_else(String::new, |n| format!("{SENDER}{}", n.senders));
        self.note(ended(who, status, sent, said))
    }

    /// Logs the end of the second sender, if the sender ended by itself. Exit status 1 is not logged: the sender then found no daemon or no
    /// free address.
    pub(in super::super) fn reap_sender(&mut self) -> Result<()> {
        match self.network.as_mut().and_then(Network::sender_ended) {
            // A sender that finds no daemon, or no free address for its server, reports this and ends.
            Some(status) if status.code() == Some(1) => Ok(()),
            Some(status) => self.note_end_of_sender(Some(status), false),
            None => Ok(()),
        }
    }

    /// Continues or starts the second sender.
    pub(in super::super) fn heal_sender(&mut self) -> Result<()> {
        if let Some(network) = &mut self.network {
            network.heal();
            network.signal_sender(Signal::SIGCONT);
        }
        self.reap_sender()?;
        self.start_peer().map(|_| ())
    }

    /// Ends the second sender cleanly.
    pub(in super::super) fn end_sender(&mut self) -> Result<()> {
        self.tell_sender(Does::End).map(|_| ())
    }

    fn order_to_send(&mut self, host: usize) -> Result<bool> {
        let Some(daemon) = self.daemons.get(host).filter(|d| !d.is_stopped && d.pid().is_some()) else {
            return Ok(false);
        };
        let client = shmcast::Client::at(daemon.socket());
        Ok(client.is_ok_and(|client| client.take_over_bridge(super::tables::OUT).is_ok()))
    }

    /// Adds a key to the keys file, and makes all daemons read the file again. The new key starts later than all other keys.
    fn change_keys(&mut self, backwards: bool) -> Result<bool> {
        let Some(network) = self.network.as_mut().filter(|network| network.net.sealed) else {
            return Ok(false);
        };
        network.keys += 1;
        let text: String = (2..=network.keys)
            .fold(KEY.to_owned(), |text, id| format!("{text}{id} {:032x}\n", u128::from(id) << 64 | 7));
        network.write_keys(&text)?;
        // The second sender's command reads the file only once, so it must be restarted.
        let had_sender = self.tell_sender(Does::End)?;
        let mut hosts: Vec<u8> = (0..self.daemons.len() as u8).collect();
        if backwards {
            hosts.reverse();
        }
        for host in hosts {
            self.reload(host, Change::Nothing)?;
        }
        if had_sender {
            self.start_peer()?;
        }
        Ok(true)
    }

    /// Cuts the first host off, and promotes the second host's channel. The promoted channel has its own publishers.
    fn promote(&mut self) -> Result<bool> {
        let is_ready = |d: &super::super::daemon::Daemon| !d.is_stopped && d.pid().is_some();
        if self.network.as_ref().is_none_or(|network| network.is_promoted)
            || !self.daemons.get(1).is_some_and(is_ready)
        {
            return Ok(false);
        }
        for at in 0..self.publishers.len() {
            self.carry_out(&crate::story::Step::Continue { whom: Whom::Publisher(at as u8) })?;
            self.close(Whom::Publisher(at as u8))?;
        }
        for at in 0..self.readers.len() {
            if self.readers[at].as_ref().is_some_and(|reader| reader.channel == Some(0)) {
                self.carry_out(&crate::story::Step::Continue { whom: Whom::Reader(at as u8) })?;
                self.close(Whom::Reader(at as u8))?;
            }
        }
        let Some(network) = &mut self.network else { return Ok(false) };
        network.hubs.iter().for_each(|hub| hub.cut(0, u64::MAX));
        std::thread::sleep(SILENCE);
        let channel = self.channels[0].name.clone();
        let mut command = self.programs.command(&self.programs.shmcast);
        command
            .args(["bridge", "promote", &channel, "--json"])
            .env("SHMCAST_SOCKET", self.daemons[1].socket());
        let deed = tools::run(1, command, &self.logs)?;
        let Deed::Ran { code, out, err, .. } = &deed else { return Ok(false) };
        let said: Value = serde_json::from_str(out).unwrap_or(Value::Null);
        let done = match (code, said["from"].as_u64(), said["to"].as_u64()) {
            (Some(0), Some(from), Some(to)) => Deed::Promoted { channel, from, to },
            // The first host had sent nothing yet.
            _ if err.contains("no mirror") => return self.note(deed).map(|()| false),
            _ => Deed::Refused { who: "bridge promote".into(), what: err.clone() },
        };
        let is_done = matches!(done, Deed::Promoted { .. });
        self.note(deed)?;
        self.note(done)?;
        if let Some(network) = &mut self.network {
            network.is_promoted = is_done;
            if !is_done {
                network.hubs.iter().for_each(|hub| hub.cut(0, 0));
            }
        }
        Ok(is_done)
    }

    /// Returns the number of the host that has the channel's publishers.
    pub(in super::super) fn home(&self) -> usize {
        usize::from(self.network.as_ref().is_some_and(|network| network.is_promoted))
    }

    /// Waits until every host's bridge has received the session. Without a repair server, a receiver that begins late would miss messages.
    pub(in super::super) fn wait_for_sessions(&mut self) -> Result<()> {
        let until = Instant::now() + JOINING;
        for (host, who) in DAEMONS.iter().enumerate().take(self.daemons.len()).skip(1) {
            let has_session = |socket| {
                let bridges = shmcast::Client::at(socket).and_then(|client| client.bridges());
                bridges.is_ok_and(|all| all.iter().any(|b| b.direction == "receive" && b.session.is_some()))
            };
            while !has_session(self.daemons[host].socket()) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            if Instant::now() >= until {
                let who = (*who).to_owned();
                self.note(Deed::NoAnswer { who, order: "to hear the session".into() })?;
            }
        }
        Ok(())
    }

    /// Logs the status of each host's bridges, when everything is at rest.
    pub(in super::super) fn look_at_bridges(&mut self) -> Result<()> {
        if self.network.is_some() {
            let until = Instant::now() + JOINING;
            for host in self.home()..self.daemons.len() {
                // If a bridge fails because an interface is gone, its daemon starts it again after some seconds.
                let has_failed = |socket| {
                    let bridges = shmcast::Client::at(socket).and_then(|client| client.bridges());
                    bridges.is_ok_and(|all| all.iter().any(|bridge| bridge.state == "failed"))
                };
                while has_failed(self.daemons[host].socket()) && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(100));
                }
                self.run_tool(host, &["bridge", "status", "--json"])?;
            }
        }
        Ok(())
    }
}

fn wait_for_end(child: &mut Child) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + PATIENCE;
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(Some(status)),
            None if Instant::now() > until => {
                child.kill()?;
                child.wait()?;
                return Ok(None);
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
