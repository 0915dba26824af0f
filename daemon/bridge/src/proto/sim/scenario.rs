//! The scenario of a run, which its seed decides, and the totals of a run.

use super::super::counters::Histogram;
use super::super::receiver::{Follow, ReceiverConfig};
use super::net::Profile;

/// The payload of every datagram of the simulation, in bytes.
pub const PAYLOAD_BYTES: usize = 1_400;
/// The channel that every run carries.
pub const FOLLOW: Follow = Follow::Channel(*b"SIM ");

/// The form of the packets of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Plain,
    Native,
    Sealed,
}

/// The servers' journals.
#[derive(Debug, Clone, Default)]
pub struct Journal {
    /// The longest time that a read takes.
    pub read_ns: u64,
    /// The number of messages that the recorder has not written yet.
    pub behind: u64,
    /// The oldest sequence that is kept.
    pub oldest: u64,
    /// The sequences that the journal reports as lost.
    pub lost: Vec<std::ops::Range<u64>>,
}

impl Journal {
    /// If this sequence is missing, returns the sequence after the missing sequences.
    pub(crate) fn missing_to(&self, sequence: u64) -> Option<u64> {
        let lost = self.lost.iter().find(|lost| lost.contains(&sequence)).map(|lost| lost.end);
        lost.or((sequence < self.oldest).then_some(self.oldest))
    }
}

/// Everything about a run that its seed decides.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub lines: Vec<Profile>,
    /// For each server, the path of requests to the server, and the path of its answers.
    pub servers: Vec<(Profile, Profile)>,
    pub peers: usize,
    pub messages: u64,
    pub max_message: usize,
    pub burst: u64,
    pub pace_ns: u64,
    /// The number of messages that each server's ring holds.
    pub ring_capacities: Vec<u64>,
    /// The limit for slow servers: the bytes per second that a server is allowed to send to each receiver, and also to all receivers
    /// together. `None` if the servers are not slow.
    pub server_rate: Option<u64>,
    /// The journal that all servers have.
    pub journal: Option<Journal>,
    pub config: ReceiverConfig,
    /// The restarts of the sender: the number of messages before each restart, and whether a new session begins.
    pub sender_restarts: Vec<(u64, bool)>,
    /// The restarts of receivers: the number of messages before each restart, and the receiver.
    pub peer_restarts: Vec<(u64, usize)>,
    pub ends: bool,
    /// The form of the packets.
    pub wire: Wire,
    /// Whether a forger sends packets.
    pub forger: bool,
    /// Whether receivers know the round trip beforehand, as after a lease exchange.
    pub knows_rtt: bool,
}

/// The totals of a run, or of many.
#[derive(Debug, Default, Clone)]
pub struct Totals {
    pub runs: u64,
    pub delivered: u64,
    pub gap_messages: u64,
    pub sessions: u64,
    pub lost_bytes: u64,
    pub needless_bytes: u64,
    pub first_round_bytes: u64,
    pub repeated_bytes: u64,
    pub lost_repair_bytes: u64,
    pub unusable_repair_bytes: u64,
    pub malformed: u64,
    pub forged: u64,
    pub fragments: u64,
    pub fragments_refused: u64,
    pub recovery: Histogram,
    pub longest_ns: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.runs += other.runs;
        self.delivered += other.delivered;
        self.gap_messages += other.gap_messages;
        self.sessions += other.sessions;
        self.lost_bytes += other.lost_bytes;
        self.needless_bytes += other.needless_bytes;
        self.first_round_bytes += other.first_round_bytes;
        self.repeated_bytes += other.repeated_bytes;
        self.lost_repair_bytes += other.lost_repair_bytes;
        self.unusable_repair_bytes += other.unusable_repair_bytes;
        self.malformed += other.malformed;
        self.forged += other.forged;
        self.fragments += other.fragments;
        self.fragments_refused += other.fragments_refused;
        self.recovery.merge(&other.recovery);
        self.longest_ns = self.longest_ns.max(other.longest_ns);
    }

    /// Returns the bytes that were served again for each byte of lost answers.
    pub(crate) fn repeat_ratio(&self) -> f64 {
        self.repeated_bytes as f64 / (self.lost_repair_bytes + self.unusable_repair_bytes).max(1) as f64
    }
}
