//! Copies through vector registers, in inline assembly for x86-64. The parent module explains why the assembly is correct.

use super::{AtomicU64, Copier};
use std::arch::asm;

/// Loads two words one by one, and stores both with one instruction. This halves the number of stores, because a processor can do only few
/// stores at a time.
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

/// Copies 16 to 64 bytes without a loop. It copies the same number of bytes from the start and from the end, and the two pieces can
/// overlap.
#[inline(always)]
pub(super) fn load_ends(words: &[AtomicU64], bytes: &mut [u8]) {
    assert!(words.len() * 8 >= bytes.len() && bytes.len() >= 16 && bytes.len() <= 64);
    let (from, to, length) = (words.as_ptr().cast::<u8>(), bytes.as_mut_ptr(), bytes.len());
    if length >= 32 {
        // SAFETY: the assertion bounds both runs, and no piece leaves them, because there are at least 32 bytes. The source is
        // shared words mapped readable by the promise of `Cells::from_raw`; the destination is ours alone. SSE2 is part of
        // every x86-64, and `movups` needs no alignment.
        unsafe {
            asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + 16]",
                "movups {c}, [{from} + {n} - 32]",
                "movups {d}, [{from} + {n} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + 16], {b}",
                "movups [{to} + {n} - 32], {c}",
                "movups [{to} + {n} - 16], {d}",
                from = in(reg) from,
                to = in(reg) to,
                n = in(reg) length,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                c = out(xmm_reg) _,
                d = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    } else {
        // SAFETY: as above, for at least 16 bytes.
        unsafe {
            asm!(
                "movups {a}, [{from}]",
                "movups {b}, [{from} + {n} - 16]",
                "movups [{to}], {a}",
                "movups [{to} + {n} - 16], {b}",
                from = in(reg) from,
                to = in(reg) to,
                n = in(reg) length,
                a = out(xmm_reg) _,
                b = out(xmm_reg) _,
                options(nostack, preserves_flags),
            );
        }
    }
}

impl Copier {
    /// Stores at least 32 bytes to shared words, without the first `skip` bytes.
    #[inline(always)]
    pub(super) fn store_from(self, words: &[AtomicU64], bytes: &[u8], skip: usize) {
        assert!(words.len() * 8 >= bytes.len() && bytes.len() >= 32);
        // SAFETY: the assertion bounds both runs. The destination is shared words behind `UnsafeCell`, mapped writable
        // by the promise of `Cells::from_raw`.
        unsafe { self.copy(bytes.as_ptr(), words.as_ptr() as *mut u8, skip, bytes.len()) }
    }

    /// Loads at least 32 bytes from shared words.
    #[inline(always)]
    pub(super) fn load_long(self, words: &[AtomicU64], bytes: &mut [u8]) {
        assert!(words.len() * 8 >= bytes.len() && bytes.len() >= 32);
        // SAFETY: the assertion bounds both runs. The source is shared words mapped readable by the promise of
        // `Cells::from_raw`; the destination is ours alone.
        unsafe { self.copy(words.as_ptr().cast(), bytes.as_mut_ptr(), 0, bytes.len()) }
    }

    /// Copies the payload words of a record: first the words after the header in its first line, then whole lines. The first part needs no
    /// branch, and its address does not depend on the length. Most messages have no more than this part.
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

    /// Copies `length` bytes except the first `skip`. The copied bytes are whole cache lines, at least one.
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

    /// Copies `length` bytes except the first `skip`. `length` is at least 32. If the processor has AVX, `copy_wide` copies as much as it
    /// can. `copy_rest` copies the rest.
    ///
    /// # Safety
    /// `length` bytes can be read at `from` and written at `to`, by this thread or as shared words. The two ranges do not overlap.
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

/// Copies from `skip` on as long as at least 64 bytes remain. Returns the index of the first byte that it did not copy. It copies in pieces
/// of 32 bytes. No piece crosses a cache line at its destination if `to + skip` is 64-byte aligned, or at its source if `from + skip` is
/// 64-byte aligned.
///
/// # Safety
/// The same as for [`Copier::copy`]. In addition, at least 64 bytes remain, and the processor has AVX.
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
    // SAFETY: there is AVX.
    unsafe {
        clear_upper_halves();
    }
    done
}

/// Clears the upper halves of the vector registers. Without this, later instructions on the lower halves would wait for the upper halves on
/// some processors. The assembly block tells the compiler that no value survives in these registers, because a caller that is built for AVX
/// can keep values there.
///
/// # Safety
/// The processor has AVX.
#[cfg(not(target_feature = "avx"))]
#[inline(always)]
unsafe fn clear_upper_halves() {
    // SAFETY: there is AVX, as the caller promised. No memory is touched, and each register that changes is named.
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
}

/// Copies the bytes from offset `skip` up to offset `length`. `length` is at least 32. The call always copies the last 32 bytes. Some of
/// these can lie before `skip`, and some can be copied twice.
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
