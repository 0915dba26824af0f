//! A channel from the host `near` to the host `far`: a publisher that publishes until the end, and a reader that judges.

use super::judge::{Figures, Judge};
use crate::feed::{Content, LONGEST, Sizes};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_testkit::REST;
use shmcast_testkit::command::Host;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The pause between two bursts of the publisher.
const PAUSE: Duration = Duration::from_millis(10);

#[derive(Default)]
struct State {
    /// The sequence of the next message.
    next: AtomicU64,
    /// The number of additional messages that must be published immediately.
    owed: AtomicU64,
    stop: AtomicBool,
    judge: Mutex<Judge>,
    /// The reason why the reader no longer reads.
    broken: Mutex<Option<String>>,
}

pub(super) struct Line {
    pub(super) near: Host,
    pub(super) far: Host,
    state: Arc<State>,
    threads: Vec<JoinHandle<()>>,
}

impl Line {
    /// Publishes `burst` messages every 10 ms into a ring of `capacity` bytes.
    pub(super) fn publish(burst: u64, capacity: u64) -> Line {
        let (near, far) = (Host::new(), Host::new());
        let state = Arc::<State>::default();
        state.next.store(1, Ordering::Relaxed);
        let builder = Publisher::builder("ticks").dir(near.dir.path().join("channels"));
        let publisher = builder.capacity(capacity).max_message(LONGEST as u64).open().unwrap();
        let [at_near, at_far] = [&near, &far].map(|host| host.dir.path().join("channels"));
        let (shared, judged) = (state.clone(), state.clone());
        let threads = vec![
            std::thread::spawn(move || feed(publisher, &shared, burst)),
            std::thread::spawn(move || judge(&judged, &at_near, &at_far)),
        ];
        Line { near, far, state, threads }
    }

    /// The sequence of the next message.
    pub(super) fn next(&self) -> u64 {
        self.state.next.load(Ordering::Relaxed)
    }

    /// The sequence that is expected next at the far end.
    pub(super) fn due(&self) -> u64 {
        self.state.judge.lock().unwrap_or_else(PoisonError::into_inner).due
    }

    /// Publishes `count` additional messages immediately.
    pub(super) fn owe(&self, count: u64) {
        self.state.owed.fetch_add(count, Ordering::Relaxed);
    }

    /// The reason why the reader no longer reads, if it does not.
    pub(super) fn broken(&self) -> Option<String> {
        self.state.broken.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The counts since the last call.
    pub(super) fn take(&self) -> Figures {
        self.state.judge.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.state.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread has printed its panic, so the error says nothing new.
            let _ = thread.join();
        }
    }
}

fn feed(mut publisher: Publisher, state: &State, burst: u64) {
    let (content, mut sequence) = (Content::new(Sizes::Short), 1);
    while !state.stop.load(Ordering::Relaxed) {
        for _ in 0..burst + state.owed.swap(0, Ordering::Relaxed) {
            let (bytes, mark) = content.of(sequence);
            assert_eq!(publisher.publish_with(bytes, mark).unwrap(), sequence);
            sequence += 1;
            state.next.store(sequence, Ordering::Relaxed);
        }
        std::thread::sleep(PAUSE);
    }
    publisher.close();
}

/// The first sequence that the ring has.
fn oldest(channels: &Path) -> u64 {
    let ring = Subscriber::builder("ticks").dir(channels).start(Start::Oldest).open().unwrap();
    ring.next_sequence()
}

fn judge(state: &State, near: &Path, far: &Path) {
    let content = Content::new(Sizes::Short);
    let mut reader = None;
    while !state.stop.load(Ordering::Relaxed) {
        let Some(reader) = &mut reader else {
            reader = Subscriber::builder("ticks").dir(far).start(Start::Oldest).wait(REST).open().ok();
            std::thread::sleep(PAUSE);
            continue;
        };
        let judged = || state.judge.lock().unwrap_or_else(PoisonError::into_inner);
        let odd = match reader.recv_deadline(Instant::now() + 5 * PAUSE) {
            Ok(Some(Event::Message(message))) => {
                let (bytes, mark) = content.of(message.sequence);
                let is_right = message.payload == bytes && (message.tag, message.key) == (mark.tag, mark.key);
                judged().message(message.sequence, is_right);
                continue;
            }
            Ok(Some(Event::Gap { from, to })) => {
                judged().gap((from, to), oldest(near));
                continue;
            }
            // When a receiver ends, it reports this. The next one continues in the same ring.
            Ok(
                None
                | Some(
                    Event::End
                    | Event::NewEpoch { .. }
                    | Event::NewSession { .. }
                    | Event::PublisherGone { .. },
                ),
            ) => {
                continue;
            }
            Ok(Some(other)) => format!("the reader got {other:?}"),
            Err(e) => format!("the reader got an error: {e}"),
        };
        *state.broken.lock().unwrap_or_else(PoisonError::into_inner) = Some(odd);
        return;
    }
}
