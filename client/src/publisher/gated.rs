//! Publishing on a channel with gates: calls that never wait, and what happens to a message that the ring's writer has refused.

use super::{Mark, Publisher};
use crate::error::PublishError;
use crate::gate::{GateStatus, Gates, Patience};
use shmcast_layout::error::WriteError;
use shmcast_layout::ring::writer::Writer;

impl Publisher {
    /// As [`publish`](Self::publish), but never waits for a gate. On a channel without gates both do the same.
    ///
    /// A gate that drops its reader does so here, too: once calls have been refused for as long as one message may wait, the next call
    /// goes through. A gate that refuses never lets go.
    ///
    /// # Errors
    /// [`PublishError::Full`] when the reader of a gate is too far behind. Otherwise as [`publish`](Self::publish). After an error nothing
    /// was published.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Gate, PublishError, Publisher, Subscriber};
    /// let builder = Publisher::builder("t").dir(dir.path()).capacity(64 << 10);
    /// let mut publisher = builder.gate(Gate::new("ledger").refuse()).open()?;
    /// let mut ledger = Subscriber::builder("t").dir(dir.path()).gate("ledger").open()?;
    /// let refused = loop {
    ///     if let Err(refused) = publisher.try_publish(b"entry") {
    ///         break refused;
    ///     }
    /// };
    /// assert!(matches!(refused, PublishError::Full { gate, .. } if gate.as_str() == "ledger"));
    /// while ledger.try_recv()?.is_some() {}
    /// publisher.try_publish(b"entry")?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_publish(&mut self, payload: &[u8]) -> Result<u64, PublishError> {
        self.try_publish_with(payload, Mark::default())
    }

    /// As [`try_publish`](Self::try_publish), with a tag or as a key message.
    ///
    /// # Errors
    /// As [`try_publish`](Self::try_publish).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// assert_eq!(publisher.try_publish_with(b"whole book", Mark { key: true, ..Mark::default() })?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_publish_with(&mut self, payload: &[u8], mark: Mark) -> Result<u64, PublishError> {
        self.publish_now(payload, mark, Patience::Never)
    }

    /// As [`try_publish_with`](Self::try_publish_with), with a time that the caller has already read; see [`publish_at`](Self::publish_at).
    ///
    /// # Errors
    /// As [`try_publish`](Self::try_publish).
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let mut publisher = shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open()?;
    /// use shmcast::Mark;
    /// let arrived = publisher.clock().now();
    /// assert_eq!(publisher.try_publish_at(b"tick", Mark::default(), arrived)?, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline(always)]
    pub fn try_publish_at(&mut self, payload: &[u8], mark: Mark, time: u64) -> Result<u64, PublishError> {
        self.check_usable()?;
        self.publish_timed(payload, mark, time, Patience::Never)
    }

    /// The gates of the channel, with what this publisher has counted since it was opened; none without gates. Costs one system call a
    /// gate, and allocates.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// use shmcast::{Gate, GateState, Publisher, Subscriber};
    /// let builder = Publisher::builder("t").dir(dir.path()).capacity(1 << 20);
    /// let publisher = builder.gate(Gate::new("risk")).open()?;
    /// assert_eq!(publisher.gates()[0].state, GateState::Absent);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn gates(&self) -> Vec<GateStatus> {
        self.gates.as_ref().map_or_else(Vec::new, |gates| gates.status(&self.writer))
    }

    /// Publishes with a time stamp of now.
    #[inline(always)]
    pub(super) fn publish_now(
        &mut self,
        payload: &[u8],
        mark: Mark,
        patience: Patience,
    ) -> Result<u64, PublishError> {
        self.check_usable()?;
        let Self { writer, gates, stamps, clock, .. } = self;
        let mut publish =
            |writer: &mut Writer| writer.publish_timed(payload, mark.tag, mark.key, || stamps.stamp(*clock));
        match publish(writer) {
            Ok(sequence) => Ok(sequence),
            Err(refused) => after_refusal(writer, gates, refused, patience, &mut publish),
        }
    }

    /// Publishes with the time stamp `time`. The caller has checked that this publisher is usable.
    #[inline(always)]
    pub(super) fn publish_timed(
        &mut self,
        payload: &[u8],
        mark: Mark,
        time: u64,
        patience: Patience,
    ) -> Result<u64, PublishError> {
        let mut publish = |writer: &mut Writer| writer.publish(payload, mark.tag, mark.key, time);
        match publish(&mut self.writer) {
            Ok(sequence) => Ok(sequence),
            Err(refused) => after_refusal(&mut self.writer, &mut self.gates, refused, patience, &mut publish),
        }
    }

    /// Waits for the gates, if the next control record needs that. A control record is published in any case.
    pub(super) fn make_way_for_control(&mut self) {
        if let (Some(gates), Some(beyond)) = (&mut self.gates, self.writer.control_beyond_bound()) {
            // Only `Full` is possible, and a call that insists drops the gate instead.
            let _ = gates.make_way(&mut self.writer, beyond.frontier, Patience::Insists);
        }
    }
}

/// Called when the writer has refused a message. If a gate is the reason, waits as `patience` says, and then publishes it.
#[cold]
#[inline(never)]
pub(super) fn after_refusal(
    writer: &mut Writer,
    gates: &mut Option<Box<Gates>>,
    mut refused: WriteError,
    patience: Patience,
    publish: &mut dyn FnMut(&mut Writer) -> Result<u64, WriteError>,
) -> Result<u64, PublishError> {
    loop {
        let frontier = match refused {
            WriteError::TooLarge(error) => return Err(error.into()),
            WriteError::OutOfSequences(error) => return Err(error.into()),
            WriteError::BeyondBound(beyond) => beyond.frontier,
        };
        match gates {
            Some(gates) => gates.make_way(writer, frontier, patience)?,
            None => writer.set_bound(u64::MAX),
        }
        match publish(writer) {
            Ok(sequence) => return Ok(sequence),
            Err(again) => refused = again,
        }
    }
}
