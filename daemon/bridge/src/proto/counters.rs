//! The counters of the state machines, as plain numbers that a metrics thread can copy.
//!
//! Receivers keep one balance that tests hold them to: `messages_received` equals `messages_delivered` plus
//! `messages_duplicate` plus `messages_refused` plus the messages still held in the store.

use super::wire::Malformed;
use super::{MAX_LINES, MAX_SERVERS};

/// Dropped datagrams by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MalformedCounters([u64; Malformed::COUNT]);

impl MalformedCounters {
    pub(crate) fn count(&mut self, reason: Malformed) {
        self.0[reason as usize] += 1;
    }

    /// How many datagrams were dropped for `reason`.
    pub fn of(&self, reason: Malformed) -> u64 {
        self.0[reason as usize]
    }

    /// How many datagrams were dropped.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// A histogram of durations with eight steps an octave: a value is at most 12.5 % below the number that is
/// reported for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[u64; Histogram::SLOTS]>,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram { counts: Box::new([0; Histogram::SLOTS]), max_ns: 0 }
    }
}

impl Histogram {
    const SLOTS: usize = 62 * 8;
    /// How many [`words`](Histogram::words) one has.
    pub const WORDS: usize = Histogram::SLOTS + 1;

    /// Counts a duration `times` times.
    pub fn record(&mut self, value_ns: u64, times: u64) {
        self.counts[Histogram::slot(value_ns)] += times;
        self.max_ns = self.max_ns.max(value_ns);
    }

    // Values below 8 have a slot each; above, the top three bits after the leading one choose among eight an octave.
    fn slot(value_ns: u64) -> usize {
        let octave = (value_ns | 7).ilog2() as usize - 2;
        let step = if octave == 0 { value_ns } else { (value_ns >> (octave - 1)) & 7 };
        octave * 8 + step as usize
    }

    fn slot_top(slot: usize) -> u64 {
        let (octave, step) = (slot / 8, slot as u64 % 8);
        if octave == 0 { step } else { ((8 + step + 1) << (octave - 1)).wrapping_sub(1) }
    }

    /// How many values were recorded.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest value.
    pub fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// A value that `share` (0 to 1) of all values do not exceed; 0 when there is none.
    pub fn quantile_ns(&self, share: f64) -> u64 {
        let wanted = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Histogram::slot_top(slot).min(self.max_ns);
            }
        }
        0
    }

    /// Its words, for a copy to another place. [`Histogram::from_words`] makes a histogram of them.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().copied().chain([self.max_ns])
    }

    /// A histogram from the words of another; missing words count as 0.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Histogram {
        let mut words = words.into_iter();
        let mut histogram = Histogram::default();
        histogram.counts.iter_mut().zip(&mut words).for_each(|(count, word)| *count = word);
        histogram.max_ns = words.next().unwrap_or(0);
        histogram
    }

    /// The steps that hold values, in rising order, each as its upper limit and its number of values.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(slot, &count)| (Histogram::slot_top(slot), count))
    }

    /// Adds all of another histogram's values.
    pub fn merge(&mut self, other: &Histogram) {
        for (own, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *own += more;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

/// The counters of one line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounters {
    /// Sound packets of our session.
    pub packets: u64,
    /// Messages that came on this line before any other.
    pub messages_first: u64,
    /// Messages that were there already.
    pub messages_duplicate: u64,
}

/// The counters of one retransmission server, as a receiver sees it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Requests sent to it.
    pub requests: u64,
    /// Requests that it did not answer in time.
    pub timeouts: u64,
    /// Packets that it sent.
    pub packets: u64,
    /// Datagram bytes that it sent.
    pub repair_bytes: u64,
    /// Missing messages that it brought.
    pub messages_recovered: u64,
    /// Times it said that it no longer holds the messages that were asked for.
    pub gone: u64,
    /// Times it said that it holds the messages that were asked for, but has used up its rate.
    pub later: u64,
    /// Times it said that none of the messages that were asked for is published yet.
    pub held: u64,
    /// Smoothed round trip, 0 before the first.
    pub rtt_ns: u64,
}

/// The counters of a receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// Sound packets of our session, from anywhere.
    pub packets: u64,
    /// Messages in those packets.
    pub messages_received: u64,
    /// Messages handed out.
    pub messages_delivered: u64,
    /// Messages that were there already, or lie before the place where we joined.
    pub messages_duplicate: u64,
    /// Messages dropped because the store was full; they are asked for again.
    pub messages_refused: u64,
    /// Heartbeats and end-of-session packets.
    pub heartbeats: u64,
    /// Packets from a line that came after a later packet, and were still of use.
    pub packets_reordered: u64,
    /// Holes found.
    pub gaps: u64,
    /// Messages in those holes.
    pub gap_messages: u64,
    /// Missing messages that a line brought after all.
    pub recovered_by_lines: u64,
    /// Of those, the ones that had been asked for already.
    pub requested_needlessly: u64,
    /// Messages given up and delivered as a gap.
    pub messages_expired: u64,
    /// Requests sent, first and repeated.
    pub requests: u64,
    /// Requests sent again.
    pub requests_repeated: u64,
    /// Losses that were not asked for at once, because others in the group may have lost the same.
    pub requests_delayed: u64,
    /// Losses that a server mended before they were asked for: others had asked.
    pub requests_saved: u64,
    /// Repairs for all receivers that brought nothing that was missing here.
    pub repairs_overheard: u64,
    /// Times a server told all receivers to wait.
    pub pauses: u64,
    /// Sessions followed.
    pub sessions: u64,
    /// Packets of an earlier epoch of our channel.
    pub packets_stale: u64,
    /// Packets of somebody else's session.
    pub packets_foreign: u64,
    /// Packets that claim to be implausibly far ahead, dropped until others confirm them.
    pub packets_implausible: u64,
    /// Packets of a session that is not followed yet; once it is, they count among `packets` too.
    pub packets_early: u64,
    /// Claims of messages that do not exist, forgotten when they were contradicted.
    pub claims_contradicted: u64,
    /// Packets of servers that nobody asked for, or nobody needs any more.
    pub repairs_unasked: u64,
    /// Fragments of messages larger than a packet.
    pub fragments: u64,
    /// Fragments that were there already.
    pub fragments_duplicate: u64,
    /// Fragments of early messages dropped because there was no room; they are asked for again.
    pub fragments_refused: u64,
    /// Native packets that were not looked into: copies, or older than all that is missing.
    pub copies: u64,
    /// Datagrams dropped unread.
    pub malformed: MalformedCounters,
    /// Each line.
    pub lines: [LineCounters; MAX_LINES],
    /// Each server.
    pub servers: [ServerCounters; MAX_SERVERS],
    /// The time from noticing a loss to having the message, for messages that a server brought.
    pub recovery: Histogram,
}

/// The counters of a sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Packets with messages.
    pub packets: u64,
    /// Messages in them.
    pub messages: u64,
    /// Datagram bytes in them.
    pub bytes: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// End-of-session packets.
    pub ends: u64,
    /// Messages that the sender itself was too slow to read; receivers see a gap and ask for them.
    pub messages_missed: u64,
}

/// The reason that a request got no messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The source is not on the allow-list.
    #[error("the source is not allowed")]
    NotAllowed,
    /// The request is damaged.
    #[error("the request is malformed")]
    Malformed,
    /// The request names another session.
    #[error("the request is for another session")]
    ForeignSession,
    /// The source has used up its share.
    #[error("the source's rate is used up")]
    SourceRate,
    /// All sources together have used up the server's share.
    #[error("the server's rate is used up")]
    GlobalRate,
    /// Nothing that was asked for has been published yet.
    #[error("the messages are not published yet")]
    NotYet,
    /// The ring has overwritten what was asked for.
    #[error("the messages are no longer held")]
    Gone,
    /// The source has not proved its address, and a reply with a message would be over three times as long as
    /// its request.
    #[error("the source must first prove its address")]
    Unproved,
    /// The journal has the messages, and the disk has enough to do, or the recorder has not written them yet.
    #[error("the journal is read as fast as the disk allows")]
    JournalBusy,
    /// A repair of the same messages is on its way to all receivers.
    #[error("a repair for all receivers is on its way")]
    OnItsWay,
}

impl Refusal {
    /// How many reasons there are.
    pub const COUNT: usize = 10;
}

/// The counters of a retransmission server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCounters {
    /// Requests received.
    pub requests: u64,
    /// Replies with messages.
    pub replies: u64,
    /// Messages in them.
    pub messages: u64,
    /// Datagram bytes in them.
    pub repair_bytes: u64,
    /// Those of the replies that went to all receivers.
    pub multicast_replies: u64,
    /// Times that all receivers were told to wait.
    pub pauses: u64,
    /// Those of the replies that came from the journal.
    pub journal_replies: u64,
    /// Messages in them.
    pub journal_messages: u64,
    /// Datagram bytes in them.
    pub journal_bytes: u64,
    /// Requests that got no messages, by reason.
    refused: [u64; Refusal::COUNT],
}

impl ReplayCounters {
    pub(super) fn refuse(&mut self, reason: Refusal) -> Refusal {
        self.refused[reason as usize] += 1;
        reason
    }

    /// How many requests got no messages for `reason`.
    pub fn refused(&self, reason: Refusal) -> u64 {
        self.refused[reason as usize]
    }
}

/// The counters of a lease server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseCounters {
    /// Control datagrams received.
    pub received: u64,
    /// Datagrams from sources outside the allow-list; they get no reply.
    pub not_allowed: u64,
    /// Datagrams over the source's rate; they get no reply.
    pub over_rate: u64,
    /// Damaged or unexpected datagrams; they get no reply.
    pub malformed: u64,
    /// Cookies handed out.
    pub cookies: u64,
    /// Cookies that came back wrong or too old.
    pub cookies_refused: u64,
    /// Leases started.
    pub granted: u64,
    /// Leases renewed.
    pub renewed: u64,
    /// Leases given back.
    pub released: u64,
    /// Leases that ran out.
    pub expired: u64,
    /// Leases refused because every place is taken.
    pub full: u64,
    /// Leases that went over to another address of the same receiver.
    pub replaced: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histogram_reports_no_less_than_was_recorded() {
        for value in (0..200).chain([1_000, 4_095, 4_096, 1 << 40, u64::MAX - 1, u64::MAX]) {
            let top = Histogram::slot_top(Histogram::slot(value));
            assert!(top >= value && top - value <= value / 8, "{value} is reported as {top}");
            let mut histogram = Histogram::default();
            histogram.record(value, 1);
            assert_eq!(histogram.quantile_ns(0.5), value);
        }
    }

    #[test]
    fn quantile_counts_values_not_slots() {
        let mut histogram = Histogram::default();
        histogram.record(100, 99);
        histogram.record(1 << 20, 1);
        assert!(histogram.quantile_ns(0.99) < 113);
        assert_eq!(histogram.quantile_ns(1.0), 1 << 20);
        assert_eq!(Histogram::default().quantile_ns(0.5), 0);
    }

    #[test]
    fn every_malformed_reason_has_its_own_counter() {
        let mut counters = MalformedCounters::default();
        for reason in Malformed::ALL {
            counters.count(reason);
        }
        assert!(Malformed::ALL.iter().all(|&reason| counters.of(reason) == 1));
        assert_eq!(counters.total(), Malformed::COUNT as u64);
    }
}
