//! The addresses to which live packets are sent. The repair thread writes the table of addresses. The sending thread has a copy of it.
//!
//! An IPv6 address takes several words, and no single store can change all of them. So the table has a version, which is odd while the
//! table changes. Before each batch, the sending thread loads the version, and copies the table if the version has changed.
//!
//! If the version changes during the copy, the sending thread discards the copy, and still uses the previous addresses for this batch. So
//! no packet is sent to an address whose words were mixed from two addresses.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};

/// An address as words: the IP address in two words, then the port and the scope in one. An IPv4 address is mapped into IPv6.
type Words = [u64; 3];

/// The addresses of the live leases.
#[derive(Debug)]
pub(crate) struct LiveTable {
    version: AtomicU64,
    used: AtomicUsize,
    places: Box<[[AtomicU64; 3]]>,
}

impl LiveTable {
    pub(crate) fn new(most: usize) -> Self {
        let places = (0..most).map(|_| Default::default()).collect();
        Self { version: AtomicU64::new(0), used: AtomicUsize::new(0), places }
    }

    /// Replaces the addresses if they have changed. Only one thread is allowed to call this.
    pub(crate) fn set(&self, addresses: impl Iterator<Item = SocketAddr> + Clone) {
        let all = || addresses.clone().map(words_of).take(self.places.len());
        if all().eq(self.words()) {
            return;
        }
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        // The odd version must be seen before any word of the new table.
        fence(Ordering::Release);
        for (place, words) in self.places.iter().zip(all()) {
            place.iter().zip(words).for_each(|(cell, word)| cell.store(word, Ordering::Relaxed));
        }
        self.used.store(all().count(), Ordering::Relaxed);
        self.version.store(version + 2, Ordering::Release);
    }

    fn words(&self) -> impl Iterator<Item = Words> + '_ {
        let used = self.places.iter().take(self.used.load(Ordering::Relaxed));
        used.map(|place| [0, 1, 2].map(|word: usize| place[word].load(Ordering::Relaxed)))
    }
}

/// The sending thread's copy of the table.
#[derive(Debug)]
pub(crate) struct LiveCopy {
    version: u64,
    addresses: Vec<SocketAddr>,
    /// The copy that is being made. It is discarded if the table changes meanwhile.
    next: Vec<SocketAddr>,
}

impl LiveCopy {
    pub(crate) fn of(table: &LiveTable) -> Self {
        let room = || Vec::with_capacity(table.places.len());
        Self { version: 0, addresses: room(), next: room() }
    }

    /// Returns the present addresses, or the previous addresses while the table is being changed. Allocates nothing.
    #[inline]
    pub(crate) fn look(&mut self, table: &LiveTable) -> &[SocketAddr] {
        let version = table.version.load(Ordering::Acquire);
        if version != self.version && version.is_multiple_of(2) {
            self.copy(table, version);
        }
        &self.addresses
    }

    #[cold]
    fn copy(&mut self, table: &LiveTable, version: u64) {
        self.next.clear();
        self.next.extend(table.words().map(address_of));
        // All words must have been read before the version is checked again.
        fence(Ordering::Acquire);
        if table.version.load(Ordering::Relaxed) == version {
            std::mem::swap(&mut self.addresses, &mut self.next);
            self.version = version;
        }
    }
}

fn words_of(address: SocketAddr) -> Words {
    let (ip, scope) = match address {
        SocketAddr::V4(address) => (address.ip().to_ipv6_mapped(), 0),
        SocketAddr::V6(address) => (*address.ip(), address.scope_id()),
    };
    let bits = ip.to_bits();
    [(bits >> 64) as u64, bits as u64, u64::from(scope) << 16 | u64::from(address.port())]
}

fn address_of([high, low, rest]: Words) -> SocketAddr {
    let (ip, port) = (Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)), rest as u16);
    match ip.to_ipv4_mapped() {
        Some(ip) => SocketAddr::from((ip, port)),
        None => SocketAddrV6::new(ip, port, 0, (rest >> 16) as u32).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    fn all(of: u16) -> impl Iterator<Item = SocketAddr> + Clone {
        let parts = move |n: u16| [0xFD00, of, of, n, of, of, of, of].into();
        (0..of % 9).map(move |n| match n % 2 {
            0 => SocketAddrV6::new(parts(n), of, 0, of.into()).into(),
            _ => SocketAddr::from(([10, 0, (of >> 8) as u8, of as u8], of)),
        })
    }

    #[test]
    fn a_copy_is_a_table_that_was_there_as_a_whole() {
        let (table, done) = (LiveTable::new(8), AtomicBool::new(false));
        let mut copy = LiveCopy::of(&table);
        assert!(copy.look(&table).is_empty());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (1..=40_000).for_each(|of| table.set(all(of)));
                done.store(true, Ordering::Release);
            });
            let mut last = 0;
            while !done.load(Ordering::Acquire) {
                let Some(of) = copy.look(&table).first().map(SocketAddr::port) else { continue };
                assert!(copy.addresses.iter().copied().eq(all(of)) && of >= last, "{of} after {last}");
                last = of;
            }
        });
        assert!(copy.look(&table).iter().copied().eq(all(40_000)));
    }

    #[test]
    fn addresses_beyond_the_room_are_left_out() {
        let table = LiveTable::new(2);
        table.set(all(8));
        assert!(LiveCopy::of(&table).look(&table).iter().copied().eq(all(8).take(2)));
    }
}
