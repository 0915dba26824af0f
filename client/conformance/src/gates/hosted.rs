//! Vectors (test cases) for gates of a daemon's channel (CONTROL.md 9). The daemon is scripted.

use super::page::Page;
use super::readers::says;
use super::{Vector, uuid};
use crate::control::channel::Channel;
use crate::control::{expect, refusal};
use crate::script::{Packet, Script};
use crate::stage::{Verdict, fails, passes, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;
use serde_json::json;
use std::sync::Arc;

pub(super) fn add(all: &mut Vec<Vector>) {
    super::add(all, Some(6), "of-a-daemon", hosted);
    super::add(all, Some(6), "of-a-daemon-in-use", in_use);
    for (code, class) in
        [("unknown-gate", Some("unknown gate")), ("failed", Some("refused")), ("limit", Some("limit"))]
    {
        super::add(all, Some(6), format!("of-a-daemon-is-refused-{code}"), move |testee| {
            refused(testee, |_| Ok(refusal(code)), class)
        });
    }
    for files in [0, 1, 3] {
        super::add(all, Some(6), format!("of-a-daemon-with-{files}-files"), move |testee| {
            refused(testee, |page| granted(page, files), None)
        });
    }
}

/// Returns the daemon's answer, with `files` open files of the gate's page.
fn granted(page: &Page, files: usize) -> Result<Packet> {
    let text = json!({"reply": "gate", "gate": "risk", "lag_bytes": 32768, "wait_ns": 1000, "refuse": false});
    let files = (0..files).map(|_| page.again().map(Arc::new)).collect::<Result<_>>()?;
    Ok(Packet { text: text.to_string().into(), files })
}

fn open(testee: &mut Testee, script: &Script) -> Result<Answer> {
    let socket = script.socket();
    testee.ask(&format!(
        r#"{{"do":"open","socket":"{}","channel":"t","start":"oldest","gate":"risk"}}"#,
        socket.display()
    ))
}

fn started(channel: &Channel, gate: Packet) -> Result<Script> {
    let mut scene = channel.scene()?;
    scene.gate = vec![gate];
    Script::start(scene)
}

/// Tests a gate of a daemon's channel. The testee asks the daemon for the gate by name, and takes it. Then the channel moves to the next
/// generation, and the testee must still have the gate.
fn hosted(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let page = channel.stage.gate("risk")?;
    let script = started(&channel, granted(&page, 2)?)?;
    passes!(same("open".into(), &Answer::done(), &open(testee, &script)?));
    let heard = script.heard();
    let wanted = json!({"request": "gate", "gate": "risk"});
    if heard.last().map(|last| &last.request) != Some(&wanted) {
        return Ok(fails("requests", wanted.to_string(), format!("{heard:?}")));
    }
    let first = uuid(&channel.model.words);
    passes!(says(testee, &page, first, (0, 1), "at the start")?);
    passes!(expect(testee, "the first generation", channel.events(1, 99))?);
    passes!(says(testee, &page, first, channel.model.tail(), "in the first generation")?);
    let next = channel.succeeded(11)?;
    script.push(&next.moved()?)?;
    passes!(expect(testee, "the second generation", next.events(11, 99))?);
    passes!(says(testee, &page, uuid(&next.model.words), next.model.tail(), "in the second generation")?);
    testee.ask(r#"{"do":"close"}"#)?;
    Ok(if page.is_locked()? { fails("the lock", "free", "held") } else { Ok(()) })
}

fn in_use(testee: &mut Testee) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let page = channel.stage.gate("risk")?;
    let other = Page::open(&page.path)?;
    anyhow::ensure!(other.lock()?, "nobody else has the lock");
    let script = started(&channel, granted(&page, 2)?)?;
    Ok(same("open".into(), &Answer::refused("in use"), &open(testee, &script)?))
}

fn refused(
    testee: &mut Testee,
    gate: impl Fn(&Page) -> Result<Packet>,
    class: Option<&str>,
) -> Result<Verdict> {
    let channel = Channel::new(1, false)?;
    let page = channel.stage.gate("risk")?;
    let script = started(&channel, gate(&page)?)?;
    let answer = open(testee, &script)?;
    let is_so = match (&answer, class) {
        (Answer::Refused { refused }, Some(class)) => refused == class,
        (answer, _) => matches!(answer, Answer::Refused { .. }),
    };
    if !is_so {
        return Ok(fails("open", class.unwrap_or("a refusal"), format!("{answer:?}")));
    }
    Ok(if page.is_locked()? { fails("the lock", "free", "held") } else { Ok(()) })
}
