//! Where shmcast is ahead, and where it is not: each figure that a question is asked for, beside that of the best other.
//! The ideal ring is a bound and not a contestant, so it does not count as another.

use crate::questions::oversubscribed::cpu_ns;
use crate::questions::table::ns;
use crate::rig::plan::Answer;
use crate::rig::round::Outcome;
use crate::rig::spec::{Contestant, Wait};
use crate::transport::{IDEAL, SHMCAST};

/// A figure, and how we enter for it. Which way of waiting that is stands here and is not chosen by the result.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// The question it belongs to.
    pub question: &'static str,
    /// Its name.
    pub name: &'static str,
    /// How our receivers wait.
    pub ours: Wait,
    /// What it is of a round.
    pub of: fn(&Outcome) -> f64,
    /// Whether more is better.
    pub more: bool,
}

/// All figures that are compared.
pub const FIGURES: [Figure; 10] = [
    Figure { question: "latency", name: "p50", ours: Wait::Spin, of: |o| o.response.p50 as f64, more: false },
    Figure { question: "latency", name: "p99", ours: Wait::Spin, of: |o| o.response.p99 as f64, more: false },
    Figure {
        question: "throughput",
        name: "messages a second",
        ours: Wait::Burst,
        of: |o| o.rate,
        more: true,
    },
    Figure {
        question: "fanout",
        name: "send p50",
        ours: Wait::Yield,
        of: |o| o.cost.p50 as f64,
        more: false,
    },
    Figure {
        question: "fanout",
        name: "last p50",
        ours: Wait::Yield,
        of: |o| o.last.p50 as f64,
        more: false,
    },
    Figure {
        question: "fanout",
        name: "last p99",
        ours: Wait::Yield,
        of: |o| o.last.p99 as f64,
        more: false,
    },
    Figure {
        question: "oversubscribed",
        name: "last p50",
        ours: Wait::Yield,
        of: |o| o.last.p50 as f64,
        more: false,
    },
    Figure { question: "oversubscribed", name: "CPU a message", ours: Wait::Park, of: cpu_ns, more: false },
    Figure { question: "churn", name: "send p50", ours: Wait::Yield, of: |o| o.cost.p50 as f64, more: false },
    Figure { question: "churn", name: "last p50", ours: Wait::Yield, of: |o| o.last.p50 as f64, more: false },
];

impl Figure {
    /// A value for people.
    pub fn show(&self, value: f64) -> String {
        if self.more { format!("{:.2} M/s", value / 1e6) } else { ns(value) }
    }
}

/// How it stands between two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Ours is better in every lap.
    Ahead,
    /// The laps disagree.
    Level,
    /// There is one lap or none in which both took part undisturbed.
    Unclear,
    /// Ours is worse in every lap.
    Behind,
}

impl Standing {
    /// As printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ahead => "ahead",
            Self::Level => "level",
            Self::Unclear => "too few laps",
            Self::Behind => "behind",
        }
    }

    /// From the ratios of ours to theirs, one a lap.
    fn of(ratios: &[f64], more: bool) -> Self {
        let better = |ratio: &f64| if more { *ratio > 1.0 } else { *ratio < 1.0 };
        let worse = |ratio: &f64| if more { *ratio < 1.0 } else { *ratio > 1.0 };
        match ratios {
            [] | [_] => Self::Unclear,
            all if all.iter().all(better) => Self::Ahead,
            all if all.iter().all(worse) => Self::Behind,
            _ => Self::Level,
        }
    }
}

/// One figure of one case.
#[derive(Debug, Clone)]
pub struct Contest {
    /// Which figure.
    pub figure: Figure,
    /// Of which case.
    pub case: String,
    /// Our median.
    pub ours: f64,
    /// The best other, if anybody took part, and its median.
    pub best: Option<(String, f64)>,
    /// Median over laps of ours over theirs.
    pub ratio: Option<f64>,
    /// Median over laps of ours over the ideal ring's.
    pub over_ideal: Option<f64>,
    /// How it stands.
    pub standing: Standing,
    /// Whether both figures come from quiet rounds.
    pub is_quiet: bool,
}

/// All contests of an answer.
pub fn contests(answer: &Answer) -> Vec<Contest> {
    let figures = FIGURES.iter().filter(|figure| figure.question == answer.question);
    let of_case =
        |case: &String| figures.clone().filter_map(|f| contest(answer, case, *f)).collect::<Vec<_>>();
    answer.cases().iter().flat_map(of_case).collect()
}

fn contest(answer: &Answer, case: &str, figure: Figure) -> Option<Contest> {
    let us = Contestant::new(SHMCAST, figure.ours);
    let ours = answer.median(case, &us, figure.of)?;
    let contestants = answer.contestants(case);
    let others = contestants.iter().filter(|who| ![SHMCAST, IDEAL].contains(&who.transport_name()));
    let value = |who: &&Contestant| Some(((*who).clone(), answer.median(case, who, figure.of)?));
    let best = others.filter_map(|who| value(&who)).reduce(|a, b| {
        let b_is_better = if figure.more { b.1 > a.1 } else { b.1 < a.1 };
        if b_is_better { b } else { a }
    });
    let ideal = contestants.iter().find(|who| who.transport_name() == IDEAL && who.wait == figure.ours);
    let ratios = best.as_ref().map(|(who, _)| answer.ratios(case, (&us, who), figure.of)).unwrap_or_default();
    Some(Contest {
        figure,
        case: case.into(),
        ours,
        ratio: crate::rig::stats::median(ratios.iter().copied()),
        over_ideal: ideal.and_then(|ideal| answer.ratio(case, (&us, ideal), figure.of)),
        standing: Standing::of(&ratios, figure.more),
        is_quiet: answer.is_quiet(case, &us)
            && best.as_ref().is_none_or(|(who, _)| answer.is_quiet(case, who)),
        best: best.map(|(who, value)| (who.name(), value)),
    })
}

/// The contests as rows of text, under [`HEADER`].
pub fn rows(answer: &Answer) -> Vec<([String; 8], Standing)> {
    let times = |ratio: Option<f64>| ratio.map_or("-".into(), |ratio| format!("{ratio:.2}"));
    let row = |contest: Contest| {
        let best = contest.best.as_ref();
        let standing = if best.is_none() { "-" } else { contest.standing.name() };
        let quiet = if contest.is_quiet || answer.quick { "" } else { " !" };
        let cells = [
            answer.question.clone(),
            contest.case.clone(),
            contest.figure.name.into(),
            contest.figure.show(contest.ours),
            best.map_or("-".into(), |(who, value)| format!("{} {who}", contest.figure.show(*value))),
            times(contest.ratio),
            times(contest.over_ideal),
            format!("{standing}{quiet}"),
        ];
        (cells, contest.standing)
    };
    contests(answer).into_iter().map(row).collect()
}

/// The columns of [`rows`].
pub const HEADER: [&str; 8] = [
    "question",
    "case",
    "figure",
    "shmcast",
    "best other",
    "shmcast / other",
    "shmcast / ideal",
    "shmcast is",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lead_that_one_lap_denies() {
        assert_eq!(Standing::of(&[0.8, 0.9, 1.1], false), Standing::Level);
        assert_eq!(Standing::of(&[0.8, 0.9], false), Standing::Ahead);
        assert_eq!(Standing::of(&[0.8, 0.9], true), Standing::Behind);
        assert_eq!(Standing::of(&[0.1], false), Standing::Unclear);
    }
}
