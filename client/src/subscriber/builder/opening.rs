//! Opens a subscriber: gets its segment, its reader page and its first place in the ring.

use super::SubscriberBuilder;
use crate::attach::connect::{Client, Conversation};
use crate::attach::keeper::{Attachment, keeper};
use crate::attach::park::{self, Parking};
use crate::clock::Clock;
use crate::directory::check_name;
use crate::error::{ChannelError, SchemaId};
use crate::gate::{GateError, GateName, HeldGate, NotHeld};
use crate::journal::JournalError;
use crate::subscriber::board::Joining;
use crate::subscriber::contention::Contention;
use crate::subscriber::following::seek;
use crate::subscriber::hosted::Hosted;
use crate::subscriber::named::Named;
use crate::subscriber::origin::{History, Origin, Past};
use crate::subscriber::page::{NoPage, Page, show_page};
use crate::subscriber::{Buffer, Doubt, Start, Subscriber, Watch};
use crate::wait::Wait;
use rustix::fs::OFlags;
use shmcast_layout::charter::Charter;
use shmcast_layout::control::{Request, Response};
use shmcast_layout::layout::header::{Header, LAZY_KEY, State};
use shmcast_layout::reader_page::ReaderPage;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::segment::{Access, Segment};
use shmcast_layout::sys::fork;
use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

impl SubscriberBuilder {
    /// Opens the subscriber if the channel exists and no process is removing it at this moment.
    pub(super) fn attach(&self) -> Result<Subscriber, ChannelError> {
        match &self.client {
            Some(client) => self.attach_by(client),
            None => self.attach_to_file(),
        }
    }

    fn attach_by(&self, client: &Client) -> Result<Subscriber, ChannelError> {
        // For an invalid name, a daemon answers that the channel is unknown, and a wait for the channel would never end. So the name is
        // checked here.
        check_name(&self.name).map_err(|why| ChannelError::Name { name: self.name.clone(), why })?;
        let keeper = keeper(client.socket())?;
        let mut conversation = Conversation::open(client.socket())?;
        let parks = self.wait == Wait::Park;
        let request = |resume| Request::Subscribe {
            channel: self.name.clone(),
            resume,
            park: parks,
            hidden: !self.page,
            watch: self.watch_publisher,
        };
        let path = PathBuf::from(format!("memfd:{}", self.name));
        let bell = if parks {
            Some(park::bell().map_err(ChannelError::os("make a bell for", &path))?)
        } else {
            None
        };
        let shown: Vec<BorrowedFd<'_>> = bell.iter().map(|(_, far)| far.as_fd()).collect();
        let (reply, [file, lock, page_file, charter_file]) = conversation.attach(&request(false), &shown)?;
        let Response::Subscribed(generation) = reply else { return Err(conversation.confused(&reply)) };
        let damaged = |source| ChannelError::Segment { path: path.clone(), source };
        let charter = Charter::open(&charter_file).map_err(damaged)?;
        let segment = Segment::open(&file, Access::Read).map_err(damaged)?;
        let mut subscriber = self.read(segment, |header, place| {
            let page = ReaderPage::create(&page_file, std::process::id(), self.role, header.uuid, place)
                .map_err(damaged)?;
            Ok(Some(Page { page, shown: None }))
        })?;
        let gate = self.gate_name()?.map(|name| self.borrow_gate(&mut conversation, name)).transpose()?;
        self.hold_gate(&mut subscriber, gate)?;
        let line = conversation.into_line()?;
        let mut shown = vec![file, lock, page_file];
        if let (Some((near, far)), Some(page)) = (bell, &subscriber.page) {
            subscriber.parking = Some(Parking::new(near, page.page.clone(), self.longest_nap));
            shown.push(far);
        }
        let attachment = Attachment::new(keeper, line, request(true), self.preparation, charter_file, shown);
        subscriber.watch = self.watch_publisher.then(|| Box::new(Watch::of_the_daemon()));
        let has_journal = charter.has_journal();
        let (mut origin, mut journal) = match &self.history {
            History::Auto => (None, Some(Origin::Daemon(client.clone(), self.name.clone()))),
            History::Never => (None, None),
            History::Dir(dir) => (Some(Origin::named(dir.clone(), true)), None),
            History::DirIfThere(dir) => (Some(Origin::named(dir.clone(), false)), None),
        };
        if has_journal {
            origin = origin.or(journal.take());
        }
        let next = VecDeque::new();
        subscriber.hosted = Some(Box::new(Hosted { attachment, charter, journal, generation, next }));
        subscriber.is_checked = subscriber.must_check();
        self.begin(&mut subscriber, origin)?;
        Ok(subscriber)
    }

    fn attach_to_file(&self) -> Result<Subscriber, ChannelError> {
        let not_found = || self.directory.not_found(&self.name);
        let private = |error| self.directory.explained(&self.name, error);
        let files = self.directory.files(&self.name).map_err(private)?;
        if self.wait == Wait::Park {
            let (name, dir) = (self.name.clone(), self.directory.path().to_owned());
            return Err(ChannelError::NoWaker { name, dir });
        }
        let files = files.ok_or_else(not_found)?;
        let file = files.segment(OFlags::RDONLY).map_err(private)?.ok_or_else(not_found)?;
        let watch = match self.watch_publisher {
            true => Some(Box::new(Watch::of_lock(files.lock_file()?))),
            false => None,
        };
        let stat = file.metadata().map_err(ChannelError::os("look at", files.segment_path()))?;
        let identity = (stat.dev(), stat.ino());
        let segment = Segment::open(&file, Access::Read)
            .map_err(|source| ChannelError::Segment { path: files.segment_path(), source })?;
        let mut refused = None;
        let mut subscriber = self.read(segment, |header, place| {
            match self.page.then(|| show_page(&files, self.role, header, place)) {
                None => Ok(None),
                Some(Ok(page)) => Ok(Some(page)),
                Some(Err(NoPage::Absent(_))) if !files.names_segment(identity) => Err(not_found()),
                Some(Err(NoPage::Failed(e))) => Err(e),
                Some(Err(NoPage::Refused(why) | NoPage::Absent(why))) => {
                    refused = Some(why);
                    Ok(None)
                }
            }
        })?;
        (subscriber.page_refused, subscriber.watch) = (refused, watch);
        let open_gate = |name| files.gate_page(&self.name, name).map(|page| (name, page));
        let gate = self.gate_name()?.map(open_gate).transpose()?;
        self.hold_gate(&mut subscriber, gate)?;
        subscriber.named = Some(Box::new(Named::new(files, identity)));
        let origin = match &self.history {
            // A conflating reader needs no journal.
            History::Auto if self.conflation.is_some() => None,
            History::Auto => {
                Origin::of_environment(&self.name, stat.uid()).map_err(|e| self.refused_journal(e))?
            }
            History::Never => None,
            History::Dir(dir) => Some(Origin::named(dir.clone(), true)),
            History::DirIfThere(dir) => Some(Origin::named(dir.clone(), false)),
        };
        self.begin(&mut subscriber, origin)?;
        Ok(subscriber)
    }

    /// Leaves out all options that concern receiving. It is for a program that only reads the board.
    pub(crate) fn receives_nothing(mut self) -> Self {
        (self.start, self.wait, self.history) = (Start::Latest, Wait::Yield, History::Never);
        (self.tags, self.conflation, self.gate) = (None, None, None);
        (self.page, self.watch_publisher, self.record_latency) = (false, false, false);
        self
    }

    /// Allocates the memory for reading the board. Returns `None` if this subscriber never reads a board.
    fn joining(&self, segment: &Segment) -> Result<Option<Box<Joining>>, ChannelError> {
        let is_wanted = self.start == Start::Board || self.conflation.is_some();
        if is_wanted && segment.board_spec().is_none() {
            return Err(ChannelError::NoBoard { name: self.name.clone() });
        }
        if is_wanted && self.tags.is_some() {
            return Err(ChannelError::BoardWithTags { name: self.name.clone() });
        }
        let begins_late = matches!(self.start, Start::Latest | Start::Board) || self.begins_in_ring;
        if self.conflation.is_some() && !begins_late {
            return Err(ChannelError::Conflation { name: self.name.clone() });
        }
        Ok(if is_wanted { Joining::new(segment, self.conflation) } else { None })
    }

    fn gate_refused(&self, why: GateError) -> ChannelError {
        let gate = self.gate.clone().unwrap_or_default();
        ChannelError::Gate { name: self.name.clone(), gate, why }
    }

    /// The name of the requested gate.
    fn gate_name(&self) -> Result<Option<GateName>, ChannelError> {
        self.gate.as_deref().map(|name| name.parse().map_err(|why| self.gate_refused(why))).transpose()
    }

    /// Requests a gate's page from the daemon.
    fn borrow_gate(
        &self,
        conversation: &mut Conversation,
        name: GateName,
    ) -> Result<(GateName, [File; 2]), ChannelError> {
        let (reply, page) = conversation.attach(&Request::Gate { gate: name.as_str().to_owned() }, &[])?;
        match reply {
            Response::Gate(_) => Ok((name, page)),
            other => Err(conversation.confused(&other)),
        }
    }

    /// Takes the gate whose page was opened for this subscriber.
    fn hold_gate(
        &self,
        subscriber: &mut Subscriber,
        page: Option<(GateName, [File; 2])>,
    ) -> Result<(), ChannelError> {
        let Some((name, page)) = page else { return Ok(()) };
        let held = HeldGate::take(name, page, subscriber.header().uuid).map_err(|why| match why {
            NotHeld::Refused(why) => self.gate_refused(why),
            NotHeld::Failed(source) => ChannelError::os("take the gate", name.as_str())(source),
        })?;
        subscriber.gate = Some(Box::new(held));
        subscriber.named.get_or_insert_with(|| Box::new(Named::of_gate()));
        subscriber.is_checked = subscriber.must_check();
        subscriber.note_passed();
        Ok(())
    }

    fn refused_journal(&self, source: JournalError) -> ChannelError {
        ChannelError::Journal { name: self.name.clone(), source: Box::new(source) }
    }

    /// Moves the subscriber to its start, if the start is in the journal or on the board.
    fn begin(&self, subscriber: &mut Subscriber, origin: Option<Origin>) -> Result<(), ChannelError> {
        // A conflating reader needs no journal, because the board replaces the messages that it missed.
        if let Some(origin) = origin.filter(|_| self.conflation.is_none()) {
            origin.check().map_err(|e| self.refused_journal(e))?;
            subscriber.past = Some(Box::new(Past::new(origin)));
        }
        match self.start {
            Start::Board => subscriber.begin_with_board(true),
            _ if self.conflation.is_some() => subscriber.begin_with_board(self.begins_in_ring),
            Start::Oldest if !self.begins_in_ring => subscriber.begin_with_oldest(),
            Start::Time(time) => subscriber.begin_at_time(time),
            Start::Key if last_key(&subscriber.segment).is_none() => subscriber.begin_with_key(),
            _ => Ok(()),
        }
    }

    pub(in crate::subscriber) fn read(
        &self,
        segment: Segment,
        show_page: impl FnOnce(&Header, Place) -> Result<Option<Page>, ChannelError>,
    ) -> Result<Subscriber, ChannelError> {
        let header = segment.header();
        if let Some(wanted) = &self.schema {
            wanted.check(&self.name, SchemaId::of(header))?;
        }
        let steps = segment.prepare(self.preparation);
        // The state is read before the place, so that a takeover in between is reported.
        let began_in = segment.state().map_or(0, |(epoch, _)| epoch);
        let epoch =
            if matches!(self.start, Start::Latest | Start::Board) || began_in == 1 { began_in } else { 0 };
        let (place, behind) = self.place(&segment)?;
        let page = show_page(header, place)?;
        // A superseded segment in a directory is not the channel any more. A reader of a daemon's channel continues in the next segment,
        // which the daemon sends.
        if self.client.is_none() && matches!(segment.state(), Some((_, State::Superseded))) {
            return Err(self.directory.not_found(&self.name));
        }
        let buffer = Buffer::with_room(Buffer::room_for(header));
        Ok(Subscriber {
            reader: segment.reader(place),
            clock: Clock::of_segment(header),
            wait: self.wait,
            came_close: false,
            contention: Contention::none(),
            burst_mark: (place.sequence, 0),
            burst_target: 0,
            resume: self.resume,
            epoch,
            began_in,
            doubt: if behind.is_some() { Doubt::Behind } else { Doubt::None },
            behind,
            buffer,
            page,
            page_refused: None,
            record_latency: self.record_latency,
            forks: fork::watch(),
            steps,
            moves: 0,
            came_before_channel: self.begins_in_ring,
            stopped_early: false,
            hosted: None,
            is_checked: self.tags.is_some() || self.conflation.is_some(),
            parking: None,
            tags: self.tags.clone(),
            watch: None,
            named: None,
            gate: None,
            past: None,
            joining: self.joining(&segment)?,
            segment,
        })
    }

    /// Returns the place at which to begin. If the requested sequence was overwritten, also returns this sequence.
    fn place(&self, segment: &Segment) -> Result<(Place, Option<u64>), ChannelError> {
        let locator = segment.locator();
        let from = |sequence| {
            let gone = (Place::nowhere(sequence), Some(sequence));
            seek(segment, sequence).map(|place| place.map_or(gone, |place| (place, None)))
        };
        let place = match self.start {
            Start::Latest | Start::Board => locator.tail().map(|place| (place, None)),
            Start::Oldest | Start::Time(_) => locator.oldest().map(|place| (place, None)),
            Start::Sequence(sequence) => from(sequence.max(1)),
            Start::Key => match last_key(segment) {
                Some(key) => from(key),
                None => locator.oldest().map(|place| (place, None)),
            },
        };
        place.map_err(|source| ChannelError::Locate { name: self.name.clone(), source })
    }
}

/// Returns the sequence of the ring's last key message. The publisher writes it to its lazy line, a cache line that it updates rarely.
/// Returns `None` if there is no key message, or if no message with this sequence was published.
fn last_key(segment: &Segment) -> Option<u64> {
    let key = segment.header_word(LAZY_KEY);
    let is_published = |tail: Place| key < tail.sequence;
    (key > 0 && segment.locator().tail().is_ok_and(is_published)).then_some(key)
}
