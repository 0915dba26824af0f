//! Makes the header of a journal's first file from the channel's ring and this host.

use super::format::{FRAME_TARGET, FileHeader, JournalControl, RingIdentity, aligned};
use crate::clock::Clock;
use crate::hosting::boot_id;
use shmcast_layout::layout::header::Header;
use std::io;

/// Bytes of a frame beside its largest message: both headers, a clock record before the message, and padding.
const BESIDE_MESSAGE: usize = 256;

/// Returns the identity of the ring with this header, in the form that journals use.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
/// let ring = shmcast::journal::ring_identity(publisher.header());
/// assert_eq!(ring.uuid, publisher.header().uuid);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn ring_identity(ring: &Header) -> RingIdentity {
    let clock = Clock::of_segment(ring);
    RingIdentity { uuid: ring.uuid, generation: 0, clock: clock.kind(), clock_hz: clock.hz() }
}

/// Makes the header of the first file of a new journal, for the channel in this ring. The caller must still set the salt and the wall
/// clock. The fields about the ring are the same in each file that has messages of this ring.
///
/// # Errors
/// The system's error, if the system reports no boot id.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
/// let header = shmcast::journal::header_of(publisher.header())?;
/// assert_eq!((header.channel.as_str(), header.file, header.sequence), ("ticks", 1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn header_of(ring: &Header) -> io::Result<FileHeader> {
    let largest = aligned(BESIDE_MESSAGE + ring.geometry.max_message as usize);
    let largest = largest.max(aligned(FRAME_TARGET + JournalControl::MAX_BYTES));
    Ok(FileHeader {
        stream: ring.stream,
        file: 1,
        salt: 1,
        sequence: 1,
        epoch: 0,
        wall_ns: 0,
        boot_id: boot()?,
        ring: ring_identity(ring),
        previous_salt: 0,
        previous_chain: 0,
        largest_frame: u32::try_from(largest).unwrap_or(u32::MAX),
        reserve: 0,
        schema_id: ring.schema_id,
        channel: ring.channel.clone(),
        schema: ring.schema.clone(),
        labels: ring.labels.clone(),
    })
}

/// The size in bytes that no message of a journal's file exceeds, from the header of the file. The messages can all be smaller.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let publisher = shmcast::Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
/// let header = shmcast::journal::header_of(publisher.header())?;
/// assert!(shmcast::journal::largest_message_of(&header) >= publisher.max_message() as u64);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn largest_message_of(file: &FileHeader) -> u64 {
    u64::from(file.largest_frame).saturating_sub(BESIDE_MESSAGE as u64)
}

/// The kernel's boot id, in the form of the headers.
pub(super) fn boot() -> io::Result<[u8; 16]> {
    let [high, low] = boot_id()?;
    Ok((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
}

/// Returns a random number for the salt of a file, not 0.
///
/// # Errors
/// The system's error.
///
/// ```
/// assert_ne!(shmcast::journal::salt()?, 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn salt() -> io::Result<u64> {
    let mut salt = [0; 8];
    getrandom::fill(&mut salt).map_err(io::Error::other)?;
    Ok(u64::from_le_bytes(salt).max(1))
}
