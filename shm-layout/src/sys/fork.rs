//! Forked children. A child has a copy of each descriptor of its parent, and through these copies it shares the parent's locks and sockets.
//! If the parent ends, the kernel does not release these locks and sockets as long as the child lives.
//!
//! Some descriptors show other processes that this process lives. Such a descriptor is put into [`ParentsOnly`]. In each child, a handler
//! of `pthread_atfork` closes these descriptors before `fork` returns. The handler also counts the forks, so that a handle in a child can
//! detect that it is a copy of the parent's handle. If a program calls `clone` itself, without the C library, no handler runs, and its
//! child shares everything.

use nix::libc;
use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

/// The number of forks between the process that first called [`watch`] and this process.
static FORKS: AtomicU32 = AtomicU32::new(0);
/// The list of all slots. It only grows. Its length is the largest number of descriptors that were in [`ParentsOnly`] at the same time.
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(null_mut());
/// The value of a free slot, in place of a descriptor.
const FREE: RawFd = -1;

/// A slot for a descriptor that forked children must close.
#[derive(Debug)]
struct Slot {
    descriptor: AtomicI32,
    /// The slot that was made before this one.
    next: *const Slot,
}

// SAFETY: `next` is written before the slot is shared, and slots are never freed.
unsafe impl Sync for Slot {}

/// The number of forks between the process that first called [`watch`] and this process. A handle stores the number at its creation. In a
/// forked child, the number is higher than the stored one. Cost: a load of a word that never changes within a process.
///
/// ```
/// use shmcast_layout::sys::fork::count;
/// assert_eq!(count(), count());
/// ```
#[inline(always)]
pub fn count() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// Starts to count the forks of this process, and returns the [`count`]. A handle of this process stores the result. Cost: two loads after
/// the first call.
///
/// ```
/// use shmcast_layout::sys::fork::{count, watch};
/// assert_eq!(watch(), count());
/// ```
pub fn watch() -> u32 {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        // SAFETY: the handler is a function without arguments that does what POSIX allows in a forked child: it makes system calls and uses
        // atomics. If there is no memory for the handler, children share the descriptors, as without it.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    count()
}

/// A value with a descriptor that forked children do not keep. In a child, the descriptor's number belongs to another file, a new event
/// counter. The child closes that file when it drops its copy of the value.
///
/// ```
/// use shmcast_layout::sys::fork::ParentsOnly;
/// use std::fs::File;
/// let file = ParentsOnly::new(File::open("/dev/null")?);
/// assert!(file.metadata().is_ok());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ParentsOnly<T> {
    // `_kept` must be dropped before `inner`, because after `inner` has closed the descriptor, its number can belong to another file.
    _kept: Kept,
    inner: T,
}

impl<T: AsFd> ParentsOnly<T> {
    /// Keeps the descriptor of `inner` out of child processes. Each child that is forked from now on closes its copy of the descriptor.
    /// `inner` must keep the same descriptor as long as it lives.
    pub fn new(inner: T) -> Self {
        watch();
        Self { _kept: Kept(keep(inner.as_fd().as_raw_fd())), inner }
    }
}

impl<T> Deref for ParentsOnly<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

/// A slot in use.
#[derive(Debug)]
struct Kept(&'static Slot);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.descriptor.store(FREE, Ordering::Release);
    }
}

/// Iterates over the slots, from the newest to the oldest.
fn slots() -> impl Iterator<Item = &'static Slot> {
    let mut next = SLOTS.load(Ordering::Acquire).cast_const();
    std::iter::from_fn(move || {
        // SAFETY: it is null, or a slot that was leaked before it was put into the list.
        let slot = unsafe { next.as_ref() }?;
        next = slot.next;
        Some(slot)
    })
}

fn keep(descriptor: RawFd) -> &'static Slot {
    let take = |slot: &&Slot| {
        slot.descriptor.compare_exchange(FREE, descriptor, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    };
    if let Some(slot) = slots().find(take) {
        return slot;
    }
    let slot = Box::leak(Box::new(Slot { descriptor: AtomicI32::new(descriptor), next: null_mut() }));
    let mut first = SLOTS.load(Ordering::Acquire);
    loop {
        slot.next = first;
        match SLOTS.compare_exchange(first, slot, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return slot,
            Err(other) => first = other,
        }
    }
}

/// `fork` calls this function in the child process, before `fork` returns there. At that time the child has only one thread.
extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    for slot in slots() {
        let descriptor = slot.descriptor.load(Ordering::Acquire);
        if descriptor != FREE {
            give_up(descriptor);
        }
    }
}

/// Closes a descriptor, and gives its number to a new event counter. The child closes the number again when it drops its copy of the
/// handle, so the number must not belong to another descriptor by then.
fn give_up(descriptor: RawFd) {
    // SAFETY: the number is one of a handle that is in use in the parent, so it is the child's own copy of that descriptor.
    unsafe { libc::close(descriptor) };
    // SAFETY: the call is given no memory. The number that was just closed is free, so there is room for one.
    let other = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    if other >= 0 && other != descriptor {
        // SAFETY: `other` is open, and `descriptor` was closed above.
        unsafe { libc::dup3(other, descriptor, libc::O_CLOEXEC) };
        // SAFETY: no other code uses this descriptor.
        unsafe { libc::close(other) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn slots_are_used_again() {
        let used = || slots().filter(|slot| slot.descriptor.load(Ordering::Relaxed) != FREE).count();
        let open = || ParentsOnly::new(File::open("/dev/null").unwrap());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let (one, two) = (open(), open());
                        assert_ne!(one.as_raw_fd(), two.as_raw_fd());
                        assert!(used() >= 2);
                    }
                });
            }
        });
        assert!(slots().count() <= 8, "{} slots", slots().count());
        assert_eq!(used(), 0);
    }
}
