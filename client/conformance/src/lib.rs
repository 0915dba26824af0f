//! Checks whether shmcast's clients in all languages read the same bytes in the same way. README.md of this package describes what a
//! testee must do. The command `conform` plays the suite.

pub mod boards;
pub mod control;
pub mod daemon;
pub mod gates;
pub mod headers;
pub mod hostile;
pub mod model;
pub mod pairs;
pub mod payload;
pub mod races;
pub mod scribe;
pub mod script;
pub mod segments;
pub mod stage;
pub mod testee;
pub mod traces;
pub mod writers;

use anyhow::Result;
use stage::Verdict;
use std::ffi::OsString;
use std::time::Duration;
use testee::{Hello, Testee};

/// The levels.
pub const LEVELS: [u8; 9] = [1, 2, 3, 4, 5, 6, 7, 8, 9];

/// The length of those levels that have no natural end.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// The duration of each race.
    pub race: Duration,
    /// The number of mutants of each history that a reader gets.
    pub mutants: u64,
}

impl Default for Effort {
    fn default() -> Self {
        Self { race: Duration::from_millis(500), mutants: hostile::MUTANTS }
    }
}

type Play = dyn Fn(&mut Testee) -> Result<Verdict>;

/// A vector (a test case) of a level.
pub struct Vector {
    /// The level.
    pub level: u8,
    /// The name. Each name is used once in a level.
    pub name: String,
    /// More levels that a testee must have for this vector (a test case).
    needs: Vec<u8>,
    play: Box<Play>,
}

impl Vector {
    /// Whether a testee can play the vector (a test case).
    pub fn is_for(&self, hello: &Hello) -> bool {
        [self.level].iter().chain(&self.needs).all(|level| hello.levels.contains(level))
    }

    /// Plays the vector, which is one test case.
    ///
    /// # Errors
    /// If the testee ends, hangs, or gives an answer that is not valid.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        (self.play)(testee)
    }
}

/// Returns all vectors (test cases) of a level.
pub fn vectors(level: u8, effort: Effort) -> Vec<Vector> {
    macro_rules! of {
        ($vectors:expr) => {
            of!($vectors, |_| Vec::new())
        };
        ($vectors:expr, $needs:expr) => {
            $vectors
                .into_iter()
                .map(|vector| Vector {
                    level,
                    name: vector.name.clone(),
                    needs: $needs(&vector),
                    play: Box::new(move |testee| vector.play(testee)),
                })
                .collect()
        };
    }
    match level {
        1 => of!(headers::vectors()),
        2 => of!(segments::vectors()),
        3 => of!(traces::vectors()),
        4 => of!(races::vectors(effort.race)),
        5 => of!(hostile::vectors(effort.mutants)),
        6 => of!(control::vectors()),
        7 => of!(writers::vectors()),
        8 => of!(boards::vectors(effort.mutants), |vector: &boards::Vector| match vector.publishes {
            true => vec![7],
            false => Vec::new(),
        }),
        9 => of!(gates::vectors(), |vector: &gates::Vector| vector.needs.into_iter().collect()),
        _ => Vec::new(),
    }
}

/// Plays all vectors (test cases) of the levels that a testee has. Returns their number, and the failures as text.
///
/// # Errors
/// If the testee cannot be started, or ends, or hangs.
pub fn play(command: &[OsString]) -> Result<(usize, Vec<String>)> {
    let mut testee = Testee::start(command)?;
    let (mut played, mut failures) = (0, Vec::new());
    for level in LEVELS.into_iter().filter(|level| testee.hello.levels.contains(level)).collect::<Vec<_>>() {
        for vector in vectors(level, Effort::default()) {
            if !vector.is_for(&testee.hello) {
                continue;
            }
            played += 1;
            if let Err(failure) = vector.play(&mut testee)? {
                failures.push(format!("level {level}, {}: {failure:?}", vector.name));
            }
        }
    }
    Ok((played, failures))
}
