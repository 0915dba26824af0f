//! Vectors (test cases) in which the testee publishes on a channel with a gate. The suite plays the gate's reader.

use super::Vector;
use super::page::{BYTES, Page, check};
use crate::races::in_dir;
use crate::scribe::{CAPACITY, MAX_MESSAGE, ROOM, WORDS};
use crate::stage::{Verdict, fails, passes, same, scratch};
use crate::testee::{Answer, Testee};
use crate::writers::words_of;
use anyhow::Result;
use fastrand::Rng;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tempfile::TempDir;

/// The number of histories in which the reader falls behind and catches up.
const SEEDS: u64 = 8;
/// The number of bytes by which the reader is allowed to be behind.
const LAG: u64 = CAPACITY / 2;

pub(super) fn add(all: &mut Vec<Vector>) {
    for seed in 0..SEEDS {
        super::add(all, Some(7), format!("waits-in-history-{seed}"), move |testee| waits(testee, seed));
    }
    super::add(all, Some(7), "makes-its-files", makes_files);
    super::add(all, Some(7), "keeps-the-page-that-a-reader-holds", keeps_page);
    super::add(all, Some(7), "nobody-holds-it", nobody);
    super::add(all, Some(7), "a-reader-that-is-far-behind-joins", joining);
    super::add(all, Some(7), "a-reader-without-a-place", without_a_place);
    super::add(all, Some(7), "drops-a-slow-reader", drops);
    super::add(all, Some(7), "ends-though-it-is-full", ends);
    super::add(all, Some(7), "takes-over-with-a-slow-reader", takes_over);
    for seed in 0..4 {
        super::add(all, Some(7), format!("hostile-reader-{seed}"), move |testee| hostile(testee, seed));
    }
}

/// A channel on which the testee publishes, and the state that the suite expects.
struct Channel {
    dir: TempDir,
    page: Page,
    uuid: [u64; 2],
    tail: u64,
    next: u64,
    /// The position of each record.
    places: Vec<u64>,
}

fn create(testee: &mut Testee, dir: &Path, refuse: u8) -> Result<Answer> {
    let place = in_dir(dir);
    testee.ask(&format!(
        r#"{{"do":"create",{place},"channel":"t","capacity":{CAPACITY},"gate":"risk","lag":{LAG},"wait":0,"refuse":{refuse}}}"#
    ))
}

/// Makes the testee open a channel with a gate. If the testee fails, the calling function returns this failure, so this is a macro.
macro_rules! created {
    ($testee:expr, $refuse:expr) => {{
        let dir = scratch()?;
        passes!(same("create".into(), &Answer::done(), &create($testee, dir.path(), $refuse)?));
        Channel::of(dir)?
    }};
}

impl Channel {
    fn of(dir: TempDir) -> Result<Self> {
        let page = Page::open(&dir.path().join("t/gates/risk"))?;
        let words = words_of(dir.path(), WORDS)?;
        Ok(Self { dir, page, uuid: super::uuid(&words), tail: 0, next: 1, places: vec![0] })
    }

    fn frontier(&self) -> Result<u64> {
        Ok(words_of(self.dir.path(), WORDS)?[16])
    }

    /// Returns the frontier that a record needs, including a pad before the record.
    fn needs(&self, length: u64, frontier: u64) -> (u64, u64) {
        let (size, rest) = ((16 + length).next_multiple_of(64), CAPACITY - self.tail % CAPACITY);
        let after = self.tail + size + if size > rest { rest } else { 0 };
        let need = if after + 64 > frontier { (after + 64).next_multiple_of(ROOM) } else { frontier };
        (need, after)
    }

    fn ask(&self, testee: &mut Testee, length: u64) -> Result<Answer> {
        testee.ask(&format!(r#"{{"do":"publish","length":{length},"fill":1,"tag":0,"key":0}}"#))
    }

    /// Makes the testee publish a message. The call must fail, and change nothing, if the gate's reader has not freed enough space in the
    /// ring. Otherwise the call must succeed.
    fn publish(&mut self, testee: &mut Testee, length: u64, position: u64) -> Result<Verdict> {
        let before = words_of(self.dir.path(), WORDS)?;
        let frontier = before[16];
        let (need, after) = self.needs(length, frontier);
        let is_full = need > frontier && need > position + LAG;
        let wanted = if is_full { Answer::refused("full") } else { Answer::done() };
        let step = format!(
            "message {} of {length} bytes at {}, with the reader at {position}",
            self.next, self.tail
        );
        passes!(same(step.clone(), &wanted, &self.ask(testee, length)?));
        let words = words_of(self.dir.path(), WORDS)?;
        if is_full {
            return Ok(if words == before { Ok(()) } else { fails(step, "nothing stored", "something") });
        }
        self.passed(after);
        if words[16] > frontier && words[16] > position + LAG {
            return Ok(fails(step, format!("a frontier of {}", position + LAG), format!("{}", words[16])));
        }
        Ok(Ok(()))
    }

    fn passed(&mut self, after: u64) {
        (self.tail, self.next) = (after, self.next + 1);
        self.places.push(after);
    }

    /// Makes the testee publish a message. The call must succeed.
    fn publish_freely(&mut self, testee: &mut Testee, length: u64) -> Result<Verdict> {
        let (_, after) = self.needs(length, self.frontier()?);
        let step = format!("message {} of {length} bytes", self.next);
        passes!(same(step, &Answer::done(), &self.ask(testee, length)?));
        self.passed(after);
        Ok(Ok(()))
    }

    /// Returns a figure on the gate's page.
    fn figure(&self, word: u64) -> Result<u64> {
        Page::open(&self.dir.path().join("t/gates/.figures"))?.word(16 + word)
    }
}

fn length(dice: &mut Rng) -> u64 {
    match dice.u8(0..20) {
        0 => MAX_MESSAGE,
        1..4 => dice.u64(0..MAX_MESSAGE),
        _ => dice.u64(0..600),
    }
}

/// The reader is close to the publisher, then falls behind until messages are refused, and then catches up.
fn waits(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let mut channel = created!(testee, 1);
    let mut dice = Rng::with_seed(seed ^ 0x6a7e);
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    let mut passed = 0;
    channel.page.pass(0, channel.uuid, 1)?;
    for _ in 0..180 {
        if dice.u8(0..6) == 0 {
            let next = dice.usize(passed..channel.places.len());
            channel.page.pass(channel.places[next], channel.uuid, next as u64 + 1)?;
            passed = next;
        }
        let position = channel.places[passed];
        passes!(channel.publish(testee, length(&mut dice), position)?);
    }
    Ok(Ok(()))
}

fn makes_files(testee: &mut Testee) -> Result<Verdict> {
    let channel = created!(testee, 1);
    let mut page = b"SHMGATE1\x01\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0risk".to_vec();
    page.resize(BYTES, 0);
    let gates = channel.dir.path().join("t/gates");
    if fs::read(gates.join("risk"))? != page {
        return Ok(fails("the page", "its name, and nothing else", "something else"));
    }
    let mut names: Vec<_> =
        fs::read_dir(&gates)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.sort();
    if names != [".figures", "risk"] {
        return Ok(fails("the files", "risk and .figures", format!("{names:?}")));
    }
    for name in ["risk", ".figures"] {
        let mode = fs::metadata(gates.join(name))?.mode() & 0o777;
        passes!(if mode == 0o600 { Ok(()) } else { fails(name, "mode 600", format!("mode {mode:o}")) });
    }
    let figures = fs::read(gates.join(".figures"))?;
    let word = |at: usize| {
        figures.chunks(8).nth(at).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()))
    };
    let name = u64::from_le_bytes(*b"risk\0\0\0\0");
    let [high, low] = channel.uuid;
    let magic = u64::from_le_bytes(*b"SHMGFIG1");
    for (at, value) in [
        (0, magic),
        (1, 1),
        (2, 1),
        (3, u64::from(testee.pid())),
        (4, high),
        (5, low),
        (16, 4),
        (17, name),
        (21, LAG),
        (22, 0),
        (23, 1),
        (24, 0),
    ] {
        if word(at) != Some(value) {
            return Ok(fails(
                format!("word {at} of the figures"),
                format!("{value:#x}"),
                format!("{:x?}", word(at)),
            ));
        }
    }
    Ok(if figures.len() == 8192 {
        Ok(())
    } else {
        fails("the figures", "8192 bytes", format!("{}", figures.len()))
    })
}

/// A publisher keeps the page of its gate, and removes the pages of other gates.
fn keeps_page(testee: &mut Testee) -> Result<Verdict> {
    let channel = created!(testee, 1);
    testee.ask(r#"{"do":"end"}"#)?;
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    channel.page.pass(64, channel.uuid, 9)?;
    let bytes = fs::read(&channel.page.path)?;
    let gates = channel.dir.path().join("t/gates");
    Page::make(&gates.join("ledger"), "ledger")?;
    let before = channel.page.file.metadata()?.ino();
    passes!(same("create again".into(), &Answer::done(), &create(testee, channel.dir.path(), 1)?));
    if fs::metadata(&channel.page.path)?.ino() != before || fs::read(&channel.page.path)? != bytes {
        return Ok(fails("the page", "kept", "changed"));
    }
    Ok(if gates.join("ledger").exists() { fails("the other page", "removed", "there") } else { Ok(()) })
}

/// Without a reader, the publisher laps the ring again and again.
fn nobody(testee: &mut Testee) -> Result<Verdict> {
    let mut channel = created!(testee, 1);
    let mut dice = Rng::with_seed(1);
    // The page still has the words of a reader that is gone.
    channel.page.pass(0, channel.uuid, 1)?;
    for _ in 0..300 {
        passes!(channel.publish_freely(testee, length(&mut dice))?);
    }
    Ok(Ok(()))
}

/// A reader joins far behind. The publisher ignores this reader until its lag is at most half of the lag that the gate allows.
fn joining(testee: &mut Testee) -> Result<Verdict> {
    let mut channel = created!(testee, 1);
    while channel.tail < CAPACITY + LAG {
        passes!(channel.publish_freely(testee, 500)?);
    }
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    // This position is more than half of the allowed lag behind, but still in the ring.
    let position = |channel: &Channel| channel.tail - LAG * 3 / 4;
    for _ in 0..100 {
        channel.page.pass(position(&channel), channel.uuid, 1)?;
        passes!(channel.publish_freely(testee, 500)?);
    }
    // A position for another segment does not count.
    channel.page.pass(channel.tail, [1, 2], 1)?;
    for _ in 0..200 {
        passes!(channel.publish_freely(testee, 500)?);
    }
    // The reader is now close. The publisher notices this within a quarter of the allowed lag.
    let caught_up = channel.tail;
    channel.page.pass(caught_up, channel.uuid, 1)?;
    while channel.tail < caught_up + LAG / 2 {
        passes!(channel.publish_freely(testee, 500)?);
    }
    for _ in 0..60 {
        passes!(channel.publish(testee, 500, caught_up)?);
    }
    Ok(Ok(()))
}

/// A reader of a gate can be without a place in the ring, for example while it reads the journal. The publisher ignores such a reader until
/// it has caught up. But the publisher waits for a reader that has stored only half of its position.
fn without_a_place(testee: &mut Testee) -> Result<Verdict> {
    let mut channel = created!(testee, 1);
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    for turn in 0..4 {
        let position = channel.tail;
        channel.page.pass(position, channel.uuid, channel.next)?;
        while channel.tail < position + LAG / 2 {
            passes!(channel.publish_freely(testee, 700)?);
        }
        passes!(figure(&channel, 8, 2, "state, in force")?);
        if turn % 2 == 0 {
            let torn = [position + 64, check(position, channel.uuid), channel.next, 1];
            channel.page.write(torn)?;
            passes!(fill(testee, &mut channel, position)?);
        }
        channel.page.leave(position, channel.uuid)?;
        if turn == 3 {
            testee.restart()?;
            passes!(same("create again".into(), &Answer::done(), &create(testee, channel.dir.path(), 1)?));
            channel.passed(channel.tail + 64); // the record of the new epoch
        }
        for _ in 0..300 {
            passes!(channel.publish_freely(testee, 700)?);
        }
        passes!(figure(&channel, 8, 1, "state, joining")?);
    }
    Ok(Ok(()))
}

/// A gate with the option `drop` never refuses a message. If its reader falls too far behind, the gate has no effect until the reader has
/// caught up.
fn drops(testee: &mut Testee) -> Result<Verdict> {
    let mut channel = created!(testee, 0);
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    for turn in 0..3 {
        let begin = channel.tail;
        channel.page.pass(begin, channel.uuid, channel.next)?;
        while channel.tail < begin + LAG / 2 {
            passes!(channel.publish_freely(testee, 700)?);
        }
        passes!(figure(&channel, 8, 2, "state, in force")?);
        while channel.tail < begin + CAPACITY + LAG {
            passes!(channel.publish_freely(testee, 700)?);
        }
        passes!(figure(&channel, 8, 3, "state, dropped")?);
        passes!(figure(&channel, 16, turn + 1, "how often it was dropped")?);
    }
    Ok(Ok(()))
}

fn figure(channel: &Channel, word: u64, expected: u64, what: &str) -> Result<Verdict> {
    let got = channel.figure(word)?;
    Ok(if got == expected { Ok(()) } else { fails(what, expected.to_string(), got.to_string()) })
}

/// Publishes until a message is refused.
fn fill(testee: &mut Testee, channel: &mut Channel, position: u64) -> Result<Verdict> {
    for _ in 0..CAPACITY / 512 {
        passes!(channel.publish(testee, 400, position)?);
    }
    passes!(figure(channel, 8, 2, "state, in force")?);
    Ok(if channel.figure(17)? > 0 { Ok(()) } else { fails("messages refused", "some", "none") })
}

/// The record that ends the stream is published, although the gate refuses messages at that time.
fn ends(testee: &mut Testee) -> Result<Verdict> {
    let mut channel = created!(testee, 1);
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    channel.page.pass(0, channel.uuid, 1)?;
    passes!(fill(testee, &mut channel, 0)?);
    passes!(same("end".into(), &Answer::done(), &testee.ask(r#"{"do":"end"}"#)?));
    let state = words_of(channel.dir.path(), WORDS)?[32];
    Ok(if state == 0x103 { Ok(()) } else { fails("state", "closed", format!("{state:#x}")) })
}

/// The testee takes over from a publisher that might have waited for the reader. So the testee must also wait for the reader, however far
/// behind the reader is.
fn takes_over(testee: &mut Testee) -> Result<Verdict> {
    let mut channel = created!(testee, 1);
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    channel.page.pass(0, channel.uuid, 1)?;
    passes!(fill(testee, &mut channel, 0)?);
    testee.restart()?;
    passes!(same("create again".into(), &Answer::done(), &create(testee, channel.dir.path(), 1)?));
    channel.passed(channel.tail + 64); // the record of the new epoch
    for _ in 0..40 {
        passes!(channel.publish(testee, 400, 0)?);
    }
    let position = channel.tail;
    channel.page.pass(position, channel.uuid, 1)?;
    for _ in 0..200 {
        passes!(channel.publish(testee, 400, position)?);
    }
    Ok(Ok(()))
}

/// The reader writes random words to the gate's page. The publisher must accept or refuse each message, and must not hang. After the reader
/// is gone, the publisher must work normally.
fn hostile(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let channel = created!(testee, (seed % 2) as u8);
    let mut dice = Rng::with_seed(seed ^ 0x4057);
    anyhow::ensure!(channel.page.lock()?, "nobody else reads");
    for turn in 0..120 {
        let frontier = channel.frontier()?;
        let some = [
            0,
            1,
            frontier,
            frontier + 1,
            frontier.wrapping_sub(CAPACITY),
            1 << 62,
            u64::MAX,
            u64::MAX - LAG,
            dice.u64(..),
        ];
        let position = some[dice.usize(0..some.len())];
        let confirmed = if dice.u8(0..4) == 0 { dice.u64(..) } else { check(position, channel.uuid) };
        channel.page.write([position, confirmed, dice.u64(..), dice.u64(..)])?;
        if turn % 17 == 16 {
            channel.page.file.set_len([0, 130, 4096][dice.usize(0..3)])?;
        }
        let answer = channel.ask(testee, length(&mut dice))?;
        let may_be_full = seed % 2 == 1 && answer == Answer::refused("full");
        if answer != Answer::done() && !may_be_full {
            return Ok(fails(
                format!("turn {turn}, the reader at {position:#x}"),
                "success, or full",
                format!("{answer:?}"),
            ));
        }
    }
    channel.page.unlock()?;
    for _ in 0..100 {
        passes!(same("without a reader".into(), &Answer::done(), &channel.ask(testee, 900)?));
    }
    Ok(Ok(()))
}
