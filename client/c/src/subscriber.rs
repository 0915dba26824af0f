//! The functions that receive.

use crate::codes::{code, state};
use crate::error::Failure;
use crate::event::{Batch, Event};
use crate::guard::{Handle, room};
use crate::options::{SubscribeOptions, subscriber};
use crate::publisher::done;
use shmcast::{Armed, Clock, EndWatch, Records, RecvError, State, Subscriber};
use std::ffi::c_char;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// The C type `shmcast_subscriber`.
pub(crate) type SubscriberHandle = Handle<Receiver>;

/// A subscriber, and the memory of its batches.
pub(crate) struct Receiver {
    pub(crate) subscriber: Subscriber,
    records: Records,
    /// The clock of the messages of the last batch, until another event is received.
    pub(crate) batch_clock: Option<Clock>,
    pub(crate) end: EndWatch,
}

/// Passes an event to the code that detects the channel's end. Messages are not passed, because this code does not need them.
#[inline(always)]
fn note(end: &mut EndWatch, event: &shmcast::Event<'_>) {
    if !matches!(event, shmcast::Event::Message(_)) {
        end.note(event);
    }
}

/// Size of a batch in bytes. A batch of this size stays in the core's first-level cache until the program has
/// read it.
const BATCH_BYTES: usize = 16 << 10;

/// The value of `SHMCAST_FOREVER`, for a wait without a limit.
const FOREVER: u64 = u64::MAX;

#[cold]
pub(crate) fn failure(channel: &Subscriber, error: RecvError) -> Failure {
    Failure::receiving(&channel.header().channel, error)
}

/// Returns the deadline of a wait; `None` if the wait has no deadline.
pub(crate) fn deadline(timeout_ns: u64) -> Option<Instant> {
    if timeout_ns == FOREVER { None } else { Instant::now().checked_add(Duration::from_nanos(timeout_ns)) }
}

#[cold]
pub(crate) fn nowhere() -> Failure {
    Failure::argument("there is nowhere to put the event: pass a pointer to one")
}

/// Receives with the closure `how`, and writes the event to `out`.
///
/// # Safety
/// `this` is as [`Handle::enter`] requires; `out` is null or points to writable memory.
#[inline(always)]
unsafe fn receive(
    this: *mut SubscriberHandle,
    out: *mut Event,
    how: impl FnOnce(&mut Subscriber) -> Result<Option<shmcast::Event<'_>>, RecvError>,
) -> i32 {
    let call = |this: &mut Receiver| {
        if out.is_null() {
            return Err(nowhere());
        }
        let Receiver { subscriber: this, end, batch_clock, .. } = this;
        match how(this) {
            Ok(Some(event)) => {
                *batch_clock = None;
                note(end, &event);
                // SAFETY: the pointer is not null, and by this function's contract the memory is writable.
                unsafe { out.write(Event::of(event)) };
                Ok(code::EVENT)
            }
            Ok(None) => Ok(code::OK),
            Err(error) => Err(failure(this, error)),
        }
    };
    // SAFETY: by this function's contract.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_open(
    channel: *const c_char,
    options: *const SubscribeOptions,
    out: *mut *mut SubscriberHandle,
) -> i32 {
    let make = || {
        // SAFETY: `shmcast.h` requires texts that end with a zero byte, and options that begin with their size.
        let (subscriber, end) = unsafe { subscriber(channel, options) }?;
        Ok(Receiver { subscriber, records: Records::with_room(BATCH_BYTES), batch_clock: None, end })
    };
    // SAFETY: `shmcast.h` requires a writable place.
    done(unsafe { Handle::open_at("subscriber", out, make) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_close(this: *mut SubscriberHandle) -> i32 {
    // SAFETY: `shmcast.h` requires NULL or an open handle that one thread uses at a time.
    done(unsafe { Handle::close(this) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_try_recv(this: *mut SubscriberHandle, out: *mut Event) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time, and a writable place for the event.
    unsafe { receive(this, out, Subscriber::try_recv) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_recv(
    this: *mut SubscriberHandle,
    timeout_ns: u64,
    out: *mut Event,
) -> i32 {
    if timeout_ns == FOREVER {
        // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time, and a writable place for the event.
        return unsafe { receive(this, out, |this| this.recv().map(Some)) };
    }
    // SAFETY: as above.
    let at_once = unsafe { shmcast_try_recv(this, out) };
    if at_once != code::OK {
        return at_once;
    }
    // SAFETY: as above.
    unsafe {
        receive(this, out, |this| match deadline(timeout_ns) {
            Some(deadline) => this.recv_deadline(deadline),
            None => this.recv().map(Some),
        })
    }
}

/// Does the same as [`receive`], but copies the payload into the caller's buffer.
///
/// # Safety
/// The same as for [`receive`]. In addition, `buffer` is as [`room`] requires.
#[inline(always)]
unsafe fn receive_into(
    this: *mut SubscriberHandle,
    (buffer, size): (*mut u8, usize),
    out: *mut Event,
    how: impl for<'a> FnOnce(&mut Subscriber, &'a mut [u8]) -> Result<Option<shmcast::Event<'a>>, RecvError>,
) -> i32 {
    let call = |this: &mut Receiver| {
        if out.is_null() {
            return Err(nowhere());
        }
        // SAFETY: by this function's contract.
        let room = unsafe { room(buffer, size) }?;
        let Receiver { subscriber: this, end, batch_clock, .. } = this;
        match how(this, room).map_err(|error| failure(this, error))? {
            Some(event) => {
                *batch_clock = None;
                note(end, &event);
                // SAFETY: the pointer is not null, and by this function's contract the memory is writable.
                unsafe { out.write(Event::of(event)) };
                Ok(code::EVENT)
            }
            None => Ok(code::OK),
        }
    };
    // SAFETY: by this function's contract.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_try_recv_into(
    this: *mut SubscriberHandle,
    buffer: *mut u8,
    size: usize,
    out: *mut Event,
) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time, `size` writable bytes, and a writable place for the event.
    unsafe { receive_into(this, (buffer, size), out, |this, room| this.try_recv_into(room)) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_recv_into(
    this: *mut SubscriberHandle,
    timeout_ns: u64,
    buffer: *mut u8,
    size: usize,
    out: *mut Event,
) -> i32 {
    // SAFETY: as of `shmcast_try_recv_into`.
    unsafe {
        receive_into(this, (buffer, size), out, |this, room| match deadline(timeout_ns) {
            Some(deadline) => this.recv_into_deadline(room, deadline),
            None => this.recv_into(room).map(Some),
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_descriptor(this: *const SubscriberHandle) -> i32 {
    let call = |Receiver { subscriber: this, .. }: &mut Receiver| {
        let bell = this.descriptor().map(|bell| bell.as_raw_fd());
        bell.ok_or_else(|| {
            let why = "it was not opened with SHMCAST_WAIT_PARK, so nobody rings: sleep as long as shmcast_arm() says";
            Failure::new(code::NO_WAKER, format_args!("channel {:?}: {why}", this.header().channel))
        })
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_arm(
    this: *mut SubscriberHandle,
    timeout_ns: *mut u64,
    out: *mut Event,
) -> i32 {
    let mut limit = None;
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time, and a writable place for the event.
    let armed = unsafe {
        receive(this, out, |this| match this.arm()? {
            Armed::Event(event) => Ok(Some(event)),
            Armed::Wait(longest) => {
                limit = Some(longest);
                Ok(None)
            }
        })
    };
    if let Some(limit) = limit.filter(|_| !timeout_ns.is_null()) {
        // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
        unsafe { timeout_ns.write(u64::try_from(limit.as_nanos()).unwrap_or(FOREVER)) };
    }
    armed
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_disarm(this: *mut SubscriberHandle) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    done(unsafe {
        Handle::enter(this, |Receiver { subscriber: this, .. }: &mut Receiver| {
            this.disarm();
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_recv_batch(
    this: *mut SubscriberHandle,
    most: usize,
    out: *mut Batch,
) -> i64 {
    let call = |this: &mut Receiver| {
        if out.is_null() {
            return Err(Failure::argument("there is nowhere to put the batch: pass a pointer to one"));
        }
        let Receiver { subscriber, records, batch_clock, end } = this;
        let received = subscriber.recv_records(most.min(i64::MAX as usize), records);
        *batch_clock = records.clock();
        if let Some(event) = records.event() {
            end.note(&event);
        }
        let received = received.map_err(|error| failure(subscriber, error));
        // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
        unsafe { out.write(Batch::of(records)) };
        Ok(received? as i64)
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code.into())
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_seek(this: *mut SubscriberHandle, sequence: u64) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    let sought = unsafe {
        Handle::enter(this, |Receiver { subscriber: this, end, .. }: &mut Receiver| {
            this.seek(sequence).map_err(|error| Failure::seeking(&this.header().channel, error))?;
            *end = EndWatch::default();
            Ok(())
        })
    };
    done(sought)
}

/// Returns the result of `ask` for the subscriber, or `otherwise` if the handle refuses the call.
///
/// # Safety
/// The same as for [`Handle::enter`].
unsafe fn fact<R>(this: *const SubscriberHandle, otherwise: R, ask: impl FnOnce(&Subscriber) -> R) -> R {
    // SAFETY: by this function's contract.
    unsafe { Handle::enter(this, |this: &mut Receiver| Ok(ask(&this.subscriber))) }.unwrap_or(otherwise)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_lag(this: *const SubscriberHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Subscriber::lag) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_next_sequence(this: *const SubscriberHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Subscriber::next_sequence) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_epoch(this: *const SubscriberHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Subscriber::epoch) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_publisher_state(this: *const SubscriberHandle) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe {
        fact(this, state::UNKNOWN, |this| match this.publisher_state() {
            None => state::UNKNOWN,
            Some((_, State::Active)) => state::ACTIVE,
            Some((_, State::Recovering)) => state::RECOVERING,
            Some((_, State::Closed)) => state::CLOSED,
            Some((_, State::Superseded)) => state::SUPERSEDED,
        })
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_is_over(this: *const SubscriberHandle) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    let is_over =
        unsafe { Handle::enter(this, |this: &mut Receiver| Ok(this.end.is_over(&this.subscriber))) };
    i32::from(is_over.unwrap_or(false))
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_subscriber_age_ns(this: *const SubscriberHandle, time: u64) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    let age = unsafe {
        Handle::enter(this, |this: &mut Receiver| {
            let clock = this.batch_clock.unwrap_or_else(|| this.subscriber.clock());
            Ok(if time == 0 { 0 } else { clock.ns_since(time) })
        })
    };
    age.unwrap_or(0)
}
