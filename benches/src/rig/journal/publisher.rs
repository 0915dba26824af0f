//! The publisher of a round with a recorder. This publisher calls `publish`, as any program does.

use super::role::{Cost, Pace, Publish, Published, RUN};
use crate::rig::child::{bind, say, wait_for};
use crate::rig::gate::Gate;
use crate::rig::names::CHANNEL;
use crate::rig::payload::Payloads;
use crate::rig::spec::{Usage, ring_messages};
use anyhow::{Context, Result};
use shmcast::{Clock, Preparation, Publisher};
use shmcast_layout::counter::{ticks, ticks_after_loads};
use std::time::Duration;

/// The sleep of a publisher that waits for the gate. The publisher does not spin, because the recorder might need the publisher's CPU.
const HELD_BACK: Duration = Duration::from_micros(50);
/// If more than this time remains until the next send, the publisher sleeps for a part of the remaining time. In ns.
const SLEEPS_FROM_NS: u64 = 500_000;
/// A sleeping publisher wakes this long before the next send, in ns.
const WAKES_BEFORE_NS: u64 = 200_000;

/// The greatest number of cost samples that are kept. Later samples are dropped.
const SAMPLES: usize = 4 << 20;

/// Plays the role in this process: answers `ready`, waits for `go`, sends, reports, and waits for `stop`.
///
/// # Errors
/// The error of the channel or of a pipe.
pub fn play(role: &Publish) -> Result<()> {
    let builder = Publisher::builder(CHANNEL).dir(&role.dir).capacity(role.ring_bytes);
    let mut publisher = builder.prepare(Preparation::FULL).open().context("open the channel")?;
    bind(role.cpu)?;
    nix::sys::prctl::set_timerslack(1).context("set the timer slack")?;
    say("ready")?;
    wait_for("go")?;
    let published = send(role, &mut publisher)?;
    say(&serde_json::to_string(&published)?)?;
    wait_for("stop")
}

fn send(role: &Publish, publisher: &mut Publisher) -> Result<Published> {
    let clock = Clock::of_this_host();
    let messages = ring_messages(role.ring_bytes, role.size);
    let mut gate = match role.pace {
        Pace::Gated => Some(Gate::open(&gate_of(&role.dir), 1, messages).context("open the gate")?),
        _ => None,
    };
    let (run, interval_ns) = match role.pace {
        Pace::Every(ns) => (1, ns),
        Pace::Gated | Pace::FlatOut => (RUN, 0),
    };
    let mut payloads = Payloads::new(role.size);
    // The cost of a publisher that waits for the gate is not needed.
    let mut cost = Vec::with_capacity(if gate.is_some() { 0 } else { SAMPLES });
    let mut sends = Vec::with_capacity(if role.keeps_sends { role.messages as usize } else { 0 });
    let (usage, first, mut sequence) = (Usage::now(), ticks(), 0);
    while sequence < role.messages && clock.ns_between(first, ticks()) < role.time_ns {
        if interval_ns > 0 {
            wait_until(&clock, first, sequence * interval_ns);
        }
        if gate.as_mut().is_some_and(|gate| !gate.lets(sequence + run)) {
            std::thread::sleep(HELD_BACK);
            continue;
        }
        let before = ticks();
        let end = (sequence + run).min(role.messages);
        let sent = end - sequence;
        while sequence < end {
            sequence += 1;
            publisher.publish(payloads.stamped(sequence, before))?;
        }
        if cost.len() < cost.capacity() {
            cost.push((ticks_after_loads() - before) as f64 / sent as f64);
        }
        if role.keeps_sends {
            sends.push(before);
        }
    }
    let span = (first, ticks_after_loads());
    let usage = Usage::now().since(&usage);
    let cost = Cost::of(cost, 1e9 / clock.hz() as f64);
    Ok(Published { messages: sequence, span, cost, sends, usage })
}

/// Waits until `at_ns` ns after `start`.
fn wait_until(clock: &Clock, start: u64, at_ns: u64) {
    let ahead = at_ns.saturating_sub(clock.ns_between(start, ticks()));
    if ahead > SLEEPS_FROM_NS {
        std::thread::sleep(Duration::from_nanos(ahead - WAKES_BEFORE_NS));
    }
    while clock.ns_between(start, ticks()) < at_ns {
        std::hint::spin_loop();
    }
}

/// Returns the path of the gate's file in a round's directory.
pub(super) fn gate_of(dir: &std::path::Path) -> std::path::PathBuf {
    dir.join("gate")
}
