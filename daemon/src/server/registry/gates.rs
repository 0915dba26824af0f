//! The gates of channels. This module has their pages, which programs map, and reports what their publishers and readers do.

use super::channel::{Channel, Reader};
use super::{Events, Refused, Registry, failed};
use crate::server::access::{ConnectionId, Identity};
use crate::server::troubles::Troubles;
use shmcast::control::{GateReport, GateTerms, RefusalCode};
use shmcast::hosting::{Borrower, HostedGates, HostedSegment, LentGates};
use shmcast::{ChannelError, Process};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The shortest time between two events about a publisher that waited for the same gate.
const HELD_AGAIN: Duration = Duration::from_secs(10);

/// The directory with the pages of gates, and the last report about each gate.
#[derive(Debug)]
pub(super) struct Gates {
    dir: PathBuf,
    told: HashMap<(String, String), LastReport>,
    /// The channels to which this daemon has let in a publisher that has not been reported yet. The counts of such a publisher began at 0.
    fresh: HashSet<String>,
    /// The directory of each channel's gates, as it was found last. It stays open, so it is known under any name.
    found: HashMap<String, HostedGates>,
    /// The last report about gates that could not be examined.
    troubles: Mutex<Troubles>,
}

/// The counts of a gate when its events were last reported.
#[derive(Debug, Clone)]
struct LastReport {
    report: GateReport,
    held_at: Option<Instant>,
}

impl Gates {
    pub(super) fn at(dir: PathBuf) -> Self {
        Self {
            dir,
            told: HashMap::new(),
            fresh: HashSet::new(),
            found: HashMap::new(),
            troubles: Mutex::default(),
        }
    }

    /// Returns the present state of a channel's gates. These are the gates of its living publisher, which can differ from the
    /// configuration. Without a living publisher, the list is empty if the configuration has no gates.
    pub(super) fn of(&self, channel: &Channel) -> Vec<GateReport> {
        let is_gated = !channel.config.gates.is_empty() || channel.hosted().has_publisher().unwrap_or(false);
        if is_gated { channel.gates(self) } else { Vec::new() }
    }

    /// Reports what the channel's previous publisher did, and forgets its figures. Called when the next publisher is let in.
    pub(super) fn begin(&mut self, name: &str, channel: &Channel, events: &Events) {
        self.tell(name, channel, events, None);
        self.told.retain(|(of, _), _| of != name);
        self.fresh.insert(name.to_owned());
        self.find(name).iter().for_each(HostedGates::begin);
    }

    /// Finds the gates of a channel. An error that lasts is logged once a minute.
    fn find(&self, name: &str) -> Option<HostedGates> {
        HostedGates::find(&self.dir, name).unwrap_or_else(|e| {
            let trouble = Refused::failed("look at the gates of channels", &e).why;
            let news = self.troubles.lock().unwrap_or_else(PoisonError::into_inner).news(trouble);
            if let Some(news) = news {
                tracing::error!(channel = name, "{news}");
            }
            None
        })
    }

    /// Notes where the directory of a channel's gates is. If the directory has lost its name since the last call, removes its pages, so
    /// that their readers notice the loss. Returns whether it has lost its name.
    ///
    /// An earlier mistake: the pages of a directory that was moved kept their own names, so their readers were not told, and the next
    /// publisher did not wait for them.
    fn look_for_directory(&mut self, name: &str) -> bool {
        let Ok(now) = HostedGates::find(&self.dir, name) else { return false };
        let is_same = |before: &HostedGates| match &now {
            Some(now) => before.is(now).unwrap_or(true),
            None => false,
        };
        let before = self.found.get(name);
        if before.is_some_and(is_same) {
            return false;
        }
        if let Some(before) = before {
            before.disown();
        }
        match now {
            Some(now) => self.found.insert(name.to_owned(), now),
            None => self.found.remove(name),
        }
        .is_some()
    }

    /// Takes the gates of a channel from a reader of an earlier daemon that attaches again but is not allowed to read any more. `segment`
    /// proves that the program was a reader. A gate that this daemon has lent to a reader stays, because it cannot be this reader's gate.
    ///
    /// An earlier mistake: a program that had never read the channel was refused, and a reader with the same number in another PID namespace
    /// lost its gate.
    pub(super) fn withdraw_of_earlier(&self, channel: &Channel, who: &Identity, segment: &File) {
        let name = &channel.config.name;
        if who.pid == 0 || !HostedSegment::is_of(name, segment) {
            return;
        }
        let Some(gates) = self.find(name) else { return };
        for (gate, pid) in gates.claims() {
            let is_lent = channel.readers.values().any(|reader| reader.gates.contains(&gate));
            if !is_lent && u64::from(who.pid) == pid {
                gates.withdraw(&gate);
            }
        }
    }

    /// Removes the pages of channels that do not exist any more.
    pub(super) fn sweep(&self, is_channel: impl Fn(&str) -> bool) {
        HostedGates::sweep(&self.dir, is_channel);
    }

    /// Reports the gates for which the channel's publisher waited, and the gates that were dropped, since the last call. `now` is `None`
    /// for the last call about a publisher. This call reports everything, however short the time since the last report is.
    fn tell(&mut self, name: &str, channel: &Channel, events: &Events, now: Option<Instant>) {
        for report in self.of(channel) {
            let key = (name.to_owned(), report.terms.gate.clone());
            let is_fresh = self.fresh.contains(name);
            let before = self.told.entry(key).or_insert_with(|| {
                // The counts of a publisher that was just let in began at 0. The counts of an earlier publisher were reported by an earlier
                // daemon.
                let counted = report.clone();
                let report = if is_fresh { from_zero(counted) } else { counted };
                LastReport { report, held_at: None }
            });
            let news = GateChanges::since(&before.report, &report);
            let is_early =
                now.is_some_and(|now| before.held_at.is_some_and(|at| now.duration_since(at) < HELD_AGAIN));
            if let Some(dropped) = &news.dropped {
                events.tell("gate-dropped", Some(name), Some("reader"), None, dropped);
            }
            if let Some(claims) = &news.claims {
                events.tell("gate-disbelieved", Some(name), Some("reader"), None, claims);
            }
            let held = news.held.filter(|_| !is_early);
            if let Some(held) = &held {
                events.tell("gate-held", Some(name), Some("reader"), None, held);
                before.held_at = now;
            }
            // Increases that are not reported now are reported later.
            let kept = std::mem::replace(&mut before.report, report);
            if is_early {
                let GateReport { held, total_ns, refused, turned_away, .. } = kept;
                before.report = GateReport { held, total_ns, refused, turned_away, ..before.report.clone() };
            }
        }
        if self.told.keys().any(|(of, _)| of == name) {
            self.fresh.remove(name);
        }
    }

    /// Whether the living publisher of a channel uses other gates than the configuration has.
    pub(super) fn differ(&self, channel: &Channel) -> bool {
        channel.has_other_gates(self)
    }
}

impl Channel {
    /// Returns the present state of the gates, as their publisher and their readers report it.
    fn gates(&self, all: &Gates) -> Vec<GateReport> {
        let Some(gates) = all.find(&self.config.name) else { return Vec::new() };
        // The gate's page names a process, and its reader can write any number there. So the user and the command are shown only if the
        // kernel reports the process as an attached reader. Otherwise only the claimed number is shown.
        let process = |pid: u64| {
            let is_it = |process: &Process| process.pid.is_some_and(|known| u64::from(known) == pid);
            let known = self.readers.values().map(|reader| reader.who.process()).find(is_it);
            let claimed = u32::try_from(pid).ok().filter(|pid| *pid != 0);
            known.unwrap_or(Process { pid: claimed, uid: None, command: None })
        };
        gates.report(self.hosted(), process)
    }

    /// Whether the reader on this connection holds the gate that has this claim.
    ///
    /// The daemon knows which connection got the page. The number in the page is only a claim: any process can write it, and in another PID
    /// namespace it means another process. So the number counts only if several readers got the page, or if an earlier daemon lent it.
    ///
    /// An earlier mistake: a gate was taken from a reader in a container because another reader had the same number on this host.
    fn is_held_by(&self, (gate, pid): &(String, u64), reader: ConnectionId) -> bool {
        let Some(asked) = self.readers.get(&reader) else { return false };
        let mut borrowers = self.readers.iter().filter(|(_, reader)| reader.gates.contains(gate));
        let is_claimed = asked.who.pid != 0 && u64::from(asked.who.pid) == *pid;
        match (borrowers.next(), borrowers.next()) {
            (None, _) => is_claimed,
            (Some((borrower, _)), None) => *borrower == reader,
            (Some(_), Some(_)) => asked.gates.contains(gate) && is_claimed,
        }
    }

    /// Whether the living publisher uses other gates than the configuration has.
    fn has_other_gates(&self, all: &Gates) -> bool {
        let wanted = self.config.spec().gate_terms(&self.config.client_gates()).unwrap_or_default();
        let kept: Vec<GateTerms> = self.gates(all).into_iter().map(|gate| gate.terms).collect();
        kept != wanted && self.hosted().has_publisher().unwrap_or(false)
    }
}

impl Registry {
    /// Passes the pages of all gates of a channel to the publisher on this connection.
    ///
    /// # Errors
    /// [`Refused`] if the connection has no publisher, or with the system's error.
    pub fn lend_gates(&mut self, id: ConnectionId) -> Result<LentGates, Refused> {
        let is_its = |channel: &&Channel| channel.has_let_in(id);
        let Some(channel) = self.channels.values().find(is_its) else {
            return Err(Refused::new(
                RefusalCode::BadRequest,
                "gates are lent to publishers: attach as one first",
            ));
        };
        let gates =
            HostedGates::make(&self.gates.dir, &channel.config.name).map_err(failed("open the gates"))?;
        let lent = gates.for_publisher(&channel.config.client_gates(), channel.hosted());
        self.gates.found.entry(channel.config.name.clone()).or_insert(gates);
        lent.map_err(|e| match e {
            ChannelError::Os { source, .. } => failed("open the gates")(source),
            other => Refused::new(RefusalCode::Failed, other.to_string()),
        })
    }

    /// Returns the readers that hold gates of a channel. The channel is that of the publisher on the connection `id`. Each entry has the
    /// reader's connection, the channel's name and the reader's identity.
    pub fn gate_holders(&self, id: ConnectionId) -> Vec<(ConnectionId, String, Identity)> {
        let Some((name, channel)) = self.channels.iter().find(|(_, channel)| channel.has_let_in(id)) else {
            return Vec::new();
        };
        let Some(gates) = self.gates.find(name) else { return Vec::new() };
        let claims = gates.claims();
        let holds = |reader: &ConnectionId| claims.iter().any(|claim| channel.is_held_by(claim, *reader));
        let readers = channel.readers.iter().filter(|(reader, _)| holds(reader));
        readers.map(|(reader, Reader { who, .. })| (*reader, name.clone(), who.clone())).collect()
    }

    /// Takes the gates of a channel from the reader on this connection, which may no longer read the channel. Otherwise the next publisher
    /// would wait for the reader, which never gets the publisher's memory.
    pub fn withdraw_gates(&self, reader: ConnectionId, name: &str) {
        let (Some(channel), Some(gates)) = (self.channels.get(name), self.gates.find(name)) else { return };
        for claim in gates.claims().iter().filter(|claim| channel.is_held_by(claim, reader)) {
            gates.withdraw(&claim.0);
        }
    }

    /// Passes the page of a gate to the reader on this connection.
    ///
    /// # Errors
    /// [`Refused`] if the connection has no reader, if the channel has no such gate, or if the gate's list does not name the user.
    pub fn lend_gate(
        &mut self,
        id: ConnectionId,
        who: &Identity,
        gate: &str,
    ) -> Result<(GateTerms, [File; 2]), Refused> {
        let Some((name, channel)) =
            self.channels.iter_mut().find(|(_, channel)| channel.readers.contains_key(&id))
        else {
            return Err(Refused::new(
                RefusalCode::BadRequest,
                "a gate is lent to a reader: attach as one first",
            ));
        };
        let Some(config) = channel.config.gates.iter().find(|config| config.name == gate) else {
            let why =
                format!("channel {name:?} has no gate {gate:?}: add it to the configuration and reload");
            return Err(Refused::new(RefusalCode::UnknownGate, why));
        };
        if !who.is_named_by(&config.users, self.uid) {
            let why =
                format!("{who} may not have gate {gate:?} of channel {name:?}: add it to the gate's users");
            return Err(Refused::new(RefusalCode::Denied, why));
        }
        let terms = channel.config.spec().gate_terms(&channel.config.client_gates());
        let terms = terms.ok().and_then(|terms| terms.into_iter().find(|terms| terms.gate == gate));
        let terms =
            terms.ok_or_else(|| Refused::new(RefusalCode::Failed, "the gate does not fit the channel"))?;
        let borrower = match who.uid {
            _ if who.pid == std::process::id() => Borrower::Host,
            uid if uid == 0 || uid == self.uid => Borrower::Trusted,
            _ => Borrower::Stranger,
        };
        let what = "open the page of the gate";
        let folder = HostedGates::make(&self.gates.dir, name).map_err(failed(what))?;
        let page = folder.for_reader(gate, borrower).map_err(failed(what))?;
        self.gates.found.entry(name.clone()).or_insert(folder);
        if let Some(reader) = channel.readers.get_mut(&id) {
            reader.gates.insert(gate.to_owned());
        }
        Ok((terms, page))
    }

    /// Reports the gates for which publishers waited, and the gates that were dropped, since the last call. Call this once a second.
    pub fn tell_gates(&mut self, now: Instant) {
        let Self { channels, gates, events, .. } = self;
        gates.told.retain(|(name, _), _| channels.contains_key(name));
        gates.fresh.retain(|name| channels.contains_key(name));
        gates.found.retain(|name, _| channels.contains_key(name));
        for (name, channel) in channels.iter() {
            if gates.look_for_directory(name) {
                let what = "the folder of the channel's gates was removed or moved: the readers that hold gates are told, and are to take \
                            them again";
                events.tell("gates-lost", Some(name), Some("reader"), None, what);
            }
            gates.tell(name, channel, events, Some(now));
        }
        // A page stays if its reader still holds it when the channel's last program leaves.
        self.sweep_gates();
    }
}

/// The report of a gate whose publisher has done nothing yet.
fn from_zero(report: GateReport) -> GateReport {
    GateReport { held: 0, total_ns: 0, dropped: 0, refused: 0, turned_away: 0, impossible: 0, ..report }
}

/// The changes of a gate since its last report, as text.
struct GateChanges {
    held: Option<String>,
    dropped: Option<String>,
    claims: Option<String>,
}

impl GateChanges {
    fn since(before: &GateReport, now: &GateReport) -> Self {
        let gate = &now.terms.gate;
        // The counts of a new publisher begin at 0.
        let grown = |pick: fn(&GateReport) -> u64| {
            let (before, now) = (pick(before), pick(now));
            if now >= before { now - before } else { now }
        };
        let [held, total_ns] = [grown(|r| r.held), grown(|r| r.total_ns)];
        let refused = grown(|r| r.refused).saturating_add(grown(|r| r.turned_away));
        let [dropped, claims] = [grown(|r| r.dropped), grown(|r| r.impossible)];
        let behind =
            now.behind_bytes.map_or(String::new(), |bytes| format!("; its reader is {bytes} B behind now"));
        Self {
            held: (held + refused > 0).then(|| {
                let total_us = total_ns / 1000;
                let longest_us = now.longest_ns / 1000;
                format!(
                    "gate {gate} held up {held} messages for {total_us} us in all, the longest wait so far is {longest_us} us, and \
                     refused {refused}{behind}"
                )
            }),
            dropped: (dropped > 0).then(|| {
                let wait_us = now.terms.wait_ns / 1000;
                format!("gate {gate} was dropped {dropped} times after {wait_us} us: its reader may be lapped{behind}")
            }),
            claims: (claims > 0).then(|| {
                format!("the reader of gate {gate} claimed {claims} times what was not published yet: it is at fault, or means harm")
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(held: u64, dropped: u64, refused: u64) -> GateReport {
        GateReport {
            terms: GateTerms { gate: "risk".into(), lag_bytes: 1, wait_ns: 200_000, refuse: false },
            state: "in-force".into(),
            reader: None,
            behind_bytes: Some(64),
            behind_messages: Some(1),
            held,
            longest_ns: 3000,
            total_ns: 4000 * held,
            waits_ns: None,
            waits: Vec::new(),
            dropped,
            refused,
            turned_away: 0,
            impossible: 0,
        }
    }

    #[test]
    fn only_what_is_new_is_told_and_a_new_publisher_counts_from_zero() {
        let none = GateChanges::since(&report(5, 1, 2), &report(5, 1, 2));
        assert!(none.held.is_none() && none.dropped.is_none() && none.claims.is_none());
        let held = GateChanges::since(&report(5, 1, 2), &report(7, 1, 5)).held.unwrap();
        assert!(held.contains("held up 2 messages for 8 us in all") && held.contains("refused 3"), "{held}");
        let dropped = GateChanges::since(&report(5, 4, 0), &report(0, 1, 0)).dropped.unwrap();
        assert!(dropped.contains("was dropped 1 times after 200 us"), "{dropped}");
    }
}
