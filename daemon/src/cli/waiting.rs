//! `--wait-channel` waits for a channel, and for a daemon that does not answer. `--watch` continues while a channel cannot be read.

use super::say::{note, print};
use super::stop::Stop;
use anyhow::{Error, Result};
use shmcast::ChannelError;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// The pause between two attempts. A daemon limits the requests of each user.
pub(super) const PAUSE: Duration = Duration::from_millis(500);
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
    pub(super) has_waited: bool,
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
