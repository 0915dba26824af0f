//! Tests of readers in extreme situations: a publisher at full speed, the publisher's death, a reader that has the only copy of a channel's
//! memory, and a reader without a free descriptor.

use super::daemon::Daemon;
use super::errands::{publish, subscribing, wanted};
use super::limits::set_descriptor_limit;
use super::{Actor, PATIENCE, World, tools};
use crate::actor::{Order, Place, Subscribing};
use crate::log::Deed;
use crate::payload::Sizes;
use crate::story::{How, Sending, Waiting};
use anyhow::Result;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Readers whose names begin with this letter must get the event of their publisher's death.
pub const BEREAVED: char = 'w';

/// The time within which a reader receives available messages. A program must also notice the end of another program within this time.
const NOTICE: Duration = Duration::from_millis(100);
/// A program that runs every 10 ms gets a CPU at least this number of times within [`NOTICE`]. The number is half of the expected one, to
/// be safe.
const RUNS: u64 = 5;
/// The largest number of takeovers that are tried. After a takeover that leaves an invalid message, there are no more tries.
const ROUNDS: u8 = 40;

/// Returns the order to publish messages until the publisher is stopped.
fn publish_on() -> Order {
    Order::Publish { count: 200_000, sizes: Sizes::Tiny, sending: Sending::Batch, pause_us: 0 }
}

fn read_on(how: How) -> Order {
    Order::Read { how, ms: 0, rest_us: 0 }
}

/// Waits for the time [`NOTICE`]. Time for which the program waited for a CPU does not count.
fn give_time(pid: u32) {
    let (started, before) = (Instant::now(), scheduled(pid));
    while started.elapsed() < PATIENCE {
        std::thread::sleep(NOTICE / 10);
        let (queued, runs) = scheduled(pid);
        let has_run = runs >= before.1 + RUNS;
        if has_run && started.elapsed() >= NOTICE + queued.saturating_sub(before.0) {
            return;
        }
    }
}

/// Returns two values for the threads of a process: how long they have waited for a CPU, and how often they have run.
fn scheduled(pid: u32) -> (Duration, u64) {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    threads.fold((Duration::ZERO, 0), |(queued, runs), thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        let mut numbers = text.split_whitespace().skip(1).map(|number| number.parse().unwrap_or(0));
        let (queued_ns, more) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        (queued + Duration::from_nanos(queued_ns), runs + more)
    })
}

impl World<'_> {
    fn take_channel(&mut self, daemon: &Daemon) -> Result<()> {
        self.note(Deed::TakingOver { channel: daemon.name.into() })?;
        let mut command = self.programs.command(&self.programs.shmcast);
        command.args(["takeover", daemon.name]).env("SHMCAST_SOCKET", daemon.socket());
        let deed = tools::run(0, command, &self.logs)?;
        self.note(deed)
    }

    /// Tests that a reader finds a place in the ring at which it can start, however fast the publisher is.
    pub(super) fn join_a_rush(&mut self, readers: u16) -> Result<bool> {
        const NAME: &str = "rushed";
        if !self.daemons.is_empty() {
            return Ok(false);
        }
        let mut publisher = self.start_publisher(&self.place(0), NAME)?;
        publisher.order(Order::Rush {});
        let mut reader = self.start_actor('o')?;
        let wanted = Subscribing { wait: Waiting::Spin, page: false, ..wanted(self.place(0), NAME) };
        self.ask(&mut reader, Order::Join { wanted, times: readers })?;
        self.dismiss(reader)?;
        self.dismiss(publisher)?;
        self.run_tool(0, &["rm", NAME])?;
        Ok(true)
    }

    /// Tests that a reader gets the event of each publisher's death, after all messages of that publisher. If a daemon owns the channel,
    /// the reader has no free descriptor at that time.
    pub(super) fn bereave(&mut self, wait: Waiting) -> Result<bool> {
        const NAME: &str = "bereaved";
        let mut daemon = self.second_daemon(NAME, false, false)?;
        if let Some(daemon) = &mut daemon {
            self.begin(daemon)?;
        }
        let place = daemon.as_ref().map_or(self.place(0), |daemon| Place::Socket(daemon.socket()));
        let mut publisher = self.start_publisher(&place, NAME)?;
        self.ask(&mut publisher, publish(3))?;
        let mut reader = self.start_actor(BEREAVED)?;
        let wanted = Subscribing { wait, watch: true, ..wanted(place.clone(), NAME) };
        self.ask(&mut reader, Order::Subscribe(wanted))?;
        reader.order(read_on(How::Deadline));
        std::thread::sleep(NOTICE);
        if daemon.is_some() {
            set_descriptor_limit(reader.pid(), Some(0));
        }
        self.die_unseen(publisher, &mut reader)?;
        let next = self.start_publisher(&place, NAME)?;
        self.die_unseen(next, &mut reader)?;
        std::thread::sleep(NOTICE * 10);
        set_descriptor_limit(reader.pid(), None);
        self.dismiss(reader)?;
        match &mut daemon {
            Some(daemon) => self.finish(daemon)?,
            None => self.run_tool(0, &["rm", NAME])?,
        }
        Ok(true)
    }

    /// Stops the reader, kills the publisher after some messages, and then lets the reader continue.
    fn die_unseen(&mut self, mut publisher: Actor, reader: &mut Actor) -> Result<()> {
        self.signal_actor(reader, Signal::SIGSTOP)?;
        self.ask(&mut publisher, publish(5))?;
        self.kill_actor(publisher)?;
        // Within this time, the daemon can notice the death while the reader is stopped. A slower daemon tells the reader later.
        std::thread::sleep(NOTICE);
        self.signal_actor(reader, Signal::SIGCONT)?;
        give_time(reader.pid());
        Ok(())
    }

    /// Tests a crash of a daemon after which only one reader has a channel's memory. The next daemon must wait until this reader has passed
    /// the memory to it, even if nobody has published in this memory yet.
    pub(super) fn leave_it_to_a_reader(&mut self, is_brief: bool) -> Result<bool> {
        const NAME: &str = "inherited";
        let Some(mut daemon) = self.second_daemon(NAME, false, true)? else { return Ok(false) };
        self.begin(&mut daemon)?;
        let place = Place::Socket(daemon.socket());
        let mut publisher = self.start_publisher(&place, NAME)?;
        self.ask(&mut publisher, publish(10))?;
        let mut reader = self.start_actor('o')?;
        self.ask(&mut reader, subscribing(place, NAME, false))?;
        reader.order(read_on(How::Deadline));
        std::thread::sleep(NOTICE);
        self.take_channel(&daemon)?;
        self.dismiss(publisher)?;
        // After this pause, the reader has the new memory.
        std::thread::sleep(NOTICE);
        let mut next = self.ask_the_third(&mut daemon, &mut reader, is_brief)?;
        let published = self.ask(&mut next, publish(5))?;
        self.see_the_last(reader, &published)?;
        self.dismiss(next)?;
        self.finish(&mut daemon)?;
        Ok(true)
    }

    /// Tests that a call of a reader returns in time in this case: the next message's publisher was cut off, and the reader cannot change
    /// to the next segment.
    pub(super) fn withhold(&mut self) -> Result<bool> {
        const NAME: &str = "withheld";
        let Some(mut daemon) = self.second_daemon(NAME, false, true)? else { return Ok(false) };
        self.begin(&mut daemon)?;
        let place = Place::Socket(daemon.socket());
        let mut old = self.start_publisher(&place, NAME)?;
        let mut reader = self.start_actor('o')?;
        self.ask(&mut reader, subscribing(place.clone(), NAME, false))?;
        let mut published = Value::Null;
        for round in 0..ROUNDS {
            reader.order(read_on(How::Deadline));
            let id = old.order(publish_on());
            std::thread::sleep(Duration::from_millis(u64::from(round % 7) + 2));
            self.signal_actor(&mut old, Signal::SIGSTOP)?;
            std::thread::sleep(NOTICE / 2);
            set_descriptor_limit(reader.pid(), Some(0));
            self.take_channel(&daemon)?;
            let mut new = self.start_actor('n')?;
            let order = self.opening(place.clone(), NAME, None);
            let opened = self.ask(&mut new, order)?;
            self.signal_actor(&mut old, Signal::SIGCONT)?;
            let end = old.answer(id, PATIENCE).unwrap_or_default();
            // The old publisher has published beyond the sequence at which the next publisher continues.
            let is_void = end["next"].as_u64() > opened["next"].as_u64();
            if is_void {
                // After this pause, the reader's call has returned, and the reader takes the next order.
                std::thread::sleep(NOTICE);
                self.ask(&mut reader, Order::Registered {})?;
            }
            set_descriptor_limit(reader.pid(), None);
            published = self.ask(&mut new, publish(5))?;
            self.dismiss(std::mem::replace(&mut old, new))?;
            if is_void {
                break;
            }
        }
        self.see_the_last(reader, &published)?;
        self.dismiss(old)?;
        self.finish(&mut daemon)?;
        Ok(true)
    }
}
