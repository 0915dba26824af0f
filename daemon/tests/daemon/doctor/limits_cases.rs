//! Cases for the checks of NUMA and limits.

use super::{
    Case,
    Status::{Fail, Pass, Unknown, Warn},
    case,
};

const LIMITS: &str = "Limit Soft Hard Units\nMax open files            1024  4096  files\nMax locked memory         8388608  8388608  bytes\nMax realtime priority     0  0\n";
const LIMITS_WIDE: &str = "Max open files            65536  65536  files\nMax locked memory         unlimited  unlimited  bytes\nMax realtime priority     90  90\n";
const LIMITS_TIGHT: &str =
    "Max open files            64  64  files\nMax locked memory         134217728  134217728  bytes\n";

pub(super) const CASES: &[Case] = &[
    case(
        "numa-span",
        "one node is refused",
        Pass,
        "on node 0",
        &[("/sys/devices/system/node/online", "0"), ("/sys/devices/system/node/node0/cpulist", "0-1")],
    ),
    case(
        "numa-span",
        "two sockets pass",
        Warn,
        "span 2 nodes",
        &[
            ("/sys/devices/system/node/online", "0-1"),
            ("/sys/devices/system/node/node0/cpulist", "0"),
            ("/sys/devices/system/node/node1/cpulist", "1"),
        ],
    ),
    case(
        "numa-span",
        "CPUs of one node of two are feared",
        Pass,
        "on node 1",
        &[
            ("/sys/devices/system/node/online", "0-1"),
            ("/sys/devices/system/node/node0/cpulist", "0"),
            ("/sys/devices/system/node/node1/cpulist", "1"),
        ],
    )
    .on("1"),
    case(
        "numa-span",
        "CPUs of no node pass",
        Unknown,
        "no memory node",
        &[("/sys/devices/system/node/online", "0"), ("/sys/devices/system/node/node0/cpulist", "8-9")],
    ),
    case(
        "numa-balancing",
        "off is refused",
        Pass,
        "off",
        &[("/sys/devices/system/node/online", "0-1"), ("/proc/sys/kernel/numa_balancing", "0")],
    ),
    case(
        "numa-balancing",
        "one node is feared",
        Pass,
        "one node only",
        &[("/sys/devices/system/node/online", "0"), ("/proc/sys/kernel/numa_balancing", "1")],
    ),
    case(
        "numa-balancing",
        "on over two nodes passes",
        Warn,
        "over 2 nodes",
        &[("/sys/devices/system/node/online", "0-1"), ("/proc/sys/kernel/numa_balancing", "1")],
    ),
    case("zone-reclaim", "off is refused", Pass, "off", &[("/proc/sys/vm/zone_reclaim_mode", "0")]),
    case("zone-reclaim", "on passes", Warn, "mode 1", &[("/proc/sys/vm/zone_reclaim_mode", "1")]),
    case("memlock", "unlimited is refused", Pass, "unlimited", &[("/proc/self/limits", LIMITS_WIDE)]),
    case(
        "memlock",
        "the default of 8 MiB passes, or is taken for the end of the ring, which goes on without a lock",
        Warn,
        "8 MiB: rings are not locked",
        &[("/proc/self/limits", LIMITS), ("/proc/self/status", "CapEff:\t0000000000000000\n")],
    ),
    case(
        "memlock",
        "room for one ring passes",
        Warn,
        "128 MiB: some rings are not locked",
        &[("/proc/self/limits", LIMITS_TIGHT)],
    ),
    case(
        "memlock",
        "a capability that lifts it is ignored",
        Pass,
        "CAP_IPC_LOCK",
        &[("/proc/self/limits", LIMITS), ("/proc/self/status", "CapEff:\t0000000000004000\n")],
    ),
    case("rtprio", "a right to priority is refused", Pass, "up to 90", &[("/proc/self/limits", LIMITS_WIDE)]),
    case(
        "rtprio",
        "the wrong capability counts",
        Warn,
        "no real-time priority",
        &[("/proc/self/limits", LIMITS), ("/proc/self/status", "CapEff:\t0000000000004000\n")],
    ),
    case(
        "rtprio",
        "a capability that lifts it is ignored",
        Pass,
        "CAP_SYS_NICE",
        &[("/proc/self/limits", LIMITS), ("/proc/self/status", "CapEff:\t0000000000800000\n")],
    ),
    case("open-files", "plenty is refused", Pass, "65536", &[("/proc/self/limits", LIMITS_WIDE)]),
    case("open-files", "the hard limit is read", Warn, "1024", &[("/proc/self/limits", LIMITS)]),
    case("open-files", "too few is only a warning", Fail, "64", &[("/proc/self/limits", LIMITS_TIGHT)]),
    case(
        "cpu-count",
        "enough is refused",
        Pass,
        "8 CPUs",
        &[("/proc/self/status", "Cpus_allowed:\tff\nCpus_allowed_list:\t0-7\n")],
    ),
    case("cpu-count", "two pass", Warn, "2 CPUs", &[("/proc/self/status", "Cpus_allowed_list:\t0-1\n")])
        .mended_by("--wait yield"),
    case(
        "cpu-count",
        "one is only a warning",
        Fail,
        "CPU 5 only",
        &[("/sys/devices/system/cpu/online", "0-5"), ("/proc/self/status", "Cpus_allowed_list:\t5\n")],
    )
    .mended_by("taskset -cp 0-5 $$"),
    case(
        "cpu-quota",
        "the top group is unknown",
        Pass,
        "no quota",
        &[("/proc/self/cgroup", "0::/\n"), ("/sys/fs/cgroup/cgroup.controllers", "cpu memory")],
    ),
    case(
        "cpu-quota",
        "max is taken for a number",
        Pass,
        "no quota",
        &[("/proc/self/cgroup", "0::/a/b\n"), ("/sys/fs/cgroup/a/b/cpu.max", "max 100000")],
    ),
    case(
        "cpu-quota",
        "a parent's quota is overlooked",
        Fail,
        "50000 us",
        &[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/cpu.max", "50000 100000"),
            ("/sys/fs/cgroup/a/b/cpu.max", "max 100000"),
        ],
    ),
    case(
        "cpu-quota",
        "version 1 is overlooked",
        Fail,
        "20000 us",
        &[
            ("/proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/y\n0::/\n"),
            ("/sys/fs/cgroup/cpu/y/cpu.cfs_quota_us", "20000"),
        ],
    ),
    case(
        "memory-max",
        "version 1's none is taken for a limit",
        Pass,
        "no limit",
        &[
            ("/proc/self/cgroup", "4:memory:/x\n"),
            ("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "9223372036854771712"),
        ],
    ),
    case(
        "memory-max",
        "the looser of two limits is shown",
        Warn,
        "512 MiB",
        &[
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/memory.max", "536870912"),
            ("/sys/fs/cgroup/a/b/memory.max", "1073741824"),
        ],
    ),
];
