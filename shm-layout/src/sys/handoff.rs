//! Packets with descriptors over Unix sockets. With such packets a daemon passes memory to programs, and learns the identity of its peers.
//!
//! The sockets are SOCK_SEQPACKET: each receive returns the bytes of one send, and the death of a peer closes the connection. The functions
//! allocate no memory according to a size that a peer claims, and close descriptors that were not requested.

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

/// Greatest number of descriptors in one packet.
pub const MAX_DESCRIPTORS: usize = 4;
/// Largest packet in bytes.
pub const MAX_PACKET: usize = 64 << 10;
/// Greatest number of descriptors that a service manager keeps for the daemon: `FileDescriptorStoreMax=` of the shipped unit.
pub const MAX_KEPT: usize = 8192;
/// The greatest number of descriptors that [`inherited`] accepts: [`MAX_KEPT`] stored ones, and 64 sockets at which the service manager
/// listens.
pub const MAX_INHERITED: usize = MAX_KEPT + 64;

/// The process at the other end of a socket. The kernel recorded the ids of the process when the process connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Process id in our own namespace; 0 if the process is in a namespace that we cannot see.
    pub pid: u32,
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
}

/// A received packet.
#[derive(Debug)]
pub struct Packet {
    /// The number of received bytes at the start of the buffer; 0 means that the peer has closed the connection.
    pub length: usize,
    /// Descriptors that were sent with the bytes.
    pub descriptors: Vec<File>,
    /// Whether the packet was larger than the buffer, or had more than [`MAX_DESCRIPTORS`] descriptors. If so, only a part of the packet is
    /// here.
    pub truncated: bool,
    /// Whether this process had too few free descriptors for the packet. If so, only some descriptors are missing.
    pub lacks_descriptors: bool,
}

/// Connects to the socket at `path`.
///
/// # Errors
/// The error of `connect`.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Checks whether a process listens at `path`. Unlike [`connect`] it never waits.
///
/// # Errors
/// The error of `connect`: `ConnectionRefused` if no process listens, `WouldBlock` if the listening process is too busy, `EPROTOTYPE` for a
/// socket of another kind.
pub fn try_connect(path: &Path) -> io::Result<()> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    Ok(rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?)
}

/// Listens at `path`, which must not exist.
///
/// # Errors
/// The error of `bind` or `listen`.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 1024)?;
    Ok(socket)
}

fn socket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

/// Whether a descriptor that another process opened is a socket of the kind that [`listen`] makes.
pub fn is_listener(descriptor: impl AsFd) -> bool {
    use rustix::net::sockopt::{socket_acceptconn, socket_domain, socket_type};
    let descriptor = descriptor.as_fd();
    socket_domain(descriptor) == Ok(AddressFamily::UNIX)
        && socket_type(descriptor) == Ok(SocketType::SEQPACKET)
        && socket_acceptconn(descriptor) == Ok(true)
}

/// Accepts the next connection without waiting.
///
/// # Errors
/// `WouldBlock` if no connection waits.
pub fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?)
}

/// Returns the process that connected.
///
/// # Errors
/// The error of `getsockopt`.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    // rustix has this call too, but its type for process ids excludes 0, the id of a peer in another namespace.
    let cred = nix::sys::socket::getsockopt(&socket, nix::sys::socket::sockopt::PeerCredentials)?;
    Ok(Peer { pid: cred.pid().unsigned_abs(), uid: cred.uid(), gid: cred.gid() })
}

/// Sends one packet.
///
/// # Errors
/// `WouldBlock` if the socket does not block and the peer does not read; `BrokenPipe` if the peer is gone.
///
/// # Panics
/// With more than [`MAX_DESCRIPTORS`].
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    assert!(descriptors.len() <= MAX_DESCRIPTORS);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    loop {
        match rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            other => return other.map(|_| ()).map_err(Into::into),
        }
    }
}

/// Receives one packet into `buffer`.
///
/// # Errors
/// `WouldBlock` if no packet waits at a non-blocking socket.
pub fn receive(socket: impl AsFd, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(buffer)], &mut ancillary, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    let (is_cut, is_short) = (ReturnFlags::TRUNC, ReturnFlags::CTRUNC);
    let [is_cut, is_short] = [is_cut, is_short].map(|flag| received.flags.contains(flag));
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds.map(File::from));
        }
    }
    // The kernel reports the same flag in two cases. If the packet has too many descriptors, [`MAX_DESCRIPTORS`] of them arrived. If fewer
    // arrived, this process had too few free descriptors.
    let lacks_descriptors = is_short && !is_cut && descriptors.len() < MAX_DESCRIPTORS;
    let truncated = (is_cut || is_short) && !lacks_descriptors;
    Ok(Packet { length: received.bytes, descriptors, truncated, lacks_descriptors })
}

/// Whether the peer of a connected socket has closed the connection. Its last packets might still wait to be received.
pub fn has_hung_up(socket: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(&socket, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

/// Returns the size of the packets that were sent on this socket and that the peer has not received yet. The size includes the kernel's own
/// data about the packets. It is 0 if the peer has received all packets, or has closed its end.
///
/// # Errors
/// The error of `ioctl`.
pub fn unread(socket: impl AsFd) -> io::Result<usize> {
    const OUTQ: rustix::ioctl::Opcode = nix::libc::TIOCOUTQ as rustix::ioctl::Opcode;
    // SAFETY: this request takes a pointer to an integer, and the kernel fills the integer in.
    let request = unsafe { rustix::ioctl::Getter::<OUTQ, nix::libc::c_int>::new() };
    // SAFETY: as above; the request changes nothing.
    let unread = unsafe { rustix::ioctl::ioctl(socket, request) }?;
    Ok(usize::try_from(unread).unwrap_or(0))
}

/// The descriptors that a service manager passed to this process.
#[derive(Debug, Default)]
pub struct Inherited {
    /// The descriptors with their names.
    pub descriptors: Vec<(String, OwnedFd)>,
    /// The names of further descriptors, if the service manager passed more than [`MAX_INHERITED`] descriptors. The further descriptors
    /// stay open and unused.
    pub beyond: Vec<String>,
}

/// Takes the descriptors that the service manager passed to this process (`LISTEN_FDS`), with their names (`LISTEN_FDNAMES`). Call this
/// function once, and early. A second call returns no descriptors.
pub fn inherited() -> Inherited {
    use std::sync::atomic::{AtomicBool, Ordering};
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let variable = |name: &str| std::env::var(name).ok();
    let for_us = variable("LISTEN_PID").and_then(|pid| pid.parse().ok()) == Some(std::process::id());
    let count: usize = variable("LISTEN_FDS").and_then(|count| count.parse().ok()).unwrap_or(0);
    if !for_us || TAKEN.swap(true, Ordering::Relaxed) {
        return Inherited::default();
    }
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':').map(str::to_owned);
    let taken = count.min(if crate::fault!("half_of_the_store_is_dropped") { 4096 } else { MAX_INHERITED });
    let descriptors = (3_i32..)
        .take(taken)
        .filter_map(|raw| {
            let name = names.next().unwrap_or_default();
            // SAFETY: `borrowed` lives for this check alone; asking for flags of a number that is no open descriptor
            // is an error and harms nothing.
            let borrowed = unsafe { BorrowedFd::borrow_raw(raw) };
            rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).ok()?;
            // SAFETY: the service manager opened this descriptor for this process (LISTEN_PID is ours), it is open, and
            // the flag above makes sure that it is taken only once.
            Some((name, unsafe { OwnedFd::from_raw_fd(raw) }))
        })
        .collect();
    // The number of names limits this list, because the count from the environment can be any number.
    Inherited { descriptors, beyond: names.take(count - taken).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, Write};

    #[test]
    fn packets_keep_their_ends_and_carry_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = listen(&path).unwrap();
        assert_eq!(accept(&listener).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert!(is_listener(&listener) && !is_listener(tempfile::tempfile().unwrap()));
        let client = connect(&path).unwrap();
        assert!(!is_listener(&client));
        let server = accept(&listener).unwrap();
        assert_eq!(peer(&server).unwrap().pid, std::process::id());

        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"shared").unwrap();
        send(&client, b"one", &[file.as_fd(), file.as_fd()]).unwrap();
        send(&client, b"two", &[]).unwrap();
        let mut buffer = [0; 16];
        let mut packet = receive(&server, &mut buffer).unwrap();
        assert_eq!(
            (&buffer[..packet.length], packet.descriptors.len(), packet.truncated),
            (&b"one"[..], 2, false)
        );
        let mut text = String::new();
        packet.descriptors[1].rewind().unwrap();
        packet.descriptors[1].read_to_string(&mut text).unwrap();
        assert_eq!(text, "shared");
        assert_eq!(receive(&server, &mut buffer[..2]).unwrap().length, 2);
        assert_eq!(receive(&server, &mut buffer).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(unread(&client).unwrap(), 0);
        send(&client, b"three", &[file.as_fd()]).unwrap();
        assert!(unread(&client).unwrap() > 0 && !has_hung_up(&server));
        drop(client);
        assert!(has_hung_up(&server), "before its last packet is received");
        assert_eq!(receive(&server, &mut buffer).unwrap().length, 5);
        assert_eq!(receive(&server, &mut buffer).unwrap().length, 0);

        let client = connect(&path).unwrap();
        let server = accept(&listener).unwrap();
        send(&client, b"unread", &[file.as_fd()]).unwrap();
        rustix::net::shutdown(&client, rustix::net::Shutdown::Both).unwrap();
        assert!(unread(&client).unwrap() > 0, "the packet is still on its way");
        drop(server);
        assert_eq!(unread(&client).unwrap(), 0, "nobody can receive it any more");
    }
}
