//! Random histories of a channel against a plain list of what happened.
//!
//! Everything runs on one thread, so the list says exactly what each poll must return: the next record, or that the writer has
//! overtaken this reader, or nothing. The loom model covers races.

use crate::common::{header, nameless, segment};
use proptest::prelude::*;
use shmcast_layout::layout::geometry::{Geometry, RECORD_HEADER, record_bytes};
use shmcast_layout::layout::header::FRONTIER;
use shmcast_layout::layout::record::ControlRecord;
use shmcast_layout::ring::locate::{LocateError, Place};
use shmcast_layout::ring::reader::{Copied, Glance, Poll, RUN, Reader, Resume};
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;

/// One thing that may happen to a channel.
#[derive(Debug, Clone)]
enum Event {
    Publish {
        count: u64,
        length: u64,
        tag: u16,
        key: bool,
    },
    Gap(u64),
    Session([u8; 10]),
    Close,
    /// The writer goes without closing, as one that was killed.
    Crash,
    Take,
    Join(Start),
    Poll {
        reader: usize,
        times: usize,
        policy: Resume,
    },
    Look(usize),
    Seek {
        reader: usize,
        back: i64,
    },
}

#[derive(Debug, Clone, Copy)]
enum Start {
    Beginning,
    Oldest,
    Latest,
}

fn event() -> impl Strategy<Value = Event> {
    let lengths = prop_oneof![
        4 => 0..200u64,
        2 => 200..2000u64,
        1 => 2000..=8192u64,
        1 => prop::sample::select(vec![0u64, 47, 48, 49, 111, 112, 113, 8191, 8192]),
    ];
    let publish =
        (prop_oneof![4 => 1..4u64, 1 => 4..200u64], lengths, any::<u16>(), prop::bool::weighted(0.1));
    let policy = prop::sample::select(vec![Resume::Oldest, Resume::Latest, Resume::Key]);
    let start = prop::sample::select(vec![Start::Beginning, Start::Oldest, Start::Latest]);
    let polls = (0..4usize, prop_oneof![4 => 1..20usize, 1 => 20..600usize], policy);
    prop_oneof![
        12 => publish.prop_map(|(count, length, tag, key)| Event::Publish { count, length, tag, key }),
        1 => prop_oneof![6 => 1..20u64, 2 => 900..1100u64, 1 => 1..1u64 << 40].prop_map(Event::Gap),
        1 => any::<[u8; 10]>().prop_map(Event::Session),
        1 => Just(Event::Close),
        1 => Just(Event::Crash),
        3 => Just(Event::Take),
        3 => start.prop_map(Event::Join),
        12 => polls.prop_map(|(reader, times, policy)| Event::Poll { reader, times, policy }),
        1 => (0..4usize).prop_map(Event::Look),
        4 => (0..4usize, prop_oneof![3 => -3..1500i64, 1 => 0..4i64])
            .prop_map(|(reader, back)| Event::Seek { reader, back }),
    ]
}

#[derive(Debug, Clone, PartialEq)]
enum What {
    Message { length: u64, tag: u16, key: bool, time: u64 },
    Control(ControlRecord),
}

#[derive(Debug, Clone)]
struct Record {
    at: Place,
    after: Place,
    what: What,
}

impl Record {
    fn covers(&self, sequence: u64) -> bool {
        (self.at.sequence..self.after.sequence).contains(&sequence)
    }
}

struct Follower {
    reader: Reader,
    /// The record that it reads next.
    next: usize,
    /// Whether the end was the last control record it read.
    ended: bool,
}

struct Channel {
    segment: Segment,
    /// Readers have a map of their own that the kernel keeps them from writing.
    reading: Segment,
    geometry: Geometry,
    writer: Option<Writer>,
    records: Vec<Record>,
    closed: bool,
    epoch: u64,
    time: u64,
    last_key: Option<usize>,
    readers: Vec<Follower>,
}

fn payload(sequence: u64, length: u64) -> Vec<u8> {
    let word = |i: u64| (sequence << 20 ^ i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(word).collect();
    bytes.truncate(length as usize);
    bytes
}

impl Channel {
    fn new(file: &File, segment: Segment) -> Self {
        let reading = Segment::open(file, Access::Read).unwrap();
        let writer = Some(segment.writer(1, 0).unwrap());
        Self {
            geometry: segment.header().geometry,
            segment,
            reading,
            writer,
            records: Vec::new(),
            closed: false,
            epoch: 1,
            time: 0,
            last_key: None,
            readers: Vec::new(),
        }
    }

    fn tail(&self) -> Place {
        self.records.last().map_or(Place::START, |record| record.after)
    }

    fn frontier(&self) -> u64 {
        self.segment.header_word(FRONTIER)
    }

    fn is_lapped(&self, position: u64) -> bool {
        self.frontier() - position > self.geometry.capacity
    }

    /// The sequence to which the index reaches back. Without gaps that is beyond the oldest message; with gaps not always.
    fn reach(&self) -> u64 {
        self.tail().sequence.saturating_sub(self.geometry.index_entries - 1)
    }

    /// Notes a record that was just written.
    fn note(&mut self, what: What) {
        let bytes = match &what {
            What::Message { length, .. } => record_bytes(*length),
            What::Control(_) => 64,
        };
        let Place { position, sequence } = self.tail();
        let to_end = self.geometry.capacity - position % self.geometry.capacity;
        let position = if bytes > to_end { position + to_end } else { position };
        let next = match what {
            What::Message { .. } => sequence + 1,
            What::Control(control) => control.next_sequence(sequence),
        };
        let after = Place { position: position + bytes, sequence: next };
        self.records.push(Record { at: Place { position, sequence }, after, what });
        if let Some(writer) = &self.writer {
            assert_eq!((writer.position(), writer.next_sequence()), (after.position, after.sequence));
        }
    }

    fn happen(&mut self, event: Event) {
        self.time += 1;
        let time = self.time;
        match (event, &mut self.writer) {
            (Event::Publish { count, length, tag, key }, Some(_)) => {
                for _ in 0..count {
                    let sequence = self.tail().sequence;
                    let writer = self.writer.as_mut().expect("alive");
                    assert_eq!(writer.publish(&payload(sequence, length), tag, key, time), Ok(sequence));
                    self.note(What::Message { length, tag, key, time });
                    if key {
                        self.last_key = Some(self.records.len() - 1);
                    }
                }
            }
            (Event::Gap(missing), Some(writer)) => {
                let from = writer.next_sequence();
                let to = from + missing - 1;
                writer.gap(to, time).unwrap();
                self.note(What::Control(ControlRecord::Gap { from, to }));
            }
            (Event::Session(identity), Some(writer)) => {
                writer.session(identity, time);
                let (high, low) = identity.split_at(8);
                let high = u64::from_le_bytes(high.try_into().unwrap());
                let low = u64::from(u16::from_le_bytes(low.try_into().unwrap()));
                self.note(What::Control(ControlRecord::Session { high, low }));
            }
            (Event::Close, Some(writer)) => {
                writer.close(time);
                self.note(What::Control(ControlRecord::End));
                (self.writer, self.closed) = (None, true);
            }
            (Event::Crash, Some(_)) => self.writer = None,
            (Event::Take, None) => {
                self.epoch += 1;
                let writer = self.segment.writer(2, time).unwrap();
                assert_eq!(writer.epoch(), self.epoch);
                (self.writer, self.closed) = (Some(writer), false);
                self.note(What::Control(ControlRecord::Epoch { epoch: self.epoch }));
            }
            (Event::Join(start), _) => self.join(start),
            (Event::Poll { reader, times, policy }, _) if reader < self.readers.len() => {
                for _ in 0..times {
                    self.poll(reader, policy);
                }
            }
            (Event::Look(reader), _) if reader < self.readers.len() => self.look(reader),
            (Event::Seek { reader, back }, _) => self.seek(reader, back),
            _ => {}
        }
    }

    fn join(&mut self, start: Start) {
        let locator = self.reading.locator();
        let place = match start {
            Start::Beginning => Place::START,
            Start::Oldest => locator.oldest().unwrap(),
            Start::Latest => locator.tail().unwrap(),
        };
        match start {
            Start::Beginning => {}
            Start::Oldest => self.check_oldest(place),
            Start::Latest => assert_eq!(place, self.tail()),
        }
        let next = self.index_of(place);
        self.readers.push(Follower { reader: self.reading.reader(place), next, ended: false });
        if self.readers.len() > 4 {
            self.readers.remove(0);
        }
    }

    /// The record that a reader at `place` reads next.
    fn index_of(&self, place: Place) -> usize {
        let next = self.records.partition_point(|record| record.at.position < place.position);
        let due = self.records.get(next).map_or(self.tail().sequence, |record| record.at.sequence);
        assert_eq!(due, place.sequence, "{place:?} is no place of this ring");
        next
    }

    /// It is never where the writer's next chunk goes, and at most one record after the first place that is safe from it.
    fn check_oldest(&self, oldest: Place) {
        let chunk = self.geometry.chunk;
        let safe = (self.frontier() + chunk).saturating_sub(self.geometry.capacity);
        assert!(oldest.position >= safe && !self.is_lapped(oldest.position));
        if safe == 0 {
            assert_eq!(oldest, Place::START);
            return;
        }
        self.index_of(oldest);
        let carries_sequence = |record: &&Record| record.after.sequence > record.at.sequence;
        let first = self.records.iter().filter(carries_sequence).find(|record| record.at.position >= safe);
        let first = first.map_or(self.tail(), |record| record.at);
        if first.sequence >= self.reach() {
            assert_eq!(oldest, first);
        } else {
            assert!(oldest.sequence <= self.reach());
        }
    }

    fn poll(&mut self, reader: usize, policy: Resume) {
        let mut out = [0xee; 8192];
        let tail = self.tail();
        let follower = &mut self.readers[reader];
        let before = follower.reader.place();
        let expected = self.records.get(follower.next).cloned();
        let lapped = self.segment.header_word(FRONTIER) - before.position > self.geometry.capacity;
        if before.sequence % 4 == 3 {
            let (records, next) = (&self.records, &mut follower.next);
            let taken = follower.reader.poll_batch(40, &mut out, |copied, bytes| {
                let Copied { length, sequence, tag, key, time } = copied;
                assert_eq!(records[*next].what, What::Message { length: length as u64, tag, key, time });
                assert_eq!(sequence, records[*next].at.sequence);
                assert_eq!(bytes, payload(sequence, length as u64));
                *next += 1;
            });
            if taken > 0 {
                assert!(!lapped);
                assert_eq!(follower.reader.place(), records[follower.next - 1].after);
                return;
            }
            out.fill(0xee);
        }
        let is_glance = before.sequence.is_multiple_of(2);
        let glance = if is_glance { follower.reader.glance(&mut out) } else { Glance::Other };
        // The start of the payload, and the end of the bytes that the call may have written.
        let (found, at, end) = match glance {
            Glance::Nothing => (Poll::Empty, 0, 0),
            Glance::Message(copied) => {
                (Poll::Message(copied), RECORD_HEADER as usize, record_bytes(copied.length as u64) as usize)
            }
            Glance::Other => (follower.reader.poll(&mut out), 0, 0),
        };
        match (found, expected) {
            (Poll::Lapped, _) => {
                assert!(lapped, "{before:?} is not lapped");
                self.resume(reader, policy);
                return;
            }
            (Poll::Message(Copied { length, sequence, tag, key, time }), Some(record)) => {
                assert!(!lapped);
                assert_eq!(record.what, What::Message { length: length as u64, tag, key, time });
                assert_eq!(sequence, record.at.sequence);
                assert_eq!(out[at..at + length], payload(sequence, length as u64));
                assert!(out[end.max(length)..].iter().all(|byte| *byte == 0xee), "wrote beyond the message");
            }
            (Poll::Control(control), Some(record)) => {
                assert!(!lapped);
                assert_eq!(record.what, What::Control(control));
                follower.ended = control == ControlRecord::End;
            }
            (Poll::Control(ControlRecord::End), None) => {
                assert!(self.closed && !follower.ended, "an end of its own making");
                follower.ended = true;
                return;
            }
            // A lapped reader may meet the zeros of the writer's clean ahead; it finds out when it looks.
            (Poll::Empty, _) if lapped => return self.look(reader),
            (Poll::Empty, None) => return assert_eq!(before, tail),
            (found, expected) => panic!("{found:?} where {expected:?} was due"),
        }
        follower.next += 1;
        assert_eq!(follower.reader.place(), self.records[follower.next - 1].after);
    }

    fn resume(&mut self, reader: usize, policy: Resume) {
        let before = self.readers[reader].reader.place();
        let missed = self.readers[reader].reader.resume(policy).unwrap();
        let place = self.readers[reader].reader.place();
        assert_eq!(missed, place.sequence - before.sequence, "missed is not exact");
        let key = self.last_key.map(|key| self.records[key].at);
        let key = key.filter(|at| at.sequence > before.sequence && !self.is_lapped(at.position));
        match (policy, key) {
            (Resume::Latest, _) => assert_eq!(place, self.tail()),
            (Resume::Key, Some(key)) if place == key => {}
            (Resume::Key, Some(key)) if key.sequence >= self.reach() => assert_eq!(place, key),
            // A gap has put it beyond the index's reach, so a search need not find it.
            _ => self.check_oldest(place),
        }
        let next = self.index_of(place);
        let follower = &mut self.readers[reader];
        (follower.next, follower.ended) = (next, false);
    }

    fn look(&mut self, reader: usize) {
        let at_tail = self.readers[reader].next == self.records.len();
        let lapped = self.is_lapped(self.readers[reader].reader.place().position);
        let follower = &mut self.readers[reader];
        match follower.reader.look() {
            None => assert!(!at_tail),
            Some(Poll::Empty) => assert!(at_tail && (!self.closed || follower.ended)),
            Some(Poll::Lapped) => {
                assert!(lapped);
                self.resume(reader, Resume::Oldest);
            }
            Some(Poll::Control(ControlRecord::End)) => {
                assert!(at_tail && self.closed && !follower.ended);
                follower.ended = true;
            }
            other => panic!("{other:?}"),
        }
    }

    fn seek(&mut self, reader: usize, back: i64) {
        let tail = self.tail();
        let sequence = tail.sequence.saturating_add_signed(-back);
        let found = self.reading.locator().seek(sequence);
        let record = self.records.iter().find(|record| record.covers(sequence));
        match found {
            Ok(place) => {
                assert_eq!(place, record.map_or(tail, |record| record.at));
                assert!(!self.is_lapped(place.position));
                let next = self.index_of(place);
                if let Some(follower) = self.readers.get_mut(reader) {
                    follower.reader.jump(place);
                    (follower.next, follower.ended) = (next, false);
                }
            }
            Err(LocateError::NotYet { sequence: asked, next }) => {
                assert!(asked == sequence && next == tail.sequence && sequence > tail.sequence);
            }
            Err(LocateError::TooOld { sequence: asked, oldest }) => {
                assert!(asked == sequence && oldest > sequence);
                let gone = record.is_none_or(|record| self.is_lapped(record.at.position));
                assert!(gone || sequence < self.reach(), "{sequence} is still there");
            }
            Err(other) => panic!("{other}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn every_reader_sees_exactly_what_happened(events in prop::collection::vec(event(), 1..150)) {
        let (file, segment) = segment();
        let mut channel = Channel::new(&file, segment);
        for event in events {
            channel.happen(event);
        }
        // In the end all readers catch up.
        for reader in 0..channel.readers.len() {
            for _ in 0..3000 {
                channel.poll(reader, Resume::Oldest);
            }
            assert_eq!(channel.readers[reader].reader.place(), channel.tail());
        }
    }
}

/// A key message published a moment ago is the one a lapped reader resumes from, not one of 64 records ago.
#[test]
fn the_last_key_is_known_at_once() {
    let (file, segment) = segment();
    let mut channel = Channel::new(&file, segment);
    channel.happen(Event::Join(Start::Beginning));
    channel.happen(Event::Publish { count: 2000, length: 100, tag: 0, key: false });
    channel.happen(Event::Publish { count: 1, length: 10, tag: 0, key: true });
    channel.happen(Event::Publish { count: 3, length: 10, tag: 0, key: false });
    channel.poll(0, Resume::Key);
    assert_eq!(channel.readers[0].reader.place().sequence, 2001);
}

/// A gap that spans the whole index used to lead joiners, and a successor, to the wrong sequence.
#[test]
fn gaps_of_every_size_around_the_index() {
    for missing in [1, 2, 1022, 1023, 1024, 1025, 2047, 2048, 2049, 1 << 32, 1 << 40] {
        let (file, segment) = segment();
        let mut channel = Channel::new(&file, segment);
        channel.happen(Event::Publish { count: 5, length: 10, tag: 0, key: false });
        channel.happen(Event::Gap(missing));
        for start in [Start::Latest, Start::Oldest] {
            channel.happen(Event::Join(start));
        }
        for back in [0, 1, missing as i64, missing as i64 + 1, missing as i64 + 3] {
            channel.happen(Event::Seek { reader: 1, back });
        }
        channel.happen(Event::Crash);
        channel.happen(Event::Take);
        channel.happen(Event::Publish { count: 2, length: 10, tag: 0, key: false });
        for reader in 0..2 {
            channel.happen(Event::Poll { reader, times: 20, policy: Resume::Oldest });
            assert_eq!(channel.readers[reader].reader.place(), channel.tail());
        }
    }
}

/// A reader that resumed behind the end hears of it, even if it had heard of an earlier end.
#[test]
fn a_second_end_is_not_lost_on_a_lapped_reader() {
    let (file, segment) = segment();
    let mut channel = Channel::new(&file, segment);
    channel.happen(Event::Join(Start::Beginning));
    channel.happen(Event::Close);
    channel.poll(0, Resume::Latest);
    assert!(channel.readers[0].ended);
    channel.happen(Event::Take);
    channel.happen(Event::Publish { count: 300, length: 1000, tag: 0, key: false });
    channel.happen(Event::Close);
    channel.poll(0, Resume::Latest);
    assert!(!channel.readers[0].ended, "lapped, and resumed at the tail");
    channel.look(0);
    assert!(channel.readers[0].ended);
}

/// Sequences before the first of a ring that continues another were never in it.
#[test]
fn a_continued_ring_knows_where_it_began() {
    let file = nameless();
    let segment = Segment::create(&file, header(64 << 10, None)).unwrap();
    segment.continue_from(5000, 3, 0);
    let mut writer = segment.writer(1, 0).unwrap();
    assert_eq!((writer.epoch(), writer.next_sequence()), (4, 5000));
    writer.publish(b"first", 0, false, 1).unwrap();
    let locator = segment.locator();
    let start = Place { position: 0, sequence: 5000 };
    assert_eq!(locator.oldest(), Ok(start));
    assert_eq!(locator.seek(5000).unwrap().sequence, 5000);
    for sequence in [0, 1, 4000, 4999] {
        assert_eq!(locator.seek(sequence), Err(LocateError::TooOld { sequence, oldest: 5000 }));
    }
    let mut reader = segment.reader(start);
    let mut out = [0; 64];
    assert_eq!(reader.poll(&mut out), Poll::Control(ControlRecord::Epoch { epoch: 4 }));
    assert!(matches!(reader.poll(&mut out), Poll::Message(Copied { sequence: 5000, length: 5, .. })));
}

/// A record that is no readable message stops a reader that takes several at once. The next poll still finds it.
#[test]
fn several_taken_at_once_are_what_polls_would_have_found() {
    let (_file, segment) = segment();
    let mut writer = segment.writer(1, 0).unwrap();
    let mut reader = segment.reader(Place::START);
    let mut out = [0; 2200];
    let take = |reader: &mut Reader, most, out: &mut [u8]| {
        let mut next = reader.place().sequence;
        reader.poll_batch(most, out, |copied, bytes| {
            let expected = (next, next as u16, next.is_multiple_of(7), 1000 + next);
            assert_eq!((copied.sequence, copied.tag, copied.key, copied.time), expected);
            assert_eq!(bytes, payload(next, copied.length as u64));
            next += 1;
        })
    };
    let mut publish = |length: u64| {
        let sequence = writer.next_sequence();
        if sequence == 50 {
            writer.gap(59, 0).unwrap();
            return;
        }
        let (tag, key) = (sequence as u16, sequence.is_multiple_of(7));
        writer.publish(&payload(sequence, length), tag, key, 1000 + sequence).unwrap();
    };
    (0..50).for_each(|i| publish(20 * i));
    assert_eq!(take(&mut reader, 0, &mut out), 0);
    assert_eq!(take(&mut reader, 30, &mut out), 30);
    assert_eq!(take(&mut reader, 30, &mut out[..831]), 8, "the next has 760 B, its record 832");
    assert_eq!(reader.poll(&mut out[..759]), Poll::TooSmall { needed: 760 });
    assert_eq!(take(&mut reader, 30, &mut out), 11, "then comes the gap");
    assert_eq!(reader.poll(&mut out), Poll::Control(ControlRecord::Gap { from: 50, to: 59 }));
    assert_eq!(take(&mut reader, 30, &mut out), 0);
    assert_eq!(reader.poll(&mut out), Poll::Empty);
    // To the end of the ring, where a pad fills the rest, and beyond it.
    (0..60).for_each(|_| publish(1000));
    let before_the_pad = take(&mut reader, 60, &mut out);
    assert!((1..60).contains(&before_the_pad));
    assert!(matches!(reader.poll(&mut out), Poll::Message(Copied { length: 1000, .. })));
    assert_eq!(take(&mut reader, 60, &mut out), 59 - before_the_pad);
    (0..100).for_each(|_| publish(1000));
    assert_eq!(take(&mut reader, 100, &mut out), 0);
    assert_eq!(reader.poll(&mut out), Poll::Lapped);
}

/// Small messages far behind the writer are copied together: of one size or of many, for any buffer and any number that is asked
/// for.
#[test]
fn what_is_copied_together_is_handed_out_one_by_one() {
    let (_file, segment) = segment();
    let mut writer = segment.writer(1, 0).unwrap();
    for sizes in [[1, 48, 30, 0], [40; 4], [112; 4], [300, 0, 500, 48], [0, 496, 497, 900]] {
        let start = Place { position: writer.position(), sequence: writer.next_sequence() };
        (0..20).flat_map(|_| sizes).for_each(|length| {
            let sequence = writer.next_sequence();
            writer.publish(&payload(sequence, length), sequence as u16, sequence % 3 == 0, sequence).unwrap();
        });
        for (most, room) in [(1, 2200), (7, 4096), (64, RUN as usize), (64, 1904), (1000, 1100)] {
            let mut reader = segment.reader(start);
            let (mut out, mut next) = (vec![0; room], start.sequence);
            while next < writer.next_sequence() {
                let taken = reader.poll_batch(most, &mut out, |copied, bytes| {
                    let expected = (next, next as u16, next % 3 == 0, next);
                    assert_eq!((copied.sequence, copied.tag, copied.key, copied.time), expected);
                    assert_eq!(bytes, payload(next, copied.length as u64));
                    next += 1;
                });
                if taken == 0 {
                    // A pad where the ring ends is for a poll to pass.
                    let found = reader.poll(&mut out);
                    assert!(matches!(found, Poll::Message(copied) if copied.sequence == next), "{found:?}");
                    next += 1;
                }
            }
        }
    }
}
