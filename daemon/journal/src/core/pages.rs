//! Whole pages of writes that begin and end anywhere, in memory that a disk can read by itself.

use super::Piece;
use shmcast::journal::format::PAGE;
use std::io;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Makes whole pages of the writes of a file. A write that ends within a page fills it up with zeros. The next one writes that page again,
/// with the bytes that it has and those that follow.
#[derive(Debug, Clone)]
pub struct Pages {
    /// The bytes of a page that is not full stand at the start, until the next write.
    memory: Vec<Page>,
    /// The file that was written last, and the offset behind the last byte.
    end: (u64, u64),
}

impl Pages {
    /// With memory for so many pages at once.
    pub fn new(count: usize) -> Self {
        Self { memory: vec![Page::new_zeroed(); count], end: (0, 0) }
    }

    /// Hands the pages of a write, and of about `ahead` zeros behind it, to `put`, with their offset, as many as fit into memory at once. The write begins a page, or where the last one
    /// ended.
    ///
    /// # Errors
    /// The error of `put`, after which the file is not written any more.
    pub fn write(
        &mut self,
        number: u64,
        offset: u64,
        pieces: &[Piece],
        ahead: u64,
        mut put: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut used = (offset % PAGE as u64) as usize;
        if used > 0 && self.end != (number, offset) {
            return Err(io::Error::other(format!("file {number}: nothing was written before {offset}")));
        }
        self.end = (0, 0);
        let mut place = offset - used as u64;
        let memory = self.memory.as_mut_slice().as_mut_bytes();
        for piece in pieces {
            let mut rest = piece.bytes();
            while !rest.is_empty() {
                let (now, later) = rest.split_at(rest.len().min(memory.len() - used));
                memory[used..used + now.len()].copy_from_slice(now);
                (used, rest) = (used + now.len(), later);
                if used == memory.len() {
                    put(place, memory)?;
                    (place, used) = (place + used as u64, 0);
                }
            }
        }
        let zeros = usize::try_from(ahead).unwrap_or(usize::MAX).min(memory.len() - used) / PAGE * PAGE;
        let end = (used + zeros).next_multiple_of(PAGE);
        if end > 0 {
            memory[used..end].fill(0);
            put(place, &memory[..end])?;
            memory.copy_within(used / PAGE * PAGE..used, 0);
        }
        self.end = (number, place + used as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: usize = 8;

    fn own(byte: u8, length: usize) -> Piece {
        Piece::Own(vec![byte; length].into())
    }

    /// Writes as a disk would have it.
    fn run(pages: &mut Pages, file: &mut Vec<u8>, offset: usize, pieces: &[Piece]) -> Vec<(usize, usize)> {
        let mut calls = Vec::new();
        let put = |at: u64, bytes: &[u8]| {
            let at = at as usize;
            assert!(at.is_multiple_of(PAGE) && bytes.len().is_multiple_of(PAGE));
            assert!(bytes.as_ptr().addr().is_multiple_of(PAGE));
            file.resize(file.len().max(at + bytes.len()), 0);
            file[at..at + bytes.len()].copy_from_slice(bytes);
            calls.push((at, bytes.len()));
            Ok(())
        };
        pages.write(1, offset as u64, pieces, 0, put).unwrap();
        calls
    }

    #[test]
    fn a_page_that_was_not_full_is_written_again_with_the_same_bytes() {
        let (mut pages, mut file) = (Pages::new(PAGES), Vec::new());
        assert_eq!(run(&mut pages, &mut file, 0, &[own(1, PAGE), own(2, 100)]), [(0, 2 * PAGE)]);
        let before = file.clone();
        assert_eq!(run(&mut pages, &mut file, PAGE + 100, &[own(3, 28)]), [(PAGE, PAGE)]);
        assert_eq!(file[..PAGE + 100], before[..PAGE + 100]);
        assert_eq!(file[PAGE + 100..PAGE + 128], [3; 28]);
        assert!(file[PAGE + 128..].iter().all(|&byte| byte == 0));
        assert_eq!(run(&mut pages, &mut file, PAGE + 128, &[own(4, PAGE - 128)]), [(PAGE, PAGE)]);
        assert_eq!(run(&mut pages, &mut file, 2 * PAGE, &[own(5, 1)]), [(2 * PAGE, PAGE)]);
    }

    #[test]
    fn zeros_ahead_are_written_over() {
        let (mut pages, mut written) = (Pages::new(PAGES), Vec::new());
        let mut ahead = |offset: u64, pieces: &[Piece], ahead| {
            pages.write(1, offset, pieces, ahead, |at, bytes| {
                written.push((at as usize, bytes.to_vec()));
                Ok(())
            })
        };
        ahead(0, &[own(1, 100)], 2 * PAGE as u64 + 50).unwrap();
        ahead(100, &[own(2, 28)], 0).unwrap();
        ahead(128, &[own(3, PAGE)], u64::MAX).unwrap();
        let [first, second, third] = &written[..] else { panic!("{} writes", written.len()) };
        assert_eq!((first.0, first.1.len(), &first.1[..100]), (0, 3 * PAGE, &[1; 100][..]));
        assert!(first.1[100..].iter().all(|&byte| byte == 0));
        assert_eq!((second.0, second.1.len(), &second.1[100..128]), (0, PAGE, &[2; 28][..]));
        assert_eq!((third.0, third.1.len()), (0, PAGES * PAGE), "no more than there is memory for");
        assert!(third.1[PAGE + 128..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_large_write_comes_in_parts() {
        let (mut pages, mut file) = (Pages::new(PAGES), Vec::new());
        run(&mut pages, &mut file, 0, &[own(1, 64)]);
        let most = PAGES * PAGE;
        let pieces = [own(2, most), own(3, most / 2), own(4, most / 2 - 64)];
        assert_eq!(run(&mut pages, &mut file, 64, &pieces), [(0, most), (most, most)]);
        let expected = [(0, 1), (64, 2), (most + 64, 3), (most + most / 2 + 64, 4)];
        assert!(expected.iter().all(|&(at, byte)| file[at] == byte && (at == 0 || file[at - 1] < byte)));
        assert_eq!(run(&mut pages, &mut file, 2 * most, &[own(5, 5)]), [(2 * most, PAGE)]);
    }

    #[test]
    fn a_write_that_follows_nothing_is_refused() {
        let mut pages = Pages::new(PAGES);
        let mut file = Vec::new();
        run(&mut pages, &mut file, 0, &[own(1, 100)]);
        let put = |_: u64, _: &[u8]| -> io::Result<()> { panic!("written") };
        assert!(pages.write(2, 100, &[own(1, 1)], 0, put).is_err());
        assert!(pages.write(1, 164, &[own(1, 1)], 0, put).is_err());
        let refuse = |_: u64, _: &[u8]| -> io::Result<()> { Err(io::ErrorKind::StorageFull.into()) };
        assert!(pages.write(1, 100, &[own(1, 1)], 0, refuse).is_err());
        assert!(pages.write(1, 100, &[own(1, 1)], 0, put).is_err(), "the file was given up");
    }
}
