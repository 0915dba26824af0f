//! Bare UDP between two hosts, with which the bridge is compared. Each message is one `send` and one `recv` over the same wire. The socket
//! is connected, and its receive buffer is as large as the kernel allows.

use super::sockets::{self, SocketReceiver, UdpSender};
use crate::rig::hosts::{FAR, NEAR};
use crate::rig::names::WIRE_MULTICAST;
use crate::rig::spec::Spec;
use anyhow::{Context, Result};
use std::net::{Ipv4Addr, SocketAddrV4};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 79, 0, 2);
const PORT: u16 = 30_001;

/// Returns the address to which the datagrams are sent.
fn destination(spec: &Spec) -> SocketAddrV4 {
    match spec.contestant.transport_name() {
        WIRE_MULTICAST => SocketAddrV4::new(GROUP, PORT),
        _ => SocketAddrV4::new(FAR.0, PORT),
    }
}

/// Makes the sender on the sending host.
///
/// # Errors
/// The system's error.
pub fn sender(spec: &Spec) -> Result<UdpSender> {
    let (socket, to) = (sockets::udp()?, destination(spec));
    if to.ip().is_multicast() {
        socket.set_multicast_if_v4(&NEAR.0).context("choose the interface")?;
        socket.set_multicast_loop_v4(false).context("keep the datagrams off this host")?;
    }
    socket.connect(&to.into()).context("connect to the other host")?;
    Ok(UdpSender(socket.into()))
}

/// Makes the receiver on the receiving host.
///
/// # Errors
/// The system's error.
pub fn receiver(spec: &Spec) -> Result<SocketReceiver> {
    let (socket, at) = (sockets::udp()?, destination(spec));
    socket.bind(&at.into()).context("bind the port")?;
    if at.ip().is_multicast() {
        socket.join_multicast_v4(at.ip(), &FAR.0).context("join the group")?;
    }
    sockets::widen(&socket)?;
    SocketReceiver::new(spec, socket)
}
