//! Formats figures for people, and counts readers by their role.

use bytesize::ByteSize;
use shmcast::{ChannelStatus, ReaderStatus, Role};

pub(super) use shmcast_demo::figures::{Ns, grouped, table};

/// Formats a count with its noun, such as `1 key` or `3 keys`.
pub(super) fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The number of programs that read a channel, without recorders and bridges.
pub(super) fn readers_of(channel: &ChannelStatus) -> usize {
    of_role(&channel.readers, Role::Reader)
}

/// The number of programs that read a channel, for people.
pub(super) fn readers_shown(channel: &ChannelStatus) -> String {
    if channel.readers_unknown { "?".to_owned() } else { readers_of(channel).to_string() }
}

/// The number of readers that have this role.
pub(super) fn of_role(readers: &[ReaderStatus], role: Role) -> usize {
    readers.iter().filter(|reader| reader.role == role.name()).count()
}

/// A size in binary units.
pub(super) fn size(bytes: u64) -> String {
    ByteSize::b(bytes).to_string()
}
