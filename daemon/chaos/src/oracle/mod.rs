//! The oracle: reads the logs of a story that is over, and says what must not have happened.
//!
//! It knows what publishers meant to do, what readers saw, what the runner did to processes, and what tools said. It knows
//! nothing of rings, segments or the daemon's state. Seven demands; each violation names the one that it breaks:
//!
//! 1. Nothing false: a message was published so, on that channel, with that sequence, by one who had not been replaced.
//! 2. Order: sequences ascend.
//! 3. Nothing silent: every missing sequence is named by exactly one event, and other publishers are announced.
//! 4. Nothing lost without cause.
//! 5. Life: calls end in time, nobody hangs or dies by himself, and in the end everybody has the last message.
//! 6. Nobody else's things are touched, and nothing is left over.
//! 7. The tools tell the truth.

mod history;
mod lives;
mod processes;
mod readers;
mod tools;

#[cfg(test)]
mod tests;

pub use history::History;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// Something that must not have happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The number of the demand.
    pub demand: u8,
    /// A short name of what is wrong. A story fails in the same way as another if one of these is the same.
    pub name: String,
    /// The actor, tool or channel concerned.
    pub who: String,
    /// The observation, with sequences.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { demand, name, who, what } = self;
        write!(f, "{name} (demand {demand}): {who}: {what}")
    }
}

/// Collects violations.
#[derive(Debug, Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, demand: u8, name: &str, who: &str, what: impl Into<String>) {
        let (name, who, what) = (name.to_owned(), who.to_owned(), what.into());
        // One of a kind tells as much as a thousand.
        if self.0.iter().filter(|v| v.name == name && v.who == who).count() < 3 {
            self.0.push(Violation { demand, name, who, what });
        }
    }
}

/// Judges the logs in this directory.
///
/// # Errors
/// Where the logs cannot be read.
pub fn judge(logs: &Path) -> Result<Vec<Violation>> {
    Ok(judge_history(&History::read(logs)?))
}

/// Judges what happened.
pub fn judge_history(history: &History) -> Vec<Violation> {
    let mut findings = Findings::default();
    let lives = lives::Lives::of(history, &mut findings);
    readers::check(history, &lives, &mut findings);
    processes::check(history, &mut findings);
    tools::check(history, &mut findings);
    findings.0
}
