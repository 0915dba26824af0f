//! The unreliable links of the simulation. A seed decides the fate of each datagram between two sockets.

use std::ops::Range;

/// The faults of a link. Shares are probabilities for one datagram.
#[derive(Debug, Clone, Default)]
pub struct Profile {
    pub loss: f64,
    /// The probabilities that a burst of losses begins, and that a burst ends.
    pub burst_begins: f64,
    pub burst_ends: f64,
    pub duplicate: f64,
    /// The chance that a datagram is delayed by at most `late_ns` while others overtake it.
    pub reorder: f64,
    pub late_ns: u64,
    pub corrupt: f64,
    pub delay_ns: u64,
    pub jitter_ns: u64,
    /// The times in which no datagram passes.
    pub blackouts: Vec<Range<u64>>,
}

/// One copy of a datagram that arrives, perhaps damaged.
#[derive(Debug)]
pub struct Arrival {
    pub at_ns: u64,
    pub bytes: Vec<u8>,
    pub sound: bool,
}

#[derive(Debug)]
pub struct Link {
    pub profile: Profile,
    in_burst: bool,
    last_ns: u64,
}

impl Link {
    pub(crate) fn new(profile: Profile) -> Link {
        Link { profile, in_burst: false, last_ns: 0 }
    }

    /// Sends a datagram. Returns the copies that arrive, at most two.
    pub(crate) fn send(&mut self, rng: &mut fastrand::Rng, now_ns: u64, bytes: &[u8]) -> Vec<Arrival> {
        let copies = 1 + usize::from(rng.f64() < self.profile.duplicate);
        let mut arrivals = Vec::with_capacity(copies);
        for _ in 0..copies {
            self.in_burst = match self.in_burst {
                true => rng.f64() >= self.profile.burst_ends,
                false => rng.f64() < self.profile.burst_begins,
            };
            let dark = self.profile.blackouts.iter().any(|dark| dark.contains(&now_ns));
            if dark || self.in_burst || rng.f64() < self.profile.loss {
                continue;
            }
            let mut at_ns = now_ns + self.profile.delay_ns + rng.u64(0..=self.profile.jitter_ns);
            if rng.f64() < self.profile.reorder {
                at_ns += rng.u64(0..=self.profile.late_ns);
            } else {
                at_ns = at_ns.max(self.last_ns + 1);
                self.last_ns = at_ns;
            }
            if rng.f64() >= self.profile.corrupt {
                arrivals.push(Arrival { at_ns, bytes: bytes.to_vec(), sound: true });
            } else if rng.bool() {
                // Half of the damaged datagrams arrive. The other half fail their UDP checksum, so the kernel drops them.
                arrivals.push(Arrival { at_ns, bytes: damage(rng, bytes), sound: false });
            }
        }
        arrivals
    }
}

/// Damages a datagram in a way that a parser can notice. Other damage is found by the UDP checksum.
fn damage(rng: &mut fastrand::Rng, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    match rng.u8(0..3) {
        0 => bytes.truncate(rng.usize(0..bytes.len().max(1))),
        1 => bytes.extend((0..rng.usize(1..40)).map(|_| rng.u8(..))),
        _ => bytes.iter_mut().take(1).for_each(|byte| *byte ^= 0x55),
    }
    bytes
}
