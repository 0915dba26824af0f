//! Cases for the checks of isolation and power.

use super::{
    Case,
    Status::{Fail, Pass, Unknown, Warn},
    case,
};

const IRQS: &str =
    "     CPU0 CPU1\n 24: 1 0 IO-APIC 5-edge acpi\n 25: 0 9 PCI-MSIX eth0-rx\nNMI: 0 0 Non-maskable\n";

pub(super) const CASES: &[Case] = &[
    case(
        "isolcpus",
        "isolated CPUs go unseen",
        Pass,
        "CPUs 1 are isolated",
        &[("/sys/devices/system/cpu/isolated", "1\n")],
    ),
    case(
        "isolcpus",
        "a runtime partition goes unseen",
        Pass,
        "CPUs 1 are",
        &[("/sys/devices/system/cpu/isolated", "\n"), ("/sys/fs/cgroup/cpuset.cpus.isolated", "1\n")],
    ),
    case(
        "isolcpus",
        "nothing isolated passes",
        Warn,
        "no CPU is isolated",
        &[("/sys/devices/system/cpu/isolated", "\n")],
    ),
    case(
        "isolcpus",
        "the wrong CPU is isolated",
        Warn,
        "CPUs 0 are open",
        &[("/sys/devices/system/cpu/isolated", "1\n")],
    )
    .on("0-1"),
    case(
        "nohz-full",
        "silent CPUs go unseen",
        Pass,
        "off on busy CPUs 1",
        &[("/sys/devices/system/cpu/nohz_full", "1")],
    )
    .on("1"),
    case(
        "nohz-full",
        "the empty set is taken for all",
        Warn,
        "runs on CPUs 0-1",
        &[("/sys/devices/system/cpu/nohz_full", "(null)")],
    ),
    case("nohz-full", "a kernel without it is unknown", Warn, "built without", &[]),
    case(
        "rcu-nocbs",
        "the last CPU's name N is not understood",
        Pass,
        "CPUs 1 run elsewhere",
        &[("/proc/cmdline", "quiet rcu_nocbs=1-N")],
    )
    .on("1"),
    case("rcu-nocbs", "all is not understood", Pass, "elsewhere", &[("/proc/cmdline", "rcu_nocbs=all")]),
    case(
        "rcu-nocbs",
        "nohz_full does not count",
        Pass,
        "elsewhere",
        &[("/sys/devices/system/cpu/nohz_full", "1")],
    )
    .on("1"),
    case(
        "rcu-nocbs",
        "another parameter is taken for it",
        Warn,
        "on CPUs 0-1",
        &[("/proc/cmdline", "rcu_nocbs_x=all norcu_nocbs=all")],
    ),
    case("rcu-nocbs", "a typo passes", Unknown, "not a list of CPUs", &[("/proc/cmdline", "rcu_nocbs=one")]),
    case(
        "irq-affinity",
        "a quiet CPU goes unseen",
        Pass,
        "CPUs 1 take no",
        &[
            ("/proc/interrupts", IRQS),
            ("/proc/irq/24/smp_affinity_list", "0-1"),
            ("/proc/irq/24/effective_affinity_list", "0"),
            ("/proc/irq/25/effective_affinity_list", "0"),
        ],
    ),
    case(
        "irq-affinity",
        "one interrupt on the reader's CPU passes",
        Warn,
        "1 of 2 device interrupts go to CPUs 1",
        &[
            ("/proc/interrupts", IRQS),
            ("/proc/irq/24/effective_affinity_list", "0"),
            ("/proc/irq/25/effective_affinity_list", "1"),
        ],
    )
    .on("1"),
    case(
        "irq-affinity",
        "an old kernel's list is ignored",
        Warn,
        "2 of 2",
        &[
            ("/proc/interrupts", IRQS),
            ("/proc/irq/24/smp_affinity_list", "0-1"),
            ("/proc/irq/25/smp_affinity_list", "0-1"),
        ],
    ),
    case(
        "irqbalance",
        "it is seen where it is not",
        Pass,
        "not running",
        &[("/proc/7/comm", "irqbalance-ui\n")],
    ),
    case(
        "irqbalance",
        "it runs unseen",
        Warn,
        "onto CPUs 0-1",
        &[("/proc/7/comm", "irqbalance\n"), ("/proc/1/comm", "systemd")],
    ),
    case(
        "irqbalance",
        "a ban list that covers all is ignored",
        Pass,
        "spares CPUs 1",
        &[
            ("/proc/7/comm", "irqbalance\n"),
            ("/etc/default/irqbalance", "#x\nIRQBALANCE_BANNED_CPULIST=\"1\"\n"),
        ],
    )
    .on("1"),
    case(
        "irqbalance",
        "a ban list that is too short passes",
        Warn,
        "onto CPUs 0",
        &[("/proc/7/comm", "irqbalance\n"), ("/etc/default/irqbalance", "IRQBALANCE_BANNED_CPULIST=1\n")],
    )
    .on("0-1"),
    case(
        "workqueues",
        "a mask is read as decimal",
        Pass,
        "off CPUs 1",
        &[("/sys/devices/virtual/workqueue/cpumask", "00000001\n")],
    )
    .on("1"),
    case(
        "workqueues",
        "work on the reader's CPU passes",
        Warn,
        "run on CPUs 1",
        &[("/sys/devices/virtual/workqueue/cpumask", "3\n")],
    )
    .on("1"),
    case(
        "smt-siblings",
        "whole cores are called shared",
        Pass,
        "to itself",
        &[
            ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0"),
            ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1"),
        ],
    ),
    case(
        "smt-siblings",
        "an offline sibling counts",
        Pass,
        "to itself",
        &[
            ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0,2"),
            ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "1,3"),
        ],
    ),
    case(
        "smt-siblings",
        "a shared core passes",
        Warn,
        "CPUs 0-1 share",
        &[
            ("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list", "0-1"),
            ("/sys/devices/system/cpu/cpu1/topology/thread_siblings_list", "0-1"),
        ],
    ),
    case(
        "governor",
        "full speed is not recognised",
        Pass,
        "performance",
        &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "performance\n"),
        ],
    ),
    case(
        "governor",
        "one slow CPU among fast ones passes",
        Warn,
        "\"schedutil\" on CPUs 1",
        &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "performance\n"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "schedutil\n"),
        ],
    ),
    case(
        "governor",
        "the floor of the clock is only a warning",
        Fail,
        "powersave",
        &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"),
        ],
    ),
    case(
        "governor",
        "intel_pstate's powersave is taken for the floor",
        Warn,
        "powersave",
        &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave"),
            ("/sys/devices/system/cpu/intel_pstate/no_turbo", "0"),
        ],
    ),
    case(
        "energy-preference",
        "performance is not recognised",
        Pass,
        "performance",
        &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "performance"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference", "0"),
        ],
    ),
    case(
        "energy-preference",
        "saving energy passes",
        Warn,
        "balance_performance",
        &[
            ("/sys/devices/system/cpu/cpu0/cpufreq/energy_performance_preference", "balance_performance"),
            ("/sys/devices/system/cpu/cpu1/cpufreq/energy_performance_preference", "performance"),
        ],
    ),
    case(
        "turbo",
        "Intel's negated file is read straight",
        Pass,
        "on",
        &[("/sys/devices/system/cpu/intel_pstate/no_turbo", "0")],
    ),
    case(
        "turbo",
        "Intel's negated file is read straight",
        Warn,
        "off",
        &[("/sys/devices/system/cpu/intel_pstate/no_turbo", "1")],
    ),
    case(
        "turbo",
        "the other drivers' file is read negated",
        Pass,
        "on",
        &[("/sys/devices/system/cpu/cpufreq/boost", "1")],
    ),
    case(
        "turbo",
        "the other drivers' file is read negated",
        Warn,
        "off",
        &[("/sys/devices/system/cpu/cpufreq/boost", "0")],
    ),
    case(
        "c-states",
        "a deep state passes",
        Warn,
        "waking from C6 takes 133 us",
        &[
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/latency", "0"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/name", "POLL"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state0/disable", "0"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "133"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C6"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "0"),
        ],
    )
    .on("0"),
    case(
        "c-states",
        "a disabled state counts",
        Pass,
        "at most 2 us",
        &[
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/latency", "2"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/name", "C1"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "133"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C6"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "1"),
        ],
    )
    .on("0"),
    case(
        "c-states",
        "a request for low latency is ignored",
        Pass,
        "at most 0 us",
        &[
            ("/dev/cpu_dma_latency", "\0\0\0\0"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/latency", "133"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/name", "C6"),
            ("/sys/devices/system/cpu/cpu0/cpuidle/state3/disable", "0"),
        ],
    )
    .on("0"),
    case(
        "thermal-throttle",
        "cool cores are called hot",
        Pass,
        "no core",
        &[
            ("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "0"),
            ("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "0"),
        ],
    ),
    case(
        "thermal-throttle",
        "one hot core passes",
        Warn,
        "1 CPUs were",
        &[
            ("/sys/devices/system/cpu/cpu0/thermal_throttle/core_throttle_count", "0"),
            ("/sys/devices/system/cpu/cpu1/thermal_throttle/core_throttle_count", "17"),
        ],
    ),
    case(
        "pcie-aspm",
        "powered links are called sleepy",
        Pass,
        "powered",
        &[("/sys/module/pcie_aspm/parameters/policy", "default [performance] powersave powersupersave")],
    ),
    case(
        "pcie-aspm",
        "the firmware's choice passes",
        Warn,
        "default",
        &[("/sys/module/pcie_aspm/parameters/policy", "[default] performance powersave powersupersave")],
    ),
];
