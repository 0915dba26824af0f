//! The counters of senders and receivers, and the state of the connection, for other threads to read.

use serde::Serialize;
use shmcast_bridge::counters;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

counters! {
    /// The counters of an end that sends.
    pub struct SendCounters {
        /// The sequence after the last message that the servers have acknowledged; 0 before the first answer.
        stored: gauge "engine_stored_sequence",
        /// The sequence after the last published message; 0 while the channel is absent.
        published: gauge "engine_published_sequence",
        /// The age of the oldest block without an answer, in milliseconds.
        behind_ms: gauge "engine_behind_milliseconds",
        /// Blocks without an answer.
        in_flight: gauge "engine_in_flight_blocks",
        /// Messages put into blocks. A message that is sent again is counted again.
        messages: counter "engine_sent_messages_total",
        /// Blocks that the servers have acknowledged.
        blocks: counter "engine_sent_blocks_total",
        /// Bytes of blocks that the servers have acknowledged.
        bytes: counter "engine_sent_bytes_total",
        /// Messages that the ring lost before they were sent. All receivers see a gap.
        messages_missed: counter "engine_missed_messages_total",
        /// Messages in gaps of the channel itself.
        gap_messages,
        /// The number of times that the sender asked for the log's last block because the servers refused an append.
        resyncs_refused: counter "engine_resyncs_total" { cause = "refused" },
        /// The number of times that the sender asked for the log's last block because an append had no answer in time.
        resyncs_silent: counter "engine_resyncs_total" { cause = "silent" },
        /// The number of times that the sender asked for the log's last block because the servers were busy, or had no leader.
        resyncs_busy: counter "engine_resyncs_total" { cause = "busy" },
        /// The number of times that the sender asked for the log's last block because the connection broke.
        resyncs_disconnected: counter "engine_resyncs_total" { cause = "disconnected" },
        /// The number of times that the sender asked for the log's last block because another writer announced itself.
        resyncs_rival: counter "engine_resyncs_total" { cause = "rival" },
        /// The number of times that this channel changed to a later session, so that it comes after another stream in the log. This is
        /// necessary if this host's clock was slow.
        successions: counter "engine_successions_total",
        /// The number of times that this bridge began to wait because another bridge writes the stream.
        fenced: counter "engine_fenced_total",
        /// 1 while this bridge waits because another bridge writes the stream.
        is_fenced: gauge "engine_fenced",
        /// The number of times that this bridge began to wait because the last block cannot be opened: its writer has other keys.
        shut_out: counter "engine_shut_out_total",
        /// 1 while this bridge waits because the last block cannot be opened.
        is_shut_out,
        /// Messages that the servers had acknowledged and then lost. The bridge sends them again if the ring or the journal still has them.
        lost_by_engine: counter "engine_lost_messages_total",
        /// The number of times that the servers lost acknowledged messages.
        losses,
        /// Requests of receivers for messages that the stream lacks.
        wanted: counter "engine_wanted_total",
        /// Connections of the sender that broke.
        disconnects: counter "engine_send_disconnects_total",
        /// 1 while the sender has a connection to a server.
        is_connected: gauge "engine_send_connected",
    }
}

/// The counters of an end that sends, and values that are computed from them.
#[derive(Debug, Serialize)]
pub struct ShownSendCounters<'a> {
    #[serde(flatten)]
    counters: &'a SendCounters,
    /// Messages that are published but not acknowledged; `None` before the first answer.
    behind: Option<u64>,
}

impl SendCounters {
    /// Returns how many messages are published and not acknowledged. Returns `None` before the first answer of the servers, because then it
    /// is not known what they have.
    pub fn behind(&self) -> Option<u64> {
        (self.stored > 0).then(|| self.published.saturating_sub(self.stored))
    }

    /// Returns the counters in the form that tools show.
    pub fn shown(&self) -> ShownSendCounters<'_> {
        ShownSendCounters { counters: self, behind: self.behind() }
    }
}

counters! {
    /// The counters of an end that receives.
    pub struct ReceiveCounters {
        /// The next sequence of the local channel.
        next_sequence,
        /// Messages published into the local channel.
        messages_published: counter "engine_published_messages_total",
        /// Messages that never arrive or are too large. The local channel has a gap in their place.
        messages_missing: counter "engine_missing_messages_total",
        /// Messages that are too large for the local channel. They also count as missing.
        messages_too_large,
        /// Messages that have arrived, and wait for a gate of the local channel. At the end of the bridge, they are not published.
        messages_held,
        /// Blocks with new content.
        blocks,
        /// Bytes of entries that arrived.
        bytes: counter "engine_received_bytes_total",
        /// Entries that are damaged, or that are no blocks.
        damaged: counter "engine_damaged_entries_total",
        /// Blocks whose seal is missing, does not match, or has an unknown key. They also count as damaged.
        unopened: counter "engine_unopened_blocks_total",
        /// Messages that arrived again.
        repeated,
        /// Blocks whose stored CRC of the previous block differs from the CRC of the block before them.
        chain_breaks: counter "engine_chain_breaks_total",
        /// The number of times that the receiver searched the log for the block that it needs next.
        searches,
        /// The number of times that the stream's end moved back because the servers lost entries.
        ends_moved: counter "engine_ends_moved_total",
        /// Holes in the stream. A hole that is found again counts once.
        holes: counter "engine_holes_total",
        /// 1 while a hole is being mended.
        is_mending: gauge "engine_mending",
        /// Missing messages that a sender sent.
        mended: counter "engine_mended_messages_total",
        /// Requests to senders. A repeated request counts again.
        wanted,
        /// Missing messages that the receiver gave up, because neither a sender nor the servers had them. Gaps that a sender or the stream
        /// reports do not count.
        given_up,
        /// Connections of the receiver that broke.
        disconnects: counter "engine_receive_disconnects_total",
        /// 1 while the receiver has a connection to a server.
        is_connected: gauge "engine_receive_connected",
    }
}

/// The sender reports a refusal only after this many refusals in a row. Servers without a leader refuse some appends for a short time.
#[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "there is no client to tell it"))]
const TOLD_AFTER: u64 = 5;

/// The longest time that servers usually need to elect a leader. If they need longer, the bridge reports that the stream has no leader.
#[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "there is no client to tell it"))]
const UNDECIDED_FOR: Duration = Duration::from_secs(15);

/// The state of the connection. The client's callbacks set it, and the thread of this end reports it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    is_connected: AtomicBool,
    disconnects: AtomicU64,
    why: Mutex<Option<String>>,
    /// The reason why the account or the credentials could not be read for the last connection; `None` if they could.
    unidentified: Mutex<Option<String>>,
    /// The error of the last attempt to follow the log; `None` if it worked.
    unfollowed: Mutex<Option<String>>,
    /// Number of appends that were refused in a row.
    refusals: AtomicU64,
    refused: Mutex<Option<String>>,
    /// The time since which the stream has had no leader, and the reason that the servers give.
    undecided: Mutex<Option<(Instant, String)>>,
}

#[cfg_attr(not(feature = "nats"), allow(dead_code, reason = "there is no client to tell it"))]
impl Link {
    pub(crate) fn connected(&self) {
        self.is_connected.store(true, Ordering::Relaxed);
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn disconnected(&self) {
        self.is_connected.store(false, Ordering::Relaxed);
        self.disconnects.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note(&self, why: String) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = Some(why);
    }

    /// Notes whether the account and the credentials could be read for a connection.
    pub(crate) fn identified<T>(&self, result: &Result<T, String>) {
        let why = result.as_ref().err().cloned();
        *self.unidentified.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Notes the result of an attempt to follow the log.
    pub(crate) fn followed<T>(&self, result: &Result<T, String>) {
        let why = result.as_ref().err().cloned();
        *self.unfollowed.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Forgets the error that [`note`](Self::note) has noted.
    pub(crate) fn forget(&self) {
        *self.why.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.is_connected.load(Ordering::Relaxed)
    }

    pub(crate) fn disconnects(&self) -> u64 {
        self.disconnects.load(Ordering::Relaxed)
    }

    /// Notes that the servers have accepted a block.
    pub(crate) fn taken(&self) {
        if self.refusals.load(Ordering::Relaxed) != 0 {
            self.refusals.store(0, Ordering::Relaxed);
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// Records that the servers refused a block for a reason other than an unexpected last entry of the log.
    pub(crate) fn refused(&self, why: String) {
        if self.refusals.fetch_add(1, Ordering::Relaxed) + 1 >= TOLD_AFTER {
            let text = format!("the servers refuse blocks, and the feed stands still: {why}");
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        }
    }

    /// Notes that the stream has a leader.
    pub(crate) fn decided(&self) {
        *self.undecided.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Notes that the stream has no leader. Nothing can be stored then.
    pub(crate) fn undecided(&self, why: String) {
        let mut undecided = self.undecided.lock().unwrap_or_else(PoisonError::into_inner);
        let since = undecided.as_ref().map_or_else(Instant::now, |(since, _)| *since);
        *undecided = Some((since, why));
    }

    /// Returns one reason why the feed stands still or is at risk. A broken connection comes first, and a stream without a leader comes
    /// second. Other errors come last, because a missing leader often causes them.
    pub(crate) fn why(&self) -> Option<String> {
        let of = |text: &Mutex<Option<String>>| text.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let own = || of(&self.unidentified).or_else(|| of(&self.why));
        let broken = if self.is_connected() { None } else { own() };
        broken
            .or_else(|| self.stands_still(UNDECIDED_FOR))
            .or_else(|| of(&self.why))
            .or_else(|| of(&self.unfollowed))
            .or_else(|| of(&self.refused))
    }

    /// Returns a sentence that says why the stream stands still, if the stream has had no leader for at least the time `limit`.
    fn stands_still(&self, limit: Duration) -> Option<String> {
        let undecided = self.undecided.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, why) = undecided.as_ref().filter(|(since, _)| since.elapsed() >= limit)?;
        Some(format!(
            "THE FEED STANDS STILL: {why}. What is published waits in the ring. Start servers that are away. If all are there and \
             elect no leader, remove the stream by `shmcast bridge stream rm`: a sender with create = true makes it again"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before the servers' first answer, an earlier version showed 0 waiting messages. So a sender that had never reached its servers
    /// looked healthy.
    #[test]
    fn before_the_first_answer_nobody_knows_what_is_behind() {
        let mut counters = SendCounters { published: 1_001, ..SendCounters::default() };
        assert_eq!(counters.behind(), None);
        counters.stored = 1;
        assert_eq!(counters.behind(), Some(1_000));
        (counters.published, counters.stored) = (0, 7);
        assert_eq!(counters.behind(), Some(0), "the channel is absent");
    }

    /// An earlier mistake: after one failed attempt to follow the log, a receiver reported this error for ever, and so hid that the stream
    /// had no leader.
    #[test]
    fn a_stream_without_a_leader_is_not_hidden_by_an_older_error() {
        let link = Link::default();
        link.connected();
        link.followed(&Err::<(), _>("no answer".to_owned()));
        assert_eq!(link.why().as_deref(), Some("no answer"));
        link.note("no entries".to_owned());
        link.followed(&Ok(()));
        link.undecided("stream \"t\": first".to_owned());
        assert_eq!(link.why().as_deref(), Some("no entries"));
        link.undecided.lock().unwrap().as_mut().unwrap().0 -= UNDECIDED_FOR;
        assert!(link.why().unwrap().starts_with("THE FEED STANDS STILL"));
        link.disconnected();
        assert_eq!(link.why().as_deref(), Some("no entries"), "the connection has its own words");
    }

    #[test]
    fn a_stream_without_a_leader_is_told_after_a_while_and_no_longer_than_that() {
        let link = Link::default();
        link.undecided("stream \"t\": first".to_owned());
        assert_eq!(link.why(), None, "servers may be electing one");
        let since = link.undecided.lock().unwrap().as_ref().unwrap().0;
        link.undecided("stream \"t\": its servers have elected none".to_owned());
        assert_eq!(link.undecided.lock().unwrap().as_ref().unwrap().0, since, "the silence goes on");
        let said = link.stands_still(Duration::ZERO).unwrap();
        assert!(said.starts_with("THE FEED STANDS STILL") && said.contains("elected none"), "{said}");
        link.decided();
        assert_eq!(link.stands_still(Duration::ZERO), None);
    }
}
