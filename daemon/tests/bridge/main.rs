//! Bridges between two hosts that are network namespaces, as real processes over a real (virtual) wire.
//!
//! `SHMCAST_BRIDGE_MESSAGES` says how many messages are carried in each test, `SHMCAST_KILLS` how often an end is killed.
//! Needs root and the `ip` command; without them each test says so by name. Loss is made by a relay in user space, from
//! a seed that is printed.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "in a test, an unwrap that fails is a finding")]

mod daemons;
mod flood;
mod forged;
mod hosts;
mod invoked;
mod leases;
mod loss;
mod relay;
mod roles;
mod sessions;
mod tail;
mod under_unit;
#[path = "../daemon_support/unit.rs"]
mod unit;

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    roles::play();
}
