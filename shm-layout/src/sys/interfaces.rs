//! The host's IPv4 interfaces, by the `ioctl` of netdevice(7).
//!
//! `getifaddrs` asks by netlink, a family of sockets that a service's unit may forbid. This `ioctl` asks through an ordinary IPv4
//! socket. No library wraps it safely.

use nix::errno::Errno;
use nix::libc;
use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// Spare room for addresses that appear between the two calls: the one for their number and the one for the addresses.
const SPARE: usize = 8;

/// Each IPv4 address of the host, with the name of its interface. The name is an alias, such as `eth0:1`, if it has one.
///
/// `socket` is any IPv4 socket. The result is that of its network namespace.
///
/// # Errors
/// The error of the `ioctl`.
pub fn ipv4_addresses(socket: impl AsFd) -> io::Result<Vec<(String, Ipv4Addr)>> {
    // netdevice(7), SIOCGIFCONF: without a buffer, the kernel answers how many bytes it has.
    let needed_bytes = list(&socket, &mut [])?;
    // SAFETY: all-zero bytes are a valid ifreq: an empty name and a zero address.
    let nothing: libc::ifreq = unsafe { zeroed() };
    let mut requests = vec![nothing; needed_bytes / size_of::<libc::ifreq>() + SPARE];
    let filled_bytes = list(&socket, &mut requests)?;
    requests.truncate(filled_bytes / size_of::<libc::ifreq>());
    Ok(requests.iter().map(|request| (name_of(request), address_of(request))).collect())
}

/// Fills `requests`. Returns the number of bytes that the kernel filled, or that it would fill if `requests` is empty.
fn list(socket: &impl AsFd, requests: &mut [libc::ifreq]) -> io::Result<usize> {
    let mut list = libc::ifconf {
        ifc_len: size_of_val(requests) as libc::c_int,
        ifc_ifcu: libc::__c_anonymous_ifc_ifcu {
            ifcu_req: if requests.is_empty() { ptr::null_mut() } else { requests.as_mut_ptr() },
        },
    };
    // SAFETY: the socket is open as long as it is borrowed; `list` names a buffer with its true length, or none, and both
    // outlive the call.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::SIOCGIFCONF as _, &raw mut list) };
    Errno::result(result)?;
    Ok(usize::try_from(list.ifc_len).unwrap_or(0))
}

fn name_of(request: &libc::ifreq) -> String {
    let name = request.ifr_name.map(|byte| byte as u8);
    // The kernel ends each name with a zero byte.
    CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned()
}

fn address_of(request: &libc::ifreq) -> Ipv4Addr {
    // SAFETY: the union was zeroed before the kernel filled it, so all its bytes are initialised, and any bytes are a valid
    // sockaddr_in, which is not larger than the union's sockaddr.
    let address = unsafe { ptr::from_ref(&request.ifr_ifru).cast::<libc::sockaddr_in>().read_unaligned() };
    Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    #[test]
    fn the_loopback_interface_is_found_by_name_and_address() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let found = ipv4_addresses(&socket).unwrap();
        assert!(found.contains(&("lo".to_owned(), Ipv4Addr::LOCALHOST)), "{found:?}");
    }

    #[test]
    fn a_descriptor_that_cannot_answer_is_an_error_and_no_empty_list() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ipv4_addresses(&file).is_err());
    }
}
