//! The logic of the bridge between hosts, without any input or output.
//!
//! Each type here is a state machine. The caller passes datagrams and the time to the machine's `handle_*` functions, which pass deliveries
//! to a callback. The `poll_*` functions return the next datagram to send, or the next step. `next_deadline` returns the time of the next
//! call. This module has no socket, clock, thread or log, so a whole network of these machines can run inside one test with a virtual clock
//! (see `sim`).
//!
//! ```text
//!   ring ──> Sender ──lines──> SourceLock ──> Receiver ──> ring      live data, heartbeats, end of session
//!   ring ──> Replay <─request─ Receiver (Gaps, Store)     repairs, unicast
//!   LeaseServer <──control──> LeaseClient                 who may have unicast data at all
//! ```
//!
//! Times are `u64` nanoseconds of any monotonic clock. A receiver uses the clock of `awake`.
//!
//! The bytes of a peer are not trusted. They are parsed completely, checked, and only then used. No code here panics on bytes of a peer.
//! Every table has a bound, and every loop ends.

pub(crate) mod awake;
mod bytes;
pub(crate) mod claim;
pub mod control;
pub mod counters;
pub mod gap;
pub(crate) mod lease;
pub(crate) mod lease_client;
pub mod limit;
pub mod link;
pub mod native;
pub(crate) mod pace;
pub mod receiver;
pub mod replay;
pub mod sender;
pub mod session;
pub(crate) mod source;
pub mod store;
pub(crate) mod term;
pub mod wire;

/// One microsecond in nanoseconds.
pub const MICROSECOND_NS: u64 = 1_000;
/// One millisecond in nanoseconds.
pub const MILLISECOND_NS: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECOND_NS: u64 = 1_000_000_000;

/// The greatest number of lines that a receiver listens to. Lines are copies of one feed.
pub const MAX_LINES: usize = 4;
/// The greatest number of retransmission servers that a receiver asks.
pub const MAX_SERVERS: usize = 8;
/// The default payload of a datagram, in bytes. It fits an Ethernet frame and leaves room for the headers of tunnels.
pub const DEFAULT_PAYLOAD_BYTES: usize = 1_400;

/// Performs one step of SplitMix64 (Steele, Lea, Flood 2014). It derives any number of random numbers from one random seed.
fn splitmix(state: u64) -> u64 {
    let state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
#[allow(unreachable_pub, reason = "its parts are each other's")]
mod sim;

#[cfg(test)]
mod scripts;
