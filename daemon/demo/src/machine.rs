//! The machine on which a figure was measured. Each figure is shown with its machine.

use serde::Serialize;
use std::fmt;
use std::fs;

/// The properties of the machine that matter to a latency figure and can be read without privileges.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    pub(crate) cpus: usize,
    kernel: String,
    clocksource: String,
    governor: Option<String>,
    virtual_machine: bool,
    isolated_cpus: Option<String>,
}

impl Machine {
    pub(crate) fn read() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let field = |name: &str| {
            cpuinfo.lines().find(|line| line.starts_with(name)).and_then(|line| line.split(':').nth(1))
        };
        let line =
            |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned()).filter(|s| !s.is_empty());
        let unknown = || "unknown".to_owned();
        Self {
            cpu: field("model name").map_or_else(unknown, |name| name.trim().to_owned()),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            clocksource: line("/sys/devices/system/clocksource/clocksource0/current_clocksource")
                .unwrap_or_else(unknown),
            governor: line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtual_machine: field("flags")
                .is_some_and(|flags| flags.split_whitespace().any(|f| f == "hypervisor")),
            isolated_cpus: line("/sys/devices/system/cpu/isolated"),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}, Linux {}, clock {}", self.cpus, self.cpu, self.kernel, self.clocksource)?;
        if let Some(governor) = &self.governor {
            write!(f, ", governor {governor}")?;
        }
        if self.virtual_machine {
            write!(f, ", virtual machine")?;
        }
        match &self.isolated_cpus {
            Some(cpus) => write!(f, ", isolated CPUs {cpus}"),
            None => write!(f, ", no isolated CPUs"),
        }
    }
}
