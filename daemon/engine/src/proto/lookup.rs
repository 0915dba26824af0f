//! Finds the block of the log that answers a request for missing messages.
//!
//! A reader searches and follows the log's copy of any server. If this copy differs from the other copies for ever, the reader lacks
//! messages that the log has. For this reason, the log's leader answers requests, too. The reader judges its answer like a writer's answer.

use shmcast_bridge::proto::MILLISECOND_NS;

use super::block::{Body, Head};
use super::mutant::{Mutant, is};
use super::seal::Opener;
use super::want::{Want, Wanted, is_earlier};

/// The search reads at most this many entries where the answer should be. It skips entries that are damaged or have no messages.
const MOST_SKIPPED: u64 = 256;

/// The time after which the leader is asked again for messages that it did not have.
const AGAIN_NS: u64 = 1_000 * MILLISECOND_NS;

/// The longest time for which the reader waits for the leader's answer before it gives up messages.
const HOLD_NS: u64 = 30_000 * MILLISECOND_NS;

/// The first message of a request, and whether the request is for exactly this message.
type Asked = (u64, bool);

/// The result of a search for the block that answers a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found<B> {
    /// The log has this block.
    Block(B),
    /// The log has no such block.
    Nothing,
    /// The leader did not answer a step of the search, so it is unknown whether the log has the block.
    Unknown,
}

/// Decides when the reader also asks the log's leader for missing messages. Usually, the leader is asked only after the writers did not
/// answer the first request.
#[derive(Debug, Default)]
pub struct LeaderAsks {
    /// The first sequence of the last request to the writers.
    first: u64,
    is_asked: bool,
    /// Whether the last search ended without an answer.
    is_silent: bool,
    /// The time of the first unanswered request to the leader for the messages `asked`.
    asked_ns: u64,
    /// The messages of the last request to the leader. `answered` has the messages of the last request that it answered.
    asked: Asked,
    answered: Option<Asked>,
    /// Whether the leader had the messages that it was last asked for.
    has_some: bool,
    /// The time before which the leader is not asked.
    rest_until_ns: u64,
}

impl LeaderAsks {
    /// Whether the leader must be asked too, in addition to this request to the writers. When the leader's search ends, call
    /// [`end`](Self::end).
    pub fn begin(&mut self, now_ns: u64, want: &Want) -> bool {
        let is_again = std::mem::replace(&mut self.first, want.first) == want.first;
        self.is_silent &= is_again;
        let is_due = (is_again || self.has_some) && !self.is_asked && now_ns >= self.rest_until_ns;
        if is_due {
            let asked = (want.first, matches!(want.wanted, Wanted::Exact(_)));
            if !self.is_silent || asked != self.asked {
                self.asked_ns = now_ns;
            }
            (self.is_asked, self.asked) = (true, asked);
        }
        is_due && !is(Mutant::AsksNoLeader)
    }

    /// Notes the result of a search in the leader's entries. An earlier mistake: if a step of the search got no answer, this counted as an
    /// answer, and the reader gave up messages that the leader had.
    pub fn end<B>(&mut self, now_ns: u64, found: &Found<B>) {
        (self.is_asked, self.has_some) = (false, matches!(found, Found::Block(_)));
        self.is_silent = matches!(found, Found::Unknown);
        if !self.is_silent {
            self.answered = Some(self.asked);
        }
        self.rest_until_ns = if self.has_some { 0 } else { now_ns + AGAIN_NS };
    }

    /// Whether the reader must wait for the leader's answer before it gives up messages. The reader does not wait if the leader has already
    /// answered the same request.
    pub fn is_awaited(&self, now_ns: u64) -> bool {
        let is_new = self.answered != Some(self.asked);
        (self.is_asked || self.is_silent) && is_new && now_ns.saturating_sub(self.asked_ns) < HOLD_NS
    }
}

#[derive(Debug, Clone, Copy)]
enum Phase {
    /// The binary search for the answer: for the first entry whose block does not come before the wanted messages. The number of this entry
    /// is in `low..=high`, and `probe` is the number to read next.
    Bisect {
        low: u64,
        high: u64,
        probe: u64,
    },
    /// Reads the entries from `number` on, at most `left` of them.
    Walk {
        number: u64,
        left: u64,
    },
    Over,
}

/// A search for the block that answers a request.
#[derive(Debug)]
pub struct Lookup {
    want: Want,
    /// The first missing byte of the first wanted message.
    offset: u32,
    phase: Phase,
}

impl Lookup {
    /// Begins a search in the entries `first..=last`. `offset` is the number of bytes that the reader has of the first wanted message.
    pub fn new(want: Want, offset: u32, (first, last): (u64, u64)) -> Lookup {
        Lookup { want, offset, phase: halve(first, last + 1) }
    }

    /// The number of the entry to read. If the log has no entry with this number, pass the next entry to [`take`](Self::take). `None` means
    /// that the search is over.
    pub fn next(&self) -> Option<u64> {
        match self.phase {
            Phase::Bisect { probe, .. } => Some(probe),
            Phase::Walk { number, .. } => Some(number),
            Phase::Over => None,
        }
    }

    /// Takes the entry that was read; `None` if the log has no entry with that number or a higher one. Returns whether this entry is the
    /// answer.
    pub fn take(&mut self, entry: Option<(u64, &[u8])>, opener: &mut Opener) -> bool {
        let (want, offset) = (self.want, self.offset);
        match self.phase {
            Phase::Bisect { low, high, probe } => {
                let middle = low + (high - low) / 2;
                self.phase = match entry.filter(|(number, _)| *number < high) {
                    None => halve(low, middle),
                    Some((number, block)) => match opener.open(block) {
                        Ok((head, body)) if is_behind(&want, offset, &head, &body) => halve(number + 1, high),
                        Ok(_) => halve(low, middle),
                        // The sequences of a damaged entry are unknown, so the next entry is read instead.
                        Err(_) if number.max(probe) + 1 < high => {
                            Phase::Bisect { low, high, probe: number.max(probe) + 1 }
                        }
                        Err(_) => halve(low, middle),
                    },
                };
                false
            }
            Phase::Walk { left, .. } => {
                self.phase = Phase::Over;
                let Some((number, block)) = entry else { return false };
                match opener.open(block) {
                    Ok((head, body)) if is_answer(&want, offset, &head, &body) => return true,
                    Ok((head, _)) if is_after(&want, &head) => return false,
                    _ if left > 1 => self.phase = Phase::Walk { number: number + 1, left: left - 1 },
                    _ => {}
                }
                false
            }
            Phase::Over => false,
        }
    }
}

fn halve(low: u64, high: u64) -> Phase {
    match low < high {
        true => Phase::Bisect { low, high, probe: low + (high - low) / 2 },
        false => Phase::Walk { number: high, left: MOST_SKIPPED },
    }
}

/// Whether a block comes before the answer.
fn is_behind(want: &Want, offset: u32, head: &Head, body: &Body<'_>) -> bool {
    if head.session != want.session {
        return is_earlier(head.session, want.session);
    }
    match body {
        Body::Fragment(part) if head.first == want.first => {
            u64::from(part.offset) + part.data.len() as u64 <= u64::from(offset)
        }
        _ => !head.reaches(want.first),
    }
}

/// Whether a block comes after every possible answer.
fn is_after(want: &Want, head: &Head) -> bool {
    match head.session == want.session {
        true => head.first > want.last(),
        false => is_earlier(want.session, head.session),
    }
}

fn is_answer(want: &Want, offset: u32, head: &Head, body: &Body<'_>) -> bool {
    let has_messages = match body {
        Body::Messages(_) | Body::Gap => true,
        Body::Fragment(part) => head.first > want.first || part.offset <= offset,
        Body::End | Body::Takeover | Body::Sealed(_) => false,
    };
    let is_of_session = head.session == want.session;
    has_messages && is_of_session && !is_behind(want, offset, head, body) && !is_after(want, head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::block::{BlockId, Cut, Packing, Stream};
    use crate::proto::seal::Sealer;
    use shmcast_bridge::proto::session::Session;
    use shmcast_bridge::proto::wire::Meta;

    const BLOCK_BYTES: usize = 1 << 10;
    const NOTHING: Found<()> = Found::Nothing;

    fn session(epoch: u64) -> Session {
        Session::of_channel("T", epoch).unwrap()
    }

    fn block(epoch: u64, cut: Cut) -> Vec<u8> {
        let (id, session) = (BlockId { writer: 1, number: 1 }, session(epoch));
        cut.finish(Head::new(Stream::of_session(session), session, id), &Sealer::default()).0
    }

    fn messages(epoch: u64, range: std::ops::RangeInclusive<u64>) -> Vec<u8> {
        let mut packing = Packing::new(BLOCK_BYTES);
        range.for_each(|sequence| assert!(packing.push(sequence, b"m", Meta::default())));
        block(epoch, packing.cut().unwrap())
    }

    fn part(sequence: u64, offset: usize) -> Vec<u8> {
        block(1, Cut::part(sequence, &[7; 3_000], Meta::default(), offset, BLOCK_BYTES))
    }

    /// Returns the number of the entry that answers a request. The first entry of the log has the number 1.
    fn find(log: &[Option<Vec<u8>>], want: Want, offset: u32) -> Option<u64> {
        let (mut lookup, mut opener) = (Lookup::new(want, offset, (1, log.len() as u64)), Opener::default());
        for _ in 0..1_000 {
            let from = lookup.next()?;
            let there = (1..).zip(log).filter_map(|(number, block)| Some((number, block.as_deref()?)));
            let entry = there.into_iter().find(|(number, _)| *number >= from);
            if lookup.take(entry, &mut opener) {
                return entry.map(|(number, _)| number);
            }
        }
        panic!("the search does not end");
    }

    #[test]
    fn the_leaders_first_answer_to_a_request_is_waited_for_but_not_for_ever() {
        let exact = |first| Want { session: session(1), first, wanted: Wanted::Exact(0) };
        let mut asks = LeaderAsks::default();
        assert!(!asks.begin(0, &exact(5)) && !asks.is_awaited(0));
        assert!(asks.begin(1, &exact(5)));
        assert!(asks.is_awaited(1) && asks.is_awaited(HOLD_NS) && !asks.is_awaited(1 + HOLD_NS));
        asks.end(2, &NOTHING);
        assert!(!asks.is_awaited(2));
        let again_ns = 2 + AGAIN_NS;
        assert!(
            asks.begin(again_ns, &exact(5)) && !asks.is_awaited(again_ns),
            "it has answered this request"
        );
        asks.end(again_ns, &NOTHING);
        let any_ns = again_ns + AGAIN_NS;
        assert!(asks.begin(any_ns, &Want::any(session(1), 5, 9)) && asks.is_awaited(any_ns));
    }

    /// An earlier mistake: if a step of the leader's search got no answer, this counted as an answer.
    #[test]
    fn a_leader_that_is_silent_is_asked_again_and_waited_for_but_not_for_ever() {
        let exact = |first| Want { session: session(1), first, wanted: Wanted::Exact(0) };
        let mut asks = LeaderAsks::default();
        assert!(!asks.begin(0, &exact(5)) && asks.begin(1, &exact(5)));
        asks.end(2, &Found::<()>::Unknown);
        let again_ns = 2 + AGAIN_NS;
        assert!(
            asks.is_awaited(2) && !asks.begin(again_ns - 1, &exact(5)) && asks.begin(again_ns, &exact(5))
        );
        asks.end(again_ns + 1, &Found::<()>::Unknown);
        assert!(
            asks.is_awaited(HOLD_NS) && !asks.is_awaited(1 + HOLD_NS),
            "the limit began with the first request"
        );
        assert!(asks.begin(2 + HOLD_NS, &exact(5)));
        asks.end(3 + HOLD_NS, &NOTHING);
        assert!(!asks.is_awaited(3 + HOLD_NS));
        let mut asks = LeaderAsks::default();
        assert!(!asks.begin(0, &exact(5)) && asks.begin(1, &exact(5)));
        asks.end(2, &Found::<()>::Unknown);
        assert!(!asks.begin(3, &exact(6)) && !asks.is_awaited(3), "the messages have arrived");
    }

    #[test]
    fn a_block_is_found_among_damaged_and_missing_entries_and_other_sessions() {
        let log = [
            Some(messages(1, 1..=10)),
            None,
            Some(b"damaged".to_vec()),
            Some(messages(1, 11..=20)),
            Some(block(1, Cut::takeover(21))),
            Some(b"damaged".to_vec()),
            Some(messages(1, 21..=30)),
            Some(messages(1, 35..=40)),
            Some(messages(2, 1..=50)),
            Some(messages(2, 51..=60)),
        ];
        let exact =
            |epoch, first| find(&log, Want { session: session(epoch), first, wanted: Wanted::Exact(0) }, 0);
        for (first, number) in [(1, 1), (10, 1), (11, 4), (20, 4), (21, 7), (30, 7), (35, 8), (40, 8)] {
            assert_eq!(exact(1, first), Some(number), "message {first}");
        }
        assert_eq!((exact(1, 31), exact(1, 41), exact(2, 61), exact(3, 1)), (None, None, None, None));
        assert_eq!((exact(2, 1), exact(2, 50), exact(2, 60)), (Some(9), Some(9), Some(10)));
        let any = |first, last| find(&log, Want::any(session(1), first, last), 0);
        assert_eq!((any(31, 35), any(31, 34)), (Some(8), None));
    }

    #[test]
    fn a_message_in_parts_is_found_from_the_first_missing_byte_on() {
        let step = Cut::part(2, &[7; 3_000], Meta::default(), 0, BLOCK_BYTES).part_bytes();
        let log = [
            Some(messages(1, 1..=1)),
            Some(part(2, 0)),
            Some(part(2, step)),
            None,
            Some(part(2, 3 * step)),
            Some(messages(1, 3..=3)),
        ];
        let found = |offset: usize| {
            let offset = offset as u32;
            find(&log, Want { session: session(1), first: 2, wanted: Wanted::Exact(offset) }, offset)
        };
        assert_eq!((found(0), found(1), found(step)), (Some(2), Some(2), Some(3)));
        assert_eq!(
            (found(2 * step), found(3 * step)),
            (None, Some(5)),
            "a part cannot be taken before the one before it"
        );
    }
}
