//! Kernel UDP on the loopback interface, multicast or to one receiver: what shared memory replaces.
//!
//! Best settings: the group bound directly, so that no other port's traffic is looked at; receive buffers as large as
//! the kernel allows (FORCE where permitted); TTL 1; loop on. The tokio receiver is the common program: one
//! `current_thread` runtime, `recv_from` in a loop.

use crate::rig::publish::Sender;
use crate::rig::receive::{Receiver, Sink};
use crate::rig::spec::{Spec, Wait};
use crate::transport::UDP;
use anyhow::{Context, Result, bail};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::Ordering;
use std::time::Duration;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 0, 1);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;
const BUFFER_BYTES: usize = 8 << 20;
/// How long a blocking receive lasts before the rig's stop flag is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Rounds that overlap by mistake must not hear each other: the port follows from the round's directory.
fn port(spec: &Spec) -> u16 {
    let name = spec.dir.as_os_str().as_encoded_bytes();
    let hash = name.iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33) ^ u32::from(byte));
    20_000 + (hash % 10_000) as u16
}

/// The group, or the one receiver.
fn destination(spec: &Spec) -> SocketAddrV4 {
    let address = if spec.contestant.transport_name() == UDP { LOOPBACK } else { GROUP };
    SocketAddrV4::new(address, port(spec))
}

/// The sender.
#[derive(Debug)]
pub struct MulticastSender(UdpSocket);

impl MulticastSender {
    /// Opens the socket.
    ///
    /// # Errors
    /// What the system says; containers without multicast on `lo` refuse here.
    pub fn open(spec: &Spec) -> Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_multicast_if_v4(&LOOPBACK).context("send multicast through lo")?;
        socket.set_multicast_loop_v4(true)?;
        socket.set_multicast_ttl_v4(1)?;
        socket.connect(&destination(spec).into()).context("no multicast route on lo")?;
        Ok(Self(socket.into()))
    }
}

impl Sender for MulticastSender {
    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        let mut again = 0;
        loop {
            match self.0.send(payload) {
                Ok(_) => return Ok(again),
                Err(e) if e.raw_os_error() == Some(nix::libc::ENOBUFS) => again += 1,
                Err(e) => return Err(e).context("send"),
            }
        }
    }
}

fn join(spec: &Spec) -> Result<UdpSocket> {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
    let destination = destination(spec);
    if destination.ip().is_multicast() {
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&destination.into()).context("bind the group")?;
        socket.join_multicast_v4(&GROUP, &LOOPBACK).context("join the group on lo")?;
    } else {
        socket.bind(&destination.into()).context("bind the port")?;
    }
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    // Beyond the system's limit if we may; if not, the limit it is.
    let _ = nix::sys::socket::setsockopt(&socket, nix::sys::socket::sockopt::RcvBufForce, &BUFFER_BYTES);
    Ok(socket.into())
}

/// A receiver that blocks, or polls.
#[derive(Debug)]
pub struct MulticastReceiver {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl MulticastReceiver {
    /// Joins the group.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let socket = join(spec)?;
        match spec.contestant.wait {
            Wait::Block => socket.set_read_timeout(Some(LOOK))?,
            Wait::Tokio => bail!("tokio has a receiver of its own"),
            _ => socket.set_nonblocking(true)?,
        }
        Ok(Self { socket, buffer: vec![0; spec.size.max(2048)] })
    }
}

/// Whether a receive found nothing, as against failed.
pub(super) fn is_nothing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

impl Receiver for MulticastReceiver {
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

/// A receiver inside a tokio runtime of one thread.
#[derive(Debug)]
pub struct TokioReceiver {
    socket: UdpSocket,
    buffer: Vec<u8>,
}

impl TokioReceiver {
    /// Joins the group.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let socket = join(spec)?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, buffer: vec![0; spec.size.max(2048)] })
    }
}

impl Receiver for TokioReceiver {
    fn poll(&mut self, _: &mut Sink) -> Result<bool> {
        bail!("a runtime is run, not polled")
    }

    fn run(&mut self, sink: &mut Sink, _: Wait) -> Result<()> {
        let stop = sink.stop_flag();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let socket = tokio::net::UdpSocket::from_std(self.socket.try_clone()?)?;
            let receive = async {
                while !sink.is_done() {
                    let (length, _) = socket.recv_from(&mut self.buffer).await.context("receive")?;
                    sink.message(&self.buffer[..length]);
                }
                Ok(())
            };
            let stopped = async {
                while !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::select! { done = receive => done, () = stopped => Ok(()) }
        })
    }
}
