//! Detects stalls of the whole machine. The host of a virtual machine can stop the machine, and the machine's clock continues meanwhile. So
//! a story can miss a deadline without a fault of the product.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The time between two readings of the clock.
const PULSE: Duration = Duration::from_millis(20);
/// If the thread that detects stalls wakes later than this, the whole machine has stalled. The scheduler alone never causes such a delay.
const LIMIT: Duration = Duration::from_secs(2);

/// The end and the length of each stall so far.
static STANDSTILLS: OnceLock<Mutex<Vec<(Instant, Duration)>>> = OnceLock::new();

/// Returns the longest stall that ended after `since`, if any. The first call starts the thread that detects stalls, so earlier stalls are
/// not known.
pub(crate) fn since(since: Instant) -> Option<Duration> {
    let seen = STANDSTILLS.get_or_init(|| {
        std::thread::spawn(watch);
        Mutex::default()
    });
    let seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    seen.iter().filter(|(ended, _)| *ended > since).map(|(_, length)| *length).max()
}

fn watch() {
    loop {
        let before = Instant::now();
        std::thread::sleep(PULSE);
        if before.elapsed() > LIMIT + PULSE
            && let Some(seen) = STANDSTILLS.get()
        {
            seen.lock().unwrap_or_else(PoisonError::into_inner).push((Instant::now(), before.elapsed()));
        }
    }
}
