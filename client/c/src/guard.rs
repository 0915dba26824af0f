//! The guard between a caller and the library: it checks handles and stops panics.

use crate::codes::code;
use crate::error::Failure;
use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const IDLE: u8 = 0;
/// A call is under way.
const ENTERED: u8 = 1;
/// A call panicked. The state that the call left is unknown.
const BROKEN: u8 = 2;
/// The caller has closed the handle, but another handle still holds it.
const CLOSED: u8 = 3;

/// The object to which a handle of the C header points.
pub(crate) struct Handle<T> {
    state: AtomicU8,
    /// The value lives until the caller closes the handle.
    inner: UnsafeCell<ManuallyDrop<T>>,
}

/// A second reference to a handle. For example, a select refers to the handles of its subscribers. After the caller has closed the handle,
/// calls through this reference are refused.
pub(crate) struct Shared<T>(Arc<Handle<T>>);

impl<T> Handle<T> {
    /// Makes a handle of a value, and returns its address. The caller keeps the address until [`close`](Self::close).
    #[allow(
        clippy::arc_with_non_send_sync,
        reason = "the caller moves handles between threads, and orders the calls"
    )]
    pub(crate) fn open(inner: T) -> *mut Self {
        let inner = UnsafeCell::new(ManuallyDrop::new(inner));
        Arc::into_raw(Arc::new(Self { state: AtomicU8::new(IDLE), inner })).cast_mut()
    }

    /// Returns a second reference to the handle, for another handle that uses it.
    ///
    /// # Safety
    /// The same as for [`enter`](Self::enter).
    pub(crate) unsafe fn share(this: *const Self) -> Result<Shared<T>, Failure> {
        // SAFETY: by this function's contract, `this` is null or points to a living handle.
        let handle = unsafe { this.as_ref() }.ok_or_else(null)?;
        handle.check()?;
        // SAFETY: `open` made the pointer from an `Arc`. The caller has not closed the handle, so the caller holds a reference.
        unsafe { Arc::increment_strong_count(this) };
        // SAFETY: as above; this reference was just counted.
        Ok(Shared(unsafe { Arc::from_raw(this) }))
    }

    /// Makes a value and its handle, and writes the handle's address to `out`. If the value cannot be made, writes null. `what` names the
    /// kind of value in errors.
    ///
    /// # Safety
    /// `out` is null or points to writable memory.
    pub(crate) unsafe fn open_at(
        what: &str,
        out: *mut *mut Self,
        make: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(), Failure> {
        catch(|| {
            if out.is_null() {
                return Err(Failure::argument(format_args!(
                    "there is nowhere to put the {what}: pass a pointer to a pointer"
                )));
            }
            // SAFETY: by this function's contract.
            unsafe { out.write(std::ptr::null_mut()) };
            let handle = Self::open(make()?);
            // SAFETY: as above.
            unsafe { out.write(handle) };
            Ok(())
        })
    }

    /// Runs a call on the handle's value. Refuses null, a call from within another call on the handle, and a handle whose earlier call
    /// panicked. Most simultaneous calls from two threads are also noticed and refused.
    ///
    /// # Safety
    /// `this` is null or came from [`open`](Self::open) of this type and was not closed; no other thread is in a call on it.
    #[inline(always)]
    pub(crate) unsafe fn enter<R>(
        this: *const Self,
        body: impl FnOnce(&mut T) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // SAFETY: by this function's contract, `this` is null or points to a living handle.
        let handle = unsafe { this.as_ref() }.ok_or_else(null)?;
        handle.check()?;
        handle.state.store(ENTERED, Ordering::Relaxed);
        let done = catch_unwind(AssertUnwindSafe(|| {
            // SAFETY: the state was idle, so no call of this thread uses the value. By this function's contract, no other thread is in a
            // call.
            body(unsafe { &mut *handle.inner.get() })
        }));
        handle.state.store(if done.is_ok() { IDLE } else { BROKEN }, Ordering::Relaxed);
        done.unwrap_or_else(|_| Err(panicked()))
    }

    #[inline(always)]
    fn check(&self) -> Result<(), Failure> {
        match self.state.load(Ordering::Relaxed) {
            IDLE => Ok(()),
            state => Err(refused(state)),
        }
    }

    /// Drops the handle and its value. Does nothing for null.
    ///
    /// # Safety
    /// The same as for [`enter`](Self::enter). The pointer is invalid afterwards.
    pub(crate) unsafe fn close(this: *mut Self) -> Result<(), Failure> {
        // SAFETY: by this function's contract, `this` is null or points to a living handle.
        let Some(handle) = (unsafe { this.as_ref() }) else { return Ok(()) };
        let state = handle.state.load(Ordering::Relaxed);
        if state == ENTERED || state == CLOSED {
            return Err(refused(state));
        }
        handle.state.store(CLOSED, Ordering::Relaxed);
        let dropped = catch(|| {
            // SAFETY: the state was neither `ENTERED` nor `CLOSED`, so no call uses the value, and the value was not dropped before.
            let inner = unsafe { &mut *handle.inner.get() };
            // SAFETY: the state is `CLOSED` now, so no later call uses the value.
            unsafe { ManuallyDrop::drop(inner) };
            Ok(())
        });
        // SAFETY: `open` made the pointer from an `Arc`, and the caller gives up its reference.
        drop(unsafe { Arc::from_raw(this) });
        dropped
    }
}

impl<T> Shared<T> {
    /// Begins a call of this thread on the value, as [`Handle::enter`] does.
    pub(crate) fn begin(&self) -> Result<(), Failure> {
        self.0.check()?;
        self.0.state.store(ENTERED, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the call that [`begin`](Self::begin) began. If the call panicked, the handle refuses all later calls.
    pub(crate) fn end(&self, panics: bool) {
        self.0.state.store(if panics { BROKEN } else { IDLE }, Ordering::Relaxed);
    }

    /// Returns the value for reading.
    ///
    /// # Safety
    /// The caller has called [`begin`](Self::begin), and calls [`end`](Self::end) only after the last use of the result. Until then, nobody
    /// changes the value.
    pub(crate) unsafe fn inner(&self) -> &T {
        // SAFETY: by this function's contract.
        unsafe { &*self.0.inner.get() }
    }

    /// Returns the value for writing.
    ///
    /// # Safety
    /// The caller has called [`begin`](Self::begin), and calls [`end`](Self::end) only after the last use of the result. Until then, nobody
    /// else uses the value.
    #[allow(clippy::mut_from_ref, reason = "the caller has the only way to the value")]
    pub(crate) unsafe fn inner_mut(&self) -> &mut T {
        // SAFETY: by this function's contract.
        unsafe { &mut *self.0.inner.get() }
    }
}

/// Runs a call that needs no handle.
pub(crate) fn catch<R>(body: impl FnOnce() -> Result<R, Failure>) -> Result<R, Failure> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| Err(panicked()))
}

#[cold]
fn null() -> Failure {
    Failure::argument("the handle is NULL: open it first, and look at what opening returns")
}

#[cold]
fn refused(state: u8) -> Failure {
    Failure::new(
        code::MISUSE,
        match state {
            ENTERED => {
                "the handle is in use by another call: use it from one thread at a time, and not from within its own callback"
            }
            CLOSED => "the handle was closed: open another, and make another select",
            _ => "an earlier call on this handle failed inside of the library: close it and open another",
        },
    )
}

#[cold]
fn panicked() -> Failure {
    Failure::new(
        code::INTERNAL,
        "the library failed inside, and says where on stderr: close the handle, open another, and report this as a fault of shmcast",
    )
}

/// Returns a text that the caller passed; `None` for null.
///
/// # Safety
/// `text` is null or ends with a zero, and stays valid and unchanged for `'a`.
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    let text = text.to_str().map_err(|_| Failure::argument(format_args!("{what} is not UTF-8: {text:?}")))?;
    Ok(Some(text))
}

/// Returns bytes that the caller passed. Null is allowed if `length` is 0.
///
/// # Safety
/// `bytes` is null or points to `length` bytes that stay valid and unchanged for `'a`.
#[inline(always)]
pub(crate) unsafe fn bytes<'a>(bytes: *const u8, length: usize) -> Result<&'a [u8], Failure> {
    if bytes.is_null() {
        return if length == 0 { Ok(&[]) } else { Err(no_bytes(length)) };
    }
    if length > isize::MAX as usize {
        return Err(no_bytes(length));
    }
    // SAFETY: the pointer is not null, and the length is possible. This function's contract covers the rest of the conditions.
    Ok(unsafe { std::slice::from_raw_parts(bytes, length) })
}

/// Returns memory of the caller, to which this call can write. Null is allowed if `size` is 0.
///
/// # Safety
/// The same as for [`bytes`], and nothing else uses this memory during `'a`.
#[inline(always)]
pub(crate) unsafe fn room<'a>(bytes: *mut u8, size: usize) -> Result<&'a mut [u8], Failure> {
    if size == 0 {
        return Ok(&mut []);
    }
    if bytes.is_null() || size > isize::MAX as usize {
        return Err(no_bytes(size));
    }
    // SAFETY: the pointer is not null, and the length is possible. This function's contract covers the rest of the conditions.
    Ok(unsafe { std::slice::from_raw_parts_mut(bytes, size) })
}

/// Returns numbers that the caller passed.
///
/// # Safety
/// `numbers` points to `count` numbers that stay valid and unchanged for `'a`.
pub(crate) unsafe fn numbers<'a>(numbers: *const u16, count: usize) -> Result<&'a [u16], Failure> {
    if !numbers.is_aligned() || count > isize::MAX as usize / size_of::<u16>() {
        return Err(Failure::argument(format_args!(
            "no {count} numbers of 16 bits can be at this address: pass a pointer to as many as you say"
        )));
    }
    // SAFETY: the pointer is aligned, and the length is possible. This function's contract covers the rest of the conditions.
    Ok(unsafe { std::slice::from_raw_parts(numbers, count) })
}

#[cold]
pub(crate) fn no_bytes(length: usize) -> Failure {
    Failure::argument(format_args!(
        "no memory can be {length} B at this address: pass a pointer to as many bytes as you say"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_goes_no_further_and_breaks_the_handle() {
        let handle = Handle::open(7);
        // SAFETY: it was just opened.
        let enter = |body: fn(&mut i32) -> Result<i32, Failure>| unsafe { Handle::enter(handle, body) };
        assert_eq!(enter(|seven| Ok(*seven)), Ok(7));
        assert_eq!(enter(|_| panic!("as this test wants it")), Err(Failure(code::INTERNAL)));
        assert_eq!(enter(|seven| Ok(*seven)), Err(Failure(code::MISUSE)));
        // SAFETY: as above.
        assert_eq!(unsafe { Handle::close(handle) }, Ok(()));
        assert_eq!(catch::<()>(|| panic!("as this test wants it")), Err(Failure(code::INTERNAL)));
    }

    #[test]
    fn a_handle_that_another_holds_is_closed_at_once_and_says_so() {
        let value = Arc::new(());
        let handle = Handle::open(Arc::clone(&value));
        // SAFETY: it was just opened.
        let Ok(shared) = (unsafe { Handle::share(handle) }) else { panic!("it is open") };
        assert_eq!(shared.begin(), Ok(()));
        // SAFETY: as above.
        assert_eq!(unsafe { Handle::close(handle) }, Err(Failure(code::MISUSE)), "a call is under way");
        shared.end(false);
        // SAFETY: as above.
        assert_eq!(unsafe { Handle::close(handle) }, Ok(()));
        assert_eq!(Arc::strong_count(&value), 1, "the value is gone");
        assert_eq!(shared.begin(), Err(Failure(code::MISUSE)));
        // SAFETY: the other holder keeps the handle.
        assert_eq!(unsafe { Handle::close(handle) }, Err(Failure(code::MISUSE)));
    }

    #[test]
    fn a_call_from_within_another_is_refused() {
        let handle = Handle::open(());
        // SAFETY: the handle lives; these calls are refused before they use its value.
        let again = || unsafe { Handle::enter(handle, |()| Ok(())) };
        // SAFETY: as above.
        let end = || unsafe { Handle::close(handle) };
        // SAFETY: it was just opened.
        let inner = unsafe { Handle::enter(handle, |()| Ok((again(), end()))) };
        assert_eq!(inner, Ok((Err(Failure(code::MISUSE)), Err(Failure(code::MISUSE)))));
        // SAFETY: the call above is over.
        assert_eq!(unsafe { Handle::close(handle) }, Ok(()));
    }
}
