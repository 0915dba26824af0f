//! Checks of page sizes: which pages a ring can get, and how much work the kernel does to make large pages.

use super::{
    Area, Check, Unread,
    finding::{Mend, Verdict},
    kib,
    probe::Probe,
    root::malformed,
};

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "thp",
        area: Area::Memory,
        why: "With always, khugepaged gathers a program's own pages into huge ones and stops it meanwhile. Rings do not need it.",
        examine: thp,
    },
    Check {
        id: "thp-defrag",
        area: Area::Memory,
        why: "With always, any page fault of a program's own memory may stop to compact until a huge page is free.",
        examine: thp_defrag,
    },
    Check {
        id: "thp-shmem",
        area: Area::Memory,
        why: "A daemon's rings, and others on request, have their pages collapsed to 2 MiB: attaching to 4 KiB pages takes longer.",
        examine: thp_shmem,
    },
    Check {
        id: "dev-shm",
        area: Area::Memory,
        why: "A ring held in a file takes its memory here at once, and is refused where it does not fit. A daemon's rings do not count.",
        examine: dev_shm,
    },
];

const THP_DIR: &str = "/sys/kernel/mm/transparent_hugepage";

fn thp(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let path = format!("{THP_DIR}/enabled");
    match p.choice(&path, '[', ']')?.as_str() {
        choice @ ("madvise" | "never") => Ok(Verdict::pass(choice)),
        "always" => {
            let mend = Mend {
                persist: "kernel parameter transparent_hugepage=madvise".into(),
                ..Mend::sysfs(&path, "madvise")
            };
            Ok(Verdict::warn("always", mend))
        }
        other => Err(malformed(&path, other, "always, madvise or never")),
    }
}

fn thp_defrag(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let path = format!("{THP_DIR}/defrag");
    match p.choice(&path, '[', ']')?.as_str() {
        choice @ ("madvise" | "never" | "defer" | "defer+madvise") => Ok(Verdict::pass(choice)),
        "always" => {
            Ok(Verdict::warn("always: a page fault may compact memory", Mend::sysfs(&path, "defer+madvise")))
        }
        other => Err(malformed(&path, other, "a way to defragment")),
    }
}

/// The first kernel version that makes huge pages on a program's request. In this and later versions, only the setting `deny` prevents huge
/// pages.
const COLLAPSES_SINCE: (u32, u32) = (6, 1);

fn thp_shmem(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    let path = format!("{THP_DIR}/shmem_enabled");
    let choice = p.choice(&path, '[', ']')?;
    let can_collapse = p.kernel()? >= COLLAPSES_SINCE;
    match (choice.as_str(), can_collapse) {
        ("deny", _) => Ok(Verdict::warn(
            "deny: rings have 4 KiB pages, whatever they ask for",
            Mend::sysfs(&path, "never"),
        )),
        ("always" | "within_size" | "force", _) => Ok(Verdict::pass(choice)),
        ("never" | "advise", true) => {
            Ok(Verdict::pass(format!("{choice}: rings collapse their pages themselves")))
        }
        ("never" | "advise", false) => {
            let says = format!("{choice}: rings have 4 KiB pages, as this kernel lacks MADV_COLLAPSE");
            Ok(Verdict::warn(says, Mend::sysfs(&path, "within_size")))
        }
        (other, _) => Err(malformed(&path, other, "a way to use huge pages")),
    }
}

/// The memory that a channel with the default capacity needs. A container's /dev/shm has less, 64 MiB, unless it is configured otherwise.
const ONE_RING_KIB: u64 = 74 << 10;
/// Memory of a handful of channels.
const ROOMY_KIB: u64 = 512 << 10;

fn dev_shm(p: &mut Probe<'_>) -> Result<Verdict, Unread> {
    const PATH: &str = "/proc/self/mountinfo";
    let mounts = p.quiet(PATH)?;
    // "ID PARENT MAJ:MIN ROOT POINT OPTIONS [TAGS] - TYPE SOURCE SUPER-OPTIONS". If several lines have the same mount point, the last mount
    // counts.
    let mount = mounts.lines().rev().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        (front.split(' ').nth(4)? == "/dev/shm").then_some((front.split(' ').nth(5)?, back))
    });
    let Some((options, back)) = mount else {
        if mounts.lines().any(|line| line.contains(" / ") && line.contains(" - ")) {
            p.note(PATH, "no /dev/shm");
            let mend = Mend::new(
                "mkdir -p /dev/shm && mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm",
                "/etc/fstab: tmpfs /dev/shm tmpfs nosuid,nodev 0 0",
            );
            return Ok(Verdict::fail("not mounted", mend));
        }
        return Err(malformed(PATH, &mounts, "a table of mounts"));
    };
    p.note(PATH, format!("/dev/shm {options} {back}"));
    let mut fields = back.split(' ');
    let kind = fields.next().unwrap_or_default();
    if kind != "tmpfs" {
        let mend = Mend::new(
            "mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm",
            "/etc/fstab: tmpfs /dev/shm tmpfs nosuid,nodev 0 0",
        );
        return Ok(Verdict::fail(format!("is {kind}, not memory"), mend));
    }
    if options.split(',').any(|option| option == "ro") {
        let mend = Mend::new("mount -o remount,rw /dev/shm", "/etc/fstab: the options of /dev/shm");
        return Ok(Verdict::fail("mounted read-only", mend));
    }
    let size =
        fields.nth(1).and_then(|options| options.split(',').find_map(|option| option.strip_prefix("size=")));
    let size_kib = match size {
        Some(size) => {
            size.trim_end_matches('k').parse().map_err(|_| malformed(PATH, size, "a size in KiB"))?
        }
        // Without the option, a tmpfs can grow to half of the memory.
        None => p.meminfo("MemTotal")? / 2,
    };
    let mend = Mend::new(
        "mount -o remount,size=50% /dev/shm",
        "/etc/fstab: tmpfs /dev/shm tmpfs nosuid,nodev,size=50% 0 0 (docker: --shm-size)",
    );
    Ok(match size_kib {
        ..ONE_RING_KIB => Verdict::fail(kib(size_kib), mend),
        ONE_RING_KIB..ROOMY_KIB => Verdict::warn(kib(size_kib), mend),
        _ => Verdict::pass(kib(size_kib)),
    })
}
