//! Applies a configuration to the channels, at the start and at a reload. An error leaves all channels unchanged.

use super::channel::{Channel, Observers, warn_of_refused_steps};
use super::memory::reopen;
use super::{After, Memory, MemoryRequest, Registry};
use crate::config::{ChannelConfig, Config};
use crate::server::events::Events;
use crate::server::store::Kept;
use anyhow::Context;
use shmcast::hosting::{Cut, Entry, HostedCharter, HostedSegment, fault};
use std::collections::BTreeMap;

/// Memory for channels that do not exist yet, by their names.
pub type Made = BTreeMap<String, Memory>;

/// The changes that a reload made.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Channels that were made.
    pub added: Vec<String>,
    /// Channels that were removed.
    pub removed: Vec<String>,
    /// Channels whose memory or gates differ from the configuration, each with the settings that differ. Their next publisher gets the new
    /// configuration.
    pub kept: Vec<String>,
}

/// A channel that a reload adds, before any program can attach to it.
struct Fresh {
    channel: Channel,
    /// The configuration and the spare that the channel had before; `None` if it did not exist.
    before: Option<(ChannelConfig, Option<Memory>)>,
}

impl Registry {
    /// Returns requests for the memory of channels that `config` names and that do not exist yet.
    ///
    /// # Errors
    /// If the previous charter of such a channel cannot be read.
    pub fn missing(&self, config: &Config) -> anyhow::Result<Vec<(String, MemoryRequest)>> {
        let missing = config.channels.iter().filter(|wanted| !self.channels.contains_key(&wanted.name));
        let request = |wanted: &ChannelConfig| {
            let before = match self.retired.get(&wanted.name) {
                Some(channel) => Some(channel.entry()),
                None => self.charters.find(&wanted.name)?.and_then(|charter| charter.current().copied()),
            };
            let request = MemoryRequest::of_next_stream(wanted.spec(), before.as_ref(), after(wanted));
            Ok((wanted.name.clone(), request))
        };
        missing.map(request).collect()
    }

    /// Makes memory for channels. This takes time in proportion to their capacities, and changes no channel.
    ///
    /// # Errors
    /// The first segment that could not be made. In this case, no journal names the memory that was made before.
    pub fn make_missing(missing: Vec<(String, MemoryRequest)>) -> anyhow::Result<Made> {
        let mut made = Made::new();
        for (name, request) in missing {
            match request.make() {
                Ok(memory) => made.insert(name, memory),
                Err(e) => {
                    made.values().for_each(Memory::give_back);
                    return Err(e.into());
                }
            };
        }
        Ok(made)
    }

    /// Makes the channels of `config`. A channel continues in the memory of an earlier daemon, if the service manager kept it. Call this
    /// once, at the start.
    ///
    /// # Errors
    /// The first channel that could not be made, or whose kept memory cannot be opened. Such memory is not replaced, because it has the
    /// channel's messages.
    pub fn start(&mut self, config: &Config, kept: &[Kept]) -> anyhow::Result<()> {
        let mut is_used = vec![false; kept.len()];
        for wanted in &config.channels {
            let charter = self.charters.of(&wanted.name)?;
            let found = match charter.current() {
                Some(entry) => adopt(&wanted.name, entry, kept).with_context(|| {
                    format!(
                        "the memory of channel {:?} was kept over the restart and cannot be opened: it stays kept, with all its \
                         messages; give the daemon more memory, address space or descriptors, and start it again",
                        wanted.name
                    )
                })?,
                None => None,
            };
            // Programs might still use memory that the channel had before. So a journal with a clean end must record now that the channel
            // continues.
            let clean = charter.current().zip(wanted.journal.as_ref());
            let clean = clean.and_then(|(entry, journal)| reopen(&journal.dir, &wanted.name, entry.stream));
            let channel = match found {
                Some((at, hosted)) => {
                    is_used[at] = true;
                    if wanted.mlock {
                        warn_of_refused_steps(&wanted.name, &hosted.lock_again()());
                    }
                    let channel = Channel::new(wanted.clone(), charter, Some(hosted), None);
                    channel.tell_differences(&self.events);
                    channel
                }
                None => {
                    // A spare does not continue the journal, because it is not known yet whether the channel needs the spare.
                    let after = if charter.current().is_none() { after(wanted) } else { None };
                    let request = MemoryRequest::of_next_stream(wanted.spec(), charter.current(), after);
                    let mut channel = self.begin(wanted, charter, request.make()?)?;
                    channel.clean = clean;
                    channel
                }
            };
            self.channels.insert(wanted.name.clone(), channel);
        }
        for (kept, _) in kept.iter().zip(is_used).filter(|(_, is_used)| !is_used) {
            tracing::warn!(id = kept.id, "kept from before, but no channel lives in it: given up");
            self.store.forget_id(&kept.id);
        }
        self.note(config);
        Ok(())
    }

    /// Applies a configuration. Adds channels that do not exist yet, with memory from `made`. Removes channels that `config` does not name.
    /// Gives the other channels their new settings. New settings of the memory apply from the next publisher on.
    ///
    /// # Errors
    /// The step that failed. In this case, nothing has changed.
    pub fn apply(&mut self, config: &Config, mut made: Made) -> anyhow::Result<Changes> {
        let mut changes = Changes::default();
        let mut fresh = Vec::new();
        for wanted in &config.channels {
            if self.channels.contains_key(&wanted.name) {
                continue;
            }
            let readied = self.make_ready(wanted, made.remove(&wanted.name), &mut fresh);
            if let Err(e) = readied {
                self.take_back(fresh);
                made.values().for_each(Memory::give_back);
                return Err(e);
            }
        }
        for Fresh { mut channel, before } in fresh {
            let name = channel.config.name.clone();
            let cut = if before.is_some() { Cut::Restart } else { channel.cut_of_lost() };
            self.go_on(&mut channel, cut)?;
            channel.cut_off();
            self.channels.insert(name.clone(), channel);
            changes.added.push(name);
        }
        let is_gone = |name: &String| !config.channels.iter().any(|wanted| wanted.name == *name);
        changes.removed = self.channels.keys().filter(|name| is_gone(name)).cloned().collect();
        for name in &changes.removed {
            self.retire(name);
        }
        for wanted in &config.channels {
            let Some(channel) = self.channels.get_mut(&wanted.name) else { continue };
            channel.configure(wanted);
            let mut differences = channel.differences();
            differences.extend(self.gates.differ(channel).then_some("gate"));
            if !differences.is_empty() {
                changes.kept.push(format!("{} ({})", wanted.name, differences.join(", ")));
            }
        }
        self.note(config);
        Ok(changes)
    }

    /// Does the fallible steps of adding a channel. If the channel was removed and still has attached programs, it is added again: its
    /// publisher is cut off, and its sequences begin at 1 again, or continue after its journal.
    fn make_ready(
        &mut self,
        wanted: &ChannelConfig,
        memory: Option<Memory>,
        fresh: &mut Vec<Fresh>,
    ) -> anyhow::Result<()> {
        let memory = memory.with_context(|| format!("no memory for {:?}", wanted.name))?;
        let charter = self.charters.of(&wanted.name).inspect_err(|_| memory.give_back())?;
        let retired = self.retired.remove(&wanted.name).filter(|_| !fault!("added_again_is_a_stranger"));
        let mut added = match retired {
            Some(mut channel) => {
                let before = channel.refit(wanted, Some(memory));
                Fresh { channel, before: Some(before) }
            }
            None => {
                warn_of_refused_steps(&wanted.name, memory.hosted.preparation());
                Fresh { channel: Channel::new(wanted.clone(), charter, None, Some(memory)), before: None }
            }
        };
        let ready = added.channel.ready(&mut self.store);
        fresh.push(added);
        ready.with_context(|| format!("make the memory of channel {:?} ready", wanted.name))
    }

    /// Undoes [`make_ready`](Self::make_ready).
    fn take_back(&mut self, fresh: Vec<Fresh>) {
        for Fresh { mut channel, before } in fresh {
            if let Some(spare) = channel.spare() {
                self.store.forget(&spare.hosted);
                spare.give_back();
            }
            // If the channel existed before, programs are still attached to it. So it returns to the removed channels.
            if let Some((config, spare)) = before {
                channel.refit(&config, spare);
                self.retired.insert(config.name, channel);
            }
        }
    }

    /// Applies settings that do not belong to a single channel: those of the waker, and the list of received channels.
    fn note(&mut self, config: &Config) {
        self.waker.reload(config.waker.clone());
        let received = config.bridges.iter().filter(|bridge| bridge.receive.is_some());
        self.received = received.map(|bridge| (bridge.channel.clone(), bridge.title().to_owned())).collect();
        self.sweep_gates();
    }

    /// Removes the pages of gates of channels that are neither configured nor in use.
    pub(super) fn sweep_gates(&self) {
        let Self { channels, retired, gates, .. } = self;
        gates.sweep(|name| channels.contains_key(name) || retired.contains_key(name));
    }

    /// Makes a channel in new memory. If the channel is new, it begins in this memory immediately. If the channel is from an earlier
    /// daemon, the memory stays a spare, because a program might still pass the earlier memory to this daemon.
    fn begin(
        &mut self,
        wanted: &ChannelConfig,
        charter: HostedCharter,
        memory: Memory,
    ) -> anyhow::Result<Channel> {
        warn_of_refused_steps(&wanted.name, memory.hosted.preparation());
        let is_first = charter.current().is_none();
        let mut channel = Channel::new(wanted.clone(), charter, None, Some(memory));
        if is_first {
            let cut = channel.cut_of_lost();
            self.go_on(&mut channel, cut)?;
        }
        Ok(channel)
    }

    fn go_on(&mut self, channel: &mut Channel, cut: Cut) -> anyhow::Result<()> {
        let Self { store, waker, events, .. } = self;
        let name = channel.config.name.clone();
        let after = channel.after();
        let needed = channel.go_on_after(cut, after, &mut Observers { name: &name, store, waker, events });
        match needed.map_err(|refused| anyhow::anyhow!("channel {name:?}: {}", refused.why))? {
            None => Ok(()),
            Some(_) => anyhow::bail!(
                "channel {name:?} was configured otherwise while its memory was made: reload again"
            ),
        }
    }

    /// Removes a channel. Attached programs keep working with each other, and no new program can attach.
    fn retire(&mut self, name: &str) {
        let Some(channel) = self.channels.remove(name) else { return };
        self.store.forget(channel.hosted());
        let detail = match channel.programs_apart(std::process::id()) {
            0 => "no longer configured".to_owned(),
            programs => format!(
                "no longer configured; {programs} programs are still attached and go on among themselves, and no other \
                 program can attach: if the file was not complete, add the channel again, and it begins anew for them"
            ),
        };
        self.events.tell("removed", Some(name), None, None, &detail);
        if channel.is_in_use() {
            self.retired.insert(name.to_owned(), channel);
        }
    }
}

impl Channel {
    /// Reports the settings that the memory of an earlier daemon does not have.
    pub(super) fn tell_differences(&self, events: &Events) {
        let differences = self.differences().join(", ");
        if !differences.is_empty() {
            let detail = format!("kept as made until the next publisher: {differences}");
            events.tell("kept-as-made", Some(&self.config.name), None, None, &detail);
        }
    }
}

/// Returns the journal after which the sequences of a new channel continue.
fn after(wanted: &ChannelConfig) -> Option<After> {
    wanted.journal.as_ref().map(|journal| After { dir: journal.dir.clone(), clean: None })
}

/// Finds in `kept` the segment that `entry` names. Returns the segment with its index.
fn adopt(name: &str, entry: &Entry, kept: &[Kept]) -> anyhow::Result<Option<(usize, HostedSegment)>> {
    for (at, Kept { segment, lock, .. }) in kept.iter().enumerate() {
        if let Some(hosted) = HostedSegment::adopt(name, entry, segment, lock)? {
            return Ok(Some((at, hosted)));
        }
    }
    Ok(None)
}
