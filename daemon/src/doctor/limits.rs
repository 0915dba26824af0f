//! Checks of this process's limits: locked memory, priority, descriptors, CPUs, and the CPU time and memory of its control group.
//!
//! A process inherits its limits from its shell. A service gets the limits of its unit, which `systemctl show` prints.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    kib,
    probe::Probe,
    root::malformed,
};
use crate::cpu_list::CpuList;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "memlock",
        area: Area::Limits,
        why: "A ring is locked into memory as far as this allows; what is not locked may be swapped out, if there is swap.",
        examine: memlock,
    },
    Check {
        id: "rtprio",
        area: Area::Limits,
        why: "Without the right to real-time priority a reader cannot be put before ordinary tasks on its CPU.",
        examine: rtprio,
    },
    Check {
        id: "open-files",
        area: Area::Limits,
        why: "Each channel and each reader takes descriptors, and the attach that exceeds the limit fails.",
        examine: open_files,
    },
    Check {
        id: "cpu-count",
        area: Area::Limits,
        why: "Busy-waiting programs that share one CPU take turns of milliseconds instead of seeing each other at once.",
        examine: cpu_count,
    },
    Check {
        id: "cpu-quota",
        area: Area::Limits,
        why: "A group that has used up its quota stands still for the rest of the period, tens of milliseconds.",
        examine: cpu_quota,
    },
    Check {
        id: "memory-max",
        area: Area::Limits,
        why: "Ring pages count against the group of whoever touches them first, and over the limit it is killed.",
        examine: memory_max,
    },
];

const LIMITS: &str = "/proc/self/limits";
const CAP_IPC_LOCK: u32 = 14;
const CAP_SYS_NICE: u32 = 23;

/// The soft limit of the row `name`; None is unlimited.
fn soft_limit(p: &mut Probe<'_>, name: &'static str) -> Result<Option<u64>, Unread> {
    let table = p.quiet(LIMITS)?;
    let row = table.lines().find_map(|line| line.strip_prefix(name));
    let soft =
        row.and_then(|row| row.split_whitespace().next()).ok_or_else(|| malformed(LIMITS, &table, name))?;
    p.note(LIMITS, format!("{name}: {soft}"));
    match soft {
        "unlimited" => Ok(None),
        number => number.parse().map(Some).map_err(|_| malformed(LIMITS, number, "a number or unlimited")),
    }
}

/// Whether the process has a capability that overrides the limit.
fn capable(p: &mut Probe<'_>, capability: u32) -> bool {
    let mask =
        p.field("/proc/self/status", "CapEff").ok().and_then(|mask| u64::from_str_radix(&mask, 16).ok());
    mask.is_some_and(|mask| mask >> capability & 1 == 1)
}

fn limit_mend(item: &str, unit: &str, value: &str) -> Mend {
    Mend::new(
        format!("prlimit --pid $$ --{item}={value}:{value}"),
        format!("/etc/security/limits.d/90-shmcast.conf: * - {item} {value} (a service: {unit}={value})"),
    )
}

/// Memory of a channel with the default capacity, in KiB.
const ONE_RING_KIB: u64 = 74 << 10;
/// Memory of a dozen such channels, in KiB.
const MANY_RINGS_KIB: u64 = 1 << 20;

fn memlock(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let Some(limit_bytes) = soft_limit(p, "Max locked memory")? else {
        return Ok(Verdict::pass("unlimited"));
    };
    let limit = kib(limit_bytes / 1024);
    if capable(p, CAP_IPC_LOCK) {
        return Ok(Verdict::pass(format!("{limit}, lifted by CAP_IPC_LOCK")));
    }
    let mend = Mend {
        persist:
            "/etc/security/limits.d/90-shmcast.conf: * - memlock unlimited (a service: LimitMEMLOCK=infinity)"
                .into(),
        ..limit_mend("memlock", "LimitMEMLOCK", "unlimited")
    };
    Ok(match limit_bytes / 1024 {
        ..ONE_RING_KIB => Verdict::warn(format!("{limit}: rings are not locked"), mend),
        ONE_RING_KIB..MANY_RINGS_KIB => Verdict::warn(format!("{limit}: some rings are not locked"), mend),
        _ => Verdict::pass(limit),
    })
}

fn rtprio(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let limit = soft_limit(p, "Max realtime priority")?;
    match limit {
        None => Ok(Verdict::pass("unlimited")),
        Some(0) if capable(p, CAP_SYS_NICE) => Ok(Verdict::pass("0, lifted by CAP_SYS_NICE")),
        Some(0) => Ok(Verdict::warn("0: no real-time priority", limit_mend("rtprio", "LimitRTPRIO", "90"))),
        Some(priority) => Ok(Verdict::pass(format!("up to {priority}"))),
    }
}

fn open_files(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match soft_limit(p, "Max open files")? {
        Some(files @ ..256) => Ok(Verdict::fail(
            format!("{files}: too few for 100 readers"),
            limit_mend("nofile", "LimitNOFILE", "65536"),
        )),
        Some(files @ ..4096) => {
            Ok(Verdict::warn(files.to_string(), limit_mend("nofile", "LimitNOFILE", "65536")))
        }
        Some(files) => Ok(Verdict::pass(files.to_string())),
        None => Ok(Verdict::pass("unlimited")),
    }
}

fn cpu_count(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/self/status";
    let text = p.field(PATH, "Cpus_allowed_list")?;
    let allowed: CpuList = text.parse().map_err(|_| malformed(PATH, &text, "a list of CPUs"))?;
    let online = p.online()?;
    let mend = match online.minus(&allowed).is_empty() {
        // This process already has all online CPUs. So the advice is to share them well.
        true => Mend::new(
            "lscpu",
            "a host or guest with more CPUs; until then readers that share: sub --wait yield",
        ),
        false => Mend::new(
            format!("taskset -cp {online} $$"),
            "a CPU set with more CPUs (systemd: CPUAffinity=, AllowedCPUs=; docker: --cpuset-cpus)",
        ),
    };
    match allowed.count() {
        0 => Err(malformed(PATH, &text, "a list of CPUs")),
        1 => Ok(Verdict::fail(format!("CPU {allowed} only: publisher and reader take turns"), mend)),
        count @ ..4 => Ok(Verdict::warn(format!("{count} CPUs for publisher, readers and the rest"), mend)),
        count => Ok(Verdict::pass(format!("{count} CPUs"))),
    }
}

fn cpu_quota(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    for (path, value) in p.cgroup("cpu", ["cpu.max", "cpu.cfs_quota_us"])? {
        let quota = value.split_whitespace().next().unwrap_or_default();
        if quota == "max" || quota == "-1" {
            continue;
        }
        let quota_us: u64 = quota.parse().map_err(|_| malformed(&path, &value, "a quota"))?;
        let unlimited = if path.ends_with("cpu.max") { "max" } else { "-1" };
        let mend = Mend::new(
            format!("echo {unlimited} >{path}"),
            "systemd: CPUQuota= (empty); docker: no --cpus, but --cpuset-cpus",
        );
        return Ok(Verdict::fail(format!("{quota_us} us of CPU time a period"), mend));
    }
    Ok(Verdict::pass("no quota"))
}

fn memory_max(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let mut lowest: Option<(u64, String)> = None;
    for (path, value) in p.cgroup("memory", ["memory.max", "memory.limit_in_bytes"])? {
        if value == "max" {
            continue;
        }
        let bytes: u64 = value.parse().map_err(|_| malformed(&path, &value, "a size in bytes"))?;
        // Version 1 of control groups writes the largest number of whole pages if there is no limit.
        if bytes < i64::MAX as u64 - (1 << 20) && lowest.as_ref().is_none_or(|(least, _)| bytes < *least) {
            lowest = Some((bytes, path));
        }
    }
    let Some((bytes, path)) = lowest else {
        return Ok(Verdict::pass("no limit"));
    };
    let unlimited = if path.ends_with("memory.max") { "max" } else { "-1" };
    let mend =
        Mend::new(format!("echo {unlimited} >{path}"), "systemd: MemoryMax=infinity; docker: no --memory");
    Ok(Verdict::warn(format!("{} for the group", kib(bytes / 1024)), mend))
}
