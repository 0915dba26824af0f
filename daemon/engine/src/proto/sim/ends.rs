//! Both ends of a story: the published channel, and the ring that a reader fills. The ring checks each delivery.

use super::super::block::{Cut, Packing, max_whole_bytes};
use super::super::reader::Delivery;
use super::scenario::{BLOCK_BYTES, TROUBLED_NS};
use fastrand::Rng;
use shmcast_bridge::proto::native::keys::Keyring;
use shmcast_bridge::proto::session::Session;
use shmcast_bridge::proto::wire::Meta;
use std::ops::Range;

/// The published channel.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channel {
    pub(super) seed: u64,
    pub(super) messages: u64,
    /// The number of messages that the ring keeps, always the newest ones. With a journal, all messages are kept.
    pub(super) keeps: u64,
}

impl Channel {
    /// The keys of the channel's blocks. Every second story has keys.
    pub(super) fn keys(&self) -> Option<Keyring> {
        let keys = Keyring::parse("3 000102030405060708090a0b0c0d0e0f").expect("this is a key");
        self.seed.is_multiple_of(2).then_some(keys)
    }

    /// Returns the keys of a sender that was configured with other keys.
    pub(super) fn other_keys() -> Keyring {
        Keyring::parse("4 f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff").expect("this is a key")
    }

    pub(super) fn published(&self, now_ns: u64) -> u64 {
        (u128::from(self.messages) * u128::from(now_ns.min(TROUBLED_NS)) / u128::from(TROUBLED_NS)) as u64
    }

    pub(super) fn next(&self, now_ns: u64) -> u64 {
        self.published(now_ns) + 1
    }

    pub(super) fn oldest(&self, now_ns: u64) -> u64 {
        self.published(now_ns).saturating_sub(self.keeps) + 1
    }

    pub(super) fn message(&self, sequence: u64) -> (Vec<u8>, Meta) {
        let mut rng = Rng::with_seed(self.seed ^ sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let size = match rng.u8(..20) {
            0 => rng.usize(900..3_000),
            1 => 0,
            _ => rng.usize(..200),
        };
        let mut bytes = vec![0; size];
        rng.fill(&mut bytes);
        (bytes, Meta { tag: rng.u16(..3), key: rng.bool(), time_ns: 1_000 + sequence })
    }

    /// Returns a block that begins with the sequence `from`. If this message is sent in parts, the block begins with its byte `offset`.
    pub(super) fn cut(&self, now_ns: u64, from: u64, offset: usize, packing: &mut Packing) -> Cut {
        if from < self.oldest(now_ns) {
            return Cut::gap(from, self.oldest(now_ns) - 1);
        }
        packing.clear();
        for sequence in from..self.next(now_ns) {
            let (data, meta) = self.message(sequence);
            if data.len() > max_whole_bytes(BLOCK_BYTES) && sequence == from {
                return Cut::part(sequence, &data, meta, offset.min(data.len() - 1), BLOCK_BYTES);
            }
            if data.len() > max_whole_bytes(BLOCK_BYTES) || !packing.push(sequence, &data, meta) {
                break;
            }
        }
        packing.cut().expect("the first message fits an empty block")
    }
}

/// The reader's local ring, which survives the reader.
#[derive(Debug, Default)]
pub(super) struct Ring {
    pub(super) session: Option<Session>,
    pub(super) next: u64,
    /// The sequence that was due when the reader was started.
    pub(super) began: u64,
    pub(super) wrong: Option<String>,
    pub(super) parts: u64,
    pub(super) given_up: u64,
    /// The sequences that were reported as lost since the last check.
    pub(super) gaps: Vec<Range<u64>>,
    pub(super) sessions: u64,
}

impl Ring {
    /// Checks what the reader publishes.
    pub(super) fn take(&mut self, now_ns: u64, channel: &Channel, delivery: Delivery<'_>) {
        let wrong = match delivery {
            Delivery::Session { session, next } => {
                self.session = Some(session);
                self.sessions += 1;
                (next != self.next).then(|| format!("the session begins at {next}, {} is due", self.next))
            }
            Delivery::Message { sequence, data, meta } => {
                let is_right = sequence == self.next;
                let is_true = (data.to_vec(), meta) == channel.message(sequence);
                self.parts += u64::from(data.len() > BLOCK_BYTES);
                let due = std::mem::replace(&mut self.next, sequence + 1);
                match (is_right, is_true) {
                    (false, _) => Some(format!("message {sequence} came, {due} is due")),
                    (true, false) => Some(format!("message {sequence} has other bytes or marks")),
                    (true, true) => None,
                }
            }
            Delivery::Gap { missing } => {
                let due = std::mem::replace(&mut self.next, missing.end);
                self.given_up += missing.end - missing.start;
                let is_gone = missing.end <= channel.oldest(now_ns);
                self.gaps.push(missing.clone());
                (missing.start != due || !is_gone).then(|| format!("{missing:?} are given up, {due} is due"))
            }
            Delivery::End => None,
        };
        if self.wrong.is_none() {
            self.wrong = wrong;
        }
    }
}
