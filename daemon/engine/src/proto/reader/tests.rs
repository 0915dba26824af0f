use super::*;
use crate::proto::block::{BlockId, Cut, Packing, Stream};
use crate::proto::seal::Sealer;
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
fn play(log: &[Vec<u8>], answer: &[u8]) -> (Vec<u64>, Vec<Range<u64>>) {
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
    (taken, gaps)
}

/// If the sender's ring has overwritten messages, its answer can report more messages as lost than the log lacks.
#[test]
fn an_answer_about_a_hole_costs_nothing_that_lies_behind_the_hole() {
    let log = [messages(1..=10), messages(13..=20), messages(21..=30)];
    let (taken, gaps) = play(&log, &block(Cut::gap(11, 25)));
    assert_eq!(taken, (1..=10).chain(13..=30).collect::<Vec<_>>());
    assert_eq!(gaps, vec![11..13]);
}

#[test]
fn a_sender_mends_a_hole() {
    let log = [messages(1..=10), messages(13..=20)];
    let (taken, gaps) = play(&log, &messages(11..=14));
    assert_eq!((taken, gaps), ((1..=20).collect(), Vec::new()));
}

/// Runs a reader that gives up after 5 s, and a log that lacks the messages 11 to 16. The sender answers each request with one message, but
/// only after `late` further requests, and not before `after_ns`. Returns the sequences of the messages, and the gaps.
fn play_late(late: usize, after_ns: u64) -> (Vec<u64>, Vec<Range<u64>>) {
    let log = [messages(1..=10), messages(17..=20)];
    let config = ReaderConfig { from: Some(1), give_up_ns: Some(5_000 * MILLISECOND_NS) };
    let mut reader = Reader::new(config, None);
    let (mut taken, mut gaps, mut now_ns, mut wants) = (Vec::new(), Vec::new(), 0, Vec::new());
    while now_ns < 60_000 * MILLISECOND_NS {
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::Message { sequence, .. } => taken.push(sequence),
            Delivery::Gap { missing } => gaps.push(missing),
            _ => {}
        };
        now_ns = reader.next_deadline().max(now_ns + MILLISECOND_NS);
        let mut asked = reader.poll(now_ns, &mut sink);
        while let Some((round, ask)) = asked.take() {
            asked = match ask {
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
                Ask::Want(want) => {
                    wants.push((now_ns, round, want.first));
                    None
                }
            };
        }
        let is_due = wants.first().is_some_and(|(at_ns, ..)| now_ns >= at_ns + after_ns);
        if wants.len() > late && is_due {
            let (_, round, first) = wants.remove(0);
            reader.handle_want(now_ns, round, Some(&messages(first..=first)), &mut sink);
        }
    }
    (taken, gaps)
}

/// If the network is slow or the sender is busy, each request is repeated before its answer arrives. An earlier mistake: such answers were
/// dropped, and the reader gave up messages that the sender had.
#[test]
fn an_answer_that_comes_after_the_request_was_repeated_mends_the_hole() {
    assert_eq!(play_late(2, 0), ((1..=20).collect(), Vec::new()));
}

/// An earlier mistake: a long hole was given up in the middle, while the sender was sending its messages.
#[test]
fn a_hole_that_takes_longer_to_mend_than_a_silence_may_last_is_mended_to_its_end() {
    assert_eq!(play_late(0, 2_000 * MILLISECOND_NS), ((1..=20).collect(), Vec::new()));
}

/// The messages `range` of a session, in one block.
fn of(epoch: u64, range: std::ops::RangeInclusive<u64>, stream: Stream) -> Vec<u8> {
    let mut packing = Packing::new(BLOCK_BYTES);
    range.for_each(|sequence| assert!(packing.push(sequence, b"m", Meta::default())));
    let (id, session) = (BlockId { writer: 1, number: 1 }, Session::of_channel("T", epoch).unwrap());
    packing.cut().unwrap().finish(Head::new(stream, session, id), &Sealer::default()).0
}

/// The session that a reader began, with its first sequence; and the session and the first sequence that it last asked the writers for.
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

/// A session can lose its beginning in the log, and a writer can still have it.
///
/// An earlier mistake: the reader began with the first block that it saw, and asked for nothing.
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

/// A channel with a journal keeps its stream when its memory is lost, and gets a later session. Its sequences go on.
///
/// An earlier mistake: if retention had removed the messages before, the reader asked for the later session from message 1.
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
    // The sequences are lower, so the session cannot go on after the one before.
    log.push(of(3, 7..=9, stream));
    let third = Session::of_channel("T", 3).unwrap();
    let mut reader = Reader::new(ReaderConfig { from: None, give_up_ns: None }, Some((second, 5_006)));
    assert_eq!(begin(&mut reader, &log, 2), (Some((third, 1)), Some((third, 1))));
}
