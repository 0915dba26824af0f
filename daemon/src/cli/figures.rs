//! Formats figures for people, and counts readers by their role.

use bytesize::ByteSize;
use shmcast::{ChannelStatus, ReaderStatus, Role};

pub(super) use shmcast_demo::figures::{Ns, grouped, table};

/// Formats a count with its noun, such as `1 key` or `3 keys`.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Whether this process could see a field of a channel's status.
pub(super) fn is_seen(channel: &ChannelStatus, field: &str) -> bool {
    !channel.unknown.iter().any(|unknown| unknown == field)
}

/// The number of programs that read a channel, without recorders and bridges.
pub(super) fn readers_of(channel: &ChannelStatus) -> usize {
    of_role(&channel.readers, Role::Reader)
}

/// The number of programs that read a channel, for people.
pub(super) fn readers_shown(channel: &ChannelStatus) -> String {
    if is_seen(channel, "readers") { readers_of(channel).to_string() } else { "?".to_owned() }
}

/// The number of readers that have this role.
pub(super) fn of_role(readers: &[ReaderStatus], role: Role) -> usize {
    readers.iter().filter(|reader| reader.role == role.name()).count()
}

/// A size in binary units.
pub(super) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}

/// Replaces control characters. Another program chooses its own name, its schema's name and its labels, and they must not control the
/// terminal.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}
