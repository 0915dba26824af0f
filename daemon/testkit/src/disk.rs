//! File systems for a single test.
//!
//! - An ext4 file system whose power can be cut. After a cut, nothing more is written to the disk, not even by the file system's own
//!   journal. The disk can then be mounted again.
//! - A small file system in memory.

use crate::place::{is_root, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

fn run(program: &str, arguments: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// An ext4 file system whose image is a file.
pub struct Disk {
    room: TempDir,
    /// The number of times that the disk was mounted again after a cut.
    cuts: u32,
}

impl Disk {
    /// Makes a disk of 200 MiB.
    pub fn make() -> Option<Self> {
        Self::of_mib(200)
    }

    pub fn of_mib(mib: u64) -> Option<Self> {
        let disk = Self { room: TempDir::new().unwrap(), cuts: 0 };
        let image = std::fs::File::create(disk.image()).unwrap();
        image.set_len(mib << 20).unwrap();
        std::fs::create_dir(disk.path()).unwrap();
        let is_made = run("mkfs.ext4", &["-q", "-F", disk.image().to_str().unwrap()]);
        (is_made && disk.mount()).then_some(disk)
    }

    pub fn room(&self) -> &Path {
        self.room.path()
    }

    fn image(&self) -> PathBuf {
        self.room.path().join(format!("image-{}", self.cuts))
    }

    pub fn path(&self) -> PathBuf {
        self.room.path().join("disk")
    }

    pub fn channels(&self) -> PathBuf {
        self.room.path().join("channels")
    }

    fn mount(&self) -> bool {
        run("mount", &["-o", "loop", self.image().to_str().unwrap(), self.path().to_str().unwrap()])
    }

    /// Mounts the disk again after a cut. Mounts a copy of the disk's image, because another process might still use the old file system.
    /// The copy lacks the writes that the old file system makes when it is finally unmounted.
    pub fn mount_again(&mut self) -> bool {
        let before = self.image();
        self.cuts += 1;
        let is_copied =
            run("cp", &["--sparse=always", before.to_str().unwrap(), self.image().to_str().unwrap()]);
        self.unmount();
        std::fs::remove_file(before).unwrap();
        is_copied && self.mount()
    }

    /// Writes to the disk everything that is only in memory.
    pub fn sync(&self) -> bool {
        run("sync", &["--file-system", self.path().to_str().unwrap()])
    }

    fn unmount(&self) -> bool {
        run("umount", &[self.path().to_str().unwrap()])
    }

    /// Cuts the file system's power. From now on nothing is written to the disk, not even the file system's own journal. The call is
    /// EXT4_IOC_SHUTDOWN with EXT4_GOING_FLAGS_NOLOGFLUSH.
    pub fn cut(&self) -> bool {
        let call = "import fcntl,os,struct,sys;fcntl.ioctl(os.open(sys.argv[1],os.O_RDONLY),0x8004587d,struct.pack('I',2))";
        run("python3", &["-c", call, self.path().to_str().unwrap()])
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.unmount();
    }
}

/// A small file system in memory that only one test uses.
pub struct Small {
    room: TempDir,
}

impl Small {
    /// Makes a file system of this many MiB. If this process is not allowed to mount, prints that `test` is skipped, and returns `None`.
    pub fn make(test: &str, mib: u32) -> Option<Self> {
        if !is_root() {
            skip(test, "only root can mount a file system");
            return None;
        }
        let small = Self { room: TempDir::new().unwrap() };
        let size = format!("size={mib}m");
        if run("mount", &["-t", "tmpfs", "-o", &size, "none", small.path().to_str().unwrap()]) {
            return Some(small);
        }
        skip(test, "no tmpfs can be mounted");
        None
    }

    pub fn path(&self) -> &Path {
        self.room.path()
    }

    /// The number of free bytes.
    pub fn free(&self) -> u64 {
        let room = rustix::fs::statvfs(self.path()).unwrap();
        room.f_bavail * room.f_frsize
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        // A program of the test might still use the file system.
        run("umount", &["--lazy", self.path().to_str().unwrap()]);
    }
}
