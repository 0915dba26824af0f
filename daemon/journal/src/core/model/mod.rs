//! A model of a channel and its recorder. The model tries power cuts and kills between all steps of the disk operations.
//!
//! The model uses three real parts: the packer, the writer, and the code that finds the channel's next sequence after a power cut. A file
//! of the model is the list of its frames. After a power cut, the disk has either all written frames, or only the synced ones.

mod whole;

use super::mutant::{CHOSEN, Mutant};
use super::packer::{Begin, Packer, Packing, Pool};
use super::sim::header;
use super::writer::Writer;
use super::{Frame, Io, Now, Op, Piece, Recovered, Settings, Step, SyncPolicy};
use shmcast::journal::format::JournalControl;
use shmcast_testkit::model::{Model, check, hash_debug};
use std::hash::{Hash, Hasher};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use whole::{copy, hash_doing};

const NOW: Now = Now { mono: Duration::from_secs(1), wall_ns: 1_764_000_000_000_000_000 };
const RESERVE: u64 = 2;
/// The number of messages that the publisher publishes.
const MESSAGES: u64 = 4;
const CUTS: u8 = 1;

const KEPT: &str = "what was called durable is there after a power cut";
const ONCE: &str = "no sequence is given to two messages";
const PROMISED: &str = "a reserve that was called safe is there after a power cut";

/// A planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A planted fault of the writer, or of the code that closes a channel. The simulation plants the same fault.
    Of(Mutant),
    /// A planted fault: the channel continues with the journal's next sequence, and not after the reserve.
    IgnoresTheReserve,
    /// A planted fault: the publisher does not wait until its reserve is durable.
    PublisherRuns,
}

/// A frame in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Written {
    first: u64,
    next: u64,
    reserve: u64,
    is_clean: bool,
}

/// A file of the model's disk.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Inode {
    number: u64,
    frames: Vec<Written>,
    /// The number of frames whose write has ended. `synced` is the number of frames that a sync has covered.
    ended: usize,
    synced: usize,
    is_named: bool,
    /// Whether the file's name is safe from a power cut.
    is_kept: bool,
}

/// An operation that is under way.
#[derive(Debug, Clone)]
struct Running {
    op: Rc<Op>,
    at: usize,
    /// The number of the file's frames whose write had ended when the present step began; `None` before the step begins.
    begun: Option<usize>,
}

/// A recorder's process.
#[derive(Debug)]
struct Life {
    /// The sequence of the first message that this recorder records. Each earlier message is in the journal, or is listed there as lost.
    from: u64,
    packer: Packer,
    writer: Writer,
    lanes: [Option<Running>; 3],
    is_closing: bool,
}

impl Clone for Life {
    fn clone(&self) -> Self {
        let lanes = self.lanes.clone();
        let (packer, writer) = (self.packer.clone(), copy(&self.writer));
        Self { from: self.from, packer, writer, lanes, is_closing: self.is_closing }
    }
}

#[derive(Debug, Clone)]
struct World {
    disk: Vec<Inode>,
    /// `None` while no recorder runs.
    life: Option<Life>,
    ring_lives: bool,
    /// The publisher's next sequence. `given` is the sequence after the highest one that a publisher ever used.
    tail: u64,
    given: u64,
    messages: u64,
    /// The messages that were reported as durable, one bit each. `reserve` is the highest reserve that was reported as durable.
    durable: u64,
    reserve: u64,
    cuts: u8,
    kills: u8,
    broken: Option<&'static str>,
    reached: u64,
}

/// An event that can come next in the model.
#[derive(Debug, Clone, Copy)]
enum Action {
    /// The publisher publishes a message within its durable reserve.
    Publish,
    /// The recorder packs all messages of the ring by `Packer::message`, and calls `Writer::push`.
    Drain,
    /// A step of a disk operation begins. If the power fails before the step ends, its write can be on the disk or not. A sync covers only
    /// writes that ended before the sync began.
    Begin(usize),
    /// A step of a disk operation ends. After the operation's last step, `Writer::done` is called.
    End(usize),
    /// The channel is closed and its writer lock is taken. The recorder records `JournalControl::Clean`.
    Close,
    /// The power fails. With `true`, the disk keeps all written frames. With `false`, it keeps only the synced ones.
    Cut(bool),
    /// The recorder is killed.
    Kill,
    /// A recorder starts: it calls `recover`, then `Packer::begin`.
    Start,
}

struct Journal {
    fault: Option<Fault>,
    sync: SyncPolicy,
}

impl Journal {
    fn is(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// Returns the result that a recovery of these files would have.
    fn recover(disk: &[Inode]) -> Recovered {
        let frames = || disk.iter().flat_map(|file| &file.frames);
        let number = disk.iter().map(|file| file.number).max().unwrap_or(0);
        let due = frames().map(|frame| frame.next).max().unwrap_or(1);
        let mut recovered = Recovered {
            next_number: number + 1,
            due,
            reserve: frames().map(|frame| frame.reserve).max().unwrap_or(0),
            is_clean: frames().last().is_some_and(|frame| frame.is_clean),
            ..Recovered::default()
        };
        if frames().next().is_some() {
            recovered.last = Some(header(&recovered, due, 1, 1));
        }
        recovered
    }

    fn start(&self, world: &mut World) {
        // Recovery syncs the files that it reads.
        world.disk.retain(|file| !file.frames.is_empty());
        for file in &mut world.disk {
            (file.ended, file.synced) = (file.frames.len(), file.frames.len());
            (file.is_named, file.is_kept) = (true, true);
        }
        let recovered = Self::recover(&world.disk);
        let (mut due, mut loss) = (recovered.due, None);
        match recovered.after_power_cut() {
            Some((next, lost)) if !world.ring_lives => {
                (due, loss) = if self.is(Fault::IgnoresTheReserve) { (due, None) } else { (next, lost) };
                world.reached |= if lost.is_some() { 1 } else { 2 };
                world.tail = due;
                if due < world.given {
                    world.broken = Some(ONCE);
                }
            }
            _ => {}
        }
        world.ring_lives = true;
        let first = loss.map_or(due, |loss| loss.from);
        let header = header(&recovered, first, 1, 1);
        let packing = Packing { reserve: RESERVE, ..Packing::default() };
        let (pool, reserve) = (Pool::default(), recovered.reserve);
        let begin = Begin { header: Arc::new(header.clone()), loss, mended: &[], reserve, latest_ns: 0 };
        let mut packer = Packer::begin(packing, pool.clone(), &begin, NOW, 0);
        let settings = Settings {
            sync: self.sync,
            io: Io::Buffered,
            file_bytes: 12 << 10,
            group_bytes: 4096,
            ..Settings::default()
        };
        let writer = Writer::new(settings, header, pool, 1);
        packer.close();
        let mut life = Life { from: due, packer, writer, lanes: [None, None, None], is_closing: false };
        Self::push(&mut life);
        world.life = Some(life);
    }

    fn begin_step(world: &mut World, lane: usize) {
        let Some(life) = &mut world.life else { return };
        let is_closing = life.is_closing && life.writer.waiting.is_empty();
        let Some(running) = &mut life.lanes[lane] else { return };
        let number_of = |step: &Step| match step {
            Step::Create { number, .. }
            | Step::Write { number, .. }
            | Step::Sync { number }
            | Step::Resize { number, .. }
            | Step::Rename { number, .. }
            | Step::Close { number } => Some(*number),
            Step::SyncDirectory => None,
        };
        let step = &running.op.steps[running.at];
        let file = world.disk.iter_mut().find(|file| Some(file.number) == number_of(step));
        running.begun = Some(file.as_ref().map_or(0, |file| file.ended));
        if let (Step::Write { pieces, .. }, Some(file)) = (step, file) {
            let bodies = pieces.iter().filter_map(|piece| match piece {
                Piece::Own(_) => None,
                Piece::Body(frame) => Some(frame),
            });
            file.frames.extend(bodies.map(|frame| written(frame)));
            if is_closing && let Some(last) = file.frames.last_mut() {
                last.is_clean = true;
            }
        }
    }

    fn end_step(world: &mut World, lane: usize) {
        let World { disk, life: Some(life), durable, reserve, .. } = world else { return };
        let Some(running) = &mut life.lanes[lane] else { return };
        let begun = running.begun.take().unwrap_or(0);
        let mut of = |number: u64, change: &dyn Fn(&mut Inode)| {
            disk.iter_mut().filter(|file| file.number == number).for_each(change);
        };
        match &running.op.steps[running.at] {
            Step::Create { number, .. } => disk.push(Inode {
                number: *number,
                frames: Vec::new(),
                ended: 0,
                synced: 0,
                is_named: false,
                is_kept: false,
            }),
            Step::Write { number, durable, .. } => of(*number, &|file| {
                file.ended = file.frames.len();
                file.synced = if *durable { file.ended } else { file.synced };
            }),
            Step::Sync { number } => of(*number, &|file| file.synced = file.synced.max(begun)),
            Step::Rename { number, .. } => of(*number, &|file| file.is_named = true),
            Step::SyncDirectory => disk.iter_mut().for_each(|file| file.is_kept = file.is_named),
            Step::Resize { .. } | Step::Close { .. } => {}
        }
        running.at += 1;
        if running.at == running.op.steps.len() {
            life.writer.done(running.op.id, Ok(()), NOW);
            life.lanes[lane] = None;
        }
        (life.from..=life.writer.durable()).for_each(|sequence| *durable |= 1 << sequence);
        if !life.is_closing {
            *reserve = (*reserve).max(life.writer.reserve());
        }
    }

    fn cut(world: &mut World, is_all_there: bool) {
        world.cuts += 1;
        (world.life, world.ring_lives) = (None, false);
        if !is_all_there {
            world.disk.retain(|file| file.is_kept);
            world.disk.iter_mut().for_each(|file| file.frames.truncate(file.synced));
        }
        let recovered = Self::recover(&world.disk);
        let has = |sequence: &u64| {
            let mut frames = world.disk.iter().flat_map(|file| &file.frames);
            frames.any(|frame| (frame.first..frame.next).contains(sequence))
        };
        if !(0..64).filter(|sequence| world.durable >> sequence & 1 == 1).all(|sequence| has(&sequence)) {
            world.broken = Some(KEPT);
        } else if recovered.reserve < world.reserve {
            world.broken = Some(PROMISED);
        }
    }

    /// Takes the operations that are due.
    fn poll(world: &mut World) {
        let Some(life) = &mut world.life else { return };
        while let Some(op) = life.writer.poll(NOW) {
            let lane = op.lane as usize;
            life.lanes[lane] = Some(Running { op: Rc::new(op), at: 0, begun: None });
        }
    }

    fn push(life: &mut Life) {
        life.packer.close();
        while let Some(frame) = life.packer.take() {
            life.writer.push(frame);
        }
    }
}

fn written(frame: &Frame) -> Written {
    Written { first: frame.draft.sequence, next: frame.draft.next, reserve: frame.reserve, is_clean: false }
}

impl Model for Journal {
    type State = World;
    type Action = Action;
    const LANDMARKS: &'static [&'static str] = &[
        "a channel continues behind the reserve",
        "a channel continues behind a clean end",
        "the reserve is renewed",
        "a file is sealed",
        "a recorder is killed, and the ring lives",
    ];

    fn begin(&self) -> World {
        let mut world = World {
            disk: Vec::new(),
            life: None,
            ring_lives: true,
            tail: 1,
            given: 1,
            messages: 0,
            durable: 0,
            reserve: 0,
            cuts: 0,
            kills: 0,
            broken: None,
            reached: 0,
        };
        self.start(&mut world);
        Self::poll(&mut world);
        world
    }

    fn actions(&self, world: &World) -> Vec<Action> {
        let mut all = Vec::new();
        let Some(life) = &world.life else { return vec![Action::Start] };
        // The story is over: a recorder has started after the last power cut. The checks have run at the power cut and at this start.
        if world.cuts == CUTS {
            return Vec::new();
        }
        let may_publish = world.tail <= world.reserve || self.is(Fault::PublisherRuns);
        if world.messages < MESSAGES && may_publish {
            all.push(Action::Publish);
        }
        if life.packer.due() < world.tail && !life.is_closing {
            all.push(Action::Drain);
        }
        for (lane, running) in life.lanes.iter().enumerate() {
            let Some(Running { op, at, begun }) = running else { continue };
            match (&op.steps[*at], begun) {
                (Step::Write { .. } | Step::Sync { .. }, None) => all.push(Action::Begin(lane)),
                _ => all.push(Action::End(lane)),
            }
        }
        if life.packer.due() == world.tail && !life.is_closing && world.messages > 0 {
            all.push(Action::Close);
        }
        // A power cut or a kill matters only after the recorder has reported a reserve as durable, or has begun to close.
        let has_promised = world.reserve > 0 || life.is_closing;
        if world.cuts < CUTS && has_promised {
            all.extend([Action::Cut(true), Action::Cut(false)]);
        }
        if world.kills == 0 && has_promised {
            all.push(Action::Kill);
        }
        all
    }

    fn step(&self, world: &World, action: &Action) -> World {
        let mut next = world.clone();
        match *action {
            Action::Publish => {
                (next.tail, next.messages) = (next.tail + 1, next.messages + 1);
                next.given = next.given.max(next.tail);
            }
            Action::Drain => {
                let (tail, Some(life)) = (next.tail, &mut next.life) else { return next };
                for sequence in life.packer.due()..tail {
                    assert!(life.packer.message(sequence, &[7; 1200], 0, false, 0), "it is due");
                }
                Self::push(life);
            }
            Action::Begin(lane) => Self::begin_step(&mut next, lane),
            Action::End(lane) => Self::end_step(&mut next, lane),
            Action::Close => {
                if !self.is(Fault::Of(Mutant::CleanWithoutLock)) {
                    // The writer lock is taken, so nobody publishes before the next recorder has a durable reserve.
                    next.reserve = 0;
                }
                let Some(life) = &mut next.life else { return next };
                life.is_closing = !self.is(Fault::Of(Mutant::CleanWithoutLock));
                let due = life.packer.due();
                life.packer.control(JournalControl::Clean { next: due });
                Self::push(life);
                life.writer.close();
                life.is_closing = true;
            }
            Action::Cut(is_all_there) => Self::cut(&mut next, is_all_there),
            Action::Kill => (next.life, next.kills) = (None, next.kills + 1),
            Action::Start => {
                self.start(&mut next);
                next.reached |= if world.ring_lives { 16 } else { 0 };
            }
        }
        Self::poll(&mut next);
        next
    }

    fn identify(&self, world: &World, hasher: &mut impl Hasher) {
        let World { disk, life, ring_lives, tail, given, messages, durable, reserve, cuts, kills, .. } =
            world;
        (disk, ring_lives, tail, given, messages, durable, reserve, cuts, kills, world.broken).hash(hasher);
        let Some(Life { from, packer, writer, lanes, is_closing }) = life else { return };
        (from, packer.due(), is_closing, writer.durable, writer.reserve, writer.written).hash(hasher);
        (writer.waiting.len(), writer.pending.len(), writer.is_closing, writer.next_number).hash(hasher);
        hash_debug(&writer.spare, hasher);
        for (doing, _) in &writer.help {
            hash_doing(doing, hasher);
        }
        for file in &writer.files {
            (file.number, file.is_sealed).hash(hasher);
        }
        for running in lanes {
            running.as_ref().map(|running| (running.at, running.begun)).hash(hasher);
        }
        for (_, doing) in writer.busy.iter().flatten() {
            hash_doing(doing, hasher);
        }
    }

    fn broken(&self, world: &World) -> Option<&'static str> {
        world.broken
    }

    fn landmarks(&self, world: &World) -> u64 {
        let is_sealed = |life: &Life| life.writer.files.iter().any(|file| file.is_sealed);
        let is_renewed = world.cuts == 0 && world.reserve > RESERVE + 1;
        world.reached
            | u64::from(is_renewed) << 2
            | u64::from(world.life.as_ref().is_some_and(is_sealed)) << 3
    }
}

fn build(fault: Option<Fault>, sync: SyncPolicy) -> Journal {
    CHOSEN.set(match fault {
        Some(Fault::Of(mutant)) => Some(mutant),
        _ => None,
    });
    Journal { fault, sync }
}

#[test]
fn what_a_recorder_promises_is_there_after_any_cut() {
    let mutants = [
        (Fault::Of(Mutant::DurableAtTheEnd), KEPT),
        (Fault::Of(Mutant::ReserveNotSynced), PROMISED),
        (Fault::Of(Mutant::CleanWithoutLock), ONCE),
        (Fault::IgnoresTheReserve, ONCE),
        (Fault::PublisherRuns, ONCE),
    ];
    let every = SyncPolicy::Interval(Duration::ZERO);
    check("reserve of a journal", &[KEPT, ONCE, PROMISED], &mutants, |fault| build(fault, every));
    let mutants = [(Fault::Of(Mutant::NoDirectorySync), PROMISED)];
    check("journal, each write safe", &[PROMISED], &mutants, |fault| build(fault, SyncPolicy::Each));
    let mutants = [(Fault::Of(Mutant::ReserveNotSynced), PROMISED)];
    check("journal, nothing synced", &[PROMISED], &mutants, |fault| build(fault, SyncPolicy::None));
    CHOSEN.set(None);
}
