//! Takes the answers of writers to requests for missing messages.

use super::super::block::{Body, Head, Kind};
use super::{AGAIN_NS, Asks, Delivery, Phase, Reader};

impl Reader {
    /// Handles a writer's answer to a request for missing messages. `answer` is `None` if no writer answered.
    pub fn handle_want(
        &mut self,
        now_ns: u64,
        round: u64,
        answer: Option<&[u8]>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        let (Phase::Hole { to, asks, .. }, Some(next)) = (self.phase, self.next) else { return };
        if round == self.round {
            self.ask_ns = now_ns + AGAIN_NS;
        }
        // A late answer, which arrives after the request was repeated, is judged by its own fields, like every block.
        let Some(block) = answer else { return };
        let mut opener = std::mem::take(&mut self.opener);
        match opener.open(block) {
            Ok((head, _)) if head.first > next => self.take_hint(now_ns, (to, asks), &head),
            Ok((head, body)) => self.take_mend(now_ns, (to, next), &head, body, sink),
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
        (to, next): (u64, u64),
        head: &Head,
        body: Body<'_>,
        sink: &mut impl FnMut(Delivery<'_>),
    ) {
        if Some(head.session) != self.session || head.first > next || !head.reaches(next) {
            return;
        }
        match head.kind {
            Kind::End | Kind::Takeover => return,
            // The answer is only for the hole. The log has the messages after the hole.
            Kind::Gap => {
                let end = (to + 1).min(head.end());
                self.counters.given_up += end - next;
                sink(Delivery::Gap { missing: next..end });
                self.next = Some(end);
            }
            Kind::Data | Kind::Fragment => {
                if !self.take(head, body, sink) {
                    return;
                }
                self.counters.mended += self.next.unwrap_or(next) - next;
            }
        }
        let now_due = self.next.unwrap_or(next);
        match now_due > to {
            true => self.search(now_ns),
            // The sender might have more of the missing messages, so the time until they are given up begins again.
            false => {
                let hole = Phase::Hole { to, since_ns: now_ns, asks: Asks::Due };
                (self.phase, self.ask_ns) = (hole, now_ns);
            }
        }
    }
}
