//! Channels through a distributed log: NATS JetStream.
//!
//! ```text
//!   local ring ──> Sender ──blocks──> a stream of the servers ──blocks──> Receiver ──> local ring
//! ```
//! A bridge over UDP serves the hosts of one network. An engine serves sites, clouds and clusters that are far apart, and already has
//! encryption, accounts, retention and replicas.
//!
//! shmcast uses the engine as a log with a conditional append. The blocks of shmcast contain their own sequences. So shmcast does not rely
//! on the log's order or completeness.
//!
//! [`proto`] has the format and the state machines of both ends, without input and output. With the feature `nats`, `send`, `receive` and
//! `stream` run the state machines over a real client. Without the feature, starting an end fails with [`EngineError::NotBuilt`].
//!
//! A [`Sender`] is an ordinary reader of the ring. The channel's publisher never notices the sender, unless the sender takes a gate.
//! Messages that the servers cannot accept wait in the ring, or in the channel's journal.
#![forbid(unsafe_code)]

mod options;
pub mod proto;
mod results;
pub mod status;

#[cfg(not(feature = "nats"))]
mod absent;
#[cfg(not(feature = "nats"))]
pub use absent::{Receiver, Sender, check, stream};

#[cfg(feature = "nats")]
pub mod check;
#[cfg(feature = "nats")]
mod client;
#[cfg(feature = "nats")]
mod inlet;
#[cfg(feature = "nats")]
mod losses;
#[cfg(feature = "nats")]
mod messages;
#[cfg(feature = "nats")]
mod outlet;
#[cfg(feature = "nats")]
mod receive;
#[cfg(feature = "nats")]
mod send;
#[cfg(feature = "nats")]
mod state;
#[cfg(feature = "nats")]
pub mod stream;

#[cfg(feature = "nats")]
pub use receive::Receiver;
#[cfg(feature = "nats")]
pub use send::Sender;

pub use options::{ReceiverOptions, SenderOptions};

use shmcast::ChannelError;
use shmcast_bridge::BridgeError;

/// The reason why a bridge through an engine did not start, or why a command about a stream failed.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// This build has no client of NATS.
    #[error(
        "this build has no NATS: it was built without the feature `nats`, which `cargo build -p shmcast-daemon --features nats` \
         has"
    )]
    NotBuilt,
    /// The bridge's spec is invalid, or its thread could not be started.
    #[error(transparent)]
    Bridge(#[from] BridgeError),
    /// The local channel could not be opened.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No server was reached, or none accepted this client.
    #[error("NATS servers {servers}: {why}")]
    Connect {
        /// The addresses of the servers.
        servers: String,
        /// The reason, and what to do about it.
        why: String,
    },
    /// The start was told to stop before the servers had answered.
    #[error("stopped before the servers had answered")]
    Stopped,
    /// There is no such stream.
    #[error(
        "there is no stream {stream:?} on these servers: make it by `shmcast bridge stream create {channel}`, or send with \
         create = true"
    )]
    NoStream {
        /// The stream's name.
        stream: String,
        /// The channel's name.
        channel: String,
    },
    /// The servers refused an operation on the stream.
    #[error("stream {stream:?}: {why}")]
    Refused {
        /// The stream's name.
        stream: String,
        /// The servers' reason.
        why: String,
    },
    /// A block would exceed what the servers accept.
    #[error(
        "blocks of {block} B exceed the {most} B that the servers take: write block_bytes = {most}, or raise max_payload there"
    )]
    BlockTooLarge {
        /// The configured size of blocks, in bytes.
        block: usize,
        /// The largest size that the servers accept, in bytes.
        most: usize,
    },
}
