//! Ctrl-C, SIGTERM and the end of the terminal (SIGHUP). A verb checks whether a signal has arrived. If the signal prevents the verb from
//! finishing its task, the verb reports this.

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::flag::{register_conditional_default, register_usize};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// After this call, a write beyond the limit on file sizes (`ulimit -f`) returns an error. Without this call, the kernel would end the
/// process with a signal. The call has no effect on programs that this process starts.
///
/// # Errors
/// The system refuses a handler.
pub fn survive_file_size_limit() -> std::io::Result<()> {
    // The signal is handled and not ignored, because programs that this process starts would inherit an ignored signal, but do not inherit
    // a handler.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map(drop)
}

/// Whether the process ignores a signal, as a program under `nohup` ignores SIGHUP.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// A flag that the first Ctrl-C, SIGTERM or SIGHUP sets. A later Ctrl-C or SIGTERM ends the process immediately.
#[derive(Debug)]
pub struct Stop {
    /// The last signal; 0 before the first one.
    signal: Arc<AtomicUsize>,
}

impl Stop {
    /// Handles Ctrl-C and SIGTERM from now on, and SIGHUP unless the process ignores it.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn listen() -> Result<Self> {
        let (came, signal) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        if !is_ignored(SIGHUP) {
            // A closed terminal can send this signal twice, so a second one does not end the process.
            register_usize(SIGHUP, signal.clone(), SIGHUP.unsigned_abs() as usize)?;
            signal_hook::flag::register(SIGHUP, came.clone())?;
        }
        for number in [SIGINT, SIGTERM] {
            // The order of these calls matters. From the moment at which a signal no longer ends the process, `signal` must note it. The
            // second handler must find `came` false at the first signal, so the handler that sets `came` comes last.
            register_usize(number, signal.clone(), number.unsigned_abs() as usize)?;
            register_conditional_default(number, came.clone())?;
            signal_hook::flag::register(number, came.clone())?;
        }
        Ok(Self { signal })
    }

    /// A `Stop` in the state after this signal, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn set_by(signal: i32) -> Self {
        Self { signal: Arc::new(AtomicUsize::new(signal.unsigned_abs() as usize)) }
    }

    /// The number of the last signal, for code that must stop at a signal; 0 before the first one.
    #[must_use]
    pub fn signal(&self) -> Arc<AtomicUsize> {
        self.signal.clone()
    }

    /// Whether a signal has come.
    #[must_use]
    pub fn is_set(&self) -> bool {
        self.signal.load(Ordering::Relaxed) != 0
    }

    /// The number of the last signal; 0 before the first one.
    #[must_use]
    pub fn flag(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.signal)
    }

    /// Makes the error of a verb that was stopped before it had finished its task. `said` says how much was done.
    #[must_use]
    pub fn interrupted(&self, said: impl Into<String>) -> Interrupted {
        Interrupted { signal: self.signal.load(Ordering::Relaxed), said: said.into() }
    }
}

/// An error that becomes exit code 128 + signal, as in shells: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
#[derive(Debug)]
pub struct Interrupted {
    signal: usize,
    said: String,
}

impl Interrupted {
    /// The exit code: 130 after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        u8::try_from(128 + self.signal).unwrap_or(u8::MAX)
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl std::error::Error for Interrupted {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_passes_for_success() {
        let code = |signal| Stop::set_by(signal).interrupted("").exit_code();
        assert_eq!((code(SIGINT), code(SIGTERM)), (130, 143));
    }
}
