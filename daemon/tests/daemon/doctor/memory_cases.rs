//! Cases for the checks of memory and pages.

use super::{
    Case,
    Status::{Fail, Pass, Warn},
    case,
};

const SWAPS: &str = "Filename\tType\tSize\tUsed\tPriority\n";
const SHM: &str = "22 1 0:20 / / rw - ext4 /dev/vda rw\n25 22 0:23 / /dev/shm rw,nosuid shared:4 - tmpfs tmpfs rw,size=1048576k\n";

pub(super) const CASES: &[Case] = &[
    case("swap", "no swap is refused", Pass, "none", &[("/proc/swaps", SWAPS)]),
    case(
        "swap",
        "a device in waiting passes",
        Warn,
        "1 configured",
        &[("/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 4096 0 -2\n")],
    ),
    case(
        "swap",
        "swapped pages are only a warning",
        Fail,
        "2 MiB in use on 2",
        &[(
            "/proc/swaps",
            "Filename Type Size Used Priority\n/dev/sda2 partition 4096 1024 -2\n/file file 4096 1024 -3\n",
        )],
    ),
    case(
        "free-memory",
        "plenty is refused",
        Pass,
        "15.3 GiB",
        &[("/proc/meminfo", "MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\n")],
    ),
    case(
        "free-memory",
        "little passes",
        Warn,
        "available",
        &[("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 149 kB\n")],
    ),
    case(
        "free-memory",
        "none left is only a warning",
        Fail,
        "available",
        &[("/proc/meminfo", "MemTotal: 1000 kB\nMemAvailable: 49 kB\n")],
    ),
    case(
        "memory-pressure",
        "calm is refused",
        Pass,
        "no task",
        &[(
            "/proc/pressure/memory",
            "some avg10=9.00 avg60=1.00 avg300=0.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        )],
    ),
    case(
        "memory-pressure",
        "one waiting task passes",
        Warn,
        "0.2 %",
        &[(
            "/proc/pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=0.20 total=7\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n",
        )],
    ),
    case(
        "memory-pressure",
        "a standstill is only a warning",
        Fail,
        "1.5 %",
        &[(
            "/proc/pressure/memory",
            "some avg10=0.00 avg60=0.00 avg300=2.00 total=7\nfull avg10=0.00 avg60=0.00 avg300=1.50 total=5\n",
        )],
    ),
    case("ksm", "off and unmerged is refused", Pass, "off", &[("/sys/kernel/mm/ksm/run", "2")]),
    case("ksm", "merging passes", Warn, "merging", &[("/sys/kernel/mm/ksm/run", "1")]),
    case(
        "compaction",
        "off is refused",
        Pass,
        "on demand",
        &[("/proc/sys/vm/compaction_proactiveness", "0")],
    ),
    case(
        "compaction",
        "the default passes",
        Warn,
        "level 20",
        &[("/proc/sys/vm/compaction_proactiveness", "20")],
    ),
    case(
        "compact-locked",
        "off is refused",
        Pass,
        "stay",
        &[("/proc/sys/vm/compact_unevictable_allowed", "0")],
    ),
    case(
        "compact-locked",
        "moved locked pages pass",
        Warn,
        "moved",
        &[("/proc/sys/vm/compact_unevictable_allowed", "1")],
    ),
    case(
        "dirty-writeback",
        "a byte limit is ignored",
        Pass,
        "256 MiB",
        &[
            ("/proc/sys/vm/dirty_writeback_centisecs", "500"),
            ("/proc/sys/vm/dirty_background_bytes", "268435456"),
        ],
    ),
    case(
        "dirty-writeback",
        "a tenth of a large memory passes",
        Warn,
        "only at 19.1 GiB",
        &[
            ("/proc/sys/vm/dirty_writeback_centisecs", "500"),
            ("/proc/sys/vm/dirty_background_bytes", "0"),
            ("/proc/sys/vm/dirty_background_ratio", "10"),
            ("/proc/meminfo", "MemAvailable: 200000000 kB\n"),
        ],
    ),
    case(
        "dirty-writeback",
        "no periodic writing passes",
        Warn,
        "off",
        &[("/proc/sys/vm/dirty_writeback_centisecs", "0")],
    ),
    case(
        "stat-interval",
        "a long interval is refused",
        Pass,
        "every 60 s",
        &[("/proc/sys/vm/stat_interval", "60")],
    ),
    case("stat-interval", "the default passes", Warn, "every 1 s", &[("/proc/sys/vm/stat_interval", "1")]),
    case(
        "thp",
        "madvise is refused",
        Pass,
        "madvise",
        &[("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")],
    ),
    case(
        "thp",
        "always passes",
        Warn,
        "always",
        &[("/sys/kernel/mm/transparent_hugepage/enabled", "[always] madvise never")],
    ),
    case(
        "thp-defrag",
        "defer is refused",
        Pass,
        "defer+madvise",
        &[("/sys/kernel/mm/transparent_hugepage/defrag", "always defer [defer+madvise] madvise never")],
    ),
    case(
        "thp-defrag",
        "always passes",
        Warn,
        "always",
        &[("/sys/kernel/mm/transparent_hugepage/defrag", "[always] defer defer+madvise madvise never")],
    ),
    case(
        "thp-shmem",
        "the default is taken for small pages, though rings collapse theirs",
        Pass,
        "never: rings collapse their pages",
        &[
            ("/proc/sys/kernel/osrelease", "6.12.0"),
            (
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise [never] deny force",
            ),
        ],
    ),
    case(
        "thp-shmem",
        "a refusal to all passes",
        Warn,
        "deny: rings have 4 KiB pages",
        &[
            ("/proc/sys/kernel/osrelease", "6.12.0"),
            (
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise never [deny] force",
            ),
        ],
    ),
    case(
        "thp-shmem",
        "a kernel that collapses nothing passes",
        Warn,
        "4 KiB pages, as this kernel",
        &[
            ("/proc/sys/kernel/osrelease", "6.0.1"),
            (
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size advise [never] deny force",
            ),
        ],
    ),
    case(
        "thp-shmem",
        "advice that rings do not give is taken for huge pages",
        Warn,
        "4 KiB pages, as this kernel",
        &[
            ("/proc/sys/kernel/osrelease", "6.0.1"),
            (
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always within_size [advise] never deny force",
            ),
        ],
    ),
    case(
        "thp-shmem",
        "huge pages at the first touch are refused",
        Pass,
        "within_size",
        &[
            ("/proc/sys/kernel/osrelease", "6.0.1"),
            (
                "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
                "always [within_size] advise never deny force",
            ),
        ],
    ),
    case("dev-shm", "a roomy one is refused", Pass, "1.0 GiB", &[("/proc/self/mountinfo", SHM)]),
    case(
        "dev-shm",
        "a size left to the default is unknown",
        Pass,
        "1.9 GiB",
        &[
            ("/proc/self/mountinfo", "25 22 0:23 / /dev/shm rw - tmpfs tmpfs rw\n"),
            ("/proc/meminfo", "MemTotal: 4000000 kB\n"),
        ],
    ),
    case(
        "dev-shm",
        "a container's 64 MiB passes",
        Fail,
        "64 MiB",
        &[("/proc/self/mountinfo", "25 22 0:23 / /dev/shm rw - tmpfs shm rw,size=65536k\n")],
    ),
    case(
        "dev-shm",
        "a middling one passes",
        Warn,
        "256 MiB",
        &[("/proc/self/mountinfo", "25 22 0:23 / /dev/shm rw - tmpfs shm rw,size=262144k\n")],
    ),
    case(
        "dev-shm",
        "a mount hidden by a later one counts",
        Fail,
        "read-only",
        &[(
            "/proc/self/mountinfo",
            "25 22 0:23 / /dev/shm rw - tmpfs a rw,size=1048576k\n26 25 0:24 / /dev/shm ro - tmpfs b rw,size=1048576k\n",
        )],
    ),
    case(
        "dev-shm",
        "a disk in its place passes",
        Fail,
        "is ext4",
        &[("/proc/self/mountinfo", "25 22 0:23 / /dev/shm rw - ext4 /dev/vdb rw\n")],
    ),
    case(
        "dev-shm",
        "its absence is unknown",
        Fail,
        "not mounted",
        &[("/proc/self/mountinfo", "22 1 0:20 / / rw - ext4 /dev/vda rw\n")],
    ),
];
