//! The thread that reads the ring and packs frames.

use super::begin::header_of_ring;
use super::{LAG_ERROR, RecorderState};
use crate::core::{Packer, SyncPolicy};
use crate::error::RecordError;
use shmcast::hosting::{fault, session_words};
use shmcast::journal::format::{Cause, ControlRecord, JournalControl, RESERVE};
use shmcast::{Event, Subscriber};
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The largest number of events that are packed before the clock and the disk are checked again.
const BATCH: usize = 4096;
/// The number of waiting closed frames at which the frames are passed to the writer.
const CLOSED: usize = 4;
/// A frame that is not full is closed after this time.
const LINGER: Duration = Duration::from_millis(4);
/// The sleep while memory is full. It is also the longest sleep with [`SyncPolicy::Each`], and the shortest sleep with the other policies.
const NAP: Duration = Duration::from_micros(200);
/// The longest sleep with other policies than [`SyncPolicy::Each`].
const LONG_NAP: Duration = Duration::from_millis(1);
/// Shortest sleep with [`SyncPolicy::Each`].
const SHORT_NAP: Duration = Duration::from_micros(20);
/// The highest rate at which a publisher is assumed to fill a ring, in bytes per nanosecond.
const BYTES_A_NS: u64 = 4;

/// Interval at which the names of the directory and its files are checked.
const LOOK: Duration = Duration::from_secs(1);

/// The sleeps of a recorder that finds nothing in the ring.
#[derive(Debug)]
pub(super) struct Naps {
    shortest: Duration,
    longest: Duration,
    /// The time for which nothing was published.
    silence: Duration,
    /// If a batch has fewer bytes than this, the recorder sleeps as if the ring had been empty.
    little: usize,
}

impl Naps {
    /// Computes the sleeps for a ring of `capacity` bytes. During a sleep at most a sixteenth of the ring is filled, unless the ring is
    /// small.
    pub(super) fn new(sync: SyncPolicy, capacity: u64) -> Self {
        if sync == SyncPolicy::Each {
            return Self { shortest: SHORT_NAP, longest: NAP, silence: Duration::ZERO, little: 0 };
        }
        let nap = Duration::from_nanos(capacity / 16 / BYTES_A_NS).clamp(NAP, LONG_NAP);
        Self { shortest: nap, longest: nap, silence: Duration::ZERO, little: (capacity / 256) as usize }
    }

    /// Whether a batch of `bytes` bytes is so small that the recorder sleeps as if the ring had been empty.
    const fn is_little(&self, bytes: usize) -> bool {
        bytes < self.little
    }

    /// Returns the next sleep. A sleep is a fraction of the silence so far, so that frequent messages are found soon.
    fn next(&mut self) -> Duration {
        let nap = (self.silence / 32).clamp(self.shortest, self.longest);
        self.silence += nap;
        nap
    }
}

pub(super) struct Drain {
    pub(super) shared: Arc<RecorderState>,
    pub(super) packer: Packer,
    pub(super) subscriber: Subscriber,
    /// The ring that the journal named last.
    pub(super) ring: [u64; 2],
    /// Whether the channel has just moved to this ring, and nothing of the ring is packed yet.
    pub(super) has_moved: bool,
    /// The next sequence in the ring.
    pub(super) next: u64,
    /// Control records at the recording's first sequence. The ring delivers these records again, although the journal has them.
    pub(super) known: Vec<ControlRecord>,
    /// A sequence and an epoch. If the ring has delivered all messages before this sequence without the beginning of this epoch, the
    /// recorder records the epoch itself.
    pub(super) epoch_by: Option<(u64, u64)>,
    pub(super) naps: Naps,
    /// Bytes of messages in the last batch.
    pub(super) came: usize,
    /// Whether frames are closed as soon as the disk is idle, as with [`SyncPolicy::Each`].
    pub(super) is_each: bool,
    /// The time at which the names of the directory and its files are checked again.
    pub(super) look_at: Duration,
}

impl Drain {
    /// Records until the channel cannot be read any more, or until the recorder must stop. Before it stops, takes all messages that were
    /// published before the order to stop. Returns how many messages stay in the ring because the disk accepted no more.
    pub(super) fn run(mut self) -> Result<u64, RecordError> {
        if self.is_each {
            // Without this call, the kernel can extend each sleep by 50 us. If the call fails, messages become durable a little later.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
        }
        let mut last = None;
        loop {
            if last.is_none() && self.shared.stop.get().is_some() {
                last = Some(self.subscriber.published_end() + LAG_ERROR);
            }
            let result = self.take();
            if result.is_ok() {
                self.packer.reserve_up_to(self.shared.wanted.load(Ordering::Relaxed));
            }
            self.hand_over(last.is_some() || result.is_err());
            match (result?, last) {
                (Some(0), Some(_)) if !self.subscriber.is_between_rings() => {
                    self.note_clean();
                    return Ok(0);
                }
                (Some(_), Some(last)) if self.packer.due() > last => return Ok(0),
                (None, Some(last)) if self.shared.is_given_up(&self.shared.writer()) => {
                    return Ok(self.left(last));
                }
                (None, _) => std::thread::sleep(NAP),
                (Some(0), _) => std::thread::sleep(self.naps.next()),
                // A full batch of small messages also has few bytes, but more messages can follow in the ring.
                (Some(taken), None) if taken < BATCH && self.naps.is_little(self.came) => {
                    std::thread::sleep(self.naps.next());
                }
                _ => self.naps.silence = Duration::ZERO,
            }
        }
    }

    /// Returns how many messages stay in the ring, up to the sequence `last`. Skipped sequences are no messages. If the recorder has a
    /// gate, they are counted without being received, because the gate keeps unreceived messages for the next recorder.
    fn left(&mut self, last: u64) -> u64 {
        if self.subscriber.gate().is_some() {
            return self.subscriber.messages_up_to(last);
        }
        let mut left = 0;
        while self.subscriber.next_sequence() <= last {
            match self.subscriber.try_recv() {
                Ok(Some(Event::Message(_))) => left += 1,
                Ok(Some(Event::Lapped(lapped))) => left += lapped.missed,
                Ok(Some(Event::Restarted) | None) | Err(_) => break,
                Ok(Some(_)) => {}
            }
        }
        left
    }

    /// Packs a batch of events from the ring. Returns their number, or `None` if memory is full.
    fn take(&mut self) -> Result<Option<usize>, RecordError> {
        let (now, ticks) = (self.shared.now(), self.subscriber.clock().now());
        // The names are checked even if memory is full. If the disk refuses writes because the directory is gone, memory stays full.
        if now.mono >= self.look_at && !fault!("a_journal_needs_no_name") {
            self.shared.directory.check_names()?;
            self.look_at = now.mono + LOOK;
        }
        if !self.shared.writer().has_room() {
            return Ok(None);
        }
        let Self { shared, packer, subscriber, came, next, known, has_moved, epoch_by, .. } = self;
        *came = 0;
        packer.at(now, ticks);
        let (mut messages, mut restarted, mut overrun, mut gaps) = (0, false, 0, 0);
        // Whether the epoch of the ring's first publisher must still be recorded. The ring delivers no event for this epoch, so the
        // recorder records it before the first event of that publisher.
        let mut is_unstated = packer.epoch() == 0 && epoch_by.is_none();
        let taken = subscriber.recv_batch(BATCH, |event| {
            let is_first = std::mem::take(has_moved);
            if std::mem::take(&mut is_unstated) && event != Event::Restarted {
                packer.control(JournalControl::Ring(ControlRecord::Epoch { epoch: 1 }));
            }
            match event {
                Event::Message(m) => {
                    shared.ended.store(false, Ordering::Relaxed);
                    *came += m.payload.len();
                    *next = m.sequence + 1;
                    // A corrupt ring can skip sequences. The skipped sequences are recorded as missing.
                    overrun += packer.loss(m.sequence - 1, Cause::Overrun);
                    messages += u64::from(packer.message(m.sequence, m.payload, m.tag, m.key, m.time));
                }
                Event::Restarted => restarted = true,
                other => {
                    *next = behind(&other).unwrap_or(*next);
                    // A continued recording can begin to read the ring before the journal's end. These events are skipped, because the
                    // journal already has them.
                    if *next >= packer.due() {
                        shared.ended.fetch_or(other == Event::End, Ordering::Relaxed);
                        if !is_known(known, &other) {
                            let (lapped, gap) = note(packer, &other, is_first);
                            (overrun, gaps) = (overrun + lapped, gaps + gap);
                        }
                    }
                }
            }
            if restarted || packer.closed() >= CLOSED {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        // The counts are stored even if the batch ended with an error, because events can come before the error.
        shared.drained.store(packer.due() - 1, Ordering::Relaxed);
        shared.messages.fetch_add(messages, Ordering::Relaxed);
        shared.overrun.fetch_add(overrun, Ordering::Relaxed);
        shared.gaps.fetch_add(gaps, Ordering::Relaxed);
        let taken = taken?;
        if restarted {
            return Err(RecordError::Restarted);
        }
        let is_elsewhere = self.follow_ring()?;
        self.state_epoch(taken);
        // If the channel has moved to another ring, the result is not 0, because the other ring might have more events.
        Ok(Some(taken + usize::from(is_elsewhere)))
    }

    /// Records the epoch of the ring, if the ring's events do not report it. `taken` is the number of events in the last batch.
    fn state_epoch(&mut self, taken: usize) {
        // If the first publisher has published nothing yet, its epoch comes from the state of the ring.
        let Self { packer, subscriber, epoch_by, .. } = self;
        let stated = match *epoch_by {
            Some((by, epoch)) => (packer.due() >= by || taken == 0).then_some(epoch),
            None if packer.epoch() == 0 => subscriber.publisher_state().map(|(epoch, _)| epoch.min(1)),
            None => None,
        };
        *epoch_by = epoch_by.filter(|_| stated.is_none());
        let epoch = stated.unwrap_or(subscriber.epoch());
        if epoch > packer.epoch() {
            packer.control(JournalControl::Ring(ControlRecord::Epoch { epoch }));
        }
    }

    /// If the channel has moved to another ring, begins another file for the next events, and returns true. A batch ends at such a move, so
    /// the packer has no event of the new ring yet.
    fn follow_ring(&mut self) -> Result<bool, RecordError> {
        let found = self.subscriber.header().uuid;
        if found == self.ring {
            return Ok(false);
        }
        let os = |source| RecordError::Os { path: self.shared.directory.path().to_owned(), source };
        let header = header_of_ring(&self.subscriber).map_err(os)?;
        (self.ring, self.has_moved) = (found, true);
        self.packer.at(self.shared.now(), self.subscriber.clock().now());
        self.packer.go_on_in(Arc::new(header));
        Ok(true)
    }

    /// Records a clean end, if nobody can publish any more and all messages are recorded.
    fn note_clean(&mut self) {
        let next = self.packer.due();
        if self.shared.over_at.load(Ordering::Relaxed) == next {
            self.packer.control(JournalControl::Clean { next });
            self.hand_over(true);
        }
    }

    /// Passes closed frames to the writer. First closes the open frame in one of three cases: the frame is old enough, the recording is
    /// over, or the disk is idle and the policy is [`SyncPolicy::Each`].
    fn hand_over(&mut self, is_over: bool) {
        let now = self.shared.now();
        let mut writer = self.shared.writer();
        let is_late = self.packer.open_for(now).is_some_and(|age| age >= LINGER);
        // While the disk is busy, the frame stays open, so that more events fit into it.
        let is_wanted = if self.is_each { writer.is_idle() } else { is_late && !writer.is_behind() };
        if is_over || is_wanted {
            self.packer.close();
        }
        while let Some(frame) = self.packer.take() {
            writer.push(frame);
        }
        self.shared.dispatch(&mut writer, now);
    }
}

/// Returns the sequence after an event that skips sequences; `None` for other events.
fn behind(event: &Event<'_>) -> Option<u64> {
    match *event {
        Event::Lapped(lapped) => Some(lapped.resumed_at),
        Event::Gap { to, .. } => Some(to + 1),
        _ => None,
    }
}

/// Whether the event is a control record that the journal already has. If so, removes this record from `known`.
fn is_known(known: &mut Vec<ControlRecord>, event: &Event<'_>) -> bool {
    let control = match *event {
        Event::End => ControlRecord::End,
        Event::NewSession { session } => {
            let [high, low] = session_words(session);
            ControlRecord::Session { high, low }
        }
        _ => return false,
    };
    let at = known.iter().position(|known| *known == control);
    at.map(|at| known.remove(at)).is_some()
}

/// Packs an event that is not a message. `is_first` says whether this is the first event of a ring to which the channel has moved. Returns
/// how many unread messages the ring overwrote, and how many sequences are in a gap of the ring.
fn note(packer: &mut Packer, event: &Event<'_>, is_first: bool) -> (u64, u64) {
    match *event {
        // A reserve is at least this far ahead of the published sequences. So this jump in a new ring means that the channel's memory was
        // lost, and that the channel continues after the reserve.
        Event::Lapped(lapped) if is_first && lapped.missed >= RESERVE / 2 => {
            packer.loss(lapped.resumed_at - 1, Cause::Reserve);
        }
        Event::Lapped(lapped) => return (packer.loss(lapped.resumed_at - 1, Cause::Overrun), 0),
        Event::Gap { from, to } if from >= packer.due() => {
            let overrun = packer.loss(from - 1, Cause::Overrun);
            packer.control(JournalControl::Ring(ControlRecord::Gap { from, to }));
            // Two gaps are no loss: one before the first message that this host asked for, and the jump of a promotion or of a replayed
            // reserve.
            let is_loss = from > 1 && to - from < RESERVE / 2;
            return (overrun, if is_loss { to + 1 - from } else { 0 });
        }
        Event::NewEpoch { epoch } if epoch > packer.epoch() => {
            packer.control(JournalControl::Ring(ControlRecord::Epoch { epoch }))
        }
        Event::NewSession { session } => {
            let [high, low] = session_words(session);
            packer.control(JournalControl::Ring(ControlRecord::Session { high, low }));
        }
        Event::End => packer.control(JournalControl::Ring(ControlRecord::End)),
        _ => {}
    }
    (0, 0)
}
