//! The output of the command and of the demo. Data goes to stdout, and all other text to stderr.
//!
//! 1. Each line, and each table, is one write. So programs that share a file or a terminal do not mix parts of their lines.
//! 2. If a text cannot be written to stderr, it is dropped. Publishing and receiving continue, because they never depend on
//!    a terminal.
//! 3. If data cannot be written to stdout, this is an `Unwritable` error. There is one exception: if the reader of a pipe has left, the
//!    program ends quietly and successfully.

use anyhow::{Error, Result};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

/// Prints a message for people on stderr, after the program's name.
#[macro_export]
#[doc(hidden)]
macro_rules! note {
    ($($text:tt)*) => { $crate::say::line(format_args!("shmcast: {}", format_args!($($text)*))) };
}
pub use crate::note;

/// Writes one line to stderr, as it is.
pub fn line(text: impl Display) {
    // A failed write to stderr cannot be reported anywhere.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Writes `text` to stdout, and a newline if it does not end with one.
///
/// # Errors
/// Stdout cannot be written: see [`has_reader_left`].
pub fn print(text: impl Display) -> Result<()> {
    let mut out = Out::stdout()?;
    write!(out, "{text}")?;
    if !out.buffer.ends_with(b"\n") {
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}

/// Writes a value to stdout as one line of JSON.
///
/// # Errors
/// The same as for [`print()`].
pub fn print_json(value: &impl serde::Serialize) -> Result<()> {
    let mut out = Out::stdout()?;
    serde_json::to_writer(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// The reason why stdout could not be written.
#[derive(Debug)]
struct Unwritable(io::Error);

impl Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot write to stdout: {}", self.0)
    }
}

impl std::error::Error for Unwritable {}

/// Marks an error as one that occurred on stdout.
#[must_use]
pub fn unwritable(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), Unwritable(e))
}

/// Whether the error says that our stdout has no reader any more, for example because the other end of a pipe was closed.
#[must_use]
pub fn has_reader_left(error: &Error) -> bool {
    let causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>()?.get_ref());
    causes
        .into_iter()
        .filter_map(|cause| cause.downcast_ref::<Unwritable>())
        .any(|e| e.0.kind() == ErrorKind::BrokenPipe)
}

/// A stdout that does not flush after each line. [`flush`](Write::flush) writes all buffered bytes, in one system call if the system
/// accepts them all.
#[derive(Debug)]
pub struct Out {
    file: File,
    buffer: Vec<u8>,
}

/// The number of buffered bytes at which messages are written, without waiting for more messages.
const ENOUGH_BYTES: usize = 1 << 16;

impl Out {
    /// The stdout of this process.
    ///
    /// # Errors
    /// It is closed.
    pub fn stdout() -> Result<Self> {
        Ok(Self { file: File::from(io::stdout().as_fd().try_clone_to_owned()?), buffer: Vec::new() })
    }

    /// If the buffered messages have at least 64 KiB, writes them. Call this after each message, so that no write ends within a message.
    ///
    /// # Errors
    /// The same as for [`print()`].
    pub fn end_message(&mut self) -> io::Result<()> {
        if self.buffer.len() < ENOUGH_BYTES { Ok(()) } else { self.flush() }
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.buffer);
        self.buffer.clear();
        written.map_err(unwritable)
    }
}
