//! Facts about this machine for warnings about a configuration: its memory, limits, CPUs and users.
//!
//! The values are read from the kernel and the user database. A value that cannot be read causes no warning.

use super::Principal;
use crate::cpu_list::CpuList;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{Group, Uid, User};
use rustix::fs::{StatFs, StatVfs, StatVfsMountFlags, statfs, statvfs};
use shmcast::sys::interfaces;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;
use std::{fs, io};

/// The number of the capability `CAP_IPC_LOCK`. A process with this capability is allowed to lock any amount of memory.
const CAP_IPC_LOCK: u32 = 14;
/// The types of the file systems /proc and /sys.
const PROC_SUPER_MAGIC: i64 = 0x9fa0;
const SYSFS_MAGIC: i64 = 0x6265_6572;

/// A machine and the limits of a process on it.
#[derive(Debug, Clone)]
pub struct Host {
    /// The machine's memory in bytes.
    pub memory_bytes: Option<u64>,
    /// The limit for the bytes of memory that this process can lock; `None` if there is no limit. If this process is not the daemon, the
    /// daemon's limit can differ.
    pub memlock_bytes: Option<u64>,
    /// Whether memory can be swapped out.
    pub has_swap: bool,
    /// CPUs that are online.
    pub cpus: Option<CpuList>,
    /// The online NUMA nodes. The kernel lists them in the same form as CPUs.
    pub numa_nodes: Option<CpuList>,
    /// Network interfaces, by their addresses.
    pub interfaces: Option<Vec<(String, IpAddr)>>,
    /// Whether bridges of the configuration might run already. This is so at a reload.
    pub may_run_bridges: bool,
    /// Whether a user or group exists.
    pub exists: fn(&Principal) -> bool,
    /// Returns the reason why no files can be made in a directory, or below it if it does not exist yet.
    pub refuses_files: fn(&Path) -> Option<String>,
    /// Returns the reason why a file cannot be read.
    pub refuses_reading: fn(&Path) -> Option<String>,
}

impl Host {
    /// This machine, with this process's limits.
    pub fn this() -> Self {
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let kib = |name| number_after(&meminfo, name, 10);
        let capabilities = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let may_lock =
            number_after(&capabilities, "CapEff:", 16).is_some_and(|set| set >> CAP_IPC_LOCK & 1 == 1);
        let memlock = getrlimit(Resource::RLIMIT_MEMLOCK).ok().map(|(granted, _)| granted);
        Self {
            memory_bytes: kib("MemTotal:").map(|kib| kib << 10),
            memlock_bytes: memlock.filter(|granted| !may_lock && *granted != RLIM_INFINITY),
            has_swap: kib("SwapTotal:").is_some_and(|kib| kib > 0),
            cpus: read_list("/sys/devices/system/cpu/online"),
            numa_nodes: read_list("/sys/devices/system/node/online"),
            interfaces: UdpSocket::bind("127.0.0.1:0").and_then(|any| interfaces::addresses(&any)).ok(),
            may_run_bridges: false,
            exists,
            refuses_files,
            refuses_reading,
        }
    }
}

fn exists(principal: &Principal) -> bool {
    match principal {
        Principal::User(name) => !matches!(User::from_name(name), Ok(None)),
        Principal::Group(name) => !matches!(Group::from_name(name), Ok(None)),
        // A uid is valid without a name. Containers use many uids that have no name on the host.
        Principal::Uid(_) | Principal::Anyone => true,
    }
}

/// Returns the reason why no files can be made in `dir`. If this process is not allowed to examine the directory, returns `None`, because
/// the daemon's user might be allowed to.
fn refuses_files(dir: &Path) -> Option<String> {
    let there = dir.ancestors().find_map(|at| Some((at, fs::metadata(at).ok()?)));
    let (there, found) = there?;
    let shown = there.display();
    let is_the_kernels = |fs: StatFs| [PROC_SUPER_MAGIC, SYSFS_MAGIC].contains(&fs.f_type);
    let is_read_only = |fs: StatVfs| fs.f_flag.contains(StatVfsMountFlags::RDONLY);
    if !found.is_dir() {
        Some(format!("{shown} is no directory"))
    } else if statfs(there).is_ok_and(is_the_kernels) {
        Some(format!("{shown} is of the kernel, and takes no files"))
    } else {
        statvfs(there).is_ok_and(is_read_only).then(|| format!("{shown} is on a read-only file system"))
    }
}

/// Returns the reason why `file` cannot be read. If this process is not allowed to examine the file, returns `None`, because the daemon's
/// user might be allowed to.
fn refuses_reading(file: &Path) -> Option<String> {
    fs::metadata(file).err().filter(is_the_files).map(|e| e.to_string())
}

/// Whether the error would be the same for the daemon's user.
fn is_the_files(error: &io::Error) -> bool {
    error.kind() != io::ErrorKind::PermissionDenied
}

/// Returns the uid of `principal`, if `principal` is a uid or the name of an existing user.
pub(super) fn uid_of(principal: &Principal) -> Option<u32> {
    match principal {
        Principal::Uid(uid) => Some(*uid),
        Principal::User(name) => User::from_name(name).ok().flatten().map(|user| user.uid).map(Uid::as_raw),
        Principal::Group(_) | Principal::Anyone => None,
    }
}

fn number_after(text: &str, name: &str, radix: u32) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    u64::from_str_radix(line.split_whitespace().next()?, radix).ok()
}

fn read_list(path: &str) -> Option<CpuList> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_only_this_user_may_not_look_at_gives_no_reason() {
        let dir = tempfile::tempdir().unwrap();
        assert!(refuses_reading(&dir.path().join("none")).is_some());
        assert!(refuses_reading(dir.path()).is_none());
        assert!(!is_the_files(&io::ErrorKind::PermissionDenied.into()));
    }

    #[test]
    fn this_machine_has_memory_cpus_and_root() {
        let host = Host::this();
        assert!(host.memory_bytes.unwrap() > 1 << 20, "{host:?}");
        assert!(!host.cpus.unwrap().is_empty());
        assert!((host.exists)(&Principal::User("root".into())));
        assert!(!(host.exists)(&Principal::Group("no such group".into())));
        assert_eq!(uid_of(&Principal::User("root".into())), Some(0));
        assert_eq!(number_after("MemTotal:  12 kB\nCapEff:\t00ff\n", "CapEff:", 16), Some(255));
    }
}
