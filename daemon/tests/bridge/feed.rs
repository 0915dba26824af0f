//! A feed from host A to readers on host B, and how many messages the tests send.

use nix::sys::signal::Signal;
use serde_json::Value;
use shmcast_testkit::hosts::{Host, Hosts, Running};
use shmcast_testkit::{number, wait_until};

/// The number of messages that a test carries.
pub fn messages() -> u64 {
    number("SHMCAST_BRIDGE_MESSAGES", 3_000)
}

/// Messages a second. With the default, tests that run at the same time on a loaded machine with two cores keep up.
pub fn rate() -> u64 {
    number("SHMCAST_BRIDGE_RATE", 5_000)
}

pub fn readers(hosts: &Hosts, count: usize, last: u64) -> Vec<Running> {
    (0..count).map(|_| hosts.role(Host::B, "read", &last.to_string())).collect()
}

pub fn count(json: &Value, path: &str) -> u64 {
    json.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no {path} in {json}"))
}

/// Checks that every reader has every message, and reports none missing.
pub fn assert_all_have_all(readers: Vec<Running>, last: u64) {
    for reader in readers {
        let seen = reader.end_well();
        let figures = ["received", "gap_messages", "lapped"].map(|name| count(&seen, &format!("/{name}")));
        assert_eq!(figures, [last, 0, 0], "{seen}");
    }
}

/// The sequence after the newest message of a host's channel, which is a file.
pub fn next_on(hosts: &Hosts, host: Host) -> Option<u64> {
    shmcast::Directory::at(hosts.channels(host)).channel("t").ok()?.status().next_sequence
}

/// Waits until a host's channel, which is a file, is past `sequence`.
pub fn wait_until_past(hosts: &Hosts, host: Host, sequence: u64) {
    wait_until(&format!("message {sequence} on {host:?}"), || {
        next_on(hosts, host).is_some_and(|next| next > sequence)
    });
}

/// A publisher on host A that publishes until the test ends it. So no test depends on the speed of the machine.
pub struct Feed<'a> {
    hosts: &'a Hosts,
    publisher: Running,
}

impl<'a> Feed<'a> {
    /// Starts to publish [`rate`] messages a second.
    pub fn begin(hosts: &'a Hosts) -> Self {
        Self::begin_at(hosts, rate())
    }

    /// Publishes `rate` messages a second from now on.
    pub fn begin_at(hosts: &'a Hosts, rate: u64) -> Self {
        let words = format!("{} {rate} {}", u64::MAX, Self::enough(hosts));
        Self { hosts, publisher: hosts.role(Host::A, "publish", &words) }
    }

    /// Publishes through host A's daemon as fast as its recorder and its first bridge follow, so that the ring laps neither of them.
    pub fn begin_recorded(hosts: &'a Hosts) -> Self {
        Self { hosts, publisher: hosts.role(Host::A, "publish-recorded", &Self::enough(hosts)) }
    }

    pub fn pause(&self) {
        self.publisher.signal(Signal::SIGSTOP);
    }

    pub fn resume(&self) {
        self.publisher.signal(Signal::SIGCONT);
    }

    /// The path of the file that ends the publisher.
    fn enough(hosts: &Hosts) -> String {
        hosts.dir.path().join("enough").display().to_string()
    }

    /// Ends the publisher, which closes the channel. Returns its last sequence.
    pub fn end(self) -> u64 {
        std::fs::write(Self::enough(self.hosts), "").unwrap();
        count(&self.publisher.end_well(), "/published")
    }
}
