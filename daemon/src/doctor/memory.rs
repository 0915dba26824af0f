//! Checks of the kernel's own work on a program's memory: swapping, reclaiming, merging and moving pages, and writing them to disk.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    kib,
    probe::Probe,
    root::malformed,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "swap",
        area: Area::Memory,
        why: "A page that was swapped out costs a disk read, which is milliseconds, at the next touch.",
        examine: swap,
    },
    Check {
        id: "free-memory",
        area: Area::Memory,
        why: "When memory runs short, the thread that asks for a page must first free some, for milliseconds.",
        examine: free_memory,
    },
    Check {
        id: "memory-pressure",
        area: Area::Memory,
        why: "Pressure above zero means that tasks have just been standing still for want of memory.",
        examine: memory_pressure,
    },
    Check {
        id: "ksm",
        area: Area::Memory,
        why: "Merging equal pages burns a CPU and makes the next write to a merged page a fault with a copy.",
        examine: ksm,
    },
    Check {
        id: "compaction",
        area: Area::Memory,
        why: "Proactive compaction moves pages in the background; a thread that touches one meanwhile waits.",
        examine: compaction,
    },
    Check {
        id: "compact-locked",
        area: Area::Memory,
        why: "Unless told otherwise compaction moves even pages locked with mlock, and the next touch is a fault.",
        examine: compact_locked,
    },
    Check {
        id: "dirty-writeback",
        area: Area::Memory,
        why: "Gigabytes of dirty pages are written in one burst, and whoever writes a capture or a log is blocked behind it.",
        examine: dirty_writeback,
    },
    Check {
        id: "stat-interval",
        area: Area::Memory,
        why: "The kernel folds its memory counters on every busy CPU at this interval, a short stop each time.",
        examine: stat_interval,
    },
];

fn swap(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/swaps";
    let table = p.quiet(PATH)?;
    let mut lines = table.lines();
    if !lines.next().is_some_and(|header| header.starts_with("Filename")) {
        return Err(malformed(PATH, &table, "a table of swap devices"));
    }
    let used_kib: Vec<u64> = lines
        .map(|line| {
            line.split_whitespace()
                .nth(3)
                .and_then(|used| used.parse().ok())
                .ok_or_else(|| malformed(PATH, line, "five columns"))
        })
        .collect::<Result<_, _>>()?;
    let sum_kib = used_kib.iter().sum();
    p.note(PATH, format!("{} devices, {} used", used_kib.len(), kib(sum_kib)));
    let mend = Mend::new("swapoff -a", "remove the swap lines from /etc/fstab; systemctl mask swap.target");
    Ok(match (used_kib.len(), sum_kib) {
        (0, _) => Verdict::pass("none"),
        (devices, 0) => Verdict::warn(format!("{devices} configured, not used yet"), mend),
        (devices, _) => Verdict::fail(format!("{} in use on {devices} devices", kib(sum_kib)), mend),
    })
}

fn free_memory(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let total_kib = p.meminfo("MemTotal")?;
    let available_kib = p.meminfo("MemAvailable")?;
    if total_kib == 0 {
        return Err(malformed("/proc/meminfo", "MemTotal: 0", "the size of memory"));
    }
    let percent = available_kib.saturating_mul(100) / total_kib;
    let says = format!("{} of {} available", kib(available_kib), kib(total_kib));
    let mend = Mend::new(
        "ps -eo rss,pid,comm --sort=-rss | head -15",
        "stop or limit the largest (systemd: MemoryMax=), or add memory",
    );
    Ok(match percent {
        0..5 => Verdict::fail(says, mend),
        5..15 => Verdict::warn(says, mend),
        _ => Verdict::pass(says),
    })
}

fn memory_pressure(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/pressure/memory";
    let text = p.text(PATH)?;
    let share = |kind: &str, window: &str| {
        let line = text.lines().find(|line| line.starts_with(kind))?;
        let value = line.split_whitespace().find_map(|word| word.strip_prefix(window))?;
        value.parse::<f64>().ok()
    };
    let (Some(some), Some(full)) = (share("some ", "avg300="), share("full ", "avg300=")) else {
        return Err(malformed(PATH, &text, "pressure averages"));
    };
    let mend = Mend::new(
        "ps -eo rss,pid,comm --sort=-rss | head -15",
        "stop or limit the largest (systemd: MemoryMax=), or add memory",
    );
    Ok(if full > 0.0 {
        Verdict::fail(format!("all tasks stood still for {full} % of five minutes"), mend)
    } else if some > 0.0 {
        Verdict::warn(format!("some task stood still for {some} % of five minutes"), mend)
    } else {
        Verdict::pass("no task waited for memory in five minutes")
    })
}

fn ksm(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/sys/kernel/mm/ksm/run";
    match p.number(PATH)? {
        0_u32 | 2 => Ok(Verdict::pass("off")),
        1 => Ok(Verdict::warn("merging pages", Mend::sysfs(PATH, 2))),
        other => Err(malformed(PATH, &other.to_string(), "0, 1 or 2")),
    }
}

fn compaction(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/vm/compaction_proactiveness")? {
        0_u32 => Ok(Verdict::pass("only on demand")),
        level => Ok(Verdict::warn(
            format!("proactive, level {level} of 100"),
            Mend::sysctl("vm.compaction_proactiveness", 0),
        )),
    }
}

fn compact_locked(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/vm/compact_unevictable_allowed")? {
        0_u32 => Ok(Verdict::pass("locked pages stay where they are")),
        _ => {
            Ok(Verdict::warn("locked pages may be moved", Mend::sysctl("vm.compact_unevictable_allowed", 0)))
        }
    }
}

/// The number of KiB that a common disk writes in about a second.
const BURST_KIB: u64 = 1 << 20;

fn dirty_writeback(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    if p.number::<u64>("/proc/sys/vm/dirty_writeback_centisecs")? == 0 {
        let mend = Mend::sysctl("vm.dirty_writeback_centisecs", 500);
        return Ok(Verdict::warn("periodic writing is off, so all of it comes at once", mend));
    }
    // The kernel uses the number of bytes if it is set, and otherwise the percentage of the available memory.
    let background_kib = match p.number::<u64>("/proc/sys/vm/dirty_background_bytes")? {
        0 => {
            let percent: u64 = p.number("/proc/sys/vm/dirty_background_ratio")?;
            p.meminfo("MemAvailable")?.saturating_mul(percent) / 100
        }
        bytes => bytes / 1024,
    };
    if background_kib <= BURST_KIB {
        return Ok(Verdict::pass(format!("writing starts at {} dirty", kib(background_kib))));
    }
    let mend = Mend::sysctl("vm.dirty_background_bytes", 256 << 20);
    Ok(Verdict::warn(format!("writing starts only at {} dirty", kib(background_kib)), mend))
}

fn stat_interval(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/vm/stat_interval")? {
        seconds @ 10_u32.. => Ok(Verdict::pass(format!("every {seconds} s"))),
        seconds => Ok(Verdict::warn(format!("every {seconds} s"), Mend::sysctl("vm.stat_interval", 60))),
    }
}
