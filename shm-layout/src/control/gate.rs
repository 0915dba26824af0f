//! What the daemon says about gates, and what tools show of them.

use super::{LatencyStatus, Process};
use serde::{Deserialize, Serialize};

/// The terms of a gate: its limits, which the publisher keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateTerms {
    /// Its name.
    pub gate: String,
    /// How far its reader may be behind before the publisher waits, in bytes of the ring.
    pub lag_bytes: u64,
    /// How long one message waits at most, in nanoseconds.
    pub wait_ns: u64,
    /// What comes after the wait: the message is refused if true, and the gate is dropped if false.
    pub refuse: bool,
}

/// A gate as tools show it. The publisher's counts restart with each publisher.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateReport {
    /// Its terms.
    #[serde(flatten)]
    pub terms: GateTerms,
    /// `absent`, `joining`, `in-force` or `dropped`.
    pub state: String,
    /// The process that reads behind it, by its own claim; `None` if there is none.
    pub reader: Option<Process>,
    /// How far the reader is behind now, in bytes of the ring, by its own claim.
    pub behind_bytes: Option<u64>,
    /// How many messages the reader is behind, by its own claim.
    pub behind_messages: Option<u64>,
    /// Messages that waited for it.
    pub held: u64,
    /// The longest wait of one message, in nanoseconds.
    pub longest_ns: u64,
    /// The sum of all waits, in nanoseconds.
    pub total_ns: u64,
    /// Waits, up to twice as long as they were; `None` before the first.
    pub waits_ns: Option<LatencyStatus>,
    /// Times that it was dropped.
    pub dropped: u64,
    /// Messages that it refused after a wait.
    pub refused: u64,
    /// Messages that it refused to calls that never wait.
    pub turned_away: u64,
    /// Positions that its reader claimed and the ring had not reached.
    pub impossible: u64,
}
