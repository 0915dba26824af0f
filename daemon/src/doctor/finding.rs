//! The types of a check's result: its status, its readings, and the command that corrects the problem.
//!
//! These types only hold data. `shmcast doctor --json` prints exactly these types.

use serde::Serialize;

/// The status of a check, ordered from worst to best. `Unknown` is between `Warn` and `Pass`, although it says nothing about the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The setting certainly delays messages by milliseconds, loses messages, or makes a call fail.
    Fail,
    /// The setting costs latency or predictability under some load.
    Warn,
    /// The setting could not be read, so the check claims nothing.
    Unknown,
    /// The setting suits users who need low latency.
    Pass,
}

impl Status {
    /// Every status, worst first.
    pub const WORST_FIRST: [Self; 4] = [Self::Fail, Self::Warn, Self::Unknown, Self::Pass];

    /// The status as one lowercase word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fail => "fail",
            Self::Warn => "warn",
            Self::Unknown => "unknown",
            Self::Pass => "pass",
        }
    }
}

/// The part of the host that a check examines. By default, the table of `shmcast doctor` is grouped by these areas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Area {
    /// Competitors for the chosen CPUs.
    Isolation,
    /// Clock speed and sleep states.
    Power,
    /// Time stamps.
    Clock,
    /// The scheduler and the kernel's own work.
    Kernel,
    /// Paging, reclaim, huge pages.
    Memory,
    /// Distance between CPU, memory and device.
    Numa,
    /// Limits of this process.
    Limits,
    /// Sockets and the kernel's receive path.
    Network,
    /// Each network card.
    Nic,
    /// Disks that journals lie on.
    Storage,
}

impl Area {
    /// Every area in the order of the table.
    pub const ALL: [Self; 10] = [
        Self::Isolation,
        Self::Power,
        Self::Clock,
        Self::Kernel,
        Self::Memory,
        Self::Numa,
        Self::Limits,
        Self::Network,
        Self::Nic,
        Self::Storage,
    ];

    /// The area as one lowercase word.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Isolation => "isolation",
            Self::Power => "power",
            Self::Clock => "clock",
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Numa => "numa",
            Self::Limits => "limits",
            Self::Network => "network",
            Self::Nic => "nic",
            Self::Storage => "storage",
        }
    }
}

/// One thing that a check has read or has tried to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reading {
    /// The file or the command line, with its name on the host. `*` stands for several similar names.
    pub path: String,
    /// The value, or the part of it that was judged.
    pub value: String,
}

/// A way to repair what a check found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mend {
    /// The command, which root must run.
    pub command: String,
    /// The place in which to make the change permanent, so that it survives a reboot.
    pub persist: String,
    /// The change that `command` makes, as data. `None` if it is not one value in one file.
    #[serde(skip)]
    pub assignment: Option<Assignment>,
}

/// A value to write to one of the kernel's files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// Absolute path on the host, below `/proc/sys` or `/sys`.
    pub file: String,
    /// The value to write.
    pub value: String,
}

impl Mend {
    pub(super) fn new(command: impl Into<String>, persist: impl Into<String>) -> Self {
        Self { command: command.into(), persist: persist.into(), assignment: None }
    }

    fn assigning(self, file: String, value: &impl std::fmt::Display) -> Self {
        Self { assignment: Some(Assignment { file, value: value.to_string() }), ..self }
    }

    /// Makes the mend that sets a sysctl, such as `vm.swappiness`.
    pub(super) fn sysctl(key: &str, value: impl std::fmt::Display) -> Self {
        Self::new(
            format!("sysctl -w {key}={value}"),
            format!("/etc/sysctl.d/90-shmcast.conf: {key} = {value}"),
        )
        .assigning(format!("/proc/sys/{}", key.replace('.', "/")), &value)
    }

    /// Makes the mend that writes a value to a file below /sys. The path can be a glob for several files.
    pub(super) fn sysfs(path: &str, value: impl std::fmt::Display) -> Self {
        let persist = format!("/etc/tmpfiles.d/shmcast-host.conf: w {path} - - - - {value}");
        Self::new(format!("echo {value} | tee {path}"), persist).assigning(path.to_owned(), &value)
    }

    /// Makes the mend that sets a kernel parameter, which takes effect with a reboot.
    pub(super) fn boot(parameter: &str) -> Self {
        Self::new(
            format!(
                "mkdir -p /etc/default/grub.d && echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameter}\"' \
                 >>/etc/default/grub.d/90-shmcast.cfg && update-grub && reboot"
            ),
            format!("that file (with another boot loader: add {parameter} to its kernel command line)"),
        )
    }
}

/// The conclusion that a check draws from its readings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict {
    pub status: Status,
    pub says: String,
    pub mend: Option<Mend>,
}

impl Verdict {
    pub(super) fn pass(says: impl Into<String>) -> Self {
        Self { status: Status::Pass, says: says.into(), mend: None }
    }

    pub(super) fn warn(says: impl Into<String>, mend: Mend) -> Self {
        Self { status: Status::Warn, says: says.into(), mend: Some(mend) }
    }

    pub(super) fn fail(says: impl Into<String>, mend: Mend) -> Self {
        Self { status: Status::Fail, says: says.into(), mend: Some(mend) }
    }

    /// Makes the verdict of a check that read every file and still cannot judge the setting.
    pub(super) fn unknown(says: impl Into<String>) -> Self {
        Self { status: Status::Unknown, says: says.into(), mend: None }
    }
}

/// The answer of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The check's name, which is also an argument of `shmcast doctor`.
    pub id: &'static str,
    /// The part of the host that was checked.
    pub area: Area,
    /// The result of the check.
    pub status: Status,
    /// The finding, in a few words.
    pub says: String,
    /// Everything that was read for the finding, in order.
    pub read: Vec<Reading>,
    /// The reason why the finding matters to a user who needs low latency, in one sentence.
    pub why: &'static str,
    /// The way to correct the problem, or to learn more if the result is unknown. `None` for a pass.
    pub mend: Option<Mend>,
}

/// All answers of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The directory that was read in place of `/`.
    pub root: String,
    /// The kernel's release, if it could be read.
    pub kernel: Option<String>,
    /// The judged CPUs, if they could be read.
    pub cpus: Option<crate::cpu_list::CpuList>,
    /// Number of checks by status.
    pub count: Count,
    /// The answers, in the order of the catalogue.
    pub checks: Vec<Finding>,
}

/// Number of checks by status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The number of checks that failed.
    pub fail: usize,
    /// The number of checks with a warning.
    pub warn: usize,
    /// The number of checks with an unknown result.
    pub unknown: usize,
    /// The number of checks that passed.
    pub pass: usize,
}

impl Count {
    pub(super) fn of(checks: &[Finding]) -> Self {
        let of = |status| checks.iter().filter(|check| check.status == status).count();
        Self {
            fail: of(Status::Fail),
            warn: of(Status::Warn),
            unknown: of(Status::Unknown),
            pass: of(Status::Pass),
        }
    }
}
