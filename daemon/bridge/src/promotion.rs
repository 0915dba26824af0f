//! Promotes a mirror to a channel of this host. A mirror is a channel that was received from another host. It is promoted when the host
//! with the channel's publisher is lost.
//!
//! A promotion skips 2^32 sequences. So no sequence is used twice, even if the lost host published more messages than arrived here. A
//! promotion writes two records to the ring: a gap for the skipped sequences, and then the start of a new session. The channel is sent
//! under the new session from then on.
//!
//! The name of a session of shmcast consists of a tag, which stands for the channel, and an epoch. The new session has the tag of the
//! session under which the channel was received, and a higher epoch.

use shmcast::{Event, MAX_SEQUENCE, PublishError, Publisher, RecvError, Subscriber};
use std::time::Duration;

use super::proto::receiver::DEFAULT_SILENCE_NS;
use super::proto::session::{Session, SessionError};
use super::proto::term::Terms;
use super::sending::term_at;
use super::thread::wall_ns;

/// The number of sequences that a promotion skips.
const FURTHER: u64 = 1 << 32;

/// Returns the reserve that a journal must note before the channel continues at `next`. Publishers are allowed to use the sequences up to
/// the reserve. They can use higher sequences only after the journal has noted a higher reserve.
///
/// The returned reserve leaves room for two kinds of messages: messages that the mirror still receives, and messages that are published
/// until the journal notes the next reserve.
pub fn most_after(next: u64) -> u64 {
    next.saturating_add(2 * FURTHER).min(MAX_SEQUENCE - 1)
}

/// Returns the first sequence after the gap that a promotion makes. `known` is the sequence after the last known message of the channel.
/// `below` is the reserve of the channel's journal.
///
/// # Errors
/// [`PromoteError::BeyondJournal`] if the reserve is too low.
pub(crate) fn next_after(known: u64, below: u64) -> Result<u64, PromoteError> {
    let next = known.saturating_add(FURTHER);
    if next.saturating_add(FURTHER).min(MAX_SEQUENCE - 1) > below {
        return Err(PromoteError::BeyondJournal { next, below });
    }
    Ok(next)
}

/// The result of a promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promotion {
    /// The session under which the channel was received.
    pub before: Session,
    /// The session under which the channel is sent from now on.
    pub session: Session,
    /// The first of the messages that will never arrive.
    pub from: u64,
    /// The last of the messages that will never arrive.
    pub to: u64,
}

/// The reason why a channel was not promoted. The channel is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum PromoteError {
    /// The channel was not received from another host.
    #[error("it is no mirror: nothing was received from another host yet")]
    NoMirror,
    /// The channel was promoted, and no bridge has received it since.
    #[error(
        "it was promoted before and is one of this host: publish on it, or use --force to promote it again"
    )]
    Own,
    /// The publisher's host is alive.
    #[error(
        "its publisher's host was heard {} ms ago: stop the bridge there, or wait until it has been silent for {} s, or use --force",
        silence.as_millis(),
        DEFAULT_SILENCE_NS / 1_000_000_000
    )]
    StillHeard {
        /// The time for which no packet was received.
        silence: Duration,
    },
    /// The reserve of the channel's journal is too low.
    #[error(
        "it would go on at sequence {next}, and its journal notes sequences up to {below} only: try again"
    )]
    BeyondJournal {
        /// The sequence at which the channel would continue.
        next: u64,
        /// The reserve of the journal.
        below: u64,
    },
    /// A gate holds up messages that were received.
    #[error(
        "gate {gate:?} of the channel holds up messages that were received: let its reader read, or end it, and try again"
    )]
    Held {
        /// The gate.
        gate: String,
    },
    /// The sequences are used up, or another publisher has the channel.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The sessions are used up.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The bridge has ended.
    #[error("the bridge has ended: {0}")]
    Ended(String),
}

/// Whether the ring shows that the channel was promoted, and that no bridge has received it since. The publisher that promotes a channel
/// takes the ring, writes a long gap and a session, and publishes nothing. If the ring has overwritten these records, the result is false.
/// `reader` must begin with the oldest message. Reads the whole ring.
///
/// # Errors
/// The error of the reader.
pub fn is_promoted(reader: &mut Subscriber) -> Result<bool, RecvError> {
    // The lag can be up to 64 too low. The limit is needed because a living publisher might never stop publishing.
    let last = reader.next_sequence() + reader.lag() + 64;
    let mut seen = Seen::Other;
    while reader.next_sequence() <= last
        && let Some(event) = reader.try_recv()?
    {
        seen = match (event, seen) {
            (Event::NewEpoch { .. }, Seen::Promotion | Seen::Promoted) => Seen::Promoted,
            (Event::NewEpoch { .. }, _) => Seen::Epoch,
            (Event::Gap { from, to }, Seen::Epoch) if to - from >= FURTHER - 1 => Seen::Gap,
            (Event::NewSession { .. }, Seen::Gap) => Seen::Promotion,
            (Event::Message(_) | Event::Gap { .. } | Event::End, Seen::Promoted) => Seen::Promoted,
            (Event::Message(_) | Event::Gap { .. } | Event::NewSession { .. }, _) => Seen::Other,
            (Event::Lapped(_) | Event::Restarted, _) => Seen::Other,
            (_, seen) => seen,
        };
    }
    Ok(matches!(seen, Seen::Promotion | Seen::Promoted))
}

/// The records of a promotion that a reader has seen so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Other,
    /// A publisher took the ring.
    Epoch,
    /// After it took the ring, the publisher skipped the sequences of a promotion.
    Gap,
    /// After the gap of a promotion, the publisher began a session.
    Promotion,
    /// After a promotion, another publisher took the ring.
    Promoted,
}

/// Turns a received channel into a channel of this host, and begins a new session. `publisher` publishes the channel.
///
/// - `before` is the session under which the channel was received. The new session has the tag of `before`.
/// - `tag` is the tag of the new session if `before` is not a session of shmcast.
/// - `horizon`: the other host is known to have had all messages below this sequence.
/// - `below` is the reserve of the channel's journal, if there is a journal.
///
/// # Errors
/// [`PromoteError`]. After an error nothing was published.
pub fn promote(
    publisher: &mut Publisher,
    (before, horizon): (Session, u64),
    tag: &str,
    below: u64,
) -> Result<Promotion, PromoteError> {
    let of_ours = before.epoch().and_then(|_| str::from_utf8(before.as_bytes()).ok());
    let tag = of_ours.map_or(tag, |name| name[..4].trim_end());
    let terms = Terms { clock: term_at(wall_ns()), own: before.epoch(), ..Terms::default() };
    let session = Session::of_channel(tag, terms.next())?;
    let from = publisher.next_sequence();
    let to = next_after(from.max(horizon), below)? - 1;
    publisher.gap(to)?;
    publisher.session(*session.as_bytes())?;
    Ok(Promotion { before, session, from, to })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_and_terms_go_on_behind_everything_that_was_known() {
        let dir = tempfile::tempdir().unwrap();
        let open = || shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
        let mut publisher = open();
        publisher.publish(b"1").unwrap();
        let ahead = Session::of_channel("EQ", term_at(wall_ns()) + 1_000).unwrap();
        let first = promote(&mut publisher, (ahead, 10), "T", most_after(10)).unwrap();
        assert_eq!((first.from, first.to), (2, 9 + FURTHER));
        assert_eq!((first.session.tag(), first.session.epoch()), (*b"EQ  ", ahead.epoch().map(|it| it + 1)));
        assert_eq!(publisher.remote_session(), Some(*first.session.as_bytes()));
        assert_eq!(publisher.publish(b"next").unwrap(), first.to + 1);
        // The new term comes from the clock, because the old term is lower. If the session's name is not shmcast's, the new session gets
        // the channel's tag.
        let foreign = Session::named("NASDAQ-itc").unwrap();
        for (before, tag) in [(Session::of_channel("EQ", 7).unwrap(), *b"EQ  "), (foreign, *b"T   ")] {
            let again = promote(&mut publisher, (before, 1), "T", u64::MAX).unwrap();
            assert_eq!(again.session.tag(), tag);
            assert!(again.session.epoch().unwrap() + 10 > term_at(wall_ns()), "{}", again.session);
        }
    }

    /// An earlier mistake: each call of `shmcast bridge promote` without a daemon promoted the channel again.
    #[test]
    fn the_ring_says_that_a_channel_was_promoted_until_a_bridge_receives_it_again() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
        let is_promoted = || {
            let reader = Subscriber::builder("t").dir(dir.path()).start(shmcast::Start::Oldest);
            is_promoted(&mut reader.open().unwrap()).unwrap()
        };
        let of = |epoch| Session::of_channel("EQ", epoch).unwrap();
        let mut mirror = open();
        mirror.session(*of(7).as_bytes()).unwrap();
        mirror.gap(FURTHER).unwrap();
        mirror.publish(b"received").unwrap();
        mirror.leave_open();
        assert!(!is_promoted());
        for _ in 0..2 {
            let mut publisher = open();
            promote(&mut publisher, (of(7), 0), "T", u64::MAX).unwrap();
            publisher.leave_open();
            assert!(is_promoted());
            for _ in 0..2 {
                let mut own = open();
                own.publish(b"of this host").unwrap();
                own.close();
                assert!(is_promoted());
            }
            // A mirror of a promoted channel gets the same records, but all in one epoch. So the mirror does not count as promoted.
            let mut mirror = open();
            mirror.session(*of(8).as_bytes()).unwrap();
            mirror.publish(b"received").unwrap();
            mirror.gap(mirror.next_sequence() + FURTHER).unwrap();
            mirror.session(*of(9).as_bytes()).unwrap();
            mirror.leave_open();
            assert!(!is_promoted());
        }
    }

    #[test]
    fn a_channel_without_more_sequences_is_left_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let mut publisher =
            shmcast::Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
        let before = Session::of_channel("EQ", 7).unwrap();
        let refused = promote(&mut publisher, (before, u64::MAX - 5), "T", u64::MAX);
        assert!(
            matches!(refused, Err(PromoteError::Publish(PublishError::OutOfSequences(_)))),
            "{refused:?}"
        );
        assert_eq!((publisher.next_sequence(), publisher.remote_session()), (1, None));
    }
}
