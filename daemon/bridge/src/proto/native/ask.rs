//! The requests of a native receiver to a server.
//!
//! ```text
//! body: 1 to 64 x ( first u64 | count u16 | offset u32 | bytes u32 )      bytes 0: whole messages
//! ```

use super::{Reader, Writer};

/// The greatest number of entries of one request.
pub const MAX_ENTRIES: usize = 64;
/// The size of an entry, in bytes.
pub const ENTRY_BYTES: usize = 18;
/// The size of the longest body, in bytes.
pub const MAX_ASK_BYTES: usize = MAX_ENTRIES * ENTRY_BYTES;

/// One entry of a request for messages, or for a part of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The first sequence asked for, at least 1.
    pub first: u64,
    /// The number of messages asked for. It is 1 if the entry asks for a part.
    pub count: u16,
    /// The offset of the part in its message, in bytes.
    pub offset: u32,
    /// The size of the part, in bytes. It is 0 if the entry asks for whole messages.
    pub bytes: u32,
}

impl Entry {
    fn read(body: &mut Reader<'_>) -> Option<Entry> {
        let (first, count) = (body.u64()?, body.u16()?);
        let entry = Entry { first, count, offset: body.u32()?, bytes: body.u32()? };
        let is_sound = first > 0 && count > 0 && first.checked_add(u64::from(count)).is_some();
        let is_part = entry.bytes > 0 && count == 1 && entry.offset.checked_add(entry.bytes).is_some();
        (is_sound && (is_part || (entry.bytes, entry.offset) == (0, 0))).then_some(entry)
    }
}

/// A checked request.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a>(&'a [u8]);

impl<'a> Ask<'a> {
    /// Checks the body of a request. Returns `None` if the body asks for nothing, for too much, or for something that cannot exist.
    pub fn parse(body: &'a [u8]) -> Option<Ask<'a>> {
        let entries = body.len() / ENTRY_BYTES;
        let is_sound = body.len().is_multiple_of(ENTRY_BYTES) && (1..=MAX_ENTRIES).contains(&entries);
        let ask = Ask(body);
        (is_sound && ask.entries().count() == entries).then_some(ask)
    }

    /// The entries, in order.
    pub fn entries(&self) -> impl Iterator<Item = Entry> + use<'a> {
        let mut body = Reader(self.0);
        std::iter::from_fn(move || Entry::read(&mut body))
    }
}

/// Writes the body of a request. Returns its size in bytes. Entries that do not fit are left out.
pub fn write(entries: impl Iterator<Item = Entry>, out: &mut [u8]) -> usize {
    let mut body = Writer { out, at: 0 };
    for entry in entries.take(MAX_ENTRIES) {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&entry.first.to_be_bytes());
        bytes[8..10].copy_from_slice(&entry.count.to_be_bytes());
        bytes[10..14].copy_from_slice(&entry.offset.to_be_bytes());
        bytes[14..].copy_from_slice(&entry.bytes.to_be_bytes());
        if !body.put(&bytes) {
            break;
        }
    }
    body.at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_request_are_fixed() {
        let entries = [
            Entry { first: 0x0102, count: 0x0304, offset: 0, bytes: 0 },
            Entry { first: 5, count: 1, offset: 0x0607, bytes: 0x0809 },
        ];
        let mut out = [0; 64];
        let size = write(entries.into_iter(), &mut out);
        let expected =
            b"\0\0\0\0\0\0\x01\x02\x03\x04\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x05\0\x01\0\0\x06\x07\0\0\x08\x09";
        assert_eq!(&out[..size], expected);
        let ask = Ask::parse(expected).unwrap();
        assert_eq!(ask.entries().collect::<Vec<_>>(), entries);
        assert!(
            (0..size).filter(|cut| *cut != ENTRY_BYTES).all(|cut| Ask::parse(&expected[..cut]).is_none())
        );
    }

    #[test]
    fn what_cannot_be_asked_for_is_refused() {
        let ask = |first: u64, count, offset, bytes| {
            let mut out = [0; ENTRY_BYTES];
            write([Entry { first, count, offset, bytes }].into_iter(), &mut out);
            Ask::parse(&out).is_some()
        };
        assert!(ask(1, 1, 0, 0) && ask(1, 1, 0, 9) && ask(1, 1, 9, 9));
        assert!(!ask(0, 1, 0, 0) && !ask(1, 0, 0, 0) && !ask(u64::MAX, 1, 0, 0));
        assert!(!ask(1, 2, 0, 9) && !ask(1, 1, 9, 0) && !ask(1, 1, u32::MAX, 1));
        assert!(Ask::parse(&[0; ENTRY_BYTES * (MAX_ENTRIES + 1)]).is_none());
    }
}
