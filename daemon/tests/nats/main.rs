//! Channels through real servers of NATS JetStream: messages compared one by one while processes and servers are killed,
//! stopped, emptied and cut off.
//!
//! The servers come from `.ci/nats-server`; without one each test prints its name as skipped. They listen on free ports of
//! the loopback interface, and their stores are temporary. `SHMCAST_NATS_KILLS` and `SHMCAST_NATS_MESSAGES`
//! make the tests of kills longer.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod access;
mod calls;
#[path = "../cli_support/mod.rs"]
mod cli_support;
mod creds;
mod daemons;
mod feed;
mod kills;
mod outages;
mod sealed;
mod server;
mod sites;
mod third;
mod tls;
mod verbs;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// One test at a time: each has servers and processes that want the machine.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How often the tests kill, where it is not `usual`.
fn kills(usual: u64) -> u64 {
    let said = std::env::var("SHMCAST_NATS_KILLS").ok();
    said.map_or(usual, |said| said.parse().expect("SHMCAST_NATS_KILLS is a number"))
}

/// How many messages the test of killed ends publishes, where it is not `usual`.
fn messages(usual: u64) -> u64 {
    let said = std::env::var("SHMCAST_NATS_MESSAGES").ok();
    said.map_or(usual, |said| said.parse().expect("SHMCAST_NATS_MESSAGES is a number"))
}
