//! Parking: a reader sleeps until the daemon reports that there is something to read. The publisher wakes no reader, and does not know
//! which readers sleep.
//!
//! This module has both ends: the reader's [`Parking`], and the host's [`ParkedReader`]. The two ends share two objects, which no other
//! reader uses:
//!
//! - a word in the reader's page, which says for which position the reader sleeps;
//! - the bell, which is a socket pair.
//!
//! ```text
//! reader                                       the host's waker
//! page: asleep at this position                looks at each page, and into the ring where one sleeps:
//! looks into the ring once more                something there? rings, once a nap
//! rings ("I may be the first to sleep")  --->  with nobody asleep for long, blocks on all bells
//! sleeps on its bell                     <---  rings
//! page: awake
//! ```
//! Functions of this module have no examples, because a host uses them together with a control socket, as the daemon's `server/waker` does.
//!
//! The bell is a socket pair and not an eventfd, for three reasons:
//!
//! - A single call can send to a socket without blocking. The non-blocking flag of an eventfd is shared by all processes that hold the
//!   eventfd, and without this flag, a write blocks while the eventfd's counter is full.
//! - A reader cannot affect the pair of another reader. If all readers rang the same eventfd, any reader could empty or fill it.
//! - An event loop can wait for a socket without unsafe code.
//!
//! The reader keeps both sockets of the bell, and sends one of them to each new daemon. So the bell outlives a daemon: the next daemon
//! still finds a byte that the reader has sent.

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, recv, send, sockopt};
use shmcast_layout::layout::geometry::GRANULE;
use shmcast_layout::reader_page::{HostPage, ReaderPage};
use shmcast_layout::ring::locate::Locator;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Default for the longest sleep of a parked reader. A daemon that hangs can delay the reader by at most this time.
pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(100);
/// The pause between two polls of a parked reader that no daemon wakes.
pub(crate) const ALONE: Duration = Duration::from_millis(1);

/// The reader's part of parking: it announces that the reader sleeps, and sleeps until the bell rings.
#[derive(Debug)]
pub(crate) struct Parking {
    bell: UnixStream,
    page: ReaderPage,
    /// Number of the nap. It distinguishes one nap from the next.
    nap: u64,
    longest: Duration,
    /// A number that no other bell of the process has.
    id: u64,
}

/// Makes a bell, which is a pair of sockets through which a daemon wakes a reader. Returns the reader's end and the end for daemons.
pub(crate) fn bell() -> io::Result<(UnixStream, File)> {
    let (near, far) = UnixStream::pair()?;
    near.set_nonblocking(true)?;
    Ok((near, OwnedFd::from(far).into()))
}

impl Parking {
    /// Makes the [`Parking`] of the reader with this `page`. The reader sleeps for at most `longest` at a time.
    pub(crate) fn new(bell: UnixStream, page: ReaderPage, longest: Duration) -> Self {
        static MADE: AtomicU64 = AtomicU64::new(0);
        Self { bell, page, nap: 0, longest, id: MADE.fetch_add(1, Ordering::Relaxed) }
    }

    /// The number of the bell. No other bell of this process has it.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Announces on the reader's page that the reader will sleep until there is a record at `position`. After this call, the caller must
    /// poll the ring once more.
    pub(crate) fn lie_down(&mut self, position: u64) {
        self.nap = self.nap.wrapping_add(1);
        self.page.sleeps(position, self.nap);
    }

    /// Writes to the page that the reader is awake.
    pub(crate) fn rise(&self) {
        self.page.woke();
    }

    /// The longest time that the reader sleeps in one nap.
    pub(crate) fn longest(&self) -> Duration {
        self.longest
    }

    /// The reader's end of the bell. It becomes readable when the bell rings.
    pub(crate) fn bell(&self) -> &UnixStream {
        &self.bell
    }

    /// Reads all bytes from the bell, so that the bell no longer rings.
    pub(crate) fn hear(&self) {
        hear(&self.bell);
    }

    /// Tells the waker, through the bell, that this reader is about to sleep. Costs one system call, which never blocks.
    pub(crate) fn ring(&self) {
        ring(&self.bell);
    }

    /// Sleeps until the bell rings or a signal arrives, but not longer than `limit` or the longest allowed sleep.
    pub(crate) fn sleep(&self, limit: Duration) {
        let _nap = Nap(self);
        // A time that is too long for a timespec counts as endless.
        let timeout = Timespec::try_from(self.longest.min(limit)).ok();
        // An error is ignored: the caller polls the ring next in any case.
        let _ = poll(&mut [PollFd::new(&self.bell, PollFlags::IN)], timeout.as_ref());
    }

    /// Sleeps as [`sleep`](Self::sleep) does, while other tasks run. The future can be dropped at any time.
    #[cfg(feature = "tokio")]
    pub(crate) async fn nap(&self) {
        let _nap = Nap(self);
        // The registration is only for this nap, since the next nap can be in another event loop.
        let bell = self.bell.try_clone().and_then(tokio::net::UnixStream::from_std);
        match bell {
            Ok(bell) => drop(tokio::time::timeout(self.longest, bell.readable()).await),
            // The process can be out of descriptors.
            Err(_) => tokio::time::sleep(ALONE).await,
        }
    }
}

/// The bells of several readers that sleep together. The first bell that rings wakes all of them.
#[derive(Debug)]
pub(crate) struct Bells {
    epoll: OwnedFd,
}

/// Greatest number of bells that one call of [`ringing`](Bells::ringing) reports. The next call reports the others.
const HEARD_AT_ONCE: usize = 16;

impl Bells {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        // Event loops accept only nonblocking files. The flag has no other effect, because no call on this descriptor looks at it.
        rustix::io::ioctl_fionbio(&epoll, true)?;
        Ok(Self { epoll })
    }

    /// Adds a reader's bell. [`ringing`](Self::ringing) reports this bell as `index`.
    pub(crate) fn add(&self, index: usize, parking: &Parking) -> io::Result<()> {
        let data = epoll::EventData::new_u64(index as u64);
        Ok(epoll::add(&self.epoll, &parking.bell, data, epoll::EventFlags::IN)?)
    }

    /// Sleeps until a bell rings, a signal arrives, or `limit` has passed.
    pub(crate) fn sleep(&self, limit: Duration) {
        let timeout = Timespec::try_from(limit).ok();
        // An error is ignored: the caller polls the rings next in any case.
        let _ = poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], timeout.as_ref());
    }

    /// Sleeps as [`sleep`](Self::sleep) does, while other tasks run. The future can be dropped at any time.
    #[cfg(feature = "tokio")]
    pub(crate) async fn nap(&self, limit: Duration) {
        // The registration is only for this nap, since the next nap can be in another event loop. The event loop has no type for an epoll
        // descriptor, so the code uses the type of a stream. The event loop only checks whether the descriptor is readable, and this check
        // works for every descriptor.
        let bells = self.epoll.try_clone().map(UnixStream::from).and_then(tokio::net::UnixStream::from_std);
        match bells {
            Ok(bells) => drop(tokio::time::timeout(limit, bells.readable()).await),
            // The process can be out of descriptors.
            Err(_) => tokio::time::sleep(ALONE).await,
        }
    }

    /// Calls `each` with the index of each bell that rings. Never waits.
    pub(crate) fn ringing(&self, mut each: impl FnMut(usize)) {
        let nothing = epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [nothing; HEARD_AT_ONCE];
        let count = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default())).unwrap_or(0);
        events[..count].iter().for_each(|event| each(event.data.u64() as usize));
    }
}

/// A guard for the time of one sleep. Its drop writes to the page that the reader is awake, and empties the bell. This happens even if the
/// future of [`nap`](Parking::nap) is dropped before the sleep is over.
struct Nap<'a>(&'a Parking);

impl Drop for Nap<'_> {
    fn drop(&mut self) {
        self.0.rise();
        hear(&self.0.bell);
    }
}

/// Rings the bell at the other end. If the socket is full, the bell is already ringing. If the socket is broken, no process listens.
pub(crate) fn ring(bell: impl AsFd) {
    let _ = send(bell, b"!", SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

/// Reads all bytes from the bell, so that the bell no longer rings. Returns false if the bell had not rung.
fn hear(bell: impl AsFd) -> bool {
    matches!(recv(bell, &mut [0u8; 512], RecvFlags::DONTWAIT), Ok((_, 1..)))
}

/// The result of a host's check of a reader that might sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The reader does not sleep, or has been woken already.
    Awake,
    /// The reader sleeps, and there is nothing for it to read.
    Asleep,
    /// The reader slept, and has just been woken.
    Woken,
}

/// The host's part of parking for one reader: it checks whether the reader sleeps, and wakes it.
#[derive(Debug)]
pub struct ParkedReader {
    page: HostPage,
    ring: Locator,
    bell: Bell,
    /// The value of the page's word about sleep when the host last woke the reader.
    woken: u64,
}

impl ParkedReader {
    /// Makes the host's part of parking for the reader with this `page` and `bell`.
    ///
    /// # Errors
    /// `InvalidInput` if `bell` is not an end of a socket pair.
    pub(crate) fn new(page: HostPage, ring: Locator, bell: File) -> io::Result<Self> {
        Ok(Self { page, ring, bell: Bell::new(bell)?, woken: 0 })
    }

    /// Checks whether the reader sleeps and has something to read. If so, wakes the reader, once for each sleep. Never blocks. A reader
    /// that writes nonsense into its page affects no other reader.
    ///
    /// Cost: three cache lines, and at most one system call. Two of the lines are the same for all readers that sleep at one position.
    pub fn look(&mut self) -> Sight {
        let word = self.page.asleep();
        if word == 0 || word == self.woken {
            return Sight::Awake;
        }
        if !self.ring.is_ready(word & !(GRANULE - 1)) {
            return Sight::Asleep;
        }
        self.woken = word;
        ring(&self.bell.0);
        Sight::Woken
    }

    pub(crate) fn watch_ring(&mut self, ring: Locator) {
        self.ring = ring;
        self.woken = 0;
    }

    /// Returns the reader's bell. [`Bell::wait`] waits until the reader rings the bell.
    pub fn bell(&self) -> Bell {
        self.bell.clone()
    }
}

/// One socket of a bell, which is a pair of sockets. The reader has the other socket, and the process that wakes the reader has this one.
/// Clones share the socket.
#[derive(Debug, Clone)]
pub struct Bell(Arc<UnixStream>);

impl Bell {
    /// Accepts only a socket of a socket pair. If a reader could send another socket, such as a connection to a service, this process would
    /// write to that service.
    fn new(file: File) -> io::Result<Self> {
        let is_stream = sockopt::socket_domain(&file).is_ok_and(|domain| domain == AddressFamily::UNIX)
            && sockopt::socket_type(&file).is_ok_and(|kind| kind == SocketType::STREAM);
        let bell = UnixStream::from(OwnedFd::from(file));
        // A connection to a service has a name at one of its ends.
        let mut ends = [bell.local_addr(), bell.peer_addr()].into_iter();
        if is_stream && ends.all(|end| end.is_ok_and(|end| end.is_unnamed())) {
            return Ok(Self(Arc::new(bell)));
        }
        let what = "the bell is no end of a stream socket pair: make one with socketpair(2)";
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    }

    /// Blocks until `other` is readable or one of `bells` rings. Empties the bells that rang. Returns the indices of the bells that are
    /// broken, or whose readers have closed their end. Do not wait for these bells again: such a wait would never block.
    ///
    /// # Errors
    /// The error of `poll`: `EINTR` after a signal, `EINVAL` if there are more bells than this process can have descriptors.
    pub fn wait(other: impl AsFd, bells: &[Self]) -> io::Result<Vec<usize>> {
        let mut fds = vec![PollFd::new(&other, PollFlags::IN)];
        fds.extend(bells.iter().map(|bell| PollFd::new(&*bell.0, PollFlags::IN)));
        poll(&mut fds, None)?;
        let reported = fds.iter().skip(1).map(|fd| !fd.revents().is_empty()).enumerate();
        Ok(reported.filter(|(i, reported)| *reported && !hear(&*bells[*i].0)).map(|(i, _)| i).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Preparation;
    use crate::hosting::{HostedPage, HostedSegment, HostedSpec};
    use shmcast_layout::ring::locate::Place;
    use shmcast_layout::segment::{Access, Segment};
    use std::os::unix::net::{UnixDatagram, UnixListener};

    fn spec() -> HostedSpec {
        HostedSpec {
            board: None,
            name: "t".into(),
            capacity: 64 << 10,
            max_message: None,
            schema: (0, String::new()),
            labels: String::new(),
            clock: None,
            preparation: Preparation::NONE,
            is_strict: false,
        }
    }

    fn parked() -> (HostedSegment, Parking, ParkedReader) {
        let segment = HostedSegment::create(&spec(), None, None).unwrap();
        let page = HostedPage::create().unwrap();
        let own = ReaderPage::create(
            &page.for_reader().unwrap(),
            1,
            crate::Role::Reader,
            segment.uuid(),
            Place::START,
        )
        .unwrap();
        let (near, far) = bell().unwrap();
        let reader = page.park(&segment, far).unwrap();
        (segment, Parking::new(near, own, LONGEST_NAP), reader)
    }

    fn publish(segment: &HostedSegment) {
        let [file, _lock] = segment.for_publisher().unwrap();
        let segment = Segment::open(&file, Access::Write).unwrap();
        segment.writer(1, 0).unwrap().publish(b"x", 0, false, 0).unwrap();
    }

    #[test]
    fn a_sleeper_is_woken_once_a_nap_and_only_for_something() {
        let (segment, mut parking, mut reader) = parked();
        assert_eq!(reader.look(), Sight::Awake);
        parking.lie_down(0);
        assert_eq!((reader.look(), reader.look()), (Sight::Asleep, Sight::Asleep));
        publish(&segment);
        assert_eq!((reader.look(), reader.look()), (Sight::Woken, Sight::Awake));
        assert!(hear(&parking.bell) && !hear(&parking.bell), "rung exactly once");
        parking.lie_down(0);
        assert_eq!(reader.look(), Sight::Woken, "the next nap at the same place is another");
        parking.rise();
        assert_eq!(reader.look(), Sight::Awake);
    }

    #[test]
    fn a_ring_before_the_waker_blocks_is_not_lost() {
        let (_segment, parking, reader) = parked();
        let (own, _other) = UnixStream::pair().unwrap();
        parking.ring();
        assert_eq!(Bell::wait(&own, &[reader.bell()]).unwrap(), Vec::<usize>::new());
        drop(parking);
        assert_eq!(Bell::wait(&own, &[reader.bell()]).unwrap(), [0], "a bell that is gone is said to be");
    }

    #[test]
    fn bogus_positions_and_full_bells_neither_block_nor_panic() {
        let (segment, parking, mut reader) = parked();
        publish(&segment);
        for word in (0..100_000u64).map(|i| u64::MAX.wrapping_sub(i.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
        {
            parking.page.sleeps(word & !63, word);
            let _ = reader.look();
        }
        assert!(send(&reader.bell.0, b"!", SendFlags::DONTWAIT).is_err(), "the bell is full by now");
        // The reader has the same socket, so it can make the host's socket blocking.
        rustix::io::ioctl_fionbio(&*reader.bell.0, false).unwrap();
        parking.page.sleeps(0, 7);
        assert_eq!(reader.look(), Sight::Woken);
    }

    #[test]
    fn only_an_end_of_a_socket_pair_is_a_bell() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("service");
        let listener = UnixListener::bind(&path).unwrap();
        let client = UnixStream::connect(&path).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (datagram, _other) = UnixDatagram::pair().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let unconnected = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        let (pair, _other) = UnixStream::pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let wrong: [OwnedFd; 7] = [
            client.into(),
            accepted.into(),
            listener.into(),
            datagram.into(),
            tcp.into(),
            unconnected,
            file.into(),
        ];
        for (i, wrong) in wrong.into_iter().enumerate() {
            assert!(Bell::new(wrong.into()).is_err(), "number {i}");
        }
        assert!(Bell::new(OwnedFd::from(pair).into()).is_ok());
    }
}
