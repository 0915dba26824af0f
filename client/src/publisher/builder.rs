//! The options with which a publisher opens a channel. This module also opens the channels of a daemon. The module `files` opens channels
//! that are files.

use super::behind::Behind;
use super::borrowed::borrow_gates;
use super::prepared::Prepared;
use super::required::check;
use super::{Hosted, Publisher, Stamps, TOUCHED_BYTES};
use crate::attach::connect::{Client, Conversation};
use crate::attach::keeper::{Attachment, keeper};
use crate::board::BoardSpec;
use crate::clock::Clock;
use crate::directory::{Directory, OpenGates};
use crate::error::{ChannelError, Holder};
use crate::gate::{Gate, GateError, Gates};
use crate::journal::JournalError;
use crate::lock::{self, Held};
use shmcast_layout::charter::Charter;
use shmcast_layout::control::{Request, Required, Response};
use shmcast_layout::layout::charter::Verdict;
use shmcast_layout::layout::header::{ClockKind, State};
use shmcast_layout::mem::Preparation;
use shmcast_layout::ring::writer::TakeOverError;
use shmcast_layout::segment::{Access, Segment};
use std::path::{Path, PathBuf};

/// Default capacity of a new channel, in bytes.
pub const DEFAULT_CAPACITY: u64 = 64 << 20;

/// The options for opening a channel for publishing.
#[derive(Debug, Clone)]
#[must_use]
pub struct PublisherBuilder {
    pub(super) name: String,
    pub(super) directory: Directory,
    pub(super) client: Option<Client>,
    pub(super) capacity: Option<u64>,
    pub(super) max_message: Option<u64>,
    pub(super) mode: Option<u32>,
    /// `None` stands for the default: `open` prepares the first pages, and a thread prepares the other pages after that.
    pub(super) preparation: Option<Preparation>,
    pub(super) schema: (u64, String),
    /// Whether an existing channel must have no schema. Has no effect if `schema` has a number.
    pub(super) is_untyped: bool,
    pub(super) labels: String,
    pub(super) clock: Option<ClockKind>,
    pub(super) anew: bool,
    pub(super) behind: Option<Behind>,
    pub(super) stamps: Stamps,
    pub(super) board: Option<BoardSpec>,
    pub(super) gates: Vec<Gate>,
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
            preparation: None,
            schema: (0, String::new()),
            is_untyped: false,
            labels: String::new(),
            clock: None,
            anew: false,
            behind: None,
            stamps: Stamps::default(),
            board: None,
            gates: Vec::new(),
        }
    }

    /// Uses the channel in the directory at `path` instead of the default directory.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// shmcast::Publisher::builder("t").dir(dir.path()).capacity(1 << 20).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn dir(self, path: impl Into<PathBuf>) -> Self {
        self.directory(&Directory::at(path))
    }

    /// Uses the channel in `directory`.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let directory = shmcast::Directory::at(dir.path());
    /// shmcast::Publisher::builder("t").directory(&directory).capacity(1 << 20).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn directory(mut self, directory: &Directory) -> Self {
        self.directory = directory.clone();
        self.client = None;
        self
    }

    /// Uses the channel of a daemon instead of one in a directory. The daemon has made the channel and chosen its properties.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// shmcast::Publisher::builder("t").client(&client).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn client(mut self, client: &Client) -> Self {
        self.client = Some(client.clone());
        self
    }

    /// The location of the channel: the daemon's socket, or the directory. Within this location, a channel's name is unique.
    ///
    /// ```
    /// let builder = shmcast::Publisher::builder("ticks").dir("/dev/shm/mine");
    /// assert_eq!(builder.location(), std::path::Path::new("/dev/shm/mine"));
    /// ```
    pub fn location(&self) -> &Path {
        self.client.as_ref().map_or(self.directory.path(), Client::socket)
    }

    /// Sets the size of the ring in bytes: a power of two from 64 KiB to 16 GiB. The default for a new channel is [`DEFAULT_CAPACITY`]. An
    /// existing channel must have this capacity. Without this call, an existing channel can have any capacity.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(1 << 20).open()?;
    /// assert_eq!(publisher.capacity(), 1 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Some(bytes);
        self
    }

    /// Sets the largest payload in bytes: at most an eighth of the capacity, and at most 16 MiB. The default is this limit.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(1 << 20).max_message(1500).open()?;
    /// assert_eq!(publisher.max_message(), 1500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_message(mut self, bytes: u64) -> Self {
        self.max_message = Some(bytes);
        self
    }

    /// Sets the mode of the directories that are made. Files get the read bits of this mode. With the default 0700, only this user can read
    /// or publish. With 0755, all users can read, and only this user can publish.
    ///
    /// [`open`](Self::open) returns [`ChannelError::Mode`] if an existing channel has another mode, or if the directory that contains the
    /// channel does not let in the users of this mode. Without this call, any mode is accepted. This option is only for channels that are
    /// files.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// shmcast::Publisher::builder("t").dir(dir.path().join("new")).capacity(1 << 20).mode(0o755).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = Some(mode & 0o777 | 0o700);
        self
    }

    /// Sets how the memory is prepared before [`open`](Self::open) returns. This replaces the default, which is described below. Steps that
    /// the kernel refuses are listed by [`Publisher::preparation`], and do not make `open` fail.
    ///
    /// By default every page is touched and locked, so that no message meets a page fault, and no page is swapped out. `open` touches the
    /// first 8 MiB. Then a thread of the lowest priority, `shmcast-prepare`, touches the other pages from front to back:
    ///
    /// - The thread takes some 0.6 ms a MiB on an idle CPU. It ends when it is done, or when the publisher is dropped.
    /// - A publisher that overtakes the thread takes the page faults itself, about 1 us for each 4 KiB.
    /// - The thread runs on the CPUs of the thread that calls `open`. If the calling thread has a real-time policy, `open` touches all
    ///   pages itself.
    ///
    /// [`Preparation::FULL`] touches and locks all pages before `open` returns, and puts the ring on huge pages. The default has no huge
    /// pages. To make them takes some 2.5 ms a MiB, and processes that use the pages at that time must wait.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Preparation, Publisher};
    /// let steady = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).prepare(Preparation::FULL).open()?;
    /// assert_eq!(steady.preparation().len(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(mut self, preparation: Preparation) -> Self {
        self.preparation = Some(preparation);
        self
    }

    /// Chooses which messages carry the time of their publication. The default is every message. See [`Stamps`].
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Event, Mark, Publisher, Stamps, Subscriber};
    /// let builder = Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// let mut publisher = builder.stamps(Stamps::Given).open()?;
    /// let mut subscriber = Subscriber::builder("t").dir(dir.path()).open()?;
    /// let clock = subscriber.clock();
    /// publisher.publish(b"nobody asks when")?;
    /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.latency_ns(&clock).is_none()));
    /// publisher.publish_at(b"a tick", Mark::default(), clock.now())?;
    /// assert!(matches!(subscriber.recv()?, Event::Message(m) if m.latency_ns(&clock).is_some()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stamps(mut self, stamps: Stamps) -> Self {
        self.stamps = stamps;
        self
    }

    /// Sets the number and the name of the message schema. Readers compare both with their own. An existing channel must have the same
    /// number and the same name. A number of 0 accepts any schema, and an empty name accepts any name.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(1 << 20).schema(7, "quote/1").open()?;
    /// assert_eq!(publisher.header().schema, "quote/1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn schema(mut self, id: u64, name: impl Into<String>) -> Self {
        self.schema = (id, name.into());
        self
    }

    /// Sets labels of your own, as `key=value` lines, which tools show. Only for a new channel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(1 << 20).labels("venue=XETR\n").open()?;
    /// assert_eq!(publisher.header().labels, "venue=XETR\n");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn labels(mut self, labels: impl Into<String>) -> Self {
        self.labels = labels.into();
        self
    }

    /// Sets the clock that stamps messages. Only for a new channel that is a file. The default is the CPU's counter if the counter is
    /// invariant, and CLOCK_MONOTONIC otherwise. A counter that is not invariant is never used.
    ///
    /// The counter takes some 10 ns to read, CLOCK_MONOTONIC some 25 ns. Choose CLOCK_MONOTONIC for readers whose language cannot read the
    /// counter, such as Java.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{ClockKind, Publisher};
    /// let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 20);
    /// let publisher = builder.clock_kind(ClockKind::Monotonic).open()?;
    /// assert_eq!(publisher.clock().kind(), ClockKind::Monotonic);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock_kind(mut self, kind: ClockKind) -> Self {
        self.clock = Some(kind);
        self
    }

    /// Replaces the existing segment by a new one, in which sequences begin at 1 again. Use it for a channel whose remote source was
    /// restarted. Readers of the old segment get [`RecvError::Superseded`](crate::RecvError::Superseded), or, if a daemon owns the channel,
    /// [`Event::Restarted`](crate::Event::Restarted). Sizes, schema and labels stay unchanged unless they are given.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.publish(b"of yesterday")?;
    /// publisher.close();
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(1 << 20).anew().open()?;
    /// assert_eq!(publisher.next_sequence(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn anew(mut self) -> Self {
        self.anew = true;
        self
    }

    /// Makes the sequences of a new channel continue after the journal in the directory `journal`. So no sequence is used twice, even if a
    /// reboot lost the channel's memory.
    ///
    /// - If the journal ends with a clean record, because the channel was closed, sequences continue after the journal's last sequence.
    /// - Otherwise sequences continue after the journal's reserve, a sequence that no publisher has passed. The reserve is up to 2^32
    ///   sequences after the journal's last sequence. Readers of the journal learn which sequences are left out.
    /// - The epoch continues, too.
    /// - If there is no journal yet, this option begins a journal. The parent of the journal's directory must exist.
    ///
    /// The journal is safe from a power cut before any other process can see the channel.
    ///
    /// If the channel exists, it continues at its next sequence. With [`anew`](Self::anew), the sequences of the new segment continue after
    /// the journal.
    ///
    /// Use this for a channel that is a file and that `shmcast record` records into this directory. A daemon does the same for its channels
    /// with journals. Without a recorder, sequences can repeat after 2^31 messages of one publisher. Making the channel includes one sync
    /// of the file system.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let journal = dir.path().join("ticks.journal");
    /// use shmcast::Publisher;
    /// let builder = || Publisher::builder("ticks").dir(dir.path().join("memory")).capacity(1 << 20).continue_from(&journal);
    /// let mut publisher = builder().open()?;
    /// assert_eq!(publisher.publish(b"before the power cut")?, 1);
    /// drop(publisher);
    /// std::fs::remove_dir_all(dir.path().join("memory"))?;
    /// let publisher = builder().open()?;
    /// assert_eq!(publisher.next_sequence(), (1 << 32) + 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn continue_from(mut self, journal: impl Into<PathBuf>) -> Self {
        self.behind = Some(Behind::of(journal.into()));
        self
    }

    /// Gives a new channel a board, which has the last message of each key. A reader gets these messages, and then the stream, with
    /// [`Start::Board`](crate::Start::Board).
    ///
    /// An existing channel, or a channel of a daemon, must have the same board. A channel without a board gets one only with
    /// [`anew`](Self::anew). If a channel has a board, each of its publishers updates the board, even without this call.
    ///
    /// Cost: each message is stored once more, some 10 to 20 ns for 64 bytes. [`BoardSpec::bytes`] returns the size of the memory.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{BoardSpec, Publisher};
    /// let board = BoardSpec::new(0..8).keys(10_000).value(256);
    /// let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).board(board).open()?;
    /// publisher.publish(&[7; 40])?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn board(mut self, board: BoardSpec) -> Self {
        self.board = Some(board);
        self
    }

    /// Adds a gate: a reader that the publisher waits for, within a limit. Call this once for each gate, at most 15 times. Without this
    /// call, the gates of an earlier publisher are removed.
    ///
    /// Use it for a channel that is a file. Any user who can read the channel can take a gate. For the channels of a daemon, the daemon's
    /// configuration sets the gates and their users.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Gate, Publisher};
    /// let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 20);
    /// let publisher = builder.gate(Gate::new("risk")).gate(Gate::new("ledger").refuse()).open()?;
    /// assert_eq!(publisher.gates().len(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gate(mut self, gate: Gate) -> Self {
        self.gates.push(gate);
        self
    }

    /// Opens the channel: makes it, or takes over the existing one. A takeover increments the epoch, and sequences continue, whether the
    /// last publisher closed the channel or died. Attached readers stay attached.
    ///
    /// Reserving the memory of a new channel takes about 0.2 ms per MiB. [`prepare`](Self::prepare) documents the time to touch the memory.
    /// The first `open` in a process also measures the clock, for at most 20 ms.
    ///
    /// # Errors
    /// - [`ChannelError::InUse`], with the holder, while another publisher lives
    /// - [`ChannelError::NotAChannel`] for a directory that holds foreign files
    /// - [`ChannelError::Journal`] with [`continue_from`](Self::continue_from)
    /// - [`ChannelError::Gate`] with [`gate`](Self::gate)
    /// - [`ChannelError::Mismatch`], [`ChannelError::Mode`], [`ChannelError::Segment`] and others
    ///
    /// After any of these errors, nothing has changed.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{ChannelError, Publisher};
    /// let publisher = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).open()?;
    /// let refused = Publisher::builder("t").dir(dir.path()).capacity(1 << 20).open();
    /// assert!(matches!(refused, Err(ChannelError::InUse { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(self) -> Result<Publisher, ChannelError> {
        match (self.client.clone(), &self.behind) {
            (Some(_), _) if !self.gates.is_empty() => {
                let (name, gate) = (self.name, self.gates[0].name().to_owned());
                Err(ChannelError::Gate { name, gate, why: GateError::Hosted })
            }
            (Some(client), None) => self.attach(&client),
            (Some(_), Some(_)) => Err(self.refused_by_journal(JournalError::Hosted)),
            (None, _) => {
                let (directory, name) = (self.directory.clone(), self.name.clone());
                self.open_file().map_err(|error| directory.explained(&name, error))
            }
        }
    }

    fn attach(self, client: &Client) -> Result<Publisher, ChannelError> {
        let keeper = keeper(client.socket())?;
        let mut conversation = Conversation::open(client.socket())?;
        let request = |resume, required| Request::Publish {
            channel: self.name.clone(),
            resume,
            anew: self.anew && !resume,
            required,
        };
        let required = self.required();
        let (reply, granted) = conversation.ask(&request(false, required.clone()), &[])?;
        let Response::Publishing { generation, gates } = reply else {
            if let Response::Unfit(found) = &reply {
                check(&self.name, &required, found)?;
            }
            return Err(conversation.confused(&reply));
        };
        let [file, lock, charter_file] = conversation.exactly(granted)?;
        let memory = || format!("memfd:{}", self.name);
        // The daemon can grant a free channel to two programs at the same time. The lock decides between them.
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
        let gates = match gates {
            0 => OpenGates::default(),
            _ => borrow_gates(&mut conversation, &segment)?,
        };
        let resume = request(true, Required::default());
        let shown = vec![file, lock.file.try_clone().map_err(ChannelError::os("duplicate", memory()))?];
        // In new memory that continues a channel, only the charter says whether the channel had ended.
        let has_ended = matches!(segment.state(), Some((_, State::Recovering)))
            && matches!(charter.verdict(generation.wrapping_sub(1)), Verdict::Cut { ended: true, .. });
        let mut publisher = self.start(segment, lock, gates)?;
        publisher.follows_end |= has_ended;
        let line = conversation.into_line()?;
        let attachment = Attachment::new(keeper, line, resume, Preparation::NONE, charter_file, shown);
        publisher.hosted = Some(Hosted { attachment, charter, generation });
        Ok(publisher)
    }

    pub(super) fn start(
        self,
        segment: Segment,
        lock: Held,
        gates: OpenGates,
    ) -> Result<Publisher, ChannelError> {
        let prepared = match self.preparation {
            Some(wanted) => Prepared::now(&segment, wanted),
            None => Prepared::behind(&segment),
        };
        let clock = Clock::of_segment(segment.header());
        let follows_end = matches!(segment.state(), Some((_, State::Closed)));
        let mut writer = segment.writer(std::process::id(), clock.now()).map_err(|why| match why {
            TakeOverError::Superseded => ChannelError::Superseded { name: self.name },
            TakeOverError::Locate(source) => ChannelError::Locate { name: self.name, source },
        })?;
        // First, the board gets the messages that a dead publisher committed but did not store on the board.
        let locate = |source| ChannelError::Locate { name: segment.header().channel.clone(), source };
        let board = segment.board_writer().map_err(locate)?.map(|(board, _)| Box::new(board));
        let mut staging = vec![0; segment.header().geometry.max_message as usize].into_boxed_slice();
        // The pages of a zeroed buffer are not in memory yet. The next line touches the pages that claims of common sizes need.
        staging.iter_mut().take(TOUCHED_BYTES).for_each(|byte| *byte = 0xff);
        let gates = Gates::of(gates, &segment, &mut writer);
        let stamps = self.stamps;
        Ok(Publisher {
            writer,
            clock,
            stamps,
            segment,
            staging,
            prepared,
            follows_end,
            stays_open: false,
            lock,
            place: None,
            hosted: None,
            gates,
            board,
        })
    }
}
