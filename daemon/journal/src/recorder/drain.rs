//! The thread that reads the ring and packs frames.

use super::Shared;
use super::begin::ring_of;
use crate::core::Packer;
use crate::error::RecordError;
use shmcast::hosting::session_words;
use shmcast::journal::format::{Cause, JournalControl, RingControl};
use shmcast::{Event, Subscriber};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Most events between two looks at the clock and the disk.
const BATCH: usize = 4096;
/// Closed frames from which on the writer is given them.
const CLOSED: usize = 4;
/// Longest sleep of an idle recorder.
const NAP: Duration = Duration::from_micros(200);
/// A frame that is not full is closed after this time.
const LINGER: Duration = Duration::from_millis(1);

pub(super) struct Drain {
    pub(super) shared: Arc<Shared>,
    pub(super) packer: Packer,
    pub(super) subscriber: Subscriber,
    /// The ring that the journal named last.
    pub(super) ring: [u64; 2],
}

impl Drain {
    /// Records until it is told to stop and the ring is empty, or until the channel cannot be read.
    pub(super) fn run(mut self) -> Result<(), RecordError> {
        loop {
            let is_over = self.shared.stop.load(Ordering::Relaxed);
            let result = self.take();
            self.note_ring();
            self.hand_over(is_over || result.is_err());
            match result? {
                0 if is_over => return Ok(()),
                0 => std::thread::sleep(NAP),
                _ => {}
            }
        }
    }

    /// Packs what is in the ring, unless memory is full. Returns how many events there were.
    fn take(&mut self) -> Result<usize, RecordError> {
        if !self.shared.writer().has_room() {
            return Ok(0);
        }
        let now = self.shared.now();
        let ticks = self.subscriber.clock().now();
        let Self { shared, packer, subscriber, .. } = self;
        packer.at(now, ticks);
        let (mut messages, mut restarted, mut overrun) = (0, false, 0);
        let taken = subscriber.recv_batch(BATCH, |event| {
            match event {
                Event::Message(m) => {
                    shared.ended.store(false, Ordering::Relaxed);
                    // A ring that is corrupt may skip. What it skipped is missing all the same.
                    if m.sequence > packer.due() {
                        overrun += m.sequence - packer.due();
                        packer.loss(m.sequence - 1, Cause::Overrun);
                    }
                    messages += u64::from(packer.message(m.sequence, m.payload, m.tag, m.key, m.time));
                }
                Event::Restarted => restarted = true,
                other => overrun += note(packer, &other, shared),
            }
            if restarted || packer.closed() >= CLOSED {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        shared.drained.store(packer.due() - 1, Ordering::Relaxed);
        shared.messages.fetch_add(messages, Ordering::Relaxed);
        shared.overrun.fetch_add(overrun, Ordering::Relaxed);
        if restarted { Err(RecordError::Restarted) } else { Ok(taken) }
    }

    /// Names the ring that the channel has gone on in, so that its readers find this journal.
    fn note_ring(&mut self) {
        let Self { shared, packer, subscriber, ring } = self;
        let found = ring_of(subscriber);
        if found.uuid == *ring {
            return;
        }
        *ring = found.uuid;
        let (epoch, first) = (packer.epoch(), packer.due());
        packer.control(JournalControl::Source { ring: found.uuid, generation: 0, epoch, first });
        shared.writer().set_ring(found);
    }

    /// Gives frames to the writer: full ones, and the open one if the disk is idle or time has passed.
    fn hand_over(&mut self, is_over: bool) {
        let now = self.shared.now();
        let mut writer = self.shared.writer();
        let is_late = self.packer.open_for(now).is_some_and(|age| age >= LINGER);
        if is_over || is_late || writer.is_idle() {
            self.packer.close();
        }
        while let Some(frame) = self.packer.take() {
            writer.push(frame);
        }
        self.shared.dispatch(&mut writer, now);
    }
}

/// Packs an event that is no message. Returns how many sequences a lap cost.
fn note(packer: &mut Packer, event: &Event<'_>, shared: &Shared) -> u64 {
    let due = packer.due();
    match *event {
        Event::Lapped(lapped) => {
            packer.loss(lapped.resumed_at - 1, Cause::Overrun);
            return packer.due() - due;
        }
        Event::Gap { from, to } if from >= due => {
            packer.loss(from - 1, Cause::Overrun);
            packer.control(JournalControl::Ring(RingControl::Gap { from, to }));
            return from - due;
        }
        Event::NewEpoch { epoch } => packer.control(JournalControl::Ring(RingControl::Epoch { epoch })),
        Event::NewSession { session } => {
            let [high, low] = session_words(session);
            packer.control(JournalControl::Ring(RingControl::Session { high, low }));
        }
        Event::End => {
            packer.control(JournalControl::Ring(RingControl::End));
            shared.ended.store(true, Ordering::Relaxed);
        }
        _ => {}
    }
    0
}
