//! Channels through a distributed log: NATS JetStream.
//!
//! ```text
//!   local ring ──> Sender ──blocks──> a stream of the servers ──blocks──> Receiver ──> local ring
//! ```
//! A bridge of datagrams serves one network. Sites, clouds and clusters far apart are served by an engine that has
//! encryption, accounts, retention and replicas already. It is used as a log with a conditional append, and it is trusted
//! for neither order nor completeness: our sequences stand inside its messages. [`proto`] has the format and the state
//! machines of both ends, without input and output.
#![forbid(unsafe_code)]

pub mod proto;
