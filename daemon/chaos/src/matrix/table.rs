//! Reads `matrix.toml`: the features, the events, and the contents of the cells.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// A feature is a row of the matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feature {
    /// The name in `matrix.toml`.
    pub name: String,
    /// A description of the feature.
    pub what: String,
    /// The group of the feature. A rule can name a group in place of all its features.
    pub group: String,
}

/// An event is a column of the matrix.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// `group.name`; each group is a table of `MATRIX.md`.
    pub name: String,
    /// A description of the event.
    pub what: String,
}

impl Event {
    /// Returns the name of the event's group, which is a table of `MATRIX.md`.
    pub fn group(&self) -> &str {
        self.name.split('.').next().unwrap_or_default()
    }
}

/// Cells whose feature and event cannot meet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Never {
    /// The features, or groups of features.
    pub of: Vec<String>,
    /// The events, or groups of events.
    pub at: Vec<String>,
    /// The reason why these features and events cannot meet.
    pub why: String,
}

/// Cells that a test shows.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shown {
    /// The test, as `FILE: TEST`.
    pub test: String,
    /// The features, or groups of features.
    pub of: Vec<String>,
    /// The events, or groups of events.
    pub at: Vec<String>,
}

/// The contents of `matrix.toml`. If several entries name a cell, tests and stories count first, then `open`, then `never`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// The greatest allowed number of open cells. It becomes smaller over time.
    pub open_at_most: usize,
    /// The rows, in their order.
    pub feature: Vec<Feature>,
    /// The columns, in their order.
    pub event: Vec<Event>,
    /// The cells whose feature and event cannot meet.
    pub never: Vec<Never>,
    /// The cells that tests show.
    pub shown: Vec<Shown>,
    /// For each feature, the events that can happen together with it, but that no test or story shows yet.
    pub open: BTreeMap<String, Vec<String>>,
}

impl Table {
    /// Reads the text of `matrix.toml`.
    ///
    /// # Errors
    /// A description of the mistake in the text.
    pub fn read(text: &str) -> Result<Self> {
        let table: Self = toml::from_str(text)?;
        let tests: BTreeSet<&str> = table.shown.iter().map(|shown| shown.test.as_str()).collect();
        ensure!(tests.len() == table.shown.len(), "a test stands there twice");
        for never in &table.never {
            ensure!(!never.why.is_empty(), "cells of {:?} are impossible without a reason", never.of);
        }
        for (of, at) in table.rules() {
            table.cells(of, at)?;
        }
        Ok(table)
    }

    fn rules(&self) -> impl Iterator<Item = (&[String], &[String])> {
        let never = self.never.iter().map(|it| (&it.of[..], &it.at[..]));
        let shown = self.shown.iter().map(|it| (&it.of[..], &it.at[..]));
        let open = self.open.iter().map(|(of, at)| (std::slice::from_ref(of), &at[..]));
        never.chain(shown).chain(open)
    }

    /// Returns the cells of these features at these events. Both lists can contain names of groups.
    ///
    /// # Errors
    /// The first name that is neither a feature, nor an event, nor a group.
    pub fn cells(&self, of: &[String], at: &[String]) -> Result<Vec<(&str, &str)>> {
        let (mut features, mut events) = (Vec::new(), Vec::new());
        for name in of {
            let before = features.len();
            let found = self.feature.iter().filter(|it| it.name == *name || it.group == *name);
            features.extend(found.map(|it| it.name.as_str()));
            ensure!(features.len() > before, "{name} is no feature");
        }
        for name in at {
            let before = events.len();
            let found = self.event.iter().filter(|it| it.name == *name || it.group() == name);
            events.extend(found.map(|it| it.name.as_str()));
            ensure!(events.len() > before, "{name} is no event");
        }
        Ok(features
            .into_iter()
            .flat_map(|feature| events.iter().map(move |event| (feature, *event)))
            .collect())
    }

    /// Returns the listed tests that do not exist in the tree at `root`, each with a reason.
    ///
    /// # Errors
    /// The reason why an existing file cannot be read.
    pub fn lacking(&self, root: &Path) -> Result<Vec<String>> {
        let mut lacking = Vec::new();
        for Shown { test, .. } in &self.shown {
            let (file, name) = test.split_once(": ").with_context(|| format!("{test} is not FILE: TEST"))?;
            match fs::read_to_string(root.join(file)) {
                Ok(text) if is_in(&text, file, name) => {}
                Ok(_) => lacking.push(format!("{test} is not there")),
                Err(e) => lacking.push(format!("{test}: {e}")),
            }
        }
        Ok(lacking)
    }
}

/// Whether a file has a test of this name, in the syntax of the file's language.
fn is_in(text: &str, file: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let begins =
        |line: usize, words: &[String]| words.iter().any(|word| lines[line].starts_with(word.as_str()));
    let is_marked = |line: usize, mark: &str| {
        let above = lines[..line].iter().rev().take_while(|line| !line.is_empty() && !line.starts_with('}'));
        above.clone().any(|line| line.starts_with(mark))
    };
    match file.rsplit('.').next() {
        Some("rs") => {
            // A test program without the usual harness lists its tests by name in a table. Tests in `proptest!` have the usual
            // form.
            let words = [format!("fn {name}("), format!("async fn {name}(")];
            (0..lines.len()).any(|line| {
                begins(line, &words) && (is_marked(line, "#[test]") || is_marked(line, "#[tokio::test"))
                    || begins(line, &[format!("(\"{name}\", ")])
            })
        }
        Some("py") => {
            (0..lines.len()).any(|line| begins(line, &[format!("def {name}("), format!("async def {name}(")]))
        }
        Some("go") => (0..lines.len()).any(|line| begins(line, &[format!("func {name}(t *testing.T)")])),
        Some("java") => {
            (0..lines.len()).any(|line| begins(line, &[format!("void {name}(")]) && is_marked(line, "@Test"))
        }
        _ => false,
    }
}
