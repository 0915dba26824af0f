//! Requests missing messages from the writers, takes their answers, and gives up messages that nobody has.

use super::super::block::{Body, Head, Kind};
use super::super::mutant::{Mutant, is};
use super::super::want::{Want, Wanted};
use super::{AGAIN_NS, ANY_NS, Ask, Asks, Delivery, Nobodys, PATIENT_NS, Phase, Reader};

impl Reader {
    pub(super) fn ask_for_mends(
        &mut self,
        now_ns: u64,
        to: u64,
        since_ns: u64,
        asks: Asks,
        sink: &mut impl FnMut(Delivery<'_>),
    ) -> Option<Ask> {
        let (Some(session), Some(first)) = (self.session, self.next) else {
            self.search(now_ns);
            return None;
        };
        if is(Mutant::AsksNobody) {
            self.give_up(now_ns, first, to, sink);
            return None;
        }
        let silent_ns = now_ns.saturating_sub(since_ns);
        let asks = match (asks, self.config.give_up_ns) {
            (Asks::Due, Some(limit_ns)) if silent_ns >= limit_ns => {
                self.phase = Phase::Hole { to, since_ns: now_ns, asks: Asks::Any { before: to + 1 } };
                Asks::Any { before: to + 1 }
            }
            (Asks::Due, None) if silent_ns >= PATIENT_NS => {
                self.search(now_ns);
                return None;
            }
            (Asks::Any { before }, limit_ns) if silent_ns >= limit_ns.unwrap_or(ANY_NS).min(ANY_NS) => {
                // No writer has the messages. But the copy of the log that the reader searches might have received them since the last
                // search, so the reader searches it once more.
                self.nobodys = Some(Nobodys { first, before, step_ns: now_ns });
                match is(Mutant::TrustsTheCopy) {
                    true => self.give_up(now_ns, first, to.min(before - 1), sink),
                    false => self.search(now_ns),
                }
                return None;
            }
            (asks, _) => asks,
        };
        self.counters.wanted += 1;
        Some(Ask::Want(match asks {
            Asks::Due => Want { session, first, wanted: Wanted::Exact(self.bytes_due()) },
            Asks::Any { before } => Want::any(session, first, before - 1),
        }))
    }

    /// Reports the sequences `first..=to` as lost.
    fn give_up(&mut self, now_ns: u64, first: u64, to: u64, sink: &mut impl FnMut(Delivery<'_>)) {
        self.counters.given_up += to - first + 1;
        sink(Delivery::Gap { missing: first..to + 1 });
        self.next = Some(to + 1);
        self.search(now_ns);
    }

    /// Handles a hole: the sequences from the next one up to `to` have not arrived.
    pub(super) fn miss(&mut self, now_ns: u64, to: u64, sink: &mut impl FnMut(Delivery<'_>)) {
        if !self.is_certain && !is(Mutant::NeverLooksAgain) {
            return self.search(now_ns);
        }
        let asks = match self.nobodys.take().filter(|nobodys| self.next == Some(nobodys.first)) {
            Some(Nobodys { first, before, step_ns }) if now_ns.saturating_sub(step_ns) <= ANY_NS => {
                let last = if is(Mutant::GivesUpAll) { to } else { to.min(before - 1) };
                return self.give_up(now_ns, first, last, sink);
            }
            Some(_) => Asks::Any { before: to + 1 },
            None => Asks::Due,
        };
        // After each search, the reader finds the same hole again, and must not count it again.
        self.counters.holes += u64::from(self.hole.replace(to) != Some(to));
        self.phase = Phase::Hole { to, since_ns: now_ns, asks };
        self.ask_ns = now_ns;
        self.round += 1;
    }

    /// Notes that the log answered a step of the search.
    pub(super) fn note_step(&mut self, now_ns: u64) {
        let is_search = matches!(self.phase, Phase::Bounds | Phase::Bisect { .. });
        if let Some(nobodys) = self.nobodys.as_mut().filter(|_| is_search)
            && now_ns.saturating_sub(nobodys.step_ns) <= ANY_NS
        {
            nobodys.step_ns = now_ns;
        }
    }

    /// Begins the time without an answer anew. Call this if a request for missing messages could not be sent, or if the log's leader has
    /// not answered it yet. In both cases, the silence does not prove that nobody has the messages.
    pub fn handle_undelivered(&mut self, now_ns: u64) {
        if let Phase::Hole { since_ns, .. } = &mut self.phase {
            *since_ns = now_ns;
        }
    }

    /// Returns the last missing sequence and the present request, if the reader accepts answers of writers. The reader also accepts them
    /// during its last search before it gives messages up. An earlier mistake: the reader dropped such answers, and gave the messages up.
    fn mends(&self) -> Option<(u64, Asks)> {
        match (self.phase, self.nobodys) {
            (Phase::Hole { to, asks, .. }, _) => Some((to, asks)),
            (_, Some(Nobodys { first, before, .. })) if self.next == Some(first) => {
                Some((before - 1, Asks::Any { before }))
            }
            _ => None,
        }
    }

    /// Handles a writer's answer to a request for missing messages. `answer` is `None` if no writer answered.
    pub fn handle_want(
        &mut self,
        now_ns: u64,
        round: u64,
        answer: Option<&[u8]>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        let (Some((to, asks)), Some(next)) = (self.mends(), self.next) else { return };
        if self.is_waiting_for_mends() && round == self.round {
            self.ask_ns = now_ns + AGAIN_NS;
        }
        // A late answer, which arrives after the request was repeated, is judged by its own fields, like every block.
        let Some(block) = answer else { return };
        let mut opener = std::mem::take(&mut self.opener);
        match opener.open(block) {
            Ok((head, _)) if head.first > next => self.take_hint(now_ns, (to, asks), &head),
            Ok((head, body)) => self.take_mend(now_ns, (to, next, asks), &head, body, sink),
            Err(why) => self.count_damage(why),
        }
        self.opener = opener;
    }

    /// Handles an answer that begins after the first missing message: the writer has only later messages of the hole.
    fn take_hint(&mut self, now_ns: u64, (to, asks): (u64, Asks), head: &Head) {
        let Asks::Any { before } = asks else { return };
        if Some(head.session) == self.session && head.first < before {
            // Another writer might have earlier messages.
            let asks = Asks::Any { before: head.first };
            (self.phase, self.ask_ns) = (Phase::Hole { to, since_ns: now_ns, asks }, now_ns);
        }
    }

    fn take_mend(
        &mut self,
        now_ns: u64,
        (to, next, asks): (u64, u64, Asks),
        head: &Head,
        body: Body<'_>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        if Some(head.session) != self.session || head.first > next || !head.reaches(next) {
            return;
        }
        match head.kind {
            Kind::End | Kind::Takeover => return,
            // A gap in an answer counts only up to the end of the hole, because the log has the messages after the hole.
            Kind::Gap => {
                let end = (to + 1).min(head.end());
                sink(Delivery::Gap { missing: next..end });
                self.next = Some(end);
            }
            Kind::Data | Kind::Fragment => {
                let bytes = self.bytes_due();
                let is_due = asks == Asks::Due || !self.is_waiting_for_mends();
                let is_new = |reader: &Reader| reader.next != Some(next) || reader.bytes_due() > bytes;
                // A fragment that arrives a second time brings nothing new, so the reader does not send its next request yet.
                if !self.take(head, body, sink) || is_due && !is_new(self) {
                    return;
                }
                self.counters.mended += self.next.unwrap_or(next) - next;
            }
        }
        let now_due = self.next.unwrap_or(next);
        match now_due > to {
            true => self.search(now_ns),
            // The sender might have more of the missing messages, so the time until the reader gives them up begins again.
            false => {
                let hole = Phase::Hole { to, since_ns: now_ns, asks: Asks::Due };
                (self.phase, self.ask_ns) = (hole, now_ns);
            }
        }
    }
}
