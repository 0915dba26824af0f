//! Capture files: reads UDP payloads from one, and writes the packets of a bridge to one.
//!
//! [`Capture`] reads the files that tcpdump and Wireshark write, and counts by reason the packets that it
//! leaves out. [`CaptureFile`] writes files that they can read. It has its own thread, and no bridge ever
//! waits for that. `pcap-parser` parses the file formats, and `etherparse` the headers of packets. A file's
//! bytes are claims like a peer's: nothing here panics on them, and no length that a file gives decides alone
//! how much memory is taken.

mod link;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use link::Skipped;
pub use read::{Capture, CaptureCounters, CaptureError, Datagram};
pub use write::{CaptureFile, CaptureFileError, Captured, PacketFile, Tap};
