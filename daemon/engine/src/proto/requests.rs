//! The queue of readers' requests that a sender has not answered yet.

use std::collections::VecDeque;

use super::mutant::{Mutant, is};
use super::want::Want;

/// Greatest number of waiting requests.
pub const MOST_WAITING: usize = 64;

/// The waiting requests, each with the subject for its answer. A reader repeats a request that has no answer yet, so only the newest
/// request of each reader waits. The newest request takes the queue position of the reader's earlier one.
#[derive(Debug)]
pub struct Requests<S> {
    waiting: VecDeque<(Want, S)>,
}

impl<S> Default for Requests<S> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<S: AsRef<str>> Requests<S> {
    /// Adds a request. If there is no room, drops the oldest request, and its reader asks again.
    pub fn add(&mut self, want: Want, to: S) {
        let reader = reader_of(to.as_ref());
        let known = self.waiting.iter_mut().find(|(_, known)| reader_of(known.as_ref()) == reader);
        if let Some(known) = known.filter(|_| !is(Mutant::AnswersInOrder)) {
            *known = (want, to);
            return;
        }
        if self.waiting.len() == MOST_WAITING {
            self.waiting.pop_front();
        }
        self.waiting.push_back((want, to));
    }

    /// Takes the request to answer next.
    pub fn take(&mut self) -> Option<(Want, S)> {
        self.waiting.pop_front()
    }

    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

/// Returns the part of an answer's subject that all requests of one reader have in common. A subject is `_INBOX.READER.REQUEST`. A subject of
/// two words belongs to a single request.
fn reader_of(subject: &str) -> &str {
    match subject.rsplit_once('.') {
        Some((reader, _)) if reader.contains('.') => reader,
        _ => subject,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::want::Wanted;
    use shmcast_bridge::proto::session::Session;

    fn want(first: u64) -> Want {
        Want { session: Session::of_channel("T", 1).unwrap(), first, wanted: Wanted::Exact(0) }
    }

    #[test]
    fn of_each_reader_the_newest_request_waits_in_the_place_of_its_first() {
        let mut requests = Requests::default();
        for (first, to) in
            [(1, "_INBOX.a.1"), (2, "_INBOX.b.1"), (3, "_INBOX.a.2"), (4, "_INBOX.c"), (5, "_INBOX.d")]
        {
            requests.add(want(first), to);
        }
        let taken: Vec<_> =
            std::iter::from_fn(|| requests.take()).map(|(want, to)| (want.first, to)).collect();
        assert_eq!(taken, [(3, "_INBOX.a.2"), (2, "_INBOX.b.1"), (4, "_INBOX.c"), (5, "_INBOX.d")]);
        assert!(requests.is_empty());
    }

    #[test]
    fn of_too_many_readers_the_newest_wait() {
        let mut requests = Requests::default();
        (0..=MOST_WAITING as u64)
            .for_each(|reader| requests.add(want(reader + 1), format!("_INBOX.{reader}.1")));
        assert_eq!(requests.take().map(|(want, _)| want.first), Some(2));
        assert_eq!(std::iter::from_fn(|| requests.take()).count(), MOST_WAITING - 1);
    }
}
