//! Opening a channel for publishing: what may be asked for, and the channels of a daemon. Those that are files are in
//! `files`.

use super::{Hosted, Publisher, TOUCHED_BYTES};
use crate::clock::Clock;
use crate::connect::{Client, Conversation};
use crate::directory::Directory;
use crate::error::{ChannelError, Holder};
use crate::keeper::{Attachment, keeper};
use crate::lock::{self, Held};
use shmcast_layout::charter::Charter;
use shmcast_layout::control::{Reply, Request};
use shmcast_layout::mem::Preparation;
use shmcast_layout::ring::writer::TakeError;
use shmcast_layout::segment::{Access, Segment};
use std::path::{Path, PathBuf};

/// Capacity of a new channel unless asked otherwise, in bytes.
pub const DEFAULT_CAPACITY: u64 = 64 << 20;

/// How to open a channel for publishing.
#[derive(Debug, Clone)]
#[must_use]
pub struct PublisherBuilder {
    pub(super) name: String,
    pub(super) directory: Directory,
    pub(super) client: Option<Client>,
    pub(super) capacity: Option<u64>,
    pub(super) max_message: Option<u64>,
    pub(super) mode: Option<u32>,
    pub(super) preparation: Preparation,
    pub(super) schema: (u64, String),
    pub(super) labels: String,
    pub(super) anew: bool,
}

impl PublisherBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            directory: Directory::default(),
            client: None,
            capacity: None,
            max_message: None,
            mode: None,
            preparation: Preparation::FULL,
            schema: (0, String::new()),
            labels: String::new(),
            anew: false,
        }
    }

    /// Looks for the channel in the directory at `path` rather than in the default one.
    pub fn dir(self, path: impl Into<PathBuf>) -> Self {
        self.directory(&Directory::at(path))
    }

    /// Looks for the channel in `directory`.
    pub fn directory(mut self, directory: &Directory) -> Self {
        self.directory = directory.clone();
        self.client = None;
        self
    }

    /// Asks a daemon for the channel rather than a directory. The daemon has made it; capacity and the like are its.
    pub fn client(mut self, client: &Client) -> Self {
        self.client = Some(client.clone());
        self
    }

    /// Where it looks: the daemon's socket, or the directory. No other channel of this name is to be found there.
    pub fn location(&self) -> &Path {
        self.client.as_ref().map_or(self.directory.path(), Client::socket)
    }

    /// Bytes of the ring: a power of two from 64 KiB to 16 GiB; [`DEFAULT_CAPACITY`] for a new channel. An existing
    /// channel must have this capacity; leave it out to take whatever it has.
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Largest payload in bytes: up to an eighth of the capacity and 16 MiB, which is the default.
    pub fn max_message(mut self, bytes: u64) -> Self {
        self.max_message = Some(bytes);
        self
    }

    /// Mode of the directories that are made; files get its read bits. 0700 by default, so that the channel is this
    /// user's alone; 0755 lets everybody read, and nobody else publish.
    ///
    /// An existing channel must have this mode, and the directory that it lies in must let those in whom this mode lets
    /// in, or [`open`](Self::open) gives [`ChannelError::Mode`]; leave it out to take whatever is there. Only for channels
    /// that are files.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode & 0o777 | 0o700);
        self
    }

    /// What to do to the memory first: everything by default. What was refused is in
    /// [`Publisher::preparation`] and stops nothing. For the quickest start, leave out
    /// [`huge_pages`](Preparation::huge_pages), the slowest part.
    pub fn prepare(mut self, preparation: Preparation) -> Self {
        self.preparation = preparation;
        self
    }

    /// Number and name of the message schema, for readers that ask for it. Only for a new channel.
    pub fn schema(mut self, id: u64, name: impl Into<String>) -> Self {
        self.schema = (id, name.into());
        self
    }

    /// `key=value` lines of your own for tools to show. Only for a new channel.
    pub fn labels(mut self, labels: impl Into<String>) -> Self {
        self.labels = labels.into();
        self
    }

    /// Gives up the segment that is there for a new one, in which sequences begin at 1 again: for a stream from elsewhere
    /// that has begun again. Readers of the old one get [`RecvError::Superseded`](crate::RecvError::Superseded), or, where a
    /// daemon owns the channel, [`Event::Restarted`](crate::Event::Restarted). Sizes, schema and labels stay as they are
    /// unless given.
    pub fn anew(mut self) -> Self {
        self.anew = true;
        self
    }

    /// Opens the channel: makes it, or takes over the one that is there, in the next epoch and with the sequence going
    /// on, whether its last publisher closed it or died. Readers that are attached stay so.
    ///
    /// Takes time in proportion to the capacity: about 0.6 ms a MiB for page faults, and another 2.5 ms for huge pages, of
    /// which no new one is begun after a second. Beside real-time threads that leave the kernel no core this can be
    /// longer; see [`prepare`](Self::prepare). The first in a process also measures the clock.
    ///
    /// # Errors
    /// [`ChannelError::InUse`] with the holder while another publisher lives; [`ChannelError::NotAChannel`] for a directory
    /// that holds files of somebody else's; [`ChannelError::Mismatch`], [`ChannelError::Mode`], [`ChannelError::Segment`]
    /// and the rest. All of them leave everything as it was.
    pub fn open(self) -> Result<Publisher, ChannelError> {
        if let Some(client) = self.client.clone() {
            return self.attach(&client);
        }
        self.open_file()
    }

    fn attach(self, client: &Client) -> Result<Publisher, ChannelError> {
        let keeper = keeper()?;
        let mut conversation = Conversation::open(client.socket())?;
        let request =
            |resume| Request::Publish { channel: self.name.clone(), resume, anew: self.anew && !resume };
        let (reply, [file, lock, charter_file]) = conversation.attach(&request(false), &[])?;
        let Reply::Publishing { generation } = reply else { return Err(conversation.confused(&reply)) };
        let memory = || format!("memfd:{}", self.name);
        // Two may be granted a free channel at the same time: the lock says whose it is.
        if !lock::try_lock(&lock).map_err(ChannelError::os("lock", memory()))? {
            let holder = Holder::Publisher { pid: None, command: None };
            return Err(ChannelError::InUse { name: self.name, holder });
        }
        let lock = Held::new(lock);
        let segment = Segment::open(&file, Access::Write)
            .map_err(|source| ChannelError::Segment { path: memory().into(), source })?;
        self.check(&segment)?;
        let charter = Charter::open(&charter_file)
            .map_err(|source| ChannelError::Segment { path: memory().into(), source })?;
        conversation.ask(&Request::Mapped {}, &[])?;
        let resume = request(true);
        let shown = vec![file, lock.file.try_clone().map_err(ChannelError::os("duplicate", memory()))?];
        let mut publisher = self.start(segment, lock)?;
        let socket = conversation.into_socket()?;
        let daemon = client.socket().to_owned();
        let attachment =
            Attachment::new(keeper, daemon, socket, resume, Preparation::NONE, charter_file, shown);
        publisher.hosted = Some(Hosted { attachment, charter, generation });
        Ok(publisher)
    }

    /// Whether an existing channel is what was asked for.
    pub(super) fn check(&self, segment: &Segment) -> Result<(), ChannelError> {
        let found = segment.header().geometry;
        let asked = [
            ("capacity", found.capacity, self.capacity),
            ("max_message", found.max_message, self.max_message),
            ("schema", segment.header().schema_id, Some(self.schema.0).filter(|id| *id != 0)),
        ];
        for (what, found, wanted) in asked {
            if let Some(wanted) = wanted.filter(|wanted| *wanted != found) {
                return Err(ChannelError::Mismatch { name: self.name.clone(), what, found, wanted });
            }
        }
        Ok(())
    }

    pub(super) fn start(self, segment: Segment, lock: Held) -> Result<Publisher, ChannelError> {
        let steps = segment.prepare(self.preparation);
        let clock = Clock::of_segment(segment.header());
        let writer = segment.writer(std::process::id(), clock.now()).map_err(|why| match why {
            TakeError::Superseded => ChannelError::Superseded { name: self.name },
            TakeError::Locate(source) => ChannelError::Locate { name: self.name, source },
        })?;
        let mut staging = vec![0; segment.header().geometry.max_message as usize].into_boxed_slice();
        // Zeros come as pages yet to be faulted in: touch those that claims of common sizes need.
        staging.iter_mut().take(TOUCHED_BYTES).for_each(|byte| *byte = 0xff);
        Ok(Publisher { writer, clock, segment, staging, steps, lock, hosted: None })
    }
}
