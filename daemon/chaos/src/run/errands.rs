//! Separate tests within a story. They use their own actors, channels and files, which they remove afterwards.

use super::daemon::Daemon;
use super::{Actor, PATIENCE, World};
use crate::actor::{Opening, Order, Place, Subscribing};
use crate::log::Deed;
use crate::payload::{Identity, Sizes};
use crate::story::{self, Channel, How, Sending, Shape, Squatter, Step, Waiting};
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use shmcast::{Directory, Event, Publishing, Start, Subscriber};
use shmcast_layout::layout::geometry::HEADER_BYTES;
use shmcast_layout::layout::header::LAZY_PUBLISHED;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Actors whose names begin with this letter open a channel with a wrong count of messages.
pub const TAMPERED: char = 't';

/// Readers whose names begin with this letter read a channel at rest. Each call must return an event, until the reader has received all
/// events.
pub const AT_REST: char = 'u';
/// A channel that no other step uses.
pub(super) const SPARE: &str = "spare";
/// The size of the spare channel's ring, in bytes.
const CAPACITY: u64 = 1 << 16;
/// A time that is longer than a new daemon's wait for programs that have channels of a crashed daemon.
const GRACE: Duration = Duration::from_millis(2200);
/// The number of a ring's bytes for each entry of the ring's index. The smallest record has the same size.
const PER_ENTRY: u64 = 64;

impl World<'_> {
    pub(super) fn run_errand(&mut self, step: &Step) -> Result<bool> {
        match *step {
            Step::Attach { who, channel, start, wait, conflate, gate } => {
                self.attach(who, channel, (start, wait), (conflate, gate))
            }
            Step::Get { who, channel, times, pause_us } => self.get(who, channel, times, pause_us),
            Step::Stray {} => self.stray(),
            Step::Misopen {} => self.misopen(),
            Step::Tamper { channel, laps } => self.tamper(channel, laps),
            Step::Unknown {} => self.unknown(),
            Step::Hollow {} => self.hollow(),
            Step::Outlive { brief } => self.outlive(brief),
            Step::Interrupted {} => self.interrupt(),
            Step::Pipe { lines } => self.pipe(lines),
            Step::Squat { by } => self.squat(by),
            Step::Flood { requests } => self.flood(requests),
            Step::Outsider {} => self.show_an_outsider(),
            Step::Neighbours { maker } => self.let_neighbours_publish(maker),
            Step::SlowNames {} => self.let_names_hang(),
            Step::SlowStart {} => self.start_slowly(),
            Step::Store { others } => self.fill_the_store(others),
            Step::Crowd { readers } => self.bring_back_a_crowd(readers),
            Step::Rush { readers } => self.join_a_rush(readers),
            Step::Bereave { wait } => self.bereave(wait),
            Step::Inherit { brief } => self.leave_it_to_a_reader(brief),
            Step::Withhold {} => self.withhold(),
            Step::Carry { trouble, has_server } => self.carry(trouble, has_server),
            _ => Ok(false),
        }
    }

    /// Tests a failed attempt to make a channel. An empty folder with the channel's name must still exist after the attempt.
    pub(super) fn misopen(&mut self) -> Result<bool> {
        let (dir, channel) = (self.channels_dir(), SPARE.to_owned());
        let folder = dir.join(SPARE);
        if !self.daemons.is_empty() || fs::create_dir(&folder).is_err() {
            return Ok(false);
        }
        let mut actor = self.start_actor('m')?;
        self.ask(&mut actor, Order::Misopen { dir, channel })?;
        self.dismiss(actor)?;
        if fs::remove_dir(&folder).is_err() {
            self.note(Deed::Changed {
                what: format!("{} is not the empty folder that it was", folder.display()),
            })?;
        }
        Ok(true)
    }

    /// Tests that a publisher does not continue from a wrong count of messages. The test is skipped if another actor uses the channel.
    pub(super) fn tamper(&mut self, channel: u8, laps: u64) -> Result<bool> {
        let known = self.channel(channel);
        let (number, wanted) = (known.number(self.channels.len()), known.channel);
        // A reader would also notice the wrong count.
        if self
            .readers
            .iter()
            .flatten()
            .any(|reader| reader.channel == Some(number) || !reader.open.is_empty())
        {
            return Ok(false);
        }
        let dir = self.channels_dir();
        let is_free = Directory::at(&dir)
            .channel(&wanted.name)
            .is_ok_and(|found| found.detail.is_ok() && matches!(found.publisher, Publishing::Nobody));
        let segment = File::options().read(true).write(true).open(dir.join(&wanted.name).join("segment"));
        let (true, true, Ok(segment)) = (self.daemons.is_empty(), is_free, segment) else { return Ok(false) };
        let right = count(&segment)?;
        let wrong = right.saturating_add(laps * (wanted.capacity / PER_ENTRY));
        set_count(&segment, wrong)?;
        let mut actor = self.start_actor(TAMPERED)?;
        let order = self.opening(self.place(0), &wanted.name, Some([wanted.capacity, wanted.largest]));
        self.ask(&mut actor, order)?;
        self.dismiss(actor)?;
        if count(&segment)? == wrong {
            set_count(&segment, right)?;
        }
        Ok(true)
    }

    /// Tests that a reader loses nothing after a record of an unknown kind.
    pub(super) fn unknown(&mut self) -> Result<bool> {
        if !self.daemons.is_empty() {
            return Ok(false);
        }
        let mut publisher = self.start_publisher(&self.place(0), SPARE)?;
        let session = Order::Session { identity: "UNKNOWN".into() };
        for order in [publish(1), session, publish(3)] {
            self.ask(&mut publisher, order)?;
        }
        self.dismiss(publisher)?;
        // The second record begins with two words. The record's kind follows them.
        let kind = HEADER_BYTES + CAPACITY / PER_ENTRY * 8 + PER_ENTRY + 16;
        let Ok(segment) = self.spare_segment() else { return Ok(false) };
        segment.write_all_at(&99_u64.to_le_bytes(), kind).context("write to a ring")?;
        let mut reader = self.start_actor(AT_REST)?;
        let order = subscribing(self.place(0), SPARE, false);
        self.ask(&mut reader, order)?;
        self.ask(&mut reader, Order::Read { how: How::Try, ms: 20, rest_us: 0 })?;
        self.dismiss(reader)?;
        self.run_tool(0, &["rm", SPARE])?;
        Ok(true)
    }

    /// Tests that a reader allocates no memory for holes in the file of a channel.
    pub(super) fn hollow(&mut self) -> Result<bool> {
        if !self.daemons.is_empty() {
            return Ok(false);
        }
        let mut publisher = self.start_actor('v')?;
        let order = self.opening(self.place(0), SPARE, Some([16 * CAPACITY, 1400]));
        self.ask(&mut publisher, order)?;
        self.dismiss(publisher)?;
        let Ok(segment) = self.spare_segment() else { return Ok(false) };
        let length = segment.metadata()?.len();
        segment.set_len(HEADER_BYTES).and_then(|()| segment.set_len(length)).context("make a hole")?;
        let mut reader = self.start_actor(AT_REST)?;
        let order = subscribing(self.place(0), SPARE, true);
        self.ask(&mut reader, order)?;
        self.dismiss(reader)?;
        let memory = segment.metadata()?.blocks() * 512;
        if memory > length / 2 {
            let what = format!("a reader filled a channel's holes: {memory} B of {length} B");
            self.note(Deed::Changed { what })?;
        }
        self.run_tool(0, &["rm", SPARE])?;
        Ok(true)
    }

    /// Tests a stopped program that has channels of a crashed daemon. Each new daemon must wait for this program. The test uses its own
    /// daemons.
    pub(super) fn outlive(&mut self, brief: bool) -> Result<bool> {
        let name = if brief { "brief" } else { "second" };
        let Some(mut daemon) = self.second_daemon(name, false, false)? else { return Ok(false) };
        self.begin(&mut daemon)?;
        let mut stopped = self.start_publisher(&Place::Socket(daemon.socket()), name)?;
        self.ask(&mut stopped, publish(10))?;
        let next = self.ask_the_third(&mut daemon, &mut stopped, brief)?;
        self.dismiss(next)?;
        self.dismiss(stopped)?;
        self.finish(&mut daemon)?;
        Ok(true)
    }

    /// Stops `holder`, an actor that has the daemon's channel. Returns a publisher of the third daemon.
    ///
    /// 1. `holder` is stopped, and the daemon crashes.
    /// 2. A second daemon starts, and ends without contact to `holder`. If `is_brief`, this daemon ends without a wait. Otherwise it first
    ///    waits for `holder` in vain.
    /// 3. A third daemon starts. Before `holder` continues, a publisher asks this daemon for the channel.
    pub(super) fn ask_the_third(
        &mut self,
        daemon: &mut Daemon,
        holder: &mut Actor,
        is_brief: bool,
    ) -> Result<Actor> {
        self.signal_actor(holder, Signal::SIGSTOP)?;
        daemon.kill();
        self.begin(daemon)?;
        std::thread::sleep(if is_brief { Duration::ZERO } else { GRACE });
        self.finish(daemon)?;
        self.begin(daemon)?;
        let mut next = self.start_actor('n')?;
        let order = self.opening(Place::Socket(daemon.socket()), daemon.name, None);
        let id = next.order(order);
        std::thread::sleep(Duration::from_millis(200));
        self.signal_actor(holder, Signal::SIGCONT)?;
        if next.answer(id, PATIENCE).is_none() {
            self.note(Deed::NoAnswer { who: next.name.clone(), order: "to open a channel".into() })?;
        }
        Ok(next)
    }

    /// Starts a publisher, and lets it open a daemon's channel or a new channel in a directory.
    pub(super) fn start_publisher(&mut self, place: &Place, channel: &str) -> Result<Actor> {
        let mut publisher = self.start_actor('v')?;
        let sizes = matches!(place, Place::Dir(_)).then_some([CAPACITY, 1400]);
        let order = self.opening(place.clone(), channel, sizes);
        self.ask(&mut publisher, order)?;
        Ok(publisher)
    }

    /// Checks that the reader gets the last of these messages.
    pub(super) fn see_the_last(&mut self, mut reader: Actor, published: &Value) -> Result<()> {
        let (last, sequence) = published_by(published);
        self.ask(&mut reader, Order::Finish { last, sequence, ms: (PATIENCE / 2).as_millis() as u64 })?;
        self.dismiss(reader)
    }

    /// Makes a separate daemon for a test, but does not start it. The daemon and its only channel have the same name. If `keeps`, a service
    /// manager keeps the daemon's descriptors. Returns `None` in a story without a daemon.
    pub(super) fn second_daemon(
        &self,
        name: &'static str,
        keeps: bool,
        strict: bool,
    ) -> Result<Option<Daemon>> {
        if self.daemons.is_empty() {
            return Ok(None);
        }
        let channel = Channel {
            name: name.into(),
            capacity: CAPACITY,
            largest: 1400,
            strict,
            journal: None,
            shape: None,
        };
        let daemon = Daemon::new(name, &self.dir, &self.logs, &[channel], keeps, String::new())?;
        daemon.configure(false)?;
        Ok(Some(daemon))
    }

    pub(super) fn begin(&mut self, daemon: &mut Daemon) -> Result<()> {
        daemon.start(self.programs)?;
        if !daemon.answers(PATIENCE) {
            let who = daemon.name.to_owned();
            self.note(Deed::NoAnswer { who, order: format!("to start: {}", daemon.said()) })?;
        }
        Ok(())
    }

    pub(super) fn finish(&mut self, daemon: &mut Daemon) -> Result<()> {
        daemon.signal(Signal::SIGTERM);
        let status = daemon.wait(PATIENCE);
        daemon.kill();
        self.note(super::ended(daemon.name.to_owned(), status, status.is_none(), daemon.said()))
    }

    /// Tests that `shmcast pub` publishes only whole lines. If it is interrupted within a line, it must not publish the first part.
    pub(super) fn pipe(&mut self, lines: u8) -> Result<bool> {
        if !self.daemons.is_empty() {
            return Ok(false);
        }
        let (dir, name) = (self.dir.join("elsewhere"), format!("piped{}", self.actors));
        self.actors += 1;
        let mut command = self.programs.command(&self.programs.shmcast);
        command.args(["pub", &name, "--capacity", "64KiB", "--dir"]).arg(&dir);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().context("start a tool")?;
        let lines: Vec<String> = (0..lines).map(|line| format!("line {line}")).collect();
        let text = format!("{}\nli", lines.join("\n"));
        // If the command has already died, it reads nothing.
        let _ = child.stdin.as_mut().context("a pipe")?.write_all(text.as_bytes());
        let until = Instant::now() + PATIENCE;
        while published(&dir, &name) < lines.len() as u64 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
        if end(&mut child, || false)?.is_none() {
            self.note(Deed::NoAnswer { who: "pub".into(), order: "to end when interrupted".into() })?;
        }
        let messages = messages(&dir, &name);
        self.note(Deed::Piped { lines, messages })?;
        let _ = fs::remove_dir_all(dir.join(name));
        Ok(true)
    }

    /// Tests a daemon that finds a file at the path of its socket. The daemon must leave the file alone, unless it is the socket of an
    /// earlier daemon.
    pub(super) fn squat(&mut self, by: Squatter) -> Result<bool> {
        let place = self.dir.join(format!("squat{}", self.actors));
        self.actors += 1;
        let config = place.with_extension("toml");
        fs::write(&config, "")?;
        let _socket = match by {
            Squatter::File => fs::write(&place, "somebody's").map(|()| None)?,
            Squatter::Link => symlink("precious/id_ed25519", &place).map(|()| None)?,
            Squatter::Datagrams => Some(UnixDatagram::bind(&place)?),
        };
        let before = looks(&place);
        let said = place.with_extension("stderr");
        let mut command = self.programs.command(&self.programs.shmcastd);
        command.arg("--config").arg(&config).arg("--socket").arg(&place);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        let mut child = command.spawn().context("start a daemon")?;
        let status = end(&mut child, || looks(&place) != before)?;
        if looks(&place) != before {
            let what =
                format!("{} was a {by:?}, and a daemon that was to listen there changed it", place.display());
            self.note(Deed::Changed { what })?;
        } else if status.is_none_or(|status| status.success()) {
            let said = fs::read_to_string(&said).unwrap_or_default();
            let order = format!("to refuse a place that is taken: {status:?}: {said}");
            self.note(Deed::NoAnswer { who: "shmcastd".into(), order })?;
        }
        Ok(true)
    }

    fn spare_segment(&self) -> std::io::Result<File> {
        File::options().write(true).open(self.channels_dir().join(SPARE).join("segment"))
    }

    fn flood(&mut self, requests: u32) -> Result<bool> {
        let Some(daemon) = self.daemons.first().filter(|d| !d.is_stopped && d.pid().is_some()) else {
            return Ok(false);
        };
        let Ok(client) = shmcast::Client::at(daemon.socket()) else { return Ok(false) };
        let refused = (0..requests).filter(|_| client.channel("nosuch").is_err()).count();
        Ok(refused > 0)
    }

    pub(super) fn opening(&mut self, place: Place, channel: &str, sizes: Option<[u64; 2]>) -> Order {
        let publisher = self.openings;
        self.openings += 1;
        let (channel, anew, full, mode, patience_ms) = (channel.to_owned(), false, false, None, 0);
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
        })
    }

    /// Gives an order. It is an error if the actor does not carry it out in time.
    pub(super) fn ask(&mut self, actor: &mut Actor, order: Order) -> Result<Value> {
        let told = format!("{order:?}");
        let id = actor.order(order);
        match actor.answer(id, PATIENCE) {
            Some(value) => Ok(value),
            None => {
                self.note(Deed::NoAnswer { who: actor.name.clone(), order: told })?;
                Ok(Value::Null)
            }
        }
    }
}

/// Makes a subscription that begins with the oldest message. Tests can change the result.
pub(super) fn wanted(place: Place, channel: &str) -> Subscribing {
    let (channel, host, start, wait) = (channel.to_owned(), 0, story::Start::Oldest, Waiting::Yield);
    let (skip, page, full, watch) = (false, true, false, false);
    let testee = None;
    let (live_only, gate, conflate) = (false, None, None);
    Subscribing {
        place,
        channel,
        host,
        start,
        wait,
        skip,
        page,
        full,
        watch,
        live_only,
        gate,
        conflate,
        testee,
    }
}

pub(super) fn subscribing(place: Place, channel: &str, full: bool) -> Order {
    Order::Subscribe(Subscribing { full, ..wanted(place, channel) })
}

pub(super) fn publish(count: u32) -> Order {
    Order::Publish { count, sizes: Sizes::Line, sending: Sending::Single, pause_us: 0 }
}

/// Returns the last published message and its sequence, from the answer to `publish`.
fn published_by(answer: &Value) -> (Identity, u64) {
    let last = serde_json::from_value(answer["last"].clone());
    let sequence = answer["next"].as_u64().unwrap_or(0).saturating_sub(1);
    (last.unwrap_or(Identity { publisher: u32::MAX, counter: 0 }), sequence)
}

/// Waits until `child` ends, or `is_enough` returns true, or the time is over. Then kills the child if it still runs.
pub(super) fn end(child: &mut Child, is_enough: impl Fn() -> bool) -> Result<Option<ExitStatus>> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && !is_enough() {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Returns the number of messages in a channel's header.
fn count(segment: &File) -> Result<u64> {
    let mut word = [0; 8];
    segment.read_exact_at(&mut word, LAZY_PUBLISHED as u64 * 8).context("read a header")?;
    Ok(u64::from_le_bytes(word))
}

fn set_count(segment: &File, count: u64) -> Result<()> {
    segment.write_all_at(&count.to_le_bytes(), LAZY_PUBLISHED as u64 * 8).context("write to a header")
}

/// Returns the number of messages that were published on a channel so far.
pub(super) fn published(dir: &Path, channel: &str) -> u64 {
    let detail = Directory::at(dir).channel(channel).ok().and_then(|found| found.detail.ok());
    detail.and_then(|detail| detail.tail.ok()).map_or(0, |tail| tail.sequence.saturating_sub(1))
}

/// Returns all messages of a channel that is at rest.
fn messages(dir: &Path, channel: &str) -> Vec<String> {
    let mut messages = Vec::new();
    let reader = Subscriber::builder(channel).dir(dir).start(Start::Oldest).open();
    if let Ok(mut reader) = reader {
        while let Ok(Some(event)) = reader.try_recv() {
            if let Event::Message(message) = event {
                messages.push(String::from_utf8_lossy(message.payload).into_owned());
            }
        }
    }
    messages
}

/// Returns the identity of the file at `path` without following links: its inode number, its length, and the target if it is a link.
fn looks(path: &Path) -> Option<(u64, u64, Option<PathBuf>)> {
    let found = fs::symlink_metadata(path).ok()?;
    Some((found.ino(), found.len(), fs::read_link(path).ok()))
}
