//! Attachments to a daemon. The modules request a channel, keep the program attached when the daemon is replaced, and let a reader sleep
//! until the daemon wakes it.
//!
//! A program that uses channels in files needs none of these modules. No message passes through them.

pub(crate) mod connect;
pub(crate) mod keeper;
pub(crate) mod park;
