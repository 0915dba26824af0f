//! Channels between hosts over MoldUDP64.
//!
//! [`proto`] is the wire format and every state machine of both ends, without sockets, clocks or threads, so that a seeded
//! simulation can put them through ten thousand bad networks a minute. [`spec`] is what a bridge is told. [`pcap`] reads and
//! writes captures.

pub mod pcap;
pub mod proto;
pub mod spec;
