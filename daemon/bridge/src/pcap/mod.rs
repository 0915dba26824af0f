//! Capture files: reads UDP payloads from one, and writes the packets of a bridge to one.
//!
//! [`Capture`] reads the files that tcpdump and Wireshark write, and counts by reason the packets that it
//! leaves out. [`CaptureFile`] writes files that they can read. It has its own thread, and no bridge ever
//! waits for that. `pcap-parser` parses the file formats, and `etherparse` the headers of packets. A file's
//! bytes are claims like a peer's: nothing here panics on them, and no length that a file gives decides alone
//! how much memory is taken.
//!
//! [`unwrap`] puts the packets of a captured feed in order.
//!
//! Without the feature `captures` neither parser is built. Then [`Capture`], [`CaptureFile`] and [`PacketFile`] are refused where they are
//! opened.

#[cfg(not(feature = "captures"))]
mod absent;
#[cfg(feature = "captures")]
mod link;
#[cfg(feature = "captures")]
mod read;
#[cfg(feature = "captures")]
#[cfg(test)]
mod tests;
mod told;
pub mod unwrap;
#[cfg(feature = "captures")]
mod write;

#[cfg(not(feature = "captures"))]
pub use absent::{Capture, CaptureError, CaptureFile, CaptureFileError, PacketFile, Tap};
#[cfg(feature = "captures")]
pub use read::{Capture, CaptureError};
pub use told::{CaptureCounters, Captured, Datagram, Protocol, Protocols, Skipped};
#[cfg(feature = "captures")]
pub use write::{CaptureFile, CaptureFileError, PacketFile, Tap};
