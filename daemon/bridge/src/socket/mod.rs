//! The sockets of a bridge. Before the first packet, they are opened and tuned, and join their multicast groups.
//!
//! The system can refuse an option of a socket:
//!
//! - If a bridge needs the option, the bridge fails with an error.
//! - If the option only makes a bridge faster or better informed, the bridge continues without it. The bridge reports the refused option
//!   once, and shows it in its status.
//!
//! `shmcast::sys::datagrams` sends and receives the bytes. A socket has the family of its address, and an IPv6 socket accepts no IPv4.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{setsockopt, sockopt};
use nix::sys::time::{TimeSpec, TimeVal, TimeValLike};
use rustix::net::sockopt::set_ipv6_tclass;
use shmcast::hosting::fault;
use shmcast::sys::datagrams;
use socket2::{Domain, InterfaceIndexOrAddress, Protocol, SockRef, Socket, Type};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::spec::LineSpec;
pub use super::spec::{Marks, header_bytes};
pub use drops::Drops;
use interface::interface_of;
pub(super) use interface::{Interface, link_of, look_up};

mod drops;
mod interface;

/// The greatest number of packets that one busy poll takes from the network card.
const BUSY_POLL_BUDGET: u16 = 64;
/// The longest time for which a sending thread waits for room in a socket's buffer.
const PATIENCE: Duration = Duration::from_millis(10);
/// The port of the discard protocol. No packet is sent from it.
const DISCARD_PORT: u16 = 9;
/// The least size of a receiver's slots for datagrams, in bytes. With this size, a receiver can also receive from a sender whose payload is
/// larger than its own.
pub(super) const RECEIVE_SLOT_BYTES: usize = 9_216;
/// The limit for the number of sockets for which one thread waits: the sockets of lines, requests and leases.
pub const MAX_SOCKETS: usize = super::proto::MAX_LINES + 3;

/// The error of a socket that the bridge needs and could not open.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The system refused a call.
    #[error("{what} {address}: {source}{}", hint(source, address))]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The address of the operation.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The host does not report its interfaces.
    #[error(
        "line {group}: cannot list the interfaces of this host to find {name:?}: {source}: \
         a filter of system calls may forbid it (SIOCGIFCONF on an IPv4 socket), or a unit may hide /proc/net"
    )]
    Interfaces {
        /// The line's group.
        group: SocketAddr,
        /// The interface that was asked for.
        name: String,
        /// The system's error.
        source: io::Error,
    },
    /// There is no interface with this name or address, or the interface has no address of the group's family.
    #[error("line {group}: interface {name:?} {why}: give one of {}", found.join(", "))]
    Interface {
        /// The line's group.
        group: SocketAddr,
        /// The interface that was asked for.
        name: String,
        /// The problem of the interface.
        why: &'static str,
        /// The interfaces that could be used.
        found: Vec<String>,
    },
}

fn hint(source: &io::Error, address: &SocketAddr) -> String {
    match source.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EADDRINUSE) => ": another program has this port, give another or stop it".to_owned(),
        Some(Errno::EADDRNOTAVAIL) => ": no interface of this host has this address".to_owned(),
        Some(Errno::ENODEV) if address.ip().is_multicast() => {
            ": no interface is routed to this group, name one".to_owned()
        }
        _ => String::new(),
    }
}

fn os(what: &'static str, address: SocketAddr) -> impl FnOnce(io::Error) -> SocketError {
    move |source| SocketError::Os { what, address, source }
}

/// The options that the system refused, each as a text.
#[derive(Debug, Default)]
pub struct RefusedSettings(pub Vec<String>);

impl RefusedSettings {
    fn note(&mut self, of: impl fmt::Display, result: io::Result<()>) {
        if let Err(e) = result {
            self.0.push(format!("{of}: {e}"));
        }
    }
}

/// The tuning of a receiving socket.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// The size of the receive buffer to ask for, in bytes.
    pub buffer_bytes: usize,
    /// The time for which the kernel polls the network card, in microseconds; 0 means not at all.
    pub busy_poll_us: u32,
}

/// Sets the marks of all packets that are sent from a socket.
pub(crate) fn mark(
    socket: &UdpSocket,
    marks: Marks,
    name: impl fmt::Display,
    refusals: &mut RefusedSettings,
) {
    let socket = SockRef::from(socket);
    if let Some(dscp) = marks.dscp {
        let class = u32::from(dscp) << 2;
        let set = match socket.domain() {
            Ok(Domain::IPV6) => set_ipv6_tclass(&*socket, class).map_err(io::Error::from),
            _ => socket.set_tos_v4(class),
        };
        refusals.note(format!("{name}: dscp = {dscp}"), set);
    }
    // The kernel derives a priority from the code point, so the priority is set after the code point.
    if let Some(priority) = marks.priority {
        refusals.note(format!("{name}: priority = {priority}"), socket.set_priority(u32::from(priority)));
    }
}

/// Opens a socket that receives one line, and binds it to the line's own address. If this address is a multicast group, the socket joins
/// the group. The socket does not receive the packets of groups that only other programs have joined.
///
/// # Errors
/// [`SocketError`]
pub fn open_line(
    line: &LineSpec,
    tuning: Tuning,
    refusals: &mut RefusedSettings,
) -> Result<UdpSocket, SocketError> {
    let group = line.group;
    let socket = new_socket(group)?;
    if !group.ip().is_multicast() {
        bind(&socket, group)?;
    } else {
        // Several bridges of this host can listen to one group.
        socket.set_reuse_address(true).map_err(os("share", group))?;
        let only_joined = match group {
            SocketAddr::V4(_) => socket.set_multicast_all_v4(false),
            SocketAddr::V6(_) => socket.set_multicast_all_v6(false),
        };
        only_joined.map_err(os("leave other programs' groups out of", group))?;
        let interface = interface_of(line, &socket)?;
        bind(&socket, interface.in_scope(group))?;
        join(&socket, line, interface).map_err(os("join", group))?;
    }
    tune(&socket, &format!("line {group}"), tuning, refusals);
    Ok(socket.into())
}

/// Opens a socket as [`open_line`] does, and checks whether the kernel can merge packets of equal length.
///
/// # Errors
/// [`SocketError`]
pub(crate) fn open_merging_line(
    line: &LineSpec,
    tuning: Tuning,
    refusals: &mut RefusedSettings,
) -> Result<UdpSocket, SocketError> {
    let socket = open_line(line, tuning, refusals)?;
    try_merge(&socket, format_args!("line {}", line.group), refusals);
    Ok(socket)
}

/// Checks whether the kernel can merge packets of equal length, by switching merging on and off. The first switch takes the kernel longer
/// than all later ones, so this check is made at the start.
pub(crate) fn try_merge(socket: &UdpSocket, name: impl fmt::Display, refusals: &mut RefusedSettings) {
    let tried = datagrams::merge(socket, true).and_then(|()| datagrams::merge(socket, false));
    refusals.note(format_args!("{name}: packets put together (UDP_GRO)"), tried);
}

fn join(socket: &Socket, line: &LineSpec, interface: Interface) -> io::Result<()> {
    match (line.group.ip(), line.source) {
        (IpAddr::V4(group), Some(IpAddr::V4(source))) => socket.join_ssm_v4(&source, &group, &interface.v4),
        (IpAddr::V4(group), _) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Address(interface.v4))
        }
        (IpAddr::V6(group), Some(source)) => {
            datagrams::join_source(socket, interface.index, group.into(), source)
        }
        (IpAddr::V6(group), None) => socket.join_multicast_v6(&group, interface.index),
    }
}

/// Leaves a line's multicast group and joins it again. So the network learns again that this host wants the group's packets.
pub(super) fn rejoin(line: &LineSpec, socket: &UdpSocket) -> io::Result<()> {
    let socket = SockRef::from(socket);
    let interface = interface_of(line, &socket).map_err(io::Error::other)?;
    // The group is left, no matter for which sources it was joined. It is no error if the group is no longer joined.
    let _ = match line.group.ip() {
        IpAddr::V4(group) => {
            socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Address(interface.v4))
        }
        IpAddr::V6(group) => socket.leave_multicast_v6(&group, interface.index),
    };
    join(&socket, line, interface)
}

/// Opens a socket that sends on one line.
///
/// # Errors
/// [`SocketError`]
pub fn open_sender(line: &LineSpec, ttl: u8, loopback: bool) -> Result<UdpSocket, SocketError> {
    let socket = new_socket(line.group)?;
    if line.group.ip().is_multicast() {
        aim(&socket, line, ttl, loopback)?;
    }
    // On a blocking socket, a full send buffer makes the bridge wait. Messages that are published meanwhile wait in the ring. The wait is
    // limited, because the bridge's other lines wait, too.
    socket.set_nonblocking(false).map_err(os("set the mode of", line.group))?;
    set_patience(&socket).map_err(os("limit the waits of", line.group))?;
    Ok(socket.into())
}

/// Sets how a socket sends to the groups of a line: over which interface, over how many routers, and whether this host also receives the
/// datagrams.
///
/// # Errors
/// [`SocketError`]
pub(crate) fn aim(socket: &impl AsFd, line: &LineSpec, ttl: u8, loopback: bool) -> Result<(), SocketError> {
    let socket = SockRef::from(socket);
    let (hops, of) = (u32::from(ttl), line.group);
    let interface = interface_of(line, &socket)?;
    let (hops, loops, from) = match of {
        SocketAddr::V4(_) => (
            socket.set_multicast_ttl_v4(hops),
            socket.set_multicast_loop_v4(loopback),
            socket.set_multicast_if_v4(&interface.v4),
        ),
        SocketAddr::V6(_) => (
            socket.set_multicast_hops_v6(hops),
            socket.set_multicast_loop_v6(loopback),
            socket.set_multicast_if_v6(interface.index),
        ),
    };
    hops.map_err(os("set the TTL of", of))?;
    loops.map_err(os("set the loopback of", of))?;
    from.map_err(os("choose the interface of", of))?;
    Ok(())
}

/// Returns the address that stands for any IP address of this host and any port, in the family of `peer`.
pub fn anywhere(peer: &SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

/// Sets the longest time for which a sending thread waits for room in the socket's buffer.
pub(super) fn set_patience(socket: &impl AsFd) -> io::Result<()> {
    let patience = if fault!("a_paused_line_stops_all") { Duration::ZERO } else { PATIENCE };
    let patience = TimeVal::microseconds(patience.as_micros() as i64);
    setsockopt(socket, sockopt::SendTimeout, &patience).map_err(io::Error::from)
}

/// Opens a second socket at the address of a server's socket, only for sending. With two sockets, the datagrams of one socket never wait
/// for room in the buffer of the other socket. If the server is bound to the wildcard address (`0.0.0.0` or `::`), there is only one
/// socket.
///
/// # Errors
/// [`SocketError`]
pub(crate) fn open_beside(server: &UdpSocket) -> Result<UdpSocket, SocketError> {
    let unknown = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let address = server.local_addr().map_err(os("use the socket of", unknown))?;
    let server = server.try_clone().map_err(os("use the socket of", address))?;
    if address.ip().is_unspecified() {
        return Ok(server);
    }
    let (server, socket) = (Socket::from(server), new_socket(address)?);
    // The address is shared only for this moment. Otherwise another program could bind the port, and get the requests.
    let share =
        |are_shared| server.set_reuse_address(are_shared).and_then(|()| socket.set_reuse_address(are_shared));
    share(true).map_err(os("share", address))?;
    let bound = bind(&socket, address);
    share(false).map_err(os("share", address))?;
    bound?;
    // A connected socket receives only from its peer, and no host sends from the discard port.
    let mut nobody = address;
    nobody.set_port(DISCARD_PORT);
    socket.connect(&nobody.into()).map_err(os("keep requests from", address))?;
    set_patience(&socket).map_err(os("limit the waits of", address))?;
    Ok(socket.into())
}

/// Opens a socket at `address` for requests and leases. For a server, `address` is its own address. For a receiver, the port is 0.
///
/// # Errors
/// [`SocketError`]
pub fn open_unicast(
    address: SocketAddr,
    tuning: Tuning,
    refusals: &mut RefusedSettings,
) -> Result<UdpSocket, SocketError> {
    let socket = new_socket(address)?;
    bind(&socket, address)?;
    tune(&socket, &format!("socket {address}"), tuning, refusals);
    Ok(socket.into())
}

fn new_socket(address: SocketAddr) -> Result<Socket, SocketError> {
    let made = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP));
    let socket = made.map_err(os("make a socket for", address))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(os("keep IPv4 from", address))?;
    }
    Ok(socket)
}

fn bind(socket: &Socket, address: SocketAddr) -> Result<(), SocketError> {
    socket.bind(&address.into()).map_err(os("bind to", address))
}

fn tune(socket: &Socket, name: &str, tuning: Tuning, refusals: &mut RefusedSettings) {
    let asked = tuning.buffer_bytes;
    // The forced size needs CAP_NET_ADMIN; without it the host's limit applies.
    if setsockopt(socket, sockopt::RcvBufForce, &asked).is_err() {
        refusals.note(format!("{name}: receive buffer"), socket.set_recv_buffer_size(asked));
    }
    match socket.recv_buffer_size() {
        // The kernel doubles the requested size, to make room for its own overhead.
        Ok(got) if got / 2 < asked => refusals.0.push(format!(
            "{name}: receive buffer of {} B instead of {asked} B: raise net.core.rmem_max, or give CAP_NET_ADMIN",
            got / 2
        )),
        _ => {}
    }
    refusals.note(format!("{name}: drop counts"), datagrams::drops(socket).map(drop));
    refusals.note(
        format!("{name}: receive time stamps"),
        setsockopt(socket, sockopt::ReceiveTimestampns, &true).map_err(io::Error::from),
    );
    if tuning.busy_poll_us > 0 {
        refusals.note(
            format!("{name}: busy polling for {} us (CAP_NET_ADMIN)", tuning.busy_poll_us),
            socket.set_busy_poll(tuning.busy_poll_us),
        );
        refusals.note(
            format!("{name}: preferring busy polling (CAP_NET_ADMIN)"),
            datagrams::prefer_busy_poll(socket, BUSY_POLL_BUDGET),
        );
    }
}

/// Waits until one of the sockets has a datagram, or until `limit` has passed. The call can return early.
pub fn wait_for_any<'fd>(sockets: impl Iterator<Item = BorrowedFd<'fd>>, limit: Duration) {
    let mut polls = [const { None }; MAX_SOCKETS];
    let mut used = 0;
    for (place, socket) in polls.iter_mut().zip(sockets) {
        *place = Some(PollFd::new(socket, PollFlags::POLLIN));
        used += 1;
    }
    // The array needs a socket in every place, but only the first `used` places are used.
    let Some(first) = polls[0].clone() else { return std::thread::sleep(limit) };
    let mut polls = polls.map(|poll| poll.unwrap_or_else(|| first.clone()));
    // An error, such as a signal, makes the call return early, which is harmless.
    let _ = ppoll(&mut polls[..used], Some(TimeSpec::from_duration(limit)), None);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(group: &str, interface: Option<&str>) -> LineSpec {
        let interface = interface.map(str::to_owned);
        LineSpec { interface, ..LineSpec::to(group.parse().unwrap()) }
    }

    #[test]
    fn an_interface_that_is_not_there_is_named_beside_those_that_are() {
        let error = open_sender(&line("239.255.7.1:40001", Some("nosuch0")), 1, true).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("\"nosuch0\" does not exist") && text.contains("lo (127.0.0.1)"), "{text}");
    }

    #[test]
    fn a_port_that_is_taken_says_so() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        let tuning = Tuning { buffer_bytes: 1 << 16, busy_poll_us: 0 };
        let error = open_unicast(address, tuning, &mut RefusedSettings::default()).unwrap_err();
        assert!(error.to_string().contains("another program has this port"), "{error}");
    }

    #[test]
    fn what_is_sent_beside_a_server_comes_from_its_address_and_requests_go_to_the_server() {
        let tuning = Tuning { buffer_bytes: 1 << 16, busy_poll_us: 0 };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let server = open_unicast(any, tuning, &mut RefusedSettings::default()).unwrap();
        let beside = open_beside(&server).unwrap();
        let address = server.local_addr().unwrap();
        assert_eq!(beside.local_addr().unwrap(), address);
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = client.local_addr().unwrap();
        assert_eq!(datagrams::send(&beside, to, [&b"live"[..]]).sent, 1);
        let mut bytes = [0; 16];
        assert_eq!(client.recv_from(&mut bytes).unwrap(), (4, address));
        for _ in 0..100 {
            client.send_to(b"request", address).unwrap();
            server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert_eq!(server.recv_from(&mut bytes).unwrap().0, 7);
        }
        assert!(UdpSocket::bind(address).is_err(), "nobody else has the port");
        let shared = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        shared.set_reuse_address(true).unwrap();
        assert!(shared.bind(&address.into()).is_err());
    }

    #[test]
    fn a_group_is_heard_on_its_own_port_and_no_other() {
        let mut refusals = RefusedSettings::default();
        let tuning = Tuning { buffer_bytes: 1 << 16, busy_poll_us: 0 };
        let mine = line("239.255.7.2:40002", Some("lo"));
        let socket = open_line(&mine, tuning, &mut refusals).unwrap();
        let other = line("239.255.7.3:40002", Some("lo"));
        let _other = open_line(&other, tuning, &mut refusals).unwrap();
        for (to, byte) in [(&other, 1u8), (&mine, 2)] {
            let sender = open_sender(to, 0, true).unwrap();
            assert_eq!(datagrams::send(&sender, to.group, [&[byte][..]]).sent, 1);
        }
        wait_for_any([std::os::fd::AsFd::as_fd(&socket)].into_iter(), Duration::from_secs(5));
        let mut inbox = datagrams::Inbox::new(16);
        assert_eq!(inbox.receive(&socket).unwrap(), 1);
        assert_eq!(inbox.datagrams().next().unwrap().bytes, [2]);
    }
}
