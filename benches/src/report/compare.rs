//! Compares two sets of answers, figure by figure, to find what became slower. A change counts only if it is larger than the noise: every
//! round of one set must be better than every round of the other, and the medians must differ by more than 3 %.
//!
//! If the ideal ring took part, the comparison uses each figure's ratio to the ideal ring in the same lap, because the speed of a machine
//! changes over time.

use super::contests::{FIGURES, Measure};
use super::files::load;
use crate::rig::names::{IDEAL, SHMCAST, is_shmcast};
use crate::rig::plan::Answer;
use crate::rig::round::Outcome;
use crate::rig::spec::Contestant;
use crate::rig::stats::median;
use anyhow::{Result, ensure};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// The least relative difference between medians that counts as a change.
const LEAST: f64 = 0.03;
/// The least number of rounds that each set must have for a figure. With two rounds, noise alone would often look like a change.
const ROUNDS: usize = 3;

/// The change of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The figure is better, by more than the noise.
    Better,
    /// The change is within the noise.
    Same,
    /// The figure is worse, by more than the noise.
    Worse,
}

/// One figure in the old set and in the new set.
#[derive(Debug, Clone, Serialize)]
pub struct Change {
    /// The question.
    pub question: String,
    /// The case.
    pub case: String,
    /// The contestant.
    pub contestant: String,
    /// The figure's name.
    pub figure: String,
    /// The unit of the figure.
    pub unit: String,
    /// Whether `old` and `new` are ratios to the ideal ring.
    pub over_ideal: bool,
    /// Median, least and greatest value in the old set.
    pub old: [f64; 3],
    /// Median, least and greatest value in the new set.
    pub new: [f64; 3],
    /// The verdict.
    pub verdict: Verdict,
}

/// The changes, and the cases that could not be compared.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The changes of all figures.
    pub changes: Vec<Change>,
    /// The cases that could not be compared, with the reason.
    pub skipped: Vec<String>,
}

/// Compares the answers in two directories (or single files).
///
/// # Errors
/// When either set cannot be read, or when the sets have no figure in common.
pub fn compare(old: &Path, new: &Path) -> Result<Comparison> {
    let (old_answers, new_answers) = (load(old)?, load(new)?);
    let mut comparison = Comparison { changes: Vec::new(), skipped: Vec::new() };
    let mut pairs = 0;
    for (_, new) in &new_answers {
        for (_, old) in old_answers.iter().filter(|(_, old)| old.question == new.question) {
            pairs += 1;
            comparison.add(old, new);
        }
    }
    ensure!(pairs > 0, "{} and {} answer no question in common", old.display(), new.display());
    Ok(comparison)
}

impl Comparison {
    /// Returns the number of shmcast's figures that became worse. Other transports do not count.
    pub fn worse(&self) -> usize {
        let ours = |change: &&Change| change.contestant.split('/').next().is_some_and(is_shmcast);
        self.changes.iter().filter(ours).filter(|change| change.verdict == Verdict::Worse).count()
    }

    fn add(&mut self, old: &Answer, new: &Answer) {
        let question = &new.question;
        let mut few = 0;
        if old.quick || new.quick {
            return self.skipped.push(format!("{question}: a --quick answer has no times"));
        }
        if old.machine.cpu != new.machine.cpu || old.machine.cpus != new.machine.cpus {
            let (then, now) = (&old.machine, &new.machine);
            return self.skipped.push(format!(
                "{question}: another machine ({} x {} then, {} x {} now)",
                then.cpus, then.cpu, now.cpus, now.cpu
            ));
        }
        for case in new.cases() {
            let (then, now) = (old.placement(&case), new.placement(&case));
            if then != now {
                let name = |p: Option<crate::rig::probe::Placement>| p.map_or("never quiet", |p| p.name());
                let reason = format!("CPUs were {} then and are {} now", name(then), name(now));
                self.skipped.push(format!("{question}, {case}: {reason}"));
                continue;
            }
            for who in &new.contestants(&case) {
                few += self.add_contestant((old, new), &case, who);
            }
        }
        if few > 0 {
            self.skipped.push(format!(
                "{question}: {few} figures with fewer than {ROUNDS} comparable rounds on a side"
            ));
        }
    }

    /// Adds one contestant's figures. Returns the number of figures with too few rounds.
    fn add_contestant(&mut self, (old, new): (&Answer, &Answer), case: &str, who: &Contestant) -> usize {
        let mut few = 0;
        // `FIGURES` also lists some figures for other calls of shmcast. Here, shmcast with other calls is a contestant of its own, so these
        // entries are left out.
        for figure in FIGURES.iter().filter(|f| f.question == new.question && f.by == SHMCAST) {
            let over_ideal =
                is_shmcast(who.transport_name()) && has_ideal(old, case, who) && has_ideal(new, case, who);
            let values = |answer: &Answer| {
                if over_ideal {
                    answer.ratios(case, (who, &Contestant::new(IDEAL, who.wait)), figure.of)
                } else {
                    let rounds = answer.comparable(case, who);
                    rounds.iter().map(|(_, o): &(_, &Outcome)| (figure.of)(o)).collect()
                }
            };
            let (then, now) = (values(old), values(new));
            if then.len() < ROUNDS || now.len() < ROUNDS {
                few += usize::from(!then.is_empty() && !now.is_empty());
                continue;
            }
            self.changes.push(Change {
                question: new.question.clone(),
                case: case.into(),
                contestant: who.name(),
                figure: figure.name.into(),
                unit: if over_ideal { "of the ideal ring's".into() } else { figure.measure.unit().into() },
                over_ideal,
                old: summary(&then),
                new: summary(&now),
                verdict: verdict(&then, &now, figure.measure == Measure::Rate),
            });
        }
        few
    }
}

fn has_ideal(answer: &Answer, case: &str, who: &Contestant) -> bool {
    answer.contestants(case).contains(&Contestant::new(IDEAL, who.wait))
}

/// Returns the median, least and greatest of the values, which must not be empty.
fn summary(values: &[f64]) -> [f64; 3] {
    let middle = median(values.iter().copied()).unwrap_or(0.0);
    [middle, values.iter().copied().fold(f64::INFINITY, f64::min), values.iter().copied().fold(0.0, f64::max)]
}

fn verdict(then: &[f64], now: &[f64], more: bool) -> Verdict {
    let ([old, old_least, old_most], [new, new_least, new_most]) = (summary(then), summary(now));
    let (rose, fell) = (new_least > old_most, new_most < old_least);
    let apart = (new - old).abs() > LEAST * old;
    match (rose && apart, fell && apart) {
        (true, _) if more => Verdict::Better,
        (true, _) => Verdict::Worse,
        (_, true) if more => Verdict::Worse,
        (_, true) => Verdict::Better,
        _ => Verdict::Same,
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header([
            "question",
            "case",
            "contestant",
            "figure, unit",
            "then (rounds)",
            "now (rounds)",
            "now / then",
            "is",
        ]);
        let of = |verdict| self.changes.iter().filter(move |change| change.verdict == verdict);
        for change in of(Verdict::Worse).chain(of(Verdict::Better)) {
            let show = |[middle, least, most]: [f64; 3]| {
                let figure =
                    FIGURES.iter().find(|f| f.question == change.question && f.name == change.figure);
                let value = |v: f64| match figure {
                    Some(figure) if !change.over_ideal => figure.measure.show(v),
                    _ => format!("{v:.2}"),
                };
                format!("{} ({} - {})", value(middle), value(least), value(most))
            };
            table.add_row([
                change.question.clone(),
                change.case.clone(),
                change.contestant.clone(),
                format!("{}, {}", change.figure, change.unit),
                show(change.old),
                show(change.new),
                format!("{:.2}", change.new[0] / change.old[0].max(f64::MIN_POSITIVE)),
                if change.verdict == Verdict::Worse { "WORSE".into() } else { "better".to_owned() },
            ]);
        }
        if table.row_count() > 0 {
            writeln!(f, "{table}")?;
        }
        let count = |verdict| of(verdict).count();
        write!(
            f,
            "{} figures compared: {} worse, {} better, {} within the noise of the rounds",
            self.changes.len(),
            count(Verdict::Worse),
            count(Verdict::Better),
            count(Verdict::Same)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_taken_for_a_regression() {
        let then = [100.0, 110.0, 105.0];
        assert_eq!(verdict(&then, &[108.0, 140.0, 150.0], false), Verdict::Same); // one round lies between
        assert_eq!(verdict(&then, &[111.0, 110.5, 110.2], false), Verdict::Worse);
        assert_eq!(verdict(&then, &[111.0, 120.0, 130.0], true), Verdict::Better);
        assert_eq!(verdict(&then, &[60.0, 90.0, 99.0], false), Verdict::Better);
        assert_eq!(verdict(&[100.0; 3], &[101.0; 3], false), Verdict::Same); // apart, but by too little
    }
}
