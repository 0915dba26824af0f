//! The charts of each question. Like the tables, they use only the rounds that count.

use super::palette::Palette;
use super::svg::{Axis, Bar, Chart, Line, Scale, Unit, bars};
use crate::questions::oversubscribed::{cpu_ns, switches};
use crate::questions::table::grouped;
use crate::rig::names::SHMCAST;
use crate::rig::plan::{Answer, Played};
use crate::rig::round::{Moment, Outcome};
use crate::rig::spec::Contestant;
use crate::rig::stats::{Distribution, HiccupLog, median};

const HEIGHT: f64 = 290.0;

/// A drawing and its title.
#[derive(Debug, Clone)]
pub struct Plot {
    /// The title, which the page writes above the drawing.
    pub title: String,
    /// The drawing, as SVG.
    pub svg: String,
}

impl Plot {
    fn of(chart: &Chart) -> Self {
        Self { title: chart.title.clone(), svg: chart.to_string() }
    }
}

/// Drawings that are shown one above the other.
pub type Figure = Vec<Plot>;

/// Whether messages were sent back to back, so that they were not timed one by one.
fn is_back_to_back(round: &Played) -> bool {
    round.outcome.as_ref().is_ok_and(|outcome| outcome.spec.interval_ns == 0)
}

/// The charts of an answer, and the colours in which they are drawn.
#[derive(Debug)]
pub struct Plots<'a> {
    answer: &'a Answer,
    palette: &'a Palette,
}

impl<'a> Plots<'a> {
    /// The charts of `answer`, drawn in the colours of `palette`.
    pub fn new(answer: &'a Answer, palette: &'a Palette) -> Self {
        Self { answer, palette }
    }

    /// Draws all charts.
    pub fn draw(&self) -> Vec<Figure> {
        let cases = self.answer.cases();
        let each = |what: &str, of: fn(&Outcome) -> &Distribution| -> Vec<Figure> {
            cases.iter().map(|case| vec![self.percentiles(case, what, of)]).collect()
        };
        match self.answer.question.as_str() {
            "latency" => {
                let mut figures = each("latency from the intended send", |o| &o.response);
                figures.extend(cases.iter().filter_map(|case| self.timeline(case)));
                figures
            }
            "throughput" => cases.iter().map(|case| vec![self.rates(case)]).collect(),
            "fanout" => self.fanout(&cases),
            "oversubscribed" => cases.iter().map(|case| vec![self.waits(case)]).collect(),
            "churn" => {
                let mut figures = each("latency to the last that stays", |o| &o.last);
                figures.extend(each("time inside the publisher's send", |o| &o.cost));
                figures
            }
            "bridge" => {
                let is_paced = |case: &&String| {
                    !self.answer.rounds.iter().any(|r| r.case == **case && is_back_to_back(r))
                };
                let paced = cases.iter().filter(is_paced);
                paced
                    .map(|case| vec![self.percentiles(case, "latency from the send", |o| &o.one_way)])
                    .collect()
            }
            "soak" => {
                let outcomes = self.answer.rounds.iter().filter_map(|r| r.outcome.as_ref().ok());
                outcomes.flat_map(course).collect()
            }
            _ => each("latency", |o| &o.response),
        }
    }

    fn line(&self, who: &Contestant, points: Vec<(f64, f64)>, dots: bool) -> Line {
        Line { name: who.name(), label: String::new(), class: self.palette.class(who), points, dots }
    }

    fn fanout(&self, cases: &[String]) -> Vec<Figure> {
        let mark = (50_000.0, "50 us: what listeners in the dozens ask for".to_owned());
        let cost = |o: &Outcome| o.cost.p50 as f64;
        let last = |o: &Outcome| o.last.p50 as f64;
        let mut figures = vec![
            vec![self.against_receivers("Latency to the last receiver, median", Some(mark), last)],
            vec![self.against_receivers("Time inside the publisher's send, median", None, cost)],
        ];
        if let Some(most) = cases.last() {
            figures.push(vec![self.percentiles(most, "latency to the last receiver", |o| &o.last)]);
            figures.push(vec![self.percentiles(most, "time inside the publisher's send", |o| &o.cost)]);
        }
        figures
    }

    /// Makes a plot of percentiles. Each percentile is the median over the rounds that count, as in the tables.
    fn percentiles(&self, case: &str, what: &str, of: fn(&Outcome) -> &Distribution) -> Plot {
        let mut lines = Vec::new();
        let mut most: f64 = 0.5;
        for who in &self.answer.contestants(case) {
            let rounds = self.answer.comparable(case, who);
            let curves: Vec<Vec<(f64, u64)>> =
                rounds.iter().map(|(_, o)| of(o)).filter(|d| d.count > 0).map(Distribution::curve).collect();
            // A round that lost messages has fewer percentiles than the other rounds.
            let Some(first) = curves.iter().min_by_key(|curve| curve.len()) else { continue };
            let point = |(i, (q, _)): (usize, &(f64, u64))| {
                Some((*q, median(curves.iter().map(|curve| curve[i].1))? as f64))
            };
            let points: Vec<(f64, f64)> = first.iter().enumerate().filter_map(point).collect();
            most = points.iter().map(|(q, _)| *q).fold(most, f64::max);
            lines.push(self.line(who, points, false));
        }
        let values: Vec<f64> = lines.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y)).collect();
        let x = Axis {
            label: "percentile".into(),
            scale: Scale::Nines,
            unit: Unit::Quantile,
            low: 0.0,
            high: most,
        };
        Plot::of(&Chart {
            lines: ours_last(lines),
            ..Chart::new(format!("{case}: {what}"), x, Axis::times("", values), HEIGHT)
        })
    }

    /// Draws shmcast's median round over time. The first plot has the worst latencies, and the second has the machine's hiccups.
    fn timeline(&self, case: &str) -> Option<Figure> {
        let outcome = shown_in_time(self.answer, case)?;
        let who = outcome.spec.contestant.clone();
        if outcome.worst.is_empty() {
            return None;
        }
        let seconds = outcome.spec.messages as f64 * outcome.spec.interval_ns as f64 / 1e9;
        let part = seconds / outcome.worst.len() as f64;
        let worst = outcome.worst.iter().enumerate();
        let points = worst.map(|(i, ns)| ((i as f64 + 0.5) * part, *ns as f64)).collect();
        let y = Axis::times("", outcome.worst.iter().map(|ns| *ns as f64).filter(|ns| *ns > 0.0));
        let title = format!("{case}: worst latency over one round of {}", who.name());
        let over = Chart {
            lines: vec![self.line(&who, points, false)],
            ..Chart::new(title, seconds_axis("", seconds), y, 170.0)
        };
        Some(vec![Plot::of(&over), hiccups(outcome, seconds)])
    }

    fn rates(&self, case: &str) -> Plot {
        let bar = |who: &Contestant| {
            let rounds = self.answer.comparable(case, who);
            let rates: Vec<f64> = rounds.iter().map(|(_, o)| o.rate / 1e6).collect();
            Some(Bar {
                name: short(who),
                class: self.palette.class(who),
                value: median(rates.iter().copied())?,
                range: rates.iter().fold((f64::INFINITY, 0.0), |(low, high), r| (low.min(*r), high.max(*r))),
            })
        };
        let mut all: Vec<Bar> = self.answer.contestants(case).iter().filter_map(bar).collect();
        all.sort_by(|a, b| b.value.total_cmp(&a.value));
        let title = format!("{case}: millions of messages a second, nothing lost; the line spans all rounds");
        Plot { svg: bars(&title, &all), title }
    }

    fn against_receivers(&self, title: &str, mark: Option<(f64, String)>, of: fn(&Outcome) -> f64) -> Plot {
        let cases = self.answer.cases();
        let mut who: Vec<Contestant> = Vec::new();
        for found in cases.iter().flat_map(|case| self.answer.contestants(case)) {
            if !who.contains(&found) {
                who.push(found);
            }
        }
        let line = |who: &Contestant| {
            let point = |case: &String| {
                let receivers = self.answer.median(case, who, |o| o.spec.receivers as f64)?;
                Some((receivers, self.answer.median(case, who, of)?))
            };
            self.line(who, cases.iter().filter_map(point).collect(), true)
        };
        let lines: Vec<Line> = who.iter().map(line).collect();
        let all = || lines.iter().flat_map(|line| &line.points);
        let x = Axis {
            label: "receivers".into(),
            scale: Scale::Log,
            unit: Unit::Count,
            low: 1.0,
            high: all().map(|(x, _)| *x).fold(2.0, f64::max),
        };
        let y = Axis::times("", all().map(|(_, y)| *y).chain(mark.iter().map(|(value, _)| *value)));
        let chart = Chart::new(title.into(), x, y, HEIGHT);
        Plot::of(&Chart { marks: mark.into_iter().collect(), lines: ours_last(lines), ..chart })
    }

    /// Makes a plot with a dot for each way to wait. The position of a dot shows the latency and the CPU time.
    fn waits(&self, case: &str) -> Plot {
        let dot = |who: &Contestant| {
            let cost = self.answer.median(case, who, cpu_ns)?;
            let latency = self.answer.median(case, who, |o| o.last.p50 as f64)?;
            let switches = self.answer.median(case, who, switches)?;
            let line = self.line(who, vec![(cost, latency)], true);
            let name = format!("{}, {switches:.2} switches a message", line.name);
            Some(Line { name, label: who.wait.name().into(), ..line })
        };
        let lines: Vec<Line> = self.answer.contestants(case).iter().filter_map(dot).collect();
        let x = Axis::times("CPU time a message and receiver", lines.iter().map(|line| line.points[0].0));
        let y = Axis::times("", lines.iter().map(|line| line.points[0].1));
        let title = format!("{case}: median latency to the last receiver, against CPU time");
        Plot::of(&Chart { lines: ours_last(lines), ..Chart::new(title, x, y, HEIGHT) })
    }
}

/// Returns a contestant's name without the path of its program.
fn short(who: &Contestant) -> String {
    let other = if who.transport.contains('@') { " (other build)" } else { "" };
    format!("{}/{}{other}", who.transport_name(), who.wait.name())
}

/// Moves shmcast's lines to the end, so that they are drawn above the others.
fn ours_last(mut lines: Vec<Line>) -> Vec<Line> {
    lines.sort_by_key(|line| line.name.starts_with(SHMCAST));
    lines
}

/// Returns the round of shmcast that is drawn over time: the one with the median latency of this case. A soak has only one round.
pub fn shown_in_time<'a>(answer: &'a Answer, case: &str) -> Option<&'a Outcome> {
    let who = answer.contestants(case).into_iter().find(|who| who.transport == SHMCAST)?;
    let mut rounds = answer.comparable(case, &who);
    rounds.sort_by_key(|(_, outcome)| outcome.response.p50);
    rounds.get(rounds.len().saturating_sub(1) / 2).map(|(_, outcome)| *outcome)
}

fn seconds_axis(label: &str, high: f64) -> Axis {
    Axis { label: label.into(), scale: Scale::Linear, unit: Unit::Seconds, low: 0.0, high: high.max(1e-3) }
}

/// Draws the stretches of time in which a spinning process did not run.
fn hiccups(outcome: &Outcome, seconds: f64) -> Plot {
    let of = |log: &HiccupLog, class: &str| -> Vec<_> {
        log.longest.iter().map(|(at, length)| (*at as f64 / 1e9, *length as f64, class.to_owned())).collect()
    };
    let mut stems = of(&outcome.published.hiccups, "publisher");
    stems.extend(of(&outcome.received.hiccups, "receiver"));
    let counts = [&outcome.published.hiccups, &outcome.received.hiccups];
    let [published, received] = counts.map(|log| grouped(log.count as f64, 0));
    let title =
        format!("Hiccups: {published} of the publisher's CPU (blue), {received} of the receiver's (red)");
    let y = Axis::times("", [1_000.0, 100_000.0].into_iter().chain(stems.iter().map(|stem| stem.1)));
    let x = seconds_axis("time in the round", seconds);
    Plot::of(&Chart { stems, ..Chart::new(title, x, y, 150.0) })
}

/// Draws a soak from beginning to end: latencies, memory and hiccups.
fn course(outcome: &Outcome) -> Vec<Figure> {
    let series = &outcome.series;
    let Some(seconds) = series.last().map(|moment| moment.at_ns as f64 / 1e9) else { return Vec::new() };
    let line = |name: &str, class: &str, of: fn(&Moment) -> f64| {
        let known = series.iter().map(|moment| (moment.at_ns as f64 / 1e9, of(moment)));
        let points = known.filter(|(_, value)| *value > 0.0).collect();
        Line { name: name.into(), label: name.into(), class: class.into(), points, dots: false }
    };
    let latencies = vec![
        line("max", "s-max", |moment| moment.response.max as f64),
        line("p99", "s-p99", |moment| moment.response.p99 as f64),
        line("p50", "s-p50", |moment| moment.response.p50 as f64),
    ];
    let values: Vec<f64> = latencies.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y)).collect();
    let who = &outcome.spec.contestant;
    let receivers = match outcome.spec.receivers {
        1 => "1 receiver".into(),
        many => format!("{many} receivers"),
    };
    let title = format!("{}, {receivers}: latency by window", who.name());
    let over = Chart {
        lines: latencies,
        ..Chart::new(title, seconds_axis("", seconds), Axis::times("", values), 220.0)
    };
    let memory = vec![
        line("publisher", "s-p99", |moment| moment.publisher_kib as f64 / 1024.0),
        line("largest receiver", "s-p50", |moment| moment.receiver_kib as f64 / 1024.0),
    ];
    let most = memory.iter().flat_map(|line| line.points.iter().map(|(_, y)| *y)).fold(1.0, f64::max);
    let y =
        Axis { label: String::new(), scale: Scale::Linear, unit: Unit::Count, low: 0.0, high: most * 1.2 };
    let beside = Chart {
        lines: memory,
        ..Chart::new("Resident memory in MiB".into(), seconds_axis("time", seconds), y, 190.0)
    };
    vec![vec![Plot::of(&over), hiccups(outcome, seconds)], vec![Plot::of(&beside)]]
}
