//! A reader keeps its deadlines in each way of waiting.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::Wait;
use shmcast_testkit::{PATIENCE, scratch};
use std::time::{Duration, Instant};

#[test]
fn every_wait_keeps_its_deadline_on_a_silent_channel() {
    let dir = scratch();
    let _publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    for wait in [
        Wait::Spin,
        Wait::Burst,
        Wait::SpinThenYield(100),
        Wait::Yield,
        Wait::Backoff,
        Wait::Sleep(Duration::from_micros(50)),
        Wait::Sleep(Duration::from_secs(3600)),
    ] {
        let mut reader = subscriber(dir.path()).wait(wait).open().unwrap();
        let deadline = Instant::now() + Duration::from_millis(10);
        assert_eq!(reader.recv_deadline(deadline).unwrap(), None, "{wait:?}");
        assert!(Instant::now() >= deadline, "{wait:?} gives up too soon");
        assert!(deadline.elapsed() < PATIENCE, "{wait:?} is late");
        let past = Instant::now();
        assert_eq!(reader.recv_deadline(past).unwrap(), None, "{wait:?}: a deadline that has passed");
    }
}
