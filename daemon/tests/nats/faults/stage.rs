//! Servers, a channel, and the bridges through them.

use super::line::Line;
use crate::feed::Bridge;
use serde_json::Value;
use shmcast_testkit::disk::Disk;
use shmcast_testkit::hosts::{Host, Hosts};
use shmcast_testkit::nats::{Cluster, Server, Site};
use shmcast_testkit::place::{free_port, program};
use shmcast_testkit::{PATIENCE, wait_for, wait_until};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The disk of one server, in MiB.
const DISK_MIB: u64 = 160;
/// A size of the sender's ring that keeps everything that a cell publishes.
pub(super) const ROOMY: u64 = 64 << 20;
/// The longest wait for whole copies. Servers that take longer are made anew.
const WHOLE: Duration = Duration::from_secs(30);

/// If the servers stand still, and the feed with them, for longer than this, the stream is made anew.
const STILL: Duration = Duration::from_secs(45);

/// The servers, disks and hosts that a cell needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    One,
    Three,
    /// Three servers, each with a disk whose power can be cut. The servers sync each write, or only when they choose.
    Disks {
        always: bool,
    },
    /// Three servers and the bridges. Each is on a host of its own at a switch.
    Hosts,
}

/// A mistake that is planted in an end of the bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Planted {
    InSender(&'static str),
    InReceiver(&'static str),
}

/// The parts of a stage.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) needs: Needs,
    pub(super) burst: u64,
    pub(super) capacity: u64,
    pub(super) rivals: bool,
    pub(super) planted: Option<Planted>,
}

/// Fields are dropped in their order, so processes come before the disks that they use.
pub(super) struct Stage {
    pub(super) send: Option<Bridge>,
    pub(super) rival: Option<Bridge>,
    pub(super) receive: Option<Bridge>,
    pub(super) line: Line,
    pub(super) cluster: Cluster,
    pub(super) disks: Vec<Disk>,
    pub(super) hosts: Option<Hosts>,
    /// Which of the two senders writes, if there are two.
    pub(super) rival_writes: bool,
    planted: Option<Planted>,
    /// The number of messages that the servers had acknowledged and lost, and that came nevertheless.
    mended: u64,
    /// The number of times that the stream was removed and made again, because the servers could not continue it.
    stills: u64,
    /// The counters of the bridges that have ended.
    counted: Vec<String>,
    /// Whether a receiver is allowed to end after its start, because the servers do not answer yet. An operator would start it again.
    may_end: bool,
    _dir: TempDir,
}

/// Returns the last warnings of a log.
fn tail(log: &str) -> String {
    let is_told = |line: &&str| line.contains("[WRN]") || line.contains("[ERR]") || line.contains("leader");
    let lines: Vec<&str> = log.lines().filter(is_told).collect();
    lines[lines.len().saturating_sub(6)..].join(" / ")
}

fn cluster(program: &Path, dir: &Path, needs: Needs, disks: &[Disk], hosts: Option<&Hosts>) -> Cluster {
    let below = |n: usize| Site::below(&dir.join(format!("s{n}")));
    let mut sites = [below(0), below(1), below(2)];
    for (n, disk) in disks.iter().enumerate() {
        sites[n].store = disk.path().join("store");
        if needs == (Needs::Disks { always: true }) {
            sites[n].jetstream = ", sync_interval: always".to_owned();
        }
    }
    if let Some(hosts) = hosts {
        for (n, (site, host)) in sites.iter_mut().zip([Host::B, Host::C, Host::D]).enumerate() {
            (site.host, site.port) = (format!("10.77.0.{}", n + 2), 4222);
            site.namespace = Some(hosts.name(host).to_owned());
        }
    }
    let mut cluster = match needs {
        Needs::One => Cluster::of_one(Server::at(program, sites[0].clone())),
        Needs::Hosts => Cluster::at(program, sites, [6222; 3]),
        _ => Cluster::at(program, sites, [0; 3].map(|_| free_port())),
    };
    cluster.servers.iter_mut().for_each(Server::start_soon);
    cluster
}

impl Stage {
    /// Starts the servers, the channel and the bridges. The error says why that is not possible here.
    pub(super) fn start(test: &str, server: &Path, plan: Plan) -> Result<Stage, String> {
        let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
        let count = if matches!(plan.needs, Needs::Disks { .. }) { 3 } else { 0 };
        let disks: Option<Vec<Disk>> = (0..count).map(|_| Disk::of_mib(DISK_MIB)).collect();
        let disks = disks.ok_or("no ext4 can be made and mounted")?;
        let hosts = match plan.needs {
            Needs::Hosts => Some(Hosts::at_a_switch(test).ok_or("no network namespaces")?),
            _ => None,
        };
        let cluster = cluster(server, dir.path(), plan.needs, &disks, hosts.as_ref());
        let mut stage = Stage {
            send: None,
            rival: None,
            receive: None,
            line: Line::publish(plan.burst, plan.capacity),
            cluster,
            disks,
            hosts,
            rival_writes: false,
            planted: plan.planted,
            mended: 0,
            stills: 0,
            counted: Vec::new(),
            may_end: true,
            _dir: dir,
        };
        // The servers elect a leader before they make streams.
        wait_until("a stream", || {
            stage.at_near(&format!("stream create ticks {}", stage.nats())).status.success()
        });
        stage.send = Some(stage.sender());
        stage.begin_receive();
        stage.goes_on(Instant::now())?;
        if plan.rivals {
            stage.rival = Some(stage.sender());
        }
        Ok(stage)
    }

    /// The addresses of all servers.
    pub(super) fn nats(&self) -> String {
        self.cluster.urls()
    }

    fn command(&self, is_near: bool, arguments: &str) -> Command {
        let host = if is_near { &self.line.near } else { &self.line.far };
        let plain = host.shmcast(&format!("bridge {arguments}"));
        let Some(hosts) = &self.hosts else { return plain };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", hosts.name(Host::A)]).arg(program("shmcast")).args(plain.get_args());
        command.env("SHMCAST_DIR", host.dir.path().join("channels"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn at_near(&self, arguments: &str) -> Output {
        shmcast_testkit::Process::start(&mut self.command(true, arguments)).output()
    }

    fn sender(&self) -> Bridge {
        let mut command =
            self.command(true, &format!("send ticks --nats {} --set nats.create=true", self.nats()));
        if let Some(Planted::InSender(mistake)) = self.planted {
            command.env("SHMCAST_ENGINE_MISTAKE", mistake);
        }
        Bridge::start(command)
    }

    /// Starts the receiving end.
    pub(super) fn begin_receive(&mut self) {
        let mut command = self.command(false, &format!("recv ticks --capacity 64MiB --nats {}", self.nats()));
        if let Some(Planted::InReceiver(mistake)) = self.planted {
            command.env("SHMCAST_ENGINE_MISTAKE", mistake);
        }
        (self.receive, self.may_end) = (Some(Bridge::start(command)), true);
    }

    /// Ends the receiving end. Waits until the servers have acknowledged this many messages that it has not read.
    pub(super) fn leave_behind(&mut self, messages: u64) {
        self.end_receive();
        let next = self.line.next() + messages;
        wait_until("messages in the log alone", || {
            self.info(&self.nats())["next_sequence"].as_u64() >= Some(next)
        });
    }

    fn end_receive(&mut self) {
        if let Some(receive) = self.receive.take() {
            let (received, _) = receive.end();
            self.counted.push(received["receive"].to_string());
            self.mended += received["receive"]["mended"].as_u64().unwrap_or(0);
        }
    }

    /// The servers' answer about the stream; empty if they do not answer.
    pub(super) fn info(&self, nats: &str) -> Value {
        let output = self.at_near(&format!("stream info ticks {nats} --json"));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Waits until this many more messages have come to the far end.
    pub(super) fn flow(&mut self, messages: u64) -> Result<(), String> {
        let next = self.line.due() + messages;
        self.wait_for_due(next, Instant::now()).map(drop)
    }

    /// Returns the time from `since` until the far end had everything that is published by now.
    pub(super) fn goes_on(&mut self, since: Instant) -> Result<Duration, String> {
        let next = self.line.next() + 1;
        self.wait_for_due(next, since)
    }

    fn wait_for_due(&mut self, next: u64, since: Instant) -> Result<Duration, String> {
        let (mut began, mut is_new) = (Instant::now(), false);
        while self.line.due() < next {
            if let Some(odd) = self.line.broken() {
                return Err(odd);
            }
            for bridge in [&mut self.send, &mut self.rival].into_iter().flatten() {
                bridge.assert_alive();
            }
            match self.receive.as_mut().and_then(Bridge::has_ended) {
                Some(_) if self.may_end => self.begin_receive(),
                Some(said) => return Err(format!("the receiver has ended: {said}")),
                None => {}
            }
            if !is_new && began.elapsed() > STILL && self.servers_stand_still() {
                self.make_anew()?;
                (began, is_new) = (Instant::now(), true);
            }
            if began.elapsed() > PATIENCE {
                return Err(self.standstill(next));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.may_end = false;
        Ok(since.elapsed())
    }

    /// Whether the servers report that they have no leader, or no majority that follows the leader.
    fn servers_stand_still(&self) -> bool {
        let info = self.info(&self.nats());
        let has_leader = info["leader"].as_str().is_some_and(|name| !name.is_empty());
        let late = info["lagging"].as_array().map_or(0, Vec::len);
        self.cluster.servers.len() > 1 && (!has_leader || 2 * late > self.cluster.servers.len())
    }

    /// Removes the stream, as an operator does if the servers cannot continue it. The sender makes the stream again.
    fn make_anew(&mut self) -> Result<(), String> {
        let remove = format!("stream rm ticks {}", self.nats());
        let began = Instant::now();
        loop {
            let output = self.at_near(&remove);
            match output.status.success() {
                true => break self.stills += 1,
                false if began.elapsed() < PATIENCE => {}
                false => {
                    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                    return Err(format!("the servers stand still, and the stream cannot be removed: {said}"));
                }
            }
        }
        // If a receiver finds no stream at its start, it ends.
        self.may_end = true;
        Ok(())
    }

    /// The number of times that the stream was made anew since the last call.
    pub(super) fn take_stills(&mut self) -> u64 {
        std::mem::take(&mut self.stills)
    }

    /// Describes a stream that does not continue. Ends the bridges for this.
    fn standstill(&mut self, next: u64) -> String {
        let (info, due) = (self.info(&self.nats()), self.line.due());
        let bridges = [self.send.take(), self.rival.take(), self.receive.take()].into_iter().flatten();
        let said: Vec<String> = bridges
            .map(|mut bridge| {
                let words = bridge.last_words();
                bridge.has_ended().unwrap_or_else(|| format!("{words} {}", bridge.end().0))
            })
            .collect();
        let servers: Vec<String> = self.cluster.servers.iter().map(|server| tail(&server.log())).collect();
        let (said, servers) = (said.join(" | "), servers.join(" | "));
        format!(
            "waited {PATIENCE:?} for {next}, {due} is due; stream: {info}; bridges: {said}; servers: {servers}"
        )
    }

    /// Waits until the servers have a leader and whole copies. Returns the leader's name; `None` if that takes too long.
    pub(super) fn leader(&self) -> Option<String> {
        let began = Instant::now();
        while began.elapsed() < WHOLE {
            let info = self.info(&self.nats());
            let is_whole = info["lagging"].as_array().is_some_and(Vec::is_empty);
            let name = info["leader"].as_str().filter(|name| is_whole && !name.is_empty());
            if let Some(name) = name {
                return Some(name.to_owned());
            }
        }
        None
    }

    /// Waits until the servers have a leader other than `not`.
    pub(super) fn next_leader(&self, not: &str) -> Result<String, String> {
        let others = self.cluster.servers.iter().enumerate();
        let others = others.filter(|(n, _)| format!("s{n}") != not).map(|(_, server)| server.url());
        let nats = others.collect::<Vec<_>>().join(",");
        Ok(wait_for("another leader", || {
            let info = self.info(&nats);
            let name = info["leader"].as_str().unwrap_or_default();
            (!name.is_empty() && name != not).then(|| name.to_owned())
        }))
    }

    /// Ends the bridges. Returns the number of mended messages, and the counters of the bridges as text.
    pub(super) fn end(mut self) -> (u64, String) {
        self.end_receive();
        for sender in [self.send.take(), self.rival.take()].into_iter().flatten() {
            let (sent, _) = sender.end();
            self.counted.push(sent["send"].to_string());
            self.mended += sent["send"]["lost_by_engine"].as_u64().unwrap_or(0);
        }
        (self.mended, self.counted.join(" | "))
    }
}
