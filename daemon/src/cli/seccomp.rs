//! `shmcast seccomp`: prints a filter of system calls for a program that publishes or receives.

use super::say::print;
use anyhow::Result;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Print a filter of system calls for a program that only publishes or only receives
///
/// The filter has two kinds of calls: those that CI sees the library make, from the program's start to its end, and those that every
/// program may need at any time. A program that does more than the library, such as writing files, needs additional calls.
///
/// By default, prints a drop-in file for a systemd unit. With --json, prints the form of the crate seccompiler, for a program that filters
/// its own calls.
///
/// The filters are for x86-64.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example: shmcast seccomp reader > /etc/systemd/system/my-reader.service.d/calls.conf"
)]
pub(super) struct Args {
    /// What the program does
    #[arg(value_enum)]
    role: Role,

    /// Print a filter of the crate seccompiler, as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Role {
    Publisher,
    Reader,
}

const PAGE: &str = include_str!("../../docs/syscalls.md");

/// Calls that every program might need at any time. `client/examples/phases.rs` makes them under each filter.
const ANY: [&str; 35] = [
    // Memory, and locks.
    "brk",
    "futex",
    "madvise",
    "mmap",
    "mprotect",
    "mremap",
    "munmap",
    // Threads: their start, their end, their CPU, and a pause.
    "clock_nanosleep",
    "exit",
    "exit_group",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_yield",
    // Clocks that need the kernel, random numbers, signals, and output.
    "clock_gettime",
    "getrandom",
    "restart_syscall",
    "rt_sigprocmask",
    "rt_sigreturn",
    "write",
    "writev",
    // Calls for the backtrace of a panic, which reads the program's file and the files of its libraries.
    "close",
    "fstat",
    "getcwd",
    "lseek",
    "newfstatat",
    "openat",
    "pread64",
    "read",
    "readlink",
    "statx",
    // Calls of `abort`. If the filter refused them, a program that aborts would seem to break its filter.
    "getpid",
    "gettid",
    "rt_sigaction",
    "tgkill",
    "tkill",
];

/// Returns the calls that `docs/syscalls.md` lists for the role, and the calls that every program might need.
fn calls(role: Role) -> BTreeSet<&'static str> {
    let name = match role {
        Role::Publisher => "| publisher, ",
        Role::Reader => "| reader, ",
    };
    let rows = PAGE.lines().filter(|line| line.starts_with(name));
    let cells = rows.flat_map(|row| row.trim_matches('|').split('|').skip(1));
    cells.flat_map(str::split_whitespace).filter(|call| *call != "none").chain(ANY).collect()
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let calls = calls(args.role);
    if args.json {
        let filter: Vec<_> = calls.iter().map(|call| json!({ "syscall": call })).collect();
        let thread = json!({ "mismatch_action": "kill_process", "match_action": "allow", "filter": filter });
        print(format!("{:#}", json!({ "main": thread })))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut text = String::from("[Service]\nSystemCallArchitectures=native\nSystemCallFilter=");
    for call in calls {
        write!(text, "{call} ")?;
    }
    print(text.trim_end())?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_has_the_calls_of_its_role_and_no_word_of_the_page() {
        for (role, own, others) in
            [(Role::Publisher, "ftruncate", "epoll_wait"), (Role::Reader, "epoll_wait", "ftruncate")]
        {
            let calls = calls(role);
            assert!(calls.contains(own) && !calls.contains(others), "{role:?}: {calls:?}");
            assert!(calls.contains("ppoll"), "the keeper's calls are in it");
            let is_name =
                |call: &&str| call.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_');
            assert!(calls.iter().all(is_name), "{calls:?}");
        }
    }
}
