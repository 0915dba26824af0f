//! A block: many messages of a channel in one entry of the log.
//!
//! ```text
//! at  size
//!  0  4         magic "SHMB"
//!  4  1         version: 1
//!  5  1         kind: 1 data, 2 fragment, 3 gap, 4 end, 5 takeover
//!  6  2         error of the writer's clock, in units of 10 us; 65535 unknown
//!  8  16        stream: the identity of one numbering of messages
//! 24  10        session, as receivers see the stream
//! 34  1         1 if the body is sealed, otherwise 0
//! 35  1         number of the seal's key, or 0
//! 36  4         number of sequences that the block completes
//! 40  8         first sequence
//! 48  4         CRC-32C of the previous block; 0 for the first block of a log
//! 52  4         CRC-32C of this block, computed with 0 in this field
//! 56  8         writer: random at each start
//! 64  8         number of the block among all blocks that this writer ever cut, from 1
//! 72            body
//! ```
//! All numbers are big-endian. The body of data and fragments has the form of a native packet's body. Other kinds have an empty body. A
//! sealed body ends with 16 bytes of seal.
//!
//! The kind of a block decides which sequences the block completes:
//!
//! - Data completes the sequences of its messages.
//! - A fragment completes the sequence of its message if it is the message's last fragment.
//! - A gap completes sequences whose messages will never arrive.
//! - An end and a takeover complete no sequence. A takeover says that another writer continues.
//!
//! A reader needs only the block itself to judge it: the sequences give the block's place in the stream, and the CRC covers all its bytes.
//! So readers notice if the log reorders, loses or damages blocks.
//!
//! The seal covers the body and the 72 bytes of the head, with 0 in place of the block's own CRC. The CRC is computed after sealing, over
//! the sealed bytes. So the CRCs and the links between blocks can be checked without keys ([`seal`](super::seal)).

#[cfg(test)]
mod tests;

use shmcast_bridge::proto::native::container::{
    HEAD_BYTES as PACKET_HEAD_BYTES, Kind as PacketKind, SEAL_BYTES,
};
use shmcast_bridge::proto::native::fragments::{FRAGMENT_HEAD_BYTES, Fragment};
use shmcast_bridge::proto::native::parse_body;
use shmcast_bridge::proto::native::records::{BASE_BYTES, MAX_RECORD_HEAD_BYTES, RecordWriter};
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::{Body as PacketBody, Messages, Meta};
use std::fmt;

/// Bytes of a block before its body.
pub const HEAD_BYTES: usize = 72;
/// The smallest block, in bytes.
pub const MIN_BYTES: usize = 1 << 10;
/// The largest block, in bytes.
pub const MAX_BYTES: usize = 8 << 20;
/// The largest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The value for an unknown error of a clock.
pub const UNKNOWN_ERROR: u16 = u16::MAX;

const MAGIC: &[u8; 4] = b"SHMB";
const VERSION: u8 = 1;
const SEALED_AT: usize = 34;
const CRC_AT: usize = 52;

/// The identity of a stream. For a local channel, it is the identity of the channel. For a channel that came from another host, it is the
/// channel's session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream(pub [u8; 16]);

impl Stream {
    /// The stream of a feed that came from another host.
    pub fn of_session(session: Session) -> Stream {
        let mut bytes = [0; 16];
        bytes[..10].copy_from_slice(session.as_bytes());
        Stream(bytes)
    }
}

/// The kind of a block's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Messages.
    Data,
    /// A part of one message.
    Fragment,
    /// Sequences that will never arrive.
    Gap,
    /// The publisher closed the channel.
    End,
    /// A writer continues in place of another one.
    Takeover,
}

/// The stream and the session under which a channel is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The stream to which the messages belong.
    pub stream: Stream,
    /// The session under which receivers see the stream.
    pub session: Session,
}

/// The name of a block. The servers keep this name beside the block. An append can require that the log's last entry has a given name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockId {
    /// The random number of the block's writer.
    pub writer: u64,
    /// The number of the block among those of its writer.
    pub number: u64,
}

impl BlockId {
    /// Parses the form that [`Display`](fmt::Display) writes; `None` if `text` has another form.
    pub fn parse(text: &str) -> Option<BlockId> {
        let (writer, number) = text.split_once('-')?;
        let id = BlockId { writer: u64::from_str_radix(writer, 16).ok()?, number: number.parse().ok()? };
        (id.to_string() == text).then_some(id)
    }
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{}", self.writer, self.number)
    }
}

/// The fields of a block before its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The kind of the block's content.
    pub kind: Kind,
    /// The error of the writer's clock, in units of 10 us.
    pub clock_error: u16,
    /// The stream to which the messages belong.
    pub stream: Stream,
    /// The session under which receivers see the stream.
    pub session: Session,
    /// The ID of the key that sealed the body; 0 if the body is not sealed.
    pub key: u8,
    /// The number of sequences that the block completes.
    pub count: u32,
    /// The first sequence of the block.
    pub first: u64,
    /// The CRC of the previous block.
    pub before: u32,
    /// The CRC of this block.
    pub crc: u32,
    /// The random number of the block's writer.
    pub writer: u64,
    /// The number of the block among those of its writer.
    pub number: u64,
}

impl Head {
    /// Makes the head of a block whose body is not known yet. [`Cut::finish`] sets the kind, the sequences, the key and the block's CRC.
    pub fn new(stream: Stream, session: Session, BlockId { writer, number }: BlockId) -> Head {
        Head {
            kind: Kind::Data,
            clock_error: 0,
            stream,
            session,
            key: 0,
            count: 0,
            first: 0,
            before: 0,
            crc: 0,
            writer,
            number,
        }
    }

    /// The sequence after those that the block completes.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }

    /// The block's name, which no other block has.
    pub fn id(&self) -> BlockId {
        BlockId { writer: self.writer, number: self.number }
    }

    /// Whether the block begins at or after the sequence `due`, or completes the message `due` or a later one.
    pub fn reaches(&self, due: u64) -> bool {
        self.first >= due || self.end() > due
    }

    pub(super) fn write(&self, out: &mut [u8; HEAD_BYTES]) {
        out[..4].copy_from_slice(MAGIC);
        (out[4], out[5]) = (VERSION, self.kind as u8 + 1);
        out[6..8].copy_from_slice(&self.clock_error.to_be_bytes());
        out[8..24].copy_from_slice(&self.stream.0);
        out[24..34].copy_from_slice(self.session.as_bytes());
        (out[SEALED_AT], out[SEALED_AT + 1]) = (u8::from(self.key != 0), self.key);
        out[36..40].copy_from_slice(&self.count.to_be_bytes());
        out[40..48].copy_from_slice(&self.first.to_be_bytes());
        out[48..52].copy_from_slice(&self.before.to_be_bytes());
        out[52..56].fill(0);
        out[56..64].copy_from_slice(&self.writer.to_be_bytes());
        out[64..72].copy_from_slice(&self.number.to_be_bytes());
    }
}

/// The reason why a block was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Damaged {
    /// The entry is no block.
    #[error("it is no block of a channel")]
    Foreign,
    /// A later version of shmcast wrote the block.
    #[error("it has version {0}, and this build reads {VERSION}: upgrade the reader first")]
    Version(u8),
    /// The CRC is wrong.
    #[error("its checksum is wrong")]
    Checksum,
    /// The checksum is right, but the block's fields contradict each other.
    #[error("its fields disagree")]
    Fields,
    /// The block is sealed with a key that this end does not have.
    #[error("it is sealed with a key that is not in the keys file here")]
    Sealed,
    /// The seal does not match. The block is forged or damaged.
    #[error("its seal does not open: it is forged, or a keys file is wrong")]
    Forged,
    /// The block has no seal, but only sealed blocks are accepted here.
    #[error("it has no seal")]
    Open,
}

/// The content of a block.
#[derive(Debug, Clone, Copy)]
pub enum Body<'a> {
    /// Messages.
    Messages(Messages<'a>),
    /// A part of one message.
    Fragment(Fragment<'a>),
    /// Sequences that will never arrive.
    Gap,
    /// The publisher closed the channel.
    End,
    /// A writer continues in place of another one.
    Takeover,
    /// A sealed body. Only a key opens it.
    Sealed(&'a [u8]),
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the caller gives a whole head")
}

/// Checks a whole block. If its body is sealed, the inside of the body is not checked.
///
/// # Errors
/// [`Damaged`] if the block is not valid. Use no part of such a block.
pub fn parse(block: &[u8]) -> Result<(Head, Body<'_>), Damaged> {
    let (bytes, body) = block.split_at_checked(HEAD_BYTES).ok_or(Damaged::Foreign)?;
    if &bytes[..4] != MAGIC {
        return Err(Damaged::Foreign);
    }
    if bytes[4] != VERSION {
        return Err(Damaged::Version(bytes[4]));
    }
    let crc = u32::from_be_bytes(array(bytes, CRC_AT));
    if crc != crc_of(block) {
        return Err(Damaged::Checksum);
    }
    let kind = match bytes[5] {
        1 => Kind::Data,
        2 => Kind::Fragment,
        3 => Kind::Gap,
        4 => Kind::End,
        5 => Kind::Takeover,
        _ => return Err(Damaged::Fields),
    };
    let head = Head {
        kind,
        clock_error: u16::from_be_bytes(array(bytes, 6)),
        stream: Stream(array(bytes, 8)),
        session: Session::from_bytes(array(bytes, 24)),
        key: bytes[SEALED_AT + 1],
        count: u32::from_be_bytes(array(bytes, 36)),
        first: u64::from_be_bytes(array(bytes, 40)),
        before: u32::from_be_bytes(array(bytes, 48)),
        crc,
        writer: u64::from_be_bytes(array(bytes, 56)),
        number: u64::from_be_bytes(array(bytes, 64)),
    };
    let is_sound = bytes[SEALED_AT] == u8::from(head.key != 0)
        && head.first > 0
        && head.number > 0
        && head.first.checked_add(u64::from(head.count)).is_some();
    let body = match head.key {
        0 => body_of(&head, body),
        _ => (body.len() >= SEAL_BYTES).then_some(Body::Sealed(body)),
    };
    let body = body.filter(|_| is_sound).ok_or(Damaged::Fields)?;
    Ok((head, body))
}

/// Returns the clock error that a block states, in units of 10 us. The block need not be valid.
pub fn clock_error_of(block: &[u8]) -> Option<u16> {
    (block.len() >= HEAD_BYTES).then(|| u16::from_be_bytes(array(block, 6)))
}

/// Returns the body of a block with this head.
pub(super) fn body_of<'a>(head: &Head, body: &'a [u8]) -> Option<Body<'a>> {
    match head.kind {
        Kind::Data => {
            let count = u16::try_from(head.count).ok()?;
            match parse_body(PacketKind::Data, (head.first, count), body).ok()? {
                PacketBody::Messages(messages) => Some(Body::Messages(messages)),
                _ => None,
            }
        }
        Kind::Fragment => match parse_body(PacketKind::Fragment, (head.first, 1), body).ok()? {
            PacketBody::Fragment(part) => {
                let is_last = part.offset as usize + part.data.len() == part.total as usize;
                (head.count == u32::from(is_last)).then_some(Body::Fragment(part))
            }
            _ => None,
        },
        Kind::Gap => (head.count > 0 && body.is_empty()).then_some(Body::Gap),
        Kind::End => (head.count == 0 && body.is_empty()).then_some(Body::End),
        Kind::Takeover => (head.count == 0 && body.is_empty()).then_some(Body::Takeover),
    }
}

fn crc_of(block: &[u8]) -> u32 {
    let crc = crc32c::crc32c_append(crc32c::crc32c(&block[..CRC_AT]), &[0; 4]);
    crc32c::crc32c_append(crc, &block[CRC_AT + 4..])
}

/// Writes the block's CRC into its head, and returns the CRC.
///
/// # Panics
/// If the block is shorter than [`HEAD_BYTES`].
pub fn stamp(block: &mut [u8]) -> u32 {
    let crc = crc_of(block);
    block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_be_bytes());
    crc
}

/// The offset in the buffer at which [`RecordWriter`] begins its packet. With this offset, the packet's body lies where the block's body
/// must lie.
const SHIFT: usize = HEAD_BYTES - PACKET_HEAD_BYTES;

/// A block without its head. The head contains the CRC of the previous block, and that CRC is known only when the block is appended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The kind of the block's content.
    pub kind: Kind,
    /// The first sequence of the block.
    pub first: u64,
    /// The number of sequences that the block completes.
    pub count: u32,
    /// Room for the head, and then the body.
    pub(super) bytes: Vec<u8>,
}

impl Cut {
    /// Makes the block that ends the channel. `next` is the sequence after the last message.
    pub fn end(next: u64) -> Cut {
        Cut { kind: Kind::End, first: next, count: 0, bytes: vec![0; HEAD_BYTES] }
    }

    /// Makes the block that announces a new writer. `next` is the sequence of the first message of this writer.
    pub fn takeover(next: u64) -> Cut {
        Cut { kind: Kind::Takeover, ..Cut::end(next) }
    }

    /// Makes a gap that begins at `first`. The gap covers `first..=last`, or as many of these sequences as one block can cover.
    pub fn gap(first: u64, last: u64) -> Cut {
        let count = u32::try_from(last - first + 1).unwrap_or(u32::MAX);
        Cut { kind: Kind::Gap, first, count, bytes: vec![0; HEAD_BYTES] }
    }

    /// Makes a fragment of a message, for a block of `block_bytes`. The fragment begins at the byte `offset` of the message.
    pub fn part(sequence: u64, data: &[u8], meta: Meta, offset: usize, block_bytes: usize) -> Cut {
        let room = block_bytes - HEAD_BYTES - FRAGMENT_HEAD_BYTES - SEAL_BYTES;
        let part = &data[offset..data.len().min(offset + room)];
        let count = u32::from(offset + part.len() == data.len());
        let mut bytes = vec![0; HEAD_BYTES + FRAGMENT_HEAD_BYTES + part.len()];
        let (total, offset) = (data.len() as u32, offset as u32);
        let written = Fragment { meta, total, offset, data: part }.write(&mut bytes[HEAD_BYTES..]);
        debug_assert_eq!(written, Some(FRAGMENT_HEAD_BYTES + part.len()));
        Cut { kind: Kind::Fragment, first: sequence, count, bytes }
    }

    /// Returns how many bytes of a message a fragment has; 0 for blocks of other kinds.
    pub fn part_bytes(&self) -> usize {
        match self.kind {
            Kind::Fragment => self.bytes.len() - HEAD_BYTES - FRAGMENT_HEAD_BYTES,
            Kind::Data | Kind::Gap | Kind::End | Kind::Takeover => 0,
        }
    }
}

/// Returns a copy with capacity for a seal, so that sealing does not reallocate it.
fn with_room(bytes: &[u8]) -> Vec<u8> {
    let mut copy = Vec::with_capacity(bytes.len() + SEAL_BYTES);
    copy.extend_from_slice(bytes);
    copy
}

/// Resizes the buffer to `bytes` bytes. Their content does not matter.
fn with_place(mut buffer: Vec<u8>, bytes: usize) -> Vec<u8> {
    buffer.resize(bytes, 0);
    buffer
}

/// Returns the size of the largest message that fits into one block of `block_bytes`. Larger messages are sent in fragments.
pub fn max_whole_bytes(block_bytes: usize) -> usize {
    let heads = HEAD_BYTES + BASE_BYTES + MAX_RECORD_HEAD_BYTES + SEAL_BYTES;
    block_bytes.saturating_sub(heads).min(usize::from(u16::MAX))
}

/// The greatest number of buffers that are kept for later blocks.
const MOST_SPARE: usize = 64;

/// Messages that are being put into a block.
#[derive(Debug)]
pub struct Packing {
    buffer: Vec<u8>,
    records: RecordWriter,
    first: u64,
    /// Buffers of stored blocks, for reuse. Without this reuse, each block would touch new memory.
    spare: Vec<Vec<u8>>,
}

impl Packing {
    /// Begins an empty block. The finished block, with its seal, has at most `block_bytes` bytes.
    pub fn new(block_bytes: usize) -> Packing {
        let buffer = with_place(Vec::with_capacity(block_bytes), block_bytes - SEAL_BYTES);
        Packing { buffer, records: RecordWriter::new(0), first: 0, spare: Vec::with_capacity(MOST_SPARE) }
    }

    /// Takes back the buffer of a stored block, so that a later block can use it. The buffer is dropped if its capacity is too small, or if
    /// enough buffers are in reserve.
    pub fn give(&mut self, buffer: Vec<u8>) {
        if self.spare.len() < MOST_SPARE && buffer.capacity() >= self.buffer.len() + SEAL_BYTES {
            self.spare.push(buffer);
        }
    }

    /// Whether the block has no message yet.
    pub fn is_empty(&self) -> bool {
        self.records.count() == 0
    }

    /// The sequence that the next message must have; `None` if the block has no message yet.
    pub fn next(&self) -> Option<u64> {
        (!self.is_empty()).then(|| self.records.next())
    }

    /// Adds a message. Returns false, and changes nothing, if the message does not fit. A message of up to [`max_whole_bytes`] fits into an
    /// empty block.
    #[inline(always)]
    pub fn push(&mut self, sequence: u64, data: &[u8], meta: Meta) -> bool {
        if self.is_empty() {
            (self.records, self.first) = (RecordWriter::new(sequence), sequence);
        }
        debug_assert_eq!(self.records.next(), sequence);
        self.records.push(&mut self.buffer[SHIFT..], data, meta)
    }

    /// Makes a block of all messages added so far, and begins a new one. Returns `None` if there are no messages.
    pub fn cut(&mut self) -> Option<Cut> {
        let body = self.records.finish(&mut self.buffer[SHIFT..])?;
        let count = u32::from(self.records.count());
        let bytes = self.take(HEAD_BYTES + body);
        self.clear();
        Some(Cut { kind: Kind::Data, first: self.first, count, bytes })
    }

    /// Returns the first `size` bytes of the buffer. If the buffer is less than half full, returns a copy, and otherwise the buffer itself.
    fn take(&mut self, size: usize) -> Vec<u8> {
        let room = self.buffer.len();
        if size < room / 2 {
            return with_room(&self.buffer[..size]);
        }
        let next = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(room + SEAL_BYTES));
        let mut full = std::mem::replace(&mut self.buffer, with_place(next, room));
        full.truncate(size);
        full
    }

    /// Drops the messages that were added to the block.
    pub fn clear(&mut self) {
        self.records = RecordWriter::new(0);
    }
}
