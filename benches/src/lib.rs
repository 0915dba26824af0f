//! The rig that measures shmcast beside kernel multicast, the bare minimum, and its peers.
//!
//! A round is one publisher process and N receiver processes that move numbered, checked messages through one transport. The rig ([`rig`])
//! starts them, paces them, collects what each saw, and reports how quiet the machine was meanwhile. A question ([`questions`]) is a list
//! of rounds, interleaved so that drift of the machine affects every transport alike. `METHOD.md` beside this source says what the figures
//! mean.
//!
//! It is a library so that programs with other transports (`peers/`) play the same roles by the same rules.
#![forbid(unsafe_code)]

pub mod ideal;
pub mod questions;
pub mod report;
pub mod rig;
pub mod transport;
