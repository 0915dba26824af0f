//! Kernel multicast over `lo`, the transport with which shared memory is compared. It is configured as well
//! as possible.

use anyhow::Result;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::str::FromStr;

/// A multicast group and port of this demo alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group(pub(crate) SocketAddrV4);

impl FromStr for Group {
    type Err = std::net::AddrParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl Group {
    /// Chooses a group that another demo is unlikely to use at the same time.
    pub(crate) fn choose() -> Self {
        let pid = std::process::id();
        let [_, _, high, low] = pid.to_be_bytes();
        Self(SocketAddrV4::new(Ipv4Addr::new(239, 255, high, low), 20_000 + (pid % 20_000) as u16))
    }

    /// Opens a socket that sends to the group, only through `lo`.
    pub(crate) fn sender(self) -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
        socket.set_multicast_loop_v4(true)?;
        socket.set_multicast_ttl_v4(1)?;
        socket.connect(&self.0.into())?;
        Ok(socket.into())
    }

    /// A socket that receives only datagrams to the group on `lo`.
    pub(crate) fn receiver(self) -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        // The kernel lowers this size to the largest buffer for an unprivileged process. A smaller buffer would cause avoidable losses, and
        // the comparison would be unfair.
        socket.set_recv_buffer_size(4 << 20)?;
        socket.bind(&self.0.into())?;
        socket.join_multicast_v4(self.0.ip(), &Ipv4Addr::LOCALHOST)?;
        Ok(socket.into())
    }
}
