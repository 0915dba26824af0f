//! Requests to the leader of the stream for the state and the entries of the log, and the handling of a stream without a leader. The leader
//! is the server that decides which entries the stream has.

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::stream::{InfoError, RawMessageErrorKind, State};
use bytes::Bytes;
use std::sync::atomic::Ordering;

use super::{Log, is_decided, refused, sentence};
use crate::proto::lookup::{Found, Lookup};
use crate::proto::want::Want;

/// Whether an error says that there is no such stream.
fn is_absent(error: &InfoError) -> bool {
    let cause = std::error::Error::source(error)
        .and_then(|cause| cause.downcast_ref::<async_nats::jetstream::Error>());
    cause.is_some_and(|cause| cause.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

impl Log {
    /// Returns the state of the log as its leader reports it; `None` if this is not possible now.
    pub(super) async fn state(&self) -> Option<State> {
        match self.stream.get_info().await {
            Ok(info) if is_decided(&info) => {
                self.link.decided();
                self.note_copies(&info);
                Some(info.state)
            }
            Ok(_) => self.wait_for_leader("its servers have elected none that decides"),
            Err(e) if is_absent(&e) => self.make_again().await,
            Err(e) => self.wait_for_leader(&sentence(&e)),
        }
    }

    /// Notes that the stream has no leader. [`Link::why`](crate::status::Link::why) reports this only if it lasts.
    fn wait_for_leader(&self, why: &str) -> Option<State> {
        // While the connection is broken, nothing is noted here, because `Link::why` then reports the connection.
        if self.link.is_connected() {
            self.link.undecided(format!("stream {:?}: {why}", self.name));
        }
        None
    }

    /// If the stream was removed, creates it again, provided that this bridge is allowed to create streams.
    async fn make_again(&self) -> Option<State> {
        let made = match &self.creates {
            Some(nats) => self.create(nats, None).await.map(|info| info.state),
            None => Err(refused(
                &self.name,
                "it is gone: make it by `shmcast bridge stream create`, or send with create = true",
            )),
        };
        made.map_err(|e| self.link.refused(e.to_string())).ok()
    }

    /// Returns the leader's block that answers a request for missing messages. `offset` is the number of bytes that the reader has of the first
    /// wanted message.
    ///
    /// The leader is asked because another server's copy can differ for ever, and a reader can get all of its entries from that server.
    pub(crate) async fn leaders_block(&self, want: Want, offset: u32) -> Found<Bytes> {
        if self.is_alone.load(Ordering::Relaxed) {
            return Found::Nothing;
        }
        let Some(state) = self.state().await else { return Found::Unknown };
        let mut opener = self.opener();
        let mut lookup = Lookup::new(want, offset, (state.first_sequence, state.last_sequence));
        while let Some(number) = lookup.next() {
            let Some(entry) = self.leaders_entry(number).await else { return Found::Unknown };
            if lookup.take(entry.as_ref().map(|(number, block)| (*number, &block[..])), &mut opener) {
                return entry.map_or(Found::Nothing, |(_, block)| Found::Block(block));
            }
        }
        Found::Nothing
    }

    /// Returns the leader's first entry with the number `from` or a higher one. `Some(None)` means that the leader has no such entry, and
    /// `None` that it does not answer.
    pub(crate) async fn leaders_entry(&self, from: u64) -> Option<Option<(u64, Bytes)>> {
        let request = self.stream.raw_message_builder().sequence(from);
        match request.next_by_subject(self.subject.clone()).send().await {
            Ok(message) => Some(Some((message.sequence, message.payload))),
            Err(e) if e.kind() == RawMessageErrorKind::NoMessageFound => Some(None),
            Err(_) => None,
        }
    }

    /// Returns the number of the leader's newest entry in `first..end`.
    pub(super) async fn newest_entry(&self, first: u64, end: u64) -> Option<Option<u64>> {
        let (mut low, mut high, mut newest) = (first, end, None);
        while low < high {
            let middle = low + (high - low) / 2;
            match self.leaders_entry(middle).await? {
                Some((number, _)) if number < high => (low, newest) = (number + 1, Some(number)),
                _ => high = middle,
            }
        }
        Some(newest)
    }
}
