//! A story: the channels, and a list of steps. A story can be made from a seed, printed, saved, read back and played again.
//!
//! Every subset of a story's steps is also a story, because the runner skips steps that cannot be applied. The shrinker needs this
//! property. A saved story is a file of JSON lines. The first line has the seed, the profile and the channels. Each further line is a step.

#![allow(missing_docs, reason = "fields are explained with their variant")]

mod boards;
mod limits;
mod net;
mod strangers;

pub use boards::{Board, Gate, Lag, Shape, chunk, gate_name};
pub use limits::{Bound, Held, HostStep, Limits, Verb, Where};
pub use net::{Does, Forgery, Net, NetStep, Way};
pub use strangers::{Maker, Plant, Squatter};

use crate::payload::Sizes;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The part of the product that a story tests. Each profile has its own weights for the steps.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// The channels are files.
    Files,
    /// A daemon owns the channels.
    Daemon,
    /// A daemon owns the channels, and can replace a living publisher.
    Strict,
    /// Two hosts, each with a daemon, and a bridge between them.
    Bridge,
    /// The command's verbs, planted files and full file systems.
    Tools,
    /// A daemon owns the channels and records some of them, and readers read journals.
    Journal,
    /// Several hosts, each with its own network and daemon, and senders that take over from each other.
    Hosts,
    /// Limits of processes and of the host are set and lifted while programs run.
    Limits,
}

impl Profile {
    /// Whether a daemon owns the channels.
    pub fn has_daemon(self) -> bool {
        matches!(
            self,
            Self::Daemon | Self::Strict | Self::Bridge | Self::Journal | Self::Hosts | Self::Limits
        )
    }
}

/// All profiles.
pub const PROFILES: [Profile; 8] = [
    Profile::Files,
    Profile::Daemon,
    Profile::Strict,
    Profile::Bridge,
    Profile::Tools,
    Profile::Journal,
    Profile::Hosts,
    Profile::Limits,
];

/// The state of the story before its first step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The channels, by their number.
    pub channels: Vec<Channel>,
    /// Whether a service manager keeps the daemon's descriptors.
    #[serde(default)]
    pub keeps: bool,
    /// The number of lines by which the first channel is sent to a far host. `None` if there is no far host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<u8>,
    /// The hosts, if each of several hosts has its own network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net: Option<Net>,
    /// The limited things of the host, in a story of limits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,
}

impl Setup {
    /// Whether a daemon owns the channels in a story of this profile.
    pub fn has_daemon(&self, profile: Profile) -> bool {
        profile.has_daemon() && !self.limits.as_ref().is_some_and(|limits| limits.files)
    }
}

/// A channel of a story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Channel {
    /// The name.
    pub name: String,
    /// Size of the ring.
    pub capacity: u64,
    /// Largest message.
    pub largest: u64,
    /// Whether each publisher gets a separate segment.
    #[serde(default)]
    pub strict: bool,
    /// The daemon's journal of the channel. `None` if the daemon never records the channel in this story.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<Recorded>,
    /// The board and the gates. The channel's name says which bytes of its messages are the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Shape>,
}

/// The settings with which a daemon records a channel. The files of the journal have the smallest possible size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// The recorder's policy for syncs: `each`, `none` or an interval.
    pub sync: String,
    /// The age at which a file is sealed.
    pub roll_ms: Option<u32>,
    /// Whether the oldest files are removed.
    pub keeps: bool,
}

/// The place where a reader begins or continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Start {
    /// At the next message.
    Latest,
    /// At the oldest message.
    Oldest,
    /// At the message with this sequence.
    Sequence(u64),
    /// With the channel's board.
    Board,
}

/// The way a reader waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Waiting {
    /// Polls without a pause.
    Spin,
    /// Polls in bursts, so that the publisher gets ahead in between.
    Burst,
    /// Polls a hundred times, then yields.
    SpinThenYield,
    /// Yields the CPU after each poll.
    Yield,
    /// Waits longer after each poll that finds nothing.
    Backoff,
    /// Sleeps for a short time after each poll.
    Sleep,
    /// Sleeps until the daemon's waker wakes the reader.
    Park,
}

/// The way a reader receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// `recv_deadline`
    Deadline,
    /// `try_recv`
    Try,
    /// `try_recv_into`, sometimes with buffers that are too small
    Into,
    /// `recv_batch`
    Batch,
    /// `recv_async`, whose future is sometimes dropped
    Async,
    /// All ways in turn.
    Mixed,
}

/// The way a publisher publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sending {
    /// `publish`
    Single,
    /// `publish_with`, with tag and key flag
    Marked,
    /// `publish_at`, with tag and key flag, and with an old time
    Old,
    /// `publish_batch`
    Batch,
    /// `claim` and `commit`
    Claim,
    /// `try_publish_with`, which never waits for a gate
    Try,
}

/// A process of the story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Whom {
    /// Publisher number n.
    Publisher(u8),
    /// Reader number n.
    Reader(u8),
    /// The daemon.
    Daemon,
    /// The far host's daemon.
    Far,
    /// The daemon of the host with this number, which is at least 2.
    Host(u8),
    /// `shmcast record` of the channel with this number. Each recorder has its own directory.
    Recorder(u8),
}

/// The change that a reload makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Nothing.
    Nothing,
    /// The channel is removed.
    Remove,
    /// The channel is added, if it was removed.
    Add,
    /// The channel's largest message doubles, up to the limit that the capacity sets.
    Largest,
    /// The capacity of the channel doubles.
    Capacity,
    /// The strict mode of the channel is switched on or off.
    Mode,
    /// The channel gets a board, another board or none.
    Board,
    /// The channel gets gates, other gates or none.
    Gates,
    /// The daemon no longer keeps the journal of the channel, or keeps it again.
    Journal,
    /// The configuration has an error and must be refused.
    Broken,
}

/// A tool that only reads, and must change nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// `shmcast ls`
    Ls,
    /// `shmcast stat`
    Stat,
    /// `shmcast top --json`
    Top,
    /// `shmcast doctor`
    Doctor,
    /// A scrape of the metrics.
    Metrics,
    /// `shmcast journal verify`
    Verify,
}

/// A fault on the way of a channel to another host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trouble {
    /// Before the feed begins, a stranger sends the receiver packets with sequences that no channel has.
    Prelude,
    /// A stranger sends the receiver well-formed false packets of each kind, one at a time.
    Strangers,
    /// Another host sends other messages on the line, with the same session name.
    Impostor,
    /// The channel is replaced by a new one several times. Messages are published directly after each replacement.
    Anew,
    /// The sender of a newer session dies, and a sender of an older copy of the channel takes over.
    Older,
    /// The first of two repair servers is dead, and the line loses packets.
    DeadServer,
    /// The server answers a request with several packets. Each packet has the sequence of the answer's first message.
    OtherMake,
    /// The server must end although it gets requests without a pause.
    Requests,
    /// Receivers of a unicast feed are killed, one after the other.
    Crashes,
    /// The bridge is killed. The next bridge sends a session of a few messages, and then only heartbeats.
    Idle,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Step {
    /// A publisher opens a channel. With `anew` it replaces an existing channel, and with `full` it prepares the whole memory.
    Open { who: u8, channel: u8, anew: bool, full: bool },
    /// The publisher publishes.
    Publish { who: u8, count: u32, sizes: Sizes, sending: Sending, pause_us: u32 },
    /// The publisher publishes a gap of `by` sequences.
    Gap { who: u8, by: u64 },
    /// The publisher announces a session.
    Session { who: u8, tag: u8 },
    /// The publisher ends cleanly.
    Close { who: u8 },
    /// A publisher opens a channel with a required mode. The opening must succeed only if the channel has this mode or does not exist.
    OpenWithMode { who: u8, channel: u8, mode: u16 },
    /// A process forks a child. The child drops its copies of publisher and reader, and ends.
    Fork { whom: Whom },
    /// A reader subscribes. With `live_only` it never reads the journal.
    Subscribe {
        who: u8,
        channel: u8,
        start: Start,
        wait: Waiting,
        skip: bool,
        page: bool,
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        live_only: bool,
    },
    /// The reader receives for `ms`, and pauses after each message. If `ms` is 0, it receives until the next order.
    Read { who: u8, how: How, ms: u32, rest_us: u32 },
    /// A reader subscribes, and uses the channel's board or one of its gates. With `conflate`, the reader skips old messages of a key if it
    /// is more than this number of bytes behind; 0 stands for half of the ring.
    Attach { who: u8, channel: u8, start: Start, wait: Waiting, conflate: Option<u32>, gate: Option<u8> },
    /// A reader's process searches the board for keys, one after the other.
    Get { who: u8, channel: u8, times: u16, pause_us: u32 },
    /// The reader receives this many events by `recv`, even if this takes long.
    Block { who: u8, events: u32 },
    /// The reader seeks forward by this many messages, or back if the number is negative.
    Seek { who: u8, by: i64 },
    /// The reader closes its subscription.
    Leave { who: u8 },
    /// A process is killed.
    Kill { whom: Whom, after_us: u32 },
    /// A process stops.
    Stop { whom: Whom },
    /// A process that was stopped continues.
    Continue { whom: Whom },
    /// A process is limited to this many descriptors more than it has now. `None` removes the limit.
    Limit { whom: Whom, spare: Option<u8> },
    /// The daemon or recorder starts, if it does not run. This step and the next two apply to daemons and to recorders.
    Start { whom: Whom },
    /// The daemon ends cleanly, and another daemon starts.
    Restart { whom: Whom },
    /// The daemon is killed, and another daemon starts.
    Crash { whom: Whom },
    /// The daemon gets a changed configuration.
    Reload { channel: u8, change: Change },
    /// A takeover: a strict channel is taken from its publisher.
    TakeOver { channel: u8 },
    /// A channel in files is removed.
    Remove { channel: u8 },
    /// A tool reads the state of a channel.
    Look { tool: Tool, channel: u8 },
    /// A stranger puts something into the directory of channels.
    Plant { plant: Plant, channel: u8 },
    /// Tools get a path instead of a channel's name. The path leads to a channel in another directory.
    Stray {},
    /// A stranger's empty folder has the name of a channel. A publisher cannot make this channel, because the channel's description is too
    /// long. The folder must stay empty.
    Misopen {},
    /// A publisher opens a channel with a false count of published messages. The false count is the right count plus `laps` times the
    /// number of entries in the index.
    Tamper { channel: u8, laps: u64 },
    /// A reader receives by calls that do not wait, and reaches a record of a kind that no version has. Messages follow after this record.
    Unknown {},
    /// A reader that prepares its memory attaches to a channel. The channel's file is one large hole, without any allocated page.
    Hollow {},
    /// A publisher is stopped, and its daemon crashes. A second daemon waits for the publisher in vain, and ends. With `brief`, the second
    /// daemon ends without a wait. Then a third daemon starts, and the publisher continues and attaches to this daemon.
    Outlive {
        #[serde(default)]
        brief: bool,
    },
    /// A publisher makes a channel on a kernel that interrupts the allocation of memory at each signal.
    Interrupted {},
    /// `shmcast pub` gets this many lines and a part of another line. Then it is interrupted.
    Pipe { lines: u8 },
    /// A daemon must listen at a path at which there is already a file, a link, or a socket of another program.
    Squat { by: Squatter },
    /// A client sends the daemon this many requests about things that do not exist.
    Flood { requests: u32 },
    /// A user who is in no list of a channel sends requests of all kinds to a daemon.
    Outsider {},
    /// Users of one host publish without a daemon, each at the default place.
    Neighbours { maker: Maker },
    /// The user database does not answer. A user whose name the daemon must look up there sends a request.
    SlowNames {},
    /// A daemon needs longer to make its memory than a client waits for an answer.
    SlowStart {},
    /// A daemon gets a channel's memory back from a service manager that also keeps this many other descriptors.
    Store { others: u16 },
    /// A daemon crashes, and this many readers of one user attach again. The limits of this user allow only few requests.
    Crowd { readers: u16 },
    /// A publisher publishes into a small ring without pause. This many readers attach meanwhile, and continue after laps.
    Rush { readers: u16 },
    /// A publisher publishes and is killed while its reader is stopped. The reader must get the event of the death.
    Bereave { wait: Waiting },
    /// A daemon crashes, and only a stopped reader has the memory of a channel. A second daemon waits in vain for this reader, and ends.
    /// With `brief`, it ends without a wait. Then a third daemon starts.
    Inherit { brief: bool },
    /// A reader without a free descriptor reaches a message that is void, because its publisher was cut off.
    Withhold {},
    /// `shmcast bridge` sends a channel to another directory, while something fails (`trouble`).
    Carry { trouble: Trouble, has_server: bool },
    /// The next step begins before the orders of this step are carried out.
    Race {},
    /// Sets the percentages of datagrams between the hosts that are dropped, duplicated and delayed.
    Wire { loss: u8, copies: u8, late: u8 },
    /// A stranger sends the far host a heartbeat. The heartbeat's sequence is higher than the feed's by `ahead`. Its session is that of the
    /// feed or, if `other` is true, another session.
    Forge { ahead: u64, other: bool },
    /// Something happens between hosts that have their own networks.
    Net(NetStep),
    /// A limit of a running process is set. `None` lifts the limit.
    Bound { whom: Whom, bound: Bound, most: Option<u32> },
    /// Something of the host becomes scarce, or is free again.
    Host(HostStep),
    /// A command runs under a limit from its start.
    Verb { verb: Verb, channel: u8, bound: Bound, most: u32 },
    /// Nothing happens for a while.
    Wait { ms: u32 },
    /// The runner waits until all actors have carried out their orders.
    Settle {},
}

impl Step {
    /// Returns the name of the step for reports.
    pub fn name(&self) -> String {
        if let Self::Net(step) = self {
            return step.name();
        }
        let value = serde_json::to_value(self).expect("a step is plain data");
        value.as_object().and_then(|o| o.keys().next().cloned()).unwrap_or_default()
    }
}

/// A story.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// The seed from which the story was made. It also determines everything random while the story is played.
    pub seed: u64,
    /// The profile.
    pub profile: Profile,
    /// The state before the first step.
    pub setup: Setup,
    /// The steps, in order.
    pub steps: Vec<Step>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FirstLine {
    seed: u64,
    profile: Profile,
    setup: Setup,
}

impl Story {
    /// Returns the story as the lines of a file.
    pub fn to_text(&self) -> String {
        let Self { seed, profile, setup, steps } = self;
        let first = FirstLine { seed: *seed, profile: *profile, setup: setup.clone() };
        let mut text = serde_json::to_string(&first).expect("a story is plain data");
        text.push('\n');
        for step in steps {
            let line = serde_json::to_string(step).expect("a step is plain data");
            writeln!(text, "{line}").expect("strings take everything");
        }
        text
    }

    /// Reads a story from the lines of a file.
    ///
    /// # Errors
    /// The first line that is not valid.
    pub fn from_text(text: &str) -> Result<Self> {
        let mut lines =
            text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
        let Some((_, first)) = lines.next() else { bail!("an empty story") };
        let FirstLine { seed, profile, setup } = serde_json::from_str(first).context("the first line")?;
        let steps = lines
            .map(|(at, line)| serde_json::from_str(line).with_context(|| format!("line {}: {line}", at + 1)))
            .collect::<Result<_>>()?;
        Ok(Self { seed, profile, setup, steps })
    }

    /// Reads a saved story.
    ///
    /// # Errors
    /// The reason why the file cannot be read.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
        Self::from_text(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Saves the story.
    ///
    /// # Errors
    /// The system's error.
    pub fn save(&self, path: &Path) -> Result<()> {
        fs::write(path, self.to_text()).with_context(|| format!("write {}", path.display()))
    }
}
