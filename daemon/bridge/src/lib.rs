//! Channels between hosts over MoldUDP64.
//!
//! ```text
//!   local ring ──> Egress ──lines, leases──> Ingress ──> local ring      one pinned thread each
//!   local ring ──> repair <────requests───── Ingress                     the egress's second thread
//! ```
//! [`proto`] is the wire format and every state machine of both ends, without sockets, clocks or threads, so that a seeded
//! simulation can put them through ten thousand bad networks a minute. [`spec`] is what a bridge is told, [`socket`] what
//! it asks of the kernel, [`egress`], `repair` and [`ingress`] the threads that drive the machines over sockets and rings,
//! [`status`] what they show of it, [`origins`] how a circle is known. [`pcap`] reads and writes captures. A bridge uses
//! channels through the client library, as any program does; it needs no daemon.
#![forbid(unsafe_code)]

pub mod egress;
pub mod ingress;
pub mod origins;
pub mod pcap;
pub mod proto;
mod repair;
mod sending;
pub mod socket;
pub mod spec;
mod state;
pub mod status;
mod thread;

use proto::session::SessionError;
use proto::wire::MAX_DATAGRAM_BYTES;
use shmcast::ChannelError;
use socket::SocketError;
use std::io;

/// Why a bridge could not start.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// What it was told makes no sense.
    #[error("bridge {bridge}: {}", problems.join("; "))]
    Spec {
        /// The bridge.
        bridge: String,
        /// What is wrong, each with its field.
        problems: Vec<String>,
    },
    /// The local channel.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A socket.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The session's name.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Messages of the channel may be too long for a packet.
    #[error(
        "channel {channel:?} takes messages of up to {max_message} B, but a packet of {payload_bytes} B carries at most \
         {most} B: make the channel with max_message {most}{}",
        larger_packet(max_message + (payload_bytes - most) as u64)
    )]
    MessageTooLong {
        /// The channel.
        channel: String,
        /// What it takes.
        max_message: u64,
        /// The largest packet.
        payload_bytes: usize,
        /// The largest message that fits it.
        most: usize,
    },
    /// The thread could not be pinned.
    #[error("pin to CPU {cpu}: {source}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// The system's error.
        source: io::Error,
    },
    /// The file that says how far an earlier bridge had come.
    #[error("state file {}: {source}: give another, or one in a directory that is there and may be written to", path.display())]
    State {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The system gave no thread, or no randomness for cookies.
    #[error("start the bridge's threads: {0}")]
    Start(io::Error),
}

/// What else to do about a message that needs a packet of so many bytes, if there are such.
fn larger_packet(bytes: u64) -> String {
    match bytes <= MAX_DATAGRAM_BYTES as u64 {
        true => format!(", or raise payload_bytes to {bytes} if the network's MTU allows"),
        false => String::new(),
    }
}

impl BridgeError {
    /// Fails when the spec does not make sense.
    fn check(spec: &spec::BridgeSpec) -> Result<(), BridgeError> {
        let problems = spec.problems();
        if problems.is_empty() {
            return Ok(());
        }
        let problems = problems.into_iter().map(|(field, what)| format!("{field}: {what}")).collect();
        Err(BridgeError::Spec { bridge: spec.title().to_owned(), problems })
    }
}
