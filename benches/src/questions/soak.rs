//! Checks whether a channel behaves in the same way for hours.
//!
//! One channel runs for as long as the user asks. For each window of time, the question measures counts, latency, memory and hiccups. If a
//! round has one receiver, the receiver has its own CPU. If a round has several receivers, they share the CPUs.

use super::rounds::ask;
use super::table::{self, Figures, Sheet, Unit, grouped};
use crate::rig::names::SHMCAST;
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::round::{Moment, Outcome};
use crate::rig::spec::{Contestant, RING_BYTES, Spec, Wait};
use anyhow::Result;
use std::time::Duration;

/// The title of the answer's table.
const TITLE: &str = "One channel for as long as asked, 256 B; times are in us from the intended send; memory is from first to last";

/// The number of windows of time in a soak. There are fewer if a window would be shorter than a tenth of a second.
const WINDOWS: u32 = 60;

/// Plays one round of about `duration` for each number of receivers. Returns the answer.
///
/// # Errors
/// When a round cannot be started.
pub fn run(stage: &Stage, receivers: &[usize], extra: &[Contestant], duration: Duration) -> Result<Answer> {
    let duration = if stage.quick { Duration::from_secs(2) } else { duration };
    let window = (duration / WINDOWS).max(Duration::from_millis(100));
    let case = |&receivers: &usize| {
        let spec = |who: Contestant| {
            let spec = if receivers == 1 {
                Spec { interval_ns: 100_000, ring_bytes: RING_BYTES, ..Spec::one_to_one(who, 256) }
            } else {
                Spec { interval_ns: 1_000_000, ..Spec::crowd(who, receivers, 256) }
            };
            let messages = (duration.as_nanos() as u64 / spec.interval_ns).max(1);
            Spec { warmup: messages / 100, messages, window_ns: window.as_nanos() as u64, ..spec }
        };
        let wait = if receivers == 1 { Wait::Spin } else { Wait::Yield };
        let who = [Contestant::new(SHMCAST, wait)].into_iter().chain(extra.iter().cloned());
        Case { name: format!("{receivers} receivers"), specs: who.map(spec).collect() }
    };
    // A soak is one long round, so it has one lap.
    let stage = Stage { laps: 1, retries: 0, ..stage.clone() };
    ask(&stage, "soak", &receivers.iter().map(case).collect::<Vec<_>>())
}

/// Returns how a figure changed during the soak: its median in the last quarter of the windows, divided by its median in the first quarter.
pub fn drift(series: &[Moment], figure: fn(&Moment) -> u64) -> Option<f64> {
    // The last window can be shorter than the others.
    let values: Vec<f64> = series.iter().map(|moment| figure(moment) as f64).collect();
    let quarter = values.len() / 4;
    let early = crate::rig::stats::median(values[..quarter].iter().copied())?;
    let late = crate::rig::stats::median(values[values.len() - quarter..].iter().copied())?;
    (early > 0.0).then(|| late / early)
}

/// Makes the table of totals, drift and memory of each soak.
pub fn sheet(answer: &Answer) -> Sheet {
    let figures = [
        "messages",
        "p50",
        "p99",
        "p99.9",
        "max",
        "p50 late/early",
        "p99 late/early",
        "publisher KiB",
        "receiver KiB",
        "hiccups",
        "longest hiccup",
        "lost",
    ];
    let mut sheet = Sheet::new(TITLE, "receivers", &figures);
    for case in &answer.cases() {
        for who in &answer.contestants(case) {
            let f = Figures { answer, case, who, unit: Unit::Us };
            for (_, o) in answer.comparable(case, who) {
                sheet.add(case, who, figures_of(&f, o));
            }
        }
    }
    sheet
}

/// Returns the cells of one soak.
fn figures_of(f: &Figures<'_>, o: &Outcome) -> [String; 12] {
    let time = |ns: u64| f.unit.show(ns as f64);
    let late_over_early = |figure| table::or_dash(drift(&o.series, figure), 2);
    [
        grouped(o.response.count as f64, 0),
        time(o.response.p50),
        time(o.response.p99),
        time(o.response.p999),
        time(o.response.max),
        late_over_early(|moment| moment.response.p50),
        late_over_early(|moment| moment.response.p99),
        range(o, |moment| moment.publisher_kib),
        range(o, |moment| moment.receiver_kib),
        (o.published.hiccups.count + o.received.hiccups.count).to_string(),
        longest(o).map_or("-".into(), time),
        f.lost(),
    ]
}

fn longest(o: &Outcome) -> Option<u64> {
    let both = o.published.hiccups.longest.iter().chain(&o.received.hiccups.longest);
    both.map(|(_, length)| *length).max()
}

/// Returns the first and the last known value.
fn range(o: &Outcome, figure: fn(&Moment) -> u64) -> String {
    let known: Vec<u64> = o.series.iter().map(figure).filter(|kib| *kib > 0).collect();
    match (known.first(), known.last()) {
        (Some(first), Some(last)) => format!("{first} - {last}"),
        _ => "-".into(),
    }
}
