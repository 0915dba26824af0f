//! Reports that a channel's publisher is gone and has not closed the channel. The publisher has died, or has left the channel to the next
//! publisher.

use super::Host;
use super::say::note;
use shmcast::Directory;
use std::time::{Duration, Instant};

/// The silence of a channel after which its publisher is checked for the first time.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// The longest pause between two checks of the publisher.
const LAST_LOOK: Duration = Duration::from_secs(30);

pub(super) fn tell_death(channel: &str) {
    note!("{channel}: the publisher is gone and has not closed the channel; waiting for the next");
}

/// Reports once that the publisher of a channel has died, if the channel is a directory of files. During a long silence, the checks become
/// less frequent. The library's own check is not used, because it needs the lock's file, which belongs to the publisher's user.
///
/// If a daemon has the channel, this type does nothing, because the daemon itself tells its readers of a death. Asking the daemon could
/// delay the reader's messages, because a daemon that hangs does not answer.
pub(super) struct PublisherWatch<'a> {
    directory: Option<&'a Directory>,
    channel: &'a str,
    looked: Instant,
    pause: Duration,
    told: bool,
}

impl<'a> PublisherWatch<'a> {
    pub(super) fn new(host: &'a Host, channel: &'a str) -> Self {
        let directory = match host {
            Host::Directory(directory) => Some(directory),
            Host::Daemon(_) => None,
        };
        Self { directory, channel, looked: Instant::now(), pause: FIRST_LOOK, told: false }
    }

    pub(super) fn alive(&mut self) {
        (self.told, self.pause) = (false, FIRST_LOOK);
    }

    pub(super) fn idle(&mut self) {
        let Some(directory) = self.directory.filter(|_| !self.told) else { return };
        if self.looked.elapsed() < self.pause {
            return;
        }
        self.looked = Instant::now();
        self.pause = (self.pause * 2).min(LAST_LOOK);
        if directory.channel(self.channel).is_ok_and(|found| found.status().state == "orphaned") {
            self.told = true;
            tell_death(self.channel);
        }
    }
}
