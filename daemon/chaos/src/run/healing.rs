//! The end of a story. The runner ends every fault, lets the last publishers publish, and waits until everything is at rest.

use super::{Actor, COURTESY, Known, PATIENCE, World, ended};
use crate::actor::{Opening, Order};
use crate::log::Deed;
use crate::payload::{Identity, Sizes};
use crate::story::{Change, Sending, Whom};
use anyhow::Result;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// The number of messages that the last publisher of a channel sends.
const LAST: u32 = 100;
/// The time for which a reader that receives nothing searches for the last message, in milliseconds.
const SEARCH_MS: u64 = 10_000;
/// The search time in milliseconds in stories with a bridge or with journals. It is longer than [`SEARCH_MS`] for two reasons:
///
/// - A receiver that missed the end of a session accepts another session only after 10 s.
/// - A lapped reader of a journal reads all messages that other readers skip.
const SEARCH_FAR_MS: u64 = 25_000;

/// For each channel number: the last message of the channel, and its sequence.
type LastMessages = BTreeMap<usize, (Identity, u64)>;

fn all_at_once() -> Order {
    Order::Publish { count: LAST, sizes: Sizes::Line, sending: Sending::Single, pause_us: 0 }
}

/// Makes the actor publish [`LAST`] messages. If a gate refuses some, the actor tries again.
fn publish_all(actor: &mut Actor) -> Value {
    let until = Instant::now() + Duration::from_millis(SEARCH_MS);
    let mut left = LAST;
    loop {
        let (sizes, sending) = (Sizes::Line, Sending::Single);
        let id = actor.order(Order::Publish { count: left, sizes, sending, pause_us: 0 });
        let published = actor.answer(id, PATIENCE).unwrap_or(Value::Null);
        let Some(count) = published["count"].as_u64() else { return published };
        left -= (count as u32).min(left);
        if left == 0 || Instant::now() >= until {
            return published;
        }
    }
}

/// Returns the daemon of a host.
fn whom_of(host: usize) -> Whom {
    match host {
        0 => Whom::Daemon,
        1 => Whom::Far,
        host => Whom::Host(host as u8),
    }
}

/// Whether the actor must still search for the last message.
fn is_finishing(actor: &Actor) -> bool {
    actor.open.iter().any(|(_, order)| matches!(order, Order::Finish { .. }))
}

impl World<'_> {
    pub(super) fn heal(&mut self) -> Result<()> {
        self.note(Deed::Healing)?;
        self.is_racing = false;
        self.lift_all()?;
        for whom in self.everybody() {
            self.carry_out(&crate::story::Step::Limit { whom, spare: None })?;
            self.carry_out(&crate::story::Step::Continue { whom })?;
        }
        self.note_changes()?;
        self.plants.take_away();
        self.heal_daemons()?;
        self.heal_recorders()?;
        self.heal_sender()?;
        self.settle(PATIENCE);
        self.note_silent()?;
        self.reap()?;
        self.wait_for_registration()?;
        self.read_behind_gates();
        let farewell = self.publish_farewell();
        if !farewell.is_empty() {
            self.finish_readers(&farewell, false)?;
        }
        for at in 0..self.publishers.len() {
            self.carry_out(&crate::story::Step::Close { who: at as u8 })?;
        }
        let (actors, last) = self.publish_last()?;
        self.finish_readers(&last, true)?;
        self.wait_for_far(&last);
        // Readers that were busy before can answer now.
        self.wait_for_registration()?;
        self.wait_for_recorders_by_hand()?;
        self.look_at_rest()?;
        self.end_actors(actors)?;
        self.reap()?;
        self.clear_up()
    }

    pub(super) fn everybody(&self) -> Vec<Whom> {
        let publishers = (0..self.publishers.len()).map(|at| Whom::Publisher(at as u8));
        let readers = (0..self.readers.len()).map(|at| Whom::Reader(at as u8));
        let daemons = (0..self.daemons.len()).map(whom_of);
        publishers.chain(readers).chain(daemons).collect()
    }

    fn note_changes(&mut self) -> Result<()> {
        let changed = self.plants.changed();
        changed.into_iter().try_for_each(|what| self.note(Deed::Changed { what }))
    }

    fn heal_daemons(&mut self) -> Result<()> {
        if let Some(wire) = &self.wire {
            wire.set(0, 0, 0);
        }
        let count = self.channels.len();
        for host in 0..self.daemons.len() {
            self.daemons[host].channels.iter_mut().for_each(|c| c.records = c.channel.journal.is_some());
            self.start_daemon(whom_of(host))?;
            for at in 0..count {
                // This reload makes the configuration valid, whatever the last reload did.
                self.reload((host * count + at) as u8, Change::Add)?;
            }
        }
        Ok(())
    }

    /// Logs the actors that have not answered although nothing prevents them.
    fn note_silent(&mut self) -> Result<()> {
        let mut deeds = Vec::new();
        for actor in self.publishers.iter_mut().chain(&mut self.readers).flatten() {
            if !actor.is_patient() && actor.ended().is_none() {
                let order = format!("{:?}", actor.open.first().map(|(_, order)| order));
                deeds.push(Deed::NoAnswer { who: actor.name.clone(), order });
                actor.signal(Signal::SIGKILL);
            }
        }
        deeds.into_iter().try_for_each(|deed| self.note(deed))
    }

    /// Waits until all readers of a daemon are attached again. Does not wait for readers that are stopped or busy.
    fn wait_for_registration(&mut self) -> Result<()> {
        if self.daemons.is_empty() {
            return Ok(());
        }
        let until = Instant::now() + Duration::from_millis(SEARCH_MS);
        for at in 0..self.readers.len() {
            let Some(actor) = &mut self.readers[at] else { continue };
            let name = actor.name.clone();
            loop {
                if !actor.is_free() {
                    break;
                }
                let id = actor.order(Order::Registered {});
                match actor.answer(id, PATIENCE) {
                    Some(Value::Bool(false)) if Instant::now() < until => {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    Some(Value::Bool(false)) => {
                        self.note(Deed::NoAnswer { who: name, order: "to come back to the daemon".into() })?;
                        break;
                    }
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// In some stories, lets each publisher that still has its channel publish once more. The readers must get these messages. In the
    /// other stories, the last publisher sends the first message after all faults.
    fn publish_farewell(&mut self) -> LastMessages {
        let mut last = LastMessages::new();
        // If a wire lost a message, it arrives only after the far host has repaired the loss.
        if self.wire.is_some() || self.network.is_some() || !matches!(self.seed % 5, 1 | 3) {
            return last;
        }
        for actor in self.publishers.iter_mut().flatten() {
            let Some(channel) = actor.channel.filter(|_| actor.is_free()) else { continue };
            let id = actor.order(all_at_once());
            let published = actor.answer(id, PATIENCE).unwrap_or(Value::Null);
            let message = serde_json::from_value(published["last"].clone());
            if let (Ok(message), Some(next), true) =
                (message, published["next"].as_u64(), published["count"] == json!(LAST))
            {
                last.insert(channel, (message, next - 1));
            }
        }
        last
    }

    /// Starts a last publisher for each channel. Returns these publishers and the last message of each.
    fn publish_last(&mut self) -> Result<(Vec<Actor>, LastMessages)> {
        let (mut actors, mut last) = (Vec::new(), LastMessages::new());
        for at in 0..self.channels.len() {
            let home = self.home() * self.channels.len();
            let Known { host, channel: wanted, .. } = self.channel((home + at) as u8);
            let mut actor = self.start_actor('l')?;
            actor.channel = Some(home + at);
            let publisher = self.openings;
            self.openings += 1;
            let sizes = self.daemons.is_empty().then_some([wanted.capacity, wanted.largest]);
            let (place, channel) = (self.place(host), wanted.name.clone());
            let shape = self.shape(&wanted);
            let (anew, full, patience_ms) = (false, false, SEARCH_MS);
            let open = Order::Open(Opening {
                place,
                channel,
                publisher,
                sizes,
                anew,
                full,
                mode: None,
                patience_ms,
                shape,
            });
            let id = actor.order(open);
            let opened = actor.answer(id, PATIENCE).unwrap_or(Value::Null);
            let published = publish_all(&mut actor);
            let message = Identity { publisher, counter: LAST - 1 };
            let sequence = published["next"].as_u64().unwrap_or(0).saturating_sub(1);
            let epoch = opened["epoch"].as_u64().unwrap_or(0);
            let is_well = published["last"]["counter"] == json!(LAST - 1);
            if is_well {
                let mode = if wanted.strict { "strict" } else { "takeover" };
                let mode = (!self.daemons.is_empty()).then(|| mode.to_owned());
                self.note(Deed::Last { channel: wanted.name, message, sequence, epoch, mode })?;
            } else {
                self.note(Deed::NoAnswer { who: actor.name.clone(), order: "to publish at last".into() })?;
            }
            actors.push(actor);
            last.insert(at, (message, sequence));
        }
        Ok((actors, last))
    }

    /// Makes all readers search for the last message of their channel.
    fn finish_readers(&mut self, last: &LastMessages, is_last: bool) -> Result<()> {
        let (count, ms) = (self.channels.len(), self.search_ms());
        for actor in self.readers.iter_mut().flatten() {
            let Some((last, sequence)) = actor.channel.and_then(|at| last.get(&(at % count))) else {
                continue;
            };
            // Some readers wait for more events than the farewell causes. They must wait for the last publisher.
            if actor.is_free() || is_last {
                actor.order(Order::Finish { last: *last, sequence: *sequence, ms });
            }
        }
        let until = Instant::now() + Duration::from_millis(ms) + PATIENCE;
        for actor in self.readers.iter_mut().flatten() {
            while is_finishing(actor) && Instant::now() < until && actor.ended().is_none() {
                actor.collect(Duration::from_millis(5));
            }
        }
        let mut deeds = Vec::new();
        for actor in self.readers.iter_mut().flatten() {
            if is_finishing(actor) && actor.ended().is_none() {
                let order = format!("{:?}", actor.open.first().map(|(_, order)| order));
                deeds.push(Deed::NoAnswer { who: actor.name.clone(), order });
                actor.signal(Signal::SIGKILL);
            }
        }
        deeds.into_iter().try_for_each(|deed| self.note(deed))
    }

    fn search_ms(&self) -> u64 {
        let is_long = self.wire.is_some()
            || self.network.is_some()
            || self.channels.iter().any(|channel| channel.journal.is_some());
        if is_long { SEARCH_FAR_MS } else { SEARCH_MS }
    }

    /// Waits until the far host has all messages of the first channel, even if the channel has no reader there. The output of tools must
    /// later agree with this state.
    fn wait_for_far(&self, last: &LastMessages) {
        let Some((_, sequence)) = last.get(&0) else { return };
        let name = &self.channels[0].name;
        let until = Instant::now() + Duration::from_millis(self.search_ms());
        for far in self.daemons.iter().skip(1) {
            let next = || shmcast::Client::at(far.socket()).and_then(|client| client.channel(name));
            while Instant::now() < until
                && !next().is_ok_and(|status| status.next_sequence == Some(sequence + 1))
            {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }

    fn look_at_rest(&mut self) -> Result<()> {
        self.note(Deed::AtRest)?;
        // The figures that tools show can be a tenth of a second old.
        std::thread::sleep(Duration::from_millis(if self.daemons.is_empty() { 0 } else { 150 }));
        self.look_at_bridges()?;
        for host in self.home()..self.daemons.len().max(1) {
            self.run_tool(host, &["ls", "--json"])?;
            for at in 0..self.channels.len() {
                let channel = self.channels[at].name.clone();
                self.run_tool(host, &["stat", &channel, "--json"])?;
            }
            if let Some(daemon) = self.daemons.get(host) {
                let deed = self.scrape(host, daemon.port())?;
                self.note(deed)?;
            }
        }
        Ok(())
    }

    /// Closes and ends all actors.
    fn end_actors(&mut self, last: Vec<Actor>) -> Result<()> {
        let there: Vec<Actor> = self
            .publishers
            .iter_mut()
            .chain(&mut self.readers)
            .filter_map(Option::take)
            .chain(last)
            .collect();
        there.into_iter().try_for_each(|actor| self.dismiss(actor))
    }

    /// Makes an actor close its publisher and reader, and end.
    pub(super) fn dismiss(&mut self, mut actor: Actor) -> Result<()> {
        actor.order(Order::Close {});
        let (name, is_doomed) = (actor.name.clone(), actor.is_doomed);
        let (status, said) = actor.end(PATIENCE);
        if status.is_none() {
            self.note(Deed::NoAnswer { who: name.clone(), order: "to end".into() })?;
        }
        self.note(ended(name, status, is_doomed, said))
    }

    /// Removes the channels and the daemon. Nothing must be left.
    fn clear_up(&mut self) -> Result<()> {
        let mut left = Vec::new();
        self.end_recorders()?;
        self.end_sender()?;
        for at in 0..self.daemons.len() {
            let daemon = &mut self.daemons[at];
            left.extend(daemon.left_descriptors(COURTESY * 2));
            daemon.signal(Signal::SIGTERM);
            let status = daemon.wait(PATIENCE);
            let (who, said) = (daemon.name.to_owned(), daemon.said());
            daemon.kill();
            if status.is_none() {
                self.note(Deed::NoAnswer { who: who.clone(), order: "to end".into() })?;
            }
            let ms = self.began.elapsed().as_millis() as u64;
            self.note(Deed::Logged { who: who.clone(), lines: said.lines().count(), ms })?;
            self.note(ended(who, status, status.is_none(), said))?;
        }
        if self.daemons.is_empty() {
            for at in 0..self.channels.len() {
                let channel = self.channels[at].name.clone();
                self.run_tool(0, &["rm", &channel])?;
            }
            let entries = fs::read_dir(self.channels_dir()).into_iter().flatten().flatten();
            left.extend(entries.map(|entry| entry.path().display().to_string()));
        }
        self.read_journals()?;
        left.into_iter().try_for_each(|what| self.note(Deed::Left { what }))
    }
}
