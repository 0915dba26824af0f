//! Unicast leases: who gets a copy of the feed at its own address, for how long, and how that is kept from being abused.
//!
//! ```text
//!   client                          server
//!     Hello        ──────────────>            no state; the answer is no longer than the question
//!                  <──────────────  Cookie    keyed MAC over address, epoch and time
//!     Subscribe    ──────────────>            the cookie proves that the client receives at its address
//!                  <──────────────  Granted   the lease starts, with a fresh cookie for the renewal
//!        .. a third of the lease later: Subscribe again; on a clean stop: Unsubscribe ──> Released
//! ```
//! The allow-list is asked first and lets nobody in by default; then each source has a token bucket; only then is
//! anything computed. A lease that is not renewed ends by itself. Not here: sockets, and what is sent to the leases.

#[cfg(test)]
mod tests;

use std::hash::Hasher;
use std::net::SocketAddr;

use siphasher::sip128::{Hasher128, SipHasher24};

use super::control::{CONTROL_MAX_BYTES, COOKIE_BYTES, Control, Cookie};
use super::counters::LeaseCounters;
use super::limit::{AllowList, Rate, SourceBuckets, address_bytes};
use super::{MILLISECOND_NS, SECOND_NS};

/// How leases are given.
#[derive(Debug, Clone)]
pub struct LeaseConfig {
    /// Who may have one. Empty by default: nobody.
    pub allow: AllowList,
    /// How long a lease lasts, in nanoseconds. A client may ask for less, not for more.
    pub lease_ns: u64,
    /// How long a cookie is good, in nanoseconds; longer than a lease, or renewals take a round trip more.
    pub cookie_ns: u64,
    /// The most leases at a time.
    pub max_leases: usize,
    /// Control datagrams for each source address.
    pub source_rate: Rate,
    /// The most sources remembered at a time.
    pub max_sources: usize,
}

impl Default for LeaseConfig {
    fn default() -> LeaseConfig {
        LeaseConfig {
            allow: AllowList::default(),
            lease_ns: 60 * SECOND_NS,
            cookie_ns: 120 * SECOND_NS,
            max_leases: 64,
            source_rate: Rate { per_second: 50, burst: 100 },
            max_sources: 1_024,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Lease {
    address: SocketAddr,
    live: bool,
    ends_ns: u64,
}

/// The serving side: a bounded table of leases, and cookies that need no table.
#[derive(Debug)]
pub struct LeaseServer {
    config: LeaseConfig,
    key: [u8; 16],
    epoch: u64,
    leases: Vec<Lease>,
    sources: SourceBuckets,
    counters: LeaseCounters,
}

impl LeaseServer {
    /// A server without leases. `key` must come from the system's random source, anew at each start; `epoch` tells
    /// this run from earlier ones.
    pub fn new(config: LeaseConfig, key: [u8; 16], epoch: u64) -> LeaseServer {
        LeaseServer {
            leases: Vec::with_capacity(config.max_leases),
            sources: SourceBuckets::new(config.source_rate, config.max_sources),
            config,
            key,
            epoch,
            counters: LeaseCounters::default(),
        }
    }

    /// Answers one control datagram; gives the size of the reply in `out`, or `None` when there is to be none.
    pub fn handle_datagram(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &[u8],
        out: &mut [u8; CONTROL_MAX_BYTES],
    ) -> Option<usize> {
        self.counters.received += 1;
        let source = from.ip().to_canonical();
        if !self.config.allow.allows(source) {
            self.counters.not_allowed += 1;
            return None;
        }
        if !self.sources.is_open(now_ns, source) {
            self.counters.over_rate += 1;
            return None;
        }
        self.sources.charge(now_ns, source, 1);
        let reply = match Control::parse(datagram) {
            Ok(Control::Hello { nonce }) => self.offer_cookie(now_ns, from, nonce),
            Ok(Control::Subscribe { nonce, cookie, live, lease_ms }) => {
                if self.is_good(now_ns, from, &cookie) {
                    self.subscribe(now_ns, from, nonce, live, lease_ms)
                } else {
                    self.counters.cookies_refused += 1;
                    self.offer_cookie(now_ns, from, nonce)
                }
            }
            Ok(Control::Unsubscribe { nonce, cookie }) => {
                if self.is_good(now_ns, from, &cookie) {
                    self.unsubscribe(from);
                    Control::Released { nonce }
                } else {
                    self.counters.cookies_refused += 1;
                    self.offer_cookie(now_ns, from, nonce)
                }
            }
            _ => {
                self.counters.malformed += 1;
                return None;
            }
        };
        Some(reply.encode(out))
    }

    fn offer_cookie(&mut self, now_ns: u64, from: SocketAddr, nonce: u64) -> Control {
        self.counters.cookies += 1;
        Control::Cookie { nonce, cookie: self.make_cookie(now_ns, from) }
    }

    fn subscribe(&mut self, now_ns: u64, from: SocketAddr, nonce: u64, live: bool, lease_ms: u32) -> Control {
        self.expire(now_ns);
        let lease_ns = match lease_ms {
            0 => self.config.lease_ns,
            wanted => self.config.lease_ns.min(u64::from(wanted) * MILLISECOND_NS),
        };
        let lease = Lease { address: from, live, ends_ns: now_ns.saturating_add(lease_ns) };
        if let Some(own) = self.leases.iter_mut().find(|lease| lease.address == from) {
            *own = lease;
            self.counters.renewed += 1;
        } else if self.leases.len() < self.config.max_leases {
            self.leases.push(lease);
            self.counters.granted += 1;
        } else {
            self.counters.full += 1;
            return Control::Full { nonce };
        }
        let lease_ms = u32::try_from(lease_ns / MILLISECOND_NS).unwrap_or(u32::MAX);
        Control::Granted { nonce, cookie: self.make_cookie(now_ns, from), lease_ms }
    }

    fn unsubscribe(&mut self, from: SocketAddr) {
        let before = self.leases.len();
        self.leases.retain(|lease| lease.address != from);
        self.counters.released += (before - self.leases.len()) as u64;
    }

    // issued_ms u64 | MAC over address, port, epoch and issued_ms
    fn make_cookie(&self, now_ns: u64, from: SocketAddr) -> Cookie {
        self.cookie_of(now_ns / MILLISECOND_NS, from)
    }

    fn cookie_of(&self, issued_ms: u64, from: SocketAddr) -> Cookie {
        let mut mac = SipHasher24::new_with_key(&self.key);
        mac.write(&address_bytes(from.ip()));
        mac.write(&from.port().to_be_bytes());
        mac.write(&self.epoch.to_be_bytes());
        mac.write(&issued_ms.to_be_bytes());
        let mut cookie = [0; COOKIE_BYTES];
        cookie[..8].copy_from_slice(&issued_ms.to_be_bytes());
        cookie[8..].copy_from_slice(&mac.finish128().as_bytes());
        cookie
    }

    fn is_good(&self, now_ns: u64, from: SocketAddr, cookie: &Cookie) -> bool {
        let mut issued_ms = [0; 8];
        issued_ms.copy_from_slice(&cookie[..8]);
        let issued_ms = u64::from_be_bytes(issued_ms);
        let now_ms = now_ns / MILLISECOND_NS;
        let is_fresh = issued_ms <= now_ms && now_ms - issued_ms <= self.config.cookie_ns / MILLISECOND_NS;
        // All bytes are looked at whatever they are: how long it takes must not tell how much of a guess was right.
        let off = self.cookie_of(issued_ms, from).iter().zip(cookie).fold(0, |off, (a, b)| off | (a ^ b));
        is_fresh && off == 0
    }

    /// Ends leases that ran out. Call when [`LeaseServer::next_deadline`] has come.
    pub fn expire(&mut self, now_ns: u64) {
        let before = self.leases.len();
        self.leases.retain(|lease| lease.ends_ns > now_ns);
        self.counters.expired += (before - self.leases.len()) as u64;
    }

    /// When the next lease runs out, if there is one.
    pub fn next_deadline(&self) -> Option<u64> {
        self.leases.iter().map(|lease| lease.ends_ns).min()
    }

    /// Where live packets are to be sent.
    pub fn live_addresses(&self, now_ns: u64) -> impl Iterator<Item = SocketAddr> + '_ {
        let is_live = move |lease: &&Lease| lease.live && lease.ends_ns > now_ns;
        self.leases.iter().filter(is_live).map(|lease| lease.address)
    }

    /// Whether this address holds a lease, and so has proved that it receives what is sent to it.
    pub fn is_proved(&self, now_ns: u64, address: SocketAddr) -> bool {
        self.leases.iter().any(|lease| lease.address == address && lease.ends_ns > now_ns)
    }

    /// How many leases there are, those about to expire included.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Whether there is no lease.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// What was counted so far.
    pub fn counters(&self) -> &LeaseCounters {
        &self.counters
    }
}
