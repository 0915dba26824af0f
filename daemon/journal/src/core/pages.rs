//! Converts writes to whole pages. The writes can have any offset and size. The pages are in memory that direct I/O accepts.

use super::Piece;
use shmcast::journal::format::PAGE;
use std::io;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Memory of whole pages.
#[derive(Debug)]
pub struct Memory(Vec<Page>);

impl Memory {
    /// Makes this many pages.
    pub fn new(pages: usize) -> Self {
        Self(vec![Page::new_zeroed(); pages])
    }

    /// Returns the bytes of all pages.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.0.as_mut_slice().as_mut_bytes()
    }
}

/// Converts the writes of a file to whole pages. If a write ends within a page, zeros fill the rest of this page. The next write then
/// writes the page again, with the bytes of both writes.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The last page, if the last write filled only a part of it. The filled part is at the start of the page.
    last: Box<[u8; PAGE]>,
    /// The number of the file with the last write, and the offset after the last written byte.
    end: (u64, u64),
}

/// One write, converted to whole pages.
#[derive(Debug)]
pub struct Stretch<'a> {
    before: &'a [u8],
    pieces: &'a [Piece],
    place: u64,
    size: usize,
}

impl Default for Pages {
    fn default() -> Self {
        Self { last: Box::new([0; PAGE]), end: (0, 0) }
    }
}

impl Pages {
    /// Converts a write to whole pages with about `ahead` zeros after it, and passes these pages to `run`. The write must begin at a page,
    /// or at the end of the last write.
    ///
    /// # Errors
    /// The error of `run`. After an error, write no more to this file.
    pub fn write(
        &mut self,
        number: u64,
        offset: u64,
        pieces: &[Piece],
        ahead: u64,
        run: impl FnOnce(&Stretch<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let into = (offset % PAGE as u64) as usize;
        if into > 0 && self.end != (number, offset) {
            return Err(io::Error::other(format!("file {number}: nothing was written before {offset}")));
        }
        self.end = (0, 0);
        let used = into + pieces.iter().map(|piece| piece.bytes().len()).sum::<usize>();
        let zeros = usize::try_from(ahead).map_or(0, |ahead| ahead / PAGE * PAGE);
        let size = (used + zeros).next_multiple_of(PAGE);
        let stretch = Stretch { before: &self.last[..into], pieces, place: offset - into as u64, size };
        run(&stretch)?;
        let mut last = [0; PAGE];
        stretch.copy(used / PAGE * PAGE, &mut last);
        *self.last = last;
        self.end = (number, offset + (used - into) as u64);
        Ok(())
    }
}

impl Stretch<'_> {
    /// Returns the offset in the file at which the first page is written, in bytes.
    pub const fn place(&self) -> u64 {
        self.place
    }

    /// The size of all pages of the write, in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Fills `memory` with the bytes from the offset `from` on. The part of `memory` after the last byte becomes zeros.
    pub fn copy(&self, from: usize, memory: &mut [u8]) {
        let parts = std::iter::once(self.before).chain(self.pieces.iter().map(Piece::bytes));
        let (mut skip, mut filled) = (from, 0);
        for part in parts {
            let rest = &part[skip.min(part.len())..];
            skip -= part.len() - rest.len();
            let some = rest.len().min(memory.len() - filled);
            memory[filled..filled + some].copy_from_slice(&rest[..some]);
            filled += some;
        }
        memory[filled..].fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(byte: u8, length: usize) -> Piece {
        Piece::Own(vec![byte; length].into())
    }

    /// Performs a write in parts of `part` bytes, and stores the parts as a disk would. Returns the write's offset and size.
    fn run(
        pages: &mut Pages,
        file: &mut Vec<u8>,
        offset: usize,
        pieces: &[Piece],
        ahead: u64,
        part: usize,
    ) -> (u64, usize) {
        let mut memory = Memory::new(part / PAGE);
        let mut found = (0, 0);
        let run = |stretch: &Stretch<'_>| {
            found = (stretch.place(), stretch.size());
            assert!(stretch.place().is_multiple_of(PAGE as u64) && stretch.size().is_multiple_of(PAGE));
            assert!(memory.bytes().as_ptr().addr().is_multiple_of(PAGE));
            let place = stretch.place() as usize;
            file.resize(file.len().max(place + stretch.size()), 0xff);
            for from in (0..stretch.size()).step_by(part) {
                let size = part.min(stretch.size() - from);
                stretch.copy(from, &mut memory.bytes()[..size]);
                file[place + from..place + from + size].copy_from_slice(&memory.bytes()[..size]);
            }
            Ok(())
        };
        pages.write(1, offset as u64, pieces, ahead, run).unwrap();
        found
    }

    #[test]
    fn a_page_that_was_not_full_is_written_again_with_the_same_bytes() {
        let (mut pages, mut file) = (Pages::default(), Vec::new());
        let mut write = |offset, pieces: &[Piece]| run(&mut pages, &mut file, offset, pieces, 0, 8 * PAGE);
        assert_eq!(write(0, &[own(1, PAGE), own(2, 100)]), (0, 2 * PAGE));
        assert_eq!(write(PAGE + 100, &[own(3, 28)]), (PAGE as u64, PAGE));
        assert_eq!(write(PAGE + 128, &[own(4, PAGE - 128)]), (PAGE as u64, PAGE));
        assert_eq!(write(2 * PAGE, &[own(5, 1)]), (2 * PAGE as u64, PAGE));
        let expected = [vec![1; PAGE], vec![2; 100], vec![3; 28], vec![4; PAGE - 128], vec![5]].concat();
        assert_eq!(file[..=2 * PAGE], expected);
        assert!(file[2 * PAGE + 1..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_large_write_is_the_same_in_parts_of_any_size() {
        let pieces: Vec<Piece> = (1..=40).map(|byte| own(byte, usize::from(byte) * 777)).collect();
        let all: Vec<u8> = pieces.iter().flat_map(|piece| piece.bytes()).copied().collect();
        for part in [1, 2, 3, 200] {
            let (mut pages, mut file) = (Pages::default(), Vec::new());
            run(&mut pages, &mut file, 0, &[own(99, 64)], 0, PAGE);
            run(&mut pages, &mut file, 64, &pieces, 0, part * PAGE);
            run(&mut pages, &mut file, 64 + all.len(), &[own(98, 3)], 0, PAGE);
            assert_eq!(file[..64 + all.len() + 3], [&[99; 64][..], &all, &[98; 3]].concat());
        }
    }

    #[test]
    fn zeros_ahead_are_written_over() {
        let (mut pages, mut file) = (Pages::default(), Vec::new());
        let ahead = 2 * PAGE as u64 + 50;
        assert_eq!(run(&mut pages, &mut file, 0, &[own(1, 100)], ahead, PAGE), (0, 3 * PAGE));
        assert!(file[100..].iter().all(|&byte| byte == 0));
        assert_eq!(run(&mut pages, &mut file, 100, &[own(2, PAGE)], 0, PAGE), (0, 2 * PAGE));
        assert_eq!(file.len(), 3 * PAGE);
        assert_eq!(file[..PAGE + 100], [&[1; 100][..], &[2; PAGE]].concat());
    }

    #[test]
    fn a_write_that_follows_nothing_is_refused() {
        let mut pages = Pages::default();
        run(&mut pages, &mut Vec::new(), 0, &[own(1, 100)], 0, PAGE);
        let never = |_: &Stretch<'_>| -> io::Result<()> { panic!("written") };
        assert!(pages.write(2, 100, &[own(1, 1)], 0, never).is_err());
        assert!(pages.write(1, 164, &[own(1, 1)], 0, never).is_err());
        let refuse = |_: &Stretch<'_>| -> io::Result<()> { Err(io::ErrorKind::StorageFull.into()) };
        assert!(pages.write(1, 100, &[own(1, 1)], 0, refuse).is_err());
        assert!(pages.write(1, 100, &[own(1, 1)], 0, never).is_err(), "the file was given up");
    }
}
