//! Starts and ends the daemon's bridges as configured, restarts failed ones, and reports them.
//!
//! This code has a thread of its own. When a bridge starts, it requests its channel from this daemon, as any program does. The daemon's
//! event loop must answer this request, so the event loop cannot start the bridge itself. The bridges' own threads send and receive the
//! messages.

mod configured;
mod matching;

use super::events::Events;
use super::journals::Journals;
use super::promoted::Promoted;
pub use configured::{BridgeFigures, Counted};
use configured::{ConfiguredBridge, Endpoint, PROMOTED, State};
use matching::Fate;
use shmcast::{Client, History, Preparation, Publisher, Role, Subscriber};
use shmcast_bridge::egress::{Egress, EgressOptions, Stopped};
use shmcast_bridge::ingress::{Ingress, IngressOptions};
use shmcast_bridge::origins::Origins;
use shmcast_bridge::promotion::{PromoteError, Promotion, most_after};
use shmcast_bridge::spec::{BridgeSpec, Direction, HistoryFrom};
use shmcast_engine::{Receiver, ReceiverOptions, Sender, SenderOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Interval between two checks of the bridges.
const LOOK: Duration = Duration::from_millis(50);

/// The state of each bridge, by its name. Clones share the same bridges.
#[derive(Debug, Clone)]
pub struct Bridges {
    configured: Arc<Mutex<BTreeMap<String, ConfiguredBridge>>>,
    /// Bridges that still run but are no longer configured.
    leaving: Arc<Mutex<Vec<ConfiguredBridge>>>,
    promoted: Promoted,
    journals: Journals,
}

impl Bridges {
    /// Makes an empty set of bridges.
    pub fn new(promoted: Promoted, journals: Journals) -> Bridges {
        Bridges { configured: Arc::default(), leaving: Arc::default(), promoted, journals }
    }

    fn configured(&self) -> MutexGuard<'_, BTreeMap<String, ConfiguredBridge>> {
        self.configured.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leaving(&self) -> MutexGuard<'_, Vec<ConfiguredBridge>> {
        self.leaving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a standby bridge take over from its peer.
    ///
    /// # Errors
    /// A sentence, if the bridge does not run, if it receives, or if it has no peers.
    pub fn take_over(&self, name: &str) -> Result<(), String> {
        match self.configured().get(name).and_then(|bridge| bridge.endpoint.as_ref()) {
            Some(Endpoint::Send(egress)) => egress.take_over().map_err(|e| e.to_string()),
            Some(Endpoint::EngineSend(sender)) => {
                sender.take_over();
                Ok(())
            }
            Some(Endpoint::Receive(_) | Endpoint::EngineReceive(_)) => {
                Err(format!("bridge {name:?} receives: it has nothing to take over"))
            }
            None => Err(format!("bridge {name:?} does not run: `shmcast bridge status` says why")),
        }
    }

    /// Promotes a received channel: it becomes a channel of this host, on which local programs may publish. Can block for some seconds.
    ///
    /// A promotion skips many sequences. If the channel has a journal, the journal first records the highest of these sequences durably, so
    /// that no sequence is used again after a loss of power.
    ///
    /// # Errors
    /// A sentence, if no bridge receives the channel, if that bridge does not run, if packets of the publisher's host still arrive, or if
    /// the journal does not record.
    pub fn promote(&self, channel: &str, force: bool) -> Result<Promotion, String> {
        let refused = |why: PromoteError| format!("channel {channel:?}: {why}");
        let mut below = u64::MAX;
        if self.journals.has(channel) {
            let promoter = self.with_ingress(channel, |_, ingress| Ok(ingress.promoter()))?;
            let most = most_after(promoter.next(force).map_err(refused)?);
            match self.journals.reserve(channel, most) {
                Ok(()) => below = most,
                Err(why) if force => {
                    tracing::error!(channel, "promoted though a power cut may give sequences again: {why}");
                }
                Err(why) => return Err(format!("channel {channel:?}: {why}: mend that, or use --force")),
            }
        }
        let promoter = self.with_ingress(channel, |state, ingress| {
            self.promoted.add(channel)?;
            // From now on, the supervisor neither watches nor restarts the bridge.
            *state = State::Promoted;
            Ok(ingress.promoter())
        })?;
        let promoted = promoter.promote(force, below);
        if let Some(bridge) = received(&mut self.configured(), channel) {
            match &promoted {
                Ok(_) => bridge.why = Some(PROMOTED.to_owned()),
                Err(_) => {
                    self.promoted.remove(channel);
                    // During the promotion, a reload might have replaced the bridge by another one. The new bridge has no endpoint yet, so
                    // it must still be started.
                    (bridge.state, bridge.why) = match bridge.endpoint {
                        Some(_) => (State::Running, None),
                        None => (State::Waiting, None),
                    };
                }
            }
        }
        promoted.map_err(refused)
    }

    /// Calls a function with the running bridge that receives a channel.
    fn with_ingress<T>(
        &self,
        channel: &str,
        run: impl FnOnce(&mut State, &Ingress) -> Result<T, String>,
    ) -> Result<T, String> {
        let mut configured = self.configured();
        let bridge = received(&mut configured, channel).ok_or_else(|| {
            format!("channel {channel:?} is no mirror: no bridge of the daemon receives it: publish on it, as shmcast pub does")
        })?;
        let name = bridge.spec.title();
        match (bridge.state, &bridge.endpoint) {
            (State::Promoted, _) => Err(format!(
                "channel {channel:?} is one of this host already: publish on it, as shmcast pub does"
            )),
            (State::Waiting | State::Failed | State::Leaving, _) | (State::Running, None) => {
                Err(format!("bridge {name:?} does not run: `shmcast bridge status` says why"))
            }
            (State::Running, Some(Endpoint::Receive(ingress))) => run(&mut bridge.state, ingress),
            (State::Running, Some(Endpoint::EngineReceive(_))) => Err(format!(
                "bridge {name:?} receives {channel:?} through an engine, and only a channel that comes by lines can be promoted: to \
                 publish it here, remove the bridge from the configuration and reload"
            )),
            (State::Running, Some(Endpoint::Send(_) | Endpoint::EngineSend(_))) => Err(format!(
                "bridge {name:?} sends {channel:?}: it is no mirror: publish on it, as shmcast pub does"
            )),
        }
    }

    /// Returns the channel of a bridge; `None` if there is no bridge of this name.
    pub fn channel_of(&self, name: &str) -> Option<String> {
        self.configured().get(name).map(|bridge| bridge.spec.channel.clone())
    }

    /// Returns the state and counters of all bridges in order of their names. The leaving bridges come last.
    pub fn figures(&self) -> Vec<BridgeFigures> {
        let mut figures: Vec<_> = self.configured().values().map(ConfiguredBridge::figures).collect();
        figures.extend(self.leaving().iter().map(ConfiguredBridge::figures));
        figures
    }
}

/// Finds the bridge that receives a channel.
fn received<'a>(
    configured: &'a mut BTreeMap<String, ConfiguredBridge>,
    channel: &str,
) -> Option<&'a mut ConfiguredBridge> {
    configured.values_mut().find(|bridge| bridge.spec.receive.is_some() && bridge.spec.channel == channel)
}

enum Order {
    Apply(Vec<BridgeSpec>),
    Stop,
}

/// The thread that starts and ends bridges.
#[derive(Debug)]
pub struct Supervisor {
    orders: mpsc::Sender<Order>,
    thread: JoinHandle<()>,
}

impl Supervisor {
    /// Starts the thread, which keeps `bridges` up to date and reports to `events`. `socket` is the path of this daemon's socket.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(bridges: Bridges, events: Events, socket: PathBuf) -> std::io::Result<Self> {
        let (orders, received) = channel();
        let work = Work { bridges, events, socket, origins: Origins::default() };
        let thread = std::thread::Builder::new().name("bridges".to_owned());
        let thread = thread.spawn(move || work.run(&received))?;
        Ok(Self { orders, thread })
    }

    /// Runs exactly these bridges from now on. A bridge that has not changed continues without interruption.
    pub fn apply(&self, bridges: Vec<BridgeSpec>) {
        // The thread receives until it is told to stop, so this send does not fail.
        let _ = self.orders.send(Order::Apply(bridges));
    }

    /// Stops all bridges. Their sessions do not end, because the next daemon continues them. Blocks for up to a second. If a bridge is just
    /// being started, blocks until the bridge has listened for other senders.
    pub fn stop(self) {
        let _ = self.orders.send(Order::Stop);
        if self.thread.join().is_err() {
            tracing::error!("the thread of the bridges panicked: please report this");
        }
    }
}

struct Work {
    bridges: Bridges,
    events: Events,
    socket: PathBuf,
    origins: Origins,
}

impl Work {
    fn run(mut self, orders: &mpsc::Receiver<Order>) {
        loop {
            match orders.recv_timeout(LOOK) {
                Ok(Order::Apply(bridges)) => self.apply(bridges),
                Err(RecvTimeoutError::Timeout) => {}
                Ok(Order::Stop) | Err(RecvTimeoutError::Disconnected) => break,
            }
            self.look();
        }
        let configured = std::mem::take(&mut *self.bridges.configured());
        let leaving = std::mem::take(&mut *self.bridges.leaving());
        let bridges = configured.into_values().chain(leaving);
        let endpoints = bridges.filter_map(|bridge| Some((bridge.spec.title().to_owned(), bridge.endpoint?)));
        configured::stop_all(endpoints.collect());
    }

    fn apply(&mut self, wanted: Vec<BridgeSpec>) {
        let (gone, mut stopped) = (self.keep_what_stays(&wanted), Vec::new());
        for (mut bridge, fate) in gone {
            let is_received =
                |spec: &BridgeSpec| spec.receive.is_some() && spec.channel == bridge.spec.channel;
            if bridge.state == State::Promoted && !wanted.iter().any(is_received) {
                self.bridges.promoted.remove(&bridge.spec.channel);
            }
            self.events.tell("bridge-removed", None, None, None, &format!("{:?}", bridge.spec.title()));
            if fate != Fate::Leaves {
                // This call waits for the endpoint's threads.
                let at = bridge.endpoint.take().and_then(|at| at.into_stopped(bridge.spec.title()));
                stopped.extend(at.or(bridge.after).map(|at| (bridge.spec, at)));
            } else if let Some(endpoint) = &bridge.endpoint {
                endpoint.leave();
                (bridge.state, bridge.why) = (State::Leaving, Some("it is no longer configured".to_owned()));
                self.bridges.leaving().push(bridge);
            }
        }
        let is_carried = |spec: &BridgeSpec| self.bridges.configured().contains_key(spec.title());
        let fresh: Vec<BridgeSpec> = wanted.into_iter().filter(|spec| !is_carried(spec)).collect();
        stopped.extend(self.make_way(&fresh));
        let mut configured = self.bridges.configured();
        for spec in fresh {
            self.events.tell("bridge-added", Some(&spec.channel), None, None, &format!("{:?}", spec.title()));
            let is_promoted = spec.receive.is_some() && self.bridges.promoted.contains(&spec.channel);
            let goes_on = |(old, _): &&(BridgeSpec, Stopped)| {
                old.channel == spec.channel && matching::is_in_the_way(old, &spec)
            };
            let after = stopped.iter().find(goes_on).map(|(_, at)| *at);
            let title = spec.title().to_owned();
            configured.insert(title, ConfiguredBridge::new(spec, after, is_promoted));
        }
    }

    /// Keeps the bridges that are still `wanted`, under their names in the new configuration. Returns all other bridges, each with its
    /// fate.
    fn keep_what_stays(&self, wanted: &[BridgeSpec]) -> Vec<(ConfiguredBridge, Fate)> {
        let mut configured = self.bridges.configured();
        let old: Vec<BridgeSpec> = configured.values().map(|bridge| bridge.spec.clone()).collect();
        let mut gone = Vec::new();
        let before = std::mem::take(&mut *configured).into_values();
        for (mut bridge, fate) in before.zip(matching::fates(&old, wanted)) {
            let Fate::Stays(at) = fate else {
                gone.push((bridge, fate));
                continue;
            };
            let (was, is) = (bridge.spec.title(), wanted[at].title());
            if was != is {
                let what = format!("{is:?}: was {was:?}");
                self.events.tell("bridge-renamed", Some(&bridge.spec.channel), None, None, &what);
            }
            bridge.spec = wanted[at].clone();
            self.reload_keys(&bridge);
            configured.insert(bridge.spec.title().to_owned(), bridge);
        }
        gone
    }

    /// Stops each leaving bridge that cannot run beside one of the `fresh` bridges. Returns the states from which the fresh bridges
    /// continue. If a leaving bridge still runs and its name is used again, the leaving bridge gets a name that no other bridge has.
    fn make_way(&self, fresh: &[BridgeSpec]) -> Vec<(BridgeSpec, Stopped)> {
        let is_in_the_way =
            |old: &ConfiguredBridge| fresh.iter().any(|new| matching::is_in_the_way(&old.spec, new));
        let (gone, mut left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut *self.bridges.leaving()).into_iter().partition(is_in_the_way);
        // This call waits for the threads of the leaving bridges.
        let stopped = gone.into_iter().filter_map(|ConfiguredBridge { spec, endpoint, .. }| {
            let at = endpoint?.into_stopped(spec.title())?;
            Some((spec, at))
        });
        let stopped = stopped.collect();
        let mut taken: BTreeSet<String> = self.bridges.configured().keys().cloned().collect();
        taken.extend(fresh.iter().map(|new| new.title().to_owned()));
        // A leaving bridge keeps its name if no other bridge has this name. Bridges that keep their names come first, so that no renamed
        // bridge gets one of these names.
        left.sort_by_key(|bridge| taken.contains(bridge.spec.title()));
        for bridge in &mut left {
            let title = matching::free_title(bridge.spec.title(), &taken);
            if title != bridge.spec.title() {
                bridge.spec.name.clone_from(&title);
            }
            taken.insert(title);
        }
        self.bridges.leaving().extend(left);
        stopped
    }

    /// Reads the keys file of a bridge again. Called when a reload of the configuration keeps the bridge. If the file is not valid, the
    /// previous keys stay in use.
    fn reload_keys(&self, bridge: &ConfiguredBridge) {
        let Some(endpoint) = bridge.endpoint.as_ref().filter(|_| bridge.spec.keys.is_some()) else { return };
        if let Err(e) = endpoint.reload_keys(&bridge.spec) {
            let channel = Some(bridge.spec.channel.as_str());
            let what = format!("{:?}: {e}", bridge.spec.title());
            self.events.tell("bridge-keys-kept", channel, None, None, &what);
        }
    }

    fn look(&mut self) {
        self.bridges.leaving().retain_mut(|bridge| self.note_leaving(bridge));
        self.bridges.promoted.renew();
        let mut due = Vec::new();
        {
            let mut configured = self.bridges.configured();
            for (name, bridge) in configured.iter_mut() {
                self.note(name, bridge);
            }
            let now = Instant::now();
            // A bridge that relays a received channel uses the session of that channel, so it waits until the channel has a session.
            let sources: BTreeMap<String, (String, bool)> = configured
                .values()
                .filter(|bridge| bridge.spec.receive.is_some() && bridge.state != State::Promoted)
                .map(|bridge| {
                    (bridge.spec.channel.clone(), (bridge.spec.title().to_owned(), bridge.session.is_some()))
                })
                .collect();
            let waits =
                |bridge: &&mut ConfiguredBridge| matches!(bridge.state, State::Waiting | State::Failed);
            for bridge in configured.values_mut().filter(waits) {
                let source = sources.get(&bridge.spec.channel).filter(|_| bridge.spec.send.is_some());
                match source {
                    Some((source, false)) => {
                        bridge.state = State::Waiting;
                        bridge.why = Some(format!("for the session that bridge {source:?} is to receive"));
                    }
                    _ if bridge.try_at <= now => due.push(bridge.spec.clone()),
                    _ => {}
                }
            }
        }
        // A bridge might listen for a while before it begins a session. The other bridges do not wait for it.
        std::thread::scope(|scope| {
            for spec in &due {
                let thread = std::thread::Builder::new().name("bridge-start".to_owned());
                if thread.spawn_scoped(scope, || self.start(spec)).is_err() {
                    self.start(spec);
                }
            }
        });
    }

    /// Reports what has changed about a leaving bridge since the last call. If the bridge has ended, reports how, and returns false.
    fn note_leaving(&self, bridge: &mut ConfiguredBridge) -> bool {
        let name = bridge.spec.title().to_owned();
        let end = bridge.endpoint.as_ref().filter(|endpoint| endpoint.is_finished());
        let end = end.map(|endpoint| endpoint.life().error());
        // After the end, the counters are final.
        self.tell_news(&name, bridge);
        let channel = Some(bridge.spec.channel.as_str());
        match end {
            None => return bridge.endpoint.is_some(),
            Some(Some(why)) => {
                let what = format!("{name:?} has left: {why}");
                self.events.tell("bridge-failed", channel, None, None, &what);
            }
            Some(None) => self.events.tell("bridge-left", channel, None, None, &format!("{name:?}")),
        }
        false
    }

    /// Reports the counters of a bridge that have grown.
    fn tell_news(&self, name: &str, bridge: &mut ConfiguredBridge) {
        let away = bridge.away_news().map(|why| ("bridge-channel-away", why));
        for (event, what) in bridge.news().into_iter().chain(away) {
            let channel = Some(bridge.spec.channel.as_str());
            self.events.tell(event, channel, None, None, &format!("{name:?}: {what}"));
        }
    }

    /// Reports what has changed about a bridge since the last call.
    fn note(&self, name: &str, bridge: &mut ConfiguredBridge) {
        self.tell_news(name, bridge);
        let events = &self.events;
        let Some(endpoint) = bridge.endpoint.as_ref().filter(|_| bridge.state == State::Running) else {
            return;
        };
        let channel = Some(bridge.spec.channel.as_str());
        let session = endpoint.life().session();
        if session != bridge.session {
            bridge.session = session;
            if let Some(session) = session {
                let detail = format!("{name:?}: {session}{}", endpoint.life().beginning());
                events.tell("bridge-session", channel, None, None, &detail);
            }
        }
        if endpoint.is_finished() {
            let why = endpoint.life().error().unwrap_or_else(|| "it ended by itself".to_owned());
            events.tell("bridge-failed", channel, None, None, &format!("{name:?}: {why}"));
            bridge.fail(why);
        }
    }

    fn start(&self, spec: &BridgeSpec) {
        let name = spec.title().to_owned();
        let (before, after) = match self.bridges.configured().get_mut(&name) {
            Some(bridge) => (bridge.endpoint.take(), bridge.after.take()),
            None => return,
        };
        // The earlier endpoint has ended, and was kept only for its counters.
        let after = after.or(before.and_then(|at| at.into_stopped(&name)));
        let started = self.open(spec, after);
        let mut configured = self.bridges.configured();
        let Some(bridge) = configured.get_mut(&name) else { return };
        let channel = Some(spec.channel.as_str());
        match started {
            Ok(endpoint) => {
                for refusal in &endpoint.life().refusals {
                    tracing::warn!(bridge = name, "{refusal}");
                }
                self.events.tell("bridge-started", channel, None, None, &format!("{name:?}"));
                (bridge.state, bridge.why, bridge.started) = (State::Running, None, Instant::now());
                bridge.endpoint = Some(endpoint);
            }
            Err(e) => {
                let why = e.to_string();
                if bridge.why.as_ref() != Some(&why) {
                    self.events.tell("bridge-failed", channel, None, None, &format!("{name:?}: {why}"));
                }
                (bridge.started, bridge.after) = (Instant::now(), after);
                bridge.fail(why);
            }
        }
    }

    fn open(&self, spec: &BridgeSpec, after: Option<Stopped>) -> anyhow::Result<Endpoint> {
        let client = Client::at(&self.socket)?;
        let origins = self.origins.clone();
        let publisher = || Publisher::builder(&spec.channel).client(&client).prepare(Preparation::FULL);
        let reader = || Subscriber::builder(&spec.channel).client(&client).role(Role::Bridge);
        let nats = spec.nats();
        Ok(match spec.direction() {
            Some(Direction::Receive(_)) if nats.is_some() => {
                let options = ReceiverOptions { origins, ..ReceiverOptions::default() };
                Endpoint::EngineReceive(Receiver::start(spec, publisher(), options)?)
            }
            Some(Direction::Send(_)) if nats.is_some() => {
                let channel = reader().history(history(nats.map(|nats| &nats.history)));
                let options = SenderOptions { origins, ..SenderOptions::default() };
                Endpoint::EngineSend(Sender::start(spec, channel, options)?)
            }
            Some(Direction::Receive(_)) => {
                let options = IngressOptions { origins, ..IngressOptions::default() };
                Endpoint::Receive(Ingress::start(spec, publisher(), options)?)
            }
            Some(Direction::Send(_)) | None => {
                let repair = spec.send.as_ref().and_then(|send| send.repair.as_ref());
                let history = history(repair.map(|repair| &repair.history));
                let channel = reader().history(history);
                let options = EgressOptions { origins, after, ..EgressOptions::default() };
                Endpoint::Send(Egress::start(spec, channel, options)?)
            }
        })
    }
}

/// Returns the journal with the messages that the ring no longer has. The daemon reads the journal itself, even if it does not pass the
/// files to programs. Live messages need no journal, so a bridge can start even if the journal's directory does not exist.
fn history(from: Option<&HistoryFrom>) -> History {
    match from {
        Some(HistoryFrom::Dir(dir)) => History::DirIfThere(dir.clone()),
        Some(HistoryFrom::Channel(_)) | None => History::Never,
    }
}
