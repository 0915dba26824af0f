//! The daemon as its users meet it: its socket, the rules for events, floods, a slow name service, churn, and interrupted starts.
//!
//! `SHMCAST_CHURN` sets how many connections the test of churn makes (10,000 is the full size), `SHMCAST_STARTS` how
//! many starts are interrupted.

mod back;
mod churn;
mod events;
mod exhausted;
mod flood;
mod folder;
mod inherited;
mod kept;
mod names;
mod socket;
mod starts;

use shmcast_testkit::process::{my_role, my_socket};

/// The numbers of `nobody` and of `daemon`, on every Debian.
const NOBODY: u32 = 65534;
const DAEMON: u32 = 1;

#[test]
#[ignore = "a role that the tests here start processes for"]
fn play() {
    let Some(role) = my_role() else { return };
    let socket = my_socket();
    match role.as_str() {
        "connector" => flood::connect_for_ever(&socket),
        "asker" => flood::ask_for_ever(&socket),
        "refused" => events::be_refused(&socket),
        "reader" => names::read_once(&socket),
        "waiter" => names::wait_for_the_next_segment(&socket),
        "by-group" => names::read_by_group(&socket),
        other => panic!("no role {other}"),
    }
}
