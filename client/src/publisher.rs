//! The publishing end of a channel.

use crate::clock::Clock;
use crate::connect::{Client, Conversation};
use crate::directory::{ChannelFiles, Directory, is_absent, open_plain};
use crate::error::{ChannelError, Holder, PublishError};
use crate::hosting::new_header;
use crate::keeper::Attachment;
use crate::lock::{self, Held};
use shmcast_layout::control::Request;
use shmcast_layout::error::{OpenError, TooLarge};
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::layout::header::{Header, State};
use shmcast_layout::mem::{Preparation, Step};
use shmcast_layout::ring::writer::{TakeError, Writer};
use shmcast_layout::segment::{Access, Segment};
use std::fmt;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Capacity of a new channel unless asked otherwise, in bytes.
pub const DEFAULT_CAPACITY: u64 = 64 << 20;

/// How much of a buffer for one message is touched before the first.
pub(crate) const TOUCHED_BYTES: usize = 64 << 10;

/// Publishes messages into a channel: one publisher a channel, any number of readers.
///
/// Nothing here waits for anybody. `publish` is a few dozen stores to memory that readers poll; it makes no system
/// call, takes no lock, allocates nothing, and costs the same for one reader and for a hundred. Readers that cannot
/// keep up are lapped and told how many messages they missed.
///
/// Dropping a publisher closes the channel, except while the thread panics: then readers see no end, and the next
/// publisher takes over as after a crash.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use shmcast::{Event, Publisher, Start, Subscriber};
/// let mut publisher = Publisher::builder("ticks").dir(dir.path()).capacity(1 << 20).open()?;
/// let mut subscriber = Subscriber::builder("ticks").dir(dir.path()).open()?;
/// publisher.publish(b"bid 100.25")?;
/// publisher.close();
/// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.payload == b"bid 100.25"));
/// assert_eq!(subscriber.recv()?, Event::End);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publisher {
    writer: Writer,
    clock: Clock,
    segment: Segment,
    /// Claims are written here and copied into the ring in one burst.
    staging: Box<[u8]>,
    steps: Vec<Step>,
    /// Held until the writer is done; the kernel lets go of it if we die.
    _lock: Held,
    /// Our place at the daemon's table, where a daemon owns the channel.
    attachment: Option<Attachment>,
}

/// What a publisher says about one message besides its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Mark {
    /// For the publisher's own use, handed to every reader: a message type, say.
    pub tag: u16,
    /// Whether a reader that lost its place may start afresh from this message, as from a snapshot.
    pub key: bool,
}

impl Publisher {
    /// Begins to open channel `name` for publishing.
    pub fn builder(name: impl Into<String>) -> PublisherBuilder {
        PublisherBuilder {
            name: name.into(),
            directory: Directory::default(),
            client: None,
            capacity: None,
            max_message: None,
            mode: 0o700,
            preparation: Preparation::FULL,
            schema: (0, String::new()),
            labels: String::new(),
            anew: false,
        }
    }

    /// Publishes one message; returns its sequence.
    ///
    /// Cost: about one store a word, 50 to 100 ns for 64 bytes with readers polling on other cores; wait-free.
    ///
    /// # Errors
    /// [`PublishError::TooLarge`] when the payload exceeds [`max_message`](Self::max_message), and
    /// [`PublishError::CutOff`] once a daemon has given the channel to another publisher; nothing is published then.
    #[inline]
    pub fn publish(&mut self, payload: &[u8]) -> Result<u64, PublishError> {
        self.publish_with(payload, Mark::default())
    }

    /// Publishes one message with a tag or as a key message; otherwise as [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`PublishError`]; nothing is published then.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// let sequence = publisher.publish_with(b"whole book", Mark { key: true, ..Mark::default() })?;
    /// assert_eq!(sequence, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn publish_with(&mut self, payload: &[u8], mark: Mark) -> Result<u64, PublishError> {
        self.check_not_cut_off()?;
        Ok(self.writer.publish_timed(payload, mark.tag, mark.key, || self.clock.now())?)
    }

    /// As [`publish_with`](Self::publish_with), with a time that the caller has read already from
    /// [`clock`](Self::clock), such as that of the event that the message tells of. Readers get its low 48 bits, and
    /// count latencies from there. Saves reading the clock, some 8 ns.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let mut subscriber = shmcast::Subscriber::builder("t").dir(dir.path()).open()?;
    /// use shmcast::{Event, Mark};
    /// let arrived = publisher.clock().now();
    /// publisher.publish_at(b"tick", Mark::default(), arrived)?;
    /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.time == arrived & ((1 << 48) - 1)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn publish_at(&mut self, payload: &[u8], mark: Mark, time: u64) -> Result<u64, PublishError> {
        self.check_not_cut_off()?;
        Ok(self.writer.publish(payload, mark.tag, mark.key, time)?)
    }

    /// Publishes several messages with one time stamp; returns their sequences. Saves reading the clock for each.
    ///
    /// # Errors
    /// [`PublishError`] at the first payload that is too large: those before it are published, it and the rest are not.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.publish_batch(["a", "b", "c"])?, 1..4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish_batch<P: AsRef<[u8]>>(
        &mut self,
        payloads: impl IntoIterator<Item = P>,
    ) -> Result<Range<u64>, PublishError> {
        self.check_not_cut_off()?;
        let time = self.clock.now();
        let first = self.writer.next_sequence();
        for payload in payloads {
            self.writer.publish(payload.as_ref(), 0, false, time)?;
        }
        Ok(first..self.writer.next_sequence())
    }

    /// Lends `length` bytes to write a message into, for serializers that need a place to write to. Nothing is
    /// published before [`Claim::commit`], and a claim that is dropped leaves no trace.
    ///
    /// The bytes hold whatever earlier claims of this publisher left there. Cost: one copy more than filling the ring
    /// directly, in cache, which is what lets the message enter the ring in one burst.
    ///
    /// # Errors
    /// [`PublishError`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let mut claim = publisher.claim(100)?;
    /// claim[..5].copy_from_slice(b"hello");
    /// claim.commit(5);
    /// publisher.claim(100)?.abort();
    /// assert_eq!(publisher.next_sequence(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn claim(&mut self, length: usize) -> Result<Claim<'_>, PublishError> {
        self.check_not_cut_off()?;
        let max_message = self.max_message() as u64;
        if length as u64 > max_message {
            return Err(TooLarge { length: length as u64, max_message }.into());
        }
        Ok(Claim { publisher: self, length, mark: Mark::default() })
    }

    /// Whether a daemon has given the channel to another publisher, so that nobody receives what this one publishes: one
    /// load of a word that changes once. Always false where the channel is a file.
    ///
    /// Known moments after it happened. What was published in between has reached nobody, and the next publisher's
    /// sequences go on where this one's were cut off.
    #[inline]
    pub fn is_cut_off(&self) -> bool {
        self.attachment.as_ref().is_some_and(Attachment::is_cut_off)
    }

    #[inline]
    fn check_not_cut_off(&self) -> Result<(), PublishError> {
        if self.is_cut_off() { Err(PublishError::CutOff) } else { Ok(()) }
    }

    /// Closes the channel: readers get everything published so far, and then the end of the stream. The same as
    /// dropping, said aloud.
    pub fn close(self) {}

    /// Tells readers that the messages from the next one up to `to` will never come; the next message published gets
    /// sequence `to + 1`. For those who carry a numbered stream from elsewhere into a channel. Does nothing when `to`
    /// lies behind.
    pub fn gap(&mut self, to: u64) {
        self.writer.gap(to, self.clock.now());
    }

    /// Tells readers that the remote publisher behind this channel began a new session.
    pub fn session(&mut self, identity: [u8; 10]) {
        self.writer.session(identity, self.clock.now());
    }

    /// The remote session that this channel carries, by the last [`session`](Self::session) of this publisher or one
    /// before it; `None` if there was none.
    pub fn remote_session(&self) -> Option<[u8; 10]> {
        self.segment.session()
    }

    /// The sequence that the next message will get.
    pub fn next_sequence(&self) -> u64 {
        self.writer.next_sequence()
    }

    /// This publisher's incarnation: 1 for the first of a channel, one more for each that follows.
    pub fn epoch(&self) -> u64 {
        self.writer.epoch()
    }

    /// The largest payload, in bytes.
    pub fn max_message(&self) -> usize {
        self.writer.geometry().max_message as usize
    }

    /// The ring's size, in bytes.
    pub fn capacity(&self) -> u64 {
        self.writer.geometry().capacity
    }

    /// The clock that stamps this channel's messages.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// How the preparation of the memory went, step by step, refusals included.
    pub fn preparation(&self) -> &[Step] {
        &self.steps
    }

    /// What the channel was made with.
    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// Whether a daemon knows of this publisher at the moment; `None` where the channel is a file. Data flows either
    /// way.
    pub fn is_registered(&self) -> Option<bool> {
        self.attachment.as_ref().map(Attachment::is_connected)
    }
}

impl fmt::Debug for Publisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("Publisher");
        f.field("channel", &self.header().channel).field("epoch", &self.epoch());
        f.field("next_sequence", &self.next_sequence()).finish_non_exhaustive()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.writer.close(self.clock.now());
        }
    }
}

/// Room for one message, lent by [`Publisher::claim`]. Dereferences to its bytes.
#[derive(Debug)]
#[must_use = "a claim that is not committed publishes nothing"]
pub struct Claim<'a> {
    publisher: &'a mut Publisher,
    length: usize,
    mark: Mark,
}

impl Claim<'_> {
    /// Sets tag and key flag of the message.
    pub fn mark(mut self, mark: Mark) -> Self {
        self.mark = mark;
        self
    }

    /// Publishes the first `length` bytes and returns the sequence.
    ///
    /// # Panics
    /// When `length` exceeds what was claimed.
    pub fn commit(self, length: usize) -> u64 {
        assert!(length <= self.length, "commit of {length} B exceeds the claim of {} B", self.length);
        let Publisher { writer, clock, staging, .. } = self.publisher;
        writer
            .publish(&staging[..length], self.mark.tag, self.mark.key, clock.now())
            .expect("a claim is never larger than the largest message")
    }

    /// Publishes nothing. The same as dropping, said aloud.
    pub fn abort(self) {}
}

impl Deref for Claim<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.publisher.staging[..self.length]
    }
}

impl DerefMut for Claim<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.publisher.staging[..self.length]
    }
}

fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// How to open a channel for publishing.
#[derive(Debug, Clone)]
#[must_use]
pub struct PublisherBuilder {
    name: String,
    directory: Directory,
    client: Option<Client>,
    capacity: Option<u64>,
    max_message: Option<u64>,
    mode: u32,
    preparation: Preparation,
    schema: (u64, String),
    labels: String,
    anew: bool,
}

impl PublisherBuilder {
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
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777 | 0o700;
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
    /// that has begun again. Readers of the old one get [`RecvError::Superseded`](crate::RecvError::Superseded). Sizes,
    /// schema and labels stay as they are unless given. Only for channels that are files.
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
    /// [`ChannelError::InUse`] with the holder while another publisher lives; [`ChannelError::Mismatch`],
    /// [`ChannelError::Segment`] and the rest leave everything as it was.
    pub fn open(self) -> Result<Publisher, ChannelError> {
        if let Some(client) = self.client.clone() {
            if self.anew {
                return Err(ChannelError::NotAnew { name: self.name });
            }
            return self.attach(&client);
        }
        let files = self.directory.files(&self.name)?;
        let wanted = Geometry::new(self.capacity.unwrap_or(DEFAULT_CAPACITY), self.max_message)?;
        // Again if somebody removes the channel meanwhile.
        let lock = loop {
            self.directory.create(&files, self.mode)?;
            if let Some(lock) = files.lock(&self.name)? {
                break lock;
            }
        };
        match open_plain(&files.segment, OpenOptions::new().read(true).write(true)) {
            Ok(file) if self.anew => self.replace(&files, &file, lock),
            Ok(file) => self.take_over(&files, &file, wanted, lock),
            Err(e) if is_absent(&e) => self.make(&files, wanted, lock),
            Err(e) => Err(ChannelError::os("open", &files.segment)(e)),
        }
    }

    fn take_over(
        self,
        files: &ChannelFiles,
        file: &File,
        wanted: Geometry,
        lock: Held,
    ) -> Result<Publisher, ChannelError> {
        let segment = Segment::open(file, Access::Write)
            .map_err(|source| ChannelError::Segment { path: files.segment.clone(), source })?;
        if matches!(segment.state(), Some((_, State::Superseded))) {
            // Who removed the channel died before the files had gone.
            return self.make(files, wanted, lock);
        }
        self.check(&segment)?;
        files.make_readers(self.mode)?;
        self.start(segment, lock)
    }

    fn replace(mut self, files: &ChannelFiles, file: &File, lock: Held) -> Result<Publisher, ChannelError> {
        let old = Segment::open(file, Access::Write)
            .map_err(|source| ChannelError::Segment { path: files.segment.clone(), source })?;
        let Header { geometry, schema_id, schema, labels, .. } = old.header();
        let capacity = self.capacity.unwrap_or(geometry.capacity);
        let max_message =
            self.max_message.or((capacity == geometry.capacity).then_some(geometry.max_message));
        if self.schema.0 == 0 {
            self.schema = (*schema_id, schema.clone());
        }
        if self.labels.is_empty() {
            self.labels.clone_from(labels);
        }
        let publisher = self.make(files, Geometry::new(capacity, max_message)?, lock)?;
        // Only now: whoever is told and attaches again must find the new one.
        old.supersede();
        Ok(publisher)
    }

    fn attach(self, client: &Client) -> Result<Publisher, ChannelError> {
        let mut conversation = Conversation::open(client.socket())?;
        let request = |resume| Request::Publish { channel: self.name.clone(), resume };
        let [file, lock] = conversation.attach(&request(false), &[])?;
        let memory = || format!("memfd:{}", self.name);
        // Two may be granted a free channel at the same time: the lock says whose it is.
        if !lock::try_lock(&lock).map_err(ChannelError::os("lock", memory()))? {
            let holder = Holder::Publisher { pid: None, command: None };
            return Err(ChannelError::InUse { name: self.name, holder });
        }
        let lock = Held(lock);
        let segment = Segment::open(&file, Access::Write)
            .map_err(|source| ChannelError::Segment { path: memory().into(), source })?;
        self.check(&segment)?;
        conversation.ask(&Request::Mapped {}, &[])?;
        let resume = request(true);
        let shown = vec![file, lock.0.try_clone().map_err(ChannelError::os("duplicate", memory()))?];
        let mut publisher = self.start(segment, lock)?;
        let socket = conversation.into_socket()?;
        publisher.attachment = Some(Attachment::new(client.socket().to_owned(), socket, resume, shown));
        Ok(publisher)
    }

    /// Whether an existing channel is what was asked for.
    fn check(&self, segment: &Segment) -> Result<(), ChannelError> {
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

    fn make(self, files: &ChannelFiles, geometry: Geometry, lock: Held) -> Result<Publisher, ChannelError> {
        let unfinished = files.dir.join(".segment.new");
        let segment = self.make_segment(files, &unfinished, geometry).inspect_err(|_| {
            // Nobody can have attached to what has no segment. The lock is still ours.
            if !self.anew {
                let _ = files.discard();
            }
        })?;
        let publisher = self.start(segment, lock)?;
        fs::rename(&unfinished, &files.segment).map_err(ChannelError::os("name", &files.segment))?;
        Ok(publisher)
    }

    fn make_segment(
        &self,
        files: &ChannelFiles,
        path: &Path,
        geometry: Geometry,
    ) -> Result<Segment, ChannelError> {
        let os = |what| ChannelError::os(what, path);
        // Both may be left by one that died here.
        let _ = (fs::remove_file(path), fs::remove_dir(&files.readers));
        files.make_readers(self.mode)?;
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        let file = file.map_err(os("create"))?;
        // Whatever the umask: readers that the mode lets in must be able to read.
        file.set_permissions(Permissions::from_mode(0o600 | self.mode & 0o444))
            .map_err(os("set the mode of"))?;
        Segment::create(&file, new_header(&self.name, geometry, self.schema.clone(), self.labels.clone()))
            .map_err(|source| match source {
                OpenError::Os { source, .. } if is_full(&source) => {
                    let (dir, bytes) = (self.directory.path().to_owned(), geometry.segment_bytes());
                    ChannelError::NoRoom { name: self.name.clone(), dir, bytes }
                }
                source => ChannelError::Segment { path: path.to_owned(), source },
            })
    }

    fn start(self, segment: Segment, lock: Held) -> Result<Publisher, ChannelError> {
        let steps = segment.prepare(self.preparation);
        let clock = Clock::of_segment(segment.header());
        let writer = segment.writer(std::process::id(), clock.now()).map_err(|why| match why {
            TakeError::Superseded => ChannelError::Superseded { name: self.name },
            TakeError::Locate(source) => ChannelError::Locate { name: self.name, source },
        })?;
        let mut staging = vec![0; segment.header().geometry.max_message as usize].into_boxed_slice();
        // Zeros come as pages yet to be faulted in: touch those that claims of common sizes need.
        staging.iter_mut().take(TOUCHED_BYTES).for_each(|byte| *byte = 0xff);
        Ok(Publisher { writer, clock, segment, staging, steps, _lock: lock, attachment: None })
    }
}
