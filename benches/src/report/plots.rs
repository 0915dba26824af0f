//! Which charts go with which question. Every one is drawn from the rounds that count, as the tables are.

use crate::questions::oversubscribed::{cpu_ns, switches};
use crate::report::svg::{Axis, Bar, Chart, Line, Scale, Unit, bars, escape};
use crate::rig::plan::{Answer, Played};
use crate::rig::round::{Moment, Outcome};
use crate::rig::spec::Contestant;
use crate::rig::stats::{Distribution, HiccupLog, histogram};
use crate::transport::SHMCAST;
use anyhow::{Context, Result};

const HEIGHT: f64 = 300.0;

/// A picture and who is in it.
#[derive(Debug, Clone)]
pub struct Plot {
    /// SVG.
    pub svg: String,
    /// Those who need an entry in the legend.
    pub who: Vec<Contestant>,
}

/// The style classes of a contestant: a colour by transport, a dash by way of waiting.
pub fn class(who: &Contestant) -> String {
    let letters = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
    let transport: String = who.transport_name().chars().map(letters).collect();
    // Another build of a transport is told from this one by its colour.
    let other = if who.transport.contains('@') { "-other" } else { "" };
    format!("t-{transport}{other} w-{}", who.wait.name())
}

/// Whether messages were not timed one by one.
fn is_back_to_back(round: &Played) -> bool {
    round.outcome.as_ref().is_ok_and(|outcome| outcome.spec.interval_ns == 0)
}

/// The plots of an answer.
///
/// # Errors
/// When a histogram in it cannot be read.
pub fn plots(answer: &Answer) -> Result<Vec<Plot>> {
    Ok(match answer.question.as_str() {
        "latency" => {
            let mut plots = Vec::new();
            for case in answer.cases() {
                plots.push(percentiles(answer, &case, "latency from the intended send", |o| &o.response)?);
                plots.extend(timeline(answer, &case));
            }
            plots
        }
        "throughput" => answer.cases().iter().map(|case| rates(answer, case)).collect(),
        "fanout" => {
            let mark = (50_000.0, "50 us: what listeners in the dozens ask for".to_owned());
            let mut plots = vec![
                against_receivers(answer, "time inside the publisher's send, p50", None, |o| {
                    o.cost.p50 as f64
                }),
                against_receivers(answer, "latency to the last receiver, p50", Some(mark), |o| {
                    o.last.p50 as f64
                }),
            ];
            if let Some(most) = answer.cases().last() {
                plots.push(percentiles(answer, most, "latency to the last receiver", |o| &o.last)?);
                plots.push(percentiles(answer, most, "time inside the publisher's send", |o| &o.cost)?);
            }
            plots
        }
        "oversubscribed" => answer.cases().iter().map(|case| waits(answer, case)).collect(),
        "churn" => {
            let mut plots = Vec::new();
            for case in answer.cases() {
                plots.push(percentiles(answer, &case, "latency to the last that stays", |o| &o.last)?);
                plots.push(percentiles(answer, &case, "time inside the publisher's send", |o| &o.cost)?);
            }
            plots
        }
        "bridge" => {
            let paced = |case: &String| !answer.rounds.iter().any(|r| r.case == *case && is_back_to_back(r));
            let cases = answer.cases();
            let cases = cases.iter().filter(|case| paced(case));
            let plots = cases.map(|case| percentiles(answer, case, "one way", |o| &o.one_way));
            plots.collect::<Result<_>>()?
        }
        "soak" => answer.rounds.iter().filter_map(|r| r.outcome.as_ref().ok()).flat_map(course).collect(),
        _ => {
            let cases = answer.cases();
            let cases = cases.iter().map(|case| percentiles(answer, case, "latency", |o| &o.response));
            cases.collect::<Result<_>>()?
        }
    })
}

fn line(who: &Contestant, points: Vec<(f64, f64)>, dots: bool) -> Line {
    Line { name: who.name(), class: class(who), points, dots }
}

/// Ours on top of the others.
fn ours_last(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_by_key(|line| line.name.starts_with(SHMCAST));
    lines
}

/// The distribution of all comparable rounds together.
///
/// # Errors
/// When a histogram cannot be read.
pub fn together(
    answer: &Answer,
    case: &str,
    who: &Contestant,
    of: fn(&Outcome) -> &Distribution,
) -> Result<hdrhistogram::Histogram<u64>> {
    let mut all = histogram();
    for (_, outcome) in answer.comparable(case, who) {
        let distribution = of(outcome);
        if distribution.count > 0 {
            all.add(distribution.decode()?).context("add a round's histogram")?;
        }
    }
    Ok(all)
}

fn percentiles(answer: &Answer, case: &str, what: &str, of: fn(&Outcome) -> &Distribution) -> Result<Plot> {
    let who = answer.contestants(case);
    let mut lines = Vec::new();
    let mut most = 2;
    for who in &who {
        let all = together(answer, case, who, of)?;
        if all.is_empty() {
            continue;
        }
        most = most.max(all.len());
        let last = 1.0 - 0.5 / all.len() as f64;
        let point = |q: f64| (q, all.value_at_quantile(q) as f64);
        let steps = (0..).map(|i| 1.0 - 10f64.powf(-f64::from(i) / 12.0)).take_while(|q| *q < last);
        lines.push(line(who, steps.chain([last]).map(point).collect(), false));
    }
    let values: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y)).collect();
    let chart = Chart {
        title: format!("{case}: {what}"),
        x: Axis {
            label: "percentile".into(),
            scale: Scale::Nines,
            unit: Unit::Quantile,
            low: 0.0,
            high: 1.0 - 0.5 / most as f64,
        },
        y: Axis::times("", values),
        lines: ours_last(lines),
        marks: Vec::new(),
        stems: Vec::new(),
        height: HEIGHT,
    };
    Ok(Plot { svg: chart.to_string(), who })
}

/// The worst latencies over our median round, and beneath them what the machine did meanwhile.
fn timeline(answer: &Answer, case: &str) -> Option<Plot> {
    let who = answer.contestants(case).into_iter().find(|who| who.transport == SHMCAST)?;
    let mut rounds = answer.comparable(case, &who);
    rounds.sort_by_key(|(_, outcome)| outcome.response.p50);
    let (_, outcome) = rounds.get(rounds.len().saturating_sub(1) / 2)?;
    if outcome.worst.is_empty() {
        return None;
    }
    let seconds = outcome.spec.messages as f64 * outcome.spec.interval_ns as f64 / 1e9;
    let part = seconds / outcome.worst.len() as f64;
    let points =
        outcome.worst.iter().enumerate().map(|(i, ns)| ((i as f64 + 0.5) * part, *ns as f64)).collect();
    let over = Chart {
        title: format!("{case}: worst latency over one round of {}", who.name()),
        x: seconds_axis("", seconds),
        y: Axis::times("", outcome.worst.iter().map(|ns| *ns as f64).filter(|ns| *ns > 0.0)),
        lines: vec![line(&who, points, false)],
        marks: Vec::new(),
        stems: Vec::new(),
        height: 190.0,
    };
    Some(Plot { svg: over.to_string() + &hiccups(outcome, seconds), who: vec![who] })
}

fn seconds_axis(label: &str, high: f64) -> Axis {
    Axis { label: label.into(), scale: Scale::Linear, unit: Unit::Seconds, low: 0.0, high: high.max(1e-3) }
}

/// Stretches in which a spinning process did not run.
fn hiccups(outcome: &Outcome, seconds: f64) -> String {
    let stems = |log: &HiccupLog, class: &str| -> Vec<_> {
        log.longest.iter().map(|(at, length)| (*at as f64 / 1e9, *length as f64, class.to_owned())).collect()
    };
    let mut stems_of_both = stems(&outcome.published.hiccups, "publisher");
    stems_of_both.extend(stems(&outcome.received.hiccups, "receiver"));
    let count = (outcome.published.hiccups.count, outcome.received.hiccups.count);
    let chart = Chart {
        title: format!("hiccups: {} of the publisher's CPU, {} of the receiver's", count.0, count.1),
        x: seconds_axis("time in the round", seconds),
        y: Axis::times("", [1_000.0, 100_000.0].into_iter().chain(stems_of_both.iter().map(|stem| stem.1))),
        lines: Vec::new(),
        marks: Vec::new(),
        stems: stems_of_both,
        height: 170.0,
    };
    chart.to_string()
}

fn rates(answer: &Answer, case: &str) -> Plot {
    let who = answer.contestants(case);
    let mut all: Vec<Bar> = who
        .iter()
        .filter_map(|who| {
            let rates: Vec<f64> = answer.comparable(case, who).iter().map(|(_, o)| o.rate / 1e6).collect();
            Some(Bar {
                name: who.transport.split('@').next()?.to_owned()
                    + if who.transport.contains('@') { " (other)" } else { "" },
                class: class(who),
                value: crate::rig::stats::median(rates.iter().copied())?,
                range: rates.iter().fold((f64::INFINITY, 0.0), |(low, high), r| (low.min(*r), high.max(*r))),
            })
        })
        .collect();
    all.sort_by(|a, b| b.value.total_cmp(&a.value));
    Plot {
        svg: bars(&format!("{case}: messages a second, nothing lost (whiskers: all rounds)"), "M", &all),
        who,
    }
}

fn receivers(outcome: &Outcome) -> f64 {
    outcome.spec.receivers as f64
}

fn against_receivers(
    answer: &Answer,
    title: &str,
    mark: Option<(f64, String)>,
    of: fn(&Outcome) -> f64,
) -> Plot {
    let cases = answer.cases();
    let mut who: Vec<Contestant> = Vec::new();
    for found in cases.iter().flat_map(|case| answer.contestants(case)) {
        if !who.contains(&found) {
            who.push(found);
        }
    }
    let points = |who: &Contestant| -> Vec<(f64, f64)> {
        let point =
            |case: &String| Some((answer.median(case, who, receivers)?, answer.median(case, who, of)?));
        cases.iter().filter_map(point).collect()
    };
    let lines: Vec<Line> = who.iter().map(|who| line(who, points(who), true)).collect();
    let all = || lines.iter().flat_map(|line| &line.points);
    let marked = mark.iter().map(|(value, _)| *value);
    let chart = Chart {
        title: title.into(),
        x: Axis {
            label: "receivers".into(),
            scale: Scale::Log,
            unit: Unit::Count,
            low: 1.0,
            high: all().map(|(x, _)| *x).fold(2.0, f64::max),
        },
        y: Axis::times("", all().map(|(_, y)| *y).chain(marked)),
        marks: mark.into_iter().collect(),
        lines: ours_last(lines),
        stems: Vec::new(),
        height: HEIGHT,
    };
    Plot { svg: chart.to_string(), who }
}

/// What waiting gives against what it costs, a dot for each way.
fn waits(answer: &Answer, case: &str) -> Plot {
    let who = answer.contestants(case);
    let dot = |who: &Contestant| {
        let (cost, gain) =
            (answer.median(case, who, cpu_ns)?, answer.median(case, who, |o| o.last.p50 as f64)?);
        let switches = answer.median(case, who, switches)?;
        let line = line(who, vec![(cost, gain)], true);
        Some(Line { name: format!("{}, {switches:.2} switches a message", line.name), ..line })
    };
    let lines: Vec<Line> = who.iter().filter_map(dot).collect();
    let x = Axis::times("CPU time a message and receiver", lines.iter().map(|line| line.points[0].0));
    let y = Axis::times("", lines.iter().map(|line| line.points[0].1));
    let title = format!("{case}: latency to the last (p50) against its price");
    let chart =
        Chart { title, x, y, lines: ours_last(lines), marks: Vec::new(), stems: Vec::new(), height: HEIGHT };
    // Dots alone cannot show a dash; each carries its way's name.
    Plot { svg: with_names(&chart), who }
}

/// The chart with each single-point line's name beside its dot.
fn with_names(chart: &Chart) -> String {
    let mut out = chart.to_string();
    let end = out.rfind("</svg>").expect("a chart ends");
    let names: String = chart
        .lines
        .iter()
        .filter_map(|line| {
            let (x, y) = chart.at(line.points.first()?.0, line.points.first()?.1);
            let name = line.name.split(',').next()?.split('/').next_back()?;
            let (dx, anchor) = if x > 340.0 { (-6.0, "end") } else { (6.0, "start") };
            Some(format!(
                r#"<text class="dot {}" x="{:.1}" y="{:.1}" text-anchor="{anchor}">{}</text>"#,
                line.class,
                x + dx,
                y + 4.0,
                escape(name)
            ))
        })
        .collect();
    out.insert_str(end, &names);
    out
}

/// A soak from beginning to end: latencies, memory, hiccups.
fn course(outcome: &Outcome) -> Vec<Plot> {
    let series = &outcome.series;
    let Some(seconds) = series.last().map(|moment| moment.at_ns as f64 / 1e9) else { return Vec::new() };
    let who = &outcome.spec.contestant;
    let points = |of: fn(&Moment) -> f64| -> Vec<(f64, f64)> {
        let known = series.iter().map(|moment| (moment.at_ns as f64 / 1e9, of(moment)));
        known.filter(|(_, value)| *value > 0.0).collect()
    };
    let latency = |name: &str, class: &str, of: fn(&Moment) -> f64| Line {
        name: name.into(),
        class: class.into(),
        points: points(of),
        dots: false,
    };
    let lines = vec![
        latency("max", "s-max", |moment| moment.response.max as f64),
        latency("p99", "s-p99", |moment| moment.response.p99 as f64),
        latency("p50", "s-p50", |moment| moment.response.p50 as f64),
    ];
    let values: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y)).collect();
    let over = Chart {
        title: format!("{} receivers, {}: p50, p99 and max by window", outcome.spec.receivers, who.name()),
        x: seconds_axis("", seconds),
        y: Axis::times("", values),
        lines,
        marks: Vec::new(),
        stems: Vec::new(),
        height: 220.0,
    };
    let memory = vec![
        latency("publisher", "s-p99", |moment| moment.publisher_kib as f64 / 1024.0),
        latency("largest receiver", "s-p50", |moment| moment.receiver_kib as f64 / 1024.0),
    ];
    let most = memory.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y)).fold(1.0, f64::max);
    let beside = Chart {
        title: "resident memory in MiB: publisher and largest receiver".into(),
        x: seconds_axis("time", seconds),
        y: Axis { label: String::new(), scale: Scale::Linear, unit: Unit::Count, low: 0.0, high: most * 1.2 },
        lines: memory,
        marks: Vec::new(),
        stems: Vec::new(),
        height: 190.0,
    };
    vec![
        Plot { svg: over.to_string() + &hiccups(outcome, seconds), who: Vec::new() },
        Plot { svg: beside.to_string(), who: Vec::new() },
    ]
}
