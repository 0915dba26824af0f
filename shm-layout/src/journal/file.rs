//! A file's header page, and the names of files.

use super::error::{FormatError, field};
use super::{
    FILE_HEADER_BYTES, FILE_MAGIC, FRAME_HEADER_BYTES, MAX_BODY, VERSION, aligned, put_u32, put_u64, u32_at,
    u64_at,
};
use crate::layout::geometry::MAX_SEQUENCE;
use crate::layout::header::ClockKind;
use crate::layout::stream::StreamId;

const PART: &str = "file header";
const TEXT: usize = 256;
const TEXT_END: usize = TEXT + 3584;
const CHECKSUM: usize = FILE_HEADER_BYTES - 4;

/// The ring that a file was recorded from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingIdentity {
    /// The uuid, as in the segment's header.
    pub uuid: [u64; 2],
    /// The channel's generation; 0 if no daemon counts the channel's generations.
    pub generation: u64,
    /// The clock that stamps messages.
    pub clock: ClockKind,
    /// The clock's ticks per second.
    pub clock_hz: u64,
}

/// The first page of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// The stream that the file keeps. It is the same in all files of a journal.
    pub stream: StreamId,
    /// Number of the file, from 1.
    pub file: u64,
    /// Random number, not 0, that all frames of the file repeat.
    pub salt: u64,
    /// The sequence due at the first frame.
    pub sequence: u64,
    /// The last epoch in the journal when the file was made; 0 if the journal had no epoch. If records were lost, the publisher's epoch can
    /// be later.
    pub epoch: u64,
    /// Wall clock when the file was made, in nanoseconds since 1970.
    pub wall_ns: u64,
    /// The kernel's boot id. It shows whether the host was rebooted between two files, or only the recorder was restarted.
    pub boot_id: [u8; 16],
    /// The ring that is recorded.
    pub ring: RingIdentity,
    /// Salt of the previous file; 0 for the first file, and after a file that was abandoned.
    pub previous_salt: u64,
    /// Chain value of the last frame of the previous file; 0 if `previous_salt` is 0.
    pub previous_chain: u32,
    /// The size in bytes of the largest data frame that the file can have, with header and padding. A reader needs a buffer of this size.
    pub largest_frame: u32,
    /// The reserve at the time when the file was made; 0 for none. No publisher uses a higher sequence before a later reserve is durable.
    pub reserve: u64,
    /// The application's own number for the message schema.
    pub schema_id: u64,
    /// The channel's name.
    pub channel: String,
    /// The application's own name for the message schema; can be empty.
    pub schema: String,
    /// The operator's labels, as `key=value` lines.
    pub labels: String,
}

impl FileHeader {
    /// Encodes the page.
    ///
    /// # Errors
    /// [`FormatError::Field`] when names and labels together, with their three length words, exceed 3584 bytes.
    pub fn encode(&self) -> Result<Box<[u8]>, FormatError> {
        let mut page = vec![0; FILE_HEADER_BYTES].into_boxed_slice();
        page[..8].copy_from_slice(&FILE_MAGIC);
        page[8..10].copy_from_slice(&VERSION.0.to_le_bytes());
        page[10..12].copy_from_slice(&VERSION.1.to_le_bytes());
        put_u32(&mut page, 12, FILE_HEADER_BYTES as u32);
        page[16..32].copy_from_slice(&self.stream.to_bytes());
        put_u64(&mut page, 32, self.file);
        put_u64(&mut page, 40, self.salt);
        put_u64(&mut page, 48, self.sequence);
        put_u64(&mut page, 56, self.epoch);
        put_u64(&mut page, 64, self.wall_ns);
        page[72..88].copy_from_slice(&self.boot_id);
        put_u64(&mut page, 88, self.ring.uuid[0]);
        put_u64(&mut page, 96, self.ring.uuid[1]);
        put_u64(&mut page, 104, self.ring.generation);
        put_u64(&mut page, 112, self.ring.clock_hz);
        put_u32(&mut page, 120, u32::from(self.ring.clock == ClockKind::Counter));
        put_u64(&mut page, 128, self.previous_salt);
        put_u32(&mut page, 136, self.previous_chain);
        put_u32(&mut page, 140, self.largest_frame);
        put_u64(&mut page, 144, self.reserve);
        put_u64(&mut page, 152, self.schema_id);
        let mut at = TEXT;
        for text in [&self.channel, &self.schema, &self.labels] {
            let end = at + 8 + text.len().next_multiple_of(8);
            if end > TEXT_END {
                return Err(field(PART, "names and labels exceed 3.5 KiB together"));
            }
            put_u64(&mut page, at, text.len() as u64);
            page[at + 8..at + 8 + text.len()].copy_from_slice(text.as_bytes());
            at = end;
        }
        let crc = crc32c::crc32c(&page[..CHECKSUM]);
        put_u32(&mut page, CHECKSUM, crc);
        Ok(page)
    }

    /// Decodes the page at the start of `bytes`.
    ///
    /// # Errors
    /// A [`FormatError`] that names the first fault.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let Some(page) = bytes.get(..FILE_HEADER_BYTES) else {
            return Err(FormatError::Truncated { part: PART, found: bytes.len(), needed: FILE_HEADER_BYTES });
        };
        if page[..8] != FILE_MAGIC {
            return Err(FormatError::Magic { part: PART });
        }
        let (major, minor) =
            (u16::from_le_bytes([page[8], page[9]]), u16::from_le_bytes([page[10], page[11]]));
        let (found, computed) = (u32_at(page, CHECKSUM), crc32c::crc32c(&page[..CHECKSUM]));
        if major != VERSION.0 && !is_of_this_version(page) {
            return Err(FormatError::Version { major, minor });
        }
        if found != computed {
            return Err(FormatError::Checksum { part: PART, found, computed });
        }
        let mut at = TEXT;
        let header = Self {
            stream: StreamId::from_bytes(sixteen(page, 16)),
            file: u64_at(page, 32),
            salt: u64_at(page, 40),
            sequence: u64_at(page, 48),
            epoch: u64_at(page, 56),
            wall_ns: u64_at(page, 64),
            boot_id: sixteen(page, 72),
            ring: RingIdentity {
                uuid: [u64_at(page, 88), u64_at(page, 96)],
                generation: u64_at(page, 104),
                clock: match u32_at(page, 120) {
                    0 => ClockKind::Monotonic,
                    1 => ClockKind::Counter,
                    _ => return Err(field(PART, "unknown clock")),
                },
                clock_hz: u64_at(page, 112),
            },
            previous_salt: u64_at(page, 128),
            previous_chain: u32_at(page, 136),
            largest_frame: u32_at(page, 140),
            reserve: u64_at(page, 144),
            schema_id: u64_at(page, 152),
            channel: text(page, &mut at)?,
            schema: text(page, &mut at)?,
            labels: text(page, &mut at)?,
        };
        header.check(u32_at(page, 12))?;
        Ok(header)
    }

    fn check(&self, header_bytes: u32) -> Result<(), FormatError> {
        if header_bytes as usize != FILE_HEADER_BYTES {
            return Err(field(PART, "a header that is not 4096 B long"));
        }
        if self.file == 0 || self.salt == 0 {
            return Err(field(PART, "file number or salt 0"));
        }
        if self.sequence == 0 || self.sequence > MAX_SEQUENCE || self.reserve > MAX_SEQUENCE {
            return Err(field(PART, "sequence out of range"));
        }
        if !(1_000..=1_000_000_000_000).contains(&self.ring.clock_hz) {
            return Err(field(PART, "clock rate is not between 1 kHz and 1 THz"));
        }
        let largest = self.largest_frame as usize;
        if !(FRAME_HEADER_BYTES..=aligned(FRAME_HEADER_BYTES + MAX_BODY)).contains(&largest) {
            return Err(field(PART, "largest frame out of range"));
        }
        Ok(())
    }

    /// Returns the checksum in `page`, which is the first page of a file. The [`chain`](super::FrameHeader::chain) of the first frame has
    /// the same value. The checksum also covers fields of later minor versions, which a decoded header lacks.
    ///
    /// # Panics
    /// If `page` is shorter than [`FILE_HEADER_BYTES`]. A page that [`decode`](Self::decode) accepted is long enough.
    pub fn crc_of(page: &[u8]) -> u32 {
        u32_at(page, CHECKSUM)
    }
}

fn sixteen(page: &[u8], at: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&page[at..at + 16]);
    bytes
}

fn text(page: &[u8], at: &mut usize) -> Result<String, FormatError> {
    let bad = field(PART, "a name leaves its place or is not UTF-8");
    if *at + 8 > TEXT_END {
        return Err(bad);
    }
    let length = u64_at(page, *at);
    if length > (TEXT_END - *at - 8) as u64 {
        return Err(bad);
    }
    let length = length as usize;
    let start = *at + 8;
    *at = start + length.next_multiple_of(8);
    String::from_utf8(page[start..start + length].to_vec()).map_err(|_| bad)
}

/// The name of file `number`, whose first frame has the sequence `sequence`.
pub fn file_name(number: u64, sequence: u64) -> String {
    format!("{number:010}-{sequence:020}.smj")
}

/// Whether the header was written in this version of the format, and only its version number was damaged later. If so, the checksum matches
/// the page with the right version. Without this check, a flipped bit would look like a later format.
fn is_of_this_version(page: &[u8]) -> bool {
    let mut page = page.to_vec();
    page[8..10].copy_from_slice(&VERSION.0.to_le_bytes());
    u32_at(&page, CHECKSUM) == crc32c::crc32c(&page[..CHECKSUM])
}

/// The name of the next file while a recorder prepares it.
pub const SPARE: &str = "spare.tmp";

/// Parses a name of the form of [`file_name`], and returns the file's number. The number can have any number of digits, and the name can
/// have the suffix `.suspect`. If the file's header has another number, the header is right.
pub fn parse_file_name(name: &str) -> Option<u64> {
    parts_of_name(name)?.0.parse().ok()
}

/// Parses a name of the form of [`file_name`], and returns the sequence in it. The file's header has the same sequence, unless somebody
/// renamed the file.
pub fn sequence_in_name(name: &str) -> Option<u64> {
    parts_of_name(name)?.1.parse().ok()
}

/// Returns the digits of the number and of the sequence in a file's name.
fn parts_of_name(name: &str) -> Option<(&str, &str)> {
    let stem = name.strip_suffix(".suspect").unwrap_or(name).strip_suffix(".smj")?;
    let all_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    stem.split_once('-').filter(|(number, sequence)| all_digits(number) && all_digits(sequence))
}
