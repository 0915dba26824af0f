//! The order of a channel's publishers, and the publishers at which its sequences restarted.
//!
//! A channel's *life* is a run of publications whose sequences continue from one to the next. A new life is allowed only after the runner
//! did something that can lose or restart the ring.

use super::Findings;
use super::history::{History, Publication};
use crate::log::{Deed, Time};
use std::collections::BTreeMap;

/// A publication that a later publication cut off. The messages from the sequence `from` on are void. `by` is the number of the later
/// publication.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) from: u64,
    pub(super) by: u32,
}

/// The lives of all channels.
#[derive(Debug, Default)]
pub(super) struct Lives {
    /// The life of each publication, by the publication's number.
    lives: BTreeMap<u32, usize>,
    /// For each publication that a later publication cut off: the place of the cut.
    cuts: BTreeMap<u32, Cut>,
}

impl Lives {
    pub(super) fn of(history: &History, findings: &mut Findings) -> Self {
        let mut lives = Self::default();
        let mut names: Vec<&str> = history.publications.iter().map(|p| p.channel.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let mut life = 0;
        for name in names {
            life += 1;
            let mut before: Vec<&Publication> = Vec::new();
            for publication in history.on(name) {
                if !before.is_empty() {
                    let may_restart = may_restart(history, name, before[before.len() - 1], publication);
                    if follows(history, &before, publication, may_restart, findings) {
                        for earlier in &before {
                            let cut = Cut { from: publication.next, by: publication.number };
                            let known = lives.cuts.entry(earlier.number).or_insert(cut);
                            if cut.from < known.from {
                                *known = cut;
                            }
                        }
                    } else {
                        life += 1;
                        before.clear();
                    }
                }
                lives.lives.insert(publication.number, life);
                before.push(publication);
            }
        }
        lives
    }

    pub(super) fn life(&self, publication: u32) -> Option<usize> {
        self.lives.get(&publication).copied()
    }

    pub(super) fn cut(&self, publication: u32) -> Option<Cut> {
        self.cuts.get(&publication).copied()
    }
}

/// Whether the runner did something after which the channel's sequences can restart. This action must have happened between the opening of
/// the publication `before` and 20 s after the opening of the publication `after`.
fn may_restart(history: &History, channel: &str, before: &Publication, after: &Publication) -> bool {
    history.deeds.iter().any(|entry| {
        matches!(&entry.what, Deed::MayRestart { channel: name, .. } if name == channel)
            && entry.at > before.opening
            && entry.at < after.opening + 20_000_000_000
    })
}

/// Returns the time of the first takeover from this publisher. Without a takeover, returns the time at which the next publisher opened the
/// channel.
fn taken_from(history: &History, channel: &str, since: Time, next: &Publication) -> Time {
    let takeovers = history.deeds.iter().filter(|entry| {
        matches!(&entry.what, Deed::TakingOver { channel: name } if name == channel) && entry.at > since
    });
    takeovers.map(|entry| entry.at).min().unwrap_or(next.opening).min(next.opening)
}

/// Whether `publication` continues the sequences of the publications before it.
fn follows(
    history: &History,
    before: &[&Publication],
    publication: &Publication,
    may_restart: bool,
    findings: &mut Findings,
) -> bool {
    let channel = &publication.channel;
    let certain =
        before.iter().map(|p| p.surely_before(taken_from(history, channel, p.opening, publication)));
    let certain = certain.max().unwrap_or(1);
    let perhaps = before.iter().map(|p| p.perhaps()).max().unwrap_or(1);
    let next = publication.next;
    if next == 1 && may_restart {
        return false;
    }
    // A channel with a journal continues after the reserve, far beyond all published sequences.
    let is_behind_reserve =
        may_restart && history.recorded.contains(channel) && next.saturating_sub(perhaps) >= 1 << 31;
    // A promoted mirror continues far beyond all sequences that the previous host published.
    let is_promoted = history.deeds.iter().any(|entry| {
        matches!(&entry.what, Deed::Promoted { channel: name, to, .. } if name == channel && *to + 1 == next)
    });
    if next >= certain && next <= perhaps || is_behind_reserve || is_promoted {
        return true;
    }
    let last = before[before.len() - 1];
    let what = format!(
        "channel {channel}: publication {} ({}) begins at {next}, but those before it, {} ({}) the last of them, had \
         surely published up to {} and perhaps up to {}",
        publication.number,
        publication.actor,
        last.number,
        last.actor,
        certain - 1,
        perhaps.saturating_sub(1),
    );
    if next < certain {
        findings.add(4, "forgotten", &publication.actor, what);
        next != 1
    } else {
        findings.add(1, "sequences_jump", &publication.actor, what);
        true
    }
}
