//! The files that the system applies at the next boot: one in sysctl.d for settings below `/proc/sys`, and one in tmpfiles.d for settings
//! below `/sys`.
//!
//! Both files are replaced as a whole. Their first line shows that shmcast wrote them. If a file of the same name lacks this line, it is
//! neither written nor removed.

use super::before::Entry;
use super::files::{self, TuneError};
use crate::doctor::{Root, Unread};
use std::path::PathBuf;

const SYSCTL: &str = "/etc/sysctl.d/90-shmcast-tune.conf";
const TMPFILES: &str = "/etc/tmpfiles.d/shmcast-tune.conf";
const FIRST_LINE: &str = "# Written by `shmcast tune --persist`; `shmcast tune --undo` removes it.";

/// Checks the two files. If a file exists, shmcast must have written it.
pub(super) fn check(root: &Root) -> Result<(), TuneError> {
    [SYSCTL, TMPFILES].iter().try_for_each(|path| is_ours(root, path).map(drop))
}

/// Writes the files that the entries need, and removes files that are no longer needed. Returns the written files.
pub(super) fn write(root: &Root, entries: &[Entry]) -> Result<Vec<PathBuf>, TuneError> {
    check(root)?;
    let mut written = Vec::new();
    for (path, line) in [(SYSCTL, sysctl_line as fn(&Entry) -> Option<String>), (TMPFILES, tmpfiles_line)] {
        let lines: Vec<String> = entries.iter().filter_map(line).collect();
        let below = root.below(path);
        if lines.is_empty() {
            files::remove(&below)?;
        } else {
            files::replace(&below, &format!("{FIRST_LINE}\n{}\n", lines.join("\n")), 0o644)?;
            written.push(below);
        }
    }
    Ok(written)
}

/// Removes the files. Returns those that existed.
pub(super) fn remove(root: &Root) -> Result<Vec<PathBuf>, TuneError> {
    let mut removed = Vec::new();
    for path in [SYSCTL, TMPFILES] {
        if is_ours(root, path)? && files::remove(&root.below(path))? {
            removed.push(root.below(path));
        }
    }
    Ok(removed)
}

/// Whether the file exists and was written by shmcast. It is an error if somebody else wrote it.
fn is_ours(root: &Root, path: &str) -> Result<bool, TuneError> {
    match root.text(path) {
        Ok(text) if text.lines().next() == Some(FIRST_LINE) => Ok(true),
        Ok(_) => Err(TuneError::Foreign { path: root.below(path) }),
        Err(Unread::Missing { .. }) => Ok(false),
        Err(unread) => Err(TuneError::Unread(unread)),
    }
}

/// Returns the sysctl.d line for an entry, such as `net.core.rmem_max = 67108864`. If a name contains a dot, the line has the name with
/// slashes (sysctl.d(5)).
fn sysctl_line(entry: &Entry) -> Option<String> {
    let name = entry.file.strip_prefix("/proc/sys/")?;
    let key = if name.contains('.') { name.to_owned() } else { name.replace('/', ".") };
    Some(format!("{key} = {}", entry.after))
}

fn tmpfiles_line(entry: &Entry) -> Option<String> {
    entry.file.starts_with("/sys/").then(|| format!("w {} - - - - {}", entry.file, entry.after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_kept_in_the_wrong_file() {
        let lines = |file: &str| {
            let (check, before) = ("x".to_owned(), "0".to_owned());
            let entry = Entry { check, before, file: file.to_owned(), after: "1".to_owned() };
            (sysctl_line(&entry), tmpfiles_line(&entry))
        };
        let some = |line: &str| Some(line.to_owned());
        assert_eq!(lines("/proc/sys/net/core/rmem_max"), (some("net.core.rmem_max = 1"), None));
        assert_eq!(
            lines("/proc/sys/net/ipv4/conf/eth0.7/rp_filter"),
            (some("net/ipv4/conf/eth0.7/rp_filter = 1"), None)
        );
        assert_eq!(lines("/sys/kernel/mm/ksm/run"), (None, some("w /sys/kernel/mm/ksm/run - - - - 1")));
    }
}
