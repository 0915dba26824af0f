//! UDP datagrams in batches: one system call for many datagrams, with buffers that are allocated once.
//!
//! For IPv4 and IPv6, this module wraps `recvmmsg` with the kernel's time stamps, `sendmmsg`, the count of drops, and the busy-poll
//! options. No library wraps these calls safely and without allocation. The module does not interpret the bytes of datagrams.

use nix::errno::Errno;
use nix::libc;
use rustix::net::{self, RecvFlags};
use std::io;
use std::mem::{MaybeUninit, size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

mod address;
mod joining;
mod sending;

use address::{NAME_BYTES, Name};
pub use joining::join_source;
pub use sending::{Segments, Sent, send, send_segmented};

/// Greatest number of datagrams that one system call carries.
pub const BATCH: usize = 32;

/// If datagrams arrive alone one after another, only one in this many gets a time stamp.
const ALONE_PER_STAMP: u32 = 16;

/// The size in words of a buffer for the kernel's control messages (a time stamp and a segment length). Words have the alignment that
/// control messages need.
const CONTROL_WORDS: usize = 16;
type ControlWords = [u64; CONTROL_WORDS];

/// The size in bytes of a slot for datagrams that the kernel merges: the largest datagram, and nine cache lines more. Without the nine
/// lines, all slots would begin in the same sets of the CPU's cache.
const MERGED_SLOT_BYTES: usize = (1 << 16) + 9 * 64;

/// The buffers of a batch of datagrams.
#[derive(Debug)]
pub struct Inbox {
    slab: Vec<u8>,
    slot_bytes: usize,
    /// The function that computes the length of each merged datagram from the bytes. `None` if the kernel never merges datagrams.
    segment_of: Option<SegmentOf>,
    arrivals: [Arrival; BATCH],
    received: usize,
    /// Number of datagrams that the next call requests.
    room: usize,
    expects_more: bool,
    /// Number of datagrams in a row that arrived alone.
    alone: u32,
}

/// A function that computes from the bytes of merged datagrams how long each datagram is. The last datagram can be shorter.
pub type SegmentOf = fn(&[u8]) -> usize;

/// One delivery of the kernel: a datagram, or several merged datagrams.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    bytes: usize,
    /// Length of each datagram in this delivery. The last one can be shorter.
    segment: usize,
    from: SocketAddr,
    is_truncated: bool,
    time_ns: Option<u64>,
}

impl Arrival {
    const NONE: Self = Self {
        bytes: 0,
        segment: 0,
        from: SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0),
        is_truncated: false,
        time_ns: None,
    };
}

/// One datagram of a batch.
#[derive(Debug, Clone, Copy)]
pub struct Datagram<'a> {
    /// The payload.
    pub bytes: &'a [u8],
    /// The sender's address in the packet. It can be forged.
    pub from: SocketAddr,
    /// Whether the datagram was longer than the slot. If so, `bytes` is only its beginning.
    pub is_truncated: bool,
    /// The time at which the kernel received the datagram, in nanoseconds since 1970. `None` if the socket has no time stamps
    /// (`SO_TIMESTAMPNS`), or if the call did not request one.
    pub time_ns: Option<u64>,
    /// Whether the kernel delivered this datagram merged with others.
    pub is_merged: bool,
}

impl Inbox {
    /// Allocates memory for [`BATCH`] datagrams of at most `slot_bytes` each.
    ///
    /// # Panics
    /// When `slot_bytes` is 0.
    pub fn new(slot_bytes: usize) -> Self {
        assert!(slot_bytes > 0);
        let slab = vec![0; slot_bytes * BATCH];
        Self {
            slab,
            slot_bytes,
            segment_of: None,
            arrivals: [Arrival::NONE; BATCH],
            received: 0,
            room: 1,
            expects_more: false,
            alone: 0,
        }
    }

    /// Makes an inbox for a socket at which the kernel merges datagrams ([`merge`]). The datagrams can have any length. The kernel does not
    /// report the length of a single datagram in two cases: the datagram arrived alone, or it still waited when merging was switched off.
    /// `segment_of` then computes the length from the bytes. Only the used part of a slot's memory is touched.
    pub fn merging(segment_of: SegmentOf) -> Self {
        Self { segment_of: Some(segment_of), ..Self::new(MERGED_SLOT_BYTES) }
    }

    /// Receives the datagrams that wait at `socket`, at most [`BATCH`], and drops the datagrams of the previous call. Returns their number,
    /// in which merged datagrams count as one. Never waits. Cost: one system call, no allocation.
    ///
    /// - The first call requests one datagram. If a call gets as many datagrams as it requested, the next call requests twice as many.
    ///   Otherwise the next call requests half as many. For a datagram that arrives alone, a request for one datagram is the fastest: if
    ///   fewer datagrams wait than requested, the kernel checks the queue once more.
    /// - From the third datagram in a row that arrived alone, only one in 16 has a time stamp, because control messages take the kernel a
    ///   third of a microsecond. While datagrams arrive faster than they are received, each datagram has a time stamp.
    ///
    /// # Errors
    /// The error of `recvmmsg`, such as an ICMP error on an earlier send. If no datagram waits, the result is 0, which is no error.
    #[inline]
    pub fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        (self.received, self.expects_more) = (0, false);
        match self.room {
            1 if self.alone < 2 || self.alone.is_multiple_of(ALONE_PER_STAMP) => self.receive_stamped(socket),
            1 => self.receive_bare(socket),
            asked => self.receive_many(socket, asked),
        }
    }

    #[inline(never)]
    fn receive_many(&mut self, socket: impl AsFd, asked: usize) -> io::Result<usize> {
        let mut names = [const { MaybeUninit::<Name>::uninit() }; BATCH];
        let mut controls = [const { MaybeUninit::<ControlWords>::uninit() }; BATCH];
        let mut vectors = [const { MaybeUninit::uninit() }; BATCH];
        let mut headers = [const { MaybeUninit::uninit() }; BATCH];
        for (i, slot) in self.slab.chunks_exact_mut(self.slot_bytes).take(asked).enumerate() {
            let vector =
                vectors[i].write(libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() });
            let header = &mut headers[i].write(no_header()).msg_hdr;
            header.msg_name = ptr::from_mut(names[i].write(Name::none())).cast();
            header.msg_namelen = NAME_BYTES;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            header.msg_control = controls[i].as_mut_ptr().cast();
            header.msg_controllen = size_of::<ControlWords>() as _;
        }
        let (fd, first) = (socket.as_fd().as_raw_fd(), headers.as_mut_ptr().cast());
        // SAFETY: `fd` is open as long as `socket` is borrowed; the first `asked` headers are filled in and each names one
        // slot, one address and one control buffer of its own with their true lengths, all of which outlive the call.
        let received =
            unsafe { libc::recvmmsg(fd, first, asked as _, libc::MSG_DONTWAIT as _, ptr::null_mut()) };
        let received = match Errno::result(received) {
            Ok(received) => (received as usize).min(asked),
            Err(Errno::EAGAIN | Errno::EINTR) => 0,
            Err(e) => return Err(e.into()),
        };
        self.room = if received == asked { (2 * asked).min(BATCH) } else { asked.div_ceil(2) };
        self.expects_more = received == asked;
        self.alone = if received > 0 { 0 } else { self.alone };
        for (i, header) in headers[..received].iter().enumerate() {
            // SAFETY: `received` is at most `asked`, and so many headers are filled in.
            let header = unsafe { header.assume_init_ref() };
            // SAFETY: the first `asked` names were written, and the kernel's writes leave them initialised.
            let from = unsafe { names[i].assume_init_ref() };
            self.arrivals[i] = self.arrival(i, &header.msg_hdr, header.msg_len as usize, from);
        }
        self.received = received;
        Ok(received)
    }

    /// Receives one datagram, with the kernel's control messages.
    fn receive_stamped(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let (mut name, mut controls) = (Name::none(), MaybeUninit::<ControlWords>::uninit());
        let slot = &mut self.slab[..self.slot_bytes];
        let mut vector = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: slot.len() };
        let mut header = no_header().msg_hdr;
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = NAME_BYTES;
        header.msg_iov = &raw mut vector;
        header.msg_iovlen = 1;
        header.msg_control = controls.as_mut_ptr().cast();
        header.msg_controllen = size_of::<ControlWords>() as _;
        let (fd, flags) = (socket.as_fd().as_raw_fd(), libc::MSG_DONTWAIT);
        // This is the system call itself. The C library's function is a cancellation point, which costs two locked instructions in a
        // program with threads. SAFETY: `fd` is open as long as `socket` is borrowed; the header names one slot, one address and one
        // control buffer with their true lengths, all of which outlive the call.
        let bytes = unsafe { libc::syscall(libc::SYS_recvmsg, fd, &raw mut header, flags) };
        let bytes = match Errno::result(bytes) {
            Ok(bytes) => bytes as usize,
            Err(Errno::EAGAIN | Errno::EINTR) => return Ok(0),
            Err(e) => return Err(e.into()),
        };
        self.arrivals[0] = self.arrival(0, &header, bytes, &name);
        self.note_alone();
        Ok(1)
    }

    /// Describes the delivery that the kernel reported in `header`.
    fn arrival(&self, slot: usize, header: &libc::msghdr, bytes: usize, from: &Name) -> Arrival {
        let Controls { time_ns, segment } = Controls::of(header);
        let bytes = bytes.min(self.slot_bytes);
        let slot = &self.slab[slot * self.slot_bytes..][..bytes];
        let segment_of = || self.segment_of.map_or(bytes, |segment_of| segment_of(slot));
        Arrival {
            bytes,
            segment: segment.filter(|bytes| *bytes > 0).unwrap_or_else(segment_of),
            from: from.address(),
            is_truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            time_ns,
        }
    }

    /// Receives one datagram, without control messages.
    fn receive_bare(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let slot = &mut self.slab[..self.slot_bytes];
        // This is the system call itself. The C library's function is a cancellation point, which costs two locked instructions in a
        // program with threads.
        let (bytes, from) = match net::recvfrom(socket, slot, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            Ok((_, bytes, from)) => (bytes, from),
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(0),
            Err(e) => return Err(e.into()),
        };
        let slot = &self.slab[..bytes.min(self.slot_bytes)];
        self.arrivals[0] = Arrival {
            bytes: slot.len(),
            segment: self.segment_of.map_or(slot.len(), |segment_of| segment_of(slot)),
            from: from.and_then(|from| from.try_into().ok()).unwrap_or(Arrival::NONE.from),
            is_truncated: bytes > self.slot_bytes,
            time_ns: None,
        };
        self.note_alone();
        Ok(1)
    }

    fn note_alone(&mut self) {
        (self.received, self.room) = (1, 2);
        self.alone = self.alone.wrapping_add(1);
    }

    /// Whether the last [`receive`](Self::receive) requested more than one datagram and got as many as it requested. If so, more datagrams
    /// can wait.
    pub fn expects_more(&self) -> bool {
        self.expects_more
    }

    /// Number of datagrams of the last [`receive`](Self::receive) that arrived together. It is 0 if only one datagram arrived.
    #[inline]
    pub fn together(&self) -> usize {
        match &self.arrivals[..self.received] {
            [] => 0,
            [alone] if alone.segment >= alone.bytes => 0,
            several => {
                several.iter().map(|arrival| arrival.bytes.div_ceil(arrival.segment.max(1)).max(1)).sum()
            }
        }
    }

    /// The datagrams of the last [`receive`](Self::receive).
    pub fn datagrams(&self) -> impl Iterator<Item = Datagram<'_>> {
        let arrivals = self.arrivals[..self.received].iter().enumerate();
        arrivals.flat_map(|(at, arrival)| {
            let slot = &self.slab[at * self.slot_bytes..][..arrival.bytes];
            let mut next = Some(0);
            // This closure is used in place of `step_by`, because it also returns an empty datagram, and does not divide.
            std::iter::from_fn(move || {
                let at = next?;
                let end = slot.len().min(at + arrival.segment);
                next = (end < slot.len() && end > at).then_some(end);
                Some(Datagram {
                    bytes: &slot[at..end],
                    from: arrival.from,
                    is_truncated: arrival.is_truncated,
                    is_merged: arrival.segment < arrival.bytes,
                    time_ns: arrival.time_ns,
                })
            })
        })
    }
}

/// A header without buffers.
fn no_header() -> libc::mmsghdr {
    // SAFETY: all-zero bytes are a valid mmsghdr: null pointers, zero lengths and flags.
    unsafe { zeroed() }
}

/// The contents of the control messages of a datagram.
#[derive(Default)]
struct Controls {
    time_ns: Option<u64>,
    segment: Option<usize>,
}

impl Controls {
    fn of(header: &libc::msghdr) -> Self {
        let mut said = Self::default();
        // SAFETY: the kernel filled the first msg_controllen bytes of a buffer that is still there, aligned for a cmsghdr.
        let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
        while !control.is_null() {
            // SAFETY: FIRSTHDR and NXTHDR give null or a whole, aligned header inside of what the kernel filled.
            let found = unsafe { *control };
            // SAFETY: pointer arithmetic on the same header.
            let data = unsafe { libc::CMSG_DATA(control) };
            match (found.cmsg_level, found.cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    // SAFETY: the kernel puts a timespec into a message of this type; nothing aligns it, hence unaligned.
                    let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                    said.time_ns = Some(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64);
                }
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    // SAFETY: the kernel puts a c_int into a message of this type; nothing aligns it, hence unaligned.
                    let bytes = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                    said.segment = usize::try_from(bytes).ok();
                }
                _ => {}
            }
            // SAFETY: as for FIRSTHDR; `control` is a header of this very message.
            control = unsafe { libc::CMSG_NXTHDR(header, control) };
        }
        said
    }
}

/// Switches merging (`UDP_GRO`) on or off. With merging, the kernel merges equally long datagrams of one sender if several arrive at a
/// time. Only an inbox made by [`Inbox::merging`] separates merged datagrams again. Keep that inbox for a while after merging is switched
/// off, because merged datagrams can still wait at the socket.
///
/// If the socket drops merged datagrams, [`drops`] counts them as one datagram. A datagram that arrives alone takes 6 % longer while
/// merging is on.
///
/// # Errors
/// The error of `setsockopt`: `ENOPROTOOPT` before Linux 5.0.
pub fn merge(socket: impl AsFd, is_wanted: bool) -> io::Result<()> {
    set_option(&socket, libc::SOL_UDP, libc::UDP_GRO, libc::c_int::from(is_wanted))
}

/// The kernel's figures about a socket's memory, in the form of `SO_MEMINFO`. `DROPS_AT` is the index of the number of drops.
type MemoryInfo = [u32; 9];
const DROPS_AT: usize = 8;

/// Number of datagrams that the socket has dropped so far, modulo 2^32. Cost: one system call. The option `SO_RXQ_OVFL` would report the
/// number with each datagram, but make each datagram a tenth of a microsecond slower.
///
/// # Errors
/// The error of `getsockopt`: `ENOPROTOOPT` before Linux 4.12.
pub fn drops(socket: impl AsFd) -> io::Result<u32> {
    let (fd, mut info) = (socket.as_fd().as_raw_fd(), MemoryInfo::default());
    let mut size = size_of::<MemoryInfo>() as libc::socklen_t;
    // SAFETY: `fd` is open as long as `socket` is borrowed; the kernel writes at most `size` bytes, which the array has.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, (&raw mut info).cast(), &raw mut size)
    };
    Errno::result(got)?;
    Ok(info[DROPS_AT])
}

/// Makes the kernel poll the network card instead of waiting for its interrupts, with at most `budget` packets per poll. Needs
/// CAP_NET_ADMIN.
///
/// # Errors
/// The error of `setsockopt`: `EPERM`, or `ENOPROTOOPT` before Linux 5.11.
pub fn prefer_busy_poll(socket: impl AsFd, budget: u16) -> io::Result<()> {
    set_option(&socket, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 1)?;
    set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_BUSY_POLL_BUDGET,
        libc::c_int::from(budget.min(i16::MAX as u16) as i16),
    )
}

fn set_option(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: `fd` is open as long as `socket` is borrowed, and the value is one c_int that outlives the call.
    let result = unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), size) };
    Ok(Errno::result(result).map(drop)?)
}

#[cfg(test)]
mod tests;
