//! Logs how gates affect a publisher: the refused messages, the late calls, and the publisher's figures of its gates.

use super::reader::{SLACK, on_cpu_and_waiting};
use crate::log::{Fact, GateFigures, Log, Time, now};
use crate::story::{Gate, Shape, gate_name};
use anyhow::Result;
use shmcast::{BoardSpec, GateState, Publisher, PublisherBuilder, Then};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A burst of messages ends after this number of refusals, or when its refused calls have taken [`REFUSED_FOR`] together.
const REFUSALS: u32 = 60;
const REFUSED_FOR: Duration = Duration::from_millis(150);
/// The pause after a refusal.
const PAUSE: Duration = Duration::from_millis(1);

/// Gives a channel the board and the gates of a story. Only a publisher without a daemon can do this.
pub(super) fn equip(
    builder: PublisherBuilder,
    channel: &str,
    sizes: [u64; 2],
    shape: &Shape,
) -> PublisherBuilder {
    let keys = crate::keys::Keys::of(channel);
    let mut builder = match (shape.board, keys) {
        (Some(board), Some(keys)) => {
            let spec = BoardSpec::new(keys.start..keys.end);
            builder.board(spec.keys(board.keys.into()).value(board.value.into()))
        }
        _ => builder,
    };
    let [capacity, largest] = sizes;
    for (number, gate) in shape.gates.iter().enumerate() {
        builder = builder.gate(made(*gate, number, capacity, largest));
    }
    builder
}

fn made(gate: Gate, number: usize, capacity: u64, largest: u64) -> shmcast::Gate {
    let wait = Duration::from_micros(gate.wait_us.into());
    let made = shmcast::Gate::new(gate_name(number)).lag_bytes(gate.lag_bytes(capacity, largest)).wait(wait);
    if gate.refuse { made.refuse() } else { made }
}

/// Logs the figures of the publisher's gates, if it has gates.
pub(super) fn note_figures(publisher: &Publisher, log: &mut Log) -> Result<()> {
    let gates: Vec<GateFigures> = publisher.gates().iter().map(figures).collect();
    if !gates.is_empty() {
        log.write(Fact::Gates { gates })?;
    }
    Ok(())
}

fn figures(gate: &shmcast::GateStatus) -> GateFigures {
    GateFigures {
        gate: gate.name.as_str().to_owned(),
        lag: gate.lag_bytes,
        refuse: gate.then == Then::Refuse,
        state: gate.state.name().to_owned(),
        pid: gate.pid.filter(|_| gate.state != GateState::Absent),
        held: gate.held,
        dropped: gate.dropped,
        refused: gate.refused,
        turned_away: gate.turned_away,
    }
}

/// Watches the calls of one burst.
pub(super) struct Watch {
    /// The longest wait of one message. `None` if the publisher has no gates.
    wait: Option<Duration>,
    /// For each gate: the time at which its last refused call began, and the number of refusals.
    refused: BTreeMap<String, (Time, u32)>,
    refusals: u32,
    refused_for: Duration,
    late: Vec<Fact>,
}

/// A call that has begun.
pub(super) struct Begun {
    at: Instant,
    since: Time,
    cpu: [u64; 2],
}

impl Watch {
    pub(super) fn new(publisher: &Publisher) -> Self {
        let wait = publisher.gates().iter().map(|gate| gate.wait).max();
        let (refused_for, late) = (Duration::ZERO, Vec::new());
        Self { wait, refused: BTreeMap::new(), refusals: 0, refused_for, late }
    }

    pub(super) fn begin(&self) -> Option<Begun> {
        self.wait.map(|_| Begun { at: Instant::now(), since: now(), cpu: on_cpu_and_waiting() })
    }

    /// Notes that a call for `messages` messages has ended.
    pub(super) fn end(&mut self, begun: Option<Begun>, call: &str, messages: u32) {
        let (Some(wait), Some(Begun { at, cpu, .. })) = (self.wait, begun) else { return };
        let (took, asked) = (at.elapsed(), wait * messages);
        if took > asked + SLACK {
            let after = on_cpu_and_waiting();
            let [ran_us, waited_us] = [0, 1].map(|i: usize| after[i].saturating_sub(cpu[i]) / 1000);
            let (asked_us, took_us) = (asked.as_micros() as u64, took.as_micros() as u64);
            self.late.push(Fact::Late { call: call.to_owned(), asked_us, took_us, ran_us, waited_us });
        }
    }

    /// Notes a refusal. Returns whether the publisher should try again.
    pub(super) fn refused(&mut self, gate: &str, begun: Option<&Begun>) -> bool {
        let (last, count) = self.refused.entry(gate.to_owned()).or_default();
        (*last, *count) = (begun.map_or(0, |begun| begun.since), *count + 1);
        self.refusals += 1;
        self.refused_for += begun.map_or(Duration::ZERO, |begun| begun.at.elapsed());
        std::thread::sleep(PAUSE);
        self.refusals < REFUSALS && self.refused_for < REFUSED_FOR
    }

    /// Logs the refusals and late calls, and the figures of the gates.
    pub(super) fn finish(self, publisher: &Publisher, tried: bool, log: &mut Log) -> Result<()> {
        for late in self.late {
            log.write(late)?;
        }
        for (gate, (last, count)) in self.refused {
            log.write(Fact::Refused { gate, tried, count, last })?;
        }
        note_figures(publisher, log)
    }
}
