//! The programs that were let in as a channel's publisher. The lock decides which of them publishes.

use super::Notice;
use super::attached::Attached;
use super::channel::Channel;
use crate::server::access::ConnectionId;
use shmcast::control::Response;

impl Channel {
    /// Lets a program in as the publisher.
    pub(super) fn let_in(&mut self, publisher: Attached) {
        let before = self.publisher.replace(publisher);
        // Each publisher of a strict channel has a segment of its own. So only the last publisher can have the lock of the current segment.
        if !self.entry().is_strict {
            self.rivals.extend(before);
        }
    }

    /// Whether the program on this connection was let in as a publisher.
    pub(super) fn has_let_in(&self, id: ConnectionId) -> bool {
        self.publisher.iter().chain(&self.rivals).any(|publisher| publisher.id == id)
    }

    /// Notes that the program on this connection has the lock. Returns false if the program was not let in as a publisher of this channel.
    pub(super) fn note_holder(&mut self, id: ConnectionId) -> bool {
        if let Some(at) = self.rivals.iter().position(|rival| rival.id == id) {
            let holder = self.rivals.swap_remove(at);
            self.rivals.extend(self.publisher.replace(holder));
        }
        self.publisher.as_ref().is_some_and(|publisher| publisher.id == id)
    }

    /// Forgets the publisher on this connection, and returns it. If other programs were let in, the last of them becomes the publisher,
    /// because it can have the lock.
    pub(super) fn let_go(&mut self, id: ConnectionId) -> Option<Attached> {
        if let Some(at) = self.rivals.iter().position(|rival| rival.id == id) {
            return Some(self.rivals.swap_remove(at));
        }
        let gone = self.publisher.take_if(|publisher| publisher.id == id)?;
        self.publisher = self.rivals.pop();
        Some(gone)
    }

    /// Notifies all programs that were let in as publishers that they are cut off. Returns the last known publisher. A stopped program
    /// finds the notice when it continues.
    pub(super) fn cut_off(&mut self) -> Option<Attached> {
        let from = self.publisher.take()?;
        for publisher in self.rivals.drain(..).chain([from.clone()]) {
            // A publisher that has hung up needs no notice.
            let _ = publisher.notices.send(Notice { reply: Response::CutOff {}, descriptors: Vec::new() });
        }
        Some(from)
    }
}
