//! Limits the log lines that each user can cause, and sums up the events that get no line.
//!
//! Each event of a user gets a line until the share of that user, or of all users together, is used up. Further events are only counted.
//! Once a second a summary lists the counts by user and event. At most 100 lines are written in any second.

use super::limits::Bucket;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Instant;

/// The number of lines in one burst, and the number of lines a second in the long run.
type Share = (f64, f64);

/// The limit of log lines for all users together. With the summary's line, at most 100 lines are written in any second.
const ALL: Share = (59.0, 40.0);
/// The share of one user's refusals.
const REFUSALS: Share = (20.0, 10.0);
/// The share of one user's events that are no refusals.
const GRANTS: Share = (50.0, 20.0);
/// The largest number of users that each have a limit of their own. For all other users, only the limit for all users together counts.
const MAX_USERS: usize = 1024;
/// Number of counts that one summary names.
const MAX_NAMED: usize = 8;

/// The number of lines that each user has had.
#[derive(Debug)]
pub struct Lines {
    all: Bucket,
    users: HashMap<u32, User>,
    left_out: BTreeMap<(u32, &'static str), u64>,
    /// The number of left-out lines about users beyond `MAX_USERS`.
    others: u64,
}

#[derive(Debug)]
struct User {
    refusals: Bucket,
    grants: Bucket,
}

/// The lines that were left out since the last summary.
#[derive(Debug, PartialEq, Eq)]
pub struct Summary {
    /// The number of lines that were left out.
    pub total: u64,
    /// The most frequent of the lines that were left out. Each entry has the uid, the event or refusal, and the count.
    pub named: Vec<(u32, &'static str, u64)>,
}

impl Summary {
    /// Returns the summary as text: `uid 1000 denied 17, uid 1001 limit 3, others 4`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (uid, what, count) in &self.named {
            let _ = write!(text, "uid {uid} {what} {count}, ");
        }
        let others = self.total - self.named.iter().map(|(_, _, count)| count).sum::<u64>();
        match others {
            0 => text.truncate(text.len().saturating_sub(2)),
            _ => drop(write!(text, "others {others}")),
        }
        text
    }
}

impl Lines {
    /// Makes limits for users who have had no lines yet.
    pub fn new(now: Instant) -> Self {
        let (burst, _) = ALL;
        Self { all: Bucket::full(burst, now), users: HashMap::new(), left_out: BTreeMap::new(), others: 0 }
    }

    /// Whether another line about user `uid` is allowed. If not, the line is counted under `what`.
    pub fn admit(&mut self, uid: u32, what: &'static str, is_refusal: bool, now: Instant) -> bool {
        let is_counted = self.users.contains_key(&uid) || self.users.len() < MAX_USERS;
        let has_own = !is_counted || {
            let fresh =
                || User { refusals: Bucket::full(REFUSALS.0, now), grants: Bucket::full(GRANTS.0, now) };
            let user = self.users.entry(uid).or_insert_with(fresh);
            let (bucket, (burst, rate)) =
                if is_refusal { (&mut user.refusals, REFUSALS) } else { (&mut user.grants, GRANTS) };
            bucket.take(rate, burst, now)
        };
        let (burst, rate) = ALL;
        if has_own && self.all.take(rate, burst, now) {
            return true;
        }
        match is_counted {
            true => *self.left_out.entry((uid, what)).or_default() += 1,
            false => self.others += 1,
        }
        false
    }

    /// Returns the summary of the lines that were left out since the last call; `None` if there were none. Forgets users who have caused no
    /// lines recently.
    pub fn sum_up(&mut self, now: Instant) -> Option<Summary> {
        self.users.retain(|_, user| {
            let is_full = |bucket: &mut Bucket, (burst, rate): Share| bucket.is_full(rate, burst, now);
            !is_full(&mut user.refusals, REFUSALS) || !is_full(&mut user.grants, GRANTS)
        });
        let left_out = std::mem::take(&mut self.left_out);
        let total = std::mem::take(&mut self.others) + left_out.values().sum::<u64>();
        let mut named: Vec<_> = left_out.into_iter().map(|((uid, what), count)| (uid, what, count)).collect();
        named.sort_by_key(|(_, _, count)| std::cmp::Reverse(*count));
        named.truncate(MAX_NAMED);
        (total > 0).then_some(Summary { total, named })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_flood_is_summed_up_and_no_second_has_more_than_a_hundred_lines() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        let mut written: Vec<u64> = Vec::new();
        let (mut told, mut left_out) = (0, 0);
        for ms in 0..5000 {
            let now = start + Duration::from_millis(ms);
            for uid in 0..4 {
                if lines.admit(uid, "denied", true, now) {
                    written.push(ms);
                    told += 1;
                }
            }
            if ms % 1000 == 999 {
                left_out += lines.sum_up(now).expect("something was left out").total;
                written.push(ms);
            }
        }
        assert_eq!(told + left_out, 20_000);
        for from in &written {
            let within = written.iter().filter(|ms| (*from..from + 1000).contains(ms)).count();
            assert!(within <= 100, "{within} lines in the second after {from} ms");
        }
        assert!(lines.sum_up(start + Duration::from_secs(60)).is_none());
        assert!(lines.users.is_empty());
    }

    #[test]
    fn a_quiet_user_is_told_of_beside_a_flood() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        for _ in 0..10_000 {
            lines.admit(7, "limit", true, start);
        }
        assert!(lines.admit(8, "attached", false, start));
        let summary = lines.sum_up(start).expect("a flood");
        assert_eq!(summary.text(), "uid 7 limit 9980");
        let many = Summary { total: 12, named: vec![(1, "denied", 4), (2, "busy", 3)] };
        assert_eq!(many.text(), "uid 1 denied 4, uid 2 busy 3, others 5");
    }

    #[test]
    fn users_without_number_take_no_memory_without_end() {
        let start = Instant::now();
        let mut lines = Lines::new(start);
        for uid in 0..100_000 {
            lines.admit(uid, "limit", true, start);
        }
        assert!(lines.users.len() <= MAX_USERS && lines.left_out.len() <= MAX_USERS);
        let summary = lines.sum_up(start).expect("a flood");
        assert_eq!(summary.total, 100_000 - 59);
        assert!(summary.text().len() < 400);
    }
}
