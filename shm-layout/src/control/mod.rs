//! The messages of the control socket: requests of programs, replies of the daemon, and reports of channels.
//!
//! One packet holds one JSON object of at most [`MAX_PACKET`](crate::sys::handoff::MAX_PACKET) bytes. Descriptors are sent beside the
//! object. Unknown requests and fields are errors, so that neither side guesses.
//!
//! A connection begins with [`Request::Hello`]. Each connection is one attachment, which ends together with the connection.
//!
//! `CONTROL.md`, beside `SPEC.md`, describes the conversation for other languages: each packet, with its descriptors.
//!
//! A bell is one end of a pair of stream sockets, through which the daemon wakes a reader. The reader makes the pair, keeps the other end,
//! and sends the bell to the daemon. A byte from the reader says that the reader is about to sleep. A byte from the daemon says that there
//! might be something to read. Each reader has a pair of its own, so that no process can take, stop or forge the bytes of another reader.
//!
//! After a program has subscribed, the daemon can send packets without a request:
//!
//! - `moved` has the new segment and its lock. It can come at any time.
//! - `publisher-gone` goes to a reader that set `watch`. The reader ignores this packet if the segment's state names another epoch, or says
//!   that the channel was closed.
//! - `cut-off` goes to a publisher whose channel was taken away.
//!
//! The daemon changes the charter ([`layout::charter`](crate::layout::charter)) before it sends `moved` or `cut-off`. Programs trust the
//! charter, not the packet.
//!
//! The lock of a segment is a sealed file that holds the segment's uuid. The publisher keeps the file locked. Readers hold a descriptor of
//! the file, but cannot lock the file through it.
//!
//! After a daemon has died, a program attaches to the next daemon and sends its descriptor of the lock. From this descriptor the next
//! daemon learns whether the publisher lives, even if the publisher is stopped and cannot answer itself.

mod gate;
mod properties;
mod status;

use crate::journal::Cause;
pub use gate::{GateReport, GateTerms};
pub use properties::{BoardTerms, Properties, Required, SchemaTerms};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
pub use status::{BoardStatus, LatencyStatus, ReaderStatus};

/// Version of this protocol. The program and the daemon must have the same version.
pub const VERSION: u32 = 2;

/// A program's request. Requests without fields are written with braces: without them, serde would accept unknown fields.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Opens the conversation.
    Hello {
        /// [`VERSION`] of the program.
        version: u32,
    },
    /// Attach as the channel's publisher.
    Publish {
        /// The channel's name.
        channel: String,
        /// Whether this program already publishes and now attaches to a new daemon. If so, it sends the descriptors that it has from the
        /// earlier daemon.
        resume: bool,
        /// Whether the channel's sequences begin at 1 again.
        anew: bool,
        /// The properties that the channel must have. If the channel has other properties, or would get other ones, nothing changes, and
        /// the reply is [`Response::Unfit`].
        #[serde(default, skip_serializing_if = "Required::is_nothing")]
        required: Required,
    },
    /// Pass the pages of the channel's gates to the publisher on this connection.
    Gates {},
    /// Pass the page of a gate to the reader on this connection. The reader then takes the page's lock.
    Gate {
        /// The gate's name.
        gate: String,
    },
    /// The publisher has mapped its segment and needs no further writable map of it.
    Mapped {},
    /// Attach as a reader of the channel.
    Subscribe {
        /// The channel's name.
        channel: String,
        /// Whether this program already reads and now attaches to a new daemon. If so, it sends the descriptors that it has from the
        /// earlier daemon.
        resume: bool,
        /// Whether the reader sleeps between messages. If so, the daemon wakes it through the bell that is sent with this request.
        park: bool,
        /// Whether the reader reads on behalf of others. If so, the daemon neither counts this reader nor shows it to tools.
        #[serde(default)]
        hidden: bool,
        /// Whether the daemon must inform the reader when the publisher dies; false can be left out.
        #[serde(default, skip_serializing_if = "is_false")]
        watch: bool,
    },
    /// Report all channels that the asking user can read.
    List {},
    /// Report one channel.
    Stat {
        /// The channel's name.
        channel: String,
    },
    /// Report all bridges whose channels the asking user can read.
    Bridges {},
    /// Make a standby bridge take over from its peer.
    BridgeTakeOver {
        /// The bridge's name.
        bridge: String,
    },
    /// Promote a channel that a bridge receives, so that it becomes a channel of this host. Send this request after the publisher's host is
    /// lost.
    BridgePromote {
        /// The channel's name.
        channel: String,
        /// Whether to promote even if packets of the publisher's host still arrive; false can be left out.
        #[serde(default, skip_serializing_if = "is_false")]
        force: bool,
    },
    /// Report some past events, and every event from now on.
    Events {
        /// Report this many past events, the oldest first. The number can be left out if it is 0. A daemon keeps only some past events, and
        /// none from before its start.
        #[serde(default, skip_serializing_if = "is_zero")]
        last: u32,
    },
    /// Take a channel away from a publisher that still runs or is stopped. The channel must be strict, so that readers receive no later
    /// messages of this publisher.
    TakeOver {
        /// The channel's name.
        channel: String,
    },
    /// Pass the file of the channel's journal that has a certain message. Without sequence and time, pass the oldest file.
    History {
        /// The channel's name.
        channel: String,
        /// The stream, in 32 hexadecimal digits. If this field is missing, the daemon takes the newest stream. If the journal does not have
        /// this stream, the daemon passes a file of the newest stream. The file's header names its stream.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stream: Option<String>,
        /// The message with this sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        sequence: Option<u64>,
        /// The first message that was published at this time or later, in nanoseconds since 1970. It must not be given together with a
        /// sequence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        time_ns: Option<u64>,
        /// The salt (the random number) of a file that the reader has read to its end. The daemon then passes a later file, if there is
        /// one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        read: Option<u64>,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// The daemon's reply.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Response {
    /// The conversation can continue.
    Welcome {
        /// [`VERSION`] of the daemon.
        version: u32,
        /// A number that grows with each start of the daemon.
        instance: u64,
    },
    /// The daemon is still making the memory of its channels. Send `hello` again immediately. The daemon answers this second `hello` when
    /// the memory is made.
    Starting {},
    /// Attached as publisher.
    Publishing {
        /// The generation into which the publisher publishes.
        generation: u64,
        /// Number of the channel's gates, which the publisher requests by [`Request::Gates`]; 0 can be left out.
        #[serde(default, skip_serializing_if = "is_zero")]
        gates: u32,
    },
    /// The channel has, or would get, other properties than the publisher requires. Nothing has changed.
    Unfit(Properties),
    /// A gate. The publisher gets the gate's page together with this packet. The gate's reader gets two descriptors of the page. It locks
    /// the page through the first one, and maps the page through the second one.
    Gate(GateTerms),
    /// Attached as reader.
    Subscribed(Generation),
    /// The reply is complete.
    Done {},
    /// The request is refused.
    Refused {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason for people, and what to do next.
        why: String,
    },
    /// A channel, without its readers.
    Channel(Box<ChannelStatus>),
    /// Some of the readers of the channel in the last [`Channel`](Self::Channel) packet.
    Readers {
        /// The readers.
        readers: Vec<ReaderStatus>,
    },
    /// A bridge.
    Bridge(Box<BridgeStatus>),
    /// The channel was promoted: it now belongs to this host.
    Promoted(Promotion),
    /// The channel continues in another segment. The segment comes with this packet.
    Moved(Generation),
    /// The channel's publisher is gone and has not closed the channel. Only readers that requested this packet get it.
    PublisherGone {
        /// The generation into which the publisher published.
        generation: u64,
        /// The publisher's epoch.
        epoch: u64,
    },
    /// A file of the channel's journal. The file's descriptor comes with this packet.
    History(History),
    /// The channel was taken from this publisher. From now on, no reader receives what this publisher publishes.
    CutOff {},
    /// An event.
    Event(Event),
}

/// The result of a promotion: a channel that came from another host now belongs to this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promotion {
    /// The session under which the channel is sent from now on.
    pub session: String,
    /// The first of the messages that will never arrive.
    pub from: u64,
    /// The last of the messages that will never arrive. The next published message has the sequence after this one.
    pub to: u64,
}

/// A generation of a channel: one of the segments that the channel uses one after the other. The daemon sends this description, because
/// readers cannot trust the words in a segment, to which publishers can write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// The number of the generation, from 1.
    pub generation: u64,
    /// The first sequence in the generation.
    pub first: u64,
    /// The generation in which sequences last began at 1. It is this generation or an earlier one.
    pub restarted: u64,
    /// Whether each publisher gets a generation of its own. If so, messages of a publisher that was cut off are not valid.
    pub strict: bool,
    /// Whether the daemon keeps a journal of the channel, which readers can request by [`Request::History`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub journal: bool,
}

/// A file of a channel's journal that the daemon passes to a reader. The reader compares these fields with the bytes of the file. If they
/// differ, the bytes of the file are right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// The number of the file.
    pub file: u64,
    /// The sequence of the first message that the file can have. If it is above the requested sequence, the journal has no older message.
    pub first: u64,
    /// The offset of the frame at which to start reading. The requested message is in this frame or in a later one.
    pub offset: u64,
    /// Whether a recorder appends to the journal at present.
    pub recording: bool,
}

/// The reason why the daemon refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum RefusalCode {
    /// The two sides speak different versions.
    Version,
    /// The daemon has no such channel.
    UnknownChannel,
    /// The channel's lists do not name this user.
    Denied,
    /// The channel has a live publisher.
    Busy,
    /// This user has too much open or asks too often.
    Limit,
    /// The daemon does not understand the request, or the request is not allowed at this point of the conversation.
    BadRequest,
    /// The daemon tried and failed.
    Failed,
    /// The daemon keeps no journal of this channel.
    NoJournal,
    /// The channel has no such gate.
    UnknownGate,
}

impl RefusalCode {
    /// The name as it appears in packets, logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Version => "version",
            Self::UnknownChannel => "unknown-channel",
            Self::Denied => "denied",
            Self::Busy => "busy",
            Self::Limit => "limit",
            Self::BadRequest => "bad-request",
            Self::Failed => "failed",
            Self::NoJournal => "no-journal",
            Self::UnknownGate => "unknown-gate",
        }
    }
}

/// A process at one end of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Process id, if it is known.
    pub pid: Option<u32>,
    /// The user, if a daemon asked the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// The command name, if the reporting process can see it.
    pub command: Option<String>,
}

/// A channel as tools show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelStatus {
    /// The channel's name.
    pub channel: String,
    /// The state: `new`, `active`, `recovering`, `closed`, `orphaned` (its publisher is gone), `superseded` (replaced), `damaged`, or
    /// `private` (files that this user is not allowed to read).
    pub state: String,
    /// The publisher; `None` if there is no publisher, or if this process cannot see it.
    pub publisher: Option<Process>,
    /// Number of publishers so far.
    pub epoch: u64,
    /// Bytes of the ring.
    pub capacity_bytes: u64,
    /// Largest payload in bytes.
    pub max_message_bytes: u64,
    /// Identity of the segment, in hexadecimal.
    pub uuid: String,
    /// Identity of the stream, in hexadecimal. It changes when the channel's sequences begin at 1 again.
    #[serde(default)]
    pub stream: String,
    /// The time at which the channel's present sequences began, in nanoseconds since 1970.
    pub created_ns: u64,
    /// `counter` or `monotonic`.
    pub clock: String,
    /// The clock's ticks per second.
    pub clock_hz: u64,
    /// The application's number for the message schema; 0 if unused.
    pub schema_id: u64,
    /// The application's name for the message schema.
    pub schema: String,
    /// The operator's `key=value` lines.
    pub labels: String,
    /// Number of published payload bytes. The bytes of up to 64 of the latest messages can be missing.
    pub published_bytes: u64,
    /// The oldest message that a reader can start from.
    pub oldest_sequence: Option<u64>,
    /// The sequence of the next message.
    pub next_sequence: Option<u64>,
    /// A description of the damage, if there is any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The segment's generation, if a daemon owns the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// `takeover` or `strict`, if a daemon owns the channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The journal, if the daemon keeps one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<JournalStatus>,
    /// The board, if the channel has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub board: Option<BoardStatus>,
    /// The gates, as the last publisher with gates reported them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gates: Vec<GateReport>,
    /// The live readers.
    #[serde(default)]
    pub readers: Vec<ReaderStatus>,
    /// The names of fields that this process could not see. The values of these fields have no meaning.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
}

/// The journal that a daemon keeps of a channel, in the form that tools show. The counts begin again with each recorder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalStatus {
    /// The path of the journal's directory.
    pub directory: String,
    /// The state of the recorder: `starting`, `recording`, `refused` (the disk refuses writes, and the recorder tries again) or `failed`
    /// (the recorder ended, and the daemon restarts it).
    pub state: String,
    /// The reason why the channel is not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// First sequence of this recording.
    pub first: u64,
    /// Last sequence taken from the ring.
    pub drained: u64,
    /// Last sequence in a file.
    pub written: u64,
    /// Each message up to this sequence is safe from a power cut, or reported as lost.
    pub durable: u64,
    /// Messages recorded.
    pub messages: u64,
    /// Messages that are not recorded because they were published too fast for the disk.
    pub overrun: u64,
    /// Sequences that were missing when the recording began, and sequences in gaps of the ring.
    pub missing: u64,
    /// The part of `missing` that is in gaps of the ring: these messages never reached this host.
    #[serde(default)]
    pub gaps: u64,
    /// Bytes written to files.
    pub written_bytes: u64,
    /// Bytes in memory that wait for the disk.
    pub waiting_bytes: u64,
    /// Number of the newest file.
    pub file: u64,
    /// The way in which the recorder writes: `direct` (past the page cache) or `buffered` (through the page cache). The text is empty if
    /// nothing is recorded yet, or if the daemon does not report it.
    #[serde(default)]
    pub io: String,
    /// Bytes of all files.
    pub size_bytes: u64,
    /// The oldest sequence that is kept.
    pub oldest: u64,
}

impl JournalStatus {
    /// The number of sequences that the journal lists as lost, for each cause.
    pub const fn lost(&self) -> [(Cause, u64); 3] {
        let unrecorded = self.missing.saturating_sub(self.gaps);
        [(Cause::Overrun, self.overrun), (Cause::Unrecorded, unrecorded), (Cause::Gap, self.gaps)]
    }
}

/// A bridge as tools show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BridgeStatus {
    /// The bridge's name.
    pub bridge: String,
    /// The name of the local channel.
    pub channel: String,
    /// `send` or `receive`.
    pub direction: String,
    /// `waiting`, `running`, `ending` or `failed`.
    pub state: String,
    /// The session that the bridge carries, once this is known.
    pub session: Option<String>,
    /// The event that the bridge waits for, or the reason why the bridge failed.
    pub why: Option<String>,
    /// Steps that the kernel refused, each with its reason. The bridge runs nevertheless.
    pub refusals: Vec<String>,
    /// The bridge's counters: `send` and `repair` if it sends; `receive`, `recovery` and `receive_to_ring` if it receives. Null if the
    /// bridge has never run.
    pub figures: serde_json::Value,
}

/// An event of a channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The time, in nanoseconds since 1970.
    pub time_ns: u64,
    /// The kind of event: `attached`, `detached`, `refused`, `moved`, `taken-over`, `cut-off`, `removed`, `reloaded` and the like.
    pub event: String,
    /// The channel that the event concerns, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// `publisher` or `reader`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The process that the event concerns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<Process>,
    /// Details, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// Encodes a message as a packet.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("control messages have string keys and no failing serializers")
}

/// Decodes a packet.
///
/// # Errors
/// A description of what is wrong with the packet.
pub fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<T, serde_json::Error> {
    serde_json::from_slice(packet)
}

#[cfg(test)]
mod tests;
