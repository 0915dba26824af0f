//! Limits how many tests with many processes run at the same time.

use std::sync::{Condvar, Mutex, PoisonError};

/// The number of tests with several processes that may run at the same time in one program. More tests would slow each other down. Fewer
/// tests would leave CPUs idle, because such a test needs a CPU only for a part of the time.
const AT_A_TIME: usize = 8;
static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(AT_A_TIME), Condvar::new());

/// A test's permit to run. Dropping this value returns the permit.
pub struct Turn(());

/// Waits for a permit, and takes it. At most `AT_A_TIME` tests of this program have a permit.
pub fn turn() -> Turn {
    let (free, freed) = &TURNS;
    let free = free.lock().unwrap_or_else(PoisonError::into_inner);
    let mut free = freed.wait_while(free, |free| *free == 0).unwrap_or_else(PoisonError::into_inner);
    *free -= 1;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        let (free, freed) = &TURNS;
        *free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        freed.notify_one();
    }
}
