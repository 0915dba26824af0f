//! System calls that other packages need and that no library wraps:
//!
//! - many datagrams in one call, and multicast groups of one source
//! - descriptors in a packet
//! - the addresses of network interfaces
//! - a copy of a descriptor that has only a number
//! - descriptors that forked children do not keep
//! - whether a file is open
//! - the clock's error
//! - the length of a thread's time slice
//!
//! The module knows nothing of rings and segments. It is in this package because the client library and the daemon contain no `unsafe`
//! code.

pub mod clock;
pub mod datagrams;
pub mod descriptors;
pub mod fork;
pub mod handoff;
pub mod interfaces;
pub mod lease;
pub mod slice;
