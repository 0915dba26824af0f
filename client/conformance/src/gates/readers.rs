//! Vectors (test cases) in which the testee is the reader of a gate. The testee must hold the lock. Its position must never be ahead of the
//! messages that it has returned.

use super::page::Page;
use super::{Vector, uuid};
use crate::model::{Expected, Model, Sought, Start};
use crate::races::in_dir;
use crate::scribe::{Scribe, empty};
use crate::segments;
use crate::stage::{Stage, Verdict, fails, passes, poll, same};
use crate::testee::{Answer, Testee};
use anyhow::{Context, Result};
use fastrand::Rng;

/// The number of histories that are read from the oldest message on.
const SEEDS: u64 = 12;
/// The number of streams that are read in small steps.
const STEPS: u64 = 6;

pub(super) fn add(all: &mut Vec<Vector>) {
    for seed in 0..SEEDS {
        super::add(all, None, format!("reads-history-{seed}"), move |testee| reads(testee, seed));
    }
    for seed in 0..STEPS {
        super::add(all, None, format!("reads-in-steps-{seed}"), move |testee| in_steps(testee, seed));
    }
    super::add(all, None, "is-left-when-it-closes", |testee| is_left(testee, false));
    super::add(all, None, "is-left-when-it-is-killed", |testee| is_left(testee, true));
    super::add(all, None, "unknown-gate", unknown);
    super::add(all, None, "in-use", in_use);
    super::add(all, None, "no-page", no_page);
    super::add(all, None, "goes-over-to-a-successor", successor);
    super::add(all, None, "goes-on-after-a-lap", lapped);
    super::add(all, None, "seeks", seeks);
}

pub(super) fn open(testee: &mut Testee, stage: &Stage, gate: &str) -> Result<Answer> {
    let place = in_dir(stage.path());
    testee.ask(&format!(r#"{{"do":"open",{place},"channel":"t","start":"oldest","gate":"{gate}"}}"#))
}

/// Checks that the testee holds the gate, and that the gate's page has this position and next sequence.
pub(super) fn says(
    testee: &Testee,
    page: &Page,
    uuid: [u64; 2],
    (position, next): (u64, u64),
    step: &str,
) -> Result<Verdict> {
    if !page.is_locked()? {
        return Ok(fails(format!("{step}, the lock"), "held", "free"));
    }
    let claim = page.claim(uuid)?;
    let expected = super::page::Claim { position, is_right: true, next, pid: u64::from(testee.pid()) };
    Ok(if claim == expected { Ok(()) } else { fails(step, format!("{expected:?}"), format!("{claim:?}")) })
}

/// Checks that the testee's position is between `least` and `most`.
fn lies(page: &Page, uuid: [u64; 2], least: u64, most: u64, step: &str) -> Result<Verdict> {
    let claim = page.claim(uuid)?;
    let lies = claim.is_right && (least..=most).contains(&claim.position);
    Ok(if lies {
        Ok(())
    } else {
        fails(step, format!("a position from {least} to {most}"), format!("{claim:?}"))
    })
}

fn reads(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let (model, _) = segments::write(seed);
    let stage = Stage::of(&model.words)?;
    let page = stage.gate("risk")?;
    let uuid = uuid(&model.words);
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "risk")?));
    passes!(says(testee, &page, uuid, model.oldest(), "at the start")?);
    let mut expected = Expected::open(&model, Start::Oldest).context("the oldest place is there")?;
    let how = ["poll", "batch"][seed as usize % 2];
    passes!(poll(testee, how, how.to_owned(), expected.poll(&model))?);
    says(testee, &page, uuid, model.tail(), "at the end")
}

/// The testee reads messages of all sizes, a few at a time. More messages are published meanwhile.
fn in_steps(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let mut dice = Rng::with_seed(seed);
    let mut model = Model::new(empty());
    let mut scribe = Scribe::take(empty(), (0, 1), 1);
    scribe.stores.drain(..).for_each(|store| model.apply(&store));
    let stage = Stage::of(&model.words)?;
    let (page, uuid) = (stage.gate("risk")?, uuid(&model.words));
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "risk")?));
    let mut received = 0;
    for turn in 0..60 {
        let tail = model.tail().0;
        // The reader is never lapped.
        let read = model
            .records
            .iter()
            .find(|record| record.sequence > received)
            .map_or(tail, |record| record.position);
        while scribe.next_sequence() < received + 12 && model.tail().0 < read + 20_000 {
            let length = if dice.u8(0..9) == 0 { dice.usize(0..4000) } else { dice.usize(0..100) };
            scribe.publish(&vec![turn; length], 1, false, 7);
            for store in scribe.stores.drain(..) {
                stage.apply(&store)?;
                model.apply(&store);
            }
        }
        let (how, most) = (["poll", "batch"][usize::from(turn) % 2], dice.usize(1..6));
        let Answer::Events { events } = testee.ask(&format!(r#"{{"do":"{how}","most":{most}}}"#))? else {
            return Ok(fails(how, "events", "none"));
        };
        let mut told =
            events.iter().filter_map(|event| event.strip_prefix("message ")?.split(' ').next()?.parse().ok());
        let last: u64 = told.next_back().unwrap_or(received);
        if last < received + 1 && model.tail().1 > received + 1 {
            return Ok(fails(how, "messages", format!("{events:?}")));
        }
        received = last;
        let step = format!("{how} {turn}, up to message {received}");
        let is_messages = |record: &&crate::scribe::Record| record.next == record.sequence + 1;
        let mut records = model.records.iter().filter(is_messages);
        let (least, after) = match records.by_ref().find(|record| record.sequence == received) {
            Some(record) => (record.position, record.after),
            None => (0, 0),
        };
        // The testee's position can be before or after a pad that follows the message.
        let most = records.next().map_or(after.max(model.tail().0), |record| record.position);
        passes!(lies(&page, uuid, least, most, &step)?);
    }
    passes!(poll_rest(testee)?);
    says(testee, &page, uuid, model.tail(), "at the end")
}

/// Makes the testee receive all available events.
fn poll_rest(testee: &mut Testee) -> Result<Verdict> {
    let answer = testee.ask(r#"{"do":"poll"}"#)?;
    Ok(if matches!(answer, Answer::Events { .. }) {
        Ok(())
    } else {
        fails("poll", "events", format!("{answer:?}"))
    })
}

fn is_left(testee: &mut Testee, is_killed: bool) -> Result<Verdict> {
    let (model, _) = segments::write(2);
    let stage = Stage::of(&model.words)?;
    let (page, uuid) = (stage.gate("risk")?, uuid(&model.words));
    for turn in 0..2 {
        // A second reader receives the messages that the first reader left.
        passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "risk")?));
        passes!(poll_rest(testee)?);
        passes!(says(testee, &page, uuid, model.tail(), &format!("before end {turn}"))?);
        if is_killed {
            testee.restart()?;
        } else {
            testee.ask(r#"{"do":"close"}"#)?;
        }
        if page.is_locked()? {
            return Ok(fails("the lock", "free", "held"));
        }
        let claim = page.claim(uuid)?;
        if claim.is_right && claim.position > model.tail().0 {
            return Ok(fails("the position", format!("at most {}", model.tail().0), format!("{claim:?}")));
        }
    }
    Ok(Ok(()))
}

fn unknown(testee: &mut Testee) -> Result<Verdict> {
    let stage = Stage::of(&empty())?;
    passes!(same("no gates".into(), &Answer::refused("unknown gate"), &open(testee, &stage, "risk")?));
    let page = stage.gate("ledger")?;
    passes!(same("another gate".into(), &Answer::refused("unknown gate"), &open(testee, &stage, "risk")?));
    Ok(if page.is_locked()? { fails("the other gate's lock", "free", "held") } else { Ok(()) })
}

fn in_use(testee: &mut Testee) -> Result<Verdict> {
    let stage = Stage::of(&empty())?;
    let page = stage.gate("risk")?;
    let other = Page::open(&page.path)?;
    anyhow::ensure!(other.lock()?, "nobody else has the lock");
    let words = [77, 78, 79, 80];
    page.write(words)?;
    passes!(same(
        "while another reader has it".into(),
        &Answer::refused("in use"),
        &open(testee, &stage, "risk")?
    ));
    for (at, word) in words.into_iter().enumerate() {
        if page.word(16 + at as u64)? != word {
            return Ok(fails("the other reader's words", "as they were", "changed"));
        }
    }
    other.unlock()?;
    passes!(same("behind the other".into(), &Answer::done(), &open(testee, &stage, "risk")?));
    let model = Model::new(empty());
    says(testee, &page, uuid(&model.words), (0, 1), "at the start")
}

/// The gate's file is not a page.
fn no_page(testee: &mut Testee) -> Result<Verdict> {
    let stage = Stage::of(&empty())?;
    let page = stage.gate("risk")?;
    for (what, size, first) in
        [("short", 4000, b"SHMGATE1"), ("nothing", 0, b"SHMGATE1"), ("magic", 4096, b"SHMREAD1")]
    {
        page.file.set_len(0)?;
        let mut bytes = first.to_vec();
        bytes.extend(1_u64.to_le_bytes());
        bytes.resize(size, 0);
        std::os::unix::fs::FileExt::write_all_at(&page.file, &bytes, 0)?;
        let answer = open(testee, &stage, "risk")?;
        if !matches!(answer, Answer::Refused { .. }) {
            return Ok(fails(format!("open, {what}"), "a refusal", format!("{answer:?}")));
        }
    }
    Ok(if page.is_locked()? { fails("the lock", "free", "held") } else { Ok(()) })
}

/// Another publisher takes over, and the testee continues at the same message.
fn successor(testee: &mut Testee) -> Result<Verdict> {
    let (mut model, mut scribe) = crate::traces::written(3000);
    let stage = Stage::of(&model.words)?;
    let (page, uuid) = (stage.gate("risk")?, uuid(&model.words));
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "risk")?));
    for turn in 0..3 {
        passes!(poll_rest(testee)?);
        passes!(says(testee, &page, uuid, model.tail(), &format!("before successor {turn}"))?);
        let reached = model.tail();
        if turn == 1 {
            scribe.close(5000);
        }
        scribe.stores.drain(..).for_each(|store| model.apply(&store));
        scribe = Scribe::take(model.words.clone(), model.tail(), 6000);
        scribe.publish(&[1; 300], 1, false, 6001);
        for store in scribe.stores.drain(..) {
            model.apply(&store);
        }
        stage.rewrite(&model.words)?;
        // The testee was not asked to receive the new messages, so its position must be unchanged.
        passes!(says(testee, &page, uuid, reached, &format!("after successor {turn}"))?);
    }
    passes!(poll_rest(testee)?);
    says(testee, &page, uuid, model.tail(), "at the end")
}

/// A publisher that does not know the gate laps the gate's reader.
fn lapped(testee: &mut Testee) -> Result<Verdict> {
    let (mut model, mut scribe) = crate::traces::written(3000);
    let stage = Stage::of(&model.words)?;
    let (page, uuid) = (stage.gate("risk")?, uuid(&model.words));
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "risk")?));
    let mut expected = Expected::open(&model, Start::Oldest).context("the oldest place is there")?;
    passes!(poll(testee, "poll", "before the lap".into(), expected.poll(&model))?);
    for turn in 0..2 {
        (0..1500).for_each(|_| scribe.publish(b"lapping", 1, false, 5000));
        scribe.stores.drain(..).for_each(|store| model.apply(&store));
        stage.rewrite(&model.words)?;
        let step = format!("behind lap {turn}");
        passes!(poll(testee, ["poll", "batch"][turn], step.clone(), expected.poll(&model))?);
        passes!(says(testee, &page, uuid, model.tail(), &step)?);
    }
    Ok(Ok(()))
}

/// A reader that seeks back stores its new position.
fn seeks(testee: &mut Testee) -> Result<Verdict> {
    let (model, _) = crate::traces::written(30_000);
    let stage = Stage::of(&model.words)?;
    let (page, uuid) = (stage.gate("risk")?, uuid(&model.words));
    passes!(same("open".into(), &Answer::done(), &open(testee, &stage, "risk")?));
    passes!(poll_rest(testee)?);
    for sequence in [model.tail().1 - 7, 3, 200, model.tail().1] {
        let Sought::At(position, sequence) = model.seek(sequence) else {
            anyhow::bail!("{sequence} is there")
        };
        let asked = format!(r#"{{"do":"seek","sequence":{sequence}}}"#);
        passes!(same(format!("seek {sequence}"), &Answer::done(), &testee.ask(&asked)?));
        passes!(says(testee, &page, uuid, (position, sequence), &format!("behind the seek to {sequence}"))?);
    }
    passes!(poll_rest(testee)?);
    says(testee, &page, uuid, model.tail(), "at the end")
}
