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

impl Subscriber {
    /// Begins a batch. During the batch, the journal returns no message of another ring.
    #[inline]
    pub(crate) fn begin_batch(&mut self) {
        if self.past.is_some() {
            let ring = self.ring();
            self.past.iter_mut().for_each(|past| past.batch_ring = Some(ring));
        }
    }

    #[inline]
    pub(crate) fn end_batch(&mut self) {
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
