//! The last scene of a story. This scene has a separate random stream and its own actors. So a change of this scene does not change the
//! earlier steps.

use super::{PUBLISHERS, READERS, Writer};
use crate::story::{Plant, Profile, Squatter, Start, Step, Waiting, Whom};
use fastrand::Rng;

/// Makes the random stream of the last scene differ from the stream of the other steps.
const SALT: u64 = 0x6a09_e667_f3bc_c908;
/// The number of the publisher in a last scene.
const PUBLISHER: u8 = PUBLISHERS;
const READER: u8 = READERS;

impl Writer {
    /// Adds a last scene to half of the stories. Some profiles have no last scenes.
    pub(super) fn end(&mut self, seed: u64) {
        if self.profile == Profile::Hosts {
            return self.end_between_hosts();
        }
        self.random = Rng::with_seed(seed.wrapping_mul(8).wrapping_add(self.profile as u64) ^ SALT);
        if self.random.bool() {
            return;
        }
        match self.profile {
            Profile::Files => self.end_with_files(),
            Profile::Tools if self.random.bool() => self.close_the_readers(),
            Profile::Tools => self.pipe(),
            Profile::Daemon => self.end_with_a_daemon(),
            Profile::Journal => self.end_with_a_recorder(),
            Profile::Strict | Profile::Bridge | Profile::Hosts | Profile::Limits => {}
        }
    }

    fn end_with_files(&mut self) {
        match self.random.u8(..8) {
            0 => self.fork_a_publisher(),
            1 => self.fork_a_reader(),
            2 => self.open_with_a_mode(),
            3 => self.steps.push(Step::Misopen {}),
            4 => self.close_the_readers(),
            5 => self.tamper(),
            6 => self.steps.push(Step::Unknown {}),
            _ => self.steps.push(Step::Hollow {}),
        }
    }

    /// A publisher forks a child, and the child ends. The channel must not end with the child.
    fn fork_a_publisher(&mut self) {
        let channel = self.channel();
        self.free_all();
        self.let_publish(PUBLISHER, channel);
        self.let_read(channel, Start::Latest, Waiting::Yield);
        self.read_on(READER);
        self.publish(PUBLISHER);
        self.steps.push(Step::Fork { whom: Whom::Publisher(PUBLISHER) });
        self.steps.push(Step::Wait { ms: 20 });
        self.publish(PUBLISHER);
    }

    /// A reader forks a child, and the child ends. Tools must still see the parent.
    fn fork_a_reader(&mut self) {
        let channel = self.channel();
        self.let_publish(PUBLISHER, channel);
        self.let_read(channel, Start::Oldest, Waiting::Yield);
        self.steps.push(Step::Fork { whom: Whom::Reader(READER) });
        self.read_on(READER);
    }

    fn open_with_a_mode(&mut self) {
        let channel = self.channel();
        self.free_all();
        let mode = [0o700, 0o750, 0o755][self.random.usize(..3)];
        self.steps.push(Step::OpenWithMode { who: PUBLISHER, channel, mode });
        self.publish(PUBLISHER);
    }

    /// Readers attach although they are not allowed to write to the folder of the reader pages.
    fn close_the_readers(&mut self) {
        let channel = self.channel();
        self.let_publish(PUBLISHER, channel);
        self.steps.push(Step::Plant { plant: Plant::ReadersClosed, channel });
        self.let_read(channel, Start::Oldest, Waiting::Yield);
        self.read_on(READER);
        self.publish(PUBLISHER);
    }

    /// All actors leave the channel. Then a wrong count of messages is written into the channel, and a publisher opens it.
    fn tamper(&mut self) {
        let channel = self.channel();
        self.free_all();
        self.steps.extend((0..READER).map(|who| Step::Leave { who }));
        self.let_publish(PUBLISHER, channel);
        self.publish(PUBLISHER);
        self.steps.push(Step::Close { who: PUBLISHER });
        let laps = [1, 2, 17, (1 << 30) + 1][self.random.usize(..4)];
        self.steps.push(Step::Tamper { channel, laps });
    }

    fn pipe(&mut self) {
        let lines = self.random.u8(1..20);
        self.steps.push(Step::Pipe { lines });
    }

    fn end_with_a_daemon(&mut self) {
        if self.random.u8(..4) > 0 { self.squat() } else { self.steps.push(Step::Outlive { brief: false }) }
    }

    /// `shmcast record` is killed, ends or is stopped while it records. Random steps rarely find a running recorder, so this scene first
    /// starts one.
    fn end_with_a_recorder(&mut self) {
        let channel = self.channel();
        let (whom, holder) = (Whom::Recorder(channel), self.holder_of(channel, 0));
        self.steps.push(Step::Start { whom });
        for _ in 0..self.random.u8(1..4) {
            self.steps.push(Step::Race {});
            self.publish_much(holder);
            let ms = self.random.u32(1..40);
            self.steps.push(Step::Wait { ms });
            match self.random.u8(..4) {
                0 => self.steps.push(Step::Crash { whom }),
                1 => self.steps.extend([Step::Kill { whom, after_us: 0 }, Step::Start { whom }]),
                2 => self.steps.push(Step::Restart { whom }),
                _ => self.steps.extend([Step::Stop { whom }, Step::Wait { ms }, Step::Continue { whom }]),
            }
        }
    }

    fn squat(&mut self) {
        let by = [Squatter::File, Squatter::Link, Squatter::Datagrams][self.random.usize(..3)];
        self.steps.push(Step::Squat { by });
    }

    /// All publishers close their channels, because a channel in a file has only one publisher at a time. After that, another publisher can
    /// open any channel.
    fn free_all(&mut self) {
        self.steps.extend((0..PUBLISHER).map(|who| Step::Close { who }));
    }

    fn let_publish(&mut self, who: u8, channel: u8) {
        self.steps.push(Step::Open { who, channel, anew: false, full: false });
    }

    fn let_read(&mut self, channel: u8, start: Start, wait: Waiting) {
        let (skip, page) = (false, true);
        let live_only = false;
        self.steps.push(Step::Subscribe { who: READER, channel, start, wait, skip, page, live_only });
    }
}
