//! The stories that CI plays: a few of each profile with fixed seeds, and all stories that once failed.
//!
//! `.ci/run chaos` plays these stories, which takes minutes. `SHMCAST_STORIES` is the number of stories of each profile, and `SHMCAST_SEED`
//! is the first seed. For more stories, run `shmcast-chaos --minutes 30`.

use crate::campaign::{Plan, play_all, play_one};
use crate::faults::package;
use crate::run::{Programs, has_small_file_systems, is_possible};
use crate::story::{Profile, Story};
use shmcast_testkit::place::program;
use shmcast_testkit::{number, skip};
use std::path::{Path, PathBuf};

/// Returns the programs that were built last.
fn programs() -> Programs {
    Programs::in_dir(program("shmcast-chaos").parent().unwrap()).unwrap()
}

fn play(profile: Profile) {
    // The seeds are always the same here. Long runs use new seeds.
    let seed = number("SHMCAST_SEED", 1);
    let seeds = Some(number("SHMCAST_STORIES", 6));
    let plan = Plan {
        seed,
        seeds,
        time: None,
        profiles: vec![profile],
        pairs: false,
        at_a_time: 3,
        under: PathBuf::from("/dev/shm"),
    };
    let mut failed = Vec::new();
    play_all(&plan, &programs(), |played| {
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
#[ignore = "a step of CI: chaos"]
fn stories_of_files() {
    play(Profile::Files);
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_of_a_daemon() {
    play(Profile::Daemon);
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_of_strict_channels() {
    play(Profile::Strict);
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_of_tools() {
    play(Profile::Tools);
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_of_journals() {
    play(Profile::Journal);
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_of_hosts() {
    if is_possible() {
        play(Profile::Hosts);
    } else {
        skip("stories_of_hosts", "no network namespaces, which need root and the command ip");
    }
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_of_limits() {
    if !has_small_file_systems() {
        skip("small file systems and other users in stories_of_limits", "only root has them");
    }
    play(Profile::Limits);
}

#[test]
#[ignore = "a step of CI: chaos"]
fn stories_that_failed_once() {
    let dir = package().join("stories");
    let mut failed = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "story") {
            let story = Story::load(&path).unwrap();
            if story.setup.net.is_some() && !is_possible() {
                skip(
                    &path.display().to_string(),
                    "no network namespaces, which need root and the command ip",
                );
                continue;
            }
            let played = play_one(story, &programs(), Path::new("/dev/shm"), |_| false).unwrap();
            let lines: Vec<String> = played.violations.iter().map(ToString::to_string).collect();
            if !lines.is_empty() {
                failed.push(format!("{}: {}", path.display(), lines.join("\n")));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
