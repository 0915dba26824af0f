//! Damage to the files of a server that is down.

use fastrand::Rng;
use std::fs;
use std::path::{Path, PathBuf};

/// The size of a page in bytes.
const PAGE: usize = 4_096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scar {
    Bit,
    Byte,
    Page,
}

impl Scar {
    pub(super) fn name(self) -> &'static str {
        match self {
            Scar::Bit => "one bit",
            Scar::Byte => "one byte",
            Scar::Page => "a zeroed page",
        }
    }
}

/// The kind of files that are damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Files with blocks: of the stream, and of the servers' own log of it.
    Blocks,
    /// Files in which the servers record facts about the files with blocks.
    Index,
    /// Snapshots of the servers' own log.
    Snapshot,
    /// The last quarter of the stream's last file with blocks.
    End,
}

impl Place {
    fn has(self, path: &Path) -> bool {
        let is_named = |end: &str| path.extension().is_some_and(|extension| extension == end);
        let is_below = |name: &str| path.components().any(|part| part.as_os_str() == name);
        match self {
            Place::Blocks => is_named("blk"),
            Place::Index => path.ends_with("index.db") || is_named("idx"),
            Place::Snapshot => is_below("snapshots"),
            Place::End => is_named("blk") && is_below("SHMCAST_ticks"),
        }
    }
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => files(&entry.path(), found),
            _ => found.push(entry.path()),
        }
    }
}

/// Damages one file of a server that does not run. Returns a sentence about it.
pub(super) fn wound(store: &Path, place: Place, scar: Scar, rng: &mut Rng) -> Result<String, String> {
    let mut found = Vec::new();
    files(store, &mut found);
    let is_it = |path: &PathBuf| place.has(path) && fs::metadata(path).is_ok_and(|of| of.len() > 0);
    found.retain(is_it);
    found.sort();
    let chosen = if place == Place::End { found.last() } else { rng.choice(&found) };
    let path = chosen.ok_or_else(|| format!("no file for {place:?} below {}", store.display()))?;
    let mut bytes = fs::read(path).map_err(|e| e.to_string())?;
    let first = if place == Place::End { bytes.len() * 3 / 4 } else { 0 };
    let at = rng.usize(first..bytes.len());
    cut(&mut bytes, at, scar, rng);
    fs::write(path, bytes).map_err(|e| e.to_string())?;
    Ok(format!("{} at {at} of {}", scar.name(), path.display()))
}

/// Damages the bytes at `at`, so that they certainly change.
fn cut(bytes: &mut [u8], at: usize, scar: Scar, rng: &mut Rng) {
    match scar {
        Scar::Bit => bytes[at] ^= 1 << rng.u8(..8),
        Scar::Byte => bytes[at] = bytes[at].wrapping_add(rng.u8(1..)),
        Scar::Page => {
            let begin = at / PAGE * PAGE;
            let end = bytes.len().min(begin + PAGE);
            let page = &mut bytes[begin..end];
            // If the page already has only zeros, its first bit is changed instead.
            match page.iter().all(|byte| *byte == 0) {
                true => page[0] = 1,
                false => page.fill(0),
            }
        }
    }
}

#[test]
fn each_scar_changes_what_it_says_and_no_more() {
    let mut rng = Rng::with_seed(7);
    for scar in [Scar::Bit, Scar::Byte, Scar::Page] {
        for at in [0, 1, 4_095, 4_096, 9_999] {
            let whole: Vec<u8> = (0..10_000_u32).map(|n| (n % 251) as u8 + 1).collect();
            let mut scarred = whole.clone();
            cut(&mut scarred, at, scar, &mut rng);
            let changed: Vec<usize> = (0..whole.len()).filter(|n| whole[*n] != scarred[*n]).collect();
            match scar {
                Scar::Bit => {
                    assert_eq!((changed, (whole[at] ^ scarred[at]).count_ones()), (vec![at], 1));
                }
                Scar::Byte => assert_eq!(changed, vec![at]),
                Scar::Page => {
                    let begin = at / PAGE * PAGE;
                    assert_eq!(changed, (begin..(begin + PAGE).min(10_000)).collect::<Vec<_>>());
                }
            }
        }
    }
}
