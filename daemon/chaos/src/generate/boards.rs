//! Gives the channels of some stories a board, gates or both. In these stories, some readers use the board or a gate, and scenes are added
//! at the end. In most scenes readers are slow, stopped or killed. A separate random generator makes all these choices after the other
//! steps were made. So the other stories do not depend on this file.

use super::{PUBLISHERS, READERS, Writer};
use crate::keys::Keys;
use crate::payload::Sizes;
use crate::story::{Board, Change, Gate, How, Lag, Profile, Sending, Shape, Start, Step, Waiting, Whom};
use fastrand::Rng;

/// Makes the random stream of boards and gates differ from the other streams.
const SALT: u64 = 0xa54f_f53a_5f1d_36f1;
/// A number of messages that overtakes a reader.
const MANY: u32 = 20_000;

/// Draws a gate.
fn gate(random: &mut Rng) -> Gate {
    let lag = [Lag::Least, Lag::Middle, Lag::Most][random.usize(..3)];
    let wait_us = [0, 200, 2000, 20_000][random.usize(..4)];
    Gate { lag, wait_us, refuse: random.bool() }
}

/// Draws the keys of a channel, its board and its gates.
fn draw(random: &mut Rng, largest: u64) -> (Keys, Shape) {
    let (start, end) = [(16, 18), (16, 24), (20, 28), (16, 36)][random.usize(..4)];
    let used = [3, 20, 20, 300][random.usize(..4)];
    let room = [used, used, used * 4, used / 2 + 1][random.usize(..4)];
    let value = [end as u32 + 8, 64, 256, 4096][random.usize(..4)].min(largest as u32);
    let board = (random.u8(..5) > 0).then_some(Board { keys: room, value });
    let gates = match random.u8(..5) {
        0 if board.is_some() => Vec::new(),
        1 => vec![gate(random), gate(random)],
        _ => vec![gate(random)],
    };
    (Keys { start, end, used }, Shape { board, gates })
}

impl Writer {
    /// In some stories, gives the channels a board or gates, and changes the steps.
    pub(super) fn equip(&mut self, seed: u64) {
        if !matches!(self.profile, Profile::Files | Profile::Daemon | Profile::Strict | Profile::Journal) {
            return;
        }
        self.random = Rng::with_seed(seed.wrapping_mul(8).wrapping_add(self.profile as u64) ^ SALT);
        if self.random.u8(..3) > 0 {
            return;
        }
        for channel in &mut self.setup.channels {
            let (keys, shape) = draw(&mut self.random, channel.largest);
            channel.name = keys.name(&channel.name);
            channel.shape = Some(shape);
        }
        let steps = std::mem::take(&mut self.steps);
        for step in steps {
            let step = self.changed(step);
            // No step is added between `race` and the next step, because these two steps run at the same time.
            if self.steps.last() != Some(&Step::Race {}) {
                self.add_between();
            }
            self.steps.push(step);
        }
        for _ in 0..self.random.u8(1..4) {
            self.scene_with_a_board_or_a_gate();
        }
    }

    /// Changes a step of a story with boards or gates: some readers use the board or a gate, and most messages are long enough for a key.
    fn changed(&mut self, step: Step) -> Step {
        match step {
            Step::Subscribe { who, channel, start, wait, skip: false, page: true, live_only: false }
                if who < READERS && self.random.u8(..4) > 0 =>
            {
                let start = if self.random.u8(..3) == 0 { Start::Board } else { start };
                self.attachment(who, channel, start, wait)
            }
            Step::Publish { who, count, mut sizes, mut sending, pause_us } => {
                if sizes == Sizes::Tiny && self.random.u8(..4) > 0 {
                    sizes = Sizes::Line;
                }
                if self.random.u8(..4) == 0 {
                    sending = Sending::Try;
                }
                Step::Publish { who, count, sizes, sending, pause_us }
            }
            step => step,
        }
    }

    fn attachment(&mut self, who: u8, channel: u8, start: Start, wait: Waiting) -> Step {
        let conflates = self.random.u8(..3) == 0;
        // A reader that skips old messages of a key can begin only at the latest message or with the board.
        let start = if conflates && start != Start::Board { Start::Latest } else { start };
        let conflate = conflates.then(|| [0, 0, 20_000, 40_000][self.random.usize(..4)]);
        let gate = self.random.bool().then(|| self.random.u8(..4) / 3);
        Step::Attach { who, channel, start, wait, conflate, gate }
    }

    /// Sometimes adds a step between two other steps.
    fn add_between(&mut self) {
        let (who, channel) = (self.random.u8(..READERS), self.channel());
        match self.random.u8(..16) {
            0 | 1 => self.get(who, channel),
            2 if self.profile.has_daemon() => {
                let change = if self.random.bool() { Change::Board } else { Change::Gates };
                self.steps.push(Step::Reload { channel, change });
            }
            _ => {}
        }
    }

    fn get(&mut self, who: u8, channel: u8) {
        let (times, pause_us) = (self.random.u16(1..200), self.random.u32(..300));
        self.steps.push(Step::Get { who, channel, times, pause_us });
    }

    fn scene_with_a_board_or_a_gate(&mut self) {
        let channel = self.channel();
        let (publisher, reader) = (self.random.u8(..PUBLISHERS), self.random.u8(..READERS));
        self.steps.extend((0..PUBLISHERS).map(|who| Step::Continue { whom: Whom::Publisher(who) }));
        self.steps.extend((0..READERS).map(|who| Step::Continue { whom: Whom::Reader(who) }));
        self.steps.extend((0..PUBLISHERS).map(|who| Step::Close { who }));
        self.steps.push(Step::Open { who: publisher, channel, anew: false, full: false });
        match self.random.u8(..5) {
            0 | 1 => self.hold_a_publisher_up(publisher, reader, channel),
            2 => self.fall_behind(publisher, reader, channel),
            3 => self.join_while_publishing(publisher, reader, channel),
            _ => self.change_the_publisher(publisher, reader, channel),
        }
    }

    fn attach(&mut self, who: u8, channel: u8, start: Start, conflate: Option<u32>, gate: Option<u8>) {
        let waits = [Waiting::Yield, Waiting::Spin, Waiting::Sleep, Waiting::Backoff];
        let wait = waits[self.random.usize(..waits.len())];
        self.steps.push(Step::Attach { who, channel, start, wait, conflate, gate });
        self.steps.push(Step::Read { who, how: How::Mixed, ms: 0, rest_us: 0 });
    }

    fn publish_lines(&mut self, who: u8, count: u32) {
        let ways = [Sending::Single, Sending::Marked, Sending::Batch, Sending::Claim, Sending::Try];
        let sending = ways[self.random.usize(..ways.len())];
        self.steps.push(Step::Publish { who, count, sizes: Sizes::Line, sending, pause_us: 0 });
    }

    /// The reader of a gate is stopped, killed or slow while the publisher sends many messages.
    fn hold_a_publisher_up(&mut self, publisher: u8, reader: u8, channel: u8) {
        let whom = Whom::Reader(reader);
        let start = if self.random.bool() { Start::Latest } else { Start::Board };
        self.attach(reader, channel, start, None, Some(0));
        self.publish_lines(publisher, 600);
        self.steps.push(Step::Settle {});
        for _ in 0..self.random.u8(1..4) {
            let count = self.random.u32(200..6000);
            match self.random.u8(..5) {
                0 => {
                    self.steps.push(Step::Kill { whom, after_us: 0 });
                    self.publish_lines(publisher, count);
                    self.attach(reader, channel, Start::Latest, None, Some(0));
                }
                1 => {
                    let rest_us = self.random.u32(100..3000);
                    self.steps.push(Step::Read { who: reader, how: How::Try, ms: 0, rest_us });
                    self.publish_lines(publisher, count);
                }
                _ => {
                    self.steps.push(Step::Stop { whom });
                    self.publish_lines(publisher, count);
                    self.steps.push(Step::Continue { whom });
                }
            }
            self.publish_lines(publisher, 600);
        }
    }

    /// A reader that skips old messages of a key is slow or stopped.
    fn fall_behind(&mut self, publisher: u8, reader: u8, channel: u8) {
        let whom = Whom::Reader(reader);
        let start = if self.random.bool() { Start::Latest } else { Start::Board };
        let conflate = [0, 0, 20_000][self.random.usize(..3)];
        self.publish_lines(publisher, 100);
        self.attach(reader, channel, start, Some(conflate), None);
        for _ in 0..self.random.u8(1..4) {
            if self.random.bool() {
                self.steps.push(Step::Stop { whom });
                let count = self.random.u32(500..MANY);
                self.publish_lines(publisher, count);
                self.steps.push(Step::Continue { whom });
            } else {
                let rest_us = self.random.u32(1..2000);
                self.steps.push(Step::Read { who: reader, how: How::Batch, ms: 0, rest_us });
                let count = self.random.u32(500..MANY);
                self.publish_lines(publisher, count);
            }
            self.get((reader + 1) % READERS, channel);
        }
    }

    /// Readers begin with the board, and processes search it, while the publisher publishes.
    fn join_while_publishing(&mut self, publisher: u8, reader: u8, channel: u8) {
        self.publish_lines(publisher, 300);
        for _ in 0..self.random.u8(1..4) {
            self.steps.push(Step::Race {});
            self.publish_lines(publisher, MANY);
            for at in 0..2 {
                self.attach((reader + at) % READERS, channel, Start::Board, None, None);
            }
            self.get((reader + 2) % READERS, channel);
            self.steps.push(Step::Settle {});
        }
    }

    /// Publishers follow each other while the reader of a gate is stopped.
    fn change_the_publisher(&mut self, publisher: u8, reader: u8, channel: u8) {
        let whom = Whom::Reader(reader);
        self.attach(reader, channel, Start::Latest, None, Some(0));
        self.publish_lines(publisher, 600);
        self.steps.push(Step::Settle {});
        self.steps.push(Step::Stop { whom });
        let mut holder = publisher;
        for _ in 0..self.random.u8(1..4) {
            let count = self.random.u32(1..800);
            self.publish_lines(holder, count);
            match self.random.u8(..4) {
                0 => self.steps.push(Step::Kill { whom: Whom::Publisher(holder), after_us: 0 }),
                1 if self.profile == Profile::Strict => self.steps.push(Step::TakeOver { channel }),
                _ => self.steps.push(Step::Close { who: holder }),
            }
            holder = (holder + 1) % PUBLISHERS;
            self.steps.push(Step::Open { who: holder, channel, anew: false, full: false });
        }
        self.publish_lines(holder, 300);
        self.steps.push(Step::Continue { whom });
        self.attach((reader + 1) % READERS, channel, Start::Board, None, None);
        self.publish_lines(holder, 300);
    }
}
