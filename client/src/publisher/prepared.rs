//! Prepares a publisher's memory: all of it before [`open`](super::PublisherBuilder::open) returns, or most of it afterwards on a thread.
//!
//! The thread only touches the mapped memory, and runs only as long as the publisher exists. No call waits for the thread.

use rustix::process::nice;
use shmcast_layout::mem::{Pieces, Preparation, Step, is_real_time};
use shmcast_layout::segment::Segment;
use std::io;
use std::sync::{Arc, OnceLock};

/// Number of bytes that are touched before `open` returns. A thread prepares the remaining bytes of a larger segment.
const FIRST_BYTES: u64 = 8 << 20;

/// The lowest priority, as a number for `setpriority`: all other threads that need the CPU run first.
const LOWEST_PRIORITY: i32 = 19;

/// The progress and the result of preparing the memory.
pub(super) struct Prepared(Arc<OnceLock<Vec<Step>>>);

impl Prepared {
    /// Performs all `wanted` steps before it returns.
    pub(super) fn now(segment: &Segment, wanted: Preparation) -> Self {
        Self::done(segment.prepare(wanted))
    }

    /// Locks and touches all pages: the first ones before this call returns, and the others on a separate thread.
    ///
    /// But if the caller is a real-time thread, all pages are touched before the call returns. A real-time thread might never leave its
    /// CPU. The separate thread might then stop in the middle of a system call, and block other threads of the process.
    pub(super) fn behind(segment: &Segment) -> Self {
        let lock = segment.lock_on_fault();
        let mut pieces = segment.pieces();
        let first = (FIRST_BYTES / Pieces::PIECE_BYTES) as usize;
        let first: io::Result<()> = pieces.by_ref().take(first).collect();
        if first.is_err() || pieces.len() == 0 || is_real_time() {
            return Self::done(steps(first.and_then(|()| pieces.collect()), lock));
        }
        let prepared = Arc::new(OnceLock::new());
        let publisher = Arc::downgrade(&prepared);
        let thread = std::thread::Builder::new().name("shmcast-prepare".into()).spawn(move || {
            // If the kernel refuses the lowest priority, the thread keeps the priority of the thread that called `open`.
            let _ = nice(LOWEST_PRIORITY);
            let is_wanted = || publisher.strong_count() > 0;
            let touched: io::Result<()> = pieces.take_while(|_| is_wanted()).collect();
            if let Some(prepared) = publisher.upgrade() {
                let _ = prepared.set(steps(touched, lock)); // no other thread sets it
            }
        });
        match thread {
            Ok(_) => Self(prepared),
            // If no thread can be started, this call prepares all pages itself, and takes longer.
            Err(_) => Self::now(segment, Preparation { prefault: true, lock: true, ..Preparation::NONE }),
        }
    }

    fn done(steps: Vec<Step>) -> Self {
        Self(Arc::new(OnceLock::from(steps)))
    }

    /// Each step and its result. Empty until the preparation has ended.
    pub(super) fn steps(&self) -> &[Step] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

fn steps(touched: io::Result<()>, lock: Step) -> Vec<Step> {
    vec![Step { name: "prefault", result: touched }, lock]
}
