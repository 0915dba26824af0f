//! The source of all readings: the live host, or a directory with a copy of a host's files.
//!
//! All files and tools that the checks read go through [`Root`]. So a check behaves in the same way on a machine, on a copy of another
//! machine's files, and in a test. This module does not evaluate what it reads.
//!
//! Each read is bounded. In a copy, only regular files are opened, so a pipe cannot block the doctor.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The limit for the bytes of a read. `/proc/interrupts` of a host with a thousand CPUs has fewer bytes, and all other files are far
/// smaller.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The directories from which tools are run. No other directory is used, so the doctor, run as root, never runs a program from a user's
/// PATH.
const TOOL_DIRS: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// The host to read: the running host, or a copy of its files below a directory.
#[derive(Debug, Clone)]
pub struct Root {
    dir: PathBuf,
    live: bool,
}

/// The reason why a directory cannot stand for a host.
#[derive(Debug, thiserror::Error)]
pub enum OpenRootError {
    /// The file cannot be opened.
    #[error(
        "cannot open the root {dir}: {cause}; name a directory that holds a copy of a host's /proc and /sys"
    )]
    Unreadable {
        /// The requested directory.
        dir: PathBuf,
        /// The system's error.
        cause: io::Error,
    },
    /// The directory has neither `proc` nor `sys`, so every check would be unknown.
    #[error("{dir} holds neither proc nor sys; name the directory above them")]
    NotAHost {
        /// The requested directory.
        dir: PathBuf,
    },
}

/// The reason why something could not be read. Each reason makes a check unknown, never passed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unread {
    /// The file does not exist. The kernel or the machine does not have such a file, or the file was not copied.
    #[error("{path} is missing")]
    Missing {
        /// Absolute path on the host.
        path: String,
    },
    /// This user is not allowed to read the file.
    #[error("{path} may not be read by this user")]
    Denied {
        /// Absolute path on the host.
        path: String,
    },
    /// The file could not be read for another reason.
    #[error("cannot read {path}: {cause}")]
    Failed {
        /// Absolute path on the host.
        path: String,
        /// The system's error.
        cause: String,
    },
    /// The file was read, but its content does not have the expected form.
    #[error("{path} holds {held:?}, not {wanted}")]
    Malformed {
        /// Absolute path on the host.
        path: String,
        /// The start of the file's content.
        held: String,
        /// The form that was expected.
        wanted: &'static str,
    },
    /// The only tool that shows the value is not installed.
    #[error("{tool} is not installed, and no file shows this")]
    NoTool {
        /// The name of the program, and also of its package.
        tool: String,
    },
    /// The tool ran and failed.
    #[error("{command}: {cause}")]
    ToolFailed {
        /// The command line.
        command: String,
        /// The first line of the tool's error message.
        cause: String,
    },
}

impl Root {
    /// The running host.
    #[must_use]
    pub fn live() -> Self {
        Self { dir: PathBuf::from("/"), live: true }
    }

    /// Opens the copy of a host below `dir`. `/` is the running host. The output of a tool is read from `dir/commands/COMMAND LINE`, for
    /// example `dir/commands/ethtool -c eth0`.
    ///
    /// # Errors
    /// [`OpenRootError`] when `dir` cannot be opened or has neither `proc` nor `sys`.
    pub fn at(dir: &Path) -> Result<Self, OpenRootError> {
        let dir =
            dir.canonicalize().map_err(|cause| OpenRootError::Unreadable { dir: dir.to_owned(), cause })?;
        if dir == Path::new("/") {
            return Ok(Self::live());
        }
        if !dir.join("proc").is_dir() && !dir.join("sys").is_dir() {
            return Err(OpenRootError::NotAHost { dir });
        }
        Ok(Self { dir, live: false })
    }

    /// The directory that stands for `/`.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the bytes of `path`, an absolute path on the host. Returns at most 16 MiB.
    ///
    /// # Errors
    /// [`Unread`]. It names `path` in the form that the path has on the host.
    pub fn bytes(&self, path: &str) -> Result<Vec<u8>, Unread> {
        let below = self.below(path);
        let read = || {
            if !self.live && !fs::metadata(&below)?.is_file() {
                return Err(io::Error::other("not a regular file"));
            }
            let mut bytes = Vec::new();
            File::open(&below)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        read().map_err(|cause| unread(path, &cause))
    }

    /// Returns the text of `path` without white space at its start and end.
    ///
    /// # Errors
    /// [`Unread`], also when the file is not UTF-8.
    pub fn text(&self, path: &str) -> Result<String, Unread> {
        let bytes = self.bytes(path)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(text.trim().to_owned()),
            Err(_) => Err(malformed(path, &String::from_utf8_lossy(&bytes), "text")),
        }
    }

    /// Returns the names in the directory `path` in order. Numbers are ordered by value.
    ///
    /// # Errors
    /// [`Unread`] when the directory cannot be listed.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Unread> {
        let list = || {
            fs::read_dir(self.below(path))?
                .map(|entry| Ok(entry?.file_name()))
                .collect::<io::Result<Vec<_>>>()
        };
        let mut names: Vec<String> = list()
            .map_err(|cause| unread(path, &cause))?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .collect();
        names.sort_by_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), name.clone()));
        Ok(names)
    }

    /// Whether `path` exists, whatever its type.
    #[must_use]
    pub fn exists(&self, path: &str) -> bool {
        self.below(path).exists()
    }

    /// Returns the output of `tool args...`. On the live host the tool is run. In a copy, the output is read from `commands/`.
    ///
    /// # Errors
    /// [`Unread`] when the tool is not installed, its output was not copied, or it failed.
    pub fn command(&self, tool: &str, args: &[&str]) -> Result<String, Unread> {
        let line = format!("{tool} {}", args.join(" "));
        if !self.live {
            return self.text(&format!("/commands/{line}"));
        }
        let program = TOOL_DIRS
            .iter()
            .map(|dir| Path::new(dir).join(tool))
            .find(|program| program.is_file())
            .ok_or_else(|| Unread::NoTool { tool: tool.to_owned() })?;
        let failed = |cause: String| Unread::ToolFailed { command: line.clone(), cause };
        let output = Command::new(program)
            .args(args)
            .env("LC_ALL", "C")
            .stdin(Stdio::null())
            .output()
            .map_err(|cause| failed(cause.to_string()))?;
        if !output.status.success() {
            let complaint = String::from_utf8_lossy(&output.stderr);
            return Err(failed(complaint.lines().next().unwrap_or("failed in silence").trim().to_owned()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    /// Whether this is the running host.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.live
    }

    /// Returns the path with which this process opens `path`, an absolute path on the host.
    #[must_use]
    pub fn below(&self, path: &str) -> PathBuf {
        self.dir.join(path.trim_start_matches('/'))
    }
}

/// Makes the error of a file that was read but does not have the expected content.
pub(super) fn malformed(path: &str, held: &str, wanted: &'static str) -> Unread {
    let held: String = held.trim().chars().take(40).collect();
    Unread::Malformed { path: path.to_owned(), held, wanted }
}

fn unread(path: &str, cause: &io::Error) -> Unread {
    let path = path.to_owned();
    match cause.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unread::Missing { path },
        io::ErrorKind::PermissionDenied => Unread::Denied { path },
        _ => Unread::Failed { path, cause: cause.to_string() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_no_host_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        assert!(matches!(Root::at(dir.path()), Err(OpenRootError::NotAHost { .. })));
        assert!(matches!(Root::at(&dir.path().join("none")), Err(OpenRootError::Unreadable { .. })));
    }

    #[test]
    fn a_pipe_in_a_copied_tree_does_not_hang() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(dir.path().join("proc")).expect("a directory");
        let made = Command::new("mkfifo").arg(dir.path().join("proc/swaps")).status().expect("mkfifo runs");
        assert!(made.success());
        let root = Root::at(dir.path()).expect("proc is there");
        assert!(matches!(root.text("/proc/swaps"), Err(Unread::Failed { .. })));
        assert!(matches!(root.text("/proc/none"), Err(Unread::Missing { .. })));
    }

    #[test]
    fn a_tool_nobody_installed_is_named() {
        let missing = Root::live().command("no-such-tool-of-ours", &["-x"]);
        assert_eq!(missing, Err(Unread::NoTool { tool: "no-such-tool-of-ours".into() }));
    }

    #[test]
    fn a_tools_complaint_is_kept() {
        let failed = Root::live().command("ls", &["/no/such/directory"]);
        assert!(matches!(failed, Err(Unread::ToolFailed { cause, .. }) if cause.contains("No such file")));
    }
}
