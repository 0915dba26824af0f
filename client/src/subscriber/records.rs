//! Receives many messages in one call, as whole records. So programs in other languages need no call for each message.

use super::{Buffer, Doubt, Outcome, Subscriber, in_batch, note_latency};
use crate::clock::Clock;
use crate::message::{Event, Message, RecvError};
use crate::wait::{Wait, Waiter};
use shmcast_layout::layout::geometry::{RECORD_HEADER, record_bytes};
use shmcast_layout::layout::record::{Commit, Flags, Meta};
use shmcast_layout::ring::reader::{Copied, RUN, put_header};
use std::ops::ControlFlow;
use std::time::Instant;

const HEADER: usize = RECORD_HEADER as usize;

/// Messages that were copied out of a ring together, and the event after them. [`Subscriber::recv_records`] fills this value.
///
/// Each message is a record as in the ring: a commit word, a meta word, the payload, and bytes without meaning up to a multiple of 64
/// bytes. `SPEC.md` of the crate `shmcast-layout` defines the bits. There are no other bytes between two records, so messages of one size
/// form an array with a constant stride.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
/// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
/// use shmcast::{Event, Records};
/// publisher.publish_batch(["a", "b", "c"])?;
/// publisher.close();
/// let mut records = Records::with_room(64 << 10);
/// assert_eq!(subscriber.recv_records(1024, &mut records)?, 4);
/// let payloads: Vec<&[u8]> = records.iter().map(|message| message.payload).collect();
/// assert_eq!(payloads, [b"a", b"b", b"c"]);
/// assert_eq!(records.event(), Some(Event::End));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Records {
    buffer: Buffer,
    /// Size in bytes at which a batch is full. A single message can be larger.
    limit: usize,
    /// Bytes of the records.
    bytes: usize,
    messages: usize,
    /// The sequence of the first message.
    first: u64,
    /// The number of messages of the key that were left out, as in [`Message::conflated`]. One number is enough, because a message from the
    /// board is always alone in its batch.
    conflated: Option<u64>,
    /// The clock of the ring to which the messages belong.
    clock: Option<Clock>,
    event: Option<Event<'static>>,
}

impl Records {
    /// Allocates memory for this many bytes of records. [`Subscriber::recv_records`] allocates more when a single message is larger. 16 KiB
    /// fit into a core's first cache, and are the fastest for small messages that are processed immediately.
    ///
    /// ```
    /// assert!(shmcast::Records::with_room(64 << 10).is_empty());
    /// ```
    pub fn with_room(bytes: usize) -> Self {
        let limit = bytes.max(RUN as usize).next_multiple_of(64);
        Self {
            buffer: Buffer::with_room(limit),
            limit,
            bytes: 0,
            messages: 0,
            first: 0,
            conflated: None,
            clock: None,
            event: None,
        }
    }

    /// The number of messages.
    ///
    /// ```
    /// assert_eq!(shmcast::Records::with_room(4096).len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Whether there is no message. There can be an [`event`](Self::event).
    ///
    /// ```
    /// assert!(shmcast::Records::with_room(4096).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// The event after the messages; never a message.
    ///
    /// ```
    /// assert_eq!(shmcast::Records::with_room(4096).event(), None);
    /// ```
    pub fn event(&self) -> Option<Event<'static>> {
        self.event
    }

    /// The sequence of the first message; 0 if there is none. The sequence of a later message follows from the low 32 bits in its record.
    ///
    /// ```
    /// assert_eq!(shmcast::Records::with_room(4096).first_sequence(), 0);
    /// ```
    pub fn first_sequence(&self) -> u64 {
        self.first
    }

    /// The clock of the ring to which the messages belong, for their ages; `None` if there is no message. The event after the messages can
    /// give the subscriber another clock.
    ///
    /// ```
    /// assert!(shmcast::Records::with_room(4096).clock().is_none());
    /// ```
    pub fn clock(&self) -> Option<Clock> {
        self.clock
    }

    /// The bytes of the records. They begin at a multiple of 64.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// let mut records = shmcast::Records::with_room(4096);
    /// subscriber.recv_records(2, &mut records)?;
    /// assert_eq!(records.as_bytes().len(), 2 * 64);
    /// assert_eq!(records.as_bytes()[64 + 16], b'b');
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer.as_bytes()[..self.bytes]
    }

    /// The messages in their order.
    ///
    /// ```
    /// assert_eq!(shmcast::Records::with_room(4096).iter().count(), 0);
    /// ```
    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        let (mut rest, mut due, conflated) = (self.as_bytes(), self.first, self.conflated);
        std::iter::from_fn(move || {
            let (header, _) = rest.split_first_chunk::<HEADER>()?;
            let [commit, meta] =
                [0, 8].map(|at| u64::from_le_bytes(header[at..at + 8].try_into().expect("a word")));
            let (commit, meta) = (Commit::from_word(commit), Meta::from_word(meta));
            let (record, others) = rest.split_at(commit.record_bytes() as usize);
            // Tags can leave out messages, so sequences can jump.
            let sequence = due + u64::from(commit.sequence_low().wrapping_sub(due as u32));
            (rest, due) = (others, sequence + 1);
            let payload = &record[HEADER..HEADER + commit.length() as usize];
            let key = commit.flags().has(Flags::KEY);
            Some(Message { payload, sequence, tag: meta.tag(), key, time: meta.time(), conflated })
        })
    }

    fn clear(&mut self) {
        (self.bytes, self.messages, self.first, self.event) = (0, 0, 0, None);
        (self.conflated, self.clock) = (None, None);
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.buffer.records()[self.bytes..]
    }

    /// Counts messages that were appended.
    fn add(&mut self, messages: usize, bytes: usize, first: u64, clock: Clock) {
        if self.messages == 0 && messages > 0 {
            (self.first, self.clock) = (first, Some(clock));
        }
        self.messages += messages;
        self.bytes += bytes;
    }

    /// Counts a message. The caller has copied the message's payload to its position after the other records.
    fn push(&mut self, copied: &Copied, clock: Clock) {
        put_header(self.room(), copied);
        self.add(1, record_bytes(copied.length as u64) as usize, copied.sequence, clock);
    }

    /// Copies a message into an empty batch of records. The message's bytes are at the start of `payload`.
    fn copy(&mut self, copied: &Copied, payload: &[u8], clock: Clock) {
        self.buffer.make_room(copied.length);
        self.buffer.payload_mut()[..copied.length].copy_from_slice(&payload[..copied.length]);
        self.push(copied, clock);
    }
}

impl Subscriber {
    /// Replaces the content of `records` by up to `most` available messages, and the first other event after them. Returns the number of
    /// messages, plus 1 if there is an event. Never waits, but with [`Wait::Burst`] can first let the publisher get ahead.
    ///
    /// A batch ends where the channel continues in another ring, as for [`recv_batch`](Self::recv_batch).
    ///
    /// Allocates only when a message does not fit into `records`, once for the channel's largest message. Cost: the same as for
    /// [`recv_batch`](Self::recv_batch), without processing each message.
    ///
    /// # Errors
    /// [`RecvError`]. If there were messages before the error, they are returned, and the next call returns the error.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::Records;
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// let mut records = Records::with_room(64 << 10);
    /// while subscriber.recv_records(2, &mut records)? > 0 {
    ///     println!("{} messages from {} on", records.len(), records.first_sequence());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_records(&mut self, most: usize, records: &mut Records) -> Result<usize, RecvError> {
        if self.came_close {
            self.pause_after_burst();
        }
        records.clear();
        self.fill(most, records)
    }

    /// Does the same as [`recv_records`](Self::recv_records), but waits for the first message or event, by the wait strategy. Returns 0 if
    /// nothing arrived before `deadline`.
    ///
    /// # Errors
    /// [`RecvError`], as for [`recv_records`](Self::recv_records).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use std::time::{Duration, Instant};
    /// let mut records = shmcast::Records::with_room(64 << 10);
    /// let soon = || Instant::now() + Duration::from_millis(5);
    /// assert_eq!(subscriber.recv_records_deadline(1024, &mut records, soon())?, 0);
    /// publisher.publish_batch(["a", "b", "c"])?;
    /// assert_eq!(subscriber.recv_records_deadline(1024, &mut records, soon())?, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recv_records_deadline(
        &mut self,
        most: usize,
        records: &mut Records,
        deadline: Instant,
    ) -> Result<usize, RecvError> {
        let mut waiter = Waiter::default();
        loop {
            let received = self.recv_records(most, records)?;
            if received > 0 || most == 0 {
                return Ok(received);
            }
            match self.idle(&mut waiter, Some(deadline), None)? {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(None) => return Ok(0),
                ControlFlow::Break(Some(Outcome::Other(event))) => {
                    records.event = Some(event);
                    return Ok(1);
                }
                ControlFlow::Break(Some(Outcome::Message(copied))) => {
                    records.copy(&copied, self.buffer.payload(), self.clock());
                    return self.fill(most, records);
                }
                ControlFlow::Break(Some(Outcome::Board(copied, left_out))) => {
                    records.copy(&copied, self.buffer.payload(), self.clock());
                    records.conflated = Some(left_out);
                    return Ok(1);
                }
            }
        }
    }

    /// Appends messages of one ring to `records`.
    fn fill(&mut self, most: usize, records: &mut Records) -> Result<usize, RecvError> {
        in_batch(self, |own| own, |own| own.append(most, records))
    }

    fn append(&mut self, most: usize, records: &mut Records) -> Result<usize, RecvError> {
        while records.messages < most && records.bytes < records.limit {
            if self.doubt == Doubt::Board && records.messages > 0 {
                break; // sequences on a board lie far apart
            }
            self.take_records(most - records.messages, records);
            if records.messages == most || records.bytes >= records.limit {
                break;
            }
            match self.poll_into(&mut records.room()[HEADER..]) {
                Ok(Some(Outcome::Message(copied))) => records.push(&copied, self.clock()),
                Ok(Some(Outcome::Board(copied, left_out))) => {
                    records.push(&copied, self.clock());
                    records.conflated = Some(left_out);
                    break;
                }
                Ok(Some(Outcome::Other(event))) => {
                    records.event = Some(event);
                    return Ok(records.messages + 1);
                }
                Ok(None) => {
                    self.came_close = matches!(self.wait, Wait::Burst);
                    if records.messages == 0 {
                        self.look_for_name_at_end()?;
                    }
                    return Ok(records.messages);
                }
                // If a message does not fit after the others, it is the first of the next batch.
                Err(RecvError::TooSmall { needed, .. }) if records.messages == 0 => {
                    let room = Buffer::room_for(self.header()).max(record_bytes(needed as u64) as usize);
                    records.buffer = Buffer::with_room(room);
                }
                Err(error) if records.messages == 0 => return Err(error),
                Err(_) => break,
            }
        }
        self.came_close = matches!(self.wait, Wait::Burst) && self.is_close_in_a_burst();
        Ok(records.messages)
    }

    /// Takes messages until there is another event. Takes none if each message must be checked first.
    fn take_records(&mut self, most: usize, records: &mut Records) {
        if self.checks_each() || self.doubt == Doubt::Behind || self.check_process().is_err() {
            return;
        }
        let first = self.reader.place().sequence;
        let full = records.limit;
        let taken = self.reader.poll_records(most, &mut records.buffer.records()[records.bytes..full]);
        let before = records.messages;
        records.add(taken.messages, taken.bytes, first, self.clock);
        self.note_passed();
        let Some(page) = self.page.as_ref().map(|page| &page.page).filter(|_| taken.messages > 0) else {
            return;
        };
        page.received(taken.messages as u64, self.reader.place());
        if self.record_latency {
            records.iter().skip(before).for_each(|message| note_latency(page, &self.clock, message.time));
        }
    }
}
