//! The reports of what a journal lost.

use shmcast_journal::Progress;
use std::time::{Duration, Instant};

/// The shortest time between two reports of lost messages. Messages are lost when the disk is too slow.
const LOST_EVERY: Duration = Duration::from_secs(10);

/// The losses that were reported.
#[derive(Debug, Default)]
pub(super) struct Told {
    overrun: u64,
    gaps: u64,
    at: Option<Instant>,
}

impl Told {
    /// Returns what to report now. A loss that comes soon after the last report is reported with the next one.
    pub(super) fn news(&mut self, now: &Progress) -> Vec<String> {
        let is_soon = self.at.is_some_and(|at| at.elapsed() < LOST_EVERY);
        if is_soon { Vec::new() } else { self.rest(now) }
    }

    /// Returns all that was not reported yet.
    pub(super) fn rest(&mut self, now: &Progress) -> Vec<String> {
        let overrun = now.overrun - std::mem::replace(&mut self.overrun, now.overrun);
        let gaps = now.gaps - std::mem::replace(&mut self.gaps, now.gaps);
        let lost = [(overrun, "came too fast for the disk"), (gaps, "never reached this host")];
        let lost = lost.into_iter().filter(|(lost, _)| *lost > 0);
        let news: Vec<_> = lost.map(|(lost, how)| format!("{lost} messages {how}")).collect();
        if !news.is_empty() {
            self.at = Some(Instant::now());
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test for an earlier mistake: the gaps of a ring were not reported.
    #[test]
    fn each_loss_is_reported_once() {
        let (mut told, mut now) = (Told::default(), Progress::default());
        assert!(told.news(&now).is_empty());
        (now.overrun, now.gaps) = (3, 99);
        let news = ["3 messages came too fast for the disk", "99 messages never reached this host"];
        assert_eq!(told.news(&now), news);
        now.gaps = 100;
        assert!(told.news(&now).is_empty(), "it is too soon");
        assert_eq!(told.rest(&now), ["1 messages never reached this host"]);
        assert!(told.rest(&now).is_empty());
    }
}
