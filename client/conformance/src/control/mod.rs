//! Level 6: channels of a daemon. The daemon follows the script of each vector (test case): it refuses requests, sends wrong packets, moves
//! the channel, dies, or returns.

pub(crate) mod channel;

use crate::Play;
use crate::model::Start;
use crate::scribe::checksum;
use crate::script::{Heard, PATIENCE, Packet, Scene, Script, Word, identity};
use crate::segments;
use crate::stage::{Stage, Verdict, fails, passes, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use channel::Channel;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A vector (a test case).
pub struct Vector {
    /// The name.
    pub name: String,
    play: Box<Play>,
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let verdict = (self.play)(testee);
        testee.ask(r#"{"do":"close"}"#)?;
        verdict
    }
}

/// Returns all vectors (test cases).
pub fn vectors() -> Vec<Vector> {
    let mut all = Vec::new();
    refusals(&mut all);
    nonsense(&mut all);
    damage(&mut all);
    for seed in 0..12 {
        add(&mut all, format!("history-{seed}"), move |testee| history(testee, seed));
    }
    for (name, is_strict) in [("strict", true), ("not-strict", false)] {
        add(&mut all, format!("moves-{name}"), move |testee| moves(testee, is_strict));
        add(&mut all, format!("moves-and-skips-{name}"), move |testee| skips(testee, is_strict));
        add(&mut all, format!("restarts-{name}"), move |testee| restarts(testee, is_strict));
    }
    add(&mut all, "restarts-where-messages-are-missing".into(), restarts_behind);
    add(&mut all, "closing".into(), closing);
    add(&mut all, "ended-at-the-cut".into(), |testee| ended(testee, true));
    add(&mut all, "cut-before-the-end".into(), |testee| ended(testee, false));
    add(&mut all, "moved-comes-twice".into(), moved_twice);
    add(&mut all, "moved-without-files".into(), moved_without_files);
    for (name, refused) in [("at-once", 0), ("after-refusals", 2)] {
        add(&mut all, format!("comes-back-{name}"), move |testee| comes_back(testee, refused));
    }
    add(&mut all, "comes-back-to-another-segment".into(), |testee| comes_back_elsewhere(testee, false));
    add(&mut all, "comes-back-to-another-charter".into(), |testee| comes_back_elsewhere(testee, true));
    add(&mut all, "comes-back-to-another-charter-after-a-death".into(), gone_before);
    for (name, generation, epoch) in [("this", 1, 1), ("an-older", 1, 0), ("another-generations", 2, 1)] {
        add(&mut all, format!("{name}-publisher-is-gone"), move |testee| gone(testee, generation, epoch));
    }
    all
}

fn add(all: &mut Vec<Vector>, name: String, play: impl Fn(&mut Testee) -> Result<Verdict> + 'static) {
    all.push(Vector { name, play: Box::new(play) });
}

fn welcome() -> Packet {
    Packet::text(json!({"reply": "welcome", "version": 2, "instance": 7}).to_string())
}

pub(crate) fn refusal(code: &str) -> Packet {
    Packet::text(json!({"reply": "refused", "code": code, "why": "so says the script"}).to_string())
}

fn open(testee: &mut Testee, script: &Script, start: &str, watch: bool) -> Result<Answer> {
    let (socket, watch) = (script.socket(), u8::from(watch));
    testee.ask(&format!(
        r#"{{"do":"open","socket":"{}","channel":"t","start":"{start}","watch":{watch}}}"#,
        socket.display()
    ))
}

/// Makes the testee open a channel. The call must fail for `reason`, or for any reason if `reason` is `None`.
fn must_fail(testee: &mut Testee, scene: Scene, reason: Option<&str>) -> Result<Verdict> {
    let script = Script::start(scene)?;
    let answer = open(testee, &script, "oldest", false)?;
    Ok(match (&answer, reason) {
        (Answer::Refused { .. }, None) => Ok(()),
        (_, Some(reason)) => same("open".into(), &Answer::refused(reason), &answer),
        _ => fails("open", "a refusal", format!("{answer:?}")),
    })
}

fn refusals(all: &mut Vec<Vector>) {
    let codes = [
        ("version", "refused"),
        ("unknown-channel", "not found"),
        ("denied", "denied"),
        ("busy", "in use"),
        ("limit", "limit"),
        ("bad-request", "refused"),
        ("failed", "refused"),
    ];
    for (code, class) in codes {
        add(all, format!("hello-is-refused-{code}"), move |testee| {
            must_fail(testee, Scene { hello: vec![refusal(code)], ..Scene::default() }, Some(class))
        });
        add(all, format!("subscribe-is-refused-{code}"), move |testee| {
            must_fail(
                testee,
                Scene { hello: vec![welcome()], subscribe: vec![refusal(code)], ..Scene::default() },
                Some(class),
            )
        });
    }
}

/// Adds vectors (test cases) with answers that are not valid.
fn nonsense(all: &mut Vec<Vector>) {
    let texts: [(&str, Vec<u8>); 8] = [
        ("version-1", json!({"reply": "welcome", "version": 1, "instance": 7}).to_string().into()),
        ("version-3", json!({"reply": "welcome", "version": 3, "instance": 7}).to_string().into()),
        ("an-unknown-reply", json!({"reply": "hail", "version": 2, "instance": 7}).to_string().into()),
        ("done", json!({"reply": "done"}).to_string().into()),
        ("no-object", b"[1]".to_vec()),
        ("no-json", b"welcome".to_vec()),
        ("half-of-it", br#"{"reply":"welcome","vers"#.to_vec()),
        ("no-utf-8", b"\xff\xfe\x00".to_vec()),
    ];
    for (name, text) in texts {
        let (first, second) = (text.clone(), text);
        add(all, format!("hello-gets-{name}"), move |testee| {
            must_fail(testee, Scene { hello: vec![Packet::text(first.clone())], ..Scene::default() }, None)
        });
        add(all, format!("subscribe-gets-{name}"), move |testee| {
            let subscribe = vec![Packet::text(second.clone())];
            must_fail(testee, Scene { hello: vec![welcome()], subscribe, ..Scene::default() }, None)
        });
    }
    add(all, "hello-gets-the-end".into(), |testee| must_fail(testee, Scene::default(), None));
    add(all, "subscribe-gets-the-end".into(), |testee| {
        must_fail(testee, Scene { hello: vec![welcome()], ..Scene::default() }, None)
    });
    add(all, "starting-three-times".into(), |testee| {
        let stage = Channel::new(1, false)?;
        let mut scene = stage.scene()?;
        scene.hello.splice(0..0, vec![Packet::text(r#"{"reply":"starting"}"#); 3]);
        let script = Script::start(scene)?;
        Ok(same("open".into(), &Answer::done(), &open(testee, &script, "oldest", false)?))
    });
}

/// Adds vectors (test cases) with descriptors, charters and segments that cannot be used. A charter has the daemon's decisions about a
/// channel's generations.
fn damage(all: &mut Vec<Vector>) {
    for files in [0, 1, 2, 3, 5, 6] {
        add(all, format!("subscribed-with-{files}-files"), move |testee| {
            let channel = Channel::new(1, false)?;
            let mut scene = channel.scene()?;
            let some = scene.subscribe[0].files.clone();
            scene.subscribe[0].files = some.iter().cycle().take(files).cloned().collect();
            must_fail(testee, scene, None)
        });
    }
    for (name, at, byte, length) in [
        ("magic", 0, b'X', 8192),
        ("version", 8, 3, 8192),
        ("length", 0, b'S', 4096),
        ("nothing", 0, b'S', 0),
    ] {
        add(all, format!("charter-with-another-{name}"), move |testee| {
            use std::os::unix::fs::FileExt;
            let channel = Channel::new(1, false)?;
            channel.charter.0.write_all_at(&[byte], at)?;
            channel.charter.0.set_len(length)?;
            must_fail(testee, channel.scene()?, None)
        });
    }
    let words: [(&str, usize, u64); 5] = [
        ("foreign", 0, 0),
        ("version", 1, 0x3_0000),
        ("checksum", 15, 1),
        ("geometry", 2, 1000),
        ("field", 13, 9),
    ];
    for (reason, at, value) in words {
        add(all, format!("segment-{reason}"), move |testee| {
            let channel = Channel::new(1, false)?;
            let mut words = channel.model.words.clone();
            words[at] = value;
            if matches!(at, 2 | 13) {
                checksum(&mut words);
            }
            channel.stage.patch(&[at, 15], &words)?;
            must_fail(testee, channel.scene()?, Some(reason))
        });
    }
}

/// Makes the testee open a channel. If the testee fails, the calling function returns this failure, so this is a macro.
macro_rules! opened {
    ($channel:expr, $testee:expr, $watch:expr) => {
        match $channel.opened($testee, $watch)? {
            Ok(script) => script,
            Err(failure) => return Ok(Err(failure)),
        }
    };
}

/// Polls, one event at a time and in batches, until these events have arrived. Fails if another event arrives.
pub(crate) fn expect(testee: &mut Testee, step: &str, expected: Vec<String>) -> Result<Verdict> {
    expect_by(testee, &["poll", "batch"], step, expected)
}

/// Receives events like [`expect`], but sends the requests in `hows` in turn.
fn expect_by(testee: &mut Testee, hows: &[&str], step: &str, expected: Vec<String>) -> Result<Verdict> {
    let until = Instant::now() + PATIENCE;
    let mut events = Vec::new();
    for turn in 0.. {
        let how = hows[turn % hows.len()];
        match testee.ask(&format!(r#"{{"do":"{how}"}}"#))? {
            Answer::Events { events: more } if more.is_empty() => {
                // After all events have arrived, one more request shows whether there are more events.
                if events.len() >= expected.len() && turn > 0 || Instant::now() > until {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            Answer::Events { events: more } => {
                events.extend(more);
                if events.len() > expected.len() {
                    break;
                }
            }
            other => return Ok(fails(step, "events", format!("{other:?}"))),
        }
    }
    Ok(same(step.into(), &Answer::Events { events: expected }, &Answer::Events { events }))
}

/// Checks that a client's request is as CONTROL.md says.
fn asked(heard: &[Heard]) -> Verdict {
    let hello = json!({"request": "hello", "version": 2});
    let (Some(last), Some(before)) = (heard.last(), heard.iter().rev().nth(1)) else {
        return fails("requests", "two of them", format!("{heard:?}"));
    };
    let mut wanted = json!({"request": "subscribe", "channel": "t", "resume": false, "park": false, "hidden": true, "watch": false});
    for optional in ["hidden", "watch"] {
        // These fields have a default. `hidden` can have any value.
        wanted[optional] = last.request.get(optional).cloned().unwrap_or(false.into());
    }
    let mut said = last.request.clone();
    for optional in ["hidden", "watch"] {
        said[optional] = wanted[optional].clone();
    }
    if before.request == hello && said == wanted && last.files.is_empty() {
        return Ok(());
    }
    fails("requests", format!("{hello}, {wanted}"), format!("{heard:?}"))
}

/// Plays a history of level 2 on a daemon's channel.
fn history(testee: &mut Testee, seed: u64) -> Result<Verdict> {
    let (model, _) = segments::write(seed);
    let channel =
        Channel { stage: Stage::of(&model.words)?, model, ..Channel::new(1, seed.is_multiple_of(2))? };
    let script = opened!(channel, testee, false);
    passes!(asked(&script.heard()));
    let expected = crate::model::Expected::open(&channel.model, Start::Oldest);
    let events = expected.map_or(Vec::new(), |mut expected| expected.poll(&channel.model));
    expect(testee, "all", events)
}

fn moves(testee: &mut Testee, is_strict: bool) -> Result<Verdict> {
    let channel = Channel::new(1, is_strict)?;
    let script = opened!(channel, testee, false);
    passes!(expect(testee, "the first generation", channel.events(1, 99))?);
    let next = Channel::after(2, is_strict, 11, 1, channel.charter.clone())?;
    channel.charter.set(2, Word::Open)?;
    script.push(&next.moved()?)?;
    passes!(expect(testee, "moved comes before the cut", Vec::new())?);
    channel.charter.set(1, Word::Cut(11))?;
    expect(testee, "the second generation", next.events(11, 99))
}

/// The daemon cuts off the generation: only messages below the cut stay valid. On a strict channel, the last messages are then void. On any
/// other channel, the sequences up to the cut are missing.
fn skips(testee: &mut Testee, is_strict: bool) -> Result<Verdict> {
    let channel = Channel::new(1, is_strict)?;
    let script = opened!(channel, testee, false);
    // On a strict channel, messages from the cut on are void. On another channel, the sequences up to the cut are lost.
    let (cut, mut told) = if is_strict { (8, channel.events(1, 8)) } else { (14, channel.events(1, 99)) };
    let next = channel.succeeded(cut)?;
    script.push(&next.moved()?)?;
    if !is_strict {
        told.push("lapped 3 14".into());
    }
    told.extend(next.events(cut, 99));
    expect(testee, "both generations", told)
}

fn restarts(testee: &mut Testee, is_strict: bool) -> Result<Verdict> {
    let channel = Channel::new(1, is_strict)?;
    let script = opened!(channel, testee, false);
    let mut told = channel.events(1, 99);
    let next = Channel::after(2, is_strict, 1, 2, channel.charter.clone())?;
    channel.charter.set(2, Word::Open)?;
    channel.charter.set(1, Word::Cut(11))?;
    script.push(&next.moved()?)?;
    told.push("restarted".into());
    told.extend(next.events(1, 99));
    expect(testee, "both generations", told)
}

/// The channel moves to a second generation, whose messages are all void. Then it moves to a third one, whose sequences restart. In one
/// batch, the reader gets only `restarted` and the messages of the third generation.
fn restarts_behind(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, false);
    passes!(expect(testee, "the first generation", channel.events(1, 99))?);
    let second = channel.succeeded(14)?;
    let third = Channel::after(3, false, 1, 3, channel.charter.clone())?;
    channel.charter.set(3, Word::Open)?;
    channel.charter.set(2, Word::Cut(14))?;
    script.push(&second.moved()?)?;
    script.push(&third.moved()?)?;
    let mut told = vec!["restarted".to_owned()];
    told.extend(third.events(1, 99));
    expect_by(testee, &["batch"], "the third generation", told)
}

fn closing(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, true)?;
    let _script = opened!(channel, testee, false);
    channel.charter.set(1, Word::Closing)?;
    passes!(expect(testee, "while it closes", Vec::new())?);
    channel.charter.set(1, Word::Cut(4))?;
    passes!(expect(testee, "below the cut", channel.events(1, 4))?);
    channel.charter.set(1, Word::Open)?;
    expect(testee, "open again, which only a new daemon says", channel.events(4, 99))
}

/// The stream ends exactly at the cut of a strict channel.
fn ended(testee: &mut Testee, is_ended: bool) -> Result<Verdict> {
    let mut channel = Channel::new(1, true)?;
    channel.scribe.close(5000);
    for store in channel.scribe.stores.drain(..) {
        channel.stage.apply(&store)?;
    }
    let _script = opened!(channel, testee, false);
    channel.charter.set(1, if is_ended { Word::Ended(11) } else { Word::Cut(11) })?;
    let mut told = channel.events(1, 99);
    told.extend(is_ended.then(|| "end".to_owned()));
    expect(testee, "to the cut", told)
}

/// The daemon sends the same packet twice, and then a packet of an older generation.
fn moved_twice(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, false);
    passes!(expect(testee, "the first generation", channel.events(1, 99))?);
    let next = channel.succeeded(11)?;
    for packet in [next.moved()?, next.moved()?, channel.moved()?] {
        script.push(&packet)?;
    }
    passes!(expect(testee, "the second generation", next.events(11, 99))?);
    let third = next.succeeded(21)?;
    script.push(&third.moved()?)?;
    expect(testee, "the third generation", third.events(21, 99))
}

/// A packet whose descriptors did not arrive counts as the end of the connection.
fn moved_without_files(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, false);
    passes!(expect(testee, "the first generation", channel.events(1, 99))?);
    let next = channel.succeeded(11)?;
    let mut scene = next.scene()?;
    scene.subscribe[0].files[3] = Arc::clone(&channel.charter.0);
    script.set(scene);
    script.heard();
    script.push(&Packet::text(next.said("moved")))?;
    let heard = script.wait_for_subscribe()?;
    if heard.request["resume"] != true {
        return Ok(fails("comes back", "resume", heard.request.to_string()));
    }
    expect(testee, "the second generation", next.events(11, 99))
}

fn comes_back(testee: &mut Testee, refused: usize) -> Result<Verdict> {
    let mut channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, false);
    passes!(expect(testee, "before", channel.events(1, 99))?);
    script.heard();
    if refused > 0 {
        script.set(Scene { hello: vec![welcome()], subscribe: vec![refusal("failed")], ..Scene::default() });
    }
    script.hang_up();
    for _ in 0..refused {
        script.wait_for_subscribe()?;
    }
    channel.publish()?;
    passes!(expect(testee, "without a daemon", channel.events(11, 99))?);
    script.set(channel.scene()?);
    let heard = script.wait_for_subscribe()?;
    let ours = [identity(&*channel.segment()?)?, identity(&channel.lock)?, identity(&channel.page)?];
    if heard.request["resume"] != true || heard.files != ours {
        return Ok(fails("comes back", format!("resume with {ours:?}"), format!("{heard:?}")));
    }
    channel.publish()?;
    expect(testee, "after", channel.events(12, 99))
}

fn comes_back_elsewhere(testee: &mut Testee, is_other_charter: bool) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, false);
    passes!(expect(testee, "before", channel.events(1, 99))?);
    let next = if is_other_charter { Channel::new(1, false)? } else { channel.succeeded(11)? };
    script.set(next.scene()?);
    script.hang_up();
    let mut told = Vec::new();
    told.extend(is_other_charter.then(|| "restarted".to_owned()));
    told.extend(next.events(next.first, 99));
    expect(testee, "after", told)
}

/// The daemon reports the death of a publisher. The testee must report the death only if the dead publisher is the channel's present
/// publisher.
fn gone(testee: &mut Testee, generation: u64, epoch: u64) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, true);
    script.push(&Packet::text(format!(
        r#"{{"reply":"publisher-gone","generation":{generation},"epoch":{epoch}}}"#
    )))?;
    let mut told = channel.events(1, 99);
    told.extend((generation == 1 && epoch == 1).then(|| "gone 1".to_owned()));
    expect(testee, "to the end of its messages", told)
}

/// A daemon reports a publisher's death, and is then replaced by another daemon. At the new daemon, the same generation and epoch belong to
/// a living publisher. The testee must not report this publisher as dead.
fn gone_before(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let script = opened!(channel, testee, true);
    script.push(&Packet::text(r#"{"reply":"publisher-gone","generation":1,"epoch":1}"#))?;
    let mut told = channel.events(1, 99);
    told.push("gone 1".into());
    passes!(expect(testee, "to the death", told)?);
    let next = Channel::new(1, false)?;
    script.set(next.scene()?);
    script.hang_up();
    let mut told = vec!["restarted".to_owned()];
    told.extend(next.events(1, 99));
    expect(testee, "after", told)
}
