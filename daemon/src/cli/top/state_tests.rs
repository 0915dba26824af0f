use super::*;
use serde_json::json;

/// A channel with readers as `(pid, received, missed)`, of a publisher that published `next - 1` messages of 100 bytes.
pub(in crate::cli::top) fn channel(name: &str, next: u64, readers: &[(u32, u64, u64)]) -> ChannelStatus {
    let readers: Vec<_> = readers
        .iter()
        .map(|(pid, received, missed)| {
            let p50 = 100 + u64::from(*pid % 100) * 10;
            json!({
                "pid": pid, "uid": 1000, "command": "strategy", "role": "reader", "next_sequence": received + missed + 1,
                "lag": next.saturating_sub(received + missed + 1), "received": received,
                "lapped": missed.div_ceil(1000), "missed": missed, "started_at": 1,
                "latency_ns": {"p50": p50, "p99": p50 * 7, "p999": p50 * 40, "max": p50 * 900}
            })
        })
        .collect();
    serde_json::from_value(json!({
        "channel": name, "state": "active", "publisher": {"pid": 4711, "uid": 1000, "command": "feed"},
        "epoch": 3, "capacity_bytes": 64 << 20, "max_message_bytes": 4096, "uuid": "u", "created_ns": 0,
        "clock": "counter", "clock_hz": 1, "schema_id": 0, "schema": "", "labels": "",
        "published_bytes": (next - 1) * 100, "oldest_sequence": 1, "next_sequence": next, "mode": "takeover",
        "readers": readers
    }))
    .unwrap()
}

const SECOND: Duration = Duration::from_secs(1);

fn two_looks(first: Vec<ChannelStatus>, second: Vec<ChannelStatus>) -> Top {
    let mut top = Top::new("the daemon".into());
    top.look(SECOND, Ok(first));
    top.look(3 * SECOND, Ok(second));
    top
}

#[test]
fn a_rate_of_less_or_more_than_the_time_between_looks() {
    let top = two_looks(vec![channel("t", 1001, &[(7, 900, 0)])], vec![channel("t", 5001, &[(7, 3900, 0)])]);
    let row = &top.rows()[0];
    assert_eq!(row.messages_per_second, Some(2000.0));
    assert_eq!(row.bytes_per_second, Some(200_000.0));
    assert_eq!(row.readers[0].messages_per_second, Some(1500.0));
    assert_eq!(row.worst_lag, Some(1100));
}

#[test]
fn a_channel_made_anew_under_the_same_name_has_a_huge_rate() {
    let anew = ChannelStatus { uuid: "another".into(), ..channel("t", 5001, &[]) };
    let top = two_looks(vec![channel("t", 1001, &[])], vec![anew, channel("new", 9, &[])]);
    assert!(top.rows().iter().all(|row| row.messages_per_second.is_none() && row.bytes_per_second.is_none()));
    let fewer = two_looks(vec![channel("t", 5001, &[])], vec![channel("t", 1001, &[])]);
    assert_eq!(fewer.rows()[0].messages_per_second, None);
}

#[test]
fn losing_is_what_happened_since_the_look_before() {
    let long_ago = [(7, 10, 500)];
    let quiet = two_looks(vec![channel("t", 1001, &long_ago)], vec![channel("t", 2001, &long_ago)]);
    assert!(!quiet.rows()[0].is_losing);
    let now = two_looks(vec![channel("t", 1001, &long_ago)], vec![channel("t", 2001, &[(7, 10, 501)])]);
    assert!(now.rows()[0].is_losing && now.rows()[0].readers[0].is_losing);
    assert_eq!((now.rows()[0].missed, now.rows()[0].lapped), (501, 1));
}

#[test]
fn two_readers_in_one_process_are_taken_for_each_other() {
    let top = two_looks(
        vec![channel("t", 1001, &[(7, 100, 0), (7, 500, 0)])],
        vec![channel("t", 1001, &[(7, 300, 0), (7, 900, 0)])],
    );
    let rates: Vec<_> = top.rows()[0].readers.iter().map(|reader| reader.messages_per_second).collect();
    assert_eq!(rates, [Some(100.0), Some(200.0)]);
}

#[test]
fn a_choice_that_moves_to_another_channel_when_rows_do() {
    let mut top = two_looks(
        vec![channel("a", 10, &[]), channel("b", 10, &[]), channel("c", 10, &[])],
        vec![channel("a", 10, &[]), channel("b", 100, &[]), channel("c", 20, &[])],
    );
    let chosen = |top: &Top| top.rows()[top.chosen_row()].status.channel.clone();
    assert_eq!(chosen(&top), "a");
    assert!(!top.press(Key::Down(1)));
    assert_eq!(chosen(&top), "b");
    top.press(Key::Sort);
    let order: Vec<_> = top.rows().iter().map(|row| row.status.channel.clone()).collect();
    assert_eq!((order.join(""), chosen(&top)), ("bca".to_owned(), "b".to_owned()));
    top.press(Key::Down(usize::MAX));
    assert_eq!(chosen(&top), "a");
    top.press(Key::Up(usize::MAX));
    assert_eq!(chosen(&top), "b");
    top.look(4 * SECOND, Ok(vec![channel("a", 10, &[])]));
    assert_eq!(chosen(&top), "a", "b has gone");
}

#[test]
fn an_open_channel_that_goes_away_leaves_the_list() {
    let mut top =
        two_looks(vec![channel("a", 10, &[(1, 1, 0)])], vec![channel("a", 10, &[(1, 1, 0), (2, 9, 0)])]);
    top.press(Key::Open);
    assert_eq!(top.opened().map(|row| row.status.channel.as_str()), Some("a"));
    assert_eq!(top.reader_rows()[0].status.process.pid, Some(1), "the one with the largest lag");
    top.press(Key::Down(5));
    assert_eq!(top.chosen_reader(), 1);
    top.look(4 * SECOND, Ok(vec![channel("a", 10, &[(1, 1, 0)])]));
    assert_eq!(top.chosen_reader(), 0);
    top.look(5 * SECOND, Ok(vec![]));
    assert!(top.opened().is_none() && top.reader_rows().is_empty());
    top.press(Key::Open);
    top.press(Key::Down(1));
    assert!(top.opened().is_none(), "nothing to open");
    top.look(6 * SECOND, Ok(vec![channel("a", 10, &[])]));
    assert!(top.opened().is_none(), "it does not open by itself when it comes back");
}

#[test]
fn a_board_is_shown_while_its_channel_has_one_and_the_user_wants_it() {
    let with_board = |name: &str| {
        let board = json!({
            "keys": 1, "room": 9, "value_bytes": 64, "key": [0, 8], "through": 9, "since": 1, "refused": 0, "too_large": 0, "no_key": 0
        });
        ChannelStatus { board: Some(serde_json::from_value(board).unwrap()), ..channel(name, 10, &[]) }
    };
    let row = |key: &str| {
        let [value, bytes, sequence, count, tag, age] = ["v", "1", "9", "1", "0", "1 s"].map(str::to_owned);
        BoardRow { key: key.to_owned(), value, bytes, sequence, count, tag, age }
    };
    let mut top =
        two_looks(vec![with_board("a"), channel("b", 10, &[])], vec![with_board("a"), channel("b", 20, &[])]);
    top.press(Key::Board);
    assert_eq!((top.opened().is_some(), top.wanted_board()), (true, Some("a")));
    top.look_at_board("a", Ok(vec![row("x"), row("y")]));
    top.press(Key::Down(9));
    assert_eq!(top.chosen_key(), 1);
    top.look_at_board("b", Ok(vec![]));
    assert_eq!(top.chosen_key(), 1, "rows of another board");
    top.press(Key::Back);
    assert!(top.wanted_board().is_none() && top.opened().is_some());
    top.look_at_board("a", Ok(vec![row("x")]));
    assert!(top.board().is_none(), "it is not wanted any more");
    top.press(Key::Board);
    top.press(Key::Board);
    assert!(top.wanted_board().is_none(), "the key also hides it");
    top.press(Key::Board);
    top.look(4 * SECOND, Ok(vec![channel("a", 10, &[]), channel("b", 20, &[])]));
    assert!(top.wanted_board().is_none() && top.opened().is_some(), "the channel has no board now");
    top.press(Key::Board);
    assert!(top.wanted_board().is_none());
}

#[test]
fn a_failed_look_keeps_what_was_seen_and_says_so() {
    let mut top = two_looks(vec![channel("a", 10, &[])], vec![channel("a", 20, &[])]);
    top.look(4 * SECOND, Err("the daemon has gone".into()));
    assert_eq!((top.rows().len(), top.error.as_deref()), (1, Some("the daemon has gone")));
    top.look(5 * SECOND, Ok(vec![channel("a", 30, &[])]));
    assert_eq!((top.error.as_ref(), top.rows()[0].messages_per_second), (None, Some(5.0)));
}

#[test]
fn every_key_leaves_the_help_and_only_one_quits() {
    let mut top = two_looks(vec![], vec![]);
    top.press(Key::Help);
    assert!(top.is_help_shown && !top.press(Key::Sort));
    assert_eq!((top.is_help_shown, top.channel_order), (false, Order::Name));
    top.press(Key::Help);
    assert!(top.press(Key::Quit));
}

#[test]
fn orders_go_round() {
    let mut order = Order::Name;
    let words: Vec<_> = (0..5)
        .map(|_| {
            order = order.next();
            order.word()
        })
        .collect();
    assert_eq!(words, ["rate", "lag", "p99", "missed", "name"]);
}
