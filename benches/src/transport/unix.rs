//! Unix sockets: one send for each receiver, as in programs without multicast.
//!
//! Send buffers are as large as the kernel allows. If the buffer of a receiver is full, the publisher waits. So no message is lost.

use super::sockets::SocketReceiver;
use crate::rig::publish::Sender;
use crate::rig::spec::Spec;
use anyhow::{Context, Result};
use socket2::{Domain, SockAddr, Socket, Type};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const BUFFER_BYTES: usize = 4 << 20;

fn datagram_path(spec: &Spec, me: usize) -> PathBuf {
    spec.dir.join(format!("socket-{me}"))
}

fn seqpacket_path(spec: &Spec) -> PathBuf {
    spec.dir.join("socket")
}

fn send_to_all(sockets: &[Socket], payload: &[u8]) -> Result<u64> {
    let mut again = 0;
    for socket in sockets {
        while let Err(e) = socket.send(payload) {
            match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => again += 1,
                _ if e.raw_os_error() == Some(nix::libc::ENOBUFS) => again += 1,
                _ => return Err(e).context("send"),
            }
        }
    }
    Ok(again)
}

/// Sends datagrams to all receivers.
#[derive(Debug)]
pub struct DatagramSender {
    spec: Spec,
    sockets: Vec<Socket>,
}

impl DatagramSender {
    /// Makes a sender without any sockets. [`begin`](Sender::begin) makes the sockets, after all receivers have bound their sockets.
    ///
    /// # Errors
    /// None.
    pub fn open(spec: &Spec) -> Result<Self> {
        Ok(Self { spec: spec.clone(), sockets: Vec::new() })
    }
}

impl Sender for DatagramSender {
    fn begin(&mut self) -> Result<()> {
        for i in 0..self.spec.receivers {
            let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
            socket.set_send_buffer_size(BUFFER_BYTES)?;
            socket.connect(&SockAddr::unix(datagram_path(&self.spec, i))?).context("connect")?;
            self.sockets.push(socket);
        }
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        send_to_all(&self.sockets, payload)
    }
}

/// Sends over a separate connection to each receiver.
#[derive(Debug)]
pub struct SeqpacketSender {
    receivers: usize,
    listener: Socket,
    sockets: Vec<Socket>,
}

impl SeqpacketSender {
    /// Listens for the receivers.
    ///
    /// # Errors
    /// The system's error.
    pub fn open(spec: &Spec) -> Result<Self> {
        let listener = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
        listener.bind(&SockAddr::unix(seqpacket_path(spec))?).context("bind")?;
        listener.listen(spec.receivers as i32)?;
        Ok(Self { receivers: spec.receivers, listener, sockets: Vec::new() })
    }
}

impl Sender for SeqpacketSender {
    fn begin(&mut self) -> Result<()> {
        self.listener.set_nonblocking(true)?;
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.sockets.len() < self.receivers {
            match self.listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(false)?;
                    socket.set_send_buffer_size(BUFFER_BYTES)?;
                    self.sockets.push(socket);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => return Err(e).context("wait for the receivers"),
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn send(&mut self, payload: &[u8], _: u64) -> Result<u64> {
        send_to_all(&self.sockets, payload)
    }
}

/// Makes a datagram receiver.
///
/// # Errors
/// The system's error.
pub fn datagram(spec: &Spec, me: usize) -> Result<SocketReceiver> {
    let socket = Socket::new(Domain::UNIX, Type::DGRAM, None)?;
    socket.bind(&SockAddr::unix(datagram_path(spec, me))?).context("bind")?;
    SocketReceiver::new(spec, socket)
}

/// Makes a seqpacket receiver.
///
/// # Errors
/// The system's error.
pub fn seqpacket(spec: &Spec) -> Result<SocketReceiver> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.connect(&SockAddr::unix(seqpacket_path(spec))?).context("connect")?;
    SocketReceiver::new(spec, socket)
}
