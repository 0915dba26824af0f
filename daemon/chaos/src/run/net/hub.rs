//! A switch between the hosts of a story, in user space. The switch passes each frame to all other ports. It drops, duplicates, delays or
//! forges some of the datagrams.

use super::frames::Place;
use crate::log::now;
use anyhow::{Context, Result};
use fastrand::Rng;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::sockopt::RcvBufForce;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, bind, setsockopt, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time for which the thread waits for a frame before it checks its ports again.
const LOOK: Duration = Duration::from_millis(10);
/// The longest delay of a datagram, in nanoseconds. Usually the datagram is passed on earlier, just after the next one.
const LATE_NS: u64 = 8_000_000;
/// The number of datagrams that are kept for a forger.
const HEARD: usize = 400;
/// The number of bytes of frames that can wait at a port.
const WAITING: usize = 64 << 20;

#[derive(Debug, Default)]
struct Port {
    /// The port's socket; `None` while the host has no interface.
    socket: Option<Arc<OwnedFd>>,
    /// The time until which no frame passes this port.
    cut_until: u64,
}

#[derive(Debug, Default)]
struct Shared {
    ports: Mutex<Vec<Port>>,
    loss: AtomicU8,
    copies: AtomicU8,
    late: AtomicU8,
    is_over: AtomicBool,
    heard: Mutex<VecDeque<Vec<u8>>>,
    /// The number of datagrams for groups so far.
    carried: AtomicU64,
}

/// The switch of one line.
#[derive(Debug)]
pub(super) struct Hub {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// Opens a port at this interface, which must be in the present network namespace.
pub(super) fn open_port(interface: &str) -> Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll)?;
    let mut known = getifaddrs()?.filter(|known| known.interface_name == interface);
    let address = known.find_map(|known| known.address?.as_link_addr().copied());
    bind(socket.as_raw_fd(), &address.with_context(|| format!("no interface {interface}"))?)?;
    setsockopt(&socket, RcvBufForce, &WAITING)?;
    Ok(socket)
}

impl Hub {
    pub(super) fn new(ports: Vec<OwnedFd>, seed: u64) -> Self {
        let port = |socket| Port { socket: Some(Arc::new(socket)), cut_until: 0 };
        let ports = Mutex::new(ports.into_iter().map(port).collect());
        let shared = Arc::new(Shared { ports, ..Shared::default() });
        let of_thread = shared.clone();
        let thread = Some(std::thread::spawn(move || of_thread.run(Rng::with_seed(seed))));
        Self { shared, thread }
    }

    /// Sets the percentages of datagrams that are dropped, duplicated and delayed from now on.
    pub(super) fn set(&self, loss: u8, copies: u8, late: u8) {
        self.shared.loss.store(loss, Ordering::Relaxed);
        self.shared.copies.store(copies, Ordering::Relaxed);
        self.shared.late.store(late, Ordering::Relaxed);
    }

    /// Lets no frame pass from or to a port until this time.
    pub(super) fn cut(&self, port: usize, until: u64) {
        self.shared.ports()[port].cut_until = until;
    }

    /// Replaces the socket of a port.
    pub(super) fn replace(&self, port: usize, socket: Option<OwnedFd>) {
        self.shared.ports()[port].socket = socket.map(Arc::new);
    }

    /// Returns the last datagrams as whole frames, the newest last.
    pub(super) fn heard(&self) -> Vec<Vec<u8>> {
        self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Returns the number of datagrams for groups so far.
    pub(super) fn carried(&self) -> u64 {
        self.shared.carried.load(Ordering::Relaxed)
    }

    /// Sends a frame to all ports that are not cut.
    pub(super) fn inject(&self, frame: &[u8]) {
        for (_, socket) in self.shared.open_ports() {
            let _ = send(&*socket, frame, SendFlags::DONTWAIT);
        }
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A delayed datagram, its destination port, and the latest time at which it is passed on.
struct Late {
    port: usize,
    until: u64,
    frame: Vec<u8>,
}

impl Shared {
    fn ports(&self) -> std::sync::MutexGuard<'_, Vec<Port>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the ports that are not cut now.
    fn open_ports(&self) -> Vec<(usize, Arc<OwnedFd>)> {
        let now = now();
        let ports = self.ports();
        let open = ports.iter().enumerate().filter(|(_, port)| port.cut_until <= now);
        open.filter_map(|(at, port)| Some((at, port.socket.clone()?))).collect()
    }

    fn run(&self, mut random: Rng) {
        let mut buffer = vec![0; 65_536];
        let mut late: Vec<Late> = Vec::new();
        while !self.is_over.load(Ordering::Relaxed) {
            let ports: Vec<_> = {
                let ports = self.ports();
                ports.iter().enumerate().filter_map(|(at, port)| Some((at, port.socket.clone()?))).collect()
            };
            let mut wanted: Vec<PollFd<'_>> =
                ports.iter().map(|(_, socket)| PollFd::new(&**socket, PollFlags::IN)).collect();
            let patience = if late.is_empty() { LOOK } else { Duration::from_millis(1) };
            let patience = Timespec::try_from(patience).expect("a few milliseconds");
            let _ = poll(&mut wanted, Some(&patience));
            for (at, socket) in &ports {
                // Only a few frames are read at a time, so that no port waits for another one.
                for _ in 0..64 {
                    let Ok((length, _)) = recv(&**socket, &mut buffer[..], RecvFlags::DONTWAIT) else {
                        break;
                    };
                    self.pass(*at, &mut buffer[..length], &mut late, &mut random);
                }
            }
            self.send_late(&mut late, None);
        }
    }

    /// Passes a frame that arrived at this port on to the others.
    fn pass(&self, from: usize, frame: &mut [u8], late: &mut Vec<Late>, random: &mut Rng) {
        let open = self.open_ports();
        if open.iter().all(|(at, _)| *at != from) {
            return;
        }
        let place = Place::of(frame);
        if let Some(place) = place {
            place.make_sound(frame);
            self.remember(place, frame);
        }
        let percent = |of: &AtomicU8| if place.is_some() { of.load(Ordering::Relaxed) } else { 0 };
        let (loss, copies, lates) = (percent(&self.loss), percent(&self.copies), percent(&self.late));
        for (to, socket) in open.into_iter().filter(|(to, _)| *to != from) {
            if random.u8(..100) < loss {
                continue;
            }
            if random.u8(..100) < lates && late.iter().all(|late| late.port != to) {
                late.push(Late { port: to, until: now() + LATE_NS, frame: frame.to_vec() });
                continue;
            }
            let times = 1 + u32::from(random.u8(..100) < copies);
            for _ in 0..times {
                let _ = send(&*socket, frame, SendFlags::DONTWAIT);
            }
            self.send_late(late, Some(to));
        }
    }

    /// Sends all delayed datagrams of this port, and all datagrams of other ports that have waited long enough.
    fn send_late(&self, late: &mut Vec<Late>, port: Option<usize>) {
        if late.is_empty() {
            return;
        }
        let (now, open) = (now(), self.open_ports());
        late.retain(|one| {
            let is_due = Some(one.port) == port || one.until <= now;
            if let (true, Some((_, socket))) = (is_due, open.iter().find(|(at, _)| *at == one.port)) {
                let _ = send(&**socket, &one.frame, SendFlags::DONTWAIT);
            }
            !is_due
        });
    }

    fn remember(&self, place: Place, frame: &[u8]) {
        if place.is_for_a_group(frame) {
            self.carried.fetch_add(1, Ordering::Relaxed);
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        if heard.len() == HEARD {
            heard.pop_front();
        }
        heard.push_back(frame.to_vec());
    }
}
