//! One channel: its charter, its memory, the programs attached to it, and its move to other memory.
//! The registry checks access before it calls this module. `may_read` is a part of that check.

use super::attached::Attached;
use super::memory::next_stream_ns;
use super::{After, Memory, MemoryRequest, Notice, Refused, failed};
use crate::config::{ChannelConfig, Mode};
use crate::server::access::ConnectionId;
use crate::server::access::Identity;
use crate::server::events::Events;
use crate::server::store::Store;
use crate::server::waker::Waker;
use shmcast::control::{Generation, RefusalCode, Response};
use shmcast::hosting::{Cut, Entry, Hold, HostedCharter, HostedPage, HostedSegment, fault};
use shmcast::{ChannelStatus, Header, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use tokio::sync::mpsc::UnboundedSender;

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) config: ChannelConfig,
    pub(super) charter: HostedCharter,
    /// The segment that the charter names. `None` if this segment was lost with the earlier daemon, and no attached program has passed it
    /// to this daemon yet.
    current: Option<HostedSegment>,
    /// Memory that was made for the next generation. A channel without current memory always has a spare.
    spare: Option<Memory>,
    /// The descriptors of the spare for each reader, if [`ready`](Self::ready) has opened them.
    opened: Option<Vec<[File; 2]>>,
    /// The next sequence in the channel's journal. It has a value only if the journal has a clean end and the channel's memory is lost.
    pub(super) clean: Option<u64>,
    pub(super) publisher: Option<Attached>,
    /// Further programs that were let in as publishers while the lock was free. The lock decides which of them publishes.
    pub(super) rivals: Vec<Attached>,
    pub(super) readers: BTreeMap<ConnectionId, Reader>,
    /// Generation and epoch of the last publisher whose death was reported to readers.
    mourned: Option<Death>,
    /// The generation in which the board was last reported as full, and the generation in which a message was last reported as too large
    /// for the board.
    told_of_board: [u64; 2],
}

#[derive(Debug)]
pub(super) struct Reader {
    pub(super) who: Identity,
    pub(super) page: HostedPage,
    /// Whether tools do not show this reader. Such a reader reads on behalf of other programs.
    pub(super) is_hidden: bool,
    /// Whether the reader is to be told when the publisher dies.
    pub(super) watches: bool,
    pub(super) notices: UnboundedSender<Notice>,
    /// The gates whose pages this daemon lent to the connection.
    pub(super) gates: BTreeSet<String>,
}

/// A publisher that died without closing its channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Death {
    /// The generation of the channel's memory.
    pub(super) generation: u64,
    pub(super) epoch: u64,
}

impl Reader {
    /// Makes a reader that has no gate.
    pub(super) fn new(
        who: &Identity,
        page: HostedPage,
        is_hidden: bool,
        watches: bool,
        notices: &UnboundedSender<Notice>,
    ) -> Self {
        let (who, notices) = (who.clone(), notices.clone());
        Self { who, page, is_hidden, watches, notices, gates: BTreeSet::new() }
    }

    /// If this reader watches the publisher, tells the reader that the publisher has died.
    pub(super) fn tell_death(&self, Death { generation, epoch }: Death) {
        if self.watches {
            let reply = Response::PublisherGone { generation, epoch };
            // A reader that has hung up needs no notice.
            let _ = self.notices.send(Notice { reply, descriptors: Vec::new() });
        }
    }
}

/// The channel's name, and the parts of the daemon that learn of its changes.
pub(super) struct Observers<'a> {
    pub(super) name: &'a str,
    pub(super) store: &'a mut Store,
    pub(super) waker: &'a Waker,
    pub(super) events: &'a Events,
}

impl Channel {
    /// Makes a channel in `current`, the segment that its charter names. Without `current`, the channel moves to `spare` as soon as a new
    /// program needs it.
    pub(super) fn new(
        config: ChannelConfig,
        charter: HostedCharter,
        current: Option<HostedSegment>,
        spare: Option<Memory>,
    ) -> Self {
        let readers = BTreeMap::new();
        charter.set_journal(config.journal.is_some());
        Self {
            config,
            charter,
            current,
            spare,
            opened: None,
            clean: None,
            publisher: None,
            rivals: Vec::new(),
            readers,
            mourned: None,
            told_of_board: [0; 2],
        }
    }

    /// Takes over a new configuration.
    pub(super) fn configure(&mut self, config: &ChannelConfig) {
        self.charter.set_journal(config.journal.is_some());
        self.config = config.clone();
    }

    /// Returns the current segment, or the spare if there is no current segment.
    pub(super) fn hosted(&self) -> &HostedSegment {
        let hosted = self.current.as_ref().or_else(|| self.spare.as_ref().map(|spare| &spare.hosted));
        hosted.expect("a channel without current memory has a spare")
    }

    /// Whether the segment that the charter names was lost with the earlier daemon, and no attached program has passed it to this daemon.
    pub(super) fn is_lost(&self) -> bool {
        self.current.is_none()
    }

    /// Takes memory that was made for the next generation.
    pub(super) fn stock(&mut self, memory: Memory) {
        self.spare = Some(memory);
    }

    pub(super) fn entry(&self) -> Entry {
        self.charter.current().copied().unwrap_or_default()
    }

    pub(super) fn generation(&self) -> Generation {
        let none = Generation { generation: 0, first: 1, restarted: 0, strict: false, journal: false };
        let generation = self.charter.generation().unwrap_or(none);
        Generation { journal: self.config.journal.is_some(), ..generation }
    }

    /// Whether `who` may read. A user who may publish may also read.
    pub(super) fn may_read(&self, who: &Identity, daemon_uid: u32) -> bool {
        let lists = [&self.config.subscribers, &self.config.publishers];
        lists.into_iter().any(|list| who.is_named_by(list, daemon_uid))
    }

    /// Whether the segment of an attached program is the channel's current segment. If the channel's memory was lost with the earlier
    /// daemon, the program's segment becomes the current segment again.
    ///
    /// # Errors
    /// [`RefusalCode::BadRequest`] for memory that no daemon of this user made. [`RefusalCode::Failed`] if the memory cannot be examined.
    pub(super) fn recognizes(
        &mut self,
        [segment, lock]: [&File; 2],
        told: &mut Observers<'_>,
    ) -> Result<bool, Refused> {
        if !HostedSegment::is_of_our_making(segment) {
            let why = "the segment handed back is not of this daemon's making";
            return Err(Refused::new(RefusalCode::BadRequest, why));
        }
        let shown = match HostedSegment::adopt(told.name, &self.entry(), segment, lock) {
            Ok(Some(shown)) => shown,
            Ok(None) => return Ok(false),
            Err(_) if fault!("what_cannot_be_looked_at_is_foreign") => return Ok(false),
            Err(e) => return Err(Refused::new(RefusalCode::Failed, e.to_string())),
        };
        if self.is_lost() {
            if self.config.mlock {
                lock_again(told.name, &shown);
            }
            if let Err(e) = told.store.keep(&shown) {
                tracing::error!(channel = told.name, "the service manager does not keep its memory: {e}");
            }
            (self.current, self.spare, self.clean) = (Some(shown), None, None);
            self.tell_differences(told.events);
        }
        Ok(true)
    }

    /// Whether the channel's memory is as its configuration asks.
    pub(super) fn is_as_configured(&self) -> bool {
        self.fits(self.hosted(), self.entry().is_strict)
    }

    /// Returns the settings that the channel's memory does not have yet.
    pub(super) fn differences(&self) -> Vec<&'static str> {
        let mut differences = self.hosted().differences(&self.config.spec());
        differences.extend(((self.config.mode == Mode::Strict) != self.entry().is_strict).then_some("mode"));
        differences
    }

    /// Returns how to cut off a generation whose memory this daemon does not have. Programs might still use this memory. On a strict
    /// channel, the messages of the generation become invalid, because its publisher might still write to the memory.
    pub(super) fn cut_of_lost(&self) -> Cut {
        if self.entry().is_strict { Cut::Void } else { Cut::Lost }
    }

    /// Prepares the channel for a new publisher. Returns a request if this needs memory that is not made yet.
    pub(super) fn make_way(
        &mut self,
        anew: bool,
        told: &mut Observers<'_>,
    ) -> Result<Option<MemoryRequest>, Refused> {
        if self.is_lost() {
            return self.go_on(self.cut_of_lost(), told);
        }
        if self.hosted().has_publisher().map_err(failed("look at the writer lock"))? {
            let holder = match &self.publisher {
                Some(holder) => format!("publisher {}", holder.who),
                None => "a publisher that has not registered yet".to_owned(),
            };
            let why = format!("channel {:?} is in use by {holder}: stop it first", told.name);
            return Err(Refused::new(RefusalCode::Busy, why));
        }
        // On a strict channel each new publisher gets its own generation.
        let entry = self.entry();
        match anew {
            true => self.go_on(Cut::Restart, told),
            false if entry.is_strict && entry.is_granted => self.go_on(Cut::Tail, told),
            false if !self.is_as_configured() => self.go_on(Cut::Tail, told),
            false => Ok(None),
        }
    }

    fn fits(&self, hosted: &HostedSegment, is_strict: bool) -> bool {
        let spec = self.config.spec();
        hosted.differences(&spec).is_empty()
            && (spec.is_strict == is_strict || fault!("kept_memory_forgets_its_mode"))
    }

    /// Returns the channel's journal, if the channel has one. If the channel's memory is lost, the channel continues with a sequence that
    /// is greater than every sequence in this journal.
    pub(super) fn after(&self) -> Option<After> {
        let journal = self.config.journal.as_ref()?;
        Some(After { dir: journal.dir.clone(), clean: self.clean })
    }

    /// Continues the channel in new memory, as [`go_on_after`](Self::go_on_after) does. If the memory of a channel with a journal is lost,
    /// the channel's next sequence is greater than every sequence in the journal.
    pub(super) fn go_on(
        &mut self,
        cut: Cut,
        told: &mut Observers<'_>,
    ) -> Result<Option<MemoryRequest>, Refused> {
        let after = match cut {
            Cut::Lost | Cut::Void => self.after(),
            Cut::Tail | Cut::Restart => None,
        };
        // If the ring is damaged, the channel cannot continue after its last message. So its sequences begin again, in another stream.
        let cut = if cut == Cut::Tail && !self.has_tail() { Cut::Void } else { cut };
        self.go_on_after(cut, after, told)
    }

    /// Whether the requested memory must still be made. It need not be made if the spare fits the request. Making memory that continues
    /// after a journal writes a record into the journal, so such memory is made only while the channel's memory is lost.
    pub(super) fn needs(&self, request: &MemoryRequest) -> bool {
        let has_it = self.has_spare(request.stream.is_some(), request.after.is_some());
        let is_due = request.after.is_none() || self.is_lost();
        is_due && !has_it
    }

    /// Whether new memory can continue the sequences of the current memory. It cannot if the current memory is lost or damaged.
    fn has_tail(&self) -> bool {
        self.charter.has_tail(self.current.as_ref())
    }

    /// Whether the spare fits the configuration and has the value `is_after_journal`. If `continues` is true, the spare must also have the
    /// current stream; if it is false, the spare must have a later stream.
    fn has_spare(&self, continues: bool, is_after_journal: bool) -> bool {
        let entry = self.entry();
        let is_right = |made: &Header| match continues {
            true => made.stream.is(entry.stream) && made.created_ns == entry.created_ns,
            false => made.created_ns >= next_stream_ns(Some(&entry)),
        };
        self.spare.as_ref().is_some_and(|spare| {
            self.fits(&spare.hosted, self.config.mode == Mode::Strict)
                && is_right(spare.hosted.header())
                && spare.is_after_journal == is_after_journal
        })
    }

    /// Continues the channel in new memory. If `after` has a journal, the next sequence is greater than every sequence in the journal.
    /// Returns a request if no suitable memory is made yet.
    pub(super) fn go_on_after(
        &mut self,
        cut: Cut,
        after: Option<After>,
        told: &mut Observers<'_>,
    ) -> Result<Option<MemoryRequest>, Refused> {
        // With `Cut::Tail`, the new segment has the channel's present stream. Otherwise the request is for the next stream.
        let entry = self.entry();
        if !self.has_spare(cut == Cut::Tail, after.is_some()) {
            let spec = self.config.spec();
            return Ok(Some(match cut {
                Cut::Tail => {
                    MemoryRequest { spec, stream: Some(entry.stream), created_ns: entry.created_ns, after }
                }
                _ => MemoryRequest::of_next_stream(spec, Some(&entry), after),
            }));
        }
        self.move_to_spare(cut, told)?;
        Ok(None)
    }

    /// The segment that was made for the next generation.
    pub(super) fn spare(&self) -> Option<&Memory> {
        self.spare.as_ref()
    }

    /// Replaces the configuration and the spare. Returns the previous configuration and the previous spare.
    pub(super) fn refit(
        &mut self,
        config: &ChannelConfig,
        spare: Option<Memory>,
    ) -> (ChannelConfig, Option<Memory>) {
        let before = self.config.clone();
        self.configure(config);
        self.opened = None;
        (before, std::mem::replace(&mut self.spare, spare))
    }

    /// Does the fallible steps of a move to the spare segment. After this call, no program may attach or leave before the move.
    pub(super) fn ready(&mut self, store: &mut Store) -> std::io::Result<()> {
        if let Some(spare) = &self.spare {
            self.opened = Some(ready(&self.readers, &spare.hosted, store)?);
        }
        Ok(())
    }

    /// Moves the channel to the spare segment. All steps that can fail come first. Then a single write to the charter makes the move, and
    /// readers are notified.
    fn move_to_spare(&mut self, cut: Cut, told: &mut Observers<'_>) -> Result<(), Refused> {
        let Self { config, charter, current, spare, opened, readers, .. } = self;
        let Some(Memory { hosted: next, trouble, .. }) = spare else { return Ok(()) };
        if let Some(trouble) = trouble.take() {
            told.events.tell("journal-failed", Some(told.name), None, None, &trouble);
        }
        let mut descriptors = opened.take();
        let moved = charter.go_on(current.as_ref(), next, &config.spec(), cut, || {
            if descriptors.is_none() {
                descriptors = Some(ready(readers, next, told.store)?);
            }
            Ok(())
        });
        moved.map_err(failed("make the next segment ready"))?;
        told.waker.watch(readers.keys(), next);
        self.clean = None;
        if let Some(before) = std::mem::replace(current, spare.take().map(|spare| spare.hosted)) {
            told.store.forget(&before);
        }
        let generation = self.generation();
        // A first generation can continue a journal. No reader has used the channel before, so this is no restart.
        let is_first = generation.generation == 1 && generation.first > 1;
        let is_restart = generation.restarted == generation.generation && !is_first;
        if !(is_restart && fault!("restart_tells_no_reader")) {
            for (reader, descriptors) in self.readers.values().zip(descriptors.unwrap_or_default()) {
                let notice = Notice { reply: Response::Moved(generation), descriptors: descriptors.into() };
                // A reader that has hung up needs no notice.
                let _ = reader.notices.send(notice);
            }
        }
        if generation.generation > 1 || generation.first > 1 {
            let what = if is_restart { "restarted" } else { "moved" };
            let detail = format!("generation {}, from sequence {}", generation.generation, generation.first);
            told.events.tell(what, Some(told.name), None, None, &detail);
        }
        Ok(())
    }

    /// If the publisher has died, tells the readers that watch the publisher, once for each death. If any reader watches the publisher,
    /// this call costs a system call.
    pub(super) fn tell_death(&mut self) {
        if !self.readers.values().any(|reader| reader.watches) {
            return;
        }
        let Some(dead) = self.dead_publisher().filter(|dead| self.mourned != Some(*dead)) else { return };
        self.mourned = Some(dead);
        self.readers.values().for_each(|reader| reader.tell_death(dead));
    }

    /// Reports that the board has no room for a key, or no room for a message. Each of the two is reported once per generation.
    pub(super) fn tell_of_board(&mut self, name: &str, events: &Events) {
        let generation = self.entry().generation;
        let Some((counters, spec)) = self.hosted().board_counters().zip(self.hosted().board()) else {
            return;
        };
        let (keys, value) = spec.room();
        let full = format!("{keys} keys are on the board, and others find no room: raise board.keys");
        let large = format!("messages of more than {value} B are not on the board: raise board.value");
        let news = [("board-full", counters.refused, full), ("board-too-large", counters.too_large, large)];
        for ((event, count, detail), told) in news.into_iter().zip(&mut self.told_of_board) {
            if count > 0 && *told != generation {
                *told = generation;
                events.tell(event, Some(name), None, None, &detail);
            }
        }
    }

    /// Returns the publisher that died without closing the channel, if no other publisher has followed.
    pub(super) fn dead_publisher(&self) -> Option<Death> {
        let entry = self.entry();
        let epoch = self.current.as_ref()?.dead_publisher(entry.epoch)?;
        Some(Death { generation: entry.generation, epoch })
    }

    /// Keeps publishers away while the result lives. Returns `None` if the channel is not closed, if its memory is lost, or if a publisher
    /// is attached, because an attached publisher could take the lock at any time. A channel that a bridge receives need not be closed,
    /// because a bridge does not close the channel when it ends.
    pub(super) fn hold(&self, is_received: bool) -> std::io::Result<Option<Hold>> {
        match &self.current {
            Some(current) if self.publisher.is_none() => current.hold(self.entry().epoch, is_received),
            _ => Ok(None),
        }
    }

    /// Whether the publisher has released its lock, but its connection still exists.
    pub(super) fn is_left(&self) -> bool {
        self.publisher.is_some()
            && self.current.as_ref().is_some_and(|it| it.has_publisher().is_ok_and(|has| !has))
    }

    pub(super) fn is_in_use(&self) -> bool {
        self.publisher.is_some() || !self.rivals.is_empty() || !self.readers.is_empty()
    }

    /// The number of attached programs: the publisher and each reader. The readers of process `own` do not count.
    pub(super) fn programs_apart(&self, own: u32) -> usize {
        let readers = self.readers.values().filter(|it| it.who.pid != own).count();
        usize::from(self.publisher.is_some()) + self.rivals.len() + readers
    }

    /// The readers that tools are shown.
    pub(super) fn shown(&self) -> impl Iterator<Item = &Reader> {
        self.readers.values().filter(|reader| !reader.is_hidden)
    }

    pub(super) fn status_without_readers(&self) -> ChannelStatus {
        let mut status = self.hosted().status();
        let entry = self.entry();
        let mode = if entry.is_strict { Mode::Strict } else { Mode::Takeover };
        // Labels are only shown, so new labels apply immediately. The memory keeps the labels with which it was made.
        status.labels = self.config.spec().labels;
        status.mode = Some(mode.to_string());
        status.generation = Some(entry.generation);
        status.publisher = self.publisher.as_ref().map(|publisher| publisher.who.process());
        // New memory that continues a channel looks orphaned until its first publisher opens it, although no publisher has died.
        if status.state == "orphaned" && self.dead_publisher().is_none() {
            status.state = "new".to_owned();
        }
        status
    }

    pub(super) fn status(&self) -> ChannelStatus {
        let mut status = self.status_without_readers();
        let next = status.next_sequence;
        status.readers =
            self.shown().filter_map(|reader| reader.page.status(reader.who.process(), next)).collect();
        status
    }
}

/// Does the fallible steps of a move: opens the segment `next` for each reader, and puts it into the store.
fn ready(
    readers: &BTreeMap<ConnectionId, Reader>,
    next: &HostedSegment,
    store: &mut Store,
) -> std::io::Result<Vec<[File; 2]>> {
    let opened = readers.values().map(|_| next.for_reader()).collect::<Result<_, _>>()?;
    store.keep(next)?;
    Ok(opened)
}

/// Locks memory into RAM that a program passed to this daemon. For gigabytes this takes seconds, so it is done on a thread of its own.
fn lock_again(name: &str, hosted: &HostedSegment) {
    let (channel, lock) = (name.to_owned(), hosted.lock_again());
    let thread = std::thread::Builder::new().name("lock-memory".into());
    let started = thread.spawn(move || warn_of_refused_steps(&channel, &lock()));
    if let Err(e) = started {
        tracing::warn!(channel = name, "memory is not locked again: {e}");
    }
}

pub(super) fn warn_of_refused_steps(name: &str, steps: &[Step]) {
    for step in steps.iter().filter(|step| step.result.is_err()) {
        tracing::warn!(channel = name, "memory: {step}");
    }
}
