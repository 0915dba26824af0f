//! Additional tests after the end of a story, with separate daemons, users and hosts. Their separate random stream does not change the
//! earlier steps.

use super::Writer;
use crate::story::{Maker, Profile, Step, Trouble, Waiting};
use fastrand::Rng;

/// Makes the random stream of these tests differ from the other streams.
const SALT: u64 = 0x3c6e_f372_fe94_f82b;

impl Writer {
    /// Adds an additional test to some stories.
    pub(super) fn visit(&mut self, seed: u64) {
        self.random = Rng::with_seed(seed.wrapping_mul(8).wrapping_add(self.profile as u64) ^ SALT);
        let random = &mut self.random;
        let step = match (self.profile, random.u8(..6)) {
            (Profile::Daemon, 0) => Step::Outsider {},
            (Profile::Daemon, 1) => match random.u8(..4) {
                0 => Step::SlowStart {},
                1 => Step::SlowNames {},
                2 => Step::Store { others: [1, 100, 4100, 8000][random.usize(..4)] },
                _ => Step::Crowd { readers: random.u16(20..80) },
            },
            (Profile::Daemon, 2) if random.bool() => Step::Outlive { brief: true },
            (Profile::Daemon, 3) | (Profile::Files, 3) => {
                let waits = [Waiting::Sleep, Waiting::Sleep, Waiting::Yield, Waiting::Backoff];
                Step::Bereave { wait: waits[random.usize(..waits.len())] }
            }
            (Profile::Strict, 0) => Step::Inherit { brief: random.bool() },
            (Profile::Strict, 1) if random.bool() => Step::Withhold {},
            (Profile::Files, 2) => Step::Rush { readers: random.u16(60..120) },
            (Profile::Files, 1) if random.bool() => Step::Interrupted {},
            (Profile::Files, 0) => {
                let makers = [Maker::Nobody, Maker::User, Maker::Closed, Maker::Open];
                Step::Neighbours { maker: makers[random.usize(..makers.len())] }
            }
            (Profile::Bridge, 3) if random.bool() => {
                Step::Carry { trouble: Trouble::Idle, has_server: false }
            }
            (Profile::Bridge, 0..3) => {
                let troubles = [
                    Trouble::Prelude,
                    Trouble::Strangers,
                    Trouble::Impostor,
                    Trouble::Anew,
                    Trouble::Older,
                    Trouble::DeadServer,
                    Trouble::OtherMake,
                    Trouble::Requests,
                    Trouble::Crashes,
                ];
                let trouble = troubles[random.usize(..troubles.len())];
                let needs_server = matches!(
                    trouble,
                    Trouble::Older
                        | Trouble::DeadServer
                        | Trouble::OtherMake
                        | Trouble::Requests
                        | Trouble::Crashes
                );
                Step::Carry { trouble, has_server: needs_server || random.bool() }
            }
            _ => return,
        };
        self.steps.push(step);
    }
}
