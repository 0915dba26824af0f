//! The wire between two hosts of a story, which are both this machine. Datagrams pass through this program, which drops, duplicates, delays
//! or forges some of them.
//!
//! A line leads from the sender's address to the receiver's address. Requests to the repair server also pass through this program. There is
//! a separate socket for each client, so that an answer goes back to the right client.

use anyhow::{Context, Result};
use fastrand::Rng;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::{self, net::UnixDatagram};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The time for which a thread waits for a datagram before it checks whether it must end.
const LOOK: Duration = Duration::from_millis(50);
/// The size of a MoldUDP64 header in bytes: session, sequence, count.
pub(super) const HEADER: usize = 20;

/// The quality of a line: the percentages of datagrams that are dropped, duplicated and delayed.
#[derive(Debug, Default)]
struct Quality {
    loss: AtomicU8,
    copies: AtomicU8,
    late: AtomicU8,
    is_over: AtomicBool,
    /// Whether requests and answers pass without loss, duplication or delay.
    spares_requests: AtomicBool,
    /// The number of the feed's datagrams so far.
    carried: AtomicU64,
    /// The header of the feed's last datagram, from which forged packets are made.
    last: Mutex<Option<[u8; HEADER]>>,
}

/// A wire between two hosts.
#[derive(Debug)]
pub(super) struct Wire {
    quality: Arc<Quality>,
    threads: Vec<JoinHandle<()>>,
    /// The ports to which the sender's lines lead.
    pub(super) sends_to: Vec<u16>,
    /// The ports at which the receiver listens for the lines.
    pub(super) hears_at: Vec<u16>,
    /// The port at which the receiver finds the server.
    pub(super) asks_at: u16,
    /// The port at which the server listens.
    pub(super) serves_at: u16,
}

/// The first port that this program uses. The system chooses ports for other programs from a higher range. So another program has one of
/// these ports only if it requested the number.
const FIRST_PORT: u16 = 10_000;
/// The number of ports for each process of this program. The next constant is the largest number of such processes.
const PORTS: u16 = 2000;
const PROCESSES: u16 = 10;

/// Returns the first port of this process. To reserve a range of ports, each process of this program opens a socket whose name contains the
/// number of the range.
fn own_ports() -> Result<u16> {
    static OWN: OnceLock<Option<(u16, UnixDatagram)>> = OnceLock::new();
    let claim = |at: u16| {
        let name = unix::net::SocketAddr::from_abstract_name(format!("shmcast-chaos-ports-{at}")).ok()?;
        Some((FIRST_PORT + at * PORTS, UnixDatagram::bind_addr(&name).ok()?))
    };
    let own = OWN.get_or_init(|| (0..PROCESSES).find_map(claim));
    own.as_ref().map(|(first, _)| *first).context("all ports belong to other processes of this program")
}

/// Returns a port that nobody uses now.
pub(super) fn free_port() -> Result<u16> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = own_ports()?;
    for _ in 0..PORTS {
        let port = first + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
        let is_free =
            UdpSocket::bind(local(port)).is_ok() && std::net::TcpListener::bind(local(port)).is_ok();
        if is_free {
            return Ok(port);
        }
    }
    anyhow::bail!("no port is free")
}

pub(super) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

pub(super) fn socket(port: u16) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(local(port)).with_context(|| format!("bind port {port}"))?;
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

impl Wire {
    pub(super) fn new(lines: usize, seed: u64) -> Result<Self> {
        let quality = Arc::new(Quality::default());
        let mut wire = Self {
            quality,
            threads: Vec::new(),
            sends_to: Vec::new(),
            hears_at: Vec::new(),
            asks_at: free_port()?,
            serves_at: free_port()?,
        };
        for line in 0..lines {
            let (from, to) = (free_port()?, free_port()?);
            wire.sends_to.push(from);
            wire.hears_at.push(to);
            let (socket, quality, random) =
                (socket(from)?, wire.quality.clone(), Rng::with_seed(seed + line as u64));
            wire.threads.push(std::thread::spawn(move || carry_line(&socket, local(to), &quality, random)));
        }
        let (client_side, server) = (socket(wire.asks_at)?, local(wire.serves_at));
        let quality = wire.quality.clone();
        let random = Rng::with_seed(seed ^ 0x5eed);
        wire.threads.push(std::thread::spawn(move || carry_requests(&client_side, server, &quality, random)));
        Ok(wire)
    }

    /// Returns the configuration table of the sending bridge.
    pub(super) fn sends(&self, channel: &str) -> String {
        let lines = lines(&self.sends_to);
        let server = local(self.serves_at);
        format!(
            "[[bridge]]\nchannel = \"{channel}\"\nline = {lines}\n[bridge.send]\nfrom = \"oldest\"\nlinger_ms = 500\n\
             [bridge.send.repair]\nbind = \"{server}\"\nallow = [\"127.0.0.0/8\"]\n"
        )
    }

    /// Returns the configuration table of the receiving bridge.
    pub(super) fn receives(&self, channel: &str) -> String {
        let lines = lines(&self.hears_at);
        let server = local(self.asks_at);
        format!(
            "[[bridge]]\nchannel = \"{channel}\"\nline = {lines}\n[bridge.receive]\nservers = [\"{server}\"]\nfrom = 1\n"
        )
    }

    /// Sets the percentages of datagrams that are dropped, duplicated and delayed from now on.
    pub(super) fn set(&self, loss: u8, copies: u8, late: u8) {
        self.quality.loss.store(loss, Ordering::Relaxed);
        self.quality.copies.store(copies, Ordering::Relaxed);
        self.quality.late.store(late, Ordering::Relaxed);
        self.quality.spares_requests.store(false, Ordering::Relaxed);
    }

    /// Sets the percentages like `set`, but only for the feed. Requests to the server and the server's answers are not changed.
    pub(super) fn set_lines(&self, loss: u8, copies: u8, late: u8) {
        self.set(loss, copies, late);
        self.quality.spares_requests.store(true, Ordering::Relaxed);
    }

    /// Returns the header of the feed's last packet, if there was a packet.
    pub(super) fn header(&self) -> Option<[u8; HEADER]> {
        *self.quality.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of datagrams that the feed's lines have carried so far.
    pub(super) fn carried(&self) -> u64 {
        self.quality.carried.load(Ordering::Relaxed)
    }

    /// Sends the receiver a heartbeat that announces a sequence far ahead. The heartbeat's session is the session of the feed, or another
    /// session. Returns false if no session is known.
    pub(super) fn forge(&self, ahead: u64, is_other_session: bool) -> Result<bool> {
        let Some(mut header) = self.header() else { return Ok(false) };
        let sequence = u64::from_be_bytes(header[10..18].try_into().context("eight bytes")?);
        header[10..18].copy_from_slice(&sequence.saturating_add(ahead).to_be_bytes());
        header[18..].fill(0);
        if is_other_session {
            header[9] = if header[9] == b'Z' { b'Y' } else { b'Z' };
        }
        let socket = UdpSocket::bind(local(0))?;
        for port in &self.hears_at {
            socket.send_to(&header, local(*port))?;
        }
        Ok(true)
    }
}

fn lines(ports: &[u16]) -> String {
    let lines: Vec<String> = ports.iter().map(|port| format!("{{ group = \"{}\" }}", local(*port))).collect();
    format!("[{}]", lines.join(", "))
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.quality.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Quality {
    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// Passes a request or an answer on.
    fn pass_request(&self, bytes: &[u8], held: &mut Option<Vec<u8>>, random: &mut Rng, send: impl Fn(&[u8])) {
        match self.spares_requests.load(Ordering::Relaxed) {
            true => send(bytes),
            false => self.pass(bytes, held, random, send),
        }
    }

    /// Passes a datagram on, or drops, duplicates or delays the datagram. `held` is the delayed datagram, if any.
    fn pass(&self, bytes: &[u8], held: &mut Option<Vec<u8>>, random: &mut Rng, send: impl Fn(&[u8])) {
        let happens =
            |percent: &AtomicU8, random: &mut Rng| random.u8(..100) < percent.load(Ordering::Relaxed);
        if happens(&self.loss, random) {
            return;
        }
        if held.is_none() && happens(&self.late, random) {
            *held = Some(bytes.to_vec());
            return;
        }
        send(bytes);
        if happens(&self.copies, random) {
            send(bytes);
        }
        if let Some(late) = held.take() {
            send(&late);
        }
    }
}

fn carry_line(socket: &UdpSocket, to: SocketAddr, quality: &Quality, mut random: Rng) {
    let mut buffer = vec![0; 65536];
    let mut held: Option<Vec<u8>> = None;
    while !quality.is_over() {
        let Ok(length) = socket.recv(&mut buffer) else {
            if let Some(late) = held.take() {
                let _ = socket.send_to(&late, to);
            }
            continue;
        };
        quality.carried.fetch_add(1, Ordering::Relaxed);
        if let Some(header) = buffer[..length].first_chunk::<HEADER>() {
            *quality.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(*header);
        }
        quality.pass(&buffer[..length], &mut held, &mut random, |bytes| {
            let _ = socket.send_to(bytes, to);
        });
    }
}

fn carry_requests(clients: &UdpSocket, server: SocketAddr, quality: &Arc<Quality>, mut random: Rng) {
    let mut buffer = vec![0; 65536];
    let mut upstream: HashMap<SocketAddr, UdpSocket> = HashMap::new();
    let mut threads = Vec::new();
    let mut held: Option<Vec<u8>> = None;
    while !quality.is_over() {
        let Ok((length, client)) = clients.recv_from(&mut buffer) else { continue };
        let to_server = match upstream.entry(client) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let Ok((to_server, back)) = socket(0).and_then(|s| Ok((s.try_clone()?, s))) else { continue };
                let (to_client, quality, seed) = (clients.try_clone(), quality.clone(), random.u64(..));
                if let Ok(to_client) = to_client {
                    let carry = move || carry_answers(&back, &to_client, client, &quality, seed);
                    threads.push(std::thread::spawn(carry));
                }
                place.insert(to_server)
            }
        };
        quality.pass_request(&buffer[..length], &mut held, &mut random, |bytes| {
            let _ = to_server.send_to(bytes, server);
        });
    }
    for thread in threads {
        let _ = thread.join();
    }
}

fn carry_answers(from: &UdpSocket, to: &UdpSocket, client: SocketAddr, quality: &Quality, seed: u64) {
    let mut buffer = vec![0; 65536];
    let (mut random, mut held) = (Rng::with_seed(seed), None::<Vec<u8>>);
    while !quality.is_over() {
        let Ok(length) = from.recv(&mut buffer) else { continue };
        quality.pass_request(&buffer[..length], &mut held, &mut random, |bytes| {
            let _ = to.send_to(bytes, client);
        });
    }
}
