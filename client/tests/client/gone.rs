//! Publishers that die, and readers that asked to be told of it. They are told once, after the last message,
//! and never of a publisher that lives.

use crate::support::{SMALL, as_nobody, is_silent, publisher, subscriber, successor};
use shmcast::{ChannelError, Event, Start, Subscriber, Wait};
use shmcast_testkit::process::{in_dir, my_dir, my_role, within};
use shmcast_testkit::{PATIENCE, Process, role, scratch, wait_for, wait_until};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

#[test]
#[ignore = "plays a part in another test"]
fn play() {
    match my_role().as_deref() {
        Some("publish") => {
            let mut publisher = publisher(&my_dir()).capacity(SMALL).open().unwrap();
            for _ in 0..10 {
                publisher.publish(&publisher.epoch().to_le_bytes()).unwrap();
            }
            std::fs::write(my_dir().join(format!("ready{}", publisher.epoch())), "").unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        Some("attach elsewhere") => {
            let refused = subscriber(&my_dir()).watch_publisher(true).page(false).open().unwrap_err();
            assert!(matches!(refused, ChannelError::Os { .. }), "{refused:?}");
            assert!(refused.to_string().contains("watch the publisher by"), "{refused}");
        }
        other => panic!("{other:?}"),
    }
}

fn event(subscriber: &mut Subscriber) -> Option<Event<'_>> {
    subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap()
}

/// Receives everything that a publisher of this epoch has published, and nothing else.
fn receive_all(subscriber: &mut Subscriber, epoch: u64) {
    for _ in 0..10 {
        match event(subscriber) {
            Some(Event::Message(m)) => assert_eq!(m.payload, epoch.to_le_bytes()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_publisher_that_is_killed_is_told_once_behind_its_last_message() {
    for wait in [Wait::Spin, Wait::Yield, Wait::Backoff, Wait::Sleep(Duration::from_millis(1))] {
        let dir = scratch();
        let mut readers: Vec<Subscriber> = Vec::new();
        for epoch in 1..=3 {
            let publishing = Process::start(in_dir(&mut role!("publish"), dir.path()));
            let ready = dir.path().join(format!("ready{epoch}"));
            wait_for("publisher", || ready.exists().then_some(()));
            for reader in &mut readers {
                assert_eq!(event(reader), Some(Event::NewEpoch { epoch }), "{wait:?}");
                receive_all(reader, epoch);
                // The publisher lives, also while it is stopped.
                publishing.pause();
                assert_eq!(reader.recv_deadline(Instant::now() + Duration::from_millis(60)).unwrap(), None);
                publishing.resume();
            }
            let builder = subscriber(dir.path()).wait(wait).start(Start::Oldest);
            publishing.kill();
            if epoch == 1 {
                readers.push(builder.clone().watch_publisher(true).open().unwrap());
                receive_all(&mut readers[0], epoch);
                let mut unasked = builder.open().unwrap();
                receive_all(&mut unasked, epoch);
                assert!(is_silent(&mut unasked), "nobody is told who did not ask");
            }
            for reader in &mut readers {
                assert_eq!(event(reader), Some(Event::PublisherGone { epoch }), "{wait:?}");
                assert_eq!(reader.recv_deadline(Instant::now() + Duration::from_millis(60)).unwrap(), None);
            }
        }
        // A reader that only polls is told as well.
        let mut late = subscriber(dir.path()).watch_publisher(true).open().unwrap();
        let told = wait_for("word of the death", || late.try_recv().unwrap().map(|event| event.into_owned()));
        assert_eq!(told, Event::PublisherGone { epoch: 3 }.into_owned());
        let mut late = subscriber(dir.path()).watch_publisher(true).open().unwrap();
        let mut buffer = [0; 64];
        let told = wait_for("word of the death", || {
            late.try_recv_into(&mut buffer).unwrap().map(|event| event.into_owned())
        });
        assert_eq!(told, Event::PublisherGone { epoch: 3 }.into_owned());
    }
}

#[test]
fn a_publisher_that_closes_has_not_died() {
    let dir = scratch();
    let mut first = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut reader = subscriber(dir.path()).watch_publisher(true).open().unwrap();
    for epoch in 2..100 {
        first.publish(b"x").unwrap();
        first.close();
        assert!(matches!(event(&mut reader), Some(Event::Message(_))));
        assert_eq!(event(&mut reader), Some(Event::End));
        if epoch % 20 == 0 {
            assert!(is_silent(&mut reader));
        }
        first = publisher(dir.path()).open().unwrap();
        assert_eq!(event(&mut reader), Some(Event::NewEpoch { epoch }));
    }
}

/// Publishers come and go as fast as they can. A publisher that is reported dead has died, and none is
/// reported twice.
#[test]
fn nobody_is_buried_alive() {
    let dir = scratch();
    let mut reader = subscriber(dir.path());
    reader = reader.watch_publisher(true).wait(Wait::Spin);
    let mut alive = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let mut reader = reader.open().unwrap();
    let path = dir.path().to_owned();
    let tell = Arc::new(AtomicU64::new(0));
    let last_told = tell.clone();
    let publishing = std::thread::spawn(move || {
        let mut died = Vec::new();
        for turn in 0..300u64 {
            alive.publish(&alive.epoch().to_le_bytes()).unwrap();
            if turn % 3 == 0 {
                let epoch = alive.epoch();
                died.push(epoch);
                die(alive);
                if turn % 30 == 0 {
                    wait_until("word of a death", || last_told.load(Ordering::Relaxed) == epoch);
                }
            } else {
                alive.close();
            }
            alive = successor(&path);
        }
        alive.close();
        died
    });
    let (mut told, mut epoch) = (Vec::new(), 1);
    loop {
        match event(&mut reader).expect("there is more") {
            Event::PublisherGone { epoch: gone } => {
                assert_eq!(gone, epoch, "told behind its own messages, before its successor");
                told.push(gone);
                tell.store(gone, Ordering::Relaxed);
            }
            Event::NewEpoch { epoch: new } => epoch = new,
            Event::Message(m) => assert_eq!(m.payload, epoch.to_le_bytes()),
            Event::End if epoch == 301 => break,
            Event::End => {}
            other => panic!("{other:?}"),
        }
    }
    let died = publishing.join().unwrap();
    assert!(told.iter().all(|epoch| died.contains(epoch)), "{told:?}");
    assert!(told.is_sorted_by(|a, b| a < b), "{told:?}");
    assert!(told.len() >= 10, "those after whom nobody came for a while are told: {told:?}");
}

/// Ends a publisher as if its process had been killed: nothing is closed.
fn die(publisher: shmcast::Publisher) {
    let died = std::thread::Builder::new().name("dying".into()).spawn(move || {
        let _publisher = publisher;
        std::panic::resume_unwind(Box::new("dies without a word"));
    });
    assert!(died.unwrap().join().is_err());
}

#[test]
fn one_who_may_not_see_the_lock_is_told_so_at_once() {
    let dir = scratch();
    let path = dir.path();
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let _publisher = publisher(path).capacity(SMALL).mode(0o755).open().unwrap();
    as_nobody("one_who_may_not_see_the_lock", &[], within(module_path!()), "attach elsewhere", path);
}
