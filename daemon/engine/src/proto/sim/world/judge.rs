//! The observers of a story: an operator, and the judge.

use shmcast_bridge::proto::SECOND_NS;

use super::{END_NS, Report, World, WriterActor};
use crate::proto::writer::State;

/// The time after which an operator notices that a writer cannot open a block.
const SEEN_NS: u64 = 2 * SECOND_NS;
/// A writer that is ordered to take over an idle channel must do so within this time.
const OBEYED_NS: u64 = 10 * SECOND_NS;

impl World {
    /// Passes strangers' pulses and an operator's orders to a writer.
    pub(super) fn oversee(&mut self, at: usize) {
        let (now_ns, is_stranger) = (self.now_ns, self.is_stranger(at));
        let Some(actor) = self.writers[at].as_mut().filter(|actor| actor.awake_ns <= now_ns) else { return };
        if now_ns < self.flood_until_ns {
            actor.writer.handle_pulse(now_ns, u64::MAX);
        }
        actor.shut_ns = match actor.writer.state() {
            State::Shut(_) => actor.shut_ns.or(Some(now_ns)),
            _ => None,
        };
        // An operator sees the writer's report, and knows which keys are right.
        if !is_stranger && actor.shut_ns.is_some_and(|since_ns| now_ns - since_ns > SEEN_NS) {
            actor.writer.take_over(now_ns);
            self.ordered.insert(self.lives[at]);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        let is_at_rest = |(at, actor): (usize, &WriterActor)| match actor.writer.state() {
            State::Fenced(_) => true,
            State::Run => actor.writer.stored() > self.channel.messages,
            State::Shut(_) => self.is_stranger(at),
            _ => false,
        };
        let is_noticed = |actor: &WriterActor| {
            self.must_notice.is_none_or(|(life, _)| !self.lives.contains(&life))
                || actor.writer.counters().losses > 0
        };
        let mut writers = (0..2).filter_map(|at| Some((at, self.writers[at].as_ref()?)));
        // If a writer must notice a loss, the story continues until it has noticed the loss, but not longer than to one second before
        // `END_NS`.
        self.ring.next > self.channel.messages
            && writers.all(is_at_rest)
            && (self.now_ns > END_NS - SECOND_NS || self.writers.iter().flatten().any(is_noticed))
    }

    /// After the last message was published, lets an operator order the waiting writer to take over. Returns whether the writer has done
    /// so; true if no writer waits.
    pub(super) fn is_taken_over(&mut self) -> Result<bool, String> {
        let Some((life, until_ns)) = self.must_own else {
            let is_fenced = |actor: &WriterActor| matches!(actor.writer.state(), State::Fenced(_));
            let waits =
                |at: &usize| !self.is_stranger(*at) && self.writers[*at].as_ref().is_some_and(is_fenced);
            let Some(at) = (0..2).find(waits) else { return Ok(true) };
            let now_ns = self.now_ns;
            if let Some(actor) = self.writers[at].as_mut().filter(|actor| actor.awake_ns <= now_ns) {
                actor.writer.take_over(now_ns);
                self.ordered.insert(self.lives[at]);
                self.must_own = Some((self.lives[at], now_ns + OBEYED_NS));
            }
            return Ok(false);
        };
        let owner = self.log.last(self.channel.keys()).head.map(|head| head.writer);
        let waits = |at: usize| {
            self.writers[at].as_ref().is_none_or(|actor| matches!(actor.writer.state(), State::Fenced(_)))
        };
        let other = usize::from(self.lives[0] == life);
        if owner == Some(life) && waits(other) {
            self.report.takeovers += 1;
            return Ok(true);
        }
        match self.now_ns > until_ns {
            true => Err("an ordered takeover of an idle channel had no effect".to_owned()),
            false => Ok(false),
        }
    }

    pub(super) fn judge(mut self) -> Result<Report, String> {
        if let Some((life, _)) = self.must_notice
            && let Some(at) = self.lives.iter().position(|lives| *lives == life)
            && self.writers[at].as_ref().is_some_and(|actor| actor.writer.counters().losses == 0)
        {
            return Err("the log lost what it had acknowledged, and the writer did not notice".to_owned());
        }
        self.count_reader();
        let was_whole = self.is_log_sound && self.hidden_until_ns.is_none();
        if was_whole && !self.has_stranger && self.report.holes > 0 {
            return Err("the writers left a hole in a sound log".to_owned());
        }
        (0..2).for_each(|at| self.count_writer(at));
        self.report.parts += self.ring.parts;
        self.report.given_up += self.ring.given_up;
        self.report.sessions += self.ring.sessions;
        Ok(self.report)
    }

    /// If a log keeps its messages, the reader must not have reported any of them as lost.
    pub(super) fn judge_gaps(&mut self) -> Result<(), String> {
        for missing in std::mem::take(&mut self.ring.gaps) {
            let can_be_had = self.answers.has_leader || !self.log.is_hidden();
            if self.is_log_sound && !self.has_stranger && can_be_had && self.log.has_any(&missing) {
                return Err(format!("{missing:?} are given up, and the log has some of them"));
            }
        }
        Ok(())
    }

    /// Checks a block that was stored.
    pub(super) fn judge_append(&mut self, life: u64) -> Result<(), String> {
        if let Some(what) = self.log.misplaced().filter(|_| !self.ordered.contains(&life)) {
            return Err(what.to_owned());
        }
        Ok(())
    }
}
