//! Channels between hosts over MoldUDP64.
//!
//! ```text
//!   local ring ──> Egress ──lines, leases──> Ingress ──> local ring      one pinned thread each
//!   local ring ──> repair <────requests───── Ingress                     the egress's second thread
//! ```
//! A bridge uses channels through the client library, as any program does, and needs no daemon. The modules of this crate are:
//!
//! | module | content |
//! |---|---|
//! | [`proto`] | the wire format and the state machines of both ends; without sockets, clocks and threads, so a seeded simulation can test them with ten thousand bad networks in a minute |
//! | [`egress`], `repair`, [`ingress`] | the threads that drive the state machines over sockets and rings |
//! | [`spec`] | a bridge's configuration |
//! | [`socket`] | opens and tunes the sockets |
//! | [`status`] | the state and the counters of a bridge |
//! | [`local`] | the channel into which an ingress publishes |
//! | [`backlog`] | deliveries that wait for the local channel |
//! | [`origins`] | detects loops between hosts |
//! | [`promotion`] | makes a mirror the origin of its channel |
//! | [`pcap`] | reads and writes captures |
//! | [`private`] | reads files with secrets |
//!
//! Functions of this crate have no examples: programs run a bridge as the command `shmcast bridge` or as a table of the daemon's configuration. The simulation
//! of [`proto`] shows how its state machines are used.
#![forbid(unsafe_code)]

pub mod backlog;
pub mod egress;
mod end;
pub mod files;
pub mod gate;
pub mod ingress;
pub mod local;
mod native;
pub mod origins;
pub mod pcap;
pub mod private;
pub mod promotion;
pub mod proto;
mod renewal;
mod repair;
mod sending;
pub mod socket;
pub mod spec;
mod state;
pub mod status;
pub mod table;
pub mod thread;
pub mod times;
pub mod waiting;

pub use end::RunningEnd;
pub use native::{Keys, KeysSeen, read_keys};
use proto::session::SessionError;
use proto::wire::MAX_DATAGRAM_BYTES;
pub use sending::term_at;
use shmcast::ChannelError;
use socket::SocketError;
use std::io;

/// A reason why a bridge does not start or refuses an order.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The bridge's spec is invalid.
    #[error("bridge {bridge}: {}", problems.join("; "))]
    Spec {
        /// The bridge.
        bridge: String,
        /// The problems, each with its field.
        problems: Vec<String>,
    },
    /// The local channel could not be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A socket could not be opened.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The session's name is invalid.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The channel allows messages that are too long for a packet.
    #[error(
        "channel {channel:?} takes messages of up to {max_message} B, but a packet of {payload_bytes} B carries at most \
         {most} B: make the channel with max_message {most}{}",
        larger_packet(max_message + (payload_bytes - most) as u64)
    )]
    MessageTooLong {
        /// The channel.
        channel: String,
        /// The longest message that the channel takes, in bytes.
        max_message: u64,
        /// The largest packet, in bytes.
        payload_bytes: usize,
        /// The longest message that fits such a packet, in bytes.
        most: usize,
    },
    /// A bridge without peers was told to take over.
    #[error("this bridge has no peers to take over from: give it role = \"auto\", claim_bind and peers")]
    NoPeers,
    /// The thread could not be pinned.
    #[error(
        "pin to CPU {cpu}: {source}: give one of /sys/devices/system/cpu/online, of which a cpuset may allow fewer"
    )]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The keys file could not be used.
    #[error("keys file {}: {why}", path.display())]
    Keys {
        /// The file.
        path: std::path::PathBuf,
        /// The problem, and what to do about it.
        why: String,
    },
    /// The state file could not be opened. It has the progress of an earlier bridge.
    #[error("state file {}: {source}: give another, or one in a directory that is there and may be written to", path.display())]
    State {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system could not start a thread or provide random bytes.
    #[error("start the bridge's threads: {0}")]
    Start(io::Error),
}

/// Returns a text that advises the user to raise `payload_bytes` to `bytes`. If no datagram can be that large, the text is empty.
fn larger_packet(bytes: u64) -> String {
    match bytes <= MAX_DATAGRAM_BYTES as u64 {
        true => format!(", or raise payload_bytes to {bytes} if the network's MTU allows"),
        false => String::new(),
    }
}

impl BridgeError {
    /// Returns an error if the spec is invalid.
    fn check(spec: &spec::BridgeSpec) -> Result<(), BridgeError> {
        let mut problems = spec.problems();
        if spec.engine != spec::Engine::Lines {
            problems.push(("engine", "another package carries it: shmcast-engine".to_owned()));
        }
        if problems.is_empty() {
            return Ok(());
        }
        let problems = problems.into_iter().map(|(field, what)| format!("{field}: {what}")).collect();
        Err(BridgeError::Spec { bridge: spec.title().to_owned(), problems })
    }

    /// Makes the error of a spec with one problem.
    fn of(spec: &spec::BridgeSpec, problem: &str) -> BridgeError {
        BridgeError::Spec { bridge: spec.title().to_owned(), problems: vec![problem.to_owned()] }
    }
}
