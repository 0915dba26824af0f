//! Reads the `[Service]` section of a unit. Every line must be known. Either this crate applies the line, or the line is about the service
//! manager's own actions.

use anyhow::{Result, bail, ensure};
use nix::sys::resource::{RLIM_INFINITY, Resource};
use std::collections::{BTreeMap, BTreeSet};

/// Settings about the service manager's own actions. They do not change the rights of the process.
const OF_THE_MANAGER: [&str; 12] = [
    "Type",
    "ExecStart",
    "ExecReload",
    "Restart",
    "RestartSec",
    "WatchdogSec",
    "TimeoutStartSec",
    "TimeoutStopSec",
    "FileDescriptorStoreMax",
    // These two settings decide whether the runtime directory, and the user's other shared memory, stay after the service has ended.
    "RuntimeDirectoryPreserve",
    "RemoveIPC",
    // This setting limits the devices of the control group. `PrivateDevices` already decides which device nodes exist, and without
    // CAP_MKNOD the process cannot make other nodes.
    "DevicePolicy",
];

/// Switches that are applied if they are `yes`.
const SWITCHES: [&str; 16] = [
    "NoNewPrivileges",
    "ProtectHome",
    "PrivateTmp",
    "PrivateMounts",
    "PrivateDevices",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "ProtectControlGroups",
    "ProtectClock",
    "ProtectHostname",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "LockPersonality",
    "MemoryDenyWriteExecute",
];

/// Settings for which this crate supports only one value. No unit needs another value yet.
const ONE_VALUE: [(&str, &str); 8] = [
    ("CapabilityBoundingSet", ""),
    ("AmbientCapabilities", ""),
    ("ProtectSystem", "strict"),
    // With these two values, systemd does not change /proc.
    ("ProtectProc", "default"),
    ("ProcSubset", "all"),
    // `calls.rs` applies this more strictly than systemd does.
    ("KeyringMode", "private"),
    ("SystemCallArchitectures", "native"),
    ("SystemCallErrorNumber", "EPERM"),
];

/// The settings of a unit that concern its process.
#[derive(Debug, Default, Clone)]
pub struct Settings {
    /// The last value of each setting that has a single value.
    values: BTreeMap<String, String>,
    pub(crate) limits: Vec<(Resource, u64)>,
    /// Socket families that may be used.
    pub(crate) families: BTreeSet<String>,
    /// The lines of `SystemCallFilter=` in their order: whether the line allows calls, and the names in it.
    pub(crate) calls: Vec<(bool, Vec<String>)>,
}

impl Settings {
    /// Reads a unit file.
    ///
    /// # Errors
    /// The line that this crate cannot apply.
    pub fn read(unit: &str) -> Result<Self> {
        let mut settings = Self::default();
        let joined = unit.replace("\\\n", " ");
        let mut section = "";
        for line in joined.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[') {
                section = name.trim_end_matches(']');
            } else if section == "Service" && !line.is_empty() && !line.starts_with(['#', ';']) {
                let Some((name, value)) = line.split_once('=') else {
                    bail!("the unit: {line:?} has no '='")
                };
                settings.add(name.trim(), value.trim())?;
            }
        }
        for needed in ["User", "Group", "RuntimeDirectory", "ProtectSystem", "CapabilityBoundingSet"] {
            ensure!(settings.values.contains_key(needed), "the unit has no {needed}=");
        }
        Ok(settings)
    }

    fn add(&mut self, name: &str, value: &str) -> Result<()> {
        match name {
            _ if OF_THE_MANAGER.contains(&name) => return Ok(()),
            "LimitNOFILE" => self.limits.push((Resource::RLIMIT_NOFILE, limit(value)?)),
            "LimitMEMLOCK" => self.limits.push((Resource::RLIMIT_MEMLOCK, limit(value)?)),
            "RestrictAddressFamilies" => list(&mut self.families, value)?,
            "SystemCallFilter" if value.is_empty() => self.calls.clear(),
            "SystemCallFilter" => self.calls.push(match value.strip_prefix('~') {
                Some(names) => (false, words(names)),
                None => (true, words(value)),
            }),
            "User"
            | "Group"
            | "UMask"
            | "RuntimeDirectory"
            | "RuntimeDirectoryMode"
            | "StateDirectory"
            | "StateDirectoryMode"
            | "CoredumpFilter" => {}
            _ if SWITCHES.contains(&name) => ensure!(
                ["yes", "no"].contains(&value),
                "the unit says {name}={value}: under-unit knows yes and no (daemon/unit/src/settings.rs)"
            ),
            _ => match ONE_VALUE.iter().find(|(known, _)| *known == name) {
                Some((_, known)) => ensure!(
                    *known == value,
                    "the unit says {name}={value}: under-unit knows {name}={known} (daemon/unit/src/settings.rs)"
                ),
                None => bail!(
                    "the unit says {name}={value}, which under-unit cannot apply: teach it (daemon/unit/src/settings.rs), \
                     or no test plays the unit as it is shipped"
                ),
            },
        }
        self.values.insert(name.to_owned(), value.to_owned());
        Ok(())
    }

    /// Whether a switch is `yes`.
    pub(crate) fn is_set(&self, switch: &str) -> bool {
        assert!(SWITCHES.contains(&switch), "{switch} is read, so it must be listed");
        self.value(switch) == Some("yes")
    }

    pub(crate) fn value(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

fn words(value: &str) -> Vec<String> {
    value.split_whitespace().map(str::to_owned).collect()
}

/// Adds a value to a list by the rule of systemd.exec(5): an empty value empties the list, and any other value
/// is added to it.
fn list(list: &mut BTreeSet<String>, value: &str) -> Result<()> {
    ensure!(!value.starts_with('~'), "{value:?}: under-unit knows lists of what is allowed");
    if value.is_empty() {
        list.clear();
    }
    list.extend(words(value));
    Ok(())
}

fn limit(value: &str) -> Result<u64> {
    match value {
        "infinity" => Ok(RLIM_INFINITY),
        _ => Ok(value.parse()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIPPED: &str = include_str!("../../../systemd/shmcastd.service");

    #[test]
    fn every_line_of_the_shipped_unit_is_known() {
        let settings = Settings::read(SHIPPED).unwrap();
        let lines = SHIPPED.lines().filter(|line| line.starts_with("SystemCallFilter="));
        assert_eq!(settings.calls.len(), lines.count());
        assert!(!settings.families.is_empty());
    }

    #[test]
    fn a_new_line_of_the_unit_cannot_go_untested() {
        for (line, word) in [
            ("PrivateUsers=yes", "teach it"),
            ("CapabilityBoundingSet=CAP_SYS_NICE", "knows CapabilityBoundingSet="),
            ("ProtectHome=read-only", "yes and no"),
            ("RestrictAddressFamilies=~AF_PACKET", "lists of what is allowed"),
            ("nonsense", "no '='"),
        ] {
            let unit = SHIPPED.replace("[Install]", &format!("{line}\n[Install]"));
            let error = Settings::read(&unit).unwrap_err().to_string();
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
