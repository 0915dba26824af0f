//! A few stories of each profile that works today, and all stories that once failed.
//!
//! `SHMCAST_STORIES` says how many of each profile, `SHMCAST_SEED` where they begin. Longer: `shmcast-chaos --minutes 30`.
#![allow(clippy::unwrap_used, reason = "in a test, an unwrap that fails is a finding")]

use shmcast_chaos::campaign::{Plan, play_all, play_one};
use shmcast_chaos::run::Programs;
use shmcast_chaos::story::{Profile, Story};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The programs as they are in the tree. The daemon's are not made by this package's tests.
fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let status =
            Command::new(env!("CARGO")).args(["build", "-q", "-p", "shmcast-daemon", "--bins"]).status();
        assert!(status.unwrap().success(), "the daemon cannot be built");
        Programs::in_dir(Path::new(env!("CARGO_BIN_EXE_shmcast-chaos")).parent().unwrap()).unwrap()
    })
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn play(profile: Profile) {
    // The same each time, as in CI: long runs look for new ones.
    let seed = number("SHMCAST_SEED", 1);
    let seeds = Some(number("SHMCAST_STORIES", 6));
    let plan = Plan {
        seed,
        seeds,
        time: None,
        profiles: vec![profile],
        at_a_time: 3,
        under: PathBuf::from("/dev/shm"),
    };
    let mut failed = Vec::new();
    play_all(&plan, programs(), |played| {
        if !played.violations.is_empty() {
            let lines: Vec<String> = played.violations.iter().map(ToString::to_string).collect();
            failed.push(format!("seed {}: {}\nlogs: {:?}", played.story.seed, lines.join("\n"), played.kept));
        }
        true
    })
    .unwrap();
    assert!(failed.is_empty(), "{profile:?}: {}", failed.join("\n"));
}

#[test]
fn stories_of_files() {
    play(Profile::Files);
}

#[test]
fn stories_of_a_daemon() {
    play(Profile::Daemon);
}

#[test]
fn stories_of_strict_channels() {
    play(Profile::Strict);
}

#[test]
fn stories_of_tools() {
    play(Profile::Tools);
}

#[test]
fn stories_of_journals() {
    play(Profile::Journal);
}

#[test]
fn stories_of_hosts() {
    if shmcast_chaos::run::is_possible() {
        play(Profile::Hosts);
    } else {
        eprintln!("SKIPPED stories_of_hosts: no network namespaces, which need root and the command ip");
    }
}

#[test]
fn stories_that_failed_once() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("stories");
    let mut failed = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "story") {
            let story = Story::load(&path).unwrap();
            if story.setup.net.is_some() && !shmcast_chaos::run::is_possible() {
                eprintln!(
                    "SKIPPED {}: no network namespaces, which need root and the command ip",
                    path.display()
                );
                continue;
            }
            let played = play_one(story, programs(), Path::new("/dev/shm"), |_| false).unwrap();
            let lines: Vec<String> = played.violations.iter().map(ToString::to_string).collect();
            if !lines.is_empty() {
                failed.push(format!("{}: {}", path.display(), lines.join("\n")));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
