//! A scene of ring and journal, and the events that a reader of both was given.

use crate::journal::book::Book;
use shmcast::journal::format::ControlRecord;
use shmcast::journal::{Cause, JournalControl, Loss};
use shmcast::{
    Event, Gate, GateState, History, Publisher, PublisherBuilder, Records, RecvError, Start, Subscriber,
    SubscriberBuilder, Wait,
};
#[cfg(feature = "tokio")]
use shmcast::{Message, OwnedEvent, OwnedMessage};
use shmcast_testkit::{PATIENCE, scratch};
use std::time::{Duration, Instant};

/// A channel with a small ring, its publisher, and a recorder that writes what it is told to write.
pub(super) struct Scene {
    pub(super) dir: tempfile::TempDir,
    gates: Vec<Gate>,
    publisher: Option<Publisher>,
    pub(super) book: Book,
    /// The sequence that the journal neither holds nor names as lost yet.
    pub(super) due: u64,
    pub(super) lock: Option<shmcast::journal::JournalLock>,
}

pub(super) const CAPACITY: u64 = 64 << 10;

fn with(gates: &[Gate], builder: PublisherBuilder) -> PublisherBuilder {
    gates.iter().cloned().fold(builder, PublisherBuilder::gate)
}

fn message(sequence: u64) -> Vec<u8> {
    crate::journal::book::payload(sequence)
}

impl Scene {
    pub(super) fn new() -> Self {
        Self::with_gates(&[])
    }

    /// A scene whose publishers have these gates.
    pub(super) fn with_gates(gates: &[Gate]) -> Self {
        let dir = scratch();
        let channels = dir.path().join("channels");
        let journal = dir.path().join("journal");
        std::fs::create_dir(&journal).unwrap();
        let publisher =
            with(gates, Publisher::builder("t").dir(&channels).capacity(CAPACITY)).open().unwrap();
        let mut book = Book::new(&journal);
        (book.ring, book.stream) = (publisher.header().uuid, publisher.header().stream);
        book.begin();
        book.show();
        Self { dir, gates: gates.to_vec(), publisher: Some(publisher), book, due: 1, lock: None }
    }

    pub(super) fn channels(&self) -> std::path::PathBuf {
        self.dir.path().join("channels")
    }

    pub(super) fn subscriber(&self, start: Start) -> Subscriber {
        self.builder(start).open().unwrap()
    }

    pub(super) fn builder(&self, start: Start) -> SubscriberBuilder {
        let builder = Subscriber::builder("t").dir(self.channels()).start(start).wait(Wait::Yield);
        builder.history(History::Dir(self.book.dir.clone()))
    }

    /// The state of the only gate.
    pub(super) fn gate(&self) -> GateState {
        self.publisher.as_ref().unwrap().gates()[0].state
    }

    pub(super) fn publish(&mut self, messages: u64) {
        let publisher = self.publisher.as_mut().unwrap();
        for _ in 0..messages {
            let sequence = publisher.next_sequence();
            publisher
                .publish_with(&message(sequence), shmcast::Mark { tag: sequence as u16, key: false })
                .unwrap();
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.publisher.as_ref().unwrap().next_sequence()
    }

    /// Writes all that was published and is not in the journal yet.
    pub(super) fn record(&mut self) {
        while self.due < self.next() {
            let messages = (self.next() - self.due).min(40);
            self.book.frame(&[], messages);
            self.due += messages;
        }
        self.book.show();
    }

    /// Names what was published as lost.
    pub(super) fn lose(&mut self) {
        let to = self.next() - 1;
        if self.due <= to {
            let loss = Loss { from: self.due, to, cause: Cause::Overrun };
            self.book.frame(&[JournalControl::Loss(loss)], 0);
            self.due = to + 1;
            self.book.show();
        }
    }

    pub(super) fn roll(&mut self, is_sealed: bool) {
        if is_sealed {
            self.book.seal()
        } else {
            self.book.leave(4096)
        }
        self.book.begin();
        self.book.show();
    }

    /// Another publisher takes over; the recorder writes that down.
    pub(super) fn take_over(&mut self) {
        self.record();
        drop(self.publisher.take());
        self.book.frame(&[JournalControl::Ring(ControlRecord::End)], 0);
        let publisher = with(&self.gates, Publisher::builder("t").dir(self.channels())).open().unwrap();
        let epoch = publisher.epoch();
        self.publisher = Some(publisher);
        self.book.frame(&[JournalControl::Ring(ControlRecord::Epoch { epoch })], 0);
        self.book.show();
    }

    /// A recorder that lives, as its lock says.
    pub(super) fn recorder_lives(&mut self, lives: bool) {
        self.lock = None;
        self.lock = lives.then(|| {
            let file = std::fs::File::create(self.book.dir.join("lock")).unwrap();
            shmcast::journal::take_lock(file).unwrap().expect("nobody has it")
        });
    }

    pub(super) fn retention(&self) {
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
pub(super) struct Seen {
    pub(super) due: u64,
    pub(super) messages: u64,
    pub(super) lost: u64,
    pub(super) lapped: u64,
    pub(super) lives: u64,
    pub(super) epochs: Vec<u64>,
}

impl Seen {
    pub(super) fn take(&mut self, event: &Event<'_>) {
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
    pub(super) fn take_owned(&mut self, event: OwnedEvent) {
        match event {
            OwnedEvent::Message(OwnedMessage { payload, sequence, tag, key, time, .. }) => {
                self.take(&Event::Message(Message {
                    payload: &payload,
                    sequence,
                    tag,
                    key,
                    time,
                    conflated: None,
                }));
            }
            OwnedEvent::Live { sequence } => self.take(&Event::Live { sequence }),
            OwnedEvent::Lost { from, to, cause } => self.take(&Event::Lost { from, to, cause }),
            OwnedEvent::Lapped(lapped) => self.take(&Event::Lapped(lapped)),
            other => panic!("{other:?}"),
        }
    }

    /// Reads at most so many events that are there.
    pub(super) fn read(&mut self, subscriber: &mut Subscriber, most: usize, manner: u8) {
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
    pub(super) fn finish(&mut self, subscriber: &mut Subscriber, next: u64) {
        let start = Instant::now();
        while self.due < next || subscriber.try_recv().unwrap().inspect(|event| self.take(event)).is_some() {
            assert!(start.elapsed() < PATIENCE, "{} of {next}", self.due);
            if let Some(event) = subscriber.recv_deadline(Instant::now() + Duration::from_millis(50)).unwrap()
            {
                self.take(&event);
            }
        }
        assert_eq!(self.messages + self.lost + self.lapped, next - 1);
    }
}
