//! The last 64 bytes of a sealed file.

use super::error::{FormatError, field};
use super::{FILE_HEADER_BYTES, FRAME_ALIGN, TRAILER_BYTES, TRAILER_MAGIC, put_u32, put_u64, u32_at, u64_at};
use crate::layout::geometry::MAX_SEQUENCE;

const PART: &str = "trailer";

/// A summary of a sealed file, in 64 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Byte offset of the footer frame.
    pub footer: u64,
    /// The sequence due at the first frame.
    pub first: u64,
    /// The sequence due after the last frame.
    pub next: u64,
    /// Messages in the file.
    pub messages: u64,
    /// Least index time of a frame with records; 0 if there is no such frame.
    pub least_ns: u64,
    /// Greatest index time of a frame with records; 0 if there is no such frame.
    pub greatest_ns: u64,
    /// Number of frames, including the footer.
    pub frames: u32,
    /// The [`crc`](super::FrameHeader::crc) of the footer's header.
    pub chain: u32,
}

impl Trailer {
    /// Encodes the trailer for a file with `salt`.
    pub fn encode(&self, salt: u64) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..8].copy_from_slice(&TRAILER_MAGIC);
        put_u32(&mut bytes, 8, (self.footer / FRAME_ALIGN as u64) as u32);
        put_u32(&mut bytes, 12, self.frames);
        put_u64(&mut bytes, 16, self.first);
        put_u64(&mut bytes, 24, self.next);
        put_u64(&mut bytes, 32, self.messages);
        put_u64(&mut bytes, 40, self.least_ns);
        put_u64(&mut bytes, 48, self.greatest_ns);
        put_u32(&mut bytes, 56, self.chain);
        let crc = checksum(&bytes, salt);
        put_u32(&mut bytes, 60, crc);
        bytes
    }

    /// Decodes the trailer in `bytes`, which are the last bytes of a file with `salt`.
    ///
    /// # Errors
    /// A [`FormatError`] that names the first fault. The file was never sealed, or it is damaged.
    pub fn decode(bytes: &[u8], salt: u64) -> Result<Self, FormatError> {
        if bytes.len() != TRAILER_BYTES {
            return Err(FormatError::Truncated { part: PART, found: bytes.len(), needed: TRAILER_BYTES });
        }
        if bytes[..8] != TRAILER_MAGIC {
            return Err(FormatError::Magic { part: PART });
        }
        let (found, computed) = (u32_at(bytes, 60), checksum(bytes, salt));
        if found != computed {
            return Err(FormatError::Checksum { part: PART, found, computed });
        }
        let trailer = Self {
            footer: u64::from(u32_at(bytes, 8)) * FRAME_ALIGN as u64,
            frames: u32_at(bytes, 12),
            first: u64_at(bytes, 16),
            next: u64_at(bytes, 24),
            messages: u64_at(bytes, 32),
            least_ns: u64_at(bytes, 40),
            greatest_ns: u64_at(bytes, 48),
            chain: u32_at(bytes, 56),
        };
        if trailer.footer < FILE_HEADER_BYTES as u64 {
            return Err(field(PART, "the footer lies inside of the header"));
        }
        if trailer.first == 0 || trailer.first > trailer.next || trailer.next > MAX_SEQUENCE {
            return Err(field(PART, "sequences out of range"));
        }
        if trailer.messages > trailer.next - trailer.first {
            return Err(field(PART, "more messages than sequences"));
        }
        Ok(trailer)
    }
}

/// CRC-32C over the salt and the first 60 bytes. Because of the salt, the trailer of another file is never accepted.
fn checksum(bytes: &[u8], salt: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&salt.to_le_bytes()), &bytes[..60])
}
