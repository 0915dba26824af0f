//! Capture files: reads UDP payloads from a file, and writes the packets of a bridge to a file.
//!
//! - [`Capture`] reads the files that tcpdump and Wireshark write. It counts the packets that it leaves out, separately for each reason.
//! - [`CaptureFile`] writes files that these programs can read. It has its own thread, and no bridge ever waits for this thread.
//! - [`unwrap`] puts the packets of a captured feed in order.
//!
//! The crate `pcap-parser` parses the file formats, and the crate `etherparse` parses the headers of packets. The bytes of a file are not
//! trusted: no code here panics on them, and the memory is bounded even if a file claims large lengths.
//!
//! Without the feature `captures`, the crates `pcap-parser` and `etherparse` are not built. Then the functions that open a [`Capture`],
//! [`CaptureFile`] or [`PacketFile`] return an error.

#[cfg(not(feature = "captures"))]
mod absent;
#[cfg(feature = "captures")]
mod link;
#[cfg(feature = "captures")]
mod open;
#[cfg(feature = "captures")]
mod read;
mod results;
#[cfg(feature = "captures")]
#[cfg(test)]
mod tests;
pub mod unwrap;
#[cfg(feature = "captures")]
mod write;

#[cfg(not(feature = "captures"))]
pub use absent::{Capture, CaptureError, CaptureFile, CaptureFileError, PacketFile, Tap};
#[cfg(feature = "captures")]
pub use read::{Capture, CaptureError};
pub use results::{CaptureCounters, Captured, Datagram, Protocol, Protocols, Skipped};
#[cfg(feature = "captures")]
pub use write::{CaptureFile, CaptureFileError, PacketFile, Tap};
