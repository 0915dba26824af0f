//! A frame's header: 64 bytes before each body.

use super::error::{FormatError, field};
use super::{FRAME_HEADER_BYTES, FRAME_MAGIC, MAX_BODY, aligned, put_u32, put_u64, u32_at, u64_at};
use crate::layout::geometry::MAX_SEQUENCE;

const PART: &str = "frame header";

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// A frame with records: messages and control records.
    Data,
    /// Offsets of earlier frames; see [`Index`](super::Index).
    Index,
    /// The last frame of a finished file; see [`Footer`](super::Footer).
    Footer,
    /// A filler, whose body has no meaning.
    Pad,
}

/// The storage format of a body. A compressed body begins with the length of the raw body, in 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// Uncompressed.
    Raw,
    /// LZ4 block format.
    Lz4,
    /// A zstd frame.
    Zstd,
}

/// Hints in a frame's header about its records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FrameFlags(pub u16);

impl FrameFlags {
    /// The frame has at least one key message.
    pub const KEY: Self = Self(1);
    /// The frame has at least one control record, of the ring or of the journal.
    pub const CONTROL: Self = Self(2);

    /// Combines both sets of bits.
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every bit of `other` is set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// A decoded frame header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// The file's salt, a random number.
    pub salt: u64,
    /// Bytes of the body as stored, at most [`MAX_BODY`].
    pub length: u32,
    /// CRC-32C of the body as stored.
    pub body_crc: u32,
    /// The sequence due at the frame's first record.
    pub sequence: u64,
    /// Messages in the frame.
    pub messages: u32,
    /// The [`crc`](Self::crc) of the previous frame. The first frame has the checksum of the file's header here.
    pub chain: u32,
    /// Index time, in nanoseconds since 1970: the wall clock of the frame's first record, or a later time of an earlier record. So it is
    /// never less than the index time of the previous frame.
    pub time_ns: u64,
    /// When the frame got its header, all sequences up to this one were durable; 0 if none was durable.
    pub durable: u64,
    /// Number of the frame in its file, from 0.
    pub number: u32,
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The codec of the frame's body.
    pub codec: Codec,
    /// Hints about the frame's records.
    pub flags: FrameFlags,
}

impl FrameHeader {
    /// Encodes the header.
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&FRAME_MAGIC);
        put_u64(&mut bytes, 8, self.salt);
        put_u32(&mut bytes, 16, self.length);
        put_u32(&mut bytes, 20, self.body_crc);
        put_u64(&mut bytes, 24, self.sequence);
        put_u32(&mut bytes, 32, self.messages);
        put_u32(&mut bytes, 36, self.chain);
        put_u64(&mut bytes, 40, self.time_ns);
        put_u64(&mut bytes, 48, self.durable);
        put_u32(&mut bytes, 56, self.number);
        bytes[60] = match self.kind {
            FrameKind::Data => 0,
            FrameKind::Index => 1,
            FrameKind::Footer => 2,
            FrameKind::Pad => 3,
        };
        bytes[61] = match self.codec {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
        };
        bytes[62..].copy_from_slice(&self.flags.0.to_le_bytes());
        let crc = crc32c::crc32c(&bytes[8..]);
        put_u32(&mut bytes, 4, crc);
        bytes
    }

    /// Decodes the frame header at the start of `bytes`. The frames of this file have the salt `salt`.
    ///
    /// # Errors
    /// A [`FormatError`] that names the first fault. [`FormatError::Salt`] means that the header is whole, but belongs to another file.
    pub fn decode(bytes: &[u8], salt: u64) -> Result<Self, FormatError> {
        if bytes.len() < FRAME_HEADER_BYTES {
            return Err(FormatError::Truncated {
                part: PART,
                found: bytes.len(),
                needed: FRAME_HEADER_BYTES,
            });
        }
        let bytes = &bytes[..FRAME_HEADER_BYTES];
        if bytes[..4] != FRAME_MAGIC {
            return Err(FormatError::Magic { part: PART });
        }
        let (found, computed) = (u32_at(bytes, 4), crc32c::crc32c(&bytes[8..]));
        if found != computed {
            return Err(FormatError::Checksum { part: PART, found, computed });
        }
        if u64_at(bytes, 8) != salt {
            return Err(FormatError::Salt { found: u64_at(bytes, 8), salt });
        }
        let kind = match bytes[60] {
            0 => FrameKind::Data,
            1 => FrameKind::Index,
            2 => FrameKind::Footer,
            3 => FrameKind::Pad,
            _ => return Err(field(PART, "unknown kind of frame")),
        };
        let codec = match bytes[61] {
            0 => Codec::Raw,
            1 => Codec::Lz4,
            2 => Codec::Zstd,
            _ => return Err(field(PART, "unknown codec")),
        };
        let header = Self {
            salt,
            length: u32_at(bytes, 16),
            body_crc: u32_at(bytes, 20),
            sequence: u64_at(bytes, 24),
            messages: u32_at(bytes, 32),
            chain: u32_at(bytes, 36),
            time_ns: u64_at(bytes, 40),
            durable: u64_at(bytes, 48),
            number: u32_at(bytes, 56),
            kind,
            codec,
            flags: FrameFlags(u16::from_le_bytes([bytes[62], bytes[63]])),
        };
        if header.length as usize > MAX_BODY {
            return Err(field(PART, "body of more than 32 MiB"));
        }
        if header.sequence == 0 || header.sequence > MAX_SEQUENCE {
            return Err(field(PART, "sequence out of range"));
        }
        if header.durable >= header.sequence {
            return Err(field(PART, "durable is not before the frame"));
        }
        Ok(header)
    }

    /// The header's own checksum. The [`chain`](Self::chain) of the next frame has the same value.
    pub fn crc(&self) -> u32 {
        u32_at(&self.encode(), 4)
    }

    /// Bytes of the frame in the file: header, body, and zeros up to the next frame.
    pub const fn frame_bytes(&self) -> usize {
        aligned(FRAME_HEADER_BYTES + self.length as usize)
    }

    /// Checks the checksum of `body`, the stored bytes after the header.
    ///
    /// # Errors
    /// [`FormatError::Truncated`] or [`FormatError::Checksum`].
    pub fn check_body(&self, body: &[u8]) -> Result<(), FormatError> {
        const PART: &str = "frame body";
        if body.len() != self.length as usize {
            return Err(FormatError::Truncated {
                part: PART,
                found: body.len(),
                needed: self.length as usize,
            });
        }
        let (found, computed) = (self.body_crc, crc32c::crc32c(body));
        if found == computed { Ok(()) } else { Err(FormatError::Checksum { part: PART, found, computed }) }
    }
}
