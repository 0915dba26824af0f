//! One transport of the demo: its publisher, and its readers.

use crate::args::Args;
use crate::figures::Percentiles;
use crate::load::{Load, Meter};
use crate::multicast::Group;
use crate::plan::Plan;
use crate::pool::{Pool, Source};
use crate::stop::Stop;
use crate::talk::{end_of_turn, stamp};
use anyhow::{Context, Result};
use nix::unistd::Pid;
use serde::Serialize;
use shmcast::{Clock, Preparation, Publisher, Wait};
use std::net::UdpSocket;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// If the publisher wakes later than this, the delay counts as a stall: other programs or the demo's own readers used the CPU.
const STALL: Duration = Duration::from_millis(1);

/// The result of one transport.
#[derive(Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) name: &'static str,
    pub(crate) published: u64,
    /// Messages received by all readers together.
    pub(crate) delivered: u64,
    /// The number of lost messages, summed over the readers.
    pub(crate) lost: u64,
    pub(crate) publish_ns: Option<Percentiles>,
    pub(crate) last_reader_ns: Option<Percentiles>,
    pub(crate) stalls: Stalls,
}

/// Wake-ups of the publisher that came late.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Stalls {
    /// The number of wake-ups that came more than a millisecond late.
    pub(crate) count: u64,
    /// The longest delay of a wake-up in nanoseconds.
    pub(crate) max_ns: u64,
}

enum Sender {
    /// The channel is in a directory of its own, which is removed with the sender.
    Channel {
        publisher: Box<Publisher>,
        _dir: TempDir,
    },
    Multicast(UdpSocket),
}

impl Sender {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        match self {
            Self::Channel { publisher, .. } => {
                publisher.publish(message)?;
            }
            Self::Multicast(socket) => {
                socket.send(message).context("send to the multicast group on lo")?;
            }
        }
        Ok(())
    }
}

/// A transport with its readers, between two turns.
pub(crate) struct Side {
    name: &'static str,
    sender: Sender,
    readers: Pool,
    clock: Clock,
    message: Vec<u8>,
    publish_ticks: Vec<u64>,
    stalls: Stalls,
}

impl Side {
    /// Makes a channel in a directory of its own, and starts its readers.
    pub(crate) fn shared_memory(args: &Args, plan: &Plan, cpus: usize, stop: &Stop) -> Result<Self> {
        let place = Path::new("/dev/shm");
        let place = if place.is_dir() { place.to_owned() } else { std::env::temp_dir() };
        let dir = tempfile::Builder::new().prefix("shmcast-demo-").tempdir_in(place)?;
        // The ring has room for all messages at once, up to 1 GiB: a demo measures latency, not overruns.
        let record = u64::from(args.size) + 80;
        let capacity = (args.messages * record * 2).next_power_of_two().clamp(1 << 20, 1 << 30);
        let publisher = Publisher::builder("demo").dir(dir.path()).capacity(capacity);
        let publisher = publisher.prepare(Preparation::FULL).open()?;
        let source = Source::Channel { dir: dir.path().to_owned(), spin: wait(args, cpus) == Wait::Spin };
        let readers = Pool::start(args.readers, plan, &source, stop)?;
        let sender = Sender::Channel { publisher: Box::new(publisher), _dir: dir };
        Ok(Self::new("shm", args, sender, readers))
    }

    /// Makes a multicast group on the loopback interface, and starts its readers.
    pub(crate) fn multicast(args: &Args, plan: &Plan, stop: &Stop) -> Result<Self> {
        let group = Group::choose();
        let sender = group.sender().context("open a multicast sender on lo")?;
        let readers = Pool::start(args.readers, plan, &Source::Multicast(group), stop)?;
        Ok(Self::new("multicast", args, Sender::Multicast(sender), readers))
    }

    fn new(name: &'static str, args: &Args, sender: Sender, readers: Pool) -> Self {
        Self {
            name,
            sender,
            readers,
            clock: Clock::of_this_host(),
            message: vec![0xa5; args.size as usize],
            publish_ticks: Vec::with_capacity(args.messages as usize),
            stalls: Stalls::default(),
        }
    }

    /// The reader processes.
    pub(crate) fn pids(&self) -> impl Iterator<Item = Pid> {
        self.readers.pids()
    }

    /// Plays a turn. Returns how much CPU time other programs and the hypervisor used during the turn, if this can be measured.
    pub(crate) fn play(
        &mut self,
        plan: &Plan,
        turn: u64,
        meter: &Meter,
        stop: &Stop,
    ) -> Result<Option<Load>> {
        let before = meter.read();
        self.readers.begin_turn(stop)?;
        self.publish(plan.turn(turn), plan.interval, stop)?;
        let sender = &self.sender;
        self.readers.end_turn(stop, || match sender {
            Sender::Channel { .. } => Ok(()),
            Sender::Multicast(socket) => {
                socket.send(&end_of_turn(turn)).context("send to the multicast group on lo")?;
                Ok(())
            }
        })?;
        Ok(before.and_then(|before| meter.since(&before)))
    }

    /// Sends messages at their intended times.
    fn publish(&mut self, numbers: Range<u64>, interval: Duration, stop: &Stop) -> Result<()> {
        let mut due = Instant::now();
        for number in numbers {
            due += interval;
            let early = due.saturating_duration_since(Instant::now());
            if !early.is_zero() {
                std::thread::sleep(early);
                self.stalls.note(due.elapsed());
            }
            let before = self.clock.now();
            stamp(&mut self.message, before, number);
            self.sender.send(&self.message)?;
            self.publish_ticks.push(self.clock.now().saturating_sub(before));
            if stop.is_set() {
                return Err(stop
                    .interrupted("INTERRUPTED: nothing is shown of a demo that did not end")
                    .into());
            }
        }
        Ok(())
    }

    /// Ends the readers, and sums up what they measured.
    pub(crate) fn figures(self, args: &Args, stop: &Stop) -> Result<Figures> {
        let received = self.readers.collect(args.messages, stop)?;
        let clock = self.clock;
        // A message that some reader lost has no time for the last reader, and counts as lost.
        let last = received.last.into_iter().flatten();
        Ok(Figures {
            name: self.name,
            published: args.messages,
            delivered: received.delivered,
            lost: args.messages * u64::from(args.readers) - received.delivered,
            publish_ns: Percentiles::of(
                self.publish_ticks.into_iter().map(|ticks| clock.ns(ticks)).collect(),
            ),
            last_reader_ns: Percentiles::of(last.map(|ticks| clock.ns(ticks)).collect()),
            stalls: self.stalls,
        })
    }
}

/// Returns the way in which readers wait. They spin if there is a CPU for each of them and one for the publisher.
fn wait(args: &Args, cpus: usize) -> Wait {
    if (args.readers as usize) < cpus { Wait::Spin } else { Wait::Yield }
}

impl Stalls {
    fn note(&mut self, late: Duration) {
        self.count += u64::from(late > STALL);
        self.max_ns = self.max_ns.max(late.as_nanos() as u64);
    }

    /// Returns the stalls of `self` and `other` together: the sum of the counts, and the longest delay.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, max_ns: self.max_ns.max(other.max_ns) }
    }
}
