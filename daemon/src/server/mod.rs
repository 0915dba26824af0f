//! The daemon: owns channels, decides who may attach, watches, and is never on the data path.
//!
//! One thread runs it all; nothing here is fast and nothing needs to be. It may die at any time: programs that are
//! attached go on, and register again with the next one.

use crate::config::Config;
use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use shmcast::hosting::handoff;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::io::Interest;
use tokio::signal::unix::{SignalKind, signal};

pub mod access;
pub mod bridges;
mod connection;
pub mod events;
pub mod limits;
pub mod registry;
pub mod store;
pub mod waker;

use bridges::{Bridges, Supervisor};
use events::Events;
use limits::Limits;
use registry::Registry;
use store::Store;
use waker::Waker;

/// How long programs that were attached to a daemon that crashed have to come back before others are let in.
const GRACE: Duration = Duration::from_secs(2);

/// What all connections share.
#[derive(Debug)]
pub struct Shared {
    registry: Mutex<Registry>,
    limits: Mutex<Limits>,
    /// Where events are told.
    pub events: Events,
    /// The bridges to other hosts.
    pub bridges: Bridges,
    /// Grows with each start.
    pub instance: u64,
    /// When this daemon started.
    pub started: Instant,
    open_from: Instant,
}

impl Shared {
    /// The channels.
    pub fn registry(&self) -> MutexGuard<'_, Registry> {
        // Its methods leave it whole wherever they may panic.
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limits(&self) -> MutexGuard<'_, Limits> {
        self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the daemon finds its configuration and its socket.
#[derive(Debug, Clone)]
pub struct Options {
    /// The configuration file, for reloads.
    pub config_path: Option<PathBuf>,
    /// Where to listen, if not where the configuration says.
    pub socket: Option<PathBuf>,
}

/// Runs the daemon until SIGTERM or SIGINT.
///
/// # Errors
/// What kept it from starting. Once it listens it goes on whatever happens.
pub fn run(options: &Options) -> Result<()> {
    let config = load(options)?;
    let inherited = handoff::inherited();
    raise_descriptor_limit();
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the event loop")?
        .block_on(serve(options, config, inherited))
}

fn load(options: &Options) -> Result<Config> {
    match &options.config_path {
        Some(path) => Ok(Config::load(path)?),
        None => Ok(Config::default()),
    }
}

async fn serve(options: &Options, mut config: Config, inherited: Vec<(String, OwnedFd)>) -> Result<()> {
    let (segments, rest) = store::sort(inherited);
    let path = options.socket.clone().or_else(|| config.daemon.socket.clone()).unwrap_or_else(default_socket);
    let marker = path.with_extension("running");
    // Its predecessor ended without a word, and nobody kept its segments: those who hold them come first.
    let crashed = marker.exists() && segments.is_empty();
    let kept = segments.len();
    let (sockets, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(|(_, fd)| handoff::is_listener(fd));
    for (name, _) in others {
        tracing::error!(name, "the service manager passed neither a segment nor a listening socket");
    }
    let listener = match sockets.into_iter().next() {
        Some((_, listener)) => listener,
        None => listen(&path, config.daemon.socket_mode)?,
    };

    let events = Events::new(config.limits.events_queue as usize);
    let uid = nix::unistd::geteuid().as_raw();
    let waker = Waker::new(config.waker.clone()).context("make the waker's door")?;
    let mut registry = Registry::new(events.clone(), Store::of_service_manager(), waker, uid);
    registry.apply(&config, segments)?;
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Instant::now();
    let shared = Arc::new(Shared {
        registry: Mutex::new(registry),
        limits: Mutex::new(Limits::new(config.limits.clone())),
        events,
        bridges: Bridges::default(),
        instance: since_1970.as_nanos() as u64,
        started: now,
        open_from: if crashed { now + GRACE } else { now },
    });
    if let Some(address) = config.daemon.http {
        crate::metrics::spawn(address, shared.clone()).await?;
    }
    // After all that can fail: who has not served anybody leaves nobody to be waited for.
    if let Err(e) = fs::write(&marker, std::process::id().to_string()) {
        tracing::warn!("cannot write {}: {e}; after a crash, newcomers are not held back", marker.display());
    }
    warn(&config);
    spawn_watchdog();

    let (mut hang_up, mut terminate, mut interrupt) =
        (signal(SignalKind::hangup())?, signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let listener = connection::watch(listener).context("watch the control socket")?;
    let shown = path.display().to_string();
    let own = listener.local_addr().ok().and_then(|address| address.as_pathname().map(Path::to_owned));
    let supervisor =
        Supervisor::start(shared.clone(), own.unwrap_or(path)).context("start the bridges' thread")?;
    supervisor.carry(config.bridges.clone());
    sd_notify::notify(&[sd_notify::NotifyState::Ready])?;
    tracing::info!(socket = %shown, channels = config.channels.len(), kept, crashed, "ready");
    let mut next_id = 0;
    loop {
        tokio::select! {
            connection = listener.async_io(Interest::READABLE, || handoff::accept(&listener)) => match connection {
                Ok(socket) => {
                    next_id += 1;
                    tokio::spawn(connection::serve(shared.clone(), socket, next_id));
                }
                Err(e) => {
                    tracing::error!("cannot accept a connection: {e}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            _ = hang_up.recv() => reload(options, &shared, &supervisor, &mut config),
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    sd_notify::notify(&[sd_notify::NotifyState::Stopping])?;
    // Their clients' conversations are with this very loop: it goes on meanwhile.
    tokio::task::spawn_blocking(move || supervisor.stop()).await.context("stop the bridges")?;
    connection::settle().await;
    // Where nobody is attached, the next one has nobody to wait for.
    if !shared.registry().is_in_use() {
        let _ = fs::remove_file(&marker);
    }
    tracing::info!("stopped");
    Ok(())
}

fn reload(options: &Options, shared: &Shared, supervisor: &Supervisor, config: &mut Config) {
    let wanted = match load(options) {
        Ok(wanted) => wanted,
        Err(e) => {
            shared.events.tell(
                "reload-refused",
                None,
                None,
                None,
                &format!("the old configuration stays: {e:#}"),
            );
            return;
        }
    };
    let changes = shared.registry().apply(&wanted, Vec::new());
    shared.limits().reload(wanted.limits.clone());
    match changes {
        Ok(changes) => {
            let detail = format!(
                "added {:?}, removed {:?}, kept as made {:?}",
                changes.added, changes.removed, changes.kept
            );
            shared.events.tell("reloaded", None, None, None, &detail);
            warn(&wanted);
            supervisor.carry(wanted.bridges.clone());
            *config = wanted;
        }
        Err(e) => shared.events.tell("reload-refused", None, None, None, &format!("half way: {e:#}")),
    }
}

/// Where an ordinary user's daemon listens, and where the system's does.
fn default_socket() -> PathBuf {
    shmcast::Client::default_socket()
}

/// Listens at `path`; a socket that nobody answers is a leftover and is replaced.
fn listen(path: &Path, mode: u32) -> Result<OwnedFd> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).with_context(|| format!("create {}", dir.display()))?;
    }
    if path.exists() {
        match handoff::connect(path) {
            Ok(_) => {
                anyhow::bail!("a daemon listens at {} already: stop it, or give --socket", path.display())
            }
            Err(_) => {
                fs::remove_file(path).with_context(|| format!("remove the leftover {}", path.display()))?
            }
        }
    }
    let listener = handoff::listen(path).with_context(|| format!("listen at {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .with_context(|| format!("set the mode of {}", path.display()))?;
    Ok(listener)
}

/// A hundred readers hold a descriptor or two each here.
fn raise_descriptor_limit() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// Says what will be regretted, by this process's own limits: service managers clamp those without a word.
fn warn(config: &Config) {
    for warning in config.warnings() {
        tracing::warn!("configuration: {warning}");
    }
}

/// Tells the service manager that the loop turns, if it wants to know.
fn spawn_watchdog() {
    if let Some(limit) = sd_notify::watchdog_enabled() {
        tokio::spawn(async move {
            let mut tick = tokio::time::interval(limit / 3);
            loop {
                tick.tick().await;
                let _ = sd_notify::notify(&[sd_notify::NotifyState::Watchdog]);
            }
        });
    }
}
