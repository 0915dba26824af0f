//! Messages that are larger than a packet: their fragments on the wire, and their reassembly in bounded memory.
//!
//! ```text
//! body: time u64 | tag u16 | meta u8 | 0 | total u32 | offset u32 | bytes      all fragments but the last have the same length
//! ```
//! The assembler keeps each message's buffer until the message is delivered. All buffers together have a limit. Beyond the limit, the
//! assembler refuses fragments of early messages. It always accepts the message that is delivered next, so that delivery never stops. If a
//! fragment contradicts earlier fragments of its message, the assembly of this message restarts, because the earlier fragments might be
//! wrong.

use super::super::wire::message::{Form, KEY, Malformed, Messages, Meta};
use super::ask::{Entry, MAX_ENTRIES};
use super::container::Container;
use super::{Reader, Writer};
use std::collections::VecDeque;

/// Bytes of a fragment's body before the message's own bytes.
pub const FRAGMENT_HEAD_BYTES: usize = 20;
/// The largest message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// The greatest number of fragments of one answer, and so of one request.
pub const MAX_PARTS: usize = 64;
/// The limit for the number of messages that are being assembled, or that are complete and wait for earlier messages. While a message is
/// missing, all later messages that came in fragments wait in the assembler.
const MAX_OPEN: usize = 4_096;
/// The size of the smallest buffer, as an exponent of two. Buffers come in classes, and each class has buffers twice as large as the
/// previous class.
const LEAST_CLASS: u32 = 12;
/// The number of classes of buffers.
const CLASSES: usize = (MAX_MESSAGE_BYTES.ilog2() - LEAST_CLASS + 1) as usize;
/// The number of separate pieces for which a new buffer has room. Few messages have more pieces.
const USUAL_PIECES: usize = 16;
/// The limit for the number of separate pieces of one message. A fragment that would make another piece is refused.
const MAX_PIECES: usize = 1_024;

/// A fragment: a part of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// The message's marks.
    pub meta: Meta,
    /// The message's size, in bytes.
    pub total: u32,
    /// The offset of the part in the message, in bytes.
    pub offset: u32,
    /// The bytes of the part.
    pub data: &'a [u8],
}

/// Checks the body of a fragment.
pub(super) fn parse<'a>(container: &Container, body: &'a [u8]) -> Result<Fragment<'a>, Malformed> {
    let mut head = Reader(body);
    let read = (|| {
        let (time_ns, tag, meta, zero) = (head.u64()?, head.u16()?, head.u8()?, head.u8()?);
        let (total, offset) = (head.u32()?, head.u32()?);
        let is_sound = meta & !KEY == 0 && zero == 0;
        is_sound.then_some((Meta { tag, key: meta & KEY != 0, time_ns }, total, offset))
    })();
    let (meta, total, offset) = read.ok_or(Malformed::Native)?;
    let end = (offset as usize).saturating_add(head.0.len());
    let fits = !head.0.is_empty() && end <= total as usize && total as usize <= MAX_MESSAGE_BYTES;
    match fits && container.messages == 1 {
        true => Ok(Fragment { meta, total, offset, data: head.0 }),
        false => Err(Malformed::Native),
    }
}

impl Fragment<'_> {
    /// Writes the body of the fragment. Returns its size in bytes, or `None` if it does not fit.
    pub fn write(&self, out: &mut [u8]) -> Option<usize> {
        let mut body = Writer { out, at: 0 };
        let fits = body.put(&self.meta.time_ns.to_be_bytes())
            && body.put(&self.meta.tag.to_be_bytes())
            && body.put(&[if self.meta.key { KEY } else { 0 }, 0])
            && body.put(&self.total.to_be_bytes())
            && body.put(&self.offset.to_be_bytes())
            && body.put(self.data);
        fits.then_some(body.at)
    }
}

/// The result of taking a fragment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FragmentOutcome {
    /// There is no room for the fragment.
    Refused,
    /// All bytes of the fragment had already been received.
    Known,
    /// The fragment was stored, and the message is not complete yet.
    Part {
        /// Whether the fragment was the last one of an answer.
        is_last: bool,
    },
    /// The message is complete.
    Whole,
}

/// One message that is being assembled, or that is complete and waits for earlier messages.
#[derive(Debug)]
pub struct Assembly {
    sequence: u64,
    meta: Meta,
    bytes: Vec<u8>,
    /// The pieces that were received, each with its begin and its end. They are sorted, and never touch.
    pieces: Vec<(u32, u32)>,
    /// The size of the largest fragment so far, in bytes.
    part_bytes: u32,
    /// The offset at which the answer to the last request begins. Of this answer, `asked_bytes` bytes have not arrived yet.
    asked_from: u32,
    asked_bytes: u32,
}

impl Assembly {
    fn total(&self) -> u32 {
        self.bytes.len() as u32
    }

    fn is_whole(&self) -> bool {
        self.pieces[..] == [(0, self.total())]
    }

    /// The message.
    pub(crate) fn message(&self) -> Messages<'_> {
        Messages::checked_before(self.sequence, self.sequence + 1, &self.bytes, Form::Whole(self.meta))
    }

    /// Returns the record of the message without its bytes. The store holds this record in place of the message.
    pub(crate) fn apart(&self) -> Messages<'static> {
        Messages::checked_before(self.sequence, self.sequence + 1, &[], Form::Apart)
    }

    // Notes that `from..to` was received. Returns how many of these bytes are new, or `None` if there is no room for another piece.
    fn note(&mut self, from: u32, to: u32) -> Option<u32> {
        let at = self.pieces.partition_point(|&(_, end)| end < from);
        let until = at + self.pieces[at..].partition_point(|&(begin, _)| begin <= to);
        if at == until {
            if self.pieces.len() == MAX_PIECES {
                return None;
            }
            self.pieces.insert(at, (from, to));
            return Some(to - from);
        }
        let there: u32 = self.pieces[at..until]
            .iter()
            .map(|&(begin, end)| end.min(to).saturating_sub(begin.max(from)))
            .sum();
        self.pieces[at] = (self.pieces[at].0.min(from), self.pieces[until - 1].1.max(to));
        self.pieces.drain(at + 1..until);
        Some(to - from - there)
    }

    // Returns the missing parts in order, each as begin and end.
    fn missing(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let ends = std::iter::once(0).chain(self.pieces.iter().map(|&(_, end)| end));
        let begins = self.pieces.iter().map(|&(begin, _)| begin).chain([self.total()]);
        ends.zip(begins).filter(|(from, to)| from < to)
    }
}

// Returns the class of the buffer of a message, and the size of all buffers of that class.
fn class_of(total: usize) -> (usize, usize) {
    let size = total.next_power_of_two().clamp(1 << LEAST_CLASS, MAX_MESSAGE_BYTES);
    ((size.ilog2() - LEAST_CLASS) as usize, size)
}

/// The messages that are being assembled, and complete messages that wait for earlier messages.
#[derive(Debug)]
pub struct Assembler {
    limit_bytes: usize,
    /// The messages, sorted by sequence.
    open: VecDeque<Assembly>,
    /// The number of bytes of all messages in `open`.
    held_bytes: usize,
    /// Buffers for later messages, by their class.
    pools: [Vec<Assembly>; CLASSES],
    pooled_bytes: usize,
}

impl Assembler {
    /// Makes an empty assembler. Buffers are allocated when they are first needed, and then reused.
    pub fn new(limit_bytes: usize) -> Assembler {
        Assembler {
            limit_bytes,
            open: VecDeque::with_capacity(MAX_OPEN + 1),
            held_bytes: 0,
            pools: [const { Vec::new() }; CLASSES],
            pooled_bytes: 0,
        }
    }

    /// Returns the number of bytes of all messages that are being assembled, or that wait for earlier messages.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    /// Returns the number of messages that are being assembled, or that wait for earlier messages.
    #[cfg(test)]
    pub(crate) fn messages(&self) -> usize {
        self.open.len()
    }

    /// Takes a fragment of the message `sequence`. `is_due` says whether this message is the next one to deliver.
    pub fn take(&mut self, sequence: u64, fragment: &Fragment<'_>, is_due: bool) -> FragmentOutcome {
        // The times of the fragments are not compared. Each thread of a sender reads the clocks itself, so two fragments of a message can
        // have slightly different times.
        let what = |total: u32, meta: &Meta| (total, meta.tag, meta.key);
        let agrees =
            |known: &Assembly| what(known.total(), &known.meta) == what(fragment.total, &fragment.meta);
        let at = match self.position(sequence) {
            Some(at) if agrees(&self.open[at]) => at,
            Some(at) if self.open[at].is_whole() => return FragmentOutcome::Known,
            Some(at) => {
                self.close(at);
                return self.take(sequence, fragment, is_due);
            }
            None => match self.begin(sequence, fragment, is_due) {
                Some(at) => at,
                None => return FragmentOutcome::Refused,
            },
        };
        let assembly = &mut self.open[at];
        let (from, to) = (fragment.offset, fragment.offset + fragment.data.len() as u32);
        match assembly.note(from, to) {
            None => return FragmentOutcome::Refused,
            Some(0) => return FragmentOutcome::Known,
            Some(new) => assembly.asked_bytes = assembly.asked_bytes.saturating_sub(new),
        }
        assembly.part_bytes = assembly.part_bytes.max(fragment.data.len() as u32);
        assembly.bytes[from as usize..to as usize].copy_from_slice(fragment.data);
        match assembly.is_whole() {
            true => FragmentOutcome::Whole,
            false => FragmentOutcome::Part { is_last: assembly.asked_bytes == 0 },
        }
    }

    fn begin(&mut self, sequence: u64, fragment: &Fragment<'_>, is_due: bool) -> Option<usize> {
        let total = fragment.total as usize;
        if !is_due && (self.open.len() >= MAX_OPEN || self.held_bytes + total > self.limit_bytes) {
            return None;
        }
        let mut assembly = self.buffer(total);
        (assembly.sequence, assembly.meta) = (sequence, fragment.meta);
        assembly.bytes.resize(total, 0);
        assembly.part_bytes = 0;
        // Assume that the whole message was requested. Then the answer has as many fragments as an answer can have, or all fragments of the
        // message.
        assembly.asked_from = 0;
        assembly.asked_bytes = fragment.data.len().saturating_mul(MAX_PARTS).min(total) as u32;
        Some(self.insert(assembly))
    }

    // Returns a buffer for a message of this size. The buffer is new, or an earlier message has used it. Near the limit, other buffers are
    // freed first.
    fn buffer(&mut self, total: usize) -> Assembly {
        let (class, size) = class_of(total);
        if let Some(pooled) = self.pools[class].pop() {
            self.pooled_bytes -= pooled.bytes.capacity();
            return pooled;
        }
        for pool in &mut self.pools {
            while self.held_bytes + self.pooled_bytes + size > self.limit_bytes {
                let Some(pooled) = pool.pop() else { break };
                self.pooled_bytes -= pooled.bytes.capacity();
            }
        }
        Assembly {
            sequence: 0,
            meta: Meta::default(),
            bytes: Vec::with_capacity(size),
            pieces: Vec::with_capacity(USUAL_PIECES),
            part_bytes: 0,
            asked_from: 0,
            asked_bytes: 0,
        }
    }

    fn position(&self, sequence: u64) -> Option<usize> {
        self.open.binary_search_by_key(&sequence, |assembly| assembly.sequence).ok()
    }

    // Inserts a message at its place, which is usually the last one.
    fn insert(&mut self, assembly: Assembly) -> usize {
        let at = self.open.partition_point(|open| open.sequence < assembly.sequence);
        self.held_bytes += assembly.bytes.len();
        self.open.insert(at, assembly);
        at
    }

    fn remove(&mut self, at: usize) -> Option<Assembly> {
        let assembly = self.open.remove(at)?;
        self.held_bytes -= assembly.bytes.len();
        Some(assembly)
    }

    /// Whether a fragment of the message `sequence` at `offset` is the first fragment of a server's answer.
    pub(crate) fn begins_answer(&self, sequence: u64, offset: u32) -> bool {
        offset == self.position(sequence).map_or(0, |at| self.open[at].asked_from)
    }

    /// Removes a complete message and returns it. Give it back with [`Assembler::keep`] or [`Assembler::recycle`].
    pub(crate) fn take_whole(&mut self, sequence: u64) -> Option<Assembly> {
        let at = self.position(sequence).filter(|&at| self.open[at].is_whole())?;
        self.remove(at)
    }

    /// Stores a complete message until it is delivered.
    pub(crate) fn keep(&mut self, assembly: Assembly) {
        self.insert(assembly);
    }

    /// Returns a message's buffer to the pool.
    pub(crate) fn recycle(&mut self, mut assembly: Assembly) {
        assembly.pieces.clear();
        let (class, size) = class_of(assembly.bytes.capacity());
        let is_first = self.pools[class].is_empty();
        if is_first || self.held_bytes + self.pooled_bytes + size <= self.limit_bytes {
            self.pooled_bytes += assembly.bytes.capacity();
            self.pools[class].push(assembly);
        }
    }

    fn close(&mut self, at: usize) {
        if let Some(assembly) = self.remove(at) {
            self.recycle(assembly);
        }
    }

    /// Removes all messages outside `from..to`.
    pub(crate) fn retain(&mut self, from: u64, to: u64) {
        while self.open.front().is_some_and(|open| open.sequence < from) {
            self.close(0);
        }
        while self.open.back().is_some_and(|open| open.sequence >= to) {
            self.close(self.open.len() - 1);
        }
    }

    /// Writes to `out` the request for the missing parts of the message `sequence`. Returns the number of entries in the request, or 0 if
    /// no part of the message has arrived.
    pub(crate) fn ask(&mut self, sequence: u64, out: &mut [Entry; MAX_ENTRIES]) -> usize {
        let Some(at) = self.position(sequence) else { return 0 };
        let assembly = &mut self.open[at];
        let most = assembly.part_bytes.saturating_mul(MAX_PARTS as u32);
        let (mut entries, mut asked) = (0, 0);
        for (from, to) in assembly.missing() {
            let bytes = (to - from).min(most - asked);
            if bytes == 0 || entries == out.len() {
                break;
            }
            out[entries] = Entry { first: sequence, count: 1, offset: from, bytes };
            (entries, asked) = (entries + 1, asked + bytes);
        }
        (assembly.asked_from, assembly.asked_bytes) = (out[0].offset, asked);
        entries
    }
}

#[cfg(test)]
mod tests {
    use super::super::container::{Kind, Numbers};
    use super::*;
    use crate::proto::session::Session;
    use crate::proto::wire::Body;
    use proptest::prelude::*;

    const META: Meta = Meta { tag: 7, key: true, time_ns: 9 };

    fn fragment(message: &[u8], from: usize, to: usize) -> Fragment<'_> {
        Fragment { meta: META, total: message.len() as u32, offset: from as u32, data: &message[from..to] }
    }

    #[test]
    fn bytes_of_a_fragment_are_fixed() {
        let fragment = fragment(b"0123456789", 4, 7);
        let mut buffer = [0; 80];
        let body = fragment.write(&mut buffer[44..]).unwrap();
        let session = Session::of_channel("EQTY", 35).unwrap();
        let size = Numbers::new(5, false)
            .next(Kind::Fragment, true, (session, 258, 1))
            .write(&mut buffer, body)
            .unwrap();
        let expected = b"EQTY00000Z\0\0\0\0\0\0\x01\x02\0\x01\0\x2d\x01\x02\x02\0\0\x01\0\0\0\0\0\0\0\x05\x80\0\0\0\0\0\0\x01\
            \0\0\0\0\0\0\0\x09\0\x07\x01\0\0\0\0\x0a\0\0\0\x04456";
        assert_eq!(&buffer[..size], expected);
        let (packet, _) = super::super::parse(expected).unwrap();
        assert!(matches!(packet.body, Body::Fragment(read) if read == fragment), "{packet:?}");
        assert!((0..size).all(|cut| super::super::parse(&expected[..cut]).is_err()));
    }

    #[test]
    fn the_due_message_finds_room_when_early_ones_do_not() {
        let message = [1; 1_000];
        let mut assembler = Assembler::new(2_500);
        assert_eq!(
            assembler.take(8, &fragment(&message, 0, 10), false),
            FragmentOutcome::Part { is_last: false }
        );
        assert_eq!(assembler.take(9, &fragment(&message, 0, 1_000), false), FragmentOutcome::Whole);
        assert_eq!(assembler.take(10, &fragment(&message, 0, 10), false), FragmentOutcome::Refused);
        assert_eq!(assembler.take(7, &fragment(&message, 0, 1_000), true), FragmentOutcome::Whole);
        assert_eq!(assembler.held_bytes(), 3_000);
        let due = assembler.take_whole(7).unwrap();
        assert_eq!(due.message().messages().next().unwrap().meta, META);
        assembler.recycle(due);
        assembler.retain(9, 10);
        assert_eq!((assembler.messages(), assembler.take_whole(9).is_some()), (1, true));
    }

    #[test]
    fn a_fragment_that_contradicts_begins_the_message_anew() {
        let (message, other) = ([1; 100], [2; 200]);
        let mut assembler = Assembler::new(1 << 20);
        assert_eq!(
            assembler.take(1, &fragment(&other, 0, 100), true),
            FragmentOutcome::Part { is_last: false }
        );
        assert_eq!(
            assembler.take(1, &fragment(&message, 0, 50), true),
            FragmentOutcome::Part { is_last: false }
        );
        assert_eq!(assembler.take(1, &fragment(&message, 50, 100), true), FragmentOutcome::Whole);
        assert_eq!(
            assembler.take(1, &fragment(&other, 0, 100), true),
            FragmentOutcome::Known,
            "a whole message stays"
        );
        let whole = assembler.take_whole(1).unwrap();
        assert_eq!(whole.message().blocks(), message);
    }

    #[test]
    fn fragments_whose_times_differ_make_one_message() {
        let message = [7; 100];
        let mut assembler = Assembler::new(1 << 20);
        let later = Fragment { meta: Meta { time_ns: 10, ..META }, ..fragment(&message, 50, 100) };
        assert_eq!(
            assembler.take(1, &fragment(&message, 0, 50), true),
            FragmentOutcome::Part { is_last: false }
        );
        assert_eq!(assembler.take(1, &later, true), FragmentOutcome::Whole);
        assert_eq!(assembler.take_whole(1).unwrap().message().messages().next().unwrap().meta, META);
    }

    #[test]
    fn a_request_names_the_holes_and_no_more_than_an_answer_holds() {
        let message = vec![3; 1 << 20];
        let mut assembler = Assembler::new(1 << 24);
        for from in [1_000, 5_000, 6_000] {
            assembler.take(4, &fragment(&message, from, from + 1_000), true);
        }
        let mut entries = [Entry { first: 0, count: 0, offset: 0, bytes: 0 }; MAX_ENTRIES];
        assert_eq!(assembler.ask(4, &mut entries), 3);
        let asked: Vec<_> = entries[..3].iter().map(|entry| (entry.offset, entry.bytes)).collect();
        assert_eq!(asked, [(0, 1_000), (2_000, 3_000), (7_000, 60_000)]);
        assert_eq!(assembler.ask(5, &mut entries), 0);
        for from in [0, 2_000, 3_000, 4_000] {
            let taken = assembler.take(4, &fragment(&message, from, from + 1_000), true);
            assert_eq!(taken, FragmentOutcome::Part { is_last: false });
        }
        let last = (7_000..67_000)
            .step_by(1_000)
            .map(|from| assembler.take(4, &fragment(&message, from, from + 1_000), true));
        assert_eq!(last.last(), Some(FragmentOutcome::Part { is_last: true }));
    }

    proptest! {
        #[test]
        fn fragments_in_any_order_and_overlap_give_the_message(
            size in 1..3_000usize,
            cuts in prop::collection::vec((any::<u16>(), 1..400usize), 1..60),
        ) {
            let message: Vec<u8> = (0..size).map(|n| (n * 31 % 251) as u8).collect();
            let mut assembler = Assembler::new(1 << 20);
            let mut there = vec![false; size];
            let all = cuts.iter().map(|&(from, length)| (usize::from(from) % size, length)).chain([(0, size)]);
            for (from, length) in all {
                let to = (from + length).min(size);
                let is_new = there[from..to].contains(&false);
                there[from..to].fill(true);
                let taken = assembler.take(1, &fragment(&message, from, to), false);
                let is_whole = !there.contains(&false);
                prop_assert_eq!(taken != FragmentOutcome::Known, is_new);
                prop_assert_eq!(taken == FragmentOutcome::Whole, is_new && is_whole);
                let mut entries = [Entry { first: 0, count: 0, offset: 0, bytes: 0 }; MAX_ENTRIES];
                let asked = assembler.ask(1, &mut entries);
                for entry in &entries[..asked] {
                    prop_assert!(!there[entry.offset as usize..(entry.offset + entry.bytes) as usize].contains(&true));
                }
            }
            let whole = assembler.take_whole(1).unwrap();
            prop_assert_eq!(whole.message().blocks(), &message[..]);
        }
    }
}
