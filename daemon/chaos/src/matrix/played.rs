//! The pairs of a feature and an event that a story plays, found from the story's steps.
//!
//! An event of a channel counts for the channel's features, for the features of its readers, and for the bridge that sends the channel.
//! Steps that the runner would skip do not count.

use crate::story::{
    Bound, Change, Channel, Does, Held, HostStep, How, NetStep, Plant, Shape, Start, Step, Story, Trouble,
    Waiting, Way, Whom,
};
use std::collections::{BTreeMap, BTreeSet};

/// The name of a feature and the name of an event, as in `matrix.toml`.
pub type Pair = (&'static str, &'static str);

/// Returns all pairs that the story plays.
pub fn pairs(story: &Story) -> BTreeSet<Pair> {
    let mut scan = Scan::new(story);
    story.steps.iter().for_each(|step| scan.take(step));
    scan.pairs
}

/// The features that one reader uses.
type Own = BTreeSet<&'static str>;

struct Scan<'a> {
    story: &'a Story,
    pairs: BTreeSet<Pair>,
    /// The channel of each publisher that has a channel.
    publishers: BTreeMap<u8, u8>,
    /// For each reader: its channel, and the features that it uses.
    readers: BTreeMap<u8, (u8, Own)>,
    /// Readers that closed their subscription.
    left: BTreeSet<u8>,
    /// Channels on which a publisher has published.
    begun: BTreeSet<u8>,
    /// Channels whose last publisher closed them.
    closed: BTreeSet<u8>,
    /// Channels that `shmcast record` records.
    recorded: BTreeSet<u8>,
    /// For each channel number: whether the channel is strict, and whether the daemon keeps a journal of it.
    strict: Vec<bool>,
    journals: Vec<bool>,
    /// The channels with their present boards and gates, by number.
    channels: Vec<Channel>,
    has_second_sender: bool,
    is_second_sender_closed: bool,
    is_promoted: bool,
}

impl<'a> Scan<'a> {
    fn new(story: &'a Story) -> Self {
        let channels = &story.setup.channels;
        Self {
            story,
            pairs: BTreeSet::new(),
            publishers: BTreeMap::new(),
            readers: BTreeMap::new(),
            left: BTreeSet::new(),
            begun: BTreeSet::new(),
            closed: BTreeSet::new(),
            recorded: BTreeSet::new(),
            channels: channels.clone(),
            strict: channels.iter().map(|channel| channel.strict).collect(),
            journals: channels.iter().map(|channel| channel.journal.is_some()).collect(),
            has_second_sender: story.setup.net.as_ref().is_some_and(|net| net.has_peer),
            is_second_sender_closed: false,
            is_promoted: false,
        }
    }

    fn has_daemon(&self) -> bool {
        self.story.setup.has_daemon(self.story.profile)
    }

    /// Returns the index of a channel in the story's list, and the number of its host.
    fn place(&self, channel: u8) -> (usize, u8) {
        let count = self.story.setup.channels.len();
        (usize::from(channel) % count, channel / count as u8)
    }

    /// The features of a channel.
    fn of_channel(&self, channel: u8) -> Own {
        let (at, host) = self.place(channel);
        let mut features = Own::new();
        match (self.has_daemon(), self.strict[at]) {
            (false, _) => features.insert("files"),
            (true, false) => features.insert("daemon"),
            // A mirror has only one ring, even if the first host's channel is strict.
            (true, true) if host == 0 => features.insert("strict"),
            (true, true) => false,
        };
        if self.shape(at).is_some_and(|shape| shape.board.is_some()) {
            features.insert("board");
        }
        if host == 0 && self.journals[at] && self.has_daemon() {
            features.insert("journal-daemon");
        }
        if host == 0 && self.recorded.contains(&(at as u8)) {
            features.insert("record");
        }
        features
    }

    /// The present board and gates of a channel.
    fn shape(&self, at: usize) -> Option<&Shape> {
        self.channels[at].shape.as_ref()
    }

    /// Notes that a reader uses the board or a gate of its channel.
    fn attach(&mut self, who: u8, channel: u8, conflates: bool, gate: Option<u8>) {
        let shape = self.shape(self.place(channel).0).cloned().unwrap_or_default();
        let has_gate = gate.is_some_and(|gate| usize::from(gate) < shape.gates.len());
        let Some((_, own)) = self.readers.get_mut(&who) else { return };
        own.extend(has_gate.then_some("gate"));
        own.extend((conflates && shape.board.is_some()).then_some("board"));
    }

    /// Returns the features of the bridge that sends a channel. The list is empty if there is no bridge.
    fn of_bridge(&self, channel: u8) -> Own {
        let mut features = Own::new();
        if self.place(channel).0 != 0 {
            return features;
        }
        if self.story.setup.lines.is_some() {
            features.insert("plain");
        }
        let Some(net) = &self.story.setup.net else { return features };
        features.insert(if net.native { "native" } else { "plain" });
        let more = [
            ("sealed", net.sealed),
            ("multicast", net.lines > 1),
            ("standby", net.has_peer || net.way == Way::Mirrors),
            ("promoted", self.is_promoted),
        ];
        features.extend(more.iter().filter(|(_, has)| *has).map(|(name, _)| *name));
        features
    }

    fn readers_of(&self, channel: u8) -> Own {
        self.readers.values().filter(|(of, _)| *of == channel).flat_map(|(_, own)| own).copied().collect()
    }

    fn hit(&mut self, event: &'static str, features: impl IntoIterator<Item = &'static str>) {
        self.pairs.extend(features.into_iter().map(|feature| (feature, event)));
    }

    /// Notes that an event happens to a channel. The event counts for the channel's features, its readers and its bridge.
    fn hit_channel(&mut self, event: &'static str, channel: u8) {
        let features = [self.of_channel(channel), self.readers_of(channel), self.of_bridge(channel)];
        self.hit(event, features.into_iter().flatten());
    }

    /// Notes that an event happens to the bridge.
    fn hit_bridge(&mut self, event: &'static str) {
        let features = self.of_bridge(0);
        self.hit(event, features);
    }

    /// Notes that an event happens to the second sender. The event also counts for the channel that the sender reads.
    fn hit_second_sender(&mut self, event: &'static str) {
        let features = self.of_channel(0);
        self.hit(event, features);
        self.hit_bridge(event);
    }

    /// Notes that an event happens to a host's daemon.
    fn hit_daemon(&mut self, event: &'static str, whom: Whom) {
        let host = match whom {
            Whom::Daemon => 0,
            Whom::Far => 1,
            Whom::Host(host) => host,
            Whom::Publisher(_) | Whom::Reader(_) | Whom::Recorder(_) => return,
        };
        if !self.has_daemon() {
            return;
        }
        let channels = self.begun.iter().copied().chain(self.readers.values().map(|(channel, _)| *channel));
        let here: BTreeSet<u8> = channels.filter(|channel| self.place(*channel).1 == host).collect();
        here.into_iter().for_each(|channel| self.hit_channel(event, channel));
        if !self.begun.is_empty() {
            self.hit_bridge(event);
        }
    }

    /// Notes that an event happens to a publisher, a reader, a recorder or a daemon.
    fn hit_process(&mut self, what: &'static str, whom: Whom) {
        match whom {
            Whom::Publisher(who) => {
                if let Some(channel) = self.publishers.get(&who).copied() {
                    self.hit_channel(named("publisher", what), channel);
                }
            }
            Whom::Reader(who) => {
                if let Some((channel, own)) = self.readers.get(&who).cloned() {
                    let features = self.of_channel(channel);
                    self.hit(named("reader", what), features.into_iter().chain(own));
                }
            }
            Whom::Recorder(channel) => {
                let channel = self.place(channel).0 as u8;
                if self.recorded.contains(&channel) {
                    let features = self.of_channel(channel);
                    // The daemon's own recorder is another process.
                    let met = features.into_iter().filter(|feature| *feature != "journal-daemon");
                    self.hit(named("recorder", what), met);
                }
            }
            Whom::Daemon | Whom::Far | Whom::Host(_) => self.hit_daemon(named("daemon", what), whom),
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Open { who, channel, anew, .. } => self.open(who, channel, anew && !self.has_daemon()),
            Step::OpenWithMode { who, channel, .. } => self.open(who, channel, false),
            Step::Close { who } => self.close(who),
            Step::Subscribe { who, channel, start, wait, .. } => self.subscribe(who, channel, start, wait),
            Step::Attach { who, channel, start, wait, conflate, gate } => {
                self.subscribe(who, channel, start, wait);
                self.attach(who, channel, conflate.is_some(), gate);
            }
            Step::Read { who, how: How::Async | How::Mixed, .. } => {
                if let Some((_, own)) = self.readers.get_mut(&who) {
                    own.insert("async");
                }
            }
            Step::Leave { who } => self.left.extend(self.readers.remove(&who).map(|_| who)),
            Step::Kill { whom, .. } => {
                self.hit_process("killed", whom);
                self.forget(whom);
            }
            Step::Crash { whom } => self.hit_process("killed", whom),
            Step::Restart { whom } => self.hit_process("restarted", whom),
            Step::Stop { whom } => self.hit_process("stopped", whom),
            Step::Start { whom: Whom::Recorder(channel) } => {
                self.recorded.insert(self.place(channel).0 as u8);
            }
            Step::Limit { whom, spare: Some(_) } => self.hit_process("descriptors", whom),
            Step::Fork { whom } => self.hit_process("fork", whom),
            Step::TakeOver { channel } => self.take_over(channel),
            Step::Reload { channel, change } => self.reload(channel, change),
            Step::Plant { plant, channel } => self.plant(plant, channel),
            Step::Tamper { channel, .. } => self.hit_channel("host.foreign", channel),
            Step::Unknown {} => self.hit("host.foreign", ["files"]),
            Step::Carry { trouble, .. } => self.carry(trouble),
            Step::Forge { .. } => self.hit_bridge("host.foreign"),
            Step::Net(step) => self.take_between_hosts(step),
            Step::Bound { whom, bound: Bound::FileSize, most: Some(_) } => self.limit_files(whom),
            Step::Host(step) => self.change_the_host(step),
            _ => {}
        }
    }

    fn open(&mut self, who: u8, channel: u8, anew: bool) {
        // An actor that attaches again closes its channel first.
        self.close(who);
        if self.publishers.values().any(|held| *held == channel) {
            return;
        }
        if anew && self.begun.contains(&channel) {
            self.hit_channel("publisher.anew", channel);
            // The channel's readers get the event of the end.
            self.readers.retain(|_, (of, _)| *of != channel);
        } else if self.closed.contains(&channel) {
            self.hit_channel("publisher.restarted", channel);
        }
        self.closed.remove(&channel);
        self.begun.insert(channel);
        self.publishers.insert(who, channel);
    }

    fn close(&mut self, who: u8) {
        if let Some(channel) = self.publishers.remove(&who) {
            self.closed.insert(channel);
        }
    }

    fn subscribe(&mut self, who: u8, channel: u8, start: Start, wait: Waiting) {
        self.readers.remove(&who);
        if !self.has_daemon() && !self.begun.contains(&channel) {
            return;
        }
        let start = match start {
            Start::Latest => "latest",
            Start::Oldest => "oldest",
            Start::Sequence(_) => "sequence",
            Start::Board => "board",
        };
        let mut own = Own::from([start]);
        if wait == Waiting::Park {
            own.insert("parked");
        }
        self.readers.insert(who, (channel, own));
        if self.left.remove(&who) {
            self.hit_process("restarted", Whom::Reader(who));
        }
    }

    fn forget(&mut self, whom: Whom) {
        match whom {
            Whom::Publisher(who) => {
                self.publishers.remove(&who);
            }
            Whom::Reader(who) => {
                self.readers.remove(&who);
            }
            Whom::Recorder(channel) => {
                self.recorded.remove(&(self.place(channel).0 as u8));
            }
            Whom::Daemon | Whom::Far | Whom::Host(_) => {}
        }
    }

    fn take_over(&mut self, channel: u8) {
        let is_held = self.publishers.values().any(|held| *held == channel);
        if is_held && self.strict[self.place(channel).0] {
            self.hit_channel("control.takeover", channel);
            self.publishers.retain(|_, held| *held != channel);
        }
    }

    fn reload(&mut self, channel: u8, change: Change) {
        let at = self.place(channel).0;
        if !self.has_daemon() || !self.begun.contains(&channel) {
            return;
        }
        self.channels[at].change_shape(change);
        let event = match change {
            // If a channel is left out of the configuration, its bridge is also left out.
            Change::Remove => "control.removed",
            Change::Add => "control.added",
            Change::Largest | Change::Capacity | Change::Board => "control.sizes",
            Change::Mode => "control.mode",
            Change::Journal if self.story.setup.channels[at].journal.is_some() => "control.journal",
            Change::Broken => "control.refused",
            Change::Journal | Change::Nothing | Change::Gates => return,
        };
        self.hit_channel(event, channel);
        match change {
            Change::Mode => self.strict[at] ^= true,
            Change::Journal => {
                self.journals[at] ^= true;
                self.hit_channel(event, channel);
            }
            _ => {}
        }
    }

    fn plant(&mut self, plant: Plant, channel: u8) {
        match plant {
            Plant::ReadersLink if self.begun.contains(&channel) => self.hit_channel("files.link", channel),
            Plant::ReadersFile if self.begun.contains(&channel) => self.hit_channel("host.foreign", channel),
            Plant::Folder | Plant::FolderAlike if !self.has_daemon() => self.hit("host.foreign", ["files"]),
            _ => {}
        }
    }

    fn carry(&mut self, trouble: Trouble) {
        let pairs: &[Pair] = match trouble {
            Trouble::Prelude | Trouble::Strangers | Trouble::Impostor => &[("plain", "host.foreign")],
            Trouble::Anew => &[("plain", "publisher.anew")],
            Trouble::Older | Trouble::Idle => &[("plain", "bridge.killed")],
            Trouble::Crashes => &[("unicast", "bridge.killed")],
            Trouble::DeadServer | Trouble::OtherMake | Trouble::Requests => &[],
        };
        self.pairs.extend(pairs);
    }

    /// Notes a limit on the size of files. Only features that have files count.
    fn limit_files(&mut self, whom: Whom) {
        let channel = match whom {
            Whom::Publisher(who) => self.publishers.get(&who).copied(),
            Whom::Reader(who) => self.readers.get(&who).map(|(channel, _)| *channel),
            Whom::Recorder(channel) => Some(self.place(channel).0 as u8),
            Whom::Daemon => self.begun.first().copied(),
            Whom::Far | Whom::Host(_) => None,
        };
        let Some(channel) = channel else { return };
        let wanted: &[&str] = match whom {
            Whom::Recorder(_) => &["record"],
            Whom::Daemon => &["daemon", "journal-daemon"],
            _ => &["files"],
        };
        let features = self.of_channel(channel).into_iter().filter(|feature| wanted.contains(feature));
        self.hit("host.size", features);
    }

    /// Notes a change of the host. It counts for the features that are in the changed directory, or that read the wall clock.
    fn change_the_host(&mut self, step: HostStep) {
        let is_small = self.story.setup.limits.as_ref().is_some_and(|limits| limits.small);
        let event = match step {
            HostStep::Fill(Held::Space(_)) if is_small => "files.full",
            HostStep::Close { .. } => "files.readonly",
            HostStep::Clock { seconds } if seconds > 0 => "host.clock-on",
            HostStep::Clock { seconds } if seconds < 0 => "host.clock-back",
            HostStep::Fill(_) | HostStep::Free | HostStep::Open | HostStep::Clock { .. } => return,
        };
        let is_clock = matches!(step, HostStep::Clock { .. });
        let channels: Vec<u8> = self.begun.iter().copied().collect();
        for channel in channels {
            let is_met = |feature: &&str| match *feature {
                "journal-daemon" | "record" => true,
                "files" => !is_clock,
                _ => false,
            };
            let features = self.of_channel(channel).into_iter().filter(is_met);
            self.hit(event, features);
        }
    }

    fn take_between_hosts(&mut self, step: NetStep) {
        match step {
            NetStep::Sender { does: Does::Kill } if self.has_second_sender => {
                self.has_second_sender = false;
                self.hit_second_sender("bridge.killed");
            }
            NetStep::Sender { does: Does::End } if self.has_second_sender => {
                (self.has_second_sender, self.is_second_sender_closed) = (false, true);
            }
            NetStep::Sender { does: Does::Stop } if self.has_second_sender => {
                self.hit_second_sender("bridge.stopped")
            }
            NetStep::Sender { does: Does::Start } => {
                if std::mem::take(&mut self.is_second_sender_closed) {
                    self.hit_second_sender("bridge.restarted");
                }
                self.has_second_sender = self.story.setup.net.as_ref().is_some_and(|net| net.has_peer);
            }
            NetStep::TakeOver { .. } => self.hit_bridge("control.takeover"),
            NetStep::Keys { .. } => self.hit_bridge("control.keys"),
            NetStep::Remake { .. } => self.hit_bridge("host.interface"),
            NetStep::Play { .. } => self.hit_bridge("host.foreign"),
            NetStep::Promote {} => self.is_promoted = true,
            NetStep::Sender { .. } | NetStep::Quality { .. } | NetStep::CutOff { .. } => {}
        }
    }
}

/// Returns the name of an event of a process. The events `descriptors` and `fork` count as events of the host.
fn named(process: &'static str, what: &'static str) -> &'static str {
    match (process, what) {
        (_, "descriptors") => "host.descriptors",
        (_, "fork") => "host.fork",
        ("publisher", "killed") => "publisher.killed",
        ("publisher", _) => "publisher.stopped",
        ("reader", "killed") => "reader.killed",
        ("reader", "restarted") => "reader.restarted",
        ("reader", _) => "reader.stopped",
        ("recorder", "killed") => "recorder.killed",
        ("recorder", "restarted") => "recorder.restarted",
        ("recorder", _) => "recorder.stopped",
        (_, "killed") => "daemon.killed",
        (_, "restarted") => "daemon.restarted",
        _ => "daemon.stopped",
    }
}
