//! Pipes for the logs and the stderr of processes under limits. A limit on file sizes does not apply to a
//! pipe.

use anyhow::{Context, Result};
use std::fs::File;
use std::io::{PipeWriter, copy, pipe};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest time that [`settle`](Piped::settle) waits until the file has everything from the pipe.
const SETTLE: Duration = Duration::from_secs(5);

/// All pipes of a story.
#[derive(Debug, Clone, Default)]
pub struct Pipes(Arc<Mutex<Vec<Piped>>>);

/// One pipe, and the thread that writes its contents to a file.
#[derive(Debug, Clone)]
pub(super) struct Piped(Arc<JoinHandle<()>>);

impl Pipes {
    /// Makes a pipe. Its contents are appended to the file at `path`.
    pub(super) fn to(&self, path: &Path) -> Result<(PipeWriter, Piped)> {
        let mut file = File::options().create(true).append(true).open(path)?;
        let (mut reader, writer) = pipe().context("make a pipe")?;
        let thread = std::thread::spawn(move || drop(copy(&mut reader, &mut file)));
        let piped = Piped(Arc::new(thread));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(piped.clone());
        Ok((writer, piped))
    }

    /// Waits until the files have everything. All processes must have ended.
    pub(super) fn finish(&self) {
        for piped in self.0.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            piped.settle();
        }
    }
}

impl Piped {
    /// Waits until everything that the process wrote to the pipe is in the file, but at most for [`SETTLE`]. Call this only after the
    /// process has ended.
    pub(super) fn settle(&self) {
        let until = Instant::now() + SETTLE;
        while !self.0.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
