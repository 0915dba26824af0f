//! Scenes: several steps in a row that make two features meet. Single random steps rarely do this.

use super::{PUBLISHERS, READERS, Writer};
use crate::payload::Sizes;
use crate::story::{Change, How, Plant, Profile, Sending, Start, Step, Tool, Waiting, Whom};

/// A number of messages that is too large for readers to keep up.
const MANY: u32 = 100_000;

impl Writer {
    /// Adds one scene of the profile.
    pub(super) fn scene(&mut self, publisher: u8, reader: u8) {
        match (self.profile, self.random.u8(..6)) {
            (Profile::Tools, 0 | 1) => self.look_at_plants(),
            (Profile::Tools, 2) => self.steps.push(Step::Stray {}),
            (Profile::Strict, 0) => self.lead_a_late_reader(publisher, reader),
            (Profile::Strict, 1) => self.wake_a_publisher_that_was_cut_off(reader),
            (Profile::Daemon | Profile::Strict, 2) => self.ask_for_larger_messages(reader),
            (Profile::Daemon | Profile::Strict, 3) => self.change_the_mode(publisher),
            (Profile::Strict, 4) => self.take_over_without_descriptors(publisher, reader),
            (Profile::Daemon | Profile::Strict, 5) => self.restart_twice(publisher, reader),
            (Profile::Daemon, 0) => self.steps.push(Step::Flood { requests: 3000 }),
            (Profile::Journal, 0..4) => self.overtake(publisher, reader),
            (Profile::Journal, 4) => self.restart_twice(publisher, reader),
            _ => self.join_a_fast_publisher(publisher, reader),
        }
    }

    /// Returns the publisher of `channel`. If the channel has no publisher, it is opened by the publisher with the number `otherwise`.
    pub(super) fn holder_of(&mut self, channel: u8, otherwise: u8) -> u8 {
        match self.state.publishers.iter().position(|held| *held == Some(channel)) {
            Some(holder) => holder as u8,
            None => {
                self.open_channel(otherwise, channel);
                otherwise
            }
        }
    }

    pub(super) fn open_channel(&mut self, who: u8, channel: u8) {
        self.steps.push(Step::Open { who, channel, anew: false, full: false });
        self.state.publishers[usize::from(who)] = Some(channel);
    }

    fn subscribe_to(&mut self, who: u8, channel: u8, start: Start, wait: Waiting) {
        let (skip, page, live_only) = (false, true, false);
        self.steps.push(Step::Subscribe { who, channel, start, wait, skip, page, live_only });
        self.state.readers[usize::from(who)] = Some(channel);
    }

    pub(super) fn read_on(&mut self, who: u8) {
        self.steps.push(Step::Read { who, how: How::Mixed, ms: 0, rest_us: 0 });
    }

    /// Publishes some messages. The next step does not wait until they are published.
    fn burst(&mut self, who: u8, count: u32, sizes: Sizes) {
        self.steps.push(Step::Race {});
        self.steps.push(Step::Publish { who, count, sizes, sending: Sending::Single, pause_us: 0 });
    }

    /// A stranger's files replace files of a channel. Then a tool reads the channel.
    fn look_at_plants(&mut self) {
        let channel = self.channel();
        let plants = [Plant::ReadersLink, Plant::ReadersFile, Plant::ReadersFile, Plant::FolderAlike];
        let plant = plants[self.random.usize(..plants.len())];
        if plant != Plant::FolderAlike {
            self.holder_of(channel, 0);
        }
        self.steps.push(Step::Plant { plant, channel });
        match self.random.u8(..3) {
            0 => self.steps.push(Step::Look { tool: Tool::Ls, channel }),
            1 => self.steps.push(Step::Look { tool: Tool::Stat, channel }),
            _ => {
                let holder = self.state.publishers.iter().position(|held| *held == Some(channel));
                if let Some(holder) = holder {
                    self.steps.push(Step::Close { who: holder as u8 });
                    self.state.publishers[holder] = None;
                }
                self.steps.push(Step::Remove { channel });
            }
        }
    }

    /// A reader is stopped while the channel moves through several segments.
    fn lead_a_late_reader(&mut self, publisher: u8, reader: u8) {
        let channel = self.channel();
        let mut holder = self.holder_of(channel, publisher);
        self.subscribe_to(reader, channel, Start::Oldest, Waiting::Sleep);
        self.read_on(reader);
        self.publish(holder);
        self.steps.push(Step::Stop { whom: Whom::Reader(reader) });
        for _ in 0..self.random.u8(2..7) {
            if self.random.bool() {
                self.publish(holder);
            }
            self.steps.push(Step::TakeOver { channel });
            self.state.publishers[usize::from(holder)] = None;
            holder = (holder + 1) % PUBLISHERS;
            self.open_channel(holder, channel);
        }
        self.publish(holder);
        self.steps.push(Step::Continue { whom: Whom::Reader(reader) });
    }

    /// A publisher is stopped within a burst, replaced, and then continued. A reader is stopped at the same time.
    fn wake_a_publisher_that_was_cut_off(&mut self, reader: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, 0);
        let other = (holder + 1) % PUBLISHERS;
        self.subscribe_to(reader, channel, Start::Oldest, Waiting::Yield);
        self.read_on(reader);
        self.burst(holder, MANY, Sizes::Tiny);
        let ms = self.random.u32(1..30);
        self.steps.push(Step::Wait { ms });
        let (publisher, late) = (Whom::Publisher(holder), Whom::Reader(reader));
        self.steps.push(Step::Stop { whom: publisher });
        if self.random.bool() {
            self.steps.push(Step::Stop { whom: late });
        }
        self.steps.push(Step::TakeOver { channel });
        self.state.publishers[usize::from(holder)] = None;
        self.open_channel(other, channel);
        if self.random.bool() {
            self.publish(other);
        }
        self.steps.push(Step::Continue { whom: publisher });
        self.steps.push(Step::Settle {});
        self.steps.push(Step::Continue { whom: late });
    }

    /// A takeover fails half-way, and the publisher continues.
    fn take_over_without_descriptors(&mut self, publisher: u8, reader: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, publisher);
        self.subscribe_to(reader, channel, Start::Oldest, Waiting::Yield);
        self.read_on(reader);
        self.steps.push(Step::Reload { channel, change: Change::Nothing });
        let spare = Some(self.random.u8(..8));
        self.steps.push(Step::Limit { whom: Whom::Daemon, spare });
        self.steps.push(Step::TakeOver { channel });
        self.steps.push(Step::Limit { whom: Whom::Daemon, spare: None });
        self.publish(holder);
        self.steps.push(Step::Leave { who: reader });
        self.subscribe_to(reader, channel, Start::Oldest, Waiting::Yield);
        self.steps.push(Step::Block { who: reader, events: 1 });
    }

    /// A daemon crashes. The next daemon ends before a stopped program could attach again.
    fn restart_twice(&mut self, publisher: u8, reader: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, publisher);
        self.publish(holder);
        self.subscribe_to(reader, channel, Start::Oldest, Waiting::Sleep);
        self.read_on(reader);
        let crashes = [true, self.random.bool()];
        for is_crash in crashes {
            self.restart(is_crash);
            if self.random.bool() {
                self.open_channel((holder + 1) % PUBLISHERS, channel);
            }
        }
        self.publish(holder);
    }

    /// A reload raises the largest message while readers are attached.
    fn ask_for_larger_messages(&mut self, reader: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, 0);
        self.subscribe_to(reader, channel, Start::Oldest, Waiting::Yield);
        self.read_on(reader);
        self.publish(holder);
        for _ in 0..self.random.u8(1..4) {
            self.steps.push(Step::Reload { channel, change: Change::Largest });
        }
        self.steps.push(Step::Close { who: holder });
        self.open_channel(holder, channel);
        let (count, sizes, sending) = (self.random.u32(8..60), Sizes::Large, Sending::Single);
        self.steps.push(Step::Publish { who: holder, count, sizes, sending, pause_us: 0 });
    }

    /// A reload switches a channel's strict mode on or off. The daemon is replaced before the next publisher opens the
    /// channel.
    fn change_the_mode(&mut self, publisher: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, publisher);
        self.publish(holder);
        self.steps.push(Step::Reload { channel, change: Change::Mode });
        let is_crash = self.random.bool();
        self.restart(is_crash);
        if self.random.bool() {
            self.publish(holder);
        }
        self.steps.push(Step::Close { who: holder });
        for _ in 0..2 {
            self.open_channel(holder, channel);
            self.publish(holder);
        }
    }

    /// Readers attach and seek while the publisher is faster than they are.
    fn join_a_fast_publisher(&mut self, publisher: u8, reader: u8) {
        let channel = self.channel();
        let holder = self.holder_of(channel, publisher);
        let sizes = if self.random.bool() { Sizes::Tiny } else { Sizes::Line };
        // Each reader of a journal reads all these messages, so stories with journals have fewer of these messages.
        let count = if self.profile == Profile::Journal { MANY / 5 } else { MANY };
        self.burst(holder, count, sizes);
        for at in 0..self.random.u8(1..4) {
            let who = (reader + at) % READERS;
            let start = if self.random.bool() { Start::Latest } else { Start::Oldest };
            self.subscribe_to(who, channel, start, Waiting::Yield);
            if self.random.bool() {
                self.steps.push(Step::Race {});
                self.steps.push(Step::Read { who, how: How::Batch, ms: 5, rest_us: 2000 });
                self.steps.push(Step::Seek { who, by: -self.random.i64(0..1000) });
            }
            self.read_on(who);
        }
    }
}
