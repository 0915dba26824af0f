//! Writing captures: a bridge hands over the packets that it sends and receives, and a separate thread writes them to a file.
//!
//! ```text
//!   bridge threads: Tap ── filled ──> writer thread ──> file
//!                       <── free ───
//! ```
//! A tap copies the packet into a free slot, without an allocation, a lock, a system call or a wait. If no slot is free, the packet is
//! counted and is not written to the file. The file is pcap with nanoseconds and raw IP frames. The writer makes the IP and UDP headers
//! from the addresses, with correct checksums.

use super::link;
use super::open::{descriptor_of, open};
use super::results::Captured;
use crossbeam_queue::ArrayQueue;
use etherparse::PacketBuilder;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The greatest number of packets that can wait to be written. At two million packets a second, this number of packets arrives in 2 ms.
const SLOTS: usize = 4_096;
/// The time for which the writer sleeps when no packet waits. No other thread wakes it, because a wake-up would need a system call.
const PAUSE: Duration = Duration::from_millis(2);
/// The hop limit in the packet headers. The real hop limit is not known here, so this is Linux's default.
const HOPS: u8 = 64;
/// The writer collects about this many bytes before it writes them to the file.
const BUFFER_BYTES: usize = 1 << 20;

/// The reason why a capture is incomplete.
#[derive(Debug, thiserror::Error)]
pub enum CaptureFileError {
    /// The file could not be made.
    #[error("cannot write a capture to {}: {source}", path.display())]
    Create {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be written completely.
    #[error("the capture {} ends after {packets} packets: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The number of packets that are complete in the file.
        packets: u64,
        /// The system's error.
        source: io::Error,
    },
}

#[derive(Debug)]
struct Slot {
    time_ns: u64,
    from: SocketAddr,
    to: SocketAddr,
    bytes: usize,
    data: Box<[u8]>,
}

#[derive(Debug)]
struct CaptureQueues {
    free: ArrayQueue<Slot>,
    filled: ArrayQueue<Slot>,
    written: AtomicU64,
    dropped: AtomicU64,
    stopping: AtomicBool,
    /// The reason why the file takes no more packets.
    broken: OnceLock<String>,
}

impl CaptureQueues {
    fn new(payload_bytes: usize) -> CaptureQueues {
        let queues = CaptureQueues {
            free: ArrayQueue::new(SLOTS),
            filled: ArrayQueue::new(SLOTS),
            written: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            broken: OnceLock::new(),
        };
        let nowhere = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        for _ in 0..SLOTS {
            // Writing to the memory now causes its page faults now, and not later in a bridge's thread.
            let data = vec![0xFF; payload_bytes].into_boxed_slice();
            let slot = Slot { time_ns: 0, from: nowhere, to: nowhere, bytes: 0, data };
            queues.free.push(slot).expect("the queue has as many places as there are slots");
        }
        queues
    }
}

/// The handle over which a bridge's threads pass packets to the writer. Clones share one file.
#[derive(Debug, Clone)]
pub struct Tap {
    shared: Arc<CaptureQueues>,
}

impl Tap {
    /// Passes one datagram to the writer. The datagram went from `from` to `to` at `time_ns`, in nanoseconds since 1970. Costs a copy.
    pub fn record(&self, time_ns: u64, from: SocketAddr, to: SocketAddr, payload: &[u8]) {
        let shared = &*self.shared;
        let Some(mut slot) = shared.free.pop() else {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let queue = match slot.data.get_mut(..payload.len()) {
            Some(room) => {
                room.copy_from_slice(payload);
                (slot.time_ns, slot.from, slot.to, slot.bytes) = (time_ns, from, to, payload.len());
                &shared.filled
            }
            None => {
                shared.dropped.fetch_add(1, Ordering::Relaxed);
                &shared.free
            }
        };
        // Each queue has room for all slots, so a push cannot fail.
        let _ = queue.push(slot);
    }

    /// Returns the counts of the packets so far.
    pub(crate) fn captured(&self) -> Captured {
        Captured {
            packets: self.shared.written.load(Ordering::Relaxed),
            dropped: self.shared.dropped.load(Ordering::Relaxed),
        }
    }
}

/// A capture that is written on a separate thread. Dropping it closes the file. [`CaptureFile::finish`] returns the counts or the error.
#[derive(Debug)]
pub struct CaptureFile {
    path: PathBuf,
    /// The tap of the file, to be cloned for each thread.
    pub tap: Tap,
    writer: Option<JoinHandle<io::Result<()>>>,
}

impl CaptureFile {
    /// Makes the file, and starts the writer. A file of this name is replaced. The new file is readable only by its owner. `payload_bytes`
    /// is the size of the largest datagram. The writer allocates about 4096 times this size.
    ///
    /// # Errors
    /// [`CaptureFileError::Create`].
    pub fn create(path: &Path, payload_bytes: usize) -> Result<CaptureFile, CaptureFileError> {
        let cannot = |source| CaptureFileError::Create { path: path.to_owned(), source };
        let file = open(path).map_err(cannot)?;
        let shared = Arc::new(CaptureQueues::new(payload_bytes));
        let for_thread = shared.clone();
        let writer = thread::Builder::new().name("capture".to_owned());
        let writer = writer.spawn(move || write_all(&for_thread, file)).map_err(cannot)?;
        Ok(CaptureFile { path: path.to_owned(), tap: Tap { shared }, writer: Some(writer) })
    }

    /// Whether a capture of this name goes to the program's standard output.
    pub fn is_stdout(path: &Path) -> bool {
        descriptor_of(path) == Some(1)
    }

    /// If the file takes no more packets, returns the reason. Costs no system call.
    pub fn broken(&self) -> Option<String> {
        let why = self.tap.shared.broken.get()?;
        let source = io::Error::other(why.clone());
        let packets = self.tap.captured().packets;
        Some(CaptureFileError::Write { path: self.path.clone(), packets, source }.to_string())
    }

    /// Writes the packets that still wait, and closes the file.
    ///
    /// # Errors
    /// [`CaptureFileError::Write`] if the file could not be written completely. Packets that were dropped because the writer was too slow
    /// are counted, and are no error.
    pub fn finish(mut self) -> Result<Captured, CaptureFileError> {
        self.tap.shared.stopping.store(true, Ordering::Release);
        let result = self.writer.take().map_or(Ok(Ok(())), JoinHandle::join);
        let captured = self.tap.captured();
        let source = match result {
            Ok(Ok(())) => return Ok(captured),
            Ok(Err(source)) => source,
            Err(_) => io::Error::other("the writer panicked"),
        };
        Err(CaptureFileError::Write { path: self.path.clone(), packets: captured.packets, source })
    }
}

impl Drop for CaptureFile {
    fn drop(&mut self) {
        self.tap.shared.stopping.store(true, Ordering::Release);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// The bytes that are not yet in the file, and the offsets at which their packets end.
struct Buffer<W: Write> {
    out: W,
    bytes: Vec<u8>,
    ends: VecDeque<usize>,
}

impl<W: Write> Buffer<W> {
    /// Writes the buffered bytes. If the file takes only a part of them, only the packets that are complete in the file count as written.
    fn flush(&mut self, shared: &CaptureQueues) -> io::Result<()> {
        let mut done = 0;
        let result = loop {
            if done == self.bytes.len() {
                break self.out.flush();
            }
            match self.out.write(&self.bytes[done..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => done += more,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => break Err(e),
            }
        };
        let whole = self.ends.partition_point(|end| *end <= done);
        shared.written.fetch_add(whole as u64, Ordering::Relaxed);
        shared.dropped.fetch_add((self.ends.len() - whole) as u64, Ordering::Relaxed);
        self.bytes.clear();
        self.ends.clear();
        result
    }
}

fn write_all(shared: &CaptureQueues, out: impl Write) -> io::Result<()> {
    let mut buffer = Buffer { out, bytes: file_header().to_vec(), ends: VecDeque::new() };
    let (mut result, mut frame) = (Ok(()), Vec::new());
    loop {
        // Load the stop flag before looking at the queue. Then every packet from before the stop is found.
        let stopping = shared.stopping.load(Ordering::Acquire);
        let mut any = false;
        while let Some(slot) = shared.filled.pop() {
            any = true;
            let payload = &slot.data[..slot.bytes];
            if result.is_ok() {
                result =
                    write_packet(&mut buffer.bytes, slot.time_ns, [slot.from, slot.to], payload, &mut frame);
            }
            match result {
                Ok(()) => buffer.ends.push_back(buffer.bytes.len()),
                Err(_) => _ = shared.dropped.fetch_add(1, Ordering::Relaxed),
            }
            let _ = shared.free.push(slot);
            if result.is_ok() && buffer.bytes.len() >= BUFFER_BYTES {
                result = buffer.flush(shared);
            }
        }
        // Write the buffered packets when no packet waits. Another program might be reading the file, and the captured packets should be in
        // the file if this process is killed.
        if result.is_ok() && (!any || stopping) {
            result = buffer.flush(shared);
        }
        if let Err(e) = &result {
            shared.broken.get_or_init(|| e.to_string());
        }
        if stopping {
            return result;
        }
        if !any {
            thread::sleep(PAUSE);
        }
    }
}

// The fields: magic number for nanoseconds | version 2.4 | two zeros | longest packet | link layer
fn file_header() -> [u8; 24] {
    let mut header = [0; 24];
    header[..4].copy_from_slice(&0xA1B2_3C4D_u32.to_le_bytes());
    header[4..6].copy_from_slice(&2u16.to_le_bytes());
    header[6..8].copy_from_slice(&4u16.to_le_bytes());
    header[16..20].copy_from_slice(&262_144u32.to_le_bytes());
    header[20..].copy_from_slice(&(link::RAW as u32).to_le_bytes());
    header
}

/// A capture that is written on the caller's own thread. It is for callers that are allowed to block.
#[derive(Debug)]
pub struct PacketFile<W: Write> {
    out: W,
    frame: Vec<u8>,
}

impl<W: Write> PacketFile<W> {
    /// Begins a capture.
    ///
    /// # Errors
    /// The error of `out`.
    pub fn begin(mut out: W) -> io::Result<Self> {
        out.write_all(&file_header())?;
        Ok(Self { out, frame: Vec::new() })
    }

    /// Writes one datagram. The datagram went from `from` to `to` at `time_ns`, in nanoseconds since 1970.
    ///
    /// # Errors
    /// The errors of `out`, and an error if the datagram is too large for UDP.
    pub fn write(
        &mut self,
        time_ns: u64,
        from: SocketAddr,
        to: SocketAddr,
        payload: &[u8],
    ) -> io::Result<()> {
        write_packet(&mut self.out, time_ns, [from, to], payload, &mut self.frame)
    }

    /// Writes the buffered bytes.
    ///
    /// # Errors
    /// The errors of `out`.
    pub fn finish(mut self) -> io::Result<()> {
        self.out.flush()
    }
}

// The fields of a packet: seconds | nanoseconds | bytes captured | bytes sent | frame
fn write_packet(
    out: &mut impl Write,
    time_ns: u64,
    [from, to]: [SocketAddr; 2],
    payload: &[u8],
    frame: &mut Vec<u8>,
) -> io::Result<()> {
    frame.clear();
    let builder = match addresses(from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), HOPS),
        (from, to) => PacketBuilder::ipv6(in_v6(from).octets(), in_v6(to).octets(), HOPS),
    };
    let packet = builder.udp(from.port(), to.port());
    packet.write(frame, payload).map_err(io::Error::other)?;
    let (seconds, nanoseconds) = (time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let bytes = frame.len() as u32;
    for number in [seconds as u32, nanoseconds as u32, bytes, bytes] {
        out.write_all(&number.to_le_bytes())?;
    }
    out.write_all(frame)
}

/// Converts both addresses to one family, IPv4 or IPv6. If one address is unspecified, it gets the family of the other address.
fn addresses(from: IpAddr, to: IpAddr) -> (IpAddr, IpAddr) {
    match (from.to_canonical(), to.to_canonical()) {
        (from, IpAddr::V4(to)) if from.is_unspecified() => (Ipv4Addr::UNSPECIFIED.into(), to.into()),
        (IpAddr::V4(from), to) if to.is_unspecified() => (from.into(), Ipv4Addr::UNSPECIFIED.into()),
        both => both,
    }
}

fn in_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) if v4.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pcap::Capture;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::FileExt;
    use std::os::unix::net::UnixStream;

    /// An earlier mistake: `--pcap /dev/stdout` and a shell's `>(program)` were refused as links.
    #[test]
    fn a_capture_goes_into_a_descriptor_of_this_process() {
        for folder in ["/proc/self/fd", "/dev/fd"] {
            let (mut reader, writer) = std::io::pipe().unwrap();
            let path = PathBuf::from(format!("{folder}/{}", writer.as_raw_fd()));
            CaptureFile::create(&path, 64).unwrap().finish().unwrap();
            let link = tempfile::tempdir().unwrap();
            std::os::unix::fs::symlink(&path, link.path().join("link")).unwrap();
            CaptureFile::create(&link.path().join("link"), 64).unwrap_err();
            drop(writer);
            let mut bytes = Vec::new();
            reader.read_to_end(&mut bytes).unwrap();
            assert!(Capture::open(&bytes[..], &[]).unwrap().read().unwrap().is_none());
        }
    }

    /// An earlier mistake: the capture had an offset of its own in the file, so the program's next output overwrote it.
    #[test]
    fn a_capture_and_other_output_share_the_offset_of_a_file() {
        let mut file = tempfile::tempfile().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        file.write_all(b"before").unwrap();
        CaptureFile::create(&path, 64).unwrap().finish().unwrap();
        file.write_all(b"after").unwrap();
        let mut bytes = vec![0; 64];
        let length = file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[..length], [&b"before"[..], &file_header(), b"after"].concat());
        assert!(CaptureFile::is_stdout(Path::new("/dev/stdout")) && !CaptureFile::is_stdout(&path));
    }

    /// A file that takes only some bytes, as on a disk that gets full.
    struct Narrow(usize, Vec<u8>);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let fits = bytes.len().min(self.0 - self.1.len());
            self.1.extend(&bytes[..fits]);
            if fits > 0 || bytes.is_empty() { Ok(fits) } else { Err(io::ErrorKind::StorageFull.into()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// An earlier mistake: a packet counted as written although the file had only a part of it, or nothing.
    #[test]
    fn a_packet_counts_only_when_it_is_complete_in_the_file() {
        let address: SocketAddr = "10.0.0.1:4".parse().unwrap();
        let frame_bytes = 16 + 28 + 64;
        for (room, whole) in [(0, 0), (24, 0), (24 + frame_bytes, 1), (24 + 3 * frame_bytes - 1, 2)] {
            let shared = Arc::new(CaptureQueues::new(64));
            let tap = Tap { shared: shared.clone() };
            (0..5).for_each(|n| tap.record(n, address, address, &[7; 64]));
            shared.stopping.store(true, Ordering::Release);
            let mut file = Narrow(room, Vec::new());
            assert!(write_all(&shared, &mut file).is_err());
            assert_eq!(tap.captured(), Captured { packets: whole, dropped: 5 - whole }, "{room}");
            assert!(shared.broken.get().is_some());
            let mut read = 0;
            if let Ok(mut capture) = Capture::open(&file.1[..], &[]) {
                while let Ok(Some(_)) = capture.read() {
                    read += 1;
                }
            }
            assert_eq!(read, whole, "{room}");
        }
    }

    /// An earlier mistake: the descriptor's target was opened again, which the kernel refuses for a socket.
    #[test]
    fn a_capture_goes_into_a_socket() {
        let (mut reader, writer) = UnixStream::pair().unwrap();
        let path = PathBuf::from(format!("/proc/self/fd/{}", writer.as_raw_fd()));
        CaptureFile::create(&path, 64).unwrap().finish().unwrap();
        drop(writer);
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, file_header());
    }
}
