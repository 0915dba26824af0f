//! Attachments to a daemon: the request for a channel, staying attached when the daemon is replaced, and sleeping until the daemon wakes
//! the reader.
//!
//! A program that uses channels in files needs none of these modules. No message passes through them.

pub(crate) mod connect;
pub(crate) mod keeper;
pub(crate) mod park;
