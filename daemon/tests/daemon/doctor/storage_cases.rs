//! Cases for the checks of disks with journals.

use super::{
    Case,
    Status::{Fail, Pass, Unknown, Warn},
    case,
};

const MOUNTS: &str = "/proc/self/mounts";
const CONFIG: &str = "/etc/shmcast/shmcast.toml";
const ON_DISK: &str = "/dev/nvme0n1p2 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\n";
const JOURNAL: &str = "[[channel]]\nname = \"a\"\ncapacity = \"1MiB\"\njournal = { dir = \"/data/a\" }\n";
const NO_JOURNAL: &str = "[[channel]]\nname = \"a\"\ncapacity = \"1MiB\"\n";

pub(super) const CASES: &[Case] = &[
    case("journal-fs", "a disk is refused", Pass, "ext4", &[(MOUNTS, ON_DISK)]),
    case(
        "journal-fs",
        "a configuration without journals is refused",
        Pass,
        "ext4",
        &[(MOUNTS, ON_DISK), (CONFIG, NO_JOURNAL)],
    ),
    case(
        "journal-fs",
        "the directory of a channel is not looked at",
        Fail,
        "/data/a is in memory (tmpfs)",
        &[(MOUNTS, "/dev/sda1 / ext4 rw 0 0\ntmpfs /data tmpfs rw 0 0\n"), (CONFIG, JOURNAL)],
    )
    .mended_by("journal.dir"),
    case(
        "journal-fs",
        "a mount point of a like name is taken",
        Pass,
        "ext4",
        &[(MOUNTS, "/dev/sda1 / ext4 rw 0 0\ntmpfs /dat tmpfs rw 0 0\n"), (CONFIG, JOURNAL)],
    ),
    case(
        "journal-fs",
        "another host's disk passes",
        Warn,
        "is on nfs4",
        &[(MOUNTS, "/dev/sda1 / ext4 rw 0 0\nserver:/x /var/lib nfs4 rw 0 0\n")],
    ),
    case(
        "journal-fs",
        "a program's file system passes",
        Warn,
        "is on fuse.sshfs",
        &[(MOUNTS, "/dev/sda1 / ext4 rw 0 0\nx /var/lib fuse.sshfs rw 0 0\n")],
    ),
    case(
        "journal-fs",
        "a configuration that cannot be read is passed over",
        Unknown,
        "shmcast.toml holds",
        &[(MOUNTS, ON_DISK), (CONFIG, "[[channel]]\nnam = 1\n")],
    ),
    case(
        "journal-cache",
        "a drive that keeps its word is refused",
        Pass,
        "nvme0n1 has none",
        &[
            (MOUNTS, "/dev/nvme0n1 / ext4 rw 0 0\n"),
            ("/sys/class/block/nvme0n1/queue/write_cache", "write through\n"),
        ],
    ),
    case(
        "journal-cache",
        "a volatile cache passes",
        Warn,
        "sda has a volatile cache",
        &[(MOUNTS, "/dev/sda / ext4 rw 0 0\n"), ("/sys/class/block/sda/queue/write_cache", "write back\n")],
    ),
    case(
        "journal-cache",
        "what is no drive passes",
        Unknown,
        "which is no drive",
        &[(MOUNTS, "overlay / overlay rw 0 0\n")],
    ),
];
