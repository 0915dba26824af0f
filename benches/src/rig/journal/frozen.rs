//! A disk that can be frozen: an ext4 file system in a file. `fsfreeze` stops the file system. Then writes and syncs wait in the kernel, as
//! if the drive did not answer. The disk needs root, and the tools of e2fsprogs and util-linux.

use anyhow::{Context, Result, bail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system that can be frozen. Dropping this value thaws the file system and removes it.
#[derive(Debug)]
pub struct FrozenDisk {
    image: PathBuf,
    mount: PathBuf,
    is_mounted: bool,
}

impl FrozenDisk {
    /// Makes a file system of `bytes` bytes in `dir`.
    ///
    /// # Errors
    /// The reason why this is not possible: no root, no tools, or no loop devices.
    pub fn new(dir: &Path, bytes: u64) -> Result<Self> {
        let mut disk = Self { image: dir.join("disk.img"), mount: dir.join("disk"), is_mounted: false };
        File::create(&disk.image)?.set_len(bytes)?;
        std::fs::create_dir_all(&disk.mount)?;
        run("mkfs.ext4", &["-q".as_ref(), "-F".as_ref(), &disk.image])?;
        run("mount", &["-o".as_ref(), "loop".as_ref(), &disk.image, &disk.mount])?;
        disk.is_mounted = true;
        Ok(disk)
    }

    /// Returns the directory of the file system.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Freezes the disk. After this call, all earlier writes are on the disk.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn freeze(&self) -> Result<()> {
        run("fsfreeze", &["--freeze".as_ref(), &self.mount])
    }

    /// Thaws the disk.
    ///
    /// # Errors
    /// If the disk is not frozen.
    pub fn thaw(&self) -> Result<()> {
        run("fsfreeze", &["--unfreeze".as_ref(), &self.mount])
    }
}

impl Drop for FrozenDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = self.thaw(); // it is frozen only if a round failed
            if let Err(why) = run("umount", &[&self.mount]) {
                eprintln!("{} stays mounted: {why:#}", self.mount.display());
            }
        }
        let _ = std::fs::remove_file(&self.image); // it may not have been made
    }
}

fn run(program: &str, words: &[&Path]) -> Result<()> {
    let output =
        Command::new(program).args(words).output().with_context(|| format!("no command {program}"))?;
    if output.status.success() {
        return Ok(());
    }
    bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())
}
