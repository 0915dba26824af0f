//! A [`Story`] of the ring, for the models beside this file. A story has a writer and readers. The writer notes every record that it
//! writes, and each reader notes every record that it sees. At the end, the story compares these notes. The models decide what happens in a
//! story.
//!
//! The ring has four granules. Payloads contain forged commit words at positions where a later reader looks for a commit word. No reader
//! can influence the writer, because the writer reads nothing that a reader wrote. So the model lets each reader start late and see any
//! stale value. The reader can then see everything that it could see in any interleaving with the writer. `LOOM_MAX_PREEMPTIONS` adds
//! switches between threads.

use crate::error::{Corrupt, WriteError};
use crate::gate::GatePage;
use crate::layout::geometry::{GRANULE, Geometry, record_bytes};
use crate::layout::header::{FRONTIER, SESSION_REST};
use crate::layout::record::{Commit, ControlRecord, Flags};
use crate::ring::cells::{Cells, Page, RingCells};
use crate::ring::locate::{LocateError, Locator, Place};
use crate::ring::reader::{Copied, Poll, Reader, Resume};
use crate::ring::writer::Writer;
use crate::sync::Ordering;
use crate::sync::stopping::kill_after;
use loom::thread::{self, JoinHandle};

const GRANULES: u64 = 4;
/// The length of a payload that reaches one word into the second granule. In a later lap of the ring, this word can be the commit word of
/// another record.
pub(super) const LONG: usize = 56;

/// Explores a model, and prints the number of executions.
pub(super) fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    let count = Arc::new(AtomicU64::new(0));
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(builder.preemption_bound.unwrap_or(preemptions));
    builder.max_branches = 10_000;
    let counted = count.clone();
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    println!("{name}: {} executions", count.load(Ordering::Relaxed));
}

/// The content of one record of the writer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Message(Vec<u8>),
    Control(ControlRecord),
}

#[derive(Debug, Clone)]
struct Record {
    at: Place,
    after: Place,
    what: What,
}

/// The function that a reader runs. It returns the notes of the reader.
pub(super) type Watch = Box<dyn FnOnce() -> Vec<Seen> + Send>;

/// One note of a reader: its start, a record that it saw, its place after a lap, or a failure.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "what was refused is for the panic message")]
pub(super) enum Seen {
    Started(Place),
    Message {
        before: Place,
        after: Place,
        payload: Vec<u8>,
        tag: u16,
        time: u64,
        sequence: u64,
    },
    Control {
        before: Place,
        after: Place,
        control: ControlRecord,
    },
    Resumed {
        before: Place,
        after: Place,
        missed: u64,
    },
    /// A search gave up, or the message was gone. Both are allowed, and end the reader.
    Lost,
    Broken(Corrupt),
    Refused(Poll),
}

fn new_ring() -> (RingCells, Geometry) {
    let geometry = Geometry::tiny(GRANULES);
    let cells = RingCells {
        header: Page::new(Cells::zeroed(SESSION_REST + 1)),
        index: Cells::zeroed(geometry.index_entries as usize),
        data: Cells::zeroed((geometry.capacity / 8) as usize),
    };
    (cells, geometry)
}

/// The payload of message `sequence`. It has words that identify the message. At the start of the second granule, it has a forged commit
/// word for the sequence `forged`.
fn payload(sequence: u64, length: usize, forged: u64) -> Vec<u8> {
    let words = (0..length.div_ceil(8)).map(|i| match i {
        6 => Commit::new(forged, Flags::VALID, 0).word(),
        _ => sequence * 1000 + i as u64,
    });
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Whether a dead writer had already committed its last record.
fn is_committed(before: Place, tail: Place, what: &What) -> bool {
    match what {
        What::Message(_) | What::Control(ControlRecord::Gap { .. }) => tail.sequence != before.sequence,
        What::Control(_) => tail.position != before.position,
    }
}

/// One thing for a writer to do.
#[derive(Debug, Clone, Copy)]
pub(super) enum Do {
    /// A message of this length. In its second granule, it has a forged commit word for this sequence.
    Publish(usize, u64),
    /// An empty message.
    Tick,
    /// A message whose payload has the words of a gap record.
    ForgeGap {
        from: u64,
        to: u64,
    },
    Gap {
        to: u64,
    },
    Session,
    Close,
}

pub(super) struct Story {
    cells: RingCells,
    geometry: Geometry,
    writer: Option<Writer>,
    records: Vec<Record>,
    /// The last record of a writer that died while it wrote the record, and the place at which the record begins.
    dying: Option<(Place, What)>,
}

impl Story {
    pub(super) fn begin() -> Self {
        let (cells, geometry) = new_ring();
        let writer = Writer::take_over(cells.clone(), geometry, 1, 0).expect("a new ring");
        Self { cells, geometry, writer: Some(writer), records: Vec::new(), dying: None }
    }

    pub(super) fn place(&self) -> Place {
        match &self.writer {
            Some(writer) => Place { position: writer.position(), sequence: writer.next_sequence() },
            None => self.records.last().map_or(Place::START, |record| record.after),
        }
    }

    /// Returns the record that a task will leave in the ring, and the call that writes it. The call returns false if the record would need
    /// a frontier beyond the bound.
    fn plan(&self, task: Do) -> (What, impl FnOnce(&mut Writer) -> bool + use<>) {
        let from = self.place().sequence;
        let what = match task {
            Do::Publish(length, forged) => What::Message(payload(from, length, forged)),
            Do::Tick => What::Message(Vec::new()),
            Do::ForgeGap { from, to } => What::Message(
                ControlRecord::Gap { from, to }.words().into_iter().flat_map(u64::to_le_bytes).collect(),
            ),
            Do::Gap { to } => What::Control(ControlRecord::Gap { from, to }),
            Do::Session => What::Control(ControlRecord::Session { high: 0x0707_0707_0707_0707, low: 0x0707 }),
            Do::Close => What::Control(ControlRecord::End),
        };
        let said = what.clone();
        let say = move |writer: &mut Writer| {
            match said {
                What::Message(payload) => {
                    match writer.publish(&payload, from as u16, false, from) {
                        Err(WriteError::BeyondBound(_)) => return false,
                        published => published.expect("it fits"),
                    };
                }
                What::Control(ControlRecord::Gap { to, .. }) => writer.gap(to, from).expect("few sequences"),
                What::Control(ControlRecord::Session { .. }) => writer.session([7; 10], from),
                What::Control(_) => writer.close(from),
            }
            true
        };
        (what, say)
    }

    pub(super) fn act(&mut self, task: Do) {
        assert!(self.act_below(u64::MAX, task), "nothing bounds this writer");
    }

    /// Does a task as [`act`](Self::act) does, with a bound. Returns false and writes nothing if the bound is too low.
    pub(super) fn act_below(&mut self, bound: u64, task: Do) -> bool {
        let sequence = self.place().sequence;
        let (what, say) = self.plan(task);
        let writer = self.writer.as_mut().expect("alive");
        writer.set_bound(bound);
        let is_done = say(writer);
        if is_done {
            self.note(self.place(), sequence, what);
        }
        is_done
    }

    pub(super) fn acts(&mut self, tasks: &[Do]) {
        tasks.iter().for_each(|task| self.act(*task));
    }

    /// Adds the record that ends at `after` to the writer's notes.
    fn note(&mut self, after: Place, sequence: u64, what: What) {
        let bytes = match &what {
            What::Message(payload) => record_bytes(payload.len() as u64),
            What::Control(_) => GRANULE,
        };
        let at = Place { position: after.position - bytes, sequence };
        self.records.push(Record { at, after, what });
    }

    /// The writer dies during a task, right before store number `stores`. Returns false if the task makes fewer stores.
    pub(super) fn die(&mut self, task: Do, stores: u32) -> bool {
        let before = self.place();
        let (what, say) = self.plan(task);
        let mut writer = self.writer.take().expect("alive");
        let died = !kill_after(stores, || assert!(say(&mut writer)));
        if died {
            self.dying = Some((before, what));
        } else {
            let after = Place { position: writer.position(), sequence: writer.next_sequence() };
            self.note(after, before.sequence, what);
        }
        died
    }

    /// A successor dies while it takes over, right before store number `stores`.
    pub(super) fn die_taking(&mut self, stores: u32) -> bool {
        let before = self.place();
        self.writer = None;
        let mut epoch = 0;
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        let died = !kill_after(stores, || {
            epoch = Writer::take_over(cells, geometry, 2, 5).expect("a ring of ours").epoch()
        });
        let after = Place { position: before.position + GRANULE, ..before };
        if died {
            // The first writer has epoch 1, so its successor has epoch 2.
            self.dying = Some((before, What::Control(ControlRecord::Epoch { epoch: 2 })));
        } else {
            self.note(after, before.sequence, What::Control(ControlRecord::Epoch { epoch }));
        }
        died
    }

    /// Another writer takes over the ring of a writer that died or has closed the ring. The ring must then have every committed record.
    pub(super) fn take_over(&mut self) {
        let before = self.place();
        self.writer = None;
        let writer =
            Writer::take_over(self.cells.clone(), self.geometry, 2, 5).expect("the ring is broken: refused");
        let epoch = writer.epoch();
        let after = Place { position: writer.position(), sequence: writer.next_sequence() };
        let tail = Place { position: after.position - GRANULE, ..after };
        self.writer = Some(writer);
        match self.dying.take() {
            Some((before, what)) if is_committed(before, tail, &what) => {
                self.note(tail, before.sequence, what)
            }
            Some((before, _)) => assert_eq!(before.sequence, tail.sequence, "the ring is broken: sequence"),
            None => assert_eq!(before, tail, "the ring is broken: a successor found another tail"),
        }
        self.note(after, after.sequence, What::Control(ControlRecord::Epoch { epoch }));
    }

    /// Makes the function of a reader that starts at `place`.
    pub(super) fn reading(&self, place: Place, polls: usize, resume: Option<Resume>) -> Watch {
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        Box::new(move || read(Reader::new(cells, geometry, place), polls, resume))
    }

    /// Makes the function of a reader that finds its own place.
    pub(super) fn joining(
        &self,
        polls: usize,
        find: impl Fn(&Locator) -> Result<Place, LocateError> + Send + 'static,
    ) -> Watch {
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        Box::new(move || match find(&Locator::new(cells.clone(), geometry)) {
            Ok(place) => {
                let mut seen = vec![Seen::Started(place)];
                seen.extend(read(Reader::new(cells, geometry, place), polls, None));
                seen
            }
            Err(LocateError::Corrupt(corrupt)) => vec![Seen::Broken(corrupt)],
            Err(_) => vec![Seen::Lost],
        })
    }

    /// Returns the ring itself, for a thread that reads it at the same time as the writer.
    pub(super) fn ring(&self) -> (RingCells, Geometry) {
        (self.cells.clone(), self.geometry)
    }

    pub(super) fn read_from(
        &self,
        place: Place,
        polls: usize,
        resume: Option<Resume>,
    ) -> JoinHandle<Vec<Seen>> {
        thread::spawn(self.reading(place, polls, resume))
    }

    /// Starts a reader at `place`. After each record, the reader stores its position in its gate page. The story fails if the reader is
    /// lapped.
    pub(super) fn read_gated(&self, place: Place, polls: usize, page: GatePage) -> JoinHandle<Vec<Seen>> {
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        thread::spawn(move || {
            let mut reader = Reader::new(cells, geometry, place);
            let mut seen = Vec::new();
            for _ in 0..polls {
                let before = reader.place();
                let mut lapped = false;
                let one = read_one(&mut reader, |_| {
                    lapped = true;
                    None
                });
                assert!(!lapped, "the ring is broken: a reader was lapped whose gate is in force");
                seen.extend(one);
                if reader.place() == before {
                    break;
                }
                page.passed(reader.place());
            }
            seen
        })
    }

    /// Starts a reader at `place` that takes all records of the ring.
    pub(super) fn take_from(&self, place: Place) -> JoinHandle<Vec<Seen>> {
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        thread::spawn(move || take(Reader::new(cells, geometry, place)))
    }

    pub(super) fn join(
        &self,
        polls: usize,
        find: impl Fn(&Locator) -> Result<Place, LocateError> + Send + 'static,
    ) -> JoinHandle<Vec<Seen>> {
        thread::spawn(self.joining(polls, find))
    }

    /// Runs a writer on a separate thread until it dies, while a reader watches. A successor has nothing from the dead writer but the
    /// memory and the kernel's lock. The caller continues as the successor. The reader can see all stores of the dead writer, or only some.
    pub(super) fn lives(
        self,
        watch: Watch,
        life: impl FnOnce(&mut Self) + Send + 'static,
    ) -> (Self, JoinHandle<Vec<Seen>>) {
        let writing = thread::spawn(move || {
            let mut story = self;
            life(&mut story);
            story
        });
        let reader = thread::spawn(watch);
        (writing.join().expect("writers do not panic"), reader)
    }

    /// Compares a reader's notes with the published records.
    pub(super) fn check(&self, reader: JoinHandle<Vec<Seen>>) {
        let all = reader.join().expect("readers do not panic");
        for seen in &all {
            if let Err(what) = self.judge(seen) {
                panic!("the ring is broken: {what}: {seen:?}; published were {:#?}", self.records);
            }
        }
    }

    fn judge(&self, seen: &Seen) -> Result<(), &'static str> {
        let ending = |after: &Place| self.records.iter().find(|record| record.after == *after);
        match seen {
            Seen::Started(place) | Seen::Resumed { after: place, .. }
                if !self.is_boundary(*place) && !self.is_overwritten(*place) =>
            {
                Err("no place of this ring")
            }
            Seen::Resumed { before, after, missed } if after.sequence - before.sequence != *missed => {
                Err("missed is not exact")
            }
            Seen::Started(_) | Seen::Resumed { .. } | Seen::Lost => Ok(()),
            Seen::Message { before, after, payload, tag, time, sequence } => {
                let record = ending(after).ok_or("no record ends there")?;
                let marks = (*sequence as u16, *sequence);
                let is_true = record.what == What::Message(payload.clone())
                    && (*tag, *time) == marks
                    && record.at.sequence == *sequence;
                if is_true && leads_to(before, record) { Ok(()) } else { Err("a false message") }
            }
            Seen::Control { before, after, control } if before == after => {
                let is_end = |record: &Record| record.what == What::Control(ControlRecord::End);
                let known = *control == ControlRecord::End && ending(after).is_some_and(is_end);
                if known { Ok(()) } else { Err("an end where there is none") }
            }
            Seen::Control { before, after, control } => {
                let record = ending(after).ok_or("no record ends there")?;
                let is_true = record.what == What::Control(*control) && leads_to(before, record);
                if is_true { Ok(()) } else { Err("a false control record") }
            }
            Seen::Broken(_) => Err("reported as corrupt"),
            Seen::Refused(_) => Err("nothing of ours is too small or superseded"),
        }
    }

    /// Whether a search is allowed to return this place because the writer was too fast for the search. Two things must be true. The writer
    /// has overwritten the place. And the place's sequence is 1, or is the next sequence at the start or at the end of a record of this
    /// ring.
    fn is_overwritten(&self, place: Place) -> bool {
        let frontier = self.cells.header[FRONTIER].load(Ordering::Relaxed);
        let is_sequence =
            |record: &Record| [record.at, record.after].map(|at| at.sequence).contains(&place.sequence);
        frontier > place.position + GRANULES * GRANULE
            && (place.sequence == 1 || self.records.iter().any(is_sequence))
    }

    /// Whether a record begins or ends at a place.
    fn is_boundary(&self, place: Place) -> bool {
        place == Place::START || self.records.iter().any(|record| record.after == place || record.at == place)
    }
}

/// Whether `record` is the next record for a reader that was at `before`. A pad can come first.
fn leads_to(before: &Place, record: &Record) -> bool {
    let capacity = GRANULES * GRANULE;
    let padded =
        record.at.position.is_multiple_of(capacity) && record.at.position - before.position < capacity;
    before.sequence == record.at.sequence && (before.position == record.at.position || padded)
}

/// Polls at most `polls` times, until the ring seems empty. If a reader does not see a record here, it sees it in another execution.
fn read(mut reader: Reader, polls: usize, resume: Option<Resume>) -> Vec<Seen> {
    let mut seen = Vec::new();
    for _ in 0..polls {
        let before = reader.place();
        let one = read_one(&mut reader, |reader| resume.map(|policy| reader.resume(policy)));
        // This is a pad before a record that does not exist yet.
        let is_pad = one.is_none() && reader.place() != before;
        match one {
            Some(one) => seen.push(one),
            None if is_pad => {}
            None => return seen,
        }
    }
    seen
}

/// Polls once. Returns nothing for a pad or at the tail. Also returns nothing after a lap if `resume` returns nothing.
fn read_one(
    reader: &mut Reader,
    resume: impl FnOnce(&mut Reader) -> Option<Result<u64, LocateError>>,
) -> Option<Seen> {
    let mut out = [0; 2 * GRANULE as usize];
    let before = reader.place();
    let poll = reader.poll(&mut out);
    let after = reader.place();
    Some(match poll {
        Poll::Message(Copied { length, sequence, tag, time, key: false }) => {
            let payload = out[..length].to_vec();
            Seen::Message { before, after, payload, tag, time, sequence }
        }
        Poll::Control(control) => Seen::Control { before, after, control },
        Poll::Empty => return None,
        Poll::Lapped => match resume(reader) {
            Some(Ok(missed)) => Seen::Resumed { before, after: reader.place(), missed },
            Some(Err(LocateError::Corrupt(corrupt))) => Seen::Broken(corrupt),
            _ => return None,
        },
        Poll::Corrupt(corrupt) => Seen::Broken(corrupt),
        other => Seen::Refused(other),
    })
}

/// Takes all records of the ring. Some are copied together, and the others are then taken one by one.
fn take(mut reader: Reader) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut out = [0; 2 * GRANULE as usize];
    let mut before = reader.place();
    reader.poll_batch(GRANULES as usize, &mut out, |copied, payload| {
        let Copied { length, sequence, tag, time, .. } = copied;
        let position = before.position + record_bytes(length as u64);
        let after = Place { position, sequence: before.sequence + 1 };
        seen.push(Seen::Message { before, after, payload: payload.to_vec(), tag, time, sequence });
        before = after;
    });
    assert_eq!(reader.place(), before, "the ring is broken: another place than that of the last message");
    seen
}
