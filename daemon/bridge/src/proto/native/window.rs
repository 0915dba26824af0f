//! The replay window of RFC 6479. It remembers which of a sender's latest packet numbers were already accepted.
//!
//! The window is a ring of words and moves by whole words. So accepting a packet rarely changes more than one word.

/// The size of the window in packet numbers. Numbers below the window count as already accepted.
pub const WINDOW: u64 = 16_384;
const WORDS: usize = (WINDOW / 64) as usize + 1;

/// The accepted numbers of one series of packets.
#[derive(Debug)]
pub struct Window {
    highest: u64,
    words: Box<[u64; WORDS]>,
}

impl Default for Window {
    fn default() -> Window {
        Window { highest: 0, words: Box::new([0; WORDS]) }
    }
}

impl Window {
    /// Whether the number can still be accepted. Numbers begin with 1.
    pub(crate) fn is_fresh(&self, number: u64) -> bool {
        if number > self.highest {
            return true;
        }
        let is_inside = number != 0 && self.highest - number < WINDOW;
        is_inside && self.words[Window::word(number)] & Window::bit(number) == 0
    }

    /// Marks the number as accepted. Call this only if the packet is known to be the sender's own.
    pub(crate) fn take(&mut self, number: u64) {
        if number > self.highest {
            let passed = (number / 64 - self.highest / 64).min(WORDS as u64);
            (1..=passed).for_each(|step| self.words[Window::word(self.highest + step * 64)] = 0);
            self.highest = number;
        }
        self.words[Window::word(number)] |= Window::bit(number);
    }

    /// Removes all numbers.
    pub(crate) fn clear(&mut self) {
        self.highest = 0;
        self.words.fill(0);
    }

    fn word(number: u64) -> usize {
        (number / 64) as usize % WORDS
    }

    fn bit(number: u64) -> u64 {
        1 << (number % 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn each_number_is_fresh_once_and_old_ones_never(steps in prop::collection::vec((0..5u8, 0..40_000u64), 1..300)) {
            let (mut window, mut taken, mut at) = (Window::default(), BTreeSet::new(), 1u64);
            for (kind, by) in steps {
                let number = match kind {
                    0 => at.saturating_sub(by).max(1),
                    1 => at + by,
                    2 => at.saturating_sub(by % 70).max(1),
                    _ => at + by % 3,
                };
                let highest = taken.last().copied().unwrap_or(0);
                let is_old = number + WINDOW <= highest;
                prop_assert_eq!(window.is_fresh(number), !is_old && !taken.contains(&number), "{} of {}", number, highest);
                if window.is_fresh(number) {
                    window.take(number);
                    taken.insert(number);
                    at = at.max(number);
                }
            }
            prop_assert!(!window.is_fresh(0));
        }
    }
}
