//! The daemon's front as users see it: its socket, the rules for events, floods, a slow name service, churn, and
//! interrupted starts.
//!
//! `SHMCAST_CHURN` sets how many connections the test of churn makes (10,000 is the full size), `SHMCAST_STARTS` how
//! many starts are interrupted.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "in a test, an unwrap that fails is a finding")]

#[path = "../daemon_support/mod.rs"]
mod daemon_support;

mod back;
mod churn;
mod events;
mod exhausted;
mod flood;
mod inherited;
mod kept;
mod names;
mod socket;
mod starts;

use std::path::PathBuf;

/// The numbers of `nobody` and of `daemon`, on every Debian.
const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;
const SOCKET: &str = "SHMCAST_TEST_SOCKET";

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = daemon_support::my_role() else { return };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    match role.as_str() {
        "connector" => flood::connect_for_ever(&socket),
        "asker" => flood::ask_for_ever(&socket),
        "refused" => events::be_refused(&socket),
        "reader" => names::read_once(&socket),
        other => panic!("no role {other}"),
    }
}
