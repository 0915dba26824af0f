//! The charter: one small file for each channel. Only the daemon writes it. It says which messages are valid.
//!
//! A channel of a daemon uses one segment after another. Each segment is a **generation**, counted from 1. Publishers can write to
//! segments, so a segment cannot say reliably which generations have ended. The charter says this, and has one slot for each generation:
//! ```text
//! word 0  magic (stored last)        slot g mod 32, at word 512 + 16 * (g mod 32):
//!      1  version                      word 0  verdict: kind 2 | ended 1 | low bits of g 13 | cut 48
//!      2  boot id (two words)               1  generation g
//!      4  a generation whose predecessors   2  device of the segment's file
//!         are all over                      3  inode of the segment's file
//!      5  length of the name                4  inode of its lock
//!      6  channel name                      5  uuid of the segment (two words)
//!     31  1: it keeps a journal
//!                                           7  first sequence
//!                                           8  epoch before its first publisher
//!                                           9  the generation in which sequences last began at 1
//!                                          10  1: strict, every publisher gets a generation of its own
//!                                          11  1: a publisher was let in
//!                                          12  when the memory's sequences began, in nanoseconds since 1970
//!                                          13  stream id (two words)
//! ```
//! Programs read only the verdicts, and whether there is a journal. All other words are for the next daemon.

use super::geometry::WORD;

/// First word of every finished charter: "SHMCHRT1" in memory order.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SHMCHRT1");
/// Layout version of the charter.
pub const VERSION: u64 = 2;
/// The first of the two words that identify the boot in which the charter was made. After another boot, the inode numbers in the charter
/// mean nothing.
pub const BOOT: usize = 2;
/// A word with the number of a generation. All earlier generations have ended, so the current generation is this one or a later one.
pub const SETTLED: usize = 4;
/// Word of the length of the channel's name in bytes; the name follows.
pub const NAME: usize = 5;
/// Longest name in bytes.
pub const NAME_BYTES: usize = 200;
/// Word that says whether the daemon keeps a journal of the channel.
pub const JOURNAL: usize = 31;

/// First word of the slots.
pub const SLOTS: usize = if cfg!(loom) { 32 } else { 512 };
/// The number of slots for generations. After this many generations, a slot is used again.
pub const SLOT_COUNT: u64 = if cfg!(loom) { 2 } else { 32 };
/// Words of a slot. A slot is exactly one aligned pair of cache lines. Adjacent-line prefetch loads lines in such pairs, so it never loads
/// a part of another slot.
pub const SLOT_WORDS: usize = 16;
/// Words of the charter.
pub const WORDS: usize = SLOTS + SLOT_COUNT as usize * SLOT_WORDS;
/// Bytes of the charter.
pub const BYTES: u64 = WORDS as u64 * WORD;

const CUT_BITS: u32 = 48;
const TAG_BITS: u32 = 13;
const ENDED: u64 = 1 << (CUT_BITS + TAG_BITS);
const KIND: u32 = 62;
/// The largest cut: no sequence reaches it.
pub const NO_CUT: u64 = (1 << CUT_BITS) - 1;

/// The verdict on one generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The generation's publisher is allowed to publish, and its messages are valid.
    Open,
    /// The daemon has not decided yet which messages of this generation are valid. Until it decides, readers return no message of the
    /// generation.
    Closing,
    /// Messages below the sequence `below` are valid, and all others are not. The channel continues in a later generation.
    Cut {
        /// The first sequence that is not valid.
        below: u64,
        /// Whether the stream ended at the cut.
        ended: bool,
    },
}

impl Verdict {
    /// Encodes the verdict on `generation` as the word of its slot.
    pub(crate) const fn pack(self, generation: u64) -> u64 {
        let tag = (generation & ((1 << TAG_BITS) - 1)) << CUT_BITS;
        tag | match self {
            Self::Open => 1 << KIND,
            Self::Closing => 2 << KIND,
            Self::Cut { below, ended } => {
                let below = if below < NO_CUT { below } else { NO_CUT };
                3 << KIND | if ended { ENDED } else { 0 } | below
            }
        }
    }

    /// Decodes a word that was found in the slot of `generation`. If the word belongs to another generation, or if no daemon writes such a
    /// word, the result is a cut at sequence 0, so that no message of `generation` is valid. A word of a later generation means that
    /// `generation` ended long ago.
    #[inline]
    pub const fn unpack(generation: u64, word: u64) -> Self {
        let is_ours = (word >> CUT_BITS ^ generation) & ((1 << TAG_BITS) - 1) == 0;
        match word >> KIND {
            1 if is_ours => Self::Open,
            2 if is_ours => Self::Closing,
            3 if is_ours => Self::Cut { below: word & NO_CUT, ended: word & ENDED != 0 },
            _ => Self::Cut { below: 0, ended: false },
        }
    }
}

/// The index of the first word of a generation's slot. This word holds the verdict.
#[inline]
pub const fn slot(generation: u64) -> usize {
    SLOTS + (generation % SLOT_COUNT) as usize * SLOT_WORDS
}

const _: () = assert!(NAME + 1 + NAME_BYTES / 8 < SLOTS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_speak_of_their_own_generation_and_void_every_other() {
        let verdicts = [
            Verdict::Open,
            Verdict::Closing,
            Verdict::Cut { below: 1, ended: false },
            Verdict::Cut { below: 1_000_000, ended: true },
            Verdict::Cut { below: NO_CUT, ended: false },
        ];
        for verdict in verdicts {
            for generation in [1, 2, 31, 32, 33, 8191, 8192, 1 << 40] {
                let word = verdict.pack(generation);
                assert_eq!(Verdict::unpack(generation, word), verdict, "generation {generation}");
                let overwritten = Verdict::unpack(generation, verdict.pack(generation + SLOT_COUNT));
                assert_eq!(overwritten, Verdict::Cut { below: 0, ended: false });
            }
        }
        assert_eq!(Verdict::unpack(1, 0), Verdict::Cut { below: 0, ended: false }, "no verdict at all");
        assert_eq!(slot(33), slot(1));
    }

    #[test]
    fn a_verdict_is_these_bits() {
        assert_eq!(Verdict::Open.pack(1), 0x4001_0000_0000_0000);
        assert_eq!(Verdict::Closing.pack(1), 0x8001_0000_0000_0000);
        assert_eq!(Verdict::Cut { below: 5, ended: true }.pack(3), 0xe003_0000_0000_0005);
    }
}
