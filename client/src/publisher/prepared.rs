//! Preparing a publisher's memory: all of it before [`open`](super::PublisherBuilder::open) returns, or most of it behind.
//!
//! The thread that prepares behind the publisher touches nothing but the map. It goes on only as long as the publisher is there,
//! and nobody waits for it.

use rustix::process::nice;
use shmcast_layout::mem::{Pieces, Preparation, Step, is_real_time};
use shmcast_layout::segment::Segment;
use std::io;
use std::sync::{Arc, OnceLock};

/// Bytes that are touched before `open` returns. The rest of a larger segment is prepared behind.
const FIRST_BYTES: u64 = 8 << 20;

/// What `setpriority` calls the lowest priority: whoever else wants the CPU goes before.
const LOWEST_PRIORITY: i32 = 19;

/// How the preparation of the memory went.
pub(super) struct Prepared(Arc<OnceLock<Vec<Step>>>);

impl Prepared {
    /// Does all that is `wanted` now.
    pub(super) fn now(segment: &Segment, wanted: Preparation) -> Self {
        Self::done(segment.prepare(wanted))
    }

    /// Has all pages locked and touched: the first ones now, the rest by a thread of its own.
    ///
    /// All of them now where the opener is a real-time thread: on a CPU that it never gives away, a thread behind it would not
    /// get to its end, and might hold up others of the process in the middle of a system call.
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
            // Where that is refused, the thread has the priority of the one that opened.
            let _ = nice(LOWEST_PRIORITY);
            let is_wanted = || publisher.strong_count() > 0;
            let touched: io::Result<()> = pieces.take_while(|_| is_wanted()).collect();
            if let Some(prepared) = publisher.upgrade() {
                let _ = prepared.set(steps(touched, lock)); // nobody else sets it
            }
        });
        match thread {
            Ok(_) => Self(prepared),
            // No thread is to be had: it takes longer, and the publisher is as well prepared.
            Err(_) => Self::now(segment, Preparation { prefault: true, lock: true, ..Preparation::NONE }),
        }
    }

    fn done(steps: Vec<Step>) -> Self {
        Self(Arc::new(OnceLock::from(steps)))
    }

    /// Each step and its result; empty as long as the preparation goes on.
    pub(super) fn steps(&self) -> &[Step] {
        self.0.get().map_or(&[], Vec::as_slice)
    }
}

fn steps(touched: io::Result<()>, lock: Step) -> Vec<Step> {
    vec![Step { name: "prefault", result: touched }, lock]
}
