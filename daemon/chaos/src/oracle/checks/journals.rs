//! Tests of the oracle with wrong logs of journals and of their readers.

use super::*;
use crate::story::{Change, Step};

/// Returns the names of the violations that the oracle finds. Publisher 0 published `published` messages, a reader with history received
/// `seen`, and the daemon's journal has `kept`.
fn judge_past(published: u32, seen: Vec<Fact>, kept: Vec<Fact>, deeds: Vec<Deed>) -> Vec<String> {
    judge_by(true, published, seen, kept, deeds)
}

fn judge_by(
    history_is_on: bool,
    published: u32,
    seen: Vec<Fact>,
    kept: Vec<Fact>,
    deeds: Vec<Deed>,
) -> Vec<String> {
    let mut history = History { profile: Some(Profile::Journal), ..History::default() };
    (history.channels, history.recorded) = (vec!["a".into()], vec!["a".into()]);
    let deeds = deeds.into_iter().chain([Deed::Over]).enumerate();
    history.deeds = deeds.map(|(n, what)| Entry { at: 500 + n as u64, what }).collect();
    history.add_actor("p", at(10, publishes(0, 1, 1, published)));
    let mut reader = reads(seen);
    if let Fact::Subscribing { history, .. } = &mut reader[0] {
        *history = history_is_on;
    }
    history.add_actor("r", at(2000, reader));
    history.add_actor("j", at(9000, journal("journals/a/STREAM", kept)));
    judge_history(&history).into_iter().map(|violation| violation.name).collect()
}

fn journal(dir: &str, kept: Vec<Fact>) -> Vec<Fact> {
    let mut facts = vec![Fact::Reading { channel: "a".into(), dir: dir.into(), next: 1 }];
    facts.extend(kept);
    facts
}

fn lost(from: u64, to: u64, cause: &str) -> Fact {
    Fact::Lost { from, to, cause: cause.into() }
}

fn live(sequence: u64) -> Fact {
    Fact::Live { sequence, since: 2000 }
}

/// More messages than the ring can hold.
const MANY: u32 = 3000;

fn all_kept() -> Vec<Fact> {
    vec![got(1, 0, 0, MANY), Fact::ReadOut { next: u64::from(MANY) + 1 }]
}

#[test]
fn a_reader_that_reads_the_past_and_is_live_again_is_well() {
    let seen = vec![got(1, 0, 0, MANY - 10), live(2991), got(2991, 0, MANY - 10, 10)];
    assert_eq!(judge_past(MANY, seen, all_kept(), Vec::new()), Vec::<String>::new());
    let end = |next| {
        vec![got(1, 0, 0, 500), lost(501, 2500, "overrun"), got(2501, 0, 2500, 500), Fact::ReadOut { next }]
    };
    let seen = || vec![got(1, 0, 0, 500), lost(501, 2500, "overrun"), got(2501, 0, 2500, 500)];
    assert_eq!(judge_past(MANY, seen(), end(3001), Vec::new()), Vec::<String>::new());
    assert_found(&judge_past(MANY, seen(), end(3002), Vec::new()), "silent_loss");
}

#[test]
fn messages_of_the_past_that_come_twice_or_not_at_all_are_found() {
    let seen = |at: u32| vec![got(1, 0, 0, 100), live(u64::from(at) + 1), got(u64::from(at) + 1, 0, at, 10)];
    assert_found(&judge_past(120, seen(99), Vec::new(), Vec::new()), "false_live");
    assert_found(&judge_past(120, seen(101), Vec::new(), Vec::new()), "false_live");
    let early = vec![got(1, 0, 0, 100), live(101)];
    assert_found(&judge_past(MANY, early, all_kept(), Vec::new()), "false_live");
    let seen = vec![got(1, 0, 0, 100), lost(102, 2500, "overrun"), got(2501, 0, 2500, 500)];
    assert_found(&judge_past(MANY, seen, Vec::new(), Vec::new()), "silent_loss");
}

#[test]
fn losses_without_a_cause_and_losses_of_what_is_kept_are_found() {
    let seen = |cause: &str| vec![got(1, 0, 0, 500), lost(501, 2500, cause), got(2501, 0, 2500, 500)];
    assert_found(&judge_past(MANY, seen("overrun"), all_kept(), Vec::new()), "lost_and_kept");
    assert_found(&judge_past(MANY, seen("damaged"), Vec::new(), Vec::new()), "lost_without_cause");
    let few = vec![got(1, 0, 0, 100), lost(101, 110, "overrun"), got(111, 0, 110, 10)];
    assert_found(&judge_past(120, few, Vec::new(), Vec::new()), "lost_without_cause");
    let lapped =
        || vec![got(1, 0, 0, 500), Fact::Lapped { missed: 2000, resumed_at: 2501 }, got(2501, 0, 2500, 500)];
    assert_found(&judge_past(MANY, lapped(), all_kept(), Vec::new()), "lost_and_kept");
    assert!(judge_by(false, MANY, lapped(), all_kept(), Vec::new()).is_empty(), "it wants no history");
    let given_up = Step::Reload { channel: 0, change: Change::Journal };
    let deeds = vec![Deed::Step { index: 0, step: given_up }];
    assert!(judge_past(MANY, lapped(), all_kept(), deeds).is_empty(), "there was no journal for a while");
}

#[test]
fn a_reader_of_the_ring_alone_is_told_nothing_of_a_journal() {
    let seen = vec![got(1, 0, 0, 100), live(101), got(101, 0, 100, 10)];
    assert_found(&judge_by(false, 120, seen, Vec::new(), Vec::new()), "unasked_past");
}

#[test]
fn a_recorder_that_stands_still_for_no_reason_is_found() {
    let seen = || vec![got(1, 0, 0, 100), Fact::Stalled { sequence: 101 }];
    assert_found(&judge_past(120, seen(), Vec::new(), Vec::new()), "stalled_without_cause");
    let crash = Step::Crash { whom: crate::story::Whom::Daemon };
    let deeds = vec![Deed::Step { index: 0, step: crash }];
    assert!(!judge_past(120, seen(), Vec::new(), deeds).contains(&"stalled_without_cause".to_owned()));
}

fn ran(arguments: &[&str], code: i32, out: &str) -> Deed {
    Deed::Ran {
        host: 0,
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        code: Some(code),
        out: out.into(),
        err: String::new(),
        took_ms: 1,
    }
}

#[test]
fn journals_that_are_damaged_or_lack_their_end_are_found() {
    let all = || vec![got(1, 0, 0, 10), Fact::ReadOut { next: 11 }];
    let judge = |kept, deed| judge_past(10, vec![got(1, 0, 0, 10)], kept, vec![deed]);
    let verify = |code| ran(&["journal", "verify", "journals/a/STREAM", "--json"], code, "");
    assert!(judge(all(), verify(0)).is_empty() && judge(all(), verify(3)).is_empty());
    assert_found(&judge(all(), verify(4)), "damaged_journal");
    let last =
        |sequence| Deed::Last { channel: "a".into(), message: first(0, 9), sequence, epoch: 1, mode: None };
    assert!(judge(all(), last(10)).is_empty());
    assert_found(&judge(all(), last(11)), "journal_incomplete");
    let stat = |written: u64| {
        let status = serde_json::json!({ "channel": "a", "journal": { "written": written, "durable": 3 } });
        ran(&["stat", "a", "--json"], 0, &status.to_string())
    };
    assert!(judge(all(), stat(10)).is_empty());
    assert_found(&judge(all(), stat(11)), "recorded_and_gone");
    assert_found(&judge(vec![got(1, 0, 0, 10)], last(10)), "unreadable_journal");
}

#[test]
fn a_message_that_a_journal_has_with_other_bytes_is_found() {
    let mut kept = vec![got(1, 0, 0, 10), Fact::ReadOut { next: 11 }];
    if let Fact::Got { bytes, .. } = &mut kept[0] {
        *bytes += 1;
    }
    assert_found(&judge_past(10, vec![got(1, 0, 0, 10)], kept, Vec::new()), "false_length");
    let kept = vec![got(1, 0, 0, 4), got(4, 0, 3, 7), Fact::ReadOut { next: 11 }];
    assert_found(&judge_past(10, vec![got(1, 0, 0, 10)], kept, Vec::new()), "backwards");
}

/// A reload gives the channel a new stream. Later the channel has the journal of the earlier stream again, so its sequences continue
/// after the reserve of this journal.
#[test]
fn a_stream_that_begins_after_its_journal_begins_with_its_first_publisher() {
    let behind = (1 << 32) + 2;
    let judge = |rest: Vec<Fact>| {
        let mut history = History { profile: Some(Profile::Journal), ..History::default() };
        (history.channels, history.recorded) = (vec!["a".into()], vec!["a".into()]);
        let remove = Step::Reload { channel: 0, change: Change::Remove };
        let restarts = Deed::MayRestart { channel: "a".into(), why: "a reload".into() };
        let deeds = [Deed::Step { index: 0, step: remove }, restarts, Deed::Over];
        history.deeds = deeds.map(|what| Entry { at: 500, what }).to_vec();
        history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
        history.add_actor("q", at(900, publishes(1, behind, 2, 10)));
        let seen = [got(1, 0, 0, 10), Fact::Restarted, Fact::Restarted].into_iter().chain(rest).collect();
        history.add_actor("r", at(2000, reads(seen)));
        let found = judge_history(&history).into_iter().map(|violation| violation.name);
        found.collect::<Vec<String>>()
    };
    assert_eq!(judge(vec![got(behind, 1, 0, 10)]), Vec::<String>::new());
    assert_found(&judge(vec![got(behind + 1, 1, 1, 9)]), "silent_loss");
    let lapped = |missed| vec![Fact::Lapped { missed, resumed_at: behind + 4 }, got(behind + 4, 1, 4, 6)];
    assert_found(&judge(lapped(3)), "false_count");
    assert!(!judge(lapped(4)).contains(&"false_count".to_owned()));
}

#[test]
fn a_reader_that_begins_between_skipped_sequences_is_told_of_the_reserve() {
    let behind = (1 << 32) + 2;
    let judge = |to: u64| {
        let mut history = History { profile: Some(Profile::Journal), ..History::default() };
        (history.channels, history.recorded) = (vec!["a".into()], vec!["a".into()]);
        let remove = Step::Reload { channel: 0, change: Change::Remove };
        let restarts = Deed::MayRestart { channel: "a".into(), why: "a reload".into() };
        let deeds = [Deed::Step { index: 0, step: remove }, restarts, Deed::Over];
        history.deeds = deeds.map(|what| Entry { at: 500, what }).to_vec();
        history.add_actor("p", at(10, publishes(0, 1, 1, 10)));
        history.add_actor("q", at(900, publishes(1, behind, 2, 10)));
        let sought = [Fact::Seeking { to: behind - 100 }, Fact::Sought { error: None }];
        let seen = sought.into_iter().chain([lost(behind - 100, to, "reserve")]).collect();
        let mut reader = reads(seen);
        if let Fact::Subscribing { history, .. } = &mut reader[0] {
            *history = true;
        }
        history.add_actor("r", at(2000, reader));
        let found = judge_history(&history).into_iter().map(|violation| violation.name);
        found.collect::<Vec<String>>()
    };
    assert_eq!(judge(behind - 1), Vec::<String>::new());
    assert_found(&judge(behind), "lost_without_cause");
}
