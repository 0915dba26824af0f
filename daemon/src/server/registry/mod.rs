//! The channels and the programs that are attached to them. The registry decides which programs may attach.
//!
//! This module has plain state, without sockets or time. Connections carry out what the registry grants. A publisher lives as long as it
//! has the kernel's lock on its segment. The registry's own entry about a publisher is only shown to people.

mod attached;
mod channel;
mod gates;
mod memory;
mod publishers;
mod reload;

use super::access::{ConnectionId, Identity};
use super::charters::Charters;
use super::events::Events;
use super::promoted::Promoted;
use super::store::Store;
use super::waker::Waker;
use crate::config::Mode;
use attached::Attached;
use channel::{Channel, Observers, Reader};
use gates::Gates;
pub use memory::{After, Memory, MemoryRequest};
use nix::errno::Errno;
pub use reload::{Changes, Made};
use shmcast::control::{Properties, RefusalCode, Required, Response};
use shmcast::hosting::{Cut, Entry, Hold, HostedPage, advice, fault};
use shmcast::{ChannelStatus, Process, ReaderStats};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use tokio::sync::mpsc::UnboundedSender;

/// The limit for the characters of a refusal's reason.
const WHY_CHARS: usize = 600;

/// A packet for a connection that did not ask for it.
#[derive(Debug)]
pub struct Notice {
    /// The reply to send.
    pub reply: Response,
    /// The descriptors to send with it.
    pub descriptors: Vec<File>,
}

/// A refusal with its reason.
#[derive(Debug)]
pub struct Refused {
    /// The reason, for programs.
    pub code: RefusalCode,
    /// The reason, for people.
    pub why: String,
}

impl Refused {
    /// Makes the refusal for an error of the system, with advice. If descriptors are lacking, the text says that the daemon, and not the
    /// program, lacks them.
    pub fn failed(what: &str, e: &io::Error) -> Self {
        let (lack, advice) = match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EMFILE | Errno::ENFILE) => {
                ("the daemon lacks descriptors, raise its LimitNOFILE=: ", "")
            }
            _ => ("", advice(e)),
        };
        Self::new(RefusalCode::Failed, format!("{lack}{what}: {e}{advice}"))
    }

    /// Makes a refusal. The reason can quote the client, so it is cut off after 600 characters to fit packets and logs.
    pub fn new(code: RefusalCode, why: impl Into<String>) -> Self {
        let why: String = why.into();
        Self { code, why: why.chars().take(WHY_CHARS).collect() }
    }
}

/// A program that asks to attach.
#[derive(Debug, Clone, Copy)]
pub struct Guest<'a> {
    /// The number of the program's connection.
    pub id: ConnectionId,
    /// The program's identity. The kernel reports the user and the process.
    pub who: &'a Identity,
    /// The channel that the program asks for.
    pub channel: &'a str,
    /// The descriptors that the program has from an earlier daemon: the segment and the lock. A reader also has its page.
    pub shown: &'a [File],
    /// The queue of notices for the program's connection.
    pub notices: &'a UnboundedSender<Notice>,
    /// Whether programs of a crashed daemon have had time to attach again.
    pub has_waited: bool,
}

/// Options of a reader.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Whether tools do not show the reader, because it reads on behalf of other programs.
    pub is_hidden: bool,
    /// Whether the reader is told when the publisher dies.
    pub watches: bool,
}

/// The answer to a program that may attach.
#[derive(Debug)]
pub enum Grant {
    /// The program is attached.
    Granted {
        /// The reply to send.
        reply: Response,
        /// The descriptors to send with it.
        descriptors: Vec<File>,
    },
    /// The caller must make this memory, pass it to [`stock`](Registry::stock), and ask again. The registry does not make the memory
    /// itself, because that would block the event loop.
    NeedsMemory(Box<MemoryRequest>),
    /// The channel's configured properties are not those that the program requires.
    Unfit(Properties),
    /// The caller must ask again after programs of a crashed daemon have had time to attach again.
    NotYet,
}

/// All channels of this daemon.
#[derive(Debug)]
pub struct Registry {
    channels: BTreeMap<String, Channel>,
    /// Channels that are no longer configured and still have attached programs.
    retired: BTreeMap<String, Channel>,
    charters: Charters,
    events: Events,
    store: Store,
    waker: Waker,
    /// The user as which this daemon runs. This user may use all channels.
    uid: u32,
    /// Channels that a bridge receives, with the bridge's name. Other programs may publish on them only after a promotion.
    received: BTreeMap<String, String>,
    promoted: Promoted,
    gates: Gates,
}

/// A channel and its readers, with all figures of their pages.
#[derive(Debug)]
pub struct Measured {
    /// The channel, without its readers.
    pub status: ChannelStatus,
    /// The readers. Those that have been attached longest come first.
    pub readers: Vec<(Process, ReaderStats)>,
}

impl Registry {
    /// A registry without channels.
    pub fn new(
        charters: Charters,
        events: Events,
        store: Store,
        waker: Waker,
        uid: u32,
        promoted: Promoted,
    ) -> Self {
        let (channels, retired, received) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let gates = Gates::at(charters.beside("gates"));
        Self { channels, retired, charters, events, store, waker, uid, received, promoted, gates }
    }

    /// Grants a publisher the segment, the lock and the charter. Two programs can get this grant at the same time. The lock then decides
    /// which of them publishes. With `anew`, the channel's sequences begin at 1 again. If the configured properties are not those of
    /// `required`, nothing changes.
    ///
    /// # Errors
    /// [`Refused`] with the reason.
    pub fn publish(&mut self, guest: &Guest<'_>, anew: bool, required: &Required) -> Result<Grant, Refused> {
        let Guest { id, who, channel: name, shown, notices, .. } = *guest;
        let Self { channels, store, waker, events, received, promoted, uid, gates, .. } = self;
        let channel = channels.get_mut(name).ok_or_else(|| unknown(name))?;
        if !who.is_named_by(&channel.config.publishers, *uid) {
            let why = format!("{who} may not publish on {name:?}: add it to the channel's publishers");
            return Err(Refused::new(RefusalCode::Denied, why));
        }
        let is_taken = |_: &&String| who.pid != std::process::id() && !promoted.contains(name);
        if let Some(bridge) = received.get(name).filter(is_taken) {
            let why = format!(
                "channel {name:?} comes from another host by bridge {bridge:?}, its only publisher: publish there"
            );
            return Err(Refused::new(RefusalCode::Busy, why));
        }
        let mut told = Observers { name, store, waker, events };
        if let [segment, lock] = shown {
            if !channel.recognizes([segment, lock], &mut told)? {
                let why = format!("channel {name:?} has gone on without this publisher: start it again");
                return Err(Refused::new(RefusalCode::Busy, why));
            }
        } else if let Some(found) = channel.config.spec().unfit(required) {
            // The properties are checked before `make_way`, which might move the channel to new memory.
            return Ok(Grant::Unfit(found));
        } else if let Some(request) = channel.make_way(anew, &mut told)? {
            return Ok(Grant::NeedsMemory(Box::new(request)));
        } else {
            gates.begin(name, channel, events);
        }
        let [segment, lock] = channel.hosted().for_publisher().map_err(failed("open the segment"))?;
        let charter = channel.charter.for_program().map_err(failed("open the charter"))?;
        channel.charter.grant();
        channel.let_in(Attached { id, who: who.clone(), notices: notices.clone() });
        events.tell(attached(!shown.is_empty()), Some(name), Some("publisher"), Some(who), "");
        let generation = channel.generation().generation;
        Ok(Grant::Granted {
            reply: Response::Publishing { generation, gates: channel.config.gates.len() as u32 },
            descriptors: vec![segment, lock, charter],
        })
    }

    /// Whether a new publisher `who` need not wait for programs of a crashed daemon that attach again. The result is true if two conditions
    /// hold: `who` is this daemon's bridge that receives the channel, and this daemon has the channel's memory.
    ///
    /// Only the bridge can publish on such a channel. The crashed daemon's bridge ended together with that daemon, so no earlier publisher
    /// can attach again. This daemon has the memory if a reader of the crashed daemon has passed it on.
    pub fn needs_no_grace(&self, who: &Identity, name: &str) -> bool {
        let is_own = who.pid == std::process::id();
        let is_received = self.received.contains_key(name) && !self.promoted.contains(name);
        is_own && is_received && self.channels.get(name).is_some_and(|channel| !channel.is_lost())
    }

    /// Grants a reader the segment, the lock, a page and the charter.
    ///
    /// - If `bell` is given, this call takes the bell. The reader is then woken when there is something to read.
    /// - A hidden reader is not shown by tools.
    /// - A reader that watches is told when the publisher dies. If the publisher is already dead, this call tells the reader.
    ///
    /// # Errors
    /// [`Refused`] with the reason.
    pub fn subscribe(
        &mut self,
        guest: &Guest<'_>,
        Manner { is_hidden, watches }: Manner,
        bell: &mut Option<File>,
    ) -> Result<Grant, Refused> {
        let Guest { id, who, channel: name, shown, notices, has_waited } = *guest;
        let Self { channels, store, waker, events, uid, gates, .. } = self;
        let channel = channels.get_mut(name).ok_or_else(|| unknown(name))?;
        if !channel.may_read(who, *uid) {
            // A user whose names could not be looked up keeps its gates.
            if let [segment, ..] = shown
                && who.names.is_some()
            {
                gates.withdraw_of_earlier(channel, who, segment);
            }
            let why = format!("{who} may not read {name:?}: add it to the channel's subscribers");
            return Err(Refused::new(RefusalCode::Denied, why));
        }
        let mut told = Observers { name, store, waker, events };
        let page = match shown {
            [segment, lock, page] => {
                // If a reader presents descriptors of older memory, it gets the current memory, like a new reader.
                channel.recognizes([segment, lock], &mut told)?;
                HostedPage::adopt(page).map_err(|e| Refused::new(RefusalCode::BadRequest, e.to_string()))?
            }
            _ => HostedPage::create().map_err(failed("make a reader page"))?,
        };
        if channel.is_lost() {
            if !has_waited {
                return Ok(Grant::NotYet);
            }
            if let Some(request) = channel.go_on(channel.cut_of_lost(), &mut told)? {
                return Ok(Grant::NeedsMemory(Box::new(request)));
            }
        }
        let [segment, lock] = channel.hosted().for_reader().map_err(failed("open the segment"))?;
        let mut descriptors = vec![segment, lock];
        descriptors.push(page.for_reader().map_err(failed("open the reader page"))?);
        descriptors.push(channel.charter.for_program().map_err(failed("open the charter"))?);
        if let Some(bell) = bell.take() {
            let parked = page.park(channel.hosted(), bell);
            let parked = parked.map_err(|e| Refused::new(RefusalCode::BadRequest, e.to_string()))?;
            waker.park(id, parked).map_err(failed("start the waker"))?;
        }
        let is_hidden = is_hidden && !fault!("every_reader_is_shown");
        let reader = Reader::new(who, page, is_hidden, watches, notices);
        if let Some(dead) = channel.dead_publisher().filter(|_| watches) {
            reader.tell_death(dead);
        }
        channel.readers.insert(id, reader);
        events.tell(attached(!shown.is_empty()), Some(name), Some("reader"), Some(who), "");
        Ok(Grant::Granted { reply: Response::Subscribed(channel.generation()), descriptors })
    }

    /// Whether a channel still needs the requested memory.
    pub fn needs(&self, name: &str, request: &MemoryRequest) -> bool {
        self.channels.get(name).is_some_and(|channel| channel.needs(request))
    }

    /// Takes the memory that [`Grant::NeedsMemory`] requested. The next grant uses it.
    pub fn stock(&mut self, name: &str, memory: Memory) {
        if let Some(channel) = self.channels.get_mut(name) {
            channel.stock(memory);
        }
    }

    /// Records that the publisher on this connection has the lock and has mapped its segment. The segment of a strict channel is now sealed,
    /// so that no other program can map it for writing.
    pub fn mapped(&mut self, id: ConnectionId) {
        for (name, channel) in &mut self.channels {
            if channel.note_holder(id)
                && channel.entry().is_strict
                && let Err(e) = channel.hosted().seal()
            {
                tracing::error!(channel = name, "cannot seal the segment against later maps: {e}");
            }
        }
    }

    /// Checks that `who` may publish on a channel.
    ///
    /// # Errors
    /// [`Refused`] if there is no such channel, or if its lists do not name the user.
    pub fn check_publisher(&self, who: &Identity, name: &str) -> Result<(), Refused> {
        may_publish(self.channels.get(name).ok_or_else(|| unknown(name))?, who, self.uid, name)
    }

    /// Checks that `who` may read a channel.
    ///
    /// # Errors
    /// [`Refused`] if there is no such channel, or if `who` is not allowed to read it.
    pub fn check_reader(&self, who: &Identity, name: &str) -> Result<(), Refused> {
        self.readable(who, name).map(drop)
    }

    fn readable(&self, who: &Identity, name: &str) -> Result<&Channel, Refused> {
        let channel = self.channels.get(name).ok_or_else(|| unknown(name))?;
        match channel.may_read(who, self.uid) {
            true => Ok(channel),
            false => Err(Refused::new(RefusalCode::Denied, format!("{who} may not read {name:?}"))),
        }
    }

    /// Takes a strict channel away from its publisher, whether the publisher lives or not. This needs new memory. If the memory is not made
    /// yet, changes nothing, and returns a request for the memory.
    ///
    /// # Errors
    /// [`Refused`] if the channel is not strict, or if `who` may not publish on it. In this case, nothing has changed.
    pub fn take_over(&mut self, who: &Identity, name: &str) -> Result<Option<MemoryRequest>, Refused> {
        let Self { channels, store, waker, events, uid, .. } = self;
        let channel = channels.get_mut(name).ok_or_else(|| unknown(name))?;
        may_publish(channel, who, *uid, name)?;
        if !channel.entry().is_strict {
            let why = match channel.config.mode {
                Mode::Strict => "becomes strict with its next publisher: stop this one",
                Mode::Takeover => "is not strict: stop its publisher instead, or make it strict",
            };
            return Err(Refused::new(RefusalCode::BadRequest, format!("channel {name:?} {why}")));
        }
        let cut = if channel.is_lost() { channel.cut_of_lost() } else { Cut::Tail };
        // A publisher that lived before this daemon can still have the lock, and not be registered yet.
        let is_unregistered =
            channel.publisher.is_none() && channel.hosted().has_publisher().unwrap_or(false);
        if let Some(request) = channel.go_on(cut, &mut Observers { name, store, waker, events })? {
            return Ok(Some(request));
        }
        let from = channel.cut_off();
        let unknown = if is_unregistered { "taken from a publisher that has not registered yet" } else { "" };
        let detail = from.as_ref().map_or(unknown.to_owned(), |from| format!("taken from {}", from.who));
        events.tell("taken-over", Some(name), Some("publisher"), Some(who), &detail);
        if let Some(Attached { who: from, .. }) = from {
            let detail =
                format!("the channel was taken over by {who}; nobody receives what it still publishes");
            events.tell("cut-off", Some(name), Some("publisher"), Some(&from), &detail);
        }
        Ok(None)
    }

    /// Restores the names of all charters. Returns the channels whose charters have lost their names for good since the last call. Call
    /// this regularly, because somebody might remove the files, which the next daemon needs.
    ///
    /// # Errors
    /// If the directory of the charters cannot be made or examined.
    pub fn renew_charters(&mut self) -> anyhow::Result<Vec<String>> {
        let Self { channels, charters, .. } = self;
        charters.renew(channels.iter().map(|(name, channel)| (name.as_str(), &channel.charter)))
    }

    /// Reports boards that have no room for a key, or no room for a message. Each of the two is reported once per generation. Call this
    /// regularly.
    pub fn tell_of_boards(&mut self) {
        for (name, channel) in &mut self.channels {
            channel.tell_of_board(name, &self.events);
        }
    }

    /// Tells readers when the publisher that they watch has died, once for each death. Only a publisher's lock shows that the publisher has
    /// died. The lock can be released after the publisher's connection has ended, or while the publisher has no connection. So call this
    /// regularly.
    pub fn tell_deaths(&mut self) {
        self.channels.values_mut().chain(self.retired.values_mut()).for_each(Channel::tell_death);
    }

    /// Removes the attachment of a connection. Returns whether it was the attachment of a publisher, which might have died.
    pub fn detach(&mut self, id: ConnectionId) -> bool {
        self.waker.forget(id);
        let mut is_publisher = false;
        for (name, channel) in self.channels.iter_mut().chain(&mut self.retired) {
            if let Some(Attached { who, .. }) = channel.let_go(id) {
                let orphaned = channel.dead_publisher().is_some();
                let detail = if orphaned { "left without closing the channel" } else { "" };
                self.events.tell("detached", Some(name), Some("publisher"), Some(&who), detail);
                is_publisher = true;
                channel.tell_death();
            }
            if let Some(reader) = channel.readers.remove(&id) {
                self.events.tell("detached", Some(name), Some("reader"), Some(&reader.who), "");
            }
        }
        let retired = self.retired.len();
        self.retired.retain(|_, channel| channel.is_in_use());
        if self.retired.len() < retired {
            self.sweep_gates();
        }
        is_publisher
    }

    /// Reports the channels that `who` may read. If `only` names a channel, reports only this one.
    ///
    /// # Errors
    /// [`Refused`] if the channel does not exist or `who` may not read it.
    pub fn report(&self, who: &Identity, only: Option<&str>) -> Result<Vec<ChannelStatus>, Refused> {
        if let Some(name) = only {
            return Ok(vec![self.status(self.readable(who, name)?)]);
        }
        let may_read = |channel: &&Channel| channel.may_read(who, self.uid);
        Ok(self.channels.values().filter(may_read).map(|channel| self.status(channel)).collect())
    }

    /// Reports all channels, without a check of access.
    pub fn report_all(&self) -> Vec<ChannelStatus> {
        self.channels.values().map(|channel| self.status(channel)).collect()
    }

    /// A channel with its gates and readers.
    fn status(&self, channel: &Channel) -> ChannelStatus {
        ChannelStatus { gates: self.gates.of(channel), ..channel.status() }
    }

    /// Returns all channels with the counts of their reader pages, for metrics.
    pub fn measure(&self) -> Vec<Measured> {
        let pages = |channel: &Channel| {
            let readers = channel.shown();
            readers.filter_map(|reader| Some((reader.who.process(), reader.page.stats()?))).collect()
        };
        self.channels
            .values()
            .map(|channel| {
                let gates = self.gates.of(channel);
                let status = ChannelStatus { gates, ..channel.status_without_readers() };
                Measured { status, readers: pages(channel) }
            })
            .collect()
    }

    /// Keeps publishers away from a closed channel while the result lives. Returns `None` if the channel is not closed or does not exist.
    pub fn hold(&self, name: &str) -> Option<Hold> {
        let channel = self.channels.get(name)?;
        let is_received = self.received.contains_key(name);
        channel
            .hold(is_received)
            .inspect_err(|e| tracing::error!(channel = name, "cannot take its lock: {e}"))
            .ok()?
    }

    /// Whether a channel's publisher has ended, but its connection still exists.
    pub fn is_left(&self, name: &str) -> bool {
        self.channels.get(name).is_some_and(Channel::is_left)
    }

    /// Whether a program might attach again to the next daemon. This is so if a program is attached now, or if the memory of a channel is
    /// lost: a program might still have this memory. Lost memory counts only if it might have messages.
    pub fn is_needed(&self) -> bool {
        let goes_on = |entry: Entry| entry.first > 1 && !fault!("memory_without_a_publisher_is_forgotten");
        let is_in_use = |entry: Entry| entry.is_granted || goes_on(entry);
        let holds_messages = |channel: &Channel| channel.is_lost() && is_in_use(channel.entry());
        let is_needed = |channel: &Channel| {
            channel.is_in_use() || holds_messages(channel) && !fault!("late_comers_are_forgotten")
        };
        self.channels.values().any(is_needed)
    }
}

fn attached(is_back: bool) -> &'static str {
    if is_back { "reattached" } else { "attached" }
}

fn may_publish(channel: &Channel, who: &Identity, uid: u32, name: &str) -> Result<(), Refused> {
    match who.is_named_by(&channel.config.publishers, uid) {
        true => Ok(()),
        false => Err(Refused::new(RefusalCode::Denied, format!("{who} may not publish on {name:?}"))),
    }
}

fn unknown(name: &str) -> Refused {
    let why = format!("no channel {name:?}: add it to the configuration and reload");
    Refused::new(RefusalCode::UnknownChannel, why)
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> Refused {
    move |e| Refused::failed(what, &e)
}
