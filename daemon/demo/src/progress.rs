//! A line on a terminal that shows the progress. It is overwritten again and again, and removed at the end.

use std::io::{self, IsTerminal, Write};

/// The progress line. If stderr is no terminal, nothing is written.
pub(crate) struct Progress {
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_terminal: io::stderr().is_terminal() }
    }

    /// Replaces the line by this text.
    pub(crate) fn show(&self, text: &str) {
        if self.is_terminal {
            // A failed write to stderr cannot be reported anywhere.
            let _ = io::stderr().write_all(format!("\r\x1b[K{text}").as_bytes());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}
