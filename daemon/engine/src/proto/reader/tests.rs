use super::*;
use crate::proto::block::{BlockId, Cut, Packing, Stream};
use crate::proto::mutant::CHOSEN;
use crate::proto::requests::Requests;
use crate::proto::seal::Sealer;
use crate::proto::want::Want;
use shmcast_bridge::proto::wire::Meta;
use std::ops::Range;

const BLOCK_BYTES: usize = 1 << 10;

fn session() -> Session {
    Session::of_channel("T", 1).unwrap()
}

fn block(cut: Cut) -> Vec<u8> {
    let id = BlockId { writer: 1, number: 1 };
    cut.finish(Head::new(Stream::of_session(session()), session(), id), &Sealer::default()).0
}

fn messages(range: std::ops::RangeInclusive<u64>) -> Vec<u8> {
    let mut packing = Packing::new(BLOCK_BYTES);
    range.for_each(|sequence| assert!(packing.push(sequence, b"m", Meta::default())));
    block(packing.cut().unwrap())
}

/// Runs a reader with a log of these blocks, and one sender that answers each request with `answer`. Returns the sequences of the messages,
/// and the gaps.
fn play(log: &[Vec<u8>], answer: &[u8]) -> (Vec<u64>, Vec<Range<u64>>, ReaderCounters) {
    let mut reader = Reader::new(ReaderConfig { from: Some(1), give_up_ns: None }, None);
    let (mut taken, mut gaps, mut now_ns) = (Vec::new(), Vec::new(), 0);
    for _ in 0..100 {
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::Message { sequence, .. } => taken.push(sequence),
            Delivery::Gap { missing } => gaps.push(missing),
            _ => {}
        };
        now_ns = reader.next_deadline().max(now_ns);
        let mut asked = reader.poll(now_ns, &mut sink);
        while let Some((round, ask)) = asked {
            asked = match ask {
                Ask::Bounds => reader.handle_bounds(now_ns, round, (1, log.len() as u64)),
                Ask::Get(from) => {
                    let entry = log.get(from as usize - 1).map(|block| (from, &block[..]));
                    reader.handle_get(now_ns, round, entry)
                }
                Ask::Follow(from) => {
                    for (number, block) in (1..).zip(log).skip(from as usize - 1) {
                        reader.handle_entry(now_ns, round, (number, block), &mut sink);
                    }
                    None
                }
                Ask::Want(_) => {
                    reader.handle_want(now_ns, round, Some(answer), &mut sink);
                    None
                }
            };
        }
    }
    (taken, gaps, *reader.counters())
}

/// If the sender's ring has overwritten messages, its answer can report a longer gap than the hole in the log.
#[test]
fn an_answer_about_a_hole_costs_nothing_that_lies_behind_the_hole() {
    let log = [messages(1..=10), messages(13..=20), messages(21..=30)];
    let (taken, gaps, counters) = play(&log, &block(Cut::gap(11, 25)));
    assert_eq!(taken, (1..=10).chain(13..=30).collect::<Vec<_>>());
    assert_eq!(gaps, vec![11..13]);
    assert_eq!((counters.holes, counters.given_up), (1, 0), "a gap that a sender reports is not given up");
}

#[test]
fn a_sender_mends_a_hole() {
    let log = [messages(1..=10), messages(13..=20)];
    let (taken, gaps, _) = play(&log, &messages(11..=14));
    assert_eq!((taken, gaps), ((1..=20).collect(), Vec::new()));
}

/// The surroundings of a reader in a test: the log, the senders and the connection.
trait Around {
    /// Whether the log answers no requests at the moment.
    fn is_log_away(&mut self, _now_ns: u64, _reader: &Reader) -> bool {
        false
    }

    /// Takes a request to the senders. Returns false if the reader has no connection.
    fn ask(&mut self, now_ns: u64, round: u64, want: Want) -> bool;

    /// Returns the answers that arrive now: the round of the request, and the message; `None` if no sender is there.
    fn answers(&mut self, now_ns: u64) -> Vec<(u64, Option<u64>)>;
}

/// Runs a reader that gives up after 5 s, and a log that lacks the messages 11 to 16. The senders send one message at a time. Returns the
/// sequences of the messages, and the gaps.
fn play_around(around: &mut impl Around) -> (Vec<u64>, Vec<Range<u64>>) {
    let (taken, gaps, _) = play_counted(around);
    (taken, gaps)
}

/// Runs a reader as [`play_around`] does, and also returns the reader's counters.
fn play_counted(around: &mut impl Around) -> (Vec<u64>, Vec<Range<u64>>, ReaderCounters) {
    let log = [messages(1..=10), messages(17..=20)];
    let config = ReaderConfig { from: Some(1), give_up_ns: Some(5_000 * MILLISECOND_NS) };
    let mut reader = Reader::new(config, None);
    let (mut taken, mut gaps) = (Vec::new(), Vec::new());
    for now_ns in (0..60_000).map(|ms| ms * MILLISECOND_NS) {
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::Message { sequence, .. } => taken.push(sequence),
            Delivery::Gap { missing } => gaps.push(missing),
            _ => {}
        };
        let mut asked = reader.poll(now_ns, &mut sink);
        while let Some((round, ask)) = asked.take() {
            asked = match ask {
                Ask::Want(want) => {
                    if !around.ask(now_ns, round, want) {
                        reader.handle_undelivered(now_ns);
                    }
                    None
                }
                _ if around.is_log_away(now_ns, &reader) => {
                    reader.handle_failure(now_ns, round);
                    None
                }
                Ask::Bounds => reader.handle_bounds(now_ns, round, (1, 2)),
                Ask::Get(from) => {
                    let entry = log.get(from as usize - 1).map(|block| (from, &block[..]));
                    reader.handle_get(now_ns, round, entry)
                }
                Ask::Follow(from) => {
                    for (number, block) in (1..).zip(&log).skip(from as usize - 1) {
                        reader.handle_entry(now_ns, round, (number, block), &mut sink);
                    }
                    None
                }
            };
        }
        for (round, first) in around.answers(now_ns) {
            let block = first.map(|first| messages(first..=first));
            reader.handle_want(now_ns, round, block.as_deref(), &mut sink);
        }
    }
    (taken, gaps, *reader.counters())
}

/// A sender that answers each request, but only after `late` further requests, and not before `after_ns`.
struct Late {
    late: usize,
    after_ns: u64,
    wants: Vec<(u64, u64, u64)>,
}

impl Around for Late {
    fn ask(&mut self, now_ns: u64, round: u64, want: Want) -> bool {
        self.wants.push((now_ns, round, want.first));
        true
    }

    fn answers(&mut self, now_ns: u64) -> Vec<(u64, Option<u64>)> {
        let is_due = self.wants.first().is_some_and(|(at_ns, ..)| now_ns >= at_ns + self.after_ns);
        let answered = usize::from(self.wants.len() > self.late && is_due);
        self.wants.drain(..answered).map(|(_, round, first)| (round, Some(first))).collect()
    }
}

fn play_late(late: usize, after_ns: u64) -> (Vec<u64>, Vec<Range<u64>>) {
    play_around(&mut Late { late, after_ns, wants: Vec::new() })
}

/// If the network is slow or the sender is busy, each request is repeated before its answer arrives. An earlier mistake: such answers were
/// dropped, and the reader gave up messages that the sender had.
#[test]
fn an_answer_that_comes_after_the_request_was_repeated_mends_the_hole() {
    assert_eq!(play_late(2, 0), ((1..=20).collect(), Vec::new()));
}

/// An earlier mistake: while a sender was still sending the messages of a long hole, the reader gave up the messages that had not arrived
/// yet.
#[test]
fn a_hole_that_takes_longer_to_mend_than_a_silence_may_last_is_mended_to_its_end() {
    assert_eq!(play_late(0, 2_000 * MILLISECOND_NS), ((1..=20).collect(), Vec::new()));
}

/// A sender that answers one request at a time. Each answer takes some time, and a pause follows. The connection of an earlier build's reader
/// drops an answer that comes later than `within_ns` after its request.
struct Slow {
    takes_ns: u64,
    within_ns: u64,
    requests: Requests<String>,
    asked_ns: Vec<(u64, u64)>,
    free_ns: u64,
    /// The answer that is being made: the time at which it arrives, the round of the request, and the message.
    sent: Option<(u64, u64, u64)>,
}

impl Around for Slow {
    fn ask(&mut self, now_ns: u64, round: u64, want: Want) -> bool {
        self.asked_ns.push((round, now_ns));
        self.requests.add(want, format!("_INBOX.reader.{round}"));
        true
    }

    fn answers(&mut self, now_ns: u64) -> Vec<(u64, Option<u64>)> {
        let sent = self.sent.take_if(|(at_ns, ..)| now_ns >= *at_ns);
        if now_ns >= self.free_ns
            && let Some((want, to)) = self.requests.take()
        {
            let round = to.rsplit_once('.').unwrap().1.parse().unwrap();
            self.sent = Some((now_ns + self.takes_ns, round, want.first));
            self.free_ns = now_ns + self.takes_ns + 200 * MILLISECOND_NS;
        }
        let in_time = |(_, round, _): &(u64, u64, u64)| {
            self.asked_ns.iter().any(|(of, at_ns)| of == round && now_ns - at_ns <= self.within_ns)
        };
        sent.filter(in_time).map(|(_, round, first)| (round, Some(first))).into_iter().collect()
    }
}

fn play_slow(takes_ns: u64, within_ns: u64) -> (Vec<u64>, Vec<Range<u64>>) {
    let (requests, asked_ns) = (Requests::default(), Vec::new());
    play_around(&mut Slow { takes_ns, within_ns, requests, asked_ns, free_ns: 0, sent: None })
}

/// An earlier mistake: the sender answered all repetitions of a request, in order. Soon each answer was older than the reader's connection
/// accepted, and the reader gave up messages that the sender had.
#[test]
fn a_sender_that_needs_longer_than_a_repetition_mends_a_hole() {
    let play = || play_slow(400 * MILLISECOND_NS, 2_000 * MILLISECOND_NS);
    assert_eq!(play(), ((1..=20).collect(), Vec::new()));
    CHOSEN.set(Some(Mutant::AnswersInOrder));
    let (_, gaps) = play();
    CHOSEN.set(None);
    assert!(!gaps.is_empty(), "the mistake costs messages");
}

/// An earlier mistake: the reader's connection dropped each answer that came later than 2 s.
#[test]
fn a_sender_that_needs_seconds_for_an_answer_mends_a_hole() {
    assert_eq!(play_slow(2_100 * MILLISECOND_NS, u64::MAX), ((1..=20).collect(), Vec::new()));
    let (_, gaps) = play_slow(2_100 * MILLISECOND_NS, 2_000 * MILLISECOND_NS);
    assert!(!gaps.is_empty(), "the mistake costs messages");
}

/// No sender answers until the reader begins its last search of the log. The log is then silent for 20 s. After that, a sender answers.
#[derive(Default)]
struct Away {
    back_ns: Option<u64>,
    wants: Vec<(u64, u64)>,
}

impl Around for Away {
    fn is_log_away(&mut self, now_ns: u64, reader: &Reader) -> bool {
        if reader.nobodys.is_some() && self.back_ns.is_none() {
            self.back_ns = Some(now_ns + 20_000 * MILLISECOND_NS);
        }
        self.back_ns.is_some_and(|back_ns| now_ns < back_ns)
    }

    fn ask(&mut self, _: u64, round: u64, want: Want) -> bool {
        self.wants.push((round, want.first));
        true
    }

    fn answers(&mut self, now_ns: u64) -> Vec<(u64, Option<u64>)> {
        let is_there = self.back_ns.is_some_and(|back_ns| now_ns >= back_ns);
        self.wants.drain(..).map(|(round, first)| (round, is_there.then_some(first))).collect()
    }
}

/// An earlier mistake: no sender had answered before a long silence of the servers. After the silence, the reader gave up the messages,
/// although a sender was back.
#[test]
fn what_nobody_had_before_a_long_silence_is_asked_for_again() {
    assert_eq!(play_around(&mut Away::default()), ((1..=20).collect(), Vec::new()));
}

/// A sender whose answers arrive only while the reader searches the log a last time. Such a search takes a second.
#[derive(Default)]
struct AtLast {
    searched_for: u64,
    until_ns: u64,
    wants: Vec<(u64, u64)>,
}

impl Around for AtLast {
    fn is_log_away(&mut self, now_ns: u64, reader: &Reader) -> bool {
        if reader.nobodys.is_some() && reader.next() > self.searched_for {
            (self.searched_for, self.until_ns) = (reader.next(), now_ns + 1_000 * MILLISECOND_NS);
        }
        now_ns < self.until_ns
    }

    fn ask(&mut self, _: u64, round: u64, want: Want) -> bool {
        self.wants.push((round, want.first));
        true
    }

    fn answers(&mut self, now_ns: u64) -> Vec<(u64, Option<u64>)> {
        let arrive = if now_ns < self.until_ns { self.wants.len() } else { 0 };
        self.wants.drain(..arrive).map(|(round, first)| (round, Some(first))).collect()
    }
}

/// An earlier mistake: the reader dropped an answer that arrived during its last search of the log, and gave up messages that the sender had.
#[test]
fn an_answer_during_the_last_search_mends_the_hole() {
    assert_eq!(play_around(&mut AtLast::default()), ((1..=20).collect(), Vec::new()));
}

/// After its first request, the reader has no connection for 20 s. After that, a sender answers.
#[derive(Default)]
struct Disconnected {
    back_ns: Option<u64>,
    wants: Vec<(u64, u64)>,
}

impl Around for Disconnected {
    fn is_log_away(&mut self, now_ns: u64, _: &Reader) -> bool {
        self.back_ns.is_some_and(|back_ns| now_ns < back_ns)
    }

    fn ask(&mut self, now_ns: u64, round: u64, want: Want) -> bool {
        let back_ns = *self.back_ns.get_or_insert(now_ns + 20_000 * MILLISECOND_NS);
        let is_connected = now_ns >= back_ns;
        if is_connected {
            self.wants.push((round, want.first));
        }
        is_connected
    }

    fn answers(&mut self, _: u64) -> Vec<(u64, Option<u64>)> {
        self.wants.drain(..).map(|(round, first)| (round, Some(first))).collect()
    }
}

/// An earlier mistake: the reader also counted the time without a connection as time without an answer, and gave messages up.
#[test]
fn a_reader_without_a_connection_gives_nothing_up() {
    assert_eq!(play_around(&mut Disconnected::default()), ((1..=20).collect(), Vec::new()));
}

/// A sender that is gone for good answers no request.
struct Nobody;

impl Around for Nobody {
    fn ask(&mut self, _: u64, _: u64, _: Want) -> bool {
        true
    }

    fn answers(&mut self, _: u64) -> Vec<(u64, Option<u64>)> {
        Vec::new()
    }
}

#[test]
fn what_nobody_has_is_given_up() {
    let (taken, gaps, counters) = play_counted(&mut Nobody);
    assert_eq!(taken, (1..=10).chain(17..=20).collect::<Vec<_>>());
    assert_eq!(gaps.into_iter().flatten().collect::<Vec<_>>(), (11..17).collect::<Vec<_>>());
    assert_eq!(
        (counters.holes, counters.given_up),
        (1, 6),
        "the hole counts once, however often it is found"
    );
}

/// The messages `range` of a session, in one block.
fn of(epoch: u64, range: std::ops::RangeInclusive<u64>, stream: Stream) -> Vec<u8> {
    let mut packing = Packing::new(BLOCK_BYTES);
    range.for_each(|sequence| assert!(packing.push(sequence, b"m", Meta::default())));
    let (id, session) = (BlockId { writer: 1, number: 1 }, Session::of_channel("T", epoch).unwrap());
    packing.cut().unwrap().finish(Head::new(stream, session, id), &Sealer::default()).0
}

/// The last session that a reader began, and the last request that it sent to the writers: for each, the session and the first sequence.
type Begun = (Option<(Session, u64)>, Option<(Session, u64)>);

/// Lets a reader of the first session follow a log from which retention has removed the first entries.
fn begin(reader: &mut Reader, log: &[Vec<u8>], removed: u64) -> Begun {
    let (mut begun, mut now_ns, mut wanted) = (None, 0, None);
    for _ in 0..100 {
        let mut sink = |delivery: Delivery<'_>| {
            if let Delivery::Session { session, next } = delivery {
                begun = Some((session, next));
            }
        };
        now_ns = reader.next_deadline().max(now_ns);
        let mut asked = reader.poll(now_ns, &mut sink);
        while let Some((round, ask)) = asked.take() {
            let from = |number: u64| (1..).zip(log).skip(number.max(removed + 1) as usize - 1);
            asked = match ask {
                Ask::Bounds => reader.handle_bounds(now_ns, round, (removed + 1, log.len() as u64)),
                Ask::Get(number) => {
                    let entry = from(number).next().map(|(number, block)| (number, &block[..]));
                    reader.handle_get(now_ns, round, entry)
                }
                Ask::Follow(number) => {
                    for (number, block) in from(number) {
                        reader.handle_entry(now_ns, round, (number, block), &mut sink);
                    }
                    None
                }
                Ask::Want(want) => {
                    wanted = Some((want.session, want.first));
                    None
                }
            };
        }
    }
    (begun, wanted)
}

/// The log can lose the first blocks of a session, while a writer still has these messages.
///
/// An earlier mistake: the reader began with the first block that it saw, and did not request the earlier messages.
#[test]
fn a_later_session_whose_beginning_is_missing_is_asked_for_from_its_first_message_on() {
    let second = Session::of_channel("T", 2).unwrap();
    let from_elsewhere = Stream::of_session(second);
    let damaged = b"damaged".to_vec();
    // An entry is damaged, or retention has removed the first entries.
    for (removed, stream, next) in
        [(0, Stream([2; 16]), 1), (2, Stream([2; 16]), 1), (0, from_elsewhere, 501), (2, from_elsewhere, 501)]
    {
        let log = [of(1, 1..=10, Stream([1; 16])), damaged.clone(), of(2, 501..=505, stream)];
        let mut reader = Reader::new(ReaderConfig { from: None, give_up_ns: None }, Some((session(), 1)));
        begin(&mut reader, &log[..2], 0);
        let (begun, wanted) = begin(&mut reader, &log, removed);
        assert_eq!(begun, Some((second, next)), "{removed} removed");
        assert_eq!(wanted, (next == 1).then_some((second, 1)), "{removed} removed");
    }
}

/// If a channel with a journal loses its memory, it gets a later session. The stream stays the same, and the sequences continue.
///
/// An earlier mistake: if retention had removed the messages of the earlier session, the reader requested the later session from message 1
/// on.
#[test]
fn a_later_session_of_the_same_stream_goes_on_after_the_one_before() {
    let (second, stream) = (Session::of_channel("T", 2).unwrap(), Stream([1; 16]));
    let mut log = vec![of(1, 1..=10, stream)];
    let mut reader = Reader::new(ReaderConfig { from: None, give_up_ns: None }, Some((session(), 1)));
    begin(&mut reader, &log, 0);
    begin(&mut reader, &log, 1);
    log.push(of(2, 5_000..=5_005, stream));
    assert_eq!(begin(&mut reader, &log, 1), (Some((second, 11)), Some((second, 11))));
    // A reader that was restarted does not know the stream, because the log has no block of the first session any more.
    let mut reader = Reader::new(ReaderConfig { from: None, give_up_ns: None }, Some((session(), 11)));
    assert_eq!(begin(&mut reader, &log, 1), (Some((second, 5_000)), None));
    // This session's sequences are lower, so they cannot continue those of the previous session.
    log.push(of(3, 7..=9, stream));
    let third = Session::of_channel("T", 3).unwrap();
    let mut reader = Reader::new(ReaderConfig { from: None, give_up_ns: None }, Some((second, 5_006)));
    assert_eq!(begin(&mut reader, &log, 2), (Some((third, 1)), Some((third, 1))));
}
