use super::super::block::{Damaged, Kind, parse};
use super::*;

const CONFIG: WriterConfig = WriterConfig {
    stream: Stream([7; 16]),
    session: Session::from_bytes(*b"TICK000100"),
    writer: 1,
    in_flight: 3,
    ack_ns: SECOND_NS,
    silence_ns: SECOND_NS,
};

fn head(writer: u64, end: u64) -> Head {
    let other = Writer::new(WriterConfig { writer, ..CONFIG });
    Head { first: end - 1, count: 1, number: 9, crc: 77, ..other.head(0, 0) }
}

/// Returns the end of a log whose last entry has the number `sequence` and is the block with this head.
fn last(sequence: u64, head: Head) -> Last {
    Last { head: Some(head), crc: Some(head.crc), id: Some(head.id()), ..Last::new(sequence) }
}

fn running(at: u64) -> Writer {
    let mut writer = Writer::new(CONFIG);
    let last = last(40, head(2, at));
    let round = writer.poll(0).unwrap();
    writer.handle_last(0, round, last, 1_000).unwrap();
    assert_eq!((writer.state(), writer.counters().fenced), (State::Fenced(0), 0));
    writer.take_over(0);
    let round = writer.poll(0).unwrap();
    writer.handle_last(0, round, last, 1_000).unwrap();
    assert_eq!(writer.take_resume(), Some(Resume::At(at)));
    writer
}

/// Returns a writer whose first block is in the log.
fn flowing(at: u64) -> (Writer, Append) {
    let mut writer = running(at - 1);
    let first = writer.append(0, Cut::gap(at - 1, at - 1), 0);
    assert!(!writer.has_room(), "the first one is answered before there are more");
    writer.handle_ack(0, first.round, Ok(41));
    (writer, first)
}

#[test]
fn each_block_stands_behind_the_one_before_it() {
    let (mut writer, first) = flowing(100);
    let blocks: Vec<Append> = (0..3).map(|n| writer.append(n, Cut::gap(100 + n, 100 + n), 0)).collect();
    assert!(!writer.has_room());
    assert_eq!(blocks.iter().map(|append| append.after).collect::<Vec<_>>(), [41, 42, 43]);
    let first = parse(&first.block).unwrap().0.crc;
    let heads: Vec<Head> = blocks.iter().map(|append| parse(&append.block).unwrap().0).collect();
    assert_eq!([heads[0].before, heads[1].before, heads[2].before], [first, heads[0].crc, heads[1].crc]);
    assert_eq!(heads.iter().map(|head| head.number).collect::<Vec<_>>(), [2, 3, 4]);
    // The answer to the second block arrives first.
    writer.handle_ack(5, blocks[1].round, Ok(43));
    assert_eq!((writer.stored(), writer.in_flight(), writer.counters().blocks), (102, 1, 3));
    writer.handle_ack(6, blocks[0].round, Ok(42));
    assert_eq!((writer.stored(), writer.in_flight()), (102, 1));
    // The test still has the appends with their blocks, so no buffer is free.
    assert_eq!(writer.take_spare(), None);
    let last = blocks.into_iter().next_back().map(|append| (append.round, append.block.as_ptr()));
    let (round, place) = last.unwrap();
    writer.handle_ack(7, round, Ok(44));
    assert_eq!(writer.take_spare().map(|buffer| buffer.as_ptr()), Some(place));
}

#[test]
fn a_refused_writer_yields_to_a_rival_and_comes_back_when_it_is_silent() {
    let (mut writer, _) = flowing(100);
    let append = writer.append(0, Cut::gap(100, 100), 0);
    writer.handle_ack(5, append.round, Err(Trouble::Refused));
    let round = writer.poll(5).unwrap();
    writer.handle_last(6, round, last(42, head(3, 105)), 1_000).unwrap();
    assert_eq!(writer.state(), State::Fenced(6));
    writer.handle_pulse(SECOND_NS, 3);
    let round = writer.poll(SECOND_NS).unwrap();
    writer.handle_last(SECOND_NS, round, last(42, head(3, 105)), 1_000).unwrap();
    assert_eq!(writer.state(), State::Fenced(SECOND_NS));
    let round = writer.poll(2 * SECOND_NS).unwrap();
    writer.handle_last(2 * SECOND_NS, round, last(42, head(3, 105)), 1_000).unwrap();
    assert_eq!((writer.state(), writer.take_resume()), (State::Run, Some(Resume::At(105))));
    assert_eq!((writer.counters().fenced, writer.counters().lost_by_engine), (1, 0));
}

#[test]
fn what_the_log_lost_is_named_and_sent_again() {
    let mut writer = running(100);
    let append = writer.append(0, Cut::gap(100, 149), 0);
    writer.handle_ack(1, append.round, Ok(41));
    let append = writer.append(2, Cut::gap(150, 150), 0);
    writer.handle_ack(3, append.round, Err(Trouble::Refused));
    let round = writer.poll(3).unwrap();
    writer.handle_last(4, round, last(40, head(1, 100)), 1_000).unwrap();
    assert_eq!((writer.take_resume(), writer.stored()), (Some(Resume::At(100)), 100));
    assert_eq!((writer.counters().lost_by_engine, writer.counters().losses), (50, 1));
}

#[test]
fn an_answer_that_does_not_come_is_a_failure() {
    let mut writer = running(100);
    writer.append(10, Cut::gap(100, 100), 0);
    assert_eq!((1..=4).find_map(|quarter| writer.poll(quarter * SECOND_NS / 4)), None);
    assert!(writer.poll(SECOND_NS + 10).is_some());
    assert_eq!((writer.state(), writer.counters().resyncs), (State::Resync, [0, 1, 0, 0, 0]));
}

#[test]
fn what_was_in_flight_is_appended_again_as_it_was() {
    let (mut writer, _) = flowing(100);
    let blocks: Vec<Append> = (0..3).map(|n| writer.append(n, Cut::gap(100 + n, 100 + n), 0)).collect();
    writer.handle_ack(5, blocks[0].round, Err(Trouble::Disconnected));
    assert!(writer.take_again().is_empty());
    let round = writer.poll(SECOND_NS).unwrap();
    // Although its append failed, the first of these blocks was stored.
    let stored = parse(&blocks[0].block).unwrap().0;
    writer.handle_last(SECOND_NS, round, last(42, stored), 1_000).unwrap();
    assert_eq!((writer.take_resume(), writer.stored(), writer.in_flight()), (Some(Resume::At(103)), 101, 2));
    let again = writer.take_again();
    let places = |blocks: &[Append]| -> Vec<(u64, Bytes)> {
        blocks.iter().map(|append| (append.after, append.block.clone())).collect()
    };
    assert_eq!(places(&again), places(&blocks[1..]));
    assert!(writer.take_again().is_empty());
    writer.handle_ack(2 * SECOND_NS, again[0].round, Ok(44));
    assert_eq!((writer.stored(), writer.in_flight()), (103, 0));
    // The log's last block is now an unexpected one, so the appends cannot be repeated.
    let append = writer.append(2 * SECOND_NS, Cut::gap(103, 103), 0);
    writer.handle_ack(2 * SECOND_NS, append.round, Err(Trouble::Refused));
    let round = writer.poll(2 * SECOND_NS).unwrap();
    writer.handle_last(2 * SECOND_NS, round, last(43, head(1, 102)), 1_000).unwrap();
    assert_eq!((writer.take_resume(), writer.take_again()), (Some(Resume::At(102)), Vec::new()));
}

fn of_stream(stream: u8, session: &[u8; 10]) -> WriterConfig {
    WriterConfig { stream: Stream([stream; 16]), session: Session::from_bytes(*session), ..CONFIG }
}

#[test]
fn a_later_stream_begins_behind_an_earlier_one_and_not_the_other_way_round() {
    let last = Last { had_ours: true, ..last(40, head(2, 100)) };
    let start = |session: &[u8; 10]| {
        let mut writer = Writer::new(of_stream(8, session));
        let round = writer.poll(0).unwrap();
        writer.handle_last(0, round, last, 50).map(|()| writer.take_resume())
    };
    assert_eq!(start(b"TICK000101"), Ok(Some(Resume::Beginning)));
    for other in [b"TICK000100", b"TICK0000ZZ", b"TOCK000101", b"TICK  0101"] {
        assert!(matches!(start(other), Err(Refusal::OtherStream { .. })), "{other:?}");
    }
}

/// A channel was created again while its host's clock was slow. The log never had the new stream, so the writer gives it a later session
/// than the session in the log.
#[test]
fn a_stream_that_the_log_never_had_begins_behind_the_last_whatever_the_clock_was() {
    let last = last(40, head(2, 100));
    for session in [b"TICK000100", b"TICK0000ZZ"] {
        let mut writer = Writer::new(of_stream(8, session));
        let mut look = |now_ns| {
            let round = writer.poll(now_ns).unwrap();
            let answer = writer.handle_last(now_ns, round, last, 50);
            (answer, writer.state(), writer.take_resume(), writer.session().epoch())
        };
        let own = Session::from_bytes(*session).epoch();
        // The other writer might be alive, so this writer waits for it.
        assert_eq!(look(0), (Ok(()), State::Fenced(0), None, own));
        assert_eq!(look(SECOND_NS / 2), (Ok(()), State::Fenced(0), None, own));
        let later = Session::from_bytes(*b"TICK000101").epoch();
        assert_eq!(look(SECOND_NS), (Ok(()), State::Run, Some(Resume::Beginning), later));
        assert_eq!(writer.counters().successions, 1);
    }
    // A sender that wrote the last block itself switches to its channel's new stream immediately.
    let mut writer = running(100);
    let append = writer.append(0, Cut::gap(100, 100), 0);
    writer.handle_ack(1, append.round, Ok(41));
    let own = parse(&append.block).unwrap().0;
    let anew = of_stream(8, b"TICK0000ZZ");
    writer.begin(2, anew.stream, anew.session);
    let round = writer.poll(2).unwrap();
    writer.handle_last(3, round, Last { head: Some(own), ..Last::new(41) }, 50).unwrap();
    assert_eq!(
        (writer.take_resume(), writer.session().epoch()),
        (Some(Resume::Beginning), Session::from_bytes(*b"TICK000101").epoch())
    );
    // A feed from another host keeps its session.
    let session = Session::from_bytes(*b"TICK0000ZZ");
    let mut writer = Writer::new(WriterConfig { stream: Stream::of_session(session), session, ..CONFIG });
    let round = writer.poll(0).unwrap();
    assert!(matches!(writer.handle_last(0, round, last, 50), Err(Refusal::OtherStream { .. })));
}

#[test]
fn another_stream_that_is_written_now_is_an_error() {
    for is_pulse in [true, false] {
        let mut writer = Writer::new(of_stream(8, b"TICK0000ZZ"));
        let round = writer.poll(0).unwrap();
        writer.handle_last(0, round, last(40, head(2, 100)), 50).unwrap();
        if is_pulse {
            writer.handle_pulse(SECOND_NS / 4, 2);
        }
        let round = writer.poll(SECOND_NS / 2).unwrap();
        let now = if is_pulse { head(2, 100) } else { Head { number: 10, ..head(2, 101) } };
        let answer = writer.handle_last(SECOND_NS / 2, round, last(40, now), 50);
        assert!(matches!(answer, Err(Refusal::OtherStream { .. })), "{answer:?}");
    }
}

#[test]
fn a_channel_that_lost_its_end_is_refused_in_time() {
    let mut writer = Writer::new(CONFIG);
    let mut look = |now_ns| {
        let round = writer.poll(now_ns).unwrap();
        writer.handle_last(now_ns, round, last(40, head(1, 100)), 90)
    };
    assert_eq!(look(0), Ok(()));
    assert_eq!(look(AHEAD_NS - 1), Ok(()));
    assert_eq!(look(AHEAD_NS + LOOK_NS), Err(Refusal::Ahead { theirs: 99, ours: 89 }));
}

#[test]
fn an_emptied_log_goes_on_and_a_lost_one_begins_again() {
    // In the third case, the log's only entry is not a valid block. In the last case, the log was created again with higher numbers.
    let begins = |sequence| (sequence, Resume::Beginning, 1);
    for (sequence, resume, lost) in [(41, Resume::At(101), 0), begins(0), begins(1), begins(1 << 50)] {
        let mut writer = running(100);
        let append = writer.append(0, Cut::gap(100, 100), 0);
        writer.handle_ack(1, append.round, Ok(41));
        let append = writer.append(1, Cut::gap(101, 101), 0);
        writer.handle_ack(2, append.round, Err(Trouble::Refused));
        let round = writer.poll(2).unwrap();
        writer.handle_last(3, round, Last::new(sequence), 1_000).unwrap();
        assert_eq!((writer.take_resume(), writer.counters().lost_by_engine), (Some(resume), lost));
    }
}

#[test]
fn a_stream_goes_on_in_a_later_session_and_another_one_begins_behind_it() {
    let last = last(40, head(2, 100));
    let later = WriterConfig { session: Session::from_bytes(*b"TICK000200"), ..CONFIG };
    // The ring belongs to another boot and has a later session. Its identity shows that the stream is the same.
    let mut writer = Writer::new(later);
    for _ in 0..2 {
        let round = writer.poll(0).unwrap();
        writer.handle_last(0, round, last, 1_000).unwrap();
        writer.take_over(0);
    }
    assert_eq!((writer.take_resume(), writer.session()), (Some(Resume::At(100)), CONFIG.session));
    // A stream with another identity begins after the other stream.
    let config = WriterConfig { stream: Stream([9; 16]), ..later };
    let mut writer = Writer::new(config);
    let round = writer.poll(0).unwrap();
    writer.handle_last(0, round, last, 1_000).unwrap();
    assert_eq!((writer.take_resume(), writer.session()), (Some(Resume::Beginning), config.session));
}

#[test]
fn a_writer_without_a_key_does_not_go_on_in_a_sealed_log() {
    let mut writer = Writer::new(CONFIG);
    let round = writer.poll(0).unwrap();
    let last = last(40, Head { key: 3, ..head(2, 100) });
    assert_eq!(writer.handle_last(0, round, last, 1_000), Err(Refusal::Sealed));
}

/// A writer that takes over first appends a takeover block. This block makes the other writer wait, even if nothing is published.
#[test]
fn a_writer_that_takes_over_says_so_first() {
    let mut writer = running(100);
    let marker = writer.take_takeover(0, 0).unwrap();
    let marked = parse(&marker.block).unwrap().0;
    assert_eq!((marked.kind, marked.first, marked.count), (Kind::Takeover, 100, 0));
    assert_eq!((marker.after, marker.behind, marker.id), (40, Some(head(2, 100).id()), marked.id()));
    assert_eq!(writer.take_takeover(0, 0), None);
    writer.handle_ack(1, marker.round, Ok(41));
    let next = writer.append(1, Cut::gap(100, 100), 0);
    assert_eq!((next.after, next.behind), (41, Some(marked.id())));
    // A writer that continues after its own block announces no takeover.
    let mut same = Writer::new(CONFIG);
    let round = same.poll(0).unwrap();
    same.handle_last(0, round, last(41, marked), 1_000).unwrap();
    assert_eq!((same.take_resume(), same.take_takeover(0, 0)), (Some(Resume::At(100)), None));
}

#[test]
fn an_order_is_tried_again_against_a_rival_that_appends_and_not_for_ever() {
    let mut writer = running(100);
    let marker = writer.take_takeover(0, 0).unwrap();
    writer.handle_ack(1, marker.round, Err(Trouble::Refused));
    let round = writer.poll(1).unwrap();
    writer.handle_last(2, round, last(41, head(2, 101)), 1_000).unwrap();
    assert_eq!(writer.take_resume(), Some(Resume::At(101)));
    let marker = writer.take_takeover(2, 0).unwrap();
    writer.handle_ack(ORDER_NS, marker.round, Err(Trouble::Refused));
    let round = writer.poll(ORDER_NS).unwrap();
    writer.handle_last(ORDER_NS, round, last(42, head(2, 102)), 1_000).unwrap();
    assert_eq!(writer.state(), State::Fenced(ORDER_NS));
}

#[test]
fn a_block_that_does_not_open_stops_the_writer_until_it_opens_or_an_operator_says_so() {
    for is_ordered in [false, true] {
        let (mut writer, _) = flowing(100);
        let append = writer.append(0, Cut::gap(100, 100), 0);
        writer.handle_ack(1, append.round, Err(Trouble::Refused));
        let strange =
            Last { head: Some(head(1, 100)), unopened: Some(Damaged::Sealed), ..last(42, head(3, 105)) };
        let mut now_ns = 1;
        for _ in 0..20 {
            let round = writer.poll(now_ns).unwrap();
            writer.handle_last(now_ns, round, strange, 1_000).unwrap();
            assert_eq!(writer.state(), State::Shut(Damaged::Sealed), "silence is no reason to go on");
            now_ns += LOOK_NS;
        }
        assert_eq!((writer.counters().shut_out, writer.take_resume()), (1, None));
        if is_ordered {
            writer.take_over(now_ns);
        }
        let round = writer.poll(now_ns).unwrap();
        let now = if is_ordered { strange } else { last(43, head(1, 100)) };
        writer.handle_last(now_ns, round, now, 1_000).unwrap();
        // The writer continues after the last block that it could open. It writes the messages of the other writer again.
        assert_eq!(writer.take_resume(), Some(Resume::At(100)));
        assert_eq!(writer.take_takeover(now_ns, 0).is_some(), is_ordered);
    }
}

/// A log that was removed and created again uses the same entry numbers again, but not the same names.
#[test]
fn an_append_names_the_block_before_it_unless_the_servers_do_not_know_the_name() {
    let (mut writer, first) = flowing(100);
    let append = writer.append(0, Cut::gap(100, 100), 0);
    assert_eq!(append.behind, Some(first.id));
    // The last block is the expected one, but the append was refused twice.
    let mut again = append.clone();
    for behind in [Some(first.id), None] {
        writer.handle_ack(1, again.round, Err(Trouble::Refused));
        let round = writer.poll(1).unwrap();
        writer.handle_last(2, round, last(41, parse(&first.block).unwrap().0), 1_000).unwrap();
        again = writer.take_again().remove(0);
        assert_eq!((again.after, again.behind, again.id), (41, behind, append.id));
    }
    writer.handle_ack(3, again.round, Ok(42));
    assert_eq!(writer.take_resume(), Some(Resume::At(101)));
    assert_eq!(writer.append(3, Cut::gap(101, 101), 0).behind, Some(append.id));
}

#[test]
fn a_flood_of_pulses_costs_a_look_in_a_while() {
    let (mut writer, _) = flowing(100);
    for us in 0..1_000_000 {
        let now_ns = us * 1_000;
        writer.handle_pulse(now_ns, 9);
        if let Some(round) = writer.poll(now_ns) {
            writer.handle_last(now_ns, round, last(41, head(1, 100)), 1_000).unwrap();
            writer.take_resume();
        }
    }
    assert_eq!(writer.counters().resyncs, [0, 0, 0, 0, 4]);
}

/// A server whose file was damaged has fewer entries than it counts. It accepts an append only if the append names the counted number.
#[test]
fn a_log_that_does_not_know_its_end_is_written_after_the_number_that_it_names() {
    let (mut writer, first) = flowing(100);
    let shorter = Last { stores_after: Some(90), ..last(41, parse(&first.block).unwrap().0) };
    let mut again = writer.append(0, Cut::gap(100, 100), 0);
    // A single refusal can come from a rival's block.
    for after in [41, 90] {
        writer.handle_ack(1, again.round, Err(Trouble::Refused));
        let round = writer.poll(1).unwrap();
        writer.handle_last(2, round, shorter, 1_000).unwrap();
        again = writer.take_again().remove(0);
        assert_eq!(again.after, after);
    }
    // The server stores the block after the entry that is there. The next blocks follow this block.
    writer.handle_ack(3, again.round, Ok(42));
    assert_eq!((writer.stored(), writer.take_resume()), (101, Some(Resume::At(101))));
    assert_eq!(writer.append(3, Cut::gap(101, 101), 0).after, 42);
}

/// An earlier mistake: on a channel with a message each 100 ms, the log's end was read before the newest block was stored. The writer then
/// took this block for lost.
#[test]
fn an_answer_that_a_block_has_overtaken_tells_of_no_loss() {
    let (mut writer, first) = flowing(100);
    let before = last(41, parse(&first.block).unwrap().0);
    let round = (1..=4).find_map(|quarter| writer.poll(quarter * SECOND_NS / 4)).expect("an idle look");
    let append = writer.append(SECOND_NS, Cut::gap(100, 100), 0);
    writer.handle_ack(SECOND_NS, append.round, Ok(42));
    writer.handle_last(SECOND_NS, round, before, 1_000).unwrap();
    assert_eq!((writer.state(), writer.counters().losses), (State::Run, 0));
    // The writer reads the log's end again within a second. This answer is not outdated, so it counts.
    let round = (5..=8).find_map(|quarter| writer.poll(quarter * SECOND_NS / 4)).expect("the next look");
    writer.handle_last(2 * SECOND_NS, round, before, 1_000).unwrap();
    assert_eq!((writer.state(), writer.counters().losses), (State::Run, 1));
}
