//! Readers that wait in async code, with a daemon that wakes them and without one.

use super::{daemon, parked, publisher, wait_for_readers};
use shmcast::{Event, Publisher, Start, Subscriber};
use shmcast_testkit::PATIENCE;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_future_dropped_half_way_takes_a_message_with_it() {
    let mut daemon = daemon();
    let client = daemon.client();
    let mut subscriber = parked(&client).open().unwrap();
    let mut publisher = publisher(&client);
    let dropped = Arc::new(AtomicU64::new(0));
    let dropped_so_far = dropped.clone();
    let publishing = thread::spawn(move || {
        let mut rng = fastrand::Rng::with_seed(99);
        for message in 0..2000u64 {
            // Sometimes the test waits until one more future was dropped, however long that takes, so that some futures certainly are.
            let before = dropped_so_far.load(Ordering::Relaxed);
            while message % 100 == 50 && dropped_so_far.load(Ordering::Relaxed) == before {
                thread::sleep(Duration::from_micros(100));
            }
            publisher.publish(&message.to_le_bytes()).unwrap();
            thread::sleep(Duration::from_micros(rng.u64(..300)));
        }
        publisher
    });
    let mut rng = fastrand::Rng::with_seed(3);
    let mut next = 1;
    let receiving = async {
        while next <= 2000 {
            let patience = Duration::from_micros(rng.u64(..1500));
            tokio::select! {
                biased;
                event = subscriber.recv_async() => match event.unwrap() {
                    Event::Message(m) => {
                        assert_eq!(m.sequence, next);
                        next += 1;
                    }
                    Event::NewEpoch { .. } => {}
                    other => panic!("{other:?}"),
                },
                () = tokio::time::sleep(patience) => {
                    dropped.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    };
    runtime().block_on(async { tokio::time::timeout(PATIENCE, receiving).await }).expect("all messages come");
    let mut publisher = publishing.join().unwrap();

    // The reader receives in another event loop, both without the daemon and with the next one.
    let mut receive_one = |publisher: &mut Publisher| {
        runtime().block_on(async {
            let sleeping = subscriber.recv_async();
            tokio::pin!(sleeping);
            let early = tokio::time::timeout(Duration::from_millis(30), &mut sleeping).await;
            assert!(early.is_err(), "nothing was published");
            publisher.publish(b"x").unwrap();
            let event = tokio::time::timeout(PATIENCE, sleeping).await.expect("it wakes").unwrap();
            assert!(matches!(event, Event::Message(m) if m.sequence == publisher.next_sequence() - 1));
        });
    };
    receive_one(&mut publisher);
    daemon.kill();
    receive_one(&mut publisher);
    daemon.restart();
    wait_for_readers(&daemon, 1);
    receive_one(&mut publisher);
    publisher.close();
    let last = runtime().block_on(async { subscriber.recv_async().await.map(|event| event == Event::End) });
    assert_eq!(last, Ok(true));
}

/// The future also works without a daemon. Then it polls from time to time.
#[test]
fn receiving_asynchronously_from_a_file_sleeps_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut publisher = Publisher::builder("t").dir(dir.path()).capacity(64 << 10).open().unwrap();
    let mut subscriber = Subscriber::builder("t").dir(dir.path()).start(Start::Latest).open().unwrap();
    runtime().block_on(async {
        let (received, ()) = tokio::join!(
            async { subscriber.recv_async().await.map(|event| matches!(event, Event::Message(_))) },
            async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                publisher.publish(b"x").unwrap();
            },
        );
        assert_eq!(received, Ok(true));
    });
}
