//! The messages of a captured feed, as they are published.

use crate::cli::figures::grouped;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use shmcast::hosting::fault;
use shmcast::{Mark, Publisher};
use shmcast_bridge::pcap::unwrap::{HELD_PACKETS, Unwrap};
use shmcast_bridge::proto::receiver::Delivery;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Malformed;

/// The largest number of sessions in the summary for people. The next constant is the limit in JSON.
const SAID: usize = 8;
const NAMED: usize = 256;

/// A feed that is published.
pub(super) struct Unwrapped {
    unwrap: Unwrap,
    only: Option<Session>,
    sessions: Vec<Session>,
    more_sessions: u64,
    /// The number to add to a sequence of the feed to get the channel's sequence, modulo 2^64. It is not 0 if the channel already had later
    /// sequences than the feed.
    shift: u64,
    bytes: u64,
    /// Messages that could not be published.
    refused: u64,
}

impl Unwrapped {
    pub(super) fn new(only: Option<Session>) -> Self {
        Self {
            unwrap: Unwrap::new(only),
            only,
            sessions: Vec::new(),
            more_sessions: 0,
            shift: 0,
            bytes: 0,
            refused: 0,
        }
    }

    /// Publishes the messages that this datagram completes. `ahead` has the payloads of the datagrams that follow.
    pub(super) fn take(
        &mut self,
        datagram: &[u8],
        ahead: &mut dyn Iterator<Item = &[u8]>,
        publisher: &mut Publisher,
    ) -> Result<()> {
        self.deliver(publisher, |unwrap, sink| unwrap.take(datagram, ahead, sink))
    }

    /// Ends the capture: missing messages become gaps, and messages after them are published.
    pub(super) fn finish(&mut self, publisher: &mut Publisher) -> Result<()> {
        self.deliver(publisher, Unwrap::finish)
    }

    fn deliver(
        &mut self,
        publisher: &mut Publisher,
        act: impl FnOnce(&mut Unwrap, &mut dyn FnMut(Delivery<'_>)),
    ) -> Result<()> {
        let Self { unwrap, sessions, more_sessions, shift, bytes, refused, .. } = self;
        let mut failed = None;
        let mut sink = |delivery: Delivery<'_>| match delivery {
            Delivery::NewSession { session, next, .. } => {
                match sessions.len() {
                    NAMED => *more_sessions += 1,
                    _ if sessions.contains(&session) => {}
                    _ => sessions.push(session),
                }
                let told = publisher.session(*session.as_bytes());
                // Messages before the capture become a gap, so that the channel has the feed's own sequences.
                if let Err(e) = told.and_then(|()| publisher.gap(next - 1)) {
                    failed.get_or_insert((next, e));
                }
                *shift = publisher.next_sequence().wrapping_sub(next);
            }
            Delivery::Message { sequence, data, meta } => {
                match publisher.publish_with(data, Mark { tag: meta.tag, key: meta.key }) {
                    Ok(_) => *bytes += data.len() as u64,
                    Err(e) => {
                        *refused += 1;
                        failed.get_or_insert((sequence, e));
                    }
                }
            }
            Delivery::Gap { missing } => {
                if let Err(e) = publisher.gap((missing.end - 1).wrapping_add(*shift)) {
                    failed.get_or_insert((missing.end, e));
                }
                *shift = publisher.next_sequence().wrapping_sub(missing.end);
            }
            Delivery::End { .. } => {}
        };
        act(unwrap, &mut sink);
        match failed {
            None => Ok(()),
            Some((sequence, e)) => Err(e).with_context(|| format!("message {sequence} of the feed")),
        }
    }

    pub(super) fn messages(&self) -> u64 {
        self.unwrap.counters.messages - self.refused
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether the datagrams belonged to at least one session of a feed that was published.
    pub(super) fn has_feed(&self) -> bool {
        !self.sessions.is_empty()
    }

    /// Whether messages of the feed are missing or were left out. If the user chose a session, other sessions do not count.
    pub(super) fn has_lost(&self) -> bool {
        let counters = &self.unwrap.counters;
        let is_lost = counters.has_lost() || self.only.is_none() && counters.other_sessions > 0;
        is_lost && !fault!("far_packets_are_left_out_silently")
    }

    pub(super) fn describe(&self) -> String {
        let counters = &self.unwrap.counters;
        let mut text = match &self.sessions[..] {
            [] => "no session in it".to_owned(),
            sessions => format!("session {}", said(sessions, self.more_sessions)),
        };
        text += &format!(": {} messages", grouped(counters.messages));
        let too_late = format!(
            "messages LEFT OUT: they came more than {HELD_PACKETS} packets late, or before the first"
        );
        for (count, what) in [
            (counters.duplicates, "copies dropped"),
            (counters.reordered_packets, "packets put in order"),
            (counters.missing, "messages MISSING, a gap to readers"),
            (counters.late_messages, &too_late),
            (counters.implausible, "packets LEFT OUT: their sequences are far ahead, and no others agree"),
            (counters.stale, "packets LEFT OUT: their session had been left for the next one"),
            (
                counters.sealed,
                "packets LEFT OUT: they are sealed, and only a bridge with the keys opens them",
            ),
            (counters.refused, "messages LEFT OUT: there was no room for them"),
            (counters.controls, "control datagrams of a bridge"),
            (counters.requests, "requests of receivers"),
        ] {
            if count > 0 {
                text += &format!("; {} {what}", grouped(count));
            }
        }
        if counters.other_sessions > 0 {
            let others: Vec<Session> = self.unwrap.left_out().map(|(session, _)| session).collect();
            let (count, others) = (grouped(counters.other_sessions), said(&others, 0));
            let left_out = match self.only {
                Some(_) => "left out",
                None => "LEFT OUT: choose one with --unwrap=SESSION, or by --port",
            };
            text += &format!("; {count} packets of other sessions ({others}) {left_out}");
        }
        for reason in Malformed::ALL.into_iter().filter(|&reason| counters.malformed.of(reason) > 0) {
            let count = grouped(counters.malformed.of(reason));
            text += &format!("; {count} datagrams not MoldUDP64: {reason}");
        }
        if self.shift != 0 {
            let shift = self.shift.cast_signed();
            text +=
                &format!("; sequences of the channel are the feed's {shift:+}, as it had messages before");
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let counters = &self.unwrap.counters;
        let left: serde_json::Map<_, _> =
            self.unwrap.left_out().map(|(session, packets)| (session.to_string(), packets.into())).collect();
        json!({
            "sessions": self.sessions.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "messages": counters.messages, "duplicates": counters.duplicates,
            "reordered_packets": counters.reordered_packets, "missing": counters.missing,
            "late": counters.late_messages, "refused": counters.refused,
            "packets": counters.packets, "copies": counters.copies, "heartbeats": counters.heartbeats,
            "late_packets": counters.late, "other_sessions": counters.other_sessions, "left_sessions": left,
            "stale": counters.stale, "implausible": counters.implausible, "sealed": counters.sealed,
            "not_moldudp64": counters.malformed.total(), "damaged": counters.damaged,
            "controls": counters.controls, "requests": counters.requests,
            "sequence_shift": self.shift.cast_signed(),
        })
    }
}

fn said(sessions: &[Session], more: u64) -> String {
    let named: Vec<String> = sessions.iter().take(SAID).map(ToString::to_string).collect();
    match sessions.len().saturating_sub(SAID) as u64 + more {
        0 => named.join(", "),
        others => format!("{} and {} others", named.join(", "), grouped(others)),
    }
}
