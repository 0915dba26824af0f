//! Checks of a host for users who need latencies of microseconds. The checks find settings that make the host slower, and the commands that
//! correct them.
//!
//! A check is a function from a [`Host`] to a verdict. It reads only through [`Root`], so it can also check a copy of another machine's
//! files. No check changes anything.
//!
//! If a file is missing, forbidden or malformed, the result of the check is *unknown*, and never a pass.

mod clock;
mod finding;
mod isolation;
mod kernel;
mod limits;
mod memory;
mod network;
mod nic;
mod numa;
mod pages;
mod power;
mod probe;
mod root;
mod storage;

pub use finding::{Area, Assignment, Count, Finding, Mend, Reading, Report, Status};
pub use probe::{Host, NotOnline};
pub use root::{OpenRootError, Root, Unread};

use finding::Verdict;
use probe::Probe;

/// One entry of the catalogue.
#[derive(Debug)]
struct Check {
    id: &'static str,
    area: Area,
    why: &'static str,
    examine: fn(&mut Probe<'_>) -> Result<Verdict, Unread>,
}

fn catalogue() -> impl Iterator<Item = &'static Check> {
    [
        isolation::CHECKS,
        power::CHECKS,
        clock::CHECKS,
        kernel::CHECKS,
        memory::CHECKS,
        pages::CHECKS,
        numa::CHECKS,
        limits::CHECKS,
        network::CHECKS,
        nic::CHECKS,
        storage::CHECKS,
    ]
    .into_iter()
    .flatten()
}

/// The names of all checks, in the order of the table.
#[must_use]
pub fn ids() -> Vec<&'static str> {
    catalogue().map(|check| check.id).collect()
}

/// Runs the checks in `only`, or all checks if `only` is empty. Reads files, and runs `ethtool` on a live host. This takes some
/// milliseconds on a small machine.
#[must_use]
pub fn examine(host: &Host, only: &[String]) -> Report {
    let chosen = |check: &&Check| only.is_empty() || only.iter().any(|id| id == check.id);
    let checks: Vec<Finding> = catalogue().filter(chosen).map(|check| run(check, host)).collect();
    Report {
        root: host.root.dir().display().to_string(),
        kernel: host.root.text("/proc/sys/kernel/osrelease").ok(),
        cpus: host.cpus().ok(),
        count: Count::of(&checks),
        checks,
    }
}

fn run(check: &Check, host: &Host) -> Finding {
    let mut probe = Probe::new(host);
    let verdict = (check.examine)(&mut probe).unwrap_or_else(|unread| Verdict {
        status: Status::Unknown,
        says: unread.to_string(),
        mend: learn_more(check.id, &unread),
    });
    Finding {
        id: check.id,
        area: check.area,
        status: verdict.status,
        says: verdict.says,
        read: probe.into_readings(),
        why: check.why,
        mend: verdict.mend,
    }
}

/// If the result of a check is unknown, returns a step that might make the result known. Returns `None` if there is no such step.
fn learn_more(id: &str, unread: &Unread) -> Option<Mend> {
    match unread {
        Unread::Denied { .. } => Some(Mend::new(format!("sudo shmcast doctor {id}"), "nothing to keep")),
        Unread::NoTool { tool } => {
            Some(Mend::new(format!("apt-get install {tool}"), "the package stays installed"))
        }
        Unread::Missing { path } if path.starts_with("/sys/kernel/debug/") => Some(Mend::new(
            "mount -t debugfs none /sys/kernel/debug",
            "/etc/fstab: none /sys/kernel/debug debugfs defaults 0 0",
        )),
        Unread::Missing { .. }
        | Unread::Failed { .. }
        | Unread::Malformed { .. }
        | Unread::ToolFailed { .. } => None,
    }
}

/// Writes `kib` in the largest unit that keeps it readable.
fn kib(kib: u64) -> String {
    match kib {
        0..1024 => format!("{kib} KiB"),
        1024..1_048_576 => format!("{} MiB", kib / 1024),
        _ => format!("{:.1} GiB", kib as f64 / 1_048_576.0),
    }
}
