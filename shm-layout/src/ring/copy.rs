//! Moving payload between private bytes and shared words.
//!
//! Payload words are relaxed atomics. The writer may overwrite them while a reader reads them, and the reader's window check says
//! afterwards whether it did.
//!
//! # Two ways to copy
//! - *Word by word*: on the writer's side, the bytes that share a line with their header. The caller has often just stored them in
//!   small pieces, and a wide load would have to wait for all of these stores. Model-checked and interpreted builds copy
//!   everything so.
//! - *Vector registers*, in inline assembly on x86-64: all other bytes. The compiler never merges atomics, and a loop over words
//!   leaves most of the store bandwidth unused.
//!
//! # Why the assembly is correct
//! 1. It performs the loads (or stores) of the loop over words, in some order, some of them twice. The hardware splits them into
//!    pieces of at least a byte.
//! 2. The protocol asks one thing of payload: each byte that is read was written at some time. The fences before and after decide
//!    whether it was the right time. So tearing between words or inside them changes nothing.
//! 3. The compiler may assume nothing about the memory behind an assembly block, so it sees no data race.

use crate::sync::{AtomicU64, Ordering};
use std::iter::zip;

/// Payload words that share a line with their record's header.
pub const INLINE_WORDS: usize = 6;

/// Prefetches the line of `word` for a store. It affects the time of that store and nothing else.
#[inline(always)]
pub fn fetch_to_store(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: the hint changes no byte of memory and no register, and a CPU that does not know it does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}

/// Up to eight bytes as a word, filled up with zeros. It loads pieces of fixed size, because a copy of variable length is a call.
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

/// Copies longer runs, in registers as wide as the processor has. Each writer and reader keeps one. To ask the processor each
/// time would touch one more line and page, and a process that shares its CPU with many finds these cold.
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

    /// Stores the bytes of a message that do not share a line with its header: all but the first `INLINE` bytes. Returns those
    /// first bytes; the call may have stored some of them too. The bytes behind the payload in the last word are undefined.
    ///
    /// # Panics
    /// When the words have no room for all of it.
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

    /// Loads `bytes.len()` bytes from `words`, which must hold them.
    #[inline(always)]
    pub fn load(self, words: &[AtomicU64], bytes: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        if bytes.len() >= 32 {
            return self.load_long(words, bytes);
        }
        load_words(&words[..bytes.len().div_ceil(8)], bytes);
    }

    /// Loads the payload words of a whole record, from behind its header to the end of its last line, also those behind the
    /// message. So the copy needs no branch on the length, but for the loop over lines. It is fastest if `bytes` begin 16
    /// bytes behind the start of a cache line, as the words do: then no copied piece crosses a line on either side.
    ///
    /// # Panics
    /// Unless the words are [`INLINE_WORDS`] and a number of whole lines, and there are exactly as many bytes.
    #[inline(always)]
    pub fn load_lines(self, words: &[AtomicU64], bytes: &mut [u8]) {
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        self.load_whole(words, bytes);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        load_words(words, bytes);
    }

    /// Loads whole records, headers and all.
    ///
    /// # Panics
    /// Unless there are whole lines of words, one at least, and exactly as many bytes.
    #[inline(always)]
    pub fn load_records(self, words: &[AtomicU64], bytes: &mut [u8]) {
        assert!(words.len() * 8 == bytes.len() && bytes.len().is_multiple_of(64) && !bytes.is_empty());
        #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
        self.load_run(words, bytes);
        #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
        load_words(words, bytes);
    }
}

#[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
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

/// Stores the bytes that share a line with their header. It loads them word by word, because the caller has often just stored
/// them in small pieces, and a wide load would have to wait for all of these stores.
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

#[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
mod wide {
    use super::{AtomicU64, Copier};
    use std::arch::asm;

    /// Loads two words one by one and stores them at once. This halves the stores, of which a processor does few at a time.
    #[inline(always)]
    pub(super) fn store_pair(words: &[AtomicU64; 2], pieces: &[[u8; 8]; 2]) {
        // SAFETY: both are 16 bytes; the destination is shared words behind `UnsafeCell`, mapped writable by the promise of
        // `Cells::from_raw`. SSE2 is part of every x86-64, and `movups` needs no alignment.
        unsafe {
            asm!(
                "movq {a}, [{from}]",
                "movhps {a}, [{from} + 8]",
                "movups [{to}], {a}",
                from = in(reg) pieces.as_ptr(),
                to = in(reg) words.as_ptr(),
                a = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }

    impl Copier {
        /// Copies at least 32 bytes.
        #[inline(always)]
        pub(super) fn store_from(self, words: &[AtomicU64], bytes: &[u8], skip: usize) {
            assert!(words.len() * 8 >= bytes.len() && bytes.len() >= 32);
            // SAFETY: the assertion bounds both runs. The destination is shared words behind `UnsafeCell`, mapped writable
            // by the promise of `Cells::from_raw`.
            unsafe { self.copy(bytes.as_ptr(), words.as_ptr() as *mut u8, skip, bytes.len()) }
        }

        /// Copies at least 32 bytes.
        #[inline(always)]
        pub(super) fn load_long(self, words: &[AtomicU64], bytes: &mut [u8]) {
            assert!(words.len() * 8 >= bytes.len() && bytes.len() >= 32);
            // SAFETY: the assertion bounds both runs. The source is shared words mapped readable by the promise of
            // `Cells::from_raw`; the destination is ours alone.
            unsafe { self.copy(words.as_ptr().cast(), bytes.as_mut_ptr(), 0, bytes.len()) }
        }

        /// Copies the payload part of a record: the rest of its first line, and whole lines. The part that most messages have
        /// needs no branch, and its address does not depend on the length.
        #[inline(always)]
        pub(super) fn load_whole(self, words: &[AtomicU64], bytes: &mut [u8]) {
            const INLINE: usize = super::INLINE_WORDS * 8;
            assert!(words.len() * 8 == bytes.len() && bytes.len() % 64 == INLINE);
            let (from, to) = (words.as_ptr().cast(), bytes.as_mut_ptr());
            // SAFETY: the assertion bounds both runs, of at least 48 bytes. The source is shared words mapped readable by
            // the promise of `Cells::from_raw`; the destination is ours alone. SSE2 is part of every x86-64, and `movups`
            // needs no alignment.
            unsafe {
                asm!(
                    "movups {a}, [{from}]",
                    "movups {b}, [{from} + 16]",
                    "movups {c}, [{from} + 32]",
                    "movups [{to}], {a}",
                    "movups [{to} + 16], {b}",
                    "movups [{to} + 32], {c}",
                    from = in(reg) from,
                    to = in(reg) to,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
            if bytes.len() > INLINE {
                // SAFETY: as above, for the rest of both runs.
                unsafe { self.copy_lines(from, to, INLINE, bytes.len()) };
            }
        }

        /// Copies whole lines.
        #[inline(always)]
        pub(super) fn load_run(self, words: &[AtomicU64], bytes: &mut [u8]) {
            assert!(words.len() * 8 == bytes.len() && bytes.len() >= 64);
            // SAFETY: the assertion bounds both runs. The source is shared words mapped readable by the promise of
            // `Cells::from_raw`; the destination is ours alone.
            unsafe { self.copy_lines(words.as_ptr().cast(), bytes.as_mut_ptr(), 0, bytes.len()) };
        }

        /// Copies `length` bytes without the first `skip`. The rest is whole lines, at least one.
        ///
        /// # Safety
        /// The same as for `copy`.
        #[inline(always)]
        unsafe fn copy_lines(self, from: *const u8, to: *mut u8, skip: usize, length: usize) {
            if self.has_avx {
                // SAFETY: the caller promised both runs; there is AVX.
                unsafe { copy_wide(from, to, skip, length) };
            } else {
                // SAFETY: the caller promised both runs.
                unsafe { copy_rest(from, to, skip, length) };
            }
        }

        /// Copies `length` bytes, at least 32, without the first `skip`: by `copy_wide` if the processor has AVX, then the rest.
        ///
        /// # Safety
        /// So many bytes can be read at `from` and written at `to`, by this thread or as shared words, and do not overlap.
        #[inline(always)]
        unsafe fn copy(self, from: *const u8, to: *mut u8, skip: usize, length: usize) {
            let mut done = skip;
            if self.has_avx && length - skip >= 64 {
                // SAFETY: the caller promised both runs; there is AVX.
                done = unsafe { copy_wide(from, to, skip, length) };
            }
            // SAFETY: the caller promised both runs.
            unsafe { copy_rest(from, to, done, length) };
        }
    }

    /// Copies from `skip` on as long as 64 bytes are left, and returns the index of the first byte that is not copied. The pieces
    /// have 32 bytes. None crosses a cache line at its destination if `to + skip` is 64-byte aligned, nor at its source if
    /// `from + skip` is.
    ///
    /// # Safety
    /// The same as for [`Copier::copy`]; at least 64 bytes are left, and the processor has AVX.
    #[inline(always)]
    unsafe fn copy_wide(from: *const u8, to: *mut u8, skip: usize, length: usize) -> usize {
        let mut done = skip;
        if length - done >= 128 {
            // SAFETY: the caller promised both runs, and no 128 bytes begin after the last; `vmovups` needs no alignment.
            unsafe {
                asm!(
                    "2:",
                    "vmovups {a:y}, [{from} + {n}]",
                    "vmovups {b:y}, [{from} + {n} + 32]",
                    "vmovups {c:y}, [{from} + {n} + 64]",
                    "vmovups {d:y}, [{from} + {n} + 96]",
                    "vmovups [{to} + {n}], {a:y}",
                    "vmovups [{to} + {n} + 32], {b:y}",
                    "vmovups [{to} + {n} + 64], {c:y}",
                    "vmovups [{to} + {n} + 96], {d:y}",
                    "add {n}, 128",
                    "cmp {n}, {last}",
                    "jbe 2b",
                    from = in(reg) from,
                    to = in(reg) to,
                    last = in(reg) length - 128,
                    n = inout(reg) done,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    c = out(xmm_reg) _,
                    d = out(xmm_reg) _,
                    options(nostack),
                );
            }
        }
        if length - done >= 64 {
            // SAFETY: as above, for 64 bytes.
            unsafe {
                asm!(
                    "vmovups {a:y}, [{from} + {n}]",
                    "vmovups {b:y}, [{from} + {n} + 32]",
                    "vmovups [{to} + {n}], {a:y}",
                    "vmovups [{to} + {n} + 32], {b:y}",
                    from = in(reg) from,
                    to = in(reg) to,
                    n = in(reg) done,
                    a = out(xmm_reg) _,
                    b = out(xmm_reg) _,
                    options(nostack, preserves_flags),
                );
            }
            done += 64;
        }
        #[cfg(not(target_feature = "avx"))]
        // SAFETY: there is AVX. `vzeroupper` clears the upper halves of the registers. The compiler is told that no value
        // survives in these registers, because a caller that is built for AVX may keep values there. Without it, later
        // instructions on the lower halves would wait for the upper halves on some processors.
        unsafe {
            asm!(
                "vzeroupper",
                out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                options(nomem, nostack, preserves_flags)
            );
        }
        done
    }

    /// Copies `length` bytes, at least 32, without the first `skip`, in pieces of 16. It copies the last 32 bytes at once instead
    /// of piece by piece; some of them may be copied twice, or belong to those that are skipped.
    ///
    /// # Safety
    /// The same as for [`Copier::copy`].
    #[inline(always)]
    unsafe fn copy_rest(from: *const u8, to: *mut u8, skip: usize, length: usize) {
        // SAFETY: the caller promised both runs, and no piece reaches beyond the last byte, because none begins after
        // `last`; SSE2 is part of every x86-64; `movups` needs no alignment.
        unsafe {
            asm!(
                "cmp {n}, {last}",
                "jae 3f",
                "2:",
                "movups {a}, [{from} + {n}]",
                "movups {b}, [{from} + {n} + 16]",
                "movups [{to} + {n}], {a}",
                "movups [{to} + {n} + 16], {b}",
                "add {n}, 32",
                "cmp {n}, {last}",
                "jb 2b",
                "3:",
                "movups {a}, [{from} + {last}]",
                "movups {b}, [{from} + {last} + 16]",
                "movups [{to} + {last}], {a}",
                "movups [{to} + {last} + 16], {b}",
                from = in(reg) from,
                to = in(reg) to,
                last = in(reg) length - 32,
                n = inout(reg) skip => _,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                options(nostack),
            );
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::cells::Cells;

    /// Each that there is on some processor, as far as this one can.
    fn copiers() -> [Copier; 2] {
        [Copier { has_avx: false }, Copier::of_this_processor()]
    }

    /// A byte that follows from its place, and is none of the marks below.
    fn byte(i: usize) -> u8 {
        (i * 7 + 1) as u8 & 0x7f
    }

    #[test]
    fn every_length_is_loaded_at_every_alignment_and_nothing_else_is_touched() {
        let cells = Cells::zeroed(64);
        for (i, word) in cells.iter().enumerate() {
            word.store(u64::from_ne_bytes(std::array::from_fn(|j| byte(8 * i + j))), Ordering::Relaxed);
        }
        for (copier, length) in copiers().into_iter().flat_map(|copier| (0..=260).map(move |n| (copier, n))) {
            for align in 0..8 {
                let mut out = vec![0xee; length + 16];
                copier.load(&cells[1..1 + length.div_ceil(8)], &mut out[align..align + length]);
                let (before, rest) = out.split_at(align);
                let (copied, behind) = rest.split_at(length);
                assert!(copied.iter().copied().eq((8..8 + length).map(byte)), "{length}");
                assert!(before.iter().chain(behind).all(|&byte| byte == 0xee), "{length}");
            }
        }
    }

    #[test]
    fn every_length_is_stored_at_every_alignment_and_nothing_else_is_touched() {
        for copier in copiers() {
            stores::<32>(copier);
            stores::<40>(copier);
            stores::<48>(copier);
            stores::<56>(copier);
        }
    }

    fn stores<const INLINE: usize>(copier: Copier) {
        let source: Vec<u8> = (0..300).map(byte).collect();
        for (length, align) in (0..=260).flat_map(|length| (0..8).map(move |align| (length, align))) {
            let cells = Cells::zeroed(64);
            cells.iter().for_each(|word| word.store(u64::MAX, Ordering::Relaxed));
            let bytes = &source[align..align + length];
            let first = copier.store_rest::<INLINE>(&cells[1..1 + length.div_ceil(8)], bytes);
            assert_eq!(first, &bytes[..length.min(INLINE)]);
            let stored: Vec<u8> =
                cells.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes()).collect();
            let (inline, rest) = stored[8..].split_at(first.len());
            assert_eq!(rest[..length - first.len()], bytes[first.len()..], "{length} from {INLINE}");
            assert!(inline.iter().zip(bytes).all(|(a, b)| a == b || *a == 0xff), "{length} from {INLINE}");
            let behind = &stored[8 + length.next_multiple_of(8)..];
            assert!(stored[..8].iter().chain(behind).all(|&byte| byte == 0xff), "{length} from {INLINE}");
        }
    }

    #[test]
    fn whole_lines_survive_at_every_alignment_and_nothing_else_is_touched() {
        for (copier, lines) in copiers().into_iter().flat_map(|copier| (0..5).map(move |n| (copier, n))) {
            let payloads = (2, INLINE_WORDS + lines * 8);
            let records = (lines > 0).then_some((0, lines * 8));
            for (from, count) in [payloads].into_iter().chain(records) {
                let cells = Cells::zeroed(64);
                let word = |i: usize| i as u64 * 0x0101_0101;
                cells.iter().enumerate().for_each(|(i, cell)| cell.store(word(i), Ordering::Relaxed));
                for align in 0..8 {
                    let mut out = vec![0xee; align + count * 8 + 16];
                    let (words, bytes) = (&cells[from..from + count], &mut out[align..align + count * 8]);
                    match from {
                        0 => copier.load_records(words, bytes),
                        _ => copier.load_lines(words, bytes),
                    }
                    let (before, rest) = out.split_at(align);
                    let (copied, behind) = rest.split_at(count * 8);
                    let expected = (from..from + count).flat_map(|i| word(i).to_ne_bytes());
                    assert!(copied.iter().copied().eq(expected), "{lines} lines from {from}");
                    assert!(
                        before.iter().chain(behind).all(|&byte| byte == 0xee),
                        "{lines} lines from {from}"
                    );
                }
            }
        }
    }

    #[test]
    fn short_payloads_are_stored_in_place() {
        let source: Vec<u8> = (1..=48).collect();
        for length in 0..=48 {
            let cells = Cells::zeroed(8);
            let (line, _) = cells.split_first_chunk::<INLINE_WORDS>().unwrap();
            store_inline(line, &source[..length]);
            let mut out = vec![0; length];
            load_words(&line[..length.div_ceil(8)], &mut out);
            assert_eq!(out, source[..length]);
            let words = line[length.div_ceil(8)..].iter().map(|word| word.load(Ordering::Relaxed));
            assert!(words.into_iter().all(|word| word == 0), "{length}");
        }
    }
}
