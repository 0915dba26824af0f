//! Bridges between hosts, which are network namespaces: real processes over virtual wires.
//!
//! `SHMCAST_BRIDGE_MESSAGES` sets how many messages each test carries, `SHMCAST_KILLS` how often an end is killed. The
//! tests need root and the `ip` command; without them each prints its name as skipped. A relay in user space loses
//! packets, chosen from a seed that is printed.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "in a test, an unwrap that fails is a finding")]
#![allow(clippy::too_many_lines, reason = "a test is one story, read from top to bottom")]

mod anew;
mod check;
mod clocks;
mod daemons;
mod feed;
mod flood;
mod forged;
mod forger;
mod forms;
mod gaps;
mod gated_mirror;
mod group;
mod hear;
mod hops;
mod invoked;
mod last_message;
mod leases;
mod loss;
mod nassau;
mod native;
mod pasts;
mod power;
mod promoted;
mod promoted_events;
mod relay;
mod repairs;
mod replay;
mod roles;
mod sessions;
mod standby;
mod standbys;
mod states;
mod status_output;
mod strict;
mod under_unit;
mod v6;

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    roles::play();
}

/// The process that becomes a daemon under the unit.
#[test]
#[ignore = "starts a daemon under the unit for other tests"]
fn launch() {
    shmcast_testkit::unit::launch();
}
