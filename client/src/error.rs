//! Errors of opening a channel and of publishing.

use crate::gate::{GateError, GateName};
use crate::journal::JournalError;
use rustix::io::Errno;
use shmcast_layout::board::JoinError;
use shmcast_layout::control::RefusalCode;
use shmcast_layout::error::{GeometryError, OpenError, OutOfSequences, TooLarge};
use shmcast_layout::layout::board::BoardError as BoardSizes;
use shmcast_layout::layout::header::Header;
use shmcast_layout::ring::locate::LocateError;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use thiserror::Error;

/// The reason why a publisher or subscriber could not attach, or why a channel could not be read or removed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// The name is not valid for a channel.
    #[error("channel name {name:?}: {why}")]
    Name {
        /// The name given.
        name: String,
        /// The fault that was found.
        why: &'static str,
    },
    /// There is no such channel.
    #[error("no channel {name:?} in {}: start its publisher first, or wait for it", dir.display())]
    NotFound {
        /// The channel.
        name: String,
        /// The directory that was searched for the channel.
        dir: PathBuf,
    },
    /// A publisher or readers use the channel.
    #[error("channel {name:?} is in use by {holder}: stop it first")]
    InUse {
        /// The channel.
        name: String,
        /// The publisher or the readers.
        holder: Holder,
    },
    /// The channel exists, but one of its properties, such as its capacity, has another value than the requested one.
    #[error(
        "channel {name:?} exists with {what} {found}, not {wanted}: leave it out, or remove the channel first"
    )]
    Mismatch {
        /// The channel.
        name: String,
        /// The name of the property.
        what: &'static str,
        /// The value that the channel has.
        found: u64,
        /// The requested value.
        wanted: u64,
    },
    /// The schema of the channel's messages is not the requested one.
    #[error(
        "channel {name:?} has {found}, and {wanted} was asked for: use the type that the channel is for, or another \
         channel; a publisher that makes a channel gives it its schema, and so does the configuration of a daemon that \
         owns it"
    )]
    Schema {
        /// The channel.
        name: String,
        /// The channel's schema.
        found: SchemaId,
        /// The requested schema.
        wanted: SchemaId,
    },
    /// The file is not a segment that this build can use.
    #[error("{}: {source}", path.display())]
    Segment {
        /// The file.
        path: PathBuf,
        /// The fault that was found.
        source: OpenError,
    },
    /// The file system cannot hold the segment. Nothing was made.
    #[error(
        "no room in {} for channel {name:?}, which takes {bytes} B: remove channels, or give a smaller capacity",
        dir.display()
    )]
    NoRoom {
        /// The channel.
        name: String,
        /// The directory in which the segment should lie.
        dir: PathBuf,
        /// Bytes of the channel's segment.
        bytes: u64,
    },
    /// A size is out of range.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// No board can have these sizes.
    #[error("the channel's board: {0}")]
    Board(BoardSizes),
    /// The channel has no board.
    #[error(
        "channel {name:?} has no board: the publisher that makes it gives it one, as shmcast pub --set board.key=0..8 does, and a channel \
         that exists gets one when it is begun anew; a daemon's channel gets the board of its configuration ([channel.board]) with its next \
         publisher"
    )]
    NoBoard {
        /// The channel.
        name: String,
    },
    /// A subscriber was asked to conflate, and also to begin with past messages.
    #[error(
        "channel {name:?}: a reader that conflates begins with the next message or with the board: leave the start out, or conflation"
    )]
    Conflation {
        /// The channel.
        name: String,
    },
    /// A subscriber of some tags was asked to begin with the board ([`Start::Board`](crate::Start::Board)), or to conflate. The board has
    /// only the newest message of each key, whatever its tag, so the subscriber would miss messages without counting them.
    #[error(
        "channel {name:?}: a reader of some tags begins in the ring and does not conflate, because the board has only the newest message \
         of each key, whatever its tag: leave the tags out, or the board and conflation"
    )]
    BoardWithTags {
        /// The channel.
        name: String,
    },
    /// The subscriber could not join the board to the ring.
    #[error("the board of channel {name:?}: {source}")]
    Join {
        /// The channel.
        name: String,
        /// The reason.
        source: JoinError,
    },
    /// The ring does not have the message at which the reader should start, or the ring is damaged.
    #[error("channel {name:?}: {source}")]
    Locate {
        /// The channel.
        name: String,
        /// The fault that was found.
        source: LocateError,
    },
    /// A daemon gave the channel a new segment just before this publisher took the old one. Nothing was changed.
    #[error("channel {name:?} has just moved to a new segment: open it again")]
    Superseded {
        /// The channel.
        name: String,
    },
    /// The directory that has the channel's name contains a file that shmcast did not make. Nothing in the directory was changed.
    #[error(
        "{} is not a channel that can be used: {entry:?} in it {why}; nothing was changed: choose another name or \
         directory, or move that away",
        dir.display()
    )]
    NotAChannel {
        /// The directory.
        dir: PathBuf,
        /// The entry, as a path below the directory.
        entry: String,
        /// The fault that was found.
        why: &'static str,
    },
    /// A directory or segment exists, but its mode is not the requested one.
    #[error(
        "{} exists with mode {found:04o}, which does not fit {wanted:04o}: leave the mode out, change it with chmod, or \
         remove the channel first",
        path.display()
    )]
    Mode {
        /// The path that exists: the channel's directory, its segment, or its parent directory.
        path: PathBuf,
        /// The mode that the path has.
        found: u32,
        /// The requested mode.
        wanted: u32,
    },
    /// The directory belongs to another user.
    #[error("{} belongs to uid {owner}: set SHMCAST_DIR or give a directory of your own", dir.display())]
    ForeignDirectory {
        /// The directory.
        dir: PathBuf,
        /// The owner.
        owner: u32,
    },
    /// No daemon answers at the socket, the daemon closed the connection, or the daemon's answer is invalid.
    #[error("daemon at {}: {source}: {}", socket.display(), socket_advice(socket, source))]
    NoDaemon {
        /// The path of the socket.
        socket: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A daemon accepted the request at the socket, but has not answered in time.
    #[error(
        "the daemon did not answer within {} s at {}: check whether it hangs (systemctl status shmcastd), and restart it",
        patience.as_secs_f32(), socket.display()
    )]
    Silent {
        /// The path of the socket.
        socket: PathBuf,
        /// Time for which the program waited for the answer.
        patience: Duration,
    },
    /// The daemon refused the request.
    #[error("{why}")]
    Refused {
        /// The reason, for programs.
        code: RefusalCode,
        /// The reason, for people.
        why: String,
    },
    /// The builder has [`Wait::Park`](crate::Wait::Park), but the channel is a file, so no daemon can wake the reader.
    #[error(
        "channel {name:?} is a file in {}, and only a daemon wakes parked readers: wait otherwise, such as by \
         sleeping, or have shmcastd own the channel",
        dir.display()
    )]
    NoWaker {
        /// The channel.
        name: String,
        /// The directory that has the channel.
        dir: PathBuf,
    },
    /// A journal cannot be used. For a publisher: the channel must continue where its journal ends, and cannot do so until the journal is
    /// repaired. For a reader: the given journal, or the journal in which the reader begins, cannot be read.
    #[error("channel {name:?}: {source}")]
    Journal {
        /// The channel.
        name: String,
        /// The reason.
        source: Box<JournalError>,
    },
    /// The name of the gate is not valid, or the reader cannot get the gate.
    #[error("channel {name:?}, gate {gate:?}: {why}")]
    Gate {
        /// The channel.
        name: String,
        /// The gate.
        gate: String,
        /// The reason.
        why: GateError,
    },
    /// The channel belongs to another user, and its mode does not allow this user in.
    #[error(
        "{} belongs to uid {owner}, and this user may not {what} it: {source}: its publisher makes it with mode 750 for its group, or 755 \
         for all users to read (shmcast pub --set permissions=755); nobody but its owner publishes",
        path.display()
    )]
    Private {
        /// The channel's directory.
        path: PathBuf,
        /// The owner.
        owner: u32,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// A call of the operating system failed.
    #[error("{what} {}: {source}{}", path.display(), advice(source))]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl ChannelError {
    pub(crate) fn os(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Os { what, path, source }
    }

    /// Whether the cause of this error is a lack of descriptors or memory. Such an error says nothing about the channel or its files.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Os { source, .. } if is_shortage(source))
    }

    /// Whether the daemon accepted the request but failed to perform it. Such a failure says nothing about the channel.
    pub(crate) const fn is_failure(&self) -> bool {
        matches!(self, Self::Refused { code: RefusalCode::Failed, .. })
    }

    /// Whether a file of the channel does not exist.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Os { source, .. } if is_absent(source))
    }
}

/// The message schema in a channel's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaId {
    /// The application's number for the schema; 0 if the channel has no schema number.
    pub id: u64,
    /// The application's name for the schema. A reader that gives the empty name accepts any name.
    pub name: String,
}

impl SchemaId {
    /// Returns the schema in a header.
    pub(crate) fn of(header: &Header) -> Self {
        Self { id: header.schema_id, name: header.schema.clone() }
    }

    /// Whether a channel of schema `found` satisfies a reader that requests this schema.
    pub(crate) fn fits(&self, found: &Self) -> bool {
        self.id == found.id && (self.name.is_empty() || self.name == found.name)
    }

    /// Returns an error if the schema `found` of a channel does not satisfy a reader that requests this schema.
    pub(crate) fn check(&self, channel: &str, found: Self) -> Result<(), ChannelError> {
        let wanted = self.clone();
        if wanted.fits(&found) {
            return Ok(());
        }
        Err(ChannelError::Schema { name: channel.to_owned(), found, wanted })
    }
}

impl fmt::Display for SchemaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.id, self.name.as_str()) {
            (0, "") => write!(f, "no schema"),
            (id, "") => write!(f, "schema {id}"),
            (id, name) => write!(f, "schema {id} {name:?}"),
        }
    }
}

/// The reason why a message was not published.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The payload is larger than the channel's largest message.
    #[error(transparent)]
    TooLarge(#[from] TooLarge),
    /// The channel's sequences are used up, or the gap to be published would use them up.
    #[error(transparent)]
    OutOfSequences(#[from] OutOfSequences),
    /// A gate's reader is too far behind, and the call does not wait or has waited as long as the gate allows. Nothing was published.
    /// Publish the message again later, or drop it.
    #[error("gate {gate} holds the message up: its reader is {behind} B behind; publish it again later")]
    Full {
        /// The gate.
        gate: GateName,
        /// The lag of the gate's reader, in bytes of the ring.
        behind: u64,
    },
    /// The daemon gave the channel to another publisher. An operator requested this, or the channel continued without this publisher while
    /// the publisher was not attached to the daemon.
    #[error(
        "the channel was taken from this publisher, and nobody receives what it publishes: end it, or open the \
         channel again"
    )]
    CutOff,
    /// This publisher is a copy that `fork` made in a child process.
    #[error(
        "this publisher belongs to the process that was forked: open one of its own here, or publish there"
    )]
    Forked,
}

/// The holder of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Holder {
    /// A publisher. The process id and the command name are `None` if this process cannot see the publisher.
    Publisher {
        /// Process id.
        pid: Option<u32>,
        /// Command name.
        command: Option<String>,
    },
    /// Readers.
    Readers {
        /// The number of readers.
        count: usize,
        /// The process id of one reader; 0 if this process cannot see it.
        pid: u64,
    },
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Publisher { pid: Some(pid), command: Some(command) } => {
                write!(f, "publisher {command} (pid {pid})")
            }
            Self::Publisher { pid: Some(pid), command: None } => write!(f, "a publisher (pid {pid})"),
            Self::Publisher { .. } => write!(f, "a publisher that cannot be seen from here"),
            Self::Readers { count: 1, pid: 0 } => write!(f, "a reader that cannot be seen from here"),
            Self::Readers { count, pid: 0 } => write!(f, "{count} readers"),
            Self::Readers { count: 1, pid } => write!(f, "a reader (pid {pid})"),
            Self::Readers { count, pid } => write!(f, "{count} readers (pid {pid} among them)"),
        }
    }
}

/// Whether the error says that the file, or a directory on its path, is missing.
pub(crate) fn is_absent(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Returns advice for the user after an error of the system, for the end of the error's text. Returns an empty text for other errors.
///
/// ```
/// let no_descriptor_is_free = std::io::Error::from_raw_os_error(24);
/// assert!(shmcast::hosting::advice(&no_descriptor_is_free).contains("ulimit -n"));
/// ```
pub fn advice(e: &io::Error) -> &'static str {
    match Errno::from_io_error(e) {
        Some(Errno::MFILE) => ": raise the limit on open files (ulimit -n, LimitNOFILE=)",
        Some(Errno::ROFS) => {
            ": the file system is mounted read-only: mount it for writing, or give a place on another"
        }
        Some(Errno::NOSPC) => ": remove files there, because it lacks space or inodes (df -h, df -i)",
        _ => "",
    }
}

/// Returns advice for the user if this error kept the program from reaching a daemon at `socket`.
fn socket_advice(socket: &Path, e: &io::Error) -> &'static str {
    let is_other = || fs::metadata(socket).is_ok_and(|found| !found.file_type().is_socket());
    match Errno::from_io_error(e) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "the mode of the socket or of a directory keeps this user out: set socket_mode of the daemon, or use channels in a directory"
        }
        Some(Errno::NAMETOOLONG) => "the path of a socket has at most 107 bytes: give a shorter one",
        Some(Errno::PROTOTYPE) => {
            "this is the socket of another program: give the path at which shmcastd listens"
        }
        Some(Errno::CONNREFUSED) if is_other() => {
            "this file is no socket: give the path at which shmcastd listens"
        }
        _ => "start shmcastd, or use channels in a directory",
    }
}

pub(crate) fn is_shortage(e: &io::Error) -> bool {
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(e).is_some_and(|e| shortages.contains(&e))
}
