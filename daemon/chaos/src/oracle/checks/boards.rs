//! Tests that the oracle finds false boards, false counts and gates that do not keep their terms.

use super::{CAPACITY, LARGEST, assert_found, at, first};
use crate::keys::Keys;
use crate::log::{Deed, Entry, Fact, Found, GateFigures, Time};
use crate::oracle::{History, judge_history};
use crate::payload::{Identity, Sizes};
use crate::story::{Board, Profile, Shape, Start};
use std::collections::BTreeMap;

const KEYS: Keys = Keys { start: 16, end: 18, used: 4 };
/// Number of messages that the publisher publishes.
const COUNT: u32 = 200;

fn channel() -> String {
    KEYS.name("a")
}

fn length(counter: u32) -> usize {
    first(0, counter).length(Sizes::Line, LARGEST)
}

/// Returns the key of message `counter`, and whether the message removes this key. Returns `None` if the message has no key.
fn key(counter: u32) -> Option<(u32, bool)> {
    let length = length(counter);
    (length >= KEYS.end).then(|| (KEYS.number(first(0, counter)), length == KEYS.end))
}

/// Returns the counters of the board's messages, in ascending order, when the messages below `end` have been published. Message
/// `counter` has the sequence `counter + 1`.
fn board(end: u32) -> Vec<u32> {
    let mut newest = BTreeMap::new();
    for counter in 0..end {
        match key(counter) {
            Some((key, false)) => newest.insert(key, counter),
            Some((key, true)) => newest.remove(&key),
            None => None,
        };
    }
    let mut counters: Vec<u32> = newest.into_values().collect();
    counters.sort_unstable();
    counters
}

fn newest(counter: u32, conflated: u64) -> Fact {
    let (message, length) = (first(0, counter), length(counter));
    Fact::Newest { sequence: u64::from(counter) + 1, message, length, conflated }
}

fn live() -> Fact {
    Fact::Live { sequence: u64::from(COUNT) + 1, since: 0 }
}

fn publishes() -> Vec<Fact> {
    vec![
        Fact::Opening { channel: channel(), publisher: 0 },
        Fact::Opened { next: 1, epoch: 1, capacity: CAPACITY, largest: LARGEST },
        Fact::Publishing { first: first(0, 0), count: COUNT, sizes: Sizes::Line, next: 1, old: false },
        Fact::Published { count: COUNT, next: u64::from(COUNT) + 1, error: None },
    ]
}

fn reads(start: Start, conflates: bool, next: u64, mut seen: Vec<Fact>) -> Vec<Fact> {
    let subscribing =
        Fact::Subscribing { channel: channel(), host: 0, start, page: true, history: false, skip: false };
    let mut all = vec![subscribing, Fact::Subscribed { next, refused: false }];
    all.push(Fact::Joined { gate: Some("g0".into()), conflates });
    all.append(&mut seen);
    all
}

fn judge(publisher: Vec<Entry<Fact>>, reader: Vec<Entry<Fact>>) -> Vec<String> {
    let mut history = History { profile: Some(Profile::Files), ..History::default() };
    let shape = Shape { board: Some(Board { keys: 4, value: 100 }), gates: Vec::new() };
    history.shapes.insert(channel(), shape);
    let started = Deed::Started { who: "r".into(), pid: 7 };
    history.deeds = [(0, started), (9_000_000, Deed::Over)].map(|(at, what)| Entry { at, what }).into();
    history.add_actor("p", publisher);
    history.add_actor("r", reader);
    judge_history(&history).into_iter().map(|violation| violation.name).collect()
}

/// Judges a reader that begins with the board after all messages are published.
fn begins_with(seen: Vec<Fact>) -> Vec<String> {
    judge(at(10, publishes()), at(2000, reads(Start::Board, false, u64::from(COUNT) + 1, seen)))
}

fn whole_board() -> Vec<Fact> {
    board(COUNT).into_iter().map(|counter| newest(counter, 0)).chain([live()]).collect()
}

#[test]
fn a_whole_board_is_right_and_each_mistake_in_one_is_found() {
    assert_eq!(begins_with(whole_board()), Vec::<String>::new());
    let mut lacking = whole_board();
    lacking.remove(0);
    assert_found(&begins_with(lacking), "lacking_key");
    let mut told = whole_board();
    told.insert(told.len() - 1, Fact::Lapped { missed: 1, resumed_at: u64::from(COUNT) + 1 });
    assert_found(&begins_with(told), "lacking_key");
    let mut swapped = whole_board();
    swapped.swap(0, 1);
    assert_found(&begins_with(swapped), "backwards");
    let mut counted = whole_board();
    counted[0] = newest(board(COUNT)[0], 1);
    assert_found(&begins_with(counted), "false_conflated");
    // An earlier state of the board has an older message of some key. The reader must not begin with this state.
    let early = (COUNT - 20..COUNT).find(|end| board(*end)[0] != board(COUNT)[0]).unwrap_or(COUNT - 1);
    let old = board(early).into_iter().map(|counter| newest(counter, 0)).chain([live()]).collect();
    assert_found(&begins_with(old), "old_value");
    let before = Fact::Live { sequence: u64::from(early) + 1, since: 0 };
    let old = board(early).into_iter().map(|counter| newest(counter, 0)).chain([before]).collect();
    assert_found(&begins_with(old), "old_board");
    let without_key = (0..COUNT).find(|counter| key(*counter).is_none()).expect("a short message");
    assert_found(&begins_with(vec![newest(without_key, 0), live()]), "without_key");
}

/// The channel's memory is lost with its messages, and a reader begins with the new memory before the next publisher.
#[test]
fn a_reader_may_begin_with_the_empty_board_of_new_memory() {
    let judged = |may_restart: bool, sender: u32| {
        let mut history = History { profile: Some(Profile::Daemon), ..History::default() };
        let shape = Shape { board: Some(Board { keys: 4, value: 100 }), gates: Vec::new() };
        history.shapes.insert(channel(), shape);
        let lost = Deed::MayRestart { channel: channel(), why: "its last holder left".into() };
        let started = Deed::Started { who: "r".into(), pid: 7 };
        history.deeds.push(Entry { at: 0, what: started });
        history.deeds.push(Entry { at: if may_restart { 1000 } else { 3000 }, what: lost });
        history.deeds.push(Entry { at: 9_000_000, what: Deed::Over });
        let mut publisher = at(10, publishes());
        publisher.push(Entry { at: 900, what: Fact::Closing });
        publisher.push(Entry { at: 901, what: Fact::Closed });
        history.add_actor("p", publisher);
        let first = Identity { publisher: 1, counter: 0 };
        let next = vec![
            Fact::Opening { channel: channel(), publisher: 1 },
            Fact::Opened { next: 1, epoch: 1, capacity: CAPACITY, largest: LARGEST },
            Fact::Publishing { first, count: 1, sizes: Sizes::Line, next: 1, old: false },
            Fact::Published { count: 1, next: 2, error: None },
        ];
        history.add_actor("q", at(4000, next));
        let live = Fact::Live { sequence: 1, since: 0 };
        let got = Identity { publisher: sender, counter: 0 };
        let bytes = got.length(Sizes::Line, LARGEST) as u64;
        let got = Fact::Got { sequence: 1, first: got, count: 1, bytes, old: 0 };
        let mut reader = at(2000, reads(Start::Board, false, 1, vec![live]));
        reader.push(Entry { at: 5000, what: got });
        history.add_actor("r", reader);
        let found = judge_history(&history);
        found.into_iter().map(|violation| violation.name).collect::<Vec<_>>()
    };
    assert_eq!(judged(true, 1), Vec::<String>::new());
    assert_found(&judged(true, 0), "old_board");
    assert_found(&judged(false, 1), "old_board");
}

/// Returns the events of a reader that expects sequence 1 and skips all messages: the newest message of each key, a lap, and `Live`.
fn bridged() -> Vec<Fact> {
    let mut of_key: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for counter in 0..COUNT {
        if let Some((key, is_removal)) = key(counter)
            && (!is_removal || of_key.contains_key(&key))
        {
            of_key.entry(key).or_default().push(counter);
        }
    }
    let mut all: Vec<(u32, u64)> =
        of_key.values().map(|all| (all[all.len() - 1], all.len() as u64 - 1)).collect();
    all.sort_unstable();
    let replaced: u64 = all.iter().map(|(_, conflated)| conflated + 1).sum();
    let missed = u64::from(COUNT) - replaced;
    let lapped = Fact::Lapped { missed, resumed_at: u64::from(COUNT) + 1 };
    all.into_iter().map(|(counter, conflated)| newest(counter, conflated)).chain([lapped, live()]).collect()
}

#[test]
fn counts_of_left_out_messages_are_exact() {
    let conflates = |seen| judge(at(10, publishes()), at(2000, reads(Start::Latest, true, 1, seen)));
    assert_eq!(conflates(bridged()), Vec::<String>::new());
    for (number, by) in [(0, 1), (1, -1)] {
        let mut wrong = bridged();
        let Fact::Newest { conflated, .. } = &mut wrong[number] else { panic!("a message of the board") };
        *conflated = conflated.saturating_add_signed(by);
        assert_found(&conflates(wrong), "false_conflated");
    }
    let mut silent = bridged();
    silent.remove(silent.len() - 2);
    assert_found(&conflates(silent), "false_conflated");
    let unasked = judge(at(10, publishes()), at(2000, reads(Start::Latest, false, 1, bridged())));
    assert_found(&unasked, "unasked_board");
}

#[test]
fn searches_find_the_newest_message() {
    let looks = |key: u32, found: Option<Found>| {
        let looked = Fact::Looked { channel: channel(), began: 1000, key, found, error: None };
        judge(at(10, publishes()), vec![Entry { at: 2000, what: looked }])
    };
    let counter = board(COUNT)[0];
    let (number, _) = key(counter).expect("on the board");
    let all: Vec<u32> = (0..COUNT).filter(|at| key(*at).is_some_and(|(key, _)| key == number)).collect();
    let first_kept = all.iter().position(|at| key(*at) == Some((number, false))).unwrap_or(0);
    let found = |counter: u32| {
        let count = all[first_kept..].iter().filter(|at| **at <= counter).count() as u64;
        Found { sequence: u64::from(counter) + 1, message: Some(first(0, counter)), is_odd: false, count }
    };
    assert_eq!(looks(number, Some(found(counter))), Vec::<String>::new());
    assert_found(&looks(number, None), "old_value");
    let old = all.iter().rev().find(|at| **at < counter && key(**at) == Some((number, false)));
    assert_found(&looks(number, Some(found(*old.expect("an older message")))), "old_value");
    assert_found(&looks((number + 1) % 4, Some(found(counter))), "false_key");
    let count = found(counter).count + 1;
    assert_found(&looks(number, Some(Found { count, ..found(counter) })), "false_count");
    let other = Some(Identity { publisher: 0, counter: counter + 1 });
    assert_found(&looks(number, Some(Found { message: other, ..found(counter) })), "false_sequence");
    assert_found(&looks(number, Some(Found { message: None, ..found(counter) })), "value_missing");
    assert_found(&looks(number, Some(Found { is_odd: true, ..found(counter) })), "damaged_message");
}

fn gate(state: &str, refuse: bool, dropped: u64) -> GateFigures {
    GateFigures {
        gate: "g0".into(),
        lag: CAPACITY / 2,
        refuse,
        state: state.into(),
        pid: Some(7),
        held: 1,
        dropped,
        refused: 0,
        turned_away: 0,
    }
}

#[test]
fn laps_of_a_gate_in_force_are_found() {
    let lapped = |refuse: bool, dropped: u64| -> Vec<String> {
        let mut publisher = publishes();
        publisher.push(Fact::Gates { gates: vec![gate("in-force", refuse, 0)] });
        publisher.push(Fact::Gates { gates: vec![gate("dropped", refuse, dropped)] });
        let times: [Time; 6] = [10, 11, 12, 150, 200, 900];
        let publisher = times.into_iter().zip(publisher).map(|(at, what)| Entry { at, what }).collect();
        let lap = Fact::Lapped { missed: u64::from(COUNT), resumed_at: u64::from(COUNT) + 1 };
        judge(publisher, at(50, reads(Start::Latest, false, 1, vec![lap])).into_iter().map(later).collect())
    };
    let is_found = |found: &[String]| found.iter().any(|name| name == "lapped_in_force");
    assert!(is_found(&lapped(true, 0)) && is_found(&lapped(true, 1)) && is_found(&lapped(false, 0)));
    assert!(!is_found(&lapped(false, 1)), "the publisher said that it dropped the gate");
}

/// Moves the event of a lap to a time after the publisher's report that the gate is in force.
fn later(entry: Entry<Fact>) -> Entry<Fact> {
    let at = if matches!(entry.what, Fact::Lapped { .. }) { 500 } else { entry.at };
    Entry { at, ..entry }
}

#[test]
fn refusals_need_a_reader_and_a_gate_that_refuses() {
    const LATE: Time = 8_000_000_000;
    let refused = |refuse: bool, gone: bool| {
        let mut publisher = at(10, publishes());
        let figures = GateFigures { refused: 3, held: 3, ..gate("in-force", refuse, 0) };
        let refusals = Fact::Refused { gate: "g0".into(), tried: false, count: 3, last: LATE };
        publisher.push(Entry { at: LATE + 1, what: refusals });
        publisher.push(Entry { at: LATE + 2, what: Fact::Gates { gates: vec![figures] } });
        let mut reader = at(2000, reads(Start::Latest, false, u64::from(COUNT) + 1, Vec::new()));
        if gone {
            reader.push(Entry { at: 3000, what: Fact::Closing });
        }
        judge(publisher, reader)
    };
    assert_eq!(refused(true, false), Vec::<String>::new());
    assert_found(&refused(true, true), "refused_for_nobody");
    assert_found(&refused(false, false), "refused_by_drop");
    let mut publisher = at(10, publishes());
    let figures = GateFigures { refused: 3, held: 3, ..gate("in-force", true, 0) };
    publisher.push(Entry { at: 900, what: Fact::Gates { gates: vec![figures] } });
    assert_found(&judge(publisher, Vec::new()), "false_figure");
}
