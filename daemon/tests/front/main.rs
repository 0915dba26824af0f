//! The daemon's front, as users meet it: its socket, who is told what, floods, a slow name service, churn, and starts that
//! are cut short.
//!
//! `SHMCAST_CHURN` says how many connections the test of churn makes (10,000 is the full size); `SHMCAST_STARTS` how many starts
//! are cut short.
#![allow(clippy::unwrap_used, unreachable_pub, reason = "in a test, an unwrap that fails is a finding")]

#[path = "../daemon_support/mod.rs"]
mod daemon_support;

mod back;
mod churn;
mod events;
mod flood;
mod inherited;
mod names;
mod socket;
mod starts;

use std::path::PathBuf;

/// `nobody`, and `daemon`, on every Debian.
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
