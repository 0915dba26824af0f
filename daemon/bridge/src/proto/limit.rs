//! Limits the sources of requests: an allow-list of networks, and token buckets for each source and for all sources together.
//!
//! A bucket is one number: the time at which the bucket will be full again. A full bucket has the same effect as no bucket, so it can be
//! removed. The table of sources is bounded, and sources outside the allow-list never get into it.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use super::{MILLISECOND_NS, SECOND_NS};

/// The speed at which a bucket fills, and the amount that it can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// The amount that a bucket gains per second; at least 1.
    pub per_second: u64,
    /// The amount that a full bucket holds; at least 1.
    pub burst: u64,
}

impl Rate {
    /// Returns this rate, or `per_second` if that is higher. The burst grows with the rate, so the bucket fills in the same time.
    pub(crate) fn at_least(self, per_second: u64) -> Rate {
        if per_second <= self.per_second {
            return self;
        }
        let burst = u128::from(self.burst) * u128::from(per_second) / u128::from(self.per_second.max(1));
        Rate { per_second, burst: u64::try_from(burst).unwrap_or(u64::MAX) }
    }

    fn cost_ns(&self, amount: u64) -> u64 {
        let cost = u128::from(amount) * u128::from(SECOND_NS) / u128::from(self.per_second.max(1));
        u64::try_from(cost).unwrap_or(u64::MAX)
    }
}

/// A token bucket. It has one word of state and no clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TokenBucket {
    full_at_ns: u64,
}

impl TokenBucket {
    /// Whether the bucket has something left. A single charge can take more than is left. After that the bucket is closed until it has
    /// filled up the deficit.
    pub(crate) fn is_open(&self, now_ns: u64, rate: Rate) -> bool {
        self.opens_in_ns(now_ns, rate) == 0
    }

    /// Returns how long it takes until the bucket opens, in nanoseconds; 0 if it is open.
    pub(crate) fn opens_in_ns(&self, now_ns: u64, rate: Rate) -> u64 {
        let debt_ns = self.full_at_ns.saturating_sub(now_ns);
        debt_ns.saturating_add(1).saturating_sub(rate.cost_ns(rate.burst.max(1)))
    }

    /// Takes `amount` out of the bucket.
    pub(crate) fn charge(&mut self, now_ns: u64, rate: Rate, amount: u64) {
        self.full_at_ns = self.full_at_ns.max(now_ns).saturating_add(rate.cost_ns(amount));
    }

    /// Takes `amount` if the bucket is open. Returns whether the bucket was open.
    pub(crate) fn take(&mut self, now_ns: u64, rate: Rate, amount: u64) -> bool {
        let is_open = self.is_open(now_ns, rate);
        if is_open {
            self.charge(now_ns, rate, amount);
        }
        is_open
    }

    fn is_full(&self, now_ns: u64) -> bool {
        self.full_at_ns <= now_ns
    }
}

/// A token bucket for each source address, in a table of bounded size.
#[derive(Debug)]
pub struct SourceBuckets {
    rate: Rate,
    buckets: HashMap<IpAddr, TokenBucket>,
    max_sources: usize,
    tidy_at_ns: u64,
}

impl SourceBuckets {
    /// Makes an empty table for at most `max_sources` sources at a time.
    pub(crate) fn new(rate: Rate, max_sources: usize) -> SourceBuckets {
        SourceBuckets { rate, buckets: HashMap::with_capacity(max_sources), max_sources, tidy_at_ns: 0 }
    }

    /// Fills all buckets at another rate from now on.
    pub(crate) fn set_rate(&mut self, rate: Rate) {
        self.rate = rate;
    }

    /// Whether the bucket of `source` is open. Returns false if the table has no room for this source.
    pub(crate) fn is_open(&mut self, now_ns: u64, source: IpAddr) -> bool {
        if let Some(bucket) = self.buckets.get(&source) {
            return bucket.is_open(now_ns, self.rate);
        }
        // Removing full buckets visits the whole table. So this happens at most once a millisecond, even in a flood of new sources.
        if self.buckets.len() >= self.max_sources && now_ns >= self.tidy_at_ns {
            self.buckets.retain(|_, bucket| !bucket.is_full(now_ns));
            self.tidy_at_ns = now_ns.saturating_add(MILLISECOND_NS);
        }
        self.buckets.len() < self.max_sources
    }

    /// Takes `amount` out of the bucket of `source`. Call this only after [`SourceBuckets::is_open`] has returned true for `source`.
    pub(crate) fn charge(&mut self, now_ns: u64, source: IpAddr, amount: u64) {
        if self.buckets.len() < self.max_sources || self.buckets.contains_key(&source) {
            self.buckets.entry(source).or_default().charge(now_ns, self.rate, amount);
        }
    }

    /// Whether the table has a bucket for `source`.
    pub(crate) fn contains(&self, source: IpAddr) -> bool {
        self.buckets.contains_key(&source)
    }

    /// Returns the number of sources in the table.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether the table is empty.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

/// An IP network such as `10.1.0.0/16`, or one address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

/// The error for a text that is not a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a network: write an IP address, or one with a prefix length such as 10.1.0.0/16")]
pub struct NetworkError {
    text: String,
}

impl Network {
    /// Whether the network contains `address`. An IPv4-mapped IPv6 address counts as IPv4.
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => same_prefix(v4_bits(own), v4_bits(other), self.prefix),
            (IpAddr::V6(own), IpAddr::V6(other)) => same_prefix(own.to_bits(), other.to_bits(), self.prefix),
            _ => false,
        }
    }

    /// Returns how many leading bits all addresses of the network share.
    pub fn prefix(&self) -> u8 {
        self.prefix
    }
}

fn v4_bits(address: Ipv4Addr) -> u128 {
    u128::from(address.to_bits()) << 96
}

fn same_prefix(a: u128, b: u128, prefix: u8) -> bool {
    // With prefix 0, every address is in the network. `checked_shr` then returns `None`, because it cannot shift by all 128 bits.
    (a ^ b).checked_shr(128 - u32::from(prefix)).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let wrong = || NetworkError { text: text.to_owned() };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address = address.parse::<IpAddr>().map_err(|_| wrong())?.to_canonical();
        let most = if address.is_ipv4() { 32 } else { 128 };
        match prefix.unwrap_or(most) {
            prefix if prefix <= most => Ok(Network { address, prefix }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// The networks whose addresses are allowed to use a server. If the list is empty, no address is allowed.
#[derive(Debug, Clone, Default)]
pub struct AllowList(Vec<Network>);

impl AllowList {
    /// Makes a list that allows the addresses of `networks`.
    pub fn new(networks: Vec<Network>) -> AllowList {
        AllowList(networks)
    }

    /// Whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the list allows `address`.
    pub(crate) fn allows(&self, address: IpAddr) -> bool {
        self.0.iter().any(|network| network.contains(address))
    }
}

/// Returns an address as 16 bytes. The result for an IPv4 address is the same if the address is mapped into IPv6.
pub(super) fn address_bytes(address: IpAddr) -> [u8; 16] {
    match address.to_canonical() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn nobody_is_allowed_by_default() {
        assert!(!AllowList::default().allows(ip("127.0.0.1")));
    }

    #[test]
    fn network_takes_its_own_and_no_other() {
        let allow = AllowList::new(vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()]);
        for (address, expected) in [
            ("10.1.255.7", true),
            ("10.2.0.1", false),
            ("::ffff:10.1.2.3", true),
            ("fd12::1", true),
            ("fe80::1", false),
        ] {
            assert_eq!(allow.allows(ip(address)), expected, "{address}");
        }
        assert!("0.0.0.0/0".parse::<Network>().unwrap().contains(ip("8.8.8.8")));
        assert!(!"0.0.0.0/0".parse::<Network>().unwrap().contains(ip("fe80::1")));
        for wrong in ["10.0.0.0/33", "10.0.0/8", "", "/8", "10.0.0.0/", "10.0.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn bucket_gives_its_burst_then_its_rate() {
        let rate = Rate { per_second: 1_000, burst: 100 };
        let mut bucket = TokenBucket::default();
        let mut taken = 0;
        for ms in 0..1_000 {
            while bucket.is_open(ms * MILLISECOND_NS, rate) {
                bucket.charge(ms * MILLISECOND_NS, rate, 10);
                taken += 10;
            }
        }
        assert!((1_090..=1_110).contains(&taken), "took {taken}");
    }

    #[test]
    fn flood_of_sources_stays_within_the_table() {
        let mut buckets = SourceBuckets::new(Rate { per_second: 1, burst: 1 }, 8);
        let mut let_in = 0;
        for n in 0..10_000u32 {
            let source = IpAddr::V4(Ipv4Addr::from_bits(n));
            if buckets.is_open(u64::from(n), source) {
                buckets.charge(u64::from(n), source, 1);
                let_in += 1;
            }
            assert!(buckets.len() <= 8);
        }
        assert_eq!(let_in, 8);
        assert!(buckets.is_open(2 * SECOND_NS, ip("10.0.0.1")), "full buckets are forgotten");
    }
}
