//! The daemon as a process: its configuration, its sockets, its channels, and everything that can end while it runs.
//!
//! `SHMCAST_UNDER_UNIT=1` restricts every daemon as the shipped unit does. Each module says which variables make its tests longer.
#![allow(clippy::too_many_lines, reason = "a test is one story, read from top to bottom")]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod access;
mod boards;
mod bridges;
mod c;
mod comeback;
mod config;
mod doctor;
mod front;
mod gated_board;
mod gated_bridge;
mod gates;
mod gates_lost;
mod generations;
mod hostile;
mod journals;
mod journals_control;
mod journals_files;
mod kinds;
mod library;
#[cfg(feature = "http")]
mod metrics;
mod park;
mod patience;
mod reboot;
mod record_events;
mod refused_threads;
mod reload;
mod restart;
mod retention;
mod selects;
mod stalled;
mod takeover;
#[cfg(feature = "top")]
mod top;
#[cfg(feature = "tune")]
mod tune;
mod under_unit;
mod units;
mod waiting;

#[test]
#[ignore = "becomes the program that its command line ends with"]
fn launch() {
    shmcast_testkit::unit::launch();
}
