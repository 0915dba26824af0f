//! `--wait-channel` waits for a channel, and for a daemon that does not answer. `--watch` continues while a channel cannot be read.

use super::place::{Host, HostArg};
use super::say::{note, print};
use super::stop::Stop;
use anyhow::{Error, Result, bail};
use shmcast::{ChannelError, Client, Subscriber, SubscriberBuilder};
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime};

/// The pause between two attempts. A daemon limits the requests of each user.
const PAUSE: Duration = Duration::from_millis(500);
/// Interval between two views of `--watch`.
const EACH: Duration = Duration::from_secs(1);
/// The longest time for which a signal is not noticed.
const NAP: Duration = Duration::from_millis(20);

/// Sleeps between two attempts, or until a signal comes.
pub(super) fn rest(stop: &Stop) {
    nap(PAUSE, stop);
}

/// Sleeps for `pause`, or until a signal comes.
pub(super) fn nap(pause: Duration, stop: &Stop) {
    let until = Instant::now() + pause;
    while !stop.is_set() && Instant::now() < until {
        std::thread::sleep(NAP.min(until.saturating_duration_since(Instant::now())));
    }
}

/// A wait for a channel.
pub(super) struct Waiting<'a> {
    pub(super) channel: &'a str,
    pub(super) stop: &'a Stop,
    /// Whether the user was told that the daemon does not answer.
    is_told: bool,
    /// Whether there was an error after which the wait continued.
    has_waited: bool,
}

impl<'a> Waiting<'a> {
    pub(super) fn new(channel: &'a str, stop: &'a Stop) -> Self {
        Self { channel, stop, is_told: false, has_waited: false }
    }

    /// Whether the wait continues after this error. Reports once that the daemon does not answer.
    pub(super) fn goes_on(&mut self, error: &ChannelError) -> bool {
        if self.stop.is_set() {
            return false;
        }
        if error.is_passing() && !self.is_told {
            note!("{}: {error}; waiting", self.channel);
        }
        (self.is_told, self.has_waited) = (error.is_passing(), true);
        true
    }
}

/// A view that `--watch` shows every second.
pub(super) struct View<'a> {
    name: &'a str,
    stop: &'a Stop,
    as_json: bool,
    /// Whether the view was shown at least once. Before that, an error ends the verb.
    has_shown: bool,
    /// The last error that was reported on stderr.
    told: Option<String>,
}

impl<'a> View<'a> {
    pub(super) fn new(name: &'a str, as_json: bool, stop: &'a Stop) -> Self {
        Self { name, stop, as_json, has_shown: false, told: None }
    }

    /// The text that clears the terminal before the view is shown.
    pub(super) fn clear(&self) -> &'static str {
        if !self.as_json && std::io::stdout().is_terminal() { "\x1b[H\x1b[2J" } else { "" }
    }

    pub(super) fn shown(&mut self) {
        (self.has_shown, self.told) = (true, None);
    }

    /// Shows an error in place of the view. With JSON, reports it once on stderr.
    ///
    /// # Errors
    /// The error itself, if the view was never shown and no signal came.
    pub(super) fn fail(&mut self, error: Error) -> Result<()> {
        if self.stop.is_set() {
            return Ok(());
        }
        if !self.has_shown {
            return Err(error);
        }
        let text = format!("{}: {error:#}", self.name);
        if !self.as_json {
            return print(format_args!("{}{text}", self.clear()));
        }
        if self.told.as_deref() != Some(&text) {
            note!("{text}");
        }
        self.told = Some(text);
        Ok(())
    }

    /// Waits for the next time to show the view. Returns false after a signal.
    pub(super) fn wait(&self, since: Instant) -> bool {
        nap(EACH.saturating_sub(since.elapsed()), self.stop);
        !self.stop.is_set()
    }
}

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
                // A daemon was started meanwhile.
                Err(_) => {}
            }
        }
    }
}

/// Checks whether a daemon was started after a verb has chosen the default directory. A daemon's channels come before this directory.
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
