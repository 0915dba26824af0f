//! Journal and ring read as one stream, against a list of what was published.

use crate::book::Book;
use proptest::prelude::*;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Cause, JournalControl, Loss};
use shmcast::{Event, History, Publisher, Records, RecvError, Select, Start, Subscriber, Wait};
#[cfg(feature = "tokio")]
use shmcast::{Message, OwnedEvent, OwnedMessage};
use std::path::Path;
use std::time::{Duration, Instant};

/// A channel with a small ring, its publisher, and a recorder that writes what it is told to write.
struct Scene {
    dir: tempfile::TempDir,
    publisher: Option<Publisher>,
    book: Book,
    /// The sequence that the journal neither holds nor names as lost yet.
    due: u64,
    lock: Option<std::fs::File>,
}

const CAPACITY: u64 = 64 << 10;

fn message(sequence: u64) -> Vec<u8> {
    crate::book::payload(sequence)
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let channels = dir.path().join("channels");
        let journal = dir.path().join("journal");
        std::fs::create_dir(&journal).unwrap();
        let publisher = Publisher::builder("t").dir(&channels).capacity(CAPACITY).open().unwrap();
        let mut book = Book::new(&journal);
        book.ring = publisher.header().uuid;
        book.begin();
        book.show();
        Self { dir, publisher: Some(publisher), book, due: 1, lock: None }
    }

    fn channels(&self) -> std::path::PathBuf {
        self.dir.path().join("channels")
    }

    fn subscriber(&self, start: Start) -> Subscriber {
        let builder = Subscriber::builder("t").dir(self.channels()).start(start).wait(Wait::Yield);
        builder.history(History::Dir(self.book.dir.clone())).open().unwrap()
    }

    fn publish(&mut self, messages: u64) {
        let publisher = self.publisher.as_mut().unwrap();
        for _ in 0..messages {
            let sequence = publisher.next_sequence();
            publisher
                .publish_with(&message(sequence), shmcast::Mark { tag: sequence as u16, key: false })
                .unwrap();
        }
    }

    fn next(&self) -> u64 {
        self.publisher.as_ref().unwrap().next_sequence()
    }

    /// Writes all that was published and is not in the journal yet.
    fn record(&mut self) {
        while self.due < self.next() {
            let messages = (self.next() - self.due).min(40);
            self.book.frame(&[], messages);
            self.due += messages;
        }
        self.book.show();
    }

    /// Names what was published as lost.
    fn lose(&mut self) {
        let to = self.next() - 1;
        if self.due <= to {
            let loss = Loss { from: self.due, to, cause: Cause::Overrun };
            self.book.frame(&[JournalControl::Loss(loss)], 0);
            self.due = to + 1;
            self.book.show();
        }
    }

    fn roll(&mut self, is_sealed: bool) {
        if is_sealed {
            self.book.seal()
        } else {
            self.book.leave(4096)
        }
        self.book.begin();
        self.book.show();
    }

    /// Another publisher takes over; the recorder writes that down.
    fn take_over(&mut self) {
        self.record();
        drop(self.publisher.take());
        self.book.frame(&[JournalControl::Ring(ControlRecord::End)], 0);
        let publisher = Publisher::builder("t").dir(self.channels()).open().unwrap();
        let epoch = publisher.epoch();
        self.publisher = Some(publisher);
        self.book.frame(&[JournalControl::Ring(ControlRecord::Epoch { epoch })], 0);
        self.book.show();
    }

    /// A recorder that lives, as its lock says.
    fn recorder_lives(&mut self, lives: bool) {
        self.lock = None;
        self.lock = lives.then(|| {
            let file = std::fs::File::create(self.book.dir.join("lock")).unwrap();
            assert!(shmcast::journal::take_lock(&file).unwrap());
            file
        });
    }

    fn retention(&self) {
        let mut files: Vec<_> = std::fs::read_dir(&self.book.dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "smj"))
            .collect();
        files.sort();
        if files.len() > 1 {
            std::fs::remove_file(&files[0]).unwrap();
        }
    }
}

/// The events that one reader was given: each sequence must come once, as a message or as missing.
#[derive(Debug, Default)]
struct Seen {
    due: u64,
    messages: u64,
    lost: u64,
    lapped: u64,
    lives: u64,
    epochs: Vec<u64>,
}

impl Seen {
    fn take(&mut self, event: &Event<'_>) {
        match *event {
            Event::Message(m) => {
                assert_eq!(m.sequence, self.due, "{self:?}");
                assert_eq!(m.payload, message(m.sequence), "a false message {}", m.sequence);
                assert_eq!(m.tag, m.sequence as u16);
                self.due += 1;
                self.messages += 1;
            }
            Event::Lost { from, to, .. } | Event::Gap { from, to } => {
                assert_eq!(from, self.due);
                self.lost += to - from + 1;
                self.due = to + 1;
            }
            Event::Lapped(l) => {
                assert_eq!(l.resumed_at, self.due + l.missed);
                self.lapped += l.missed;
                self.due = l.resumed_at;
            }
            Event::Live { sequence } => {
                assert_eq!(sequence, self.due);
                self.lives += 1;
            }
            Event::NewEpoch { epoch } => {
                assert!(self.epochs.last().is_none_or(|last| *last < epoch), "{:?} {epoch}", self.epochs);
                self.epochs.push(epoch);
            }
            Event::End => {}
            ref other => panic!("{other:?}"),
        }
    }

    #[cfg(feature = "tokio")]
    fn take_owned(&mut self, event: OwnedEvent) {
        match event {
            OwnedEvent::Message(OwnedMessage { payload, sequence, tag, key, time, .. }) => {
                self.take(&Event::Message(Message { payload: &payload, sequence, tag, key, time }));
            }
            OwnedEvent::Live { sequence } => self.take(&Event::Live { sequence }),
            OwnedEvent::Lost { from, to, cause } => self.take(&Event::Lost { from, to, cause }),
            OwnedEvent::Lapped(lapped) => self.take(&Event::Lapped(lapped)),
            other => panic!("{other:?}"),
        }
    }

    /// Reads at most so many events that are there.
    fn read(&mut self, subscriber: &mut Subscriber, most: usize, manner: u8) {
        match manner % 4 {
            0 => {
                for _ in 0..most {
                    match subscriber.try_recv().unwrap() {
                        Some(event) => self.take(&event),
                        None => break,
                    }
                }
            }
            1 => {
                subscriber.recv_batch(most, |event| self.take(&event)).unwrap();
            }
            2 => {
                let mut records = Records::with_room(8 << 10);
                let mut left = most;
                while left > 0 {
                    let got = subscriber.recv_records(left, &mut records).unwrap();
                    if got == 0 {
                        break;
                    }
                    records.iter().for_each(|m| self.take(&Event::Message(m)));
                    records.event().iter().for_each(|event| self.take(event));
                    left -= got;
                }
            }
            _ => {
                let mut buffer = [0; 16];
                let mut large = [0; 256];
                for _ in 0..most {
                    // Too small at first: then the message stays the next one.
                    match subscriber.try_recv_into(&mut buffer) {
                        Ok(Some(event)) => self.take(&event),
                        Ok(None) => break,
                        Err(RecvError::TooSmall { needed, .. }) => {
                            assert!(needed > 16);
                            match subscriber.try_recv_into(&mut large).unwrap() {
                                Some(event) => self.take(&event),
                                None => break,
                            }
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            }
        }
        assert_eq!(subscriber.next_sequence(), self.due);
    }

    /// Reads until nothing is left.
    fn finish(&mut self, subscriber: &mut Subscriber, next: u64) {
        let start = Instant::now();
        while self.due < next || subscriber.try_recv().unwrap().inspect(|event| self.take(event)).is_some() {
            assert!(start.elapsed() < Duration::from_secs(30), "{} of {next}", self.due);
            if let Some(event) = subscriber.recv_deadline(Instant::now() + Duration::from_millis(50)).unwrap()
            {
                self.take(&event);
            }
        }
        assert_eq!(self.messages + self.lost + self.lapped, next - 1);
    }
}

/// The longest wait for an event that is there.
const PATIENCE: Duration = Duration::from_secs(60);

/// Messages that surely lap every reader.
const LAP: u64 = 2 * CAPACITY / 64;

#[test]
fn a_lapped_reader_goes_on_in_the_journal_and_is_live_again() {
    let mut scene = Scene::new();
    let mut subscriber = scene.subscriber(Start::Oldest);
    let mut seen = Seen { due: 1, ..Seen::default() };
    for round in 0..20 {
        scene.publish(LAP + round);
        scene.record();
        seen.read(&mut subscriber, usize::MAX, round as u8);
        assert_eq!((seen.due, seen.lives), (scene.next(), round + 1));
        scene.publish(3);
        seen.read(&mut subscriber, usize::MAX, round as u8);
        assert_eq!(seen.due, scene.next());
        scene.record();
    }
    assert_eq!((seen.lost, seen.lapped), (0, 0));
}

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

#[test]
fn a_start_before_the_ring_is_one_in_the_journal() {
    let mut scene = Scene::new();
    for _ in 0..5 {
        scene.publish(LAP / 2);
        scene.record();
    }
    scene.roll(true);
    for (start, first) in [(Start::Oldest, 1), (Start::Sequence(77), 77), (Start::Sequence(1), 1)] {
        let mut subscriber = scene.subscriber(start);
        assert_eq!(subscriber.position(), 0, "{start:?}: no place in the ring");
        let mut seen = Seen { due: first, ..Seen::default() };
        seen.read(&mut subscriber, usize::MAX, 0);
        assert_eq!((seen.due, seen.lapped, seen.lives), (scene.next(), 0, 1), "{start:?}");
        // And back, by a seek.
        subscriber.seek(first).unwrap();
        let mut seen = Seen { due: first, ..Seen::default() };
        seen.read(&mut subscriber, usize::MAX, 1);
        assert_eq!((seen.due, seen.lapped, seen.lives), (scene.next(), 0, 1), "{start:?}");
    }
    let latest = scene.subscriber(Start::Latest);
    assert_eq!(latest.next_sequence(), scene.next());
}

#[test]
fn without_a_journal_or_with_another_rings_a_lap_is_a_lap() {
    let mut scene = Scene::new();
    let never = Subscriber::builder("t").dir(scene.channels()).start(Start::Oldest).history(History::Never);
    let mut never = never.open().unwrap();
    scene.book.ring = [1, 2];
    scene.roll(false);
    std::fs::remove_file(
        std::fs::read_dir(&scene.book.dir).unwrap().map(|e| e.unwrap().path()).min().unwrap(),
    )
    .unwrap();
    let mut other = scene.subscriber(Start::Oldest);
    scene.publish(LAP);
    scene.record();
    for subscriber in [&mut never, &mut other] {
        let mut seen = Seen { due: 1, ..Seen::default() };
        seen.read(subscriber, usize::MAX, 0);
        assert_eq!((seen.due, seen.lives), (scene.next(), 0));
        assert!(seen.lapped > 0);
    }
}

#[test]
fn what_the_journal_lost_is_told_with_its_cause_and_what_retention_took_as_a_lap() {
    let mut scene = Scene::new();
    let mut subscriber = scene.subscriber(Start::Oldest);
    scene.publish(100);
    scene.record();
    scene.publish(LAP);
    scene.lose();
    scene.publish(LAP);
    scene.record();
    let mut causes = Vec::new();
    let mut seen = Seen { due: 1, ..Seen::default() };
    while let Some(event) = subscriber.try_recv().unwrap() {
        if let Event::Lost { from, to, cause } = event {
            causes.push((from, to, cause));
        }
        seen.take(&event);
    }
    assert_eq!(causes, [(101, 100 + LAP, Cause::Overrun)]);
    assert_eq!((seen.due, seen.lapped), (scene.next(), 0));
    // Retention takes the files that this reader needs.
    scene.roll(true);
    let kept = scene.next();
    scene.publish(2 * LAP);
    scene.record();
    scene.retention();
    subscriber.seek(kept - 50).unwrap_err();
    let mut late = scene.subscriber(Start::Sequence(10));
    let mut seen = Seen { due: 10, ..Seen::default() };
    seen.read(&mut late, usize::MAX, 0);
    assert_eq!((seen.due, seen.lapped), (scene.next(), kept - 10));
}

/// A reader is within a file when retention takes this one and the next.
#[test]
fn retention_that_overtakes_a_reader_is_a_lap_and_no_damage() {
    let mut scene = Scene::new();
    let mut begins = Vec::new();
    for _ in 0..4 {
        begins.push(scene.next());
        scene.publish(LAP);
        scene.record();
        scene.roll(true);
    }
    let mut within = scene.subscriber(Start::Sequence(10));
    let mut seen = Seen { due: 10, ..Seen::default() };
    seen.read(&mut within, 5, 0);
    scene.retention();
    scene.retention();
    seen.read(&mut within, usize::MAX, 0);
    assert_eq!((seen.due, seen.lost, seen.lapped), (scene.next(), 0, begins[2] - begins[1]));
}

/// The record of an epoch stands between two messages, and the reader may go over to the ring right there.
#[test]
fn an_epoch_is_told_before_its_messages_wherever_the_reader_goes_over() {
    // The ring moves on by chunks, and a reader goes over between two frames. One of these places is that of the epoch.
    let places = [2080, 2120, 2160]
        .into_iter()
        .flat_map(|before| (100..900).step_by(20).map(move |after| (before, after)));
    let mut seams = 0;
    for (before, after) in places {
        let mut scene = Scene::new();
        let mut subscriber = scene.subscriber(Start::Oldest);
        scene.publish(before);
        scene.take_over();
        let (first, epoch) = (scene.next(), 2);
        scene.publish(after);
        scene.record();
        let mut seen = Seen { due: 1, ..Seen::default() };
        // A reader that was overtaken may find nothing at first.
        while seen.due < scene.next() {
            let event = subscriber.recv().unwrap();
            seen.take(&event);
            seams += u32::from(event == Event::Live { sequence: first });
            if matches!(event, Event::Message(m) if m.sequence >= first) {
                assert_eq!(seen.epochs, [epoch], "after {after} messages, at {}", seen.due);
            }
        }
    }
    assert!(seams > 0, "no reader went over right there");
}

/// A recorder that is behind but alive is waited for; one that has died is not.
#[test]
fn the_recorder_alone_says_what_is_lost_while_it_lives() {
    let mut scene = Scene::new();
    scene.recorder_lives(true);
    let mut subscriber = scene.subscriber(Start::Oldest);
    scene.publish(LAP);
    let start = Instant::now();
    assert_eq!(subscriber.recv(), Err(RecvError::Stalled { sequence: 1 }));
    assert!(start.elapsed() >= Duration::from_secs(2));
    assert_eq!(subscriber.recv_deadline(Instant::now() + Duration::from_millis(20)), Ok(None));
    scene.record();
    let mut seen = Seen { due: 1, ..Seen::default() };
    seen.finish(&mut subscriber, scene.next());
    assert_eq!((seen.lapped, seen.lives), (0, 1));
    // It dies before it has written everything.
    scene.publish(LAP);
    scene.recorder_lives(false);
    seen.finish(&mut subscriber, scene.next());
    assert!(seen.lapped > 0);
}

#[test]
fn a_start_by_time_is_in_the_journal_or_in_the_ring() {
    let mut scene = Scene::new();
    scene.publish(LAP);
    scene.record();
    std::thread::sleep(Duration::from_millis(30));
    let time = std::time::SystemTime::now();
    std::thread::sleep(Duration::from_millis(30));
    let first = scene.next();
    scene.publish(10);
    let subscriber = scene.subscriber(Start::Time(time));
    assert_eq!(subscriber.next_sequence(), first, "in the ring");
    // The book's clock began in 2025: its messages are a millisecond apart.
    let wall = Duration::from_nanos(crate::book::wall(50));
    let mut subscriber = scene.subscriber(Start::Time(std::time::UNIX_EPOCH + wall));
    let mut seen = Seen { due: 50, ..Seen::default() };
    seen.read(&mut subscriber, usize::MAX, 0);
    assert_eq!((seen.due, seen.lives), (scene.next(), 1), "in the journal");
}

#[test]
fn tags_are_chosen_in_the_past_as_in_the_ring() {
    let mut scene = Scene::new();
    let builder =
        Subscriber::builder("t").dir(scene.channels()).start(Start::Oldest).tags([7, 9, 2000, 2060]);
    let mut subscriber = builder.history(History::Dir(scene.book.dir.clone())).open().unwrap();
    scene.publish(LAP);
    scene.record();
    scene.publish(20);
    let mut got = Vec::new();
    subscriber
        .recv_batch(usize::MAX, |event| {
            if let Event::Message(m) = event {
                got.push(m.sequence);
            }
        })
        .unwrap();
    assert_eq!(got, [7, 9, 2000, 2060]);
}

#[derive(Debug, Clone)]
enum Step {
    Publish(u64),
    Record,
    Lose,
    Roll(bool),
    TakeOver,
    Retention,
    Recorder(bool),
    Read(usize, usize, u8),
    Seek(usize, u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..LAP * 3 / 2).prop_map(Step::Publish),
        4 => Just(Step::Record),
        1 => Just(Step::Lose),
        1 => any::<bool>().prop_map(Step::Roll),
        1 => Just(Step::TakeOver),
        1 => Just(Step::Retention),
        1 => any::<bool>().prop_map(Step::Recorder),
        8 => (0..3usize, 1..3000usize, any::<u8>()).prop_map(|(who, most, manner)| Step::Read(who, most, manner)),
        1 => (0..3usize, 1..3000u64).prop_map(|(who, back)| Step::Seek(who, back)),
    ];
    prop::collection::vec(step, 1..60)
}

fn play(scene: &mut Scene, steps: &[Step]) {
    let starts = [Start::Oldest, Start::Sequence(1), Start::Latest];
    let mut readers: Vec<(Subscriber, Seen)> =
        starts.map(|start| (scene.subscriber(start), Seen { due: 1, ..Seen::default() })).into();
    for step in steps {
        match *step {
            Step::Publish(messages) => scene.publish(messages),
            Step::Record => scene.record(),
            Step::Lose => scene.lose(),
            Step::Roll(is_sealed) => scene.roll(is_sealed),
            Step::TakeOver => scene.take_over(),
            Step::Retention => scene.retention(),
            Step::Recorder(lives) => scene.recorder_lives(lives),
            Step::Read(who, most, manner) => {
                let (subscriber, seen) = &mut readers[who];
                seen.read(subscriber, most, manner);
            }
            Step::Seek(who, back) => {
                let (subscriber, seen) = &mut readers[who];
                let to = seen.due.saturating_sub(back).max(1);
                if subscriber.seek(to).is_ok() {
                    // Messages that were counted are counted again.
                    *seen = Seen { due: to, messages: to - 1, ..Seen::default() };
                }
            }
        }
    }
    scene.recorder_lives(false);
    let next = scene.next();
    for (subscriber, seen) in &mut readers {
        seen.finish(subscriber, next);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_sequence_comes_once_whatever_happens(steps in steps()) {
        play(&mut Scene::new(), &steps);
    }
}

/// 50 readers that are lapped at once, while a thread records and the publisher goes on.
#[test]
fn fifty_lapped_readers_at_once() {
    let mut scene = Scene::new();
    scene.recorder_lives(true);
    let channels = scene.channels();
    let journal: &Path = &scene.book.dir.clone();
    let readers: Vec<Subscriber> = (0..50).map(|_| scene.subscriber(Start::Oldest)).collect();
    scene.publish(LAP);
    scene.record();
    let total = 40 * LAP;
    std::thread::scope(|threads| {
        let readers: Vec<_> = readers
            .into_iter()
            .map(|mut subscriber| {
                threads.spawn(move || {
                    let mut seen = Seen { due: 1, ..Seen::default() };
                    while seen.due <= total {
                        let event =
                            subscriber.recv_deadline(Instant::now() + Duration::from_secs(60)).unwrap();
                        seen.take(&event.expect("messages go on"));
                    }
                    seen
                })
            })
            .collect();
        while scene.next() <= total {
            // No faster than the recorder, which is behind by less than a ring.
            scene.publish((total + 1 - scene.next()).min(200));
            scene.record();
        }
        for reader in readers {
            let seen = reader.join().unwrap();
            assert_eq!((seen.messages, seen.lost, seen.lapped), (total, 0, 0));
            assert!(seen.lives > 0);
        }
    });
    assert!(channels.is_dir() && journal.is_dir());
}
