//! Tests of a writer whose disk refuses some steps. Each test sets the steps and the time.

use super::sim::header;
use super::{
    Begin, Lane, Now, Op, Packer, Packing, Pool, Recovered, Settings, State, Step, SyncPolicy, Writer,
};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

const RETRY: Duration = Duration::from_secs(5);
const SIZE: u64 = 64 << 10;
/// More operations than any test needs at one point of time. Only a writer that repeats operations without a pause exceeds this number.
const MOST: usize = 100;

struct Scene {
    writer: Writer,
    packer: Packer,
    next: u64,
    now: Now,
    /// The steps that were done, or refused.
    done: Vec<Step>,
    refused: Vec<Step>,
}

impl Scene {
    /// A writer at the beginning of a journal.
    fn new(sync: SyncPolicy) -> Self {
        let recovered = Recovered { next_number: 1, due: 1, ..Recovered::default() };
        let (header, pool) = (header(&recovered, 1, 1, 1), Pool::default());
        let now = Now { mono: Duration::from_secs(1), wall_ns: 1_764_000_000_000_000_000 };
        let begin =
            Begin { header: Arc::new(header.clone()), loss: None, mended: &[], reserve: 0, latest_ns: 0 };
        let packer = Packer::begin(Packing::default(), pool.clone(), &begin, now, 0);
        let settings = Settings { sync, file_bytes: SIZE, retry_every: RETRY, ..Settings::default() };
        let writer = Writer::new(settings, header, pool, 1);
        Self { writer, packer, next: 1, now, done: Vec::new(), refused: Vec::new() }
    }

    /// Packs a message into a frame, and gives the frame to the writer.
    fn push(&mut self, bytes: usize) {
        self.packer.at(self.now, 0);
        assert!(self.packer.message(self.next, &vec![7; bytes], 0, false, 0));
        self.next += 1;
        self.packer.close();
        while let Some(frame) = self.packer.take() {
            self.writer.push(frame);
        }
    }

    fn perform(&mut self, op: Op, refuses: impl Fn(&Step) -> bool) {
        let mut result = Ok(());
        for step in op.steps {
            if refuses(&step) {
                self.refused.push(step);
                result = Err(io::Error::other("refused"));
                break;
            }
            self.done.push(step);
        }
        self.writer.done(op.id, result, self.now);
    }

    /// Performs the operations of this time, except for the steps that the disk refuses.
    fn run(&mut self, refuses: impl Fn(&Step) -> bool) {
        for _ in 0..MOST {
            let Some(op) = self.writer.poll(self.now) else { return };
            self.perform(op, &refuses);
        }
        panic!("the writer repeats itself without a pause: {:?}", self.refused);
    }

    fn pass(&mut self, time: Duration) {
        self.now.mono += time;
    }
}

const fn is_sync(step: &Step) -> bool {
    matches!(step, Step::Sync { .. })
}

const fn is_create(step: &Step) -> bool {
    matches!(step, Step::Create { .. })
}

/// Tests a disk that accepts writes but refuses syncs. An earlier mistake: each write counted as proof that the disk works, so the writer
/// made one file after another without a pause.
#[test]
fn a_disk_that_takes_writes_and_no_syncs_is_tried_again_after_a_pause() {
    for sync in [SyncPolicy::Interval(Duration::ZERO), SyncPolicy::None] {
        let mut scene = Scene::new(sync);
        scene.packer.reserve_up_to(1_000);
        scene.push(100);
        scene.run(is_sync);
        if sync == SyncPolicy::None {
            // The frames of the abandoned file are no longer in memory. The next frame has the reserve again, so it needs a sync.
            scene.push(100);
            scene.run(is_sync);
            scene.push(100);
            scene.run(is_sync);
        }
        assert_eq!((scene.refused.len(), scene.writer.state()), (2, State::Failed), "{sync:?}");
        scene.pass(RETRY);
        scene.run(|_| false);
        scene.pass(RETRY);
        scene.run(|_| false);
        assert_eq!(scene.writer.state(), State::Recording, "{sync:?}");
        assert_eq!((scene.writer.failures, scene.writer.retry_at), (0, None), "{sync:?}");
        assert_eq!(scene.writer.durable() + 1, scene.next, "{sync:?}");
    }
}

/// Tests a disk that refuses to rename files or to sync names, with each policy. Nevertheless, the writer closes abandoned files.
#[test]
fn files_of_a_disk_that_takes_no_names_are_closed() {
    for sync in [SyncPolicy::Interval(Duration::from_millis(10)), SyncPolicy::Each, SyncPolicy::None] {
        for is_rename in [true, false] {
            let mut scene = Scene::new(sync);
            let refuses = |step: &Step| match step {
                Step::Rename { .. } => is_rename,
                Step::SyncDirectory => !is_rename,
                _ => false,
            };
            for _ in 0..4 {
                scene.push(100);
                scene.run(refuses);
            }
            assert_eq!(scene.writer.state(), State::Failed, "{sync:?}");
            let numbers = |of: fn(&Step) -> Option<u64>| -> BTreeSet<u64> {
                scene.done.iter().filter_map(of).collect()
            };
            let made =
                numbers(|step| if let Step::Create { number, .. } = step { Some(*number) } else { None });
            let closed = numbers(|step| if let Step::Close { number } = step { Some(*number) } else { None });
            assert_eq!((made.len(), closed), (2, made), "{sync:?}");
        }
    }
}

/// Tests a disk that cannot make the next file, while frames still fit into the present file. An earlier mistake: after each write, the
/// writer tried again, and each attempt takes all free space.
#[test]
fn a_next_file_that_cannot_be_made_is_tried_again_after_a_pause() {
    for sync in [SyncPolicy::Interval(Duration::ZERO), SyncPolicy::Each, SyncPolicy::None] {
        let mut scene = Scene::new(sync);
        scene.push(100);
        scene.run(|_| false);
        scene.push(SIZE as usize / 2);
        for _ in 0..3 {
            scene.run(is_create);
            assert_eq!((scene.refused.len(), scene.writer.state()), (1, State::Recording), "{sync:?}");
            scene.push(100);
        }
        scene.pass(RETRY);
        scene.run(is_create);
        assert_eq!(scene.refused.len(), 2, "{sync:?}");
        // The file is full, and there is no next file.
        scene.push(SIZE as usize / 2);
        scene.run(is_create);
        assert_eq!((scene.refused.len(), scene.writer.state()), (2, State::Failed), "{sync:?}");
        scene.pass(RETRY);
        scene.run(|_| false);
        assert_eq!(scene.writer.state(), State::Recording, "{sync:?}");
        assert_eq!(scene.writer.written() + 1, scene.next, "{sync:?}");
    }
}

/// Without syncs, the frames of an abandoned file are no longer in memory. So on an idle channel, nothing is left to write. An earlier
/// mistake: after the disk had made a new file, the writer's state stayed `Failed` until the next message.
#[test]
fn an_idle_journal_is_refused_only_until_its_disk_takes_a_file() {
    let mut scene = Scene::new(SyncPolicy::None);
    let is_write = |step: &Step| matches!(step, Step::Write { .. });
    scene.run(is_write);
    scene.push(100);
    scene.run(is_write);
    scene.push(100);
    scene.run(is_write);
    assert_eq!((scene.refused.len(), scene.writer.state()), (2, State::Failed));
    scene.pass(RETRY);
    scene.run(is_create);
    assert_eq!((scene.refused.len(), scene.writer.state()), (3, State::Failed));
    scene.pass(RETRY);
    scene.run(is_write);
    assert_eq!((scene.refused.len(), scene.writer.state()), (3, State::Recording));
    // The disk still refuses writes. The next message shows this, and the next attempt comes after a pause.
    scene.push(100);
    scene.run(is_write);
    assert_eq!((scene.refused.len(), scene.writer.state()), (4, State::Failed));
    scene.run(is_write);
    assert_eq!(scene.refused.len(), 4);
}

/// Without syncs, written frames are no longer in memory. If the last file cannot be sealed, its messages do not count as written.
#[test]
fn messages_of_a_last_file_that_cannot_be_sealed_are_not_written() {
    let mut scene = Scene::new(SyncPolicy::None);
    for _ in 0..3 {
        scene.push(100);
        scene.run(|_| false);
    }
    assert_eq!(scene.writer.written() + 1, scene.next);
    scene.writer.close();
    scene.run(is_sync);
    assert_eq!((scene.refused.len(), scene.writer.state()), (1, State::Closed));
    assert!(scene.writer.written() + 1 < scene.next, "{}", scene.writer.written());
}

/// Without syncs, the lost messages of two abandoned files must be counted together. An earlier mistake: the loss record in the second file
/// ended the count for the first file, although this record was lost, too.
#[test]
fn a_loss_that_only_an_abandoned_file_names_counts_again() {
    let is_write = |step: &Step| matches!(step, Step::Write { .. });
    let mut scene = Scene::new(SyncPolicy::None);
    // The first frame has a reserve, so it is synced. The second frame is not synced.
    for _ in 0..2 {
        scene.push(100);
        scene.run(|_| false);
    }
    scene.push(100);
    scene.run(is_write);
    assert_eq!(scene.writer.unwritten(), 2);
    scene.push(100);
    scene.run(|_| false);
    assert_eq!(scene.writer.unwritten(), 0, "the loss record names the messages");
    scene.push(100);
    scene.run(is_write);
    assert_eq!(scene.writer.unwritten(), 4);
    scene.push(100);
    scene.pass(RETRY);
    scene.run(|_| false);
    assert_eq!((scene.writer.unwritten(), scene.writer.named), (0, 4));
    scene.writer.close();
    scene.run(|_| false);
    assert_eq!((scene.writer.durable() + 1, scene.writer.named), (scene.next, 0));
}

/// A closing writer does not count a slow disk as failed, even if the next file could not be made before.
#[test]
fn a_disk_that_seals_slowly_has_not_failed() {
    let mut scene = Scene::new(SyncPolicy::None);
    scene.push(100);
    scene.run(|_| false);
    scene.push(SIZE as usize / 2);
    scene.run(is_create);
    assert_eq!(scene.refused.len(), 1);
    scene.writer.close();
    let mut slow = None;
    while let Some(op) = scene.writer.poll(scene.now) {
        match op.lane {
            Lane::Help => slow = Some(op),
            _ => scene.perform(op, |_| false),
        }
    }
    assert_eq!(scene.writer.state(), State::Recording);
    scene.perform(slow.expect("the file is sealed"), |_| false);
    scene.run(|_| false);
    assert_eq!(scene.writer.state(), State::Closed);
}
