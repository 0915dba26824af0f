//! The kernel's UDP on the loopback interface, by multicast or to one receiver. shmcast's shared memory replaces this transport. The
//! transport has these settings:
//! - The socket is bound to the group, so that it receives no other traffic of this port.
//! - Receive buffers are as large as the kernel allows (`SO_RCVBUFFORCE` where permitted).
//! - The TTL is 1, and loop is on.
//! - The tokio receiver is like common programs: one `current_thread` runtime, and `recv_from` in a loop.

use super::sockets::{self, SocketReceiver, UdpSender};
use crate::rig::names::UDP;
use crate::rig::receive::{LOOK, Receiver, Sink};
use crate::rig::spec::{Spec, Wait};
use anyhow::{Context, Result, bail};
use socket2::Socket;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::atomic::Ordering;

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 0, 1);
const LOOPBACK: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// Returns a port that is computed from the round's directory. So two rounds at the same time probably use different ports, and do not
/// receive each other's messages.
fn port(spec: &Spec) -> u16 {
    let name = spec.dir.as_os_str().as_encoded_bytes();
    let hash = name.iter().fold(5381u32, |hash, &byte| hash.wrapping_mul(33) ^ u32::from(byte));
    20_000 + (hash % 10_000) as u16
}

/// Returns the address of the group, or of the one receiver.
fn destination(spec: &Spec) -> SocketAddrV4 {
    let address = if spec.contestant.transport_name() == UDP { LOOPBACK } else { GROUP };
    SocketAddrV4::new(address, port(spec))
}

/// Makes the sender.
///
/// # Errors
/// The system's error. In a container without multicast on `lo`, this call fails.
pub fn sender(spec: &Spec) -> Result<UdpSender> {
    let socket = sockets::udp()?;
    socket.set_multicast_if_v4(&LOOPBACK).context("send multicast through lo")?;
    socket.set_multicast_loop_v4(true)?;
    socket.set_multicast_ttl_v4(1)?;
    socket.connect(&destination(spec).into()).context("no multicast route on lo")?;
    Ok(UdpSender(socket.into()))
}

fn join(spec: &Spec) -> Result<Socket> {
    let (socket, destination) = (sockets::udp()?, destination(spec));
    if destination.ip().is_multicast() {
        socket.set_reuse_address(true)?;
        socket.set_reuse_port(true)?;
        socket.bind(&destination.into()).context("bind the group")?;
        socket.join_multicast_v4(&GROUP, &LOOPBACK).context("join the group on lo")?;
    } else {
        socket.bind(&destination.into()).context("bind the port")?;
    }
    sockets::widen(&socket)?;
    Ok(socket)
}

/// Makes a receiver that blocks or polls.
///
/// # Errors
/// The system's error.
pub fn receiver(spec: &Spec) -> Result<SocketReceiver> {
    if spec.contestant.wait == Wait::Tokio {
        bail!("tokio has a receiver of its own");
    }
    SocketReceiver::new(spec, join(spec)?)
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
        Ok(Self { socket: socket.into(), buffer: vec![0; spec.size.max(2048)] })
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
