//! Channels between hosts over MoldUDP64.
//!
//! What is here so far is [`proto`]: the wire format and every state machine of both ends, without sockets, clocks or
//! threads, so that a seeded simulation can put them through ten thousand bad networks a minute. The threads that drive
//! them over real sockets are not written yet; until then nothing in the daemon uses this module.

pub mod proto;
