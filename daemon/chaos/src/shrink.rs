//! Makes a failing story shorter: leaves out steps, large pieces first, as long as the story still fails in the same way.
//!
//! A story runs differently each time. So each story is played several times, and counts as failing if it fails once.

use crate::campaign::play_one;
use crate::run::Programs;
use crate::story::Story;
use anyhow::Result;
use std::path::Path;
use std::time::{Duration, Instant};

/// The number of times that a story is played. If it never fails, it counts as a story that does not fail.
const TRIES: u32 = 3;

/// Searches for a shorter story, for at most `time`. Returns the shortest story that still has a violation with this name.
///
/// # Errors
/// The reason why a story could not be played.
pub fn shrink(story: &Story, name: &str, programs: &Programs, under: &Path, time: Duration) -> Result<Story> {
    let started = Instant::now();
    let fails = |story: &Story| -> Result<bool> {
        for _ in 0..TRIES {
            let played = play_one(story.clone(), programs, under, |_| false)?;
            if played.violations.iter().any(|violation| violation.name == name) {
                return Ok(true);
            }
        }
        Ok(false)
    };
    let mut shortest = story.clone();
    let mut piece = shortest.steps.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let mut has_shrunk = false;
        while at < shortest.steps.len() && started.elapsed() < time {
            let mut shorter = shortest.clone();
            let end = (at + piece).min(shorter.steps.len());
            shorter.steps.drain(at..end);
            if fails(&shorter)? {
                shortest = shorter;
                has_shrunk = true;
            } else {
                at += piece;
            }
        }
        if started.elapsed() >= time || piece == 1 && !has_shrunk {
            return Ok(shortest);
        }
        piece = (piece / 2).max(1);
    }
}
