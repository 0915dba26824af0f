//! Chooses the term of a new session. The term is the number after the tag in the session's name.
//!
//! A new term is needed only if sequences cannot continue. Receivers follow the highest term that is alive, so a new term must be above all
//! terms that receivers might have followed.
//!
//! A new term is chosen from three kinds of known terms. Any one of the three is enough if the other two are wrong:
//!
//! - The terms in the state file and of this host's own sessions are certain.
//! - The terms that were heard on lines, or that receivers reported, might be forged.
//! - The term of the clock is too low if the clock was set back.

use super::session::EPOCH_LIMIT;

/// A term from another host is ignored if it exceeds this host's own terms by more than this number. Without this limit, one forged packet
/// could use up all terms.
pub(crate) const MOST_AHEAD: u64 = 1 << 20;

/// The known terms of one channel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The term of the time at which the ring was created.
    pub clock: u64,
    /// The last term of our own, from the state file or from this host's list of sessions.
    pub own: Option<u64>,
    /// The highest term that was heard on the lines.
    pub heard: Option<u64>,
    /// The highest term that receivers have reported, because they follow a later session than ours.
    pub told: Option<u64>,
}

impl Terms {
    /// Returns the term of the new session.
    pub(crate) fn next(&self) -> u64 {
        let sure = self.sure();
        // Another egress of the same ring sends under the ring's own term. This is no reason for a new term.
        let is_later = |term: &u64| *term > sure || (*term == sure && sure > self.clock);
        let others = [self.heard, self.told].into_iter().flatten();
        let others = others.filter(|term| *term <= self.most()).filter(is_later);
        others.max().map_or(sure, |term| term + 1).min(EPOCH_LIMIT - 1)
    }

    /// Returns the highest term that is believed if another host names it. Ignore higher terms: a forged term above this limit would hide
    /// the true terms.
    pub(crate) fn most(&self) -> u64 {
        self.sure().saturating_add(MOST_AHEAD)
    }

    fn sure(&self) -> u64 {
        self.own.map_or(0, |own| own + 1).max(self.clock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_term_is_above_all_that_are_known() {
        let terms = Terms { clock: 100, ..Terms::default() };
        assert_eq!(terms.next(), 100);
        assert_eq!(Terms { own: Some(100), ..terms }.next(), 101, "made anew within the same moment");
        assert_eq!(Terms { own: Some(900), ..terms }.next(), 901, "the clock was set back");
        assert_eq!(Terms { heard: Some(900), ..terms }.next(), 901, "the clock of another host is ahead");
        assert_eq!(Terms { told: Some(900), ..terms }.next(), 901);
        assert_eq!(Terms { own: Some(50), heard: Some(60), told: Some(70), ..terms }.next(), 100);
        assert_eq!(Terms { own: Some(150), heard: Some(151), told: Some(9), ..terms }.next(), 152);
        assert_eq!(Terms { heard: Some(100), ..terms }.next(), 100, "another egress of the same ring");
    }

    #[test]
    fn nobody_can_use_up_the_terms() {
        let terms = Terms { clock: 100, own: Some(70), ..Terms::default() };
        for far in [100 + MOST_AHEAD + 1, EPOCH_LIMIT - 1, u64::MAX] {
            assert_eq!(Terms { heard: Some(far), told: Some(far), ..terms }.next(), 100);
        }
        assert_eq!(Terms { heard: Some(100 + MOST_AHEAD), ..terms }.next(), 101 + MOST_AHEAD);
        assert_eq!(Terms { own: Some(EPOCH_LIMIT - 1), ..terms }.next(), EPOCH_LIMIT - 1);
    }
}
