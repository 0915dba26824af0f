//! The rig plays a round: it starts processes, sets the pace, counts messages, and measures how quiet the machine was. No file here depends
//! on a certain transport.
//!
//! | file | what |
//! |---|---|
//! | [`spec`] | a round and the reports of its processes; the words on their pipes |
//! | [`names`] | the transports, by name |
//! | [`payload`] | numbered, stamped, checked messages |
//! | [`publish`], [`receive`] | the two roles, each in a separate process |
//! | [`child`], [`files`] | functions for both roles: they exchange lines with the rig, bind to a CPU, and name the round's files |
//! | [`windows`] | long rounds, which keep a histogram for each window of time, and not the time of each message |
//! | [`visitors`] | receivers that come and go during a round |
//! | [`hosts`] | two hosts and the wire between them, on this machine |
//! | [`bridge`] | the bridge's processes in a round |
//! | `journal` | rounds with a recorder, and the limits of the recorder's disk |
//! | [`gate`] | makes a publisher wait for its slowest receiver, for transports that would lose messages |
//! | [`round`] | starts the processes, lets them begin together, collects their reports |
//! | `player`, `program` | a process, from its start to its end, and the copy of a program that it runs |
//! | [`probe`] | the distance between the CPUs, and their use by other programs |
//! | [`machine`] | the properties of the machine, which belong to every figure |
//! | [`stats`] | histograms, percentiles, medians of rounds |
//! | [`plan`] | alternating rounds of several contestants; repeats rounds during which the machine was not quiet |

pub mod bridge;
pub mod child;
pub mod files;
pub mod gate;
pub mod hosts;
#[cfg(feature = "journal")]
pub mod journal;
pub mod machine;
pub mod names;
pub mod payload;
pub mod plan;
mod player;
pub mod probe;
mod program;
pub mod publish;
pub mod receive;
pub mod round;
pub mod spec;
pub mod stats;
pub mod visitors;
pub mod windows;
