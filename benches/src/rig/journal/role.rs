//! The roles of a round with a recorder, and the reports of their processes. The rig passes a [`Role`] as an argument. The child
//! answers `ready`, waits for words, and prints lines of JSON.

use crate::rig::spec::Usage;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The times at which a publisher sends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// One message each time this number of ns has passed.
    Every(u64),
    /// One message directly after another. The gate makes the publisher wait, so that nothing is lost.
    Gated,
    /// One message directly after another, even if messages are lost.
    FlatOut,
}

/// The role of a publisher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Publish {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// The size of a payload in bytes.
    pub size: usize,
    /// The size of the ring in bytes.
    pub ring_bytes: u64,
    /// The times at which the publisher sends.
    pub pace: Pace,
    /// The greatest number of messages.
    pub messages: u64,
    /// The time after which the publisher ends, even with fewer messages, in ns.
    pub time_ns: u64,
    /// Whether the publisher reports the time of each send.
    pub keeps_sends: bool,
    /// The CPU to which the publisher is bound.
    pub cpu: Option<usize>,
}

/// The times at which a recorder syncs its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    /// The recorder syncs each write.
    Each,
    /// The recorder syncs at this interval, in ms.
    Ms(u64),
}

/// The way in which bytes are written to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Way {
    /// By `O_DIRECT`.
    Direct,
    /// Through the page cache.
    Buffered,
}

impl Way {
    /// Returns the name as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

/// The role of a recorder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// The directory of the journal.
    pub to: PathBuf,
    /// The times at which the recorder syncs its files.
    pub sync: Sync,
    /// The way in which bytes are written to the disk.
    pub way: Way,
    /// The size of the buffer for frames that wait for the disk, in bytes.
    pub buffer: usize,
    /// The size in bytes at which a file is sealed.
    pub file_bytes: u64,
    /// The limit for the total size of all files, in bytes. If it is exceeded, the oldest files are deleted. 0 for no limit.
    pub keep_bytes: u64,
    /// The number of messages that the ring can hold, if the recorder reports to the round's gate. 0 if it does not report.
    pub gate_messages: u64,
    /// Whether the recorder notes each change of the durable sequence. This uses a whole CPU.
    pub keeps_moves: bool,
    /// The CPU to which the recorder is bound.
    pub cpu: Option<usize>,
}

/// The role of a reader of the ring, with the pauses of a recorder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Read {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// The CPU to which the reader is bound.
    pub cpu: Option<usize>,
}

/// The role of a reader that begins with old messages, and reads the journal until it has caught up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CatchUp {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// The directory of the journal.
    pub journal: PathBuf,
    /// The sequence at which the reader begins.
    pub from: u64,
    /// The CPU to which the reader is bound.
    pub cpu: Option<usize>,
}

/// The role of a reader that looks up several points in time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Lookup {
    /// The directory of the journal.
    pub journal: PathBuf,
    /// The number of points in time, which are spread over the journal.
    pub count: u64,
}

/// The role that a child plays.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Role {
    /// Publishes.
    Publish(Publish),
    /// Records.
    Record(Record),
    /// Reads the ring.
    Read(Read),
    /// Catches up.
    CatchUp(CatchUp),
    /// Looks up times.
    Lookup(Lookup),
    /// Checks the journal in a directory.
    Verify(PathBuf),
    /// Repairs the journal in a directory.
    Mend(PathBuf),
}

/// A publisher's report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Published {
    /// The number of sent messages, which is the sequence of the last one.
    pub messages: u64,
    /// Clock ticks before the first send and after the last send.
    pub span: (u64, u64),
    /// The duration of a send. Without pauses between the sends, each sample is the mean of [`RUN`] sends.
    pub cost: Cost,
    /// Clock ticks at each send. Empty if they were not requested.
    pub sends: Vec<u64>,
    /// The resources that the publisher used.
    pub usage: Usage,
}

/// The duration of a send in ns. The values have fractions, because whole ns would hide a change of 3 % at a median of 30 ns.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Cost {
    /// The number of samples.
    pub count: u64,
    /// The median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// The largest sample.
    pub max: f64,
}

impl Cost {
    /// Computes the cost from samples, whose unit is `unit_ns` ns.
    pub(super) fn of(mut samples: Vec<f64>, unit_ns: f64) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |quantile| unit_ns * within(&samples, quantile);
        let max = samples.last().copied().unwrap_or_default() * unit_ns;
        Self { count: samples.len() as u64, p50: at(0.5), p99: at(0.99), max }
    }
}

/// Returns a quantile of sorted samples. A clock can move in steps of 10 ns, so that many samples are equal. The true times of equal
/// samples are spread over one step of the clock. So this function interpolates within the step.
fn within(samples: &[f64], quantile: f64) -> f64 {
    let place = quantile * samples.len() as f64;
    let Some(&found) = samples.get(place as usize) else { return 0.0 };
    let below = samples.partition_point(|sample| *sample < found);
    let equal = samples.partition_point(|sample| *sample <= found) - below;
    let step = below.checked_sub(1).map_or(0.0, |last| found - samples[last]);
    found - step * (1.0 - (place - below as f64) / equal as f64)
}

/// If messages are sent back to back, the clock is read once for this many sends.
pub const RUN: u64 = 64;

/// A recorder's report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Recorded {
    /// The number of messages in the journal.
    pub messages: u64,
    /// The number of sequences that the ring overwrote before the recorder read them.
    pub overrun: u64,
    /// Every sequence up to this one is durable, as a message or as lost.
    pub durable: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Clock ticks when the last message was durable.
    pub durable_at: u64,
    /// Clock ticks when the last file was sealed.
    pub sealed_at: u64,
    /// Each change of the durable sequence: the clock ticks, and the new sequence.
    pub moves: Vec<(u64, u64)>,
    /// The resources that the recorder used from `go` until everything was durable.
    pub usage: Usage,
    /// Errors of the disk.
    pub errors: Vec<String>,
}

/// The present state of a running recorder.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Last sequence taken from the ring.
    pub drained: u64,
    /// The last sequence that is durable.
    pub durable: u64,
    /// The number of sequences that the ring overwrote before the recorder read them.
    pub overrun: u64,
    /// Bytes of frames in memory.
    pub buffered: u64,
}

/// A reader's report.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Seen {
    /// The number of received messages.
    pub messages: u64,
    /// The number of missed messages.
    pub missed: u64,
}

/// The report of a reader that caught up.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CaughtUp {
    /// The number of messages that the reader received until it was live. Each message came exactly once, and in order.
    pub messages: u64,
    /// The number of bytes in the payloads of these messages.
    pub payload_bytes: u64,
    /// The time until the reader had caught up, counted from the call that opens the channel.
    pub ns: u64,
}

/// The report of a reader that looked up times.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LookedUp {
    /// The duration of each lookup in ns, until the reader had the message.
    pub times: Vec<u64>,
    /// The number of read calls of each lookup; empty if the kernel does not count them.
    pub reads: Vec<u64>,
}

/// The report of a check, or of a recovery.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Done {
    /// The number of verified bytes. For a recovery, the bytes of frames in the file that was not sealed.
    pub bytes: u64,
    /// The duration in ns.
    pub ns: u64,
    /// The number of files of the journal.
    pub files: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_within_a_step_of_the_clock() {
        // A clock with steps of 10: a quarter of the samples took up to 20, half took up to 30, and a quarter up to 40.
        let samples: Vec<f64> =
            [20.0, 30.0, 30.0, 40.0].into_iter().flat_map(|step| vec![step; 1000]).collect();
        assert!((within(&samples, 0.5) - 25.0).abs() < 0.1);
        assert!((within(&samples, 0.625) - 27.5).abs() < 0.1);
        let cost = Cost::of(samples, 2.0);
        assert!((cost.p50 - 50.0).abs() < 0.2 && (cost.max - 80.0).abs() < 0.1, "{cost:?}");
        assert_eq!(Cost::of(Vec::new(), 1.0).p50, 0.0);
    }
}
