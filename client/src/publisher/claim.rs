//! A claim: the program writes the payload of a message in place, and then publishes the message.

use super::gated::publish_and_post;
use super::{Mark, Publisher};
use crate::error::PublishError;
use crate::gate::Patience;
use shmcast_layout::fault;
use std::ops::{Deref, DerefMut};

/// Memory for the payload of one message, as [`Publisher::claim`] returns it. A claim dereferences to the bytes.
#[derive(Debug)]
#[must_use = "a claim that is not committed publishes nothing"]
pub struct Claim<'a> {
    pub(super) publisher: &'a mut Publisher,
    pub(super) length: usize,
    pub(super) mark: Mark,
}

impl Claim<'_> {
    /// Sets the message's tag and key flag.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// let mut claim = publisher.claim(4)?;
    /// claim.copy_from_slice(b"book");
    /// claim.mark(Mark { tag: 7, key: true }).commit(4)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mark(mut self, mark: Mark) -> Self {
        self.mark = mark;
        self
    }

    /// Publishes the first `length` bytes and returns the sequence.
    ///
    /// # Errors
    /// [`PublishError::CutOff`] if the channel was taken from this publisher after the claim was made, [`PublishError::OutOfSequences`],
    /// and [`PublishError::Full`]. After an error nothing was published.
    ///
    /// # Panics
    /// When `length` exceeds the length of the claim.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let mut claim = publisher.claim(100)?;
    /// claim[..5].copy_from_slice(b"hello");
    /// assert_eq!(claim.commit(5)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn commit(self, length: usize) -> Result<u64, PublishError> {
        assert!(length <= self.length, "commit of {length} B exceeds the claim of {} B", self.length);
        self.publisher.check_usable()?;
        let Publisher { writer, gates, board, clock, stamps, staging, hosted, .. } = self.publisher;
        let mut nowhere = None;
        let board = if fault!("claims_are_not_on_the_board") { &mut nowhere } else { board };
        let time = || stamps.stamp(*clock);
        publish_and_post(
            writer,
            (gates, hosted),
            board,
            (&staging[..length], self.mark),
            time,
            Patience::Waits,
        )
    }

    /// Publishes nothing. Dropping the claim does the same.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// publisher.claim(100)?.abort();
    /// assert_eq!(publisher.next_sequence(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abort(self) {}
}

impl Deref for Claim<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.publisher.staging[..self.length]
    }
}

impl DerefMut for Claim<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.publisher.staging[..self.length]
    }
}
