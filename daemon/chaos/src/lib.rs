//! Random stories with the real processes, and an oracle that judges the result.
//!
//! A [`story`] is a list of steps that is made from a seed ([`generate`]). The runner ([`run`]) plays the story with real daemons, commands
//! and [`actor`]s. The runner and the actors log their actions and the received events ([`log`]). The [`oracle`] reads only these logs, and
//! does not depend on the implementation. [`shrink`] makes a failing story shorter.

pub mod actor;
pub mod campaign;
pub mod faults;
pub mod generate;
pub mod identity;
pub mod keys;
pub mod log;
pub mod matrix;
pub mod oracle;
pub mod payload;
pub mod report;
pub mod run;
pub mod shrink;
mod standstill;
#[cfg(test)]
mod stories;
pub mod story;
mod words;
