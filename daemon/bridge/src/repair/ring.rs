//! Reads the ring by sequence, for retransmissions.

use shmcast::{ChannelJournal, Clock, Event, LocateError, RecvError, Subscriber};

use crate::proto::replay::Piece;
use crate::proto::wire::Meta;
use crate::times::Moment;

/// The place from which a message can be read.
pub(super) enum Place {
    /// The ring has the message, or will have it.
    Here,
    /// The channel has a gap in place of the message. The number is the sequence after the gap.
    Lost(u64),
    /// The ring has overwritten the message, or the channel is gone. The number is the oldest sequence that the ring might still have.
    TooOld(u64),
}

/// Reads the ring for retransmissions.
pub(super) struct Ring {
    /// `None` after an error: the channel is gone, or was replaced.
    subscriber: Option<Subscriber>,
    /// The number of the sending thread's change to this ring.
    pub(super) change: u64,
    /// The last message that was too large for one answer: its sequence, size and marks. Its bytes are in `large`.
    kept: Option<(u64, usize, Meta)>,
    large: Vec<u8>,
}

impl Ring {
    pub(super) fn new(subscriber: Subscriber, change: u64) -> Ring {
        Ring { subscriber: Some(subscriber), change, large: Vec::new(), kept: None }
    }

    /// Whether the ring cannot be read any more.
    pub(super) fn is_lost(&self) -> bool {
        self.subscriber.is_none()
    }

    /// Takes the channel's journal, if it has one by now.
    pub(super) fn take_journal(&mut self) -> Option<ChannelJournal> {
        self.subscriber.as_mut()?.take_journal()
    }

    /// The channel's clock.
    pub(super) fn clock(&self) -> Option<Clock> {
        self.subscriber.as_ref().map(Subscriber::clock)
    }

    /// Copies to `room` the bytes of the message `sequence` from `offset` on, as far as they fit. Stores a message that is larger than
    /// `room`, because its next part will be requested soon. `moment` converts the message's time.
    pub(super) fn read_part(
        &mut self,
        sequence: u64,
        offset: u32,
        room: &mut [u8],
        moment: Option<&Moment>,
    ) -> Option<Piece> {
        if let Some((kept, size, meta)) = self.kept
            && kept == sequence
            && (offset > 0 || size > room.len())
        {
            return Some(Piece::copy(&self.large[..size], offset, room, meta));
        }
        if offset == 0 {
            match self.take(sequence, room, moment) {
                Ok(taken) => return taken.map(|(size, meta)| Piece { size, total: size, meta }),
                Err(size) => self.large.resize(size.max(self.large.len()), 0),
            }
        }
        self.kept = None;
        let mut large = std::mem::take(&mut self.large);
        let mut taken = self.take(sequence, &mut large, moment);
        if let Err(size) = taken {
            large.resize(size, 0);
            taken = self.take(sequence, &mut large, moment);
        }
        self.large = large;
        let (size, meta) = taken.ok().flatten()?;
        self.kept = Some((sequence, size, meta));
        Some(Piece::copy(&self.large[..size], offset, room, meta))
    }

    // Copies a message into the slice. Returns its size and marks. If the slice is too small, the error is the message's size.
    fn take(
        &mut self,
        sequence: u64,
        room: &mut [u8],
        moment: Option<&Moment>,
    ) -> Result<Option<(usize, Meta)>, usize> {
        let Some(subscriber) = self.subscriber.as_mut() else { return Ok(None) };
        if subscriber.next_sequence() != sequence && subscriber.seek(sequence).is_err() {
            return Ok(None);
        }
        loop {
            match subscriber.try_recv_into(room) {
                Ok(Some(Event::Message(message))) => {
                    // The ring might be a later ring of the channel, with another clock.
                    let time_ns =
                        moment.map_or(0, |moment| moment.on(subscriber.clock()).wall_of(message.time));
                    let meta = Meta { tag: message.tag, key: message.key, time_ns };
                    return Ok((message.sequence == sequence).then_some((message.payload.len(), meta)));
                }
                Ok(Some(Event::NewEpoch { .. } | Event::NewSession { .. } | Event::End)) => {}
                Ok(Some(Event::Gap { .. } | Event::Lapped(_)) | None) => return Ok(None),
                Err(RecvError::TooSmall { needed, .. }) => return Err(needed),
                // The channel is gone or was replaced. If the sending thread changes to another ring, this thread follows it. Otherwise
                // this thread opens the same ring again.
                Ok(Some(_)) | Err(_) => {
                    self.subscriber = None;
                    return Ok(None);
                }
            }
        }
    }

    /// Returns where a message that was sent before `next` can be read. Takes constant time for a message that the ring holds.
    pub(super) fn place(&mut self, sequence: u64, next: u64) -> Place {
        let Some(subscriber) = &mut self.subscriber else { return Place::TooOld(next) };
        match subscriber.seek(sequence) {
            // The buffer has no room, so a message stays in the ring. Only a gap or an empty message is consumed.
            Ok(()) => match subscriber.try_recv_into(&mut []) {
                Ok(Some(Event::Gap { to, .. })) => Place::Lost(to + 1),
                Ok(_) | Err(_) => Place::Here,
            },
            Err(LocateError::TooOld { oldest, .. }) => {
                Place::TooOld(oldest.max(sequence.saturating_add(1)).min(next))
            }
            Err(_) => Place::Here,
        }
    }

    /// Copies the message `sequence` to the start of the slice, and returns its size.
    pub(super) fn read(&mut self, sequence: u64, room: &mut [u8]) -> Option<usize> {
        self.take(sequence, room, None).ok().flatten().map(|(size, _)| size)
    }
}
