//! The ring that the thread sends, and the sequence at which the thread reads the ring.
//!
//! If a channel is created again, it has another ring and another stream. The thread first sends the rest of the earlier ring, and then
//! begins the next session. If the thread attaches by name, it gets the new ring. So it uses this attachment only if the ring has the
//! stream that the log continues.

use shmcast::{ChannelError, History, LocateError, Start, Subscriber};
use shmcast_bridge::egress::{Attached, attach};
use shmcast_bridge::spec::StartAt;

use super::identity::{first_of, identity_of};
use super::{End, Outlet, RETRY_NS, choice_of};
use crate::proto::block::{Carried, Stream};
use crate::proto::writer::{Last, Resume};

impl Outlet {
    /// Opens the channel by name, without a gate, at its newest message.
    fn open_by_name(&self) -> Result<Subscriber, ChannelError> {
        self.channel.clone().page(false).history(History::Never).start(Start::Latest).open()
    }

    /// The sequence after the last published message. The subscriber's number of unread messages can be too low. So if the log has more
    /// messages than the ring seems to have, opens the channel again to get the exact sequence.
    pub(super) fn published_for(&mut self, last: &Last) -> u64 {
        let published = self.published();
        let Some(ring) = &self.subscriber else { return published };
        if last.head.is_none_or(|head| head.end() <= published) {
            return published;
        }
        let newest = self.open_by_name().ok().filter(|newest| newest.header().stream == ring.header().stream);
        newest.map_or(published, |newest| newest.next_sequence().max(published))
    }

    /// Whether the channel has another ring by now, with another stream.
    pub(super) fn has_other_ring(&self) -> bool {
        self.subscriber.as_ref().is_some_and(|ring| {
            self.open_by_name().is_ok_and(|newest| newest.header().stream != ring.header().stream)
        })
    }

    /// Whether this writer still writes an earlier stream, but the log's last block already belongs to the channel's present stream.
    /// Another sender has then written that block, so the log accepts no more messages of the earlier stream.
    ///
    /// An earlier mistake: when a channel was created again, a waiting sender ended with the wrong error that two publishers write one
    /// channel.
    pub(super) fn is_left_behind(&self, last: &Last) -> bool {
        let Some(head) = last.head.filter(|head| head.stream != self.writer.stream()) else { return false };
        let newest = self.open_by_name().ok().and_then(|newest| identity_of(&self.spec, &newest).ok());
        newest.is_some_and(|newest| newest.stream == head.stream)
    }

    /// Notes that all messages of the ring were read, and that no more will follow, because the channel has left the ring.
    ///
    /// An earlier mistake: messages that were read and not yet in a block were dropped here.
    pub(super) fn end_ring(&mut self) {
        self.cutter.close();
        self.is_ring_over = true;
    }

    /// Leaves the ring. The thread then attaches again.
    pub(super) fn leave_ring(&mut self) {
        (self.subscriber, self.next_session, self.is_ring_over) = (None, None, false);
        self.cutter.clear();
    }

    /// Continues to read the ring at the message after the log's last message, or at the beginning if the log does not have the stream.
    pub(super) fn go_to(&mut self, resume: Resume) -> Result<(), ChannelError> {
        let first = match resume {
            Resume::At(next) => next,
            Resume::Beginning => {
                let first = self.beginning()?;
                self.writer.note_beginning(first);
                first
            }
        };
        if self.is_ring_over && (self.subscriber.is_none() || self.cutter.first() <= first) {
            self.cutter.keep_from(first);
            return Ok(());
        }
        self.is_ring_over = false;
        self.cutter.clear();
        self.cutter.set_due(first);
        // The ring delivers the beginning of a session only once, so the noted session is kept if it begins here.
        let session = self.writer.session();
        self.next_session = self.next_session.filter(|(begun, next)| *next == first && *begun != session);
        let here = self.subscriber.as_ref().map(Subscriber::next_sequence);
        if here == Some(first) && !self.lacks_gate() {
            // The ring delivers an end only once. The log might lack the block for this end, so this block is made again.
            self.end = if self.end == End::None { End::None } else { End::Read };
        } else {
            self.end = End::None;
            self.read_from(first)?;
        }
        Ok(())
    }

    /// Returns the first sequence to send if the log does not have this stream yet.
    fn beginning(&mut self) -> Result<u64, ChannelError> {
        if let Some((_, next)) = self.next_session.take() {
            return Ok(next);
        }
        if self.subscriber.is_none() {
            return Ok(self.cutter.first());
        }
        let from = self.spec.send.as_ref().map_or(StartAt::Resume, |send| send.from);
        let is_latest = from == StartAt::Latest && !self.is_new;
        let channel = self.channel.clone().page(false);
        let channel = match from {
            _ if is_latest => channel.start(Start::Latest),
            StartAt::Oldest => channel.start(Start::Oldest),
            StartAt::Latest | StartAt::Resume => channel.history(History::Never).start(Start::Oldest),
        };
        let ring = channel.open()?;
        if let Some(own) = self.subscriber.as_mut().filter(|own| own.header().stream != ring.header().stream)
        {
            let first = if is_latest { own.next_sequence() } else { own.first_sequence() };
            return Ok(match own.seek(first) {
                Err(LocateError::TooOld { oldest, .. }) => oldest,
                Ok(()) | Err(_) => first,
            });
        }
        let is_from_elsewhere = self.spec.session.is_none() && ring.remote_session().is_some();
        if !is_from_elsewhere {
            return Ok(ring.next_sequence());
        }
        let end = self.open_by_name()?.next_sequence();
        Ok(first_of(ring, self.writer.session(), end))
    }

    /// Continues in a ring that the channel has left. Reports messages that this ring has overwritten as lost.
    pub(super) fn stay_at(&mut self, first: u64) {
        let Some(ring) = &mut self.subscriber else { return };
        if let Err(LocateError::TooOld { oldest, .. }) = ring.seek(first)
            && ring.seek(oldest).is_ok()
        {
            self.cutter.lapse(oldest);
        }
    }

    /// Begins the ring's next session. Call this after all messages of the present session are in the log.
    pub(super) fn begin_next_session(&mut self) {
        // `begin` gives the session to the writer, so the session begins only once. The writer then requests the log's end, and the thread
        // continues to read from there.
        if let Some((session, _)) = self.next_session
            && session != self.writer.session()
        {
            self.writer.begin(self.clock.now_ns(), Stream::of_session(session), session);
        }
    }

    /// Attaches to the channel's present ring, and begins its session.
    pub(super) fn attach_again(&mut self, now_ns: u64) -> Result<(), String> {
        if now_ns < self.retry_ns {
            return Ok(());
        }
        self.retry_ns = now_ns + RETRY_NS;
        let channel = self.spec.through_gate(&self.channel).start(Start::Oldest);
        let Attached { subscriber, parks } = match attach(&channel, choice_of(self.spec.wait).mode) {
            Ok(attached) => attached,
            Err(e) => return self.attach_wait.bear(&self.spec, &self.shared.life, now_ns, &e),
        };
        self.attach_wait.end(&self.shared.life);
        let Carried { stream, session } = identity_of(&self.spec, &subscriber).map_err(|e| e.to_string())?;
        (self.subscriber, self.parks, self.is_new) = (Some(subscriber), parks, true);
        self.cutter.begin();
        self.writer.begin(now_ns, stream, session);
        Ok(())
    }
}
