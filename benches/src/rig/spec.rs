//! A round, and the reports of its processes. The rig passes a [`Task`] to a child as an argument. The child answers `ready`, waits for
//! `go`, and prints one report. The child reads from one pipe, and writes to another pipe.

use crate::rig::stats::HiccupLog;
use serde::{Deserialize, Serialize, Serializer};
use shmcast_layout::layout::geometry::record_bytes;
use std::path::PathBuf;

/// The way in which a receiver waits for the next message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Polls without a pause.
    Spin,
    /// Polls, and pauses after a burst, so that several messages can be received together. This is for high rates, not for low latency.
    Burst,
    /// Yields the core after each empty poll.
    Yield,
    /// Spins a little, then yields.
    SpinYield,
    /// Polls, with 128 spin hints between two polls.
    SpinHint,
    /// Waits longer after each empty poll: first spins, then yields.
    Backoff,
    /// Sleeps 50 us between polls.
    Sleep,
    /// Blocks in the kernel until a message arrives.
    Block,
    /// Waits inside a tokio runtime of one thread.
    Tokio,
    /// Sleeps until the channel's daemon wakes the receiver.
    Park,
}

impl Wait {
    /// Every way to wait.
    pub const ALL: [Self; 10] = [
        Self::Spin,
        Self::Burst,
        Self::SpinHint,
        Self::Yield,
        Self::SpinYield,
        Self::Backoff,
        Self::Sleep,
        Self::Block,
        Self::Tokio,
        Self::Park,
    ];

    /// Returns the name as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Burst => "burst",
            Self::SpinHint => "spin-hint",
            Self::Yield => "yield",
            Self::SpinYield => "spin-yield",
            Self::Backoff => "backoff",
            Self::Sleep => "sleep",
            Self::Block => "block",
            Self::Tokio => "tokio",
            Self::Park => "park",
        }
    }
}

/// A transport, and the way in which its receivers wait.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Contestant {
    /// The name of the transport. With `@PROGRAM` after the name, that program plays the transport. So two builds can be compared in the
    /// same laps.
    pub transport: String,
    /// The way in which receivers wait.
    pub wait: Wait,
}

impl Contestant {
    /// Makes a contestant from a transport's name.
    pub fn new(transport: &str, wait: Wait) -> Self {
        Self { transport: transport.into(), wait }
    }

    /// Returns the transport's name without a program.
    pub fn transport_name(&self) -> &str {
        self.transport.split('@').next().expect("a split has a first part")
    }

    /// Returns the name as it is printed, such as `shmcast/spin`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.transport, self.wait.name())
    }
}

/// One round.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// The transport, and the way in which its receivers wait.
    pub contestant: Contestant,
    /// The number of receiver processes.
    pub receivers: usize,
    /// The size of a payload in bytes, at least [`crate::rig::payload::MIN_SIZE`].
    pub size: usize,
    /// The number of messages that are sent first and do not count.
    pub warmup: u64,
    /// The number of messages that count.
    pub messages: u64,
    /// The time between intended sends in ns; 0 if messages are sent back to back.
    pub interval_ns: u64,
    /// The size of the ring in bytes, for transports that have a ring.
    pub ring_bytes: u64,
    /// Whether the round must lose no message. The publisher then waits for its slowest receiver: by the transport's own flow control, or
    /// by the rig's gate.
    #[serde(default, skip_serializing_if = "is_default")]
    pub gated: bool,
    /// The CPU to which the publisher is bound.
    #[serde(default, skip_serializing_if = "is_default")]
    pub publisher_cpu: Option<usize>,
    /// The CPUs to which the receivers are bound in turn. If empty, receivers are not bound.
    #[serde(default, skip_serializing_if = "is_default")]
    pub receiver_cpus: Vec<usize>,
    /// Whether the publisher spins until each intended time. Otherwise it sleeps until shortly before this time.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spin_between: bool,
    /// The directory of the round's files.
    #[serde(default, skip_serializing_if = "is_default")]
    pub dir: PathBuf,
    /// The length of the windows of a long round, in ns. With 0, the round has no windows, and keeps the times of each message.
    #[serde(default, skip_serializing_if = "is_default")]
    pub window_ns: u64,
    /// Visitors, which come and go while the other receivers stay.
    #[serde(default, skip_serializing_if = "is_default")]
    pub churn: Option<Churn>,
    /// The daemon's program, for contestants that need one.
    #[serde(default, skip_serializing_if = "is_default")]
    pub daemon: Option<PathBuf>,
    /// The two hosts, for rounds that send from one host to the other.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wire: Option<Wire>,
}

/// Whether a field has its default value, so that the JSON leaves it out.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// The two hosts of a round, and the program that sends messages from one host to the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// Network namespace of the sending host.
    pub near: String,
    /// Network namespace of the receiving host.
    pub far: String,
    /// The program `shmcast`, which runs the bridge.
    pub shmcast: PathBuf,
}

/// Receivers that come and go during a round (visitors). Of every three visitors, the first is asked to leave, the second is killed, and
/// the third is killed as soon as it has attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Churn {
    /// The time from one arrival to the next, in ns.
    pub every_ns: u64,
    /// The time from a visitor's arrival to its end, in ns.
    pub stay_ns: u64,
}

/// The default size of a ring in bytes. A question can set another size. The ring is large enough for any burst here, and small enough for
/// the cache of one core.
pub const RING_BYTES: u64 = 1 << 19;

/// Returns the number of messages of one size that a ring can hold.
pub fn ring_messages(ring_bytes: u64, size: usize) -> u64 {
    ring_bytes / record_bytes(size as u64)
}

impl Spec {
    /// Makes a round with one receiver. The publisher and the receiver are bound to separate CPUs. The caller sets the number of messages
    /// and the pace.
    pub fn one_to_one(contestant: Contestant, size: usize) -> Self {
        Self {
            contestant,
            receivers: 1,
            size,
            warmup: 0,
            messages: 0,
            interval_ns: 0,
            ring_bytes: RING_BYTES,
            gated: false,
            publisher_cpu: Some(0),
            receiver_cpus: vec![1],
            spin_between: true,
            dir: PathBuf::new(),
            window_ns: 0,
            churn: None,
            daemon: None,
            wire: None,
        }
    }

    /// Makes a round with many receivers. No process is bound to a CPU, and the publisher sleeps between its sends.
    pub fn crowd(contestant: Contestant, receivers: usize, size: usize) -> Self {
        Self {
            receivers,
            ring_bytes: 4 << 20,
            publisher_cpu: None,
            receiver_cpus: Vec::new(),
            spin_between: false,
            ..Self::one_to_one(contestant, size)
        }
    }

    /// Returns the number of all messages, including those that do not count. This is also the sequence of the last message.
    pub fn total(&self) -> u64 {
        self.warmup + self.messages
    }

    /// Returns the number of messages that a ring of this round can hold.
    pub fn ring_messages(&self) -> u64 {
        ring_messages(self.ring_bytes, self.size)
    }

    /// Whether the round keeps the times of each message. Otherwise it keeps only totals or windows.
    pub fn is_kept_each(&self) -> bool {
        self.interval_ns > 0 && self.window_ns == 0
    }

    /// Returns the path of the control socket of the round's daemon.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("control.sock")
    }
}

/// The role that a child plays.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Task {
    /// Publish the round's messages.
    Publish(Spec),
    /// Receive the messages as the receiver with this number, from 0.
    Receive(Spec, usize),
}

impl Task {
    /// Returns the round of the task.
    pub fn spec(&self) -> &Spec {
        match self {
            Self::Publish(spec) | Self::Receive(spec, _) => spec,
        }
    }
}

/// The resources that a process used while it played its role. In JSON, this is a list of the fields in their order.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
pub struct Usage {
    /// CPU time in user mode, in ns.
    pub user_ns: u64,
    /// CPU time in the kernel, in ns.
    pub system_ns: u64,
    /// The number of times that the process gave its CPU away.
    pub voluntary_switches: u64,
    /// The number of times that the process lost its CPU.
    pub involuntary_switches: u64,
    /// The time in ns for which the process was ready to run but had no CPU.
    pub waited_ns: u64,
    /// The duration of the measurement, in ns.
    pub wall_ns: u64,
}

impl Serialize for Usage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { user_ns, system_ns, voluntary_switches, involuntary_switches, waited_ns, wall_ns } = self;
        [user_ns, system_ns, voluntary_switches, involuntary_switches, waited_ns, wall_ns]
            .serialize(serializer)
    }
}

/// The publisher's report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Published {
    /// The number of sent messages that count.
    pub messages: u64,
    /// Clock ticks at the first message that counts, and after the last message.
    #[serde(default, skip_serializing_if = "is_default")]
    pub span: (u64, u64),
    /// The time between two consecutive readings of the clock, in ns. Every measured duration of a send includes this time.
    pub clock_ns: u64,
    /// The number of times that the publisher tried again because the transport had no room.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retries: u64,
    /// The times at which the publisher's thread was spinning but did not get the CPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hiccups: HiccupLog,
    /// The resources that the publisher used.
    pub usage: Usage,
    /// Remarks of the transport, such as a refused preparation.
    #[serde(default, skip_serializing_if = "is_default")]
    pub notes: Vec<String>,
}

/// A receiver's report. Each failed check is counted.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Received {
    /// The number of different messages that count and arrived with the right bytes.
    pub delivered: u64,
    /// The number of messages that count and never arrived.
    #[serde(default, skip_serializing_if = "is_default")]
    pub lost: u64,
    /// The number of messages that arrived again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub duplicated: u64,
    /// The number of messages that arrived after a later message.
    #[serde(default, skip_serializing_if = "is_default")]
    pub out_of_order: u64,
    /// The number of messages with wrong bytes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub corrupt: u64,
    /// The number of losses that the transport itself reported.
    #[serde(default, skip_serializing_if = "is_default")]
    pub reported_lost: u64,
    /// Clock ticks at the first and at the last receipt that counts.
    #[serde(default, skip_serializing_if = "is_default")]
    pub span: (u64, u64),
    /// The resources that the receiver used.
    pub usage: Usage,
    /// The times at which the receiver's thread was spinning but did not get the CPU.
    #[serde(default, skip_serializing_if = "is_default")]
    pub hiccups: HiccupLog,
}

impl Received {
    /// Adds another receiver's counts. The span then goes from the first receipt of either receiver to the last receipt of either.
    pub fn add(&mut self, other: &Self) {
        self.delivered += other.delivered;
        self.lost += other.lost;
        self.duplicated += other.duplicated;
        self.out_of_order += other.out_of_order;
        self.corrupt += other.corrupt;
        self.reported_lost += other.reported_lost;
        if other.delivered > 0 {
            let first = if self.span.0 == 0 { u64::MAX } else { self.span.0 };
            self.span = (first.min(other.span.0), self.span.1.max(other.span.1));
        }
        self.usage = self.usage.sum(&other.usage);
        self.hiccups.add(&other.hiccups);
    }
}
