//! The properties of the machine and the build, which belong to every figure. A value that the system does not give is `unknown`.

use serde::{Deserialize, Serialize};
use std::fs;

/// The properties of the machine that matter for a figure.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// The number of CPUs that this process is allowed to use.
    pub cpus: usize,
    /// The number of hardware threads of a core.
    pub smt: String,
    /// Virtual machine monitor, or `none`.
    pub hypervisor: String,
    /// Memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// Instruction set.
    pub arch: String,
    /// The kernel's clock source.
    pub clocksource: String,
    /// The clock of this program, and its rate.
    pub clock: String,
    /// CPU frequency governor.
    pub governor: String,
    /// CPUs kept free of other work.
    pub isolated: String,
    /// Settings for transparent huge pages: of ordinary memory, and of shared memory.
    pub huge_pages: String,
    /// The preemption model and the tick, if the kernel reports them.
    pub preemption: String,
    /// This program's build profile. Old sheets that name `release` were measured with the settings of the present profile `dist`.
    pub profile: String,
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn or_unknown(text: Option<String>) -> String {
    text.unwrap_or_else(|| "unknown".into())
}

/// Returns the value of the first line `key : value` in a file.
fn field(path: &str, key: &str) -> Option<String> {
    let text = read(path)?;
    let line = text.lines().find(|line| line.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns the word in brackets from a file of the form `a [b] c`.
fn chosen(path: &str) -> Option<String> {
    let text = read(path)?;
    Some(text.split_once('[')?.1.split_once(']')?.0.to_owned())
}

/// Returns the profile of this build. The directory that contains the program shows whether the profile is `dist`.
fn profile() -> String {
    let program = std::env::current_exe().unwrap_or_default();
    let is_dist = program.parent().is_some_and(|directory| directory.ends_with("dist"));
    match is_dist {
        _ if cfg!(debug_assertions) => "debug: figures mean nothing",
        true => "dist",
        false => "not `dist`: figures cannot be compared with those that are published",
    }
    .to_owned()
}

impl Machine {
    /// Reads the properties of this machine.
    pub fn look() -> Self {
        let clock = shmcast::Clock::of_this_host();
        let siblings = read("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list");
        let is_guest = field("/proc/cpuinfo", "flags").is_some_and(|flags| flags.contains("hypervisor"));
        let vendor = || read("/sys/class/dmi/id/sys_vendor").map_or("yes".into(), |v| format!("yes ({v})"));
        let memory = field("/proc/meminfo", "MemTotal").and_then(|m| m.split(' ').next()?.parse().ok());
        let thp = or_unknown(chosen("/sys/kernel/mm/transparent_hugepage/enabled"));
        let shmem = or_unknown(chosen("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
        Self {
            cpu: or_unknown(field("/proc/cpuinfo", "model name")),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            smt: siblings.map_or("unknown".into(), |list| {
                if list == "0" { "1 thread a core".into() } else { format!("threads {list} share core 0") }
            }),
            hypervisor: if is_guest { vendor() } else { "none".into() },
            memory_mib: memory.map_or(0, |kib: u64| kib / 1024),
            kernel: or_unknown(read("/proc/sys/kernel/osrelease")),
            arch: std::env::consts::ARCH.into(),
            clocksource: or_unknown(read("/sys/devices/system/clocksource/clocksource0/current_clocksource")),
            clock: format!("{:?} at {:.3} GHz", clock.kind(), clock.hz() as f64 / 1e9),
            governor: or_unknown(read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")),
            isolated: read("/sys/devices/system/cpu/isolated").unwrap_or_else(|| "none".into()),
            huge_pages: format!("{thp}, shared memory {shmem}"),
            preemption: or_unknown(chosen("/sys/kernel/debug/sched/preempt")),
            profile: profile(),
        }
    }

    /// Returns the name and the value of each property, for tables.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        vec![
            ("processor", self.cpu.clone()),
            ("CPUs", format!("{} ({})", self.cpus, self.smt)),
            ("virtual machine", self.hypervisor.clone()),
            ("memory", format!("{} MiB", self.memory_mib)),
            ("kernel", format!("{} {}", self.kernel, self.arch)),
            ("clock", format!("{}; kernel {}", self.clock, self.clocksource)),
            ("governor", self.governor.clone()),
            ("isolated CPUs", self.isolated.clone()),
            ("huge pages", self.huge_pages.clone()),
            ("preemption", self.preemption.clone()),
            ("build", self.profile.clone()),
        ]
    }
}
