//! Bridges between two hosts, which are network namespaces: real processes over a virtual wire.
//!
//! `SHMCAST_BRIDGE_MESSAGES` sets how many messages each test carries, `SHMCAST_KILLS` how often an end is killed. The
//! tests need root and the `ip` command; without them each prints its name as skipped. A relay in user space loses
//! packets, chosen from a seed that is printed.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "in a test, an unwrap that fails is a finding")]
#![allow(clippy::too_many_lines, reason = "a test is one story, read from top to bottom")]

mod anew;
mod check;
mod daemons;
#[path = "../../journal/tests/common/disk.rs"]
mod disk;
mod flood;
mod forged;
mod forger;
mod group;
mod hear;
mod hosts;
mod invoked;
mod leases;
mod loss;
mod nassau;
mod native;
mod past;
mod power;
mod promoted;
mod relay;
mod roles;
mod sessions;
mod standby;
mod tail;
mod told;
mod under_unit;
#[path = "../daemon_support/unit.rs"]
mod unit;
mod v6;

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    roles::play();
}
