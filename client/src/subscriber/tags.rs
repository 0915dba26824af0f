//! The tags of the messages that a subscriber returns.

use std::fmt;

/// A set of tags: one bit for each possible tag.
#[derive(Clone)]
pub(super) struct Tags(Box<[u64; WORDS]>);

const WORDS: usize = (u16::MAX as usize + 1) / u64::BITS as usize;

/// The index of the word that has a tag's bit, and the bit in this word.
fn bit(tag: u16) -> (usize, u64) {
    (tag as usize / u64::BITS as usize, 1 << (u32::from(tag) % u64::BITS))
}

impl Tags {
    /// Whether this tag is in the set. Costs one load.
    pub(super) fn contains(&self, tag: u16) -> bool {
        let (word, bit) = bit(tag);
        self.0[word] & bit != 0
    }
}

impl FromIterator<u16> for Tags {
    fn from_iter<I: IntoIterator<Item = u16>>(tags: I) -> Self {
        let mut words = Box::new([0; WORDS]);
        for (word, bit) in tags.into_iter().map(bit) {
            words[word] |= bit;
        }
        Self(words)
    }
}

impl fmt::Debug for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries((0..=u16::MAX).filter(|tag| self.contains(*tag))).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_the_tags_that_it_was_made_of_and_no_others() {
        let some = [0, 1, 63, 64, 65, 4095, u16::MAX - 1, u16::MAX];
        let tags: Tags = some.into_iter().collect();
        assert!((0..=u16::MAX).all(|tag| tags.contains(tag) == some.contains(&tag)));
        let none: Tags = [].into_iter().collect();
        assert!(!(0..=u16::MAX).any(|tag| none.contains(tag)));
    }
}
