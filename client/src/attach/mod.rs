//! Attaching to a daemon: the request for a channel, staying attached when the daemon is replaced, and sleeping until it
//! rings.
//!
//! A program that uses channels in files needs none of this, and messages never pass through it.

pub(crate) mod connect;
pub(crate) mod keeper;
pub(crate) mod park;
