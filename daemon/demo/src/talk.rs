//! The protocol between the demo and its reader processes. All readers of a transport share two pipes, one as their stdin and one as their
//! stdout.
//!
//! The demo sends an order by writing one byte for each reader. A reader that is ready for the next order reads one of these bytes from
//! stdin. It answers by writing one byte to stdout. When all readers have answered, the demo sends the next order.
//!
//! | order | what a reader does | answers |
//! |---|---|---|
//! | | opens its source | [`READY`] |
//! | [`GO`] | receives the messages of the next turn | [`STARTED`], and [`DONE`] when it has the last one |
//! | [`REPORT`], to one reader at a time | writes a latency for each message, and ends | 8 bytes per message |
//!
//! A reader that waits for an order sleeps in `read`. So the readers of one transport use no CPU during the turn of the other
//! transport.

/// The reader has opened its source.
pub(crate) const READY: u8 = b'!';
/// The next turn begins.
pub(crate) const GO: u8 = b'g';
/// The reader is about to look for the first message of the turn.
pub(crate) const STARTED: u8 = b's';
/// The reader has the messages that came in this turn.
pub(crate) const DONE: u8 = b'd';
/// There are no more turns.
pub(crate) const REPORT: u8 = b'r';

/// The latency of a message that never came.
pub(crate) const LOST: u64 = u64::MAX;

/// The size of the stamp at the start of a message in bytes. The stamp consists of the send time in ticks and the message
/// number.
pub(crate) const STAMP: usize = 16;

/// Writes the stamp of a message.
pub(crate) fn stamp(message: &mut [u8], sent: u64, number: u64) {
    message[..8].copy_from_slice(&sent.to_le_bytes());
    message[8..STAMP].copy_from_slice(&number.to_le_bytes());
}

/// Returns the send time and the number of a message, or `None` if the message is too short to have a stamp.
pub(crate) fn stamp_of(message: &[u8]) -> Option<(u64, u64)> {
    let (stamp, _) = message.split_at_checked(STAMP)?;
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of a stamp"));
    Some((word(&stamp[..8]), word(&stamp[8..])))
}

/// Makes the datagram that ends a turn of kernel multicast. It contains the number of the turn. A reader that lost the last message learns
/// from this datagram that the turn is over.
pub(crate) fn end_of_turn(turn: u64) -> [u8; 8] {
    turn.to_le_bytes()
}
