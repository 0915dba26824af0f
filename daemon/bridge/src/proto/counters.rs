//! The counters of the state machines. They are plain numbers, which a metrics thread can copy.
//!
//! Tests check this balance of a receiver: `messages_received` equals the sum of `messages_delivered`, `messages_duplicate`,
//! `messages_refused` and the messages that the store still holds.

use super::wire::Malformed;
use super::{MAX_LINES, MAX_SERVERS};
use crate::counters;
use crate::table::Table;

counters! {
    /// Datagrams that were dropped because they are malformed, with a counter for each reason.
    pub struct MalformedCounters {
        /// Datagrams that are shorter than the header.
        too_short: counter "malformed_datagrams_total" { reason = "too-short" },
        /// Datagrams with the sequence 0. Sequences start at 1.
        sequence_zero: counter "malformed_datagrams_total" { reason = "sequence-zero" },
        /// Datagrams whose sequence plus count does not fit into 64 bits.
        sequence_overflow: counter "malformed_datagrams_total" { reason = "sequence-overflow" },
        /// Datagrams in which a message reaches past the end of the datagram.
        truncated: counter "malformed_datagrams_total" { reason = "truncated" },
        /// Datagrams in which bytes are left after the last message.
        trailing_bytes: counter "malformed_datagrams_total" { reason = "trailing-bytes" },
        /// Requests that are not 20 bytes long.
        request_length: counter "malformed_datagrams_total" { reason = "request-length" },
        /// Requests for 0 messages, or for more than 65,534.
        request_count: counter "malformed_datagrams_total" { reason = "request-count" },
        /// Damaged control datagrams, and requests sent to a receiver.
        control: counter "malformed_datagrams_total" { reason = "control" },
        /// Control datagrams of a version that this build does not support.
        control_version: counter "malformed_datagrams_total" { reason = "control-version" },
        /// Datagrams on a native line that are no valid native packets.
        native: counter "malformed_datagrams_total" { reason = "native" },
        /// Native packets of a version that this build does not support.
        native_version: counter "malformed_datagrams_total" { reason = "native-version" },
    }
}

impl MalformedCounters {
    pub(crate) fn count(&mut self, reason: Malformed) {
        *self.slot(reason) += 1;
    }

    /// Returns how many datagrams were dropped for `reason`.
    pub fn of(mut self, reason: Malformed) -> u64 {
        *self.slot(reason)
    }

    fn slot(&mut self, reason: Malformed) -> &mut u64 {
        match reason {
            Malformed::TooShort => &mut self.too_short,
            Malformed::SequenceZero => &mut self.sequence_zero,
            Malformed::SequenceOverflow => &mut self.sequence_overflow,
            Malformed::Truncated => &mut self.truncated,
            Malformed::TrailingBytes => &mut self.trailing_bytes,
            Malformed::RequestLength => &mut self.request_length,
            Malformed::RequestCount => &mut self.request_count,
            Malformed::Control => &mut self.control,
            Malformed::ControlVersion => &mut self.control_version,
            Malformed::Native => &mut self.native,
            Malformed::NativeVersion => &mut self.native_version,
        }
    }

    /// Returns how many datagrams were dropped.
    pub fn total(&self) -> u64 {
        Self::FIELDS.iter().map(|field| (field.read)(self)).sum()
    }
}

/// A histogram of durations with eight steps per octave. A reported value can be up to 12.5 % higher than the recorded value.
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
    /// The number of `words` of a histogram.
    pub const WORDS: usize = Histogram::SLOTS + 1;

    /// Records a duration `times` times.
    pub fn record(&mut self, value_ns: u64, times: u64) {
        self.counts[Histogram::slot(value_ns)] += times;
        self.max_ns = self.max_ns.max(value_ns);
    }

    // Returns the slot of a value. Each value below 8 has a slot of its own. From 8 on, each octave has eight slots, and the three bits
    // after the leading bit select one of them.
    fn slot(value_ns: u64) -> usize {
        let octave = (value_ns | 7).ilog2() as usize - 2;
        let step = if octave == 0 { value_ns } else { (value_ns >> (octave - 1)) & 7 };
        octave * 8 + step as usize
    }

    fn slot_top(slot: usize) -> u64 {
        let (octave, step) = (slot / 8, slot as u64 % 8);
        if octave == 0 { step } else { ((8 + step + 1) << (octave - 1)).wrapping_sub(1) }
    }

    /// Returns the number of recorded values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The largest value.
    pub(crate) fn max_ns(&self) -> u64 {
        self.max_ns
    }

    /// Returns the quantile for `share` (0 to 1). At least this share of the values are not greater than the quantile. Returns 0 if there
    /// are no values.
    pub(crate) fn quantile_ns(&self, share: f64) -> u64 {
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

    /// Returns the words of the histogram, so that it can be copied. [`Histogram::from_words`] makes a histogram from them.
    pub(crate) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().copied().chain([self.max_ns])
    }

    /// Makes a histogram from the words of another histogram. Missing words count as 0.
    pub(crate) fn from_words(words: impl IntoIterator<Item = u64>) -> Histogram {
        let mut words = words.into_iter();
        let mut histogram = Histogram::default();
        histogram.counts.iter_mut().zip(&mut words).for_each(|(count, word)| *count = word);
        histogram.max_ns = words.next().unwrap_or(0);
        histogram
    }

    /// Returns the steps of the histogram that have values, in ascending order. Each entry has the upper limit of the step and its number
    /// of values.
    pub fn steps(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let filled = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(slot, &count)| (Histogram::slot_top(slot), count))
    }

    /// Adds all of another histogram's values.
    #[cfg(test)]
    pub(crate) fn merge(&mut self, other: &Histogram) {
        for (own, more) in self.counts.iter_mut().zip(other.counts.iter()) {
            *own += more;
        }
        self.max_ns = self.max_ns.max(other.max_ns);
    }
}

counters! {
    /// The counters of one line.
    pub struct LineCounters {
        /// Valid packets of our session.
        packets,
        /// Messages that arrived on this line before they arrived on any other line.
        messages_first: counter "line_first_messages_total",
        /// Messages of the line that had already arrived.
        messages_duplicate: counter "line_duplicate_messages_total",
    }
}

counters! {
    /// The counters of one retransmission server, as a receiver sees it.
    pub struct ServerCounters {
        /// Requests sent to the server.
        requests: counter "server_requests_total",
        /// Requests that the server did not answer in time.
        timeouts: counter "server_timeouts_total",
        /// Packets that the server sent.
        packets,
        /// Bytes of repairs that the server sent.
        repair_bytes: counter "server_repair_bytes_total",
        /// Missing messages that the server sent.
        messages_recovered: counter "server_recovered_messages_total",
        /// Answers in which the server said that it no longer holds the messages asked for.
        gone: counter "server_gone_total",
        /// Answers in which the server said that it has the messages asked for, but has used up its rate.
        later: counter "server_later_total",
        /// Answers in which the server said that none of the messages asked for is published yet.
        held: counter "server_held_total",
        /// Smoothed round trip in nanoseconds; 0 before the first measurement.
        rtt_ns,
        /// 1 while the server is down, and otherwise 0. A server is down if it has left several requests unanswered and has sent nothing
        /// for some time. The code that shows the counters sets this value.
        down: gauge "server_down",
    }
}

counters! {
    /// The sums of a receiver.
    pub struct ReceiverTotals {
        /// Valid packets of our session, from lines and servers.
        packets: counter "received_packets_total",
        /// Messages in valid packets of our session.
        messages_received: counter "received_messages_total",
        /// Messages delivered to the channel.
        messages_delivered,
        /// Messages that had already arrived, or that precede the first message of this receiver.
        messages_duplicate: counter "duplicate_messages_total",
        /// Messages that arrived while earlier messages were missing, and were dropped because the store was full. The receiver requests
        /// the dropped messages again.
        messages_refused: counter "store_full_messages_total",
        /// Heartbeats and end-of-session packets.
        heartbeats,
        /// Packets that arrived on a line after a packet with higher sequences, and that contained missing messages.
        packets_reordered: counter "reordered_packets_total",
        /// Holes (ranges of missing messages) found.
        gaps: counter "gaps_total",
        /// Messages in the holes that were found.
        gap_messages: counter "gap_messages_total",
        /// Missing messages that arrived on a line later.
        recovered_by_lines: counter "recovered_messages_total" { source = "line" },
        /// Messages that arrived on a line after they had been requested.
        requested_needlessly: counter "requested_needlessly_total",
        /// Messages that were given up after they had been requested. Readers get a gap for them.
        messages_expired: counter "expired_messages_total",
        /// Requests sent, first and repeated.
        requests,
        /// Requests that were repeated.
        requests_repeated,
        /// Losses that this receiver did not request immediately, because other receivers probably request the same messages.
        requests_delayed: counter "delayed_requests_total",
        /// Losses that were repaired before this receiver requested them. Other receivers had requested them.
        requests_saved: counter "saved_requests_total",
        /// Repairs for all receivers in which this receiver needed no message.
        repairs_overheard: counter "overheard_repairs_total",
        /// The number of times that a server told all receivers to wait.
        pauses: counter "pauses_total",
        /// Sessions followed.
        sessions: counter "sessions_total",
        /// Packets of an earlier epoch of our channel.
        packets_stale: counter "ignored_packets_total" { reason = "stale-session" },
        /// Packets of a session of another feed.
        packets_foreign: counter "ignored_packets_total" { reason = "foreign-session" },
        /// Packets whose sequences are implausibly far ahead. They are dropped until other packets confirm them.
        packets_implausible: counter "ignored_packets_total" { reason = "implausible" },
        /// Packets of a session that is not followed yet. If the session is followed later, `packets` counts them too.
        packets_early: counter "ignored_packets_total" { reason = "early-session" },
        /// Announcements of messages that do not exist. They were dropped when other packets contradicted them. More than a few of them
        /// suggest a forger.
        claims_contradicted: counter "contradicted_claims_total",
        /// Packets that servers sent although this receiver did not request them, or no longer needs them.
        repairs_unasked: counter "ignored_packets_total" { reason = "unasked-repair" },
        /// Fragments of messages larger than a packet.
        fragments: counter "fragments_total",
        /// Fragments that had already arrived.
        fragments_duplicate,
        /// Fragments that arrived while earlier messages were missing, and were dropped because there was no room. The receiver requests
        /// them again.
        fragments_refused: counter "refused_fragments_total",
        /// Native packets that were dropped without being opened: repeated packets, or packets whose messages are older than all missing
        /// messages.
        copies: counter "old_packets_total",
    }
}

/// The counters of a receiver.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceiverCounters {
    /// The sums.
    pub totals: ReceiverTotals,
    /// Datagrams that were dropped because they are malformed.
    pub malformed: MalformedCounters,
    /// The counters of each line.
    pub lines: [LineCounters; MAX_LINES],
    /// The counters of each server.
    pub servers: [ServerCounters; MAX_SERVERS],
    /// The durations from noticing a loss to receiving the message, for messages that a server sent.
    pub recovery: Histogram,
}

/// The counters of a sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SenderCounters {
    /// Packets with messages.
    pub packets: u64,
    /// Messages in packets.
    pub messages: u64,
    /// Bytes of the datagrams with messages.
    pub bytes: u64,
    /// Heartbeats.
    pub heartbeats: u64,
    /// End-of-session packets.
    pub ends: u64,
    /// Messages that the ring overwrote before the sender read them. Receivers request these messages.
    pub messages_missed: u64,
}

/// The reason why a request was not answered with messages.
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
    /// The source has used up its rate.
    #[error("the source's rate is used up")]
    SourceRate,
    /// All sources together have used up the server's rate.
    #[error("the server's rate is used up")]
    GlobalRate,
    /// None of the messages asked for has been published yet.
    #[error("the messages are not published yet")]
    NotYet,
    /// The ring has overwritten the messages, and no journal has them.
    #[error("the messages are no longer held")]
    Gone,
    /// The source has not proved its address, and a reply with a message would be over three times as long as the request.
    #[error("the source must first prove its address")]
    Unproved,
    /// The messages belong to the journal but cannot be read yet. Either the disk is busy, or the recorder has not written the messages
    /// yet.
    #[error("the journal is read as fast as the disk allows")]
    JournalBusy,
    /// The messages are already on their way to all receivers in a repair.
    #[error("a repair for all receivers is on its way")]
    OnItsWay,
}

counters! {
    /// Requests that were not answered with messages, by reason.
    pub struct RefusedCounters {
        /// Requests of sources that are not on the allow-list.
        not_allowed: counter "repair_refused_total" { reason = "not-allowed" },
        /// Damaged requests.
        malformed: counter "repair_refused_total" { reason = "malformed" },
        /// Requests that name another session.
        foreign_session: counter "repair_refused_total" { reason = "foreign-session" },
        /// Requests of sources that have used up their rate.
        source_rate: counter "repair_refused_total" { reason = "source-rate" },
        /// Requests that arrived when all sources together had used up the server's rate.
        global_rate: counter "repair_refused_total" { reason = "global-rate" },
        /// Requests for messages that are not published yet.
        not_yet: counter "repair_refused_total" { reason = "not-yet" },
        /// Requested messages that the ring has overwritten and that no journal has.
        gone: counter "repair_refused_total" { reason = "gone" },
        /// Requests of sources that have not proved their address.
        unproved: counter "repair_refused_total" { reason = "unproved" },
        /// Requests for messages of the journal that could not be read yet.
        journal_busy: counter "repair_refused_total" { reason = "journal-busy" },
        /// Requested messages that another repair was already carrying to all receivers.
        on_its_way: counter "repair_refused_total" { reason = "on-its-way" },
    }
}

counters! {
    /// The requests to a retransmission server, and its replies.
    pub struct ReplayTotals {
        /// Requests for retransmission received.
        requests: counter "repair_requests_total",
        /// Replies with messages.
        replies,
        /// Messages sent in replies.
        messages: counter "repair_messages_total",
        /// Bytes of repairs sent.
        bytes: counter "repair_bytes_total",
        /// Replies that were sent to all receivers.
        multicast_replies: counter "repair_multicasts_total",
        /// Notices that told all receivers to wait, because the rate was used up.
        pauses: counter "repair_pauses_total",
    }
}

counters! {
    /// The replies that came from the channel's journal. The totals include them.
    pub struct JournalReplies {
        /// Replies with messages that the ring no longer held.
        replies,
        /// Messages in replies that came from the journal, because the ring no longer held them.
        messages: counter "repair_journal_messages_total",
        /// Bytes of repairs that came from the journal.
        bytes: counter "repair_journal_bytes_total",
    }
}

/// The counters of a retransmission server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReplayCounters {
    /// The sums.
    pub totals: ReplayTotals,
    /// The part of the sums that came from the journal.
    pub journal: JournalReplies,
    /// Requests that were not answered with messages, by reason.
    pub refused: RefusedCounters,
}

impl ReplayCounters {
    pub(super) fn refuse(&mut self, reason: Refusal) -> Refusal {
        *match reason {
            Refusal::NotAllowed => &mut self.refused.not_allowed,
            Refusal::Malformed => &mut self.refused.malformed,
            Refusal::ForeignSession => &mut self.refused.foreign_session,
            Refusal::SourceRate => &mut self.refused.source_rate,
            Refusal::GlobalRate => &mut self.refused.global_rate,
            Refusal::NotYet => &mut self.refused.not_yet,
            Refusal::Gone => &mut self.refused.gone,
            Refusal::Unproved => &mut self.refused.unproved,
            Refusal::JournalBusy => &mut self.refused.journal_busy,
            Refusal::OnItsWay => &mut self.refused.on_its_way,
        } += 1;
        reason
    }
}

counters! {
    /// The counters of a lease server.
    pub struct LeaseCounters {
        /// Leases that exist now. The code that shows the counters sets this value.
        held: gauge "leases",
        /// Control datagrams received.
        received,
        /// Control datagrams from sources outside the allow-list. They get no reply.
        not_allowed: counter "lease_events_total" { event = "not-allowed" },
        /// Control datagrams that were beyond the rate of their source. They get no reply.
        over_rate: counter "lease_events_total" { event = "over-rate" },
        /// Damaged or unexpected control datagrams. They get no reply.
        malformed: counter "lease_events_total" { event = "malformed" },
        /// Cookies sent.
        cookies: counter "lease_events_total" { event = "cookie" },
        /// Cookies that came back damaged or too old.
        cookies_refused: counter "lease_events_total" { event = "cookie-refused" },
        /// Leases started.
        granted: counter "lease_events_total" { event = "granted" },
        /// Leases renewed.
        renewed: counter "lease_events_total" { event = "renewed" },
        /// Leases returned.
        released: counter "lease_events_total" { event = "released" },
        /// Leases that expired.
        expired: counter "lease_events_total" { event = "expired" },
        /// Leases that were refused because the server already had the largest permitted number of leases.
        full: counter "lease_events_total" { event = "full" },
        /// Leases that moved to another address of the same receiver.
        replaced: counter "lease_events_total" { event = "replaced" },
    }
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
        assert!(MalformedCounters::FIELDS.iter().all(|field| (field.read)(&counters) == 1));
        assert_eq!(counters.total(), Malformed::COUNT as u64);
    }
}
