//! Stories of limits. Limits of processes and of the host are set and lifted at random moments.

use super::{Add, Writer};
use crate::story::{
    Bound, Change, Channel, Held, HostStep, Limits, Setup, Start, Step, Tool, Verb, Waiting, Where, Whom,
};
use fastrand::Rng;

/// Draws the state of a story before its first step.
pub(super) fn setup(random: &mut Rng, mut channels: Vec<Channel>) -> Setup {
    let files = random.u8(..5) < 2;
    let user = !files && random.u8(..3) == 0;
    let limits = Limits { files, small: random.u8(..3) > 0, user, clock: random.u8(..3) == 0 };
    for channel in &mut channels {
        if files {
            (channel.strict, channel.journal) = (false, None);
        }
    }
    Setup { channels, keeps: false, lines: None, net: None, limits: Some(limits) }
}

impl Writer {
    fn limits(&self) -> &Limits {
        self.setup.limits.as_ref().expect("a story of limits has limits")
    }

    /// Adds one or several steps.
    pub(super) fn add_under_limits(&mut self) {
        let publisher = self.random.u8(..super::PUBLISHERS);
        let reader = self.random.u8(..super::READERS);
        let daemon = u32::from(self.has_daemon());
        let files = 1 - daemon;
        let small = u32::from(self.limits().small);
        let clock = u32::from(self.limits().clock);
        let weights: [(u32, Add); 22] = [
            (16, |this, who, _| this.act_as_publisher(who)),
            (16, |this, _, who| this.act_as_reader(who)),
            (3, |this, who, reader| this.kill(who, reader)),
            (3, |this, who, reader| this.stop(who, reader)),
            (6, |this, _, _| this.go_on()),
            (6, |this, _, _| this.steps.push(Step::Settle {})),
            (4, |this, _, _| this.wait()),
            (10, |this, _, _| this.steps.push(Step::Race {})),
            (2 * daemon, |this, _, _| this.restart(true)),
            (2 * daemon, |this, _, _| this.restart(false)),
            (3 * daemon, |this, _, _| this.reload()),
            (3 * daemon, |this, _, _| this.switch_the_journal()),
            (2 * daemon, |this, _, _| this.take_over_a_channel()),
            (12 * daemon, |this, _, reader| this.record_under_limits(reader)),
            (3 * files, |this, _, _| this.remove()),
            (3, |this, _, _| this.look()),
            (16, |this, who, reader| this.bound(who, reader)),
            (8, |this, _, _| this.lift()),
            (10 * small, |this, _, _| this.fill()),
            (6, |this, _, _| this.close_a_directory()),
            (5 * clock, |this, _, _| this.set_the_clock()),
            (6, |this, _, _| this.call_a_verb()),
        ];
        self.add_one_of(&weights, publisher, reader);
    }

    fn switch_the_journal(&mut self) {
        let channel = self.channel();
        self.steps.push(Step::Reload { channel, change: Change::Journal });
    }

    fn take_over_a_channel(&mut self) {
        let channel = self.channel();
        self.steps.push(Step::TakeOver { channel });
        self.open_channel(0, channel);
    }

    /// A recorder starts or ends, or much is published for the recorders.
    fn record_under_limits(&mut self, reader: u8) {
        let channel = self.channel();
        let whom = Whom::Recorder(channel);
        match self.random.u8(..10) {
            0..3 => self.steps.push(Step::Start { whom }),
            3 => self.steps.push(Step::Restart { whom }),
            4 => self.steps.push(Step::Look { tool: Tool::Verify, channel }),
            5 | 6 => {
                let (start, wait) = (Start::Oldest, Waiting::Sleep);
                let (skip, page, live_only) = (false, true, false);
                self.steps.push(Step::Subscribe { who: reader, channel, start, wait, skip, page, live_only });
                self.state.readers[usize::from(reader)] = Some(channel);
                self.read_on(reader);
            }
            _ => {
                let holder = self.holder_of(channel, 0);
                self.publish_much(holder);
            }
        }
    }

    /// Draws a process whose limits change.
    fn whom(&mut self, publisher: u8, reader: u8) -> Whom {
        let channel = self.channel();
        match self.random.u8(..6) {
            0 | 1 if self.has_daemon() => Whom::Daemon,
            2 | 3 if self.has_daemon() => Whom::Recorder(channel),
            0 | 2 | 4 => {
                let held = self.state.publishers.iter().position(Option::is_some);
                Whom::Publisher(held.map_or(publisher, |who| who as u8))
            }
            _ => {
                let reads = self.state.readers.iter().position(Option::is_some);
                Whom::Reader(reads.map_or(reader, |who| who as u8))
            }
        }
    }

    /// Sets a limit of a process. In most cases the process then makes or opens something.
    fn bound(&mut self, publisher: u8, reader: u8) {
        let whom = self.whom(publisher, reader);
        self.set_a_limit(whom);
        let needs_something = self.random.u8(..4) > 0;
        match whom {
            Whom::Publisher(who) if needs_something => {
                if self.random.bool() && !self.has_daemon() {
                    let channel = self.channel();
                    self.steps.push(Step::Close { who });
                    self.steps.push(Step::Remove { channel });
                }
                self.open(who);
                self.publish(who);
            }
            Whom::Reader(who) if needs_something => {
                self.subscribe(who);
                self.read_on(who);
            }
            Whom::Recorder(channel) if needs_something => {
                let holder = self.holder_of(channel, publisher);
                self.publish_much(holder);
            }
            Whom::Daemon if needs_something => match self.random.u8(..5) {
                0 => self.switch_the_journal(),
                1 => self.take_over_a_channel(),
                2 => self.reload(),
                3 => self.subscribe(reader),
                _ => {
                    let channel = self.channel();
                    let holder = self.holder_of(channel, publisher);
                    self.publish_much(holder);
                }
            },
            _ => {}
        }
    }

    fn set_a_limit(&mut self, whom: Whom) {
        match self.random.u8(..5) {
            0 | 1 => {
                let spare = Some(self.random.u8(..6));
                self.steps.push(Step::Limit { whom, spare });
            }
            2 | 3 => {
                let most = Some([0, 4, 64, 100, 300, 1024, 2000][self.random.usize(..7)]);
                self.steps.push(Step::Bound { whom, bound: Bound::FileSize, most });
            }
            _ => {
                let bound = if self.limits().user { Bound::Threads } else { Bound::Locked };
                self.steps.push(Step::Bound { whom, bound, most: Some(0) });
            }
        }
    }

    /// Lifts a limit that an earlier step set.
    fn lift(&mut self) {
        let is_lifted = |step: &Step| {
            matches!(
                step,
                Step::Limit { spare: Some(_), .. }
                    | Step::Bound { most: Some(_), .. }
                    | Step::Host(HostStep::Fill(_) | HostStep::Close { .. })
            )
        };
        let set: Vec<usize> = (0..self.steps.len()).filter(|at| is_lifted(&self.steps[*at])).collect();
        if set.is_empty() {
            return;
        }
        let at = set[self.random.usize(..set.len())];
        let lifts = match &self.steps[at] {
            Step::Limit { whom, .. } => Step::Limit { whom: *whom, spare: None },
            Step::Bound { whom, bound, .. } => Step::Bound { whom: *whom, bound: *bound, most: None },
            Step::Host(HostStep::Fill(_)) => Step::Host(HostStep::Free),
            _ => Step::Host(HostStep::Open),
        };
        self.steps.push(lifts);
    }

    fn fill(&mut self) {
        let held = match self.random.u8(..4) {
            0 => Held::Files,
            _ => Held::Space([0, 0, 4, 60, 300][self.random.usize(..5)]),
        };
        self.steps.push(Step::Host(HostStep::Fill(held)));
    }

    fn close_a_directory(&mut self) {
        let channel = self.channel();
        let place = match self.random.u8(..4) {
            0 => Where::All,
            1 => Where::Within(channel),
            _ => Where::Of(channel),
        };
        let mode = [0o500, 0o500, 0o600, 0o000][self.random.usize(..4)];
        self.steps.push(Step::Host(HostStep::Close { place, mode }));
    }

    fn set_the_clock(&mut self) {
        let seconds = [-144_000, -3, 0, 3, 144_000][self.random.usize(..5)];
        self.steps.push(Step::Host(HostStep::Clock { seconds }));
    }

    fn call_a_verb(&mut self) {
        let of_files = [Verb::Ls, Verb::Stat, Verb::Sub, Verb::Pub, Verb::Pub];
        let of_a_daemon = [Verb::Ls, Verb::Stat, Verb::Sub, Verb::JournalStat, Verb::JournalVerify];
        let all = if self.has_daemon() { of_a_daemon } else { of_files };
        let verb = all[self.random.usize(..all.len())];
        let (bound, most) = match self.random.u8(..5) {
            0 | 1 => (Bound::Descriptors, self.random.u32(4..16)),
            2 => (Bound::FileSize, [0, 4, 100][self.random.usize(..3)]),
            3 => (Bound::Locked, 0),
            _ => (Bound::Address, self.random.u32(20..120)),
        };
        let channel = self.channel();
        self.steps.push(Step::Verb { verb, channel, bound, most });
    }
}
