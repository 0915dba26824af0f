//! System calls that the other packages need and no library wraps: many datagrams in one call, multicast groups of one source,
//! descriptors beside a packet, the addresses of network interfaces, what forked children keep, whether a file is open, how wrong the clock may be, and the length of a
//! thread's turns.
//!
//! Knows nothing of rings and segments. It stands in this package because the others contain no `unsafe` code.

pub mod clock;
pub mod datagrams;
pub mod fork;
pub mod handoff;
pub mod interfaces;
pub mod lease;
pub mod slice;
