//! The functions that publish.

use crate::codes::{code, gate as states};
use crate::error::Failure;
use crate::guard::{Handle, bytes, no_bytes};
use crate::options::{PublishOptions, publisher};
use shmcast::{GateState, Mark, PublishError, Publisher};
use std::ffi::c_char;
use std::time::Duration;

/// The C type `shmcast_publisher`.
pub(crate) type PublisherHandle = Handle<Publishing>;

/// A publisher, and the open claim on it.
pub(crate) struct Publishing {
    publisher: Publisher,
    claimed: Option<usize>,
}

impl Publishing {
    #[cold]
    fn failure(&self, error: PublishError) -> Failure {
        Failure::publishing(&self.publisher.header().channel, error)
    }

    /// Publishes a message by calling the closure `how`. Fails while a claim is open (a buffer that the caller still fills), because `how`
    /// would overwrite this buffer.
    #[inline(always)]
    fn publish(
        &mut self,
        how: impl FnOnce(&mut Publisher) -> Result<u64, PublishError>,
    ) -> Result<u64, Failure> {
        if self.claimed.is_some() {
            return Err(claimed());
        }
        how(&mut self.publisher).map_err(|error| self.failure(error))
    }
}

/// The C type `shmcast_gate_status`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs, reason = "the header explains each")]
pub struct GateStatus {
    pub name: [u8; 32],
    pub state: u32,
    pub reserved: u32,
    pub lag_bytes: u64,
    pub behind_bytes: u64,
    pub pid: u64,
    pub held: u64,
    pub longest_ns: u64,
    pub total_ns: u64,
    pub dropped: u64,
    pub refused: u64,
    pub turned_away: u64,
}

impl From<shmcast::GateStatus> for GateStatus {
    fn from(gate: shmcast::GateStatus) -> Self {
        let mut name = [0; 32];
        let text = gate.name.as_str().as_bytes();
        name[..text.len()].copy_from_slice(text);
        let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Self {
            name,
            state: match gate.state {
                GateState::Absent => states::ABSENT,
                GateState::Joining => states::JOINING,
                GateState::InForce => states::IN_FORCE,
                GateState::Dropped => states::DROPPED,
            },
            reserved: 0,
            lag_bytes: gate.lag_bytes,
            behind_bytes: gate.behind_bytes.unwrap_or(0),
            pid: gate.pid.unwrap_or(0),
            held: gate.held,
            longest_ns: ns(gate.longest),
            total_ns: ns(gate.total),
            dropped: gate.dropped,
            refused: gate.refused,
            turned_away: gate.turned_away,
        }
    }
}

#[cold]
fn claimed() -> Failure {
    Failure::new(code::MISUSE, "a claim is open on this publisher: commit or abort it first")
}

/// Returns the code of a result, and writes the published sequence to `sequence`.
///
/// # Safety
/// `sequence` is null or points to writable memory.
#[inline(always)]
unsafe fn answer(published: Result<u64, Failure>, sequence: *mut u64) -> i32 {
    match published {
        Ok(number) => {
            if !sequence.is_null() {
                // SAFETY: by this function's contract.
                unsafe { sequence.write(number) };
            }
            code::OK
        }
        Err(Failure(code)) => code,
    }
}

pub(crate) fn done(result: Result<(), Failure>) -> i32 {
    result.map_or_else(|Failure(code)| code, |()| code::OK)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_open(
    channel: *const c_char,
    options: *const PublishOptions,
    out: *mut *mut PublisherHandle,
) -> i32 {
    // SAFETY: `shmcast.h` requires texts that end with a zero byte, and options that begin with their size.
    let make = || Ok(Publishing { publisher: unsafe { publisher(channel, options) }?, claimed: None });
    // SAFETY: `shmcast.h` requires a writable place.
    done(unsafe { Handle::open_at("publisher", out, make) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_close(this: *mut PublisherHandle) -> i32 {
    // SAFETY: `shmcast.h` requires NULL or an open handle that one thread uses at a time.
    done(unsafe { Handle::close(this) })
}

/// Publishes the bytes at `data` with the closure `how`.
///
/// # Safety
/// `this` is as [`Handle::enter`] requires, `data` as [`bytes`] requires, and `sequence` as [`answer`] requires.
#[inline(always)]
unsafe fn send(
    this: *mut PublisherHandle,
    (data, length): (*const u8, usize),
    sequence: *mut u64,
    how: impl FnOnce(&mut Publisher, &[u8]) -> Result<u64, PublishError>,
) -> i32 {
    let call = |this: &mut Publishing| {
        // SAFETY: by this function's contract.
        let payload = unsafe { bytes(data, length) }?;
        this.publish(|publisher| how(publisher, payload))
    };
    // SAFETY: by this function's contract.
    let published = unsafe { Handle::enter(this, call) };
    // SAFETY: by this function's contract.
    unsafe { answer(published, sequence) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publish(
    this: *mut PublisherHandle,
    data: *const u8,
    length: usize,
    sequence: *mut u64,
) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time, `length` readable bytes, and NULL or a writable place.
    unsafe { send(this, (data, length), sequence, Publisher::publish) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publish_with(
    this: *mut PublisherHandle,
    data: *const u8,
    length: usize,
    tag: u16,
    key: i32,
    sequence: *mut u64,
) -> i32 {
    let mark = Mark { tag, key: key != 0 };
    // SAFETY: as of `shmcast_publish`.
    unsafe {
        send(this, (data, length), sequence, |publisher, payload| publisher.publish_with(payload, mark))
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_try_publish(
    this: *mut PublisherHandle,
    data: *const u8,
    length: usize,
    tag: u16,
    key: i32,
    sequence: *mut u64,
) -> i32 {
    let mark = Mark { tag, key: key != 0 };
    // SAFETY: as of `shmcast_publish`.
    unsafe {
        send(this, (data, length), sequence, |publisher, payload| publisher.try_publish_with(payload, mark))
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publish_at(
    this: *mut PublisherHandle,
    data: *const u8,
    length: usize,
    tag: u16,
    key: i32,
    time: u64,
    sequence: *mut u64,
) -> i32 {
    let mark = Mark { tag, key: key != 0 };
    // SAFETY: as of `shmcast_publish`.
    unsafe {
        send(this, (data, length), sequence, |publisher, payload| publisher.publish_at(payload, mark, time))
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_claim(
    this: *mut PublisherHandle,
    length: usize,
    out: *mut *mut u8,
) -> i32 {
    let call = |this: &mut Publishing| {
        if this.claimed.is_some() {
            return Err(claimed());
        }
        if out.is_null() {
            return Err(no_bytes(length));
        }
        // The claim is dropped immediately. The next claim lends the same bytes, unchanged.
        let place = this.publisher.claim(length).map(|mut claim| claim.as_mut_ptr());
        let place = place.map_err(|error| this.failure(error))?;
        this.claimed = Some(length);
        // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
        unsafe { out.write(place) };
        Ok(())
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    done(unsafe { Handle::enter(this, call) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_commit(
    this: *mut PublisherHandle,
    length: usize,
    tag: u16,
    key: i32,
    sequence: *mut u64,
) -> i32 {
    let mark = Mark { tag, key: key != 0 };
    let call = |this: &mut Publishing| match this.claimed {
        None => Err(Failure::new(code::MISUSE, "nothing is claimed of this publisher: claim first")),
        Some(claimed) if length > claimed => Err(Failure::argument(format_args!(
            "commit of {length} B exceeds the claim of {claimed} B: claim more, or commit less"
        ))),
        Some(_) => {
            this.claimed = None;
            this.publish(|publisher| publisher.claim(length)?.mark(mark).commit(length))
        }
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    let published = unsafe { Handle::enter(this, call) };
    // SAFETY: `shmcast.h` requires NULL or a writable place.
    unsafe { answer(published, sequence) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_abort(this: *mut PublisherHandle) -> i32 {
    let call = |this: &mut Publishing| {
        this.claimed = None;
        Ok(())
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    done(unsafe { Handle::enter(this, call) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_gap(this: *mut PublisherHandle, to: u64) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    let told = unsafe {
        Handle::enter(this, |this: &mut Publishing| {
            this.publisher.gap(to).map_err(|error| this.failure(error))
        })
    };
    done(told)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_session(this: *mut PublisherHandle, identity: *const u8) -> i32 {
    let call = |this: &mut Publishing| {
        // SAFETY: `shmcast.h` requires ten readable bytes.
        let identity = unsafe { bytes(identity, 10) }?.try_into().expect("ten bytes");
        this.publisher.session(identity).map_err(|error| this.failure(error))
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    done(unsafe { Handle::enter(this, call) })
}

/// Returns the result of `ask` for the publisher, or `otherwise` if the handle refuses the call.
///
/// # Safety
/// The same as for [`Handle::enter`].
unsafe fn fact<R>(this: *const PublisherHandle, otherwise: R, ask: impl FnOnce(&Publisher) -> R) -> R {
    // SAFETY: by this function's contract.
    unsafe { Handle::enter(this, |this: &mut Publishing| Ok(ask(&this.publisher))) }.unwrap_or(otherwise)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_next_sequence(this: *const PublisherHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Publisher::next_sequence) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_epoch(this: *const PublisherHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Publisher::epoch) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_max_message(this: *const PublisherHandle) -> usize {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Publisher::max_message) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_capacity(this: *const PublisherHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, Publisher::capacity) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_now(this: *const PublisherHandle) -> u64 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { fact(this, 0, |publisher| publisher.clock().now()) }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_is_cut_off(this: *const PublisherHandle) -> i32 {
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe {
        Handle::enter(this, |this: &mut Publishing| Ok(i32::from(this.publisher.is_cut_off())))
            .unwrap_or_else(|Failure(code)| code)
    }
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_publisher_gates(
    this: *const PublisherHandle,
    out: *mut GateStatus,
    room: usize,
) -> i64 {
    let call = |this: &mut Publishing| {
        if out.is_null() && room > 0 {
            return Err(Failure::argument("there is nowhere to put the gates: pass a pointer to some"));
        }
        let gates = this.publisher.gates();
        for (at, gate) in gates.iter().take(room).enumerate() {
            // SAFETY: the pointer is not null, and `shmcast.h` requires memory for `room` items.
            let place = unsafe { out.add(at) };
            // SAFETY: as above; the place can be written to.
            unsafe { place.write(GateStatus::from(*gate)) };
        }
        Ok(gates.len() as i64)
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code.into())
}
