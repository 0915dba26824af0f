//! The parts that the tests of all packages share. Each exists only once, here, so that all tests wait, start and clean up in the same way.
//!
//! | module | what it has |
//! |---|---|
//! | `wait` | waits with a limit, which say what they waited for |
//! | `process` | child processes that are killed and reaped when dropped; roles that a test program plays |
//! | `place` | temporary directories, ports, and what this machine lacks |
//! | `turn` | a limit to how many tests with many processes run at a time |
//! | `disk` | a file system whose power can be cut, and a small one |
//! | `model` | a checker that walks through every state of a model |
//! | `daemon`, `raw`, `bystanders` | `shmcastd` as a process, a connection that may break the rules, traffic that must not be disturbed |
//! | `command` | the command `shmcast` in a directory of channels of the test's own |
//! | `journal` | what the files of a journal hold |
//! | `hosts` | hosts with wires between them, in network namespaces |
//! | `nats` | servers of NATS: alone, as a cluster, behind a relay |
//! | `unit` | the daemon as the shipped unit runs it |
//!
//! Everything here panics where a product would return an error: in a test, that is the finding.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]
#![allow(clippy::missing_panics_doc, reason = "everything here panics when the test has failed")]
#![allow(
    missing_docs,
    reason = "names of a test kit say what they do; what they do not say stands beside them"
)]
#![forbid(unsafe_code)]

#[cfg(feature = "daemon")]
pub mod bystanders;
#[cfg(feature = "daemon")]
pub mod command;
#[cfg(feature = "daemon")]
pub mod daemon;
pub mod disk;
#[cfg(feature = "daemon")]
pub mod hosts;
#[cfg(feature = "journal")]
pub mod journal;
pub mod model;
#[cfg(feature = "daemon")]
pub mod nats;
pub mod place;
pub mod process;
#[cfg(feature = "daemon")]
pub mod raw;
pub mod turn;
#[cfg(feature = "daemon")]
pub mod unit;
pub mod wait;

pub use place::{is_root, scratch, skip, works};
pub use process::Process;
pub use wait::{PATIENCE, Waited, number, wait_for, wait_until};
