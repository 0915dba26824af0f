//! Tests of the oracle. For each demand there are logs that break the demand, and logs that do not. An oracle that finds nothing in any log
//! would prove nothing.

mod boards;
mod journals;

use super::{History, judge_history};
use crate::log::{Deed, Entry, Fact};
use crate::payload::{Identity, Sizes, total_bytes};
use crate::story::{Profile, Start};

const LARGEST: usize = 8192;
const CAPACITY: u64 = 65536;

/// Makes log entries with ascending times, which begin at `from`.
fn at(from: u64, facts: Vec<Fact>) -> Vec<Entry<Fact>> {
    facts.into_iter().enumerate().map(|(n, what)| Entry { at: from + n as u64, what }).collect()
}

fn first(publisher: u32, counter: u32) -> Identity {
    Identity { publisher, counter }
}

/// Returns the facts of a publisher that opens the channel at sequence `next` and publishes `count` messages.
fn publishes(publisher: u32, next: u64, epoch: u64, count: u32) -> Vec<Fact> {
    vec![
        Fact::Opening { channel: "a".into(), publisher },
        Fact::Opened { next, epoch, capacity: CAPACITY, largest: LARGEST },
        Fact::Publishing { first: first(publisher, 0), count, sizes: Sizes::Line, next, old: false },
        Fact::Published { count, next: next + u64::from(count), error: None },
    ]
}

fn got(sequence: u64, publisher: u32, counter: u32, count: u32) -> Fact {
    let first = first(publisher, counter);
    Fact::Got { sequence, first, count, bytes: total_bytes(first, count, Sizes::Line, LARGEST), old: 0 }
}

fn subscribing() -> Fact {
    let (channel, start) = ("a".into(), Start::Oldest);
    Fact::Subscribing { channel, host: 0, start, page: true, history: false, skip: false }
}

fn reads(mut seen: Vec<Fact>) -> Vec<Fact> {
    let mut all = vec![subscribing(), Fact::Subscribed { next: 1, refused: false }];
    all.append(&mut seen);
    all
}

/// Returns the names of the violations that the oracle finds. Publisher 0 published ten messages, and reader `r` received `seen`.
fn judge(seen: Vec<Fact>) -> Vec<String> {
    judge_with(seen, Vec::new(), Vec::new())
}

fn judge_with(seen: Vec<Fact>, more: Vec<(&str, Vec<Entry<Fact>>)>, deeds: Vec<Deed>) -> Vec<String> {
    let mut history = History { profile: Some(Profile::Strict), ..History::default() };
    let deeds = deeds.into_iter().chain([Deed::Over]).enumerate();
    history.deeds = deeds.map(|(n, what)| Entry { at: 500 + n as u64, what }).collect();
    history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
    for (actor, entries) in more {
        history.add_actor(actor, entries);
    }
    history.add_actor("r", at(2000, reads(seen)));
    judge_history(&history).into_iter().map(|violation| violation.name).collect()
}

fn assert_found(found: &[String], name: &str) {
    assert!(found.iter().any(|found| found == name), "{name} was not found, but {found:?}");
}

#[test]
fn nothing_is_found_where_all_is_well() {
    assert_eq!(judge(vec![got(1, 0, 0, 10)]), Vec::<String>::new());
    let next = at(900, publishes(1, 11, 2, 5));
    let seen = vec![got(1, 0, 0, 10), Fact::NewEpoch { epoch: 2 }, got(11, 1, 0, 5)];
    assert_eq!(judge_with(seen, vec![("q", next)], Vec::new()), Vec::<String>::new());
}

#[test]
fn false_messages_are_found() {
    assert_found(&judge(vec![got(2, 0, 0, 1)]), "false_sequence");
    assert_found(&judge(vec![got(1, 0, 0, 11)]), "unpublished_message");
    assert_found(&judge(vec![got(1, 7, 0, 1)]), "foreign_message");
    let longer = Fact::Got { sequence: 1, first: first(0, 0), count: 1, bytes: 5000, old: 0 };
    assert_found(&judge(vec![longer]), "false_length");
    let head = "00".repeat(24);
    let odd = Fact::Odd { sequence: 1, length: 40, tag: 0, key: false, head };
    assert_found(&judge(vec![odd]), "damaged_message");
    assert_found(&judge(vec![Fact::End]), "false_end");
    assert_found(&judge(vec![Fact::NewEpoch { epoch: 9 }]), "false_epoch");
    assert_found(&judge(vec![Fact::NewSession { identity: "X".into() }]), "false_session");
}

#[test]
fn a_message_of_one_who_was_replaced_is_found() {
    // After five messages, another publisher replaces the first one and continues its sequences.
    let next = at(900, publishes(1, 6, 2, 5));
    let taken = vec![Deed::TakingOver { channel: "a".into() }];
    let mut history = History { profile: Some(Profile::Strict), ..History::default() };
    history.deeds = taken.into_iter().chain([Deed::Over]).map(|what| Entry { at: 5, what }).collect();
    let mut entries = at(1, publishes(0, 1, 1, 10));
    entries[3].at = 950;
    history.add_actor("p", entries);
    history.add_actor("q", next);
    history.add_actor("r", at(2000, reads(vec![got(1, 0, 0, 6)])));
    let found: Vec<String> = judge_history(&history).into_iter().map(|violation| violation.name).collect();
    assert_found(&found, "void_message");
}

#[test]
fn wrong_order_is_found() {
    assert_found(&judge(vec![got(1, 0, 0, 3), got(2, 0, 1, 1)]), "backwards");
    let sought =
        vec![got(1, 0, 0, 3), Fact::Seeking { to: 2 }, Fact::Sought { error: None }, got(2, 0, 1, 9)];
    assert_eq!(judge(sought), Vec::<String>::new());
}

#[test]
fn silent_losses_are_found() {
    assert_found(&judge(vec![got(1, 0, 0, 2), got(4, 0, 3, 1)]), "silent_loss");
    let lapped = Fact::Lapped { missed: 3, resumed_at: 4 };
    assert_found(&judge(vec![got(1, 0, 0, 2), lapped]), "false_count");
    let next = at(900, publishes(1, 11, 2, 5));
    let seen = vec![got(1, 0, 0, 10), got(11, 1, 0, 5)];
    assert_found(&judge_with(seen, vec![("q", next)], Vec::new()), "silent_epoch");
    // The channel restarts, and no reader gets an event about the restart.
    let next = at(900, publishes(1, 1, 1, 5));
    let removed = vec![Deed::MayRestart { channel: "a".into(), why: "removed".into() }];
    let seen = vec![got(1, 0, 0, 10), got(1, 1, 0, 5)];
    assert_found(&judge_with(seen, vec![("q", next.clone())], removed.clone()), "silent_restart");
    let seen = vec![got(1, 0, 0, 10), Fact::Restarted, got(1, 1, 0, 5)];
    assert_eq!(judge_with(seen, vec![("q", next)], removed), Vec::<String>::new());
}

/// Two publishers began the channel at sequence 1, so the channel has two lives. A reader gets an empty message, whose content does not
/// show its life.
///
/// - If both lives have an empty message with this sequence, the oracle must take the life that the reader reads.
/// - If only the other life has an empty message with this sequence, the oracle must report that the reader changed lives without an event.
#[test]
fn a_message_that_says_nothing_is_of_the_beginning_that_is_read() {
    const COUNT: u32 = 4000;
    let begins = |publisher| {
        vec![
            Fact::Opening { channel: "a".into(), publisher },
            Fact::Opened { next: 1, epoch: 1, capacity: CAPACITY, largest: LARGEST },
            Fact::Publishing {
                first: first(publisher, 0),
                count: COUNT,
                sizes: Sizes::Tiny,
                next: 1,
                old: false,
            },
            Fact::Published { count: COUNT, next: 1 + u64::from(COUNT), error: None },
        ]
    };
    let is_empty = |publisher, counter| first(publisher, counter).length(Sizes::Tiny, LARGEST) == 0;
    let both = (0..COUNT).find(|at| is_empty(0, *at) && is_empty(1, *at)).expect("one in 256");
    let other = (0..COUNT).find(|at| is_empty(0, *at) && !is_empty(1, *at)).expect("one in 16");
    let judge = |seen: Vec<Fact>| {
        let mut history = History { profile: Some(Profile::Strict), ..History::default() };
        let removed = Deed::MayRestart { channel: "a".into(), why: "removed".into() };
        history.deeds = vec![Entry { at: 500, what: removed }, Entry { at: 501, what: Deed::Over }];
        history.add_actor("p", at(10, begins(0)));
        history.add_actor("q", at(900, begins(1)));
        history.add_actor("r", at(2000, reads(seen)));
        judge_history(&history).into_iter().map(|violation| violation.name).collect::<Vec<_>>()
    };
    let odd = |counter: u32| Fact::Odd {
        sequence: u64::from(counter) + 1,
        length: 0,
        tag: 0,
        key: false,
        head: String::new(),
    };
    let got = |from: u32, count: u32| {
        let bytes = total_bytes(first(1, from), count, Sizes::Tiny, LARGEST);
        Fact::Got { sequence: u64::from(from) + 1, first: first(1, from), count, bytes, old: 0 }
    };
    let sought = |to: u32| [Fact::Seeking { to: u64::from(to) + 1 }, Fact::Sought { error: None }];
    assert_eq!(judge(vec![got(0, both), odd(both), got(both + 1, 5)]), Vec::<String>::new());
    // If the reader receives the empty message first, the next message shows to which life both messages belong.
    let [seeking, done] = sought(both);
    assert_eq!(judge(vec![seeking, done, odd(both), got(both + 1, 5)]), Vec::<String>::new());
    assert_found(&judge(vec![got(0, other), odd(other)]), "silent_restart");
}

/// A message could come from either of two publishers. The oracle must take the publisher whose epoch was just reported.
#[test]
fn a_message_that_says_nothing_is_of_the_epoch_that_was_told() {
    const COUNT: u32 = 4000;
    let opens = |publisher, epoch, next: u64, count| {
        vec![
            Fact::Opening { channel: "a".into(), publisher },
            Fact::Opened { next, epoch, capacity: CAPACITY, largest: LARGEST },
            Fact::Publishing { first: first(publisher, 0), count, sizes: Sizes::Tiny, next, old: false },
            Fact::Published { count, next: next + u64::from(count), error: None },
        ]
    };
    let is_empty = |publisher, counter| first(publisher, counter).length(Sizes::Tiny, LARGEST) == 0;
    // Publisher 2 begins its epoch with an empty message. The earlier life also had an empty message at this sequence.
    let at_both = (1..COUNT).find(|at| is_empty(0, *at) && is_empty(2, 0)).map(|at| (2, at));
    let (second, before) = at_both.unwrap_or_else(|| {
        let publisher = (3..1000).find(|publisher| is_empty(*publisher, 0)).expect("one in 16");
        (publisher, (1..COUNT).find(|at| is_empty(0, *at)).expect("one in 16"))
    });
    let mut history = History { profile: Some(Profile::Strict), ..History::default() };
    let removed = Deed::MayRestart { channel: "a".into(), why: "removed".into() };
    history.deeds = vec![Entry { at: 500, what: removed }, Entry { at: 501, what: Deed::Over }];
    history.add_actor("p", at(10, opens(0, 1, 1, COUNT)));
    history.add_actor("q", at(900, opens(1, 1, 1, before)));
    let sequence = u64::from(before) + 1;
    history.add_actor("s", at(1000, opens(second, 2, sequence, 100)));
    let empty = Fact::Odd { sequence, length: 0, tag: 0, key: false, head: String::new() };
    let bytes = total_bytes(first(second, 1), 5, Sizes::Tiny, LARGEST);
    let rest = Fact::Got { sequence: sequence + 1, first: first(second, 1), count: 5, bytes, old: 0 };
    let sought = [Fact::Seeking { to: sequence }, Fact::Sought { error: None }];
    let seen = sought.into_iter().chain([Fact::NewEpoch { epoch: 2 }, empty, rest]);
    history.add_actor("r", at(2000, reads(seen.collect())));
    let found: Vec<_> = judge_history(&history).into_iter().map(|violation| violation.name).collect();
    assert_eq!(found, Vec::<String>::new());
}

/// A reader got the event of a new epoch, and then seeks within the messages of the new publisher. The reader must not get the event again,
/// no matter which message it receives first.
#[test]
fn an_epoch_is_told_once() {
    let mut next = publishes(1, 11, 2, 0);
    next.truncate(2);
    next.extend([
        Fact::Gapping { to: 20, next: 11 },
        Fact::Gapped { next: 21, error: None },
        Fact::Publishing { first: first(1, 0), count: 5, sizes: Sizes::Line, next: 21, old: false },
        Fact::Published { count: 5, next: 26, error: None },
    ]);
    let next = vec![("q", at(900, next))];
    let gap = Fact::Gap { from: 11, to: 20 };
    let sought = [Fact::Seeking { to: 12 }, Fact::Sought { error: None }, gap.clone(), got(21, 1, 0, 5)];
    let mut seen = vec![got(1, 0, 0, 10), Fact::NewEpoch { epoch: 2 }];
    seen.extend(sought);
    assert_eq!(judge_with(seen, next.clone(), Vec::new()), Vec::<String>::new());
    let seen = vec![got(1, 0, 0, 10), gap, got(21, 1, 0, 5)];
    assert_found(&judge_with(seen, next, Vec::new()), "silent_epoch");
}

#[test]
fn losses_without_cause_are_found() {
    let lapped = Fact::Lapped { missed: 3, resumed_at: 6 };
    assert_found(&judge(vec![got(1, 0, 0, 2), lapped, got(6, 0, 5, 1)]), "lapped_without_cause");
    assert_found(&judge(vec![got(1, 0, 0, 2), Fact::Gap { from: 3, to: 4 }]), "false_gap");
    // The next publisher begins at the same sequence as the previous publisher, although the previous one had published.
    let next = at(900, publishes(1, 1, 2, 5));
    assert_found(&judge_with(Vec::new(), vec![("q", next)], Vec::new()), "forgotten");
    let next = at(900, publishes(1, 14, 2, 5));
    assert_found(&judge_with(Vec::new(), vec![("q", next)], Vec::new()), "sequences_jump");
}

#[test]
fn lives_that_end_badly_are_found() {
    assert_found(&judge(vec![got(1, 0, 0, 10), Fact::Finished { found: false }]), "last_message_missing");
    let late = Fact::Late {
        call: "Deadline".into(),
        asked_us: 20_000,
        took_us: 2_000_000,
        ran_us: 0,
        waited_us: 100_000,
    };
    assert_found(&judge(vec![late]), "late");
    let failed = Fact::RecvFailed { kind: "Corrupt".into(), why: String::new() };
    assert_found(&judge(vec![failed]), "receive_failed");
    let ended = |code, signal, sent| Deed::Ended { who: "p".into(), code, signal, sent, said: String::new() };
    assert_found(&judge_with(Vec::new(), Vec::new(), vec![ended(Some(101), None, false)]), "died");
    assert_found(&judge_with(Vec::new(), Vec::new(), vec![ended(None, Some(11), true)]), "died");
    assert_eq!(judge_with(Vec::new(), Vec::new(), vec![ended(None, Some(9), true)]), Vec::<String>::new());
    let silent = Deed::NoAnswer { who: "r".into(), order: String::new() };
    assert_found(&judge_with(Vec::new(), Vec::new(), vec![silent]), "hangs");
}

#[test]
fn a_stopped_actor_is_not_late() {
    let late =
        |took_us| Fact::Late { call: "Deadline".into(), asked_us: 20_000, took_us, ran_us: 0, waited_us: 0 };
    let mut history = History { profile: Some(Profile::Files), ..History::default() };
    let signal =
        |at, signal: &str| Entry { at, what: Deed::Signalled { who: "r".into(), signal: signal.into() } };
    history.deeds =
        vec![signal(1_000_000_000, "STOP"), signal(3_000_000_000, "CONT"), Entry { at: 9, what: Deed::Over }];
    history.add_actor("r", at(3_000_000_100, reads(vec![late(2_100_000)])));
    assert!(judge_history(&history).is_empty());
    history.add_actor("r", at(3_000_000_100, reads(vec![late(2_900_000)])));
    assert_eq!(judge_history(&history)[0].name, "late");
}

#[test]
fn other_peoples_things_are_found() {
    let changed = Deed::Changed { what: "precious/id".into() };
    assert_found(&judge_with(Vec::new(), Vec::new(), vec![changed]), "foreign_file_changed");
    let left = Deed::Left { what: "channels/a".into() };
    assert_found(&judge_with(Vec::new(), Vec::new(), vec![left]), "left_over");
}

#[test]
fn a_log_that_is_flooded_is_found() {
    let logged = |lines| Deed::Logged { who: "daemon".into(), lines, ms: 2500 };
    assert_eq!(judge_with(Vec::new(), Vec::new(), vec![logged(800)]), Vec::<String>::new());
    assert_found(&judge_with(Vec::new(), Vec::new(), vec![logged(801)]), "floods_the_log");
}

fn at_rest(arguments: &[&str], out: &str) -> Vec<Deed> {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    vec![
        Deed::Started { who: "r".into(), pid: 77 },
        Deed::Last {
            channel: "a".into(),
            message: first(0, 9),
            sequence: 10,
            epoch: 1,
            mode: Some("strict".into()),
        },
        Deed::AtRest,
        Deed::Ran { host: 0, arguments, code: Some(0), out: out.into(), err: String::new(), took_ms: 1 },
    ]
}

#[test]
fn tools_that_say_something_else_are_found() {
    let seen = || vec![got(1, 0, 0, 10), Fact::Finished { found: true }];
    let stat = |next: u64, received: u64| {
        format!(
            r#"{{"channel":"a","state":"active","mode":"strict","epoch":1,"next_sequence":{next},
                "readers":[{{"pid":77,"received":{received},"lapped":0,"missed":0}}]}}"#
        )
    };
    let judge = |out: &str| judge_with(seen(), Vec::new(), at_rest(&["stat", "a", "--json"], out));
    assert_eq!(judge(&stat(11, 10)), Vec::<String>::new());
    assert_found(&judge(&stat(10, 10)), "false_figure");
    assert_found(&judge(&stat(11, 9)), "false_figure");
    assert_found(&judge(&stat(11, 10).replace("strict", "takeover")), "false_figure");
    assert_found(&judge(&stat(11, 10).replace("77", "78")), "false_reader");
    assert_found(&judge(&stat(11, 10).replace("77", "78")), "missing_reader");
    assert_found(&judge("no JSON"), "tool_failed");
    let metrics = "shmcast_channel_sequence{channel=\"a\"} 10\nshmcast_channel_epoch{channel=\"a\"} 1\n";
    let judge = |out: &str| judge_with(seen(), Vec::new(), at_rest(&["GET /metrics"], out));
    assert_eq!(judge(metrics), Vec::<String>::new());
    assert_found(&judge(&metrics.replace("10", "9")), "false_figure");
}

/// Judges a story in which one actor has the facts `facts` and the runner has the actions `deeds`. Returns the names of the violations.
fn judge_alone(actor: &str, facts: Vec<Fact>, deeds: Vec<Deed>) -> Vec<String> {
    let mut history = History { profile: Some(Profile::Files), ..History::default() };
    let deeds = deeds.into_iter().chain([Deed::Over]);
    history.deeds = deeds.map(|what| Entry { at: 500, what }).collect();
    history.add_actor(actor, at(10, facts));
    judge_history(&history).into_iter().map(|violation| violation.name).collect()
}

#[test]
fn openings_that_must_not_fail_are_found() {
    let failed = |kind: &str, why: &str| Fact::OpenFailed { kind: kind.into(), why: why.into() };
    let publisher = || Fact::Opening { channel: "a".into(), publisher: 0 };
    let denied = || failed("Os", "create the reader page: Permission denied (os error 13)");
    assert_found(&judge_alone("r", vec![subscribing(), denied()], Vec::new()), "open_failed");
    assert!(judge_alone("p", vec![publisher(), denied()], Vec::new()).is_empty());
    let corrupt = || failed("Locate.Corrupt", "corrupt");
    assert_found(&judge_alone("p1", vec![publisher(), corrupt()], Vec::new()), "open_failed");
    assert!(judge_alone("t1", vec![publisher(), corrupt()], Vec::new()).is_empty(), "it was tampered with");
}

#[test]
fn a_mode_that_was_not_asked_for_is_found() {
    let mut facts = publishes(0, 1, 1, 5);
    facts.insert(2, Fact::Mode { wanted: 0o755, found: 0o755 });
    assert!(judge_alone("p", facts.clone(), Vec::new()).is_empty());
    facts[2] = Fact::Mode { wanted: 0o755, found: 0o700 };
    assert_found(&judge_alone("p", facts, Vec::new()), "false_mode");
}

#[test]
fn a_reader_that_passes_over_messages_at_rest_is_found() {
    let nothing = || reads(vec![Fact::Nothing { next: 1, lag: 3 }]);
    assert_found(&judge_alone("u1", nothing(), Vec::new()), "nothing_received");
    assert!(judge_alone("r1", nothing(), Vec::new()).is_empty(), "its publisher may be about to lap it");
}

/// When a receiving bridge ends together with its daemon, the stream does not end. So a reader must not get the event of an end.
#[test]
fn an_end_that_no_publisher_made_is_found_far_away() {
    let Fact::Subscribing { channel, start, page, history, skip, .. } = subscribing() else { panic!() };
    let mut far = vec![Fact::Subscribing { channel, host: 1, start, page, history, skip }];
    far.extend([Fact::Subscribed { next: 1, refused: false }, got(1, 0, 0, 10), Fact::End]);
    let mut history = History { profile: Some(Profile::Strict), ..History::default() };
    let (who, code, said) = ("far".to_owned(), Some(0), String::new());
    let deeds = [Deed::Ended { who, code, signal: None, sent: true, said }, Deed::Over];
    history.deeds = deeds.into_iter().map(|what| Entry { at: 500, what }).collect();
    history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
    history.add_actor("r", at(2000, far));
    let found: Vec<String> = judge_history(&history).into_iter().map(|violation| violation.name).collect();
    assert_found(&found, "false_end");
}

#[test]
fn an_end_before_the_last_message_is_found() {
    let judge = |end| {
        let mut history = History { profile: Some(Profile::Files), ..History::default() };
        history.deeds = vec![Entry { at: 500, what: Deed::Over }];
        let mut publishes = publishes(0, 1, 1, 10);
        publishes.extend([Fact::Closing, Fact::Closed]);
        history.add_actor("p", at(10, publishes));
        history.add_actor("r", at(2000, reads(vec![got(1, 0, 0, end), Fact::End])));
        judge_history(&history).into_iter().map(|violation| violation.name).collect::<Vec<_>>()
    };
    assert!(judge(10).is_empty(), "{:?}", judge(10));
    assert_found(&judge(4), "false_end");
}

#[test]
fn a_part_of_a_line_is_found() {
    let piped = |messages: &[&str]| {
        let messages = messages.iter().map(|message| (*message).to_owned()).collect();
        vec![Deed::Piped { lines: vec!["line 0".into()], messages }]
    };
    assert!(judge_alone("r", Vec::new(), piped(&["line 0"])).is_empty());
    assert_found(&judge_alone("r", Vec::new(), piped(&["line 0", "li"])), "unpublished_message");
}

/// On a strict channel, each publisher has its own segment. A reader that attaches later cannot reach the segment of the first publisher,
/// so the event of a lap is allowed.
#[test]
fn a_reader_that_begins_in_an_earlier_segment_may_be_lapped() {
    let judge = |strict: &[&str]| {
        let mut history = History { profile: Some(Profile::Bridge), ..History::default() };
        history.strict = strict.iter().map(|name| (*name).to_owned()).collect();
        history.deeds = vec![Entry { at: 500, what: Deed::Over }];
        history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
        history.add_actor("q", at(100, publishes(1, 11, 2, 5)));
        let seen =
            vec![Fact::Lapped { missed: 10, resumed_at: 11 }, Fact::NewEpoch { epoch: 2 }, got(11, 1, 0, 5)];
        history.add_actor("r", at(2000, reads(seen)));
        judge_history(&history).into_iter().map(|violation| violation.name).collect::<Vec<_>>()
    };
    assert!(judge(&["a"]).is_empty(), "{:?}", judge(&["a"]));
    assert_found(&judge(&[]), "lapped_without_cause");
}

#[test]
fn a_death_that_is_told_too_soon_or_of_nobody_is_found() {
    let gone = |seen: u32, epoch: u64| vec![got(1, 0, 0, seen), Fact::PublisherGone { epoch }];
    let judge = |seen: Vec<Fact>, signal: &str| {
        let mut history = History { profile: Some(Profile::Files), ..History::default() };
        let killed = Deed::Signalled { who: "p".into(), signal: signal.into() };
        history.deeds = vec![Entry { at: 500, what: killed }, Entry { at: 501, what: Deed::Over }];
        history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
        history.add_actor("w1", at(2000, reads(seen)));
        judge_history(&history).into_iter().map(|violation| violation.name).collect::<Vec<_>>()
    };
    assert!(judge(gone(10, 1), "KILL").is_empty(), "{:?}", judge(gone(10, 1), "KILL"));
    assert_found(&judge(gone(9, 1), "KILL"), "early_death");
    assert_found(&judge(gone(10, 1), "STOP"), "false_death");
    assert_found(&judge(gone(10, 2), "KILL"), "false_death");
    assert_found(&judge(vec![got(1, 0, 0, 10)], "KILL"), "death_not_told");
    // Two publishers die, but only one death is reported.
    let mut history = History { profile: Some(Profile::Files), ..History::default() };
    let killed =
        |at, who: &str| Entry { at, what: Deed::Signalled { who: who.into(), signal: "KILL".into() } };
    history.deeds = vec![killed(500, "p"), killed(1500, "q"), Entry { at: 1501, what: Deed::Over }];
    history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
    history.add_actor("q", at(1000, publishes(1, 11, 2, 5)));
    history.add_actor("w1", at(2000, reads(gone(10, 1))));
    let found: Vec<_> = judge_history(&history).into_iter().map(|violation| violation.name).collect();
    assert_found(&found, "death_not_told");
}
