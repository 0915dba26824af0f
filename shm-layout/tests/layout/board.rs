//! A board against a plain map of what was published: keys that come, change, go and come back, boards that are full, publishers that die
//! between ring and board, and boards that no publisher wrote.

use crate::common::{header, nameless};
use proptest::prelude::*;
use shmcast_layout::board::{BoardWriter, JoinError, Lookup, Snapshot, View};
use shmcast_layout::layout::board::{HEAD_KEY, HEAD_SEQUENCE, HEAD_VERSION, Meta, Spec};
use shmcast_layout::ring::locate::Place;
use shmcast_layout::ring::writer::Writer;
use shmcast_layout::segment::{Access, Segment};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

const REMOVE_TAG: u16 = 99;
const CAPACITY: u64 = 64 << 10;

fn spec(keys: u64, key: std::ops::Range<u64>, value: u64) -> Spec {
    Spec { keys, value, key_start: key.start, key_end: key.end, remove_tag: Some(REMOVE_TAG) }
}

fn segment(spec: Spec) -> (File, Segment) {
    let file = nameless();
    let segment = Segment::create_with_board(&file, header(CAPACITY, None), Some(spec)).unwrap();
    (file, segment)
}

/// One thing that may happen to a channel with a board.
#[derive(Debug, Clone)]
enum Event {
    /// A message of a key, with this many bytes behind the key.
    Publish {
        key: u8,
        rest: usize,
        tag: u16,
    },
    /// So many messages of changing keys in a row.
    Many {
        count: u64,
        keys: u8,
    },
    Remove {
        key: u8,
        by_tag: bool,
    },
    /// Too short to have a key.
    Short(usize),
    Gap(u64),
    /// The publisher dies after this many messages that reached the ring and not the board. The next one takes over.
    Die {
        unposted: u8,
        key: u8,
    },
    /// So many messages by a publisher that keeps no board.
    Foreign {
        count: u64,
        key: u8,
    },
    Check,
}

fn event() -> impl Strategy<Value = Event> {
    let key = 0..12u8;
    let rest = prop_oneof![4 => 1..40usize, 2 => 40..120usize, 1 => 120..300usize];
    let tag = prop_oneof![8 => any::<u16>(), 1 => Just(REMOVE_TAG)];
    prop_oneof![
        12 => (key.clone(), rest, tag).prop_map(|(key, rest, tag)| Event::Publish { key, rest, tag }),
        1 => (prop_oneof![3 => 1..50u64, 1 => 500..3000u64], 1..12u8)
            .prop_map(|(count, keys)| Event::Many { count, keys }),
        5 => (key.clone(), any::<bool>()).prop_map(|(key, by_tag)| Event::Remove { key, by_tag }),
        1 => (0..12usize).prop_map(Event::Short),
        1 => prop_oneof![3 => 1..20u64, 1 => 1000..5000u64].prop_map(Event::Gap),
        3 => (0..4u8, key.clone()).prop_map(|(unposted, key)| Event::Die { unposted, key }),
        1 => (prop_oneof![1 => 1..50u64, 1 => 2000..3000u64], key)
            .prop_map(|(count, key)| Event::Foreign { count, key }),
        4 => Just(Event::Check),
    ]
}

/// What the board must say of a key.
#[derive(Debug, Clone, PartialEq)]
struct Known {
    sequence: u64,
    payload: Vec<u8>,
    tag: u16,
    count: u64,
    born: u64,
    is_removed: bool,
    is_unknown: bool,
}

struct Channel {
    spec: Spec,
    segment: Segment,
    writer: Writer,
    board: BoardWriter,
    /// All messages, by sequence.
    messages: BTreeMap<u64, (Vec<u8>, u16)>,
    known: BTreeMap<Vec<u8>, Known>,
    refused: u64,
    too_large: u64,
    no_key: u64,
    /// What was committed to the ring and not posted, because its publisher died.
    unposted: u64,
    snapshot: Snapshot,
}

impl Channel {
    fn new(spec: Spec) -> Self {
        let (_, segment) = segment(spec);
        let writer = segment.writer(1, 0).unwrap();
        let (board, _) = segment.board_writer().unwrap().unwrap();
        Self {
            spec,
            writer,
            board,
            messages: BTreeMap::new(),
            known: BTreeMap::new(),
            refused: 0,
            too_large: 0,
            no_key: 0,
            unposted: 0,
            snapshot: Snapshot::new(segment.board().unwrap()),
            segment,
        }
    }

    /// A payload with bytes before the key, and a body that depends on the sequence.
    fn payload(&self, key: u8, rest: usize) -> Vec<u8> {
        let next = self.writer.next_sequence();
        let mut payload: Vec<u8> = (0..self.spec.key_end).map(|i| (next + i) as u8).collect();
        payload[self.spec.key()].fill(key);
        payload.extend((0..rest).map(|i| (next * 31 + i as u64) as u8));
        payload
    }

    fn publish(&mut self, payload: Vec<u8>, tag: u16, is_posted: bool) {
        let sequence = self.writer.publish(&payload, tag, false, 7).unwrap();
        if is_posted {
            self.board.post(sequence, &payload, tag, false, 7);
        }
        self.note(sequence, payload, tag);
    }

    fn note(&mut self, sequence: u64, payload: Vec<u8>, tag: u16) {
        self.messages.insert(sequence, (payload.clone(), tag));
        let Some(key) = payload.get(self.spec.key()).map(<[u8]>::to_vec) else {
            self.no_key += 1;
            return;
        };
        let is_removed = payload.len() as u64 == self.spec.key_end || tag == REMOVE_TAG;
        let there = self.known.get(&key).map(|known| (known.count, known.born));
        if there.is_none() {
            if is_removed {
                return;
            }
            if self.known.len() as u64 == self.spec.keys {
                let oldest = self.known.iter().filter(|(_, known)| known.is_removed);
                let Some(oldest) = oldest.min_by_key(|(_, known)| known.sequence) else {
                    self.refused += 1;
                    return;
                };
                let oldest = oldest.0.clone();
                self.known.remove(&oldest);
            }
        }
        self.too_large += u64::from(payload.len() as u64 > self.spec.value);
        let (count, born) = there.unwrap_or((0, sequence));
        let known = Known { sequence, payload, tag, count: count + 1, born, is_removed, is_unknown: false };
        self.known.insert(key, known);
    }

    /// The next publisher takes over, as after a crash.
    fn take_over(&mut self, is_board_kept: bool) {
        self.writer = self.segment.writer(2, 0).unwrap();
        if !is_board_kept {
            return;
        }
        let (board, replayed) = self.segment.board_writer().unwrap().unwrap();
        assert!(replayed.has_hole || replayed.messages == self.unposted, "{replayed:?}");
        self.board = board;
        self.unposted = 0;
    }

    /// Messages of a publisher that keeps no board.
    fn publish_beside_the_board(&mut self, count: u64, key: u8) {
        self.take_over(false);
        let (known, figures) = (self.known.clone(), (self.refused, self.too_large, self.no_key));
        let posted = self.writer.next_sequence() - self.unposted;
        for _ in 0..count {
            let payload = self.payload(key, 8);
            self.publish(payload, 0, false);
        }
        self.writer = self.segment.writer(2, 0).unwrap();
        let oldest = self.segment.locator().oldest().unwrap().sequence;
        let (board, replayed) = self.segment.board_writer().unwrap().unwrap();
        self.board = board;
        self.unposted = 0;
        assert_eq!(
            replayed.has_hole,
            oldest > posted,
            "the ring begins at {oldest}, the board ended before {posted}"
        );
        if !replayed.has_hole {
            return;
        }
        // The values are unknown, and what the ring still has is posted once more.
        self.known = known;
        (self.refused, self.too_large, self.no_key) = figures;
        for known in self.known.values_mut() {
            (known.sequence, known.count, known.born) = (oldest - 1, 0, oldest);
            (known.is_unknown, known.is_removed) = (true, false);
        }
        let left: Vec<_> = self.messages.range(oldest..).map(|(s, m)| (*s, m.clone())).collect();
        left.into_iter().for_each(|(sequence, (payload, tag))| self.note(sequence, payload, tag));
    }

    fn check(&mut self) {
        let view = self.segment.board().unwrap();
        let counters = view.counters();
        let live = self.known.values().filter(|known| !known.is_removed).count() as u64;
        let said = (counters.live, counters.refused, counters.too_large, counters.no_key, counters.through);
        let through = self.writer.next_sequence() - 1;
        assert_eq!(said, (live, self.refused, self.too_large, self.no_key, through));
        self.check_each_key(&view);
        self.check_join();
    }

    fn check_each_key(&self, view: &View) {
        let mut out = vec![0; view.geometry().stride() as usize];
        for key in 0..14u8 {
            let key = vec![key; self.spec.key().len()];
            let found = view.get(&key, &mut out);
            match self.known.get(&key).filter(|known| !known.is_removed) {
                None => assert_eq!(found, Lookup::None, "{key:?}"),
                Some(known) => {
                    let Lookup::Found { head, bytes } = found else { panic!("{key:?}: {found:?}") };
                    let is_whole = known.payload.len() as u64 <= self.spec.value && !known.is_unknown;
                    assert_eq!(head.meta.is_whole(), is_whole);
                    assert_eq!(
                        (head.sequence, head.count(), head.born),
                        (known.sequence, known.count, known.born)
                    );
                    if is_whole {
                        assert_eq!((&out[..bytes], head.meta.tag()), (&known.payload[..], known.tag));
                    } else if !known.is_unknown {
                        assert!(head.meta.has(Meta::TOO_LARGE) && head.meta.length() == known.payload.len());
                    }
                }
            }
        }
    }

    /// What a reader joins now, and what it is given that has not seen the last 20 messages.
    fn check_join(&mut self) {
        let mut reader = self.segment.reader(Place::START);
        let mut buffer = vec![0; self.segment.header().geometry.max_message as usize];
        let joined = self.snapshot.join(&mut reader, &mut buffer).unwrap();
        let next = self.writer.next_sequence();
        assert_eq!((joined.place.sequence, joined.passes), (next, 1));
        for (from, only_live) in [(0, true), (next.saturating_sub(20), false)] {
            let (listed, not_whole) = self.snapshot.list(from, only_live);
            let is_listed = |known: &&Known| known.sequence >= from && !(only_live && known.is_removed);
            let is_whole =
                |known: &&Known| known.payload.len() as u64 <= self.spec.value && !known.is_unknown;
            let mut expected: Vec<&Known> = self.known.values().filter(is_listed).collect();
            assert_eq!(expected.iter().filter(|known| !is_whole(known)).count() as u64, not_whole);
            expected.retain(is_whole);
            expected.sort_by_key(|known| known.sequence);
            assert_eq!(listed, expected.len());
            for (number, known) in expected.into_iter().enumerate() {
                let listed = self.snapshot.listed(number).unwrap();
                let message = listed.message;
                assert_eq!(self.snapshot.value(&listed), known.payload);
                assert_eq!((message.sequence, message.tag, message.time), (known.sequence, known.tag, 7));
                assert_eq!((listed.count, listed.born), (known.count, known.born));
                assert_eq!(listed.is_removed, known.is_removed);
            }
        }
    }

    fn act(&mut self, event: Event) {
        match event {
            Event::Publish { key, rest, tag } => {
                let payload = self.payload(key, rest);
                self.publish(payload, tag, true);
            }
            Event::Many { count, keys } => {
                for i in 0..count {
                    let payload = self.payload((i % u64::from(keys)) as u8, 16);
                    self.publish(payload, 1, true);
                }
            }
            Event::Remove { key, by_tag } => {
                let payload = self.payload(key, if by_tag { 3 } else { 0 });
                self.publish(payload, if by_tag { REMOVE_TAG } else { 0 }, true);
            }
            Event::Short(length) => {
                let mut payload = self.payload(0, 0);
                payload.truncate(length.min(self.spec.key_end as usize - 1));
                self.publish(payload, 0, true);
            }
            Event::Gap(count) => {
                let last = self.writer.next_sequence() + count - 1;
                self.writer.gap(last, 0).unwrap();
                self.board.skip_to(last);
            }
            Event::Die { unposted, key } => {
                for i in 0..unposted {
                    let payload = self.payload(key.wrapping_add(i % 2), usize::from(i % 3) * 8);
                    self.publish(payload, 0, false);
                }
                self.unposted = u64::from(unposted);
                self.take_over(true);
            }
            Event::Foreign { count, key } => self.publish_beside_the_board(count, key),
            Event::Check => self.check(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_board_has_what_a_map_has(
        keys in 1..10u64,
        key in prop::sample::select(vec![0..1u64, 0..8, 3..11, 0..16, 5..29]),
        value in prop::sample::select(vec![32u64, 64, 100]),
        events in prop::collection::vec(event(), 1..120),
    ) {
        let mut channel = Channel::new(spec(keys, key, value));
        events.into_iter().for_each(|event| channel.act(event));
        channel.check();
    }

    /// Whatever bytes a board holds behind its header, a reader of it does not panic, and ends.
    #[test]
    fn arbitrary_bytes_on_a_board_are_read_without_a_panic(
        seed in any::<u64>(),
        words in prop::collection::vec((0..2048u64, prop_oneof![Just(0u64), Just(u64::MAX), any::<u64>(), 0..64u64]), 1..400),
    ) {
        let (file, segment) = segment(spec(8, 0..8, 64));
        let mut writer = segment.writer(1, 0).unwrap();
        let (mut board, _) = segment.board_writer().unwrap().unwrap();
        for i in 0..40u64 {
            let payload = [(seed.wrapping_add(i) % 9).to_le_bytes(), i.to_le_bytes()].concat();
            let sequence = writer.publish(&payload, 0, false, 0).unwrap();
            board.post(sequence, &payload, 0, false, 0);
        }
        let (at, geometry) = (segment.header().geometry.end(), *segment.board().unwrap().geometry());
        for (word, value) in words {
            let word = 16 + word % (geometry.bytes() / 8 - 16);
            file.write_all_at(&value.to_le_bytes(), at + word * 8).unwrap();
        }
        let view = segment.board().unwrap();
        let mut out = [0; 64];
        for key in 0..10u64 {
            let _ = view.get(&key.to_le_bytes(), &mut out);
        }
        let _ = view.counters();
        let mut snapshot = Snapshot::new(view);
        let mut buffer = vec![0; 8 << 10];
        for _ in 0..2 {
            if snapshot.join(&mut segment.reader(Place::START), &mut buffer).is_ok() {
                let (listed, _) = snapshot.list(0, false);
                for number in 0..listed {
                    let listed = snapshot.listed(number).unwrap();
                    prop_assert!(snapshot.value(&listed).len() <= 64);
                }
            }
        }
        // A successor gets along with it as well, and keeps a board that is right for what it publishes.
        let mut writer = segment.writer(2, 0).unwrap();
        if let Ok(Some((mut board, _))) = segment.board_writer() {
            let payload = [1u64.to_le_bytes(), 2u64.to_le_bytes()].concat();
            let sequence = writer.publish(&payload, 0, false, 0).unwrap();
            board.post(sequence, &payload, 0, false, 0);
        }
    }
}

#[test]
fn a_board_is_found_again_and_a_damaged_header_is_refused() {
    let (file, segment) = segment(spec(100, 0..8, 200));
    let at = segment.header().geometry.end();
    let found = Segment::open(&file, Access::Read).unwrap();
    assert_eq!(found.board_spec(), Some(spec(100, 0..8, 200)));
    for (word, value) in [(0, 1u64), (1, 9 << 16), (2, 101), (7, 12), (15, 1)] {
        let mut before = [0; 8];
        file.read_exact_at(&mut before, at + word * 8).unwrap();
        file.write_all_at(&value.to_le_bytes(), at + word * 8).unwrap();
        assert!(Segment::open(&file, Access::Read).is_err(), "word {word}");
        file.write_all_at(&before, at + word * 8).unwrap();
    }
    assert!(Segment::open(&file, Access::Read).is_ok());
    file.set_len(at + 4096).unwrap();
    assert!(Segment::open(&file, Access::Read).is_err(), "truncated");
    file.set_len(at + 100).unwrap();
    assert!(Segment::open(&file, Access::Read).is_err(), "truncated in its header");
}

#[test]
fn a_board_that_is_not_kept_is_no_board_to_join() {
    let (_, segment) = segment(spec(8, 0..8, 64));
    let mut writer = segment.writer(1, 0).unwrap();
    for i in 0..5000u64 {
        writer.publish(&i.to_le_bytes(), 0, false, 0).unwrap();
    }
    let mut snapshot = Snapshot::new(segment.board().unwrap());
    let joined = snapshot.join(&mut segment.reader(Place::START), &mut [0; 8 << 10]);
    assert_eq!(joined, Err(JoinError::Left { through: 0 }));
}

/// The head of the slot of a key of one byte, as a place in the file.
fn head_of(file: &File, key: u8, sequence: u64) -> u64 {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    let word = |head: &[u8], n: usize| u64::from_le_bytes(head[8 * n..][..8].try_into().unwrap());
    let is_head =
        |head: &[u8]| word(head, HEAD_SEQUENCE) == sequence && word(head, HEAD_KEY) == u64::from(key);
    bytes.chunks_exact(64).position(is_head).expect("a slot") as u64 * 64
}

/// An earlier mistake: the next board had a key of zeros instead of this key, because the copy had no bytes of a slot that changes.
#[test]
fn a_key_whose_slot_changes_at_the_cut_is_carried_as_unknown() {
    for is_given_away in [false, true] {
        let (file, segment) = segment(spec(2, 0..1, 64));
        let mut writer = segment.writer(1, 0).unwrap();
        let (mut board, _) = segment.board_writer().unwrap().unwrap();
        let sequence = writer.publish(&[7, 1, 2, 3], 0, false, 0).unwrap();
        board.post(sequence, &[7, 1, 2, 3], 0, false, 0);
        let head = head_of(&file, 7, 1);
        // The publisher is stopped while it stores message 2: to the same key, or to another one.
        file.write_all_at(&3u64.to_le_bytes(), head + 8 * HEAD_VERSION as u64).unwrap();
        if is_given_away {
            file.write_all_at(&8u64.to_le_bytes(), head + 8 * HEAD_KEY as u64).unwrap();
        }
        let (_, next) = self::segment(spec(2, 0..1, 64));
        segment.carry_board(segment.begin_to_carry(), &next, 2);
        let (board, mut value) = (next.board().unwrap(), [0; 64]);
        let mut lookup = |key: u8| board.get(&[key], &mut value);
        assert_eq!((lookup(0), lookup(8)), (Lookup::None, Lookup::None));
        let counters = board.counters();
        if is_given_away {
            assert_eq!((lookup(7), counters.live, counters.since), (Lookup::None, 0, 2));
        } else {
            let Lookup::Found { head, .. } = lookup(7) else { panic!("the key is lost") };
            assert!(!head.meta.is_whole() && head.sequence == 1);
            assert_eq!((counters.live, counters.since), (1, 1));
        }
    }
}

/// A removal that the board has forgotten stays known in the segment in which the channel continues, and so does one that has no room there.
#[test]
fn a_carried_board_says_what_was_forgotten() {
    for (room, forgotten) in [(2, 3), (1, 5)] {
        let mut channel = Channel::new(spec(2, 0..1, 64));
        for (key, rest) in [(1, 1), (2, 1), (1, 0), (3, 1), (2, 0)] {
            let payload = channel.payload(key, rest);
            channel.publish(payload, 0, true);
        }
        let view = channel.segment.board().unwrap();
        assert_eq!(view.forgotten(), 3, "key 3 got the slot of key 1, which message 3 had removed");
        let (_, next) = segment(spec(room, 0..1, 64));
        channel.segment.carry_board(channel.segment.begin_to_carry(), &next, 6);
        let carried = next.board().unwrap();
        assert_eq!(
            (carried.forgotten(), carried.counters().live, carried.counters().refused),
            (forgotten, 1, 0)
        );
    }
}

/// A publisher that is cut off stores messages after the cut, and the ring no longer has the messages behind the copy. The copy that is then
/// made has messages that are not valid in place of valid ones: their keys are unknown, and the board says so.
#[test]
fn what_a_copy_after_the_cut_lost_is_not_carried() {
    let (_, segment) = segment(spec(4, 0..1, 64));
    let mut writer = segment.writer(1, 0).unwrap();
    let (mut board, _) = segment.board_writer().unwrap().unwrap();
    let mut publish = |key: u8| {
        let sequence = writer.publish(&[key, 1, 2, 3], 0, false, 0).unwrap();
        board.post(sequence, &[key, 1, 2, 3], 0, false, 0);
        sequence
    };
    publish(7);
    let carry = segment.begin_to_carry();
    let below = (0..3_000).map(|_| publish(9)).last().unwrap() + 1;
    publish(8);
    publish(7);
    let (_, next) = self::segment(spec(4, 0..1, 64));
    segment.carry_board(carry, &next, below);
    let (board, mut value) = (next.board().unwrap(), [0; 64]);
    let mut lookup = |key: u8| board.get(&[key], &mut value);
    assert_eq!((lookup(7), lookup(8)), (Lookup::None, Lookup::None));
    let Lookup::Found { head, .. } = lookup(9) else { panic!("the key is lost") };
    assert_eq!((head.sequence, head.count(), head.born), (below - 1, 3_000, 2));
    assert_eq!((board.counters().since, board.counters().live), (below, 1));
}

/// The board can forget a key that was removed, and the key then comes back in another slot. A join that reads both in the ring says what
/// each of the two counts has.
#[test]
fn a_key_that_leaves_and_comes_back_during_a_join_has_two_counts() {
    let mut channel = Channel::new(spec(2, 0..1, 64));
    for (key, rest, is_posted) in
        [(1, 1, true), (1, 1, true), (1, 1, false), (1, 0, false), (1, 1, false), (1, 1, false)]
    {
        let payload = channel.payload(key, rest);
        channel.writer.publish(&payload, 0, false, 7).unwrap();
        if is_posted {
            let sequence = channel.writer.next_sequence() - 1;
            channel.board.post(sequence, &payload, 0, false, 7);
        }
    }
    let mut reader = channel.segment.reader(Place::START);
    channel.snapshot.join(&mut reader, &mut [0; 1024]).unwrap();
    let listed = channel.snapshot.all().next().unwrap();
    assert_eq!((listed.count, listed.born), (6, 1));
    assert_eq!((listed.count_again, listed.again), (2, 5));
}
