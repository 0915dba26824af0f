//! Reads files with secrets: keys and accounts.

use rustix::process::geteuid;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::files;

/// Reads the first `most` bytes of a file. The file must belong to root or to this user, and must not be readable or writable by anybody
/// else.
///
/// # Errors
/// A sentence that says what is wrong with the file and what to do about it. The sentence does not name the file.
pub(crate) fn read(path: &Path, most: u64) -> Result<String, String> {
    let file = files::open(path, File::options().read(true)).map_err(|e| e.to_string())?;
    if let Some(problem) = problem(&file.metadata().map_err(|e| e.to_string())?) {
        return Err(problem);
    }
    let mut text = String::new();
    file.take(most).read_to_string(&mut text).map_err(|e| e.to_string())?;
    Ok(text)
}

/// Returns why a file is not safe for a secret of this process, and what to do about it. Returns `None` if the file is safe.
pub fn problem(file: &Metadata) -> Option<String> {
    problem_of(file.mode(), file.uid(), geteuid().as_raw())
}

/// Does the same as [`problem`], for the given mode and owner of a file, and the given user of a process.
fn problem_of(mode: u32, owner: u32, user: u32) -> Option<String> {
    if ![0, user].contains(&owner) {
        return Some(format!(
            "it belongs to uid {owner}, and this process runs as uid {user}: chown {user} it, or run this as its owner"
        ));
    }
    (mode & 0o077 != 0).then(|| format!("mode {:o} lets others read it: chmod 600 it", mode & 0o777))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_belongs_to_root_or_to_this_user_and_nobody_else_may_read_it() {
        for (mode, owner, user) in [(0o100_600, 7, 7), (0o100_400, 0, 7), (0o100_600, 0, 0)] {
            assert_eq!(problem_of(mode, owner, user), None, "{mode:o} {owner} {user}");
        }
        for (owner, user) in [(8, 7), (7, 0)] {
            let says = problem_of(0o100_600, owner, user).unwrap();
            assert!(
                says.contains(&format!("belongs to uid {owner}"))
                    && says.contains(&format!("chown {user} it")),
                "{says}"
            );
        }
        for mode in [0o640, 0o604, 0o660, 0o610] {
            let says = problem_of(0o100_000 | mode, 7, 7).unwrap();
            assert!(says.contains(&format!("mode {mode:o}")) && says.contains("chmod 600 it"), "{says}");
        }
    }
}
