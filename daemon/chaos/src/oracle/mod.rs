//! The oracle reads the logs of a story after its end, and reports each violation of the following ten demands. It does not depend on
//! rings, segments or the daemon's state.
//!
//! 1. Nothing is false: each message was published with this content, on this channel and with this sequence, by a publisher that had not
//!    been replaced.
//! 2. Order: sequences ascend.
//! 3. Nothing is silent: exactly one event reports each missing sequence, and each new publisher is announced.
//! 4. Nothing is lost without cause.
//! 5. Life: calls end in time, no process hangs or dies by itself, and in the end every reader has the last message.
//! 6. Files that belong to others are not touched, and nothing is left over.
//! 7. The tools report what is true.
//! 8. Journals keep what was recorded, and list what they lack.
//! 9. Between hosts, no message is lost that a server or another line has. Sessions never go back. Native lines keep publish times.
//! 10. A board has the newest message of each key, and readers get exact counts of what was left out. A gate in force keeps its reader from
//!     being lapped, and holds nobody up for longer than its terms say.

mod boards;
mod gates;
mod history;
mod hosts;
mod journals;
mod limits;
mod lives;
mod processes;
mod readers;
mod streams;
mod tools;

#[cfg(test)]
mod checks;

pub use history::History;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;

/// A violation of one of the oracle's demands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// The number of the demand.
    pub demand: u8,
    /// A short name of the violation. Two stories fail in the same way if they have a violation with the same name.
    pub name: String,
    /// The actor, tool or channel concerned.
    pub who: String,
    /// A description of the violation, with the sequences.
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
        // Three violations of the same kind are enough.
        if self.0.iter().filter(|v| v.name == name && v.who == who).count() < 3 {
            self.0.push(Violation { demand, name, who, what });
        }
    }
}

/// Judges the logs in this directory.
///
/// # Errors
/// The reason why the logs cannot be read.
pub fn judge(logs: &Path) -> Result<Vec<Violation>> {
    Ok(judge_history(&History::read(logs)?))
}

/// Judges a history.
pub fn judge_history(history: &History) -> Vec<Violation> {
    let mut findings = Findings::default();
    let lives = lives::Lives::of(history, &mut findings);
    let streams = streams::Streams::of(history, &lives);
    readers::check(history, &lives, &streams, &mut findings);
    boards::check(history, &lives, &streams, &mut findings);
    gates::check(history, &mut findings);
    processes::check(history, &mut findings);
    tools::check(history, &mut findings);
    journals::check(history, &mut findings);
    hosts::check(history, &mut findings);
    limits::check(history, &mut findings);
    findings.0
}
