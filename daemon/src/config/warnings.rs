//! Warnings about settings that are valid but unwise: access for too many users, memory that the machine does not have, settings without
//! effect.
//!
//! A warning never prevents a configuration from loading. If a user or group does not exist, this is a warning and not an error, because
//! one missing account must not stop all channels. Until the account exists, its entry in a list matches nobody.

use super::fields::size_text;
use super::host::{Host, uid_of};
use super::{ChannelConfig, Config, Mode, Principal};
use bytesize::ByteSize;
use serde::Serialize;
use std::collections::HashMap;
use std::fmt;

/// The number of messages of the largest size for which a ring must have room. With less room, there is a warning, because a small ring
/// leaves readers little time.
const FEW_MESSAGES: u64 = 256;
const HUGE_PAGE_BYTES: u64 = 2 << 20;
/// Directories in which every user may make files.
const SHARED_DIRS: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// A setting that is legal but unwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The line of the file, if the configuration was read from a file.
    pub line: Option<usize>,
    /// The channel, if the warning is about one.
    pub channel: Option<String>,
    /// The name of the field: `field` for a field of a channel, `bridge.field` for a field of a channel's bridge, and `section.field` for
    /// any other field.
    pub field: &'static str,
    /// The problem, and why it is one.
    pub what: String,
    /// The value to write instead.
    pub instead: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if let Some(channel) = &self.channel {
            write!(f, "channel {channel:?}: ")?;
        }
        write!(f, "{}: {}; instead: {}", self.field, self.what, self.instead)
    }
}

impl Config {
    /// Returns the warnings for this machine, in the order of the file. Reads the user database, so this call can block.
    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings_on(&Host::this())
    }

    /// The warnings for `host`.
    pub fn warnings_on(&self, host: &Host) -> Vec<Warning> {
        let mut list = List { config: self, warnings: Vec::new() };
        self.warn_of_daemon(&mut list);
        self.warn_of_limits(&mut list);
        self.warn_of_waker(&mut list, host);
        self.warn_of_memory(&mut list, host);
        let mut names = HashMap::new();
        for (index, channel) in self.channels.iter().enumerate() {
            let mut warn = |field, what: String, instead: &str| list.channel(index, field, what, instead);
            if let Some(other) = names.insert(channel.name.to_lowercase(), &channel.name) {
                let what = format!(
                    "differs from {other:?} by nothing but capitals: they will be mistaken for each other"
                );
                warn("name", what, "a name that reads differently");
            }
            warn_of_access(channel, host, &mut warn);
            warn_of_ring(channel, host, &mut warn);
            warn_of_journal(channel, host, &mut warn);
        }
        for (index, bridge) in self.bridges.iter().enumerate() {
            let keys = bridge.keys.as_ref();
            if let Some((keys, why)) = keys.and_then(|keys| Some((keys, (host.refuses_reading)(keys)?))) {
                let then = match host.may_run_bridges {
                    true => "a bridge that runs keeps its keys, and does not start anew",
                    false => "the bridge does not start",
                };
                let what = format!("{}: {why}: {then}", keys.display());
                list.bridge(index, "bridge.keys", what, "a file of `shmcast bridge key`".to_owned());
            }
        }
        for (index, field, what, instead) in self.regretted_bridges(host) {
            list.bridge(index, field, what, instead);
        }
        list.warnings.sort_by_key(|warning| warning.line);
        list.warnings
    }

    fn warn_of_daemon(&self, list: &mut List<'_>) {
        let daemon = &self.daemon;
        if daemon.http.is_some_and(|http| http.port() == 0) {
            let what = "port 0: another one at each start, which no collector can know".to_owned();
            list.section("daemon.http", what, "127.0.0.1:9464");
        }
        if let Some(http) = daemon.http.filter(|http| !http.ip().is_loopback()) {
            let what =
                format!("{http} tells every host that reaches it the names, rates and users of all channels");
            list.section("daemon.http", what, "127.0.0.1 and a reverse proxy that asks who is there");
        } else if daemon.http_allow_remote {
            let what = "allows what nothing here uses, and hides a later slip".to_owned();
            list.section("daemon.http_allow_remote", what, "false");
        }
        // If the socket's mode lets the socket's group connect, the operator has chosen the group on purpose. Then only an entry `*` in a
        // list causes the warning, because users outside the group cannot connect.
        let (group, others) = (daemon.socket_mode & 0o020 != 0, daemon.socket_mode & 0o002 != 0);
        let shut_out = |channel: &&ChannelConfig| {
            let mut named = channel.publishers.iter().chain(&channel.subscribers);
            !others && named.any(|principal| !group || *principal == Principal::Anyone)
        };
        if let Some(channel) = self.channels.iter().find(shut_out) {
            let who = if group { "owner and group" } else { "owner" };
            let what = format!(
                "{:04o} lets only the socket's {who} connect: others that channel {:?} names do not get that far",
                daemon.socket_mode, channel.name
            );
            list.section("daemon.socket_mode", what, "\"0666\": the channels' lists decide who may do what");
        }
        if let Some(socket) = &daemon.socket
            && let Some(dir) = SHARED_DIRS.into_iter().find(|dir| socket.parent() == Some(dir.as_ref()))
        {
            let what = format!("anybody may make this file in {dir} first, and pass for the daemon");
            list.section("daemon.socket", what, "a directory that only the daemon's user may write to");
        }
    }

    fn warn_of_limits(&self, list: &mut List<'_>) {
        let limits = &self.limits;
        if limits.connections_per_uid < 101 {
            let what =
                format!("{}: one user cannot run a publisher and 100 readers", limits.connections_per_uid);
            list.section("limits.connections_per_uid", what, "1024");
        }
        if limits.requests_per_second < 10 {
            let what =
                format!("{}: a terminal that shows all channels is cut off", limits.requests_per_second);
            list.section("limits.requests_per_second", what, "200");
        }
        // An attachment takes two requests: one to ask, and one to confirm.
        if limits.request_burst < 2 * limits.connections_per_uid.min(101) {
            let what =
                format!("{}: 100 readers that one user starts at once are cut off", limits.request_burst);
            list.section("limits.request_burst", what, "400");
        }
        if limits.events_queue < 16 {
            let what = format!(
                "{}: who follows events misses some whenever a few come at once",
                limits.events_queue
            );
            list.section("limits.events_queue", what, "1024");
        }
    }

    fn warn_of_waker(&self, list: &mut List<'_>, host: &Host) {
        let waker = &self.waker;
        if waker.shortest_us < 5 {
            let what = format!("{} us: takes a core while messages flow", waker.shortest_us);
            list.section("waker.shortest_us", what, "20");
        }
        if waker.longest_us > 10_000 {
            let what =
                format!("{} us: parked readers sleep this long over the first message", waker.longest_us);
            list.section("waker.longest_us", what, "4000");
        }
        if waker.longest_us < 200 {
            let what = format!("{} us: costs percents of a core while nothing happens", waker.longest_us);
            list.section("waker.longest_us", what, "4000");
        }
        if let (Some(cpu), Some(online)) = (waker.cpu, &host.cpus)
            && !online.contains(cpu)
        {
            let what = format!("CPU {cpu} is not online here: the thread will run anywhere");
            list.section("waker.cpu", what, &format!("one of {online}"));
        }
    }

    /// Warns if all channels together take too much memory, or lock too much. Each warning names the channel at which the sum first exceeds
    /// the limit.
    fn warn_of_memory(&self, list: &mut List<'_>, host: &Host) {
        let half = host.memory_bytes.map_or(u64::MAX, |bytes| bytes / 2);
        let memlock = host.memlock_bytes.unwrap_or(u64::MAX);
        let (mut total, mut locked) = (0u64, 0u64);
        for (index, channel) in self.channels.iter().enumerate() {
            let bytes = channel.spec().segment_bytes().unwrap_or(channel.capacity);
            let (before, locked_before) = (total, locked);
            total = total.saturating_add(bytes);
            locked = locked.saturating_add(if channel.mlock { bytes } else { 0 });
            if before <= half && total > half {
                let what = format!(
                    "channels up to here take {}, more than half of this machine's {}",
                    ByteSize(total),
                    ByteSize(half.saturating_mul(2))
                );
                list.channel(index, "capacity", what, "smaller capacities, or fewer channels");
            }
            if locked_before <= memlock && locked > memlock {
                let what = format!(
                    "channels up to here lock {}; RLIMIT_MEMLOCK grants this process {}: the rest may be swapped",
                    ByteSize(locked),
                    ByteSize(memlock)
                );
                list.channel(
                    index,
                    "mlock",
                    what,
                    "LimitMEMLOCK=infinity in the daemon's unit, or `ulimit -l`",
                );
            }
        }
    }
}

fn warn_of_access(channel: &ChannelConfig, host: &Host, warn: &mut impl FnMut(&'static str, String, &str)) {
    let (publishers, subscribers) = (&channel.publishers, &channel.subscribers);
    if publishers.contains(&Principal::Anyone) {
        let what = if subscribers.contains(&Principal::Anyone) {
            "every program on this host may publish what every other one reads and believes"
        } else {
            "every program on this host may publish what subscribers believe, and keep the real publisher out"
        };
        warn("publishers", what.to_owned(), "[\"user:NAME\"] with the feed's own user");
    }
    if !publishers.is_empty() && subscribers.is_empty() {
        let what = "empty: nobody but publishers, root and the daemon's user may read".to_owned();
        warn("subscribers", what, "[\"group:NAME\"] with the readers' group, or [\"*\"]");
    }
    let several = publishers.len() > 1
        || publishers.iter().any(|p| matches!(p, Principal::Group(_) | Principal::Anyone));
    if several && channel.mode == Mode::Takeover {
        let what = "several users may publish into the same memory: each can keep a map of it and write over its successors";
        warn("mode", what.to_owned(), "\"strict\", or one publisher");
    }
    for (field, list) in [("publishers", publishers), ("subscribers", subscribers)] {
        for (at, principal) in list.iter().enumerate() {
            if !(host.exists)(principal) {
                let what = format!("{principal} does not exist here, and matches nobody until it does");
                warn(field, what, "a name that `getent passwd` or `getent group` knows, or \"uid:N\"");
            } else if uid_of(principal) == Some(0) {
                warn(field, format!("{principal}: root always may"), "nothing in its place");
            } else if *principal != Principal::Anyone && list.contains(&Principal::Anyone) {
                warn(field, format!("{principal} changes nothing beside \"*\""), "only one of the two");
            } else if list[..at].contains(principal) {
                warn(field, format!("{principal} is there twice"), "it once");
            }
        }
    }
}

fn warn_of_journal(channel: &ChannelConfig, host: &Host, warn: &mut impl FnMut(&'static str, String, &str)) {
    let Some(journal) = &channel.journal else { return };
    if [journal.keep_bytes, journal.keep_free].iter().all(Option::is_none) && journal.keep_age.is_none() {
        let what = "grows until the disk is full; from then on the channel is not recorded".to_owned();
        warn("journal", what, "keep_bytes, keep_age or keep_free");
    }
    if let Some(why) = (host.refuses_files)(&journal.dir) {
        warn("journal.dir", format!("{why}: the channel is not recorded"), "a directory in /var/lib/shmcast");
    }
    if let Some(dir) = SHARED_DIRS.iter().find(|dir| journal.dir.starts_with(dir)) {
        let what = format!("is in {dir}, where every user may make files, and old ones are removed");
        warn("journal.dir", what, "a directory in /var/lib/shmcast");
    }
}

fn warn_of_ring(channel: &ChannelConfig, host: &Host, warn: &mut impl FnMut(&'static str, String, &str)) {
    if let Some(max) = channel.max_message
        && max.saturating_mul(FEW_MESSAGES) > channel.capacity
    {
        let what = format!(
            "{} holds {} messages of {}: a reader that pauses is lapped at once",
            ByteSize(channel.capacity),
            channel.capacity / max.max(1),
            ByteSize(max)
        );
        let enough = max.saturating_mul(FEW_MESSAGES).checked_next_power_of_two().unwrap_or(u64::MAX);
        warn("capacity", what, &format!("{:?}, if readers may ever pause", size_text(enough)));
    }
    if let (Some(max), Some(board)) = (channel.max_message, &channel.board)
        && board.key.end as u64 > max
    {
        let what = format!(
            "no message of at most {} has all bytes {}..{}",
            ByteSize(max),
            board.key.start,
            board.key.end
        );
        let what = format!("{what}, so the board stays empty");
        warn("board.key", what, "bytes within max_message, or a larger max_message");
    }
    if channel.hugepages && channel.capacity < HUGE_PAGE_BYTES {
        let what = format!("a ring of {} is smaller than a huge page of 2 MiB", ByteSize(channel.capacity));
        warn("hugepages", what, "false, or a capacity of \"2MiB\" and more");
    }
    if !channel.mlock && host.has_swap {
        let what =
            "this machine swaps: a page that comes back from disk stalls whoever touches it".to_owned();
        warn("mlock", what, "true");
    }
    if let (Some(node), Some(online)) = (channel.numa_node, &host.numa_nodes)
        && !online.contains(node as usize)
    {
        let what = format!("there is no NUMA node {node} here: the kernel chooses");
        warn("numa_node", what, &format!("one of {online}"));
    }
}

struct List<'a> {
    config: &'a Config,
    warnings: Vec<Warning>,
}

impl List<'_> {
    fn section(&mut self, field: &'static str, what: String, instead: &str) {
        let line = self.config.positions.find(field).map(|position| position.line);
        self.warnings.push(Warning { line, channel: None, field, what, instead: instead.to_owned() });
    }

    fn channel(&mut self, index: usize, field: &'static str, what: String, instead: &str) {
        let line =
            self.config.positions.find(&format!("channel.{index}.{field}")).map(|position| position.line);
        let channel = Some(self.config.channels[index].name.clone());
        self.warnings.push(Warning { line, channel, field, what, instead: instead.to_owned() });
    }

    fn bridge(&mut self, index: usize, field: &'static str, what: String, instead: String) {
        let path = field.replacen("bridge", &format!("bridge.{index}"), 1);
        let line = self.config.positions.find(&path).map(|position| position.line);
        let channel = Some(self.config.bridges[index].channel.clone());
        self.warnings.push(Warning { line, channel, field, what, instead });
    }
}
