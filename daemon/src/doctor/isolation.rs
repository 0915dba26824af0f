//! Checks for activity that competes with programs on the chosen CPUs: other tasks, the timer tick, RCU, interrupts, kernel work, and the
//! sibling thread.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};
use crate::cpu_list::CpuList;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "isolcpus",
        area: Area::Isolation,
        why: "On a CPU open to every task, the scheduler may put another one in front of a busy reader for milliseconds.",
        examine: isolcpus,
    },
    Check {
        id: "nohz-full",
        area: Area::Isolation,
        why: "The tick interrupts a busy reader 100 to 1000 times a second, some microseconds each.",
        examine: nohz_full,
    },
    Check {
        id: "rcu-nocbs",
        area: Area::Isolation,
        why: "RCU callbacks run in bursts on the CPU that queued them, unless they are offloaded.",
        examine: rcu_nocbs,
    },
    Check {
        id: "irq-affinity",
        area: Area::Isolation,
        why: "Each device interrupt stops the reader for its handler and pushes its data out of the cache.",
        examine: irq_affinity,
    },
    Check {
        id: "irqbalance",
        area: Area::Isolation,
        why: "irqbalance moves interrupts back onto quiet CPUs every ten seconds and undoes pinning done by hand.",
        examine: irqbalance,
    },
    Check {
        id: "workqueues",
        area: Area::Isolation,
        why: "Unbound kernel work (writeback, drivers) runs on any CPU of this mask and preempts a reader there.",
        examine: workqueues,
    },
    Check {
        id: "smt-siblings",
        area: Area::Isolation,
        why: "Two hardware threads share one core's caches and execution units, so each stalls the other.",
        examine: smt_siblings,
    },
];

fn isolcpus(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let mut isolated = p.cpu_list("/sys/devices/system/cpu/isolated")?;
    if let Some(partitions) = p.optional("/sys/fs/cgroup/cpuset.cpus.isolated") {
        isolated = isolated.or(&partitions.parse().unwrap_or_default());
    }
    let open = p.cpus()?.minus(&isolated);
    if open.is_empty() {
        return Ok(Verdict::pass(format!("CPUs {isolated} are isolated")));
    }
    let says = match isolated.is_empty() {
        true => "no CPU is isolated from other tasks".to_owned(),
        false => format!("CPUs {open} are open to other tasks, {isolated} are not"),
    };
    Ok(Verdict::warn(says, Mend::boot(&format!("isolcpus=managed_irq,domain,{}", p.candidates()?))))
}

fn nohz_full(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/sys/devices/system/cpu/nohz_full";
    let parameter = format!("nohz_full={}", p.candidates()?);
    // A kernel that was built without the feature has no such file. The file with the online CPUs was read above from the same directory,
    // so a missing directory is not the cause.
    if !p.exists(PATH) {
        p.note(PATH, "missing");
        let mend = Mend::new(
            "grep NO_HZ_FULL /boot/config-*",
            format!("boot a kernel that has CONFIG_NO_HZ_FULL=y, with the parameter {parameter}"),
        );
        return Ok(Verdict::warn("this kernel is built without nohz_full", mend));
    }
    let silent = p.cpu_list(PATH)?;
    let ticking = p.cpus()?.minus(&silent);
    if ticking.is_empty() {
        return Ok(Verdict::pass(format!("the tick is off on busy CPUs {silent}")));
    }
    Ok(Verdict::warn(format!("the tick runs on CPUs {ticking}"), Mend::boot(&parameter)))
}

fn rcu_nocbs(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let parameter = p.boot_parameter("rcu_nocbs")?;
    let online = p.online()?;
    let mut offloaded = match parameter.as_deref() {
        None => CpuList::default(),
        // The kernel takes "all" for all CPUs, and "N" for the highest.
        Some("all" | "") => online,
        Some(list) => {
            let highest = online.iter().max().unwrap_or(0).to_string();
            list.replace('N', &highest)
                .parse()
                .map_err(|_| malformed("/proc/cmdline", list, "a list of CPUs"))?
        }
    };
    // By default, the kernel offloads the RCU work of nohz_full CPUs.
    if let Some(silent) = p.optional("/sys/devices/system/cpu/nohz_full") {
        offloaded = offloaded.or(&silent.parse().unwrap_or_default());
    }
    let loaded = p.cpus()?.minus(&offloaded);
    if loaded.is_empty() {
        return Ok(Verdict::pass(format!("RCU callbacks of CPUs {offloaded} run elsewhere")));
    }
    let mend = Mend::boot(&format!("rcu_nocbs={}", p.candidates()?));
    Ok(Verdict::warn(format!("RCU callbacks run on CPUs {loaded}"), mend))
}

fn irq_affinity(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/interrupts";
    let cpus = p.cpus()?;
    let table = p.quiet(PATH)?;
    let irqs: Vec<u32> =
        table.lines().filter_map(|line| line.split_once(':')?.0.trim().parse().ok()).collect();
    if irqs.is_empty() {
        return Err(malformed(PATH, &table, "a table of interrupts"));
    }
    let mut taken = CpuList::default();
    let mut hitting = Vec::new();
    for irq in &irqs {
        let dir = format!("/proc/irq/{irq}");
        // effective_affinity_list has the CPUs on which the interrupt really fires. smp_affinity_list has all permitted CPUs. Old kernels
        // have only smp_affinity_list.
        let path = if p.exists(&format!("{dir}/effective_affinity_list")) {
            "effective_affinity_list"
        } else {
            "smp_affinity_list"
        };
        let text = p.quiet(&format!("{dir}/{path}"))?;
        let targets: CpuList =
            text.parse().map_err(|_| malformed(&format!("{dir}/{path}"), &text, "a list of CPUs"))?;
        if !targets.and(&cpus).is_empty() {
            hitting.push(irq.to_string());
        }
        taken = taken.or(&targets.and(&cpus));
    }
    p.note(
        "/proc/irq/*/effective_affinity_list",
        format!("{} of {} interrupts on CPUs {taken}", hitting.len(), irqs.len()),
    );
    let quiet = cpus.minus(&taken);
    if hitting.is_empty() || (!p.set_aside() && !quiet.is_empty()) {
        return Ok(Verdict::pass(format!("CPUs {quiet} take no device interrupts")));
    }
    let housekeeping = p.housekeeping()?;
    let mend = Mend::new(
        format!("for i in /proc/irq/[0-9]*; do echo {housekeeping} >$i/smp_affinity_list; done 2>/dev/null"),
        format!(
            "kernel parameters irqaffinity={housekeeping} isolcpus=managed_irq,domain,{}",
            p.candidates()?
        ),
    );
    Ok(Verdict::warn(
        format!("{} of {} device interrupts go to CPUs {taken}", hitting.len(), irqs.len()),
        mend,
    ))
}

fn irqbalance(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let processes: Vec<String> =
        p.names("/proc")?.into_iter().filter(|name| name.parse::<u32>().is_ok()).collect();
    // A process might end before its name is read. If no name at all can be read, the result is unknown.
    let mut named = 0;
    let mut running = None;
    for process in processes {
        let path = format!("/proc/{process}/comm");
        if let Some(name) = p.one_of_many(&path) {
            named += 1;
            if name == "irqbalance" {
                running = Some(path);
            }
        }
    }
    if named == 0 {
        return Err(Unread::Missing { path: "/proc/[0-9]*/comm".into() });
    }
    let Some(path) = running else {
        p.note("/proc/*/comm", format!("{named} processes, no irqbalance"));
        return Ok(Verdict::pass("irqbalance is not running"));
    };
    p.note(path, "irqbalance");
    let mut spared: CpuList =
        p.optional("/sys/devices/system/cpu/isolated").and_then(|list| list.parse().ok()).unwrap_or_default();
    for path in ["/etc/default/irqbalance", "/etc/sysconfig/irqbalance"] {
        if let Some(settings) = p.one_of_many(path) {
            let banned =
                settings.lines().find_map(|line| line.trim().strip_prefix("IRQBALANCE_BANNED_CPULIST="));
            p.note(
                path,
                banned.map_or("no IRQBALANCE_BANNED_CPULIST", |_| "IRQBALANCE_BANNED_CPULIST is set"),
            );
            spared = banned
                .and_then(|list| list.trim_matches('"').parse().ok())
                .map_or(spared.clone(), |list| spared.or(&list));
        }
    }
    let exposed = p.cpus()?.minus(&spared);
    if exposed.is_empty() {
        return Ok(Verdict::pass(format!("irqbalance runs and spares CPUs {spared}")));
    }
    let mend = Mend::new("systemctl disable --now irqbalance", "kept by that command");
    Ok(Verdict::warn(format!("irqbalance may move interrupts onto CPUs {exposed}"), mend))
}

fn workqueues(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/sys/devices/virtual/workqueue/cpumask";
    let text = p.text(PATH)?;
    let mask = CpuList::from_mask(&text).map_err(|_| malformed(PATH, &text, "a mask of CPUs"))?;
    let cpus = p.cpus()?;
    let shared = cpus.and(&mask);
    let free = cpus.minus(&mask);
    if shared.is_empty() || (!p.set_aside() && !free.is_empty()) {
        return Ok(Verdict::pass(format!("kernel work stays off CPUs {free}")));
    }
    let mend = Mend::sysfs(PATH, p.housekeeping()?.to_mask());
    Ok(Verdict::warn(format!("unbound kernel work may run on CPUs {shared}"), mend))
}

fn smt_siblings(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let online = p.online()?;
    let mut shared = CpuList::default();
    for (text, cpus) in p.per_cpu("topology/thread_siblings_list")? {
        let siblings: CpuList = text
            .parse()
            .map_err(|_| malformed("/sys/devices/system/cpu/cpu*/topology", &text, "a list of CPUs"))?;
        if siblings.is_empty() {
            return Err(malformed("/sys/devices/system/cpu/cpu*/topology", &text, "a list of CPUs"));
        }
        if siblings.and(&online).count() > 1 {
            shared = shared.or(&cpus);
        }
    }
    if shared.is_empty() {
        return Ok(Verdict::pass("each judged CPU has its core to itself"));
    }
    let control = "/sys/devices/system/cpu/smt/control";
    let mend = Mend::new(format!("echo off >{control}"), "kernel parameter nosmt");
    Ok(Verdict::warn(format!("CPUs {shared} share their cores with a sibling"), mend))
}
