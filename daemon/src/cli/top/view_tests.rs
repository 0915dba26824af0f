use super::super::state::Key;
use super::super::state::tests::channel;
use super::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use shmcast::ChannelStatus;
use std::time::Duration;

fn screen(top: &Top, columns: u16, lines: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).unwrap();
    terminal.draw(|frame| draw(frame, top)).unwrap();
    terminal.backend().buffer().clone()
}

fn text_of(buffer: &Buffer) -> String {
    let line = |y| (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..buffer.area.height).map(|y| format!("{}\n", line(y).trim_end())).collect()
}

fn red_of(buffer: &Buffer) -> String {
    let red = |x, y| buffer[(x, y)].fg == Color::Red;
    let line = |y| {
        (0..buffer.area.width)
            .map(|x| if red(x, y) { buffer[(x, y)].symbol() } else { " " })
            .collect::<String>()
    };
    (0..buffer.area.height)
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// A hundred readers, of which one is slow, one was lapped long ago, and one is being lapped.
fn busy(now: u64) -> Vec<ChannelStatus> {
    let next = 1 + 250_000 * now;
    let readers: Vec<_> = (0..100)
        .map(|i| match i {
            17 => (20_017, 250_000 * now - 31_000, 0),
            42 => (20_042, 250_000 * now - 5_000, 5_000),
            77 => (20_077, 250_000 * now - 90_000 * now, 80_000 * now),
            _ => (20_000 + i, 250_000 * now - u64::from(i % 3), 0),
        })
        .collect();
    let idle = ChannelStatus {
        state: "closed".into(),
        publisher: None,
        ..channel("reference-data.eurex.T7", 77, &[])
    };
    vec![channel("ticks", next, &readers), idle, channel("orders", 1 + 12 * now, &[(20_005, 12 * now, 0)])]
}

fn top() -> Top {
    let mut top = Top::new("the daemon at /run/shmcast/control.sock".into());
    top.look(Duration::from_secs(1), Ok(busy(1)));
    top.look(Duration::from_secs(2), Ok(busy(2)));
    top
}

#[test]
fn channels_at_80x24() {
    insta::assert_snapshot!(text_of(&screen(&top(), 80, 24)));
}

#[test]
fn channels_at_40x12() {
    insta::assert_snapshot!(text_of(&screen(&top(), 40, 12)));
}

#[test]
fn readers_at_40x12() {
    let mut top = top();
    top.press(Key::Down(usize::MAX));
    top.press(Key::Open);
    insta::assert_snapshot!(text_of(&screen(&top, 40, 12)));
}

/// Everything that looks like a number in the rows of the table, except names.
fn numbers(top: &Top, columns: u16) -> Vec<String> {
    let text = text_of(&screen(top, columns, 10));
    let rows = text.lines().skip(3).take(20);
    let words = rows
        .flat_map(|row| row.split_whitespace().filter(|word| word.starts_with(|c: char| c.is_ascii_digit())));
    words.map(str::to_owned).collect()
}

#[test]
fn a_number_that_a_narrow_terminal_cuts_to_a_smaller_one() {
    let mut opened = top();
    opened.press(Key::Down(usize::MAX));
    opened.press(Key::Open);
    for top in [&top(), &opened, &gated()] {
        let whole = numbers(top, 300);
        for columns in (8..=150).chain([200, 300]) {
            let cut = numbers(top, columns).into_iter().find(|number| !whole.contains(number));
            assert_eq!(cut, None, "at {columns} columns:\n{}", text_of(&screen(top, columns, 10)));
        }
    }
}

#[test]
fn channels_at_200x50() {
    insta::assert_snapshot!(text_of(&screen(&top(), 200, 50)));
}

#[test]
fn readers_at_80x24() {
    let mut top = top();
    top.press(Key::Down(usize::MAX));
    top.press(Key::Open);
    insta::assert_snapshot!(text_of(&screen(&top, 80, 24)));
}

#[test]
fn readers_at_200x50() {
    let mut top = top();
    top.press(Key::Down(usize::MAX));
    top.press(Key::Open);
    top.press(Key::Down(99));
    insta::assert_snapshot!(text_of(&screen(&top, 200, 50)));
}

/// A channel with a board and two gates that was opened.
fn gated() -> Top {
    let gate = |name: &str, more: serde_json::Value| {
        let mut gate = serde_json::json!({
            "gate": name, "lag_bytes": 32 << 20, "wait_ns": 200_000, "refuse": false, "state": "absent", "reader": null,
            "behind_bytes": null, "behind_messages": null, "held": 0, "longest_ns": 0, "total_ns": 0, "waits_ns": null,
            "dropped": 0, "refused": 0, "turned_away": 0, "impossible": 0
        });
        gate.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(gate).unwrap()
    };
    let journal = serde_json::json!({
        "state": "in-force", "reader": {"pid": 811, "uid": 0, "command": "shmcastd"}, "behind_bytes": 3 << 20,
        "behind_messages": 24_000, "held": 12_345_678, "longest_ns": 4_200_000, "total_ns": 61_000_000_000_u64,
        "waits_ns": {"p50": 100, "p99": 190_000, "p999": 1_000_000, "max": 4_200_000}, "dropped": 7, "refused": 3,
        "turned_away": 97
    });
    let board = serde_json::json!({
        "keys": 1024, "room": 1024, "value_bytes": 256, "key": [0, 8], "through": 499_999, "since": 1, "refused": 31,
        "too_large": 0, "no_key": 2
    });
    let status = ChannelStatus {
        gates: vec![gate("journal", journal), gate("wan", serde_json::json!({}))],
        board: Some(serde_json::from_value(board).unwrap()),
        ..channel("orders", 500_000, &[(20_017, 400_000, 0), (20_018, 499_999, 0)])
    };
    let mut top = Top::new("here".into());
    top.look(Duration::from_secs(1), Ok(vec![status]));
    top.press(Key::Open);
    top
}

#[test]
fn gates_and_a_board_at_80x24() {
    insta::assert_snapshot!(text_of(&screen(&gated(), 80, 24)));
}

#[test]
fn gates_and_a_board_at_40x12() {
    insta::assert_snapshot!(text_of(&screen(&gated(), 40, 12)));
}

#[test]
fn gates_and_a_board_at_200x50() {
    insta::assert_snapshot!(text_of(&screen(&gated(), 200, 50)));
}

/// The channel of [`gated`], whose board is shown.
fn board() -> Top {
    let row = |number: u64| BoardRow {
        key: format!("SYM{number:05}"),
        value: format!("SYM{number:05} {}.25", 100 + number),
        bytes: "16".into(),
        sequence: format!("499,{number:03}"),
        count: "1,024".into(),
        tag: "0".into(),
        age: "12.3 ms".into(),
    };
    let mut top = gated();
    top.press(Key::Board);
    top.look_at_board("orders", Ok((0..1024).map(row).collect()));
    top.press(Key::Down(3));
    top
}

#[test]
fn keys_of_a_board_at_80x24() {
    insta::assert_snapshot!(text_of(&screen(&board(), 80, 24)));
}

#[test]
fn keys_of_a_board_at_40x12() {
    insta::assert_snapshot!(text_of(&screen(&board(), 40, 12)));
}

#[test]
fn a_board_that_cannot_be_read_is_told() {
    let mut top = board();
    top.look_at_board("orders", Err("you may not read orders".into()));
    assert!(red_of(&screen(&top, 80, 24)).contains("you may not read orders"));
}

#[test]
fn help_at_80x24() {
    let mut top = top();
    top.press(Key::Help);
    insta::assert_snapshot!(text_of(&screen(&top, 80, 24)));
}

#[test]
fn red_is_loss_and_nothing_else() {
    let mut top = top();
    assert!(red_of(&screen(&top, 80, 24)).starts_with("ticks active"), "the channel is losing now");
    top.press(Key::Down(usize::MAX));
    top.press(Key::Open);
    for _ in 0..2 {
        top.press(Key::Sort); // missed
    }
    let red = red_of(&screen(&top, 200, 50));
    assert!(red.starts_with("20077 strategy 1000"), "{red}");
    assert!(red.ends_with("5 5000"), "of the one that was lapped long ago only the counts: {red}");
    assert_eq!(red.matches("strategy").count(), 1, "{red}");
}

#[test]
fn a_daemon_that_went_away_is_told_with_what_was_seen() {
    let mut top = top();
    top.look(Duration::from_secs(3), Err("nothing answers at /run/shmcast/control.sock".into()));
    let text = text_of(&screen(&top, 80, 24));
    assert!(
        text.contains("ticks ") && text.contains("\nwhat is shown is older: nothing answers at"),
        "{text}"
    );
}

#[test]
fn no_size_of_terminal_panics() {
    let (mut opened, mut helped) = (top(), top());
    opened.press(Key::Open);
    helped.press(Key::Help);
    let empty = Top::new("nowhere".into());
    for top in [&top(), &opened, &helped, &empty, &gated(), &board()] {
        for (columns, lines) in [(1, 1), (2, 3), (20, 5), (79, 2), (119, 24), (500, 200)] {
            screen(top, columns, lines);
        }
    }
}

#[test]
fn a_count_wider_than_its_column() {
    for exponent in 0..64 {
        for n in [1u64 << exponent, (1u64 << exponent) - 1, u64::MAX >> exponent] {
            assert!(count(n).chars().count() <= 6, "{n}: {}", count(n));
        }
    }
    let shown = [0, 99_999, 100_000, 999_999, 12_345_678, 4_560_000_000].map(count);
    assert_eq!(shown, ["0", "99999", "100k", "1000k", "12.3M", "4.56G"]);
}

#[test]
fn a_name_that_moves_the_cursor() {
    let mut hostile = channel("t", 10, &[(1, 1, 0)]);
    hostile.readers[0].process.command = Some("x\x1b[2J\ny".into());
    let mut top = Top::new("here".into());
    top.look(Duration::from_secs(1), Ok(vec![hostile]));
    top.press(Key::Open);
    assert!(text_of(&screen(&top, 80, 24)).contains("x?[2J?y"));
}
