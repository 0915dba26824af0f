//! Compares each figure of a question with the figure of the best other transport. Gives a verdict, and the range of the gains. The ideal
//! ring is a bound and not a product, so it does not count as another transport.

use crate::questions::oversubscribed::cpu_ns;
use crate::questions::table::{Unit, or_dash};
use crate::rig::names::{IDEAL, SHMCAST, SHMCAST_PLAIN, SHMCAST_UNTIMED, is_shmcast};
use crate::rig::plan::Answer;
use crate::rig::round::Outcome;
use crate::rig::spec::{Contestant, Wait};

/// The kind of a figure, and its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// A time. Less is better.
    Time(Unit),
    /// A rate in messages a second, which is shown in millions. More is better.
    Rate,
}

impl Measure {
    /// Returns the unit in which [`show`](Self::show) writes values.
    pub const fn unit(self) -> &'static str {
        match self {
            Self::Time(unit) => unit.symbol(),
            Self::Rate => "M msg/s",
        }
    }

    /// Formats a value without its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Time(unit) => unit.show(value),
            Self::Rate => format!("{:.2}", value / 1e6),
        }
    }

    /// Returns how many times better `ours` is than `theirs`.
    fn gain(self, ours: f64, theirs: f64) -> Option<f64> {
        let (above, below) = if self == Self::Rate { (ours, theirs) } else { (theirs, ours) };
        (above > 0.0 && below > 0.0).then(|| above / below)
    }
}

/// A figure, and the way to wait that our receivers use for this figure. The way is fixed, and does not depend on the result.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// The question that has this figure.
    pub question: &'static str,
    /// The name.
    pub name: &'static str,
    /// The transport with our calls for this figure.
    pub by: &'static str,
    /// The way in which our receivers wait.
    pub ours: Wait,
    /// The kind and unit.
    pub measure: Measure,
    /// The value in one round.
    pub of: fn(&Outcome) -> f64,
}

const fn time(
    question: &'static str,
    name: &'static str,
    ours: Wait,
    unit: Unit,
    of: fn(&Outcome) -> f64,
) -> Figure {
    Figure { question, name, by: SHMCAST, ours, measure: Measure::Time(unit), of }
}

const fn rate(name: &'static str, by: &'static str, ours: Wait) -> Figure {
    Figure { question: "throughput", name, by, ours, measure: Measure::Rate, of: |o| o.rate }
}

/// All figures that are compared. A figure is called plain if the program calls `publish` and `try_recv_into` for each message.
pub const FIGURES: [Figure; 13] = [
    time("latency", "p50", Wait::Spin, Unit::Ns, |o| o.response.p50 as f64),
    time("latency", "p99", Wait::Spin, Unit::Ns, |o| o.response.p99 as f64),
    Figure {
        by: SHMCAST_PLAIN,
        ..time("latency", "plain p50", Wait::Spin, Unit::Ns, |o| o.response.p50 as f64)
    },
    rate("rate", SHMCAST, Wait::Burst),
    rate("plain rate", SHMCAST_PLAIN, Wait::Spin),
    rate("plain rate, no times", SHMCAST_UNTIMED, Wait::Spin),
    time("fanout", "send p50", Wait::Yield, Unit::Us, |o| o.cost.p50 as f64),
    time("fanout", "last p50", Wait::Yield, Unit::Us, |o| o.last.p50 as f64),
    time("fanout", "last p99", Wait::Yield, Unit::Us, |o| o.last.p99 as f64),
    time("oversubscribed", "last p50", Wait::Yield, Unit::Us, |o| o.last.p50 as f64),
    time("oversubscribed", "CPU a message", Wait::Park, Unit::Us, cpu_ns),
    time("churn", "send p50", Wait::Yield, Unit::Us, |o| o.cost.p50 as f64),
    time("churn", "last p50", Wait::Yield, Unit::Us, |o| o.last.p50 as f64),
];

/// The verdict on one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Our figure is better in every lap.
    Ahead,
    /// In every lap, our figure and the best other figure differ by at most 5 %.
    Level,
    /// Our figure is better in some laps, and not in others.
    Open,
    /// Our figure is worse in every lap.
    Behind,
    /// There are fewer than two laps in which both transports took part undisturbed.
    TooFew,
    /// No other transport took part.
    Alone,
}

/// The greatest gain that counts as level, as a factor. A loss by at most the same factor also counts as level.
const LEVEL: f64 = 1.05;

impl Standing {
    /// Returns the name as it is printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Level => "level",
            Self::Open => "open",
            Self::Behind => "behind",
            Self::TooFew => "too few laps",
            Self::Alone => "-",
        }
    }

    /// Returns the class of the verdict's colour in the style sheet.
    pub const fn class(self) -> &'static str {
        match self {
            Self::Ahead => "v-ahead",
            Self::Level => "v-level",
            Self::Open => "v-open",
            Self::Behind => "v-behind",
            Self::TooFew | Self::Alone => "v-few",
        }
    }

    /// Returns the verdict for these gains, one for each lap.
    fn of(gains: &[f64]) -> Self {
        match gains {
            [] | [_] => Self::TooFew,
            all if all.iter().all(|gain| (1.0 / LEVEL..=LEVEL).contains(gain)) => Self::Level,
            all if all.iter().all(|gain| *gain > 1.0) => Self::Ahead,
            all if all.iter().all(|gain| *gain < 1.0) => Self::Behind,
            _ => Self::Open,
        }
    }
}

/// One figure of one case.
#[derive(Debug, Clone)]
pub struct Contest {
    /// The figure.
    pub figure: Figure,
    /// The case.
    pub case: String,
    /// Our median.
    pub ours: f64,
    /// The best other transport and its median, if any took part.
    pub best: Option<(String, f64)>,
    /// Our gains over the best other transport, as factors: one for each lap in which both took part.
    pub gains: Vec<f64>,
    /// The median over laps of the ratio of our figure to that of the ideal ring.
    pub over_ideal: Option<f64>,
    /// The verdict.
    pub standing: Standing,
    /// Whether both figures come from quiet rounds.
    pub is_quiet: bool,
}

impl Contest {
    /// Returns the median gain over the laps. For an even number of laps, it is the geometric mean of the two middle gains.
    pub fn gain(&self) -> Option<f64> {
        middle(&self.gains)
    }

    /// Returns the smallest and the largest gain of a lap, if there are at least two laps.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let ends = |(low, high): (f64, f64), gain: &f64| (low.min(*gain), high.max(*gain));
        (self.gains.len() > 1).then(|| self.gains.iter().fold((f64::INFINITY, 0.0), ends))
    }

    /// Returns the cells of the row, under [`HEADER`].
    pub fn cells(&self) -> [String; HEADER.len()] {
        let show = |value| self.figure.measure.show(value);
        let (who, value) =
            self.best.as_ref().map_or(("-".into(), "-".into()), |(w, v)| (w.clone(), show(*v)));
        let quiet = if self.is_quiet { "" } else { " !" };
        [
            self.case.clone(),
            self.figure.name.into(),
            format!("{}{quiet}", self.standing.name()),
            self.gain().map_or("-".into(), times),
            self.spread().map_or("-".into(), |(low, high)| {
                format!("{} to {}, {} laps", times(low), times(high), self.gains.len())
            }),
            show(self.ours),
            who,
            value,
            or_dash(self.over_ideal, 2),
        ]
    }
}

/// The columns of [`Contest::cells`].
pub const HEADER: [&str; 9] = [
    "case",
    "figure",
    "verdict",
    "times better",
    "over the laps",
    "shmcast",
    "best other",
    "its figure",
    "shmcast/ideal",
];

/// Returns the median of gains, none of which is 0. Between two middle gains, returns their geometric mean, because a gain and a loss by
/// the same factor then give 1.
fn middle(gains: &[f64]) -> Option<f64> {
    let mut sorted = gains.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    let upper = *sorted.get(half)?;
    Some(if sorted.len().is_multiple_of(2) { (sorted[half - 1] * upper).sqrt() } else { upper })
}

/// Formats a gain with about three digits.
pub fn times(gain: f64) -> String {
    match gain {
        100.0.. => format!("{gain:.0}"),
        10.0..100.0 => format!("{gain:.1}"),
        0.1..10.0 => format!("{gain:.2}"),
        _ => format!("{gain:.3}"),
    }
}

/// Returns all contests of an answer.
pub fn contests(answer: &Answer) -> Vec<Contest> {
    let figures = FIGURES.iter().filter(|figure| figure.question == answer.question);
    let of_case =
        |case: &String| figures.clone().filter_map(|f| contest(answer, case, *f)).collect::<Vec<_>>();
    answer.cases().iter().flat_map(of_case).collect()
}

fn contest(answer: &Answer, case: &str, figure: Figure) -> Option<Contest> {
    let us = Contestant::new(figure.by, figure.ours);
    let ours = answer.median(case, &us, figure.of)?;
    let contestants = answer.contestants(case);
    let others =
        contestants.iter().filter(|who| who.transport_name() != IDEAL && !is_shmcast(who.transport_name()));
    let value = |who: &&Contestant| Some(((*who).clone(), answer.median(case, who, figure.of)?));
    let best = others.filter_map(|who| value(&who)).reduce(|a, b| {
        let b_is_better = if figure.measure == Measure::Rate { b.1 > a.1 } else { b.1 < a.1 };
        if b_is_better { b } else { a }
    });
    let ideal = contestants.iter().find(|who| who.transport_name() == IDEAL && who.wait == figure.ours);
    let gains: Vec<f64> = best.iter().flat_map(|(who, _)| gains(answer, case, (&us, who), figure)).collect();
    Some(Contest {
        figure,
        case: case.into(),
        ours,
        over_ideal: ideal.and_then(|ideal| answer.ratio(case, (&us, ideal), figure.of)),
        standing: if best.is_none() { Standing::Alone } else { Standing::of(&gains) },
        is_quiet: answer.quick
            || answer.is_quiet(case, &us) && best.as_ref().is_none_or(|(who, _)| answer.is_quiet(case, who)),
        gains,
        best: best.map(|(who, value)| (who.name(), value)),
    })
}

/// Returns how many times better `us` is than `them`, once for each lap in which both have a figure.
fn gains(answer: &Answer, case: &str, (us, them): (&Contestant, &Contestant), figure: Figure) -> Vec<f64> {
    let ratios = answer.ratios(case, (us, them), figure.of);
    ratios.into_iter().filter_map(|ratio| figure.measure.gain(ratio, 1.0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_that_one_lap_denies() {
        assert_eq!(Standing::of(&[1.2, 5.5, 0.9]), Standing::Open);
        assert_eq!(Standing::of(&[1.2, 1.01]), Standing::Ahead);
        assert_eq!(Standing::of(&[0.8, 0.9]), Standing::Behind);
        assert_eq!(Standing::of(&[1.04, 0.96, 1.01]), Standing::Level);
        assert_eq!(Standing::of(&[10.0]), Standing::TooFew);
    }

    #[test]
    fn a_median_favours_neither_side() {
        assert_eq!([middle(&[]), middle(&[3.0]), middle(&[4.0, 0.25])], [None, Some(3.0), Some(1.0)]);
        assert_eq!(middle(&[9.0, 0.5, 2.0]), Some(2.0));
    }

    #[test]
    fn a_gain_is_above_one_where_ours_is_better() {
        assert_eq!(Measure::Time(Unit::Ns).gain(50.0, 100.0), Some(2.0));
        assert_eq!(Measure::Rate.gain(50.0, 100.0), Some(0.5));
        assert_eq!(Measure::Rate.gain(50.0, 0.0), None);
        assert_eq!([0.031, 1.0, 12.34, 590.4].map(times), ["0.031", "1.00", "12.3", "590"]);
    }
}
