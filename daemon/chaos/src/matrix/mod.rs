//! The matrix of features and events. Each cell names the test or the story that shows what happens when this event meets this feature.
//!
//! `matrix.toml` lists the features, the events and the tests. It also lists the pairs that cannot meet, and the pairs that nothing shows
//! yet. The pairs that stories play are computed from generated stories ([`played`]).
//!
//! `MATRIX.md` is made from `matrix.toml` and from the stories' pairs. A test checks that no cell is empty and that `MATRIX.md` is up to
//! date.

mod cells;
mod page;
pub mod played;
mod table;

pub use cells::{Cell, Cells};
pub use table::Table;

use crate::faults::package;
use crate::generate;
use crate::story::{PROFILES, Profile};
use anyhow::{Context, Result, ensure};
use played::{Pair, pairs};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// The number of seeds that are drawn for each profile. Their stories show which pairs the profile plays.
const DRAWN: u64 = 200;
/// A pair counts for a profile if at least this many of the drawn stories play the pair. A lower number could be chance.
const LEAST: u64 = 3;

/// The profiles whose stories play a pair.
pub type Played = BTreeMap<Pair, BTreeSet<Profile>>;

/// Returns the pairs that stories of the drawn seeds play.
pub fn drawn() -> Played {
    let mut played = Played::new();
    for profile in PROFILES {
        let mut counts: BTreeMap<Pair, u64> = BTreeMap::new();
        for seed in 0..DRAWN {
            pairs(&generate::story(seed, profile))
                .into_iter()
                .for_each(|pair| *counts.entry(pair).or_default() += 1);
        }
        for (pair, _) in counts.into_iter().filter(|(_, count)| *count >= LEAST) {
            played.entry(pair).or_default().insert(profile);
        }
    }
    played
}

/// For each profile, returns the first of the drawn seeds whose story plays this pair.
pub fn first_stories(feature: &str, event: &str) -> Vec<(Profile, u64)> {
    let plays = |profile, seed: &u64| pairs(&generate::story(*seed, profile)).contains(&(feature, event));
    let first = |profile: Profile| Some((profile, (0..DRAWN).find(|seed| plays(profile, seed))?));
    PROFILES.into_iter().filter_map(first).collect()
}

fn path() -> PathBuf {
    package().join("MATRIX.md")
}

/// Returns the text that `MATRIX.md` should have, and everything that is wrong with the matrix.
///
/// # Errors
/// The reason why a file cannot be read.
pub fn made() -> Result<(String, Vec<String>)> {
    let path = package().join("matrix.toml");
    let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    let table = Table::read(&text).with_context(|| format!("in {}", path.display()))?;
    let (cells, mut wrong) = Cells::fill(&table, &drawn());
    wrong.extend(table.lacking(&package().join("../.."))?);
    Ok((page::text(&table, &cells), wrong))
}

/// Writes `MATRIX.md`.
///
/// # Errors
/// The list of everything that is wrong with the matrix.
pub fn write() -> Result<()> {
    let (text, wrong) = made()?;
    fs::write(path(), text).context("write MATRIX.md")?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

#[cfg(test)]
mod tests {
    //! Tests that planted mistakes in a matrix are found, and that the real matrix has no mistake.

    use super::*;

    const SMALL: &str = r#"
        open_at_most = 1
        feature = [{ name = "files", what = "files", group = "channel" }, { name = "typed", what = "typed", group = "reader" }]
        event = [{ name = "publisher.killed", what = "killed" }, { name = "host.fork", what = "fork" }]
        never = [{ of = ["reader"], at = ["host"], why = "a reason" }]
        shown = [{ test = "daemon/chaos/src/matrix/mod.rs: a_mistake_is_found", of = ["files"], at = ["publisher.killed"] }]
        [open]
        typed = ["publisher.killed"]
    "#;

    fn wrong(table: &str, played: &Played) -> Vec<String> {
        match Table::read(table) {
            Ok(table) => {
                let (_, mut wrong) = Cells::fill(&table, played);
                wrong.extend(table.lacking(&package().join("../..")).unwrap());
                wrong
            }
            Err(e) => vec![format!("{e:#}")],
        }
    }

    fn fork() -> Played {
        Played::from([(("files", "host.fork"), BTreeSet::from([Profile::Files]))])
    }

    #[test]
    fn a_mistake_is_found() {
        assert_eq!(wrong(SMALL, &fork()), [""; 0]);
        let told = |from: &str, to: &str, part: &str| {
            assert!(SMALL.contains(from));
            let wrong = wrong(&SMALL.replace(from, to), &fork());
            assert!(wrong.iter().any(|wrong| wrong.contains(part)), "{wrong:?}");
        };
        told("typed = [\"publisher.killed\"]", "", "typed, publisher.killed: an empty cell");
        told("open_at_most = 1", "open_at_most = 0", "1 cells are open");
        told("open_at_most = 1", "open_at_most = 2", "1 cells are open");
        told("a_mistake_is_found", "no_such_test", "no_such_test is not there");
        told("src/matrix/mod.rs:", "src/nowhere.rs:", "nowhere.rs");
        told("of = [\"files\"]", "of = [\"pipes\"]", "pipes is no feature");
        told("at = [\"host\"]", "at = [\"weather\"]", "weather is no event");
        told(
            "[\"publisher.killed\"]\n    ",
            "[\"publisher.killed\", \"host.fork\"]\n    ",
            "2 cells are open",
        );
        told("of = [\"files\"], at = [\"publisher.killed\"]", "of = [\"files\"], at = []", "shows no cell");
        told("why = \"a reason\"", "why = \"\"", "without a reason");
        told(
            "typed = [",
            "files = [\"publisher.killed\"]\ntyped = [",
            "files, publisher.killed is open, and it is shown",
        );
        // A story that is no longer drawn leaves an empty cell.
        assert_eq!(wrong(SMALL, &Played::new()), ["files, host.fork: an empty cell"]);
    }

    #[test]
    fn the_matrix_is_whole_and_its_page_is_the_present_one() {
        let (text, wrong) = made().unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        let is_present = fs::read_to_string(path()).unwrap_or_default() == text;
        assert!(is_present, "MATRIX.md is out of date: shmcast-chaos matrix writes it");
    }

    /// All features and events that stories play are in the table.
    #[test]
    fn every_pair_that_is_drawn_has_a_cell() {
        let text = fs::read_to_string(package().join("matrix.toml")).unwrap();
        let table = Table::read(&text).unwrap();
        for (feature, event) in drawn().into_keys() {
            assert!(table.feature.iter().any(|known| known.name == feature), "{feature}");
            assert!(table.event.iter().any(|known| known.name == event), "{event}");
        }
    }
}
