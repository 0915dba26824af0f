//! The checks of a run: a record of the published messages, and a checker of a receiver's deliveries and
//! bounds.

use super::super::receiver::{Delivery, Receiver, ReceiverConfig};
use super::super::replay::Held;
use super::super::session::Session;
use super::super::wire::Meta;
use super::scenario::Journal;

/// The greatest difference between the times that two threads report for one message.
pub const CLOCK_JITTER_NS: u64 = 50;

/// The number of messages published in each session. The bytes of a message are computed from its session and sequence.
#[derive(Debug)]
pub struct History {
    pub published: Vec<u64>,
    /// The number of messages that each server's ring holds.
    pub ring_capacities: Vec<u64>,
    pub journal: Option<Journal>,
    pub max_message: usize,
}

impl History {
    pub(crate) fn session(&self, index: usize) -> Session {
        Session::of_channel("SIM", index as u64 + 7).unwrap()
    }

    pub(crate) fn index(&self, session: Session) -> usize {
        (session.epoch().expect("a session of this world") - 7) as usize
    }

    pub(crate) fn current(&self) -> usize {
        self.published.len() - 1
    }

    pub(crate) fn next(&self) -> u64 {
        self.published[self.current()] + 1
    }

    pub(crate) fn held(&self, server: usize) -> Held {
        let next = self.next();
        let oldest = next.saturating_sub(self.ring_capacities[server]).max(1);
        Held::of_ring(oldest, next)
    }

    /// Whether any server still has the message.
    pub(crate) fn holds(&self, index: usize, sequence: u64) -> bool {
        let mut servers = 0..self.ring_capacities.len();
        let is_recorded = self.journal.as_ref().is_some_and(|journal| journal.missing_to(sequence).is_none());
        index == self.current() && (is_recorded || servers.any(|server| sequence >= self.held(server).oldest))
    }

    pub(crate) fn message_size(&self, index: usize, sequence: u64) -> usize {
        let mixed = mix(index as u64, sequence);
        match mixed % 8 {
            0 => 0,
            1 => self.max_message,
            _ => (mixed >> 8) as usize % (self.max_message + 1),
        }
    }

    pub(crate) fn meta(&self, index: usize, sequence: u64) -> Meta {
        let mixed = mix(sequence, index as u64);
        let tag = if mixed.is_multiple_of(3) { 0 } else { mixed as u16 };
        // Several messages have the same time, and the next message is a little later.
        let time_ns = (1 << 60) + ((sequence / 3) << (mixed >> 60));
        Meta {
            tag,
            key: mixed.is_multiple_of(5),
            time_ns: if mixed.is_multiple_of(17) { 0 } else { time_ns },
        }
    }

    pub(crate) fn write_message(&self, index: usize, sequence: u64, into: &mut [u8]) -> Option<usize> {
        let size = self.message_size(index, sequence);
        let into = into.get_mut(..size)?;
        for (chunk, word) in into.chunks_mut(8).zip(mix(index as u64, sequence)..) {
            chunk.copy_from_slice(&word.to_be_bytes()[..chunk.len()]);
        }
        Some(size)
    }
}

pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mixed = (a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// Follows the deliveries of one receiver, across all its restarts.
#[derive(Debug, Default)]
pub struct Checker {
    pub session: Option<usize>,
    pub next: u64,
    pub ended: bool,
    pub may_give_up: bool,
    pub is_native: bool,
    pub delivered: u64,
    pub gap_messages: u64,
    pub joined_at: Vec<(usize, u64)>,
}

impl Checker {
    pub(crate) fn take(&mut self, delivery: Delivery<'_>, history: &History) {
        match delivery {
            Delivery::NewSession { session, next, previous } => {
                self.take_session((session, next), previous, history);
            }
            Delivery::Message { sequence, data, meta } => {
                self.take_message(sequence, data, meta, history);
            }
            Delivery::Gap { missing } => {
                let index = self.session.expect("a session is announced before its gaps");
                let is_next = missing.start == self.next && !missing.is_empty();
                assert!(is_next, "gap {missing:?} while {} is next", self.next);
                assert!(missing.end <= history.published[index] + 1, "a gap over what was never published");
                self.gap_messages += missing.end - missing.start;
                self.next = missing.end;
                for sequence in missing {
                    assert!(
                        self.may_give_up || !history.holds(index, sequence),
                        "gave up {sequence}, which is held"
                    );
                }
            }
            Delivery::End { session, next } => {
                assert_eq!(
                    (Some(history.index(session)), next),
                    (self.session, self.next),
                    "ended elsewhere"
                );
                assert!(!self.ended, "ended twice");
                self.ended = true;
            }
        }
    }

    fn take_session(
        &mut self,
        (session, next): (Session, u64),
        previous: Option<(Session, u64)>,
        history: &History,
    ) {
        let index = history.index(session);
        match (previous, self.session) {
            (Some((session, end)), Some(own)) => {
                assert_eq!((history.index(session), end), (own, self.next), "left the old session elsewhere");
                assert!(index > own && next == 1, "a later session starts at 1");
            }
            (None, None) => {}
            (previous, own) => panic!("announced {previous:?} while following {own:?}"),
        }
        self.joined_at.push((index, next));
        (self.session, self.next, self.ended) = (Some(index), next, false);
    }

    fn take_message(&mut self, sequence: u64, data: &[u8], meta: Meta, history: &History) {
        let index = self.session.expect("a session is announced before its messages");
        assert_eq!(sequence, self.next, "out of order or twice");
        assert!(sequence <= history.published[index], "was never published");
        let mut expected = vec![0; history.max_message];
        let is_marked = if self.is_native { history.meta(index, sequence) } else { Meta::default() };
        let told = |meta: Meta| (meta.tag, meta.key, meta.time_ns > 0);
        assert_eq!(told(meta), told(is_marked), "sequence {sequence} has other marks than were published");
        let late_ns = meta.time_ns.checked_sub(is_marked.time_ns);
        assert!(
            late_ns.is_some_and(|late_ns| late_ns <= CLOCK_JITTER_NS),
            "sequence {sequence}: {meta:?}, {is_marked:?}"
        );
        let size = history.write_message(index, sequence, &mut expected).unwrap();
        assert_eq!(data, &expected[..size], "sequence {sequence} has other bytes than were published");
        self.next += 1;
        self.delivered += 1;
    }
}

/// Checks the guarantees of a receiver from outside, after every step.
pub(crate) fn check_receiver(receiver: &Receiver, config: &ReceiverConfig, checker: &Checker) {
    check_backlog(receiver, config, config.gaps.max_holes + config.gaps.max_requests + 8);
    assert!(checker.session.is_none() || receiver.next() == checker.next, "next is not what was delivered");
}

/// Checks that a receiver stores no more than its bounds allow, and that its holes are exactly the missing messages.
pub(crate) fn check_backlog(receiver: &Receiver, config: &ReceiverConfig, max_holes: usize) {
    let (gaps, store) = receiver.backlog();
    assert!(store.reserved_bytes() <= config.max_early_bytes, "more bytes than allowed");
    assert!(store.packets() <= config.max_early_packets, "more packets than allowed");
    assert!(gaps.len() <= max_holes, "{} holes, at most {max_holes}", gaps.len());
    let counters = receiver.counters();
    let known = counters.totals.messages_delivered
        + counters.totals.messages_duplicate
        + counters.totals.messages_refused;
    assert_eq!(counters.totals.messages_received, known + store.messages(), "the counters do not add up");
    let mut holes = gaps.iter().peekable();
    let mut at = receiver.next();
    while let Some(missing) = store.next_missing(at, receiver.horizon()) {
        let mut covered = missing.start;
        while let Some((_, end)) = holes.next_if(|&(first, _)| first == covered) {
            covered = end;
        }
        assert_eq!(covered, missing.end, "holes do not cover what is missing in {missing:?}");
        at = missing.end;
    }
    assert_eq!(holes.next(), None, "a hole over what is there");
}
