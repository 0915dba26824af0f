//! Captured packets: UDP payloads out of a capture file, and packets of a bridge into one.
//!
//! [`Capture`] reads what tcpdump and Wireshark write, and says of every packet that it leaves out why it did.
//! [`CaptureFile`] writes what they read, from a thread of its own that no bridge ever waits for. The file formats are
//! `pcap-parser`'s affair and the headers of packets `etherparse`'s; a file's bytes are claims like a peer's, so nothing
//! here panics on them and no length that a file gives is trusted with memory.

mod link;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use link::Skipped;
pub use read::{Capture, CaptureCounters, CaptureError, Datagram};
pub use write::{CaptureFile, CaptureFileError, Captured, Tap};
