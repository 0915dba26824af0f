//! Opens the channel that a verb reads. While the verb waits for the channel, it checks again where channels are: at a daemon or in a
//! directory.

use super::place::{Host, HostArg};
use super::stop::Stop;
use super::waiting::{PAUSE, Waiting};
use anyhow::{Result, bail};
use shmcast::{Client, Subscriber, SubscriberBuilder};
use std::time::{Instant, SystemTime};

/// A channel that a verb reads.
pub(super) struct Wanted<'a> {
    pub(super) host: &'a HostArg,
    pub(super) channel: &'a str,
    /// Whether the verb waits for the channel.
    pub(super) waits: bool,
    pub(super) stop: &'a Stop,
}

impl Wanted<'_> {
    /// Opens the channel with the options of `build`. Returns `None` after a signal.
    pub(super) fn open(
        &self,
        build: impl Fn(&Host, &str) -> SubscriberBuilder,
    ) -> Result<Option<(Host, Subscriber)>> {
        let begun = SystemTime::now();
        let mut waiting = Waiting::new(self.channel, self.stop);
        loop {
            let found = self.host.host_of_waiting(self.waits, &mut waiting)?;
            let Some((host, channel)) = found else { return Ok(None) };
            let mut builder = build(&host, &channel);
            // Messages that were published during the wait for the daemon are new to the user.
            if waiting.has_waited {
                builder = builder.waited_since(begun);
            }
            let mut look = SocketLook::new(&host, self.host);
            let opened = builder.open_despite(|e| self.waits && !look.is_there() && waiting.goes_on(e));
            match opened {
                Ok(subscriber) => return Ok(Some((host, subscriber))),
                Err(e) if !(e.is_unknown_channel() || self.waits && e.is_passing()) => return Err(e.into()),
                Err(e) if !self.waits => bail!("{e} (--wait-channel)"),
                Err(_) if self.stop.is_set() => return Ok(None),
                // A daemon was started during the wait, so the place is chosen again.
                Err(_) => {}
            }
        }
    }
}

/// Checks whether a daemon was started after a verb has chosen the default directory. If so, the verb must use the daemon's channels
/// instead.
struct SocketLook {
    is_wanted: bool,
    looked: Instant,
    is_there: bool,
}

impl SocketLook {
    fn new(host: &Host, arg: &HostArg) -> Self {
        let is_wanted = matches!(host, Host::Directory(_)) && !arg.is_named();
        Self { is_wanted, looked: Instant::now(), is_there: false }
    }

    fn is_there(&mut self) -> bool {
        if self.is_wanted && !self.is_there && self.looked.elapsed() >= PAUSE {
            self.looked = Instant::now();
            self.is_there = Client::default_socket().exists();
        }
        self.is_there
    }
}
