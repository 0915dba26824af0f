//! Checks of the clocks, and a check whether this host is a virtual machine.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "clocksource",
        area: Area::Clock,
        why: "Where the kernel distrusts the CPU's counter, each time it tells costs a system call or a slow device read.",
        examine: clocksource,
    },
    Check {
        id: "invariant-tsc",
        area: Area::Clock,
        why: "A counter that may change pace is not used: messages are stamped by CLOCK_MONOTONIC, at two to three times the cost.",
        examine: invariant_tsc,
    },
    Check {
        id: "virtualization",
        area: Area::Clock,
        why: "A hypervisor may stop a virtual CPU at any time, and no setting inside the guest prevents it.",
        examine: virtualization,
    },
    Check {
        id: "steal-time",
        area: Area::Clock,
        why: "Stolen time is time in which a busy reader stood still because the hypervisor ran something else.",
        examine: steal_time,
    },
];

fn clocksource(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const DIR: &str = "/sys/devices/system/clocksource/clocksource0";
    let current = p.text(&format!("{DIR}/current_clocksource"))?;
    let offered = p.optional(&format!("{DIR}/available_clocksource")).unwrap_or_default();
    let mend = match offered.split_whitespace().any(|name| name == "tsc") {
        true => Mend::new(format!("echo tsc >{DIR}/current_clocksource"), "kernel parameter clocksource=tsc"),
        false => {
            Mend::new("dmesg | grep -i -e tsc -e clocksource", "the kernel gave the TSC up; that says why")
        }
    };
    match current.as_str() {
        "tsc" | "arch_sys_counter" => Ok(Verdict::pass(current)),
        // A program reads these two clocks without a system call, at about twice the cost of the TSC.
        "kvm-clock" | "hyperv_clocksource_tsc_page" => {
            Ok(Verdict::warn(format!("{current}, slower to read than tsc"), mend))
        }
        "" => Err(malformed(DIR, &current, "a clock's name")),
        other if !other.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) => {
            Err(malformed(DIR, &current, "a clock's name"))
        }
        _ => Ok(Verdict::fail(format!("{current}: each time stamp is a slow read"), mend)),
    }
}

/// The feature flags of a CPU.
struct CpuFlags {
    flags: Vec<String>,
    /// Whether the CPU is an Arm. Its flags do not say whether a hypervisor runs.
    is_arm: bool,
}

impl CpuFlags {
    fn has(&self, wanted: &str) -> bool {
        self.flags.iter().any(|flag| flag == wanted)
    }
}

/// Returns the feature flags of the first CPU in /proc/cpuinfo.
fn cpu_flags(p: &mut Probe<'_>) -> Result<CpuFlags, Unread> {
    const PATH: &str = "/proc/cpuinfo";
    let text = p.quiet(PATH)?;
    let line = text.lines().find_map(|line| {
        let (name, flags) = line.split_once(':')?;
        matches!(name.trim(), "flags" | "Features").then_some((name.trim(), flags))
    });
    let (name, flags) = line.ok_or_else(|| malformed(PATH, &text, "a line of CPU flags"))?;
    let flags = flags.split_whitespace().map(str::to_owned).collect();
    Ok(CpuFlags { flags, is_arm: name == "Features" })
}

fn invariant_tsc(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let flags = cpu_flags(p)?;
    // "Features" with evtstrm is Arm, whose architected counter is invariant by definition.
    if flags.has("evtstrm") {
        p.note("/proc/cpuinfo", "Features: evtstrm");
        return Ok(Verdict::pass("the architected counter is invariant"));
    }
    let missing: Vec<&str> =
        ["constant_tsc", "nonstop_tsc"].into_iter().filter(|wanted| !flags.has(wanted)).collect();
    if missing.is_empty() {
        p.note("/proc/cpuinfo", "constant_tsc nonstop_tsc");
        return Ok(Verdict::pass("constant and never stopping"));
    }
    p.note("/proc/cpuinfo", format!("no {}", missing.join(", no ")));
    let mend = Mend::new(
        "virsh edit GUEST",
        "<cpu mode='host-passthrough'><feature policy='require' name='invtsc'/></cpu>",
    );
    Ok(Verdict::fail(format!("the CPU does not promise {}", missing.join(" and ")), mend))
}

/// Words in the names that hypervisors give their machines.
const HYPERVISORS: [&str; 9] = [
    "Apple Virtualization",
    "Google Compute Engine",
    "KVM",
    "OpenStack",
    "Parallels",
    "QEMU",
    "VMware",
    "Virtual Machine",
    "Xen",
];

fn virtualization(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let flags = cpu_flags(p)?;
    let virtual_cpu = flags.has("hypervisor");
    p.note("/proc/cpuinfo", if virtual_cpu { "hypervisor" } else { "no hypervisor" });
    let maker = p.optional("/sys/class/dmi/id/sys_vendor");
    let product = p.optional("/sys/class/dmi/id/product_name");
    let name = [maker, product].into_iter().flatten().collect::<Vec<_>>().join(" ");
    let is_named = HYPERVISORS.iter().any(|hypervisor| name.contains(hypervisor));
    if !virtual_cpu && !flags.is_arm {
        return Ok(Verdict::pass("no hypervisor under this kernel"));
    }
    if !virtual_cpu && !is_named {
        return Ok(Verdict::unknown("an Arm CPU does not say whether it is virtual"));
    }
    let says =
        if name.is_empty() { "a virtual machine".to_owned() } else { format!("a virtual machine: {name}") };
    let mend = Mend::new(
        "shmcast hiccups --duration 60s",
        "a bare-metal host, or one CPU of the host pinned to each of the guest",
    );
    Ok(Verdict::warn(says, mend))
}

/// If the hypervisor takes this share of the time or more, the check fails. A thousandth of all time is, on average, a stall of 10 ms every
/// 10 s.
const STEAL_FAIL: f64 = 0.001;

fn steal_time(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/stat";
    let text = p.quiet(PATH)?;
    let line = text
        .lines()
        .find(|line| line.starts_with("cpu "))
        .ok_or_else(|| malformed(PATH, &text, "a line for all CPUs"))?;
    let ticks: Vec<u64> = line.split_whitespace().skip(1).map_while(|field| field.parse().ok()).collect();
    // The columns are: user nice system idle iowait irq softirq steal. The columns `guest` and `guest_nice` follow; `user` and `nice`
    // include them.
    let Some(&steal) = ticks.get(7) else {
        return Err(malformed(PATH, line, "eight columns of ticks"));
    };
    let total: u64 = ticks[..8].iter().sum();
    p.note(PATH, format!("steal {steal} of {total} ticks since boot"));
    let share = steal as f64 / total.max(1) as f64;
    let mend =
        Mend::new("shmcast hiccups --duration 60s", "ask the operator of the hypervisor for dedicated CPUs");
    Ok(match steal {
        0 => Verdict::pass("no time stolen since boot"),
        _ if share < STEAL_FAIL => {
            Verdict::warn(format!("{:.4} % of the time since boot stolen", share * 100.0), mend)
        }
        _ => Verdict::fail(format!("{:.2} % of the time since boot stolen", share * 100.0), mend),
    })
}
