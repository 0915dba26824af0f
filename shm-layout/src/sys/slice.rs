//! The time slice of a thread: the time for which a thread runs before the kernel lets another thread run on its CPU.

use nix::errno::Errno;
use nix::libc;
use std::io;
use std::mem::size_of;

/// `struct sched_attr` of Linux in its first version, which all later kernels accept.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Makes the time slice of the calling thread `numerator / denominator` times as long as that of a new thread, which is one to three
/// milliseconds. Linux limits the result to 0.1 to 100 ms. The nice value and the share of the CPU do not change.
///
/// Does nothing if the thread's policy is neither `SCHED_OTHER` nor `SCHED_BATCH`, or if the kernel does not report the time slice. Cost:
/// four system calls.
///
/// Since Linux 6.18, a thread that yields gives up the remaining part of its slice. It runs again when the other threads on its CPU have
/// had as much time. If two threads have equal slices, one of them can yield again and again and still continue to run. If one of them has
/// a longer slice, it always yields to the other.
///
/// # Errors
/// The error of `sched_getattr` or `sched_setattr`, such as the `EPERM` of a filter of system calls.
///
/// # Panics
/// If `denominator` is 0.
///
/// ```
/// shmcast_layout::sys::slice::scale(1, 4)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn scale(numerator: u32, denominator: u32) -> io::Result<()> {
    let now = attributes()?;
    if now.runtime == 0 || ![libc::SCHED_OTHER, libc::SCHED_BATCH].contains(&(now.policy as libc::c_int)) {
        return Ok(());
    }
    // A length of 0 sets the slice of a new thread.
    set(&Attributes { runtime: 0, ..now })?;
    let runtime = attributes()?.runtime.saturating_mul(numerator.into()) / u64::from(denominator);
    set(&Attributes { runtime: runtime.max(1), ..now })
}

fn attributes() -> io::Result<Attributes> {
    let (mut now, bytes) = (Attributes::default(), size_of::<Attributes>() as libc::c_uint);
    let (this_thread, no_flags) = (0, 0);
    // SAFETY: the kernel writes at most `bytes` into the struct, all of whose fields are integers.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, this_thread, &raw mut now, bytes, no_flags) };
    Errno::result(got)?;
    Ok(Attributes { size: bytes, ..now })
}

fn set(wanted: &Attributes) -> io::Result<()> {
    let (this_thread, no_flags) = (0, 0);
    // SAFETY: the kernel reads as many bytes as the struct's first field says, and the struct has so many.
    let set =
        unsafe { libc::syscall(libc::SYS_sched_setattr, this_thread, std::ptr::from_ref(wanted), no_flags) };
    Ok(Errno::result(set).map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_the_turns_that_it_asked_for_and_keeps_all_else() {
        let before = attributes().unwrap();
        if before.runtime == 0 {
            eprintln!(
                "SKIPPED a_thread_has_the_turns_that_it_asked_for: this kernel does not tell the length of turns"
            );
            return;
        }
        let usual = before.runtime;
        for (by, got) in [((1, 4), usual / 4), ((2, 1), 2 * usual), ((1, 1), usual), ((0, 1), 100_000)] {
            scale(by.0, by.1).unwrap();
            let now = attributes().unwrap();
            assert_eq!(now.runtime, got, "{by:?}");
            assert_eq!((now.policy, now.nice, now.flags), (before.policy, before.nice, before.flags));
        }
    }
}
