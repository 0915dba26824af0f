//! Unicast leases. The server decides which receivers get a copy of the feed at their own address and for how long, and prevents abuse.
//!
//! ```text
//!   client                          server
//!     Hello        ──────────────>            no state; the answer is no longer than the question
//!                  <──────────────  Cookie    keyed MAC over address, epoch and time
//!     Join         ──────────────>            the cookie proves that the client receives at its address
//!                  <──────────────  Joined    the lease starts, with a fresh cookie for the renewal
//!        .. a third of the lease later: Join again; on a clean stop: Unsubscribe ──> Released
//! ```
//! Join contains an identity of the receiver. If a receiver returns with the same identity, its new lease replaces its old one. An older
//! client that does not know Join sends Subscribe, and gets Granted. The lease of such a client has the client's address as its key.
//!
//! The server first compares the source of a datagram with the allow-list. The list is empty by default, and an empty list refuses every
//! source. Then the server charges the datagram to a token bucket:
//!
//! - A lease has a bucket of its own. Only a datagram with the lease's valid cookie is charged to this bucket. So nobody else can empty the
//!   bucket and prevent the renewal.
//! - Datagrams without a valid cookie are charged to the bucket of their source address.
//! - The table of the buckets for addresses is bounded. When a flood from forged addresses has filled the table, all further addresses
//!   share one bucket.
//!
//! A lease that is not renewed expires. An overdue lease ends earlier if there is no other room for the lease of another receiver. This
//! module has no sockets, and sends no live packets.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::control::{CONTROL_MAX_BYTES, COOKIE_BYTES, ControlDatagram, Cookie};
use super::counters::LeaseCounters;
use super::lease_client::RETRY_FIRST_NS;
use super::limit::{AllowList, Rate, SourceBuckets, TokenBucket, address_bytes};
use super::{MICROSECOND_NS, MILLISECOND_NS, SECOND_NS};
use shmcast::hosting::fault;

/// The common rate of all addresses that have no entry in the table of sources, in questions per second. An answer is never longer than its
/// question, so a server cannot be used to amplify a flood.
const CROWD: Rate = Rate { per_second: 20_000, burst: 2_000 };

/// The rules by which leases are granted.
#[derive(Debug, Clone)]
pub(crate) struct LeaseConfig {
    /// The networks whose addresses are allowed to have leases. The list is empty by default, and then no address is allowed.
    pub allow: AllowList,
    /// The duration of a lease, in nanoseconds. A client can ask for a shorter lease, but not for a longer one.
    pub lease_ns: u64,
    /// The time for which a cookie is valid, in nanoseconds. If this is shorter than a lease, each renewal takes an additional round trip.
    pub cookie_ns: u64,
    /// The greatest number of leases with live packets at a time.
    pub max_leases: usize,
    /// The limit for the number of leases of all kinds at a time.
    pub max_proved: usize,
    /// The greatest number of leases of any kind for one source address.
    pub leases_per_source: usize,
    /// The rate of control datagrams for each source address, and for each lease.
    pub source_rate: Rate,
    /// At most this many sources without a valid cookie have a token bucket of their own. All other sources without a valid cookie share
    /// one bucket.
    pub max_sources: usize,
}

impl Default for LeaseConfig {
    fn default() -> LeaseConfig {
        LeaseConfig {
            allow: AllowList::default(),
            lease_ns: 60 * SECOND_NS,
            cookie_ns: 120 * SECOND_NS,
            max_leases: 64,
            max_proved: 4_096,
            leases_per_source: 16,
            source_rate: Rate { per_second: 50, burst: 100 },
            max_sources: 1_024,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    live: bool,
    /// The identity of the receiver that has the lease, if the receiver has sent its identity.
    receiver: Option<u64>,
    renewed_ns: u64,
    ends_ns: u64,
    /// The time from sending a cookie to its first use; 0 if it is not known.
    rtt_ns: u64,
    /// The rate limit (token bucket) of the client that has the lease.
    bucket: TokenBucket,
}

impl Lease {
    /// Whether the lease is overdue: more than half of its time has passed since the last renewal. A client renews after a third of the
    /// time.
    fn is_overdue(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.renewed_ns) > self.ends_ns.saturating_sub(self.renewed_ns) / 2
    }
}

/// The lease that a client asks for.
#[derive(Debug, Clone, Copy)]
struct Wish {
    live: bool,
    lease_ms: u32,
    receiver: Option<u64>,
    /// The time from sending the cookie to its use. It is measured only if the client had no valid cookie before.
    rtt_ns: Option<u64>,
}

/// The server's side of leases: a table of bounded size, and cookies that need no table.
#[derive(Debug)]
pub(crate) struct LeaseServer {
    config: LeaseConfig,
    key: [u8; 16],
    epoch: u64,
    leases: HashMap<SocketAddr, Lease>,
    /// No lease expires before this time.
    ends_ns: u64,
    /// The longest round trip of any lease, in nanoseconds.
    longest_ns: u64,
    /// The token buckets of addresses whose datagrams have a valid cookie but no lease. `sources` has the buckets of addresses without a
    /// valid cookie.
    proved: SourceBuckets,
    sources: SourceBuckets,
    /// The token bucket that all addresses without an entry in `sources` share.
    crowd: TokenBucket,
    counters: LeaseCounters,
}

impl LeaseServer {
    /// Makes a server without leases. `key` must be new at each start, and must come from the system's random source. `epoch` distinguishes
    /// this run of the server from earlier ones.
    pub(crate) fn new(mut config: LeaseConfig, key: [u8; 16], epoch: u64) -> LeaseServer {
        config.max_proved = config.max_proved.max(config.max_leases);
        LeaseServer {
            leases: HashMap::with_capacity(config.max_proved.max(config.max_leases)),
            ends_ns: u64::MAX,
            longest_ns: 0,
            proved: SourceBuckets::new(config.source_rate, config.max_proved),
            sources: SourceBuckets::new(config.source_rate, config.max_sources),
            crowd: TokenBucket::default(),
            config,
            key,
            epoch,
            counters: LeaseCounters::default(),
        }
    }

    /// Answers one control datagram. Returns the size of the reply in `out`, or `None` if there is no reply.
    #[cfg(test)]
    pub(crate) fn handle_datagram(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
        out: &mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<usize> {
        self.handle_control(now_ns, from, ControlDatagram::parse(datagram).ok(), out)
    }

    /// Answers one control datagram. `control` is `None` if it is malformed. Returns the size of the reply in `out`, or `None` if there is
    /// no reply.
    pub(crate) fn handle_control(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        control: Option<ControlDatagram>,
        out: &mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<usize> {
        self.counters.received += 1;
        let source = from.ip().to_canonical();
        if !self.config.allow.allows(source) {
            self.counters.not_allowed += 1;
            return None;
        }
        let is_good = control.as_ref().and_then(cookie_in).is_some_and(|it| self.is_good(now_ns, from, it));
        if !self.is_within_rate(now_ns, from, is_good) {
            self.counters.over_rate += 1;
            return None;
        }
        let reply = match control {
            Some(ControlDatagram::Hello { nonce }) => self.offer_cookie(now_ns, from, nonce),
            Some(
                ControlDatagram::Subscribe { nonce, .. }
                | ControlDatagram::Join { nonce, .. }
                | ControlDatagram::Unsubscribe { nonce, .. },
            ) if !is_good => {
                self.counters.cookies_refused += 1;
                self.offer_cookie(now_ns, from, nonce)
            }
            Some(ControlDatagram::Subscribe { nonce, live, lease_ms, cookie }) => {
                let rtt_ns = rtt_of(now_ns, &cookie);
                self.subscribe(now_ns, from, nonce, Wish { live, lease_ms, receiver: None, rtt_ns })
            }
            Some(ControlDatagram::Join { nonce, live, lease_ms, receiver, cookie }) => {
                let (receiver, rtt_ns) = (Some(receiver), rtt_of(now_ns, &cookie));
                self.subscribe(now_ns, from, nonce, Wish { live, lease_ms, receiver, rtt_ns })
            }
            Some(ControlDatagram::Unsubscribe { nonce, .. }) => {
                self.unsubscribe(from);
                ControlDatagram::Released { nonce }
            }
            _ => {
                self.counters.malformed += 1;
                return None;
            }
        };
        if fault!("full_tables_say_nothing") && matches!(reply, ControlDatagram::Full { .. }) {
            return None;
        }
        Some(reply.encode(out))
    }

    /// Takes the cost of a datagram out of its token bucket. Returns false if the bucket is empty.
    fn is_within_rate(&mut self, now_ns: u64, from: SocketAddr, is_good: bool) -> bool {
        let rate = self.config.source_rate;
        if let Some(lease) = self.leases.get_mut(&from).filter(|_| is_good) {
            return lease.bucket.take(now_ns, rate, 1);
        }
        let source = from.ip().to_canonical();
        let sources = if is_good { &mut self.proved } else { &mut self.sources };
        if sources.is_open(now_ns, source) {
            sources.charge(now_ns, source, 1);
            return true;
        }
        let has_no_place = !is_good && !sources.contains(source) && !fault!("a_crowd_shuts_others_out");
        has_no_place && self.crowd.take(now_ns, CROWD, 1)
    }

    fn offer_cookie(&mut self, now_ns: u64, from: SocketAddr, nonce: u64) -> ControlDatagram {
        self.counters.cookies += 1;
        ControlDatagram::Cookie { nonce, cookie: self.make_cookie(now_ns, from, true) }
    }

    fn subscribe(&mut self, now_ns: u64, from: SocketAddr, nonce: u64, wish: Wish) -> ControlDatagram {
        self.expire(now_ns);
        let lease_ns = match wish.lease_ms {
            0 => self.config.lease_ns,
            wanted => self.config.lease_ns.min(u64::from(wanted) * MILLISECOND_NS),
        };
        let ends_ns = now_ns.saturating_add(lease_ns);
        let known = self.leases.get(&from).map(|lease| (lease.rtt_ns, lease.bucket));
        let (known_ns, bucket) = known.unwrap_or_default();
        let rtt_ns = wish.rtt_ns.unwrap_or(known_ns);
        let Wish { live, receiver, .. } = wish;
        let lease = Lease { live, receiver, renewed_ns: now_ns, ends_ns, rtt_ns, bucket };
        // If a client has a lease for repairs and now wants live packets, this is no renewal: the client needs one of the leases with live
        // packets.
        let is_renewal = |own: &Lease| own.live || !wish.live;
        if self.leases.get(&from).is_some_and(is_renewal) {
            self.counters.renewed += 1;
        } else if self.replace_own(now_ns, from, &lease) || self.make_room(now_ns, from, &lease) {
            self.counters.granted += 1;
        } else {
            self.counters.full += 1;
            return ControlDatagram::Full { nonce };
        }
        self.leases.insert(from, lease);
        self.ends_ns = self.ends_ns.min(ends_ns);
        self.longest_ns = self.longest_ns.max(rtt_ns);
        let lease_ms = u32::try_from(lease_ns / MILLISECOND_NS).unwrap_or(u32::MAX);
        let cookie = self.make_cookie(now_ns, from, false);
        if wish.receiver.is_none() {
            return ControlDatagram::Granted { nonce, cookie, lease_ms };
        }
        let (group, place) = self.place(from, &lease);
        ControlDatagram::Joined { nonce, cookie, lease_ms, group, place }
    }

    /// Returns the number of leases of this kind, and the position of this lease among them. Leases are ordered by the identities of their
    /// receivers, so the order is the same at every server.
    fn place(&self, from: SocketAddr, lease: &Lease) -> (u16, u16) {
        let count = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
        let alike = || self.leases.iter().filter(|(_, other)| other.live == lease.live);
        let own = (lease.receiver, from);
        let mut before = alike().filter(|(address, other)| (other.receiver, **address) < own).count();
        if fault!("places_never_close_up") {
            before += (self.counters.expired + self.counters.released) as usize;
        }
        (count(alike().count()), count(before))
    }

    /// Removes the old lease of a receiver that returns from another port or address. Returns whether a lease was removed.
    ///
    /// If only the port differs, the old lease is removed immediately. If the address differs, the old lease is removed only if it is
    /// overdue. Without this condition, an attacker at another address could take a receiver's lease.
    fn replace_own(&mut self, now_ns: u64, from: SocketAddr, lease: &Lease) -> bool {
        let is_own = |(address, other): &(&SocketAddr, &Lease)| {
            let is_same =
                other.receiver.is_some() && (other.receiver, other.live) == (lease.receiver, lease.live);
            is_same && (address.ip() == from.ip() || other.is_overdue(now_ns))
        };
        let own = self.leases.iter().find(is_own).map(|(address, _)| *address);
        let is_replaced =
            own.filter(|_| !fault!("leases_know_no_receiver")).and_then(|own| self.leases.remove(&own));
        self.counters.replaced += u64::from(is_replaced.is_some());
        is_replaced.is_some()
    }

    /// Whether there is room for another lease. If a limit is reached, first ends the lease that has been overdue for the longest time. If
    /// no lease is overdue, returns false.
    fn make_room(&mut self, now_ns: u64, from: SocketAddr, lease: &Lease) -> bool {
        let LeaseConfig { max_leases, max_proved, leases_per_source, .. } = self.config;
        let of_source = |address: &SocketAddr, _: &Lease| address.ip() == from.ip();
        let is_live = |_: &SocketAddr, other: &Lease| other.live;
        self.keeps_below(now_ns, leases_per_source, of_source)
            && (!lease.live || self.keeps_below(now_ns, max_leases, is_live))
            && self.keeps_below(now_ns, max_proved, |_, _| true)
    }

    fn keeps_below(
        &mut self,
        now_ns: u64,
        most: usize,
        counts: impl Fn(&SocketAddr, &Lease) -> bool,
    ) -> bool {
        let counted = || self.leases.iter().filter(|(address, lease)| counts(address, lease));
        if counted().count() < most {
            return true;
        }
        let may_end = |lease: &Lease| lease.is_overdue(now_ns) && !fault!("overdue_leases_stay");
        let overdue = counted().filter(|(_, lease)| may_end(lease));
        let longest = overdue.min_by_key(|(_, lease)| lease.renewed_ns).map(|(address, _)| *address);
        let is_free = longest.and_then(|address| self.leases.remove(&address)).is_some();
        self.counters.expired += u64::from(is_free);
        is_free
    }

    fn unsubscribe(&mut self, from: SocketAddr) {
        self.counters.released += u64::from(self.leases.remove(&from).is_some());
    }

    // The fields of a cookie: `issued`, a u64 | the MAC over address, port, epoch and `issued`. `issued` is the time in microseconds, times
    // two. Its lowest bit is set if the cookie answers a question without a valid cookie.
    fn make_cookie(&self, now_ns: u64, from: SocketAddr, is_first: bool) -> Cookie {
        self.cookie_of(now_ns / MICROSECOND_NS * 2 + u64::from(is_first), from)
    }

    fn cookie_of(&self, issued: u64, from: SocketAddr) -> Cookie {
        let mut mac = SipHasher24::new_with_key(&self.key);
        mac.write(&address_bytes(from.ip()));
        mac.write(&from.port().to_be_bytes());
        mac.write(&self.epoch.to_be_bytes());
        mac.write(&issued.to_be_bytes());
        let mut cookie = [0; COOKIE_BYTES];
        cookie[..8].copy_from_slice(&issued.to_be_bytes());
        cookie[8..].copy_from_slice(&mac.finish128().as_bytes());
        cookie
    }

    fn is_good(&self, now_ns: u64, from: SocketAddr, cookie: &Cookie) -> bool {
        let issued_ns = issued_ns(cookie);
        let is_fresh = issued_ns <= now_ns && now_ns - issued_ns <= self.config.cookie_ns;
        // All bytes are compared in any case. Otherwise the time would show how many bytes of a guess were right.
        let true_cookie = self.cookie_of(issued(cookie), from);
        let off = true_cookie.iter().zip(cookie).fold(0, |off, (a, b)| off | (a ^ b));
        is_fresh && off == 0
    }

    /// Removes leases that have expired. Call this at [`LeaseServer::next_deadline`]. Earlier calls do nothing and cost little.
    pub(crate) fn expire(&mut self, now_ns: u64) {
        if now_ns < self.ends_ns {
            return;
        }
        let before = self.leases.len();
        self.leases.retain(|_, lease| lease.ends_ns > now_ns);
        self.counters.expired += (before - self.leases.len()) as u64;
        self.ends_ns = self.leases.values().map(|lease| lease.ends_ns).min().unwrap_or(u64::MAX);
        self.longest_ns = self.leases.values().map(|lease| lease.rtt_ns).max().unwrap_or(0);
    }

    /// Returns the time at which the next lease can expire, or `None` if there is no lease.
    #[cfg(test)]
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        (!self.leases.is_empty()).then_some(self.ends_ns)
    }

    /// Returns the addresses to which live packets are sent.
    pub(crate) fn live_addresses(&self, now_ns: u64) -> impl Iterator<Item = SocketAddr> + Clone + '_ {
        let is_live = move |lease: &Lease| lease.live && lease.ends_ns > now_ns;
        self.leases.iter().filter(move |(_, lease)| is_live(lease)).map(|(address, _)| *address)
    }

    /// Whether a client at this address has a lease. If so, its address is proved.
    pub(crate) fn is_proved(&self, now_ns: u64, address: SocketAddr) -> bool {
        self.leases.get(&address).is_some_and(|lease| lease.ends_ns > now_ns)
    }

    /// Returns the longest known round trip of a receiver that has a lease; 0 if none is known.
    pub(crate) fn longest_ns(&self) -> u64 {
        self.longest_ns
    }

    /// Returns the number of leases. The number includes leases that have expired but were not removed yet.
    pub(crate) fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is no lease.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The counters so far.
    pub(crate) fn counters(&self) -> &LeaseCounters {
        &self.counters
    }
}

fn cookie_in(control: &ControlDatagram) -> Option<&Cookie> {
    match control {
        ControlDatagram::Subscribe { cookie, .. }
        | ControlDatagram::Join { cookie, .. }
        | ControlDatagram::Unsubscribe { cookie, .. } => Some(cookie),
        _ => None,
    }
}

fn issued(cookie: &Cookie) -> u64 {
    let mut issued = [0; 8];
    issued.copy_from_slice(&cookie[..8]);
    u64::from_be_bytes(issued)
}

fn issued_ns(cookie: &Cookie) -> u64 {
    (issued(cookie) / 2).saturating_mul(MICROSECOND_NS)
}

// Returns the round trip that a question with a valid cookie shows. A client uses a cookie immediately for its first question. After
// `RETRY_FIRST_NS`, the question can be a repeat, which shows no round trip.
fn rtt_of(now_ns: u64, cookie: &Cookie) -> Option<u64> {
    let took_ns = now_ns.saturating_sub(issued_ns(cookie));
    (issued(cookie) % 2 == 1 && took_ns < RETRY_FIRST_NS).then_some(took_ns)
}
