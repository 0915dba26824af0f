//! Windows of a long round. Each window has the same number of messages. At the end of each window, a process prints a histogram. The
//! process does not keep the times of messages, so its memory does not grow.
//!
//! The number of a message determines its window, so the windows of all processes agree. The thread that sends or receives only swaps two
//! histograms. Another thread encodes and prints them.

use crate::rig::child::say;
use crate::rig::spec::Spec;
use crate::rig::stats::{Distribution, histogram};
use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The latencies of one process in one window.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Window {
    /// The number of the window, from 0.
    pub index: u64,
    /// The receiver's latencies from the intended send, or the durations of the publisher's sends, in ns.
    pub distribution: Distribution,
}

/// The beginning of the line that a process prints for a window.
pub const PREFIX: &str = "window ";

/// The windows of one process.
#[derive(Debug)]
pub struct Windows {
    /// The number of messages in a window.
    each: u64,
    index: u64,
    current: Histogram<u64>,
    full: SyncSender<(u64, Histogram<u64>)>,
    empty: Receiver<Histogram<u64>>,
    printer: JoinHandle<Result<()>>,
}

impl Windows {
    /// Makes the windows of a round. Returns `None` if the round has no windows.
    pub fn of(spec: &Spec) -> Option<Self> {
        if spec.window_ns == 0 {
            return None;
        }
        let (full, fulls) = sync_channel(1);
        let (empties, empty) = sync_channel(2);
        empties.send(histogram()).expect("its receiver is in the next line but two");
        Some(Self {
            each: (spec.window_ns / spec.interval_ns.max(1)).max(1),
            index: 0,
            current: histogram(),
            full,
            empty,
            printer: std::thread::spawn(move || print(&fulls, &empties)),
        })
    }

    /// Notes `ns` for the counted message with the index `place`, from 0. If the message arrives after the end of its window, its value
    /// goes to the present window.
    #[inline]
    pub fn record(&mut self, place: u64, ns: u64) {
        if place / self.each > self.index {
            self.turn(place / self.each);
        }
        self.current.saturating_record(ns);
    }

    #[cold]
    fn turn(&mut self, index: u64) {
        // The printing thread has had a whole window of time to return the histogram.
        let Ok(empty) = self.empty.recv() else { return };
        let full = std::mem::replace(&mut self.current, empty);
        // If the printer has ended, `finish` reports this.
        let _ = self.full.send((self.index, full));
        self.index = index;
    }

    /// Prints the last window.
    ///
    /// # Errors
    /// When the rig has ended.
    pub fn finish(self) -> Result<()> {
        let _ = self.full.send((self.index, self.current));
        drop(self.full);
        self.printer.join().expect("it does not panic")
    }
}

fn print(fulls: &Receiver<(u64, Histogram<u64>)>, empties: &SyncSender<Histogram<u64>>) -> Result<()> {
    for (index, mut histogram) in fulls {
        if !histogram.is_empty() {
            let window = Window { index, distribution: Distribution::of(&histogram) };
            say(&format!("{PREFIX}{}", serde_json::to_string(&window)?)).context("print a window")?;
        }
        histogram.reset();
        let _ = empties.send(histogram); // there is no receiver at the end
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::spec::{Contestant, Wait};

    #[test]
    fn a_window_that_ends_between_two_messages() {
        let spec = Spec {
            interval_ns: 1000,
            window_ns: 10_500,
            ..Spec::one_to_one(Contestant::new("t", Wait::Spin), 32)
        };
        let mut windows = Windows::of(&spec).unwrap();
        assert_eq!(windows.each, 10);
        (0..25).filter(|place| *place != 12).for_each(|place| windows.record(place, place));
        assert_eq!((windows.index, windows.current.len(), windows.current.min()), (2, 5, 20));
        windows.record(12, 7); // late: counts in the window in which it came
        assert_eq!(windows.current.len(), 6);
        windows.finish().unwrap();
        assert!(Windows::of(&Spec { window_ns: 0, ..spec }).is_none());
    }
}
