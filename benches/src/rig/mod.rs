//! The rig plays a round: it starts processes, sets the pace, counts messages, and measures how quiet the machine
//! was. No file here depends on a certain transport.
//!
//! | file | what |
//! |---|---|
//! | [`spec`] | a round and the reports of its processes; the words on their pipes |
//! | [`names`] | the transports, by name |
//! | [`payload`] | numbered, stamped, checked messages |
//! | [`publish`], [`receive`] | the two roles, run in processes of their own |
//! | [`child`], [`files`] | services for both roles: a line to the rig, a CPU, the round's files |
//! | [`windows`] | the roles in long rounds, for which not every message is kept |
//! | [`visitors`] | receivers that come and go during a round |
//! | [`hosts`] | two hosts and the wire between them, on this machine |
//! | [`bridge`] | the bridge's processes in a round |
//! | `journal` | rounds with a recorder in them, and the limits of the disk that they write to |
//! | [`gate`] | holds a publisher back for its slowest receiver, for transports that would lose messages |
//! | [`round`] | starts the processes, lets them go together, collects their reports |
//! | `player`, `program` | a process, from its start to its end, and the copy of a program that it runs |
//! | [`probe`] | how far apart the CPUs are, and who else used them |
//! | [`machine`] | the sheet that goes with every figure |
//! | [`stats`] | histograms, percentiles, medians of rounds |
//! | [`plan`] | interleaved rounds of several contestants; repeats rounds during which the machine was not quiet |

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
