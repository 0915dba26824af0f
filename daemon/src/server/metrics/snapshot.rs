//! All metrics at one moment, as plain data. They are gathered in one pass over the registry.

use super::Hiccups;
use super::buckets::Latencies;
use crate::server::bridges::BridgeFigures;
use crate::server::registry::Measured;
use crate::server::state::ServerState;
use shmcast::control::{JournalStatus, RefusalCode};
use shmcast::{ChannelStatus, Process, ReaderStats, Role};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::SystemTime;

/// In the metrics, at most this many readers of a channel have their own series. They are the readers that have been attached longest. All
/// other readers are summed under [`OTHERS`].
pub const MAX_READERS: usize = 128;
/// The name of the sum of the readers beyond [`MAX_READERS`].
pub const OTHERS: &str = "other";

/// All figures that the metrics show.
#[derive(Debug)]
pub struct Snapshot {
    /// All channels, in order of their names.
    pub channels: Vec<ChannelFigures>,
    /// All bridges.
    pub bridges: Vec<BridgeFigures>,
    /// All journals, by the names of their channels.
    pub journals: Vec<(String, JournalStatus)>,
    /// The number of refusals of each kind.
    pub refusals: HashMap<RefusalCode, u64>,
    /// Whether the last reload was refused.
    pub is_reload_refused: bool,
    /// The wall clock when the daemon started.
    pub started: SystemTime,
    /// Delays of the daemon's event loop.
    pub hiccups: Arc<Hiccups>,
}

/// The figures of a channel.
#[derive(Debug)]
pub struct ChannelFigures {
    /// The channel, without its readers.
    pub status: ChannelStatus,
    /// Number of the channel's readers that tools show. Recorders and bridges are not counted.
    pub reader_count: usize,
    /// At most [`MAX_READERS`] readers, and the sum of the others.
    pub readers: Vec<ReaderFigures>,
}

/// The metrics of a reader, or of several readers together. The process and its name come from the kernel. Everything else comes from the
/// reader's page, and the reader can write anything there.
#[derive(Debug)]
pub struct ReaderFigures {
    /// The process id. If a process is attached to the channel several times, its second attachment has the suffix `/2`, the third `/3`,
    /// and so on. For several readers, this is [`OTHERS`].
    pub reader: String,
    /// The command; empty if it is not known.
    pub command: String,
    /// The role; empty if the figures are of several readers.
    pub role: &'static str,
    /// Published messages that the reader has not read. For several readers, the largest of their lags.
    pub lag: u64,
    /// The number of received messages.
    pub received: u64,
    /// Number of times that the publisher overtook the reader.
    pub lapped: u64,
    /// The number of messages that the reader missed.
    pub missed: u64,
    /// Messages that the reader skipped, because the board had newer messages with the same keys.
    pub conflated: u64,
    pub(super) latencies: Latencies,
}

impl Snapshot {
    /// Takes a snapshot. Reads a page of 4 KiB for each reader, which takes some milliseconds for hundreds of readers.
    pub fn take(shared: &ServerState, hiccups: Arc<Hiccups>) -> Self {
        let measured = shared.registry().measure();
        Self {
            channels: measured.into_iter().map(ChannelFigures::of).collect(),
            bridges: shared.bridges.figures(),
            journals: shared.journals.statuses(),
            refusals: shared.events.refusals(),
            is_reload_refused: shared.events.is_reload_refused(),
            started: shared.started,
            hiccups,
        }
    }
}

impl ChannelFigures {
    /// Names the readers of a channel, and sums the readers beyond the limit.
    pub fn of(measured: Measured) -> Self {
        let Measured { status, readers } = measured;
        let next = status.next_sequence;
        let mut seen: HashMap<u32, u32> = HashMap::new();
        let mut figures = Vec::with_capacity(readers.len().min(MAX_READERS + 1));
        let mut others = ReaderFigures::none(OTHERS);
        for (i, (process, stats)) in readers.iter().enumerate() {
            if i >= MAX_READERS {
                others.add(stats, next);
                continue;
            }
            let mut reader = ReaderFigures::none(name(process, &mut seen));
            reader.command = process.command.clone().unwrap_or_default();
            reader.role = stats.role.name();
            reader.add(stats, next);
            figures.push(reader);
        }
        if readers.len() > MAX_READERS {
            figures.push(others);
        }
        let reader_count = readers.iter().filter(|(_, stats)| stats.role == Role::Reader).count();
        Self { status, reader_count, readers: figures }
    }
}

/// Returns a name that no other reader of the channel has. If two series had equal names, Prometheus would refuse all metrics.
fn name(process: &Process, seen: &mut HashMap<u32, u32>) -> String {
    // 0 stands for a process in a PID namespace that we cannot see.
    let pid = process.pid.unwrap_or(0);
    let times = seen.entry(pid).or_default();
    *times += 1;
    if *times == 1 { pid.to_string() } else { format!("{pid}/{times}") }
}

impl ReaderFigures {
    fn none(reader: impl Into<String>) -> Self {
        let (reader, command, role) = (reader.into(), String::new(), "");
        Self {
            reader,
            command,
            role,
            lag: 0,
            received: 0,
            lapped: 0,
            missed: 0,
            conflated: 0,
            latencies: Latencies::none(),
        }
    }

    fn add(&mut self, stats: &ReaderStats, next: Option<u64>) {
        let lag = next.map_or(0, |next| next.saturating_sub(stats.place.sequence));
        self.lag = self.lag.max(lag);
        self.received = self.received.saturating_add(stats.received);
        self.lapped = self.lapped.saturating_add(stats.lapped);
        self.missed = self.missed.saturating_add(stats.missed);
        self.conflated = self.conflated.saturating_add(stats.conflated);
        self.latencies.add(&stats.histogram);
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::{measured, stats};
    use super::*;

    #[test]
    fn two_readers_in_one_process_with_the_same_name() {
        let process = Process { pid: Some(7), uid: None, command: None };
        let unseen = Process { pid: None, uid: None, command: None };
        let readers = [&process, &unseen, &process, &unseen, &process];
        let readers = readers.map(|process| (process.clone(), stats(1)));
        let figures = ChannelFigures::of(measured("t", readers.to_vec()));
        let names: Vec<&str> = figures.readers.iter().map(|reader| reader.reader.as_str()).collect();
        assert_eq!(names, ["7", "0", "7/2", "0/2", "7/3"]);
    }

    #[test]
    fn readers_without_end_become_series_without_end() {
        let readers = |count: u32| {
            let of = |pid| (Process { pid: Some(pid), uid: None, command: None }, stats(u64::from(pid)));
            ChannelFigures::of(measured("t", (1..=count).map(of).collect()))
        };
        assert_eq!(readers(128).readers.len(), 128);
        let many = readers(1000);
        assert_eq!((many.reader_count, many.readers.len()), (1000, 129));
        let received: u64 = many.readers.iter().map(|reader| reader.received).sum();
        assert_eq!(received, (1..=1000).sum::<u64>(), "none is lost in the sum");
        let other = many.readers.last().unwrap();
        assert_eq!(other.reader, OTHERS);
        assert_eq!(other.lag, many.status.next_sequence.unwrap() - 129, "the worst, not the sum");
    }

    #[test]
    fn a_reader_that_lies_breaks_the_sum() {
        let process = Process { pid: Some(1), uid: None, command: None };
        let readers = (0..200).map(|_| (process.clone(), stats(u64::MAX))).collect();
        let figures = ChannelFigures::of(measured("t", readers));
        let other = figures.readers.last().unwrap();
        assert_eq!((other.received, other.lag), (u64::MAX, 0));
    }
}
