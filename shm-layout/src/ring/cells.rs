//! Shared words: a slice of atomics that another process might be writing. The slice keeps its memory mapped.
//!
//! All access to shared memory goes through this module. It never makes a `&[u8]` or `&T` of shared memory. Readers use relaxed loads of at
//! most eight bytes, because the standard library allows these on read-only pages.

use crate::layout::geometry::WORD;
use crate::layout::header::{HEADER_WORDS, SESSION_REST};
use crate::sync::{AtomicU64, Ordering};
use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// The least number of words of a [`Page`]. In the build for the model checker, a page has no more words than a model needs.
const PAGE_WORDS: usize = if cfg!(loom) { SESSION_REST + 1 } else { HEADER_WORDS };

/// A slice of at least one shared 8-byte word. The slice has a reference to the owner of the memory. The owner keeps the words mapped.
#[derive(Clone)]
pub struct Cells {
    words: NonNull<AtomicU64>,
    /// The index of the last word. It is also the mask for indexes that wrap.
    last: usize,
    /// The owner of the memory. When the last reference to the owner is dropped, the owner unmaps the memory. With the `Box`, this field is
    /// one pointer long and not two. The field must be short, because it lies in a cache line that publishers and readers need for each
    /// message.
    _owner: Arc<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the words are atomics, which any thread can use, and the owner that keeps them mapped is Send and Sync.
unsafe impl Send for Cells {}
// SAFETY: as above; `Cells` hands out nothing but shared references to atomics.
unsafe impl Sync for Cells {}

impl Cells {
    /// Makes cells of the `len` words at `words`.
    ///
    /// # Safety
    /// `words` is aligned to eight bytes, and `len` words from there stay mapped and readable for as long as `owner` lives. If a caller
    /// stores through the result, the map must be writable.
    ///
    /// # Panics
    /// When there is no word.
    #[cfg(not(loom))]
    pub(crate) unsafe fn from_raw(
        words: NonNull<AtomicU64>,
        len: usize,
        owner: impl Any + Send + Sync,
    ) -> Self {
        debug_assert!(words.is_aligned());
        let last = len.checked_sub(1).expect("at least one word");
        Self { words, last, _owner: Arc::new(Box::new(owner)) }
    }

    /// Makes zeroed words in this process's own memory, for models and tests.
    #[cfg(any(test, loom))]
    pub(crate) fn zeroed(len: usize) -> Self {
        let owner: Vec<AtomicU64> = (0..len).map(|_| AtomicU64::new(0)).collect();
        let words = NonNull::from(owner.as_slice()).cast();
        let last = len.checked_sub(1).expect("at least one word");
        Self { words, last, _owner: Arc::new(Box::new(owner)) }
    }

    /// The word with index `number`, modulo the number of words. The number of words must be a power of two.
    #[inline(always)]
    pub(crate) fn wrapped(&self, number: u64) -> &AtomicU64 {
        // SAFETY: the mask makes any number at most the index of the last word.
        let word = unsafe { self.words.add(number as usize & self.last) };
        // SAFETY: as in `deref`.
        unsafe { word.as_ref() }
    }

    /// The word of a ring at `position`, which counts bytes since the ring began. These cells must be the data of the ring.
    #[inline(always)]
    pub(crate) fn word_at(&self, position: u64) -> &AtomicU64 {
        self.wrapped(position / WORD)
    }

    /// The words of the `bytes` bytes from `position` on. Returns `None` if they cross the end of the ring. `bytes` is a multiple of eight.
    #[inline(always)]
    pub(crate) fn run_at(&self, position: u64, bytes: u64) -> Option<&[AtomicU64]> {
        let at = (position / WORD) as usize & self.last;
        self.get(at..at + (bytes / WORD) as usize)
    }

    /// Stores zero in the words at `from`, `from + step` and so on, below `end`. `end - from` is a multiple of `step`.
    #[inline(always)]
    pub(crate) fn zero_each(&self, from: u64, end: u64, step: u64) {
        let Some(run) = self.run_at(from, end - from) else {
            return self.zero_across_the_end(from, end, step);
        };
        // This is a loop, because the compiler did not inline `for_each` here.
        for line in run.chunks_exact((step / WORD) as usize) {
            line[0].store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn zero_across_the_end(&self, from: u64, end: u64, step: u64) {
        let mut at = from;
        while at < end {
            self.word_at(at).store(0, Ordering::Relaxed);
            at += step;
        }
    }

    /// The size of all words, in bytes.
    #[inline(always)]
    pub fn bytes(&self) -> u64 {
        (self.last as u64 + 1) * WORD
    }
}

impl Deref for Cells {
    type Target = [AtomicU64];

    #[inline(always)]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `from_raw` was promised that these words are aligned and mapped while `_owner` lives, which is at
        // least as long as this borrow. Others can write them meanwhile: they are atomics.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr(), self.last + 1) }
    }
}

impl fmt::Debug for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cells({} words)", self.len())
    }
}

/// The words of a page, such as the header of a segment.
///
/// The writer and the readers need a few of these words for each message. The indexes of these words are constants, so an access needs no
/// bounds check.
#[derive(Debug, Clone)]
pub struct Page(Cells);

impl Page {
    /// Makes a page of these words.
    ///
    /// # Panics
    /// When there are fewer words than a page has.
    pub fn new(cells: Cells) -> Self {
        assert!(cells.len() >= PAGE_WORDS, "{} words are no page", cells.len());
        Self(cells)
    }

    /// The word with index `NUMBER`.
    #[inline(always)]
    pub fn word<const NUMBER: usize>(&self) -> &AtomicU64 {
        const { assert!(NUMBER < PAGE_WORDS) };
        // SAFETY: `new` has seen that there are at least `PAGE_WORDS` words.
        let word = unsafe { self.0.words.add(NUMBER) };
        // SAFETY: as in `Cells::deref`.
        unsafe { word.as_ref() }
    }
}

impl Deref for Page {
    type Target = Cells;

    #[inline(always)]
    fn deref(&self) -> &Cells {
        &self.0
    }
}

/// The three parts of a segment that the protocol works on.
#[derive(Debug, Clone)]
pub struct RingCells {
    /// The header page.
    pub header: Page,
    /// The sequence index. Its word number `s % length` has the position from which to look for sequence `s`.
    pub index: Cells,
    /// The granules.
    pub data: Cells,
}
