//! The identity of the process: user and group, capabilities, limits, and the mode of new files.

use crate::settings::Settings;
use anyhow::{Context, Result, ensure};
use nix::errno::Errno;
use nix::sys::resource::{getrlimit, setrlimit};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Gid, Group, Uid, setgroups, setresgid, setresuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, remove_capability_from_bounding_set,
    set_capabilities, set_no_new_privs,
};
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

/// The highest number that systemd-sysusers gives to a system user. From there systemd-sysusers searches downwards for a free number
/// (login.defs(5), SYS_UID_MAX).
const LAST_SYSTEM_ID: u32 = 999;

/// The unit's user.
pub(crate) struct User {
    name: String,
    pub(crate) uid: Uid,
    pub(crate) gid: Gid,
}

impl User {
    /// Returns the user and group that the unit names. If the package is not installed, they do not exist. In that case, returns a free
    /// number that systemd-sysusers could give them.
    pub(crate) fn of(settings: &Settings) -> Result<Self> {
        let name = settings.value("User").context("no User=")?.to_owned();
        let group = settings.value("Group").context("no Group=")?;
        let known = nix::unistd::User::from_name(&name)?.zip(Group::from_name(group)?);
        if let Some((user, group)) = known {
            return Ok(Self { name, uid: user.uid, gid: group.gid });
        }
        let is_free = |id: &u32| {
            matches!(nix::unistd::User::from_uid(Uid::from_raw(*id)), Ok(None))
                && matches!(Group::from_gid(Gid::from_raw(*id)), Ok(None))
        };
        let free = (1..=LAST_SYSTEM_ID).rev().find(is_free).context("no free number for the unit's user")?;
        Ok(Self { name, uid: Uid::from_raw(free), gid: Gid::from_raw(free) })
    }

    /// Returns the variables that systemd sets: systemd.exec(5), "Environment variables in spawned processes".
    pub(crate) fn environment(&self, settings: &Settings) -> Vec<(OsString, OsString)> {
        let pair = |name: &str, value: String| (OsString::from(name), OsString::from(value));
        vec![
            pair("USER", self.name.clone()),
            pair("LOGNAME", self.name.clone()),
            pair("RUNTIME_DIRECTORY", runtime_directory(settings).display().to_string()),
        ]
    }

    /// Becomes this user, and gives up all rights of root.
    pub(crate) fn become_it(&self) -> Result<()> {
        for capability in CapabilitySet::all().iter() {
            match remove_capability_from_bounding_set(capability) {
                // This kernel has no such capability.
                Ok(()) | Err(rustix::io::Errno::INVAL) => {}
                Err(e) => return Err(e).with_context(|| format!("drop {capability:?}")),
            }
        }
        setgroups(&[self.gid]).context("give up root's groups")?;
        setresgid(self.gid, self.gid, self.gid).with_context(|| format!("become group {}", self.gid))?;
        setresuid(self.uid, self.uid, self.uid).with_context(|| format!("become user {}", self.uid))?;
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
            .context("give up all capabilities")?;
        clear_ambient_capability_set().context("give up ambient capabilities")?;
        set_no_new_privs(true).context("refuse new rights")?;
        Ok(())
    }
}

/// The path at which the unit's runtime directory appears.
pub(crate) fn runtime_directory(settings: &Settings) -> PathBuf {
    PathBuf::from("/run").join(settings.value("RuntimeDirectory").unwrap_or_default())
}

/// Applies the resource limits and the contents of core dumps.
pub(crate) fn limit(settings: &Settings) -> Result<()> {
    for (resource, wanted) in &settings.limits {
        let result = setrlimit(*resource, *wanted, *wanted);
        // Where systemd is not allowed to raise a limit, as in containers, it silently sets the highest allowed limit.
        if result == Err(Errno::EPERM) {
            let (_, most) = getrlimit(*resource)?;
            setrlimit(*resource, most, most).with_context(|| format!("{resource:?}"))?;
        } else {
            result.with_context(|| format!("{resource:?}"))?;
        }
    }
    if let Some(kinds) = settings.value("CoredumpFilter") {
        fs::write("/proc/self/coredump_filter", format!("{:#x}", coredump_filter(kinds)?))
            .context("say what cores contain")?;
    }
    Ok(())
}

/// Applies the mask for modes of new files. After `unshare`, the mask belongs to the calling thread alone.
pub(crate) fn mask_modes(settings: &Settings) -> Result<()> {
    if let Some(mask) = settings.value("UMask") {
        umask(octal(mask)?);
    }
    Ok(())
}

pub(crate) fn octal(mode: &str) -> Result<Mode> {
    let bits = u32::from_str_radix(mode, 8).with_context(|| format!("{mode:?} is no mode"))?;
    Ok(Mode::from_bits_truncate(bits))
}

/// Returns the bits of the named kinds of memory: core(5), "Controlling which mappings are written to the core dump".
fn coredump_filter(kinds: &str) -> Result<u32> {
    const KINDS: [&str; 9] = [
        "private-anonymous",
        "shared-anonymous",
        "private-file-backed",
        "shared-file-backed",
        "elf-headers",
        "private-huge",
        "shared-huge",
        "private-dax",
        "shared-dax",
    ];
    let mut bits = 0;
    for kind in kinds.split_whitespace() {
        let bit = KINDS.iter().position(|known| *known == kind);
        ensure!(bit.is_some(), "CoredumpFilter={kind} is not known");
        bits |= 1 << bit.unwrap_or_default();
    }
    Ok(bits)
}
