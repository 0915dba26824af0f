//! Notices when the whole machine stands still, as a virtual machine does that its host stops. Time goes on
//! meanwhile, so that every deadline of a story may pass with nobody to blame.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks at the clock.
const PULSE: Duration = Duration::from_millis(20);
/// A look that comes so much later than it should is no matter of scheduling.
const LIMIT: Duration = Duration::from_secs(2);

/// End and length of each standstill so far.
static STANDSTILLS: OnceLock<Mutex<Vec<(Instant, Duration)>>> = OnceLock::new();

/// The longest standstill that ended after `since`, if there was one. The first call starts the thread that
/// looks, and can know of none.
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
