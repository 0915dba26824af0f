//! The addresses of the host's interfaces. IPv4 addresses come from the `ioctl` of netdevice(7), and IPv6 addresses from
//! `/proc/net/if_inet6`.
//!
//! `getifaddrs` is not used, because it needs netlink sockets, which a service's unit can forbid. The `ioctl` needs only an ordinary IPv4
//! socket. No library wraps this `ioctl` safely.

use nix::errno::Errno;
use nix::libc;
use std::ffi::CStr;
use std::io;
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

/// The number of spare entries, for addresses that appear after the call that returns the number of addresses.
const SPARE: usize = 8;

/// Returns each address of the host, of IPv4 and of IPv6, with the name of its interface. `socket` is any IPv4 socket.
///
/// # Errors
/// The errors of [`ipv4_addresses`] and [`ipv6_addresses`].
pub fn addresses(socket: impl AsFd) -> io::Result<Vec<(String, IpAddr)>> {
    let v4 = ipv4_addresses(socket)?.into_iter().map(|(name, address)| (name, address.into()));
    let v6 = ipv6_addresses()?.into_iter().map(|(name, address)| (name, address.into()));
    Ok(v4.chain(v6).collect())
}

/// Returns each IPv4 address of the host, with the name of its interface. If the address belongs to an alias of the interface, such as
/// `eth0:1`, the name is that alias.
///
/// `socket` is any IPv4 socket. The addresses are those of the socket's network namespace.
///
/// # Errors
/// The error of the `ioctl`.
pub fn ipv4_addresses(socket: impl AsFd) -> io::Result<Vec<(String, Ipv4Addr)>> {
    // netdevice(7), SIOCGIFCONF: without a buffer, the kernel returns the number of bytes needed.
    let needed_bytes = list(&socket, &mut [])?;
    // SAFETY: all-zero bytes are a valid ifreq: an empty name and a zero address.
    let nothing: libc::ifreq = unsafe { zeroed() };
    let mut requests = vec![nothing; needed_bytes / size_of::<libc::ifreq>() + SPARE];
    let filled_bytes = list(&socket, &mut requests)?;
    requests.truncate(filled_bytes / size_of::<libc::ifreq>());
    Ok(requests.iter().map(|request| (name_of(request), address_of(request))).collect())
}

/// Returns each IPv6 address of the calling thread's network namespace, with the name of its interface. Returns no address if the host has
/// no IPv6.
///
/// # Errors
/// If `/proc` cannot be read.
pub fn ipv6_addresses() -> io::Result<Vec<(String, Ipv6Addr)>> {
    match std::fs::read_to_string("/proc/thread-self/net/if_inet6") {
        Ok(text) => Ok(text.lines().filter_map(ipv6_of).collect()),
        Err(e) if e.kind() == io::ErrorKind::NotFound && std::fs::exists("/proc/thread-self/net")? => {
            Ok(Vec::new())
        }
        Err(e) => Err(e),
    }
}

/// Parses a line of `if_inet6`: the address, then the interface's index, the length of the prefix, the scope, the flags, and the
/// interface's name.
fn ipv6_of(line: &str) -> Option<(String, Ipv6Addr)> {
    let mut words = line.split_ascii_whitespace();
    let address = u128::from_str_radix(words.next()?, 16).ok()?;
    Some((words.nth(4)?.to_owned(), Ipv6Addr::from_bits(address)))
}

/// Fills `requests`. Returns the number of bytes that the kernel has filled. If `requests` is empty, returns the number of bytes that the
/// kernel would fill.
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
    fn addresses_of_ipv6_are_read_with_the_names_of_their_interfaces() {
        let line = "fe80000000000000505400fffe123456 02 40 20 80     eth0";
        assert_eq!(ipv6_of(line), Some(("eth0".to_owned(), "fe80::5054:ff:fe12:3456".parse().unwrap())));
        assert_eq!(ipv6_of("fe80 02"), None);
        match UdpSocket::bind("[::1]:0") {
            Ok(_) => assert!(ipv6_addresses().unwrap().contains(&("lo".to_owned(), Ipv6Addr::LOCALHOST))),
            Err(e) => eprintln!("SKIPPED the addresses of this host: it has no IPv6: {e}"),
        }
    }

    #[test]
    fn a_descriptor_that_cannot_answer_is_an_error_and_no_empty_list() {
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(ipv4_addresses(&file).is_err());
    }
}
