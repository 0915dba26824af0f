//! Copies payload between private bytes and shared words.
//!
//! Payload words are relaxed atomics. The writer can overwrite them while a reader reads them. After the copy, the reader checks the
//! frontier, and so finds out whether the writer has overwritten them.
//!
//! # Two ways to copy
//! - *Word by word*: the bytes that the writer stores into the cache line of their record's header. The caller has often just stored the
//!   source of these bytes in small pieces, and a wide load from the source would have to wait for all of these stores. Short copies are
//!   made in this way, too. Model-checked and interpreted builds, and other processors than x86-64, copy all bytes in this way.
//! - *Vector registers*, in inline assembly on x86-64: all other bytes. The compiler never merges atomics, and a loop over words leaves
//!   most of the store bandwidth unused.
//!
//! # Why the assembly is correct
//! 1. The assembly performs the same loads (or stores) as a loop over words, in some order, and some of them twice. The hardware splits
//!    these accesses into pieces of at least a byte.
//! 2. The protocol needs one property of payload: each byte that is read was written at some time. The fences before and after decide
//!    whether it was the right time. So tearing between words or inside them changes nothing.
//! 3. The compiler can assume nothing about the memory behind an assembly block, so it sees no data race.

use crate::sync::{AtomicU64, Ordering};
use std::iter::zip;

/// Number of payload words that share a cache line with their record's header.
pub const INLINE_WORDS: usize = 6;

/// Prefetches the line of `word` for a store. This only affects how long that store takes.
#[inline(always)]
pub(crate) fn fetch_to_store(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: the hint changes no byte of memory and no register, and a CPU that does not know it does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}

/// Loads up to eight bytes as a word, padded with zeros. Loads pieces of fixed size, because a copy of variable length would be a function
/// call.
#[inline(always)]
fn load_piece(piece: &[u8]) -> u64 {
    let mut word = [0; 8];
    let mut at = 0;
    for size in [8, 4, 2, 1] {
        if piece.len() & size != 0 {
            word[at..at + size].copy_from_slice(&piece[at..at + size]);
            at += size;
        }
    }
    u64::from_ne_bytes(word)
}

/// Copies longer byte ranges, in registers as wide as the processor has. Each writer and each reader keeps a copier of its own, which
/// remembers that width. A global variable is not used, because it would often not be in the cache if many processes share a CPU.
#[derive(Debug, Clone, Copy)]
pub struct Copier {
    #[cfg_attr(not(all(target_arch = "x86_64", not(loom), not(miri))), expect(dead_code))]
    has_avx: bool,
}

impl Copier {
    /// The copier for this processor.
    pub fn of_this_processor() -> Self {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        return Self { has_avx: std::arch::is_x86_feature_detected!("avx") };
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        return Self { has_avx: false };
    }

    /// Stores all bytes of a message except the first `INLINE` bytes, and returns these first bytes. They share a cache line with the
    /// message's header, and the caller must store them. This call can already store some of them. In the last word of the message, the
    /// bytes after the payload are undefined.
    ///
    /// # Panics
    /// When the words have too little room.
    #[inline(always)]
    pub fn store_rest<'a, const INLINE: usize>(self, words: &[AtomicU64], bytes: &'a [u8]) -> &'a [u8] {
        const { assert!(INLINE.is_multiple_of(8) && INLINE >= 32) };
        let Some(first) = bytes.first_chunk::<INLINE>() else { return bytes };
        if bytes.len() > INLINE {
            #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
            self.store_from(words, bytes, INLINE);
            #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
            store_words(&words[INLINE / 8..bytes.len().div_ceil(8)], &bytes[INLINE..]);
        }
        first
    }

    /// Stores `bytes` at the start of `words`. The rest of the last word that it stores is undefined.
    ///
    /// # Panics
    /// When the words have too little room.
    #[inline(always)]
    pub fn store(self, words: &[AtomicU64], bytes: &[u8]) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        if bytes.len() >= 32 {
            return self.store_from(words, bytes, 0);
        }
        store_words(&words[..bytes.len().div_ceil(8)], bytes);
    }

    /// Loads `bytes.len()` bytes from `words`. There must be enough words.
    #[inline(always)]
    pub fn load(self, words: &[AtomicU64], bytes: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        match bytes.len() {
            16..=64 => return wide::load_ends(words, bytes),
            65.. => return self.load_long(words, bytes),
            _ => {}
        }
        load_by_words(words, bytes);
    }

    /// Loads the payload words of a whole record, from after its header to the end of its last cache line. The result can include words
    /// after the message, so that the copy needs no branch on the length except the loop over lines.
    ///
    /// The copy is fastest if `bytes` begins 16 bytes after the start of a cache line, as the words do. Then no copied piece crosses a line
    /// on either side.
    ///
    /// # Panics
    /// Unless the number of words is [`INLINE_WORDS`] plus the words of some whole cache lines, and `bytes` has exactly the size of the
    /// words.
    #[inline(always)]
    pub(crate) fn load_lines(self, words: &[AtomicU64], bytes: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        self.load_whole(words, bytes);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        load_words(words, bytes);
    }

    /// Loads whole records with their headers.
    ///
    /// # Panics
    /// Unless the words are one or more whole lines, and `bytes` has exactly the size of the words.
    #[inline(always)]
    pub(crate) fn load_records(self, words: &[AtomicU64], bytes: &mut [u8]) {
        assert!(words.len() * 8 == bytes.len() && bytes.len().is_multiple_of(64) && !bytes.is_empty());
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        self.load_run(words, bytes);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        load_words(words, bytes);
    }
}

#[inline(always)]
fn store_words(words: &[AtomicU64], bytes: &[u8]) {
    let pieces = bytes.chunks_exact(8);
    let rest = pieces.remainder();
    let (whole, last) = words.split_at(pieces.len());
    for (word, piece) in whole.iter().zip(pieces) {
        word.store(load_piece(piece), Ordering::Relaxed);
    }
    if let Some(word) = last.first() {
        word.store(load_piece(rest), Ordering::Relaxed);
    }
}

#[inline(always)]
fn store_pieces<const WORDS: usize>(words: &[AtomicU64; WORDS], pieces: &[[u8; 8]; WORDS]) {
    let ((pairs, word), (of_pieces, piece)) = (words.as_chunks(), pieces.as_chunks());
    zip(pairs, of_pieces).for_each(|(pair, pieces)| store_pair(pair, pieces));
    zip(word, piece).for_each(store_piece);
}

#[inline(always)]
fn store_piece((word, piece): (&AtomicU64, &[u8; 8])) {
    word.store(u64::from_ne_bytes(*piece), Ordering::Relaxed);
}

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
use wide::store_pair;

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
#[inline(always)]
fn store_pair(words: &[AtomicU64; 2], pieces: &[[u8; 8]; 2]) {
    zip(words, pieces).for_each(store_piece);
}

/// Stores the bytes that share a cache line with their header. The function loads these bytes word by word, because the caller has often
/// just stored them in small pieces, and a wide load would have to wait for all of these stores.
///
/// # Panics
/// When there are more bytes than room.
#[inline(always)]
pub fn store_inline<const WORDS: usize>(words: &[AtomicU64; WORDS], bytes: &[u8]) {
    assert!(bytes.len() <= WORDS * 8);
    let (pieces, rest) = bytes.as_chunks::<8>();
    if rest.is_empty()
        && let Ok(pieces) = pieces.try_into()
    {
        return store_pieces(words, pieces);
    }
    let (mut words, mut bytes) = (&words[..], bytes);
    if let (Some((four, others)), Some(pieces)) = (words.split_first_chunk::<4>(), pieces.first_chunk()) {
        store_pieces(four, pieces);
        (words, bytes) = (others, &bytes[32..]);
    }
    for (i, word) in words.iter().enumerate() {
        match bytes.get(8 * i..8 * i + 8) {
            Some(piece) => word.store(load_piece(piece), Ordering::Relaxed),
            None if bytes.len() > 8 * i => return word.store(load_piece(&bytes[8 * i..]), Ordering::Relaxed),
            None => return,
        }
    }
}

/// Loads word by word. On x86-64, only payloads of less than 16 bytes are loaded in this way. On other processors, all payloads are loaded
/// in this way. This function is not inlined, so that its callers stay small.
#[inline(never)]
fn load_by_words(words: &[AtomicU64], bytes: &mut [u8]) {
    load_words(&words[..bytes.len().div_ceil(8)], bytes);
}

#[inline(always)]
fn load_words(words: &[AtomicU64], bytes: &mut [u8]) {
    let mut pieces = bytes.chunks_exact_mut(8);
    let (whole, last) = words.split_at(pieces.len());
    for (word, piece) in whole.iter().zip(&mut pieces) {
        piece.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
    }
    let rest = pieces.into_remainder();
    if let Some(word) = last.first() {
        let word = word.load(Ordering::Relaxed).to_ne_bytes();
        rest.copy_from_slice(&word[..rest.len()]);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod wide;
