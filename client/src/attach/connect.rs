//! The connection to a daemon, for the channels that the daemon owns.
//!
//! A program talks to the daemon once, at the start. After that, data flows without the daemon. An attached program continues when the
//! daemon dies.

use crate::error::{ChannelError, is_shortage};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use shmcast_layout::control::{
    BridgeStatus, ChannelStatus, Event as ControlEvent, Promotion, RefusalCode, Request, Response, VERSION,
    decode, encode,
};
use shmcast_layout::sys::handoff::{self, MAX_PACKET};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Environment variable that names the daemon's socket.
pub const SOCKET_VARIABLE: &str = "SHMCAST_SOCKET";
/// Path of the socket of the system's daemon.
pub const DEFAULT_SOCKET: &str = "/run/shmcast/control.sock";
/// Longest wait for the daemon's answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for a daemon that is starting. Such a daemon still makes the memory of its channels, and answers each greeting with
/// `Starting`.
const STARTING: Duration = Duration::from_secs(60);

/// A client of a daemon. It keeps the path of the daemon's socket, and opens a connection for each call.
///
/// ```no_run
/// use shmcast::{Client, Publisher, Subscriber};
/// let client = Client::connect()?;
/// let mut publisher = Publisher::builder("ticks").client(&client).open()?;
/// let mut subscriber = Subscriber::builder("ticks").client(&client).open()?;
/// publisher.publish(b"bid 100.25")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Connects to the daemon at [`default_socket`](Self::default_socket).
    ///
    /// # Errors
    /// [`ChannelError::NoDaemon`] if no process listens at the path of the daemon's socket. [`ChannelError::Silent`] if the daemon does not
    /// answer within five seconds, or takes more than a minute to start. [`ChannelError::Refused`] if the daemon speaks another version.
    ///
    /// ```no_run
    /// let client = shmcast::Client::connect()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn connect() -> Result<Self, ChannelError> {
        Self::at(Self::default_socket())
    }

    /// Connects to the daemon that listens at `socket`. The function succeeds even if the daemon refuses the connection because this user
    /// has reached a limit. While the limit lasts, later calls are refused, and an open that waits for its channel continues to wait.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    ///
    /// ```no_run
    /// let client = shmcast::Client::at("/run/shmcast/control.sock")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at(socket: impl Into<PathBuf>) -> Result<Self, ChannelError> {
        let socket = socket.into();
        match Conversation::open(&socket) {
            Ok(_) | Err(ChannelError::Refused { code: RefusalCode::Limit, .. }) => Ok(Self { socket }),
            Err(e) => Err(e),
        }
    }

    /// Returns the first path of this list whose condition is true:
    ///
    /// 1. `$SHMCAST_SOCKET`, if it is set and not empty;
    /// 2. [`DEFAULT_SOCKET`], if this file exists, or if this user is not allowed to check whether it exists;
    /// 3. `$XDG_RUNTIME_DIR/shmcast/control.sock`, if `$XDG_RUNTIME_DIR` is set and not empty;
    /// 4. [`DEFAULT_SOCKET`].
    ///
    /// ```
    /// println!("{}", shmcast::Client::default_socket().display());
    /// ```
    pub fn default_socket() -> PathBuf {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(socket) = variable(SOCKET_VARIABLE) {
            return socket;
        }
        let system = PathBuf::from(DEFAULT_SOCKET);
        match variable("XDG_RUNTIME_DIR").map(|dir| dir.join("shmcast/control.sock")) {
            Some(own) if matches!(system.try_exists(), Ok(false)) => own,
            _ => system,
        }
    }

    /// The path at which the daemon listens.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// println!("the daemon at {}", client.socket().display());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns all channels that this user can read, with their readers.
    ///
    /// # Errors
    /// [`ChannelError`] when the daemon is gone or refuses.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// for channel in client.channels()? {
    ///     println!("{}: {} readers", channel.channel, channel.readers.len());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn channels(&self) -> Result<Vec<ChannelStatus>, ChannelError> {
        self.report(&Request::List {})
    }

    /// Returns one channel, with its readers.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] when there is no such channel, or this user is not allowed to read it.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// println!("{}", client.channel("ticks")?.state);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn channel(&self, name: &str) -> Result<ChannelStatus, ChannelError> {
        let channels = self.report(&Request::Stat { channel: name.into() })?;
        channels.into_iter().next().ok_or_else(|| self.confused("no channel in the answer"))
    }

    /// Returns the daemon's bridges to other hosts whose channels this user can read.
    ///
    /// # Errors
    /// [`ChannelError`] when the daemon is gone or refuses.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// for bridge in client.bridges()? {
    ///     println!("{}: {}", bridge.bridge, bridge.state);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn bridges(&self) -> Result<Vec<BridgeStatus>, ChannelError> {
        let mut bridges = Vec::new();
        self.ask_for_all(&Request::Bridges {}, |reply| match reply {
            Response::Bridge(status) => {
                bridges.push(*status);
                Ok(())
            }
            _ => Err("an answer to another question"),
        })?;
        Ok(bridges)
    }

    /// Makes a standby bridge take over from its peer, without a loss or a pause. Changes nothing if the bridge sends already.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] if there is no such bridge, if the bridge has no peers, or if this user cannot publish on its
    /// channel.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// client.take_over_bridge("ticks")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_over_bridge(&self, name: &str) -> Result<(), ChannelError> {
        let mut conversation = Conversation::open(&self.socket)?;
        conversation.ask(&Request::BridgeTakeOver { bridge: name.into() }, &[]).map(drop)
    }

    /// Promotes a channel that a bridge of the daemon receives, after the publisher's host was lost. The channel becomes a channel of this
    /// host. After the promotion, a program of this host can publish on the channel, if the daemon allows the program to do so.
    ///
    /// The promotion skips 2^32 sequences, so that no sequence is used twice. Readers receive the skipped sequences as a gap. With `force`,
    /// the daemon promotes the channel even if the publisher's host was heard within the last three seconds, or if the channel's journal
    /// does not record.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] if no bridge receives the channel, or if this user is not allowed to publish on it. Without `force`, also
    /// if the publisher's host was heard within the last three seconds, or if the channel's journal does not record.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// let promoted = client.promote("ticks", false)?;
    /// println!("messages {} to {} will never come", promoted.from, promoted.to);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn promote(&self, channel: &str, force: bool) -> Result<Promotion, ChannelError> {
        let mut conversation = Conversation::open(&self.socket)?;
        let request = Request::BridgePromote { channel: channel.into(), force };
        match conversation.ask(&request, &[])?.0 {
            Response::Promoted(promotion) => Ok(promotion),
            other => Err(conversation.confused(&other)),
        }
    }

    /// Takes a strict channel away from a publisher that still lives. Messages that the old publisher writes after this call reach no
    /// reader.
    ///
    /// # Errors
    /// [`ChannelError::Refused`] if the channel is not strict, or if this user is not allowed to publish on it.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// client.take_over("orders")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn take_over(&self, name: &str) -> Result<(), ChannelError> {
        let mut conversation = Conversation::open(&self.socket)?;
        conversation.ask(&Request::TakeOver { channel: name.into() }, &[]).map(drop)
    }

    /// Follows the events of the daemon's channels from now on.
    ///
    /// # Errors
    /// [`ChannelError`] when the daemon is gone or refuses.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// let mut events = client.events()?;
    /// loop {
    ///     if let Some(event) = events.next_event()? {
    ///         println!("{}: {:?}", event.event, event.channel);
    ///     }
    /// }
    /// # #[expect(unreachable_code)]
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn events(&self) -> Result<Events, ChannelError> {
        Ok(self.events_after(0)?.1)
    }

    /// Returns up to `last` past events, oldest first, and a stream of all later events. Between the past events and the stream, no event
    /// is missing or repeated. A daemon keeps a limited number of past events, and none across its restarts.
    ///
    /// # Errors
    /// As [`events`](Self::events).
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// let (past, mut events) = client.events_after(100)?;
    /// for event in past {
    ///     println!("{}", event.event);
    /// }
    /// println!("and then {:?}", events.next_event()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn events_after(&self, last: u32) -> Result<(Vec<ControlEvent>, Events), ChannelError> {
        let mut conversation = Conversation::open(&self.socket)?;
        conversation.send(&Request::Events { last }, &[])?;
        let mut past = Vec::new();
        loop {
            match conversation.receive()?.0 {
                Response::Done {} => break,
                Response::Event(event) => past.push(event),
                _ => return Err(self.confused("an answer to another question")),
            }
        }
        conversation.wait_for_up_to(Duration::from_millis(100))?;
        Ok((past, Events { conversation }))
    }

    fn report(&self, request: &Request) -> Result<Vec<ChannelStatus>, ChannelError> {
        let mut channels: Vec<ChannelStatus> = Vec::new();
        self.ask_for_all(request, |reply| {
            match reply {
                Response::Channel(status) => channels.push(*status),
                Response::Readers { readers } => {
                    channels.last_mut().ok_or("readers of no channel")?.readers.extend(readers);
                }
                _ => return Err("an answer to another question"),
            }
            Ok(())
        })?;
        Ok(channels)
    }

    /// Sends a request whose answer has many parts, and passes each part to `take`. If a part is not expected, `take` returns an error.
    fn ask_for_all(
        &self,
        request: &Request,
        mut take: impl FnMut(Response) -> Result<(), &'static str>,
    ) -> Result<(), ChannelError> {
        let mut conversation = Conversation::open(&self.socket)?;
        conversation.send(request, &[])?;
        loop {
            match conversation.receive()?.0 {
                Response::Done {} => return Ok(()),
                part => take(part).map_err(|what| self.confused(what))?,
            }
        }
    }

    fn confused(&self, what: &str) -> ChannelError {
        ChannelError::NoDaemon { socket: self.socket.clone(), source: io::Error::other(what.to_owned()) }
    }
}

/// The daemon's events, one after the other. [`Client::events`] returns this value.
#[derive(Debug)]
pub struct Events {
    conversation: Conversation,
}

impl Events {
    /// Returns the next event, or `None` if no event arrives within a tenth of a second.
    ///
    /// # Errors
    /// [`ChannelError::NoDaemon`] when the daemon has gone.
    ///
    /// ```no_run
    /// # let client = shmcast::Client::connect()?;
    /// match client.events()?.next_event()? {
    ///     Some(event) => println!("{}", event.event),
    ///     None => println!("a quiet tenth of a second"),
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_event(&mut self) -> Result<Option<ControlEvent>, ChannelError> {
        match self.conversation.receive() {
            Ok((Response::Event(event), _)) => Ok(Some(event)),
            Ok(_) => Ok(None),
            Err(ChannelError::Silent { .. }) => Ok(None),
            Err(e) => Err(e),
        }
    }
}

/// A connection to a daemon that has accepted the protocol version of this program.
#[derive(Debug)]
pub(crate) struct Conversation {
    path: PathBuf,
    socket: OwnedFd,
    buffer: Box<[u8]>,
    patience: Duration,
    /// Notices to a reader that came while it waited for an answer, with their descriptors.
    early: Vec<(Response, Vec<File>)>,
}

/// The connection of an attached program, for its keeper. `early` has the notices that have come already.
pub(crate) struct Line {
    pub(crate) daemon: PathBuf,
    pub(crate) socket: OwnedFd,
    pub(crate) early: Vec<(Response, Vec<File>)>,
}

impl Conversation {
    pub(crate) fn open(path: &Path) -> Result<Self, ChannelError> {
        Self::open_within(path, PATIENCE)
    }

    /// Does the same as [`open`](Self::open), but waits only `patience` for each answer.
    pub(crate) fn open_within(path: &Path, patience: Duration) -> Result<Self, ChannelError> {
        let gone = |source| ChannelError::NoDaemon { socket: path.to_owned(), source };
        let socket = handoff::connect(path).map_err(|source| match is_shortage(&source) {
            true => ChannelError::os("make a socket for the daemon at", path)(source),
            false => gone(source),
        })?;
        let buffer = vec![0; MAX_PACKET].into_boxed_slice();
        let mut conversation = Self { path: path.to_owned(), socket, buffer, patience, early: Vec::new() };
        conversation.wait_for_up_to(patience)?;
        let started = Instant::now();
        loop {
            match conversation.ask(&Request::Hello { version: VERSION }, &[])?.0 {
                Response::Welcome { version: VERSION, .. } => return Ok(conversation),
                // The daemon waits before it answers `Starting`, so this loop does not use a whole CPU.
                Response::Starting {} if started.elapsed() < STARTING => {}
                Response::Starting {} => {
                    return Err(ChannelError::Silent { socket: path.to_owned(), patience: STARTING });
                }
                _ => {
                    let what = "the daemon speaks another version of the protocol";
                    return Err(conversation.gone(io::Error::other(what)));
                }
            }
        }
    }

    /// Sends a request, and returns the answer with its descriptors. Keeps notices that come before the answer. An earlier mistake: a notice was taken for the answer, and a reader could not take a gate after its publisher had died.
    pub(crate) fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Response, Vec<File>), ChannelError> {
        self.send(request, descriptors)?;
        loop {
            let received = self.receive()?;
            match received.0 {
                Response::Moved(_) | Response::PublisherGone { .. } => self.early.push(received),
                _ => return Ok(received),
            }
        }
    }

    /// Makes the socket non-blocking. Returns what the program's keeper needs.
    pub(crate) fn into_line(self) -> Result<Line, ChannelError> {
        rustix::io::ioctl_fionbio(&self.socket, true).map_err(|e| self.gone(e.into()))?;
        Ok(Line { daemon: self.path, socket: self.socket, early: self.early })
    }

    /// Sends a request to attach. The daemon must answer with exactly `N` descriptors.
    pub(crate) fn attach<const N: usize>(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(Response, [File; N]), ChannelError> {
        let (reply, granted) = self.ask(request, descriptors)?;
        Ok((reply, self.exactly(granted)?))
    }

    /// Checks that exactly `N` descriptors came.
    pub(crate) fn exactly<const N: usize>(&self, granted: Vec<File>) -> Result<[File; N], ChannelError> {
        <[File; N]>::try_from(granted).map_err(|other| {
            self.gone(io::Error::other(format!("{} descriptors instead of {N}", other.len())))
        })
    }

    /// Makes the error for an answer that does not match the request.
    pub(crate) fn confused(&self, reply: &Response) -> ChannelError {
        self.gone(io::Error::other(format!("an answer that does not fit the question: {reply:?}")))
    }

    fn send(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Result<(), ChannelError> {
        match handoff::send(&self.socket, &encode(request), descriptors) {
            // If the daemon refused us before our request arrived, the daemon's reason is already in the socket's queue. The next `receive`
            // returns it.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|e| self.gone(e)),
        }
    }

    /// Receives the next packet of the daemon.
    pub(crate) fn receive(&mut self) -> Result<(Response, Vec<File>), ChannelError> {
        let packet = match handoff::receive(&self.socket, &mut self.buffer) {
            // The kernel reports `ECONNRESET` once if the daemon closed the connection before it had read all of our packets. The next call
            // returns the daemon's last reply.
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => {
                handoff::receive(&self.socket, &mut self.buffer)
            }
            received => received,
        };
        let packet = packet.map_err(|e| self.gone(e))?;
        if packet.length == 0 {
            return Err(self.gone(io::ErrorKind::ConnectionReset.into()));
        }
        if packet.lacks_descriptors {
            let source = Errno::MFILE.into();
            return Err(ChannelError::os("receive descriptors from the daemon at", &self.path)(source));
        }
        match decode(&self.buffer[..packet.length]) {
            Ok(Response::Refused { code, why }) => Err(ChannelError::Refused { code, why }),
            Ok(reply) => Ok((reply, packet.descriptors)),
            Err(e) => Err(self.gone(e.into())),
        }
    }

    fn wait_for_up_to(&mut self, patience: Duration) -> Result<(), ChannelError> {
        for direction in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(self.socket.as_fd(), direction, Some(patience))
                .map_err(|e| self.gone(e.into()))?;
        }
        self.patience = patience;
        Ok(())
    }

    fn gone(&self, source: io::Error) -> ChannelError {
        let socket = self.path.clone();
        match source.kind() {
            // A socket reports `WouldBlock` after its timeout.
            io::ErrorKind::WouldBlock => ChannelError::Silent { socket, patience: self.patience },
            _ => ChannelError::NoDaemon { socket, source },
        }
    }
}

impl ChannelError {
    /// Whether the error says that the channel does not exist, in a directory or at a daemon.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let refused = shmcast::Subscriber::builder("nobody").dir(dir.path()).open().unwrap_err();
    /// assert!(refused.is_unknown_channel());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_unknown_channel(&self) -> bool {
        matches!(self, Self::NotFound { .. } | Self::Refused { code: RefusalCode::UnknownChannel, .. })
    }
}
