//! The store of a journal: the file system, its options, the cache of its drive, and the free space.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The properties of a store that matter for a figure. A value that the system does not give is `unknown`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Store {
    /// The path of the directory.
    pub path: String,
    /// Type of the file system, such as `ext4`.
    pub file_system: String,
    /// Options of the mount and of the file system.
    pub options: String,
    /// The device.
    pub device: String,
    /// The drive's write cache as the kernel reports it: `write through`, or `write back` for a volatile cache.
    pub write_cache: String,
    /// The number of bytes that are free for this user.
    pub free: u64,
    /// The size of the file system in bytes.
    pub size: u64,
}

impl Store {
    /// Returns the store that contains `path`.
    ///
    /// # Errors
    /// If the directory does not exist.
    pub fn look(path: &Path) -> Result<Self> {
        let found = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
        let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
        let space = rustix::fs::statvfs(path).with_context(|| format!("look at {}", path.display()))?;
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = mounts.lines().rev().find_map(|line| Mount::of(line, &format!("{major}:{minor}")));
        let mount = mount.unwrap_or_default();
        let queue = format!("/sys/dev/block/{major}:{minor}");
        // A partition has no queue, so the queue of its drive is read.
        let caches = ["queue/write_cache", "../queue/write_cache"];
        let cache = caches.iter().find_map(|file| fs::read_to_string(format!("{queue}/{file}")).ok());
        Ok(Self {
            path: path.display().to_string(),
            file_system: mount.file_system,
            options: mount.options,
            device: mount.device,
            write_cache: cache.map_or("unknown".into(), |cache| cache.trim().to_owned()),
            free: space.f_bavail * space.f_frsize,
            size: space.f_blocks * space.f_frsize,
        })
    }

    /// Returns the name and the value of each property, for tables.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        vec![
            ("directory", self.path.clone()),
            ("file system", format!("{} on {}", self.file_system, self.device)),
            ("options", self.options.clone()),
            ("write cache of the drive", self.write_cache.clone()),
            ("free", format!("{:.1} of {:.1} GiB", gib(self.free), gib(self.size))),
        ]
    }
}

/// The kernel's description of a mount.
struct Mount {
    file_system: String,
    device: String,
    options: String,
}

impl Default for Mount {
    fn default() -> Self {
        let [file_system, device, options] = [(); 3].map(|()| "unknown".to_owned());
        Self { file_system, device, options }
    }
}

impl Mount {
    /// Parses the mount in a line of `mountinfo`. Returns `None` if the file system of the mount does not have the device number `number`.
    fn of(line: &str, number: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let place: Vec<&str> = place.split(' ').collect();
        let kind: Vec<&str> = kind.split(' ').collect();
        let (&[file_system, device, options], true) = (kind.get(..3)?, place.get(2) == Some(&number)) else {
            return None;
        };
        Some(Self {
            file_system: file_system.into(),
            device: device.into(),
            options: format!("{}; {options}", place.get(5)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo() {
        let line = "36 35 98:0 / /mnt rw,noatime master:1 - ext4 /dev/root rw,discard";
        let mount = Mount::of(line, "98:0").unwrap();
        assert_eq!(mount.options, "rw,noatime; rw,discard");
        assert_eq!((&*mount.file_system, &*mount.device), ("ext4", "/dev/root"));
        assert!(Mount::of(line, "98:1").is_none());
        assert!(Mount::of("", "98:0").is_none());
    }

    #[test]
    fn the_store_of_a_directory_has_room() {
        let store = Store::look(&std::env::temp_dir()).unwrap();
        assert!(store.size > 0 && store.free <= store.size, "{store:?}");
    }
}
