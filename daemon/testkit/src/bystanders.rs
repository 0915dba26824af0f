//! Traffic that runs in parallel to a test. The test must not disturb this traffic.

use crate::daemon::publishing;
use crate::wait::wait_for;
use shmcast::{Client, Event, Subscriber, Wait};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// A publisher and a reader on a channel that the test does not use. The test must not disturb them.
pub struct Bystanders {
    stop: Arc<AtomicBool>,
    received: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Bystanders {
    /// Starts to publish and to read on `channel`. The payload of each message is its sequence.
    pub fn start(client: &Client, channel: &str) -> Self {
        let (stop, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut publisher = publishing(client, channel).open().unwrap();
        let reader = Subscriber::builder(channel).client(client);
        let mut reader = reader.wait(Wait::Sleep(Duration::from_micros(500))).open().unwrap();
        let (stopped, count) = (stop.clone(), received.clone());
        let publishing = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                for _ in 0..5 {
                    let next = publisher.next_sequence();
                    publisher.publish(&next.to_le_bytes()).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let reading = std::thread::spawn(move || {
            let mut expected = reader.next_sequence();
            loop {
                match reader.recv().unwrap() {
                    Event::Message(message) => {
                        assert_eq!(message.sequence, expected, "a bystander missed a message");
                        assert_eq!(message.payload, expected.to_le_bytes(), "a bystander misread a message");
                        expected += 1;
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                    Event::End => return,
                    other => panic!("a bystander got {other:?}"),
                }
            }
        });
        Self { stop, received, threads: vec![publishing, reading] }
    }

    /// Waits until the reader has received more than 20 further messages.
    pub fn assert_flowing(&self) {
        let before = self.received.load(Ordering::Relaxed);
        wait_for("the bystanders' messages", || {
            assert!(!self.threads.iter().any(JoinHandle::is_finished), "a bystander stopped");
            (self.received.load(Ordering::Relaxed) > before + 20).then_some(())
        });
    }

    /// Ends the stream. Returns how many messages were received. The reader has checked that they were complete and in order.
    pub fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        self.received.load(Ordering::Relaxed)
    }
}
