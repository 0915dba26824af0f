//! Packs a channel's events into frames.

use super::{Frame, Mended, Now};
use shmcast::MAX_SEQUENCE;
use shmcast::journal::format::{
    Cause, ControlRecord, FRAME_ALIGN, FRAME_TARGET, FileHeader, FrameBuilder, JournalControl, Loss, RESERVE,
    wall_ns,
};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The size of a buffer for one frame, in bytes.
const ROOM: usize = FRAME_TARGET + CLOCK_RECORD + FRAME_ALIGN;

/// A pool of buffers. New frames use the buffers of frames that were written.
#[derive(Debug, Clone, Default)]
pub struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

impl Pool {
    /// Returns a buffer of a frame's size.
    pub fn take(&self) -> Vec<u8> {
        let kept = self.0.lock().expect("nobody panics while holding it").pop();
        kept.unwrap_or_else(|| Vec::with_capacity(ROOM))
    }

    /// Returns a frame's buffer to the pool, unless the frame is still in use elsewhere. A buffer that grew for a large message is dropped.
    pub fn give(&self, frame: Arc<Frame>) {
        if let Ok(frame) = Arc::try_unwrap(frame)
            && frame.bytes.capacity() <= 2 * ROOM
        {
            self.0.lock().expect("nobody panics while holding it").push(frame.bytes);
        }
    }
}

/// Settings for the size and the contents of frames.
#[derive(Debug, Clone, Copy)]
pub struct Packing {
    /// Bytes of a full frame.
    pub target: usize,
    /// The distance of a new reserve: the number of sequences from the next sequence to the reserve.
    pub reserve: u64,
    /// Interval of clock records while messages are recorded.
    pub clock_every: Duration,
    /// After this many bytes without a clock record, the next frame gets one. So a reader that begins inside the journal soon finds a clock
    /// record.
    pub clock_bytes: usize,
}

/// If the wall clock was set by more than this many nanoseconds, the next frame gets a clock record.
const STEP_NS: u64 = 1_000_000;

/// The size of a clock record in bytes. A full frame can exceed its target size by this size.
pub const CLOCK_RECORD: usize = 40;

impl Default for Packing {
    fn default() -> Self {
        Self {
            target: FRAME_TARGET + CLOCK_RECORD,
            reserve: RESERVE,
            clock_every: Duration::from_secs(1),
            clock_bytes: 64 << 10,
        }
    }
}

/// The state with which a recording begins.
#[derive(Debug, Clone)]
pub struct Begin<'a> {
    /// The header of the first file. This header also has the next sequence, the publisher's epoch, and the ring.
    pub header: Arc<FileHeader>,
    /// The missing sequences at the beginning of the recording; `None` if nothing is missing.
    pub loss: Option<Loss>,
    /// The files that recovery has repaired.
    pub mended: &'a [Mended],
    /// The greatest reserve of the journal so far; 0 if the journal has none. Later files have at least this reserve.
    pub reserve: u64,
    /// The latest wall clock of the journal's records, in nanoseconds since 1970; 0 if there is no record.
    pub latest_ns: u64,
}

/// The frame that is being filled, and the full frames that were not taken yet.
#[derive(Debug)]
pub struct Packer {
    packing: Packing,
    pool: Pool,
    open: Option<(FrameBuilder, Duration)>,
    closed: VecDeque<Frame>,
    due: u64,
    reserve: u64,
    epoch: u64,
    /// The epoch at the start of the open frame.
    opened_in: u64,
    last_clock: Option<(Duration, u64)>,
    /// The wall clock and the ticks of the last clock record.
    noted: Option<(u64, u64)>,
    /// The ring's time for the last message after the last clock record; 0 if no message has followed.
    last_time: u64,
    /// The latest wall clock of all records before the last clock record.
    latest_ns: u64,
    /// The size of all frames since the last clock record, in bytes.
    since_clock: usize,
    now: Now,
    ticks: u64,
    /// A file header that describes the present ring.
    header: Arc<FileHeader>,
}

/// Copies a packer that has no open frame, for the model. The function names every field. So if a field is added but not copied here, the
/// code does not compile.
#[cfg(test)]
impl Clone for Packer {
    fn clone(&self) -> Self {
        assert!(self.open.is_none(), "a frame is open");
        Self {
            packing: self.packing,
            pool: Pool::default(),
            open: None,
            closed: self.closed.clone(),
            due: self.due,
            reserve: self.reserve,
            epoch: self.epoch,
            opened_in: self.opened_in,
            last_clock: self.last_clock,
            noted: self.noted,
            last_time: self.last_time,
            latest_ns: self.latest_ns,
            since_clock: self.since_clock,
            now: self.now,
            ticks: self.ticks,
            header: self.header.clone(),
        }
    }
}

impl Packer {
    /// Begins a recording. Its first records have the repaired files, the missing sequences, the ring, and a reserve.
    pub fn begin(packing: Packing, pool: Pool, begin: &Begin<'_>, now: Now, ticks: u64) -> Self {
        let mut packer = Self {
            packing,
            pool,
            open: None,
            closed: VecDeque::new(),
            due: begin.header.sequence,
            reserve: 0,
            epoch: begin.header.epoch,
            opened_in: begin.header.epoch,
            last_clock: None,
            noted: None,
            last_time: 0,
            latest_ns: begin.latest_ns,
            since_clock: 0,
            now,
            ticks,
            header: begin.header.clone(),
        };
        for &Mended { file, frames, bytes } in begin.mended {
            packer.control(JournalControl::Mended { file, frames, bytes });
        }
        if let Some(loss) = begin.loss {
            packer.control(JournalControl::Loss(loss));
        }
        packer.source();
        packer.raise_reserve(begin.reserve.max(packer.reserve_ahead()));
        packer
    }

    /// The sequence due at the next record.
    pub(crate) const fn due(&self) -> u64 {
        self.due
    }

    /// The last epoch that was recorded.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets the present time of both clocks. Call this before packing events.
    pub fn at(&mut self, now: Now, ticks: u64) {
        (self.now, self.ticks) = (now, ticks);
    }

    /// Packs a message. If its sequence is not the next one, packs nothing and returns false. In this case, the caller has missed an event.
    #[inline]
    pub fn message(&mut self, sequence: u64, payload: &[u8], tag: u16, key: bool, time: u64) -> bool {
        if sequence != self.due {
            return false;
        }
        if self.is_reserve_short() {
            self.renew_reserve();
        }
        self.frame(payload.len(), time).message(payload, tag, key, time);
        self.last_time = time;
        self.due += 1;
        true
    }

    /// Ends the records of one ring. The next records come from the ring that `header` describes. Call [`at`](Self::at) with the new ring's
    /// time first.
    pub(crate) fn go_on_in(&mut self, header: Arc<FileHeader>) {
        self.close();
        self.latest_ns = self.latest_ns();
        (self.header, self.last_clock, self.noted) = (header, None, None);
        self.source();
    }

    /// Packs the record that names the source ring of the next records.
    fn source(&mut self) {
        let (ring, epoch, first) = (self.header.ring.uuid, self.epoch, self.due);
        self.control(JournalControl::Source { ring, generation: 0, epoch, first });
    }

    /// Packs a control record.
    pub fn control(&mut self, control: JournalControl) {
        let ticks = self.ticks;
        match control {
            JournalControl::Ring(ControlRecord::Epoch { epoch }) | JournalControl::Source { epoch, .. } => {
                self.epoch = epoch;
            }
            // This clock record is copied from another journal.
            JournalControl::Clock { wall_ns, ticks, .. } => {
                self.latest_ns = self.latest_ns();
                (self.noted, self.last_time) = (Some((wall_ns, ticks)), 0);
            }
            _ => {}
        }
        let frame = self.frame(JournalControl::MAX_BYTES, ticks);
        frame.control(control, ticks);
        let due = frame.due();
        let before = std::mem::replace(&mut self.due, due);
        // After a gap, the next sequence can be beyond the reserve. A new reserve must be recorded before the next message.
        if due > before && self.reserve > 0 && self.is_reserve_short() {
            self.renew_reserve();
        }
    }

    /// Records the sequences up to and including `to` as missing. Returns the number of these sequences, which can be 0.
    pub fn loss(&mut self, to: u64, cause: Cause) -> u64 {
        let from = self.due;
        if to >= from {
            self.control(JournalControl::Loss(Loss { from, to, cause }));
        }
        self.due - from
    }

    /// Packs a reserve record for `sequence`, unless the last reserve is at least as high.
    pub(crate) fn reserve_up_to(&mut self, sequence: u64) {
        if sequence.min(MAX_SEQUENCE - 1) > self.reserve {
            self.raise_reserve(sequence);
        }
    }

    fn raise_reserve(&mut self, sequence: u64) {
        // A frame's reserve must be in its own records. So if the open frame has no room for the record, this call closes the frame first.
        self.frame(JournalControl::MAX_BYTES, self.ticks);
        self.reserve = self.reserve.max(sequence.min(MAX_SEQUENCE - 1));
        self.control(JournalControl::Reserve { sequence: self.reserve });
    }

    fn is_reserve_short(&self) -> bool {
        let least = self.due.saturating_add(self.packing.reserve / 2);
        self.reserve < least.min(MAX_SEQUENCE - 1)
    }

    /// Packs a reserve ahead of the sequence that is due.
    fn renew_reserve(&mut self) {
        self.raise_reserve(self.reserve_ahead());
    }

    fn reserve_ahead(&self) -> u64 {
        self.due.saturating_add(self.packing.reserve)
    }

    /// Returns the open frame, with room for a record of this size. If a new frame is necessary, `time` is the time of its first record.
    fn frame(&mut self, payload: usize, time: u64) -> &mut FrameBuilder {
        let is_full = |frame: &FrameBuilder| !frame.has_room(payload, self.packing.target);
        if self.open.as_ref().is_some_and(|(frame, _)| is_full(frame)) {
            self.close();
        }
        if self.open.is_none() {
            let wall_ns = self.wall_of(time);
            self.latest_ns = self.latest_ns().max(wall_ns);
            let is_later = self.latest_ns - wall_ns > STEP_NS;
            let frame = FrameBuilder::new(self.pool.take(), self.due, self.latest_ns);
            self.open = Some((frame, self.now.mono));
            self.opened_in = self.epoch;
            self.note_clock(is_later);
        }
        &mut self.open.as_mut().expect("opened above").0
    }

    /// Returns the latest wall clock of the records so far. This time never goes back, even if the clock was set back. A frame gets it as
    /// its index time, so no earlier record has a later time.
    fn latest_ns(&self) -> u64 {
        let last = self.noted.and_then(|noted| wall_ns(noted, self.header.ring.clock_hz, self.last_time));
        last.map_or(self.latest_ns, |last| last.max(self.latest_ns))
    }

    /// Converts a time of the ring's 48-bit clock to the wall clock. If `time` is not known, returns the present wall clock.
    fn wall_of(&self, time: u64) -> u64 {
        // If the time is later than the last reading of the clocks, the result is the time of that reading.
        let wall = wall_ns((self.now.wall_ns, self.ticks), self.header.ring.clock_hz, time);
        wall.map_or(self.now.wall_ns, |wall| wall.min(self.now.wall_ns))
    }

    /// Adds a clock record to a new frame in these cases:
    ///
    /// - The last clock record is too old.
    /// - The last clock record is too many bytes away.
    /// - The wall clock was set since the last clock record.
    /// - The frame's index time is later than its first record (`is_later`), so a reader that begins at this frame needs the true time.
    fn note_clock(&mut self, is_later: bool) {
        let offset = self.now.wall_ns.wrapping_sub(self.now.mono.as_nanos() as u64);
        let step = self.last_clock.map_or(0, |(_, last)| offset.wrapping_sub(last) as i64);
        let is_due = self.last_clock.is_none_or(|(at, _)| self.now.mono - at >= self.packing.clock_every);
        let is_far = self.since_clock >= self.packing.clock_bytes;
        let is_step = step.unsigned_abs() > STEP_NS;
        if is_due || is_far || is_later || is_step {
            let step_ns = if is_step { step } else { 0 };
            self.last_clock = Some((self.now.mono, offset));
            (self.noted, self.last_time) = (Some((self.now.wall_ns, self.ticks)), 0);
            self.since_clock = 0;
            let (frame, _) = self.open.as_mut().expect("the caller opened it");
            frame.control(
                JournalControl::Clock { wall_ns: self.now.wall_ns, ticks: self.ticks, step_ns },
                self.ticks,
            );
        }
    }

    /// Closes the open frame unless it is empty.
    pub fn close(&mut self) {
        if let Some((frame, _)) = self.open.take() {
            let (draft, bytes) = frame.close();
            self.since_clock = self.since_clock.saturating_add(bytes.len());
            let (reserve, epoch, header) = (self.reserve, self.opened_in, self.header.clone());
            self.closed.push_back(Frame { draft, bytes, reserve, epoch, header });
        }
    }

    /// Returns the age of the open frame; `None` if no frame is open.
    pub(crate) fn open_for(&self, now: Now) -> Option<Duration> {
        self.open.as_ref().map(|(_, since)| now.mono.saturating_sub(*since))
    }

    /// The number of closed frames that [`take`](Self::take) has not returned yet.
    pub fn closed(&self) -> usize {
        self.closed.len()
    }

    /// Takes the next closed frame.
    pub fn take(&mut self) -> Option<Frame> {
        self.closed.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR: u64 = 0x1234_5678_9abc;

    fn packer(due: u64, reserve: u64) -> Packer {
        let header = super::super::sim::header(&super::super::Recovered::default(), due, 1, 1);
        let begin = Begin { header: Arc::new(header), loss: None, mended: &[], reserve, latest_ns: 0 };
        let packing = Packing { target: 2048, ..Packing::default() };
        Packer::begin(packing, Pool::default(), &begin, Now { mono: Duration::ZERO, wall_ns: 0 }, 0)
    }

    fn frames(packer: &mut Packer) -> Vec<Frame> {
        packer.close();
        std::iter::from_fn(|| packer.take()).collect()
    }

    fn has(frame: &Frame, number: u64) -> bool {
        frame.bytes.windows(8).any(|bytes| bytes == number.to_le_bytes())
    }

    /// The first frame whose reserve is a new one must also have the record of this reserve. A frame that is too full for the record must
    /// not have the new reserve.
    #[test]
    fn a_frame_claims_no_reserve_that_a_later_one_names() {
        for filled in 1_500..2_048 {
            let mut packer = packer(1, 0);
            assert!(packer.message(1, &vec![0; filled], 0, false, 0));
            packer.reserve_up_to(FAR);
            let frames = frames(&mut packer);
            let first = frames.iter().find(|frame| frame.reserve >= FAR).expect("it was asked for");
            assert!(has(first, FAR), "{filled} B before it");
        }
    }

    #[test]
    fn a_recorder_that_begins_again_lowers_no_reserve() {
        let mut again = packer(100, FAR);
        assert!(frames(&mut again).iter().any(|frame| frame.reserve == FAR && has(frame, FAR)));
        let behind = frames(&mut packer(FAR + 1, FAR));
        assert!(behind.iter().all(|frame| frame.reserve > FAR + 1), "its own reserve is further");
    }

    #[test]
    fn nothing_follows_a_clean_end() {
        let mut packer = packer(1, 0);
        // After this loss, the reserve is so short that any further record except a clean end would add another reserve.
        packer.loss(RESERVE / 2, Cause::Unrecorded);
        assert!(packer.message(RESERVE / 2 + 1, b"last", 0, false, 0));
        packer.control(JournalControl::Clean { next: packer.due() });
        let all = frames(&mut packer);
        assert!(all.iter().all(|frame| frame.reserve == 1 + RESERVE));
    }
}
