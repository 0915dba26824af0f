//! A log as a repair server: on the loopback interface, for the one receiver whose process it is in.
//!
//! Requests are those of any receiver, and so are the answers. There is no ring: every message comes from the log, which another
//! thread reads. Beyond the log's end nothing is ever said to be unpublished, because the log may be behind the feed.

use shmcast::MAX_SEQUENCE;
use shmcast::sys::datagrams::Inbox;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::disk::{Disk, Feed};
use super::native::NativeRepair;
use super::store::{Request, Store};
use super::{Groups, LOOK_UP, Out, Sent, answer, answer_again};
use crate::BridgeError;
use crate::log::{LogCounters, LogLine, LogSource, LogState, LogStatus, LogWord};
use crate::native::{Keys, MOST_TO_SERVER};
use crate::proto::SECOND_NS;
use crate::proto::counters::Refusal;
use crate::proto::limit::{AllowList, Network};
use crate::proto::receiver::Sample;
use crate::proto::replay::{Replay, ReplayConfig};
use crate::proto::session::Session;
use crate::proto::wire::REQUEST_BYTES;
use crate::socket::{RECEIVE_SLOT_BYTES, wait_for_any};
use crate::spec::{BridgeSpec, Profile};
use crate::status::Board;
use crate::thread::{Clock, spawn};

/// How often a log is looked at that does not serve yet.
const LOOK_NS: u64 = SECOND_NS;
/// How often one is looked at that serves.
const LOOK_AGAIN_NS: u64 = 10 * SECOND_NS;

/// State that the thread and the receiver share.
#[derive(Debug)]
pub(crate) struct LogShared {
    stop: AtomicBool,
    feed: Mutex<Option<Feed>>,
    /// Grows with each feed.
    feeds: AtomicU64,
    word: Arc<LogWord>,
    counters: Board<LogCounters>,
    samples: Mutex<Vec<Sample>>,
}

impl LogShared {
    /// Notes that the receiver follows `session`, and that its channel has messages of it from `floor` on.
    pub(crate) fn follow(&self, session: Session, floor: u64) {
        *self.feed.lock().unwrap_or_else(PoisonError::into_inner) = Some(Feed { session, floor });
        self.feeds.fetch_add(1, Ordering::Release);
    }

    /// Notes messages as the lines brought them. Returns false, and does nothing, while others look at them: the lines do not wait.
    pub(crate) fn note_samples<'a>(&self, samples: impl Iterator<Item = &'a Sample>) -> bool {
        let Ok(mut kept) = self.samples.try_lock() else { return false };
        kept.clear();
        kept.extend(samples.cloned());
        true
    }

    /// Tells the log to stop serving. The receiver's port is soon another's.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    pub(crate) fn status(&self) -> LogStatus {
        LogStatus::of(&self.word, self.counters.read())
    }
}

/// The socket of a log that does not serve yet.
#[derive(Debug)]
pub(crate) struct LogSocket {
    socket: UdpSocket,
    pub(crate) address: SocketAddr,
}

impl LogSocket {
    /// Opens a port of the loopback interface, of the family of the receiver's other servers.
    pub(crate) fn open(servers: &[SocketAddr]) -> Result<LogSocket, BridgeError> {
        let is_v6 = servers.first().is_some_and(SocketAddr::is_ipv6);
        let here: IpAddr = if is_v6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() };
        let open = || {
            let socket = UdpSocket::bind((here, 0))?;
            socket.set_nonblocking(true)?;
            let address = socket.local_addr()?;
            Ok(LogSocket { socket, address })
        };
        open().map_err(|e: std::io::Error| {
            BridgeError::Start(std::io::Error::new(
                e.kind(),
                format!("a port for the log on {here}: {e}: is the loopback interface up?"),
            ))
        })
    }
}

/// A log that serves. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct LogRepair {
    shared: Arc<LogShared>,
    thread: Option<JoinHandle<()>>,
}

impl LogRepair {
    /// Starts the thread. It answers the receiver that asks from the port `asker`, and nobody else on this host: not everybody here
    /// may read the channel.
    pub(crate) fn start(
        spec: &BridgeSpec,
        source: LogSource,
        (socket, asker): (LogSocket, u16),
        (clock, keys): (Clock, Arc<Keys>),
    ) -> Result<LogRepair, BridgeError> {
        let LogSource { mut log, word } = source;
        let feed = Feed { session: Session::from_bytes([b' '; 10]), floor: u64::MAX };
        log.set_keys(keys.clone(), spec.takes_open());
        let title = spec.title();
        let host = Network::host(socket.address.ip());
        let default = ReplayConfig::default();
        // A sender may have larger packets than we send. The receiver takes them from a server too.
        let payload_bytes = match spec.receive_profile() {
            Profile::Plain => spec.payload_bytes.max(RECEIVE_SLOT_BYTES),
            Profile::Native => spec.payload_bytes,
        };
        let replay = ReplayConfig {
            payload_bytes,
            allow: AllowList::new(vec![host]),
            trust_allowed: true,
            // There is one source, and it is this process.
            source_rate: default.global_rate,
            ..default
        };
        let native = match spec.receive_profile() {
            Profile::Native => Some(NativeRepair::new(spec, 1, keys)?),
            Profile::Plain => None,
        };
        let shared = Arc::new(LogShared {
            stop: AtomicBool::new(false),
            feed: Mutex::default(),
            feeds: AtomicU64::new(0),
            word,
            counters: Board::default(),
            samples: Mutex::default(),
        });
        let of_lines = shared.clone();
        let fetch = move |Feed { session, floor }: Feed, first| {
            let samples = of_lines.samples.lock().unwrap_or_else(PoisonError::into_inner).clone();
            log.fetch(&LogLine { session, floor, samples: &samples }, first)
        };
        let disk = Disk::start(&format!("seek-{title}"), feed, fetch)?;
        let here = socket.address;
        let server = Server {
            out: Out { socket: socket.socket, groups: Groups::default(), tap: None, here },
            asker,
            inbox: Inbox::new(MOST_TO_SERVER),
            replay: Replay::new(replay),
            store: Store::of_log(disk, feed.floor),
            native,
            reply: vec![0; payload_bytes],
            feed: None,
            feeds: 0,
            look_ns: 0,
            counters: LogCounters::default(),
            clock,
            shared: shared.clone(),
        };
        let thread = spawn(&format!("log-{title}"), None, move || server.run())?;
        Ok(LogRepair { shared, thread: Some(thread) })
    }

    pub(crate) fn shared(&self) -> &Arc<LogShared> {
        &self.shared
    }

    pub(crate) fn stop(&self) {
        self.shared.stop();
    }
}

impl Drop for LogRepair {
    fn drop(&mut self) {
        self.stop();
        // It has nothing to tell. The thread that reads the log ends by itself as soon as the log lets it.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The thread's state.
struct Server {
    out: Out,
    asker: u16,
    inbox: Inbox,
    replay: Replay,
    store: Store,
    native: Option<NativeRepair>,
    reply: Vec<u8>,
    /// The feed that is served; `None` before the first session.
    feed: Option<Feed>,
    feeds: u64,
    /// When the log is looked at next, though nobody asks.
    look_ns: u64,
    counters: LogCounters,
    clock: Clock,
    shared: Arc<LogShared>,
}

impl Server {
    fn run(mut self) {
        while !self.shared.stop.load(Ordering::Relaxed) {
            self.follow();
            self.look();
            // An error here is an ICMP error about an earlier reply. It does not matter.
            while self.inbox.receive(&self.out.socket).is_ok_and(|received| received > 0) {
                self.answer_all();
                self.answer_waiting();
                self.follow();
                if self.shared.stop.load(Ordering::Relaxed) {
                    break;
                }
            }
            self.answer_waiting();
            self.show();
            wait_for_any(std::iter::once(self.out.socket.as_fd()).chain(self.store.bell()), LOOK_UP);
        }
        self.show();
    }

    /// Serves the session that the receiver follows.
    fn follow(&mut self) {
        let feeds = self.shared.feeds.load(Ordering::Acquire);
        if feeds != self.feeds {
            self.feeds = feeds;
            self.feed = *self.shared.feed.lock().unwrap_or_else(PoisonError::into_inner);
            self.look_ns = 0;
            if let Some(feed) = self.feed {
                self.store.begin(feed);
            }
        }
        if let Some(native) = &mut self.native {
            native.look(self.clock.now_ns(), None, false);
        }
    }

    /// Has the log looked at now and then, so that its state is known before it is needed.
    fn look(&mut self) {
        let now_ns = self.clock.now_ns();
        if self.feed.is_some() && now_ns >= self.look_ns {
            let is_serving = self.shared.word.state() == LogState::Serving;
            self.look_ns = now_ns + if is_serving { LOOK_AGAIN_NS } else { LOOK_NS };
            self.store.look();
        }
    }

    fn sent(&self) -> Option<Sent> {
        Some(Sent { session: self.feed?.session, next: MAX_SEQUENCE + 1 })
    }

    fn answer_all(&mut self) {
        let Some(sent) = self.sent() else { return };
        let now_ns = self.clock.now_ns();
        let Self { inbox, out, asker, replay, store, native, reply, counters, .. } = self;
        for datagram in inbox.datagrams() {
            if datagram.from.port() != *asker || datagram.from.ip().to_canonical() != out.here.ip() {
                counters.strangers += 1;
                continue;
            }
            match native {
                Some(native) => {
                    native.answer_asker(now_ns, &datagram, (&mut *replay, &mut *store, sent), out);
                }
                // Other datagrams of a receiver are about leases, of which there are none here.
                None if datagram.bytes.len() != REQUEST_BYTES => {}
                None => {
                    let with = (&mut *replay, &mut *store, sent);
                    let answered = answer(now_ns, (datagram.from, true), &datagram, with, reply);
                    out.answer(datagram.from, answered, reply);
                }
            }
        }
    }

    /// Answers the requests whose messages the log has brought, and lets it go on.
    fn answer_waiting(&mut self) {
        let Some(sent) = self.sent() else { return };
        let now_ns = self.clock.now_ns();
        let Self { out, replay, store, native, reply, .. } = self;
        store.take(now_ns);
        while let Some(request) = store.ready(now_ns) {
            match (request, &mut *native) {
                (Request::Plain { from, datagram }, _) => {
                    let with = (&mut *replay, &mut *store, sent);
                    let answered = answer_again(now_ns, (from, true), (&datagram, &request), with, reply);
                    if let Some(answered) = answered {
                        out.answer(from, answered, reply);
                    }
                }
                (Request::Native { from, session, entry, bytes }, Some(native)) => {
                    let (asked, with) = ((session, entry, bytes), (&mut *replay, &mut *store, sent));
                    native.answer_again(now_ns, (from, true), asked, with, out);
                }
                (Request::Native { .. }, None) => {}
            }
        }
        store.order(now_ns);
    }

    fn show(&mut self) {
        let (replay, past) = (self.replay.counters(), self.store.counters());
        self.counters = LogCounters {
            requests: replay.requests,
            messages: replay.messages,
            bytes: replay.repair_bytes,
            waited: past.waited,
            not_yet: past.not_yet,
            gone: replay.refused(Refusal::Gone),
            blocks: past.blocks,
            failed: past.errors,
            strangers: self.counters.strangers,
        };
        self.shared.counters.show(&self.counters);
    }
}
