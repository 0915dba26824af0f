//! Events. Each event is written to the log and sent to the programs that follow events.
//!
//! A follower receives the events of the channels that its user may read, the events of its own user, and reloads of the configuration.
//! Root and the daemon's own user receive all events.

use super::access::Identity;
use super::lines::Lines;
use super::repeats::Repeats;
use crate::config::{Config, Principal};
use shmcast::Process;
use shmcast::control::{Event, RefusalCode};
use shmcast::hosting::fault;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// The event of a refused reload.
const RELOAD_REFUSED: &str = "reload-refused";

/// The event that replaces events which a follower did not read in time.
const LOST: &str = "lost";

/// The followers, the past events, and the number of refusals of each kind.
#[derive(Debug, Clone)]
pub struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    followers: broadcast::Sender<Event>,
    /// Number of past events that are kept.
    kept: usize,
    /// The user that this daemon runs as.
    daemon_uid: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    lines: Lines,
    repeats: Repeats,
    refusals: HashMap<RefusalCode, u64>,
    /// Whether the last reload was refused.
    is_reload_refused: bool,
    /// Users who may read each channel. A removed channel stays in the map, so that its readers still receive the event of its removal.
    readers: HashMap<String, Vec<Principal>>,
    /// The past events, oldest first.
    past: VecDeque<Event>,
}

impl Events {
    /// Keeps the last `queue` events, and as many unread events for each follower. A follower that is too slow loses the oldest events, and
    /// learns how many.
    pub fn new(queue: usize, daemon_uid: u32) -> Self {
        let state = State {
            lines: Lines::new(Instant::now()),
            repeats: Repeats::default(),
            refusals: HashMap::new(),
            is_reload_refused: false,
            readers: HashMap::new(),
            past: VecDeque::new(),
        };
        let (kept, followers) = (queue.max(1), broadcast::Sender::new(queue.max(1)));
        Self(Arc::new(Inner { followers, kept, daemon_uid, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The lock is used even if it is poisoned: the state is maps and numbers, which are consistent after a panic.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates the lists of the users who may read each channel. Call this when `config` takes effect, before an event is passed on to a
    /// follower.
    pub fn admit(&self, config: &Config) {
        let mut state = self.state();
        for channel in &config.channels {
            let readers = channel.subscribers.iter().chain(&channel.publishers).cloned().collect();
            state.readers.insert(channel.name.clone(), readers);
        }
    }

    /// Returns up to `last` past events that concern `who`, oldest first, and a receiver of all later events. Some of the later events
    /// concern other programs. The caller must pass on only the events that [`concern`](Self::concerns) `who`.
    pub fn subscribe(&self, who: &Identity, last: usize) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let (past, follows) = {
            // The past events and the receiver are taken under the lock, so that each event is in exactly one of them.
            let state = self.state();
            let past = if last == 0 { Vec::new() } else { state.past.iter().cloned().collect() };
            (past, self.0.followers.subscribe())
        };
        let mut past: Vec<Event> =
            past.into_iter().rev().filter_map(|event| self.concerns(who, event)).take(last).collect();
        past.reverse();
        (past, follows)
    }

    /// Returns the part of `event` that `who` is allowed to see; `None` if this is nothing.
    pub fn concerns(&self, who: &Identity, event: Event) -> Option<Event> {
        let is_own = event.process.as_ref().is_some_and(|process| process.uid == Some(who.uid));
        if fault!("events_for_everybody") || is_own || who.is_named_by(&[], self.0.daemon_uid) {
            return Some(event);
        }
        match &event.channel {
            Some(channel) => {
                let state = self.state();
                let readers = state.readers.get(channel)?;
                who.is_named_by(readers, self.0.daemon_uid).then_some(event)
            }
            // The detail names channels that this user is perhaps not allowed to see, so it is left out.
            None if event.event == "reloaded" => Some(Event { detail: None, ..event }),
            // The number counts events that this user is perhaps not allowed to see, so it is left out.
            None if event.event == LOST => {
                Some(Event { detail: Some("some events came faster than they were read".into()), ..event })
            }
            None => None,
        }
    }

    /// Reports an event. If the event concerns a channel or a program, `channel` and `who` name them. If a user causes too many events, the
    /// log has only their number. Followers receive all events.
    pub fn tell(
        &self,
        event: &'static str,
        channel: Option<&str>,
        role: Option<&str>,
        who: Option<&Identity>,
        detail: &str,
    ) {
        let is_told = |who: &Identity| self.state().lines.admit(who.uid, event, false, Instant::now());
        if who.is_none_or(is_told) {
            log(event, channel, role, who, detail);
        }
        self.send(event, channel, role, who.map(Identity::process), detail);
    }

    /// Reports a reload: its changes, or the reason why the old configuration stays in use.
    pub fn reloaded(&self, outcome: Result<&str, &str>) {
        self.state().is_reload_refused = outcome.is_err();
        match outcome {
            Ok(changes) => self.tell("reloaded", None, None, None, changes),
            Err(why) => {
                let detail = format!("the old configuration stays: {why}");
                tracing::warn!(event = RELOAD_REFUSED, detail);
                self.send(RELOAD_REFUSED, None, None, None, &detail);
            }
        }
    }

    /// Whether the last reload was refused.
    pub fn is_reload_refused(&self) -> bool {
        self.state().is_reload_refused
    }

    /// Counts a refusal, and reports it. If a user causes too many refusals, the log and the followers get only their number. A program that
    /// asks again and again for the same channel is reported once.
    pub fn refused(&self, code: RefusalCode, who: &Identity, channel: Option<&str>, why: &str) {
        let is_told = {
            let mut state = self.state();
            *state.refusals.entry(code).or_default() += 1;
            let now = Instant::now();
            let is_new =
                channel.is_none_or(|channel| state.repeats.is_new(&(who.pid, who.uid, channel, why), now));
            is_new && state.lines.admit(who.uid, code.name(), true, now)
        };
        if is_told || fault!("refusals_fill_the_log") {
            log("refused", channel, None, Some(who), why);
            self.send("refused", channel, None, Some(who.process()), why);
        }
    }

    /// Reports how many events of each user and kind were left out since the last call. Call this once a second.
    pub fn sum_up(&self) {
        let Some(summary) = self.state().lines.sum_up(Instant::now()) else { return };
        log("left-out", None, None, None, &summary.text());
        for (uid, what, count) in summary.named {
            let process = Process { pid: None, uid: Some(uid), command: None };
            let detail = format!("{what}: {count} times more than the log has lines for");
            self.send("left-out", None, None, Some(process), &detail);
        }
    }

    /// The number of refusals of each kind.
    pub fn refusals(&self) -> HashMap<RefusalCode, u64> {
        self.state().refusals.clone()
    }

    /// Makes the event that replaces `count` events which a follower did not read in time.
    pub fn lost(count: u64) -> Event {
        event(LOST, None, None, None, &format!("{count} events came faster than they were read"))
    }

    fn send(
        &self,
        what: &str,
        channel: Option<&str>,
        role: Option<&str>,
        process: Option<Process>,
        detail: &str,
    ) {
        let event = event(what, channel, role, process, detail);
        let mut state = self.state();
        if state.past.len() == self.0.kept {
            state.past.pop_front();
        }
        state.past.push_back(event.clone());
        // An error means only that nobody follows.
        let _ = self.0.followers.send(event);
    }
}

/// Makes an event that happens now.
fn event(
    what: &str,
    channel: Option<&str>,
    role: Option<&str>,
    process: Option<Process>,
    detail: &str,
) -> Event {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Event {
        time_ns: since_1970.as_nanos() as u64,
        event: what.to_owned(),
        channel: channel.map(str::to_owned),
        role: role.map(str::to_owned),
        process,
        detail: Some(detail.to_owned()).filter(|detail| !detail.is_empty()),
    }
}

/// Events that an operator must notice. Each one is logged as a warning.
const TROUBLES: [&str; 14] = [
    "bridge-failed",
    "bridge-keys-kept",
    "bridge-missed",
    "bridge-state-failed",
    "folder-anew",
    "folder-failed",
    "gate-dropped",
    "gates-lost",
    "journal-error",
    "journal-failed",
    "journal-hold-broken",
    "journal-lost",
    "journal-no-room",
    "journal-refused",
];

fn log(event: &str, channel: Option<&str>, role: Option<&str>, who: Option<&Identity>, detail: &str) {
    match who {
        Some(who) => tracing::info!(
            event,
            channel,
            role,
            pid = who.pid,
            uid = who.uid,
            command = who.command.as_deref(),
            detail,
        ),
        None if TROUBLES.contains(&event) => tracing::warn!(event, channel, role, detail),
        None => tracing::info!(event, channel, role, detail),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_loses_events_is_told_and_only_root_learns_how_many() {
        let events = Events::new(1, 1000);
        let who = |uid| Identity { pid: 1, uid, gid: uid, names: None, command: None };
        let detail = |uid| {
            let lost = events.concerns(&who(uid), Events::lost(4711)).expect("everybody is told");
            assert!(lost.event == "lost" && lost.time_ns > 0, "{lost:?}");
            lost.detail.expect("a detail")
        };
        assert!(detail(0).contains("4711") && detail(1000).contains("4711"));
        assert!(!detail(7).contains("4711") && detail(7).contains("some events"));
    }
}
