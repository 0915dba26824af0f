//! The messages of a native data packet.
//!
//! ```text
//! body:   base time u64 | records
//! record: length u16 | meta u8 | [tag u16] | [time u32] | bytes      meta: 1 key, 2 tag follows, 4 time follows, 128 no message
//! ```
//! The base time is the time of the first message, in nanoseconds since 1970, or 0 if it is not known. The time of a record is the number
//! of nanoseconds since the previous message. A record without a time has the same time as the previous message.

use super::super::bytes::copy;
use super::super::wire::message::{
    Form, KEY, LENGTH_BYTES, Malformed, Messages, Meta, PAD, TAG, TIME, split_record,
};
use super::container::{Container, HEAD_BYTES, SEAL_BYTES};

/// Bytes of the body before the first record.
pub const BASE_BYTES: usize = 8;
/// The greatest number of bytes of a record before its message.
pub const MAX_RECORD_HEAD_BYTES: usize = LENGTH_BYTES + 1 + 2 + 4;

/// Returns the size of the largest message that fits in one packet of `payload_bytes`, in bytes. A message of this size fits even if it has
/// all marks.
pub fn max_message_bytes(payload_bytes: usize) -> usize {
    let heads = HEAD_BYTES + BASE_BYTES + MAX_RECORD_HEAD_BYTES + SEAL_BYTES;
    payload_bytes.saturating_sub(heads).min(usize::from(u16::MAX))
}

/// Checks the body of a data packet.
pub(super) fn parse<'a>(container: &Container, body: &'a [u8]) -> Result<Messages<'a>, Malformed> {
    let (base, records) = body.split_first_chunk::<BASE_BYTES>().ok_or(Malformed::Truncated)?;
    let (mut rest, mut messages) = (records, 0u32);
    while !rest.is_empty() {
        let record = split_record(rest).ok_or(Malformed::Truncated)?;
        if record.meta & !(KEY | TAG | TIME | PAD) != 0 {
            return Err(Malformed::Native);
        }
        messages += u32::from(record.meta & PAD == 0);
        rest = record.rest;
    }
    if messages == 0 || messages != u32::from(container.messages) {
        return Err(Malformed::Native);
    }
    let (first, form) = (container.sequence, Form::Records { base_ns: u64::from_be_bytes(*base) });
    Ok(Messages::checked_before(first, first + u64::from(container.messages), records, form))
}

/// The body of a data packet that is being written. The caller owns the buffer, and passes it to each call.
#[derive(Debug, Clone, Copy)]
pub struct RecordWriter {
    first: u64,
    count: u16,
    /// The size of the packet so far.
    bytes: usize,
    base_ns: u64,
    last_ns: u64,
}

impl RecordWriter {
    /// Makes an empty packet. Its first message will have the sequence `first`.
    pub fn new(first: u64) -> RecordWriter {
        RecordWriter { first, count: 0, bytes: HEAD_BYTES + BASE_BYTES, base_ns: 0, last_ns: 0 }
    }

    /// Returns the sequence of the next message to push.
    pub fn next(&self) -> u64 {
        self.first.saturating_add(u64::from(self.count))
    }

    /// Returns the number of messages in the packet.
    pub fn count(&self) -> u16 {
        self.count
    }

    /// Returns the part of the buffer into which the caller can copy the next message. [`RecordWriter::commit`] then adds this message.
    /// Returns `None` if there is no room for a message.
    pub(crate) fn room<'b>(&self, buffer: &'b mut [u8]) -> Option<&'b mut [u8]> {
        let room = if self.count < u16::MAX {
            buffer.get_mut(self.bytes + MAX_RECORD_HEAD_BYTES..)?
        } else {
            return None;
        };
        let most = room.len().min(usize::from(u16::MAX));
        Some(&mut room[..most])
    }

    /// Adds the `size` bytes in [`RecordWriter::room`] as the next message. Returns false if the bytes do not fit, or if this packet cannot
    /// represent the message's time.
    pub(crate) fn commit(&mut self, buffer: &mut [u8], size: usize, meta: Meta) -> bool {
        let from = self.bytes + MAX_RECORD_HEAD_BYTES;
        let Some(at) = self.begin(buffer, size, meta) else { return false };
        buffer.copy_within(from..from + size, at);
        self.end(at + size, meta);
        true
    }

    /// Adds a message. Returns false, and changes nothing, if the message does not fit, or if this packet cannot represent the message's
    /// time. The message must leave room for the longest possible head of a record.
    #[inline(always)]
    pub fn push(&mut self, buffer: &mut [u8], data: &[u8], meta: Meta) -> bool {
        let Some(at) = self.begin(buffer, data.len(), meta) else { return false };
        copy(&mut buffer[at..at + data.len()], data);
        self.end(at + data.len(), meta);
        true
    }

    // Writes the head of a record. Returns the offset of the record's message.
    #[inline(always)]
    fn begin(&mut self, buffer: &mut [u8], size: usize, meta: Meta) -> Option<usize> {
        let length = u16::try_from(size).ok()?;
        let since_ns = match self.count {
            0 => 0,
            u16::MAX => return None,
            // A packet has the times of all of its messages, or of none.
            _ if (meta.time_ns == 0) != (self.base_ns == 0) => return None,
            _ => u32::try_from(meta.time_ns.checked_sub(self.last_ns)?).ok()?,
        };
        let bit = |is_set, bit| if is_set { bit } else { 0 };
        let bits = bit(meta.key, KEY) | bit(meta.tag != 0, TAG) | bit(since_ns != 0, TIME);
        let time_at = LENGTH_BYTES + 1 + if meta.tag != 0 { size_of_val(&meta.tag) } else { 0 };
        let at = self.bytes + time_at + if since_ns != 0 { size_of_val(&since_ns) } else { 0 };
        if at + size > buffer.len() {
            return None;
        }
        // Two stores write the whole head. They can also write to bytes after the head, which are free or get the message's bytes later.
        let head = buffer.get_mut(self.bytes..)?.first_chunk_mut::<MAX_RECORD_HEAD_BYTES>()?;
        let front = u64::from(length) << 48 | u64::from(bits) << 40 | u64::from(meta.tag) << 24;
        head[..8].copy_from_slice(&front.to_be_bytes());
        head[time_at..time_at + 4].copy_from_slice(&since_ns.to_be_bytes());
        Some(at)
    }

    #[inline(always)]
    fn end(&mut self, bytes: usize, meta: Meta) {
        if self.count == 0 {
            self.base_ns = meta.time_ns;
        }
        (self.bytes, self.count, self.last_ns) = (bytes, self.count + 1, meta.time_ns);
    }

    /// Writes the base time. Returns the size of the body, or `None` if the packet has no message.
    pub fn finish(&self, buffer: &mut [u8]) -> Option<usize> {
        let base = buffer.get_mut(HEAD_BYTES..HEAD_BYTES + BASE_BYTES).filter(|_| self.count > 0)?;
        base.copy_from_slice(&self.base_ns.to_be_bytes());
        Some(self.bytes - HEAD_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::super::container::{Kind, Numbers};
    use super::*;
    use crate::proto::session::Session;
    use crate::proto::wire::Body;

    fn written(messages: &[(&[u8], Meta)]) -> (Vec<u8>, usize) {
        let (mut buffer, mut writer) = ([0xAA; 300], RecordWriter::new(0x102));
        let taken = messages.iter().take_while(|(data, meta)| writer.push(&mut buffer, data, *meta)).count();
        let body = writer.finish(&mut buffer).unwrap();
        let session = Session::of_channel("EQTY", 35).unwrap();
        let mut numbers = Numbers::new(0x0102_0304_0506_0708, false);
        let size = numbers.next(Kind::Data, false, (session, 0x102, writer.count())).write(&mut buffer, body);
        (buffer[..size.unwrap()].to_vec(), taken)
    }

    const fn meta(tag: u16, key: bool, time_ns: u64) -> Meta {
        Meta { tag, key, time_ns }
    }

    #[test]
    fn bytes_of_a_data_packet_are_fixed() {
        let messages = [
            (&b"abc"[..], meta(0, true, 1 << 40)),
            (b"", meta(7, false, 1 << 40)),
            (b"z", meta(0, false, (1 << 40) + 258)),
        ];
        let (bytes, taken) = written(&messages);
        assert_eq!(taken, 3);
        let expected = b"EQTY00000Z\0\0\0\0\0\0\x01\x02\0\x01\0\x31\x01\x01\0\0\0\x03\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\0\x01\
            \0\0\x01\0\0\0\0\0\0\x03\x01abc\0\0\x02\0\x07\0\x01\x04\0\0\x01\x02z";
        assert_eq!(bytes, expected);
        let (packet, pulse) = super::super::parse(&bytes).unwrap();
        let Body::Messages(read) = packet.body else { panic!("{packet:?}") };
        let read: Vec<_> = read.messages().map(|message| (message.data, message.meta)).collect();
        assert!(pulse.is_none());
        assert_eq!(read, messages);
    }

    #[test]
    fn a_part_of_a_packet_keeps_its_times() {
        let messages = [1, 2, 3, 4].map(|n: u16| (&b"data"[..], meta(n, n == 2, 1_000 + u64::from(n))));
        let bytes = written(&messages).0;
        let (packet, _) = super::super::parse(&bytes).unwrap();
        let Body::Messages(all) = packet.body else { panic!("{packet:?}") };
        for (from, to) in [(0, 1), (0, 4), (1, 3), (3, 4), (2, 2)] {
            let part = all.range(0x102 + from..0x102 + to);
            let read: Vec<_> = part.messages().map(|message| (message.sequence, message.meta)).collect();
            let meant: Vec<_> = (from..to).map(|n| (0x102 + n, messages[n as usize].1)).collect();
            assert_eq!(read, meant);
        }
    }

    #[test]
    fn a_time_that_cannot_stand_in_a_packet_begins_another() {
        let message = |time_ns| (&b"x"[..], meta(0, false, time_ns));
        for (times, taken) in [
            (vec![5, 5, 4], 2),
            (vec![5, 0], 1),
            (vec![0, 5], 1),
            (vec![0, 0, 0], 3),
            (vec![1, 1 + u64::from(u32::MAX), 2 + 2 * u64::from(u32::MAX)], 2),
        ] {
            let messages: Vec<_> = times.iter().map(|&time_ns| message(time_ns)).collect();
            assert_eq!(written(&messages).1, taken, "{times:?}");
        }
    }

    #[test]
    fn a_copy_made_in_place_is_the_same_packet() {
        let all =
            [(&b"first"[..], meta(0, false, 9)), (b"second", meta(3, true, 10)), (b"", meta(0, false, 10))];
        let (mut buffer, mut writer) = ([0; 300], RecordWriter::new(0x102));
        for (data, meta) in all {
            writer.room(&mut buffer).unwrap()[..data.len()].copy_from_slice(data);
            assert!(writer.commit(&mut buffer, data.len(), meta));
        }
        let body = writer.finish(&mut buffer).unwrap();
        assert_eq!(&buffer[HEAD_BYTES..HEAD_BYTES + body], &written(&all).0[HEAD_BYTES..]);
    }

    #[test]
    fn pads_are_no_messages_and_every_damage_is_refused() {
        let mut bytes = written(&[(b"abc", meta(9, true, 77))]).0;
        let size = bytes.len();
        bytes.extend([0, 2, PAD, 1, 2]);
        let length = (bytes.len() - 22) as u16;
        bytes[20..22].copy_from_slice(&length.to_be_bytes());
        let (packet, _) = super::super::parse(&bytes).unwrap();
        let Body::Messages(messages) = packet.body else { panic!("{packet:?}") };
        assert_eq!(messages.messages().count(), 1);
        bytes[26..28].copy_from_slice(&2u16.to_be_bytes());
        assert_eq!(super::super::parse(&bytes).err(), Some(Malformed::Native), "a pad counts for a message");
        bytes.truncate(size);
        assert!((0..size).all(|cut| super::super::parse(&bytes[..cut]).is_err()));
    }
}
