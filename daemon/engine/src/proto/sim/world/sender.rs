//! The answers to a reader's requests: those of the senders, and those of the log's leader.

use fastrand::Rng;
use shmcast_bridge::proto::MILLISECOND_NS;

use super::{BLOCK_BYTES, Channel, Event, STREAM, World};
use crate::proto::block::{Carried, Packing};
use crate::proto::lookup::{Found, LeaderAsks, Lookup};
use crate::proto::requests::Requests;
use crate::proto::seal::Opener;
use crate::proto::want::{Answerer, Want, Wanted};

/// The longest pause after an answer.
const PAUSE_NS: u64 = 200 * MILLISECOND_NS;

/// The answering part of the senders.
pub(super) struct Answers {
    answerer: Answerer,
    /// A random generator for this part only, so that its draws do not change the other events of a story.
    pub(super) rng: Rng,
    requests: Requests<String>,
    /// The time that an answer takes; 0 in every second story.
    takes_ns: u64,
    /// The time until which the sender is busy with its last answer.
    busy_until_ns: u64,
    leader: LeaderAsks,
    /// Whether the reader can ask the log's leader. A NATS account can lack the right to do so.
    pub(super) has_leader: bool,
}

impl Answers {
    pub(super) fn new(channel: &Channel) -> Answers {
        let mut rng = Rng::with_seed(!channel.seed);
        let takes_ns = if rng.bool() { rng.u64(100..600) * MILLISECOND_NS } else { 0 };
        let mut answerer = Answerer::new(u64::MAX);
        answerer.set_key(channel.keys().as_ref().and_then(|keys| keys.sealing(0)));
        let (requests, leader, has_leader) = (Requests::default(), LeaderAsks::default(), rng.u8(..4) != 0);
        Answers { answerer, rng, requests, takes_ns, busy_until_ns: 0, leader, has_leader }
    }
}

impl World {
    /// Passes a request for missing messages to the senders, and to the log's leader if the senders did not answer an earlier request.
    pub(super) fn take_want(&mut self, delay: u64, life: u64, round: u64, want: Want) {
        if self.answers.has_leader && self.answers.leader.begin(self.now_ns, &want) {
            let found = self.leaders_block(want);
            self.answers.leader.end(self.now_ns, &found);
            if let Found::Block(block) = found {
                self.send(delay, life, Event::Answer(round, Some(block)));
            }
        }
        if self.rng.u8(..) < self.loss {
            return;
        }
        match self.writers.iter().flatten().count() {
            0 => self.send(delay, life, Event::Answer(round, None)),
            _ => self.answers.requests.add(want, format!("_INBOX.{life}.{round}")),
        }
    }

    /// Searches the leader's entries for the block that answers a request.
    fn leaders_block(&mut self, want: Want) -> Found<Vec<u8>> {
        let offset = self.reader.as_ref().map_or(0, |reader| reader.bytes_due());
        let mut lookup = Lookup::new(want, offset, self.log.bounds());
        let mut opener = Opener::new(self.channel.keys(), false);
        while let Some(number) = lookup.next() {
            let entry = self.log.read_leader(number);
            if lookup.take(entry.as_ref().map(|(number, block)| (*number, &block[..])), &mut opener) {
                return entry.map_or(Found::Nothing, |(_, block)| Found::Block(block));
            }
        }
        Found::Nothing
    }

    /// Lets the senders answer waiting requests, one at a time. A sender that is stopped answers later.
    pub(super) fn answer_wants(&mut self) {
        let now_ns = self.now_ns;
        let is_awake = self.writers.iter().flatten().next().is_some_and(|actor| actor.awake_ns <= now_ns);
        while is_awake && now_ns >= self.answers.busy_until_ns {
            let Some((want, to)) = self.answers.requests.take() else { return };
            let mut numbers = to.split('.').skip(1).map(|number| number.parse().expect("it is a number"));
            let (life, round) = numbers.next().zip(numbers.next()).expect("a life and a round");
            let takes_ns = self.answers.takes_ns;
            self.answers.busy_until_ns = now_ns + takes_ns + takes_ns.min(PAUSE_NS);
            let way_ns = self.answers.rng.u64(1..20) * MILLISECOND_NS / 4;
            if let Some(block) = self.mend(want) {
                self.send(takes_ns + way_ns, life, Event::Answer(round, Some(block)));
            }
        }
    }

    /// Makes a sender's answer as `Mending` does, from the messages in its ring. Returns `None` if the request is for older messages.
    fn mend(&mut self, want: Want) -> Option<Vec<u8>> {
        let (channel, now_ns) = (self.channel, self.now_ns);
        let actor = self.writers.iter().flatten().next()?;
        let first = want.first.max(channel.oldest(now_ns));
        if first > want.last() || first >= channel.next(now_ns) {
            return None;
        }
        let mut packing = Packing::new(BLOCK_BYTES);
        let offset = if let Wanted::Exact(offset) = want.wanted { offset as usize } else { 0 };
        let cut = channel.cut(now_ns, first, offset, &mut packing);
        let carried = Carried { stream: STREAM, session: actor.writer.session() };
        Some(self.answers.answerer.answer(carried, cut, 0))
    }
}
