//! Joins a multicast group for one source.

use super::Name;
use nix::errno::Errno;
use nix::libc;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// Joins a multicast group on an interface, for the packets of one source. With interface 0 the kernel chooses the interface. No library
/// wraps this call for IPv6.
///
/// # Errors
/// The error of `setsockopt`: `ENODEV` if there is no such interface, `EADDRNOTAVAIL` or `EINVAL` if the source is of another
/// family than the group.
pub fn join_source(socket: impl AsFd, interface: u32, group: IpAddr, source: IpAddr) -> io::Result<()> {
    let level = if group.is_ipv6() { libc::IPPROTO_IPV6 } else { libc::IPPROTO_IP };
    let request = libc::group_source_req {
        gsr_interface: interface,
        gsr_group: stored(group),
        gsr_source: stored(source),
    };
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of::<libc::group_source_req>() as libc::socklen_t);
    // SAFETY: `fd` is open as long as `socket` is borrowed, and the value is one group_source_req that outlives the call.
    let result = unsafe {
        libc::setsockopt(fd, level, libc::MCAST_JOIN_SOURCE_GROUP, (&raw const request).cast(), size)
    };
    Ok(Errno::result(result).map(drop)?)
}

fn stored(address: IpAddr) -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { zeroed() };
    let (name, _) = Name::of(SocketAddr::new(address, 0));
    // SAFETY: a sockaddr_storage has the room and the alignment of an address of any family.
    unsafe { ptr::from_mut(&mut storage).cast::<Name>().write(name) };
    storage
}
