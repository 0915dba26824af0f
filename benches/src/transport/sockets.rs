//! The shared parts of the socket transports: a UDP sender, and a receiver for UDP and unix sockets.

use crate::rig::publish::Sender;
use crate::rig::receive::{LOOK, Receiver, Sink};
use crate::rig::spec::{Spec, Wait};
use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read};
use std::net::UdpSocket;

/// The receive buffer of a UDP socket, in bytes.
const BUFFER_BYTES: usize = 8 << 20;
/// The smallest buffer for a datagram in bytes. The buffer is larger than most messages, so that a datagram of a wrong length is noticed.
const LEAST_BYTES: usize = 2048;

/// Makes a UDP socket.
pub(super) fn udp() -> Result<Socket> {
    Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).context("make a UDP socket")
}

/// Gives `socket` a receive buffer of 8 MiB, or as much as the system's limit allows.
pub(super) fn widen(socket: &Socket) -> Result<()> {
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    // A privileged process can exceed the system's limit. For other processes, the limit stays.
    let _ = setsockopt(socket, sockopt::RcvBufForce, &BUFFER_BYTES);
    Ok(())
}

/// Whether an error means that there was nothing to receive.
fn is_nothing(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Sends one datagram for each message through a connected socket.
#[derive(Debug)]
pub struct UdpSender(pub(super) UdpSocket);

impl Sender for UdpSender {
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

/// Receives one message with each read. Blocks or polls, as the round requires.
#[derive(Debug)]
pub struct SocketReceiver {
    socket: Socket,
    buffer: Vec<u8>,
}

impl SocketReceiver {
    /// Makes a receiver of a socket that is bound or connected.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn new(spec: &Spec, socket: Socket) -> Result<Self> {
        match spec.contestant.wait {
            Wait::Block => socket.set_read_timeout(Some(LOOK))?,
            _ => socket.set_nonblocking(true)?,
        }
        Ok(Self { socket, buffer: vec![0; spec.size.max(LEAST_BYTES)] })
    }
}

impl Receiver for SocketReceiver {
    #[inline]
    fn poll(&mut self, sink: &mut Sink) -> Result<bool> {
        match self.socket.read(&mut self.buffer) {
            Ok(length) => sink.message(&self.buffer[..length]),
            Err(e) if is_nothing(&e) => return Ok(false),
            Err(e) => return Err(e).context("receive"),
        }
        Ok(true)
    }
}
