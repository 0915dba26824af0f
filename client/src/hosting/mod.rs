//! The segments and reader pages that a daemon passes to programs. This module is for programs that own channels on behalf of other
//! programs.
//!
//! All segments and pages are anonymous memory of the hosting user, with a sealed size. So no process can truncate memory that another
//! process has mapped. Only the host and root can open the memory again for writing. Each reader gets a read-only descriptor that the host
//! opens for this reader.
//!
//! Functions of this module have no examples, because they are useful only with a control socket, as in the daemon's `server/registry`.

mod differences;
mod gates;
mod generations;
mod verbs;

pub use crate::attach::park::{Bell, ParkedReader, Sight};
use crate::board::{BoardCounters, BoardSpec};
use crate::clock::Clock;
use crate::directory::ChannelDetail;
use crate::error::ChannelError;
use crate::lock::{self, Held};
use crate::status::reader_status;
pub use gates::{Borrower, HostedGates, LentGates};
pub use generations::{Cut, HostedCharter, boot_id};
pub use shmcast_layout::charter::Entry;
use shmcast_layout::control::{ChannelStatus, Process, ReaderStatus};
use shmcast_layout::error::OpenError;
pub use shmcast_layout::fault;
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::layout::header::{ClockKind, Header, State};
use shmcast_layout::layout::reader_page::BYTES as PAGE_BYTES;
pub use shmcast_layout::layout::reader_page::{BUCKETS, bucket_limit_ns};
pub use shmcast_layout::layout::record::{session_identity, session_words};
use shmcast_layout::layout::stream::StreamId;
use shmcast_layout::mem::memfd::{self, Reopen, Seal};
pub use shmcast_layout::mem::{Preparation, Step};
use shmcast_layout::reader_page::{HostPage, ReaderStats};
use shmcast_layout::ring::locate::Locator;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};
pub use verbs::{advice, check_channel_name, largest_message};

/// The least difference between the `created_ns` of two streams of one channel, if both streams begin at sequence 1. Bridges tell streams
/// apart by `created_ns`, in units of this length.
pub const STREAM_STEP_NS: u64 = 500_000_000;

/// Highest epoch that the host takes over from a segment, because a publisher can write any number there.
pub(crate) const LAST_EPOCH: u64 = u32::MAX as u64;

/// The properties of a new channel.
#[derive(Debug, Clone)]
pub struct HostedSpec {
    /// The name.
    pub name: String,
    /// Size of the ring in bytes: a power of two from 64 KiB to 16 GiB.
    pub capacity: u64,
    /// Largest payload in bytes; the ring's limit if `None`.
    pub max_message: Option<u64>,
    /// Number and name of the message schema. Without a schema, the number is 0 and the name is empty.
    pub schema: (u64, String),
    /// The operator's labels, as `key=value` lines.
    pub labels: String,
    /// The clock that stamps messages. If this is `None`, or if the counter is not usable, the segment uses the best clock of this machine.
    pub clock: Option<ClockKind>,
    /// The preparation of the memory.
    pub preparation: Preparation,
    /// The properties of the channel's board, if the channel has one.
    pub board: Option<BoardSpec>,
    /// Whether each publisher gets a generation of its own. If so, no reader receives messages that a publisher writes after it was cut
    /// off.
    pub is_strict: bool,
}

impl HostedSpec {
    /// Checks whether a channel with this spec can be made. Does not check whether there is enough memory. Makes nothing.
    ///
    /// # Errors
    /// [`ChannelError::Name`], [`ChannelError::Geometry`], or [`ChannelError::Segment`] for labels that do not fit.
    pub fn check(&self) -> Result<(), ChannelError> {
        self.header(None)?.to_words().map_err(|source| damaged(&self.name, source))?;
        self.segment_bytes().map(drop)
    }

    /// Bytes of memory that one segment takes: header, index, ring and board.
    ///
    /// # Errors
    /// [`ChannelError::Geometry`] and [`ChannelError::Board`]
    pub fn segment_bytes(&self) -> Result<u64, ChannelError> {
        let board = self.board.map_or(Ok(0), |board| board.bytes())?;
        Ok(Geometry::new(self.capacity, self.max_message)?.bytes_with(board))
    }

    /// Bytes of the largest payload that the channel will accept.
    ///
    /// # Errors
    /// [`ChannelError::Geometry`]
    pub fn max_message_bytes(&self) -> Result<u64, ChannelError> {
        Ok(Geometry::new(self.capacity, self.max_message)?.max_message)
    }

    fn header(&self, stream: Option<StreamId>) -> Result<Header, ChannelError> {
        check_channel_name(&self.name)?;
        let geometry = Geometry::new(self.capacity, self.max_message)?;
        let clock = Clock::of_kind(self.clock);
        Ok(new_header(&self.name, geometry, clock, self.schema.clone(), self.labels.clone(), stream))
    }
}

/// A segment of this host, with the lock file of the segment's publisher.
#[derive(Debug)]
pub struct HostedSegment {
    file: File,
    /// The file that the publisher locks. It contains the segment's identity, and no process can change this content. Readers get only a
    /// path descriptor of the file, so that no reader can hold the lock.
    lock: File,
    segment: Segment,
    /// The preparation that was asked for; `None` for a segment of an earlier host.
    asked: Option<Preparation>,
    steps: Vec<Step>,
}

impl HostedSegment {
    /// Makes an empty segment. It belongs to no channel before a [`HostedCharter`] names it.
    ///
    /// - `stream` is the stream that continues in the segment. Without `stream`, the segment begins a new stream.
    /// - `created_ns` is the time at which the sequences of the channel began. Without `created_ns`, they begin now. Bridges name their
    ///   sessions by this time.
    ///
    /// The call takes time in proportion to the capacity, up to seconds for gigabytes.
    ///
    /// # Errors
    /// [`ChannelError`] for a bad name or size, or if there is no memory.
    pub fn create(
        spec: &HostedSpec,
        stream: Option<StreamId>,
        created_ns: Option<u64>,
    ) -> Result<Self, ChannelError> {
        let mut header = spec.header(stream)?;
        header.created_ns = created_ns.unwrap_or(header.created_ns);
        let os = |what| ChannelError::os(what, format!("memfd:{}", spec.name));
        let file = memfd::create(&format!("shmcast:{}", spec.name)).map_err(os("create"))?;
        let segment = Segment::create_with_board(&file, header, spec.board.map(|board| board.0))
            .map_err(|source| damaged(&spec.name, source))?;
        memfd::seal(&file, Seal::Size).map_err(os("seal"))?;
        let lock = new_lock(segment.header())?;
        let steps = segment.prepare(spec.preparation);
        Ok(Self { file, lock, segment, asked: Some(spec.preparation), steps })
    }

    /// Makes a new segment continue a channel whose memory is lost. No program has seen the new segment yet. Its first message gets the
    /// sequence `next`, and its first publisher gets a later epoch than `epoch`.
    ///
    /// # Panics
    /// When the segment has had a publisher, or `next` is 0 or beyond [`MAX_SEQUENCE`](crate::MAX_SEQUENCE).
    pub fn continue_from(&self, next: u64, epoch: u64) {
        self.segment.continue_from(next, epoch.min(LAST_EPOCH), 0);
    }

    /// Takes the writer lock, so that no publisher can open the segment as long as the result lives. Returns `None` if a publisher holds
    /// the lock, or if the last publisher has not closed the channel. If `may_have_left` is true, the last publisher may have left the
    /// channel open, as a bridge does if its stream continues. `before` is the last epoch before the segment was made.
    ///
    /// # Errors
    /// The system's error.
    pub fn hold(&self, before: u64, may_have_left: bool) -> io::Result<Option<Hold>> {
        // The file is opened again, because the service manager keeps the first open file, and would keep a lock on it.
        let lock = memfd::reopen(&self.lock, Reopen::ReadWrite)?;
        if !lock::try_lock(&lock)? {
            return Ok(None);
        }
        Ok(Hold::of(Held::new(lock), &self.segment, before, may_have_left))
    }

    /// Takes over the segment that the charter (the file with the host's decisions) names, and its lock. Both files come from the service
    /// manager's store, or from a program that was attached when the earlier host died. Returns `None` for any other memory, and for a
    /// damaged segment. So no program can pass the memory of one channel off as that of another.
    ///
    /// # Errors
    /// The system's error, such as a lack of descriptors. In that case, try again, because the memory is not identified yet.
    pub fn adopt(name: &str, entry: &Entry, file: &File, lock: &File) -> Result<Option<Self>, ChannelError> {
        let os = |what| ChannelError::os(what, format!("memfd:{name}"));
        if !memfd::is_own(file).map_err(os("look at"))?
            || file_id(file).map_err(os("look at"))? != entry.segment
        {
            return Ok(None);
        }
        let Some(lock) = adopt_lock(lock, entry).map_err(os("open the lock of"))? else { return Ok(None) };
        let file = memfd::reopen(file, Reopen::ReadWrite).map_err(os("open"))?;
        // If the segment was sealed after its publisher had mapped it, it can only be opened for reading. This is enough for the host.
        let opened = Segment::open(&file, Access::Write).or_else(|_| Segment::open(&file, Access::Read));
        match opened {
            Ok(segment) => Ok(Some(Self { file, lock, segment, asked: None, steps: Vec::new() })),
            Err(OpenError::Os { what, source }) => Err(os(what)(source)),
            Err(_) => Ok(None),
        }
    }

    /// Whether the file is anonymous memory that this user made. It can be the memory of any channel.
    pub fn is_of_our_making(file: &File) -> bool {
        memfd::is_ours(file).unwrap_or(false)
    }

    /// Makes the charter's entry for this segment, as generation number `generation`.
    ///
    /// # Errors
    /// The error of `fstat`.
    fn entry(&self, generation: u64, is_strict: bool) -> io::Result<Entry> {
        Ok(Entry {
            generation,
            segment: file_id(&self.file)?,
            lock: file_id(&self.lock)?[1],
            uuid: self.uuid(),
            first: 1,
            restarted: generation,
            is_strict,
            stream: self.header().stream,
            created_ns: self.header().created_ns,
            ..Entry::default()
        })
    }

    /// Marks the segment as replaced, so that readers learn that the channel does not continue in it. The segment's publisher must have
    /// ended.
    pub fn supersede(&self) {
        if self.segment.access() == Access::Write {
            self.segment.supersede();
        }
    }

    /// Seals the segment: from now on no process can map it for writing. Call this after the segment's publisher has mapped it.
    ///
    /// # Errors
    /// The error of `fcntl`.
    pub fn seal(&self) -> io::Result<()> {
        memfd::seal(&self.file, Seal::FutureWrites)
    }

    /// Opens new descriptors for a publisher: the writable segment, and the lock.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn for_publisher(&self) -> io::Result<[File; 2]> {
        Ok([memfd::reopen(&self.file, Reopen::ReadWrite)?, memfd::reopen(&self.lock, Reopen::ReadWrite)?])
    }

    /// Opens new descriptors for a reader: the read-only segment, and a path descriptor of the lock. The reader sends both to the next
    /// host.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn for_reader(&self) -> io::Result<[File; 2]> {
        Ok([memfd::reopen(&self.file, Reopen::ReadOnly)?, memfd::reopen(&self.lock, Reopen::Path)?])
    }

    /// The files for a service manager to keep: the segment and the lock.
    pub fn files(&self) -> [&File; 2] {
        [&self.file, &self.lock]
    }

    /// Whether a publisher lives. A living publisher holds the kernel's lock on the lock file, even if it is not attached to this host.
    ///
    /// # Errors
    /// The error of `fcntl`.
    pub fn has_publisher(&self) -> io::Result<bool> {
        lock::is_locked(&self.lock)
    }

    /// The epoch of a publisher that died without closing the channel; `None` if the segment's lock shows no such death. `before` is the
    /// last epoch before the segment was made.
    pub fn dead_publisher(&self, before: u64) -> Option<u64> {
        match lock::dead_publisher(&self.lock, || self.segment.state())? {
            // No publisher has opened the segment since it was made.
            (epoch, State::Recovering) if epoch <= before => None,
            (epoch, _) => Some(epoch),
        }
    }

    /// The segment's identity.
    pub fn uuid(&self) -> [u64; 2] {
        self.segment.header().uuid
    }

    /// The properties of the segment's board, if it has one.
    pub fn board(&self) -> Option<BoardSpec> {
        self.segment.board_spec().map(BoardSpec)
    }

    /// The counts in the header of the segment's board, if it has one.
    pub fn board_counters(&self) -> Option<BoardCounters> {
        self.segment.board().map(|view| view.counters())
    }

    /// The segment's header, as it was made.
    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// The steps of the memory's preparation, with their results.
    pub fn preparation(&self) -> &[Step] {
        &self.steps
    }

    /// Returns a function that locks the memory again after [`adopt`](Self::adopt), because the earlier lock ended with the earlier host.
    /// The function takes time in proportion to the capacity. It does not make huge pages again, because this would cause page faults in
    /// other processes.
    pub fn lock_again(&self) -> impl FnOnce() -> Vec<Step> + Send + use<> {
        self.segment.preparer(Preparation { lock: true, ..Preparation::NONE })
    }

    /// The present state of the channel. The publisher and the readers are left out, because the host itself knows them.
    pub fn status(&self) -> ChannelStatus {
        let unheld = !self.has_publisher().unwrap_or(true);
        ChannelDetail::of(&self.segment).status(&self.segment.header().channel, unheld)
    }

    /// A locator of the ring, for the waker of parked readers.
    pub(crate) fn locator(&self) -> Locator {
        self.segment.locator()
    }

    /// The first sequence that the segment can have.
    pub fn first_sequence(&self) -> u64 {
        self.segment.first_sequence()
    }

    /// The clock of the channel.
    pub fn clock(&self) -> Clock {
        Clock::of_segment(self.segment.header())
    }
}

/// Proof that no publisher is active: the channel is closed, unused, or was left open by a publisher that has ended. As long as this value
/// lives, no publisher can open the channel.
#[derive(Debug)]
pub struct Hold {
    next: u64,
    _lock: Held,
}

impl Hold {
    /// Makes the proof if `segment` is closed, unused, or left open by its publisher. The caller holds the segment's lock.
    pub(crate) fn of(lock: Held, segment: &Segment, before: u64, may_have_left: bool) -> Option<Self> {
        let is_over = match segment.state() {
            None | Some((_, State::Closed)) => true,
            Some((epoch, State::Recovering)) => epoch <= before,
            Some((_, State::Active)) => may_have_left,
            Some(_) => false,
        };
        let next = segment.locator().tail().ok()?.sequence;
        is_over.then_some(Self { next, _lock: lock })
    }

    /// The sequence of the next message.
    pub const fn next_sequence(&self) -> u64 {
        self.next
    }
}

/// A reader page that this host has made or taken over.
#[derive(Debug)]
pub struct HostedPage {
    file: File,
    page: HostPage,
}

impl HostedPage {
    /// Makes an empty page, which its reader fills.
    ///
    /// # Errors
    /// The system's error.
    pub fn create() -> io::Result<Self> {
        let file = memfd::create("shmcast-reader")?;
        file.set_len(PAGE_BYTES)?;
        memfd::seal(&file, Seal::Size)?;
        Ok(Self { page: HostPage::open(&file)?, file })
    }

    /// Takes over a page from the reader that has it. The user of this process must have made the page.
    ///
    /// # Errors
    /// `InvalidInput` for any other file.
    pub fn adopt(file: &File) -> io::Result<Self> {
        if !memfd::is_ours(file)? || file.metadata()?.len() != PAGE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a reader page of this user's making",
            ));
        }
        let file = memfd::reopen(file, Reopen::ReadWrite)?;
        Ok(Self { page: HostPage::open(&file)?, file })
    }

    /// Opens a new descriptor for the reader.
    ///
    /// # Errors
    /// The error of `open`.
    pub fn for_reader(&self) -> io::Result<File> {
        memfd::reopen(&self.file, Reopen::ReadWrite)
    }

    /// Returns the value with which the host wakes a reader that sleeps between messages of `segment`. A bell is a pair of sockets.
    /// `bell` is the socket that the reader has sent.
    ///
    /// # Errors
    /// `InvalidInput` if `bell` is not a socket of a stream socket pair.
    pub fn park(&self, segment: &HostedSegment, bell: File) -> io::Result<ParkedReader> {
        ParkedReader::new(self.page.clone(), segment.locator(), bell)
    }

    /// The figures on the page; `None` while its reader is still filling it.
    pub fn stats(&self) -> Option<ReaderStats> {
        ReaderStats::read(&self.file).ok().flatten()
    }

    /// The reader as tools show it. `next` is the channel's next sequence.
    pub fn status(&self, process: Process, next: Option<u64>) -> Option<ReaderStatus> {
        self.stats().map(|stats| reader_status(&stats, process, next))
    }
}

fn damaged(name: &str, source: OpenError) -> ChannelError {
    ChannelError::Segment { path: format!("memfd:{name}").into(), source }
}

fn new_lock(header: &Header) -> Result<File, ChannelError> {
    let name = &header.channel;
    let os = |what| ChannelError::os(what, format!("memfd:{name}.lock"));
    let lock = memfd::create(&format!("shmcast:{name}.lock")).map_err(os("create"))?;
    lock.write_all_at(&identity(header.uuid), 0).map_err(os("write"))?;
    memfd::seal(&lock, Seal::Content).map_err(os("seal"))?;
    Ok(lock)
}

/// Opens the lock file that a program sent. Returns `None` if the charter (the file with the host's decisions) does not name this lock.
fn adopt_lock(shown: &File, entry: &Entry) -> io::Result<Option<File>> {
    if !memfd::is_own(shown)? || file_id(shown)?[1] != entry.lock {
        return Ok(None);
    }
    let lock = memfd::reopen(shown, Reopen::ReadWrite)?;
    let mut held = [0; 16];
    let is_the_one = memfd::is_ours(&lock)?
        && memfd::is_content_sealed(&lock)?
        && lock.metadata()?.len() == 16
        && lock.read_exact_at(&mut held, 0).is_ok()
        && held == identity(entry.uuid);
    Ok(is_the_one.then_some(lock))
}

/// Returns device and inode of a file. The file can be one that [`Reopen::Path`] opened.
fn file_id(file: &File) -> io::Result<[u64; 2]> {
    use std::os::unix::fs::MetadataExt;
    let metadata = file.metadata()?;
    Ok([metadata.dev(), metadata.ino()])
}

/// The content of a lock file: the identity of its segment.
fn identity([high, low]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// Makes the header for a new segment. Without `stream`, the segment begins a new stream.
pub(crate) fn new_header(
    name: &str,
    geometry: Geometry,
    clock: Clock,
    schema: (u64, String),
    labels: String,
    stream: Option<StreamId>,
) -> Header {
    let random = || {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).expect("Linux gives random bytes once it has booted");
        StreamId::from_bytes(bytes)
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Header {
        geometry,
        uuid: random().to_words(),
        stream: stream.unwrap_or_else(random),
        created_ns: since_1970.as_nanos() as u64,
        clock: clock.kind(),
        clock_hz: clock.hz(),
        schema_id: schema.0,
        channel: name.to_owned(),
        schema: schema.1,
        labels,
    }
}

impl ParkedReader {
    /// Makes the waker watch the ring of `segment`, in which the channel continues. The caller must also tell the reader about the new
    /// segment, because this call does not wake the reader.
    pub fn watch(&mut self, segment: &HostedSegment) {
        self.watch_ring(segment.locator());
    }
}
