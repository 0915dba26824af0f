//! The daemon's configuration: a TOML file. Each of its sections is a struct.
//!
//! An unknown field is an error, so that a misspelt access list never opens a channel to everybody. The error names the field's position in
//! the file and the nearest valid name. A setting that is valid but unwise causes a [`Warning`].
//!
//! The client library has the rules for sizes, names and labels.

use rustix::fs::OFlags;
use serde::Deserialize;
use shmcast::ClockKind;
use shmcast::hosting::{HostedSpec, Preparation};
use shmcast_bridge::spec::BridgeSpec;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

mod board;
mod bridges;
mod fields;
mod gates;
mod host;
mod journal;
mod read;
mod rules;
mod source;
mod warnings;

pub use board::{BoardConfig, key as board_key};
pub use fields::Principal;
pub(crate) use fields::{explain, optional_size, parse_duration, refuse_half_unit, without_string, words_of};
pub use gates::{GateConfig, Lag, Then};
pub use host::Host;
pub use journal::JournalConfig;
pub(crate) use journal::parse_sync;
pub(crate) use rules::MAX_SOCKET_PATH;
pub use source::{Position, Positions, Problem};
pub use warnings::Warning;

/// A configuration file with all fields, their default values, and explanations.
// This path is a link to `systemd/shmcast.toml`. A package of this crate gets a copy of the file.
pub const DEFAULT_CONFIG: &str = include_str!("shmcast.toml");

/// Size limit of a configuration file, in bytes.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The daemon's whole configuration. The default has no channels.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// `[daemon]`
    pub daemon: DaemonConfig,
    /// `[limits]`
    pub limits: LimitsConfig,
    /// `[waker]`
    pub waker: WakerConfig,
    /// `[[channel]]`, in the order of the file; names are unique.
    pub channels: Vec<ChannelConfig>,
    /// `[[bridge]]`, in the order of the file. Names are unique, and `channels` has the channel of each bridge.
    pub bridges: Vec<BridgeSpec>,
    /// The positions of the sections and fields in the file. The list is empty if there is no file.
    pub positions: Positions,
    /// Whether every user may read the file.
    pub is_public: bool,
}

/// Settings of the daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Absolute path of the control socket. If this is `None`, the daemon uses the default path of the client library.
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, 0 to 0o777. They decide which users may connect.
    #[serde(deserialize_with = "fields::mode")]
    pub socket_mode: u32,
    /// Address at which metrics are served over HTTP. If `None`, they are not served.
    #[serde(deserialize_with = "fields::address")]
    pub http: Option<SocketAddr>,
    /// Whether `http` may be an address that other hosts can reach.
    pub http_allow_remote: bool,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self { socket: None, socket_mode: 0o666, http: None, http_allow_remote: false }
    }
}

/// Limits on each user's use of the daemon.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// The limit for the open connections of one uid, 1 to 65536. Each attachment of a program is one connection.
    pub connections_per_uid: u32,
    /// The limit for the requests of one uid per second in the long run, 1 to 1 000 000. The same limit applies to new connections of the
    /// uid. Two kinds of requests do not count: the greeting of a connection, and attaching again after a crash of the daemon.
    pub requests_per_second: u32,
    /// The number of requests that one uid may make in one burst after a pause, 1 to 1 000 000. For new connections, this number or
    /// `connections_per_uid` is the limit, whichever is larger.
    pub request_burst: u32,
    /// The number of events that are kept, 1 to 65536. The daemon keeps this many past events for new followers, and this many unread
    /// events for each slow follower. Older events are dropped.
    pub events_queue: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self { connections_per_uid: 1024, requests_per_second: 200, request_burst: 400, events_queue: 1024 }
    }
}

/// Settings of the thread that wakes parked readers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WakerConfig {
    /// Pause between two checks of a busy channel, in microseconds: 1 to 1 000 000, at most `longest_us`.
    pub shortest_us: u32,
    /// Pause between two checks of a quiet channel, in microseconds: 1 to 1 000 000.
    pub longest_us: u32,
    /// CPU to which the thread is pinned, 0 to 1023. If this is `None`, the thread is not pinned.
    pub cpu: Option<usize>,
}

impl Default for WakerConfig {
    fn default() -> Self {
        Self { shortest_us: 20, longest_us: 4000, cpu: None }
    }
}

/// A `[[channel]]` table.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// The channel's name.
    pub name: String,
    /// Size of the ring in bytes: a power of two from 64 KiB to 16 GiB.
    #[serde(deserialize_with = "fields::size")]
    pub capacity: u64,
    /// Largest payload in bytes; the ring's limit if `None`.
    #[serde(default, deserialize_with = "fields::optional_size")]
    pub max_message: Option<u64>,
    /// Users who may publish. Root and the daemon's own user are always permitted. If the list is empty, no other user is permitted.
    #[serde(default)]
    pub publishers: Vec<Principal>,
    /// Users who may read. Root, the daemon's own user and publishers are always permitted. If the list is empty, no other user is
    /// permitted.
    #[serde(default)]
    pub subscribers: Vec<Principal>,
    /// Whether a new publisher continues in the segment of the previous publisher.
    #[serde(default)]
    pub mode: Mode,
    /// Whether the ring is locked into RAM, so that the kernel never swaps it out.
    #[serde(default = "yes")]
    pub mlock: bool,
    /// Whether the ring uses huge pages, if the kernel has them.
    #[serde(default = "yes")]
    pub hugepages: bool,
    /// NUMA node from which memory is taken if possible. If this is `None`, the kernel chooses.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// The clock that stamps messages. `None` means the CPU's counter, or CLOCK_MONOTONIC on a CPU without an invariant counter.
    #[serde(default)]
    pub clock: Option<ClockChoice>,
    /// The application's number for the message schema; 0 for none.
    #[serde(default)]
    pub schema_id: u64,
    /// The application's name for the message schema.
    #[serde(default)]
    pub schema: String,
    /// The operator's own labels of the channel. Their keys are valid label names in metrics.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The journal of the channel. If `None`, the channel is not recorded.
    #[serde(default)]
    pub journal: Option<JournalConfig>,
    /// The channel's board, which has the last message of each key. If `None`, the channel has no board.
    #[serde(default)]
    pub board: Option<BoardConfig>,
    /// `[[channel.gate]]`: readers for which the channel's publisher waits.
    #[serde(default, rename = "gate")]
    pub gates: Vec<GateConfig>,
}

fn yes() -> bool {
    true
}

impl ChannelConfig {
    /// Makes a channel with this name and capacity. All other fields have their defaults.
    pub fn new(name: impl Into<String>, capacity: u64) -> Self {
        Self {
            name: name.into(),
            capacity,
            max_message: None,
            publishers: Vec::new(),
            subscribers: Vec::new(),
            mode: Mode::default(),
            mlock: true,
            hugepages: true,
            numa_node: None,
            clock: None,
            schema_id: 0,
            schema: String::new(),
            labels: BTreeMap::new(),
            journal: None,
            board: None,
            gates: Vec::new(),
        }
    }

    /// Returns the spec of the channel's segment. If neither `mlock` nor `hugepages` is set, the kernel allocates each page when it is
    /// first touched.
    pub fn spec(&self) -> HostedSpec {
        HostedSpec {
            name: self.name.clone(),
            capacity: self.capacity,
            max_message: self.max_message,
            schema: (self.schema_id, self.schema.clone()),
            labels: self.labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect(),
            clock: self.clock.map(ClockChoice::kind),
            preparation: Preparation {
                numa_node: self.numa_node,
                huge_pages: self.hugepages,
                prefault: self.mlock || self.hugepages,
                lock: self.mlock,
            },
            board: self.board.as_ref().map(BoardConfig::spec),
            is_strict: self.mode == Mode::Strict,
        }
    }
}

/// The clock that stamps the messages of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockChoice {
    /// The CPU's counter if it is invariant; else as `Monotonic`.
    Counter,
    /// CLOCK_MONOTONIC, which every language can read.
    Monotonic,
}

impl ClockChoice {
    fn kind(self) -> ClockKind {
        match self {
            Self::Counter => ClockKind::Counter,
            Self::Monotonic => ClockKind::Monotonic,
        }
    }
}

/// The choice of the segment in which a new publisher of a channel continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The segment of the previous publisher, whose messages stay readable.
    #[default]
    Takeover,
    /// A new segment. Late messages of the previous publisher reach no reader.
    Strict,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Takeover => "takeover",
            Self::Strict => "strict",
        })
    }
}

/// The reason why a configuration could not be read. Do not use any part of such a configuration.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path of the configuration file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file breaks a rule. The text has one line for each problem, in the form `FILE:LINE:COLUMN: what`.
    #[error("{}", lines(origin, problems))]
    Invalid {
        /// The file, or another name for the source of the text.
        origin: String,
        /// The problems, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// The limit for the problems in an error's text. Beyond it, problems are only counted.
const SHOWN: usize = 20;

fn lines(origin: &str, problems: &[Problem]) -> String {
    let mut lines: Vec<String> =
        problems.iter().take(SHOWN).map(|problem| format!("{origin}:{problem}")).collect();
    if problems.len() > SHOWN {
        lines.push(format!("and {} more: run `shmcast check {origin}`", problems.len() - SHOWN));
    }
    lines.join("\n")
}

fn cannot_read(path: &Path) -> impl Fn(io::Error) -> ConfigError + Copy {
    move |source| ConfigError::Read { path: path.to_owned(), source }
}

impl Config {
    /// Returns the bridges. If a bridge uses its channel's journal, its spec gets the directory of the journal.
    pub fn bridges_with_journals(&self) -> Vec<BridgeSpec> {
        self.bridges.iter().map(|bridge| bridges::with_journal(bridge, &self.channels)).collect()
    }

    /// Reads a configuration file.
    ///
    /// # Errors
    /// [`ConfigError`] with all problems that were found.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::of_file(path, File::open(path).map_err(cannot_read(path))?)
    }

    /// Reads a configuration file again. The path must name a regular file. A pipe is empty when it is read again, and an empty text is a
    /// valid configuration without channels. A pipe without a writer would also delay the caller for ever.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn load_again(path: &Path) -> Result<Self, ConfigError> {
        // With this flag, opening a pipe does not wait for a writer. For a regular file it has no effect.
        let flags = OFlags::NONBLOCK.bits() as i32;
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(cannot_read(path))?;
        if !file.metadata().map_err(cannot_read(path))?.is_file() {
            let what = "it is not a regular file, and only a regular file can be read again: put one there";
            return Err(cannot_read(path)(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        Self::of_file(path, file)
    }

    fn of_file(path: &Path, file: File) -> Result<Self, ConfigError> {
        let is_public = file.metadata().map_err(cannot_read(path))?.mode() & 0o004 != 0;
        Ok(Self { is_public, ..Self::read(file, &path.display().to_string())? })
    }

    /// Reads a configuration from `from`, up to its end. Errors name the source as `origin`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(from: impl Read, origin: &str) -> Result<Self, ConfigError> {
        let cannot = cannot_read(Path::new(origin));
        let mut bytes = Vec::new();
        from.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(cannot)?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            let what = format!("larger than {MAX_FILE_BYTES} B: not a configuration file");
            return Err(cannot(io::Error::new(io::ErrorKind::InvalidData, what)));
        }
        let text = String::from_utf8(bytes).map_err(|e| ConfigError::Invalid {
            origin: origin.to_owned(),
            problems: vec![Problem::not_text(e.as_bytes(), e.utf8_error().valid_up_to())],
        })?;
        Self::parse(&text, origin)
    }

    /// Parses the text of a configuration. Errors name the text as `origin`.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with all problems that were found. Contradictions between fields are among them. The error has at most 20
    /// problems of each section or table.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let (config, problems) = read::read(text);
        if problems.is_empty() {
            return Ok(config);
        }
        Err(ConfigError::Invalid { origin: origin.to_owned(), problems })
    }
}
