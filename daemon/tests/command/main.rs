//! The command `shmcast` as people and scripts use it: real processes, real files, real exit codes. The documents that show its
//! commands are played here as well, and every parser gets damaged inputs.
//!
//! | variable | effect |
//! |---|---|
//! | `SHMCAST_KILLS` | how many recorders are killed |
//! | `SHMCAST_INJECTIONS` | at how many of its system calls a recorder is killed or refused; 0 means all of them |
//! | `SHMCAST_FUZZ_RUNS`, `SHMCAST_FUZZ_SEED` | how many inputs each parser gets, and the first seed |

#![allow(clippy::too_many_lines, reason = "a test is one story, read from top to bottom")]
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod board;
mod cli;
mod directories;
mod doctor;
mod ends;
mod fuzz;
mod gates;
mod guide;
mod hiccups;
mod journal;
mod journal_cut;
mod journal_export;
mod journal_join;
mod journal_limits;
mod journal_times;
mod limits;
mod pcap;
mod record;
mod record_places;
mod recorder_faults;
mod replay;
mod resume_sequences;
mod secrets;
mod stdio;
mod verify_release;
mod wireshark;
