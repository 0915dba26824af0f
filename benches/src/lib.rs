//! The rig that compares shmcast with kernel multicast, with an ideal ring, and with other projects (peers).
//!
//! A round is one publisher process and N receiver processes. The publisher sends numbered and checked messages through one transport. The
//! rig ([`rig`]) starts the processes, sets the pace, and collects their reports. It also reports how quiet the machine was during the
//! round.
//!
//! A question ([`questions`]) is a list of rounds. The rounds of all transports alternate, so that changes of the machine affect all
//! transports in the same way. `METHOD.md` beside this source says what the figures mean.
//!
//! The rig is a library, so that programs with other transports (`peers/`) can use it.
#![forbid(unsafe_code)]

pub mod ideal;
pub mod questions;
pub mod report;
pub mod rig;
pub mod transport;
