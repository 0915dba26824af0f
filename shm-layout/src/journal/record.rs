//! The records in the body of a data frame.

use super::control::JournalControl;
use super::error::{FormatError, field};
use super::frame::FrameHeader;
use super::u64_at;
use crate::layout::geometry::{MAX_MESSAGE, MAX_SEQUENCE, RECORD_HEADER};
use crate::layout::record::{Commit, Flags, Meta};

const PART: &str = "record";
const HEADER: usize = RECORD_HEADER as usize;

/// A record of a data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// The sequence of the message. If the record is a control record, this is the sequence of the next message.
    pub sequence: u64,
    /// The time of publication: the low 48 bits of the ring's clock; 0 if the record has no time.
    pub time: u64,
    /// The kind and the content of the record.
    pub body: RecordBody<'a>,
}

/// The kind of a record, with its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordBody<'a> {
    /// A message.
    Message {
        /// The bytes of the message.
        payload: &'a [u8],
        /// The publisher's own tag.
        tag: u16,
        /// Whether a reader can start from this message.
        key: bool,
    },
    /// A control record, which has no sequence of its own.
    Control(JournalControl),
}

/// The records of one data frame, in order. After an error there are no more records.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    due: u64,
    messages: u32,
    failed: bool,
}

impl<'a> Records<'a> {
    /// Begins at the start of the raw body of the frame with `header`. The caller has already verified the body's checksum.
    pub const fn new(header: &FrameHeader, body: &'a [u8]) -> Self {
        Self { rest: body, due: header.sequence, messages: header.messages, failed: false }
    }

    /// Continues within a body, after records that were already read. `rest` has the bytes after these records. `due` and `messages` are
    /// the results of [`due`](Self::due) and [`messages_left`](Self::messages_left) after them.
    pub const fn resume(rest: &'a [u8], due: u64, messages: u32) -> Self {
        Self { rest, due, messages, failed: false }
    }

    /// The sequence due at the next record.
    pub const fn due(&self) -> u64 {
        self.due
    }

    /// Number of messages left, according to the frame's header.
    pub const fn messages_left(&self) -> u32 {
        self.messages
    }

    /// Number of bytes of the records that are left.
    pub const fn bytes_left(&self) -> usize {
        self.rest.len()
    }

    fn take(&mut self) -> Result<Record<'a>, FormatError> {
        if self.rest.len() < HEADER {
            return Err(FormatError::Truncated { part: PART, found: self.rest.len(), needed: HEADER });
        }
        let commit = Commit::from_word(u64_at(self.rest, 0));
        let meta = Meta::from_word(u64_at(self.rest, 8));
        let length = commit.length() as usize;
        let size = HEADER + length.next_multiple_of(8);
        if self.rest.len() < size {
            return Err(FormatError::Truncated { part: PART, found: self.rest.len(), needed: size });
        }
        let flags = commit.flags();
        if !flags.has(Flags::VALID) || flags.has(Flags::PAD) || length as u64 > MAX_MESSAGE {
            return Err(field(PART, "flags or a length that no record has"));
        }
        if commit.sequence_low() != self.due as u32 {
            return Err(field(PART, "another sequence than the one due"));
        }
        let payload = &self.rest[HEADER..HEADER + length];
        let sequence = self.due;
        let body = if flags.has(Flags::CONTROL) {
            let control = JournalControl::decode(payload)?;
            if let Some((from, next)) = control.skipped() {
                if from != self.due {
                    return Err(field(PART, "a gap or loss that does not begin where it stands"));
                }
                self.due = next;
            }
            RecordBody::Control(control)
        } else {
            if self.messages == 0 {
                return Err(field(PART, "more messages than the frame's header says"));
            }
            if self.due >= MAX_SEQUENCE {
                return Err(field(PART, "sequence out of range"));
            }
            self.messages -= 1;
            self.due += 1;
            RecordBody::Message { payload, tag: meta.tag(), key: flags.has(Flags::KEY) }
        };
        self.rest = &self.rest[size..];
        Ok(Record { sequence, time: meta.time(), body })
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, FormatError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        if self.rest.is_empty() {
            if self.messages == 0 {
                return None;
            }
            self.failed = true;
            return Some(Err(field(PART, "fewer messages than the frame's header says")));
        }
        let taken = self.take();
        self.failed = taken.is_err();
        Some(taken)
    }
}
