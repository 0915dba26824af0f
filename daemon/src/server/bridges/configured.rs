//! A bridge of the configuration: its state, the time of the next attempt after a failure, and its counters.
//!
//! This module starts no bridge; the supervisor does.

use crate::server::pauses::Pauses;
use serde_json::json;
use shmcast::control::BridgeStatus;
use shmcast_bridge::RunningEnd;
use shmcast_bridge::egress::{Egress, Stopped};
use shmcast_bridge::ingress::{Ingress, Latencies};
use shmcast_bridge::proto::counters::Histogram;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::spec::BridgeSpec;
use shmcast_bridge::status::{Latency, Life, Phase, ReceiveCounters, RepairCounters, SendCounters, Waiting};
use shmcast_engine::status::{ReceiveCounters as EngineReceiveCounters, SendCounters as EngineSendCounters};
use shmcast_engine::{Receiver, Sender};
use std::ops::Deref;
use std::time::{Duration, Instant};

/// Shortest time between two reports of the same kind about a bridge.
const NEWS_EVERY: Duration = Duration::from_secs(60);

/// A kind of report about a bridge. The tuple has the report's event, the growth of the counter that causes a report, the counter, and the
/// report's text.
type ReportKind<C> = (&'static str, u64, fn(&C) -> u64, &'static str);
const SEND_NEWS: [ReportKind<RepairCounters>; 3] = [
    (
        "bridge-told-stale",
        1,
        |c| c.serving.told_stale,
        "times a receiver said that it follows a later session of this channel",
    ),
    (
        "bridge-journal-failed",
        1,
        |c| c.journal.past.errors,
        "times the journal could not be read for repairs",
    ),
    (
        "bridge-journal-unusable",
        1,
        |c| c.journal.past.unusable,
        "times repairs were to come from the journal, and it is not that of this stream",
    ),
];
const LINE_NEWS: [ReportKind<SendCounters>; 5] = [
    ("bridge-missed", 1, |c| c.messages_missed, "messages were overwritten before they were sent"),
    (
        "bridge-line-anew",
        1,
        |c| c.lines_anew,
        "times a line was opened anew, as its interface was made anew or got another address",
    ),
    (
        "bridge-segments-refused",
        1,
        |c| c.segments_refused,
        "times the kernel refused packets in segments (UDP_SEGMENT) on a line; they leave one by one",
    ),
    (
        "bridge-state-anew",
        1,
        |c| c.state_renewed,
        "times the state file was removed or moved, and was made again",
    ),
    (
        "bridge-state-failed",
        1,
        |c| c.state_errors,
        "times the state file could not be written: the next start of the bridge knows less than what was sent",
    ),
];
const ENGINE_SEND_NEWS: [ReportKind<EngineSendCounters>; 6] = [
    (
        "bridge-engine-lost",
        1,
        |c| c.lost_by_engine,
        "messages that the servers had acknowledged were gone; they were sent again",
    ),
    (
        "bridge-successor",
        1,
        |c| c.successions,
        "times the stream ended with another publisher's messages, and this channel, which it never had, goes on behind them; the clock \
         was behind when the channel began",
    ),
    ("bridge-fenced", 1, |c| c.fenced, "times another bridge wrote the stream, and this one waits"),
    (
        "bridge-shut-out",
        1,
        |c| c.shut_out,
        "times the stream's last block did not open, so that nothing is written: somebody writes with other keys",
    ),
    ("bridge-engine-disconnected", 1, |c| c.disconnects, "times the connection to the servers broke"),
    ("bridge-missed", 1, |c| c.messages_missed, "messages were overwritten before they were sent"),
];
const ENGINE_NEWS: [ReportKind<EngineReceiveCounters>; 5] = [
    ("bridge-engine-lost", 1, |c| c.ends_moved, "times the servers had less than they had shown"),
    (
        "bridge-unsealed",
        1,
        |c| c.unopened,
        "blocks had no seal, or one that does not open with the keys here: somebody forges them, or a keys file is wrong",
    ),
    ("bridge-hole", 1, |c| c.holes, "times the stream lacked messages, and their writer was asked"),
    ("bridge-engine-disconnected", 1, |c| c.disconnects, "times the connection to the servers broke"),
    ("bridge-missed", 1, |c| c.messages_missing, "messages never came"),
];
const NEWS: [ReportKind<ReceiveCounters>; 8] = [
    ("bridge-missed", 1, |c| c.host.messages_missing, "messages never came"),
    (
        "bridge-other-feed",
        10,
        |c| c.feed.packets_stale + c.feed.packets_foreign + c.host.datagrams_locked_out,
        "packets of an older session, of another feed or from another host were dropped",
    ),
    (
        "bridge-contradicted",
        5,
        |c| c.feed.claims_contradicted,
        "claims of messages that do not exist were forgotten",
    ),
    (
        "bridge-forged",
        1,
        |c| c.host.forged,
        "packets had a seal that does not open: somebody forges them, or a keys file is wrong",
    ),
    (
        "bridge-unsealed",
        1,
        |c| c.host.unopened,
        "packets came without a seal, or with a key that is not in the keys file",
    ),
    ("bridge-lease-refused", 1, |c| c.host.leases_full, "times a server had no place for this bridge"),
    (
        "bridge-line-anew",
        1,
        |c| c.host.lines_anew,
        "times a line was opened anew, as its interface was made anew or got another address",
    ),
    (
        "bridge-line-rejoined",
        1,
        |c| c.host.lines_rejoined,
        "times a group was joined again, as its line was silent while the feed went on",
    ),
];

/// A bridge of the configuration.
#[derive(Debug)]
pub(super) struct ConfiguredBridge {
    pub(super) spec: BridgeSpec,
    /// The endpoint. An endpoint that has ended stays here until another one replaces it, because its counters are still shown.
    pub(super) endpoint: Option<Endpoint>,
    pub(super) state: State,
    /// The state of the earlier bridge that this bridge replaces. This bridge continues from that state.
    pub(super) after: Option<Stopped>,
    /// The reason why the bridge waits or has failed.
    pub(super) why: Option<String>,
    pub(super) session: Option<Session>,
    /// Whether it was reported that the bridge waits for its channel.
    is_away: bool,
    pub(super) started: Instant,
    pub(super) try_at: Instant,
    pauses: Pauses,
    told: ReportMarks,
}

/// The reason why a bridge does nothing after its channel was promoted.
pub(super) const PROMOTED: &str =
    "its channel is one of this host: to receive it again, remove this bridge, reload, add it, and reload";

/// One entry for each kind of report: the count at the last report, and the time of that report.
type ReportMarks = [(u64, Option<Instant>); NEWS.len()];

fn news_of<C>(
    kinds: &[ReportKind<C>],
    counters: &C,
    told: &mut [(u64, Option<Instant>)],
    now: Instant,
) -> Vec<(&'static str, String)> {
    let mut news = Vec::new();
    for ((event, least, count, what), (told, at)) in kinds.iter().zip(told) {
        // A bridge that was restarted counts from 0.
        *told = (*told).min(count(counters));
        let (more, is_soon) = (count(counters) - *told, at.is_some_and(|at| now - at < NEWS_EVERY));
        if more >= *least && !is_soon {
            (*told, *at) = (count(counters), Some(now));
            news.push((*event, format!("{more} {what}")));
        }
    }
    news
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waiting,
    Running,
    Failed,
    /// The bridge received a channel that was promoted to a channel of this host.
    Promoted,
    /// The bridge is no longer configured.
    Leaving,
}

/// The running part of a bridge: it sends or receives.
#[derive(Debug)]
pub(super) enum Endpoint {
    Send(Egress),
    Receive(Ingress),
    /// A bridge that sends through an engine.
    EngineSend(Sender),
    EngineReceive(Receiver),
}

/// The state of a bridge at one moment.
#[derive(Debug)]
pub struct BridgeFigures {
    /// The bridge's configuration.
    pub spec: BridgeSpec,
    /// The bridge's state: `waiting`, `running`, `listening`, `standby` while a peer sends, `ending`, `failed`, `promoted` or `leaving`.
    pub state: &'static str,
    /// The session that the bridge carries, if it is known.
    pub session: Option<Session>,
    /// The reason why the bridge waits or has failed.
    pub why: Option<String>,
    /// Settings that the kernel refused, and the reasons. The bridge runs without them.
    pub refusals: Vec<String>,
    /// The way in which the thread of the bridge waits, and the reason for it; `None` before the bridge has run.
    pub waiting: Option<Waiting>,
    /// The counters; `None` before the bridge has run for the first time.
    pub counted: Option<Counted>,
}

/// The counters of a bridge.
#[derive(Debug)]
pub enum Counted {
    /// A bridge that sends, and its retransmission server, if it has one.
    Send(Box<SendCounters>, Option<Box<RepairCounters>>),
    /// A bridge that receives, and the latencies that it has measured.
    Receive(Box<ReceiveCounters>, Latencies),
    /// A bridge that sends through an engine. The histogram has the time from each append to the engine's answer.
    EngineSend(Box<EngineSendCounters>, Histogram),
    /// A bridge that receives through an engine.
    EngineReceive(Box<EngineReceiveCounters>),
}

impl BridgeFigures {
    /// Returns the figures in the form that tools show.
    pub fn status(&self) -> BridgeStatus {
        let figures = match &self.counted {
            None => serde_json::Value::Null,
            Some(Counted::Send(send, repair)) => {
                json!({ "wait": self.waiting, "send": send, "repair": repair })
            }
            Some(Counted::Receive(counters, times)) => json!({
                "wait": self.waiting, "receive": counters, "recovery": Latency::from(&times.recovery),
                "receive_to_ring": Latency::from(&times.to_ring),
            }),
            Some(Counted::EngineSend(send, acks)) => {
                json!({ "engine": "nats", "send": send.shown(), "acks": Latency::from(acks) })
            }
            Some(Counted::EngineReceive(receive)) => json!({ "engine": "nats", "receive": receive }),
        };
        BridgeStatus {
            bridge: self.spec.title().to_owned(),
            channel: self.spec.channel.clone(),
            direction: if self.spec.send.is_some() { "send" } else { "receive" }.to_owned(),
            state: self.state.to_owned(),
            session: self.session.map(|session| session.to_string()),
            why: self.why.clone(),
            refusals: self.refusals.clone(),
            figures,
        }
    }
}

impl Deref for Endpoint {
    type Target = RunningEnd;

    fn deref(&self) -> &RunningEnd {
        match self {
            Self::Send(egress) => egress,
            Self::Receive(ingress) => ingress,
            Self::EngineSend(sender) => sender,
            Self::EngineReceive(receiver) => receiver,
        }
    }
}

impl Endpoint {
    /// Stops the endpoint of the bridge `name`. If the endpoint sends packets, returns the state from which another endpoint can continue.
    pub(super) fn into_stopped(self, name: &str) -> Option<Stopped> {
        let has_ended = self.is_finished();
        self.into_stopped_after(name, has_ended)
    }

    /// Does the same as [`into_stopped`](Self::into_stopped). `has_ended` says whether the endpoint had ended by itself before it was told to
    /// stop.
    fn into_stopped_after(self, name: &str, has_ended: bool) -> Option<Stopped> {
        // The error of an endpoint that ended by itself was reported when it ended.
        let stop = |end: &mut RunningEnd| {
            if !has_ended {
                end.stop();
                end.join();
                end.life().error().iter().for_each(|why| tracing::warn!(bridge = name, "{why}"));
            }
        };
        match self {
            Self::Send(egress) => return Some(egress.into_stopped()),
            // The log of the engine, or the ring of the received channel, shows the next endpoint where to continue.
            Self::Receive(mut ingress) => stop(&mut ingress),
            Self::EngineReceive(mut receiver) => stop(&mut receiver),
            Self::EngineSend(_) => {}
        }
        None
    }

    /// Tells the endpoint to end in an orderly way: it sends the remaining messages, serves repairs for a while, and stops. Its session
    /// continues.
    pub(super) fn leave(&self) {
        match self {
            Self::Send(egress) => egress.leave(),
            Self::EngineSend(sender) => sender.leave(),
            Self::Receive(_) | Self::EngineReceive(_) => self.stop(),
        }
    }
}

/// Stops the endpoints of all bridges, each with the name of its bridge. The endpoints stop at the same time.
pub(super) fn stop_all(endpoints: Vec<(String, Endpoint)>) {
    let have_ended: Vec<bool> = endpoints.iter().map(|(_, endpoint)| endpoint.is_finished()).collect();
    endpoints.iter().for_each(|(_, endpoint)| endpoint.stop());
    // Each call waits for the threads of its endpoint.
    for ((name, endpoint), has_ended) in endpoints.into_iter().zip(have_ended) {
        endpoint.into_stopped_after(&name, has_ended);
    }
}

impl ConfiguredBridge {
    pub(super) fn new(spec: BridgeSpec, after: Option<Stopped>, is_promoted: bool) -> Self {
        let now = Instant::now();
        Self {
            spec,
            endpoint: None,
            state: if is_promoted { State::Promoted } else { State::Waiting },
            after,
            why: is_promoted.then(|| PROMOTED.to_owned()),
            session: None,
            is_away: false,
            started: now,
            try_at: now,
            pauses: Pauses::default(),
            told: Default::default(),
        }
    }

    /// Returns the new reports, each as an event and its detail. Each kind is reported at most once per `NEWS_EVERY`.
    pub(super) fn news(&mut self) -> Vec<(&'static str, String)> {
        match &self.endpoint {
            Some(Endpoint::Receive(ingress)) => {
                news_of(&NEWS, &ingress.counters(), &mut self.told, Instant::now())
            }
            Some(Endpoint::Send(egress)) => {
                let (of_repairs, of_lines) = self.told.split_at_mut(SEND_NEWS.len());
                let now = Instant::now();
                let mut news = news_of(&SEND_NEWS, &egress.repair_counters(), of_repairs, now);
                news.extend(news_of(&LINE_NEWS, &egress.counters(), of_lines, now));
                news
            }
            Some(Endpoint::EngineSend(sender)) => {
                news_of(&ENGINE_SEND_NEWS, &sender.counters(), &mut self.told, Instant::now())
            }
            Some(Endpoint::EngineReceive(receiver)) => {
                news_of(&ENGINE_NEWS, &receiver.counters(), &mut self.told, Instant::now())
            }
            None => Vec::new(),
        }
    }

    /// If the bridge has begun to wait for its channel, says so once.
    pub(super) fn away_news(&mut self) -> Option<String> {
        let away = self.endpoint.as_ref().and_then(|endpoint| endpoint.life().away());
        let was_away = std::mem::replace(&mut self.is_away, away.is_some());
        away.filter(|_| !was_away)
    }

    pub(super) fn fail(&mut self, why: String) {
        (self.state, self.why) = (State::Failed, Some(why));
        self.try_at = Instant::now() + self.pauses.after(self.started.elapsed());
    }

    pub(super) fn figures(&self) -> BridgeFigures {
        let life = self.endpoint.as_ref().map(|endpoint| endpoint.life());
        let state = match self.state {
            State::Waiting => "waiting",
            State::Failed => "failed",
            State::Promoted => "promoted",
            State::Leaving => "leaving",
            State::Running if life.is_some_and(|life| life.phase() == Phase::Ending) => "ending",
            State::Running => "running",
        };
        let state = match &self.endpoint {
            Some(Endpoint::Send(egress)) if state == "running" && egress.counters().is_standing_by() => {
                egress.counters().part()
            }
            Some(Endpoint::EngineSend(sender)) if state == "running" && sender.counters().is_fenced == 1 => {
                "standby"
            }
            Some(
                Endpoint::Send(_)
                | Endpoint::Receive(_)
                | Endpoint::EngineSend(_)
                | Endpoint::EngineReceive(_),
            )
            | None => state,
        };
        let counted = self.endpoint.as_ref().map(|endpoint| match endpoint {
            Endpoint::Send(egress) => {
                let serves = self.spec.send.as_ref().is_some_and(|send| send.repair.is_some());
                let repair = serves.then(|| Box::new(egress.repair_counters()));
                Counted::Send(Box::new(egress.counters()), repair)
            }
            Endpoint::Receive(ingress) => Counted::Receive(Box::new(ingress.counters()), ingress.latencies()),
            Endpoint::EngineSend(sender) => Counted::EngineSend(Box::new(sender.counters()), sender.acks()),
            Endpoint::EngineReceive(receiver) => Counted::EngineReceive(Box::new(receiver.counters())),
        });
        let trouble = match self.endpoint.as_ref().filter(|_| self.state == State::Running) {
            Some(Endpoint::EngineSend(sender)) => sender.trouble().or_else(|| sender.life().away()),
            Some(Endpoint::EngineReceive(receiver)) => receiver.trouble(),
            Some(Endpoint::Receive(ingress)) => ingress.trouble(),
            Some(Endpoint::Send(egress)) => egress.life().away(),
            None => None,
        };
        BridgeFigures {
            spec: self.spec.clone(),
            state,
            session: life.and_then(Life::session),
            why: self.why.clone().or(trouble),
            refusals: life.map(|life| life.refusals.clone()).unwrap_or_default(),
            waiting: life.map(|life| life.waiting.clone()),
            counted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_news_is_told_once_in_a_while_and_all_of_it_in_the_end() {
        let (mut told, start) = (ReportMarks::default(), Instant::now());
        let counted = |stale, contradicted, full| {
            let mut counters = shmcast_bridge::status::Board::<ReceiveCounters>::default().read();
            (counters.feed.packets_stale, counters.feed.claims_contradicted) = (stale, contradicted);
            counters.host.leases_full = full;
            counters
        };
        let mut events = |counters, seconds| {
            let news = news_of(&NEWS, &counters, &mut told, start + Duration::from_secs(seconds));
            news.into_iter().map(|(event, what)| format!("{event} {}", &what[..what.find(' ').unwrap()]))
        };
        assert_eq!(events(counted(9, 4, 0), 0).count(), 0, "a few are no news");
        let both = ["bridge-other-feed 10", "bridge-lease-refused 1"];
        assert_eq!(events(counted(10, 4, 1), 1).collect::<Vec<_>>(), both);
        assert_eq!(events(counted(90, 5, 9), 2).collect::<Vec<_>>(), ["bridge-contradicted 5"]);
        let rest = ["bridge-other-feed 80", "bridge-lease-refused 8"];
        assert_eq!(events(counted(90, 5, 9), 70).collect::<Vec<_>>(), rest);
        assert_eq!(events(counted(20, 0, 0), 200).count(), 0, "started again");
        assert_eq!(events(counted(30, 0, 0), 201).collect::<Vec<_>>(), ["bridge-other-feed 10"]);
    }
}
