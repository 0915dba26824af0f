//! Looks up the interface of a line, by its name or by its address.

use rustix::net::netdevice::name_to_index;
use shmcast::sys::interfaces;
use socket2::Socket;
use std::fmt::Display;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;

use super::SocketError;
use crate::proto::link::Link;
use crate::spec::LineSpec;

/// An interface of this host. If none is configured, the kernel chooses one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Interface {
    /// The index of the interface; 0 if the kernel chooses.
    pub(super) index: u32,
    /// The IPv4 address of the interface; unspecified if the kernel chooses.
    pub(super) v4: Ipv4Addr,
}

impl Interface {
    /// Returns the group with the interface as its scope, which link-local groups need. A configured scope is not changed.
    pub(super) fn in_scope(self, group: SocketAddr) -> SocketAddr {
        match group {
            SocketAddr::V6(mut group) if group.scope_id() == 0 => {
                group.set_scope_id(self.index);
                group.into()
            }
            group => group,
        }
    }
}

/// Looks up the interface of a line.
pub(super) fn interface_of(line: &LineSpec, socket: &Socket) -> Result<Interface, SocketError> {
    let unlisted =
        |name: &str, source| SocketError::Interfaces { group: line.group, name: name.to_owned(), source };
    let index_of = |name: &str| name_to_index(socket, name).map_err(|e| unlisted(name, io::Error::from(e)));
    match (&line.interface, line.group) {
        (None, SocketAddr::V6(group)) => Ok(Interface { index: group.scope_id(), v4: Ipv4Addr::UNSPECIFIED }),
        (None, SocketAddr::V4(_)) => Ok(Interface { index: 0, v4: Ipv4Addr::UNSPECIFIED }),
        (Some(name), SocketAddr::V4(_)) => {
            let all = interfaces::ipv4_addresses(socket).map_err(|e| unlisted(name, e))?;
            let (name, v4) = find(line, name, &all, socket)?;
            Ok(Interface { index: index_of(&name)?, v4 })
        }
        (Some(name), SocketAddr::V6(_)) => {
            let all = interfaces::ipv6_addresses().map_err(|e| unlisted(name, e))?;
            let (name, _) = find(line, name, &all, socket)?;
            Ok(Interface { index: index_of(&name)?, v4: Ipv4Addr::UNSPECIFIED })
        }
    }
}

/// Looks up the interface of a line. Opens a socket for this purpose.
pub(crate) fn look_up(line: &LineSpec) -> Result<Interface, SocketError> {
    interface_of(line, &super::new_socket(line.group)?)
}

/// Returns the entry with this name or this address.
fn find<A: Copy + Display>(
    line: &LineSpec,
    wanted: &str,
    all: &[(String, A)],
    socket: &Socket,
) -> Result<(String, A), SocketError> {
    let is_wanted = |(name, address): &&(String, A)| name == wanted || address.to_string() == wanted;
    all.iter().find(is_wanted).cloned().ok_or_else(|| SocketError::Interface {
        group: line.group,
        name: wanted.to_owned(),
        why: match (name_to_index(socket, wanted), line.group) {
            (Ok(_), SocketAddr::V4(_)) => "has no IPv4 address",
            (Ok(_), SocketAddr::V6(_)) => "has no IPv6 address",
            (Err(_), _) => "does not exist",
        },
        found: all.iter().map(|(name, address)| format!("{name} ({address})")).collect(),
    })
}

/// Returns the link speed of the interface that has this address. Returns `None` if the interface reports no speed.
pub(crate) fn link_of(socket: impl AsFd, address: IpAddr) -> Option<Link> {
    let found = interfaces::addresses(socket).ok()?;
    let (name, _) = found.into_iter().find(|(_, other)| *other == address)?;
    // The file has the speed in Mbit per second. An interface without a speed has no value, or -1.
    let speed = std::fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    let mbit = speed.trim().parse::<u64>().ok().filter(|mbit| (1..u64::from(u32::MAX)).contains(mbit))?;
    Some(Link::of_bits(mbit * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_list_its_interfaces_is_an_error_and_no_host_without_any() {
        let no_socket = std::fs::File::open("/dev/null").unwrap();
        let no_socket = Socket::from(std::os::fd::OwnedFd::from(no_socket));
        let line = LineSpec {
            interface: Some("lo".to_owned()),
            ..LineSpec::to("239.255.7.1:40001".parse().unwrap())
        };
        let error = interface_of(&line, &no_socket).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("cannot list the interfaces") && text.contains("\"lo\""), "{text}");
    }
}
