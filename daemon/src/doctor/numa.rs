//! Checks of memory nodes, and of the kernel's moves of pages between them.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    probe::Probe,
    root::malformed,
};
use crate::cpu_list::CpuList;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "numa-span",
        area: Area::Numa,
        why: "A cache line that crosses sockets takes two to three times as long as one that does not.",
        examine: numa_span,
    },
    Check {
        id: "numa-balancing",
        area: Area::Numa,
        why: "Automatic balancing unmaps pages to see who faults on them: each sample is a stall.",
        examine: numa_balancing,
    },
    Check {
        id: "zone-reclaim",
        area: Area::Numa,
        why: "With zone reclaim an allocation frees pages of its own node first, although another has plenty.",
        examine: zone_reclaim,
    },
];

const NODES: &str = "/sys/devices/system/node/online";

/// Returns the online memory nodes. The kernel writes them in the same form as CPUs.
fn nodes(p: &mut Probe<'_>) -> Result<CpuList, Unread> {
    let nodes = p.cpu_list(NODES)?;
    if nodes.is_empty() { Err(malformed(NODES, "", "a list of memory nodes")) } else { Ok(nodes) }
}

fn numa_span(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let cpus = p.cpus()?;
    let mut largest = (String::new(), CpuList::default());
    let mut spanned = 0;
    for node in nodes(p)?.iter() {
        let here = p.cpu_list(&format!("/sys/devices/system/node/node{node}/cpulist"))?.and(&cpus);
        spanned += usize::from(!here.is_empty());
        if here.count() > largest.1.count() {
            largest = (node.to_string(), here);
        }
    }
    let (node, here) = largest;
    Ok(match spanned {
        0 => Verdict::unknown(format!("CPUs {cpus} belong to no memory node")),
        1 => Verdict::pass(format!("CPUs {cpus} are on node {node}")),
        _ => {
            let mend = Mend::new(
                format!("numactl --cpunodebind={node} --membind={node} COMMAND"),
                format!(
                    "systemd: CPUAffinity={here} NUMAPolicy=bind NUMAMask={node}; a channel's numa_node = {node}"
                ),
            );
            Verdict::warn(format!("CPUs {cpus} span {spanned} nodes"), mend)
        }
    })
}

fn numa_balancing(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let nodes = nodes(p)?;
    let mode: u32 = p.number("/proc/sys/kernel/numa_balancing")?;
    Ok(match (mode, nodes.count()) {
        (0, _) => Verdict::pass("off"),
        (_, 1) => Verdict::pass("on, but there is one node only"),
        (mode, count) => {
            Verdict::warn(format!("mode {mode} over {count} nodes"), Mend::sysctl("kernel.numa_balancing", 0))
        }
    })
}

fn zone_reclaim(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    match p.number("/proc/sys/vm/zone_reclaim_mode")? {
        0_u32 => Ok(Verdict::pass("off")),
        mode => Ok(Verdict::warn(format!("mode {mode}"), Mend::sysctl("vm.zone_reclaim_mode", 0))),
    }
}
