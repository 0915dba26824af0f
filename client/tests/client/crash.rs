//! Processes that die or stop at any moment, and the view of the others. Every message carries its sequence, its
//! publisher's epoch, a pattern and a CRC, so that a torn, repeated, lost or misplaced one is found.
//!
//! `SHMCAST_KILLS` sets how many publishers are killed under load in all (60 by default). `SHMCAST_SEED` sets the seed
//! of the moments at which they are.

use crate::support::{SMALL, publisher, subscriber};
use shmcast::{
    ChannelError, Directory, Event, Holder, Lapped, Mark, Message, Preparation, Publisher, Publishing,
    Resume, Start, State, Subscriber, Wait,
};
use shmcast_testkit::process::{in_dir, my_dir, my_role};
use shmcast_testkit::{PATIENCE, Process, number, role, scratch, skip, wait_for, wait_until};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Each of these tests needs the whole machine. If they ran at once, they would starve each other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A small generator of pseudo-random numbers. Its seed is known, so that a failure can be reproduced.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// Bytes of the sequence, epoch and CRC of a message that has room for them.
const FRAME: usize = 20;

/// The length of message `sequence`: mostly small, sometimes up to the largest, sometimes 0.
fn length(sequence: u64, max_message: usize) -> usize {
    let mut random = Random(sequence);
    match random.below(64) {
        0 => 0,
        1..=3 => FRAME + random.below((max_message - FRAME + 1) as u64) as usize,
        4..=15 => FRAME + random.below(1000) as usize,
        _ => FRAME + random.below(100) as usize,
    }
}

fn mark(sequence: u64) -> Mark {
    Mark { tag: (sequence * 7) as u16, key: sequence.is_multiple_of(500) }
}

fn fill(bytes: &mut [u8], sequence: u64, epoch: u64) {
    if bytes.is_empty() {
        return;
    }
    let (body, crc) = bytes.split_at_mut(bytes.len() - 4);
    body[..8].copy_from_slice(&sequence.to_le_bytes());
    body[8..16].copy_from_slice(&epoch.to_le_bytes());
    for (at, byte) in body[16..].iter_mut().enumerate() {
        *byte = (sequence as usize + epoch as usize * 13 + at * 31) as u8;
    }
    crc.copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
}

/// Checks all bytes of a message, and returns the epoch in them; `None` for an empty message.
fn check(m: &Message<'_>, max_message: usize) -> Option<u64> {
    let sequence = m.sequence;
    assert_eq!(m.payload.len(), length(sequence, max_message), "length of message {sequence}");
    assert_eq!(Mark { tag: m.tag, key: m.key }, mark(sequence), "mark of message {sequence}");
    if m.payload.is_empty() {
        return None;
    }
    let (body, crc) = m.payload.split_at(m.payload.len() - 4);
    assert_eq!(crc, crc32c::crc32c(body).to_le_bytes(), "TORN: message {sequence} fails its CRC");
    let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().unwrap());
    assert_eq!(word(0), sequence, "message {} where {sequence} should stand", word(0));
    Some(word(8))
}

/// Publishes until it is killed: bursts of messages with pauses between.
fn publish_under_load(dir: &Path, capacity: u64) {
    let mut publisher = publisher(dir).capacity(capacity).open().unwrap();
    let mut random = Random(publisher.epoch());
    loop {
        for _ in 0..1 + random.below(400) {
            publish_next(&mut publisher, &mut random);
        }
        match random.below(4) {
            0 => std::thread::sleep(Duration::from_micros(random.below(300))),
            1 => std::thread::yield_now(),
            _ => {}
        }
    }
}

fn publish_next(publisher: &mut Publisher, random: &mut Random) {
    let (sequence, epoch) = (publisher.next_sequence(), publisher.epoch());
    let length = length(sequence, publisher.max_message());
    if random.below(50) == 0 {
        publisher.claim(length).unwrap().abort();
    }
    // Now and then it claims more than it commits.
    let spare = if random.below(10) == 0 { publisher.max_message() - length } else { 0 };
    let mut claim = publisher.claim(length + spare).unwrap();
    fill(&mut claim[..length], sequence, epoch);
    assert_eq!(claim.mark(mark(sequence)).commit(length), Ok(sequence));
}

/// Checks every event of a stream against the one before.
#[derive(Debug, Default)]
struct Checker {
    expected: u64,
    /// Whether the epoch in force is known, from the stream or from a message: not at first, and not after a lap.
    epoch_known: bool,
    /// Whether the stream may still give the epoch's event late, after a lap.
    epoch_untold: bool,
    epoch: u64,
    started_at: u64,
    received: u64,
    missed: u64,
    laps: u64,
    epochs: u64,
}

impl Checker {
    fn new(subscriber: &Subscriber) -> Self {
        let started_at = subscriber.next_sequence();
        Self { started_at, expected: started_at, ..Self::default() }
    }

    /// Checks an event. Returns false at the end of the stream.
    fn check(&mut self, event: Event<'_>, max_message: usize) -> bool {
        match event {
            Event::Message(m) => {
                let expected = self.expected;
                assert!(m.sequence >= expected, "DUPLICATED: message {} after {}", m.sequence, expected - 1);
                assert!(m.sequence == expected, "LOST: message {} where {expected} was due", m.sequence);
                if let Some(epoch) = check(&m, max_message) {
                    let ordered = if self.epoch_known { epoch == self.epoch } else { epoch >= self.epoch };
                    assert!(ordered, "message {expected} of epoch {epoch} in epoch {}", self.epoch);
                    (self.epoch, self.epoch_known) = (epoch, true);
                }
                (self.expected, self.received) = (expected + 1, self.received + 1);
            }
            Event::Lapped(Lapped { missed, resumed_at }) => {
                assert_eq!(self.expected + missed, resumed_at, "missed is not exact");
                self.expected = resumed_at;
                (self.missed, self.laps) = (self.missed + missed, self.laps + 1);
                (self.epoch_known, self.epoch_untold) = (false, true);
            }
            Event::NewEpoch { epoch } => {
                let ordered = if self.epoch_untold { epoch >= self.epoch } else { epoch > self.epoch };
                assert!(ordered, "epoch {epoch} after {}", self.epoch);
                (self.epoch, self.epochs) = (epoch, self.epochs + 1);
                (self.epoch_known, self.epoch_untold) = (true, false);
            }
            Event::End => return false,
            other => panic!("{other:?} was never published"),
        }
        true
    }
}

/// Reads and checks to the end of the stream, then writes its counts to `dir`. Each `number` is another kind of reader.
fn check_to_the_end(dir: &Path, number: usize) {
    let wait = match number {
        0 | 1 => Wait::SpinThenYield(200),
        2 => Wait::Backoff,
        3 => Wait::Sleep(Duration::from_micros(200)),
        _ => Wait::Yield,
    };
    let start = [Start::Oldest, Start::Latest, Start::Sequence(1)][number % 3];
    let resume = [Resume::Oldest, Resume::Latest, Resume::Key, Resume::Oldest][number % 4];
    let lags = number == 7;
    let builder = subscriber(dir).wait_for_channel(PATIENCE).wait(wait);
    let mut subscriber = builder.start(start).resume(resume).open().unwrap();
    let max_message = subscriber.header().geometry.max_message as usize;
    let mut checker = Checker::new(&subscriber);
    let mut events = 0u64;
    loop {
        let deadline = Instant::now() + PATIENCE;
        let event = subscriber.recv_deadline(deadline).unwrap().expect("an event");
        if !checker.check(event, max_message) {
            break;
        }
        events += 1;
        if lags && events.is_multiple_of(300) {
            std::thread::sleep(Duration::from_millis(4));
        }
    }
    assert_eq!(subscriber.next_sequence(), checker.expected);
    assert_eq!(checker.started_at + checker.received + checker.missed, checker.expected);
    let Checker { started_at, received, missed, laps, epochs, expected, .. } = checker;
    let report = dir.join(format!("report-{number}"));
    fs::write(report, format!("{started_at} {received} {missed} {laps} {epochs} {expected}")).unwrap();
}

/// Plays the roles of other processes, which the tests here start.
#[test]
#[ignore = "plays a part in other tests"]
fn play() {
    let Some(role) = my_role() else { return skip("play", "started by other tests only") };
    let dir = my_dir();
    let (name, argument) = role.split_once(' ').unwrap_or((&role, "0"));
    let argument: u64 = argument.parse().unwrap();
    match name {
        "publisher" => publish_under_load(&dir, argument),
        "reader" => check_to_the_end(&dir, argument as usize),
        "slow-maker" => {
            publisher(&dir).capacity(argument).open().unwrap();
        }
        other => panic!("no such role: {other}"),
    }
}

fn reader(number: usize, dir: &Path) -> Process {
    Process::start(in_dir(&mut role!(&format!("reader {number}")), dir))
}

fn report(dir: &Path, number: usize) -> [u64; 6] {
    let text = fs::read_to_string(dir.join(format!("report-{number}"))).unwrap();
    let counts: Vec<u64> = text.split(' ').map(|count| count.parse().unwrap()).collect();
    counts.try_into().unwrap()
}

fn kill_publishers_under_load(name: &str, capacity: u64, kills: u64) {
    const READERS: usize = 8;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let began = Instant::now();
    let dir = scratch();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970");
    let seed = number("SHMCAST_SEED", now.as_nanos() as u64);
    // The seed is printed first, so that it is known even if a reader's check ends the test.
    eprintln!("{name}: SHMCAST_SEED={seed}");
    let mut random = Random(seed);
    let role = format!("publisher {capacity}");
    let mut first = Some(Process::start(in_dir(&mut role!(&role), dir.path())));
    let watch = subscriber(dir.path()).page(false).wait_for_channel(PATIENCE).open().unwrap();
    let mut readers: Vec<Process> = Vec::new();
    let (mut early, mut epoch) = (0, 0);
    for killed in 0..kills {
        // Readers start one after another, so that they find the ring in every state.
        if readers.len() < READERS && killed >= readers.len() as u64 * kills / (2 * READERS as u64) {
            let number = readers.len();
            readers.push(reader(number, dir.path()));
        }
        let process = first.take().unwrap_or_else(|| Process::start(in_dir(&mut role!(&role), dir.path())));
        if killed > 0 && random.below(8) == 0 {
            // Some are killed before they publish.
            early += 1;
            std::thread::sleep(Duration::from_micros(random.below(6_000)));
        } else {
            epoch = wait_for("publisher", || match watch.publisher_state() {
                Some((found, State::Active)) if found > epoch => Some(found),
                _ => None,
            });
            std::thread::sleep(Duration::from_micros(random.below(15_000)));
        }
        process.kill();
        epoch = watch.publisher_state().map_or(epoch, |(found, _)| found.max(epoch));
    }
    let directory = Directory::at(dir.path());
    wait_for("eight readers", || (directory.channel("t").unwrap().readers.len() == READERS).then_some(()));

    let mut last = publisher(dir.path()).open().expect("the last publisher takes over");
    for _ in 0..3_000 {
        publish_next(&mut last, &mut random);
    }
    let (end, last_epoch) = (last.next_sequence(), last.epoch());
    last.close();
    readers.into_iter().for_each(Process::end);

    let (mut received, mut missed, mut laps, mut epochs) = (0, 0, 0, 0);
    for number in 0..READERS {
        let [start, got, lost, lapped, seen, reached] = report(dir.path(), number);
        assert_eq!(reached, end, "reader {number} stopped short");
        assert_eq!(start + got + lost, end, "reader {number}");
        assert!(got > 0 && seen > 0, "reader {number} received {got} messages and {seen} epochs");
        eprintln!(
            "{name}: reader {number}: {got} received, {lost} missed in {lapped} laps, {seen} epochs, from {start}"
        );
        (received, missed, laps, epochs) = (received + got, missed + lost, laps + lapped, epochs + seen);
    }
    eprintln!(
        "{name}: {kills} kills ({early} before publishing), epoch {last_epoch}, {} messages; {READERS} readers: \
         {received} received, {missed} missed in {laps} laps, {epochs} epochs seen; 0 bad; {:.1} s",
        end - 1,
        began.elapsed().as_secs_f64()
    );
    assert!(last_epoch > kills - early, "each publisher that got to publish began an epoch");
}

fn kills() -> u64 {
    number("SHMCAST_KILLS", 60).max(16)
}

#[test]
fn killed_publishers_leave_no_bad_message_in_a_small_ring() {
    kill_publishers_under_load("small ring", SMALL, kills() / 2);
}

#[test]
fn killed_publishers_leave_no_bad_message_in_a_larger_ring() {
    kill_publishers_under_load("1 MiB ring", 1 << 20, kills() - kills() / 2);
}

/// Publishes `count` checked messages, and gives readers time to follow.
fn publish(publisher: &mut Publisher, count: u64) {
    let mut random = Random(publisher.next_sequence());
    for i in 0..count {
        publish_next(publisher, &mut random);
        if i % 20 == 19 {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

fn receiving(directory: &Directory, pid: u32, sequence: u64) {
    wait_for("reader to catch up", || {
        let readers = directory.channel("t").unwrap().readers;
        let reader = readers.iter().find(|reader| reader.stats.pid == u64::from(pid));
        reader.is_some_and(|reader| reader.stats.place.sequence == sequence).then_some(())
    });
}

#[test]
fn a_killed_reader_is_swept_and_nobody_else_notices() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = scratch();
    let directory = Directory::at(dir.path());
    // The ring has all of it, however late the readers are.
    let mut publisher = publisher(dir.path()).capacity(256 << 20).max_message(64 << 10).open().unwrap();
    let readers = [4, 5].map(|number| reader(number, dir.path()));
    wait_for("two readers", || (directory.channel("t").unwrap().readers.len() == 2).then_some(()));
    publish(&mut publisher, 500);
    let [victim, survivor] = readers;
    receiving(&directory, victim.id(), 501);
    let (dead, living) = (victim.id(), u64::from(survivor.id()));
    victim.kill();
    let pages = || fs::read_dir(dir.path().join("t/readers")).unwrap().count();
    assert_eq!(pages(), 2, "the dead one's page is still there");
    let left = directory.channel("t").unwrap().readers;
    assert_eq!(left.iter().map(|reader| reader.stats.pid).collect::<Vec<_>>(), [living], "{dead} is gone");
    assert_eq!(pages(), 1, "and swept");
    publish(&mut publisher, 500);
    publisher.close();
    survivor.end();
    let [start, received, missed, ..] = report(dir.path(), 5);
    assert_eq!((start + received, missed), (1001, 0));
}

#[test]
fn a_reader_stopped_and_lapped_counts_its_loss_exactly() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let mut publisher = publisher(dir.path()).capacity(SMALL).open().unwrap();
    let reader = reader(4, dir.path());
    wait_for("reader", || (directory.channel("t").unwrap().readers.len() == 1).then_some(()));
    let start = directory.channel("t").unwrap().readers[0].stats.started_at;
    for stops in 1..=3 {
        publish(&mut publisher, 100);
        receiving(&directory, reader.id(), publisher.next_sequence());
        reader.pause();
        // Publish four times what the ring holds.
        let before = publisher.next_sequence();
        while publisher.next_sequence() < before + 4 * SMALL / 64 {
            publish_next(&mut publisher, &mut Random(0));
        }
        assert_eq!(directory.channel("t").unwrap().readers.len(), 1, "stopped is not dead");
        reader.resume();
        receiving(&directory, reader.id(), publisher.next_sequence());
        let stats = &directory.channel("t").unwrap().readers[0].stats;
        assert_eq!(stats.lapped, stops);
        assert!(stats.missed >= stops * 3 * SMALL / 64, "{} missed", stats.missed);
        assert_eq!(start + stats.received + stats.missed, publisher.next_sequence());
    }
    let end = publisher.next_sequence();
    publisher.close();
    reader.end();
    let [start, received, missed, laps, ..] = report(dir.path(), 4);
    assert_eq!((start + received + missed, laps), (end, 3));
}

#[test]
fn a_stopped_publisher_is_waited_for_and_never_replaced() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let stopped = Process::start(in_dir(&mut role!("publisher 1048576"), dir.path()));
    let builder = subscriber(dir.path()).start(Start::Oldest).wait_for_channel(PATIENCE);
    let mut subscriber = builder.open().unwrap();
    let max_message = subscriber.header().geometry.max_message as usize;
    let mut checker = Checker::new(&subscriber);
    let deadline = || Instant::now() + Duration::from_millis(50);
    for _ in 0..10 {
        let event = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap();
        checker.check(event.expect("a message"), max_message);
    }
    for _ in 0..5 {
        stopped.pause();
        while let Some(event) = subscriber.recv_deadline(deadline()).unwrap() {
            assert!(checker.check(event, max_message), "no end of the stream");
        }
        // It holds the channel, even if it was stopped in the middle of a message.
        match publisher(dir.path()).open().unwrap_err() {
            ChannelError::InUse { holder: Holder::Publisher { pid, .. }, .. } => {
                assert_eq!(pid, Some(stopped.id()));
            }
            other => panic!("{other:?}"),
        }
        assert!(matches!(directory.channel("t").unwrap().publisher, Publishing::By(_)));
        assert!(matches!(directory.remove("t"), Err(ChannelError::InUse { .. })));
        let received = checker.received;
        stopped.resume();
        while checker.received < received + 1000 {
            let event = subscriber.recv_deadline(Instant::now() + PATIENCE).unwrap();
            checker.check(event.expect("a message"), max_message);
        }
    }
    assert_eq!(checker.epochs, 0, "the same publisher all the time");
    stopped.kill();
}

#[test]
fn a_publisher_killed_while_making_a_channel_leaves_nothing_that_matters() {
    const LARGE: u64 = 256 << 20;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let dir = scratch();
    let directory = Directory::at(dir.path());
    let (unfinished, finished) = (dir.path().join("t/.segment.new"), dir.path().join("t/segment"));
    // Making the segment takes a tenth of a second and more, and the kill needs only some microseconds of it. If the
    // machine pauses in between, we try again.
    wait_until("a kill half way", || {
        let mut maker = Process::start(in_dir(&mut role!(&format!("slow-maker {LARGE}")), dir.path()));
        while !unfinished.exists() && !finished.exists() {
            assert!(maker.is_alive(), "it ended by itself");
            std::thread::yield_now();
        }
        drop(maker);
        if !unfinished.exists() {
            directory.remove("t").unwrap();
        }
        unfinished.exists()
    });
    assert!(unfinished.exists() && !finished.exists(), "killed half way");
    assert!(matches!(subscriber(dir.path()).open(), Err(ChannelError::NotFound { .. })));
    let half = directory.channel("t").unwrap();
    assert!(half.detail.unwrap_err().contains("died doing so"));
    assert_eq!(half.publisher, Publishing::Nobody);

    let mut publisher = publisher(dir.path()).capacity(SMALL).prepare(Preparation::NONE).open().unwrap();
    assert_eq!((publisher.epoch(), publisher.capacity()), (1, SMALL));
    assert!(!unfinished.exists(), "its memory is given back");
    let mut subscriber = subscriber(dir.path()).open().unwrap();
    publisher.publish(b"x").unwrap();
    assert!(matches!(subscriber.recv().unwrap(), Event::Message(_)));
}
