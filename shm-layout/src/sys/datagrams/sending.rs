//! Sends datagrams in batches.

use super::{BATCH, Name, no_header};
use nix::errno::Errno;
use nix::libc;
use rustix::net::{self, SendFlags};
use std::mem::{MaybeUninit, size_of};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

/// The limit for the bytes of datagrams that are sent as one segmented packet. It is a little less than the size of the largest IPv4
/// datagram.
const MOST_SEGMENTED_BYTES: usize = 65_000;

/// The result of sending a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Number of datagrams that the kernel accepted.
    pub sent: u64,
    /// How many of the `sent` datagrams were part of a segmented packet with others.
    pub segmented: u64,
    /// Number of datagrams that the kernel refused. They are skipped.
    pub refused: u64,
    /// The reason why the kernel last refused a datagram.
    pub error: Option<Errno>,
}

/// Whether equally long datagrams in a row are sent as one packet, which the kernel or the network card splits again (`UDP_SEGMENT`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Segments {
    /// Each datagram is sent by itself.
    #[default]
    Off,
    /// Equally long datagrams in a row are sent as one packet.
    On,
    /// The kernel refused to send several datagrams as one packet, for the given reason. Each datagram is sent by itself.
    Refused(Errno),
}

/// Sends datagrams in their order to the address `to`, or, if `to` is `None`, to the address of the connected socket.
///
/// - A datagram that the kernel refuses is skipped and counted.
/// - On a connected socket, a send can fail because a host refused an earlier datagram. In that case, the present datagram is sent again.
/// - On a blocking socket the call waits while the send buffer is full, at most for the socket's timeout (`SO_SNDTIMEO`). A datagram that
///   finds no room in that time is refused, and so are all datagrams after it.
///
/// Cost: one system call for up to [`BATCH`] datagrams, no allocation.
pub fn send<'a>(
    socket: impl AsFd,
    to: impl Into<Option<SocketAddr>>,
    datagrams: impl IntoIterator<Item = &'a [u8]>,
) -> Sent {
    send_segmented(socket, to, datagrams, &mut Segments::Off)
}

/// Sends datagrams as [`send`] does. With [`Segments::On`], datagrams of the same length that follow one another are sent as one packet.
/// The last datagram of the packet can be shorter than the others. A single datagram is sent as usual.
///
/// If the kernel refuses segmentation, `segments` becomes [`Segments::Refused`] with the reason, and each datagram is sent by itself. No
/// datagram is lost. The kernel refuses in three cases: a datagram is longer than the interface's MTU (`EINVAL` or `EMSGSIZE`), the
/// interface computes no checksums (`EIO`), or Linux is older than 4.18.
pub fn send_segmented<'a>(
    socket: impl AsFd,
    to: impl Into<Option<SocketAddr>>,
    datagrams: impl IntoIterator<Item = &'a [u8]>,
    segments: &mut Segments,
) -> Sent {
    let (socket, to, mut datagrams) = (socket.as_fd(), to.into(), datagrams.into_iter());
    let (first, second) = (datagrams.next(), datagrams.next());
    if let (Some(alone), None) = (first, second) {
        return send_alone(socket, to, alone);
    }
    send_many(socket, to, first.into_iter().chain(second).chain(datagrams), segments)
}

/// Sends one datagram. This takes less time than a batch of one.
fn send_alone(socket: BorrowedFd<'_>, to: Option<SocketAddr>, datagram: &[u8]) -> Sent {
    let mut was_left_out = false;
    loop {
        match send_one(socket, to, datagram) {
            Ok(()) => return Sent { sent: 1, ..Sent::default() },
            Err(Errno::EINTR) => {}
            Err(Errno::ECONNREFUSED) if to.is_none() && !was_left_out => was_left_out = true,
            Err(e) => return Sent { refused: 1, error: Some(e), ..Sent::default() },
        }
    }
}

// This is the system call itself. The C library's function is a cancellation point, which costs two locked instructions in a program with
// threads.
#[inline]
fn send_one(socket: BorrowedFd<'_>, to: Option<SocketAddr>, datagram: &[u8]) -> nix::Result<()> {
    let sent = match to {
        None => net::send(socket, datagram, SendFlags::NOSIGNAL),
        Some(to) => net::sendto(socket, datagram, SendFlags::NOSIGNAL, &to),
    };
    sent.map(drop).map_err(|e| Errno::from_raw(e.raw_os_error()))
}

/// Sends several datagrams. Does nothing if there is none.
#[inline(never)]
fn send_many<'a>(
    socket: BorrowedFd<'_>,
    to: Option<SocketAddr>,
    datagrams: impl Iterator<Item = &'a [u8]>,
    segments: &mut Segments,
) -> Sent {
    let mut name = to.map(Name::of);
    let name = match &mut name {
        Some((name, bytes)) => (ptr::from_mut(name).cast(), *bytes),
        None => (ptr::null_mut(), 0),
    };
    let mut total = Sent::default();
    let mut datagrams = datagrams.peekable();
    let mut vectors = [const { libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 } }; BATCH];
    let mut calls = Calls::new();
    while datagrams.peek().is_some() {
        let mut filled = 0;
        for datagram in datagrams.by_ref().take(BATCH) {
            vectors[filled] =
                libc::iovec { iov_base: datagram.as_ptr().cast_mut().cast(), iov_len: datagram.len() };
            filled += 1;
        }
        let mut done = 0;
        // The index of a datagram that was not sent, because in its place the kernel reported the refusal of an earlier one. It is sent
        // again once.
        let mut left_out = None;
        while done < filled {
            calls.fill(&mut vectors[done..filled], name, *segments == Segments::On);
            let first = usize::from(calls.counts[0]);
            // SAFETY: the headers have just been filled in; what they point at outlives the call.
            match unsafe { calls.send(socket) } {
                Ok(sent) => {
                    for count in &calls.counts[..sent] {
                        done += usize::from(*count);
                        total.sent += u64::from(*count);
                        total.segmented += if *count > 1 { u64::from(*count) } else { 0 };
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNREFUSED) if name.0.is_null() && left_out != Some(done) => {
                    left_out = Some(done)
                }
                // The datagram found no room in time, so there is no room for the others either.
                Err(Errno::EAGAIN) => {
                    let refused = total.refused + (filled - done + datagrams.count()) as u64;
                    return Sent { refused, error: Some(Errno::EAGAIN), ..total };
                }
                Err(e) if first > 1 && refuses_segments(e) => *segments = Segments::Refused(e),
                Err(e) => {
                    done += first;
                    total.refused += first as u64;
                    total.error = Some(e);
                }
            }
        }
    }
    total
}

/// Whether the error can mean that the kernel refused only to split the packet into datagrams. If so, it can still accept the datagrams one
/// by one.
fn refuses_segments(error: Errno) -> bool {
    matches!(error, Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE | Errno::ENOPROTOOPT | Errno::EOPNOTSUPP)
}

/// The control message with the length of each segment, in the kernel's form: CMSG_SPACE(2) bytes.
#[repr(C)]
struct SegmentControl {
    header: libc::cmsghdr,
    bytes: u16,
}

/// The headers of one system call.
struct Calls {
    headers: [MaybeUninit<libc::mmsghdr>; BATCH],
    controls: [MaybeUninit<SegmentControl>; BATCH],
    /// Number of datagrams in each header's packet.
    counts: [u8; BATCH],
    filled: usize,
}

impl Calls {
    fn new() -> Self {
        Self {
            headers: [const { MaybeUninit::uninit() }; BATCH],
            controls: [const { MaybeUninit::uninit() }; BATCH],
            counts: [0; BATCH],
            filled: 0,
        }
    }

    /// Fills in headers for at least one and at most [`BATCH`] datagrams. Each datagram is one vector.
    fn fill(
        &mut self,
        mut vectors: &mut [libc::iovec],
        (name, name_bytes): (*mut libc::c_void, libc::socklen_t),
        in_segments: bool,
    ) {
        self.filled = 0;
        while let Some(first) = vectors.first() {
            let (size, at) = (first.iov_len, self.filled);
            let count = if in_segments { equal_ones(vectors) } else { 1 };
            let (those, rest) = vectors.split_at_mut(count);
            vectors = rest;
            let header = &mut self.headers[at].write(no_header()).msg_hdr;
            header.msg_name = name;
            header.msg_namelen = name_bytes;
            header.msg_iov = those.as_mut_ptr();
            header.msg_iovlen = count as _;
            if count > 1 {
                let control = self.controls[at].write(SegmentControl::of(size as u16));
                header.msg_control = ptr::from_mut(control).cast();
                header.msg_controllen = size_of::<SegmentControl>() as _;
            }
            self.counts[at] = count as u8;
            self.filled += 1;
        }
    }

    /// Sends the packets of all headers, in order. The kernel can stop before the last packet. Returns the number of packets that were
    /// sent, at least 1.
    ///
    /// # Safety
    /// [`fill`](Self::fill) was called before. The vectors, their bytes and the name are still valid, and this value has not moved.
    unsafe fn send(&mut self, socket: BorrowedFd<'_>) -> nix::Result<usize> {
        let fd = socket.as_raw_fd();
        let (first, count) = (self.headers.as_mut_ptr().cast(), self.filled as libc::c_uint);
        // SAFETY: the caller promised whole headers; `fd` is open as long as `socket` is borrowed.
        let sent = unsafe { libc::sendmmsg(fd, first, count, libc::MSG_NOSIGNAL as _) };
        Errno::result(sent).map(|sent| sent.max(1) as usize)
    }
}

impl SegmentControl {
    fn of(bytes: u16) -> Self {
        // SAFETY: this only computes a length.
        let length = unsafe { libc::CMSG_LEN(size_of::<u16>() as _) };
        // SAFETY: all-zero bytes are a valid cmsghdr; some systems have a gap in it.
        let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = length as _;
        header.cmsg_level = libc::SOL_UDP;
        header.cmsg_type = libc::UDP_SEGMENT;
        Self { header, bytes }
    }
}

/// The number of datagrams at the start of `vectors` that can be sent as one packet. All of these are as long as the first one, except that
/// the last can be shorter.
fn equal_ones(vectors: &[libc::iovec]) -> usize {
    let size = vectors[0].iov_len;
    let (mut count, mut bytes) = (0, 0);
    for vector in vectors {
        bytes += vector.iov_len;
        if vector.iov_len > size || vector.iov_len == 0 || bytes > MOST_SEGMENTED_BYTES {
            break;
        }
        count += 1;
        if vector.iov_len < size {
            break;
        }
    }
    count.max(1)
}
