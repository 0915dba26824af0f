//! Moving payload between private bytes and shared words.
//!
//! Payload words are relaxed atomics: they may be overwritten while they are read, and the reader's window check says
//! afterwards whether they were. Short copies go word by word: stores of up to 64 bytes, whose source the caller has
//! often just put together from small pieces, which a wide load would have to wait for, and loads of less than 32. Longer
//! ones go through vector registers on x86-64, in inline assembly, because the compiler never merges atomics and a word
//! loop leaves most of the store bandwidth unused. The argument for that one exception: the assembly performs exactly the
//! loads (or stores) of the word loop, in some order, each of the pieces the hardware makes at least as large as a byte;
//! the protocol asks no more of payload than that each byte read was written at some time (the fences before and after
//! decide whether it was the right time), so tearing between words or inside them changes nothing. The compiler may
//! assume nothing about the memory behind an assembly block, so no data race exists in its eyes. Model-checked and
//! interpreted builds keep the word loop.

use crate::sync::{AtomicU64, Ordering};

/// Asks for the line of `word`, to be stored to soon. No promise and no effect but on time.
#[inline(always)]
pub fn fetch_to_store(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    // SAFETY: a hint: it changes no byte of memory and no register, and CPUs that do not know it do nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) word.as_ptr(), options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom), not(miri))))]
    let _ = word;
}

#[inline(always)]
fn load_piece(piece: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..piece.len()].copy_from_slice(piece);
    u64::from_ne_bytes(word)
}

/// Stores `bytes` into `words`, which must have room; the last word is padded with zeros.
#[inline(always)]
pub fn store(words: &[AtomicU64], bytes: &[u8]) {
    let words = &words[..bytes.len().div_ceil(8)];
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if bytes.len() > 64 {
        let wide = bytes.len() & !31;
        wide::store(&words[..wide / 8], &bytes[..wide]);
        return store_words(&words[wide / 8..], &bytes[wide..]);
    }
    store_words(words, bytes);
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

/// Loads `bytes.len()` bytes from `words`, which must hold them.
#[inline(always)]
pub fn load(words: &[AtomicU64], bytes: &mut [u8]) {
    let words = &words[..bytes.len().div_ceil(8)];
    #[cfg(all(target_arch = "x86_64", not(loom), not(miri)))]
    if bytes.len() >= 32 {
        let wide = bytes.len() & !31;
        let (head, tail) = bytes.split_at_mut(wide);
        wide::load(&words[..wide / 8], head);
        return load_words(&words[wide / 8..], tail);
    }
    load_words(words, bytes);
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
    use super::AtomicU64;
    use std::arch::{asm, is_x86_feature_detected};

    /// Both lengths are the same multiple of 32 bytes, and not 0.
    #[inline(always)]
    pub(super) fn store(words: &[AtomicU64], bytes: &[u8]) {
        assert!(words.len() * 8 == bytes.len());
        // SAFETY: the assertion bounds both runs. The destination is shared words behind `UnsafeCell`, mapped writable by
        // the promise of `Cells::from_raw`.
        unsafe { copy(bytes.as_ptr(), words.as_ptr() as *mut u8, bytes.len()) }
    }

    /// Both lengths are the same multiple of 32 bytes, and not 0.
    #[inline(always)]
    pub(super) fn load(words: &[AtomicU64], bytes: &mut [u8]) {
        assert!(words.len() * 8 == bytes.len());
        // SAFETY: the assertion bounds both runs. The source is shared words mapped readable by the promise of
        // `Cells::from_raw`; the destination is ours alone.
        unsafe { copy(words.as_ptr().cast(), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `length` bytes, a multiple of 32 that is not 0, from first to last.
    ///
    /// # Safety
    /// So many bytes can be read at `from` and written at `to`, by this thread or as shared words, and do not overlap.
    #[inline(always)]
    unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
        assert!(length.is_multiple_of(32) && length > 0);
        let (from, to) = (from.wrapping_add(length), to.wrapping_add(length));
        let n = (length as isize).wrapping_neg();
        if length > 64 && is_x86_feature_detected!("avx") {
            // SAFETY: the caller promised both runs; the processor has just been asked; these moves need no alignment.
            unsafe {
                asm!(
                    "2:",
                    "vmovups ymm0, [{from} + {n}]",
                    "vmovups [{to} + {n}], ymm0",
                    "add {n}, 32",
                    "jnz 2b",
                    "vzeroupper", // or each SSE instruction to come waits for the upper halves on some processors
                    from = in(reg) from,
                    to = in(reg) to,
                    n = inout(reg) n => _,
                    out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
                    out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
                    out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
                    out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
                    options(nostack),
                );
            }
            return;
        }
        // SAFETY: the caller promised both runs; SSE2 is part of every x86-64; `movups` needs no alignment.
        unsafe {
            asm!(
                "2:",
                "movups {a}, [{from} + {n}]",
                "movups {b}, [{from} + {n} + 16]",
                "movups [{to} + {n}], {a}",
                "movups [{to} + {n} + 16], {b}",
                "add {n}, 32",
                "jnz 2b",
                from = in(reg) from,
                to = in(reg) to,
                n = inout(reg) n => _,
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

    #[test]
    fn every_length_survives_at_every_alignment_and_nothing_else_is_touched() {
        let source: Vec<u8> = (0..300u32).map(|i| (i * 7 + 1) as u8).collect();
        for length in 0..=260 {
            for align in 0..8 {
                let cells = Cells::zeroed(64);
                let mark = u64::MAX;
                cells.iter().for_each(|w| w.store(mark, Ordering::Relaxed));
                store(&cells[1..], &source[align..align + length]);
                let mut out = vec![0xee; length + 16];
                load(&cells[1..], &mut out[align..align + length]);
                assert_eq!(&out[align..align + length], &source[align..align + length], "{length}");
                assert!(out[..align].iter().chain(&out[align + length..]).all(|&b| b == 0xee));
                let end = 1 + length.div_ceil(8);
                let untouched = cells[..1].iter().chain(&cells[end..]);
                assert!(untouched.map(|w| w.load(Ordering::Relaxed)).all(|w| w == mark), "{length}");
            }
        }
    }
}
