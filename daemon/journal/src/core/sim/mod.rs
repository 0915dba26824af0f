//! Tests the recorder's logic on a disk that loses power. Each seed gives a story, and an oracle checks the journal after each power cut.
//!
//! A story has several lives of a recorder. Each life begins with a recovery, during which the power fails up to three times. Each life
//! ends with a power cut, a killed process, or a clean stop.
//!
//! After each recovery the oracle reads the journal. It compares the journal with the published messages, and with the sequences and
//! reserves that were reported as durable.
//!
//! `SHMCAST_JOURNAL_CUTS` sets the number of stories, and `SHMCAST_SEED` sets the first seed.

#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

mod between;
mod damage;
mod disk;
mod judge;
mod oracle;
mod readers;
mod rings;
mod tests;

use super::mutant::{Mutant, is};
use super::{
    Begin, Io, Lane, Now, Op, Packer, Packing, Pool, Recovered, Settings, State, SyncPolicy, Writer, recover,
};
use disk::{Disk, Faults};
use fastrand::Rng;
use shmcast::journal::format::{
    Cause, FRAME_HEADER_BYTES, FileHeader, FrameBuilder, FrameHeader, JournalControl, RingIdentity,
};
use shmcast::{ClockKind, StreamId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The number of sequences that a new reserve adds in these tests. It is small, so that reserves are used up and renewed.
const RESERVE: u64 = 64;
const RING: usize = 24;

/// The way in which a life ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    PowerCut,
    Killed,
    Clean,
}

/// Counts over all stories. A test checks these counts, so that stories without faults cannot pass unnoticed.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    cuts: u64,
    kills: u64,
    cleans: u64,
    cuts_in_recovery: u64,
    errors_in_recovery: u64,
    messages: u64,
    durable: u64,
    files: u64,
    errors: u64,
    losses: u64,
}

struct World {
    rng: Rng,
    disk: Disk,
    published: BTreeMap<u64, Vec<u8>>,
    /// The next sequence of the publisher.
    tail: u64,
    epoch: u64,
    ring: VecDeque<u64>,
    ring_id: u64,
    ring_lives: bool,
    /// The last sequence that was reported as durable. `safe` has the messages up to this sequence.
    durable: u64,
    safe: BTreeSet<u64>,
    reserve: u64,
    now: Now,
    sync: SyncPolicy,
    io: Io,
    may_rot: bool,
    rotted: bool,
    /// Whether readers also read the files before and after each recovery.
    has_readers: bool,
    /// Whether the channel sometimes continues in another ring.
    has_rings: bool,
    /// Whether each call of each recovery fails once, on a copy of the disk.
    has_errors: bool,
    /// A lane that runs far less often than the others.
    slow: Option<Lane>,
    counts: Counts,
}

type Verdict<T = ()> = Result<T, String>;

/// Plays the story of a seed.
fn play(seed: u64, io: Io) -> Verdict<Counts> {
    let mut world = World::new(seed, io);
    world.play()?;
    Ok(world.counts)
}

struct Life {
    /// Whether the disk has no failures.
    is_sound: bool,
    packer: Packer,
    writer: Writer,
    lanes: [Option<Running>; 3],
    /// Messages that were packed but are not durable yet.
    packed: VecDeque<u64>,
    is_closing: bool,
}

struct Running {
    op: Op,
    at: usize,
    begun: Option<u64>,
}

impl World {
    fn new(seed: u64, io: Io) -> Self {
        let mut rng = Rng::with_seed(seed);
        let sync = match rng.u8(0..3) {
            0 => SyncPolicy::None,
            1 => SyncPolicy::Interval(Duration::from_millis(10)),
            _ => SyncPolicy::Each,
        };
        Self {
            disk: Disk::new(rng.u64(..), io),
            io,
            may_rot: rng.u8(0..8) == 0,
            rng,
            published: BTreeMap::new(),
            tail: 1,
            epoch: 1,
            ring: VecDeque::new(),
            ring_id: 1,
            ring_lives: true,
            durable: 0,
            safe: BTreeSet::new(),
            reserve: 0,
            now: Now { mono: Duration::from_secs(1), wall_ns: 1_764_000_000_000_000_000 },
            sync,
            rotted: false,
            has_readers: false,
            has_rings: false,
            has_errors: false,
            slow: None,
            counts: Counts::default(),
        }
    }

    fn play(&mut self) -> Verdict {
        for _ in 0..self.rng.u8(2..5) {
            self.life()?;
        }
        let recovered = self.recover()?;
        self.judge(&recovered)
    }

    fn life(&mut self) -> Verdict {
        let recovered = self.recover()?;
        self.judge(&recovered)?;
        let mut life = self.start(&recovered)?;
        self.disk.faults = self.choose_faults();
        life.is_sound = self.disk.faults == Faults::default() && self.disk.fails_after.is_none();
        for _ in 0..self.rng.u32(5..70) {
            self.act(&mut life);
        }
        let ending =
            [Ending::PowerCut, Ending::PowerCut, Ending::Killed, Ending::Clean][self.rng.usize(0..4)];
        match ending {
            Ending::Clean => self.stop(life),
            Ending::PowerCut => self.power_cut(),
            Ending::Killed => {
                self.counts.kills += 1;
                self.disk.kill();
                self.publish(3);
            }
        }
        self.disk.faults = Faults::default();
        Ok(())
    }

    fn power_cut(&mut self) {
        self.counts.cuts += 1;
        self.disk.cut();
        self.ring.clear();
        self.ring_lives = false;
        self.ring_id += 1;
    }

    fn choose_faults(&mut self) -> Faults {
        let mut one_in = |chance: u8, rate: u32| if self.rng.u8(0..chance) == 0 { rate } else { 0 };
        Faults {
            sync_fails: one_in(6, 4),
            write_fails: one_in(8, 6),
            create_fails: one_in(8, 2),
            rename_fails: one_in(12, 2),
            read_only: one_in(40, 1) == 1,
        }
    }

    /// Recovers the journal. The power fails up to three times during the recovery.
    fn recover(&mut self) -> Verdict<Recovered> {
        if self.has_readers {
            self.look()?;
        }
        for _ in 0..self.rng.u8(0..4) {
            self.disk.calls_left = Some(self.rng.u32(0..25));
            if recover(&mut self.disk).is_ok() {
                break;
            }
            self.counts.cuts_in_recovery += 1;
            self.power_cut();
        }
        self.disk.calls_left = None;
        if self.has_errors {
            self.recover_with_errors()?;
        }
        recover(&mut self.disk).map_err(|error| format!("recovery: {error}"))
    }

    /// Begins a life as a recorder does.
    fn start(&mut self, recovered: &Recovered) -> Verdict<Life> {
        let (mut due, mut loss) = (recovered.due, None);
        if recovered.last.is_none() {
            // An empty journal is an error if a message was reported as durable. It is also an error if a publisher had a reserve and the
            // ring is gone.
            if self.durable > 0 || (self.reserve > 0 && !self.ring_lives) {
                return Err("the journal is gone".into());
            }
            self.ring_lives = true;
            due = self.ring.front().copied().unwrap_or(self.tail);
        } else if !self.ring_lives {
            (due, loss) = recovered.after_power_cut().unwrap();
            self.is_given_once(recovered)?;
            self.tail = due;
            self.epoch += 1;
            self.ring_lives = true;
        }
        let first = loss.map_or(due, |loss| loss.from);
        let header = header(recovered, first, self.ring_id, self.epoch);
        let pool = Pool::default();
        let packing = Packing {
            target: 2048,
            reserve: RESERVE,
            clock_every: Duration::from_millis(20),
            clock_bytes: 8192,
        };
        let (mended, reserve) = (&recovered.mended[..], recovered.reserve);
        let begin = Begin { header: Arc::new(header.clone()), loss, mended, reserve, latest_ns: 0 };
        let packer = Packer::begin(packing, pool.clone(), &begin, self.now, 0);
        let settings = Settings {
            sync: self.sync,
            io: self.io,
            file_bytes: 20 << 10,
            roll_after: (self.rng.u8(0..3) == 0).then_some(Duration::from_millis(50)),
            sync_bytes: if self.io == Io::Direct { 4096 } else { usize::MAX },
            group_bytes: 4096,
            buffer: 12 << 10,
            retry_every: Duration::from_millis(20),
        };
        let writer = Writer::new(settings, header, pool, self.rng.u64(..));
        Ok(Life {
            is_sound: false,
            packer,
            writer,
            lanes: [None, None, None],
            packed: VecDeque::new(),
            is_closing: false,
        })
    }

    fn publish(&mut self, most: u64) {
        for _ in 0..self.rng.u64(0..=most) {
            if self.tail > self.reserve || !self.ring_lives {
                return;
            }
            let mut own = Rng::with_seed(self.tail ^ self.epoch << 32);
            let length = if own.u8(0..8) == 0 { own.usize(300..1500) } else { own.usize(0..90) };
            let mut payload: Vec<u8> = (0..length).map(|_| own.u8(..)).collect();
            if own.u8(0..5) == 0 {
                payload = imitation(self.tail, own.u64(..));
            }
            self.published.insert(self.tail, payload);
            self.counts.messages += 1;
            self.ring.push_back(self.tail);
            self.tail += 1;
            if self.ring.len() > RING {
                self.ring.pop_front();
            }
        }
    }

    fn drain(&mut self, life: &mut Life, most: usize) {
        let ticks = self.now.mono.as_nanos() as u64;
        life.packer.at(self.now, ticks);
        let oldest = self.ring.front().copied().unwrap_or(self.tail);
        life.packer.loss(oldest - 1, Cause::Overrun);
        let due = life.packer.due();
        let waiting: Vec<u64> =
            self.ring.iter().copied().filter(|&sequence| sequence >= due).take(most).collect();
        for sequence in waiting {
            if !life.writer.has_room() {
                break;
            }
            let taken =
                life.packer.message(sequence, &self.published[&sequence], 0, sequence % 7 == 0, ticks);
            assert!(taken, "the ring has no holes");
            life.packed.push_back(sequence);
            self.push(life);
        }
    }

    fn push(&mut self, life: &mut Life) {
        while let Some(frame) = life.packer.take() {
            life.writer.push(frame);
        }
    }

    fn act(&mut self, life: &mut Life) {
        match self.rng.u8(0..12) {
            5 if self.has_rings && self.rng.u8(0..3) == 0 => self.change_ring(life),
            0 | 1 => self.publish(5),
            2 | 3 => self.drain(life, 8),
            4 => {
                self.drain(life, 3);
                life.packer.close();
                self.push(life);
            }
            5 => {
                let ms = self.rng.u64(0..15);
                self.pass_time(ms);
            }
            _ => self.turn(life),
        }
    }

    fn pass_time(&mut self, ms: u64) {
        self.now.mono += Duration::from_millis(ms);
        self.now.wall_ns = self.now.wall_ns.wrapping_add_signed(ms as i64 * 1_000_000);
        if self.rng.u8(0..20) == 0 {
            self.now.wall_ns -= 500_000_000; // somebody sets the clock back
        }
    }

    /// Begins or ends a step in a lane.
    fn turn(&mut self, life: &mut Life) {
        if let Some(op) = life.writer.poll(self.now) {
            let lane = op.lane;
            life.lanes[lane as usize] = Some(Running { op, at: 0, begun: None });
        }
        let lane = [Lane::Write, Lane::Sync, Lane::Help][self.rng.usize(0..3)];
        if self.slow == Some(lane) && self.rng.u8(0..16) > 0 {
            return;
        }
        let Some(running) = &mut life.lanes[lane as usize] else { return };
        let step = &running.op.steps[running.at];
        let Some(begun) = running.begun else {
            running.begun = Some(self.disk.begin(step));
            return;
        };
        let result = self.disk.end(step, begun);
        running.begun = None;
        running.at += 1;
        if result.is_ok() && running.at < running.op.steps.len() {
            return;
        }
        let id = running.op.id;
        self.counts.errors += u64::from(result.is_err());
        assert!(!life.is_sound || result.is_ok(), "a disk that does all refused {step:?}: {result:?}");
        life.lanes[lane as usize] = None;
        life.writer.done(id, result, self.now);
        self.durable = self.durable.max(life.writer.durable());
        while life.packed.front().is_some_and(|&sequence| sequence <= life.writer.durable()) {
            self.safe.extend(life.packed.pop_front());
        }
        if !life.is_closing {
            self.reserve = self.reserve.max(life.writer.reserve());
        }
        self.counts.durable = self.counts.durable.max(self.durable);
        self.counts.files = self.counts.files.max(life.writer.active());
    }

    /// The publisher closes the channel, and the recorder seals its file. The power can fail before the file is sealed.
    fn stop(&mut self, mut life: Life) {
        self.disk.faults = Faults::default();
        let is_closed = !is(Mutant::CleanWithoutLock);
        for turn in 0.. {
            if life.packer.due() >= self.tail {
                break;
            }
            let (due, tail, ring) = (life.packer.due(), self.tail, self.ring.front());
            assert!(
                turn < 5_000,
                "due {due}, tail {tail}, ring {ring:?}, buffered {}",
                life.writer.buffered()
            );
            self.drain(&mut life, 8);
            self.pass_time(3);
            self.turn(&mut life);
        }
        if is_closed {
            life.is_closing = true;
            self.reserve = 0; // the lock is taken: nobody publishes before the next recorder has a reserve
        }
        let next = life.packer.due();
        life.packer.control(JournalControl::Clean { next });
        life.packer.close();
        self.push(&mut life);
        life.writer.close();
        let cut_after = if self.rng.u8(0..3) == 0 { self.rng.u32(0..40) } else { u32::MAX };
        for turn in 0..2_000 {
            if turn == cut_after {
                self.publish(if is_closed { 0 } else { 4 });
                return self.power_cut();
            }
            if life.writer.state() == State::Closed {
                break;
            }
            self.pass_time(2);
            self.turn(&mut life);
        }
        assert_eq!(life.writer.state(), State::Closed, "{:?}", life.writer);
        self.publish(if is_closed { 0 } else { 4 });
        self.counts.cleans += 1;
        if self.may_rot {
            self.rot();
        }
        self.power_cut();
    }

    /// Damages a sealed file that is not the last file.
    fn rot(&mut self) {
        let names = super::Volume::list(&mut self.disk).unwrap();
        let mut files: Vec<String> = names.into_iter().filter(|name| name.ends_with(".smj")).collect();
        files.sort();
        files.pop();
        if !files.is_empty() {
            let name = files.swap_remove(self.rng.usize(0..files.len()));
            self.disk.rot(&name);
            self.rotted = true;
        }
    }
}

pub(super) fn header(recovered: &Recovered, sequence: u64, ring: u64, epoch: u64) -> FileHeader {
    FileHeader {
        stream: StreamId::from_bytes([7; 16]),
        file: recovered.next_number,
        salt: 1,
        sequence,
        epoch,
        wall_ns: 0,
        boot_id: [1; 16],
        ring: RingIdentity {
            uuid: [ring, 0],
            generation: 0,
            clock: ClockKind::Monotonic,
            clock_hz: 1_000_000_000,
        },
        previous_salt: recovered.previous.0,
        previous_chain: recovered.previous.1,
        largest_frame: 4096,
        reserve: 0,
        schema_id: 0,
        channel: "sim".into(),
        schema: String::new(),
        labels: String::new(),
    }
}

/// Returns a payload that has a whole frame with another salt, at an offset at which a search would find the frame.
fn imitation(sequence: u64, salt: u64) -> Vec<u8> {
    let mut frame = FrameBuilder::new(Vec::new(), sequence + 3, 1);
    frame.message(&[0xfa; 700], 0, false, 0);
    frame.message(b"false", 0, false, 0);
    let (draft, mut bytes) = frame.close();
    let header = FrameHeader {
        salt: salt | 1,
        length: draft.length,
        body_crc: draft.body_crc,
        sequence: draft.sequence,
        messages: draft.messages,
        chain: 0,
        time_ns: 1,
        durable: 0,
        number: 1_000,
        kind: draft.kind,
        codec: draft.codec,
        flags: draft.flags,
    };
    bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
    let mut payload = vec![0xee; 48];
    payload.extend_from_slice(&bytes);
    payload
}
