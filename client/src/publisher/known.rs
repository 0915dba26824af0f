//! The facts that a publisher knows about itself and its channel.

use super::Publisher;
use crate::clock::Clock;
use shmcast_layout::layout::header::Header;
use shmcast_layout::mem::Step;

impl Publisher {
    /// The remote session that this or an earlier publisher last set with [`session`](Self::session); `None` if there was none.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.remote_session(), None, "the channel is this publisher's own");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn remote_session(&self) -> Option<[u8; 10]> {
        self.segment.session()
    }

    /// The sequence that the next message will get.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// let next = publisher.next_sequence();
    /// assert_eq!(publisher.publish(b"x")?, next);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_sequence(&self) -> u64 {
        self.writer.next_sequence()
    }

    /// This publisher's epoch: 1 for the first publisher of a channel, and greater by one for each later publisher.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.epoch(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn epoch(&self) -> u64 {
        self.writer.epoch()
    }

    /// The largest payload, in bytes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.max_message(), 8 << 10, "an eighth of this ring");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_message(&self) -> usize {
        self.writer.geometry().max_message as usize
    }

    /// The ring's size, in bytes.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.capacity(), 64 << 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn capacity(&self) -> u64 {
        self.writer.geometry().capacity
    }

    /// The clock that stamps this channel's messages.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// let arrived = publisher.clock().now();
    /// publisher.publish_at(b"x", Mark::default(), arrived)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// The steps of the memory's preparation, with their results, refusals included. Empty while a thread still prepares a part of the
    /// memory; see [`PublisherBuilder::prepare`](super::PublisherBuilder::prepare).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// for step in publisher.preparation() {
    ///     println!("{step}"); // "prefault: yes"
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn preparation(&self) -> &[Step] {
        self.prepared.steps()
    }

    /// The header with which the channel was made.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.header().channel, "t");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn header(&self) -> &Header {
        self.segment.header()
    }

    /// Whether the channel was closed when this publisher opened it: the previous publisher had written the end of the stream.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let open = || shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open();
    /// let first = open()?;
    /// assert!(!first.follows_end());
    /// first.leave_open();
    /// let second = open()?;
    /// assert!(!second.follows_end());
    /// second.close();
    /// assert!(open()?.follows_end());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follows_end(&self) -> bool {
        self.follows_end
    }

    /// Whether the channel's files were removed or moved, for example by a cleanup program. New readers then do not find the channel: drop
    /// the publisher, and open the channel again. Costs two system calls. Always false if a daemon owns the channel.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert!(!publisher.is_removed());
    /// std::fs::remove_dir_all(dir.path().join("t"))?;
    /// assert!(publisher.is_removed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_removed(&self) -> bool {
        self.place.as_ref().is_some_and(|(place, segment)| !place.leads_to(*segment))
    }

    /// Whether a daemon knows this publisher now; `None` if the channel is a file. Data flows in any case.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// assert_eq!(publisher.is_registered(), None, "a file");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_registered(&self) -> Option<bool> {
        self.hosted.as_ref().map(|hosted| hosted.attachment.is_connected())
    }
}
