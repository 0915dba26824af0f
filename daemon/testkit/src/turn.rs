//! Turns of tests that have many processes, so that a few of them run at a time.

use std::sync::{Condvar, Mutex, PoisonError};

/// How many tests with several processes run at a time in one program. Each has some processes that want a CPU for a part of its time; more of them make
/// each other slow, and fewer leave the machine idle while they wait.
const AT_A_TIME: usize = 4;
static TURNS: (Mutex<usize>, Condvar) = (Mutex::new(AT_A_TIME), Condvar::new());

/// A test's turn, until dropped.
pub struct Turn(());

/// Waits until fewer than `AT_A_TIME` tests of this program have a turn.
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
