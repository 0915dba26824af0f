//! The ring of a batch. All messages of a batch belong to one ring, so one clock and one header apply to them.

use super::Subscriber;
use crate::message::Event;

/// An event after which the subscriber can be in another ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Border {
    Restarted,
    Live,
}

impl Border {
    #[inline]
    pub(super) fn of(event: &Event<'_>) -> Option<Self> {
        match event {
            Event::Restarted => Some(Self::Restarted),
            Event::Live { .. } => Some(Self::Live),
            _ => None,
        }
    }
}

/// Calls `run` as a batch of the subscriber that `of` returns. During the batch, the journal returns no message of another ring.
///
/// An earlier mistake: after a panic in the caller's closure the batch did not end. The journal then kept back each message of another ring
/// for ever.
#[inline(always)]
pub(crate) fn in_batch<S, R>(
    own: &mut S,
    of: impl Fn(&mut S) -> &mut Subscriber,
    run: impl FnOnce(&mut S) -> R,
) -> R {
    of(own).begin_batch();
    let batch = Batch { own, of };
    run(&mut *batch.own)
}

/// A batch that runs. Dropping it ends the batch, also during a panic.
struct Batch<'a, S, F: Fn(&mut S) -> &mut Subscriber> {
    own: &'a mut S,
    of: F,
}

impl<S, F: Fn(&mut S) -> &mut Subscriber> Drop for Batch<'_, S, F> {
    #[inline]
    fn drop(&mut self) {
        (self.of)(self.own).end_batch();
    }
}

impl Subscriber {
    #[inline]
    fn begin_batch(&mut self) {
        if self.past.is_some() {
            let ring = self.ring();
            self.past.iter_mut().for_each(|past| past.batch_ring = Some(ring));
        }
    }

    #[inline]
    fn end_batch(&mut self) {
        self.past.iter_mut().for_each(|past| past.batch_ring = None);
    }

    /// Whether the batch must end, because the subscriber has come to another ring with its last event.
    #[cold]
    pub(crate) fn has_changed_ring(&self, border: Border) -> bool {
        match border {
            Border::Restarted => true,
            Border::Live => self.past.as_ref().is_some_and(|past| past.batch_ring != Some(self.ring())),
        }
    }

    /// The uuid of the ring to which the last event belongs.
    fn ring(&self) -> [u64; 2] {
        self.in_past().map_or(self.header().uuid, |file| file.ring.uuid)
    }
}
