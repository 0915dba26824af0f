//! The test of a bridge. `shmcast bridge` sends a channel from one directory to another, through a simulated wire. A fault happens on the
//! way, but no message must be lost.

mod packets;

pub(super) use packets::forged;

use super::actors::Actor;
use super::errands::{end, published, wanted};
use super::wire::{Wire, free_port, local};
use super::{PATIENCE, World};
use crate::actor::{Opening, Order, Place, Subscribing};
use crate::log::Deed;
use crate::payload::Sizes;
use crate::story::{Sending, Shape, Trouble, Waiting};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shmcast::Directory;
use std::fs::{self, File};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The first letter of the names of readers whose channel comes through a bridge. These readers must lose no message.
pub const CARRIED: char = 'c';
/// The first letter of the names of readers whose channel comes from a server of another vendor. These readers are allowed to lose
/// messages.
const OTHERS: char = 'd';
/// The name of the channel.
pub(super) const CHANNEL: &str = "carried";
/// The channel of another host that uses the same session name.
const NEWER: &str = "newer";
/// The beginning of the names of the sessions.
const SESSION: &str = "CHAO";
/// The setting for the time after which a receiver stops asking for a message that no server has.
const GIVE_UP: &str = "receive.give_up_ms=2000";
/// The setting `receive.give_up_ms` for stories without lost packets. The time is short, because a missing message was never sent.
const GIVE_UP_AT_ONCE: &str = "receive.give_up_ms=50";
/// The number of receivers that crash. A server can serve fewer receivers than this at the same time.
const CRASHES: usize = 40;
/// After this many packets of one sender, a receiver accepts only this sender on the line. The number includes a small margin.
const LOCKING: u64 = 24;
/// Number of threads that send requests endlessly.
const ASKERS: usize = 8;

/// A channel that a bridge carries from one directory to another.
pub(super) struct Carriage {
    pub(super) wire: Wire,
    /// The directories of the sender and of the receiver.
    from: PathBuf,
    to: PathBuf,
    trouble: Trouble,
    has_server: bool,
    sender: Option<Child>,
    receiver: Option<Child>,
    /// A port at which nobody answers.
    silent: UdpSocket,
}

impl Drop for Carriage {
    fn drop(&mut self) {
        for child in self.sender.iter_mut().chain(&mut self.receiver) {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.from);
        let _ = fs::remove_dir_all(&self.to);
    }
}

impl World<'_> {
    /// Sends a channel through a bridge while something fails.
    pub(super) fn carry(&mut self, trouble: Trouble, has_server: bool) -> Result<bool> {
        let dir = self.dir.join(format!("carry{}", self.actors));
        let [from, to] = ["from", "to"].map(|name| dir.join(name));
        fs::create_dir_all(&from).and_then(|()| fs::create_dir_all(&to)).context("make directories")?;
        let (wire, silent) = (Wire::new(1, self.seed)?, UdpSocket::bind(local(free_port()?))?);
        let (sender, receiver) = (None, None);
        let mut way = Carriage { wire, from, to, trouble, has_server, sender, receiver, silent };
        self.note(Deed::MayRestart { channel: CHANNEL.into(), why: "carried by a bridge".into() })?;
        match trouble {
            Trouble::Prelude => self.begin_after_a_prelude(&mut way)?,
            Trouble::Strangers | Trouble::Impostor => self.disturb(&mut way)?,
            Trouble::DeadServer | Trouble::OtherMake => self.lose_on_the_way(&mut way)?,
            Trouble::Anew => self.make_anew(&mut way)?,
            Trouble::Older => self.let_an_older_one_take_over(&mut way)?,
            Trouble::Requests => self.ask_without_end(&mut way)?,
            Trouble::Crashes => self.crash_receivers(&mut way)?,
            Trouble::Idle => self.begin_and_be_idle(&mut way)?,
        }
        self.end_carriage(way)?;
        Ok(true)
    }

    fn begin_after_a_prelude(&mut self, way: &mut Carriage) -> Result<()> {
        self.start_receiver(way)?;
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(60));
            packets::send_prelude(&way.wire)?;
        }
        let mut publisher = self.open_carried(CHANNEL, &way.from.clone(), false)?;
        self.start_sender(way, CHANNEL, &way.from.clone())?;
        self.publish_carried(&mut publisher, 40)?;
        self.read_to_the_end(way, publisher)
    }

    fn disturb(&mut self, way: &mut Carriage) -> Result<()> {
        let mut publisher = self.open_carried(CHANNEL, &way.from.clone(), false)?;
        self.start_receiver(way)?;
        self.start_sender(way, CHANNEL, &way.from.clone())?;
        self.publish_carried(&mut publisher, 40)?;
        // After some packets of a host, the line accepts only this host.
        while way.wire.carried() < LOCKING {
            self.publish_carried(&mut publisher, 1)?;
            std::thread::sleep(Duration::from_millis(2));
        }
        let reader = self.read_carried(way)?;
        for kind in 0..packets::KINDS {
            let next = published(&way.from, CHANNEL) + 1;
            match way.trouble {
                Trouble::Strangers => packets::send_forged(&way.wire, kind, next)?,
                _ => packets::send_as_impostor(&way.wire, next)?,
            }
            // A receiver gives up missing messages before this pause ends.
            std::thread::sleep(Duration::from_millis(120));
            self.publish_carried(&mut publisher, 12)?;
        }
        self.finish_carried(publisher, reader)
    }

    fn lose_on_the_way(&mut self, way: &mut Carriage) -> Result<()> {
        let mut publisher = self.open_carried(CHANNEL, &way.from.clone(), false)?;
        self.start_receiver(way)?;
        self.start_sender(way, CHANNEL, &way.from.clone())?;
        self.publish_carried(&mut publisher, 40)?;
        let reader = self.read_carried(way)?;
        let server = match way.trouble {
            Trouble::OtherMake => Some(packets::serve_as_another_make(&way.from, &way.wire)?),
            _ => None,
        };
        match way.trouble {
            // Answers of the server are not lost here: without the first packet of an answer, nobody can tell which messages the second
            // packet has.
            Trouble::OtherMake => way.wire.set_lines(40, 0, 10),
            _ => way.wire.set(25, 0, 10),
        }
        self.publish_carried(&mut publisher, 400)?;
        way.wire.set(0, 0, 0);
        let finished = self.finish_carried(publisher, reader);
        drop(server);
        finished
    }

    /// Removes and creates the channel three times. Publishes immediately each time. Each new channel begins a new session.
    fn make_anew(&mut self, way: &mut Carriage) -> Result<()> {
        let from = way.from.clone();
        self.start_receiver(way)?;
        let mut publisher = self.open_carried(CHANNEL, &from, false)?;
        self.start_sender(way, CHANNEL, &from)?;
        self.publish_carried(&mut publisher, 60)?;
        // A sender that starts while there is no channel ends with an error.
        self.wait_for_sender(way);
        for count in [50, 40, 30] {
            self.dismiss(publisher)?;
            self.note(Deed::MayRestart { channel: CHANNEL.into(), why: "opened anew".into() })?;
            publisher = self.open_carried(CHANNEL, &from, true)?;
            self.publish_carried(&mut publisher, count)?;
        }
        self.read_to_the_end(way, publisher)
    }

    /// Kills the sender, and starts a session that has a few packets and then only heartbeats. No packet has announced the end of the
    /// previous session.
    fn begin_and_be_idle(&mut self, way: &mut Carriage) -> Result<()> {
        let from = way.from.clone();
        self.start_receiver(way)?;
        let mut publisher = self.open_carried(CHANNEL, &from, false)?;
        self.start_sender(way, CHANNEL, &from)?;
        self.publish_carried(&mut publisher, 60)?;
        self.wait_for_carried(way, 60)?;
        if let Some(mut sender) = way.sender.take() {
            sender.kill()?;
            sender.wait()?;
        }
        self.dismiss(publisher)?;
        // The sessions of two bridges differ by their start time, in half seconds.
        std::thread::sleep(Duration::from_millis(1100));
        self.note(Deed::MayRestart { channel: CHANNEL.into(), why: "opened anew".into() })?;
        let mut publisher = self.open_carried(CHANNEL, &from, true)?;
        let at_once = Order::Publish { count: 30, sizes: Sizes::Line, sending: Sending::Batch, pause_us: 0 };
        self.ask(&mut publisher, at_once)?;
        self.start_sender(way, CHANNEL, &from)?;
        self.read_to_the_end(way, publisher)
    }

    fn let_an_older_one_take_over(&mut self, way: &mut Carriage) -> Result<()> {
        let (older, newer) = (way.from.clone(), way.from.join("newer"));
        fs::create_dir(&newer)?;
        let mut first = self.open_carried(CHANNEL, &older, false)?;
        // Sessions differ by their start time, in half seconds.
        std::thread::sleep(Duration::from_millis(1100));
        let mut second = self.open_carried(NEWER, &newer, false)?;
        self.start_receiver(way)?;
        self.start_sender(way, NEWER, &newer)?;
        self.publish_carried(&mut second, 60)?;
        self.wait_for_carried(way, 60)?;
        if let Some(mut sender) = way.sender.take() {
            sender.kill()?;
            sender.wait()?;
        }
        self.dismiss(second)?;
        self.start_sender(way, CHANNEL, &older)?;
        self.publish_carried(&mut first, 40)?;
        self.read_to_the_end(way, first)
    }

    fn ask_without_end(&mut self, way: &mut Carriage) -> Result<()> {
        let mut publisher = self.open_carried(CHANNEL, &way.from.clone(), false)?;
        self.start_receiver(way)?;
        self.start_sender(way, CHANNEL, &way.from.clone())?;
        self.publish_carried(&mut publisher, 40)?;
        let reader = self.read_carried(way)?;
        self.finish_carried(publisher, reader)?;
        let askers = packets::ask_for_ever(&way.wire, ASKERS)?;
        std::thread::sleep(Duration::from_millis(200));
        let ended = self.end_bridge("bridge send", way.sender.take());
        drop(askers);
        ended
    }

    fn crash_receivers(&mut self, way: &mut Carriage) -> Result<()> {
        let mut publisher = self.open_carried(CHANNEL, &way.from.clone(), false)?;
        self.start_sender(way, CHANNEL, &way.from.clone())?;
        for _ in 0..CRASHES {
            self.publish_carried(&mut publisher, 5)?;
            self.start_receiver(way)?;
            let until = Instant::now() + Duration::from_millis(250);
            while published(&way.to, CHANNEL) == 0 && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            if let Some(mut receiver) = way.receiver.take() {
                receiver.kill()?;
                receiver.wait()?;
            }
            let _ = fs::remove_dir_all(&way.to);
            fs::create_dir(&way.to)?;
        }
        self.start_receiver(way)?;
        self.publish_carried(&mut publisher, 40)?;
        self.read_to_the_end(way, publisher)
    }

    fn open_carried(&mut self, channel: &str, dir: &Path, anew: bool) -> Result<Actor> {
        let mut actor = self.start_actor('o')?;
        let publisher = self.openings;
        self.openings += 1;
        let (place, sizes) = (Place::Dir(dir.to_owned()), Some([1 << 20, 1378]));
        let (channel, full, mode, patience_ms) = (channel.to_owned(), false, None, 2000);
        self.ask(
            &mut actor,
            Order::Open(Opening {
                place,
                channel,
                publisher,
                sizes,
                anew,
                full,
                mode,
                patience_ms,
                shape: Shape::default(),
            }),
        )?;
        Ok(actor)
    }

    fn publish_carried(&mut self, actor: &mut Actor, count: u32) -> Result<()> {
        let (sizes, sending, pause_us) = (Sizes::Line, Sending::Single, 300);
        self.ask(actor, Order::Publish { count, sizes, sending, pause_us }).map(|_| ())
    }

    fn start_sender(&mut self, way: &mut Carriage, channel: &str, from: &Path) -> Result<()> {
        let mut command = self.programs.command(&self.programs.shmcast);
        command
            .args(["bridge", "send", channel, "--set", &format!("session={SESSION}")])
            .args(["--set", "send.from=oldest", "--set", "send.linger_ms=300", "--dir"])
            .arg(from);
        if way.trouble != Trouble::Crashes {
            command.args(["--to", &local(way.wire.sends_to[0]).to_string()]);
        }
        if way.has_server && way.trouble != Trouble::OtherMake {
            command.args(["--repair", &local(way.wire.serves_at).to_string(), "--allow", "127.0.0.0/8"]);
        }
        way.sender = Some(self.spawn(command, "bridge-send")?);
        Ok(())
    }

    fn start_receiver(&mut self, way: &mut Carriage) -> Result<()> {
        let give_up = if way.trouble == Trouble::Strangers { GIVE_UP_AT_ONCE } else { GIVE_UP };
        let mut command = self.programs.command(&self.programs.shmcast);
        command
            .args(["bridge", "recv", CHANNEL, "--capacity", "1MiB", "--set", give_up, "--dir"])
            .arg(&way.to);
        let server = local(way.wire.asks_at).to_string();
        match way.trouble {
            Trouble::Crashes => command.args(["--set", "receive.unicast=true", "--server", &server]),
            _ => command.args(["--from", &local(way.wire.hears_at[0]).to_string()]),
        };
        if way.trouble != Trouble::Prelude {
            command.args(["--set", "receive.from=1"]);
        }
        match way.trouble {
            Trouble::DeadServer => {
                let dead = way.silent.local_addr()?.to_string();
                command.args(["--server", &dead, "--server", &server]);
            }
            Trouble::OtherMake => {
                command.args(["--server", &server, "--set", "receive.lease=false"]);
            }
            Trouble::Crashes => {}
            _ if way.has_server => {
                command.args(["--server", &server]);
            }
            _ => {}
        }
        way.receiver = Some(self.spawn(command, "bridge-recv")?);
        let until = Instant::now() + PATIENCE;
        while way.trouble != Trouble::Crashes && !is_bound(way.wire.hears_at[0]) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn spawn(&self, mut command: Command, name: &str) -> Result<Child> {
        let log = File::options().create(true).append(true).open(self.logs.join(format!("{name}.stderr")))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().context("start a bridge")
    }

    /// Waits until the sender has found the channel, so that a message has arrived.
    fn wait_for_sender(&self, way: &Carriage) {
        let until = Instant::now() + PATIENCE;
        while published(&way.to, CHANNEL) == 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until the receiving channel has `count` messages.
    fn wait_for_carried(&mut self, way: &Carriage, count: u64) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while published(&way.to, CHANNEL) != count && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let there = published(&way.to, CHANNEL);
        if there != count {
            let what =
                format!("{count} messages of a carried channel ({:?}): {there} are there", way.trouble);
            self.note(Deed::Refused { who: "bridge".into(), what })?;
        }
        Ok(())
    }

    /// Starts a reader of the receiving channel. The reader begins with the channel's first message.
    fn read_carried(&mut self, way: &Carriage) -> Result<Actor> {
        let until = Instant::now() + PATIENCE;
        let is_there = || Directory::at(&way.to).channel(CHANNEL).is_ok_and(|found| found.detail.is_ok());
        while !is_there() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut reader =
            self.start_actor(if way.trouble == Trouble::OtherMake { OTHERS } else { CARRIED })?;
        let place = Place::Dir(way.to.clone());
        let wanted = Subscribing { host: 1, wait: Waiting::Sleep, ..wanted(place, CHANNEL) };
        if self.ask(&mut reader, Order::Subscribe(wanted))? != Value::Bool(true) {
            let what = format!("to read a carried channel ({:?})", way.trouble);
            self.note(Deed::Refused { who: reader.name.clone(), what })?;
        }
        Ok(reader)
    }

    /// Waits until all messages have arrived, and lets a reader read them.
    fn read_to_the_end(&mut self, way: &Carriage, publisher: Actor) -> Result<()> {
        self.wait_for_carried(way, published(&way.from, CHANNEL))?;
        let reader = self.read_carried(way)?;
        self.finish_carried(publisher, reader)
    }

    fn finish_carried(&mut self, mut publisher: Actor, reader: Actor) -> Result<()> {
        let order = Order::Publish { count: 20, sizes: Sizes::Line, sending: Sending::Single, pause_us: 300 };
        let published = self.ask(&mut publisher, order)?;
        self.see_the_last(reader, &published)?;
        self.dismiss(publisher)
    }

    fn end_carriage(&mut self, mut way: Carriage) -> Result<()> {
        self.end_bridge("bridge send", way.sender.take())?;
        self.end_bridge("bridge recv", way.receiver.take())
    }

    fn end_bridge(&mut self, who: &str, child: Option<Child>) -> Result<()> {
        let Some(mut child) = child else { return Ok(()) };
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
        match end(&mut child, || false)? {
            Some(status) if matches!(status.code(), Some(0 | 3)) => Ok(()),
            Some(status) => {
                let said = fs::read_to_string(self.logs.join(format!("{}.stderr", who.replace(' ', "-"))));
                self.note(super::ended(who.to_owned(), Some(status), false, said.unwrap_or_default()))
            }
            None => self.note(Deed::NoAnswer { who: who.to_owned(), order: "to end".into() }),
        }
    }
}

/// Whether a socket is bound to this port.
fn is_bound(port: u16) -> bool {
    let table = fs::read_to_string("/proc/net/udp").unwrap_or_default();
    let port = format!(":{port:04X}");
    table.lines().any(|line| line.split_whitespace().nth(1).is_some_and(|local| local.ends_with(&port)))
}
