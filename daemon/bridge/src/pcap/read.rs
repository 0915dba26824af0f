//! Reads capture files: pcap in both byte orders, with microseconds or nanoseconds, and pcapng with any number of interfaces.

use super::link;
use super::results::{CaptureCounters, Datagram, Protocol, Protocols, Skipped};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapHeader, create_reader};
use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The first size of the read buffer. The buffer grows up to [`MAX_BLOCK_BYTES`] if the file has larger blocks.
const BUFFER_BYTES: usize = 256 << 10;
const MAX_BLOCK_BYTES: usize = 16 << 20;
/// The number of bytes of an empty pcapng block. Such a block has its type once and its length twice.
const MIN_BLOCK_BYTES: u32 = 12;
/// The type of a section header. It is the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];
/// The type of the packet block that tools wrote until about 2010.
const OLD_PACKET: u32 = 2;
/// The number of bytes of the header of a pcap file, and of the first fields of a section header in a pcapng file.
const HEADER_BYTES: usize = 24;
/// The link type of an interface that was not described. No link type has this number.
const NO_LINK_TYPE: i32 = -1;
/// The maximum number of interfaces in a section of a file. No program captures on more interfaces. Further interfaces are ignored, because
/// they would only use memory.
const MAX_INTERFACES: usize = 65_536;

/// An error after which a capture cannot be read any further.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file is not a capture.
    #[error(
        "not a capture file: give one that tcpdump or Wireshark wrote, as pcap or pcapng, and not compressed"
    )]
    NotACapture,
    /// The system could not read the file.
    #[error("reading failed after {packets} packets: {source}")]
    Read {
        /// The number of packets that were read.
        packets: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file's structure is broken.
    #[error("damaged after {packets} packets, at byte {offset}: what follows cannot be told apart")]
    Damaged {
        /// The number of packets that were read.
        packets: u64,
        /// The offset in the file, in bytes.
        offset: usize,
    },
    /// The file claims a packet that is larger than any real packet.
    #[error("after {packets} packets, at byte {offset}, the file claims one larger than {MAX_BLOCK_BYTES} B")]
    TooLarge {
        /// The number of packets that were read.
        packets: u64,
        /// The offset in the file, in bytes.
        offset: usize,
    },
}

/// The format of the packets of one interface.
#[derive(Debug, Clone, Copy)]
struct Interface {
    link_type: i32,
    ticks_per_second: u64,
    offset_s: i64,
}

/// A capture file that is being read.
pub struct Capture<'a> {
    reader: Box<dyn PcapReaderIterator + Send + 'a>,
    buffer_bytes: usize,
    shared: Arc<Shared>,
    ports: Vec<u16>,
    /// The interfaces of the section that is being read.
    interfaces: Vec<Interface>,
    /// The byte order of the section that is being read, in a pcapng file.
    is_big_endian: Option<bool>,
    time_ns: Option<u64>,
    frame: Vec<u8>,
    /// The counters so far.
    pub counters: CaptureCounters,
    /// The number of packets of each protocol that were read so far.
    pub protocols: Protocols,
}

/// The state that a [`Capture`] shares with the reader of the file.
#[derive(Debug)]
struct Shared {
    /// The system's last error. The parser reports only that an error happened.
    failure: Mutex<Option<io::Error>>,
    is_opening: AtomicBool,
}

/// A reader that first gives the parser the whole header of the file, even if the header arrives in pieces.
///
/// A new parser makes one read more than it needs. This reader answers that read with no bytes. If this reader passed the read on to a
/// pipe, the parser would wait for the second packet before it returned the first packet.
struct Noting<R> {
    from: R,
    head: Vec<u8>,
    shared: Arc<Shared>,
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.head.is_empty() {
            let bytes = self.head.len().min(buffer.len());
            buffer[..bytes].copy_from_slice(&self.head[..bytes]);
            self.head.drain(..bytes);
            return Ok(bytes);
        }
        if self.shared.is_opening.load(Ordering::Relaxed) {
            return Ok(0);
        }
        read_some(&mut self.from, buffer).map_err(|e| {
            let kind = e.kind();
            *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
            kind.into()
        })
    }
}

fn read_some(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}

/// Reads the header of a pcap file, or the first section header of a pcapng file. Returns fewer bytes if the file ends earlier.
fn read_head(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let (mut head, mut bytes) = (vec![0; HEADER_BYTES], 0);
    while bytes < head.len() {
        match read_some(from, &mut head[bytes..])? {
            0 => break,
            read => bytes += read,
        }
        if bytes == HEADER_BYTES && head.starts_with(&SECTION_HEADER) {
            let is_big_endian = head[8..12] == [0x1A, 0x2B, 0x3C, 0x4D];
            head.resize((u32_at(&head, 4, is_big_endian) as usize).clamp(HEADER_BYTES, BUFFER_BYTES - 1), 0);
        }
    }
    head.truncate(bytes);
    Ok(head)
}

fn read_error(shared: &Shared, packets: u64) -> CaptureError {
    let source = shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    CaptureError::Read { packets, source: source.unwrap_or_else(|| io::ErrorKind::Other.into()) }
}

/// The result of a step: a frame was read into the buffer, something other than a frame was read, or the file has ended.
enum Step {
    Frame { link_type: i32, sent: usize },
    Other,
    End,
}

impl<'a> Capture<'a> {
    /// Waits for the file's header, and begins to read. Only datagrams to one of `ports` are returned, or all datagrams if `ports` is
    /// empty.
    ///
    /// # Errors
    /// [`CaptureError::NotACapture`] if the file begins neither like pcap nor like pcapng, and [`CaptureError::Read`].
    pub fn open(mut from: impl Read + Send + 'a, ports: &[u16]) -> Result<Self, CaptureError> {
        let head = read_head(&mut from).map_err(|source| CaptureError::Read { packets: 0, source })?;
        let shared = Arc::new(Shared { failure: Mutex::default(), is_opening: AtomicBool::new(true) });
        let from = Noting { from, head, shared: shared.clone() };
        let reader = create_reader(BUFFER_BYTES, from).map_err(|_| CaptureError::NotACapture)?;
        shared.is_opening.store(false, Ordering::Relaxed);
        Ok(Self {
            reader,
            buffer_bytes: BUFFER_BYTES,
            shared,
            ports: ports.to_vec(),
            interfaces: Vec::new(),
            is_big_endian: None,
            time_ns: None,
            frame: Vec::new(),
            counters: CaptureCounters::default(),
            protocols: Protocols::default(),
        })
    }

    /// Returns the next UDP datagram, or `None` at the end. Counts the packets that it skips. Costs one copy a packet.
    ///
    /// # Errors
    /// [`CaptureError`]; nothing more can be read after it.
    pub fn read(&mut self) -> Result<Option<Datagram<'_>>, CaptureError> {
        let (link_type, sent) = loop {
            match self.step()? {
                Step::Frame { link_type, sent } => match self.judge(link_type, sent) {
                    None => break (link_type, sent),
                    Some(reason) => self.counters.skipped[reason as usize] += 1,
                },
                Step::Other => {}
                Step::End => return Ok(None),
            }
        };
        self.counters.datagrams += 1;
        let (source, destination, payload) =
            link::datagram(link_type, &self.frame, sent).expect("judged sound just now");
        Ok(Some(Datagram { time_ns: self.time_ns, source, destination, payload }))
    }

    fn judge(&mut self, link_type: i32, sent: usize) -> Option<Skipped> {
        let is_other = |port: u16| !self.ports.is_empty() && !self.ports.contains(&port);
        let (protocol, skipped) = match link::datagram(link_type, &self.frame, sent) {
            Ok((_, to, _)) => {
                let skipped = is_other(to.port()).then_some(Skipped::OtherPort);
                (Some(Protocol::Udp(to.port())), skipped)
            }
            Err(reason) => match link::protocol(link_type, &self.frame) {
                Some(Protocol::Udp(port)) if is_other(port) => {
                    (Some(Protocol::Udp(port)), Some(Skipped::OtherPort))
                }
                protocol => (protocol, Some(reason)),
            },
        };
        if let Some(protocol) = protocol {
            *self.protocols.0.entry(protocol).or_default() += 1;
        }
        skipped
    }

    fn step(&mut self) -> Result<Step, CaptureError> {
        let (packets, offset) = (self.counters.packets, self.reader.consumed());
        if self.is_next_block_too_short() {
            return Err(CaptureError::Damaged { packets, offset });
        }
        match self.reader.next() {
            Ok((bytes, block)) => {
                let step = match block {
                    PcapBlockOwned::LegacyHeader(header) => {
                        self.interfaces = vec![interface_of(&header)];
                        Step::Other
                    }
                    PcapBlockOwned::Legacy(block) => {
                        let interface = *self.interfaces.first().expect("the header is the first block");
                        let seconds = u64::from(block.ts_sec) * interface.ticks_per_second;
                        self.time_ns = Some(time_of(&interface, seconds + u64::from(block.ts_usec)));
                        self.frame.clear();
                        self.frame.extend_from_slice(block.data);
                        Step::Frame { link_type: interface.link_type, sent: block.origlen as usize }
                    }
                    PcapBlockOwned::NG(block) => {
                        if let Block::SectionHeader(section) = &block {
                            self.is_big_endian = Some(section.big_endian());
                        }
                        let is_big_endian = self.is_big_endian == Some(true);
                        next_block(
                            &block,
                            is_big_endian,
                            &mut self.interfaces,
                            (&mut self.time_ns, &mut self.frame),
                        )
                    }
                };
                self.reader.consume(bytes);
                self.counters.packets += u64::from(matches!(step, Step::Frame { .. }));
                Ok(step)
            }
            Err(PcapError::Eof) => Ok(Step::End),
            Err(PcapError::UnexpectedEof) => {
                self.counters.cut_off = true;
                Ok(Step::End)
            }
            Err(PcapError::Incomplete(_)) => self.refill().map(|()| Step::Other),
            Err(PcapError::BufferTooSmall) => {
                if self.buffer_bytes >= MAX_BLOCK_BYTES {
                    return Err(CaptureError::TooLarge { packets, offset });
                }
                self.buffer_bytes *= 2;
                self.reader.grow(self.buffer_bytes);
                self.refill().map(|()| Step::Other)
            }
            Err(_) => Err(CaptureError::Damaged { packets, offset }),
        }
    }

    /// Whether the next pcapng block claims a length that is too short. A block needs bytes for its type and its two lengths. The parser
    /// does not check this.
    fn is_next_block_too_short(&self) -> bool {
        let (Some(is_big_endian), data) = (self.is_big_endian, self.reader.data()) else { return false };
        // A section header is not checked here: it states its own byte order, and the parser checks its length.
        data.len() >= 8
            && !data.starts_with(&SECTION_HEADER)
            && u32_at(data, 4, is_big_endian) < MIN_BLOCK_BYTES
    }

    fn refill(&mut self) -> Result<(), CaptureError> {
        self.reader.refill().map_err(|_| read_error(&self.shared, self.counters.packets))
    }
}

impl std::fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("ports", &self.ports).field("counters", &self.counters).finish()
    }
}

/// Returns the number at the offset `at` of `bytes`, in the byte order of this section. `bytes` must be long enough.
fn u32_at(bytes: &[u8], at: usize, is_big_endian: bool) -> u32 {
    let number = bytes[at..at + 4].try_into().expect("four bytes");
    if is_big_endian { u32::from_be_bytes(number) } else { u32::from_le_bytes(number) }
}

fn interface_of(header: &PcapHeader) -> Interface {
    let ticks_per_second = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
    // The upper bits of the field describe checksums after the frames, and are not part of the link type.
    let link_type = header.network.0 & 0xFFFF;
    Interface { link_type, ticks_per_second, offset_s: 0 }
}

fn next_block(
    block: &Block<'_>,
    is_big_endian: bool,
    interfaces: &mut Vec<Interface>,
    (time_ns, frame): (&mut Option<u64>, &mut Vec<u8>),
) -> Step {
    *time_ns = None;
    let (index, sent, data) = match block {
        Block::SectionHeader(_) => {
            interfaces.clear();
            return Step::Other;
        }
        Block::InterfaceDescription(own) => {
            if interfaces.len() < MAX_INTERFACES {
                interfaces.push(Interface {
                    link_type: own.linktype.0,
                    ticks_per_second: ticks_per_second(own.if_tsresol),
                    offset_s: own.ts_offset(),
                });
            }
            return Step::Other;
        }
        Block::EnhancedPacket(packet) => {
            if let Some(interface) = interfaces.get(packet.if_id as usize) {
                let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                *time_ns = Some(time_of(interface, ticks));
            }
            (packet.if_id as usize, packet.origlen, packet.packet_data())
        }
        Block::Unknown(old) if is_old_packet(old.block_type, is_big_endian) => {
            let Some(old) = OldPacket::of(old.data, is_big_endian) else {
                frame.clear();
                return Step::Frame { link_type: NO_LINK_TYPE, sent: 0 };
            };
            if let Some(interface) = interfaces.get(old.interface) {
                *time_ns = Some(time_of(interface, old.ticks));
            }
            (old.interface, old.sent, old.data)
        }
        Block::SimplePacket(packet) => (0, packet.origlen, packet.packet_data()),
        _ => return Step::Other,
    };
    frame.clear();
    frame.extend_from_slice(data);
    let link_type = interfaces.get(index).map_or(NO_LINK_TYPE, |interface| interface.link_type);
    Step::Frame { link_type, sent: sent as usize }
}

/// Whether a block has the type of an old packet block. The parser always reads the type as little-endian, so in a big-endian section the
/// bytes of the type are swapped.
fn is_old_packet(block_type: u32, is_big_endian: bool) -> bool {
    block_type == if is_big_endian { OLD_PACKET.swap_bytes() } else { OLD_PACKET }
}

/// The fields of an old packet block: interface u16, drops u16, time in two u32, bytes captured u32, bytes sent u32, frame.
struct OldPacket<'a> {
    interface: usize,
    ticks: u64,
    sent: u32,
    data: &'a [u8],
}

impl OldPacket<'_> {
    fn of(content: &[u8], is_big_endian: bool) -> Option<OldPacket<'_>> {
        let (head, rest) = content.split_first_chunk::<20>()?;
        let number = |at| u32_at(head, at, is_big_endian);
        let interface = [head[0], head[1]];
        let interface =
            if is_big_endian { u16::from_be_bytes(interface) } else { u16::from_le_bytes(interface) };
        Some(OldPacket {
            interface: interface.into(),
            ticks: u64::from(number(4)) << 32 | u64::from(number(8)),
            sent: number(16),
            data: rest.get(..number(12) as usize)?,
        })
    }
}

// Returns the number of ticks in a second. If the top bit of `resolution` is set, the resolution is a power of two, and otherwise a power
// of ten. (`ts_resolution` of the library refuses every power of two.)
fn ticks_per_second(resolution: u8) -> u64 {
    let exponent = u32::from(resolution & 0x7F);
    let base: u64 = if resolution & 0x80 == 0 { 10 } else { 2 };
    base.checked_pow(exponent).unwrap_or(1_000_000)
}

fn time_of(interface: &Interface, ticks: u64) -> u64 {
    let ns = u128::from(ticks) * 1_000_000_000 / u128::from(interface.ticks_per_second);
    let ns = i128::try_from(ns)
        .unwrap_or(i128::MAX)
        .saturating_add(i128::from(interface.offset_s) * 1_000_000_000);
    u64::try_from(ns.max(0)).unwrap_or(u64::MAX)
}
