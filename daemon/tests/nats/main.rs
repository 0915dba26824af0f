//! Channels through real servers of NATS JetStream: messages compared one by one while processes and servers are killed,
//! stopped, emptied and cut off.
//!
//! The servers come from `.ci/nats-server`; without that program each test prints its name as skipped. They listen on free ports of the
//! loopback interface, and their stores are temporary. Each test starts its own servers, because a start takes less than a tenth of a
//! second. `SHMCAST_NATS_KILLS` and `SHMCAST_NATS_MESSAGES` make the tests of kills longer.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod access;
mod anew;
mod boards;
mod calls;
mod creds;
mod daemons;
mod events;
mod faults;
mod feed;
mod gates;
mod kills;
mod outages;
mod refusals;
mod rivals;
mod rotation;
mod sealed;
mod sites;
mod times;
mod tls;
mod verbs;

use shmcast_testkit::number;

/// The number of kills in a test, if it is not `usual`.
fn kills(usual: u64) -> u64 {
    number("SHMCAST_NATS_KILLS", usual)
}

/// The number of messages in a test, if it is not `usual`.
fn messages(usual: u64) -> u64 {
    number("SHMCAST_NATS_MESSAGES", usual)
}

/// The process that becomes a daemon under the unit.
#[test]
#[ignore = "starts a daemon under the unit for other tests"]
fn launch() {
    shmcast_testkit::unit::launch();
}
