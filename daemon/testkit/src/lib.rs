//! The parts that the tests of all packages share, so that all tests wait, start processes and clean up in the same way.
//!
//! | module | contents |
//! |---|---|
//! | `wait` | waits with a time limit |
//! | `process` | child processes that are killed and reaped when dropped; roles that a test program plays |
//! | `place` | temporary directories, ports, and checks of what this machine supports |
//! | `turn` | a limit on the number of tests with many processes that run at the same time |
//! | `clock` | wall clocks that a test sets |
//! | `disk` | a file system whose power can be cut, and a small one |
//! | `model` | a checker that visits every state of a model |
//! | `daemon` | `shmcastd` as a process |
//! | `raw` | a client that can break the rules of the daemon's protocol |
//! | `bystanders` | traffic that a test must not disturb |
//! | `command` | the command `shmcast` with a private directory of channels |
//! | `journal` | the contents of a journal's files |
//! | `hosts` | hosts with wires between them, in network namespaces |
//! | `nats` | servers of NATS: alone, as a cluster, behind a relay |
//! | `unit` | the daemon under the restrictions of the shipped unit |
//!
//! Functions here panic where a product would return an error. In a test, the panic is the finding.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]
#![allow(clippy::missing_panics_doc, reason = "everything here panics when the test has failed")]
#![allow(
    missing_docs,
    reason = "names of a test kit say what they do; what they do not say stands beside them"
)]
#![forbid(unsafe_code)]

#[cfg(feature = "daemon")]
pub mod bystanders;
pub mod clock;
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
#[cfg(feature = "journal")]
pub use wait::REST;
pub use wait::{PATIENCE, Waited, number, wait_for, wait_until, wait_within};
