//! Visitors: receivers that come, leave and die during a round. A visitor must see the stream without a gap as long as it stays. The round
//! measures the effect of visitors on the publisher and on the other receivers.

use crate::rig::player::Player;
use crate::rig::spec::{Received, Spec, Task};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The counts of a round's visitors.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Visits {
    /// The number of visitors that attached.
    pub joined: u64,
    /// The number of visitors that left as requested.
    pub left: u64,
    /// The number of visitors that were killed while they received.
    pub killed: u64,
    /// The number of visitors that were killed as soon as they had attached.
    pub killed_at_once: u64,
    /// The sum of the reports of the visitors that left. `lost` counts messages that were missing between the first and
    /// the last message of a visitor.
    pub received: Received,
}

impl Visits {
    /// Whether each visitor received only correct messages, each once and in order, and whether it reported every loss exactly.
    pub fn is_exact(&self) -> bool {
        let r = &self.received;
        r.duplicated + r.out_of_order + r.corrupt == 0 && r.lost == r.reported_lost
    }
}

/// The time limit for a visitor to attach or to report.
const PATIENCE: Duration = Duration::from_secs(20);

/// Lets visitors come and go until `stopped` has a message, or its sender is dropped.
///
/// # Errors
/// When a visitor fails.
pub(super) fn host(program: &Path, spec: &Spec, stopped: &Receiver<()>) -> Result<Visits> {
    let Some(churn) = spec.churn else { return Ok(Visits::default()) };
    let (every, stay) = (Duration::from_nanos(churn.every_ns), Duration::from_nanos(churn.stay_ns));
    let mut visits = Visits::default();
    let mut present: Vec<(Instant, usize, Player)> = Vec::new();
    for number in 0.. {
        let task = Task::Receive(spec.clone(), spec.receivers + number);
        let visitor = Player::start(program, &task, format!("visitor {number}"))?;
        let leaves = if number % 3 == 2 { Instant::now() } else { Instant::now() + stay };
        present.push((leaves, number, visitor));
        let (over, still): (Vec<_>, Vec<_>) =
            present.drain(..).partition(|(leaves, ..)| *leaves <= Instant::now());
        present = still;
        over.into_iter().try_for_each(|(_, number, visitor)| end(visitor, number, &mut visits))?;
        match stopped.recv_timeout(every) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => break,
        }
    }
    present.into_iter().try_for_each(|(_, number, visitor)| end(visitor, number, &mut visits))?;
    Ok(visits)
}

fn end(mut visitor: Player, number: usize, visits: &mut Visits) -> Result<()> {
    visitor.expect_ready(Instant::now() + PATIENCE)?;
    visits.joined += 1;
    let killed = match number % 3 {
        0 => None,
        1 => Some(&mut visits.killed),
        _ => Some(&mut visits.killed_at_once),
    };
    if let Some(killed) = killed {
        *killed += 1;
        return visitor.kill();
    }
    // A visitor that has seen the last message has sent its report and ended.
    drop(visitor.tell("stop"));
    let report = visitor.line(Instant::now() + PATIENCE, "report")?;
    let report: Received =
        serde_json::from_str(&report).with_context(|| format!("the report of {}: {report}", visitor.name))?;
    visits.left += 1;
    visits.received.add(&report);
    visitor.wait()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_that_nobody_reported() {
        let missed = |lost, reported_lost| Visits {
            received: Received { lost, reported_lost, ..Received::default() },
            ..Visits::default()
        };
        assert!(missed(3, 3).is_exact());
        assert!(!missed(3, 0).is_exact());
        assert!(!missed(0, 3).is_exact());
    }
}
