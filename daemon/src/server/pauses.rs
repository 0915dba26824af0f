//! Pauses before something that has failed is started again.

use std::time::Duration;

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(30);
/// If something has run for this time before it failed, the failure counts as a first failure. So the pauses begin with the shortest pause
/// again.
const HEALTHY: Duration = Duration::from_secs(60);

/// The pauses before restarts of something that fails. The first pause is a second, and each later one is twice as long.
#[derive(Debug)]
pub(super) struct Pauses {
    next: Duration,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Pauses {
    /// Returns the pause after a failure. `ran` is the duration of the run that failed.
    pub(super) fn after(&mut self, ran: Duration) -> Duration {
        let pause = if ran >= HEALTHY { FIRST } else { self.next };
        self.next = (2 * pause).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_one_after_the_other_are_tried_ever_more_rarely() {
        let mut pauses = Pauses::default();
        let mut seconds = |ran| pauses.after(Duration::from_secs(ran)).as_secs();
        assert_eq!([0; 7].map(&mut seconds), [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!([59, 60, 0].map(&mut seconds), [30, 1, 2]);
    }
}
