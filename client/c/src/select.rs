//! The functions of a select, which waits for several subscribers at once.

use crate::codes::{code, kind};
use crate::error::Failure;
use crate::event::Event;
use crate::guard::{Handle, Shared};
use crate::options::{SubscribeOptions, select_wait};
use crate::publisher::done;
use crate::subscriber::{Receiver, SubscriberHandle, deadline, failure, nowhere};
use shmcast::{EndWatch, Lent, SelectError, Subscriber, Turns};

/// The C type `shmcast_select`.
pub(crate) type SelectHandle = Handle<Selecting>;

/// The largest number of subscribers in one select. There is a limit because each subscriber is compared with every other subscriber.
const MOST: usize = 4096;

/// Subscribers that take turns.
pub(crate) struct Selecting {
    members: Members,
    turns: Turns,
}

/// The handles of the subscribers. The caller still owns these handles, and closes them.
struct Members(Vec<Shared<Receiver>>);

/// The subscribers during a call that uses all of them.
struct Entered<'a>(&'a [Shared<Receiver>]);

impl Members {
    /// Begins a call on each handle. If one handle refuses, ends the calls on the other handles, and returns an error with the index of the
    /// handle that refused.
    fn enter(&mut self) -> Result<Entered<'_>, (usize, Failure)> {
        for (index, member) in self.0.iter().enumerate() {
            if let Err(why) = member.begin() {
                drop(Entered(&self.0[..index]));
                return Err((index, why.of(format_args!("subscriber {index} of the select"))));
            }
        }
        Ok(Entered(&self.0))
    }
}

impl Entered<'_> {
    fn receiver(&self, index: usize) -> &Receiver {
        // SAFETY: this call has entered the handle, and the result borrows `self`, which is the only way to the value.
        unsafe { self.0[index].inner() }
    }

    fn receiver_mut(&mut self, index: usize) -> &mut Receiver {
        // SAFETY: as above, and no handle is in the list twice.
        unsafe { self.0[index].inner_mut() }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|member| member.end(std::thread::panicking()));
    }
}

impl Lent for Entered<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn subscriber(&self, index: usize) -> &Subscriber {
        &self.receiver(index).subscriber
    }

    fn subscriber_mut(&mut self, index: usize) -> &mut Subscriber {
        &mut self.receiver_mut(index).subscriber
    }
}

/// Returns the handles that an array contains.
///
/// # Safety
/// `subscribers` is null or points to `count` handles, each null or open.
unsafe fn members(
    subscribers: *const *mut SubscriberHandle,
    count: usize,
) -> Result<Vec<Shared<Receiver>>, Failure> {
    if subscribers.is_null() || !subscribers.is_aligned() || count == 0 {
        return Err(Failure::argument("a select waits for at least one subscriber: pass an array of them"));
    }
    if count > MOST {
        return Err(Failure::argument(format_args!("{count} subscribers are too many: a select has {MOST}")));
    }
    // SAFETY: the array is aligned and not null. By this function's contract, `count` handles can be read.
    let handles = unsafe { std::slice::from_raw_parts(subscribers, count) };
    let mut found = Vec::with_capacity(count);
    for (index, handle) in handles.iter().enumerate() {
        if let Some(first) = handles[..index].iter().position(|other| other == handle) {
            return Err(Failure::argument(format_args!(
                "subscribers {first} and {index} of the select are the same: give each once"
            )));
        }
        // SAFETY: by this function's contract.
        let member = unsafe { Handle::share(*handle) };
        found.push(member.map_err(|why| why.of(format_args!("subscriber {index} of the select")))?);
    }
    Ok(found)
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_select_open(
    subscribers: *const *mut SubscriberHandle,
    count: usize,
    options: *const SubscribeOptions,
    out: *mut *mut SelectHandle,
) -> i32 {
    let make = || {
        // SAFETY: `shmcast.h` requires options that begin with their size.
        let mut turns = Turns::new(unsafe { select_wait(options) }?);
        // SAFETY: `shmcast.h` requires `count` open handles.
        let mut members = Members(unsafe { members(subscribers, count) }?);
        let entered = members.enter().map_err(|(_, why)| why)?;
        for index in 0..entered.count() {
            turns.add(entered.subscriber(index)).map_err(|error| Failure::system("wait for", &error))?;
        }
        drop(entered);
        Ok(Selecting { members, turns })
    };
    // SAFETY: `shmcast.h` requires a writable place.
    done(unsafe { Handle::open_at("select", out, make) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_select_close(this: *mut SelectHandle) -> i32 {
    // SAFETY: `shmcast.h` requires NULL or an open handle that one thread uses at a time.
    done(unsafe { Handle::close(this) })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn shmcast_select_recv(
    this: *mut SelectHandle,
    timeout_ns: u64,
    index: *mut usize,
    out: *mut Event,
) -> i32 {
    let call = |this: &mut Selecting| {
        if out.is_null() {
            return Err(nowhere());
        }
        let found = this.recv(timeout_ns);
        let of = match &found {
            Ok(Some((of, _))) | Err((of, _)) => *of,
            Ok(None) => this.members.0.len(),
        };
        if !index.is_null() {
            // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
            unsafe { index.write(of) };
        }
        let Some((_, event)) = found.map_err(|(_, why)| why)? else { return Ok(code::OK) };
        // SAFETY: the pointer is not null, and `shmcast.h` requires a writable place.
        unsafe { out.write(event) };
        Ok(code::EVENT)
    };
    // SAFETY: `shmcast.h` requires an open handle that one thread uses at a time.
    unsafe { Handle::enter(this, call) }.unwrap_or_else(|Failure(code)| code)
}

/// Converts the event to the layout of the header. The result borrows nothing.
fn taken(
    found: Result<Option<(usize, shmcast::Event<'_>)>, SelectError>,
) -> Result<Option<(usize, Event)>, SelectError> {
    Ok(found?.map(|(index, event)| (index, Event::of(event))))
}

/// Passes an event of this kind to the watch, if the watch needs it.
fn note(end: &mut EndWatch, kind: u32) {
    let event = match kind {
        kind::END => shmcast::Event::End,
        kind::NEW_EPOCH => shmcast::Event::NewEpoch { epoch: 0 },
        kind::NEW_SESSION => shmcast::Event::NewSession { session: [0; 10] },
        kind::RESTARTED => shmcast::Event::Restarted,
        _ => return,
    };
    end.note(&event);
}

impl Selecting {
    /// Waits for the next event. Returns the index of a subscriber and its event, in the form of the C header. Returns `None` if no event
    /// comes within `timeout_ns`. An error comes with the index of its subscriber.
    fn recv(&mut self, timeout_ns: u64) -> Result<Option<(usize, Event)>, (usize, Failure)> {
        let Self { members, turns } = self;
        let mut entered = members.enter()?;
        let mut found = taken(turns.try_recv(&mut entered));
        if matches!(found, Ok(None)) && timeout_ns != 0 {
            found = taken(match deadline(timeout_ns) {
                Some(deadline) => turns.recv_deadline(&mut entered, deadline),
                None => turns.recv(&mut entered).map(Some),
            });
        }
        match found {
            Ok(Some((index, event))) => {
                let receiver = entered.receiver_mut(index);
                note(&mut receiver.end, event.kind);
                receiver.batch_clock = None;
                Ok(Some((index, event)))
            }
            Ok(None) => Ok(None),
            Err(SelectError { index, source }) => {
                Err((index, failure(&entered.receiver(index).subscriber, source)))
            }
        }
    }
}
