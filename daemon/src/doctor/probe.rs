//! Reads the host on behalf of one check. A probe reads through [`Root`] and records what it read, so no check can report without evidence.
//!
//! This module also has the readings that several checks share: the CPUs to check, one value per CPU, kernel parameters, and limits of
//! control groups.

use std::{collections::BTreeMap, str::FromStr};

use super::{
    finding::Reading,
    root::{Root, Unread, malformed},
};
use crate::cpu_list::CpuList;

const CPU_DIR: &str = "/sys/devices/system/cpu";
const ONLINE: &str = "/sys/devices/system/cpu/online";

/// The error if the host lacks CPUs that must be checked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no CPU {missing} to judge; choose from those online here, {online}")]
pub struct NotOnline {
    missing: CpuList,
    online: CpuList,
}

/// A host, and the CPUs to check on it.
#[derive(Debug)]
pub struct Host {
    pub(super) root: Root,
    online: Result<CpuList, Unread>,
    isolated: CpuList,
    asked: Option<CpuList>,
}

impl Host {
    /// Makes a host from `root`, and determines the CPUs to check. These are `cpus`, if given. Otherwise these are the isolated CPUs, or
    /// all CPUs if none is isolated.
    ///
    /// # Errors
    /// [`NotOnline`] when `cpus` is empty or has a CPU that is not online. If the host's online CPUs cannot be read, any CPUs are accepted.
    pub fn new(root: Root, cpus: Option<CpuList>) -> Result<Self, NotOnline> {
        let list = |path: &str| match root.text(path)?.parse() {
            Ok(cpus) => Ok::<CpuList, Unread>(cpus),
            Err(_) => Err(malformed(path, &root.text(path)?, "a list of CPUs")),
        };
        let online = match list(ONLINE) {
            Ok(cpus) if cpus.is_empty() => Err(malformed(ONLINE, "", "a list of CPUs")),
            read => read,
        };
        if let (Some(asked), Ok(online)) = (&cpus, &online) {
            let missing = asked.minus(online);
            if asked.is_empty() || !missing.is_empty() {
                let online = online.clone();
                return Err(NotOnline { missing, online });
            }
        }
        let isolated = list("/sys/devices/system/cpu/isolated").unwrap_or_default();
        let partitions = list("/sys/fs/cgroup/cpuset.cpus.isolated").unwrap_or_default();
        Ok(Self { root, online, isolated: isolated.or(&partitions), asked: cpus })
    }

    /// The root from which the host's files are read.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the CPUs to check.
    ///
    /// # Errors
    /// [`Unread`] when no CPU was named and the online CPUs cannot be read.
    pub fn cpus(&self) -> Result<CpuList, Unread> {
        match &self.asked {
            Some(cpus) => Ok(cpus.clone()),
            None if self.isolated.is_empty() => self.online.clone(),
            None => Ok(self.isolated.clone()),
        }
    }
}

/// Reads the host for one check, and records what it has read.
#[derive(Debug)]
pub(super) struct Probe<'a> {
    host: &'a Host,
    readings: Vec<Reading>,
}

impl<'a> Probe<'a> {
    pub(super) fn new(host: &'a Host) -> Self {
        Self { host, readings: Vec::new() }
    }

    pub(super) fn into_readings(self) -> Vec<Reading> {
        self.readings
    }

    /// Records that `path` contained `value`.
    pub(super) fn note(&mut self, path: impl Into<String>, value: impl ToString) {
        self.readings.push(Reading { path: path.into(), value: value.to_string() });
    }

    /// Records that `path` could not be read, and the cause in a few words.
    fn note_unread(&mut self, path: &str, unread: &Unread) {
        let value = match unread {
            Unread::Missing { .. } => "missing".to_owned(),
            Unread::Denied { .. } => "permission denied".to_owned(),
            Unread::Failed { cause, .. } | Unread::ToolFailed { cause, .. } => cause.clone(),
            Unread::NoTool { .. } => "not installed".to_owned(),
            Unread::Malformed { held, .. } => held.clone(),
        };
        self.note(path, value);
    }

    /// Reads the text of `path`, and records it whole.
    pub(super) fn text(&mut self, path: &str) -> Result<String, Unread> {
        let text = self.quiet(path)?;
        self.note(path, &text);
        Ok(text)
    }

    /// Reads the text of `path` without recording it. The check itself records the relevant part.
    pub(super) fn quiet(&mut self, path: &str) -> Result<String, Unread> {
        self.host.root.text(path).inspect_err(|error| self.note_unread(path, error))
    }

    /// Reads one of many similar files, such as the names of all processes. Returns `None` if the file cannot be read, for example because
    /// it is gone. The file is not recorded, because the check records a sum. The text need not be UTF-8, because a process can have any
    /// bytes in its name.
    pub(super) fn one_of_many(&self, path: &str) -> Option<String> {
        let bytes = self.host.root.bytes(path).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Reads the text of `path`. If the file does not exist or cannot be read, this is no error, and the result is `None`.
    pub(super) fn optional(&mut self, path: &str) -> Option<String> {
        let text = self.host.root.text(path).ok()?;
        self.note(path, &text);
        Some(text)
    }

    /// Reads a file that has one number, as most sysctls do.
    pub(super) fn number<T: FromStr>(&mut self, path: &str) -> Result<T, Unread> {
        let text = self.text(path)?;
        text.parse().map_err(|_| malformed(path, &text, "a number"))
    }

    /// Reads a file that has a list of CPUs such as `0-3`.
    pub(super) fn cpu_list(&mut self, path: &str) -> Result<CpuList, Unread> {
        let text = self.text(path)?;
        text.parse().map_err(|_| malformed(path, &text, "a list of CPUs"))
    }

    /// Returns the word between `open` and `close` in a file such as `always [madvise] never`.
    pub(super) fn choice(&mut self, path: &str, open: char, close: char) -> Result<String, Unread> {
        let text = self.text(path)?;
        let chosen = text.split_once(open).and_then(|(_, rest)| rest.split_once(close));
        match chosen {
            Some((chosen, _)) => Ok(chosen.to_owned()),
            None => Err(malformed(path, &text, "a choice in brackets")),
        }
    }

    pub(super) fn bytes(&mut self, path: &str) -> Result<Vec<u8>, Unread> {
        self.host.root.bytes(path).inspect_err(|error| self.note_unread(path, error))
    }

    pub(super) fn names(&mut self, path: &str) -> Result<Vec<String>, Unread> {
        self.host.root.names(path).inspect_err(|error| self.note_unread(path, error))
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.host.root.exists(path)
    }

    /// Runs `tool args...` and returns its output. The check records the relevant part.
    pub(super) fn command(&mut self, tool: &str, args: &[&str]) -> Result<String, Unread> {
        let printed = self.host.root.command(tool, args);
        printed.inspect_err(|error| self.note_unread(&format!("{tool} {}", args.join(" ")), error))
    }

    /// The CPUs that are judged.
    pub(super) fn cpus(&mut self) -> Result<CpuList, Unread> {
        self.host.cpus().inspect_err(|error| self.note_unread(ONLINE, error))
    }

    pub(super) fn online(&mut self) -> Result<CpuList, Unread> {
        self.host.online.clone().inspect_err(|error| self.note_unread(ONLINE, error))
    }

    /// Whether the CPUs to check were chosen by the caller or are isolated. False if they are simply all CPUs of the host.
    pub(super) fn set_aside(&self) -> bool {
        self.host.asked.is_some() || !self.host.isolated.is_empty()
    }

    /// Returns the CPUs for a command that isolates CPUs. Usually these are the checked CPUs. If all CPUs are checked, the CPUs of the
    /// first core are left out.
    pub(super) fn candidates(&mut self) -> Result<CpuList, Unread> {
        let online = self.online()?;
        if self.set_aside() {
            return self.cpus();
        }
        let first = online.iter().next().unwrap_or(0);
        let siblings = self.host.root.text(&format!("{CPU_DIR}/cpu{first}/topology/thread_siblings_list"));
        let first_core =
            siblings.ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| CpuList::from_iter([first]));
        let others = online.minus(&first_core);
        Ok(if others.is_empty() { online } else { others })
    }

    /// Returns the CPUs that are left for all other work. If none is left, returns CPU 0.
    pub(super) fn housekeeping(&mut self) -> Result<CpuList, Unread> {
        let left = self.online()?.minus(&self.candidates()?);
        Ok(if left.is_empty() { CpuList::from_iter([0]) } else { left })
    }

    /// Reads the file `leaf` of every checked CPU. Returns the CPUs of each value, for example 0-3 for `performance`.
    pub(super) fn per_cpu(&mut self, leaf: &str) -> Result<BTreeMap<String, CpuList>, Unread> {
        let mut cpus_of: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        for cpu in self.cpus()?.iter() {
            let value = self.quiet(&format!("{CPU_DIR}/cpu{cpu}/{leaf}"))?;
            cpus_of.entry(value).or_default().push(cpu);
        }
        let grouped: BTreeMap<String, CpuList> =
            cpus_of.into_iter().map(|(value, cpus)| (value, cpus.into_iter().collect())).collect();
        let summary: Vec<String> =
            grouped.iter().map(|(value, cpus)| format!("{value} on CPU {cpus}")).collect();
        self.note(format!("{CPU_DIR}/cpu*/{leaf}"), summary.join("; "));
        Ok(grouped)
    }

    /// Returns the value of `name=` on the kernel's command line; `None` if the name is not there. If it is there several times, the last
    /// value counts.
    pub(super) fn boot_parameter(&mut self, name: &str) -> Result<Option<String>, Unread> {
        let line = self.quiet("/proc/cmdline")?;
        let value = |word: &str| match word.split_once('=') {
            Some((key, value)) => (key == name).then(|| value.to_owned()),
            None => (word == name).then(String::new),
        };
        let found = line.split_whitespace().filter_map(value).next_back();
        let noted = found.as_ref().map_or_else(|| format!("no {name}"), |value| format!("{name}={value}"));
        self.note("/proc/cmdline", noted);
        Ok(found)
    }

    /// The kernel's version as (major, minor).
    pub(super) fn kernel(&mut self) -> Result<(u32, u32), Unread> {
        const PATH: &str = "/proc/sys/kernel/osrelease";
        let release = self.text(PATH)?;
        let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
            _ => Err(malformed(PATH, &release, "a kernel release")),
        }
    }

    /// Returns the value of a field in a file of `Name: value` lines such as /proc/meminfo, with the file's own unit.
    pub(super) fn field(&mut self, path: &str, name: &'static str) -> Result<String, Unread> {
        let text = self.quiet(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let value = line.ok_or_else(|| malformed(path, &text, name))?.trim().to_owned();
        self.note(path, format!("{name}: {value}"));
        Ok(value)
    }

    /// Returns the number in a field of /proc/meminfo. The number is in KiB if the field has a unit, and is a count if it has none.
    pub(super) fn meminfo(&mut self, name: &'static str) -> Result<u64, Unread> {
        const PATH: &str = "/proc/meminfo";
        let value = self.field(PATH, name)?;
        value.trim_end_matches(" kB").parse().map_err(|_| malformed(PATH, &value, "a number"))
    }

    /// Reads a limit of this process's control group and of all groups above it, nearest first. The list is empty for the top group, which
    /// has no limits. `files` has the name of the limit's file in version 2 of control groups, and its name in version 1.
    pub(super) fn cgroup(
        &mut self,
        controller: &str,
        files: [&str; 2],
    ) -> Result<Vec<(String, String)>, Unread> {
        const PATH: &str = "/proc/self/cgroup";
        let groups = self.quiet(PATH)?;
        let lines: Vec<(&str, &str)> =
            groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')).collect();
        let old = lines.iter().find(|(controllers, _)| controllers.split(',').any(|name| name == controller));
        let (base, leaf, (_, group)) =
            match (old, lines.iter().find(|(controllers, _)| controllers.is_empty())) {
                (Some(line), _) => (format!("/sys/fs/cgroup/{controller}"), files[1], line),
                (None, Some(line)) => ("/sys/fs/cgroup".to_owned(), files[0], line),
                (None, None) => return Err(malformed(PATH, &groups, "a control group")),
            };
        self.note(PATH, group);
        if !self.exists(&base) {
            return Err(Unread::Missing { path: base });
        }
        let mut group = group.trim_matches('/').to_owned();
        let mut found = Vec::new();
        loop {
            let dir = if group.is_empty() { base.clone() } else { format!("{base}/{group}") };
            let path = format!("{dir}/{leaf}");
            if let Some(value) = self.optional(&path) {
                found.push((path, value));
            }
            if group.is_empty() {
                return Ok(found);
            }
            group.truncate(group.rfind('/').unwrap_or(0));
        }
    }
}
