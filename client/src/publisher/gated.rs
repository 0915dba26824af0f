//! Publishing on a channel with gates or with a board. This module has the calls that never wait. It also handles messages that the ring's
//! writer has refused, and stores messages on the board.

use super::{Hosted, Mark, Publisher, is_cut_off};
use crate::error::PublishError;
use crate::gate::{GateStatus, Gates, Meanwhile, Patience};
use shmcast_layout::board::BoardWriter;
use shmcast_layout::error::WriteError;
use shmcast_layout::ring::writer::Writer;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

impl Publisher {
    /// Does the same as [`publish`](Self::publish), but never waits for a gate. On a channel without gates, `publish` never waits either.
    ///
    /// A gate with [`Then::Drop`](crate::Then::Drop) can drop its reader here, too: after calls have been refused for the gate's longest
    /// wait, the next call publishes its message. A gate with [`Then::Refuse`](crate::Then::Refuse) never drops its reader.
    ///
    /// # Errors
    /// [`PublishError::Full`] when the reader of a gate is too far behind, and the errors of [`publish`](Self::publish). After an error
    /// nothing was published.
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

    /// Does the same as [`try_publish`](Self::try_publish), with a tag or as a key message.
    ///
    /// # Errors
    /// The same as for [`try_publish`](Self::try_publish).
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

    /// Does the same as [`try_publish_with`](Self::try_publish_with), with a time that the caller has already read; see
    /// [`publish_at`](Self::publish_at).
    ///
    /// # Errors
    /// The same as for [`try_publish`](Self::try_publish).
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

    /// The gates of the channel, with the counts of this publisher since it was opened. Empty without gates. Costs one system call for each
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

    /// Publishes with the present time as the time stamp.
    #[inline(always)]
    pub(super) fn publish_now(
        &mut self,
        payload: &[u8],
        mark: Mark,
        patience: Patience,
    ) -> Result<u64, PublishError> {
        self.check_usable()?;
        if self.board.is_none() {
            let now = || self.stamps.stamp(self.clock);
            if let Ok(sequence) = self.writer.publish_timed(payload, mark.tag, mark.key, now) {
                return Ok(sequence);
            }
        }
        self.publish_slowly(payload, mark, None, patience)
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
        if self.board.is_none()
            && let Ok(sequence) = self.writer.publish(payload, mark.tag, mark.key, time)
        {
            return Ok(sequence);
        }
        self.publish_slowly(payload, mark, Some(time), patience)
    }

    /// Publishes a message on a channel with a board, or a message that the writer has just refused. This function is not inlined, so the
    /// calls on other channels do not contain its code. If `time` is `None`, the message gets the present time.
    #[inline(never)]
    fn publish_slowly(
        &mut self,
        payload: &[u8],
        mark: Mark,
        time: Option<u64>,
        patience: Patience,
    ) -> Result<u64, PublishError> {
        let Self { writer, gates, board, stamps, clock, hosted, .. } = self;
        let time = || time.unwrap_or_else(|| stamps.stamp(*clock));
        publish_and_post(writer, (gates, hosted), board, (payload, mark), time, patience)
    }

    /// Sets the flag that ends all waits for gates: while `flag` is not 0, no call of this publisher waits for a gate.
    pub(crate) fn hurry(&mut self, flag: Arc<AtomicUsize>) {
        if let Some(gates) = &mut self.gates {
            gates.hurry_after(flag);
        }
    }

    /// Sets the function that is called again and again while a message waits for a gate.
    pub(crate) fn call_meanwhile(&mut self, meanwhile: Meanwhile) {
        if let Some(gates) = &mut self.gates {
            gates.call_meanwhile(meanwhile);
        }
    }

    /// Waits for the gates, if this is necessary, before a control record is published.
    ///
    /// # Errors
    /// [`PublishError::Full`] if a gate refuses, and the record might overwrite messages that the gate's reader has not read. A gate that
    /// refuses is never dropped.
    pub(super) fn make_way_for_control(&mut self, patience: Patience) -> Result<(), PublishError> {
        let Self { writer, gates, hosted, .. } = self;
        match (gates, writer.control_beyond_bound()) {
            (Some(gates), Some(beyond)) => {
                gates.make_way(writer, beyond.frontier, patience, &|| is_cut_off(hosted))
            }
            _ => Ok(()),
        }
    }
}

/// Publishes a message, and stores it on the board, if there is one. If a gate holds up the message, first waits as `patience` says. A
/// refused message is not on the board either.
#[inline(always)]
pub(super) fn publish_and_post(
    writer: &mut Writer,
    (gates, hosted): (&mut Option<Box<Gates>>, &Option<Hosted>),
    board: &mut Option<Box<BoardWriter>>,
    (payload, Mark { tag, key }): (&[u8], Mark),
    time: impl Fn() -> u64,
    patience: Patience,
) -> Result<u64, PublishError> {
    loop {
        let time = time();
        match writer.publish(payload, tag, key, time) {
            Ok(sequence) => {
                if let Some(board) = board {
                    board.post(sequence, payload, tag, key, time);
                }
                return Ok(sequence);
            }
            Err(refused) => after_refusal(writer, (gates, hosted), refused, patience)?,
        }
    }
}

/// Called when the writer has refused a message. If a gate is the reason, waits as `patience` says. After `Ok`, the caller tries again.
#[cold]
#[inline(never)]
fn after_refusal(
    writer: &mut Writer,
    (gates, hosted): (&mut Option<Box<Gates>>, &Option<Hosted>),
    refused: WriteError,
    patience: Patience,
) -> Result<(), PublishError> {
    match (refused, gates) {
        (WriteError::TooLarge(error), _) => return Err(error.into()),
        (WriteError::OutOfSequences(error), _) => return Err(error.into()),
        (WriteError::BeyondBound(beyond), Some(gates)) => {
            gates.make_way(writer, beyond.frontier, patience, &|| is_cut_off(hosted))?
        }
        (WriteError::BeyondBound(_), None) => writer.set_bound(u64::MAX),
    }
    Ok(())
}
