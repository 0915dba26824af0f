//! Scenes of stories with journals. Readers are overtaken and continue in the journal, and recorders die.

use super::{PUBLISHERS, READERS, Writer};
use crate::payload::Sizes;
use crate::story::{Change, Recorded, Sending, Start, Step, Tool, Waiting, Whom};
use fastrand::Rng;

/// Draws the journal that a channel has from the beginning; `None` for no journal.
pub(super) fn journal(random: &mut Rng) -> Option<Recorded> {
    let sync = ["10ms", "1ms", "each", "none"][random.usize(..4)].to_owned();
    let roll_ms = random.bool().then(|| random.u32(20..300));
    let keeps = random.u8(..4) == 0;
    (random.u8(..8) > 0).then_some(Recorded { sync, roll_ms, keeps })
}

impl Writer {
    /// Adds a short scene.
    pub(super) fn record(&mut self, publisher: u8, reader: u8) {
        let channel = self.channel();
        match self.random.u8(..12) {
            0 => self.steps.push(Step::Reload { channel, change: Change::Journal }),
            1 | 2 => self.steps.push(Step::Look { tool: Tool::Verify, channel }),
            3 => self.steps.push(Step::Look { tool: Tool::Stat, channel }),
            4 | 5 => self.record_by_hand(channel),
            6 | 7 => self.publish_at_a_pace(publisher),
            _ => {
                let start = self.start_in_the_past();
                self.read_from(reader, channel, start);
            }
        }
    }

    /// Adds several steps in which a reader is overtaken.
    pub(super) fn overtake(&mut self, publisher: u8, reader: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, publisher);
        let start = if self.random.bool() { Start::Latest } else { self.start_in_the_past() };
        self.read_from(reader, channel, start);
        self.publish(holder);
        if self.random.u8(..4) == 0 {
            self.steps.push(Step::Start { whom: Whom::Recorder(channel) });
        }
        let late = Whom::Reader(reader);
        self.steps.push(Step::Stop { whom: late });
        for _ in 0..self.random.u8(1..4) {
            self.publish_much(holder);
            self.disturb(channel, holder);
        }
        self.steps.push(Step::Continue { whom: late });
        // The reader catches up while the publisher continues.
        if self.random.bool() {
            self.steps.push(Step::Race {});
            self.publish_much(holder);
            let start = self.start_in_the_past();
            self.read_from((reader + 1) % READERS, channel, start);
            self.disturb(channel, holder);
        }
    }

    /// Usually adds a disturbance, for example a restarted daemon, a killed publisher or a reload.
    fn disturb(&mut self, channel: u8, holder: u8) {
        match self.random.u8(..14) {
            0 | 1 => self.restart(true),
            2 => self.restart(false),
            3 | 4 => {
                self.steps.push(Step::Kill { whom: Whom::Publisher(holder), after_us: 0 });
                self.open_channel(holder, channel);
            }
            5 => {
                self.steps.push(Step::TakeOver { channel });
                self.open_channel(holder, channel);
            }
            6 => {
                self.steps.push(Step::Reload { channel, change: Change::Journal });
                if self.random.bool() {
                    self.publish_much(holder);
                }
                self.steps.push(Step::Reload { channel, change: Change::Journal });
            }
            7 => self.steps.push(Step::Look { tool: Tool::Verify, channel }),
            8 => self.record_by_hand(channel),
            9 => {
                let ms = self.random.u32(1..300);
                self.steps.push(Step::Stop { whom: Whom::Daemon });
                self.steps.push(Step::Wait { ms });
                self.steps.push(Step::Continue { whom: Whom::Daemon });
            }
            10 => self.open_channel((holder + 1) % PUBLISHERS, channel),
            _ => {}
        }
    }

    /// Starts, kills, stops or continues `shmcast record`.
    fn record_by_hand(&mut self, channel: u8) {
        let whom = Whom::Recorder(channel);
        let step = match self.random.u8(..8) {
            0..3 => Step::Start { whom },
            3 => Step::Restart { whom },
            4 => Step::Crash { whom },
            5 => Step::Kill { whom, after_us: self.random.u32(..3000) },
            6 => Step::Stop { whom },
            _ => Step::Continue { whom },
        };
        self.steps.push(step);
    }

    fn start_in_the_past(&mut self) -> Start {
        match self.random.u8(..3) {
            0 => Start::Sequence(self.random.u64(1..4000)),
            _ => Start::Oldest,
        }
    }

    fn read_from(&mut self, who: u8, channel: u8, start: Start) {
        let waits = [Waiting::Yield, Waiting::Spin, Waiting::Sleep, Waiting::Park, Waiting::Backoff];
        let wait = waits[self.random.usize(..waits.len())];
        let (skip, page, live_only) = (false, self.random.u8(..8) > 0, self.random.u8(..6) == 0);
        self.steps.push(Step::Subscribe { who, channel, start, wait, skip, page, live_only });
        self.state.readers[usize::from(who)] = Some(channel);
        if self.random.u8(..4) > 0 {
            self.read_on(who);
        } else {
            self.read(who);
        }
    }

    fn publish_at_a_pace(&mut self, who: u8) {
        match self.state.publishers.iter().position(Option::is_some) {
            Some(there) => self.publish_much(there as u8),
            None => self.open(who),
        }
    }

    /// Publishes more than a small ring holds, usually slowly enough for a recorder.
    pub(super) fn publish_much(&mut self, who: u8) {
        let sizes = [Sizes::Tiny, Sizes::Line, Sizes::Mixed, Sizes::Mixed, Sizes::Large];
        let sizes = sizes[self.random.usize(..sizes.len())];
        let sending = [Sending::Single, Sending::Marked, Sending::Batch, Sending::Claim];
        let sending = sending[self.random.usize(..sending.len())];
        let count = self.random.u32(200..if sizes == Sizes::Large { 600 } else { 2500 });
        let pause_us = if self.random.u8(..5) == 0 { 0 } else { self.random.u32(20..120) };
        self.steps.push(Step::Publish { who, count, sizes, sending, pause_us });
    }
}
