//! Gates: readers that a publisher waits for, within a limit.
//!
//! ```text
//!   publisher                           gates/risk                      reader
//!   looks, once in a quarter   pread   +-----------------+   stores    Subscriber::builder("ticks").gate("risk")
//!   of the lag or less      <--------- | position, check | <---------  holds the file's lock while it lives
//!   counts               -----------> gates/.figures  -----------> tools
//! ```
//! | module | content |
//! |---|---|
//! | `config` | the properties that the channel's owner sets |
//! | `name` | the names of gates, and the errors of refused gates |
//! | `state` | the states of a gate, and the one function that changes them |
//! | `gates` | the publisher's side |
//! | `held` | the reader's side |
//! | `model` | both sides as processes that stop and die, for the tests |
//! | `directory/gates.rs` | the files of gates |

mod config;
mod gates;
mod held;
#[cfg(test)]
mod model;
mod name;
mod state;

pub use config::{Gate, Then};
pub(crate) use config::{Settled, settle};
pub use gates::GateStatus;
pub(crate) use gates::{Gates, Meanwhile};
pub(crate) use held::{HeldGate, NotHeld};
pub use name::{GateError, GateName};
pub use state::GateState;
pub(crate) use state::Patience;
