//! Opens files that a configuration names. A name can lead to a FIFO or a device by mistake, and opening such a file must not block a
//! bridge.

use rustix::fs::OFlags;
use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

/// Opens a file, and refuses everything that is not an ordinary file. Never waits for another program.
///
/// # Errors
/// The system's error, or an error that names the kind of the file.
pub fn open(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    let kind = file.metadata()?.file_type();
    match kind.is_file() {
        true => Ok(file),
        false => Err(io::Error::other(format!("it is {}: give a file", name_of(kind)))),
    }
}

/// Reads a text file. Never waits for another program.
///
/// # Errors
/// As [`open`], and the errors of reading.
pub fn read_to_string(path: &Path) -> io::Result<String> {
    io::read_to_string(open(path, File::options().read(true))?)
}

fn name_of(kind: FileType) -> &'static str {
    match () {
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_dir() => "a directory",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    /// An earlier mistake: a FIFO in place of a keys file stopped a whole daemon until somebody wrote to the FIFO.
    #[test]
    fn only_ordinary_files_are_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        mkfifo(&fifo, Mode::from_bits_truncate(0o600)).unwrap();
        for (path, name) in
            [(&*fifo, "a FIFO"), (dir.path(), "a directory"), (Path::new("/dev/null"), "a device")]
        {
            let says = read_to_string(path).unwrap_err().to_string();
            assert_eq!(says, format!("it is {name}: give a file"));
        }
        let file = dir.path().join("file");
        std::fs::write(&file, "text").unwrap();
        assert_eq!(read_to_string(&file).unwrap(), "text");
        let written = open(&fifo, File::options().read(true).write(true).create(true)).unwrap_err();
        assert_eq!(written.to_string(), "it is a FIFO: give a file");
    }
}
