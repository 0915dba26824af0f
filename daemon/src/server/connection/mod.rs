//! One connection: requests and replies, and at most one attachment, which lasts as long as the connection.
//!
//! A client that breaks the rules ends only its own connection. Each wait for a client has a limit, and each answer fits a packet.
//!
//! The daemon serves one program of a user at a time, and users take turns after each packet. So between two packets to one user, each
//! other user gets at most one packet.

mod attaching;
mod gates;
mod reports;
mod sending;

use super::access::ConnectionId;
use super::access::Identity;
use super::limits::{Crowded, Turns};
use super::registry::{Guest, Manner, Notice, Refused, Registry};
use super::state::ServerState;
use nix::errno::Errno;
use shmcast::control::{Event, RefusalCode, Request, Response, VERSION, decode, encode};
use shmcast::hosting::fault;
use shmcast::journal::Wanted;
use shmcast::sys::handoff::{self, MAX_PACKET, Packet, Peer};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::broadcast::Receiver;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::yield_now;
use tokio::time::timeout;

/// The time limit for a client to greet, and to read an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time for which a greeting waits for its answer while the daemon starts. After this time, the answer is `Starting`, and the client
/// greets again.
const STARTING: Duration = Duration::from_secs(2);
/// The number of packets at the start of a connection that can be free. A free packet does not count for the limits.
const PREPAID: u32 = 2;
/// Interval at which a waiting reader checks whether a program has passed the channel's memory to this daemon.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Time after the end of a publisher's connection at which the publisher's lock is checked once more.
const LAST_BREATH: Duration = Duration::from_millis(10);

/// The reason why a connection ends.
enum End {
    /// The client left.
    HangUp,
    /// The client was refused, and its connection is closed.
    CutOff,
    /// The socket failed, or the client does not read.
    Broken(io::Error),
}

impl From<io::Error> for End {
    fn from(e: io::Error) -> Self {
        match e.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Self::HangUp,
            _ => Self::Broken(e),
        }
    }
}

struct Connection<'a> {
    shared: &'a ServerState,
    id: ConnectionId,
    who: Identity,
    socket: UnixDatagram,
    /// The semaphores by which the programs of this user take turns.
    turns: Turns,
    /// The permit of `turns.served`. It is held while this program is served. During a wait it is released, so that the wait delays no other
    /// program of the user.
    served: Option<OwnedSemaphorePermit>,
    /// The number of the following packets that can be free: the greeting, and then a request to attach again. A free packet does not count
    /// for the limits.
    prepaid: u32,
    /// The time of the last look-up of the user's names.
    named: Instant,
    has_greeted: bool,
    is_attached: bool,
    /// The channel that the program is attached to as a reader.
    reads: Option<String>,
    follows: Option<Receiver<Event>>,
    notices: (UnboundedSender<Notice>, UnboundedReceiver<Notice>),
    /// The number of packets with descriptors that were sent since the program was last seen without unread packets.
    unread: u32,
}

/// Accepts a connection, and serves it in a separate task. Refuses the connection if its user has too many connections or connects too
/// often. Costs three system calls.
pub(super) fn admit(shared: &Arc<ServerState>, socket: OwnedFd, id: ConnectionId) {
    let Ok(peer) = handoff::peer(&socket) else { return };
    let uid = peer.uid;
    let crowded = match shared.limits().connect(uid, Instant::now()) {
        Ok(turns) => {
            tokio::spawn(serve(shared.clone(), socket, id, peer, turns));
            return;
        }
        Err(crowded) => crowded,
    };
    let why = match crowded {
        Crowded::Open => {
            format!(
                "uid {uid} has too many connections open: close some, or raise limits.connections_per_uid"
            )
        }
        Crowded::Often => {
            format!("uid {uid} connects too often: wait a second, or raise limits.requests_per_second")
        }
    };
    let refused = Refused::new(RefusalCode::Limit, why);
    let who = Identity { pid: peer.pid, uid, gid: peer.gid, names: None, command: None };
    shared.events.refused(refused.code, &who, None, &refused.why);
    // A new socket has room for one packet, so this does not block.
    let _ = handoff::send(&socket, &encode(&to_reply(&refused)), &[]);
}

/// Serves a connection until it ends.
async fn serve(shared: Arc<ServerState>, socket: OwnedFd, id: ConnectionId, peer: Peer, turns: Turns) {
    let mut unread = None;
    if let Ok(socket) = watch(socket) {
        let connection = Connection {
            shared: &shared,
            id,
            who: identify(&shared, peer).await,
            socket,
            turns,
            served: None,
            prepaid: PREPAID,
            named: Instant::now(),
            has_greeted: false,
            is_attached: false,
            reads: None,
            follows: None,
            notices: unbounded_channel(),
            unread: 0,
        };
        unread = connection.run().await;
    }
    let was_publisher = shared.opened.get().is_some() && shared.registry().detach(id);
    if unread.is_none() {
        shared.limits().disconnect(peer.uid);
    }
    if was_publisher {
        // After a program has died, the kernel closes its descriptors one by one. So the lock might be released after the connection is
        // closed.
        tokio::time::sleep(LAST_BREATH).await;
        shared.registry().tell_deaths();
    }
    // The descriptors of unread packets are still open. So the connection counts as open until the program has read them.
    if let Some(socket) = unread {
        sending::wait_until_read(socket).await;
        shared.limits().disconnect(peer.uid);
    }
}

async fn identify(shared: &ServerState, peer: Peer) -> Identity {
    let who = shared.access.identify(peer).await;
    tell_if_nameless(shared, &who);
    who
}

fn tell_if_nameless(shared: &ServerState, who: &Identity) {
    if who.names.is_none() {
        let what = "it does not answer, or fails: lists name this user by uid: alone until it does";
        shared.events.tell("name-service", None, None, Some(who), what);
    }
}

impl Connection<'_> {
    /// Serves the connection until it ends. Returns the socket if the program has unread packets with descriptors, which are then still open.
    async fn run(mut self) -> Option<UnixDatagram> {
        let mut buffer = vec![0; MAX_PACKET];
        let end = loop {
            if let Err(end) = self.step(&mut buffer).await {
                break end;
            }
        };
        match end {
            End::HangUp => {}
            End::CutOff => tracing::debug!(pid = self.who.pid, uid = self.who.uid, "cut off"),
            End::Broken(e) => {
                let why = format!("{} is cut off: {e}", self.who);
                self.shared.events.refused(RefusalCode::BadRequest, &self.who, None, &why);
            }
        }
        let is_unread = sending::end(&self.socket);
        (is_unread && self.unread > 0).then_some(self.socket)
    }

    /// Waits for the next packet, notice or event on this connection, and handles it.
    async fn step(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        let silence = if self.has_greeted { Duration::from_secs(u64::from(u32::MAX)) } else { PATIENCE };
        tokio::select! {
            packet = timeout(silence, receive(&self.socket, buffer)) => match packet {
                Ok(packet) => {
                    let packet = packet?;
                    self.handle_packet(buffer, packet).await
                }
                Err(_) => Err(self.cut_off(Refused::new(RefusalCode::BadRequest, "no greeting in five seconds")).await),
            },
            Some(notice) = self.notices.1.recv() => self.notify(notice).await,
            event = reports::next_event(&mut self.follows) => self.pass_on(event).await,
        }
    }

    async fn handle_packet(&mut self, buffer: &[u8], packet: Packet) -> Result<(), End> {
        let Packet { length, descriptors, truncated, lacks_descriptors } = packet;
        if length == 0 && descriptors.is_empty() {
            return Err(End::HangUp);
        }
        let is_prepaid = self.prepaid > 0;
        self.prepaid = self.prepaid.saturating_sub(1);
        if !is_prepaid {
            self.pay().await?;
        }
        if truncated {
            let why = "a request larger than 64 KiB or with more than 4 descriptors";
            return Err(self.cut_off(Refused::new(RefusalCode::BadRequest, why)).await);
        }
        if lacks_descriptors {
            let refused = Refused::failed("receive the request's descriptors", &Errno::EMFILE.into());
            return self.refuse(refused, None).await;
        }
        let request = match decode::<Request>(&buffer[..length]) {
            Ok(request) => request,
            Err(e) => {
                let why = format!("not a request of protocol version {VERSION}: {e}");
                return Err(self.cut_off(Refused::new(RefusalCode::BadRequest, why)).await);
            }
        };
        // The request to attach again is free, because its connection was counted. So all programs of a user can attach again at the same
        // time.
        let is_free = is_prepaid
            && match request {
                Request::Hello { .. } => !self.has_greeted,
                Request::Publish { resume, .. } | Request::Subscribe { resume, .. } => resume,
                _ => false,
            };
        if is_prepaid && (!is_free || fault!("those_who_come_back_pay")) {
            self.pay().await?;
        }
        self.look_up_names().await;
        self.wait_for_turn().await;
        let end = self.answer(request, descriptors).await;
        self.served = None;
        yield_now().await;
        end
    }

    /// Looks up the user's names again, because they can change while the program is connected. If the user database does not answer, the
    /// names stay as they are.
    async fn look_up_names(&mut self) {
        self.named = Instant::now();
        match self.shared.access.names(self.who.peer()).await {
            None => tell_if_nameless(self.shared, &self.who),
            names => self.who.names = names,
        }
    }

    /// Counts a request against its user's limits.
    async fn pay(&mut self) -> Result<(), End> {
        if self.shared.limits().request(self.who.uid, Instant::now()) {
            return Ok(());
        }
        let why = "too many requests: ask less often, or raise limits.requests_per_second";
        Err(self.cut_off(Refused::new(RefusalCode::Limit, why)).await)
    }

    async fn wait_for_turn(&mut self) {
        // The semaphore is never closed, so this always returns a permit.
        self.served = Arc::clone(&self.turns.served).acquire_owned().await.ok();
    }

    async fn answer(&mut self, request: Request, mut descriptors: Vec<File>) -> Result<(), End> {
        if !self.has_greeted && !matches!(request, Request::Hello { .. }) {
            return Err(self.cut_off(Refused::new(RefusalCode::BadRequest, "greet first")).await);
        }
        let wanted = match &request {
            Request::Publish { resume, .. } => 2 * usize::from(*resume),
            Request::Subscribe { resume, park, .. } => 3 * usize::from(*resume) + usize::from(*park),
            _ => 0,
        };
        if descriptors.len() != wanted {
            let why = format!("{} descriptors with a request that takes {wanted}", descriptors.len());
            return Err(self.cut_off(Refused::new(RefusalCode::BadRequest, why)).await);
        }
        match request {
            Request::Hello { version } => self.greet(version).await,
            Request::Publish { channel, resume, anew, required } => {
                let grant =
                    |registry: &mut Registry, guest: &Guest<'_>| registry.publish(guest, anew, &required);
                self.attach(&channel, resume, &descriptors, grant).await
            }
            Request::Subscribe { channel, park, hidden: is_hidden, watch: watches, .. } => {
                let mut bell = if park { descriptors.pop() } else { None };
                let manner = Manner { is_hidden, watches };
                let grant =
                    |registry: &mut Registry, guest: &Guest<'_>| registry.subscribe(guest, manner, &mut bell);
                // A reader attaches without the wait of a new publisher, so the argument is true. `grant` makes the reader wait only as
                // long as no program has passed the channel's memory to this daemon.
                let end = self.attach(&channel, true, &descriptors, grant).await;
                self.reads = Some(channel).filter(|_| self.is_attached);
                end
            }
            Request::Mapped {} => {
                self.shared.registry().mapped(self.id);
                self.send(&Response::Done {}, &[]).await
            }
            request @ (Request::Gates {} | Request::Gate { .. }) => self.lend(request).await,
            Request::List {} => self.report(None).await,
            Request::Stat { channel } => self.report(Some(&channel)).await,
            Request::Bridges {} => self.report_bridges().await,
            Request::BridgeTakeOver { bridge } => match self.take_over_bridge(&bridge) {
                Ok(()) => self.send(&Response::Done {}, &[]).await,
                Err(refused) => self.refuse(refused, None).await,
            },
            Request::BridgePromote { channel, force } => match self.promote(&channel, force).await {
                Ok(promotion) => self.send(&Response::Promoted(promotion), &[]).await,
                Err(refused) => self.refuse(refused, Some(&channel)).await,
            },
            Request::Events { last } => self.send_events(last as usize).await,
            Request::TakeOver { channel } => self.take_over(&channel).await,
            Request::History { sequence: Some(_), time_ns: Some(_), .. } => {
                let why = "a sequence or a time, not both";
                Err(self.cut_off(Refused::new(RefusalCode::BadRequest, why)).await)
            }
            Request::History { channel, stream, sequence, time_ns, read } => {
                let wanted = match time_ns {
                    Some(time_ns) => Wanted::Time(time_ns),
                    None => Wanted::Sequence(sequence.unwrap_or(1)),
                };
                self.lend_history(&channel, stream.as_deref(), wanted, read).await
            }
        }
    }

    async fn greet(&mut self, version: u32) -> Result<(), End> {
        if version != VERSION {
            let why = format!("this daemon speaks version {VERSION}, not {version}: use the same release");
            return Err(self.cut_off(Refused::new(RefusalCode::Version, why)).await);
        }
        if !self.is_open().await {
            // The program greets again on this connection, so its next packets can be free again.
            self.prepaid = PREPAID;
            return self.send(&Response::Starting {}, &[]).await;
        }
        self.has_greeted = true;
        let instance = self.shared.instance;
        self.send(&Response::Welcome { version: VERSION, instance }, &[]).await
    }

    /// Waits until the memory of all channels is made, but not as long as a client waits for its answer. Returns whether the memory is
    /// made.
    async fn is_open(&mut self) -> bool {
        if self.shared.opened.get().is_some() {
            return true;
        }
        self.served = None;
        let mut is_open = self.shared.is_open.subscribe();
        let opened = is_open.wait_for(|is_open| *is_open);
        let patience = if fault!("silent_while_starting") { PATIENCE * 1000 } else { STARTING };
        timeout(patience, opened).await.is_ok_and(|opened| opened.is_ok())
    }
}

fn to_reply(refused: &Refused) -> Response {
    Response::Refused { code: refused.code, why: refused.why.clone() }
}

/// Registers a packet socket with the event loop. Tokio has no type for packet sockets, so this registers the socket as a datagram socket.
/// Only readiness is used, and sockets of both types report readiness in the same way.
pub(super) fn watch(socket: OwnedFd) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// Yields a few times, so that the tasks of closed connections can end.
pub(super) async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

async fn receive(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<Packet> {
    socket.async_io(Interest::READABLE, || handoff::receive(socket, buffer)).await
}
