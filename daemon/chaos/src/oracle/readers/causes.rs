//! Finds the parts of a story that can explain an event of a reader, such as an end, a lap or a loss of messages.

use super::Cursor;
use crate::log::{Deed, Entry, Time};
use crate::oracle::history::Publication;
use crate::oracle::limits::is_limit;
use crate::payload::Identity;
use crate::run::CARRIED;
use crate::story::{Change, Step, Whom};

/// The greatest number of segments that are kept for a reader which does not poll. Each segment belongs to one publisher.
const LED: usize = 8;

/// Whether this action can detach readers from the daemon. Detached readers miss the segments that publishers make before the readers
/// attach again.
fn may_detach(entry: &Entry<Deed>) -> bool {
    match &entry.what {
        Deed::Step { step, .. } => {
            matches!(step, Step::Crash { .. } | Step::Restart { .. } | Step::Reload { .. }) || is_limit(step)
        }
        _ => false,
    }
}

impl Cursor<'_> {
    /// Whether a publisher of the channel had begun to close the channel before `time`.
    pub(super) fn has_closed(&self, time: Time) -> bool {
        let has_closed = |p: &Publication| p.closing.is_some_and(|at| at < time);
        self.history.on(&self.reader.channel).any(has_closed)
    }

    /// Whether this reader's channel comes through a bridge, and nothing in the story excuses a lost message.
    pub(super) fn is_carried(&self) -> bool {
        self.reader.actor.starts_with(CARRIED)
    }

    /// Whether a copy of each message stays available until this reader has it. On a strict channel this is not so, because senders and
    /// their servers have only the ring of the last publisher.
    pub(super) fn is_whole(&self) -> bool {
        let is_strict = self.history.strict.contains(&self.reader.channel);
        self.is_carried() || self.history.net.is_some() && !is_strict
    }

    /// Whether the daemon records the channel.
    pub(super) fn is_recorded(&self) -> bool {
        self.history.recorded.contains(&self.reader.channel)
    }

    /// Whether the channel restarted, and nothing of its new stream has come yet.
    pub(super) fn is_begun_anew(&self) -> bool {
        self.has_restarted && self.is_first && self.expected == 0 && !self.reader.far
    }

    /// Whether a stream can begin at this sequence. A stream begins at 1 or, after a journal, at the first sequence of one of its
    /// publishers.
    pub(super) fn begins_at(&self, sequence: u64) -> bool {
        sequence == 1 || self.history.on(&self.reader.channel).any(|p| p.next == sequence)
    }

    /// Returns the sequence at which a promoted host continues. Returns `None` if no host was promoted, or if `at` is not below this
    /// sequence.
    pub(super) fn promoted(&self, at: u64) -> Option<u64> {
        self.history.deeds.iter().find_map(|entry| match &entry.what {
            Deed::Promoted { channel, to, .. } if *channel == self.reader.channel => {
                (at <= *to).then_some(*to + 1)
            }
            _ => None,
        })
    }

    /// Whether this actor was killed before `time`.
    pub(super) fn was_killed(&self, actor: &str, time: Time) -> bool {
        self.history.deeds.iter().any(|e| {
            e.at < time
                && matches!(&e.what, Deed::Signalled { who, signal } if who == actor && signal == "KILL")
        })
    }

    pub(super) fn is_of_files(&self) -> bool {
        self.history.files || self.history.profile.is_some_and(|profile| !profile.has_daemon())
    }

    /// Whether the channel can end here. Without a daemon, an end can only come from a publisher that closed the channel after the last
    /// message.
    pub(super) fn is_an_end(&self) -> bool {
        let is_here = |p: &Publication| p.closing.is_some() && p.perhaps() == self.expected;
        !self.is_of_files() || self.expected == 0 || self.history.on(&self.reader.channel).any(is_here)
    }

    /// Whether a publisher of the same *life* as `next` was attached to the channel when this reader attached. A life is a run of
    /// publications whose sequences continue.
    pub(super) fn was_held(&self, next: &Publication) -> bool {
        let (since, life) = (self.reader.subscribing, self.lives.life(next.number));
        let held = |p: &Publication| p.opening < since && p.closing.is_none_or(|at| at > since);
        self.history.on(&self.reader.channel).any(|p| held(p) && self.lives.life(p.number) == life)
    }

    /// Whether a lap is allowed. A lap that skips nothing is always allowed. Any other lap has one of two possible causes:
    ///
    /// - The messages from the expected sequence on could have filled half of the ring.
    /// - Another publisher's segment lies between the expected sequence and the reader's new position.
    pub(super) fn was_overrun(&self, resumed_at: u64) -> bool {
        let of_this_life = |p: &&Publication| {
            let is_of_this_life = self.life.is_none() || self.lives.life(p.number) == self.life;
            is_of_this_life && p.perhaps() >= self.expected
        };
        let publications: Vec<&Publication> =
            self.history.on(&self.reader.channel).filter(of_this_life).collect();
        let capacity = publications.iter().map(|p| p.capacity).min().unwrap_or(u64::MAX);
        let mut bytes = 128 * publications.len() as u64;
        for publication in &publications {
            for send in &publication.sends {
                let Some((first, sizes)) = send.messages else {
                    bytes += 64;
                    continue;
                };
                let mut at = self.expected.saturating_sub(send.next);
                while at < send.most && bytes < capacity / 2 {
                    let message = Identity { counter: first.counter + at as u32, ..first };
                    bytes += (message.length(sizes, publication.largest) as u64 + 16).next_multiple_of(64);
                    at += 1;
                }
            }
        }
        // A reader that stays attached goes from each segment to the next one.
        let is_led = publications.len() <= LED && !self.history.deeds.iter().any(may_detach);
        let begins_elsewhere = self.is_first || publications.len() > 2 && !is_led;
        bytes >= capacity / 2 || (self.is_segmented() && begins_elsewhere) || resumed_at == self.expected
    }

    /// Whether a later publisher of the channel could have got a separate segment.
    pub(super) fn is_segmented(&self) -> bool {
        let is_segmented = |e: &Entry<Deed>| match &e.what {
            Deed::TakingOver { .. } => true,
            // The next publisher gets a separate segment.
            Deed::Step { step, .. } => {
                matches!(step, Step::Reload { change: Change::Mode | Change::Largest | Change::Capacity, .. })
            }
            _ => false,
        };
        self.history.profile == Some(crate::story::Profile::Strict)
            || self.history.strict.contains(&self.reader.channel)
            || self.history.deeds.iter().any(is_segmented)
    }

    /// Whether the story can have destroyed all copies of a message on the way to the far host.
    pub(super) fn is_line_broken(&self) -> bool {
        self.history.deeds.iter().any(|entry| match &entry.what {
            Deed::Step { step, .. } => matches!(
                step,
                Step::Wire { .. }
                    | Step::Net(_)
                    | Step::Carry { .. }
                    | Step::Crash { .. }
                    | Step::Restart { .. }
                    | Step::Reload { .. }
                    | Step::Stop { whom: Whom::Daemon | Whom::Far }
                    | Step::Limit { whom: Whom::Daemon | Whom::Far, .. }
            ),
            _ => false,
        })
    }
}
