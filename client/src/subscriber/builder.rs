//! Attaching: from a channel's name to a subscriber at its place.

use super::following::seek;
use super::hosted::Hosted;
use super::page::{NoPage, Page, show_page};
use super::{Buffer, Doubt, Resume, Start, Subscriber, Tags, Watch};
use crate::attach::connect::{Client, Conversation};
use crate::attach::keeper::{Attachment, keeper};
use crate::attach::park::{self, LONGEST_NAP, Parking};
use crate::clock::Clock;
use crate::directory::Directory;
use crate::error::{ChannelError, SchemaId};
use crate::wait::Wait;
use rustix::fs::OFlags;
use shmcast_layout::charter::Charter;
use shmcast_layout::control::{Request, Response};
use shmcast_layout::layout::header::{Header, State};
use shmcast_layout::mem::Preparation;
use shmcast_layout::reader_page::ReaderPage;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::segment::{Access, Segment};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The options for subscribing to a channel.
#[derive(Debug, Clone)]
#[must_use]
pub struct SubscriberBuilder {
    name: String,
    directory: Directory,
    client: Option<Client>,
    start: Start,
    wait: Wait,
    resume: Resume,
    preparation: Preparation,
    page: bool,
    record_latency: bool,
    wait_for_channel: Option<Duration>,
    schema: Option<SchemaId>,
    longest_nap: Duration,
    tags: Option<Tags>,
    watch_publisher: bool,
}

impl SubscriberBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            directory: Directory::default(),
            client: None,
            start: Start::default(),
            wait: Wait::default(),
            resume: Resume::default(),
            preparation: Preparation { prefault: true, ..Preparation::NONE },
            page: true,
            record_latency: false,
            wait_for_channel: None,
            schema: None,
            longest_nap: LONGEST_NAP,
            tags: None,
            watch_publisher: false,
        }
    }

    /// Looks for the channel in the directory at `path` rather than in the default one.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dir(self, path: impl Into<PathBuf>) -> Self {
        self.directory(&Directory::at(path))
    }

    /// Looks for the channel in `directory`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let directory = shmcast::Directory::at(dir.path());
    /// shmcast::Subscriber::builder("t").directory(&directory).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn directory(mut self, directory: &Directory) -> Self {
        self.directory = directory.clone();
        self.client = None;
        self
    }

    /// Asks a daemon for the channel rather than a directory.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// shmcast::Subscriber::builder("t").client(&client).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn client(mut self, client: &Client) -> Self {
        self.client = Some(client.clone());
        self
    }

    /// The place to begin at; [`Start::Latest`] by default.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.publish(b"early")?;
    /// let builder = shmcast::Subscriber::builder("t").dir(dir.path());
    /// let mut subscriber = builder.start(shmcast::Start::Oldest).open()?;
    /// assert!(subscriber.try_recv()?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// How [`Subscriber::recv`] waits; [`Wait::Yield`] by default.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Subscriber, Wait};
    /// Subscriber::builder("t").dir(dir.path()).wait(Wait::Spin).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// How long a reader with [`Wait::Park`] sleeps at most before it looks for itself: 0.1 s by default. A daemon that
    /// hangs can make it late by this time. While no messages come, the reader wakes once in this time, which is its
    /// only cost. A daemon that has died is noticed at once.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// use shmcast::{Subscriber, Wait};
    /// use std::time::Duration;
    /// let builder = Subscriber::builder("t").client(&client).wait(Wait::Park);
    /// builder.longest_nap(Duration::from_secs(5)).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn longest_nap(mut self, longest: Duration) -> Self {
        self.longest_nap = longest;
        self
    }

    /// The place to go on at after a lap; [`Resume::Oldest`] by default.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Resume, Subscriber};
    /// Subscriber::builder("t").dir(dir.path()).resume(Resume::Key).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(mut self, resume: Resume) -> Self {
        self.resume = resume;
        self
    }

    /// The preparation of the memory. By default every page is touched, so that no message causes a page fault. Steps
    /// that the kernel refused are in [`Subscriber::preparation`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Preparation, Subscriber};
    /// Subscriber::builder("t").dir(dir.path()).prepare(Preparation::NONE).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(mut self, preparation: Preparation) -> Self {
        self.preparation = preparation;
        self
    }

    /// Whether tools can see this subscriber, its lag and its losses; true by default. Costs a few stores for each
    /// message to a cache line of its own, and a file of 4 KiB. Without it, tools that wait for readers do not count
    /// this one, and the channel can be removed although this reader uses it.
    ///
    /// If the file system is full or read-only, or this user may not write there, the subscriber goes on without a
    /// page; see [`Subscriber::page_refused`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let hidden = shmcast::Subscriber::builder("t").dir(dir.path()).page(false).open()?;
    /// assert!(shmcast::Directory::at(dir.path()).channel("t")?.readers.is_empty());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn page(mut self, page: bool) -> Self {
        self.page = page;
        self
    }

    /// Whether each message's latency goes into the page's histogram; false by default. Costs one reading of the clock
    /// for each message.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// shmcast::Subscriber::builder("t").dir(dir.path()).record_latency(true).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn record_latency(mut self, record: bool) -> Self {
        self.record_latency = record;
        self
    }

    /// How long [`open`](Self::open) waits for the channel to appear. By default it does not wait.
    ///
    /// A channel that appears in this time is read from its oldest message on, also with [`Start::Latest`]: all of its
    /// messages were published after `open` was called. A channel that is there at once is read from [`start`](Self::start)
    /// on.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use std::time::Duration;
    /// let builder = shmcast::Subscriber::builder("t").dir(dir.path());
    /// builder.wait_for_channel(Duration::from_secs(5)).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for_channel(mut self, patience: Duration) -> Self {
        self.wait_for_channel = Some(patience);
        self
    }

    /// Refuses a channel whose message schema has another number.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{ChannelError, Subscriber};
    /// let refused = Subscriber::builder("t").dir(dir.path()).schema(7).open();
    /// assert!(matches!(refused, Err(ChannelError::Schema { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schema(mut self, id: u64) -> Self {
        self.schema = Some(SchemaId { id, name: String::new() });
        self
    }

    /// Refuses a channel whose message schema has another number or another name.
    #[cfg(any(feature = "pod", feature = "serde"))]
    pub(crate) fn schema_of(mut self, schema: SchemaId) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Hands out only messages with one of these tags; all messages by default. None at all for an empty list.
    ///
    /// Everything but messages is told as it is otherwise: losses count messages of every tag, and so do sequences and the
    /// figures that tools show. A message that is not handed out costs about what receiving it would, and wakes a parked
    /// reader. Batches cost as much as single messages.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Event, Mark, Subscriber};
    /// let mut trades = Subscriber::builder("t").dir(dir.path()).tags([7]).open()?;
    /// publisher.publish_with(b"quote", Mark { tag: 3, key: false })?;
    /// publisher.publish_with(b"trade", Mark { tag: 7, key: false })?;
    /// assert!(matches!(trades.recv()?, Event::Message(m) if m.payload == b"trade" && m.sequence == 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn tags(mut self, tags: impl IntoIterator<Item = u16>) -> Self {
        self.tags = Some(tags.into_iter().collect());
        self
    }

    /// Whether [`Event::PublisherGone`](crate::Event::PublisherGone) is told when the publisher dies: no by default.
    ///
    /// The kernel is the witness. Of a channel that is a file, this reader asks it for itself, at most every hundredth of a
    /// second and only while nothing comes; so it must be able to open the channel's lock file, which belongs to the
    /// publisher's user. A daemon tells the readers of its channels, and one that is away tells them when it is back. Messages
    /// cost nothing more.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::{Event, Subscriber};
    /// let mut subscriber = Subscriber::builder("t").dir(dir.path()).watch_publisher(true).open()?;
    /// // A thread that panics closes nothing: as if its process had been killed.
    /// let died = std::thread::spawn(move || {
    ///     let _publisher = publisher;
    ///     panic!("a bug");
    /// });
    /// assert!(died.join().is_err());
    /// assert_eq!(subscriber.recv()?, Event::PublisherGone { epoch: 1 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch_publisher(mut self, watch: bool) -> Self {
        self.watch_publisher = watch;
        self
    }

    /// Attaches. If pages are touched first, takes time in proportion to the capacity, about 0.1 ms a MiB.
    ///
    /// # Errors
    /// [`ChannelError`]. No file is left behind.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let refused = shmcast::Subscriber::builder("nobody").dir(dir.path()).open();
    /// assert!(refused.is_err_and(|e| e.is_unknown_channel()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(mut self) -> Result<Subscriber, ChannelError> {
        let start = Instant::now();
        let patience = self.wait_for_channel.unwrap_or_default();
        loop {
            match self.attach() {
                Err(e) if e.is_unknown_channel() && start.elapsed() < patience => {
                    if self.start == Start::Latest {
                        self.start = Start::Oldest;
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                attached => return attached,
            }
        }
    }

    /// Attaches if the channel exists and is not just being removed.
    fn attach(&self) -> Result<Subscriber, ChannelError> {
        match &self.client {
            Some(client) => self.attach_by(client),
            None => self.attach_to_file(),
        }
    }

    fn attach_by(&self, client: &Client) -> Result<Subscriber, ChannelError> {
        let keeper = keeper()?;
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
            let page =
                ReaderPage::create(&page_file, std::process::id(), header.uuid, place).map_err(damaged)?;
            Ok(Some(Page { page, shown: None }))
        })?;
        let socket = conversation.into_socket()?;
        let mut shown = vec![file, lock, page_file];
        if let (Some((near, far)), Some(page)) = (bell, &subscriber.page) {
            subscriber.parking = Some(Parking::new(near, page.page.clone(), self.longest_nap));
            shown.push(far);
        }
        let daemon = client.socket().to_owned();
        let attachment =
            Attachment::new(keeper, daemon, socket, request(true), self.preparation, charter_file, shown);
        subscriber.is_checked |= generation.strict;
        subscriber.watch = self.watch_publisher.then(|| Box::new(Watch::of_the_daemon()));
        subscriber.hosted = Some(Box::new(Hosted { attachment, charter, generation, next: VecDeque::new() }));
        Ok(subscriber)
    }

    fn attach_to_file(&self) -> Result<Subscriber, ChannelError> {
        let not_found = || self.directory.not_found(&self.name);
        let files = self.directory.files(&self.name)?;
        if self.wait == Wait::Park {
            let (name, dir) = (self.name.clone(), self.directory.path().to_owned());
            return Err(ChannelError::NoWaker { name, dir });
        }
        let files = files.ok_or_else(not_found)?;
        let file = files.segment(OFlags::RDONLY)?.ok_or_else(not_found)?;
        let watch = match self.watch_publisher {
            true => Some(Box::new(Watch::of_lock(files.lock_file()?))),
            false => None,
        };
        let segment = Segment::open(&file, Access::Read)
            .map_err(|source| ChannelError::Segment { path: files.segment_path(), source })?;
        let mut refused = None;
        let mut subscriber =
            self.read(segment, |header, place| match self.page.then(|| show_page(&files, header, place)) {
                None => Ok(None),
                Some(Ok(page)) => Ok(Some(page)),
                Some(Err(NoPage::Failed(e))) if e.is_absent() => Err(not_found()),
                Some(Err(NoPage::Failed(e))) => Err(e),
                Some(Err(NoPage::Refused(why))) => {
                    refused = Some(why);
                    Ok(None)
                }
            })?;
        (subscriber.page_refused, subscriber.watch) = (refused, watch);
        Ok(subscriber)
    }

    pub(super) fn read(
        &self,
        segment: Segment,
        show_page: impl FnOnce(&Header, Place) -> Result<Option<Page>, ChannelError>,
    ) -> Result<Subscriber, ChannelError> {
        let header = segment.header();
        if let Some(wanted) = &self.schema {
            wanted.check(&self.name, header)?;
        }
        let steps = segment.prepare(self.preparation);
        // The state is read before the place, so that a takeover in between is reported.
        let began_in = segment.state().map_or(0, |(epoch, _)| epoch);
        let epoch = if self.start == Start::Latest || began_in == 1 { began_in } else { 0 };
        let (place, behind) = self.place(&segment)?;
        let page = show_page(header, place)?;
        // A reader of a daemon's channel follows instead: the daemon sends it the next segment.
        if self.client.is_none() && matches!(segment.state(), Some((_, State::Superseded))) {
            return Err(self.directory.not_found(&self.name));
        }
        let buffer = Buffer::with_room(Buffer::room_for(header));
        Ok(Subscriber {
            reader: segment.reader(place),
            clock: Clock::of_segment(header),
            wait: self.wait,
            came_close: false,
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
            segment,
            steps,
            hosted: None,
            is_checked: self.tags.is_some(),
            parking: None,
            tags: self.tags.clone(),
            watch: None,
        })
    }

    /// The place to begin at, and the sequence that was asked for if it is gone.
    fn place(&self, segment: &Segment) -> Result<(Place, Option<u64>), ChannelError> {
        let locator = segment.locator();
        let place = match self.start {
            Start::Latest => locator.tail().map(|place| (place, None)),
            Start::Oldest => locator.oldest().map(|place| (place, None)),
            Start::Sequence(sequence) => {
                let sequence = sequence.max(1);
                let gone = (Place { position: 0, sequence }, Some(sequence));
                seek(segment, sequence).map(|place| place.map_or(gone, |place| (place, None)))
            }
        };
        place.map_err(|source| ChannelError::Locate { name: self.name.clone(), source })
    }
}
