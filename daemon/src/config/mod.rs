//! The daemon's configuration: one TOML file, one struct a section.
//!
//! What is not known here is an error with its place in the file and the nearest valid name, so that a misspelt access
//! list never becomes an open channel. What is legal but unwise is a [`Warning`]. Nothing here opens a socket or makes
//! a channel; the rules for sizes, names and labels are the client library's own.

use serde::Deserialize;
use shmcast::hosting::{HostedSpec, Preparation};
use shmcast_bridge::spec::BridgeSpec;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use thiserror::Error;

mod bridges;
mod fields;
mod host;
mod read;
mod rules;
mod source;
mod warnings;

pub use fields::Principal;
pub(crate) use fields::refuse_half_unit;
pub use host::Host;
pub use source::{Position, Positions, Problem};
pub use warnings::Warning;

/// A configuration file with every field at its default, and explained.
// A link to `systemd/shmcast.toml`, of which a package of this crate gets a copy.
pub const DEFAULT_CONFIG: &str = include_str!("shmcast.toml");

/// Bytes of the largest file that is read as a configuration.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Everything that the daemon is told by its administrator. The default has no channels.
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
    /// `[[bridge]]`, in the order of the file; names are unique, and each channel is there.
    pub bridges: Vec<BridgeSpec>,
    /// Where in the file things stand; empty if there is none.
    pub positions: Positions,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// Absolute path of the control socket; where the client library looks for it if `None`.
    pub socket: Option<PathBuf>,
    /// Permissions of the socket, 0 to 0o777: who may connect at all.
    #[serde(deserialize_with = "fields::mode")]
    pub socket_mode: u32,
    /// Where metrics are served over HTTP; nowhere if `None`.
    #[serde(deserialize_with = "fields::address")]
    pub http: Option<SocketAddr>,
    /// Whether `http` may be an address that other hosts reach.
    pub http_allow_remote: bool,
}

impl Default for DaemonConfig {
    fn default() -> Self {
        Self { socket: None, socket_mode: 0o666, http: None, http_allow_remote: false }
    }
}

/// How much of the daemon one user may take.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Connections that one uid may have open, 1 to 65536. Each attachment is one.
    pub connections_per_uid: u32,
    /// Requests a second that one uid may make in the long run, 1 to 1 000 000, and as many connections. A connection's
    /// greeting is no request, and neither is coming back after a crash of the daemon.
    pub requests_per_second: u32,
    /// Requests that one uid may make at once after a quiet time, 1 to 1 000 000. Connections: this many, or
    /// `connections_per_uid` if that is more.
    pub request_burst: u32,
    /// Events kept for programs that ask for the past, and for one that follows and is slow, 1 to 65536; the oldest are
    /// dropped.
    pub events_queue: u32,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self { connections_per_uid: 1024, requests_per_second: 200, request_burst: 400, events_queue: 1024 }
    }
}

/// The thread that wakes parked readers.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WakerConfig {
    /// Pause between two looks at a busy channel, in microseconds: 1 to 1 000 000, at most `longest_us`.
    pub shortest_us: u32,
    /// Pause between two looks at a quiet channel, in microseconds: 1 to 1 000 000.
    pub longest_us: u32,
    /// CPU that the thread is pinned to, 0 to 1023; none if `None`.
    pub cpu: Option<usize>,
}

impl Default for WakerConfig {
    fn default() -> Self {
        Self { shortest_us: 20, longest_us: 4000, cpu: None }
    }
}

/// One channel.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChannelConfig {
    /// Its name.
    pub name: String,
    /// Bytes of the ring: a power of two from 64 KiB to 16 GiB.
    #[serde(deserialize_with = "fields::size")]
    pub capacity: u64,
    /// Largest payload in bytes; the ring's limit if `None`.
    #[serde(default, deserialize_with = "fields::optional_size")]
    pub max_message: Option<u64>,
    /// Who may publish. Root and the daemon's own user always may; nobody else if empty.
    #[serde(default)]
    pub publishers: Vec<Principal>,
    /// Who may read. Root, the daemon's own user and publishers always may; nobody else if empty.
    #[serde(default)]
    pub subscribers: Vec<Principal>,
    /// What a new publisher finds.
    #[serde(default)]
    pub mode: Mode,
    /// Whether the ring is kept from being swapped.
    #[serde(default = "yes")]
    pub mlock: bool,
    /// Whether the ring is put on huge pages where the kernel has them.
    #[serde(default = "yes")]
    pub hugepages: bool,
    /// NUMA node whose memory is preferred; the kernel's choice if `None`.
    #[serde(default)]
    pub numa_node: Option<u32>,
    /// The application's number for the message schema; 0 for none.
    #[serde(default)]
    pub schema_id: u64,
    /// The application's name for the message schema.
    #[serde(default)]
    pub schema: String,
    /// The operator's own facts about the channel. Keys are fit to be label names in metrics.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

impl ChannelConfig {
    /// A channel with everything but name and capacity at its default.
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
            schema_id: 0,
            schema: String::new(),
            labels: BTreeMap::new(),
        }
    }

    /// What the channel's segment is made with. With neither `mlock` nor `hugepages`, pages arrive as they are touched.
    pub fn spec(&self) -> HostedSpec {
        HostedSpec {
            name: self.name.clone(),
            capacity: self.capacity,
            max_message: self.max_message,
            schema: (self.schema_id, self.schema.clone()),
            labels: self.labels.iter().map(|(key, value)| format!("{key}={value}\n")).collect(),
            preparation: Preparation {
                numa_node: self.numa_node,
                huge_pages: self.hugepages,
                prefault: self.mlock || self.hugepages,
                lock: self.mlock,
            },
            is_strict: self.mode == Mode::Strict,
        }
    }
}

/// What a new publisher of a channel finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The segment of its predecessor, whose messages stay readable.
    #[default]
    Takeover,
    /// A segment of its own, so that nothing its predecessor writes late reaches anybody.
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

/// Why a configuration could not be read. Nothing of it is used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file says something that it may not. One line each, as `FILE:LINE:COLUMN: what`.
    #[error("{}", lines(origin, problems))]
    Invalid {
        /// The file, or what the text came from.
        origin: String,
        /// What is wrong, in the order of the file.
        problems: Vec<Problem>,
    },
}

/// Mistakes that an error's text names before it counts the rest.
const SHOWN: usize = 20;

fn lines(origin: &str, problems: &[Problem]) -> String {
    let mut lines: Vec<String> =
        problems.iter().take(SHOWN).map(|problem| format!("{origin}:{problem}")).collect();
    if problems.len() > SHOWN {
        lines.push(format!("and {} more: run `shmcast check {origin}`", problems.len() - SHOWN));
    }
    lines.join("\n")
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// [`ConfigError`] with everything that was found wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let file = File::open(path).map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::read(file, &path.display().to_string())
    }

    /// Reads to the end of `from`, which errors call `origin`.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn read(from: impl Read, origin: &str) -> Result<Self, ConfigError> {
        let cannot = |source| ConfigError::Read { path: origin.into(), source };
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

    /// Understands the text of a file. `origin` is what errors call it.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with everything that was found wrong, and all that makes no sense together. Of a section or
    /// table with many mistakes, the first 20.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let (config, problems) = read::read(text);
        if problems.is_empty() {
            return Ok(config);
        }
        Err(ConfigError::Invalid { origin: origin.to_owned(), problems })
    }
}
