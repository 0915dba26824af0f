//! Keeps deliveries, in order and in bounded memory, while the local channel is being opened or a gate holds deliveries up.

use shmcast::GateName;
use std::collections::VecDeque;
use std::ops::Range;

use crate::proto::receiver::Delivery;
use crate::proto::session::Session;
use crate::proto::wire::Meta;

/// Bytes of one chunk of the backlog.
const CHUNK_BYTES: usize = 1 << 20;
/// The limit for the bytes in the backlog. Messages beyond this limit are dropped, and readers get a gap in their place.
const MAX_BYTES: usize = 64 << 20;

const MESSAGE: u8 = 0;
const GAP: u8 = 1;
const SESSION: u8 = 2;
const END: u8 = 3;

/// Deliveries that wait for the channel. An empty backlog uses no memory.
#[derive(Debug, Default)]
pub struct Backlog {
    chunks: VecDeque<Vec<u8>>,
    /// The number of bytes of the first chunk that [`pop`](Self::pop) has removed.
    read: usize,
    bytes: usize,
    /// The number of messages that were pushed and not popped. Dropped messages count until the gap in their place is popped.
    messages: u64,
    /// The range of the messages that were dropped after the last delivery in `chunks`, because the backlog was full. The range becomes a
    /// gap.
    lost: Option<Range<u64>>,
    /// The number of messages that were dropped in the range `lost`.
    dropped: u64,
}

impl Backlog {
    /// Whether no delivery waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty() && self.lost.is_none()
    }

    /// The number of received messages that wait, or that were dropped because the backlog was full.
    #[inline]
    pub fn messages(&self) -> u64 {
        self.messages
    }

    /// Names what waits, as a sentence about a bridge that ends. `held` is the gate that holds it up. Returns `None` if nothing waits.
    ///
    /// An earlier mistake: a gap or an end that waited without a message was not named.
    #[cold]
    pub fn unpublished(&self, held: Option<GateName>) -> Option<String> {
        let what = match (self.messages(), self.front()?) {
            (0, Delivery::End { .. }) => "the end of the stream and what follows".to_owned(),
            (0, Delivery::Gap { missing }) => {
                format!("the gap of the messages {} to {} and what follows", missing.start, missing.end - 1)
            }
            (0, Delivery::NewSession { session, .. }) => format!("the session {session} and what follows"),
            (messages, _) => format!("{messages} received messages"),
        };
        Some(match held {
            Some(gate) => {
                format!(
                    "{what} are not published: gate {gate} holds them up, and its reader is too far behind"
                )
            }
            None => format!("{what} are not published: the channel is not open"),
        })
    }

    /// Appends a copy of the delivery. If there is no room for a message, drops the message, and puts a gap in its place.
    pub fn push(&mut self, delivery: &Delivery<'_>) {
        self.messages += u64::from(matches!(delivery, Delivery::Message { .. }));
        match *delivery {
            Delivery::Message { sequence, data, meta } if self.bytes + data.len() < MAX_BYTES => {
                let marks = u64::from(meta.tag) | u64::from(meta.key) << 16;
                self.put_after_lost(MESSAGE, [sequence, marks, meta.time_ns], data);
            }
            Delivery::Message { sequence, .. } => {
                self.lose(sequence..sequence + 1);
                self.dropped += 1;
            }
            // Add further gaps to the range of dropped messages, because many separate gaps would use much memory.
            Delivery::Gap { ref missing } if self.bytes >= MAX_BYTES || self.lost.is_some() => {
                self.lose(missing.clone());
            }
            Delivery::Gap { ref missing } => self.put(GAP, [missing.start, missing.end, 0], &[]),
            // The field `previous` is not needed here.
            Delivery::NewSession { session, next, .. } => {
                self.put_after_lost(SESSION, [next, 0, 0], session.as_bytes());
            }
            Delivery::End { session, next } => self.put_after_lost(END, [next, 0, 0], session.as_bytes()),
        }
    }

    fn lose(&mut self, missing: Range<u64>) {
        let start = self.lost.as_ref().map_or(missing.start, |lost| lost.start);
        self.lost = Some(start..missing.end);
    }

    fn put_after_lost(&mut self, kind: u8, numbers: [u64; 3], data: &[u8]) {
        if let Some(lost) = self.lost.take() {
            let dropped = std::mem::take(&mut self.dropped);
            self.put(GAP, [lost.start, lost.end, dropped], &[]);
        }
        self.put(kind, numbers, data);
    }

    fn put(&mut self, kind: u8, numbers: [u64; 3], data: &[u8]) {
        let size = HEAD_BYTES + data.len();
        let has_room = |chunk: &Vec<u8>| chunk.len() + size <= chunk.capacity();
        if !self.chunks.back().is_some_and(has_room) {
            self.chunks.push_back(Vec::with_capacity(size.max(CHUNK_BYTES)));
        }
        let Some(chunk) = self.chunks.back_mut() else { return };
        chunk.push(kind);
        numbers.iter().for_each(|number| chunk.extend(number.to_ne_bytes()));
        chunk.extend((data.len() as u32).to_ne_bytes());
        chunk.extend(data);
        self.bytes += size;
    }

    /// Returns the first delivery. If only the gap in place of dropped messages is left, returns this gap.
    pub fn front(&self) -> Option<Delivery<'_>> {
        self.first().map(|(delivery, _)| delivery)
    }

    /// Returns the first delivery, and how many received messages it contains. For a gap, returns how many received messages it replaces.
    fn first(&self) -> Option<(Delivery<'_>, u64)> {
        let Some(chunk) = self.chunks.front() else {
            return self.lost.clone().map(|missing| (Delivery::Gap { missing }, self.dropped));
        };
        let rest = chunk.get(self.read..)?;
        let (kind, rest) = rest.split_first()?;
        let (a, rest) = rest.split_first_chunk()?;
        let (b, rest) = rest.split_first_chunk()?;
        let (c, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let data = rest.get(..u32::from_ne_bytes(*size) as usize)?;
        let [a, b, c] = [a, b, c].map(|number| u64::from_ne_bytes(*number));
        let session = || data.try_into().ok().map(Session::from_bytes);
        Some(match *kind {
            MESSAGE => {
                let meta = Meta { tag: b as u16, key: b >> 16 & 1 == 1, time_ns: c };
                (Delivery::Message { sequence: a, data, meta }, 1)
            }
            GAP => (Delivery::Gap { missing: a..b }, c),
            SESSION => (Delivery::NewSession { session: session()?, next: a, previous: None }, 0),
            _ => (Delivery::End { session: session()?, next: a }, 0),
        })
    }

    /// Drops the first delivery.
    pub fn pop(&mut self) {
        let Some((delivery, messages)) = self.first() else { return };
        let size = HEAD_BYTES
            + match delivery {
                Delivery::Message { data, .. } => data.len(),
                Delivery::Gap { .. } => 0,
                Delivery::NewSession { session, .. } | Delivery::End { session, .. } => {
                    session.as_bytes().len()
                }
            };
        self.messages -= messages;
        if self.chunks.is_empty() {
            (self.lost, self.dropped) = (None, 0);
            return;
        }
        self.read += size;
        self.bytes -= size;
        if self.chunks.front().is_some_and(|chunk| self.read >= chunk.len()) {
            self.chunks.pop_front();
            self.read = 0;
        }
    }
}

/// Bytes before a delivery's data: its kind, three numbers, and the length of the data.
const HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_comes_out_as_it_went_in() {
        let session = Session::of_channel("TEST", 3).unwrap();
        let data = vec![7; 60_000];
        let message = |sequence: u64| {
            let meta =
                Meta { tag: sequence as u16, key: sequence.is_multiple_of(3), time_ns: sequence << 40 };
            Delivery::Message { sequence, data: &data[..sequence as usize * 97 % 60_000], meta }
        };
        let all = || {
            let start = Delivery::NewSession { session, next: 1, previous: None };
            let end = [Delivery::Gap { missing: 500..900 }, Delivery::End { session, next: 900 }];
            std::iter::once(start).chain((1..500).map(message)).chain(end)
        };
        let mut backlog = Backlog::default();
        for _ in 0..2 {
            all().for_each(|delivery| backlog.push(&delivery));
            assert_eq!(backlog.messages(), 499);
            for delivery in all() {
                assert_eq!(backlog.front(), Some(delivery));
                backlog.pop();
            }
            assert!(backlog.is_empty() && backlog.bytes == 0 && backlog.front().is_none());
            assert_eq!(backlog.messages(), 0);
        }
    }

    /// An earlier mistake: if a session began after the backlog had dropped messages, no gap was put in place of the dropped messages.
    #[test]
    fn messages_beyond_the_bound_become_a_gap_and_all_else_is_kept() {
        let (mut backlog, data) = (Backlog::default(), vec![0; 1 << 16]);
        let message = |sequence| Delivery::Message { sequence, data: &data, meta: Meta::default() };
        let fit = (MAX_BYTES / (HEAD_BYTES + data.len())) as u64;
        (1..2_000).for_each(|sequence| backlog.push(&message(sequence)));
        // Gaps do not make the backlog grow.
        (2_000..9_000).for_each(|start| backlog.push(&Delivery::Gap { missing: start..start + 1 }));
        assert!(backlog.bytes < MAX_BYTES + 100);
        let session = Session::of_channel("TEST", 3).unwrap();
        backlog.push(&Delivery::NewSession { session, next: 9_001, previous: None });
        backlog.push(&Delivery::Gap { missing: 9_001..9_002 });
        backlog.push(&message(9_002));
        assert_eq!(backlog.messages(), 2_000, "dropped messages count, and gaps do not");
        for sequence in 1..fit + 1 {
            assert_eq!(backlog.front(), Some(message(sequence)));
            backlog.pop();
        }
        assert_eq!(backlog.messages(), 2_000 - fit);
        let rest = [
            Delivery::Gap { missing: fit + 1..9_000 },
            Delivery::NewSession { session, next: 9_001, previous: None },
            Delivery::Gap { missing: 9_001..9_002 },
            Delivery::Gap { missing: 9_002..9_003 },
        ];
        for delivery in rest {
            assert_eq!(backlog.front(), Some(delivery));
            backlog.pop();
        }
        assert!(backlog.is_empty() && backlog.bytes == 0 && backlog.front().is_none());
        assert_eq!(backlog.messages(), 0);
        backlog.push(&message(9_003));
        assert_eq!(backlog.front(), Some(message(9_003)), "there is room again");
    }

    #[test]
    fn all_that_waits_is_named() {
        let session = Session::of_channel("TEST", 3).unwrap();
        let (gap, end) = (Delivery::Gap { missing: 5..8 }, Delivery::End { session, next: 8 });
        let message = Delivery::Message { sequence: 8, data: b"m", meta: Meta::default() };
        let said = |all: &[&Delivery<'_>]| {
            let mut backlog = Backlog::default();
            all.iter().for_each(|delivery| backlog.push(delivery));
            backlog.unpublished(None).map(|said| said.split(" are not").next().unwrap_or_default().to_owned())
        };
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[&end]).as_deref(), Some("the end of the stream and what follows"));
        assert_eq!(said(&[&gap, &end]).as_deref(), Some("the gap of the messages 5 to 7 and what follows"));
        assert_eq!(said(&[&gap, &message, &end]).as_deref(), Some("1 received messages"));
    }
}
