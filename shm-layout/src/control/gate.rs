//! The settings of gates that the daemon sends, and the reports about gates that tools show.

use super::{LatencyStatus, Process};
use serde::{Deserialize, Serialize};

/// The terms of a gate: its limits, which the publisher keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateTerms {
    /// The name of the gate.
    pub gate: String,
    /// The reader's largest lag in bytes of the ring. If a message would make the lag larger, the publisher
    /// waits.
    pub lag_bytes: u64,
    /// The limit of one message's wait, in nanoseconds.
    pub wait_ns: u64,
    /// Whether the publisher refuses the message after the wait. If false, the publisher drops the gate and publishes the message.
    pub refuse: bool,
}

/// A gate as tools show it. The counts begin at 0 again with each publisher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateReport {
    /// The terms of the gate.
    #[serde(flatten)]
    pub terms: GateTerms,
    /// `absent`, `joining`, `in-force` or `dropped`.
    pub state: String,
    /// The gate's reader; `None` if there is no reader. The process id comes from the reader itself. A daemon adds the user and the command
    /// only if the process with this id is attached as a reader.
    pub reader: Option<Process>,
    /// The present lag of the reader in bytes of the ring, computed from the position that the reader itself reports.
    pub behind_bytes: Option<u64>,
    /// The present lag of the reader in messages, computed from the sequence that the reader itself reports.
    pub behind_messages: Option<u64>,
    /// The number of messages that waited for the gate.
    pub held: u64,
    /// The longest wait of one message, in nanoseconds.
    pub longest_ns: u64,
    /// The sum of all waits, in nanoseconds.
    pub total_ns: u64,
    /// Percentiles of the waits. Each is at most twice the true value; `None` before the first wait.
    pub waits_ns: Option<LatencyStatus>,
    /// Numbers of waits by length: element `n` counts the waits of at least 2^n ns and less than 2^(n+1) ns. Element 0 also counts waits of
    /// 0 ns, and the last element all longer waits. Empty in the report of an older daemon.
    #[serde(default)]
    pub waits: Vec<u64>,
    /// The number of times that the gate was dropped.
    pub dropped: u64,
    /// The number of messages that the gate refused after a wait.
    pub refused: u64,
    /// The number of messages that were refused by calls that never wait.
    pub turned_away: u64,
    /// The number of positions that the gate's reader claimed although the ring had not reached them.
    pub impossible: u64,
}
