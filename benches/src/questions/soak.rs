//! Does it stay as it is? One channel for as long as asked: counts, latency, memory and hiccups, window by window. One
//! receiver has a CPU of its own; more than one share what there is.

use super::{RING_BYTES, ask, crowd, one_to_one, table, table::Sheet, table::ns};
use crate::rig::plan::{Answer, Case, Stage};
use crate::rig::round::{Moment, Outcome};
use crate::rig::spec::{Contestant, Spec, Wait};
use crate::transport::SHMCAST;
use anyhow::Result;
use std::time::Duration;

/// What the answer's table is of.
const TITLE: &str =
    "One channel for as long as asked, 256 B; ns from the intended send; memory from first to last";

/// Windows a soak is cut into, unless they would be shorter than a tenth of a second.
const WINDOWS: u32 = 60;

/// Plays and answers: one round a number of receivers, of about `duration` each.
///
/// # Errors
/// When a round cannot be tried.
pub fn run(stage: &Stage, receivers: &[usize], extra: &[Contestant], duration: Duration) -> Result<Answer> {
    let duration = if stage.quick { Duration::from_secs(2) } else { duration };
    let window = (duration / WINDOWS).max(Duration::from_millis(100));
    let case = |&receivers: &usize| {
        let spec = |who: Contestant| {
            let spec = if receivers == 1 {
                Spec { interval_ns: 100_000, ring_bytes: RING_BYTES, ..one_to_one(who, 256) }
            } else {
                Spec { interval_ns: 1_000_000, ..crowd(who, receivers, 256) }
            };
            let messages = (duration.as_nanos() as u64 / spec.interval_ns).max(1);
            Spec { warmup: messages / 100, messages, window_ns: window.as_nanos() as u64, ..spec }
        };
        let wait = if receivers == 1 { Wait::Spin } else { Wait::Yield };
        let who = [Contestant::new(SHMCAST, wait)].into_iter().chain(extra.iter().cloned());
        Case { name: format!("{receivers} receivers"), specs: who.map(spec).collect() }
    };
    // A soak is one long round: the next lap is the next soak.
    let stage = Stage { laps: 1, retries: 0, ..stage.clone() };
    ask(&stage, "soak", &receivers.iter().map(case).collect::<Vec<_>>())
}

/// By how much a figure changed from the first quarter of the windows to the last: the ratio of the medians.
pub fn drift(series: &[Moment], figure: fn(&Moment) -> u64) -> Option<f64> {
    // The last window may be cut short.
    let values: Vec<f64> = series.iter().map(|moment| figure(moment) as f64).collect();
    let quarter = values.len() / 4;
    let early = crate::rig::stats::median(values[..quarter].iter().copied())?;
    let late = crate::rig::stats::median(values[values.len() - quarter..].iter().copied())?;
    (early > 0.0).then(|| late / early)
}

/// Totals, drift and memory of each soak.
pub fn sheet(answer: &Answer) -> Sheet {
    let header = [
        "receivers",
        "transport",
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
        "longest",
        "lost",
    ];
    let mut sheet = Sheet::new(TITLE, &header);
    for case in answer.cases() {
        for who in &answer.contestants(&case) {
            for (_, o) in answer.comparable(&case, who) {
                let ratio = |figure| drift(&o.series, figure).map_or("-".into(), |r| format!("{r:.2}"));
                sheet.add(
                    who,
                    [
                        case.clone(),
                        who.name(),
                        o.response.count.to_string(),
                        ns(o.response.p50 as f64),
                        ns(o.response.p99 as f64),
                        ns(o.response.p999 as f64),
                        ns(o.response.max as f64),
                        ratio(|moment| moment.response.p50),
                        ratio(|moment| moment.response.p99),
                        range(o, |moment| moment.publisher_kib),
                        range(o, |moment| moment.receiver_kib),
                        (o.published.hiccups.count + o.received.hiccups.count).to_string(),
                        longest(o).map_or("-".into(), |length| ns(length as f64)),
                        table::lost(answer, &case, who),
                    ],
                );
            }
        }
    }
    sheet
}

fn longest(o: &Outcome) -> Option<u64> {
    let both = o.published.hiccups.longest.iter().chain(&o.received.hiccups.longest);
    both.map(|(_, length)| *length).max()
}

/// First and last known value.
fn range(o: &Outcome, figure: fn(&Moment) -> u64) -> String {
    let known: Vec<u64> = o.series.iter().map(figure).filter(|kib| *kib > 0).collect();
    match (known.first(), known.last()) {
        (Some(first), Some(last)) => format!("{first} - {last}"),
        _ => "-".into(),
    }
}
