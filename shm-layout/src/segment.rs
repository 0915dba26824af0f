//! A segment: a mapped file with a checked header. The ring and the board work on the words of the map.
//!
//! The caller brings the file (from a directory, or as a daemon's descriptor) and decides which process is allowed to write to it.

use crate::board::{BoardCells, BoardWriter, Carry, Replayed, View};
use crate::error::OpenError;
use crate::layout::board::{self, Spec};
use crate::layout::geometry::{HEADER_BYTES, MAX_SEQUENCE, WORD};
use crate::layout::header::{
    BOARD, FIRST_SEQUENCE, HAS_SESSION, HEADER_WORDS, Header, LAZY_BYTES, LAZY_PUBLISHED, MAGIC,
    MINOR_WITH_BOARD, SESSION, SESSION_REST, STATE, State, VERSION, board_offset,
};
use crate::layout::record::{session_identity, session_words};
use crate::mem::{Map, Pieces, Preparation, Step, lock_on_fault, prepare, reserve};
use crate::ring::cells::{Page, RingCells};
use crate::ring::locate::{LocateError, Locator, Place};
use crate::ring::reader::Reader;
use crate::ring::writer::{TakeOverError, Writer};
use crate::sync::Ordering;
use std::fs::File;
use std::os::unix::fs::MetadataExt;

/// The access with which a segment is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading only, enforced by the kernel.
    Read,
    /// Reading and writing. The writer has this access, and so has the program that makes or marks the segment.
    Write,
}

/// A mapped segment.
#[derive(Debug)]
pub struct Segment {
    header: Header,
    cells: RingCells,
    map: Map,
    access: Access,
    /// The board after the ring, if there is one. Its header was checked.
    board: Option<BoardCells>,
}

impl Segment {
    /// Makes a segment in the empty `file`, and maps it for writing. No other process may have opened the file.
    ///
    /// The call first reserves all bytes, unless the caller has done so with [`reserve`]. Therefore a full file system is an error of this
    /// call, and does not kill the program at a later store. The call stores the magic number last, so that no process uses an unfinished
    /// segment.
    ///
    /// # Errors
    /// [`OpenError::Os`] when the file system refuses, [`OpenError::Field`] for names that do not fit.
    pub fn create(file: &File, header: Header) -> Result<Self, OpenError> {
        Self::create_with_board(file, header, None)
    }

    /// Makes a segment as [`create`](Self::create) does, with a board after the ring.
    ///
    /// # Errors
    /// The same as for [`create`](Self::create).
    pub fn create_with_board(file: &File, header: Header, board: Option<Spec>) -> Result<Self, OpenError> {
        let words = header.to_words_of(if board.is_some() { MINOR_WITH_BOARD } else { VERSION.1 })?;
        let board = match board {
            Some(spec) => Some(
                board::Geometry::new(spec, header.uuid[0])
                    .map_err(|_| OpenError::Field { what: "no board has these sizes" })?,
            ),
            None => None,
        };
        let bytes = header.geometry.bytes_with(board.map_or(0, |board| board.bytes()));
        let is_reserved =
            file.metadata().is_ok_and(|file| file.len() >= bytes && file.blocks() * 512 >= bytes);
        if !is_reserved {
            reserve(file, bytes)
                .map_err(|source| OpenError::Os { what: "reserve memory for the segment", source })?;
        }
        let map = Map::read_write(file, bytes)
            .map_err(|source| OpenError::Os { what: "map the new segment", source })?;
        let cells = lend(&map, &header);
        for (cell, word) in cells.header.iter().zip(words).skip(1) {
            cell.store(word, Ordering::Relaxed);
        }
        let board = board.map(|geometry| {
            let at = header.geometry.end();
            let board = lend_board(&map, at, geometry);
            for (cell, word) in board.header.iter().zip(geometry.to_words()) {
                cell.store(word, Ordering::Relaxed);
            }
            board.begin_at(1);
            cells.header[BOARD].store(at, Ordering::Relaxed);
            board
        });
        cells.header[0].store(MAGIC, Ordering::Release);
        Ok(Self { header, cells, map, access: Access::Write, board })
    }

    /// Maps an existing segment. First it checks the header, and compares the sizes in the header with the file's size.
    ///
    /// # Errors
    /// [`OpenError`] that names the first fault. The call writes nothing, whatever the file holds.
    pub fn open(file: &File, access: Access) -> Result<Self, OpenError> {
        let os = |what| move |source| OpenError::Os { what, source };
        let found = file.metadata().map_err(os("read the segment's size"))?.len();
        if found < HEADER_BYTES {
            return Err(OpenError::Truncated { found, needed: HEADER_BYTES });
        }
        let page = Map::read_only(file, HEADER_BYTES).map_err(os("map the segment's header"))?;
        let copy: Vec<u64> =
            page.cells(0, HEADER_WORDS as u64).iter().map(|word| word.load(Ordering::Relaxed)).collect();
        let header = Header::from_words(&copy)?;
        let needed = header.geometry.segment_bytes();
        if found < needed {
            return Err(OpenError::Truncated { found, needed });
        }
        let board = find_board(file, &header, board_offset(&copy), found)?;
        let bytes = header.geometry.bytes_with(board.map_or(0, |board| board.bytes())).min(found);
        let map = match access {
            Access::Read => Map::read_only(file, bytes),
            Access::Write => Map::read_write(file, bytes),
        }
        .map_err(os("map the segment"))?;
        let cells = lend(&map, &header);
        let board = board.map(|geometry| lend_board(&map, header.geometry.end(), geometry));
        Ok(Self { header, cells, map, access, board })
    }

    /// The sizes and keys of the segment's board; `None` if the segment has no board.
    pub fn board_spec(&self) -> Option<Spec> {
        self.board.as_ref().map(|board| board.geometry.spec)
    }

    /// A view of the segment's board, if it has one.
    pub fn board(&self) -> Option<View> {
        self.board.clone().map(View::of)
    }

    /// Copies the segment's board, if there is one, for the segment in which the channel will continue. Call this before the first sequence
    /// of the next segment is decided.
    pub fn begin_to_carry(&self) -> Option<Carry> {
        self.board().map(Carry::begin)
    }

    /// Copies messages from this segment's board to the board of `next`: all messages whose sequence is less than `below`. The segment
    /// `next` [continues](Self::continue_from) this segment at the sequence `below`. Call this before another process sees `next`.
    pub fn carry_board(&self, carry: Option<Carry>, next: &Self, below: u64) {
        let (Some(mut carry), Some(board)) = (carry, &next.board) else { return };
        let mut buffer = vec![0; self.header.geometry.max_message as usize];
        carry.finish(&mut self.reader(self.locator().start()), below, &mut buffer);
        carry.put_on(board.clone(), below);
    }

    /// Takes over the segment's board, if there is one, and returns its writer. Stores on the board the messages that only the ring has.
    /// Call this after taking over the ring as its writer, and before publishing.
    ///
    /// # Errors
    /// [`LocateError::Corrupt`] when another program wrote to the ring.
    ///
    /// # Panics
    /// When the segment was mapped for reading.
    pub fn board_writer(&self) -> Result<Option<(BoardWriter, Replayed)>, LocateError> {
        assert!(self.access == Access::Write, "a writer needs a writable map");
        let Some(board) = &self.board else { return Ok(None) };
        let mut buffer = vec![0; self.header.geometry.max_message as usize];
        BoardWriter::take_over(board.clone(), self.reader(self.locator().start()), &mut buffer).map(Some)
    }

    /// Prepares the map as `wanted` says: touches its pages, locks them, or collapses them into huge pages. Returns one [`Step`] for each
    /// requested step, with its result. On a map for reading only, the steps for the NUMA node and for huge pages are left out.
    pub fn prepare(&self, wanted: Preparation) -> Vec<Step> {
        prepare(&self.map, wanted)
    }

    /// Makes the kernel lock each page into memory when the page is touched. This call touches no page. It takes microseconds if no page
    /// was touched before.
    pub fn lock_on_fault(&self) -> Step {
        lock_on_fault(&self.map)
    }

    /// An iterator that touches the pages of the map piece by piece, in any thread. The iterator keeps the pages mapped, even if this
    /// segment is dropped.
    ///
    /// # Panics
    /// When the segment was mapped for reading.
    pub fn pieces(&self) -> Pieces {
        Pieces::of(&self.map)
    }

    /// Takes over the ring, and returns its writer. The caller must hold the channel's writer lock, and must drop the writer before it
    /// releases the lock.
    ///
    /// # Errors
    /// See `Writer::take_over`.
    ///
    /// # Panics
    /// When the segment was mapped for reading.
    pub fn writer(&self, pid: u32, time: u64) -> Result<Writer, TakeOverError> {
        assert!(self.access == Access::Write, "a writer needs a writable map");
        Writer::take_over(self.cells.clone(), self.header.geometry, pid, time)
    }

    /// A reader that starts at `place`.
    pub fn reader(&self, place: Place) -> Reader {
        Reader::new(self.cells.clone(), self.header.geometry, place)
    }

    /// Returns a locator, which finds the places from which readers can start.
    pub fn locator(&self) -> Locator {
        Locator::new(self.cells.clone(), self.header.geometry)
    }

    /// The immutable part of the header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the present value of a word of the header page, such as [`LAZY_BYTES`]. The writer can have written anything there.
    ///
    /// # Panics
    /// When `word` lies beyond the page.
    pub fn header_word(&self, word: usize) -> u64 {
        self.cells.header[word].load(Ordering::Relaxed)
    }

    /// The present epoch and state. `None` before the first writer took the segment, or if the word is no valid state.
    pub fn state(&self) -> Option<(u64, State)> {
        State::unpack(self.header_word(STATE))
    }

    /// Returns the session from another host, if a bridge fills this ring; `None` if no bridge fills it. Only the holder of the writer lock
    /// certainly gets a consistent value. While a writer changes the session, other processes can see parts of two sessions.
    pub fn session(&self) -> Option<[u8; 10]> {
        let rest = self.header_word(SESSION_REST);
        (rest & HAS_SESSION != 0).then(|| session_identity([self.header_word(SESSION), rest]))
    }

    /// The first sequence that this segment can have. It is 1, unless the segment continues the channel of an earlier segment.
    pub fn first_sequence(&self) -> u64 {
        self.locator().start().sequence
    }

    /// Prepares this new segment to continue a channel. Call this before another process sees the segment. The sequence of the segment's
    /// first message will be `next`. `bytes` is the number of payload bytes that were published in earlier segments. If `epoch` is not 0,
    /// the first writer of the segment will have the epoch `epoch + 1`.
    ///
    /// # Panics
    /// When the segment was mapped for reading, when it has had a writer, or when `next` is 0 or beyond [`MAX_SEQUENCE`].
    pub fn continue_from(&self, next: u64, epoch: u64, bytes: u64) {
        let is_new = self.access == Access::Write && self.header_word(STATE) == 0;
        assert!(is_new, "only a new segment can continue another");
        assert!((1..=MAX_SEQUENCE).contains(&next));
        // The new index holds only zeros. The first message is at position 0, so its index entry is right for any first sequence.
        self.cells.header[FIRST_SEQUENCE].store(next, Ordering::Relaxed);
        self.cells.header[LAZY_PUBLISHED].store(next - 1, Ordering::Relaxed);
        self.cells.header[LAZY_BYTES].store(bytes, Ordering::Relaxed);
        if let Some(board) = &self.board {
            board.begin_at(next);
        }
        if epoch > 0 {
            // The state must not be *closed*, because a reader that starts before the first writer would take *closed* for the end of the
            // stream.
            self.cells.header[STATE].store(State::Recovering.pack(epoch), Ordering::Release);
        }
    }

    /// Copies the session of another host from the previous segment to this one. Call this before another process sees this segment.
    ///
    /// # Panics
    /// When the segment was mapped for reading.
    pub fn continue_session(&self, session: [u8; 10]) {
        assert!(self.access == Access::Write, "only a writable map can be marked");
        let [high, low] = session_words(session);
        self.cells.header[SESSION].store(high, Ordering::Relaxed);
        self.cells.header[SESSION_REST].store(low | HAS_SESSION, Ordering::Relaxed);
    }

    /// Returns a function that does the work of [`prepare`](Self::prepare) when it is called, perhaps in another thread. The function keeps
    /// the pages mapped, even if this segment is dropped.
    pub fn preparer(&self, wanted: Preparation) -> impl FnOnce() -> Vec<Step> + Send + use<> {
        let map = self.map.clone();
        move || prepare(&map, wanted)
    }

    /// The access with which the segment is mapped.
    pub fn access(&self) -> Access {
        self.access
    }

    /// Tells readers that another segment has replaced this one.
    ///
    /// # Panics
    /// When the segment was mapped for reading.
    pub fn supersede(&self) {
        assert!(self.access == Access::Write, "only a writable map can be marked");
        let epoch = self.state().map_or(0, |(epoch, _)| epoch);
        self.cells.header[STATE].store(State::Superseded.pack(epoch), Ordering::Release);
    }
}

/// Finds the board at `offset` in a segment of `found` bytes, and checks the board. If the board is damaged, the whole segment counts as
/// damaged, because a publisher could not update the board.
fn find_board(
    file: &File,
    header: &Header,
    offset: u64,
    found: u64,
) -> Result<Option<board::Geometry>, OpenError> {
    if offset == 0 {
        return Ok(None);
    }
    let end = header.geometry.end();
    if offset != end {
        return Err(OpenError::Field { what: "the place of the board" });
    }
    let truncated = |needed| OpenError::Truncated { found, needed };
    if found < end + HEADER_BYTES {
        return Err(truncated(end + HEADER_BYTES));
    }
    let page = Map::read_only_at(file, end, HEADER_BYTES)
        .map_err(|source| OpenError::Os { what: "map the board's header", source })?;
    let words: Vec<u64> = page.cells(0, 16).iter().map(|word| word.load(Ordering::Relaxed)).collect();
    let geometry = board::Geometry::from_words(&words)?;
    let needed = end + geometry.bytes();
    if found < needed { Err(truncated(needed)) } else { Ok(Some(geometry)) }
}

fn lend_board(map: &Map, at: u64, geometry: board::Geometry) -> BoardCells {
    let board::Spec { keys, .. } = geometry.spec;
    BoardCells {
        header: map.cells(at, board::HEADER_WORDS as u64),
        index: map.cells(at + geometry.index_offset(), geometry.entries),
        heads: map.cells(at + geometry.heads_offset(), keys * board::HEAD_WORDS as u64),
        values: map.cells(at + geometry.values_offset(), keys * geometry.stride() / WORD),
        geometry,
    }
}

fn lend(map: &Map, header: &Header) -> RingCells {
    let g = &header.geometry;
    RingCells {
        header: Page::new(map.cells(0, HEADER_WORDS as u64)),
        index: map.cells(HEADER_BYTES, g.index_entries),
        data: map.cells(g.data_offset, g.capacity / WORD),
    }
}
