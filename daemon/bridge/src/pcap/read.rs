//! Reading capture files: pcap in both byte orders, micro- and nanoseconds, and pcapng with any number of interfaces.

use super::link;
use super::told::{CaptureCounters, Datagram, Skipped};
use pcap_parser::traits::{PcapNGPacketBlock, PcapReaderIterator};
use pcap_parser::{Block, PcapBlockOwned, PcapError, PcapHeader, create_reader};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

/// The first size of the read buffer, and the most bytes that one packet may take.
const BUFFER_BYTES: usize = 256 << 10;
const MAX_BLOCK_BYTES: usize = 16 << 20;
/// Bytes of an empty block of pcapng: its type, and its length twice.
const MIN_BLOCK_BYTES: u32 = 12;
/// The type of a section header, the same in both byte orders.
const SECTION_HEADER: [u8; 4] = [0x0A, 0x0D, 0x0D, 0x0A];
/// No program captures on more interfaces; a file that claims it would only cost memory.
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
        /// How many packets were read.
        packets: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file's structure is broken.
    #[error("damaged after {packets} packets, at byte {offset}: what follows cannot be told apart")]
    Damaged {
        /// How many packets were read.
        packets: u64,
        /// The offset in the file, in bytes.
        offset: usize,
    },
    /// The file claims a packet that is larger than any real one.
    #[error("after {packets} packets, at byte {offset}, the file claims one larger than {MAX_BLOCK_BYTES} B")]
    TooLarge {
        /// How many packets were read.
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
    failure: Failure,
    ports: Vec<u16>,
    /// The interfaces of the section that is being read.
    interfaces: Vec<Interface>,
    /// The byte order of the section that is being read, in a pcapng file.
    is_big_endian: Option<bool>,
    time_ns: u64,
    frame: Vec<u8>,
    counters: CaptureCounters,
}

/// The system's last error. The parser reports only that there was one.
type Failure = Arc<Mutex<Option<io::Error>>>;

struct Noting<R> {
    from: R,
    failure: Failure,
}

impl<R: Read> Read for Noting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.from.read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let kind = e.kind();
                    *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(e);
                    return Err(kind.into());
                }
                read => return read,
            }
        }
    }
}

fn read_error(failure: &Failure, packets: u64) -> CaptureError {
    let source = failure.lock().unwrap_or_else(PoisonError::into_inner).take();
    CaptureError::Read { packets, source: source.unwrap_or_else(|| io::ErrorKind::Other.into()) }
}

/// The result of a step: a frame was read into the buffer, or something else was read, or the file has ended.
enum Step {
    Frame { link_type: i32, sent: usize },
    Other,
    End,
}

impl<'a> Capture<'a> {
    /// Begins to read. Only datagrams to one of `ports` are handed out, or all if `ports` is empty.
    ///
    /// # Errors
    /// [`CaptureError::NotACapture`] when the first bytes are of neither format.
    pub fn open(from: impl Read + Send + 'a, ports: &[u16]) -> Result<Self, CaptureError> {
        let failure = Failure::default();
        let from = Noting { from, failure: failure.clone() };
        let reader = create_reader(BUFFER_BYTES, from).map_err(|e| match e {
            PcapError::ReadError => read_error(&failure, 0),
            _ => CaptureError::NotACapture,
        })?;
        Ok(Self {
            reader,
            buffer_bytes: BUFFER_BYTES,
            failure,
            ports: ports.to_vec(),
            interfaces: Vec::new(),
            is_big_endian: None,
            time_ns: 0,
            frame: Vec::new(),
            counters: CaptureCounters::default(),
        })
    }

    /// The next UDP datagram; `None` at the end. Skipped packets are counted. Costs one copy a packet.
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

    /// The counters so far.
    pub fn counters(&self) -> &CaptureCounters {
        &self.counters
    }

    fn judge(&self, link_type: i32, sent: usize) -> Option<Skipped> {
        match link::datagram(link_type, &self.frame, sent) {
            Ok((_, to, _)) if !self.ports.is_empty() && !self.ports.contains(&to.port()) => {
                Some(Skipped::OtherPort)
            }
            Ok(_) => None,
            Err(reason) => Some(reason),
        }
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
                        self.time_ns = time_of(&interface, seconds + u64::from(block.ts_usec));
                        self.frame.clear();
                        self.frame.extend_from_slice(block.data);
                        Step::Frame { link_type: interface.link_type, sent: block.origlen as usize }
                    }
                    PcapBlockOwned::NG(block) => {
                        if let Block::SectionHeader(section) = &block {
                            self.is_big_endian = Some(section.big_endian());
                        }
                        next_block(&block, &mut self.interfaces, &mut self.time_ns, &mut self.frame)
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

    /// Whether a block of pcapng claims fewer bytes than its type and its two lengths take. The parser does not check that.
    fn is_next_block_too_short(&self) -> bool {
        let (Some(is_big_endian), Some(length)) = (self.is_big_endian, self.reader.data().get(4..8)) else {
            return false;
        };
        let length = length.try_into().expect("four bytes");
        let length = if is_big_endian { u32::from_be_bytes(length) } else { u32::from_le_bytes(length) };
        // A section header states its own byte order, and the parser checks its least length.
        !self.reader.data().starts_with(&SECTION_HEADER) && length < MIN_BLOCK_BYTES
    }

    fn refill(&mut self) -> Result<(), CaptureError> {
        self.reader.refill().map_err(|_| read_error(&self.failure, self.counters.packets))
    }
}

impl std::fmt::Debug for Capture<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Capture").field("ports", &self.ports).field("counters", &self.counters).finish()
    }
}

fn interface_of(header: &PcapHeader) -> Interface {
    let ticks_per_second = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
    // The upper bits of the field are about checksums after the frames.
    let link_type = header.network.0 & 0xFFFF;
    Interface { link_type, ticks_per_second, offset_s: 0 }
}

fn next_block(
    block: &Block<'_>,
    interfaces: &mut Vec<Interface>,
    time_ns: &mut u64,
    frame: &mut Vec<u8>,
) -> Step {
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
                *time_ns = time_of(interface, u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low));
            }
            (packet.if_id as usize, packet.origlen, packet.packet_data())
        }
        Block::SimplePacket(packet) => (0, packet.origlen, packet.packet_data()),
        _ => return Step::Other,
    };
    frame.clear();
    frame.extend_from_slice(data);
    // An interface that was not described gets -1, which is no link type's number.
    let link_type = interfaces.get(index).map_or(-1, |interface| interface.link_type);
    Step::Frame { link_type, sent: sent as usize }
}

// The resolution is a power of ten or, with the top bit set, a power of two. (`ts_resolution` of the library
// refuses every power of two.)
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
