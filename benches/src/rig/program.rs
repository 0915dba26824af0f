//! A copy of a program in memory.
//!
//! When the kernel first reads a program's file, it chooses the pages of memory for the contents. All rounds of a run would use the same
//! pages, and the choice matters: two copies of one program published messages of 256 B in 13.5 and in 16.6 ns. So each round runs its own
//! copy of the program. Slow pages then affect only one round, and the median is taken over many copies.
//!
//! A script is not copied, because it might need other files in its directory.

use anyhow::{Context, Result};
use rustix::fs::{MemfdFlags, memfd_create};
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// A copy of a program, or the path of a script. The copy exists until this value is dropped and the copy's last process has
/// ended.
#[derive(Debug)]
pub(super) enum Program {
    Copy(File),
    Script(PathBuf),
}

impl Program {
    /// Copies `program`, unless it is a script.
    pub(super) fn copied(program: &Path) -> Result<Self> {
        let copy = || -> io::Result<Self> {
            let (mut from, mut start) = (File::open(program)?, [0; 2]);
            from.read_exact(&mut start)?;
            if start == *b"#!" {
                return Ok(Self::Script(program.to_owned()));
            }
            let mut copy = File::from(memfd_create("player", MemfdFlags::CLOEXEC)?);
            from.rewind()?;
            io::copy(&mut from, &mut copy)?;
            Ok(Self::Copy(copy))
        };
        let hint = "is it there, and does the kernel allow it (sysctl vm.memfd_noexec is 0)?";
        copy().with_context(|| format!("copy {} into memory: {hint}", program.display()))
    }

    /// Returns the path at which children of this process find the program.
    pub(super) fn path(&self) -> PathBuf {
        match self {
            Self::Copy(file) => PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd())),
            Self::Script(path) => path.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn a_script_is_played_where_it_is_and_a_program_from_a_copy() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("script");
        fs::write(&script, "#!/bin/sh\necho \"$0\"\n").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        let played = Program::copied(&script).unwrap();
        let out = Command::new(played.path()).output().unwrap();
        assert_eq!(String::from_utf8(out.stdout).unwrap().trim(), script.to_str().unwrap());
        let copy = Program::copied(Path::new("/bin/true")).unwrap();
        assert_ne!(copy.path(), Path::new("/bin/true"));
        assert!(Command::new(copy.path()).status().unwrap().success());
        assert!(Program::copied(&dir.path().join("none")).is_err());
    }
}
