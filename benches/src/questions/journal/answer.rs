//! The answer to the question about the journal. Each row has its requirement, and the limit that was measured in the same lap.

use crate::rig::journal::limits::Limits;
use crate::rig::journal::store::Store;
use crate::rig::machine::Machine;
use crate::rig::probe::Quiet;
use crate::rig::stats::median;
use serde::{Deserialize, Serialize};

/// The answer to the question about the journal.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JournalAnswer {
    /// The name of the question: `journal`.
    pub question: String,
    /// The time when the question was asked, in seconds since 1970.
    pub asked_at: u64,
    /// Whether only delivery was checked. If so, the figures mean nothing.
    pub quick: bool,
    /// The machine on which the question was asked.
    pub machine: Machine,
    /// The file systems with the journals: one on a drive, and one in memory.
    pub stores: Vec<Store>,
    /// The limits of the first file system in `stores`, one entry for each lap.
    pub limits: Vec<Limits>,
    /// The rows.
    pub rows: Vec<Row>,
    /// Rows that could not be measured here, each with its reason.
    pub skipped: Vec<String>,
    /// Failures of rows: a journal that differs from the published messages, or a process that ended too early.
    pub failed: Vec<String>,
}

/// The side of its bound on which a figure must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sense {
    /// The figure must be the bound or more.
    AtLeast,
    /// The figure must be the bound or less.
    AtMost,
    /// There is no bound: the figure is shown for comparison.
    Shown,
}

/// A measure, with one figure for each lap.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Row {
    /// Number of the requirement.
    pub number: u32,
    /// The name of the measure.
    pub measure: String,
    /// The requirement, in words.
    pub must: String,
    /// The figure's unit.
    pub unit: String,
    /// The side of its bound on which the figure must be.
    pub sense: Sense,
    /// The figures, one for each lap.
    pub laps: Vec<Lap>,
}

/// The figure of one lap.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Lap {
    /// The figure.
    pub value: f64,
    /// The bound for the figure, computed from the limits of the same lap.
    pub bound: f64,
    /// The limit in words, or other facts.
    pub limit: String,
    /// The state of the machine during the lap: quiet or not.
    pub quiet: Quiet,
}

/// The result of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The median of the laps reached its bound.
    Passes,
    /// The median did not reach the bound.
    FellShort,
    /// The row has no bound.
    Shown,
}

impl Verdict {
    /// Returns the words that are printed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passes => "pass",
            Self::FellShort => "fell short",
            Self::Shown => "-",
        }
    }
}

impl Row {
    /// Returns the median of the figures.
    pub fn value(&self) -> f64 {
        median(self.laps.iter().map(|lap| lap.value)).unwrap_or_default()
    }

    /// Returns the median of the bounds.
    pub fn bound(&self) -> f64 {
        median(self.laps.iter().map(|lap| lap.bound)).unwrap_or_default()
    }

    /// Returns the verdict of a row. Each lap has a margin: the difference between its figure and its bound. The median of the margins
    /// decides.
    pub fn verdict(&self) -> Verdict {
        let margin = |lap: &Lap| match self.sense {
            Sense::AtLeast => lap.value - lap.bound,
            Sense::AtMost | Sense::Shown => lap.bound - lap.value,
        };
        match (self.sense, median(self.laps.iter().map(margin))) {
            (Sense::Shown, _) | (_, None) => Verdict::Shown,
            (_, Some(margin)) if margin >= 0.0 => Verdict::Passes,
            _ => Verdict::FellShort,
        }
    }

    /// Whether the machine was quiet in every lap.
    pub fn is_quiet(&self) -> bool {
        self.laps.iter().all(|lap| lap.quiet.is_quiet())
    }
}

impl JournalAnswer {
    /// Makes an answer without figures.
    pub fn begin(quick: bool) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            question: "journal".into(),
            asked_at: now.as_secs(),
            quick,
            machine: Machine::look(),
            stores: Vec::new(),
            limits: Vec::new(),
            rows: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Notes a row that could not be measured. Notes each row only once.
    pub fn skip(&mut self, what: String) {
        if !self.skipped.contains(&what) {
            self.skipped.push(what);
        }
    }

    /// Adds a lap to the row that has this number and this `measure`. The first lap creates the row.
    pub fn add(&mut self, number: u32, measure: &str, (must, unit): (&str, &str), sense: Sense, lap: Lap) {
        let known = self.rows.iter_mut().find(|row| row.number == number && row.measure == measure);
        if let Some(row) = known {
            row.laps.push(lap);
            return;
        }
        let [measure, must, unit] = [measure, must, unit].map(str::to_owned);
        self.rows.push(Row { number, measure, must, unit, sense, laps: vec![lap] });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(sense: Sense, figures: &[(f64, f64)]) -> Row {
        let lap = |&(value, bound)| Lap { value, bound, limit: String::new(), quiet: Quiet::default() };
        let [measure, must, unit] = [(); 3].map(|()| String::new());
        Row { number: 1, measure, must, unit, sense, laps: figures.iter().map(lap).collect() }
    }

    #[test]
    fn a_figure_is_judged_by_the_limit_of_its_own_lap() {
        // In this example, the disk was twice as fast in the second and third lap.
        let laps = [(90.0, 91.0), (190.0, 180.0), (191.0, 182.0)];
        assert_eq!(row(Sense::AtLeast, &laps).verdict(), Verdict::Passes);
        assert_eq!(row(Sense::AtMost, &laps).verdict(), Verdict::FellShort);
        assert_eq!(row(Sense::Shown, &laps).verdict(), Verdict::Shown);
        assert_eq!(row(Sense::AtLeast, &[(179.0, 180.0)]).verdict(), Verdict::FellShort);
        assert_eq!(row(Sense::AtLeast, &[]).verdict(), Verdict::Shown);
    }
}
