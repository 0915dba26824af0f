//! `older_kernel VERSION PROGRAM [ARGUMENT]...` runs a program without the system calls and arguments that Linux got after VERSION. A
//! filter refuses newer calls with `ENOSYS`, and newer arguments with the older kernel's errors.
//!
//! `older_kernel --list` prints the refused calls and arguments, each with the version that introduced it. A filter cannot show an older
//! kernel's bugs, or that an old call behaves differently.
#![forbid(unsafe_code)]

use anyhow::{Context, Result, bail};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use syscalls::Sysno;

/// A version of Linux, such as 5.10.
type Version = (u32, u32);

/// The highest call number that the filter refuses. It leaves room for calls that are newer than `CALLS`.
const LAST: i64 = 511;

/// The first call of each group of new calls, and the version of Linux that introduced the group, in the order of their numbers. Numbers
/// from 424 on, which are newer than Linux 5.0, are the same on all architectures.
const CALLS: &[(Version, i64)] = &[
    ((5, 1), 424),  // pidfd_send_signal, io_uring_*
    ((5, 2), 428),  // open_tree and the mount calls
    ((5, 3), 434),  // pidfd_open, clone3
    ((5, 9), 436),  // close_range
    ((5, 6), 437),  // openat2, pidfd_getfd
    ((5, 8), 439),  // faccessat2
    ((5, 10), 440), // process_madvise
    ((5, 11), 441), // epoll_pwait2
    ((5, 12), 442), // mount_setattr
    ((5, 14), 443), // quotactl_fd
    ((5, 13), 444), // landlock_*
    ((5, 14), 447), // memfd_secret
    ((5, 15), 448), // process_mrelease
    ((5, 16), 449), // futex_waitv
    ((5, 17), 450), // set_mempolicy_home_node
    ((6, 5), 451),  // cachestat
    ((6, 6), 452),  // fchmodat2, map_shadow_stack
    ((6, 7), 454),  // futex_wake, futex_wait, futex_requeue
    ((6, 8), 457),  // statmount, listmount, lsm_*
    ((6, 10), 462), // mseal
    ((6, 13), 463), // *xattrat
    ((6, 15), 467), // open_tree_attr
    ((6, 17), 468), // file_getattr, file_setattr
];

/// The condition by which a filter recognizes a new argument.
enum New {
    /// The whole argument is this value.
    Is(u64),
    /// The argument has this bit.
    Has(u64),
}
use New::{Has, Is};

/// An argument that an old call got later: name, version, call, error of older kernels, and conditions by index of argument.
type Argument = (&'static str, Version, Sysno, i32, &'static [(u8, New)]);

const ARGUMENTS: &[Argument] = &[
    ("MADV_COLD", (5, 4), Sysno::madvise, libc::EINVAL, &[(2, Is(20))]),
    ("MADV_PAGEOUT", (5, 4), Sysno::madvise, libc::EINVAL, &[(2, Is(21))]),
    ("MADV_POPULATE_READ", (5, 14), Sysno::madvise, libc::EINVAL, &[(2, Is(22))]),
    ("MADV_POPULATE_WRITE", (5, 14), Sysno::madvise, libc::EINVAL, &[(2, Is(23))]),
    ("MADV_COLLAPSE", (6, 1), Sysno::madvise, libc::EINVAL, &[(2, Is(25))]),
    ("F_SEAL_FUTURE_WRITE", (5, 1), Sysno::fcntl, libc::EINVAL, &[(1, Is(1033)), (2, Has(0x10))]),
    ("F_SEAL_EXEC", (6, 3), Sysno::fcntl, libc::EINVAL, &[(1, Is(1033)), (2, Has(0x20))]),
    ("MFD_NOEXEC_SEAL", (6, 3), Sysno::memfd_create, libc::EINVAL, &[(1, Has(0x8))]),
    ("MFD_EXEC", (6, 3), Sysno::memfd_create, libc::EINVAL, &[(1, Has(0x10))]),
    ("UDP_GRO", (5, 0), Sysno::setsockopt, libc::ENOPROTOOPT, &[(1, Is(17)), (2, Is(104))]),
    ("SO_PREFER_BUSY_POLL", (5, 11), Sysno::setsockopt, libc::ENOPROTOOPT, &[(1, Is(1)), (2, Is(69))]),
    ("SO_BUSY_POLL_BUDGET", (5, 11), Sysno::setsockopt, libc::ENOPROTOOPT, &[(1, Is(1)), (2, Is(70))]),
    ("P_PIDFD of waitid", (5, 4), Sysno::waitid, libc::EINVAL, &[(0, Is(3))]),
    ("GRND_INSECURE", (5, 6), Sysno::getrandom, libc::EINVAL, &[(2, Has(4))]),
    ("FUTEX_LOCK_PI2", (5, 14), Sysno::futex, libc::ENOSYS, &[(1, Is(13))]),
    ("PR_SET_IO_FLUSHER", (5, 6), Sysno::prctl, libc::EINVAL, &[(0, Is(57))]),
    ("PR_SET_VMA", (5, 17), Sysno::prctl, libc::EINVAL, &[(0, Is(0x5356_4d41))]),
];

fn main() -> Result<()> {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    match words.as_slice() {
        [list] if list == "--list" => list_all(),
        [version, program, arguments @ ..] => {
            let version = version.to_str().and_then(parse).context("a version is two numbers, as 4.18")?;
            for filter in filters(version)? {
                seccompiler::apply_filter(&filter).context("apply a filter of system calls")?;
            }
            return Err(Command::new(program).args(arguments).exec()).context(format!("run {program:?}"));
        }
        _ => bail!("usage: older_kernel --list | older_kernel VERSION PROGRAM [ARGUMENT]..."),
    }
    Ok(())
}

fn parse(text: &str) -> Option<Version> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn list_all() {
    for &((major, minor), first) in CALLS {
        for number in first..next_first(first) {
            if let Some(call) = usize::try_from(number).ok().and_then(Sysno::new) {
                println!("{major}.{minor} {call}");
            }
        }
    }
    for (name, (major, minor), call, ..) in ARGUMENTS {
        println!("{major}.{minor} {name} ({call})");
    }
}

/// Returns the number after the last call of the group that begins with `first`.
fn next_first(first: i64) -> i64 {
    CALLS.iter().map(|&(_, number)| number).find(|&number| number > first).unwrap_or(LAST + 1)
}

fn filters(version: Version) -> Result<Vec<BpfProgram>> {
    let mut by_error = BTreeMap::<i32, BTreeMap<i64, Vec<SeccompRule>>>::new();
    for (_, since, call, error, conditions) in ARGUMENTS {
        if *since <= version {
            continue;
        }
        let conditions = conditions.iter().map(|(index, new)| {
            let (operator, value) = match *new {
                Is(value) => (SeccompCmpOp::Eq, value),
                Has(bit) => (SeccompCmpOp::MaskedEq(bit), bit),
            };
            SeccompCondition::new(*index, SeccompCmpArgLen::Dword, operator, value)
        });
        let rule = SeccompRule::new(conditions.collect::<Result<_, _>>()?)?;
        by_error.entry(*error).or_default().entry(i64::from(call.id())).or_default().push(rule);
    }
    let calls = by_error.entry(libc::ENOSYS).or_default();
    for &(since, first) in CALLS {
        if since > version {
            calls.extend((first..next_first(first)).map(|number| (number, Vec::new())));
        }
    }
    let filter = |(error, rules)| -> Result<BpfProgram> {
        let architecture = std::env::consts::ARCH.try_into()?;
        let refused = SeccompAction::Errno(u32::try_from(error)?);
        Ok(SeccompFilter::new(rules, SeccompAction::Allow, refused, architecture)?.try_into()?)
    };
    by_error.into_iter().filter(|(_, rules)| !rules.is_empty()).map(filter).collect()
}
