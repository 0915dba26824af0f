//! The roles of a round with a recorder, and the reports of their processes. The rig passes a [`Role`] as an argument. The child
//! answers `ready`, waits for words, and prints lines of JSON.

use crate::rig::spec::Usage;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// When a publisher sends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Pace {
    /// One message each so many ns.
    Every(u64),
    /// One message directly after another. The gate makes the publisher wait, so that nothing is lost.
    Gated,
    /// One message directly after another, whatever is lost.
    FlatOut,
}

/// A publisher.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Publish {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// Payload bytes.
    pub size: usize,
    /// Bytes of ring.
    pub ring_bytes: u64,
    /// When it sends.
    pub pace: Pace,
    /// Most messages.
    pub messages: u64,
    /// It ends after this time too, in ns.
    pub time_ns: u64,
    /// Whether the time of each send is reported.
    pub keeps_sends: bool,
    /// CPU that it is bound to.
    pub cpu: Option<usize>,
}

/// When a recorder makes files safe.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sync {
    /// With each write.
    Each,
    /// This often, in ms.
    Ms(u64),
}

/// The way of bytes to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub enum Way {
    /// By `O_DIRECT`.
    Direct,
    /// Through the page cache.
    Buffered,
}

impl Way {
    /// The name as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Buffered => "buffered",
        }
    }
}

/// A recorder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Record {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// The journal.
    pub to: PathBuf,
    /// When files are made safe.
    pub sync: Sync,
    /// The way of bytes to the disk.
    pub way: Way,
    /// Bytes for what waits for the disk.
    pub buffer: usize,
    /// Bytes at which a file is sealed.
    pub file_bytes: u64,
    /// The limit of the total size of all files, in bytes. Above it, the oldest files are deleted. With 0 there is no limit.
    pub keep_bytes: u64,
    /// The number of messages in the ring, if the recorder reports to the round's gate. 0 if it does not report.
    pub gate_messages: u64,
    /// Whether the recorder notes each change of the durable sequence. This uses a whole CPU.
    pub keeps_moves: bool,
    /// CPU that it is bound to.
    pub cpu: Option<usize>,
}

/// A reader of the ring, with the pauses of a recorder.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Read {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// CPU that it is bound to.
    pub cpu: Option<usize>,
}

/// A reader that begins with old messages. It reads the journal until it has caught up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CatchUp {
    /// The round's directory, in memory.
    pub dir: PathBuf,
    /// The journal.
    pub journal: PathBuf,
    /// The sequence that it begins with.
    pub from: u64,
    /// CPU that it is bound to.
    pub cpu: Option<usize>,
}

/// A reader that looks for the first message of some times.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Lookup {
    /// The journal.
    pub journal: PathBuf,
    /// Number of times, spread over the journal.
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
    /// Makes the journal in a directory whole.
    Mend(PathBuf),
}

/// A publisher's report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Published {
    /// Messages sent: the sequence of the last.
    pub messages: u64,
    /// Clock ticks before the first and after the last.
    pub span: (u64, u64),
    /// The duration of a send. Without pauses between the sends, each sample is the mean of [`RUN`] sends.
    pub cost: Cost,
    /// Clock ticks at each send, where they were asked for.
    pub sends: Vec<u64>,
    /// The resources that it used.
    pub usage: Usage,
}

/// The time inside a send in ns. It has fractions, because whole ns would hide a change of 3 % at a median of 30 ns.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Cost {
    /// Samples.
    pub count: u64,
    /// Median.
    pub p50: f64,
    /// 99th percentile.
    pub p99: f64,
    /// Largest.
    pub max: f64,
}

impl Cost {
    /// The cost by samples in units of so many ns.
    pub(super) fn of(mut samples: Vec<f64>, unit_ns: f64) -> Self {
        samples.sort_unstable_by(f64::total_cmp);
        let at = |quantile| unit_ns * within(&samples, quantile);
        let max = samples.last().copied().unwrap_or_default() * unit_ns;
        Self { count: samples.len() as u64, p50: at(0.5), p99: at(0.99), max }
    }
}

/// Returns a quantile of sorted samples. A clock can move in steps of 10 ns, so that many samples are equal. The true times of equal
/// samples are spread over one step of the clock. So the function interpolates within this step.
fn within(samples: &[f64], quantile: f64) -> f64 {
    let place = quantile * samples.len() as f64;
    let Some(&found) = samples.get(place as usize) else { return 0.0 };
    let below = samples.partition_point(|sample| *sample < found);
    let equal = samples.partition_point(|sample| *sample <= found) - below;
    let step = below.checked_sub(1).map_or(0.0, |last| found - samples[last]);
    found - step * (1.0 - (place - below as f64) / equal as f64)
}

/// Back to back, the clock is read once for so many sends.
pub const RUN: u64 = 64;

/// A recorder's report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Recorded {
    /// Messages in the journal.
    pub messages: u64,
    /// Sequences lost to laps.
    pub overrun: u64,
    /// Everything up to here is durable, or named as lost.
    pub durable: u64,
    /// Bytes written to files.
    pub bytes: u64,
    /// Clock ticks when the last message was durable.
    pub durable_at: u64,
    /// Clock ticks when the last file was sealed.
    pub sealed_at: u64,
    /// Clock ticks at moves of what is durable, and the sequence.
    pub moves: Vec<(u64, u64)>,
    /// The resources that the recorder used from `go` until everything was durable.
    pub usage: Usage,
    /// Errors of the disk.
    pub errors: Vec<String>,
}

/// The state of a recorder that goes on.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Standing {
    /// Last sequence taken from the ring.
    pub drained: u64,
    /// Last sequence that is safe.
    pub durable: u64,
    /// Sequences lost to laps.
    pub overrun: u64,
    /// Bytes of frames in memory.
    pub buffered: u64,
}

/// A reader's report.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Seen {
    /// Messages received.
    pub messages: u64,
    /// Messages missed.
    pub missed: u64,
}

/// The report of a reader that caught up.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct CaughtUp {
    /// Messages until it was live, each once and in order.
    pub messages: u64,
    /// Bytes of their payloads.
    pub payload_bytes: u64,
    /// The time until the reader had caught up, counted from the call that opens the channel.
    pub ns: u64,
}

/// The report of a reader that looked up times.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LookedUp {
    /// Time of each, until its message was there.
    pub times: Vec<u64>,
    /// The number of read calls of each lookup; empty if the kernel does not count them.
    pub reads: Vec<u64>,
}

/// The report of a check, or of recovery.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Done {
    /// The number of verified bytes. For recovery, the bytes of frames in the file that was not sealed.
    pub bytes: u64,
    /// Time that it took.
    pub ns: u64,
    /// Files of the journal.
    pub files: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_lies_within_a_step_of_the_clock() {
        // A clock of steps of 10: a quarter of the samples took up to 20, half up to 30, a quarter up to 40.
        let samples: Vec<f64> =
            [20.0, 30.0, 30.0, 40.0].into_iter().flat_map(|step| vec![step; 1000]).collect();
        assert!((within(&samples, 0.5) - 25.0).abs() < 0.1);
        assert!((within(&samples, 0.625) - 27.5).abs() < 0.1);
        let cost = Cost::of(samples, 2.0);
        assert!((cost.p50 - 50.0).abs() < 0.2 && (cost.max - 80.0).abs() < 0.1, "{cost:?}");
        assert_eq!(Cost::of(Vec::new(), 1.0).p50, 0.0);
    }
}
