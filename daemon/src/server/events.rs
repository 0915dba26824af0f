//! What happens, told to everybody whom it concerns: the log, and the programs that follow.
//!
//! A follower is told what happens on the channels that its user may read, what happens to its own user, and that the
//! configuration was loaded anew. Root and the daemon's own user are told everything.

use super::access::Identity;
use super::lines::Lines;
use crate::config::{Config, Principal};
use shmcast::Process;
use shmcast::control::{Event, Refusal};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::broadcast;

/// Where events go, and how often each refusal was given.
#[derive(Debug, Clone)]
pub struct Events(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    followers: broadcast::Sender<Event>,
    /// Events kept of the past.
    kept: usize,
    /// The user that this daemon runs as.
    daemon_uid: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    lines: Lines,
    refusals: HashMap<Refusal, u64>,
    /// Who may read each channel. Channels that are no longer there stay, for the word that they were removed.
    readers: HashMap<String, Vec<Principal>>,
    /// The last events, the oldest first.
    past: VecDeque<Event>,
}

impl Events {
    /// `queue` events are kept for those who ask for the past, and as many for a follower that is slow: then it loses the
    /// oldest, and is told how many.
    pub fn new(queue: usize, daemon_uid: u32) -> Self {
        let state = State {
            lines: Lines::new(Instant::now()),
            refusals: HashMap::new(),
            readers: HashMap::new(),
            past: VecDeque::new(),
        };
        let (kept, followers) = (queue.max(1), broadcast::Sender::new(queue.max(1)));
        Self(Arc::new(Inner { followers, kept, daemon_uid, state: Mutex::new(state) }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Maps and numbers: whole wherever somebody may have panicked.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over who may read which channel. To be called before `config` is put into force.
    pub fn admit(&self, config: &Config) {
        let mut state = self.state();
        for channel in &config.channels {
            let readers = channel.subscribers.iter().chain(&channel.publishers).cloned().collect();
            state.readers.insert(channel.name.clone(), readers);
        }
    }

    /// Up to `last` events of the past that concern `who`, the oldest first, and all that happens from then on, of which what
    /// [`concerns`](Self::concerns) `who` is to be passed on.
    pub fn follow(&self, who: &Identity, last: usize) -> (Vec<Event>, broadcast::Receiver<Event>) {
        let (past, follows) = {
            // Under the lock, so that an event is in one of the two.
            let state = self.state();
            let past = if last == 0 { Vec::new() } else { state.past.iter().cloned().collect() };
            (past, self.0.followers.subscribe())
        };
        let mut past: Vec<Event> =
            past.into_iter().rev().filter_map(|event| self.concerns(who, event)).take(last).collect();
        past.reverse();
        (past, follows)
    }

    /// What `who` is told of `event`: all of it, a part, or `None` if it is not this user's business.
    pub fn concerns(&self, who: &Identity, event: Event) -> Option<Event> {
        let is_own = event.process.as_ref().is_some_and(|process| process.uid == Some(who.uid));
        if shmcast::hosting::fault!("events_for_everybody")
            || is_own
            || who.is_named_by(&[], self.0.daemon_uid)
        {
            return Some(event);
        }
        match &event.channel {
            Some(channel) => {
                let state = self.state();
                let readers = state.readers.get(channel)?;
                who.is_named_by(readers, self.0.daemon_uid).then_some(event)
            }
            // Its detail names channels.
            None if event.event == "reloaded" => Some(Event { detail: None, ..event }),
            None => None,
        }
    }

    /// Tells an event. `who` and `channel` as far as it concerns one. Of what one user does more often than a log can take, the
    /// log has the sum; followers are told all of it.
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

    /// Counts a refusal, and tells it unless there are too many: then the log and the followers have the sum.
    pub fn refused(&self, code: Refusal, who: &Identity, channel: Option<&str>, why: &str) {
        let is_told = {
            let mut state = self.state();
            *state.refusals.entry(code).or_default() += 1;
            state.lines.admit(who.uid, code.name(), true, Instant::now())
        };
        if is_told || shmcast::hosting::fault!("refusals_fill_the_log") {
            log("refused", channel, None, Some(who), why);
            self.send("refused", channel, None, Some(who.process()), why);
        }
    }

    /// Tells how much was left out since the last time. To be called once a second.
    pub fn sum_up(&self) {
        let Some(summary) = self.state().lines.sum_up(Instant::now()) else { return };
        log("left-out", None, None, None, &summary.text());
        for (uid, what, count) in summary.named {
            let process = Process { pid: None, uid: Some(uid), command: None };
            let detail = format!("{what}: {count} times more than the log has lines for");
            self.send("left-out", None, None, Some(process), &detail);
        }
    }

    /// How often each reason was given.
    pub fn refusals(&self) -> HashMap<Refusal, u64> {
        self.state().refusals.clone()
    }

    fn send(
        &self,
        event: &str,
        channel: Option<&str>,
        role: Option<&str>,
        process: Option<Process>,
        detail: &str,
    ) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let event = Event {
            time_ns: since_1970.as_nanos() as u64,
            event: event.to_owned(),
            channel: channel.map(str::to_owned),
            role: role.map(str::to_owned),
            process,
            detail: Some(detail.to_owned()).filter(|detail| !detail.is_empty()),
        };
        let mut state = self.state();
        if state.past.len() == self.0.kept {
            state.past.pop_front();
        }
        state.past.push_back(event.clone());
        // Nobody following is no error.
        let _ = self.0.followers.send(event);
    }
}

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
        None => tracing::info!(event, channel, role, detail),
    }
}
