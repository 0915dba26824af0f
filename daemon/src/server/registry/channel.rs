//! One channel: its segment, who is attached to it, and how it goes on in another segment, whether one that a program
//! brought back or one for the next publisher of a strict channel.
//!
//! Who may do what is decided before this is called.

use super::{ConnectionId, Notice, Refused, failed};
use crate::config::ChannelConfig;
use crate::server::access::Identity;
use crate::server::events::Events;
use crate::server::store::Store;
use crate::server::waker::Waker;
use shmcast::ChannelStatus;
use shmcast::control::{Refusal, Reply};
use shmcast::hosting::{HostedPage, HostedSegment};
use std::collections::BTreeMap;
use std::fs::File;
use tokio::sync::mpsc::UnboundedSender;

/// Which end of a channel a program is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Publisher,
    Reader,
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) config: ChannelConfig,
    pub(super) hosted: HostedSegment,
    pub(super) publisher: Option<Attached>,
    pub(super) readers: BTreeMap<ConnectionId, Reader>,
    /// Whether a publisher was let in; a strict channel needs a new segment for the next one.
    pub(super) is_granted: bool,
    /// Whether programs brought the segment back and nobody new has been let in to publish: one of them may yet bring a
    /// later one.
    pub(super) is_brought_back: bool,
}

/// A publisher that was let in.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) id: ConnectionId,
    pub(super) who: Identity,
    pub(super) notices: UnboundedSender<Notice>,
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) who: Identity,
    pub(super) page: HostedPage,
    pub(super) notices: UnboundedSender<Notice>,
}

impl Channel {
    pub(super) fn new(config: ChannelConfig, hosted: HostedSegment) -> Self {
        // What was kept from before may have a publisher that has not come back yet.
        let is_granted = hosted.status().state != "new";
        Self { config, hosted, publisher: None, readers: BTreeMap::new(), is_granted, is_brought_back: false }
    }

    /// Whoever may publish may also read.
    pub(super) fn may_read(&self, who: &Identity, daemon_uid: u32) -> bool {
        let lists = [&self.config.subscribers, &self.config.publishers];
        lists.into_iter().any(|list| who.is_named_by(list, daemon_uid))
    }

    /// Goes on with the segment that an attached program holds, if it is this user's own and nobody uses ours yet.
    pub(super) fn adopt(
        &mut self,
        name: &str,
        [segment, lock]: [File; 2],
        of: Role,
        store: &mut Store,
        waker: &Waker,
    ) -> Result<(), Refused> {
        let mut theirs = HostedSegment::adopt(Some(name), &segment, Some(lock))
            .map_err(|e| Refused::new(Refusal::BadRequest, e.to_string()))?;
        if theirs.uuid() == self.hosted.uuid() {
            if self.hosted.take_lock(theirs) {
                store.forget(&self.hosted);
                store.keep(&self.hosted);
            }
            return Ok(());
        }
        let is_unused =
            self.publisher.is_none() && self.readers.is_empty() && self.hosted.status().state == "new";
        // A publisher that was cut off may have come back before those that followed its successor.
        let is_later = self.is_brought_back && theirs.generation() > self.hosted.generation();
        if is_unused || is_later {
            if self.config.mlock {
                theirs.lock_again();
                warn_of_refused_steps(name, &theirs);
            }
            store.forget(&self.hosted);
            store.keep(&theirs);
            self.hosted = theirs;
            (self.is_granted, self.is_brought_back) = (true, true);
            self.publisher = None;
            return self.tell_readers(waker);
        }
        if of == Role::Publisher {
            let why = format!("channel {name:?} has gone on without this publisher: start it again");
            return Err(Refused::new(Refusal::Busy, why));
        }
        Ok(())
    }

    /// Goes on in a new segment, and tells the readers.
    pub(super) fn succeed(
        &mut self,
        name: &str,
        store: &mut Store,
        waker: &Waker,
        events: &Events,
    ) -> Result<(), Refused> {
        let pages = self.readers.values().map(|reader| &reader.page);
        let successor = self
            .hosted
            .succeed(&self.config.spec(), pages)
            .map_err(|e| Refused::new(Refusal::Failed, format!("make the next segment: {e}")))?;
        store.keep(&successor);
        store.forget(&self.hosted);
        self.hosted = successor;
        self.is_granted = false;
        self.tell_readers(waker)?;
        events.tell("moved", Some(name), None, None, "");
        Ok(())
    }

    /// Sends all readers the segment in which the channel goes on.
    fn tell_readers(&self, waker: &Waker) -> Result<(), Refused> {
        waker.follow(self.readers.keys(), &self.hosted);
        for reader in self.readers.values() {
            let descriptors = self.hosted.for_reader().map_err(failed("open the segment"))?.into();
            // One that has hung up needs no word.
            let _ = reader.notices.send(Notice { reply: Reply::Moved {}, descriptors });
        }
        Ok(())
    }

    pub(super) fn status_without_readers(&self) -> ChannelStatus {
        let mut status = self.hosted.status();
        status.mode = Some(self.config.mode.to_string());
        status.publisher = self.publisher.as_ref().map(|publisher| publisher.who.process());
        status
    }

    pub(super) fn status(&self) -> ChannelStatus {
        let mut status = self.status_without_readers();
        let next = status.next_sequence;
        status.readers = self
            .readers
            .values()
            .filter_map(|reader| reader.page.status(reader.who.process(), next))
            .collect();
        status
    }
}

pub(super) fn warn_of_refused_steps(name: &str, hosted: &HostedSegment) {
    for step in hosted.preparation().iter().filter(|step| step.result.is_err()) {
        tracing::warn!(channel = name, "memory: {step}");
    }
}
