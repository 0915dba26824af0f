//! For programs that own channels on behalf of others: the segments and reader pages that a daemon hands out.
//!
//! All of it is anonymous memory of the hosting user's own, with its size sealed: nobody can truncate it under a map,
//! and only the host (and root) can open it anew for writing. Readers get a read-only descriptor opened for them.

use crate::clock::Clock;
use crate::directory::{ChannelDetail, check_name};
use crate::error::ChannelError;
use crate::lock;
pub use crate::park::{Bell, ParkedReader, Sight};
use crate::status::reader_status;
use shmcast_layout::control::{ChannelStatus, Process, ReaderStatus};
use shmcast_layout::error::OpenError;
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::layout::header::{GENERATION, Header, LAZY_BYTES};
use shmcast_layout::layout::reader_page::BYTES as PAGE_BYTES;
pub use shmcast_layout::layout::reader_page::{BUCKETS, bucket_limit_ns};
pub use shmcast_layout::layout::record::{session_identity, session_words};
use shmcast_layout::mem::memfd;
pub use shmcast_layout::mem::{Preparation, Step, datagrams, handoff};
use shmcast_layout::reader_page::{HostPage, ReaderStats};
use shmcast_layout::ring::locate::Locator;
use shmcast_layout::segment::{Access, Segment};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a new channel is made with.
#[derive(Debug, Clone)]
pub struct HostedSpec {
    /// Its name.
    pub name: String,
    /// Bytes of the ring: a power of two from 64 KiB to 16 GiB.
    pub capacity: u64,
    /// Largest payload in bytes; the ring's limit if `None`.
    pub max_message: Option<u64>,
    /// The operator's `key=value` lines.
    pub labels: String,
    /// What to do to the memory first.
    pub preparation: Preparation,
    /// Whether each publisher gets a segment of its own; see [`HostedSegment::succeed`].
    pub is_strict: bool,
}

impl HostedSpec {
    /// Whether such a channel can be made at all, memory apart. Makes nothing.
    ///
    /// # Errors
    /// [`ChannelError::Name`], [`ChannelError::Geometry`], or [`ChannelError::Segment`] for labels that do not fit.
    pub fn check(&self) -> Result<(), ChannelError> {
        self.header()?.to_words().map_err(|source| damaged(&self.name, source))?;
        Ok(())
    }

    /// Bytes of memory that one segment takes: header, index and ring.
    ///
    /// # Errors
    /// [`ChannelError::Geometry`]
    pub fn segment_bytes(&self) -> Result<u64, ChannelError> {
        Ok(Geometry::new(self.capacity, self.max_message)?.segment_bytes())
    }

    /// Bytes of the largest payload that the channel will take.
    ///
    /// # Errors
    /// [`ChannelError::Geometry`]
    pub fn max_message_bytes(&self) -> Result<u64, ChannelError> {
        Ok(Geometry::new(self.capacity, self.max_message)?.max_message)
    }

    fn header(&self) -> Result<Header, ChannelError> {
        check_name(&self.name).map_err(|why| ChannelError::Name { name: self.name.clone(), why })?;
        let geometry = Geometry::new(self.capacity, self.max_message)?;
        Ok(new_header(&self.name, geometry, (0, String::new()), self.labels.clone()))
    }
}

/// A segment in the host's hands.
#[derive(Debug)]
pub struct HostedSegment {
    file: File,
    /// The file that the publisher locks. It holds the segment's identity, and nobody can change that. Readers get only a
    /// path to it, so that none can hold the lock.
    lock: File,
    segment: Segment,
    steps: Vec<Step>,
}

impl HostedSegment {
    /// Makes an empty segment.
    ///
    /// # Errors
    /// [`ChannelError`] for a bad name or size, or when there is no memory.
    pub fn create(spec: &HostedSpec) -> Result<Self, ChannelError> {
        let made = Self::make(spec, None)?;
        if spec.is_strict {
            made.segment.continue_from(1, 0, 1, 0);
        }
        Ok(made)
    }

    fn make(spec: &HostedSpec, created_ns: Option<u64>) -> Result<Self, ChannelError> {
        let mut header = spec.header()?;
        header.created_ns = created_ns.unwrap_or(header.created_ns);
        let os = |what| ChannelError::os(what, format!("memfd:{}", spec.name));
        let file = memfd::create(&format!("shmcast:{}", spec.name)).map_err(os("create"))?;
        let segment = Segment::create(&file, header).map_err(|source| damaged(&spec.name, source))?;
        memfd::seal_size(&file).map_err(os("seal"))?;
        let lock = new_lock(segment.header())?;
        let steps = segment.prepare(spec.preparation);
        Ok(Self { file, lock, segment, steps })
    }

    /// Takes back a segment that this user made earlier: from the service manager's store, or from a program that was
    /// attached to it when an earlier host died. `lock` is the file that publishers of it lock, or a path to it; without
    /// one, the segment gets a new one. `expected` is the channel that it must belong to, if that is known.
    ///
    /// # Errors
    /// [`ChannelError::Segment`] for anything that is not ours: nobody can slip us a segment of his own making.
    pub fn adopt(expected: Option<&str>, file: &File, lock: Option<File>) -> Result<Self, ChannelError> {
        let name = expected.unwrap_or("kept");
        let os = |what| ChannelError::os(what, format!("memfd:{name}"));
        let foreign = |what| damaged(name, OpenError::Field { what });
        let own = |file: &File| memfd::is_ours(file).map_err(os("look at"));
        if !own(file)? {
            return Err(foreign("the segment handed back is not of this user's making"));
        }
        let file = memfd::reopen_read_write(file).map_err(os("open"))?;
        // Sealed against writing after its publisher mapped it: reading is what is left, and enough.
        let segment = Segment::open(&file, Access::Write)
            .or_else(|_| Segment::open(&file, Access::Read))
            .map_err(|source| damaged(name, source))?;
        let name = segment.header().channel.clone();
        if expected.is_some_and(|expected| expected != name) {
            return Err(foreign("the segment handed back belongs to another channel"));
        }
        let lock = match lock {
            Some(lock) => adopt_lock(&lock, segment.header())
                .map_err(os("open the lock of"))?
                .ok_or_else(|| foreign("the lock handed back is not the segment's"))?,
            None => new_lock(segment.header())?,
        };
        Ok(Self { file, lock, segment, steps: Vec::new() })
    }

    /// Makes the segment in which a strict channel goes on, whatever its old publisher still writes to this one.
    ///
    /// From a sequence that this finds, messages here are void: said first in the `pages` of the readers, whatever they
    /// are doing, and then looked for once more, so that no message is void for one reader and valid for another. What
    /// was committed before stays valid and readable. The readers are to be sent the new segment after this.
    ///
    /// # Errors
    /// [`ChannelError`] when there is no memory, or the ring is damaged.
    pub fn succeed<'a>(
        &self,
        spec: &HostedSpec,
        pages: impl Iterator<Item = &'a HostedPage> + Clone,
    ) -> Result<Self, ChannelError> {
        // First of all: without memory for it nothing may be void.
        // As old as the channel: bridges tell by it whether its sequences have begun again.
        let successor = Self::make(spec, Some(self.header().created_ns))?;
        let generation = self.generation().max(1);
        let cut = || {
            let place = self.segment.locator().tail();
            let next =
                place.map_err(|source| ChannelError::Locate { name: spec.name.clone(), source })?.sequence;
            pages.clone().for_each(|page| page.page.cut(generation, next));
            Ok::<u64, ChannelError>(next)
        };
        cut()?;
        let next = cut()?;
        let epoch = self.segment.state().map_or(0, |(epoch, _)| epoch);
        let bytes = self.segment.header_word(LAZY_BYTES);
        successor.segment.continue_from(next, epoch, generation + 1, bytes);
        if let Some(session) = self.segment.session() {
            successor.segment.continue_session(session);
        }
        if self.segment.access() == Access::Write {
            self.segment.supersede();
        }
        Ok(successor)
    }

    /// Tells readers that the channel does not go on in this segment. Its publisher must have gone.
    pub fn supersede(&self) {
        if self.segment.access() == Access::Write {
            self.segment.supersede();
        }
    }

    /// Lets nobody map the segment for writing any more. To be called when its publisher has mapped it.
    ///
    /// # Errors
    /// What `fcntl` says.
    pub fn seal(&self) -> io::Result<()> {
        memfd::seal_future_writes(&self.file)
    }

    /// Fresh descriptors for a publisher: the segment, writable, and the lock.
    ///
    /// # Errors
    /// What `open` says.
    pub fn for_publisher(&self) -> io::Result<[File; 2]> {
        Ok([memfd::reopen_read_write(&self.file)?, memfd::reopen_read_write(&self.lock)?])
    }

    /// Fresh descriptors for a reader: the segment, read-only, and a path to the lock, to show to the next host.
    ///
    /// # Errors
    /// What `open` says.
    pub fn for_reader(&self) -> io::Result<[File; 2]> {
        Ok([memfd::reopen_read_only(&self.file)?, memfd::reopen_as_path(&self.lock)?])
    }

    /// What a service manager is to keep: the segment and the lock.
    pub fn files(&self) -> [&File; 2] {
        [&self.file, &self.lock]
    }

    /// Whether a publisher lives, attached to this host or not: the kernel's word.
    ///
    /// # Errors
    /// What `fcntl` says.
    pub fn has_publisher(&self) -> io::Result<bool> {
        lock::is_locked(&self.lock)
    }

    /// Takes over the lock of `other`, which is the same segment, if a publisher holds that and nobody ours: a service
    /// manager may have kept the segment without it. Says whether it did.
    pub fn take_lock(&mut self, other: Self) -> bool {
        let is_held = |hosted: &Self| hosted.has_publisher().unwrap_or(false);
        let is_wanted = other.uuid() == self.uuid() && is_held(&other) && !is_held(self);
        if is_wanted {
            self.lock = other.lock;
        }
        is_wanted
    }

    /// Which of a strict channel's segments this is, counted from 1; 0 for a channel that keeps one.
    pub fn generation(&self) -> u64 {
        self.segment.header_word(GENERATION)
    }

    /// The segment's identity.
    pub fn uuid(&self) -> [u64; 2] {
        self.segment.header().uuid
    }

    /// What the segment was made with.
    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// How the preparation of the memory went.
    pub fn preparation(&self) -> &[Step] {
        &self.steps
    }

    /// Locks the memory again after [`adopt`](Self::adopt): a lock lasts as long as the map of the process that asked.
    /// Huge pages stay as they are, since collapsing pages that are in use would make their users fault.
    pub fn lock_again(&mut self) {
        self.steps = self.segment.prepare(Preparation { lock: true, ..Preparation::NONE });
    }

    /// The channel as it is now, without its publisher and readers, which the host knows.
    pub fn status(&self) -> ChannelStatus {
        let unheld = !self.has_publisher().unwrap_or(true);
        ChannelDetail::of(&self.segment).status(&self.segment.header().channel, unheld)
    }

    /// For those who watch the ring on behalf of sleepers.
    pub(crate) fn locator(&self) -> Locator {
        self.segment.locator()
    }

    /// The clock of the channel.
    pub fn clock(&self) -> Clock {
        Clock::of_segment(self.segment.header())
    }
}

/// A reader page in the host's hands.
#[derive(Debug)]
pub struct HostedPage {
    file: File,
    page: HostPage,
}

impl HostedPage {
    /// Makes an empty page, to be filled by its reader.
    ///
    /// # Errors
    /// What the system says.
    pub fn create() -> io::Result<Self> {
        let file = memfd::create("shmcast-reader")?;
        file.set_len(PAGE_BYTES)?;
        memfd::seal_size(&file)?;
        Ok(Self { page: HostPage::open(&file)?, file })
    }

    /// Takes back a page of this user's making from the reader that holds it.
    ///
    /// # Errors
    /// `InvalidInput` for anything else.
    pub fn adopt(file: &File) -> io::Result<Self> {
        if !memfd::is_ours(file)? || file.metadata()?.len() != PAGE_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "not a reader page of this user's making",
            ));
        }
        let file = memfd::reopen_read_write(file)?;
        Ok(Self { page: HostPage::open(&file)?, file })
    }

    /// A fresh descriptor for the reader.
    ///
    /// # Errors
    /// What `open` says.
    pub fn for_reader(&self) -> io::Result<File> {
        memfd::reopen_read_write(&self.file)
    }

    /// Takes in hand a reader that sleeps between messages of `segment`, and the end of the bell that it sent.
    ///
    /// # Errors
    /// `InvalidInput` for a `bell` that is no end of a stream socket pair.
    pub fn park(&self, segment: &HostedSegment, bell: File) -> io::Result<ParkedReader> {
        ParkedReader::new(self.page.clone(), segment, bell)
    }

    /// What the page says; `None` while its reader is still filling it.
    pub fn stats(&self) -> Option<ReaderStats> {
        ReaderStats::read(&self.file).ok().flatten()
    }

    /// The reader as tools show it; `next` is the channel's next sequence.
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
    lock.write_all_at(&identity(header), 0).map_err(os("write"))?;
    memfd::seal_content(&lock).map_err(os("seal"))?;
    Ok(lock)
}

/// The lock that somebody shows, opened; `None` if it is not the one that was made for this segment, so that nobody can
/// have a lock of another channel taken for this one's.
fn adopt_lock(shown: &File, header: &Header) -> io::Result<Option<File>> {
    if !memfd::is_own(shown)? {
        return Ok(None);
    }
    let lock = memfd::reopen_read_write(shown)?;
    let mut held = [0; 16];
    let is_the_one = memfd::is_ours(&lock)?
        && memfd::is_content_sealed(&lock)?
        && lock.metadata()?.len() == 16
        && lock.read_exact_at(&mut held, 0).is_ok()
        && held == identity(header);
    Ok(is_the_one.then_some(lock))
}

/// What a lock says it is of.
fn identity(header: &Header) -> [u8; 16] {
    (u128::from(header.uuid[0]) << 64 | u128::from(header.uuid[1])).to_be_bytes()
}

/// The header of a segment that is made now, with this host's best clock.
pub(crate) fn new_header(name: &str, geometry: Geometry, schema: (u64, String), labels: String) -> Header {
    let clock = Clock::of_this_host();
    let mut uuid = [0; 16];
    getrandom::fill(&mut uuid).expect("Linux gives random bytes once it has booted");
    let (high, low) = uuid.split_at(8);
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of sixteen bytes"));
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Header {
        geometry,
        uuid: [word(high), word(low)],
        channel_id: u64::from(crc32c::crc32c(name.as_bytes())),
        created_ns: since_1970.as_nanos() as u64,
        clock: clock.kind(),
        clock_hz: clock.hz(),
        schema_id: schema.0,
        channel: name.to_owned(),
        schema: schema.1,
        labels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_is_as_old_as_its_channel_and_carries_its_remote_session() {
        let spec = HostedSpec {
            name: "t".into(),
            capacity: 64 << 10,
            max_message: None,
            labels: String::new(),
            preparation: Preparation::NONE,
            is_strict: true,
        };
        let first = HostedSegment::create(&spec).unwrap();
        assert_eq!(first.segment.session(), None);
        let mut writer = first.segment.writer(1, 1).unwrap();
        writer.session(*b"EQTY00000Z", 2);
        let second = first.succeed(&spec, std::iter::empty()).unwrap();
        assert_eq!(second.segment.session(), Some(*b"EQTY00000Z"));
        assert_eq!(second.header().created_ns, first.header().created_ns);
        assert_ne!(second.uuid(), first.uuid());
    }
}
