//! Planted faults: corrected mistakes that are put back one at a time, to prove that the stories find them.
//!
//! The corrected code still contains the mistake, under `fault!("name")` (`shm-layout/src/fault.rs`). `faults.toml` lists all faults. For
//! each fault, the list names what finds it: a story (by its profile and seed), or a test.

use crate::campaign::play_one;
use crate::generate;
use crate::run::Programs;
use crate::story::{PROFILES, Profile};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The greatest number of times that the story of a fault is played until it finds the fault. Processes never run in exactly the same way,
/// so one try is not enough.
const TRIES: u32 = 5;
/// The name of the fault in the example of the `fault!` macro's documentation. The source code has no such fault.
const EXAMPLE: &str = "no_such_fault";

/// A fault, and the story or test that finds it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The name of the fault in the source code.
    pub name: String,
    /// The profile of the story that finds the fault.
    pub profile: Option<Profile>,
    /// The seed of the story that finds the fault.
    pub seed: Option<u64>,
    /// The file name of a saved story that finds the fault, if no seed is known.
    pub story: Option<String>,
    /// The test that finds the fault, if no story can.
    pub test: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct List {
    fault: Vec<Fault>,
}

/// Returns this package's directory in the tree.
pub fn package() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// Reads the list of faults, `faults.toml`.
///
/// # Errors
/// The reason why the list cannot be read.
pub fn list() -> Result<Vec<Fault>> {
    let path = package().join("faults.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let list: List = toml::from_str(&text).with_context(|| format!("in {}", path.display()))?;
    Ok(list.fault)
}

/// Returns the names of all faults in the source code.
///
/// # Errors
/// The system's error.
pub fn in_tree() -> Result<BTreeSet<String>> {
    let root = package().join("../..");
    let mut names = BTreeSet::new();
    for part in ["shm-layout", "client", "daemon", "benches"] {
        collect(&root.join(part), &mut names)?;
    }
    names.remove(EXAMPLE);
    Ok(names)
}

fn collect(dir: &Path, names: &mut BTreeSet<String>) -> Result<()> {
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry?.path();
        let is_own = path.file_name().is_some_and(|name| name == "chaos" || name == "target");
        if path.is_dir() && !is_own {
            collect(&path, names)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)?;
            let uses = text.split("fault!(").skip(1);
            names.extend(
                uses.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split('"').next())
                    .map(str::to_owned),
            );
        }
    }
    Ok(())
}

/// Builds the programs with the code of all faults. No fault is active.
///
/// # Errors
/// The reason why the programs cannot be built.
pub fn build(target: &Path) -> Result<Programs> {
    let mut command = Command::new("cargo");
    command.args(["build", "--quiet", "-p", "shmcast-daemon", "-p", "shmcast-chaos", "--bins"]);
    // The library and the actors are optimised as in a release. Otherwise a publisher would never be faster than its readers.
    for package in ["shmcast-layout", "shmcast", "shmcast-chaos"] {
        command.arg("--config").arg(format!("profile.dev.package.{package}.opt-level=3"));
    }
    let status = command
        .arg("--target-dir")
        .arg(target)
        .env("RUSTFLAGS", "--cfg shmcast_faults")
        .current_dir(package().join("../.."))
        .status()
        .context("start cargo")?;
    ensure!(status.success(), "the programs cannot be built with the faults in them");
    Programs::in_dir(&target.join("debug"))
}

/// Plays the story that the list names for this fault. Returns the violation if the story finds the fault. The outer `None` means that the
/// list names no story for the fault.
///
/// # Errors
/// The reason why the story could not be played.
pub fn verify(fault: &Fault, programs: &Programs, under: &Path) -> Result<Option<Option<String>>> {
    let story = match (fault.profile, fault.seed, &fault.story) {
        (Some(profile), Some(seed), _) => generate::story(seed, profile),
        (_, _, Some(story)) => crate::story::Story::load(&package().join("stories").join(story))?,
        _ => return Ok(None),
    };
    let programs = Programs { fault: Some(fault.name.clone()), ..programs.clone() };
    for _ in 0..TRIES {
        let played = play_one(story.clone(), &programs, under, |_| false)?;
        if let Some(violation) = played.violations.first() {
            return Ok(Some(Some(violation.to_string())));
        }
    }
    Ok(Some(None))
}

/// Searches the first `stories` stories of each profile for a story that fails with the fault, and does not fail without the fault.
///
/// # Errors
/// The reason why a story could not be played.
pub fn find(
    name: &str,
    programs: &Programs,
    under: &Path,
    stories: u64,
    only: &[Profile],
) -> Result<Option<Fault>> {
    let with = Programs { fault: Some(name.to_owned()), ..programs.clone() };
    let profiles = if only.is_empty() { &PROFILES[..] } else { only };
    for profile in profiles {
        for seed in 0..stories {
            let story = generate::story(seed, *profile);
            if play_one(story.clone(), &with, under, |_| false)?.violations.is_empty() {
                continue;
            }
            let is_sound = play_one(story.clone(), programs, under, |_| false)?.violations.is_empty();
            let again = play_one(story, &with, under, |_| false)?;
            if is_sound && !again.violations.is_empty() {
                let (profile, seed) = (Some(*profile), Some(seed));
                return Ok(Some(Fault { name: name.to_owned(), profile, seed, story: None, test: None }));
            }
        }
    }
    Ok(None)
}

/// Returns the list as text, in the order of names.
pub fn to_text(faults: &[Fault]) -> String {
    let mut faults = faults.to_vec();
    faults.sort_by(|a, b| a.name.cmp(&b.name));
    let mut text = String::from(
        "# All faults that can be put back, and what finds each: a story by its profile and seed, a kept story, or a test where no\n\
         # story can. `shmcast-chaos faults` plays the stories; `shmcast-chaos faults --find` looks for those that are missing.\n",
    );
    for Fault { name, profile, seed, story, test } in faults {
        let _ = writeln!(text, "\n[[fault]]\nname = \"{name}\"");
        if let (Some(profile), Some(seed)) = (profile, seed) {
            let _ = writeln!(text, "profile = \"{}\"\nseed = {seed}", format!("{profile:?}").to_lowercase());
        }
        for (key, value) in [("story", story), ("test", test)] {
            if let Some(value) = value {
                let _ = writeln!(text, "{key} = \"{value}\"");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    //! Checks that the list has all faults of the source code, and that each entry names one way to find its fault.

    use super::*;

    #[test]
    fn every_fault_of_the_tree_is_listed_with_what_finds_it() {
        let faults = list().unwrap();
        let listed: BTreeSet<String> = faults.iter().map(|fault| fault.name.clone()).collect();
        assert_eq!(listed, in_tree().unwrap(), "faults.toml and the tree name other faults");
        assert_eq!(listed.len(), faults.len(), "a fault is listed twice");
        for Fault { name, profile, seed, story, test } in &faults {
            let ways = [profile.is_some() && seed.is_some(), story.is_some(), test.is_some()];
            assert_eq!(
                ways.iter().filter(|way| **way).count(),
                1,
                "{name} is found by exactly one of story and test"
            );
        }
    }

    #[test]
    fn the_list_can_be_written_and_read() {
        let path = package().join("faults.toml");
        assert_eq!(fs::read_to_string(path).unwrap(), to_text(&list().unwrap()));
    }

    /// Returns each `file: test` of the list and of SECURITY.md.
    fn named_tests() -> Vec<String> {
        let security = fs::read_to_string(package().join("../../SECURITY.md")).unwrap();
        let of_security = security.split('`').skip(1).step_by(2).filter(|code| code.contains(".rs: "));
        let of_list = list().unwrap().into_iter().filter_map(|fault| fault.test);
        of_security.map(str::to_owned).chain(of_list).collect()
    }

    #[test]
    fn every_test_that_is_named_is_there() {
        let root = package().join("../..");
        let named = named_tests();
        assert!(named.len() > 50, "{} tests are named", named.len());
        for named in named {
            let (path, test) = named.split_once(": ").unwrap_or((&named, ""));
            let text = fs::read_to_string(root.join(path)).unwrap_or_else(|e| panic!("{named}: {e}"));
            let is_there = text.contains(&format!("fn {test}(")) || text.contains(&format!("\"{test}\""));
            assert!(test.is_empty() || is_there, "{named}: no such test");
        }
    }
}
