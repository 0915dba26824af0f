//! The state of `shmcast top`: the last figures of the channels, their rates, and the user's choices.
//!
//! This module uses no terminal, no clock and no channels. Its inputs are figures and keys, and its outputs are the rows to show.

use crate::cli::board::Row as BoardRow;
use serde::Serialize;
use shmcast::{ChannelStatus, LatencyStatus, ReaderStatus};
use std::collections::HashMap;
use std::time::Duration;

/// A key, as the action that the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    Sort,
    Help,
    Open,
    Board,
    Back,
    Up(usize),
    Down(usize),
    /// A key without an action.
    Other,
}

/// The order of rows. Numbers are in descending order. Names and process ids are in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Name,
    Rate,
    Lag,
    P99,
    Missed,
}

impl Order {
    const fn next(self) -> Self {
        match self {
            Self::Name => Self::Rate,
            Self::Rate => Self::Lag,
            Self::Lag => Self::P99,
            Self::P99 => Self::Missed,
            Self::Missed => Self::Name,
        }
    }

    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Rate => "rate",
            Self::Lag => "lag",
            Self::P99 => "p99",
            Self::Missed => "missed",
        }
    }
}

/// A row of the table of channels.
#[derive(Debug, Clone, Serialize)]
pub(super) struct ChannelRow {
    #[serde(flatten)]
    pub(super) status: ChannelStatus,
    pub(super) messages_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    /// The lag of the reader that lags most.
    pub(super) worst_lag: Option<u64>,
    /// The highest value of each percentile among its readers.
    pub(super) worst_latency_ns: Option<LatencyStatus>,
    /// The number of laps of its readers, summed over the readers.
    pub(super) lapped: u64,
    /// Messages its readers missed, summed over the readers.
    pub(super) missed: u64,
    /// Whether a reader was lapped or missed messages since the previous figures.
    pub(super) is_losing: bool,
    /// The rows of the readers, in the order of `status.readers`.
    #[serde(skip)]
    pub(super) readers: Vec<ReaderRow>,
}

/// A row of the table of readers.
#[derive(Debug, Clone)]
pub(super) struct ReaderRow {
    pub(super) status: ReaderStatus,
    pub(super) messages_per_second: Option<f64>,
    pub(super) is_losing: bool,
}

/// The state of everything on the screen.
#[derive(Debug)]
pub(super) struct Top {
    /// The host of the channels.
    pub(super) host: String,
    channels: Vec<ChannelRow>,
    looked_at: Duration,
    /// The reason why the last reading failed. The rows are then from an earlier reading.
    pub(super) error: Option<String>,
    pub(super) is_help_shown: bool,
    pub(super) channel_order: Order,
    pub(super) reader_order: Order,
    /// The name of the channel that the user chose. The name is kept and not the row number, because rows can change their order.
    chosen: Option<String>,
    /// The channel whose readers are shown.
    open: Option<String>,
    chosen_reader: usize,
    /// The board of the open channel, if the user wants to see it: its rows, or why they cannot be read.
    board: Option<Result<Vec<BoardRow>, String>>,
    chosen_key: usize,
}

impl Top {
    pub(super) fn new(host: String) -> Self {
        Self {
            host,
            channels: Vec::new(),
            looked_at: Duration::ZERO,
            error: None,
            is_help_shown: false,
            channel_order: Order::Name,
            reader_order: Order::Lag,
            chosen: None,
            open: None,
            chosen_reader: 0,
            board: None,
            chosen_key: 0,
        }
    }

    /// Takes the present figures of all channels. `now` counts from any fixed moment.
    pub(super) fn look(&mut self, now: Duration, channels: Result<Vec<ChannelStatus>, String>) {
        let channels = match channels {
            Ok(channels) => channels,
            Err(why) => {
                self.error = Some(why);
                return;
            }
        };
        let between = now.saturating_sub(self.looked_at).as_secs_f64();
        let before: HashMap<String, ChannelRow> =
            self.channels.drain(..).map(|row| (row.status.channel.clone(), row)).collect();
        let row = |status: ChannelStatus| {
            let earlier = before.get(&status.channel).filter(|earlier| earlier.status.uuid == status.uuid);
            channel_row(status, earlier, between)
        };
        self.channels = channels.into_iter().map(row).collect();
        (self.looked_at, self.error) = (now, None);
        if self.opened().is_none_or(|row| row.status.board.is_none()) {
            self.board = None;
        }
        if self.opened().is_none() {
            self.open = None;
        }
    }

    /// The channel whose board the user wants to see.
    pub(super) fn wanted_board(&self) -> Option<&str> {
        self.board.as_ref().and(self.open.as_deref())
    }

    /// Takes the present rows of the board of `channel`, if the user still wants to see them.
    pub(super) fn look_at_board(&mut self, channel: &str, rows: Result<Vec<BoardRow>, String>) {
        if self.wanted_board() == Some(channel) {
            self.board = Some(rows);
        }
    }

    /// The board that the user wants to see: its rows, or why they cannot be read.
    pub(super) fn board(&self) -> Option<&Result<Vec<BoardRow>, String>> {
        self.board.as_ref()
    }

    /// The index of the key that the user chose.
    pub(super) fn chosen_key(&self) -> usize {
        let count = self.board.as_ref().and_then(|rows| rows.as_ref().ok()).map_or(0, Vec::len);
        self.chosen_key.min(count.saturating_sub(1))
    }

    /// Does the action of a key. Returns true to quit.
    pub(super) fn press(&mut self, key: Key) -> bool {
        if self.is_help_shown && key != Key::Quit {
            self.is_help_shown = false;
            return false;
        }
        match key {
            Key::Quit => return true,
            Key::Help => self.is_help_shown = true,
            Key::Sort if self.open.is_some() => self.reader_order = self.reader_order.next(),
            Key::Sort => self.channel_order = self.channel_order.next(),
            Key::Open => {
                if self.open.is_none() {
                    self.open = self.rows().get(self.chosen_row()).map(|row| row.status.channel.clone());
                    self.chosen_reader = 0;
                }
            }
            Key::Board => self.show_board(),
            Key::Back if self.board.is_some() => self.board = None,
            Key::Back => self.open = None,
            Key::Other => {}
            Key::Up(rows) => self.go(|at| at.saturating_sub(rows)),
            Key::Down(rows) => self.go(|at| at.saturating_add(rows)),
        }
        false
    }

    /// Shows the board of the open channel, or of the chosen channel if none is open. If a board is shown, hides it. If the channel has no
    /// board, only opens the channel.
    fn show_board(&mut self) {
        if self.board.take().is_some() {
            return;
        }
        self.press(Key::Open);
        if self.opened().is_some_and(|row| row.status.board.is_some()) {
            (self.board, self.chosen_key) = (Some(Ok(Vec::new())), 0);
        }
    }

    fn go(&mut self, to: impl Fn(usize) -> usize) {
        if self.board.is_some() {
            self.chosen_key = to(self.chosen_key());
            self.chosen_key = self.chosen_key();
            return;
        }
        if self.open.is_some() {
            self.chosen_reader = to(self.chosen_reader());
            self.chosen_reader = self.chosen_reader();
            return;
        }
        let rows = self.rows();
        let row = to(self.chosen_row()).min(rows.len().saturating_sub(1));
        self.chosen = rows.get(row).map(|row| row.status.channel.clone());
    }

    /// The channels in the user's order.
    pub(super) fn rows(&self) -> Vec<&ChannelRow> {
        let mut rows: Vec<&ChannelRow> = self.channels.iter().collect();
        rows.sort_by(|a, b| {
            let by_order = match self.channel_order {
                Order::Name => std::cmp::Ordering::Equal,
                Order::Rate => descending(a.messages_per_second, b.messages_per_second),
                Order::Lag => b.worst_lag.cmp(&a.worst_lag),
                Order::P99 => p99(b.worst_latency_ns).cmp(&p99(a.worst_latency_ns)),
                Order::Missed => b.missed.cmp(&a.missed),
            };
            by_order.then_with(|| a.status.channel.cmp(&b.status.channel))
        });
        rows
    }

    /// The index of the channel that the user chose, in [`rows`](Self::rows); 0 if that channel does not exist any more.
    pub(super) fn chosen_row(&self) -> usize {
        let is_chosen = |row: &&ChannelRow| Some(&row.status.channel) == self.chosen.as_ref();
        self.rows().iter().position(is_chosen).unwrap_or(0)
    }

    /// The channel that the user opened.
    pub(super) fn opened(&self) -> Option<&ChannelRow> {
        let open = self.open.as_ref()?;
        self.channels.iter().find(|row| row.status.channel == *open)
    }

    /// The readers of the channel that is open, in the user's order.
    pub(super) fn reader_rows(&self) -> Vec<&ReaderRow> {
        let mut rows: Vec<&ReaderRow> = self.opened().map_or(Vec::new(), |row| row.readers.iter().collect());
        rows.sort_by(|a, b| {
            let by_order = match self.reader_order {
                Order::Name => std::cmp::Ordering::Equal,
                Order::Rate => descending(a.messages_per_second, b.messages_per_second),
                Order::Lag => b.status.lag.cmp(&a.status.lag),
                Order::P99 => p99(b.status.latency_ns).cmp(&p99(a.status.latency_ns)),
                Order::Missed => b.status.missed.cmp(&a.status.missed),
            };
            by_order.then_with(|| a.status.process.pid.cmp(&b.status.process.pid))
        });
        rows
    }

    /// The index of the reader that the user chose, in [`reader_rows`](Self::reader_rows).
    pub(super) fn chosen_reader(&self) -> usize {
        let count = self.opened().map_or(0, |row| row.readers.len());
        self.chosen_reader.min(count.saturating_sub(1))
    }

    /// All channels, for programs.
    pub(super) fn report(&self) -> &[ChannelRow] {
        &self.channels
    }
}

fn p99(latency: Option<LatencyStatus>) -> Option<u64> {
    latency.map(|latency| latency.p99)
}

fn descending(a: Option<f64>, b: Option<f64>) -> std::cmp::Ordering {
    b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0))
}

/// Returns the increase of a count per second, over `between` seconds. Returns `None` if the count fell: it then began again at 0, so the
/// two values cannot be compared.
fn rate(earlier: u64, later: u64, between: f64) -> Option<f64> {
    let more = later.checked_sub(earlier)?;
    (between > 0.0).then(|| more as f64 / between)
}

fn channel_row(status: ChannelStatus, earlier: Option<&ChannelRow>, between: f64) -> ChannelRow {
    // A process can have several readers of one channel. They are distinguished by their start times, and readers with equal start times by
    // their order.
    let mut before: HashMap<(Option<u32>, u64), Vec<&ReaderStatus>> = HashMap::new();
    for reader in earlier.iter().flat_map(|row| row.readers.iter().rev()) {
        before.entry((reader.status.process.pid, reader.status.started_at)).or_default().push(&reader.status);
    }
    let readers: Vec<ReaderRow> = status
        .readers
        .iter()
        .map(|reader| {
            let before = before.get_mut(&(reader.process.pid, reader.started_at)).and_then(Vec::pop);
            ReaderRow {
                status: reader.clone(),
                messages_per_second: before
                    .and_then(|before| rate(before.received, reader.received, between)),
                is_losing: before
                    .is_some_and(|before| reader.lapped > before.lapped || reader.missed > before.missed),
            }
        })
        .collect();
    let sum = |count: fn(&ReaderStatus) -> u64| {
        status.readers.iter().fold(0u64, |sum, reader| sum.saturating_add(count(reader)))
    };
    let published = |status: &ChannelStatus| status.next_sequence;
    ChannelRow {
        messages_per_second: earlier
            .and_then(|earlier| rate(published(&earlier.status)?, published(&status)?, between)),
        bytes_per_second: earlier
            .and_then(|earlier| rate(earlier.status.published_bytes, status.published_bytes, between)),
        worst_lag: status.readers.iter().filter_map(|reader| reader.lag).max(),
        worst_latency_ns: status.readers.iter().filter_map(|reader| reader.latency_ns).reduce(|a, b| {
            LatencyStatus {
                p50: a.p50.max(b.p50),
                p99: a.p99.max(b.p99),
                p999: a.p999.max(b.p999),
                max: a.max.max(b.max),
            }
        }),
        lapped: sum(|reader| reader.lapped),
        missed: sum(|reader| reader.missed),
        is_losing: readers.iter().any(|reader| reader.is_losing),
        readers,
        status,
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
pub(super) mod tests;
