//! Decides which files belong to a channel of shmcast's. These files are called ours.
//!
//! A file is removed, overwritten or followed only if it is proved to be ours. A name alone is never enough:
//!
//! | entry of a channel's directory | ours if it is an ordinary file and |
//! |---|---|
//! | `lock` | only its owner can open it (0600); the owner is root, this user, or the owner of the directory; the file is empty, or holds one process id and a newline |
//! | `segment` | begins with the magic of segments, or `lock` is ours: a damaged segment can be removed |
//! | `.segment.new` | begins with the magic of segments, or with a zero, or is empty: the magic is stored last |
//! | `readers/PID-RANDOM` | begins with the magic of reader pages; RANDOM is 16 hexadecimal digits |
//! | `readers/.PID-RANDOM` | begins with the magic of reader pages, or with a zero, or is empty: its reader is still making it, or died |
//! | `gates/GATE` | its name is the name of a gate, and it has the magic or the size of gate pages: its reader can have overwritten the magic |
//! | `gates/.figures` | always: only the owner makes files in `gates` |
//! | `gates/.new-RANDOM` | always, as for `gates/.figures` |
//!
//! `readers` must be a directory and not a link. A publisher makes `lock` before any other file. So `readers` and `.segment.new` are ours
//! only beside a `lock` or a `segment` that is ours. An entry that the table does not name is foreign.

use super::folder::{Folder, is_directory, is_plain, mode};
use crate::error::ChannelError;
use crate::error::is_absent;
use crate::gate::GateName;
use rustix::fs::{OFlags, Stat};
use shmcast_layout::fault;
use shmcast_layout::layout::{gate, header, reader_page};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(super) const SEGMENT: &str = "segment";
pub(super) const LOCK: &str = "lock";
pub(super) const READERS: &str = "readers";
pub(super) const GATES: &str = "gates";
/// The publisher's figures about its gates.
pub(super) const FIGURES: &str = ".figures";
/// Start of the name of an unfinished gate page. 16 hexadecimal digits follow.
pub(super) const UNFINISHED_GATE: &str = ".new-";
/// A segment that its publisher has not finished.
pub(super) const UNFINISHED: &str = ".segment.new";
/// Start of the name of a channel that is being removed. 16 hexadecimal digits follow.
pub(super) const REMOVED: &str = ".removed-";

pub(super) const NO_LOCK: &str = "is not a lock file that shmcast made";
const NO_SEGMENT: &str = "is not a segment that shmcast made";
const NO_GATES: &str = "is not a directory of gates that shmcast made";
pub(super) const NO_READERS: &str = "is not a directory that shmcast made";

/// The possible first words of an unfinished segment. The magic is stored last. Before that, the first word is zero, or the file is empty
/// (`None`).
const UNFINISHED_MAGICS: &[Option<u64>] = &[None, Some(0), Some(header::MAGIC)];

/// The longest content of a lock file: a process id and a newline.
const LOCK_BYTES: i64 = 16;

/// All entries of a channel's directory.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    /// The names of our files, with the bytes of memory that each file takes. The names of reader pages begin with `readers/`.
    pub(super) files: Vec<(String, u64)>,
    /// The first entry that is not ours, and the reason.
    pub(super) foreign: Option<(String, &'static str)>,
    /// Whether `segment` begins with the magic.
    pub(super) has_segment: bool,
}

impl Inventory {
    /// Reads all entries of `folder`. If the caller does not hold the channel's lock, the result can lack files that publishers or removers
    /// make or remove meanwhile. Such a file never counts as foreign.
    ///
    /// Publishers make the lock file first, and removers remove it last. This function lists the folder, then checks the lock file, and
    /// then checks the listed entries. So if a listed entry still exists, the check has found the lock file.
    pub(super) fn of(folder: &Folder) -> io::Result<Self> {
        let names = sorted_names(folder)?;
        let lock = lock_of(folder)?;
        let mut found = Self { has_segment: is_segment(folder)?, ..Self::default() };
        let is_channel = found.has_segment || lock == Some(true);
        for name in names {
            let known = folder.stat(&name).and_then(|stat| {
                let why = match name.to_str() {
                    Some(LOCK) => (lock == Some(false)).then_some(NO_LOCK),
                    Some(SEGMENT | UNFINISHED | READERS | GATES) if !is_channel => {
                        Some("lies there without a lock file")
                    }
                    Some(SEGMENT) => (!is_plain(&stat)).then_some(NO_SEGMENT),
                    Some(UNFINISHED) => {
                        (!begins_with(folder, UNFINISHED, UNFINISHED_MAGICS)?).then_some(NO_SEGMENT)
                    }
                    Some(READERS) if !is_directory(&stat) => Some(NO_READERS),
                    Some(READERS) => found.add_pages(&folder.folder(READERS)?).map(|()| None)?,
                    Some(GATES) if !is_directory(&stat) => Some(NO_GATES),
                    Some(GATES) => found.add_gates(folder).map(|()| None)?,
                    _ => Some("was not made by shmcast"),
                };
                Ok((stat, why))
            });
            match known {
                Ok((stat, why)) => found.add(name.to_string_lossy().into_owned(), &stat, why),
                Err(e) if is_absent(&e) => {}
                Err(e) => return Err(e),
            }
        }
        if fault!("foreign_files_are_overlooked") {
            found.foreign = None;
        }
        Ok(found)
    }

    fn add_pages(&mut self, readers: &Folder) -> io::Result<()> {
        for name in sorted_names(readers)? {
            let known = readers.stat(&name).and_then(|stat| Ok((is_page(readers, &name, &stat)?, stat)));
            let (is_ours, stat) = match known {
                Err(e) if is_absent(&e) => continue,
                known => known?,
            };
            let shown = format!("{READERS}/{}", name.to_string_lossy());
            self.add(shown, &stat, (!is_ours).then_some("is not a reader page"));
        }
        Ok(())
    }

    fn add_gates(&mut self, channel: &Folder) -> io::Result<()> {
        let gates = channel.folder(GATES)?;
        for name in sorted_names(&gates)? {
            let known = is_gate_file(&gates, &name).and_then(|ours| Ok((ours, gates.stat(&name)?)));
            let (is_ours, stat) = match known {
                Err(e) if is_absent(&e) => continue,
                known => known?,
            };
            let shown = format!("{GATES}/{}", name.to_string_lossy());
            self.add(shown, &stat, (!is_ours).then_some("is not a gate's page"));
        }
        Ok(())
    }

    fn add(&mut self, name: String, stat: &Stat, why: Option<&'static str>) {
        match why {
            None => self.files.push((name, stat.st_blocks as u64 * 512)),
            Some(why) => self.foreign = self.foreign.take().or(Some((name, why))),
        }
    }

    /// Whether the directory has a lock or a segment of a channel.
    pub(super) fn is_channel(&self) -> bool {
        self.files.iter().any(|(name, _)| name == LOCK || name == SEGMENT)
    }

    /// Returns an error if the directory holds a foreign entry, which is an entry that is not ours.
    pub(super) fn all_ours(self, folder: &Folder) -> Result<Self, ChannelError> {
        match self.foreign {
            Some((entry, why)) => Err(not_a_channel(folder, entry, why)),
            None => Ok(self),
        }
    }
}

pub(super) fn not_a_channel(folder: &Folder, entry: impl Into<String>, why: &'static str) -> ChannelError {
    ChannelError::NotAChannel { dir: folder.path().to_owned(), entry: entry.into(), why }
}

/// Whether there is a segment. A segment begins with its magic.
pub(super) fn is_segment(folder: &Folder) -> io::Result<bool> {
    match begins_with(folder, SEGMENT, &[Some(header::MAGIC)]) {
        Err(e) if is_absent(&e) => Ok(false),
        known => known,
    }
}

/// Whether the lock file is ours; `None` if there is no lock file. The content of another user's lock file cannot be read, so it is not
/// checked.
pub(super) fn lock_of(folder: &Folder) -> io::Result<Option<bool>> {
    let owner = folder.own_stat()?.st_uid;
    match folder.stat(LOCK) {
        Ok(stat) if !is_lock(&stat, owner) => return Ok(Some(false)),
        Err(e) if is_absent(&e) => return Ok(None),
        stat => stat?,
    };
    match folder.file(LOCK, OFlags::RDONLY) {
        Ok(file) => holds_a_pid(&file).map(Some),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => Ok(Some(true)),
        Err(e) if is_absent(&e) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether this is the metadata of a lock file of ours. `owner` is the directory's owner.
pub(super) fn is_lock(stat: &Stat, owner: u32) -> bool {
    let me = nix::unistd::geteuid().as_raw();
    let is_private = mode(stat) & !0o600 == 0 && stat.st_size <= LOCK_BYTES;
    is_plain(stat) && is_private && [owner, 0, me].contains(&stat.st_uid)
}

/// Whether a file is empty or holds one process id and a newline.
pub(super) fn holds_a_pid(file: &File) -> io::Result<bool> {
    let mut bytes = [0; LOCK_BYTES as usize + 1];
    let length = file.read_at(&mut bytes, 0)?;
    Ok(match bytes[..length].split_last() {
        None => true,
        Some((end, digits)) => *end == b'\n' && !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
    })
}

/// Whether a name is the name of a reader page. A page that its reader is still making has a hidden name.
pub(super) fn is_page_name(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    let name = name.strip_prefix(b".").unwrap_or(name);
    let mut parts = name.splitn(2, |byte| *byte == b'-');
    let pid = parts.next().unwrap_or_default();
    !pid.is_empty()
        && pid.len() <= 10
        && pid.iter().all(u8::is_ascii_digit)
        && parts.next().is_some_and(is_random)
}

/// Whether an entry of a directory of gates is ours. Only the owner of the directory can make files in it, but the reader of a gate can
/// have overwritten or extended the gate's page.
pub(super) fn is_gate_file(gates: &Folder, name: &OsStr) -> io::Result<bool> {
    let stat = gates.stat(name)?;
    let Some(text) = name.to_str().filter(|_| is_plain(&stat) && mode(&stat) & 0o111 == 0) else {
        return Ok(false);
    };
    if let Some(random) = text.strip_prefix(UNFINISHED_GATE) {
        return Ok(is_random(random.as_bytes()));
    }
    let is_page = || {
        stat.st_size as u64 == gate::BYTES || begins_with(gates, name, &[Some(gate::MAGIC)]).unwrap_or(false)
    };
    Ok(text == FIGURES || text.parse::<GateName>().is_ok() && is_page())
}

/// Whether a name is the name of a channel that is being removed.
pub(super) fn is_removed_name(name: &OsStr) -> bool {
    name.as_encoded_bytes().strip_prefix(REMOVED.as_bytes()).is_some_and(is_random)
}

/// Whether a text has the form of the results of `unique`: 16 lower-case hexadecimal digits.
fn is_random(text: &[u8]) -> bool {
    text.len() == 16 && text.iter().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(byte))
}

/// Whether the file `name` is a reader page, finished or not. Only its owner can read a hidden page, so other users do not check its
/// content.
fn is_page(readers: &Folder, name: &OsStr, stat: &Stat) -> io::Result<bool> {
    if !is_page_name(name) {
        return Ok(false);
    }
    match begins_with(readers, name, page_magics(name)) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
            Ok(is_hidden(name) && is_plain(stat) && stat.st_size as u64 <= reader_page::BYTES)
        }
        known => known,
    }
}

pub(super) fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

/// Whether an open file begins as a reader page does. `name` is the name by which the file was opened.
pub(super) fn begins_as_page(file: &File, name: &OsStr) -> io::Result<bool> {
    Ok(page_magics(name).contains(&first_word(file)?))
}

/// Returns the possible first words of a reader page with this name. The magic is stored last. Before that, the page has a hidden name, and
/// its first word is zero, or the page is empty (`None`).
fn page_magics(name: &OsStr) -> &'static [Option<u64>] {
    const HIDDEN: &[Option<u64>] = &[Some(reader_page::MAGIC), Some(0), None];
    if is_hidden(name) { HIDDEN } else { &HIDDEN[..1] }
}

/// Returns the names in a directory, in order. Returns no names if the directory was removed meanwhile.
fn sorted_names(folder: &Folder) -> io::Result<Vec<OsString>> {
    let mut names = match folder.names() {
        Err(e) if is_absent(&e) => Vec::new(),
        names => names?,
    };
    names.sort();
    Ok(names)
}

/// Whether a file begins with one of `words`. False for a link, a pipe or a directory. Returns an error if the file does not exist, or if
/// this process has no permission to read the file.
fn begins_with(folder: &Folder, name: impl AsRef<OsStr>, words: &[Option<u64>]) -> io::Result<bool> {
    match folder.file(name, OFlags::RDONLY) {
        Ok(file) => Ok(words.contains(&first_word(&file)?)),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied || is_absent(&e) => Err(e),
        Err(_) => Ok(false),
    }
}

/// The first word of a file; `None` if the file is shorter than a word.
fn first_word(file: &File) -> io::Result<Option<u64>> {
    let mut bytes = [0; 8];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(Some(u64::from_le_bytes(bytes))),
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_somebody_elses_that_passes_for_a_pages() {
        for good in ["1-0123456789abcdef", ".4194305-ffffffffffffffff"] {
            assert!(is_page_name(good.as_ref()), "{good}");
        }
        for bad in [
            "",
            "-0123456789abcdef",
            "1-",
            "1-0123456789abcde",
            "1-0123456789abcdef0",
            "1-0123456789ABCDEF",
            "..1-0123456789abcdef",
            "x-0123456789abcdef",
            "alice.txt",
            "1-0123456789abcdef.txt",
            "12345678901-0123456789abcdef",
        ] {
            assert!(!is_page_name(bad.as_ref()), "{bad}");
        }
        assert!(is_removed_name(".removed-0123456789abcdef".as_ref()));
        for bad in [".removed-", ".removed-0", "removed-0123456789abcdef", ".removed-0123456789abcdef.bak"] {
            assert!(!is_removed_name(bad.as_ref()), "{bad}");
        }
    }
}
