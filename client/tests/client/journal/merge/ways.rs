//! The past is read in every way of receiving: from one channel of several, in tasks, as a stream.

use super::LAP;
use super::scene::{Scene, Seen};
use shmcast::{Select, Start, Wait};
use shmcast_testkit::PATIENCE;
use std::time::Instant;

/// Two channels in one select. Each reader is lapped in its turn, and then both, while the other channel goes on.
/// `receive` waits for one event.
fn select_from_two(mut receive: impl FnMut(&mut Select, &mut [Seen])) {
    let mut scenes = [Scene::new(), Scene::new()];
    let mut select = Select::new(Wait::Yield);
    for scene in &scenes {
        select.add(scene.subscriber(Start::Oldest)).unwrap();
    }
    let mut seen = [(); 2].map(|()| Seen { due: 1, ..Seen::default() });
    for round in 0..12 {
        for (at, scene) in scenes.iter_mut().enumerate() {
            scene.publish(if round % 3 == at { 7 } else { LAP + round as u64 });
            scene.record();
        }
        while scenes.iter().zip(&seen).any(|(scene, seen)| seen.due < scene.next()) {
            receive(&mut select, &mut seen);
        }
        assert_eq!(select.try_recv().unwrap(), None);
    }
    for seen in seen {
        assert_eq!((seen.lives, seen.lost, seen.lapped), (8, 0, 0));
    }
}

#[test]
fn a_select_reads_the_past_of_each_of_its_channels() {
    select_from_two(|select, seen| {
        let (index, event) = select.recv_deadline(Instant::now() + PATIENCE).unwrap().unwrap();
        seen[index].take(&event);
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_read_the_past() {
    use futures_util::StreamExt;
    use tokio::time::timeout;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    select_from_two(|select, seen| {
        let received = runtime.block_on(async { timeout(PATIENCE, select.recv_async()).await });
        let (index, event) = received.unwrap().unwrap();
        seen[index].take(&event);
    });
    let mut scene = Scene::new();
    let mut subscriber = scene.subscriber(Start::Oldest);
    let mut seen = Seen { due: 1, ..Seen::default() };
    for round in 0..8 {
        scene.publish(LAP + round);
        scene.record();
        runtime.block_on(async {
            while seen.due < scene.next() {
                if round % 2 == 0 {
                    seen.take(&timeout(PATIENCE, subscriber.recv_async()).await.unwrap().unwrap());
                } else {
                    let event = timeout(PATIENCE, subscriber.stream().next()).await.unwrap();
                    seen.take_owned(event.unwrap().unwrap());
                }
            }
        });
        assert_eq!(subscriber.try_recv().unwrap(), None);
    }
    assert_eq!((seen.lives, seen.lost, seen.lapped), (8, 0, 0));
}
