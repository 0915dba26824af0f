//! Makes a story from a seed. Each profile has weights for the steps, and rules prefer steps that can be applied.
//!
//! After a change here, each seed makes another story. Then run `shmcast-chaos faults --find NAME...`, which searches for seeds to put into
//! `faults.toml`. A change of the last scene (`ends.rs`) does not change the earlier steps, because this scene has a separate random
//! stream.

mod boards;
mod ends;
mod hosts;
mod journals;
mod limits;
mod scenes;
mod visits;

use crate::payload::Sizes;
use crate::story::{
    Change, Channel, How, Plant, Profile, Sending, Setup, Start, Step, Story, Tool, Waiting, Whom,
};
use fastrand::Rng;

/// The number of publishers in a story, and the number of readers.
const PUBLISHERS: u8 = 3;
const READERS: u8 = 4;

/// Makes the story of a seed.
pub fn story(seed: u64, profile: Profile) -> Story {
    // Stories of the same seed in different profiles have different random numbers.
    let mut random = Rng::with_seed(seed.wrapping_mul(8).wrapping_add(profile as u64));
    let setup = setup(&mut random, profile);
    let mut writer = Writer { random, profile, setup, steps: Vec::new(), state: State::default() };
    writer.begin();
    let length = writer.random.usize(6..32);
    while writer.steps.len() < length {
        writer.add();
    }
    writer.end(seed);
    writer.visit(seed);
    writer.equip(seed);
    Story { seed, profile, setup: writer.setup, steps: writer.steps }
}

fn setup(random: &mut Rng, profile: Profile) -> Setup {
    if profile == Profile::Hosts {
        return hosts::setup(random);
    }
    let is_bridge = profile == Profile::Bridge;
    let count = if random.u8(..4) == 0 && !is_bridge { 2 } else { 1 };
    let channels = ["a", "b"][..count].iter().map(|name| {
        let capacity = 1 << [16, 16, 17, 18, 20, 22][random.usize(..6)];
        let largest = [capacity / 8, capacity / 8, capacity / 64, 1400][random.usize(..4)];
        // Between hosts, a message must fit into a datagram.
        let largest = if is_bridge { 1378 } else { largest };
        let strict = match profile {
            Profile::Strict => *name == "a" || random.bool(),
            Profile::Bridge | Profile::Journal | Profile::Limits => random.u8(..4) == 0,
            _ => false,
        };
        let may_record = matches!(profile, Profile::Journal | Profile::Limits);
        let journal = may_record.then(|| journals::journal(random)).flatten();
        Channel { name: (*name).to_owned(), capacity, largest, strict, journal, shape: None }
    });
    let channels = channels.collect();
    if profile == Profile::Limits {
        return limits::setup(random, channels);
    }
    Setup { channels, keeps: false, lines: is_bridge.then(|| random.u8(1..3)), net: None, limits: None }
}

/// A rough copy of the story's state. The generator uses it to prefer steps that can be applied.
#[derive(Debug, Default)]
struct State {
    /// The channel that each publisher publishes on.
    publishers: [Option<u8>; PUBLISHERS as usize],
    /// The channel that each reader reads.
    readers: [Option<u8>; READERS as usize],
    stopped: Vec<Whom>,
    removed: Vec<u8>,
}

/// A function that adds steps to a story, for the publisher and the reader with these numbers.
type Add = fn(&mut Writer, u8, u8);

struct Writer {
    random: Rng,
    profile: Profile,
    setup: Setup,
    steps: Vec<Step>,
    state: State,
}

impl Writer {
    fn has_daemon(&self) -> bool {
        self.setup.has_daemon(self.profile)
    }

    /// Begins most stories with a publisher and a reader.
    fn begin(&mut self) {
        if self.profile == Profile::Hosts {
            return self.open(0);
        }
        let is_others = self.setup.limits.as_ref().is_some_and(|limits| limits.user);
        self.setup.keeps = self.has_daemon() && self.random.u8(..3) == 0 && !is_others;
        if self.random.u8(..8) > 0 {
            self.open(0);
            if self.random.bool() {
                self.publish(0);
            }
            self.subscribe(0);
            self.read(0);
        }
    }

    fn add(&mut self) {
        if self.profile == Profile::Hosts {
            return self.add_between_hosts();
        }
        if self.profile == Profile::Limits {
            return self.add_under_limits();
        }
        let publisher = self.random.u8(..PUBLISHERS);
        let reader = self.random.u8(..READERS);
        let daemon = if self.has_daemon() { 1 } else { 0 };
        let strict = if self.profile == Profile::Strict { 1 } else { 0 };
        let files = 1 - daemon;
        let tools = if self.profile == Profile::Tools { 1 } else { 0 };
        let bridge = if self.profile == Profile::Bridge { 1 } else { 0 };
        let journal = if self.profile == Profile::Journal { 1 } else { 0 };
        let weights: [(u32, Add); 22] = [
            (20, |this, who, _| this.act_as_publisher(who)),
            (20, |this, _, who| this.act_as_reader(who)),
            (6, |this, who, reader| this.kill(who, reader)),
            (5, |this, who, reader| this.stop(who, reader)),
            (6, |this, _, _| this.go_on()),
            (8, |this, _, _| this.steps.push(Step::Settle {})),
            (3, |this, _, _| this.wait()),
            (12, |this, _, _| this.steps.push(Step::Race {})),
            (3 * daemon, |this, _, _| this.restart(true)),
            (3 * daemon, |this, _, _| this.restart(false)),
            (2 * daemon, |this, _, _| this.freeze()),
            (5 * daemon, |this, _, _| this.reload()),
            (8 * strict, |this, who, _| this.take_over(who)),
            (2 * files + 4 * tools, |this, _, _| this.remove()),
            (3 + 12 * tools, |this, _, _| this.look()),
            (8 * tools, |this, _, _| this.plant()),
            (8 * bridge, |this, _, _| this.wire()),
            (2 * bridge, |this, _, _| this.forge()),
            (2, |this, who, reader| this.limit(who, reader)),
            (4, |this, who, reader| this.publish_and_read(who, reader)),
            (6 - 6 * bridge + 8 * journal, |this, who, reader| this.scene(who, reader)),
            (20 * journal, |this, who, reader| this.record(who, reader)),
        ];
        self.add_one_of(&weights, publisher, reader);
    }

    /// Adds a step by one of these functions, drawn by their weights.
    fn add_one_of(&mut self, weights: &[(u32, Add)], publisher: u8, reader: u8) {
        let all: u32 = weights.iter().map(|(weight, _)| weight).sum();
        let mut at = self.random.u32(..all);
        for (weight, add) in weights {
            if at < *weight {
                return add(self, publisher, reader);
            }
            at -= weight;
        }
    }

    fn channel(&mut self) -> u8 {
        self.random.u8(..self.setup.channels.len() as u8)
    }

    fn act_as_publisher(&mut self, who: u8) {
        if self.state.publishers[usize::from(who)].is_none() {
            // This publisher has no channel. So another publisher publishes, or this publisher opens a channel.
            return match self.state.publishers.iter().position(Option::is_some) {
                Some(there) if self.random.u8(..3) > 0 => self.publish(there as u8),
                _ => self.open(who),
            };
        }
        match self.random.u8(..12) {
            0 => {
                self.steps.push(Step::Close { who });
                self.state.publishers[usize::from(who)] = None;
            }
            1 => {
                let by = if self.random.u8(..8) == 0 {
                    [1 << 40, 1 << 61, u64::MAX][self.random.usize(..3)]
                } else {
                    self.random.u64(..200)
                };
                self.steps.push(Step::Gap { who, by });
            }
            // A session with another tag is another feed, and a bridge's receiver does not follow it.
            2 if self.setup.lines.is_none() => {
                self.steps.push(Step::Session { who, tag: self.random.u8(..) });
            }
            _ => self.publish(who),
        }
    }

    fn open(&mut self, who: u8) {
        let channel = self.channel();
        let anew = self.profile == Profile::Files && self.random.u8(..8) == 0;
        let full = self.random.u8(..10) == 0;
        self.steps.push(Step::Open { who, channel, anew, full });
        self.state.publishers[usize::from(who)] = Some(channel);
    }

    fn publish(&mut self, who: u8) {
        let sizes = [Sizes::Tiny, Sizes::Line, Sizes::Line, Sizes::Mixed, Sizes::Mixed, Sizes::Large];
        let sizes = sizes[self.random.usize(..sizes.len())];
        let sending = [Sending::Single, Sending::Marked, Sending::Batch, Sending::Claim];
        let sending = sending[self.random.usize(..sending.len())];
        // Bridges carry neither a tag nor a key flag.
        let sending = if self.setup.lines.is_some() { Sending::Batch } else { sending };
        let most = if sizes == Sizes::Large { 300 } else { 4000 };
        let exponent = self.random.u32(..12);
        let count = 1 + self.random.u32(..1 << exponent).min(most);
        let pause_us = if self.random.bool() { 0 } else { self.random.u32(..400).min(200_000 / count) };
        self.steps.push(Step::Publish { who, count, sizes, sending, pause_us });
    }

    fn act_as_reader(&mut self, who: u8) {
        if self.state.readers[usize::from(who)].is_none() {
            self.subscribe(who);
            if self.random.u8(..4) > 0 {
                self.read(who);
            }
            return;
        }
        match self.random.u8(..10) {
            0 => {
                self.steps.push(Step::Leave { who });
                self.state.readers[usize::from(who)] = None;
            }
            1 | 2 => {
                let by =
                    if self.random.u8(..4) == 0 { self.random.i64(0..20) } else { -self.random.i64(0..1000) };
                self.steps.push(Step::Seek { who, by });
                self.read(who);
            }
            3 => self.steps.push(Step::Block { who, events: self.random.u32(1..50) }),
            _ => self.read(who),
        }
    }

    fn subscribe(&mut self, who: u8) {
        let mut channel = self.channel();
        if self.setup.lines.is_some() && self.random.u8(..4) > 0 {
            // The channels of the far host are numbered after the story's own channels.
            channel += self.setup.channels.len() as u8;
        }
        let start = match self.random.u8(..6) {
            0 | 1 => Start::Latest,
            2..=4 => Start::Oldest,
            _ => Start::Sequence(self.random.u64(1..600)),
        };
        let waits = [
            Waiting::Spin,
            Waiting::Burst,
            Waiting::SpinThenYield,
            Waiting::Yield,
            Waiting::Yield,
            Waiting::Backoff,
            Waiting::Sleep,
            Waiting::Park,
            Waiting::Park,
        ];
        let parks = usize::from(!self.has_daemon()) * 2;
        let wait = waits[self.random.usize(..waits.len() - parks)];
        let (skip, page) = (self.random.u8(..5) == 0, self.random.u8(..8) > 0);
        let live_only =
            matches!(self.profile, Profile::Journal | Profile::Limits) && self.random.u8(..6) == 0;
        self.steps.push(Step::Subscribe { who, channel, start, wait, skip, page, live_only });
        self.state.readers[usize::from(who)] = Some(channel);
    }

    fn read(&mut self, who: u8) {
        let how = [How::Deadline, How::Deadline, How::Try, How::Into, How::Batch, How::Async, How::Mixed];
        let how = how[self.random.usize(..how.len())];
        let ms = if self.random.bool() { 0 } else { self.random.u32(1..120) };
        let rest_us = if self.random.u8(..4) == 0 { self.random.u32(..3000) } else { 0 };
        self.steps.push(Step::Read { who, how, ms, rest_us });
    }

    fn publish_and_read(&mut self, publisher: u8, reader: u8) {
        self.act_as_publisher(publisher);
        self.act_as_reader(reader);
    }

    fn someone(&mut self, publisher: u8, reader: u8) -> Whom {
        if self.random.bool() { Whom::Publisher(publisher) } else { Whom::Reader(reader) }
    }

    fn kill(&mut self, publisher: u8, reader: u8) {
        let whom = self.someone(publisher, reader);
        match whom {
            Whom::Publisher(who) => {
                if self.state.publishers[usize::from(who)].is_some() && self.random.bool() {
                    self.publish(who);
                }
                self.state.publishers[usize::from(who)] = None;
            }
            Whom::Reader(who) => self.state.readers[usize::from(who)] = None,
            Whom::Daemon | Whom::Far | Whom::Host(_) | Whom::Recorder(_) => {}
        }
        let after_us = if self.random.bool() { 0 } else { self.random.u32(..3000) };
        self.steps.push(Step::Kill { whom, after_us });
        self.state.stopped.retain(|stopped| *stopped != whom);
    }

    fn stop(&mut self, publisher: u8, reader: u8) {
        let whom = self.someone(publisher, reader);
        self.steps.push(Step::Stop { whom });
        self.state.stopped.push(whom);
    }

    fn go_on(&mut self) {
        if self.state.stopped.is_empty() {
            return;
        }
        let at = self.random.usize(..self.state.stopped.len());
        let whom = self.state.stopped.swap_remove(at);
        self.steps.push(Step::Continue { whom });
    }

    fn wait(&mut self) {
        let ms = if self.random.u8(..12) == 0 { 2300 } else { self.random.u32(1..60) };
        self.steps.push(Step::Wait { ms });
    }

    fn daemon(&mut self) -> Whom {
        if self.setup.lines.is_some() && self.random.bool() { Whom::Far } else { Whom::Daemon }
    }

    fn restart(&mut self, is_crash: bool) {
        let whom = self.daemon();
        self.steps.push(if is_crash { Step::Crash { whom } } else { Step::Restart { whom } });
    }

    fn freeze(&mut self) {
        let whom = self.daemon();
        self.steps.push(Step::Stop { whom });
        self.state.stopped.push(whom);
    }

    fn wire(&mut self) {
        let percent = |random: &mut Rng, most: u8| if random.bool() { 0 } else { random.u8(..most) };
        let random = &mut self.random;
        let loss = if random.u8(..5) == 0 { 100 } else { percent(random, 40) };
        let (copies, late) = (percent(random, 30), percent(random, 30));
        self.steps.push(Step::Wire { loss, copies, late });
    }

    /// Forges a packet with a sequence that no channel can reach. A forged packet with a lower sequence would find no new fault: it is
    /// known that receivers without keys accept such a packet (SECURITY.md).
    fn forge(&mut self) {
        let ahead = [1 << 48, 1 << 60, 1 << 62][self.random.usize(..3)];
        let other = self.random.u8(..4) == 0;
        self.steps.push(Step::Forge { ahead, other });
    }

    fn reload(&mut self) {
        let channel = self.channel();
        if let Some(at) = self.state.removed.iter().position(|removed| *removed == channel)
            && self.random.u8(..4) > 0
        {
            self.state.removed.swap_remove(at);
            return self.steps.push(Step::Reload { channel, change: Change::Add });
        }
        let changes = [
            Change::Nothing,
            Change::Remove,
            Change::Remove,
            Change::Largest,
            Change::Largest,
            Change::Capacity,
            Change::Mode,
            Change::Broken,
        ];
        let change = match changes[self.random.usize(..changes.len())] {
            // If a message does not fit into a datagram, the daemon refuses the configuration.
            Change::Largest if self.setup.lines.is_some() => Change::Nothing,
            change => change,
        };
        self.steps.push(Step::Reload { channel, change });
        if change == Change::Remove {
            self.state.removed.push(channel);
            if self.random.bool() {
                self.reload();
            }
        }
    }

    fn take_over(&mut self, who: u8) {
        let channel = self.channel();
        if self.random.u8(..3) > 0
            && let Some(holder) = self.state.publishers.iter().position(|held| *held == Some(channel))
        {
            // A takeover makes sense only from a publisher that does not run.
            let whom = Whom::Publisher(holder as u8);
            if self.random.bool() {
                self.publish(holder as u8);
            }
            self.steps.push(Step::Stop { whom });
            self.state.stopped.push(whom);
        }
        self.steps.push(Step::TakeOver { channel });
        if self.state.publishers[usize::from(who)].is_none() {
            self.steps.push(Step::Open { who, channel, anew: false, full: false });
            self.state.publishers[usize::from(who)] = Some(channel);
            if self.random.u8(..4) > 0 {
                self.publish(who);
            }
        }
    }

    fn remove(&mut self) {
        let channel = self.channel();
        self.steps.push(Step::Remove { channel });
    }

    fn look(&mut self) {
        let tools = match self.has_daemon() {
            true => [Tool::Ls, Tool::Stat, Tool::Top, Tool::Metrics],
            false => [Tool::Ls, Tool::Stat, Tool::Top, Tool::Doctor],
        };
        let tool = tools[self.random.usize(..4)];
        let channel = self.channel();
        self.steps.push(Step::Look { tool, channel });
    }

    fn plant(&mut self) {
        let plants = [Plant::ReadersLink, Plant::ReadersFile, Plant::Folder, Plant::FolderAlike];
        let plant = plants[self.random.usize(..plants.len())];
        let channel = self.channel();
        self.steps.push(Step::Plant { plant, channel });
    }

    fn limit(&mut self, publisher: u8, reader: u8) {
        let whom = match self.has_daemon() && self.random.bool() {
            true => self.daemon(),
            false => self.someone(publisher, reader),
        };
        let spare = if self.random.u8(..3) == 0 { None } else { Some(self.random.u8(..6)) };
        self.steps.push(Step::Limit { whom, spare });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::PROFILES;

    #[test]
    fn a_seed_is_always_the_same_story() {
        for profile in PROFILES {
            for seed in 0..50 {
                let story = story(seed, profile);
                assert_eq!(story, super::story(seed, profile));
                assert_eq!(Story::from_text(&story.to_text()).expect("what was written"), story);
            }
        }
    }
}
