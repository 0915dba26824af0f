//! The result of a campaign: the number of stories, the violations, and the pairs of steps that occurred together in one story.

use crate::campaign::Played;
use crate::story::Profile;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The totals of all stories that were played.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// The number of stories of each profile.
    pub stories: BTreeMap<Profile, u64>,
    /// The number of steps in all stories.
    pub steps: u64,
    /// Stories with a violation.
    pub failed: Vec<Failure>,
    /// For each pair of steps, the number of stories that had both.
    #[serde(skip)]
    pairs: BTreeMap<(String, String), u64>,
    #[serde(skip)]
    names: BTreeSet<String>,
}

/// A story that failed.
#[derive(Debug, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The profile.
    pub profile: Profile,
    /// The violations, as they are printed.
    pub violations: Vec<String>,
}

impl Report {
    /// Adds a story.
    pub fn add(&mut self, played: &Played) {
        let story = &played.story;
        *self.stories.entry(story.profile).or_default() += 1;
        self.steps += story.steps.len() as u64;
        let names: BTreeSet<String> = story.steps.iter().map(crate::story::Step::name).collect();
        for (at, first) in names.iter().enumerate() {
            for second in names.iter().skip(at + 1) {
                *self.pairs.entry((first.clone(), second.clone())).or_default() += 1;
            }
        }
        self.names.extend(names);
        if !played.violations.is_empty() {
            let violations = played.violations.iter().map(ToString::to_string).collect();
            self.failed.push(Failure { seed: story.seed, profile: story.profile, violations });
        }
    }

    /// Returns the number of stories that were played.
    pub fn count(&self) -> u64 {
        self.stories.values().sum()
    }

    /// Returns the report in a few lines for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let by_profile: Vec<String> = self
            .stories
            .iter()
            .map(|(profile, count)| format!("{count} {profile:?}").to_lowercase())
            .collect();
        let _ = writeln!(
            text,
            "{} stories ({}), {} steps, {} failed",
            self.count(),
            by_profile.join(", "),
            self.steps,
            self.failed.len()
        );
        let mut by_name: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
        for failure in &self.failed {
            for violation in &failure.violations {
                let name = violation.split(' ').next().unwrap_or_default();
                by_name.entry(name).or_default().insert(failure.seed);
            }
        }
        for (name, seeds) in by_name {
            let some: Vec<String> = seeds.iter().take(8).map(u64::to_string).collect();
            let _ = writeln!(text, "  {name}: {} stories, seeds {}", seeds.len(), some.join(" "));
        }
        text
    }

    /// Returns a table that shows how often two steps occurred in the same story.
    pub fn coverage(&self) -> String {
        let mut text = String::from("pairs of steps by the number of stories in which both were:\n");
        let names: Vec<&String> = self.names.iter().collect();
        for (at, first) in names.iter().enumerate() {
            let mut line = format!("  {first:<10}");
            for second in &names[at + 1..] {
                let count = self.pairs.get(&((*first).clone(), (*second).clone())).copied().unwrap_or(0);
                let _ = write!(line, " {second} {count}");
            }
            let _ = writeln!(text, "{line}");
        }
        text
    }
}
