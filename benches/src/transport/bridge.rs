//! Channels and bare UDP between two hosts: what `shmcast bridge` adds to a `sendto` and a `recv` over the same wire.
//!
//! Publisher and reader use the public API as on one host; the bridge's processes are [the rig's](crate::rig::carrier) to
//! start. Bare UDP has its best settings: a connected socket, a receive buffer as large as the kernel gives.

use crate::rig::hosts::{FAR, NEAR};
use crate::rig::publish::Sender;
use crate::rig::receive::{Receiver, Sink};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::transport::multicast::is_nothing;
use crate::transport::shm::CHANNEL;
use anyhow::{Context, Result};
use shmcast::{Event, Preparation, Publisher, Subscriber};
use shmcast_layout::counter::ticks;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A channel of the sending host, read on the other.
pub const BRIDGE: &str = "bridge";
/// The same, with one thread at each end: the publisher's sends, the reader's receives.
pub const BRIDGE_INVOKED: &str = "bridge-invoked";
/// The same to the other host's own address, not to a group.
pub const BRIDGE_INVOKED_UNICAST: &str = "bridge-invoked-unicast";
/// The same as `bridge` up to the ring of the other host, without the reader's part.
pub const BRIDGE_TO_RING: &str = "bridge-to-ring";
/// The same, and the bridge's receiving thread is bound to no CPU.
pub const BRIDGE_UNBOUND: &str = "bridge-unbound";
/// Up to the ring, and the kernel polls the interface.
pub const BRIDGE_BUSY_POLL: &str = "bridge-busy-poll";
/// A datagram a message.
pub const WIRE_UDP: &str = "wire-udp";
/// A datagram a message to a multicast group.
pub const WIRE_MULTICAST: &str = "wire-multicast";
/// All of them.
pub const ALL: [&str; 8] = [
    BRIDGE,
    BRIDGE_INVOKED,
    BRIDGE_INVOKED_UNICAST,
    BRIDGE_TO_RING,
    BRIDGE_UNBOUND,
    BRIDGE_BUSY_POLL,
    WIRE_UDP,
    WIRE_MULTICAST,
];

/// Largest message that fits a packet of the bridge's usual size.
pub const PAYLOAD_MAX: u64 = 1_378;
const WIRE_GROUP: Ipv4Addr = Ipv4Addr::new(239, 79, 0, 2);
const PORT: u16 = 30_001;
const BUFFER_BYTES: usize = 8 << 20;
/// How long a wait lasts before the rig's stop flag is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long a reader sleeps that only looks at when messages reached the ring.
const NAP: Duration = Duration::from_millis(2);

/// How the bridge of a contestant runs.
#[derive(Debug, Clone, Copy)]
pub struct Mode {
    /// Whether its receiving thread is bound to a CPU.
    pub pinned: bool,
    /// Whether the kernel polls the interface for it.
    pub busy_poll: bool,
    /// Whether latency ends in the ring, by the time that the bridge wrote there, and not at the reader.
    pub to_ring: bool,
}

impl Mode {
    /// `None` for contestants without a bridge of their own.
    pub fn of(contestant: &Contestant) -> Option<Self> {
        let mode = |pinned, busy_poll, to_ring| Some(Self { pinned, busy_poll, to_ring });
        match contestant.transport_name() {
            BRIDGE => mode(true, false, false),
            BRIDGE_TO_RING => mode(true, false, true),
            BRIDGE_UNBOUND => mode(false, false, true),
            BRIDGE_BUSY_POLL => mode(true, true, true),
            _ => None,
        }
    }
}

/// The sending host's channels.
pub fn near_dir(spec: &Spec) -> PathBuf {
    spec.dir.join("near")
}

/// The receiving host's channels.
pub fn far_dir(spec: &Spec) -> PathBuf {
    spec.dir.join("far")
}

/// The publisher on the sending host.
#[derive(Debug)]
pub struct BridgeSender {
    publisher: Publisher,
    /// Whether it gives its CPU to the bridge after each message, with which it shares it.
    yields: bool,
}

impl BridgeSender {
    /// Makes the round's channel.
    ///
    /// # Errors
    /// What the channel says.
    pub fn open(spec: &Spec) -> Result<Self> {
        let builder = Publisher::builder(CHANNEL).dir(near_dir(spec)).prepare(Preparation::FULL);
        let builder = builder.capacity(spec.ring_bytes).max_message(PAYLOAD_MAX);
        let publisher = builder.open().context("open the channel")?;
        Ok(Self { publisher, yields: spec.interval_ns > 0 && Mode::of(&spec.contestant).is_some() })
    }
}

impl Sender for BridgeSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.publisher.publish(payload)?;
        if self.yields {
            std::thread::yield_now();
        }
        Ok(0)
    }

    fn notes(&self) -> Vec<String> {
        self.publisher.preparation().iter().map(ToString::to_string).collect()
    }
}

/// The reader on the receiving host.
#[derive(Debug)]
pub struct BridgeReceiver {
    subscriber: Subscriber,
    to_ring: bool,
}

impl BridgeReceiver {
    /// Subscribes to what the bridge brings.
    ///
    /// # Errors
    /// What the channel says.
    pub fn open(spec: &Spec) -> Result<Self> {
        let to_ring = Mode::of(&spec.contestant).is_some_and(|mode| mode.to_ring);
        let wait = match spec.contestant.wait {
            _ if to_ring => shmcast::Wait::Sleep(NAP),
            Wait::Spin => shmcast::Wait::Spin,
            Wait::Burst => shmcast::Wait::Burst,
            _ => shmcast::Wait::Yield,
        };
        let builder =
            Subscriber::builder(CHANNEL).dir(far_dir(spec)).start(shmcast::Start::Oldest).wait(wait);
        Ok(Self { subscriber: builder.open().context("subscribe")?, to_ring })
    }
}

impl Receiver for BridgeReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        let event = self.subscriber.try_recv()?;
        Ok(event.map(|event| hand(event, self.to_ring, sink)).is_some())
    }

    fn run(&mut self, sink: &mut Sink, _: Wait) -> Result<()> {
        let mut deadline = Instant::now();
        while !sink.is_done() {
            match self.subscriber.recv_deadline(deadline)? {
                Some(event) => hand(event, self.to_ring, sink),
                None if sink.is_stopped() => break,
                None => deadline = Instant::now() + LOOK,
            }
        }
        Ok(())
    }
}

#[inline]
fn hand(event: Event<'_>, to_ring: bool, sink: &mut Sink) {
    match event {
        Event::Message(message) if to_ring => {
            // The record has the low 48 bits of the clock, which turn over in a day or more.
            let now = ticks();
            let ago = now.wrapping_sub(message.time) & ((1 << 48) - 1);
            sink.message_at(message.payload, now - ago);
        }
        Event::Message(message) => sink.message(message.payload),
        Event::Lapped(lapped) => sink.lost(lapped.missed),
        Event::Gap { from, to } => sink.lost(to - from + 1),
        Event::NewEpoch { .. } | Event::NewSession { .. } | Event::Restarted | Event::End => {}
        other => panic!("a round does not know what {other:?} means for its figures"),
    }
}

/// Where bare datagrams go.
fn wire_address(spec: &Spec) -> SocketAddrV4 {
    match spec.contestant.transport_name() {
        WIRE_MULTICAST => SocketAddrV4::new(WIRE_GROUP, PORT),
        _ => SocketAddrV4::new(FAR.0, PORT),
    }
}

/// Sends a datagram a message.
#[derive(Debug)]
pub struct WireSender(UdpSocket);

impl WireSender {
    /// Opens the socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        let to = wire_address(spec);
        if to.ip().is_multicast() {
            socket.set_multicast_if_v4(&NEAR.0).context("choose the interface")?;
            socket.set_multicast_loop_v4(false).context("spare this host")?;
        }
        socket.connect(&to.into()).context("connect to the other host")?;
        Ok(Self(socket.into()))
    }
}

impl Sender for WireSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        self.0.send(payload).context("send")?;
        Ok(0)
    }
}

/// Receives them.
#[derive(Debug)]
pub struct WireReceiver {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl WireReceiver {
    /// Opens the socket.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        let at = wire_address(spec);
        socket.bind(&at.into()).context("bind the port")?;
        if at.ip().is_multicast() {
            socket.join_multicast_v4(at.ip(), &FAR.0).context("join the group")?;
        }
        socket.set_recv_buffer_size(BUFFER_BYTES)?;
        // Beyond the system's limit if we may; if not, the limit it is.
        let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &BUFFER_BYTES);
        match spec.contestant.wait {
            Wait::Block => socket.set_read_timeout(Some(LOOK))?,
            _ => socket.set_nonblocking(true)?,
        }
        Ok(Self { socket: socket.into(), buffer: vec![0; spec.size.max(2048)] })
    }
}

impl Receiver for WireReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        match self.socket.recv(&mut self.buffer) {
            Ok(length) => sink.message(&self.buffer[..length]),
            Err(e) if is_nothing(&e) => return Ok(false),
            Err(e) => return Err(e).context("receive"),
        }
        Ok(true)
    }
}
