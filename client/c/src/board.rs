//! The functions of boards.

use crate::codes::code;
use crate::error::Failure;
use crate::event::Event;
use crate::guard::{Handle, bytes};
use crate::options::{SubscribeOptions, open_board};
use crate::publisher::done;
use shmcast::{Board, RecvError};
use std::ffi::c_char;

/// The C type `shmcast_board`.
pub(crate) type BoardHandle = Handle<Opened>;

/// A board, and the name of its channel for errors.
pub(crate) struct Opened {
    board: Board,
    channel: String,
}

/// The C type `shmcast_board_entry`.
#[derive(Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct BoardEntry {
    pub key: *const u8,
    pub key_length: usize,
    pub sequence: u64,
    pub count: u64,
    pub message: Event,
}

/// The C type `shmcast_board_counters`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct BoardCounters {
    pub through: u64,
    pub keys: u64,
    pub no_room: u64,
    pub too_large: u64,
    pub no_key: u64,
    pub since: u64,
    pub reserved: [u64; 2],
}

impl BoardEntry {
    fn of(entry: &shmcast::BoardEntry<'_>) -> Self {
        let message = entry.message.map_or(Event::NONE, Event::of_message);
        let shmcast::BoardEntry { key, sequence, count, .. } = *entry;
        Self { key: key.as_ptr(), key_length: key.len(), sequence, count, message }
    }
}

#[cold]
fn failure(channel: &str, error: RecvError) -> Failure {
    Failure::receiving(channel, error)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_board_open(
    channel: *const c_char,
    options: *const SubscribeOptions,
    out: *mut *mut BoardHandle,
) -> i32 {
    let make = || {
        // SAFETY: `shmcast.h` requires texts that end with a zero byte, and options that begin with their size.
        let board = unsafe { open_board(channel, options) }?;
        let channel = board.channel().to_owned();
        Ok(Opened { board, channel })
    };
    // SAFETY: `shmcast.h` requires a writable place.
    done(unsafe { Handle::open_at("board", out, make) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_board_close(this: *mut BoardHandle) -> i32 {
    // SAFETY: `shmcast.h` requires NULL or an open handle that one thread uses at a time.
    done(unsafe { Handle::close(this) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_board_get(
    this: *mut BoardHandle,
    key: *const u8,
    key_length: usize,
    out: *mut BoardEntry,
) -> i32 {
    let call = |this: &mut Opened| {
        if out.is_null() {
            return Err(Failure::argument("there is nowhere to put the entry: pass a pointer to one"));
        }
        // SAFETY: `shmcast.h` requires `key_length` readable bytes.
        let key = unsafe { bytes(key, key_length) }?;
        let found = this.board.get(key).map_err(|error| failure(&this.channel, error))?;
        let Some(entry) = found else { return Ok(code::OK) };
        // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
        unsafe { out.write(BoardEntry::of(&entry)) };
        Ok(code::EVENT)
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_board_entries(
    this: *mut BoardHandle,
    out: *mut BoardEntry,
    room: usize,
) -> i64 {
    let call = |this: &mut Opened| {
        if out.is_null() && room > 0 {
            return Err(Failure::argument("there is nowhere to put the entries: pass a pointer to some"));
        }
        let entries = this.board.entries().map_err(|error| failure(&this.channel, error))?;
        let all = entries.len();
        for (at, entry) in entries.take(room).enumerate() {
            // SAFETY: the pointer is not null, and `shmcast.h` requires memory for `room` items.
            let place = unsafe { out.add(at) };
            // SAFETY: as above; the place can be written to.
            unsafe { place.write(BoardEntry::of(&entry)) };
        }
        Ok(all as i64)
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code.into())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_board_count(
    this: *const BoardHandle,
    out: *mut BoardCounters,
) -> i32 {
    let call = |this: &mut Opened| {
        if out.is_null() {
            return Err(Failure::argument("there is nowhere to put the counters: pass a pointer to them"));
        }
        let shmcast::BoardCounters { through, since, live: keys, refused: no_room, too_large, no_key } =
            this.board.counters();
        let counters = BoardCounters { through, keys, no_room, too_large, no_key, since, reserved: [0; 2] };
        // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
        unsafe { out.write(counters) };
        Ok(code::OK)
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_board_age_ns(this: *const BoardHandle, time: u64) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe {
        Handle::enter(this, |this: &mut Opened| {
            Ok(if time == 0 { 0 } else { this.board.clock().ns_since(time) })
        })
    }
    .unwrap_or(0)
}
