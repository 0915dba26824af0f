//! One log and one ring at a time: what is proved, what is found, and what is waited for.

use super::super::block::{MIN_BYTES, max_whole_bytes};
use super::fake::{Feed, LocalRing, Log};
use super::*;

const MS: u64 = MILLISECOND_NS;
const HOUR_NS: u64 = 3_600 * SECOND_NS;
const FEED: Feed = Feed { number: 1, is_dull: false, begin_ns: HOUR_NS };
const OTHER: Feed = Feed { number: 2, ..FEED };

fn session(epoch: u64) -> Session {
    Session::of_channel("TICK", epoch).unwrap()
}

fn ring(feed: Feed, next: u64) -> LocalRing {
    LocalRing { feed, oldest: next.saturating_sub(100).max(1), next, later_ns: MS, sample: 0 }
}

/// A log with the messages 1 to 1000 of a feed, under a session.
fn log(feed: Feed, epoch: u64) -> Log {
    let mut log = Log::default();
    log.append((feed, session(epoch), 1), (1, 1_001), 10);
    log
}

struct Rig {
    repairs: Repairs,
    log: Log,
    ring: LocalRing,
}

impl Rig {
    fn new(log: Log, ring: LocalRing) -> Rig {
        Rig { repairs: Repairs::default(), log, ring }
    }

    /// Fetches for a receiver that follows the session 5.
    fn fetch(&mut self, now_ns: u64, first: u64) -> Result<Fetched, Unread> {
        self.repairs.fetch(now_ns, (session(5), 1), first, (&mut self.log, &mut self.ring))
    }

    /// How many messages a fetch gives, each of which is compared.
    fn count(&mut self, now_ns: u64, first: u64) -> u64 {
        let Ok(Fetched::Block(block)) = self.fetch(now_ns, first) else { return 0 };
        for sequence in first..block.next() {
            let (data, meta) = block.get(sequence).unwrap();
            let (bytes, marks) = FEED.message(sequence);
            assert_eq!((data, meta), (&bytes[..], marks), "message {sequence}");
        }
        block.next() - first
    }

    fn state(&self) -> LogState {
        self.repairs.state().0
    }
}

#[test]
fn a_log_of_the_same_session_serves_all_that_it_has_with_all_marks() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 300));
    let (mut due, mut fetches) = (300, 0);
    while due < 1_001 {
        let count = rig.count(fetches, due);
        assert!(count > 0, "{due}");
        (due, fetches) = (due + count, fetches + 1);
    }
    assert_eq!(rig.state(), LogState::Serving);
    // Only the first fetch has to look for its place.
    assert!(rig.log.gets < 40, "{} gets in {fetches} fetches", rig.log.gets);
    for first in [1, 7, 500, 999] {
        assert!(rig.count(fetches, first) > 0, "{first}");
    }
}

/// The ring is empty, since its first messages are missing. Messages that lines have brought behind them are compared.
#[test]
fn a_message_of_the_lines_proves_a_feed_before_the_ring_has_anything() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 1));
    assert!(matches!(rig.fetch(0, 1), Ok(Fetched::NotYet(1))));
    assert_eq!(rig.state(), LogState::Waiting, "the session alone is not enough");
    rig.ring.sample = 1_001;
    assert!(matches!(rig.fetch(MS, 1), Ok(Fetched::NotYet(1))), "the log is behind");
    assert!(matches!(rig.fetch(5 * SECOND_NS, 1), Ok(Fetched::Failed)), "and nobody waits for long");
    rig.ring.sample = 700;
    assert!(rig.count(6 * SECOND_NS, 1) > 0);
    let mut rig = Rig::new(log(OTHER, 5), LocalRing { sample: 700, ..ring(FEED, 1) });
    assert!(matches!(rig.fetch(0, 1), Ok(Fetched::Failed)));
    assert_eq!(rig.state(), LogState::Refused);
}

#[test]
fn one_byte_that_differs_refuses_a_log_of_the_same_session() {
    let mut rig = Rig::new(log(OTHER, 5), ring(FEED, 300));
    assert!(matches!(rig.fetch(0, 300), Ok(Fetched::Failed)));
    let (state, why) = rig.repairs.state();
    assert_eq!(state, LogState::Refused);
    assert!(why.unwrap().contains("of the stream is not that of the lines"));
    // The ring goes on, and the log stays refused.
    rig.ring = ring(OTHER, 400);
    assert!(matches!(rig.fetch(SECOND_NS, 400), Ok(Fetched::Failed)));
    assert_eq!(rig.state(), LogState::Refused);
}

/// A log that goes on with the messages of another feed, after it has proved to be of this one.
#[test]
fn each_block_is_compared_again_with_what_stands_beside_it() {
    let mut mixed = Log::default();
    mixed.append((FEED, session(5), 1), (1, 500), 10);
    mixed.append((OTHER, session(5), 1), (500, 1_001), 10);
    let mut rig = Rig::new(mixed, ring(FEED, 300));
    assert!(matches!(rig.fetch(0, 0), Ok(Fetched::Absent { .. })));
    assert_eq!(rig.state(), LogState::Serving);
    let mut refused = (501..550).filter(|next| {
        rig.ring = ring(FEED, *next);
        matches!(rig.fetch(0, *next), Ok(Fetched::Failed))
    });
    // Where a block of the log begins, there is nothing beside.
    assert!(refused.next().is_some_and(|next| next < 520));
    assert_eq!(rig.state(), LogState::Refused);
}

#[test]
fn another_session_is_the_same_feed_if_enough_messages_are_the_same() {
    for epoch in [1, 9] {
        let mut rig = Rig::new(log(FEED, epoch), ring(FEED, 300));
        assert!(rig.count(0, 300) > 0);
        assert_eq!(rig.state(), LogState::Serving);
        let mut rig = Rig::new(log(OTHER, epoch), ring(FEED, 300));
        assert!(matches!(rig.fetch(0, 300), Ok(Fetched::Failed)));
        assert_eq!(rig.state(), LogState::Refused);
        // Nothing to compare with.
        let mut rig = Rig::new(log(FEED, epoch), ring(FEED, 1));
        assert!(matches!(rig.fetch(0, 1), Ok(Fetched::NotYet(1))));
        assert_eq!(rig.state(), LogState::Waiting);
        rig.ring = ring(FEED, 50);
        assert!(rig.count(0, 50) > 0, "now there is");
    }
}

#[test]
fn another_session_is_not_believed_if_all_messages_are_alike_or_old() {
    let dull = Feed { is_dull: true, ..FEED };
    let mut rig = Rig::new(log(dull, 1), ring(dull, 300));
    assert!(matches!(rig.fetch(0, 300), Ok(Fetched::NotYet(300))));
    assert!(rig.repairs.state().1.unwrap().contains("differ among themselves"));
    // The same begins anew each day.
    let mut rig = Rig::new(log(FEED, 1), LocalRing { later_ns: 24 * HOUR_NS, ..ring(FEED, 300) });
    assert!(matches!(rig.fetch(0, 300), Ok(Fetched::NotYet(300))));
    assert!(rig.repairs.state().1.unwrap().contains("from its publication"));
}

/// An empty ring, and messages that lines have brought behind a hole. Their times are not known.
struct Behind(Feed, Vec<u64>);

impl Ring for Behind {
    fn span(&mut self) -> Option<(u64, u64)> {
        None
    }

    fn samples(&self) -> Vec<u64> {
        self.1.clone()
    }

    fn read(&mut self, sequence: u64, into: &mut Vec<u8>) -> Option<u64> {
        into.extend_from_slice(&self.0.message(sequence).0);
        self.1.contains(&sequence).then_some(0)
    }
}

/// The log still has yesterday's session, which began with the same messages.
#[test]
fn messages_whose_times_are_not_known_prove_nothing_of_another_session() {
    for (epoch, state) in [(1, LogState::Waiting), (5, LogState::Serving)] {
        let mut repairs = Repairs::default();
        let mut ring = Behind(FEED, vec![11, 12, 13, 15, 16, 18, 19, 501, 502, 503, 700, 900]);
        let fetched = repairs.fetch(0, (session(5), 1), 1, (&mut log(FEED, epoch), &mut ring));
        assert_eq!((repairs.state().0, matches!(fetched, Ok(Fetched::Block(_)))), (state, epoch == 5));
    }
}

#[test]
fn a_message_whose_last_part_comes_later_is_whole() {
    let is_large = |sequence: &u64| FEED.message(*sequence).0.len() > max_whole_bytes(MIN_BYTES);
    let large = (2..1_000).find(is_large).unwrap();
    let mut rig = Rig::new(Log::default(), ring(FEED, large));
    rig.log.append((FEED, session(5), 1), (1, large + 1), 10);
    let last = rig.log.last;
    let part = rig.log.entries.remove(&last).unwrap();
    rig.log.last -= 1;
    assert_eq!(rig.count(0, large - 1), 1, "what stands before it");
    assert!(matches!(rig.fetch(MS, large), Ok(Fetched::NotYet(_))));
    rig.log.entries.insert(last, part);
    rig.log.last = last;
    assert_eq!(rig.count(100 * MS, large), 1);
}

#[test]
fn runs_before_and_behind_that_of_the_lines_are_left_out() {
    let mut both = Log::default();
    both.append((OTHER, session(2), 2), (1, 501), 7);
    both.append((FEED, session(5), 1), (1, 501), 7);
    both.append((OTHER, session(8), 3), (1, 501), 7);
    let mut rig = Rig::new(both, ring(FEED, 300));
    for first in [1, 20, 300, 499] {
        assert!(rig.count(0, first) > 0, "{first}");
    }
    // A later session has begun behind the last message of this one, so nothing more comes.
    assert!(matches!(rig.fetch(0, 501), Ok(Fetched::Absent { from: 501, .. })));
}

#[test]
fn what_retention_took_is_gone_up_to_what_is_left() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 300));
    rig.log.entries.retain(|number, _| *number > 60);
    rig.ring = LocalRing { sample: 900, ..ring(FEED, 30) };
    let Ok(Fetched::Block(block)) = rig.fetch(0, 40) else { panic!() };
    assert_eq!(block.next(), 40, "no message");
    assert!(rig.count(0, block.end()) > 0 && block.end() > 40, "the log begins with {}", block.end());
}

#[test]
fn what_the_log_does_not_have_yet_is_waited_for_five_seconds() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 900));
    let mut now_ns = 0;
    while let Ok(Fetched::NotYet(1_001)) = rig.fetch(now_ns, 1_001) {
        now_ns += 50 * MS;
    }
    assert_eq!(now_ns, 5 * SECOND_NS);
    assert!(matches!(rig.fetch(now_ns, 1_050), Ok(Fetched::Absent { from: 1_050, to: u64::MAX })));
    // It has caught up, and is waited for as before.
    rig.log.append((FEED, session(5), 1), (1_001, 1_101), 7);
    now_ns += 50 * MS;
    assert!(rig.count(now_ns, 1_001) > 0);
    assert!(matches!(rig.fetch(now_ns, 1_101), Ok(Fetched::NotYet(1_101))));
}

#[test]
fn a_log_that_only_lags_is_waited_for_as_long_as_it_comes_nearer_in_time() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 900));
    let (mut end, mut missed) = (1_001, 0);
    for step in 0..1_000 {
        let now_ns = step * 50 * MS;
        missed += u64::from(matches!(rig.fetch(now_ns, end + 20), Ok(Fetched::Absent { .. })));
        rig.log.append((FEED, session(5), 1), (end, end + 10), 10);
        end += 10;
    }
    assert_eq!(missed, 0, "what was asked for came 100 ms later, each time");
}

#[test]
fn a_log_that_cannot_be_read_is_an_error_and_costs_no_proof() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 300));
    assert!(rig.count(0, 300) > 0);
    rig.log.is_away = true;
    assert!(rig.fetch(MS, 600).is_err());
    rig.log.is_away = false;
    assert!(rig.count(2 * MS, 600) > 0);
}

#[test]
fn an_empty_or_damaged_log_proves_nothing_and_says_why() {
    let mut rig = Rig::new(Log::default(), ring(FEED, 300));
    assert!(matches!(rig.fetch(0, 300), Ok(Fetched::NotYet(300))));
    assert_eq!(rig.repairs.state(), (LogState::Waiting, Some("the stream is empty".to_owned())));
    rig.log = log(FEED, 5);
    rig.log.entries.values_mut().for_each(|block| block[60] ^= 1);
    assert!(matches!(rig.fetch(0, 300), Ok(Fetched::NotYet(300))));
    assert!(rig.repairs.state().1.unwrap().contains("its checksum is wrong"));
}

#[test]
fn another_session_of_the_lines_needs_a_proof_of_its_own() {
    let mut rig = Rig::new(log(FEED, 5), ring(FEED, 300));
    assert!(rig.count(0, 300) > 0);
    // The channel began anew. The log still has the run before.
    rig.ring = LocalRing { feed: OTHER, oldest: 1, next: 100, later_ns: MS, sample: 0 };
    let fetched = rig.repairs.fetch(MS, (session(6), 1), 100, (&mut rig.log, &mut rig.ring));
    assert!(matches!(fetched, Ok(Fetched::Failed)), "{fetched:?}");
    assert_eq!(rig.state(), LogState::Refused);
}
