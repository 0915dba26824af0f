//! Sending by the batch.

use super::{BATCH, Name, no_header};
use nix::errno::Errno;
use nix::libc;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr;

/// The result of sending a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sent {
    /// Datagrams that the kernel took.
    pub sent: u64,
    /// Datagrams that it refused; they are skipped.
    pub refused: u64,
    /// The reason why it refused the last of those.
    pub error: Option<Errno>,
}

/// Sends datagrams in their order to one address, or to that of the connected socket if `None`. A datagram that the kernel refuses
/// is skipped and counted. On a connected socket the kernel also reports that a host refused an earlier datagram; the one that it
/// then left out is sent again. On a blocking socket this waits while the send buffer is full, and at most for the socket's timeout
/// (`SO_SNDTIMEO`): a datagram that finds no room in that time is refused, with all that follow. Cost: one system call for
/// [`BATCH`] datagrams, no allocation.
pub fn send<'a>(
    socket: impl AsFd,
    to: impl Into<Option<SocketAddr>>,
    datagrams: impl IntoIterator<Item = &'a [u8]>,
) -> Sent {
    let mut name = to.into().map(Name::of);
    let (name, name_bytes) = match &mut name {
        Some((name, bytes)) => (ptr::from_mut(name), *bytes),
        None => (ptr::null_mut(), 0),
    };
    let mut total = Sent::default();
    let mut datagrams = datagrams.into_iter().peekable();
    let mut vectors = [const { MaybeUninit::uninit() }; BATCH];
    let mut headers = [const { MaybeUninit::uninit() }; BATCH];
    while datagrams.peek().is_some() {
        let mut filled = 0;
        for (i, datagram) in datagrams.by_ref().take(BATCH).enumerate() {
            let vector = vectors[i].write(libc::iovec {
                iov_base: datagram.as_ptr().cast_mut().cast(),
                iov_len: datagram.len(),
            });
            let header = &mut headers[i].write(no_header()).msg_hdr;
            header.msg_name = name.cast();
            header.msg_namelen = name_bytes;
            header.msg_iov = vector;
            header.msg_iovlen = 1;
            filled = i + 1;
        }
        let mut done = 0;
        // The place of a datagram that was left out for the refusal of an earlier one.
        let mut left_out = None;
        while done < filled {
            // SAFETY: the first `filled` headers have been filled in; what they point at outlives the call.
            match unsafe { send_filled(socket.as_fd(), &mut headers[done..filled]) } {
                Ok(sent) => {
                    done += sent.max(1);
                    total.sent += sent as u64;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNREFUSED) if name.is_null() && left_out != Some(done) => left_out = Some(done),
                // No room, and none came in time: there is none for the others either.
                Err(Errno::EAGAIN) => {
                    let refused = total.refused + (filled - done + datagrams.count()) as u64;
                    return Sent { refused, error: Some(Errno::EAGAIN), ..total };
                }
                Err(e) => {
                    done += 1;
                    total.refused += 1;
                    total.error = Some(e);
                }
            }
        }
    }
    total
}

/// Sends the datagrams of these headers, or the first of them, and returns their number.
///
/// # Safety
/// Every header has been filled in, with one vector and a name or null. Vectors, bytes and name are still there.
unsafe fn send_filled(
    socket: BorrowedFd<'_>,
    headers: &mut [MaybeUninit<libc::mmsghdr>],
) -> nix::Result<usize> {
    let fd = socket.as_raw_fd();
    let [one] = headers else {
        let (first, count) = (headers.as_mut_ptr().cast(), headers.len() as libc::c_uint);
        // SAFETY: the caller promised whole headers; `fd` is open as long as `socket` is borrowed.
        let sent = unsafe { libc::sendmmsg(fd, first, count, libc::MSG_NOSIGNAL as _) };
        return Errno::result(sent).map(|sent| sent as usize);
    };
    // One datagram takes less time by itself than as a batch of one.
    // SAFETY: the caller promised that it has been filled in.
    let header = unsafe { one.assume_init_ref() }.msg_hdr;
    // SAFETY: the caller promised a vector.
    let vector = unsafe { *header.msg_iov };
    let (name, name_bytes) = (header.msg_name.cast(), header.msg_namelen);
    // SAFETY: `fd` is open as long as `socket` is borrowed; bytes and name have their true lengths, and are only read.
    let sent =
        unsafe { libc::sendto(fd, vector.iov_base, vector.iov_len, libc::MSG_NOSIGNAL, name, name_bytes) };
    Errno::result(sent).map(|_| 1)
}
