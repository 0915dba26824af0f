//! The daemon. It owns the channels, decides which programs may attach, and reports events. It is never on the data path.
//!
//! The daemon can die at any time. Attached programs continue without a daemon, and register with the next daemon when it starts.
//!
//! The daemon has these threads:
//!
//! | thread | task | waits for |
//! |---|---|---|
//! | event loop (the main thread) | signals, the control socket and all connections, metrics over HTTP, the watchdog | sockets, timers |
//! | a few for work that may block | make the memory of channels, look up users, read the configuration again and check it, check the daemon's files once a second, read journals for readers, promote channels, end the bridges and recorders | the system, the network |
//! | `shmcast-waker` | wakes parked readers (`waker`); starts with the first parked reader | their bells, short pauses |
//! | `bridges` | starts, watches and ends the bridges (`bridges`) | orders, 50 ms |
//! | one or two per bridge | messages and repairs between hosts (`shmcast_bridge`) | rings, sockets |
//! | `journal`, one per channel with a journal | starts, watches and ends its recorder; removes old files (`journals`) | 100 ms |
//! | `journal-drain`, `-write`, `-sync`, `-help` of each recorder | from the ring to the disk (`shmcast_journal`) | the ring, 200 us; the disk |
//!
//! Each step of the event loop is short. It never waits for a disk, a name service or another thread.

use crate::config::{Config, Host};
use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use sd_notify::NotifyState;
use shmcast::hosting::fault;
use shmcast::sys::handoff::{self, Inherited, MAX_INHERITED};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::Interest;
use tokio::net::UnixDatagram;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedReceiver};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, timeout};

pub mod access;
pub mod bridges;
pub mod charters;
mod connection;
pub mod events;
mod folder;
pub mod journals;
pub mod limits;
pub mod lines;
mod listen;
mod manager;
#[cfg(feature = "http")]
pub mod metrics;
mod pauses;
pub mod promoted;
pub mod registry;
mod reload;
mod repeats;
pub mod state;
pub mod store;
mod troubles;
pub mod waker;

use access::Access;
use bridges::{Bridges, Supervisor};
use charters::Charters;
use events::Events;
use folder::Folder;
use journals::{Journals, Recorders};
use limits::Limits;
use promoted::Promoted;
use registry::{Refused, Registry};
use reload::reload;
use state::{Newcomers, ServerState};
use store::{Kept, Store};
use waker::Waker;

/// The time for which new programs wait after a crash of the earlier daemon: two seconds in all. During this time, the programs of the
/// earlier daemon attach again. The time consists of many short pauses, so that most of it remains if this process itself is stopped for a
/// while.
const GRACE: [Duration; 20] = [Duration::from_millis(100); 20];
/// While memory is made, the daemon repeatedly asks the service manager for more time to start. Each request adds this time.
const GOES_ON: Duration = Duration::from_secs(60);

/// The time after which tokio ends an idle thread of its pool: never. If the system refuses a new thread, work waits for an existing
/// thread. Tokio would panic if there were no existing thread.
const THREADS_STAY: Duration = Duration::from_secs(u32::MAX as u64);
/// If connections were accepted without a failure for this long, the next failure is logged again.
const RECOVERED: Duration = Duration::from_secs(10);
/// When the daemon stops, it waits at most this long for recorders that are still starting.
const STARTING: Duration = Duration::from_secs(1);
/// When the daemon stops, publishers that have closed their channels have this time to disconnect.
const LEAVING: Duration = Duration::from_secs(1);

/// The paths of the daemon's configuration and socket.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file, for reloads.
    pub config_path: Option<PathBuf>,
    /// Path of the control socket; overrides the configuration.
    pub socket: Option<PathBuf>,
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// The reason why the daemon could not start.
pub fn run(options: &Options) -> Result<()> {
    let config = load(options)?;
    let inherited = handoff::inherited();
    raise_descriptor_limit();
    manager::reserve();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().thread_keep_alive(THREADS_STAY).build();
    let runtime = runtime.context("start the event loop")?;
    // Tokio panics if its first thread cannot be started. So this code starts a thread first, and turns a failure into an error.
    let first = std::thread::Builder::new().spawn(|| ());
    let first = first.context("start a thread: raise the limit on processes (ulimit -u, TasksMax)")?;
    let _ = first.join();
    let ended = runtime.block_on(serve(options, config, inherited));
    // A look-up in the user database can hang. It must not delay the exit.
    runtime.shutdown_background();
    ended
}

fn load(options: &Options) -> Result<Config> {
    match &options.config_path {
        Some(path) => Ok(Config::load(path)?),
        None => Ok(without_file()),
    }
}

fn without_file() -> Config {
    tracing::warn!(
        "no --config FILE: this daemon owns no channel until it has one; shmcastd --print-default-config prints an example"
    );
    Config::default()
}

/// SIGTERM and SIGINT, which both end the daemon in order.
struct EndSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl EndSignals {
    /// Completes when either signal arrives.
    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The signals that the daemon handles.
struct Signals {
    /// SIGHUP, which makes the daemon read its configuration again.
    hang_up: Signal,
    ends: EndSignals,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        let ends = EndSignals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        };
        Ok(Self { hang_up: signal(SignalKind::hangup())?, ends })
    }
}

/// The parts of the daemon that carry messages: the bridges and the recorders.
struct Carriers {
    supervisor: Supervisor,
    recorders: Recorders,
}

impl Carriers {
    /// Applies the configuration to the bridges and the recorders.
    fn apply(&mut self, config: &Config) {
        self.supervisor.apply(config.bridges_with_journals());
        self.recorders.apply(&config.channels);
    }
}

async fn serve(options: &Options, config: Config, inherited: Inherited) -> Result<()> {
    let path = options.socket.clone().or_else(|| config.daemon.socket.clone()).unwrap_or_else(default_socket);
    let marker = path.with_extension("running");
    let (segments, sockets) = sort(inherited);
    // If the marker exists and no segments were kept, the earlier daemon has crashed. Its programs have the segments, so they attach before
    // new programs.
    let crashed = marker.exists() && segments.is_empty();
    let kept = segments.len();
    let (listener, place) = match sockets.into_iter().next() {
        Some(listener) => (listener, None),
        None => listen::listen(&path, config.daemon.socket_mode).map(|(made, place)| (made, Some(place)))?,
    };
    let mut signals = Signals::listen()?;
    let uid = nix::unistd::geteuid().as_raw();
    let events = Events::new(config.limits.events_queue as usize, uid);
    events.admit(&config);
    let waker = Waker::new(config.waker.clone()).context("make the waker's door")?;
    let promoted = Promoted::beside(&path);
    let charters = Charters::at(&path.with_extension("charters"))?;
    let registry =
        Registry::new(charters, events.clone(), Store::of_service_manager(), waker, uid, promoted.clone());
    let shared = share(&config, events, uid, promoted);
    let listener = connection::watch(listener).context("watch the control socket")?;
    let own = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
    let (again, listeners) = mpsc::unbounded_channel();
    let accepting = tokio::spawn(accept(listener, listeners, shared.clone()));
    spawn_watchdog();
    spawn_housekeeping(shared.clone());
    let registry = tokio::select! {
        made = make(registry, config.clone(), segments) => made?,
        () = signals.ends.received() => return Ok(()),
    };
    // The metrics server needs the channels, which `open` makes available below. The server's task cannot run before that, because there is
    // no wait in between.
    #[cfg(feature = "http")]
    if let Some(address) = config.daemon.http {
        metrics::spawn(address, shared.clone()).await?;
    }
    let shown = path.display().to_string();
    let own = own.unwrap_or(path);
    let supervisor = Supervisor::start(shared.bridges.clone(), shared.events.clone(), own.clone())
        .context("start the bridges' thread")?;
    let recorders = Recorders::new(shared.journals.clone(), shared.events.clone(), own.clone());
    // The marker is written just before programs are served. A daemon that fails earlier has served no program, so the next daemon need not
    // wait for any program.
    let folder = Folder::new(&own, marker, place);
    folder.mark();
    shared.open(registry);
    let looking = tokio::spawn(folder.clone().keep(shared.clone(), again));
    admit_newcomers(shared.clone(), if crashed { &GRACE } else { &[] });
    warn(&config, false);
    let mut carriers = Carriers { supervisor, recorders };
    carriers.apply(&config);
    // If the service manager cannot be notified, the daemon ends. It ends in the usual order, so that it leaves no marker of a crash.
    let heard = manager::tell(&[NotifyState::Ready]);
    if heard.is_ok() {
        tracing::info!(socket = %shown, channels = config.channels.len(), kept, crashed, "ready");
        serve_until_stopped(options, &shared, &mut carriers, &config, &mut signals).await;
        tell_stopping();
    }
    wait_for_recorders(&shared).await;
    accepting.abort();
    looking.abort();
    stop(&shared, carriers, &folder).await?;
    Ok(heard?)
}

/// Follows the configuration, and looks after the recorders, until a signal to stop comes.
async fn serve_until_stopped(
    options: &Options,
    shared: &ServerState,
    carriers: &mut Carriers,
    started: &Config,
    signals: &mut Signals,
) {
    let mut looks = tokio::time::interval(Duration::from_secs(1));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = looks.tick() => carriers.recorders.retry_refused(),
            _ = signals.hang_up.recv() => tokio::select! {
                () = reload(options, shared, carriers, started) => {}
                // A signal to stop does not wait until the memory of added channels is made.
                () = signals.ends.received() => return,
            },
            () = signals.ends.received() => return,
        }
    }
}

/// Starts a task that waits for all `pauses`, one after the other. The task then accepts programs that were not attached to an earlier
/// daemon.
fn admit_newcomers(shared: Arc<ServerState>, pauses: &'static [Duration]) {
    tokio::spawn(async move {
        for pause in pauses {
            tokio::time::sleep(*pause).await;
        }
        shared.decide_on_newcomers(Newcomers::LetIn);
    });
}

/// Waits until the starting recorders have begun to record. Without this wait, a channel that was closed in an orderly way might have no
/// clean end in its journal. Call this only when new programs are accepted, because recorders are new programs themselves.
async fn wait_for_recorders(shared: &ServerState) {
    let until = Instant::now() + STARTING;
    let are_let_in = || *shared.newcomers.borrow() == Newcomers::LetIn;
    while are_let_in() && shared.journals.is_any_starting() && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Tells the service manager that this daemon stops.
fn tell_stopping() {
    if let Err(e) = manager::tell(&[NotifyState::Stopping]) {
        tracing::warn!("the service manager does not know that this daemon stops: {e}");
    }
}

/// Ends the bridges and the recorders. Then removes the marker, unless programs might attach again to the next daemon.
async fn stop(shared: &Arc<ServerState>, carriers: Carriers, folder: &Folder) -> Result<()> {
    // New programs that still wait are refused now. Recorders and bridges can be among them. If a program were let in, it could get new
    // memory for a channel, and then programs with the channel's old memory could not attach again.
    if !fault!("the_last_newcomers_are_let_in") {
        shared.decide_on_newcomers(Newcomers::SentAway);
    }
    // Bridges and recorders are clients of this event loop, so the loop must run while they end. A bridge publishes until it ends, so
    // bridges end first.
    let held = shared.clone();
    let ending = tokio::task::spawn_blocking(move || {
        carriers.supervisor.stop();
        let until = Instant::now() + LEAVING;
        carriers.recorders.stop(|channel| {
            while held.registry().is_left(channel) && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
            held.registry().hold(channel)
        })
    });
    // The holds last until the process ends. They keep publishers away, because nobody may publish after a journal has recorded a clean
    // end.
    let _holds = ending.await.context("stop the bridges and the recorders")?;
    connection::settle().await;
    if !shared.registry().is_needed() {
        folder.unmark();
    }
    tracing::info!("stopped");
    Ok(())
}

/// Sorts the descriptors that the service manager passed. Returns the segments and the listening sockets. Reports all other descriptors.
fn sort(inherited: Inherited) -> (Vec<Kept>, Vec<OwnedFd>) {
    for name in &inherited.beyond {
        tracing::error!(
            name,
            "the service manager passed more than {MAX_INHERITED} descriptors: this one is not used"
        );
    }
    let (segments, rest) = store::sort(inherited.descriptors);
    let (sockets, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, fd)| handoff::is_listener(fd));
    for (name, _) in others {
        tracing::error!(name, "the service manager passed neither a segment nor a listening socket");
    }
    (segments, sockets.into_iter().map(|(_, socket)| socket).collect())
}

fn share(config: &Config, events: Events, uid: u32, promoted: Promoted) -> Arc<ServerState> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let journals = Journals::default();
    Arc::new(ServerState {
        opened: OnceLock::new(),
        is_open: watch::Sender::new(false),
        newcomers: watch::Sender::new(Newcomers::Wait),
        memory_turn: tokio::sync::Mutex::new(()),
        limits: Mutex::new(Limits::new(config.limits.clone())),
        access: Access::new(uid),
        events,
        bridges: Bridges::new(promoted, journals.clone()),
        journals,
        instance: since_1970.as_nanos() as u64,
        started: SystemTime::now(),
    })
}

/// Makes the memory of all channels on another thread. Meanwhile the event loop answers greetings with `Starting`. On a busy machine, each
/// GiB takes seconds, so the service manager is asked for more time.
async fn make(mut registry: Registry, config: Config, segments: Vec<Kept>) -> Result<Registry> {
    let making = tokio::task::spawn_blocking(move || {
        journals::note_written(&config.channels);
        registry.start(&config, &segments).map(|()| registry)
    });
    tokio::pin!(making);
    loop {
        if let Ok(made) = timeout(GOES_ON / 3, &mut making).await {
            return made.context("make the memory of the channels")?;
        }
        let _ = manager::tell(&[NotifyState::ExtendTimeoutUsec(GOES_ON.as_micros() as u32)]);
    }
}

/// Accepts connections for ever. When `listeners` returns a new socket, accepts connections on this socket from then on.
async fn accept(
    mut listener: UnixDatagram,
    mut listeners: UnboundedReceiver<UnixDatagram>,
    shared: Arc<ServerState>,
) {
    // A lack of descriptors can last, so it is logged when it begins and when it has been over for a while.
    let mut failed: Option<Instant> = None;
    for id in 1.. {
        let socket = loop {
            let accepted = tokio::select! {
                accepted = listener.async_io(Interest::READABLE, || handoff::accept(&listener)) => accepted,
                Some(next) = listeners.recv() => {
                    listener = next;
                    continue;
                }
            };
            match accepted {
                Ok(socket) => break socket,
                Err(e) => {
                    if failed.replace(Instant::now()).is_none() {
                        tracing::error!("{}", Refused::failed("cannot accept connections", &e).why);
                    }
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        };
        if failed.is_some_and(|last| last.elapsed() > RECOVERED) {
            failed = None;
            tracing::info!("connections are accepted again");
        }
        connection::admit(&shared, socket, id);
    }
}

/// Returns the default path of the control socket. The system's daemon and a daemon of an ordinary user have different paths.
fn default_socket() -> PathBuf {
    shmcast::Client::default_socket()
}

/// Raises the limit on open descriptors to the hard limit. Each reader uses one or two descriptors of the daemon.
fn raise_descriptor_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Logs the warnings about a configuration. The warnings depend on this process, because a service manager might have lowered its limits.
/// At a reload, bridges can run already. This function looks up users, so it works on another thread.
fn warn(config: &Config, is_reload: bool) {
    let config = config.clone();
    tokio::task::spawn_blocking(move || {
        let host = Host { may_run_bridges: is_reload, ..Host::this() };
        for warning in config.warnings_on(&host) {
            tracing::warn!("configuration: {warning}");
        }
    });
}

/// Once a second, does the regular work: reports the counts of events that the log left out, forgets users who have left, and reports dead
/// publishers, full boards, and gates that delayed a publisher.
fn spawn_housekeeping(shared: Arc<ServerState>) {
    tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_secs(1));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            shared.events.sum_up();
            shared.limits().tidy(Instant::now());
            if shared.opened.get().is_some() {
                let mut registry = shared.registry();
                registry.tell_deaths();
                registry.tell_of_boards();
                registry.tell_gates(Instant::now());
            }
        }
    });
}

/// Notifies the service manager's watchdog from the event loop, if the watchdog is enabled.
fn spawn_watchdog() {
    if let Some(limit) = sd_notify::watchdog_enabled() {
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(limit / 3);
            loop {
                tick.tick().await;
                if let Err(e) = manager::tell(&[NotifyState::Watchdog]) {
                    tracing::error!("the service manager's watchdog is not fed: {e}");
                }
            }
        });
    }
}
