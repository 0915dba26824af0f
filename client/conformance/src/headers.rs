//! Level 1: whether a header is accepted, and the reason for a refusal.

use crate::model::Start;
use crate::scribe::{CAPACITY, Life, MAX_MESSAGE, Scribe, WORDS, checksum};
use crate::stage::{Stage, Verdict, same};
use crate::testee::{Answer, Testee};
use anyhow::Result;

/// A changed header, and the reason for which it is refused.
#[derive(Debug)]
pub struct Vector {
    /// The name.
    pub name: String,
    bytes: Vec<u8>,
    refused: Option<&'static str>,
}

/// Words and their new values. The checksum is corrected after the change.
type Change<'a> = &'a [(usize, u64)];

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Collects vectors (test cases) that are changes of one valid header.
struct Vectors {
    whole: Vec<u64>,
    made: Vec<Vector>,
}

/// A changed header: the name of the change, the changed words, and the reason for which readers must refuse the header. Without a reason,
/// readers must accept the header.
type Named<'a> = (&'a str, Change<'a>, Option<&'static str>);

const SIZES: Option<&str> = Some("geometry");
const FIELD: Option<&str> = Some("field");

/// Changes of the sizes in a header.
const GEOMETRY: [Named<'_>; 14] = [
    ("capacity-0", &[(2, 0)], SIZES),
    ("capacity-odd", &[(2, CAPACITY + 64)], SIZES),
    ("capacity-small", &[(2, CAPACITY / 2), (4, 4096), (5, 512), (6, 4096), (7, 8192)], SIZES),
    ("capacity-huge", &[(2, 1 << 35)], SIZES),
    ("capacity-of-more-than-the-file", &[(2, CAPACITY * 2), (5, 2048), (7, 4096 + 16384)], Some("truncated")),
    ("chunk-0", &[(4, 0)], SIZES),
    ("chunk-odd", &[(4, 100)], SIZES),
    ("chunk-small", &[(4, 32)], SIZES),
    ("chunk-large", &[(4, CAPACITY / 4)], SIZES),
    ("index-half", &[(5, 512)], SIZES),
    ("index-double", &[(5, 2048)], SIZES),
    ("max-message-large", &[(6, MAX_MESSAGE + 1)], SIZES),
    ("data-offset-early", &[(7, 4096)], SIZES),
    ("data-offset-huge", &[(7, u64::MAX)], SIZES),
];

/// Changes of the other fields of a header.
const FIELDS: [Named<'_>; 15] = [
    ("max-message-small", &[(6, 1)], None),
    ("chunk-smallest", &[(4, 64)], None),
    ("granule-32", &[(3, 32)], FIELD),
    ("granule-128", &[(3, 128)], FIELD),
    ("clock-counter", &[(1, 1 << 32 | 2 << 16)], None),
    ("clock-unknown", &[(1, 2 << 32 | 2 << 16)], FIELD),
    ("clock-rate-low", &[(13, 999)], FIELD),
    ("clock-rate-lowest", &[(13, 1000)], None),
    ("clock-rate-highest", &[(13, 1_000_000_000_000)], None),
    ("clock-rate-high", &[(13, 1_000_000_000_001)], FIELD),
    ("name-too-long", &[(64, 3585)], FIELD),
    ("name-huge", &[(64, u64::MAX)], FIELD),
    ("name-no-text", &[(65, 0xff)], FIELD),
    ("labels-leave-the-page", &[(68, 3584)], FIELD),
    ("names-empty", &[(64, 0), (65, 0), (66, 0)], None),
];

/// Returns all vectors (test cases).
pub fn vectors() -> Vec<Vector> {
    let mut scribe = Scribe::take(crate::scribe::empty(), (0, 1), 1);
    scribe.publish(b"x", 0, false, 2);
    assert_eq!(scribe.words()[32] & 0xff, Life::Active as u64);
    let mut vectors = Vectors { whole: scribe.words().to_vec(), made: Vec::new() };
    vectors.lengths();
    vectors.magics_and_versions();
    vectors.damage();
    for (name, change, refused) in GEOMETRY.into_iter().chain(FIELDS) {
        vectors.forge(name, change, refused);
    }
    vectors.order_of_rules();
    vectors.made
}

impl Vectors {
    fn add(&mut self, name: impl Into<String>, bytes: Vec<u8>, refused: Option<&'static str>) {
        self.made.push(Vector { name: name.into(), bytes, refused });
    }

    /// Adds the header with changed words. The checksum is that of the unchanged header, so it is wrong.
    fn damaged(&mut self, name: impl Into<String>, change: Change<'_>, refused: Option<&'static str>) {
        let mut words = self.whole.clone();
        change.iter().for_each(|(word, value)| words[*word] = *value);
        self.add(name, bytes(&words), refused);
    }

    /// Adds the header with changed words and a correct checksum.
    fn forge(&mut self, name: impl Into<String>, change: Change<'_>, refused: Option<&'static str>) {
        let mut words = self.whole.clone();
        change.iter().for_each(|(word, value)| words[*word] = *value);
        checksum(&mut words);
        self.add(name, bytes(&words), refused);
    }

    /// Adds files that are too short or too long.
    fn lengths(&mut self) {
        let whole = bytes(&self.whole);
        self.add("whole", whole.clone(), None);
        self.add("longer-file", [whole.clone(), vec![0; 4096]].concat(), None);
        for length in [0, 1, 8, 4095, 4096, 8192, WORDS * 8 - 4096, WORDS * 8 - 1] {
            self.add(format!("file-of-{length}"), whole[..length].to_vec(), Some("truncated"));
        }
    }

    fn magics_and_versions(&mut self) {
        let one_bit = self.whole[0] ^ 1;
        let magics = [("zero", 0), ("of-a-page", u64::from_le_bytes(*b"SHMREAD1")), ("one-bit", one_bit)];
        for (name, value) in magics {
            self.damaged(format!("magic-{name}"), &[(0, value)], Some("foreign"));
        }
        for (major, minor, refused) in [
            (0, 0, Some("version")),
            (1, 0, Some("version")),
            (3, 0, Some("version")),
            (0xffff, 9, Some("version")),
            (2, 1, None),
            (2, 9, None),
            (2, 0xffff, None),
        ] {
            self.forge(format!("version-{major}.{minor}"), &[(1, major << 16 | minor)], refused);
        }
    }

    /// Adds headers in which a word was changed without a change of the checksum.
    fn damage(&mut self) {
        // These are the words that the checksum covers, some words of the names, and some words after the names.
        for word in (2..=15).chain([64, 65, 68, 70, 300, 511]) {
            for bit in [0, 31, 63] {
                let value = self.whole[word] ^ 1 << bit;
                self.damaged(format!("damage-word-{word}-bit-{bit}"), &[(word, value)], Some("checksum"));
            }
        }
        // The checksum does not cover these words, so a change does not matter.
        for word in [17, 31, 40, 60, 63] {
            self.damaged(format!("reserved-word-{word}"), &[(word, u64::MAX)], None);
        }
    }

    /// The first failing rule determines the reason.
    fn order_of_rules(&mut self) {
        self.damaged("checksum-before-geometry", &[(2, 0)], Some("checksum"));
        self.damaged("version-before-checksum", &[(1, 9 << 16)], Some("version"));
        self.forge("granule-before-capacity", &[(2, 0), (3, 1)], FIELD);
        self.forge("geometry-before-clock", &[(4, 0), (1, 7 << 32 | 2 << 16)], SIZES);
    }
}

impl Vector {
    /// Plays the vector (a test case).
    ///
    /// # Errors
    /// If the testee fails.
    pub fn play(&self, testee: &mut Testee) -> Result<Verdict> {
        let stage = Stage::with(&self.bytes)?;
        let answer = stage.open(testee, Start::Oldest)?;
        let expected = match self.refused {
            Some(refused) => Answer::refused(refused),
            None => Answer::done(),
        };
        let verdict = same("open".into(), &expected, &answer);
        testee.ask(r#"{"do":"close"}"#)?;
        Ok(verdict)
    }
}
