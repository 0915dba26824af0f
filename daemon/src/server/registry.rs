//! The channels, who is attached to them, and who may be.
//!
//! Plain state without sockets or time: connections call it, and carry out what it grants. The kernel's lock says
//! whether a publisher lives; what stands here about it is for people to read.

mod channel;

use super::access::Identity;
use super::events::Events;
use super::store::Store;
use super::waker::Waker;
use crate::config::{ChannelConfig, Config, Mode};
use channel::{Attached, Channel, Reader, Role, warn_of_refused_steps};
use shmcast::control::{Refusal, Reply};
use shmcast::hosting::{HostedPage, HostedSegment};
use shmcast::{ChannelStatus, Process, ReaderStats};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use tokio::sync::mpsc::UnboundedSender;

/// Characters of a reason that are told.
const WHY_CHARS: usize = 600;

/// A connection's number, never used twice.
pub type ConnectionId = u64;

/// Something to send to a connection that did not ask for it.
#[derive(Debug)]
pub struct Notice {
    /// What to say.
    pub reply: Reply,
    /// What to hand over with it.
    pub descriptors: Vec<File>,
}

/// A refusal: why, for programs and for people.
#[derive(Debug)]
pub struct Refused {
    /// For programs.
    pub code: Refusal,
    /// For people.
    pub why: String,
}

impl Refused {
    /// A refusal with its reason. Parts of it may be the client's words: they must not fill packets and logs.
    pub fn new(code: Refusal, why: impl Into<String>) -> Self {
        let why: String = why.into();
        Self { code, why: why.chars().take(WHY_CHARS).collect() }
    }
}

/// All channels of this daemon.
#[derive(Debug)]
pub struct Registry {
    channels: BTreeMap<String, Channel>,
    events: Events,
    store: Store,
    waker: Waker,
    /// The user that this daemon runs as, who may use all channels.
    uid: u32,
    refusals: HashMap<Refusal, u64>,
    /// Channels that a bridge receives, with its name: nobody else publishes on them.
    received: BTreeMap<String, String>,
}

/// A channel and its readers with all that their pages say.
#[derive(Debug)]
pub struct Measured {
    /// The channel, without its readers.
    pub status: ChannelStatus,
    /// Its readers, those attached longest first.
    pub readers: Vec<(Process, ReaderStats)>,
}

/// What a reload changed.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Channels that were made.
    pub added: Vec<String>,
    /// Channels that were given up.
    pub removed: Vec<String>,
    /// Channels that keep their segment although the file asks for another size or mode, because they are in use or
    /// hold messages.
    pub kept: Vec<String>,
}

impl Registry {
    /// No channels yet.
    pub fn new(events: Events, store: Store, waker: Waker, uid: u32) -> Self {
        let (channels, received) = (BTreeMap::new(), BTreeMap::new());
        Self { channels, events, store, waker, uid, refusals: HashMap::new(), received }
    }

    /// Makes the channels that `config` names and that are not there yet, gives up those that it no longer names, and
    /// takes over changed access lists. Live channels stay as they are.
    ///
    /// # Errors
    /// The first channel that could not be made; those before it stay.
    pub fn apply(&mut self, config: &Config, mut inherited: Vec<HostedSegment>) -> anyhow::Result<Changes> {
        self.waker.reload(config.waker.clone());
        let received = config.bridges.iter().filter(|bridge| bridge.receive.is_some());
        self.received = received.map(|bridge| (bridge.channel.clone(), bridge.title().to_owned())).collect();
        let mut changes = Changes::default();
        let gone: Vec<String> = self
            .channels
            .keys()
            .filter(|name| !config.channels.iter().any(|c| c.name == **name))
            .cloned()
            .collect();
        for name in gone {
            self.give_up(&name);
            changes.removed.push(name);
        }
        for wanted in &config.channels {
            match self.channels.get_mut(&wanted.name) {
                Some(channel) => {
                    if channel.config.spec().capacity != wanted.spec().capacity
                        || channel.config.mode != wanted.mode
                    {
                        changes.kept.push(wanted.name.clone());
                    }
                    channel.config = ChannelConfig { mode: channel.config.mode, ..wanted.clone() };
                }
                None => {
                    let kept = inherited.iter().position(|hosted| hosted.header().channel == wanted.name);
                    let hosted = match kept {
                        Some(at) => {
                            let mut hosted = inherited.swap_remove(at);
                            if wanted.mlock {
                                hosted.lock_again();
                            }
                            hosted
                        }
                        None => {
                            let hosted = HostedSegment::create(&wanted.spec())?;
                            self.store.keep(&hosted);
                            changes.added.push(wanted.name.clone());
                            hosted
                        }
                    };
                    warn_of_refused_steps(&wanted.name, &hosted);
                    self.channels.insert(wanted.name.clone(), Channel::new(wanted.clone(), hosted));
                }
            }
        }
        for hosted in inherited {
            tracing::warn!(
                channel = hosted.header().channel,
                "kept from before, but no longer configured: given up"
            );
            self.store.forget(&hosted);
        }
        Ok(changes)
    }

    fn give_up(&mut self, name: &str) {
        let Some(channel) = self.channels.remove(name) else { return };
        self.store.forget(&channel.hosted);
        // Programs that are attached keep the memory; nobody new finds it.
        self.events.tell("removed", Some(name), None, None, "no longer configured");
    }

    /// Gives a channel whose publisher has gone a new segment, whose sequences begin at 1. Readers of the old one are told
    /// that it is over.
    ///
    /// # Errors
    /// When there is no memory for it; the channel stays as it was.
    pub fn begin_anew(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(channel) = self.channels.get_mut(name) else { return Ok(()) };
        let hosted = HostedSegment::create(&channel.config.spec())?;
        self.store.keep(&hosted);
        self.store.forget(&channel.hosted);
        let old = std::mem::replace(&mut channel.hosted, hosted);
        old.supersede();
        channel.is_granted = false;
        self.events.tell("anew", Some(name), None, None, "its sequences begin again");
        Ok(())
    }

    /// Grants the publisher's end: segment and lock. The lock decides between two who were granted it at once.
    ///
    /// # Errors
    /// [`Refused`]; also told as an event.
    pub fn publish(
        &mut self,
        id: ConnectionId,
        who: &Identity,
        name: &str,
        resumed: Option<[File; 2]>,
        notices: UnboundedSender<Notice>,
    ) -> Result<Vec<File>, Refused> {
        let uid = self.uid;
        let channel = self.channels.get_mut(name).ok_or_else(|| unknown(name))?;
        if !who.is_named_by(&channel.config.publishers, uid) {
            let why = format!("{who} may not publish on {name:?}: add it to the channel's publishers");
            return Err(Refused::new(Refusal::Denied, why));
        }
        if let Some(bridge) = self.received.get(name).filter(|_| who.pid != std::process::id()) {
            let why = format!(
                "channel {name:?} comes from another host by bridge {bridge:?}, its only publisher: publish there"
            );
            return Err(Refused::new(Refusal::Busy, why));
        }
        let is_back = resumed.is_some();
        match resumed {
            Some([segment, lock]) => {
                channel.adopt(name, [segment, lock], Role::Publisher, &mut self.store, &self.waker)?
            }
            None => {
                let held = channel.hosted.has_publisher().map_err(failed("look at the writer lock"))?;
                if held {
                    let holder = match &channel.publisher {
                        Some(holder) => format!("publisher {}", holder.who),
                        None => "a publisher that has not registered yet".to_owned(),
                    };
                    let why = format!("channel {name:?} is in use by {holder}: stop it first");
                    return Err(Refused::new(Refusal::Busy, why));
                }
                if channel.config.mode == Mode::Strict && channel.is_granted {
                    channel.succeed(name, &mut self.store, &self.waker, &self.events)?;
                }
                channel.is_brought_back = false;
            }
        }
        let granted = channel.hosted.for_publisher().map_err(failed("open the segment"))?;
        channel.publisher = Some(Attached { id, who: who.clone(), notices });
        channel.is_granted = true;
        self.events.tell(attached(is_back), Some(name), Some("publisher"), Some(who), "");
        Ok(granted.into())
    }

    /// Grants a reader's end: segment and page. With a bell, the reader is woken when there is something to read.
    ///
    /// # Errors
    /// [`Refused`]; also told as an event.
    pub fn subscribe(
        &mut self,
        id: ConnectionId,
        who: &Identity,
        name: &str,
        resumed: Option<[File; 3]>,
        bell: Option<File>,
        notices: UnboundedSender<Notice>,
    ) -> Result<Vec<File>, Refused> {
        let uid = self.uid;
        let channel = self.channels.get_mut(name).ok_or_else(|| unknown(name))?;
        if !channel.may_read(who, uid) {
            let why = format!("{who} may not read {name:?}: add it to the channel's subscribers");
            return Err(Refused::new(Refusal::Denied, why));
        }
        let is_back = resumed.is_some();
        let page = match resumed {
            Some([segment, lock, page]) => {
                channel.adopt(name, [segment, lock], Role::Reader, &mut self.store, &self.waker)?;
                HostedPage::adopt(&page).map_err(|e| Refused::new(Refusal::BadRequest, e.to_string()))?
            }
            None => HostedPage::create().map_err(failed("make a reader page"))?,
        };
        let [segment, lock] = channel.hosted.for_reader().map_err(failed("open the segment"))?;
        let granted = vec![segment, lock, page.for_reader().map_err(failed("open the reader page"))?];
        if let Some(bell) = bell {
            let parked = page.park(&channel.hosted, bell);
            let parked = parked.map_err(|e| Refused::new(Refusal::BadRequest, e.to_string()))?;
            self.waker.park(id, parked).map_err(failed("start the waker"))?;
        }
        channel.readers.insert(id, Reader { who: who.clone(), page, notices });
        self.events.tell(attached(is_back), Some(name), Some("reader"), Some(who), "");
        Ok(granted)
    }

    /// The publisher on this connection has mapped its segment: on a strict channel nobody can from now on.
    pub fn mapped(&mut self, id: ConnectionId) {
        for (name, channel) in &self.channels {
            let is_its = channel.publisher.as_ref().is_some_and(|publisher| publisher.id == id);
            if is_its
                && channel.config.mode == Mode::Strict
                && let Err(e) = channel.hosted.seal()
            {
                tracing::error!(channel = name, "cannot seal the segment against later maps: {e}");
            }
        }
    }

    /// Takes a strict channel away from its publisher, living or not.
    ///
    /// # Errors
    /// [`Refused`] for a channel that is not strict, or by one who may not publish on it.
    pub fn take_over(&mut self, who: &Identity, name: &str) -> Result<(), Refused> {
        let uid = self.uid;
        let channel = self.channels.get_mut(name).ok_or_else(|| unknown(name))?;
        if !who.is_named_by(&channel.config.publishers, uid) {
            return Err(Refused::new(Refusal::Denied, format!("{who} may not publish on {name:?}")));
        }
        if channel.config.mode != Mode::Strict {
            let why =
                format!("channel {name:?} is not strict: stop its publisher instead, or make it strict");
            return Err(Refused::new(Refusal::BadRequest, why));
        }
        channel.succeed(name, &mut self.store, &self.waker, &self.events)?;
        channel.is_brought_back = false;
        let from = channel.publisher.take();
        let detail = from.as_ref().map_or(String::new(), |from| format!("taken from {}", from.who));
        self.events.tell("taken-over", Some(name), Some("publisher"), Some(who), &detail);
        if let Some(Attached { who: from, notices, .. }) = from {
            // One that is stopped finds it when it goes on; one that has hung up needs no word.
            let _ = notices.send(Notice { reply: Reply::CutOff {}, descriptors: Vec::new() });
            let detail =
                format!("the channel was taken over by {who}; nobody receives what it still publishes");
            self.events.tell("cut-off", Some(name), Some("publisher"), Some(&from), &detail);
        }
        Ok(())
    }

    /// Forgets whatever the connection was attached to.
    pub fn detach(&mut self, id: ConnectionId) {
        self.waker.forget(id);
        for (name, channel) in &mut self.channels {
            if let Some(Attached { who, .. }) = channel.publisher.take_if(|publisher| publisher.id == id) {
                let orphaned = matches!(channel.hosted.status().state.as_str(), "orphaned");
                let detail = if orphaned { "died without closing the channel" } else { "" };
                self.events.tell("detached", Some(name), Some("publisher"), Some(&who), detail);
            }
            if let Some(reader) = channel.readers.remove(&id) {
                self.events.tell("detached", Some(name), Some("reader"), Some(&reader.who), "");
            }
        }
    }

    /// Reports the channels that `who` may read, or only the one named.
    ///
    /// # Errors
    /// [`Refused`] for a channel that does not exist or that `who` may not read.
    pub fn report(&self, who: &Identity, only: Option<&str>) -> Result<Vec<ChannelStatus>, Refused> {
        if let Some(name) = only {
            let channel = self.channels.get(name).ok_or_else(|| unknown(name))?;
            if !channel.may_read(who, self.uid) {
                return Err(Refused::new(Refusal::Denied, format!("{who} may not read {name:?}")));
            }
            return Ok(vec![channel.status()]);
        }
        Ok(self.channels.values().filter(|c| c.may_read(who, self.uid)).map(Channel::status).collect())
    }

    /// Reports all channels, whoever asks.
    pub fn report_all(&self) -> Vec<ChannelStatus> {
        self.channels.values().map(Channel::status).collect()
    }

    /// All channels with the pages of their readers, for metrics.
    pub fn measure(&self) -> Vec<Measured> {
        let pages = |channel: &Channel| {
            let readers = channel.readers.values();
            readers.filter_map(|reader| Some((reader.who.process(), reader.page.stats()?))).collect()
        };
        self.channels
            .values()
            .map(|channel| Measured { status: channel.status_without_readers(), readers: pages(channel) })
            .collect()
    }

    /// Counts and tells a refusal.
    pub fn refused(&mut self, refused: &Refused, who: Option<&Identity>, channel: Option<&str>) {
        *self.refusals.entry(refused.code).or_default() += 1;
        self.events.tell("refused", channel, None, who, &refused.why);
    }

    /// Whether any program is attached to any channel.
    pub fn is_in_use(&self) -> bool {
        self.channels.values().any(|c| c.publisher.is_some() || !c.readers.is_empty())
    }

    /// How often each reason was given.
    pub fn refusals(&self) -> &HashMap<Refusal, u64> {
        &self.refusals
    }
}

fn attached(is_back: bool) -> &'static str {
    if is_back { "reattached" } else { "attached" }
}

fn unknown(name: &str) -> Refused {
    let why = format!("no channel {name:?}: add it to the configuration and reload");
    Refused::new(Refusal::UnknownChannel, why)
}

fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Refused {
    move |e| Refused::new(Refusal::Failed, format!("{what}: {e}"))
}
