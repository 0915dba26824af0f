//! A channel in a file, and a testee that reads the channel.

use crate::gates::page::Page;
use crate::model::{Expected, Model, Start};
use crate::scribe::Store;
use crate::testee::{Answer, Testee};
use anyhow::Result;
use serde::Serialize;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::Path;
use tempfile::TempDir;

/// A failed step.
#[derive(Debug, Clone, Serialize)]
pub struct Failure {
    /// The step.
    pub step: String,
    /// The expected answer.
    pub expected: String,
    /// The answer that was received.
    pub got: String,
}

/// The result of a vector (a test case).
pub type Verdict = Result<(), Failure>;

/// The directory of the channel `t`.
#[derive(Debug)]
pub struct Stage {
    dir: TempDir,
    segment: File,
}

/// Makes the verdict for a failed step.
pub fn fails(step: impl Into<String>, expected: impl Into<String>, got: impl Into<String>) -> Verdict {
    Err(Failure { step: step.into(), expected: expected.into(), got: got.into() })
}

/// If a verdict is a failure, returns it from the calling function.
macro_rules! passes {
    ($verdict:expr) => {
        if let Err(failure) = $verdict {
            return Ok(Err(failure));
        }
    };
}
pub(crate) use passes;

/// Makes a temporary directory, in shared memory if possible.
///
/// # Errors
/// If the directory cannot be made.
pub fn scratch() -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix("shmcast-conform-");
    Ok(builder.tempdir_in("/dev/shm").or_else(|_| builder.tempdir())?)
}

/// Makes a file without a name, in shared memory if possible.
///
/// # Errors
/// If the file cannot be made.
pub fn nameless() -> Result<File> {
    Ok(tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile())?)
}

impl Stage {
    /// Makes a channel whose segment has these bytes.
    ///
    /// # Errors
    /// If the files cannot be made.
    pub fn with(bytes: &[u8]) -> Result<Self> {
        let dir = scratch()?;
        let channel = dir.path().join("t");
        fs::DirBuilder::new().mode(0o700).create(&channel)?;
        fs::DirBuilder::new().mode(0o1700).create(channel.join("readers"))?;
        let new = |name: &str| {
            File::options().read(true).write(true).create_new(true).mode(0o600).open(channel.join(name))
        };
        new("lock")?;
        let segment = new("segment")?;
        segment.write_all_at(bytes, 0)?;
        Ok(Self { dir, segment })
    }

    /// Makes a channel whose segment has these words.
    ///
    /// # Errors
    /// The same as for [`with`](Self::with).
    pub fn of(words: &[u64]) -> Result<Self> {
        Self::with(bytes_of(words).as_flattened())
    }

    /// Makes a store in the segment.
    ///
    /// # Errors
    /// If the file cannot be written to.
    pub fn apply(&self, store: &Store) -> Result<()> {
        Ok(self.segment.write_all_at(&store.value.to_le_bytes(), store.word as u64 * 8)?)
    }

    /// Overwrites the whole segment with these words.
    ///
    /// # Errors
    /// If the file cannot be written to.
    pub fn rewrite(&self, words: &[u64]) -> Result<()> {
        Ok(self.segment.write_all_at(bytes_of(words).as_flattened(), 0)?)
    }

    /// Copies the words with the indices `at` from `words` into the segment.
    ///
    /// # Errors
    /// If the file cannot be written to.
    pub fn patch(&self, at: &[usize], words: &[u64]) -> Result<()> {
        for at in at {
            self.segment.write_all_at(&words[*at].to_le_bytes(), *at as u64 * 8)?;
        }
        Ok(())
    }

    /// Makes a gate of the channel.
    ///
    /// # Errors
    /// If the gate's page cannot be made.
    pub fn gate(&self, name: &str) -> Result<Page> {
        let gates = self.path().join("t/gates");
        match fs::DirBuilder::new().mode(0o700).create(&gates) {
            Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(e.into()),
            _ => {}
        }
        Page::make(&gates.join(name), name)
    }

    /// Returns the directory of channels.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Makes the testee open the channel.
    ///
    /// # Errors
    /// If the testee fails.
    pub fn open(&self, testee: &mut Testee, start: Start) -> Result<Answer> {
        let start = match start {
            Start::Oldest => "\"oldest\"".to_owned(),
            Start::Latest => "\"latest\"".to_owned(),
            Start::Sequence(sequence) => sequence.to_string(),
        };
        let dir = self.path().display();
        testee.ask(&format!(r#"{{"do":"open","dir":"{dir}","channel":"t","start":{start}}}"#))
    }

    /// Makes the testee open the channel, and compares the answer with the expected answer. If the channel is open as expected, returns a
    /// model of the testee's reader. The model computes the expected events.
    ///
    /// # Errors
    /// If the testee fails.
    pub fn open_as(
        &self,
        testee: &mut Testee,
        model: &Model,
        start: Start,
    ) -> Result<std::result::Result<Option<Expected>, Failure>> {
        let expected = Expected::open(model, start);
        let wanted = match expected {
            Some(_) => Answer::done(),
            None => Answer::refused("not yet"),
        };
        let answer = self.open(testee, start)?;
        Ok(same(format!("open {start:?}"), &wanted, &answer).map(|()| expected))
    }
}

fn bytes_of(words: &[u64]) -> Vec<[u8; 8]> {
    words.iter().map(|word| word.to_le_bytes()).collect()
}

/// Compares an answer with the expected answer.
pub fn same(step: String, expected: &Answer, got: &Answer) -> Verdict {
    if expected == got {
        return Ok(());
    }
    if let (Answer::Events { events: wanted }, Answer::Events { events: came }) = (expected, got) {
        let at = wanted.iter().zip(came).take_while(|(wanted, came)| wanted == came).count();
        let show = |events: &[String]| events.get(at).map_or("nothing more".to_owned(), Clone::clone);
        return fails(format!("{step}, event {at}"), show(wanted), show(came));
    }
    fails(step, format!("{expected:?}"), format!("{got:?}"))
}

/// Makes the testee receive all available events, and compares them with `events`.
///
/// # Errors
/// If the testee fails.
pub fn poll(testee: &mut Testee, how: &str, step: String, events: Vec<String>) -> Result<Verdict> {
    let answer = testee.ask(&format!(r#"{{"do":"{how}"}}"#))?;
    Ok(same(step, &Answer::Events { events }, &answer))
}
