//! The retransmission server. It takes a request, decides which range to read from the ring, and returns one datagram. The caller reads the
//! ring into the reply.
//!
//! **Replies.** A reply starts exactly at the requested sequence, and never reaches past the requested range. It is one datagram of at most
//! the configured payload. If the feed has an address at which all receivers hear repairs, `merge` decides which replies are sent there.
//!
//! **Sources.** A source that is not allowed gets no reply. A source with a lease has proved its address (see `lease`). Any other source
//! gets at most three times as many bytes as it sent, unless the operator trusts the network.
//!
//! **Rates.** Each source has a token bucket. The whole server also has a bucket, so that live packets keep their priority. The rates of
//! the buckets can grow with the feed, so that a receiver that lags can catch up. If a bucket is empty, the server tells a source with a
//! proved address to wait. Without this answer, the source would think that its request was lost.
//!
//! **Journal.** If the channel has a journal, the server also sends messages that the ring no longer has (`past`). It answers a request for
//! such messages after the disk has been read. A burst of such answers is at most what the rate allows in two milliseconds, and at most
//! half of the server's burst. The other half is for messages in the ring.

mod held;
mod merge;
mod native;
mod past;
mod shelf;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;

use super::control::{CONTROL_MAX_BYTES, ControlDatagram};
use super::counters::{Refusal, ReplayCounters, ReplayTotals};
use super::limit::{AllowList, Rate, SourceBuckets, TokenBucket};
use super::link::{FRAME_BYTES, Link, Remainder};
use super::session::Session;
use super::wire::{Downstream, HEADER_BYTES, LENGTH_BYTES, MAX_DATAGRAM_BYTES, PacketWriter, Request};
use super::{DEFAULT_PAYLOAD_BYTES, MICROSECOND_NS};
use merge::{Answer, Merge, Wait};
use shmcast::hosting::fault;

pub use held::{Asker, Held, Holding, Place};
pub use merge::MergeConfig;
pub use native::{AskedEntries, Emit, Exchange, Piece, Read};
pub(crate) use past::PATIENCE_NS;
pub use past::{MAX_WAITING, Past, PastCounters};
pub use shelf::{Block, Fetched};

/// A source without a proved address gets at most as many bytes as it sent, multiplied by this number.
pub const UNPROVED_FACTOR: usize = 3;
/// The default rate of replies to one source, in bytes a second.
pub const SOURCE_RATE_BYTES: u64 = 25_000_000;
/// The default rate of replies to all sources together, in bytes a second.
pub const GLOBAL_RATE_BYTES: u64 = 100_000_000;
/// The burst of messages from the journal is the number of bytes that the rate allows in a second, divided by this number. The quotient is
/// what the rate allows in 2 ms.
const PAST_BURST_SHARE: u64 = 500;
/// A rate that grows with the feed is at least this many times the feed's own rate. At twice the feed's rate, a receiver that lags catches
/// up by one second of the feed in each second.
pub const CATCH_UP_FACTOR: u64 = 2;

/// The configuration of a retransmission server.
#[derive(Debug, Clone)]
pub struct ReplayConfig {
    /// The largest datagram, in bytes.
    pub payload_bytes: usize,
    /// The networks whose addresses are allowed to send requests. The list is empty by default, and then no address is allowed.
    pub allow: AllowList,
    /// Whether allowed sources get full replies without a proof of their address. Receivers of plain MoldUDP64 need this. This setting is
    /// only for networks in which nobody can forge a source.
    pub trust_allowed: bool,
    /// Whether the server tells a receiver that the messages asked for are gone, are not published yet, or must be requested later. The
    /// server does this with a control datagram, which receivers of plain MoldUDP64 ignore.
    pub announce: bool,
    /// The rate of reply bytes for each source.
    pub source_rate: Rate,
    /// Whether each source's rate is at least [`CATCH_UP_FACTOR`] times the feed's own rate, even if `source_rate` is lower.
    pub source_grows: bool,
    /// The rate of reply bytes for all sources together.
    pub global_rate: Rate,
    /// Whether the rate for all sources together is at least [`CATCH_UP_FACTOR`] times the feed's own rate, even if `global_rate` is lower.
    pub global_grows: bool,
    /// The greatest number of sources that have a bucket at a time.
    pub max_sources: usize,
    /// The link, if its speed is known. Repairs use the part of the link that live packets do not use.
    pub link: Option<Link>,
    /// The configuration of plain repairs for all receivers. `None` if each repair is sent only to its asker.
    pub merge: Option<MergeConfig>,
    /// The configuration of native repairs for all receivers. `None` if each repair is sent only to its asker.
    pub merge_native: Option<MergeConfig>,
}

impl Default for ReplayConfig {
    fn default() -> ReplayConfig {
        ReplayConfig {
            payload_bytes: DEFAULT_PAYLOAD_BYTES,
            allow: AllowList::default(),
            trust_allowed: false,
            announce: true,
            source_rate: Rate { per_second: SOURCE_RATE_BYTES, burst: 1 << 20 },
            source_grows: true,
            global_rate: Rate { per_second: GLOBAL_RATE_BYTES, burst: 4 << 20 },
            global_grows: true,
            max_sources: 1_024,
            link: None,
            merge: None,
            merge_native: None,
        }
    }
}

/// The reply to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply {
    /// The buffer has a datagram with messages.
    Messages {
        /// The size of the datagram.
        bytes: usize,
        /// The number of messages in the datagram.
        count: u16,
        /// Whether the datagram is sent to all receivers. If not, it is sent to the asker.
        to_all: bool,
    },
    /// The buffer has a datagram, which says that the messages are gone.
    Gone {
        /// The size of the datagram.
        bytes: usize,
    },
    /// The buffer has a datagram, which says that the server holds the messages, and that the asker should ask again later.
    Later {
        /// The size of the datagram.
        bytes: usize,
    },
    /// The buffer has a datagram, which tells all receivers to wait.
    Pause {
        /// The size of the datagram.
        bytes: usize,
    },
    /// The buffer has a datagram, which says that none of the messages is published yet.
    Held {
        /// The size of the datagram.
        bytes: usize,
    },
    /// There is no reply yet, because the messages must be read from the journal first. After that, the request is passed to
    /// `Replay::handle_request` again.
    Fetch,
    /// There is no reply, for this reason.
    Nothing(Refusal),
}

impl Reply {
    /// Returns the size of the datagram to send, if there is one.
    pub(crate) fn bytes(&self) -> Option<usize> {
        match *self {
            Reply::Messages { bytes, .. }
            | Reply::Gone { bytes }
            | Reply::Later { bytes }
            | Reply::Pause { bytes }
            | Reply::Held { bytes } => Some(bytes),
            Reply::Fetch | Reply::Nothing(_) => None,
        }
    }

    /// Whether the datagram is sent to all receivers. If not, it is sent to the asker.
    pub(crate) fn is_to_all(&self) -> bool {
        matches!(self, Reply::Messages { to_all: true, .. } | Reply::Pause { .. })
    }
}

/// The state of one retransmission server.
#[derive(Debug)]
pub struct Replay {
    config: ReplayConfig,
    sources: SourceBuckets,
    global: TokenBucket,
    global_rate: Rate,
    /// The part of the link that live packets do not use, if the link's speed is known.
    link: Option<Remainder>,
    merge: Option<Merge>,
    merge_native: Option<Merge>,
    counters: ReplayCounters,
}

impl Replay {
    /// Makes a server that has received no request.
    pub fn new(mut config: ReplayConfig) -> Replay {
        config.payload_bytes = config.payload_bytes.clamp(CONTROL_MAX_BYTES, MAX_DATAGRAM_BYTES);
        let sources = SourceBuckets::new(config.source_rate, config.max_sources);
        let (global, counters) = (TokenBucket::default(), ReplayCounters::default());
        let [merge, merge_native] = [config.merge, config.merge_native].map(|merge| merge.map(Merge::new));
        let (global_rate, link) = (config.global_rate, config.link.map(Remainder::of));
        Replay { sources, global, global_rate, link, merge, merge_native, counters, config }
    }

    /// Notes the longest round trip of any receiver; 0 if none is known.
    pub(crate) fn note_longest(&mut self, longest_ns: u64) {
        for merge in self.merge.iter_mut().chain(&mut self.merge_native) {
            merge.note_longest(longest_ns);
        }
    }

    /// Notes a plain repair that another server sent to all receivers.
    pub(crate) fn note_other(&mut self, now_ns: u64, from: SocketAddr, datagram: &[u8]) {
        if let (Some(merge), Ok(packet)) = (&mut self.merge, Downstream::parse(datagram)) {
            merge.note_other(now_ns, from, packet.sequence);
        }
    }

    /// Notes the feed's own rate in bytes per second.
    pub(crate) fn note_live_rate(&mut self, bytes_per_second: u64) {
        let least = |grows| if grows { bytes_per_second.saturating_mul(CATCH_UP_FACTOR) } else { 0 };
        self.sources.set_rate(self.config.source_rate.at_least(least(self.config.source_grows)));
        self.global_rate = self.config.global_rate.at_least(least(self.config.global_grows));
    }

    /// Notes how many bytes live packets have taken on the wire so far. Returns the bytes per second that are left for repairs.
    pub(crate) fn note_live(&mut self, now_ns: u64, live_bytes: u64) -> Option<u64> {
        let link = self.link.as_mut()?;
        link.note_live(now_ns, live_bytes);
        Some(link.per_second())
    }

    /// Answers one datagram of `asker`. `holding` has the server's session, and the range of messages that the server holds. Costs one read
    /// and one copy per message, and no allocation.
    ///
    /// - `read` copies the message with this sequence to the start of the slice, and returns its size. It returns `None` if the message is
    ///   no longer there, or does not fit the slice.
    /// - `out` gets the reply. Its length limits the reply, as the payload size does.
    pub fn handle_request(
        &mut self,
        now_ns: u64,
        asker: Asker,
        datagram: &[u8],
        Holding { session, held }: Holding,
        out: &mut [u8],
        read: impl FnMut(u64, &mut [u8]) -> Option<usize>,
    ) -> Reply {
        self.counters.totals.requests += u64::from(!asker.has_waited);
        let Asker { from, is_proved: proved, .. } = asker;
        let request = Request::parse(datagram).map_err(|_| Refusal::Malformed);
        let admitted = self.check(from, request.map(|request| request.session), session);
        let request = match admitted.and(request) {
            Ok(request) => request,
            Err(refusal) => return Reply::Nothing(self.counters.refuse(refusal)),
        };
        if let Err(refusal) = self.afford(now_ns, from, held.place) {
            let nothing = Reply::Nothing(self.counters.refuse(refusal));
            let later = self.later(&request, held, proved);
            return match self.wait(now_ns, false, refusal, later) {
                Some(pause @ ControlDatagram::Pause { .. }) => {
                    write(Some(pause), out).map_or(nothing, |bytes| Reply::Pause { bytes })
                }
                later => write(later, out).map_or(nothing, |bytes| Reply::Later { bytes }),
            };
        }
        let before = self.counters.totals;
        let limit = self.limit(proved, datagram.len()).min(out.len());
        let out = &mut out[..limit];
        let reply = if request.first >= held.next {
            self.reply_held(&request, held, proved, out)
        } else if request.first < held.oldest {
            self.reply_gone(&request, held.oldest, out)
        } else if held.place == Place::Disk {
            self.fetch(proved)
        } else {
            match self.answer_of(now_ns, false, asker, (request.first, 0), held) {
                Answer::Ignored => Reply::Nothing(self.counters.refuse(Refusal::OnItsWay)),
                answer => self.reply_messages(&request, held, answer == Answer::All, out, read),
            }
        };
        self.note_place(&before, held.place);
        if let Some(bytes) = reply.bytes() {
            self.charge(now_ns, from, bytes);
        }
        reply
    }

    // Returns the reply to a request for messages on the disk. A source that has not proved its address cannot make the disk work.
    fn fetch(&mut self, proved: bool) -> Reply {
        match self.may_have_all(proved) {
            true => Reply::Fetch,
            false => Reply::Nothing(self.counters.refuse(Refusal::Unproved)),
        }
    }

    // Checks whether a source is allowed to ask about a session. `ours` is the session of the ring. `asked` is the session of the request,
    // if the request is valid.
    fn check(&self, from: SocketAddr, asked: Result<Session, Refusal>, ours: Session) -> Result<(), Refusal> {
        if !self.config.allow.allows(from.ip()) {
            return Err(Refusal::NotAllowed);
        }
        if asked? != ours {
            return Err(Refusal::ForeignSession);
        }
        Ok(())
    }

    // Decides whether an answer from `first` on is sent to its asker, to all, or to nobody. Messages from a journal are sent only to their
    // asker, since they are old.
    fn answer_of(
        &mut self,
        now_ns: u64,
        is_native: bool,
        asker: Asker,
        range: (u64, u32),
        held: Held,
    ) -> Answer {
        let may_draw_all = self.may_have_all(asker.is_proved) && held.place == Place::Ring;
        let merge = if is_native { &mut self.merge_native } else { &mut self.merge };
        match merge.as_mut().filter(|_| may_draw_all) {
            Some(merge) => merge.answer(now_ns, asker.from, range),
            None => Answer::One,
        }
    }

    // Makes the reply to a source that must wait. `later` is the reply to this source alone.
    fn wait(
        &mut self,
        now_ns: u64,
        is_native: bool,
        refusal: Refusal,
        later: Option<ControlDatagram>,
    ) -> Option<ControlDatagram> {
        let Some(ControlDatagram::Later { session, .. }) = later else { return later };
        let merge = if is_native { &mut self.merge_native } else { &mut self.merge };
        let Some(merge) = merge.as_mut().filter(|_| refusal == Refusal::GlobalRate) else { return later };
        let of_link_ns = self.link.as_ref().map_or(0, |link| link.opens_in_ns(now_ns));
        match merge.pause(now_ns, self.global.opens_in_ns(now_ns, self.global_rate).max(of_link_ns)) {
            Wait::One => later,
            Wait::Ignored => None,
            Wait::All(wait_ns) => {
                self.counters.totals.pauses += 1;
                let wait_us = u32::try_from(wait_ns / MICROSECOND_NS).unwrap_or(u32::MAX);
                Some(ControlDatagram::Pause { session, wait_us })
            }
        }
    }

    // Whether a source is allowed to get as many bytes as it asks for. Any other source gets at most three times as many bytes as it sent.
    fn may_have_all(&self, proved: bool) -> bool {
        proved || self.config.trust_allowed
    }

    // Returns the size of the largest datagram that is allowed as the answer to a request of `asked_bytes`.
    fn limit(&self, proved: bool, asked_bytes: usize) -> usize {
        match self.may_have_all(proved) {
            true => self.config.payload_bytes,
            false => self.config.payload_bytes.min(UNPROVED_FACTOR * asked_bytes),
        }
    }

    fn charge(&mut self, now_ns: u64, from: SocketAddr, bytes: usize) {
        self.sources.charge(now_ns, from.ip().to_canonical(), bytes as u64);
        self.global.charge(now_ns, self.global_rate, bytes as u64);
        if let Some(link) = &mut self.link {
            link.charge(now_ns, bytes as u64 + FRAME_BYTES);
        }
    }

    fn afford(&mut self, now_ns: u64, from: SocketAddr, place: Place) -> Result<(), Refusal> {
        let rate = match place {
            Place::Ring => self.global_rate,
            // Old messages can use at most half of the burst. The other half is for messages in the ring. Old messages are not urgent: they
            // are sent evenly, so that live packets do not wait for them on the link.
            Place::Shelf | Place::Disk | Place::Busy => {
                let evenly = self.global_rate.per_second / PAST_BURST_SHARE;
                Rate { burst: evenly.min(self.global_rate.burst / 2), ..self.global_rate }
            }
        };
        let is_link_full = self.link.as_ref().is_some_and(|link| !link.is_open(now_ns));
        if is_link_full || !self.global.is_open(now_ns, rate) {
            return Err(Refusal::GlobalRate);
        }
        if place == Place::Busy {
            return Err(Refusal::JournalBusy);
        }
        if !self.sources.is_open(now_ns, from.ip().to_canonical()) {
            return Err(Refusal::SourceRate);
        }
        Ok(())
    }

    fn reply_messages(
        &mut self,
        request: &Request,
        held: Held,
        to_all: bool,
        out: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> Option<usize>,
    ) -> Reply {
        let end = held.next.min(request.first.saturating_add(u64::from(request.count)));
        let mut packet = PacketWriter::new(request.first);
        let mut offered = 0;
        // The loop ends: each iteration adds a message, and the number of messages is limited.
        while packet.next() < end {
            let Some(room) = packet.room(out) else { break };
            offered = room.len();
            let Some(size) = read(packet.next(), room) else {
                break;
            };
            if !packet.commit(out, size) {
                break;
            }
        }
        let count = packet.count();
        if let Some(bytes) = packet.finish(out, request.session) {
            self.counters.totals.replies += 1;
            self.counters.totals.messages += u64::from(count);
            self.counters.totals.bytes += bytes as u64;
            self.counters.totals.multicast_replies += u64::from(to_all);
            return Reply::Messages { bytes, count, to_all };
        }
        // Not a single message fits. Either the source has not proved its address and must not get so many bytes, or the ring has
        // overwritten the message meanwhile.
        if offered + HEADER_BYTES + LENGTH_BYTES < self.config.payload_bytes {
            return Reply::Nothing(self.counters.refuse(Refusal::Unproved));
        }
        if held.is_backed {
            return Reply::Fetch;
        }
        self.reply_gone(request, request.first.saturating_add(1), out)
    }

    fn reply_gone(&mut self, request: &Request, oldest: u64, out: &mut [u8]) -> Reply {
        let gone = self.gone(request, oldest);
        write(gone, out).map_or(Reply::Nothing(Refusal::Gone), |bytes| Reply::Gone { bytes })
    }

    fn reply_held(&mut self, request: &Request, held: Held, proved: bool, out: &mut [u8]) -> Reply {
        write(self.held(request, held).filter(|_| proved), out)
            .map_or(Reply::Nothing(Refusal::NotYet), |bytes| Reply::Held { bytes })
    }

    // Counts a request for messages that are gone. Returns the datagram that reports this.
    fn gone(&mut self, request: &Request, oldest: u64) -> Option<ControlDatagram> {
        self.counters.refuse(Refusal::Gone);
        let gone = ControlDatagram::Gone { session: request.session, first: request.first, oldest };
        self.config.announce.then_some(gone)
    }

    // Counts a request for messages that are not published yet. Returns the datagram that reports this, if the source has proved its
    // address.
    fn held(&mut self, request: &Request, held: Held) -> Option<ControlDatagram> {
        self.counters.refuse(Refusal::NotYet);
        let (session, first, Held { oldest, next, .. }) = (request.session, request.first, held);
        let held = ControlDatagram::Held { session, first, oldest: oldest.min(next), next };
        (self.config.announce && !fault!("silent_for_not_yet")).then_some(held)
    }

    // Returns the datagram that tells a source with a proved address to ask again later. Returns `None` if the messages are already gone.
    fn later(&self, request: &Request, held: Held, proved: bool) -> Option<ControlDatagram> {
        let is_promised = proved && (held.oldest..held.next).contains(&request.first);
        let later = ControlDatagram::Later { session: request.session, first: request.first };
        (self.config.announce && is_promised).then_some(later)
    }

    // If the replies since `before` were read from the journal, adds them to the counters of the journal.
    fn note_place(&mut self, before: &ReplayTotals, place: Place) {
        let counters = &mut self.counters;
        if place == Place::Shelf {
            counters.journal.replies += counters.totals.replies - before.replies;
            counters.journal.messages += counters.totals.messages - before.messages;
            counters.journal.bytes += counters.totals.bytes - before.bytes;
        }
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> &ReplayCounters {
        &self.counters
    }
}

// Writes the datagram if there is one and it fits. Returns its size.
fn write(control: Option<ControlDatagram>, out: &mut [u8]) -> Option<usize> {
    let mut encoded = [0; CONTROL_MAX_BYTES];
    let bytes = control?.encode(&mut encoded);
    out.get_mut(..bytes)?.copy_from_slice(&encoded[..bytes]);
    Some(bytes)
}
