//! The faults of a story.

use shmcast_bridge::proto::{MILLISECOND_NS, SECOND_NS};

use super::{Event, World, WriterActor};
use crate::proto::writer::{State, Trouble};

/// The time for which senders are stopped while the readers' copy of the log lacks entries. It is longer than the time after which a reader
/// gives messages up.
const LONG_SLEEP_NS: u64 = 20 * SECOND_NS;

impl World {
    /// Causes one fault.
    pub(super) fn fail(&mut self) {
        // A further fault can hide an earlier loss from the writer: a rival repairs the loss, or a damaged block is at the log's end. So
        // the writer need not notice the loss any more.
        self.must_notice = None;
        match self.rng.u8(if self.is_log_sound { 6..20 } else { 0..25 }) {
            0 => self.log.lose_front(&mut self.rng),
            1 => self.log.swap(&mut self.rng),
            2 | 3 => self.log.damage(&mut self.rng, self.channel.keys().is_some()),
            4 | 5 => self.lose_tail(),
            6 | 7 => self.cut_connection(0),
            8 => self.cut_connection(1),
            9 => {
                self.count_reader();
                self.lives[2] = 0;
                self.reader_back_ns = self.now_ns + self.rng.u64(..SECOND_NS);
            }
            10 | 11 => {
                self.count_writer(0);
                self.start_writer(0);
            }
            14 | 15 => {
                let at = self.rng.usize(..2);
                let awake_ns = self.now_ns + self.rng.u64(..2 * SECOND_NS);
                if let Some(actor) = &mut self.writers[at] {
                    actor.awake_ns = awake_ns;
                }
                // Appends that the stopped writer had not passed to the system yet are sent when it runs again.
                if self.rng.bool() {
                    self.hold_back(self.lives[at], awake_ns);
                }
            }
            12 => {
                self.count_writer(1);
                self.start_writer(1);
            }
            // The reader's connection breaks. Until the servers notice this, the entries that they send are lost. After that, they continue
            // with the next entry.
            16 => {
                self.events.retain(|(_, _, event)| !matches!(event, Event::Entry(..)));
                self.deaf_until_ns = self.now_ns + self.rng.u64(..SECOND_NS);
            }
            17 => self.flood_until_ns = self.now_ns + self.rng.u64(..SECOND_NS),
            18 => {
                let (at, now_ns) = (self.rng.usize(..2), self.now_ns);
                let is_stranger = self.is_stranger(at);
                let awake =
                    self.writers[at].as_mut().filter(|actor| actor.awake_ns <= now_ns && !is_stranger);
                if let Some(actor) = awake {
                    actor.writer.take_over(now_ns);
                    self.ordered.insert(self.lives[at]);
                }
            }
            19 if self.is_log_sound => self.hide(),
            19 => self.log.remake(),
            // The power of all servers fails. Before they are back, the ring can overwrite messages that they have lost.
            23 | 24 => self.cut_power(),
            20..23 => {
                let until_ns = self.now_ns + self.rng.u64(SECOND_NS..3 * SECOND_NS);
                self.stops = Some((until_ns, self.rng.bool()));
            }
            _ => {
                self.count_writer(1);
                self.lives[1] = 0;
            }
        }
        // A reader that follows the log gets the entries from its next number on, even if other blocks now have these numbers.
        self.feed();
    }

    /// Hides some entries from the readers' copy, for a while or for ever. If for ever, can also stop the senders for [`LONG_SLEEP_NS`].
    fn hide(&mut self) {
        self.log.hide(&mut self.rng);
        let until_ns = self.now_ns + self.rng.u64(SECOND_NS / 4..6 * SECOND_NS);
        let (is_for_ever, sleep) = (self.answers.rng.u8(..3) == 0, self.answers.rng.bool());
        let is_for_ever = is_for_ever && self.answers.has_leader;
        self.hidden_until_ns = Some(if is_for_ever { u64::MAX } else { until_ns });
        if is_for_ever && sleep && !self.has_stranger {
            let awake_ns = self.now_ns + LONG_SLEEP_NS;
            self.writers.iter_mut().flatten().for_each(|actor| actor.awake_ns = awake_ns);
        }
    }

    /// The log loses its end, and answers nobody for a while.
    fn cut_power(&mut self) {
        self.lose_tail();
        self.away_until_ns = self.now_ns + self.rng.u64(SECOND_NS / 4..3 * SECOND_NS);
    }

    /// Stops a writer's process after it has cut blocks and before it sends them. Meanwhile the log loses entries, or is removed and
    /// created again. Another writer can then give the same numbers to other blocks.
    pub(super) fn stop(&mut self, life: u64, actor: &mut WriterActor) {
        let Some((until_ns, is_removed)) = self.stops.take() else { return };
        (actor.awake_ns, self.must_notice) = (until_ns, None);
        self.hold_back(life, until_ns);
        match is_removed {
            true => self.log.remake(),
            false => drop(self.log.lose_tail(&mut self.rng, self.channel.keys())),
        }
    }

    /// Delays the appends of a writer that are on their way.
    fn hold_back(&mut self, life: u64, until_ns: u64) {
        for (at_ns, from, event) in &mut self.events {
            if *from == life && matches!(event, Event::Append(_)) {
                *at_ns = until_ns + *at_ns - self.now_ns.min(*at_ns);
            }
        }
    }

    /// The log loses its end. If its owner knows that some of the lost blocks were stored, the owner must notice the loss.
    fn lose_tail(&mut self) {
        let end = self.end();
        let owner = self.log.last(self.channel.keys()).head.map(|head| head.writer);
        let left = self.log.lose_tail(&mut self.rng, self.channel.keys());
        let is_owner = |actor: &&WriterActor| {
            actor.writer.state() == State::Run && actor.writer.stored() > left && actor.writer.stored() > 1
        };
        let alive = (0..2).find(|&at| Some(self.lives[at]) == owner && self.lives[at] != 0);
        let is_alone = self.writers.iter().flatten().count() == 1;
        if let Some(at) = alive.filter(|&at| is_alone && self.writers[at].as_ref().filter(is_owner).is_some())
        {
            self.must_notice = Some((self.lives[at], end));
        }
    }

    /// A connection breaks. Appends on their way are lost, or arrive late.
    fn cut_connection(&mut self, at: usize) {
        let (life, rng) = (self.lives[at], &mut self.rng);
        // A disconnected writer writes again after about 60 ms. Appends that are late by this time arrive together with its new appends.
        let mut late_ns = match rng.u8(..4) {
            0 | 1 => 0,
            2 => rng.u64(50..80) * MILLISECOND_NS,
            _ => rng.u64(..2 * SECOND_NS),
        };
        let mut round = None;
        self.events.retain_mut(|(at_ns, from, event)| {
            let Event::Append(append) = event else { return true };
            if *from != life {
                return true;
            }
            round = Some(append.round);
            late_ns += u64::from(late_ns > 0) * rng.u64(..8) * MILLISECOND_NS;
            *at_ns += late_ns;
            late_ns > 0
        });
        if let (Some(round), Some(actor)) = (round, &mut self.writers[at]) {
            actor.line_ns = 0;
            actor.writer.handle_ack(self.now_ns, round, Err(Trouble::Disconnected));
        }
    }
}
