//! Requests for missing messages, and their answers.

use async_nats::{StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;

use super::{Log, REQUEST, refused};
use crate::EngineError;
use crate::proto::want::Want;

/// The subjects to which writers send their answers. An answer that arrives long after the reader has repeated the request is still used.
#[derive(Debug)]
pub(crate) struct Inbox {
    name: String,
    answers: Subscriber,
}

impl Inbox {
    /// Returns the round of a request, and the next answer, which is `None` if no writer is there. If the client has ended, the whole
    /// result is `None`.
    pub(crate) async fn next(&mut self) -> Option<(u64, Option<Bytes>)> {
        loop {
            let answer = self.answers.next().await?;
            let round = answer.subject.rsplit('.').next().and_then(|round| round.parse().ok());
            let is_there = answer.status != Some(StatusCode::NO_RESPONDERS);
            if let Some(round) = round {
                return Some((round, is_there.then_some(answer.payload)));
            }
        }
    }

    /// The subject for the answer to the request of a round.
    pub(crate) fn of(&self, round: u64) -> String {
        format!("{}.{round}", self.name)
    }
}

impl Log {
    /// Makes the inbox of a reader.
    pub(crate) async fn inbox(&self) -> Result<Inbox, EngineError> {
        let name = self.client.new_inbox();
        let answers = self.client.subscribe(format!("{name}.*")).await;
        Ok(Inbox { answers: answers.map_err(|e| refused(&self.name, e))?, name })
    }

    /// Asks the writers for messages that the log lacks. The answer arrives at the subject `to`. If the connection does not accept the request
    /// for some time, the request is dropped, because the reader repeats it.
    pub(crate) async fn want(&self, want: Want, to: String) {
        let subject = format!("{}.want", self.subject);
        let asked = self.client.publish_with_reply(subject, to, Bytes::copy_from_slice(&want.encode()));
        // An error means that the client has ended. The next request to the log then fails too, and reports the error.
        let _ = tokio::time::timeout(REQUEST, asked).await;
    }
}
