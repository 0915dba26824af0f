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
    /// Nobody is allowed to write to the channel's folder of reader pages.
    ReadersClosed,
}

/// Something of a stranger at the path at which a daemon must listen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Squatter {
    /// A stranger's file.
    File,
    /// A symbolic link to a stranger's file.
    Link,
    /// A socket for datagrams, of another service.
    Datagrams,
}

/// The user who made the shared directory of all users of a host, before the first user publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Maker {
    /// Nobody: the directory does not exist.
    Nobody,
    /// One of the users.
    User,
    /// The administrator, with access only for the administrator.
    Closed,
    /// The administrator, with access for all users.
    Open,
}
