//! The display of `shmcast top`: one table over the whole terminal, with one line above it and one below it.
//!
//! If the terminal is narrow, the display leaves out the least important columns. Red always means loss. This module only decides positions
//! and colours.

use super::state::{ChannelRow, ReaderRow, Top};
use crate::cli::board::Row as BoardRow;
use crate::cli::figures::{Ns, counted, is_seen, printable, readers_of, readers_shown, size};
use crate::cli::ls::{publisher_of, who};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Block, Cell, Clear, Padding, Paragraph, Row, Table, TableState};
use shmcast::LatencyStatus;
use shmcast::control::{BoardStatus, GateReport};
use std::ops::RangeInclusive;

const HEADING: Style = Style::new().add_modifier(Modifier::BOLD);
const DIM: Style = Style::new().fg(Color::DarkGray);
const LOSS: Style = Style::new().fg(Color::Red);
const CHOSEN: Style = Style::new().add_modifier(Modifier::REVERSED);

const HELP: &str = "\
up down, j k     choose a row; PgUp PgDn Home End go further
enter, right     show the readers of a channel
b                show the board of a channel: the last message of each key
esc, left        back to the readers, and to all channels
s                sort by the next column: name, rate, lag, p99, missed
q, Ctrl-C        quit

LAG              messages published and not yet read; of the slowest reader
P50 P99 MAX      from publish to receipt since each reader began;
                 of all readers the highest. - if none records it
LAPPED MISSED    times readers were overtaken, and messages they lost by it
HELD WAITED      messages that waited for a gate's reader, and for how long
red              loss: a number if it ever happened, a row if it happens now

Any key closes this.";

/// The smallest and the largest width of a column of names.
const NAMES: RangeInclusive<u16> = 8..=40;

/// One column of a table: its heading, its width in characters, and the content of its cells. With width 0, the column takes the rest of
/// the line.
struct Column<T> {
    heading: &'static str,
    width: u16,
    is_number: bool,
    /// The smallest width of the terminal at which this column is shown. At this width, the terminal has room for this column and for all
    /// columns with a smaller `from`. On a narrower terminal, the table would cut off digits of numbers.
    from: u16,
    cell: fn(&T) -> String,
    /// Whether the cell shows a loss: a number that should be 0 and is not.
    is_loss: fn(&T) -> bool,
}

const fn text<T>(heading: &'static str, width: u16, from: u16, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, width, is_number: false, from, cell, is_loss: |_| false }
}

const fn number<T>(heading: &'static str, width: u16, from: u16, cell: fn(&T) -> String) -> Column<T> {
    Column { heading, width, is_number: true, from, cell, is_loss: |_| false }
}

const fn loss<T>(
    heading: &'static str,
    width: u16,
    from: u16,
    cell: fn(&T) -> String,
    is_loss: fn(&T) -> bool,
) -> Column<T> {
    Column { heading, width, is_number: true, from, cell, is_loss }
}

const CHANNEL_COLUMNS: &[Column<ChannelRow>] = &[
    text("CHANNEL", 0, 0, |row| row.status.channel.clone()),
    text("STATE", 10, 60, |row| row.status.state.clone()),
    text("PUBLISHER", 22, 120, |row| publisher_of(&row.status, "-", "?")),
    number("EPOCH", 6, 140, |row| known(row, row.status.epoch.to_string())),
    number("CAPACITY", 10, 140, |row| known(row, size(row.status.capacity_bytes))),
    number("NEWEST", 8, 140, |row| optional(row.status.next_sequence, |next| count(next.saturating_sub(1)))),
    number("MSG/S", 6, 29, |row| per_second(row.messages_per_second)),
    number("B/S", 6, 100, |row| per_second(row.bytes_per_second)),
    number("READERS", 7, 45, |row| readers_shown(&row.status)),
    number("LAG", 6, 15, |row| optional(row.worst_lag, count)),
    number("P50", 7, 70, |row| latency(row.worst_latency_ns, |l| l.p50)),
    number("P99", 7, 37, |row| latency(row.worst_latency_ns, |l| l.p99)),
    number("P99.9", 7, 120, |row| latency(row.worst_latency_ns, |l| l.p999)),
    number("MAX", 7, 78, |row| latency(row.worst_latency_ns, |l| l.max)),
    loss("LAPPED", 6, 22, |row| count(row.lapped), |row| row.lapped > 0),
    loss("MISSED", 6, 100, |row| count(row.missed), |row| row.missed > 0),
];

/// Returns the figure, or `-` if the channel's header is not valid.
fn known(row: &ChannelRow, figure: String) -> String {
    if row.status.capacity_bytes > 0 { figure } else { "-".to_owned() }
}

const READER_COLUMNS: &[Column<ReaderRow>] = &[
    number("PID", 7, 0, |row| optional(row.status.process.pid, |pid| pid.to_string())),
    text("COMMAND", 0, 16, |row| row.status.process.command.clone().unwrap_or_default()),
    number("UID", 6, 120, |row| optional(row.status.process.uid, |uid| uid.to_string())),
    number("BEGAN AT", 8, 140, |row| count(row.status.started_at)),
    number("MSG/S", 6, 37, |row| per_second(row.messages_per_second)),
    number("RECEIVED", 8, 100, |row| count(row.status.received)),
    number("LAG", 6, 23, |row| optional(row.status.lag, count)),
    number("P50", 7, 70, |row| latency(row.status.latency_ns, |l| l.p50)),
    number("P99", 7, 45, |row| latency(row.status.latency_ns, |l| l.p99)),
    number("P99.9", 7, 120, |row| latency(row.status.latency_ns, |l| l.p999)),
    number("MAX", 7, 78, |row| latency(row.status.latency_ns, |l| l.max)),
    loss("LAPPED", 6, 54, |row| count(row.status.lapped), |row| row.status.lapped > 0),
    loss("MISSED", 6, 30, |row| count(row.status.missed), |row| row.status.missed > 0),
];

const GATE_COLUMNS: &[Column<GateReport>] = &[
    text("GATE", 0, 0, |gate| gate.terms.gate.clone()),
    text("STATE", 8, 24, |gate| gate.state.clone()),
    text("READER", 22, 98, |gate| gate.reader.as_ref().map_or("-".to_owned(), who)),
    number("BEHIND", 10, 35, |gate| optional(gate.behind_bytes, size)),
    number("LIMIT", 10, 109, |gate| size(gate.terms.lag_bytes)),
    number("HELD", 6, 15, |gate| count(gate.held)),
    number("WAITED", 7, 43, |gate| Ns(gate.total_ns).to_string()),
    number("P99", 7, 75, |gate| latency(gate.waits_ns, |l| l.p99)),
    number("MAX", 7, 67, |gate| Ns(gate.longest_ns).to_string()),
    number("DROPPED", 7, 51, |gate| count(gate.dropped)),
    number("REFUSED", 7, 59, |gate| count(gate.refused.saturating_add(gate.turned_away))),
];

const BOARD_COLUMNS: &[Column<BoardRow>] = &[
    text("KEY", 0, 0, |row| row.key.clone()),
    text("VALUE", 30, 39, |row| row.value.clone()),
    number("BYTES", 7, 100, |row| row.bytes.clone()),
    number("SEQUENCE", 14, 54, |row| row.sequence.clone()),
    number("MESSAGES", 12, 76, |row| row.count.clone()),
    number("TAG", 5, 100, |row| row.tag.clone()),
    number("AGE", 8, 63, |row| row.age.clone()),
];

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, top: &Top) {
    let opened = top.opened();
    let status = opened.map(|row| &row.status);
    let boards = status.map_or(0, |status| u16::from(status.board.is_some()));
    let gates: Vec<&GateReport> = status.iter().flat_map(|status| &status.gates).collect();
    // At least half of the terminal is for the readers.
    let room = (frame.area().height / 2).saturating_sub(3 + boards);
    let gate_lines = if gates.is_empty() { 0 } else { (gates.len() as u16 + 1).min(room) };
    let heights = [
        Constraint::Length(2 + boards),
        Constraint::Length(gate_lines),
        Constraint::Min(1),
        Constraint::Length(1),
    ];
    let [above, beside, middle, below] = Layout::vertical(heights).areas(frame.area());
    let first = if middle.height > 1 { usize::from(middle.height) - 1 } else { 1 };
    let shown = match opened {
        Some(row) => {
            frame.render_widget(Paragraph::new(channel_lines(row, above.width)), above);
            table(frame, beside, GATE_COLUMNS, &gates, |_| false, None);
            match top.board() {
                Some(board) => board_table(frame, middle, top, board),
                None => {
                    let rows = top.reader_rows();
                    table(
                        frame,
                        middle,
                        READER_COLUMNS,
                        &rows,
                        |row| row.is_losing,
                        Some(top.chosen_reader()),
                    );
                    place(top.chosen_reader(), rows.len(), first, "reader")
                }
            }
        }
        None => {
            frame.render_widget(Paragraph::new(host_lines(top, above.width)), above);
            let rows = top.rows();
            table(frame, middle, CHANNEL_COLUMNS, &rows, |row| row.is_losing, Some(top.chosen_row()));
            place(top.chosen_row(), rows.len(), first, "channel")
        }
    };
    let shown = if shown.len() < usize::from(below.width) { shown } else { String::new() };
    let [left, right] = Layout::horizontal([Constraint::Min(0), Constraint::Length(shown.len() as u16)])
        .spacing(1)
        .areas(below);
    frame.render_widget(Paragraph::new(keys(top)), left);
    frame.render_widget(Paragraph::new(Line::styled(shown, DIM)), right);
    if let Some(error) = &top.error {
        frame.render_widget(Clear, below);
        frame.render_widget(
            Paragraph::new(Line::styled(format!("what is shown is older: {error}"), LOSS)),
            below,
        );
    }
    if top.is_help_shown {
        help(frame);
    }
}

/// Draws the keys of a board, or why the board cannot be read. Returns the place of the chosen key.
fn board_table(
    frame: &mut Frame<'_>,
    area: Rect,
    top: &Top,
    board: &Result<Vec<BoardRow>, String>,
) -> String {
    match board {
        Ok(rows) => {
            let rows: Vec<&BoardRow> = rows.iter().collect();
            table(frame, area, BOARD_COLUMNS, &rows, |_| false, Some(top.chosen_key()));
            place(top.chosen_key(), rows.len(), usize::from(area.height).saturating_sub(1).max(1), "key")
        }
        Err(error) => {
            frame.render_widget(Paragraph::new(Line::styled(cut(error.clone(), area.width), LOSS)), area);
            String::new()
        }
    }
}

fn host_lines(top: &Top, width: u16) -> Text<'static> {
    let rows = top.rows();
    let readers: usize = rows.iter().map(|row| readers_of(&row.status)).sum();
    let rate = rows.iter().filter_map(|row| row.messages_per_second).reduce(|sum, rate| sum + rate);
    let totals = format!(
        "{}, {}, {} messages a second",
        counted(rows.len(), "channel"),
        counted(readers, "reader"),
        per_second(rate)
    );
    let empty = if rows.is_empty() { ": publish one with `shmcast pub NAME`" } else { "" };
    Text::from(vec![
        Line::styled(cut(format!("shmcast  {}", top.host), width), HEADING),
        Line::raw(cut(format!("{totals}{empty}"), width)),
    ])
}

fn channel_lines(row: &ChannelRow, width: u16) -> Text<'static> {
    let status = &row.status;
    let publisher = publisher_of(status, "none", "unknown");
    let next = optional(status.next_sequence, |next| count(next.saturating_sub(1)));
    let readers = match is_seen(status, "readers") {
        true => counted(readers_of(status), "reader"),
        false => "readers unknown".to_owned(),
    };
    let first = format!("{}  {}, {readers}", status.channel, status.state);
    let second = format!(
        "publisher {publisher}, epoch {}, newest {next}, {} msg/s, ring {}",
        status.epoch,
        per_second(row.messages_per_second),
        size(status.capacity_bytes)
    );
    let second = match status.error.clone() {
        Some(error) => Line::styled(cut(error, width), LOSS),
        None => Line::raw(cut(second, width)),
    };
    let mut lines = vec![Line::styled(cut(first, width), HEADING), second];
    lines.extend(status.board.as_ref().map(|board| Line::raw(cut(board_line(board), width))));
    Text::from(lines)
}

/// Describes the keys of the board, and the messages that it left out.
fn board_line(board: &BoardStatus) -> String {
    let left_out =
        [(board.refused, "no room"), (board.too_large, "too large"), (board.no_key, "without a key")];
    let left_out = left_out.into_iter().filter(|(messages, _)| *messages > 0);
    let left_out: String = left_out.map(|(messages, why)| format!(", {} {why}", count(messages))).collect();
    format!(
        "board {} of {} keys, up to {}{left_out}",
        count(board.keys),
        count(board.room),
        count(board.through)
    )
}

/// Cuts a line that is too long. Cuts it between two words, so that no number loses digits.
fn cut(text: String, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    let whole = kept.rsplit_once(' ').map_or("", |(whole, _)| whole.trim_end());
    format!("{whole} …")
}

fn keys(top: &Top) -> Line<'static> {
    let (enter, order) = match top.opened() {
        Some(_) if top.board().is_some() => return Line::styled("q quit  esc back  ? help", DIM),
        Some(_) => ("esc back", top.reader_order),
        None => ("enter readers", top.channel_order),
    };
    Line::styled(format!("q quit  s sort by {}  {enter}  ? help", order.word()), DIM)
}

/// The position of the chosen row in a table that is longer than the screen.
fn place(chosen: usize, count: usize, visible: usize, what: &str) -> String {
    if count <= visible { String::new() } else { format!("{what} {} of {count}", chosen + 1) }
}

fn table<T>(
    frame: &mut Frame<'_>,
    area: Rect,
    columns: &[Column<T>],
    rows: &[&T],
    is_losing: fn(&T) -> bool,
    chosen: Option<usize>,
) {
    let columns: Vec<&Column<T>> = columns.iter().filter(|column| column.from <= area.width).collect();
    // The column of names gets the remaining width, within its limits. A wider column would make it hard to follow a row with the eye.
    let taken: u16 = columns.iter().map(|column| column.width + 1).sum();
    let left = (area.width + 1).saturating_sub(taken).clamp(*NAMES.start(), *NAMES.end());
    let widths = columns.iter().map(|column| if column.width == 0 { left } else { column.width });
    let align = |column: &Column<T>, text: String, style: Style| {
        let line = Line::styled(text, style);
        Cell::from(if column.is_number { line.right_aligned() } else { line })
    };
    let heading = columns.iter().map(|column| align(column, column.heading.to_owned(), HEADING));
    let body = rows.iter().map(|row| {
        let cells = columns.iter().map(|column| {
            let style = if is_losing(row) || (column.is_loss)(row) { LOSS } else { Style::new() };
            align(column, printable(&(column.cell)(row)), style)
        });
        Row::new(cells.collect::<Vec<_>>())
    });
    let table = Table::new(body.collect::<Vec<_>>(), widths.collect::<Vec<_>>())
        .header(Row::new(heading.collect::<Vec<_>>()))
        .column_spacing(1)
        .row_highlight_style(CHOSEN);
    let mut state = TableState::new().with_selected(chosen.filter(|_| !rows.is_empty()));
    frame.render_stateful_widget(table, area, &mut state);
}

fn help(frame: &mut Frame<'_>) {
    let wanted = HELP.lines().map(|line| line.chars().count()).max().unwrap_or(0) as u16 + 4;
    let lines = HELP.lines().count() as u16 + 2;
    let area = frame.area();
    let (width, height) = (wanted.min(area.width), lines.min(area.height));
    let area = Rect::new((area.width - width) / 2, (area.height - height) / 2, width, height);
    let block = Block::bordered().title(" shmcast top ").padding(Padding::horizontal(1));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(HELP).block(block), area);
}

fn optional<T>(value: Option<T>, show: impl FnOnce(T) -> String) -> String {
    value.map_or("-".to_owned(), show)
}

fn latency(latency: Option<LatencyStatus>, pick: fn(&LatencyStatus) -> u64) -> String {
    optional(latency, |latency| Ns(pick(&latency)).to_string())
}

fn per_second(rate: Option<f64>) -> String {
    optional(rate, |rate| count(rate.round() as u64))
}

/// Formats a count in at most five characters: 99999, 100k, 12.3M, 4.56G.
fn count(count: u64) -> String {
    let n = count as f64;
    let (value, unit) = match count {
        0..100_000 => return count.to_string(),
        100_000..1_000_000 => (n / 1e3, "k"),
        1_000_000..1_000_000_000 => (n / 1e6, "M"),
        1_000_000_000..1_000_000_000_000 => (n / 1e9, "G"),
        1_000_000_000_000..1_000_000_000_000_000 => (n / 1e12, "T"),
        _ => (n / 1e15, "P"),
    };
    let decimals = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.decimals$}{unit}")
}

#[cfg(test)]
#[path = "view_tests.rs"]
mod tests;
