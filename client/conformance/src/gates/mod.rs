//! Level 9: gates. A reader takes a gate, and stores the position up to which it has read. A publisher waits for the reader
//! of its gate, up to a time limit.

mod hosted;
pub mod page;
mod publishers;
mod readers;

use crate::Play;
use crate::stage::Verdict;
use crate::testee::Testee;
use anyhow::Result;

/// A vector (a test case).
pub struct Vector {
    /// The name.
    pub name: String,
    /// A level that the testee must have in addition to level 9.
    pub needs: Option<u8>,
    play: Box<Play>,
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let verdict = (self.play)(testee);
        if verdict.is_ok() {
            testee.ask(r#"{"do":"close"}"#)?;
            if self.needs == Some(7) {
                testee.ask(r#"{"do":"end"}"#)?;
            }
        }
        verdict
    }
}

/// Returns all vectors (test cases).
pub fn vectors() -> Vec<Vector> {
    let mut all = Vec::new();
    readers::add(&mut all);
    hosted::add(&mut all);
    publishers::add(&mut all);
    all
}

fn add(
    all: &mut Vec<Vector>,
    needs: Option<u8>,
    name: impl Into<String>,
    play: impl Fn(&mut Testee) -> Result<Verdict> + 'static,
) {
    all.push(Vector { name: name.into(), needs, play: Box::new(play) });
}

/// Returns the two words that identify a segment.
fn uuid(words: &[u64]) -> [u64; 2] {
    [words[8], words[9]]
}
