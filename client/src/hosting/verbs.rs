//! Calls that only the subcommands of `shmcast` need: waits that report errors, publishers that a signal ends, and counts of unread
//! messages.
//!
//! Functions of this module have no examples, because programs do not need them.

use crate::directory::check_name;
pub use crate::error::advice;
use crate::error::{ChannelError, is_absent};
use crate::gate::Meanwhile;
use crate::publisher::Publisher;
use crate::subscriber::{RingAhead, Subscriber, SubscriberBuilder};
use shmcast_layout::control::RefusalCode;
use shmcast_layout::layout::geometry::Geometry;
use shmcast_layout::ring::reader::{Poll, Resume};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::SystemTime;

/// Checks the name of a channel. A channel with an invalid name cannot exist anywhere.
///
/// # Errors
/// [`ChannelError::Name`].
pub fn check_channel_name(name: &str) -> Result<(), ChannelError> {
    check_name(name).map_err(|why| ChannelError::Name { name: name.to_owned(), why })
}

/// Returns the largest message of a ring with this capacity. `max_message` is the wanted size, or `None` for the ring's limit. Returns
/// `None` if there can be no such ring.
pub fn largest_message(capacity: u64, max_message: Option<u64>) -> Option<u64> {
    Some(Geometry::new(capacity, max_message).ok()?.max_message)
}

impl ChannelError {
    /// Whether a program that waits for a channel continues to wait after this error: the daemon does not run, was just restarted, does not
    /// answer, or has too many requests of this user.
    #[doc(hidden)]
    pub fn is_passing(&self) -> bool {
        match self {
            Self::Silent { .. } | Self::Refused { code: RefusalCode::Limit, .. } => true,
            Self::NoDaemon { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::NotFound
                    | io::ErrorKind::ConnectionRefused
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::BrokenPipe
            ),
            _ => false,
        }
    }

    /// Whether there is no socket of a daemon. False if a daemon has ended, because its socket stays.
    #[doc(hidden)]
    pub fn is_without_socket(&self) -> bool {
        matches!(self, Self::NoDaemon { source, .. } if is_absent(source))
    }
}

impl Subscriber {
    /// Returns how many messages, up to the sequence `last`, are not yet received. Counts the ring and the rings that follow it. A skipped
    /// sequence does not count as a message, but each overwritten sequence does. The call does not move the subscriber or its gate.
    #[doc(hidden)]
    pub fn messages_up_to(&mut self, last: u64) -> u64 {
        self.rings_ahead().into_iter().map(|ring| messages_of(ring, last)).sum()
    }

    /// Returns the sequence after the last published message of the ring and of the rings that follow it. It can be up to 64 too low.
    #[doc(hidden)]
    pub fn published_end(&mut self) -> u64 {
        let ends = self.rings_ahead().into_iter().map(|RingAhead { reader, below, .. }| {
            let next = reader.place().sequence;
            (next + reader.lag()).min(below.max(next))
        });
        ends.max().unwrap_or(0)
    }

    /// Whether the channel continues in another ring that has arrived. If so, a call that receives nothing has not found the end of what was
    /// published.
    #[doc(hidden)]
    pub fn is_between_rings(&mut self) -> bool {
        self.has_ring_ahead()
    }
}

/// Counts the messages from the place of a reader on, up to the sequence `last`.
fn messages_of(RingAhead { mut reader, room, below }: RingAhead, last: u64) -> u64 {
    let end = last.saturating_add(1).min(below);
    let (mut out, mut messages) = (vec![0; room], 0);
    while reader.place().sequence < end {
        match reader.poll(&mut out) {
            Poll::Message(_) => messages += 1,
            Poll::Control(_) => {}
            Poll::Lapped => {
                let from = reader.place().sequence;
                match reader.resume(Resume::default()) {
                    Ok(missed) => messages += missed.min(end - from),
                    Err(_) => break,
                }
            }
            Poll::TooSmall { .. } | Poll::Empty | Poll::Superseded | Poll::Corrupt(_) => break,
        }
    }
    messages
}

impl SubscriberBuilder {
    /// Sets the time at which the program began to wait for the daemon. A subscriber with [`Start::Latest`](crate::Start::Latest) then
    /// begins with the messages after this time. If the channel did not exist at this time, the subscriber begins with the channel's first
    /// message.
    #[doc(hidden)]
    pub fn waited_since(mut self, begun: SystemTime) -> Self {
        self.waited_since = Some(begun);
        self
    }

    /// Does the same as [`open_while`](Self::open_while), but also passes the error of the last attempt to `goes_on`. The error says that
    /// the channel does not exist, or it is a [passing](ChannelError::is_passing) error.
    ///
    /// # Errors
    /// [`ChannelError`]. After an error, no file is left.
    #[doc(hidden)]
    pub fn open_despite(
        self,
        goes_on: impl FnMut(&ChannelError) -> bool,
    ) -> Result<Subscriber, ChannelError> {
        self.open_through(goes_on)
    }
}

impl Publisher {
    /// Sets the flag that ends all waits for gates: while `flag` is not 0, no call of this publisher waits for a gate. A message that a
    /// gate holds up is then refused with [`PublishError::Full`](crate::PublishError::Full). If a gate leaves no room for the end of the
    /// stream, the channel stays open.
    #[doc(hidden)]
    pub fn hurry_after(&mut self, flag: Arc<AtomicUsize>) {
        self.hurry(flag);
    }

    /// While a message of this publisher waits for a gate, calls `call` again and again, at least every millisecond if the system lets this
    /// thread run. With [`hurry_after`](Self::hurry_after), the function can end the wait.
    #[doc(hidden)]
    pub fn call_while_waiting(&mut self, call: impl Fn() + Send + Sync + 'static) {
        self.call_meanwhile(Meanwhile::call(call));
    }
}
