//! Messages as the lines brought them, kept to tell a log of the same feed from another one. The ring cannot always do that: what comes
//! behind a hole is published only once the hole is closed.

use std::collections::VecDeque;

use super::super::SECOND_NS;
use super::super::session::Session;
use super::super::wire::Messages;

/// How often a message is kept.
const EVERY_NS: u64 = SECOND_NS / 10;
/// How many are kept: the first of the session, and the last ones.
const MOST: usize = 16;

/// A message as a line brought it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The session.
    pub session: Session,
    /// The sequence.
    pub sequence: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The messages that are kept.
#[derive(Debug, Default)]
pub(super) struct Samples {
    kept: VecDeque<Sample>,
    due_ns: u64,
    taken: u64,
}

impl Samples {
    /// Whether it is time to keep a message.
    #[inline]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }

    /// Keeps the first of some messages of a line.
    pub(super) fn keep(&mut self, now_ns: u64, session: Session, messages: &Messages<'_>) {
        let Some(message) = messages.messages().next() else { return };
        if self.kept.front().is_some_and(|first| first.session != session) {
            self.kept.clear();
        }
        // An empty message says nothing.
        if message.data.is_empty() {
            return;
        }
        let old = if self.kept.len() == MOST { self.kept.remove(1) } else { None };
        let mut bytes = old.map(|old| old.bytes).unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(message.data);
        self.kept.push_back(Sample { session, sequence: message.sequence, bytes });
        self.due_ns = now_ns.saturating_add(EVERY_NS);
        self.taken += 1;
    }

    /// The messages that are kept, and how many have been taken so far.
    pub(super) fn all(&self) -> (&VecDeque<Sample>, u64) {
        (&self.kept, self.taken)
    }
}
