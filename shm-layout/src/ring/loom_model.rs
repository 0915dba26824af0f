//! The protocol under loom: every order of steps, every stale value that the memory model lets a reader see.
//!
//! A [`Story`] is one writer at work on a ring of four granules, with payloads that forge commit words where a later
//! reader looks for them. Readers only note what they saw; once all have ended, [`Story::check`] compares their notes
//! with what was published. The writer reads nothing that a reader wrote, so a reader that comes late and may see any
//! stale value sees all there is to see; `LOOM_MAX_PREEMPTIONS` adds switches in mid-flight.
//!
//! `tests/loom.rs` runs these models, and once more for each mutant of the protocol, which one of them must break.

use crate::error::Corrupt;
use crate::layout::geometry::{GRANULE, Geometry, record_bytes};
use crate::layout::header::SESSION_REST;
use crate::layout::record::{Commit, Control, Flags};
use crate::ring::cells::{Cells, RingCells};
use crate::ring::locate::{LocateError, Locator, Place};
use crate::ring::reader::{Poll, Reader, Resume};
use crate::ring::writer::Writer;
use crate::sync::stopping::kill_after;
use loom::thread::{self, JoinHandle};

const GRANULES: u64 = 4;
/// Payload that reaches one word into the second granule: the word where a commit would stand.
const LONG: usize = 56;

/// Explores a model and says how many executions that took.
fn explore(name: &str, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
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

/// What the writer did, one record each.
#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Message(Vec<u8>),
    Control(Control),
}

#[derive(Debug, Clone)]
struct Record {
    at: Place,
    after: Place,
    what: What,
}

/// A reader's life.
type Watch = Box<dyn FnOnce() -> Vec<Seen> + Send>;

/// What a reader saw.
#[derive(Debug, Clone)]
#[expect(dead_code, reason = "what was refused is for the panic message")]
enum Seen {
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
        control: Control,
    },
    Resumed {
        before: Place,
        after: Place,
        missed: u64,
    },
    /// A search gave up, or found the message gone: allowed, and the end of this reader.
    Lost,
    Broken(Corrupt),
    Refused(Poll),
}

fn new_ring() -> (RingCells, Geometry) {
    let geometry = Geometry::tiny(GRANULES);
    let cells = RingCells {
        header: Cells::zeroed(SESSION_REST + 1),
        index: Cells::zeroed(geometry.index_entries as usize),
        data: Cells::zeroed((geometry.capacity / 8) as usize),
    };
    (cells, geometry)
}

/// Payload of message `sequence`: words that name it, and where a next record could begin the commit word of `forged`.
fn payload(sequence: u64, length: usize, forged: u64) -> Vec<u8> {
    let words = (0..length.div_ceil(8)).map(|i| match i {
        6 => Commit::new(forged, Flags::VALID, 0).word(),
        _ => sequence * 1000 + i as u64,
    });
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Whether a record that its writer died over is there after all.
fn is_committed(before: Place, tail: Place, what: &What) -> bool {
    match what {
        What::Message(_) | What::Control(Control::Gap { .. }) => tail.sequence != before.sequence,
        What::Control(_) => tail.position != before.position,
    }
}

/// One thing for a writer to do.
#[derive(Debug, Clone, Copy)]
enum Do {
    /// A message of so many bytes, with a commit word for this sequence forged in its second granule.
    Publish(usize, u64),
    /// An empty message.
    Tick,
    /// A message whose payload is that of a gap record.
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

struct Story {
    cells: RingCells,
    geometry: Geometry,
    writer: Option<Writer>,
    records: Vec<Record>,
    /// What the last writer died over, and where it began.
    dying: Option<(Place, What)>,
}

impl Story {
    fn begin() -> Self {
        let (cells, geometry) = new_ring();
        let writer = Writer::take(cells.clone(), geometry, 1, 0).expect("a new ring");
        Self { cells, geometry, writer: Some(writer), records: Vec::new(), dying: None }
    }

    fn place(&self) -> Place {
        match &self.writer {
            Some(writer) => Place { position: writer.position(), sequence: writer.next_sequence() },
            None => self.records.last().map_or(Place::START, |record| record.after),
        }
    }

    /// What a record will say, and the writer's call that says it.
    fn plan(&self, task: Do) -> (What, impl FnOnce(&mut Writer) + use<>) {
        let from = self.place().sequence;
        let what = match task {
            Do::Publish(length, forged) => What::Message(payload(from, length, forged)),
            Do::Tick => What::Message(Vec::new()),
            Do::ForgeGap { from, to } => What::Message(
                Control::Gap { from, to }.words().into_iter().flat_map(u64::to_le_bytes).collect(),
            ),
            Do::Gap { to } => What::Control(Control::Gap { from, to }),
            Do::Session => What::Control(Control::Session { high: 0x0707_0707_0707_0707, low: 0x0707 }),
            Do::Close => What::Control(Control::End),
        };
        let said = what.clone();
        let say = move |writer: &mut Writer| match said {
            What::Message(payload) => {
                writer.publish(&payload, from as u16, false, from).expect("it fits");
            }
            What::Control(Control::Gap { to, .. }) => writer.gap(to, from),
            What::Control(Control::Session { .. }) => writer.session([7; 10], from),
            What::Control(_) => writer.close(from),
        };
        (what, say)
    }

    fn act(&mut self, task: Do) {
        let sequence = self.place().sequence;
        let (what, say) = self.plan(task);
        say(self.writer.as_mut().expect("alive"));
        self.note(self.place(), sequence, what);
    }

    fn acts(&mut self, tasks: &[Do]) {
        tasks.iter().for_each(|task| self.act(*task));
    }

    /// Notes the record that ends at `after`.
    fn note(&mut self, after: Place, sequence: u64, what: What) {
        let bytes = match &what {
            What::Message(payload) => record_bytes(payload.len() as u64),
            What::Control(_) => GRANULE,
        };
        let at = Place { position: after.position - bytes, sequence };
        self.records.push(Record { at, after, what });
    }

    /// The writer dies over a task, right before that many stores were made. False if the task needs no more.
    fn die(&mut self, task: Do, stores: u32) -> bool {
        let before = self.place();
        let (what, say) = self.plan(task);
        let mut writer = self.writer.take().expect("alive");
        let died = !kill_after(stores, || say(&mut writer));
        if died {
            self.dying = Some((before, what));
        } else {
            let after = Place { position: writer.position(), sequence: writer.next_sequence() };
            self.note(after, before.sequence, what);
        }
        died
    }

    /// A successor dies taking over, right before that many stores were made.
    fn die_taking(&mut self, stores: u32) -> bool {
        let before = self.place();
        self.writer = None;
        let mut epoch = 0;
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        let died = !kill_after(stores, || {
            epoch = Writer::take(cells, geometry, 2, 5).expect("a ring of ours").epoch()
        });
        let after = Place { position: before.position + GRANULE, ..before };
        if died {
            // The first writer was the first epoch.
            self.dying = Some((before, What::Control(Control::Epoch { epoch: 2 })));
        } else {
            self.note(after, before.sequence, What::Control(Control::Epoch { epoch }));
        }
        died
    }

    /// Another writer takes the ring over from one that died or closed it. What that one had committed must be there.
    fn take(&mut self) {
        let before = self.place();
        self.writer = None;
        let writer =
            Writer::take(self.cells.clone(), self.geometry, 2, 5).expect("the ring is broken: refused");
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
        self.note(after, after.sequence, What::Control(Control::Epoch { epoch }));
    }

    /// What a reader will do that starts at `place`.
    fn reading(&self, place: Place, polls: usize, resume: Option<Resume>) -> Watch {
        let (cells, geometry) = (self.cells.clone(), self.geometry);
        Box::new(move || read(Reader::new(cells, geometry, place), polls, resume))
    }

    /// What a reader will do that finds its own place.
    fn joining(
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

    fn read_from(&self, place: Place, polls: usize, resume: Option<Resume>) -> JoinHandle<Vec<Seen>> {
        thread::spawn(self.reading(place, polls, resume))
    }

    fn join(
        &self,
        polls: usize,
        find: impl Fn(&Locator) -> Result<Place, LocateError> + Send + 'static,
    ) -> JoinHandle<Vec<Seen>> {
        thread::spawn(self.joining(polls, find))
    }

    /// Lets the writer live and die on a thread of its own while a reader watches: a successor shares nothing with the
    /// dead but memory and the kernel's lock. Whoever calls this goes on as the successor, and the reader sees it all
    /// or any older part, whenever it comes to look.
    fn lives(
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

    /// Compares a reader's notes with the truth.
    fn check(&self, reader: JoinHandle<Vec<Seen>>) {
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
            Seen::Started(place) | Seen::Resumed { after: place, .. } if !self.is_boundary(*place) => {
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
                let is_end = |record: &Record| record.what == What::Control(Control::End);
                let known = *control == Control::End && ending(after).is_some_and(is_end);
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

    /// Whether a record begins or ends at a place.
    fn is_boundary(&self, place: Place) -> bool {
        place == Place::START || self.records.iter().any(|record| record.after == place || record.at == place)
    }
}

/// Whether a reader that was at `before` comes to `record` next: at once, or after a pad.
fn leads_to(before: &Place, record: &Record) -> bool {
    let capacity = GRANULES * GRANULE;
    let padded =
        record.at.position.is_multiple_of(capacity) && record.at.position - before.position < capacity;
    before.sequence == record.at.sequence && (before.position == record.at.position || padded)
}

/// Polls until the ring seems empty. What an impatient reader does not see now, it sees in another execution.
fn read(mut reader: Reader, polls: usize, resume: Option<Resume>) -> Vec<Seen> {
    let mut seen = Vec::new();
    let mut out = [0; 2 * GRANULE as usize];
    for _ in 0..polls {
        let before = reader.place();
        let poll = reader.poll(&mut out);
        let after = reader.place();
        seen.push(match poll {
            Poll::Message { length, sequence, tag, time, key: false } => {
                let payload = out[..length].to_vec();
                Seen::Message { before, after, payload, tag, time, sequence }
            }
            Poll::Control(control) => Seen::Control { before, after, control },
            // A pad before a record that is not there yet.
            Poll::Empty if after != before => continue,
            Poll::Empty => return seen,
            Poll::Lapped => match resume.map(|policy| reader.resume(policy)) {
                Some(Ok(missed)) => Seen::Resumed { before, after: reader.place(), missed },
                Some(Err(LocateError::Corrupt(corrupt))) => Seen::Broken(corrupt),
                _ => return seen,
            },
            Poll::Corrupt(corrupt) => Seen::Broken(corrupt),
            other => Seen::Refused(other),
        });
    }
    seen
}

// ----- the models -----

#[test]
fn publish_and_read() {
    explore("publish_and_read", 2, || {
        let mut story = Story::begin();
        let reader = story.read_from(Place::START, 3, None);
        story.acts(&[Do::Publish(16, 0), Do::Publish(LONG, 2)]);
        story.check(reader);
    });
}

#[test]
fn padded_at_the_end_of_the_ring() {
    explore("padded_at_the_end_of_the_ring", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 3), Do::Tick]);
        let reader = story.read_from(story.place(), 3, None);
        story.acts(&[Do::Publish(LONG, 4), Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn two_readers() {
    explore("two_readers", 1, || {
        let mut story = Story::begin();
        let readers = [(); 2].map(|()| story.read_from(Place::START, 2, None));
        story.acts(&[Do::Publish(8, 0), Do::Tick]);
        for reader in readers {
            story.check(reader);
        }
    });
}

/// What a lap ago was payload stands where the next record is awaited.
#[test]
fn old_payload_at_the_tail() {
    explore("old_payload_at_the_tail", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 5), Do::Tick, Do::Tick]);
        let reader = story.read_from(story.place(), 3, None);
        story.acts(&[Do::Tick, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn lapped_while_copying() {
    explore("lapped_while_copying", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 4), Do::Tick]);
        let reader = story.read_from(Place::START, 2, None);
        story.acts(&[Do::Tick, Do::Publish(LONG, 4)]);
        story.check(reader);
    });
}

#[test]
fn lapped_and_resumed() {
    for policy in [Resume::Oldest, Resume::Latest, Resume::Key] {
        explore("lapped_and_resumed", 1, move || {
            let mut story = Story::begin();
            story.acts(&[Do::Tick, Do::Tick]);
            let reader = story.read_from(Place::START, 3, Some(policy));
            story.acts(&[Do::Tick, Do::Publish(8, 0), Do::Tick]);
            story.check(reader);
        });
    }
}

#[test]
fn joined_at_the_tail() {
    explore("joined_at_the_tail", 2, || {
        let mut story = Story::begin();
        story.act(Do::Tick);
        let reader = story.join(2, Locator::tail);
        story.acts(&[Do::Publish(LONG, 3), Do::Tick]);
        story.check(reader);
    });
}

/// The index entry of the next message moves on when a control record or a pad takes its place.
#[test]
fn joined_behind_a_control_record() {
    explore("joined_behind_a_control_record", 2, || {
        let mut story = Story::begin();
        story.acts(&[Do::Publish(LONG, 4), Do::Tick, Do::Tick]);
        let reader = story.join(2, Locator::tail);
        story.acts(&[Do::Session, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn joined_while_the_index_is_reused() {
    explore("joined_while_the_index_is_reused", 1, || {
        let mut story = Story::begin();
        let reader = story.join(1, Locator::tail);
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn joined_at_the_oldest() {
    explore("joined_at_the_oldest", 1, || {
        let mut story = Story::begin();
        story.acts(&[Do::Tick, Do::Tick]);
        let reader = story.join(2, Locator::oldest);
        story.acts(&[Do::Tick, Do::Tick, Do::Tick]);
        story.check(reader);
    });
}

#[test]
fn sought_while_publishing() {
    for sequence in [2, 4, 6] {
        explore("sought_while_publishing", 1, move || {
            let mut story = Story::begin();
            story.acts(&[Do::Tick, Do::Tick]);
            let reader = story.join(2, move |locator| locator.seek(sequence));
            story.acts(&[Do::Tick, Do::Tick, Do::Tick]);
            story.check(reader);
        });
    }
}

#[test]
fn joined_around_a_gap() {
    // One that the index has room for, one that uses all of it, and one that ends where it began.
    for to in [3, 9, 5] {
        explore("joined_around_a_gap", 1, move || {
            let mut story = Story::begin();
            story.act(Do::Tick);
            let reader = story.join(2, Locator::tail);
            story.acts(&[Do::Gap { to }, Do::Tick]);
            story.check(reader);
        });
    }
}

#[test]
fn sought_around_a_gap() {
    for (to, sequence) in [(3, 1), (3, 3), (9, 1), (9, 2), (5, 5), (5, 6)] {
        explore("sought_around_a_gap", 0, move || {
            let mut story = Story::begin();
            story.act(Do::Tick);
            let reader = story.join(2, move |locator| locator.seek(sequence));
            story.acts(&[Do::Gap { to }, Do::Tick]);
            story.check(reader);
        });
    }
}

/// A walk comes to a gap record whose words the writer is overwriting with those of another.
#[test]
fn lapped_while_walking() {
    explore("lapped_while_walking", 1, || {
        let mut story = Story::begin();
        story.act(Do::Gap { to: 2 });
        let reader = story.join(1, |locator| Ok(locator.walk(Place::START, u64::MAX, 8)?.0));
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::ForgeGap { from: 1, to: 6 }]);
        story.check(reader);
    });
}

/// A gap's words change, while they are read, into those of a gap whose first sequence looks the same in a commit word.
#[test]
fn lapped_while_seeking() {
    const HIGH: u64 = 1 << 32;
    explore("lapped_while_seeking", 0, || {
        let mut story = Story::begin();
        story.acts(&[Do::Gap { to: HIGH }, Do::Gap { to: HIGH + 4 }]);
        let reader = story.join(1, |locator| locator.seek(HIGH + 2));
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::ForgeGap { from: 1, to: HIGH + 4 }]);
        story.check(reader);
    });
}

#[test]
fn the_end_comes_last() {
    explore("the_end_comes_last", 2, || {
        let mut story = Story::begin();
        let reader = story.read_from(Place::START, 3, None);
        story.acts(&[Do::Publish(8, 0), Do::Close]);
        story.check(reader);
    });
}

/// The zero at a lapped reader's position is one that cleans a later lap: not the end, though the state says so.
#[test]
fn lapped_at_the_end() {
    explore("lapped_at_the_end", 1, || {
        let mut story = Story::begin();
        story.act(Do::Tick);
        let reader = story.read_from(story.place(), 2, Some(Resume::Latest));
        story.acts(&[Do::Tick, Do::Tick, Do::Tick, Do::Close]);
        story.check(reader);
    });
}

#[test]
fn closed_and_opened_again() {
    explore("closed_and_opened_again", 0, || {
        let story = Story::begin();
        let watch = story.reading(Place::START, 4, None);
        let (mut story, reader) = story.lives(watch, |story| story.act(Do::Close));
        story.take();
        story.act(Do::Tick);
        story.check(reader);
    });
}

/// Tries a death right before each store of `life`, a takeover, and one more message. The reader is there before.
fn every_death(
    name: &'static str,
    before: &'static [Do],
    life: impl Fn(&mut Story, u32) -> bool + Send + Sync + Copy + 'static,
    watch: impl Fn(&Story) -> Watch + Send + Sync + Copy + 'static,
) {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    for stores in 0.. {
        let died = Arc::new(AtomicBool::new(false));
        let report = died.clone();
        explore(&format!("{name}, killed before store {stores}"), 0, move || {
            let mut story = Story::begin();
            story.acts(before);
            let watch = watch(&story);
            let report = report.clone();
            let (mut story, reader) = story.lives(watch, move |story| {
                report.store(life(story, stores), Ordering::Relaxed);
            });
            story.take();
            story.act(Do::Tick);
            story.check(reader);
        });
        if !died.load(Ordering::Relaxed) {
            assert!(stores > 4, "hardly a life");
            return;
        }
    }
}

fn at_the_tail(story: &Story) -> Watch {
    story.reading(story.place(), 4, None)
}

fn joining(story: &Story) -> Watch {
    story.joining(2, Locator::tail)
}

/// What the dead left half written above the tail must never be read, however much like a record it looks.
#[test]
fn takeover_from_a_publisher() {
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 2), stores);
    every_death("takeover_from_a_publisher", &[Do::Tick], life, at_the_tail);
}

#[test]
fn takeover_after_a_pad() {
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 3), stores);
    every_death("takeover_after_a_pad", &[Do::Publish(LONG, 3), Do::Tick], life, at_the_tail);
}

/// The successor cleans granules that a reader, a lap behind, is copying.
#[test]
fn takeover_while_copying() {
    const BEFORE: &[Do] = &[Do::Tick, Do::Publish(LONG, 4), Do::Tick];
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 4), stores);
    let watch = |story: &Story| story.reading(Place { position: GRANULE, sequence: 2 }, 1, None);
    every_death("takeover_while_copying", BEFORE, life, watch);
}

#[test]
fn takeover_while_joining() {
    let life = |story: &mut Story, stores| story.die(Do::Publish(LONG, 2), stores);
    every_death("takeover_while_joining", &[Do::Tick], life, joining);
}

#[test]
fn takeover_while_lapped() {
    let life = |story: &mut Story, stores| story.die(Do::Tick, stores);
    let watch = |story: &Story| story.reading(Place::START, 3, Some(Resume::Oldest));
    every_death("takeover_while_lapped", &[Do::Tick, Do::Tick, Do::Tick], life, watch);
}

#[test]
fn takeover_from_a_gap() {
    let life = |story: &mut Story, stores| story.die(Do::Gap { to: 3 }, stores);
    every_death("takeover_from_a_gap", &[Do::Tick], life, at_the_tail);
}

/// The gap wraps the index, so that the tail's entry is the one the lazy line names.
#[test]
fn takeover_from_a_gap_while_joining() {
    let life = |story: &mut Story, stores| story.die(Do::Gap { to: 5 }, stores);
    every_death("takeover_from_a_gap_while_joining", &[Do::Tick], life, joining);
}

#[test]
fn takeover_from_a_closing_publisher() {
    let life = |story: &mut Story, stores| story.die(Do::Close, stores);
    every_death("takeover_from_a_closing_publisher", &[Do::Tick], life, at_the_tail);
}

#[test]
fn takeover_from_a_successor() {
    every_death("takeover_from_a_successor", &[Do::Tick], Story::die_taking, at_the_tail);
}
