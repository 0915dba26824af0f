//! Searches a channel's board for single keys.

use super::{Place, client, kind};
use crate::keys::Keys;
use crate::log::{Fact, Found, Log, now};
use crate::payload::{Identity, Marks, recognise};
use anyhow::Result;
use shmcast::{Board, BoardEntry, ChannelError, Subscriber};
use std::time::Duration;

/// A board, and the channel that it belongs to.
pub(super) struct Open {
    channel: String,
    board: Board,
}

/// Searches the board for `times` keys, one after the other. Keeps the board open for the next order.
pub(super) fn look(
    open: &mut Option<Open>,
    log: &mut Log,
    (place, channel): (&Place, &str),
    (first, times): (u32, u16),
    pause_us: u32,
) -> Result<()> {
    let Some(keys) = Keys::of(channel) else { return Ok(()) };
    if open.as_ref().is_none_or(|open| open.channel != channel) {
        // A channel without a board is no fault.
        *open = open_board(place, channel).ok().map(|board| Open { channel: channel.to_owned(), board });
    }
    let Some(Open { board, .. }) = open else { return Ok(()) };
    let mut is_over = false;
    for time in 0..u32::from(times) {
        let key = keys.number(Identity { publisher: first, counter: time });
        let began = now();
        let (found, error) = match board.get(&keys.key(key)) {
            Ok(entry) => (entry.map(|entry| found(channel, &entry)), None),
            Err(e) => (None, Some(kind(&e))),
        };
        is_over = error.is_some();
        log.write(Fact::Looked { channel: channel.to_owned(), began, key, found, error })?;
        if is_over {
            break;
        }
        std::thread::sleep(Duration::from_micros(pause_us.into()));
    }
    if is_over {
        *open = None;
    }
    Ok(())
}

fn found(channel: &str, entry: &BoardEntry<'_>) -> Found {
    let BoardEntry { message, sequence, count, .. } = *entry;
    let recognised = message.map(|message| {
        let marks = Marks { tag: message.tag, key: message.key };
        recognise(channel, None, marks, message.payload)
    });
    Found { sequence, message: recognised.flatten(), is_odd: recognised == Some(None), count }
}

fn open_board(place: &Place, channel: &str) -> Result<Board, ChannelError> {
    let builder = Subscriber::builder(channel);
    match (client(place)?, place) {
        (Some(client), _) => builder.client(&client),
        (None, Place::Dir(dir)) => builder.dir(dir),
        (None, Place::Socket(_)) => builder,
    }
    .open_board()
}
