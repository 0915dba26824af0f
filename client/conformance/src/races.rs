//! Level 4: a publisher laps its reader at full speed. The payloads check themselves.

use crate::payload::Payloads;
use crate::stage::{Verdict, fails};
use crate::testee::{Answer, PATIENCE, Testee};
use anyhow::Result;
use shmcast::{Preparation, Publisher};
use std::path::Path;
use std::time::{Duration, Instant};

/// A race.
#[derive(Debug)]
pub struct Vector {
    /// The name.
    pub name: String,
    capacity: u64,
    longest: usize,
    how: &'static str,
    lasts: Duration,
}

/// Returns all vectors (test cases), each of which lasts this long.
pub fn vectors(lasts: Duration) -> Vec<Vector> {
    let rings = [(64 << 10, 0), (64 << 10, 40), (64 << 10, 8192), (1 << 20, 40), (1 << 20, 65_536)];
    let all = rings.into_iter().flat_map(|(capacity, longest)| {
        ["poll", "batch"].map(|how| Vector {
            name: format!("{how}-up-to-{longest}-in-{}k", capacity >> 10),
            capacity,
            longest,
            how,
            lasts,
        })
    });
    all.collect()
}

/// The counts of a receiving testee.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Messages with the right bytes.
    pub received: u64,
    /// Messages that were reported as lost.
    pub missed: u64,
    /// Messages with wrong bytes, and events that must not happen.
    pub wrong: u64,
}

impl Counts {
    /// Parses an answer to `consume`.
    ///
    /// # Errors
    /// If the text is not an answer to `consume`.
    pub fn of(answer: &Answer) -> Result<Self> {
        let number = |name| answer.number(name);
        Ok(Self { received: number("received")?, missed: number("missed")?, wrong: number("wrong")? })
    }

    /// Judges whether all messages are accounted for.
    pub fn judge(self, published: u64) -> Verdict {
        if self.wrong == 0 && self.received + self.missed == published && self.received > 0 {
            return Ok(());
        }
        fails(
            "consume",
            format!("received + missed = {published}, some received, wrong = 0"),
            format!("received {}, missed {}, wrong {}", self.received, self.missed, self.wrong),
        )
    }
}

/// Asks a testee to receive the channel `t` to its end.
///
/// # Errors
/// If the testee has ended.
pub fn consume(testee: &mut Testee, place: &str, how: &str, longest: usize) -> Result<()> {
    testee.tell(&format!(r#"{{"do":"consume",{place},"channel":"t","how":"{how}","longest":{longest}}}"#))
}

/// Returns the field of a request that names a directory.
pub fn in_dir(dir: &Path) -> String {
    format!(r#""dir":"{}""#, dir.display())
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let dir = crate::stage::scratch()?;
        let builder = Publisher::builder("t").dir(dir.path()).capacity(self.capacity);
        let mut publisher = builder.prepare(Preparation::NONE).open()?;
        let payloads = Payloads::new(self.longest);
        // The first message is published before the reader opens the channel. The others are published while it reads.
        publisher.publish(payloads.of(1))?;
        consume(testee, &in_dir(dir.path()), self.how, self.longest)?;
        let until = Instant::now() + self.lasts;
        while Instant::now() < until {
            for _ in 0..100 {
                let sequence = publisher.next_sequence();
                publisher.publish(payloads.of(sequence))?;
            }
        }
        let published = publisher.next_sequence() - 1;
        publisher.close();
        Ok(Counts::of(&testee.hear(PATIENCE)?)?.judge(published))
    }
}
