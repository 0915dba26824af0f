//! Things that strangers put in the places of channels and daemons.

use serde::{Deserialize, Serialize};

/// Something that a stranger puts in the place where channels are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plant {
    /// The channel's folder of reader pages is a symbolic link to a stranger's folder.
    ReadersLink,
    /// An ordinary file among the channel's reader pages.
    ReadersFile,
    /// There is a folder with a stranger's files in the place of the channel.
    Folder,
    /// As `Folder`, with files that have the names of a channel's files.
    FolderAlike,
    /// Nobody may write to the channel's folder of reader pages.
    ReadersClosed,
}

/// Something that stands in the place where a daemon is to listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Squatter {
    /// A stranger's file.
    File,
    /// A symbolic link to a stranger's file.
    Link,
    /// The socket of another kind of service.
    Datagrams,
}

/// The user who made the directory that all users of a host share, before any of them publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Maker {
    /// Nobody: it is not there.
    Nobody,
    /// One of the users.
    User,
    /// The administrator, for himself alone.
    Closed,
    /// The administrator, for all.
    Open,
}
