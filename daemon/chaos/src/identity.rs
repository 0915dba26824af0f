//! The identity of a message, from which its length, bytes, marks and key follow.

use serde::{Deserialize, Serialize};

/// The identity of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// The publisher's number. A process that opens a channel again to publish counts as a new publisher, with a new number.
    pub publisher: u32,
    /// The number of the message among the messages of its publisher, from 0.
    pub counter: u32,
}

impl Identity {
    /// Returns the message that the publisher sends after this one.
    pub fn next(self) -> Self {
        Self { counter: self.counter.wrapping_add(1), ..self }
    }

    pub(crate) fn hash(self, salt: u64) -> u64 {
        mix(u64::from(self.publisher) << 32 | u64::from(self.counter), salt)
    }
}

/// Two rounds of the finalizer of splitmix64.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    for _ in 0..2 {
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}
