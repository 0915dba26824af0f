//! Rules that the fields of a configuration must keep in addition to their types. Some rules forbid fields that contradict each other.
//!
//! Each rule returns the field that breaks the rule, and advice. The client library makes the segments, so this module uses the library's
//! own checks of names, sizes and labels. A channel that passes these rules can therefore be made.

use super::{BoardConfig, ChannelConfig, DaemonConfig, JournalConfig, LimitsConfig, WakerConfig, fields};
use shmcast::ChannelError;
use shmcast::hosting::HostedSpec;
use std::ops::RangeInclusive;

pub(crate) type Broken = Vec<(&'static str, String)>;

/// Longest path of a Unix socket in bytes.
pub(crate) const MAX_SOCKET_PATH: usize = 107;
/// Label names that the daemon's own metrics use.
const RESERVED_LABELS: [&str; 3] = ["channel", "reader", "bridge"];
/// The highest CPU number and the highest NUMA node number that fit in the kernel's masks.
const MAX_NUMBER: u64 = 1023;

pub(super) fn daemon(daemon: &DaemonConfig) -> Broken {
    let mut broken = Vec::new();
    if let Some(socket) = &daemon.socket {
        let length = socket.as_os_str().len();
        if !socket.is_absolute() {
            broken.push(("socket", format!("socket {socket:?} is not absolute: begin it with /")));
        } else if length > MAX_SOCKET_PATH {
            let what = format!(
                "socket: a path of {length} B; the kernel allows {MAX_SOCKET_PATH}: choose a shorter one"
            );
            broken.push(("socket", what));
        }
    }
    if daemon.http.is_some() && !cfg!(feature = "http") {
        broken.push(("http", format!("http: {}", crate::without("http"))));
    }
    if let Some(http) = daemon.http
        && !http.ip().is_loopback()
        && !daemon.http_allow_remote
    {
        let what = format!(
            "http: {http} can be reached from other hosts: use 127.0.0.1, or set http_allow_remote = true"
        );
        broken.push(("http", what));
    }
    broken
}

pub(super) fn limits(limits: &LimitsConfig) -> Broken {
    let mut broken = Vec::new();
    within(&mut broken, "connections_per_uid", limits.connections_per_uid, 1..=65_536);
    within(&mut broken, "requests_per_second", limits.requests_per_second, 1..=1_000_000);
    within(&mut broken, "request_burst", limits.request_burst, 1..=1_000_000);
    within(&mut broken, "events_queue", limits.events_queue, 1..=65_536);
    broken
}

pub(super) fn waker(waker: &WakerConfig) -> Broken {
    let mut broken = Vec::new();
    within(&mut broken, "shortest_us", waker.shortest_us, 1..=1_000_000);
    within(&mut broken, "longest_us", waker.longest_us, 1..=1_000_000);
    within(&mut broken, "cpu", waker.cpu.unwrap_or(0) as u64, 0..=MAX_NUMBER);
    if waker.shortest_us > waker.longest_us {
        let what = format!("shortest_us = {} exceeds longest_us = {}", waker.shortest_us, waker.longest_us);
        broken.push(("shortest_us", what));
    }
    broken
}

pub(super) fn channel(channel: &ChannelConfig) -> Broken {
    let mut broken = Vec::new();
    within(&mut broken, "numa_node", channel.numa_node.unwrap_or(0), 0..=MAX_NUMBER);
    for (key, value) in &channel.labels {
        if let Err(why) = check_label(key, value) {
            broken.push(("labels", format!("label {key:?}: {why}")));
        }
    }
    if channel.schema_id == 0 && !channel.schema.is_empty() {
        let what = format!("schema = {:?}: give its number as well, schema_id = 1 or more", channel.schema);
        broken.push(("schema", what));
    }
    let boards: Broken = channel.board.iter().flat_map(BoardConfig::broken).collect();
    let unmakeable = if boards.is_empty() { unmakeable(channel) } else { None };
    if unmakeable.is_none() {
        broken.extend(channel.broken_gates());
    }
    broken.extend(unmakeable);
    broken.extend(boards);
    broken.extend(channel.journal.iter().flat_map(JournalConfig::broken));
    if channel.max_message == Some(0) {
        broken.push((
            "max_message",
            "max_message: 0 B: nothing could be published; leave it out for the ring's limit".to_owned(),
        ));
    }
    broken
}

/// Checks that no earlier channel in the file has the same journal directory.
pub(super) fn together(channel: &ChannelConfig, before: &[ChannelConfig]) -> Broken {
    let Some(own) = &channel.journal else { return Broken::new() };
    let has_same =
        |other: &&ChannelConfig| other.journal.as_ref().is_some_and(|journal| journal.dir == own.dir);
    let what = |other: &ChannelConfig| {
        format!("journal.dir is that of channel {:?}: give each journal a directory of its own", other.name)
    };
    before.iter().find(has_same).map(|other| ("journal.dir", what(other))).into_iter().collect()
}

/// Returns the reason why the client library would refuse the channel's segment; `None` if the library would accept the segment. First
/// checks the ring without the other fields, so that the reason names the right field.
fn unmakeable(channel: &ChannelConfig) -> Option<(&'static str, String)> {
    let spec = channel.spec();
    let ring =
        HostedSpec { max_message: None, schema: (0, String::new()), labels: String::new(), ..spec.clone() };
    let named = HostedSpec { schema: spec.schema.clone(), ..ring.clone() };
    match (ring.check(), spec.check()) {
        (Err(e @ ChannelError::Name { .. }), _) => Some(("name", e.to_string())),
        (Err(e), _) => {
            let near = fields::size_text(nearest_power_of_two(channel.capacity));
            Some(("capacity", format!("{e}: did you mean {near:?}?")))
        }
        (Ok(()), Err(ChannelError::Segment { .. })) if named.check().is_err() => {
            let what = "schema: with the name it exceeds the 3.5 KiB that a segment has for them: shorten it";
            Some(("schema", what.to_owned()))
        }
        (Ok(()), Err(ChannelError::Segment { .. })) => {
            let what =
                "labels: with the name they exceed the 3.5 KiB that a segment has for them: shorten them";
            Some(("labels", what.to_owned()))
        }
        (Ok(()), Err(e)) => Some(("max_message", e.to_string())),
        (Ok(()), Ok(())) => None,
    }
}

/// Returns the power of two nearest to `bytes`, within the allowed sizes of rings.
fn nearest_power_of_two(bytes: u64) -> u64 {
    let above = bytes.clamp(1 << 16, 1 << 34).next_power_of_two();
    // Three quarters of `above` is the middle between `above` and the next lower power of two.
    if bytes < above / 4 * 3 && above > 1 << 16 { above / 2 } else { above }
}

fn within(broken: &mut Broken, field: &'static str, value: impl Into<u64>, range: RangeInclusive<u64>) {
    let value = value.into();
    if !range.contains(&value) {
        broken.push((field, format!("{field} = {value}: must be from {} to {}", range.start(), range.end())));
    }
}

/// Checks a label. The client library writes the label into the segment, and metrics use it.
fn check_label(key: &str, value: &str) -> Result<(), String> {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = |c: char| c.is_ascii_alphabetic() || c == '_';
    if !key.starts_with(begins) || !key.chars().all(word) || key.starts_with("__") {
        return Err("a key is a letter, then letters, digits and _ only".to_owned());
    }
    if RESERVED_LABELS.contains(&key) {
        return Err("metrics use this name for themselves: choose another".to_owned());
    }
    if value.contains(char::is_control) {
        return Err("a value is one line without control characters".to_owned());
    }
    Ok(())
}
