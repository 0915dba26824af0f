//! The filters for system calls that systemd builds from a unit and gives to the kernel. The kernel then refuses some system calls of the
//! unit's processes. The rules are those of systemd's `seccomp-util.c`:
//!
//! - One filter comes from `SystemCallFilter=`.
//! - Other filters come from settings that restrict the arguments of calls.
//! - The kernel runs all filters at each call, and refuses the call if any filter refuses it.
//! - Each filter has its own error for refused calls.

use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use nix::libc;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::process::Command;
use std::str::FromStr;
use syscalls::Sysno;

type Rules = BTreeMap<i64, Vec<SeccompRule>>;

/// All filters, in the order in which they must be applied.
pub(crate) fn compile(settings: &Settings) -> Result<Vec<BpfProgram>> {
    let groups = Groups::ask()?;
    let allowed = groups.allowed(&settings.calls)?.into_iter().map(|number| (number, Vec::new())).collect();
    Ok(vec![
        refusing(families(settings)?, libc::EAFNOSUPPORT)?,
        refusing(restricted(settings, &groups)?, libc::EPERM)?,
        refusing(opaque(settings), libc::ENOSYS)?,
        // SystemCallErrorNumber=EPERM. This filter is the last one, because it can forbid the call that applies filters.
        filter(allowed, SeccompAction::Errno(libc::EPERM as u32), SeccompAction::Allow)?,
    ])
}

fn filter(rules: Rules, otherwise: SeccompAction, matching: SeccompAction) -> Result<BpfProgram> {
    // A call by another architecture's number ends the process: SystemCallArchitectures=native.
    let architecture = std::env::consts::ARCH.try_into()?;
    Ok(SeccompFilter::new(rules, otherwise, matching, architecture)?.try_into()?)
}

fn refusing(rules: Rules, error: i32) -> Result<BpfProgram> {
    filter(rules, SeccompAction::Allow, SeccompAction::Errno(error as u32))
}

/// systemd's groups of system calls, by name. The names begin with `@`.
struct Groups(HashMap<String, Vec<String>>);

impl Groups {
    fn ask() -> Result<Self> {
        let output = Command::new("systemd-analyze")
            .args(["--no-pager", "syscall-filter"])
            .output()
            .context("run systemd-analyze")?;
        ensure!(output.status.success(), "systemd-analyze: {}", String::from_utf8_lossy(&output.stderr));
        let mut groups: HashMap<String, Vec<String>> = HashMap::new();
        let mut current = String::new();
        for line in String::from_utf8(output.stdout)?.lines() {
            if line.starts_with('@') {
                current = line.to_owned();
            } else if line.starts_with(' ') && !line.trim().starts_with('#') {
                groups.entry(current.clone()).or_default().push(line.trim().to_owned());
            }
        }
        ensure!(groups.contains_key("@known"), "systemd-analyze names no group @known");
        Ok(Self(groups))
    }

    /// Returns the number of a call, or the numbers of all calls of a group. Calls of other architectures have no
    /// number.
    fn numbers(&self, name: &str) -> Result<BTreeSet<i64>> {
        if !name.starts_with('@') {
            return Ok(Sysno::from_str(name).ok().map(|call| i64::from(call.id())).into_iter().collect());
        }
        let members =
            self.0.get(name).with_context(|| format!("there is no group of system calls {name}"))?;
        let mut numbers = BTreeSet::new();
        for member in members {
            numbers.extend(self.numbers(member)?);
        }
        Ok(numbers)
    }

    /// Returns the numbers of all allowed calls, by the rules of `SystemCallFilter=` in systemd.exec(5). The first
    /// line must allow calls. The calls of `@default` are always allowed.
    fn allowed(&self, lines: &[(bool, Vec<String>)]) -> Result<BTreeSet<i64>> {
        let (allows, _) = lines.first().context("the unit has no SystemCallFilter=")?;
        ensure!(
            *allows,
            "the first SystemCallFilter= begins with ~: under-unit knows lists of what is allowed"
        );
        let mut allowed = self.numbers("@default")?;
        for (allows, names) in lines {
            for name in names {
                ensure!(
                    !name.contains(':'),
                    "SystemCallFilter={name}: under-unit knows one error for all calls"
                );
                let is_name = name.starts_with('@') || self.0["@known"].contains(name);
                ensure!(is_name, "SystemCallFilter={name}: systemd knows no such call");
                for number in self.numbers(name)? {
                    match allows {
                        true => allowed.insert(number),
                        false => allowed.remove(&number),
                    };
                }
            }
        }
        // KeyringMode=private gives the process its own keyring, by a call that no library wraps. Here all calls about keyrings are
        // refused, which is stricter: a program that makes such a call fails.
        let keyrings = self.numbers("@keyring")?;
        allowed.retain(|number| !keyrings.contains(number));
        Ok(allowed)
    }
}

/// Refuses `socket` of any family that is not allowed.
fn families(settings: &Settings) -> Result<Rules> {
    if settings.families.is_empty() {
        return Ok(Rules::new());
    }
    let mut conditions = Vec::new();
    for family in &settings.families {
        let number = match family.as_str() {
            "AF_UNIX" => libc::AF_UNIX,
            "AF_INET" => libc::AF_INET,
            "AF_INET6" => libc::AF_INET6,
            "AF_NETLINK" => libc::AF_NETLINK,
            _ => anyhow::bail!("RestrictAddressFamilies={family}: under-unit does not know its number"),
        };
        conditions.push(condition(0, SeccompCmpOp::Ne, number as u64));
    }
    Ok([(libc::SYS_socket, vec![all_of(conditions)])].into())
}

/// Returns rules for calls whose arguments are in memory, where a filter cannot read them. The filter refuses such calls altogether.
fn opaque(settings: &Settings) -> Rules {
    let calls = [("RestrictNamespaces", libc::SYS_clone3), ("RestrictSUIDSGID", libc::SYS_openat2)];
    calls
        .into_iter()
        .filter(|(switch, _)| settings.is_set(switch))
        .map(|(_, call)| (call, Vec::new()))
        .collect()
}

/// Returns rules for the calls that other settings of the unit refuse, even if `SystemCallFilter=` allows these calls.
fn restricted(settings: &Settings, groups: &Groups) -> Result<Rules> {
    let mut rules = Rules::new();
    let mut refuse = |call: i64, conditions: Vec<SeccompCondition>| {
        rules.entry(call).or_default().push(all_of(conditions));
    };
    if settings.is_set("RestrictNamespaces") {
        namespaces(&mut refuse);
    }
    if settings.is_set("RestrictRealtime") {
        for policy in [libc::SCHED_FIFO, libc::SCHED_RR] {
            refuse(libc::SYS_sched_setscheduler, vec![equal(1, policy as u64)]);
        }
        let above = condition(1, SeccompCmpOp::Gt, libc::SCHED_IDLE as u64);
        refuse(libc::SYS_sched_setscheduler, vec![above]);
    }
    if settings.is_set("RestrictSUIDSGID") {
        file_modes(&mut refuse);
    }
    if settings.is_set("LockPersonality") {
        // 0 is the personality that Linux programs start with.
        refuse(libc::SYS_personality, vec![condition(0, SeccompCmpOp::Ne, 0)]);
    }
    if settings.is_set("MemoryDenyWriteExecute") {
        let executable = libc::PROT_EXEC as u64;
        refuse(libc::SYS_mmap, vec![has_all(2, executable | libc::PROT_WRITE as u64)]);
        refuse(libc::SYS_mprotect, vec![has_all(2, executable)]);
        refuse(libc::SYS_pkey_mprotect, vec![has_all(2, executable)]);
        refuse(libc::SYS_shmat, vec![has_all(2, libc::SHM_EXEC as u64)]);
    }
    for (switch, names) in [
        ("ProtectKernelTunables", &["_sysctl"][..]),
        ("ProtectKernelModules", &["@module"]),
        ("ProtectKernelLogs", &["syslog"]),
        ("ProtectClock", &["@clock"]),
        ("ProtectHostname", &["sethostname", "setdomainname"]),
        ("PrivateDevices", &["@raw-io"]),
    ] {
        if settings.is_set(switch) {
            for name in names {
                // A call without rules is refused with any arguments.
                rules.extend(groups.numbers(name)?.into_iter().map(|number| (number, Vec::new())));
            }
        }
    }
    Ok(rules)
}

fn namespaces(refuse: &mut impl FnMut(i64, Vec<SeccompCondition>)) {
    // For `setns`, 0 stands for a namespace of any kind.
    refuse(libc::SYS_setns, vec![equal(1, 0)]);
    for kind in [
        libc::CLONE_NEWCGROUP,
        libc::CLONE_NEWIPC,
        libc::CLONE_NEWNET,
        libc::CLONE_NEWNS,
        libc::CLONE_NEWPID,
        libc::CLONE_NEWUSER,
        libc::CLONE_NEWUTS,
    ] {
        refuse(libc::SYS_unshare, vec![has_all(0, kind as u64)]);
        refuse(libc::SYS_clone, vec![has_all(0, kind as u64)]);
        refuse(libc::SYS_setns, vec![has_all(1, kind as u64)]);
    }
}

fn file_modes(refuse: &mut impl FnMut(i64, Vec<SeccompCondition>)) {
    for bit in [libc::S_ISUID, libc::S_ISGID].map(u64::from) {
        for (call, mode) in [
            (libc::SYS_fchmod, 1),
            (libc::SYS_fchmodat, 2),
            (libc::SYS_mkdirat, 2),
            (libc::SYS_mknodat, 2),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_chmod, 1),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_mkdir, 1),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_mknod, 1),
            #[cfg(target_arch = "x86_64")]
            (libc::SYS_creat, 1),
        ] {
            refuse(call, vec![has_all(mode, bit)]);
        }
        let creates = |argument| has_all(argument, libc::O_CREAT as u64);
        #[cfg(target_arch = "x86_64")]
        refuse(libc::SYS_open, vec![creates(1), has_all(2, bit)]);
        refuse(libc::SYS_openat, vec![creates(2), has_all(3, bit)]);
    }
}

fn all_of(conditions: Vec<SeccompCondition>) -> SeccompRule {
    SeccompRule::new(conditions).expect("each rule here has a condition")
}

fn condition(argument: u8, compare: SeccompCmpOp, value: u64) -> SeccompCondition {
    SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value).expect("an argument below six")
}

fn equal(argument: u8, value: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Eq, value)
}

/// The condition that all of `bits` are set.
fn has_all(argument: u8, bits: u64) -> SeccompCondition {
    condition(argument, SeccompCmpOp::MaskedEq(bits), bits)
}
