//! The options for subscribing to a channel.

mod opening;
mod waiting;

use super::board::Behind;
use super::origin::History;
use super::{Resume, Start, Tags};
use crate::attach::connect::Client;
use crate::attach::park::LONGEST_NAP;
use crate::directory::Directory;
use crate::error::SchemaId;
use crate::wait::Wait;
use shmcast_layout::layout::reader_page::Role;
use shmcast_layout::mem::Preparation;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

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
    role: Role,
    wait_for_channel: Option<Duration>,
    /// The time at which the program began to wait, if it waited before it opened the subscriber.
    pub(crate) waited_since: Option<SystemTime>,
    schema: Option<SchemaId>,
    longest_nap: Duration,
    tags: Option<Tags>,
    watch_publisher: bool,
    history: History,
    /// Whether [`Start::Oldest`] means the oldest message in the ring, even if the journal has older ones.
    begins_in_ring: bool,
    /// The lag beyond which the subscriber takes the newest messages from the board; `None` if the subscriber never skips messages.
    conflation: Option<Behind>,
    gate: Option<String>,
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
            role: Role::Reader,
            wait_for_channel: None,
            waited_since: None,
            schema: None,
            longest_nap: LONGEST_NAP,
            tags: None,
            watch_publisher: false,
            history: History::default(),
            begins_in_ring: false,
            conflation: None,
            gate: None,
        }
    }

    /// Uses the channel in the directory at `path` instead of the default directory.
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

    /// Uses the channel in `directory`.
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

    /// Uses the channel of a daemon instead of one in a directory.
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

    /// Sets where to begin; [`Start::Latest`] by default.
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

    /// Sets how [`Subscriber::recv`](crate::Subscriber::recv) waits; [`Wait::Yield`] by default.
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

    /// Sets the longest sleep of a reader with [`Wait::Park`]: 0.1 s by default. A daemon that hangs can delay a message by this time. A
    /// shorter sleep costs more wake-ups while no messages arrive.
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

    /// Sets where to continue after a lap; [`Resume::Oldest`] by default.
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

    /// Sets how the memory is prepared. By default every page is touched, so that no message causes a page fault.
    /// [`Subscriber::preparation`](crate::Subscriber::preparation) lists steps that the kernel refused.
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

    /// Sets whether tools can see this subscriber, its lag and its losses; true by default.
    ///
    /// - If true, each message costs a few stores to a cache line of the subscriber's own, and the subscriber has a file of 4 KiB.
    /// - If false, tools that wait for readers do not count this subscriber, and the channel can be removed while this subscriber uses it.
    ///
    /// If the file cannot be made, the subscriber works without it; see [`Subscriber::page_refused`](crate::Subscriber::page_refused).
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

    /// Sets whether each message's latency is counted in the page's histogram; false by default. Costs one reading of the clock for each
    /// message.
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

    /// Sets the purpose of this subscriber, which tools show; [`Role::Reader`] by default. Tools that wait for readers count only readers
    /// with this default role.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Role;
    /// let recorder = shmcast::Subscriber::builder("t").dir(dir.path()).role(Role::Recorder).open()?;
    /// assert_eq!(shmcast::Directory::at(dir.path()).channel("t")?.status().readers[0].role, "recorder");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// Sets how long [`open`](Self::open) waits for the channel to appear. By default it does not wait.
    ///
    /// If the channel appears in this time, the subscriber begins at the channel's oldest message, even with [`Start::Latest`]. If the
    /// channel exists already, the subscriber begins at its [`start`](Self::start), even if the channel is closed.
    ///
    /// A daemon is asked again after growing pauses of up to half a second. The wait also continues while the daemon is restarted, does not
    /// answer, or has too many requests of this user. If the channel then exists already, a subscriber with [`Start::Latest`] begins at the
    /// first message that was published after `open` was called.
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

    /// Makes opening fail if the channel's message schema has another number. Only opening makes this check. A later publisher can give the
    /// channel another schema, and older messages in a journal can have another schema. A typed subscriber checks these schemas, too.
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

    /// Makes opening fail if the channel's message schema has another number or another name.
    #[cfg(any(feature = "pod", feature = "serde"))]
    pub(crate) fn schema_of(mut self, schema: SchemaId) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Makes the subscriber return only messages with one of these tags; all messages by default. With an empty list, the subscriber
    /// returns no messages.
    ///
    /// Other events are returned as without this option. Sequences, losses, and the figures that tools show count messages of every tag. A
    /// message that is left out costs about as much as a received one, and wakes a parked reader. A batch costs as much as single messages.
    ///
    /// With this option, [`Start::Board`] and [`conflate`](Self::conflate) make opening fail with [`ChannelError::BoardWithTags`](crate::ChannelError::BoardWithTags): the
    /// board has only the newest message of each key, and that message can have another tag.
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

    /// Sets whether the subscriber returns [`Event::PublisherGone`](crate::Event::PublisherGone) when the publisher dies; false by default.
    ///
    /// The kernel frees the publisher's lock when the publisher dies. If the channel is a file, the subscriber checks this lock, at most
    /// every 10 ms and only while nothing arrives. The subscriber must be allowed to open the lock file, which belongs to the publisher's
    /// user.
    ///
    /// If the channel is a daemon's, the daemon checks the lock and informs the readers. A daemon that was down checks the lock when it
    /// runs again.
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

    /// Sets the source of messages that the ring no longer has. By default ([`History::Auto`]) it is the channel's journal, if there is
    /// one.
    ///
    /// A reader reads missed messages in the journal if it is lapped and continues at the oldest message ([`Resume::Oldest`]), or if it
    /// starts at or seeks to a message that is older than everything in the ring. When it has caught up, it receives
    /// [`Event::Live`](crate::Event::Live), and reads the ring again.
    ///
    /// Each sequence is delivered once, or reported as missing once:
    ///
    /// - [`Event::Lost`](crate::Event::Lost), with the cause, reports sequences that the journal itself does not have.
    /// - [`Event::Lapped`](crate::Event::Lapped) reports sequences that retention removed. If no recorder runs any more, it also reports
    ///   sequences that neither the journal nor the ring has.
    ///
    /// Receiving returns [`RecvError::Stalled`](crate::RecvError::Stalled) every two seconds while the recorder makes no progress, or while
    /// it is unknown whether the journal has the next message.
    ///
    /// Between the lap and `Live`, receiving allocates some MiB, makes system calls, and can wait for a disk, or up to three seconds for a
    /// slow daemon. Use [`History::Never`] for a reader that must avoid these waits.
    ///
    /// A journal of another stream is not used. `open` fails if the directory of [`History::Dir`] does not exist, or if the journal in
    /// which the subscriber should start cannot be read. The latencies of messages from the journal are not recorded.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// # let journal = dir.path().join("journal");
    /// # shmcast::journal::create(&journal, publisher.header())?;
    /// use shmcast::{History, Subscriber};
    /// let builder = Subscriber::builder("t").dir(dir.path());
    /// let subscriber = builder.history(History::Dir(journal)).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn history(mut self, history: History) -> Self {
        self.history = history;
        self
    }

    /// Makes a reader that cannot keep up leave out messages that are no longer the newest of their key. While the reader keeps up, it gets
    /// every message. When it is lapped, or is more than half of the ring behind, it gets in this order:
    ///
    /// 1. from the channel's board, the newest message of each key that changed, in the order of their sequences;
    /// 2. [`Event::Live`](crate::Event::Live);
    /// 3. every later message, from the ring.
    ///
    /// [`Message::conflated`](crate::Message::conflated) is the exact number of messages of the key that were left out.
    ///
    /// The board has no replacement for a message without a key, or for a message whose key is not on the board.
    /// [`Event::Lapped`](crate::Event::Lapped), before `Live`, counts these messages.
    ///
    /// If a key was removed, the reader gets the message that removed the key. If the board no longer has that message, and the reader
    /// knows that the key was on the board, the reader gets a substitute: zeros and then the key, with the sequence of the last forgotten
    /// removal. [`Event::Lapped`](crate::Event::Lapped) counts all other removals.
    ///
    /// After a seek backwards, `conflated` is too low by the number of messages that come again.
    ///
    /// Works only with [`Start::Latest`] or [`Start::Board`], without [`tags`](Self::tags), and reads no journal. Cost: some 10 ns a
    /// message to read its key, and memory for a copy of the board. If the board has refused messages, each message whose key is not on the
    /// board also costs a search of the board's index.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{BoardSpec, Event, Publisher, Subscriber};
    /// let builder = Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// let mut publisher = builder.board(BoardSpec::new(0..1)).open()?;
    /// let mut slow = Subscriber::builder("t").dir(dir.path()).conflate().open()?;
    /// for price in 0..10_000u64 {
    ///     publisher.publish(&[[b'x'; 8], price.to_le_bytes()].concat())?;
    /// }
    /// match slow.recv()? {
    ///     Event::Message(m) => assert_eq!((m.sequence, m.conflated), (10_000, Some(9_999))),
    ///     other => panic!("{other:?}"),
    /// }
    /// assert_eq!(slow.recv()?, Event::Live { sequence: 10_001 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conflate(mut self) -> Self {
        self.conflation = Some(Behind::Half);
        self
    }

    /// Does the same as [`conflate`](Self::conflate), but for a lag of more than `bytes` bytes of the ring. A message takes 16 bytes more
    /// than its payload, rounded up to a multiple of 64. The measured lag can be too large by a 64th of the ring or 64 KiB, whichever is
    /// more. In a ring below 512 KiB, the lag can be too large by an eighth of the ring.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let builder = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// # let publisher = builder.board(shmcast::BoardSpec::new(0..1)).open()?;
    /// let reader = shmcast::Subscriber::builder("t").dir(dir.path()).conflate_behind(16 << 10).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conflate_behind(mut self, bytes: u64) -> Self {
        self.conflation = Some(Behind::Bytes(bytes));
        self
    }

    /// Takes the gate `name` of the channel. The publisher then waits for this subscriber, within the gate's limit. The channel's
    /// publisher, or the configuration of its daemon, sets the gates. The subscriber keeps the gate until it is dropped.
    ///
    /// The gate is in force once the publisher has noticed the subscriber, and the subscriber's lag is at most half of the gate's largest
    /// lag. Until then, the subscriber can be lapped. After that, it is lapped only if the publisher has waited too long and has dropped
    /// the gate.
    ///
    /// A subscriber that begins at the newest message is not lapped before the gate is in force, unless the ring is very small.
    ///
    /// Cost: three stores a message, to a cache line of the subscriber's own.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Gate, Publisher, Subscriber};
    /// let publisher = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).gate(Gate::new("risk")).open()?;
    /// let risk = Subscriber::builder("t").dir(dir.path()).gate("risk").open()?;
    /// let second = Subscriber::builder("t").dir(dir.path()).gate("risk").open();
    /// assert!(second.is_err(), "a gate has one reader at a time");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gate(mut self, name: impl Into<String>) -> Self {
        self.gate = Some(name.into());
        self
    }
}
