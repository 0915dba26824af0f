//! MoldUDP64 version 1.00: checked views of received datagrams, and writers of our own ones.
//!
//! ```text
//! downstream: session[10] | sequence u64 | count u16 | count x ( length u16 | data[length] )   big-endian
//! request:    session[10] | sequence u64 | count u16
//! ```
//! Count 0 is a heartbeat, and count 0xFFFF is the end of the session. The sequence of a heartbeat or an end is the next one expected. A
//! view is made only if the whole datagram is valid, so users of a view need no further checks.
//!
//! The module `message` is the lowest layer. The module `mold` has the plain packets. The module `packet` uses `message` and `mold`, and
//! also knows native packets. shmcast's own control datagrams are in `control`.

pub(super) mod message;
pub(super) mod mold;
mod packet;
#[cfg(test)]
mod tests;

pub(super) use message::Form;
pub use message::{LENGTH_BYTES, Malformed, Message, MessageIter, Messages, Meta};
pub use mold::{
    HEADER_BYTES, Head, MAX_DATAGRAM_BYTES, MAX_MESSAGES, PacketWriter, REQUEST_BYTES, Request,
    end_of_session, heartbeat, max_message_bytes,
};
pub(crate) use packet::segment_of;
pub use packet::{Body, Downstream};
