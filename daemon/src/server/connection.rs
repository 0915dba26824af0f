//! One connection: a conversation that ends in an attachment, and lasts as long as that.
//!
//! Whatever a client does wrong (garbage, silence, floods, surplus descriptors, never reading) ends its own connection
//! and nothing else: every wait has a limit, and no answer is larger than a packet.

use super::Shared;
use super::access::Identity;
use super::bridges::BridgeFigures;
use super::registry::{ConnectionId, Notice, Refused};
use shmcast::MAX_NAME;
use shmcast::control::{Event, Refusal, Reply, Request, VERSION, decode, encode};
use shmcast::hosting::handoff::{self, MAX_PACKET, Packet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::sync::broadcast::{Receiver, error::RecvError};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// How long a client may take to greet, and to read what it asked for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Readers reported in one packet.
const READERS_A_PACKET: usize = 64;

/// Why a connection ends.
enum End {
    /// The client left.
    HangUp,
    /// The client was told why, and is cut off.
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
    shared: &'a Shared,
    id: ConnectionId,
    who: Identity,
    socket: UnixDatagram,
    has_greeted: bool,
    is_attached: bool,
    follows: Option<Receiver<Event>>,
    notices: (UnboundedSender<Notice>, UnboundedReceiver<Notice>),
}

/// Serves a connection to its end.
pub(super) async fn serve(shared: Arc<Shared>, socket: OwnedFd, id: ConnectionId) {
    let Ok(who) = handoff::peer(&socket).map(Identity::of) else { return };
    let uid = who.uid;
    if !shared.limits().connect(uid, Instant::now()) {
        let refused = Refused::new(
            Refusal::Limit,
            format!(
                "uid {uid} has too many connections open: close some, or raise limits.connections_per_uid"
            ),
        );
        shared.registry().refused(&refused, Some(&who), None);
        // A fresh socket has room for one packet.
        let _ = handoff::send(&socket, &encode(&to_reply(&refused)), &[]);
        return;
    }
    if let Ok(socket) = watch(socket) {
        let connection = Connection {
            shared: &shared,
            id,
            who,
            socket,
            has_greeted: false,
            is_attached: false,
            follows: None,
            notices: unbounded_channel(),
        };
        connection.run().await;
    }
    shared.registry().detach(id);
    shared.limits().disconnect(uid, Instant::now());
}

impl Connection<'_> {
    async fn run(mut self) {
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
                let refused = Refused::new(Refusal::BadRequest, format!("{} is cut off: {e}", self.who));
                self.shared.registry().refused(&refused, Some(&self.who), None);
            }
        }
    }

    /// Waits for the next thing to happen on this connection and deals with it.
    async fn step(&mut self, buffer: &mut [u8]) -> Result<(), End> {
        let silence = if self.has_greeted { Duration::from_secs(u64::from(u32::MAX)) } else { PATIENCE };
        tokio::select! {
            packet = timeout(silence, receive(&self.socket, buffer)) => match packet {
                Ok(packet) => {
                    let packet = packet?;
                    self.hear(buffer, packet).await
                }
                Err(_) => Err(self.cut_off(Refused::new(Refusal::BadRequest, "no greeting in five seconds")).await),
            },
            Some(notice) = self.notices.1.recv() => {
                let descriptors: Vec<BorrowedFd<'_>> = notice.descriptors.iter().map(AsFd::as_fd).collect();
                self.send(&notice.reply, &descriptors).await
            }
            event = next_event(&mut self.follows) => self.send(&Reply::Event(event), &[]).await,
        }
    }

    async fn hear(&mut self, buffer: &[u8], packet: Packet) -> Result<(), End> {
        let Packet { length, descriptors, truncated } = packet;
        if length == 0 && descriptors.is_empty() {
            return Err(End::HangUp);
        }
        if !self.shared.limits().request(self.who.uid, Instant::now()) {
            let why = "too many requests: ask less often, or raise limits.requests_per_second";
            return Err(self.cut_off(Refused::new(Refusal::Limit, why)).await);
        }
        if truncated {
            let why = "a request larger than 64 KiB or with more than 4 descriptors";
            return Err(self.cut_off(Refused::new(Refusal::BadRequest, why)).await);
        }
        let request = match decode::<Request>(&buffer[..length]) {
            Ok(request) => request,
            Err(e) => {
                let why = format!("not a request of protocol version {VERSION}: {e}");
                return Err(self.cut_off(Refused::new(Refusal::BadRequest, why)).await);
            }
        };
        self.answer(request, descriptors).await
    }

    async fn answer(&mut self, request: Request, mut descriptors: Vec<File>) -> Result<(), End> {
        if !self.has_greeted && !matches!(request, Request::Hello { .. }) {
            return Err(self.cut_off(Refused::new(Refusal::BadRequest, "greet first")).await);
        }
        let wanted = match &request {
            Request::Publish { resume, .. } => 2 * usize::from(*resume),
            Request::Subscribe { resume, park, .. } => 3 * usize::from(*resume) + usize::from(*park),
            _ => 0,
        };
        if descriptors.len() != wanted {
            let why = format!("{} descriptors with a request that takes {wanted}", descriptors.len());
            return Err(self.cut_off(Refused::new(Refusal::BadRequest, why)).await);
        }
        match request {
            Request::Hello { version: VERSION } => {
                self.has_greeted = true;
                let instance = self.shared.instance;
                self.send(&Reply::Welcome { version: VERSION, instance }, &[]).await
            }
            Request::Hello { version } => {
                let why =
                    format!("this daemon speaks version {VERSION}, not {version}: use the same release");
                Err(self.cut_off(Refused::new(Refusal::Version, why)).await)
            }
            Request::Publish { channel, resume } => {
                let resumed = <[File; 2]>::try_from(descriptors).ok();
                self.attach(&channel, Reply::Publishing {}, resume, |this| {
                    let notices = this.notices.0.clone();
                    this.shared.registry().publish(this.id, &this.who, &channel, resumed, notices)
                })
                .await
            }
            Request::Subscribe { channel, resume, park } => {
                let bell = if park { descriptors.pop() } else { None };
                let resumed = <[File; 3]>::try_from(descriptors).ok();
                self.attach(&channel, Reply::Subscribed {}, resume, |this| {
                    let notices = this.notices.0.clone();
                    this.shared.registry().subscribe(this.id, &this.who, &channel, resumed, bell, notices)
                })
                .await
            }
            Request::Mapped {} => {
                self.shared.registry().mapped(self.id);
                self.send(&Reply::Done {}, &[]).await
            }
            Request::List {} => self.report(None).await,
            Request::Stat { channel } => self.report(Some(&channel)).await,
            Request::Bridges {} => {
                let readable = |figures: &BridgeFigures| {
                    self.shared.registry().report(&self.who, Some(&figures.spec.channel)).is_ok()
                };
                let bridges: Vec<_> = self.shared.bridges.figures().into_iter().filter(readable).collect();
                for bridge in bridges {
                    self.send(&Reply::Bridge(Box::new(bridge.status())), &[]).await?;
                }
                self.send(&Reply::Done {}, &[]).await
            }
            Request::Events {} => {
                self.follows = Some(self.shared.events.follow());
                self.send(&Reply::Done {}, &[]).await
            }
            Request::TakeOver { channel } => {
                let taken = self.shared.registry().take_over(&self.who, &channel);
                match taken {
                    Ok(()) => self.send(&Reply::Done {}, &[]).await,
                    Err(refused) => self.refuse(refused, Some(&channel)).await,
                }
            }
        }
    }

    async fn attach(
        &mut self,
        channel: &str,
        granted: Reply,
        is_back: bool,
        grant: impl FnOnce(&mut Self) -> Result<Vec<File>, Refused>,
    ) -> Result<(), End> {
        if self.is_attached {
            let why = "one attachment a connection: open another";
            return Err(self.cut_off(Refused::new(Refusal::BadRequest, why)).await);
        }
        if !is_back {
            // After a crash, those who were attached come first.
            tokio::time::sleep_until(self.shared.open_from.into()).await;
        }
        match grant(self) {
            Ok(files) => {
                self.is_attached = true;
                let descriptors: Vec<BorrowedFd<'_>> = files.iter().map(AsFd::as_fd).collect();
                self.send(&granted, &descriptors).await
            }
            Err(refused) => self.refuse(refused, Some(channel)).await,
        }
    }

    async fn report(&mut self, only: Option<&str>) -> Result<(), End> {
        let report = self.shared.registry().report(&self.who, only);
        let channels = match report {
            Ok(channels) => channels,
            Err(refused) => return self.refuse(refused, only).await,
        };
        for mut channel in channels {
            let readers = std::mem::take(&mut channel.readers);
            self.send(&Reply::Channel(Box::new(channel)), &[]).await?;
            for some in readers.chunks(READERS_A_PACKET) {
                self.send(&Reply::Readers { readers: some.to_vec() }, &[]).await?;
            }
        }
        self.send(&Reply::Done {}, &[]).await
    }

    /// Says no; the conversation goes on.
    async fn refuse(&mut self, refused: Refused, channel: Option<&str>) -> Result<(), End> {
        // No channel has a longer name: it is the client's invention, and not for logs.
        let channel = channel.filter(|name| name.len() <= MAX_NAME);
        self.shared.registry().refused(&refused, Some(&self.who), channel);
        self.send(&to_reply(&refused), &[]).await
    }

    /// Says no, and that is the end of it.
    async fn cut_off(&mut self, refused: Refused) -> End {
        match self.refuse(refused, None).await {
            Ok(()) => End::CutOff,
            Err(end) => end,
        }
    }

    async fn send(&self, reply: &Reply, descriptors: &[BorrowedFd<'_>]) -> Result<(), End> {
        let packet = encode(reply);
        let write =
            self.socket.async_io(Interest::WRITABLE, || handoff::send(&self.socket, &packet, descriptors));
        match timeout(PATIENCE, write).await {
            Ok(sent) => Ok(sent?),
            Err(_) => {
                Err(End::Broken(io::Error::new(io::ErrorKind::TimedOut, "it does not read its answers")))
            }
        }
    }
}

fn to_reply(refused: &Refused) -> Reply {
    Reply::Refused { code: refused.code, why: refused.why.clone() }
}

/// Has the event loop watch a packet socket. Datagram sockets are the nearest kind it knows; only readiness is asked of
/// it, and that is the same.
pub(super) fn watch(socket: OwnedFd) -> io::Result<UnixDatagram> {
    let socket = std::os::unix::net::UnixDatagram::from(socket);
    socket.set_nonblocking(true)?;
    UnixDatagram::from_std(socket)
}

/// Lets conversations whose other end has hung up come to their end.
pub(super) async fn settle() {
    for _ in 0..8 {
        tokio::task::yield_now().await;
    }
}

async fn receive(socket: &UnixDatagram, buffer: &mut [u8]) -> io::Result<Packet> {
    socket.async_io(Interest::READABLE, || handoff::receive(socket, buffer)).await
}

/// The next event for one who follows; never comes for one who does not.
async fn next_event(follows: &mut Option<Receiver<Event>>) -> Event {
    let Some(events) = follows else { return std::future::pending().await };
    match events.recv().await {
        Ok(event) => event,
        Err(RecvError::Lagged(lost)) => Event {
            time_ns: 0,
            event: "lost".into(),
            channel: None,
            role: None,
            process: None,
            detail: Some(format!("{lost} events came faster than they were read")),
        },
        Err(RecvError::Closed) => std::future::pending().await,
    }
}
