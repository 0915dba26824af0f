//! Finds refusals that repeat. A program that waits for a channel asks again and again, and only its first refusal is an event.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::{Duration, Instant};

/// A refusal counts as new if no equal refusal was seen within this time.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// Number of refusals that are remembered. Beyond it, each refusal counts as new.
const MOST: usize = 1024;

/// The refusals of the last minute, as hashes, with the time at which each was last seen.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    hasher: RandomState,
    seen: HashMap<u64, Instant>,
}

impl Repeats {
    /// Whether `refusal` was not seen within the last minute. Remembers that it was seen now.
    pub(super) fn is_new(&mut self, refusal: &impl Hash, now: Instant) -> bool {
        let hash = self.hasher.hash_one(refusal);
        if self.seen.len() >= MOST && !self.seen.contains_key(&hash) {
            self.seen.retain(|_, at| now.duration_since(*at) < FORGOTTEN);
        }
        if self.seen.len() >= MOST && !self.seen.contains_key(&hash) {
            return true;
        }
        self.seen.insert(hash, now).is_none_or(|before| now.duration_since(before) >= FORGOTTEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_repeats_is_told_once_and_again_after_a_quiet_minute() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        assert!(repeats.is_new(&(1, "later"), start));
        for second in 1..600 {
            assert!(!repeats.is_new(&(1, "later"), start + Duration::from_secs(second)), "{second}");
        }
        assert!(repeats.is_new(&(1, "other"), start) && repeats.is_new(&(2, "later"), start));
        assert!(repeats.is_new(&(1, "later"), start + Duration::from_secs(700)));
    }

    #[test]
    fn refusals_without_number_take_no_memory_without_end() {
        let (start, mut repeats) = (Instant::now(), Repeats::default());
        for number in 0..100_000 {
            assert!(repeats.is_new(&number, start));
        }
        assert_eq!(repeats.seen.len(), MOST);
        assert!(repeats.is_new(&200_000, start + FORGOTTEN));
        assert_eq!(repeats.seen.len(), 1, "all others are forgotten");
    }
}
