//! The wait of the sending thread for its ring. Answers of servers take longer than any of its pauses.

use shmcast_bridge::spec::WaitMode;
use shmcast_bridge::status::Waiting;
use std::time::Duration;

/// Polls that find nothing before a thread that may sleep does so.
const POLLS_BEFORE_SLEEP: u32 = 32;
/// The shortest sleep, doubled each time up to [`LONGEST_SLEEP`].
const SHORTEST_SLEEP: Duration = Duration::from_micros(20);
/// The longest sleep.
const LONGEST_SLEEP: Duration = Duration::from_micros(500);

/// How the thread waits: through an engine, what is chosen by itself is to block.
pub(crate) fn mode_of(wait: WaitMode) -> WaitMode {
    if wait == WaitMode::Auto { WaitMode::Block } else { wait }
}

/// The same for tools.
pub(crate) fn shown(wait: WaitMode) -> Waiting {
    let mode = match wait {
        WaitMode::Spin => "spin",
        WaitMode::Yield => "yield",
        WaitMode::Block | WaitMode::Auto => "block",
    };
    let why = if wait == WaitMode::Auto {
        "the way through servers takes longer than a sleep"
    } else {
        "asked for"
    };
    Waiting { mode, why: why.to_owned() }
}

/// The state of one wait.
#[derive(Debug)]
pub(super) struct Idle {
    mode: WaitMode,
    polls: u32,
    sleep: Duration,
}

impl Idle {
    pub(super) fn new(wait: WaitMode) -> Idle {
        Idle { mode: mode_of(wait), polls: 0, sleep: SHORTEST_SLEEP }
    }

    /// There was something to do.
    pub(super) fn reset(&mut self) {
        (self.polls, self.sleep) = (0, SHORTEST_SLEEP);
    }

    /// Waits a little, and never longer than `limit`.
    pub(super) fn wait(&mut self, limit: Duration) {
        self.polls = self.polls.saturating_add(1);
        match self.mode {
            WaitMode::Spin => std::hint::spin_loop(),
            WaitMode::Yield => std::thread::yield_now(),
            WaitMode::Block | WaitMode::Auto if self.polls < POLLS_BEFORE_SLEEP => std::thread::yield_now(),
            WaitMode::Block | WaitMode::Auto => {
                std::thread::sleep(self.sleep.min(limit));
                self.sleep = (2 * self.sleep).min(LONGEST_SLEEP);
            }
        }
    }
}
