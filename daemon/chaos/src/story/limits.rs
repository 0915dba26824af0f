//! Limits of processes and of the host, which steps set and lift.

use serde::{Deserialize, Serialize};

/// The things of a host that are limited in a story.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Whether the channels are files, and no daemon runs.
    pub files: bool,
    /// Whether the directory of the channels, or of the journals, is a small file system.
    pub small: bool,
    /// Whether daemon and recorders run as a user without other processes. Only such a user's threads can be limited.
    pub user: bool,
    /// Whether the programs have a wall clock that steps set.
    pub clock: bool,
}

/// A limit of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The largest file that the process can write, in KiB.
    FileSize,
    /// The memory that the process can lock, in KiB.
    Locked,
    /// The number of descriptors.
    Descriptors,
    /// The number of threads of the process's user.
    Threads,
    /// The address space, in MiB.
    Address,
}

/// A directory of a story.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Where {
    /// The directory of all channels, or of all journals if a daemon owns the channels.
    All,
    /// The directory of the channel, or of its journal, with this number.
    Of(u8),
    /// The folder of the reader pages of the channel with this number, or the folder of its journal's stream.
    Within(u8),
}

/// The resource that a small file system lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// Only this many KiB are free.
    Space(u32),
    /// No further file can be made.
    Files,
}

/// A change of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostStep {
    /// The small file system becomes full.
    Fill(Held),
    /// The small file system has space again.
    Free,
    /// A directory gets this mode, which lacks some permissions.
    Close { place: Where, mode: u16 },
    /// All directories have their permissions again.
    Open,
    /// The wall clock is set this many seconds ahead of the true time.
    Clock { seconds: i64 },
}

/// A command that runs under a limit from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verb {
    /// `shmcast ls`
    Ls,
    /// `shmcast stat`
    Stat,
    /// `shmcast sub`, which receives the oldest messages
    Sub,
    /// `shmcast pub` to a channel that no other step uses. The channel is removed afterwards.
    Pub,
    /// `shmcast journal stat`
    JournalStat,
    /// `shmcast journal verify`
    JournalVerify,
}
