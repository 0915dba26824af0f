//! The state of a channel at one time, as tools show it.

use super::gates::GateSight;
use crate::error::Holder;
use shmcast_layout::board::{Counters, View};
use shmcast_layout::control::BoardStatus;
use shmcast_layout::layout::header::{Header, LAZY_BYTES, State};
use shmcast_layout::reader_page::ReaderStats;
use shmcast_layout::ring::locate::Place;
use shmcast_layout::segment::Segment;
use std::path::PathBuf;

/// Whether a channel has a live publisher.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Publishing {
    /// A process holds the writer lock.
    By(Holder),
    /// No process holds the writer lock.
    Nobody,
    /// This user cannot read the lock file.
    Unknown,
}

/// The state of a channel. [`Directory::channel`](super::Directory::channel) returns it.
#[derive(Debug, Clone)]
pub struct ChannelInfo {
    /// The name.
    pub name: String,
    /// Whether the channel is private to another user. If so, only its name can be seen.
    pub is_private: bool,
    /// The header of the channel's segment, or the reason why it cannot be read.
    pub detail: Result<ChannelDetail, String>,
    /// The publisher.
    pub publisher: Publishing,
    /// The live readers.
    pub readers: Vec<ReaderInfo>,
    /// Whether this user cannot see the readers. If so, `readers` is empty.
    pub are_readers_unknown: bool,
    /// The gates.
    pub(crate) gates: Vec<GateSight>,
}

/// The data from a segment's header and ring.
#[derive(Debug, Clone)]
pub struct ChannelDetail {
    /// The immutable header.
    pub header: Header,
    /// The epoch: the number of publishers so far.
    pub epoch: u64,
    /// The publisher's state; `None` before the first publisher took the segment.
    pub state: Option<State>,
    /// The position and sequence of the next message; an error if the ring is damaged.
    pub tail: Result<Place, String>,
    /// The position and sequence of the oldest message that a reader can start from.
    pub oldest: Result<Place, String>,
    /// The number of published payload bytes. The last 64 messages might not be counted yet.
    pub published_bytes: u64,
    /// The board, if the channel has one.
    pub board: Option<BoardStatus>,
}

impl ChannelDetail {
    pub(crate) fn of(segment: &Segment) -> Self {
        let locator = segment.locator();
        let (epoch, state) = segment.state().map_or((0, None), |(epoch, state)| (epoch, Some(state)));
        Self {
            header: segment.header().clone(),
            epoch,
            state,
            tail: locator.tail().map_err(|e| e.to_string()),
            oldest: locator.oldest().map_err(|e| e.to_string()),
            published_bytes: segment.header_word(LAZY_BYTES),
            board: segment.board().map(|view| board_status(&view)),
        }
    }
}

fn board_status(view: &View) -> BoardStatus {
    let (spec, counters) = (view.geometry().spec, view.counters());
    let Counters { through, since, live, refused, too_large, no_key } = counters;
    let (room, value_bytes, key) = (spec.keys, spec.value, [spec.key_start, spec.key_end]);
    BoardStatus { keys: live, room, value_bytes, key, through, since, refused, too_large, no_key }
}

/// A live reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReaderInfo {
    /// The figures on the reader's page. The process id is 0 if this process cannot see the reader, for example because the reader is in
    /// another PID namespace.
    pub stats: ReaderStats,
    /// The command name, if the reader's process is visible from here.
    pub command: Option<String>,
}

/// The result of [`Directory::remove`](super::Directory::remove).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// The channel's directory.
    pub dir: PathBuf,
    /// The entries removed from the directory, in order: `lock`, `readers`, `segment`, and pages that dead readers left, as `readers/PAGE`.
    pub files: Vec<String>,
    /// Bytes of memory that the channel's files took.
    pub bytes: u64,
}
