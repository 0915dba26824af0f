//! Files and sockets of strangers at the paths of channels and daemons.

use serde::{Deserialize, Serialize};

/// Something that a stranger puts into the directory of channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Plant {
    /// The channel's folder of reader pages is a symbolic link to a stranger's folder.
    ReadersLink,
    /// An ordinary file among the channel's reader pages.
    ReadersFile,
    /// A folder with a stranger's files has the channel's name.
    Folder,
    /// Like `Folder`. In addition, the files in the folder have the names of a channel's files.
    FolderAlike,
    /// Nobody may write to the channel's folder of reader pages.
    ReadersClosed,
}

/// Something at the path where a daemon must listen.
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

/// The user who made the shared directory of all users of a host, before any of them publishes.
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
