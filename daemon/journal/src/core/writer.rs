//! Decides when and to which file frames are written, and which sequences are durable.

use super::mutant::{Mutant, is};
use super::{Frame, Lane, Now, Op, Piece, Pool, Settings, Step, SyncPolicy};
use shmcast::journal::format::{
    Cause, Composer, FRAME_ALIGN, FileHeader, FrameBuilder, JournalControl, Loss, PAGE, file_name,
};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The operation that makes a file ready before the present file is full. If this operation fails, the present file stays in use.
pub(crate) const NEXT_FILE: &str = "make the next file";

/// The limit for the frames in one write. Each frame is two parts of a vectored write, and the kernel accepts 1024 parts.
const GROUP_FRAMES: usize = 400;
/// The number of zero bytes that are written after the frames, in the place of later frames. Without these zeros, a small durable write
/// takes many times longer, because the file system must also record new blocks.
const AHEAD: u64 = 768 << 10;

/// A file that is being written, or that is not finished yet.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) number: u64,
    pub(super) name: String,
    composer: Composer,
    pub(super) is_named: bool,
    begun: Duration,
    /// The number of written frames. Messages are not counted, because a frame can be without messages.
    pub(super) written: u32,
    /// Number of frames whose contents in the file are safe.
    pub(super) synced: u32,
    /// The offset up to which zeros were written ahead.
    touched: u64,
    pub(super) is_sealed: bool,
}

/// A frame that was written but is not durable yet.
#[derive(Debug, Clone)]
pub(super) struct Pending {
    pub(super) file: u64,
    /// The number of the file's frames up to and including this one.
    pub(super) frames: u32,
    pub(super) next: u64,
    pub(super) reserve: u64,
    pub(super) size: usize,
    pub(super) messages: u32,
    /// The frame itself, for a second write if the file fails. `None` with [`SyncPolicy::None`].
    pub(super) frame: Option<Arc<Frame>>,
}

#[derive(Debug, Clone)]
pub(super) enum Purpose {
    Frames { file: u64, frames: u32, next: u64, bytes: u64 },
    Footer { file: u64, bytes: u64 },
    Sync { file: u64, covers: u32 },
    Spare,
    Name { file: u64 },
    Finish { file: u64 },
    GiveUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Spare {
    None,
    Making,
    Ready(u64),
}

/// The writer of a journal. It takes frames, and returns operations.
#[derive(Debug)]
pub struct Writer {
    pub(super) settings: Settings,
    /// The header of the newest file. When a file is sealed or abandoned, the fields about the previous file are set for the next header.
    pub(super) header: FileHeader,
    pub(super) pool: Pool,
    pub(super) salts: u64,
    pub(super) waiting: VecDeque<Arc<Frame>>,
    pub(super) pending: VecDeque<Pending>,
    /// The number of pending frames, from the oldest on, that are no longer counted in `buffered`.
    pub(super) freed: usize,
    /// The unfinished files, oldest first. Frames are written to the last file, unless this file is already sealed.
    pub(super) files: VecDeque<Open>,
    pub(super) spare: Spare,
    pub(super) next_number: u64,
    pub(super) help: VecDeque<(Purpose, Vec<Step>)>,
    pub(super) busy: [Option<(u64, Purpose)>; 3],
    pub(super) last_op: u64,
    pub(super) last_sync: Option<Duration>,
    /// The time of the next attempt after several abandoned files. It is `None` again as soon as the disk has proved that it works.
    pub(super) retry_at: Option<Duration>,
    /// The time of the next attempt to make the next file, if the last attempt failed.
    pub(super) spare_retry_at: Option<Duration>,
    /// The number of times that files were abandoned since the disk last proved that it works.
    pub(super) failures: u32,
    pub(super) errors: VecDeque<(&'static str, io::Error)>,
    pub(super) written: u64,
    pub(super) durable: u64,
    pub(super) reserve: u64,
    pub(super) buffered: usize,
    pub(super) bytes_written: u64,
    /// The number of lost messages of abandoned files: their frames are no longer in memory, and no file lists them as lost yet.
    pub(super) forgotten: u64,
    /// The number of lost messages that a written loss record lists, until the record is durable.
    pub(super) named: u64,
    pub(super) is_closing: bool,
    /// Whether the last file was abandoned, and no new file was begun since then.
    pub(super) gave_up: bool,
}

fn size_of_all(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| piece.bytes().len() as u64).sum()
}

impl Writer {
    /// Makes a writer that begins a new file. `header` has the new file's number and sequence, and the salt and chain of the previous file.
    /// `salt` is a random number. All sequences before the one in `header` count as durable.
    pub fn new(settings: Settings, header: FileHeader, pool: Pool, salt: u64) -> Self {
        let pages = (settings.file_bytes / PAGE as u64).max(2);
        let settings = Settings { file_bytes: pages * PAGE as u64, ..settings };
        Self {
            settings,
            next_number: header.file,
            written: header.sequence,
            durable: header.sequence,
            reserve: 0,
            header,
            pool,
            salts: salt,
            waiting: VecDeque::new(),
            pending: VecDeque::new(),
            freed: 0,
            files: VecDeque::new(),
            spare: Spare::None,
            help: VecDeque::new(),
            busy: [None, None, None],
            last_op: 0,
            last_sync: None,
            retry_at: None,
            spare_retry_at: None,
            failures: 0,
            errors: VecDeque::new(),
            buffered: 0,
            bytes_written: 0,
            forgotten: 0,
            named: 0,
            is_closing: false,
            gave_up: false,
        }
    }

    /// Takes the next frame.
    pub fn push(&mut self, frame: Frame) {
        self.buffered += frame.bytes.len();
        self.waiting.push_back(Arc::new(frame));
    }

    /// Tells the writer that no more frames follow. The writer seals the file after everything is written.
    pub const fn close(&mut self) {
        self.is_closing = true;
    }

    /// Returns the next operation for a free lane. Call this after each change, until it returns `None`.
    pub fn poll(&mut self, now: Now) -> Option<Op> {
        let found = [Lane::Write, Lane::Sync, Lane::Help].into_iter().find_map(|lane| {
            if self.busy[lane as usize].is_some() {
                return None;
            }
            let (doing, steps) = match lane {
                Lane::Write => self.next_write(now),
                Lane::Sync => self.next_sync(now),
                Lane::Help => self.next_help(now),
            }?;
            Some((lane, doing, steps))
        });
        let (lane, doing, steps) = found?;
        self.last_op += 1;
        self.busy[lane as usize] = Some((self.last_op, doing));
        Some(Op { id: self.last_op, lane, steps })
    }

    fn active_file(&mut self) -> Option<&mut Open> {
        self.files.back_mut().filter(|file| !file.is_sealed)
    }

    fn next_write(&mut self, now: Now) -> Option<(Purpose, Vec<Step>)> {
        let next = self.waiting.front().map(|frame| frame.bytes.len() as u64);
        let is_other_ring = self.waiting.front().is_some_and(|frame| frame.header.ring != self.header.ring);
        let (limit, room) = (self.settings.file_bytes, self.room());
        let (roll_after, is_closing) = (self.settings.roll_after, self.is_closing);
        let (durable, first) = (self.durable(), self.header.sequence);
        if let Some(file) = self.active_file() {
            let is_full = next.is_some_and(|next| file.composer.offset() + next > room);
            // A file without a new sequence is not finished, because the next file would begin with the same sequence. A reader that asks
            // for this sequence could then miss the records of one of the two files.
            let has_any = file.composer.due() > first;
            // The file can have begun later than `now`, because each thread reads the clock before it takes the lock.
            let age = now.mono.saturating_sub(file.begun);
            let is_old = has_any && roll_after.is_some_and(|most| age >= most);
            let is_over = is_closing && next.is_none();
            if file.composer.frames() > 0 && (is_full || is_old || is_over || is_other_ring) {
                let (number, offset) = (file.number, file.composer.offset());
                let pieces = vec![Piece::Own(file.composer.seal(durable).into())];
                file.is_sealed = true;
                (self.header.previous_salt, self.header.previous_chain) =
                    (file.composer.salt(), file.composer.chain());
                let bytes = size_of_all(&pieces);
                let mut steps = Vec::new();
                if offset + bytes >= limit {
                    // A file gets its final size only after its trailer is durable, so until then it must be longer.
                    steps.push(Step::Resize { number, size: offset + bytes + PAGE as u64 });
                }
                steps.push(Step::Write { number, offset, pieces, ahead: 0, durable: false });
                return Some((Purpose::Footer { file: number, bytes }, steps));
            }
        }
        next?;
        let mut pieces = Vec::new();
        if self.active_file().is_none() {
            pieces.push(Piece::Own(self.begin_file(now)?));
        }
        Some(self.group(pieces))
    }

    /// Turns the spare file into the next file. Returns its header page.
    fn begin_file(&mut self, now: Now) -> Option<Box<[u8]>> {
        let Spare::Ready(number) = self.spare else { return None };
        self.name_what_was_given_up(now);
        let first = self.waiting.front()?;
        self.header = FileHeader {
            file: number,
            sequence: first.draft.sequence,
            reserve: first.reserve,
            epoch: first.epoch,
            wall_ns: now.wall_ns,
            previous_salt: self.header.previous_salt,
            previous_chain: self.header.previous_chain,
            ..(*first.header).clone()
        };
        self.header.salt = self.next_salt();
        let (composer, page) = Composer::begin(&self.header).expect("the packer's caller has encoded it");
        let name = file_name(number, self.header.sequence);
        self.spare = Spare::None;
        let rename = Step::Rename { number, name: name.clone() };
        self.help.push_front((Purpose::Name { file: number }, vec![rename, Step::SyncDirectory]));
        self.files.push_back(Open {
            number,
            name,
            composer,
            is_named: is(Mutant::NoDirectorySync),
            begun: now.mono,
            written: 0,
            synced: 0,
            touched: 0,
            is_sealed: false,
        });
        Some(page)
    }

    /// Queues a loss record for the frames of an abandoned file that are no longer in memory. Only [`SyncPolicy::None`] drops frames before
    /// they are durable.
    fn name_what_was_given_up(&mut self, now: Now) {
        let Some(first) = self.waiting.front() else { return };
        let (from, next, reserve, epoch) = (self.durable, first.draft.sequence, first.reserve, first.epoch);
        let header = first.header.clone();
        if std::mem::take(&mut self.gave_up) && from < next {
            let mut frame = FrameBuilder::new(self.pool.take(), from, now.wall_ns);
            let loss = Loss { from, to: next - 1, cause: Cause::Unrecorded };
            frame.control(JournalControl::Loss(loss), 0);
            let (draft, bytes) = frame.close();
            self.buffered += bytes.len();
            self.waiting.push_front(Arc::new(Frame { draft, bytes, reserve, epoch, header }));
        }
    }

    fn next_salt(&mut self) -> u64 {
        // SplitMix64: each salt differs from the earlier salts.
        self.salts = self.salts.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.salts ^ (self.salts >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).max(1)
    }

    /// Returns the offset at which the room for frames ends. Writes of whole pages up to this offset stay within the allocated file.
    const fn room(&self) -> u64 {
        self.settings.file_bytes - PAGE as u64
    }

    /// Makes one write of `pieces`, followed by as many waiting frames as fit.
    fn group(&mut self, mut pieces: Vec<Piece>) -> (Purpose, Vec<Step>) {
        let room = self.room();
        let durable = self.durable();
        let keeps = self.settings.sync != SyncPolicy::None;
        let file = self.files.back_mut().expect("a file is active");
        let offset = file.composer.offset() - size_of_all(&pieces);
        let mut size = 0;
        let mut count = 0;
        while let Some(frame) = self.waiting.front() {
            let end = file.composer.offset() + frame.bytes.len() as u64;
            let is_same_ring = frame.header.ring == self.header.ring;
            let fits = size + frame.bytes.len() <= self.settings.group_bytes && end <= room && is_same_ring;
            if count > 0 && (!fits || count == GROUP_FRAMES) {
                break;
            }
            let frame = self.waiting.pop_front().expect("looked at above");
            if file.composer.index_is_due() {
                pieces.push(Piece::Own(file.composer.index(durable).into()));
            }
            let header = file.composer.place(&frame.draft, durable);
            pieces.push(Piece::Own(Box::new(header.encode())));
            pieces.push(Piece::Body(frame.clone()));
            size += frame.bytes.len();
            count += 1;
            let (next, reserve) = (frame.draft.next, frame.reserve);
            let size = frame.bytes.len();
            let messages = frame.draft.messages;
            let frame = keeps.then_some(frame);
            let (file, frames) = (file.number, file.composer.frames());
            self.pending.push_back(Pending { file, frames, next, reserve, size, messages, frame });
        }
        let (number, next, frames) = (file.number, file.composer.due(), file.composer.frames());
        let (bytes, durable) = (size_of_all(&pieces), self.settings.sync == SyncPolicy::Each);
        let mut steps = Vec::new();
        if offset + bytes > room {
            let size = (offset + bytes).next_multiple_of(PAGE as u64) + FRAME_ALIGN as u64;
            steps.push(Step::Resize { number, size });
        }
        let end = offset + bytes;
        let mut ahead = 0;
        if durable && end > file.touched && bytes < AHEAD / 4 {
            file.touched = (end + AHEAD).min(room).max(end);
            ahead = file.touched - end;
        }
        steps.push(Step::Write { number, offset, pieces, ahead, durable });
        (Purpose::Frames { file: number, frames, next, bytes }, steps)
    }

    fn next_sync(&mut self, now: Now) -> Option<(Purpose, Vec<Step>)> {
        let has_reserve = self.has_reserve();
        let is_full = self.buffered >= self.settings.sync_bytes;
        let is_late = |every| self.last_sync.is_none_or(|last| now.mono >= last + every);
        let is_due = match self.settings.sync {
            SyncPolicy::Each => false,
            SyncPolicy::Interval(every) => is_full || has_reserve || is_late(every),
            SyncPolicy::None => has_reserve,
        };
        let file = self.files.iter().find(|file| is_due && !file.is_sealed && file.written > file.synced)?;
        self.last_sync = Some(now.mono);
        let doing = Purpose::Sync { file: file.number, covers: file.written };
        Some((doing, vec![Step::Sync { number: file.number }]))
    }

    fn next_help(&mut self, now: Now) -> Option<(Purpose, Vec<Step>)> {
        // A file must not be closed while a sync of this file is in progress.
        if let Some((Purpose::Finish { file }, _)) = self.help.front()
            && matches!(self.busy[Lane::Sync as usize], Some((_, Purpose::Sync { file: busy, .. })) if busy == *file)
        {
            return None;
        }
        if let Some(op) = self.help.pop_front() {
            return Some(op);
        }
        let half = self.room() / 2;
        let is_late = self.active_file().is_none_or(|file| file.composer.offset() > half);
        let may_try = [self.retry_at, self.spare_retry_at].into_iter().flatten().all(|at| now.mono >= at);
        if self.spare != Spare::None || !self.needs_a_file() || !is_late || !may_try {
            return None;
        }
        self.spare = Spare::Making;
        // The spare file's size is not a multiple of the page size, unlike the size of a sealed file.
        let (number, size) = (self.next_number, self.settings.file_bytes - FRAME_ALIGN as u64);
        Some((Purpose::Spare, vec![Step::Create { number, size }]))
    }

    /// Takes the result of an operation.
    pub(crate) fn done(&mut self, id: u64, result: io::Result<()>, now: Now) {
        let Some(slot) =
            self.busy.iter_mut().find(|slot| slot.as_ref().is_some_and(|(running, _)| *running == id))
        else {
            return;
        };
        let (_, doing) = slot.take().expect("found above");
        match result {
            Ok(()) => self.succeeded(doing),
            Err(error) => self.refused(doing, error, now),
        }
        self.advance();
    }

    fn succeeded(&mut self, doing: Purpose) {
        let each = self.settings.sync == SyncPolicy::Each;
        // Whether a write proves that the disk works: only if nothing must be synced. Otherwise only durable frames prove it. A reserve
        // must be synced with each policy.
        let is_proof = self.settings.sync == SyncPolicy::None && !self.has_reserve();
        match doing {
            Purpose::Spare => {
                self.spare = Spare::Ready(self.next_number);
                self.spare_retry_at = None;
                self.next_number += 1;
                // If no frame waits, no write can prove that the disk works. So the new file counts as the proof.
                if self.waiting.is_empty() {
                    self.retry_at = None;
                }
            }
            Purpose::Frames { file, frames, next, bytes } => {
                self.bytes_written += bytes;
                if let Some(open) = self.files.iter_mut().find(|open| open.number == file) {
                    open.written = frames;
                    open.synced = if each { frames } else { open.synced };
                    self.written = self.written.max(next);
                    self.named += std::mem::take(&mut self.forgotten);
                    if is_proof && open.is_named {
                        (self.failures, self.retry_at) = (0, None);
                    }
                    if is(Mutant::ReserveNotSynced) {
                        self.reserve = self.pending.back().map_or(self.reserve, |last| last.reserve);
                    }
                }
            }
            Purpose::Footer { file, bytes } => {
                self.bytes_written += bytes;
                if let Some(open) = self.files.iter().find(|open| open.number == file) {
                    let size = open.composer.offset();
                    let number = file;
                    let steps = vec![
                        Step::Sync { number },
                        Step::Resize { number, size },
                        Step::Sync { number },
                        Step::Close { number },
                    ];
                    self.help.push_back((Purpose::Finish { file }, steps));
                }
            }
            Purpose::Sync { file, covers } => {
                if let Some(open) = self.files.iter_mut().find(|open| open.number == file) {
                    let covers = if is(Mutant::DurableAtTheEnd) { open.written } else { covers };
                    open.synced = open.synced.max(covers);
                }
            }
            Purpose::Name { file } => {
                if let Some(open) = self.files.iter_mut().find(|open| open.number == file) {
                    open.is_named = true;
                }
            }
            Purpose::Finish { file } => {
                if let Some(open) = self.files.iter_mut().find(|open| open.number == file) {
                    open.synced = u32::MAX;
                }
                self.advance();
                self.files.retain(|open| open.number != file);
            }
            Purpose::GiveUp => {}
        }
    }
}
