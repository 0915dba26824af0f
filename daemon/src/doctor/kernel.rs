//! Checks of the kernel's version, its scheduler, and its own work.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};
use crate::cpu_list::CpuList;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kernel-version",
        area: Area::Kernel,
        why: "A daemon's rings need 5.1 (sealed against writing), touching pages ahead needs 5.14, and huge pages need 6.1.",
        examine: kernel_version,
    },
    Check {
        id: "preemption",
        area: Area::Kernel,
        why: "A woken reader waits until the kernel code on its CPU gives way, which without preemption takes milliseconds.",
        examine: preemption,
    },
    Check {
        id: "rt-throttling",
        area: Area::Kernel,
        why: "A busy reader under SCHED_FIFO is taken off its CPU for up to 50 ms of every second.",
        examine: rt_throttling,
    },
    Check {
        id: "timer-migration",
        area: Area::Kernel,
        why: "Timers armed on idle CPUs expire on a busy one, and a busy-waiting reader makes its CPU look like that.",
        examine: timer_migration,
    },
    Check {
        id: "nmi-watchdog",
        area: Area::Kernel,
        why: "The hard-lockup watchdog interrupts every CPU each few seconds and holds a performance counter.",
        examine: nmi_watchdog,
    },
    Check {
        id: "soft-watchdog",
        area: Area::Kernel,
        why: "The soft-lockup watchdog wakes a thread of the highest priority on every CPU of its mask each few seconds.",
        examine: soft_watchdog,
    },
    Check {
        id: "ptrace-scope",
        area: Area::Kernel,
        why: "Where any program may attach to any other of its user, a stray debugger can stop a publisher between two stores.",
        examine: ptrace_scope,
    },
    Check {
        id: "perf-events",
        area: Area::Kernel,
        why: "Finding the cause of a stall takes perf, which above level 1 shows an ordinary user nothing of the kernel.",
        examine: perf_events,
    },
];

fn kernel_version(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let (major, minor) = p.kernel()?;
    let mend = Mend::new(
        "apt-get update && apt-get install linux-image-amd64 && reboot",
        "the package stays installed",
    );
    Ok(match (major, minor) {
        (6, 1..) | (7.., _) => Verdict::pass(format!("{major}.{minor}")),
        (5, 14..) | (6, _) => Verdict::warn(format!("{major}.{minor} lacks MADV_COLLAPSE"), mend),
        (5, 1..) => Verdict::warn(format!("{major}.{minor} lacks MADV_POPULATE_WRITE"), mend),
        _ => Verdict::fail(format!("{major}.{minor} lacks F_SEAL_FUTURE_WRITE"), mend),
    })
}

fn preemption(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/version";
    const MODES: &str = "/sys/kernel/debug/sched/preempt";
    let version = p.text(PATH)?;
    let has = |word: &str| version.split_whitespace().any(|part| part == word);
    if !version.starts_with("Linux version ") {
        return Err(malformed(PATH, &version, "a Linux version"));
    }
    if has("PREEMPT_RT") {
        return Ok(Verdict::pass("PREEMPT_RT"));
    }
    let mode = match () {
        // With PREEMPT_DYNAMIC, the preemption mode can be changed. debugfs shows the present mode. Without debugfs, the mode on the
        // kernel's command line counts.
        () if has("PREEMPT_DYNAMIC") => match p.boot_parameter("preempt")? {
            Some(mode) if !p.exists(MODES) => mode,
            _ => p.choice(MODES, '(', ')')?,
        },
        () if has("PREEMPT") => "full".to_owned(),
        () => "none".to_owned(),
    };
    let mend = Mend::new("echo full >/sys/kernel/debug/sched/preempt", "kernel parameter preempt=full");
    match mode.as_str() {
        "full" => Ok(Verdict::pass("full")),
        "none" | "voluntary" | "lazy" => {
            Ok(Verdict::warn(format!("mode {mode}: kernel code may hold the CPU"), mend))
        }
        _ => Err(malformed(MODES, &mode, "a mode of preemption")),
    }
}

/// The first kernel version with the fair server in place of throttling. The fair server has settings of its own.
const FAIR_SERVER_SINCE: (u32, u32) = (6, 12);

fn rt_throttling(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    if p.kernel()? >= FAIR_SERVER_SINCE {
        return fair_server(p);
    }
    let runtime_us: i64 = p.number("/proc/sys/kernel/sched_rt_runtime_us")?;
    let period_us: i64 = p.number("/proc/sys/kernel/sched_rt_period_us")?;
    if runtime_us < 0 || runtime_us >= period_us {
        return Ok(Verdict::pass("real-time tasks are not throttled"));
    }
    let says = format!(
        "real-time tasks stop for {} ms of each {} ms",
        (period_us - runtime_us) / 1000,
        period_us / 1000
    );
    Ok(Verdict::warn(says, Mend::sysctl("kernel.sched_rt_runtime_us", -1)))
}

fn fair_server(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const DIR: &str = "/sys/kernel/debug/sched/fair_server";
    let mut longest_ns = 0;
    let cpus = p.cpus()?;
    for cpu in cpus.iter() {
        let path = format!("{DIR}/cpu{cpu}/runtime");
        let text = p.quiet(&path)?;
        let runtime_ns: u64 = text.parse().map_err(|_| malformed(&path, &text, "a number"))?;
        longest_ns = longest_ns.max(runtime_ns);
    }
    p.note(format!("{DIR}/cpu*/runtime"), format!("at most {longest_ns} ns on CPUs {cpus}"));
    if longest_ns == 0 {
        return Ok(Verdict::pass("the fair server is off on the judged CPUs"));
    }
    let says = format!("starved tasks may stop a real-time one for {} ms a second", longest_ns / 1_000_000);
    let mend = Mend::new(
        format!("for c in {DIR}/cpu*; do echo 0 >$c/runtime; done"),
        format!("/etc/tmpfiles.d/shmcast-host.conf: w {DIR}/cpu*/runtime - - - - 0"),
    );
    Ok(Verdict::warn(says, mend))
}

fn timer_migration(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const KEY: &str = "kernel.timer_migration";
    let value: u8 = p.number("/proc/sys/kernel/timer_migration")?;
    let silent: CpuList = p
        .optional("/sys/devices/system/cpu/nohz_full")
        .and_then(|list| list.parse().ok())
        .unwrap_or_default();
    // A nohz_full CPU gives its timers to other CPUs, and takes no timers from them. So migration is wanted if all checked CPUs are
    // nohz_full.
    let handed_off = !silent.is_empty() && p.cpus()?.minus(&silent).is_empty();
    Ok(match (value, handed_off) {
        (1, true) => Verdict::pass("timers move away from the nohz_full CPUs"),
        (0, true) => Verdict::warn("timers stay on the nohz_full CPUs", Mend::sysctl(KEY, 1)),
        (0, false) => Verdict::pass("timers stay where they were armed"),
        (1, false) => Verdict::warn("other CPUs' timers may expire on a busy one", Mend::sysctl(KEY, 0)),
        _ => {
            return Err(malformed("/proc/sys/kernel/timer_migration", &value.to_string(), "0 or 1"));
        }
    })
}

fn nmi_watchdog(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/kernel/nmi_watchdog")? {
        0_u32 => Ok(Verdict::pass("off")),
        _ => Ok(Verdict::warn("on", Mend::sysctl("kernel.nmi_watchdog", 0))),
    }
}

fn soft_watchdog(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    if p.number::<u32>("/proc/sys/kernel/soft_watchdog")? == 0 {
        return Ok(Verdict::pass("off"));
    }
    let watched = p.cpu_list("/proc/sys/kernel/watchdog_cpumask")?;
    let hit = p.cpus()?.and(&watched);
    if hit.is_empty() {
        return Ok(Verdict::pass(format!("watches CPUs {watched} only")));
    }
    let mend = match p.set_aside() {
        true => Mend::sysctl("kernel.watchdog_cpumask", p.housekeeping()?),
        false => Mend::sysctl("kernel.soft_watchdog", 0),
    };
    Ok(Verdict::warn(format!("watches CPUs {hit}"), mend))
}

fn ptrace_scope(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/kernel/yama/ptrace_scope")? {
        0_u32 => Ok(Verdict::warn(
            "any process may attach to its user's others",
            Mend::sysctl("kernel.yama.ptrace_scope", 1),
        )),
        level => Ok(Verdict::pass(format!("level {level}"))),
    }
}

fn perf_events(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/kernel/perf_event_paranoid")? {
        i32::MIN..=1 => Ok(Verdict::pass("an ordinary user may profile the kernel")),
        level => Ok(Verdict::warn(
            format!("level {level}: only root may"),
            Mend::sysctl("kernel.perf_event_paranoid", 1),
        )),
    }
}
