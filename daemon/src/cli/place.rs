//! The place of the channels that a verb uses: a daemon or a directory.

use super::waiting::{Waiting, rest};
use anyhow::{Error, Result, anyhow, bail};
use shmcast::hosting::check_channel_name;
use shmcast::{
    ChannelError, ChannelInfo, ChannelStatus, Client, DIR_VARIABLE, Directory, Publisher, PublisherBuilder,
    SOCKET_VARIABLE, Subscriber, SubscriberBuilder,
};
use std::fmt;
use std::path::PathBuf;

/// Where channels are.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct HostArg {
    /// Use the channels in this directory [default: $SHMCAST_DIR; else those of the daemon, if its socket exists; else /dev/shm/shmcast,
    /// if root has made it and you may use it; else your own /dev/shm/shmcast-UID]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// The owner of the channels.
#[derive(Debug, Clone)]
pub(super) enum Host {
    Directory(Directory),
    Daemon(Client),
}

impl HostArg {
    /// Whether the command line or the environment names a directory or a socket.
    pub(super) fn is_named(&self) -> bool {
        self.dir.is_some() || is_set(DIR_VARIABLE) || is_set(SOCKET_VARIABLE)
    }

    /// Names the default directory, for the end of a summary. If the user named a place, or a daemon has the channel, the text is empty.
    pub(super) fn unnamed(&self, host: &Host) -> String {
        match host {
            Host::Directory(directory) if !self.is_named() => format!(", in {}", directory.path().display()),
            Host::Directory(_) | Host::Daemon(_) => String::new(),
        }
    }

    /// Returns the directory or the socket that the command line or the environment names. If they name none, returns the daemon if its
    /// socket exists, and otherwise the default directory of files.
    pub(super) fn host(&self) -> Result<Host> {
        self.choose().map_err(|e| self.explained(e))
    }

    fn choose(&self) -> Result<Host, ChannelError> {
        if let Some(dir) = &self.dir {
            return Ok(Host::Directory(Directory::at(dir)));
        }
        if is_set(DIR_VARIABLE) {
            return Ok(Host::Directory(Directory::default()));
        }
        match Client::connect() {
            Ok(client) => Ok(Host::Daemon(client)),
            // If the user names a socket, no other place is tried. If the socket exists and the daemon does not answer, no other place is
            // tried either: programs that use the daemon's channels would not find messages that are published in files.
            Err(e) if !is_set(SOCKET_VARIABLE) && e.is_without_socket() => {
                Ok(Host::Directory(Directory::default()))
            }
            Err(e) => Err(e),
        }
    }

    /// Adds the option that names another place to the error, unless the user named a place already.
    fn explained(&self, error: ChannelError) -> Error {
        match error {
            ChannelError::NoDaemon { .. } if !self.is_named() => anyhow!("{error} (--dir DIR)"),
            other => other.into(),
        }
    }

    /// Does the same as [`host`](Self::host), for a verb about one channel. The channel must be given by a name. A path is refused, because
    /// it would lead out of the directory of channels.
    pub(super) fn host_of(&self, channel: &str) -> Result<(Host, String)> {
        match check(channel)? {
            Some(host) => Ok(host),
            None => Ok((self.host()?, channel.to_owned())),
        }
    }

    /// Does the same as [`host_of`](Self::host_of). If `waits` is set, waits for a daemon that does not answer. Returns `None` after a
    /// signal.
    pub(super) fn host_of_waiting(
        &self,
        waits: bool,
        waiting: &mut Waiting<'_>,
    ) -> Result<Option<(Host, String)>> {
        let (channel, stop) = (waiting.channel, waiting.stop);
        if let Some(host) = check(channel)? {
            return Ok(Some(host));
        }
        loop {
            match self.choose() {
                Ok(host) => return Ok(Some((host, channel.to_owned()))),
                Err(e) if waits && e.is_passing() && waiting.goes_on(&e) => rest(stop),
                Err(e) if waits && e.is_passing() && stop.is_set() => return Ok(None),
                Err(e) => return Err(self.explained(e)),
            }
        }
    }
}

fn is_set(name: &str) -> bool {
    std::env::var_os(name).is_some_and(|value| !value.is_empty())
}

/// Refuses a text that cannot be the name of a channel. With an injected fault, a path names a directory and a channel.
fn check(channel: &str) -> Result<Option<(Host, String)>> {
    if channel.contains('/') {
        let (dir, name) = channel.trim_end_matches('/').rsplit_once('/').unwrap_or((".", channel));
        let (dir, name) = (if dir.is_empty() { "/" } else { dir }, name.trim_end_matches('/'));
        if shmcast::hosting::fault!("paths_lead_out_of_the_directory") {
            return Ok(Some((Host::Directory(Directory::at(dir)), name.to_owned())));
        }
        bail!(
            "channel {channel:?}: a channel is a name, not a path: give the directory with --dir DIR and the \
             channel's name, here `--dir {dir} {name}`"
        );
    }
    check_channel_name(channel)?;
    Ok(None)
}

impl Host {
    pub(super) fn channels(&self) -> Result<Vec<ChannelStatus>, ChannelError> {
        match self {
            Self::Directory(directory) => Ok(directory.channels()?.iter().map(ChannelInfo::status).collect()),
            Self::Daemon(client) => client.channels(),
        }
    }

    pub(super) fn channel(&self, name: &str) -> Result<ChannelStatus, ChannelError> {
        match self {
            Self::Directory(directory) => Ok(directory.channel(name)?.status()),
            Self::Daemon(client) => client.channel(name),
        }
    }

    pub(super) fn publisher(&self, name: &str) -> PublisherBuilder {
        match self {
            Self::Directory(directory) => Publisher::builder(name).directory(directory),
            Self::Daemon(client) => Publisher::builder(name).client(client),
        }
    }

    pub(super) fn subscriber(&self, name: &str) -> SubscriberBuilder {
        match self {
            Self::Directory(directory) => Subscriber::builder(name).directory(directory),
            Self::Daemon(client) => Subscriber::builder(name).client(client),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "{}", directory.path().display()),
            Self::Daemon(client) => write!(f, "the daemon at {}", client.socket().display()),
        }
    }
}
