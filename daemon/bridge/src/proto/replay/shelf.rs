//! Stores blocks of messages that were read from a journal, so that the server can answer requests with them.
//!
//! ```text
//!  request below the ring ──> shelf has it ──────────────────────────> answer
//!                              │ not                        ^
//!                              └──> fetch ──> disk ──> block┘
//! ```
//! The disk delivers blocks. A block has consecutive messages, and says how many messages are missing after them. The shelf keeps the last
//! blocks.
//!
//! The shelf fetches only one block at a time. When a receiver asks for messages in the second half of a block, the shelf fetches the next
//! block ahead. This module has no files, threads or clocks.

use std::collections::VecDeque;
use std::ops::Range;

use super::super::wire::Meta;

/// A block is full if it has at least this many bytes of messages.
const BLOCK_BYTES: usize = 256 << 10;
/// The greatest number of messages of a block.
const BLOCK_MESSAGES: usize = 8_192;
/// The greatest number of blocks on the shelf.
const MAX_BLOCKS: usize = 16;
/// The greatest number of bytes on the shelf. The shelf has the blocks that were read from the journal. The newest block stays on the shelf
/// even if this block alone is larger.
const MAX_BYTES: usize = 64 << 20;
/// The time for which the server remembers that the journal lacks some messages, in nanoseconds. After this time the server searches the
/// journal again, because a recorder might have started.
const END_NS: u64 = super::super::SECOND_NS;

/// A block of consecutive messages from a journal. The journal lacks the messages of the range `next()..behind`.
#[derive(Debug, Default)]
pub struct Block {
    first: u64,
    /// The end of each message in `bytes`, and its marks.
    records: Vec<(usize, Meta)>,
    bytes: Vec<u8>,
    /// The sequence with which the next block begins. The journal lacks the messages between the last message of this block and this
    /// sequence.
    behind: u64,
}

impl Block {
    /// Makes an empty block that begins with `first`.
    pub(crate) fn new(first: u64) -> Block {
        Block { first, behind: first, ..Block::default() }
    }

    /// Adds the next message. Returns whether the block is full.
    pub(crate) fn push(&mut self, data: &[u8], meta: Meta) -> bool {
        self.bytes.extend_from_slice(data);
        self.records.push((self.bytes.len(), meta));
        self.behind = self.next();
        self.bytes.len() >= BLOCK_BYTES || self.records.len() >= BLOCK_MESSAGES
    }

    /// Sets the time of the message that was added last.
    pub(crate) fn date(&mut self, time_ns: u64) {
        if let Some((_, meta)) = self.records.last_mut() {
            meta.time_ns = time_ns;
        }
    }

    /// Notes that the journal lacks the messages between the last message of this block and `behind`. No message can be added to the block
    /// afterwards.
    pub(crate) fn lose(&mut self, behind: u64) {
        self.behind = behind.max(self.next());
    }

    /// Returns the sequence after the block's last message.
    pub(crate) fn next(&self) -> u64 {
        self.first + self.records.len() as u64
    }

    /// Returns the sequence with which the next block begins.
    pub(crate) fn end(&self) -> u64 {
        self.behind
    }

    /// Returns a message and its marks.
    pub(crate) fn get(&self, sequence: u64) -> Option<(&[u8], Meta)> {
        let at = usize::try_from(sequence.checked_sub(self.first)?).ok()?;
        let (end, meta) = self.records.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.records[before].0);
        Some((self.bytes.get(start..*end)?, *meta))
    }

    fn has(&self, sequence: u64) -> bool {
        (self.first..self.behind).contains(&sequence)
    }
}

/// The disk's answer to a fetch.
#[derive(Debug)]
pub enum Fetched {
    /// A block.
    Block(Block),
    /// This sequence is not written yet, and a recorder is running.
    NotYet(u64),
    /// The journal ends before this sequence, and no recorder is running.
    End(u64),
    /// The journal is of another stream.
    Unusable,
    /// The journal could not be opened or read.
    Failed,
}

/// The place of a message that the ring no longer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// The message is on the shelf.
    Here,
    /// The journal lacks the message. The next message in the journal has this sequence or a higher one. `u64::MAX` means that the journal
    /// has no later message.
    Gone(u64),
    /// The message must be read from the journal.
    OnDisk,
}

/// The last blocks that were read from a journal.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// The blocks, most recently used first.
    blocks: VecDeque<Block>,
    bytes: usize,
    /// Whether a fetch is under way.
    is_fetching: bool,
    /// The sequences that the journal does not have, and the time at which the disk thread reported this.
    absent: Option<(Range<u64>, u64)>,
}

impl Shelf {
    /// Returns where a message can be read.
    pub(super) fn find(&mut self, now_ns: u64, sequence: u64) -> Found {
        if let Some(at) = self.blocks.iter().position(|block| block.has(sequence)) {
            if at > 0
                && let Some(block) = self.blocks.remove(at)
            {
                self.blocks.push_front(block);
            }
            return match self.blocks.front() {
                Some(block) if sequence < block.next() => Found::Here,
                Some(block) => Found::Gone(block.end()),
                None => Found::OnDisk,
            };
        }
        let is_fresh = |said_ns: u64| now_ns.saturating_sub(said_ns) < END_NS;
        match &self.absent {
            Some((absent, said_ns)) if absent.contains(&sequence) && is_fresh(*said_ns) => {
                Found::Gone(absent.end)
            }
            _ => Found::OnDisk,
        }
    }

    /// Returns a message on the shelf.
    pub(super) fn get(&self, sequence: u64) -> Option<(&[u8], Meta)> {
        self.blocks.iter().find_map(|block| block.get(sequence))
    }

    /// Notes that the block that begins with `sequence` is being fetched, and returns `sequence`. The caller must fetch the block. Returns
    /// `None` if another block is being fetched.
    pub(super) fn fetch(&mut self, sequence: u64) -> Option<u64> {
        (!std::mem::replace(&mut self.is_fetching, true)).then_some(sequence)
    }

    /// If `sequence` is in the second half of its block, returns the first sequence of the next block. The caller must fetch the next
    /// block, because a receiver that reads in order will soon need it. Returns `None` if the next block begins at `most` or later: the
    /// ring has the messages from `most` on.
    pub(super) fn fetch_ahead(&mut self, sequence: u64, most: u64) -> Option<u64> {
        let block = self.blocks.iter().find(|block| block.has(sequence))?;
        let end = block.end();
        let is_late = sequence - block.first >= (end - block.first) / 2;
        let is_due = is_late && end < most && !self.blocks.iter().any(|block| block.has(end));
        if is_due { self.fetch(end) } else { None }
    }

    /// Takes the disk's answer to the fetch.
    pub(super) fn take(&mut self, now_ns: u64, fetched: Fetched) {
        self.is_fetching = false;
        match fetched {
            Fetched::Block(block) => self.put(block),
            Fetched::End(end) => self.absent = Some((end..u64::MAX, now_ns)),
            Fetched::Unusable => self.absent = Some((0..u64::MAX, now_ns)),
            Fetched::NotYet(_) | Fetched::Failed => {}
        }
    }

    fn put(&mut self, block: Block) {
        self.absent = self.absent.take().filter(|(absent, _)| absent.start >= block.end());
        // Remove the old blocks whose messages are all in the new block. A block that only overlaps the new block stays.
        self.blocks.retain(|old| {
            let stays = old.first < block.first || old.end() > block.end();
            self.bytes -= if stays { 0 } else { old.bytes.capacity() };
            stays
        });
        self.bytes += block.bytes.capacity();
        self.blocks.push_front(block);
        while self.blocks.len() > MAX_BLOCKS || (self.bytes > MAX_BYTES && self.blocks.len() > 1) {
            let Some(old) = self.blocks.pop_back() else { break };
            self.bytes -= old.bytes.capacity();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(first: u64, messages: u64, lost: u64) -> Block {
        let mut block = Block::new(first);
        for sequence in first..first + messages {
            let meta = Meta { tag: sequence as u16, ..Meta::default() };
            block.push(&sequence.to_be_bytes()[..(sequence % 9) as usize], meta);
        }
        block.lose(first + messages + lost);
        block
    }

    fn fetched(shelf: &mut Shelf, block: Block) {
        shelf.take(0, Fetched::Block(block));
    }

    #[test]
    fn each_message_is_found_and_what_is_missing_is_told_to_its_end() {
        let mut shelf = Shelf::default();
        fetched(&mut shelf, block(100, 50, 7));
        fetched(&mut shelf, block(157, 20, 0));
        for sequence in 90..200 {
            let expected = match sequence {
                100..150 | 157..177 => Found::Here,
                150..157 => Found::Gone(157),
                _ => Found::OnDisk,
            };
            assert_eq!(shelf.find(0, sequence), expected);
            let data = shelf.get(sequence).map(|(data, meta)| (data.to_vec(), meta.tag));
            let bytes = sequence.to_be_bytes()[..(sequence % 9) as usize].to_vec();
            assert_eq!(data, (expected == Found::Here).then_some((bytes, sequence as u16)));
        }
    }

    #[test]
    fn the_blocks_that_were_used_last_stay() {
        let mut shelf = Shelf::default();
        for at in 0..MAX_BLOCKS as u64 {
            fetched(&mut shelf, block(1 + at * 10, 10, 0));
        }
        assert_eq!(shelf.find(0, 1), Found::Here);
        fetched(&mut shelf, block(1_001, 10, 0));
        assert_eq!((shelf.find(0, 1), shelf.find(0, 11)), (Found::Here, Found::OnDisk));
        let kept: usize = shelf.blocks.iter().map(|block| block.bytes.capacity()).sum();
        assert_eq!((shelf.bytes, shelf.blocks.len()), (kept, MAX_BLOCKS));
    }

    #[test]
    fn one_block_is_fetched_at_a_time_and_the_next_ahead_of_who_reads_in_order() {
        let mut shelf = Shelf::default();
        assert_eq!(shelf.fetch(100), Some(100));
        assert_eq!((shelf.fetch(100), shelf.fetch(7)), (None, None));
        fetched(&mut shelf, block(100, 50, 0));
        assert_eq!(shelf.fetch_ahead(110, 1_000), None, "it has just begun with the block");
        assert_eq!(shelf.fetch_ahead(125, 150), None, "the ring has what follows");
        assert_eq!(shelf.fetch_ahead(125, 1_000), Some(150));
        assert_eq!(shelf.fetch_ahead(126, 1_000), None);
        fetched(&mut shelf, block(150, 50, 0));
        assert_eq!(shelf.fetch_ahead(127, 1_000), None);
    }

    #[test]
    fn an_end_is_believed_for_a_while() {
        let mut shelf = Shelf::default();
        shelf.take(5, Fetched::End(100));
        assert_eq!((shelf.find(5, 99), shelf.find(5, 100)), (Found::OnDisk, Found::Gone(u64::MAX)));
        assert_eq!(shelf.find(5 + END_NS, 100), Found::OnDisk);
        shelf.take(6, Fetched::Block(block(100, 10, 0)));
        assert_eq!((shelf.find(6, 105), shelf.find(6, 110)), (Found::Here, Found::OnDisk));
    }
}
