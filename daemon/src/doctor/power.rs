//! Checks of the clock speed and of the sleep states of the judged CPUs.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "governor",
        area: Area::Power,
        why: "A governor that lowers the clock makes every message slower until load has been seen for milliseconds.",
        examine: governor,
    },
    Check {
        id: "energy-preference",
        area: Area::Power,
        why: "The processor's own power control delays going to full speed when it is told to save energy.",
        examine: energy_preference,
    },
    Check {
        id: "turbo",
        area: Area::Power,
        why: "Without turbo the CPU stays at its base clock, so each message costs up to a third more time.",
        examine: turbo,
    },
    Check {
        id: "c-states",
        area: Area::Power,
        why: "A CPU in a deep sleep state needs up to hundreds of microseconds before it serves an interrupt or a wake-up.",
        examine: c_states,
    },
    Check {
        id: "thermal-throttle",
        area: Area::Power,
        why: "A core that was too hot runs slower until it has cooled, whatever the settings say.",
        examine: thermal_throttle,
    },
    Check {
        id: "pcie-aspm",
        area: Area::Power,
        why: "A PCIe link that powers down between packets adds microseconds to the next one from the network card.",
        examine: pcie_aspm,
    },
];

fn governor(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const LEAF: &str = "cpufreq/scaling_governor";
    let governors = p.per_cpu(LEAF)?;
    let slow: Vec<String> = governors
        .iter()
        .filter(|(name, _)| *name != "performance")
        .map(|(name, cpus)| format!("{name:?} on CPUs {cpus}"))
        .collect();
    if slow.is_empty() {
        return Ok(Verdict::pass("performance"));
    }
    let mend = Mend::sysfs("/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor", "performance");
    // Without intel_pstate, the powersave governor keeps the clock at its floor, however busy the CPU is.
    let stuck =
        governors.keys().any(|name| name == "powersave") && !p.exists("/sys/devices/system/cpu/intel_pstate");
    Ok(if stuck { Verdict::fail(slow.join(", "), mend) } else { Verdict::warn(slow.join(", "), mend) })
}

fn energy_preference(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let preferences = p.per_cpu("cpufreq/energy_performance_preference")?;
    // A raw value of 0 means "performance".
    let saving: Vec<String> = preferences
        .iter()
        .filter(|(name, _)| *name != "performance" && *name != "0")
        .map(|(name, cpus)| format!("{name:?} on CPUs {cpus}"))
        .collect();
    if saving.is_empty() {
        return Ok(Verdict::pass("performance"));
    }
    let mend =
        Mend::sysfs("/sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference", "performance");
    Ok(Verdict::warn(saving.join(", "), mend))
}

fn turbo(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const INTEL: &str = "/sys/devices/system/cpu/intel_pstate/no_turbo";
    const OTHER: &str = "/sys/devices/system/cpu/cpufreq/boost";
    let (path, on, off) = if p.exists(INTEL) { (INTEL, "0", "1") } else { (OTHER, "1", "0") };
    let value = p.text(path)?;
    match value.as_str() {
        value if value == on => Ok(Verdict::pass("turbo is on")),
        value if value == off => {
            Ok(Verdict::warn("turbo is off, the base clock is the limit", Mend::sysfs(path, on)))
        }
        _ => Err(malformed(path, &value, "0 or 1")),
    }
}

/// The highest accepted exit latency of a CPU's sleep state. This latency is not visible as a stall, because it is about as long as a burst
/// of cache misses.
const SHALLOW_US: u64 = 10;

fn c_states(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const REQUEST: &str = "/dev/cpu_dma_latency";
    // The file has the tightest request of all programs, as a 32-bit number of microseconds in native byte order. Only root is allowed to
    // read it.
    let request_us = match p.bytes(REQUEST).map(<[u8; 4]>::try_from) {
        Ok(Ok(bytes)) => {
            let request_us = u64::try_from(i32::from_ne_bytes(bytes)).unwrap_or(0);
            p.note(REQUEST, format!("{request_us} us"));
            request_us
        }
        _ => u64::MAX,
    };
    let mut deepest = (0, String::new());
    let mut states = Vec::new();
    for cpu in p.cpus()?.iter() {
        let dir = format!("/sys/devices/system/cpu/cpu{cpu}/cpuidle");
        for state in p.names(&dir)?.iter().filter(|name| name.starts_with("state")) {
            let latency = p.quiet(&format!("{dir}/{state}/latency"))?;
            let latency_us: u64 = latency
                .parse()
                .map_err(|_| malformed(&format!("{dir}/{state}/latency"), &latency, "a number"))?;
            let name = p.quiet(&format!("{dir}/{state}/name"))?;
            let usable = p.quiet(&format!("{dir}/{state}/disable"))? == "0" && latency_us <= request_us;
            let summary = format!("{name} {latency_us} us{}", if usable { "" } else { ", not used" });
            if !states.contains(&summary) {
                states.push(summary);
            }
            if usable && latency_us >= deepest.0 {
                deepest = (latency_us, name);
            }
        }
    }
    if states.is_empty() {
        return Ok(Verdict::unknown("the kernel does not manage sleep states here"));
    }
    p.note("/sys/devices/system/cpu/cpu*/cpuidle/state*", states.join("; "));
    let (latency_us, name) = deepest;
    if latency_us <= SHALLOW_US {
        return Ok(Verdict::pass(format!("waking takes at most {latency_us} us")));
    }
    let mend = Mend::new(
        format!("cpupower idle-set --disable-by-latency {SHALLOW_US}"),
        "kernel parameters intel_idle.max_cstate=1 processor.max_cstate=1",
    );
    Ok(Verdict::warn(format!("waking from {name} takes {latency_us} us"), mend))
}

fn thermal_throttle(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const LEAF: &str = "thermal_throttle/core_throttle_count";
    let mut hot = 0;
    for (text, cpus) in p.per_cpu(LEAF)? {
        let count: u64 = text.parse().map_err(|_| malformed(LEAF, &text, "a number"))?;
        hot += if count > 0 { cpus.count() } else { 0 };
    }
    if hot == 0 {
        return Ok(Verdict::pass("no core was too hot since boot"));
    }
    let mend = Mend::new(
        "turbostat --quiet --show Core,CPU,Bzy_MHz,CoreTmp --interval 1",
        "better cooling, or a lower turbo limit",
    );
    Ok(Verdict::warn(format!("{hot} CPUs were throttled for heat since boot"), mend))
}

fn pcie_aspm(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/sys/module/pcie_aspm/parameters/policy";
    let policy = p.choice(PATH, '[', ']')?;
    match policy.as_str() {
        "performance" => Ok(Verdict::pass("links stay powered")),
        "default" | "powersave" | "powersupersave" => {
            let mend = Mend::new(
                format!("echo performance >{PATH}"),
                "kernel parameter pcie_aspm.policy=performance",
            );
            Ok(Verdict::warn(format!("policy {policy}: links may power down"), mend))
        }
        _ => Err(malformed(PATH, &policy, "a link power policy")),
    }
}
