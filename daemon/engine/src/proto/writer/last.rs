//! Decides whether and where the writer can continue. The decision depends on the log's last block.

use super::super::block::{Damaged, Head, Stream};
use super::super::mutant::{Mutant, is};
use super::{AHEAD_NS, IDLE_LOOK_NS, LOOK_NS, Last, Refusal, Resume, State, Trouble, Writer};

impl Writer {
    /// Notes that the last block could not be read.
    pub fn handle_no_last(&mut self, now_ns: u64, round: u64) {
        if round == self.round && self.state != State::Run {
            self.look_ns = now_ns + LOOK_NS;
        }
    }

    /// Handles the log's end. `ring_next` is the channel's next sequence.
    ///
    /// # Errors
    /// [`Refusal`] if this writer must not write at all.
    pub fn handle_last(
        &mut self,
        now_ns: u64,
        round: u64,
        last: Last,
        ring_next: u64,
    ) -> Result<(), Refusal> {
        if round != self.round || (self.state == State::Run && !self.window.is_empty()) {
            return Ok(());
        }
        if self.state == State::Run {
            self.look_ns = now_ns + IDLE_LOOK_NS;
            // If the writer has appended a block since the request, the answer is too old: it cannot show whether the log has that block.
            let is_overtaken = self.looked != self.newest;
            if is_overtaken || (last.sequence, last.crc.unwrap_or(0)) == self.newest {
                return Ok(());
            }
            // The log has lost acknowledged blocks, or another writer has written.
            self.resync(now_ns, Trouble::Refused);
        }
        let is_ordered = now_ns < self.ordered_until_ns;
        if let Some(why) = last.unopened.filter(|_| !is_ordered && !is(Mutant::PassesOver)) {
            self.shut(now_ns, why);
            return Ok(());
        }
        let Some(head) = last.head else {
            self.lose_all(last.sequence);
            let at = self.stored.map_or(Resume::Beginning, Resume::At);
            self.run(now_ns, &last, at);
            return Ok(());
        };
        if head.key != 0 && self.sealer.key() == 0 {
            return Err(Refusal::Sealed);
        }
        if head.stream != self.config.stream {
            return self.meet_other(now_ns, &last, &head);
        }
        self.config.session = head.session;
        let is_rival = head.writer != self.config.writer && !self.may_follow && !is_ordered;
        if is_rival && !matches!(self.state, State::Ahead(_)) {
            self.yield_to(now_ns, &head);
            return Ok(());
        }
        if head.end() > ring_next {
            let since_ns = if let State::Ahead(since_ns) = self.state { since_ns } else { now_ns };
            if now_ns.saturating_sub(since_ns) >= AHEAD_NS {
                return Err(Refusal::Ahead { theirs: head.end() - 1, ours: ring_next - 1 });
            }
            (self.state, self.look_ns) = (State::Ahead(since_ns), now_ns + LOOK_NS);
            return Ok(());
        }
        if let Some(stored) = self.stored.filter(|stored| *stored > head.end() && !is(Mutant::LossUnseen)) {
            self.counters.lost_by_engine += stored - head.end();
            self.counters.losses += 1;
        }
        let at = match self.stored.filter(|stored| *stored > head.end()) {
            _ if is(Mutant::GoesOn) => self.cut.max(head.end()),
            Some(stored) if is(Mutant::LossUnseen) => stored,
            _ => head.end(),
        };
        if self.stored.is_none() {
            self.began = at;
        }
        self.stored = Some(at);
        self.run(now_ns, &last, Resume::At(at));
        self.go_on(now_ns);
        Ok(())
    }

    /// Handles a log without a valid block. If the number of the log's last entry has also changed, the log lost its end or was created
    /// again. In this case, all messages that the log had acknowledged count as lost.
    fn lose_all(&mut self, last: u64) {
        if self.had > 0 && last != self.had {
            self.counters.lost_by_engine += self.stored().saturating_sub(self.began);
            self.counters.losses += 1;
            (self.stored, self.had) = (None, 0);
        }
    }

    fn run(&mut self, now_ns: u64, last: &Last, resume: Resume) {
        (self.state, self.is_taken, self.may_follow) = (State::Run, false, false);
        self.look_ns = now_ns + IDLE_LOOK_NS;
        (self.newest, self.had) = ((last.sequence, last.crc.unwrap_or(0)), self.had.max(last.sequence));
        // The servers refused appends after this block, although it is the last one. So they do not know its name, because another build
        // stored it, or because they were restarted.
        let is_nameless = self.refused.0 == self.newest && self.refused.1 > 1 || is(Mutant::NumbersAlone);
        self.newest_id = last.id.filter(|_| !is_nameless);
        self.stores_after = last.stores_after.filter(|number| is_nameless && *number != last.sequence);
        let is_anothers = last.head.is_some_and(|head| head.writer != self.config.writer);
        self.takes_over = is_anothers || last.unopened.is_some();
        if !self.takes_over {
            // This writer already made the log's last block, so an order to take over is fulfilled.
            self.ordered_until_ns = 0;
        }
        self.takes_over &= !is(Mutant::SaysNothing);
        self.resume = Some(resume);
    }

    /// Waits because the last block cannot be opened, so the state of the log is unknown.
    fn shut(&mut self, now_ns: u64, why: Damaged) {
        if !matches!(self.state, State::Shut(_)) {
            self.counters.shut_out += 1;
            self.leave(State::Shut(why), now_ns);
        }
        (self.state, self.look_ns) = (State::Shut(why), now_ns + LOOK_NS);
    }

    /// Handles a log whose last block belongs to another stream.
    ///
    /// The result depends on the sessions. A session gets its number from its host's clock, so the session is too early if the clock was slow.
    ///
    /// - If this stream's session is later, this stream begins in the log after the other stream.
    /// - If this stream's session is not later, but it was made on this host and the log never had this stream, this host's clock was
    ///   probably slow. The writer waits until the other stream's writer is silent. Then the writer makes this stream's session later than
    ///   the other stream's session, and this stream begins after the other stream. So readers follow this stream.
    /// - In all other cases the writer refuses, also if the other stream's writer is heard during the wait.
    fn meet_other(&mut self, now_ns: u64, last: &Last, head: &Head) -> Result<(), Refusal> {
        let (ours, theirs) = (self.config.session, head.session);
        let refusal = Refusal::OtherStream { theirs, ours };
        let Some(epoch) = theirs.epoch().filter(|_| ours.tag() == theirs.tag()) else { return Err(refusal) };
        if ours.epoch().is_none_or(|own| own <= epoch) {
            // The session of a channel from another host identifies that channel, so it cannot be changed here.
            let is_own = self.config.stream != Stream::of_session(ours) && ours.epoch().is_some();
            let next = ours.with_epoch(epoch + 1).filter(|_| is_own && !last.had_ours).ok_or(refusal)?;
            let is_ordered = now_ns < self.ordered_until_ns;
            if head.writer != self.config.writer && !self.may_follow && !is_ordered {
                return self.wait_for_other(now_ns, head).ok_or(refusal);
            }
            self.config.session = next;
            self.counters.successions += 1;
        }
        self.stored = None;
        self.run(now_ns, last, Resume::Beginning);
        Ok(())
    }

    /// Waits until the writer of another stream in the log is silent. If a pulse or a new block arrives during the wait, returns `None`.
    fn wait_for_other(&mut self, now_ns: u64, head: &Head) -> Option<()> {
        let is_heard = match self.state {
            State::Fenced(heard_ns) => heard_ns > self.met_ns || self.seen != (head.writer, head.number),
            _ => false,
        };
        if is_heard {
            return None;
        }
        self.yield_to(now_ns, head);
        Some(())
    }

    fn yield_to(&mut self, now_ns: u64, head: &Head) {
        let seen = (head.writer, head.number);
        let heard_ns = match self.state {
            State::Fenced(heard_ns) if self.seen == seen => heard_ns,
            State::Fenced(_) | State::Start => now_ns,
            _ => {
                self.counters.fenced += 1;
                now_ns
            }
        };
        if !matches!(self.state, State::Fenced(_)) {
            self.met_ns = now_ns;
        }
        (self.seen, self.may_follow) = (seen, false);
        (self.state, self.look_ns) = (State::Fenced(heard_ns), now_ns + LOOK_NS);
    }
}
